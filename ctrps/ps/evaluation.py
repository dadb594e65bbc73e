"""An evaluation as the scheduler sees it: which worker scores which rows, and the scores."""

from collections.abc import Iterable

from ctrps.ps.leases import QueueLeases
from ctrps.ps.messages import Arrays, Status
from ctrps.ps.plan import EvaluationPlan
from ctrps.ps.sight import FilesSeen

LANES_AT_ONCE = 3
"""Lanes that one worker holds, so that it never waits for the next."""


class Evaluation:
    """Scores of the test rows, collected in lane order.

    Parameters
    ----------
    seen
        Who sees the test files.
    """

    def __init__(self, seen: FilesSeen):
        self.plan = EvaluationPlan(seen.files)
        self.leases = QueueLeases(LANES_AT_ONCE, lambda lane: seen.blind(self.plan.files_of(lane)))
        self._seen = seen
        self._scores: dict[int, Arrays] = {}

    def open(self, workers: Iterable[int]) -> None:
        """Begin from nothing."""
        self._scores.clear()
        self.leases.open(range(self.plan.lanes), workers)

    def nobody_sees(self, workers: Iterable[int]) -> str:
        """In words: what is left to score and none of the workers sees; empty if nothing is."""
        return self._seen.nobody_sees(workers, self.plan, self.leases.unfinished)

    def take(self, status: Status) -> None:
        """Keep the first result of each lane that a worker has finished."""
        if len(status.results) != 2 * len(status.lanes):
            return
        for lane, scores, labels in zip(
            status.lanes, status.results[::2], status.results[1::2], strict=True
        ):
            if 0 <= lane < self.plan.lanes and (
                scores.shape == labels.shape == (self.plan.batch(lane).rows,)
            ):
                self._scores.setdefault(lane, (scores, labels))
                self.leases.finish(lane)

    @property
    def done(self) -> int:
        return len(self._scores)

    @property
    def complete(self) -> bool:
        return self.done == self.plan.lanes

    def results(self) -> tuple[Arrays, Arrays]:
        """Scores and labels in lane order, which is row order."""
        ordered = [self._scores[lane] for lane in range(self.plan.lanes)]
        return tuple(scores for scores, _ in ordered), tuple(labels for _, labels in ordered)
