"""Judging scores: figures against scikit-learn, groups, slices, two models, the gate, the page."""

import csv
import gzip
import html.parser
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
)

from ctrps.cli import app
from ctrps.data.kept import Factor
from ctrps.data.shards import Shard
from ctrps.errors import DataError
from ctrps.evaluation import evaluate, evaluate_scores
from ctrps.evaluationpage import page
from ctrps.figures import (
    MOST_SLICES,
    Asked,
    Levels,
    Scored,
    Tally,
    approximated,
    compared,
    figures,
    judge,
    slice_name,
    slices,
)
from ctrps.loaded import LoadedModel
from tests import naive, naive_metrics
from tests.procs import DEADLINE_S, plain_environment, settings, trained

USERS, ADS = 40, 12


def random_rows(seed, rows=4000, distinct=10**9):
    rng = np.random.default_rng(seed)
    scores = np.round(rng.beta(1.5, 12, rows) * distinct) / distinct
    return scores, (rng.random(rows) < scores).astype(np.float32), rng


# -- figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("distinct", [20, 500, 10**9])
def test_figures_agree_with_scikit_learn(distinct):
    scores, labels, _ = random_rows(1, distinct=distinct)
    scores = np.clip(scores, 1e-3, 1)
    found = figures(Levels.of(scores, labels))
    wanted = {
        "auc": roc_auc_score(labels, scores),
        "logloss": log_loss(labels, scores),
        "brier": brier_score_loss(labels, scores),
        "average_precision": average_precision_score(labels, scores),
    }
    for name, figure in wanted.items():
        assert abs(found[name] - figure) < 1e-9, name
    assert found["calibration"] == pytest.approx(scores.sum() / labels.sum(), rel=1e-12)
    low, high = found["auc_interval"]
    assert low < found["auc"] < high < 1
    assert sum(one["rows"] for one in found["calibration_curve"]) == len(scores)
    assert sum(one["clicks"] for one in found["calibration_curve"]) == labels.sum()


@pytest.mark.parametrize("distinct", [7, 10**9])
def test_a_histogram_is_within_its_bound(distinct):
    scores, labels, _ = random_rows(2, distinct=distinct)
    exact, tally = figures(Levels.of(scores, labels)), Tally()
    for part in np.array_split(np.arange(len(scores)), 7):
        tally.add(scores[part], labels[part])
    tally.add(np.array([0.1, 0.9]), np.full(2, np.nan, np.float32))
    found = approximated(tally.levels())
    assert abs(found["auc"] - exact["auc"]) <= found["auc_bound"] < 1e-5
    assert (found["auc_bound"] == 0) == (distinct == 7)
    for name in ("rows", "clicks", "logloss", "brier", "calibration", "normalised_entropy"):
        assert found[name] == pytest.approx(exact[name], rel=1e-12), name
    assert found["calibration_error"] == pytest.approx(exact["calibration_error"], abs=1e-6)


def test_one_class_gives_a_reason_and_no_nan():
    for labels, why in (
        (np.zeros(3), "only negatives in 3 rows"),
        (np.ones(3), "only positives in 3 rows"),
        (np.zeros(0), "no rows"),
    ):
        scores = np.full(len(labels), 0.25)
        found = judge(Scored(scores, labels.astype(np.float32), others=scores), Asked()).figures
        json.dumps(found, allow_nan=False)
        assert found["auc"] is None and found["auc_undefined"] == why
        assert found["compare"]["auc"] == {"difference": None, "interval": None, "p": None}
    found = figures(Levels.of(np.array([0.1, 0.2, 0.9]), np.float32([0, 0, 1])))
    assert found["auc"] == 1 and found["auc_interval"] is None
    assert found["interval_undefined"].startswith("one click only")


# -- groups and slices --------------------------------------------------------------------------


def scored_rows(seed, values, rows=3000):
    scores, labels, rng = random_rows(seed, rows, distinct=200)
    numbers = rng.integers(-1, values, rows)
    names = [f"v{number}" for number in range(values)]
    return Scored(scores, labels, {"user": Factor(numbers, names)}), numbers


def test_grouped_auc_agrees_with_counting_and_leaves_rows_without_group_out():
    scored, numbers = scored_rows(3, 120)
    found = judge(scored, Asked("user")).figures
    there = numbers >= 0
    total, rows, used, skipped = naive.grouped_wins(
        numbers[there], scored.probabilities[there], scored.labels[there]
    )
    assert found["grouped_auc"] == pytest.approx(total / rows, rel=1e-12)
    assert (found["groups"], found["groups_skipped"]) == (used, skipped)
    assert found["rows_without_group"] == (~there).sum() > 0
    low, high = found["auc_interval_grouped"]
    assert low < found["auc"] < high


def test_slices_are_the_figures_of_their_rows():
    scored, numbers = scored_rows(4, 5)
    found = slices(scored, "user")
    assert [slice_name(one) for one in found] == ["v0", "v1", "v2", "v3", "v4", "(none)"]
    for one, number in zip(found, [0, 1, 2, 3, 4, -1], strict=True):
        rows = numbers == number
        wanted = figures(Levels.of(scored.probabilities[rows], scored.labels[rows]))
        del wanted["calibration_curve"]
        assert {key: one[key] for key in wanted} == wanted


def test_rare_values_are_one_slice_and_nothing_is_lost():
    scored, numbers = scored_rows(5, MOST_SLICES + 30)
    found = slices(scored, "user")
    assert len(found) == MOST_SLICES + 2
    assert found[-1]["values"] == 30 and slice_name(found[-1]) == "(30 others)"
    for name in ("rows", "clicks"):
        assert sum(one[name] for one in found) == judge(scored, Asked()).figures[name]
    kept = [one["rows"] for one in found if one.get("value") is not None]
    frequent = sorted(np.bincount(numbers[numbers >= 0]))[-MOST_SLICES:]
    assert sorted(kept) == frequent


def test_slices_of_numbers_come_by_size():
    numbers = np.array([0, 1, 2, 3])
    column = Factor(numbers, ["10", "9", "x", "-1"])
    scored = Scored(np.full(4, 0.5), np.float32([0, 1, 0, 1]), {"age": column})
    assert [one["value"] for one in slices(scored, "age")] == ["-1", "9", "10", "x"]


# -- two models ---------------------------------------------------------------------------------


def test_comparison_agrees_with_the_slow_twin():
    scores, labels, rng = random_rows(6, rows=250, distinct=50)
    others = np.clip(scores + rng.normal(0, 0.05, 250), 0, 1)
    found = compared(Scored(scores, labels, others=others), Levels.of(others, labels))
    one, two = (np.array(naive_metrics.placed(s, labels)) for s in (scores, others))
    error = math.sqrt(naive_metrics.variance_of(one - two, labels))
    difference = roc_auc_score(labels, scores) - roc_auc_score(labels, others)
    assert found["auc"]["difference"] == pytest.approx(difference, abs=1e-12)
    assert found["auc"]["interval"] == pytest.approx(
        [difference - 1.959963984540054 * error, difference + 1.959963984540054 * error]
    )
    assert found["auc"]["p"] == pytest.approx(math.erfc(abs(difference / error) / math.sqrt(2)))
    apart = log_loss(labels, scores) - log_loss(labels, others)
    assert found["logloss"]["difference"] == pytest.approx(apart, abs=1e-12)
    assert found["figures"]["auc"] == pytest.approx(roc_auc_score(labels, others))


def test_a_model_does_not_differ_from_itself():
    scores, labels, _ = random_rows(7, rows=300)
    found = compared(Scored(scores, labels, others=scores), Levels.of(scores, labels))
    for name in ("auc", "logloss"):
        assert found[name] == {"difference": 0.0, "interval": [0.0, 0.0], "p": 1.0}


# -- files --------------------------------------------------------------------------------------


def write_csv(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Rows as csv, jsonl, Parquet and shard, and two models of them."""
    folder = tmp_path_factory.mktemp("lab")
    rng = np.random.default_rng(8)
    users, ads = rng.integers(0, USERS, 1500), rng.integers(0, ADS, 1500)
    taste = rng.normal(size=(USERS, 1)) + rng.normal(size=ADS)
    clicks = rng.random(1500) < 1 / (1 + np.exp(1 - taste[users, ads]))
    rows = [
        [
            f"r{n}",
            int(click),
            f"u{user}" if user else "",
            f"广告 {ad}" if ad else "<b>&'\"",
            int(ad % 3),
        ]
        for n, (user, ad, click) in enumerate(zip(users, ads, clicks, strict=True))
    ]
    header = ["row", "label", "user", "ad", "age"]
    write_csv(folder / "train.csv", header, rows[:1000])
    write_csv(folder / "test.csv", header, rows[1000:])
    with open(folder / "test.jsonl", "w", encoding="utf-8") as file:
        file.writelines(
            json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows[1000:]
        )
    columns = [list(map(str, column)) for column in zip(*rows[1000:], strict=True)]
    pq.write_table(pa.table(dict(zip(header, columns, strict=True))), folder / "test.parquet")
    for name, changes in (("one", {}), ("two", {"data_ignore": "age,user"})):
        how = {"data_id": "row", "data_ignore": "age", "train_passes": 4} | changes
        data = {"data_train": folder / "train.csv", "data_test": folder / "test.csv"}
        trained(settings(**data, output_dir=folder / name, **how))
    (shard,) = folder.glob("one/cache/*test*.shard")
    return folder, shard


@pytest.fixture
def ctrps(capsys, monkeypatch, tmp_path):
    """Run a command in this process and in an empty folder; returns status, output and errors."""
    for name in [name for name in os.environ if name.startswith("CTRPS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            app([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_groups_and_slices_are_the_same_whatever_the_format(lab):
    folder, _ = lab
    model = LoadedModel.open(folder / "one" / "model")
    how = {"group": "user", "by": ["age", "ad"]}
    found = [
        evaluate(model, [folder / f"test.{kind}"], **how) for kind in ("csv", "jsonl", "parquet")
    ]
    assert found[0] == found[1] == found[2]
    assert found[0]["notes"] == [] and found[0]["rows_without_group"] > 0
    assert [one["value"] for one in found[0]["slices"]["age"]] == ["0", "1", "2"]
    names = {one["value"] for one in found[0]["slices"]["ad"]}
    assert names == {"<b>&'\"", *(f"广告 {ad}" for ad in range(1, ADS))}


def test_shards_are_grouped_and_sliced_by_slots_and_ids(lab):
    folder, shard = lab
    model = LoadedModel.open(folder / "one" / "model")
    text = evaluate(model, [folder / "test.csv"], group="ad", by=["user"])
    keys = evaluate(model, [shard], group="ad", by=["user"])
    for name in ("auc", "grouped_auc", "groups", "auc_interval_grouped"):
        assert keys[name] == pytest.approx(text[name], rel=1e-12)
    # A shard keeps the key of an empty text, and no names.
    assert {one["value"].partition(" ")[0] for one in keys["slices"]["user"]} == {"key"}
    assert sorted(one["rows"] for one in keys["slices"]["user"]) == sorted(
        one["rows"] for one in text["slices"]["user"]
    )
    by_id = evaluate(model, [shard], group="id")
    assert (by_id["groups"], by_id["groups_skipped"]) == (0, Shard(shard).rows)
    assert by_id["grouped_auc"] is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("csv", r"test.csv:1: no column 'usr'; did you mean 'user'"),
        ("jsonl", r"test.jsonl:1: no column 'usr'; did you mean 'user'"),
        ("parquet", r"test.parquet:1: no column 'usr'; did you mean 'user'"),
        ("shard", r"no column 'usr': a file of this kind has slots.*did you mean 'user'"),
    ],
)
def test_a_column_that_is_not_there_is_named_with_the_nearest(lab, name, message):
    folder, shard = lab
    model = LoadedModel.open(folder / "one" / "model")
    path = shard if name == "shard" else folder / f"test.{name}"
    with pytest.raises(DataError, match=message):
        evaluate(model, [path], group="usr")


def test_scores_written_and_read_are_those_of_the_model(lab, ctrps, tmp_path):
    folder, _ = lab
    model, data = folder / "one" / "model", folder / "test.csv"
    direct = json.loads(ctrps("evaluate", "--model", model, "--data", data, "--group", "user",
                              "--by", "age", "--json")[1])  # fmt: skip
    texts = []
    for name in ("s.csv", "s.csv.gz", "s.parquet"):
        kept = ("--keep", "label", "--keep", "user", "--keep", "age", "--keep", "user")
        status, out, err = ctrps("predict", "--model", model, "--data", data, "-o", name, *kept)
        assert (status, out) == (0, "") and f"500 rows scored to {name}" in err
        assert f"500 labelled rows: AUC {direct['auc']:.6f}, logloss" in err
        found = evaluate_scores([tmp_path / name], group="user", by=["age"])
        assert found == {key: direct[key] for key in found}
        if name != "s.parquet":
            data_of = (tmp_path / name).read_bytes()
            texts.append(gzip.decompress(data_of) if name.endswith("gz") else data_of)
    assert texts[0] == texts[1]
    assert texts[0].splitlines()[0] == b"id,label,user,age,score"
    assert pq.read_table("s.parquet").column_names == ["id", "label", "user", "age", "score"]


def test_log_odds_read_back_to_the_same_bits(lab, ctrps, tmp_path):
    folder, _ = lab
    how = ("predict", "--model", folder / "one" / "model", "--data", folder / "test.csv")
    odds, shares = (
        list(csv.DictReader(ctrps(*how, "--link", link)[1].splitlines()))
        for link in ("logit", "proba")
    )
    ctrps(*how, "--link", "logit", "-o", "odds.parquet")
    assert pq.read_table("odds.parquet")["logit"].type == pa.float32()
    exact = pq.read_table("odds.parquet")["logit"].to_numpy()
    assert np.array([row["logit"] for row in odds]).astype(np.float32).tolist() == exact.tolist()
    assert [row["id"] for row in odds] == [row["id"] for row in shares]
    logits = np.array([float(row["logit"]) for row in odds])
    scores = [float(row["score"]) for row in shares]
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), scores, rtol=1e-6)
    status, _, err = ctrps(*how, "--link", "probability")
    assert status == 2 and "--link: 'probability' is not possible; use proba or logit" in err


# -- the command --------------------------------------------------------------------------------


def test_the_gate_ends_with_status_5(lab, ctrps):
    folder, _ = lab
    how = ("evaluate", "--model", folder / "one" / "model", "--data", folder / "test.csv")
    status, out, err = ctrps(*how, "--min-auc", 0.99, "--json")
    found = json.loads(out)
    assert status == 5 and found["gate"] == {"min_auc": 0.99, "passed": False}
    assert err == f"error: AUC {found['auc']:.6f} is below the gate of 0.99 [E-GATE]\n"
    status, out, err = ctrps(*how, "--min-auc", 0.5)
    assert (status, err) == (0, f"gate: AUC {found['auc']:.6f} is not below the gate of 0.5\n")
    assert f"AUC                 {found['auc']:.6f}  95 %: " in out
    write_csv("none.csv", ["label", "score"], [[0, 0.1], [0, 0.2]])
    status, _, err = ctrps("evaluate", "--data", "none.csv", "--min-auc", 0.5)
    assert status == 5
    assert err == (
        "error: AUC is undefined (only negatives in 2 rows), and the gate is 0.5 [E-GATE]\n"
    )


def test_models_are_compared_on_the_same_rows(lab, ctrps):
    folder, _ = lab
    one, two = folder / "one" / "model", folder / "two" / "model"
    how = ("evaluate", "--data", folder / "test.csv", "--json")
    found, other = (json.loads(ctrps(*how, "--model", m, "--compare", one)[1]) for m in (one, two))
    assert found["compare"]["auc"]["difference"] == 0
    assert other["compare"]["figures"]["auc"] == found["auc"] > other["auc"]
    assert other["compare"]["auc"]["difference"] == pytest.approx(other["auc"] - found["auc"])
    assert other["compare"]["auc"]["p"] < 0.05
    _, out, _ = ctrps(*how[:-1], "--model", two, "--compare", one)
    assert (
        f"this minus {one}\nAUC                 {other['auc']:.6f} - {found['auc']:.6f} = " in out
    )
    status, _, err = ctrps("evaluate", "--data", "-", "--model", one, "--compare", two)
    assert status == 2 and "standard input can be read only once" in err


def test_models_that_read_other_rows_are_not_compared(lab, ctrps):
    folder, _ = lab
    trained(
        settings(data_train=folder / "test.csv", data_ignore="user,ad", data_numeric="age",
                 output_dir="third")
    )  # fmt: skip
    with open("t.csv", "w", encoding="utf-8") as file:
        file.write("row,label,user,ad,age\nr1,1,u1,x,1\nr2,0,u2,x,old\nr3,0,u2,x,2\n")
    status, _, err = ctrps("evaluate", "--model", folder / "one" / "model", "--data",
                           folder / "test.parquet", "--compare", "third/model")  # fmt: skip
    assert status == 0, err
    renamed = "row,label,user,ad,years\nr1,1,u1,x,1\n"
    (Path("r.csv")).write_text(renamed, encoding="utf-8")
    how = ("evaluate", "--data", "r.csv", "--model", folder / "one" / "model")
    status, _, err = ctrps(*how, "--compare", "third/model")
    assert status == 3
    assert err.startswith("error: --compare third/model: r.csv:1: no column 'age', which the model")
    how = ("evaluate", "--data", "t.csv", "--max-bad", 0.5, "--compare", "third/model")
    status, _, err = ctrps(*how, "--model", folder / "one" / "model")
    assert status == 3 and "the models read 3 and 2 rows of them" in err


def test_columns_of_scores_are_compared(ctrps):
    rows = [[1, 0.5, 0.6, "x"], [0, 0.4, 0.1, "x"], [1, 0.3, 0.7, "y"], [0, 0.6, 0.2, "y"]]
    write_csv("s.csv", ["clicked", "p", "q", "user"], rows)
    how = ("evaluate", "--data", "s.csv", "--label", "clicked", "--json")
    found = json.loads(ctrps(*how, "--score", "p", "--compare", "q", "--group", "user")[1])
    assert (found["auc"], found["grouped_auc"]) == (0.25, 0.5)
    assert found["compare"]["auc"]["difference"] == -0.75
    status, _, err = ctrps(*how, "--score", "r")
    assert status == 3 and "no column 'r'" in err
    assert ctrps(*how, "--score", "clicked", "--compare", "user")[0] == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--model", "m", "--label", "y"), "--label: it is for files of scores, without --model"),
        (("--model", "m", "--score", "p"), "--score: it is for files of scores, without --model"),
        (("--max-bad", "0.5"), "--max-bad: it is for rows that a model scores"),
    ],
)
def test_options_without_effect_are_refused(ctrps, more, message):
    status, out, err = ctrps("evaluate", "--data", "s.csv", *more)
    assert (status, out) == (2, "") and err.startswith(f"error: {message}; ")


def test_bins_are_asked_for_alone(lab, ctrps):
    folder, _ = lab
    how = ("evaluate", "--data", folder / "test.csv", "--approx", "--json")
    model = ("--model", folder / "one" / "model")
    found = json.loads(ctrps(*how, *model)[1])
    exact = evaluate(LoadedModel.open(model[1]), [folder / "test.csv"])
    assert abs(found["auc"] - exact["auc"]) <= found["auc_bound"]
    assert found["occurrences"] == exact["occurrences"]
    for more in (("--group", "user"), ("--by", "ad"), ("--compare", "x")):
        status, _, err = ctrps(*how, *model, *more)
        assert status == 2 and "--approx keeps no rows" in err
    write_csv("s.csv", ["label", "score"], [[1, 0.5], [0, 0.4]])
    assert json.loads(ctrps("evaluate", "--data", "s.csv", "--approx", "--json")[1])["auc"] == 1


def test_the_screen_says_slices_and_groups(lab, ctrps):
    folder, _ = lab
    _, out, err = ctrps("evaluate", "--model", folder / "one" / "model", "--data",
                        folder / "test.csv", "--group", "user", "--by", "age")  # fmt: skip
    lines = out.splitlines()
    assert lines[0].startswith("rows                500, ")
    assert any(re.match(r"grouped AUC +0\.\d{6}  \d+ groups by user \(", line) for line in lines)
    head = next(n for n, line in enumerate(lines) if line.startswith("age "))
    assert [line.split()[0] for line in lines[head + 1 :]] == ["0", "1", "2"]
    assert len({len(line) for line in lines[head:]}) == 1
    assert "does not know" not in err


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_case_25_any_path_and_value_in_any_locale(lab, tmp_path, locale):
    folder, _ = lab
    home = tmp_path / "数据 目录"
    home.mkdir()
    odd = home / os.fsdecode(b"bad\xff \xe6\xa0\xb7.csv")
    shutil.copy(folder / "test.csv", odd)
    page_path = home / os.fsdecode(b"\xff page.html")
    command = [*("evaluate", "--model", folder / "one" / "model", "--data", odd, "--by", "ad")]
    done = subprocess.run(
        [sys.executable, "-m", "ctrps", *command, "--report", page_path],
        env=plain_environment() | {"LC_ALL": locale, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd="/",
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert done.stdout.startswith(b"rows                500, ")
    assert "bad\\udcff 样.csv" in Page(page_path.read_text(encoding="utf-8")).text
    assert sorted(home.iterdir()) == sorted([odd, page_path])


# -- the page -----------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Tags, attributes, texts of cells, and exact figures of a page."""

    VOID = ("meta", "line", "circle", "rect", "polyline", "polygon", "br")

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.titles, self.open = [], [], [], []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.titles += [float(value) for name, value in attrs if name == "title"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def numbers_of(found):
    """All numbers of a JSON value."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        return [number for one in found for number in numbers_of(one)]
    return [found] if isinstance(found, float) else []


def test_the_page_says_what_json_says_and_needs_nothing_else(lab, ctrps, tmp_path):
    folder, _ = lab
    one, two = folder / "one" / "model", folder / "two" / "model"
    status, out, err = ctrps(
        *("evaluate", "--model", one, "--compare", two, "--data", folder / "test.csv", "--json"),
        *("--group", "user", "--by", "ad", "--by", "age", "--report", "r.html", "--min-auc", 0.5),
    )
    assert status == 0 and err.splitlines()[0] == "report written to r.html"
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    shown, found = Page(text), json.loads(out)
    assert not {"script", "link", "img", "iframe", "object"} & set(shown.tags)
    assert not {"src", "href", "onload", "onclick"} & set(shown.attributes)
    assert "url(" not in text and "@import" not in text and "http" not in text
    assert shown.tags.count("svg") == 3 + ADS + 3
    known = set(numbers_of(found))
    assert len(shown.titles) > 150 and set(shown.titles) <= known
    for name in ("auc", "grouped_auc", "logloss", "brier", "calibration", "average_precision"):
        assert found[name] in shown.titles
    wanted = {
        *numbers_of(found["slices"]["age"][0]["auc_interval"]),
        *numbers_of([one["predicted"] for one in found["calibration_curve"]]),
        *numbers_of(found["compare"]["auc"]),
    }
    assert wanted <= set(shown.titles)
    assert "<b>&" not in text and "<b>&'\"" in shown.text and "广告 3" in shown.text
    assert "prefers-color-scheme:dark" in text
    assert f"{found['rows']:,} rows, {found['clicks']:,} clicks" in shown.text


@pytest.mark.parametrize(
    ("labels", "why"), [([0, 0], "only negatives in 2 rows"), ([], "no rows"), ([0, 1], None)]
)
def test_a_page_without_curves_says_why(labels, why):
    scores = np.linspace(0.2, 0.2, len(labels))
    column = Factor(np.zeros(len(labels), np.int64), ["x"] if labels else [])
    judged = judge(Scored(scores, np.float32(labels), {"a<b": column}), Asked("a<b", ("a<b",)))
    shown = Page(page(judged, ("column <p>", ""), ["<i>.csv"], None))
    assert "Evaluation of column <p>" in shown.text and "<i>.csv" in shown.text
    assert (why or "one click only") in shown.text
    assert ("nan" in shown.text.lower()) is False


def test_a_page_that_cannot_be_written_is_an_error(ctrps):
    write_csv("s.csv", ["label", "score"], [[1, 0.5], [0, 0.4]])
    status, _, err = ctrps("evaluate", "--data", "s.csv", "--report", "no/r.html")
    assert status == 3 and err.startswith("error: no/r.html: cannot write it: No such file")
