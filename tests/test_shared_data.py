"""Every file of rows in ../shared/data reads without loss, with the rows that its README tells."""

import gzip
import re

import numpy as np
import pytest

from ctrps.data.badrows import BadRows
from ctrps.data.convert import to_shards
from ctrps.data.formats import open_rows
from ctrps.data.reading import TextSettings
from ctrps.data.rewrite import rewrite
from ctrps.data.rows import joined
from ctrps.data.shards import Shard
from ctrps.errors import CtrpsWarning
from ctrps.kernels.keys import key_of
from tests.procs import trained

UNNAMED = tuple(f"column {number}" for number in range(5, 9))
BUY = ("id", "click", "buy")

# File, settings, format, rows, clicks or None, slots, keys.
FILES = [
    ("a9a/a9a_123d_train.libsvm.gz", {}, "libsvm", 32_561, 7_841, 1, 451_592),
    ("a9a/a9a_123d_test.dummy", {}, "dummy", 16_281, 3_846, 1, 225_731),
    ("adult/adult.data.gz", {"label": "Y", "labels": "none"}, "csv", 32_561, None, 14, None),
    ("adult/adult.test.gz", {"label": "Y", "labels": "none"}, "csv", 16_281, None, 14, None),
    ("avazu_tiny/avazu_sample.txt", {"label": "click", "id": "id"}, "csv", 100, 20, 22, None),
    ("criteo_tiny/train.tiny.csv", {"label": "Label", "id": "Id"}, "csv", 1_999, 418, 39, None),
    ("criteo_tiny/test.tiny.csv", {"label": "Label", "id": "Id"}, "csv", 1_999, 0, 39, None),
    ("criteo_tiny/criteo_sample.txt", {}, "csv", 200, 49, 39, None),
    ("criteo_tiny/criteo1tb_head1000.tsv", {}, "criteo", 1_000, 21, 39, None),
    ("ipinyou_fm/train.fm.txt.gz", {}, "libsvm", 26_773, 255, 1, 26_773 * 16),
    ("ipinyou_fm/test.fm.txt.gz", {}, "libsvm", 21_150, 50, 1, 21_150 * 16),
    ("libffm_toy/small_train.txt", {}, "libffm", 200, 48, 18, 3_508),
    ("libffm_toy/small_test.txt", {}, "libffm", 200, 46, 18, 3_500),
    (
        "movielens_small/ratings.csv.gz",
        {"labels": "none", "ignore": UNNAMED, "numeric": ("rating",)},
        "csv", 100_004, None, 3, None,
    ),
    ("movielens_small/movies.csv", {"labels": "none"}, "csv", 9_125, None, 3, None),
    ("movielens_small/tags.csv", {"labels": "none"}, "csv", 1_296, None, 4, None),
    ("rcv1_vw_small/rcv1_small.dat.gz", {}, "vw", 1_000, 459, 1, 77_739),
    ("rcv1_vw_small/rcv1_small_test.data", {}, "vw", 500, 245, 1, 39_448),
    ("slot_formats/embedx_libsvm.txt.gz", {}, "libsvm", 300, 25, 1, 53_033),
    ("slot_formats/ali_ccp_train_sample.csv", {"label": "click"}, "csv", 100, 7, 32, None),
    ("slot_formats/aliexpress_train_sample.csv", {"label": "click"}, "csv", 100, 60, 81, None),
    (
        "slot_formats/paddle_slot_demo_10",
        {"format": "signs", "label": "1"},
        "signs", 10, 4, 270, 4_547 - 10,
    ),
    ("slot_formats/paddle_criteo_slot.txt", {"format": "slots"}, "slots", 100, 22, 2, 7_800),
    (
        "slot_formats/aliccp_esmm_small.txt",
        {"format": "slots", "columns": BUY, "label": "click", "id": "id", "ignore": ("buy",)},
        "slots", 10, 2, 22, 8_795,
    ),
    ("taobao_ad_tiny/train_sample.csv", {"label": "clk"}, "csv", 100, 4, 19 - 1, None),
    ("taobao_ad_tiny/test_sample.csv", {"label": "clk"}, "csv", 100, 4, 19 - 1, None),
    ("taobao_ad_tiny/raw_schema/raw_sample.csv", {"label": "clk"}, "csv", 100, 4, 5, None),
    ("taobao_ad_tiny/raw_schema/ad_feature.csv", {"labels": "none"}, "csv", 99, None, 6, None),
    ("taobao_ad_tiny/raw_schema/user_profile.csv", {"labels": "none"}, "csv", 23, None, 9, None),
    (
        "taobao_dmr_sample/alimama_sampled_train.txt",
        {"columns": (*(f"c{n}" for n in range(266)), "click"), "label": "click"},
        "csv", 500, 210, 266, None,
    ),
]  # fmt: skip
BANDIT = {"all": 80, "men": 34, "women": 46}
CLICKS = {
    ("random", "all"): 38, ("random", "men"): 46, ("random", "women"): 46,
    ("bts", "all"): 42, ("bts", "men"): 69, ("bts", "women"): 46,
}  # fmt: skip
FILES += [
    (
        f"obd_small/{policy}-{campaign}.csv.gz",
        {"label": "click", "ignore": ("column 1",)},
        "csv", 10_000, clicks, 8 + BANDIT[campaign], None,
    )
    for (policy, campaign), clicks in CLICKS.items()
]  # fmt: skip


def read(path, how):
    with open_rows(path, how, BadRows()) as source:
        rows = joined([*source.rows])
    return source, rows


@pytest.mark.parametrize("case", FILES, ids=[case[0] for case in FILES])
def test_a_file_of_rows_reads_without_loss(shared, case):
    name, how, form, rows, clicks, slots, keys = case
    source, found = read(shared / "data" / name, TextSettings(**how))
    assert (source.format, found.rows) == (form, rows)
    assert len(source.schema.slots) == slots
    assert found.counts.shape == (rows, slots)
    if clicks is None:
        assert np.isnan(found.labels).all()
    else:
        assert int(found.labels.sum()) == clicks
    assert len(found.keys) == (rows * slots if keys is None else keys)
    assert (found.ids is not None) == ("id" in how)


def test_one_job_trains_on_libsvm_from_1_and_tests_on_dummy_from_0(shared, tmp_path):
    folder = shared / "data" / "a9a"
    job = [
        f"data.train={folder}/a9a_123d_train.libsvm.gz",
        f"data.test={folder}/a9a_123d_test.dummy",
        f"output.dir={tmp_path}/run",
        "optimizer.alpha=0.3",
        "optimizer.l2=64",
        "train.passes=10",
    ]
    report = trained([*job, "data.zero_based=dummy"])["test"]
    assert report["auc"] == pytest.approx(0.902, abs=0.001)
    assert report["logloss"] == pytest.approx(0.3244, abs=0.002)
    with pytest.warns(CtrpsWarning, match=r"a9a_123d_test.dummy seems to count .* from 0"):
        assert trained(job, overwrite=True)["test"]["auc"] < 0.55


def text_of(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def test_ids_beyond_2_53_and_2_63_stay_what_they_are(shared):
    folder = shared / "data" / "slot_formats"
    _, rows = read(folder / "embedx_libsvm.txt.gz", TextSettings())
    written = re.findall(rb" (\d+):", text_of(folder / "embedx_libsvm.txt.gz"))
    assert rows.keys.tolist() == [int(key) for key in written]
    assert (rows.keys > 2**53).sum() == 6_452
    path = folder / "paddle_slot_demo_10"
    source, rows = read(path, TextSettings("signs", label="1"))
    pairs = re.findall(r"(\d+):(\d+)", path.read_text())
    expected = {key_of(slot, sign) for sign, slot in pairs if slot != "1"}
    assert {*rows.keys.tolist()} == expected
    assert {*source.schema.slots} == {slot for _, slot in pairs} - {"1"}
    assert sum(int(sign) >= 2**63 for sign, _ in pairs) == 2_275


def test_every_value_of_the_libffm_rows_is_kept(shared):
    path = shared / "data" / "libffm_toy" / "small_train.txt"
    _, rows = read(path, TextSettings())
    start = 0
    for row, line in enumerate(path.read_text().splitlines()):
        label, *triples = line.split()
        wanted = sorted(
            (int(field), place, int(key), np.float32(value))
            for place, (field, key, value) in enumerate(t.split(":") for t in triples)
        )
        size = len(triples)
        assert rows.labels[row] == int(label)
        assert rows.keys[start : start + size].tolist() == [key for _, _, key, _ in wanted]
        assert rows.values[start : start + size].tolist() == [v for *_, v in wanted]
        fields = np.repeat(np.arange(18), rows.counts[row]).tolist()
        assert fields == [field for field, *_ in wanted]
        start += size


def test_hashes_that_look_like_numbers_stay_texts(shared):
    path = shared / "data" / "criteo_tiny" / "criteo1tb_head1000.tsv"
    source, rows = read(path, TextSettings())
    keys = rows.keys.reshape(1_000, 39)
    for number, line in enumerate(path.read_text().splitlines()):
        fields = line.split("\t")
        for name, text in (("C1", fields[14]), ("C26", fields[39])):
            assert keys[number, source.schema.slots.index(name)] == key_of(name, text)


def test_the_same_rows_come_from_any_format(shared, tmp_path):
    folder = shared / "data"
    shards = {}
    for name in ("libffm_toy/small_train.txt", "rcv1_vw_small/rcv1_small_test.data"):
        (shards[name],) = to_shards([folder / name], TextSettings(), tmp_path / "cache")
    for name, shard in shards.items():
        _, rows = read(shard, TextSettings())
        for form in ("libsvm", "libffm", "vw"):
            out = tmp_path / f"out.{form}"
            rewrite([Shard(shard).path], out, form, TextSettings())
            source, again = read(out, TextSettings(form))
            np.testing.assert_array_equal(again.labels, rows.labels)
            sizes = again.counts.sum(axis=1), rows.counts.sum(axis=1)
            np.testing.assert_array_equal(*sizes)
            if form != "vw":
                np.testing.assert_array_equal(again.keys, rows.keys, err_msg=name)
                np.testing.assert_array_equal(again.values, rows.values)
            if form == "libffm":
                np.testing.assert_array_equal(again.counts, rows.counts)
            assert source.format == form
