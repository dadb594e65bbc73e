"""Jobs on bad networks, and with processes that stand still: the harness, and short runs of it."""

import argparse
import os
import random
import subprocess
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from benchmarks.faults import network, pauses, relay
from benchmarks.faults.jobs import wait
from benchmarks.faults.nodes import DIED, Nodes, lost, settings_of
from ctrps.ps import messages
from ctrps.ps.messages import Pushed, Register
from ctrps.runtime.transport import Transport
from tests.procs import DEADLINE_S

SENT = 200


def received(transport: Transport, enough: Callable[[int], bool]) -> list[tuple]:
    """Messages with who sent them, once so many have come."""
    found: list[tuple] = []
    until = time.monotonic() + DEADLINE_S
    while not enough(len(found)):
        assert time.monotonic() < until, f"{len(found)} messages"
        for peer, frames in transport.poll(0.05):
            found += [(peer, message) for message in messages.decode(frames)]
    return found


def test_a_relay_doubles_drops_and_reorders_what_comes_by():
    faults = relay.Faults(drop=0.25, double=1.0, window=20, delay_s=0.01)
    with (
        closing(Transport("s", ("127.0.0.1", 0), role="server")) as server,
        closing(Transport("w")) as worker,
        closing(relay.Relay(3, faults)) as between,
    ):
        worker.connect("server", between.start(server.address))
        for number in range(SENT):
            worker.send("server", messages.encode(Pushed(number, -1)))
        counts = between.counts

        def enough(n: int) -> bool:
            return counts["came"] == SENT and n == 2 * (SENT - counts["dropped"])

        found = received(server, enough)
        assert 0 < counts["dropped"] < SENT / 2
        numbers = [message.request for _, message in found]
        assert {numbers.count(n) for n in numbers} == {2} and numbers != sorted(numbers)
        assert {peer for peer, _ in found} == {b"w"}, "a node keeps its name"
        server.send(b"w", messages.encode(Pushed(7, 8)))
        server.send(b"w", messages.encode(Pushed(7, 8)))
        before = counts["dropped"]

        def answered(n: int) -> bool:
            return counts["came"] == SENT + 2 and n == 2 * (2 - counts["dropped"] + before)

        back = received(worker, answered)
        assert {message for _, message in back} <= {Pushed(7, 8)}


def test_a_relay_stands_for_the_servers_that_register_through_it():
    quiet = relay.Faults(drop=0.0, double=0.0, window=1, delay_s=0.0)
    told = ("server", -1, "job", "", "", "s", "127.0.0.1:7", False)
    with (
        closing(Transport("s", ("127.0.0.1", 0), role="scheduler")) as scheduler,
        closing(Transport("n")) as node,
        closing(relay.Relay(1, quiet)) as between,
    ):
        address = between.start(scheduler.address)
        node.connect("scheduler", address)
        node.send("scheduler", messages.encode(Register(messages.PROTOCOL, *told)))
        ((_, came),) = received(scheduler, lambda n: n == 1)
        assert came.address not in ("127.0.0.1:7", address) and came.boot == "s"
    assert between.counts["came"] == between.counts["went_on"] == 1


def test_partitions_are_mostly_short():
    rng = random.Random(1)
    lengths = sorted(network.lasts_s(rng, 60.0) for _ in range(2000))
    assert 1.0 <= lengths[0] and lengths[-1] <= 60.0
    assert lengths[1000] < 2.0 and 10.0 < lengths[1800]


@pytest.mark.parametrize(
    "role, seconds, lost, rejoined, kept",
    [
        ("worker", 2.0, 0, 0, True),
        ("worker", 2.0, 1, 1, False),
        ("worker", 10.0, 1, 1, True),
        ("server", 10.0, 1, 0, False),
        ("server", 10.0, 0, 0, False),
        ("scheduler", 10.0, 0, 0, True),
        ("scheduler", 10.0, 1, 1, False),
    ],
)
def test_what_is_promised_of_a_pause(role, seconds, lost, rejoined, kept):
    pause = {"role": role, "seconds": seconds, "lost": lost, "rejoined": rejoined}
    assert pauses.as_promised(pause) is kept


def test_a_node_that_died_is_started_again_and_one_that_ended_is_not(tmp_path):
    class Started:
        settings, folder = (), tmp_path

    assert 1 in DIED and 4 not in DIED and 0 not in DIED
    with closing(Nodes(Started())) as nodes:
        for name, status in (("died", 137), ("ended", 4), ("scheduler", 0)):
            nodes.start(name, "--help", [], ["sh", "-c", f"echo once; exit {status}"])
        for process in nodes._running.values():
            process.wait(DEADLINE_S)
        assert nodes.over()
        nodes._running["died"].wait(DEADLINE_S)
    said = [len(nodes.log(n).read_text().splitlines()) for n in ("died", "ended", "scheduler")]
    assert said == [2, 1, 1] and nodes.restarts == 1


# -- real jobs ----------------------------------------------------------------------------------


@pytest.fixture
def namespaces():
    """Skips where this machine has no network namespaces; none may be left behind."""
    if why := network.forbidden():
        pytest.skip(f"no network namespaces here: {why}")
    yield
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert f"ctrps{os.getpid()}-" not in listed.stdout


@pytest.mark.slow
@pytest.mark.cluster
def test_a_job_that_is_parted(tmp_path, namespaces):
    found = network.partitions(tmp_path, 2, 3, 5.0, (6000, 20))
    assert found["ok"] and found["cuts"], found


@pytest.mark.slow
@pytest.mark.cluster
def test_a_node_that_was_cut_off_is_back_soon(tmp_path, namespaces):
    """After 14 s the system would try an old connection again 11 s later."""
    with network.cluster(tmp_path, settings_of("async", 0), 6000, 2000) as (net, job, nodes):
        network.progress(job, nodes, (0, 0))
        others = [node for node in net.nodes if node != "worker-0"]
        net.drop("worker-0", others)
        for node in others:
            net.drop(node, ["worker-0"])
        network.pause(nodes, 14.0)
        assert lost(job)
        net.heal()
        joined = lambda: nodes.log("worker-0").read_text().count("joined as") == 2  # noqa: E731
        wait(joined, "the node", 8.0)
        assert not nodes.over()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_job_on_a_slow_link_loses_no_node(tmp_path, namespaces):
    found = network.wires(tmp_path, "slow", "sync", (6000, 1))
    assert found["ok"] and not found["lost"], found


@pytest.mark.slow
@pytest.mark.cluster
def test_a_job_through_a_relay(tmp_path):
    found = relay.relayed(tmp_path, "ssp", 0, 1, 600)
    assert found["ok"] and found["dropped"] and found["doubled"], found


@pytest.mark.slow
@pytest.mark.cluster
def test_a_job_whose_worker_stands_still(tmp_path):
    options = argparse.Namespace(
        roles=["worker"], seconds=[0.5], times=1, rows=6000, passes=20, seed=1
    )
    for found in pauses.trials(tmp_path, options):
        assert found["ok"] and found["pauses"], found
