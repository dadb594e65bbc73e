"""A cluster that no launcher has started: each node by its own command, as on several machines."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.jobs import LAST_WORDS_S, Job, plain_environment, wait
from ctrps.ps.member import FENCED

DIED = {1, *range(134, 140)}
"""Statuses after which the loop of docs/howto.md starts a command again."""


class Nodes:
    """The nodes of a job; ``close`` leaves none behind.

    Parameters
    ----------
    job
    environment
        Variables of all nodes.
    """

    def __init__(self, job: Job, environment: Mapping[str, str] | None = None):
        self.job = job
        self.restarts = 0
        self._environment = plain_environment() | dict(environment or {})
        self._commands: dict[str, list[str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def close(self) -> None:
        """Kill those that still run."""
        for process in self._running.values():
            process.kill()
            process.wait()

    def start(
        self, name: str, role: str, settings: Sequence[str], prefix: Sequence[str] = ()
    ) -> None:
        """Start a node, and again whenever it dies; its output goes to ``NAME.log``."""
        given = [word for s in (*self.job.settings, *settings) for word in ("--set", s)]
        self._commands[name] = [*prefix, sys.executable, "-m", "ctrps", role, *given]
        self._commands[name] += ["--parent", str(os.getpid())]
        self._start(name)

    def _start(self, name: str) -> None:
        with open(self.log(name), "ab") as log:
            self._running[name] = subprocess.Popen(
                self._commands[name], stdout=log, stderr=log, env=self._environment
            )

    def log(self, name: str) -> Path:
        return self.job.folder / f"{name}.log"

    def over(self) -> bool:
        """Whether the scheduler has ended; starts again what has died."""
        for name, process in self._running.items():
            status = process.poll()
            if status is not None and (status < 0 or status in DIED):
                self.restarts += 1
                self._start(name)
        return self._running["scheduler"].poll() is not None

    def end(self) -> dict[str, Any]:
        """Wait for the end of the job: its status, and whether its model is right."""
        wait(self.over, "the end of the job", LAST_WORDS_S)
        status = self._running["scheduler"].wait()
        found: dict[str, Any] = {"status": status, "restarts": self.restarts}
        if status != 0:
            return found | {"ok": False, "last_words": self.log("scheduler").read_text()[-600:]}
        return found | verdict(self.job)


def verdict(job: Job) -> dict[str, Any]:
    """Whether the model of a job that has ended is right: by its count, or by its digest."""
    summary = job.summary()
    found: dict[str, Any] = {"rows_per_s": round(summary["rows_per_s"])}
    if "optimizer.w.kind=count" in job.settings:
        found["miscounted"] = job.miscounted()
        return found | {"ok": not found["miscounted"]}
    return found | {"ok": summary["model_digest"] == job.undisturbed()}


def settings_of(mode: str, replicas: int) -> list[str]:
    """A job whose model can be checked: by a count of its rows or, in sync mode, by its digest."""
    kind = "ftrl" if mode == "sync" else "count"
    settings = [f"train.consistency={mode}", f"optimizer.w.kind={kind}", "train.checkpoint_s=0.4"]
    return [*settings, f"cluster.replicas={replicas}", "cluster.http=off"]


def lost(job: Job) -> list[str]:
    """The lines of a job's events that say that a node was taken for dead.

    Not those of a node that heard of it, and says goodbye.
    """
    path = job.run / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if " is lost: " in line and FENCED not in line]
