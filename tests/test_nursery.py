"""Forked children are children like any: status, signals, logs, settings, and their end."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.procs import DEADLINE_S, pause, plain_environment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands a fork to its launcher"),
]

LAUNCHER = """
import json, os, signal, sys, threading, time
from pathlib import Path
from ctrps.errors import ClusterError
from ctrps.runtime.nursery import Forked, die_with, nursery

folder = Path(sys.argv[1])

def main(words):
    return eval(words[0])

def ended(child):
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child.poll()

def text(name):
    return (folder / name).read_text()

def seen(name, word):
    while not ((folder / name).exists() and word in text(name)):
        os.sched_yield()

def nursery_pid():
    ours = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(p) for p in ours if "nursery" in Path(f"/proc/{p}/comm").read_text())

def answer(value):
    print(json.dumps(value), flush=True)

WAIT = f"die_with({os.getpid()}) or print('up', flush=True) or signal.pause()"
with nursery(main) as start:
"""
"""What a launcher does before the lines of a test; its children run ``main``."""


def launcher(
    folder: Path, body: str, prelude: str = LAUNCHER, **environ: str
) -> "subprocess.Popen[str]":
    """Run ``body`` in a launcher; a warning, as that of a fork with threads, is an error."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", prelude + lines, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain_environment() | environ,
        text=True,
    )


def answer(folder: Path, body: str, prelude: str = LAUNCHER, **environ: str) -> Any:
    """What ``body`` answers, without a word on standard error."""
    out, err = launcher(folder, body, prelude, **environ).communicate(timeout=DEADLINE_S)
    assert err == ""
    return json.loads(out)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        pause()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_exit_statuses_are_seen(tmp_path):
    body = """
words = ["0", "7", "1 / 0", "os.kill(os.getpid(), 9)", "os.abort()", "signal.pause()"]
children = [start([w], folder / f"{n}.log") for n, w in enumerate(words)]
assert all(isinstance(c, Forked) for c in children)
assert children[-1].poll() is None
children[-1].send_signal(signal.SIGTERM)
found = [ended(c) for c in children]
children[0].send_signal(signal.SIGTERM)
answer([found, [c.poll() for c in children], text("2.log").splitlines()[-1]])
"""
    statuses = [0, 7, 1, -9, -6, -15]
    assert answer(tmp_path, body) == [statuses, statuses, "ZeroDivisionError: division by zero"]


def test_each_child_has_its_log_and_no_input(tmp_path):
    body = """
sys.stderr.write("a line that the launcher has not flushed")
sys.stdout.write("[")
for n in range(3):
    code = f"print('out {n}') or sys.stderr.write('err {n}') and len(sys.stdin.read())"
    assert ended(start([code], folder / f"{n}.log")) == 0
print("0]")
print([text(f"{n}.log") for n in range(3)])
"""
    out, _ = launcher(tmp_path, body).communicate(timeout=DEADLINE_S)
    assert out.splitlines() == ["[0]", str([f"out {n}\nerr {n}" for n in range(3)])]


def test_a_child_has_the_signals_session_and_settings_of_a_new_process(tmp_path):
    body = """
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)
code = (
    "print(json.dumps([signal.getsignal(2) is signal.default_int_handler,"
    " signal.getsignal(15) is signal.SIG_DFL, os.getsid(0) == os.getpid(),"
    " [n for n in os.environ if n.startswith('CTRPS_')], sys.argv[0]])) or 0"
)
assert ended(start([code], folder / "log")) == 0
assert os.getsid(nursery_pid()) == nursery_pid()
answer(json.loads(text("log")))
"""
    found = answer(tmp_path, body, CTRPS_TRAIN__LANES="8", CTRPS_DEBUG="1")
    assert found == [True, True, True, ["CTRPS_DEBUG"], "ctrps"]


def test_children_can_be_started_while_the_launcher_has_threads(tmp_path):
    body = """
first = start([WAIT], folder / "first.log")
thread = threading.Thread(target=ended, args=[first])
thread.start()
status = ended(start(["5"], folder / "late.log"))
os.kill(first.pid, signal.SIGTERM)
thread.join()
answer([status, first.poll()])
"""
    assert answer(tmp_path, body) == [5, -15]


def test_a_launcher_with_threads_starts_new_interpreters(tmp_path):
    opened = "with nursery(main) as start:"
    thread = "threading.Thread(target=signal.pause, daemon=True).start()"
    body = """
child = start(["--version"], folder / "log")
answer([isinstance(child, Forked), ended(child), text("log").split()[0]])
"""
    prelude = LAUNCHER.replace(opened, f"{thread}\n{opened}")
    assert answer(tmp_path, body, prelude) == [False, 0, "ctrps"]


def test_a_killed_launcher_takes_everything_along(tmp_path):
    body = """
children = [start([WAIT], folder / f"{n}.log") for n in range(3)]
for n in range(3):
    seen(f"{n}.log", "up")
answer([nursery_pid(), *(c.pid for c in children)])
signal.pause()
"""
    process = launcher(tmp_path, body)
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())
    assert len({*pids}) == 4 and not any(map(gone, pids))
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_for(lambda: all(map(gone, pids)))


def test_a_killed_nursery_leaves_its_children_and_starts_no_more(tmp_path):
    body = """
child = start([WAIT], folder / "log")
seen("log", "up")
os.kill(nursery_pid(), signal.SIGKILL)
try:
    while True:
        ended(start(["0"], folder / "more.log"))
except ClusterError as error:
    found = str(error)
alive = child.poll() is None
child.send_signal(signal.SIGKILL)
answer([found, alive, ended(child)])
"""
    found, alive, status = answer(tmp_path, body)
    assert "cannot start another process" in found
    assert alive and status == -9


def test_a_child_is_shown_by_the_words_of_its_command(tmp_path):
    """As many as there is room for: here the launcher's own command line is long."""
    body = """
words = [WAIT, "--rank", "3", "x" * 100_000, "y"]
child = start(words, folder / "log")
seen("log", "up")
answer([child.pid, words[:3]])
signal.pause()
"""
    process = launcher(tmp_path, body)
    assert process.stdout is not None
    pid, words = json.loads(process.stdout.readline())
    child = psutil.Process(pid)
    assert [word for word in child.cmdline() if word] == ["ctrps", *words]
    assert Path(f"/proc/{pid}/comm").read_text() == f"ctrps {words[0]}"[:15] + "\n"
    child.kill()
    process.kill()
    process.communicate(timeout=DEADLINE_S)
