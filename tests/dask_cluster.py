"""A Dask cluster of real processes on this machine, for tests: each may be killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.procs import DEADLINE_S

SMALL = Path(__file__).with_name("extract_small.py")


class DaskCluster:
    """A scheduler and workers with one thread each, which have no nanny that starts them again."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--port", "0", "--host", "127.0.0.1")
        self.workers: list[subprocess.Popen[bytes]] = []
        self.address = ""
        try:
            until(self._known, "the scheduler's file")
        except BaseException:
            self.end()
            raise

    def _known(self) -> bool:
        """Whether the scheduler has written its file to the end."""
        try:
            self.address = str(json.loads(self._file.read_text())["address"])
        except (FileNotFoundError, ValueError):
            return False
        return True

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
        with open(self._folder / "log", "ab") as log:
            return subprocess.Popen(
                [*command, "--scheduler-file", str(self._file)],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(SMALL.parents[1])},
            )

    def add_worker(self) -> None:
        words = ("--nworkers", "1", "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1")
        self.workers.append(self._start("worker", *words, "--preload", str(SMALL)))

    def live(self) -> list[subprocess.Popen[bytes]]:
        return [worker for worker in self.workers if worker.poll() is None]

    def end(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait(DEADLINE_S)


@contextmanager
def dask_cluster(folder: Path, workers: int) -> Iterator[DaskCluster]:
    cluster = DaskCluster(folder)
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.end()


def until(condition: Callable[[], object], what: str, poll_s: float = 0.002) -> None:
    """Look again and again until it holds."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not seen")
        threading.Event().wait(poll_s)


def kill(process: subprocess.Popen[bytes]) -> None:
    """``kill -9``."""
    process.send_signal(signal.SIGKILL)
    process.wait(DEADLINE_S)
