"""Strangers at every port of a real job: what do they cost it, and does it notice?

    python -m benchmarks.strangers [--key | --no-key] [--frames 100000] [--idle 2000]

A job of 2 servers and 2 workers trains on generated rows. Once it has begun, this process opens
idle connections to the scheduler and to each server, says hello in HTTP and TLS, sends random bytes
and broken handshakes, and, as ZeroMQ would, frame sets of random sizes, some of them with too many
frames. Without a key those arrive and are thrown away; with one they are not let in. The job must
go on meanwhile and end with the digest of `ctrps train`, no process may grow by 64 MiB, and its
logs must stay short. Exit status 1 if not. Prints one JSON line at the end.
"""

import argparse
import json
import random
import re
import resource
import socket
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil
import zmq

from benchmarks.faults.jobs import Job, wait
from ctrps.runtime.security import JobKey

MOST_GROWTH = 64 << 20
MOST_LOG_BYTES = 1 << 18
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0CURVE".ljust(32, b"\0") + bytes(32)


class Target:
    """A process of the job that listens."""

    def __init__(self, name: str, address: str, process: psutil.Process, log: Path):
        self.name = name
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.process = process
        self.log = log
        self.begun = self.most = process.memory_info().rss

    def look(self) -> None:
        self.most = max(self.most, self.process.memory_info().rss)

    def figures(self) -> dict:
        grown = (self.most - self.begun) / (1 << 20)
        return {"name": self.name, "grown_mb": grown, "log_bytes": self.log.stat().st_size}


def targets(job: Job) -> list[Target]:
    """The scheduler and the servers of a job that has begun."""
    found = []
    scheduler = json.loads((job.run / "scheduler.json").read_text())
    log = job.run / "logs" / "scheduler-0.log"
    found.append(Target("scheduler", scheduler["address"], psutil.Process(scheduler["pid"]), log))
    for log in sorted((job.run / "logs").glob("server-*.log")):
        address = re.search(r", at (\S+:\d+)$", log.read_text(), re.MULTILINE)
        assert address is not None
        rank = log.stem.partition("-")[2]
        words = {"server", "--rank", rank, str(job.run / "config.resolved.yaml")}
        (process,) = (p for p in psutil.process_iter() if words <= set(command(p)))
        found.append(Target(log.stem, address[1], process, log))
    return found


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def raw(rng: random.Random) -> bytes:
    """What is no ZeroMQ, or breaks off in its handshake."""
    return rng.choice(
        [
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
            rng.randbytes(rng.randrange(1, 5000)),
            GREETING + rng.randbytes(rng.randrange(600)),
            GREETING + b"\x04\xc8\x05HELLO" + rng.randbytes(194),
            GREETING + b"\x06" + b"\x7f" * 8 + rng.randbytes(200),
        ]
    )


def hellos(target: Target, number: int, rng: random.Random) -> None:
    for _ in range(number):
        with socket.create_connection(target.address, 10) as stranger:
            try:
                stranger.sendall(raw(rng))
            except OSError:
                continue  # refused while it still spoke


def frames(target: Target, number: int, rng: random.Random) -> int:
    """Frame sets that ZeroMQ carries; returns how many frames it took before nobody did."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect("tcp://{}:{}".format(*target.address))
        sent = 0
        while sent < number and stranger.poll(1000, zmq.POLLOUT):
            count = rng.choice([1, 2, 3, 17, 200])
            made = [rng.randbytes(rng.choice([0, 1, 30, 1000])) for _ in range(count)]
            made[0] = rng.choice([b"", b"\x91", b"\xdd" + b"\xff" * 4, made[0]])
            stranger.send_multipart(made)
            sent += count
            target.look()
    return sent


def visit(job: Job, options: argparse.Namespace) -> dict:
    """Run the job with strangers at its ports."""
    rng = random.Random(options.seed)
    launcher = job.start("launch", "-s", "2", "-w", "2")
    wait(lambda: job.done() > (0, 0), "the first step")
    ports = targets(job)
    with ExitStack() as idle:
        for number in range(options.idle):
            target = ports[number % len(ports)]
            idle.enter_context(socket.create_connection(target.address, 10))
        before, sent = job.done(), 0
        for target in ports:
            hellos(target, options.hellos, rng)
            sent += frames(target, options.frames // len(ports), rng)
            target.look()
        wait(lambda: job.done() > before or launcher.poll() is not None, "progress")
        busy = launcher.poll() is None
        figures = [target.figures() for target in ports] if busy else []
    status = launcher.wait(600)
    same = status == 0 and job.summary()["model_digest"] == job.undisturbed()
    short = all(f["grown_mb"] < MOST_GROWTH >> 20 for f in figures)
    quiet = all(f["log_bytes"] < MOST_LOG_BYTES for f in figures)
    found = {"frames": sent, "still_busy": busy, "status": status, "same_digest": same}
    return found | {"processes": figures, "ok": busy and same and short and quiet}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--key", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--hellos", type=int, default=1000, help="to each port")
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = []
        if options.key:
            JobKey.make(folder / "job.key")
            settings.append(f"cluster.key_file={folder / 'job.key'}")
        found = visit(Job(folder, options.rows, options.passes, settings), options)
    print(json.dumps({"key": options.key} | found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
