"""Pushes whose weights have changed since: compensated, scaled down, refused, and counted."""

from dataclasses import replace

import numpy as np
import pytest

from ctrps.config import load_job
from ctrps.errors import ConfigError
from ctrps.kernels import delay
from ctrps.ps.effects import Prepare
from ctrps.ps.late import ModeSettings
from ctrps.ps.member import Limits
from ctrps.ps.messages import Pull, Push, Pushed, Refused
from ctrps.ps.server import Server
from ctrps.ps.worker import Worker
from tests import naive
from tests.simjob import plain
from tests.test_arrival import push_of, send, server_of, state
from tests.test_machines import answers, computes, identity, worker_asking


def drawn(seed: int, rows: int = 50, dim: int = 3):
    rng = np.random.default_rng(seed)
    gradients, now, then = rng.normal(size=(3, rows, dim)).astype(np.float32)
    return gradients, rng.integers(1, 9, rows).astype(np.int32), now, then


@pytest.mark.parametrize("rate", [0.0, 0.3, 2.0])
def test_compensation_agrees_with_the_formula(rate):
    gradients, counts, now, then = drawn(1)
    out = np.full_like(gradients, np.nan)
    delay.compensate(gradients, counts, now, then, np.float32(rate), out)
    expected = naive.compensate(gradients, counts, now, then, rate)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    delay.compensate(gradients, counts, now, then, np.float32(rate), gradients)
    assert gradients.tobytes() == out.tobytes()


def test_compensation_of_many_equal_rows_is_that_of_each_of_them():
    """A gradient summed over c equal rows is c times that of one, before and after."""
    gradients, _, now, then = drawn(2)
    ones, many = (np.full(len(gradients), c, np.int32) for c in (1, 7))
    single, summed = np.empty_like(gradients), np.empty_like(gradients)
    delay.compensate(gradients, ones, now, then, np.float32(0.5), single)
    delay.compensate(7 * gradients, many, now, then, np.float32(0.5), summed)
    np.testing.assert_allclose(summed, 7 * single, rtol=1e-5, atol=1e-6)


# -- a server -------------------------------------------------------------------------------------


def late_server(**values) -> Server:
    """In async, with lanes of four batches."""
    return server_of(plain(103, mode="async", lanes=1, **values))


def pulled(server: Server, lane: int, request: int, worker: str = "w") -> Push:
    """The push of a worker that pulls now, by the number of its pull."""
    push = push_of(server, lane, 0, clock=server.mode.clock)
    message = Pull(1, request, 0, lane, 0, "train", push.keys)
    (answer,) = answers(server.on_message(worker, message, 0.0))
    assert answer.request == request
    return replace(push, asked=request, keys=())


def whole(server: Server, push: Push) -> Push:
    """The same push with its keys."""
    return replace(push, asked=-1, keys=push_of(server, push.lane, 0).keys)


def test_a_stale_push_is_applied_as_the_compensated_gradient():
    server, twin = late_server(compensation=0.7), late_server()
    late = pulled(server, 2, request=5)
    then = server.partitions.pull(whole(server, late).keys)
    for lane in (3, 4):
        early = push_of(server, lane, 0)
        assert send(server, early) == send(twin, early)
    now = twin.partitions.pull(whole(twin, late).keys)
    assert any((a != b).any() for a, b in zip(now, then, strict=True))
    parts = zip(late.gradients, late.counts, now, then, strict=True)
    corrected = tuple(np.float32(naive.compensate(*p, rate=0.7)) for p in parts)
    send(server, late), send(twin, whole(twin, replace(late, gradients=corrected)))
    found, expected = (s.partitions.pull(whole(s, late).keys) for s in (server, twin))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    # The two that came with their keys, the first of which was not late.
    assert server.mode.counted == {"uncompensated": 1}


def test_what_is_not_stale_keeps_its_bits():
    server, twin = late_server(compensation=0.7), late_server()
    push = pulled(server, 2, request=5)
    send(server, push), send(twin, whole(twin, push))
    assert state(server) == state(twin)


@pytest.mark.parametrize("how", ["too little room", "another answer", "sent with its keys"])
def test_without_the_weights_of_then_it_is_applied_as_it_is_and_counted(how):
    server, twin = late_server(compensation=0.7), late_server()
    if how == "too little room":
        server.mode.tickets.most_bytes = 40
    late = pulled(server, 2, request=5)
    for each in (server, twin):
        send(each, push_of(each, 3, 0))
    if how == "another answer":
        pulled(server, 2, request=5)  # asked again, and answered with other weights
    send(server, whole(server, late) if how == "sent with its keys" else late)
    send(twin, whole(twin, late))
    assert state(server) == state(twin)
    assert server.mode.counted == {"uncompensated": 1}


def test_tickets_end_with_their_push_and_with_the_pass():
    server = late_server(compensation=0.7)
    pushes = [pulled(server, lane, request=lane) for lane in (2, 3)]
    assert len(server.mode.tickets._kept) == 2
    send(server, pushes[0])
    assert len(server.mode.tickets._kept) == 1
    server.mode.turn(server.mode.plan)
    assert len(server.mode.tickets._kept) == 0
    plain_server = late_server()
    pulled(plain_server, 2, request=5)
    assert len(plain_server.mode.tickets._kept) == 0


def test_a_push_beyond_the_bound_is_refused_until_it_is_computed_again():
    server = late_server(stale_above=1, refuse_stale=True)
    late = push_of(server, 2, 0)
    for lane in (3, 4):
        send(server, push_of(server, lane, 0, clock=server.mode.clock))
    before = state(server)
    for _ in range(2):
        assert send(server, late) == [Refused(late.request, "stale", 2, "")]
    assert state(server) == before
    assert server.mode.counted == {"stale_refused": 2}
    again = push_of(server, 2, 0, clock=server.mode.clock)
    assert send(server, again) == [Pushed(again.request, 0)]
    # What is there already is acknowledged, however late it comes again.
    assert send(server, late) == [Pushed(late.request, 0)]


def test_a_push_beyond_the_bound_is_scaled_by_its_staleness(monkeypatch):
    server, seen = late_server(stale_above=1), []
    note = lambda parts, stale, scale: seen.append(scale)  # noqa: E731
    monkeypatch.setattr(server.partitions, "apply_late", note)
    for lane, clock in [(0, 0), (1, 0), (2, 0), (3, 0), (4, 4)]:
        send(server, push_of(server, lane, 0, clock=clock))
    assert seen == [1.0, 1.0, 2 / 3, 2 / 4, 1.0]
    assert server.mode.counted == {"stale_scaled": 2}


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_scaled_push_is_that_of_a_smaller_gradient(scale):
    servers = [late_server(), late_server()]
    push = push_of(servers[0], 2, 0)
    smaller = tuple(np.float32(scale) * g for g in push.gradients)
    for server, gradients, by in zip(servers, (push.gradients, smaller), (scale, 1), strict=True):
        part = server.mode._part(push, server.mode.owned, gradients)
        server.partitions.apply_late([part], 3, by)
    found, expected = (s.partitions.pull(push.keys) for s in servers)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_a_worker_computes_a_refused_batch_again_with_new_weights():
    setup = plain(mode="async")
    args = (identity("worker"), Limits(), 0.0, setup.model(), setup.settings)
    worker, answer = worker_asking(setup, lambda *_: Worker(*args, window=1))
    (compute,) = computes(worker.on_message(0, answer, 0.0))
    result = worker.model.gradient(compute.batch, compute.weights)
    (push,) = [
        m for m in answers(worker.on_computed(compute.token, result, 0.0)) if isinstance(m, Push)
    ]
    effects = worker.on_message(0, Refused(push.request, "stale", 9, ""), 0.0)
    worker.check()
    prepares = [e for e in effects if isinstance(e, Prepare)]
    assert prepares[0].ref == compute.ref
    (request, *_) = answers(
        worker.on_prepared(prepares[0].token, compute.batch, 0.0),
    )
    assert (request.lane, request.batch) == (compute.lane, compute.number)
    assert request.request > push.request


# -- settings -------------------------------------------------------------------------------------


def test_a_bound_of_0_is_the_staleness_aware_rate():
    settings = ModeSettings(stale_above=0)
    assert [settings.scale(s) for s in range(4)] == [1, 1 / 2, 1 / 3, 1 / 4]
    assert not any(settings.refuses(s) for s in range(4))
    assert [ModeSettings().scale(s) for s in (0, 1000)] == [1, 1]


@pytest.mark.parametrize(
    "setting, why",
    [
        ("train.stale_above=0", "in train.consistency sync no push is late"),
        ("train.compensation=0.5", "is for train.consistency async and ssp, not sync"),
    ],
)
def test_in_sync_nothing_is_late(setting, why):
    with pytest.raises(ConfigError, match=why):
        load_job(None, [setting], {})
    for mode in ("async", "ssp"):
        load_job(None, [setting, f"train.consistency={mode}"], {})


def test_settings_that_are_off_go_with_every_mode():
    job = load_job(None, ["train.compensation=0", "train.stale=refuse"], {})
    assert (job.train.compensation, job.train.stale_above) == (0, None)
