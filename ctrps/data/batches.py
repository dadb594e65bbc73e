"""Minibatches out of blocks: the rows of a batch over their own distinct keys.

Which rows make a batch, and in which order batches come, is decided elsewhere
(``ctrps.ps``); what is done with them, too.
"""

from __future__ import annotations

import functools

import numpy as np

from ctrps.data.rows import Schema
from ctrps.data.shards import Block
from ctrps.kernels import csr
from ctrps.kernels.keys import grouped
from ctrps.models import Minibatch

_ONES = np.zeros(0, np.float32)

_KEPT_BYTES = 16 << 20


@functools.cache
def keep_memory() -> None:
    """Have the process keep the memory of large arrays that it frees, for the next ones.

    The C library of Linux gives it back to the system otherwise, array by array, and to get it
    again, page by page, takes longer than to make a minibatch. It stops doing so for arrays up to
    the size of the largest one that it saw freed (mallopt(3), M_MMAP_THRESHOLD).
    """
    np.empty(_KEPT_BYTES, np.uint8)


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
        keep_memory()
        self.block = block
        self._values = _values(block, schema)
        self._starts = np.empty(block.rows + 1, np.int64)
        csr.row_starts(block.counts, self._starts)
        self._borders = np.empty((1 << bits) + 1, np.int32)
        self._keys, self._index, self._dense_at = self._grouped(bits, len(schema.dense))
        self._marks = np.zeros((len(block.keys) // 64 + 1, 2), np.uint64)

    def minibatch(self, order: np.ndarray) -> Minibatch:
        """The rows ``order`` of the block, int64[rows], in this order; see ``Minibatch``.

        A key that a row repeats is one entry with the sum of its values.
        Dense numbers that are 0 are left out.
        """
        order = np.ascontiguousarray(order, np.int64)
        block, marks = self.block, self._marks
        rows = (self._index, self._starts, block.dense, self._dense_at, order, marks)
        count, size = csr.mark_rows(*rows)
        if count < 0:
            raise IndexError(f"a block of {block.rows} rows has no row {size}")
        indptr = np.empty(len(order) + 1, np.int64)
        index, values = np.empty(size, np.int32), np.empty(size, np.float32)
        cells = np.zeros(count, np.uint64)
        nnz = csr.take_rows(*rows, self._values, cells, indptr, index, values)
        keys, counts = np.empty(count, np.uint64), np.empty(count, np.int32)
        starts = np.empty_like(self._borders)
        csr.take_keys(self._keys, self._borders, marks, cells, keys, starts, counts)
        labels = block.labels[order]
        return Minibatch(keys, starts, counts, indptr, index[:nnz], values[:nnz], labels)

    def _grouped(self, bits: int, dense: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Keys by partition, entries as numbers among them, and the numbers of the dense keys.

        A block is stored so; but its dense keys stand last, and those of old shards in no order.
        """
        keys, index = self.block.keys, self.block.index
        if dense == 0 and csr.partition_starts(keys, bits, self._borders):
            return keys, index, np.empty(0, index.dtype)
        order = np.empty(len(keys), np.int64)
        grouped(keys, bits, order, self._borders)
        number = np.empty(len(keys), index.dtype)
        number[order] = np.arange(len(keys), dtype=index.dtype)
        return keys[order], number[index], number[len(keys) - dense :]


def _values(block: Block, schema: Schema) -> np.ndarray:
    """What each entry weighs, float32[nnz]; empty where all weigh 1."""
    if schema.weights == "mean" and block.counts.max(initial=0) > 1:
        values = np.empty(len(block.index), np.float32)
        csr.slot_weights(block.counts, values)
        return values
    return _ONES if block.values is None else block.values
