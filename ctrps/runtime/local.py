"""``ctrps train``: the whole of training in one process, and the oracle of the cluster.

The same plan, the same kernels and the same order of additions as the parameter server, without
messages. Threads compute the lanes of a step; the result does not depend on their number.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from ctrps import checkpoint, models
from ctrps.config import JobConfig
from ctrps.errors import Stopped
from ctrps.kernels import losses, metrics
from ctrps.models import Gradient
from ctrps.ps.partition import Contribution, PartitionSet, contribute
from ctrps.ps.plan import EvaluationPlan, Plan
from ctrps.runtime import nonfinite, saving
from ctrps.runtime.inputs import BatchReader, Inputs, open_inputs, plan_settings
from ctrps.runtime.rundir import RunFolder, plan_digest
from ctrps.runtime.warm import warm

Say = Callable[[dict[str, Any]], None]


class LocalTraining:
    """One run of ``ctrps train``.

    Parameters
    ----------
    job
    folder
        Held by this run.
    inputs
    say
        Called with the figures of ``metrics.jsonl``, at the first step and then every second.
    """

    def __init__(self, job: JobConfig, folder: RunFolder, inputs: Inputs, say: Say):
        self.job = job
        self.folder = folder
        self.inputs = inputs
        self.say = say
        self.model = models.build(job)
        self.partitions = PartitionSet(self.model)
        self.settings = plan_settings(job)
        self.plan = Plan(inputs.manifest.train, self.settings, 0)
        self.manifest: checkpoint.Manifest | None = folder.resume
        self.train_s = 0.0
        self.rows = 0
        self.steps = 0
        self._checkpoint = 0
        self._said = 0.0
        self._readers = threading.local()

    def run(self) -> dict[str, Any]:
        """Train all passes, save after each, evaluate; returns the summary's figures."""
        began = time.monotonic()
        warm_digest = warm(self.job)
        first, step = self._restore()
        with _stop_flag() as asked, ThreadPoolExecutor(self.job.train.threads) as threads:
            for number in range(first, self.job.train.passes):
                self._pass(number, step, threads, asked)
                step = 0
            test = self._evaluate(threads)
        assert self.manifest is not None
        return {
            "rows": self.rows,
            "passes": self.job.train.passes,
            "steps": self.steps,
            "wall_s": time.monotonic() - began,
            "train_s": self.train_s,
            "rows_per_s": self.rows / self.train_s if self.train_s else 0.0,
            "test": test,
            "model": str(self.folder.model),
            "model_digest": self.manifest.model_digest,
            "keys": self.partitions.tables[0].used,
            "servers": 0,
            "workers": 0,
            "threads": self.job.train.threads,
            "consistency": self.job.train.consistency,
            "kernels": warm_digest,
        }

    def _restore(self) -> tuple[int, int]:
        """Load the model to go on from; returns the pass and step to begin with."""
        if self.manifest is None:
            return 0, 0
        self._checkpoint, pass_, step = self.manifest.position(self.job.train.passes)
        self._checkpoint += 1
        numbers = range(self.model.partitions)
        self.partitions.turn(pass_)
        for number, state in saving.read_partitions(self.folder.model, numbers, pass_).items():
            self.partitions.load(state.tables)
            self.partitions.progress.load(number, state.progress)
        return pass_, step

    def _pass(
        self, number: int, step: int, threads: ThreadPoolExecutor, asked: threading.Event
    ) -> None:
        self.plan = Plan(self.inputs.manifest.train, self.settings, number)
        if number != self.partitions.pass_:
            self.partitions.turn(number)
        self.partitions.step = step
        self.partitions.rows_seen = self.plan.rows_before(step)
        if step == self.plan.steps:
            return
        began, before = time.monotonic(), self.partitions.rows_seen
        while self.partitions.step < self.plan.steps and not asked.is_set():
            self._step(threads)
            self._progress(time.monotonic() - began, before)
        self.train_s += time.monotonic() - began
        self.rows += self.partitions.rows_seen - before
        self._save()
        if asked.is_set():
            raise Stopped(
                f"interrupted at step {self.partitions.step} of {self.plan.steps}, model saved",
                exit_status=75,
                hint="run the same command again to go on",
            )

    def _step(self, threads: ThreadPoolExecutor) -> None:
        step = self.partitions.step
        lanes = self.plan.active(step)
        if self.job.train.threads == 1:
            parts = [self._lane(lane, step) for lane in lanes]
        else:
            parts = list(threads.map(lambda lane: self._lane(lane, step), lanes))
        self.partitions.apply(dict(zip(lanes, parts, strict=True)))
        self.steps += 1

    def _lane(self, lane: int, step: int) -> Contribution:
        reader, ref = self._reader(), self.plan.batch(lane, step)
        batch = reader.minibatch(self.plan.number, ref)
        weights = self.partitions.pull(tuple(s.keys for s in self.model.key_sets(batch)))
        part = contribute(self.model, batch, weights)
        result = Gradient(part.gradients, part.loss_sum, part.scores.margins)
        if not nonfinite.finite(result):
            name = (self.plan.number, lane, step)
            raise nonfinite.stop(self.job, reader, name, ref, batch, weights, result)
        return part

    def _reader(self) -> BatchReader:
        if not hasattr(self._readers, "train"):
            files, bits = self.inputs.manifest.train, self.model.partition_bits
            self._readers.train = BatchReader(files, self.settings, bits)
        reader: BatchReader = self._readers.train
        return reader

    def _progress(self, spent_s: float, before: int) -> None:
        now = time.monotonic()
        if now - self._said < 1.0 and self.partitions.step < self.plan.steps:
            return
        self._said = now
        rows, report = self.partitions.rows_seen, self.partitions.progress.total().report()
        line = {
            "phase": "train",
            "pass": self.plan.number,
            "step": self.partitions.step,
            "steps": self.plan.steps,
            "rows": rows,
            "pass_rows": self.plan.rows,
            "logloss": report["logloss"],
            "auc": report["auc"],
            "scored_rows": report["rows"],
            "rows_per_s": (rows - before) / spent_s if spent_s else 0.0,
            "keys": self.partitions.keys_held,
        }
        self.folder.add_metrics(line)
        self.say(line)

    def _save(self) -> None:
        snapshot = dict(enumerate(self.partitions.snapshot()))
        files = saving.write_partitions(
            self.folder.model, self.model, snapshot, self._checkpoint, view=0, node=0
        )
        pass_, step = self.partitions.pass_, self.partitions.step
        self.manifest = saving.commit(
            self.folder,
            self.model,
            self.inputs.schema,
            plan_digest(self.job, self.inputs),
            files,
            (self._checkpoint, pass_, step),
            border=step == self.plan.steps,
        )
        self._checkpoint += 1

    def _evaluate(self, threads: ThreadPoolExecutor) -> dict[str, object] | None:
        plan = EvaluationPlan(self.inputs.manifest.test)
        if plan.lanes == 0:
            return None
        reader = BatchReader(self.inputs.manifest.test, None, self.model.partition_bits)
        margins, labels = [], []
        for lane in range(plan.lanes):
            batch = reader.minibatch(0, plan.batch(lane))
            weights = self.partitions.peek(tuple(s.keys for s in self.model.key_sets(batch)))
            margins.append(self.model.margins(batch, weights))
            labels.append(batch.labels)
        return test_report(margins, labels)


def test_report(margins: list[np.ndarray], labels: list[np.ndarray]) -> dict[str, object]:
    """The figures of a scored test set, whatever it was scored by."""
    joined = np.concatenate(margins)
    probabilities = np.empty(len(joined), np.float64)
    losses.sigmoid_rows(joined, probabilities)
    return metrics.report(probabilities, np.concatenate(labels))


def badness(report: dict[str, object], metric: str) -> float | None:
    """The figure of a report that early stopping makes small; None where it has no value."""
    value = report[metric]
    if not isinstance(value, float):
        return None
    return value if metric == "logloss" else -value


@contextmanager
def _stop_flag() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets; a second signal acts as if there were no handler."""
    asked = threading.Event()
    names = (signal.SIGINT, signal.SIGTERM)
    before = {name: signal.getsignal(name) for name in names}

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        for name, handler in before.items():
            signal.signal(name, handler)

    for name in names:
        signal.signal(name, ask)
    try:
        yield asked
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def train(job: JobConfig, overwrite: bool, say: Say) -> dict[str, Any]:
    """Run ``ctrps train`` and return its summary."""
    began = time.monotonic()
    folder = RunFolder(job, overwrite)
    try:
        inputs = open_inputs(job)
        folder.check_plan(inputs)
        summary = LocalTraining(job, folder, inputs, say).run()
        summary |= {"wall_s": time.monotonic() - began, "convert_s": inputs.convert_s}
        folder.write_summary(summary)
        return summary
    finally:
        folder.close()
