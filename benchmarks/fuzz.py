"""Random and spoiled input for every reader: it must end in rows or in one of our errors.

    python -m benchmarks.fuzz [--seconds 60] [--seed 1] [--readers csv,shard,...] [--out DIR]
    python -m benchmarks.fuzz --again 'csv:4711' [--seed 1]

A process of its own reads input after input. One that raises another exception, dies, takes more
than ``--cpu-s`` of CPU time or ``--memory-mb`` more of memory than before has met a fault: the
input is kept in ``--out``, and a new process goes on. Exit status 5 if there was one.
"""

import argparse
import contextlib
import faulthandler
import importlib
import math
import multiprocessing
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks import measure
from ctrps.data.badrows import escaped
from ctrps.errors import CtrpsError, CtrpsWarning

WALL_S = 300
"""Seconds without a sign of life after which a reader waits for what will not come."""

ADDRESSES_MB = 4096
"""Address space that a process may take more than before, to protect the machine: what it resides
in is what counts."""

KEPT = 3
"""Inputs of one kind of fault that are kept."""


def main(argv: Sequence[str] | None = None, module: str = "benchmarks.readers") -> int:
    """Run inputs of the readers of a module, which has ``READERS`` and ``prepare``."""
    options = _options(argv)
    found = Found(options.seed, options.out)
    again, _, number = options.again.rpartition(":")
    with tempfile.TemporaryDirectory(prefix="ctrps-fuzz-") as name:
        child = Child(Path(name), [again] if again else options.readers, options, module)
        try:
            if again:
                found.add(again, int(number), child.run(again, int(number)), child.input)
            end = time.monotonic() + (0 if again else options.seconds)
            while time.monotonic() < end:
                most = options.inputs or math.inf
                left = [name for name in child.names if found.of(name).inputs < most]
                if not left:
                    break
                reader = min(left, key=lambda name: found.of(name).seconds)
                one, began = found.of(reader), time.monotonic()
                found.add(reader, one.inputs, child.run(reader, one.inputs), child.input)
                one.seconds += time.monotonic() - began
        finally:
            child.kill()
    _show(options, found)
    return 5 if found.faults else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    made.add_argument("--seconds", type=float, default=60, help="how long (%(default)s)")
    made.add_argument("--inputs", type=int, default=0, help="no more of each reader")
    made.add_argument("--seed", type=int, default=1, help="inputs follow from it (%(default)s)")
    made.add_argument("--readers", type=measure.words, default=[], help="only these")
    made.add_argument("--cpu-s", type=float, default=10, help="limit of an input (%(default)s)")
    made.add_argument("--memory-mb", type=int, default=512, help="limit of an input (%(default)s)")
    made.add_argument("--out", type=Path, default=Path("fuzz-faults"), help="kept inputs")
    made.add_argument("--again", default="", metavar="READER:NUMBER", help="only this input")
    return made.parse_args(argv)


class Reader(NamedTuple):
    """How an input is made, and how it is read.

    ``make(prepared, folder, rng)`` writes it, from what ``prepare`` of the module has left, and is
    valid where ``rng`` is None; ``read(folder, rng)`` tells how many rows came of it, or of what
    stands for rows. Errors of a ``nameless`` one need not say where. More than ``memory_mb`` is
    never a fault.
    """

    make: Callable[[Path, Path, Random | None], None]
    read: Callable[[Path, Random], int]
    nameless: bool = False
    memory_mb: int = 0


class Ended(NamedTuple):
    """What an input ended in: ``what`` is the fault, or empty if there was none."""

    rows: int
    error: bool
    what: str
    cpu_s: float
    peak_mb: float


@dataclass
class Totals:
    """What became of the inputs of a reader; ``slowest_s`` and ``most_mb`` are of one input."""

    inputs: int = 0
    with_rows: int = 0
    rows: int = 0
    errors: int = 0
    faults: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    most_mb: float = 0.0


class Found:
    """What became of all inputs; keeps those of faults."""

    def __init__(self, seed: int, out: Path):
        self._seed, self._out = seed, out
        self.totals: dict[str, Totals] = {}
        self.faults: list[dict[str, Any]] = []
        self._kinds: Counter = Counter()

    def of(self, name: str) -> Totals:
        return self.totals.setdefault(name, Totals())

    def add(self, name: str, number: int, ended: Ended, folder: Path) -> None:
        one = self.of(name)
        one.inputs += 1
        one.rows += 0 if ended.what else ended.rows
        one.faults += bool(ended.what)
        one.errors += ended.error and not ended.what
        one.with_rows += not ended.error and not ended.what
        one.slowest_s = max(one.slowest_s, ended.cpu_s)
        one.most_mb = max(one.most_mb, ended.peak_mb)
        if ended.what:
            self._keep(name, number, ended.what, folder)

    def _keep(self, name: str, number: int, what: str, folder: Path) -> None:
        """Keep an input, unless enough of its kind are kept."""
        kind = what.splitlines()[-1]
        self._kinds[name, kind[:60]] += 1
        if self._kinds[name, kind[:60]] > KEPT:
            return
        place = self._out / f"{name.replace(' ', '-')}-{self._seed}-{number}"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place, symlinks=True)
        (place / "fault.txt").write_text(what + "\n", errors="backslashreplace")
        self.faults.append({"reader": name, "number": number, "what": kind})
        print(f"FAULT {name}:{number} seed {self._seed}: {escaped(kind)}", flush=True)


class Child:
    """The process that reads; a new one takes the place of one that has died."""

    def __init__(
        self, folder: Path, names: Sequence[str], options: argparse.Namespace, module: str
    ):
        self.input = folder / "input"
        self._trace = folder / "trace"
        self._how = (folder, module, options.seed, list(names), options.cpu_s, options.memory_mb)
        self._cpu_s = options.cpu_s
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=child_main, args=(theirs, *self._how))
        self._process.start()
        theirs.close()
        self.names: list[str] = self._pipe.recv()

    def run(self, name: str, number: int) -> Ended:
        """Make and read an input, in a process that is there and stays in its limits."""
        self._pipe.send((name, number))
        try:
            if self._pipe.poll(WALL_S):
                return Ended(*self._pipe.recv())
            what = f"no answer within {WALL_S} s"
        except EOFError:
            self._process.join()
            what = _death(self._process.exitcode or 0, self._cpu_s, self._trace.read_text())
        self.kill()
        self._start()
        return Ended(0, True, what, self._cpu_s, 0.0)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _death(status: int, cpu_s: float, trace: str) -> str:
    """What ended a process, below what it was about, and in one line at the end."""
    what = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
    if status == -signal.SIGPROF:
        what = f"more than {cpu_s} s of CPU time"
    ours = re.search(r"/ctrps/.*?(\w+\.py)\", line (\d+)", trace)
    return f"{trace}\n{f'{ours[1]}:{ours[2]} ' if ours else ''}{what}"


def child_main(
    pipe: Connection,
    folder: Path,
    module: str,
    seed: int,
    chosen: Sequence[str],
    cpu_s: float,
    memory_mb: int,
) -> None:
    """Read the inputs that are asked for, until it is killed."""
    found = importlib.import_module(module)
    readers = found.READERS
    names = list(chosen or readers)
    warnings.simplefilter("error")
    for allowed in (CtrpsWarning, ResourceWarning):  # the latter: errors may leave files open
        warnings.simplefilter("ignore", allowed)
    trace = open(folder / "trace", "w")
    faulthandler.enable(trace)
    faulthandler.register(signal.SIGPROF, trace, chain=True)
    if not (folder / "prepared").exists():
        (folder / "prepared").mkdir()
        found.prepare(folder / "prepared")
    for name in names:
        _warm(readers[name], name, folder)
    _limit_addresses()
    pipe.send(names)
    while True:
        name, number = pipe.recv()
        rng = Random(f"{seed}/{name}/{number}")
        pipe.send(_watched(readers[name], folder, rng, cpu_s, memory_mb))


def _warm(reader: Reader, name: str, folder: Path) -> None:
    """Read what is valid, which compiles kernels; it must give rows."""
    rng = Random(0)
    for _ in range(3):
        _fresh(folder / "valid")
        reader.make(folder / "prepared", folder / "valid", None)
        if reader.read(folder / "valid", rng) < 1:
            raise RuntimeError(f"valid input of {name} gives no rows")


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _limit_addresses() -> None:
    most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most += ADDRESSES_MB << 20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _watched(reader: Reader, folder: Path, rng: Random, cpu_s: float, memory_mb: int) -> Ended:
    """Make an input and read it; more than ``cpu_s`` of CPU time ends the process."""
    _fresh(folder / "input")
    reader.make(folder / "prepared", folder / "input", rng)
    before, began = _peak_mb(reset=True), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    rows, failed, what = attempt(reader, folder / "input", rng)
    signal.setitimer(signal.ITIMER_PROF, 0)
    took, peak = time.process_time() - began, _peak_mb() - before
    most_mb = max(memory_mb, reader.memory_mb)
    if peak > most_mb and not what:
        what = f"more than {most_mb} MiB of memory"
    return Ended(rows, failed, what, took, peak)


def attempt(reader: Reader, folder: Path, rng: Random) -> tuple[int, bool, str]:
    """Read an input: rows, whether it ended in an error, and the fault, which may be empty."""
    try:
        return reader.read(folder, rng), False, ""
    except Exception as error:
        wrong = _fault_of(error, reader.nameless)
        trace = "".join(traceback.format_exception(error))
        return 0, True, f"{trace}\n{_site(error)} {' '.join(wrong.splitlines())}" if wrong else ""


def _fault_of(error: Exception, nameless: bool) -> str:
    """What is wrong with an error that an input ended in; empty if it is one of ours, and whole."""
    if not isinstance(error, CtrpsError) or error.exit_status == 1:
        return f"{type(error).__name__}: {error}"
    text = str(error)
    # An error about the rows of a file together names the first of them.
    if not (nameless or error.where or "/input" in text):
        return f"an error that does not say where: {text[:200]}"
    if not all(c.isprintable() or c == "\n" for c in text):
        return f"an error that a terminal cannot show: {text[:200]!r}"
    return ""


def _site(error: Exception) -> str:
    """Where in ctrps an exception came up."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/ctrps/" in f.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def _peak_mb(reset: bool = False) -> float:
    """Peak of resident memory since the last reset; with ``reset`` it begins at what is there."""
    if reset:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def _show(options: argparse.Namespace, found: Found) -> None:
    rows = [{"reader": name, **asdict(one)} for name, one in found.totals.items()]
    counts = dict.fromkeys(("inputs", "with_rows", "rows", "errors", "faults"), ",d")
    total = {key: sum(row[key] for row in rows) for key in counts}
    title = f"inputs of seed {options.seed}, and what they ended in"
    last = {"reader": "all", **total}
    measure.show(title, [*rows, last], reader="", **counts, slowest_s=".3f", most_mb=".0f")
    measure.finish("fuzz", options, readers=rows, faults=found.faults)


if __name__ == "__main__":
    sys.exit(main())
