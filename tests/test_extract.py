"""The stages of extraction: what they write, that nothing depends on chance, and counting."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ctrps.config import load_job
from ctrps.data import drafts, parts
from ctrps.data.extract import extract
from ctrps.data.features import load_spec
from ctrps.data.shards import Block, Rows, Schema, Shard
from ctrps.data.synthetic import generate
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.keys import key_of
from tests import naive_data2 as naive

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "fixtures" / "golden"


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    generate(folder, rows=3000, users=300, ads=120, seed=3)
    return folder


@pytest.fixture
def small_parts(monkeypatch):
    """Parts and pieces so small that a few thousand rows have many."""
    monkeypatch.setattr("ctrps.data.deal.PART_BYTES", 20_000)
    monkeypatch.setattr("ctrps.data.deal.PART_ROWS", 100)
    monkeypatch.setattr("ctrps.data.blocks.PIECE_LINES", 64)


def job_of(raw, out, *overrides):
    settings = [f"sample.dir={raw}", f"output.dir={out}", *overrides]
    return load_job(ROOT / "conf" / "taobao_lr.yaml", settings, {})


def digests(folder):
    return {path.name: Shard(path).digest for path in sorted(folder.glob("*.shard"))}


def read(paths):
    """Per row its id, label and keys per slot."""
    found = []
    for path in paths:
        for block in Shard(path).blocks():
            rows = block.to_rows()
            text, ends = rows.ids
            at, start = 0, 0
            for i, counts in enumerate(rows.counts):
                slots = []
                for n in counts:
                    slots.append(tuple(rows.keys[at : at + n].tolist()))
                    at += n
                name = bytes(text[start : ends[i]]).decode()
                found.append((name, float(rows.labels[i]), tuple(slots), float(rows.dense[i, 0])))
                start = ends[i]
    return found


def test_both_stages(raw, tmp_path):
    told = []
    job = job_of(raw, tmp_path, "features.count_above=0")
    answer = extract(job, progress=lambda *what: told.append(what))
    assert json.loads(json.dumps(answer)) == answer
    assert answer["rows"] == 3000 and answer["rejected"] == 0
    assert answer["stages"]["sample"]["rows"] == answer["stages"]["features"]["rows"] == 3000
    assert answer["cpu_s"] > 0 and answer["wall_s"] > 0 and answer["peak_rss_mb"] > 10
    assert told[0][0] == "sample" and told[-1] == ("features", 3000, 1.0)
    assert all(0 < share <= 1 for *_, share in told)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "samples"]
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [
        "features.ini", "summary.json", "test-00000.shard", "train-00000.names",
        "train-00000.shard"]  # fmt: skip
    shard = Shard(Path(answer["outputs"]["train"][0]))
    assert (
        shard.schema.slots[:2] == ("age_level", "age_new_user") and shard.schema.weights == "mean"
    )
    assert shard.meta["sample"] == "train-00000.tsv"


def test_rows_are_those_of_the_slow_twin(raw, tmp_path):
    answer = extract(job_of(raw, tmp_path, "features.count_above=0"))
    spec = load_spec(ROOT / "conf" / "features_base.ini")
    for kind in ("train", "test"):
        lines = (tmp_path / "samples" / f"{kind}-00000.tsv").read_text().splitlines()
        header = lines[0].split("\t")
        wanted = []
        for row in naive.run_rows(spec, header, lines[1:]):
            slots = tuple(tuple(key_of(p, *v) for p, v in slot) for slot in row.slots)
            wanted.append((row.id, row.label, slots, float(np.float32(row.dense[0]))))
        found = read(answer["outputs"][kind])
        if kind == "train":
            assert found != wanted
            found, wanted = sorted(found), sorted(wanted)
        assert [row[:3] for row in found] == [row[:3] for row in wanted]
        np.testing.assert_allclose([r[3] for r in found], [r[3] for r in wanted], rtol=2e-7)


def test_parts_pieces_and_processes_do_not_matter(raw, tmp_path, small_parts, monkeypatch):
    one = extract(job_of(raw, tmp_path / "one"), processes=1)
    assert len(one["outputs"]["train"]) > 3
    monkeypatch.setattr("ctrps.data.blocks.PIECE_LINES", 1000)
    extract(job_of(raw, tmp_path / "other"), processes=1)
    assert digests(tmp_path / "one" / "data") == digests(tmp_path / "other" / "data")


@pytest.mark.slow
def test_the_number_of_processes_does_not_matter(raw, tmp_path, small_parts):
    one = extract(job_of(raw, tmp_path / "one"), processes=1)
    two = extract(job_of(raw, tmp_path / "two"), processes=2)
    assert digests(tmp_path / "one" / "data") == digests(tmp_path / "two" / "data")
    assert one["rows"] == two["rows"] and two["stages"]["features"]["processes"] == 1


def test_shuffle(raw, tmp_path):
    plain = read(extract(job_of(raw, tmp_path / "a", "features.shuffle=false"))["outputs"]["train"])
    one = read(extract(job_of(raw, tmp_path / "b"))["outputs"]["train"])
    other = read(extract(job_of(raw, tmp_path / "c", "features.seed=2"))["outputs"]["train"])
    assert plain != one != other != plain
    assert sorted(plain) == sorted(one) == sorted(other)
    log = (raw / "raw_sample.csv").read_text().splitlines()[1:]
    ids = ["#".join(["id", f[1], f[0], f[2]]) for f in (line.split(",") for line in log)]
    days = [int(row.split("#")[1]) for row in ids]
    assert [row[0] for row in plain] == [
        i for i, t in zip(ids, days, strict=True) if t < 1494604800
    ]


def test_stages_apart(raw, tmp_path):
    both = extract(job_of(raw, tmp_path / "both"))
    first = extract(job_of(raw, tmp_path / "apart"), stage="sample")
    assert list(first["stages"]) == ["sample"] and first["rows"] == 3000
    assert [Path(p).name for p in first["outputs"]["train"]] == ["train-00000.tsv"]
    assert not (tmp_path / "apart" / "data").exists()
    second = extract(job_of(raw, tmp_path / "apart"), stage="features")
    assert list(second["stages"]) == ["features"] and second["rows"] == both["rows"]
    assert digests(tmp_path / "both" / "data") == digests(tmp_path / "apart" / "data")


def test_finished_results_are_not_replaced_unasked(raw, tmp_path):
    job = job_of(raw, tmp_path)
    extract(job)
    before = digests(tmp_path / "data")
    for stage in (None, "sample", "features"):
        with pytest.raises(ConfigError, match=r"it is there already; give --overwrite"):
            extract(job, stage=stage)
    assert digests(tmp_path / "data") == before
    extract(job_of(raw, tmp_path, "features.seed=9"), overwrite=True)
    assert digests(tmp_path / "data") != before


def test_samples_of_an_interrupted_run_are_taken_up(raw, tmp_path):
    extract(job_of(raw, tmp_path), stage="sample")
    answer = extract(job_of(raw, tmp_path))
    assert answer["stages"]["sample"]["reused"] and answer["rows"] == 3000


def test_samples_of_other_settings_are_made_anew(raw, tmp_path):
    extract(job_of(raw, tmp_path / "a", "features.seed=4"), stage="sample")
    answer = extract(job_of(raw, tmp_path / "a"))
    assert "reused" not in answer["stages"]["sample"]
    extract(job_of(raw, tmp_path / "b"))
    assert digests(tmp_path / "a" / "data") == digests(tmp_path / "b" / "data")


@pytest.mark.parametrize("stage", ["sample", "features"])
def test_an_interrupted_stage_leaves_nothing_under_its_name(raw, tmp_path, monkeypatch, stage):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    job = job_of(raw, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("ctrps.data.parts.ShardWriter.close" if stage == "features"
                      else "ctrps.data.samples._append", interrupt)  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            extract(job)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == (["data.making", "samples"] if stage == "features" else ["samples.making"])
    assert extract(job)["rows"] == 3000


def test_a_folder_left_by_a_killed_run_is_cleared(raw, tmp_path):
    (tmp_path / "data.making").mkdir()
    (tmp_path / "data.making" / "train-99999.shard").write_bytes(b"half")
    extract(job_of(raw, tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "samples"]


def test_mistakes_are_found_before_the_first_stage(raw, tmp_path):
    (tmp_path / "f.ini").write_text("[raw_sample_schema]\nfields=clk,pricee\n"
                                    "[sparse_features_ad]\np=pricee,direct\n")  # fmt: skip
    with pytest.raises(DataError, match=r"no column 'pricee'.*did you mean 'price'"):
        extract(job_of(raw, tmp_path / "out", f"features.spec={tmp_path / 'f.ini'}"))
    assert not (tmp_path / "out" / "samples").exists()


@pytest.mark.parametrize("key", ["sample.dir", "sample.join", "features.spec"])
def test_settings_that_are_needed(raw, tmp_path, key):
    settings = {
        "sample.dir": raw,
        "sample.join": ROOT / "conf/taobao_sample.yaml",
        "features.spec": ROOT / "conf/features_base.ini",
        "output.dir": tmp_path,
    }
    given = [f"{name}={value}" for name, value in settings.items() if name != key]
    with pytest.raises(ConfigError, match=f"{key} is not set"):
        extract(load_job(None, given, {}))


def test_unknown_stage(raw, tmp_path):
    with pytest.raises(ConfigError, match="no stage 'samples'; stages are sample and features"):
        extract(job_of(raw, tmp_path), stage="samples")


def test_features_without_samples(raw, tmp_path):
    with pytest.raises(DataError, match="there are no samples; run the stage sample first"):
        extract(job_of(raw, tmp_path), stage="features")


def test_bad_rows_of_both_stages(raw, tmp_path):
    source = tmp_path / "raw"
    source.mkdir()
    for path in raw.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    log = (source / "raw_sample.csv").read_text().splitlines()
    log[5] = "1,2,3"
    ads = (source / "ad_feature.csv").read_text().splitlines()
    wrong = ads[1].rsplit(",", 1)[0]
    ads[1] = wrong + ",NULL"
    (source / "raw_sample.csv").write_text("\n".join(log) + "\n")
    (source / "ad_feature.csv").write_text("\n".join(ads) + "\n")
    with pytest.raises(DataError, match=r"raw_sample.csv:6:1: expected 6 fields"):
        extract(job_of(source, tmp_path / "strict"))
    out = tmp_path / "lenient"
    answer = extract(job_of(source, out, "sample.max_bad=0.3"))
    hit = sum(line.split(",")[2] == wrong.split(",")[0] for line in log[1:] if line != "1,2,3")
    assert hit > 0
    assert answer["rejected"] == 1 + hit and answer["rows"] == 2999 - hit
    lines = "".join(path.read_text() for path in sorted((out / "rejected").iterdir()))
    assert lines.count("\n") == 1 + hit and "price: expected a number\tNULL" in lines
    with pytest.raises(DataError, match=r"are bad \(.*sample.max_bad"):
        extract(job_of(source, out, f"sample.max_bad={0.5 * hit / 3000}"), overwrite=True)
    assert Shard(Path(answer["outputs"]["train"][0])).rows > 0


# counting


def golden_part(tmp_path, lines):
    header = "\t".join(load_spec(GOLDEN / "features.ini").fields)
    sample = tmp_path / "train-00000.tsv"
    sample.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8", newline="")
    shard, aside = tmp_path / "train-00000.shard", tmp_path / "bad.tsv"
    return parts.Part(sample, shard, aside, training=True)


def golden_lines():
    return (GOLDEN / "input.tsv").read_text(encoding="utf-8").removesuffix("\n").split("\n")


def text_counts(rows):
    """Values of the golden stage-1 text, counted per occurrence; rows count from 1."""
    lines = (GOLDEN / "stage1.tsv").read_text(encoding="utf-8").split("\n")
    columns = [column for row in rows for column in lines[row - 1].split("\t")[5:]]
    return Counter(value for column in columns for feature in column.split(",")
                   for value in feature.split("|"))  # fmt: skip


# Rows that both systems read alike: without those that the other one lost, or split at `|`, or
# whose numbers are none for us, or whose values hold the sign that separates crosses there.
ALIKE = [row for row in range(1, 37) if row not in {9, 10, 11, 25, 26, 27, 30, 34}]


def golden_key(text):
    """The key of a golden text, by the longest feature prefix it begins with."""
    spec = load_spec(GOLDEN / "features.ini")
    prefixes = {feature.prefix: max(len(feature.parts), 1) for feature in spec.sparse}
    name, _, value = text.partition("#")
    values = value.split("#")
    assert len(values) == prefixes[name], text
    return key_of(name, *values)


def kept_keys(part, settings):
    """Keys that stay in a part that is all there is, by way of its draft."""
    parts.draft_part(settings, part)
    of = drafts.ranges([part.draft])
    for number in range(of):
        drafts.decide([part.draft], [True], settings.count_above, part.draft.parent, of, number)
    draft = drafts.Draft(part.draft, load_spec(settings.spec))
    found = set()
    for block in draft.blocks(part.draft.parent, 0, of):
        found |= set(block.keys[: -len(load_spec(settings.spec).dense)].tolist())
    return found


def test_counts_are_those_of_the_golden_dictionary(tmp_path):
    """Of texts in the old dictionary, those that are counted more often than any number stay."""
    part = golden_part(tmp_path, [golden_lines()[row - 1] for row in ALIKE])
    counted = text_counts(ALIKE)
    # Texts of which every occurrence is in those rows have the count of the dictionary file.
    everywhere, checked = text_counts(range(1, 37)), 0
    for line in (GOLDEN / "dict_counts.tsv").read_text(encoding="utf-8").splitlines():
        text, n = line.split("\t")
        if everywhere[text] == counted[text]:
            assert counted[text] == int(n)
            checked += 1
    assert checked > 40
    for above in range(max(counted.values()) + 1):
        settings = parts.FeatureSettings(spec=GOLDEN / "features.ini", count_above=above)
        wanted = {golden_key(text) for text, n in counted.items() if n > above}
        assert kept_keys(part, settings) == wanted
        drafts.remove_drafts(tmp_path)


def test_count_above_is_strict_and_leaves_empty_slots(tmp_path):
    part = golden_part(tmp_path, [golden_lines()[row - 1] for row in ALIKE])
    settings = parts.FeatureSettings(spec=GOLDEN / "features.ini", count_above=1, shuffle=False)
    wanted = kept_keys(part, settings)
    done = parts.finish_part(settings, [part.draft], drafts.ranges([part.draft]), False, part)
    rows = Shard(part.shard).block(0).to_rows()
    assert done.rows == len(ALIKE) and set(rows.keys.tolist()) == wanted
    slots = load_spec(GOLDEN / "features.ini").slots
    unseen = ALIKE.index(35)
    assert rows.counts[unseen, slots.index("001_uid")] == 0
    # Of c2,c2,c9,c2 the last but one is rare.
    assert rows.counts[ALIKE.index(14), slots.index("004_hist_cate")] == 3
    assert not part.draft.exists()


def test_count_above_in_a_run(raw, tmp_path):
    everything = read(
        extract(job_of(raw, tmp_path / "a", "features.count_above=0"))["outputs"]["train"]
    )
    job = job_of(raw, tmp_path / "b", "features.count_above=2")
    answer = extract(job)
    occurrences = Counter(key for row in everything for slot in row[2] for key in slot)
    wanted = [
        (*row[:2], tuple(tuple(k for k in slot if occurrences[k] > 2) for slot in row[2]), row[3])
        for row in everything
    ]
    assert read(answer["outputs"]["train"]) == wanted
    known = {key for key, n in occurrences.items() if n > 2}
    assert {k for row in read(answer["outputs"]["test"]) for slot in row[2] for k in slot} <= known
    left = {path.suffix for path in (tmp_path / "b" / "data").iterdir()}
    assert left == {".shard", ".names", ".ini", ".json"}


def among(known):
    """Says which keys are among some."""
    return lambda keys: np.isin(keys, known)


def test_known_keys():
    rows = Rows(np.uint64([1, 2, 3, 0]), np.int32([[2, 1], [0, 1]]), None,
                np.zeros((2, 0), np.float32), np.float32([0, 1]))  # fmt: skip
    schema = Schema(("a", "b"))
    found = Block.from_rows(rows, schema, keep=among(np.uint64([0, 2]))).to_rows()
    assert found.keys.tolist() == [2, 0] and found.counts.tolist() == [[1, 0], [0, 1]]
    assert rows.counts.tolist() == [[2, 1], [0, 1]]
    none = Block.from_rows(rows, schema, keep=among(np.uint64([])))
    assert none.counts.sum() == len(none.index) == 0


def test_blocks_of_some_keys_are_those_of_rows_of_some_keys():
    schema = Schema(("a", "b"), ("x",))
    rng = np.random.default_rng(6)
    counts = rng.integers(0, 4, (50, 2)).astype(np.int32)
    keys = rng.integers(0, 1 << 60, 70).astype(np.uint64)[rng.integers(0, 70, counts.sum())]
    known = np.unique(keys)[::3]
    kept = np.isin(keys, known)
    starts = np.concatenate([[0], np.cumsum(counts)])
    fewer = np.array([kept[a:b].sum() for a, b in itertools.pairwise(starts)], np.int32)
    dense, labels = np.ones((50, 1), np.float32), np.zeros(50, np.float32)
    found = Block.from_rows(Rows(keys, counts, None, dense, labels), schema, keep=among(known))
    wanted = Block.from_rows(Rows(keys[kept], fewer.reshape(50, 2), None, dense, labels), schema)
    for name in ("keys", "index", "counts", "dense"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert one.dtype == other.dtype and one.tolist() == other.tolist()


# what is delivered


def test_the_three_jobs_load_and_agree():
    lr = load_job(ROOT / "conf" / "taobao_lr.yaml", [], {})
    assert lr == load_job(ROOT / "conf" / "taobao_lr.ini", [], {})
    fm = load_job(ROOT / "conf" / "taobao_fm.yaml", [], {})
    assert (lr.model.kind, fm.model.kind) == ("lr", "fm")
    assert lr.sample.dir == fm.sample.dir == ROOT / "sample" / "raw"


def test_extract_script_is_short():
    script = (ROOT / "feature_extract" / "extract.sh").read_text()
    assert len(script.splitlines()) <= 30 and re.search("-m ctrps extract", script)
