"""Levels of scores, and what curves and intervals are made of them.

A *level* is a score that rows have, or a bin of them, with its rows: ``counts`` int64[k, 2] holds
its non-clicks and clicks, levels ascending. Whatever depends on the order of scores follows from
these counts alone, ties included.

Not here: sums over rows, such as log loss (``metrics``).
"""

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def merge_levels(others, clicks, values, counts):
    """Merge the scores of both classes into levels.

    Parameters
    ----------
    others, clicks : float64[n], float64[p], ascending, read
        Scores of non-clicks and of clicks.
    values : float64[n + p], written
        The distinct scores, ascending.
    counts : int64[n + p, 2], written
        Non-clicks and clicks with that score.

    Returns
    -------
    int
        Levels; what stands behind them is not written.
    """
    i = j = k = 0
    while i < others.shape[0] or j < clicks.shape[0]:
        if j == clicks.shape[0] or (i < others.shape[0] and others[i] < clicks[j]):
            value = others[i]
        else:
            value = clicks[j]
        values[k] = value
        counts[k, 0] = counts[k, 1] = 0
        while i < others.shape[0] and others[i] == value:
            counts[k, 0] += 1
            i += 1
        while j < clicks.shape[0] and clicks[j] == value:
            counts[k, 1] += 1
            j += 1
        k += 1
    return k


def levels(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct scores of rows, and how many rows of each class have them.

    Parameters
    ----------
    scores : float64[rows]
    labels : float or int[rows]
        More than 0 is a click.

    Returns
    -------
    float64[k], int64[k, 2]

    Raises
    ------
    ValueError
        If a score is NaN: it has no place in the order.

    Examples
    --------
    >>> values, counts = levels(np.array([0.5, 0.1, 0.5, 0.9]), np.array([1, 0, 0, 1]))
    >>> values.tolist(), counts.tolist()
    ([0.1, 0.5, 0.9], [[1, 0], [1, 1], [0, 1]])
    """
    if np.isnan(scores).any():
        count = int(np.isnan(scores).sum())
        raise ValueError(f"{count:,} of {len(scores):,} scores are NaN and have no order")
    clicked = labels > 0
    values, counts = np.empty(len(scores), np.float64), np.empty((len(scores), 2), np.int64)
    k = merge_levels(np.sort(scores[~clicked]), np.sort(scores[clicked]), values, counts)
    return values[:k], counts[:k]


@njit(cache=True, nogil=True)
def tally_add(scores, labels, hist, low, high):
    """Count rows by score, and keep the least and the greatest score of each bin.

    Parameters
    ----------
    scores : float64[rows], read
        Probabilities, 0 to 1.
    labels : float32[rows], read
        More than 0 is a click.
    hist : int64[bins, 2], read and written
        As of ``metrics.histogram_add``.
    low, high : float64[bins], read and written
        At first more than 1, and less than 0.
    """
    bins = hist.shape[0]
    for r in range(scores.shape[0]):
        b = int(min(scores[r] * bins, bins - 1.0))
        hist[b, 1 if labels[r] > 0 else 0] += 1
        low[b] = min(low[b], scores[r])
        high[b] = max(high[b], scores[r])


def placements(counts: np.ndarray) -> np.ndarray:
    """How a row of each level and class is placed among those of the other class.

    Parameters
    ----------
    counts : int64[k, 2]
        Both classes have rows.

    Returns
    -------
    float64[k, 2]
        For a non-click the share of clicks above its level, for a click the share of non-clicks
        below; those of the same level count one half. The mean over the rows of either class is
        AUC.

    Notes
    -----
    E. DeLong, D. DeLong, D. Clarke-Pearson, "Comparing the areas under two or more correlated
    receiver operating characteristic curves", Biometrics 44 (1988): the structural components V01
    and V10. That they follow from ranks, hence in O(n log n), is from X. Sun and W. Xu, IEEE Signal
    Processing Letters 21 (2014).
    """
    half_below = 2 * (np.cumsum(counts, axis=0) - counts) + counts
    totals = counts.sum(axis=0)
    above = 2 * totals[1] - half_below[:, 1]
    pairs = 2.0 * totals[::-1]
    return np.stack([above, half_below[:, 0]], axis=1) / pairs


def auc_variance(counts: np.ndarray) -> float:
    """Variance of AUC over samples of rows, DeLong's estimate; see ``placements``.

    nan where a class has fewer than two rows.

    Examples
    --------
    >>> f"{auc_variance(np.array([[3, 0], [2, 1], [1, 2], [0, 3]])):.6f}"
    '0.005556'
    """
    totals = counts.sum(axis=0)
    if totals.min() < 2:
        return math.nan
    placed = placements(counts)
    means = (counts * placed).sum(axis=0) / totals
    squares = (counts * (placed - means) ** 2).sum(axis=0)
    return float((squares / (totals - 1) / totals).sum())


def average_precision(counts: np.ndarray) -> float:
    """Mean over clicks of the precision at their score: area under steps of the PR curve.

    nan without clicks.

    Notes
    -----
    As scikit-learn's ``average_precision_score``: no interpolation between points, which would
    flatter.

    Examples
    --------
    >>> f"{average_precision(np.array([[1, 0], [0, 1], [1, 0], [0, 1]])):.4f}"
    '0.8333'
    """
    from_top = np.cumsum(counts[::-1], axis=0)
    clicks = counts[::-1, 1]
    total = int(clicks.sum())
    if not total:
        return math.nan
    rows = np.maximum(from_top.sum(axis=1), 1)
    return float((clicks * (from_top[:, 1] / rows)).sum() / total)


def calibration_bins(values: np.ndarray, counts: np.ndarray, bins: int) -> np.ndarray:
    """Rows, clicks and mean prediction of bins of about equally many rows, scores ascending.

    A level with r of the n rows below it falls into bin ⌊bins · r / n⌋, so equal scores are never
    parted; bins without rows are left out.

    Parameters
    ----------
    values : float64[k]
    counts : int64[k, 2]
        No level is without rows.
    bins : int

    Returns
    -------
    float64[b, 3], b <= bins

    Examples
    --------
    >>> calibration_bins(np.array([0.2, 0.4, 0.6]), np.array([[2, 0], [1, 1], [0, 4]]), 2)
    array([[4. , 1. , 0.3],
           [4. , 4. , 0.6]])
    """
    rows = counts.sum(axis=1)
    total = int(rows.sum())
    if not total:
        return np.empty((0, 3))
    bin_of = bins * (np.cumsum(rows) - rows) // total
    sums = [np.bincount(bin_of, weights, bins) for weights in (rows, counts[:, 1], values * rows)]
    in_bin = np.stack(sums, axis=1)
    in_bin = in_bin[in_bin[:, 0] > 0]
    return in_bin / np.stack([np.ones(len(in_bin)), np.ones(len(in_bin)), in_bin[:, 0]], axis=1)


def calibration_error(bins: np.ndarray) -> float:
    """Mean over rows of how far the bins' predictions are from their click rates (ECE).

    Parameters
    ----------
    bins : float64[b, 3]
        From ``calibration_bins``; nan without any.

    Notes
    -----
    M. Naeini et al., AAAI 2015; with bins of equally many rows, because nearly all predictions of
    clicks lie in one bin of equal width.

    Examples
    --------
    >>> f"{calibration_error(np.array([[4, 1, 0.3], [4, 4, 0.6]])):.3f}"
    '0.225'
    """
    if not len(bins):
        return math.nan
    return float(np.abs(bins[:, 1] - bins[:, 0] * bins[:, 2]).sum() / bins[:, 0].sum())


def roc_points(counts: np.ndarray, most: int) -> np.ndarray:
    """Points of the ROC curve, from (0, 0) to (1, 1): at most about ``most``, evenly along it.

    Parameters
    ----------
    counts : int64[k, 2]
        Both classes have rows.
    most : int

    Returns
    -------
    float64[points, 2]
        Share of non-clicks, and of clicks, with at least some score. Points that are left out lie
        no further from the line through the others than 2 / ``most``.
    """
    from_top = np.concatenate([np.zeros((1, 2)), np.cumsum(counts[::-1], axis=0)])
    points = from_top / from_top[-1]
    step = (points.sum(axis=1) * most / 2).astype(np.int64)
    last_of_step = np.append(step[1:] != step[:-1], True)
    last_of_step[0] = True
    return points[last_of_step]


def clustered_variance(clusters: np.ndarray, labels: np.ndarray, placed: np.ndarray) -> float:
    """Variance of AUC, or of a difference of two, where rows of one cluster depend on each other.

    Parameters
    ----------
    clusters : int64[rows]
        Numbers from 0 without gaps: users, say.
    labels : float or int[rows]
    placed : float64[rows]
        The placement of each row in its class, or the difference of its placements by two scores.

    Returns
    -------
    float
        nan where fewer than two clusters have clicks, or non-clicks.

    Notes
    -----
    N. Obuchowski, "Nonparametric analysis of clustered ROC curve data", Biometrics 53 (1997).
    """
    sums, of_class = [], []
    for clicked in (False, True):
        chosen = (labels > 0) == clicked
        rows, number = placed[chosen], int(clusters.max(initial=-1)) + 1
        has = np.bincount(clusters[chosen], minlength=number) > 0
        if has.sum() < 2:
            return math.nan
        sums.append(np.bincount(clusters[chosen], rows - rows.mean(), number) / len(rows))
        of_class.append(int(has.sum()))
    number = len(sums[0])
    same = sum((s**2).sum() * n / (n - 1) for s, n in zip(sums, of_class, strict=True))
    return float(same + 2 * (sums[0] * sums[1]).sum() * number / (number - 1))


def mean_variance(values: np.ndarray, clusters: np.ndarray | None = None) -> float:
    """Variance of the mean of ``values``, whose rows may depend on each other inside clusters.

    nan for fewer than two rows or clusters.

    Examples
    --------
    >>> mean_variance(np.array([1.0, 3.0]))
    1.0
    >>> mean_variance(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    1.0
    """
    off = values - values.mean() if len(values) else values
    if clusters is not None:
        off = np.bincount(clusters, off)
    parts = len(off)
    if parts < 2:
        return math.nan
    return float((off**2).sum() / len(values) ** 2 * parts / (parts - 1))


def wilson(clicks: float, rows: float, z: float) -> tuple[float, float]:
    """Interval for a rate from its counts.

    Notes
    -----
    E. Wilson, Journal of the American Statistical Association 22 (1927); unlike clicks / rows
    ± z standard errors, it has a width where there are no clicks.

    Examples
    --------
    >>> low, high = wilson(0, 10, 1.96)
    >>> f"{low:.4f} {high:.4f}"
    '0.0000 0.2775'
    """
    rate, more = clicks / rows, z * z / rows
    middle = (rate + more / 2) / (1 + more)
    wide = math.sqrt(max(rate * (1 - rate), 0.0) / rows * z * z + more * more / 4) / (1 + more)
    return max(middle - wide, 0.0), min(middle + wide, 1.0)
