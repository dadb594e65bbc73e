"""Clusters of real processes with a job key: the right one, another one, none, the wrong role."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ctrps.ps import messages
from ctrps.ps.messages import PROTOCOL, Refused, Register
from ctrps.runtime.launch import read_json
from ctrps.runtime.security import Guard, JobKey
from ctrps.runtime.transport import Transport
from tests.procs import DEADLINE_S, Lab, Run, options, settings, trained, write_rows

pytestmark = pytest.mark.cluster


@pytest.fixture
def lab(tmp_path) -> Iterator[Lab]:
    with Lab(tmp_path) as lab:
        yield lab


@pytest.fixture
def key_file(lab) -> Path:
    JobKey.make(lab.folder / "job.key")
    return lab.folder / "job.key"


@pytest.fixture(scope="module")
def host() -> str:
    """An address of this machine that others reach; if it has none, one that looks like it."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return str(address.address)
    return "127.0.0.2"


def job(lab: Lab, folder: str = "run", **values: object) -> list[str]:
    rows = lab.folder / "train.libsvm"
    if not rows.exists():
        write_rows(rows, 1000, seed=1)
    plan = {"data_train": rows, "train_batch_rows": 16, "output_dir": lab.folder / folder}
    return settings(**(plan | values))


def everywhere(host: str) -> dict[str, object]:
    return {"cluster_scheduler": f"{host}:0", "cluster_server_bind": f"{host}:0"}


def scheduler_of(lab: Lab, overrides: list[str]) -> tuple[Run, str]:
    run = lab.start("scheduler", *options(overrides), "--json")
    file = lab.folder / "run" / "scheduler.json"
    run.until(lambda: read_json(file).get("pid") == run.process.pid, "the scheduler's address")
    return run, str(read_json(file)["address"])


@pytest.mark.parametrize("given", ["key_file", "environment", "insecure"])
def test_a_launch_on_an_address_of_the_network(lab, host, key_file, given):
    overrides, how, environ = job(lab, **everywhere(host)), [], {}
    if given == "key_file":
        overrides.append("cluster.key_file=job.key")
    elif given == "environment":
        environ["CTRPS_JOB_KEY"] = key_file.read_text()
    else:
        how.append("--insecure")
    command = ["launch", *options(overrides), "-s", "2", "-w", "2", *how, "--json"]
    run = lab.run(*command, environ=environ)
    assert run.json["model_digest"] == trained(job(lab, "train"))["model_digest"]
    assert read_json(lab.folder / "run" / "scheduler.json")["address"].startswith(f"{host}:")
    texts = [run.stderr, *(log.read_text() for log in (lab.folder / "run").rglob("*.log"))]
    warned = ["warning: " in text for text in texts]
    assert len(texts) == 6 and warned == [given == "insecure" and host != "127.0.0.2"] * 6
    secret = key_file.read_text().strip()
    files = [path for path in (lab.folder / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    lab.all_gone()


def test_without_a_key_a_network_is_not_used_at_all(lab):
    values = everywhere("192.0.2.77")
    why = "cluster.scheduler=192.0.2.77:0: a job key is needed for an address other than loopback"
    for role in ("launch", "scheduler"):
        (line,) = lab.run(role, *options(job(lab, **values)), status=2).stderr.splitlines()
        assert line.startswith(f"error: {why}; make one with `ctrps keygen`, give it to all nodes")
    found = lab.run("server", *options(job(lab)), "--scheduler", "192.0.2.77:9", status=2).stderr
    assert found.startswith("error: 192.0.2.77:9: a job key is needed for an address other than ")
    lab.all_gone()


def test_a_node_without_the_jobs_key_is_refused_and_the_job_goes_on(lab, key_file):
    other = lab.folder / "other.key"
    theirs, ours = JobKey.make(other), JobKey.read(key_file)
    keyed = job(lab, cluster_key_file=key_file)
    scheduler, address = scheduler_of(lab, keyed)
    to = ["--scheduler", address]
    bare = lab.start("worker", *options(job(lab)), *to)
    wrong = lab.start("server", *options(job(lab, cluster_key_file=other)), *to)
    assert "refused: a job key is wanted there" in bare.ends(4).stderr
    why = f"authentication refused: another job key there, or none? This node's is {theirs!r}"
    assert why.replace("JobKey(", "").replace(")", "") in wrong.ends(4).stderr
    assert "give all nodes the same key by cluster.key_file or CTRPS_JOB_KEY" in wrong.stderr
    scheduler.until(lambda: scheduler.stderr.count("refused a connection") >= 1, "a refusal")
    assert ours.fingerprint not in bare.stderr + wrong.stderr
    nodes = [lab.start(role, *options(keyed), *to) for role in ("server", "worker")]
    digest = trained(job(lab, "train"))["model_digest"]
    assert scheduler.ends(0).json["model_digest"] == digest
    assert [node.ends(0) for node in nodes]


def test_a_workers_key_does_not_make_a_server(lab, key_file):
    """The right key in the wrong role: refused, and told on both sides."""
    overrides = job(lab, cluster_key_file=key_file)
    scheduler, address = scheduler_of(lab, overrides)
    thief = Transport("server-1", None, "", "worker", Guard(JobKey.read(key_file)))
    try:
        thief.connect("scheduler", address)
        message = Register(PROTOCOL, "server", -1, "job", "", "", "server-1", "127.0.0.1:1", False)
        thief.send("scheduler", messages.encode(message))
        found: list[object] = []
        end = time.monotonic() + DEADLINE_S
        while not found:
            assert time.monotonic() < end
            for _, frames in thief.poll(0.1):
                found += messages.decode(frames)
    finally:
        thief.close()
    what = "its key is that of a worker, and it says that it is a server"
    assert found == [Refused(-1, "role", -1, what)]
    scheduler.until(lambda: f"refused a register: {what}" in scheduler.stderr, "the refusal")
    to = ["--scheduler", address]
    nodes = [lab.start(role, *options(overrides), *to) for role in ("server", "worker")]
    assert [run.ends(0) for run in (scheduler, *nodes)]


def test_a_key_that_others_can_read_starts_nothing(lab, key_file):
    key_file.chmod(0o644)
    for role in ("launch", "scheduler"):
        found = lab.run(role, *options(job(lab, cluster_key_file=key_file)), status=2).stderr
        assert found.startswith(f"error: {key_file}: others have access to this job key, its mode")
    assert not (lab.folder / "run" / "scheduler.json").exists()


def test_a_port_that_never_answers_ends_a_node_in_its_time(lab, key_file):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        overrides = job(lab, cluster_key_file=key_file, cluster_start_timeout_s=2)
        run = lab.start("worker", *options(overrides), "--scheduler", address).ends(4)
    assert f"no word from the scheduler for 2 s (scheduler at {address})" in run.stderr


def test_keygen(lab):
    run = lab.run("keygen", "my.key")
    key = JobKey.read(lab.folder / "my.key")
    assert run.stdout == f"my.key  fingerprint {key.fingerprint}\n"
    assert "cluster.key_file=my.key" in run.stderr and "CTRPS_JOB_KEY=" in run.stderr
    again = lab.run("keygen", "my.key", status=2)
    assert again.stderr.startswith("error: my.key: this file is there already")
    assert JobKey.read(lab.folder / "my.key") == key
    assert set(lab.run("keygen", "--json").json) == {"file", "fingerprint"}
    assert (lab.folder / "job.key").stat().st_mode & 0o777 == 0o600
