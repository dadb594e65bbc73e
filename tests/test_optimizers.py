"""Steps on rows against published formulas."""

import numpy as np
import pytest
from numba import njit

from ctrps.kernels import optimizers as o
from ctrps.kernels.vectors import EIGHT, FOUR, ONE, address, load
from tests import naive

LANES = {1: ONE, 4: FOUR, 8: EIGHT}


def rule(kind, *, alpha=0.1, beta=1.0, l1=0.0, l2=0.0, at=0, width=1, **more):
    f = np.float32
    states = {o.FTRL: (1, 2), o.ADAGRAD: (0, 1)}.get(kind, (0, 0))
    places = (at, *(at + width * run for run in states), width)
    reals = (f(alpha), f(1 / alpha), f(beta), f(l1), f(l2), f(1), f(0), f(0))
    return o.Rule(kind, *reals, *places)._replace(**more)


@njit
def _step(rule, row, column, tag, gradient):
    o.step(rule, address(row), column, tag, load(tag, address(gradient), 0))


@njit
def _step_each(rule, rows, gradient):
    o.step_each(rule, address(rows), EIGHT, load(EIGHT, address(gradient), 0))


def weights_of(rule, gradients, start=0.0):
    """The weight after each gradient."""
    row, weights = np.zeros(3, np.float32), []
    row[0] = start
    for g in gradients:
        _step(rule, row, 0, ONE, np.float32([g]))
        weights.append(row[0])
    return weights


def drawn(seed, size=300):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32).tolist()


def test_ftrl_worked_example():
    found = weights_of(rule(o.FTRL, l1=1.0), [-3.0, -1.0, 5.5])
    assert [f"{w:.4f}" for w in found] == ["0.0500", "0.0740", "0.0000"]
    assert found == pytest.approx(naive.ftrl([-3.0, -1.0, 5.5], 0.1, 1.0, 1.0, 0.0), rel=1e-6)


@pytest.mark.parametrize("l1", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("l2", [0.0, 1.0])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_ftrl_agrees_with_algorithm_1(l1, l2, beta):
    found = weights_of(rule(o.FTRL, alpha=0.05, beta=beta, l1=l1, l2=l2), drawn(1))
    expected = naive.ftrl(drawn(1), 0.05, beta, l1, l2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


def test_ftrl_weights_are_exactly_zero_under_l1():
    rng = np.random.default_rng(2)
    rows, under = np.zeros((500, 3), np.float32), rule(o.FTRL, l1=1.5)
    for _ in range(20):
        for row, g in zip(rows, rng.normal(scale=0.3, size=500), strict=True):
            _step(under, row, 0, ONE, np.float32([g]))
    zero = abs(rows[:, 1]) <= 1.5
    assert 50 < zero.sum() < 450
    np.testing.assert_array_equal(rows[:, 0] == 0, zero)


@pytest.mark.parametrize("kind", [o.FTRL, o.ADAGRAD, o.SGD])
def test_without_a_gradient_a_random_start_stays(kind):
    row = np.float32([0.25, 0, 0])
    _step(rule(kind, beta=0.0), row, 0, ONE, np.float32([0]))
    assert row.tolist() == [0.25, 0, 0]


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_adagrad_agrees_with_its_formula(beta, l2):
    found = weights_of(rule(o.ADAGRAD, beta=beta, l2=l2), drawn(3), start=0.7)
    expected = naive.adagrad(drawn(3), 0.1, beta, l2, float(np.float32(0.7)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_sgd_agrees_with_its_formula(l2):
    found = weights_of(rule(o.SGD, l2=l2), drawn(4), start=0.7)
    expected = naive.sgd(drawn(4), 0.1, l2, float(np.float32(0.7)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


def test_count_adds_what_it_is_given():
    assert weights_of(rule(o.COUNT), [3, 4], start=2.0) == [5, 9]


@pytest.mark.parametrize("kind", [o.FTRL, o.ADAGRAD, o.SGD])
@pytest.mark.parametrize("lanes", [4, 8])
def test_columns_side_by_side_have_the_bits_of_each_alone(kind, lanes):
    rng = np.random.default_rng(lanes)
    together = rule(kind, l1=0.1, l2=0.1, at=1, width=lanes)
    row = rng.normal(size=1 + 3 * lanes).astype(np.float32)
    row[1 + lanes :] = abs(row[1 + lanes :])
    before, g = row.copy(), rng.normal(size=lanes).astype(np.float32)
    _step(together, row, 0, LANES[lanes], g)
    assert row[0] == before[0]
    runs = (together.at, together.z, together.n)
    for j in range(lanes):
        alone = before[[run + j for run in runs]].copy()
        single = together._replace(at=0, z=1, n=2 if together.n != together.at else 0, width=1)
        if together.n == together.at:
            alone[1:] = 0
        _step(single._replace(z=1 if kind == o.FTRL else 0), alone, 0, ONE, g[j : j + 1])
        assert row[together.at + j] == alone[0]
        if kind == o.FTRL:
            assert row[together.z + j] == alone[1]
        if kind != o.SGD:
            assert row[together.n + j] == alone[2]


@pytest.mark.parametrize("kind", [o.FTRL, o.ADAGRAD, o.SGD])
def test_rows_together_have_the_bits_of_each_alone(kind):
    rng = np.random.default_rng(9)
    rows = abs(rng.normal(size=(8, 5))).astype(np.float32)
    g = rng.normal(size=8).astype(np.float32)
    one = rule(kind, l1=0.1, l2=0.1, at=2)
    expected = rows.copy()
    for row, value in zip(expected, g, strict=True):
        _step(one, row, 0, ONE, np.float32([value]))
    order = rng.permutation(8)
    _step_each(one, rows.ctypes.data + 20 * order, g[order])
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("kind", [o.FTRL, o.ADAGRAD, o.SGD])
def test_huge_and_tiny_gradients_leave_finite_rows(kind):
    for g in (1e18, -1e18, 1e-38, -1e-38):
        row = np.zeros(3, np.float32)
        _step(rule(kind), row, 0, ONE, np.float32([g]))
        assert np.isfinite(row).all()
