"""Dedup, batches out of blocks, and sums of pushes."""

import numpy as np
import pytest

from ctrps.kernels import csr, keys
from tests import naive


def random_block(seed, *, slots=4, dense=2, rows=30, block_keys=25):
    """Arrays of a block in which rows repeat keys, slots are empty and numbers are 0."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, (rows, slots)).astype(np.uint8)
    nnz = int(counts.sum())
    index = rng.integers(0, block_keys - dense, nnz).astype(np.uint16)
    values = rng.normal(size=nnz).astype(np.float32)
    numbers = rng.choice([0, 1.5, -2], (rows, dense)).astype(np.float32)
    return index, counts, values, numbers, block_keys - dense


def take(index, counts, values, dense, dense_at, order, mean, place):
    starts = np.empty(len(counts) + 1, np.int64)
    csr.row_starts(counts, starts)
    size = csr.rows_size(starts, dense, order)
    indptr = np.empty(len(order) + 1, np.int64)
    index_out, values_out = np.empty(size, np.int32), np.empty(size, np.float32)
    nnz = csr.take_rows(
        index,
        counts,
        starts,
        values,
        dense,
        dense_at,
        order,
        mean,
        place,
        indptr,
        index_out,
        values_out,
    )
    return indptr, index_out[:nnz], values_out[:nnz]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32])
@pytest.mark.parametrize("seed", range(3))
def test_dedup_local(dtype, seed):
    index = np.random.default_rng(seed).integers(0, 50, 70 * seed).astype(dtype)
    seen = np.full(50, -1, np.int32)
    unique, local = np.empty(50, np.int32), np.empty(len(index), np.int32)
    n = csr.dedup_local(index, seen, unique, local)
    assert (unique[:n].tolist(), local.tolist()) == naive.dedup_local(index)
    assert (seen == -1).all()


@pytest.mark.parametrize("seed", range(4))
def test_dedup_keys(seed):
    rng = np.random.default_rng(seed)
    pool = np.append(rng.integers(0, 2**64, 120, dtype=np.uint64), np.uint64([0, 2**64 - 1]))
    sample = rng.choice(pool, 100 * seed)
    scratch = keys.index_new(keys.index_capacity(len(pool)))
    unique, local = np.empty_like(sample), np.empty(len(sample), np.int32)
    # Twice, because the first call must leave the scratch as it found it.
    for _ in range(2):
        n = csr.dedup_keys(sample, scratch, unique, local)
        assert (unique[:n].tolist(), local.tolist()) == naive.dedup_keys(sample)
        assert not scratch.any()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_row_starts_do_not_overflow(dtype):
    counts = np.full((50, 7), 255, dtype)
    starts = np.empty(51, np.int64)
    csr.row_starts(counts, starts)
    assert starts.tolist() == naive.row_starts(counts)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_take_rows(seed, mean, explicit):
    index, counts, values, dense, dense_at = random_block(seed)
    block = (index, counts, values if explicit else values[:0], dense, dense_at)
    rng = np.random.default_rng(seed + 100)
    # What an earlier batch left in the scratch must not matter.
    place = rng.integers(-5, 40, 25)
    for order in (np.arange(30), rng.permutation(30)[:7], np.int64([3, 3]), np.int64([])):
        indptr, found, weights = take(*block, order, mean, place)
        expected = naive.take_rows(*block, order, mean)
        assert [list(row.items()) for row in expected] == naive.rows_of(indptr, found, weights)
        starts = np.int64(naive.row_starts(counts))
        assert csr.rows_size(starts, dense, order) == naive.rows_size(*block, order, mean)


def test_take_rows_merges_repeats_and_keeps_explicit_zeros():
    index, counts = np.uint16([4, 2, 4, 1]), np.uint8([[4]])
    values, dense = np.float32([1.5, 1, 2, 0]), np.float32([[0, 7]])
    order, place = np.zeros(1, np.int64), np.zeros(8, np.int64)
    indptr, found, weights = take(index, counts, values, dense, 6, order, False, place)
    assert naive.rows_of(indptr, found, weights) == [[(4, 3.5), (2, 1.0), (1, 0.0), (7, 7.0)]]
    indptr, found, weights = take(index, counts, values, dense, 6, order, True, place)
    assert naive.rows_of(indptr, found, weights) == [[(4, 0.5), (2, 0.25), (1, 0.25), (7, 7.0)]]


def test_row_counts():
    indptr, index = np.int64([0, 3, 3, 5]), np.int32([0, 2, 0, 2, 1])
    stamp, counts = np.int64([0, 1, 2, 0]), np.empty(4, np.int32)
    csr.row_counts(indptr, index, stamp, counts)
    assert counts.tolist() == naive.row_counts(indptr, index, 4) == [1, 1, 2, 0]


def test_gather_leaves_absent_keys_alone():
    rows = np.arange(20, dtype=np.float32).reshape(4, 5)
    where, out = np.int64([2, -1, 0, 2]), np.full((4, 3), 9, np.float32)
    expected = naive.gather(rows, where, out.copy())
    csr.gather(rows, where, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dim", [1, 9])
@pytest.mark.parametrize("seed", range(3))
def test_fold_is_a_chain_of_float32_additions(dim, seed):
    rng = np.random.default_rng(seed)
    pushes = []
    for _ in range(5):
        where = rng.permutation(20)[: int(rng.integers(0, 20))]
        gradients = rng.normal(size=(len(where), dim)).astype(np.float32)
        pushes.append((where, gradients * np.float32(10), rng.integers(1, 9, len(where))))
    acc, acc_counts = np.full((20, dim), np.nan, np.float32), np.zeros(20, np.int32)
    for where, gradients, counts in pushes:
        csr.fold(where, gradients, counts.astype(np.int32), acc, acc_counts)
    expected = naive.fold(pushes)
    assert set(np.flatnonzero(acc_counts)) == set(expected)
    for row, (gradient, count) in expected.items():
        assert acc[row].tobytes() == gradient.tobytes()
        assert acc_counts[row] == count


def test_fold_keeps_a_negative_zero():
    acc, counts = np.zeros((1, 2), np.float32), np.zeros(1, np.int32)
    where, minus = np.zeros(1, np.int64), np.float32([[-0.0, 1]])
    csr.fold(where, minus, np.ones(1, np.int32), acc, counts)
    assert np.signbit(acc[0, 0])
    csr.fold(where, minus, np.ones(1, np.int32), acc, counts)
    assert np.signbit(acc[0, 0])
    assert acc[0, 1] == 2
    assert counts[0] == 2
