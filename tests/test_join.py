"""Tables, join files, and samples against a slow twin."""

import gzip
import io
import itertools
import tarfile
import zoneinfo
from pathlib import Path

import numpy as np
import pytest

from ctrps.data.badrows import BadRows
from ctrps.data.days import local_time
from ctrps.data.joinfile import load_plan
from ctrps.data.samples import make_samples
from ctrps.data.tables import Columns, RawTable, find_table, read_columns
from ctrps.errors import ConfigError, DataError
from ctrps.kernels import tables
from ctrps.kernels.copying import WRITTEN_OVER
from tests import naive_data2 as naive

LOG = (
    "user,time_stamp,ad,clk\n1,1494604799,7,0\n2,1494604800,8,1\n3,1494000000,9,0\n"
    "1,1494691200,7,0\n"
)
ADS = "ad,cate,brand\n7,10,NULL\n8,11,b\n"
USERS = "userid,age ,city \n1,3,\n2,,x\n"
PLAN = """
impressions: {table: log, time: time_stamp, zone: Asia/Shanghai}
joins:
  - {table: ads, on: ad}
  - {table: users, on: user, key: userid}
derived:
  flag: {constant: 0}
  hour: {time: hour}
split:
  train: {first: 2017-05-06, last: 2017-05-12}
  test: {first: 2017-05-13, last: 2017-05-13}
"""


@pytest.fixture
def raw(tmp_path):
    """A folder of tables, and functions of it."""
    return Raw(tmp_path)


class Raw:
    def __init__(self, folder):
        self.folder = folder / "raw"
        self.folder.mkdir()
        self.out = folder / "out"
        for name, text in (("log", LOG), ("ads", ADS), ("users", USERS)):
            self.write(name, text)
        self.plan_file = folder / "join.yaml"
        self.plan(PLAN)

    def write(self, name, text, ending=".csv"):
        for path in self.folder.glob(f"{name}.*"):
            path.unlink()
        data = text if isinstance(text, bytes) else text.encode()
        (self.folder / f"{name}{ending}").write_bytes(data)

    def plan(self, text):
        self.plan_file.write_text(text)

    def join(self, bad=None, **options):
        """Lines of every part, and the counts."""
        self.out = self.out.with_name(self.out.name + "+")
        self.out.mkdir()
        bad = bad or BadRows()
        counts = make_samples(self.folder, load_plan(self.plan_file), self.out, bad, **options)
        parts = {path.stem: path.read_bytes().decode() for path in sorted(self.out.iterdir())}
        return {name: text.removesuffix("\n").split("\n") for name, text in parts.items()}, counts

    def rejects(self, message, **options):
        with pytest.raises(DataError, match=message):
            self.join(**options)


def test_samples(raw):
    parts, counts = raw.join()
    header = "user\ttime_stamp\tad\tclk\tflag\thour\tcate\tbrand\tage\tcity"
    assert parts == {
        "train-00000": [
            header,
            "1\t1494604799\t7\t0\t0\t23\t10\tNULL\t3\t",
            "3\t1494000000\t9\t0\t0\t0\t\t\t\t",
        ],
        "test-00000": [header, "2\t1494604800\t8\t1\t0\t0\t11\tb\t\tx"],
    }
    assert (counts.train, counts.test, counts.outside, counts.read) == (2, 1, 1, 8)
    assert counts.unmatched == {"ads": 1, "users": 1}


def test_columns_in_the_order_asked(raw):
    raw.plan(PLAN + "columns: [clk, users.userid, city, ads.ad]")
    # `ad` names a column of two tables, `ads.ad` one.
    parts, _ = raw.join()
    assert parts["train-00000"] == ["clk\tuserid\tcity\tad", "0\t1\t\t7", "0\t\t\t"]


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tar.gz"])
@pytest.mark.parametrize("content", ["plain", "gzip", "tar", "tar.gz", "members"])
def test_content_decides_and_not_the_name(raw, ending, content):
    wanted, _ = raw.join()
    data = LOG.encode()
    if "tar" in content:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, text in (("./._raw.csv", b"\0"), ("data/raw.csv", data), ("notes.txt", b"x")):
                member = tarfile.TarInfo(name)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
        data = packed.getvalue()
    if content == "members":
        data = gzip.compress(data[:50]) + gzip.compress(data[50:])
    elif content in ("gzip", "tar.gz"):
        data = gzip.compress(data)
    raw.write("log", data, ending)
    assert raw.join()[0] == wanted


def test_tar_with_two_tables(raw):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("a.csv", "b.csv"):
            member = tarfile.TarInfo(name)
            member.size = len(LOG)
            archive.addfile(member, io.BytesIO(LOG.encode()))
    raw.write("log", packed.getvalue(), ".tar.gz")
    raw.rejects(r"log\.tar\.gz: .*more than one \.csv: a\.csv and b\.csv")


def test_tar_without_a_table(raw):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("readme"), io.BytesIO())
    raw.write("log", packed.getvalue(), ".tar.gz")
    raw.rejects(r"log\.tar\.gz: the archive holds no \.csv file")


def test_tar_cut_short(raw):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("a.csv")
        member.size = 100_000
        archive.addfile(member, io.BytesIO(LOG.encode() * 2000))
    raw.write("log", packed.getvalue()[:50_000], ".tar.gz")
    raw.rejects(r"log\.tar\.gz/a.csv: damaged archive")


def test_gzip_cut_short(raw):
    raw.write("log", gzip.compress(LOG.encode() * 50)[:-20], ".csv.gz")
    raw.rejects("log.csv.gz: the compressed data ends early")


def test_table_that_is_not_there(raw):
    raw.write("log", "", ".cvs")
    raw.rejects(r"no table log\{.csv,.csv.gz,.csv.zst,.tar.gz,.parquet\}; there is log.cvs")


def test_table_that_is_there_twice(raw):
    (raw.folder / "ads.csv.gz").write_bytes(gzip.compress(ADS.encode()))
    raw.rejects("both ads.csv and ads.csv.gz are there")


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"no such folder; sample\.dir"):
        find_table(tmp_path / "none", "log")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LOG.replace("2,1494604800", "2,x"),
            r"log.csv:3:3: time_stamp: .*whole seconds.*found 'x'",
        ),
        (LOG.replace("2,1494604800", "2,"), r"log.csv:3:3: time_stamp: .*, found ''"),
        (LOG.replace("2,1494604800", "2,1.5e9"), r"log.csv:3:3: time_stamp: .*found '1.5e9'"),
        (LOG.replace("2,1494604800,8", "2,1494604800"), "log.csv:3:1: expected 4 fields"),
        (LOG.replace("2,1494604800,8", "2,1494604800,8,8"), "log.csv:3:1: expected 4 fields"),
        (LOG.replace("2,1494604800,8", '2,1494604800,"8"8'), "log.csv:3:17: .*closing quote"),
        (LOG.replace("2,1494604800,8", '2,1494604800,"8'), "log.csv:3:14: .*not closed"),
        (LOG.replace("2,1494604800,8", "2,1494604800,8\t8"), r"log.csv:3:1: .*without tab"),
        (LOG.replace("2,1494604800,8", '2,1494604800,"8\n8"'), r"log.csv:3:1: .*without tab"),
        (LOG.replace("2,1494604800,8", "2,1494604800,8\r8"), r"log.csv:3:1: .*without tab"),
    ],
)
def test_bad_rows_stop_with_their_place(raw, text, message):
    raw.write("log", text)
    raw.rejects(message)


def test_bad_rows_are_counted_and_the_others_kept(raw):
    raw.write("log", LOG + "x\n4,zz,7,0\n1,1494604799,9\t9,0\n3,1494604798,8,1\n")
    bad = BadRows(0.5)
    parts, counts = raw.join(bad)
    assert [row.line for row in bad.first] == [6, 8, 7]
    assert (counts.rejected, counts.train, counts.read) == (3, 3, 12)
    assert parts["train-00000"][-1].startswith("3\t1494604798\t8\t1")


def test_too_many_bad_rows(raw):
    raw.write("log", LOG + "x\n" * 3)
    raw.rejects("3 of 11 rows are bad", bad=BadRows(0.2))


def test_bad_row_of_a_joined_table(raw):
    raw.write("ads", ADS + "9,1\n")
    raw.rejects("ads.csv:4:1: expected 3 fields")


def test_key_that_comes_twice(raw):
    raw.write("ads", "ad,cate,brand\n\n7,10,x\n8,11,b\n\n7,12,y\n")
    raw.rejects("ads.csv:6:1: ad '7' stands in lines 3 and 6; .*duplicates: first")
    raw.plan(PLAN.replace("on: ad}", "on: ad, duplicates: first}"))
    parts, _ = raw.join()
    assert parts["train-00000"][1].split("\t")[6:8] == ["10", "x"]


def test_quotes_line_ends_mark_and_blanks(raw):
    wanted, _ = raw.join()
    quoted = LOG.replace("user,time_stamp", '\ufeff"user", "time_stamp" ').replace("7,0", '"7","0"')
    raw.write("log", quoted.replace("\n", "\r\n").removesuffix("\r\n"))
    assert raw.join()[0] == wanted


def test_doubled_quotes_and_commas_in_values(raw):
    raw.write("ads", 'ad,cate,brand\n7,"a,""b""",#|\n')
    parts, _ = raw.join()
    assert parts["train-00000"][1].split("\t")[6:8] == ['a,"b"', "#|"]


def test_empty_tables(raw):
    raw.write("ads", "ad,cate,brand\n")
    parts, counts = raw.join()
    assert counts.unmatched["ads"] == 3 and parts["train-00000"][1].split("\t")[6:8] == ["", ""]
    raw.write("ads", "")
    raw.rejects("ads.csv: the file is empty")


@pytest.mark.parametrize(
    ("header", "message"),
    [("user,tim_stamp,ad,clk", "no column 'time_stamp'; did you mean 'tim_stamp'"),
     ("user,time_stamp,user,clk", "two columns are named 'user'"),
     ("user,time_stamp,,clk", "column 3 of the header has no name"),
     ("user,time_stamp,aid,clk", "no column 'ad'; did you mean 'aid'")],
)  # fmt: skip
def test_header(raw, header, message):
    raw.write("log", LOG.replace("user,time_stamp,ad,clk", header))
    raw.rejects(message)


def test_no_row_on_the_days(raw):
    raw.plan(PLAN.replace("2017", "2018"))
    raw.rejects("none of its rows is on the days of the split; 4 are on others")


def test_without_split_every_row_is_for_training(raw):
    raw.plan("impressions: {table: log}")
    parts, counts = raw.join()
    assert counts.train == 4 and list(parts) == ["train-00000"]
    assert parts["train-00000"] == LOG.replace(",", "\t").removesuffix("\n").split("\n")


def test_time_stamps_that_cannot_be(raw):
    raw.write("log", LOG + "1,-5,7,0\n1,99999999999,7,0\n1,999999999999999999999,7,0\n")
    bad = BadRows(0.5)
    _, counts = raw.join(bad)
    assert (counts.outside, bad.count) == (3, 1)


# against the twin


def random_log(rng, n):
    for _ in range(n):
        time = 1494000000 + int(rng.integers(-200_000, 900_000))
        yield f"{rng.integers(0, 9)},{time},{rng.integers(0, 9)},{rng.integers(0, 2)}\n"


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "UTC", "America/New_York", "Asia/Kathmandu"])
def test_random_rows_by_the_twin(raw, zone):
    rng = np.random.default_rng(7)
    log = "user,time_stamp,ad,clk\n" + "".join(random_log(rng, 500))
    raw.write("log", log)
    raw.plan(
        PLAN.replace("Asia/Shanghai", zone).replace(
            "flag: {constant: 0}", "d: {time: day}\n  w: {time: workday}"
        )
    )
    plan = load_plan(raw.plan_file)
    header, rows = naive.read_table(log)
    sides = [
        (join, *naive.read_table(text)) for join, text in zip(plan.joins, (ADS, USERS), strict=True)
    ]
    wanted = {"train": [], "test": []}
    for row in rows:
        kind = naive.kind_of(plan, row[1])
        if kind:
            wanted[kind].append("\t".join(naive.join_row(plan, header, row, sides).values()))
    parts, _ = raw.join(shuffle=False, chunk_bytes=1000)
    assert parts["train-00000"][1:] == wanted["train"]
    assert parts["test-00000"][1:] == wanted["test"]


def test_pieces_and_parts_do_not_matter(raw, monkeypatch):
    raw.write(
        "log", "user,time_stamp,ad,clk\n" + "".join(random_log(np.random.default_rng(2), 800))
    )
    monkeypatch.setattr("ctrps.data.deal.PART_BYTES", 4000)
    monkeypatch.setattr("ctrps.data.deal.PART_ROWS", 60)
    monkeypatch.setattr("ctrps.data.tables.PIECE_ROWS", 37)
    small, counts = raw.join(chunk_bytes=256)
    monkeypatch.setattr("ctrps.data.tables.PIECE_ROWS", 1 << 16)
    large, again = raw.join()
    assert small == large and counts == again
    assert len(small) > 4
    in_order, _ = raw.join(shuffle=False)
    assert sorted(rows_of(small, "train")) == sorted(rows_of(in_order, "train"))
    assert rows_of(small, "train") != rows_of(in_order, "train")
    assert rows_of(small, "test") == rows_of(in_order, "test")
    other, _ = raw.join(seed=2)
    assert rows_of(other, "train") != rows_of(small, "train")


def rows_of(parts, kind):
    return [line for name, part in parts.items() if name.startswith(kind) for line in part[1:]]


def test_local_time_over_a_change_of_clocks():
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    times = np.arange(1509230000, 1509245000, 700)  # 2017-10-29, when clocks went back
    days, seconds = local_time(times, zone)
    for time, day, second in zip(times, days, seconds, strict=True):
        at = naive.datetime.datetime.fromtimestamp(int(time), zone)
        assert second == at.hour * 3600 + at.minute * 60 + at.second
        assert day == (at.date() - naive.datetime.date(1970, 1, 1)).days


def column(texts):
    columns = Columns.of_texts(texts)
    return columns.data, columns.starts[:, 0].copy(), columns.ends[:, 0].copy()


def test_split_plain():
    rng = np.random.default_rng(8)
    for trial in range(300):
        lines = [
            b",".join(bytes(rng.choice(list(b"ab 9"), rng.integers(0, 30))) for _ in range(3))
            for _ in range(rng.integers(0, 12))
        ]
        if lines and trial % 3:
            strange = [b"", b"a", b"a,b", b"a,b,c,d", b'a,"b",c', b"a,\t,c", b"a,b,c\r", b"a,b\r,c"]
            lines[rng.integers(0, len(lines))] = strange[rng.integers(0, len(strange))]
        data = b"\n".join(lines) + b"\n" * int(rng.integers(0, 2))
        for columns, room in ((3, 20), (3, 2), (1, 20)):
            starts, ends = np.empty((2, room, columns), np.int32)
            text = np.frombuffer(bytearray(data), np.uint8)
            done, rows = tables.split_plain(text, np.uint8(44), starts, ends)
            pairs = zip(starts[:rows], ends[:rows], strict=True)
            found = [[data[a:b] for a, b in zip(*row, strict=True)] for row in pairs]
            assert found == naive.split_plain(data, columns, room)
            assert data[:done] == b"".join(b",".join(row) + b"\n" for row in found)


def test_take_fields():
    rng = np.random.default_rng(6)
    rows, found = rng.integers(-1, 9, 30), np.empty((2, 30), np.int64)
    for kind in (np.int32, np.int64):
        starts, ends = rng.integers(0, 99, (2, 9, 4)).astype(kind)
        tables.take_fields(starts, ends, rows, 2, *found)
        wanted = naive.take_fields(starts.tolist(), ends.tolist(), rows.tolist(), 2)
        assert list(zip(*found.tolist(), strict=True)) == wanted


def test_hash_fields():
    texts = ["", "a", "00", "0", "é" * 40]
    out = np.empty(5, np.uint64)
    tables.hash_fields(*column(texts), out)
    assert out.tolist() == naive.hash_fields(texts)


def test_parse_times():
    texts = ["0", "", "-", "-5", "12a", " 1", "1494000000", "1.5", "+1", "1099511627776",
             "1099511627777", "9" * 30, "--1", "007"]  # fmt: skip
    out, good = np.empty(len(texts), np.int64), np.empty(len(texts), np.bool_)
    tables.parse_times(*column(texts), out, good)
    wanted = naive.parse_times(texts)
    assert out.tolist() == [time or 0 for time in wanted]
    assert good.tolist() == [time is not None for time in wanted]


def test_copy_fields():
    texts, at = ["ab", "", "cde"], [7, 0, 1]
    out = np.full(10, ord("."), np.uint8)
    tables.copy_fields(*column(texts), out, np.array(at))
    assert bytes(out).decode() == naive.copy_fields(texts, "." * 10, at)


def fields_of(table, rng, kind):
    """Data, and borders of the fields of each row: one behind the other, or apart."""
    data, starts, ends = bytearray(), [], []
    for row in table:
        apart = 1 + int(rng.integers(0, 2))
        for field in row:
            data += b"," * apart
            starts.append(len(data))
            data += field
            ends.append(len(data))
    borders = (np.array(b, kind).reshape(len(table), -1) for b in (starts, ends))
    return np.frombuffer(data, np.uint8), *borders


def strips_of(table, first, count, rng):
    text = np.empty(sum(len(f) + 1 for row in table for f in row) + 40, np.uint8)
    begins = np.empty(len(table) + 2, np.int64)
    tables.strips_text(*fields_of(table, rng, np.int64), first, count, text, begins)
    return text, begins


def random_table(rng, width):
    return [[b"x" * int(n) for n in rng.integers(0, 50, width)] for _ in range(5)]


def test_strips():
    rng = np.random.default_rng(4)
    table = random_table(rng, 3)
    text, begins = strips_of(table, 1, 2, rng)
    found = [bytes(text[a:b]) for a, b in itertools.pairwise(begins)]
    assert found == naive.strips_text(table, 1, 2)


def test_lines():
    """Lines of two tables that are held, and of one that is read."""
    rng = np.random.default_rng(3)
    tables_ = [random_table(rng, width) for width in (2, 1, 3)]
    matches = np.stack([rng.integers(low, 5, 40) for low in (-1, -1, 0)])
    places = [(2, 0, 2), (0, 0, 2), (1, 0, 1), (2, 2, 1), (0, 1, 1)]
    held = {p: strips_of(tables_[p[0]], *p[1:], rng) for p in places if p[0] < 2}
    strips = np.array(
        [
            (p[0], *(a.ctypes.data for a in held[p]), 5) if p in held else (p[0], 0, *p[1:])
            for p in places
        ]
    )
    data, *borders = fields_of(tables_[2], rng, np.int32)
    order, sizes = rng.permutation(40)[:30], np.empty(30, np.int64)
    tables.lines_size(strips, matches, *borders, order, sizes)
    columns = [(table, c) for table, first, count in places for c in range(first, first + count)]
    assert sizes.tolist() == naive.lines_size(tables_, matches, columns, order)
    out = np.empty(sizes.sum() + WRITTEN_OVER, np.uint8)
    tables.lines_text(strips, matches, data, *borders, order, out)
    wanted = naive.lines_text(tables_, matches, columns, order)
    assert out[: sizes.sum()].tobytes() == b"".join(wanted)


def test_deal_rows():
    out = np.empty(1000, np.int64)
    tables.deal_rows(5, np.uint64(3), 7, out)
    assert out.tolist() == naive.deal_rows(5, 3, 7, 1000)
    assert np.bincount(out).min() > 100


# the table reader


def test_columns_in_memory(raw):
    with RawTable(raw.folder / "users.csv", BadRows()) as table:
        columns = read_columns(table, ["city", "userid"])
    texts = [
        [bytes(columns.data[a:b]) for a, b in zip(starts, ends, strict=True)]
        for starts, ends in zip(columns.starts, columns.ends, strict=True)
    ]
    assert texts == [[b"", b"1"], [b"x", b"2"]]
    assert [columns.line(row) for row in range(2)] == [2, 3]


# join files


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("table: log", "tabel: log", r"2:15: unknown key 'tabel'; did you mean table\?"),
        ("table: log, ", "", "2:1: impressions.table is missing"),
        ("derived:", "derive:", r"6:1: unknown key 'derive'; did you mean derived\?"),
        ("{time: hour}", "{time: hours}", "8:10: derived.hour.time: "),
        ("{time: hour}", "{time: hour, constant: 1}", "8:3: derived.hour: needs one of"),
        ("2017-05-12", "2017-05-32", "10:30: split.train.last: "),
        ("last: 2017-05-12", "last: 2017-05-02", "10:3: split.train: ends on 2017-05-02, before"),
        ("last: 2017-05-12", "last: 2017-05-13", "9:1: split: train and test days overlap"),
        ("Asia/Shanghai", "Asia/Shangai", r"did you mean Asia/Shanghai\?"),
        (", zone: Asia/Shanghai", "", "need impressions.time and impressions.zone"),
        ("on: ad}", "on: ad, duplicates: last}", "4:26: joins.0.duplicates: "),
        ("derived:", "derived: &x", None),
        ("flag: {constant: 0}", "flag: &a {constant: 0}\n  more: *a", "aliases are not read"),
        ("split:", "joins: []\nsplit:", "joins is given twice"),
        ("split:", "split: [", "not YAML"),
    ],
)
def test_join_file(raw, old, new, message):
    raw.plan(PLAN.replace(old, new, 1))
    if message is None:
        load_plan(raw.plan_file)
        return
    with pytest.raises(ConfigError, match=message):
        load_plan(raw.plan_file)


@pytest.mark.parametrize(
    ("columns", "message"),
    [("[usr]", "no table has a column 'usr'; there are user, "),
     ("[ad]", None), ("[age, log.ad]", None), ("[ads.clk]", "no table has a column 'ads.clk'")],
)  # fmt: skip
def test_columns_of_the_sample(raw, columns, message):
    raw.plan(f"{PLAN}columns: {columns}")
    if message is None:
        raw.join()
        return
    with pytest.raises(ConfigError, match=message):
        raw.join()


def test_name_that_two_tables_have(raw):
    raw.write("users", "userid,brand\n1,3\n")
    with pytest.raises(ConfigError, match=r"'brand'; write one of ads.brand, users.brand"):
        raw.join()
    raw.plan(PLAN + "columns: [user, users.brand]")
    assert raw.join()[0]["train-00000"] == ["user\tbrand", "1\t3", "3\t"]


def test_real_rows(shared, tmp_path):
    plan = Path(__file__).parents[1] / "conf" / "taobao_sample.yaml"
    source = shared / "data" / "taobao_ad_tiny" / "raw_schema"
    (tmp_path / "out").mkdir()
    counts = make_samples(source, load_plan(plan), tmp_path / "out", BadRows())
    assert (counts.train, counts.test, counts.rejected) == (100, 0, 0)
    assert counts.unmatched == {"ad_feature": 0, "user_profile": 8}
