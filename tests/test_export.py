"""Exported models: read by numpy alone, and by Vowpal Wabbit, they score rows as the model does."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ctrps import export as exporting
from ctrps.cli import app
from ctrps.errors import DataError
from ctrps.inspection import model_at
from ctrps.models import INTERCEPT_KEY
from ctrps.predict import predict
from ctrps.screen import status_of

run = partial(status_of, app)

VW_PYTHON = os.environ.get("VW_PYTHON", sys.executable)
"""An interpreter that has the package ``vowpalwabbit``."""

LOAD_AND_SCORE = """
import shlex, sys
from vowpalwabbit import Workspace
command, rows, scores = sys.argv[1:]
Workspace("--quiet " + command.removeprefix("vw ")).finish()
scoring = "--quiet -i weights.txt.model -t --sparse_weights --link logistic"
Workspace(f"{scoring} -d {rows} -p {scores}").finish()
"""


def write_svm(path, rows=1200):
    """Rows of indices up to 2^64 - 1 with values; returns them as pairs."""
    rng = np.random.default_rng(11)
    keys = np.append(rng.integers(0, 2**64, 60, dtype=np.uint64), np.uint64(2**64 - 1))
    lean = rng.standard_normal(len(keys))
    found = []
    with open(path, "w") as file:
        for _ in range(rows):
            chosen = rng.choice(len(keys), 7, replace=False)
            values = np.round(rng.random(7) + 0.1, 3)
            odds = 2 * float((lean[chosen] * values).sum())
            label = int(rng.random() < 1 / (1 + np.exp(-odds)))
            pairs = list(zip(keys[chosen].tolist(), values.tolist(), strict=True))
            file.write(f"{label} {' '.join(f'{key}:{value}' for key, value in pairs)}\n")
            found.append(pairs)
    return found


@pytest.fixture(scope="module", params=["lr", "fm"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    rows = write_svm(folder / "t.svm")
    settings = [f"data.train={folder / 't.svm'}", f"output.dir={folder / 'run'}"]
    settings += [f"model.kind={request.param}", "model.dim=6", "model.init_scale=0.2"]
    settings += ["train.passes=3", "train.batch_rows=32", "optimizer.w.l1=20", "train.partitions=4"]
    assert run(["train", *(word for one in settings for word in ("--set", one))]) == 0
    return folder, rows


def scores_of(folder):
    loaded = model_at(folder / "run")
    return np.concatenate([part.probabilities for part in predict(loaded, [folder / "t.svm"])])


def test_the_text_is_scored_by_a_few_lines_of_numpy(trained, tmp_path):
    folder, rows = trained
    out = tmp_path / "model.txt"
    exporting.export(model_at(folder / "run"), out, "text")

    lines = [line.split() for line in out.read_text().splitlines()]
    table = {int(key): np.array(w, float) for key, *w in lines if key != "#"}
    bias = float(next(line[2] for line in lines if line[1] == "intercept"))
    found = []
    for row in rows:
        known = [(table[key], x) for key, x in row if key in table]
        w, x = np.array([w for w, _ in known]), np.array([x for _, x in known])
        vx = w[:, 1:] * x[:, None]
        margin = bias + w[:, 0] @ x + ((vx.sum(0) ** 2).sum() - (vx**2).sum()) / 2
        found.append(1 / (1 + np.exp(-margin)))

    difference = np.abs(np.array(found) - scores_of(folder)).max()
    assert difference < 1e-6, difference


def test_the_lines_of_the_how_to_score_it(trained, tmp_path, monkeypatch):
    folder, rows = trained
    if folder.name.startswith("fm"):
        pytest.skip("they are for linear models")
    page = (Path(__file__).parents[1] / "docs" / "howto.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = (block for block in blocks if "model.txt" in block)
    monkeypatch.chdir(tmp_path)
    exporting.export(model_at(folder / "run"), Path("model.txt"), "text")
    names = {}
    exec(code, names)
    found = np.array([names["score"](dict(row)) for row in rows])
    assert np.abs(found - scores_of(folder)).max() < 1e-6


def test_the_arrays_are_the_model_and_need_no_pickle(trained, tmp_path):
    folder, _ = trained
    loaded = model_at(folder / "run")
    exporting.export(loaded, tmp_path / "m.npz", "npz")
    with np.load(tmp_path / "m.npz", allow_pickle=False) as found:
        dim = loaded.model.dim
        assert found["kind"] == loaded.model.kind and ("v" in found) == bool(dim)
        assert (found["keys"][1:] > found["keys"][:-1]).all()
        weights = loaded.partitions.tables[0].weights(found["keys"], absent_initial=False)
        np.testing.assert_array_equal(weights[:, 0], found["w"])
        if dim:
            np.testing.assert_array_equal(weights[:, 1:], found["v"])
        assert found["slots"].tolist() == [""] and found["digest"] == loaded.manifest.model_digest


@pytest.mark.parametrize("to", ["text", "npz", "vw"])
def test_the_command_checks_what_it_wrote(trained, tmp_path, capsys, to):
    folder, _ = trained
    out, data = tmp_path / "out", str(folder / "t.svm")
    words = ["export", str(folder / "run"), "--to", to, "-o", str(out), "--check", data, "--json"]
    capsys.readouterr()
    if to == "vw" and folder.name.startswith("fm"):
        assert run(words) == 2 and not out.exists()
        assert "vw cannot hold a model of kind fm" in capsys.readouterr().err
        return
    assert run(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["check"]["rows"] == 1000 and found["check"]["difference"] < 1e-6
    assert found["keys"] + found["left_out"] == model_at(folder / "run").partitions.tables[0].used
    # LR has weights that l1 holds at zero; a row of fm has vectors all the same.
    assert (found["left_out"] > 0) == folder.name.startswith("lr")


@pytest.mark.parametrize("to", ["text", "npz"])
def test_a_wrong_file_fails_the_check(trained, tmp_path, to):
    folder, _ = trained
    loaded, out = model_at(folder / "run"), tmp_path / "out"
    arrays = exporting.arrays_of(loaded)
    strong = int(np.abs(arrays.w).argmax())
    arrays.w[strong] += 0.01
    with open(out, "wb") as file:
        exporting.WRITERS[to](file, arrays, loaded)
    with pytest.raises(DataError, match="differ from the model's"):
        exporting.check(loaded, out, to, [folder / "t.svm"])


def test_a_model_of_zeros_is_a_file_too(tmp_path):
    data = tmp_path / "t.svm"
    data.write_text("1 1:1 2:1\n0 1:1 3:1\n" * 20)
    settings = [f"data.train={data}", f"output.dir={tmp_path / 'run'}", "optimizer.w.l1=1000"]
    settings += ["train.partitions=1"]
    assert run(["train", *(word for one in settings for word in ("--set", one))]) == 0
    loaded = model_at(tmp_path / "run")
    for to in ("text", "npz", "vw"):
        assert exporting.export(loaded, tmp_path / to, to)["keys"] == 0
        assert exporting.check(loaded, tmp_path / to, to, [data])["difference"] < 1e-9


def test_what_cannot_be_written_is_told_and_leaves_the_old_file(trained, tmp_path, capsys):
    folder, _ = trained
    home = str(folder / "run")
    assert run(["export", home, "-o", "/dev/full"]) == 3
    assert "No space left" in capsys.readouterr().err
    assert run(["export", home, "-o", str(tmp_path / "no" / "x")]) == 3
    assert run(["export", home, "-o", "-", "--to", "npz"]) == 2
    assert run(["export", home, "-o", "-", "--check", str(folder / "t.svm")]) == 2
    assert run(["export", home, "-o", "-", "--json"]) == 2
    assert run(["export", home, "-o", str(tmp_path / "x"), "--to", "onnx"]) == 2
    assert run(["export", home, "-o", str(tmp_path / "x"), "--check", "nowhere.svm"]) == 3
    out = tmp_path / "model.txt"
    out.write_text("old")
    loaded = model_at(folder / "run")

    def fails(*_):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(exporting.WRITERS, "text", fails)
        with pytest.raises(DataError, match="No space left"):
            exporting.export(loaded, out, "text")
    assert out.read_text() == "old" and [*tmp_path.iterdir()] == [out]


def test_it_can_be_piped_into_head(trained, tmp_path):
    folder, _ = trained
    command = f"{sys.executable} -m ctrps export {folder / 'run'} -o - | head -n 2"
    command += "; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    *lines, status = done.stdout.splitlines()
    assert lines[1].startswith("# intercept ") and len(lines) == 2
    # Small enough for the pipe, all of it was written before the reader left.
    assert status in ("0", "141")
    exporting.export(model_at(folder / "run"), tmp_path / "m", "text")
    done = subprocess.run(
        [sys.executable, "-m", "ctrps", "export", str(folder / "run"), "-o", "-"],
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == (tmp_path / "m").read_bytes()
    assert b"standard output" in done.stderr and not done.returncode


def has_vw():
    python = shutil.which(VW_PYTHON)
    words = [python, "-c", "import vowpalwabbit"]
    return bool(python) and not subprocess.run(words, capture_output=True).returncode


@pytest.mark.skipif(not has_vw(), reason="needs vowpalwabbit: see VW_PYTHON")
def test_vowpal_wabbit_makes_the_same_model_of_the_file(trained, tmp_path):
    folder, rows = trained
    if folder.name.startswith("fm"):
        pytest.skip("vw holds linear models")
    exporting.export(model_at(folder / "run"), tmp_path / "weights.txt", "vw")
    with open(tmp_path / "rows.txt", "w") as file:
        for row in rows:
            pairs = " ".join(f"{key}:{value}" for key, value in row)
            file.write(f"1 | {INTERCEPT_KEY}:1 {pairs}\n")
    command = exporting.VW_COMMAND.format("weights.txt")
    words = [VW_PYTHON, "-c", LOAD_AND_SCORE, command, "rows.txt", "scores.txt"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=60)
    difference = np.abs(np.loadtxt(tmp_path / "scores.txt") - scores_of(folder)).max()
    assert difference < 2e-6, difference
