"""Made-up logs: schema, determinism, and the truth they state."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from ctrps.data import synthetic
from ctrps.data.synthetic import expected_auc, generate

ROOT = Path(__file__).parents[1]
HEADERS = {
    "raw_sample": "user,time_stamp,adgroup_id,pid,nonclk,clk",
    "ad_feature": "adgroup_id,cate_id,campaign_id,customer,brand,price",
    "user_profile": "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,"
    "shopping_level,occupation,new_user_class_level ",
    "behavior_log": "user,time_stamp,btag,cate,brand",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    truth = generate(folder, rows=40_000, users=2000, ads=600, behaviors=20_000, seed=5)
    return folder, truth


def table(folder, name):
    lines = (folder / f"{name}.csv").read_text().split("\n")
    assert lines[0] == HEADERS[name] and lines[-1] == ""
    return list(csv.DictReader(lines))


def test_equal_arguments_give_equal_bytes(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate(tmp_path / name, rows=2000, users=100, ads=60, behaviors=500, seed=seed)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert sorted(files) == sorted([*(f"{name}.csv" for name in HEADERS), "truth.json"])
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert files.keys() == {path.name for path in (tmp_path / "c").iterdir()}
    assert files != {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}


def test_gzip_holds_the_same(tmp_path):
    generate(tmp_path / "a", rows=500, users=50, ads=40)
    generate(tmp_path / "b", rows=500, users=50, ads=40, compress=True)
    assert not (tmp_path / "a" / "behavior_log.csv").exists()
    for path in (tmp_path / "a").glob("*.csv"):
        packed = (tmp_path / "b" / f"{path.name}.gz").read_bytes()
        assert gzip.decompress(packed) == path.read_bytes()


def test_impressions(made):
    folder, truth = made
    rows = table(folder, "raw_sample")
    assert len(rows) == 40_000
    times = np.array([int(row["time_stamp"]) for row in rows])
    # 2017-05-06 to 2017-05-13 at UTC+8.
    assert 1494000000 <= times.min() and times.max() <= 1494691199
    clicks = np.array([int(row["clk"]) for row in rows])
    assert all(row["nonclk"] == str(1 - int(row["clk"])) for row in rows)
    assert 0.04 < clicks.mean() < 0.06
    test = times >= 1494604800
    assert (test.sum(), clicks[test].sum()) == (truth["test"]["rows"], truth["test"]["clicks"])
    assert (~test).sum() == truth["train"]["rows"]
    ads = {row["adgroup_id"] for row in table(folder, "ad_feature")}
    assert {row["adgroup_id"] for row in rows} <= ads and len(ads) == 600


def test_few_ads_and_users_get_most_impressions(made):
    rows = table(made[0], "raw_sample")
    for name in ("user", "adgroup_id"):
        counts = np.sort(np.unique([row[name] for row in rows], return_counts=True)[1])[::-1]
        assert counts[: len(counts) // 10].sum() > 0.3 * len(rows)


def test_gaps_of_the_real_tables(made):
    folder, _ = made
    profiles = table(folder, "user_profile")
    assert 0.92 * 2000 < len(profiles) < 0.97 * 2000
    assert len({row["userid"] for row in profiles}) == len(profiles)
    empty = {name: sum(row[name] == "" for row in profiles) / len(profiles) for name in profiles[0]}
    assert 0.45 < empty["pvalue_level"] < 0.65 and 0.2 < empty["new_user_class_level "] < 0.45
    assert empty["age_level"] == empty["final_gender_code"] == 0
    ads = table(folder, "ad_feature")
    assert 0.2 < sum(row["brand"] == "NULL" for row in ads) / len(ads) < 0.4
    assert all(float(row["price"]) > 0 for row in ads)


def test_behaviors(made):
    rows = table(made[0], "behavior_log")
    times = np.array([int(row["time_stamp"]) for row in rows])
    usual = (times >= 1494000000 - 14 * 86400) & (times < 1494691200)
    assert 0.999 < usual.mean() < 1
    assert {row["btag"] for row in rows} == {"pv", "cart", "fav", "buy"}


def test_truth_is_stated_and_cannot_be_beaten_by_much(made):
    folder, truth = made
    assert json.loads((folder / "truth.json").read_text()) == truth
    for split in ("train", "test"):
        assert 0.7 < truth[split]["best_auc"] < 0.85
        assert 0.1 < truth[split]["best_logloss"] < 0.25


def test_the_stated_auc_is_that_of_the_probabilities():
    rng = np.random.default_rng(1)
    world = synthetic._world(rng, 500, 100)
    log = synthetic._log(rng, world, 20_000, 0.05, 0.5)
    assert log.probability.mean() == pytest.approx(0.05, abs=1e-9)
    p = log.probability.astype(np.float32).astype(np.float64)
    found = []
    for seed in range(8):
        labels = np.random.default_rng(seed).random(len(p)) < p
        wins = sum_of_wins(p, labels)
        found.append(wins / (labels.sum() * (~labels).sum()))
    assert np.mean(found) == pytest.approx(expected_auc(p), abs=4 * np.std(found) / np.sqrt(8))


def sum_of_wins(p, labels):
    """Pairs in which the click scores higher, ties counted half, by ranks."""
    values, ranks = np.unique(p, return_inverse=True)
    counts = np.bincount(ranks)
    below = np.cumsum(counts) - counts
    middle = below + (counts + 1) / 2
    clicks = labels.sum()
    assert len(values)
    return middle[ranks][labels].sum() - clicks * (clicks + 1) / 2


def test_expected_auc_by_all_pairs():
    p = np.random.default_rng(2).integers(1, 9, 60) / 10
    wins = sum(a * (1 - b) * (1.0 if a > b else 0.5 if a == b else 0.0) for a in p for b in p)
    assert expected_auc(p) == pytest.approx(wins / (p.sum() * (1 - p).sum()))


def test_committed_tables_are_those_of_the_generator(tmp_path):
    folder = ROOT / "sample" / "raw"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_500_000
    generate(tmp_path, compress=True)
    assert {path.name for path in folder.iterdir()} == {path.name for path in tmp_path.iterdir()}
    for path in folder.glob("*.gz"):
        # Unpacked, because other versions of zlib pack otherwise.
        assert gzip.decompress(path.read_bytes()) == gzip.decompress(
            (tmp_path / path.name).read_bytes()
        )
