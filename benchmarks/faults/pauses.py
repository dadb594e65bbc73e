"""Processes of a job that stand still for a while, and then go on as if nothing had been."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.jobs import LAST_WORDS_S, Job, wait
from benchmarks.faults.nodes import lost, settings_of, verdict

SERVERS, WORKERS = 2, 3
ROLES = ("worker", "server", "scheduler")
REJOINS = "joining again as a new node"
"""What a node's log says when it has been taken for dead."""

BEAT_S = 0.5
"""Half of the default: a worker is dead after 3 s of silence, and 2 s must not be so much."""

LIMITS = {"worker": 3.0, "server": 5.0, "scheduler": float("inf")}
"""Seconds of silence after which a node is taken for dead: the defaults."""

SPREAD_S = 0.5
"""The next pause comes at a random moment of so many seconds."""


def rejoined(job: Job) -> int:
    """How often nodes of the job have joined again."""
    logs = (job.run / "logs").glob("*.log")
    return sum(log.read_text(errors="replace").count(REJOINS) for log in logs)


def stop(
    job: Job, role: str, seconds: float, rng: random.Random, over: Callable[[], bool]
) -> dict[str, Any] | None:
    """Stop one process of a role for so long, and see what becomes of it.

    None if the job was over before that could be seen.
    """
    before, dead, fenced = job.done(), len(lost(job)), rejoined(job)
    rank, pid = rng.choice(sorted(job.processes(role).items()))
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        meanwhile = job.done() > before
    finally:
        os.kill(pid, signal.SIGCONT)
    woken, before = time.monotonic(), job.done()

    def well() -> bool:
        # Whoever was taken for dead hears of it, and joins again.
        return job.done() > before and rejoined(job) - fenced >= len(lost(job)) - dead

    wait(lambda: over() or well(), f"progress after a pause of {role} {rank}")
    if over():
        return None
    return {
        "role": role,
        "rank": rank,
        "seconds": seconds,
        "went_on_meanwhile": meanwhile,
        "well_after_s": round(time.monotonic() - woken, 2),
        "lost": len(lost(job)) - dead,
        "rejoined": rejoined(job) - fenced,
    }


def as_promised(pause: dict[str, Any]) -> bool:
    """Short: nobody was lost. Long: it was, and has joined again; a scheduler never is."""
    if pause["seconds"] <= LIMITS[pause["role"]] - 1:
        return not pause["lost"]
    return bool(pause["lost"] == pause["rejoined"] >= 1)


def paused(
    folder: Path, mode: str, replicas: int, plan: list[tuple[str, float]], size: tuple, seed: int
) -> dict[str, Any]:
    """One job, whose processes stand still one after the other; takes from the plan what it did."""
    rng = random.Random(seed)
    job = Job(folder, *size, [*settings_of(mode, replicas), f"cluster.beat_s={BEAT_S}"])
    launcher = job.start("launch", "-s", str(SERVERS), "-w", str(WORKERS))
    found: list[dict[str, Any]] = []
    before = (0, 0)
    summary = job.run / "summary.json"
    over = lambda: launcher.poll() is not None or summary.exists()  # noqa: E731
    try:
        while plan:
            wait(lambda b=before: job.done() > b or over(), "progress before a pause")
            time.sleep(rng.uniform(0, SPREAD_S))
            one = None if over() else stop(job, *plan[-1], rng, over)
            if one is None:
                break
            plan.pop()
            found.append(one | {"as_promised": as_promised(one)})
            before = job.done()
        status = launcher.wait(LAST_WORDS_S)
    finally:
        end(launcher)
    told = {"mode": mode, "replicas": replicas, "pauses": found, "status": status}
    if status:
        words = (job.folder / "launch.log").read_text()[-600:]
        return told | {"ok": False, "last_words": words}
    told |= verdict(job)
    return told | {"ok": told["ok"] and all(f["as_promised"] for f in found)}


def trials(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All roles and lengths, with standbys and without, in as many jobs as they take."""
    rng, number = random.Random(options.seed), 0
    for replicas in (0, 1):
        plan = [(role, s) for role in options.roles for s in options.seconds] * options.times
        rng.shuffle(plan)
        while plan:
            place = folder / str(number)
            place.mkdir()
            mode = ("async", "sync")[number % 2]
            size = (options.rows, options.passes)
            yield (found := paused(place, mode, replicas, plan, size, options.seed + number))
            if not found["pauses"]:
                raise SystemExit("a job ended before anything stood still: give it more --passes")
            number += 1


def end(launcher: "subprocess.Popen[bytes]") -> None:
    """Kill a launcher that still runs; its processes end with it."""
    if launcher.poll() is None:
        launcher.kill()
        launcher.wait()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.faults pauses", description=__doc__)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.5, 2.0, 10.0])
    parser.add_argument("--roles", nargs="+", default=list(ROLES), choices=ROLES)
    parser.add_argument("--times", type=int, default=1, help="of each role and length")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--passes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory() as name:
        for one in trials(Path(name), options):
            print(json.dumps(one), file=sys.stderr, flush=True)
            found.append(one)
    pauses = sum(len(job["pauses"]) for job in found)
    violations = sum(not job["ok"] for job in found)
    given = {"what": "pauses", "seed": options.seed, "pauses": pauses}
    print(json.dumps(given | {"jobs": found, "violations": violations}))
    return int(violations > 0)
