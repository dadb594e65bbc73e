"""Processes of this machine that do parts of the features stage, and what a stage uses."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from ctrps.data.cluster import Cluster
from ctrps.data.parts import Part, PartDone, peak_bytes

MIN_BYTES_PER_PROCESS = 32 << 20
"""Sample text that is worth a process, which takes a second or two to start."""

Each = Callable[[Callable[[Part], PartDone], Sequence[Part]], Iterator[PartDone]]


@contextmanager
def each_of(parts: Sequence[Part], processes: int | None) -> Iterator[Each]:
    """A ``map`` over parts, in several processes where that saves time; this one is among them."""
    size = sum(part.sample.stat().st_size for part in parts)
    most = min(os.cpu_count() or 1, size // MIN_BYTES_PER_PROCESS)
    number = min(processes or max(most, 1), len(parts))
    if number <= 1:
        yield map
        return
    # Not fork: a process that has threads, as numerical libraries do, may hang in it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number - 1, context, _end_with_parent) as pool:
        try:
            yield partial(_shared, pool)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _shared(
    pool: ProcessPoolExecutor, function: Callable[[Part], PartDone], parts: Sequence[Part]
) -> Iterator[PartDone]:
    """As ``map``; this process takes parts from the end, instead of waiting for those in front."""
    asked = [pool.submit(function, part) for part in parts]
    here: dict[int, PartDone] = {}
    last = len(parts)
    for number, one in enumerate(asked):
        while not one.done() and last > number:
            last -= 1
            if asked[last].cancel():
                here[last] = function(parts[last])
        yield here.pop(number) if number in here else one.result()


def _end_with_parent() -> None:
    """Have this process end when the one that started it does, even by SIGKILL."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Clock:
    """Times a stage, and adds up what its processes have used."""

    def __init__(self, cluster: Cluster | None) -> None:
        self._cluster = cluster
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._before = cluster.used() if cluster else {}

    def found(self, done: Sequence[PartDone]) -> dict[str, Any]:
        """Seconds and memory; ``done`` are parts that other processes than this may have done."""
        cpu_s = time.process_time() - self._cpu
        peaks: dict[int | str, int] = {os.getpid(): peak_bytes()}
        if self._cluster:
            for worker, (cpu, peak) in self._cluster.used().items():
                cpu_s += cpu - self._before.get(worker, (0.0, 0))[0]
                peaks[worker] = peak
        else:
            others = [one for one in done if one.process != os.getpid()]
            for one in others:
                peaks[one.process] = max(peaks.get(one.process, 0), one.peak_bytes)
            cpu_s += sum(one.cpu_s for one in others)
        return {
            "cpu_s": round(cpu_s, 3),
            "wall_s": round(time.monotonic() - self._wall, 3),
            "peak_rss_mb": round(sum(peaks.values()) / 2**20, 1),
            "processes": len(peaks),
        }
