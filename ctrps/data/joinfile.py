"""The join file: how raw tables become samples, as a YAML file states it.

Reads and checks the file; it opens no table. ``ctrps.data.join`` does what it says.
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import zoneinfo
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from ctrps.configfile import Place, Problem, as_error, display
from ctrps.data.initext import read_utf8
from ctrps.errors import ConfigError

Name = Annotated[str, Field(min_length=1, pattern=r"^[^\t\r\n]*$")]
Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1),
]
"""One text or a list of them."""

Where = dict[Name, Texts]
"""Columns and the values that they may have; all of them must."""

Days = tuple[int, int]
"""First and last day, in days since 1970-01-01 of the zone."""

IMPRESSIONS = "impressions"
HOUR_S = 3600


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Impressions(_Model):
    """The table whose rows become samples.

    Attributes
    ----------
    table
        Its name: the table is ``NAME.csv``, or another of ``ctrps.data.tables.ENDINGS``, in
        ``sample.dir``.
    time
        Column of the time stamp, seconds since 1970 in UTC.
    zone
        IANA zone whose days and hours count, for example ``Asia/Shanghai``. The zone of the
        machine never does.
    delay_s
        As in ``Events``, for windows over the impressions themselves.
    """

    table: Name
    time: Name | None = None
    zone: Name | None = None
    delay_s: int = Field(default=0, ge=0)


class Join(_Model):
    """A table that has at most one row for each impression.

    Attributes
    ----------
    table
        Its name.
    on
        Column of the impressions that names its row.
    key
        Column of this table that holds the same; default: as ``on``.
    duplicates
        What to do about two rows with one key: ``error``, or take the ``first``.
    """

    table: Name
    on: Name
    key: Name | None = None
    duplicates: Literal["error", "first"] = "error"


class Derived(_Model):
    """A column that no table has: a constant text, or a part of the impression's time.

    ``hour`` is 0 to 23; ``workday`` is 1 from Monday to Friday and 0 otherwise, holidays are not
    known; ``day`` is like 20170513.
    """

    constant: Name | None = None
    time: Literal["hour", "workday", "day"] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Derived:
        if (self.constant is None) == (self.time is None):
            raise ValueError("needs one of constant and time")
        return self


class Events(_Model):
    """A table of events that windows look back at.

    Attributes
    ----------
    table, time
        Its name, and its column of time stamps, as those of the impressions.
    keys
        Columns of the impressions that have another name here, and that name.
    delay_s
        Seconds until an event is known: at t those before ``t - delay_s`` are seen.
    """

    table: Name
    time: Name
    keys: dict[Name, Name] = {}
    delay_s: int = Field(default=0, ge=0)


class Span(NamedTuple):
    """Time before an impression: ``length`` hours or whole days; 0 days: its day up to it."""

    unit: Literal["hours", "days"]
    length: int


class Window(_Model):
    """A column made of the events before an impression, at t, that share its key.

    Attributes
    ----------
    take
        ``count``: number of events. ``rate``: share of events that fit ``hit``, of all and
        ``plus`` more. ``top``: values of column ``of``, most frequent first; of equally frequent
        ones the larger text. ``distinct``: values in order of first sight. ``last``: the last
        value. Events of one second come in order of their values. Empty values do not count,
        lists are divided by commas.
    events
        Which of the file's ``events``, or ``impressions``.
    where
        Only events whose columns have these values.
    by
        Columns that must be the same in event and impression.
    over
        ``N hours``: t - N·3600 <= time < t. ``N days``: the N whole days before the
        impression's. ``today``: its day, before t.
    most
        Longest list of ``top``.
    """

    take: Literal["count", "rate", "top", "distinct", "last"]
    of: Name | None = None
    events: Name = IMPRESSIONS
    where: Where = {}
    hit: Where = {}
    plus: int = Field(default=0, ge=0)
    by: Annotated[Texts, Field(max_length=8)]
    over: Annotated[str, Field(pattern=r"^(today|[1-9][0-9]{0,4} (hours|days))$")]
    most: int | None = Field(default=None, ge=1, le=10_000)

    @model_validator(mode="after")
    def _fits_take(self) -> Window:
        if (self.of is not None) != (self.take in ("top", "distinct", "last")):
            need = "needs" if self.of is None else "has no"
            raise ValueError(f"{self.take} {need} column `of`")
        if bool(self.hit) != (self.take == "rate"):
            raise ValueError("`hit` says which events a rate is of, and only a rate has it")
        if self.plus and self.take != "rate":
            raise ValueError("only a rate has `plus`")
        if (self.most is not None) != (self.take == "top"):
            raise ValueError("top needs `most`, and only top has it")
        return self

    @property
    def asks(self) -> tuple[str, ...]:
        """The columns of impressions that it needs."""
        if self.events != IMPRESSIONS:
            return self.by
        return (*self.by, *self.where, *self.hit, *([self.of] if self.of else []))

    @property
    def span(self) -> Span:
        if self.over == "today":
            return Span("days", 0)
        count, unit = self.over.split()
        return Span("hours" if unit == "hours" else "days", int(count))


class DayRange(_Model):
    """Days of the zone, both included."""

    first: datetime.date
    last: datetime.date

    @model_validator(mode="after")
    def _in_order(self) -> DayRange:
        if self.last < self.first:
            raise ValueError(f"ends on {self.last}, before it begins")
        return self

    @property
    def days(self) -> Days:
        epoch = datetime.date(1970, 1, 1)
        return (self.first - epoch).days, (self.last - epoch).days


class Split(_Model):
    """Which days are for training and which for the test; other rows are left out."""

    train: DayRange | None = None
    test: DayRange | None = None

    @model_validator(mode="after")
    def _apart(self) -> Split:
        if self.train and self.test:
            if self.train.first <= self.test.last and self.test.first <= self.train.last:
                raise ValueError("train and test days overlap")
        return self


class JoinPlan(_Model):
    """A join file.

    Attributes
    ----------
    impressions, joins, derived, events, windows
        Where columns come from.
    split
        Train and test days; without it every row is for training.
    columns
        The columns of a sample, in order. A name that several tables have is written
        ``table.column``. Default: all there are.
    """

    impressions: Impressions
    joins: tuple[Join, ...] = ()
    derived: dict[Name, Derived] = {}
    events: dict[Name, Events] = {}
    windows: dict[Name, Window] = {}
    split: Split | None = None
    columns: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _time_is_known(self) -> JoinPlan:
        wants_time = self.split or any(column.time for column in self.derived.values())
        wants_time = wants_time or any(w.span.unit == "days" for w in self.windows.values())
        if wants_time and not (self.impressions.time and self.impressions.zone):
            raise ValueError("days and hours need impressions.time and impressions.zone")
        if self.windows and not self.impressions.time:
            raise ValueError("windows need impressions.time")
        if self.impressions.zone:
            _zone(self.impressions.zone)
        return self

    @property
    def zone(self) -> zoneinfo.ZoneInfo | None:
        return _zone(self.impressions.zone) if self.impressions.zone else None


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        near = difflib.get_close_matches(name, zoneinfo.available_timezones(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ", for example Asia/Shanghai"
        raise ValueError(f"impressions.zone: {name!r} is not an IANA time zone{hint}") from None


def load_plan(path: Path | str) -> JoinPlan:
    """Read a join file.

    Raises
    ------
    ConfigError
        With everything that is wrong in it, each with its line and column.
    """
    shown = display(path)
    text = read_utf8(path, "check sample.join")
    tree = _Tree(text, shown)
    try:
        root = _composed(text)
        values = tree.value(root, ()) if root else {}
    except RecursionError:
        raise ConfigError("is nested too deeply", where=shown) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
        what = getattr(error, "problem", None) or "unreadable"
        raise ConfigError(f"not YAML: {what}", where=place) from None
    if tree.problems:
        raise as_error(tree.problems)
    try:
        plan = JoinPlan.model_validate(values)
    except ValidationError as error:
        raise as_error([tree.problem(detail) for detail in error.errors()]) from None
    unknown = [
        {"type": "events", "loc": ("windows", name, "events"), "msg": _unknown(window, plan)}
        for name, window in plan.windows.items()
        if window.events not in (IMPRESSIONS, *plan.events)
    ]
    if unknown:
        raise as_error([tree.problem(detail) for detail in unknown])
    return plan


def _composed(text: str) -> yaml.Node | None:
    """The nodes of a file. What is wrong with it, the loader says that is written in Python."""
    if hasattr(yaml, "CBaseLoader"):
        with contextlib.suppress(yaml.YAMLError):
            return yaml.compose(text, Loader=yaml.CBaseLoader)
    return yaml.compose(text, Loader=yaml.BaseLoader)


def _unknown(window: Window, plan: JoinPlan) -> str:
    there = [IMPRESSIONS, *plan.events]
    near = difflib.get_close_matches(window.events, there, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)}"
    return f"no events are called {window.events!r}; {hint}"


class _Tree:
    """Nodes of a YAML file as plain values, whose places are remembered by their keys."""

    def __init__(self, text: str, source: str):
        self.problems: list[Problem] = []
        self._source = source
        self._lines = text.splitlines()
        self._places: dict[tuple[str | int, ...], Place] = {(): self._place(0, 0)}
        self._seen: set[int] = set()

    def _place(self, line: int, column: int) -> Place:
        text = self._lines[line] if line < len(self._lines) else ""
        return Place(self._source, line + 1, column + 1, text)

    def value(self, node: yaml.Node, at: tuple[str | int, ...]) -> Any:
        """Lists, mappings and texts; no type is guessed. Aliases are refused: they can grow."""
        place = self._place(node.start_mark.line, node.start_mark.column)
        self._places.setdefault(at, place)
        if id(node) in self._seen:
            self.problems.append(Problem(place, "aliases are not read; write the value here"))
            return None
        self._seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*at, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, at)
        return node.value

    def _mapping(self, node: yaml.MappingNode, at: tuple[str | int, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in node.value:
            place = self._place(key.start_mark.line, key.start_mark.column)
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(place, "a key must be a plain word"))
            elif key.value in found:
                self.problems.append(Problem(place, f"{key.value} is given twice; keep one"))
            else:
                self._places[(*at, key.value)] = place
                found[key.value] = self.value(item, (*at, key.value))
        return found

    def problem(self, detail: Any) -> Problem:
        """A validation error in our words, at the nearest place that the file has."""
        loc = tuple(detail["loc"])
        known = loc
        while known not in self._places:
            known = known[:-1]
        key = ".".join(map(str, loc))
        if detail["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(loc[-1]), _keys(loc[:-1]), n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_keys(loc[:-1]))}"
            return Problem(self._places[known], f"unknown key {loc[-1]!r}; {hint}")
        if detail["type"] == "missing":
            return Problem(self._places[known], f"{key} is missing")
        what = detail["msg"].removeprefix("Value error, ")
        return Problem(self._places[known], f"{key}: {what}" if key else what)


def _keys(loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the mapping at ``loc`` may have."""
    models: dict[str, type[_Model]] = {
        "impressions": Impressions,
        "joins": Join,
        "derived": Derived,
        "events": Events,
        "windows": Window,
        "split": Split if len(loc) == 1 else DayRange,
    }
    model = models[str(loc[0])] if loc else JoinPlan
    return list(model.model_fields)
