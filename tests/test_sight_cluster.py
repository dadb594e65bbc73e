"""Real workers of which none sees all files: the name is the same, the folder behind it is not."""

import shutil
from pathlib import Path

import pytest

from ctrps.data.convert import to_shards
from ctrps.data.formats import TextSettings
from tests.procs import Lab, Run, options, settings, write_rows
from tests.test_cluster import PLAN, SHORT, scheduler_of

HERE = Path("/proc/self/cwd")
"""A name for whatever folder a process is in."""

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not HERE.exists(), reason="this system has no name for that"),
]


def test_workers_with_other_files_share_a_job_and_what_none_has_is_named(tmp_path):
    folders = {name: tmp_path / name for name in ("all", "a", "b")}
    for folder in folders.values():
        folder.mkdir()
    for seed, name in enumerate(("a", "b", "test")):
        rows = write_rows(tmp_path / f"{name}.libsvm", 1500, seed)
        (shard,) = to_shards([rows], TextSettings(), tmp_path / "cache")
        shutil.copy(shard, folders["all"] / f"{name}.shard")
        shutil.copy(shard, folders["b" if name == "test" else name] / f"{name}.shard")
    values = {
        "data_train": HERE / "[ab].shard",
        "data_test": HERE / "test.shard",
        "train_consistency": "async",
        "cluster_workers": 2,
        "cluster_give_up_s": 6,
        "output_dir": tmp_path / "run",
    }
    overrides = settings(**PLAN, **SHORT, **values)

    def outcome(*workers: str) -> tuple[int, Run, list[Run]]:
        with Lab(tmp_path) as lab:
            scheduler, address = scheduler_of(lab, overrides, cwd=folders["all"])
            given = (*options(overrides), "--scheduler", address)
            nodes = [lab.start("server", *given, cwd=folders["all"])]
            nodes += [lab.start("worker", *given, cwd=folders[name]) for name in workers]
            status = scheduler.wait()
            for node in nodes:
                node.ends(status)
            return status, scheduler, nodes

    status, scheduler, nodes = outcome("a", "a")
    assert status == 4
    wanted = "no worker sees /proc/self/cwd/b.shard; start one where it can be read"
    assert wanted in scheduler.stderr.splitlines()[-1]
    assert "no progress for" in scheduler.stderr

    status, scheduler, nodes = outcome("a", "b")
    assert status == 0, scheduler.story()
    assert scheduler.json["rows"] == 3000
    assert scheduler.json["test"]["rows"] == 1500 and scheduler.json["test"]["auc"] > 0.8
    assert "worker 1 does not see /proc/self/cwd/" in scheduler.stderr
    assert "cannot read /proc/self/cwd/a.shard" in nodes[2].stderr
