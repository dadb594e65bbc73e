"""How often each key occurs in training rows, to leave the rare ones out.

Counting is per occurrence: an element that stands twice in a list counts twice. Keys of features
that share a prefix count together, because they share their weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ctrps.data.shards import KeyNumbers
from ctrps.kernels.csr import count_numbers
from ctrps.kernels.keys import index_build, index_capacity, index_find, index_insert, index_new

Counts = tuple[np.ndarray, np.ndarray]
"""Distinct keys uint64[k], in any order, and how often each occurs, int64[k]."""


class KeyTable:
    """Distinct keys in the order of their first touch, and numbers that go with each.

    Attributes
    ----------
    keys : uint64[k]
    """

    def __init__(self) -> None:
        self._index = index_new(1 << 12)
        self._keys = np.empty(0, np.uint64)
        self._used = 0

    @property
    def keys(self) -> np.ndarray:
        return self._keys[: self._used]

    def rows(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each key in ``keys``, int64[n], and which of these keys are new there."""
        room = self._used + len(keys)
        self._keys = enlarged(self._keys, self._used, room)
        if index_capacity(room) > len(self._index):
            self._index = index_new(index_capacity(room))
            index_build(self._index, self.keys)
        at, new = np.empty((2, len(keys)), np.int64)
        used, count = index_insert(self._index, keys, self._used, at, new)
        self._keys[self._used : used] = keys[new[:count]]
        self._used = used
        return at, new[:count]

    def reduce(self, kept: np.ndarray) -> None:
        """Forget all keys but those at some ascending places, which take these places' order."""
        self._keys[: len(kept)] = self._keys[kept]
        self._used = len(kept)
        self._index[:] = 0
        index_build(self._index, self.keys)


def enlarged(array: np.ndarray, used: int, room: int) -> np.ndarray:
    """``array`` with its first ``used`` entries, and room for at least ``room``."""
    if room <= len(array):
        return array
    larger = np.zeros(2 * room, array.dtype)
    larger[:used] = array[:used]
    return larger


class KeyCounts:
    """Counts the keys of rows as they come.

    Examples
    --------
    >>> counts = KeyCounts()
    >>> counts.add(np.uint64([9, 7, 9]))
    >>> counts.add(np.uint64([7, 7]))
    >>> counts.total()
    (array([9, 7], dtype=uint64), array([2, 3]))
    """

    def __init__(self) -> None:
        self._numbers = KeyNumbers()
        self._table = KeyTable()
        self._counts = np.empty(0, np.int64)

    def add(self, keys: np.ndarray) -> None:
        """Count some more keys, uint64[n]."""
        distinct, local = self._numbers.local(keys)
        counts = np.zeros(len(distinct), np.int64)
        count_numbers(local, counts)
        self.include(distinct, counts)

    def include(self, keys: np.ndarray, counts: np.ndarray) -> None:
        """Count distinct keys, uint64[k], as often as ``counts``, int64[k], says."""
        before = len(self._table.keys)
        at, _ = self._table.rows(keys)
        self._counts = enlarged(self._counts, before, len(self._table.keys))
        self._counts[at] += counts

    def total(self) -> Counts:
        """Everything counted so far."""
        return self._table.keys, self._counts[: len(self._table.keys)]


def merged(parts: Iterable[Counts]) -> Counts:
    """The sum of counts."""
    found = KeyCounts()
    for keys, counts in parts:
        found.include(keys, counts)
    return found.total()


class KnownKeys:
    """The keys that rows may keep.

    Parameters
    ----------
    keys : uint64[k], distinct
    """

    def __init__(self, keys: np.ndarray):
        self._index = index_new(index_capacity(max(len(keys), 1)))
        index_build(self._index, keys)

    def has(self, keys: np.ndarray) -> np.ndarray:
        """Which of some keys are known: bool[n]."""
        found = np.empty(len(keys), np.int64)
        index_find(self._index, keys, found)
        return found >= 0
