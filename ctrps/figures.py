"""Labels and scores in memory -> how good the scores are: figures, groups, slices, comparisons.

All figures are computed over all rows at once, from sums and counts. A figure that has no value is
None, and the reason stands beside it.

Not here: which rows and whose scores (``evaluation``), the formulas (``kernels.metrics``,
``kernels.curves``), and how figures are shown (``cli_predict``, ``evaluationpage``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from ctrps.data.kept import Factor
from ctrps.kernels import curves, metrics

BINS = 20
"""Of the calibration curve: with a click in twenty rows, 8,000 rows give each bin 20 clicks."""

APPROX_BINS = 1 << 20
"""Of ``approx``: 16 MiB, and probabilities as close as 1e-6 are told apart."""

Z = NormalDist().inv_cdf(0.975)
"""Standard errors on either side of an interval of 95 %."""

MOST_SLICES = 50
"""Values of a column that are slices of their own; rarer ones are one slice together."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Labelled rows with their scores.

    Attributes
    ----------
    probabilities : float64[rows]
    labels : float32[rows]
        0 or 1.
    columns : dict of Factor
        By name.
    others : float64[rows] or None
        Probabilities of the same rows by another model.
    facts : dict
        What else is known of how they were scored.
    """

    probabilities: np.ndarray
    labels: np.ndarray
    columns: dict[str, Factor] = field(default_factory=dict)
    others: np.ndarray | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked about scores besides the figures of all rows.

    Attributes
    ----------
    group
        Column by which rows are grouped for the grouped AUC.
    by
        Columns by whose values the rows are sliced.
    """

    group: str | None = None
    by: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are needed."""
        return tuple(dict.fromkeys([*([self.group] if self.group else []), *self.by]))


@dataclass(frozen=True, slots=True)
class Levels:
    """Scores by level, which is enough for all figures and curves of one set of scores.

    Attributes
    ----------
    values : float64[k], ascending
    counts : int64[k, 2]
        Non-clicks and clicks.
    loss_sum, square_sum, probability_sum : float
        Log losses, squared errors and probabilities, summed over the rows.
    mixed : bool[k] or None
        Whether a level is a bin of scores that differ; None: none is.
    """

    values: np.ndarray
    counts: np.ndarray
    loss_sum: float
    square_sum: float
    probability_sum: float
    mixed: np.ndarray | None = None

    @classmethod
    def of(cls, probabilities: np.ndarray, labels: np.ndarray) -> Levels:
        """All rows, exactly."""
        values, counts = curves.levels(probabilities, labels)
        return cls(values, counts, *_sums(probabilities, labels))


def _sums(probabilities: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    return (
        float(metrics.logloss_sum(probabilities, labels)),
        float(((probabilities - labels) ** 2).sum()),
        float(probabilities.sum()),
    )


class Tally:
    """Counts scores as they come, in memory that does not grow: a histogram, and exact sums."""

    def __init__(self) -> None:
        self.rows = 0
        self._hist = np.zeros((APPROX_BINS, 2), np.int64)
        self._low = np.full(APPROX_BINS, 2.0)
        self._high = np.full(APPROX_BINS, -1.0)
        self._sums = [0.0, 0.0, 0.0]

    def add(self, probabilities: np.ndarray, labels: np.ndarray) -> None:
        """Count rows: float64[rows], and float32[rows], NaN for rows not to count."""
        known = ~np.isnan(labels)
        probabilities, labels = probabilities[known], labels[known]
        curves.tally_add(probabilities, labels, self._hist, self._low, self._high)
        self.rows += len(labels)
        more = _sums(probabilities, labels)
        self._sums = [total + part for total, part in zip(self._sums, more, strict=True)]

    def levels(self) -> Levels:
        """Bins in which there are rows, each with the score amid those in it."""
        used = np.flatnonzero(self._hist.any(axis=1))
        low, high = self._low[used], self._high[used]
        loss, square, probability = self._sums
        middle = low + (high - low) / 2
        return Levels(middle, self._hist[used], loss, square, probability, low < high)


def figures(levels: Levels) -> dict[str, Any]:
    """The figures by which scores are judged.

    Returns
    -------
    dict
        rows, clicks, auc, auc_interval, average_precision, logloss, normalised_entropy, brier,
        calibration, calibration_error, calibration_curve; None where a figure has no value; then
        ``auc_undefined`` or ``interval_undefined`` says why.

    Examples
    --------
    >>> found = figures(Levels.of(np.array([0.1, 0.3, 0.2, 0.8]), np.float32([0, 0, 1, 1])))
    >>> found["auc"], round(found["brier"], 4), [round(end, 3) for end in found["auc_interval"]]
    (0.75, 0.195, [0.057, 1.0])
    """
    counts, rows = levels.counts, int(levels.counts.sum())
    clicks = int(counts[:, 1].sum())
    bins = curves.calibration_bins(levels.values, counts, BINS)
    auc, _ = metrics.histogram_auc(counts)
    variance = curves.auc_variance(counts)
    found: dict[str, Any] = {
        "rows": rows,
        "clicks": clicks,
        "auc": _defined(auc),
        "auc_interval": _interval(auc, variance, 0.0, 1.0),
        "average_precision": _defined(curves.average_precision(counts)) if rows else None,
        "logloss": _mean(levels.loss_sum, rows),
        "normalised_entropy": _defined(metrics.normalised_entropy(levels.loss_sum, clicks, rows)),
        "brier": _mean(levels.square_sum, rows),
        "calibration": _defined(metrics.calibration(levels.probability_sum, clicks)),
        "calibration_error": _defined(curves.calibration_error(bins)),
        "calibration_curve": [_bin(*one) for one in bins.tolist()],
    }
    if found["auc"] is None:
        found["auc_undefined"] = metrics.undefined_for(clicks, rows)
    elif found["auc_interval"] is None:
        kind = "click" if clicks == 1 else "non-click"
        found["interval_undefined"] = f"one {kind} only, which says nothing of how far they vary"
    return found


def approximated(levels: Levels) -> dict[str, Any]:
    """Figures of levels that are bins, with the bound of their AUC."""
    assert levels.mixed is not None
    found, counts = figures(levels), levels.counts[levels.mixed].astype(np.float64)
    others, clicks = found["rows"] - found["clicks"], found["clicks"]
    # Pairs of scores that differ, and lie in one bin, may count one half too much or too little.
    bound = (counts[:, 0] * counts[:, 1]).sum() / (2 * others * clicks) if others * clicks else None
    return found | {"auc_bound": None if bound is None else float(bound)}


def _bin(rows: float, clicks: float, predicted: float) -> dict[str, Any]:
    interval = list(curves.wilson(clicks, rows, Z))
    rate = clicks / rows
    return {
        "rows": int(rows),
        "clicks": int(clicks),
        "predicted": predicted,
        "observed": rate,
        "interval": interval,
    }


def _mean(total: float, rows: int) -> float | None:
    return total / rows if rows else None


def _defined(figure: float) -> float | None:
    return None if math.isnan(figure) else float(figure)


def _interval(
    middle: float, variance: float, least: float = -math.inf, most: float = math.inf
) -> list[float] | None:
    if math.isnan(variance) or math.isnan(middle):
        return None
    wide = Z * math.sqrt(max(variance, 0.0))
    return [max(middle - wide, least), min(middle + wide, most)]


@dataclass(frozen=True, slots=True)
class Judged:
    """Figures, and the levels that curves are drawn of; ``others`` of the scores compared with."""

    figures: dict[str, Any]
    levels: Levels
    others: Levels | None = None


def judge(scored: Scored, asked: Asked) -> Judged:
    """All figures of scored rows: see ``figures``, ``grouped``, ``slices`` and ``compared``."""
    levels = Levels.of(scored.probabilities, scored.labels)
    found, others = figures(levels), None
    if asked.group is not None:
        found |= grouped(scored, asked.group, found["auc"])
    if asked.by:
        found["slices"] = {name: slices(scored, name) for name in asked.by}
    if scored.others is not None:
        others = Levels.of(scored.others, scored.labels)
        found["compare"] = compared(scored, others, asked.group)
    return Judged(found | scored.facts, levels, others)


def grouped(scored: Scored, name: str, auc: float | None) -> dict[str, Any]:
    """The grouped AUC, and the interval of AUC where rows of one group depend on each other.

    Returns
    -------
    dict
        ``group``, the column; ``grouped_auc``, None if no group has both classes; ``groups`` in it
        and ``groups_skipped`` for having one class only; ``rows_without_group``, which have no
        value and belong to no group; ``auc_interval_grouped``.
    """
    of = scored.columns[name].numbers
    there = of >= 0
    figure, used, skipped = metrics.grouped_auc(
        of[there], scored.probabilities[there], scored.labels[there]
    )
    interval = None
    if auc is not None:
        variance = curves.clustered_variance(_clusters(of), scored.labels, _placed(scored))
        interval = _interval(auc, variance, 0.0, 1.0)
    return {
        "group": name,
        "grouped_auc": _defined(figure),
        "groups": int(used),
        "groups_skipped": int(skipped),
        "rows_without_group": int((~there).sum()),
        "auc_interval_grouped": interval,
    }


def _clusters(numbers: np.ndarray) -> np.ndarray:
    """Numbers of groups in which each row without one is a group of its own."""
    alone = numbers < 0
    first = int(numbers.max(initial=-1)) + 1
    return np.where(alone, first + np.cumsum(alone) - 1, numbers)


def _placed(scored: Scored, others: bool = False) -> np.ndarray:
    """Each row's placement among those of the other class, float64[rows]; both have rows."""
    scores = scored.others if others and scored.others is not None else scored.probabilities
    values, counts = curves.levels(scores, scored.labels)
    clicked = (scored.labels > 0).astype(np.int64)
    return curves.placements(counts)[np.searchsorted(values, scores), clicked]


def slices(scored: Scored, name: str) -> list[dict[str, Any]]:
    """Figures of the rows of each value of a column, in the order of values.

    Returns
    -------
    list of dict
        ``value`` (None: rows without one), and of ``figures`` all but the curve. The most frequent
        ``MOST_SLICES`` values have a slice each; the last slice, with ``values`` instead of
        ``value``, is of the rows of as many others.
    """
    column = scored.columns[name]
    of, names, rest = column.numbers, column.names, 0
    if column.values > MOST_SLICES:
        frequency = np.bincount(of[of >= 0], minlength=column.values)
        common = np.sort(np.argsort(-frequency, kind="stable")[:MOST_SLICES])
        rest = column.values - MOST_SLICES
        to = np.full(column.values + 1, MOST_SLICES, np.int64)
        to[common], to[-1] = np.arange(MOST_SLICES), -1
        of, names = to[of], [names[number] for number in common]
    order = np.argsort(of, kind="stable")
    borders = np.searchsorted(of[order], np.arange(-1, len(names) + (rest > 0) + 1))
    found = []
    for number, first, last in zip(
        range(-1, len(names) + (rest > 0)), borders[:-1], borders[1:], strict=True
    ):
        rows = order[first:last]
        if len(rows):
            part = figures(Levels.of(scored.probabilities[rows], scored.labels[rows]))
            del part["calibration_curve"]
            label: dict[str, Any] = {"value": names[number] if 0 <= number < len(names) else None}
            found.append(({"values": rest} if number == len(names) else label) | part)
    return sorted(found, key=_place)


def slice_name(found: dict[str, Any]) -> str:
    """What people call a slice.

    Examples
    --------
    >>> slice_name({"value": "7"}), slice_name({"value": None}), slice_name({"values": 1200})
    ('7', '(none)', '(1,200 others)')
    """
    if "values" in found:
        return f"({found['values']:,} others)"
    return found["value"] or "(none)"


def _place(found: dict[str, Any]) -> tuple[int, float, str]:
    """Numbers by size, then texts, rows without a value, and the rest."""
    if "values" in found:
        return 3, 0.0, ""
    value = found["value"]
    if value is None:
        return 2, 0.0, ""
    try:
        number = float(value)
    except ValueError:
        return 1, 0.0, value
    return (0, number, value) if math.isfinite(number) else (1, 0.0, value)


def compared(scored: Scored, levels: Levels, group: str | None = None) -> dict[str, Any]:
    """Two sets of scores of the same rows; ``levels`` of the others.

    Returns
    -------
    dict
        ``figures`` of the other scores; ``auc`` and ``logloss``, each with ``difference`` (these
        minus the others), its ``interval`` of 95 % and ``p``, the chance of one as far from 0 if
        there were none: by the paired test of DeLong, and for log loss by the variance of the rows'
        differences. With ``group``, rows of a group count as dependent in both.
    """
    assert scored.others is not None
    labels, others = scored.labels, scored.others
    found = figures(levels)
    clusters = np.arange(len(labels))
    if group is not None:
        clusters = _clusters(scored.columns[group].numbers)
    auc = loss = {"difference": None, "interval": None, "p": None}
    if found["auc"] is not None:
        off = _placed(scored) - _placed(scored, others=True)
        variance = curves.clustered_variance(clusters, labels, off)
        auc = _difference(float(off[labels > 0].mean()), variance)
    if len(labels):
        apart = _losses(scored.probabilities, labels) - _losses(others, labels)
        loss = _difference(float(apart.mean()), curves.mean_variance(apart, clusters))
    return {"figures": found, "auc": auc, "logloss": loss}


def _losses(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Log loss of each row, as ``metrics.logloss_sum`` adds it up."""
    floor = metrics.PROBABILITY_FLOOR
    inside = np.clip(probabilities, floor, 1 - floor)
    return -np.where(labels > 0, np.log(inside), np.log1p(-inside))


def _difference(middle: float, variance: float) -> dict[str, Any]:
    p = None
    if not math.isnan(variance):
        error = math.sqrt(max(variance, 0.0))
        sure = 1.0 if middle == 0 else 0.0
        p = math.erfc(abs(middle) / error / math.sqrt(2)) if error > 0 else sure
    return {"difference": middle, "interval": _interval(middle, variance), "p": p}
