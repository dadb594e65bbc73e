"""What ``ctrps inspect`` says of models: of tables, of the sample logs, of indices."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ctrps import contributions, inspection
from ctrps.cli import app
from ctrps.data.names import read_names
from ctrps.data.tablenames import table_names
from ctrps.dictionary import Dictionary
from ctrps.errors import ConfigError, DataError
from ctrps.inspection import Weights, model_at
from ctrps.kernels.keys import dense_key, key_of
from ctrps.loaded import LoadedModel
from ctrps.predict import predict
from ctrps.screen import status_of as status
from tests import naive

ROOT = Path(__file__).parents[1]
CITIES = ("London", "Paris", "Rome", 'São "q", x')


def status_of(words):
    return status(app, words)


def write_csv(path, rows=600):
    rng = np.random.default_rng(3)
    lines = ["label,city,device,price"]
    for _ in range(rows):
        city, device = rng.choice(CITIES), rng.choice(["phone", "pc", ""])
        price = round(float(rng.exponential()), 3)
        odds = -1 + 1.5 * (city == "Paris") + 0.5 * (device == "phone") + 0.3 * price
        label = int(rng.random() < 1 / (1 + math.exp(-odds)))
        quoted = '"' + city.replace('"', '""') + '"' if "," in city else city
        lines.append(f"{label},{quoted},{device},{price}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(capsys, *words):
    """Standard output and error of a command that succeeds."""
    capsys.readouterr()
    assert status_of([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr()


@pytest.fixture(scope="module", params=["lr", "fm"])
def table(request, tmp_path_factory):
    """A model of a csv file with a column of numbers, its run and its file."""
    folder = tmp_path_factory.mktemp("table")
    path, out = write_csv(folder / "t.csv"), folder / "run"
    settings = [f"data.train={path}", "data.numeric=price", f"output.dir={out}"]
    settings += [f"model.kind={request.param}", "model.dim=5", "model.init_scale=0.3"]
    settings += ["train.passes=3", "train.batch_rows=32", "train.partitions=4"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert status_of(["train", "--progress", "none", *words]) == 0
    return model_at(out), out, path


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A run on the sample logs: extracted, trained."""
    out = tmp_path_factory.mktemp("sample") / "run"
    words = ["-c", str(ROOT / "conf" / "taobao_fm.yaml"), "--set", f"output.dir={out}"]
    assert status_of(["extract", *words]) == 0
    assert status_of(["train", "--progress", "none", *words]) == 0
    return out


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("indexed")
    path = folder / "t.svm"
    path.write_text("1 3:1 7:0.5\n0 2:1 9:2\n1 3:2\n0 9:1 3:0\n" * 20)
    words = ["--set", f"data.train={path}", "--set", f"output.dir={folder / 'run'}"]
    assert status_of(["train", "--progress", "none", *words]) == 0
    return folder / "run", path


def test_contributions_add_up_to_the_margins(table):
    loaded, _, path = table
    scored = np.concatenate([part.margins for part in predict(loaded, [path])])
    assert len(scored) == 600
    dictionary = Dictionary.of(loaded)
    for row in (1, 2, 17, 600):
        why = contributions.explain_row(loaded, path, row, dictionary)
        assert why["margin"] == scored[row - 1]
        parts = math.fsum(one["contribution"] for one in why["features"])
        assert why["intercept"] + parts + why["rounding"] == pytest.approx(why["margin"], abs=1e-12)
        assert abs(why["rounding"]) <= 1e-6
        sizes = [abs(one["contribution"]) for one in why["features"]]
        assert sizes == sorted(sizes, reverse=True)
        assert any(one["pairs"] for one in why["features"]) == bool(loaded.model.dim)


def test_a_contribution_is_what_the_slow_twin_says(table):
    loaded, _, path = table
    why = contributions.explain_row(loaded, path, 5, Dictionary.of(loaded))
    keys = [one["key"] for one in why["features"]]
    weights = loaded.partitions.tables[0].weights(np.array(keys, np.uint64), absent_initial=False)
    entries = [
        (weights[i, 0], weights[i, 1:], one["value"]) for i, one in enumerate(why["features"])
    ]
    wanted = naive.contributions(entries)
    found = [one["contribution"] for one in why["features"]]
    assert found == pytest.approx(wanted, abs=1e-7)


def test_features_have_the_names_and_counts_of_the_table(table):
    loaded, _, path = table
    dictionary, weights = Dictionary.of(loaded), Weights.of(loaded)
    names = dictionary.of_keys(weights.keys)
    assert {*names} == {f"city={city}" for city in CITIES} | {
        "device=",
        "device=pc",
        "device=phone",
        "price",
    }
    assert inspection.coverage(weights, names)["share"] == 1
    top = inspection.top(weights, dictionary, names, 3)
    sizes = sorted((abs(w) for w in weights.w.tolist()), reverse=True)
    assert [abs(one["w"]) for one in top] == sizes[:3]
    cities = inspection.top(weights, dictionary, names, 99, "city")
    assert {one["field"] for one in cities} == {"city"} and len(cities) == 4
    assert sum(one["count"] for one in cities) == 600
    paris = next(one for one in cities if one["name"] == "city=Paris")
    assert paris["key"] == key_of("city", "Paris")
    assert paris["count"] == path.read_text().count(",Paris,")


def test_importance_by_counts_is_the_mean_move_of_rows(table):
    loaded, _, path = table
    dictionary, weights = Dictionary.of(loaded), Weights.of(loaded)
    names = dictionary.of_keys(weights.keys)
    by_counts = {
        one["field"]: one["importance"] for one in inspection.importance(weights, dictionary, names)
    }
    measured = contributions.importance(loaded, [path])
    assert measured["rows"] == 600
    by_rows = {one["field"]: one for one in measured["fields"]}
    assert {*by_rows} == {"city", "device", "price"} and {*by_counts} == {"city", "device"}
    for field, found in by_counts.items():
        assert by_rows[field]["linear"] == pytest.approx(found, rel=1e-6)
    spreads = [one["spread"] for one in measured["fields"]]
    assert spreads == sorted(spreads, reverse=True)


def test_spread_is_the_deviation_over_rows(table):
    loaded, _, path = table
    dictionary = Dictionary.of(loaded)
    added = []
    for row in range(1, 41):
        why = contributions.explain_row(loaded, path, row, dictionary)
        added.append(sum(f["contribution"] for f in why["features"] if f["field"] == "city"))
    head = path.with_name("head.csv")
    head.write_text("".join(path.read_text().splitlines(keepends=True)[:41]))
    found = {one["field"]: one for one in contributions.importance(loaded, [head])["fields"]}
    assert found["city"]["spread"] == pytest.approx(np.std(added), abs=1e-7)


def test_one_feature_by_name_number_key_and_intercept(table):
    loaded, _, _ = table
    dictionary = Dictionary.of(loaded)
    paris = inspection.feature(loaded, dictionary, "city=Paris")
    key = np.array([key_of("city", "Paris")], np.uint64)
    row = loaded.partitions.tables[0].weights(key, absent_initial=False)[0]
    assert (paris["key"], paris["w"]) == (int(key[0]), float(row[0])) and paris["held"]
    if loaded.model.dim:
        assert paris["v"] == [float(v) for v in row[1:]]
        assert len(paris["v.n"]) == 5 and min(paris["v.n"]) > 0
    assert paris["w.n"] > 0
    assert inspection.feature(loaded, dictionary, str(key[0]))["w"] == paris["w"]
    assert inspection.feature(loaded, dictionary, "price")["key"] == dense_key("price")
    assert inspection.feature(loaded, dictionary, "intercept")["w"] == pytest.approx(
        inspection.intercept_of(loaded)
    )
    assert not inspection.feature(loaded, dictionary, "city=Oslo")["held"]
    for wrong, near in (("prise", "price"), ("citi=Rome", "city")):
        with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
            inspection.feature(loaded, dictionary, wrong)
    with pytest.raises(ConfigError, match="did you mean 'city'"):
        dictionary.field("citi")


def test_the_sample_logs_have_names(sample, capsys):
    shown = run(capsys, "inspect", sample, "--top", 5)
    assert "names         100.0 % of" in shown.out and shown.err == ""
    found = json.loads(run(capsys, "inspect", sample, "--top", 5, "--json").out)
    assert found["names"]["share"] > 0.99 and len(found["features"]) == 5
    dictionary = read_names([sample / "data"])
    for one in found["features"]:
        assert dictionary.of(np.array([one["key"]], np.uint64)) == [one["name"]]
        assert one["name"] in shown.out
    fields = [one["field"] for one in found["fields"]]
    assert "cate_id" in fields and len(fields) == len({*fields}) == 50
    cate = json.loads(run(capsys, "inspect", sample, "--field", "cate_id", "--json").out)
    assert {one["field"] for one in cate["features"]} == {"cate_id"}


def test_a_cross_and_rows_of_samples_are_found_by_name(sample, capsys):
    cross = next(name for name in read_names([sample / "data"]).names if "#" in name)
    loaded = model_at(sample)
    bare = Dictionary(None, [], loaded.schema, Dictionary.of(loaded).prefixes)
    with_names = inspection.feature(loaded, Dictionary.of(loaded), cross)
    assert with_names["key"] == inspection.feature(loaded, bare, cross)["key"]
    assert with_names["held"] and with_names["count"] > 0
    text = next((sample / "samples").glob("test-*.tsv"))
    by_text = run(capsys, "inspect", sample, "--row", 3, "--data", text, "--json").out
    shard = next((sample / "data").glob("test-*.shard"))
    by_shard = run(capsys, "inspect", sample, "--row", 3, "--data", shard, "--json").out
    assert json.loads(by_text)["margin"] == json.loads(by_shard)["margin"]
    assert json.loads(by_text)["features"] == json.loads(by_shard)["features"]


def test_screens_of_a_row_and_a_feature(table, capsys):
    _, out, path = table
    shown = run(capsys, "inspect", out, "--row", 2, "--data", path, "--top", 1).out
    lines = shown.splitlines()
    total = float(lines[-1].split()[0])
    column = [float(line.split()[0]) for line in lines if line.lstrip()[0] in "+-"]
    assert sum(column[:-1]) == pytest.approx(total, abs=3e-6) and lines[-1].endswith("sum")
    margin = next(line.split()[1] for line in lines if line.startswith("margin"))
    assert float(margin) == pytest.approx(total, abs=2e-6)
    assert "2 more features" in shown
    shown = run(capsys, "inspect", out, "--feature", "city=Oslo").out
    assert "the model does not hold it" in shown
    shown = run(capsys, "inspect", out, "--data", path).out
    assert "over 600 rows" in shown and "city" in shown


def test_a_locale_without_letters_changes_nothing(table):
    _, out, _ = table
    bare = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = ["inspect", str(out), "--feature", f"city={CITIES[3]}", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "ctrps", *words],
        env=os.environ | bare,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["held"] and found["key"] == key_of("city", CITIES[3])
    shown = [sys.executable, "-m", "ctrps", "inspect", str(out)]
    done = subprocess.run(shown, env=os.environ | bare, capture_output=True, text=True, check=True)
    assert "city=S\\xe3o" in done.stdout


def test_indices_are_their_own_names(indexed, capsys):
    out, path = indexed
    found = json.loads(run(capsys, "inspect", out, "--data", path, "--json").out)
    assert {one["name"] for one in found["features"]} == {"2", "3", "7", "9"}
    assert found["names"]["share"] == 1 and found["measured_rows"] == 80
    assert inspection.feature(model_at(out), Dictionary.of(model_at(out)), "7")["held"]
    unlabelled = path.with_name("u.svm")
    unlabelled.write_text("3:1 7:0.5\n")
    words = ["--row", 1, "--data", unlabelled, "--labels", "none", "--json"]
    why = json.loads(run(capsys, "inspect", out, *words).out)
    assert why["label"] is None and {one["name"] for one in why["features"]} == {"3", "7"}


def test_names_of_tables_are_checked_by_their_hash(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\nx,NA\ny,\nx,z\n")
    from ctrps.data.reading import TextSettings

    how = TextSettings(missing=("NA",))
    found = table_names([path], how, ("a", "b"))
    assert dict(zip(found.names, found.counts.tolist(), strict=True)) == {
        "a=x": 2,
        "a=y": 1,
        "b=": 1,
        "b=z": 1,
    }
    assert found.of(np.array([key_of("b", "z"), 5], np.uint64)) == ["b=z", None]
    svm = tmp_path / "t.svm"
    svm.write_text("1 3:1\n")
    with pytest.raises(DataError, match="says no names"):
        table_names([svm], how, ("a",))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--row", "3"], "add --data FILE"),
        (["--row", "601", "--data", "t.csv"], "the file has 600 rows"),
        (["--row", "1", "--data", "t.csv", "--data", "u.csv"], "give one --data FILE"),
        (["--field", "city", "--feature", "city=Rome"], "ask for different things"),
        (["--names", "nowhere"], "no such file"),
        (["--names", "t.csv", "--names", "."], "cannot be taken together"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        (["--labels", "some"], "'some' is not possible"),
    ],
)
def test_wrong_input_is_told(table, capsys, monkeypatch, words, says):
    _, out, path = table
    monkeypatch.chdir(path.parent)
    Path("u.csv").write_bytes(path.read_bytes())
    assert status_of(["inspect", str(out), *words]) in (2, 3)
    shown = capsys.readouterr()
    assert says in shown.err and shown.err.count("\n") == 1 and not shown.out


def test_a_model_without_keys_and_a_damaged_one(tmp_path, capsys, table):
    path = tmp_path / "t.csv"
    path.write_text("label,price\n" + "1,0\n0,0\n" * 4)
    words = ["--set", f"data.train={path}", "--set", "data.numeric=price"]
    assert status_of(["train", *words, "--set", f"output.dir={tmp_path / 'run'}"]) == 0
    assert "no weight differs" in run(capsys, "inspect", tmp_path / "run").out
    assert status_of(["inspect", str(tmp_path)]) == 3
    assert "no model is there" in capsys.readouterr().err
    part = next((tmp_path / "run" / "model").glob("*.part"))
    part.write_bytes(part.read_bytes()[:-1])
    assert status_of(["inspect", str(tmp_path / "run")]) == 3
    assert part.name in capsys.readouterr().err


def test_rows_of_a_table_name_themselves(table, tmp_path):
    loaded, out, path = table
    moved = tmp_path / "model"
    shutil.copytree(out / "model", moved)
    away = path.with_name("away")
    path.rename(away)
    try:
        loaded = model_at(moved)
        new = tmp_path / "new.csv"
        new.write_text("city,device,price\nRome,pc,1\nOslo,phone,2\n")
        assert Dictionary.of(loaded).names is None
        dictionary = Dictionary.of(loaded, data=[new])
        why = contributions.explain_row(loaded, new, 2, dictionary)
    finally:
        away.rename(path)
    found = {one["name"]: one["w"] for one in why["features"]}
    assert {*found} == {"city=Oslo", "device=phone", "price"}
    assert found["city=Oslo"] == 0 and why["label"] is None


def test_the_summary_of_another_run_is_not_taken(table):
    loaded, out, _ = table
    summary = inspection.summary(loaded, Weights.of(loaded))
    assert summary["run"]["rows"] == 1800 and summary["passes"] == 3
    path = out / "summary.json"
    text = path.read_text()
    try:
        path.write_text(text.replace(loaded.manifest.model_digest, "sha256:0"))
        assert (
            inspection.summary(LoadedModel.open(out / "model"), Weights.of(loaded))["run"] is None
        )
    finally:
        path.write_text(text)
