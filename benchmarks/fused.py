"""`ctrps train` row at a time against rows that are known ahead, in one run, by CPU time.

    python -m benchmarks.fused [--train train.shard] [--threads 1,2] [--repeat 5]

The ceiling (``limits.py``) reads and changes as many table rows of the same size, chosen with equal
chance among as many keys, and computes next to nothing. Training reads shards, finds keys, makes
rows and computes the model; saving is not part of it. In this process, so that its CPU time is that
of training alone.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import limits, measure
from benchmarks.limits import COLUMNS, Ceiling
from benchmarks.measure import Timing
from benchmarks.rows import Made
from ctrps import models
from ctrps.config import JobConfig, load_job
from ctrps.ps.partition import PartitionSet
from ctrps.runtime.fused import Fused
from ctrps.runtime.inputs import Inputs, open_inputs

GOALS = {"lr": 0.6, "fm": 0.75}
"""Of the ceiling, with one thread."""


class Training:
    """One model on one set of shards: cases for ``measure.in_turn``."""

    def __init__(self, kind: str, settings: Sequence[str], threads: Sequence[int]):
        self.kind, self.threads = kind, threads
        base = [*settings, f"model.kind={kind}", "train.fused=true"]
        self._jobs = {n: load_job(None, [*base, f"train.threads={n}"], {}) for n in threads}
        self._inputs = open_inputs(self._jobs[threads[0]])
        self.keys, self.rows = self._keys_and_rows()

    def _keys_and_rows(self) -> tuple[int, int]:
        job = self._jobs[self.threads[0]]
        partitions = _walk(job, self._inputs)
        return partitions.tables[0].used, sum(
            sum(file.block_rows) for file in self._inputs.manifest.train
        )

    def cases(self) -> dict[str, Callable[[], Timing]]:
        return {f"train {self.kind} {n}": partial(self._time, n) for n in self.threads}

    def _time(self, threads: int) -> Timing:
        wall, cpu = time.perf_counter(), time.process_time()
        _walk(self._jobs[threads], self._inputs)
        return Timing(time.perf_counter() - wall, (time.process_time() - cpu) / threads)


def _walk(job: JobConfig, inputs: Inputs) -> PartitionSet:
    """One pass over all rows, from an empty table."""
    model = models.build(job)
    partitions = PartitionSet(model)
    partitions.expect(inputs.manifest.keys, model.partitions)
    for _ in Fused(job, inputs, partitions).walk(0, 0, threading.Event()):
        continue
    return partitions


def compare(training: Training, options: argparse.Namespace) -> list[dict]:
    """Training and its ceiling in turn, for each number of threads."""
    count = options.row_count[0]
    ceiling = Ceiling(training.kind, training.keys, count, True, options.threads)
    timings = measure.in_turn(ceiling.cases() | training.cases(), options.repeat)
    allowed = {
        f["threads"]: f for f in ceiling.figures(timings) if f["prefetch"] == limits.ROWS_AHEAD
    }
    found: list[dict] = []
    for threads in options.threads:
        case = timings[f"train {training.kind} {threads}"]
        rates = measure.rates("rows", training.rows, case)
        first = found[0] if found else rates
        limit = allowed[threads]
        found.append(
            {
                "model": training.kind,
                "threads": threads,
                "keys": training.keys,
                **rates,
                "ceiling_per_cpu_s": limit["rows_per_cpu_s"],
                "of_ceiling": rates["rows_per_cpu_s"] / limit["rows_per_cpu_s"],
                "goal": GOALS[training.kind] if threads == 1 else None,
                "of_first": rates["rows_per_cpu_s"] / first["rows_per_cpu_s"],
                "ceiling_of_first": limit["rows_per_cpu_s"]
                / allowed[options.threads[0]]["rows_per_cpu_s"],
            }
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measure.parser(__doc__)
    parser.add_argument("--train", type=Path, help=f"rows of {COLUMNS} keys; default: made up")
    parser.add_argument("--rows", type=measure.numbers, default=[100_000], help="made-up rows")
    parser.add_argument("--models", type=measure.words, default=list(GOALS))
    parser.add_argument("--threads", type=measure.numbers, default=[1, 2])
    parser.add_argument(
        "--row-count", type=measure.numbers, default=[50_000], help="of the ceiling"
    )
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="S.K=V")
    options = parser.parse_args(arguments)
    if options.threads[0] != 1:
        parser.error("--threads begins with 1")
    with tempfile.TemporaryDirectory(prefix="ctrps-fused-") as folder:
        train = options.train or Made(bits=64).write(Path(folder, "rows.shard"), options.rows[0])
        settings = [f"data.train={train}", "data.test=[]", f"output.dir={Path(folder, 'run')}"]
        settings += options.settings
        found = [
            figures
            for kind in options.models
            for figures in compare(Training(kind, settings, options.threads), options)
        ]
    measure.show(
        "Training row at a time, and rows known ahead; of first: against one thread",
        found,
        model="",
        threads="d",
        keys=",d",
        rows_per_cpu_s=",.0f",
        rows_per_s=",.0f",
        spread=".0%",
        ceiling_per_cpu_s=",.0f",
        of_ceiling=".2f",
        goal=".2f",
        of_first=".2f",
        ceiling_of_first=".2f",
    )
    measure.finish("fused", options, fused=found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
