"""A local cluster: start the processes, watch them, stop them all, and say what failed first."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ctrps import checkpoint
from ctrps.config import JobConfig
from ctrps.data.convert import Progress
from ctrps.errors import ClusterError, RunFailed, Stopped
from ctrps.runtime.facts import FOUND, read_json, write_json
from ctrps.runtime.fused import check_cluster
from ctrps.runtime.inputs import open_inputs
from ctrps.runtime.logs import text_of
from ctrps.runtime.nursery import Main, Process, Start, nursery
from ctrps.runtime.roles import JOINED
from ctrps.runtime.rundir import RunFolder
from ctrps.runtime.saving import JOURNAL
from ctrps.runtime.warm import warm
from ctrps.runtime.web import check_http

Say = Callable[[dict[str, Any]], None]
POLL_S = 0.05


@dataclass
class Child:
    """A process of the cluster."""

    role: str
    rank: int
    process: Process
    log: Path
    arguments: list[str]
    seen: bool = False
    restarts: int = 0
    restarted_at: tuple[int, int] = (-1, -1)
    started_s: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{self.role} {self.rank} (process {self.process.pid})"

    def ended(self) -> int | None:
        """Its exit status; negative for a signal; None while it runs."""
        return self.process.poll()

    def lost(self) -> bool:
        """Whether it has ended, and not because it was told to or asked to leave."""
        return self.seen and self.ended() != 0

    def joined(self) -> bool:
        """Whether it has been in the job, by its log, which may have grown long since."""
        return self.role == "scheduler" or any(
            JOINED in line for line in tail(self.log, sys.maxsize)
        )


class LocalCluster:
    """The processes of one ``ctrps launch``.

    Parameters
    ----------
    job
        With the wanted numbers of servers and workers.
    say
        Takes the figures of ``metrics.jsonl`` as they come.
    tell
        Takes a line for people.
    main
        Runs a command line: what a process of the cluster does.
    """

    def __init__(self, job: JobConfig, say: Say, tell: Callable[[str], None], main: Main):
        self.job = job
        self.say = say
        self.tell = tell
        self.main = main
        self.run_dir = job.output.dir
        self.children: list[Child] = []
        self.first_failure: Child | None = None
        self.restarts = 0
        self._reached = (-1, -1)
        self._signals: list[int] = []
        self._asked = False
        # A run that goes on keeps its figures: what was said before is not said again.
        metrics = self.run_dir / "metrics.jsonl"
        self._read_to = metrics.stat().st_size if metrics.exists() else 0
        self._kill_at: float | None = None
        self._alive_at: float | None = None

    def run(self) -> None:
        """Start everything and wait for the end of the job; what dies on the way starts again.

        Raises
        ------
        RunFailed
            With the exit status of the job and the first process that failed.
        Stopped
            The job was interrupted.
        """
        before = {n: signal.signal(n, self._on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            with nursery(self.main) as start:
                self._run(start)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self, start: Start) -> None:
        try:
            scheduler = self._start(start, "scheduler", 0, [])
            address = self._address(scheduler)
            restart = partial(self._restart, start)
            if said := read_json(self.run_dir / FOUND).get("said"):
                self.tell(said)
            cluster = self.job.cluster
            servers = cluster.servers * (1 + cluster.replicas)
            for role, count in (("server", servers), ("worker", cluster.workers)):
                for rank in range(count):
                    more = ["--rank", str(rank), "--scheduler", address]
                    self._start(start, role, rank, more)
            self._watch(scheduler, restart)
        finally:
            self._stop_all()

    def _start(self, start: Start, role: str, rank: int, arguments: list[str]) -> Child:
        log = self.run_dir / "logs" / f"{role}-{rank}.log"
        config = self.run_dir / "config.resolved.yaml"
        given = ["--parent", str(os.getpid()), "-c", str(config)]
        words = [role, *arguments, *given]
        log.unlink(missing_ok=True)  # of an earlier run
        child = Child(role, rank, start(words, log), log, words)
        self.children.append(child)
        return child

    def _restart(self, start: Start, child: Child) -> bool:
        """Start a process that died once more, unless it does nothing but die."""
        if self._signals or not died(child.ended()) or not child.joined():
            return False
        if self._reached > child.restarted_at:
            child.restarts = 0
        if child.restarts >= self.job.cluster.restarts:
            return False
        if child.restarts and time.monotonic() - child.started_s < 2 * self.job.cluster.beat_s:
            return True  # soon: the scheduler must see that it dies again and again
        said = f"{child} {how(child.ended())}"
        child.restarts, child.restarted_at = child.restarts + 1, self._reached
        again = ["--replaces"] if child.role != "scheduler" else []
        child.process = start([*child.arguments, *again], child.log)
        child.started_s = time.monotonic()
        self.restarts += 1
        alone = child.role == "server" and not self.job.cluster.replicas
        back = "; training goes on from the last checkpoint" if alone else ""
        self.tell(f"{said}; started again as process {child.process.pid}{back}")
        return True

    def _address(self, scheduler: Child) -> str:
        """Where the scheduler listens, from the file that it writes when it does."""
        deadline = time.monotonic() + self.job.cluster.start_timeout_s
        while time.monotonic() < deadline:
            if scheduler.ended() is not None:
                raise self._failure(scheduler)
            if self._signals:
                self._kill_at = 0.0
                status = 128 + self._signals[0]
                raise Stopped("stopped before training began", exit_status=status)
            found = read_json(self.run_dir / "scheduler.json")
            if found.get("pid") == scheduler.process.pid:
                return str(found["address"])
            time.sleep(POLL_S)
        raise ClusterError(f"{scheduler} did not start", where=str(scheduler.log))

    def _watch(self, scheduler: Child, restart: Callable[[Child], bool]) -> None:
        while scheduler.ended() is None or restart(scheduler):
            time.sleep(POLL_S)
            self._heed_signals(scheduler)
            self._forward_metrics()
            self._look_for_deaths(scheduler, restart)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                break
        self._forward_metrics()
        status = scheduler.ended()
        if status == 0:
            return
        if len(self._signals) > 1:
            status = 128 + self._signals[0]
            raise Stopped("stopped at once, without a checkpoint", exit_status=status)
        if status in (75, 130, 143):
            raise Stopped(last_words(scheduler.log), exit_status=status)
        raise self._failure(scheduler)

    def _look_for_deaths(self, scheduler: Child, restart: Callable[[Child], bool]) -> None:
        for child in self.children:
            status = child.ended()
            if child.seen or child is scheduler or status is None or restart(child):
                continue
            child.seen = True
            unready = not self._signals and not child.joined()
            if died(status) or unready:
                self.first_failure = self.first_failure or child
                self.tell(f"{child} {how(status)}")
            if unready:
                # Of this end the scheduler cannot know: it would wait for the node to come.
                self._kill_at = self._kill_at or time.monotonic()
        self._mind_losses()

    def _mind_losses(self) -> None:
        """Give up some time after all workers or a server have ended, unless training goes on.

        The scheduler notices by itself; this is for the case that it cannot. Workers that joined
        from elsewhere may go on without any of ours.
        """
        workers = [c for c in self.children if c.role == "worker"]
        servers = [c for c in self.children if c.role == "server"]
        lost = all(w.lost() for w in workers) or any(s.lost() for s in servers)
        if not lost and not all(c.seen for c in workers + servers):
            return
        now, c = time.monotonic(), self.job.cluster
        self._alive_at = self._alive_at or now
        if now - self._alive_at >= 2 * c.server_silent_s + c.stop_linger_s:
            self._kill_at = self._kill_at or now

    def _forward_metrics(self) -> None:
        path = self.run_dir / "metrics.jsonl"
        if not path.exists():
            return
        with open(path, "rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                self._alive_at = None
                figures = json.loads(line)
                if figures["phase"] == "train":
                    self._reached = max(self._reached, (figures["pass"], figures["step"]))
                    self.say(figures)
                elif figures.get("error"):
                    self.tell(f"warning: {figures['error']}")

    def _failure(self, scheduler: Child) -> RunFailed:
        """The first process that failed, its last words, and what to do."""
        status = scheduler.ended()
        culprit = self.first_failure or scheduler
        words = [f"  {line}" for line in tail(culprit.log)]
        reason = last_words(scheduler.log) if status is not None and status > 0 else ""
        cause = f"{culprit} {how(culprit.ended())}"
        if culprit is scheduler and reason:
            cause, words = reason, []
        elif reason:
            words.append(f"  scheduler: {reason}")
        hint = f"see {culprit.log}"
        if died(culprit.ended()) and checkpoint.exists(self.run_dir / "model"):
            hint += "; run the same command again to go on from the last checkpoint"
        statuses = [s for s in (status, culprit.ended()) if s is not None and s > 0]
        exit_status = statuses[0] if statuses else ClusterError.exit_status
        return RunFailed("\n".join([cause, *words]), exit_status=exit_status, hint=hint)

    def _on_signal(self, number: int, frame: object) -> None:
        """Only remember it: the streams that a message goes to may be in use."""
        self._signals.append(number)

    def _heed_signals(self, scheduler: Child) -> None:
        if len(self._signals) > 1:
            self._kill_at = 0.0
        elif self._signals and not self._asked:
            self._asked = True
            self.tell("stopping, saving a checkpoint (Ctrl-C again to stop at once)")
            scheduler.process.send_signal(self._signals[0])

    def _stop_all(self) -> None:
        """Leave no process behind: time to say goodbye, then SIGINT, then SIGKILL.

        By SIGTERM a node would only be asked to leave.
        """
        patience = [(None, 1.0), (signal.SIGINT, 2.0), (signal.SIGKILL, 5.0)]
        for number, wait_s in patience if self._kill_at is None else patience[1:]:
            running = [c for c in self.children if c.ended() is None]
            if number is not None:
                for child in running:
                    child.process.send_signal(number)
            deadline = time.monotonic() + wait_s
            while any(c.ended() is None for c in running) and time.monotonic() < deadline:
                time.sleep(POLL_S)


def launch(
    job: JobConfig,
    overwrite: bool,
    say: Say,
    tell: Callable[[str], None],
    main: Main,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run ``ctrps launch`` and return its summary."""
    began = time.monotonic()
    check_cluster(job)
    check_http(job)
    # Everything that can be wrong with settings and data is found before a process starts.
    folder = RunFolder(job, overwrite)
    job = folder.job
    try:
        inputs = open_inputs(job, progress)
        folder.begin(inputs)
        (folder.path / "summary.json").unlink(missing_ok=True)
    finally:
        folder.close()
    # Once, and before there are processes that would all do it at the same time.
    warm(job)
    counts = (job.cluster.servers, job.cluster.workers)
    tell("starting 1 scheduler, {} server(s), {} worker(s)".format(*counts))
    (folder.path / JOURNAL).unlink(missing_ok=True)  # all processes of an earlier run are gone
    cluster = LocalCluster(job, say, tell, main)
    cluster.run()
    summary = read_json(folder.path / "summary.json")
    summary |= {"wall_s": time.monotonic() - began, "restarts": cluster.restarts}
    summary |= inputs.account()
    write_json(folder.path / "summary.json", summary)
    return summary


def tail(log: Path, lines: int = 5) -> list[str]:
    """What the last lines of a log say."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [text_of(line) for line in text.splitlines()[-lines:]]


def last_words(log: Path) -> str:
    """What a process said last of all, without the time before it."""
    line = (tail(log, 1) or ["no word"])[0]
    return line.split("error: ", 1)[-1]


def died(status: int | None) -> bool:
    """Whether a process ended by a signal or an internal error, and not because it was told to."""
    return status is not None and (status < 0 or status == 1)


def how(status: int | None) -> str:
    """An exit status in words."""
    if status is None:
        return "is still running"
    if status < 0:
        name = signal.Signals(-status).name
        more = ", perhaps because memory ran out" if name == "SIGKILL" else ""
        return f"was killed by {name}{more}"
    return f"ended with status {status}"
