"""Blocks that are put aside until it is known which of their keys are frequent.

``features.count_above`` keeps keys that occur often enough in all training rows, which is known
only when all of these have been read. So each part is written as a *draft* first, with all of its
keys. Then counts are added up, for some partitions of keys at a time, which bounds memory; and
every draft is read once more, without the keys that are too rare.

All of it is files of one run, which end with it: nothing in them is checked but that it is whole.

A draft's records are blocks. Its file of runs has the same keys in other order: a run is some
blocks in a row, whose keys are grouped by partition. ``decide`` reads a slice of each run of each
draft, and writes which of these keys stay.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from ctrps.data.blocks import Made, Numbered
from ctrps.data.shards import BITS, Block
from ctrps.data.spec import FeatureSpec
from ctrps.errors import DataError
from ctrps.kernels.counts import add_counts, counted_above, move_counts, ungrouped
from ctrps.kernels.keys import dense_key, grouped

DRAFT, RUNS = ".draft", ".runs"
RANGES = "ranges.json"
"""Says how many ranges there are, once it is known of all which keys stay."""

RUN_KEYS = 1 << 19
"""Keys that go together, at least: 6 MB. The more, the fewer slices there are to read."""

RANGE_KEYS = 1 << 18
"""Keys, repeated ones too, that are counted at a time, about: an index of 8 MB."""

DTYPES = ("u1", "u2", "u4", "u8", "i4", "i8", "f4", "b1")


class ArraysWriter:
    """Writes arrays to a file of one run: whole or not at all, without checksums.

    Each record has the same number of arrays, of one dimension. ``note`` is a number to keep.
    """

    def __init__(self, path: Path, note: int = 0):
        self.path, self._note = path, note
        self._temporary = path.with_name(f"tmp-{os.getpid()}-{path.name}")
        self._file = open(self._temporary, "wb", buffering=0)
        self._at = 0
        self._records: list[list[tuple[int, int, int]]] = []

    def append(self, arrays: Sequence[np.ndarray]) -> None:
        record = []
        for array in arrays:
            record.append((self._at, len(array), DTYPES.index(array.dtype.str[1:])))
            self._write(array)
        self._records.append(record)

    def close(self) -> None:
        width = len(self._records[0]) if self._records else 0
        directory = np.array(self._records, np.int64).reshape(len(self._records), width, 3)
        shape = np.array([self._at, len(self._records), width, self._note], np.int64)
        self._write(directory)
        self._write(shape)
        self._file.close()
        self._temporary.replace(self.path)

    def _write(self, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while data:
            written = self._file.write(data)
            self._at, data = self._at + written, data[written:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            self._temporary.unlink(missing_ok=True)


class Arrays:
    """Reads a file of ``ArraysWriter``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a"
    ...     with ArraysWriter(path) as writer:
    ...         writer.append([np.arange(5), np.zeros(2, np.uint8)])
    ...     with Arrays(path) as arrays:
    ...         arrays.records, arrays.read(0, 0, 1, 3), arrays.read(0, 1)
    (1, array([1, 2]), array([0, 0], dtype=uint8))
    """

    def __init__(self, path: Path):
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        try:
            end = os.fstat(self._file).st_size - 32
            at, self.records, width, self.note = self._read(max(end, 0), 4, np.int64).tolist()
            if at + 24 * self.records * width != end:
                raise self._cut_short()
            directory = self._read(at, 3 * self.records * width, np.int64)
            self._directory = directory.reshape(self.records, width, 3)
        except DataError:
            os.close(self._file)
            raise

    def size(self, record: int, number: int) -> int:
        """Length of an array."""
        return int(self._directory[record, number, 1])

    def record(self, record: int) -> list[np.ndarray]:
        """All arrays of a record."""
        return [self.read(record, number) for number in range(self._directory.shape[1])]

    def read(self, record: int, number: int, first: int = 0, last: int | None = None) -> np.ndarray:
        """Array ``number`` of a record, or entries ``first`` to ``last`` (not included) of it."""
        at, size, kind = self._directory[record, number].tolist()
        dtype = np.dtype(DTYPES[kind])
        last = size if last is None else last
        return self._read(at + first * dtype.itemsize, last - first, dtype)

    def _read(self, at: int, size: int, dtype: np.dtype | type) -> np.ndarray:
        array = np.empty(size, dtype)
        data = array.view(np.uint8).data
        while data:
            read = os.preadv(self._file, [data], at)
            if not read:
                raise self._cut_short()
            at, data = at + read, data[read:]
        return array

    def _cut_short(self) -> DataError:
        hint = "run extract again with --overwrite"
        return DataError("it is cut short", where=str(self.path), hint=hint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


class DraftWriter:
    """Writes the blocks of a part, and the runs of their keys.

    Parameters
    ----------
    path
    lines
        Of the part.
    single : int32[slots]
        1 for slots that have one key in every row, whose counts need not be written; else 0.
    """

    def __init__(self, path: Path, lines: int, single: np.ndarray):
        self._blocks = ArraysWriter(path, lines)
        self._runs = ArraysWriter(path.with_suffix(RUNS))
        self._single, self._varies = single, np.flatnonzero(single == 0)
        self._waiting: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._waits = 0

    def add(self, made: Made) -> None:
        rows = made.rows
        ids = rows.ids or (np.empty(0, np.uint8), np.empty(0, np.int64))
        local = rows.local.astype(rows.places.dtype)
        varying = np.take(rows.counts, self._varies, axis=1)
        rest = [rows.dense.reshape(-1), rows.labels, *ids, made.text]
        self._blocks.append([local, rows.places, varying.reshape(-1), *rest])
        sparse = int(made.borders[-1])
        self._waiting.append((rows.keys[:sparse], made.counts[:sparse], made.borders))
        self._waits += sparse
        if self._waits >= RUN_KEYS:
            self._write_run()

    def _write_run(self) -> None:
        keys, counts, borders = zip(*self._waiting, strict=True)
        every, whole = np.concatenate(keys), np.empty((1 << BITS) + 1, np.int32)
        order = np.empty(len(every), np.int64)
        grouped(every, BITS, order, whole)
        sizes = np.diff(np.array(borders)).reshape(-1)
        self._runs.append([every[order], np.concatenate(counts)[order], whole, sizes, self._single])
        self._waiting, self._waits = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._waiting:
                self._write_run()
        except BaseException as failed:
            kind, error = type(failed), failed
            raise
        finally:
            # The draft comes last: where it is, all is there.
            self._runs.__exit__(kind, error, at)
            self._blocks.__exit__(kind, error, at)


def ranges(drafts: Sequence[Path]) -> int:
    """Into how many ranges of partitions the keys of drafts are cut to be counted."""
    keys = 0
    for path in drafts:
        with Arrays(path.with_suffix(RUNS)) as runs:
            keys += sum(runs.size(run, 0) for run in range(runs.records))
    return min(1 << max((keys // RANGE_KEYS).bit_length(), 0), 1 << BITS)


def remove_drafts(folder: Path) -> None:
    """Remove all that is here for a while only."""
    for pattern in (f"*{DRAFT}", f"*{RUNS}", "range-*.kept", RANGES):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def kept_path(folder: Path, number: int) -> Path:
    """The file that says which keys of a range stay."""
    return folder / f"range-{number:03d}.kept"


def decide(
    drafts: Sequence[Path], training: Sequence[bool], above: int, folder: Path, of: int, number: int
) -> None:
    """Write which keys of range ``number`` of ``of`` stay, unless it is known.

    Parameters
    ----------
    drafts, training
        Of all parts; those of training rows count.
    above
        Keys that occur more often stay.
    """
    path = kept_path(folder, number)
    if path.exists():
        return
    first, last = (n * (1 << BITS) // of for n in (number, number + 1))
    index, used = np.zeros((1 << 12, 2), np.uint64), 0
    for draft, counts in zip(drafts, training, strict=True):
        for keys, numbers, _ in _slices(draft, first, last) if counts else ():
            at = 0
            while at < len(keys):
                used, at = add_counts(index, keys, numbers, used, at)
                if at < len(keys):
                    larger = np.zeros((2 * len(index), 2), np.uint64)
                    move_counts(index, larger)
                    index = larger
    with ArraysWriter(path) as file:
        for draft in drafts:
            found = []
            for keys, _, _ in _slices(draft, first, last):
                kept = np.empty(len(keys), np.bool_)
                counted_above(index, keys, above, kept)
                found.append(kept)
            file.append([np.concatenate([np.empty(0, np.bool_), *found])])


def _slices(
    draft: Path, first: int, last: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Keys, counts and borders of some partitions of each run."""
    with Arrays(draft.with_suffix(RUNS)) as runs:
        for run in range(runs.records):
            borders = runs.read(run, 2)
            start, end = int(borders[first]), int(borders[last])
            yield runs.read(run, 0, start, end), runs.read(run, 1, start, end), borders


class Draft:
    """Reads the blocks of a draft, without the keys that are to go.

    Attributes
    ----------
    lines : int
        Of the part.
    """

    def __init__(self, path: Path, spec: FeatureSpec):
        self._path, self._spec = path, spec
        with Arrays(path) as blocks:
            self.lines = blocks.note

    def remove(self) -> None:
        for path in (self._path, self._path.with_suffix(RUNS)):
            path.unlink(missing_ok=True)

    def blocks(self, folder: Path, number: int, of: int) -> Iterator[Block]:
        """Every block, with the keys that stay.

        ``number`` is the draft's among those that ``decide`` has been given, and ``of`` is as
        there.
        """
        dense = np.array([dense_key(name) for name in self._spec.dense_names], np.uint64)
        with Arrays(self._path) as blocks, Arrays(self._path.with_suffix(RUNS)) as runs:
            block = 0
            for run, kept, borders in self._kept(runs, folder, number, of):
                every, single = runs.read(run, 0), runs.read(run, 4)
                cursor = borders[:-1].astype(np.int64)
                for sizes in runs.read(run, 3).reshape(-1, 1 << BITS):
                    keys = np.append(np.empty(sizes.sum(), np.uint64), dense)
                    stays = np.ones(len(keys), np.bool_)
                    ungrouped(sizes, cursor, every, kept, keys, stays)
                    yield self._numbered(blocks, block, keys, single).block(stays)
                    block += 1

    def _kept(
        self, runs: Arrays, folder: Path, number: int, of: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Each run, which of its keys stay, and its borders."""
        found, at = [], [0] * of
        for one in range(of):
            with Arrays(kept_path(folder, one)) as file:
                found.append(file.read(number, 0))
        for run in range(runs.records):
            borders = runs.read(run, 2)
            ends = borders[:: (1 << BITS) // of].tolist()
            pieces = []
            for one, (start, end) in enumerate(itertools.pairwise(ends)):
                pieces.append(found[one][at[one] : at[one] + end - start])
                at[one] += end - start
            yield run, np.concatenate(pieces), borders

    def _numbered(
        self, blocks: Arrays, number: int, keys: np.ndarray, single: np.ndarray
    ) -> Numbered:
        local, places, varying, dense, labels, text, ends = (
            blocks.read(number, i) for i in range(7)
        )
        rows, varies = len(labels), np.flatnonzero(single == 0)
        counts = np.empty((rows, len(single)), varying.dtype)
        counts[:] = single
        counts[:, varies] = varying.reshape(rows, -1)
        ids = (text, ends) if self._spec.id else None
        return Numbered(keys, local, places, counts, dense.reshape(rows, -1), labels, ids)

    def text(self, number: int) -> np.ndarray:
        """The text of a block, if it is there."""
        with Arrays(self._path) as blocks:
            return blocks.read(number, 7)
