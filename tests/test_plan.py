"""The plan against a slow twin, its promises, and that nothing but its input decides it."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.errors import RemoteProtocolError
from ctrps.ps.plan import DataFile, EvaluationPlan, Manifest, Plan, PlanSettings
from tests import naive_ps

repeatable = settings(derandomize=True, deadline=None, max_examples=150)
all_files = st.lists(
    st.lists(st.integers(0, 40), max_size=4).map(lambda b: DataFile("f", "d", tuple(b))),
    max_size=4,
).map(tuple)
filled_files = st.lists(
    st.lists(st.integers(1, 2**40), max_size=4).map(lambda b: DataFile("f", "d", tuple(b))),
    max_size=4,
).map(tuple)
all_settings = st.builds(
    PlanSettings,
    batch_rows=st.integers(1, 9),
    lanes=st.integers(1, 6),
    chunk_batches=st.integers(1, 5),
    shuffle=st.sampled_from(["none", "chunks", "rows"]),
    seed=st.integers(0, 2**64 - 1),
    mode=st.sampled_from(["sync", "ssp", "async"]),
)
sync_settings = all_settings.map(lambda chosen: replace(chosen, mode="sync"))


def batches(plan: Plan) -> list[list[list[tuple[int, int, int]]]]:
    """Rows of each batch of each lane, as the twin writes them."""
    lanes = []
    for lane, length in enumerate(plan.lengths.tolist()):
        refs = [plan.batch(lane, number) for number in range(length)]
        lanes.append([[(r.file, r.block, n) for n in plan.row_numbers(r).tolist()] for r in refs])
    return lanes


@given(all_files, all_settings, st.integers(0, 3))
@repeatable
def test_lanes_are_those_of_the_slow_twin(files, chosen, number):
    plan = Plan(files, chosen, number)
    lanes = naive_ps.plan_lanes(files, chosen, number)
    assert batches(plan) == lanes
    assert plan.lengths.tolist() == [len(lane) for lane in lanes]
    if chosen.mode != "sync":
        assert plan.steps == sum(map(len, lanes))


@given(all_files, all_settings, st.data())
@repeatable
def test_rows_below_marks_are_counted(files, chosen, data):
    plan = Plan(files, chosen, 1)
    marks = [data.draw(st.integers(-1, int(length) - 1)) for length in plan.lengths]
    lanes = zip(batches(plan), marks, strict=True)
    expected = sum(len(batch) for lane, mark in lanes for batch in lane[: mark + 1])
    assert plan.rows_below(np.array(marks, np.int32)) == expected


@given(all_files, sync_settings, st.integers(0, 3))
@repeatable
def test_steps_are_those_of_the_slow_twin(files, chosen, number):
    plan = Plan(files, chosen, number)
    lanes = naive_ps.plan_lanes(files, chosen, number)
    assert plan.steps == max(map(len, lanes))
    for step in range(plan.steps + 1):
        active = [g for g, lane in enumerate(lanes) if len(lane) > step]
        assert plan.active(step) == active
        assert plan.step_rows(step) == sum(len(lanes[g][step]) for g in active)
        assert plan.rows_before(step) == sum(len(b) for lane in lanes for b in lane[:step])
    assert plan.rows_before(plan.steps + 5) == plan.rows


@given(all_files, all_settings, st.integers(0, 3))
@repeatable
def test_every_row_is_in_one_batch_and_no_batch_crosses_a_block(files, chosen, number):
    plan = Plan(files, chosen, number)
    every = [batch for lane in batches(plan) for batch in lane]
    assert all(1 <= len(batch) <= chosen.batch_rows for batch in every)
    assert all(len({(f, b) for f, b, _ in batch}) == 1 for batch in every)
    there = [
        (f, b, row)
        for f, file in enumerate(files)
        for b, rows in enumerate(file.block_rows)
        for row in range(rows)
    ]
    assert sorted(itertools.chain(*every)) == there
    assert plan.rows == len(there)


@given(all_files, sync_settings)
@repeatable
def test_lanes_differ_by_at_most_a_chunk_of_an_eighth_of_a_lane(files, chosen):
    plan = Plan(files, chosen, 0)
    total = int(plan.lengths.sum())
    chunk = min(chosen.chunk_batches, max(1, total // (8 * chosen.lanes)))
    assert plan.lengths.max() - plan.lengths.min() <= chunk
    tail = sum(len(plan.active(step)) < chosen.lanes for step in range(plan.steps))
    assert tail <= chunk


def large(shuffle: str, seed: int = 1, number: int = 0, chunk_batches: int = 4) -> Plan:
    files = (DataFile("a", "1", (400, 400)), DataFile("b", "2", (300,)))
    return Plan(files, PlanSettings(5, 3, chunk_batches, shuffle, seed), number)


@pytest.mark.parametrize("shuffle", ["chunks", "rows"])
def test_order_depends_on_seed_and_pass(shuffle):
    first = batches(large(shuffle))
    assert first == batches(large(shuffle))
    others = [batches(large(shuffle, seed=2)), batches(large(shuffle, number=1))]
    assert first not in others and others[0] != others[1]


def test_without_shuffle_every_pass_is_in_file_order():
    plan = large("none")
    assert batches(plan) == batches(large("none", seed=9, number=5))
    dealt = sorted(plan.batch(lane, n) for lane in range(3) for n in range(plan.lengths[lane]))
    assert dealt[0][:3] == (0, 0, 0)
    for lane in batches(plan):
        assert lane == sorted(lane)


def test_rows_of_a_chunk_stay_in_order_unless_they_are_shuffled():
    for lane in batches(large("chunks")):
        assert all(batch == sorted(batch) for batch in lane)
    assert any(batch != sorted(batch) for lane in batches(large("rows")) for batch in lane)


def test_the_order_of_chunks_is_no_pattern():
    chunks = [large("chunks", chunk_batches=1).batch(0, n).chunk for n in range(70)]
    steps = Counter(np.sign(np.diff(chunks)).tolist())
    assert 20 < steps[1] < 50 and 20 < steps[-1] < 50


def test_chunks_are_smaller_for_small_data():
    def chunk_rows(rows: int) -> int:
        settings = PlanSettings(10, 4, 16, "none", 1)
        return Plan((DataFile("a", "1", (rows,)),), settings, 0).batch(0, 0).chunk_rows

    assert [chunk_rows(rows) for rows in (100, 640, 3200, 5120, 51200)] == [10, 20, 100, 160, 160]


def test_in_async_every_chunk_is_a_lane_and_ssp_has_those_of_sync():
    files = (DataFile("a", "1", (400, 400)), DataFile("b", "2", (300,)))
    plans = {
        mode: Plan(files, PlanSettings(5, 3, 4, "rows", 1, mode), 0)
        for mode in ("sync", "ssp", "async")
    }
    assert batches(plans["ssp"]) == batches(plans["sync"])
    assert len(plans["async"].lengths) == 55 and set(plans["async"].lengths.tolist()) == {4}
    walked = [plans["async"].batch(lane, 0).chunk for lane in range(55)]
    assert sorted(walked) == list(range(55)) != walked
    assert {mode: plan.steps for mode, plan in plans.items()} == {
        "sync": 76,
        "ssp": 220,
        "async": 220,
    }


def test_fewer_batches_than_lanes_leave_lanes_empty():
    plan = Plan((DataFile("a", "1", (5,)),), PlanSettings(2, 8, 4, "rows", 3), 0)
    assert sorted(plan.lengths.tolist()) == [0] * 5 + [1] * 3
    assert (plan.steps, plan.step_rows(0), plan.active(1)) == (1, 5, [])


def test_no_rows():
    for files in ((), (DataFile("a", "1", ()),), (DataFile("a", "1", (0, 0)),)):
        plan = Plan(files, PlanSettings(2, 3, 4, "rows", 3), 0)
        assert (plan.steps, plan.rows, plan.active(0), plan.rows_before(0)) == (0, 0, [], 0)


@given(st.lists(st.lists(st.integers(0, 10_000), max_size=3), max_size=3))
@repeatable
def test_evaluation_is_in_row_order(blocks):
    plan = EvaluationPlan(tuple(DataFile("f", "d", tuple(b)) for b in blocks))
    rows = []
    for lane in range(plan.lanes):
        ref = plan.batch(lane)
        assert 1 <= ref.rows <= plan.ROWS
        rows += [(ref.file, ref.block, n) for n in plan.row_numbers(ref).tolist()]
    expected = [
        (f, b, n) for f, file in enumerate(blocks) for b, k in enumerate(file) for n in range(k)
    ]
    assert rows == expected
    assert plan.rows == len(expected)


PROGRAM = """
from tests.test_plan import batches, large
print(batches(large("rows")))
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_plan_is_the_same_in_another_process(hash_seed):
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(batches(large("rows")))


# -- the data manifest --------------------------------------------------------------------------


@given(filled_files, filled_files, st.integers(0, 2**62))
@repeatable
def test_manifest_round_trip(train, test, keys):
    manifest = Manifest(train, test, keys)
    names, blocks = manifest.pack()
    assert Manifest.unpack(names, blocks) == manifest


def test_the_digest_is_of_contents_and_their_order():
    a, b = DataFile("a", "1", (3,)), DataFile("b", "2", (4,))
    digest = Manifest((a, b), ()).digest
    assert digest == Manifest((DataFile("elsewhere/a", "1", (3,)), b), ()).digest
    others = [Manifest((b, a), ()), Manifest((a,), (b,)), Manifest((a,), ()), Manifest((), (a, b))]
    assert digest not in {manifest.digest for manifest in others}


@pytest.mark.parametrize(
    ("names", "blocks"),
    [
        ("", (np.int64([1]), np.int64([]))),
        ("[]", ()),
        ("7", (np.int64([]), np.int64([]))),
        ("[0, [], []]", (np.int64([]),)),
        ('[0, [["a", "1", 2]], []]', (np.int64([5]), np.int64([]))),
        ('[0, [["a", "1"]], []]', (np.int64([5]), np.int64([]))),
        ('[0, [["a", "1", "x"]], []]', (np.int64([5]), np.int64([]))),
        ("[0, [3], []]", (np.int64([5]), np.int64([]))),
        ('[0, [["a", "1", 1]], []]', (np.int64([-5]), np.int64([]))),
        ('[0, [["a", "1", 2], ["b", "2", -1]], []]', (np.int64([5]), np.int64([]))),
        ('[0, [["a", "1", -1], ["b", "2", 2]], []]', (np.int64([5]), np.int64([]))),
        ('[-1, [["a", "1", 1]], []]', (np.int64([5]), np.int64([]))),
        ('[0.5, [["a", "1", 1]], []]', (np.int64([5]), np.int64([]))),
        ('[true, [["a", "1", 1]], []]', (np.int64([5]), np.int64([]))),
    ],
)
def test_a_manifest_that_cannot_be_read(names, blocks):
    with pytest.raises(RemoteProtocolError, match="data manifest"):
        Manifest.unpack(names, blocks)
