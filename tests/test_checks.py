"""Kernels that look at numbers from elsewhere, against numpy."""

import numpy as np
import pytest

from ctrps.kernels import checks
from tests import naive


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan, None])
def test_numbers_are_finite_or_not(bad):
    rng = np.random.default_rng(6)
    for size in (0, 1, 7, 8, 33, 1000):
        numbers = (rng.normal(size=size) * 10.0 ** rng.integers(-45, 38, size)).astype(np.float32)
        if bad is not None and size:
            numbers[rng.integers(size)] = bad
        assert checks.finite(checks.bits(numbers)) == naive.finite(numbers.tolist())
    table = np.ones((4, 6), np.float32)
    assert checks.finite(checks.bits(table[:, ::2])) and checks.bits(table[:, ::2]).shape == (12,)


@pytest.mark.parametrize("bad", [0, -1, -(2**31), None])
def test_counts_are_positive_or_not(bad):
    rng = np.random.default_rng(7)
    for size in (0, 1, 9, 500):
        counts = rng.integers(1, 2**31, size).astype(np.int32)
        if bad is not None and size:
            counts[rng.integers(size)] = bad
        assert checks.positive(counts) == naive.positive(counts.tolist())
