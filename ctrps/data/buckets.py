"""Events in buckets of their keys, on disk or in memory, for ``ctrps.data.history`` to work on.

Every event goes to the bucket of its key, once for each key that comes first in some window. What
a window is, ``ctrps.data.windows`` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctrps.data.badrows import shown
from ctrps.data.joinfile import HOUR_S
from ctrps.data.making import Share
from ctrps.data.spill import Kept, Room, Spill, SpillWriter
from ctrps.data.texts import Field, Ranked, Texts
from ctrps.data.windows import Filter, Histories
from ctrps.errors import DataError
from ctrps.kernels.keys import grouped, hash_text
from ctrps.kernels.tables import hash_fields

RUN_EVENTS = 1 << 18
"""Events that are sorted into buckets at a time."""

BUCKET_TEXT_BYTES = 8 << 20
"""Raw text whose events make a bucket; with all that is made of them they take some 100 MB."""

MAX_BUCKET_BITS = 8
"""A limit of ``grouped``, and of how many files are open."""

RANKED = 2
"""How often memory holds the different values, while they are ranked."""

TEXTS = "texts"
DAY_S = 86400
COMMA = np.uint8(44)
NOWHERE = np.uint32(0xFFFFFFFF)
"""Part of an impression that is only an event: it is on no day of the split."""


def bucket_bits(text_bytes: int) -> int:
    """Logarithm of a number of buckets whose work stays in the processor's caches, nearly."""
    return min(math.ceil(math.log2(max(text_bytes / BUCKET_TEXT_BYTES, 1))), MAX_BUCKET_BITS)


class Place(NamedTuple):
    """Where impressions stand in the samples: uint32[n] part and row of it."""

    parts: np.ndarray
    rows: np.ndarray


class EventBuckets:
    """Takes events of tables and writes them to buckets by their keys.

    A context manager: without ``close`` nothing is left.

    Parameters
    ----------
    room
        As long as it does for all of them, events stay in memory.
    """

    def __init__(self, histories: Histories, folder: Path, bits: int, share: Share, room: Room):
        self._histories = histories
        self.texts = Texts()
        self._writers = {
            (number, name): _BucketWriter(_events_path(folder, number, name), bits, share, room)
            for number, group in enumerate(histories.groups)
            for name in group.keys
        }
        self._folder, self._room = folder, room
        longest = [w.span for group in histories.groups for _, w in group.windows]
        self._reach_s = max(
            span.length * HOUR_S if span.unit == "hours" else (span.length + 2) * DAY_S
            for span in longest
        )
        self._first, self._last = 1 << 62, -(1 << 62)

    def add(
        self,
        name: str,
        column: Callable[[str], Field],
        times: np.ndarray,
        places: Place | None = None,
    ) -> None:
        """Take events of a source; ``column`` gives a column of them by name.

        Impressions, which have places, come first: events that none of them can see are dropped.
        """
        hashes: dict[str, np.ndarray] = {}

        def hashed(of: str) -> np.ndarray:
            if of not in hashes:
                data, starts, ends = column(of)
                hashes[of] = np.empty(len(starts), np.uint64)
                hash_fields(data, starts, ends, hashes[of])
            return hashes[of]

        masks = _masks(self._histories.sources[name].filters, hashed, len(times))
        if places is None:
            kept = (masks != 0) & (times >= self._first - self._reach_s) & (times < self._last)
        else:
            asked = times[places.parts != NOWHERE]
            self._first = min(self._first, int(asked.min(initial=self._first)))
            self._last = max(self._last, int(asked.max(initial=self._last)))
            kept = (masks != 0) | (places.parts != NOWHERE)
        rows = slice(None) if kept.all() else np.flatnonzero(kept)
        coded = {
            of: self._codes(name, of, column, hashed(of), rows)
            for of in dict.fromkeys(
                v for g in self._histories.groups for v in g.values.get(name, ())
            )
        }
        for number, group in enumerate(self._histories.groups):
            if name in group.keys:
                arrays = [
                    np.stack([hashed(key)[rows] for key in group.keys[name]], axis=1),
                    times[rows],
                    masks[rows],
                    _stacked([coded[of] for of in group.values[name]], int(np.count_nonzero(kept))),
                ]
                if places is not None:
                    arrays.append(np.stack([places.parts[rows], places.rows[rows]], axis=1))
                self._writers[number, name].add(arrays)
        self._room.relieve()

    def _codes(
        self,
        name: str,
        of: str,
        column: Callable[[str], Field],
        hashes: np.ndarray,
        rows: np.ndarray | slice,
    ) -> np.ndarray:
        data, starts, ends = column(of)
        known, size = len(self.texts), self.texts.size_bytes
        codes = self.texts.codes((data, starts[rows], ends[rows]), hashes[rows])
        self._room.left -= RANKED * (self.texts.size_bytes - size)
        if (self.texts.since(known) == COMMA).any():
            new = map(self.texts.text, range(known, len(self.texts)))
            found = shown(next(text for text in new if b"," in text))
            what = f"{of} {found} has a comma, which divides the values of a list"
            raise DataError(
                what,
                where=name,
                hint="take another column as `of`, or mend the table",
                id="E-DATA-ROW",
            )
        return codes

    def __enter__(self) -> EventBuckets:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.file.abandon()

    def close(self) -> EventsFound:
        """Finish, and return what can be read."""
        for writer in self._writers.values():
            writer.flush()
        self._room.relieve()
        events = {which: writer.file.close() for which, writer in self._writers.items()}
        ranks, texts = self.texts.ranked()
        with SpillWriter(self._folder / TEXTS) as file:
            file.append(0, [ranks, *texts])
            file.close()
        return EventsFound(events, ranks, texts)


class EventsFound(NamedTuple):
    """Events in buckets.

    Attributes
    ----------
    events
        Of each group, by its number, and source.
    ranks : int64[codes]
        Ranks of the values of events.
    texts
    """

    events: Mapping[tuple[int, str], Kept | Spill]
    ranks: np.ndarray
    texts: Ranked

    @classmethod
    def on_disk(cls, histories: Histories, folder: Path) -> EventsFound:
        """What an ``EventBuckets`` has left in a folder."""
        events = {
            (number, name): Spill(_events_path(folder, number, name))
            for number, group in enumerate(histories.groups)
            for name in group.keys
        }
        ((ranks, *texts),) = Spill(folder / TEXTS).read(0)
        return cls(events, ranks, Ranked(*(np.array(array) for array in texts)))

    @property
    def durable(self) -> bool:
        """Whether all of it is on disk."""
        return all(isinstance(found, Spill) for found in self.events.values())

    def remove(self) -> None:
        """Events are not needed when all windows are computed."""
        for found in self.events.values():
            if isinstance(found, Spill):
                found.path.unlink()


def _events_path(folder: Path, number: int, name: str) -> Path:
    return folder / f"{number}-{name}.events"


def _stacked(columns: Sequence[np.ndarray], rows: int) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.empty((rows, 0), np.uint32)


def _masks(filters: Sequence[Filter], hashed: Callable[[str], np.ndarray], rows: int) -> np.ndarray:
    """Bits of the filters that each row fits."""
    masks = np.zeros(rows, np.min_scalar_type((1 << len(filters)) - 1))
    for bit, which in enumerate(filters):
        fit = np.ones(rows, np.bool_)
        for column, texts in which:
            found = hashed(column)
            one_of = found == np.uint64(hash_text(texts[0]))
            for text in texts[1:]:
                one_of |= found == np.uint64(hash_text(text))
            fit &= one_of
        masks |= fit.astype(masks.dtype) << masks.dtype.type(bit)
    return masks


class _BucketWriter:
    """Sorts rows of arrays into buckets of their first keys, many at a time."""

    def __init__(self, path: Path, bits: int, share: Share, room: Room):
        self.file = SpillWriter(path, room)
        self._bits, self._share = bits, share
        self._waiting: list[Sequence[np.ndarray]] = []
        self._rows = 0

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        self._waiting.append(arrays)
        self._rows += len(arrays[0])
        if self._rows >= RUN_EVENTS:
            self.flush()

    def flush(self) -> None:
        arrays = [np.concatenate(parts) for parts in zip(*self._waiting, strict=True)]
        self._waiting, self._rows = [], 0
        if not arrays:
            return
        order = np.empty(len(arrays[0]), np.int64)
        starts = np.empty((1 << self._bits) + 1, np.int32)
        grouped(arrays[0][:, 0].copy(), self._bits, order, starts)
        for bucket in np.flatnonzero(np.diff(starts)):
            if not self._share.has(int(bucket)):
                continue
            rows = order[starts[bucket] : starts[bucket + 1]]
            self.file.append(int(bucket), [array.take(rows, axis=0) for array in arrays])


def part_order(parts: np.ndarray) -> np.ndarray:
    """Stable order that sorts numbers of parts; small numbers, as they mostly are, by counting."""
    small = parts.max(initial=0) < 1 << 16
    return np.argsort(parts.astype(np.uint16) if small else parts, kind="stable")
