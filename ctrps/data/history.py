"""Windows at any scale: bucket after bucket, and then whole samples, part by part.

The windows of a bucket need nothing but the bucket's events. What they give is kept by the part
of the samples that it belongs to, and put together with the tables' columns part by part. So
memory is that of a bucket or a part for each thread, and neither the number of buckets nor that of
threads is seen in the samples. What a window is, ``ctrps.data.windows`` says.

Every file gets its name when it is whole, so that work can be taken up where it ended.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ctrps.data.buckets import NOWHERE, EventsFound, part_order
from ctrps.data.joinfile import IMPRESSIONS
from ctrps.data.sampletext import SampleText
from ctrps.data.spill import Kept, Room, Spill, SpillWriter
from ctrps.data.windows import Columns, Events, Group, Histories, bucket_columns
from ctrps.data.workroom import WorkRoom
from ctrps.kernels.copying import WRITTEN_OVER
from ctrps.kernels.runs import (
    field_runs,
    join_runs,
    place_runs,
    rows_size,
    rows_text,
    run_changes,
)

TEXT_BYTES = 16 << 20
"""Text of histories that is put together at a time."""

WRITE_BYTES = 1 << 18
"""Text of samples that is written at a time: the processor's cache still has it then."""

EVENT_WORK, IMPRESSION_WORK = 150, 1200
"""Bytes of memory, at most, for each event and impression of a bucket that is worked on."""

LINE_WORK = 100
"""Bytes of memory, about, for a line while it is put together, besides its texts and runs."""

NEWLINE = np.uint8(10)


class HistoryWork:
    """The two passes behind the reading of tables: windows of buckets, and whole samples.

    Parameters
    ----------
    histories
    folder
        Gets the windows.
    bits
        Logarithm of the number of buckets.
    room
        Windows that may stay in memory; only others are there when the process ends.
    """

    def __init__(self, histories: Histories, folder: Path, bits: int, room: Room):
        self._histories, self._folder, self._bits = histories, folder, bits
        self._room = room
        self._windows: dict[tuple[int, int], Kept | Spill] = {}
        self._rooms: list[WorkRoom] = []

    def buckets(self) -> list[tuple[int, int]]:
        """Group and number of every bucket."""
        groups = range(len(self._histories.groups))
        return [(group, bucket) for group in groups for bucket in range(1 << self._bits)]

    def _path(self, group: int, bucket: int) -> Path:
        return self._folder / f"{group}-{bucket:03d}.rows"

    def bucket_bytes(self, found: EventsFound) -> int:
        """Memory that the largest bucket takes."""
        largest = 0
        for number, group in enumerate(self._histories.groups):
            sizes = np.zeros(1 << self._bits, np.int64)
            for name in group.keys:
                records = found.events[number, name].records
                work = IMPRESSION_WORK if name == IMPRESSIONS else EVENT_WORK
                np.add.at(sizes, records[:, 0], records[:, 1] * work)
            largest = max(largest, int(sizes.max()))
        return largest + 5 * found.ranks.nbytes + 2 * found.texts.data.nbytes

    def part_bytes(self, bases: Mapping[int, Kept | Spill], whole: bool) -> int:
        """Memory that the largest part takes when all buckets are computed; ``whole``: as text."""
        need = np.zeros(0)
        # A row is in the lines of tables and in the windows of each group.
        runs, groups = len(self._histories.runs), len(self._histories.groups)
        line_work = (16 * runs + LINE_WORK) / (1 + groups)
        windows = [self._computed(*bucket) for bucket in self.buckets()]
        for found in [*dict.fromkeys(bases.values()), *windows]:
            part, rows, text = found.records.T
            # What is in memory is there already; what is on disk is read.
            copies = isinstance(found, Spill) + whole
            more = np.bincount(part, text * copies + rows * line_work)
            need = np.pad(need, (0, max(len(more) - len(need), 0)))
            need[: len(more)] += more
        return int(need.max(initial=0)) + WRITE_BYTES

    @property
    def durable(self) -> bool:
        """Whether all windows that are computed are on disk."""
        return not any(isinstance(found, Kept) for found in self._windows.values())

    def compute(self, events: EventsFound, number: int, bucket: int) -> int:
        """Compute the windows of a bucket, unless they are there; return its rows.

        The events of the bucket are given up, where they are in memory.
        """
        path = self._path(number, bucket)
        if path.exists():
            return 0
        if self._room.left > 0:
            kept = Kept(self._room)
            rows = self._compute(events, number, bucket, kept)
            self._windows[number, bucket] = kept
            return rows
        with SpillWriter(path) as file:
            rows = self._compute(events, number, bucket, file)
            file.close()
        return rows

    def _compute(self, given: EventsFound, number: int, bucket: int, to: SpillWriter | Kept) -> int:
        group = self._histories.groups[number]
        found = {name: self._events(given, number, name, bucket) for name in group.keys}
        events = {name: pair[0] for name, pair in found.items()}
        places = found[IMPRESSIONS][1]
        asked = np.flatnonzero(places[:, 0] != NOWHERE)
        rows = events[IMPRESSIONS]
        if len(asked) < len(places):
            places = places.take(asked, axis=0)
            rows = rows.take(asked)
        try:
            work = self._rooms.pop()
        except IndexError:
            work = WorkRoom(given.texts)
        columns = bucket_columns(self._histories, group, rows, events, work)
        places = places.take(columns.order, axis=0)
        sizes = np.empty(len(asked), np.int64)
        rows_size(columns.begins, columns.stops, sizes)
        for first, last in _spans(sizes, TEXT_BYTES):
            _write_rows(to, columns, group, first, places[first:last])
        self._rooms.append(work)
        return len(asked)

    def end_windows(self) -> None:
        """Give up the memory that windows were computed in."""
        self._rooms.clear()

    def _computed(self, number: int, bucket: int) -> Kept | Spill:
        if (number, bucket) not in self._windows:
            self._windows[number, bucket] = Spill(self._path(number, bucket))
        return self._windows[number, bucket]

    def _events(
        self, given: EventsFound, number: int, name: str, bucket: int
    ) -> tuple[Events, np.ndarray]:
        """Events of a source in a bucket, and the places of impressions."""
        group = self._histories.groups[number]
        keys, values = len(group.keys[name]), len(group.values[name])
        found = given.events[number, name]
        arrays = found.joined(bucket)
        found.remove(bucket)
        if not arrays:
            none = Events(
                np.empty((0, keys), np.uint64), np.empty(0, np.int64), np.empty(0, np.uint8),
                (np.empty(0, np.int64),) * values,
            )  # fmt: skip
            return none, np.empty((0, 2), np.uint32)
        places = arrays[4] if len(arrays) > 4 else np.empty((0, 2), np.uint32)
        ranks = tuple(given.ranks.take(column) for column in arrays[3].T)
        return Events(arrays[0], arrays[1], arrays[2], ranks), places

    def write(self, part: int, base: Kept | Spill, header: bytes, out: Path) -> int:
        """Put the columns of tables in ``base`` and the windows of a part together in a file.

        Return the rows; none if ``out`` is there.
        """
        if out.exists():
            return 0
        runs = self._runs_of(part, base)
        making = self._folder / f"{out.name}.{secrets.token_hex(4)}"
        with making.open("wb", buffering=0) as file:
            file.write(header)
            for text in runs.lines():
                file.write(text.data)
        making.replace(out)
        return len(runs.sizes)

    def text(self, part: int, base: Kept | Spill, header: bytes, name: str) -> SampleText:
        """The same in memory; ``name`` is for messages."""
        return self._runs_of(part, base).text(header, name)

    def _runs_of(self, part: int, base: Kept | Spill) -> _Runs:
        lines = base.read(part)
        runs = _Runs(self._histories, sum(len(ends) for ends, _ in lines))
        for ends, text in lines:
            runs.add_base(ends, text)
        for number in range(len(self._histories.groups)):
            for bucket in range(1 << self._bits):
                for record in self._computed(number, bucket).read(part):
                    runs.add(number, *record)
        return runs


def _spans(sizes: np.ndarray, most: int) -> Iterable[tuple[int, int]]:
    """Borders of rows that make about so many bytes together."""
    behind = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        done = behind[first - 1] if first else 0
        last = max(int(np.searchsorted(behind, done + most, side="right")), first + 1)
        yield first, last
        first = last


def _write_rows(
    to: SpillWriter | Kept, columns: Columns, group: Group, first: int, places: np.ndarray
) -> None:
    """Write rows from ``first`` on under the numbers of their parts.

    What a row has in common with the one before it is written once: in memory parts share one
    text, on disk each has its own.
    """
    rows = len(places)
    order = part_order(places[:, 0])
    parts = places[order, 0]
    borders = [0, *(np.flatnonzero(np.diff(parts)) + 1), rows]
    together = isinstance(to, Kept)
    before = np.arange(-1, rows - 1)
    if not together:
        before[order[1:]] = order[:-1]
        before[order[borders[:-1]]] = -1
    fields = columns.begins, columns.stops, group.closes
    changed = np.empty((np.count_nonzero(group.closes), rows), np.bool_)
    sizes = np.empty(rows, np.int64)
    run_changes(*fields, first, before, changed, sizes)
    ends = np.cumsum(sizes) if together else _ends_of_parts(sizes[order], borders)
    text = np.empty(int(ends[-1]) + WRITTEN_OVER, np.uint8)
    begins = ends - sizes if together else np.empty_like(ends)
    if not together:
        begins[order] = ends - sizes[order]
    starts, stops = np.empty((2, rows, len(changed)), np.uint32)
    rows_text(columns.pool, *fields, first, before, changed, begins, text, starts, stops)
    for start, end in itertools.pairwise(borders):
        mine = order[start:end]
        runs, run_ends = starts.take(mine, axis=0), stops.take(mine, axis=0)
        size = int((run_ends - runs).sum())
        if together:
            arrays = [places[mine, 1], runs, run_ends, text]
        else:
            begin = np.uint32(begins[mine[0]])
            # What is behind it is there to be read over.
            own = text[begin : ends[end - 1] + WRITTEN_OVER]
            arrays = [places[mine, 1], runs - begin, run_ends - begin, own]
        to.append(int(parts[start]), arrays, size)


def _ends_of_parts(sizes: np.ndarray, borders: Sequence[int]) -> np.ndarray:
    """Where rows end; between parts is room for what is written behind a row."""
    ends = np.cumsum(sizes)
    for start in borders[1:-1]:
        ends[start:] += WRITTEN_OVER
    return ends


class _Runs:
    """Where in memory each run of each row of a part lies; ``sizes`` are the bytes of rows."""

    def __init__(self, histories: Histories, rows: int):
        self._runs = histories.runs
        # Not np.zeros: what is filled at once comes in huge pages, where the system has them.
        self._starts, self._ends = np.empty((2, rows, len(self._runs)), np.int64)
        self._starts[:] = self._ends[:] = 0
        self.sizes = np.zeros(rows, np.int64)
        self._texts: list[np.ndarray] = []
        self._rows = 0

    def _of(self, number: int) -> list[int]:
        return [run for run, (group, _) in enumerate(self._runs) if group == number]

    def add_base(self, ends: np.ndarray, text: np.ndarray) -> None:
        """The next lines of the columns of tables."""
        self._texts.append(text)
        mine = self._of(-1)
        starts = np.append(0, ends[:-1])
        inner = np.empty((len(ends), len(mine)), np.int64)
        field_runs(text, starts, ends, np.array([self._runs[run][1] for run in mine]), inner)
        rows = slice(self._rows, self._rows + len(ends))
        self._starts[rows, mine] = np.column_stack([starts, inner[:, :-1]]) + text.ctypes.data
        self._ends[rows, mine] = inner + text.ctypes.data
        self.sizes[rows] += ends - starts
        self._rows += len(ends)

    def add(
        self, number: int, rows: np.ndarray, starts: np.ndarray, ends: np.ndarray, text: np.ndarray
    ) -> None:
        """Rows of a group."""
        self._texts.append(text)
        mine = np.array(self._of(number))
        place_runs(rows, starts, ends, text, mine, self._starts, self._ends, self.sizes)

    def lines(self) -> Iterator[np.ndarray]:
        """The lines of the part, many at a time; each piece is overwritten by the next."""
        text = np.empty(0, np.uint8)
        for first, last in _spans(self.sizes, WRITE_BYTES):
            size = int(self.sizes[first:last].sum())
            text = text if size <= len(text) else np.empty(size, np.uint8)
            join_runs(self._starts, self._ends, first, last, NEWLINE, text[:size])
            yield text[:size]

    def text(self, header: bytes, name: str) -> SampleText:
        """All lines behind a header."""
        ends = len(header) + np.cumsum(self.sizes)
        data = np.empty(int(ends[-1]) if len(ends) else len(header), np.uint8)
        data[: len(header)] = np.frombuffer(header, np.uint8)
        join_runs(self._starts, self._ends, 0, len(ends), NEWLINE, data[len(header) :])
        return SampleText.parse(data, name, np.append(len(header), ends[:-1]))
