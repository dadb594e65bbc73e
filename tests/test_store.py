"""Tables: keys to rows through growth, and steps of rows, against plain dictionaries."""

import numpy as np
import pytest

from ctrps import models
from ctrps.config import JobConfig
from ctrps.kernels import store
from ctrps.ps.table import RowSet, Table
from tests import naive, naive_store

SEED = 5


def spec_of(dim: int, w: str = "ftrl", v: str = "adagrad", **more) -> models.TableSpec:
    blocks = {
        part: {"kind": kind} | ({} if kind == "count" else {"alpha": 0.1} | more)
        for part, kind in (("w", w), ("v", v))
    }
    job = {
        "model": {"kind": "fm" if dim else "lr", "dim": max(dim, 1), "init_scale": 0.1},
        "optimizer": blocks,
    }
    return models.build(JobConfig.model_validate(job)).tables[0]


def table_of(dim: int, *args: str, **more) -> Table:
    return Table(spec_of(dim, *args, **more), SEED)


def held(table: Table) -> dict[int, list[float]]:
    keys, rows = table.snapshot(0)[0]
    return dict(zip(keys.tolist(), rows.tolist(), strict=True))


def crowded(count: int, lines: int) -> np.ndarray:
    """Keys of one segment whose first lines are the last two of ``lines``."""
    rng, found = np.random.default_rng(1), []
    while len(found) < count:
        for key in rng.integers(0, 2**64, 1 << 16, dtype=np.uint64).tolist():
            place = naive.spread(key)
            if place >> 58 == 7 and place % lines >= lines - 2:
                found.append(key)
    return np.uint64(found[:count])


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 8])
def test_keys_are_found_through_growth(dim):
    rng, table, known = np.random.default_rng(8), table_of(dim), set()
    universe = np.concatenate([rng.integers(0, 2**64, 3000, np.uint64), np.uint64([0, 2**64 - 1])])
    for _ in range(60):
        asked = rng.permutation(universe)[: rng.integers(0, 300)]
        np.testing.assert_array_equal(table.find(asked) > 0, [int(k) in known for k in asked])
        table.insert(asked)
        known |= set(asked.tolist())
        assert table.used == len(known)
    assert set(held(table)) == known and table.moves > 64
    entries = table.find(np.uint64(sorted(known)))
    assert len(set(entries.tolist())) == len(known) and not (entries % 32).any()


@pytest.mark.parametrize("dim", [0, 8])
def test_a_table_that_is_told_what_to_expect_does_not_move(dim):
    rng, told, plain = np.random.default_rng(4), table_of(dim), table_of(dim)
    keys = rng.integers(0, 2**64, 60_000, np.uint64)
    for table in (told, plain):
        table.insert(keys[:100])
    told.expect(len(keys))
    moves = told.moves
    for part in np.array_split(keys, 20):
        for table in (told, plain):
            table.insert(part)
    assert told.moves == moves and plain.moves > moves
    assert held(told) == held(plain)
    for count in (0, 5000, len(keys)):
        told.expect(count)
    assert told.moves == moves


@pytest.mark.parametrize("count", [1 << 50, 1 << 62])
def test_more_than_the_machine_has_is_not_expected(count):
    table = table_of(0)
    table.expect(count)
    keys = np.arange(5000, dtype=np.uint64)
    table.insert(keys)
    assert table.used == 5000


def test_a_key_that_is_inserted_twice_at_once_has_one_row():
    table = table_of(2)
    entries = table.insert(np.uint64([3, 4, 3]))
    assert entries[0] == entries[2] != entries[1] and table.used == 2


def test_lines_that_overflow_go_on_at_the_next_and_wrap_around():
    table = table_of(0)
    table.reserve(crowded(40, 64))
    keys = crowded(12, 64)
    table.insert(keys[:9])
    np.testing.assert_array_equal(table.find(keys) > 0, [True] * 9 + [False] * 3)
    table.step(keys, np.ones((12, 1), np.float32), np.ones(12, np.int32), 1)
    assert set(held(table)) == set(keys.tolist())
    assert len({row[0] for row in held(table).values()}) == 1


def test_one_segment_may_grow_far_beyond_the_others():
    table, keys = table_of(0), crowded(500, 64)
    table.insert(keys)
    assert (table.find(keys) > 0).all() and table.used == 500
    other = np.arange(100, dtype=np.uint64)
    assert not table.find(other).any()


def test_room_is_kept_by_segments():
    table, keys = table_of(0), np.arange(5000, dtype=np.uint64)
    assert not table.room(keys)
    table.reserve(keys)
    moves = table.moves
    assert table.room(keys)
    table.insert(keys)
    assert table.moves == moves


def test_segments_are_the_top_bits_of_a_key_s_place():
    keys = np.random.default_rng(3).integers(0, 2**64, 1000, dtype=np.uint64)
    counts = np.empty(store.SEGMENTS, np.int64)
    store.count_segments(keys, counts)
    assert counts.tolist() == naive_store.count_segments(keys, store.SEGMENT_BITS)


# -- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, 3, 4, 8, 16, 21])
def test_a_new_row_starts_as_it_was_read(dim):
    table, keys = table_of(dim), np.uint64([9, 0, 2**64 - 1, 4])
    absent = table.weights(keys, absent_initial=True)
    assert not table.weights(keys, absent_initial=False).any() and not table.used
    table.insert(keys)
    for initial in (True, False):
        np.testing.assert_array_equal(table.weights(keys, absent_initial=initial), absent)
    columns = range(1, dim + 1)
    expected = [[0.0, *(0.1 * naive.initial(SEED, int(k), j) for j in columns)] for k in keys]
    np.testing.assert_allclose(absent, expected, rtol=1e-6)
    assert all(not any(row[dim + 1 :]) for row in held(table).values())


# -- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("w", ["ftrl", "adagrad", "sgd", "count"])
@pytest.mark.parametrize(("v", "dim"), [("ftrl", 8), ("adagrad", 0), ("adagrad", 13), ("sgd", 4)])
@pytest.mark.parametrize("c0", [0.0, 4.0])
def test_a_table_is_its_twin(w, v, dim, c0):
    rng, spec = np.random.default_rng(4), spec_of(dim, w, v, count_scale=c0)
    table, twin = Table(spec, SEED), naive_store.Store(spec, SEED)
    for _ in range(12):
        keys = rng.permutation(40)[: rng.integers(1, 30)].astype(np.uint64)
        names = keys.tolist()
        assert (table.find(keys) > 0).tolist() == twin.find(names)
        for make in (False, True):
            pulled = table.weights(keys, absent_initial=make)
            np.testing.assert_allclose(pulled, twin.pull(names, make), rtol=2e-4, atol=2e-5)
        g = rng.normal(size=(len(keys), 1 + dim)).astype(np.float32)
        counts = rng.integers(1, 9, len(keys)).astype(np.int32)
        assert table.step(keys, g, counts, step_rows=10).tobytes() == pulled.tobytes()
        twin.push(names, g.tolist(), counts.tolist(), 10)
        more = rng.integers(0, 60, 3).astype(np.uint64)
        table.insert(more)
        twin.insert(more.tolist())
    found = held(table)
    assert sorted(found) == twin.held()
    for key, row in twin.saved_rows().items():
        np.testing.assert_allclose(found[key], row, rtol=2e-4, atol=2e-5)


def test_the_bits_of_a_step_do_not_depend_on_its_company():
    rng = np.random.default_rng(6)
    keys = rng.integers(0, 2**64, 203, dtype=np.uint64)
    g = rng.normal(size=(203, 9)).astype(np.float32)
    counts = rng.integers(1, 5, 203).astype(np.int32)
    whole, parts = table_of(8), table_of(8)
    for _ in range(3):
        whole.step(keys, g, counts, 10)
        for some in np.array_split(rng.permutation(203), 17):
            parts.step(keys[some], g[some], counts[some], 10)
    assert held(whole) == held(parts)


@pytest.mark.parametrize("dim", [0, 3])
def test_count_adds_the_rows_that_hold_the_key(dim):
    table, keys = table_of(dim, "count"), np.uint64([3, 8])
    for counts in ([1, 5], [2, 7]):
        table.step(keys, np.full((2, 1 + dim), 0.3, np.float32), np.int32(counts), 100)
    found = held(table)
    assert found[3][0] == naive.count([1, 2]) and found[8][0] == naive.count([5, 7])


def test_a_stale_step_shrinks_keys_of_many_rows():
    fresh, stale = (table_of(2, v="sgd", count_scale=4.0) for _ in range(2))
    key, g, counts = np.uint64([1]), np.ones((1, 3), np.float32), np.int32([6])
    start = fresh.weights(key, absent_initial=True)
    moved = []
    for table, staleness in ((fresh, 0), (stale, 7)):
        table.step_stale(key, g, counts, 1, staleness)
        moved.append((table.weights(key, absent_initial=True) - start)[0, 1])
    expected = [-0.1 / (1 + 6 / (4.0 / (1 + 2 * s))) for s in (0, 7)]
    np.testing.assert_allclose(moved, expected, rtol=1e-4)


# -- saved rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0, 3, 6, 8])
@pytest.mark.parametrize("dim", [0, 3, 16])
def test_a_snapshot_is_complete_sorted_and_loads(dim, bits):
    rng, table = np.random.default_rng(7), table_of(dim)
    keys = rng.integers(0, 2**64, 900, dtype=np.uint64)
    table.step(keys, rng.normal(size=(900, 1 + dim)).astype(np.float32), np.ones(900, np.int32), 9)
    sets = table.snapshot(bits)
    assert len(sets) == 1 << bits
    for number, (some, rows) in enumerate(sets):
        assert naive.partition_of(some, bits) == [number] * len(some)
        assert some.tolist() == sorted(some.tolist()) and rows.shape == (
            len(some),
            table.spec.width,
        )
    assert sum(len(some) for some, _ in sets) == 900
    again = table_of(dim)
    for some in sets:
        again.load(some)
    assert held(again) == held(table)
    g, counts = np.ones((900, 1 + dim), np.float32), np.ones(900, np.int32)
    assert table.step(keys, g, counts, 9).tobytes() == again.step(keys, g, counts, 9).tobytes()
    assert held(again) == held(table)


def test_rows_are_saved_as_weights_then_the_state_of_each_part():
    table = table_of(2)
    table.load(RowSet(np.uint64([6]), np.arange(1, 8, dtype=np.float32).reshape(1, 7)))
    assert table.weights(np.uint64([6]), absent_initial=True).tolist() == [[1, 2, 3]]
    table.step(np.uint64([6]), np.float32([[0, 0, 1]]), np.int32([1]), 1)
    row = held(table)[6]
    assert row[:2] == [1, 2] and row[2] < 3 and row[3:] == [4, 5, 6, 8]


def test_memory_is_what_it_says():
    table = table_of(8)
    table.insert(np.random.default_rng(2).integers(0, 2**64, 100_000, dtype=np.uint64))
    assert 96 < table.size_bytes / table.used < 256
