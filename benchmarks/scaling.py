"""What more costs: servers and workers, ten times the rows, keys and factors, and a growing table.

    python -m benchmarks.scaling [--rows 50k] [--growth 1M,10M,50M] [--repeat 5]

Rows are made up (``rows.py``), so that each of these can be changed alone.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import measure
from benchmarks.kernels import key_of, model_of
from benchmarks.rows import Made
from ctrps.ps.table import Table

SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2))


@dataclass(frozen=True)
class Load:
    """What is trained: rows, a multiple of the keys, and factors of FM."""

    what: str
    rows: int
    keys: float = 1.0
    dim: int = 8

    def shard(self, folder: Path) -> Path:
        path = folder / f"{self.rows}-{self.keys:g}.shard"
        return path if path.exists() else Made(keys=self.keys, bits=64).write(path, self.rows)


def train(words: Sequence[str], load: Load, settings: Sequence[str], folder: Path) -> dict:
    """One run of FM: rates, keys, and CPU time of the whole run."""
    given = [f"data.train={load.shard(folder)}", "data.test=[]", "model.kind=fm"]
    given += [f"model.dim={load.dim}", f"output.dir={folder / 'run'}", *settings]
    ran = measure.run(measure.ctrps(*words, "--progress", "none", "--overwrite", settings=given))
    return {**json.loads(ran.output), "cpu_s": ran.cpu_s, "peak_bytes": ran.peak_bytes}


def medians(runs: Sequence[dict], *keys: str) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in keys}


def shapes(options: argparse.Namespace, folder: Path) -> list[dict]:
    """Servers × workers, in each mode."""
    load = Load("", options.rows[0])
    runs: dict[tuple[str, int, int], list[dict]] = {}
    for _ in range(options.repeat):
        for mode in options.modes:
            for servers, workers in SHAPES:
                words = ("launch", "-s", str(servers), "-w", str(workers))
                ran = train(words, load, [f"train.consistency={mode}"], folder)
                runs.setdefault((mode, servers, workers), []).append(ran)
    found = []
    for (mode, servers, workers), ran in runs.items():
        line = {"mode": mode, "servers": servers, "workers": workers}
        line |= medians(ran, "rows_per_s", "cpu_s", "peak_bytes")
        one = medians(runs[mode, 1, 1], "rows_per_s")["rows_per_s"]
        found.append(line | {"of_1x1": line["rows_per_s"] / one})
    return found


def costs(options: argparse.Namespace, folder: Path) -> list[dict]:
    """Time of a row in ``train``, and memory, when there is ten times as much of something."""
    rows = options.rows[0]
    loads = [
        Load("as it is", rows),
        Load("10 × rows", 10 * rows),
        Load("10 × keys", rows, keys=10.0),
        Load("10 × factors", rows, dim=80),
    ]
    ways = {"sync": [], "fused": ["train.fused=true"]}
    runs: dict[tuple[str, Load], list[dict]] = {}
    for _ in range(options.repeat):
        for way, settings in ways.items():
            for load in loads:
                runs.setdefault((way, load), []).append(train(("train",), load, settings, folder))
    found = []
    for (way, load), ran in runs.items():
        line = {"way": way, "what": load.what, "rows": load.rows, "dim": load.dim}
        line |= medians(ran, "rows_per_s", "train_s", "cpu_s", "peak_bytes", "keys")
        line["us_per_row"] = 1e6 / line["rows_per_s"]
        line["bytes_per_key"] = line["peak_bytes"] / line["keys"]
        found.append(line)
    for line in found:
        base = next(f for f in found if f["way"] == line["way"])
        line["of_base"] = line["us_per_row"] / base["us_per_row"]
    return found


@dataclass(frozen=True)
class Step:
    """One step that made new rows: seconds by the clock and of CPU, and rows of the table then."""

    wall_s: float
    cpu_s: float
    used: int


def grow(kind: str, rows: int, batch: int) -> tuple[Table, list[Step]]:
    """Fill a table by steps whose keys are all new."""
    table = Table(model_of(kind).tables[0], seed=1)
    gradient = np.full((batch, table.spec.dim), 0.1, np.float32)
    counts = np.ones(batch, np.int32)
    steps = []
    for first in range(0, rows, batch):
        keys = key_of(np.arange(first, min(first + batch, rows)))
        n = len(keys)
        wall, cpu = time.perf_counter(), time.thread_time()
        table.step(keys, gradient[:n], counts[:n], n)
        took = time.perf_counter() - wall, time.thread_time() - cpu
        steps.append(Step(*took, table.used))
    return table, steps


def growth(options: argparse.Namespace) -> list[dict]:
    """Making rows up to each size, the longest step of it, and known keys changed at that size."""
    found = []
    for kind in options.models:
        for size in options.growth:
            table, steps = grow(kind, size, options.batch)
            rng = np.random.default_rng(1)
            timings = measure.in_turn(
                {"change": partial(change, table, size, min(options.batch, size), rng)},
                options.repeat,
            )
            cpu_s = sum(step.cpu_s for step in steps)
            usual = statistics.median(step.wall_s for step in steps)
            longest = max(steps, key=lambda step: step.wall_s)
            known = measure.rates("keys", min(options.batch, size), timings["change"])
            found.append(
                {
                    "model": kind,
                    "rows": size,
                    "new_per_cpu_s": size / cpu_s,
                    "known_per_cpu_s": known["keys_per_cpu_s"],
                    "usual_step_ms": 1e3 * usual,
                    "longest_step_ms": 1e3 * longest.wall_s,
                    "longest_cpu_ms": 1e3 * max(step.cpu_s for step in steps),
                    "longest_at": longest.used,
                    "stall_ms": 1e3 * (longest.wall_s - usual),
                    "bytes_per_row": table.size_bytes / table.used,
                }
            )
            del table  # before the next one takes as much again
    return found


def change(table: Table, size: int, batch: int, rng: np.random.Generator) -> measure.Timing:
    """One step of known keys."""
    keys = key_of(rng.choice(size, batch, replace=False))
    gradient = np.full((batch, table.spec.dim), 0.1, np.float32)
    counts = np.ones(batch, np.int32)
    return measure.timed(lambda: table.step(keys, gradient, counts, batch))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measure.parser(__doc__, repeat=3)
    parser.add_argument("--rows", type=measure.numbers, default=[50_000], metavar="N")
    parser.add_argument("--growth", type=measure.numbers, default=[1_000_000], metavar="N,…")
    parser.add_argument("--batch", type=int, default=16_384, help="keys of a step (%(default)s)")
    parser.add_argument("--models", type=measure.words, default=["lr", "fm"], help="that grow")
    parser.add_argument("--modes", type=measure.words, default=["sync", "async"])
    parser.add_argument(
        "--parts", type=measure.words, default=["shapes", "costs", "growth"], help="what to measure"
    )
    options = parser.parse_args(arguments)
    found: dict[str, list[dict]] = {"shapes": [], "costs": [], "growth": []}
    with tempfile.TemporaryDirectory(prefix="ctrps-scaling-") as folder:
        if "growth" in options.parts:
            grow("lr", 10, 10)  # compiles
            found["growth"] = growth(options)
        if "costs" in options.parts:
            found["costs"] = costs(options, Path(folder))
        if "shapes" in options.parts:
            found["shapes"] = shapes(options, Path(folder))
    show(found)
    measure.finish("scaling", options, **found)
    return 0


def show(found: dict[str, list[dict]]) -> None:
    if found["growth"]:
        measure.show(
            "A table that grows: new keys, known keys, and the step that took longest",
            found["growth"],
            model="",
            rows=",d",
            bytes_per_row=".1f",
            new_per_cpu_s=",.0f",
            known_per_cpu_s=",.0f",
            usual_step_ms=".2f",
            longest_step_ms=".1f",
            longest_cpu_ms=".1f",
            longest_at=",d",
            stall_ms=".1f",
        )
    if found["costs"]:
        measure.show(
            "`ctrps train`, FM: time of a row, of base: its ratio",
            found["costs"],
            way="",
            what="",
            keys=",.0f",
            rows_per_s=",.0f",
            us_per_row=".2f",
            of_base=".2f",
            cpu_s=".1f",
            bytes_per_key=",.0f",
        )
    if found["shapes"]:
        measure.show(
            "`ctrps launch`, FM of k = 8",
            found["shapes"],
            mode="",
            servers="d",
            workers="d",
            rows_per_s=",.0f",
            of_1x1=".2f",
            cpu_s=".1f",
        )


if __name__ == "__main__":
    sys.exit(main())
