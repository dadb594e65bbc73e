"""Store and transport: keys pulled and pushed per second by one server and one client.

    python -m benchmarks.store [--keys 10000] [--pool 1M] [--floats 16] [--repeat 5]

A real scheduler and a real server, and in this process a real worker whose batches and gradients
are made beforehand: what is left is asking, sending, finding rows and changing them. Each batch
has random keys of a pool; the first walk over the pool makes the rows and is not counted.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks import limits, measure
from benchmarks.kernels import key_of
from benchmarks.rows import SCHEMA
from ctrps.config import JobConfig, load_job
from ctrps.data.rows import Rows
from ctrps.data.shards import ShardWriter
from ctrps.kernels.keys import grouped
from ctrps.models import Gradient, Minibatch
from ctrps.ps.effects import Compute, Prepare
from ctrps.runtime.roles import Place, WorkerProcess
from ctrps.runtime.security import Guard

REFERENCE = 2.0e6
"""Keys pushed and pulled per second by the system that ctrps replaces: 1.7 to 2.0 M, 16 floats."""

BATCH_ROWS = 16
"""Rows that a batch is said to have; they hold nothing."""

START_S = 60.0


class Moment(NamedTuple):
    """Seconds since the start, and CPU seconds of the client and of the server until then."""

    wall_s: float
    client_s: float
    server_s: float


class Client(WorkerProcess):
    """A worker that neither reads nor computes: its batches are given.

    Attributes
    ----------
    moments : list of Moment
        Of each batch that has been pulled.
    """

    def __init__(self, job: JobConfig, scheduler: str, batches: list[Minibatch], server_pid: int):
        super().__init__(job, scheduler, lambda text: None, Guard(), Place())
        self._batches = batches
        dims = [table.dim for table in self.model.tables]
        rng = np.random.default_rng(1)
        most = max(len(batch.keys) for batch in batches)
        gradient = rng.normal(0, 0.1, (most, dims[0])).astype(np.float32)
        self._gradients = [
            Gradient(
                (gradient[: len(batch.keys)], np.zeros((1, dims[1]), np.float32)),
                0.0,
                np.zeros(BATCH_ROWS, np.float32),
            )
            for batch in batches
        ]
        self._server = psutil.Process(server_pid)
        self._given = 0
        self.moments: list[Moment] = []

    def _read(self, effect: Prepare) -> Minibatch:
        self._given += 1
        return self._batches[self._given % len(self._batches)]

    def _compute(self, effect: Compute) -> Gradient:
        used = self._server.cpu_times()
        self.moments.append(
            Moment(time.perf_counter(), time.process_time(), used.user + used.system)
        )
        return self._gradients[
            next(n for n, batch in enumerate(self._batches) if batch is effect.batch)
        ]


def made_batches(pool: int, keys: int, bits: int) -> list[Minibatch]:
    """Batches of ``keys`` random keys that together hold each key of the pool once."""
    order = np.random.default_rng(1).permutation(pool)
    return [made_batch(key_of(order[at : at + keys]), bits) for at in range(0, pool, keys)]


def made_batch(keys: np.ndarray, bits: int) -> Minibatch:
    order, starts = np.empty(len(keys), np.int64), np.empty((1 << bits) + 1, np.int32)
    grouped(keys, bits, order, starts)
    return Minibatch(
        keys=keys[order],
        starts=starts,
        counts=np.ones(len(keys), np.int32),
        indptr=np.zeros(BATCH_ROWS + 1, np.int64),
        index=np.empty(0, np.int32),
        values=np.empty(0, np.float32),
        labels=np.zeros(BATCH_ROWS, np.float32),
    )


def write_rows(path: Path, batches: int) -> Path:
    """A shard that a pass of so many batches can be made of: only its rows are counted."""
    rows = batches * BATCH_ROWS
    dense = np.zeros((rows, 0), np.float32)
    counts, labels = np.ones((rows, 1), np.int32), np.zeros(rows, np.float32)
    with ShardWriter(path, SCHEMA) as shard:
        shard.add(Rows(np.zeros(rows, np.uint64), counts, None, dense, labels, None))
    return path


class Cluster:
    """A scheduler and a server of a job, as processes; they end with the context."""

    def __init__(self, folder: Path, job: list[str]):
        self._folder = folder
        self._job = job
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> tuple[str, int]:
        scheduler = self._start("scheduler")
        file = self._folder / "run" / "scheduler.json"
        deadline = time.monotonic() + START_S
        while not file.exists():
            if scheduler.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "scheduler.log").read_text())
            time.sleep(0.02)
        address = json.loads(file.read_text())["address"]
        return address, self._start("server", "--scheduler", address).pid

    def _start(self, role: str, *words: str) -> subprocess.Popen[bytes]:
        command = [w for w in measure.ctrps(role, *words, settings=self._job) if w != "--json"]
        with open(self._folder / f"{role}.log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._started.append(process)
        return process

    def __exit__(self, *error: object) -> None:
        for process in self._started:
            if error[0] is not None:
                process.terminate()
            process.wait(START_S)


def walks(moments: list[Moment], batches: int, keys: int) -> list[dict]:
    """The figures of each walk over the pool but the first."""
    borders = moments[batches::batches]
    found = []
    for first, last in pairwise(borders):
        wall, client, server = (b - a for a, b in zip(first, last, strict=True))
        found.append(
            {
                "keys_per_s": keys / wall,
                "keys_per_cpu_s": keys / (client + server) if client + server else None,
                "client_cpu_us_per_batch": 1e6 * client / batches,
                "server_cpu_us_per_batch": 1e6 * server / batches,
            }
        )
    return found


def measured(options: argparse.Namespace, folder: Path) -> dict:
    """Run the job, and take the medians of its walks."""
    count = -(-options.pool[0] // options.keys)
    rows = write_rows(folder / "rows.shard", count * (options.repeat + 1) + 2)
    settings = [
        f"data.train={rows}",
        f"output.dir={folder / 'run'}",
        "model.kind=fm",
        f"model.dim={options.floats - 1}",
        f"train.batch_rows={BATCH_ROWS}",
        f"train.consistency={options.mode}",
        "train.checkpoint_s=0",
    ]
    if options.window and options.mode != "sync":
        settings.append(f"train.window={options.window}")
    job = load_job(None, settings, {})
    batches = made_batches(options.pool[0], options.keys, job.train.partitions.bit_length() - 1)
    with Cluster(folder, settings) as (address, server):
        client = Client(job, address, batches, server)
        client.run()
    found = walks(client.moments, count, options.pool[0])
    # The system counts a process's CPU time in steps, so a short walk may have none.
    figures = {
        key: statistics.median([f[key] for f in found if f[key] is not None] or [0.0])
        for key in found[0]
    }
    spread = max(f["keys_per_s"] for f in found) - min(f["keys_per_s"] for f in found)
    floats = 4 * options.floats
    return {
        "mode": options.mode,
        "keys": options.keys,
        "floats": options.floats,
        **figures,
        "spread": spread / figures["keys_per_s"],
        "bytes_per_key": 8 + floats + 8 + floats + 4,
        "reference_keys_per_s": REFERENCE,
        "of_reference": figures["keys_per_s"] / REFERENCE,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measure.parser(__doc__)
    parser.add_argument("--keys", type=int, default=10_000, help="of a batch (%(default)s)")
    parser.add_argument("--pool", type=measure.numbers, default=[500_000], metavar="N")
    parser.add_argument("--floats", type=int, default=16, help="of a key (%(default)s)")
    parser.add_argument("--mode", choices=["async", "ssp", "sync"], default="async")
    parser.add_argument("--window", type=int, default=0, help="batches in flight; 0: the default")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ctrps-store-") as folder:
        found = measured(options, Path(folder))
    tcp = limits.loopback(1 << 26, options.repeat)
    found["loopback_bytes_per_s"] = tcp["bytes_per_s"]
    found["of_loopback"] = found["keys_per_s"] * found["bytes_per_key"] / tcp["bytes_per_s"]
    measure.show(
        "1 server, 1 client: random keys pulled, and pushed",
        [found],
        mode="",
        keys=",d",
        floats="d",
        keys_per_s=",.0f",
        keys_per_cpu_s=",.0f",
        spread=".0%",
        client_cpu_us_per_batch=",.0f",
        server_cpu_us_per_batch=",.0f",
        of_reference=".2f",
        of_loopback=".2f",
    )
    measure.finish("store", options, store=found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
