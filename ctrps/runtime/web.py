"""The web page of a run: a small HTTP server that can only be read from.

It answers GET and HEAD of the few addresses in ``ROUTES``, each from what the run has shown
(``ctrps.runtime.watch``) or written; no file is served by its name. The page itself is
``page.html``. Threads of this server never touch what trains.
"""

import base64
import errno
import functools
import hashlib
import io
import ipaddress
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from ctrps.config import JobConfig
from ctrps.errors import ConfigError
from ctrps.runtime.facts import FOUND, PAGE, config_of, plain, read_json, write_json
from ctrps.runtime.history import History
from ctrps.runtime.watch import Watch
from ctrps.sections import parse_address

SETTING = "cluster.http"
OFF = "off"

LONGEST_HEAD = 16 << 10
LONGEST_PATH = 512
REQUEST_S = 5.0
"""For the head of a request, and again for taking the answer."""

CLOSE_S = 0.05
"""How soon the server sees that it shall end, and so how much later a run may end."""

CONNECTIONS = 32
"""At a time; whoever comes above that is turned away."""

LOOPBACK_NAMES = ("localhost",)
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Answer(NamedTuple):
    """A body of a kind, under a status."""

    kind: str
    body: bytes
    status: int = HTTPStatus.OK


def as_json(value: dict[str, Any], status: int = HTTPStatus.OK) -> Answer:
    """``value``, where numbers that are not finite become null."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(plain(value), allow_nan=False)
    return Answer("application/json", text.encode() + b"\n", status)


def as_text(text: str, status: int = HTTPStatus.OK) -> Answer:
    return Answer("text/plain; charset=utf-8", text.encode("utf-8", "replace") + b"\n", status)


class Web(ThreadingHTTPServer):
    """Serves the page of one run, in threads of its own.

    Parameters
    ----------
    watch
    address
        ``(host, port)``; port 0 lets the system choose.

    Raises
    ------
    OSError
        Nobody can listen there.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, watch: Watch, address: tuple[str, int]):
        self.watch = watch
        self.history = History(watch.folder)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, Handler)
        host, port = self.server_address[:2]
        self.host = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        self.port = int(port)
        self.hosts = {address[0].lower(), self.host, *LOOPBACK_NAMES}
        self._thread = threading.Thread(target=self.serve_forever, args=(CLOSE_S,), daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        """As of TCP alone: what http.server does here may ask name servers for a while."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def known_host(self, header: str) -> bool:
        """Whether a Host header names this machine, as far as only this machine may ask.

        A page of elsewhere whose name is made to lead to 127.0.0.1 would have its own name there
        (DNS rebinding). On other addresses, which a name may rightly lead to, any is good.
        """
        name = header.strip().lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        return not is_loopback(self.host) or name in self.hosts or is_loopback(name)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news, and nothing that it sends may fill a log."""

    def close(self) -> None:
        """Answer nobody any more."""
        self.shutdown()
        self._thread.join()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request, which must come within its time and size; then the connection is closed."""

    server: Web
    server_version = "ctrps"
    sys_version = ""
    protocol_version = "HTTP/1.0"

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(io.BytesIO(_head(self.connection)))  # type: ignore[arg-type]
        self.connection.settimeout(REQUEST_S)

    def finish(self) -> None:
        super().finish()
        _let_go(self.connection)

    def do_GET(self) -> None:
        self._answer(self._found())

    do_HEAD = do_GET

    def _found(self) -> Answer:
        path = self.path.partition("?")[0]
        if len(self.path) > LONGEST_PATH:
            return as_text("the address is too long", HTTPStatus.REQUEST_URI_TOO_LONG)
        if not self.server.known_host(self.headers.get("Host", "")):
            return as_text("this page is for its own machine only", HTTPStatus.MISDIRECTED_REQUEST)
        route = ROUTES.get(path)
        if route is None:
            there = " ".join(ROUTES)
            return as_text(f"nothing is here; there are {there}", HTTPStatus.NOT_FOUND)
        try:
            return route(self.server)
        except Exception as error:  # a mistake in ctrps shall be seen, and end nothing
            what = f"internal: {type(error).__name__}: {error}"
            return as_text(what, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Content-Security-Policy", policy())
        for name, value in SAFE.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Of requests that are none, and methods that are not there."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "this server can only be read from"
        self.request_version = "HTTP/1.0"
        self._answer(as_text(message or HTTPStatus(code).phrase, code))

    def send_response(self, code: int, message: str | None = None) -> None:
        super().send_response(code, message)
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""


def _head(connection: socket.socket) -> bytes:
    """The head of a request; of one that is late or too long what has come of it, or nothing."""
    deadline, head = time.monotonic() + REQUEST_S, b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        left = deadline - time.monotonic()
        if left <= 0 or len(head) > LONGEST_HEAD:
            return head.partition(b"\n")[0][:LONGEST_HEAD] + b"\r\n\r\n" if head else b""
        connection.settimeout(left)
        try:
            more = connection.recv(4096)
        except OSError:
            return b""
        if not more:
            return b""
        head += more
    return head


def _let_go(connection: socket.socket) -> None:
    """Read on for a moment: to close with something unread would take the answer back."""
    deadline = time.monotonic() + 1.0
    try:
        connection.shutdown(socket.SHUT_WR)
        for _ in range(16):
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            if not connection.recv(1 << 16):
                return
    except OSError:
        return


@functools.cache
def policy() -> str:
    """The Content-Security-Policy: the page's own script and style, its own server, no more."""
    text = PAGE.read_text("utf-8")

    def allowed(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()) for part in found)
        return " ".join(f"'sha256-{digest.decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {allowed('script')}; style-src {allowed('style')}; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _page(web: Web) -> Answer:
    return Answer("text/html; charset=utf-8", PAGE.read_bytes())


def _metrics(web: Web) -> Answer:
    # Its import takes a while, which only those wait for who want it.
    from ctrps.runtime import exposition

    return Answer(exposition.CONTENT_TYPE, exposition.text(web.watch.state()))


def _health(web: Web) -> Answer:
    if stuck_s := web.watch.stuck_s(time.monotonic()):
        why = f"nothing happened for {stuck_s:.0f} s"
        return as_text(why, HTTPStatus.SERVICE_UNAVAILABLE)
    return as_text("ok")


def _ready(web: Web) -> Answer:
    if web.watch.ready:
        return as_text("ready")
    waits = web.watch.state()["waits_for"] or "the first step"
    return as_text(f"waiting for {waits}", HTTPStatus.SERVICE_UNAVAILABLE)


ROUTES: dict[str, Callable[[Web], Answer]] = {
    "/": _page,
    "/api/state": lambda web: as_json(web.watch.state()),
    "/api/history": lambda web: as_json(web.history.read()),
    "/api/config": lambda web: as_json({"yaml": config_of(web.watch.folder)}),
    "/metrics": _metrics,
    "/healthz": _health,
    "/readyz": _ready,
}


class Opened:
    """The page of a run, for as long as the context lasts; or none, and a line that says why.

    Parameters
    ----------
    watch
        Of a job, whose ``cluster.http`` says where.
    tell
        Takes that line, or where the page is.

    Raises
    ------
    ConfigError
        Other machines could reach it, and ``cluster.insecure`` does not permit that.
    """

    def __init__(self, watch: Watch, tell: Callable[[str], None]):
        check_http(watch.job)
        self._watch = watch
        self._web: Web | None = None
        setting = watch.job.cluster.http
        said = "" if setting == OFF else self._open(setting)
        url = self._web.url if self._web else None
        with suppress(OSError):  # who does not find it is told by the line below
            write_json(watch.folder / FOUND, {"url": url, "said": said})
        if said:
            tell(said)

    def _open(self, setting: str) -> str:
        host, port = parse_address(setting)
        try:
            self._web = self._listen(host, port)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            holder = f" by {holder_of(port)}" if error.errno == errno.EADDRINUSE else ""
            return f"no page: {setting}: {why}{holder}; {SETTING}=127.0.0.1:0 takes a free port"
        return f"page at {self._web.url}"

    def _listen(self, host: str, port: int) -> Web:
        """Where a process of this run was that got killed, if it is free: readers wait there."""
        before = read_json(self._watch.folder / FOUND).get("url")
        if before and not port:
            with suppress(OSError):
                return Web(self._watch, (host, parse_address(str(before)[len("http://") : -1])[1]))
        return Web(self._watch, (host, port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the last state in the run's folder, and answer nobody any more."""
        self._watch.close()
        if self._web:
            self._web.close()
        (self._watch.folder / FOUND).unlink(missing_ok=True)


def check_http(job: JobConfig) -> None:
    """Raise ConfigError if the page would be open to other machines and nobody has said so."""
    setting = job.cluster.http
    if setting == OFF or job.cluster.insecure:
        return
    host = parse_address(setting)[0]
    if is_loopback(host) or host.lower() in LOOPBACK_NAMES:
        return
    raise ConfigError(
        "the page has no password: who reaches it can read figures and settings of the run",
        where=f"{SETTING}={setting}",
        hint="use 127.0.0.1 and `ssh -L`, or permit it with cluster.insecure=true",
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def holder_of(port: int) -> str:
    """Who listens on a port, as far as this user may know."""
    import psutil

    try:
        for found in psutil.net_connections("tcp"):
            here = tuple(found.laddr)[1:] == (port,)
            if here and found.status == psutil.CONN_LISTEN and found.pid:
                return f"process {found.pid} ({psutil.Process(found.pid).name()})"
    except psutil.Error:
        pass
    return "another process"
