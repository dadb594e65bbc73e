"""Minibatches of a block and their arrays, for tests that need no more."""

from typing import NamedTuple

import numpy as np

from ctrps.data.batches import BlockBatches
from ctrps.kernels import csr


class Taken(NamedTuple):
    """What the kernels of ``csr`` make of some rows."""

    size: int
    keys: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    indptr: np.ndarray
    index: np.ndarray
    values: np.ndarray


def minibatch(block, order, schema, bits):
    return BlockBatches(block, schema, bits).minibatch(order)


def take_rows(index, counts, values, dense, dense_at, order, keys, borders=None, marks=None):
    """The kernels of ``csr`` one after the other; dense keys have the numbers from dense_at on."""
    starts = np.empty(len(counts) + 1, np.int64)
    csr.row_starts(counts, starts)
    if marks is None:
        marks = np.zeros((len(keys) // 64 + 1, 2), np.uint64)
    if borders is None:
        borders = np.int32([0, len(keys)])
    rows = (index, starts, dense, dense_at + np.arange(dense.shape[1]), order, marks)
    count, size = csr.mark_rows(*rows)
    cells = np.zeros(count, np.uint64)
    indptr = np.empty(len(order) + 1, np.int64)
    index_out, values_out = np.empty(size, np.int32), np.empty(size, np.float32)
    nnz = csr.take_rows(*rows, values, cells, indptr, index_out, values_out)
    assert nnz == indptr[-1]
    keys_out, counts_out = np.empty(count, np.uint64), np.empty(count, np.int32)
    starts_out = np.empty_like(borders)
    csr.take_keys(keys, borders, marks, cells, keys_out, starts_out, counts_out)
    csr_arrays = (indptr, index_out[:nnz], values_out[:nnz])
    return Taken(size, keys_out, starts_out, counts_out, *csr_arrays)
