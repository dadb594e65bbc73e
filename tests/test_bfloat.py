"""Half the bytes on the way: rounding, and runs whose weights and gradients are rounded."""

import numpy as np
import pytest

from ctrps import models
from ctrps.config import JobConfig
from ctrps.kernels import bfloat
from tests import naive
from tests.procs import settings, trained, write_rows


def narrowed(numbers: np.ndarray) -> np.ndarray:
    out = np.empty(len(numbers), np.uint16)
    bfloat.to_bfloat16(numbers.view(np.uint32), out)
    return out


def widened(halves: np.ndarray) -> np.ndarray:
    out = np.empty(len(halves), np.float32)
    bfloat.from_bfloat16(halves, out.view(np.uint32))
    return out


def test_every_bfloat16_comes_back():
    every = np.arange(1 << 16, dtype=np.uint16)
    numbers = widened(every)
    assert numbers.tolist()[:5] == [naive.from_bfloat16(half) for half in range(5)]
    known = ~np.isnan(numbers)
    np.testing.assert_array_equal(narrowed(numbers)[known], every[known])
    assert np.isnan(widened(narrowed(numbers))[~known]).all()


@pytest.mark.parametrize("seed", range(3))
def test_rounding_is_to_the_nearest(seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, 2000, dtype=np.uint32)
    # Halfway between two of them, and next to that.
    bits[:600] = bits[:600] & np.uint32(0xFFFF0000) | rng.integers(0x7FFF, 0x8002, 600).astype("u4")
    numbers = bits.view(np.float32)
    assert narrowed(numbers).tolist() == [naive.to_bfloat16(x) for x in numbers.tolist()]


def test_the_relative_error_is_at_most_two_to_the_minus_eight_or_nine():
    numbers = np.random.default_rng(4).normal(size=10_000).astype(np.float32)
    error = abs(widened(narrowed(numbers)) - numbers) / abs(numbers)
    assert 2**-10 < error.max() <= 2**-8


def test_only_the_sparse_table_is_rounded():
    job = JobConfig.model_validate({"model": {"kind": "fm"}, "train": {"transfer": "bfloat16"}})
    model = models.build(job)
    sparse, intercept = np.full((3, 9), 1 / 3, np.float32), np.float32([[1 / 3]])
    narrow = model.narrow((sparse, intercept))
    assert [a.dtype for a in narrow] == [np.uint16, np.float32]
    wide = model.widen(narrow)
    assert wide[0].shape == (3, 9) and 0 < abs(wide[0] - 1 / 3).max() < 1e-3
    assert wide[1] is intercept
    plain = models.build(JobConfig())
    assert plain.narrow((sparse, intercept))[0] is sparse


def test_train_and_a_cluster_round_alike(tmp_path):
    data = {"data_train": write_rows(tmp_path / "rows.libsvm", 800, seed=1), "model_kind": "fm"}
    runs = {
        name: trained(settings(**data, **way, output_dir=tmp_path / name))
        for name, way in (
            ("half", {"train_transfer": "bfloat16"}),
            ("two", {"train_transfer": "bfloat16", "train_threads": 2}),
            ("whole", {}),
        )
    }
    assert runs["half"]["model_digest"] == runs["two"]["model_digest"]
    assert runs["half"]["model_digest"] != runs["whole"]["model_digest"]
