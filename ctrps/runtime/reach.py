"""Whether two machines reach each other: names, ports, firewalls, keys, versions, clocks.

``connect`` asks whatever listens at an address. A scheduler answers a registration that it must
refuse, so that the job does not notice. ``listen`` waits for the ``connect`` of another machine and
connects back to it, which tells the other direction, too; the two exchange single lines of JSON.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from ctrps import __version__
from ctrps.config import parse_address
from ctrps.errors import ClusterError, CtrpsError
from ctrps.ps import messages
from ctrps.ps.effects import SCHEDULER
from ctrps.ps.messages import PROTOCOL, Refused, Register
from ctrps.runtime.doctor import FAIL, OK, WARN, Finding
from ctrps.runtime.security import Guard, JobKey, is_loopback, resolve
from ctrps.runtime.transport import Transport

PATIENCE_S = 5.0
LISTEN_S = 600.0
LONGEST_LINE = 1000
SKEW_S = 1.0
"""Clocks farther apart make logs of two machines hard to read; nothing else depends on them."""

ZMTP = b"\xff"
"""The first byte of all that speak ZeroMQ's protocol (ZMTP 3, RFC 23)."""

Tell = Callable[[str], None]


def connect(address: str, key: JobKey | None) -> list[Finding]:
    """Examine the way to a scheduler, or to a ``listen``; ends with the first thing that fails.

    Parameters
    ----------
    address
        ``HOST:PORT``.
    key
        The job key, for a scheduler that wants one.

    Raises
    ------
    ConfigError
        It is no address.
    """
    parse_address(address)
    return list(_connect(address, key))


def _connect(address: str, key: JobKey | None) -> Iterator[Finding]:
    host, port = parse_address(address)
    try:
        literal = resolve(host).strip("[]")
    except ClusterError as error:
        yield Finding("name", FAIL, f"{host}: {error.what}", "check its spelling, or /etc/hosts")
        return
    yield Finding("name", OK, f"{host} is {literal}")
    began = time.monotonic()
    try:
        sock = socket.create_connection((literal, port), PATIENCE_S)
    except OSError as error:
        yield Finding("connection", FAIL, f"{address}: {_why(error)}", _remedy(error))
        return
    with sock:
        took, here = time.monotonic() - began, sock.getsockname()[0]
        what = f"{address} in {1000 * took:.1f} ms; this machine is {here} for it"
        yield Finding("connection", OK, what)
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except OSError:
            first = b""
        if first == b"{":
            yield from _other_doctor(sock, here)
            return
    if first == ZMTP:
        yield _scheduler(address, key)
    else:
        said = f"something that begins with {first!r}" if first else "something that says nothing"
        yield Finding("peer", FAIL, f"{said}: no scheduler", "is this the scheduler's address?")


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {PATIENCE_S:.0f} s"
    return (error.strerror or str(error)).lower()


def _remedy(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: is the scheduler running, and not on loopback only?"
    return "is the machine up, and does a firewall let this port through?"


def _scheduler(address: str, key: JobKey | None) -> Finding:
    """What a scheduler answers to a registration for no job."""
    boot = f"doctor-{os.urandom(8).hex()}"
    # Without a key the message is one that anybody may read.
    transport = Transport(boot, role="worker", guard=Guard(key, insecure=True))
    try:
        transport.connect(SCHEDULER, address)
        register = Register(PROTOCOL, "worker", -1, "", "", "", boot, "", False)
        began = time.monotonic()
        transport.send(SCHEDULER, messages.encode(register))
        while time.monotonic() < began + PATIENCE_S:
            for _, frames in transport.poll(0.1):
                for message in messages.decode(frames):
                    if isinstance(message, Refused):
                        return _answered(message, time.monotonic() - began)
    except CtrpsError as error:
        return Finding("scheduler", FAIL, error.what, error.hint or "")
    finally:
        transport.close()
    hint = "is it a scheduler, and is it stopped or overloaded?"
    return Finding("scheduler", FAIL, f"no answer in {PATIENCE_S:.0f} s", hint)


def _answered(message: Refused, took_s: float) -> Finding:
    if message.why == "protocol":
        return Finding(
            "scheduler", FAIL, message.detail, "install the same version on all machines"
        )
    what = f"answers in {1000 * took_s:.1f} ms, with the same protocol ({PROTOCOL})"
    hint = "the other direction and clocks: `ctrps doctor --listen HOST:PORT` there"
    return Finding("scheduler", OK, what, hint)


def _other_doctor(sock: socket.socket, here: str) -> Iterator[Finding]:
    """Versions, clocks and the way back, with a ``listen`` at the other end."""
    peer = _Lines(sock)
    try:
        hello = peer.read()
        version = str(hello.get("ctrps"))[:40]
        same = version == __version__
        hint = "" if same else "install the same version on all machines"
        yield Finding("version", OK if same else FAIL, f"{version} there, {__version__} here", hint)
        yield _clocks(peer)
        with socket.create_server((here, 0), family=sock.family) as listening:
            peer.write({"back": listening.getsockname()[1]})
            back = str(peer.read().get("back"))[:100]
    except (OSError, ValueError) as error:
        yield Finding("peer", FAIL, f"it hung up: {error}", "look at its screen")
        return
    hint = "" if not back else "a firewall here? Servers must be reached by workers"
    what = back or f"it connects to a port of {here}"
    yield Finding("way back", FAIL if back else OK, what, hint)


def _clocks(peer: "_Lines") -> Finding:
    began = time.time()
    peer.write({"ask": "time"})
    theirs = float(peer.read()["time"])
    took = time.time() - began
    skew = theirs - (began + took / 2)
    apart = abs(skew) > SKEW_S
    what = f"{skew:+.3f} s there, round trip {1000 * took:.1f} ms"
    hint = "set them by NTP: times in logs do not fit each other" if apart else ""
    return Finding("clock", WARN if apart else OK, what, hint)


class _Lines:
    """Single lines of JSON over a connection."""

    def __init__(self, sock: socket.socket):
        self._sock = sock
        sock.settimeout(PATIENCE_S)

    def write(self, value: dict[str, Any]) -> None:
        self._sock.sendall(json.dumps(value).encode() + b"\n")

    def read(self) -> dict[str, Any]:
        """The next object; ValueError for anything else."""
        line = b""
        while not line.endswith(b"\n"):
            got = self._sock.recv(1)
            if not got or len(line) >= LONGEST_LINE:
                raise ValueError("no line of JSON came")
            line += got
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("no object of JSON came")
        return found


def listen(address: str, tell: Tell) -> list[Finding]:
    """Wait for the ``connect`` of another machine, and answer it.

    Raises
    ------
    ConfigError
        It is no address.
    ClusterError
        It cannot be listened on, or nobody came.
    """
    host, port = parse_address(address)
    literal = resolve(host).strip("[]")
    family = socket.AF_INET6 if ":" in literal else socket.AF_INET
    try:
        server = socket.create_server((literal, port), family=family)
    except OSError as error:
        what = f"cannot listen there: {_why(error)}"
        hint = "give an address of this machine and a free port, or port 0"
        raise ClusterError(what, where=address, hint=hint, id="E-CLUSTER-ADDRESS") from None
    with server:
        bound = f"{host}:{server.getsockname()[1]}"
        if not is_loopback(literal):
            tell("warning: whoever reaches this port is told the version and the time")
        tell(f"waiting for `ctrps doctor --connect {bound}`, {LISTEN_S:.0f} s at most")
        until = time.monotonic() + LISTEN_S
        while (left := until - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                sock, peer = server.accept()
                with sock:
                    return [_answer(sock, str(peer[0]))]
            except TimeoutError:
                continue
            except (OSError, ValueError, KeyError) as error:
                tell(f"a connection that is none of ctrps: {error}")
    raise ClusterError(f"nobody came in {LISTEN_S:.0f} s", where=bound, hint="try it from there")


def _answer(sock: socket.socket, peer: str) -> Finding:
    lines = _Lines(sock)
    lines.write({"ctrps": __version__})
    if lines.read().get("ask") != "time":
        raise ValueError("it does not ask")
    lines.write({"time": time.time()})
    port = lines.read()["back"]
    if not isinstance(port, int):
        raise ValueError("it names no port")
    try:
        socket.create_connection((peer, port), PATIENCE_S).close()
        back = ""
    except OSError as error:
        back = f"{peer}:{port}: {_why(error)}"
    lines.write({"back": back})
    hint = "a firewall there? Servers must be reached by workers" if back else ""
    what = back or f"{peer} came, and is reached from here"
    return Finding("peer", FAIL if back else OK, what, hint)
