"""Keys travel once: pushes that name their pull, and what happens when the server has forgotten."""

from dataclasses import replace

import pytest

from ctrps.ps.asked import AskedKeys
from ctrps.ps.messages import Pull, Push, Pushed, Refused
from ctrps.ps.tasks import Stage
from ctrps.ps.worker import Worker
from tests.simjob import plain
from tests.test_arrival import async_server, state
from tests.test_arrival import push_of as full_push
from tests.test_machines import answers, computes, worker_asking


def asked_and_pushed(peer: str = "w", request: int = 5):
    """A server that was asked for a batch, its push without keys, and the same in full."""
    server = async_server()
    full = full_push(server, 0, 0)
    server.on_message(peer, Pull(1, request, 0, 0, 0, "train", full.keys), 0.0)
    return server, replace(full, asked=request, keys=()), full


def test_a_push_without_keys_is_the_same_as_one_with_them():
    server, short, full = asked_and_pushed()
    other = async_server()
    assert answers(server.on_message("w", short, 0.0)) == [Pushed(short.request, 0)]
    assert answers(other.on_message("w", full, 0.0)) == [Pushed(full.request, 0)]
    assert state(server) == state(other)


@pytest.mark.parametrize(("peer", "asked"), [("v", 5), ("w", 6)])
def test_keys_of_another_worker_or_request_are_not_taken(peer, asked):
    server, short, _ = asked_and_pushed()
    before, push = state(server), replace(short, asked=asked)
    assert answers(server.on_message(peer, push, 0.0)) == [Refused(push.request, "keys", asked, "")]
    assert state(server) == before


def test_keys_are_forgotten_when_their_push_is_taken_and_not_before():
    server, short, full = asked_and_pushed()
    later = replace(short, batch=1)
    (gap,) = answers(server.on_message("w", later, 0.0))
    assert gap.why == "gap" and server.asked.find("w", 5) is not None
    server.on_message("w", short, 0.0)
    assert server.asked.find("w", 5) is None
    # Its acknowledgement was lost: asked for the keys, the worker sends all, which changes nothing.
    before = state(server)
    assert answers(server.on_message("w", short, 0.0))[0].why == "keys"
    assert answers(server.on_message("w", full, 0.0)) == [Pushed(full.request, 0)]
    assert state(server) == before


def test_of_each_worker_the_oldest_pulls_are_forgotten_first():
    asked = AskedKeys(2)
    for request in range(4):
        asked.keep("w", request, ())
    asked.keep("v", 0, ())
    assert [asked.find("w", request) for request in range(4)] == [None, None, (), ()]
    assert asked.find("v", 0) == ()
    asked.clear()
    assert asked.find("v", 0) is None


def test_a_worker_sends_keys_when_asked_and_only_then():
    worker, answer = worker_asking(plain(), Worker)
    (compute,) = computes(worker.on_message(0, answer, 0.0))
    result = worker.model.gradient(compute.batch, compute.weights)
    effects = worker.on_computed(compute.token, result, 0.0)
    (short,) = [m for m in answers(effects) if isinstance(m, Push)]
    assert (short.asked, short.keys) == (answer.request, ())
    refused = Refused(short.request, "keys", short.asked, "")
    (full,) = answers(worker.on_message(0, refused, 0.0))
    assert (full.asked, full.request) == (-1, short.request)
    sets = worker.model.key_sets(compute.batch)
    assert [k.tobytes() for k in full.keys] == [s.keys.tobytes() for s in sets]
    assert worker.on_message(0, replace(refused, request=answer.request), 0.0) == []


def test_the_next_pull_travels_with_the_push():
    setup = plain(103, mode="async", lanes=1, window=1)
    worker, answer = worker_asking(setup, Worker)
    (compute,) = computes(worker.on_message(0, answer, 0.0))
    assert worker.lanes[0].tasks[1].stage is Stage.PREPARED
    result = worker.model.gradient(compute.batch, compute.weights)
    sent = answers(worker.on_computed(compute.token, result, 0.0))
    assert [(type(m), m.batch) for m in sent] == [(Push, 0), (Pull, 1)]
