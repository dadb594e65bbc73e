"""Shards: what is written comes back, and what is damaged is refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.codec import FrameFileWriter
from ctrps.data.shards import Block, Rows, Schema, Shard, ShardWriter, joined
from ctrps.errors import DataError
from ctrps.kernels.keys import dense_key


def make_rows(seed, rows, schema, *, ids=False, values=None, distinct=50, most=4):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most, (rows, len(schema.slots))).astype(np.int32)
    nnz = int(counts.sum())
    keys = rng.integers(0, 2**63, distinct).astype(np.uint64)[rng.integers(0, distinct, nnz)]
    texts = [b"row %d" % n if n % 3 else b"" for n in range(rows)]
    packed = np.frombuffer(b"".join(texts), np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return Rows(
        keys,
        counts,
        None if values is None else rng.choice(np.float32(values), nnz),
        rng.normal(size=(rows, len(schema.dense))).astype(np.float32),
        rng.choice(np.float32([0, 1, np.nan]), rows),
        (packed, ends) if ids else None,
    )


def same(a: Rows, b: Rows) -> None:
    for name in ("keys", "counts", "dense", "labels"):
        assert getattr(a, name).dtype == getattr(b, name).dtype
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    ones = [np.ones(len(r.keys)) if r.values is None else r.values for r in (a, b)]
    np.testing.assert_array_equal(*ones)
    assert (a.ids is None) == (b.ids is None)
    if a.ids is not None:
        np.testing.assert_array_equal(a.ids[0], b.ids[0])
        np.testing.assert_array_equal(a.ids[1], b.ids[1])


def read(path) -> Rows:
    return joined([block.to_rows() for block in Shard(path).blocks()])


@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    st.integers(0, 999),
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([("mean", None), ("value", None), ("value", [1]), ("value", [1, 0.5, -2])]),
    st.integers(0, 3),
    st.integers(0, 2),
)
def test_rows_come_back_as_they_were(
    tmp_path_factory, seed, pieces, block_rows, ids, weights, slots, dense
):
    path = tmp_path_factory.mktemp("shards") / "a.shard"
    schema = Schema(
        tuple(f"s{i}" for i in range(slots)), tuple(f"d{i}" for i in range(dense)), weights[0]
    )
    rows = [
        make_rows(seed + i, n, schema, ids=ids, values=weights[1]) for i, n in enumerate(pieces)
    ]
    with ShardWriter(path, schema, block_rows, {"made": "here"}) as writer:
        for piece in rows:
            writer.add(piece)
    shard = Shard(path)
    total = sum(pieces)
    assert (shard.rows, shard.schema, shard.meta) == (total, schema, {"made": "here"})
    assert shard.block_rows.sum() == total
    assert (shard.block_rows[:-1] == block_rows).all()
    if total:
        same(read(path), joined(rows))


def test_a_block_holds_each_key_once_and_the_dense_ones_last():
    schema = Schema(("a",), ("x", "y"))
    dense = [dense_key("x"), dense_key("y")]
    # The key of a dense feature may also occur as a plain key: it stays one entry.
    keys = np.array([5, dense[1], 7, 5], np.uint64)
    rows = Rows(keys, np.int32([[3], [1]]), None, np.zeros((2, 2), np.float32), np.float32([0, 1]))
    block = Block.from_rows(rows, schema)
    assert {*block.keys[:2].tolist()} == {5, 7}
    assert block.keys[2:].tolist() == dense
    assert block.keys[block.index].tolist() == keys.tolist()
    assert (block.index.dtype, block.counts.dtype) == (np.uint16, np.uint8)
    assert Block.from_rows(rows.part(0, 0), schema).keys.tolist() == dense


@pytest.mark.parametrize(("distinct", "dtype"), [(65536, np.uint16), (65537, np.uint32)])
def test_numbers_are_as_narrow_as_the_keys_allow(distinct, dtype):
    keys = np.arange(distinct, dtype=np.uint64)
    counts = np.int32([[distinct - 300], [300]])
    rows = Rows(keys, counts, None, np.zeros((2, 0), np.float32), np.float32([0, 1]))
    block = Block.from_rows(rows, Schema(("",), (), "value"))
    assert block.index.dtype == dtype
    assert block.counts.dtype == np.uint16
    same(block.to_rows(), rows)


def test_values_are_kept_only_where_they_say_something(tmp_path):
    schema = Schema(("",), (), "value")
    ones, twos = (make_rows(1, 4, schema, values=[v]) for v in (1, 2))
    with ShardWriter(tmp_path / "a.shard", schema, block_rows=4) as writer:
        writer.add(ones)
        writer.add(twos)
    first, second = Shard(tmp_path / "a.shard").blocks()
    assert first.values is None
    assert (second.values == 2).all()


def test_the_same_rows_give_the_same_file(tmp_path):
    schema = Schema(("a", "b"), ("x",))
    digests = []
    for name, cuts in (("a", [0, 20]), ("b", [0, 3, 4, 20])):
        rows = make_rows(3, 20, schema, ids=True)
        with ShardWriter(tmp_path / name, schema, 8) as writer:
            for first, last in itertools.pairwise(cuts):
                writer.add(rows.part(first, last))
        digests.append(Shard(tmp_path / name).digest)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert digests[0] == digests[1]


def test_an_exception_leaves_no_file(tmp_path):
    with pytest.raises(KeyError), ShardWriter(tmp_path / "a.shard", Schema(("a",)), 2) as writer:
        writer.add(make_rows(1, 5, Schema(("a",))))
        raise KeyError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        {"counts": np.zeros((3, 2), np.int32)},
        {"counts": np.ones((3, 1), np.int32) * 7},
        {"dense": np.zeros((3, 1), np.float32)},
        {"values": np.ones(2, np.float32)},
        {"values": np.ones(3, np.float32)},
    ],
)
def test_rows_of_another_shape_are_refused(tmp_path, change):
    fields = {
        "keys": np.uint64([1, 2, 3]),
        "counts": np.ones((3, 1), np.int32),
        "values": None,
        "dense": np.zeros((3, 0), np.float32),
        "labels": np.zeros(3, np.float32),
    }
    with ShardWriter(tmp_path / "a.shard", Schema(("a",)), 2) as writer:
        with pytest.raises(ValueError, match="rows"):
            writer.add(Rows(**{**fields, **change}))


def test_too_many_columns_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match="at most 4096"):
        ShardWriter(tmp_path / "a.shard", Schema(tuple(map(str, range(4097)))), 2)
    assert not list(tmp_path.iterdir())


def test_every_damaged_byte_is_noticed(tmp_path):
    schema = Schema(("a",), ("x",))
    path = tmp_path / "a.shard"
    with ShardWriter(path, schema, 4) as writer:
        writer.add(make_rows(5, 6, schema, ids=True))
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
        with pytest.raises(DataError, match=r"a\.shard"):
            read(path)
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"a\.shard"):
            Shard(path)


def test_a_file_that_lies_about_its_arrays_is_refused(tmp_path):
    schema = Schema(("a",))
    block = Block.from_rows(make_rows(1, 3, schema, most=3), schema)
    good = {name: getattr(block, name) for name in ("keys", "index", "counts", "dense", "labels")}
    lies = [
        {"index": np.full_like(block.index, len(block.keys))},
        {"counts": block.counts + np.uint8(1)},
        {"keys": block.keys.astype(np.int64)},
        {"labels": np.zeros(3, np.int32)},
        {"dense": np.zeros((3, 1), np.float32)},
        {"labels": block.labels[:2]},
    ]
    trailer = {"schema": schema.to_dict(), "rows": 3, "block_rows": 4, "meta": {}}
    path = tmp_path / "a.shard"
    for lie in [{}, *lies]:
        with FrameFileWriter(path, "shard") as file:
            file.append({"values": False, "ids": False}, list({**good, **lie}.values()))
            file.close(trailer)
        if not lie:
            Shard(path).block(0)
            continue
        with pytest.raises(DataError, match="record 0"):
            Shard(path).block(0)


def test_a_trailer_that_is_not_of_a_shard_is_refused(tmp_path):
    path = tmp_path / "a.shard"
    for trailer in ({}, {"schema": [], "rows": 0, "block_rows": 1, "meta": {}}, {"rows": "x"}):
        with FrameFileWriter(path, "shard") as file:
            file.close(trailer)
        with pytest.raises(DataError, match=r"a\.shard"):
            Shard(path)
    with FrameFileWriter(path, "model") as file:
        file.close({})
    with pytest.raises(DataError, match="'model' file"):
        Shard(path)
    with pytest.raises(DataError, match="No such file"):
        Shard(tmp_path / "b.shard")


def test_the_number_of_threads_does_not_show(tmp_path):
    schema = Schema(("a", "b"), ("x",))
    pieces = [make_rows(seed, 7, schema, most=3) for seed in range(30)]
    found = []
    for threads in (1, 4):
        path = tmp_path / f"{threads}.shard"
        with ShardWriter(path, schema, 10, threads=threads) as writer:
            for piece in pieces:
                writer.add(piece)
        found.append(path.read_bytes())
    assert found[0] == found[1]
    same(read(tmp_path / "4.shard"), joined(pieces))
