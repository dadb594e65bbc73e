"""Gradients that are too large: by number and by row where they are applied, by batch before."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ctrps import models
from ctrps.config import JobConfig, load_job
from ctrps.errors import ConfigError
from ctrps.kernels import clipping, optimizers
from ctrps.ps.partition import PartitionSet, contribute
from ctrps.runtime.local import train
from tests import naive
from tests.test_models import model_of, random_batch, random_weights
from tests.test_optimizers import rule
from tests.test_partition import contribution, pool_of

INF = math.inf


def clipped(gradients, counts, head, tail, most=INF, longest=INF):
    out = np.full_like(gradients, np.nan)
    clipping.clip_rows(gradients, counts, head, tail, np.float32(most), longest, out)
    return out


def drawn(seed: int, rows: int = 40, dim: int = 4):
    rng = np.random.default_rng(seed)
    size = rng.normal(scale=3, size=(rows, dim)).astype(np.float32)
    return size, rng.integers(1, 50, rows).astype(np.int32)


HEADS = {
    "sums": rule(optimizers.FTRL),
    "means": rule(optimizers.SGD, scale=np.float32(1 / 16)),
    "none": rule(optimizers.SGD, width=0),
}
TAIL = rule(optimizers.ADAGRAD, width=3, crowd=np.float32(1 / 16))


@pytest.mark.parametrize("most, longest", [(1.0, INF), (INF, 2.0), (1.5, 2.0), (INF, INF)])
@pytest.mark.parametrize("head", HEADS)
def test_rows_are_clipped_as_optimisers_take_them(head, most, longest):
    head = HEADS[head]
    gradients, counts = drawn(1, dim=head.width + TAIL.width)
    factors = [[head.scale] * head.width + [1 / (1 + count / 16)] * 3 for count in counts.tolist()]
    found = clipped(gradients, counts, head, TAIL, most, longest)
    expected = naive.clip_rows(gradients, factors, most, longest)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    taken = found * np.array(factors)
    assert np.abs(taken).max() <= most * 1.00001
    assert np.linalg.norm(taken, axis=1).max() <= longest * 1.00001
    assert (found.tobytes() == gradients.tobytes()) == (most == longest == INF)


def test_what_is_within_the_limits_keeps_its_bits():
    gradients, ones = np.float32([[0.3, -0.4, 0, 0], [0, 0, 0, 1]]), np.ones(2, np.int32)
    found = clipped(gradients, ones, HEADS["sums"], rule(optimizers.SGD, width=3), INF, 0.5)
    assert found[0].tobytes() == gradients[0].tobytes()
    assert found[1].tolist() == [0, 0, 0, 0.5]


def test_square_sum_adds_in_order_without_overflow():
    numbers = np.float32([1e30, -2.0, 3.0])
    assert clipping.square_sum(numbers) == np.float64(np.float32(1e30)) ** 2
    few = drawn(2)[0].reshape(-1)
    assert clipping.square_sum(few) == pytest.approx(naive.square_sum(few.astype(float)), 1e-12)


@pytest.mark.parametrize("kind", ["lr", "fm"])
def test_the_mean_gradient_of_a_batch_is_no_longer_than_asked(kind):
    model, batch = model_of(kind), random_batch(3)
    weights = random_weights(model, 4)
    free = model.gradient(batch, weights)
    length = math.hypot(*(float(g) for t in free.tables for g in t.flat)) / batch.rows
    for limit in (length / 3, length * 1.01):
        found = replace(model, clip_batch=limit).gradient(batch, weights)
        factor = min(1, limit / length)
        for a, b in zip(found.tables, free.tables, strict=True):
            np.testing.assert_allclose(a, b * factor, rtol=1e-6)
            assert (a.tobytes() == b.tobytes()) == (factor == 1)
        assert (found.loss_sum, found.margins.tobytes()) == (free.loss_sum, free.margins.tobytes())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, 3e38])
def test_a_gradient_that_is_not_finite_is_not_made_finite(value):
    model, batch = model_of("fm"), random_batch(3)
    weights = random_weights(model, 4)
    weights[0][0] = value
    with np.errstate(all="ignore"):
        found = replace(model, clip_batch=0.1).gradient(batch, weights)
    assert not np.isfinite(found.tables[0]).all()


def model_with(kind="fm", optimizer=None, **train) -> models.Model:
    settings = {"model": {"kind": kind, "dim": 3, "init_scale": 0.1}, "train": train}
    return models.build(JobConfig.model_validate(settings | {"optimizer": optimizer or {}}))


@pytest.mark.parametrize("limits", [{"clip_value": 0.04}, {"clip_row": 0.07}])
def test_a_step_moves_rows_as_the_clipped_sums_of_its_lanes_would(limits):
    plain = {"w": {"kind": "sgd", "alpha": 1.0}, "v": {"kind": "sgd", "alpha": 1.0}}
    model, rng = model_with(optimizer=plain, **limits), np.random.default_rng(5)
    pool = pool_of(rng)
    lanes = {lane: contribution(model, rng, pool) for lane in range(3)}
    free, tight = PartitionSet(model_with(optimizer=plain)), PartitionSet(model)
    keys = (pool, lanes[0].keys[1])
    starts = free.pull(keys)
    free.apply(lanes), tight.apply(lanes)
    steps = [[a - s for a, s in zip(p.pull(keys), starts, strict=True)] for p in (free, tight)]
    most, longest = limits.get("clip_value", INF), limits.get("clip_row", INF)
    clipped_any = False
    for whole, found in zip(*steps, strict=True):
        ones = np.ones(whole.shape)
        expected = naive.clip_rows(whole, ones.tolist(), most, longest)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        clipped_any |= bool(np.abs(found - whole).max() > 0.01)
    assert clipped_any


def test_the_count_of_rows_is_never_clipped():
    model = model_with("lr", {"w": {"kind": "count"}}, clip_value=0.1, clip_row=0.1)
    partitions = PartitionSet(model)
    batch = random_batch(1)
    keys = tuple(s.keys for s in model.key_sets(batch))
    partitions.apply({0: contribute(model, batch, partitions.pull(keys))})
    assert partitions.pull(keys)[0][:, 0].tolist() == batch.counts.tolist()


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clip_step", "clip_norm", "max_grad_norm"])
def test_the_norm_of_a_whole_step_is_refused_by_name(name):
    for section in ("train", "optimizer"):
        with pytest.raises(ConfigError) as error:
            load_job(None, [f"{section}.{name}=1.0"], {})
        assert f"{section}.{name}: the norm of a whole step" in str(error.value)
        assert "train.clip_row or train.clip_batch" in str(error.value)


@pytest.mark.parametrize("name", ["clip_value", "clip_row", "clip_batch"])
def test_row_at_a_time_there_is_no_clipping(tmp_path, name):
    with pytest.raises(ConfigError, match=f"train.{name}: train.fused learns row at a time"):
        load_job(None, ["train.fused=true", f"train.{name}=1"], {})
    job = load_job(None, ["train.consistency=async", f"train.{name}=1"], {})
    with pytest.raises(ConfigError, match=f"no clipping, and train.{name} is set"):
        train(job, False, lambda line: None)
    assert not (tmp_path / "runs").exists()
