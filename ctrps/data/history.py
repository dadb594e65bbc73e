"""Windows at any scale: events into buckets on disk, then bucket after bucket, then whole samples.

Every event is written to the bucket of its key, once for each key that comes first in some
window. The windows of a bucket need nothing but the bucket; what they give is written by the part
of the samples that it belongs to, and put together with the tables' columns part by part. So
memory is that of a bucket or a part for each thread, and neither the number of buckets nor that of
threads is seen in the samples. What a window is, ``ctrps.data.windows`` says.

Every file gets its name when it is whole, so that work can be taken up where it ended.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctrps.data.badrows import shown
from ctrps.data.joinfile import HOUR_S, IMPRESSIONS
from ctrps.data.making import Share
from ctrps.data.spill import Kept, Spill, SpillWriter
from ctrps.data.texts import Field, Ranked, Texts
from ctrps.data.windows import Columns, Events, Filter, Histories, bucket_columns
from ctrps.errors import DataError
from ctrps.kernels.copying import WRITTEN_OVER
from ctrps.kernels.keys import grouped, hash_text
from ctrps.kernels.runs import field_runs, join_runs, rows_size, rows_text
from ctrps.kernels.tables import hash_fields

RUN_EVENTS = 1 << 18
"""Events that are sorted into buckets at a time."""

TEXT_BYTES = 16 << 20
"""Text of histories or samples that is written at a time."""

BUCKET_TEXT_BYTES = 8 << 20
"""Raw text whose events make a bucket; with all that is made of them they take some 100 MB."""

MAX_BUCKET_BITS = 8
"""A limit of ``grouped``, and of how many files are open."""

EVENT_WORK, IMPRESSION_WORK = 150, 1200
"""Bytes of memory, at most, for each event and impression of a bucket that is worked on."""

DAY_S = 86400
NEWLINE, TAB, COMMA = np.uint8(10), np.uint8(9), np.uint8(44)
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
    """

    def __init__(self, histories: Histories, folder: Path, bits: int, share: Share):
        self._histories = histories
        self.texts = Texts()
        self._writers = {
            (number, name): _BucketWriter(folder / f"{number}-{name}.events", bits, share)
            for number, group in enumerate(histories.groups)
            for name in group.keys
        }
        self._folder = folder
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
        rows = np.flatnonzero(kept)
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
                    _stacked([coded[of] for of in group.values[name]], len(rows)),
                ]
                if places is not None:
                    arrays.append(np.stack([places.parts[rows], places.rows[rows]], axis=1))
                self._writers[number, name].add(arrays)

    def _codes(
        self,
        name: str,
        of: str,
        column: Callable[[str], Field],
        hashes: np.ndarray,
        rows: np.ndarray,
    ) -> np.ndarray:
        data, starts, ends = column(of)
        known = len(self.texts)
        codes = self.texts.codes((data, starts[rows], ends[rows]), hashes[rows])
        if (self.texts.since(known) == COMMA).any():
            new = map(self.texts.text, range(known, len(self.texts)))
            found = shown(next(text for text in new if b"," in text))
            what = f"{of} {found} has a comma, which divides the values of a list"
            raise DataError(what, where=name, hint="take another column as `of`, or mend the table")
        return codes

    def __enter__(self) -> EventBuckets:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.abandon()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        ranks, texts = self.texts.ranked()
        with SpillWriter(self._folder / "texts") as file:
            file.append(0, [ranks, *texts])


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

    def __init__(self, path: Path, bits: int, share: Share):
        self._file = SpillWriter(path)
        self._bits, self._share = bits, share
        self._waiting: list[Sequence[np.ndarray]] = []
        self._rows = 0

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        self._waiting.append(arrays)
        self._rows += len(arrays[0])
        if self._rows >= RUN_EVENTS:
            self._flush()

    def _flush(self) -> None:
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
            self._file.append(int(bucket), [array.take(rows, axis=0) for array in arrays])

    def close(self) -> None:
        self._flush()
        self._file.close()

    def abandon(self) -> None:
        """Remove the file, unless it is closed."""
        self._file.abandon()


class HistoryWork:
    """The two passes behind the reading of tables: windows of buckets, and whole samples.

    Parameters
    ----------
    histories
    folder
        Gets the windows.
    events
        Folder that ``EventBuckets`` has written to.
    bits
        Logarithm of the number of buckets.
    keep_bytes
        Windows that may stay in memory; only others are there when the process ends.
    """

    def __init__(
        self, histories: Histories, folder: Path, events: Path, bits: int, keep_bytes: int = 0
    ):
        self._histories, self._folder, self._bits = histories, folder, bits
        self._events_folder, self._keep_bytes = events, keep_bytes
        self._windows: dict[tuple[int, int], Kept | Spill] = {}
        ((self._ranks, *texts),) = Spill(events / "texts").read(0)
        self._texts = Ranked(*(np.array(array) for array in texts))

    def buckets(self) -> list[tuple[int, int]]:
        """Group and number of every bucket."""
        groups = range(len(self._histories.groups))
        return [(group, bucket) for group in groups for bucket in range(1 << self._bits)]

    def _events_path(self, group: int, name: str) -> Path:
        return self._events_folder / f"{group}-{name}.events"

    def _path(self, group: int, bucket: int) -> Path:
        return self._folder / f"{group}-{bucket:03d}.rows"

    def remove_events(self) -> None:
        """They are not needed when windows are computed."""
        for path in self._events_folder.glob("*.events"):
            path.unlink()

    def bucket_bytes(self) -> int:
        """Memory that the largest bucket takes."""
        largest = 0
        for number, group in enumerate(self._histories.groups):
            sizes = np.zeros(1 << self._bits, np.int64)
            for name in group.keys:
                records = Spill(self._events_path(number, name)).records
                work = IMPRESSION_WORK if name == IMPRESSIONS else EVENT_WORK
                np.add.at(sizes, records[:, 0], records[:, 1] * work)
            largest = max(largest, int(sizes.max()))
        return largest + 4 * self._ranks.nbytes

    def part_bytes(self) -> int:
        """Memory that the largest part takes, when all buckets are computed."""
        records = np.concatenate([self._computed(*bucket).records for bucket in self.buckets()])
        largest = int(np.bincount(records[:, 0], records[:, 2]).max(initial=0))
        return largest + largest // 2 + 3 * TEXT_BYTES

    @property
    def durable(self) -> bool:
        """Whether all windows that are computed are on disk."""
        return not any(isinstance(found, Kept) for found in self._windows.values())

    def compute(self, number: int, bucket: int) -> int:
        """Compute the windows of a bucket, unless they are there; return its rows."""
        path = self._path(number, bucket)
        if path.exists():
            return 0
        if self._keep_bytes <= 0:
            with SpillWriter(path) as file:
                return self._compute(number, bucket, file)
        kept = Kept()
        rows = self._compute(number, bucket, kept)
        # Other threads do so too: some buckets more or less are kept.
        self._keep_bytes -= kept.size_bytes
        self._windows[number, bucket] = kept
        return rows

    def _compute(self, number: int, bucket: int, to: SpillWriter | Kept) -> int:
        group = self._histories.groups[number]
        found = {name: self._events(number, name, bucket) for name in group.keys}
        events = {name: pair[0] for name, pair in found.items()}
        places = found[IMPRESSIONS][1]
        asked = np.flatnonzero(places[:, 0] != NOWHERE)
        every = events[IMPRESSIONS]
        rows = Events(
            every.keys[asked], every.times[asked], every.masks[asked], every.values[asked]
        )
        columns = bucket_columns(self._histories, group, rows, events, self._texts)
        places = places[asked][columns.order]
        sizes = np.empty(len(asked), np.int64)
        rows_size(columns.begins, columns.stops, sizes)
        for first, last in _spans(sizes):
            _write_rows(to, columns, group.closes, first, sizes[first:last], places[first:last])
        return len(asked)

    def _computed(self, number: int, bucket: int) -> Kept | Spill:
        if (number, bucket) not in self._windows:
            self._windows[number, bucket] = Spill(self._path(number, bucket))
        return self._windows[number, bucket]

    def _events(self, number: int, name: str, bucket: int) -> tuple[Events, np.ndarray]:
        """Events of a source in a bucket, and the places of impressions."""
        group = self._histories.groups[number]
        keys, values = len(group.keys[name]), len(group.values[name])
        arrays = Spill(self._events_path(number, name)).joined(bucket)
        if not arrays:
            none = Events(
                np.empty((0, keys), np.uint64), np.empty(0, np.int64), np.empty(0, np.uint8),
                np.empty((0, values), np.int64),
            )  # fmt: skip
            return none, np.empty((0, 2), np.uint32)
        places = arrays[4] if len(arrays) > 4 else np.empty((0, 2), np.uint32)
        return Events(arrays[0], arrays[1], arrays[2], self._ranks[arrays[3]]), places

    def join(self, part: int, base: Path, header: bytes, out: Path) -> int:
        """Put the columns of tables in ``base`` and the windows of a part together.

        ``base`` has no header. Return the rows; none if ``out`` is there.
        """
        if out.exists():
            return 0
        lines = np.empty(base.stat().st_size + WRITTEN_OVER, np.uint8)
        with base.open("rb") as file:
            file.readinto(lines.data)
        behind = np.flatnonzero(lines[:-WRITTEN_OVER] == NEWLINE) + 1
        runs = _Runs(self._histories, len(behind))
        runs.add_base(lines, behind)
        for number in range(len(self._histories.groups)):
            for bucket in range(1 << self._bits):
                for rows, ends, inner, text in self._computed(number, bucket).read(part):
                    runs.add(number, rows, ends.astype(np.int64), inner, text)
        making = out.with_name(out.name + ".making")
        with making.open("wb") as file:
            file.write(header)
            for text in runs.lines():
                file.write(text.data)
        making.replace(out)
        return len(behind)


def _spans(sizes: np.ndarray) -> Iterable[tuple[int, int]]:
    """Borders of rows that make about ``TEXT_BYTES`` together."""
    behind = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        done = behind[first - 1] if first else 0
        last = max(int(np.searchsorted(behind, done + TEXT_BYTES, side="right")), first + 1)
        yield first, last
        first = last


def _write_rows(
    file: SpillWriter | Kept,
    columns: Columns,
    closes: np.ndarray,
    first: int,
    sizes: np.ndarray,
    places: np.ndarray,
) -> None:
    """Write rows from ``first`` on under the numbers of their parts."""
    order = np.argsort(places[:, 0], kind="stable")
    parts = places[order, 0]
    borders = [0, *(np.flatnonzero(np.diff(parts)) + 1), len(parts)]
    ends = np.cumsum(sizes[order])
    # Between parts is room for what is written behind a row.
    for start in borders[1:-1]:
        ends[start:] += WRITTEN_OVER
    begins = np.empty_like(ends)
    begins[order] = ends - sizes[order]
    text = np.empty(int(ends[-1]) + WRITTEN_OVER, np.uint8)
    runs = np.empty((len(parts), np.count_nonzero(closes)), np.uint32)
    rows_text(columns.pool, columns.begins, columns.stops, closes, first, begins, text, runs)
    for start, end in itertools.pairwise(borders):
        rows = order[start:end]
        begin = begins[rows[0]]
        arrays = [
            places[rows, 1],
            (ends[start:end] - begin).astype(np.uint32),
            runs[rows],
            # What is behind it is there to be read over.
            text[begin : ends[end - 1] + WRITTEN_OVER],
        ]
        file.append(int(parts[start]), arrays)


class _Runs:
    """Where in memory each run of each row of a part lies."""

    def __init__(self, histories: Histories, rows: int):
        self._runs = histories.runs
        self._starts, self._ends = np.zeros((2, len(self._runs), rows), np.int64)
        self._texts: list[np.ndarray] = []

    def _of(self, number: int) -> list[int]:
        return [run for run, (group, _) in enumerate(self._runs) if group == number]

    def add_base(self, text: np.ndarray, ends: np.ndarray) -> None:
        """Lines of the columns of tables."""
        self._texts.append(text)
        mine = self._of(-1)
        starts = np.append(0, ends[:-1])
        inner = np.empty((len(mine), len(ends)), np.int64)
        field_runs(text, starts, ends, np.array([self._runs[run][1] for run in mine]), inner)
        self._starts[mine] = np.vstack([starts, inner[:-1]]) + text.ctypes.data
        self._ends[mine] = inner + text.ctypes.data

    def add(
        self, number: int, rows: np.ndarray, ends: np.ndarray, inner: np.ndarray, text: np.ndarray
    ) -> None:
        """Rows of a group."""
        self._texts.append(text)
        begin = np.append(0, ends[:-1]) + text.ctypes.data
        for column, run in enumerate(self._of(number)):
            start = begin if column == 0 else begin + inner[:, column - 1]
            self._starts[run, rows] = start
            self._ends[run, rows] = begin + inner[:, column]

    def lines(self) -> Iterator[np.ndarray]:
        """The lines of the part, many at a time."""
        sizes = (self._ends - self._starts).sum(axis=0)
        for first, last in _spans(sizes):
            text = np.empty(int(sizes[first:last].sum()), np.uint8)
            join_runs(self._starts, self._ends, first, last, NEWLINE, text)
            yield text
