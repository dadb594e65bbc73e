"""The web page's server: what it answers, what it refuses, what it costs; history from files."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ctrps.errors import ConfigError
from ctrps.runtime import exposition
from ctrps.runtime import web as module
from ctrps.runtime.history import History
from ctrps.runtime.web import CONNECTIONS, FOUND, LONGEST_HEAD, ROUTES, Opened, Web, holder_of
from tests.procs import DEADLINE_S, free_port
from tests.watched import shown, watched, write_lines


@pytest.fixture
def web(tmp_path) -> Iterator[Web]:
    watch = watched(tmp_path / "run", "output.remote=s3://who:secret@bucket/model")
    watch.see(shown(1.0))
    serving = Web(watch, ("127.0.0.1", 0))
    yield serving
    serving.close()


def ask(web: Web, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(web.host, web.port, timeout=DEADLINE_S)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.body = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def raw(web: Web, *pieces: bytes) -> bytes:
    """What comes back for these bytes, to the end of the connection."""
    with socket.create_connection((web.host, web.port), DEADLINE_S) as connection:
        for piece in pieces:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while more := connection.recv(1 << 16):
            found += more
        return found


def status_of(answer: bytes) -> int:
    return int(answer.split(None, 2)[1])


@pytest.mark.parametrize(
    "path, kind, part",
    [
        ("/", "text/html; charset=utf-8", b"<!doctype html>"),
        ("/api/state", "application/json", b'"health": "'),
        ("/api/history?all", "application/json", b'"columns"'),
        ("/api/config", "application/json", b"workers: 2"),
        ("/metrics", exposition.CONTENT_TYPE, b"ctrps_rows_total 15000.0"),
        ("/healthz", "text/plain; charset=utf-8", b"nothing happened"),
        ("/readyz", "text/plain; charset=utf-8", b"ready"),
    ],
)
def test_every_address_answers_get_and_head(web, path, kind, part):
    answer, head = ask(web, path), ask(web, path, "HEAD")
    assert answer.status == (503 if path == "/healthz" else 200)
    assert answer.headers["Content-Type"] == kind and part in answer.body
    assert (head.status, head.body) == (answer.status, b"")
    assert head.headers["Content-Type"] == kind
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert "Python" not in answer.headers["Server"]


def test_no_password_of_a_url_is_shown(web):
    answer = ask(web, "/api/config")
    assert b"secret" not in answer.body and "s3://…@bucket" in json.loads(answer.body)["yaml"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X"])
def test_nothing_but_reading_is_allowed(web, method):
    answer = ask(web, "/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_a_body_is_not_read_and_the_refusal_arrives(web):
    head = b"POST /api/state HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    assert status_of(raw(web, head, b"x" * 100_000)) == 405


@pytest.mark.parametrize(
    "path, status",
    [
        ("/../../etc/passwd", 404),
        ("/..%2f..%2fetc/passwd", 404),
        ("//etc/passwd", 404),
        ("/api/state/../config", 404),
        ("/page.html", 404),
        ("/config.resolved.yaml", 404),
        ("http://evil.example/", 404),
        ("/" + "a" * 600, 414),
        ("/?" + "a" * 600, 414),
    ],
)
def test_nothing_else_is_there(web, path, status):
    answer = raw(web, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert status_of(answer) == status and b"root:" not in answer


@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost", 200),
        ("localhost:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:80", 200),
        ("LOCALHOST", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("", 421),
        ("10.0.0.7", 421),
    ],
)
def test_a_foreign_host_header_is_refused(web, host, status):
    answer = raw(web, f"GET /readyz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert status_of(answer) == status


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00\xff\x80 \x01 \x02\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"b" * LONGEST_HEAD + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost",
    ],
)
def test_what_is_no_request_gets_no_page(web, sent):
    answer = raw(web, sent)
    assert answer == b"" or 400 <= status_of(answer) < 600
    assert ask(web, "/readyz").status == 200


def test_a_mistake_of_ours_is_seen(web):
    write_lines(web.watch.folder / "metrics.jsonl", [{"phase": "train", "ts": 1.0, "rows": "many"}])
    answer = ask(web, "/api/history")
    assert answer.status == 500 and answer.body.startswith(b"internal: ValueError")
    assert ask(web, "/readyz").status == 200


def test_a_request_that_does_not_come_is_given_up(web, monkeypatch):
    monkeypatch.setattr(module, "REQUEST_S", 0.05)
    with socket.create_connection((web.host, web.port), DEADLINE_S) as connection:
        connection.sendall(b"GET / HT")
        assert b"<html" not in connection.recv(1 << 16)


def test_more_connections_than_its_places_are_turned_away(web):
    waiting = [socket.create_connection((web.host, web.port), DEADLINE_S) for _ in range(80)]
    turned = 0
    for connection in waiting[CONNECTIONS:]:
        connection.settimeout(DEADLINE_S)
        try:
            turned += connection.recv(1) == b""
        except ConnectionResetError:
            turned += 1
    for connection in waiting:
        connection.close()
    assert turned == 80 - CONNECTIONS
    # Their places are free again, as soon as the server has seen them go.
    connection = http.client.HTTPConnection(web.host, web.port, timeout=DEADLINE_S)
    for _ in range(1000):
        try:
            connection.request("GET", "/readyz")
            assert connection.getresponse().read() == b"ready\n"
            break
        except (OSError, http.client.HTTPException):
            connection.close()
            threading.Event().wait(0.01)
    else:
        raise AssertionError("nobody is let in any more")
    connection.close()


def test_a_taken_port_is_no_error_and_its_holder_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said: list[str] = []
        watch = watched(tmp_path / "run", f"cluster.http=127.0.0.1:{port}")
        with Opened(watch, said.append):
            found = json.loads((tmp_path / "run" / FOUND).read_text())
            assert found == {"url": None, "said": said[0]}
        assert said[0].startswith(f"no page: 127.0.0.1:{port}: address already in use by process ")
        assert holder_of(port).startswith("process ")
    assert holder_of(free_port()) == "another process"


def test_the_page_is_there_as_long_as_the_run(tmp_path):
    said: list[str] = []
    watch = watched(tmp_path / "run")
    with Opened(watch, said.append):
        url = json.loads((tmp_path / "run" / FOUND).read_text())["url"]
        assert said == [f"page at {url}"]
        assert url.startswith("http://127.0.0.1:")
    assert not (tmp_path / "run" / FOUND).exists() and (tmp_path / "run" / "state.json").exists()


def test_a_run_that_goes_on_after_a_kill_has_its_address_again(tmp_path):
    found, said = tmp_path / "run" / FOUND, []
    for _ in range(2):
        with Opened(watched(tmp_path / "run"), said.append):
            left = found.read_text()
        found.write_text(left)  # as a process that is killed leaves it
    assert said[0] == said[1]
    port = int(said[0].rstrip("/").rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        with Opened(watched(tmp_path / "run"), said.append):
            assert said[2].startswith("page at ") and said[2] != said[0]


def test_off_is_off(tmp_path):
    said: list[str] = []
    with Opened(watched(tmp_path / "run", "cluster.http=off"), said.append) as opened:
        assert opened._web is None and not said


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "a.example:80", "10.0.0.7:80"])
def test_other_machines_may_only_read_if_that_is_said(tmp_path, address):
    watch = watched(tmp_path / "run", f"cluster.http={address}")
    with pytest.raises(ConfigError, match="no password"):
        Opened(watch, lambda text: None)
    module.check_http(watched(tmp_path / "a", f"cluster.http={address}", "cluster.insecure=1").job)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "127.8.8.8:0"])
def test_loopback_is_for_everybody_here(tmp_path, address):
    said: list[str] = []
    with Opened(watched(tmp_path / "run", f"cluster.http={address}"), said.append):
        assert said[0].startswith("page at http://127.")


# -- history ------------------------------------------------------------------------------------


def line(number: int, **more: object) -> dict:
    figures = {"pass": number // 100, "step": number, "rows": 10 * (number % 100)}
    return {
        "phase": "train",
        "ts": 1000.0 + number,
        **figures,
        "pass_rows": 1000,
        "logloss": 0.5,
        "auc": None,
        "rows_per_s": 7.0,
        "staleness": [1, 1],
        "keys": 70,
        "wire_bytes": 100 * number,
        **more,
    }


def test_history_is_what_the_files_say(tmp_path):
    tested = {"phase": "evaluate", "ts": 1003.5, "pass": 0, "test": {"auc": 0.7, "rows": 9}}
    write_lines(tmp_path / "metrics.jsonl", [line(0), line(1), line(2), line(3), tested])
    write_lines(tmp_path / "events.jsonl", [{"ts": 1.0, "text": "worker 0 joined"}])
    found = History(tmp_path).read()
    columns = found["columns"]
    assert columns["total_rows"] == [0, 10, 20, 30]
    assert columns["rows_per_s"] == [7.0, 10.0, 10.0, 10.0]
    assert columns["bytes_per_s"] == [None, 100.0, 100.0, 100.0]
    assert columns["staleness_mean"] == [0.5] * 4 and columns["auc"] == [None] * 4
    (test,) = found["tests"]
    assert (test["auc"], test["logloss"], test["total_rows"]) == (0.7, None, 30)
    assert found["events"] == [{"ts": 1.0, "text": "worker 0 joined"}]


def test_history_goes_on_with_a_file_that_grows_and_begins_anew_with_another(tmp_path):
    path = tmp_path / "metrics.jsonl"
    history = History(tmp_path)
    assert history.read()["columns"]["ts"] == []
    write_lines(path, [line(0)], end='{"phase": "tr')
    assert history.read()["columns"]["step"] == [0]
    with open(path, "a") as file:
        file.write('ain"}\nno json\n')
    write_lines(path, [line(1)])
    assert history.read()["columns"]["step"][-1] == 1
    path.write_text("")
    assert history.read()["columns"]["step"] == []
    write_lines(path, [line(7)])
    assert history.read()["columns"]["step"] == [7]


@pytest.mark.parametrize("lines", [1, 5, 16, 17, 100, 1000])
def test_a_long_history_is_thinned_out_evenly(tmp_path, lines):
    history = History(tmp_path, points=16)
    for first in range(0, lines, 7):
        write_lines(
            tmp_path / "metrics.jsonl", [line(n) for n in range(first, min(first + 7, lines))]
        )
        steps = history.read()["columns"]["step"]
    every = history.read()["every"]
    assert len(steps) <= 16 and (steps[0], steps[-1]) == (0, lines - 1)
    gaps = {after - before for before, after in pairwise(steps[:-1])}
    assert gaps <= {every}
    assert History(tmp_path, points=16).read()["columns"]["step"] == steps


def test_lines_of_an_older_version_have_times_too(tmp_path):
    old = [line(n) for n in range(3)]
    for found in old:
        del found["ts"]
    write_lines(tmp_path / "metrics.jsonl", old)
    assert History(tmp_path).read()["columns"]["ts"] == [1.0, 2.0, 3.0]


def test_routes_are_documented():
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert all(f"`{route}`" in page for route in ROUTES)
