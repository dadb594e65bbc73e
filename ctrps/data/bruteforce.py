"""Samples computed the slow, obvious way, to check the fast way against.

Python's own reader of csv, dictionaries and loops over all events: nothing here uses the kernels,
or what ``ctrps.data.join`` and ``ctrps.data.windows`` do with them. What is checked, and how it is
reported, is ``ctrps.data.leakage``'s business.
"""

from __future__ import annotations

import csv
import io
import re
import zoneinfo
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from ctrps.data.joinfile import HOUR_S, IMPRESSIONS, Derived, Join, JoinPlan, Span, Window
from ctrps.data.streams import Headed, Unpacked
from ctrps.data.tables import find_table

Row = list[str]
Event = tuple[int, Row]
"""Time and fields."""

Zone = zoneinfo.ZoneInfo | None

DAY_S = 86400
EPOCH = datetime(1970, 1, 1)
READ_BYTES = 1 << 20
RATE_DIGITS = 12
MAX_TIME = 1 << 40
"""Seconds from 1970; a time stamp that lies further off is none."""


def table_rows(path: Path) -> Iterator[Row]:
    """The header of a raw table, and then its good rows."""
    with closing(Unpacked(path, ".csv")) as source:
        stream = io.BufferedReader(Headed(source.readinto), READ_BYTES)
        # A lone carriage return ends no line here, as it does not in tables.
        text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="\n")
        rows = _readable(csv.reader(text, strict=True))
        header = [name.strip() for name in next((row for row in rows if row), [])]
        yield header
        for row in rows:
            joined = "\t".join(row)
            breaks = joined.count("\t") - len(row) + 1 or "\n" in joined or "\r" in joined
            if len(row) == len(header) and not breaks:
                yield row


def _readable(rows: Iterator[Row]) -> Iterator[Row]:
    """The rows without those that have broken quotes."""
    while True:
        try:
            yield next(rows)
        except csv.Error:
            continue
        except StopIteration:
            return


def time_of(text: str) -> int | None:
    """Seconds since 1970, or None for a row that is bad."""
    time = int(text) if re.fullmatch("-?[0-9]{1,18}", text) else MAX_TIME + 1
    return time if abs(time) <= MAX_TIME else None


class SlowJoin:
    """The columns of impressions, by the names that a join file has for them.

    Attributes
    ----------
    header : list of str
        Columns of the impressions.
    names : list of str
        Columns of a sample, those of windows too.
    """

    def __init__(self, folder: Path, plan: JoinPlan):
        self.plan = plan
        self.path = find_table(folder, plan.impressions.table)
        self.header = next(table_rows(self.path))
        self.sides = [_Side(folder, join) for join in plan.joins]
        own = plan.impressions.table
        self._columns: list[_Column] = [(own, name, None) for name in self.header]
        self._columns += [("", name, None) for name in plan.derived]
        self._columns += [(s.table, name, s) for s in self.sides for name in s.header]
        # The key of a joined table is shown only where the file names it in full.
        every = [name for _, name, side in self._columns if side is None or name != side.key]
        self._asked = list(plan.columns) or [*every, *plan.windows]
        self._found: dict[str, _Column] = {}
        self.names = [n if n in plan.windows else self._find(n)[1] for n in self._asked]

    def _find(self, name: str) -> _Column:
        if name not in self._found:
            there = [c for c in self._columns if name in (c[1], f"{c[0]}.{c[1]}")]
            keys = [c for c in there if c[2] is not None and c[1] == c[2].key]
            self._found[name] = [*(c for c in there if c not in keys), *keys][0]
        return self._found[name]

    def time(self, row: Row) -> int | None:
        """The time of an impression; None where it is bad."""
        column = self.plan.impressions.time
        return time_of(row[self.header.index(column)]) if column else 0

    def value(self, name: str, row: Row, time: int) -> str:
        """A column of an impression that is no window."""
        table, column, side = self._find(name)
        if side is not None:
            return side.value(row[self.header.index(side.join.on)], column)
        if not table:
            return _derived(self.plan.derived[column], time, self.plan.zone)
        return row[self.header.index(column)]

    def expected(
        self, row: Row, time: int, past: dict[str, tuple[Source, list[Event]]]
    ) -> list[str]:
        """The fields of an impression's sample.

        Parameters
        ----------
        row, time
        past
            For each source the events to look at; all that share a key and are old enough count.
        """
        windows = self.plan.windows
        return [
            self._window(windows[name], row, time, *past[windows[name].events])
            if name in windows
            else self.value(name, row, time)
            for name in self._asked
        ]

    def _window(
        self, window: Window, row: Row, time: int, past: Source, events: list[Event]
    ) -> str:
        since, until = bounds(window.span, time, past.delay_s, self.plan.zone)
        mine = [self.value(key, row, time) for key in window.by]
        seen = [
            (at, event)
            for at, event in events
            if since <= at < until
            and [past.value(past.keys.get(key, key), event, at) for key in window.by] == mine
            and _fits(past, window.where, event, at)
        ]
        if window.take == "count":
            return str(len(seen))
        if window.take == "rate":
            hits = sum(_fits(past, window.hit, event, at) for at, event in seen)
            return _rate(hits, len(seen) + window.plus)
        assert window.of is not None
        return _list(window, [(at, past.value(window.of, event, at)) for at, event in seen])


class _Side:
    """A joined table: its rows by their keys, each as one text."""

    def __init__(self, folder: Path, join: Join):
        rows = table_rows(find_table(folder, join.table))
        self.join, self.table, self.key = join, join.table, join.key or join.on
        self.header = next(rows)
        number = self.header.index(self.key)
        self._rows: dict[str, str] = {}
        for row in rows:
            self._rows.setdefault(row[number], "\t".join(row))

    def row(self, key: str) -> Row | None:
        text = self._rows.get(key)
        return None if text is None else text.split("\t")

    def value(self, key: str, column: str) -> str:
        row = self.row(key)
        return "" if row is None else row[self.header.index(column)]


_Column = tuple[str, str, _Side | None]
"""Table, name, and the joined table that it is of."""


class Source:
    """Where events come from, and how their columns are read.

    Attributes
    ----------
    name
    table : Path
    delay_s
    keys
        Columns of the impressions that have another name here.
    """

    def __init__(self, join: SlowJoin, folder: Path, name: str):
        plan = join.plan
        self.name = name
        self._listed: list[int] = []
        self.value: Callable[[str, Row, int], str]
        if name == IMPRESSIONS:
            self.table, self.delay_s = join.path, plan.impressions.delay_s
            self.keys: dict[str, str] = {}
            self.header, self.time, self.value = join.header, join.time, join.value
            return
        source = plan.events[name]
        self.table, self.delay_s = find_table(folder, source.table), source.delay_s
        self.keys = source.keys
        self.header = next(table_rows(self.table))
        columns = {column: number for number, column in enumerate(self.header)}
        when = columns[source.time]
        self.time = lambda row: time_of(row[when])
        self.value = lambda column, row, _: row[columns[column]]
        listed = [w.of for w in plan.windows.values() if w.events == name and w.of is not None]
        self._listed = [columns[column] for column in dict.fromkeys(listed)]

    def rows(self) -> Iterator[tuple[int, int, Row]]:
        """Number, time and fields of all its good rows, in the order of the table."""
        rows = table_rows(self.table)
        next(rows)
        for number, row in enumerate(rows):
            time = self.time(row)
            if time is not None and not any("," in row[column] for column in self._listed):
                yield number, time, row


def _fits(past: Source, where: dict[str, tuple[str, ...]], event: Row, at: int) -> bool:
    return all(past.value(column, event, at) in texts for column, texts in where.items())


def _list(window: Window, found: Sequence[tuple[int, str]]) -> str:
    """The list of some values, each with its time; those of one second in order of their bytes."""
    ordered = sorted((at, _bytes(text)) for at, text in found if text)
    values = [text for _, text in ordered]
    if window.take == "last":
        chosen = values[-1:]
    elif window.take == "distinct":
        chosen = list(dict.fromkeys(values))
    else:
        counts = Counter(values)
        chosen = sorted(counts, key=lambda text: (counts[text], text), reverse=True)[: window.most]
    return b",".join(chosen).decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _rate(hits: int, of: int) -> str:
    """A share with at most twelve decimals, rounded half up."""
    if not of:
        return ""
    scale = 10**RATE_DIGITS
    whole, rest = divmod((2 * hits * scale + of) // (2 * of), scale)
    return f"{whole}.{rest:0{RATE_DIGITS}d}".rstrip("0").rstrip(".")


def bounds(span: Span, time: int, delay_s: int, zone: Zone) -> tuple[int, int]:
    """Since when and until when, exclusive, an impression at ``time`` looks back."""
    if span.unit == "hours":
        return time - span.length * HOUR_S, time - delay_s
    today = _day(time, zone)
    if span.length == 0:
        return _start(today, zone), time - delay_s
    return _start(today - span.length, zone), min(_start(today, zone), time - delay_s)


@lru_cache(maxsize=1 << 16)
def _day(time: int, zone: Zone) -> int:
    """The day, counted from 1970, that began last."""
    try:
        day = (datetime.fromtimestamp(time, zone or UTC).replace(tzinfo=None) - EPOCH).days
    except (ValueError, OverflowError, OSError):
        return time // DAY_S
    return day + (time >= _start(day + 1, zone))


@lru_cache(maxsize=1 << 12)
def _start(day: int, zone: Zone) -> int:
    try:
        return round((EPOCH + timedelta(days=day)).replace(tzinfo=zone or UTC).timestamp())
    except (ValueError, OverflowError):
        return day * DAY_S


def _derived(column: Derived, time: int, zone: Zone) -> str:
    if column.constant is not None:
        return column.constant
    try:
        local = datetime.fromtimestamp(time, zone or UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    if column.time == "hour":
        return str(local.hour)
    if column.time == "workday":
        return str(int(local.weekday() < 5))
    return f"{local:%Y%m%d}"
