"""Reading the features file: which fields of a sample become which features, by which operator.

The grammar is checked here; the result is a frozen ``FeatureSpec``. No feature is computed:
``ctrps.data.program`` turns a spec into arrays and runs them over sample text.

A line is ``name=field|field…,operator,sub-operators,sub-arguments``. The operators are those of
``OPERATORS``, whose table is also in ``feature_extract/README.md``.
"""

from __future__ import annotations

import functools
import json
import math
import zoneinfo
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ctrps.configfile import display
from ctrps.data.initext import IniText, Piece, Problems, read_utf8
from ctrps.data.operators import OPERATORS, SCALES, Operator
from ctrps.data.spec import GROUPS, QUANTILES, Derived, Feature, FeatureSpec, Fit
from ctrps.errors import ConfigError
from ctrps.kernels import derive
from ctrps.kernels.values import DIRECT, LOG, SQRT, dense_value

SECTIONS = (
    "raw_sample_schema",
    "derived_fields",
    "id",
    "label",
    *(f"dense_features_{group}" for group in GROUPS),
    *(f"sparse_features_{group}" for group in GROUPS),
    "missing",
    "extracted",
)

TIDY = {"lower": derive.LOWER, "strip": derive.STRIP, "squeeze": derive.SQUEEZE}
DENSE = {"direct": DIRECT, "log": LOG, "sqrt": SQRT}

MAX_BUCKETS = 1000


def load_spec(path: Path | str) -> FeatureSpec:
    """Read a features file, or the one that the model in a folder keeps.

    Raises
    ------
    ConfigError
        When the file cannot be read, or with everything that is wrong in it, each with its
        line and column.
    """
    path = Path(path)
    text = _kept_by(path) if path.is_dir() else read_utf8(path, "check features.spec")
    return parse_spec(text, display(path), path.absolute().parent)


def _kept_by(model: Path) -> str:
    """The features that a model was trained on, as training rows have fitted them."""
    try:
        manifest = json.loads((model / "manifest.json").read_bytes())
        return str(manifest["data"]["schema"]["features"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        what = "it is not the folder of a model that was trained on extracted features"
        raise ConfigError(what, where=display(model), hint="check features.spec") from None


@functools.lru_cache(maxsize=8)
def parse_spec(text: str, path: str = "features.ini", folder: Path = Path()) -> FeatureSpec:
    """Check a features file given as text; see ``load_spec``.

    ``path`` is for messages; files that the text names are in ``folder``.

    Examples
    --------
    >>> text = "[raw_sample_schema]\\nfields=ad,seen\\n[sparse_features_ad]\\nlist=seen,group,ad"
    >>> parse_spec(text).sparse[0].prefix
    'ad'
    """
    ini = IniText(text, path, SECTIONS)
    spec = _Reader(ini, path, folder, text).spec()
    ini.problems.raise_any()
    return spec


class _Reader:
    """Makes the spec of the sections, telling every problem on the way."""

    def __init__(self, ini: IniText, path: str, folder: Path, text: str):
        self.path = path
        self.folder = folder
        self.text = text
        self.problems = ini.problems
        self._ini = ini
        self._fits: list[Fit] = []

    def spec(self) -> FeatureSpec:
        fields = self._schema()
        derived = tuple(self._derived(fields))
        known = (*fields, *(one.name for one in derived))
        spec = FeatureSpec(
            path=self.path,
            folder=self.folder,
            text=self.text,
            fields=fields,
            derived=derived,
            id=self._single("id", fields),
            label=self._single("label", fields),
            dense=tuple(self._ordered("dense", known)),
            sparse=tuple(self._ordered("sparse", known)),
            fits=tuple(self._fits),
        )
        return self._with_extracted(self._with_missing(spec))

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

    def _derived(self, fields: Sequence[str]) -> Iterable[Derived]:
        known = list(fields)
        for name, value in self._entries("derived_fields").values():
            if name.text in fields:
                self.problems.add(name, f"{name.text!r} is a field of the sample already")
            line = _Line(name, value, "derived", "derived", known, self.problems)
            derived = line.derived(fields)
            known.append(name.text)
            if derived is not None:
                yield derived

    def _with_extracted(self, spec: FeatureSpec) -> FeatureSpec:
        """The spec with what ``[extracted]`` says, which ``extract`` has written."""
        for name, value in self._entries("extracted").values():
            if name.text == "count_above" and value.text.isdecimal() and len(value.text) < 20:
                spec = replace(spec, count_above=int(value.text))
            elif name.text == "missing" and value.text in ("keep", "drop"):
                spec = replace(spec, drop_missing=value.text == "drop")
            elif name.text in ("count_above", "missing"):
                self.problems.add(value, f"{name.text} is not {value.text!r}")
            else:
                self.problems.unknown(name, "key", ["count_above", "missing"])
        return spec

    def _single(self, section: str, fields: Sequence[str]) -> Feature | None:
        entries = list(self._entries(section).values())
        for name, _ in entries[1:]:
            self.problems.add(name, f"[{section}] holds one line, this is one more")
        if not entries:
            return None
        return _Line(*entries[0], section, section, fields, self.problems).feature()

    def _ordered(self, kind: str, fields: Sequence[str]) -> Iterable[Feature]:
        for group in GROUPS:
            entries = self._entries(f"{kind}_features_{group}")
            for name in sorted(entries, key=str.encode):
                line = _Line(*entries[name], kind, group, fields, self.problems)
                feature = line.feature()
                self._fits += line.fits
                if feature is not None:
                    yield feature

    def _with_missing(self, spec: FeatureSpec) -> FeatureSpec:
        """The spec with what ``[missing]`` says of single features."""
        dense = dict(zip(spec.dense_names, spec.dense, strict=True))
        sparse = dict(zip(spec.slots, spec.sparse, strict=True))
        for name, value in self._entries("missing").values():
            if name.text in dense:
                number = self._missing_number(value, dense[name.text])
                dense[name.text] = replace(dense[name.text], missing=number)
            elif name.text in sparse:
                if value.text not in ("keep", "drop"):
                    self.problems.unknown(value, "policy", ["keep", "drop"])
                sparse[name.text] = replace(sparse[name.text], missing=value.text)
            else:
                self.problems.unknown(name, "feature", [*dense, *sparse])
        return replace(spec, dense=tuple(dense.values()), sparse=tuple(sparse.values()))

    def _missing_number(self, piece: Piece, feature: Feature) -> float:
        number = _number(piece.text)
        if number is None:
            self.problems.add(piece, f"expected a number, not {piece.text!r}")
        elif dense_value(DENSE[feature.operator], number)[1]:
            self.problems.add(piece, f"{feature.operator} of {piece.text} does not exist")
        return 0.0 if number is None else number


class _Line:
    """One ``name=value`` of a section, checked from left to right.

    Attributes
    ----------
    fits
        What it leaves to be fitted, once it has been read.
    """

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
        self.fits: list[Fit] = []

    def feature(self) -> Feature | None:
        """The feature, or None after telling what is wrong with it."""
        parts = self._parts()
        if parts is None:
            return None
        fields, operator, arguments = parts
        build = {"bucket": self._bucket, "combine": self._combine, "group": self._group}
        return build.get(operator, self._plain)(operator, fields, arguments)

    def derived(self, own: Sequence[str]) -> Derived | None:
        """The derived field, or None after telling what is wrong; ``own``: the sample's fields."""
        parts = self._parts()
        if parts is None:
            return None
        fields, operator, arguments = parts
        for piece in fields:
            if operator == "python" and piece.text not in own:
                what = f"python reads fields of the sample; {piece.text!r} is derived itself"
                self.problems.add(piece, what)
        argument = arguments[0] if arguments else Piece("", 0, 0)
        self._check_argument(operator, argument)
        names = tuple(piece.text for piece in fields)
        text = "|".join(piece.text for piece in argument.split("|"))
        return Derived(self.name.text, operator, names, text, _place(argument))

    def _check_argument(self, operator: str, argument: Piece) -> None:
        if operator == "tidy":
            for piece in argument.split("|"):
                if piece.text not in TIDY:
                    self.problems.unknown(piece, "way to tidy", TIDY)
        elif operator == "python":
            file, _, function = argument.text.rpartition(":")
            if not file.endswith(".py") or not function.isidentifier():
                self.problems.add(argument, "expected FILE.py:FUNCTION")
        elif operator in ("hour", "weekday"):
            try:
                zoneinfo.ZoneInfo(argument.text)
            except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
                what = f"unknown time zone {argument.text!r}; it is a name such as Asia/Shanghai"
                self.problems.add(argument, what)

    def _parts(self) -> tuple[list[Piece], str, list[Piece]] | None:
        sources, *rest = self.value.split(",")
        fields = sources.split("|")
        if not rest:
            self.problems.add(self.value, "expected field,operator")
            return None
        operator, *arguments = rest
        if operator.text not in OPERATORS:
            self.problems.unknown(operator, "operator", OPERATORS)
            return None
        if not self._fitting(OPERATORS[operator.text], operator, fields, arguments):
            return None
        return fields, operator.text, arguments

    def _fitting(
        self, rule: Operator, operator: Piece, fields: list[Piece], arguments: list[Piece]
    ) -> bool:
        before = [piece for piece in fields if piece.text not in self.known]
        for piece in before:
            self.problems.unknown(piece, "field", self.known)
        if before:
            return False
        # Every dense operator may be followed by how to normalise what it gives.
        least, most = (0, 2) if self.kind == "dense" else rule.arguments
        if self.kind not in rule.sections:
            fit = [name for name, other in OPERATORS.items() if self.kind in other.sections]
            what = f"{operator.text!r} does not fit here; {self.kind} takes {', '.join(fit)}"
        elif len(fields) < rule.least or (rule.most and len(fields) > rule.most):
            what = f"{operator.text} takes {rule.least} field(s), not {len(fields)}: {rule.form}"
        elif not least <= len(arguments) <= most:
            what = f"expected {rule.form}, found {len(arguments)} part(s) after the operator"
        else:
            return True
        self.problems.add(operator, what)
        return False

    def _make(self, operator: str, fields: list[Piece], prefix: str, **more) -> Feature:
        names = tuple(piece.text for piece in fields)
        return Feature(self.name.text, self.group, operator, names, prefix, **more)

    def _plain(self, operator: str, fields: list[Piece], arguments: list[Piece]) -> Feature:
        prefix = fields[0].text if operator == "direct" else self.name.text
        scale = self._scale(operator, fields[0], arguments) if self.kind == "dense" else (0.0, 1.0)
        return self._make(operator, fields, prefix, scale=scale)

    def _scale(self, operator: str, field: Piece, arguments: list[Piece]) -> tuple[float, float]:
        """Centre and size of a dense feature, 0 and 1 where they must be fitted yet."""
        if not arguments:
            return 0.0, 1.0
        kind, *constants = arguments
        if kind.text not in SCALES:
            self.problems.unknown(kind, "way to normalise", SCALES)
        elif not constants:
            self.fits.append(Fit(_place(kind), kind.text, field.text, operator))
        else:
            numbers = [_real(piece.text) for piece in constants[0].split("|")]
            if len(numbers) == 2 and None not in numbers and numbers[1]:
                return numbers[0] or 0.0, numbers[1]
            self.problems.add(constants[0], "expected centre|size, two numbers, the second not 0")
        return 0.0, 1.0

    def _group(self, operator: str, fields: list[Piece], arguments: list[Piece]) -> Feature:
        if arguments and not arguments[0].text:
            self.problems.add(
                arguments[0], "the prefix is empty; leave the comma out to use the name"
            )
        prefix = arguments[0].text if arguments else self.name.text
        return self._make(operator, fields, prefix)

    def _bucket(self, operator: str, fields: list[Piece], arguments: list[Piece]) -> Feature:
        breaks = (self._break_lines(fields[0], arguments[0]),)
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
        breaks = tuple(self._part(*three) for three in zip(fields, parts, lines, strict=True))
        names = tuple(part.text for part in parts)
        return self._make(operator, fields, self.name.text, parts=names, breaks=breaks)

    def _part(self, field: Piece, part: Piece, argument: Piece) -> tuple[float, ...]:
        allowed = ["direct"] if self.kind == "id" else ["direct", "bucket", "group"]
        if part.text not in allowed:
            if part.text in OPERATORS:
                what = f"a part of combine is {' or '.join(allowed)}, not {part.text!r}"
                self.problems.add(part, what)
            else:
                self.problems.unknown(part, "operator", allowed)
        elif part.text == "bucket":
            return self._break_lines(field, argument)
        elif argument.text:
            self.problems.add(argument, f"{part.text} takes no argument here")
        return ()

    def _break_lines(self, field: Piece, piece: Piece) -> tuple[float, ...]:
        if not piece.text:
            self.problems.add(piece, "bucket needs break lines: 20|50|100")
            return ()
        count = piece.text.removeprefix(QUANTILES)
        if count != piece.text:
            short = count.isdecimal() and len(count) < 20
            if short and 2 <= int(count) <= MAX_BUCKETS:
                self.fits.append(Fit(_place(piece), QUANTILES, field.text, "direct", int(count)))
            else:
                what = f"a number of buckets is {QUANTILES}2 to {QUANTILES}{MAX_BUCKETS}"
                self.problems.add(piece, f"{what}, not {piece.text!r}")
            # There are break lines, whatever they will be.
            return (0.0,)
        values = []
        for part in piece.split("|"):
            value = _number(part.text)
            if value is None:
                self.problems.add(part, f"a break line must be a number, not {part.text!r}")
            else:
                values.append(value)
        return tuple(values)


def _place(piece: Piece) -> tuple[int, int, int]:
    return piece.line, piece.column, len(piece.text)


def _number(text: str) -> float | None:
    """A finite number as float32 holds it: that is what ``bucket`` compares."""
    value = _real(text)
    with np.errstate(over="ignore"):
        return None if value is None else _finite(float(np.float32(value)))


def _real(text: str) -> float | None:
    try:
        # Python reads 1_000 as a number, users do not write it as one.
        return _finite(float(text.replace("_", "?")))
    except ValueError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
