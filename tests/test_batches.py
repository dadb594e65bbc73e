"""Minibatches of blocks against their twin."""

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


def test_keys_of_a_partition_come_in_order_of_first_touch():
    schema = Schema(("a",))
    keys = np.uint64([9, 4, 9, 2, 7, 4])
    rows = Rows(
        keys,
        np.ones((6, 1), np.int32),
        None,
        np.zeros((6, 0), np.float32),
        np.zeros(6, np.float32),
    )
    batch = minibatch(Block.from_rows(rows, schema), np.int64([5, 0, 4, 3, 1]), schema, 0)
    assert batch.keys.tolist() == [4, 9, 7, 2]
    assert batch.counts.tolist() == [2, 1, 1, 1]


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
