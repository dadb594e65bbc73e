"""Models as a whole: layout of rows, keys of a batch, prediction and gradient of LR and FM."""

import numpy as np
import pytest

from ctrps import models
from ctrps.config import JobConfig
from ctrps.kernels import keys as key_kernels
from ctrps.models import INTERCEPT_KEY, Minibatch
from ctrps.ps.table import Table
from tests import naive

BITS = 3


def model_of(kind: str, dim: int = 3, **optimizer) -> models.Model:
    job = {
        "model": {"kind": kind, "dim": dim, "init_scale": 0.1},
        "optimizer": optimizer,
        "train": {"partitions": 1 << BITS, "seed": 5},
    }
    return models.build(JobConfig.model_validate(job))


def random_batch(seed: int, rows: int = 14, size: int = 9) -> Minibatch:
    """A batch of ``size`` keys; rows hold none to five of them."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**64, size, dtype=np.uint64)
    order, starts = naive.grouped(keys, BITS)
    chosen = [rng.permutation(size)[: int(rng.integers(0, 6))] for _ in range(rows)]
    index = np.concatenate(chosen).astype(np.int32)
    return Minibatch(
        keys=keys[order],
        starts=np.int32(starts),
        counts=np.bincount(index, minlength=size).astype(np.int32),
        indptr=np.append(0, np.cumsum([len(row) for row in chosen])).astype(np.int64),
        index=index,
        values=rng.normal(size=len(index)).astype(np.float32),
        labels=rng.integers(0, 2, rows).astype(np.float32),
    )


def random_weights(model: models.Model, seed: int, keys: int = 9) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    shapes = [(keys, model.tables[0].dim), (1, 1)]
    return tuple(rng.normal(scale=0.5, size=shape).astype(np.float32) for shape in shapes)


FORWARD = {"lr": naive.lr_forward, "fm": naive.fm_forward}


def oracle(kind: str, batch: Minibatch, weights: tuple[np.ndarray, ...]):
    """(forward, rows, float64 weights, bias, labels) for the functions of ``naive``."""
    rows = naive.rows_of(batch.indptr, batch.index, batch.values)
    return FORWARD[kind], rows, weights[0].astype(np.float64), float(weights[1][0, 0]), batch.labels


# -- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lr", "fm"])
@pytest.mark.parametrize("seed", range(3))
def test_margins_and_loss(kind, seed):
    model, batch = model_of(kind), random_batch(seed)
    weights = random_weights(model, seed)
    forward, rows, wide, bias, labels = oracle(kind, batch, weights)
    margins = model.margins(batch, weights)
    assert margins.dtype == np.float32
    np.testing.assert_allclose(margins, forward(rows, wide, bias), rtol=1e-5, atol=1e-5)
    expected = naive.loss(forward, rows, wide, bias, labels)
    assert model.gradient(batch, weights).loss_sum == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["lr", "fm"])
@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_that_of_finite_differences(kind, seed):
    model, batch = model_of(kind), random_batch(seed)
    weights = random_weights(model, seed)
    sparse, intercept = model.gradient(batch, weights).tables
    forward, rows, wide, bias, labels = oracle(kind, batch, weights)

    expected = naive.gradient(forward, rows, wide, bias, labels)
    assert (sparse.dtype, sparse.shape) == (np.float32, expected.shape)
    np.testing.assert_allclose(sparse, expected, rtol=1e-4, atol=2e-5)

    step = 1e-5
    losses = [naive.loss(forward, rows, wide, bias + sign * step, labels) for sign in (1, -1)]
    assert (intercept.dtype, intercept.shape) == (np.float32, (1, 1))
    assert intercept[0, 0] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-4)


@pytest.mark.parametrize("kind", ["lr", "fm"])
def test_a_batch_whose_rows_hold_no_key_trains_the_intercept(kind):
    none = np.zeros(0, np.int32)
    batch = Minibatch(
        keys=np.zeros(0, np.uint64),
        starts=np.zeros((1 << BITS) + 1, np.int32),
        counts=none,
        indptr=np.zeros(4, np.int64),
        index=none,
        values=np.zeros(0, np.float32),
        labels=np.float32([1, 0, 1]),
    )
    model = model_of(kind)
    sparse = np.zeros((0, model.tables[0].dim), np.float32)
    result = model.gradient(batch, (sparse, np.zeros((1, 1), np.float32)))
    assert result.tables[0].shape == (0, model.tables[0].dim)
    assert result.tables[1].tolist() == [[-0.5]]
    assert result.loss_sum == pytest.approx(3 * np.log(2))


def test_a_gradient_is_the_same_bits_every_time():
    model, batch = model_of("fm"), random_batch(1)
    weights = random_weights(model, 1)
    first, again = model.gradient(batch, weights), model.gradient(batch, weights)
    assert [t.tobytes() for t in first.tables] == [t.tobytes() for t in again.tables]
    assert first.loss_sum == again.loss_sum


# -- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lr", "fm"])
def test_key_sets(kind):
    model, batch = model_of(kind), random_batch(2)
    sparse, intercept = model.key_sets(batch)
    assert sparse == (batch.keys, batch.starts, batch.counts)
    assert intercept.keys.tolist() == [INTERCEPT_KEY]
    assert intercept.counts.tolist() == [batch.rows]
    (partition,) = naive.partition_of([INTERCEPT_KEY], BITS)
    assert intercept.starts.tolist() == [int(p > partition) for p in range((1 << BITS) + 1)]
    dtypes = [(s.keys.dtype, s.starts.dtype, s.counts.dtype) for s in (sparse, intercept)]
    assert dtypes == [(np.uint64, np.int32, np.int32)] * 2


def test_the_intercept_is_a_table_of_its_own():
    # So a feature that happens to have the same key is another row.
    model = model_of("lr")
    assert [table.name for table in model.tables] == ["sparse", "intercept"]
    assert INTERCEPT_KEY == key_kernels.key_of("\0intercept", "")


# -- layout -------------------------------------------------------------------------------------


def layout(table: models.TableSpec) -> list[tuple]:
    return [(p.name, p.at, p.width, p.optimizer.kind, p.init_scale) for p in table.parts]


def test_layout_of_lr():
    model = model_of("lr")
    assert layout(model.tables[0]) == [("w", 0, 1, "ftrl", 0.0)]
    assert layout(model.tables[1]) == [("intercept", 0, 1, "ftrl", 0.0)]
    assert [(t.dim, t.width) for t in model.tables] == [(1, 3), (1, 3)]
    assert (model.dim, model.partitions, model.seed) == (0, 8, 5)


def test_layout_of_fm():
    model = model_of("fm")
    assert layout(model.tables[0]) == [
        ("w", 0, 1, "ftrl", 0.0),
        ("v", 1, 3, "adagrad", 0.1),
    ]
    assert (model.tables[0].dim, model.tables[0].width) == (4, 9)


def test_layout_follows_the_optimizers():
    blocks = {"w": {"kind": "sgd", "alpha": 0.1}, "v": {"kind": "ftrl", "alpha": 0.1}}
    table = model_of("fm", **blocks).tables[0]
    assert layout(table) == [("w", 0, 1, "sgd", 0.0), ("v", 1, 3, "ftrl", 0.1)]
    assert table.width == 4 + 6


def test_the_intercept_has_no_penalties():
    model = model_of("lr", w={"kind": "ftrl", "alpha": 0.3, "l1": 2.0, "l2": 1.0})
    w, intercept = (table.parts[0].optimizer for table in model.tables)
    assert (w.alpha, w.l1, w.l2) == (0.3, 2.0, 1.0)
    assert (intercept.alpha, intercept.l1, intercept.l2) == (0.3, 0.0, 0.0)


def test_sgd_takes_the_mean_over_the_step_and_the_others_the_sum():
    counts, gradient = np.int32([4]), np.float32([[6.0]])
    blocks = {"sgd": 0.1 * 6 / 12, "adagrad": 0.1 * 6 / (1 + 6), "ftrl": 0.1 * 6 / (1 + 6)}
    for kind, moved in blocks.items():
        table = Table(model_of("lr", w={"kind": kind, "alpha": 0.1, "beta": 1.0}).tables[0], 1)
        table.step(np.uint64([7]), gradient, counts, 12)
        found = table.weights(np.uint64([7]), absent_initial=True)
        assert found[0, 0] == pytest.approx(-moved, rel=1e-6), kind
