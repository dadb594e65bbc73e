"""A feature specification as arrays: the instructions of ``ctrps.kernels.program``.

It computes nothing and opens no file; running a program over sample text is ``extractor``'s.
"""

from __future__ import annotations

import math
import zoneinfo
from datetime import UTC, datetime
from functools import cache

import numpy as np

from ctrps.data.features import DENSE, TIDY
from ctrps.data.spec import Derived, Feature, FeatureSpec
from ctrps.errors import ConfigError
from ctrps.kernels import derive, names
from ctrps.kernels import machine as kernel
from ctrps.kernels.keys import hash_text, namespace
from ctrps.kernels.values import dense_value

LAST_YEAR = 2100
"""Time stamps after it have the offset of its end."""

DAY_S = 86_400


def compile_spec(
    spec: FeatureSpec, *, drop_missing: bool = False, empty: float = 0.0
) -> tuple[kernel.Program, names.Recipe]:
    """The instructions that compute ``spec``, and how its values are written.

    Columns are numbered as in ``columns_of``.

    Parameters
    ----------
    spec
    drop_missing
        An empty value gives no key: not alone, not as an element of a list and not as a part of
        a cross. A hit is 0 or 1 all the same. ``[missing]`` in the file says it per feature.
    empty
        What a dense feature is of an empty field, if ``[missing]`` does not say it.

    Raises
    ------
    ConfigError
        When the file leaves something to be fitted.
    """
    if spec.fits:
        fit = spec.fits[0]
        raise ConfigError(
            f"{fit.kind!r} must be fitted to training rows first",
            where=f"{spec.path}:{fit.place[0]}:{fit.place[1]}",
            hint="ctrps extract does it, and writes data/features.ini",
        )
    assembler = _Assembler(spec, drop_missing)
    for derived in spec.derivations:
        assembler.derive(derived)
    if spec.label is not None:
        assembler.compute(kernel.LABEL, assembler.columns[spec.label.fields[0]])
    for number, feature in enumerate(spec.dense):
        assembler.dense(feature, number, empty)
    for slot, feature in enumerate(spec.sparse):
        assembler.sparse(feature, slot)
    return assembler.program(), assembler.recipe()


def columns_of(spec: FeatureSpec) -> list[str]:
    """The columns of a program: those of the sample, those that Python makes, those derived."""
    derived = spec.derivations
    by_python = [one.name for one in derived if one.operator == "python"]
    return [*spec.used, *by_python, *(d.name for d in derived if d.operator != "python")]


class _Assembler:
    """Emits instructions; a field is hashed, split or parsed where it is first needed."""

    def __init__(self, spec: FeatureSpec, drop_missing: bool):
        self._spec = spec
        self.columns = {name: number for number, name in enumerate(columns_of(spec))}
        made = [one for one in spec.derivations if one.operator != "python"]
        self._own = len(self.columns) - len(made)
        self._origins = list(range(self._own))
        self._drop = drop_missing
        self._breaks: dict[tuple[float, ...], int] = {}
        self._zones: dict[str, int] = {}
        most = max((len(b) for f in spec.sparse for b in f.breaks), default=0)
        # -1 for a missing number, 0 and 1 also for hit.
        self._constants = ["", *map(str, range(-1, max(most, 1) + 1))]
        self._made: dict[tuple[int, ...], int] = {}
        self._texts = len(self._constants)
        self._lists = len(self.columns)
        self._scales: list[tuple[float, float, float]] = []
        self._drops: list[bool] = []
        self._recipes: list[list[tuple[int, int, int]]] = []
        self._computes: list[tuple[int, ...]] = []
        self._emits: list[tuple[int, ...]] = []

    def compute(self, operation: int, a: int, b: int = 0, to: int = 0, seed: int = 0) -> None:
        self._computes.append((operation, a, b, to, seed))

    def derive(self, derived: Derived) -> None:
        """A column of the program's own; those of Python are columns of the sample here."""
        if derived.operator == "python":
            return
        a, to = self.columns[derived.fields[0]], self.columns[derived.name]
        self._origins.append(self._origins[a])
        if derived.operator == "tidy":
            ways = sum({TIDY[way.strip()] for way in derived.argument.split("|")})
            self.compute(kernel.TIDY, a, ways, to)
        elif derived.operator == "set":
            self.compute(kernel.SET, a, 0, to)
        else:
            zone = self._zones.setdefault(derived.argument, len(self._zones))
            part = {"hour": derive.HOUR, "weekday": derive.WEEKDAY}[derived.operator]
            self.compute(kernel.TIME, self._number(derived.fields[0]), part, to, zone)

    def dense(self, feature: Feature, number: int, empty: float) -> None:
        operator = DENSE[feature.operator]
        centre, size = feature.scale
        if isinstance(feature.missing, float):
            empty = (dense_value(operator, feature.missing)[0] - centre) / size
        self._scales.append((empty, centre, size))
        self.compute(kernel.DENSE + operator, self._number(feature.fields[0]), to=number)

    def sparse(self, feature: Feature, slot: int) -> None:
        seed = namespace(feature.prefix)
        drop = feature.missing == "drop" if feature.missing else self._drop
        self._drops.append(drop)
        if feature.operator == "hit":
            text, elements = self._text(feature.fields[0]), self._list(feature.fields[1])
            hit = self._new(kernel.HIT, text, elements)
            self._recipes.append([(names.FOUND, hit, 0)])
            self._emit(kernel.KEY, hit, 0, slot, seed)
            return
        self._recipes.append([self._recipe(*three) for three in _parts(feature)])
        if drop or any(part == "group" for _, part, _ in _parts(feature)):
            self._emit_lists(feature, slot, seed, drop)
        else:
            self._emit_texts(feature, slot, seed)

    def _emit(self, operation: int, a: int, b: int, slot: int, seed: int) -> None:
        self._emits.append((operation, a, b, slot, seed))

    def _emit_texts(self, feature: Feature, slot: int, seed: int) -> None:
        """One key of one value or of a cross of several."""
        first, *others = [self._value(field, lines) for field, _, lines in _parts(feature)]
        if not others:
            self._emit(kernel.KEY, first, 0, slot, seed)
            return
        mixed = self._new(kernel.MIX, first, seed=seed)
        for part in others[:-1]:
            mixed = self._new(kernel.CROSS, mixed, part)
        self._emit(kernel.PAIR, mixed, others[-1], slot, 0)

    def _emit_lists(self, feature: Feature, slot: int, seed: int, drop: bool) -> None:
        """The keys of all combinations of elements; a single value is a list of at most one."""
        lists = []
        for field, part, lines in _parts(feature):
            if part == "group":
                elements = self._list(field)
                lists.append(
                    self._new_list(kernel.SOME, elements, kernel.EMPTY) if drop else elements
                )
            else:
                missing = kernel.FIRST_NUMBER if lines else kernel.EMPTY
                value = self._value(field, lines)
                lists.append(self._new_list(kernel.ONE, value, missing if drop else -1))
        first, *others = lists
        if not others:
            self._emit(kernel.KEYS, first, 0, slot, seed)
            return
        mixed = self._new_list(kernel.MIX_ALL, first, seed=seed)
        for elements in others:
            mixed = self._new_list(kernel.PRODUCT, mixed, elements)
        self._emit(kernel.MIXED, mixed, 0, slot, 0)

    def _recipe(self, field: str, part: str, breaks: tuple[float, ...]) -> tuple[int, int, int]:
        """How a part of a value is written."""
        if breaks:
            return names.BUCKETED, self.columns[field], self._lines(breaks)
        return names.ELEMENT if part == "group" else names.WHOLE, self.columns[field], 0

    def _lines(self, breaks: tuple[float, ...]) -> int:
        return self._breaks.setdefault(breaks, len(self._breaks))

    def _value(self, field: str, breaks: tuple[float, ...]) -> int:
        """The text register of a field's text, or of its bucket."""
        if not breaks:
            return self._text(field)
        return self._new(kernel.BUCKET, self._number(field), self._lines(breaks))

    def _text(self, field: str) -> int:
        return self._new(kernel.TEXT, self.columns[field])

    def _number(self, field: str) -> int:
        return self._read(kernel.NUMBER, field)

    def _list(self, field: str) -> int:
        return self._read(kernel.LIST, field)

    def _read(self, operation: int, field: str) -> int:
        """The number or list register of a field: it has the number of its column."""
        column = self.columns[field]
        if (operation, column) not in self._made:
            self._made[operation, column] = column
            # The elements of the sample's own columns are found and hashed in any case.
            if operation != kernel.LIST or column >= self._own:
                self.compute(operation, column)
        return column

    def _new(self, operation: int, a: int, b: int = 0, seed: int = 0) -> int:
        """The text register that holds this result; computed once."""
        made = (operation, a, b, seed)
        if made not in self._made:
            self._made[made] = self._texts
            self.compute(operation, a, b, self._texts, seed)
            self._texts += 1
        return self._made[made]

    def _new_list(self, operation: int, a: int, b: int = 0, seed: int = 0) -> int:
        """The list register that holds this result; computed once."""
        made = (operation, a, b, seed)
        if made not in self._made:
            self._made[made] = self._lists
            self.compute(operation, a, b, self._lists, seed)
            self._lists += 1
        return self._made[made]

    def recipe(self) -> names.Recipe:
        prefixes = [feature.prefix.encode() for feature in self._spec.sparse]
        parts = [part for parts in self._recipes for part in parts]
        return names.Recipe(
            parts=np.array(parts, np.int32).reshape(-1, 3),
            starts=np.cumsum([0, *map(len, self._recipes)], dtype=np.int32),
            drops=np.array(self._drops, np.bool_),
            prefixes=np.frombuffer(bytearray(b"".join(prefixes)), np.uint8),
            prefix_starts=np.cumsum([0, *map(len, prefixes)], dtype=np.int32),
        )

    def program(self) -> kernel.Program:
        code = np.array([*self._computes, *self._emits], object).reshape(-1, 5)
        lists, zones = list(self._breaks), [changes_of(zone) for zone in self._zones]
        changes, offsets = zip(*zones, strict=True) if zones else ((), ())
        spec = self._spec
        ids = spec.id.fields if spec.id else ()
        return kernel.Program(
            code=code[:, :4].astype(np.int32),
            seeds=code[:, 4].astype(np.uint64),
            emits=len(self._computes),
            breaks=np.array([line for lines in lists for line in lines], np.float32),
            break_starts=np.cumsum([0, *map(len, lists)], dtype=np.int32),
            changes=np.concatenate([np.empty(0, np.int64), *changes]),
            offsets=np.concatenate([np.empty(0, np.int64), *offsets]),
            zone_starts=np.cumsum([0, *map(len, changes)], dtype=np.int32),
            constants=np.array([hash_text(text) for text in self._constants], np.uint64),
            scales=np.array(self._scales, np.float64).reshape(-1, 3),
            origins=np.array(self._origins, np.int32),
            own=self._own,
            texts=self._texts,
            lists=self._lists,
            ids=np.array([self.columns[name] for name in ids], np.int32),
        )


def _parts(feature: Feature) -> list[tuple[str, str, tuple[float, ...]]]:
    """Field, operator and break lines of each part of a feature's value."""
    parts = feature.parts or (feature.operator,) * len(feature.fields)
    breaks = feature.breaks or ((),) * len(feature.fields)
    return list(zip(feature.fields, parts, breaks, strict=True))


@cache
def changes_of(zone: str) -> tuple[np.ndarray, np.ndarray]:
    """From when on a zone has which offset from UTC, both int64, in seconds.

    No zone changes twice in one day; a change is looked for where the next day's offset differs.

    Examples
    --------
    >>> changes, offsets = changes_of("Europe/Paris")
    >>> int(offsets[np.searchsorted(changes, 1494604800, side="right") - 1])
    7200
    """
    rules = zoneinfo.ZoneInfo(zone)
    changes, offsets = [0], [_offset_s(0, rules)]
    for day in range(0, int(datetime(LAST_YEAR, 1, 1, tzinfo=UTC).timestamp()), DAY_S):
        if _offset_s(day + DAY_S, rules) != offsets[-1]:
            before, after = day, day + DAY_S
            while after - before > 1:
                middle = (before + after) // 2
                same = _offset_s(middle, rules) == offsets[-1]
                before, after = (middle, after) if same else (before, middle)
            changes.append(after)
            offsets.append(_offset_s(after, rules))
    return np.array(changes, np.int64), np.array(offsets, np.int64)


def _offset_s(time: int, zone: zoneinfo.ZoneInfo) -> int:
    offset = datetime.fromtimestamp(time, zone).utcoffset()
    assert offset is not None
    return math.floor(offset.total_seconds())
