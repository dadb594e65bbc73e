"""`ctrps check --leakage`: brute force agrees with samples, and planted leaks are found."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ctrps.cli import app
from ctrps.config import load_job
from ctrps.data.bruteforce import SlowJoin, table_rows
from ctrps.data.extract import extract
from ctrps.data.joinfile import load_plan
from ctrps.data.leakage import check_leakage
from ctrps.errors import ConfigError, DataError

PLAN = """
impressions: {table: log, time: time_stamp, zone: ZONE, delay_s: 30}
joins:
  - {table: ads, on: ad}
  - {table: users, on: user, key: userid, duplicates: first}
events:
  acts: {table: acts, time: at, keys: {user: who}, delay_s: 3600}
  again: {table: acts, time: at, keys: {user: who}}
derived:
  flag: {constant: 0}
  hour: {time: hour}
  day: {time: day}
  workday: {time: workday}
split:
  train: {first: 2017-03-24, last: 2017-03-27}
  test: {first: 2017-03-28, last: 2017-03-28}
windows:
  shows: {take: count, by: user, over: 6 hours}
  clicks: {take: count, where: {clk: 1}, by: [user, ad], over: 2 days}
  ctr: {take: rate, hit: {clk: [1, 2]}, plus: 3, by: ad, over: 24 hours}
  raw_ctr: {take: rate, hit: {clk: 1}, where: {flag: 0}, by: brand, over: today}
  cates: {take: top, of: cate, most: 2, where: {clk: 1}, by: user, over: 3 days}
  acts_top: {take: top, of: what, most: 3, events: acts, by: user, over: 30 hours}
  acts_all: {take: distinct, of: what, events: again, where: {kind: a}, by: user, over: today}
  acts_last: {take: last, of: what, events: again, by: user, over: 2 days}
  acts_new: {take: last, of: what, events: acts, where: {kind: [a, b]}, by: user, over: today}
"""
ZONES = ["Asia/Shanghai", "Europe/Berlin", "America/New_York"]


def raw_tables(folder, seed, rows=160):
    """Tables as csv; clocks change in Berlin on 2017-03-26."""
    folder.mkdir()
    rng = np.random.default_rng(seed)

    def write(name, header, *columns):
        lines = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")

    def times(n):
        # Many to a second, and to the borders of days.
        return 1490310000 + rng.integers(0, 900, n) * 600

    users = np.array(["u1", "u2", "", '"u,3"'])
    write("log", "user,time_stamp,ad,clk", users[rng.integers(0, 4, rows)], times(rows),
          rng.integers(0, 9, rows), rng.integers(0, 3, rows))  # fmt: skip
    write("ads", "ad,cate,brand", range(8), np.array(["c1", "", "c2"])[rng.integers(0, 3, 8)],
          rng.integers(0, 3, 8))  # fmt: skip
    write("users", "userid,age", ["u1", "u2", "u1", ""], [3, 4, 5, 6])
    what = np.array(["x", "y", "zé", "", "xx", "10", "9"])
    write("acts", "who,at,kind,what", users[rng.integers(0, 4, 4 * rows)], times(4 * rows),
          np.array(["a", "b", "c"])[rng.integers(0, 3, 4 * rows)],
          what[rng.integers(0, 7, 4 * rows)])  # fmt: skip


@pytest.fixture
def made(tmp_path):
    return make(tmp_path, ZONES[0], 5)


def make(folder, zone, seed, *more):
    """A job and its samples."""
    raw_tables(folder / "raw", seed)
    (folder / "plan.yaml").write_text(PLAN.replace("ZONE", zone))
    job = job_of(folder, *more)
    extract(job, stage="sample")
    return job


def job_of(folder, *more):
    stated = {"sample.dir": "raw", "sample.join": "plan.yaml", "output.dir": "run"}
    return load_job(None, [*(f"{k}={folder / v}" for k, v in stated.items()), *more], {})


@pytest.mark.parametrize(("zone", "seed"), [(zone, seed) for seed, zone in enumerate(ZONES)])
def test_all_rows_agree(tmp_path, zone, seed):
    found = check_leakage(make(tmp_path, zone, seed), rows=25, seed=seed)
    assert found.differences == []
    assert found.rows == 25 and found.windows == 25 * 9 and found.events > 500
    assert found.samples == str(tmp_path / "run" / "samples")


def test_brute_force_gives_all_samples(tmp_path, monkeypatch):
    monkeypatch.setattr("ctrps.data.leakage._by_deletion", lambda *_: [])
    monkeypatch.setattr("ctrps.data.deal.PART_BYTES", 1000)
    found = check_leakage(make(tmp_path, ZONES[1], 9), rows=10_000)
    written = [p.read_text().splitlines()[1:] for p in (tmp_path / "run/samples").glob("*.tsv")]
    assert found.rows == sum(map(len, written)) > 100
    assert len(written) > 3
    assert found.differences == []


def tampered(path, change):
    """Change a file without a trace in its size or time."""
    before = path.stat()
    text = path.read_text()
    path.write_text(change(text))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def test_an_event_that_was_moved_back_in_time_is_found(tmp_path, made):
    """Samples that saw each event of kind a an hour early."""

    def later(text):
        head, *lines = text.splitlines()
        moved = [line.rsplit(",", 3) for line in lines]
        moved = [[who, str(int(at) + 3600), kind, what] for who, at, kind, what in moved]
        return "\n".join([head, *(",".join(row) for row in moved)]) + "\n"

    tampered(tmp_path / "raw" / "acts.csv", later)
    found = check_leakage(made, rows=40)
    assert {one.deletion for one in found.differences} == {True, False}
    columns = {one.column for one in found.differences}
    assert columns <= {"acts_top", "acts_all", "acts_last", "acts_new"}
    assert {"acts_top", "acts_last"} <= columns


def test_an_event_within_the_delay_is_found(tmp_path, made, monkeypatch):
    plan = tmp_path / "plan.yaml"
    plan.write_text(plan.read_text().replace("delay_s: 3600", "delay_s: 7200"))
    samples = tmp_path / "run" / "samples"
    monkeypatch.setattr("ctrps.data.leakage.current_samples", lambda _: samples)
    found = check_leakage(made, rows=40)
    assert {one.column for one in found.differences} == {"acts_top", "acts_new"}
    assert {one.deletion for one in found.differences} == {True, False}


def test_a_kernel_that_looks_at_its_own_second_is_found(tmp_path, monkeypatch):
    import ctrps.data.windows as windows

    bounds = windows._Asked.bounds

    def late(self, span, delay_s):
        since, until = bounds(self, span, delay_s)
        return since, until + 1 + delay_s

    with monkeypatch.context() as patch:
        patch.setattr(windows._Asked, "bounds", late)
        job = make(tmp_path, ZONES[0], 3)
    found = check_leakage(job, rows=20)
    # At the least each impression counts itself.
    shows = [one for one in found.differences if one.column == "shows"]
    assert len(shows) == 2 * 20
    assert all(int(one.expected) < int(one.found) for one in shows)


def test_a_field_that_was_changed_is_named_with_its_place(tmp_path, made):
    path = tmp_path / "run" / "samples" / "test-00000.tsv"
    header, first, *rest = path.read_text().splitlines(keepends=True)
    fields = first.split("\t")
    fields[header.split("\t").index("brand")] = "77"
    path.write_text("".join([header, "\t".join(fields), *rest]))
    found = check_leakage(made, rows=10_000)
    assert [(d.where, d.column, d.found, d.deletion) for d in found.differences] == [
        ("test-00000.tsv:2", "brand", "77", deletion) for deletion in (False, True)
    ]
    join = SlowJoin(tmp_path / "raw", load_plan(tmp_path / "plan.yaml"))
    row = list(table_rows(join.path))[found.differences[0].row]
    assert row[join.header.index("ad")] == fields[header.split("\t").index("ad")]


def test_without_samples_they_are_made_for_it(tmp_path, made):
    (tmp_path / "raw" / "acts.csv").touch()
    found = check_leakage(made, rows=5)
    assert found.samples is None and found.differences == [] and found.rows == 5
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["samples"]


def test_bad_rows_do_not_shift_the_others(tmp_path):
    raw_tables(tmp_path / "raw", 2)
    log = tmp_path / "raw" / "log.csv"
    head, *lines = log.read_text().splitlines()
    for at, bad in ((3, 'a"b,1'), (9, '"x" y,1490310000,1,0'), (40, "u1,soon,1,0"), (41, "")):
        lines.insert(at, bad)
    lines.insert(50, '"a\tb",1490310000,1,0')
    log.write_text("\n".join([head, *lines]) + "\n")
    (tmp_path / "plan.yaml").write_text(PLAN.replace("ZONE", ZONES[0]))
    job = job_of(tmp_path, "sample.max_bad=0.1")
    assert extract(job, stage="sample")["rejected"] == 4
    assert check_leakage(job, rows=30).differences == []


def test_packed_tables_and_parquet(tmp_path):
    raw_tables(tmp_path / "raw", 4)
    raw = tmp_path / "raw"
    (raw / "ads.csv.gz").write_bytes(gzip.compress((raw / "ads.csv").read_bytes()))
    header, *rows = table_rows(raw / "log.csv")
    table = pa.table(dict(zip(header, map(list, zip(*rows, strict=True)), strict=True)))
    when = header.index("time_stamp")
    times = pa.array([int(row[when]) for row in rows], pa.timestamp("s"))
    pq.write_table(table.set_column(when, "time_stamp", times), raw / "log.parquet")
    for name in ("ads.csv", "log.csv"):
        (raw / name).unlink()
    (tmp_path / "plan.yaml").write_text(PLAN.replace("ZONE", ZONES[0]))
    job = job_of(tmp_path)
    extract(job, stage="sample")
    assert check_leakage(job, rows=20).differences == []


def test_the_seed_decides_which_rows(tmp_path, made, monkeypatch):
    chosen = []
    monkeypatch.setattr(
        "ctrps.data.leakage._by_brute_force",
        lambda join, sources, rows, found: chosen.append([one.number for one in rows]) or [],
    )
    monkeypatch.setattr("ctrps.data.leakage._by_deletion", lambda *_: [])
    for seed in (1, 1, 2):
        check_leakage(made, rows=10, seed=seed)
    assert chosen[0] == chosen[1] != chosen[2]


def test_a_sample_that_is_cut_short(tmp_path, made):
    path = next((tmp_path / "run" / "samples").glob("train-*.tsv"))
    path.write_text(path.read_text()[:2000])
    with pytest.raises(DataError, match="is not there, or is cut short"):
        check_leakage(made, rows=10_000)


def test_without_raw_tables(tmp_path):
    with pytest.raises(ConfigError, match=r"sample\.dir is not set"):
        check_leakage(load_job(None, [f"output.dir={tmp_path}"], {}))


# the command


def run(*arguments):
    found = CliRunner().invoke(app, ["check", "-c", *map(str, arguments)])
    return found.exit_code, found.stdout, found.stderr


@pytest.fixture
def job_file(tmp_path, made):
    path = tmp_path / "job.yaml"
    path.write_text(
        f"name: small\nsample: {{dir: raw, join: plan.yaml}}\noutput: {{dir: {tmp_path / 'run'}}}\n"
    )
    return path


def test_status_and_lines(tmp_path, job_file):
    status, out, err = run(job_file, "--leakage", "--rows", 8)
    assert status == 0, err
    assert "windows       72, of " in out and "differences   0" in out
    tampered(tmp_path / "raw" / "ads.csv", lambda text: text.replace("c1", "c9"))
    status, out, err = run(job_file, "--leakage", "--rows", 8)
    assert status == 5
    assert "by brute force, found 'c1'" in out and "without later events" in out
    assert err.endswith("fields are not as the raw tables say [E-LEAKAGE]\n")
    status, out, _ = run(job_file, "--leakage", "--rows", 8, "--json")
    assert status == 5
    assert json.loads(out)["differences"][0]["found"].count("c1")


def test_check_before_a_run(tmp_path, job_file):
    status, out, err = run(job_file)
    assert status == 0, err
    for line in (
        "job           small",
        "table         log: ",
        "              user, time_stamp, ad, clk",
        "samples       20 columns, 9 of them windows",
        "train         no files yet",
        "steps         1 a pass, of 1,024 rows",
    ):
        assert line in out
    assert "about 160 rows" in out


def test_check_of_files(tmp_path):
    (tmp_path / "a.csv").write_text("label,user,x\n" + "1,a,2\n0,b,3\n" * 300)
    pq.write_table(pa.table({"user": ["a"], "x": [1], "label": [1]}), tmp_path / "b.parquet")
    (tmp_path / "job.yaml").write_text(
        "data: {train: a.csv, test: b.parquet, numeric: x}\ntrain: {batch_rows: 64, lanes: 2}\n"
    )
    status, out, err = run(tmp_path / "job.yaml", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert (found["train"]["rows"], found["train"]["exact"]) == (600, False)
    assert (found["test"]["rows"], found["test"]["exact"]) == (1, True)
    assert (found["steps"], found["step_rows"]) == (5, 128)
    assert len(found["train"]["first"]) == 4


@pytest.mark.parametrize(
    ("setting", "status", "message"),
    [
        ("data.train=nowhere.csv", 3, "no such file"),
        ("data.label=clicked", 3, "no column 'clicked'"),
        ("data.test=other.csv", 3, "its columns are not those of the first training file"),
        ("data.labl=x", 2, "did you mean"),
        ("data.train=bad.csv", 3, "expected a finite number"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, monkeypatch, setting, status, message):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("label,user,x\n1,a,2\n")
    Path("bad.csv").write_text("label,user,x\n1,a,two\n")
    Path("other.csv").write_text("label,item,x\n1,a,2\n")
    Path("job.yaml").write_text("data: {train: a.csv, numeric: x}\n")
    found = run("job.yaml", "--set", setting)
    assert (found[0], message in found[2]) == (status, True), found


def test_columns_that_the_join_file_names_are_looked_for(tmp_path, job_file):
    plan = tmp_path / "plan.yaml"
    for old, new in (("of: what, events: acts", "of: whet, events: acts"), ("on: ad}", "on: at}")):
        text = plan.read_text()
        plan.write_text(text.replace(old, new, 1))
        status, _, err = run(job_file)
        assert (status, "no column" in err) == (3, True)
        plan.write_text(text)
