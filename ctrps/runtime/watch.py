"""A run as others see it: what its loop shows once a second, and what is told of that.

The loop only hands over references to things that nobody writes any more. Rates, shares and health
are worked out by whoever asks, in threads of their own: nothing here waits for them.
"""

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ctrps import __version__
from ctrps.checkpoint import MANIFEST
from ctrps.config import JobConfig
from ctrps.ps import told
from ctrps.ps.job import Phase
from ctrps.ps.messages import Status
from ctrps.ps.scheduler import Scheduler
from ctrps.runtime.facts import EVENTS, STATE, plain, read_json, staleness, total_rows, write_json
from ctrps.runtime.meter import RECEIVED, SENT, SERIAL, resident_bytes

KEPT = 6
"""Snapshots that rates are taken over: some seconds, so that the beat of nodes does not show."""

EVERY_S = 1.0
WAITS_S = 2.0

SILENT = 0.75
"""The part of its time limit after which a node that is silent is called so."""

STUCK_S = 30.0
"""``train`` shows something after each step and each saving; a loop of a cluster ten times a
second. After such a time without, something is wrong with either."""

STALLED_S = 5.0
"""Without progress for so long, and for four steps, a job does not get on."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A node, as the scheduler knows it."""

    number: int
    role: str
    rank: int
    address: str
    heard: float
    status: Status | None
    dead: bool = False
    gone: bool = False

    @property
    def counters(self) -> Mapping[str, float]:
        return self.status.counters if self.status else {}

    def __str__(self) -> str:
        return f"{self.role} {self.rank}" + (f" ({self.address})" if self.address else "")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The run at one moment.

    Attributes
    ----------
    now, progressed : float
        Monotonic seconds: of the snapshot, and when the run last got on.
    phase
        What the run does, in a word.
    figures
        As a line of ``metrics.jsonl`` has them; empty before the first.
    step_s
        What a step takes, as far as that is known.
    missing, waits_for
        In words: nodes that are still to come; what a run that does not get on waits for.
    test
        The newest figures of the test rows.
    """

    now: float
    phase: str
    figures: Mapping[str, Any]
    progressed: float
    step_s: float = 0.0
    nodes: tuple[Seen, ...] = ()
    missing: str = ""
    waits_for: str = ""
    test: Mapping[str, Any] | None = None

    @property
    def total_rows(self) -> int:
        """Rows trained on over all passes."""
        return total_rows(self.figures)


def snapshot(machine: Scheduler, test: Mapping[str, Any] | None, now: float) -> Snapshot:
    """Of a cluster, as its scheduler knows it."""
    clock, spec = machine.clock, machine.spec
    formed = machine.phase is not Phase.FORMING
    left = Counter(n.role for n in machine.roster if n.released and formed)
    return Snapshot(
        now=now,
        phase=_phase(machine),
        figures=told.progress(machine, now),
        progressed=clock.progress,
        step_s=clock.step_s,
        nodes=tuple(
            Seen(
                n.number,
                n.role,
                n.rank,
                n.address,
                n.heard,
                n.status,
                n.dead,
                n.gone or n.released,
            )
            for n in machine.roster
        ),
        missing=machine.roster.missing(
            spec.servers - left["server"], spec.workers - left["worker"]
        ),
        waits_for=told.waits_for(machine) if now - clock.progress >= STALLED_S else "",
        test=test,
    )


def _phase(machine: Scheduler) -> str:
    return machine.phase.name.lower()


@dataclass
class Watch:
    """Keeps the last snapshots of a run and tells its state.

    Parameters
    ----------
    job
    folder
        Of the run.
    kind
        ``cluster`` or ``process``.
    rejected
        Rows of the input that could not be read.
    """

    job: JobConfig
    folder: Path
    kind: str
    rejected: int = 0
    _began: float = field(default_factory=time.time)
    _recent: tuple[Snapshot, ...] = ()
    _spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def see(self, snapshot: Snapshot) -> None:
        """The newest snapshot. One assignment: who reads meanwhile has the old or the new ones."""
        if self._recent:
            self._spent[self._recent[-1].phase] += snapshot.now - self._recent[-1].now
        self._recent = (*self._recent[1 - KEPT :], snapshot)

    def tick(self, machine: Scheduler, test: Mapping[str, Any] | None, now: float) -> None:
        """Look at a cluster, once a second and when it begins something else."""
        last = self._recent[-1] if self._recent else None
        if last is None or now - last.now >= EVERY_S or last.phase != _phase(machine):
            self.see(snapshot(machine, test, now))

    @contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        """``train`` does something else inside this context."""
        now = time.monotonic()
        before = self._recent[-1] if self._recent else Snapshot(now, "starting", {}, now)
        self.see(replace(before, now=now, phase=phase))
        try:
            yield
        finally:
            self.see(replace(self._recent[-1], now=time.monotonic(), phase=before.phase))

    def figures(self, line: Mapping[str, Any]) -> None:
        """``train`` has new figures."""
        now = time.monotonic()
        test = self._recent[-1].test if self._recent else None
        self.see(Snapshot(now, "training", line, now, test=test))

    def scored(self, test: Mapping[str, Any]) -> None:
        """``train`` has figures of the test rows."""
        self.see(replace(self._recent[-1], now=time.monotonic(), test=test))

    def account(self) -> dict[str, Any]:
        """What the summary says: seconds by what the run did."""
        return {"phases_s": {phase: round(spent, 3) for phase, spent in self._spent.items()}}

    def noting(self, log: Callable[[str], None]) -> Callable[[str], None]:
        """``log``, whose lines are kept as the run's events, too."""

        def noted(text: str) -> None:
            log(text)
            line = json.dumps({"ts": round(time.time(), 3), "text": text})
            # A disk that is full ends the job where something is lost by it, and is told there.
            with suppress(OSError), open(self.folder / EVENTS, "a", encoding="utf-8") as file:
                file.write(line + "\n")

        return noted

    @property
    def ready(self) -> bool:
        """Whether all nodes that the job wants have come."""
        return bool(self._recent) and self._recent[-1].phase != "forming"

    def stuck_s(self, now: float) -> float:
        """How long nothing has been seen of the loop, as far as that is too long; else 0."""
        last = self._recent[-1] if self._recent else None
        working = last is not None and (self.kind == "cluster" or last.phase == "training")
        age_s = now - last.now if last and working else 0.0
        return age_s if age_s >= STUCK_S else 0.0

    def state(self, now: float | None = None) -> dict[str, Any]:
        """What ``/api/state`` answers; ``docs/metrics.md`` says what each key is."""
        now = time.monotonic() if now is None else now
        recent = self._recent or (Snapshot(now, "starting", {}, now),)
        first, last = recent[0], recent[-1]
        problems = self._problems(last, now)
        starting = last.phase in ("starting", "forming")
        rate = _rate(last.total_rows - first.total_rows, last.now - first.now)
        if last.phase != "training":
            rate = None
        waits = now - last.progressed >= WAITS_S
        before = {seen.number: seen for seen in first.nodes}
        nodes = [self._node(seen, before.get(seen.number), now, waits) for seen in last.nodes]
        job = self.job
        return {
            "version": __version__,
            "job": job.name,
            "kind": self.kind,
            "run": str(self.folder),
            "pid": os.getpid(),
            "model": job.model.kind,
            "consistency": job.train.consistency,
            "time": round(time.time(), 3),
            "uptime_s": round(time.time() - self._began, 3),
            "phase": last.phase,
            "health": "degraded" if problems else "starting" if starting else "healthy",
            "problems": problems,
            "waits_for": last.missing if starting else "",
            "passes": job.train.passes,
            **{name: last.figures.get(name) for name in FIGURES},
            "total_rows": last.total_rows,
            "rows_per_s": rate or last.figures.get("rows_per_s") or None,
            "eta_s": _eta(last.figures, rate, job.train.passes),
            "staleness": staleness(last.figures.get("staleness") or []),
            "staleness_counts": list(last.figures.get("staleness") or []),
            "bytes_per_s": _sum(n["bytes_per_s"] for n in nodes if n["role"] == "worker"),
            "rejected": self.rejected,
            "test": last.test,
            "checkpoint": self._checkpoint(),
            "wanted": {"server": job.cluster.servers, "worker": job.cluster.workers}
            if self.kind == "cluster"
            else {},
            "nodes": [self._itself(), *sorted(nodes, key=lambda n: (n["role"], n["rank"]))],
        }

    def close(self) -> None:
        """Keep the last state for those who look at the run later."""
        if self.kind == "process" and self._recent:
            self.see(replace(self._recent[-1], now=time.monotonic(), phase="ended"))
        with suppress(OSError):
            write_json(self.folder / STATE, plain(self.state()))

    def _problems(self, last: Snapshot, now: float) -> list[str]:
        found = []
        if stuck_s := self.stuck_s(now):
            found.append(f"nothing happened in process {os.getpid()} for {stuck_s:.0f} s")
        if self.kind == "process" or last.phase in ("starting", "forming", "stopping", "ended"):
            return found
        if last.missing:
            lost = ", ".join(f"{seen} is lost" for seen in last.nodes if seen.dead)
            found.append(f"{last.missing} missing" + (f": {lost}" if lost else ""))
        stalled = now - last.progressed
        if stalled >= max(STALLED_S, 4 * last.step_s):
            found.append(f"no progress for {stalled:.0f} s: {last.waits_for}")
        return found

    def _state_of(self, seen: Seen, now: float) -> str:
        cluster = self.job.cluster
        limit = cluster.worker_silent_s if seen.role == "worker" else cluster.server_silent_s
        if seen.dead or seen.gone:
            return "lost" if seen.dead else "left"
        if now - seen.heard >= SILENT * limit:
            return "silent"
        return "leaving" if seen.status and seen.status.leaves else "up"

    def _node(self, seen: Seen, before: Seen | None, now: float, waits: bool) -> dict[str, Any]:
        """A row of the table of nodes; rates are over the time since it was seen ``before``.

        What it waits for is shown where the job waits: at every moment each node waits for some.
        """
        then = before.counters if before and before.status else {}
        spent = seen.heard - before.heard if before and then else 0.0
        counters = seen.counters

        def rate(*names: str) -> float | None:
            if not all(name in counters for name in names):
                return None
            grown = sum(counters[name] - then.get(name, 0.0) for name in names)
            return _rate(grown, spent)

        busy = rate(*SERIAL[seen.role])
        return {
            "role": seen.role,
            "rank": seen.rank,
            "node": seen.number,
            "address": seen.address,
            "state": self._state_of(seen, now),
            "heard_s": round(max(now - seen.heard, 0.0), 3),
            "rows_per_s": rate("rows"),
            "bytes_per_s": rate(SENT, RECEIVED),
            "busy": None if busy is None else round(min(busy, 1.0), 3),
            "cpu": rate("cpu_s"),
            "rss_bytes": counters.get("rss_bytes"),
            "keys": counters.get("keys"),
            "waits_for": seen.status.waits_for if seen.status and waits else "",
            "counters": dict(counters),
        }

    def _itself(self) -> dict[str, Any]:
        """The row of this process."""
        counters = {"cpu_s": time.process_time(), "rss_bytes": float(resident_bytes())}
        name = "scheduler" if self.kind == "cluster" else "train"
        unknown = dict.fromkeys(("rows_per_s", "bytes_per_s", "busy", "cpu", "keys"))
        return unknown | {
            "role": name,
            "rank": 0,
            "node": -1,
            "address": "",
            "state": "up",
            "heard_s": 0.0,
            "rss_bytes": counters["rss_bytes"],
            "waits_for": "",
            "counters": counters,
        }

    def _checkpoint(self) -> dict[str, Any] | None:
        """The run's model on disk: which it is, and its age."""
        path = self.folder / "model" / MANIFEST
        found = read_json(path)
        if not found:
            return None
        age_s = max(time.time() - path.stat().st_mtime, 0.0)
        place = {"pass": found.get("pass_"), "step": found.get("step")}
        return {"number": found.get("checkpoint"), **place, "age_s": round(age_s, 1)}


FIGURES = ("pass", "step", "steps", "rows", "pass_rows", "logloss", "auc", "scored_rows", "keys")
"""What a state has of the newest figures as it is."""


def _rate(grown: float, spent_s: float) -> float | None:
    return round(max(grown, 0.0) / spent_s, 3) if spent_s > 0 else None


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _eta(figures: Mapping[str, Any], rate: float | None, passes: int) -> float | None:
    """Seconds to the end of training, if it goes on at this rate."""
    rate = rate or figures.get("rows_per_s")
    if not rate or not figures:
        return None
    left = figures["pass_rows"] * (passes - figures["pass"]) - figures["rows"]
    return round(left / rate, 1)
