"""Rows in files -> the scores of a model.

Scores are computed by the kernels that training computes with, from the same rows of the same
table, so they are equal in bits to those of training's own evaluation. A key that the model does
not hold counts as zero, and nothing here ever makes one.

Not here: how good scores are (``evaluation``), and the files that hold them (``scorefiles``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.batches import BlockBatches
from ctrps.data.columns import no_column
from ctrps.data.detect import is_shard
from ctrps.data.features import parse_spec
from ctrps.data.formats import RowSource, fits, open_rows
from ctrps.data.kept import Kept, kept_slot, kept_texts
from ctrps.data.keyed import is_keyed
from ctrps.data.reading import NO_COLUMN, PAIRS, TABLES, UNTOLD, TextSettings
from ctrps.data.rows import Ids, Schema
from ctrps.data.samplefile import FORMAT, open_samples
from ctrps.data.shards import Block, Keep, KeyNumbers, Shard
from ctrps.data.streams import STDIN
from ctrps.errors import DataError
from ctrps.kernels import losses
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
    kept : tuple of Kept
        The columns that were asked for.
    """

    ids: list[str] | None
    margins: np.ndarray
    labels: np.ndarray
    kept: tuple[Kept, ...] = ()

    @property
    def probabilities(self) -> np.ndarray:
        """float64[rows]."""
        out = np.empty(len(self.margins), np.float64)
        losses.sigmoid_rows(self.margins, out)
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
        self._kept = asked.keep
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
            return open_samples(path, self._spec, bad, chunk_bytes, self._labels, self._kept)
        # Parquet reads no column that is left out.
        ignore = tuple(column for column in loaded.text.ignore if column not in self._kept)
        how = replace(
            loaded.text, format=form, labels=labels, slots=slots, keep=self._kept, ignore=ignore
        )
        name = "standard input" if path == STDIN else str(path)
        source = open_rows(path, how, bad, chunk_bytes, partial(self._columns, name))
        try:
            _check_kind(source, loaded.schema, name)
            self._check_kept(source)
        except DataError:
            source.close()
            raise
        return source

    def _columns(self, name: str, how: TextSettings, names: tuple[str, ...]) -> TextSettings:
        """How to read a table with columns of these names."""
        schema, names = self._loaded.schema, tuple(sorted(names))
        if self._spec:
            hint = "give samples as tab-separated text with a header, or shards made of them"
            what = "the model computes its features of samples"
            raise DataError(what, where=name, hint=hint, id="E-DATA-MODEL")
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
        unasked = [column for column in others if column not in (*how.ignore, *self._kept)]
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
                for block, kept in _blocks(source, self._keep(source)):
                    self._check_ids(block, source.name)
                    self._mind_zero(block, source)
                    for scores in self._score(block, kept or self._kept_of(block, source)):
                        self._check_labels(scores.labels, source, self.rows - rows)
                        self.rows += len(scores.margins)
                        yield scores
        self._bad.finish(self.rows + self._bad.count)

    def _keep(self, source: RowSource) -> Keep | None:
        """What rare values are left out of rows as it was done in training."""
        if source.format != FORMAT or not (self._spec and self._spec.count_above):
            return None
        return lambda keys: self._loaded.partitions.tables[0].find(keys) != 0

    def _check_kept(self, source: RowSource) -> None:
        """Columns of tables are kept by their readers; other rows have slots, and ids."""
        if source.format in TABLES and source.file is not None:
            return
        slots = [slot for slot in source.schema.slots if slot.strip()]
        for name in self._kept:
            if not slots and source.format in INDEXED:
                hint = "they are in csv, tsv, JSON lines, Parquet, and samples"
                what = f"no column {name!r}: {source.format} rows have no columns"
                raise DataError(what, where=source.name, hint=hint, id="E-DATA-COLUMN")
            if name not in (*slots, *self._id_names):
                what = f"no column {name!r}: a file of this kind has slots, and maybe ids"
                raise no_column(what, name, (*slots, self._id_names[0]), source.name)

    @property
    def _id_names(self) -> tuple[str, ...]:
        """What ids of rows may be called."""
        return tuple(filter(None, ("id", self._loaded.text.id)))

    def _kept_of(self, block: Block, source: RowSource) -> tuple[Kept, ...]:
        """The columns to keep of rows that have no texts but ids."""
        kept, slots = [], source.schema.slots
        for name in self._kept:
            if name in slots:
                kept.append(kept_slot(block, slots.index(name), source.path.parent))
            elif block.ids is not None:
                kept.append(kept_texts(block.ids))
            else:
                raise no_column(f"no column {name!r}: no ids", name, slots, source.name)
        return tuple(kept)

    def _score(self, block: Block, kept: tuple[Kept, ...]) -> Iterator[Scores]:
        loaded = self._loaded
        batches = BlockBatches(block, loaded.schema, loaded.model.partition_bits)
        ids = None if block.ids is None else texts(block.ids)
        for first in range(0, block.rows, ROWS):
            last = min(first + ROWS, block.rows)
            batch = batches.minibatch(np.arange(first, last))
            self.occurrences += len(batch.index)
            self.unknown += loaded.unknown(batch)
            labels = batch.labels
            if self._labels == "none":
                labels = np.full(batch.rows, np.nan, np.float32)
            part = None if ids is None else ids[first:last]
            columns = tuple(column.part(first, last) for column in kept)
            yield Scores(part, loaded.margins(batch), labels, columns)

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
            hint = "give the data that they belong to"
            raise DataError(what, where=source.name, hint=hint, id="E-DATA-LABEL")
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
    keep: Sequence[str] = (),
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
    keep
        Distinct columns whose values come with the scores; of shards and other rows of keys,
        their slots, and ``id``.

    Returns
    -------
    Predictions

    Raises
    ------
    DataError
        At once for files and columns, later for rows, and at the end for too many bad ones.
    """
    how = TextSettings(format=format, labels=labels, max_bad=max_bad, keep=tuple(keep))
    return Predictions(loaded, paths, how)


def blocks(
    loaded: LoadedModel, paths: Sequence[Path], *, labels: str = "optional", format: str = "auto"
) -> Iterator[tuple[Block, Schema]]:
    """The rows that ``predict`` scores, as blocks, with the names of their slots; same errors."""
    asked = Predictions(loaded, paths, TextSettings(format=format, labels=labels))
    for path in paths:
        with asked._open(path, asked._bad) as source:
            for block, _ in _blocks(source, asked._keep(source)):
                yield block, source.schema


def _blocks(source: RowSource, keep: Keep | None) -> Iterator[tuple[Block, tuple[Kept, ...]]]:
    """Rows of a file as blocks, in order, with their texts; nothing is kept on disk."""
    if source.format == "shard":
        yield from ((block, ()) for block in Shard(source.path).blocks())
        return
    numbers = KeyNumbers()
    for rows in source.rows:
        starts = rows.starts()
        for first in range(0, rows.rows, ROWS):
            part = rows.part(first, min(first + ROWS, rows.rows), starts)
            block = Block.from_rows(part, source.schema, numbers, keep)
            yield block, tuple(map(kept_texts, part.kept))


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
    hint = "give rows made as those of training were"
    return DataError(what, where=name, hint=hint, id="E-DATA-MODEL")


def _shown(schema: Schema) -> str:
    if schema.slots == ("",):
        return "key:value pairs without columns"
    names = (*schema.slots, *schema.dense)
    some = f" ({', '.join(names[:8])}{', …' if len(names) > 8 else ''})" if names else ""
    kind = "fields or namespaces with values" if schema.weights == "value" else "columns"
    return f"{len(names) or 'other'} {kind}{some}"
