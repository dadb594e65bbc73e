"""Cases of deaths, damaged checkpoints and resumed runs; the others of clusters are in
``test_sim`` (19, 20, 22), ``test_machines`` (22), ``test_cluster`` and ``test_config`` (24).
"""

import random
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from ctrps.errors import CheckpointError, ConfigError
from ctrps.loaded import LoadedModel
from ctrps.predict import predict
from ctrps.verify import verify as verify_files
from tests.procs import settings, trained
from tests.sim import Cluster, verify
from tests.simjob import plain, train_alone

# -- 21: a process is killed between 10 % and 90 % of a run --------------------------------------

KILLS = 20


def length_of_a_run() -> tuple[float, float]:
    """When the undisturbed job begins to train, and when it has ended."""
    cluster = Cluster(plain(passes=5))
    cluster.run()
    joined = [float(line.split()[0]) for line in cluster.log if "joined" in line]
    return max(joined), cluster.now


@pytest.mark.parametrize("role", ["server", "worker", "scheduler"])
def test_case_21_a_killed_process_that_comes_back_changes_nothing(role):
    setup, rng = plain(passes=5), random.Random(role)
    alone, (began, ended) = train_alone(setup), length_of_a_run()
    for _ in range(KILLS):
        cluster = Cluster(setup)
        at = began + (ended - began) * rng.uniform(0.1, 0.9)
        name = "scheduler" if role == "scheduler" else rng.choice([f"{role[0]}0", f"{role[0]}1"])

        def kill(cluster=cluster, name=name) -> None:
            victim = cluster.processes[name]
            assert victim.alive
            cluster.kill(name)
            cluster.coming += 1
            cluster.at(0.5, lambda: cluster._replace(victim, 1))

        cluster.at(at, kill)
        cluster.run()
        verify(cluster, alone)
        assert cluster.crashed.keys() == {name}


# -- 27: damaged checkpoints ---------------------------------------------------------------------


def test_case_27_no_damaged_copy_is_taken_for_the_model(shared, tmp_path, monkeypatch):
    case = shared / "cases" / "27-torn-or-damaged-checkpoint"
    trained(
        settings(data_train=case / "train.libsvm", output_dir=tmp_path / "run", train_partitions=2)
    )
    good, copies = tmp_path / "run" / "model", tmp_path / "copies"
    monkeypatch.setattr(sys, "argv", ["damage.py", str(good), str(copies)])
    runpy.run_path(str(case / "damage.py"))
    expected = scores(good, case / "train.libsvm")
    damaged = sorted(copies.iterdir())
    assert len(damaged) == 33 * len(list(good.iterdir())) >= 99
    for copy in damaged:
        with pytest.raises(CheckpointError) as raised:
            scores(copy, case / "train.libsvm")
        assert str(copy) in str(raised.value)
    shutil.copytree(good, copies / "whole")
    assert scores(copies / "whole", case / "train.libsvm") == expected
    assert not verify_files(copies / "whole")[0].damages


def scores(model: Path, rows: Path) -> list[bytes]:
    return [part.probabilities.tobytes() for part in predict(LoadedModel.open(model), [rows])]


# -- 28: resumed with other settings -------------------------------------------------------------


def test_case_28_what_fixes_the_meaning_of_numbers_may_not_change(shared, tmp_path):
    case = shared / "cases" / "28-resume-with-other-settings"
    a = {
        "data_train": case / "train.libsvm",
        "model_kind": "fm",
        "model_dim": 8,
        "optimizer_kind": "adagrad",
        "optimizer_alpha": 0.05,
        "optimizer_l2": 0.001,
        "train_batch_rows": 32,
        "train_seed": 7,
    }

    def run(name: str, **values: object) -> dict[str, object]:
        return trained(settings(**(a | {"output_dir": tmp_path / name} | values)))

    first = run("a")
    for values, both in (
        ({"model_dim": 16}, ("8", "16")),
        ({"optimizer_kind": "ftrl"}, ("adagrad", "ftrl")),
    ):
        with pytest.raises(ConfigError) as raised:
            run("a", train_passes=2, **values)
        assert all(value in str(raised.value) for value in both)
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    whole = run("whole", train_passes=2)
    assert run("a", train_passes=2)["model_digest"] == whole["model_digest"]
    others = {"optimizer_alpha": 1e-3, "optimizer_l2": 0.0, "train_batch_rows": 64}
    assert run("c", train_passes=2, **others)["model_digest"] not in (
        first["model_digest"],
        whole["model_digest"],
    )
