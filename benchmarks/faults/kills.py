"""Kill processes of a running job, one or two at a time, and measure until it is well again."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field

from benchmarks.faults.jobs import LAST_WORDS_S, Job, wait

ROLES = {
    "workers": ("worker",),
    "servers": ("server",),
    "schedulers": ("scheduler",),
    "two": ("worker", "server", "scheduler"),
}
"""What may be killed; of ``two``, a pair at once."""

SERVERS, WORKERS = 2, 3
SPREAD_S = 0.5
"""The next kill comes at a random moment of so many seconds."""


@dataclass
class Killed:
    """What has become of one job: who was killed, and how soon it was well again."""

    victims: list[str] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    status: int | None = None


def victims(job: Job, what: str, replicas: int, rng: random.Random) -> list[tuple[str, str, int]]:
    """Role, rank and process of those to kill now; none if one of them is not there."""
    wanted = 2 if what == "two" else 1
    running = [(r, rank, pid) for r in ROLES[what] for rank, pid in job.processes(r).items()]
    complete = {"worker": WORKERS, "server": SERVERS * (1 + replicas), "scheduler": 1}
    if len(running) < sum(complete[role] for role in ROLES[what]):
        return []
    if what != "two":
        return rng.sample(running, wanted)
    # Half of the pairs have the scheduler and a server: neither can speak for the other.
    pair = rng.sample(running, 2)
    if rng.random() < 0.5:
        pair = [next(v for v in running if v[0] == role) for role in ("scheduler", "server")]
    return pair


def kill_again_and_again(
    job: Job, what: str, replicas: int, kills: int, rng: random.Random
) -> Killed:
    """Run a job of 2 servers, with or without standbys, and 3 workers while some are killed.

    A kill comes only once the job is further than ever since the last one. It is well again when
    each victim's successor is in the job and the job is further than it was at the kill.
    """
    killed = Killed()
    launcher = job.start("launch", "-s", str(SERVERS), "-w", str(WORKERS))
    over = lambda: launcher.poll() is not None  # noqa: E731
    _progress(job, launcher)
    while len(killed.victims) < kills and not over():
        until = time.monotonic() + rng.uniform(0, SPREAD_S)
        wait(lambda until=until: over() or time.monotonic() >= until, "a random moment")
        chosen = victims(job, what, replicas, rng)
        if over() or not chosen:
            continue
        _kill(job, chosen, launcher, killed)
    killed.status = launcher.wait(LAST_WORDS_S)
    return killed


def _kill(
    job: Job,
    chosen: list[tuple[str, str, int]],
    launcher: "subprocess.Popen[bytes]",
    killed: Killed,
) -> None:
    before = job.done()
    starts = {(role, rank): job.starts(role, rank) for role, rank, _ in chosen}
    for _, _, pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    at = time.monotonic()

    def well() -> bool:
        back = all(job.starts(*victim) > n for victim, n in starts.items())
        return back and job.done() > before

    wait(lambda: launcher.poll() is not None or well(), f"progress after the end of {chosen}")
    if well():
        killed.victims.append(" and ".join(f"{role} {rank}" for role, rank, _ in chosen))
        killed.recovery_s.append(round(time.monotonic() - at, 3))


def interrupted(job: Job, rng: random.Random) -> dict:
    """Stop a job twice, by Ctrl-C and by killing its launcher, and run it to its end."""
    stops, status = 0, None
    for number in (signal.SIGINT, signal.SIGKILL, None):
        launcher = job.start("launch", "-s", rng.choice("123"), "-w", rng.choice("123"))
        if number is not None:
            _progress(job, launcher)
            time.sleep(rng.uniform(0, 2.5))
            if launcher.poll() is None:
                launcher.send_signal(number)
                stops += 1
        status = launcher.wait(LAST_WORDS_S)
        wait(lambda: not job.processes("worker"), "the end of all workers")
        if status == 0:
            break
    return {"stops": stops, "status": status}


def _progress(job: Job, launcher: "subprocess.Popen[bytes]") -> None:
    before = job.done()
    wait(lambda: job.done() > before or launcher.poll() is not None, "progress")
