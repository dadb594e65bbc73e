"""The rows of one table: key -> weights and optimiser state.

A table is plain memory. It has no lock, opens no file and knows no peer. Rows are made by a
push, never by a pull: most keys of an evaluation day were not trained on, and reading them must
not grow the model.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ctrps.kernels import csr
from ctrps.kernels import keys as key_kernels
from ctrps.models import TableSpec


class RowSet(NamedTuple):
    """Rows as they are saved: ``keys`` uint64[n] ascending, ``rows`` float32[n, width]."""

    keys: np.ndarray
    rows: np.ndarray


class Table:
    """The rows that one process holds of one table.

    Parameters
    ----------
    spec
        Layout and optimisers.
    seed
        Start of new rows, together with their key.
    capacity
        Rows to allocate at first. Growth doubles, so this only saves copies.

    Attributes
    ----------
    used : int
        Rows held.
    """

    def __init__(self, spec: TableSpec, seed: int, capacity: int = 1024):
        self.spec = spec
        self.seed = seed
        self.used = 0
        self._keys = np.empty(capacity, np.uint64)
        self._rows = np.zeros((capacity, spec.width), np.float32)
        self._index = key_kernels.index_new(key_kernels.index_capacity(capacity))

    @property
    def keys(self) -> np.ndarray:
        """uint64[used], in order of creation. A view, valid until the next ``insert``."""
        return self._keys[: self.used]

    @property
    def rows(self) -> np.ndarray:
        """float32[used, width]. A view, valid until the next ``reserve`` that finds no room."""
        return self._rows[: self.used]

    @property
    def size_bytes(self) -> int:
        """Memory of keys, rows and index."""
        return self._keys.nbytes + self._rows.nbytes + self._index.nbytes

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Row numbers int64[k] of ``keys``, -1 where absent."""
        where = np.empty(len(keys), np.int64)
        key_kernels.index_find(self._index, keys, where)
        return where

    def weights(self, keys: np.ndarray, *, absent_initial: bool) -> np.ndarray:
        """The first ``dim`` columns of the rows of ``keys``, float32[k, dim].

        An absent key reads as the row it would start as (``absent_initial``, for training) or as
        zero (for evaluation).
        """
        where = self.find(keys)
        out = np.zeros((len(keys), self.spec.dim), np.float32)
        if absent_initial:
            self.spec.initial(out, where, keys, self.seed)
        csr.gather(self._rows, where, out)
        return out

    def step(
        self, keys: np.ndarray, gradient: np.ndarray, counts: np.ndarray, step_rows: int
    ) -> np.ndarray:
        """Apply one optimiser step to distinct ``keys``, making the rows that are not there.

        Returns
        -------
        before : float32[k, dim]
            Their weights before the step.
        """
        where = self.insert(keys)
        before = np.empty((len(keys), self.spec.dim), np.float32)
        csr.gather(self._rows, where, before)
        self.spec.step(self._rows, where, gradient, counts, step_rows)
        return before

    def step_stale(
        self,
        keys: np.ndarray,
        gradient: np.ndarray,
        counts: np.ndarray,
        step_rows: int,
        staleness: int,
    ) -> None:
        """As ``step``, for a gradient of weights that others have changed meanwhile."""
        where = self.insert(keys)
        self.spec.step(self._rows, where, gradient, counts, step_rows, staleness)

    def insert(self, keys: np.ndarray) -> np.ndarray:
        """Row numbers int64[k] of ``keys``, new rows made at their initial values."""
        self.reserve(len(keys))
        where = np.empty(len(keys), np.int64)
        new = np.empty(len(keys), np.int64)
        first = self.used
        self.used, count = key_kernels.index_insert(self._index, keys, first, where, new)
        fresh = keys[new[:count]]
        self._keys[first : self.used] = fresh
        self.spec.initialise(self._rows, first, fresh, self.seed)
        return where

    def room(self, more: int) -> bool:
        """Whether ``more`` keys can be inserted without moving the rows."""
        return self.used + more <= len(self._keys)

    def reserve(self, more: int) -> None:
        """Make room for ``more`` keys, moving all rows if there is none."""
        if self.room(more):
            return
        capacity = len(self._keys)
        while capacity < self.used + more:
            capacity *= 2
        keys, rows = self._keys, self._rows
        self._keys = np.empty(capacity, np.uint64)
        self._keys[: self.used] = keys[: self.used]
        self._rows = np.zeros((capacity, self.spec.width), np.float32)
        self._rows[: self.used] = rows[: self.used]
        self._index = key_kernels.index_new(key_kernels.index_capacity(capacity))
        key_kernels.index_build(self._index, self.keys)

    def snapshot(self, bits: int) -> list[RowSet]:
        """A copy of all rows, one set per partition, each in key order."""
        keys = self.keys
        partition = np.empty(len(keys), np.int32)
        key_kernels.partition_of(keys, bits, partition)
        order = np.lexsort((keys, partition))
        borders = np.searchsorted(partition[order], np.arange((1 << bits) + 1))
        sets = [order[a:b] for a, b in pairwise(borders)]
        return [RowSet(keys[chosen], self._rows[chosen]) for chosen in sets]

    def load(self, saved: RowSet) -> None:
        """Add rows of a snapshot whose keys are not held yet."""
        where = self.insert(saved.keys)
        self._rows[where] = saved.rows
