"""What a person gets from commands: texts and statuses of wrong inputs, streams, start-up."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrps.cli import app
from tests.procs import DEADLINE_S, Lab, options, plain_environment, settings, trained, write_rows

Ended = tuple[int, str, str]
Command = Callable[..., Ended]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with train.libsvm, a run that was trained on it, and rows of an empty test set."""
    folder = tmp_path_factory.mktemp("model")
    rows = write_rows(folder / "train.libsvm", 300, seed=1)
    trained(settings(data_train=rows, output_dir=folder / "run"))
    return folder


@pytest.fixture
def ctrps(capsys, monkeypatch, tmp_path) -> Command:
    """Run a command in this process and in an empty folder; returns status, output and errors."""
    for name in [name for name in os.environ if name.startswith("CTRPS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            app([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def python(*arguments: str, **how: object) -> subprocess.CompletedProcess[str]:
    """Run this Python in a process, with a deadline."""
    return subprocess.run(
        [sys.executable, *arguments],
        timeout=DEADLINE_S,
        env=plain_environment() | dict(how.pop("env", {})),  # type: ignore[call-overload]
        text=True,
        **({"capture_output": True} | how),
    )


# -- wrong inputs -------------------------------------------------------------------------------


def write_wrong_inputs(folder: Path) -> None:
    write_rows(folder / "good.libsvm", 50, seed=1)
    (folder / "bad.libsvm").write_text("1 3:1\n0 4:x\n1 5:1\n")
    (folder / "label.libsvm").write_text("1 3:1\nyes 4:1\n")
    (folder / "empty.libsvm").write_text("")
    (folder / "misspelt.yaml").write_text("train:\n  lane: 8\n")
    (folder / "type.yaml").write_text("train:\n  lanes: many\n")
    (folder / "twice.yaml").write_text("train:\n  lanes: 2\n  lanes: 3\n")
    (folder / "broken.yaml").write_text("train:\n  lanes: [1\n")
    (folder / "features.ini").write_text(FEATURES)


FEATURES = """[raw_sample_schema]
fields=clk,age
[label]
label=clk,direct
[sparse_features_user]
age=age,buckets,1|2
"""
GOOD = ("train", "--set", "data.train=good.libsvm")
WRONG = {
    "no such file": (
        ("train", "--set", "data.train=god.libsvm"),
        3,
        "error: {here}/god.libsvm: no such file; looked in {here}, where 'good.libsvm' is nearest",
    ),
    "a pattern without files": (
        ("train", "--set", "data.train=*.svm"),
        3,
        "error: {here}/*.svm: no file matches this pattern; looked in {here}, where",
    ),
    "no data at all": (
        ("train",),
        3,
        "error: {here}/runs/job/data/train-*.shard: no shards are there; "
        "run `ctrps extract` with this job first, or set data.train",
    ),
    "a bad row": (
        ("train", "--set", "data.train=bad.libsvm"),
        3,
        "error: {here}/bad.libsvm:2:3: expected key:value, a key of 0 to 2^64-1 and a finite "
        "number, found '4:x'; mend the row, or let a share of the rows be bad with data.max_bad",
    ),
    "a bad label": (
        ("train", "--set", "data.train=label.libsvm"),
        3,
        "error: {here}/label.libsvm:2:1: ",
    ),
    "an empty file": (
        ("train", "--set", "data.train=empty.libsvm"),
        3,
        "error: no examples in {here}/empty.libsvm",
    ),
    "an empty test set": (
        (*GOOD, "--set", "data.test=empty.libsvm"),
        3,
        "error: no examples in {here}/empty.libsvm",
    ),
    "no job file": (
        ("train", "-c", "nosuch.yaml"),
        2,
        "error: nosuch.yaml: cannot read: No such file or directory; "
        "give the job file with -c FILE",
    ),
    "a misspelt key": (
        ("train", "-c", "misspelt.yaml"),
        2,
        "error: misspelt.yaml:2:3: train.lane is not a setting; did you mean train.lanes? "
        "[E-CONFIG-KEY]\n      lane: 8\n      ^",
    ),
    "a wrong type": (
        ("train", "-c", "type.yaml"),
        2,
        "error: type.yaml:2:10: train.lanes: expected a whole number, found 'many' "
        "[E-CONFIG-VALUE]\n      lanes: many\n             ^",
    ),
    "a key twice": (("train", "-c", "twice.yaml"), 2, "error: twice.yaml:3:3: "),
    "broken yaml": (("train", "-c", "broken.yaml"), 2, "error: broken.yaml:"),
    "an override without a value": (
        ("train", "--set", "train.lanes"),
        2,
        "error: --set: train.lanes has no value; write --set section.key=value",
    ),
    "an override without its section": (
        ("train", "--set", "lanes=4"),
        2,
        "error: --set: lanes is not a setting; did you mean train.lanes?",
    ),
    "another tool's name for a setting": (
        ("train", "--set", "train.epochs=4"),
        2,
        "error: --set: train.epochs is not a setting; did you mean train.passes?",
    ),
    "an unknown operator": (
        ("extract", "--set", "features.spec=features.ini", "--stage", "features"),
        2,
        "error: {here}/features.ini:6:9: unknown operator 'buckets'; did you mean 'bucket'?",
    ),
    "a stage that is none": (
        ("extract", "--stage", "feature"),
        2,
        "error: --stage: 'feature' is not possible; use sample or features",
    ),
    "progress of another kind": (
        (*GOOD, "--progress", "fancy"),
        2,
        "error: --progress: 'fancy' is not possible; use auto or plain or none",
    ),
    "an unknown command": (("trian",), 2, "No such command 'trian'"),
    "an unknown flag": (("train", "--thread", "2"), 2, "No such option: --thread"),
    "no threads": (("train", "--threads", "0"), 2, "'--threads'"),
    "no servers": (("launch", "-s", "0"), 2, "'--servers'"),
    "workers in words": (("launch", "-w", "two"), 2, "'--workers'"),
    "no address of a scheduler": (
        ("worker",),
        2,
        "error: --scheduler: '127.0.0.1:0' is no address to connect to; "
        "give the HOST:PORT that the scheduler printed, or set CTRPS_SCHEDULER",
    ),
    "an address that is none": (
        ("server", "--scheduler", "abc"),
        2,
        "error: --scheduler: 'abc' is not an address; write HOST:PORT, port 0 to 65535",
    ),
    "a port that is none": (
        ("worker", "--scheduler", "127.0.0.1:99999"),
        2,
        "error: --scheduler: '127.0.0.1:99999' is not an address; write HOST:PORT, ",
    ),
    "a port of the job that is none": (
        ("scheduler", "--set", "cluster.scheduler=127.0.0.1:99999"),
        2,
        "error: --set: cluster.scheduler: '127.0.0.1:99999' is not an address; write HOST:PORT, ",
    ),
    "no model": (
        ("predict", "--model", "nosuch", "--data", "good.libsvm"),
        3,
        "error: nosuch/manifest.json: no model is there; give the folder that training wrote",
    ),
    "a model without data": (("evaluate", "--model", "nosuch"), 2, "Missing option '--data'"),
}


@pytest.mark.parametrize(("arguments", "status", "text"), WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_explained(ctrps, tmp_path, arguments, status, text):
    write_wrong_inputs(tmp_path)
    found, out, err = ctrps(*arguments)
    assert text.replace("{here}", str(tmp_path)) in err
    assert (found, out) == (status, "")
    assert "Traceback" not in err and "internal" not in err


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        ("nosuch.libsvm", 3, "error: nosuch.libsvm: no such file; looked in ., where "),
        ("bad.libsvm", 3, "error: bad.libsvm:2:3: expected key:value, "),
    ],
)
def test_wrong_rows_are_explained_when_they_are_scored(ctrps, tmp_path, model, data, status, text):
    write_wrong_inputs(tmp_path)
    found, _, err = ctrps("predict", "--model", model / "run" / "model", "--data", data)
    assert text in err and "Traceback" not in err
    assert found == status


def test_a_file_that_is_no_model_is_named(ctrps, model, tmp_path):
    (tmp_path / "manifest.json").write_text("{")
    status, _, err = ctrps("predict", "--model", ".", "--data", model / "train.libsvm")
    assert status == 3
    assert err.startswith("error: manifest.json: it cannot be read: ")


def test_a_finished_run_is_refused(ctrps, model):
    given = options(settings(data_train=model / "train.libsvm", output_dir=model / "run"))
    status, out, err = ctrps("train", *given)
    assert (status, out) == (2, "")
    assert "a finished run of 1 pass(es) is there; use --overwrite" in err


def test_an_error_of_ours_is_one_line_and_a_way_to_see_more(ctrps, monkeypatch, model):
    monkeypatch.setattr("ctrps.runtime.local.train", lambda *_: 1 / 0)
    status, _, err = ctrps("train")
    assert status == 1
    assert err == (
        "error: internal: ZeroDivisionError: division by zero; set CTRPS_DEBUG=1 to see where "
        "[E-INTERNAL]\n"
    )
    monkeypatch.setenv("CTRPS_DEBUG", "1")
    assert "Traceback" in ctrps("train")[2]


def test_a_machine_without_a_place_for_kernels_is_told_what_to_do(tmp_path):
    """As in a container without a home folder, whose packages may not be written to."""
    code = (
        "import sys, numba.core.caching as caching; caching.CacheImpl._locator_classes = []; "
        "sys.argv = ['ctrps', 'head', 'a.csv']; from ctrps.cli import main; main()"
    )
    found = python("-c", code, cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith(
        "error: there is no folder that compiled kernels could be kept in"
    )
    assert found.stderr.endswith(
        "set NUMBA_CACHE_DIR to one that may be written to [E-KERNEL-CACHE]\n"
    )


# -- output -------------------------------------------------------------------------------------


def test_json_is_one_object_and_all_else_goes_to_standard_error(ctrps, model, tmp_path):
    given = options(settings(data_train=model / "train.libsvm", data_test=model / "train.libsvm"))
    status, out, err = ctrps("train", *given, "--json")
    assert status == 0
    (line,) = out.splitlines()
    summary = json.loads(line)
    assert summary == json.loads((tmp_path / "runs/job/summary.json").read_text())
    assert (summary["rows"], summary["passes"], summary["steps"]) == (300, 1, 1)
    assert summary["test"].keys() >= {"rows", "clicks", "auc", "logloss", "calibration"}
    assert "rows/s" in err
    status, out, err = ctrps("evaluate", "--model", summary["model"], "--data", "x", "--json")
    assert (status, out) == (3, "")
    found = ctrps(
        *("evaluate", "--model", summary["model"], "--data", model / "train.libsvm", "--json")
    )
    report = json.loads(found[1])
    assert (found[0], report["auc"]) == (0, summary["test"]["auc"])


def test_a_summary_for_people(ctrps, model):
    test = write_rows(model / "no-click.libsvm", 20, seed=1, clicks=False)
    given = options(settings(data_train=model / "train.libsvm", data_test=test))
    status, out, err = ctrps("train", *given, "--progress", "none")
    assert (status, err) == (0, "")
    assert re.match(r"trained +300 rows in [\d.]+ s \([\d,]+ rows/s\), 1 steps; [\d.]+ s in", out)
    assert "test          AUC undefined (only negatives in 20 rows)\n" in out
    assert re.search(r"^digest +sha256:[0-9a-f]{64}$", out, re.MULTILINE)
    assert out.endswith("20 rows, 0 clicks\n")


def test_settings_are_shown_with_their_origins(ctrps, tmp_path, monkeypatch):
    (tmp_path / "job.yaml").write_text("train:\n  passes: 3\nmodel: {kind: fm}\n")
    monkeypatch.setenv("CTRPS_TRAIN__SEED", "5")
    given = ("config", "show", "-c", "job.yaml", "--set", "train.lanes=8")
    status, out, err = ctrps(*given, "--origin")
    assert (status, err) == (0, "")
    lines = {line.strip() for line in out.splitlines()}
    assert {
        "passes: 3  # job.yaml:2",
        "kind: fm  # job.yaml:3",
        "seed: 5  # CTRPS_TRAIN__SEED",
        "lanes: 8  # --set",
        "partitions: 64  # default",
        "name: job  # default",
    } <= lines
    plain = ctrps(*given)[1]
    assert plain == re.sub(r"  # .*", "", out)
    found = json.loads(ctrps(*given, "--json")[1])
    assert (found["train"]["passes"], found["train"]["seed"]) == (3, 5)
    (tmp_path / "again.yaml").write_text(plain)
    monkeypatch.delenv("CTRPS_TRAIN__SEED")
    assert ctrps("config", "show", "-c", "again.yaml")[1] == plain


def test_the_version(ctrps):
    status, out, _ = ctrps("--version")
    assert status == 0 and re.fullmatch(r"ctrps \d+\.\d+\.\d+\n", out)


# -- streams that end early ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(model) -> list[str]:
    """A command that prints more than a pipe holds."""
    rows = model / "many.libsvm"
    rows.write_text((model / "train.libsvm").read_text() * 40)
    return ["-m", "ctrps", "predict", "--model", str(model / "run" / "model"), "--data", str(rows)]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_is_no_error(many, unbuffered):
    process = subprocess.Popen(
        [sys.executable, *many],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain_environment() | {"PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.stdout.close()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert lines[0] == b"score\n" and 0 < float(lines[1]) < 1
    assert (err, process.returncode) == (b"", 141)


SHORT = ["-m", "ctrps", "config", "show"]


def test_closed_standard_output_is_no_error(many):
    for command in (many, SHORT, ["-m", "ctrps", "--help"]):
        found = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" >&-', "sh", sys.executable, *command],
            stderr=subprocess.PIPE,
            env=plain_environment(),
            timeout=DEADLINE_S,
        )
        assert (found.stderr, found.returncode) == (b"", 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error(many):
    reason = "No space left on device"
    text = f"error: cannot write the output: {reason}; make room, or write it elsewhere [E-DISK]\n"
    for command in (many, SHORT, ["-m", "ctrps", "--help"]):
        with open("/dev/full", "wb") as full:
            found = python(*command, stdout=full, stderr=subprocess.PIPE, capture_output=False)
        assert (found.stderr, found.returncode) == (text, 3)
    found = python(*many, "-o", "/dev/full")
    text = f"/dev/full: cannot write it: {reason}; make room, or write it elsewhere [E-DISK]"
    assert found.stderr == f"error: {text}\n"
    assert found.returncode == 3


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"PYTHONUTF8": "0"}])
def test_any_locale_will_do(tmp_path, locale):
    folder = tmp_path / "数据 目录"
    folder.mkdir()
    write_rows(folder / "训练 样本.libsvm", 30, seed=1)
    (folder / "job.ini").write_text("[data]\ntrain = 训练 样本.libsvm\n", encoding="utf-8")
    with Lab(tmp_path) as lab:
        given = ("-c", "job.ini", "--set", "output.dir=run")
        run = lab.run("train", *given, "--json", environ={"LANG": ""} | locale, cwd=folder)
        assert run.json["rows"] == 30
        wrong = ("train", "-c", "没有.ini")
        assert lab.run(*wrong, status=2, environ=locale, cwd=folder).stderr.startswith("error: ")


# -- start-up -----------------------------------------------------------------------------------


def test_help_loads_nothing_heavy():
    code = """
import sys
from ctrps.cli import app
try:
    app(sys.argv[1:])
except SystemExit as ended:
    assert ended.code == 0, ended.code
heavy = {"numpy", "numba", "pandas", "zmq", "msgpack"} & set(sys.modules)
assert not heavy, heavy
"""
    for arguments in (["--help"], ["train", "--help"], ["config", "show", "--help"], ["--version"]):
        found = python("-c", code, *arguments)
        assert found.returncode == 0, found.stderr


def test_training_loads_only_what_it_needs():
    """scipy may be there for Numba to look for, and still be imported afterwards."""
    code = """
import sys
import ctrps.runtime.dashboard, ctrps.runtime.launch, ctrps.runtime.local
heavy = {"pandas", "pyarrow", "rich", "scipy"} & set(sys.modules)
assert not heavy, heavy
import scipy.linalg
"""
    assert python("-c", code).stderr == ""


def test_an_error_that_nobody_reads_keeps_its_status(tmp_path):
    (tmp_path / "job.yaml").write_text("train: {lanes: no, passes: 0}\nmodell: {}\n")
    command = [sys.executable, "-m", "ctrps", "config", "show", "-c", str(tmp_path / "job.yaml")]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stderr=writing, stdout=subprocess.DEVNULL, timeout=60)
    os.close(writing)
    assert done.returncode == 2
