"""Windows over past events, as arrays: what the events of some keys make of their impressions.

``Histories`` says which columns of which tables are needed and how the sample is put together;
``bucket_columns`` computes the windows of one bucket of keys. Reading tables and keeping buckets
on disk is ``ctrps.data.history``'s business.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np

from ctrps.data.days import day_starts, whole_days
from ctrps.data.joinfile import HOUR_S, IMPRESSIONS, JoinPlan, Span, Window
from ctrps.data.workroom import WorkRoom
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.history import (
    NUMBER_BYTES,
    fitting,
    mix_pairs,
    put_numbers,
    radix_order,
    ranges,
    sort_ties,
)
from ctrps.kernels.keys import index_capacity, index_find, index_insert, index_new
from ctrps.kernels.lists import distinct_lists, last_texts, top_lists

Filter = tuple[tuple[str, tuple[str, ...]], ...]
"""Columns and the values that each may have."""

By = tuple[str, ...]
MAX_FILTERS = 32
"""Bits of a mask."""


@dataclass(frozen=True, slots=True)
class Source:
    """What windows need of the events of one table.

    Attributes
    ----------
    delay_s
        As in the join file.
    filters
        Each has a bit in the mask of an event.
    keys
        Columns of the impressions that have another name here.
    """

    delay_s: int
    filters: tuple[Filter, ...]
    keys: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """The windows of which the first key is one column: their buckets are of that column.

    Attributes
    ----------
    windows
        Names and windows in the order of the sample.
    closes : bool[windows]
        A run ends with the column.
    keys
        Per source its key columns; the group's comes first.
    values
        Per source the columns whose values are listed.
    """

    windows: tuple[tuple[str, Window], ...]
    closes: np.ndarray
    keys: Mapping[str, By]
    values: Mapping[str, By]


class Histories:
    """The windows of a join file, in groups.

    Parameters
    ----------
    plan
    columns
        The columns of a sample, in order; other names than those of windows are read.

    Attributes
    ----------
    groups, sources
    runs
        The sample as pieces of adjacent columns: (number of the group or -1, columns). Windows
        of one span are a run of their own: they often are those of the impression before.
    """

    def __init__(self, plan: JoinPlan, columns: Sequence[str]):
        self.zone = plan.zone
        firsts = list(dict.fromkeys(w.by[0] for w in plan.windows.values()))
        group_of = {name: firsts.index(w.by[0]) for name, w in plan.windows.items()}

        def run_of(name: str) -> tuple[int, Span | None]:
            return group_of.get(name, -1), plan.windows[name].span if name in group_of else None

        self.runs = [(number, len(list(names))) for (number, _), names in groupby(columns, run_of)]
        self.sources = {
            name: _source(plan, name)
            for name in (IMPRESSIONS, *plan.events)
            if name == IMPRESSIONS or any(w.events == name for w in plan.windows.values())
        }
        asked = [(name, plan.windows[name]) for name in columns if name in group_of]
        self.groups = [
            _group(
                [pair for pair in asked if pair[1].by[0] == first],
                self.runs,
                number,
                first,
                self.sources,
            )
            for number, first in enumerate(firsts)
        ]


def _filters(window: Window) -> list[Filter]:
    """The filter of a window, and that of what a rate is of."""
    where = tuple(window.where.items())
    return [where, where + tuple(window.hit.items())] if window.hit else [where]


def _source(plan: JoinPlan, name: str) -> Source:
    windows = [w for w in plan.windows.values() if w.events == name]
    filters = tuple(dict.fromkeys(f for w in windows for f in _filters(w)))
    if len(filters) > MAX_FILTERS:
        what = f"its windows have {len(filters)} different filters, and {MAX_FILTERS} are the most"
        raise ConfigError(
            what, where=name, hint="give some of the windows a second entry of events"
        )
    if name == IMPRESSIONS:
        return Source(plan.impressions.delay_s, filters, {})
    return Source(plan.events[name].delay_s, filters, plan.events[name].keys)


def _group(
    windows: Sequence[tuple[str, Window]],
    runs: Sequence[tuple[int, int]],
    number: int,
    first: str,
    sources: Mapping[str, Source],
) -> Group:
    closes = np.zeros(len(windows), np.bool_)
    ends = np.cumsum([count for group, count in runs if group == number]) - 1
    closes[ends] = True
    keys: dict[str, By] = {}
    values: dict[str, By] = {}
    for source in dict.fromkeys([IMPRESSIONS, *(w.events for _, w in windows)]):
        every = [(first,), *(w.by for _, w in windows if source in (IMPRESSIONS, w.events))]
        names = sources[source].keys
        keys[source] = tuple(dict.fromkeys(names.get(key, key) for by in every for key in by))
        mine = [w.of for _, w in windows if w.events == source and w.of is not None]
        values[source] = tuple(dict.fromkeys(mine))
    return Group(tuple(windows), closes, keys, values)


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one table.

    Attributes
    ----------
    keys : uint64[n, k]
        Hashes of the key columns.
    times : int64[n]
    masks : uint32[n]
        Bits of the filters that each fits.
    values : int64[n] for each column of values
        Their ranks.
    """

    keys: np.ndarray
    times: np.ndarray
    masks: np.ndarray
    values: tuple[np.ndarray, ...]

    def take(self, rows: np.ndarray) -> Events:
        values = tuple(column.take(rows) for column in self.values)
        keys = self.keys.take(rows, axis=0)
        return Events(keys, self.times.take(rows), self.masks.take(rows), values)


@dataclass(frozen=True, slots=True)
class Columns:
    """Fields of windows: column c of row i is ``pool[begins[c, i]:stops[c, i]]``.

    ``order`` says which impression each row is; rows of one key stand together.
    """

    pool: np.ndarray
    begins: np.ndarray
    stops: np.ndarray
    order: np.ndarray


def bucket_columns(
    histories: Histories,
    group: Group,
    impressions: Events,
    events: Mapping[str, Events],
    room: WorkRoom,
) -> Columns:
    """Compute the windows of a group for some impressions.

    Parameters
    ----------
    impressions
        Those that want them, with the group's keys.
    events
        Per source all events that share the first key with one of them, and any others.
    room
        The fields stay there until it is used again.
    """
    asked = _Asked(impressions, histories.zone)
    begins, stops = room.fields(len(group.windows), len(asked.times))
    numbered = list(enumerate(window for _, window in group.windows))
    numbered.sort(key=lambda pair: (pair[1].events, pair[1].by))
    for (name, by), windows in groupby(numbered, lambda pair: (pair[1].events, pair[1].by)):
        key = asked.key([group.keys[IMPRESSIONS].index(k) for k in by])
        source = histories.sources[name]
        at = [group.keys[name].index(source.keys.get(k, k)) for k in by]
        past = _Past(asked, key, source, events[name], at, group.values[name])
        work = _Work(asked, key, past, room)
        for number, window in windows:
            work.put(window, begins[number], stops[number])
    if room.size >= 1 << 32:
        raise DataError("the histories of one bucket take more than 4 GiB of text")
    return Columns(room.pool[: room.size], begins, stops, asked.order)


def sorted_events(ids: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Order by id and time, and both in this order; equal ones keep their order.

    Raises
    ------
    DataError
        Times lie too far apart.
    """
    if not len(ids):
        return np.empty(0, np.int64), ids, times
    first = int(times.min())
    time_bits = (int(times.max()) - first).bit_length()
    bits = time_bits + int(ids.max()).bit_length()
    if bits > 64:
        raise DataError("time stamps of events and impressions lie too far apart")
    packed = ids.astype(np.uint64) << np.uint64(time_bits) | (times - first).astype(np.uint64)
    order, spare = np.empty((2, len(ids)), np.int64)
    other = np.empty_like(packed)
    passes = radix_order(packed, bits, other, order, spare)
    # Both are in the keys that are sorted now: that is nearer than where they came from.
    keys = other if passes % 2 else packed
    ids = (keys >> np.uint64(time_bits)).view(np.int64)
    return order, ids, (keys & np.uint64((1 << time_bits) - 1)).view(np.int64) + first


def _mixed(keys: np.ndarray, at: Sequence[int]) -> np.ndarray:
    """One hash of some key columns."""
    mixed = keys[:, at[0]].copy()
    for column in at[1:]:
        mix_pairs(mixed, keys[:, column].copy(), mixed)
    return mixed


@dataclass(frozen=True, slots=True)
class _Key:
    """Impressions in order of one key and time.

    ``order`` refers to that of the group's key; None: it is the same. ``rows`` are the numbers of
    the impressions.
    """

    order: np.ndarray | None
    rows: np.ndarray
    ids: np.ndarray
    times: np.ndarray
    index: np.ndarray
    count: int


class _Asked:
    """The impressions of a bucket, in order of the group's key and time."""

    def __init__(self, impressions: Events, zone: zoneinfo.ZoneInfo | None):
        self.all = impressions
        self._zone = zone
        first = self._number([0], None)
        self.order, self.times = first.rows, first.times
        self._keys: dict[tuple[int, ...], _Key] = {(0,): first}
        self._bounds: dict[tuple[Span, int], tuple[np.ndarray, np.ndarray]] = {}

    def key(self, at: Sequence[int]) -> _Key:
        if tuple(at) not in self._keys:
            self._keys[tuple(at)] = self._number(at, self.order)
        return self._keys[tuple(at)]

    def _number(self, at: Sequence[int], rows: np.ndarray | None) -> _Key:
        """A key of ``rows``, or of all."""
        hashes, times = _mixed(self.all.keys, at), self.all.times
        if rows is not None:
            hashes, times = hashes.take(rows), self.times
        index = index_new(index_capacity(max(len(hashes), 1)))
        ids, new = np.empty((2, len(hashes)), np.int64)
        count, _ = index_insert(index, hashes, 0, ids, new)
        order, ids, times = sorted_events(ids, times)
        if rows is None:
            return _Key(None, order, ids, times, index, count)
        return _Key(order, rows.take(order), ids, times, index, count)

    @cached_property
    def days(self) -> np.ndarray:
        return whole_days(self.times, self._zone)

    def bounds(self, span: Span, delay_s: int) -> tuple[np.ndarray, np.ndarray]:
        """Since when and until when each impression looks back."""
        if (span, delay_s) not in self._bounds:
            self._bounds[span, delay_s] = self._compute_bounds(span, delay_s)
        return self._bounds[span, delay_s]

    def _compute_bounds(self, span: Span, delay_s: int) -> tuple[np.ndarray, np.ndarray]:
        until = self.times - delay_s
        if span.unit == "hours":
            return self.times - span.length * HOUR_S, until
        start = day_starts(self.days, self._zone)
        if span.length == 0:
            return start, until
        return day_starts(self.days - span.length, self._zone), np.minimum(start, until)


@dataclass(slots=True)
class _Stream:
    """Events that fit a filter, in order of id and time."""

    chosen: np.ndarray
    ids: np.ndarray
    times: np.ndarray
    starts: np.ndarray
    values: dict[str, np.ndarray] = field(default_factory=dict)
    ranges: dict[Span, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


class _Past:
    """The events of a source that share a key with an impression."""

    def __init__(
        self,
        asked: _Asked,
        key: _Key,
        source: Source,
        events: Events,
        at: Sequence[int],
        values: By,
    ):
        self.source = source
        self._names = values
        self._count = key.count
        self._events = events
        if events is asked.all:
            self._chosen, self._ids, self._times = key.rows, key.ids, key.times
        else:
            ids = np.empty(len(events.times), np.int64)
            index_find(key.index, _mixed(events.keys, at), ids)
            times, there = events.times, np.flatnonzero(ids >= 0)
            if len(there) < len(ids):
                ids, times = ids.take(there), times.take(there)
            order, self._ids, self._times = sorted_events(ids, times)
            self._chosen = there.take(order) if len(there) < len(events.times) else order
        self._masks = events.masks.take(self._chosen)
        self._streams: dict[Filter, _Stream] = {}

    def stream(self, which: Filter) -> _Stream:
        if which not in self._streams:
            bit = self._masks.dtype.type(1 << self.source.filters.index(which))
            starts = np.empty(self._count + 1, np.int64)
            kept = np.empty((3, len(self._ids)), np.int64)
            given = self._masks, bit, self._ids, self._times, self._chosen
            size = fitting(*given, starts, *kept)
            ids, times, chosen = (array[:size] for array in kept)
            self._streams[which] = _Stream(chosen, ids, times, starts)
        return self._streams[which]

    def values(self, stream: _Stream, column: str) -> np.ndarray:
        if column not in stream.values:
            values = self._events.values[self._names.index(column)].take(stream.chosen)
            sort_ties(stream.ids, stream.times, values)
            stream.values[column] = values
        return stream.values[column]


class _Work:
    """Computes the windows over one source by one key."""

    def __init__(self, asked: _Asked, key: _Key, past: _Past, room: WorkRoom):
        self._asked, self._key, self._past, self._room = asked, key, past, room

    def put(self, window: Window, begins: np.ndarray, stops: np.ndarray) -> None:
        """Say where the window's text of each impression, in the group's order, lies."""
        if self._key.order is None:
            self._put(window, begins, stops)
            return
        mine = np.empty((2, len(begins)), np.uint32)
        self._put(window, *mine)
        begins[self._key.order], stops[self._key.order] = mine

    def _put(self, window: Window, begins: np.ndarray, stops: np.ndarray) -> None:
        filters = _filters(window)
        stream = self._past.stream(filters[0])
        low, high = self._range(stream, window.span)
        if window.take == "count":
            self._numbers(high - low, low, -1, begins, stops)
        elif window.take == "rate":
            hits_low, hits_high = self._range(self._past.stream(filters[1]), window.span)
            self._numbers(high - low, hits_high - hits_low, window.plus, begins, stops)
        else:
            assert window.of is not None
            values = self._past.values(stream, window.of)
            if window.take == "last":
                texts, latest = self._room.texts, np.empty(len(values) + 1, np.int64)
                last_texts(low, high, values, texts.starts, texts.ends, latest, begins, stops)
            else:
                self._lists(window, low, high, values, begins, stops)

    def _range(self, stream: _Stream, span: Span) -> tuple[np.ndarray, np.ndarray]:
        if span not in stream.ranges:
            order = self._key.order
            since, until = self._asked.bounds(span, self._past.source.delay_s)
            if order is not None:
                since, until = since[order], until[order]
            low, high = np.empty((2, len(since)), np.int64)
            ranges(self._key.ids, since, until, stream.starts, stream.times, low, high)
            stream.ranges[span] = low, high
        return stream.ranges[span]

    def _lists(
        self,
        window: Window,
        low: np.ndarray,
        high: np.ndarray,
        values: np.ndarray,
        begins: np.ndarray,
        stops: np.ndarray,
    ) -> None:
        room = self._room
        first = 0
        while first < len(low):
            given = low[first:], high[first:], values, room.texts
            to = room.pool, room.size, begins[first:], stops[first:]
            if window.most is None:
                done, room.size = distinct_lists(*given, *to)
            else:
                done, room.size = top_lists(*given, window.most, *to)
            first += done
            if first < len(low):
                room.grow()

    def _numbers(
        self, counts: np.ndarray, hits: np.ndarray, plus: int, begins: np.ndarray, stops: np.ndarray
    ) -> None:
        room = self._room
        room.make_room(len(counts) * NUMBER_BYTES)
        room.size = put_numbers(counts, hits, plus, room.pool, room.size, begins, stops)
