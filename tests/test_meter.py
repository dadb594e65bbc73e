"""Where the time of a cluster goes: what is measured, and the shares of it that a summary shows."""

from dataclasses import replace

import numpy as np

from ctrps.ps.messages import Pull, Push, Pushed
from ctrps.ps.roster import Node
from ctrps.runtime import meter as module
from ctrps.runtime.meter import RECEIVED, SENT, Meter, part_of, shares
from tests.test_machines import status_of


def test_a_part_inside_the_messages_is_no_part_of_them(monkeypatch):
    times = iter([0.0, 1.0, 4.0, 5.0, 6.0, 6.5])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(times))
    meter = Meter()
    with meter.timed("messages"), meter.apart("push"):
        pass
    with meter.timed(""):
        pass
    assert dict(meter.sums) == {"push": 3.0, "push_10": 1.0, "messages": 2.0}


def test_what_a_node_tells_has_its_processor_time_and_memory():
    meter = Meter()
    meter.sums["push"] = 2.0
    told = {**meter}
    assert told["push"] == 2.0 and 0 <= told["cpu_s"] < 60 and told["rss_bytes"] > 1e6
    assert len(told) == len(meter) == 3


def test_only_messages_of_training_are_parts():
    keys = (np.zeros(0, np.uint64),)
    pull = Pull(1, 2, 0, 0, 0, "train", keys)
    push = Push(1, 2, 0, 0, 0, 0, 0, 0.0, -1, keys, keys, keys, keys)
    parts = [part_of(m) for m in (pull, replace(pull, purpose="evaluate"), push, Pushed(1, 2))]
    assert parts == ["pull", "", "push", ""]


def node(number: int, role: str, dead: bool = False, **counters: float) -> Node:
    status = status_of(number, 1, counters=counters)
    return Node(number, role, 0, "boot", "", "peer", 0.0, status=status, dead=dead)


def test_shares_are_means_over_the_nodes_of_a_role():
    nodes = [
        node(0, "worker", read=9.0, compute=2.0, messages=1.0, **{SENT: 600.0, RECEIVED: 100.0}),
        node(1, "worker", read=1.0, compute=4.0, messages=3.0, **{SENT: 300.0}, cpu_s=4.0),
        node(2, "server", pull=1.0, push=2.0, messages=3.0, rows=7.0, **{SENT: 1000.0}, cpu_s=5.0),
        node(3, "worker", dead=True, read=99.0, cpu_s=1.0),
        Node(4, "worker", 0, "boot", "", "peer", 0.0),
    ]
    assert shares(nodes, 10.0, 50) == {
        "time": {
            "worker": {"read": 0.5, "compute": 0.3, "messages": 0.2, "wait": 0.5},
            "server": {"pull": 0.1, "push": 0.2, "messages": 0.3, "wait": 0.4},
        },
        "wire_bytes_per_row": 20.0,
        "cpu_s": 10.0,
        "rows_per_cpu_s": 5.0,
    }
    assert shares(nodes, 0.0, 50) == shares(nodes, 10.0, 0) == {}
