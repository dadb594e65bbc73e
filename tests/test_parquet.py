"""Parquet against its csv twin: the same rows, keys, samples and scores; what cannot be read."""

import csv
import datetime
import gzip
import io
import struct
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.data.badrows import BadRows
from ctrps.data.convert import to_shards
from ctrps.data.detect import detect
from ctrps.data.formats import open_rows
from ctrps.data.joinfile import load_plan
from ctrps.data.parquet import TableText, text_bytes
from ctrps.data.reading import TextSettings
from ctrps.data.rewrite import rewrite, written_format
from ctrps.data.samples import make_samples
from ctrps.data.shards import Shard
from ctrps.errors import ConfigError, DataError
from ctrps.predict import Scores
from ctrps.scorefiles import write_scores

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def naive_text(value):
    """The text of a value, as docs/formats.md says."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"1" if value else b"0"
    if isinstance(value, datetime.datetime):
        ticks = (value.replace(tzinfo=datetime.UTC) - EPOCH) // datetime.timedelta(microseconds=1)
        sign, (seconds, rest) = "-" if ticks < 0 else "", divmod(abs(ticks), 10**6)
        return f"{sign}{seconds}.{rest:06d}".rstrip("0").rstrip(".").encode()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value)).encode()
    return str(value).encode()


def naive_csv(table):
    """A table as csv, every value in quotes."""
    columns = [[naive_text(value) for value in column.to_pylist()] for column in table.columns]
    rows = [[name.encode() for name in table.column_names], *zip(*columns, strict=True)]
    quoted = [b",".join(b'"' + text.replace(b'"', b'""') + b'"' for text in row) for row in rows]
    return b"".join(row + b"\n" for row in quoted)


def read_text(path, ignore=()):
    return b"".join(map(bytes, TableText(path, ignore).lines))


def fields(text):
    """Fields of csv text, by Python's own reader."""
    return list(csv.reader(io.StringIO(text.decode("latin-1"), newline="")))


def shard_bytes(path, folder, **how):
    settings = TextSettings(**how)
    (made,) = to_shards([path], settings, folder)
    shard = Shard(made)
    return shard.schema, [block.to_rows() for block in shard.blocks()]


def assert_same_rows(one, other):
    assert one[0] == other[0]
    for a, b in zip(one[1], other[1], strict=True):
        for name in ("keys", "counts", "dense", "labels"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert (a.ids is None) == (b.ids is None)
        for x, y in zip(a.ids or (), b.ids or (), strict=True):
            np.testing.assert_array_equal(x, y)


TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from('",\n\r\t '), max_size=6
)
WHOLE = st.integers(-(2**63), 2**63 - 1)
COLUMNS = {
    "text": (TEXT, pa.string()),
    "large": (TEXT, pa.large_string()),
    "coded": (TEXT, pa.dictionary(pa.int32(), pa.string())),
    "bytes": (st.binary(max_size=4), pa.binary()),
    "fixed": (st.binary(min_size=2, max_size=2), pa.binary(2)),
    "whole": (WHOLE, pa.int64()),
    "small": (st.integers(-128, 127), pa.int8()),
    "coded_whole": (WHOLE, pa.dictionary(pa.int8(), pa.int64())),
    "natural": (st.integers(0, 2**64 - 1), pa.uint64()),
    "flag": (st.booleans(), pa.bool_()),
    "whole_float": (st.integers(-(2**53) + 1, 2**53 - 1).map(float), pa.float64()),
    "eighths": (st.integers(-(10**6), 10**6).map(lambda n: n / 8), pa.float64()),
    "day": (st.dates(), pa.date32()),
    "time": (st.datetimes(), pa.timestamp("us")),
    "zoned": (st.datetimes(min_value=datetime.datetime(1900, 1, 1)), pa.timestamp("us", tz="UTC")),
    "money": (st.decimals(-(10**6), 10**6, places=2), pa.decimal128(12, 2)),
    "nothing": (st.none(), pa.null()),
}


@st.composite
def tables(draw):
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=5, unique=True))
    rows = draw(st.integers(1, 12))
    columns = {}
    for name in names:
        values, kind = COLUMNS[name]
        found = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[name] = pa.array(found, kind)
    return pa.table(columns)


@settings(deadline=None, max_examples=60)
@given(table=tables(), group=st.integers(1, 5))
def test_text_is_that_of_the_csv_twin(tmp_path_factory, table, group):
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    pq.write_table(table, path, row_group_size=group)
    assert fields(read_text(path)) == fields(naive_csv(table))
    assert text_bytes(path) == len(read_text(path))


@settings(deadline=None, max_examples=25)
@given(table=tables(), seed=st.integers(0, 99))
def test_rows_are_those_of_the_csv_twin(tmp_path_factory, table, seed):
    rng = np.random.default_rng(seed)
    table = table.append_column("label", pa.array(rng.integers(0, 2, len(table)) == 1))
    folder = tmp_path_factory.mktemp("t")
    pq.write_table(table, folder / "t.parquet")
    (folder / "t.csv").write_bytes(naive_csv(table))
    numeric = tuple(sorted({"small", "flag", "eighths"} & {*table.column_names}))
    id = next(iter({"text", "whole"} & {*table.column_names}), None)
    how = {"numeric": numeric, "id": id}
    found = [shard_bytes(folder / f"t.{end}", folder, **how) for end in ("parquet", "csv")]
    assert_same_rows(*found)


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (pa.array([0.1, 1e300, 5e-324, -0.0, None]), ["0.1", "1e+300", "5e-324", "0", ""]),
        (pa.array([0.1, 16777216.0, 3.5], pa.float32()), ["0.1", "16777216", "3.5"]),
        (pa.array([1.5, 0.25, None], pa.float16()), ["1.5", "0.25", ""]),
        (pa.array([float("nan"), float("inf")]), ["nan", "inf"]),
        (pa.array([1e10, 2.0**53, 0.5]), ["10000000000", "9.007199254740992e+15", "0.5"]),
        (pa.array([1500, -1500, -1, 7000], pa.timestamp("ms")), ["1.5", "-1.5", "-0.001", "7"]),
        (pa.array([10**18, 1, None], pa.timestamp("ns", tz="Asia/Shanghai")),
         ["1000000000", "0.000000001", ""]),
        (pa.array([1494604800], pa.timestamp("s")), ["1494604800"]),
        (pa.array([0, 17299 * 86_400_000], pa.date64()), ["1970-01-01", "2017-05-13"]),
        (pa.array([3661], pa.time32("s")), ["01:01:01.000"]),
        (pa.array([Decimal("1.50")]), ["1.50"]),
        (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])), ["{}"]),
    ],
)  # fmt: skip
def test_texts_of_values(tmp_path, column, texts):
    pq.write_table(pa.table({"x": column, "y": column}), tmp_path / "t.parquet")
    assert fields(read_text(tmp_path / "t.parquet"))[1:] == [[text, text] for text in texts]


def test_a_row_of_a_single_empty_value_is_a_row(tmp_path):
    pq.write_table(pa.table({"x": ["", None, "  ", "a"]}), tmp_path / "t.parquet")
    with open_rows(tmp_path / "t.parquet", TextSettings(labels="optional"), BadRows()) as source:
        assert sum(rows.rows for rows in source.rows) == 4


def test_names_with_dots_quotes_and_the_same_start(tmp_path):
    table = pa.table({"a.b": [1], "a": [2], 'q"': [3], "c,d": [4], "a.c": [5]})
    pq.write_table(table, tmp_path / "t.parquet")
    text = read_text(tmp_path / "t.parquet", ignore=["a.c"])
    assert fields(text) == [["a.b", "a", 'q"', "c,d"], list("1234")]


def test_two_columns_of_one_name(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, ["x", "x"]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="two columns are named 'x'"):
        open_rows(tmp_path / "t.parquet", TextSettings(labels="none"), BadRows())


def test_a_column_of_lists_must_be_left_out(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": [[1]], "label": [1], "y": ["a"]}), path)
    with pytest.raises(DataError, match=r"t\.parquet: column 'x' holds list.*data\.ignore"):
        open_rows(path, TextSettings(), BadRows())
    schema, _ = shard_bytes(path, tmp_path, ignore=("x",))
    assert schema.slots == ("y",)


def test_names_of_a_file_come_before_data_columns(tmp_path):
    pq.write_table(pa.table({"label": [1], "y": ["a"]}), tmp_path / "t.parquet")
    schema, _ = shard_bytes(tmp_path / "t.parquet", tmp_path, columns=("z", "label"))
    assert schema.slots == ("y",)


def test_a_bad_row_has_the_line_of_the_csv_twin(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"label": [1, 0, 7], "y": ["a", "b", "c"]}), path)
    with pytest.raises(DataError, match=r"t\.parquet:4:1: expected a label 0, 1, -1 or \+1"):
        to_shards([path], TextSettings(), tmp_path)


def test_a_large_row_group_is_read_piece_by_piece(tmp_path):
    numbers = np.arange(100_000)
    pq.write_table(
        pa.table({"a": numbers, "b": numbers}), tmp_path / "t.parquet", row_group_size=200_000
    )
    pieces = list(TableText(tmp_path / "t.parquet").lines)
    assert len(pieces) > 10
    assert b"".join(map(bytes, pieces)).count(b"\n") == 100_001


def test_format(tmp_path):
    pq.write_table(pa.table({"label": [1], "y": ["a"]}), tmp_path / "t.csv")
    assert detect(tmp_path / "t.csv") == ("parquet", "it starts as Parquet files do")
    with pytest.raises(DataError, match=r"it is Parquet, and data\.format says csv"):
        open_rows(tmp_path / "t.csv", TextSettings(format="csv"), BadRows())
    (tmp_path / "text.parquet").write_text("label,y\n1,a\n")
    with pytest.raises(DataError, match="it is no Parquet: that begins with PAR1"):
        open_rows(tmp_path / "text.parquet", TextSettings(format="parquet"), BadRows())
    (tmp_path / "t.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    with pytest.raises(DataError, match="it is Parquet, packed once more; unpack it"):
        open_rows(tmp_path / "t.gz", TextSettings(), BadRows())
    assert written_format("a.parquet", None) == "parquet"
    with pytest.raises(ConfigError, match="Parquet cannot go to standard output"):
        written_format("-", "parquet")


def test_a_damaged_file_is_one_error_that_names_it(tmp_path):
    whole = tmp_path / "t.parquet"
    rng = np.random.default_rng(3)
    pq.write_table(
        pa.table({"label": rng.integers(0, 2, 3000), "y": rng.integers(0, 99, 3000).astype(str)}),
        whole,
        write_page_checksum=True,
    )
    data = whole.read_bytes()
    damaged = [data[:size] for size in (4, 5, 11, 400, len(data) - 9, len(data) - 1)]
    for at in rng.integers(4, len(data), 40):
        damaged.append(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
    footer = struct.pack("<I", 1 << 31)
    damaged.append(data[:-8] + footer + data[-4:])
    found = 0
    for i, content in enumerate(damaged):
        path = tmp_path / f"bad{i}.parquet"
        path.write_bytes(content)
        try:
            read_text(path)
        except DataError as error:
            found += 1
            assert str(error).startswith(f"{path}: ")
            assert "\n" not in str(error)
    # Some bytes of the footer mean nothing.
    assert found > 30


def test_without_pyarrow(tmp_path, monkeypatch):
    pq.write_table(pa.table({"label": [1]}), tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs the package pyarrow.*pip install 'ctrps\[parquet"):
        open_rows(tmp_path / "t.parquet", TextSettings(), BadRows())


def test_pyarrow_is_not_imported_before_it_is_needed():
    code = "import sys, ctrps.predict, ctrps.data.extract; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


# samples

PLAN = """
impressions: {table: log, time: time_stamp, zone: Asia/Shanghai}
joins: [{table: ads, on: ad}]
events: {behavior: {table: behavior, time: time_stamp}}
windows:
  seen: {take: count, by: user, over: 24 hours}
  ctr: {take: rate, hit: {clk: 1}, by: ad, over: 3 days}
  cates: {take: top, of: cate, most: 3, events: behavior, by: user, over: 2 days}
"""


def raw_tables(seed, rows):
    rng = np.random.default_rng(seed)
    first = 1494604800

    def times(n):
        return pa.array(first + rng.integers(0, 4 * 86400, n))

    users = pa.array([None, "a", "b", 'q"', ""]).take(pa.array(rng.integers(0, 5, rows)))
    log = {"user": users, "time_stamp": times(rows), "ad": rng.integers(0, 7, rows)}
    log |= {"clk": pa.array(rng.integers(0, 3, rows) == 0)}
    many = 4 * rows
    behavior = {"user": pa.array(["a", "b", "", None]).take(pa.array(rng.integers(0, 4, many)))}
    behavior |= {"time_stamp": times(many).cast(pa.timestamp("s"))}
    behavior |= {
        "cate": pa.array(rng.integers(0, 5, many), pa.int64(), mask=rng.random(many) < 0.1)
    }
    ads = {"ad": np.arange(6), "brand": pa.array(["x", None, "y"] * 2).dictionary_encode()}
    return {"log": pa.table(log), "behavior": pa.table(behavior), "ads": pa.table(ads)}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("plan", [PLAN, PLAN.partition("events:")[0]])
def test_samples_are_those_of_the_csv_twins(tmp_path, monkeypatch, shuffle, plan):
    monkeypatch.setattr("ctrps.data.deal.PART_BYTES", 5000)
    (tmp_path / "plan.yaml").write_text(plan)
    made = {}
    for ending in ("csv", "parquet"):
        raw, out = tmp_path / ending, tmp_path / f"out-{ending}"
        raw.mkdir()
        out.mkdir()
        for name, table in raw_tables(4, 700).items():
            if ending == "csv":
                (raw / f"{name}.csv").write_bytes(read_of(tmp_path, table))
            else:
                pq.write_table(table, raw / f"{name}.parquet", row_group_size=333)
        make_samples(raw, load_plan(tmp_path / "plan.yaml"), out, BadRows(), shuffle=shuffle)
        made[ending] = {path.name: path.read_bytes() for path in sorted(out.glob("*.tsv"))}
    assert made["csv"] == made["parquet"]
    assert len(made["csv"]) > 1 or not shuffle


def read_of(folder, table):
    """A table as csv, in quotes only where they are needed, as people write it."""
    rows = [[text.decode() for text in map(naive_text, row.values())] for row in table.to_pylist()]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([table.column_names, *rows])
    return out.getvalue().encode()


# out


@pytest.mark.parametrize(
    ("name", "text", "how"),
    [
        ("a.csv", "label,u,p,r\n1,a,0.5,r1\n,b,,r2\n0,,2,r3\n",
         {"numeric": ("p",), "id": "r", "labels": "optional"}),
        ("a.libsvm", "1 3:1 17:0.5\n0\n1 18446744073709551615:2.5e-1\n", {}),
        ("a.vw", "1 'r1|u a:0.5 |i:2 x y\n-1 'r2|u b |new z\n", {}),
        ("a.txt", "1,u:ann,t:a,t:b\n0,u:bob\n", {"format": "slots", "columns": ("label",)}),
        ("a.jsonl", '{"label": 1, "t": ["a", "b"]}\n{"label": 0, "t": []}\n', {}),
    ],
)  # fmt: skip
def test_keys_come_back_from_parquet(tmp_path, name, text, how):
    (tmp_path / name).write_text(text)
    settings = TextSettings(**how)
    for source, out in ((name, "k.parquet"), (name, "one.shard"), ("k.parquet", "two.shard")):
        again = settings if source == name else TextSettings(labels=settings.labels)
        rewrite([tmp_path / source], tmp_path / out, written_format(out, None), again)
    one, two = (Shard(tmp_path / f"{n}.shard") for n in ("one", "two"))
    assert one.schema == two.schema
    for a, b in zip(one.blocks(), two.blocks(), strict=True):
        a, b = a.to_rows(), b.to_rows()
        np.testing.assert_array_equal(a.keys, b.keys)
        np.testing.assert_array_equal(a.counts, b.counts)
        np.testing.assert_array_equal(a.labels, b.labels)
        np.testing.assert_array_equal(a.dense, b.dense)
        if a.values is not None:
            np.testing.assert_array_equal(a.values, b.values)
        assert (a.ids is None) == (b.ids is None)
    table = pq.read_table(tmp_path / "k.parquet")
    assert table.column_names[0] == "label" and {"slots", "keys"} < {*table.column_names}


def test_a_damaged_file_of_keys(tmp_path):
    (tmp_path / "a.csv").write_text("label,u\n1,a\n0,b\n")
    rewrite([tmp_path / "a.csv"], tmp_path / "k.parquet", "parquet", TextSettings())
    table = pq.read_table(tmp_path / "k.parquet")
    metadata = pq.ParquetFile(tmp_path / "k.parquet").metadata.metadata
    lists = {
        "slots": pa.array([[0], [9]], pa.list_(pa.uint16())),
        "keys": pa.array([[1, 2], [3]], pa.list_(pa.uint64())),
    }
    for name, column in lists.items():
        wrong = table.set_column(table.column_names.index(name), name, column)
        kept = {b"ctrps.schema": metadata[b"ctrps.schema"]}
        pq.write_table(wrong.replace_schema_metadata(kept), tmp_path / "w.parquet")
        with pytest.raises(DataError, match=r"w\.parquet: a damaged file of keys"):
            to_shards([tmp_path / "w.parquet"], TextSettings(), tmp_path)
    short = table.drop_columns(["keys"]).replace_schema_metadata(kept)
    pq.write_table(short, tmp_path / "w.parquet")
    with pytest.raises(DataError, match="no column 'keys'"):
        to_shards([tmp_path / "w.parquet"], TextSettings(), tmp_path)


def test_scores_as_parquet_are_those_of_the_csv(tmp_path):
    margins = np.linspace(-9, 9, 70_000, dtype=np.float32)
    labels = np.full(len(margins), np.nan, np.float32)
    ids = [f"r{i}é" for i in range(len(margins))]
    for names in (ids, None):
        pieces = [
            Scores(names and names[at : at + 999], margins[at : at + 999], labels[at : at + 999])
            for at in range(0, len(margins), 999)
        ]
        assert write_scores(pieces, tmp_path / "s.parquet") == len(margins)
        write_scores(pieces, tmp_path / "s.csv")
        table = pq.read_table(tmp_path / "s.parquet")
        assert table.column_names == (["id", "score"] if names else ["score"])
        rows = list(csv.reader(io.StringIO((tmp_path / "s.csv").read_text())))[1:]
        assert table["score"].to_pylist() == [float(row[-1]) for row in rows]
        assert not names or table["id"].to_pylist() == ids
    wrong = Scores(["\udcff"], margins[:1], labels[:1])
    with pytest.raises(DataError, match="a text is no UTF-8"):
        write_scores([wrong], tmp_path / "t.parquet")
    assert not (tmp_path / "t.parquet").exists()
    assert write_scores([], tmp_path / "s.parquet") == 0
    assert pq.read_table(tmp_path / "s.parquet").column_names == ["score"]
