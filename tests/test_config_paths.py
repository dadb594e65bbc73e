"""Paths in settings: what they are relative to, and odd letters and bytes in them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctrps.config import load_job


@pytest.fixture
def write(tmp_path):
    """Write a job file and return its path."""

    def write(text, name="job.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_paths_are_relative_to_what_states_them(write, tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = "data: {train: [../a.csv, /b/*.csv]}\nsample: {dir: raw}\noutput: {dir: out}\n"
    job = load_job(write(text, "conf/job.yaml"), ["data.test=t.csv"], {"CTRPS_SAMPLE__JOIN": "j"})
    assert job.data.train == (tmp_path / "a.csv", Path("/b/*.csv"))
    assert job.sample.dir == tmp_path / "conf" / "raw"
    assert job.sample.join == tmp_path / "here" / "j"
    assert job.data.test == (tmp_path / "here" / "t.csv",)
    assert job.output.dir == tmp_path / "here" / "out"
    relative = load_job(Path("../conf/job.yaml"), ["data.test=t.csv"], {"CTRPS_SAMPLE__JOIN": "j"})
    assert relative == job
    assert relative.origins["sample.dir"] == "../conf/job.yaml:2"


def test_default_folders_follow_name_and_output(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = load_job(write("", "click fm.yaml"), [], {})
    assert (job.name, job.output.dir) == ("click fm", tmp_path / "runs" / "click fm")
    assert job.data.train == (tmp_path / "runs" / "click fm" / "data" / "train-*.shard",)
    job = load_job(None, ["output.dir=x"], {})
    assert job.data.test == (tmp_path / "x" / "data" / "test-*.shard",)
    assert job.origins["data.test"] == "default"


def test_a_folder_in_brackets_is_not_part_of_a_pattern(tmp_path):
    folder = tmp_path / "run [1]"
    job = load_job(None, [f"output.dir={folder}"], {})
    assert job.data.train == (tmp_path / "run [[]1]" / "data" / "train-*.shard",)


def test_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert load_job(None, ["sample.dir=~/raw"], {}).sample.dir == Path("/home/ann/raw")


def test_case_25_paths_with_blanks_other_letters_and_bytes(shared, tmp_path, write):
    script = shared / "cases" / "25-locale-paths-and-output" / "make_paths.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    (ini,) = tmp_path.rglob("job.ini")
    (train,) = load_job(ini, [], {}).data.train
    assert train.is_file()
    odd = os.fsdecode(b"bad\xff name.libsvm")
    job = load_job(ini, [f"data.test={ini.parent / odd}"], {})
    assert job.data.test[0].is_file()
    spellings = {
        "odd.yaml": b"data: {test: [bad\xff name.libsvm]}",
        "odd.ini": b"[data]\ntest = bad\xff name.libsvm",
        "escaped.yaml": b'data: {test: "bad\\uDCFF name.libsvm"}',
    }
    for name, line in spellings.items():
        path = ini.parent / name
        path.write_bytes(line)
        assert load_job(path, [], {}).data.test == job.data.test
    assert load_job(write(job.dump_yaml(), "dump.yaml"), [], {}) == job


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_case_25_any_locale(locale, tmp_path):
    folder = tmp_path / "数据 目录"
    folder.mkdir()
    (folder / "job.yaml").write_text("data: {train: 训练 样本.libsvm}\n", encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from ctrps.config import load_job;"
        "job = load_job(Path(sys.argv[1]), [], {});"
        "sys.stdout.buffer.write(str(job.data.train[0]).encode('utf-8', 'surrogateescape'))"
    )
    environ = {"LC_ALL": locale, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", code, str(folder / "job.yaml")]
    done = subprocess.run(command, env=environ, cwd="/", check=True, capture_output=True)
    assert done.stdout.decode() == str(folder / "训练 样本.libsvm")
