"""A pass in sync mode: the lanes of a step on the threads of one process, steps one by one."""

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from ctrps.config import JobConfig
from ctrps.models import Gradient
from ctrps.ps.partition import Contribution, PartitionSet, contribute
from ctrps.ps.plan import Plan
from ctrps.runtime import nonfinite
from ctrps.runtime.inputs import BatchReader, Inputs, plan_settings


class Position(NamedTuple):
    """How far a pass is: optimiser steps and rows done, and how many it has."""

    step: int
    steps: int
    rows: int
    pass_rows: int


class Lanes:
    """Walks a pass as the parameter server does; the result does not depend on the threads.

    One process has nothing to wait for, so ssp and semi are the same walk.

    Parameters
    ----------
    job
    inputs
    partitions
        Trained in place, at the version to go on from.
    """

    def __init__(self, job: JobConfig, inputs: Inputs, partitions: PartitionSet):
        self.job = job
        self.partitions = partitions
        self._files = inputs.manifest.train
        self._settings = replace(plan_settings(job), mode="sync")
        self._readers = threading.local()

    def walk(
        self, number: int, step: int, asked: threading.Event
    ) -> Generator[Position, None, None]:
        """Train pass ``number`` from ``step`` on, to its end or until ``asked`` is set.

        Yields
        ------
        Position
            Of the beginning, and after each step.
        """
        plan = Plan(self._files, self._settings, number)
        partitions = self.partitions
        partitions.step, partitions.rows_seen = step, plan.rows_before(step)
        yield Position(step, plan.steps, partitions.rows_seen, plan.rows)
        with ThreadPoolExecutor(self.job.train.threads) as threads:
            while partitions.step < plan.steps and not asked.is_set():
                self._step(plan, threads)
                yield Position(partitions.step, plan.steps, partitions.rows_seen, plan.rows)

    def _step(self, plan: Plan, threads: ThreadPoolExecutor) -> None:
        step = self.partitions.step
        lanes = plan.active(step)

        def compute(first: int) -> dict[int, Contribution]:
            share = lanes[first :: self.job.train.threads]
            return {lane: self._lane(plan, lane, step) for lane in share}

        # This thread takes a share, too: handing over and back costs as much as a short lane.
        others = [threads.submit(compute, first) for first in range(1, self.job.train.threads)]
        parts = compute(0)
        for other in others:
            parts |= other.result()
        self.partitions.apply(parts)

    def _lane(self, plan: Plan, lane: int, step: int) -> Contribution:
        reader, ref = self._reader(), plan.batch(lane, step)
        batch = reader.minibatch(plan.number, ref)
        weights = self.partitions.pull(tuple(s.keys for s in self.partitions.model.key_sets(batch)))
        part = contribute(self.partitions.model, batch, weights)
        result = Gradient(part.gradients, part.loss_sum, part.scores.margins)
        if not nonfinite.finite(result):
            name = (plan.number, lane, step)
            raise nonfinite.stop(self.job, reader, name, ref, batch, weights, result)
        return part

    def _reader(self) -> BatchReader:
        if not hasattr(self._readers, "train"):
            bits = self.partitions.model.partition_bits
            self._readers.train = BatchReader(self._files, self._settings, bits)
        reader: BatchReader = self._readers.train
        return reader
