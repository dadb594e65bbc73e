"""What all benchmarks share: timing in turn, runs of commands, the table and the JSON line.

A benchmark shows medians, and compares only what it measured itself: its cases run one after the
other, again and again, so that a busy moment of the machine meets all of them. CPU time stands
beside wall time, because other work on the machine stretches the one much more than the other.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

WATCH = Path(__file__).resolve().parent / "watch.py"


class Timing(NamedTuple):
    """Seconds that a piece of work took; ``cpu_s`` is the mean over its threads."""

    wall_s: float
    cpu_s: float


def timed(work: Callable[[], object]) -> Timing:
    """Time work of the calling thread."""
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return Timing(time.perf_counter() - wall, time.thread_time() - cpu)


def timed_threads(works: Sequence[Callable[[], object]]) -> Timing:
    """Time works that run side by side, each in a thread of its own."""
    if len(works) == 1:
        return timed(works[0])
    spent: list[Timing] = []
    threads = [threading.Thread(target=lambda w=w: spent.append(timed(w))) for w in works]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Timing(time.perf_counter() - began, statistics.fmean(t.cpu_s for t in spent))


def in_turn(cases: Mapping[str, Callable[[], Timing]], repeat: int) -> dict[str, list[Timing]]:
    """Run all cases once to warm them, then ``repeat`` times in turn."""
    for case in cases.values():
        case()
    found: dict[str, list[Timing]] = {name: [] for name in cases}
    for _ in range(repeat):
        for name, case in cases.items():
            found[name].append(case())
    return found


def rates(unit: str, amount: float, timings: Sequence[Timing]) -> dict[str, float]:
    """``amount`` of a unit per CPU second and per second: medians, and the spread of the former."""
    by_cpu = [amount / t.cpu_s for t in timings]
    middle = statistics.median(by_cpu)
    return {
        f"{unit}_per_cpu_s": middle,
        f"{unit}_per_s": statistics.median(amount / t.wall_s for t in timings),
        "spread": (max(by_cpu) - min(by_cpu)) / middle,
    }


@dataclass(frozen=True)
class Ran:
    """What a command took, all its processes together.

    ``peak_bytes`` is the sum of the peaks of its processes; ``processes`` has ``name``, ``cpu_s``
    and ``peak_bytes`` of each.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    processes: list[dict]
    output: str

    def cpu_of(self, name: str) -> float:
        """CPU seconds of the processes of this name."""
        return sum(p["cpu_s"] for p in self.processes if p["name"] == name)

    def peak_of(self, name: str) -> int:
        """Peak resident bytes of the processes of this name, added up."""
        return sum(p["peak_bytes"] for p in self.processes if p["name"] == name)


def run(
    command: Sequence[str | Path],
    stdin: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ran:
    """Run a command to its end; ``RuntimeError`` with what it said if it fails."""
    with (
        tempfile.TemporaryDirectory(prefix="ctrps-watch-") as name,
        open(stdin or os.devnull) as f,
    ):
        result = Path(name, "took.json")
        words = [sys.executable, "-S", str(WATCH), str(result), *map(str, command)]
        env = {**os.environ, **(environment or {})}
        done = subprocess.run(words, stdin=f, capture_output=True, text=True, env=env)
        if done.returncode:
            said = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(f"{' '.join(words[4:])}\nended with {done.returncode}:\n{said}")
        return Ran(**json.loads(result.read_text()), output=done.stdout)


def ctrps(*words: str | Path, settings: Iterable[str] = ()) -> list[str]:
    """A command of ctrps that prints JSON."""
    command = [sys.executable, "-m", "ctrps", *map(str, words)]
    command += [part for setting in settings for part in ("--set", setting)]
    return [*command, "--json"]


def parser(description: str | None, repeat: int = 5) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n\n")[0])
    made.add_argument("--repeat", type=int, default=repeat, help="runs of each case (%(default)s)")
    return made


def numbers(text: str) -> list[int]:
    """``1M,10M`` or ``128,8192`` as a list."""
    units = {"k": 1_000, "M": 1_000_000}
    return [round(float(t.rstrip("kM")) * units.get(t[-1], 1)) for t in text.split(",") if t]


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def show(title: str, rows: Sequence[Mapping[str, Any]], /, **columns: str) -> None:
    """Print rows as a table: each column's key, and how its figures are written.

    A figure that a row does not have, or whose value is None, is shown as a dash.
    """
    heads = [key.replace("_", " ") for key in columns]
    cells = [[_cell(row.get(key), how) for key, how in columns.items()] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    print(f"\n{title}")
    for line in [heads, *cells]:
        texts = [
            text.ljust(width) if how == "" else text.rjust(width)
            for text, width, how in zip(line, widths, columns.values(), strict=True)
        ]
        print("  ".join(texts).rstrip(), flush=True)


def _cell(value: Any, how: str) -> str:
    return "-" if value is None else format(value, how)


def finish(name: str, options: argparse.Namespace, **parts: Any) -> None:
    """Print the JSON line: the machine, the options and all figures."""
    settings = {key: str(v) if isinstance(v, Path) else v for key, v in vars(options).items()}
    found = {"benchmark": name, "machine": machine(), "options": settings, **parts}
    print(json.dumps(found))


def machine() -> dict[str, Any]:
    """What the figures were taken on, and how busy it was."""
    import numba
    import numpy

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "numba": numba.__version__,
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
