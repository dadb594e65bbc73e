"""AUC, log loss and their kin against scikit-learn and against counting pairs."""

import csv
import math

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctrps.kernels import metrics
from tests import naive


def table(path):
    """(labels, scores, rest) of a case's file."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    labels = np.array([row.pop("label") for row in rows], float)
    return labels, np.array([row.pop("score") for row in rows], float), rows


@pytest.fixture
def case_08(shared):
    return lambda name: table(shared / "cases" / "08-auc-one-class" / f"{name}.tsv")


def random_scores(seed, n=400, distinct=40, dtype=np.float64):
    """Scores with many ties, and labels that follow them."""
    rng = np.random.default_rng(seed)
    scores = (rng.integers(0, distinct, n) / distinct).astype(dtype)
    return scores, (rng.random(n) < scores).astype(np.float32)


@pytest.mark.parametrize("distinct", [2, 40, 10**9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(3))
def test_auc_agrees_with_scikit_learn_and_with_counting(seed, dtype, distinct):
    scores, labels = random_scores(seed, distinct=distinct, dtype=dtype)
    found = metrics.auc(scores, labels)
    assert abs(found - roc_auc_score(labels, scores)) < 1e-12
    assert abs(found - naive.auc(scores, labels)) < 1e-12
    order = np.argsort(scores)
    assert metrics.doubled_wins(scores[order], labels[order], 0, 400) == naive.doubled_wins(
        scores, labels
    )


def test_case_08_auc(case_08):
    labels, scores, _ = case_08("ties")
    assert metrics.auc(scores, labels) == 0.5
    labels, scores, _ = case_08("small")
    assert f"{metrics.auc(scores, labels):.10f}" == "0.4166666667"
    labels, scores, rows = case_08("groups")
    assert metrics.auc(scores, labels) == 0.5
    groups = np.array([int(row["user"][1:]) for row in rows])
    figure, used, skipped = metrics.grouped_auc(groups, scores, labels)
    assert (round(figure, 12), used, skipped) == (0.7, 2, 1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("all_negative", "only negatives in 4 rows"),
        ("all_positive", "only positives in 4 rows"),
        ("empty", "no rows"),
        ("small", None),
    ],
)
def test_case_08_undefined_auc_has_a_reason(case_08, name, reason):
    labels, scores, _ = case_08(name)
    assert metrics.auc_undefined(labels) == reason
    assert math.isnan(metrics.auc(scores, labels)) == (reason is not None)


def test_case_08_other_figures_of_one_class(case_08):
    labels, scores, _ = case_08("all_negative")
    loss = metrics.logloss_sum(scores, labels)
    assert f"{loss / 4:.10f}" == "0.4722879538"
    assert math.isnan(metrics.normalised_entropy(loss, 0, 4))
    assert math.isnan(metrics.calibration(scores.sum(), 0))


def test_reason_for_a_single_row():
    assert metrics.auc_undefined(np.ones(1)) == "only positives in 1 row"


def test_nan_scores_have_no_auc():
    scores, labels = np.array([0.1, math.nan, 0.3]), np.array([0, 1, 1])
    with pytest.raises(ValueError, match="1 of 3 scores are NaN"):
        metrics.auc(scores, labels)
    with pytest.raises(ValueError, match="1 of 3 scores are NaN"):
        metrics.grouped_auc(labels, scores, labels)


@pytest.mark.parametrize("seed", range(4))
def test_grouped_auc(seed):
    scores, labels = random_scores(seed)
    groups = np.random.default_rng(seed + 50).integers(0, 90, len(scores))
    total, rows, used, skipped = naive.grouped_wins(groups, scores, labels)
    assert skipped > 0
    figure, found_used, found_skipped = metrics.grouped_auc(groups, scores, labels)
    assert abs(figure - total / rows) < 1e-12
    assert (found_used, found_skipped) == (used, skipped)
    order = np.lexsort((scores, groups))
    kernel = metrics.grouped_wins(groups[order], scores[order], labels[order])
    assert kernel == pytest.approx((total, rows, used, skipped), rel=1e-12)


def test_grouped_auc_without_a_usable_group():
    figure, used, skipped = metrics.grouped_auc(np.arange(3), np.ones(3), np.array([0, 1, 0]))
    assert math.isnan(figure)
    assert (used, skipped) == (0, 3)


@pytest.mark.parametrize("bins", [1, 7, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_histogram_add(bins, dtype):
    scores, labels = random_scores(6, dtype=dtype)
    scores[:6] = [0, 1, np.nextafter(dtype(1), dtype(0)), -0.5, 1.5, 1 / 7]
    hist = np.zeros((bins, 2), np.int64)
    metrics.histogram_add(scores, labels, hist)
    np.testing.assert_array_equal(hist, naive.histogram_add(scores, labels, bins))


def test_histogram_takes_nan_and_infinities():
    hist = np.zeros((4, 2), np.int64)
    metrics.histogram_add(np.array([math.nan, math.inf, -math.inf]), np.ones(3), hist)
    assert hist[:, 1].tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize("bins", [1, 5, 100, 65536])
def test_exact_auc_lies_within_the_bound_of_merged_histograms(bins):
    scores, labels = random_scores(7, n=3000, distinct=10**9)
    parts = []
    for piece in np.array_split(np.arange(3000), 3):
        parts.append(np.zeros((bins, 2), np.int64))
        metrics.histogram_add(scores[piece], labels[piece], parts[-1])
    figure, bound = metrics.histogram_auc(sum(parts))
    assert abs(figure - metrics.auc(scores, labels)) <= bound + 1e-15
    assert bound < 1 / bins


def test_histogram_of_one_class_is_undefined():
    assert all(math.isnan(figure) for figure in metrics.histogram_auc(np.array([[3, 0], [2, 0]])))


@pytest.mark.parametrize("seed", range(3))
def test_logloss_agrees_with_scikit_learn(seed):
    scores, labels = random_scores(seed, distinct=10**9)
    found = metrics.logloss_sum(scores, labels)
    assert abs(found / 400 - log_loss(labels, scores)) < 1e-12
    assert found == pytest.approx(naive.logloss_sum(scores, labels), rel=1e-12)


def test_logloss_clips_and_keeps_nan():
    floor = -math.log(1e-15)
    assert metrics.logloss_sum(np.zeros(1), np.ones(1)) == pytest.approx(floor, rel=1e-12)
    assert metrics.logloss_sum(np.ones(1), np.zeros(1)) == pytest.approx(floor, rel=1e-3)
    certain = np.array([0.0, 1.0])
    assert metrics.logloss_sum(certain, certain) < 3e-15
    assert math.isnan(metrics.logloss_sum(np.array([math.nan]), np.ones(1)))


def test_case_09_parts_are_combined_from_sums(shared):
    folder = shared / "cases" / "09-logloss-one-class"
    sums = {}
    for name, expected in (
        ("ones", 0.4522772769),
        ("zeros", 1.3481570115),
        ("one_row", 1.38629436),
    ):
        labels, scores, _ = table(folder / f"{name}.tsv")
        sums[name] = metrics.logloss_sum(scores, labels)
        assert sums[name] / len(labels) == pytest.approx(expected, abs=1e-8)
    assert (sums["ones"] + sums["zeros"]) / 8 == pytest.approx(0.9002171442, abs=1e-10)


def test_normalised_entropy_and_calibration():
    scores, labels = random_scores(8)
    rate = labels.mean(dtype=float)
    constant = metrics.logloss_sum(np.full(400, rate), labels)
    assert metrics.normalised_entropy(constant, labels.sum(), 400) == pytest.approx(1, rel=1e-12)
    found = metrics.normalised_entropy(metrics.logloss_sum(scores, labels), labels.sum(), 400)
    assert found < 1
    assert metrics.calibration(scores.sum(), labels.sum()) == pytest.approx(scores.mean() / rate)
