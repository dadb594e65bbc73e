"""A run seen from outside: where it is found, what is said of it in each of its conditions."""

import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from ctrps.cli import app
from ctrps.errors import ClusterError, ConfigError
from ctrps.runtime import top
from ctrps.runtime.observe import Observed, ask, find, frozen, observe
from ctrps.runtime.top import cells, lines, over, watch
from ctrps.runtime.web import FOUND, Opened, Web
from tests.procs import free_port
from tests.watched import FIGURES, shown, watched, write_lines


@pytest.fixture
def running(tmp_path) -> Iterator[Web]:
    """A run whose page is open, in ``runs/one`` below ``tmp_path``."""
    (tmp_path / "runs").mkdir()
    watch = watched(tmp_path / "runs" / "one")
    watch.see(shown(1.0, test={"auc": 0.75, "logloss": 0.4}))
    watch.stuck_s = lambda now: 0.0  # type: ignore[method-assign]
    with Opened(watch, lambda text: None) as opened:
        assert opened._web
        yield opened._web


def test_a_run_is_found_by_folder_address_url_or_alone(running, tmp_path):
    folder, address = running.watch.folder, f"127.0.0.1:{running.port}"
    assert find(str(folder), tmp_path) == find(None, tmp_path) == find(None, folder) == folder
    assert find(address, tmp_path) == find(running.url, tmp_path) == address
    for place in (folder, address):
        seen = observe(place)
        assert (seen.well, seen.url) == (False, running.url)  # its loop has long been seen last
        assert seen.state["run"] == str(folder)


def test_what_cannot_be_found_is_said(running, tmp_path):
    with pytest.raises(ConfigError, match="neither the folder of a run nor an address"):
        find("nowhere", tmp_path)
    with pytest.raises(ConfigError, match="no running job is to be found"):
        find(None, tmp_path / "runs")
    with pytest.raises(ConfigError, match="this folder is not that of a run"):
        observe(tmp_path)
    with Opened(watched(tmp_path / "runs" / "two"), lambda text: None):
        with pytest.raises(ConfigError, match="several runs are here: runs/one, runs/two"):
            find(None, tmp_path)


def test_a_run_without_a_process_is_stopped(tmp_path):
    folder = watched(tmp_path / "run").folder
    for owner in ("", "none", "999999999"):
        (folder / ".lock").write_text(owner)
        seen = observe(folder)
        assert (seen.health, seen.well, over(seen)) == ("stopped", False, True)
    assert "the same command again goes on with it" in seen.why


def test_a_run_that_has_no_page_yet_is_starting(tmp_path):
    folder = watched(tmp_path / "run").folder
    (folder / ".lock").write_text(f"{os.getpid()}\n")
    seen = observe(folder)
    assert (seen.health, seen.well, seen.why) == ("starting", True, "it has no page yet")
    (folder / FOUND).write_text(json.dumps({"url": None, "said": "no page: 127.0.0.1:80: taken"}))
    assert observe(folder).why == "no page: 127.0.0.1:80: taken"
    assert observe(folder).health == "unreachable"


def test_the_port_of_a_killed_run_may_belong_to_another(running, tmp_path):
    killed = watched(tmp_path / "killed").folder
    (killed / FOUND).write_text(json.dumps({"url": running.url, "said": ""}))
    assert observe(killed).health == "stopped"


def test_a_finished_run_has_its_summary(tmp_path):
    watch = watched(tmp_path / "run", kind="process")
    watch.see(shown(1.0, nodes=[]))
    watch.close()
    (watch.folder / "summary.json").write_text('{"test": {"auc": 0.75, "logloss": 0.4}}')
    seen = observe(watch.folder)
    assert (seen.health, seen.well) == ("finished", True)
    said = list(lines(seen))
    assert said[0] == f"run           job in {watch.folder}; ■ finished"
    assert said[1].startswith("progress      pass 2  50 %  step 5/10  5,000 rows  900 rows/s")
    assert said[2] == "test          AUC 0.750000, logloss 0.400000"
    assert seen.as_dict()["summary"]["test"]["auc"] == 0.75


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.0 200 OK\r\n\r\nhello", b"HTTP/1.0 200 OK\r\n\r\n[]"]
)
def test_what_answers_may_be_another_program(answer):

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ClusterError, match=r"no answer|no run of ctrps"):
            ask(f"127.0.0.1:{server.getsockname()[1]}", "/api/state")
        thread.join()


def test_nobody_there_is_unreachable():
    seen = observe(f"127.0.0.1:{free_port()}")
    assert (seen.health, seen.why) == ("unreachable", "no answer: connection refused")


def test_a_node_in_words(tmp_path):
    run = watched(tmp_path / "run")
    run.see(shown(1.0))
    scheduler, server, worker, _ = run.state(1.0)["nodes"]
    assert cells(scheduler)[:4] == ("scheduler", "0", "up", "-")
    assert cells(server)[6:9] == ("-", "95 MiB", "70")
    assert cells(worker)[:5] == ("worker", "0", "up", "0.0 s", "-")


def test_top_into_a_file_is_a_line_for_each_change(tmp_path, monkeypatch):
    monkeypatch.setattr(top, "_pause", lambda seen: None)
    run = watched(tmp_path / "run")
    run.see(shown(1.0))
    first, ended = observe_of(run, "healthy"), observe_of(run, "finished", url="")
    looks = iter([first, first, ended])
    with open(tmp_path / "out", "w+") as out, open(os.devnull) as keys:
        assert watch(lambda: next(looks), out, keys) is ended
        out.seek(0)
        one, two = (line.partition(" ")[2] for line in out.read().splitlines())
    assert one.startswith("healthy  pass 2  50 %") and two.endswith("; ■ finished")


def observe_of(run, health: str, url: str = "http://127.0.0.1:9/"):
    return Observed(health, run.state(1.0), url)


def test_the_report_of_a_run_that_was_killed_has_what_is_there(tmp_path):
    folder = watched(tmp_path / "run").folder
    write_lines(folder / "metrics.jsonl", [{"phase": "train", "ts": 5.0, **FIGURES}], end='{"ph')
    page = frozen(folder)
    data = json.loads(page.partition('type="application/json">')[2].partition("</script>")[0])
    assert (data["health"], data["state"]["logloss"]) == ("stopped", 0.51)
    assert data["state"]["total_rows"] == 15000
    assert data["history"]["columns"]["ts"] == [5.0] and "workers: 2" in data["config"]
    assert page.count("<script") == 2 and page.endswith("</html>\n")


def run_command(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        app([str(argument) for argument in arguments])
    return int(ended.value.code or 0), *capsys.readouterr()


def test_the_commands_end_with_a_status(running, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run_command(capsys, "status", "--json")
    assert (status, err) == (4, "") and json.loads(out)["health"] == "degraded"
    status, out, _ = run_command(capsys, "status", running.url)
    assert status == 4 and out.splitlines()[1].startswith("problem       no progress for ")
    status, out, err = run_command(capsys, "report", running.watch.folder)
    assert (status, out) == (0, "") and err.startswith("run.html: ")
    status, out, _ = run_command(capsys, "report", running.watch.folder, "-o", "-")
    assert status == 0 and out.startswith("<!doctype html>") and "15000" in out
    status, _, err = run_command(capsys, "report", running.watch.folder, "-o", "no/where.html")
    assert status == 3 and "no/where.html: cannot write there: no such file" in err.lower()
    assert run_command(capsys, "report", tmp_path)[0] == 2
    assert run_command(capsys, "top", "nowhere")[0] == 2
