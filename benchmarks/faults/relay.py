"""A relay between nodes that delays, doubles, reorders and drops their messages."""

import argparse
import heapq
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import zmq

from benchmarks.faults.jobs import Job, wait
from benchmarks.faults.nodes import Nodes, settings_of
from ctrps.ps import messages
from ctrps.runtime.shared import OFFER

FLUSH_S = 0.02
"""Messages wait no longer than this for others that could overtake them."""

SERVERS, WORKERS = 6, 4
SHARES = {"ssp": 1.0, "sync": 1 / 12, "async": 1 / 30}
"""Rows of a job, by mode: a batch that waits for a repeat, seconds, delays one lane in ssp, all of
its step in sync, all of its worker in async."""


@dataclass(frozen=True)
class Faults:
    """What becomes of each message.

    Attributes
    ----------
    drop, double : float
        Shares of messages that are lost, and that come twice.
    window : int
        Messages of one connection and direction that are put into random order together.
    delay_s : float
        The longest delay, which is delay_s × u^4 for a u drawn evenly from 0 to 1; each of two
        copies has its own.
    """

    drop: float = 0.05
    double: float = 0.3
    window: int = 20
    delay_s: float = 0.5


@dataclass(frozen=True)
class Link:
    """One direction of a connection: the socket that sends, and what goes before its frames."""

    out: "zmq.Socket[bytes]"
    head: tuple[bytes, ...] = ()

    def send(self, frames: list[bytes]) -> None:
        try:
            self.out.send_multipart([*self.head, *frames], zmq.NOBLOCK)
        except zmq.Again:
            return  # nobody is there: lost, as any other message may be


class Relay:
    """Listens for nodes in place of the scheduler and of all servers, until ``close``.

    What a server says of its address is changed on the way, so that all others come here too.
    Offers of shared memory are thrown away: what goes through memory does not come by.

    Parameters
    ----------
    seed
    faults

    Attributes
    ----------
    counts : dict
        Messages that came, that were dropped and doubled, and that went on.
    """

    def __init__(self, seed: int, faults: Faults):
        self.counts = {"came": 0, "dropped": 0, "doubled": 0, "went_on": 0}
        self._faults = faults
        self._rng = random.Random(seed)
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._fronts: dict[str, tuple[zmq.Socket[bytes], str]] = {}
        self._targets: dict[zmq.Socket[bytes], str] = {}
        self._calls: dict[tuple[zmq.Socket[bytes], bytes], Link] = {}
        self._back: dict[zmq.Socket[bytes], Link] = {}
        self._held: dict[Link, list[list[bytes]]] = {}
        self._due: list[tuple[float, int, Link, list[bytes]]] = []
        self._number = count()
        self._next_flush = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self, scheduler: str) -> str:
        """Begin to relay; returns the address for nodes that look for this scheduler."""
        address = self._front(scheduler)
        self._thread.start()
        return address

    def close(self) -> None:
        """End, with what is still held."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._context.destroy(linger=0)

    def _front(self, target: str) -> str:
        """The address here that stands for a target."""
        if target not in self._fronts:
            front = self._socket(zmq.ROUTER)
            port = front.bind_to_random_port("tcp://127.0.0.1")
            self._fronts[target] = (front, f"127.0.0.1:{port}")
            self._targets[front] = target
        return self._fronts[target][1]

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.RCVHWM, 0)
        self._poller.register(made, zmq.POLLIN)
        return made

    def _call(self, front: "zmq.Socket[bytes]", name: bytes) -> Link:
        """The connection to a front's target of the node with this name."""
        link = self._calls.get((front, name))
        if link is None:
            dealer = self._socket(zmq.DEALER)
            dealer.setsockopt(zmq.ROUTING_ID, name)
            dealer.connect(f"tcp://{self._targets[front]}")
            link = self._calls[front, name] = Link(dealer)
            self._back[dealer] = Link(front, (name,))
        return link

    def _run(self) -> None:
        while not self._stop.is_set():
            now = time.monotonic()
            until = min([self._next_flush, *(due[0] for due in self._due[:1])])
            for source, _ in self._poller.poll(max(0, round(1000 * (until - now)))):
                self._receive(source)
            now = time.monotonic()
            if now >= self._next_flush:
                self._next_flush = now + FLUSH_S
                for link in list(self._held):
                    self._shuffle(link, now)
            while self._due and self._due[0][0] <= now:
                _, _, link, frames = heapq.heappop(self._due)
                self.counts["went_on"] += 1
                link.send(frames)

    def _receive(self, source: "zmq.Socket[bytes]") -> None:
        while True:
            try:
                frames = source.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            link = self._back.get(source)
            if link is None:
                link = self._call(source, frames.pop(0))
            if frames[0][0] == OFFER:
                continue
            if b"register" in frames[0]:
                frames = self._readdressed(frames)
            self._take(link, frames)

    def _readdressed(self, frames: list[bytes]) -> list[bytes]:
        """The same messages, with the address here instead of a server's own."""
        found = list(messages.decode(frames))
        for at, message in enumerate(found):
            if isinstance(message, messages.Register) and message.address:
                found[at] = replace(message, address=self._front(message.address))
        return [bytes(frame) for frame in messages.encode(*found)]

    def _take(self, link: Link, frames: list[bytes]) -> None:
        self.counts["came"] += 1
        if self._rng.random() < self._faults.drop:
            self.counts["dropped"] += 1
            return
        held = self._held.setdefault(link, [])
        held.append(frames)
        if self._rng.random() < self._faults.double:
            self.counts["doubled"] += 1
            held.append(frames)
        if len(held) >= self._faults.window:
            self._shuffle(link, time.monotonic())

    def _shuffle(self, link: Link, now: float) -> None:
        held = self._held.pop(link)
        self._rng.shuffle(held)
        for frames in held:
            delay_s = self._faults.delay_s * self._rng.random() ** 4
            heapq.heappush(self._due, (now + delay_s, next(self._number), link, frames))


def relayed(folder: Path, mode: str, replicas: int, seed: int, rows: int) -> dict[str, Any]:
    """One job whose messages all go through a relay."""
    settings = settings_of(mode, replicas)
    settings += [f"cluster.servers={SERVERS}", f"cluster.workers={WORKERS}"]
    settings += ["train.batch_rows=8", "train.window=2", "train.lanes=192", "train.staleness=64"]
    job = Job(folder, rows, 1, settings)
    with closing(Relay(seed, Faults())) as relay, closing(Nodes(job)) as nodes:
        nodes.start("scheduler", "scheduler", [])
        known = job.run / "scheduler.json"
        wait(lambda: known.exists() or nodes.over(), "a scheduler")
        address = relay.start(json.loads(known.read_text())["address"])
        for role, n in (("server", SERVERS * (1 + replicas)), ("worker", WORKERS)):
            for rank in range(n):
                nodes.start(f"{role}-{rank}", role, [f"cluster.scheduler={address}"])
        began = time.monotonic()
        found = nodes.end()
        took_s = round(time.monotonic() - began, 1)
    return (
        {"mode": mode, "replicas": replicas, "seed": seed, "took_s": took_s} | relay.counts | found
    )


def relays(wanted: int, seed: int, rows: int) -> dict[str, Any]:
    """As many jobs as so many messages take: all modes, with standbys and without."""
    found: list[dict] = []
    with tempfile.TemporaryDirectory() as name:
        while sum(f["came"] for f in found) < wanted:
            n = len(found)
            folder = Path(name, str(n))
            folder.mkdir()
            mode, replicas = [*SHARES][n % 3], n // 3 % 2
            found.append(relayed(folder, mode, replicas, seed + n, round(rows * SHARES[mode])))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    total = {key: sum(f[key] for f in found) for key in ("came", "dropped", "doubled", "went_on")}
    return total | {"jobs": found, "violations": sum(not f["ok"] for f in found)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.faults relay", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=120_000, help="of a job in ssp mode")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    found = relays(options.messages, options.seed, options.rows)
    print(json.dumps({"what": "relay", "seed": options.seed} | found))
    return int(found["violations"] > 0)
