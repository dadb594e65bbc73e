"""Names of keys beside shards, and how a row came to be."""

import json
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from ctrps.cli import app
from ctrps.codec import FrameFileWriter
from ctrps.config import load_job
from ctrps.data import names
from ctrps.data.explain import explain
from ctrps.data.extract import extract
from ctrps.data.features import load_spec
from ctrps.data.names import read_names
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.keys import key_of
from tests import naive_data2 as naive

HEADER = "a\tb\tn\tlist\ty"
SPEC = """
[raw_sample_schema]
fields=a,b,n,list,y
[derived_fields]
low=b,tidy,lower
[id]
id=a,direct
[label]
y=y,direct
[dense_features_user]
log=n,log,standard
[sparse_features_user]
a=a,direct
list=list,group,a
cross=low|list|n,combine,direct|group|bucket,##q3
hit=a|list,hit
"""


@pytest.fixture
def make(tmp_path):
    """A job with samples, and the lines of these."""
    rng = np.random.default_rng(2)
    lines = [
        f"{rng.integers(9)}\tB{i % 7}\t{rng.integers(99)}\t"
        f"{','.join(map(str, rng.integers(0, 9, rng.integers(0, 5))))}\t{i % 2}"
        for i in range(400)
    ]
    samples = tmp_path / "out" / "samples"
    samples.mkdir(parents=True)
    for name, part in (("train-0", lines[:200]), ("train-1", lines[200:]), ("test-0", lines[:50])):
        (samples / f"{name}.tsv").write_text("\n".join([HEADER, *part]) + "\n")
    (tmp_path / "features.ini").write_text(SPEC)

    def job(**features):
        told = [f"features.{key}={value}" for key, value in features.items()]
        settings = [f"features.spec={tmp_path}/features.ini", f"output.dir={tmp_path}/out", *told]
        return load_job(None, settings, {}), lines

    return job


def counted(job, lines, drop=False):
    """{key: [count, name]} of the values of lines, by the slow twin."""
    spec = load_spec(job.output.dir / "data" / "features.ini")
    found = Counter()
    for row in naive.run_rows(spec, spec.fields, lines, drop):
        found.update((p, texts) for slot in row.slots for p, texts in slot)
    return {key_of(p, *texts): [n, f"{p}={'#'.join(texts)}"] for (p, texts), n in found.items()}


def as_dict(found):
    triples = zip(found.keys.tolist(), found.counts.tolist(), found.names, strict=True)
    return {key: [count, name] for key, count, name in triples}


@pytest.mark.parametrize("shuffle", ["true", "false"])
def test_all_keys_have_names(make, shuffle):
    job, lines = make(shuffle=shuffle, missing="drop", block_rows=64)
    extract(job, stage="features")
    data = job.output.dir / "data"
    assert sorted(p.name for p in data.glob("*.names")) == ["train-0.names", "train-1.names"]
    found = read_names([data])
    assert as_dict(found) == counted(job, lines, drop=True)
    assert (found.rows, found.exact) == (400, True)
    assert found.values == found.named_values == found.counts.sum()
    some = found.keys[[3, 1]]
    assert found.of(np.append(some, 5)) == [found.names[3], found.names[1], None]
    assert read_names([data / "train-0.names"]).rows == 200


def test_rare_keys_that_shards_leave_out_have_no_names(make):
    job, lines = make(count_above=20)
    extract(job, stage="features")
    found = as_dict(read_names([job.output.dir / "data"]))
    wanted = counted(job, lines)
    assert found == {key: one for key, one in wanted.items() if one[0] > 20}
    assert len(found) < len(wanted)


def test_the_most_frequent_keys_have_names(make):
    job, lines = make(names=40)
    extract(job, stage="features")
    path = job.output.dir / "data" / "train-0.names"
    found = read_names([path])
    wanted = counted(job, lines[:200])
    assert len(found.keys) == 40 and found.exact
    least = sorted((count for count, _ in wanted.values()), reverse=True)[39]
    assert all(wanted[key] == one for key, one in as_dict(found).items())
    assert min(found.counts) == least
    assert found.named_values == found.counts.sum() < found.values
    assert not read_names([path.parent]).exact


def test_keys_are_counted_in_some_blocks(make, monkeypatch):
    monkeypatch.setattr(names, "MOST_ROWS", 64)
    job, lines = make(shuffle="false", block_rows=20)
    extract(job, stage="features")
    path = job.output.dir / "data" / "train-0.names"
    found = read_names([path])
    assert (found.rows, found.counted_rows) == (200, 80)
    counted_lines = [lines[i + j] for i in range(0, 200, 60) for j in range(20) if i + j < 200]
    assert as_dict(found) == counted(job, counted_lines)


def test_keys_may_be_forgotten_on_the_way(make):
    job, lines = make(names=2, block_rows=50)
    extract(job, stage="features")
    path = job.output.dir / "data" / "train-0.names"
    found = read_names([path])
    wanted = counted(job, lines[:200])
    assert not found.exact
    for key, (count, name) in as_dict(found).items():
        assert wanted[key][1] == name and 0 < count <= wanted[key][0]


def test_no_names(make):
    job, _ = make(names=0)
    extract(job, stage="features")
    with pytest.raises(DataError, match="no files of names are there"):
        read_names([job.output.dir / "data"])


def test_damaged_names(make, tmp_path):
    job, _ = make()
    extract(job, stage="features")
    path = job.output.dir / "data" / "train-0.names"
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(DataError, match=r"train-0.names"):
        read_names([path])
    with FrameFileWriter(tmp_path / "x.names", names.KIND) as file:
        file.append({}, [np.zeros(3)])
        file.close({})
    with pytest.raises(DataError, match="it does not hold names"):
        read_names([tmp_path / "x.names"])
    with pytest.raises(DataError, match="cannot read it"):
        read_names([tmp_path / "y.names"])


def test_command_names(make):
    job, lines = make()
    extract(job, stage="features")
    arguments = ["names", str(job.output.dir / "data"), "--top", "3", "--find", "a="]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    rows = [line.split(",") for line in result.stdout.splitlines()]
    assert rows[0] == ["key", "count", "name"] and len(rows) == 4
    wanted = counted(job, lines)
    for key, count, name in rows[1:]:
        assert wanted[int(key)] == [int(count), name] and "a=" in name
    assert "100.00 % of the values of 400 of 400 rows" in result.stderr


# explain


def test_explain(make):
    job, lines = make(shuffle="false")
    with pytest.raises(ConfigError, match="'standard' must be fitted to training rows first"):
        explain(job, "7")
    extract(job, stage="features")
    spec = load_spec(job.output.dir / "data" / "features.ini")
    for row, line in (("7", 6), ("train-1:2", 201), ("test-0.tsv:50", 49)):
        found = explain(job, row)
        wanted = naive.run_row(spec, spec.fields, lines[line])
        fields = dict(zip(spec.fields, lines[line].split("\t"), strict=True))
        assert found.label == wanted.label and found.id == wanted.id
        number, *sparse = found.features
        assert number.number == pytest.approx(wanted.dense[0], rel=1e-6)
        assert number.fields == {"n": fields["n"]}
        assert [one.slot for one in sparse] == [0, 1, 2, 3]
        assert [one.name for one in sparse] == list(spec.slots)
        for one, slot in zip(sparse, wanted.slots, strict=True):
            assert one.values == [f"{p}={'#'.join(texts)}" for p, texts in slot]
            assert one.keys == [key_of(p, *texts) for p, texts in slot]
        assert sparse[1].fields["low"] == fields["b"].lower()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0", "no row '0': it has rows 1 to 200"),
        ("201", "no row '201'"),
        ("x", "no row 'x'"),
        ("test-0:51", "it has rows 1 to 50"),
        ("test-9:1", "no samples 'test-9'"),
    ],
)
def test_rows_that_are_not_there(make, row, message):
    job, _ = make()
    with pytest.raises((ConfigError, DataError), match=message):
        explain(job, row)


def test_explain_a_bad_row(make):
    job, _ = make()
    extract(job, stage="features")
    path = job.output.dir / "samples" / "train-0.tsv"
    path.write_text(path.read_text().replace("\tB0\t", "\tB0\tx", 1))
    with pytest.raises(DataError, match=r"train-0.tsv:2:6: n: expected a number"):
        explain(job, "1")


def test_command_explain(make, tmp_path):
    job, lines = make()
    extract(job, stage="features")
    settings = [f"features.spec={tmp_path}/features.ini", f"output.dir={tmp_path}/out"]
    options = [part for one in settings for part in ("--set", one)]
    result = CliRunner().invoke(app, ["extract", *options, "--explain", "test-0:1"])
    assert result.exit_code == 0
    a, _, n, elements, y = lines[0].split("\t")
    shown = result.stdout.splitlines()
    assert shown[:3] == [
        f"row           {job.output.dir}/samples/test-0.tsv:2",
        f"label         {y}",
        f"id            a#{a}",
    ]
    assert shown[3].startswith("number        log = ") and shown[3].endswith(f"log of n='{n}'")
    assert f"slot 2        hit: hit of a='{a}', list='{elements}'" in shown
    assert f"{'':13s} a={a}  key {key_of('a', a)}" in shown
    result = CliRunner().invoke(app, ["extract", *options, "--explain", "test-0:1", "--json"])
    found = json.loads(result.stdout)
    assert found["features"][1]["keys"] == [key_of("a", a)]
