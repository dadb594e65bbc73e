"""``ctrps train``: the whole of training in one process.

Here is what surrounds a pass: restoring, figures, saving, evaluation, interruption. A pass itself
is in ``lanes`` (sync mode's arithmetic, the oracle of the cluster) and ``fused`` (row at a time).
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from types import FrameType
from typing import Any

import numpy as np

from ctrps import checkpoint, models
from ctrps.config import JobConfig
from ctrps.data.convert import Progress
from ctrps.errors import Stopped
from ctrps.kernels import losses, metrics
from ctrps.ps.job import EarlyStop
from ctrps.ps.partition import PartitionSet
from ctrps.ps.plan import EvaluationPlan
from ctrps.runtime import saving
from ctrps.runtime.fused import Fused, check_alone
from ctrps.runtime.inputs import BatchReader, Inputs, open_inputs
from ctrps.runtime.lanes import Lanes, Position
from ctrps.runtime.meter import cost
from ctrps.runtime.rundir import RunFolder, plan_digest
from ctrps.runtime.warm import warm
from ctrps.runtime.watch import Watch
from ctrps.runtime.web import Opened, check_http

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
        self._passes = (Fused if job.train.fused else Lanes)(job, inputs, self.partitions)
        self.manifest: checkpoint.Manifest | None = folder.resume
        self.train_s = 0.0
        self.rows = 0
        self.steps = 0
        self.test: dict[str, object] | None = None
        self._early_stop = EarlyStop(job.train.patience)
        self._best_test = saving.resume_early_stop(folder, self._early_stop, badness)
        self._checkpoint = 0
        self._said = 0.0
        self._saved = 0.0
        self.watch = Watch(job, folder.path, "process", inputs.rejected)
        self.cpu_s = 0.0

    def run(self) -> dict[str, Any]:
        """Train all passes, save after each, evaluate; returns the summary's figures."""
        began = time.monotonic()
        with self.watch.doing("compiling"):
            warm_digest = warm(self.job, cluster=False)
        with self.watch.doing("loading"):
            first, step = self._restore()
        self.partitions.expect(self.inputs.manifest.keys, self.model.partitions)
        with _stop_flag() as asked:
            for number in range(first, self.job.train.passes):
                if self._early_stop.over:
                    break
                self._pass(number, step, asked)
                step = 0
                self._judge(last=number + 1 == self.job.train.passes)
        if self.job.train.patience:
            self.manifest = saving.restore_best(self.folder)
            self.test = self._best_test or self.test
        assert self.manifest is not None
        return {
            "rows": self.rows,
            "passes": self.partitions.pass_ + 1,
            "stopped_early": self._early_stop.over,
            "steps": self.steps,
            "wall_s": time.monotonic() - began,
            "train_s": self.train_s,
            "rows_per_s": self.rows / self.train_s if self.train_s else 0.0,
            **cost(self.cpu_s, self.rows),
            **self.watch.account(),
            "test": self.test,
            "model": str(self.folder.model),
            "model_digest": self.manifest.model_digest,
            "keys": self.partitions.keys_held,
            "servers": 0,
            "workers": 0,
            "threads": self.job.train.threads,
            "consistency": self.job.train.consistency,
            "fused": self.job.train.fused,
            "kernels": warm_digest,
        }

    def _restore(self) -> tuple[int, int]:
        """Load the model to go on from; returns the pass and step to begin with."""
        if self.manifest is None:
            return 0, 0
        stay = self._early_stop.over or saving.owes_figures(self.folder)
        passes = self.manifest.pass_ + 1 if stay else self.job.train.passes
        self._checkpoint, pass_, step = self.manifest.position(passes)
        self._checkpoint += 1
        numbers = range(self.model.partitions)
        self.partitions.turn(pass_)
        for number, state in saving.read_partitions(self.folder.model, numbers, pass_).items():
            self.partitions.load(state.tables)
            self.partitions.progress.load(number, state.progress)
        return pass_, step

    def _pass(self, number: int, step: int, asked: threading.Event) -> None:
        if number != self.partitions.pass_:
            self.partitions.turn(number)
        with closing(self._passes.walk(number, step, asked)) as positions:
            start = here = next(positions)
            if start.step == start.steps:
                return
            began = self._saved = time.monotonic()
            cpu_s = time.process_time()
            with self.watch.doing("training"):
                for here in positions:
                    self._progress(start, here, time.monotonic() - began)
                    self._save_in_time(here)
            self.train_s += time.monotonic() - began
            self.cpu_s += time.process_time() - cpu_s
        self.rows += here.rows - start.rows
        self.steps += here.step - start.step
        self._save(here)
        if asked.is_set():
            raise Stopped(
                f"interrupted at step {here.step} of {here.steps}, model saved",
                exit_status=75,
                hint="run the same command again to go on",
            )

    def _progress(self, start: Position, here: Position, spent_s: float) -> None:
        now = time.monotonic()
        if now - self._said < 1.0 and here.step < here.steps:
            return
        self._said = now
        report = self.partitions.progress.total().report()
        line = {
            "phase": "train",
            "pass": self.partitions.pass_,
            "step": here.step,
            "steps": here.steps,
            "rows": here.rows,
            "pass_rows": here.pass_rows,
            "logloss": report["logloss"],
            "auc": report["auc"],
            "scored_rows": report["rows"],
            "rows_per_s": (here.rows - start.rows) / spent_s if spent_s else 0.0,
            "keys": self.partitions.keys_held,
        }
        self.folder.add_metrics(line)
        self.watch.figures(line)
        self.say(line)

    def _save_in_time(self, here: Position) -> None:
        """Inside a pass, a checkpoint every so many seconds."""
        every_s = self.job.train.checkpoint_s
        inside = isinstance(self._passes, Lanes) and here.step < here.steps
        if inside and every_s and time.monotonic() - self._saved >= every_s:
            self._save(here)
            self._saved = time.monotonic()

    def _judge(self, last: bool) -> None:
        """Score the test rows, if they are to be scored after this pass."""
        train = self.job.train
        if not (last or train.evaluate == "pass" or train.patience):
            return
        with self.watch.doing("evaluating"):
            self.test = self._evaluate()
        if self.test is None:
            return
        self.watch.scored(self.test)
        self.folder.add_metrics(
            {"phase": "evaluate", "pass": self.partitions.pass_, "test": self.test}
        )
        if self._early_stop.better(badness(self.test, train.early_metric)):
            checkpoint.keep_best(self.folder.model)
            self._best_test = self.test

    def _save(self, here: Position) -> None:
        with self.watch.doing("saving"):
            self._write(here)

    def _write(self, here: Position) -> None:
        snapshot = dict(enumerate(self.partitions.snapshot()))
        files = saving.write_partitions(
            self.folder.model, self.model, snapshot, self._checkpoint, view=0, node=0
        )
        self.manifest = saving.commit(
            self.folder,
            self.model,
            self.inputs.schema,
            plan_digest(self.job, self.inputs),
            files,
            (self._checkpoint, self.partitions.pass_, here.step),
            border=here.step == here.steps,
        )
        self._checkpoint += 1

    def _evaluate(self) -> dict[str, object] | None:
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


def train(
    job: JobConfig,
    overwrite: bool,
    say: Say,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run ``ctrps train`` and return its summary.

    ``tell`` takes the line that says where the run's page is; without it there is none.

    In one process nothing keeps async apart from training row at a time, which is faster.
    """
    began = time.monotonic()
    if job.train.consistency == "async":
        job = job.model_copy(update={"train": job.train.model_copy(update={"fused": True})})
    if tell:
        check_http(job)
    check_alone(job)
    folder = RunFolder(job, overwrite)
    job = folder.job
    try:
        inputs = open_inputs(job, progress)
        folder.begin(inputs)
        training = LocalTraining(job, folder, inputs, say)
        with Opened(training.watch, tell) if tell else nullcontext():
            summary = training.run()
        summary |= {"wall_s": time.monotonic() - began, **inputs.account()}
        folder.write_summary(summary)
        return summary
    finally:
        folder.close()
