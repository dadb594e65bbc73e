"""Rows in files -> the scores of a model, and how good they are.

Scores are computed by the kernels that training computes with, from the same rows of the same
table, so they are equal in bits to those of training's own evaluation. A key that the model does
not hold counts as zero, and nothing here ever makes one.

Not here: where results are shown, and what a pipe that closes early means (``ctrps.cli``).
"""

from __future__ import annotations

import csv
import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.batches import BlockBatches
from ctrps.data.formats import TextSettings, detect, open_rows
from ctrps.data.shards import Block, Ids, KeyNumbers, Schema, Shard
from ctrps.errors import DataError
from ctrps.kernels import losses, metrics
from ctrps.loaded import LoadedModel

ROWS = 4096
"""Rows scored at a time. It bounds memory; a row's score does not depend on its neighbours."""

NO_COLUMN = ""
"""A name that no column can have."""


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
        self._bad = BadRows(asked.max_bad, setting="max_bad")
        sources = [(Path(path), self._how(Path(path), asked.format)) for path in paths]
        self._with_ids: tuple[bool, Path] | None = None
        self._scores = self._score_all(sources)

    @property
    def rejected(self) -> int:
        """Rows that could not be read and have no score."""
        return self._bad.count

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Scores:
        return next(self._scores)

    def _how(self, path: Path, form: str) -> TextSettings:
        """How to read ``path``, once its columns are known to be the model's."""
        form = detect(path).format if form == "auto" else form
        labels = "none" if self._labels == "none" else "optional"
        how = replace(self._loaded.text, format=form, labels=labels)
        if form == "shard":
            _check_schema(Shard(path).schema, self._loaded.schema, path)
        elif form == "libsvm":
            _check_schema(Schema(("",), (), "value"), self._loaded.schema, path)
        else:
            how = self._columns(path, how)
        return how

    def _columns(self, path: Path, how: TextSettings) -> TextSettings:
        names, schema = column_names(path, how.format), self._loaded.schema
        if not names:
            return how
        if schema.weights == "value":
            _check_schema(Schema(names), schema, path)
        for name in (*schema.slots, *schema.dense):
            if name not in names:
                raise _no_column(f"no column {name!r}, which the model needs", name, names, path)
        if self._labels == "required" and how.label not in names:
            raise _no_column(f"labels are needed: no column {how.label!r}", how.label, names, path)
        known = {*schema.slots, *schema.dense, how.label, how.id}
        others = tuple(name for name in names if name not in known)
        self._note(path, [name for name in others if name not in how.ignore])
        return replace(
            how,
            label=how.label if how.label in names else NO_COLUMN,
            id=how.id if how.id in names else None,
            ignore=others,
        )

    def _note(self, path: Path, unasked: list[str]) -> None:
        if unasked:
            self.notes.append(f"{path}: left out, not known to the model: {', '.join(unasked)}")

    def _score_all(self, sources: list[tuple[Path, TextSettings]]) -> Iterator[Scores]:
        for path, how in sources:
            rows = self.rows
            for block in _blocks(path, how, self._bad):
                self._check_ids(block, path)
                for scores in self._score(block):
                    self._check_labels(scores.labels, path, how, self.rows - rows)
                    self.rows += len(scores.margins)
                    yield scores
        self._bad.finish(self.rows + self._bad.count)

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

    def _check_ids(self, block: Block, path: Path) -> None:
        with_ids = block.ids is not None
        if self._with_ids is None:
            self._with_ids = (with_ids, path)
        if with_ids != self._with_ids[0]:
            names = (path, self._with_ids[1]) if with_ids else (self._with_ids[1], path)
            what = "{} has ids of its rows and {} has none".format(*names)
            raise DataError(what, hint="score them one by one")

    def _check_labels(self, labels: np.ndarray, path: Path, how: TextSettings, before: int) -> None:
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
            raise DataError(what, where=str(path), hint="give the data that they belong to")
        if how.format == "libsvm":
            hint = "add it, or say that no row of these files has one (labels: none)"
            raise DataError(f"row {row} has no label", where=str(path), hint=hint)


def predict(
    loaded: LoadedModel,
    paths: Sequence[Path],
    *,
    labels: str = "optional",
    max_bad: float = 0.0,
    format: str = "auto",
) -> Predictions:
    """Score the rows of shards, libsvm, csv and tsv files in their order.

    Columns of csv and tsv are found by name. Those that the model does not know are left out and
    named in ``notes``.

    Parameters
    ----------
    loaded
    paths
        Files, from ``ctrps.data.convert.expand``.
    labels
        ``optional``: as the columns say; rows of libsvm have one. ``required``; ``none``: no row
        of a libsvm file has one, and those of others are not looked at.
    max_bad
        Share of rows, 0 to 1, that may be unreadable. Such rows have no score, so that with any
        of them rows and scores no longer stand side by side.
    format
        One of ``ctrps.data.formats.FORMATS``.

    Returns
    -------
    Predictions

    Raises
    ------
    DataError
        At once for files and columns, later for rows, and at the end for too many bad ones.
    """
    return Predictions(loaded, paths, TextSettings(format=format, labels=labels, max_bad=max_bad))


def _blocks(path: Path, how: TextSettings, bad: BadRows) -> Iterator[Block]:
    """Rows of a file as blocks, in order; nothing is kept on disk."""
    if how.format == "shard":
        yield from Shard(path).blocks()
        return
    numbers = KeyNumbers()
    with open_rows(path, how, bad) as source:
        for rows in source.rows:
            starts = rows.starts()
            for first in range(0, rows.rows, ROWS):
                part = rows.part(first, min(first + ROWS, rows.rows), starts)
                yield Block.from_rows(part, source.schema, numbers)


def column_names(path: Path, form: str) -> tuple[str, ...]:
    """Names of the columns of a csv or tsv file, sorted; none if it is blank."""
    with open_rows(path, TextSettings(format=form, label=NO_COLUMN, labels="none"), BadRows()) as s:
        return s.schema.slots


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


def _check_schema(found: Schema, wanted: Schema, path: Path) -> None:
    if found != wanted:
        what = f"it has {_shown(found)}, the model was trained on {_shown(wanted)}"
        raise DataError(what, where=str(path), hint="give rows made as those of training were")


def _shown(schema: Schema) -> str:
    if schema.weights == "value":
        return "key:value pairs without columns"
    names = (*schema.slots, *schema.dense)
    return f"{len(names)} columns ({', '.join(names[:8])}{', …' if len(names) > 8 else ''})"


def _no_column(what: str, name: str, names: tuple[str, ...], path: Path) -> DataError:
    folded = {other.casefold(): other for other in names}
    near = difflib.get_close_matches(name.casefold(), folded, 1)
    some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    hint = f"did you mean {folded[near[0]]!r}? " if near else ""
    return DataError(what, where=f"{path}:1", hint=f"{hint}the file has the columns {some}")


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
    with _new_file(out) as file:
        return _write(scores, file)


def _write(scores: Iterable[Scores], file: IO[str]) -> int:
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


@contextmanager
def _new_file(path: Path) -> Iterator[IO[str]]:
    """A file that takes its name when it is complete. A device or pipe is written as it is."""
    target = Path(os.path.realpath(path))
    special = target.exists() and not target.is_file()
    name = target if special else target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        with open(name, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            yield file
            file.flush()
            if not special:
                os.fsync(file.fileno())
        if not special:
            os.replace(name, target)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"cannot write it: {error.strerror}", where=str(path)) from None
    finally:
        if not special:
            name.unlink(missing_ok=True)


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
    form = detect(path).format if form == "auto" else form
    if form not in ("csv", "tsv"):
        what = f"it is a {form} file, and has no column 'score'"
        raise DataError(what, where=str(path), hint="give csv or tsv with a header, or a model")
    names = column_names(path, form)
    for name in ("label", "score", *([group] if group else [])):
        if name not in names:
            raise _no_column(f"no column {name!r}", name, names, path)
    others = tuple(name for name in names if name not in ("label", "score", group))
    # The score is read as text: the readers' numbers are float32, and would tie close scores.
    how = TextSettings(format=form, id="score", ignore=others)
    before = 0
    with open_rows(path, how, BadRows()) as source:
        for rows in source.rows:
            if rows.ids is not None:
                yield _numbers(texts(rows.ids), path, before), rows.labels, rows.keys
                before += rows.rows


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
