"""`ctrps doctor`: what it finds of this machine, and on the way to another one."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ctrps.errors import ClusterError
from ctrps.runtime import doctor, reach
from ctrps.runtime.doctor import FAIL, OK, WARN, Finding, examine, worst_first
from ctrps.runtime.security import JobKey
from tests.procs import DEADLINE_S, Lab, options, settings, write_rows


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path) as lab:
        yield lab


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


# -- this machine -------------------------------------------------------------------------------


def test_a_machine_that_runs_these_tests_is_well(tmp_path):
    findings = examine(tmp_path)
    assert FAIL not in levels(findings).values()
    assert levels(findings).keys() >= {"python", "packages", "processor", "memory", "disk"}
    assert all(finding.what for finding in findings)
    assert all(finding.hint for finding in findings if finding.level == FAIL)


def test_what_is_worst_comes_first_and_causes_before_what_follows_from_them():
    found = [Finding(str(n), level, "") for n, level in enumerate([OK, FAIL, WARN, FAIL])]
    assert [finding.name for finding in worst_first(found)] == ["1", "3", "2", "0"]


def test_what_is_not_well_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    monkeypatch.setattr(doctor, "LEAST_MEMORY", 1 << 60)
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 60)
    monkeypatch.setattr(doctor, "LEAST_FILES", 1 << 40)
    monkeypatch.setattr(doctor, "LEAST_PYTHON", (99, 0))
    monkeypatch.setattr(doctor, "can_share", lambda: False)
    monkeypatch.setattr(doctor, "can_encrypt", lambda: False)
    (tmp_path / "pages").write_text("always madvise [never]\n")
    monkeypatch.setattr(doctor, "HUGE_PAGES", tmp_path / "pages")
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    found = examine(tmp_path)
    bad = {name: level for name, level in levels(found).items() if level != OK}
    bad.pop("processor", None)
    bad.pop("kernel cache", None)
    assert bad == {
        **dict.fromkeys(("python", "packages", "encryption"), FAIL),
        **dict.fromkeys(("memory", "disk", "open files", "huge pages"), WARN),
        **dict.fromkeys(("shared memory", "own name"), WARN),
    }
    assert all(finding.hint for finding in found if finding.level != OK)


def test_a_folder_that_cannot_be_written_to_is_found(monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    assert levels(examine(Path("/")))["disk"] == FAIL


# -- the way to another machine -----------------------------------------------------------------


def test_each_step_of_the_way_ends_it():
    (name,) = reach.connect("node0.invalid:9000", None)
    assert (name.name, name.level) == ("name", FAIL)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    _, connection = reach.connect(f"127.0.0.1:{port}", None)
    assert (connection.name, connection.level) == ("connection", FAIL)
    assert "refused" in connection.what and "nothing listens there" in connection.hint


@contextmanager
def speaking(words: bytes) -> Iterator[str]:
    """Somebody else's service, which says something and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(DEADLINE_S)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (b"SSH-2.0-x\r\n", "begins with b'S': no scheduler"),
        (b"", "says nothing: no scheduler"),
        (b"{}\n", "None there"),
        (b"{[\n", "it hung up"),
    ],
)
def test_somebody_else_is_told_from_a_scheduler(words, said):
    with speaking(words) as address:
        findings = reach.connect(address, None)
    assert any(said in finding.what and finding.level == FAIL for finding in findings)


def test_two_doctors_find_both_ways_and_the_clocks(monkeypatch):
    told: list[str] = []
    ready, answered = threading.Event(), []

    def tell(line: str) -> None:
        told.append(line)
        ready.set()

    thread = threading.Thread(target=lambda: answered.extend(reach.listen("127.0.0.1:0", tell)))
    thread.start()
    assert ready.wait(DEADLINE_S)
    address = told[0].split("--connect ")[1].split("`")[0]
    # Somebody who comes by and leaves is no reason to end.
    socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))).close()
    findings = reach.connect(address, None)
    thread.join(DEADLINE_S)
    assert levels(findings) == dict.fromkeys(
        ("name", "connection", "version", "clock", "way back"), OK
    )
    assert levels(answered) == {"peer": OK}


def test_clocks_and_versions_that_differ_are_found(monkeypatch):
    ends = socket.socketpair()
    with ends[0], ends[1]:
        peer = reach._Lines(ends[1])
        peer.write({"time": 5.0})
        assert reach._clocks(reach._Lines(ends[0])).level == WARN


def test_a_taken_address_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match="cannot listen there"):
            reach.listen(address, print)


@pytest.mark.cluster
def test_a_scheduler_is_reached_and_does_not_mind(lab):
    rows = write_rows(lab.folder / "rows.libsvm", 50, seed=1)
    for name in ("job.key", "other.key"):
        JobKey.make(lab.folder / name)
    given = options(settings(data_train=rows, output_dir="run", cluster_key_file="job.key"))
    scheduler = lab.start("scheduler", *given)
    scheduler.until(lambda: "CTRPS_SCHEDULER=" in scheduler.stderr, "the scheduler's address")
    address = scheduler.stderr.partition("CTRPS_SCHEDULER=")[2].split()[0]
    (lab.folder / "job.yaml").write_text("cluster: {key_file: job.key}\n")
    (lab.folder / "other.yaml").write_text("cluster: {key_file: other.key}\n")
    run = lab.run("doctor", "--connect", address, "-c", "job.yaml", "--json")
    assert run.json["ok"]
    found = {finding["name"]: finding for finding in run.json["findings"]}
    assert "with the same protocol" in found["scheduler"]["what"]
    wrong = lab.run("doctor", "--connect", address, "-c", "other.yaml", status=4)
    assert wrong.stdout.startswith("fail  scheduler")
    assert "authentication refused" in wrong.stdout.splitlines()[0]
    assert "[E-DOCTOR]" in wrong.stderr
    nodes = [
        lab.start(role, *given, environ={"CTRPS_SCHEDULER": address})
        for role in ("server", "worker")
    ]
    assert [run.ends(0) for run in (scheduler, *nodes)]


def test_the_answer_in_json_is_one_object(lab):
    run = lab.run("doctor", "--connect", "127.0.0.1:1", "--json", status=4)
    found = json.loads(run.stdout)
    assert found["ok"] is False
    assert found["findings"][0]["name"] == "connection"
    assert run.stderr.startswith("error: connection: 127.0.0.1:1: ")
