"""A pass as the scheduler sees it: how far servers are, and which worker computes which lane.

What is known of progress is what servers report, and only ever rises within a pass. Each worker
holds lanes for as long as it lives; but in async mode lanes are short, and a worker gets another as
soon as it says that it is done with one.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ctrps.ps.late import COUNTED
from ctrps.ps.leases import QueueLeases, TrainingLeases
from ctrps.ps.messages import Status
from ctrps.ps.plan import Plan, PlanSettings
from ctrps.ps.progress import Figures
from ctrps.ps.sight import FilesSeen

CHUNKS_AT_ONCE = 3
"""Lanes that a worker holds in async mode: it computes one, reads the next, and waits for more."""


class Training:
    """Progress and leases of the present pass.

    Parameters
    ----------
    seen
        Who sees the training files.
    settings
        Of the plan.
    number
        The pass to begin with.

    Attributes
    ----------
    step : int
        Steps that all servers have applied, -1 before any report.
    rows : int
        Rows of this pass that all servers have.
    first_step, first_rows : int
        Where this process saw the pass begin.
    begun : tuple (step, rows)
        Where the job began it, by an earlier scheduler perhaps; empty before that.
    figures : Figures
        Progressive scores of this pass.
    late : dict
        Over all servers: ``staleness``, a list of pushes by staleness; and of ``late.COUNTED`` what
        the job asks for.
    """

    def __init__(self, seen: FilesSeen, settings: PlanSettings, number: int):
        self._seen = seen
        self._settings = settings
        self._dealt = TrainingLeases(settings.lanes)
        self._queue = QueueLeases(CHUNKS_AT_ONCE, lambda lane: seen.blind(self.plan.files_of(lane)))
        self.turn(number)

    def turn(self, number: int) -> None:
        """Another pass: nothing is known of it yet."""
        self.plan = Plan(self._seen.files, self._settings, number)
        self.first_step = self.first_rows = 0
        self.begun: tuple[int, int] | tuple[()] = ()
        self._opened = False
        self.back()

    def close(self) -> tuple[int, int]:
        """The pass is safe: steps and rows that the job has trained in it, once."""
        step, rows = self.begun or (self.plan.steps, self.plan.rows)
        self.begun = ()
        return self.plan.steps - step, self.plan.rows - rows

    def back(self) -> None:
        """The servers go back to where this pass stood before: how far that is, they will say."""
        self.step = -1
        self.figures = Figures.merged([])
        self.rows = 0
        self.late: dict[str, Any] = {"staleness": []}
        self._marks = np.full(len(self.plan.lengths), -1, np.int32)

    @property
    def leases(self) -> TrainingLeases | QueueLeases:
        return self._queue if self._settings.mode == "async" else self._dealt

    def open(self, workers: Iterable[int], reports: list[Status]) -> bool:
        """The lanes are open, from where the servers stand; True the first time in this pass."""
        self.learn(reports)
        first, self._opened = not self._opened, True
        if first:
            self.first_step, self.first_rows = max(self.step, 0), self.rows
            self.begun = self.begun or (self.first_step, self.first_rows)
        if self._settings.mode == "async":
            todo = np.flatnonzero(self._marks < self.plan.lengths - 1).tolist()
            self._queue.open(todo, workers)
        else:
            self._dealt.open(self._seen.all_seen_by(workers))
        return first

    def deal(self, workers: Iterable[int]) -> None:
        """The workers, or what they see, have changed.

        A lane goes through all files but in async mode, and is for those who see all.
        """
        all_lanes = self._settings.mode != "async"
        self.leases.deal(self._seen.all_seen_by(workers) if all_lanes else workers)

    def learn(self, reports: list[Status]) -> bool:
        """Take in what all servers report of this pass; True if they have got on."""
        self.figures = Figures.merged(_figures(status) for status in reports)
        self.rows = int(min(status.counters.get("rows", 0) for status in reports))
        self.late = _late(reports)
        step = min(status.step for status in reports)
        if step <= self.step:
            return False
        self.step = step
        if self._settings.mode == "sync":
            self._dealt.settle()
        else:
            self._learn_marks(reports)
        return True

    def _learn_marks(self, reports: list[Status]) -> None:
        known = [s.results[2] for s in reports if len(s.results) == 3]
        if len(known) < len(reports) or any(m.shape != self._marks.shape for m in known):
            return
        marks = np.maximum(self._marks, np.minimum.reduce(known))
        finished = (marks == self.plan.lengths - 1) & (self._marks < marks)
        self._marks = marks
        if self._settings.mode == "async":
            for lane in np.flatnonzero(finished):
                self._queue.finish(int(lane))
        else:
            self._dealt.settle()

    def claim(self, worker: int, lanes: list[int]) -> bool:
        """async: a worker says that it is done with lanes; True if it gets others."""
        held = [lane for lane in lanes if lane in self._queue.held_by(worker)]
        for lane in held:
            self._queue.claim(worker, lane)
        return bool(held)

    def leases_of(self, worker: int) -> list[tuple[int, int]]:
        """The lanes that a worker shall compute, each with the batch to begin with."""
        return [
            (lane, self.to_come(lane))
            for lane in self.leases.held_by(worker)
            if self.to_come(lane) < self.plan.lengths[lane]
        ]

    def to_come(self, lane: int) -> int:
        """The next batch of a lane, as far as servers have said."""
        if self._settings.mode == "sync":
            return max(self.step, 0)
        return int(self._marks[lane]) + 1

    def held_up_by(self, worker: int, reports: list[Status]) -> list[tuple[int, int]]:
        """Lanes of a worker that servers wait for, each with the batch that is to come next."""
        waited = set(self._waited_for(reports))
        sync = self._settings.mode == "sync"
        return [(g, b) for g, b in self.leases_of(worker) if g in waited or not sync]

    def place(self, lane: int, batch: int) -> str:
        """In words: where the rows of a batch lie."""
        ref = self.plan.batch(lane, batch)
        rows = self.plan.row_numbers(ref)
        span = f"rows {rows.min()} to {rows.max()}"
        name = f"pass {self.plan.number} lane {lane} batch {batch}"
        return f"{self._seen.files[ref.file].path}: block {ref.block}, {span} of it ({name})"

    def steal(self, reports: list[Status], workers: list[int]) -> list[int]:
        """Give what the job waits for to other workers too; returns those lanes."""
        if self._settings.mode == "async":
            return sorted(self._queue.unfinished)[:8] if self._queue.share() else []
        lanes = self._waited_for(reports)
        return lanes if self._dealt.steal(lanes, self._seen.all_seen_by(workers)) else []

    def _waited_for(self, reports: list[Status]) -> list[int]:
        return sorted(
            {
                g
                for s in reports
                if s.step == self.step
                for g in s.missing
                if 0 <= g < len(self._marks)
            }
        )

    def waits_for(self, reports: list[Status]) -> tuple[list[int], set[int]]:
        """Lanes that the job waits for, and the workers that hold them."""
        lanes = self._waited_for(reports)
        return lanes[:8], {h for lane in lanes for h in self.leases.holders(lane)}

    def nobody_sees(self, workers: list[int]) -> str:
        """In words: the files for which none of the workers can go on; empty if one can."""
        if self._settings.mode == "async":
            return self._seen.nobody_sees(workers, self.plan, self._queue.unfinished)
        if self.complete or not workers or self._seen.all_seen_by(workers):
            return ""
        lanes = range(len(self.plan.lengths))
        return self._seen.nobody_sees(workers, self.plan, lanes) or (
            f"no worker sees all training files, one lacks {self._seen.unseen(workers[0])[0]}; "
            "start one that does, or train with train.consistency=async"
        )

    @property
    def complete(self) -> bool:
        """All servers have the whole pass."""
        return self.step == self.plan.steps


def _figures(status: Status) -> Figures:
    empty = Figures.merged([])
    if not status.results or status.results[0].shape != empty.histogram.shape:
        return empty
    return Figures(float(status.counters.get("loss_sum", 0.0)), status.results[0])


def _late(reports: list[Status]) -> dict[str, Any]:
    counted = [s.results[1] for s in reports if len(s.results) > 1]
    late: dict[str, Any] = {"staleness": []}
    if counted and all(c.shape == counted[0].shape for c in counted):
        late["staleness"] = np.trim_zeros(sum(counted[1:], counted[0].copy()), "b").tolist()
    for name in COUNTED:
        if any(name in status.counters for status in reports):
            late[name] = int(sum(status.counters.get(name, 0) for status in reports))
    return late
