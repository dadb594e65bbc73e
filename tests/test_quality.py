"""Models against truth from elsewhere: L2-regularised LR on a9a, planted models, and their data."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.datasets import load_svmlight_file, load_svmlight_files
from sklearn.metrics import roc_auc_score

from benchmarks import quality
from ctrps import models
from ctrps.config import load_job
from ctrps.data.badrows import BadRows
from ctrps.data.batches import BlockBatches
from ctrps.data.convert import to_shards
from ctrps.data.formats import TextSettings, read_rows
from ctrps.data.shards import Shard, joined
from ctrps.ps.table import RowSet, Table
from ctrps.runtime.inputs import text_settings
from ctrps.runtime.local import train

FEATURES = 123
L2 = 1.0
OPTIMUM = 10528.5724
"""Least 0.5 |w|^2 + summed log loss on a9a with a free intercept, from the data's README."""


class ByScipy:
    """The same objective in float64 by scipy, on rows that scikit-learn has read.

    The intercept is the last weight and has no penalty.
    """

    def __init__(self, path):
        x, self.y = load_svmlight_file(str(path), n_features=FEATURES)
        self.x = sparse.hstack([x, np.ones((x.shape[0], 1))]).tocsr()

    def objective(self, w):
        margins = self.y * (self.x @ w)
        penalty = L2 / 2 * np.sum(w[:-1] ** 2)
        slope = self.x.T @ (-self.y * expit(-margins)) + L2 * np.append(w[:-1], 0)
        return penalty - np.sum(log_expit(margins)), slope


class ByCtrps:
    """The objective by readers, shards, minibatches, ``Model.gradient`` and one plain step.

    A step of sgd moves a weight by alpha (g / rows + l2 w): with a large alpha the gradient,
    penalty included, can be read off the new weight without losing digits to the old one.
    """

    alpha = 1e5

    def __init__(self, path, cache):
        (self.shard,) = map(Shard, to_shards([path], TextSettings(), cache))
        penalty = f"optimizer.l2={L2 / self.shard.rows!r}"
        job = load_job(None, ["optimizer.kind=sgd", f"optimizer.alpha={self.alpha}", penalty], {})
        self.model = models.build(job)

    def batches(self, batch_rows=256):
        for block in self.shard.blocks():
            batches = BlockBatches(block, self.shard.schema, self.model.partition_bits)
            for first in range(0, block.rows, batch_rows):
                order = np.arange(first, min(first + batch_rows, block.rows))
                yield batches.minibatch(order)

    def objective(self, w):
        loss, counts = 0.0, np.zeros(FEATURES, np.int32)
        sums = np.zeros(FEATURES + 1)
        for batch in self.batches():
            at = batch.keys.astype(np.int64) - 1
            bias = w[-1:].reshape(1, 1)
            gradient = self.model.gradient(batch, (w[at].reshape(-1, 1), bias))
            loss += gradient.loss_sum
            sums[at] += gradient.tables[0][:, 0]
            sums[-1] += gradient.tables[1][0, 0]
            counts[at] += batch.counts
        slope = np.append(self.stepped(w[:-1], sums[:-1], counts), sums[-1])
        return L2 / 2 * np.sum(w[:-1].astype(np.float64) ** 2) + loss, slope

    def stepped(self, w, sums, counts):
        table, keys = Table(self.model.tables[0], 1), np.arange(FEATURES, dtype=np.uint64)
        table.load(RowSet(keys, w.reshape(-1, 1)))
        total = self.shard.rows
        table.step(keys, sums.astype(np.float32).reshape(-1, 1), counts, total)
        moved = table.weights(keys, absent_initial=False)[:, 0]
        return (w.astype(np.float64) - moved) / self.alpha * total


@pytest.fixture(scope="module")
def a9a(shared, tmp_path_factory):
    path = shared / "data" / "a9a" / "a9a_123d_train.libsvm.gz"
    return ByCtrps(path, tmp_path_factory.mktemp("a9a")), ByScipy(path)


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert np.linalg.norm(found[1] - expected[1]) <= 1e-6 * np.linalg.norm(expected[1])


@pytest.mark.parametrize(("seed", "scale"), [(1, 0.1), (2, 0.5), (3, 2.0)])
def test_objective_and_gradient_are_those_of_scipy(a9a, seed, scale):
    ours, truth = a9a
    w = np.random.default_rng(seed).normal(0, scale, FEATURES + 1).astype(np.float32)
    assert_same(ours.objective(w), truth.objective(w.astype(np.float64)))


def test_the_optimum_of_scipy_has_the_published_objective(a9a):
    ours, truth = a9a
    start, precise = np.zeros(FEATURES + 1), {"maxiter": 10_000, "ftol": 1e-12, "gtol": 1e-2}
    found = minimize(truth.objective, start, jac=True, method="L-BFGS-B", options=precise)
    assert found.fun == pytest.approx(OPTIMUM, rel=1e-7)
    assert ours.objective(found.x.astype(np.float32))[0] == pytest.approx(OPTIMUM, rel=1e-6)


class Planted:
    """Rows of one value in each of four fields, clicked with the probability of a planted model.

    Parameters
    ----------
    folder
        Receives ``train.svm`` and ``test.svm``.
    seed
    pairs : float
        Standard deviation of the planted vectors; 0 plants a linear model.
    """

    fields, names, dim = 4, 40, 4
    train_rows, test_rows = 60_000, 20_000

    def __init__(self, folder, seed, pairs):
        self.folder = folder
        rng = np.random.default_rng(seed)
        self.w = rng.normal(0, 0.6, self.fields * self.names)
        self.v = rng.normal(0, pairs, (self.fields * self.names, self.dim)) if pairs else None
        self.write("train.svm", self.train_rows, rng)
        self.auc = self.write("test.svm", self.test_rows, rng)

    def write(self, name, rows, rng):
        """Write one part; returns the AUC of the planted probabilities on it."""
        names = rng.integers(0, self.names, (rows, self.fields))
        keys = names + self.names * np.arange(self.fields)
        margins = self.w[keys].sum(axis=1) - 1
        if self.v is not None:
            v = self.v[keys]
            margins += ((v.sum(axis=1) ** 2).sum(axis=1) - (v**2).sum(axis=(1, 2))) / 2
        clicks = rng.random(len(margins)) < expit(margins)
        table = np.column_stack([clicks, keys])
        np.savetxt(self.folder / name, table, "%d" + " %d:1" * self.fields)
        return roc_auc_score(clicks, margins)

    def train(self, *settings):
        """Test AUC of a model trained with ``settings``."""
        files = [f"data.{part}={self.folder / part}.svm" for part in ("train", "test")]
        output = f"output.dir={self.folder / 'run'}"
        job = load_job(None, [*files, output, *settings], {})
        return train(job, overwrite=True, say=lambda line: None)["test"]["auc"]


def test_lr_finds_a_planted_linear_model(tmp_path):
    planted = Planted(tmp_path, seed=1, pairs=0)
    lr = planted.train("train.passes=10")
    assert planted.auc - 0.004 < lr < planted.auc + 0.001


def test_fm_finds_planted_pairs_that_lr_cannot(tmp_path):
    planted = Planted(tmp_path, seed=2, pairs=0.6)
    lr = planted.train("train.passes=4")
    fm = planted.train("train.passes=4", "model.kind=fm", "model.dim=4", "optimizer.v.alpha=0.1")
    assert fm > lr + 0.1
    assert planted.auc - 0.01 < fm < planted.auc + 0.001


def read(*paths):
    """(x, y) of each file, by scikit-learn; column i is key i."""
    found = load_svmlight_files([str(path) for path in paths], zero_based=True)
    return list(zip(found[::2], found[1::2], strict=True))


def test_a9a_has_the_same_columns_in_both_parts(shared, tmp_path):
    rows = quality.prepare_a9a(shared / "data" / "a9a", tmp_path)
    how = text_settings(load_job(quality.JOBS / "a9a_lr.yaml", [], {}))
    train, test = (joined([*read_rows(p, how, BadRows())]) for p in (rows.train, rows.test))
    assert (train.rows, test.rows) == (32_561, 16_281)
    clicks = [part.labels.mean() for part in (train, test)]
    assert clicks == pytest.approx([0.2408, 0.2362], abs=5e-5)
    counts = [np.bincount(part.keys.astype(int), minlength=FEATURES + 1) for part in (train, test)]
    means = [counts[0] / train.rows, counts[1] / test.rows]
    assert [len(m) for m in means] == [FEATURES + 1] * 2
    assert np.corrcoef(means)[0, 1] > 0.9995


def test_movielens_rows_hold_user_movie_and_weighted_genres(shared, tmp_path):
    rows = quality.prepare_movielens(shared / "data" / "movielens_small", tmp_path)
    (x, y), (test_x, test_y) = read(rows.train, rows.test)
    assert (len(y), len(test_y)) == (80_003, 20_001)
    assert np.mean(np.append(y, test_y)) == pytest.approx(0.516, abs=5e-4)
    both = sparse.vstack([x, test_x])
    np.testing.assert_allclose(both.sum(axis=1), 3, rtol=1e-6)
    genres = 20
    assert np.count_nonzero(both.getnnz(axis=0)) == 671 + 9_066 + genres


def test_validation_rows_are_training_rows_left_out_of_the_fit(tmp_path):
    train = [f"{i % 2} {i}:1" for i in range(105)]
    rows = quality.Rows.under(tmp_path / "set")
    quality.write_choice(rows, train)
    fit, validation = (p.read_text().splitlines() for p in (rows.fit, rows.validation))
    assert len(validation) == 10
    assert sorted(fit + validation) == sorted(train)


@pytest.mark.parametrize("case", [c for c in quality.CASES if c.job], ids=str)
def test_jobs_are_of_the_model_that_the_table_says(case):
    assert load_job(case.path, [*case.settings], {}).model.kind == case.model


@pytest.mark.parametrize("name", quality.GRIDS, ids="-".join)
def test_a_job_is_one_that_was_tried(name):
    case = next(c for c in quality.CASES if (c.data, c.model) == name)
    stated = load_job(case.path, [*case.settings], {})
    for key, values in quality.GRIDS[name].items():
        tried = [[*case.settings, f"{key}={value}"] for value in values]
        assert stated in [load_job(case.path, settings, {}) for settings in tried], key


@pytest.mark.slow
def test_logs_are_drawn_and_their_last_training_day_can_be_chosen_by(shared, tmp_path):
    logs = quality.Logs("taobao_lr.yaml", samples=700, test_samples=100, behaviors=0)
    rows = quality.prepare_logs(shared / "bench" / "taobao_gen.py", tmp_path, logs, choose=True)
    train, test, fit, validation = (
        sum(Shard(path).rows for path in folder.parent.glob(folder.name))
        for folder in (rows.train, rows.test, rows.fit, rows.validation)
    )
    assert (train, test) == (600, 100) and fit + validation == 600 and 50 < validation < 150
    assert 0.6 < rows.ceiling < 0.9
