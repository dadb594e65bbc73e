"""Distinct texts of the values that windows list, numbered as they come and ranked at the end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ctrps.kernels.history import text_words
from ctrps.kernels.keys import index_build, index_capacity, index_insert, index_new
from ctrps.kernels.tables import copy_fields, hash_fields

Field = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A column for some rows: bytes, and int64[rows] starts and ends in them."""


class Ranked(NamedTuple):
    """Texts in their order, which is that of their bytes; text 0 is empty.

    Attributes
    ----------
    data, starts, ends : uint8[size], int64[t], int64[t]
        Text i is ``data[starts[i]:ends[i]]``.
    """

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class Texts:
    """Numbers texts: the empty one is 0, others are numbered as they appear.

    Examples
    --------
    >>> texts = Texts()
    >>> data = np.frombuffer(bytearray(b"bab"), np.uint8)
    >>> texts.codes((data, np.arange(3), np.arange(1, 4))).tolist()
    [1, 2, 1]
    >>> ranks, ranked = texts.ranked()
    >>> ranks.tolist(), ranked.data.tobytes()
    ([0, 2, 1], b'ba')
    """

    def __init__(self) -> None:
        self._index = index_new(index_capacity(1))
        self._hashes = np.empty(16, np.uint64)
        self._starts, self._ends = (np.empty(16, np.int64) for _ in range(2))
        self._data = np.empty(1 << 10, np.uint8)
        self._used = self._size = 0
        nothing = np.zeros(1, np.int64)
        self.codes((self._data, nothing, nothing))

    def __len__(self) -> int:
        return self._used

    @property
    def size_bytes(self) -> int:
        arrays = (self._index, self._hashes, self._starts, self._ends, self._data)
        return sum(array.nbytes for array in arrays)

    def codes(self, field: Field, hashes: np.ndarray | None = None) -> np.ndarray:
        """Numbers of the texts of a column; ``hashes`` are theirs, if they are known.

        Returns
        -------
        uint32[rows]
        """
        data, starts, ends = field
        if hashes is None:
            hashes = np.empty(len(starts), np.uint64)
            hash_fields(data, starts, ends, hashes)
        self._make_room(len(hashes))
        codes, new = np.empty((2, len(hashes)), np.int64)
        used, count = index_insert(self._index, hashes, self._used, codes, new)
        if count:
            self._add(data, starts[new[:count]], ends[new[:count]], hashes[new[:count]], used)
        return codes.astype(np.uint32)

    def since(self, code: int) -> np.ndarray:
        """The bytes of all texts from a number on."""
        return self._data[self._starts[code] if code < self._used else self._size : self._size]

    def text(self, code: int) -> bytes:
        return self._data[self._starts[code] : self._ends[code]].tobytes()

    def _make_room(self, count: int) -> None:
        capacity = index_capacity(self._used + count)
        if capacity > len(self._index):
            self._index = index_new(capacity)
            index_build(self._index, self._hashes[: self._used])

    def _add(
        self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, hashes: np.ndarray, used: int
    ) -> None:
        behind = self._size + np.cumsum(ends - starts)
        self._data = _with_room(self._data, int(behind[-1]))
        self._hashes = _with_room(self._hashes, used)
        self._starts, self._ends = (_with_room(a, used) for a in (self._starts, self._ends))
        place = slice(self._used, used)
        self._hashes[place], self._ends[place] = hashes, behind
        self._starts[place] = behind - (ends - starts)
        copy_fields(data, starts, ends, self._data, self._starts[place])
        self._used, self._size = used, int(behind[-1])

    def ranked(self) -> tuple[np.ndarray, Ranked]:
        """Rank of every number, int64[t], and the texts by rank."""
        starts, ends = self._starts[: self._used], self._ends[: self._used]
        order = text_order(self._data, starts, ends)
        ranks = np.empty(self._used, np.int64)
        ranks[order] = np.arange(self._used)
        return ranks, Ranked(self._data[: self._size], starts[order], ends[order])


def _with_room(array: np.ndarray, count: int) -> np.ndarray:
    if count <= len(array):
        return array
    larger = np.empty(max(count, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger


def text_order(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Order that sorts texts by their bytes; what another begins with comes before it.

    Eight bytes are compared at a time, and only of texts that are equal so far.
    """
    order = np.argsort(ends - starts, kind="stable")
    group = np.zeros(len(order), np.int64)
    tied = np.arange(len(order))
    skip = 0
    while len(tied):
        texts = order[tied]
        words = np.empty(len(tied), np.uint64)
        text_words(data, starts[texts], ends[texts], skip, words)
        by = np.lexsort((words, group[tied]))
        order[tied], words = texts[by], words[by]
        first = np.ones(len(tied), np.bool_)
        first[1:] = (words[1:] != words[:-1]) | (np.diff(group[tied]) != 0)
        group[tied] = tied[np.maximum.accumulate(np.where(first, np.arange(len(tied)), 0))]
        skip += 8
        alone = first & np.append(first[1:], True)
        longer = (ends - starts)[order[tied]] > skip
        same = np.maximum.reduceat(longer, np.flatnonzero(first))[np.cumsum(first) - 1]
        tied = tied[~alone & same]
    return order
