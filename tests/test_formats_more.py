"""Readers of libffm, VW, Criteo's logs, JSON lines and tables without header; packed files."""

import dataclasses
import gzip
import io
import sys
import tarfile

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.data.badrows import BadRows
from ctrps.data.detect import detect
from ctrps.data.formats import open_rows, read_rows
from ctrps.data.reading import FORMATS, PAIRS, TABLES, TextSettings
from ctrps.data.rows import Schema, joined
from ctrps.data.streams import STDIN, most_bytes, stdin_is_empty
from ctrps.data.textfile import TextFile
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.keys import key_of

AUTO = TextSettings()


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, how=AUTO, bad=None, chunk_bytes=8 << 20):
    """The schema at the end of a file, and all its rows."""
    with open_rows(path, how, BadRows() if bad is None else bad, chunk_bytes) as source:
        parts = [*source.rows]
    return source.schema, joined(parts)


def same(one, other):
    for name in ("keys", "counts", "values", "dense", "labels"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    texts = [rows.ids and (rows.ids[0].tobytes(), rows.ids[1].tolist()) for rows in (one, other)]
    assert texts[0] == texts[1]


# libffm


def test_libffm_has_a_slot_for_each_field_and_keeps_its_keys(tmp_path):
    path = write(tmp_path / "a", "1 2:9:0.5 0:3:1 2:8:1\n0 1:18446744073709551615:2\n-1\n")
    schema, rows = read(path)
    assert schema == Schema(("0", "1", "2"), (), "value")
    assert rows.counts.tolist() == [[1, 0, 2], [0, 1, 0], [0, 0, 0]]
    assert rows.keys.tolist() == [3, 9, 8, 2**64 - 1]
    assert rows.values.tolist() == [1, 0.5, 1, 2]
    assert rows.labels.tolist() == [1, 0, 0]


def test_a_schema_grows_with_the_rows_and_may_begin_with_slots(tmp_path):
    path = write(tmp_path / "a.ffm", "1 0:1:1\n" * 50 + "1 3:1:1\n")
    with open_rows(path, AUTO, BadRows(), chunk_bytes=64) as source:
        widths = [(rows.counts.shape[1], len(source.schema.slots)) for rows in source.rows]
    assert widths[0] == (1, 1)
    assert widths[-1] == (4, 4)
    how = dataclasses.replace(AUTO, slots=("0", "1", "2", "3", "4"))
    assert read(path, how)[0].slots == how.slots


def test_libffm_without_labels_is_read_when_told(tmp_path):
    path = write(tmp_path / "a.ffm", "0:3:1 1:4:1\n")
    assert detect(path).format == "libffm"
    with pytest.raises(DataError, match=r"a.ffm:1:1: expected a label .* found '0:3:1'"):
        read(path)
    for labels in ("optional", "none"):
        _, rows = read(path, TextSettings(labels=labels))
        assert rows.keys.tolist() == [3, 4]
        assert np.isnan(rows.labels).all()


def test_many_slots_do_not_cost_memory_by_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("ctrps.data.keyvalues._CELLS", 1000)
    path = write(tmp_path / "a.ffm", "1 499:7:1 3:5:0.5\n0 2:1:1\n" * 20)
    with open_rows(path, AUTO, BadRows()) as source:
        parts = [*source.rows]
    assert max(rows.counts.size for rows in parts) <= 1000
    rows = joined(parts)
    assert rows.keys.tolist() == [5, 7, 1] * 20
    assert rows.values.tolist() == [0.5, 1, 1] * 20


# VW


def test_vw_namespaces_are_slots_with_hashed_features(tmp_path):
    path = write(
        tmp_path / "a",
        "1 |user ann age:0.5 |ad:2 shoe:0.25 red\n-1 1.0 |ad x\n1 | bare:-1e1 |user bob|ad y\n0\n",
    )
    schema, rows = read(path)
    assert schema == Schema(("user", "ad", " "), (), "value")
    assert rows.counts.tolist() == [[2, 2, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]]
    assert rows.keys.tolist() == [
        key_of(*pair)
        for pair in [
            ("user", "ann"), ("user", "age"), ("ad", "shoe"), ("ad", "red"), ("ad", "x"),
            ("user", "bob"), ("ad", "y"), (" ", "bare"),
        ]
    ]  # fmt: skip
    assert rows.values.tolist() == [1, 0.5, 0.5, 2, 1, 1, 1, -10]
    assert rows.labels.tolist() == [1, 0, 1, 0]
    assert rows.ids is None


def test_vw_tags_are_ids_of_all_rows_or_none(tmp_path):
    tagged = write(tmp_path / "a.vw", "1 'r1|f x\n0 1 zebra|f y\n1 |f x\n")
    _, rows = read(tagged)
    assert rows.ids[0].tobytes() == b"r1zebra"
    assert rows.ids[1].tolist() == [2, 7, 7]
    with pytest.raises(DataError, match=r"b.vw:2:3: expected no tag .* found ''r1'"):
        read(write(tmp_path / "b.vw", "1 |f x\n1 'r1 |f x\n"))


@pytest.mark.parametrize(
    ("row", "place", "message"),
    [
        ("1 0.5 |f x", "1:3", "no importance but 1"),
        ("1 1 0.5 |f x", "1:3", "no importance but 1"),
        ("2 |f x", "1:1", "expected a label"),
        ("|f x", "1:1", "expected a label"),
        ("1 |f:x y", "1:4", "expected a namespace"),
        ("1 |f x:y", "1:6", "expected a feature"),
        ("1 |f a:b:1", "1:6", "expected a feature"),
        ("1 |f :1", "1:6", "expected a feature"),
    ],
)
def test_vw_that_cannot_be_meant_is_named(tmp_path, row, place, message):
    with pytest.raises(DataError, match=rf"a.vw:{place}: .*{message}"):
        read(write(tmp_path / "a.vw", row + "\n"), TextSettings("vw"))


def test_vw_without_labels_is_read_when_told(tmp_path):
    path = write(tmp_path / "a", "|f x\n1 |f y\n")
    _, rows = read(path, TextSettings(labels="optional"))
    np.testing.assert_array_equal(rows.labels, [np.nan, 1])
    assert np.isnan(read(path, TextSettings(labels="none"))[1].labels).all()


def test_vw_numbers_between_two_float32_are_exact(tmp_path):
    text = "16777217.000000000000000001"
    path = write(tmp_path / "a.vw", f"1 |f:{text} a:2 b |g c:{text}\n")
    expected = np.float32(float(text))
    assert read(path)[1].values.tolist() == [2 * expected, expected, expected]


def test_a_name_of_a_namespace_need_not_be_utf8(tmp_path):
    schema, rows = read(write(tmp_path / "a.vw", b"1 |\xff x\n"))
    assert schema.slots == ("\\xff",)
    assert rows.keys[0] != key_of("\\xff", "x")


# slots


def test_slot_text_names_the_slot_of_each_value(tmp_path):
    how = TextSettings("slots", columns=("id", "label"), id="id", ignore=("when",))
    path = write(tmp_path / "a", "r1,1,user:ann,tag:a,tag:b:c,when:7\n r2\t0 tag:a user:\n")
    schema, rows = read(path, how)
    assert schema == Schema(("user", "tag"), (), "value")
    assert rows.counts.tolist() == [[1, 2], [1, 1]]
    assert rows.keys.tolist() == [
        key_of(*pair)
        for pair in [("user", "ann"), ("tag", "a"), ("tag", "b:c"), ("user", ""), ("tag", "a")]
    ]
    assert rows.values.tolist() == [1, 0.5, 0.5, 1, 1]
    assert (rows.labels.tolist(), rows.ids[0].tobytes()) == ([1, 0], b"r1r2")


def test_signs_are_slots_turned_round(tmp_path):
    path = write(tmp_path / "a", "1:click 18446744073709551615:29 7:3\n")
    schema, rows = read(path, TextSettings("signs", label="click"))
    assert schema.slots == ("29", "3")
    assert rows.keys.tolist() == [key_of("29", str(2**64 - 1)), key_of("3", "7")]
    assert rows.values is None


@pytest.mark.parametrize(
    ("row", "place", "message"),
    [
        ("user:x", "1:1", "expected a label .* found ''"),
        ("label:2 user:x", "1:7", "expected a label .* found '2'"),
        ("label:1 label:1", "1:15", "expected a label"),
        ("1 2 label:1", "1:3", "expected slot:value .* found '2'"),
        ("label:1 :x", "1:9", "expected slot:value"),
    ],
)
def test_slot_text_that_cannot_be_meant_is_named(tmp_path, row, place, message):
    how = TextSettings("slots", columns=("c",))
    with pytest.raises(DataError, match=rf"a:{place}: .*{message}"):
        read(write(tmp_path / "a", row + "\n"), how)
    with pytest.raises(ConfigError, match="not for slot text"):
        read(tmp_path / "a", dataclasses.replace(how, numeric=("n",)))


# Criteo


def criteo_row(label="1", numbers=("",) * 13, hashes=("",) * 26):
    fields = [label] if label is not None else []
    return "\t".join([*fields, *numbers, *hashes]) + "\n"


def test_criteo_numbers_are_levels_and_hashes_are_texts(tmp_path):
    numbers = ["0", "1", "2", "7", "-1", "", "1000000", *[""] * 6]
    hashes = ["00e52733", "36103458", *[""] * 24]
    path = write(tmp_path / "a", criteo_row("0", numbers, hashes))
    schema, rows = read(path)
    assert detect(path).format == "criteo"
    assert schema == Schema(
        tuple(sorted([*(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]))
    )
    found = dict(zip(schema.slots, rows.keys.tolist(), strict=True))
    levels = {"I1": "0", "I2": "3", "I3": "4", "I4": "9", "I5": "-1", "I6": "", "I7": "59"}
    assert {name: found[name] for name in levels} == {
        name: key_of(name, level) for name, level in levels.items()
    }
    assert found["C1"] == key_of("C1", "00e52733")
    assert found["C26"] == key_of("C26", "")
    assert rows.labels.tolist() == [0]


def test_criteo_rows_without_label_and_with_dense_numbers(tmp_path):
    path = write(tmp_path / "a", criteo_row(None, ["3"] * 13, ["0a0a0a0a"] * 26))
    assert detect(path).format == "criteo"
    how = TextSettings(labels="optional", numeric=("I2",), ignore=("C1", "I3"))
    schema, rows = read(path, how)
    assert (schema.dense, len(schema.slots)) == (("I2",), 36)
    assert rows.dense.tolist() == [[3]]
    assert np.isnan(rows.labels).all()
    with pytest.raises(DataError, match="no column 'label'"):
        read(path)


def test_a_criteo_number_that_is_none_is_bad(tmp_path):
    good = criteo_row("1", ["1"] * 13, ["0a0a0a0a"] * 26)
    text = good + criteo_row("0", ["1", "260.0", *["1"] * 11]) + good + "1\t1\n" + good
    path = write(tmp_path / "a", text)
    with pytest.raises(DataError, match=r"a:2:5: expected a whole number .*'I2', found '260.0'"):
        read(path)
    bad = BadRows(0.5)
    _, rows = read(path, AUTO, bad)
    assert (rows.rows, rows.labels.tolist()) == (3, [1, 1, 1])
    assert [row.line for row in bad.first] == [2, 4]
    same(rows, read(write(tmp_path / "b", good * 3))[1])


# JSON lines


def test_json_fields_are_columns(tmp_path):
    text = """{"label": 1, "user": "ann", "n": 7, "price": 2.5, "tags": ["a", "b"], "ok": true}
    {"label": 0, "user": null, "n": "7", "price": 1e2, "tags": [], "ok": false}

    {"tags": "a", "label": true, "user": "\\u00e9", "n": 7.0}
    """
    path = write(tmp_path / "a", text)
    schema, rows = read(path, TextSettings(numeric=("price",)))
    assert detect(path).format == "jsonl"
    assert schema == Schema(("n", "ok", "tags", "user"), ("price",), "mean")
    assert rows.counts.tolist() == [[1, 1, 2, 1], [1, 1, 0, 1], [1, 1, 1, 1]]
    assert rows.keys.tolist() == [
        key_of(*pair)
        for pair in [
            ("n", "7"), ("ok", "true"), ("tags", "a"), ("tags", "b"), ("user", "ann"),
            ("n", "7"), ("ok", "false"), ("user", ""),
            ("n", "7.0"), ("ok", ""), ("tags", "a"), ("user", "é"),
        ]
    ]  # fmt: skip
    assert rows.dense.tolist() == [[2.5], [100], [0]]
    assert rows.labels.tolist() == [1, 0, 1]


def test_json_and_csv_of_the_same_rows_are_the_same(tmp_path):
    how = TextSettings(numeric=("x",), id="row", missing=("", "NULL"), ignore=("no",))
    table = write(tmp_path / "a.csv", "row,label,b,a,x,no\nr1,1,u,1,2.5,z\nr2,-1,NULL,01,,z\n")
    lines = write(
        tmp_path / "a.jsonl",
        '{"row": "r1", "label": 1, "b": "u", "a": 1, "x": 2.5, "no": {}}\n'
        '{"row": "r2", "label": "-1", "b": "NULL", "a": "01", "x": null}\n',
    )
    (schema, rows), (schema2, rows2) = read(table, how), read(lines, how)
    assert schema == schema2
    same(rows, rows2)


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("[1]", "2:1", "expected one JSON object"),
        ('{"label": 1, "c": }', "2:19", r"expected one JSON object on the line \(Expecting value"),
        ('{"label": 1} x', "2:14", "Extra data"),
        ('{"label": 1, "d": 1}', "2:1", "expected no fields but those .* found 'd'"),
        ('{"label": 2}', "2:1", "expected a label .* found '2'"),
        ('{"label": null}', "2:1", "expected a label .* found ''"),
        ('{"label": [1]}', "2:1", r"expected a label .* found '\[\"1\"\]'"),
        ('{"label": 1, "c": {"x": 1}}', "2:1", "expected a text, a number or a list .*'c'"),
        ('{"label": 1, "c": [["x"]]}', "2:1", "expected a text, a number or a list"),
        ('{"label": 1, "n": "2"}', "2:1", "expected a finite number .* field 'n', found '2'"),
        ('{"label": 1, "n": 1e400}', "2:1", "expected a finite number"),
        ('{"label": 1, "n": NaN}', "2:1", "expected a finite number, found 'NaN'"),
        ('{"label": 1, "c": 1, "c": 2}', "2:1", "expected each field once .* found 'c'"),
        (b'{"label": 1, "c": "\xff"}', "2:20", "expected UTF-8"),
        ('{"c": ' + "[" * 100_000, "2:1", "not so deeply nested"),
    ],
)
def test_json_that_cannot_be_meant_is_named(tmp_path, line, place, message):
    first = b'{"label": 1, "c": "x", "n": 1}\n'
    path = write(tmp_path / "a.jsonl", first + (line if isinstance(line, bytes) else line.encode()))
    with pytest.raises(DataError, match=rf"a.jsonl:{place}: .*{message}"):
        read(path, TextSettings("jsonl", numeric=("n",)))
    bad = BadRows(0.5)
    _, rows = read(path, TextSettings("jsonl", numeric=("n",)), bad)
    assert (rows.rows, bad.count) == (1, 1)


def test_fields_of_json_are_those_stated(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"label": 1}\n{"label": 0, "c": "x"}\n')
    with pytest.raises(DataError, match=r"a.jsonl:2:1: .*data.columns, found 'c'"):
        read(path)
    schema, rows = read(path, TextSettings(columns=("c", "label")))
    assert schema.slots == ("c",)
    assert rows.keys.tolist() == [key_of("c", ""), key_of("c", "x")]
    schema, rows = read(path, TextSettings(others=True))
    assert (schema.slots, rows.rows) == ((), 2)
    with pytest.raises(DataError, match=r"b.jsonl:1: the first row names the fields"):
        read(write(tmp_path / "b.jsonl", "{"), AUTO, BadRows(1.0))


# tables without header


def test_columns_may_be_stated(tmp_path):
    how = TextSettings(columns=("c", "label", "n"), numeric=("n",))
    for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
        path = write(tmp_path / name, "x,1,2\ny,0,3\n".replace(",", separator))
        schema, rows = read(path, how)
        assert (schema.slots, rows.dense.tolist()) == (("c",), [[2], [3]])
        assert rows.keys.tolist() == [key_of("c", "x"), key_of("c", "y")]
    with pytest.raises(DataError, match=r"b.csv:1:1: expected 3 fields as in data.columns"):
        read(write(tmp_path / "b.csv", "1,2\n"), how)
    with pytest.raises(DataError, match="two columns are named 'label'"):
        read(path, TextSettings(columns=("label", "label")))


def test_a_column_without_a_name_has_to_be_left_out_or_used(tmp_path):
    path = write(tmp_path / "a.csv", ",label,c,\n0,1,x,7\n")
    with pytest.raises(DataError, match=r"column 1 of the header has no name; .*data.ignore"):
        read(path, TextSettings("csv"))
    how = TextSettings("csv", ignore=("column 1",), numeric=("column 4",))
    schema, rows = read(path, how)
    assert (schema.slots, rows.dense.tolist()) == (("c",), [[7]])


# packed


LIBSVM = b"1 3:1 7:0.5\n0 3:1\n" * 50


def packed(kind, *texts):
    """Texts as one file; of a tar archive, each as one member."""
    text = b"".join(texts)
    if kind == "plain":
        return text
    if kind == "gzip":
        return gzip.compress(text, mtime=0)
    if kind == "zstd":
        # Two frames, as when one file is appended to another.
        half = len(text) // 2
        return b"".join(zstandard.compress(part) for part in (text[:half], b"", text[half:]))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for number, content in enumerate([b"no rows", *texts]):
            member = tarfile.TarInfo(f"rows/part-{number}" if number else "rows/._part-0")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    data = stream.getvalue()
    return {"tar": bytes, "tar.gz": gzip.compress, "tar.zst": zstandard.compress}[kind](data)


KINDS = ["plain", "gzip", "zstd", "tar", "tar.gz", "tar.zst"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_bytes", [1, 8 << 20])
def test_packed_text_is_the_same_text(tmp_path, kind, chunk_bytes):
    _, expected = read(write(tmp_path / "plain", LIBSVM))
    path = write(tmp_path / "a", packed(kind, LIBSVM[:-1] if "tar" in kind else LIBSVM))
    same(read(path, AUTO, None, chunk_bytes)[1], expected)
    with TextFile(path) as file:
        assert file.most_bytes >= len(LIBSVM) - 1
    assert most_bytes(path) >= len(LIBSVM) - 1


def test_members_of_an_archive_are_read_in_their_order_each_with_its_header(tmp_path):
    tables = [b"label,c\n1,x\n", b"", b"c,label\ny,0\n"]
    path = write(tmp_path / "a.csv.tar.gz", packed("tar.gz", *tables))
    _, rows = read(path)
    assert rows.keys.tolist() == [key_of("c", "x"), key_of("c", "y")]
    assert rows.labels.tolist() == [1, 0]
    path = write(tmp_path / "b.tar", packed("tar", b"label,c\n1,x\n", b"label,c\nq,y\n"))
    with pytest.raises(DataError, match=r"b.tar/rows/part-2:2:1: expected a label"):
        read(path)
    path = write(tmp_path / "c.tar", packed("tar", b"label,c\n1,x\n", b"label,d\n1,y\n"))
    with pytest.raises(DataError, match=r"c.tar/rows/part-2: its columns are not those"):
        read(path)
    for form, text in (("vw", b"1 |f x"), ("libffm", b"1 0:1:1"), ("jsonl", b'{"label": 1}')):
        path = write(tmp_path / form, packed("tar.zst", text, text))
        assert read(path)[1].rows == 2
        assert detect(path).format == form


@pytest.mark.parametrize("kind", KINDS[1:])
def test_packed_text_that_is_cut_short_is_refused(tmp_path, kind):
    rng = np.random.default_rng(1)
    noise = b"".join(b"1 %d:1\n" % n for n in rng.integers(0, 2**63, 2000))
    data = packed(kind, noise)
    for size in (len(data) // 2, len(data) - len(data) // 8):
        path = write(tmp_path / "a", data[:size])
        with pytest.raises(DataError, match=r"a.*: (the compressed data ends early|damaged)"):
            read(path, TextSettings("libsvm"))


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.sampled_from(KINDS[1:]), st.binary(max_size=40), st.integers(0, 3000), st.integers(0, 255)
)
def test_any_damage_to_packed_text_is_rows_or_a_data_error(tmp_path_factory, kind, data, at, byte):
    whole = bytearray(packed(kind, b"1 1:1\n" + data, b"0 2:1"))
    whole[at % len(whole)] = byte
    path = write(tmp_path_factory.mktemp("any") / "a", bytes(whole))
    try:
        list(read_rows(path, TextSettings("libsvm"), BadRows(1.0)))
    except DataError as error:
        assert error.where


def test_zstd_says_which_package_it_needs(tmp_path, monkeypatch):
    path = write(tmp_path / "a", packed("zstd", LIBSVM))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DataError, match=r"needs the package zstandard; .*ctrps\[zst\]"):
        detect(path)


# standard input


@pytest.fixture
def stdin(monkeypatch):
    def give(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))

    return give


@pytest.mark.parametrize("kind", KINDS)
def test_standard_input_is_a_file_of_any_format(tmp_path, stdin, kind):
    stdin(packed(kind, LIBSVM))
    same(read(STDIN)[1], read(write(tmp_path / "a", LIBSVM))[1])


def test_standard_input_is_named_and_looked_at(stdin):
    stdin(b"1 3:1\nx 3:1\n")
    assert not stdin_is_empty()
    with pytest.raises(DataError, match="standard input:2:1: expected a label"):
        read(STDIN)
    stdin(b"")
    assert stdin_is_empty()
    stdin(b"ctrps\0\x01\n")
    with pytest.raises(DataError, match="a shard cannot come from standard input"):
        read(STDIN)


def test_rows_do_not_wait_for_rows_behind_them(monkeypatch):
    class Slow(io.RawIOBase):
        """Gives a line at a time, and notes how many were asked for."""

        lines = 0

        def readable(self):
            return True

        def readinto(self, memory):
            self.lines += 1
            line = b"1 %d:1 %s\n" % (self.lines, b" " * 600) if self.lines < 9 else b""
            memory[: len(line)] = line
            return len(line)

    slow = Slow()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(slow)))
    with open_rows(STDIN, TextSettings("libsvm"), BadRows()) as source:
        first = next(rows for rows in source.rows if rows.rows)
        assert (first.keys.tolist(), slow.lines) == ([1], 1)
        assert sum(rows.rows for rows in source.rows) == 7


# detection


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("a", "1 0:3:1 1:7:0.5\n", "libffm"),
        ("a", "0:3:1\n", "libffm"),
        ("a.ffm", "1\n", "libffm"),
        ("a", "1 |f x\n", "vw"),
        ("a", "-1 1.0 0.5 'tag|f x\n", "vw"),
        ("a", "1 2 zebra|f x\n", "vw"),
        ("a", "'tag |f x\n", "vw"),
        ("a", "|f x:1\n", "vw"),
        ("a.vw", "1\n", "vw"),
        ("a", ' {"label": 1}\n', "jsonl"),
        ("a.ndjson.zst", "\n", "jsonl"),
        ("a", "id,genres|other\n", "csv"),
        ("a.csv", "a|b|c,d\n", "csv"),
        ("a", "label\tI1" + "\tx" * 38 + "\n", "tsv"),
        ("a", "1" + "\t1" * 39 + "\n", "tsv"),
        ("a", "1" + "\t1" * 13 + "\t0a0a0a0a" * 26 + "\t\n", "tsv"),
    ],
)
def test_more_formats_are_told_by_content_before_the_name(tmp_path, name, text, form):
    assert detect(write(tmp_path / name, text)).format == form


def test_a_first_line_of_any_length_tells_the_format(tmp_path):
    text = "1 " + " ".join(f"{n}:1" for n in range(100_000)) + "\n"
    assert detect(write(tmp_path / "a", text)).format == "libsvm"


# any bytes


words = st.lists(
    st.sampled_from(b"1;0;,;\t;|;\n;\r;:; ;label;\0;';0.5;\xff".split(b";"))
    | st.sampled_from(b'{;};"label";"a";[;];null;"\\ud800"'.split(b";")),
    max_size=30,
).map(b"".join)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(
    st.binary(max_size=60) | words,
    st.sampled_from(FORMATS),
    st.sampled_from(["required", "optional", "none"]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([1, 8, 1 << 20]),
    st.sampled_from([(), ("label", "a")]),
)
def test_any_bytes_are_rows_or_a_data_error(
    tmp_path_factory, data, form, labels, max_bad, chunk_bytes, columns
):
    path = write(tmp_path_factory.mktemp("any") / "a", data)
    how = TextSettings(form, labels=labels, columns=columns)
    try:
        with open_rows(path, how, BadRows(max_bad), chunk_bytes) as source:
            for rows in source.rows:
                assert rows.counts.sum() == len(rows.keys)
                assert rows.counts.shape[1] == len(source.schema.slots)
                assert rows.values is None or len(rows.values) == len(rows.keys)
                assert rows.ids is None or len(rows.ids[1]) == rows.rows
    except DataError as error:
        assert error.where


@settings(derandomize=True, max_examples=200, deadline=None)
@given(words, st.sampled_from([*PAIRS, *TABLES]), st.sampled_from([1, 3, 17]))
def test_chunks_do_not_show(tmp_path_factory, data, form, chunk_bytes):
    path = write(tmp_path_factory.mktemp("any") / "a", data)
    how = TextSettings(form, labels="optional")
    found = []
    for size in (8 << 20, chunk_bytes):
        bad = BadRows(1.0)
        try:
            schema, rows = read(path, how, bad, size)
        except (DataError, IndexError):  # a header that is none, and no piece at all
            return
        found.append((schema, rows, [(row.line, row.column, row.text) for row in bad.first]))
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2]
    same(found[0][1], found[1][1])
