"""Filling in what a features file leaves to training rows: break lines, and how to normalise.

The result is a features file again, which says everything itself: it computes the same of any
rows, and stands beside the shards and in the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ctrps.data.features import parse_spec
from ctrps.data.rows import Rows
from ctrps.data.spec import QUANTILES, Feature, FeatureSpec, Fit
from ctrps.errors import DataError

MOST = 1 << 20
"""Distinct numbers of a field that are told apart: 12 MB of memory. Beyond it the last bits of
float32 are not looked at."""

WAITING = 1 << 16
"""Numbers that may wait before they are sorted."""


class Distribution:
    """How often each number occurs, as float32; exact while there are at most ``MOST`` of them.

    When there are more, as many last bits of all numbers count as 0 as must. The result depends
    on all numbers together and not on the order in which they come.

    Examples
    --------
    >>> some, more = Distribution(), Distribution()
    >>> some.add(np.float32([2, 1])), more.add(np.float32([2, -0.5]))
    (None, None)
    >>> some.merge(more)
    >>> some.values()
    (array([-0.5,  1. ,  2. ], dtype=float32), array([1, 1, 2]))
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._bits = 0
        self._keys = np.empty(0, np.uint32)
        self._counts = np.empty(0, np.int64)
        self._waiting: list[np.ndarray] = []
        self._waits = 0

    def add(self, numbers: np.ndarray) -> None:
        """Count some more numbers, float32[n], all finite."""
        # Adding 0 makes -0.0 a 0.0.
        bits = (numbers + np.float32(0)).view(np.uint32)
        top = np.uint32(1 << 31)
        # An order of integers that is the order of the numbers.
        self._waiting.append(np.where(bits & top, ~bits, bits | top))
        self._waits += len(numbers)
        if self._waits >= WAITING:
            self._settle()

    def merge(self, other: Distribution) -> None:
        """Count all that ``other`` has counted."""
        self._settle()
        other._settle()
        self._bits = max(self._bits, other._bits)
        keys = np.concatenate([self._keys, other._keys])
        self._set(keys, np.concatenate([self._counts, other._counts]))

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers, float32 ascending, and how often each occurs, int64."""
        self._settle()
        top = np.uint32(1 << 31)
        bits = np.where(self._keys & top, self._keys ^ top, ~self._keys)
        return bits.view(np.float32), self._counts

    def _settle(self) -> None:
        if self._waiting:
            keys, counts = np.unique(np.concatenate(self._waiting), return_counts=True)
            self._waiting, self._waits = [], 0
            both = np.concatenate([self._counts, counts.astype(np.int64)])
            self._set(np.concatenate([self._keys, keys]), both)

    def _set(self, keys: np.ndarray, counts: np.ndarray) -> None:
        while True:
            keys, at = np.unique(keys >> self._bits << self._bits, return_inverse=True)
            counts = np.bincount(at, counts, len(keys)).astype(np.int64)
            if len(keys) <= self._most:
                break
            self._bits += 1
        self._keys, self._counts = keys.astype(np.uint32), counts


def spec_of_numbers(spec: FeatureSpec) -> FeatureSpec:
    """A spec whose dense features are the numbers that ``spec.fits`` need, in their order."""
    dense = tuple(
        Feature(f"{fit.operator} {fit.source}", "user", fit.operator, (fit.source,), "")
        for fit in _numbers(spec.fits)
    )
    return replace(spec, id=None, dense=dense, sparse=(), fits=())


def _numbers(fits: Sequence[Fit]) -> list[Fit]:
    """Each number that is distributed, once."""
    return list({(fit.source, fit.operator): fit for fit in fits}.values())


def distributions(rows: Iterable[Rows]) -> list[Distribution]:
    """How the numbers of the columns ``dense`` of rows are distributed; NaN is left out."""
    found: list[Distribution] = []
    for part in rows:
        found = found or [Distribution() for _ in range(part.dense.shape[1])]
        for one, column in zip(found, part.dense.T, strict=True):
            one.add(column[~np.isnan(column)])
    return found


def merged(parts: Iterable[Sequence[Distribution]]) -> list[Distribution]:
    """The distributions of all parts together."""
    found: list[Distribution] = []
    for part in parts:
        for whole, one in zip(found, part, strict=bool(found)):
            whole.merge(one)
        found = found or list(part)
    return found


def fitted(
    spec: FeatureSpec,
    found: Sequence[Distribution],
    *,
    count_above: int = 0,
    drop_missing: bool = False,
) -> str:
    """The text of a features file with everything filled in that it left open.

    Parameters
    ----------
    spec
    found
        What the numbers of ``spec_of_numbers(spec)`` are in training rows.
    count_above, drop_missing
        How these rows are made, as the job says: the text tells it in a section ``[extracted]``.

    Raises
    ------
    DataError
        When training rows have no number where one is needed.
    """
    numbers = [(fit.source, fit.operator) for fit in _numbers(spec.fits)]
    by_number = dict(zip(numbers, found or [Distribution() for _ in numbers], strict=True))
    changes = {
        fit.place: _filled(fit, by_number[fit.source, fit.operator], spec) for fit in spec.fits
    }
    for derived in spec.derived:
        if derived.operator == "python":
            changes[derived.place] = str(spec.folder / derived.argument)
    lines = spec.text.split("\n")
    # From the right, so that places to the left stay.
    for (line, column, length), text in sorted(changes.items(), reverse=True):
        old = lines[line - 1]
        lines[line - 1] = old[: column - 1] + text + old[column - 1 + length :]
    said = ["missing=drop"] * (drop_missing or spec.drop_missing)
    said += [f"count_above={count_above}"] * (count_above > 0)
    # A model's own features, made again of other rows, have such a section already.
    text = re.sub(r"(?ms)^\[extracted\]\n.*?(?=^\[|\Z)", "", "\n".join(lines))
    if said:
        text = "\n".join([text.rstrip("\n"), "", "[extracted]", *said, ""])
    assert not parse_spec(text, spec.path, spec.folder).fits
    return text


def _filled(fit: Fit, found: Distribution, spec: FeatureSpec) -> str:
    values, counts = found.values()
    if not len(values):
        what = f"training rows have no number in {fit.source!r}"
        raise DataError(what, where=f"{spec.path}:{fit.place[0]}:{fit.place[1]}")
    if fit.kind == QUANTILES:
        return "|".join(map(str, quantiles(values, counts, fit.buckets)))
    wide = values.astype(np.float64)
    if fit.kind == "minmax":
        centre, size = float(wide[0]), float(wide[-1] - wide[0])
    else:
        centre = float(np.average(wide, weights=counts))
        size = float(np.sqrt(np.average((wide - centre) ** 2, weights=counts)))
    # A number that is always the same says nothing: it becomes 0.
    return f"{fit.kind},{centre!r}|{size if len(values) > 1 else 1.0!r}"


def quantiles(values: np.ndarray, counts: np.ndarray, buckets: int) -> np.ndarray:
    """Break lines that share rows as equally as ties allow; at least one, at most buckets - 1.

    Break line i is the smallest value that i / buckets of the rows do not exceed. Equal ones
    count once, and the largest value is none, as no row would lie behind it.

    Examples
    --------
    >>> quantiles(np.float32([1, 2, 3, 9]), np.array([1, 5, 1, 1]), 4)
    array([2.], dtype=float32)
    """
    share = np.cumsum(counts) * buckets
    at = np.searchsorted(share, np.arange(1, buckets) * int(counts.sum()))
    lines = np.unique(values[at])
    return lines[lines < values[-1]] if len(lines) > 1 else lines
