"""``kill -9`` of real ``ctrps extract`` in each of its passes, then ``--resume``: the same bytes.

The moments are when it opens a file of the pass, which one is drawn with a seed.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from ctrps.data.extract import extract
from tests.dask_cluster import until
from tests.procs import DEADLINE_S
from tests.test_extract_resume import digests, generated, job_of, small

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow

# Of each pass in turn: files that it writes, and how many there are at least.
READING = (("reading", "*/base.rows.tmp-*", 1), ("reading", "*.events.tmp-*", 2))
WINDOWS = (("windows", "*/0-*.rows.tmp-*", 4), ("windows", "*/1-*.rows.tmp-*", 2))
LINES = (("lines", "*/history/t*-*.tsv.*", 5), ("samples", "*/samples.making/summary.json.*", 1))
COUNTING = (
    ("fitting", "*/data.making/made_of.json.tmp-*", 1),
    ("fitting", "*/tmp-*-features.ini", 1),
    ("drafts", "*/tmp-*.draft", 5),
    ("counting", "*/tmp-*-range-000.kept", 1),
)
WRITING = (("writing", "*.shard.tmp-*", 5), ("shards", "*/data.making/summary.json.*", 1))
APART = (*READING, *WINDOWS, *LINES, *COUNTING, *WRITING)
FUSED = (*READING, *WINDOWS, *COUNTING, *WRITING)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return generated(tmp_path_factory.mktemp("raw"), rows=3000)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """Features of which one is fitted to training rows."""
    path = tmp_path_factory.mktemp("spec") / "features.ini"
    text = (ROOT / "conf" / "features_v16.ini").read_text()
    assert "price_log=price,log\n" in text
    path.write_text(text.replace("price_log=price,log\n", "price_log=price,log,standard\n"))
    return path


def settings(spec, keep):
    return [f"features.spec={spec}", "features.count_above=1", f"sample.keep={str(keep).lower()}"]


@pytest.fixture(scope="module")
def wanted(raw, spec, tmp_path_factory):
    """Of an uninterrupted run, with samples kept and not."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        for keep in (True, False):
            out = tmp_path_factory.mktemp("wanted")
            extract(job_of(raw, out, *settings(spec, keep)))
            found[keep] = digests(out)
    data = {name: digest for name, digest in found[True].items() if name.startswith("data/")}
    assert data == found[False] and len(data) > 15
    return found


def killed(raw, out, overrides, pattern, number):
    """Start a run, and kill it when it opens the file that is meant."""
    words = [f"sample.dir={raw}", f"output.dir={out}", *overrides]
    flags = [word for setting in words for word in ("--set", setting)]
    command = [sys.executable, "-m", "tests.extract_small", "extract", "--resume"]
    job = ["-c", str(ROOT / "conf" / "taobao_v16.yaml")]
    marker = out.with_name(f"{out.name}.stopped")
    marker.unlink(missing_ok=True)
    environment = {**os.environ, "STOP_AT": f"{pattern} {number} {marker}"}
    with subprocess.Popen(
        [*command, *job, *flags], cwd=ROOT, env=environment, stdout=-3, stderr=-3
    ) as run:
        until(lambda: marker.exists() or run.poll() is not None, "the marker")
        run.send_signal(signal.SIGKILL)
        assert run.wait(DEADLINE_S) == -9, f"{pattern}: it has ended by itself"


@pytest.mark.parametrize(("keep", "seed"), [(True, 1), (False, 2)])
def test_killed_in_each_pass(raw, spec, wanted, tmp_path, monkeypatch, keep, seed):
    """One run after the other goes on where the one before was killed, each in a later pass."""
    rng = random.Random(seed)
    overrides = settings(spec, keep)
    out = tmp_path / "out"
    for name, pattern, most in APART if keep else FUSED:
        killed(raw, out, overrides, pattern, rng.randint(1, most))
        assert not (out / "data").exists(), name
    small(monkeypatch)
    extract(job_of(raw, out, *overrides), resume=True)
    assert digests(out) == wanted[keep]


def test_processes_of_a_killed_run_end(raw, spec, tmp_path):
    """Those of Python operators, when the one that started them is killed alone."""
    (tmp_path / "mine.py").write_text("def loud(values):\n    return [v.upper() for v in values]\n")
    text = spec.read_text() + "\n[derived_fields]\nloud=cate_id,python,mine.py:loud\n"
    text = text.replace("[sparse_features_ad]", "[sparse_features_ad]\nloud=loud,direct")
    spec = tmp_path / "features.ini"
    spec.write_text(text)
    extract(job_of(raw, tmp_path, *settings(spec, True)), stage="sample")
    for number in range(1, 9):
        text = (tmp_path / "samples" / "train-00000.tsv").read_bytes()
        (tmp_path / "samples" / f"train-{number:05d}.tsv").write_bytes(text)
    code = (
        "import sys; from ctrps.config import load_job; from ctrps.data.extract import extract\n"
        "if __name__ == '__main__':\n"
        "    extract(load_job(None, sys.argv[1:], {}), stage='features', processes=2)\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    words = [f"output.dir={tmp_path}", *settings(spec, True)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(script), *words], env=environment) as run:
        until(lambda: any(tmp_path.glob("data.making/*.shard")), "a shard")
        children = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGKILL)
    assert len(children) >= 2
    gone, alive = psutil.wait_procs(children, timeout=DEADLINE_S)
    assert len(gone) == len(children) and not alive


def test_nothing_is_left_of_half_made_files(raw, spec, wanted, tmp_path, monkeypatch):
    """A shard that was being written when the run was killed is not published."""
    small(monkeypatch)
    overrides = settings(spec, True)
    job = job_of(raw, tmp_path, *overrides)
    caught = threading.Event()

    def half(*_args, **_options):
        caught.set()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ctrps.data.parts.NameChoice.write", half)
        with pytest.raises(KeyboardInterrupt):
            extract(job, processes=1)
    assert caught.is_set()
    for name in ("train-00000.shard.tmp-1", "tmp-1-train-00000.shard", "tmp-1-train-00000.draft"):
        (tmp_path / "data.making" / name).write_bytes(b"half")
    extract(job, resume=True)
    assert digests(tmp_path) == wanted[True]
