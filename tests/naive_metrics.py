"""Slow twins of ``ctrps.kernels.curves``: from definitions, pair by pair."""

import math

import numpy as np


def merge_levels(others, clicks):
    """(values, counts)."""
    values = sorted({*others, *clicks})
    return values, [[list(others).count(v), list(clicks).count(v)] for v in values]


def tally_add(scores, labels, bins):
    """(hist, low, high)."""
    hist, low, high = [[0, 0] for _ in range(bins)], [2.0] * bins, [-1.0] * bins
    for score, label in zip(scores, labels, strict=True):
        b = min(math.floor(score * bins), bins - 1)
        hist[b][int(label > 0)] += 1
        low[b], high[b] = min(low[b], score), max(high[b], score)
    return hist, low, high


def placed(scores, labels):
    """Share of the other class that each row is rightly placed against; ties count one half."""
    found = []
    for score, label in zip(scores, labels, strict=True):
        other = [s for s, y in zip(scores, labels, strict=True) if bool(y) != bool(label)]
        right = [(s < score) if label else (s > score) for s in other]
        found.append(sum(r + (s == score) / 2 for r, s in zip(right, other, strict=True)))
        found[-1] /= len(other)
    return found


def variance_of(placements, labels):
    """DeLong's variance of the mean of placements, or of their differences."""
    total = 0.0
    for clicked in (False, True):
        part = [p for p, y in zip(placements, labels, strict=True) if bool(y) == clicked]
        if len(part) < 2:
            return math.nan
        mean = math.fsum(part) / len(part)
        total += math.fsum((p - mean) ** 2 for p in part) / (len(part) - 1) / len(part)
    return total


def clustered_variance(clusters, labels, placements):
    """Obuchowski's variance, term by term."""
    theta, size, sums, having = {}, {}, {}, {}
    for clicked in (False, True):
        part = [p for p, y in zip(placements, labels, strict=True) if bool(y) == clicked]
        theta[clicked], size[clicked] = math.fsum(part) / len(part), len(part)
    for clicked in (False, True):
        sums[clicked] = dict.fromkeys(clusters, 0.0)
        having[clicked] = set()
        for c, y, p in zip(clusters, labels, placements, strict=True):
            if bool(y) == clicked:
                sums[clicked][c] += p - theta[clicked]
                having[clicked].add(c)
    found = 0.0
    for clicked in (False, True):
        i = len(having[clicked])
        s = i / (i - 1) / size[clicked] * math.fsum(x * x for x in sums[clicked].values())
        found += s / size[clicked]
    i = len(set(clusters))
    cross = math.fsum(sums[True][c] * sums[False][c] for c in set(clusters)) * i / (i - 1)
    return found + 2 * cross / size[True] / size[False]


def calibration_bins(scores, labels, bins):
    """Rows, clicks and mean score of each bin; a row's bin is by how many rows score lower."""
    found = [[0, 0, 0.0] for _ in range(bins)]
    for score, label in zip(scores, labels, strict=True):
        below = sum(s < score for s in scores)
        one = found[bins * below // len(scores)]
        one[0] += 1
        one[1] += bool(label)
        one[2] += score
    return np.array([[n, c, total / n] for n, c, total in found if n])
