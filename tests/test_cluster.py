"""Clusters of real processes: the same bits in every shape, through kills, stops and any order."""

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ctrps.config import load_job
from ctrps.loaded import LoadedModel
from ctrps.predict import predict
from ctrps.runtime.launch import read_json
from ctrps.runtime.rundir import config_digest
from tests.procs import (
    Lab,
    Run,
    free_port,
    options,
    read_lines,
    settings,
    trained,
    write_rows,
)

pytestmark = pytest.mark.cluster

PLAN = {"train_batch_rows": 16, "train_lanes": 4}
SHORT = {"cluster_beat_s": 0.25, "cluster_worker_silent_s": 1.5}
"""Limits for a death that is noticed soon; a live worker that is slow only joins again."""

ROLES = ("server", "worker")

SUMMARY = {
    *("rows", "passes", "steps", "wall_s", "train_s", "rows_per_s", "test"),
    *("model", "model_digest", "servers", "workers", "consistency"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("data")
    train = write_rows(folder / "train.libsvm", 3000, seed=1)
    test = write_rows(folder / "test.libsvm", 500, seed=2)
    return {"data_train": train, "data_test": test}


@pytest.fixture
def lab(tmp_path) -> Iterator[Lab]:
    with Lab(tmp_path) as lab:
        yield lab


def job(data: dict[str, object], folder: Path, **values: object) -> list[str]:
    """Overrides of a job of 47 steps a pass."""
    return settings(**(data | PLAN | {"output_dir": folder} | values))


def launched(lab: Lab, overrides: list[str], servers: int = 2, workers: int = 2) -> Run:
    shape = ("-s", str(servers), "-w", str(workers))
    return lab.start("launch", *shape, *options(overrides), "--json", "--progress", "plain")


def results(summary: dict[str, object]) -> dict[str, object]:
    """What must not depend on processes and threads."""
    return {
        key: summary[key] for key in ("rows", "passes", "steps", "keys", "model_digest", "test")
    }


def keys_of(folder) -> int:
    """What the last line of figures says."""
    lines = read_lines(folder / "metrics.jsonl")
    return [line["keys"] for line in lines if "keys" in line][-1]


# -- the same bits ------------------------------------------------------------------------------

CLIPPED = {"train_clip_value": 0.5, "train_clip_row": 0.6, "train_clip_batch": 0.1}


@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (2, 2), (3, 2), (1, 3)])
def test_every_shape_gives_the_bits_of_train(lab, data, servers, workers):
    """Two launches with default ports run at the same time, and do not meet."""
    shape, runs = (servers, workers), {}
    more = {(2, 2): {"train_transfer": "bfloat16"}, (1, 3): CLIPPED}.get(shape, {})
    for kind in ("lr", "fm"):
        values = {"model_kind": kind, "train_passes": 2, **more}
        runs[kind] = launched(lab, job(data, lab.folder / kind, **values), *shape)
    for kind, run in runs.items():
        values = {"model_kind": kind, "train_passes": 2, **more}
        expected = trained(job(data, lab.folder / f"{kind}-train", **values))
        found = run.ends(0).json
        assert found.keys() >= SUMMARY
        assert results(found) == results(expected)
        assert keys_of(lab.folder / kind) == keys_of(lab.folder / f"{kind}-train") == found["keys"]
        assert (found["servers"], found["workers"]) == shape
        assert found["test"]["auc"] > 0.8
    lab.all_gone()


def test_other_modes_train_on_every_row_once_a_pass(lab, data):
    runs = []
    late = {"train_stale_above": 1, "train_stale": "refuse"}
    for mode, more in {"async": late, "ssp": {"train_compensation": 1}, "semi": {}}.items():
        values = {"train_consistency": mode, "train_passes": 2, **more}
        runs.append(launched(lab, job(data, lab.folder / mode, **values)))
    for run in runs:
        summary = run.ends(0).json
        assert summary["rows"] == 6000
        assert summary["staleness"]["pushes"] >= 2 * summary["steps"]
        assert summary["test"]["auc"] > 0.8
    lab.all_gone()


def test_a_run_leaves_its_settings_figures_logs_and_summary(lab, data):
    """The test set has no clicks here: there is no AUC, for a stated reason, and all else."""
    folder = lab.folder / "run"
    test = write_rows(lab.folder / "test.libsvm", 50, seed=3, clicks=False)
    run = launched(lab, job(data, folder, data_test=test), 1, 2).ends(0)
    assert run.json["test"]["auc"] is None
    assert run.json["test"]["auc_undefined"] == "only negatives in 50 rows"
    assert run.json["test"]["logloss"] > 0
    assert read_json(folder / "summary.json") == run.json
    metrics = read_lines(folder / "metrics.jsonl")
    assert metrics[0]["phase"] == "train" and metrics[0]["rows"] > 0
    assert sorted(p.name for p in (folder / "logs").iterdir()) == [
        *("scheduler-0.log", "server-0.log", "worker-0.log", "worker-1.log")
    ]
    again = lab.start("launch", "-c", folder / "config.resolved.yaml", "--json").ends(2)
    assert "a finished run of 1 pass(es) is there; use --overwrite" in again.stderr
    assert again.stdout == ""


def test_launch_compiles_once_and_forks_its_processes(lab, data):
    """With an empty cache it says what it does; nothing is compiled once all have started."""
    kernels, folder = lab.folder / "kernels", lab.folder / "run"
    given = options(job(data, folder, train_passes=30))
    environ = {"NUMBA_CACHE_DIR": str(kernels)}
    run = lab.start("launch", "-s", "1", "-w", "1", *given, environ=environ)
    run.until_progress(folder)
    children = psutil.Process(run.process.pid).children()
    assert sorted(child.cmdline()[:2] for child in children) == [
        ["ctrps", role] for role in ("nursery", "scheduler", "server", "worker")
    ]
    run.ends(0)
    assert run.stderr.count("compiling kernels, once for this machine") == 1
    started = (folder / "logs").stat().st_mtime
    compiled = {path.name: path.stat().st_mtime for path in kernels.rglob("*.nbc")}
    assert compiled
    assert not [name for name, when in compiled.items() if when > started]


def test_lanes_that_run_out_of_rows_early(lab, tmp_path):
    files = [
        write_rows(tmp_path / f"part-{number}.libsvm", rows, seed=number)
        for number, rows in enumerate((3, 40, 40, 41))
    ]
    values = {"train_batch_rows": 4, "train_passes": 3, "data_train": ",".join(map(str, files))}
    expected = trained(job({}, tmp_path / "train", **values))
    run = launched(lab, job({}, tmp_path / "run", **values), 2, 3).ends(0)
    assert run.json["rows"] == 372
    assert results(run.json) == results(expected)
    lab.all_gone()


def test_more_workers_than_batches_and_more_servers_than_keys(lab, tmp_path):
    (tmp_path / "six.libsvm").write_text("1 2:1 3:1\n0 2:1\n1 3:1\n0 2:1\n1 2:1 3:1\n0 3:1\n")
    (tmp_path / "none.libsvm").write_text("")
    files = f"{tmp_path / 'six.libsvm'},{tmp_path / 'none.libsvm'}"
    overrides = settings(data_train=files, output_dir=tmp_path / "run", train_batch_rows=4)
    run = launched(lab, overrides, 3, 3).ends(0)
    assert (run.json["rows"], run.json["test"]) == (6, None)


# -- kills --------------------------------------------------------------------------------------


def mid_run(lab: Lab, overrides: list[str], servers: int = 2, workers: int = 3) -> Run:
    run = launched(lab, overrides, servers, workers)
    run.until_progress(lab.folder / "run")
    return run


@pytest.mark.parametrize("role", ["worker", "server", "scheduler"])
def test_a_killed_process_is_started_again_and_costs_nothing_but_time(lab, data, role):
    values = {"train_passes": 6, "model_kind": "fm"}
    run = mid_run(lab, job(data, lab.folder / "run", **values), 2, 2)
    victim = run.child(role)
    victim.kill()
    run.ends(0)
    (line,) = [line for line in run.stderr.splitlines() if line.startswith(f"{role} 0 ")]
    assert line.startswith(f"{role} 0 (process {victim.pid}) was killed by SIGKILL, perhaps ")
    assert "; started again as process " in line
    assert line.endswith("training goes on from the last checkpoint") == (role == "server")
    assert run.json["restarts"] == 1
    expected = trained(job(data, lab.folder / "train", **values))
    assert results(run.json) == results(expected)
    assert not (lab.folder / "run" / "journal").exists()
    lab.all_gone()


def test_a_lost_worker_is_done_without(lab, data):
    values = {"train_passes": 6, "model_kind": "fm"}
    never = {"cluster_restarts": 0}
    run = mid_run(lab, job(data, lab.folder / "run", **values, **SHORT, **never))
    run.child("worker", 1).kill()
    run.ends(0)
    assert "worker 1" in run.stderr and "was killed by SIGKILL" in run.stderr
    assert "started again" not in run.stderr and run.json["restarts"] == 0
    expected = trained(job(data, lab.folder / "train", **values))
    assert results(run.json) == results(expected)
    lab.all_gone()


def test_a_worker_from_elsewhere_carries_a_job_on_alone(lab, data):
    values = {"cluster_server_silent_s": 1.5, "cluster_stop_linger_s": 0.5}
    values |= {"train_passes": 30, "cluster_restarts": 0}
    folder = lab.folder / "run"
    run = mid_run(lab, job(data, folder, **SHORT | values), 1, 1)
    address = read_json(folder / "scheduler.json")["address"]
    resolved = folder / "config.resolved.yaml"
    other = lab.start("worker", "-c", resolved, "--scheduler", address)
    other.until(lambda: "joined as worker" in other.stderr, "the other worker in the job")
    run.child("worker", 0).kill()
    run.ends(0)
    assert run.json["rows"] == 30 * 3000
    lab.all_gone()


def test_a_server_that_nobody_starts_again_ends_the_job(lab, data):
    values = {"train_passes": 200, "cluster_restarts": 0, "cluster_server_silent_s": 1.5}
    run = mid_run(lab, job(data, lab.folder / "run", **SHORT | values), 2, 2)
    run.child("server", 1).kill()
    run.ends(4, deadline_s=30)
    error = run.stderr[run.stderr.index("error: ") :]
    assert error.startswith("error: server 1 (process ")
    assert "was killed by SIGKILL" in error.splitlines()[0]
    assert "server-1.log" in error
    assert run.stdout == ""
    lab.all_gone()


def test_a_scheduler_that_nobody_starts_again_ends_the_job(lab, data):
    values = {"train_passes": 200, "cluster_restarts": 0}
    run = mid_run(lab, job(data, lab.folder / "run", **values), 1, 2)
    run.child("scheduler").kill()
    run.ends(4, deadline_s=30)
    assert "error: scheduler 0 (process" in run.stderr
    assert "was killed by SIGKILL" in run.stderr
    lab.all_gone()


def test_a_killed_launch_takes_its_processes_along(lab, data):
    run = mid_run(lab, job(data, lab.folder / "run", train_passes=200), 1, 2)
    assert len(lab.processes()) == 5
    run.send(signal.SIGKILL)
    run.ends(-signal.SIGKILL)
    lab.all_gone(deadline_s=30)


def test_a_worker_that_was_stopped_for_long_may_come_back(lab, data):
    values = {"train_passes": 4}
    run = mid_run(lab, job(data, lab.folder / "run", **values, **SHORT), 1, 2)
    stopped = run.child("worker", 0)
    stopped.suspend()
    log = lab.folder / "run" / "logs" / "scheduler-0.log"
    run.until(lambda: "is lost: silent for" in log.read_text(), "the loss of the worker")
    stopped.resume()
    run.ends(0)
    assert results(run.json) == results(trained(job(data, lab.folder / "train", **values)))
    lab.all_gone()


# -- the end by Ctrl-C --------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_where_it_stopped(lab, data):
    values = {"train_passes": 6, "model_kind": "fm"}
    overrides = job(data, lab.folder / "run", **values, **SHORT)
    run = mid_run(lab, overrides, 2, 2)
    run.send(signal.SIGINT)
    run.ends(75)
    assert "stopping, saving a checkpoint" in run.stderr
    assert run.stdout == ""
    lab.all_gone()
    assert (lab.folder / "run" / "model" / "manifest.json").exists()
    assert not (lab.folder / "run" / "summary.json").exists()
    again = launched(lab, overrides, 1, 2).ends(0)
    expected = trained(job(data, lab.folder / "train", **values))
    assert again.json["model_digest"] == expected["model_digest"]
    assert again.json["test"] == expected["test"]
    assert 0 < again.json["rows"] < expected["rows"]


def test_a_second_interrupt_stops_at_once(lab, data):
    run = mid_run(lab, job(data, lab.folder / "run", train_passes=200), 1, 1)
    # A scheduler that does not answer: otherwise the checkpoint may be there first.
    run.child("scheduler").suspend()
    run.send(signal.SIGINT)
    run.until(lambda: "stopping, saving" in run.stderr, "the first interrupt")
    run.send(signal.SIGINT)
    run.ends(130, deadline_s=30)
    assert "stopped at once, without a checkpoint" in run.stderr
    lab.all_gone()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_processes_start(lab, data, number):
    run = launched(lab, job(data, lab.folder / "run"), 2, 2)
    log = lab.folder / "run" / "logs" / "scheduler-0.log"
    run.until(log.exists, "the start of the scheduler")
    run.send(number)
    run.ends(128 + number, deadline_s=30)
    assert "error: stopped before training began [E-STOPPED]\n" in run.stderr
    lab.all_gone()


# -- processes by hand --------------------------------------------------------------------------


def scheduler_of(lab: Lab, overrides: list[str], **how: Any) -> tuple[Run, str]:
    """A scheduler on a port that the system chose, and its address."""
    run = lab.start("scheduler", *options(overrides), "--json", **how)
    file = lab.folder / "run" / "scheduler.json"
    run.until(lambda: read_json(file).get("pid") == run.process.pid, "the scheduler's address")
    return run, str(read_json(file)["address"])


def test_processes_may_start_in_any_order(lab, data):
    address = f"127.0.0.1:{free_port()}"
    overrides = job(data, lab.folder / "run", cluster_scheduler=address, cluster_workers=2)
    given = options(overrides)
    worker = lab.start("worker", *given)
    server = lab.start("server", *given, environ={"CTRPS_SCHEDULER": address})
    server.until(lambda: len(lab.processes()) == 2, "two processes")
    scheduler = lab.start("scheduler", *given, "--json")
    late = lab.start("worker", *given, "--scheduler", address)
    scheduler.ends(0)
    for run in (worker, server, late):
        run.ends(0)
        assert "joined as" in run.stderr
    assert results(scheduler.json) == results(trained(job(data, lab.folder / "train")))


def test_what_died_is_started_again_by_hand(lab, data):
    """With the same command, as a loop would: nobody says that one replaces another."""
    values = {"model_kind": "fm", "train_passes": 6, "cluster_server_silent_s": 2}
    overrides = job(data, lab.folder / "run", **SHORT | values)
    scheduler, address = scheduler_of(lab, overrides)
    nodes = {r: lab.start(r, *options(overrides), "--scheduler", address) for r in ROLES}
    scheduler.until_progress(lab.folder / "run")
    for role in ROLES:
        nodes[role].process.kill()
        nodes[role] = lab.start(role, *options(overrides), "--scheduler", address)
    nodes["server"].until(lambda: "joined as" in nodes["server"].stderr, "another server")
    scheduler.process.kill()
    again, same = scheduler_of(lab, overrides)
    assert same == address
    again.ends(0)
    assert "going on with the job of an earlier scheduler: pass " in again.stderr
    for role in ROLES:
        nodes[role].ends(0)
    expected = trained(job(data, lab.folder / "train", **values))
    assert results(again.json) == results(expected)


def test_only_processes_of_the_same_job_are_let_in(lab, data):
    def given(role: str, **values: object) -> Run:
        overrides = job(data, lab.folder / "run", **values)
        return lab.start(role, *options(overrides), "--scheduler", address)

    blue = {"name": "blue"}
    scheduler, address = scheduler_of(lab, job(data, lab.folder / "run", **blue))
    server = given("server", **blue)
    green, other = given("worker", name="green"), given("worker", **blue, train_passes=2)
    assert f"job 'green' there, 'blue' here (scheduler at {address})" in green.ends(4).stderr
    ours, theirs = (
        config_digest(load_job(None, job(data, Path("run"), **v), {}))
        for v in ({}, {"train_passes": 2})
    )
    refusal = f"config {theirs} there, {ours} here: use the same job file"
    assert refusal in other.ends(2).stderr
    server.until(lambda: "joined as" in server.stderr, "the server in the job")
    spare = given("server", **blue)
    spare.until(lambda: "joined as" in spare.stderr, "another server in the job")
    given("worker", **blue).ends(0)
    for one in (server, spare):
        one.ends(0)
    expected = trained(job(data, lab.folder / "train"))
    assert results(scheduler.ends(0).json) == results(expected)


def test_a_worker_without_a_scheduler_gives_up(lab, data):
    address = f"127.0.0.1:{free_port()}"
    overrides = job(data, lab.folder / "run", cluster_start_timeout_s=2)
    run = lab.start("worker", *options(overrides), "--scheduler", address).ends(4)
    assert "no word from the scheduler for 2 s" in run.stderr
    assert address in run.stderr


def test_a_scheduler_that_is_alone_gives_up(lab, data):
    overrides = job(data, lab.folder / "run", cluster_start_timeout_s=2, cluster_servers=2)
    run = lab.start("scheduler", *options(overrides)).ends(4)
    assert "2 of 2 servers and 1 of 1 worker did not come within 2 s" in run.stderr


def test_a_port_that_no_server_can_have_ends_a_launch_and_is_named(lab, data):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        overrides = job(data, lab.folder / "run", cluster_server_bind=address)
        run = launched(lab, overrides, 1, 1).ends(4)
    assert f"{address}: cannot listen there: the port is already in use" in run.stderr
    assert "set cluster.server_bind to another address" in run.stderr
    lab.all_gone()


def test_a_taken_port_ends_a_scheduler_at_once(lab, data):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        overrides = job(data, lab.folder / "run", cluster_scheduler=address)
        run = lab.start("scheduler", *options(overrides)).ends(4)
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"error: {address}: cannot listen there: the port is already in use")


# -- folders, models and data -------------------------------------------------------------------


def test_a_folder_is_used_by_one_launch(lab, data):
    overrides = job(data, lab.folder / "run", train_passes=200)
    run = mid_run(lab, overrides, 1, 1)
    scheduler = run.child("scheduler").pid
    second = launched(lab, overrides, 1, 1).ends(4)
    assert f"another run (process {scheduler}) is using this folder" in second.stderr
    assert psutil.pid_exists(scheduler) and run.process.poll() is None


def test_more_passes_go_on_with_another_number_of_servers(lab, data):
    values = {"model_kind": "fm"}
    overrides = job(data, lab.folder / "run", **values)
    launched(lab, overrides, 3, 1).ends(0)
    more = launched(lab, [*overrides, "train.passes=2"], 2, 1).ends(0)
    expected = trained(job(data, lab.folder / "train", **values, train_passes=2))
    assert more.json["model_digest"] == expected["model_digest"]
    assert more.json["test"] == expected["test"]
    assert more.json["rows"] == 3000
    models = [LoadedModel.open(lab.folder / name / "model") for name in ("run", "train")]
    scores = [
        np.concatenate([part.probabilities for part in predict(model, [data["data_test"]])])
        for model in models
    ]
    assert len(scores[0]) == 500
    np.testing.assert_array_equal(*scores)


def test_early_stopping_goes_on_with_the_best_figure_so_far(lab):
    """A run of patience that had too few passes leaves its best model, and goes on from there."""
    values = {
        "data_train": write_rows(lab.folder / "train.libsvm", 400, seed=1),
        "data_test": write_rows(lab.folder / "test.libsvm", 400, seed=2),
        "train_patience": 2,
        "train_passes": 40,
        "optimizer_alpha": 0.3,
    }
    whole = trained(job(values, lab.folder / "whole"))
    assert whole["stopped_early"]
    fewer = trained(job(values, lab.folder / "run", train_passes=whole["passes"] - 1))
    assert fewer["model_digest"] == whole["model_digest"] and not fewer["stopped_early"]
    more = launched(lab, job(values, lab.folder / "run"), 1, 2).ends(0).json
    for name in ("model_digest", "test", "passes", "stopped_early"):
        assert more[name] == whole[name], name


def test_a_model_that_cannot_be_read_ends_the_job(lab, data):
    overrides = job(data, lab.folder / "run")
    trained(overrides)
    damaged = sorted((lab.folder / "run" / "model").glob("*.part"))[5]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    run = launched(lab, [*overrides, "train.passes=2"], 1, 1).ends(3)
    assert str(damaged) in run.stderr
    assert "run the same command again" not in run.stderr
    lab.all_gone()


def test_a_launch_without_rows_starts_nothing(lab, data, tmp_path):
    empty = tmp_path / "empty.libsvm"
    empty.touch()
    run = launched(lab, job(data, tmp_path / "run", data_train=empty), 1, 1).ends(3)
    assert run.stderr == f"error: no examples in {empty}; is it the right file? [E-DATA-EMPTY]\n"
    assert not list((tmp_path / "run" / "logs").iterdir())


def test_paths_of_any_bytes_in_the_c_locale(lab):
    folder = lab.folder / "数据 目录"
    folder.mkdir()
    rows = write_rows(folder / "训练 样本.libsvm", 300, seed=1)
    shutil.copy(rows, folder / os.fsdecode(b"bad\xff name.libsvm"))
    (folder / "job.ini").write_text("[data]\ntrain = *.libsvm\n", encoding="utf-8")
    found = []
    for command in ("train", "launch"):
        given = ("-c", folder / "job.ini", *options([f"output.dir={folder / command}"]))
        run = lab.run(command, *given, "--json", environ={"LC_ALL": "C"}, cwd=Path("/"))
        found.append(run.json)
    assert [summary["rows"] for summary in found] == [600, 600]
    assert found[0]["model_digest"] == found[1]["model_digest"]
    assert len(list(folder.iterdir())) == 5
