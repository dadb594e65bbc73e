"""``ctrps train``: its bits, its interruptions, its data and what it leaves behind."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ctrps import checkpoint
from ctrps.config import load_job
from ctrps.errors import CheckpointError, ConfigError, DataError, Stopped
from ctrps.runtime import local
from tests.procs import pause, read_lines, settings, trained, write_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("data")
    train = write_rows(folder / "train.libsvm", 2000, seed=1)
    test = write_rows(folder / "test.libsvm", 500, seed=2)
    return {"data_train": train, "data_test": test, "train_batch_rows": 16}


def job(data: dict[str, object], folder: Path, **values: object) -> list[str]:
    return settings(**(data | {"output_dir": folder} | values))


def interrupted(overrides: list[str], number: int, twice: bool = False) -> None:
    """Train, and send this process a signal at the first figures, and perhaps another."""

    def say(figures: dict[str, Any]) -> None:
        first = signal.getsignal(number)
        os.kill(os.getpid(), number)
        # A signal may reach the process by another thread, and two of a kind become one.
        for _ in range(500 if twice else 0):
            if signal.getsignal(number) is not first:
                break
            pause()
        if twice:
            os.kill(os.getpid(), number)
            for _ in range(500):
                pause()

    local.train(load_job(None, overrides, {}), False, say)


def results(summary: dict[str, Any]) -> tuple[object, ...]:
    return summary["model_digest"], summary["test"], summary["keys"], summary["rows"]


# -- bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lr", "fm"])
def test_threads_do_not_change_a_bit(data, tmp_path, kind):
    values = {"model_kind": kind, "train_passes": 2}
    runs = [
        trained(job(data, tmp_path / str(threads), **values, train_threads=threads))
        for threads in (1, 2, 3)
    ]
    assert results(runs[0]) == results(runs[1]) == results(runs[2])
    assert [run["threads"] for run in runs] == [1, 2, 3]
    assert runs[0]["test"]["auc"] > 0.8


def test_training_learns_the_planted_weights(data, tmp_path):
    summary = trained(job(data, tmp_path / "run", train_passes=4))
    assert summary["test"]["auc"] > 0.85
    assert summary["test"]["logloss"] < 0.5
    assert abs(summary["test"]["calibration"] - 1) < 0.1


def test_passes_at_once_or_one_by_one_are_the_same(data, tmp_path):
    trained(job(data, tmp_path / "run", model_kind="fm"))
    more = trained(job(data, tmp_path / "run", model_kind="fm", train_passes=2))
    whole = trained(job(data, tmp_path / "whole", model_kind="fm", train_passes=2))
    assert more["model_digest"] == whole["model_digest"]
    assert more["test"] == whole["test"]
    assert (more["rows"], whole["rows"]) == (2000, 4000)


# -- interruption -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_where_it_stopped(data, tmp_path, number):
    overrides = job(data, tmp_path / "run", model_kind="fm", train_passes=2)
    with pytest.raises(Stopped) as raised:
        interrupted(overrides, number)
    assert raised.value.exit_status == 75
    assert "interrupted at step 1 of " in str(raised.value)
    assert str(raised.value).endswith("model saved; run the same command again to go on")
    manifest = checkpoint.read_manifest(tmp_path / "run" / "model")
    assert (manifest.pass_, manifest.step, manifest.border) == (0, 1, False)
    assert not (tmp_path / "run" / "summary.json").exists()
    rest = trained(overrides)
    whole = trained(job(data, tmp_path / "whole", model_kind="fm", train_passes=2))
    assert rest["model_digest"] == whole["model_digest"]
    assert rest["test"] == whole["test"]
    assert 0 < whole["rows"] - rest["rows"] <= 64


def test_a_second_interrupt_stops_at_once(data, tmp_path):
    # A shell that starts the tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted(job(data, tmp_path / "run"), signal.SIGINT, twice=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not checkpoint.exists(tmp_path / "run" / "model")


def test_the_handlers_of_signals_come_back(data, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    trained(job(data, tmp_path / "run"))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "values", [{"train_lanes": 2}, {"train_batch_rows": 8}, {"train_shuffle": "none"}]
)
def test_a_run_goes_on_inside_a_pass_with_the_same_plan_only(data, tmp_path, values):
    with pytest.raises(Stopped):
        interrupted(job(data, tmp_path / "run"), signal.SIGINT)
    with pytest.raises(ConfigError, match=r"the run stopped at step 1 of pass 0 with other data"):
        trained(job(data, tmp_path / "run", **values))


# -- early stopping -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def overfitting(tmp_path_factory):
    """A job that gets better for some passes and then worse, and what it ends with."""
    folder = tmp_path_factory.mktemp("overfitting")
    values = {
        "data_train": write_rows(folder / "train.libsvm", 400, seed=1),
        "data_test": write_rows(folder / "test.libsvm", 400, seed=2),
        "train_batch_rows": 16,
        "train_passes": 40,
        "train_patience": 2,
        "optimizer_alpha": 0.3,
    }
    whole = trained(job(values, folder / "whole"))
    figures = [
        line["test"]["logloss"]
        for line in read_lines(folder / "whole" / "metrics.jsonl")
        if line["phase"] == "evaluate"
    ]
    best = figures.index(min(figures))
    assert 0 < best == len(figures) - 3
    assert (whole["stopped_early"], whole["passes"]) == (True, best + 3)
    return values, whole, best


def ending(summary: dict[str, Any]) -> tuple[object, ...]:
    names = ("model_digest", "test", "passes", "stopped_early")
    return tuple(summary[name] for name in names)


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("when", ["at the last step", "while it is scored"])
def test_a_run_that_goes_on_knows_its_best_figure(overfitting, tmp_path, monkeypatch, after, when):
    """Stopped in a pass after the best one, or between such a pass and its figures."""
    values, whole, best = overfitting
    overrides = job(values, tmp_path / "run")
    scored = []

    def interrupt(figures: dict[str, Any]) -> None:
        if figures["pass"] == best + after and figures["step"] == figures["steps"]:
            os.kill(os.getpid(), signal.SIGTERM)

    def report(*arguments: object) -> dict[str, object]:
        scored.append(arguments)
        if len(scored) == best + after:
            os.kill(os.getpid(), signal.SIGTERM)
        return test_report(*arguments)

    if when == "while it is scored":
        test_report = local.test_report
        monkeypatch.setattr(local, "test_report", report)
    with pytest.raises(Stopped):
        local.train(load_job(None, overrides, {}), False, interrupt)
    manifest = checkpoint.read_manifest(tmp_path / "run" / "model")
    assert (manifest.pass_, manifest.border) == (best + after, when == "at the last step")
    assert ending(trained(overrides)) == ending(whole)


def crashing(monkeypatch, name: str, call: int) -> None:
    """End the process, as it were, at a call of a function of ``checkpoint``."""
    function, calls = getattr(checkpoint, name), []

    def crash(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == call:
            raise KeyboardInterrupt
        return function(*arguments)

    monkeypatch.setattr(checkpoint, name, crash)


def test_a_crash_before_the_best_model_was_kept_loses_nothing(overfitting, tmp_path, monkeypatch):
    values, whole, best = overfitting
    overrides = job(values, tmp_path / "run")
    with monkeypatch.context() as patch:
        crashing(patch, "keep_best", best + 1)
        with pytest.raises(KeyboardInterrupt):
            trained(overrides)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"phase": "eval')  # broken off
    assert ending(trained(overrides)) == ending(whole)


def test_a_crash_after_the_decision_to_stop_trains_no_more(overfitting, tmp_path, monkeypatch):
    values, whole, _ = overfitting
    overrides = job(values, tmp_path / "run")
    with monkeypatch.context() as patch:
        crashing(patch, "restore_best", 1)
        with pytest.raises(KeyboardInterrupt):
            trained(overrides)
    again = trained(overrides)
    assert ending(again) == ending(whole)
    assert again["rows"] == 0


# -- data ---------------------------------------------------------------------------------------


def test_a_test_set_without_clicks_has_no_auc_and_says_why(data, tmp_path):
    test = write_rows(tmp_path / "test.libsvm", 30, seed=3, clicks=False)
    report = trained(job(data, tmp_path / "run", data_test=test))["test"]
    assert report["auc"] is None and report["auc_undefined"] == "only negatives in 30 rows"
    assert math.isfinite(report["logloss"]) and report["rows"] == 30


def test_no_test_set_is_no_error(data, tmp_path):
    train_only = {key: value for key, value in data.items() if key != "data_test"}
    overrides = job(train_only, tmp_path / "run")
    assert trained(overrides)["test"] is None
    # What a cluster's processes read: there the default of data.test is stated.
    resolved = load_job(tmp_path / "run" / "config.resolved.yaml", [], {})
    assert local.train(resolved, True, lambda figures: None)["test"] is None


@pytest.mark.parametrize("part", ["data_train", "data_test"])
def test_a_file_without_rows_is_an_error(data, tmp_path, part):
    empty = tmp_path / "empty.libsvm"
    empty.touch()
    with pytest.raises(DataError, match=f"no examples in {empty}"):
        trained(job(data, tmp_path / "run", **{part: empty}))
    assert not checkpoint.exists(tmp_path / "run" / "model")


def test_a_header_without_rows_is_an_error(data, tmp_path):
    header = tmp_path / "header.csv"
    header.write_text("label,site,ad\n")
    with pytest.raises(DataError, match=f"no examples in {header}"):
        trained(job(data, tmp_path / "run", data_train=header, data_test=header))


def test_shards_that_extract_has_not_made_yet(tmp_path):
    with pytest.raises(DataError, match=r"run `ctrps extract` with this job first"):
        trained(settings(output_dir=tmp_path / "run [1]"))


def test_a_folder_with_the_letters_of_patterns(data, tmp_path):
    first = trained(job(data, tmp_path / "run [a*]"))
    (shard,) = [
        p for p in (tmp_path / "run [a*]" / "cache").glob("*.shard") if "test" not in p.name
    ]
    (tmp_path / "run [b]" / "data").mkdir(parents=True)
    (tmp_path / "run [b]" / "data" / "train-0.shard").write_bytes(shard.read_bytes())
    second = trained(settings(output_dir=tmp_path / "run [b]", train_batch_rows=16))
    assert second["model_digest"] == first["model_digest"]
    assert second["test"] is None


def test_a_name_that_is_no_utf8(data, tmp_path):
    name = tmp_path / os.fsdecode(b"bad\xff name.libsvm")
    name.write_bytes(Path(str(data["data_train"])).read_bytes())
    odd = trained(job(data, tmp_path / os.fsdecode(b"run\xff"), data_train=name))
    assert odd["model_digest"] == trained(job(data, tmp_path / "run"))["model_digest"]


def test_text_is_converted_once(data, tmp_path):
    overrides = job(data, tmp_path / "run")
    trained(overrides)
    shards = {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "cache").glob("*.shard")}
    trained(overrides, overwrite=True)
    assert shards == {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "cache").glob("*.shard")}
    assert len(shards) == 2


def test_a_step_that_is_not_finite_ends_the_run(tmp_path):
    rows = tmp_path / "huge.libsvm"
    rows.write_text("1 1:3e38 2:3e38\n0 1:3e38 2:-3e38\n" * 20)
    with pytest.raises(DataError, match="not finite"):
        trained(settings(data_train=rows, output_dir=tmp_path / "run", model_kind="fm"))


# -- what a run leaves --------------------------------------------------------------------------


def test_a_run_leaves_its_summary_and_figures(data, tmp_path):
    summary = trained(job(data, tmp_path / "run", train_passes=2))
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert summary["model"] == str(tmp_path / "run" / "model")
    assert (summary["servers"], summary["workers"], summary["consistency"]) == (0, 0, "sync")
    assert summary["wall_s"] >= summary["convert_s"] + summary["train_s"] > 0
    *lines, judged = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert judged.pop("ts") >= lines[-1]["ts"] >= lines[0]["ts"] > 0
    assert judged == {"phase": "evaluate", "pass": 1, "test": summary["test"]}
    assert (lines[0]["pass"], lines[0]["step"]) == (0, 1)
    assert (lines[-1]["pass"], lines[-1]["rows"]) == (1, 2000)
    assert all(line["phase"] == "train" for line in lines)


def test_a_damaged_model_is_refused(data, tmp_path):
    trained(job(data, tmp_path / "run"))
    part = sorted((tmp_path / "run" / "model").glob("*.part"))[3]
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{part}: .* bytes, the manifest says"):
        trained(job(data, tmp_path / "run", train_passes=2))
