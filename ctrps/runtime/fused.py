"""A pass row at a time: the fastest way on one machine (``ctrps.kernels.fused``).

Threads take the chunks of the pass in the order of the plan and train on one table without locks
on its rows. This is another algorithm than sync mode, and with several threads its bits differ from
run to run.
"""

import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ctrps.config import JobConfig
from ctrps.data.shards import Block
from ctrps.errors import ConfigError, DataError
from ctrps.kernels import csr, optimizers, store
from ctrps.kernels import fused as kernels
from ctrps.kernels.optimizers import GROUP, Rule
from ctrps.models import INTERCEPT_KEY
from ctrps.ps.partition import PartitionSet
from ctrps.ps.plan import BatchRef, Plan
from ctrps.ps.progress import Scores
from ctrps.ps.table import Table
from ctrps.runtime.inputs import BatchReader, Inputs, plan_settings
from ctrps.runtime.lanes import Position


class SharedTable:
    """A table whose rows several threads train at once.

    Keys are found without a lock. New ones are inserted by one thread at a time, while others go on
    training: that changes no row that they know. When the table has to move its rows to have room,
    it waits until nobody trains.

    Parameters
    ----------
    table
    """

    def __init__(self, table: Table):
        self._table = table
        self._changed = threading.Condition()
        self._training = 0
        self._growing = 0

    @contextmanager
    def entries(self, keys: np.ndarray) -> Iterator[np.ndarray]:
        """Entries of distinct keys, made where they are absent.

        Yields
        ------
        int64[k]
            Addresses, to train on inside the context only.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._growing)
            self._training += 1
        try:
            yield self._made(keys)
        finally:
            with self._changed:
                self._training -= 1
                self._changed.notify_all()

    def _made(self, keys: np.ndarray) -> np.ndarray:
        entries, moves = self._table.find(keys), self._table.moves
        absent = np.flatnonzero(entries == 0)
        if len(absent):
            with self._changed:
                self._make_room(keys[absent])
                if self._table.moves != moves:
                    return self._table.insert(keys)
                entries[absent] = self._table.insert(keys[absent])
        return entries

    def _make_room(self, keys: np.ndarray) -> None:
        """Grow the table if it must, alone."""
        if self._table.room(keys):
            return
        self._training -= 1
        self._growing += 1
        try:
            self._changed.wait_for(lambda: self._table.room(keys) or not self._training)
            self._table.reserve(keys)
        finally:
            self._growing -= 1
            self._training += 1
            self._changed.notify_all()


class Trained(NamedTuple):
    """A chunk that is done: its loss sum in nats, and its scores from before."""

    loss_sum: float
    scores: Scores


class Fused:
    """Walks a pass row at a time. A step is a row.

    Parameters
    ----------
    job
    inputs
    partitions
        Trained in place.
    """

    def __init__(self, job: JobConfig, inputs: Inputs, partitions: PartitionSet):
        self.job = job
        self.partitions = partitions
        self._files = inputs.manifest.train
        self._mean = inputs.schema.weights == "mean"
        self._settings = replace(plan_settings(job), mode="async")
        self._table, self._intercept = map(SharedTable, partitions.tables)
        sparse, intercept = (table.spec for table in partitions.tables)
        w, v = map(_one_row, sparse.rules())
        self._rules = w, v, _one_row(intercept.rules()[0])
        self._readers = threading.local()

    def walk(
        self, number: int, step: int, asked: threading.Event
    ) -> Generator[Position, None, None]:
        """Train pass ``number`` from row ``step`` on, to its end or until ``asked`` is set.

        Yields
        ------
        Position
            Of the beginning, and after each chunk, in order: what is done is always the beginning
            of the plan.
        """
        plan = Plan(self._files, self._settings, number)
        self._compile(_chunk(plan, 0))
        here = Position(step, plan.rows, step, plan.rows)
        yield here
        for trained in self._train_all(plan, step, asked):
            self.partitions.progress.add(0, *trained)
            done = here.rows + len(trained.scores.labels)
            here = here._replace(step=done, rows=done)
            yield here

    def _train_all(self, plan: Plan, step: int, asked: threading.Event) -> Iterator[Trained]:
        """Have the threads train the chunks from row ``step`` on; what was done, in order."""
        threads = ThreadPoolExecutor(self.job.train.threads)
        running: deque[Future[Trained]] = deque()
        try:
            for chunk in _chunks(plan, step):
                if asked.is_set():
                    break
                running.append(threads.submit(self._chunk, plan, chunk))
                # One chunk for each thread, and one that it finds waiting.
                if len(running) == 2 * self.job.train.threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)

    def _compile(self, ref: BatchRef) -> None:
        """Have the kernels ready before time counts, by training on no row."""
        self._train(self._reader().block(ref), np.zeros(0, np.int64))

    def _chunk(self, plan: Plan, ref: BatchRef) -> Trained:
        reader = self._reader()
        order = plan.row_numbers(ref)
        trained = self._train(reader.block(ref), order)
        done = len(trained.scores.labels)
        if done < len(order):
            source, before = reader.source(ref)
            raise DataError(
                f"the margin of row {before + 1 + int(order[done])} is not finite",
                where=source,
                hint="look for huge values there, or lower the rate",
                id="E-NONFINITE",
            )
        return trained

    def _train(self, block: Block, order: np.ndarray) -> Trained:
        starts = np.empty(block.rows + 1, np.int64)
        csr.row_starts(block.counts, starts)
        used = used_keys(block, starts, order)
        keys = block.keys if used is None else block.keys[used]
        intercept = np.full(min(len(order), 1), INTERCEPT_KEY, np.uint64)
        margins = np.empty(len(order), np.float32)
        with (
            self._table.entries(keys) as entries,
            self._intercept.entries(intercept) as bias,
        ):
            tails = np.empty(len(entries), np.int64)
            if self._rules[1].width:
                store.tails(entries, tails)
            if used is not None:
                entries, tails = (
                    _spread(found, used, len(block.keys)) for found in (entries, tails)
                )
            rows = rows_of(block, starts, order, self._mean)
            window = self._window(block, starts)
            w, v, b = self._rules
            loss_sum, done = kernels.train_rows(
                rows, entries, tails, bias.sum(), w, v, b, window, margins
            )
        return Trained(loss_sum, Scores(margins[:done], block.labels[order[:done]]))

    def _window(self, block: Block, starts: np.ndarray) -> kernels.Window:
        longest = int(np.diff(starts).max(initial=0)) + block.dense.shape[1]
        shape = (kernels.AHEAD + 1, -(-longest // GROUP) * GROUP)
        return kernels.Window(
            np.full(len(block.keys), -1, np.int64),
            np.zeros(shape[0], np.int64),
            np.empty(shape, np.int64),
            np.empty(shape, np.int64),
            np.empty(shape, np.float32),
            np.empty(self._rules[1].width, np.float32),
            np.zeros(4, np.int64),
        )

    def _reader(self) -> BatchReader:
        if not hasattr(self._readers, "train"):
            bits = self.partitions.model.partition_bits
            self._readers.train = BatchReader(self._files, self._settings, bits)
        reader: BatchReader = self._readers.train
        return reader


def check_cluster(job: JobConfig) -> None:
    """Refuse a job that a cluster cannot run.

    Raises
    ------
    ConfigError
        With ``train.fused``, and with standbys in semi mode, whose steps depend on the moment.
    """
    if job.cluster.replicas and job.train.consistency == "semi":
        raise ConfigError(
            "cluster.replicas is for train.consistency sync, ssp and async, not semi",
            where=job.origins["cluster.replicas"],
            hint="leave one of them out",
        )
    if job.train.fused:
        raise ConfigError(
            "train.fused learns in one process, without servers and workers",
            where=job.origins["train.fused"],
            hint="use `ctrps train`, or leave train.fused out",
        )


def check_alone(job: JobConfig) -> None:
    """Refuse a job that cannot be learned row at a time.

    Raises
    ------
    ConfigError
        With a limit on gradients, in async too.
    """
    for name in ("clip_value", "clip_row", "clip_batch"):
        if job.train.fused and getattr(job.train, name):
            raise ConfigError(
                f"in {job.train.consistency} `ctrps train` learns row at a time, which knows no "
                f"clipping, and train.{name} is set",
                where=job.origins[f"train.{name}"],
                hint="use train.consistency=sync, or `ctrps launch`",
            )


def _chunk(plan: Plan, lane: int) -> BatchRef:
    """All rows of the only chunk of a lane of an async plan."""
    ref = plan.batch(lane, 0)
    return ref._replace(rows=ref.chunk_rows)


def _chunks(plan: Plan, step: int) -> Iterator[BatchRef]:
    """The chunks of a pass in order, without those that its first ``step`` rows are in."""
    done = 0
    for lane in range(len(plan.lengths)):
        chunk = _chunk(plan, lane)
        if done >= step:
            yield chunk
        done += chunk.rows


def _one_row(rule: Rule) -> Rule:
    """A rule for steps of one row: the count rule is a part of its scale."""
    if rule.kind == optimizers.COUNT:
        what = "row at a time there is no optimizer count"
        raise ConfigError(what, hint="use sync mode, or a cluster")
    return rule._replace(scale=rule.scale / (1 + rule.crowd), crowd=np.float32(0))


def _spread(found: np.ndarray, used: np.ndarray, count: int) -> np.ndarray:
    """What belongs to the keys ``used``, at their numbers among ``count``."""
    spread = np.empty(count, np.int64)
    spread[used] = found
    return spread


def rows_of(block: Block, starts: np.ndarray, order: np.ndarray, mean: bool) -> kernels.Rows:
    """The rows ``order`` of a block as the kernels take them."""
    values = np.zeros(0, np.float32) if block.values is None else block.values
    dense_at = len(block.keys) - block.dense.shape[1]
    return kernels.Rows(
        block.index,
        block.counts,
        starts,
        values,
        block.dense,
        dense_at,
        mean,
        block.labels,
        order,
    )


def used_keys(block: Block, starts: np.ndarray, order: np.ndarray) -> np.ndarray | None:
    """Numbers of the keys that the rows of a chunk hold, None for all of the block.

    Only these become rows of the table. ``order`` holds consecutive rows, in any order.
    """
    if len(order) == block.rows and not block.dense.shape[1]:
        return None
    used = np.zeros(len(block.keys), bool)
    if len(order):
        first, last = int(order.min()), int(order.max()) + 1
        used[block.index[starts[first] : starts[last]]] = True
        dense = (block.dense[first:last] != 0).any(axis=0)
        used[len(used) - len(dense) :] |= dense
    return np.flatnonzero(used)
