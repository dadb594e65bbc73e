"""`ctrps demo`: small here, on a real cluster; the folder that it leaves, and other folders."""

import json

import pytest

from ctrps.errors import ConfigError
from ctrps.runtime import demo
from tests.procs import Lab


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path) as lab:
        yield lab


@pytest.mark.cluster
def test_a_demo_runs_leaves_a_job_and_runs_again_as_edited(lab, monkeypatch):
    for name, value in (("ROWS", 4000), ("USERS", 200), ("ADS", 50)):
        monkeypatch.setattr(demo, name, value)
    lines: list[str] = []
    made = demo.Demo(lab.folder / "d", lines.append)
    made._write_job()
    made._generate()
    assert json.loads((lab.folder / "d" / "raw" / "truth.json").read_text())["rows"] == 4000
    for passes in (2, 3):
        job = lab.folder / "d" / "job.yaml"
        job.write_text(job.read_text().replace("passes: 2", f"passes: {passes}"))
        run = lab.run("demo", "d", "--json")
        figures = run.json
        truth = json.loads((lab.folder / "d" / "raw" / "truth.json").read_text())
        assert figures["best_auc"] == truth["test"]["best_auc"]
        assert 0.5 < figures["test"]["auc"] < figures["best_auc"] + 0.05
        assert figures["rows"] == passes * truth["train"]["rows"]
        assert "[4/4] launch" in run.stderr and "2 servers, 2 workers" in run.stderr
    lab.all_gone()


def test_another_folder_is_left_alone(lab):
    (lab.folder / "mine").mkdir()
    (lab.folder / "mine" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="not empty"):
        demo.Demo(lab.folder / "mine", print)
    assert "give another one: ctrps demo DIR" in lab.run("demo", "mine", status=2).stderr


def test_a_demo_that_was_cut_off_goes_on_unless_its_job_is_another(tmp_path):
    made = demo.Demo(tmp_path / "d", print)
    made._write_job()
    assert not demo.Demo(tmp_path / "d", print).again
    (tmp_path / "d" / "job.yaml").write_text("output: {dir: precious}\n")
    with pytest.raises(ConfigError, match="not that of a demonstration"):
        demo.Demo(tmp_path / "d", print)
