"""Files of any format to one file: a shard, or text or Parquet for another tool."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctrps.data.badrows import BadRows
from ctrps.data.detect import SUFFIXES
from ctrps.data.formats import RowSource, open_rows
from ctrps.data.keyed import keys_file
from ctrps.data.reading import TextSettings
from ctrps.data.rows import Rows, Schema, widened
from ctrps.data.shards import ShardWriter
from ctrps.data.textout import TEXTS, TextWriter, new_file
from ctrps.errors import ConfigError, DataError

WRITTEN = ("shard", *TEXTS, "parquet")

Add = Callable[[Rows, Schema], None]


def written_format(out: str, to: str | None) -> str:
    """The format to write: ``to``, or what the name says.

    Raises
    ------
    ConfigError
        When neither says one that can be written.

    Examples
    --------
    >>> written_format("a.ffm", None), written_format("-", "vw")
    ('libffm', 'vw')
    """
    form = to or SUFFIXES.get(Path(out).suffix.lower())
    if form not in WRITTEN:
        what = (
            f"{form} cannot be written" if form else f"{out!r} does not say which format to write"
        )
        raise ConfigError(what, where="--to", hint=f"say {', '.join(WRITTEN)}")
    if form not in TEXTS and out == "-":
        hint = "name a file: it is not written from front to back"
        what = "Parquet" if form == "parquet" else "a shard"
        raise ConfigError(f"{what} cannot go to standard output", where="--out", hint=hint)
    return form


def rewrite(
    paths: Sequence[Path],
    out: Path | Callable[[bytes], object],
    to: str,
    settings: TextSettings,
) -> dict[str, Any]:
    """Write the rows of some files, in their order, to one file.

    Parameters
    ----------
    paths
        From ``convert.expand``.
    out
        File that takes its new content whole or keeps the old one, beside it
        ``OUT.rejected.tsv`` with the bad rows if there are any; or, for text,
        what takes the bytes.
    to
        One of ``WRITTEN``.
    settings
        How text is read.

    Returns
    -------
    dict
        ``rows``, ``rejected``, and ``inputs``: path, format, why and rows of each.

    Raises
    ------
    DataError
        For what cannot be read or written, too many bad rows, files of
        different columns, and input without any row.
    """
    bad = BadRows(settings.max_bad)
    if isinstance(out, Path):
        bad.aside = out.with_name(f"{out.name}.rejected.tsv")
    inputs: list[dict[str, Any]] = []
    with _writer(out, to, settings.block_rows) as add:
        for source, rows in _all_rows(paths, settings, bad, inputs):
            add(rows, source.schema)
        rows_in = sum(found["rows"] for found in inputs)
        bad.finish(rows_in + bad.count)
        if not rows_in:
            raise DataError(
                f"no examples in {', '.join(map(str, paths[:3])) or 'no files'}", id="E-DATA-EMPTY"
            )
    return {"rows": rows_in, "rejected": bad.count, "inputs": inputs}


def _all_rows(
    paths: Sequence[Path], settings: TextSettings, bad: BadRows, inputs: list[dict[str, Any]]
) -> Iterator[tuple[RowSource, Rows]]:
    """Rows of all files; what is known of each file goes to ``inputs``."""
    first: tuple[Schema, bool, str] | None = None
    for path in paths:
        with open_rows(path, settings, bad) as source:
            count = 0
            for rows in source.rows:
                if rows.rows:
                    first = first or (source.schema, rows.ids is not None, source.name)
                    _check_same(source, rows, *first)
                    count += rows.rows
                    yield source, rows
            if source.schema.weights == "value":
                slots = max(settings.slots, source.schema.slots, key=len)
                settings = dataclasses.replace(settings, slots=slots)
            about = {"path": str(path), "format": source.format, "why": source.why, "rows": count}
            inputs.append(about)


def _check_same(source: RowSource, rows: Rows, first: Schema, with_ids: bool, name: str) -> None:
    schema = source.schema
    if not (schema.extends(first) or first.extends(schema)):
        hint = "files of one conversion have the same columns"
        raise DataError(
            f"its columns are not those of {name}", where=source.name, hint=hint, id="E-DATA-COLUMN"
        )
    if (rows.ids is not None) != with_ids:
        what = f"one of it and {name} has ids of its rows and the other has none"
        raise DataError(what, where=source.name, hint="convert them one by one")


@contextmanager
def _writer(out: Path | Callable[[bytes], object], to: str, block_rows: int) -> Iterator[Add]:
    if not isinstance(out, Path):
        yield TextWriter(out, to).add
    elif to == "parquet":
        with keys_file(out) as add:
            yield add
    elif to != "shard":
        with new_file(out) as file:
            yield TextWriter(file.write, to).add
    else:
        with _Shard(out, block_rows) as shard:
            yield shard.add


class _Shard:
    """A shard whose schema is that of the first rows, and what it grows to."""

    def __init__(self, path: Path, block_rows: int):
        self._path = path
        self._block_rows = block_rows
        self._writer: ShardWriter | None = None

    def add(self, rows: Rows, schema: Schema) -> None:
        if self._writer is None:
            self._writer = ShardWriter(self._path, schema, self._block_rows).__enter__()
        if schema.extends(self._writer.schema):
            self._writer.extend(schema)
        counts = widened(rows.counts, len(self._writer.schema.slots))
        self._writer.add(dataclasses.replace(rows, counts=counts))

    def __enter__(self) -> _Shard:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._writer is not None:
            self._writer.__exit__(*error)
