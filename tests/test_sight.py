"""Workers that see only some of the files: who gets which lanes, and whole jobs of them."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.ps.effects import SCHEDULER, Log, Prepare
from ctrps.ps.leases import QueueLeases
from ctrps.ps.member import Limits
from ctrps.ps.messages import Welcome
from ctrps.ps.plan import DataFile, Manifest
from ctrps.ps.sight import FilesSeen, Sight
from ctrps.ps.worker import Worker
from ctrps.runtime.inputs import unseen
from tests.sim import Cluster, verify
from tests.simjob import Setup, any_job, changed, plain
from tests.test_machines import answers, identity, orders, status_of, training_scheduler
from tests.test_sim import SEEDS, chunks, named
from tests.test_view_leases import repeatable

FILES = tuple(DataFile(f"/data/{name}", name, (8, 8)) for name in "abc")


def three_files(mode: str = "sync", workers: int = 2, **values) -> Setup:
    """60 rows in three training files, and a test file."""
    setup = plain(60, mode=mode, workers=workers, **values)
    files = tuple(DataFile(f"/data/f{n}", str(n), (10, 10)) for n in range(3))
    return changed(setup, data=replace(setup.data, files=files))


def numbers(*files: int) -> tuple[np.ndarray, ...]:
    return (np.array(files, np.int32),)


# -- what is known ------------------------------------------------------------------------------


@given(st.lists(st.sets(st.integers(0, 4)), max_size=4))
@repeatable
def test_files_by_plain_sets(unseen_by):
    seen = FilesSeen(tuple(DataFile(f"f{n}", "", (1,)) for n in range(5)))
    for worker, files in enumerate(unseen_by):
        seen.learn(worker, files)
    workers = range(len(unseen_by))
    for file in range(5):
        blind = {w for w in workers if file in unseen_by[w]}
        assert seen.blind([file]) == blind
        assert (file in seen.dark(workers)) == (bool(unseen_by) and len(blind) == len(unseen_by))
    assert seen.all_seen_by(workers) == [w for w in workers if not unseen_by[w]]


def test_what_a_worker_says_is_taken_once_by_its_numbers_in_the_manifest():
    empty = DataFile("/data/empty", "e", ())
    sight = Sight(Manifest((*FILES, empty), (empty, DataFile("/data/t", "t", (8,)))), "async")
    said = sight.learn("worker 3", status_of(7, 1, unseen=numbers(1, 3, 5, 6, -1)))
    assert said == "worker 3 does not see /data/b and /data/t: it computes the others"
    assert (sight.train.unseen(7), sight.test.unseen(7)) == (["/data/b"], ["/data/t"])
    assert not sight.learn("worker 3", status_of(7, 2, unseen=numbers(1, 3, 5, 6, -1)))
    assert not sight.learn("worker 4", status_of(8, 1))
    assert not sight.learn("worker 5", status_of(9, 1, unseen=(np.float32([3, 0.5, np.nan]),)))
    assert sight.train.all_seen_by([7, 8, 9]) == [8, 9]


# -- short lanes --------------------------------------------------------------------------------


@given(st.integers(0, 12), st.data())
@settings(repeatable, max_examples=60)
def test_short_lanes_go_to_workers_that_see_them_and_all_get_done(lanes, data):
    blind = [data.draw(st.frozensets(st.integers(1, 4))) for _ in range(lanes)]
    leases = QueueLeases(2, lambda lane: blind[lane])
    workers = [0, 1, 2]
    leases.open(range(lanes), workers)
    for _ in range(60):
        if not leases.unfinished:
            break
        what = data.draw(st.sampled_from(["finish", "claim", "deal", "share", "sight"]))
        if what == "deal":
            workers = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True))
        elif what == "sight":
            lane = data.draw(st.integers(0, lanes - 1))
            blind[lane] |= {data.draw(st.integers(1, 4))}
        if what in ("deal", "sight"):
            leases.deal(workers)
        if what == "share":
            leases.share()
        for lane in leases.held_by(data.draw(st.sampled_from(workers)))[:1]:
            leases.claim(workers[0], lane)
            if what == "finish":
                leases.finish(lane)
        for worker in workers:
            held = leases.held_by(worker)
            assert len(held) <= 2
            assert not any(worker in blind[lane] for lane in held)
    leases.deal([0])
    for _ in range(2 * lanes + 1):
        leases.share()
        for lane in leases.held_by(0):
            leases.finish(lane)
    assert not leases.unfinished


def test_a_worker_without_lanes_shares_only_what_it_sees():
    leases = QueueLeases(2, lambda lane: frozenset({2}) if lane < 3 else frozenset())
    leases.open(range(4), [1, 2])
    assert (leases.held_by(1), leases.held_by(2)) == ([0, 1], [3])
    leases.claim(2, 3)
    assert leases.held_by(2) == []
    assert leases.share() and leases.held_by(2) == [3]
    leases.finish(3)
    assert not leases.share()
    leases.deal([2])
    assert leases.held_by(2) == [] and leases.unfinished == {0, 1, 2}


# -- single messages ----------------------------------------------------------------------------


def test_a_worker_begins_nothing_before_it_has_looked_and_then_what_it_sees():
    setup = three_files("async")
    worker = Worker(identity("worker"), Limits(), 0.0, setup.model(), setup.settings)
    worker.on_message(SCHEDULER, Welcome("boot", 0, 0, 0, *setup.manifest.pack()), 0.0)
    lanes = setup.plans()[0].lengths
    leases = [[lane, 0] for lane in range(len(lanes))]
    assert not worker.on_message(SCHEDULER, orders(1, leases=leases), 0.0)
    said, *effects = worker.on_looked([1], 0.0)
    assert said == Log("cannot read /data/f1: others compute what needs them")
    assert {e.ref.file for e in effects if isinstance(e, Prepare)} == {0, 2}
    (status,) = answers(effects[-1:])
    assert [array.tolist() for array in status.unseen] == [[1]]


def test_a_worker_that_sees_all_says_nothing_of_it():
    setup = three_files()
    worker = Worker(identity("worker"), Limits(), 0.0, setup.model(), setup.settings)
    worker.on_message(SCHEDULER, Welcome("boot", 0, 0, 0, *setup.manifest.pack()), 0.0)
    assert worker.on_looked([], 0.0) == []
    (status,) = answers(worker.on_tick(5.0))
    assert status.unseen == ()


@pytest.mark.parametrize("mode", ["sync", "ssp", "semi", "async"])
def test_a_scheduler_says_what_a_worker_misses_and_takes_its_lanes_back(mode):
    scheduler = training_scheduler(three_files(mode, servers=1, workers=1))
    assert scheduler.training.leases.held_by(1)
    effects = scheduler.on_message("worker", status_of(1, 1, unseen=numbers(2)), 0.0)
    first, second = (e.text for e in effects if isinstance(e, Log))
    assert first.startswith("worker 0 (s0:1) does not see /data/f2: it ")
    assert ("train.consistency=async" in first) == (mode != "async")
    assert second == "no worker sees /data/f2; start one where it can be read"
    plan = scheduler.training.plan
    held = [plan.files_of(lane) for lane in scheduler.training.leases.held_by(1)]
    assert bool(held) == (mode == "async") and not any(2 in files for files in held)


# -- whole jobs ---------------------------------------------------------------------------------


def partly_blind(setup: Setup, rng: random.Random) -> Cluster:
    """Each file is seen by some worker; but in async mode, the first sees all training files."""
    cluster = Cluster(setup)
    train, test = len(setup.data.files), len(setup.test.files)
    names = [f"w{i}" for i in range(setup.workers)]
    cluster.unseen = {name: [] for name in names}
    for file in range(train + test):
        sees = {rng.choice(names), *(name for name in names if rng.random() < 0.5)}
        if file < train and setup.mode != "async":
            sees.add("w0")
        for name in set(names) - sees:
            cluster.unseen[name].append(file)
    return cluster


@pytest.mark.parametrize("mode", ["sync", "async", "ssp", "semi"])
@chunks(SEEDS // 4)
def test_any_cluster_of_which_some_see_only_some_files(mode, seeds):
    for seed in seeds:
        rng = random.Random(f"sight {mode} {seed}")
        setup = changed(any_job(seed, mode), workers=rng.randint(2, 5))
        if rng.random() < 0.5:
            setup = changed(setup, faults={"kill_role": "any", "crashes": rng.randint(1, 5)})
        with named(setup):
            cluster = partly_blind(setup, rng)
            cluster.run()
            verify(cluster)


def split(setup: Setup, **unseen: list[int]) -> Cluster:
    cluster = Cluster(setup)
    cluster.unseen = unseen
    return cluster


def lines(cluster: Cluster, text: str) -> list[str]:
    return [line for line in cluster.log if text in line]


def test_no_worker_needs_all_files_in_async():
    cluster = split(three_files("async"), w0=[1, 2], w1=[0])
    cluster.run()
    verify(cluster)
    assert len(lines(cluster, "it computes the others")) == 2
    assert cluster.processes["w0"].machine.rows_pushed == 2 * 20
    assert not lines(cluster, "are slow")


@pytest.mark.parametrize("mode", ["sync", "ssp", "semi"])
def test_who_lacks_a_training_file_trains_nothing_in_other_modes_but_scores(mode):
    # The test file, 3, is only seen by the worker that may not train.
    cluster = split(three_files(mode), w0=[3], w1=[1])
    cluster.run()
    verify(cluster)
    assert cluster.processes["w1"].machine.rows_pushed == 0


def test_the_job_waits_for_a_file_that_nobody_sees_any_more():
    cluster = split(three_files("async", passes=1, batch_rows=1), w0=[1])
    cluster.slow = {"w1": 1000.0}
    cluster.at(5.0, lambda: cluster.kill("w1"))
    cluster.at(45.0, lambda: cluster.start("w2", "worker"))
    cluster.run()
    verify(cluster)
    what = "no worker sees /data/f1; start one where it can be read"
    assert len(lines(cluster, what)) >= 5
    assert cluster.processes["w2"].machine.rows_pushed >= 20


@pytest.mark.parametrize(
    ("mode", "unseen", "named_files"),
    [
        ("async", {"w0": [1, 2], "w1": [1]}, "no worker sees /data/f1; start one where"),
        ("async", {"w0": [0, 1, 2], "w1": [0, 1, 2]}, "sees /data/f0 and 2 more files; start"),
        ("sync", {"w0": [1, 2], "w1": [1]}, "no worker sees /data/f1; start one where"),
        ("ssp", {"w0": [2], "w1": [1]}, "no worker sees all training files, one lacks /data/f"),
        ("sync", {"w0": [3], "w1": [3]}, "no worker sees f0; start one where it can be read"),
    ],
)
def test_a_file_that_nobody_ever_sees_ends_the_job_and_is_named(mode, unseen, named_files):
    cluster = split(three_files(mode), **unseen)
    scheduler = cluster.run()
    assert scheduler.status == 4
    assert scheduler.reason.startswith("no progress for 60 s: ") and named_files in scheduler.reason


def test_what_cannot_be_opened_is_not_seen(tmp_path):
    there = tmp_path / "there"
    there.write_bytes(b"")
    files = [DataFile(str(tmp_path / name), "", (1,)) for name in ("there", "not", "there")]
    assert unseen(Manifest(tuple(files), (files[1],))) == [1, 3]
