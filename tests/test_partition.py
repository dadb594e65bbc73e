"""Tables and partitions: fold, steps, undo, and the same bits on any number of servers."""

import numpy as np
import pytest

from ctrps import models
from ctrps.config import JobConfig
from ctrps.errors import LocalProtocolError
from ctrps.kernels import keys as key_kernels
from ctrps.ps.partition import Contribution, Fold, PartitionSet
from ctrps.ps.table import RowSet
from ctrps.ps.view import assign
from tests import naive, naive_ps
from tests.simjob import row_bytes

BITS = 4
ARRAYS = ("keys", "gradients", "counts")
DEFAULT = {}
PLAIN_STEPS = {"w": {"kind": "sgd", "alpha": 0.3, "l2": 0.1}, "v": {"kind": "sgd", "alpha": 0.2}}
SPARSE_FTRL = {
    "w": {"kind": "ftrl", "alpha": 0.2, "l1": 0.5, "l2": 0.1, "count_scale": 3},
    "v": {"kind": "adagrad", "alpha": 0.1, "l2": 0.05, "count_scale": 8},
}


def model_of(kind: str = "fm", optimizer: dict = DEFAULT) -> models.Model:
    job = {
        "model": {"kind": kind, "dim": 3, "init_scale": 0.1},
        "optimizer": optimizer,
        "train": {"partitions": 1 << BITS, "seed": 5},
    }
    return models.build(JobConfig.model_validate(job))


def contribution(model: models.Model, rng: np.random.Generator, pool: np.ndarray) -> Contribution:
    """What a batch might push: some of the keys of ``pool``, and the intercept."""
    keys = (rng.permutation(pool)[: rng.integers(0, len(pool))], np.uint64([models.INTERCEPT_KEY]))
    dims = [table.dim for table in model.tables]
    gradients = tuple(
        rng.normal(size=(len(k), dim)).astype(np.float32) for k, dim in zip(keys, dims, strict=True)
    )
    counts = tuple(rng.integers(1, 9, len(k)).astype(np.int32) for k in keys)
    return Contribution(int(rng.integers(1, 20)), 0.5, keys, gradients, counts)


def pool_of(rng: np.random.Generator, size: int = 60) -> np.ndarray:
    return np.append(rng.integers(0, 2**64, size, dtype=np.uint64), np.uint64([0, 2**64 - 1]))


def random_steps(model: models.Model, seed: int, steps: int = 6) -> list[dict[int, Contribution]]:
    rng = np.random.default_rng(seed)
    pool = pool_of(rng)
    return [{g: contribution(model, rng, pool) for g in (3, 0, 7, 1)} for _ in range(steps)]


def trained(model: models.Model, steps: list[dict[int, Contribution]]) -> PartitionSet:
    partitions = PartitionSet(model)
    for lanes in steps:
        partitions.apply(lanes)
    return partitions


def as_bytes(arrays) -> list[bytes]:
    return [array.tobytes() for array in arrays]


# -- fold ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_fold_has_the_bits_of_scalar_additions_in_order(seed):
    rng = np.random.default_rng(seed)
    pool = pool_of(rng)
    model = model_of()
    parts = [
        (part.keys[0], part.gradients[0], part.counts[0])
        for part in (contribution(model, rng, pool) for _ in range(5))
    ]
    fold, sums = Fold.of(parts, 4), naive_ps.fold(parts)
    assert len(fold.keys) == len(set(fold.keys.tolist()))
    found = {
        (int(key), j): (g.tobytes(), int(count))
        for key, row, count in zip(fold.keys, fold.gradient, fold.counts, strict=True)
        for j, g in enumerate(row)
    }
    assert found == {place: (g.tobytes(), count) for place, (g, count) in sums.items()}


def test_the_order_of_lanes_matters_and_a_lone_gradient_keeps_its_bits():
    key, ones = np.uint64([7]), np.int32([1])
    parts = [(key, np.float32([[g]]), ones) for g in (1e8, 1.0, -1e8)]
    assert Fold.of(parts, 1).gradient[0, 0] == 0
    assert Fold.of([parts[0], parts[2], parts[1]], 1).gradient[0, 0] == 1
    lone = Fold.of([(key, np.float32([[-0.0]]), ones)], 1)
    assert np.signbit(lone.gradient[0, 0])


def test_an_empty_fold():
    for parts in ([], [(np.uint64([]), np.empty((0, 2), np.float32), np.int32([]))]):
        fold = Fold.of(parts, 2)
        assert (fold.keys.shape, fold.gradient.shape, fold.counts.shape) == ((0,), (0, 2), (0,))


# -- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lr", "fm"])
@pytest.mark.parametrize("optimizer", [DEFAULT, PLAIN_STEPS, SPARSE_FTRL])
def test_steps_agree_with_the_slow_model(kind, optimizer):
    model = model_of(kind, optimizer)
    partitions, slow = PartitionSet(model), naive_ps.Rows(model)
    for lanes in random_steps(model, 3):
        partitions.apply(lanes)
        slow.apply(lanes)
    keys = (pool_of(np.random.default_rng(3)), np.uint64([models.INTERCEPT_KEY]))
    for number, found in enumerate(partitions.pull(keys)):
        expected = slow.weights(number, keys[number])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


def test_a_step_counts_itself_and_its_rows():
    model = model_of()
    steps = random_steps(model, 1)
    partitions = trained(model, steps)
    assert partitions.step == len(steps)
    assert partitions.rows_seen == sum(part.rows for lanes in steps for part in lanes.values())
    partitions.turn(2)
    assert (partitions.pass_, partitions.step, partitions.rows_seen) == (2, 0, 0)
    assert not partitions.can_undo


def test_the_order_of_arrival_does_not_matter():
    model = model_of()
    steps = random_steps(model, 2)
    turned = [dict(reversed(lanes.items())) for lanes in steps]
    assert row_bytes([trained(model, steps)]) == row_bytes([trained(model, turned)])


@pytest.mark.parametrize("kind", ["lr", "fm"])
@pytest.mark.parametrize("servers", [1, 2, 3, 5, 16])
def test_bits_do_not_depend_on_the_number_of_servers(kind, servers):
    model = model_of(kind, SPARSE_FTRL)
    steps = random_steps(model, 4)
    owners = np.array(assign(1 << BITS, range(servers)))
    parts = [PartitionSet(model) for _ in range(servers)]
    for lanes in steps:
        for node, partitions in enumerate(parts):
            partitions.apply({g: share(part, owners, node) for g, part in lanes.items()})
    assert row_bytes(parts) == row_bytes([trained(model, steps)])


def share(part: Contribution, owners: np.ndarray, node: int) -> Contribution:
    """The part of a contribution that one server gets."""
    mine = []
    for keys in part.keys:
        partition = np.empty(len(keys), np.int32)
        key_kernels.partition_of(keys, BITS, partition)
        mine.append(owners[partition] == node)
    fields = {
        name: tuple(a[m] for a, m in zip(getattr(part, name), mine, strict=True)) for name in ARRAYS
    }
    return part._replace(**fields)


# -- pulls --------------------------------------------------------------------------------------


def test_a_pull_of_the_step_before_has_its_bits():
    model = model_of()
    *steps, last = random_steps(model, 5)
    partitions = trained(model, steps)
    before = {g: as_bytes(partitions.pull(part.keys)) for g, part in last.items()}
    partitions.apply(last)
    for g, part in last.items():
        assert as_bytes(partitions.pull_before(part.keys)) == before[g]
    assert as_bytes(partitions.pull(last[0].keys)) != before[0]


def test_a_pull_of_the_step_before_knows_only_the_keys_of_that_step():
    model = model_of()
    nothing = (np.uint64([]), np.uint64([]))
    with pytest.raises(LocalProtocolError, match="there is none"):
        PartitionSet(model).pull_before(nothing)
    partitions = trained(model, random_steps(model, 5))
    partitions.pull_before(nothing)
    with pytest.raises(LocalProtocolError, match="a key that was not in it"):
        partitions.pull_before((np.uint64([123456]), np.uint64([])))


def test_neither_pull_nor_peek_makes_a_row():
    model = model_of()
    partitions = trained(model, random_steps(model, 6))
    held = partitions.keys_held
    strangers = (np.arange(1, 50, dtype=np.uint64), np.uint64([77]))
    pulled, peeked = partitions.pull(strangers), partitions.peek(strangers)
    assert partitions.keys_held == held
    assert not any(weights.any() for weights in peeked)
    expected = [[0.1 * naive.initial(5, key, j) for j in (1, 2, 3)] for key in range(1, 50)]
    np.testing.assert_allclose(pulled[0][:, 1:], expected, rtol=1e-6)
    assert not pulled[0][:, 0].any() and not pulled[1].any()


def test_a_new_row_starts_as_it_was_pulled():
    model = model_of()
    partitions, keys = PartitionSet(model), np.uint64([3, 1, 2])
    first = partitions.pull((keys, np.uint64([])))[0]
    partitions.tables[0].insert(keys)
    assert as_bytes(partitions.pull((keys, np.uint64([])))[:1]) == [first.tobytes()]


# -- snapshots ----------------------------------------------------------------------------------


def test_a_snapshot_is_sorted_complete_and_a_copy():
    model = model_of()
    partitions = trained(model, random_steps(model, 7))
    saved = partitions.snapshot()
    assert len(saved) == 1 << BITS
    for number, state in enumerate(saved):
        for rows in state.tables:
            assert naive.partition_of(rows.keys, BITS) == [number] * len(rows.keys)
            assert rows.keys.tolist() == sorted(set(rows.keys.tolist()))
    for at, table in enumerate(partitions.tables):
        assert sum(len(state.tables[at].keys) for state in saved) == table.used
    before = [as_bytes(rows) for state in saved for rows in state.tables]
    partitions.apply(random_steps(model, 8)[0])
    assert [as_bytes(rows) for state in saved for rows in state.tables] == before


@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 1), (3, 5), (5, 2), (16, 1)])
def test_rows_saved_by_some_servers_load_on_others_and_go_on(first, then):
    model = model_of("fm", SPARSE_FTRL)
    steps = random_steps(model, 9, steps=8)
    files: dict[int, list[RowSet]] = {}
    for node, partitions in enumerate(spread_over(model, steps[:4], first, {})):
        states, owners = partitions.snapshot(), assign(1 << BITS, range(first))
        files |= {p: states[p].tables for p, owner in enumerate(owners) if owner == node}
    later = spread_over(model, steps[4:], then, files)
    assert row_bytes(later) == row_bytes([trained(model, steps)])


def spread_over(model, steps, servers: int, files: dict[int, list[RowSet]]) -> list[PartitionSet]:
    """Servers that load their partitions of ``files`` and take the steps."""
    owners = np.array(assign(1 << BITS, range(servers)))
    parts = [PartitionSet(model) for _ in range(servers)]
    for node, partitions in enumerate(parts):
        for number in np.flatnonzero(owners == node).tolist():
            if number in files:
                partitions.load(files[number])
        for lanes in steps:
            partitions.apply({g: share(part, owners, node) for g, part in lanes.items()})
    return parts


# -- copies of a batch --------------------------------------------------------------------------


def test_same_bits():
    part = contribution(model_of(), np.random.default_rng(1), pool_of(np.random.default_rng(1)))
    copies = [tuple(a.copy() for a in getattr(part, name)) for name in ARRAYS]
    assert part.same_bits(Contribution(part.rows, part.loss_sum, *copies))
    for name in ARRAYS:
        other = tuple(a.copy() for a in getattr(part, name))
        other[0].view(np.uint8).reshape(-1)[-1] ^= 1
        assert not part.same_bits(part._replace(**{name: other}))
    assert not part.same_bits(part._replace(rows=part.rows + 1))
    fewer = {name: tuple(a[:-1] for a in getattr(part, name)) for name in ARRAYS}
    assert not part.same_bits(part._replace(**fewer))


def test_minus_zero_is_not_zero():
    zero = Contribution(1, 0.0, (np.uint64([1]),), (np.float32([[0.0]]),), (np.int32([1]),))
    assert not zero.same_bits(zero._replace(gradients=(np.float32([[-0.0]]),)))
