"""Cases from the field that concern extraction; the folders are in ``shared/cases``."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ctrps.cli import app
from ctrps.config import load_job
from ctrps.data.extract import extract
from ctrps.data.shards import Shard
from ctrps.errors import DataError
from ctrps.kernels import values
from ctrps.kernels.keys import key_of
from ctrps.loaded import LoadedModel
from ctrps.predict import predict
from tests.procs import settings, trained

ROOT = Path(__file__).parents[1]
KNOWN = Path(__file__).parent / "fixtures" / "known_keys.tsv"


def spec(fields, *features):
    return "\n".join(
        [f"[raw_sample_schema]\nfields={fields}\n[label]\nlabel=label,direct", *features]
    )


def run(tmp_path, folder, table, features, *settings, join="", shuffle="false", **options):
    """Extract one table; without a split every row is for training and keeps its place."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "join.yaml").write_text(f"impressions: {{table: {table}}}\n{join}")
    (tmp_path / "features.ini").write_text(features)
    given = [
        f"sample.dir={folder}",
        f"sample.join={tmp_path / 'join.yaml'}",
        f"features.spec={tmp_path / 'features.ini'}",
        f"output.dir={tmp_path / 'out'}",
        f"features.shuffle={shuffle}",
        *settings,
    ]
    return extract(load_job(None, given, {}), **options)


def rows_of(answer):
    """The rows of the only training shard."""
    (path,) = answer["outputs"]["train"]
    return Shard(Path(path)).block(0).to_rows()


def slot(answer, number):
    """Keys of a slot that has one in every row."""
    rows = rows_of(answer)
    assert (rows.counts == 1).all()
    return rows.keys.reshape(rows.counts.shape)[:, number].tolist()


@pytest.fixture
def case(shared):
    def find(number):
        (folder,) = (shared / "cases").glob(f"{number}-*")
        return folder

    return find


# 02: byte order mark and header


@pytest.mark.parametrize("table", ["plain", "bom", "bom_quoted"])
def test_02_profile_table(case, tmp_path, table):
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "users.csv").write_bytes((case("02") / f"{table}.csv").read_bytes())
    (raw / "log.csv").write_text("label,user\n1,11\n0,12\n1,13\n")
    features = spec(
        "label,user,final_gender_code,age_level,pvalue_level,new_user_class_level",
        "[sparse_features_user]\na=age_level,direct\ng=final_gender_code,direct\n"
        "n=new_user_class_level,direct\np=pvalue_level,direct\nu=user,direct",
    )
    join = "joins: [{table: users, on: user, key: userid}]"
    answer = run(tmp_path, raw, "log", features, join=join)
    names = ("age_level", "final_gender_code", "new_user_class_level", "pvalue_level", "user")
    values = [("3", "1", "2", "", "11"), ("4", "2", "", "1", "12"), ("5", "2", "4", "3", "13")]
    wanted = [key_of(n, v) for row in values for n, v in zip(names, row, strict=True)]
    assert rows_of(answer).keys.tolist() == wanted
    answer = run(tmp_path, raw, "log", features, "features.missing=drop", join=join, overwrite=True)
    assert rows_of(answer).counts.tolist() == [[1, 1, 1, 0, 1], [1, 1, 0, 1, 1], [1] * 5]


# 03: zero bytes


def test_03_values_with_zero_bytes_stay_apart(case, tmp_path):
    features = spec("label,site,ad", "[sparse_features_ad]\nad=ad,direct\nsite=site,direct")
    answer = run(tmp_path, case("03"), "cats", features)
    assert (answer["rows"], answer["rejected"]) == (6, 0)
    assert len(set(slot(answer, 1))) == 6
    assert slot(answer, 0) == [key_of("ad", v) for v in ("7", "7", "7", "8", "8", "9")]


def test_03_number_with_a_zero_byte(case, tmp_path):
    features = spec("label,price", "[dense_features_ad]\nprice=price,direct")
    with pytest.raises(DataError, match=r"train-00000.tsv:2:3: price: .*found '12\\x00xyz'"):
        run(tmp_path, case("03"), "num", features)
    answer = run(tmp_path, case("03"), "num", features, "sample.max_bad=0.5")
    assert (answer["rows"], answer["rejected"]) == (2, 1)
    assert rows_of(answer).dense.ravel().tolist() == [12, 3.5]


# 11: nan and infinity


@pytest.mark.parametrize("operator", ["direct", "log", "sqrt"])
def test_11_no_nan_and_no_infinity(case, tmp_path, operator):
    features = spec("label,price,age", f"[dense_features_ad]\np=price,{operator}\na=age,{operator}")
    answer = run(tmp_path, case("11"), "nan_dense", features, "sample.max_bad=0.7")
    assert (answer["rows"], answer["rejected"]) == (3, 5)
    rows = rows_of(answer)
    assert np.isfinite(rows.dense).all() and rows.labels.tolist() == [1, 1, 0]
    if operator == "direct":
        assert rows.dense.tolist() == [[20, 3.5], [40, 0], [35, 4.5]]
    aside = (tmp_path / "out" / "rejected" / "train-00000.tsv").read_text().splitlines()
    assert [line.split("\t")[1:3] for line in aside] == [[str(n), "3"] for n in (3, 5, 6, 7, 8)]
    assert [line.split("\t")[-1] for line in aside] == ["nan", "Infinity", "-", "NULL", "1e400"]


# 12: keys are the same everywhere

CATS = spec(
    "label,user,ad,site", "[sparse_features_ad]\nad=ad,direct\nsite=site,direct\nuser=user,direct"
)
SCRIPT = """
import sys
from pathlib import Path
from tests.test_cases_extract import CATS, rows_of, run
if __name__ == "__main__":
    folder, out = map(Path, sys.argv[1:])
    print(rows_of(run(out, folder, "cats", CATS)).keys.tolist())
"""


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONHASHSEED": "1", "LC_ALL": "C"}, {"PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8"}],
)
def test_12_in_other_processes(case, tmp_path, environment):
    wanted = rows_of(run(tmp_path / "here", case("12"), "cats", CATS)).keys.tolist()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(case("12")), str(tmp_path / "there")]
    done = subprocess.run(
        command, env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(wanted)


def test_12_pieces_order_and_separators(case, tmp_path, monkeypatch):
    wanted = rows_of(run(tmp_path / "a", case("12"), "cats", CATS)).keys.reshape(-1, 3)
    assert len(np.unique(wanted)) == 20
    for lines in (1, 7, 1000):
        monkeypatch.setattr("ctrps.data.blocks.PIECE_LINES", lines)
        monkeypatch.setattr("ctrps.data.tables.PIECE_ROWS", lines)
        found = rows_of(run(tmp_path / f"b{lines}", case("12"), "cats", CATS)).keys
        assert found.reshape(-1, 3).tolist() == wanted.tolist()
    table = (case("12") / "cats.csv").read_text(encoding="utf-8").splitlines()
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "cats.csv").write_text("\n".join([table[0], *table[:0:-1]]), encoding="utf-8")
    found = rows_of(run(tmp_path / "c", raw, "cats", CATS)).keys.reshape(-1, 3)
    assert found[::-1].tolist() == wanted.tolist()
    samples = tmp_path / "d" / "out" / "samples"
    samples.mkdir(parents=True)
    text = "\n".join(line.replace(",", "\t") for line in table) + "\n"
    (samples / "train-0.tsv").write_text(text, encoding="utf-8")
    found = rows_of(run(tmp_path / "d", raw, "cats", CATS, stage="features")).keys
    assert found.reshape(-1, 3).tolist() == wanted.tolist()


def test_12_known_answers(case, tmp_path):
    """A change of these breaks every model and shard there is."""
    known = [line.split("\t") for line in KNOWN.read_text(encoding="utf-8").splitlines()]
    assert len(known) == 20
    for name, value, key in known:
        assert f"{key_of(name, value):016x}" == key
    found = rows_of(run(tmp_path, case("12"), "cats", CATS)).keys
    assert {f"{key:016x}" for key in found.tolist()} == {key for *_, key in known}


# 13: ids are text


def cids(case, tmp_path, table):
    features = spec("label,cid,n", "[sparse_features_ad]\ncid=cid,direct")
    return slot(run(tmp_path / table, case("13"), table, features), 0)


def test_13_ids_are_text(case, tmp_path):
    plain = cids(case, tmp_path, "no_missing")
    assert plain == [key_of("cid", v) for v in ("1", "2", "10", "01")] and len(set(plain)) == 4
    assert cids(case, tmp_path, "with_missing") == [*plain, key_of("cid", "")]
    assert cids(case, tmp_path, "late_text") == [*plain, key_of("cid", "x9")]
    floats = cids(case, tmp_path, "floats")
    assert len({*floats, *plain}) == 8
    big = cids(case, tmp_path, "big")
    assert big == [key_of("cid", v) for v in ("9007199254740993", "9007199254740992", "")]


# 15: values that training never saw

SEEN_AND_NOT = spec("label,user,ad", "[sparse_features_ad]\nad=ad,direct\nuser=user,direct")


@pytest.mark.parametrize("kind", ["lr", "fm"])
@pytest.mark.parametrize("count_above", [0, 1])
def test_15_values_that_training_never_saw(case, tmp_path, kind, count_above):
    filtered = f"features.count_above={count_above}"
    (train,) = run(tmp_path / "a", case("15"), "train", SEEN_AND_NOT, filtered)["outputs"]["train"]
    (rows,) = run(tmp_path / "b", case("15"), "predict", SEEN_AND_NOT)["outputs"]["train"]
    model = tmp_path / "run" / "model"
    how = settings(model_kind=kind, optimizer_l1=0, data_train=train, output_dir=tmp_path / "run")
    trained(how)
    loaded = LoadedModel.open(model)
    held = loaded.partitions.keys_held
    # With a minimum of two, the user c has no key; each model holds its intercept besides.
    assert len(loaded.partitions.tables[0].snapshot(0)[0].keys) == 5 - count_above
    found = predict(loaded, [Path(rows)])
    (part,) = found
    assert (found.rows, found.occurrences, found.unknown) == (4, 8, 4)
    (intercept,) = loaded.partitions.tables[1].snapshot(0)[0].rows[:, 0]
    assert part.margins[2] == intercept and len(set(part.margins.tolist())) == 4
    assert part.probabilities[2] == pytest.approx(1 / (1 + np.exp(-np.float64(intercept))), 1e-6)
    (again,) = predict(loaded, [Path(rows)])
    assert again.margins.tobytes() == part.margins.tobytes()
    assert loaded.partitions.keys_held == held
    command = ["predict", "--model", str(model), "--data", rows, "-o", "-"]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0 and len(said.stdout.splitlines()) == 5
    assert "the model does not know 4 of 8 values" in said.stderr


# 16: logarithms and roots that do not exist

LOGS = {
    "0": 0.0,
    "1": 0.6931471806,
    "9": 2.3025850930,
    "-0.5": -0.6931471806,
    "1e308": 709.1962086422,
}
ROOTS = {
    "0": 1.0,
    "1": 1.4142135624,
    "9": 3.1622776602,
    "-0.5": 0.7071067812,
    "-1": 0.0,
    "1e308": 1e154,
}


@pytest.mark.parametrize(
    ("operation", "good", "bad"),
    [(values.LOG, LOGS, ["-1", "-1.0000001", "-7"]), (values.SQRT, ROOTS, ["-1.0000001", "-7"])],
)
def test_16_operators(operation, good, bad):
    for text, wanted in good.items():
        assert values.dense_value(operation, float(text)) == (
            pytest.approx(wanted, abs=1e-10, rel=1e-10),
            0,
        )
    assert values.dense_value(operation, np.nan) == (0.0, 0)
    for text in bad:
        assert values.dense_value(operation, float(text))[1] != 0


def test_16_logarithms(case, tmp_path):
    features = spec("label,n", "[dense_features_ad]\nn=n,log")
    with pytest.raises(DataError, match=r"tsv:6:3: n: logarithm of zero or less.*found '-1'"):
        run(tmp_path, case("16"), "values", features)
    answer = run(tmp_path, case("16"), "values", features, "sample.max_bad=0.4")
    assert (answer["rows"], answer["rejected"]) == (6, 3)
    wanted = [*list(LOGS.values())[:4], 0.0, LOGS["1e308"]]
    np.testing.assert_allclose(rows_of(answer).dense.ravel(), wanted, rtol=1e-7)


def test_16_roots(case, tmp_path):
    """1e154 is right but no 32-bit number, which dense features are: a bad value here."""
    features = spec("label,n", "[dense_features_ad]\nn=n,sqrt")
    answer = run(tmp_path, case("16"), "values", features, "sample.max_bad=0.4")
    assert (answer["rows"], answer["rejected"]) == (6, 3)
    wanted = [*list(ROOTS.values())[:5], 0.0]
    np.testing.assert_allclose(rows_of(answer).dense.ravel(), wanted, rtol=1e-7)
    aside = (tmp_path / "out" / "rejected" / "train-00000.tsv").read_text()
    assert "n: too large for a 32-bit number\t1e308" in aside


# 17: days and hours in the zone of the settings

DAYS = """
derived: {day: {time: day}, hour: {time: hour}, workday: {time: workday}}
split:
  train: {first: 2017-05-06, last: 2017-05-12}
  test: {first: 2017-05-13, last: 2017-05-13}
"""
EXPECTED = [
    ("1494604799", "20170512", "23", "1"),
    ("1494604800", "20170513", "0", "0"),
    ("1494633599", "20170513", "7", "0"),
    ("1494633600", "20170513", "8", "0"),
    ("1494000000", "20170506", "0", "0"),
    ("1494691199", "20170513", "23", "0"),
]
UTC_DAYS = ["20170512", "20170512", "20170512", "20170513", None, "20170513", "20170513"]
UTC_HOURS = ["15", "16", "23", "0", None, "15", "16"]


def days(case, out, zone):
    features = (
        "[raw_sample_schema]\nfields=time_stamp,clk,hour,workday,day\n[label]\nlabel=clk,direct\n"
        "[id]\nid=time_stamp,direct\n[sparse_features_ad]\nhour=hour,direct\nworkday=workday,direct\n"
    )
    table = f"log, time: time_stamp, zone: {zone}"
    return run(out, case("17"), table, features, join=DAYS, shuffle="true")


def samples(answer, out):
    found = {}
    for path in sorted((out / "out" / "samples").glob("*.tsv")):
        found[path.stem[:-6]] = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return found


@pytest.fixture
def machine_zone(monkeypatch):
    """Sets the machine's zone until the end of the test."""

    def change(zone):
        if zone is None:
            monkeypatch.delenv("TZ", raising=False)
        else:
            monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield change
    monkeypatch.undo()
    time.tzset()


def test_17_days_and_hours(case, tmp_path):
    answer = days(case, tmp_path, "Asia/Shanghai")
    counts = answer["stages"]["sample"]
    assert (counts["train"], counts["test"], counts["outside"]) == (2, 4, 1)
    found = samples(answer, tmp_path)
    rows = sorted((row[0], *row[4:]) for part in found.values() for row in part)
    assert rows == sorted(EXPECTED)
    assert {row[0] for row in found["train"]} == {"1494604799", "1494000000"}


def test_17_another_zone_is_a_setting(case, tmp_path):
    answer = days(case, tmp_path, "UTC")
    found = {row[0]: row for part in samples(answer, tmp_path).values() for row in part}
    times = [int(row[0]) for row in EXPECTED] + [1494691200]
    for stamp, day, hour in zip(times, UTC_DAYS, UTC_HOURS, strict=True):
        if day is None:
            assert str(stamp) not in found
        else:
            assert found[str(stamp)][4:6] == [day, hour]


def test_17_the_zone_of_the_machine_does_not_matter(case, tmp_path, machine_zone):
    found = set()
    for number, zone in enumerate((None, "UTC", "Asia/Shanghai", "America/New_York")):
        machine_zone(zone)
        out = tmp_path / str(number)
        days(case, out, "Asia/Shanghai")
        paths = [
            *sorted((out / "out" / "samples").glob("*.tsv")),
            *sorted((out / "out" / "data").glob("*.shard")),
        ]
        found.add(hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest())
    assert len(found) == 1


# 18: windows do not see the present and the future

WINDOWS = """, time: time_stamp
windows:
  user_show: {take: count, by: user, over: 24 hours}
  user_click: {take: count, where: {clk: 1}, by: user, over: 24 hours}
  ad_show: {take: count, by: adgroup_id, over: 24 hours}
  ad_click: {take: count, where: {clk: 1}, by: adgroup_id, over: 24 hours}
  week_show: {take: count, by: user, over: 168 hours}
  week_click: {take: count, where: {clk: 1}, by: user, over: 168 hours}
  ctr: {take: rate, hit: {clk: 1}, by: user, over: 24 hours}
"""
SEEN = """
1494000000 u1 a1 0 0 0 0 0 0
1494000010 u1 a2 1 1 0 0 1 1
1494000010 u1 a1 1 1 1 1 1 1
1494000010 u2 a1 0 0 1 1 0 0
1494003600 u1 a1 3 2 3 2 3 2
1494086405 u1 a2 3 1 1 0 4 2
1494086405 u2 a2 1 0 1 0 1 0
1494259200 u1 a1 0 0 0 0 5 3
"""


def windows_of(out, folder, table):
    """The windows of each row, by time stamp, user and ad, and its ratio."""
    features = spec("clk", "[sparse_features_ad]\nc=clk,direct").replace("label=label", "label=clk")
    head, _, rest = WINDOWS.partition("\n")
    table = f"{table}{head}"
    answer = run(out, folder, table, features, join=rest)
    (rows,) = samples(answer, out).values()
    return {tuple(row[:3]): (row[4:10], row[10]) for row in rows}


@pytest.mark.parametrize("table", ["log_shuffled", "log_sorted"])
def test_18_windows(case, tmp_path, table):
    found = windows_of(tmp_path, case("18"), table)
    wanted = {tuple(line.split()[:3]): line.split()[3:] for line in SEEN.strip().splitlines()}
    assert {key: counts for key, (counts, _) in found.items()} == wanted
    for (show, click, *_), ratio in found.values():
        if show == "0":
            assert ratio == ""
        else:
            assert float(ratio) == round(int(click) / int(show), 12)


def test_18_the_label_of_the_last_row_matters_to_none(case, tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    text = (case("18") / "log_sorted.csv").read_text()
    (raw / "log.csv").write_text(text.removesuffix("0\n") + "1\n")
    assert windows_of(tmp_path / "a", raw, "log") == windows_of(
        tmp_path / "b", case("18"), "log_sorted"
    )
