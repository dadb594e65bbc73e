"""Files of any format to shards and back to text; single rows and figures of files."""

import io
import json
import os
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.cli import app
from ctrps.data.badrows import BadRows
from ctrps.data.convert import expand, to_shards
from ctrps.data.describe import DistinctKeys, head, stats
from ctrps.data.formats import open_rows
from ctrps.data.reading import TextSettings
from ctrps.data.rewrite import rewrite, written_format
from ctrps.data.rows import Rows, Schema, joined
from ctrps.data.shards import Shard, ShardWriter
from ctrps.data.streams import STDIN
from ctrps.data.textout import TextWriter
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.keys import dense_key, key_of

AUTO = TextSettings(labels="optional")


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, how=AUTO):
    with open_rows(path, how, BadRows()) as source:
        parts = [*source.rows]
    return source.schema, joined(parts)


def values_of(rows):
    return np.ones(len(rows.keys), np.float32) if rows.values is None else rows.values


def shard_of(path, schema, *parts):
    with ShardWriter(path, schema, 7) as writer:
        for rows in parts:
            writer.add(rows)
    return path


def random_rows(seed, schema, rows=50):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, (rows, len(schema.slots))).astype(np.int32)
    nnz = int(counts.sum())
    values = None
    if schema.weights == "value":
        values = rng.normal(size=nnz).astype(np.float32) * np.float32(10.0) ** rng.integers(
            -30, 30, nnz
        ).astype(np.float32)
    return Rows(
        rng.choice(np.uint64([0, 7, 2**53 + 1, 2**64 - 1]), nnz),
        counts,
        values,
        rng.choice(np.float32([0, 1.5, -1e-20]), (rows, len(schema.dense))),
        rng.choice(np.float32([0, 1]), rows),
    )


# text out


@pytest.mark.parametrize("form", ["libsvm", "libffm", "vw"])
@pytest.mark.parametrize("labels", ["all", "none"])
def test_a_shard_of_libffm_goes_to_text_and_back(tmp_path, form, labels):
    schema = Schema(("0", "1", "2"), (), "value")
    rows = random_rows(1, schema)
    if labels == "none":
        rows.labels[:] = np.nan
    shard = shard_of(tmp_path / "a.shard", schema, rows)
    out = tmp_path / f"out.{form}"
    summary = rewrite([shard], out, form, AUTO)
    assert (summary["rows"], summary["rejected"]) == (50, 0)
    how = TextSettings(form, labels="none" if labels == "none" else "required")
    schema2, again = read(out, how)
    np.testing.assert_array_equal(again.labels, rows.labels)
    if form == "vw":  # its slots come as they are met, and keys are hashed anew
        assert sorted(schema2.slots) == ["0", "1", "2"]
        columns = [schema2.slots.index(name) for name in schema.slots]
        np.testing.assert_array_equal(again.counts[:, columns], rows.counts)
        assert set(again.keys.tolist()) <= {
            key_of(slot, str(key)) for slot in schema.slots for key in rows.keys.tolist()
        }
        assert sorted(values_of(again)) == sorted(values_of(rows))
        return
    np.testing.assert_array_equal(again.keys, rows.keys)
    np.testing.assert_array_equal(values_of(again), values_of(rows))
    wanted = rows.counts if form == "libffm" else rows.counts.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(again.counts, wanted)
    # And once more: what was read is written byte by byte as it stands.
    rewrite([out], tmp_path / "again", form, how)
    assert (tmp_path / "again").read_bytes() == out.read_bytes()


@pytest.mark.parametrize("form", ["libsvm", "libffm"])
def test_means_and_numbers_are_written_as_models_see_them(tmp_path, form):
    schema = Schema(("a", "b"), ("x", "y"))
    rows = random_rows(2, schema)
    out = tmp_path / "out"
    rewrite([shard_of(tmp_path / "a.shard", schema, rows)], out, form, AUTO)
    _, again = read(out, TextSettings(form))
    start, entries = 0, iter(zip(again.keys.tolist(), values_of(again), strict=True))
    for row in range(rows.rows):
        for slot in range(2):
            count = rows.counts[row, slot]
            for key in rows.keys[start : start + count].tolist():
                assert next(entries) == (key, np.float32(1) / np.float32(count))
            start += count
        for name, number in zip(schema.dense, rows.dense[row], strict=True):
            if number:
                assert next(entries) == (dense_key(name), number)
    assert next(entries, None) is None
    if form == "libffm":
        sizes = np.concatenate([rows.counts, rows.dense != 0], axis=1)
        np.testing.assert_array_equal(again.counts, sizes[:, : again.counts.shape[1]])


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=30))
def test_every_float32_comes_back(tmp_path_factory, values):
    out = tmp_path_factory.mktemp("any") / "a"
    size = len(values)
    rows = Rows(
        np.arange(size, dtype=np.uint64),
        np.ones((size, 1), np.int32),
        np.array(values, np.float32),
        np.empty((size, 0), np.float32),
        np.zeros(size, np.float32),
    )
    with open(out, "wb") as file:
        TextWriter(file.write, "libsvm").add(rows, Schema(("",), (), "value"))
    if size:
        _, again = read(out, TextSettings("libsvm"))
        np.testing.assert_array_equal(values_of(again), rows.values)


def test_vw_text_holds_ids_and_says_what_it_cannot_hold(tmp_path):
    table = write(tmp_path / "a.csv", "id,label,c\nr1,1,x\n,0,y\n")
    how = TextSettings(id="id")
    rewrite([table], tmp_path / "a.vw", "vw", how)
    keys = [key_of("c", "x"), key_of("c", "y")]
    assert (tmp_path / "a.vw").read_text() == f"1 'r1 |c {keys[0]}:1\n-1 ' |c {keys[1]}:1\n"
    schema, rows = read(tmp_path / "a.vw", TextSettings())
    assert (schema.slots, rows.ids[0].tobytes(), rows.ids[1].tolist()) == (("c",), b"r1", [2, 2])
    table = write(tmp_path / "b.csv", "id,label,c\nr1,1,x\nr 2,0,y\n")
    with pytest.raises(DataError, match="id 'r 2' has a blank, bar or colon"):
        rewrite([table], tmp_path / "b.vw", "vw", how)
    table = write(tmp_path / "c.csv", "label,a b\n1,x\n")
    with pytest.raises(DataError, match="slot 'a b' has a blank"):
        rewrite([table], tmp_path / "c.vw", "vw", TextSettings())
    assert not [path for path in tmp_path.iterdir() if "tmp" in path.name or path.name == "b.vw"]


def test_labels_are_in_all_rows_of_libsvm_or_in_none(tmp_path):
    table = write(tmp_path / "a.csv", "label,c\n1,x\n,y\n")
    with pytest.raises(DataError, match="some rows have a label and some have none"):
        rewrite([table], tmp_path / "a.svm", "libsvm", AUTO)
    rewrite([table], tmp_path / "a.vw", "vw", AUTO)
    np.testing.assert_array_equal(read(tmp_path / "a.vw")[1].labels, [1, np.nan])


# several files


def test_several_files_become_one_shard_whose_slots_grow(tmp_path):
    one = write(tmp_path / "1.vw", "1 |a x |b y\n")
    two = write(tmp_path / "2.vw", "0 |c z |a x\n" * 3)
    three = write(tmp_path / "3.vw", "1 |b y\n")
    summary = rewrite([one, two, three], tmp_path / "out.shard", "shard", TextSettings())
    assert [found["rows"] for found in summary["inputs"]] == [1, 3, 1]
    shard = Shard(tmp_path / "out.shard")
    assert shard.schema.slots == ("a", "b", "c")
    _, rows = read(shard.path)
    assert rows.counts.tolist() == [[1, 1, 0], *[[1, 0, 1]] * 3, [0, 1, 0]]
    keys = {name: key_of(name, value) for name, value in zip("abc", "xyz", strict=True)}
    assert rows.keys.tolist() == [keys[name] for name in "ab" + "ac" * 3 + "b"]


def test_blocks_written_before_a_slot_was_known_are_read_with_it(tmp_path):
    path = write(tmp_path / "a.ffm", "1 0:1:1\n" * 20 + "0 2:5:1\n")
    with open_rows(path, TextSettings(), BadRows(), chunk_bytes=16) as source:
        with ShardWriter(tmp_path / "a.shard", Schema((), (), "value"), 4) as writer:
            for rows in source.rows:
                writer.extend(source.schema)
                writer.add(rows)
    shard = Shard(tmp_path / "a.shard")
    assert shard.schema.slots == ("0", "1", "2")
    assert {block.counts.shape[1] for block in shard.blocks()} == {3}
    _, rows = read(shard.path)
    assert rows.counts.tolist() == [[1, 0, 0]] * 20 + [[0, 0, 1]]
    with pytest.raises(ValueError, match="does not extend"):
        with ShardWriter(tmp_path / "b.shard", Schema(("a",))) as writer:
            writer.extend(Schema(("a", "b")))


def test_files_of_other_columns_or_ids_do_not_go_together(tmp_path):
    one = write(tmp_path / "a.csv", "label,c\n1,x\n")
    for name, text in (("b.csv", "label,d\n1,x\n"), ("c.svm", "1 3:1\n")):
        with pytest.raises(DataError, match=rf"{name}: its columns are not those of .*a.csv"):
            rewrite([one, write(tmp_path / name, text)], tmp_path / "o.vw", "vw", TextSettings())
    tagged, plain = write(tmp_path / "d.vw", "1 't|f x\n"), write(tmp_path / "e.vw", "1 |f x\n")
    with pytest.raises(DataError, match=r"e.vw: one of it and .*d.vw has ids"):
        rewrite([tagged, plain], tmp_path / "out.shard", "shard", TextSettings())
    assert not [path for path in tmp_path.iterdir() if "shard" in path.name]


def test_files_of_a_job_may_lack_slots_that_others_have(tmp_path):
    texts = {"a.vw": "1 |a x\n", "b.vw": "0 |b y |a x\n", "c.vw": "0 |a x\n"}
    paths = [write(tmp_path / name, text) for name, text in texts.items()]
    cache = tmp_path / "cache"
    for _ in range(2):
        made = to_shards(paths, TextSettings(), cache)
        slots = [Shard(path).schema.slots for path in made]
        assert slots == [("a",), ("a", "b"), ("a", "b")]
    (test,) = to_shards(paths[:1], TextSettings(slots=("a", "b")), cache)
    assert Shard(test).schema.slots == ("a", "b")
    (alone,) = to_shards(paths[:1], TextSettings(), tmp_path / "alone")
    turned = write(tmp_path / "d.vw", "0 |b y |a x\n")
    rewrite([turned], tmp_path / "d.shard", "shard", TextSettings())
    with pytest.raises(DataError, match=r"its columns are not those .*'b'.*ctrps convert"):
        to_shards([alone, tmp_path / "d.shard"], TextSettings(), cache)


def test_bad_rows_are_counted_and_set_aside(tmp_path):
    path = write(tmp_path / "a.svm", "1 1:1\n2 1:1\n0 1:1\n")
    out = tmp_path / "out.shard"
    with pytest.raises(DataError, match=r"a.svm:2:1"):
        rewrite([path], out, "shard", TextSettings())
    assert not out.exists()
    assert rewrite([path], out, "shard", TextSettings(max_bad=0.5))["rejected"] == 1
    assert (tmp_path / "out.shard.rejected.tsv").read_text().count("\n") == 1
    with pytest.raises(DataError, match="1 of 3 rows are bad"):
        rewrite([path], tmp_path / "two.shard", "shard", TextSettings(max_bad=0.1))
    with pytest.raises(DataError, match=r"no examples in .*empty"):
        rewrite([write(tmp_path / "empty.svm", "")], out, "shard", TextSettings())
    assert Shard(out).rows == 2


def test_the_format_to_write_is_said_or_in_the_name():
    assert [written_format(name, None) for name in ("a.shard", "b.SVM", "c.vw")] == [
        "shard", "libsvm", "vw",
    ]  # fmt: skip
    for out, to, message in [
        ("a.csv", None, "csv cannot be written"),
        ("a", None, "'a' does not say which format"),
        ("-", "shard", "cannot go to standard output"),
        ("a", "xls", "xls cannot be written"),
    ]:
        with pytest.raises(ConfigError, match=message):
            written_format(out, to)


# standard input in training


@pytest.fixture
def stdin(monkeypatch):
    def give(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))

    return give


def test_standard_input_is_converted_once_for_a_run(tmp_path, stdin):
    assert expand([STDIN]) == [STDIN]
    stdin(b"1 3:1\n0 4:1\n")
    (made,) = to_shards([STDIN], TextSettings(), tmp_path)
    assert Shard(made).rows == 2
    stdin(b"")  # the run goes on, or another of its processes looks
    assert to_shards([STDIN], TextSettings(), tmp_path) == [made]
    stdin(b"1 3:1\n")
    (made,) = to_shards([STDIN], TextSettings(), tmp_path)
    assert Shard(made).rows == 1
    stdin(b"")
    with pytest.raises(DataError, match="standard input: cannot tell its format"):
        to_shards([STDIN], TextSettings(), tmp_path / "new")


# head and stats


def test_head_shows_rows_as_they_are_read(tmp_path):
    path = write(tmp_path / "a.csv", "id,label,c,n\nr1,1,x,2.5\nr\t2,,,\n")
    how = TextSettings(numeric=("n",), id="id", labels="optional")
    first, *rows = head(path, 10, how)
    assert first == f"# {path}: csv (its first line has commas); 1 slots, keys weigh 1/n, 1 numbers"
    assert rows == [
        f"1 label=1 id=r1 c={key_of('c', 'x')} n:2.5",
        f"2 label=- id=r\\t2 c={key_of('c', '')} n:0.0",
    ]
    assert len(list(head(path, 1, how))) == 2
    assert len(list(head(path, 0, how))) == 1
    ffm = write(tmp_path / "a.ffm", "1 2:7:0.25 0:3:1 2:8:1\n")
    assert list(head(ffm, 1, AUTO))[1] == "1 label=1 0=3:1.0 2=7:0.25,8:1.0"
    shard = shard_of(tmp_path / "a.shard", *read(ffm))
    assert list(head(shard, 1, AUTO))[1] == "1 label=1 0=3:1.0 2=7:0.25,8:1.0"


def test_stats_are_those_of_all_rows(tmp_path):
    paths = [
        write(tmp_path / "a.csv", "label,c,d,n\n1,x,,1\n0,y,,0\n,x,z,2\n"),
        write(tmp_path / "b.csv", "label,c,d,n\n1,,z,-3\n"),
    ]
    found = stats(paths, TextSettings(numeric=("n",), labels="optional"))
    assert (found["rows"], found["labelled"], found["clicks"]) == (4, 3, 2)
    assert found["ctr"] == pytest.approx(2 / 3)
    assert found["keys_per_row"] == {"min": 2, "mean": 2.75, "max": 3}
    assert found["slots"] == {
        "c": {"distinct_keys": 3, "keys": 4, "missing": 0.25},
        "d": {"distinct_keys": 2, "keys": 4, "missing": 0.5},
    }
    assert found["numbers"] == {"n": {"min": -3, "max": 2, "mean": 0}}
    assert [file["rows"] for file in found["files"]] == [3, 1]
    grown = [write(tmp_path / "a.vw", "1 |f x\n"), write(tmp_path / "b.vw", "0 |g y y\n")]
    slots = stats(grown, TextSettings())["slots"]
    assert {name: (slot["distinct_keys"], slot["missing"]) for name, slot in slots.items()} == {
        "f": (1, 0.5),
        "g": (1, 0.5),
    }
    empty = stats([write(tmp_path / "e.csv", "label,c\n")], AUTO)
    assert (empty["rows"], empty["ctr"]) == (0, None)
    json.dumps([found, empty], allow_nan=False)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3000), max_size=2000), max_size=5))
def test_distinct_keys_are_counted_exactly(parts):
    keys = DistinctKeys()
    for part in parts:
        keys.add(np.array(part, np.uint64))
    assert keys.count == len({key for part in parts for key in part})


# commands


@pytest.fixture
def ctrps(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder; returns status, output and errors."""
    for name in [name for name in os.environ if name.startswith("CTRPS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            app([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_convert_head_and_stats_work_together(ctrps, tmp_path):
    write(tmp_path / "a.csv", "clicked;c;n\n1;x;2\n0;y;3\n".replace(";", ","))
    status, out, err = ctrps("convert", "*.csv", "-o", "a.shard", "--label", "clicked")
    assert (status, out) == (0, "")
    assert "a.csv: csv, its first line has commas; 2 rows" in err
    assert "2 rows written to a.shard" in err
    status, out, _ = ctrps("convert", "a.shard", "-o", "-", "--to", "libsvm")
    assert (status, len(out.splitlines())) == (0, 2)
    status, out, _ = ctrps("convert", "a.shard", "-o", "a.vw", "--json")
    assert json.loads(out)["rows"] == 2
    status, out, _ = ctrps(
        "head", "a.csv", "-n", 1, "--label", "clicked", "--set", "data.numeric=n"
    )
    assert out.splitlines()[1] == f"1 label=1 c={key_of('c', 'x')} n:2.0"
    status, out, _ = ctrps("stats", "a.shard", "--json")
    assert json.loads(out)["ctr"] == 0.5
    (tmp_path / "b.shard").write_bytes((tmp_path / "a.shard").read_bytes())
    status, out, _ = ctrps("stats", "*.shard")
    assert "rows          4\nclicks        2 (50 %)\n" in out
    assert "slot          'c': 2 distinct keys" in out


def test_commands_on_data_say_what_is_wrong(ctrps, tmp_path):
    assert ctrps("head", "none.csv")[0] == 3
    write(tmp_path / "a.svm", "1 1:1\nx\n")
    assert ctrps("convert", "a.svm", "-o", "b.csv")[0] == 2
    status, _, err = ctrps("convert", "a.svm", "-o", "b.shard")
    assert (status, "a.svm:2:1" in err) == (3, True)
    assert ctrps("convert", "a.svm", "-o", "b.shard", "--max-bad", 0.5)[0] == 0
    assert ctrps("stats", "a.svm", "--format", "xls")[0] == 2
    assert ctrps("stats", "a.svm", "--labels", "some")[0] == 2


def test_a_job_reads_standard_input(ctrps, stdin, tmp_path):
    stdin(b"1 |f x\n0 |f y\n" * 100)
    status, out, err = ctrps("train", "--set", "data.train=-", "--set", "output.dir=run", "--json")
    assert (status, err.count("error")) == (0, 0)
    assert json.loads(out)["rows"] == 200
    stdin(b"|f x\n|f new\n")
    status, out, _ = ctrps("predict", "--model", "run/model", "--data", "-")
    assert (status, out.count("\n")) == (0, 3)
