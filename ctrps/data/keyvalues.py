"""Readers of rows of keys and values: libsvm, dummy, libffm, VW and slot text.

Which slots the last three have shows only at its end, so their schema grows while rows are
read: a slot that is new comes behind those known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.reading import (
    BAD_PER_CALL,
    LABELS,
    REASONS,
    TextSettings,
    ask,
    reject,
    room_to_ask,
    texts,
)
from ctrps.data.rows import Ids, Rows, Schema
from ctrps.data.textfile import TextFile
from ctrps.errors import ConfigError
from ctrps.kernels import pairs, text
from ctrps.kernels.keys import hash_text

DEFAULT_NAMESPACE = " "
"""VW's own name of the namespace that stands without one."""

LIBSVM = Schema(("",), (), "value")

_CELLS = 1 << 22
"""Counts (rows times slots) of one piece of rows, to bound its memory."""


class LibsvmReader:
    """Rows ``label key:value ...``: one slot without a name, keys as they stand."""

    schema = LIBSVM

    def __init__(self, file: TextFile, settings: TextSettings, bad: BadRows):
        self._file = file
        self._mode = LABELS[settings.labels]
        self._bad = bad
        self._shift = settings.shift

    def __iter__(self) -> Iterator[Rows]:
        found = np.empty((BAD_PER_CALL, 3), np.int64)
        file = self._file
        for _ in _chunks(file):
            size = len(file.buffer)
            keys = np.empty(size // 4 + 1, np.uint64)
            values = np.empty(len(keys), np.float32)
            asked = room_to_ask(size)
            counts = np.empty(size // 2 + 1, np.int32)
            labels = np.empty(len(counts), np.float32)
            done, rows, nnz, wrong, asks = text.libsvm_rows(
                file.buffer, file.final, self._mode, keys, values, counts, labels, found, asked
            )
            ask(file, values, asked[:asks])
            _reject_all(file, self._bad, found[:wrong])
            file.consume(done)
            if rows or wrong:
                keys[:nnz] += self._shift
                yield _piece(keys[:nnz], counts[:rows].reshape(-1, 1), values[:nnz], labels[:rows])


class DummyReader:
    """Rows ``label index index ...``: as libsvm, with 1 for each value."""

    schema = LIBSVM

    def __init__(self, file: TextFile, settings: TextSettings, bad: BadRows):
        self._file = file
        self._mode = LABELS[settings.labels]
        self._bad = bad
        self._shift = settings.shift

    def __iter__(self) -> Iterator[Rows]:
        found = np.empty((BAD_PER_CALL, 3), np.int64)
        file = self._file
        for _ in _chunks(file):
            size = len(file.buffer) // 2 + 1
            keys, counts = np.empty(size, np.uint64), np.empty(size, np.int32)
            labels = np.empty(size, np.float32)
            done, rows, nnz, wrong = text.dummy_rows(
                file.buffer, file.final, self._mode, keys, counts, labels, found
            )
            _reject_all(file, self._bad, found[:wrong])
            file.consume(done)
            if rows or wrong:
                sizes = counts[:rows].reshape(-1, 1).copy()
                yield _piece(keys[:nnz] + self._shift, sizes, None, labels[:rows].copy())


class LibffmReader:
    """Rows ``label field:key:value ...``: a slot for each field, named by its number."""

    def __init__(self, file: TextFile, settings: TextSettings, bad: BadRows):
        self._file = file
        self._mode = LABELS[settings.labels]
        self._bad = bad
        self._shift = settings.shift
        self._fields = len(settings.slots)

    @property
    def schema(self) -> Schema:
        return Schema(tuple(map(str, range(self._fields))), (), "value")

    def __iter__(self) -> Iterator[Rows]:
        found = np.empty((BAD_PER_CALL, 3), np.int64)
        file = self._file
        for _ in _chunks(file):
            size = len(file.buffer)
            slots = np.empty(size // 6 + 1, np.int32)
            keys = np.empty(len(slots), np.uint64)
            values = np.empty(len(slots), np.float32)
            asked = room_to_ask(size)
            sizes = np.empty(size // 2 + 1, np.int32)
            labels = np.empty(len(sizes), np.float32)
            done, rows, nnz, wrong, asks = pairs.libffm_rows(
                file.buffer,
                file.final,
                self._mode,
                slots,
                keys,
                values,
                sizes,
                labels,
                found,
                asked,
            )
            ask(file, values, asked[:asks])
            _reject_all(file, self._bad, found[:wrong])
            file.consume(done)
            self._fields = max(self._fields, int(slots[:nnz].max(initial=-1)) + 1)
            if rows or wrong:
                shifted = keys[:nnz] + self._shift
                columns = slots[:nnz], shifted, values[:nnz], sizes[:rows], labels[:rows]
                yield from _in_slots(*columns, None, self._fields)


class VwReader:
    """Rows ``label 'tag|namespace feature:value ...``: a slot for each namespace.

    Tags are ids of rows if the first row has one.
    """

    def __init__(self, file: TextFile, settings: TextSettings, bad: BadRows):
        self._file = file
        self._mode = LABELS[settings.labels]
        self._bad = bad
        self._tagged = _has_tag(file.first_line())
        self._slots = list(settings.slots)
        self._names = np.empty(pairs.MAX_SLOTS, np.uint64)
        self._names[: len(self._slots)] = [hash_text(name) for name in self._slots]

    @property
    def schema(self) -> Schema:
        return Schema(tuple(self._slots), (), "value")

    def __iter__(self) -> Iterator[Rows]:
        found = np.empty((BAD_PER_CALL, 3), np.int64)
        places = np.empty((pairs.MAX_SLOTS, 2), np.int64)
        file = self._file
        for _ in _chunks(file):
            size = len(file.buffer) // 2 + 1
            slots, keys = np.empty(size, np.int32), np.empty(size, np.uint64)
            numbers, asked = np.empty((2, size), np.float32), room_to_ask(len(file.buffer))
            sizes, labels = np.empty(size, np.int32), np.empty(size, np.float32)
            tags = np.empty((size, 2), np.int32)
            done, rows, nnz, wrong, asks, known = pairs.vw_rows(
                file.buffer,
                file.final,
                self._mode,
                self._tagged,
                self._names,
                len(self._slots),
                places,
                slots,
                keys,
                numbers,
                sizes,
                labels,
                tags,
                found,
                asked,
            )
            ask(file, numbers.reshape(-1), asked[:asks])
            self._name(places[len(self._slots) : known])
            ids = texts(file.buffer, tags[:rows, 0], tags[:rows, 1]) if self._tagged else None
            _reject_all(file, self._bad, found[:wrong])
            file.consume(done)
            if rows or wrong:
                values = numbers[0, :nnz] * numbers[1, :nnz]
                columns = slots[:nnz], keys[:nnz], values, sizes[:rows], labels[:rows]
                yield from _in_slots(*columns, ids, len(self._slots))

    def _name(self, places: np.ndarray) -> None:
        self._slots += [name or DEFAULT_NAMESPACE for name in _names(self._file, places)]


class SlotReader:
    """Rows of ``slot:value``, or ``value:slot``, with the label among them: a slot for each name.

    Each of the n values of a slot weighs 1/n. Fields in front that have no
    colon are named by ``settings.columns``.
    """

    def __init__(self, file: TextFile, settings: TextSettings, bad: BadRows):
        if settings.numeric:
            hint = "all values of slots are categories"
            raise ConfigError("data.numeric is not for slot text", hint=hint)
        self._file = file
        self._mode = LABELS[settings.labels]
        self._bad = bad
        self._turned = settings.format == "signs"
        kept = [settings.id] if settings.id else []
        self._reserved = [settings.label, *kept, *settings.ignore]
        self._id_slot = 1 if kept else -1
        self._slots = [*self._reserved, *settings.slots]
        self._slots += [name for name in settings.columns if name not in self._slots]
        self._plain = np.array([self._slots.index(name) for name in settings.columns], np.int64)
        self._names = np.empty(len(self._reserved) + pairs.MAX_SLOTS, np.uint64)
        self._names[: len(self._slots)] = [hash_text(name) for name in self._slots]

    @property
    def schema(self) -> Schema:
        return Schema(tuple(self._slots[len(self._reserved) :]), (), "value")

    def __iter__(self) -> Iterator[Rows]:
        found = np.empty((BAD_PER_CALL, 3), np.int64)
        places = np.empty((len(self._names), 2), np.int64)
        file = self._file
        for _ in _chunks(file):
            size = len(file.buffer) // 2 + 1
            slots, keys = np.empty(size, np.int32), np.empty(size, np.uint64)
            sizes, labels = np.empty(size, np.int32), np.empty(size, np.float32)
            borders = np.empty((size, 2), np.int32)
            done, rows, nnz, wrong, known = pairs.slot_rows(
                file.buffer,
                file.final,
                self._mode,
                self._turned,
                self._plain,
                len(self._reserved),
                self._id_slot,
                self._names,
                len(self._slots),
                places,
                slots,
                keys,
                sizes,
                labels,
                borders,
                found,
            )
            self._slots += _names(file, places[len(self._slots) : known])
            ids = (
                texts(file.buffer, borders[:rows, 0], borders[:rows, 1])
                if self._id_slot > 0
                else None
            )
            _reject_all(file, self._bad, found[:wrong])
            file.consume(done)
            if rows or wrong:
                columns = slots[:nnz], keys[:nnz], np.ones(nnz, np.float32)
                width = len(self._slots) - len(self._reserved)
                for part in _in_slots(*columns, sizes[:rows], labels[:rows], ids, width):
                    yield _by_mean(part)


def _by_mean(rows: Rows) -> Rows:
    """Rows whose keys weigh 1/n in a slot of n."""
    sizes = rows.counts.reshape(-1)
    if sizes.max(initial=0) < 2:
        return rows
    return replace(rows, values=1 / np.repeat(sizes, sizes).astype(np.float32))


def _names(file: TextFile, places: np.ndarray) -> list[str]:
    """Names of new slots; bytes that are no UTF-8 are escaped, though the hash is theirs."""
    names = [file.buffer[start:end].tobytes() for start, end in places.tolist()]
    return [name.decode("utf-8", "backslashreplace") for name in names]


def _has_tag(line: bytes) -> bool:
    head, bar, _ = line.partition(b"|")
    tokens = head.split()
    if not tokens:
        return False
    return tokens[-1].startswith(b"'") or bool(bar and not head[-1:].isspace())


def _chunks(file: TextFile) -> Iterator[None]:
    """Once for each call of a kernel, to the end of the last part of the file."""
    while True:
        while file.more():
            before = -1
            while len(file.buffer) not in (0, before):
                before = len(file.buffer)
                yield
        if not file.next_part():
            return


def _reject_all(file: TextFile, bad: BadRows, found: np.ndarray) -> None:
    for reason, start, end in found.tolist():
        reject(file, bad, REASONS[reason], start, end)


def _in_slots(
    slots: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    sizes: np.ndarray,
    labels: np.ndarray,
    ids: Ids | None,
    width: int,
) -> Iterator[Rows]:
    """Rows with their keys in the order of slots, a few at a time if there are many slots."""
    borders = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    step = max(1, _CELLS // max(width, 1))
    whole = _piece(keys, np.empty((len(labels), 0), np.int32), values, labels, ids)
    for first in range(0, max(len(labels), 1), step):
        last = min(first + step, len(labels))
        start, end = borders[first], borders[last]
        counts = np.empty((last - first, width), np.int32)
        order = np.empty(end - start, np.int64)
        pairs.by_slot(slots[start:end], sizes[first:last], counts, order)
        part = whole.part(first, last, borders)
        weights = None if part.values is None else part.values[order]
        yield Rows(part.keys[order], counts, weights, part.dense, part.labels.copy(), part.ids)


def _piece(
    keys: np.ndarray,
    counts: np.ndarray,
    values: np.ndarray | None,
    labels: np.ndarray,
    ids: Ids | None = None,
) -> Rows:
    """Rows without dense numbers; they hold values only if one is not 1."""
    dense = np.empty((len(labels), 0), np.float32)
    weights = None if values is None or (values == 1).all() else values.copy()
    return Rows(keys, counts, weights, dense, labels, ids)
