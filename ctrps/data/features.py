"""The features file: which fields of a sample become which features, by which operator.

This module reads the grammar and checks it; the result is a frozen ``FeatureSpec``. It computes
no feature: ``ctrps.data.program`` turns a spec into arrays and runs them over sample text.

A line is ``name=field|field…,operator,sub-operators,sub-arguments``. The operators are those of
``OPERATORS``, whose table is also in ``feature_extract/README.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctrps.configfile import display
from ctrps.data.initext import IniText, Piece, Problems, read_utf8

GROUPS = ("user", "ad", "user_ad")
"""The parts of a sample that features describe, in the order of slots and dense columns."""

SECTIONS = (
    "raw_sample_schema",
    "id",
    "label",
    *(f"dense_features_{group}" for group in GROUPS),
    *(f"sparse_features_{group}" for group in GROUPS),
)


@dataclass(frozen=True, slots=True)
class Operator:
    """What an operator takes and gives, in the words of the reference table.

    ``sections`` are the kinds of section that may use it, ``least`` and ``most`` bound its
    fields (``most`` 0: no bound), and ``arguments`` are the parts of a line after its name.
    """

    form: str
    sections: tuple[str, ...]
    least: int
    most: int
    arguments: tuple[int, int]
    result: str
    empty: str


OPERATORS = {
    "direct": Operator(
        "field,direct",
        ("id", "label", "dense", "sparse"),
        1,
        1,
        (0, 0),
        "the text as it stands; as a dense feature, its number",
        "a value of its own; dense 0",
    ),
    "log": Operator(
        "field,log", ("dense",), 1, 1, (0, 0), "ln(x + 1); x <= -1 is a bad value", "0"
    ),
    "sqrt": Operator(
        "field,sqrt", ("dense",), 1, 1, (0, 0), "√(x + 1); x < -1 is a bad value", "0"
    ),
    "bucket": Operator(
        "field,bucket,b0|b1|…",
        ("sparse",),
        1,
        1,
        (1, 1),
        "number of the first break line that is >= x, or how many there are",
        "bucket -1",
    ),
    "combine": Operator(
        "f1|f2|…,combine,op1|op2|…,a1#a2#…",
        ("id", "sparse"),
        1,
        0,
        (2, 2),
        "one value per combination; parts are direct or bucket, the latter with break lines",
        "a part like any other",
    ),
    "group": Operator(
        "field,group[,prefix]",
        ("sparse",),
        1,
        1,
        (0, 1),
        "every element of a comma list; they share the prefix and weigh 1/n each",
        "one empty element",
    ),
    "hit": Operator(
        "f1|f2,hit",
        ("sparse",),
        2,
        2,
        (0, 0),
        "1 when f1 is a whole element of the comma list f2, else 0",
        "an empty f1 hits an empty element, but not an empty list",
    ),
}


@dataclass(frozen=True, slots=True)
class Feature:
    """One line of a features file.

    Attributes
    ----------
    name, group
        The name before ``=``, and one of ``GROUPS`` (for id and label, the section's name).
    operator
        A key of ``OPERATORS``.
    fields
        Names of the sample's fields that it reads.
    prefix
        Namespace of its values: equal prefixes share weights on purpose.
    parts
        For combine, one of ``direct`` and ``bucket`` per field; else empty.
    breaks
        Break lines per field, as float32 holds them; empty where nothing is bucketed.
    """

    name: str
    group: str
    operator: str
    fields: tuple[str, ...]
    prefix: str
    parts: tuple[str, ...] = ()
    breaks: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A features file that has been checked.

    Attributes
    ----------
    path
        The file it came from, for messages.
    fields
        The sample's fields, as ``raw_sample_schema`` names them.
    id, label
        Where a row's id and label come from, or None where the file does not say.
    dense, sparse
        Groups in the order user, ad, user_ad; inside a group in byte order of the names.
    """

    path: str
    fields: tuple[str, ...]
    id: Feature | None
    label: Feature | None
    dense: tuple[Feature, ...]
    sparse: tuple[Feature, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        """A distinct name for each sparse feature."""
        return _distinct(self.sparse)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """A distinct name for each dense feature."""
        return _distinct(self.dense)

    @property
    def used(self) -> tuple[str, ...]:
        """The fields that some feature, the id or the label reads, in the schema's order."""
        everything = (*self.dense, *self.sparse, self.id, self.label)
        names = {field for feature in everything if feature for field in feature.fields}
        return tuple(field for field in self.fields if field in names)


def _distinct(features: Sequence[Feature]) -> tuple[str, ...]:
    names = [feature.name for feature in features]
    return tuple(
        name if names.count(name) == 1 else f"{feature.group}/{name}"
        for name, feature in zip(names, features, strict=True)
    )


def load_spec(path: Path | str) -> FeatureSpec:
    """Read a features file.

    Raises
    ------
    ConfigError
        When the file cannot be read, or with everything that is wrong in it, each with its
        line and column.
    """
    return parse_spec(read_utf8(path, "check features.spec"), display(path))


def parse_spec(text: str, path: str = "features.ini") -> FeatureSpec:
    """Check a features file given as text; see ``load_spec``.

    Examples
    --------
    >>> text = "[raw_sample_schema]\\nfields=ad,seen\\n[sparse_features_ad]\\nlist=seen,group,ad"
    >>> parse_spec(text).sparse[0].prefix
    'ad'
    """
    ini = IniText(text, path, SECTIONS)
    spec = _Reader(ini, path).spec()
    ini.problems.raise_any()
    return spec


class _Reader:
    """Makes the spec of the sections, telling every problem on the way."""

    def __init__(self, ini: IniText, path: str):
        self.path = path
        self.problems = ini.problems
        self._ini = ini

    def spec(self) -> FeatureSpec:
        fields = self._schema()
        return FeatureSpec(
            path=self.path,
            fields=fields,
            id=self._single("id", fields),
            label=self._single("label", fields),
            dense=tuple(self._ordered("dense", fields)),
            sparse=tuple(self._ordered("sparse", fields)),
        )

    def _entries(self, section: str) -> dict[str, tuple[Piece, Piece]]:
        return self._ini.sections.get(section, {})

    def _schema(self) -> tuple[str, ...]:
        entries = self._entries("raw_sample_schema")
        for name, _ in entries.values():
            if name.text != "fields":
                self.problems.unknown(name, "key", ["fields"])
        if "fields" not in entries:
            line = self._ini.headers.get("raw_sample_schema", 1)
            what = "the file must list the fields of a sample: [raw_sample_schema] fields=a,b,…"
            self.problems.add(Piece("", line, 1), what)
            return ()
        pieces = entries["fields"][1].split(",")
        seen: set[str] = set()
        for piece in pieces:
            if not piece.text:
                self.problems.add(piece, "a field without a name")
            elif piece.text in seen:
                self.problems.add(piece, f"field {piece.text!r} again")
            seen.add(piece.text)
        return tuple(piece.text for piece in pieces)

    def _single(self, section: str, fields: Sequence[str]) -> Feature | None:
        entries = list(self._entries(section).values())
        for name, _ in entries[1:]:
            self.problems.add(name, f"[{section}] holds one line, this is one more")
        if not entries:
            return None
        return _FeatureLine(*entries[0], section, section, fields, self.problems).feature()

    def _ordered(self, kind: str, fields: Sequence[str]) -> Iterable[Feature]:
        for group in GROUPS:
            entries = self._entries(f"{kind}_features_{group}")
            for name in sorted(entries, key=str.encode):
                line = _FeatureLine(*entries[name], kind, group, fields, self.problems)
                feature = line.feature()
                if feature is not None:
                    yield feature


class _FeatureLine:
    """One ``name=value`` of a feature section, checked from left to right."""

    def __init__(
        self,
        name: Piece,
        value: Piece,
        kind: str,
        group: str,
        fields: Sequence[str],
        problems: Problems,
    ):
        self.name = name
        self.value = value
        self.kind = kind
        self.group = group
        self.known = fields
        self.problems = problems

    def feature(self) -> Feature | None:
        """The feature, or None after telling what is wrong with it."""
        sources, *rest = self.value.split(",")
        fields = sources.split("|")
        if not rest:
            self.problems.add(self.value, "expected field,operator")
            return None
        operator, *arguments = rest
        if operator.text not in OPERATORS:
            self.problems.unknown(operator, "operator", OPERATORS)
            return None
        rule = OPERATORS[operator.text]
        if not self._fits(rule, operator, fields, arguments):
            return None
        build = {"bucket": self._bucket, "combine": self._combine, "group": self._group}
        return build.get(operator.text, self._plain)(operator.text, fields, arguments)

    def _fits(
        self, rule: Operator, operator: Piece, fields: list[Piece], arguments: list[Piece]
    ) -> bool:
        before = [piece for piece in fields if piece.text not in self.known]
        for piece in before:
            self.problems.unknown(piece, "field", self.known)
        if before:
            return False
        if self.kind not in rule.sections:
            fit = [name for name, other in OPERATORS.items() if self.kind in other.sections]
            what = f"{operator.text!r} does not fit here; {self.kind} takes {', '.join(fit)}"
        elif len(fields) < rule.least or (rule.most and len(fields) > rule.most):
            what = f"{operator.text} takes {rule.least} field(s), not {len(fields)}: {rule.form}"
        elif not rule.arguments[0] <= len(arguments) <= rule.arguments[1]:
            what = f"expected {rule.form}, found {len(arguments)} part(s) after the operator"
        else:
            return True
        self.problems.add(operator, what)
        return False

    def _make(self, operator: str, fields: list[Piece], prefix: str, **more) -> Feature:
        names = tuple(piece.text for piece in fields)
        return Feature(self.name.text, self.group, operator, names, prefix, **more)

    def _plain(self, operator: str, fields: list[Piece], _: list[Piece]) -> Feature:
        prefix = fields[0].text if operator == "direct" else self.name.text
        return self._make(operator, fields, prefix)

    def _group(self, operator: str, fields: list[Piece], arguments: list[Piece]) -> Feature:
        if arguments and not arguments[0].text:
            self.problems.add(
                arguments[0], "the prefix is empty; leave the comma out to use the name"
            )
        prefix = arguments[0].text if arguments else self.name.text
        return self._make(operator, fields, prefix)

    def _bucket(self, operator: str, fields: list[Piece], arguments: list[Piece]) -> Feature:
        breaks = (self._break_lines(arguments[0]),)
        return self._make(operator, fields, self.name.text, breaks=breaks)

    def _combine(
        self, operator: str, fields: list[Piece], arguments: list[Piece]
    ) -> Feature | None:
        parts, lines = arguments[0].split("|"), arguments[1].split("#")
        if len(parts) != len(fields):
            what = f"{len(fields)} field(s) need {len(fields)} operator(s), found {len(parts)}"
            self.problems.add(arguments[0], what)
            return None
        if len(lines) != len(fields):
            what = f"{len(fields)} field(s) need {len(fields) - 1} '#', found {len(lines) - 1}"
            self.problems.add(arguments[1], what + ", even where a part has no argument")
            return None
        breaks = tuple(self._part(*pair) for pair in zip(parts, lines, strict=True))
        names = tuple(part.text for part in parts)
        return self._make(operator, fields, self.name.text, parts=names, breaks=breaks)

    def _part(self, part: Piece, argument: Piece) -> tuple[float, ...]:
        allowed = ["direct"] if self.kind == "id" else ["direct", "bucket"]
        if part.text not in allowed:
            if part.text in OPERATORS:
                self.problems.add(
                    part, f"a part of combine is {' or '.join(allowed)}, not {part.text!r}"
                )
            else:
                self.problems.unknown(part, "operator", allowed)
        elif part.text == "bucket":
            return self._break_lines(argument)
        elif argument.text:
            self.problems.add(argument, "direct takes no argument")
        return ()

    def _break_lines(self, piece: Piece) -> tuple[float, ...]:
        if not piece.text:
            self.problems.add(piece, "bucket needs break lines: 20|50|100")
            return ()
        values = []
        for part in piece.split("|"):
            value = _number(part.text)
            if value is None:
                self.problems.add(part, f"a break line must be a number, not {part.text!r}")
            else:
                values.append(value)
        return tuple(values)


def _number(text: str) -> float | None:
    """A finite number as float32 holds it: that is what ``bucket`` compares."""
    try:
        with np.errstate(over="ignore"):
            # Python reads 1_000 as a number, users do not write it as one.
            value = float(np.float32(float(text.replace("_", "?"))))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
