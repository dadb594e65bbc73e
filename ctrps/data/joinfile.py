"""The join file: how raw tables become samples, as a YAML file states it.

Reads and checks the file; it opens no table. ``ctrps.data.join`` does what it says.
"""

from __future__ import annotations

import datetime
import difflib
import zoneinfo
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ctrps.configfile import Place, Problem, as_error, display
from ctrps.data.initext import read_utf8
from ctrps.errors import ConfigError

Name = Annotated[str, Field(min_length=1, pattern=r"^[^\t\r\n]*$")]
Days = tuple[int, int]
"""First and last day, in days since 1970-01-01 of the zone."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Impressions(_Model):
    """The table whose rows become samples.

    Attributes
    ----------
    table
        Its name: the table is ``NAME.csv``, ``NAME.csv.gz`` or ``NAME.tar.gz`` in ``sample.dir``.
    time
        Column of the time stamp, seconds since 1970 in UTC.
    zone
        IANA zone whose days and hours count, for example ``Asia/Shanghai``. The zone of the
        machine never does.
    """

    table: Name
    time: Name | None = None
    zone: Name | None = None


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
    impressions, joins, derived
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
    split: Split | None = None
    columns: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _time_is_known(self) -> JoinPlan:
        wants_time = self.split or any(column.time for column in self.derived.values())
        if wants_time and not (self.impressions.time and self.impressions.zone):
            raise ValueError("days and hours need impressions.time and impressions.zone")
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
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
        what = getattr(error, "problem", None) or "unreadable"
        raise ConfigError(f"not YAML: {what}", where=place) from None
    tree = _Tree(text, shown)
    values = tree.value(root, ()) if root else {}
    try:
        if tree.problems:
            raise as_error(tree.problems)
        return JoinPlan.model_validate(values)
    except ValidationError as error:
        raise as_error([tree.problem(detail) for detail in error.errors()]) from None


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
        "split": Split if len(loc) == 1 else DayRange,
    }
    model = models[str(loc[0])] if loc else JoinPlan
    return list(model.model_fields)
