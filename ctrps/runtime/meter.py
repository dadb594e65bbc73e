"""Where the time of a cluster goes: measured by the loop of each node, beside its machine.

The machines have no clock. The driver measures what it does for them and lays the sums into
their next status, so that the scheduler can tell the shares at the end.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ctrps.ps.messages import Message, Pull, Push
from ctrps.ps.roster import Node

WORKER = ("read", "compute", "messages")
SERVER = ("pull", "push", "messages")
"""What is measured of each role, in seconds; ``messages`` is what the loop does beside the rest."""

BYTES = "wire_bytes"


class Meter:
    """Seconds by what was done, and bytes sent and received, since the node began.

    Each thread adds to names of its own.

    Attributes
    ----------
    sums : dict
        By name: seconds, and ``BYTES``.
    """

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time that the context takes to ``name``; to nothing if that is empty."""
        began = time.perf_counter()
        try:
            yield
        finally:
            if name:
                self.sums[name] += time.perf_counter() - began

    @contextmanager
    def apart(self, name: str) -> Iterator[None]:
        """As ``timed``, inside a context of ``messages``, which this is then no part of."""
        before = self.sums[name]
        try:
            with self.timed(name):
                yield
        finally:
            self.sums["messages"] -= self.sums[name] - before


def part_of(message: Message) -> str:
    """What the handling of a message counts as; empty for all but the messages of training."""
    match message:
        case Pull(purpose="train"):
            return "pull"
        case Push():
            return "push"
    return ""


def shares(nodes: Sequence[Node], train_s: float, rows: int) -> dict[str, Any]:
    """What the summary says of the time.

    Returns
    -------
    dict
        ``time``: by role, shares of the training time, as means over its nodes. ``wait`` is the
        rest; a worker reads beside the others, in a thread of its own. ``wire_bytes_per_row``:
        between workers and servers, both ways. Empty if nothing was trained.
    """
    if not train_s or not rows:
        return {}
    counted = {role: _counters(nodes, role) for role in ("worker", "server")}
    sent = sum(counters.get(BYTES, 0.0) for counters in counted["worker"])
    return {
        "time": {
            "worker": _shares(counted["worker"], WORKER, ("compute", "messages"), train_s),
            "server": _shares(counted["server"], SERVER, SERVER, train_s),
        },
        "wire_bytes_per_row": round(sent / rows, 1),
    }


def _counters(nodes: Sequence[Node], role: str) -> list[Mapping[str, float]]:
    return [n.status.counters for n in nodes if n.role == role and n.status and not n.dead]


def _shares(
    counted: list[Mapping[str, float]], names: Sequence[str], serial: Sequence[str], train_s: float
) -> dict[str, float]:
    """The share of each name, and of the time that is left beside the ``serial`` ones."""
    whole = train_s * max(len(counted), 1)
    found = {name: sum(c.get(name, 0.0) for c in counted) / whole for name in names}
    found["wait"] = max(1.0 - sum(found[name] for name in serial), 0.0)
    return {name: round(share, 3) for name, share in found.items()}
