"""What this machine allows: random cache lines, copies, and rows that are known ahead.

    python -m benchmarks.limits [--megabytes 256] [--row-keys 4M] [--repeat 5]

Loops of numba with the prefetch of ``ctrps.kernels.vectors``. ``kernels.py`` runs the same loops
beside the kernels of ctrps, in one run.
"""

import mmap
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numba import njit

from benchmarks import measure
from benchmarks.measure import Timing
from ctrps.kernels.vectors import EIGHT, FOUR, ONE, address, fill, load, prefetch, store, total

LINE = 64
HUGE = 1 << 21
COLUMNS = 39
ROW_BYTES = {"lr": 16, "fm": 72}
"""Of the rows of the ceiling: w, z, n and a spare; w and v of k = 8, each with AdaGrad's n."""

ROWS_AHEAD = 2


@njit(cache=True, nogil=True)
def read_lines(region, at, ahead):
    """Sum of the first number of lines ``at`` uint32[n] of ``region`` int64[8 lines].

    Each line is asked for ``ahead`` places before it is read; with 0 none is.
    """
    base, found = address(region), 0
    for i in range(at.shape[0]):
        if ahead and i + ahead < at.shape[0]:
            prefetch(base + LINE * np.int64(at[i + ahead]))
        found += region[8 * np.int64(at[i])]
    return found


@njit(cache=True, nogil=True)
def change_lines(region, at, ahead):
    """Add 1 to the first number of lines ``at``, asked for as in ``read_lines``."""
    base = address(region)
    for i in range(at.shape[0]):
        if ahead and i + ahead < at.shape[0]:
            prefetch(base + LINE * np.int64(at[i + ahead]))
        region[8 * np.int64(at[i])] += 1


@njit(cache=True, nogil=True)
def lr_rows(table, ids, first, last, ahead):
    """Read and change rows of 4 float32 of ``table``, as the least that training LR must do.

    Rows ``first … last`` of ``ids`` uint32[rows, columns] name the table rows of an example. The
    table rows of an example are added up, and each is changed by a multiple of the sum.
    """
    base, n = address(table), ids.shape[1]
    for r in range(first, last):
        if ahead and r + ahead < last:
            for i in range(n):
                prefetch(base + 16 * np.int64(ids[r + ahead, i]))
        found = fill(FOUR, np.float32(0))
        for i in range(n):
            found = found + load(FOUR, base + 16 * np.int64(ids[r, i]), 0)
        g = np.float32(1e-3) / (np.float32(1) + np.exp(-total(found)))
        for i in range(n):
            row = base + 16 * np.int64(ids[r, i])
            store(load(FOUR, row, 0) - found * g, row, 0)


@njit(cache=True, nogil=True)
def fm_rows(table, ids, first, last, ahead):
    """As ``lr_rows``, with rows of 18 float32: FM of k = 8."""
    base, n = address(table), ids.shape[1]
    for r in range(first, last):
        if ahead and r + ahead < last:
            for i in range(n):
                row = base + 72 * np.int64(ids[r + ahead, i])
                prefetch(row)
                prefetch(row + LINE)
                prefetch(row + 71)
        w, v = fill(ONE, np.float32(0)), fill(EIGHT, np.float32(0))
        s, t = fill(ONE, np.float32(0)), fill(EIGHT, np.float32(0))
        for i in range(n):
            row = base + 72 * np.int64(ids[r, i])
            w, v = w + load(ONE, row, 0), v + load(EIGHT, row, 1)
            s, t = s + load(ONE, row, 9), t + load(EIGHT, row, 10)
        g = np.float32(1e-3) / (np.float32(1) + np.exp(-total(w)))
        for i in range(n):
            row = base + 72 * np.int64(ids[r, i])
            store(load(ONE, row, 0) - w * g, row, 0)
            store(load(EIGHT, row, 1) - v * g, row, 1)
            store(load(ONE, row, 9) - s * g, row, 9)
            store(load(EIGHT, row, 10) - t * g, row, 10)


ROW_LOOPS = {"lr": lr_rows, "fm": fm_rows}


def region(size: int, huge: bool) -> np.ndarray:
    """Memory of its own, int64, all pages touched, in pages of 2 MiB or of 4 KiB."""
    memory = mmap.mmap(-1, -(-size // HUGE) * HUGE + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
    memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    whole = np.frombuffer(memory, np.int64)
    skipped = -whole.ctypes.data % HUGE // 8
    made = whole[skipped : skipped + size // 8]
    made[:] = 1
    return made


def huge_share(array: np.ndarray) -> float:
    """The share of an array's memory that lies in huge pages, as the system says."""
    start, held, inside = array.ctypes.data, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            low, high = (int(border, 16) for border in name.split("-"))
            inside = low < start + array.nbytes and start < high
        elif inside and name == "AnonHugePages:":
            held += int(rest.split()[0]) * 1024
    return min(1.0, held / array.nbytes)


class Lines:
    """Random lines of a region: cases for ``measure.in_turn``, and their rates.

    Parameters
    ----------
    size
        Bytes of the region.
    huge
    count
        Lines of one measurement.
    distances
        How far ahead lines are asked for; the fastest is the limit.
    """

    LOOPS = (("read", read_lines), ("change", change_lines))

    def __init__(self, size: int, huge: bool, count: int, distances: Sequence[int]):
        self.memory = region(size, huge)
        self.huge = huge
        self.huge_share = huge_share(self.memory)
        self.count = count
        self.distances = distances
        self._rng = np.random.default_rng(1)

    def cases(self) -> dict[str, Callable[[], Timing]]:
        """One case for each loop and distance."""
        return {
            self._name(what, ahead): partial(self._time, loop, ahead)
            for what, loop in self.LOOPS
            for ahead in (0, *self.distances)
        }

    def _name(self, what: str, ahead: int) -> str:
        return f"{what} {self.huge} {ahead}"

    def _time(self, loop: Callable[..., object], ahead: int) -> Timing:
        lines = self.memory.nbytes // LINE
        # Other lines each time: those of the last time may still be in a cache.
        at = self._rng.integers(0, lines, self.count, np.uint32)
        return measure.timed(lambda: loop(self.memory, at, ahead))

    def figures(self, timings: dict[str, list[Timing]]) -> list[dict]:
        """Without prefetch and with the best of the distances, for each loop."""
        found = []
        for what, _ in self.LOOPS:
            tried = {
                ahead: measure.rates("lines", self.count, timings[self._name(what, ahead)])
                for ahead in (0, *self.distances)
            }
            best = max(self.distances, key=lambda ahead: tried[ahead]["lines_per_cpu_s"])
            for ahead in (0, best):
                found.append(
                    {
                        "what": f"{what} random lines",
                        "region_mb": self.memory.nbytes / 1e6,
                        "huge_pages": self.huge_share,
                        "prefetch": ahead,
                        **tried[ahead],
                    }
                )
        return found


def line_rates(figures: Sequence[dict]) -> dict[str, float]:
    """The limits of reading and of changing lines, per CPU second, of ``Lines.figures``."""
    return {
        what: max(f["lines_per_cpu_s"] for f in figures if f["what"].startswith(what))
        for what in ("read", "change")
    }


class Ceiling:
    """Rows of a model's size, their places known ahead and asked for: cases, and rates.

    Parameters
    ----------
    kind
        ``lr`` or ``fm``.
    keys
        Rows of the table; examples draw from them with equal chance.
    rows
        Examples of one measurement.
    """

    def __init__(self, kind: str, keys: int, rows: int, huge: bool, threads: Sequence[int]):
        self.kind, self.keys, self.rows, self.threads = kind, keys, rows, threads
        memory = region(keys * ROW_BYTES[kind], huge)
        self.huge, self.huge_share = huge, huge_share(memory)
        self.table = memory.view(np.float32)[: keys * ROW_BYTES[kind] // 4]
        self.table[:] = 1e-3
        rng = np.random.default_rng(1)
        self.ids = rng.integers(0, keys, (rows, COLUMNS), np.uint32)

    def cases(self) -> dict[str, Callable[[], Timing]]:
        """One case for each number of threads, with prefetch and, for one thread, without."""
        return {
            self._name(threads, ahead): partial(self._time, threads, ahead)
            for threads in self.threads
            for ahead in ((0, ROWS_AHEAD) if threads == 1 else (ROWS_AHEAD,))
        }

    def _name(self, threads: int, ahead: int) -> str:
        return f"{self.kind} {self.huge} {threads} {ahead}"

    def _time(self, threads: int, ahead: int) -> Timing:
        loop, borders = ROW_LOOPS[self.kind], np.linspace(0, self.rows, threads + 1).astype(int)
        return measure.timed_threads(
            [
                partial(loop, self.table, self.ids, first, last, ahead)
                for first, last in pairwise(borders)
            ]
        )

    def figures(self, timings: dict[str, list[Timing]]) -> list[dict]:
        """Rows per second; ``of_one_thread`` against one thread with prefetch, by CPU time."""
        one = measure.rates("rows", self.rows, timings[self._name(1, ROWS_AHEAD)])
        found = []
        for threads in self.threads:
            for ahead in (0, ROWS_AHEAD) if threads == 1 else (ROWS_AHEAD,):
                rates = measure.rates("rows", self.rows, timings[self._name(threads, ahead)])
                found.append(
                    {
                        "model": self.kind,
                        "row_bytes": ROW_BYTES[self.kind],
                        "keys": self.keys,
                        "huge_pages": self.huge_share,
                        "threads": threads,
                        "prefetch": ahead,
                        **rates,
                        "of_one_thread": rates["rows_per_cpu_s"] / one["rows_per_cpu_s"],
                    }
                )
        return found


def copy(size: int, repeat: int) -> dict:
    """Bytes copied from one region to another."""
    source, target = region(size, True), region(size, True)
    timings = measure.in_turn(
        {"copy": lambda: measure.timed(lambda: np.copyto(target, source))}, repeat
    )
    return {"what": "copy memory", **measure.rates("bytes", source.nbytes, timings["copy"])}


def loopback(size: int, repeat: int) -> dict:
    """Bytes sent over one TCP connection of this machine; CPU of both ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        timings = measure.in_turn({"tcp": lambda: _send(near, far, size)}, repeat)
    return {"what": "copy over loopback TCP", **measure.rates("bytes", size, timings["tcp"])}


def _send(near: socket.socket, far: socket.socket, size: int) -> Timing:
    out, into = bytearray(size), bytearray(1 << 20)

    def receive() -> None:
        left = size
        while left:
            left -= far.recv_into(into, min(left, len(into)))

    cpu = time.process_time()
    wall = measure.timed_threads([lambda: near.sendall(out), receive]).wall_s
    return Timing(wall, time.process_time() - cpu)


def show_lines(found: Sequence[dict]) -> None:
    measure.show(
        "Random lines of 64 bytes",
        found,
        what="",
        region_mb=",.0f",
        huge_pages=".0%",
        prefetch="d",
        lines_per_cpu_s=",.0f",
        lines_per_s=",.0f",
        spread=".0%",
    )


def show_ceiling(found: Sequence[dict]) -> None:
    measure.show(
        f"Rows of {COLUMNS} table rows that are known {ROWS_AHEAD} rows ahead",
        found,
        model="",
        row_bytes="d",
        keys=",d",
        huge_pages=".0%",
        threads="d",
        prefetch="d",
        rows_per_cpu_s=",.0f",
        rows_per_s=",.0f",
        spread=".0%",
        of_one_thread=".2f",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measure.parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="region (%(default)s)")
    parser.add_argument("--lines", type=measure.numbers, default=[1_000_000], metavar="N")
    parser.add_argument("--distances", type=measure.numbers, default=[8, 16, 32, 64])
    parser.add_argument("--threads", type=measure.numbers, default=[1, 2], help="of the ceiling")
    parser.add_argument("--row-keys", type=measure.numbers, default=[1 << 22], metavar="N")
    parser.add_argument("--row-count", type=measure.numbers, default=[50_000], metavar="N")
    options = parser.parse_args(arguments)
    size, pages = options.megabytes * 1_000_000, (True, False)
    lines = [Lines(size, huge, options.lines[0], options.distances) for huge in pages]
    rows = [
        Ceiling(kind, options.row_keys[0], options.row_count[0], huge, options.threads)
        for kind in ROW_LOOPS
        for huge in pages
    ]
    cases = {name: case for part in (*lines, *rows) for name, case in part.cases().items()}
    timings = measure.in_turn(cases, options.repeat)
    found = [figures for part in lines for figures in part.figures(timings)]
    ceiling = [figures for part in rows for figures in part.figures(timings)]
    copies = [copy(size, options.repeat), loopback(size, options.repeat)]
    show_lines(found)
    measure.show(
        "Copies", copies, what="", bytes_per_cpu_s=",.0f", bytes_per_s=",.0f", spread=".0%"
    )
    show_ceiling(ceiling)
    measure.finish("limits", options, lines=found, copies=copies, ceiling=ceiling)
    return 0


if __name__ == "__main__":
    sys.exit(main())
