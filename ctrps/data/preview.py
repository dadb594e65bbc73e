"""A look at the inputs of a job before it runs: what is there, its columns, its first rows.

Reads headers and beginnings of files and computes nothing; what a job makes of them, ``extract``
and training say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.config import JobConfig
from ctrps.data.badrows import BadRows
from ctrps.data.describe import head
from ctrps.data.extract import feature_settings
from ctrps.data.features import load_spec
from ctrps.data.formats import open_rows
from ctrps.data.join import Joiner, Side
from ctrps.data.joinfile import JoinPlan, load_plan
from ctrps.data.parquet import is_parquet, table_rows
from ctrps.data.program import Extractor
from ctrps.data.reading import PAIRS, TextSettings
from ctrps.data.rows import Schema
from ctrps.data.shards import Shard
from ctrps.data.streams import STDIN
from ctrps.data.tables import Columns, Piece, RawTable, find_table
from ctrps.data.textfile import NEWLINE, TextFile
from ctrps.errors import DataError
from ctrps.kernels.keys import index_new

LOOK_BYTES = 1 << 16
"""Bytes of a file read at a time to look at it."""

COUNTED_BYTES = 1 << 20
"""Text whose lines are counted; the rest of the file is taken to be alike."""


@dataclass(frozen=True, slots=True)
class TablePreview:
    """A raw table.

    Attributes
    ----------
    name, path, bytes
    rows
        About how many.
    columns
    first
        Its first row as csv; empty if there is none.
    """

    name: str
    path: str
    bytes: int
    rows: int
    columns: tuple[str, ...]
    first: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SamplePreview:
    """What the sample stage will make.

    Attributes
    ----------
    tables
        The impressions come first.
    columns, windows
        Of a sample: all, and those that are windows.
    slots, dense
        Numbers of features; None where the job has no features file.
    """

    tables: list[TablePreview]
    columns: int
    windows: int
    slots: int | None
    dense: int | None


@dataclass(frozen=True, slots=True)
class FilesPreview:
    """Files of examples.

    Attributes
    ----------
    files, bytes
        How many, and their size.
    rows, exact
        Rows in all, and whether that is no estimate.
    block_rows
        Rows of the blocks that they have, or will have as shards; for each file.
    first
        First rows of the first file, for people.
    schema
        Of the first file; None for text whose slots show while rows are read.
    """

    files: int
    bytes: int
    rows: int
    exact: bool
    block_rows: list[tuple[int, ...]]
    first: list[str]
    schema: Schema | None


def preview_sample(job: JobConfig) -> SamplePreview:
    """Look at the raw tables of a job, and find every column that its files name.

    Raises
    ------
    ConfigError, DataError
        As ``extract``, for what can be known from headers.
    """
    assert job.sample.dir is not None and job.sample.join is not None
    folder, plan = Path(job.sample.dir), load_plan(job.sample.join)
    events = [source.table for source in plan.events.values()]
    names = [plan.impressions.table, *(join.table for join in plan.joins), *events]
    tables = [_table(name, find_table(folder, name)) for name in dict.fromkeys(names)]
    columns = _sample_columns(folder, plan)
    slots = dense = None
    if job.features.spec is not None:
        spec = load_spec(feature_settings(job).spec)
        Extractor(spec, columns, str(job.sample.join))
        slots, dense = len(spec.slots), len(spec.dense_names)
    windows = sum(name in plan.windows for name in columns)
    return SamplePreview(tables, len(columns), windows, slots, dense)


def _sample_columns(folder: Path, plan: JoinPlan) -> Sequence[str]:
    """The columns of a sample, once all are found that the join file names."""
    bad = BadRows(1)
    sides = []
    for join in plan.joins:
        with RawTable(find_table(folder, join.table), bad, LOOK_BYTES) as table:
            table.column(join.key or join.on)
            none = np.empty((0, len(table.names)), np.int64)
            columns = Columns(table.names, np.empty(0, np.uint8), none, none)
            sides.append(Side(join, columns, index_new(2), 0))
    for name, source in plan.events.items():
        with RawTable(find_table(folder, source.table), bad, LOOK_BYTES) as table:
            table.column(source.time)
            for window in (w for w in plan.windows.values() if w.events == name):
                keys = [source.keys.get(key, key) for key in window.by]
                listed = [window.of] if window.of else []
                for column in (*keys, *window.where, *window.hit, *listed):
                    table.column(column)
    with RawTable(find_table(folder, plan.impressions.table), bad, LOOK_BYTES) as table:
        return Joiner(plan, table, sides).names


def _table(name: str, path: Path) -> TablePreview:
    with RawTable(path, BadRows(1), LOOK_BYTES) as table:
        first = next((_first(piece) for piece in table.pieces() if len(piece.starts)), "")
        columns = table.names
    rows = max(about_rows(path) - (0 if is_parquet(path) else 1), 0)
    return TablePreview(name, str(path), path.stat().st_size, rows, columns, first)


def _first(piece: Piece) -> str:
    start, end = int(piece.starts[0, 0]), int(piece.ends[0, -1])
    return piece.data[start:end].tobytes().decode("utf-8", "backslashreplace")


def preview_files(
    paths: Sequence[Path], settings: TextSettings, rows: int, schema: Schema | None = None
) -> FilesPreview:
    """Look at files of examples: headers of all, and the first rows of the first one.

    Raises
    ------
    DataError
        As reading them would, for what the beginnings show; also if their columns are not those
        of ``schema``, or of the first file.
    """
    blocks, exact, size = [], True, 0
    for path in paths:
        if path == STDIN:
            exact = False
            continue
        size += path.stat().st_size
        with open_rows(path, settings, BadRows(1), LOOK_BYTES) as source:
            form = source.format
            if form not in PAIRS:
                schema = _same(schema, source.schema, path)
        if form == "shard":
            blocks.append(tuple(map(int, Shard(path).block_rows)))
            continue
        exact = exact and is_parquet(path)
        header = form in ("csv", "tsv") and not settings.columns
        count = max(about_rows(path) - header, 0)
        whole, rest = divmod(count, settings.block_rows)
        blocks.append((settings.block_rows,) * whole + ((rest,) if rest else ()))
    first = list(head(paths[0], rows, settings)) if paths and paths[0] != STDIN else []
    return FilesPreview(len(paths), size, sum(map(sum, blocks)), exact, blocks, first, schema)


def _same(schema: Schema | None, found: Schema, path: Path) -> Schema:
    if schema is None or found.extends(schema) or schema.extends(found):
        return schema or found
    differ = {*schema.slots, *schema.dense} ^ {*found.slots, *found.dense}
    some = ", ".join(map(repr, sorted(differ)[:5])) or "their kind or order"
    what = f"its columns are not those of the first training file: they differ in {some}"
    raise DataError(
        what, where=str(path), hint="files of one job have the same columns", id="E-DATA-COLUMN"
    )


def about_rows(path: Path) -> int:
    """Rows of Parquet; of text the lines, counted in its beginning."""
    if is_parquet(path):
        return table_rows(path)
    with TextFile(path, LOOK_BYTES) as file:
        lines = size = 0
        while file.more():
            text = file.buffer
            lines += int(np.count_nonzero(text == NEWLINE))
            size += len(text)
            if file.final:
                return lines + int(text[-1] != NEWLINE)
            file.consume(len(text))
            if size >= COUNTED_BYTES:
                break
        return lines * file.file_bytes // max(file.read_bytes, 1)
