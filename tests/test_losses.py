"""Sigmoid and log loss at the ends of the range; margins and gradients of LR and FM."""

import csv
import math

import numpy as np
import pytest

from ctrps.kernels import losses
from tests import naive
from tests.batching import take_rows


def close(found, expected):
    return math.isclose(found, expected, rel_tol=1e-12)


def random_batch(seed, rows=12, keys=9, dim=0):
    """(indptr, index, values, weights, labels): distinct keys in a row, some rows empty."""
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(keys)[: int(rng.integers(0, 6))] for _ in range(rows)]
    indptr = np.append(0, np.cumsum([len(row) for row in chosen])).astype(np.int64)
    index = np.concatenate(chosen).astype(np.int32)
    values = rng.normal(size=len(index)).astype(np.float32)
    weights = rng.normal(scale=0.5, size=(keys, 1 + dim)).astype(np.float32)
    return indptr, index, values, weights, rng.integers(0, 2, rows).astype(np.float32)


def fm(indptr, index, values, wv, bias):
    rows = len(indptr) - 1
    margins = np.empty(rows, np.float32)
    sums = np.full((rows, wv.shape[1] - 1), np.nan, np.float32)
    losses.fm_forward(indptr, index, values, wv, bias, margins, sums)
    return margins, sums


def test_case_10_margins(shared):
    with open(shared / "cases" / "10-extreme-margins" / "margins.tsv", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            z = float(row["z"])
            assert close(losses.sigmoid(z), float(row["p"])), z
            assert close(losses.logloss(z, 1.0), float(row["loss_y1"])), z
            assert close(losses.logloss(z, 0.0), float(row["loss_y0"])), z


def test_sigmoid_and_logloss_agree_with_60_digits():
    for z in np.random.default_rng(1).uniform(-40, 40, 300).tolist():
        assert close(losses.sigmoid(z), naive.sigmoid(z)), z
        assert close(losses.logloss(z, 1.0), naive.logloss(z, 1)), z
        assert close(losses.logloss(z, 0.0), naive.logloss(z, 0)), z


@pytest.mark.parametrize("z", [math.inf, -math.inf, 1e300, -1e300])
def test_infinite_margins_have_no_nan(z):
    assert losses.sigmoid(z) == (z > 0)
    assert losses.logloss(z, 1.0) == max(-z, 0)
    assert losses.logloss(z, 0.0) == max(z, 0)


def test_nan_margin_stays_nan():
    assert math.isnan(losses.sigmoid(math.nan))
    assert math.isnan(losses.logloss(math.nan, 1.0))


def test_sigmoid_rows_may_write_over_its_input():
    margins = np.float32([-80, -1, 0, 2, 1000])
    expected = naive.sigmoid_rows(margins)
    losses.sigmoid_rows(margins, margins)
    np.testing.assert_allclose(margins, expected, rtol=1e-6)


def test_logloss_residual():
    margins = np.random.default_rng(2).normal(scale=4, size=50).astype(np.float32)
    labels = (np.arange(50) % 3 == 0).astype(np.float32)
    residuals = np.empty(50, np.float32)
    loss = losses.logloss_residual(margins, labels, residuals)
    expected, expected_loss = naive.logloss_residual(margins, labels)
    np.testing.assert_allclose(residuals, expected, rtol=1e-6)
    assert close(loss, expected_loss)


def test_residual_of_a_certain_click_is_not_lost():
    residuals = np.empty(2, np.float32)
    losses.logloss_residual(np.float32([60, 1000]), np.ones(2, np.float32), residuals)
    assert residuals[0] == pytest.approx(-math.exp(-60), rel=1e-6)
    assert residuals[1] == 0


def test_ordered_sum():
    numbers = np.random.default_rng(3).normal(size=1000).astype(np.float32)
    found = losses.ordered_sum(numbers)
    assert (found.shape, found.dtype) == ((1,), np.float32)
    assert found[0] == pytest.approx(naive.ordered_sum(numbers), rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_lr_forward_and_gradient(seed):
    indptr, index, values, w, labels = random_batch(seed)
    margins, residuals = np.empty(12, np.float32), np.empty(12, np.float32)
    rows, exact = naive.rows_of(indptr, index, values), w.astype(float)
    losses.lr_forward(indptr, index, values, w, 0.3, margins)
    np.testing.assert_allclose(margins, naive.lr_forward(rows, exact, 0.3), rtol=1e-6, atol=1e-7)
    losses.logloss_residual(margins, labels, residuals)
    g = np.full_like(w, 5)
    losses.lr_gradient(indptr, index, values, residuals, g)
    expected = 5 + naive.lr_gradient(rows, exact, 0.3, labels)
    np.testing.assert_allclose(g, expected, rtol=1e-5)


@pytest.mark.parametrize("dim", [1, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_fm_forward_and_gradient(seed, dim):
    indptr, index, values, wv, labels = random_batch(seed, dim=dim)
    rows, exact = naive.rows_of(indptr, index, values), wv.astype(float)
    margins, sums = fm(indptr, index, values, wv, -0.2)
    np.testing.assert_allclose(margins, naive.fm_forward(rows, exact, -0.2), rtol=1e-5, atol=1e-6)
    residuals = np.empty_like(margins)
    losses.logloss_residual(margins, labels, residuals)
    g = np.full_like(wv, -1)
    losses.fm_gradient(indptr, index, values, wv, sums, residuals, g)
    expected = naive.fm_gradient(rows, exact, -0.2, labels) - 1
    np.testing.assert_allclose(g, expected, rtol=1e-5, atol=2e-6)


def test_fm_equals_the_formula_with_squares():
    indptr, index, values, wv, _ = random_batch(7, rows=1, dim=4)
    vx = wv[index, 1:].astype(float) * values[:, None]
    pairs = (vx.sum(0) ** 2 - (vx**2).sum(0)).sum() / 2
    margins, sums = fm(indptr, index, values, wv, 0.0)
    assert margins[0] == pytest.approx((wv[index, 0] * values).sum() + pairs, rel=1e-5)
    np.testing.assert_allclose(sums[0], vx.sum(0), rtol=1e-6)


def test_a_repeated_key_is_one_entry_with_the_summed_value():
    wv = np.random.default_rng(8).normal(size=(3, 5)).astype(np.float32)
    index, counts = np.uint16([0, 2, 0, 1]), np.uint8([[4]])
    values, dense = np.float32([1, 1, 0.5, 2]), np.empty((1, 0), np.float32)
    keys = np.arange(3, dtype=np.uint64)
    taken = take_rows(index, counts, values, dense, 3, np.zeros(1, np.int64), keys)
    found, _ = fm(taken.indptr, taken.index, taken.values, wv, 0.0)
    single, _ = fm(np.int64([0, 3]), np.int32([0, 2, 1]), np.float32([1.5, 1, 2]), wv, 0.0)
    assert found == single


def test_a_row_of_one_key_has_no_pairs():
    wv = np.float32([[0.5, 3, -7, 1e4]])
    margins, sums = fm(np.int64([0, 1]), np.int32([0]), np.float32([1e3]), wv, 0.0)
    assert margins[0] == 500
    g = np.zeros_like(wv)
    losses.fm_gradient(
        np.int64([0, 1]), np.int32([0]), np.float32([1e3]), wv, sums, np.float32([0.5]), g
    )
    assert g.tolist() == [[500, 0, 0, 0]]
