"""What a limit of memory leaves, and a run of ``ctrps extract`` that stays within its own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ctrps.data import memory, samples
from ctrps.data.memory import Memory
from ctrps.data.synthetic import generate
from ctrps.errors import ConfigError
from tests.procs import started_mb
from tests.test_extract_resume import digests

ROOT = Path(__file__).parents[1]
MIB = 1 << 20


def test_what_is_left_is_what_is_not_resident(monkeypatch):
    monkeypatch.setattr(memory, "resident_bytes", lambda: 300 * MIB)
    assert Memory(1000 * MIB).left() == (1000 * 92 // 100 - 300) * MIB
    limit_mb = Memory(0).limit_mb(200 * MIB)
    assert 200 * MIB <= Memory(limit_mb * MIB).left() < 201 * MIB


def test_what_a_program_had_before_is_its_own(monkeypatch):
    has = [900 * MIB]
    monkeypatch.setattr(memory, "resident_bytes", lambda: has[0])
    given = Memory(1000 * MIB)
    assert given.left() == 920 * MIB - memory.OWN_BYTES
    has[0] += 100 * MIB
    assert given.left() == 820 * MIB - memory.OWN_BYTES


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system does not tell")
def test_arrays_count_while_they_are_held():
    """Many small ones, too, of which malloc keeps what lies between others."""
    given = Memory(1 << 40)
    before = given.left()
    held = [np.ones(50_000, np.uint8) for _ in range(2000)]
    taken = before - given.left()
    assert 95 * MIB < taken < 110 * MIB
    held = held[::10]
    assert before - given.left() < taken / 4


def test_threads_that_there_is_memory_for(monkeypatch):
    given = Memory(0)
    monkeypatch.setattr(given, "left", lambda: 100 * MIB)
    found = [samples._workers(4, given, need * MIB, kept * MIB) for need, kept in NEEDS]
    assert found == [1, 2, 4, 1]
    what = "too little: a thread needs 41 MB, and 40 MB are left"
    with pytest.raises(ConfigError, match=what):
        samples._workers(4, given, 41 * MIB, 60 * MIB)


NEEDS = ((100, 0), (40, 0), (1, 0), (40, 60))


def test_a_run_stays_below_its_limit(tmp_path):
    """Of logs that would take more if they could, and to the same bytes."""
    raw = tmp_path / "raw"
    raw.mkdir()
    few = {"users": 10_000, "ads": 2_000, "behaviors": 600_000}
    generate(raw, rows=200_000, seed=1, compress=False, **few)
    # Kernels that must be compiled are by the first of them, and that takes memory, too.
    little = started_mb() + 230
    more, less = (peak(raw, tmp_path / str(limit), limit) for limit in (2048, little))
    assert less < min(little, more - 40)
    assert digests(tmp_path / str(little)) == digests(tmp_path / "2048")


def peak(raw, out, limit_mb):
    settings = {"sample.dir": raw, "output.dir": out, "sample.memory_mb": limit_mb}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    job = ["-c", str(ROOT / "conf" / "taobao_v16.yaml"), "--stage", "sample", "--json"]
    command = [sys.executable, "-m", "ctrps", "extract", *job, *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)["peak_rss_mb"]
