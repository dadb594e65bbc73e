"""``ctrps checkpoint``: what it lists is there, damage is named, models compare and move."""

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ctrps import checkpoint
from ctrps.checkpoint import Checkpoint, read_manifest
from ctrps.cli import app
from ctrps.errors import CheckpointError, ConfigError
from ctrps.loaded import LoadedModel
from ctrps.predict import predict
from ctrps.reshard import diff, reshard
from ctrps.verify import verify
from tests.procs import settings, trained, write_rows
from tests.test_checkpoint import flipped, manifest, names, save
from tests.test_checkpoint import trained as pushed
from tests.test_local import interrupted


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("data")
    train = write_rows(folder / "train.libsvm", 800, seed=1)
    test = write_rows(folder / "test.libsvm", 200, seed=2)
    small = {"train_batch_rows": 16, "train_partitions": 4, "model_kind": "fm", "model_dim": 2}
    return {"data_train": train, "data_test": test, **small}


def job(data, folder, **values) -> list[str]:
    return settings(**(data | {"output_dir": folder} | values))


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    """A finished run of three passes, of which two checkpoints are kept."""
    folder = tmp_path_factory.mktemp("run") / "run"
    trained(job(data, folder, train_passes=3, train_evaluate="pass"))
    return folder


@pytest.fixture
def copied(run, tmp_path) -> Path:
    return shutil.copytree(run, tmp_path / "run")


def said(*arguments: object, status: int = 0) -> Any:
    """What a command prints: the object of ``--json``, or its text and what it says beside it."""
    result = CliRunner().invoke(app, ["checkpoint", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return json.loads(result.stdout) if "--json" in arguments else result.output


# -- list ---------------------------------------------------------------------------------------


def test_list_shows_each_checkpoint_newest_first(run):
    newest, older = said("list", run, "--json")["checkpoints"]
    assert (newest["checkpoint"], newest["pass"], newest["border"]) == (2, 2, True)
    assert newest["model"] and newest["last"] and newest["complete"] and not newest["best"]
    assert (older["checkpoint"], older["pass"], older["step"]) == (1, 1, 13)
    assert older["complete"] and not (older["model"] or older["last"])
    files = read_manifest(run / "model").files
    assert newest["size_bytes"] == sum((run / "model" / file.name).stat().st_size for file in files)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d", newest["time"])
    first, second = said("list", run / "model").splitlines()
    assert "end of pass 2, step 13  complete  (model, last)" in first and second.endswith(
        "complete"
    )


def test_list_says_what_is_not_complete(copied):
    path = copied / "model" / read_manifest(copied / "model").files[1].name
    path.write_bytes(path.read_bytes()[:-1])
    newest, older = said("list", copied, "--json")["checkpoints"]
    assert newest["missing"] == [path.name] and not newest["complete"] and older["last"]
    assert "1 files missing  (model)" in said("list", copied)


def test_no_model_is_an_error(tmp_path):
    for command in ("list", "verify"):
        assert f"error: {tmp_path}: no model is there" in said(command, tmp_path, status=3)
    assert "no model is there" in said("diff", tmp_path, tmp_path, status=3)


# -- verify -------------------------------------------------------------------------------------


def test_a_whole_model_is_whole(run):
    report = said("verify", run, "--json")
    assert report["damaged"] == [] and [one["whole"] for one in report["checkpoints"]] == [True] * 2
    assert report["checkpoints"][0]["keys"] > 300
    assert said("verify", run).count(": whole") == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone", "long"])
def test_every_damaged_file_is_named_with_what_to_do(copied, damage):
    model = copied / "model"
    newest = {file.name for file in read_manifest(model).files}
    for name in names(model):
        path, whole = model / name, (model / name).read_bytes()
        match damage:
            case "flip":
                flipped(path, len(whole) // 2, 3)
            case "gone":
                path.unlink()
            case _:
                path.write_bytes({"cut": whole[:-9], "empty": b"", "long": whole + b"\0"}[damage])
        if not (damage == "gone" and name.endswith(".json")):
            report = said("verify", copied, "--json", status=3)
            (damaged,) = report["damaged"]
            assert damaged["file"] == str(path)
            whole_ones = [one["manifest"] for one in report["checkpoints"] if one["whole"]]
            if name in newest or name == "manifest.json":
                assert whole_ones == ["manifest-1.json"]
                assert "copy manifest-1.json over manifest.json" in damaged["hint"]
            else:
                assert whole_ones == ["manifest.json"] and "itself is whole" in damaged["hint"]
        path.write_bytes(whole)
    said("verify", copied)


def test_the_remedy_is_one(copied, data):
    model = copied / "model"
    digest = read_manifest(model).model_digest
    flipped(model / read_manifest(model).files[2].name, 100, 1)
    text = said("verify", copied, status=3)
    assert "error: " in text and "1 files of it are damaged" in text
    assert "go back to checkpoint 1, which is whole" in text
    with pytest.raises(CheckpointError, match=r"go back to checkpoint 1: copy manifest-1.json"):
        LoadedModel.open(model)
    shutil.copy(model / "manifest-1.json", model / "manifest.json")
    (copied / "summary.json").unlink()
    assert trained(job(data, copied, train_passes=3))["model_digest"] == digest
    said("verify", copied)


def test_a_file_too_many_is_named(copied):
    model = copied / "model"
    shutil.copy(model / read_manifest(model).files[0].name, model / "p009-c000002-v0-n0.part")
    text = said("verify", copied, status=3)
    assert "p009-c000002-v0-n0.part: a partition file that the manifest does not list" in text
    assert "move it to another folder" in text


def spoiled(folder: Path, spoil: Any) -> str:
    """What is said of a model whose files are in order but whose rows are not."""
    folder.mkdir()
    held, files = pushed(), []
    for partition, state in enumerate(held.snapshot()):
        tables = [
            (t.name, s.keys, s.rows) for t, s in zip(held.model.tables, state.tables, strict=True)
        ]
        spoil(partition, tables)
        files.append(checkpoint.write_partition(folder, partition, 1, 0, 0, tables))
    checkpoint.commit(folder, manifest(held, files))
    return " ".join(str(e) for one in verify(folder) for e in one.damages.values())


def test_rows_that_are_not_finite_or_of_another_partition_are_named(tmp_path):
    def infinite(partition, tables):
        if partition == 3:
            tables[0][2][2, 1] = np.inf

    def foreign(partition, tables):
        if partition == 5:
            tables[0][1][:] = np.sort(np.uint64(2**63) - tables[0][1])

    def repeated(partition, tables):
        if partition == 6:
            tables[0][1][1] = tables[0][1][0]

    found = spoiled(tmp_path / "a", infinite)
    assert re.search(r"p003-.*the row of key \d+ in table 'sparse' is not finite", found)
    assert re.search(
        r"p005-.*key \d+ of .*'sparse' is not of partition 5", spoiled(tmp_path / "b", foreign)
    )
    assert re.search(
        r"p006-.*'sparse' does not hold .*ascending", spoiled(tmp_path / "c", repeated)
    )


def test_a_manifest_that_does_not_fit_its_files_is_named(tmp_path):
    save(tmp_path / "m", pushed())
    whole = read_manifest(tmp_path / "m")
    for wrong, what in [
        (
            replace(whole, model_digest="sha256:0"),
            "the digest of the model is not that of its files",
        ),
        (
            replace(whole, files=tuple(sorted(whole.files)[:-1])),
            r"lists 7 partition files, the model has 8",
        ),
    ]:
        body = checkpoint.manifest_text(wrong)
        (tmp_path / "m" / "manifest.json").write_bytes(body)
        (path,) = (tmp_path / "m").glob("p007*")
        if len(wrong.files) < 8:
            path.unlink()
        (error,) = verify(tmp_path / "m")[0].damages.values()
        assert re.search(what, str(error)) and error.where == str(tmp_path / "m" / "manifest.json")


# -- diff and reshard ---------------------------------------------------------------------------


def scores(model: Path, data: dict[str, object]) -> bytes:
    found = predict(LoadedModel.open(model), [Path(str(data["data_test"]))])
    return b"".join(part.margins.tobytes() for part in found)


@pytest.mark.parametrize("partitions", [1, 2, 4, 16, 256])
def test_another_number_of_partitions_is_the_same_model(run, data, tmp_path, partitions):
    report = said("reshard", run, "--partitions", partitions, "-o", tmp_path / "m", "--json")
    assert report["partitions"] == partitions
    there = Checkpoint(tmp_path / "m")
    assert there.partitions == partitions
    assert verify(tmp_path / "m")[0].damages == {}
    assert scores(tmp_path / "m", data) == scores(run / "model", data)
    found = diff(run / "model", tmp_path / "m")
    assert found.equal and all(table.keys and table.equal for table in found.tables)
    assert [*found.settings] == ["train.partitions"] * (partitions != 4)
    back = reshard(tmp_path / "m", 4, tmp_path / "back")
    assert back.model_digest == read_manifest(run / "model").model_digest


@pytest.mark.parametrize("consistency", ["sync", "ssp"])
def test_training_goes_on_inside_a_pass_with_other_partitions(data, tmp_path, consistency):
    values = {"train_passes": 2, "train_consistency": consistency}
    if consistency == "ssp":
        values |= {"train_lanes": 1, "train_batch_rows": 64}
    wanted = trained(job(data, tmp_path / "whole", train_partitions=16, **values))
    with pytest.raises(Exception, match="interrupted at step"):
        interrupted(job(data, tmp_path / "a", **values), signal.SIGINT)
    assert not read_manifest(tmp_path / "a" / "model").border
    said("reshard", tmp_path / "a", "--partitions", 16, "-o", tmp_path / "b" / "model")
    with pytest.raises(ConfigError, match=r"partitions is 16 in the model and 4 in the job"):
        trained(job(data, tmp_path / "b", **values))
    summary = trained(job(data, tmp_path / "b", train_partitions=16, **values))
    assert summary["model_digest"] == wanted["model_digest"]
    assert summary["rows"] < 1600


def noted(folder: Path, marks: list[list[int]]) -> None:
    """A model of 8 partitions with marks and progress, as a mode that does not wait saves it."""
    folder.mkdir()
    held, files = pushed(), []
    for partition, state in enumerate(held.snapshot()):
        tables = [(t.name, *s) for t, s in zip(held.model.tables, state.tables, strict=True)]
        histogram = (
            np.full((4096, 2), partition, np.int64) if partition % 2 else np.zeros((0, 2), int)
        )
        notes = [np.int32(marks[partition]), np.float64([partition]), histogram]
        files.append(checkpoint.write_partition(folder, partition, 1, 0, 0, tables, notes))
    checkpoint.commit(folder, manifest(held, files))


def test_marks_and_progress_go_with_their_rows(tmp_path):
    noted(tmp_path / "m", [[p, 2] for p in range(8)])
    reshard(tmp_path / "m", 16, tmp_path / "more")
    more = Checkpoint(tmp_path / "more")
    assert [more.read(p).notes[0].tolist() for p in range(16)] == [[p // 2, 2] for p in range(16)]
    assert sum(float(more.read(p).notes[1][0]) for p in range(16)) == sum(range(8))
    assert sum(int(more.read(p).notes[2].sum()) for p in range(16)) == 4096 * 2 * (1 + 3 + 5 + 7)
    with pytest.raises(CheckpointError, match=r"hold other batches each.* more partitions"):
        reshard(tmp_path / "m", 4, tmp_path / "less")
    noted(tmp_path / "equal", [[7, 2]] * 8)
    reshard(tmp_path / "equal", 2, tmp_path / "two")
    two = Checkpoint(tmp_path / "two")
    assert [two.read(p).notes[0].tolist() for p in (0, 1)] == [[7, 2]] * 2
    assert [float(two.read(p).notes[1][0]) for p in (0, 1)] == [0 + 1 + 2 + 3, 4 + 5 + 6 + 7]
    assert [int(two.read(p).notes[2].sum()) for p in (0, 1)] == [8192 * 4, 8192 * 12]


@pytest.mark.parametrize("partitions", [0, 3, 512])
def test_no_such_number_of_partitions(run, tmp_path, partitions):
    text = said("reshard", run, "--partitions", partitions, "-o", tmp_path / "m", status=2)
    assert "error: --partitions: must be a power of two, 1 to 256" in text


def test_models_are_not_written_over_others(run, copied):
    for command in (["reshard", "--partitions", 8], ["copy"]):
        text = said(command[0], run, *command[1:], "-o", copied / "model", status=2)
        assert f"error: {copied / 'model'}: a model is there" in text


def test_a_copy_has_every_checkpoint(run, tmp_path):
    said("copy", run, "-o", tmp_path / "copy")
    listed = [said("list", home, "--json")["checkpoints"] for home in (run, tmp_path / "copy")]
    assert [row | {"time": 0} for row in listed[0]] == [row | {"time": 0} for row in listed[1]]
    said("verify", tmp_path / "copy")


def test_a_damaged_model_is_neither_copied_nor_resharded(copied, tmp_path):
    flipped(copied / "model" / read_manifest(copied / "model").files[2].name, 100, 1)
    for command in (["reshard", "--partitions", 8], ["copy"]):
        text = said(command[0], copied, *command[1:], "-o", tmp_path / "out", status=3)
        assert "p002-" in text
        assert not (tmp_path / "out" / "manifest.json").exists()


def test_diff_says_how_models_differ(run, data, tmp_path):
    values = {"train_passes": 2, "optimizer_alpha": 0.2, "train_partitions": 8}
    trained(job(data, tmp_path / "b", **values))
    a, b = LoadedModel.open(run / "model"), LoadedModel.open(tmp_path / "b" / "model")
    found = said("diff", run, tmp_path / "b", "--json", status=5)
    assert not found["equal"]
    assert found["settings"]["optimizer.w.alpha"] == {"a": 0.1, "b": 0.2}
    assert found["settings"]["position.pass"] == {"a": 2, "b": 1}
    weights = [
        {
            int(k): row[:3]
            for s in one.partitions.snapshot()
            for k, row in zip(*s.tables[0], strict=True)
        }
        for one in (a, b)
    ]
    common = sorted(weights[0].keys() & weights[1].keys())
    apart = np.abs([weights[0][k].astype(float) - weights[1][k] for k in common])
    sparse = found["tables"][0]
    assert (sparse["keys"], sparse["only_a"], sparse["only_b"]) == (len(common), 0, 0)
    assert sparse["largest"] == apart.max() and sparse["mean"] == pytest.approx(apart.mean())
    text = said("diff", run, tmp_path / "b", status=5)
    assert "setting       train.passes: 3 and 2" in text and text.endswith("equal         no\n")


def test_diff_counts_keys_and_compares_models_of_other_kinds(tmp_path, data, run):
    more = write_rows(tmp_path / "few.libsvm", 20, seed=3)
    more.write_text(more.read_text() + "1 5000:1\n")
    trained(job(data, tmp_path / "few", data_train=more))
    trained(job(data, tmp_path / "lr", model_kind="lr"))
    few = diff(run / "model", tmp_path / "few" / "model").tables[0]
    assert few.only_b == 1 and few.only_a > 100 and not few.equal
    lr = diff(run / "model", tmp_path / "lr" / "model")
    assert lr.settings["model.kind"] == ("fm", "lr") and not lr.equal
    assert lr.tables[0].keys and lr.tables[0].weights == 0 and lr.tables[0].mean == 0
