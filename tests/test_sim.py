"""Whole jobs on the simulated cluster: any faults, and the same bits or a named reason.

An ordinary run takes 80 seeds of each mode with messages lost and workers killed, 40 with any
process killed, and 16 of what ends a job; ``CTRPS_SIM_SEEDS=2000`` takes more. A failure names its
seed; ``Cluster(any_job(seed))`` plays the same history again. The other modes are in
``test_sim_async``. ``python -m tests.simulate 0 10000`` plays as many with any process killed.
"""

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from ctrps.errors import LocalProtocolError
from ctrps.ps.asked import AskedKeys
from ctrps.ps.effects import Send
from ctrps.ps.job import Phase
from ctrps.ps.messages import Pushed
from ctrps.ps.plan import DataFile
from ctrps.ps.worker import Worker
from tests.sim import Cluster, verify
from tests.simaudit import AuditedServer
from tests.simaudit import AuditedStepwise as Stepwise
from tests.simjob import Data, Setup, any_job, changed, crashing, names_of_plan, plain

SEEDS = int(os.environ.get("CTRPS_SIM_SEEDS", "80"))
CHUNKS = 10


def chunks(seeds: int = SEEDS) -> pytest.MarkDecorator:
    """Run a test on ``seeds`` seeds, a tenth of them at a time."""
    borders = [seeds * i // CHUNKS for i in range(CHUNKS + 1)]
    ranges = [range(a, b) for a, b in itertools.pairwise(borders)]
    return pytest.mark.parametrize("seeds", ranges, ids=lambda r: f"{r.start}-{r.stop}")


@contextmanager
def named(setup: Setup) -> Iterator[None]:
    """Add the setup to whatever fails inside."""
    try:
        yield
    except Exception as error:
        error.add_note(str(setup))
        raise


# -- the same bits, whatever happens ------------------------------------------------------------


@chunks()
def test_any_cluster_ends_with_the_bits_of_one_process(seeds):
    for seed in seeds:
        setup = any_job(seed)
        with named(setup):
            cluster = Cluster(setup)
            cluster.run()
            verify(cluster)


@pytest.mark.parametrize("replicas", [0, 1])
@chunks(SEEDS // 2)
def test_any_crashes_are_survived(seeds, replicas):
    for seed in seeds:
        setup = crashing(seed, replicas, rows=None if seed % 4 == 3 else 40)
        with named(setup):
            cluster = Cluster(setup).patient()
            scheduler = cluster.run()
            verify(cluster)
            assert scheduler.machine.trained_rows == setup.passes * len(setup.data.labels)


def test_the_same_seed_gives_the_same_history():
    for seed in (5, 52):
        first, second = Cluster(Setup.drawn(seed)), Cluster(Setup.drawn(seed))
        first.run(), second.run()
        assert first.log == second.log
        assert first.messages == second.messages > 1000
        assert first.history.digest() == second.history.digest()


@chunks(SEEDS // 5)
def test_a_server_lost_for_good_is_done_without_or_named(seeds):
    for seed in seeds:
        mode = ("sync", "async", "ssp", "semi")[seed % 4]
        setup = changed(any_job(seed, mode), faults={"kill_role": "server", "crashes": 1})
        with named(setup):
            cluster = Cluster(setup)
            scheduler = cluster.run()
            if scheduler.status == 0:
                # Others took over, or it had done its work, or the crash found nobody.
                verify(cluster)
            elif scheduler.machine.roster.nodes and cluster.crashed:
                check_lost_server(cluster)


def check_lost_server(cluster: Cluster) -> None:
    scheduler, limits = cluster.processes["scheduler"], cluster.limits
    ((lost, at),) = cluster.crashed.items()
    joined = any(n.address == lost for n in scheduler.machine.roster)
    name = f"({lost}) is lost, and no other came for 60 s" if joined else "servers did not come"
    assert cluster.setup.servers == 1 or not joined
    assert scheduler.status == 4 and name in scheduler.reason
    ended = ("fenced", "no word from the scheduler", "the scheduler refused this node: the job is")
    for process in cluster.processes.values():
        if process.name != lost:
            assert process.status == 4
            assert name in process.reason or process.reason.startswith(ended)
    wait = max(limits.server_silent_s, limits.start_s - at)
    assert cluster.now - at < wait + limits.linger_s + limits.give_up_s


@chunks(SEEDS // 5)
def test_a_lost_scheduler_ends_all_nodes(seeds):
    for seed in seeds:
        mode = ("sync", "async", "ssp", "semi")[seed % 4]
        setup = changed(any_job(seed, mode), faults={"kill_role": "scheduler", "crashes": 1})
        with named(setup):
            cluster = Cluster(setup)
            scheduler = cluster.run()
            if scheduler.status == 0:
                verify(cluster)
            else:
                check_lost_scheduler(cluster)


def check_lost_scheduler(cluster: Cluster) -> None:
    scheduler, limits = cluster.processes["scheduler"], cluster.limits
    was_over = scheduler.machine.phase is Phase.STOPPING
    for process in cluster.processes.values():
        if process is not scheduler and not (was_over and process.status == 0):
            assert process.status == 4
            assert "scheduler" in process.reason or process.reason.startswith("fenced")
    late_s, beat_s = cluster.setup.faults.late_s, 1.0
    assert cluster.now - cluster.crashed["scheduler"] < limits.give_up_s + late_s + beat_s


@chunks(SEEDS // 5)
def test_interrupted_jobs_go_on_with_other_numbers_of_nodes(seeds):
    for seed in seeds:
        setup = any_job(seed)
        with named(setup):
            interrupt_and_resume(setup, random.Random(f"interrupts {seed}"))


def interrupt_and_resume(setup: Setup, rng: random.Random) -> None:
    """Run a job in up to four parts, each by another cluster."""
    cluster = Cluster(setup)
    for _ in range(3):
        cluster.interrupt_at = rng.uniform(2, 12)
        status = cluster.run().status
        if status == 0:
            break
        assert status == (75 if cluster.disk else 130)
        nodes = {"servers": rng.randint(1, 5), "workers": rng.randint(1, 5)}
        cluster = cluster.continued(changed(setup, **nodes))
    else:
        cluster.run()
    verify(cluster)


def test_a_run_that_stopped_before_its_evaluation_makes_up_for_it():
    first = run(Cluster(plain(evaluate_each=True, passes=3)))
    assert first.judged == [0, 1, 2]
    later = Cluster(first.setup)
    later.disk, later.resume, later.owes = {0: first.disk[0]}, 0, True
    assert run(later).judged == [0, 1, 2]


# -- negative controls: broken machines that the same checks must find ---------------------------
# In the comments: in how many seeds out of 60 each of them shows.


class ForgetsTheStepBefore(AuditedServer):
    """Answers a pull of the step before with the rows of this one."""

    def _on_pull(self, peer, pull):
        self.partitions.pull_before = self.partitions.pull
        return super()._on_pull(peer, pull)


class InOrderOfArrival(Stepwise):
    """Adds the lanes of a step in the order in which they came."""

    def _advance(self):
        if not self.missing():
            self._lanes = dict(zip(sorted(self._lanes), self._lanes.values(), strict=True))
        return super()._advance()


class FoldsByArrival(AuditedServer):
    stepwise = InOrderOfArrival


class RepeatsCount(Stepwise):
    """Adds a push again when it comes again."""

    def on_push(self, peer, push, now):
        held = self._lanes.get(push.lane)
        if held and push.batch == self.partitions.step:
            twice = [tuple(2 * a for a in arrays) for arrays in (held.gradients, held.counts)]
            self._lanes[push.lane] = held._replace(gradients=twice[0], counts=twice[1])
            return [Send(peer, Pushed(push.request, push.batch))]
        return super().on_push(peer, push, now)


class AddsRepeats(AuditedServer):
    stepwise = RepeatsCount


class StartsRowsAtRandom(AuditedServer):
    """Starts new rows from a stream of random numbers."""

    def _on_pull(self, peer, pull):
        for table in self.partitions.tables:
            table.seed += 1
        return super()._on_pull(peer, pull)


class OfAnyWorker(AskedKeys):
    """Remembers keys by the number of the request alone, as if one worker sent them all."""

    def keep(self, worker, request, keys):
        super().keep("any", request, keys)

    def find(self, worker, request):
        return super().find("any", request)


class OfLastPull(AskedKeys):
    """Takes a push to be for what its worker pulled last."""

    def find(self, worker, request):
        kept = self._by_worker.get(worker)
        return next(reversed(kept.values())) if kept else None


class MixesWorkersUp(AuditedServer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = OfAnyWorker(100)


class MixesPullsUp(AuditedServer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = OfLastPull(100)


class ForgetsToClip(AuditedServer):
    """Takes gradients as large as they come."""

    def _serve(self, pass_, step):
        super()._serve(pass_, step)
        for table in self.partitions.tables:
            table.spec = replace(table.spec, clip_value=0.0, clip_row=0.0)


class AsksOnlyOwnersOfKeys(Worker):
    """Pulls only from servers that hold a key of the batch; pushes to all, as it must."""

    def _ask(self, lane, task, now):
        everyone, sets = self.view.servers, self.model.key_sets(task.batch)
        task.clocks, task.asked = dict.fromkeys(everyone, 0), dict.fromkeys(everyone, -1)
        self.view.servers = tuple(
            node for node in everyone if any(self.view.size(s.starts, node) for s in sets)
        )
        try:
            return super()._ask(lane, task, now)
        finally:
            self.view.servers = everyone


CONTROLS = {
    "no undo": (ForgetsTheStepBefore, Worker),  # 8
    "fold in order of arrival": (FoldsByArrival, Worker),  # 33
    "repeated push added": (AddsRepeats, Worker),  # 25
    "new rows at random": (StartsRowsAtRandom, Worker),  # 22
    "keys of another worker": (MixesWorkersUp, Worker),  # 26
    "keys of another pull": (MixesPullsUp, Worker),  # 31
    "servers without keys not asked": (AuditedServer, AsksOnlyOwnersOfKeys),  # 41
    "not clipped": (ForgetsToClip, Worker),  # 20
}


def shows(seed: int, server_class: type[AuditedServer], worker_class: type[Worker]) -> bool:
    cluster = Cluster(Setup.drawn(seed), server_class, worker_class)
    try:
        cluster.run()
        verify(cluster)
    except (AssertionError, LocalProtocolError):
        return True
    return False


@pytest.mark.parametrize("name", CONTROLS)
def test_a_broken_machine_is_found_within_60_seeds(name):
    assert any(shows(seed, *CONTROLS[name]) for seed in range(60))


# -- standbys: what an owner must hold back -----------------------------------------------------


class AnswersEarly(AuditedServer):
    """Answers a version before its standby has it."""

    def _safely(self, answers):
        return answers


class ReportsEarly(AuditedServer):
    """Reports progress before its standby has it."""

    def _status(self, now):
        if self.copies:
            self.copies.facts = self._facts()
        return super()._status(now)


class ProtectsEarly(AuditedServer):
    """Says that its standby may take its place when that has something."""

    def _on_copied(self, copies, message, now):
        copies.protected = True
        return super()._on_copied(copies, message, now)


STANDBY_CONTROLS = {
    "sync answers early": (AnswersEarly, "sync"),
    "sync reports early": (ReportsEarly, "sync"),  # 56
    "async reports early": (ReportsEarly, "async"),  # 56
    "async protects early": (ProtectsEarly, "async"),  # 17
}


@pytest.mark.parametrize("name", STANDBY_CONTROLS)
def test_an_owner_that_holds_nothing_back_is_found_within_60_seeds(name):
    server_class, mode = STANDBY_CONTROLS[name]

    def breaks(seed: int) -> bool:
        faults = {"kill_role": "any", "crashes": 2, "delays": (0.1,)}
        cluster = Cluster(changed(Setup.drawn(seed, mode), faults=faults, replicas=1), server_class)
        try:
            cluster.run()
            verify(cluster)
        except (AssertionError, LocalProtocolError):
            return True
        return False

    assert any(breaks(seed) for seed in range(60))


# -- uneven clusters and data ------------------------------------------------------------------


def run(cluster: Cluster) -> Cluster:
    with named(cluster.setup):
        cluster.run()
        verify(cluster)
    return cluster


def test_case_19_files_of_uneven_length_are_used_once():
    files = tuple(DataFile(f"f{n}", str(n), (n,)) for n in (1, 3, 20, 100))
    data = replace(plain(124).data, files=files)
    cluster = run(Cluster(plain(124, data=data, workers=4, passes=3, batch_rows=4)))
    assert cluster.processes["scheduler"].machine.training.figures.report()["rows"] == 124


def test_case_20_more_nodes_than_work():
    data = Data(
        [[1, 2], [1], [3], [], [2, 3], [1]],
        [0, 1, 1, 0, 0, 1],
        (DataFile("f0", "6", (6,)), DataFile("f1", "0", ()), DataFile("f2", "0", ())),
    )
    setup = plain(data=data, workers=9, servers=7, lanes=2, batch_rows=1)
    cluster = run(Cluster(setup))
    assert any(server.partitions.keys_held == 0 for server in cluster.servers)
    idle = [
        p for p in cluster.processes.values() if p.role == "worker" and not p.machine.rows_pushed
    ]
    assert len(idle) >= 7


def test_case_20_more_servers_than_partitions():
    cluster = Cluster(plain(servers=9, partitions=8))
    run(cluster)
    assert len(cluster.servers) == 8


def test_case_22_an_unexpected_worker_gets_lanes():
    cluster = Cluster(plain(103, batch_rows=1, workers=1))
    cluster.at(3.5, lambda: cluster.start("late", "worker"))
    run(cluster)
    assert cluster.processes["late"].machine.rows_pushed > 20


def test_the_lanes_of_a_slow_worker_are_taken_by_another():
    cluster = Cluster(plain(passes=1))
    cluster.slow["w0"] = 50.0
    run(cluster)
    assert any("another worker takes them too" in line for line in cluster.log)
    assert cluster.now < 50


def test_a_job_without_a_worker_says_so_and_ends():
    cluster = Cluster(plain(103, batch_rows=1, workers=1))
    cluster.at(3.5, lambda: cluster.kill("w0"))
    scheduler = cluster.run()
    assert scheduler.status == 4
    assert "no worker" in scheduler.reason
    assert cluster.now < 3.5 + cluster.limits.worker_silent_s + cluster.limits.give_up_s + 5


# -- errors of a node --------------------------------------------------------------------------


def poison(cluster: Cluster, key: int) -> None:
    """Make the gradient of every batch with the key a NaN."""
    gradient = cluster.model.gradient

    def poisoned(batch, weights):
        result = gradient(batch, weights)
        factor = np.float32(np.nan if key in batch.keys else 1)
        return result._replace(tables=tuple(table * factor for table in result.tables))

    cluster.model.gradient = poisoned


def test_case_11_a_gradient_that_is_not_finite_stops_the_job():
    data = plain().data
    data.keys[17].append(777)
    cluster = Cluster(plain(data=data))
    poison(cluster, 777)
    scheduler = cluster.run()
    plan = scheduler.machine.training.plan
    (name,) = [
        f"pass 0 lane {lane} batch {b}"
        for _, lane, b in names_of_plan(changed(cluster.setup, passes=1))
        if 17 in data.rows_of(plan, plan.batch(lane, b))
    ]
    assert scheduler.status == 3
    assert scheduler.reason.endswith(f"the gradient of {name} is not finite")
    assert {p.status for p in cluster.processes.values()} == {3}


def test_a_damaged_file_stops_the_job():
    cluster = Cluster(plain())
    cluster.damaged.add(0)
    scheduler = cluster.run()
    assert scheduler.status == 3
    assert "f0: record" in scheduler.reason and "worker" in scheduler.reason
    assert {p.status for p in cluster.processes.values()} == {3}


def test_a_node_with_another_config_is_turned_away_and_the_job_goes_on():
    cluster = Cluster(plain(103, batch_rows=1))
    cluster.at(3.5, lambda: cluster.start("other", "worker", config_digest="another"))
    run(cluster)
    other = cluster.processes["other"]
    assert other.status == 2
    assert "another" in other.reason and "digest here" in other.reason
