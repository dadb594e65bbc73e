"""What a features file says, once it has been read and checked: plain data.

Reading it is ``features``'s, fitting what it leaves open to training rows ``fit``'s, computing it
``program``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

GROUPS = ("user", "ad", "user_ad")
"""The parts of a sample that features describe, in the order of slots and dense columns."""

QUANTILES = "q"
"""What a number of buckets begins with in place of break lines; also the kind of such a Fit."""


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
        Names of the fields that it reads.
    prefix
        Namespace of its values: equal prefixes share weights on purpose.
    parts
        For combine, one of ``direct``, ``bucket`` and ``group`` per field; else empty.
    breaks
        Break lines per field, as float32 holds them; empty where nothing is bucketed.
    scale
        A dense feature's value x becomes ``(x - scale[0]) / scale[1]``.
    missing
        What an empty field gives: ``keep`` or ``drop`` for a sparse feature, a number in the
        place of the field's for a dense one; None where the file does not say.
    """

    name: str
    group: str
    operator: str
    fields: tuple[str, ...]
    prefix: str
    parts: tuple[str, ...] = ()
    breaks: tuple[tuple[float, ...], ...] = ()
    scale: tuple[float, float] = (0.0, 1.0)
    missing: str | float | None = None


@dataclass(frozen=True, slots=True)
class Derived:
    """A field made of others.

    Attributes
    ----------
    name, operator, fields
        As in ``Feature``.
    argument
        What comes after the operator: the ways to tidy, a zone, or ``FILE.py:FUNCTION``.
    place
        Line, column and length of the argument in the file.
    """

    name: str
    operator: str
    fields: tuple[str, ...]
    argument: str
    place: tuple[int, int, int] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Fit:
    """A piece of a features file that training rows must fill in.

    Attributes
    ----------
    place
        Line, column and length in the text, from 1.
    kind
        ``q``, ``standard`` or ``minmax``.
    source, operator
        What is distributed: the numbers of a field after a dense operator.
    buckets
        How many, for ``q``.
    """

    place: tuple[int, int, int]
    kind: str
    source: str
    operator: str
    buckets: int = 0


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A features file that has been checked.

    Attributes
    ----------
    path, folder, text
        The file it came from, for messages; where files that it names are; all of it.
    fields
        The sample's fields, as ``raw_sample_schema`` names them.
    derived
        Fields made of others, each of such as come before it.
    id, label
        Where a row's id and label come from, or None where the file does not say.
    dense, sparse
        Groups in the order user, ad, user_ad; inside a group in byte order of the names.
    fits
        What is left to be fitted; while there is any, no feature can be computed.
    count_above, drop_missing
        What the job said of both when training rows were made; see ``fit.fitted``.
    """

    path: str
    folder: Path = field(compare=False)
    text: str = field(compare=False)
    fields: tuple[str, ...]
    derived: tuple[Derived, ...]
    id: Feature | None
    label: Feature | None
    dense: tuple[Feature, ...]
    sparse: tuple[Feature, ...]
    fits: tuple[Fit, ...]
    count_above: int = 0
    drop_missing: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        """A distinct name for each sparse feature."""
        return _distinct(self.sparse)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """A distinct name for each dense feature."""
        return _distinct(self.dense)

    @property
    def needed(self) -> set[str]:
        """The fields that some feature, the id or the label reads, or is derived of."""
        everything = (*self.dense, *self.sparse, self.id, self.label)
        names = {field for feature in everything if feature for field in feature.fields}
        for derived in reversed(self.derived):
            if derived.name in names:
                names.update(derived.fields)
        return names

    @property
    def used(self) -> tuple[str, ...]:
        """The sample's fields that are needed, in the schema's order."""
        needed = self.needed
        return tuple(field for field in self.fields if field in needed)

    @property
    def derivations(self) -> tuple[Derived, ...]:
        """The derived fields that are needed, in order."""
        needed = self.needed
        return tuple(derived for derived in self.derived if derived.name in needed)

    @property
    def in_python(self) -> bool:
        """Whether functions of the user make some fields."""
        return any(derived.operator == "python" for derived in self.derivations)


def _distinct(features: Sequence[Feature]) -> tuple[str, ...]:
    names = [feature.name for feature in features]
    return tuple(
        name if names.count(name) == 1 else f"{feature.group}/{name}"
        for name, feature in zip(names, features, strict=True)
    )
