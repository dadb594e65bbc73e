"""What a launcher starts again and what not, with processes that are none."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from ctrps.config import load_job
from ctrps.runtime.launch import Child, LocalCluster
from tests.procs import pause, settings


class FakeProcess:
    """Has ended already, with a status that the test chooses."""

    def __init__(self, pid: int, status: int | None):
        self.pid = pid
        self.status = status

    def poll(self) -> int | None:
        return self.status


class Bench:
    """A local cluster whose processes end as soon as they are started."""

    def __init__(self, folder: Path, restarts: int, status: int | None = -signal.SIGKILL):
        given = settings(output_dir=folder, cluster_restarts=restarts, data_train="none")
        given += ["cluster.beat_s=0.05"]
        self.said: list[str] = []
        self.started: list[list[str]] = []
        self.status = status
        self.cluster = LocalCluster(
            load_job(None, given, {}), lambda figures: None, self.said.append, lambda words: 0
        )

    def start(self, words: list[str], log: Path) -> Any:
        self.started.append(words)
        return FakeProcess(100 + len(self.started), self.status)

    def child(self, role: str = "worker", joined: bool = True) -> Child:
        log = self.cluster.run_dir / f"{role}-2.log"
        log.write_text(f"12:00:00 {role}: joined as {role} 2, node 5\n" * joined)
        process = FakeProcess(77, self.status)
        return Child(role, 2, process, log, [role, "--rank", "2"])  # type: ignore[arg-type]

    def restarts(self, child: Child) -> int:
        """How often the cluster starts it again before it gives up."""
        before = len(self.started)
        while self.cluster._restart(self.start, child):
            pause()
        return len(self.started) - before


def test_a_process_that_does_nothing_but_die_is_given_up(tmp_path):
    bench = Bench(tmp_path, restarts=3)
    child = bench.child()
    assert bench.restarts(child) == 3
    assert bench.started == [["worker", "--rank", "2", "--replaces"]] * 3
    assert bench.cluster.restarts == 3
    killed = "was killed by SIGKILL, perhaps because memory ran out; started again as process"
    assert bench.said[:2] == [
        f"worker 2 (process 77) {killed} 101",
        f"worker 2 (process 101) {killed} 102",
    ]


def test_progress_gives_all_starts_back_and_only_to_those_that_died_before_it(tmp_path):
    bench = Bench(tmp_path, restarts=2)
    child, other = bench.child(), bench.child("server")
    assert (bench.restarts(child), bench.restarts(other)) == (2, 2)
    for step, more in ((1, 2), (1, 0), (2, 2)):
        figures = {"phase": "train", "pass": 0, "step": step}
        with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")
        bench.cluster._forward_metrics()
        assert (bench.restarts(child), bench.restarts(other)) == (more, more)


def test_a_scheduler_replaces_itself_without_being_told(tmp_path):
    bench = Bench(tmp_path, restarts=1)
    assert bench.restarts(bench.child("scheduler", joined=False)) == 1
    assert bench.started == [["scheduler", "--rank", "2"]]


@pytest.mark.parametrize(
    ("status", "started"),
    [(-signal.SIGSEGV, 1), (1, 1), (None, 0), (0, 0), (2, 0), (3, 0), (4, 0), (75, 0), (130, 0)],
)
def test_only_what_died_is_started_again(tmp_path, status, started):
    """Not what runs, and not what ended with a reason of its own."""
    bench = Bench(tmp_path, restarts=1, status=status)
    assert bench.restarts(bench.child()) == started


def test_a_process_that_never_joined_is_not_started_again(tmp_path):
    bench = Bench(tmp_path, restarts=3)
    assert bench.restarts(bench.child(joined=False)) == 0


def test_nothing_is_started_again_after_an_interrupt(tmp_path):
    bench = Bench(tmp_path, restarts=3)
    bench.cluster._on_signal(signal.SIGINT, None)
    assert bench.restarts(bench.child()) == 0


def test_nothing_is_started_again_if_that_is_wanted(tmp_path):
    assert Bench(tmp_path, restarts=0).restarts(Bench(tmp_path, restarts=0).child()) == 0
