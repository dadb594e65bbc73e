"""Processes that start fast: forks of one that has loaded everything, not new interpreters.

A new interpreter spends more than a CPU second on imports and on loading kernels. So the launcher
forks a *nursery* once, while it has one thread and no socket. The nursery never has more, and may
thus fork whenever it is asked to; by then the launcher may have threads. What it forks becomes a
child of the launcher, by Linux's subreaper: exit status and signals are those of any child.

Where that cannot be, a child is a new interpreter. Either way it runs a command line of ``ctrps``.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Protocol

from ctrps.config import RESERVED_VARIABLES
from ctrps.errors import ClusterError

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
LONGEST_REQUEST = 1 << 17
"""Bytes: command lines of ours are a few paths; a path has at most 4,096."""
START_S = 30.0
"""A fork takes a millisecond."""

Main = Callable[[list[str]], int]
"""Runs a command line and returns its exit status."""


class Process(Protocol):
    """What a launcher needs of its child; ``subprocess.Popen`` is one."""

    pid: int

    def poll(self) -> int | None:
        """Its exit status; negative for a signal; None while it runs."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""


Start = Callable[[list[str], Path], Process]
"""Starts a command line, in a session of its own, that writes to a log file."""


class Forked:
    """A child of this process that the nursery has forked."""

    def __init__(self, pid: int):
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


@contextmanager
def nursery(main: Main) -> Iterator[Start]:
    """A way to start processes: forks that call ``main`` where possible, else new interpreters."""
    if not _may_fork():
        yield spawn
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # what is left in a buffer, each fork would write once more
    asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        asking.close()
        _exit_with(lambda: _serve(asked, launcher, main))
    asked.close()
    asking.settimeout(START_S)
    try:
        yield lambda arguments, log: _ask(asking, arguments, log)
    finally:
        asking.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def spawn(arguments: list[str], log: Path) -> Process:
    """Start a new interpreter."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "ctrps", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=child_environment(os.environ),
            # Ctrl-C shall reach the launcher only, which then asks the scheduler to stop.
            start_new_session=True,
        )


def die_with(parent: int) -> None:
    """Have the kernel end this process when its launcher dies, however it dies (Linux)."""
    if sys.platform == "linux":
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ClusterError("the launcher of this process is gone")


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without settings: they are in the resolved job file already."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("CTRPS_") or name in RESERVED_VARIABLES - {"CTRPS_SCHEDULER"}
    }


def _may_fork() -> bool:
    """A lock that another thread holds would stay locked in a fork for ever."""
    alone = threading.active_count() == 1
    return sys.platform == "linux" and alone and _prctl(PR_SET_CHILD_SUBREAPER, 1) == 0


def _prctl(option: int, value: int | bytes) -> int:
    return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0))


def _ask(asking: socket.socket, arguments: list[str], log: Path) -> Forked:
    try:
        asking.send(json.dumps([arguments, str(log)]).encode())
        pid = asking.recv(LONGEST_REQUEST)
    except OSError:
        pid = b""
    if not pid:
        raise ClusterError(
            "cannot start another process",
            where="the process that forks the others",
            hint="was it killed, or is there a limit on memory or processes?",
        )
    return Forked(int(pid))


def _serve(asked: socket.socket, launcher: int, main: Main) -> int:
    """The life of the nursery: a fork for each request, until the launcher closes its end."""
    os.setsid()
    die_with(launcher)
    _show_as(["ctrps", "nursery", "--parent", str(launcher)])
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, None)):
        signal.signal(number, handler or signal.SIG_DFL)
    for name in os.environ.keys() - child_environment(os.environ).keys():
        del os.environ[name]
    gc.freeze()  # what is there stays: a collection would only copy its pages, once for each fork
    while request := asked.recv(LONGEST_REQUEST):
        arguments, log = json.loads(request)
        _fork(arguments, log, asked, main)
    return 0


def _fork(arguments: list[str], log: str, asked: socket.socket, main: Main) -> None:
    """Fork a child for the launcher: whose parent has ended goes to the nearest subreaper."""
    between = os.fork()
    if between == 0:
        between = os.getpid()
        if os.fork() == 0:
            _exit_with(lambda: _become(arguments, log, asked, between, main))
        os._exit(0)
    if os.waitpid(between, 0)[1]:
        asked.send(b"")  # it could not fork


def _become(arguments: list[str], log: str, asked: socket.socket, between: int, main: Main) -> int:
    """The life of a child, from its fork on."""
    while os.getppid() == between:  # which ends at once
        os.sched_yield()
    os.setsid()
    asked.send(str(os.getpid()).encode())
    asked.close()
    _write_to(log)
    sys.argv = ["ctrps", *arguments]
    _show_as(sys.argv)
    return main(arguments)


def _exit_with(life: Callable[[], int]) -> NoReturn:
    """End a fork here: the frames below are those of another process."""
    status = 1
    try:
        status = life()
    except BaseException:
        traceback.print_exc()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(status)


def _write_to(log: str) -> None:
    """Let the standard streams be nothing and the log, as for a process of the shell."""
    writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, writing)):
        opened = os.open(path, flags, 0o666)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
    os.dup2(1, 2)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = open(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)


def _show_as(words: list[str]) -> None:
    """What ``ps`` and ``top`` show: as many words as the launcher's own command line had room for.

    The kernel reads a command line from where it lay when the process began.
    """
    _prctl(PR_SET_NAME, " ".join(words[:2]).encode())
    with open("/proc/self/stat", "rb") as file:
        numbers = file.read().rpartition(b")")[2].split()
    begin, end = int(numbers[45]), int(numbers[46])  # arg_start and arg_end of proc(5)
    text = b""
    for word in map(os.fsencode, words):
        if len(text) + len(word) + 1 > end - begin:
            break
        text += word + b"\0"
    if begin:
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)
