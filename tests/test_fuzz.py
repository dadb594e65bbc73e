"""Spoiled input ends in rows or in an error that says where; what did not, once, is tested here.

The long run is ``python -m benchmarks.fuzz``.
"""

import hashlib
import json
import shutil
from random import Random

import numpy as np
import pytest

from benchmarks import fuzz, inputs, mutate, readers
from ctrps.checkpoint import KIND, MANIFEST, read_manifest
from ctrps.codec import FrameFile, FrameFileWriter
from ctrps.config import load_job
from ctrps.data import badrows, names, shards
from ctrps.data.badrows import BadRows
from ctrps.data.detect import detect
from ctrps.data.extract import extract
from ctrps.data.features import load_spec, parse_spec
from ctrps.data.formats import open_rows
from ctrps.data.header import check_distinct
from ctrps.data.indices import disagreement
from ctrps.data.joinfile import load_plan
from ctrps.data.names import read_names
from ctrps.data.reading import TextSettings
from ctrps.data.shards import Shard
from ctrps.errors import CheckpointError, ConfigError, CtrpsError, DataError
from ctrps.loaded import LoadedModel

SLOW = {"extract": 5, "features": 5, "checkpoint": 12, "parquet": 12, "jsonl": 12}
"""Inputs of readers that take tens of milliseconds each."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    inputs.prepare(folder)
    return folder


@pytest.mark.parametrize("name", sorted(readers.READERS))
def test_spoiled_input_ends_in_rows_or_in_our_errors(prepared, tmp_path, monkeypatch, name):
    monkeypatch.setattr(mutate, "BOMB_BYTES", 1 << 16)
    reader, ended = readers.READERS[name], set()
    for number in range(SLOW.get(name, 30)):
        rng = Random(f"test/{name}/{number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        reader.make(prepared, folder, rng)
        _, failed, what = fuzz.attempt(reader, folder, rng)
        assert not what, f"{name} {number}: {what}"
        ended.add("error" if failed else "rows")
    assert "error" in ended or name in SLOW


# The benchmark itself


def test_faults_are_noticed_and_kept(tmp_path, capsys):
    limits = ["--inputs", "4", "--cpu-s", "0.2", "--memory-mb", "32", "--out", str(tmp_path)]
    assert fuzz.main(limits, "tests.faulty_readers") == 5
    *_, line = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    wanted = {
        "placeless": "an error that does not say where: it is spoiled",
        "other exception": "KeyError: 'a'",
        "crash": "died of SIGSEGV",
        "hang": "more than 0.2 s of CPU time",
        "memory": "more than 32 MiB of memory",
    }
    assert {fault["reader"] for fault in found["faults"]} == wanted.keys()
    for fault in found["faults"]:
        assert fault["what"].endswith(wanted[fault["reader"]])
        kept = tmp_path / f"{fault['reader'].replace(' ', '-')}-1-{fault['number']}"
        assert (kept / "input").read_text() in "123" and (kept / "fault.txt").exists()
    for row in found["readers"]:
        assert row["inputs"] == row["with_rows"] + row["errors"] + row["faults"] > 0
        assert (row["faults"] > 0) == (row["reader"] in wanted)
        assert row["rows"] == row["with_rows"]
    hang = next(fault for fault in found["faults"] if fault["reader"] == "hang")
    again = [*limits, "--again", f"hang:{hang['number']}"]
    assert fuzz.main(again, "tests.faulty_readers") == 5


def test_inputs_follow_from_their_seed(prepared, tmp_path):
    made = []
    for copy in "ab":
        files = {}
        for name in sorted(readers.READERS.keys() - {"names", "shard", "checkpoint"}):
            for number in range(3):
                folder = tmp_path / copy / f"{name}-{number}"
                folder.mkdir(parents=True)
                readers.READERS[name].make(prepared, folder, Random(f"{name}{number}"))
                for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                    if path.name != "job.yaml":  # which names its own folder
                        files[name, number, str(path.relative_to(folder))] = path.read_bytes()
        made.append(files)
    assert made[0] == made[1] and len(made[0]) > 60


# What was found


def test_no_error_moves_the_cursor(tmp_path):
    error = CtrpsError("no column 'a\x1b[2J\udcff'", where="a\tb", hint="or\n\x00")
    assert str(error) == "a\\tb: no column 'a\\x1b[2J\\udcff'; or\n\\x00"
    path = tmp_path / "a.csv"
    path.write_bytes(b"a\x1b[2J,b\n1,2\n")
    with pytest.raises(DataError, match=r"columns a\\x1b\[2J, b"):
        open_rows(path, TextSettings(), BadRows())


def test_a_long_bad_row_is_set_aside_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(badrows, "KEPT_BYTES", 100)
    bad = BadRows(1.0, tmp_path / "aside")
    bad.reject("a.csv", 1, 1, "expected less", b"\x00" * 1000)
    bad.close()
    assert (tmp_path / "aside").read_text().endswith("\t" + r"\x00" * 100 + "\n")
    assert len(bad.first[0].text) == 100


@pytest.fixture
def reforge(prepared, tmp_path):
    """Writes a file of frame sets anew, with what ``edit(records, meta)`` makes of it."""

    def run(pattern, kind, edit):
        (source,) = prepared.glob(pattern)
        file = FrameFile(source, kind)
        records, meta = edit([file.read(i) for i in range(file.records)], dict(file.meta))
        target = tmp_path / source.name
        with FrameFileWriter(target, kind) as writer:
            for header, arrays in records:
                writer.append(header, arrays)
            writer.close(meta)
        return target

    return run


def _arrays(number, change):
    """An edit of one array of the first record."""

    def edit(records, meta):
        (header, arrays), *rest = records
        arrays = list(arrays)
        arrays[number] = change(arrays[number])
        return [(header, arrays), *rest], meta

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        lambda records, meta: ([], meta),
        lambda records, meta: (records * 2, meta),
        lambda records, meta: (records, meta | {"rows": 5}),
        lambda records, meta: (records, meta | {"values": [1, "x"]}),
        lambda records, meta: (records, {k: v for k, v in meta.items() if k != "exact"}),
        _arrays(0, lambda keys: keys[::-1].copy()),
        _arrays(0, lambda keys: keys[:-1]),
        _arrays(1, lambda counts: counts.astype("f8")),
        _arrays(2, lambda text: text[:-1]),
        _arrays(3, lambda ends: ends[::-1].copy()),
        _arrays(3, lambda ends: ends.reshape(1, -1)),
    ],
)
def test_a_file_of_names_must_be_whole(reforge, edit):
    path = reforge("out/data/train-*.names", names.KIND, edit)
    with pytest.raises(DataError, match=r"\.names: it does not hold names; extract again"):
        read_names([path])


@pytest.mark.parametrize("numbers", [(2**64 - 1, 2**64 - 1), (1, 2**62)])
def test_a_shard_of_impossible_size(reforge, numbers):
    rows, block_rows = numbers

    def edit(records, meta):
        return records[:1], meta | {"rows": rows, "block_rows": block_rows}

    path = reforge("shards/csv.shard", shards.KIND, edit)
    with pytest.raises(DataError, match="its trailer is not that of a shard"):
        Shard(path)


@pytest.fixture
def model(prepared, tmp_path):
    """A folder with a model, and what writes its manifest anew, with the right checksum."""
    folder = tmp_path / "model"
    shutil.copytree(prepared / "run" / "model", folder)
    body = json.loads((folder / MANIFEST).read_text())
    del body["check"]

    def write(changes):
        found = body | changes
        check = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
        text = json.dumps(found | {"check": check}, indent=1, sort_keys=True) + "\n"
        (folder / MANIFEST).write_text(text)

    return folder, body, write


@pytest.mark.parametrize(
    "changes",
    [
        {"other": 1},
        {"files": [[0, "p000"]]},
        {"files": [[0, "../p000-c000001-v1-n0.part", 9, "00"]]},
        {"files": [[0, "p000-c000001-v1-n0.part", "9", "00"]]},
        {"files": 5},
        {"tables": [5]},
        {"tables": [["w", 1, "2"]]},
        {"step": "1"},
        {"job": None},
        {"border": 1},
    ],
)
def test_a_manifest_must_be_whole_whatever_its_checksum_says(model, changes):
    folder, _, write = model
    write({})
    assert read_manifest(folder).border
    write(changes)
    with pytest.raises(CheckpointError, match=r"manifest.json: its parts do not fit each other"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda keys, rows: (keys[::-1].copy(), rows),
        lambda keys, rows: (np.repeat(keys[:1], len(keys)), rows),
        lambda keys, rows: (keys.astype("i8"), rows),
        lambda keys, rows: (keys, rows.astype("f8")),
        lambda keys, rows: (keys.reshape(-1, 1), rows),
    ],
)
def test_rows_of_a_model_are_of_ascending_keys(reforge, model, change):
    folder, body, write = model
    files = [list(file) for file in body["files"]]
    name = files[0][1]
    path = reforge(
        f"run/model/{name}", KIND, lambda records, meta: ([_changed(records[0], change),
                                                           *records[1:]], meta)
    )  # fmt: skip
    shutil.copy(path, folder / name)
    file = FrameFile(path, KIND)
    files[0][2:] = [file.size_bytes, file.digest]
    write({"files": files})
    with pytest.raises(CheckpointError, match=rf"{name}: table .* rows of ascending keys"):
        LoadedModel.open(folder)


def _changed(record, change):
    header, (keys, rows) = record
    assert len(keys) > 1
    return header, list(change(keys, rows))


def test_numbers_of_thousands_of_digits(tmp_path):
    job = tmp_path / "job.yaml"
    digits = "9" * 5000
    job.write_text(f"train: {{consistency: async}}\ncluster: {{workers: {digits}}}\n")
    with pytest.raises(ConfigError, match=r"job.yaml:2:20: cluster.workers") as raised:
        load_job(job, [], {})
    assert len(str(raised.value)) < 500
    old = tmp_path / "old.ini"
    old.write_text(f"[net]\nmodel=lr\n[train]\nbatch_size={digits}\n")
    with pytest.raises(ConfigError, match=r"old.ini:4:12: train.batch_rows"):
        load_job(old, [], {})
    rows = tmp_path / "rows"
    rows.write_text(f"1 3 {digits}\n")
    with pytest.raises(DataError, match=r"rows: cannot tell its format from '1 3 999"):
        detect(rows)
    text = f"[raw_sample_schema]\nfields=n\n[sparse_features_ad]\nn=n,bucket,q{digits}"
    with pytest.raises(ConfigError, match=r"features.ini:4:12: a number of buckets is q2 to q1000"):
        parse_spec(text)


@pytest.mark.parametrize("text", ["[" * 3000, "a: " + "{a: " * 3000, "- " * 3000 + "a"])
def test_a_join_file_nested_without_end(tmp_path, text):
    path = tmp_path / "join.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"join.yaml: is nested too deeply"):
        load_plan(path)


def test_a_column_that_no_table_has_is_missed_in_the_table_of_impressions(tmp_path):
    inputs.write_raw(tmp_path, {"raw/log.csv": lambda data: data.replace(b"clk", b"click")})
    with pytest.raises(ConfigError, match=r"raw/log.csv:1: no table has a column 'clk'"):
        extract(load_job(tmp_path / "job.yaml", [], {}), "sample")


def _read_parquet(path, table, **how):
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(table, path)
    with open_rows(path, TextSettings(**how), BadRows()) as source:
        return sum(rows.rows for rows in source.rows)


def test_two_columns_of_a_parquet_table_with_one_name(prepared, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(prepared / "table.parquet").rename_columns(list("abcda"))
    with pytest.raises(DataError, match=r"a.parquet: two columns are named 'a'"):
        _read_parquet(tmp_path / "a.parquet", table, label="b")


@pytest.mark.parametrize(
    ("name", "kind", "values", "what"),
    [
        ("label", "int64", [1], "column 'label' of int64"),
        ("label", "int8", [7], "a label other than 0 and 1"),
        ("keys", "string", ["a"], "column 'keys' of string"),
        ("dense", ("float32",), [[np.inf]], "column 'dense' is not of lists of float32"),
        ("dense", ("float32",), [[None]], "column 'dense' is not of lists of float32"),
        ("slots", ("uint16",), [[9, 9]], "its slots are in no order, or have no name"),
        (None, None, None, "no column 'dense'"),
        ("schema", None, {"slots": 5}, "not a schema of rows"),
    ],
)
def test_columns_of_keys_that_do_not_fit(prepared, tmp_path, name, kind, values, what):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.parquet.read_table(prepared / "keyed.parquet")
    schema = values if name == "schema" else inputs.KEYED
    if name is None:
        table = table.drop_columns(["dense"])
    elif name != "schema":
        kind = arrow.list_(arrow.type_for_alias(kind[0])) if isinstance(kind, tuple) else kind
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, arrow.array(values * len(table), kind))
    table = table.replace_schema_metadata({"ctrps.schema": json.dumps(schema)})
    with pytest.raises(DataError, match=rf"a.parquet: a damaged file of keys \({what}"):
        _read_parquet(tmp_path / "a.parquet", table)


@pytest.mark.parametrize("meta", [{"least": 0}, {"least": "0", "greatest": 1}, {"greatest": 2}])
def test_what_a_shard_says_of_its_indices_may_be_anything(reforge, meta):
    path = reforge("shards/csv.shard", shards.KIND, lambda r, m: (r, m | {"meta": meta}))
    assert disagreement([Shard(path)], [Shard(path)]) is None


def test_a_manifest_nested_without_end(model):
    folder, _, _ = model
    (folder / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"manifest.json: it cannot be read"):
        read_manifest(folder)
    with pytest.raises(ConfigError, match="not the folder of a model"):
        load_spec(folder)


def test_a_wide_header_takes_no_longer_than_its_width():
    names = [f"c{number}" for number in range(20_000)]
    check_distinct(names, "a.csv")
    with pytest.raises(DataError, match="two columns are named 'c0'"):
        check_distinct([*names, "c0"], "a.csv")
