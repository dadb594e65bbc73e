"""Who owns which partition and who computes which lane, after any sequence of events."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.ps.evaluation import LANES_AT_ONCE, Evaluation
from ctrps.ps.leases import QueueLeases, TrainingLeases
from ctrps.ps.messages import Status
from ctrps.ps.plan import DataFile
from ctrps.ps.sight import NOBODY, FilesSeen
from ctrps.ps.view import View, assign

repeatable = settings(derandomize=True, deadline=None, max_examples=200)

# -- views --------------------------------------------------------------------------------------


@given(st.integers(0, 8).map(lambda bits: 1 << bits), st.lists(st.integers(0, 99), unique=True))
@repeatable
def test_partitions_are_dealt_in_equal_runs(partitions, servers):
    if not servers:
        return
    owners = assign(partitions, servers)
    sizes = [owners.count(node) for node in servers]
    assert sum(sizes) == partitions
    assert max(sizes) - min(sizes) <= 1
    assert owners == [node for node, size in zip(servers, sizes, strict=True) for _ in range(size)]


@st.composite
def placements(draw):
    """A view in which owners are mixed, and the borders of a batch's keys."""
    partitions = draw(st.sampled_from([1, 2, 8, 16]))
    nodes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
    owners = draw(st.lists(st.sampled_from(nodes), min_size=partitions, max_size=partitions))
    sizes = draw(st.lists(st.integers(0, 4), min_size=partitions, max_size=partitions))
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return View(3, owners, {node: f"host:{node}" for node in nodes}), owners, starts


@given(placements())
@repeatable
def test_take_gives_each_owner_its_keys_and_put_is_the_way_back(placement):
    view, owners, starts = placement
    keys = np.arange(100, 100 + starts[-1], dtype=np.uint64)
    back = np.zeros_like(keys)
    for node in view.servers:
        mine = [
            int(key)
            for partition, owner in enumerate(owners)
            if owner == node
            for key in keys[starts[partition] : starts[partition + 1]]
        ]
        part = view.take(keys, starts, node)
        assert part.tolist() == mine
        assert view.size(starts, node) == len(mine)
        view.put(back, starts, node, part)
    assert back.tolist() == keys.tolist()


def test_rows_of_tables_are_taken_and_put_whole():
    view = View(1, [4, 7, 4], {4: "a:1", 7: "b:1"})
    starts, rows = np.int32([0, 2, 3, 5]), np.arange(10, dtype=np.float32).reshape(5, 2)
    assert view.take(rows, starts, 4).tolist() == [[0, 1], [2, 3], [6, 7], [8, 9]]
    out = np.zeros_like(rows)
    view.put(out, starts, 7, np.float32([[1, 2]]))
    assert out.tolist() == [[0, 0], [0, 0], [1, 2], [0, 0], [0, 0]]


def test_a_server_that_owns_nothing_is_among_the_servers():
    view = View(1, [7, 7], {9: "c:1", 7: "b:1", 4: "a:1"})
    assert view.servers == (4, 7, 9)
    starts = np.int32([0, 1, 2])
    assert view.slices(starts, 4) == []
    assert view.size(starts, 4) == 0
    empty = view.take(np.ones((2, 3), np.float32), starts, 9)
    assert (empty.shape, empty.dtype) == ((0, 3), np.float32)


# -- lanes of a pass ----------------------------------------------------------------------------


def check_training(leases: TrainingLeases, workers: list[int]) -> None:
    """Every lane has one worker or two, all alive, and the first ones are spread evenly."""
    holders = [leases.holders(lane) for lane in range(leases.lanes)]
    assert all(set(held) <= set(workers) for held in holders)
    if workers:
        assert all(1 <= len(held) <= 2 and len(set(held)) == len(held) for held in holders)
    for worker in workers:
        assert leases.held_by(worker) == [g for g, held in enumerate(holders) if worker in held]


@given(st.integers(1, 9), st.data())
@repeatable
def test_lanes_always_have_a_live_worker(lanes, data):
    leases, workers = TrainingLeases(lanes), []
    some = st.lists(st.integers(0, 6), max_size=5, unique=True).map(sorted)
    for _ in range(data.draw(st.integers(1, 8))):
        what = data.draw(st.sampled_from(["open", "deal", "steal", "settle"]))
        if what in ("open", "deal"):
            workers = data.draw(some)
            getattr(leases, what)(workers)
            loads = [len(leases.held_by(worker)) for worker in workers]
            assert not loads or max(loads) - min(loads) <= 1
        elif what == "steal":
            leases.steal(data.draw(st.lists(st.integers(0, lanes - 1), unique=True)), workers)
        else:
            leases.settle()
        check_training(leases, workers)


def test_lanes_of_live_workers_stay_when_one_is_lost():
    leases = TrainingLeases(6)
    leases.open([1, 2, 3])
    before = [leases.held_by(1), leases.held_by(2)]
    leases.deal([1, 2])
    assert all(set(b) <= set(leases.held_by(w)) for b, w in zip(before, (1, 2), strict=True))
    assert sorted(leases.held_by(1) + leases.held_by(2)) == list(range(6))


def test_a_new_worker_gets_lanes_and_more_workers_than_lanes_wait():
    leases = TrainingLeases(3)
    leases.open([1])
    leases.deal([1, 2])
    assert [len(leases.held_by(w)) for w in (1, 2)] == [2, 1]
    leases.deal([1, 2, 3, 4, 5])
    assert sorted(len(leases.held_by(w)) for w in range(1, 6)) == [0, 0, 1, 1, 1]


def test_a_slow_lane_goes_to_another_worker_who_keeps_it():
    leases = TrainingLeases(3)
    leases.open([1, 2, 3])
    assert leases.steal([0], [1, 2, 3])
    assert leases.holders(0) == [2, 1]
    assert not leases.steal([0], [1, 2, 3])
    leases.settle()
    assert leases.holders(0) == [2]
    assert not leases.steal([1], [2])


def test_all_workers_lost():
    leases = TrainingLeases(2)
    leases.open([5])
    leases.deal([])
    assert leases.holders(0) == leases.holders(1) == []
    leases.deal([6])
    assert leases.held_by(6) == [0, 1]


def all_see(lane: int) -> frozenset[int]:
    return NOBODY


# -- short lanes from a queue -------------------------------------------------------------------


@given(st.integers(0, 12), st.data())
@repeatable
def test_every_short_lane_is_done_while_somebody_works(lanes, data):
    leases, workers = QueueLeases(2, all_see), [0, 1]
    leases.open(range(lanes), workers)
    claimed: set[int] = set()
    for _ in range(200):
        if not leases.unfinished:
            break
        what = data.draw(st.sampled_from(["finish", "claim", "confirm", "deal", "share"]))
        worker = data.draw(st.sampled_from(workers))
        if what == "deal":
            workers = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True))
            leases.deal(workers)
        elif what == "share":
            leases.share()
        elif what == "confirm":
            for lane in sorted(claimed)[:1]:
                claimed.discard(lane)
                leases.finish(lane)
        for lane in leases.held_by(worker)[:1]:
            if what == "finish":
                leases.finish(lane)
            elif what == "claim":
                leases.claim(worker, lane)
                claimed.add(lane)
        check_queue(leases, workers, lanes)
    for _ in range(lanes + 1):
        for lane in [lane for worker in workers for lane in leases.held_by(worker)]:
            leases.finish(lane)
        for lane in claimed:
            leases.finish(lane)
    assert not leases.unfinished


def check_queue(leases: QueueLeases, workers: list[int], lanes: int) -> None:
    """Nobody holds more than its share, and only live workers hold open lanes."""
    assert all(len(leases.held_by(worker)) <= leases.at_once for worker in workers)
    for lane in range(lanes):
        assert set(leases.holders(lane)) <= set(workers)
        assert lane in leases.unfinished or not leases.holders(lane)


def test_short_lanes_are_handed_out_a_few_at_a_time():
    leases = QueueLeases(3, all_see)
    leases.open(range(8), [1, 2])
    assert (leases.held_by(1), leases.held_by(2)) == ([0, 1, 2], [3, 4, 5])
    leases.finish(1)
    assert leases.held_by(1) == [0, 2, 6]
    leases.deal([2])
    assert leases.held_by(1) == []
    leases.finish(3)
    assert leases.held_by(2) == [0, 4, 5]


def test_a_claimed_lane_is_open_until_it_is_certain():
    leases = QueueLeases(1, all_see)
    leases.open([4, 7], [1])
    leases.claim(1, 4)
    assert leases.held_by(1) == [7] and leases.unfinished == {4, 7}
    leases.claim(1, 7)
    assert leases.held_by(1) == []
    assert leases.share() and leases.held_by(1) == [4]
    leases.finish(4)
    leases.finish(7)
    assert not leases.share()


def test_idle_workers_share_open_lanes_when_none_is_left():
    leases = QueueLeases(2, all_see)
    leases.open(range(3), [1, 2, 3])
    assert [leases.held_by(w) for w in (1, 2, 3)] == [[0, 1], [2], []]
    assert leases.share()
    assert leases.held_by(3) == [0, 1] and leases.holders(0) == [1, 3]
    assert not leases.share()


# -- evaluation ---------------------------------------------------------------------------------


def evaluation_of(*rows: int) -> Evaluation:
    """An evaluation with one lane for each of these numbers of rows."""
    return Evaluation(FilesSeen((DataFile("f", "d", rows),)))


def scored(lanes: dict[int, tuple[int, float]]) -> Status:
    """A worker's status with lanes, each given as rows and the score of all of them."""
    arrays = [
        (np.full(n, score, np.float32), np.zeros(n, np.float32)) for n, score in lanes.values()
    ]
    results = tuple(array for pair in arrays for array in pair)
    return Status(1, 0, 1, 0, 1, 0, -1, True, [], -1, -1, [], {}, "", 0, "", list(lanes), results)


def test_scores_are_put_in_row_order_and_the_first_result_counts():
    evaluation = evaluation_of(2, 3, 1)
    evaluation.open([1])
    evaluation.take(scored({2: (1, 0.2), 0: (2, 0.0)}))
    assert (evaluation.done, evaluation.complete, evaluation.leases.held_by(1)) == (2, False, [1])
    evaluation.take(scored({0: (2, 0.7)}))
    evaluation.take(scored({1: (3, 0.1)}))
    scores, labels = evaluation.results()
    assert [s.tolist() for s in scores] == [[0, 0], [np.float32(0.1)] * 3, [np.float32(0.2)]]
    assert [len(part) for part in labels] == [2, 3, 1]
    assert evaluation.complete and not evaluation.leases.unfinished


@pytest.mark.parametrize("lanes", [{7: (2, 0.5)}, {-1: (2, 0.5)}, {0: (3, 0.5)}])
def test_results_that_do_not_fit_are_not_taken(lanes):
    evaluation = evaluation_of(2)
    evaluation.open([1])
    evaluation.take(scored(lanes))
    evaluation.take(replace(scored({0: (2, 0.5)}), results=()))
    assert evaluation.done == 0 and evaluation.leases.held_by(1) == [0]


def test_opening_again_begins_from_nothing():
    evaluation = evaluation_of(2, 2)
    evaluation.open([1])
    evaluation.take(scored({0: (2, 0.5)}))
    evaluation.open([1])
    assert evaluation.done == 0 and evaluation.leases.held_by(1) == [0, 1]


@pytest.mark.parametrize("workers", [[], [3]])
def test_an_evaluation_without_rows_is_complete(workers):
    evaluation = evaluation_of()
    evaluation.open(workers)
    assert evaluation.complete and evaluation.results() == ((), ())
    assert not evaluation.leases.share()
    assert evaluation.leases.at_once == LANES_AT_ONCE
