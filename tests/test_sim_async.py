"""Whole jobs in async, ssp and semi mode: each batch in each partition once, whatever happens.

What these modes promise is not bits but counts, so the integer counter must be that of the plan,
and so must the ledger that ``simaudit`` keeps beside each partition. An ordinary run takes 80
seeds of each mode, ``CTRPS_SIM_SEEDS=2000`` takes 2000; ``Cluster(any_job(seed, mode))`` plays
a failure again.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from ctrps.ps import told
from ctrps.ps.effects import Send
from ctrps.ps.messages import Pushed
from ctrps.ps.partition import NO_MARKS
from ctrps.ps.progress import NO_PROGRESS
from ctrps.ps.semi import Held
from tests.sim import Cluster, verify
from tests.simaudit import AuditedArrival, AuditedSemi, AuditedServer
from tests.simjob import Setup, any_job, changed, plain
from tests.test_sim import SEEDS, chunks, named

MODES = ["async", "ssp", "semi"]


def check_staleness(cluster: Cluster) -> None:
    """Every push that was applied is counted, and the scheduler hears of all of them."""
    counted = [server.mode.staleness for server in cluster.servers]
    for server in cluster.servers:
        assert server.mode.staleness.sum() == server.mode.applied
        if cluster.resume is None:
            assert server.mode.applied == sum(plan.steps for plan in cluster.plans)
    shown = told.progress(cluster.processes["scheduler"].machine, cluster.now)["staleness"]
    assert shown == np.trim_zeros(sum(counted), "b").tolist()


@chunks()
@pytest.mark.parametrize("mode", MODES)
def test_any_cluster_applies_every_batch_once(mode, seeds):
    for seed in seeds:
        setup = any_job(seed, mode)
        with named(setup):
            cluster = Cluster(setup)
            cluster.run()
            verify(cluster)
            check_staleness(cluster)


def test_the_same_seed_gives_the_same_history():
    for mode in MODES:
        first, second = Cluster(Setup.drawn(9, mode)), Cluster(Setup.drawn(9, mode))
        first.run(), second.run()
        assert first.log == second.log
        assert first.history.digest() == second.history.digest()


# -- going on from a checkpoint -----------------------------------------------------------------


def other_nodes(setup: Setup, rng: random.Random) -> Setup:
    return changed(setup, servers=rng.randint(1, 5), workers=rng.randint(1, 5))


def in_parts(setup: Setup, rng: random.Random, how: str) -> list[Cluster]:
    """Run a job in up to four parts, each by another cluster, and the last one to its end.

    ``how`` names what ends a part: ``interrupt_at`` or ``kill_at``.
    """
    parts = [Cluster(setup)]
    for _ in range(3):
        setattr(parts[-1], how, rng.uniform(3, 12))
        if parts[-1].run().status == 0:
            return parts
        parts.append(parts[-1].continued(other_nodes(setup, rng)))
    parts[-1].run()
    return parts


@chunks(SEEDS // 8)
@pytest.mark.parametrize("mode", MODES)
def test_interrupted_jobs_go_on_exactly(mode, seeds):
    for seed in seeds:
        setup = any_job(seed, mode)
        with named(setup):
            last = in_parts(setup, random.Random(f"interrupts {seed}"), "interrupt_at")[-1]
            verify(last)
            check_staleness(last)


@chunks(SEEDS // 8)
@pytest.mark.parametrize("mode", ["sync", *MODES])
def test_killed_jobs_go_on_from_the_newest_checkpoint(mode, seeds):
    for seed in seeds:
        setup = changed(any_job(seed, mode), checkpoint_s=0.3)
        with named(setup):
            verify(in_parts(setup, random.Random(f"kills {seed}"), "kill_at")[-1])


def test_restarts_inside_a_pass_occur():
    """Else the two tests above would say little."""
    inside = apart = 0
    for seed in range(10):
        setup = changed(Setup.drawn(seed, "async"), checkpoint_s=0.3)
        for cluster in in_parts(setup, random.Random(f"kills {seed}"), "kill_at")[1:]:
            stored = cluster.disk.get(cluster.resume)
            inside += stored is not None and not stored.border
            marks = [s.marks.tolist() for s in stored.states.values()] if stored else []
            apart += any(m != marks[0] for m in marks)
    assert inside >= 5 and apart >= 3


@pytest.mark.parametrize("kill_at", [None, 10.0, 21.5])
def test_sync_checkpoints_inside_a_pass_do_not_change_the_bits(kill_at):
    setup = plain(103, batch_rows=1, faults={"delay_s": 0.2}, checkpoint_s=0.5)
    cluster = Cluster(setup)
    cluster.kill_at = kill_at
    cluster.run()
    if kill_at:
        assert not cluster.disk[max(cluster.disk)].border
        cluster = cluster.continued(changed(setup, servers=3, workers=1))
        cluster.run()
    verify(cluster)
    steps = [(s.pass_, s.step) for _, s in sorted(cluster.disk.items())]
    assert steps == sorted(set(steps))
    assert sum(not stored.border for stored in cluster.disk.values()) >= 3


def test_without_checkpoint_s_there_is_one_at_the_end_of_each_pass():
    for mode in ("sync", *MODES):
        cluster = Cluster(plain(103, batch_rows=1, passes=3, mode=mode))
        cluster.run()
        assert [(s.pass_, s.border) for s in cluster.disk.values()] == [(p, True) for p in range(3)]


# -- staleness and the bound --------------------------------------------------------------------


def staleness_of(setup: Setup) -> np.ndarray:
    cluster = Cluster(setup)
    cluster.run()
    verify(cluster)
    check_staleness(cluster)
    return sum(server.mode.staleness for server in cluster.servers)


def test_one_worker_with_one_batch_in_flight_is_never_stale():
    for seed in range(10):
        faults = {"crashes": 0, "suspicions": 0}
        drawn = changed(Setup.drawn(seed, "async"), workers=1, window=1, faults=faults)
        counted = staleness_of(drawn)
        assert counted[0] == counted.sum() > 0


def test_more_workers_and_wider_windows_are_staler():
    def mean(**values) -> float:
        counted = staleness_of(plain(103, batch_rows=1, mode="async", **values))
        return float((counted * np.arange(len(counted))).sum() / counted.sum())

    assert mean(workers=1, window=1) == 0 < mean(workers=1, window=3)
    assert mean(workers=1, window=1) < mean(workers=2, window=1) < mean(workers=6, window=1)


def test_a_slow_worker_holds_the_others_back_only_in_ssp():
    def most_apart(**values) -> int:
        cluster = Cluster(plain(103, batch_rows=1, passes=1, servers=1, **values))
        cluster.slow["w0"], apart = 0.4, []
        server = AuditedServer._on_push

        def watched(self, peer, push, now):
            effects = server(self, peer, push, now)
            open_lanes = self.mode.lowest < self.mode.plan.lengths - 1
            apart.append(int(np.ptp(self.mode.lowest[open_lanes])) if open_lanes.any() else 0)
            return effects

        cluster.server_class = type("Watched", (AuditedServer,), {"_on_push": watched})
        cluster.run()
        verify(cluster)
        return max(apart)

    assert most_apart(mode="ssp", staleness=1) <= 2
    assert most_apart(mode="ssp", staleness=100) > 5


def test_all_pulls_of_a_lane_that_wait_are_answered_without_a_repeat():
    setup = plain(103, batch_rows=1, passes=1, mode="ssp", staleness=0, window=3, lanes=8)
    cluster = Cluster(setup)
    cluster.limits = replace(cluster.limits, retry_s=60.0)
    cluster.run()
    verify(cluster)
    assert cluster.now < 15


# -- between passes -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", *MODES])
def test_patience_ends_the_job_and_the_best_is_kept(mode):
    setup = plain(mode=mode, passes=9, evaluate_each=True, patience=2)
    cluster = Cluster(setup)
    cluster.badness = [0.5, None, 0.4, 0.45, 0.41, 0.1]
    scheduler = cluster.run()
    assert (scheduler.status, scheduler.machine.pass_) == (0, 4)
    assert any("no better for 2 passes" in line for line in cluster.log)
    assert [cluster.disk[kept].pass_ for kept in cluster.kept] == [0, 2]
    assert cluster.badness == [0.1]
    cluster.setup = changed(setup, passes=5)
    verify(cluster)


def test_without_patience_every_pass_is_done_and_nothing_is_kept():
    cluster = Cluster(plain(passes=4, evaluate_each=True))
    cluster.badness = [0.5, 0.6, 0.7, 0.8]
    cluster.run()
    verify(cluster)
    assert (cluster.badness, cluster.kept) == ([], [])


def test_only_the_last_pass_is_evaluated_unless_asked():
    cluster = Cluster(plain(passes=3))
    cluster.badness = [0.5, 0.6]
    cluster.run()
    assert cluster.badness == [0.6]


# -- negative controls: broken machines that the same checks must find ---------------------------
# In the comments: in how many seeds out of 60 each of them shows.


class RepeatsCount(AuditedArrival):
    """Applies a push again when it comes again."""

    def on_push(self, peer, push, now):
        if len(self.owned) and push.batch <= self.lowest[push.lane]:
            self._apply(peer, push, self.owned)
            return [Send(peer, Pushed(push.request, push.batch))]
        return super().on_push(peer, push, now)


class TakesGaps(AuditedArrival):
    """Applies a push although the one before is missing."""

    def on_push(self, peer, push, now):
        marks = self.marks[self.owned, push.lane]
        if len(marks) and marks.min() < push.batch - 1:
            self._apply(peer, push, self.owned)
            return [Send(peer, Pushed(push.request, push.batch))]
        return super().on_push(peer, push, now)


class OpenGate(AuditedArrival):
    """Answers every pull at once."""

    def _near(self, batch):
        return True

    def check(self):
        pass


class AnyAnswer(AuditedArrival):
    """Takes the last answer to a pull for the one that the worker used."""

    def _compensated(self, peer, push):
        return super()._compensated(peer, replace(push, clock=self._clock_of(peer, push)))

    def _clock_of(self, peer, push):
        answer = self.tickets._kept.get((peer, push.asked))
        return answer.clock if answer else push.clock


class NeverLate(AuditedArrival):
    """Knows no bound of staleness."""

    def on_push(self, peer, push, now):
        self.settings = replace(self.settings, stale_above=None)
        return super().on_push(peer, push, now)


class HoldsRepeats(AuditedSemi):
    """Holds a push that has been applied before."""

    def on_push(self, peer, push, now):
        if len(self.owned) and push.batch <= self.lowest[push.lane]:
            self._held[push.lane] = Held(push, {(peer, push.request)})
            return self._step()
        return super().on_push(peer, push, now)


class NoQuorum(AuditedSemi):
    """Applies what comes at once."""

    def _enough(self):
        return 1


class NoWindow(AuditedSemi):
    """Waits for the quorum however long it takes."""

    def on_tick(self, now):
        self.settings = replace(self.settings, window_s=1000.0)
        return super().on_tick(now)


class NoTurns(AuditedSemi):
    """Answers a pull before the push of the batch before it is applied."""

    def _ready(self, pull):
        return True


def semi_of(mode: type[AuditedSemi]) -> type[AuditedServer]:
    return type(mode.__name__, (AuditedServer,), {"semi": mode})


class MixesAnswersUp(AuditedServer):
    arrival = AnyAnswer


class TakesWhatIsLate(AuditedServer):
    arrival = NeverLate


class AddsRepeats(AuditedServer):
    arrival = RepeatsCount


class AcceptsGaps(AuditedServer):
    arrival = TakesGaps


class GateOpen(AuditedServer):
    arrival = OpenGate


class Forgetful(AuditedServer):
    """Saves its rows without what belongs to them."""

    forgets = "marks"

    def on_loaded(self, view, partitions, pass_, step, now):
        nothing = {"marks": NO_MARKS, "progress": NO_PROGRESS}[self.forgets]
        states = {p: s._replace(**{self.forgets: nothing}) for p, s in partitions.items()}
        return super().on_loaded(view, states, pass_, step, now)


class ForgetsProgress(Forgetful):
    forgets = "progress"


CONTROLS = {
    "repeated push added": (AddsRepeats, "async"),  # 50
    "repeated push added, ssp": (AddsRepeats, "ssp"),  # 50
    "gaps accepted": (AcceptsGaps, "async"),  # 10
    "gate open": (GateOpen, "ssp"),  # 23
    "late pushes as they are": (TakesWhatIsLate, "async"),  # 17
    "late pushes as they are, ssp": (TakesWhatIsLate, "ssp"),  # 17
    "compensated by another answer": (MixesAnswersUp, "async"),  # 9
    "repeated push held, semi": (semi_of(HoldsRepeats), "semi"),  # 48
    "no quorum": (semi_of(NoQuorum), "semi"),  # 21
    "no window": (semi_of(NoWindow), "semi"),  # 20
    "lanes out of turn": (semi_of(NoTurns), "semi"),  # 21
    "marks not saved, semi": (Forgetful, "semi"),  # 34
    "marks not saved": (Forgetful, "async"),  # 43
    "progress not saved": (ForgetsProgress, "async"),  # 30
    "progress not saved, sync": (ForgetsProgress, "sync"),  # 26
}


def shows(seed: int, server_class: type[AuditedServer], mode: str) -> bool:
    setup = Setup.drawn(seed, mode)
    cluster = Cluster(setup, server_class)
    try:
        cluster.interrupt_at = 5.0
        if cluster.run().status == 75:
            cluster = cluster.continued(setup)
            cluster.run()
        verify(cluster)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("name", CONTROLS)
def test_a_broken_machine_is_found_within_60_seeds(name):
    assert any(shows(seed, *CONTROLS[name]) for seed in range(60))
