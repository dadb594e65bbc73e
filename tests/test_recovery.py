"""What must survive a death: the journal, the placement of partitions, names of checkpoints.

Single machines first, then whole jobs on the simulated cluster, with machines that forget.
"""

import re
from dataclasses import replace

import pytest

from ctrps.codec import FrameFileWriter
from ctrps.errors import LocalProtocolError
from ctrps.ps.effects import SCHEDULER, Compute, Load, Log, Remember
from ctrps.ps.fleet import Fleet
from ctrps.ps.job import Phase, Poison
from ctrps.ps.journal import VERSION, Journal, Known
from ctrps.ps.member import Limits
from ctrps.ps.messages import Orders, Pull, Register, Welcome
from ctrps.ps.roster import Roster
from ctrps.ps.scheduler import Scheduler
from ctrps.ps.server import Holding, Server
from ctrps.ps.told import poisoned
from ctrps.ps.view import Pair, Placement
from ctrps.runtime.saving import JOURNAL, remember, remembered
from tests.sim import Cluster, verify
from tests.simjob import Setup, changed, plain
from tests.test_machines import (
    answers,
    identity,
    orders,
    register,
    scheduler_of,
    status_of,
    training_scheduler,
)

# -- the journal --------------------------------------------------------------------------------

MEMBERS = (
    Known(0, "server", 0, "s-1", "127.0.0.1:99", False),
    Known(1, "worker", 3, "w-1", "", True),
)
PAIRS = (Pair(0, 2, 5), Pair(2, 3, 6))
PLACED = Placement(7, (0,) * 8, (0,), 6, 4, PAIRS, 7, (5,))
JOURNALS = [
    Journal("c", "k", "p", 1 << 50, (1 << 50) + 2, MEMBERS, PLACED, 2, 9, 1 << 40, 6, (3, 70)),
    Journal("c", "", "p", 5, 5, (), Placement(), 0, 0, 0, 0, (), (4, "server 0 is löst")),
]


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_journal_comes_back_from_its_file(tmp_path, journal):
    assert remembered(tmp_path) is None
    for kept in (*JOURNALS, journal):
        remember(tmp_path, kept)
    assert remembered(tmp_path) == journal
    assert [path.name for path in tmp_path.iterdir()] == [JOURNAL]
    remember(tmp_path, None)
    assert not list(tmp_path.iterdir())
    remember(tmp_path, None)


@pytest.mark.parametrize("packed", [None, [], [VERSION + 1, "c"], {"version": VERSION}, "journal"])
def test_a_journal_of_another_version_is_none(tmp_path, packed):
    assert Journal.unpack(packed) is None
    with FrameFileWriter(tmp_path / JOURNAL, JOURNAL) as file:
        file.close({"state": packed})
    assert remembered(tmp_path) is None


def test_a_damaged_journal_is_none(tmp_path):
    """Cut short anywhere, or with one byte changed anywhere."""
    remember(tmp_path, JOURNALS[0])
    path, whole = tmp_path / JOURNAL, (tmp_path / JOURNAL).read_bytes()
    spoiled = [whole[:n] for n in range(len(whole))]
    spoiled += [
        whole[:n] + bytes([whole[n] ^ 1 << n % 8]) + whole[n + 1 :] for n in range(len(whole))
    ]
    for data in spoiled:
        path.write_bytes(data)
        assert remembered(tmp_path) is None
    path.write_bytes(whole)
    assert remembered(tmp_path) == JOURNALS[0]


# -- servers and their placement ----------------------------------------------------------------


def roster_of(servers: int) -> Roster:
    roster = Roster("sim", "digest", Limits())
    for n in range(servers):
        roster.admit(f"s{n}", register(boot=f"s{n}"), 0.0)
    return roster


def test_a_fleet_waits_for_a_lost_server_then_goes_on_with_fewer():
    roster = roster_of(2)
    fleet = Fleet(roster, Limits(), wanted=2, replicas=0, partitions=8)
    fleet.place(-1)
    assert fleet.placement == Placement(1, (0,) * 4 + (1,) * 4, (0, 1), 1, -1)
    assert not fleet.outdated
    roster[1].dead = True
    assert fleet.lose(roster[1], 10.0)
    assert not fleet.enough(39.9) and fleet.enough(40.0)
    assert fleet.waits_for(15.0) == "waiting for 1 of 2 servers, 5 s of 30 s"
    fleet.place(3)
    assert fleet.placement == Placement(2, (0,) * 8, (0,), 2, 3)
    assert (fleet.lost_at, fleet.given_up(1000.0)) == (None, "")
    assert not fleet.lose(roster[1], 50.0), "it holds nothing any more"


def test_a_fleet_goes_on_at_once_when_another_server_is_there():
    roster = roster_of(3)
    fleet = Fleet(roster, Limits(), wanted=3, replicas=0, partitions=8)
    fleet.place(-1)
    roster[0].dead = True
    fleet.lose(roster[0], 10.0)
    assert not fleet.enough(10.0)
    roster.admit("new", register(boot="new"), 11.0)
    assert fleet.enough(11.0)
    fleet.place(-1)
    assert fleet.placement.servers == (1, 2, 3)


def test_a_protected_standby_takes_the_place_of_its_owner():
    roster = roster_of(3)
    fleet = Fleet(roster, Limits(), wanted=1, replicas=1, partitions=8)
    fleet.place(-1)
    assert fleet.placement.pairs == (Pair(0, 1, 0),)
    roster[0].status = status_of(0, 1, protected=0)
    fleet.learn(roster[0])
    roster[0].dead = True
    assert not fleet.lose(roster[0], 10.0), "nothing is lost with it"
    placement = fleet.placement
    assert (placement.number, placement.owners, placement.epoch) == (2, (1,) * 8, 1)
    assert (placement.pairs, placement.protected) == ((Pair(1, 2, 1),), ())
    roster[1].dead = True
    assert fleet.lose(roster[1], 11.0), "its standby was not protected yet"


def test_a_fleet_without_a_server_gives_up_and_names_all_that_are_lost():
    roster = roster_of(2)
    fleet = Fleet(roster, Limits(), wanted=2, replicas=0, partitions=8)
    fleet.place(-1)
    for number, at in ((1, 10.0), (0, 12.0)):
        roster[number].dead = True
        fleet.lose(roster[number], at)
    assert not fleet.enough(1000.0)
    assert fleet.given_up(69.9) == ""
    lost = "server 0 (s0:1), server 1 (s0:1) is lost, and no other came for 60 s"
    assert fleet.given_up(70.0) == lost


def test_a_spare_server_serves_nothing_until_the_next_view():
    setup = plain()
    server = Server(identity(), Limits(), 0.0, setup.model(), setup.settings)
    server.on_message(SCHEDULER, Welcome("boot", 0, 5, 2, *setup.manifest.pack()), 0.0)
    server.on_message(SCHEDULER, orders(1), 0.0)
    server.check()
    assert (server.holding, server.mode, server.owned) == (Holding.NOTHING, None, ())
    (refused,) = answers(server.on_message("w", Pull(1, 8, 0, 0, 0, "train", ()), 0.0))
    assert (refused.request, refused.why) == (8, "view")
    more = orders(2, view=2, owners=[0] * 32 + [5] * 32, addresses=[[0, "a:1"], [5, "b:1"]])
    (load,) = [
        e
        for e in server.on_message(SCHEDULER, replace(more, restore=4, pass_=1), 0.0)
        if isinstance(e, Load)
    ]
    assert load == Load(2, 4, 1, tuple(range(32, 64)))


def test_what_was_read_for_an_older_view_is_dropped():
    setup = plain()
    server = Server(identity(), Limits(), 0.0, setup.model(), setup.settings)
    server.on_message(SCHEDULER, Welcome("boot", 0, 0, 0, *setup.manifest.pack()), 0.0)
    for view in (1, 2):
        server.on_message(SCHEDULER, orders(view, view=view, restore=4), 0.0)
    assert server.on_loaded(1, {}, 0, 0, 0.0) == []
    assert server.holding is Holding.LOADING
    server.on_loaded(2, {}, 0, 0, 0.0)
    assert server.holding is Holding.SERVING


# -- the scheduler ------------------------------------------------------------------------------


def logs(effects: list) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Log)]


def replacing(role: str, rank: int, **values) -> Register:
    return replace(register(role=role, **values), rank=rank, replaces=True)


@pytest.mark.parametrize("role", ["server", "worker"])
def test_a_node_that_replaces_another_buries_it_at_once(role):
    scheduler = training_scheduler(plain(servers=1, workers=1))
    effects = scheduler.on_message("new", replacing(role, 0, boot="new"), 0.1)
    old, new = (0, 2) if role == "server" else (1, 2)
    assert scheduler.roster[old].dead and scheduler.roster[new].rank == 0
    assert any("it died, and was started again" in line for line in logs(effects))
    if role == "server":
        assert scheduler.phase is Phase.LOADING
        assert scheduler.fleet.placement.servers == (new,)
    else:
        assert scheduler.training.leases_of(new)
    again = scheduler.on_message("new", replacing(role, 0, boot="new"), 0.2)
    assert not logs(again) and scheduler.roster[new].alive


def test_a_node_that_replaces_nobody_just_joins():
    scheduler = training_scheduler(plain(servers=1, workers=1))
    scheduler.on_message("new", replacing("worker", 4, boot="new"), 0.1)
    assert scheduler.roster[1].alive and scheduler.roster[2].rank == 4


def restarted(scheduler: Scheduler, now: float, **changes) -> Scheduler:
    """Another scheduler, with what that one has on disk."""
    journal = scheduler._remembered
    assert journal is not None
    term = journal.term + 1
    return Scheduler(scheduler.spec, Limits(), now, term, replace(journal, **changes))


def test_a_status_of_an_older_term_is_answered_by_orders_only():
    scheduler = restarted(training_scheduler(plain(servers=1, workers=1)), 50.0)
    assert scheduler.phase is Phase.LOADING and scheduler.fleet.placement.number == 1
    (told,) = answers(scheduler.on_message("server", status_of(0, 9, step=3), 50.0))
    assert isinstance(told, Orders)
    assert (told.term, told.view, told.addresses) == (1, 1, [(0, "s0:1")])
    assert scheduler.fleet.reports == [] and scheduler.training.step == -1
    scheduler.on_message("server", status_of(0, 10, term=1, step=3), 50.1)
    assert scheduler.phase is Phase.TRAINING and scheduler.training.step == 3
    assert scheduler.on_message("server", status_of(0, 11, term=2, step=4), 50.2) == []
    assert scheduler.training.step == 3


def test_a_restarted_scheduler_gives_its_nodes_time_to_speak():
    scheduler = restarted(training_scheduler(plain(servers=1, workers=1)), 500.0)
    for now in (501.0, 502.0, 502.9):
        scheduler.on_tick(now)
    assert all(node.alive for node in scheduler.roster)
    effects = scheduler.on_tick(503.9) + scheduler.on_tick(504.9) + scheduler.on_tick(505.0)
    assert [node.alive for node in scheduler.roster] == [False, False]
    silent = [line for line in logs(effects) if "is lost: silent for" in line]
    assert [line.partition(" is")[0][:8] for line in silent] == ["worker 0", "server 0"]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("stopped_s", [2.0, 10.0, 40.0])
def test_a_scheduler_that_stood_still_blames_nobody(mode, stopped_s):
    cluster = Cluster(plain(mode=mode, passes=4))
    processes = cluster.processes
    cluster.at(6.0, lambda: setattr(processes["scheduler"], "stopped_until", 6.0 + stopped_s))
    ended = cluster.run()
    verify(cluster)
    assert ended.machine.clock.looked > 6.0 + stopped_s
    assert not [line for line in cluster.log if "lost" in line]


def test_what_is_told_is_on_disk_first():
    """No message of the same effects comes before the journal that it follows from."""
    scheduler = scheduler_of(plain(servers=1, workers=1))
    for role in ("server", "worker"):
        first, *rest = scheduler.on_message(role, register(role=role, boot=role), 0.0)
        assert isinstance(first, Remember)
        assert not any(isinstance(effect, Remember) for effect in rest)
    assert first.journal.placement.number == 1
    assert [known.boot for known in first.journal.members] == ["server", "worker"]
    assert not any(isinstance(e, Remember) for e in scheduler.on_message(*beat(1), 1.0)[1:])
    assert scheduler.on_tick(1.1) == []


def beat(seq: int) -> tuple:
    return "worker", status_of(1, seq)


def test_a_restarted_scheduler_that_was_stopping_ends_with_the_same_words():
    before = training_scheduler(plain(servers=1, workers=1))
    before.on_fault("disk full", 3, 0.0)
    scheduler = restarted(before, 10.0)
    assert scheduler.phase is Phase.STOPPING
    (told,) = answers(scheduler.on_message("worker", status_of(1, 9), 10.0))
    assert (told.phase, told.exit_status, told.reason) == ("stop", 3, "disk full")


def test_numbers_of_checkpoints_are_not_used_again():
    before = training_scheduler(plain(servers=1, workers=1))
    used = before.cuts.current[0]
    assert restarted(before, 1.0).cuts.next == used + 1
    assert restarted(before, 1.0, next_checkpoint=0).cuts.next == 0


@pytest.mark.parametrize("at_border", [False, True])
def test_a_pass_is_over_only_with_its_border_checkpoint(at_border):
    """A checkpoint inside the pass is not it, though the servers have done all of the pass."""
    before = training_scheduler(plain(servers=1, workers=1, mode="ssp"))
    steps = before.training.plan.steps
    before.spec = replace(before.spec, resume=(7, 0, steps if at_border else 1))
    scheduler = restarted(before, 1.0)
    scheduler.on_message("server", status_of(0, 9, term=1, step=steps), 1.0)
    assert (scheduler.pass_, scheduler.phase) == (
        (1, Phase.LOADING) if at_border else (0, Phase.TRAINING)
    )


# -- poison -------------------------------------------------------------------------------------


def died(poison: Poison, held: list[tuple[int, int]], now: float) -> list[tuple[int, int]]:
    """One more worker, whose end was seen; the lanes are at the batches it held."""
    poison.lost(round(10 * now), "killed", True, held, now)
    return poison.found(now, dict(held).get)


def test_only_deaths_at_one_and_the_same_batch_count():
    poison = Poison(apart_s=1.5, silent_s=9.0)
    assert died(poison, [(0, 1), (1, 1)], 0.0) == []
    assert died(poison, [(0, 2), (1, 1)], 2.0) == []
    assert died(poison, [(0, 2), (1, 1)], 4.0) == [(1, 1)]
    poison.clear()
    assert [died(poison, [(0, 2)], at) for at in (5, 7, 9)] == [[], [], [(0, 2)]]
    # Somebody got it done after all, and it stays done when the job goes back.
    assert poison.found(10.0, lambda lane: 3) == poison.found(11.0, lambda lane: 2) == []


def test_deaths_close_together_count_as_one():
    poison = Poison(apart_s=1.5, silent_s=9.0)
    assert [died(poison, [(0, 2)], 0.1 * n) for n in range(15)] == [[]] * 15
    assert died(poison, [(0, 2)], 1.5) == []
    assert died(poison, [(0, 2)], 3.0) == [(0, 2)]


def test_silence_is_a_death_only_if_it_lasts():
    todo = {0: 7}.get
    poison = Poison(apart_s=1.5, silent_s=9.0)
    for number, now in ((1, 0.0), (2, 4.0), (3, 8.0)):
        poison.lost(number, "silent", False, [(0, 7)], now)
    assert poison.found(16.9, todo) == []
    assert poison.found(17.0, todo) == [(0, 7)]
    poison.speaks(2)
    assert poison.found(17.0, todo) == []
    assert died(poison, [(0, 7)], 18.0) == [(0, 7)]


@pytest.mark.parametrize("wakes", [True, False])
def test_workers_that_fall_silent_at_one_batch_do_not_end_the_job_if_they_wake(wakes):
    """As on a machine that has too much to do for them to be heard every 3 s."""
    scheduler, now = training_scheduler(plain(servers=1, workers=1, mode="async")), 0.0
    for number in range(1, 6):
        for _ in range(5):
            now += 1.0
            scheduler.on_message("server", status_of(0, round(now), step=0), now)
            scheduler.on_tick(now)
        if scheduler.phase is not Phase.TRAINING:
            break
        assert scheduler.roster[number].dead
        if wakes:
            scheduler.on_message("worker", status_of(number, 99), now)
        scheduler.on_message(f"w{number}", register(role="worker", boot=f"w{number}"), now)
    if wakes:
        assert scheduler.phase is Phase.TRAINING
    else:
        assert (scheduler.phase, scheduler.exit_status) == (Phase.STOPPING, 3)
        assert "3 workers died at this batch" in scheduler.reason


@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_workers_that_are_killed_together_died_of_no_batch(mode):
    cluster = Cluster(plain(103, batch_rows=1, mode=mode, workers=3))
    cluster.deaths = Poison.most

    def kill_all() -> None:
        for n in range(3):
            place = {"rank": cluster.processes[f"w{n}"].machine.rank, "replaces": True}
            cluster.kill(f"w{n}")
            cluster.at(0.3 + 0.01 * n, lambda n=n, p=place: cluster.start(f"x{n}", "worker", **p))

    cluster.at(4.0, kill_all)
    cluster.run()
    verify(cluster)
    assert len(cluster.crashed) == 3


def test_a_line_names_some_of_many_batches_that_workers_died_of():
    scheduler = training_scheduler(plain(servers=1, workers=1))
    scheduler.poison.last = "worker 2: silent"
    said = poisoned(scheduler, [(0, 0)] * 30)
    assert said.count("pass 0 lane 0") == 10 and said.endswith("; and 20 more")
    assert "one of 29 others" in said
    assert "more" not in poisoned(scheduler, [(0, 0)] * 10)


class Deadly(Cluster):
    """A key of the data kills whoever computes a batch with it; ``launch`` replaces each victim.

    ``mercy``: it does not any more after so many deaths.
    """

    key, mercy, killed = 777, 1000, 0

    def _perform_one(self, process, effect) -> None:
        if isinstance(effect, Compute) and self.key in effect.batch.keys:
            if self.killed < self.mercy and effect.purpose == "train":
                self.killed += 1
                self.kill(process.name)
                name, place = f"{process.name}'", {"rank": process.machine.rank, "replaces": True}
                # A launcher waits a little with a process that does nothing but die.
                self.at(1.7, lambda: self.start(name, "worker", **place))
                return
        super()._perform_one(process, effect)


def deadly(mode: str, mercy: int = 1000) -> Deadly:
    data = plain(103).data
    data.keys[80].append(Deadly.key)
    cluster = Deadly(plain(103, data=data, mode=mode, workers=3))
    cluster.deaths, cluster.mercy = Poison.most, mercy
    return cluster


@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_a_batch_that_kills_its_workers_ends_the_job_and_is_named(mode):
    cluster = deadly(mode)
    scheduler = cluster.run()
    # Some do not count: before the servers have said where they stand, or close to another.
    assert scheduler.status == 3 and 3 <= cluster.killed <= 6
    # 103 rows in one file: a block of 69 and one of 34, of which it is the row 11.
    places = re.findall(r"f0: block 1, rows (\d+) to (\d+) of it \(pass 0 lane", scheduler.reason)
    assert any(int(first) <= 80 - 69 <= int(last) for first, last in places)
    assert "3 workers died at this batch or the next of its lane, " in scheduler.reason
    assert {p.status for p in cluster.processes.values() if p.role == "server"} == {3}


@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_a_batch_that_kills_two_workers_is_computed_by_the_third(mode):
    cluster = deadly(mode, mercy=2)
    cluster.run()
    assert cluster.killed == 2
    verify(cluster)


# -- servers that come and go -------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_a_server_too_many_gets_partitions_at_the_next_pass(mode):
    cluster = Cluster(plain(103, batch_rows=1, mode=mode, passes=3))
    cluster.at(3.5, lambda: cluster.start("late", "server"))
    cluster.run()
    verify(cluster)
    late = cluster.processes["late"].machine
    assert len(cluster.servers) == 3 and len(late.owned) in (21, 22)
    views = [line for line in cluster.log if "partitions are placed anew" in line]
    assert len(views) == 1


@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_a_lost_server_is_waited_for_and_then_done_without(mode):
    cluster = Cluster(plain(103, batch_rows=1, mode=mode, passes=3))
    cluster.at(3.5, lambda: cluster.kill("s1"))
    cluster.run()
    verify(cluster)
    assert len(cluster.servers) == 1
    said = [line for line in cluster.log if "waiting for 1 of 2 servers" in line]
    assert len(said) == 6  # each 5 s of 30


def test_a_server_that_comes_in_time_is_used():
    cluster = Cluster(plain(103, batch_rows=1, passes=3))
    cluster.at(3.5, lambda: cluster.kill("s1"))
    cluster.at(20.0, lambda: cluster.start("another", "server"))
    cluster.run()
    verify(cluster)
    assert len(cluster.servers) == 2 and cluster.now < 50


# -- negative controls: schedulers that forget --------------------------------------------------
# In the comments: in how many seeds out of 60 each of them shows.


class ForgetsItsTerm(Cluster):
    def taken_up(self, term, journal):
        return term - 1, journal


class ForgetsNumbersOfCheckpoints(Cluster):
    def taken_up(self, term, journal):
        return term, journal and replace(journal, next_checkpoint=0)


class ForgetsAll(Cluster):
    def taken_up(self, term, journal):
        return term, None


CONTROLS = {
    "term": ForgetsItsTerm,  # 16
    "numbers of checkpoints": ForgetsNumbersOfCheckpoints,  # 3
    "all": ForgetsAll,  # 27
}


def shows(seed: int, cluster_class: type[Cluster]) -> bool:
    faults = {"kill_role": "any", "crashes": 5, "later_s": 3.0, "delays": (0.1,)}
    setup = changed(Setup.drawn(seed, ("sync", "async", "ssp")[seed % 3]), faults=faults)
    cluster = cluster_class(setup)
    try:
        cluster.run()
        verify(cluster)
    except (AssertionError, LocalProtocolError):
        return True
    return False


@pytest.mark.parametrize("name", CONTROLS)
def test_a_scheduler_that_forgets_is_found_within_60_seeds(name):
    assert any(shows(seed, CONTROLS[name]) for seed in range(60))


def test_the_same_seeds_find_nothing_in_one_that_remembers():
    assert not any(shows(seed, Cluster) for seed in (0, 6))
