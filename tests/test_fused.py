"""Training row at a time: against its twin, against sync steps of one row, and with threads."""

import json
import os
import signal
import threading

import numpy as np
import pytest
from numba import njit

from ctrps import checkpoint, models
from ctrps.config import JobConfig, load_job
from ctrps.data.shards import Block, Rows, Schema, ShardWriter
from ctrps.errors import ConfigError, DataError, Stopped
from ctrps.kernels import store, vectors
from ctrps.kernels.vectors import EIGHT, FOUR, ONE
from ctrps.ps.partition import PartitionSet
from ctrps.ps.plan import Manifest
from ctrps.ps.table import Table
from ctrps.runtime import fused, local
from ctrps.runtime.inputs import Inputs, open_inputs
from ctrps.runtime.launch import launch
from ctrps.runtime.scheduling import SchedulerProcess
from ctrps.runtime.security import Guard
from tests import naive, naive_fused
from tests.procs import read_lines, settings, trained, write_rows

NO_STOP = threading.Event()

# -- vectors ------------------------------------------------------------------------------------


@njit
def _arithmetic(tag, rows, out):
    """Each operation on the lanes of two rows, one result per row of ``out``."""
    a = vectors.load(tag, vectors.address(rows), 1)
    b = vectors.load(tag, vectors.address(rows) + 4 * rows.shape[1], 1)
    at, step = vectors.address(out), 4 * out.shape[1]
    vectors.store(a + b, at, 0)
    vectors.store(a - b * np.float32(2), at + step, 0)
    vectors.store(np.float32(3) * a / b, at + 2 * step, 0)
    vectors.store(vectors.root(a), at + 3 * step, 0)
    vectors.store(vectors.at_most(a, b, a, np.float32(7)), at + 4 * step, 0)
    vectors.store(vectors.fill(tag, vectors.total(a)), at + 5 * step, 0)


@pytest.mark.parametrize("tag", [ONE, FOUR, EIGHT])
def test_vectors_have_the_bits_of_numpy(tag):
    m = len(tag)
    rows = np.random.default_rng(m).uniform(0.5, 2, (2, m + 2)).astype(np.float32)
    rows[1, 1] = rows[0, 1]
    out = np.full((6, m + 1), 5, np.float32)
    _arithmetic(tag, rows, out)
    a, b = rows[0, 1:-1], rows[1, 1:-1]
    total = np.float32(0)
    for x in a:
        total += x
    f = np.float32
    expected = [a + b, a - b * f(2), f(3) * a / b, np.sqrt(a), np.where(a <= b, a, f(7))]
    np.testing.assert_array_equal(out[:5, :m], expected)
    np.testing.assert_array_equal(out[5, :m], np.full(m, total))
    assert (out[:, m] == 5).all()


def test_a_comparison_with_nan_is_false():
    rows = np.float32([[0, np.nan, 0], [0, 1, 0]])
    out = np.zeros((6, 2), np.float32)
    _arithmetic(ONE, rows, out)
    assert out[4, 0] == 7


@njit
def _moved(table, where, column, out):
    rows = vectors.address(where)
    got = vectors.gather(FOUR, rows, column)
    vectors.prefetch(vectors.whole(rows, 0))
    vectors.store(got, vectors.address(out), 0)
    vectors.scatter(got + vectors.real(vectors.address(table), 0), rows, column)


def test_gather_and_scatter_go_by_addresses():
    table = np.arange(30, dtype=np.float32).reshape(10, 3)
    table[0, 0] = 100
    rows = np.array([7, 2, 9, 4])
    where, out = table.ctypes.data + 12 * rows, np.zeros(4, np.float32)
    expected = table.copy()
    expected[rows, 1] += 100
    _moved(table, where, 1, out)
    assert out.tolist() == [22, 7, 28, 13]
    np.testing.assert_array_equal(table, expected)


# -- kernel -------------------------------------------------------------------------------------


def blocks_of(kind: str, **more) -> dict:
    """An optimiser block with penalties, so that every term has a part in the result."""
    constants = {"alpha": 0.2, "l2": 0.03, "count_scale": 4.0}
    if kind == "ftrl":
        constants |= {"l1": 0.05, "beta": 0.7}
    return {"kind": kind} | constants | more


def job_of(dim: int, w: str = "ftrl", v: str = "adagrad", **more) -> JobConfig:
    model = {"kind": "fm" if dim else "lr", "dim": max(dim, 1), "init_scale": 0.3}
    optimizer = {"w": blocks_of(w), "v": blocks_of(v)}
    return JobConfig.model_validate({"model": model, "optimizer": optimizer} | more)


def draw_block(rng: np.random.Generator, mean: bool, rows: int = 60) -> tuple[Block, Schema]:
    """Rows of few keys, so that they meet often: some empty, some with a key twice."""
    schema = Schema(("a", "b"), ("d", "e"), "mean" if mean else "value")
    counts = rng.integers(0, 9, (rows, 2)).astype(np.int32)
    nnz = int(counts.sum())
    keys = rng.integers(0, 25, nnz).astype(np.uint64) * np.uint64(2**58)
    values = None if mean else rng.normal(size=nnz).astype(np.float32)
    if values is not None:
        values[::7] = 0
    dense = rng.normal(size=(rows, 2)).astype(np.float32)
    dense[rng.random((rows, 2)) < 0.3] = 0
    labels = rng.integers(0, 2, rows).astype(np.float32)
    return Block.from_rows(Rows(keys, counts, values, dense, labels), schema), schema


def train_kernel(job: JobConfig, block: Block, schema: Schema, order: np.ndarray):
    """The partitions after ``order``, and what the kernel returned."""
    partitions = PartitionSet(models.build(job))
    passes = fused.Fused(job, Inputs(Manifest((), ()), schema, 0.0, 0), partitions)
    return partitions, passes._train(block, order)


def train_twin(job: JobConfig, block: Block, schema: Schema, order: np.ndarray):
    model = models.build(job)
    values = np.zeros(0, np.float32) if block.values is None else block.values
    dense_at = len(block.keys) - len(schema.dense)
    taken = naive.take_rows(
        block.index, block.counts, values, block.dense, dense_at, order, schema.weights == "mean"
    )
    rows = [{int(block.keys[k]): float(x) for k, x in row.items()} for row in taken]
    w, v, b = (job.optimizer_for(part) for part in ("w", "v", "intercept"))
    start = job.model.init_scale
    twin = naive_fused.Model(
        model.dim, w, v, b, lambda key, f: start * naive.initial(model.seed, key, 1 + f)
    )
    return twin, naive_fused.train_rows(twin, rows, block.labels[order].tolist())


def compare(partitions: PartitionSet, twin: naive_fused.Model) -> None:
    table, intercept = partitions.tables
    assert table.snapshot(0)[0].keys.tolist() == sorted(twin.keys)
    weights = table.weights(np.array(list(twin.keys), np.uint64), absent_initial=False)
    expected = [[c.w for c in held] for held in twin.keys.values()]
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(intercept.snapshot(0)[0].rows[0, 0], twin.intercept.w, rtol=1e-4)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("dim", [0, 1, 4, 8, 15, 32])
def test_the_kernel_agrees_with_its_twin(dim, mean):
    rng = np.random.default_rng(dim)
    block, schema = draw_block(rng, mean)
    job, order = job_of(dim), rng.permutation(block.rows)
    partitions, (loss_sum, scores) = train_kernel(job, block, schema, order)
    twin, (margins, expected_loss) = train_twin(job, block, schema, order)
    np.testing.assert_allclose(scores.margins, margins, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(scores.labels, block.labels[order])
    assert loss_sum == pytest.approx(expected_loss, rel=1e-5)
    compare(partitions, twin)


@pytest.mark.parametrize("w", ["ftrl", "adagrad", "sgd"])
@pytest.mark.parametrize("v", ["ftrl", "adagrad", "sgd"])
def test_every_optimiser_of_every_part_agrees_with_the_twin(w, v):
    block, schema = draw_block(np.random.default_rng(5), mean=False)
    job, order = job_of(12, w, v), np.arange(block.rows)
    partitions, _ = train_kernel(job, block, schema, order)
    compare(partitions, train_twin(job, block, schema, order)[0])


def test_a_step_of_one_row_is_that_of_sync_mode(tmp_path):
    data = {"data_train": write_rows(tmp_path / "rows.libsvm", 300, seed=1)}
    one = {"train_batch_rows": 1, "train_lanes": 1, "train_shuffle": "none", "model_kind": "fm"}
    found = {}
    for name, way in (("fused", {"train_fused": True}), ("sync", {})):
        run = trained(settings(**data, **one, **way, output_dir=tmp_path / name))
        assert run["steps"] == 300
        opened = checkpoint.Checkpoint(tmp_path / name / "model")
        found[name] = [rows for number in range(64) for rows in opened.read(number).tables]
    for (keys, rows), (expected_keys, expected) in zip(found["fused"], found["sync"], strict=True):
        np.testing.assert_array_equal(keys, expected_keys)
        np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-6)


def test_a_gradient_too_small_to_square_moves_nothing():
    labels = np.float32([1])
    rows = Rows(np.uint64([3]), np.int32([[1]]), np.float32([1e-30]), np.zeros((1, 0)), labels)
    schema = Schema(("",), (), "value")
    block = Block.from_rows(rows, schema)
    partitions, _ = train_kernel(job_of(0), block, schema, np.zeros(1, np.int64))
    np.testing.assert_array_equal(
        partitions.tables[0].snapshot(0)[0].rows, np.zeros((1, 3), np.float32)
    )


def test_only_keys_of_the_rows_become_rows_of_the_table():
    block, schema = draw_block(np.random.default_rng(3), mean=True)
    dense = block.dense.copy()
    dense[10:20, 1] = 0
    block = Block(block.keys, block.index, block.counts, None, dense, block.labels)
    order = np.arange(10, 20)[::-1].copy()
    partitions, _ = train_kernel(job_of(2), block, schema, order)
    compare(partitions, train_twin(job_of(2), block, schema, order)[0])
    assert int(block.keys[-1]) not in partitions.tables[0].snapshot(0)[0].keys


def test_no_rows_make_no_keys():
    block, schema = draw_block(np.random.default_rng(4), mean=True)
    partitions, (loss_sum, scores) = train_kernel(job_of(2), block, schema, np.zeros(0, np.int64))
    assert partitions.keys_held == 0 and loss_sum == 0 and len(scores.margins) == 0


# -- tables that threads share ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_threads_find_their_rows_through_growth(seed):
    spec = models.build(job_of(0, "count")).tables[0]
    table, rules = Table(spec, seed=1), spec.rules()
    none = np.empty((0, 1), np.float32)
    ones = np.ones((300, 1), np.float32), np.ones(300, np.int32)
    shared, count, rounds = fused.SharedTable(table), 4, 40
    rng = np.random.default_rng(seed)
    # Each thread counts on keys of its own, and looks up keys of all.
    own = np.arange(count * 50, dtype=np.uint64).reshape(count, 50)
    orders = [[rng.permutation(own.size) for _ in range(rounds)] for _ in range(count)]

    def run(me: int) -> None:
        scratch = np.empty(store.SCRATCH, np.int64)
        for order in orders[me]:
            keys = np.union1d(own.reshape(-1)[order[:100]], own[me])
            with shared.entries(keys) as entries:
                mine = np.flatnonzero(np.isin(keys, own[me]))
                store.step_rows(entries, mine, *ones, *rules, none, scratch)

    threads = [threading.Thread(target=run, args=(me,)) for me in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys, rows = table.snapshot(0)[0]
    assert keys.tolist() == own.reshape(-1).tolist()
    np.testing.assert_array_equal(rows[:, 0], np.full(own.size, rounds))


def test_a_failure_while_training_leaves_the_table_usable():
    shared = fused.SharedTable(Table(models.build(job_of(0)).tables[0], seed=1))
    with pytest.raises(ZeroDivisionError), shared.entries(np.uint64([1])):
        raise ZeroDivisionError
    with shared.entries(np.arange(9, dtype=np.uint64)) as entries:
        assert len(set(entries.tolist())) == 9


# -- runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("data")
    return {
        "data_train": write_rows(folder / "train.libsvm", 2000, seed=1),
        "data_test": write_rows(folder / "test.libsvm", 500, seed=2),
        "train_batch_rows": 16,
        "train_fused": True,
    }


def job(data: dict[str, object], folder: object, **values: object) -> list[str]:
    return settings(**(data | {"output_dir": folder} | values))


@pytest.mark.parametrize("kind", ["lr", "fm"])
def test_one_thread_gives_the_same_bits_and_several_learn_as_well(data, tmp_path, kind):
    values = {"model_kind": kind, "train_passes": 2}
    runs = [
        trained(job(data, tmp_path / str(number), **values, train_threads=threads))
        for number, threads in enumerate((1, 1, 2, 3))
    ]
    assert runs[0]["model_digest"] == runs[1]["model_digest"]
    assert {run["keys"] for run in runs} == {300}
    assert all(run["test"]["auc"] > 0.83 for run in runs)
    assert runs[0]["fused"] and runs[0]["rows"] == runs[0]["steps"] == 4000


@pytest.mark.parametrize("shuffle", ["none", "chunks", "rows"])
def test_every_row_is_scored_once_before_it_is_trained_on(data, tmp_path, shuffle):
    trained(job(data, tmp_path / "run", train_shuffle=shuffle, train_threads=2))
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    last = [line for line in lines if line["phase"] == "train"][-1]
    assert (last["rows"], last["scored_rows"], last["step"], last["steps"]) == (2000,) * 4
    assert 0.4 < last["logloss"] < 0.65 and last["auc"] > 0.7


def test_a_step_is_another_one_than_in_sync(data, tmp_path):
    runs = [trained(job(data, tmp_path / str(f), train_fused=f)) for f in (True, False)]
    assert runs[0]["model_digest"] != runs[1]["model_digest"]


def interrupted(overrides: list[str]) -> None:
    """Train, and interrupt this process at the first figures."""
    with pytest.raises(Stopped, match=r"interrupted at step \d+ of 2000, model saved"):
        local.train(
            load_job(None, overrides, {}), False, lambda _: os.kill(os.getpid(), signal.SIGINT)
        )


def test_an_interrupted_run_goes_on_where_it_stopped(data, tmp_path):
    overrides = job(data, tmp_path / "run", model_kind="fm", train_passes=2)
    interrupted(overrides)
    manifest = checkpoint.read_manifest(tmp_path / "run" / "model")
    assert manifest.pass_ == 0 and 0 < manifest.step < 2000 and not manifest.border
    rest = trained(overrides)
    whole = trained(job(data, tmp_path / "whole", model_kind="fm", train_passes=2))
    assert rest["rows"] == 4000 - manifest.step
    assert rest["model_digest"] == whole["model_digest"] and rest["test"] == whole["test"]


def test_inside_a_pass_a_run_goes_on_in_its_own_way_only(data, tmp_path):
    interrupted(job(data, tmp_path / "run"))
    with pytest.raises(ConfigError, match="the run stopped at step"):
        trained(job(data, tmp_path / "run", train_fused=False))


def test_async_in_one_process_is_row_at_a_time(data, tmp_path):
    given = {key: value for key, value in data.items() if key != "train_fused"}
    run = trained(job(given, tmp_path / "async", train_consistency="async"))
    assert run["fused"] and run["consistency"] == "async"
    assert run["model_digest"] == trained(job(data, tmp_path / "fused"))["model_digest"]


def test_ssp_in_one_process_is_sync(data, tmp_path):
    given = data | {"train_fused": False}
    runs = [trained(job(given, tmp_path / c, train_consistency=c)) for c in ("ssp", "sync")]
    assert runs[0]["model_digest"] == runs[1]["model_digest"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_margin_that_is_not_finite_names_file_and_row(tmp_path, threads):
    rows = tmp_path / "huge.libsvm"
    rows.write_text("1 1:1 2:1\n" * 40 + "0 1:3e38 2:-3e38\n" * 2 + "1 1:1\n" * 20)
    overrides = settings(
        data_train=rows,
        output_dir=tmp_path / "run",
        model_kind="fm",
        train_fused=True,
        train_shuffle="none",
        train_threads=threads,
    )
    with pytest.raises(DataError, match=f"{rows}: the margin of row 4[12] is not finite"):
        trained(overrides)
    assert not checkpoint.exists(tmp_path / "run" / "model")


def test_a_cluster_refuses_it(data, tmp_path):
    refused = load_job(None, job(data, tmp_path / "run"), {})
    what = r"--set: train\.fused learns in one process, without servers and workers"
    with pytest.raises(ConfigError, match=what):
        launch(refused, False, lambda _: None, lambda _: None, lambda _: 1)
    with pytest.raises(ConfigError, match=what):
        SchedulerProcess(refused, False, lambda _: None, Guard())
    assert not (tmp_path / "run").exists()


def test_blocks_of_both_widths_and_several_files(tmp_path):
    rng = np.random.default_rng(8)
    paths = []
    for number in range(2):
        block, schema = draw_block(rng, mean=True, rows=50)
        paths.append(tmp_path / f"{number}.shard")
        with ShardWriter(paths[-1], schema, block_rows=16) as writer:
            writer.add(block.to_rows())
    values = {"train_batch_rows": 4, "train_chunk_batches": 3, "model_kind": "fm"}
    given = settings(
        data_train=json.dumps([str(p) for p in paths]),
        output_dir=tmp_path / "run",
        train_fused=True,
        train_shuffle="rows",
        **values,
    )
    run = trained(given)
    inputs = open_inputs(load_job(None, given, {}))
    assert run["rows"] == sum(sum(f.block_rows) for f in inputs.manifest.train) == 100
    assert run["keys"] == 27
