"""Readers of text, and what becomes of text before training: detection, patterns, the cache."""

import dataclasses
import gzip
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.data.badrows import BadRows
from ctrps.data.convert import expand, to_shards
from ctrps.data.detect import detect
from ctrps.data.formats import TextSettings, open_rows, read_rows
from ctrps.data.reading import PAIRS
from ctrps.data.shards import Schema, Shard, ShardWriter, joined
from ctrps.data.textfile import TextFile
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.keys import key_of

CSV = TextSettings(format="csv")

FIRST = {
    "libffm": b"1 1:1:",
    "vw": b"1 |a b:",
    "slots": b"label:1 a:",
    "signs": b"1:label ",
    "csv": b"label,a\n1,",
    "tsv": b"label\ta\n1\t",
    "criteo": b"1\t",
    "jsonl": b'{"label": 1, "a": 2}\n{"label": ',
}
"""How a row begins that may go on and on, behind a header where there is one."""


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, how=CSV, bad=None, chunk_bytes=8 << 20):
    bad = BadRows() if bad is None else bad
    with open_rows(path, how, bad, chunk_bytes) as source:
        rows = joined([*source.rows])
        return source.schema, rows


# tables


def test_columns_become_labels_numbers_categories_and_ids(tmp_path):
    path = write(
        tmp_path / "a.csv",
        'user,price,label,note,row\n"a,b",1.5,1,x,r1\r\n\n"say ""hi""",,-1,y,\n é ,-2e3,0,,"r\n3"',
    )
    how = TextSettings("csv", numeric=("price",), ignore=("note",), id="row")
    schema, rows = read(path, how)
    assert schema == Schema(("user",), ("price",), "mean")
    assert rows.keys.tolist() == [key_of("user", v) for v in ("a,b", 'say "hi"', " é ")]
    assert rows.dense.tolist() == [[1.5], [0.0], [-2000.0]]
    assert rows.labels.tolist() == [1, 0, 0]
    assert rows.ids[0].tobytes() == b"r1r\n3"
    assert rows.ids[1].tolist() == [2, 2, 5]


def test_columns_are_found_by_name_whatever_their_order(tmp_path):
    one = write(tmp_path / "a.csv", "label,user,ad,price\n1,u,v,2\n")
    other = write(tmp_path / "b.tsv", "price\tad\tuser\tlabel\n2\tv\tu\t1\n")
    how = TextSettings(numeric=("price",))
    (schema, rows), (schema2, rows2) = read(one, how), read(other, how)
    assert schema == schema2
    assert rows.keys.tolist() == rows2.keys.tolist() == [key_of("ad", "v"), key_of("user", "u")]


def test_missing_markers_are_settings(tmp_path):
    path = write(tmp_path / "a.csv", "label,c,n\n1,NULL,NULL\n0,,\n1,-,1\n")
    how = TextSettings("csv", numeric=("n",), missing=("", "NULL"))
    _, rows = read(path, how)
    assert rows.keys.tolist() == [key_of("c", ""), key_of("c", ""), key_of("c", "-")]
    assert rows.dense[:, 0].tolist() == [0, 0, 1]


def test_a_label_may_be_absent_only_when_told(tmp_path):
    labelled = write(tmp_path / "a.csv", "label,c\n1,x\n,y\n")
    plain = write(tmp_path / "b.csv", "c\nx\ny\n")
    with pytest.raises(DataError, match=r"a.csv:3:1: expected a label .* found ''"):
        read(labelled)
    with pytest.raises(DataError, match=r"b.csv:1: no column 'label'"):
        read(plain)
    optional = dataclasses.replace(CSV, labels="optional")
    np.testing.assert_array_equal(read(labelled, optional)[1].labels, [1, np.nan])
    for how in (optional, dataclasses.replace(CSV, labels="none")):
        assert np.isnan(read(plain, how)[1].labels).all()
    schema, rows = read(labelled, dataclasses.replace(CSV, labels="none"))
    assert schema.slots == ("c",)
    assert np.isnan(rows.labels).all()


@pytest.mark.parametrize(
    ("header", "how", "message"),
    [
        ("lable,c", CSV, "no column 'label'; did you mean 'lable'"),
        ("Label,c", dataclasses.replace(CSV, labels="optional"), "did you mean 'Label'"),
        ("label,Price", dataclasses.replace(CSV, numeric=("price",)), "did you mean 'Price'"),
        ("label,c", dataclasses.replace(CSV, id="row"), "no column 'row'; the file has"),
        ("label,C", dataclasses.replace(CSV, ignore=("c",)), "did you mean 'C'"),
        ("label,c,c ", CSV, "two columns are named 'c'"),
        ("label,,c", CSV, "column 2 of the header has no name"),
        ('label,"c', CSV, "cannot read the header"),
        (b"label,\xff", CSV, "cannot read the header"),
    ],
)
def test_a_header_that_does_not_fit_is_named(tmp_path, header, how, message):
    path = write(tmp_path / "a.csv", header)
    with pytest.raises(DataError, match=rf"a.csv:1: .*{message}"):
        read(path, how)


def test_an_ignored_column_need_not_be_there(tmp_path):
    path = write(tmp_path / "a.csv", "label,c\n1,x\n")
    assert read(path, dataclasses.replace(CSV, ignore=("when",)))[1].rows == 1


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("label,c\n1,x\n1\n", "3:1", "expected 2 fields as in the header, found '1'"),
        ("label,c\n1,x,y\n", "2:1", "found '1,x,y'"),
        ('label,c\n1,"x\ny"\n0,"a"b\n', "4:6", "a separator after the closing quote, found 'b'"),
        ('label,c\n1,x\n0,"y', "3:3", "expected a closing quote"),
        ('label,c\n1,x\n0,"y\n1,z\n', "3:3", "never closed; close it: the 1 lines behind it"),
        ('label,c\n"x""y",z\n', "2:2", "expected a label"),
        ("label,c\n" + "1,x\n" * 3000 + "2,x\n", "3002:1", "expected a label"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 16, 8 << 20])
def test_a_bad_row_is_named_by_its_place(tmp_path, text, where, message, chunk_bytes):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(DataError) as caught:
        read(path, chunk_bytes=chunk_bytes)
    assert f"a.csv:{where}: " in str(caught.value)
    assert message in str(caught.value)


def test_the_first_bad_row_of_the_file_is_the_one_named(tmp_path):
    # The two are found by different kernels.
    path = write(tmp_path / "a.csv", "label,c\nx,1\n1\n")
    with pytest.raises(DataError, match=r"a.csv:2:1"):
        read(path)


def test_a_quote_that_is_never_closed_is_not_one_bad_row(tmp_path):
    path = write(tmp_path / "a.csv", 'label,c\n1,"x\n1,y\n')
    with pytest.raises(DataError, match="would be lost"):
        read(path, bad=BadRows(1.0))


def test_one_name_has_one_use():
    with pytest.raises(ConfigError, match="'a' is named twice"):
        TextSettings(numeric=("a",), ignore=("a",))
    with pytest.raises(ConfigError, match="no format 'xls'"):
        TextSettings("xls")


# libsvm


def test_libsvm_rows_have_one_slot_and_values_only_if_needed(tmp_path):
    how = TextSettings("libsvm")
    schema, rows = read(write(tmp_path / "a", "1 3:1 7:1\n0 3:1\n1\n"), how)
    assert schema == Schema(("",), (), "value")
    assert rows.values is None
    assert rows.counts.tolist() == [[2], [1], [0]]
    _, rows = read(write(tmp_path / "b", "+1 3:1 7:0.5 3:1.00000005960464477539\n"), how)
    assert rows.values.tolist() == [1, 0.5, np.float32(1.00000005960464477539)]


def test_chunks_do_not_show(tmp_path):
    lines = [f"{n % 2} {n}:{n}.5 {n + 1}:1\r\n" for n in range(300)]
    path = write(tmp_path / "a", "\ufeff" + "".join(lines))
    _, whole = read(path, TextSettings("libsvm"))
    for chunk_bytes in (1, 7, 1000):
        _, rows = read(path, TextSettings("libsvm"), chunk_bytes=chunk_bytes)
        for name in ("keys", "counts", "values", "labels"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(rows, name))


def test_many_bad_rows_are_all_counted_in_their_order(tmp_path):
    lines = [f"x{n}" if n % 2 else "1 1:1" for n in range(2000)]
    for name, form, header in (("a.csv", "csv", "label\n"), ("a.svm", "libsvm", "")):
        path = write(tmp_path / name, header + "\n".join(lines).replace(" 1:1", ""))
        bad = BadRows(1.0)
        _, rows = read(path, TextSettings(form), bad)
        assert (rows.rows, bad.count) == (1000, 1000)
        assert [row.text for row in bad.first] == ["x1", "x3", "x5"]


# any bytes


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from([b"1", b",", b"\t", b'"', b"\n", b"\r", b":", b" ", b"label", b"\0"])
    ).map(b"".join),
    st.sampled_from(["auto", "libsvm", "csv", "tsv", "shard"]),
    st.sampled_from(["required", "optional", "none"]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([1, 8, 1 << 20]),
)
def test_any_bytes_are_rows_or_a_data_error(
    tmp_path_factory, data, form, labels, max_bad, chunk_bytes
):
    path = write(tmp_path_factory.mktemp("any") / "a", data)
    how = TextSettings(form, labels=labels, id="b" if data[:1] == b"b" else None)
    try:
        for rows in read_rows(path, how, BadRows(max_bad), chunk_bytes):
            assert rows.counts.sum() == len(rows.keys)
            assert len(rows.dense) == rows.rows
    except DataError as error:
        assert error.where


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 60), st.integers(0, 255))
def test_any_damage_to_gzip_is_rows_or_a_data_error(tmp_path_factory, data, at, byte):
    packed = bytearray(gzip.compress(b"1 1:1\n" + data, mtime=0))
    packed[min(at, len(packed) - 1)] = byte
    path = write(tmp_path_factory.mktemp("any") / "a", bytes(packed))
    try:
        list(read_rows(path, TextSettings("libsvm"), BadRows(1.0)))
    except DataError as error:
        assert error.where


def test_a_row_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ctrps.data.textfile.MAX_ROW_BYTES", 1000)
    path = write(tmp_path / "a.csv", 'label,c\n1,"' + "x" * 5000)
    with pytest.raises(DataError, match=r"a.csv:2: a row of more than"):
        read(path, chunk_bytes=100)


@pytest.mark.parametrize("form", [*PAIRS, "csv", "tsv", "criteo", "jsonl"])
@pytest.mark.parametrize("labels", ["required", "none"])
def test_a_row_without_end_is_refused_before_it_takes_much_room(
    tmp_path, monkeypatch, form, labels
):
    """Room that is asked for counts, used or not: a machine may refuse it."""
    most = 1 << 20
    monkeypatch.setattr("ctrps.data.textfile.MAX_ROW_BYTES", most)
    text = FIRST.get(form, b"1 ") + b"1" * (5 * most)
    how = TextSettings(form, labels=labels)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"a row of more than 1 MiB begins here"):
            read(write(tmp_path / "a", text), how, chunk_bytes=most // 8)
        assert tracemalloc.get_traced_memory()[1] < 32 * most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("head", "name"),
    [(b"\xff\xfel\0", "UTF-16"), (b"PK\x03\x04", "zip"), (b"BZh9", "bzip2")],
)
def test_what_is_no_text_is_called_by_its_name(tmp_path, head, name):
    with pytest.raises(DataError, match=name):
        detect(write(tmp_path / "a.csv", head + b"xxxx"))


# detection


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("a", "1 3:1 7:0.5\n", "libsvm"),
        ("a", "\n\n-1\t3:1\n", "libsvm"),
        ("a", "3:1\n", "libsvm"),
        ("a.svm", "1\n0\n", "libsvm"),
        ("a.libsvm.gz", "1 4:1,5:1\n", "libsvm"),
        ("a", "label,user\n", "csv"),
        ("a.csv", "label\tuser\n", "tsv"),
        ("a.csv", "label\n", "csv"),
        ("a.tsv", "label,x\tuser\n", "tsv"),
    ],
)
def test_the_format_is_told_by_content_before_the_name(tmp_path, name, text, form):
    data = gzip.compress(text.encode()) if name.endswith(".gz") else text
    found = detect(write(tmp_path / name, data))
    assert found.format == form
    assert found.why


def test_a_format_that_cannot_be_told_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"data\.format"):
        detect(write(tmp_path / "a", "label\n1\n"))


# patterns


def test_patterns_are_sorted_and_each_file_comes_once(tmp_path):
    for name in ("b-2.csv", "b-1.csv", "a.csv", ".hidden.csv", "[x].csv"):
        write(tmp_path / name, "")
    (tmp_path / "sub").mkdir()

    def names(*patterns):
        return [path.name for path in expand([tmp_path / pattern for pattern in patterns])]

    assert names("b-*.csv", "a.csv", "b-1.csv") == ["b-1.csv", "b-2.csv", "a.csv"]
    assert names("[x].csv") == ["[x].csv"]
    assert names(".") == ["[x].csv", "a.csv", "b-1.csv", "b-2.csv"]


def test_a_pattern_without_files_names_the_folder_and_the_nearest_file(tmp_path):
    write(tmp_path / "train-0.csv", "")
    with pytest.raises(DataError) as caught:
        expand([tmp_path / "trian-*.csv"])
    assert str(caught.value) == (
        f"{tmp_path}/trian-*.csv: no file matches this pattern; "
        f"looked in {tmp_path}, where 'train-0.csv' is nearest"
    )
    with pytest.raises(DataError, match="no such file"):
        expand([tmp_path / "x.csv"])
    with pytest.raises(DataError, match="there is no folder"):
        expand([tmp_path / "none" / "*.csv"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no files in this folder"):
        expand([tmp_path / "empty"])


# conversion


TABLE = "label,c\n1,x\n0,y\n1,x\n"


def test_text_is_converted_once_and_again_when_it_changes(tmp_path):
    path, cache = write(tmp_path / "a.csv", TABLE), tmp_path / "cache"
    seen = []
    how = TextSettings(block_rows=2)
    (made,) = to_shards([path], how, cache, lambda *args: seen.append(args))
    shard = Shard(made)
    assert (shard.rows, shard.block_rows.tolist()) == (3, [2, 1])
    assert seen == [(path, 3, len(TABLE), len(TABLE))]
    before = made.stat().st_mtime_ns
    assert to_shards([path], how, cache) == [made]
    assert to_shards([path], dataclasses.replace(how, max_bad=0.5), cache) == [made]
    assert made.stat().st_mtime_ns == before

    write(path, TABLE + "0,z\n")
    (changed,) = to_shards([path], how, cache)
    assert (Shard(changed).rows, made.exists()) == (4, False)
    os.utime(path, ns=(1, 1))
    (touched,) = to_shards([path], how, cache)
    assert touched != changed
    (other,) = to_shards([path], dataclasses.replace(how, ignore=("c",)), cache)
    assert Shard(other).schema.slots == ()
    assert [p.name for p in cache.iterdir()] == [other.name]


def test_a_broken_shard_in_the_cache_is_made_again(tmp_path):
    path, cache = write(tmp_path / "a.csv", TABLE), tmp_path / "cache"
    (made,) = to_shards([path], CSV, cache)
    whole = made.read_bytes()
    made.write_bytes(whole[:-3])
    assert to_shards([path], CSV, cache) == [made]
    assert made.read_bytes() == whole


def test_files_of_one_name_in_two_folders_have_two_shards(tmp_path):
    paths = []
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        paths.append(write(tmp_path / folder / "a.csv", TABLE))
    made = to_shards(paths, CSV, tmp_path / "cache")
    assert len({*made}) == 2
    assert to_shards(paths, CSV, tmp_path / "cache") == made


def test_a_shard_stands_for_itself(tmp_path):
    schema, rows = read(write(tmp_path / "a.csv", TABLE))
    path = tmp_path / "b.shard"
    with ShardWriter(path, schema, 2) as writer:
        writer.add(rows)
    assert to_shards([path], TextSettings(), tmp_path / "cache") == [path]
    assert not (tmp_path / "cache").exists()
    again = joined([*read_rows(path, TextSettings(), BadRows())])
    assert again.keys.tolist() == rows.keys.tolist()


def test_bad_rows_are_judged_over_all_files_and_kept_with_the_cache(tmp_path):
    cache = tmp_path / "cache"
    good = write(tmp_path / "a.csv", TABLE)
    dirty = write(tmp_path / "b.csv", "label,c\n1,x\n2,y\n0\n")
    with pytest.raises(DataError, match=r"b.csv:3:1"):
        to_shards([good, dirty], CSV, cache)
    how = dataclasses.replace(CSV, max_bad=0.4)
    for _ in range(2):  # made, then found
        bad = BadRows(how.max_bad)
        made = to_shards([good, dirty], how, cache, bad=bad)
        assert [Shard(path).rows for path in made] == [3, 1]
        assert (bad.count, bad.first[0].line) == (2, 3)
        assert made[1].with_suffix(".rejected.tsv").read_text().count("\n") == 2
    for share in (0.3, 0.0):
        with pytest.raises(DataError, match=r"2 of 6 rows are bad .*b.csv:3:1"):
            to_shards([good, dirty], dataclasses.replace(CSV, max_bad=share), cache)
    made[1].with_suffix(".rejected.tsv").unlink()
    bad = BadRows(1.0)
    to_shards([dirty], how, cache, bad=bad)
    assert bad.count == 2


def test_too_many_bad_rows_stop_long_before_the_end(tmp_path):
    # Kernels report 256 bad rows per call; 2 bytes are the shortest row, so 1 % of 30,000 is near.
    path = write(tmp_path / "a.csv", "label\n" + "2\n" * 30_000)
    bad = BadRows(0.01)
    with pytest.raises(DataError, match="of at most 300"):
        to_shards([path], dataclasses.replace(CSV, max_bad=0.01), tmp_path / "cache", bad=bad)
    assert bad.count < 10_000
    assert not list((tmp_path / "cache").glob("*.shard*"))


def test_no_rows_at_all_is_an_error_but_an_empty_part_is_not(tmp_path):
    full, empty = write(tmp_path / "a.csv", TABLE), write(tmp_path / "b.csv", "")
    header = write(tmp_path / "c.csv", "label,c\n")
    assert len(to_shards([full, empty, header], TextSettings(), tmp_path / "cache")) == 1
    with pytest.raises(DataError, match=r"no examples in .*b.csv, .*c.csv"):
        to_shards([empty, header], TextSettings(), tmp_path / "cache")


def test_files_of_one_job_have_the_same_columns(tmp_path):
    one, other = write(tmp_path / "a.csv", TABLE), write(tmp_path / "b.csv", "label,d\n1,x\n")
    with pytest.raises(DataError, match=r"b.csv: its columns are not those of .*'c', 'd'"):
        to_shards([one, other], CSV, tmp_path / "cache")


def test_a_file_that_grows_meanwhile_is_refused(tmp_path):
    path = write(tmp_path / "a.csv", TABLE)

    def grow(*_):
        write(path, TABLE * 2)

    with pytest.raises(DataError, match="changed while it was read"):
        to_shards([path], CSV, tmp_path / "cache", grow)
    assert not list((tmp_path / "cache").glob("*.shard"))


def test_a_missing_file_is_a_data_error(tmp_path):
    for form in ("auto", "csv", "libsvm", "shard"):
        with pytest.raises(DataError, match="No such file"):
            to_shards([tmp_path / "a.csv"], TextSettings(form), tmp_path / "cache")
    with pytest.raises(DataError, match="Is a directory"):
        TextFile(tmp_path)
