"""How much disk extraction says that it takes, and that it does not begin with less."""

from pathlib import Path

import pytest

from ctrps.config import load_job
from ctrps.data import extract as driver
from ctrps.data import making, samples
from ctrps.data.extract import extract
from ctrps.data.synthetic import generate
from ctrps.errors import ConfigError

ROOT = Path(__file__).parents[1]
JOBS = [("taobao_v16", True), ("taobao_v16", False), ("taobao_lr", True)]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    generate(folder, rows=20_000, users=2000, ads=1000, behaviors=100_000, seed=3, compress=False)
    return folder


def job_of(name, raw, out, keep):
    settings = [f"sample.dir={raw}", f"output.dir={out}", f"sample.keep={str(keep).lower()}"]
    settings += ["features.count_above=0", "features.names=0"]
    return load_job(ROOT / "conf" / f"{name}.yaml", settings, {})


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("name", "keep"), JOBS)
def test_what_is_asked_for_is_what_is_taken(raw, tmp_path, monkeypatch, name, keep):
    """Less than was said, and not much less; most is on disk when features have been made."""
    needs = {}
    for module in (samples, driver):
        monkeypatch.setattr(
            module, "check_room", lambda _f, need, m=module: needs.update({m: need})
        )
    monkeypatch.setattr(samples, "KEPT_SHARE", 0.0)
    most = []

    def publish(there, folder):
        most.append(size(tmp_path))
        making.publish(there, folder)

    monkeypatch.setattr(driver, "publish", publish)
    extract(job_of(name, raw, tmp_path, keep))
    assert max(most) < needs[samples] < 3 * max(most)
    shards = size(tmp_path / "data")
    assert shards < needs[driver] < 2 * shards


@pytest.mark.parametrize(("name", "keep"), JOBS)
def test_too_little_disk(raw, tmp_path, monkeypatch, name, keep):
    """It is told before anything is made: what is finished stays, and nothing else is left."""
    job = job_of(name, raw, tmp_path, keep)
    free = 2 << 20
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr("ctrps.data.making.shutil.disk_usage", lambda _path: usage)
    with pytest.raises(ConfigError, match=r"takes about 0.0 GB of disk, and 0.0 GB are free; give"):
        extract(job)
    assert size(tmp_path) == 0
    usage.free = 1 << 40
    extract(job, stage="sample")
    usage.free = free
    before = size(tmp_path)
    with pytest.raises(ConfigError, match=r"data.making: this takes about 0.0 GB of disk"):
        extract(job, stage="features")
    assert size(tmp_path) == before
