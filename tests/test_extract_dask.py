"""``ctrps extract --dask`` on a real cluster: the bytes of a local run, whoever dies; errors."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ctrps.data import cluster as clusters
from ctrps.data.extract import extract
from ctrps.errors import ClusterError, ConfigError, DataError
from tests.dask_cluster import dask_cluster, kill, until
from tests.test_extract_resume import digests, generated, job_of, small

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return generated(tmp_path_factory.mktemp("raw"), rows=3000)


@pytest.fixture(scope="module")
def wanted(raw, tmp_path_factory):
    out = tmp_path_factory.mktemp("wanted")
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        extract(job_of(raw, out, "features.count_above=1"))
    return digests(out)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("dask"), workers=0) as found:
        yield found


@pytest.fixture
def cluster(started):
    """One with two workers."""
    for worker in started.live()[2:]:
        kill(worker)
    while len(started.live()) < 2:
        started.add_worker()
    return started


def test_the_bytes_of_a_local_run(raw, wanted, tmp_path, cluster):
    told = []
    answer = extract(
        job_of(raw, tmp_path, "features.count_above=1"),
        dask=cluster.address,
        progress=lambda stage, rows, share: told.append((stage, rows)),
    )
    assert digests(tmp_path) == wanted
    assert answer["rows"] == 3000 and answer["missing"] == []
    for found in answer["stages"].values():
        assert found["processes"] == 3 and found["cpu_s"] > 0
    most = {stage: max(rows for at, rows in told if at == stage) for stage, _ in told}
    assert most["sample"] == most["lines"] == most["features"] == most["shards"] == 3000
    assert list(most)[-1] == "shards" and "windows" in most


def test_one_worker(raw, wanted, tmp_path, tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("dask"), workers=1) as cluster:
        extract(job_of(raw, tmp_path, "features.count_above=1"), dask=cluster.address)
    assert digests(tmp_path) == wanted


# Files that say that the pass goes on.
PASSES = {
    "reading": "samples.making/history/*.try-*/base.rows.tmp-*",
    "windows": "samples.making/history/0-*.rows",
    "lines": "samples.making/train-*.tsv",
    "features": "data.making/train-*.draft",
    "shards": "data.making/train-*.shard",
}


@pytest.mark.parametrize("name", PASSES)
def test_a_worker_is_killed(raw, wanted, tmp_path, cluster, name):
    """The work goes on with the other worker, and with one that comes later."""
    sign, victim = PASSES[name], cluster.live()[0]

    def kill_one():
        until(lambda: any(tmp_path.glob(sign)), sign)
        kill(victim)
        cluster.add_worker()

    killer = threading.Thread(target=kill_one)
    killer.start()
    extract(job_of(raw, tmp_path, "features.count_above=1"), dask=cluster.address)
    killer.join()
    assert victim.returncode == -9
    assert digests(tmp_path) == wanted


def test_a_run_that_is_killed_is_taken_up(raw, wanted, tmp_path, cluster):
    """With more workers than it began with, which keep to its shares."""
    command = [
        sys.executable, "-m", "tests.extract_small", "extract", "--dask", cluster.address,
        "-c", str(ROOT / "conf" / "taobao_v16.yaml"), "--set", f"sample.dir={raw}",
        "--set", f"output.dir={tmp_path}", "--set", "features.count_above=1",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=-3, stderr=-3) as run:
        sign = "samples.making/history/1-of-*/read.json"
        until(lambda: any(tmp_path.glob(sign)), sign)
        kill(run)
    assert len(list(tmp_path.glob("dask-*.mark"))) == 1
    cluster.add_worker()
    job = job_of(raw, tmp_path, "features.count_above=1")
    extract(job, dask=cluster.address, resume=True)
    assert digests(tmp_path) == wanted
    assert extract(job, dask=cluster.address, resume=True)["stages"]["features"]["reused"]


def test_samples_without_windows(raw, tmp_path, cluster, monkeypatch):
    small(monkeypatch)
    join = f"sample.join={ROOT / 'conf' / 'taobao_sample.yaml'}"
    spec = f"features.spec={ROOT / 'conf' / 'features_base.ini'}"
    extract(job_of(raw, tmp_path / "local", join, spec))
    extract(job_of(raw, tmp_path / "dask", join, spec), dask=cluster.address)
    assert digests(tmp_path / "local") == digests(tmp_path / "dask")


def test_errors_of_tasks_are_those_of_a_local_run(raw, tmp_path, cluster):
    log = (raw / "raw_sample.csv").read_text().splitlines()
    log[700] = "1,2,3"
    source = tmp_path / "raw"
    source.mkdir()
    for path in raw.iterdir():
        (source / path.name).symlink_to(path)
    (source / "raw_sample.csv").unlink()
    (source / "raw_sample.csv").write_text("\n".join(log) + "\n")
    with pytest.raises(DataError, match=r"raw_sample.csv:701:1: expected 6 fields"):
        extract(job_of(source, tmp_path / "out"), dask=cluster.address)
    assert not list((tmp_path / "out").glob("*.mark"))


def test_a_scheduler_that_dies(raw, tmp_path, tmp_path_factory):
    def kill_it():
        until(lambda: any(tmp_path.glob(PASSES["windows"])), "windows")
        kill(cluster.scheduler)

    with dask_cluster(tmp_path_factory.mktemp("dask"), workers=1) as cluster:
        killer = threading.Thread(target=kill_it)
        killer.start()
        with pytest.raises(ClusterError, match=r"Dask scheduler tcp.*it is gone; .*--resume"):
            extract(job_of(raw, tmp_path), dask=cluster.address)
        killer.join()


def test_workers_that_do_not_see_the_files(tmp_path, cluster):
    folder = clusters.Mark(tmp_path / "elsewhere" / "dask-0.mark")
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ClusterError, match=r"Dask worker tcp.*: it does not see .*elsewhere; mount"),
    ):
        patch.setattr(clusters, "Mark", lambda _path: folder)
        (tmp_path / "elsewhere").mkdir()
        patch.setattr(Path, "touch", lambda _path: None)
        with clusters.connected(cluster.address, tmp_path, [], None):
            pass


def test_workers_that_do_not_see_an_input(tmp_path, cluster):
    with (
        pytest.raises(ClusterError, match=r"it does not see .*/nowhere; mount the folder there"),
        clusters.connected(cluster.address, tmp_path, [tmp_path / "nowhere"], None),
    ):
        pass


def test_workers_of_another_version(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("ctrps.__version__", "9.9")
    with (
        pytest.raises(ClusterError, match=r"it has ctrps .*, and this is 9.9; install the same"),
        clusters.connected(cluster.address, tmp_path, [], None),
    ):
        pass


def test_no_workers(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(clusters, "WORKERS_S", 0.2)
    with (
        dask_cluster(tmp_path_factory.mktemp("dask"), workers=0) as cluster,
        pytest.raises(ClusterError, match=r"no worker for 0.2 s; start some, .*: dask worker tcp"),
        clusters.connected(cluster.address, tmp_path, [], None),
    ):
        pass


def test_a_task_that_fails_is_tried_again(tmp_path, cluster):
    counter = tmp_path / "tries"
    with clusters.connected(cluster.address, tmp_path, [], None) as found:
        assert list(found.map(_third_time, [counter])) == ["done"]
        counter.unlink()
        with pytest.raises(ClusterError, match=r"a task failed 4 times: OSError: never; see"):
            list(found.map(_never, [counter]))


def _third_time(counter):
    from pathlib import Path

    with Path(counter).open("a+") as file:
        file.write("x")
        file.seek(0)
        if len(file.read()) < 3:
            raise OSError("not yet")
    return "done"


def _never(_counter):
    raise OSError("never")


# without a cluster


def test_no_scheduler(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "CONNECT_S", 0.5)
    with pytest.raises(ClusterError, match=r"Dask scheduler tcp://127.0.0.1:9: no answer within"):
        extract(job_of(raw, tmp_path), dask="tcp://127.0.0.1:9")


@pytest.mark.parametrize("address", ["nonsense", "ftp://a:1", "tcp://:x"])
def test_an_address_that_is_none(raw, tmp_path, address):
    with pytest.raises(ConfigError, match=r"--dask: '.*' is no address: .*give HOST:PORT"):
        extract(job_of(raw, tmp_path), dask=address)


def test_dask_is_not_installed(raw, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        ConfigError, match=r"the package distributed; .*pip install 'ctrps\[dask\]'"
    ):
        extract(job_of(raw, tmp_path), dask="127.0.0.1:1")


def test_parts_are_dealt_by_dask(raw, tmp_path):
    with pytest.raises(ConfigError, match="--dask deals the work to all workers; leave out --part"):
        extract(job_of(raw, tmp_path), dask="127.0.0.1:1", part="1/2")


def test_dask_is_imported_by_none_but_its_users():
    code = "import sys, ctrps.data.extract; sys.exit('distributed' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
