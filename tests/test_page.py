"""A running cluster, looked at: its API, its page in a browser, ``status``, ``top``, ``report``."""

import json
import os
import pty
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.browser import Browser, chromium
from tests.procs import Lab, Run, options, read_lines, settings, write_rows

pytestmark = pytest.mark.cluster


class Running:
    """A cluster of two servers and two workers that trains until the tests are over."""

    def __init__(self, lab: Lab, process: Run, folder: Path):
        self.lab, self.process, self.folder = lab, process, folder

    @property
    def url(self) -> str:
        return str(json.loads((self.folder / "http.json").read_text())["url"])

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path) as answer:
            return bytes(answer.read())

    def ask(self, path: str) -> dict[str, Any]:
        return dict(json.loads(self.get(path)))

    def until(self, seen: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """Wait for a state, and return it."""
        found: list[dict[str, Any]] = []

        def look() -> object:
            found[:] = [self.ask("api/state")]
            return seen(found[0])

        self.process.until(look, what)
        return found[0]


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("watched")
    given = settings(
        data_train=write_rows(folder / "train.svm", 4000, 1),
        data_test=write_rows(folder / "test.svm", 400, 2),
        output_dir=folder / "runs" / "watched",
        output_remote=f"file://{folder}/copy",
        output_log__format="json",
        train_passes=100_000,
        train_batch__rows=16,
        train_consistency="async",
        train_evaluate="pass",
        cluster_server__wait__s=60,
        name="watched <job>",
    )
    with Lab(folder) as lab:
        told = [text.replace("__", "_") for text in given]
        process = lab.start("launch", "-s", "2", "-w", "2", *options(told))
        run = Running(lab, process, folder / "runs" / "watched")
        process.until((run.folder / "http.json").exists, "the address of the page")
        run.until(
            lambda state: state["pass"] and state["test"], "figures of a pass and of the test"
        )
        yield run


def test_the_address_is_said_at_the_start(running):
    running.process.until(lambda: f"page at {running.url}\n" in running.process.stderr, "the line")


def test_the_state_of_a_cluster(running):
    state = running.until(
        lambda s: s["staleness"] and all(n["busy"] for n in s["nodes"] if n["node"] >= 0),
        "staleness, and shares of the time",
    )
    assert (state["job"], state["kind"], state["health"]) == ("watched <job>", "cluster", "healthy")
    assert state["total_rows"] == state["pass"] * state["pass_rows"] + state["rows"] >= 4000
    assert state["keys"] == 300 and 0 < state["test"]["auc"] <= 1
    roles = [(n["role"], n["rank"], n["state"]) for n in state["nodes"]]
    several = [(role, rank, "up") for role in ("server", "worker") for rank in (0, 1)]
    assert roles == [("scheduler", 0, "up"), *several]
    for node in state["nodes"]:
        assert node["rss_bytes"] > 1e7 and node["heard_s"] < 60
        assert node["node"] < 0 or 0 < node["busy"] <= 1
    assert sum(n["keys"] for n in state["nodes"] if n["role"] == "server") == 300
    assert running.get("healthz") == b"ok\n" and running.get("readyz") == b"ready\n"
    assert "file://" in running.ask("api/config")["yaml"]


def test_the_history_is_the_file(running):
    lines = [m for m in read_lines(running.folder / "metrics.jsonl") if m["phase"] == "train"]
    found = running.ask("api/history")
    assert found["columns"]["ts"][: len(lines)] == [line["ts"] for line in lines]
    assert max(b or 0 for b in found["columns"]["bytes_per_s"]) > 0
    assert len(found["tests"]) >= 1
    assert any("worker 1 joined" in event["text"] for event in found["events"])


def test_prometheus_can_read_a_real_run(running):
    found = {f.name: f for f in text_string_to_metric_families(running.get("metrics").decode())}
    pushes = [s.value for s in found["ctrps_server_push_seconds"].samples if s.name.endswith("nt")]
    assert len(pushes) == 2 and min(pushes) > 0
    sent: dict[str, float] = {"sent": 0.0, "received": 0.0}
    for sample in found["ctrps_node_network_bytes"].samples:
        assert sample.value > 0
        sent[sample.labels["direction"]] += sample.value
    assert 0.5 < sent["sent"] / sent["received"] < 2


def points(browser: Browser, chart: str) -> int:
    return int(browser.until(f"document.querySelector('[aria-label=\"{chart}\"]').dataset.points"))


def test_the_page_in_a_browser(running, tmp_path):
    with chromium(tmp_path) as browser:
        browser.prefer("light")
        browser.open(running.url)
        browser.until(
            "document.querySelectorAll('figure[data-points]:not([data-points=\"0\"])').length"
        )
        before = {
            chart: points(browser, chart) for chart in ("Log loss", "AUC", "Bytes per second")
        }
        assert browser.value("document.getElementById('job').textContent") == "watched <job>"
        for chart, count in before.items():
            figure = f"document.querySelector('[aria-label=\"{chart}\"]')"
            browser.until(f"{figure}.dataset.points > {count}")
            assert browser.value(f"{figure}.querySelector('path').getAttribute('d')").startswith(
                "M"
            )
        assert browser.value("document.querySelectorAll('figure:not([hidden])').length") == 5
        light = browser.screenshot(tmp_path / "light.png")
        browser.prefer("dark")
        browser.until("document.documentElement.dataset.theme === 'dark'")
        assert browser.screenshot(tmp_path / "dark.png") != light
        keys_lead_everywhere(browser)
        browser.call("Page.reload")
        browser.until(
            "document.querySelectorAll('figure[data-points]:not([data-points=\"0\"])').length"
        )
        assert points(browser, "Log loss") >= before["Log loss"]
        assert browser.value("document.querySelectorAll('[src], link[href^=http]').length") == 0
        assert not browser.complaints


def keys_lead_everywhere(browser: Browser) -> None:
    browser.value("document.getElementById('tab-charts').focus()")
    browser.press("ArrowRight")
    assert browser.value("document.activeElement.id") == "tab-nodes"
    assert browser.value("!document.getElementById('nodes').hidden")
    text = browser.until("document.getElementById('rows').innerText")
    assert text.count("● up") == 5, "a state has a sign and a word"
    browser.press("End")
    assert "workers: 2" in browser.until("document.getElementById('yaml').innerText")
    browser.press("ArrowLeft")
    assert "worker 1 joined" in browser.until("document.getElementById('list').innerText")
    browser.press("Home")
    figure = "document.querySelector('[aria-label=\"Log loss\"]')"
    browser.value(f"{figure}.focus()")
    browser.press("Home")
    browser.until(f"{figure}.querySelectorAll('.cursor').length")
    assert "at 0.0 s" in browser.value(f"{figure}.querySelector('output').value")


def test_status_finds_the_run_alone(running):
    found = running.lab.run("status", "--json").json
    assert (found["health"], found["url"]) == ("healthy", running.url)
    shown = running.lab.run("status", running.folder).stdout
    assert "● healthy" in shown and running.url in shown and "worker     1     up" in shown


def test_top_on_a_terminal_until_q(running):
    ours, its = pty.openpty()
    pid = os.fork()
    if pid == 0:
        for number in (0, 1, 2):
            os.dup2(its, number)
        command = [sys.executable, "-m", "ctrps", "top", str(running.folder)]
        os.execvpe(command[0], command, terminal())
    os.close(its)
    seen = b""
    while b"q quits" not in seen:
        seen += os.read(ours, 1 << 16)
    os.write(ours, b"q")
    while True:
        try:
            if not os.read(ours, 1 << 16):
                break
        except OSError:  # the other end is closed
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(ours)
    assert "● healthy" in seen.decode() and "rows/s" in seen.decode()


def terminal() -> dict[str, str]:
    return {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}


def test_top_into_a_pipe_is_lines(running):
    process = running.lab.start("top", running.folder)
    process.until(lambda: process.stdout.count("\n") >= 1, "a line")
    process.send(signal.SIGTERM)
    process.wait()
    assert "healthy  pass " in process.stdout and "\x1b" not in process.stdout


def test_a_worker_that_stops_is_seen_and_so_is_its_return(running):
    worker = running.process.child("worker", 1)
    worker.suspend()
    try:
        running.until(lambda state: state["health"] == "degraded", "the loss of a worker")
        found = running.lab.run("status", running.folder, "--json", status=4).json
        assert found["problems"][0].startswith("1 of 2 workers missing: worker 1 is lost")
        assert (
            "problem       1 of 2 workers"
            in running.lab.run("status", running.folder, status=4).stdout
        )
    finally:
        worker.resume()
    state = running.until(lambda state: state["health"] == "healthy", "its return")
    assert [n["state"] for n in state["nodes"] if n["role"] == "worker"].count("lost") == 1
    text = running.get("metrics").decode()
    assert 'ctrps_nodes{role="worker",state="lost"} 1.0' in text
    list(text_string_to_metric_families(text))


def test_logs_are_lines_of_json(running):
    for role, rank in (("scheduler", 0), ("server", 1), ("worker", 0)):
        lines = read_lines(running.folder / "logs" / f"{role}-{rank}.log")
        for line in lines:
            assert (line["job"], line["role"], line["rank"]) == ("watched <job>", role, rank)
            assert line["level"] == "info" and line["text"] and line["ts"].endswith("Z")
            assert isinstance(line["step"], int)
        assert lines


def test_a_report_of_a_running_job_has_its_data(running, tmp_path):
    running.lab.run("report", running.folder, "-o", tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    text = page.partition('<script id="frozen" type="application/json">')[2]
    text = text.partition("</script>")[0]
    assert "<" not in text
    data = json.loads(text)
    assert (data["state"]["job"], data["health"]) == ("watched <job>", "healthy")
    assert len(data["state"]["nodes"]) >= 5 and len(data["history"]["columns"]["ts"]) > 1
    assert "workers: 2" in data["config"]


def test_page_and_history_outlive_a_killed_scheduler(running):
    url, before = running.url, running.ask("api/history")
    killed = running.process.child("scheduler")
    killed.kill()

    def another() -> bool:
        try:
            return bool(running.ask("api/state")["pid"] != killed.pid)
        except OSError:
            return False

    running.process.until(another, "another scheduler")
    assert running.url == url
    running.until(lambda s: s["health"] == "healthy" and s["phase"] == "training", "training")
    after = running.ask("api/history")
    assert after["columns"]["ts"][0] == before["columns"]["ts"][0]
    assert after["events"][: len(before["events"])] == before["events"]
    assert [event["text"] for event in after["events"]].count(f"page at {url}") == 2


def test_a_run_that_is_stopped_says_so(running):
    running.process.send(signal.SIGINT)
    running.process.ends(75)
    found = running.lab.run("status", running.folder, "--json", status=4).json
    assert (found["health"], found["phase"], found["url"]) == ("stopped", "ended", None)
    assert "□ stopped" in running.lab.run("top", running.folder, status=4).stdout
    assert not (running.folder / "http.json").exists()


def test_an_error_is_the_last_line_of_a_log_of_json(tmp_path):
    given = settings(output_dir=tmp_path / "run", cluster_start__timeout__s=0.3)
    told = [text.replace("__", "_") for text in given] + ["output.log_format=json"]
    with Lab(tmp_path) as lab:
        ended = lab.run("worker", "--scheduler", "127.0.0.1:1", *options(told), status=4)
    last = json.loads(ended.stderr.splitlines()[-1])
    assert (last["level"], last["role"], last["fields"]) == ("error", "worker", {"exit_status": 4})
    assert last["text"].startswith("error: no word from the scheduler")


# -- one process --------------------------------------------------------------------------------


def test_train_has_a_page_while_it_trains(tmp_path):
    folder = tmp_path / "runs" / "alone"
    given = settings(
        data_train=write_rows(tmp_path / "train.svm", 2000, 1),
        data_test=write_rows(tmp_path / "test.svm", 200, 2),
        output_dir=folder,
        train_passes=100_000,
    )
    with Lab(tmp_path) as lab:
        process = lab.start("train", *options(given))
        run = Running(lab, process, folder)
        process.until((folder / "http.json").exists, "the address of the page")
        state = run.until(lambda state: state["pass"], "a pass")
        assert (state["kind"], state["health"], state["wanted"]) == ("process", "healthy", {})
        assert [node["role"] for node in state["nodes"]] == ["train"]
        assert b'ctrps_phase{phase="training"}' in run.get("metrics")
        assert f"page at {run.url}" in process.stderr
        process.send(signal.SIGTERM)
        process.ends(75)
        lab.run("status", folder, status=4)


def test_a_finished_run_is_well(tmp_path):
    data = write_rows(tmp_path / "train.svm", 2000, 1)
    given = options(settings(data_train=data, data_test=data, output_dir=tmp_path / "run"))
    with Lab(tmp_path) as lab:
        lab.run("train", *given, "--progress", "none")
        found = lab.run("status", tmp_path / "run", "--json").json
        assert (found["health"], found["phase"]) == ("finished", "ended")
        assert found["summary"]["rows"] == 2000
        assert "■ finished" in lab.run("top", tmp_path / "run").stdout
        lab.run("report", tmp_path / "run", "-o", tmp_path / "r.html")
        with chromium(tmp_path) as browser:
            browser.open((tmp_path / "r.html").as_uri())
            browser.until("document.querySelector('figure')?.dataset.points > 0")
            assert "finished" in browser.value("document.getElementById('health').textContent")
            assert not browser.complaints
