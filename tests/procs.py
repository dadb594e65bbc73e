"""Processes of ctrps for tests: each has a folder, a deadline, and an end.

``Lab`` starts commands as a user would and leaves none behind. Whatever waits here says after its
deadline what it waited for, with the output and the logs of the run.
"""

import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from ctrps.config import load_job
from ctrps.runtime import local

DEADLINE_S = 120.0
"""For whatever takes seconds on an idle machine; several test runs may share this one."""

POLL_S = 0.02
KEYS, PER_ROW = 300, 8


def write_rows(path: Path, rows: int, seed: int, clicks: bool = True) -> Path:
    """A libsvm file whose clicks follow from planted weights; without clicks all labels are 0."""
    planted = random.Random(7)
    weights = [planted.gauss(0, 1) for _ in range(KEYS)]
    rng = random.Random(seed)
    lines = []
    for _ in range(rows):
        keys = sorted(rng.sample(range(KEYS), PER_ROW))
        p = 1 / (1 + math.exp(1 - sum(weights[key] for key in keys)))
        label = int(clicks and rng.random() < p)
        lines.append(f"{label} {' '.join(f'{key}:1' for key in keys)}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def settings(**values: object) -> list[str]:
    """``train_lanes=8`` as the override ``train.lanes=8``; ``name`` stays."""
    return [f"{key.replace('_', '.', 1)}={value}" for key, value in values.items()]


def options(overrides: Iterable[str]) -> list[str]:
    """Overrides as options of a command."""
    return [word for override in overrides for word in ("--set", override)]


def trained(overrides: list[str], overwrite: bool = False) -> dict[str, Any]:
    """The summary of ``ctrps train`` in this process: the reference for its results."""
    return local.train(load_job(None, overrides, {}), overwrite, lambda figures: None)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def pause() -> None:
    """A moment between two looks at something that another process changes."""
    threading.Event().wait(POLL_S)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; none if it is not there."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Run:
    """One command that was started; its output goes to files, so that no pipe can fill."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path, folder: Path):
        self.process = process
        self.folder = folder
        self._out, self._err = out, err

    @property
    def stdout(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON object in one line."""
        (line,) = self.stdout.splitlines()
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """The exit status, which must come within the deadline."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {deadline_s} s\n{self.story()}") from None

    def ends(self, status: int, deadline_s: float = DEADLINE_S) -> "Run":
        """Assert that it ends with this status."""
        found = self.wait(deadline_s)
        assert found == status, f"status {found}, not {status}\n{self.story()}"
        return self

    def until(
        self, condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S
    ) -> None:
        """Wait until a condition holds, while the process runs."""
        end = time.monotonic() + deadline_s
        while not condition():
            ended = self.process.poll()
            if time.monotonic() >= end or (ended is not None and not condition()):
                raise AssertionError(f"{what}: not seen, status {ended}\n{self.story()}")
            pause()

    def until_progress(self, run: Path) -> None:
        """Wait until training has passed its first step."""
        metrics = run / "metrics.jsonl"
        self.until(lambda: any(m["step"] for m in read_lines(metrics)), "progress of the training")

    def child(self, role: str, rank: int = 0) -> psutil.Process:
        """The process of a role that this launch started."""
        for process in psutil.Process(self.process.pid).children():
            command = process.cmdline()
            its_rank = command[command.index("--rank") + 1] if "--rank" in command else "0"
            if role in command and its_rank == str(rank):
                return process
        raise AssertionError(f"no {role} {rank} is running\n{self.story()}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def story(self) -> str:
        """Output and logs, for the message of a failed test."""
        shown = [self._out, self._err, *sorted(self.folder.rglob("*.log"))]
        texts = [f"== {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in shown]
        return "\n".join([f"$ {self.process.args!r}", *texts])


class Lab:
    """Starts commands in a folder; a context manager that leaves no process behind."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._runs: list[Run] = []

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *_: object) -> None:
        # Only processes that were started here, or whose command names this folder.
        for process in self.processes():
            process.kill()
        for run in self._runs:
            run.process.kill()
            run.process.wait(DEADLINE_S)

    def start(
        self,
        *arguments: str | Path,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Run:
        """Start ``ctrps ARGUMENTS``."""
        number = len(self._runs)
        out, err = (self.folder / f"{number}.{name}" for name in ("out", "err"))
        with open(out, "wb") as to_out, open(err, "wb") as to_err:
            process = subprocess.Popen(
                [sys.executable, "-m", "ctrps", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                env=plain_environment() | dict(environ or {}),
                cwd=cwd or self.folder,
            )
        self._runs.append(Run(process, out, err, self.folder))
        return self._runs[-1]

    def run(self, *arguments: str | Path, status: int = 0, **how: Any) -> Run:
        """Run ``ctrps ARGUMENTS`` to its end, which must have this status."""
        return self.start(*arguments, **how).ends(status)

    def processes(self) -> list[psutil.Process]:
        """Running processes whose command names this folder."""
        return list(_naming(str(self.folder)))

    def all_gone(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait until no process of this folder is left."""
        end = time.monotonic() + deadline_s
        while left := self.processes():
            stories = "\n".join(run.story() for run in self._runs)
            assert time.monotonic() < end, f"still running: {left}\n{stories}"
            pause()


def plain_environment() -> dict[str, str]:
    """The environment of this process without settings of ctrps."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CTRPS_")}


def _naming(text: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if any(text in word for word in process.cmdline()):
                yield process
        except psutil.Error:
            continue  # it ended while we looked, or is not ours to see


def started_mb() -> int:
    """What a process has that has loaded the extraction: on some machines far more than on others.

    How many pages of a library are resident once it is loaded, the system decides.
    """
    code = (
        "import ctrps.data.extract; from ctrps.data.memory import resident_bytes as r; print(r())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return int(found.stdout) >> 20
