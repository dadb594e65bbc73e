"""The folder of a run: who may use it, what is thrown away, and from where training goes on."""

import json
import os
from pathlib import Path

import pytest

from ctrps.checkpoint import commit
from ctrps.config import JobConfig, load_job
from ctrps.errors import ClusterError, ConfigError, DataError
from ctrps.runtime.inputs import open_inputs
from ctrps.runtime.rundir import RunFolder, config_digest, plan_digest, write_json
from tests.procs import settings, trained, write_rows


@pytest.fixture
def rows(tmp_path) -> Path:
    return write_rows(tmp_path / "train.libsvm", 200, seed=1)


def overrides(rows: Path, **values: object) -> list[str]:
    base = {"data_train": rows, "output_dir": rows.parent / "run", "train_batch_rows": 16}
    return settings(**{key: v for key, v in (base | values).items() if v is not None})


def job_of(rows: Path, **values: object) -> JobConfig:
    return load_job(None, overrides(rows, **values), {})


def test_a_new_run(rows):
    job = job_of(rows)
    folder = RunFolder(job)
    assert folder.resume is None
    assert sorted(path.name for path in folder.path.iterdir()) == [
        *(".lock", "config.resolved.yaml", "logs", "model")
    ]
    folder.close()
    resolved = folder.path / "config.resolved.yaml"
    assert load_job(resolved, [], {}) == job
    assert "lanes: 4  # default\n" in resolved.read_text()
    assert f"train: [{rows}]  # --set\n" in resolved.read_text()


def test_a_folder_is_used_by_one_run_at_a_time(rows):
    first = RunFolder(job_of(rows))
    with pytest.raises(ClusterError) as raised:
        RunFolder(job_of(rows), overwrite=True)
    assert str(raised.value) == (
        f"{first.path}: another run (process {os.getpid()}) is using this folder; "
        "wait for it, or set another output.dir"
    )
    first.close()
    RunFolder(job_of(rows)).close()


def test_a_lock_that_a_killed_run_left_is_no_lock(rows):
    folder = rows.parent / "run"
    folder.mkdir()
    (folder / ".lock").write_text("4194304\n")
    RunFolder(job_of(rows)).close()


def test_a_finished_run_is_refused_and_stays_as_it_was(rows):
    summary = trained(overrides(rows))
    before = {p: p.stat().st_mtime_ns for p in (rows.parent / "run").rglob("*.part")}
    with pytest.raises(ConfigError) as raised:
        RunFolder(job_of(rows))
    assert str(raised.value) == (
        f"{rows.parent / 'run'}: a finished run of 1 pass(es) is there; "
        "use --overwrite, another output.dir, or more train.passes to go on"
    )
    after = {p: p.stat().st_mtime_ns for p in (rows.parent / "run").rglob("*.part")}
    assert before == after
    found = json.loads((rows.parent / "run" / "summary.json").read_text())
    assert found == summary


def test_overwrite_keeps_data_and_cache(rows):
    trained(overrides(rows))
    run = rows.parent / "run"
    (run / "data").mkdir()
    (run / "data" / "train-0.shard").write_text("made by extract")
    (run / "logs" / "worker-0.log").write_text("old")
    cached = {path.name for path in (run / "cache").iterdir()}
    job = job_of(rows)
    folder = RunFolder(job, overwrite=True)
    assert list(run.rglob("*.part")), "the old model is there until the data is known to be good"
    folder.begin(open_inputs(job))
    folder.close()
    assert folder.resume is None
    assert {path.name for path in (run / "cache").iterdir()} == cached
    assert (run / "data" / "train-0.shard").exists()
    assert not list(run.rglob("*.part")) and not list((run / "logs").iterdir())
    assert not (run / "summary.json").exists() and not (run / "metrics.jsonl").exists()


def test_more_passes_go_on(rows):
    trained(overrides(rows))
    folder = RunFolder(job_of(rows, train_passes=2))
    folder.close()
    assert folder.resume is not None
    assert folder.resume.position(2) == (0, 1, 0)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"model_dim": 4}, ["dim is 8 in the model and 4 in the job"]),
        (
            {"model_kind": "lr"},
            ["kind is 'fm' in the model and 'lr' in the job; use the model's settings"],
        ),
        ({"train_seed": 2}, ["seed is 1 in the model and 2 in the job"]),
        ({"train_partitions": 8}, ["partitions is 64 in the model and 8 in the job"]),
        (
            {"optimizer_w.kind": "sgd"},
            ["optimizers.w is 'ftrl' in the model and 'sgd' in the job; use the model's"],
        ),
    ],
)
def test_a_model_of_other_settings_is_refused_with_both_values(rows, values, texts):
    trained(overrides(rows, model_kind="fm"))
    with pytest.raises(ConfigError) as raised:
        RunFolder(job_of(rows, **({"model_kind": "fm", "train_passes": 2} | values)))
    assert all(text in str(raised.value) for text in texts)
    assert str(raised.value).endswith(
        "use the model's settings, another output.dir, or --overwrite"
    )


def test_rates_may_change_between_runs(rows):
    trained(overrides(rows))
    RunFolder(job_of(rows, train_passes=2, **{"optimizer_w.alpha": 0.2})).close()


@pytest.mark.parametrize("name", ["rows.libsvm", "rows.libsvm/run"])
def test_a_folder_that_cannot_be_is_named(rows, name):
    (rows.parent / "rows.libsvm").touch()
    folder = rows.parent / name
    with pytest.raises(DataError) as raised:
        RunFolder(job_of(rows, output_dir=folder))
    assert str(raised.value).startswith(f"{folder}: cannot write there: ")
    assert str(raised.value).endswith("; set output.dir")


def test_json_files_are_whole_or_not_there(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"auc": None, "rows": 3})
    with pytest.raises(TypeError):
        write_json(path, {"auc": object()})
    assert json.loads(path.read_text()) == {"auc": None, "rows": 3}
    assert list(tmp_path.iterdir()) == [path]


def test_nodes_need_not_agree_on_places_counts_and_limits(rows):
    base = config_digest(job_of(rows))
    same = {
        "cluster_scheduler": "127.0.0.1:9000",
        "cluster_workers": 7,
        "cluster_beat_s": 0.5,
        "output_dir": rows.parent / "elsewhere",
        "train_threads": 2,
    }
    assert config_digest(job_of(rows, **same)) == base
    for other in ({"train_passes": 2}, {"train_lanes": 2}, {"optimizer_w.l1": 1}):
        assert config_digest(job_of(rows, **other)) != base


def test_the_plan_depends_on_the_data_and_the_lanes(rows):
    def plan(**values: object) -> str:
        job = job_of(rows, **values)
        return plan_digest(job, open_inputs(job))

    copy = rows.with_name("copy.libsvm")
    copy.write_bytes(rows.read_bytes())
    base = plan()
    assert plan(output_dir=rows.parent / "elsewhere", train_passes=3) == base
    assert plan(train_lanes=2) != base
    assert plan(train_batch_rows=8) != base
    assert plan(data_train=f"{rows},{copy}") != base


def test_a_run_goes_on_with_the_minibatches_it_began_with(rows):
    """Of another number of workers another default follows; stated ones count."""
    stale = {"train_consistency": "async", "train_batch_rows": None, "model_kind": "fm"}
    job = job_of(rows, **stale, cluster_workers=2)
    folder = RunFolder(job)
    inputs = open_inputs(job)
    begun = folder.manifest(inputs.schema, plan_digest(job, inputs), 0, 0, 3, border=False)
    folder.close()
    commit(folder.model, begun)
    for stated, expected in ((None, 320), (32, 32)):
        values = stale | {"train_batch_rows": stated, "cluster_workers": 8}
        later = RunFolder(job_of(rows, **values))
        later.close()
        assert (job.train.batch_rows, later.job.train.batch_rows) == (320, expected)
