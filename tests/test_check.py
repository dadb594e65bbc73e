"""`ctrps check`: sizes near those that come, addresses, the folder of the run."""

import json
import socket

import numpy as np
import pytest

from ctrps.cli import app
from ctrps.config import load_job
from ctrps.errors import ClusterError, ConfigError
from ctrps.models import build
from ctrps.ps.partition import PartitionSet
from ctrps.runtime.check import check
from ctrps.runtime.estimate import grown, key_bytes
from ctrps.runtime.security import Guard
from tests.procs import settings, trained, write_rows


def looked(*overrides: str) -> dict:
    return check(load_job(None, overrides, {}), Guard(insecure=True))


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.libsvm", 400, seed=1)


def test_a_new_run_an_unfinished_and_a_finished_one_are_told_apart(tmp_path, rows):
    given = settings(data_train=rows, output_dir=tmp_path / "run")
    assert looked(*given)["output"]["state"] == "new"
    assert not (tmp_path / "run").exists()
    trained(given)
    assert looked(*given)["output"]["state"].startswith("finished, 1 pass(es)")
    more = looked(*given, "train.passes=2")["output"]["state"]
    assert more.startswith("unfinished") and "it will go on" in more


def test_what_is_estimated_is_what_comes(tmp_path, rows):
    given = settings(data_train=rows, output_dir=tmp_path / "run", model_kind="fm")
    size = looked(*given)["size"]
    keys = trained(given)["keys"]
    assert (size["keys"], size["looked_keys"], size["looked_rows"]) == (keys, keys, 400)
    on_disk = sum(p.stat().st_size for p in (tmp_path / "run" / "model").glob("*.part"))
    # Headers, marks and checksums of 64 small files come on top.
    assert size["checkpoint_bytes"] <= on_disk


@pytest.mark.parametrize("kind", ["lr", "fm"])
def test_the_memory_of_a_key_is_that_of_a_large_table(kind):
    model = build(load_job(None, [f"model.kind={kind}"], {}))
    table = PartitionSet(model).tables[0]
    keys = np.random.default_rng(1).integers(0, 2**63, 200_000).astype(np.uint64)
    table.reserve(keys)
    held = table.size_bytes / len(keys)
    entries_only = key_bytes(model.tables[0]) if kind == "lr" else key_bytes(model.tables[0]) - 64
    # An index is between half as full and as full as it may be.
    assert 0.6 < held / entries_only < 1.7


def test_keys_grow_as_a_power_of_the_rows():
    assert grown((0, 0), 10, 100) == 0
    assert grown((70, 100), 1000, 1000) == 100
    assert grown((71, 100), 1000, 4000) == pytest.approx(100 * 2, rel=0.02)
    assert grown((40, 100), 1000, 10_000) == 1000  # never more than with each row


def test_a_taken_port_ends_it_and_another_machine_does_not(rows):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match="cannot listen there") as error:
            looked(f"data.train={rows}", f"cluster.scheduler={address}")
        assert error.value.id == "E-CLUSTER-ADDRESS"
    found = looked(f"data.train={rows}", "cluster.scheduler=192.0.2.77:9000")
    states = {one["setting"]: one["state"] for one in found["addresses"]}
    assert states["cluster.scheduler"] == "not of this machine"
    assert states["cluster.server_bind"] == "any free port"
    assert any("plain text" in warning for warning in found["warnings"])


def test_a_job_that_is_larger_than_the_machine_is_warned_of(rows, monkeypatch):
    tiny = {"memory_bytes": 10, "disk_bytes": 10}
    monkeypatch.setattr("ctrps.runtime.check._machine", lambda folder: tiny)
    found = looked(f"data.train={rows}")
    assert [warning.split(" GB of ")[1].split()[0] for warning in found["warnings"]] == [
        "memory",
        "disk",
    ]


def test_a_model_that_cannot_be_trained_is_refused(rows):
    with pytest.raises(ConfigError, match="this version trains"):
        looked(f"data.train={rows}", "model.kind=dssm")


def test_rows_are_shown_as_far_as_a_screen_can(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wide.libsvm").write_text("1 " + " ".join(f"{n}:1" for n in range(500)) + "\n")
    with pytest.raises(SystemExit) as ended:
        app(["check", "--set", "data.train=wide.libsvm"])
    assert not ended.value.code
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) < 300
    assert "keys          about 500 (500 in the first 1 rows)" in out
    with pytest.raises(SystemExit):
        app(["check", "--set", "data.train=wide.libsvm", "--json"])
    assert json.loads(capsys.readouterr().out)["size"]["keys"] == 500
