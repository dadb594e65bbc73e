"""Columns kept beside rows: the values by which rows are grouped and sliced.

A value is told apart by a 64-bit hash and has a text for people. It comes from a column of a
table, from the id of a row, or, in shards and other rows of keys, from the keys of a slot.

Which columns are asked for, and what is done with groups, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from ctrps.data.names import SUFFIX, Names, read_names
from ctrps.data.rows import Ids
from ctrps.data.shards import Block
from ctrps.kernels.csr import row_starts
from ctrps.kernels.fields import keys_of_texts

NOTHING = np.uint64(0)
"""The hash of an empty text, and of no key."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One column of some rows.

    Attributes
    ----------
    hashes : uint64[rows]
        Equal for equal values; ``NOTHING`` where there is no value.
    text_of
        The text of the value of a row, counted from ``first``.
    first : int
    """

    hashes: np.ndarray
    text_of: Callable[[int], str]
    first: int = 0

    def part(self, first: int, last: int) -> Kept:
        """Rows ``first`` to ``last`` (not included)."""
        return replace(self, hashes=self.hashes[first:last], first=self.first + first)

    def text(self, row: int) -> str:
        return self.text_of(self.first + row)

    def texts(self) -> list[str]:
        return [self.text(row) for row in range(len(self.hashes))]


def kept_texts(texts: Ids) -> Kept:
    """A column of texts; bytes that are no UTF-8 become surrogate escapes.

    Examples
    --------
    >>> data = np.frombuffer(bytearray(b"u1u22u1"), np.uint8)
    >>> column = kept_texts((data, np.int64([2, 5, 5, 7])))
    >>> column.texts(), bool(column.hashes[0] == column.hashes[3]), int(column.hashes[2])
    (['u1', 'u22', '', 'u1'], True, 0)
    """
    data, ends = texts
    hashes = np.empty(len(ends), np.uint64)
    keys_of_texts(data, ends, np.zeros(len(ends), np.uint64), hashes)
    starts = ends - np.diff(ends, prepend=0)
    hashes[starts == ends] = NOTHING

    def text_of(row: int) -> str:
        return data[starts[row] : ends[row]].tobytes().decode("utf-8", "surrogateescape")

    return Kept(hashes, text_of)


def kept_slot(block: Block, slot: int, folder: Path) -> Kept:
    """The keys of a slot of a block; of several keys in a row, their order does not count.

    Their text comes from the files of names in ``folder``, or is the key's number.
    """
    starts = np.empty(block.rows + 1, np.int64)
    row_starts(block.counts, starts)
    begin = starts[:-1] + block.counts[:, :slot].sum(axis=1, dtype=np.int64)
    count = block.counts[:, slot].astype(np.int64)
    hashes = np.zeros(block.rows, np.uint64)
    for number in range(int(count.max(initial=0))):
        rows = count > number
        hashes[rows] += block.keys[block.index[begin[rows] + number]]

    def text_of(row: int) -> str:
        keys = np.sort(block.keys[block.index[begin[row] : begin[row] + count[row]]])
        names = zip(keys.tolist(), _names(folder).of(keys), strict=True)
        return " ".join(name.partition("=")[2] if name else f"key {key}" for key, name in names)

    return Kept(hashes, text_of)


@cache
def _names(folder: Path) -> Names:
    """The names of keys in a folder, which may have none."""
    if any(folder.glob(f"*{SUFFIX}")):
        return read_names([folder])
    return Names(np.empty(0, np.uint64), np.empty(0, np.int64), [], 0, 0, 0, 0, True)


@dataclass(frozen=True, slots=True)
class Factor:
    """A column of all rows.

    Attributes
    ----------
    numbers : int64[rows]
        Of the value, from 0; -1 where there is none.
    names : list of str
        Text of each value; empty if texts were not asked for.
    """

    numbers: np.ndarray
    names: list[str]

    @property
    def values(self) -> int:
        """Distinct values."""
        return int(self.numbers.max(initial=-1)) + 1


class FactorMaker:
    """Puts the parts of a column together.

    Parameters
    ----------
    named
        Keep the text of each value, which takes memory where there are many.

    Examples
    --------
    >>> made = FactorMaker(named=True)
    >>> data = np.frombuffer(bytearray(b"baab"), np.uint8)
    >>> made.add(kept_texts((data, np.int64([1, 2, 2, 3, 4]))))
    >>> factor = made.made()
    >>> [factor.names[n] if n >= 0 else None for n in factor.numbers]
    ['b', 'a', None, 'a', 'b']
    """

    def __init__(self, named: bool):
        self._named = named
        self._hashes: list[np.ndarray] = []
        self._texts: dict[int, str] = {}

    def add(self, column: Kept) -> None:
        """Add the next rows."""
        self._hashes.append(column.hashes)
        if self._named:
            found, rows = np.unique(column.hashes, return_index=True)
            for value, row in zip(found.tolist(), rows.tolist(), strict=True):
                if value not in self._texts:
                    self._texts[value] = column.text(row)

    def made(self) -> Factor:
        """The column of all rows so far."""
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        found, numbers = np.unique(hashes, return_inverse=True)
        numbers = numbers.astype(np.int64).reshape(-1)
        if len(found) and found[0] == NOTHING:
            numbers, found = numbers - 1, found[1:]
        names = [self._texts[value] for value in found.tolist()] if self._named else []
        return Factor(numbers, names)
