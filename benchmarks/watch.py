"""Runs one command and writes what it took as JSON: a process of its own, and a small one.

    python -S benchmarks/watch.py RESULT.json COMMAND …

The system counts the memory of whoever starts a process as that process's own at first, so a
benchmark that holds arrays cannot start what it measures. This file imports nothing that is large.
"""

import json
import os
import sys
import threading
import time

LOOK_S = 0.05
"""Between two looks at the processes; what one uses after the last look is not in its line."""

TICKS = os.sysconf("SC_CLK_TCK")
ROLES = ("train", "launch", "scheduler", "server", "worker", "convert", "predict", "evaluate")


def read(path: str) -> str:
    """A file of /proc; empty when its process has ended."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for at in found:
        found += map(int, read(f"/proc/{at}/task/{at}/children").split())
    return found


def name_of(pid: int) -> str:
    """The command of ctrps that a process runs, or the name of its program."""
    words = read(f"/proc/{pid}/cmdline").split("\0")
    return next((word for word in words if word in ROLES), os.path.basename(words[0]))


def look(pid: int) -> dict | None:
    """Name, CPU seconds and peak resident bytes of a process until now; None if it has ended."""
    figures = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    peak = [line.split()[1] for line in read(f"/proc/{pid}/status").splitlines() if "VmHWM" in line]
    if not peak:
        return None
    cpu_s = (int(figures[11]) + int(figures[12])) / TICKS
    return {"name": name_of(pid), "cpu_s": cpu_s, "peak_bytes": int(peak[0]) * 1024}


def watch(pid: int, ended: threading.Event, seen: dict[int, dict]) -> None:
    """Keep the last figures of each process of a family until it has ended."""
    while not ended.wait(LOOK_S):
        for member in family(pid):
            figures = look(member)
            if figures:
                seen[member] = figures


def main() -> int:
    result, *command = sys.argv[1:]
    seen: dict[int, dict] = {}
    ended = threading.Event()
    began = time.monotonic()
    pid = os.posix_spawnp(command[0], command, os.environ)
    watcher = threading.Thread(target=watch, args=(pid, ended, seen))
    watcher.start()
    _, status, usage = os.wait4(pid, 0)
    wall_s = time.monotonic() - began
    ended.set()
    watcher.join()
    own = {"name": os.path.basename(command[0]), "cpu_s": 0.0, "peak_bytes": 0}
    seen.setdefault(pid, own)["peak_bytes"] = usage.ru_maxrss * 1024
    took = {
        "wall_s": wall_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_bytes": sum(figures["peak_bytes"] for figures in seen.values()),
        "processes": list(seen.values()),
    }
    with open(result, "w") as file:
        json.dump(took, file)
    return os.waitstatus_to_exitcode(status) & 255


if __name__ == "__main__":
    sys.exit(main())
