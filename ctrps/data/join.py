"""Joining tables to impressions: which columns a sample has, and lines of their texts.

The tables that are joined are held in memory, the impressions come piece by piece. What is read
and written where is ``ctrps.data.samples``' business; what is joined, a ``JoinPlan`` says.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.days import local_time
from ctrps.data.joinfile import Derived, Join, JoinPlan
from ctrps.data.tables import COMMA, QUOTE, Columns, Piece, RawTable, find_table, read_columns
from ctrps.data.texts import Field
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.copying import WRITTEN_OVER
from ctrps.kernels.keys import index_build, index_capacity, index_find, index_new
from ctrps.kernels.tables import (
    hash_fields,
    lines_size,
    lines_text,
    parse_times,
    strips_text,
    take_fields,
)


def timed_rows(table: RawTable, piece: Piece, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the rows of a piece with a time stamp in a column, and the time stamps."""
    n = len(piece.starts)
    _, starts, ends = field_of(piece, np.arange(n), column)
    times, good = np.empty(n, np.int64), np.empty(n, np.bool_)
    parse_times(piece.data, starts, ends, times, good)
    for row in np.flatnonzero(~good):
        reason = f"{table.names[column]}: expected whole seconds since 1970"
        text = bytes(piece.data[starts[row] : ends[row]])
        table.reject(int(starts[row]), reason, text)
    return np.flatnonzero(good), times[good]


def without_commas(
    table: RawTable, piece: Piece, rows: np.ndarray, columns: Iterable[int]
) -> np.ndarray:
    """Which rows have no comma in some columns, whose values make lists; others are bad rows."""
    fit = np.ones(len(rows), np.bool_)
    # Where there are no quotes, every comma is between fields.
    if not (piece.data == QUOTE).any():
        return fit
    commas = np.flatnonzero(piece.data == COMMA)
    for column in columns:
        starts, ends = piece.starts[rows, column], piece.ends[rows, column]
        within = np.searchsorted(commas, ends) > np.searchsorted(commas, starts)
        for i in np.flatnonzero(within & fit):
            reason = f"{table.names[column]}: expected no comma: it divides the values of a list"
            table.reject(int(starts[i]), reason, bytes(piece.data[starts[i] : ends[i]]))
        fit &= ~within
    return fit


class Side(NamedTuple):
    """A joined table.

    ``finder`` is the index of its hashed keys, ``rows`` the rows of the file, good and bad.
    """

    join: Join
    columns: Columns
    finder: np.ndarray
    rows: int


def read_side(folder: Path, join: Join, bad: BadRows) -> Side:
    """Read a table that is joined to the impressions.

    Raises
    ------
    DataError
        It is missing, lacks its key, has a key twice or bad rows that are not allowed.
    """
    path = find_table(folder, join.table)
    with RawTable(path, bad) as table:
        key = table.column(join.key or join.on)
        columns = read_columns(table, table.names)
        rows = table.rows
    hashes = np.empty(len(columns.starts), np.uint64)
    hash_fields(columns.data, *_borders(columns, key), hashes)
    order = np.argsort(hashes, kind="stable")
    again = np.zeros(len(hashes), np.bool_)
    again[1:] = hashes[order][1:] == hashes[order][:-1]
    if again.any() and join.duplicates == "error":
        raise _twice(path, table.names[key], key, columns, order, again)
    if again.any():
        kept = np.sort(order[~again])
        hashes = hashes[kept]
        columns = replace(columns, starts=columns.starts[kept], ends=columns.ends[kept])
    index = index_new(index_capacity(max(len(hashes), 1)))
    index_build(index, hashes)
    return Side(join, columns, index, rows)


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
        id="E-DATA-ROW",
    )


Match = tuple[Columns | Piece, np.ndarray]
"""A table, and which of its rows each impression has; -1: none."""


class Joiner:
    """Finds and puts together the columns of a sample.

    A column is looked up as (table, number): first come the joined tables in order, then the
    derived columns, each a table, then the impressions, and all windows at the end.
    """

    def __init__(self, plan: JoinPlan, table: RawTable, sides: Sequence[Side]):
        self._plan, self._table, self._sides = plan, table, sides
        self._on = [table.column(side.join.on) for side in sides]
        self._time = table.column(plan.impressions.time) if plan.impressions.time else -1
        self._derived = list(plan.derived.items())
        self._every = self._all()
        wanted = plan.columns or [name for _, name, _ in self._every]
        chosen = [self._find(text) for text in wanted]
        self.names = [name for _, name, _ in chosen]
        self.header = "\t".join(self.names).encode() + b"\n"
        windows = len(sides) + len(self._derived) + 1
        self._columns = _adjacent([place for _, _, place in chosen if place[0] != windows])
        if not self._columns:
            raise ConfigError("every column of a sample is a window", where="columns")
        used = [name for window in plan.windows.values() for name in window.asks]
        self._places = {name: self._find(name)[2] for name in used}

    def _all(self) -> list[tuple[str, str, tuple[int, int]]]:
        """Every column there is: table, name, place."""
        behind = len(self._sides)
        own = behind + len(self._derived)
        found = [
            (self._plan.impressions.table, n, (own, i)) for i, n in enumerate(self._table.names)
        ]
        found += [("", name, (behind + i, 0)) for i, (name, _) in enumerate(self._derived)]
        for number, side in enumerate(self._sides):
            join = side.join
            key = join.key or join.on
            found += [
                (join.table, name, (number, i))
                for i, name in enumerate(side.columns.names)
                if name != key or f"{join.table}.{name}" in self._plan.columns
            ]
        return found + [("", name, (own + 1, i)) for i, name in enumerate(self._plan.windows)]

    def _find(self, text: str) -> tuple[str, str, tuple[int, int]]:
        found = [c for c in self._every if text in (c[1], f"{c[0]}.{c[1]}")]
        if len(found) != 1:
            names = [f"{table}.{name}" for table, name, _ in found]
            raise _not_one(text, names, self._every, f"{self._table.path}:1")
        return found[0]

    def good_rows(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the rows of a piece with a time stamp, and the time stamps."""
        if self._time < 0:
            n = len(piece.starts)
            return np.arange(n), np.zeros(n, np.int64)
        return timed_rows(self._table, piece, self._time)

    @cached_property
    def _held(self) -> dict[Place, _Strips]:
        """The strips of joined tables."""
        return {
            place: _Strips.of(self._sides[place[0]].columns, *place[1:])
            for place in self._columns
            if place[0] < len(self._sides)
        }

    def match(self, piece: Piece, rows: np.ndarray, times: np.ndarray) -> list[Match]:
        """Where the columns of some rows are; the impressions come last."""
        matches: list[Match] = []
        for side, on in zip(self._sides, self._on, strict=True):
            hashes, found = np.empty(len(rows), np.uint64), np.empty(len(rows), np.int64)
            hash_fields(*field_of(piece, rows, on), hashes)
            index_find(side.finder, hashes, found)
            matches.append((side.columns, found))
        matches += [_derive(column, times, self._plan.zone) for _, column in self._derived]
        return [*matches, (piece, rows)]

    def unmatched(self, matches: Sequence[Match], order: np.ndarray) -> dict[str, int]:
        """Per joined table, how many of some rows it has no row for."""
        pairs = zip(self._sides, matches, strict=False)
        return {side.join.table: int(np.count_nonzero(m[order] < 0)) for side, (_, m) in pairs}

    def field(self, matches: Sequence[Match], name: str) -> Field:
        """A column that windows use."""
        table, column = self._places[name]
        return field_of(*matches[table], column)

    def compose(self, matches: Sequence[Match], order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lines of sample text for some rows, but for windows: bytes, and where each line ends.

        Behind the last one are ``WRITTEN_OVER`` bytes more.
        """
        piece, _ = matches[-1]
        strips = dict(self._held)
        for table, first, count in self._columns:
            if len(self._sides) <= table < len(matches) - 1:
                strips[table, first, count] = _Strips.of(matches[table][0], first, count)
        made_of = np.array(
            [strips[p].place(p[0]) if p in strips else (p[0], 0, *p[1:]) for p in self._columns]
        )
        rows = np.stack([rows for _, rows in matches])
        sizes = np.empty(len(order), np.int64)
        lines_size(made_of, rows, piece.starts, piece.ends, order, sizes)
        line_ends = np.cumsum(sizes)
        text = np.empty((int(line_ends[-1]) if len(order) else 0) + WRITTEN_OVER, np.uint8)
        lines_text(made_of, rows, piece.data, piece.starts, piece.ends, order, text)
        return text, line_ends


Place = tuple[int, int, int]
"""A table, the first of some adjacent columns, and how many they are."""


def _adjacent(columns: Sequence[tuple[int, int]]) -> list[Place]:
    """Columns, each a table and a number; those that are neighbours there and here together."""
    found: list[Place] = []
    for table, column in columns:
        last = found[-1] if found else (-1, 0, 0)
        if (table, column) == (last[0], last[1] + last[2]):
            found[-1] = (table, last[1], last[2] + 1)
        else:
            found.append((table, column, 1))
    return found


class _Strips(NamedTuple):
    """Some adjacent columns of all rows of a table as text; see ``strips_text``."""

    text: np.ndarray
    begins: np.ndarray

    @classmethod
    def of(cls, table: Columns | Piece, first: int, count: int) -> _Strips:
        span = slice(first, first + count)
        size = int((table.ends[:, span] - table.starts[:, span]).sum()) + count * len(table.starts)
        text = np.empty(size + count + WRITTEN_OVER, np.uint8)
        begins = np.empty(len(table.starts) + 2, np.int64)
        strips_text(table.data, table.starts, table.ends, first, count, text, begins)
        return cls(text, begins)

    def place(self, table: int) -> tuple[int, int, int, int]:
        return table, self.text.ctypes.data, self.begins.ctypes.data, len(self.begins) - 2


def field_of(table: Columns | Piece, rows: np.ndarray, column: int) -> Field:
    """A column for some rows; row -1 is empty."""
    starts, ends = np.empty((2, len(rows)), np.int64)
    take_fields(table.starts, table.ends, rows, column, starts, ends)
    return table.data, starts, ends


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
    text: str, found: Sequence[str], every: Sequence[tuple[str, str, tuple[int, int]]], where: str
) -> ConfigError:
    if found:
        hint = f"write one of {', '.join(found)} in columns of the join file"
        return ConfigError(f"several columns are called {text!r}", where=where, hint=hint)
    names = ", ".join(dict.fromkeys(name for _, name, _ in every))
    what = f"no table has a column {text!r}"
    return ConfigError(what, where=where, hint=f"there are {names}")
