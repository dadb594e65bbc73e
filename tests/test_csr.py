"""Dedup, batches out of blocks, and sums of pushes."""

import numpy as np
import pytest

from ctrps.kernels import csr, keys
from tests import naive
from tests.batching import take_rows


def random_block(seed, *, slots=4, dense=2, rows=30, block_keys=25):
    """Arrays of a block in which rows repeat keys, slots are empty and numbers are 0."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, (rows, slots)).astype(np.uint8)
    nnz = int(counts.sum())
    index = rng.integers(0, block_keys - dense, nnz).astype(np.uint16)
    values = rng.normal(size=nnz).astype(np.float32)
    numbers = rng.choice([0, 1.5, -2], (rows, dense)).astype(np.float32)
    return index, counts, values, numbers, block_keys - dense


@pytest.mark.parametrize("seed", range(4))
def test_dedup_keys(seed):
    rng = np.random.default_rng(seed)
    pool = np.append(rng.integers(0, 2**64, 120, dtype=np.uint64), np.uint64([0, 2**64 - 1]))
    sample = rng.choice(pool, 100 * seed)
    scratch = np.zeros(keys.index_capacity(len(pool)), np.int32)
    unique, local = np.empty_like(sample), np.empty(len(sample), np.int32)
    # Twice, because the first call must leave the scratch as it found it.
    for _ in range(2):
        n = csr.dedup_keys(sample, scratch, unique, local)
        assert (unique[:n].tolist(), local.tolist()) == naive.dedup_keys(sample)
        assert not scratch.any()


def test_take_numbers():
    rng = np.random.default_rng(3)
    local = rng.integers(0, 40, 300).astype(np.int32)
    for dtype in (np.uint16, np.uint32):
        numbers, out = rng.permutation(40).astype(dtype), np.empty(300, dtype)
        csr.take_numbers(numbers, local, out)
        assert out.tolist() == naive.take_numbers(numbers.tolist(), local.tolist())


@pytest.mark.parametrize("dtypes", [(np.uint16, np.uint16), (np.uint32, np.uint16)])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_drop_numbers(dtypes, share):
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 4, (20, 3)).astype(np.int32)
    index = rng.integers(0, 30, int(counts.sum())).astype(dtypes[0])
    kept = rng.random(30) < share
    numbers = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    left, wanted = naive.drop_numbers(index.tolist(), counts.tolist(), numbers.tolist())
    out = np.empty(len(index), dtypes[1])
    n = csr.drop_numbers(index, counts, numbers, out)
    assert out[:n].tolist() == left and counts.tolist() == wanted


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_row_starts_do_not_overflow(dtype):
    counts = np.full((50, 7), 255, dtype)
    starts = np.empty(51, np.int64)
    csr.row_starts(counts, starts)
    assert starts.tolist() == naive.row_starts(counts)


@pytest.mark.parametrize("bits", [0, 3, 8])
def test_partition_starts(bits):
    pool = np.random.default_rng(bits).integers(0, 2**63, 40).astype(np.uint64)
    order, borders = np.empty(40, np.int64), np.empty((1 << bits) + 1, np.int32)
    keys.grouped(pool, bits, order, borders)
    starts = np.empty_like(borders)
    for sample in (pool[order], pool[order][::-1].copy(), pool[:0]):
        expected = naive.partition_starts(sample, bits)
        assert csr.partition_starts(sample, bits, starts) == (expected is not None)
        assert expected is None or starts.tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_slot_weights(dtype):
    counts = np.random.default_rng(1).integers(0, 5, (20, 3)).astype(dtype)
    values = np.empty(counts.sum(), np.float32)
    csr.slot_weights(counts, values)
    assert values.tolist() == naive.slot_weights(counts)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32])
@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_take_rows(seed, explicit, dtype):
    index, counts, values, dense, dense_at = random_block(seed)
    block = (index.astype(dtype), counts, values if explicit else values[:0], dense, dense_at)
    rng = np.random.default_rng(seed + 100)
    block_keys = rng.permutation(100)[: dense_at + 2].astype(np.uint64)
    borders = np.int32([0, 4, 4, dense_at + 2])
    marks = np.zeros((1, 2), np.uint64)
    for order in (np.arange(30), rng.permutation(30)[:7], np.int64([3, 3]), np.int64([])):
        taken = take_rows(*block, order, block_keys, borders, marks)
        expected = naive.take_rows(*block, order, False)
        found = naive.rows_of(taken.indptr, taken.keys[taken.index], taken.values)
        assert found == [[(int(block_keys[n]), x) for n, x in row.items()] for row in expected]
        numbers, size = naive.mark_rows(*block, order, False)
        assert (len(taken.keys), taken.size) == (len(numbers), size)
        keys_, starts, held = naive.take_keys(block_keys, borders, expected)
        assert taken.keys.tolist() == keys_
        assert taken.starts.tolist() == starts
        assert taken.counts.tolist() == held
        # The next batch finds the marks as this one did.
        assert not marks.any()


def test_marks_beyond_one_word():
    index, counts = np.uint16([700, 63, 64, 0, 700]), np.uint8([[3], [2]])
    dense = np.empty((2, 0), np.float32)
    pool, borders = np.arange(701, dtype=np.uint64) * np.uint64(3), np.int32([0, 64, 701])
    marks = np.zeros((11, 2), np.uint64)
    taken = take_rows(
        index, counts, np.empty(0, np.float32), dense, 701, np.int64([1, 0]), pool, borders, marks
    )
    assert taken.keys.tolist() == [0, 189, 192, 2100]
    assert taken.starts.tolist() == [0, 2, 4]
    assert taken.counts.tolist() == [1, 1, 1, 2]
    assert taken.index.tolist() == [0, 3, 3, 1, 2]


def test_take_rows_merges_repeats_and_keeps_explicit_zeros():
    index, counts = np.uint16([4, 2, 4, 1]), np.uint8([[4]])
    values, dense = np.float32([1.5, 1, 2, 0]), np.float32([[0, 7]])
    order, pool = np.zeros(1, np.int64), np.arange(8, dtype=np.uint64)
    taken = take_rows(index, counts, values, dense, 6, order, pool)
    found = naive.rows_of(taken.indptr, taken.keys[taken.index], taken.values)
    assert found == [[(4, 3.5), (2, 1.0), (1, 0.0), (7, 7.0)]]
    assert taken.counts.tolist() == [1, 1, 1, 1]


def test_a_row_that_is_not_there_is_not_marked():
    index, starts, dense = np.uint16([0, 1]), np.int64([0, 1, 2]), np.empty((2, 0), np.float32)
    marks = np.zeros((1, 2), np.uint64)
    for row in (2, -1):
        order = np.int64([0, row])
        assert csr.mark_rows(index, starts, dense, index[:0], order, marks) == (-1, row)
        assert not marks.any()


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
