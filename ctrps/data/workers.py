"""Threads or processes that do parts of the features stage, and what a stage uses."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from ctrps.data.cluster import Cluster
from ctrps.data.memory import peak_bytes
from ctrps.data.parts import PartDone

Each = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""A ``map`` over items, such as parts."""


@contextmanager
def each_of(workers: int, threads: bool) -> Iterator[Each]:
    """A ``map`` by several threads, or by several processes with this one among them.

    Threads need not be started with libraries and kernels of their own; but functions of the
    user, which are Python, run one at a time in them.
    """
    if workers <= 1:
        yield map
        return
    pool: ThreadPoolExecutor | ProcessPoolExecutor
    if threads:
        pool = ThreadPoolExecutor(workers)
        each: Each = pool.map
    else:
        # Not fork: a process that has threads, as numerical libraries do, may hang in it.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers - 1, context, _end_with_parent)
        each = partial(_shared, pool)
    with pool:
        try:
            yield each
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _shared(
    pool: ProcessPoolExecutor, function: Callable[[Any], Any], items: Sequence[Any]
) -> Iterator[Any]:
    """As ``map``; this process takes items from the end, instead of waiting for those in front."""
    asked = [pool.submit(function, item) for item in items]
    here: dict[int, Any] = {}
    last = len(items)
    for number, one in enumerate(asked):
        while not one.done() and last > number:
            last -= 1
            if asked[last].cancel():
                here[last] = function(items[last])
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
