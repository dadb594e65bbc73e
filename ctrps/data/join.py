"""Raw tables to samples: one joined row of text for each impression.

The impressions are streamed; the tables joined to them are held in memory. What is joined and
which columns a sample has is said by a ``JoinPlan``; features are made of samples by
``ctrps.data.extract``.

A part of the samples is a file of its own, so that parts can be worked on apart. Training rows
are dealt to parts by a hash of (seed, row number): with the shuffle inside each part that follows,
they end up in random order without ever being in memory together.
"""

from __future__ import annotations

import itertools
import math
import zoneinfo
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.joinfile import Derived, Join, JoinPlan
from ctrps.data.streams import GZIP
from ctrps.data.tables import Columns, Piece, RawTable, find_table, read_columns
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.keys import index_build, index_capacity, index_find, index_new
from ctrps.kernels.tables import copy_fields, deal_rows, hash_fields, parse_times

PART_ROWS = 1 << 18
"""Rows of a part that is filled in order; with all features they take some 100 MB as text."""

PART_BYTES = 12 << 20
"""Raw bytes behind a dealt part: PART_ROWS impressions of six short columns."""

MAX_PARTS = 256

GZIP_RATIO = 6
"""How much smaller such tables are in gzip, roughly; only the number of parts depends on it."""

QUARTER_S = 900
"""Offsets of time zones are whole quarters of an hour, and change at such, since 1972."""

DAY_S = 86400
TAB, NEWLINE = 9, 10
KINDS = ("train", "test")
Progress = Callable[[str, int], None]
Field = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A column for some rows: bytes, and int64[rows] starts and ends in them."""


@dataclass
class JoinCounts:
    """What became of the rows.

    Attributes
    ----------
    read, rejected
        Rows of all tables, good and bad, and the bad ones among them.
    train, test, outside
        Good impressions on training days, on test days, and on neither.
    unmatched
        Per joined table, the impressions of train and test without a row in it.
    """

    read: int = 0
    rejected: int = 0
    train: int = 0
    test: int = 0
    outside: int = 0
    unmatched: dict[str, int] = field(default_factory=dict)


def make_samples(
    folder: Path,
    plan: JoinPlan,
    out: Path,
    bad: BadRows,
    *,
    shuffle: bool = True,
    seed: int = 1,
    progress: Progress | None = None,
    chunk_bytes: int = 8 << 20,
) -> JoinCounts:
    """Join the tables of a folder to samples.

    Parameters
    ----------
    folder
        Holds the raw tables.
    plan
        What to join.
    out
        Empty folder that gets ``train-*.tsv`` and ``test-*.tsv``, each with a header line.
    bad
        Is told of bad rows, and at the end of how many there were.
    shuffle, seed
        Deal training rows to parts at random; otherwise parts are filled in order, as those of
        the test are.
    progress
        Called with "sample" and the number of impressions read so far.
    chunk_bytes
        Bytes of the impressions in memory; the result does not depend on it.

    Raises
    ------
    DataError
        A table is missing, lacks a column, has a key twice or too many bad rows; or no
        impression is on the days of the split.
    ConfigError
        The plan names a column that no table has, or that several have.
    """
    counts = JoinCounts()
    sides = [_read_side(folder, join, bad, counts) for join in plan.joins]
    path = find_table(folder, plan.impressions.table)
    deal = _Deal(_parts(path) if shuffle else 0, seed)
    with RawTable(path, bad, chunk_bytes) as table:
        joiner = _Joiner(plan, table, sides, counts)
        for piece in table.pieces():
            rows, times = joiner.good_rows(piece)
            _append(out, joiner, piece, _targets(plan, deal, rows, times, counts))
            if progress and len(rows):
                progress("sample", table.rows)
        counts.read += table.rows
    counts.rejected = bad.count
    bad.finish(counts.read)
    if not counts.train + counts.test:
        what = f"none of its rows is on the days of the split; {counts.outside} are on others"
        raise DataError(what, where=str(path), hint="check split and impressions.zone")
    return counts


class _Deal(NamedTuple):
    """How training rows get to parts; 0 parts: in order."""

    parts: int
    seed: int


def _parts(path: Path) -> int:
    """Number of parts to deal to; it follows from the file alone."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(GZIP)) == GZIP:
            size *= GZIP_RATIO
    return min(max(math.ceil(size / PART_BYTES), 1), MAX_PARTS)


class _Targets(NamedTuple):
    """Rows of a piece by the part they go to: kind (of ``KINDS``), number, and time stamps."""

    rows: np.ndarray
    times: np.ndarray
    kinds: np.ndarray
    numbers: np.ndarray


def _targets(
    plan: JoinPlan, deal: _Deal, rows: np.ndarray, times: np.ndarray, counts: JoinCounts
) -> _Targets:
    """Send each row to its part, and count it; rows of no part are left out."""
    kinds = _kinds(plan, times)
    numbers = np.zeros(len(rows), np.int64)
    for kind, before in enumerate((counts.train, counts.test)):
        mine = kinds == kind
        numbers[mine] = (before + np.arange(np.count_nonzero(mine))) // PART_ROWS
    if deal.parts:
        dealt = np.empty(len(rows), np.int64)
        first = counts.train + counts.test + counts.outside
        deal_rows(first, np.uint64(deal.seed), deal.parts, dealt)
        numbers = np.where(kinds == 0, dealt, numbers)
    counts.train += int(np.count_nonzero(kinds == 0))
    counts.test += int(np.count_nonzero(kinds == 1))
    counts.outside += int(np.count_nonzero(kinds < 0))
    order = np.lexsort((numbers, kinds))
    order = order[kinds[order] >= 0]
    return _Targets(rows[order], times[order], kinds[order], numbers[order])


def _kinds(plan: JoinPlan, times: np.ndarray) -> np.ndarray:
    """0 for rows on training days, 1 for rows on test days, -1 for others."""
    if plan.split is None:
        return np.zeros(len(times), np.int64)
    days, _ = local_time(times, plan.zone)
    kinds = np.full(len(times), -1, np.int64)
    for kind, name in enumerate(KINDS):
        span = getattr(plan.split, name)
        if span:
            first, last = span.days
            kinds[(days >= first) & (days <= last)] = kind
    return kinds


def _append(out: Path, joiner: _Joiner, piece: Piece, target: _Targets) -> None:
    """Write the rows of a piece behind those that their parts already have."""
    text, ends = joiner.compose(piece, target.rows, target.times)
    changes = (np.diff(target.kinds) != 0) | (np.diff(target.numbers) != 0)
    firsts = [0, *(np.flatnonzero(changes) + 1), len(ends)] if len(ends) else []
    for first, last in itertools.pairwise(firsts):
        name = f"{KINDS[target.kinds[first]]}-{target.numbers[first]:05d}.tsv"
        start = int(ends[first - 1]) if first else 0
        # Opened anew for each piece: a long log has more parts than a process may have files.
        with (out / name).open("ab") as file:
            if not file.tell():
                file.write(joiner.header)
            file.write(text[start : ends[last - 1]].data)


def local_time(times: np.ndarray, zone: zoneinfo.ZoneInfo | None) -> tuple[np.ndarray, np.ndarray]:
    """Day and second of the day of time stamps in a zone.

    Parameters
    ----------
    times : int64[n]
        Seconds since 1970-01-01 UTC.
    zone
        None: UTC. The machine's own zone is never asked.

    Returns
    -------
    (int64[n], int64[n])
        Days since 1970-01-01 of the zone, and seconds, 0 to 86399.

    Examples
    --------
    >>> zone = zoneinfo.ZoneInfo("Asia/Shanghai")
    >>> days, seconds = local_time(np.array([1494604799, 1494604800]), zone)
    >>> days.astype("M8[D]").astype(str).tolist(), seconds.tolist()
    (['2017-05-12', '2017-05-13'], [86399, 0])
    """
    quarters, which = np.unique(times // QUARTER_S, return_inverse=True)
    offsets = np.array([_offset_s(int(q) * QUARTER_S, zone) for q in quarters], np.int64)
    local = times + offsets[which] if len(times) else times
    return local // DAY_S, local % DAY_S


def _offset_s(time: int, zone: zoneinfo.ZoneInfo | None) -> int:
    try:
        offset = datetime.fromtimestamp(time, zone).utcoffset() if zone else None
    except (ValueError, OverflowError, OSError):
        # Years that the calendar does not have; no split asks for them.
        return 0
    return int(offset.total_seconds()) if offset else 0


class _Side(NamedTuple):
    """A joined table: ``finder`` is the index of its hashed keys."""

    join: Join
    columns: Columns
    finder: np.ndarray


def _read_side(folder: Path, join: Join, bad: BadRows, counts: JoinCounts) -> _Side:
    path = find_table(folder, join.table)
    with RawTable(path, bad) as table:
        key = table.column(join.key or join.on)
        columns = read_columns(table, table.names)
        counts.read += table.rows
    counts.unmatched[join.table] = 0
    hashes = np.empty(len(columns.starts), np.uint64)
    hash_fields(columns.data, *_borders(columns, key), hashes)
    order = np.argsort(hashes, kind="stable")
    again = np.zeros(len(hashes), np.bool_)
    again[1:] = hashes[order][1:] == hashes[order][:-1]
    if again.any() and join.duplicates == "error":
        raise _twice(path, table.names[key], key, columns, order, again)
    kept = np.sort(order[~again])
    index = index_new(index_capacity(max(len(kept), 1)))
    index_build(index, hashes[kept])
    kept_columns = Columns(columns.names, columns.data, columns.starts[kept], columns.ends[kept])
    return _Side(join, kept_columns, index)


def _borders(columns: Columns, number: int) -> tuple[np.ndarray, np.ndarray]:
    return columns.starts[:, number].copy(), columns.ends[:, number].copy()


def _twice(
    path: Path, name: str, key: int, columns: Columns, order: np.ndarray, again: np.ndarray
) -> DataError:
    at = np.flatnonzero(again)
    second = at[np.argmin(order[at])]
    rows = int(order[second - 1]), int(order[second])
    value = bytes(columns.data[columns.starts[rows[0], key] : columns.ends[rows[0], key]])
    first, other = (columns.line(row) for row in rows)
    return DataError(
        f"{name} {value.decode('utf-8', 'backslashreplace')!r} stands in lines {first} and {other}",
        where=f"{path}:{other}:1",
        hint="mend the table, or write `duplicates: first` in the join file",
    )


class _Joiner:
    """Finds and puts together the columns of a sample.

    A column is looked up as (table, number): table -1 is the impressions, then come the joined
    tables in order, and behind them the derived columns.
    """

    def __init__(self, plan: JoinPlan, table: RawTable, sides: Sequence[_Side], counts: JoinCounts):
        self._plan, self._table, self._sides, self._counts = plan, table, sides, counts
        self._on = [table.column(side.join.on) for side in sides]
        self._time = table.column(plan.impressions.time) if plan.impressions.time else -1
        self._derived = list(plan.derived.items())
        names, self._columns = self._chosen()
        self.header = "\t".join(names).encode() + b"\n"

    def _all(self) -> list[tuple[str, str, tuple[int, int]]]:
        """Every column there is: table, name, place."""
        found = [
            (self._plan.impressions.table, n, (-1, i)) for i, n in enumerate(self._table.names)
        ]
        behind = len(self._sides)
        found += [("", name, (behind + i, 0)) for i, (name, _) in enumerate(self._derived)]
        for number, (join, columns, _) in enumerate(self._sides):
            key = join.key or join.on
            found += [
                (join.table, name, (number, i))
                for i, name in enumerate(columns.names)
                if name != key or f"{join.table}.{name}" in self._plan.columns
            ]
        return found

    def _chosen(self) -> tuple[list[str], list[tuple[int, int]]]:
        every = self._all()
        wanted = self._plan.columns or [name for _, name, _ in every]
        names, places = [], []
        for text in wanted:
            found = [c for c in every if text in (c[1], f"{c[0]}.{c[1]}")]
            if len(found) != 1:
                raise _not_one(text, [f"{table}.{name}" for table, name, _ in found], every)
            names.append(found[0][1])
            places.append(found[0][2])
        return names, places

    def good_rows(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the rows of a piece with a time stamp, and the time stamps."""
        n = len(piece.starts)
        if self._time < 0:
            return np.arange(n), np.zeros(n, np.int64)
        starts, ends = (a[:, self._time].astype(np.int64) for a in (piece.starts, piece.ends))
        times, good = np.empty(n, np.int64), np.empty(n, np.bool_)
        parse_times(piece.data, starts, ends, times, good)
        for row in np.flatnonzero(~good):
            reason = f"{self._plan.impressions.time}: expected whole seconds since 1970"
            text = bytes(piece.data[starts[row] : ends[row]])
            self._table.reject(int(starts[row]), reason, text)
        return np.flatnonzero(good), times[good]

    def compose(
        self, piece: Piece, rows: np.ndarray, times: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lines of sample text for some rows of a piece: bytes, and where each line ends."""
        fields = self._fields(piece, rows, times)
        lengths = np.stack([ends - starts for _, starts, ends in fields], axis=1)
        behind = np.cumsum(lengths + 1).reshape(lengths.shape)
        at = behind - lengths - 1
        text = np.full(int(behind[-1, -1]) if len(rows) else 0, TAB, np.uint8)
        for number, (data, starts, ends) in enumerate(fields):
            copy_fields(data, starts, ends, text, at[:, number].copy())
        text[behind[:, -1] - 1] = NEWLINE
        return text, behind[:, -1]

    def _fields(self, piece: Piece, rows: np.ndarray, times: np.ndarray) -> list[Field]:
        """The columns of the sample."""
        matches: list[tuple[Columns | Piece, np.ndarray]] = []
        for side, on in zip(self._sides, self._on, strict=True):
            hashes, found = np.empty(len(rows), np.uint64), np.empty(len(rows), np.int64)
            hash_fields(*_field(piece, rows, on), hashes)
            index_find(side.finder, hashes, found)
            self._counts.unmatched[side.join.table] += int(np.count_nonzero(found < 0))
            matches.append((side.columns, found))
        matches += [_derive(column, times, self._plan.zone) for _, column in self._derived]
        # Last, so that -1 is the impressions.
        matches.append((piece, rows))
        return [_field(*matches[table], column) for table, column in self._columns]


def _field(table: Columns | Piece, rows: np.ndarray, column: int) -> Field:
    """A column for some rows; row -1 is empty."""
    if not len(table.starts):
        return table.data, np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    there = rows >= 0
    starts, ends = (a[rows, column].astype(np.int64) for a in (table.starts, table.ends))
    return table.data, starts * there, ends * there


def _derive(
    column: Derived, times: np.ndarray, zone: zoneinfo.ZoneInfo | None
) -> tuple[Columns, np.ndarray]:
    """The texts that a derived column can have, and which of them each row has."""
    if column.constant is not None:
        return Columns.of_texts([column.constant]), np.zeros(len(times), np.int64)
    days, seconds = local_time(times, zone)
    if column.time == "hour":
        return Columns.of_texts([str(hour) for hour in range(24)]), seconds // 3600
    if column.time == "workday":
        # 1970-01-01 was a Thursday, day 3 of its week.
        return Columns.of_texts(["0", "1"]), ((days + 3) % 7 < 5).astype(np.int64)
    different, which = np.unique(days, return_inverse=True)
    texts = different.astype("M8[D]").astype(str)
    return Columns.of_texts([text.replace("-", "") for text in texts]), which


def _not_one(
    text: str, found: Sequence[str], every: Sequence[tuple[str, str, tuple[int, int]]]
) -> ConfigError:
    if found:
        hint = f"write one of {', '.join(found)} in columns of the join file"
        return ConfigError(f"several columns are called {text!r}", hint=hint)
    names = ", ".join(dict.fromkeys(name for _, name, _ in every))
    return ConfigError(f"no table has a column {text!r}", hint=f"there are {names}")
