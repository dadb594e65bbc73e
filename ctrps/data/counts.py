"""Keys and numbers that go with them, in memory."""

from __future__ import annotations

import numpy as np

from ctrps.kernels.keys import index_build, index_capacity, index_insert, index_new


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
