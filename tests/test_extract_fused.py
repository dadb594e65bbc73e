"""Both stages of extraction in one, without samples on disk: the shards are those of two stages."""

import shutil

import numpy as np
import pytest

from ctrps.data import extract as extraction
from ctrps.data import history, samples, shardwork
from ctrps.data.badrows import BadRows
from ctrps.data.extract import extract
from ctrps.data.joinfile import load_plan
from ctrps.data.samplelines import read_sample
from ctrps.data.samples import join_tables
from ctrps.errors import ConfigError, DataError
from tests.test_extract_resume import ROOT, digests, generated, interrupt, job_of, small

NOT_KEPT = "sample.keep=false"


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return generated(tmp_path_factory.mktemp("raw"), rows=1500)


def spoilt(raw, folder):
    """Some prices that are no numbers, and some rows with a field too many."""
    shutil.copytree(raw, folder)
    lines = (folder / "ad_feature.csv").read_text().splitlines()
    lines[3:5] = [line.rpartition(",")[0] + ",cheap" for line in lines[3:5]]
    (folder / "ad_feature.csv").write_text("\n".join(lines) + "\n")
    lines = (folder / "raw_sample.csv").read_text().splitlines()
    lines[5:9] = [line + ",more" for line in lines[5:9]]
    (folder / "raw_sample.csv").write_text("\n".join(lines) + "\n")
    return folder


def fitted(folder):
    """A features file that wants quantiles and a scale of training rows."""
    text = (ROOT / "conf" / "features_v16.ini").read_text()
    assert "price_log=price,log\n" in text
    text = text.replace("price_log=price,log\n", "price_log=price,log,standard\n")
    (folder / "fitted.ini").write_text(text)
    return f"features.spec={folder / 'fitted.ini'}"


def results(out):
    """Digests of data; what was rejected, by the names of files."""
    found = {name: digest for name, digest in digests(out).items() if name.startswith("data")}
    rejected = {p.name: p.read_text() for p in out.glob("rejected/*")}
    return found, {name: text.replace(f"{out}", "OUT") for name, text in rejected.items()}


@pytest.mark.parametrize("kept", [0.0, 5e-5, 0.4])
@pytest.mark.parametrize("count_above", [0, 1])
def test_the_same_shards(raw, tmp_path, monkeypatch, kept, count_above):
    """With windows on disk or in memory, fits, names, known keys and bad rows of both stages."""
    small(monkeypatch, kept)
    tables = spoilt(raw, tmp_path / "raw")
    settings = ["sample.max_bad=0.2", f"features.count_above={count_above}", fitted(tmp_path)]
    two = extract(job_of(tables, tmp_path / "two", *settings), processes=1)
    one = extract(job_of(tables, tmp_path / "one", *settings, NOT_KEPT), processes=2)
    assert results(tmp_path / "one") == results(tmp_path / "two")
    assert len(results(tmp_path / "one")[1]) > 2
    assert len(one["outputs"]["train"]) > 2
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["data", "rejected"]
    assert one["rejected"] == two["rejected"] > 4
    for stage in ("sample", "features"):
        assert one["stages"][stage]["rows"] == two["stages"][stage]["rows"]


@pytest.mark.parametrize("shuffle", ["true", "false"])
def test_order_of_rows(raw, tmp_path, monkeypatch, shuffle):
    small(monkeypatch, 0.4)
    job = f"features.shuffle={shuffle}"
    extract(job_of(raw, tmp_path / "two", job), processes=1)
    extract(job_of(raw, tmp_path / "one", job, NOT_KEPT))
    assert results(tmp_path / "one") == results(tmp_path / "two")


@pytest.fixture(scope="module")
def wanted(raw, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        out = tmp_path_factory.mktemp("wanted")
        extract(job_of(raw, out))
        return results(out)


STEPS = [
    (samples, "write_json"),
    (history, "_write_rows"),
    (shardwork, "draft_part"),
    (shardwork, "finish_part"),
    (extraction, "publish"),
]


@pytest.mark.parametrize("kept", [0.0, 5e-5, 0.4])
@pytest.mark.parametrize(("module", "name"), STEPS)
def test_a_run_cut_off_anywhere_is_taken_up(raw, wanted, tmp_path, monkeypatch, kept, module, name):
    small(monkeypatch, kept)
    real = getattr(module, name)
    for stop in (1, 3):
        left = [stop]

        def step_or_stop(*args, _left=left, **options):
            _left[0] -= 1
            if _left[0] == 0:
                raise KeyboardInterrupt
            return real(*args, **options)

        job = job_of(raw, tmp_path / str(stop), NOT_KEPT)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, step_or_stop)
            try:
                extract(job, resume=True)
            except KeyboardInterrupt:
                assert not (tmp_path / str(stop) / "data").exists()
        extract(job, resume=True)
        assert results(tmp_path / str(stop)) == wanted
        assert [path.name for path in (tmp_path / str(stop)).iterdir()] == ["data"]
        again = extract(job, resume=True)
        assert all(stage["reused"] for stage in again["stages"].values())


def test_parts(raw, wanted, tmp_path, monkeypatch):
    small(monkeypatch, 0.4)
    for count, number in enumerate([3, 1, 2], 1):
        answer = extract(job_of(raw, tmp_path, NOT_KEPT), part=f"{number}/3")
        assert bool(answer["missing"]) == (count < 3)
    assert results(tmp_path) == wanted and not list(tmp_path.glob("samples*"))


def test_samples_asked_for_alone_are_kept_and_used(raw, wanted, tmp_path, monkeypatch):
    small(monkeypatch)
    extract(job_of(raw, tmp_path, NOT_KEPT), stage="sample")
    monkeypatch.setattr("ctrps.data.samples.EventBuckets.add", interrupt)
    answer = extract(job_of(raw, tmp_path, NOT_KEPT), processes=1)
    assert answer["stages"]["sample"]["reused"]
    assert (tmp_path / "samples").exists() and results(tmp_path) == wanted


def test_samples_of_other_settings_do_not_stay(raw, tmp_path):
    extract(job_of(raw, tmp_path, "features.seed=7"), stage="sample")
    extract(job_of(raw, tmp_path, NOT_KEPT))
    assert not (tmp_path / "samples").exists()
    with pytest.raises(DataError, match="there are no samples"):
        extract(job_of(raw, tmp_path, NOT_KEPT), stage="features", overwrite=True)


def test_samples_without_windows_are_written(raw, tmp_path):
    join = f"sample.join={ROOT / 'conf' / 'taobao_sample.yaml'}"
    spec = f"features.spec={ROOT / 'conf' / 'features_base.ini'}"
    answer = extract(job_of(raw, tmp_path, join, spec, NOT_KEPT))
    assert (tmp_path / "samples" / "train-00000.tsv").exists() and answer["rows"] == 1500


def test_memory_is_foreseen(raw, tmp_path, monkeypatch):
    monkeypatch.setattr("ctrps.data.samples.FEATURES_BYTES", 1 << 40)
    with pytest.raises(ConfigError, match=r"sample\.memory_mb: too little"):
        extract(job_of(raw, tmp_path, NOT_KEPT))
    assert not (tmp_path / "samples.making").exists()


def test_lines_in_memory_are_those_of_the_file(raw, tmp_path, monkeypatch):
    """Header, borders and bytes."""
    small(monkeypatch, 0.4)
    plan = load_plan(ROOT / "conf" / "taobao_v16_sample.yaml")
    _, lines = join_tables(raw, plan, tmp_path, BadRows())
    lines.write()
    with lines.each() as each:
        paths = [tmp_path / name for name in lines.names]
        for path, text in zip(paths, each(lambda path, read: read(path), paths), strict=True):
            from_file = read_sample(path)
            assert (text.header, text.file) == (from_file.header, from_file.file)
            assert text.data.tobytes() == from_file.data.tobytes()
            assert np.array_equal(text.lines, from_file.lines)
