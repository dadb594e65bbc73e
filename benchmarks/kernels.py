"""Kernels of ctrps against what the machine allows, in one run: a worker's batch, and the table.

    python -m benchmarks.kernels [--table-rows 1M] [--batch-rows 4096] [--repeat 5]

The table is asked and changed at random places, a batch of distinct keys at a time, and compared
with random lines of memory of its size. The limit of FM is that rate divided by the lines that one
row fills at least.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks import measure
from benchmarks.limits import LINE, Lines, line_rates, show_lines
from benchmarks.measure import Timing
from benchmarks.rows import SCHEMA, Made
from ctrps import models
from ctrps.config import load_job
from ctrps.data.batches import BlockBatches
from ctrps.data.shards import Block
from ctrps.kernels import csr
from ctrps.kernels import keys as key_kernels
from ctrps.ps.table import Table

KINDS = ("lr", "fm")
KEY_BYTES, FLOAT_BYTES = 8, 4
BATCHES = 4
"""Batches of a measurement of the worker, taken in turn: one alone would stay in the cache."""

BATCHES = 8
"""Of different keys, that are timed together: the first finds caches full of something else."""

GOALS = {
    ("dedup", None): 3e6,
    ("gradient", "lr"): 10e6,
    ("gradient", "fm"): 1.6e6,
    ("pull", "lr"): 0.7,
    ("push", "lr"): 0.9,
    ("pull", "fm"): 0.65,
    ("push", "fm"): 0.75,
}
"""Rows per CPU second of the worker; share of the limit of the table."""


def model_of(kind: str, settings: Sequence[str] = ()) -> models.Model:
    return models.build(load_job(None, [f"model.kind={kind}", *settings], {}))


class WorkerBatches:
    """Batches of made-up rows as a worker meets them.

    Parameters
    ----------
    rows
        Of a batch.
    """

    def __init__(self, rows: int, bits: int):
        self.rows = rows
        made = Made(bits=bits)
        parts = [made.part(number << 20, rows) for number in range(BATCHES)]
        self.keys = [part.keys for part in parts]
        self._blocks = [BlockBatches(Block.from_rows(p, SCHEMA), SCHEMA, 6) for p in parts]
        self.batches = [block.minibatch(np.arange(rows)) for block in self._blocks]
        most = len(self.keys[0])
        self._index = np.zeros(key_kernels.index_capacity(most), np.int32)
        self._unique, self._local = np.empty(most, np.uint64), np.empty(most, np.int32)

    @property
    def unique_share(self) -> float:
        """Distinct keys of a batch for each of its values."""
        return sum(len(b.keys) for b in self.batches) / sum(map(len, self.keys))

    def cases(self) -> dict[str, Callable[[], Timing]]:
        found = {
            "dedup": partial(measure.timed, self._dedup),
            "minibatch": partial(measure.timed, self._minibatch),
        }
        for kind in KINDS:
            model = model_of(kind)
            weights = [self._weights(model, len(batch.keys)) for batch in self.batches]
            found[f"gradient {kind}"] = partial(
                measure.timed, partial(self._gradient, model, weights)
            )
        return found

    def figures(self, timings: dict[str, list[Timing]]) -> list[dict]:
        found = []
        for what, kind in (("dedup", None), ("minibatch", None), *(("gradient", k) for k in KINDS)):
            rates = measure.rates(
                "rows", self.rows * BATCHES, timings[f"{what} {kind}" if kind else what]
            )
            goal = GOALS.get((what, kind))
            share = rates["rows_per_cpu_s"] / goal if goal else None
            found.append({"what": what, "model": kind, **rates, "goal": goal, "of_goal": share})
        return found

    def _dedup(self) -> None:
        for keys in self.keys:
            csr.dedup_keys(keys, self._index, self._unique, self._local)

    def _minibatch(self) -> None:
        for block in self._blocks:
            block.minibatch(np.arange(self.rows))

    def _gradient(self, model: models.Model, weights: list[tuple[np.ndarray, ...]]) -> None:
        for batch, pulled in zip(self.batches, weights, strict=True):
            model.gradient(batch, pulled)

    @staticmethod
    def _weights(model: models.Model, keys: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(keys)
        sizes = (keys, 1)
        return tuple(
            rng.normal(0, 0.01, (size, table.dim)).astype(np.float32)
            for size, table in zip(sizes, model.tables, strict=True)
        )


class TableBatches:
    """A table with many rows, and batches of keys that all have one.

    Parameters
    ----------
    kind
    rows
        Of the table.
    batch
        Distinct keys of a batch.
    grouped
        Have the keys of a batch in the order of their partitions, as messages have them.
    """

    def __init__(self, kind: str, rows: int, batch: int, grouped: bool):
        self.kind, self.rows, self.grouped = kind, rows, grouped
        self.model = model_of(kind)
        self.table = Table(self.model.tables[0], seed=1)
        rng = np.random.default_rng(rows)
        dim = self.table.spec.dim
        self._gradient = rng.normal(0, 0.1, (batch, dim)).astype(np.float32)
        self._counts = np.ones(batch, np.int32)
        self._rng = rng
        for first in range(0, rows, batch):
            self._push(key_of(np.arange(first, min(first + batch, rows))))
        self.batch = min(batch, rows)

    @property
    def lines(self) -> int:
        """Lines that key, weights and state of a row fill at least."""
        return -(-(KEY_BYTES + FLOAT_BYTES * self.table.spec.width) // LINE)

    def cases(self) -> dict[str, Callable[[], Timing]]:
        return {"pull": partial(self._time, self._pull), "push": partial(self._time, self._push)}

    def figures(self, timings: dict[str, list[Timing]], limits: dict[str, float]) -> list[dict]:
        """Pull and push, with their share of the limit: of reading lines, and of changing them."""
        found = []
        for what, limit in (("pull", limits["read"]), ("push", limits["change"])):
            rates = measure.rates("keys", BATCHES * self.batch, timings[what])
            allowed = limit / self.lines
            found.append(
                {
                    "what": what,
                    "model": self.kind,
                    "rows": self.table.used,
                    "bytes_per_row": self.table.size_bytes / self.table.used,
                    "lines": self.lines,
                    **rates,
                    "limit_per_cpu_s": allowed,
                    "of_limit": rates["keys_per_cpu_s"] / allowed,
                    "goal": GOALS[what, self.kind],
                }
            )
        return found

    def _time(self, work: Callable[[np.ndarray], object]) -> Timing:
        batches = [self._keys() for _ in range(BATCHES)]
        return measure.timed(lambda: [work(keys) for keys in batches])

    def _keys(self) -> np.ndarray:
        """Distinct keys, other ones each time."""
        keys = key_of(self._rng.choice(self.rows, self.batch, replace=False))
        if not self.grouped:
            return keys
        partition = np.empty(len(keys), np.int32)
        key_kernels.partition_of(keys, self.model.partition_bits, partition)
        return keys[np.argsort(partition, kind="stable")]

    def _pull(self, keys: np.ndarray) -> None:
        self.table.weights(keys, absent_initial=True)

    def _push(self, keys: np.ndarray) -> None:
        self.table.step(keys, self._gradient[: len(keys)], self._counts[: len(keys)], len(keys))


def key_of(numbers: np.ndarray) -> np.ndarray:
    """Distinct keys that look random, one for each number."""
    keys = np.empty(len(numbers), np.uint64)
    key_kernels.mix_all(np.uint64(7), numbers.astype(np.uint64), keys)
    return keys


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measure.parser(__doc__)
    parser.add_argument("--batch-rows", type=int, default=4096, help="of the worker (%(default)s)")
    parser.add_argument("--bits", type=int, default=64, help="log of its key space (%(default)s)")
    parser.add_argument("--table-rows", type=measure.numbers, default=[1_000_000], metavar="N,…")
    parser.add_argument("--table-batch", type=int, default=65_536, help="keys (%(default)s)")
    parser.add_argument("--models", type=measure.words, default=list(KINDS))
    parser.add_argument("--grouped", action="store_true", help="keys in the order of partitions")
    parser.add_argument("--lines", type=measure.numbers, default=[1_000_000], metavar="N")
    parser.add_argument("--distances", type=measure.numbers, default=[8, 16, 32, 64])
    options = parser.parse_args(arguments)
    batches = WorkerBatches(options.batch_rows, options.bits)
    worker = batches.figures(measure.in_turn(batches.cases(), options.repeat))
    show_worker(worker, options.batch_rows, batches.unique_share)
    lines, tables = [], []
    for rows in options.table_rows:
        for kind in options.models:
            table = TableBatches(kind, rows, options.table_batch, options.grouped)
            memory = Lines(table.table.size_bytes, True, options.lines[0], options.distances)
            timings = measure.in_turn(memory.cases() | table.cases(), options.repeat)
            found = memory.figures(timings)
            lines += found
            tables += table.figures(timings, line_rates(found))
            del table, memory  # before the next ones take as much again
    show_lines(lines)
    show_tables(tables)
    measure.finish(
        "kernels",
        options,
        unique_share=batches.unique_share,
        worker=worker,
        lines=lines,
        tables=tables,
    )
    return 0


def show_worker(found: Sequence[dict], rows: int, unique_share: float) -> None:
    measure.show(
        f"A batch of {rows:,} rows of 39 values, {unique_share:.2f} of them distinct, one thread",
        found,
        what="",
        model="",
        rows_per_cpu_s=",.0f",
        rows_per_s=",.0f",
        spread=".0%",
        goal=",.0f",
        of_goal=".2f",
    )


def show_tables(found: Sequence[dict]) -> None:
    measure.show(
        "The table, at random rows; limit: random lines over lines of a row",
        found,
        what="",
        model="",
        rows=",d",
        bytes_per_row=".1f",
        lines="d",
        keys_per_cpu_s=",.0f",
        keys_per_s=",.0f",
        spread=".0%",
        limit_per_cpu_s=",.0f",
        of_limit=".2f",
        goal=".2f",
    )


if __name__ == "__main__":
    sys.exit(main())
