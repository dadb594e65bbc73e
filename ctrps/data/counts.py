"""How often each key occurs in training rows, to leave the rare ones out.

Counting is per occurrence: an element that stands twice in a list counts twice. Keys of features
that share a prefix count together, because they share their weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrps.data.shards import KeyNumbers, Rows
from ctrps.kernels.keys import index_build, index_capacity, index_find, index_new
from ctrps.kernels.program import drop_keys

Counts = tuple[np.ndarray, np.ndarray]
"""Distinct keys uint64[k], ascending, and how often each occurs, int64[k]."""

WAITING = 1 << 20
"""Keys that may wait before they are merged; sorting them in one go is what makes it cheap."""

NO_KEYS = np.empty(0, np.uint64)


class KeyCounts:
    """Counts the keys of rows as they come.

    Examples
    --------
    >>> counts = KeyCounts()
    >>> counts.add(np.uint64([9, 7, 9]))
    >>> counts.add(np.uint64([7, 7]))
    >>> counts.total()
    (array([7, 9], dtype=uint64), array([3, 2]))
    """

    def __init__(self) -> None:
        self._numbers = KeyNumbers()
        self._parts: list[Counts] = []
        self._waiting = 0

    def add(self, keys: np.ndarray) -> None:
        """Count some more keys, uint64[n]."""
        distinct, index = self._numbers.number(keys, NO_KEYS)
        self._parts.append((distinct, np.bincount(index, minlength=len(distinct))))
        self._waiting += len(distinct)
        if self._waiting > max(WAITING, len(self._parts[0][0])):
            self.total()

    def total(self) -> Counts:
        """Everything counted so far."""
        self._parts = [merged(self._parts)]
        self._waiting = 0
        return self._parts[0]


def merged(parts: Sequence[Counts]) -> Counts:
    """The sum of counts whose keys need not be sorted."""
    if not parts:
        return NO_KEYS, np.empty(0, np.int64)
    keys, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(keys)
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
    total = np.add.reduceat(counts[order], first) if len(first) else counts
    return keys[first], total.astype(np.int64)


class KnownKeys:
    """Leaves out of rows every key that is not among the known ones.

    Parameters
    ----------
    keys : uint64[k], distinct
    """

    def __init__(self, keys: np.ndarray):
        self._index = index_new(index_capacity(max(len(keys), 1)))
        index_build(self._index, keys)

    def only(self, rows: Rows) -> Rows:
        """The rows with their known keys; a slot without any is empty."""
        found = np.empty(len(rows.keys), np.int64)
        index_find(self._index, rows.keys, found)
        keys, counts = rows.keys.copy(), rows.counts.copy()
        left = drop_keys(keys, counts, found >= 0)
        return Rows(keys[:left], counts, None, rows.dense, rows.labels, rows.ids)
