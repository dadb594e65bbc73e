"""Minibatches out of blocks: the rows of a batch over their own distinct keys.

Which rows make a batch, and in which order batches come, is decided elsewhere
(``ctrps.ps``); what is done with them, too.
"""

from __future__ import annotations

import numpy as np

from ctrps.data.rows import Schema
from ctrps.data.shards import Block
from ctrps.kernels.csr import dedup_local, row_counts, row_starts, rows_size, take_rows
from ctrps.kernels.keys import grouped
from ctrps.models import Minibatch

_NO_VALUES = np.zeros(0, np.float32)


class BlockBatches:
    """Makes minibatches of the rows of one block.

    Holds what can be used again from batch to batch, so it serves one thread.
    A minibatch's own arrays are new each time and never touched again.

    Parameters
    ----------
    block
        Its arrays fit each other (``Block.check``).
    schema
    bits : int, 0..8
        Logarithm of the number of partitions.
    """

    def __init__(self, block: Block, schema: Schema, bits: int):
        k = len(block.keys)
        self.block = block
        self._bits = bits
        self._mean = schema.weights == "mean"
        self._dense_at = k - len(schema.dense)
        self._values = _NO_VALUES if block.values is None else block.values
        self._starts = np.empty(block.rows + 1, np.int64)
        row_starts(block.counts, self._starts)
        self._place = np.empty(k, np.int64)
        self._seen = np.full(k, -1, np.int32)
        self._unique = np.empty(k, np.int32)
        self._order = np.empty(k, np.int64)
        self._rank = np.empty(k, np.int32)
        self._stamp = np.empty(k, np.int32)
        self._entries = np.empty(0, np.int32)
        self._local = np.empty(0, np.int32)

    def minibatch(self, order: np.ndarray) -> Minibatch:
        """The rows ``order`` of the block, int64[rows], in this order; see ``Minibatch``.

        A key that a row repeats is one entry with the sum of its values.
        Dense numbers that are 0 are left out.
        """
        order = np.ascontiguousarray(order, np.int64)
        if len(order) and not 0 <= order.min() <= order.max() < self.block.rows:
            raise IndexError(f"a block of {self.block.rows} rows has no such row")
        indptr, entries, values = self._take(order)
        local = self._local[: len(entries)]
        count = dedup_local(entries, self._seen, self._unique, local)
        keys = self.block.keys[self._unique[:count]]
        starts = np.empty((1 << self._bits) + 1, np.int32)
        by_partition = self._order[:count]
        grouped(keys, self._bits, by_partition, starts)
        rank = self._rank[:count]
        rank[by_partition] = np.arange(count, dtype=np.int32)
        index = rank[local]
        counts = np.empty(count, np.int32)
        row_counts(indptr, index, self._stamp[:count], counts)
        labels = self.block.labels[order]
        return Minibatch(keys[by_partition], starts, counts, indptr, index, values, labels)

    def _take(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """indptr, the block's numbers (in scratch) and values of the rows."""
        block = self.block
        size = rows_size(self._starts, block.dense, order)
        if len(self._entries) < size:
            self._entries = np.empty(size, np.int32)
            self._local = np.empty(size, np.int32)
        indptr = np.empty(len(order) + 1, np.int64)
        values = np.empty(size, np.float32)
        nnz = take_rows(
            block.index,
            block.counts,
            self._starts,
            self._values,
            block.dense,
            self._dense_at,
            order,
            self._mean,
            self._place,
            indptr,
            self._entries,
            values,
        )
        return indptr, self._entries[:nnz], values[:nnz]
