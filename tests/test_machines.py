"""Single messages to a scheduler, a server or a worker: what each answers, takes and refuses."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ctrps.errors import LocalProtocolError
from ctrps.ps.effects import (
    SCHEDULER,
    Commit,
    Compute,
    Evaluated,
    Finish,
    Log,
    Prepare,
    Save,
    Send,
)
from ctrps.ps.job import JobSpec, Phase
from ctrps.ps.member import Identity, Life, Limits
from ctrps.ps.messages import (
    PROTOCOL,
    Orders,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    Register,
    Status,
    Welcome,
)
from ctrps.ps.partition import contribute
from ctrps.ps.scheduler import Scheduler
from ctrps.ps.server import Server
from ctrps.ps.tasks import Stage
from ctrps.ps.worker import Worker
from tests.simjob import Setup, plain, row_bytes

# -- single messages to a scheduler -------------------------------------------------------------


def identity(role: str = "server", **values) -> Identity:
    return replace(Identity(role, "sim", "digest", "kernel", "boot", "s0:1", PROTOCOL), **values)


def register(**values) -> Register:
    i = identity(**values)
    digests = (i.config_digest, i.kernel_digest)
    return Register(i.protocol, i.role, i.rank, i.job, *digests, i.boot, i.address, i.replaces)


def scheduler_of(setup: Setup) -> Scheduler:
    shape = (setup.servers, setup.workers, setup.passes, setup.partitions)
    each = setup.evaluate_each
    spec = JobSpec("sim", "digest", *shape, setup.settings, setup.manifest, evaluate_each=each)
    return Scheduler(spec, Limits(), 0.0)


def answers(effects: list) -> list:
    return [effect.message for effect in effects if isinstance(effect, Send)]


@pytest.mark.parametrize(
    ("wrong", "why", "values"),
    [
        ({"protocol": 7}, "protocol", ("7", str(PROTOCOL))),
        ({"job": "other"}, "job", ("'other'", "'sim'")),
        ({"config_digest": "dd"}, "digest", ("dd", "digest")),
        ({"kernel_digest": "kk"}, "kernel", ("kk", "kernel")),
        ({"role": "driver"}, "job", ("'driver'",)),
    ],
)
def test_a_node_that_does_not_belong_is_refused_with_both_values(wrong, why, values):
    scheduler = scheduler_of(plain())
    scheduler.on_message("a", register(boot="first"), 0.0)
    (refused,) = answers(scheduler.on_message("b", register(**wrong), 0.0))
    assert refused.why == why
    assert all(value in refused.detail for value in values)
    assert len(scheduler.roster.nodes) == 1


def test_a_node_that_registers_again_is_welcomed_again():
    scheduler = scheduler_of(plain(servers=1))
    (welcome,) = answers(scheduler.on_message("a", register(boot="1"), 0.0))
    (again,) = answers(scheduler.on_message("a", register(boot="1"), 1.0))
    assert (again.node, again.names) == (welcome.node, welcome.names)
    assert len(scheduler.roster.nodes) == 1


def test_a_scheduler_says_for_whom_it_waits_and_gives_up():
    scheduler = scheduler_of(plain(servers=2, workers=1))
    scheduler.on_message("a", register(boot="1"), 0.0)
    logs = [e.text for t in range(1, 60) for e in scheduler.on_tick(t) if isinstance(e, Log)]
    assert len(logs) == 11
    assert logs[0] == "waiting for 1 of 2 servers and 1 of 1 worker, 5 s of 60 s"
    (stop,) = answers(scheduler.on_tick(60))
    assert (stop.phase, stop.exit_status) == ("stop", 4)
    assert (
        stop.reason == "1 of 2 servers and 1 of 1 worker did not come within 60 s; see their logs"
    )


def status_of(node: int, seq: int, **values) -> Status:
    first = Status(node, 0, seq, 0, 1, 0, -1, True, [], -1, -1, [], {}, "", 0, "", [], ())
    return replace(first, **values)


def training_scheduler(setup: Setup) -> Scheduler:
    """One server, node 0, and one worker, node 1, in the first pass."""
    scheduler = scheduler_of(setup)
    for role in ("server", "worker"):
        scheduler.on_message(role, register(role=role, boot=role), 0.0)
    scheduler.on_message("server", status_of(0, 1, step=0), 0.0)
    assert scheduler.phase is Phase.TRAINING
    return scheduler


@pytest.mark.parametrize(("pass_", "left"), [(0, [1, 2, 3]), (1, [0, 1, 2]), (-1, [0, 1, 2])])
def test_a_lane_is_claimed_only_in_its_pass(pass_, left):
    scheduler = training_scheduler(plain(servers=1, workers=1, mode="async"))
    status = status_of(1, 1, pass_=pass_, lanes=[0])
    (order,) = answers(scheduler.on_message("worker", status, 0.0))
    assert [lane for lane, _ in order.leases] == left


def complete(scheduler: Scheduler) -> list:
    """The server reports that the pass is done and saved."""
    files = [(p, "f", 1, "d") for p in range(64)]
    steps = scheduler.training.plan.steps
    done = status_of(0, 2, step=steps, saved=0, files=files)
    return scheduler.on_message("server", done, 1.0)


def evaluating_scheduler() -> tuple[Scheduler, Status]:
    """After its first pass, and a status with all scores."""
    scheduler = training_scheduler(plain(servers=1, workers=1, evaluate_each=True))
    complete(scheduler)
    scheduler.on_committed(0, 1.0)
    assert scheduler.phase is Phase.EVALUATING
    plan = scheduler.evaluation.plan
    scores = [np.zeros(plan.batch(lane).rows, np.float32) for lane in range(plan.lanes)]
    results = tuple(array for pair in zip(scores, scores, strict=True) for array in pair)
    return scheduler, status_of(1, 2, lanes=[*range(plan.lanes)], results=results)


def test_scores_count_only_in_the_pass_they_are_of():
    scheduler, status = evaluating_scheduler()
    scheduler.on_message("worker", replace(status, seq=1, pass_=-1), 1.0)
    assert scheduler.evaluation.done == 0
    (evaluated, _) = scheduler.on_message("worker", status, 1.0)
    assert isinstance(evaluated, Evaluated) and scheduler.evaluation.complete


def test_a_commit_that_ends_after_the_job_was_stopped_starts_nothing():
    scheduler = training_scheduler(plain(servers=1, workers=1))
    commit = complete(scheduler)[0]
    assert isinstance(commit, Commit) and commit.border
    scheduler.on_fault("no room", 4, 1.0)
    assert not answers(scheduler.on_committed(0, 1.0))
    assert (scheduler.phase, scheduler.exit_status) == (Phase.STOPPING, 4)


def test_figures_that_come_after_the_job_was_stopped_start_nothing():
    scheduler, status = evaluating_scheduler()
    scheduler.on_message("worker", status, 1.0)
    scheduler.on_interrupt(130, 1.0)
    assert scheduler.on_scored(0.5, 1.0) == []
    assert (scheduler.phase, scheduler.pass_, scheduler.exit_status) == (Phase.STOPPING, 0, 75)


# -- single messages to a server ----------------------------------------------------------------


def orders(seq: int = 1, **values) -> Orders:
    """Orders of a job with one server, node 0, and 64 partitions."""
    first = Orders(0, seq, 1, [0] * 64, [[0, "s0:1"]], -1, 0, "train", [], [], "", 0)
    return replace(first, **{"epoch": values.get("view", 1), **values})


def joined(machine, setup: Setup, **values):
    """A member that has been welcomed as node 0 and has got orders."""
    machine.on_message(SCHEDULER, Welcome("boot", 0, 0, 0, *setup.manifest.pack()), 0.0)
    if isinstance(machine, Worker):
        machine.on_looked([], 0.0)
    machine.on_message(SCHEDULER, orders(**values), 0.0)
    assert machine.life is Life.WORKING
    return machine


def server_of(setup: Setup) -> Server:
    server = Server(identity(), Limits(), 0.0, setup.model(), setup.settings)
    return joined(server, setup)


def push_of(server: Server, lane: int, **values) -> Push:
    """What a worker would push for the batch of a lane at the server's step."""
    model, step, plan = server.model, server.partitions.step, server.mode.plan
    batch = plain().data.minibatch(model, plan, plan.batch(lane, step))
    keys = tuple(s.keys for s in model.key_sets(batch))
    part = contribute(model, batch, server.partitions.pull(keys))
    rest = (-1, *part[2:])
    push = Push(1, 100 + lane, 0, lane, step, part.rows, 0, part.loss_sum, *rest)
    return replace(push, **values)


def do_step(server: Server) -> list[Push]:
    pushes = [push_of(server, lane) for lane in range(4)]
    for push in pushes:
        taken = Pushed(push.request, push.batch)
        assert taken in answers(server.on_message("w", push, 0.0))
    return pushes


def state(server: Server) -> tuple:
    rows = row_bytes([server.partitions])
    return rows, server.partitions.step, server.mode.missing(), server.partitions.keys_held


def with_nan(arrays):
    return (np.full_like(arrays[0], np.nan), *arrays[1:])


SPOILED: dict[str, Callable[[Push], dict]] = {
    "a NaN": lambda p: {"gradients": with_nan(p.gradients)},
    "an infinity": lambda p: {"gradients": (p.gradients[0] * np.float32(np.inf), *p.gradients[1:])},
    "float64": lambda p: {"gradients": tuple(g.astype(np.float64) for g in p.gradients)},
    "one gradient less": lambda p: {"gradients": (p.gradients[0][1:], *p.gradients[1:])},
    "a table less": lambda p: {"keys": p.keys[1:]},
    "signed keys": lambda p: {"keys": tuple(k.astype(np.int64) for k in p.keys)},
    "no counts": lambda p: {"counts": ()},
    "a count of 0": lambda p: {"counts": tuple(c * 0 for c in p.counts)},
    "a batch ahead": lambda p: {"batch": p.batch + 1},
    "no such lane": lambda p: {"lane": 4},
    "no such batch": lambda p: {"batch": 1000},
    "a score less": lambda p: {"scores": (p.scores[0][1:], p.scores[1])},
    "labels of float64": lambda p: {"scores": (p.scores[0], p.scores[1].astype(np.float64))},
    "no labels": lambda p: {"scores": p.scores[:1]},
    "more scores than rows": lambda p: {"rows": p.rows - 1},
}


@pytest.mark.parametrize("how", SPOILED)
def test_case_11_a_server_refuses_a_spoiled_push_and_stays_as_it_was(how):
    server = server_of(plain())
    do_step(server)
    server.on_message("w", push_of(server, 0), 0.0)
    before, push = state(server), push_of(server, 1)
    (refused,) = answers(server.on_message("w", replace(push, **SPOILED[how](push)), 0.0))
    assert (refused.request, refused.why) == (push.request, "bad")
    assert state(server) == before
    if how == "a NaN":
        assert refused.detail == "a gradient of pass 0 lane 1 batch 1 is not finite"
    assert answers(server.on_message("w", push, 0.0)) == [Pushed(push.request, 1)]


def test_a_repeated_push_is_acknowledged_and_changes_nothing():
    server = server_of(plain())
    pushes = do_step(server)
    early = push_of(server, 2)
    server.on_message("w", early, 0.0)
    before = state(server)
    for push in (*pushes, early):
        again = replace(push, request=999)
        assert answers(server.on_message("v", again, 0.0)) == [Pushed(999, push.batch)]
        assert state(server) == before


def test_two_different_copies_of_a_push_stop_the_job():
    server = server_of(plain())
    push = push_of(server, 2)
    server.on_message("w0", push, 0.0)
    other = replace(push, gradients=tuple(g + np.float32(1) for g in push.gradients))
    before = state(server)
    with pytest.raises(LocalProtocolError) as error:
        server.on_message("w1", other, 0.0)
    assert error.value.what == "two copies of pass 0 lane 2 batch 0 differ, from 'w0' and 'w1'"
    assert state(server) == before


def pull(server: Server, batch: int, keys, request: int = 1, **values) -> list:
    message = replace(Pull(1, request, 0, 0, batch, "train", keys), **values)
    return answers(server.on_message("w", message, 0.0))


def test_pulls_by_step():
    server = server_of(plain())
    keys = push_of(server, 0).keys
    first = server.partitions.pull(keys)
    assert pull(server, 1, keys, request=8) == []
    (wait,) = pull(server, 1, keys, request=8)
    assert wait == Refused(8, "wait", 0, "step 0 waits for lane 0, 1, 2, 3")
    (bad,) = pull(server, 2, keys)
    assert bad.why == "bad"

    for lane in range(4):
        last = answers(server.on_message("w", push_of(server, lane), 0.0))
    second = server.partitions.pull(keys)
    (now,) = [m for m in last if isinstance(m, Pulled)]
    assert now.request == 8
    assert [w.tobytes() for w in now.weights] == [w.tobytes() for w in second]
    (before,) = pull(server, 0, keys)
    assert [w.tobytes() for w in before.weights] == [w.tobytes() for w in first]
    assert first[1].tobytes() != second[1].tobytes()

    do_step(server)
    assert pull(server, 0, keys) == [Refused(1, "behind", 1, "")]


def test_pulls_of_another_view_or_pass_are_refused():
    server = server_of(plain())
    keys = push_of(server, 0).keys
    assert pull(server, 0, keys, view=2) == [Refused(1, "view", 1, "")]
    assert pull(server, 0, keys, pass_=1) == [Refused(1, "pass", 0, "")]
    assert pull(server, 0, keys[:1])[0].why == "bad"


def test_evaluation_makes_no_rows_and_waits_for_nothing():
    server = server_of(plain())
    before, keys = state(server), push_of(server, 0).keys
    (answer,) = pull(server, 0, keys, pass_=-1, purpose="evaluate")
    assert not any(w.any() for w in answer.weights)
    assert state(server) == before


def test_a_cut_is_saved_at_its_step_or_missed():
    server = server_of(plain())
    do_step(server)
    server.on_message(SCHEDULER, orders(2, cut=[3, 0, 2]), 0.0)
    last = [server.on_message("w", push_of(server, lane), 0.0) for lane in range(4)][-1]
    (save,) = [e for e in last if isinstance(e, Save)]
    assert (save.checkpoint, save.pass_, save.step) == (3, 0, 2)
    (status,) = answers(server.on_message(SCHEDULER, orders(3, cut=[4, 0, 1]), 0.0))
    assert (status.saved, status.missed) == (-1, 4)


def test_a_save_that_a_newer_cut_has_overtaken_is_not_reported():
    server = server_of(plain())
    server.on_message(SCHEDULER, orders(2, cut=[0, 0, 0]), 0.0)
    server.on_message(SCHEDULER, orders(3, cut=[1, 0, 0]), 0.0)
    (status,) = answers(server.on_saved(1, [[0, "b", 1, ""]], 0.0))
    assert status.saved == 1
    assert server.on_saved(0, [[0, "a", 1, ""]], 0.0) == []


# -- single messages to a worker ----------------------------------------------------------------


class MatchesByName(Worker):
    """Takes an answer to an old request of the same name, which a real worker must not."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.names: dict[int, tuple] = {}

    def on_message(self, peer, message, now):
        self.names |= {n: (r.lane, r.task, r.server) for n, r in self._requests.items()}
        if isinstance(message, Pulled):
            name = self.names[message.request]
            same = [n for n, r in self._requests.items() if (r.lane, r.task, r.server) == name]
            message = replace(message, request=(same or [-1])[0])
        return super().on_message(peer, message, now)


def worker_asking(setup: Setup, worker_class: type[Worker]) -> tuple[Worker, Pulled]:
    """A worker that asks batch 0 of lane 0, and the answer that it waits for."""
    args = (identity("worker"), Limits(), 0.0, setup.model(), setup.settings, setup.window)
    worker = worker_class(*args)
    joined(worker, setup)
    return worker, ask(setup, worker, orders(2, leases=[[0, 0]]))


def computes(effects: list) -> list[Compute]:
    return [effect for effect in effects if isinstance(effect, Compute)]


def ask(setup: Setup, worker: Worker, lease: Orders) -> Pulled:
    prepares = [e for e in worker.on_message(SCHEDULER, lease, 0.0) if isinstance(e, Prepare)]
    plan = worker._plan
    sends = [
        effect
        for p in prepares
        for effect in worker.on_prepared(
            p.token, setup.data.minibatch(worker.model, plan, p.ref), 0.0
        )
    ]
    (request,) = answers(sends)
    tables = zip(request.keys, worker.model.tables, strict=True)
    weights = tuple(np.ones((len(k), t.dim), np.float32) for k, t in tables)
    return Pulled(request.request, 0, request.batch - 1, weights)


@pytest.mark.parametrize("worker_class", [Worker, MatchesByName])
def test_an_answer_of_an_earlier_pass_is_dropped(worker_class):
    setup = plain(shuffle="none")
    worker, old = worker_asking(setup, worker_class)
    worker.on_message(SCHEDULER, orders(3, pass_=1), 0.0)
    new = ask(setup, worker, orders(4, pass_=1, leases=[[0, 0]]))
    taken = [len(computes(worker.on_message(0, answer, 0.0))) for answer in (old, new)]
    assert taken == ([1, 0] if worker_class is MatchesByName else [0, 1])


def test_an_answer_counts_once_and_a_lost_lane_is_forgotten():
    setup = plain()
    worker, answer = worker_asking(setup, Worker)
    (compute,) = computes(worker.on_message(0, answer, 0.0))
    assert worker.on_message(0, answer, 0.0) == []
    worker.on_message(SCHEDULER, orders(3), 0.0)
    result = worker.model.gradient(compute.batch, compute.weights)
    assert worker.on_computed(compute.token, result, 0.0) == []
    assert not worker.lanes


def test_behind_begins_the_lane_again_where_all_servers_can_answer():
    setup = plain()
    worker, answer = worker_asking(setup, Worker)
    worker.on_message(0, Refused(answer.request, "behind", 3, ""), 0.0)
    (front, ahead) = sorted(worker.lanes[0].tasks)
    assert (front, ahead) == (3, 4)
    assert worker.lanes[0].tasks[3].stage is Stage.PREPARING


def test_older_orders_are_not_obeyed():
    worker, _ = worker_asking(plain(), Worker)
    assert worker.on_message(SCHEDULER, orders(1, phase="stop"), 0.0) == []
    assert worker.life is Life.WORKING and list(worker.lanes) == [0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda weights: (weights[0][1:], *weights[1:]),
        lambda weights: (weights[0].astype(np.float64), *weights[1:]),
        lambda weights: weights[:-1],
        lambda weights: (*weights, weights[0]),
    ],
    ids=["a row less", "float64", "a table less", "a table more"],
)
def test_wrong_weights_are_not_taken(spoil):
    worker, answer = worker_asking(plain(), Worker)
    spoiled = replace(answer, weights=spoil(answer.weights))
    effects = worker.on_message(0, spoiled, 0.0)
    (status,) = answers(effects)
    assert (status.fault, status.fault_status) == ("server 0 answered with wrong arrays", 4)
    assert not computes(effects)


@pytest.mark.parametrize("why", ["digest", "job", "protocol", "kernel", "role"])
def test_a_refused_node_ends_with_the_reason(why):
    setup = plain()
    worker = Worker(identity("worker"), Limits(), 0.0, setup.model(), setup.settings)
    effects = worker.on_message(SCHEDULER, Refused(-1, why, -1, "a there, b here"), 0.0)
    finish = Finish(2 if why == "digest" else 4, "the scheduler refused this node: a there, b here")
    assert effects[-1] == finish


def test_case_22_a_node_waits_for_the_scheduler_says_so_and_gives_up():
    setup = plain()
    worker = Worker(identity("worker"), Limits(), 0.0, setup.model(), setup.settings)
    assert isinstance(answers(worker.on_start(0.0))[0], Register)
    effects = [effect for t in range(1, 60) for effect in worker.on_tick(t)]
    assert sum(isinstance(m, Register) for m in answers(effects)) >= 55
    assert 10 <= sum(isinstance(e, Log) for e in effects) <= 12
    assert worker.on_tick(60)[-1] == Finish(4, "no word from the scheduler for 60 s")


def test_a_node_declared_dead_is_fenced():
    scheduler = scheduler_of(plain(servers=1, workers=1))
    for role in ("server", "worker"):
        scheduler.on_message(role, register(role=role, boot=role), 0.0)
    scheduler.on_tick(4.0)
    assert scheduler.roster[1].dead
    (stop,) = answers(scheduler.on_message("worker", status_of(1, 1), 4.0))
    assert (stop.phase, stop.exit_status) == ("stop", 4)
    assert stop.reason.startswith("fenced")
