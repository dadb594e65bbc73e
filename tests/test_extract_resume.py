"""Extraction that is cut off and taken up, and extraction in parts: the same bytes every time."""

import hashlib
import random
import sys
from pathlib import Path

import pytest

from ctrps.config import load_job
from ctrps.data.extract import extract
from ctrps.data.features import load_spec
from ctrps.data.joinfile import load_plan
from ctrps.data.making import claim
from ctrps.data.synthetic import generate
from ctrps.errors import ConfigError

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return generated(tmp_path_factory.mktemp("raw"), rows=1500)


def generated(folder, rows):
    """Tables in a folder."""
    few = {"users": 100, "ads": 60, "behaviors": 2 * rows}
    generate(folder, rows=rows, seed=3, compress=False, **few)
    return folder


@pytest.fixture(scope="module")
def wanted(raw, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        out = tmp_path_factory.mktemp("wanted")
        answer = extract(job_of(raw, out))
    assert answer["rows"] == 1500 and len(answer["outputs"]["train"]) > 2
    return digests(out)


@pytest.fixture
def small_work(monkeypatch):
    small(monkeypatch)


def small(patch, kept=0.0):
    """Parts and buckets so small that there are some of them."""
    patch.setattr("ctrps.data.deal.PART_BYTES", 20_000)
    patch.setattr("ctrps.data.deal.PART_ROWS", 100)
    patch.setattr("ctrps.data.buckets.BUCKET_TEXT_BYTES", 60_000)
    patch.setattr("ctrps.data.buckets.RUN_EVENTS", 700)
    # Windows that stay in memory are computed again.
    patch.setattr("ctrps.data.samples.KEPT_SHARE", kept)


def job_of(raw, out, *overrides):
    settings = [f"sample.dir={raw}", f"output.dir={out}", *overrides]
    return load_job(ROOT / "conf" / "taobao_v16.yaml", settings, {})


def digests(out):
    """Of every file but the one that says how long it took."""
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != "summary.json"
    }


STEPS = [
    "ctrps.data.samples._put",
    "ctrps.data.spill.SpillWriter.append",
    "ctrps.data.spill.SpillWriter.close",
    "ctrps.data.samples.write_json",
    "ctrps.data.samples.PartLines._write",
    "ctrps.data.extract.write_json",
    "ctrps.data.extract.publish",
    "ctrps.data.drafts.ArraysWriter.append",
    "ctrps.data.shardwork.decide_keys",
    "ctrps.data.shardwork.finish_part",
    "ctrps.data.shards.ShardWriter.close",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_run_cut_off_anywhere_is_taken_up(raw, wanted, tmp_path, small_work, step):
    """Interrupted at some calls of each step, early and late, twice in a row."""
    module, name = step.rsplit(".", 1)
    if module not in sys.modules:
        module, owner = module.rsplit(".", 1)
        target = getattr(sys.modules[module], owner)
    else:
        target = sys.modules[module]
    real = getattr(target, name)
    for stop in (1, 2, 5, 30):
        out = tmp_path / str(stop)
        left = [stop]

        def step_or_stop(*args, _left=left, **options):
            _left[0] -= 1
            if _left[0] == 0:
                raise KeyboardInterrupt
            return real(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, name, step_or_stop)
            for _ in range(2):
                try:
                    extract(job_of(raw, out), resume=True)
                except KeyboardInterrupt:
                    left[0] = stop
                    assert not (out / "data").exists()
        if not (out / "data").exists():
            extract(job_of(raw, out), resume=True)
        assert digests(out) == wanted


def test_work_that_is_done_is_not_done_again(raw, wanted, tmp_path, small_work, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("ctrps.data.shardwork.finish_part", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extract(job_of(raw, tmp_path), processes=1)
    monkeypatch.setattr("ctrps.data.samples.EventBuckets.add", interrupt)
    answer = extract(job_of(raw, tmp_path), resume=True)
    assert answer["stages"]["sample"]["reused"]
    assert digests(tmp_path) == wanted


def test_samples_without_windows_begin_anew(raw, tmp_path, small_work, monkeypatch):
    join = f"sample.join={ROOT / 'conf' / 'taobao_sample.yaml'}"
    extract(job_of(raw, tmp_path / "a", join), stage="sample")
    with monkeypatch.context() as patch:
        patch.setattr("ctrps.data.extract.publish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extract(job_of(raw, tmp_path / "b", join), stage="sample")
    extract(job_of(raw, tmp_path / "b", join), stage="sample", resume=True)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    with pytest.raises(ConfigError, match="samples without windows are made in one run"):
        extract(job_of(raw, tmp_path / "c", join), stage="sample", part="1/2")


def test_columns_of_the_job_are_those_of_its_features():
    plan = load_plan(ROOT / "conf" / "taobao_v16_sample.yaml")
    spec = load_spec(ROOT / "conf" / "features_v16.ini")
    assert plan.columns == spec.fields and len(spec.fields) == 77
    assert len(spec.dense) + len(spec.sparse) == 144


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


def test_windows_are_not_computed_again(raw, wanted, tmp_path, small_work, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("ctrps.data.samples.PartLines._write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extract(job_of(raw, tmp_path), processes=2)
    monkeypatch.setattr("ctrps.data.history.bucket_columns", interrupt)
    monkeypatch.setattr("ctrps.data.samples.EventBuckets.add", interrupt)
    extract(job_of(raw, tmp_path), resume=True)
    assert digests(tmp_path) == wanted


@pytest.mark.parametrize("kept", [1e-5, 5e-5, 0.4])
def test_windows_that_stay_in_memory(raw, wanted, tmp_path, monkeypatch, kept):
    """Some or all of them; a run that is cut off then computes these again.

    It reads the tables again if all events did.
    """
    small(monkeypatch, kept)
    with monkeypatch.context() as patch:
        patch.setattr("ctrps.data.samples.PartLines._write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extract(job_of(raw, tmp_path), processes=2)
    on_disk = len(list((tmp_path / "samples.making" / "history").glob("*.rows")))
    assert (on_disk > 0) == (kept < 0.4)
    if on_disk:
        monkeypatch.setattr("ctrps.data.samples.EventBuckets.add", interrupt)
    extract(job_of(raw, tmp_path), resume=True)
    assert digests(tmp_path) == wanted


def test_other_settings_are_not_taken_up(raw, tmp_path, small_work, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("ctrps.data.samples.PartLines._write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extract(job_of(raw, tmp_path))
    with pytest.raises(ConfigError, match=r"samples.making: the unfinished run was of others"):
        extract(job_of(raw, tmp_path, "features.seed=7"), resume=True)
    assert (tmp_path / "samples.making").exists()
    extract(job_of(raw, tmp_path, "features.seed=7"))


@pytest.mark.parametrize("seed", range(4))
def test_parts_in_any_order(raw, wanted, tmp_path, small_work, seed):
    order = random.Random(seed).sample(range(1, 5), 4) if seed else [1, 2, 3, 4]
    for count, number in enumerate(order, 1):
        answer = extract(job_of(raw, tmp_path), part=f"{number}/4")
        assert bool(answer["missing"]) == (count < 4)
    assert digests(tmp_path) == wanted


def test_parts_of_each_stage(raw, wanted, tmp_path, small_work):
    for stage in ("sample", "features"):
        for number in (2, 1, 1, 3):
            if not (tmp_path / "data").exists() and (stage == "features" or number != 3):
                extract(job_of(raw, tmp_path), stage=stage, part=f"{number}/3")
        if stage == "sample":
            assert extract(job_of(raw, tmp_path), stage=stage, part="3/3")["missing"] == []
    assert digests(tmp_path) == wanted


def test_parts_that_others_left_are_finished(raw, wanted, tmp_path, small_work):
    for part in ("4/4", "2/4"):
        extract(job_of(raw, tmp_path), part=part)
    extract(job_of(raw, tmp_path), resume=True)
    assert digests(tmp_path) == wanted


def test_a_run_that_ended_while_it_finished(raw, wanted, tmp_path, small_work, monkeypatch):
    extract(job_of(raw, tmp_path), part="1/2")
    with monkeypatch.context() as patch:
        patch.setattr("ctrps.data.samples.PartLines._write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extract(job_of(raw, tmp_path), part="2/2")
    (said,) = extract(job_of(raw, tmp_path), part="2/2")["missing"]
    assert "use --resume" in said
    extract(job_of(raw, tmp_path), part="2/2", resume=True)
    assert digests(tmp_path) == wanted
    assert extract(job_of(raw, tmp_path), part="1/2")["stages"]["features"]["reused"]


def test_only_one_finishes(tmp_path):
    assert claim(tmp_path, again=False)
    assert not claim(tmp_path, again=False)
    assert claim(tmp_path, again=True)


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "1/0", "a/b", "-1/4"])
def test_a_part_that_is_none(raw, tmp_path, part):
    with pytest.raises(ConfigError, match=r"--part: .* is no part; it is I/N"):
        extract(job_of(raw, tmp_path), part=part)


def test_beginning_anew_and_going_on_do_not_go_together(raw, tmp_path):
    with pytest.raises(ConfigError, match="give one of them"):
        extract(job_of(raw, tmp_path), overwrite=True, part="1/2")


FUNCTIONS = """def loud(values):
    return [value.upper() for value in values]
"""


@pytest.mark.parametrize("part", [None, "1/2"])
def test_other_functions_of_the_user_are_not_taken_up(raw, tmp_path, small_work, monkeypatch, part):
    """Neither in shards of a run that was cut off nor in those of one that has ended."""
    spec = tmp_path / "features.ini"
    text = (ROOT / "conf" / "features_v16.ini").read_text()
    text += "\n[derived_fields]\nloud=cate_id,python,mine.py:loud\n"
    spec.write_text(text.replace("[sparse_features_ad]", "[sparse_features_ad]\nloud=loud,direct"))
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    job = job_of(raw, tmp_path / "out", f"features.spec={spec}")
    extract(job, stage="sample")
    with monkeypatch.context() as patch:
        patch.setattr("ctrps.data.extract.publish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extract(job, stage="features")
    assert list((tmp_path / "out" / "data.making").glob("*.shard"))
    (tmp_path / "mine.py").write_text(FUNCTIONS.replace("upper", "lower"))
    with pytest.raises(ConfigError, match=r"data.making: the unfinished run was of others"):
        extract(job, stage="features", resume=not part, part=part)
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    extract(job, stage="features", resume=True)
    assert extract(job, resume=True)["stages"]["features"]["reused"]
    (tmp_path / "mine.py").write_text(FUNCTIONS.replace("upper", "lower"))
    with pytest.raises(ConfigError, match=r"data: it is there already; give --overwrite"):
        extract(job, resume=True)
