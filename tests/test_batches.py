"""Minibatches of blocks against their twin."""

import dataclasses

import numpy as np
import pytest

from ctrps.data.batches import BlockBatches
from ctrps.data.shards import Block, Rows, Schema, Shard, ShardWriter
from ctrps.errors import DataError
from ctrps.kernels.keys import dense_key
from tests import naive, naive_data
from tests.batching import minibatch


def make_rows(seed, rows, schema, values=False):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, (rows, len(schema.slots))).astype(np.int32)
    nnz = int(counts.sum())
    keys = rng.integers(0, 2**63, 30).astype(np.uint64)[rng.integers(0, 30, nnz)]
    weights = rng.normal(size=nnz).astype(np.float32) if values else None
    dense = rng.choice(np.float32([0, 1.5, -2]), (rows, len(schema.dense)))
    return Rows(keys, counts, weights, dense, rng.choice(np.float32([0, 1]), rows))


def check(batch, rows, order, schema, bits):
    expected, holding = naive_data.minibatch(rows, order, schema.weights)
    for row, entries in zip(order, expected, strict=True):
        for name, number in zip(schema.dense, rows.dense[row], strict=True):
            if number:
                entries[dense_key(name)] = number
                holding[dense_key(name)] = holding.get(dense_key(name), 0) + 1
    for r, entries in enumerate(expected):
        part = slice(batch.indptr[r], batch.indptr[r + 1])
        found = batch.keys[batch.index[part]].tolist()
        assert dict(zip(found, batch.values[part], strict=True)) == entries
        assert len(found) == len(entries)
    assert dict(zip(batch.keys.tolist(), batch.counts.tolist(), strict=True)) == holding
    np.testing.assert_array_equal(batch.labels, rows.labels[order])
    partitions = naive.partition_of(batch.keys, bits)
    assert partitions == sorted(partitions)
    for p in range(1 << bits):
        assert partitions[batch.starts[p] : batch.starts[p + 1]].count(p) == partitions.count(p)
    assert batch.starts[-1] == len(batch.keys)


@pytest.mark.parametrize("bits", [0, 3])
@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (Schema(("a", "b"), ("x", "y")), False),
        (Schema(("a", "b")), False),
        (Schema((), ("x",)), False),
        (Schema(("",), (), "value"), True),
        (Schema(("",), (), "value"), False),
    ],
)
def test_batches_hold_the_rows_they_name(schema, values, bits):
    rows = make_rows(1, 40, schema, values)
    block = Block.from_rows(rows, schema)
    batches = BlockBatches(block, schema, bits)
    rng = np.random.default_rng(2)
    for order in (np.arange(40), rng.permutation(40)[:7], np.int64([3, 3]), np.int64([])):
        check(batches.minibatch(order), rows, order, schema, bits)


def test_a_batch_is_not_touched_by_the_next_one():
    schema = Schema(("a", "b"), ("x",))
    block = Block.from_rows(make_rows(1, 40, schema), schema)
    batches = BlockBatches(block, schema, 2)
    first = batches.minibatch(np.arange(20))
    kept = [getattr(first, name).copy() for name in first.__slots__]
    batches.minibatch(np.arange(20, 40))
    for name, before in zip(first.__slots__, kept, strict=True):
        np.testing.assert_array_equal(getattr(first, name), before)


@pytest.mark.parametrize("dense", [(), ("x",)])
def test_blocks_of_older_shards_give_the_same_rows(dense):
    """Their keys stand in the order of first touch."""
    schema = Schema(("a", "b"), dense)
    rows = make_rows(1, 40, schema)
    block = Block.from_rows(rows, schema)
    order = np.append(np.random.default_rng(5).permutation(30), np.arange(30, len(block.keys)))
    mixed = np.argsort(order).astype(block.index.dtype)[block.index]
    old = dataclasses.replace(block, keys=block.keys[order], index=mixed)
    batch = minibatch(old, np.arange(20), schema, 3)
    check(batch, rows, np.arange(20), schema, 3)


def test_keys_of_a_partition_come_as_in_the_block():
    """Which is by the smallest partitions, and in these in the order of first touch."""
    schema = Schema(("a",))
    pool = np.random.default_rng(3).integers(0, 2**63, 3000).astype(np.uint64)
    keys = pool[np.argsort(naive.partition_of(pool, 8), kind="stable")]
    rows = Rows(
        pool,
        np.ones((3000, 1), np.int32),
        None,
        np.zeros((3000, 0), np.float32),
        np.zeros(3000, np.float32),
    )
    block = Block.from_rows(rows, schema)
    assert block.keys.tolist() == keys.tolist()
    for bits in (0, 4, 8):
        batch = minibatch(block, np.arange(3000)[::-1], schema, bits)
        assert batch.keys.tolist() == keys.tolist()


def test_a_row_that_is_not_there_is_an_error():
    schema = Schema(("a",))
    block = Block.from_rows(make_rows(1, 3, schema), schema)
    for order in ([3], [-1]):
        with pytest.raises(IndexError):
            minibatch(block, np.int64(order), schema, 0)


def test_a_damaged_block_is_a_data_error(tmp_path):
    schema = Schema(("a",))
    path = tmp_path / "a.shard"
    with ShardWriter(path, schema, 10) as writer:
        writer.add(make_rows(4, 10, schema))
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="record 0"):
        Shard(path).block(0)
