"""Rows in files -> the scores of a model, and how good they are.

Scores are computed by the kernels that training computes with, from the same rows of the same
table, so they are equal in bits to those of training's own evaluation. A key that the model does
not hold counts as zero, and nothing here ever makes one.

Not here: where results are shown, and what a pipe that closes early means (``ctrps.cli``).
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.batches import BlockBatches
from ctrps.data.columns import no_column
from ctrps.data.detect import is_shard
from ctrps.data.features import parse_spec
from ctrps.data.formats import RowSource, fits, open_rows
from ctrps.data.keyed import is_keyed, write_parquet
from ctrps.data.reading import NO_COLUMN, PAIRS, TABLES, UNTOLD, TextSettings
from ctrps.data.rows import Ids, Schema
from ctrps.data.samplefile import FORMAT, open_samples
from ctrps.data.shards import Block, Keep, KeyNumbers, Shard
from ctrps.data.streams import STDIN
from ctrps.data.textout import new_file
from ctrps.errors import DataError
from ctrps.kernels import losses, metrics
from ctrps.loaded import LoadedModel
from ctrps.sections import INDEXED

ROWS = 4096
"""Rows scored at a time. It bounds memory; a row's score does not depend on its neighbours."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of some consecutive rows.

    Attributes
    ----------
    ids : list of str or None
        Texts that name the rows; bytes that are no UTF-8 are surrogate escapes.
    margins : float32[rows]
        Log-odds.
    labels : float32[rows]
        0 or 1; NaN where there is none.
    """

    ids: list[str] | None
    margins: np.ndarray
    labels: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        """float64[rows]."""
        return _probabilities(self.margins)


def _probabilities(margins: np.ndarray) -> np.ndarray:
    out = np.empty(len(margins), np.float64)
    losses.sigmoid_rows(margins, out)
    return out


class Predictions:
    """The scores of the rows of some files, in their order: an iterator of ``Scores``.

    Headers of all files are checked at once, rows are read as they are asked for. The counts are
    of the rows scored so far.

    Attributes
    ----------
    rows : int
    occurrences, unknown : int
        Features of the rows, and how many of them have a key that the model does not hold.
    notes : list of str
        What a person should know about the files, such as columns that were left out.
    """

    def __init__(self, loaded: LoadedModel, paths: Sequence[Path], asked: TextSettings):
        self.rows = self.occurrences = self.unknown = 0
        self.notes: list[str] = []
        self._loaded = loaded
        self._labels = asked.labels
        self._format = asked.format
        self._bad = BadRows(asked.max_bad, setting="max_bad")
        self._with_ids: tuple[bool, str] | None = None
        features, folder = loaded.schema.features, loaded.folder
        self._spec = parse_spec(features, str(folder), folder) if features else None
        for path in paths:
            if path != STDIN:
                self._open(path, BadRows(), 1 << 16).close()
        self._scores = self._score_all(paths)

    @property
    def rejected(self) -> int:
        """Rows that could not be read and have no score."""
        return self._bad.count

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Scores:
        return next(self._scores)

    def _open(self, path: Path, bad: BadRows, chunk_bytes: int = 8 << 20) -> RowSource:
        """The rows of a file, once they are known to be of the model's kind."""
        loaded = self._loaded
        labels = "none" if self._labels == "none" else "optional"
        slots = loaded.schema.slots if loaded.schema.weights == "value" else ()
        form = self._format
        if form == "auto" and loaded.job.data.format in UNTOLD and not is_shard(path):
            form = loaded.job.data.format
        if self._spec and form in ("auto", "tsv") and not (is_shard(path) or is_keyed(path)):
            return open_samples(path, self._spec, bad, chunk_bytes, self._labels)
        how = replace(loaded.text, format=form, labels=labels, slots=slots)
        name = "standard input" if path == STDIN else str(path)
        source = open_rows(path, how, bad, chunk_bytes, partial(self._columns, name))
        try:
            _check_kind(source, loaded.schema, name)
        except DataError:
            source.close()
            raise
        return source

    def _columns(self, name: str, how: TextSettings, names: tuple[str, ...]) -> TextSettings:
        """How to read a table with columns of these names."""
        schema, names = self._loaded.schema, tuple(sorted(names))
        if self._spec:
            hint = "give samples as tab-separated text with a header, or shards made of them"
            raise DataError("the model computes its features of samples", where=name, hint=hint)
        if schema.weights == "value":
            raise _other_kind(Schema(names), schema, name)
        needed = (*schema.slots, *schema.dense)
        absent = [column for column in needed if column not in names]
        if absent and (how.format != "jsonl" or len(absent) == len(needed)):
            what = f"no column {absent[0]!r}, which the model needs"
            raise no_column(what, absent[0], names, name)
        if self._labels == "required" and how.label not in names:
            what = f"labels are needed: no column {how.label!r}"
            raise no_column(what, how.label, names, name)
        known = {*needed, how.label, how.id}
        others = tuple(column for column in names if column not in known)
        unasked = [column for column in others if column not in how.ignore]
        self._note(name, "left out, not known to the model", unasked)
        self._note(name, "taken for missing, not in the first row", absent)
        how = replace(
            how,
            label=how.label if how.label in names or how.format == "jsonl" else NO_COLUMN,
            id=how.id if how.id in names else None,
            ignore=others,
            others=True,
        )
        # A field of JSON may be in other rows than the first.
        return replace(how, columns=(*names, *absent)) if how.format == "jsonl" else how

    def _note(self, name: str, what: str, columns: list[str]) -> None:
        note = f"{name}: {what}: {', '.join(columns)}"
        if columns and note not in self.notes:
            self.notes.append(note)

    def _score_all(self, paths: Sequence[Path]) -> Iterator[Scores]:
        for path in paths:
            rows = self.rows
            with self._open(path, self._bad) as source:
                for block in _blocks(source, self._keep(source)):
                    self._check_ids(block, source.name)
                    self._mind_zero(block, source)
                    for scores in self._score(block):
                        self._check_labels(scores.labels, source, self.rows - rows)
                        self.rows += len(scores.margins)
                        yield scores
        self._bad.finish(self.rows + self._bad.count)

    def _keep(self, source: RowSource) -> Keep | None:
        """What rare values are left out of rows as it was done in training."""
        if source.format != FORMAT or not (self._spec and self._spec.count_above):
            return None
        return lambda keys: self._loaded.partitions.tables[0].find(keys) != 0

    def _score(self, block: Block) -> Iterator[Scores]:
        loaded = self._loaded
        batches = BlockBatches(block, loaded.schema, loaded.model.partition_bits)
        ids = None if block.ids is None else texts(block.ids)
        for first in range(0, block.rows, ROWS):
            batch = batches.minibatch(np.arange(first, min(first + ROWS, block.rows)))
            self.occurrences += len(batch.index)
            self.unknown += loaded.unknown(batch)
            labels = batch.labels
            if self._labels == "none":
                labels = np.full(batch.rows, np.nan, np.float32)
            part = None if ids is None else ids[first : first + ROWS]
            yield Scores(part, loaded.margins(batch), labels)

    def _check_ids(self, block: Block, name: str) -> None:
        with_ids = block.ids is not None
        if self._with_ids is None:
            self._with_ids = (with_ids, name)
        if with_ids != self._with_ids[0]:
            names = (name, self._with_ids[1]) if with_ids else (self._with_ids[1], name)
            what = "{} has ids of its rows and {} has none".format(*names)
            raise DataError(what, hint="score them one by one")

    def _mind_zero(self, block: Block, source: RowSource) -> None:
        """A model that never saw index 0 was perhaps trained on files that count from 1."""
        if source.format not in INDEXED or (block.keys != 0).all():
            return
        if self._loaded.partitions.tables[0].find(np.zeros(1, np.uint64))[0] == 0:
            self._note(source.name, "unlike training, it counts from 0", ["see data.zero_based"])

    def _check_labels(self, labels: np.ndarray, source: RowSource, before: int) -> None:
        """Refuse rows without a label where there must be one; ``before``: rows before these.

        A libsvm row shows by its first token whether it has one, but a file is either of the one
        kind or of the other, and the caller says which.
        """
        none = np.isnan(labels)
        if not none.any() or self._labels == "none":
            return
        row = before + int(none.argmax()) + 1
        if self._labels == "required":
            what = f"labels are needed: row {row} has none"
            raise DataError(what, where=source.name, hint="give the data that they belong to")
        if source.format in ("libsvm", "libffm"):
            hint = "add it, or say that no row of these files has one (labels: none)"
            raise DataError(f"row {row} has no label", where=source.name, hint=hint)


def predict(
    loaded: LoadedModel,
    paths: Sequence[Path],
    *,
    labels: str = "optional",
    max_bad: float = 0.0,
    format: str = "auto",
) -> Predictions:
    """Score the rows of files of any format in their order.

    Columns of tables are found by name. Those that the model does not know are left out and named
    in ``notes``. Standard input is looked at only when its turn comes. A model of extracted
    features makes them of samples itself: text between tabs, with the fields of its features file.

    Parameters
    ----------
    loaded
    paths
        Files, from ``ctrps.data.convert.expand``.
    labels
        ``optional``: as the columns say; rows of libsvm and libffm have one. ``required``;
        ``none``: no row of these has one, and those of others are not looked at.
    max_bad
        Share of rows, 0 to 1, that may be unreadable. Such rows have no score, so that with any
        of them rows and scores no longer stand side by side.
    format
        One of ``ctrps.data.reading.FORMATS``.

    Returns
    -------
    Predictions

    Raises
    ------
    DataError
        At once for files and columns, later for rows, and at the end for too many bad ones.
    """
    return Predictions(loaded, paths, TextSettings(format=format, labels=labels, max_bad=max_bad))


def _blocks(source: RowSource, keep: Keep | None) -> Iterator[Block]:
    """Rows of a file as blocks, in order; nothing is kept on disk."""
    if source.format == "shard":
        yield from Shard(source.path).blocks()
        return
    numbers = KeyNumbers()
    for rows in source.rows:
        starts = rows.starts()
        for first in range(0, rows.rows, ROWS):
            part = rows.part(first, min(first + ROWS, rows.rows), starts)
            yield Block.from_rows(part, source.schema, numbers, keep)


def texts(ids: Ids) -> list[str]:
    """Texts of rows; bytes that are no UTF-8 become surrogate escapes.

    Examples
    --------
    >>> texts((np.frombuffer(b"u1u22", np.uint8), np.int64([2, 2, 5])))
    ['u1', '', 'u22']
    """
    data, ends = ids[0].tobytes(), ids[1].tolist()
    return [
        data[start:end].decode("utf-8", "surrogateescape")
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def _check_kind(source: RowSource, wanted: Schema, name: str) -> None:
    """Refuse keys or key-value text that are not of the model's kind; tables were looked at."""
    found = source.schema
    if source.file is None and not (found.extends(wanted) or wanted.extends(found)):
        raise _other_kind(found, wanted, name)
    if source.format in PAIRS and not fits(source.format, wanted):
        raise _other_kind(found, wanted, name)


def _other_kind(found: Schema, wanted: Schema, name: str) -> DataError:
    what = f"it has {_shown(found)}, the model was trained on {_shown(wanted)}"
    return DataError(what, where=name, hint="give rows made as those of training were")


def _shown(schema: Schema) -> str:
    if schema.slots == ("",):
        return "key:value pairs without columns"
    names = (*schema.slots, *schema.dense)
    some = f" ({', '.join(names[:8])}{', …' if len(names) > 8 else ''})" if names else ""
    kind = "fields or namespaces with values" if schema.weights == "value" else "columns"
    return f"{len(names) or 'other'} {kind}{some}"


def write_scores(scores: Iterable[Scores], out: IO[str] | Path) -> int:
    """Write scores to a stream or file: Parquet if its name ends so, otherwise csv."""
    if not isinstance(out, Path) or out.suffix != ".parquet":
        return write_csv(scores, out)
    return write_parquet(((part.ids, part.probabilities) for part in scores), out)


def write_csv(scores: Iterable[Scores], out: IO[str] | Path) -> int:
    """Write a header and one line per row: ``id,score`` where rows have ids, else ``score``.

    A score is the probability as the shortest text that reads back to the same float64.

    Parameters
    ----------
    scores
    out
        A stream, whose errors are the caller's; or a path, which takes its new content whole or
        keeps the old one.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    DataError
        When ``out`` is a path and cannot be written, for lack of room, say.
    """
    if not isinstance(out, Path):
        return _write(scores, out)
    with new_file(out) as file:
        return _write(scores, codecs.getwriter("utf-8")(file, "surrogateescape"))


def _write(scores: Iterable[Scores], file: IO[str] | codecs.StreamWriter) -> int:
    writer = csv.writer(file, lineterminator="\n")
    rows = 0
    header: list[str] | None = None
    for part in scores:
        if header is None:
            header = ["score"] if part.ids is None else ["id", "score"]
            writer.writerow(header)
        columns = [part.probabilities.tolist()]
        writer.writerows(zip(*([part.ids] if part.ids is not None else []), *columns, strict=True))
        rows += len(part.margins)
    if header is None:
        writer.writerow(["score"])
    return rows


def evaluate(
    loaded: LoadedModel, paths: Sequence[Path], *, max_bad: float = 0.0, format: str = "auto"
) -> dict[str, Any]:
    """How good the model's scores of labelled rows are; parameters as for ``predict``.

    Returns
    -------
    dict
        ``metrics.report`` over all rows; ``occurrences`` of features in them, how many of those
        were ``unknown`` to the model and their share; rows ``rejected``; ``notes``.

    Raises
    ------
    DataError
        As ``predict``, and for a row without a label.
    """
    scored = predict(loaded, paths, labels="required", max_bad=max_bad, format=format)
    parts = [(part.margins, part.labels) for part in scored]
    figures = metrics.report(
        _probabilities(_joined([margins for margins, _ in parts], np.float32)),
        _joined([labels for _, labels in parts], np.float32),
    )
    return figures | {
        "occurrences": scored.occurrences,
        "unknown": scored.unknown,
        "unknown_share": scored.unknown / scored.occurrences if scored.occurrences else None,
        "rejected": scored.rejected,
        "notes": scored.notes,
    }


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts])


def evaluate_scores(
    paths: Sequence[Path], *, group: str | None = None, format: str = "auto"
) -> dict[str, Any]:
    """How good scores in files are, whatever made them.

    Parameters
    ----------
    paths
        csv or tsv files with columns ``label`` and ``score`` (a probability), taken together.
    group
        Column by which to group rows for the grouped AUC.
    format
        ``auto``, ``csv`` or ``tsv``.

    Returns
    -------
    dict
        ``metrics.report`` over all rows; with ``group`` also ``grouped_auc`` (None if no group
        has both classes), ``groups`` in it and ``groups_skipped`` for having one class only.

    Raises
    ------
    DataError
        For what cannot be read, a missing column, and a score that is no probability.
    """
    parts = [part for path in paths for part in _score_rows(Path(path), group, format)]
    scores = _joined([score for score, *_ in parts], np.float64)
    labels = _joined([label for _, label, _ in parts], np.float32)
    figures: dict[str, Any] = metrics.report(scores, labels)
    if group is not None:
        groups = _joined([key for *_, key in parts], np.uint64)
        grouped, used, skipped = metrics.grouped_auc(groups, scores, labels)
        figures["grouped_auc"] = None if np.isnan(grouped) else float(grouped)
        figures |= {"groups": int(used), "groups_skipped": int(skipped)}
    return figures


def _score_rows(
    path: Path, group: str | None, form: str
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Scores float64, labels float32 and keys of the group uint64 of a file's rows."""
    how, before = TextSettings(format=form, id="score"), 0
    with open_rows(
        path, how, BadRows(), fit=lambda *found: _score_columns(path, group, *found)
    ) as s:
        if s.format not in TABLES:
            what = f"it is a {s.format} file, and has no column 'score'"
            raise DataError(what, where=str(path), hint="give csv or tsv with a header, or a model")
        for rows in s.rows:
            if rows.ids is not None:
                yield _numbers(texts(rows.ids), path, before), rows.labels, rows.keys
                before += rows.rows


def _score_columns(
    path: Path, group: str | None, how: TextSettings, names: tuple[str, ...]
) -> TextSettings:
    """How to read scores: as texts, for the readers' numbers are float32 and would tie them."""
    needed = ("label", "score", *([group] if group else []))
    for name in needed:
        if name not in names:
            raise no_column(f"no column {name!r}", name, sorted(names), str(path))
    return replace(how, ignore=tuple(name for name in names if name not in needed))


def _numbers(found: list[str], path: Path, before: int) -> np.ndarray:
    """Probabilities float64[n] of their texts; ``before`` rows of the file come before them."""
    numbers = np.array([_number(text) for text in found], np.float64)
    # Not by their complement: a NaN is wrong as well.
    wrong = ~((numbers >= 0) & (numbers <= 1))
    if wrong.any():
        row = int(wrong.argmax())
        what = f"row {before + row + 1}: a score is a probability, 0 to 1, found {found[row]!r}"
        raise DataError(what, where=str(path))
    return numbers


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
