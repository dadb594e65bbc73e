"""Levels, intervals and curves: against slow twins, scikit-learn and a published example."""

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_curve

from ctrps.kernels import curves, metrics
from tests import naive_metrics as naive
from tests.test_metrics import random_scores

OVARIAN = """
3.0 5.8 10 0 3.2 6.3 5 1 3.9 6.8 3 1 2.8 4.8 6 0 3.2 5.8 3 1 0.9 4.0 5 0 2.5 5.7 8 0 1.6 5.6 5 1
3.8 5.7 5 1 3.7 6.7 6 1 3.2 5.4 4 1 3.8 6.6 6 1 4.1 6.6 5 1 3.6 5.7 5 1 4.3 7.0 4 1 3.6 6.7 4 0
2.3 4.4 6 1 4.2 7.6 4 0 4.0 6.6 6 0 3.5 5.8 6 1 3.8 6.8 7 1 3.0 4.7 8 0 4.5 7.4 5 1 3.7 7.4 5 1
3.1 6.6 6 1 4.1 8.2 6 1 4.3 7.0 5 1 4.3 6.5 4 1 3.2 5.1 5 1 2.6 4.7 6 1 3.3 6.8 6 0 1.7 4.0 7 0
3.7 6.1 5 1 3.3 6.3 7 1 4.2 7.7 6 1 3.5 6.2 5 1 2.9 5.7 9 0 2.1 4.8 7 1 2.8 6.2 8 0 4.0 7.0 7 1
3.3 5.7 6 1 3.7 6.9 5 1 3.6 6.6 5 1
"""
"""Albumin, total protein, K-G score and outcome of patients of DeLong et al. (1988), published with
the example "Comparing Receiver Operating Characteristic Curves" of SAS/STAT, PROC LOGISTIC. The
figures expected below were computed from them pair by pair, apart from this code."""


def placed(scores, labels):
    values, counts = curves.levels(scores, labels)
    return curves.placements(counts)[np.searchsorted(values, scores), (labels > 0).astype(int)]


def test_the_example_of_delong():
    albumin, protein, kg, outcome = np.array(OVARIAN.split(), float).reshape(-1, 4).T
    tests = {"albumin": albumin, "protein": protein, "kg": 10 - kg}
    found = {}
    for name, scores in tests.items():
        _, counts = curves.levels(scores, outcome)
        error = math.sqrt(curves.auc_variance(counts))
        found[name] = f"{metrics.auc(scores, outcome):.4f} {error:.4f}"
    assert found == {"albumin": "0.7366 0.0927", "protein": "0.6478 0.1000", "kg": "0.7258 0.1028"}
    compared = {}
    for name in ("albumin", "protein"):
        off = placed(tests[name], outcome) - placed(tests["kg"], outcome)
        variance = curves.clustered_variance(np.arange(len(off)), outcome, off)
        difference = off[outcome > 0].mean()
        compared[name] = (
            f"{difference:.4f} {math.sqrt(variance):.4f} {difference**2 / variance:.4f}"
        )
    assert compared == {"albumin": "0.0108 0.0953 0.0127", "protein": "-0.0780 0.1046 0.5554"}


@pytest.mark.parametrize("distinct", [2, 15, 10**9])
@pytest.mark.parametrize("seed", range(2))
def test_levels_and_placements(seed, distinct):
    scores, labels = random_scores(seed, n=150, distinct=distinct)
    values, counts = curves.levels(scores, labels)
    twin = naive.merge_levels(scores[labels == 0], scores[labels > 0])
    assert (values.tolist(), counts.tolist()) == twin
    by_row = placed(scores, labels)
    np.testing.assert_allclose(by_row, naive.placed(scores, labels), rtol=0, atol=1e-15)
    for clicked in (False, True):
        assert abs(by_row[(labels > 0) == clicked].mean() - metrics.auc(scores, labels)) < 1e-14
    variance = curves.auc_variance(counts)
    assert variance == pytest.approx(naive.variance_of(by_row, labels), rel=1e-12)


@pytest.mark.parametrize("bins", [1, 7, 64])
def test_tally_add(bins):
    scores, labels = random_scores(6)
    scores[:4] = [0, 1, np.nextafter(1, 0), 1 / 7]
    hist, low, high = np.zeros((bins, 2), np.int64), np.full(bins, 2.0), np.full(bins, -1.0)
    for part in np.array_split(np.arange(400), 3):
        curves.tally_add(scores[part], labels[part], hist, low, high)
    twin = naive.tally_add(scores.tolist(), labels, bins)
    assert (hist.tolist(), low.tolist(), high.tolist()) == twin


def test_levels_of_empty_classes_and_of_nan():
    for labels in (np.zeros(3), np.ones(3)):
        values, counts = curves.levels(np.array([0.5, 0.1, 0.5]), labels)
        assert values.tolist() == [0.1, 0.5]
        assert counts.sum(axis=1).tolist() == [1, 2]
    with pytest.raises(ValueError, match="1 of 2 scores are NaN"):
        curves.levels(np.array([0.5, math.nan]), np.ones(2))


@pytest.mark.parametrize("counts", [[[1, 0], [0, 3]], [[3, 1]], [[0, 5]], np.empty((0, 2), int)])
def test_a_class_of_one_row_has_no_variance(counts):
    assert math.isnan(curves.auc_variance(np.array(counts)))


def test_variance_covers_as_often_as_it_says():
    """Of many samples, the interval of 95 % holds the AUC of the whole in about 95 %."""
    rng, inside = np.random.default_rng(3), 0
    for _ in range(400):
        labels = (rng.random(300) < 0.2).astype(float)
        scores = rng.normal(labels * 0.8, 1)
        _, counts = curves.levels(scores, labels)
        off = metrics.auc(scores, labels) - 0.5 * math.erfc(-0.8 / 2)
        inside += abs(off) < 1.959964 * math.sqrt(curves.auc_variance(counts))
    assert 0.92 < inside / 400 < 0.975


@pytest.mark.parametrize("seed", range(3))
def test_clustered_variance(seed):
    scores, labels = random_scores(seed, n=200)
    others, _ = random_scores(seed + 9, n=200)
    clusters = np.random.default_rng(seed).integers(0, 30, 200)
    clusters = np.unique(clusters, return_inverse=True)[1]
    for by_row in (placed(scores, labels), placed(scores, labels) - placed(others, labels)):
        found = curves.clustered_variance(clusters, labels, by_row)
        assert found == pytest.approx(
            naive.clustered_variance(clusters.tolist(), labels, by_row), rel=1e-12
        )
        alone = curves.clustered_variance(np.arange(200), labels, by_row)
        assert alone == pytest.approx(naive.variance_of(by_row, labels), rel=1e-12)


def test_copies_of_rows_say_nothing_new():
    scores, labels = random_scores(4, n=120)
    once = curves.clustered_variance(np.arange(120), labels, placed(scores, labels))
    thrice = [np.tile(array, 3) for array in (np.arange(120), labels, scores)]
    found = curves.clustered_variance(thrice[0], thrice[1], placed(thrice[2], thrice[1]))
    assert found == pytest.approx(once, rel=1e-12)
    assert curves.auc_variance(curves.levels(thrice[2], thrice[1])[1]) < once / 2.9
    values = scores - labels
    assert curves.mean_variance(np.tile(values, 3), thrice[0]) == pytest.approx(
        curves.mean_variance(values), rel=1e-12
    )


def test_too_few_clusters_have_no_variance():
    labels, by_row = np.array([0, 1, 0, 1]), np.array([0.5, 1.0, 1.0, 0.5])
    assert math.isnan(curves.clustered_variance(np.array([0, 1, 0, 1]), labels, by_row))
    assert math.isnan(curves.mean_variance(np.ones(1)))
    assert math.isnan(curves.mean_variance(np.empty(0)))
    assert math.isnan(curves.mean_variance(np.ones(3), np.zeros(3, int)))


def test_mean_variance_is_that_of_the_mean():
    values = np.random.default_rng(1).normal(size=50)
    assert curves.mean_variance(values) == pytest.approx(values.var(ddof=1) / 50, rel=1e-12)


@pytest.mark.parametrize("distinct", [3, 40, 10**9])
@pytest.mark.parametrize("seed", range(2))
def test_average_precision_agrees_with_scikit_learn(seed, distinct):
    scores, labels = random_scores(seed, distinct=distinct)
    found = curves.average_precision(curves.levels(scores, labels)[1])
    assert abs(found - average_precision_score(labels, scores)) < 1e-12


def test_average_precision_without_clicks_or_rows():
    assert math.isnan(curves.average_precision(np.array([[4, 0]])))
    assert math.isnan(curves.average_precision(np.empty((0, 2), np.int64)))


@pytest.mark.parametrize("bins", [1, 7, 20, 1000])
@pytest.mark.parametrize("distinct", [3, 60, 10**9])
def test_calibration_bins(bins, distinct):
    scores, labels = random_scores(2, n=250, distinct=distinct)
    found = curves.calibration_bins(*curves.levels(scores, labels), bins)
    twin = naive.calibration_bins(scores.tolist(), labels, bins)
    np.testing.assert_allclose(found, twin, rtol=1e-12)
    error = sum(n * abs(c / n - p) for n, c, p in twin) / 250
    assert curves.calibration_error(found) == pytest.approx(error, rel=1e-12)


def test_no_rows_have_no_calibration():
    empty = curves.calibration_bins(np.empty(0), np.empty((0, 2), np.int64), 5)
    assert empty.shape == (0, 3) and math.isnan(curves.calibration_error(empty))


def test_roc_points_lie_on_the_curve():
    scores, labels = random_scores(5, n=3000, distinct=10**9)
    _, counts = curves.levels(scores, labels)
    every = curves.roc_points(counts, 10**7)
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(every, np.stack([fpr, tpr], axis=1), rtol=0, atol=1e-12)
    few = curves.roc_points(counts, 100)
    assert 50 < len(few) <= 102
    assert few[0].tolist() == [0, 0] and few[-1].tolist() == [1, 1]
    assert {tuple(point) for point in few} <= {tuple(point) for point in every}
    between = np.interp(every[:, 0] + every[:, 1], few.sum(axis=1), few[:, 1])
    assert np.abs(between - every[:, 1]).max() <= 2 / 100


def test_wilson_agrees_with_its_definition():
    for clicks, rows in ((0, 5), (3, 20), (20, 20), (7, 1000)):
        for end in curves.wilson(clicks, rows, 1.96):
            off = abs(clicks / rows - end) * math.sqrt(rows)
            assert off == pytest.approx(1.96 * math.sqrt(end * (1 - end)), abs=1e-7)
