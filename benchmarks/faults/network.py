"""A job whose nodes are in network namespaces, and what happens to the wires between them."""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.faults.jobs import Job, wait
from benchmarks.faults.nodes import Nodes, lost, settings_of

SERVERS, WORKERS = 2, 3
PORT = 9000
NETWORK = "10.77.0."
FORBIDDEN = 77
"""Exit status where there can be no network namespaces: what automake takes for "skipped"."""

LONGEST_S = 60.0
GIVE_UP_S = 120.0
"""Longer than any partition: a node that finds no scheduler for this long ends for good."""

SLOW_LINK = "8mbit"
LOSS = 0.05
SPREAD_S = 1.0
"""The next partition comes at a random moment of so many seconds."""


def run(*words: str) -> None:
    """Run a tool of the system; ``OSError`` with what it said if it fails."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")


def forbidden() -> str:
    """Why there can be no network namespaces here; empty if there can."""
    missing = [tool for tool in ("ip", "iptables", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    try:
        with Network(["probe"]) as network:
            network.drop("probe", ["probe"])
            network.slow(SLOW_LINK)
    except OSError as error:
        return str(error)
    return ""


def remove_stale() -> None:
    """Remove the namespaces of harnesses that were killed."""
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for name in re.findall(r"^ctrps\d+-\S+", done.stdout, re.MULTILINE):
        if not Path("/proc", re.findall(r"\d+", name)[0]).exists():
            run("ip", "netns", "del", name)


class Network:
    """A network namespace for each node, joined by a bridge; a context manager that removes all.

    The bridge is in a namespace of its own: nothing is added to the machine's own network, and all
    links and rules go with the namespaces.

    Parameters
    ----------
    nodes
        Their names; the first one has the address 10.77.0.1.
    """

    def __init__(self, nodes: Sequence[str]):
        self.nodes = list(nodes)
        self._name = f"ctrps{os.getpid()}"
        self._closing = ExitStack()

    def __enter__(self) -> "Network":
        remove_stale()
        with ExitStack() as closing:
            hub = self._add(closing, "hub")
            run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", hub, "link", "set", "bridge", "up")
            for number, node in enumerate(self.nodes):
                self._join(self._add(closing, node), hub, number)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _add(self, closing: ExitStack, node: str) -> str:
        name = self.name(node)
        run("ip", "netns", "add", name)
        closing.callback(run, "ip", "netns", "del", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def _join(self, name: str, hub: str, number: int) -> None:
        port = f"port{number}"
        link = ("link", "add", "wire", "type", "veth", "peer", "name", port, "netns", hub)
        run("ip", "-n", name, *link)
        # Without this, loss and rates would meet segments of 64 KiB.
        for namespace, device in ((name, "wire"), (hub, port)):
            run("ip", "-n", namespace, "link", "set", device, "gso_max_segs", "1", "up")
        run("ip", "-n", hub, "link", "set", port, "master", "bridge")
        run("ip", "-n", name, "addr", "add", f"{NETWORK}{number + 1}/24", "dev", "wire")

    def name(self, node: str) -> str:
        return f"{self._name}-{node}"

    def address(self, node: str) -> str:
        return f"{NETWORK}{self.nodes.index(node) + 1}"

    def prefix(self, node: str) -> list[str]:
        """What goes before a command that runs at a node."""
        return ["ip", "netns", "exec", self.name(node)]

    def drop(self, node: str, senders: Sequence[str]) -> None:
        """What these nodes send to that one is lost."""
        for sender in senders:
            self._rule(node, "-s", self.address(sender))

    def lose(self, share: float) -> None:
        """A share of all segments is lost."""
        for node in self.nodes:
            self._rule(node, "-m", "statistic", "--mode", "random", "--probability", str(share))

    def _rule(self, node: str, *which: str) -> None:
        run(*self.prefix(node), "iptables", "-w", "-A", "INPUT", "-i", "wire", *which, "-j", "DROP")

    def heal(self) -> None:
        """Nothing is lost any more."""
        for node in self.nodes:
            run(*self.prefix(node), "iptables", "-w", "-F", "INPUT")

    def slow(self, rate: str) -> None:
        """Each node sends, and is sent to, at this rate."""
        shaped = ("root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms")
        hub = ("ip", "netns", "exec", self.name("hub"))
        for number, node in enumerate(self.nodes):
            run(*self.prefix(node), "tc", "qdisc", "add", "dev", "wire", *shaped)
            run(*hub, "tc", "qdisc", "add", "dev", f"port{number}", *shaped)


@contextmanager
def cluster(folder: Path, settings: list[str], rows: int, passes: int) -> Iterator[tuple]:
    """A network, and a job whose nodes are in it: none has begun to train yet."""
    replicas = "cluster.replicas=1" in settings
    servers = [f"server-{n}" for n in range(SERVERS * (1 + replicas))]
    workers = [f"worker-{n}" for n in range(WORKERS)]
    key = folder / "job.key"
    run(sys.executable, "-m", "ctrps", "keygen", str(key))
    counts = [f"cluster.servers={SERVERS}", f"cluster.workers={WORKERS}"]
    limits = [f"cluster.give_up_s={GIVE_UP_S:g}", f"cluster.start_timeout_s={GIVE_UP_S:g}"]
    job = Job(folder, rows, passes, [*settings, *counts, *limits, f"cluster.key_file={key}"])
    with Network(["scheduler", *servers, *workers]) as network, closing(Nodes(job)) as nodes:
        scheduler = [f"cluster.scheduler={network.address('scheduler')}:{PORT}"]
        for node in network.nodes:
            bind = [f"cluster.server_bind={network.address(node)}:0"]
            role = node.partition("-")[0]
            nodes.start(node, role, [*scheduler, *bind], network.prefix(node))
        yield network, job, nodes


def part(network: Network, rng: random.Random) -> str:
    """Part some of the nodes from the others, one way or both; what was done, in words."""
    nodes = rng.sample(network.nodes, len(network.nodes))
    some = nodes[: rng.choice([1, 1, 2, len(nodes) // 2])]
    others = [node for node in nodes if node not in some]
    if rng.random() < 0.3:
        others = others[:1]  # only this one connection
    way = rng.choice(["both ways", "to", "from"])
    for node in some if way != "from" else []:
        network.drop(node, others)
    for node in others if way != "to" else []:
        network.drop(node, some)
    return f"{', '.join(some)} | {', '.join(others)}, {way}"


def lasts_s(rng: random.Random, longest_s: float) -> float:
    """From 1 s to the longest, and mostly short: a half are below 2 s, a quarter above 5.6."""
    return float(longest_s ** (rng.random() ** 3))


def partitions(folder: Path, seed: int, wanted: int, longest_s: float, size: tuple) -> dict:
    """One job, parted up to so many times, each time once it has gone on since the last one."""
    rng = random.Random(seed)
    mode, replicas = ("async", "sync")[seed % 2], seed // 2 % 2
    cuts: list[dict[str, Any]] = []
    with cluster(folder, settings_of(mode, replicas), *size) as (network, job, nodes):
        progress(job, nodes, (0, 0))
        while len(cuts) < wanted:
            pause(nodes, rng.uniform(0, SPREAD_S))
            if nodes.over():
                break
            cuts.append({"what": part(network, rng), "lasted_s": lasts_s(rng, longest_s)})
            pause(nodes, cuts[-1]["lasted_s"])
            network.heal()
            cuts[-1]["well_after_s"] = progress(job, nodes, job.done())
        found = nodes.end()
        found["lost"] = len(lost(job))
    return {"what": "partitions", "mode": mode, "replicas": replicas, "cuts": cuts} | found


def progress(job: Job, nodes: Nodes, before: tuple[int, int]) -> float:
    """Seconds until a job is further than this, or over."""
    began = time.monotonic()
    wait(lambda: job.done() > before or nodes.over(), "progress of the job")
    return round(time.monotonic() - began, 2)


def pause(nodes: Nodes, seconds: float) -> None:
    """So many seconds, or less if the job ends in them."""
    until = time.monotonic() + seconds
    wait(lambda: nodes.over() or time.monotonic() >= until, "a moment", seconds + 60)


def wires(folder: Path, what: str, mode: str, size: tuple) -> dict[str, Any]:
    """One job whose wires lose segments, or are slow, or neither, from its first message on."""
    with cluster(folder, settings_of(mode, 0), *size) as (network, job, nodes):
        if what == "loss":
            network.lose(LOSS)
        elif what == "slow":
            network.slow(SLOW_LINK)
        found = nodes.end()
        found["lost"] = len(lost(job))
    found["ok"] = found["ok"] and not found["lost"]
    return {"what": what, "mode": mode} | found


def trials(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All jobs in turn: those that are parted, then those on bad wires beside good ones."""
    size, left, number = (options.rows, options.passes), options.partitions, 0
    while left > 0:
        (folder / str(number)).mkdir()
        wanted = min(left, options.each)
        seed = options.seed + number
        yield (found := partitions(folder / str(number), seed, wanted, options.longest_s, size))
        if not found["cuts"]:
            raise SystemExit("a job ended before anything was parted: give it more --passes")
        left, number = left - len(found["cuts"]), number + 1
    for mode in ("async", "sync"):
        for what in options.wires:
            (folder / f"{what}-{mode}").mkdir()
            yield wires(folder / f"{what}-{mode}", what, mode, (options.rows, 2))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.faults network", description=__doc__)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--each", type=int, default=10, help="most partitions of one job")
    parser.add_argument("--longest-s", type=float, default=LONGEST_S, help="of a partition")
    parser.add_argument("--wires", nargs="*", default=["good", "loss", "slow"])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--passes", type=int, default=40, help="of jobs that are parted")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if why := forbidden():
        print(f"no network namespaces here: {why}", file=sys.stderr)
        return FORBIDDEN
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for one in trials(Path(folder), options):
            print(json.dumps(one), file=sys.stderr, flush=True)
            found.append(one)
    violations = sum(not one["ok"] for one in found)
    cut = sum(len(one.get("cuts", [])) for one in found)
    given = {"what": "network", "seed": options.seed, "partitions": cut}
    print(json.dumps(given | {"jobs": found, "violations": violations}))
    return int(violations > 0)
