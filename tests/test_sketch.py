"""Counting different keys: registers against their twin, estimates against the truth."""

import numpy as np
import pytest

from ctrps.kernels import sketch
from tests import naive


def taken(keys: np.ndarray) -> np.ndarray:
    registers = sketch.empty()
    sketch.sketch_add(keys, registers)
    return registers


def test_registers_are_those_of_the_twin():
    rng = np.random.default_rng(2)
    few = np.uint64([0, 1, 2**64 - 1, 77, 77])
    for keys in (few, rng.integers(0, 2**64, 20_000, np.uint64), np.arange(500, dtype=np.uint64)):
        expected = naive.sketch_add(keys.tolist(), sketch.REGISTERS)
        np.testing.assert_array_equal(taken(keys), expected)


@pytest.mark.parametrize("count", [0, 1, 10, 1000, 10_000, 30_000, 300_000, 3_000_000])
def test_the_estimate_is_near(count):
    # Five standard errors of 1.04 / sqrt(4096), and one key.
    for first in (0, 2**40):
        keys = np.arange(first, first + count, dtype=np.uint64)
        assert abs(sketch.distinct([taken(keys)]) - count) <= 0.082 * count + 1


def test_repeats_and_the_split_into_parts_do_not_matter():
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 50_000, 200_000).astype(np.uint64)
    parts = [taken(part) for part in np.array_split(keys, 7)]
    assert sketch.distinct(parts) == sketch.distinct([taken(np.unique(keys))])
    assert sketch.distinct([]) == 0
