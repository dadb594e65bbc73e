"""Steps on rows against published formulas, and the start of new rows."""

import numpy as np
import pytest

from ctrps.kernels import optimizers
from tests import naive

HERE, ONCE = np.zeros(1, np.int64), np.ones(1, np.int32)


def ftrl(rows, gradients, *, where=HERE, counts=ONCE, at=0, m=1, state=1, scale=1.0, c0=0.0, **k):
    constants = {"alpha": 0.1, "beta": 1.0, "l1": 1.0, "l2": 0.0} | k
    optimizers.ftrl(rows, where, gradients, counts, at, m, state, scale, c0, *constants.values())


def ftrl_weights(gradients, **constants):
    """The weight after each gradient."""
    rows, weights = np.zeros((1, 3), np.float32), []
    for g in gradients:
        ftrl(rows, np.float32([[g]]), **constants)
        weights.append(rows[0, 0])
    return weights


def test_ftrl_worked_example():
    found = ftrl_weights([-3.0, -1.0, 5.5])
    assert [f"{w:.4f}" for w in found] == ["0.0500", "0.0740", "0.0000"]
    assert found == pytest.approx(naive.ftrl([-3.0, -1.0, 5.5], 0.1, 1.0, 1.0, 0.0), rel=1e-6)


@pytest.mark.parametrize("l1", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("l2", [0.0, 1.0])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_ftrl_agrees_with_algorithm_1(l1, l2, beta):
    gradients = np.random.default_rng(1).normal(size=300).astype(np.float32).tolist()
    found = ftrl_weights(gradients, alpha=0.05, beta=beta, l1=l1, l2=l2)
    expected = naive.ftrl(gradients, 0.05, beta, l1, l2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_ftrl_weights_are_exactly_zero_under_l1():
    rng = np.random.default_rng(2)
    rows, where = np.zeros((500, 3), np.float32), np.arange(500)
    for _ in range(20):
        g = rng.normal(scale=0.3, size=(500, 1)).astype(np.float32)
        ftrl(rows, g, where=where, counts=np.ones(500, np.int32), l1=1.5)
    zero = abs(rows[:, 1]) <= 1.5
    assert 50 < zero.sum() < 450
    np.testing.assert_array_equal(rows[:, 0] == 0, zero)


def test_ftrl_keeps_a_random_start_until_the_first_gradient():
    rows = np.float32([[0.25, 0, 0]])
    ftrl(rows, np.float32([[0]]))
    assert rows.tolist() == [[0.25, 0, 0]]


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_adagrad_agrees_with_its_formula(beta, l2):
    gradients = np.random.default_rng(3).normal(size=200).astype(np.float32).tolist()
    rows, found = np.float32([[0.7, 0]]), []
    for g in gradients:
        optimizers.adagrad(rows, HERE, np.float32([[g]]), ONCE, 0, 1, 1, 1.0, 0.0, 0.1, beta, l2)
        found.append(rows[0, 0])
    expected = naive.adagrad(gradients, 0.1, beta, l2, float(np.float32(0.7)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_adagrad_without_gradient_and_beta_stays():
    rows = np.zeros((1, 2), np.float32)
    optimizers.adagrad(rows, HERE, np.float32([[0]]), ONCE, 0, 1, 1, 1.0, 0.0, 0.1, 0.0, 0.0)
    assert rows.tolist() == [[0, 0]]


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_sgd_agrees_with_its_formula(l2):
    gradients = np.random.default_rng(4).normal(size=200).astype(np.float32).tolist()
    rows, found = np.float32([[0.7]]), []
    for g in gradients:
        optimizers.sgd(rows, HERE, np.float32([[g]]), ONCE, 0, 1, 1.0, 0.0, 0.1, l2)
        found.append(rows[0, 0])
    expected = naive.sgd(gradients, 0.1, l2, float(np.float32(0.7)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("count_scale", [0.0, 16.0, 2.0])
@pytest.mark.parametrize("count", [1, 48])
def test_scale_and_count_scale_act_on_the_gradient(scale, count_scale, count):
    g, counts = np.float32([[3.0]]), np.int32([count])
    expected = [naive.scaled(3.0, count, scale, count_scale)]
    ftrl_rows, adagrad_rows, sgd_rows = (np.zeros((1, 3), np.float32) for _ in range(3))
    ftrl(ftrl_rows, g, counts=counts, scale=scale, c0=count_scale, l1=0.1)
    optimizers.adagrad(adagrad_rows, HERE, g, counts, 0, 1, 1, scale, count_scale, 0.1, 1.0, 0.0)
    optimizers.sgd(sgd_rows, HERE, g, counts, 0, 1, scale, count_scale, 0.1, 0.0)
    assert ftrl_rows[0, 0] == pytest.approx(naive.ftrl(expected, 0.1, 1.0, 0.1, 0.0)[0], rel=1e-6)
    assert adagrad_rows[0, 0] == pytest.approx(naive.adagrad(expected, 0.1, 1.0, 0.0)[0], rel=1e-6)
    assert sgd_rows[0, 0] == pytest.approx(naive.sgd(expected, 0.1, 0.0)[0], rel=1e-6)


def test_parts_of_a_row_do_not_touch_each_other():
    """An FM row [w, v1, v2 | z, n of w | n1, n2 of v], w by FTRL and v by AdaGrad."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(6, 7)).astype(np.float32)
    rows[:, 3:] = 0
    before, where = rows.copy(), np.int64([4, 1])
    g, counts = rng.normal(size=(2, 3)).astype(np.float32), np.int32([2, 1])
    ftrl(rows, g, where=where, counts=counts, state=3, l1=0.0)
    np.testing.assert_array_equal(rows[:, [1, 2, 5, 6]], before[:, [1, 2, 5, 6]])
    optimizers.adagrad(rows, where, g, counts, 1, 2, 5, 1.0, 0.0, 0.1, 1.0, 0.0)
    np.testing.assert_allclose(rows[where, 4], g[:, 0] ** 2, rtol=1e-6)
    np.testing.assert_allclose(rows[where, 5:], g[:, 1:] ** 2, rtol=1e-6)
    for i, row in enumerate(where):
        for f in (1, 2):
            expected = naive.adagrad([float(g[i, f])], 0.1, 1.0, 0.0, float(before[row, f]))
            assert rows[row, f] == pytest.approx(expected[0], rel=1e-5)
    others = [0, 2, 3, 5]
    np.testing.assert_array_equal(rows[others], before[others])


def test_huge_and_tiny_gradients_leave_finite_rows():
    for g in (1e18, -1e18, 1e-38, -1e-38):
        rows = np.zeros((3, 3), np.float32)
        ftrl(rows[:1], np.float32([[g]]), l1=0.0)
        args = (HERE, np.float32([[g]]), ONCE, 0, 1)
        optimizers.adagrad(rows[1:2], *args, 1, 1.0, 0.0, 0.1, 1.0, 0.0)
        optimizers.sgd(rows[2:], *args, 1.0, 0.0, 0.1, 0.0)
        assert np.isfinite(rows).all()


def test_init_rows_and_initial_rows_give_the_same_start():
    keys = np.random.default_rng(6).integers(0, 2**64, 5, dtype=np.uint64)
    rows = np.full((9, 6), 7, np.float32)
    optimizers.init_rows(rows, 3, keys, np.uint64(1), 1, 3, 0.01)
    start = rows[3:8, 1:4].copy()
    np.testing.assert_allclose(start, naive.init_rows(keys, 1, 1, 3, 0.01), rtol=1e-6)
    rows[3:8, 1:4] = 7
    assert (rows == 7).all()
    out, where = np.full((5, 4), 9, np.float32), np.int64([-1, 0, -1, 2, -1])
    optimizers.initial_rows(out, where, keys, np.uint64(1), 1, 3, 0.01)
    np.testing.assert_array_equal(out[where < 0, 1:], start[where < 0])
    np.testing.assert_allclose(
        out[where < 0, 1:], naive.initial_rows(keys[where < 0], 1, 1, 3, 0.01), rtol=1e-6
    )
    out[where < 0, 1:] = 9
    assert (out == 9).all()


def test_count_adds_the_rows_that_hold_the_key():
    rows = np.zeros((3, 2), np.float32)
    for counts in ([1, 5], [2, 7]):
        optimizers.count(rows, np.int64([2, 0]), np.int32(counts), 1, 1)
    expected = [[0, naive.count([5, 7])], [0, 0], [0, naive.count([1, 2])]]
    assert rows.tolist() == expected
