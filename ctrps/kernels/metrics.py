"""How good scores are: AUC, log loss, normalised entropy, calibration.

Figures of parts are combined from sums, counts and histograms, never as a mean of figures. An
undefined figure is ``nan``; ``auc_undefined`` says why in words.

Not here: which rows are scored (rows without a label are left out before), and how a figure is
shown.
"""

import math

import numpy as np
from numba import njit

PROBABILITY_FLOOR = 1e-15
"""Log loss takes probabilities as if they lay this far inside 0 and 1 (scikit-learn's old eps)."""


@njit(cache=True, nogil=True)
def doubled_wins(scores, labels, begin, end):
    """Pairs of a click and a non-click that the scores put in the right order, times two.

    Parameters
    ----------
    scores : float[rows], ascending from begin to end, read
    labels : float or int[rows], read
        More than 0 is a click.
    begin, end : int
        The rows to look at.

    Returns
    -------
    (int, int)
        Two per pair in the right order and one per tied pair; the number of clicks.
    """
    wins, clicks, below = 0, 0, 0
    i = begin
    while i < end:
        j, tied_clicks = i, 0
        while j < end and scores[j] == scores[i]:
            tied_clicks += labels[j] > 0
            j += 1
        tied_others = j - i - tied_clicks
        wins += tied_clicks * (2 * below + tied_others)
        clicks += tied_clicks
        below += tied_others
        i = j
    return wins, clicks


@njit(cache=True, nogil=True)
def grouped_wins(groups, scores, labels):
    """Sum over groups of rows times AUC.

    Parameters
    ----------
    groups : int[rows], ascending, read
    scores : float[rows], ascending inside a group, read
    labels : float or int[rows], read

    Returns
    -------
    (float64, int, int, int)
        The sum; the rows in it; groups in it; groups left out because they hold one class only.
    """
    total, rows, used, skipped = 0.0, 0, 0, 0
    begin = 0
    while begin < groups.shape[0]:
        end = begin
        while end < groups.shape[0] and groups[end] == groups[begin]:
            end += 1
        wins, clicks = doubled_wins(scores, labels, begin, end)
        pairs = 2 * clicks * (end - begin - clicks)
        if pairs > 0:
            total += (end - begin) * (wins / pairs)
            rows += end - begin
            used += 1
        else:
            skipped += 1
        begin = end
    return total, rows, used, skipped


def _ordered(scores: np.ndarray) -> np.ndarray:
    if np.isnan(scores).any():
        count = int(np.isnan(scores).sum())
        raise ValueError(f"{count:,} of {len(scores):,} scores are NaN and have no order")
    return scores


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve, exact; a tied pair counts one half.

    Parameters
    ----------
    scores : float[rows]
        Any increasing function of the probability.
    labels : float or int[rows]
        More than 0 is a click.

    Returns
    -------
    float
        nan where there is no pair to order.

    Raises
    ------
    ValueError
        If a score is NaN.

    Examples
    --------
    >>> auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    order = np.argsort(_ordered(scores), kind="stable")
    wins, clicks = doubled_wins(scores[order], labels[order], 0, len(order))
    return _ratio(wins, 2 * clicks * (len(order) - clicks))


def auc_undefined(labels: np.ndarray) -> str | None:
    """Why these labels have no AUC, or None if they have one.

    Examples
    --------
    >>> auc_undefined(np.zeros(12034))
    'only negatives in 12,034 rows'
    """
    return undefined_for(int((labels > 0).sum()), len(labels))


def undefined_for(clicks: int, rows: int) -> str | None:
    """Why so many clicks in so many rows leave AUC without a value, or None if they do not."""
    if rows == 0:
        return "no rows"
    if 0 < clicks < rows:
        return None
    kind = "positives" if clicks else "negatives"
    return f"only {kind} in {rows:,} {'row' if rows == 1 else 'rows'}"


def grouped_auc(
    groups: np.ndarray, scores: np.ndarray, labels: np.ndarray
) -> tuple[float, int, int]:
    """Mean AUC of the groups (users, say), weighted by their rows (GAUC).

    Parameters
    ----------
    groups : int[rows]
        Number of each row's group, in any order.
    scores, labels
        As for ``auc``.

    Returns
    -------
    (float, int, int)
        The figure, nan if no group has both classes; groups used; groups skipped.

    Notes
    -----
    H. Zhu et al., KDD 2017, where it is called GAUC.

    Examples
    --------
    >>> grouped_auc(np.array([7, 7, 9]), np.array([0.7, 0.2, 0.4]), np.array([1, 0, 0]))
    (1.0, 1, 1)
    """
    order = np.lexsort((_ordered(scores), groups))
    total, rows, used, skipped = grouped_wins(groups[order], scores[order], labels[order])
    return _ratio(total, rows), used, skipped


@njit(cache=True, nogil=True)
def histogram_add(scores, labels, hist):
    """Count rows by score; histograms of parts of the data add up.

    Parameters
    ----------
    scores : float[rows], read
        Probabilities. Those below 0, and NaN, enter the first bin, those above 1 the last.
    labels : float or int[rows], read
    hist : int64[bins, 2], read and written
        Non-clicks and clicks per bin of width 1/bins.
    """
    bins = hist.shape[0]
    for r in range(scores.shape[0]):
        score = np.float64(scores[r])
        b = int(min(score * bins, bins - 1.0)) if score > 0 else 0
        hist[b, 1 if labels[r] > 0 else 0] += 1


def histogram_auc(hist: np.ndarray) -> tuple[float, float]:
    """AUC as if scores in one bin were tied, and how far the exact one may be from it.

    Parameters
    ----------
    hist : int64[bins, 2]
        From ``histogram_add``.

    Returns
    -------
    (float, float)
        AUC and bound: the exact AUC of the scores lies within ``auc ± bound``. Both are nan
        where there is no pair to order.

    Examples
    --------
    >>> histogram_auc(np.array([[8, 1], [1, 1]]))
    (0.6944444444444444, 0.25)
    """
    others, clicks = hist[:, 0], hist[:, 1]
    below = np.cumsum(others) - others
    wins = int((clicks * (2 * below + others)).sum())
    pairs = 2 * int(clicks.sum()) * int(others.sum())
    return _ratio(wins, pairs), _ratio(int((clicks * others).sum()), pairs)


@njit(cache=True, nogil=True)
def logloss_sum(scores, labels):
    """Summed log loss of probabilities, in nats, in row order.

    Parameters
    ----------
    scores : float[rows], read
        Probabilities; taken as if within ``PROBABILITY_FLOOR`` and one minus that.
    labels : float or int[rows], read

    Returns
    -------
    float64

    Examples
    --------
    >>> f"{logloss_sum(np.array([0.25]), np.array([1.0])):.10f}"
    '1.3862943611'
    """
    total = 0.0
    for r in range(scores.shape[0]):
        p = float(scores[r])
        # Not by min and max, which would make a floor of a NaN.
        if p < PROBABILITY_FLOOR:
            p = PROBABILITY_FLOOR
        elif p > 1.0 - PROBABILITY_FLOOR:
            p = 1.0 - PROBABILITY_FLOOR
        total -= math.log(p) if labels[r] > 0 else math.log1p(-p)
    return total


def normalised_entropy(loss_sum: float, clicks: float, rows: int) -> float:
    """Log loss over the entropy of the click rate: 1 is a model that knows only the rate.

    nan where all labels are equal.

    Notes
    -----
    He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014.

    Examples
    --------
    >>> normalised_entropy(2 * math.log(2), 1, 2)
    1.0
    """
    if not 0 < clicks < rows:
        return math.nan
    rate = clicks / rows
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
    return loss_sum / rows / entropy


def calibration(probability_sum: float, clicks: float) -> float:
    """Predicted over observed clicks: above 1, the model promises too many; nan without clicks.

    Examples
    --------
    >>> calibration(30.0, 20)
    1.5
    """
    return _ratio(probability_sum, clicks)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def report(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, object]:
    """The figures by which a model is judged, over all rows given.

    Parameters
    ----------
    probabilities : float64[rows]
    labels : float32[rows]
        0 or 1.

    Returns
    -------
    dict
        rows, clicks, auc, logloss, normalised_entropy, calibration; None where a figure has no
        value, and then ``auc_undefined`` says why.

    Examples
    --------
    >>> report(np.array([0.2, 0.8]), np.float32([0, 1]))["auc"]
    1.0
    >>> report(np.array([0.2]), np.float32([0]))["auc_undefined"]
    'only negatives in 1 row'
    """
    rows, clicks = len(labels), int((labels > 0).sum())
    loss_sum = float(logloss_sum(probabilities, labels))
    figures: dict[str, object] = {
        "rows": rows,
        "clicks": clicks,
        "auc": _defined(auc(probabilities, labels)),
        "logloss": _defined(_ratio(loss_sum, rows)),
        "normalised_entropy": _defined(normalised_entropy(loss_sum, clicks, rows)),
        "calibration": _defined(calibration(float(probabilities.sum()), clicks)),
    }
    why = auc_undefined(labels)
    return figures | ({"auc_undefined": why} if why else {})


def _defined(figure: float) -> float | None:
    return None if math.isnan(figure) else float(figure)
