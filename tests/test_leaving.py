"""Nodes that are asked to leave: they work until nothing is lost with them, and end with status 0.

Single machines first, then simulated jobs with all other faults, then processes.
"""

import random
import re
from signal import SIGINT, SIGTERM

import pytest

from ctrps.errors import LocalProtocolError
from ctrps.ps.effects import SCHEDULER, Finish
from ctrps.ps.fleet import Fleet
from ctrps.ps.job import Phase
from ctrps.ps.member import Life, Limits
from ctrps.ps.messages import Bye, Orders, Status
from ctrps.ps.roster import Node
from ctrps.ps.scheduler import Scheduler
from ctrps.ps.view import Pair
from ctrps.ps.worker import Worker
from ctrps.runtime.watch import snapshot
from tests.procs import read_lines, trained
from tests.sim import Cluster, verify
from tests.simjob import any_job, changed, plain
from tests.test_cluster import data, job, lab, mid_run, results
from tests.test_launch import Bench
from tests.test_machines import (
    answers,
    identity,
    joined,
    orders,
    register,
    scheduler_of,
    server_of,
    status_of,
    training_scheduler,
)
from tests.test_recovery import logs, restarted
from tests.test_sim import SEEDS, chunks, named
from tests.test_standby import fleet_of, protect
from tests.watched import watched

__all__ = ["data", "lab"]

# -- a node -------------------------------------------------------------------------------------


def members() -> list:
    setup = plain()
    args = (Limits(), 0.0, setup.model(), setup.settings)
    return [joined(server_of(setup), setup), joined(Worker(identity("worker"), *args), setup)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_that_is_asked_to_leave_says_so_and_works_on(number):
    member = members()[number]
    (status,) = answers(member.on_signal(SIGTERM, 1.0))
    assert isinstance(status, Status) and status.leaves and member.life is Life.WORKING
    again = [m for m in answers(member.on_tick(2.5)) if isinstance(m, Status)]
    assert again[0].leaves, "said again: the first may be lost"
    stop = orders(1 << 60, phase="stop", reason="fenced: out", exit_status=4)
    *_, bye, finish = member.on_message(SCHEDULER, stop, 3.0)
    assert isinstance(bye.message, Bye) and (bye.message.exit_status, finish.exit_status) == (0, 0)


@pytest.mark.parametrize("number", [0, 1])
def test_another_signal_ends_a_node_at_once(number):
    member, other = members()[number], members()[number]
    member.on_signal(SIGTERM, 1.0)
    for effects, status in (
        (member.on_signal(SIGTERM, 1.1), 143),
        (other.on_signal(SIGINT, 1), 130),
    ):
        (finish,) = [e for e in effects if isinstance(e, Finish)]
        assert finish.exit_status == status
    before = Worker(identity("worker"), Limits(), 0.0, plain().model(), plain().settings)
    assert before.on_signal(SIGTERM, 1.0)[-1].exit_status == 143, "it is in no job yet"


# -- the servers of a job -----------------------------------------------------------------------


def leave(node: Node) -> Node:
    node.status = status_of(node.number, 1, leaves=True)
    return node


def test_a_protected_standby_takes_the_place_of_an_owner_that_leaves():
    fleet, roster = fleet_of(["a", "b", "a", "b"], 2)
    leave(roster[0])
    assert not fleet.let_go(roster[0], True), "its standby has nothing yet"
    protect(fleet, 0)
    assert not fleet.let_go(roster[0], False)
    assert fleet.let_go(roster[0], True)
    view = fleet.placement
    assert (view.number, view.epoch, view.servers) == (2, 1, (3, 1))
    assert view.pairs == (Pair(1, 2, 1),), "who leaves stands by for nobody"
    assert not fleet.outdated


def test_a_standby_that_leaves_is_parted_and_replaced():
    fleet, roster = fleet_of(["a", "b", "c"], 1)
    assert fleet.placement.pairs == (Pair(0, 1, 0),)
    assert fleet.let_go(leave(roster[1]), False)
    assert fleet.placement.pairs == (Pair(0, 2, 1),)
    assert fleet.let_go(leave(roster[2]), True)
    assert (fleet.placement.pairs, fleet.placement.number) == ((), 1)


def test_an_owner_that_leaves_gets_a_free_server_first():
    fleet, roster = fleet_of(["a", "b"], 2)
    roster.admit("new", register(boot="new", address="c:9"), 1.0)
    assert not fleet.let_go(leave(roster[1]), True)
    assert fleet.placement.pairs == (Pair(1, 2, 0),)


def test_owners_without_a_standby_are_placed_anew_where_others_stay():
    fleet, roster = fleet_of(["a", "b"], 2)
    leave(roster[0])
    assert fleet.outdated and not fleet.last(roster[0])
    fleet.place(5)
    assert fleet.placement.servers == (1,) and fleet.let_go(roster[0], True)
    roster[0].released = True
    leave(roster[1])
    assert not fleet.let_go(roster[1], True) and not fleet.outdated and fleet.last(roster[1])
    assert fleet.placement.owners == (1,) * 8


def test_a_job_does_not_wait_for_servers_that_have_left():
    fleet, roster = fleet_of(["a", "b"], 2)
    leave(roster[0])
    fleet.place(5)
    roster[0].released = roster[1].dead = True
    fleet.lose(roster[1], 10.0)
    roster.admit("new", register(boot="new", address="c:9"), 11.0)
    assert fleet.enough(11.0)


# -- the scheduler ------------------------------------------------------------------------------


def tell(scheduler: Scheduler, node: int, seq: int, **values) -> tuple[list[str], list]:
    """The log lines of a status that says that the node leaves, and what the node is answered."""
    name = ("server", "worker")[node]
    effects = scheduler.on_message(name, status_of(node, seq, leaves=True, **values), 1.0)
    to_it = [m for m in answers([e for e in effects if getattr(e, "to", "") == name])]
    return logs(effects), to_it


def test_a_worker_that_leaves_is_not_lost_and_its_lanes_go_to_others():
    scheduler = training_scheduler(plain(servers=1, workers=1))
    scheduler.on_message("other", register(role="worker", boot="other"), 0.5)
    said, (stop,) = tell(scheduler, 1, 2)
    assert said == ["worker 0 (s0:1) leaves; its lanes go to others"]
    assert stop.phase == "stop" and len(scheduler.training.leases_of(2)) == 4
    assert snapshot(scheduler, None, 1.0).missing == ""
    assert tell(scheduler, 1, 3) == ([], [stop]), "the first answer may be lost"
    assert not logs(scheduler.on_message("worker", Bye(1, 0, ""), 2.0)), "no death"
    assert scheduler.poison.last == "" and scheduler.phase is Phase.TRAINING
    again = restarted(scheduler, 3.0)
    (stop,) = answers(again.on_message("worker", status_of(1, 9, leaves=True), 3.0))
    assert isinstance(stop, Orders) and stop.phase == "stop"


def test_the_only_server_stays_and_the_log_says_why(tmp_path):
    scheduler = training_scheduler(plain(servers=1, workers=1))
    said, (told,) = tell(scheduler, 0, 2)
    why = "stays until another server comes or the job ends: none would be left"
    assert said == [f"server 0 (s0:1) {why}"] and told.phase == "train"
    assert tell(scheduler, 0, 3)[0] == [], "said once"
    scheduler.on_message("new", register(boot="new", address="s1:1"), 2.0)
    assert scheduler.fleet.outdated
    watch = watched(tmp_path)
    seen = snapshot(scheduler, None, 1.5).nodes
    assert [watch._state_of(n, 1.5) for n in seen] == ["leaving", "up", "up"]


def test_in_a_job_that_ends_nobody_is_let_go():
    scheduler = training_scheduler(plain(servers=1, workers=1))
    scheduler.on_interrupt(143, 0.5)
    (told,) = tell(scheduler, 1, 2)[1]
    assert told.phase == "train" and told.leases, "it must still get to the checkpoint"


def test_an_interrupt_without_workers_waits_for_none():
    scheduler = training_scheduler(plain(servers=1, workers=1))
    tell(scheduler, 1, 2)
    scheduler.on_interrupt(143, 1.5)
    assert (scheduler.phase, scheduler.exit_status) == (Phase.STOPPING, 143)


def test_the_end_waits_for_the_goodbye_of_who_was_let_go():
    scheduler = training_scheduler(plain(servers=1, workers=1))
    tell(scheduler, 1, 2)
    scheduler.on_fault("disk full", 3, 2.0)
    scheduler.on_message("server", Bye(0, 3, ""), 2.1)
    assert scheduler.phase is Phase.STOPPING
    scheduler.on_message("worker", Bye(1, 0, ""), 2.2)
    assert scheduler.phase is Phase.ENDED


def test_who_leaves_before_the_first_view_is_let_go():
    scheduler = scheduler_of(plain(servers=2, workers=1))
    scheduler.on_message("server", register(boot="server"), 0.0)
    assert tell(scheduler, 0, 1)[1][0].phase == "stop"
    assert scheduler.roster.missing(2, 1) == "2 of 2 servers and 1 of 1 worker"


# -- simulated jobs -----------------------------------------------------------------------------


def ask(cluster: Cluster, name: str, at: float) -> None:
    node = cluster.processes
    cluster.at(at, lambda: cluster._perform(node[name], node[name].machine.on_signal(SIGTERM, at)))


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("mode", ["sync", "async", "ssp", "semi"])
def test_a_server_and_a_worker_are_taken_out(mode, replicas):
    if mode == "semi" and replicas:
        pytest.skip("semi mode has no standbys")
    cluster = Cluster(plain(103, batch_rows=1, mode=mode, passes=3, replicas=replicas))
    for name in ("s1", "w0"):
        ask(cluster, name, 4.0)
    cluster.run()
    verify(cluster)
    said = "\n".join(cluster.log)
    assert {p.status for p in cluster.processes.values()} == {0}
    assert "is lost" not in said and "going back" not in said
    ends = {line.split()[1]: float(line.split()[0]) for line in cluster.log if " ends 0" in line}
    assert ends["w0"] < 6.0 and ends["s1"] < ends["scheduler"] - 1.0
    assert len(cluster.servers) == 1 + replicas
    # Over a slow network a standby may not have everything before the pass is over.
    ways = [w for w in ("its standby goes on", "are placed anew") if w in said]
    assert len(ways) == 1 and (replicas or ways == ["are placed anew"])
    assert mode != "sync" or not replicas or ways == ["its standby goes on"]


@chunks(SEEDS // 8)
def test_nodes_leave_at_any_time(seeds):
    for seed in seeds:
        rng = random.Random(f"leaves {seed}")
        faults = {
            "kill_role": "any",
            "crashes": rng.randint(0, 2),
            "leaves": rng.randint(1, 4),
            "later_s": rng.choice([0.0, 5.0]),
            "delays": (0.1, 20.0),
        }
        mode = ("sync", "async", "ssp")[seed % 3]
        setup = changed(any_job(seed, mode), faults=faults, replicas=seed % 2)
        with named(setup):
            cluster = Cluster(setup).patient()
            cluster.run()
            verify(cluster)
            for node in (cluster.processes[name] for name in cluster.asked):
                silence = node.reason.startswith("no word from the scheduler")
                assert node.status == 0 or silence or node.name in cluster.crashed


def test_a_standby_that_takes_over_too_early_is_found(monkeypatch):
    """A standby takes the place of an owner that leaves before it has everything."""

    def any_pair(self, owner):
        return next((pair for pair in self.placement.pairs if pair.owner == owner), None)

    monkeypatch.setattr(Fleet, "_safe_pair", any_pair)
    cluster = Cluster(plain(103, batch_rows=1, passes=3, replicas=1))
    ask(cluster, "s0", 3.0)
    ask(cluster, "s1", 3.0)
    with pytest.raises((AssertionError, LocalProtocolError)) as found:
        cluster.run()
    assert "remembered" not in str(found.value)


# -- processes ----------------------------------------------------------------------------------


def test_a_launcher_does_not_miss_nodes_that_were_let_go(tmp_path):
    bench = Bench(tmp_path, restarts=3, status=0)
    cluster = bench.cluster
    cluster.children = [bench.child(role) for role in ("server", "server", "worker", "worker")]
    cluster.children[0].process.status = cluster.children[2].process.status = None
    cluster._look_for_deaths(
        cluster.children[0], lambda child: cluster._restart(bench.start, child)
    )
    assert (bench.started, bench.said, cluster._alive_at) == ([], [], None)


@pytest.mark.cluster
@pytest.mark.parametrize("replicas", [0, 1])
def test_nodes_of_a_launch_are_taken_out(lab, data, replicas):
    values = {"train_passes": 25, "model_kind": "fm"}
    more = {"cluster_replicas": replicas, "cluster_beat_s": 0.25}
    run = mid_run(lab, job(data, lab.folder / "run", **values, **more), 2, 2)
    logs = lab.folder / "run" / "logs"
    # The first servers to join are owners, whatever their ranks.
    joined = [re.search(r"server (\d), node (\d)", p.read_text()) for p in logs.glob("server-*")]
    owner = int(min(joined, key=lambda found: int(found[2]))[1])
    for role, rank in (("server", owner), ("worker", 1)):
        node = run.child(role, rank)
        node.terminate()
        run.until(lambda node=node: not node.is_running(), f"the end of a {role}")
    left = read_lines(lab.folder / "run" / "metrics.jsonl")[-1]["pass"]
    run.ends(0)
    assert left < 24 and run.json["restarts"] == 0
    said = (logs / "scheduler-0.log").read_text()
    assert "has left" in said and "leaves; its lanes go to others" in said
    assert "is lost" not in said and "going back" not in said
    assert ("its standby goes on" in said) == bool(replicas)
    for log in (f"server-{owner}", "worker-1"):
        assert "let go" in (logs / f"{log}.log").read_text()
    assert results(run.json) == results(trained(job(data, lab.folder / "train", **values)))
    lab.all_gone()
