"""Where the time of a cluster goes: measured by the loop of each node, beside its machine.

The machines have no clock. The driver measures what it does for them and lays the sums into
their next status, so that the scheduler can tell the shares at the end.
"""

import resource
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ctrps.ps.messages import Message, Pull, Push
from ctrps.ps.roster import Node

WORKER = ("read", "compute", "messages")
SERVER = ("pull", "push", "messages")
"""What is measured of each role, in seconds; ``messages`` is what the loop does beside the rest."""

SERIAL = {"worker": ("compute", "messages"), "server": SERVER}
"""What a node does one after another; it reads beside that. The rest of the time it waits."""

SENT, RECEIVED = "sent_bytes", "received_bytes"

TIMED = {name: tuple(f"{name}_{number}" for number in range(11)) for name in ("pull", "push")}
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
"""Of the histograms of the times that a server takes for a message: upper bounds, the last bin
without one. ``TIMED`` has the names under which the bins are counted."""

_PAGE_BYTES = resource.getpagesize()


class Meter(Mapping[str, float]):
    """What a node has done since it began, by name; as a mapping, with what it uses of the machine.

    Each thread adds to names of its own.

    Attributes
    ----------
    sums : dict
        By name: seconds, bytes sent and received, and messages by the time that they took.
    """

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)
        self._cpu_s = time.process_time()
        self._rss = (0.0, 0.0)

    def __getitem__(self, name: str) -> float:
        match name:
            case "cpu_s":
                return time.process_time() - self._cpu_s
            case "rss_bytes":
                return self._resident()
        return self.sums.get(name, 0.0)

    def __iter__(self) -> Iterator[str]:
        return iter((*tuple(self.sums), "cpu_s", "rss_bytes"))

    def __len__(self) -> int:
        return len(self.sums) + 2

    def _resident(self) -> float:
        """Looked up once a second: a busy node tells its sums a hundred times."""
        now = time.monotonic()
        if now - self._rss[0] >= 1.0:
            self._rss = (now, float(resident_bytes()))
        return self._rss[1]

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time that the context takes to ``name``; to nothing if that is empty."""
        began = time.perf_counter()
        try:
            yield
        finally:
            if name:
                spent = time.perf_counter() - began
                self.sums[name] += spent
                if name in TIMED:
                    self.sums[TIMED[name][bisect_left(BOUNDS_S, spent)]] += 1

    @contextmanager
    def apart(self, name: str) -> Iterator[None]:
        """As ``timed``, inside a context of ``messages``, which this is then no part of."""
        before = self.sums[name]
        try:
            with self.timed(name):
                yield
        finally:
            self.sums["messages"] -= self.sums[name] - before


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:  # no Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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
        between workers and servers, both ways. ``cpu_s`` and ``rows_per_cpu_s``: of all nodes that
        ever were, but for their start. Empty if nothing was trained.
    """
    if not train_s or not rows:
        return {}
    counted = {role: _counters(nodes, role) for role in SERIAL}
    sent = sum(c.get(name, 0.0) for c in counted["worker"] for name in (SENT, RECEIVED))
    cpu_s = sum(n.status.counters.get("cpu_s", 0.0) for n in nodes if n.status)
    return {
        "time": {
            role: _shares(counted[role], names, SERIAL[role], train_s)
            for role, names in (("worker", WORKER), ("server", SERVER))
        },
        "wire_bytes_per_row": round(sent / rows, 1),
        **cost(cpu_s, rows),
    }


def cost(cpu_s: float, rows: int) -> dict[str, float]:
    """What the summary says of processors: seconds of them, and rows for each."""
    return {"cpu_s": round(cpu_s, 3), "rows_per_cpu_s": round(rows / cpu_s, 1) if cpu_s else 0.0}


def wire_bytes(nodes: Sequence[Node]) -> int:
    """What workers and servers have sent each other, both ways, as far as it is known."""
    told = [n.status.counters for n in nodes if n.role == "worker" and n.status]
    return int(sum(c.get(name, 0.0) for c in told for name in (SENT, RECEIVED)))


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
