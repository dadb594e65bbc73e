"""Rows as numbers, between a file of any kind and the shards or batches made of them.

Where rows come from (``formats``, ``extract``) and how they lie on disk (``shards``) is not known
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrps.errors import DataError
from ctrps.kernels.csr import row_starts
from ctrps.kernels.keys import dense_key
from ctrps.kernels.pairs import MAX_SLOTS

MAX_NAMES = MAX_SLOTS
"""Slots or dense features of a schema; the codec reads no longer list."""

Ids = tuple[np.ndarray, np.ndarray]
"""Texts of rows: bytes uint8[n], and where each row's text ends, int64[rows]."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What the columns of rows mean.

    Attributes
    ----------
    slots
        Names of the groups of keys; libsvm rows have one group named ``""``.
    dense
        Names of the numbers.
    weights
        ``"mean"``: each of the n keys of a slot weighs 1/n. ``"value"``: a key
        weighs its value, or 1 where rows hold no values.
    features
        The features file, fitted, that the rows were made by; empty for others. Rows of one
        schema may come of files that differ in a comment, so it does not count when comparing.
    """

    slots: tuple[str, ...]
    dense: tuple[str, ...] = ()
    weights: str = "mean"
    features: str = field(default="", compare=False)

    def to_dict(self) -> dict[str, Any]:
        found = {"slots": list(self.slots), "dense": list(self.dense), "weights": self.weights}
        return found | ({"features": self.features} if self.features else {})

    @classmethod
    def from_dict(cls, found: object) -> Schema:
        """The inverse of ``to_dict``.

        Raises
        ------
        DataError
            When ``found`` is something else.
        """
        if isinstance(found, dict) and found.keys() - {"features"} == {"slots", "dense", "weights"}:
            slots, dense, weights = found["slots"], found["dense"], found["weights"]
            features = found.get("features", "")
            if _is_names(slots) and _is_names(dense) and weights in ("mean", "value"):
                if isinstance(features, str):
                    return cls(tuple(slots), tuple(dense), weights, features)
        raise DataError(f"not a schema of rows: {str(found)[:80]}")

    def extends(self, other: Schema) -> bool:
        """Whether rows of ``other`` are rows of this schema too: it is the same, or has more slots.

        Rows of key-value text do not say which slots the rows behind them have. So
        with weights ``"value"`` a schema may end in slots that ``other`` lacks; the
        rows have no keys there.

        Examples
        --------
        >>> one, more = Schema(("ad",), (), "value"), Schema(("ad", "user"), (), "value")
        >>> more.extends(one), one.extends(more), Schema(("ad", "user")).extends(Schema(("ad",)))
        (True, False, False)
        """
        if self.weights != "value":
            return self == other
        same = (self.weights, self.dense) == (other.weights, other.dense)
        return same and self.slots[: len(other.slots)] == other.slots

    def dense_keys(self) -> np.ndarray:
        """Keys of the dense features, uint64[d]."""
        return np.array([dense_key(name) for name in self.dense], np.uint64)


def _is_names(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(name, str) for name in found)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as readers and extraction yield them, some thousands at a time.

    Attributes
    ----------
    keys : uint64[nnz]
        Row after row, inside a row slot after slot.
    counts : int32[rows, slots]
        How many of a row's keys belong to each slot.
    values : float32[nnz] or None
    dense : float32[rows, d]
    labels : float32[rows]
        0 or 1; NaN where there is no label.
    ids : (uint8[n], int64[rows]) or None
        Text that names each row, and where it ends.
    kept : tuple of (uint8[n], int64[rows])
        Texts of the columns of ``TextSettings.keep``, in its order.
    """

    keys: np.ndarray
    counts: np.ndarray
    values: np.ndarray | None
    dense: np.ndarray
    labels: np.ndarray
    ids: Ids | None = None
    kept: tuple[Ids, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.labels)

    def starts(self) -> np.ndarray:
        """Where each row's keys start, int64[rows + 1]."""
        starts = np.empty(self.rows + 1, np.int64)
        row_starts(self.counts, starts)
        return starts

    def part(self, first: int, last: int, starts: np.ndarray | None = None) -> Rows:
        """Rows ``first`` to ``last`` (not included), as views except for the ends of texts.

        ``starts()`` saves time where a piece is cut into many.
        """
        starts = self.starts() if starts is None else starts
        start, end = int(starts[first]), int(starts[last])
        return Rows(
            self.keys[start:end],
            self.counts[first:last],
            None if self.values is None else self.values[start:end],
            self.dense[first:last],
            self.labels[first:last],
            None if self.ids is None else texts_part(self.ids, first, last),
            tuple(texts_part(texts, first, last) for texts in self.kept),
        )


def texts_part(texts: Ids, first: int, last: int) -> Ids:
    """Texts ``first`` to ``last`` (not included), their bytes as a view."""
    text, ends = texts
    start, end = (int(ends[row - 1]) if row else 0 for row in (first, last))
    return text[start:end], ends[first:last] - start


def joined(parts: Sequence[Rows]) -> Rows:
    """One piece of rows out of several of one schema, which may have grown from part to part."""
    if len(parts) == 1:
        return parts[0]
    values = None
    if any(part.values is not None for part in parts):
        values = np.concatenate([_values(part) for part in parts])
    ids = None
    if parts[0].ids is not None:
        ids = texts_joined([part.ids for part in parts if part.ids is not None])
    slots = max(part.counts.shape[1] for part in parts)
    return Rows(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([widened(part.counts, slots) for part in parts]),
        values,
        np.concatenate([part.dense for part in parts]),
        np.concatenate([part.labels for part in parts]),
        ids,
        tuple(map(texts_joined, zip(*(part.kept for part in parts), strict=True))),
    )


def texts_joined(parts: Sequence[Ids]) -> Ids:
    """Texts of several pieces, one behind the other."""
    texts, ends = zip(*parts, strict=True)
    shifts = np.cumsum([0, *map(len, texts)])
    moved = [end + shift for end, shift in zip(ends, shifts[:-1], strict=True)]
    return np.concatenate(texts), np.concatenate(moved)


def widened(counts: np.ndarray, slots: int) -> np.ndarray:
    """Counts with a zero for each slot that they lack."""
    lacking = slots - counts.shape[1]
    return np.pad(counts, ((0, 0), (0, lacking))) if lacking > 0 else counts


def _values(rows: Rows) -> np.ndarray:
    return np.ones(len(rows.keys), np.float32) if rows.values is None else rows.values
