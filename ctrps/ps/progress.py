"""Progressive validation: how good scores were before their rows were trained on.

Each batch is counted once, at the owner of one partition (its lane decides which), with that
partition's marks: so the figures are exact in what they count through every fault, and are saved,
moved and restored with the rows.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ctrps.kernels import losses, metrics

BINS = 4096
"""Of the histogram of probabilities; ``metrics.histogram_auc`` states what that costs in AUC."""


class Scores(NamedTuple):
    """What a batch was scored before its gradient: margins and labels, float32[rows]."""

    margins: np.ndarray
    labels: np.ndarray


NO_SCORES = Scores(np.zeros(0, np.float32), np.zeros(0, np.float32))


NO_PROGRESS = [np.zeros(1, np.float64), np.zeros((0, 2), np.int64)]
"""What ``Progress.save`` gives for a partition that has counted nothing."""


class Progress:
    """Sums over the batches counted in one pass, kept by partition.

    Parameters
    ----------
    partitions : int
    """

    def __init__(self, partitions: int):
        self.loss_sums = np.zeros(partitions, np.float64)
        self._histograms: dict[int, np.ndarray] = {}

    def add(self, partition: int, loss_sum: float, scores: Scores) -> None:
        """Count a batch."""
        self.loss_sums[partition] += loss_sum
        probabilities = np.empty(len(scores.margins), np.float32)
        losses.sigmoid_rows(scores.margins, probabilities)
        metrics.histogram_add(probabilities, scores.labels, self._histogram(partition))

    def _histogram(self, partition: int) -> np.ndarray:
        if partition not in self._histograms:
            self._histograms[partition] = np.zeros((BINS, 2), np.int64)
        return self._histograms[partition]

    def clear(self) -> None:
        """Begin another pass."""
        self.loss_sums[:] = 0
        self._histograms.clear()

    def save(self, partition: int) -> list[np.ndarray]:
        """The arrays of one partition: float64[1], and int64[bins, 2] or int64[0, 2]."""
        nothing = np.zeros((0, 2), np.int64)
        histogram = self._histograms.get(partition, nothing).copy()
        return [self.loss_sums[partition : partition + 1].copy(), histogram]

    def load(self, partition: int, saved: list[np.ndarray]) -> None:
        """Take over what ``save`` gave."""
        self.loss_sums[partition] = saved[0][0]
        if len(saved[1]):
            self._histograms[partition] = np.array(saved[1])

    def total(self) -> "Figures":
        """Over all partitions here."""
        histogram = np.zeros((BINS, 2), np.int64)
        for counted in self._histograms.values():
            histogram += counted
        return Figures(float(self.loss_sums.sum()), histogram)


class Figures(NamedTuple):
    """Merged sums: ``loss_sum`` in nats, ``histogram`` int64[bins, 2] of non-clicks and clicks."""

    loss_sum: float
    histogram: np.ndarray

    @classmethod
    def merged(cls, parts: "Iterable[Figures]") -> "Figures":
        """The sum of what several owners counted."""
        loss_sum, histogram = 0.0, np.zeros((BINS, 2), np.int64)
        for part in parts:
            loss_sum += part.loss_sum
            histogram += part.histogram
        return cls(loss_sum, histogram)

    def report(self) -> dict[str, float | int | None]:
        """rows, clicks, logloss, auc and the bound on its error; None where there is no value."""
        rows, clicks = int(self.histogram.sum()), int(self.histogram[:, 1].sum())
        if not rows:
            return {"rows": 0, "clicks": 0, "logloss": None, "auc": None, "auc_bound": None}
        defined = 0 < clicks < rows
        auc, bound = metrics.histogram_auc(self.histogram) if defined else (None, None)
        return {
            "rows": rows,
            "clicks": clicks,
            "logloss": self.loss_sum / rows,
            "auc": auc,
            "auc_bound": bound,
        }
