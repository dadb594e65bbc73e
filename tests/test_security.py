"""Keys and refusals: real transports over loopback, with keys, wrong keys, none, and strangers."""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import zmq
from zmq.utils import z85

from ctrps.config import load_job
from ctrps.errors import ClusterError, ConfigError
from ctrps.ps.messages import Bye, Refused, Register, Status
from ctrps.runtime import security, shared, transport
from ctrps.runtime.launch import Child
from ctrps.runtime.scheduling import SchedulerProcess
from ctrps.runtime.security import Guard, JobKey
from ctrps.runtime.transport import Transport

DEADLINE_S = 60.0
GONE = "refused a connection from a peer that has hung up: "
OURS, THEIRS = (JobKey.parse(digit * 64, "test") for digit in "12")


class Net:
    """Transports of a test, and what they said; closed at its end."""

    def __init__(self, closing: ExitStack):
        self._closing = closing
        self.lines: dict[str, list[str]] = {}

    def open(self, name: str, key: JobKey | None, role: str, listens: bool = False) -> Transport:
        bind = ("127.0.0.1", 0) if listens else None
        tell = self.lines.setdefault(name, []).append
        transport = Transport(name, bind, "cluster.scheduler", role, Guard(key), tell)
        self._closing.callback(transport.close)
        return transport


@pytest.fixture
def net() -> Iterator[Net]:
    with ExitStack() as closing:
        yield Net(closing)


@pytest.fixture
def sockets_only(monkeypatch):
    """As between machines: nothing goes by shared memory."""
    monkeypatch.setattr(shared, "can_share", lambda: False)


def until(turn: Callable[[], object]) -> None:
    """Take turns until one has brought what was wanted."""
    end = time.monotonic() + DEADLINE_S
    while not turn():
        assert time.monotonic() < end


def first(one: Transport, other: Transport) -> tuple[object, list[bytes]]:
    """The next message that one gets, while the other's loop turns too."""
    found: list[tuple[object, list[bytes]]] = []

    def turn() -> bool:
        assert not list(other.poll(0))
        found.extend((peer, [bytes(f) for f in frames]) for peer, frames in one.poll(0.01))
        return bool(found)

    until(turn)
    (message,) = found
    return message


def exchange(listener: Transport, caller: Transport, text: bytes = b"hello") -> object:
    """Send a message and its answer; returns the peer that the listener saw."""
    assert caller.send("there", [text])
    peer, frames = first(listener, caller)
    assert frames == [text] and listener.send(peer, [b"answer", text])
    assert first(caller, listener) == ("there", [b"answer", text])
    return peer


def said(listener: Transport, lines: list[str]) -> list[str]:
    """What a listener has said, which must be something."""
    until(lambda: list(listener.poll(0.01)) or lines)
    return lines


def refusal(caller: Transport, listener: Transport) -> ClusterError:
    """The error that a caller's loop raises when it is refused."""
    raised: list[ClusterError] = []

    def turn() -> bool:
        assert not list(listener.poll(0)), "a refused peer was heard"
        try:
            assert not list(caller.poll(0.01))
        except ClusterError as error:
            raised.append(error)
        return bool(raised)

    until(turn)
    return raised[0]


# -- keys ---------------------------------------------------------------------------------------


def test_a_key_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "job.key"
    made = JobKey.make(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert JobKey.read(path) == made
    text = path.read_text()
    with pytest.raises(ConfigError, match="this file is there already; a key is never overwritten"):
        JobKey.make(path)
    assert path.read_text() == text
    assert JobKey.make(tmp_path / "other.key") != made
    with pytest.raises(ConfigError, match="cannot write a job key: No such file"):
        JobKey.make(tmp_path / "no" / "job.key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o610])
def test_a_key_that_others_can_get_at_is_refused(tmp_path, mode):
    path = tmp_path / "job.key"
    JobKey.make(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"its mode is {mode:o}; make it 600 .chmod 600"):
        JobKey.read(path)
    path.chmod(0o400)
    JobKey.read(path)


@pytest.mark.parametrize("text", ["", "12" * 31, "12" * 33, "xy" * 32, "secret", "12" * 5000])
def test_what_is_no_key_is_not_shown(tmp_path, text):
    path = tmp_path / "job.key"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a job key, which has 64 hexadecimal") as raised:
        JobKey.read(path)
    assert not text or text not in str(raised.value)
    with pytest.raises(ConfigError, match="cannot read the job key: No such file"):
        JobKey.read(tmp_path / "none.key")


def test_a_key_is_never_shown():
    secret = "1" * 64
    shown = f"{OURS!r} {OURS} {[OURS]}"
    assert secret not in shown and str(bytes.fromhex(secret)) not in shown
    assert OURS.fingerprint != THEIRS.fingerprint


def test_pairs_are_of_curve_and_all_different():
    pairs = [key.pair(who) for key in (OURS, THEIRS) for who in ("listener", "server", "worker")]
    keys = {key for pair in pairs for key in pair}
    assert len(keys) == 12 and all(len(z85.decode(key)) == 32 for key in keys)
    for pair in pairs:
        assert zmq.curve_public(pair.secret) == pair.public


def guard(text: str = "", **values: object) -> Guard:
    stated = [f"cluster.{name}={value}" for name, value in values.items()]
    return Guard.of(load_job(None, stated, {}).cluster, text)


def test_a_key_comes_by_file_or_environment(tmp_path):
    path = tmp_path / "job.key"
    key, text = JobKey.make(path), path.read_text()
    assert guard().key is None
    assert guard(text).key == guard(key_file=path).key == guard(text, key_file=path).key == key
    with pytest.raises(ConfigError, match=r"CTRPS_JOB_KEY and cluster\.key_file are two"):
        guard("3" * 64, key_file=path)
    with pytest.raises(ConfigError, match="CTRPS_JOB_KEY: this is not a job key"):
        guard("no key")


# -- addresses ----------------------------------------------------------------------------------

FOREIGN = ["192.0.2.1:0", "0.0.0.0:0", "[::]:0", "*:0", "10.1.2.3:9000", "[2001:db8::1]:9000"]


@pytest.mark.parametrize("address", FOREIGN)
def test_an_address_of_a_network_needs_a_key_or_permission(address):
    where = f"cluster.scheduler={address}: a job key is needed for an address other than loopback"
    cluster = load_job(None, [f"cluster.scheduler={address}"], {}).cluster
    with pytest.raises(ConfigError, match="ctrps keygen") as raised:
        list(guard().check(cluster))
    assert str(raised.value).startswith(where) and raised.value.exit_status == 2
    assert list(guard("1" * 64).check(cluster)) == []
    (warning,) = guard(insecure="true").check(cluster)
    why = "plain text, without a job key: who reaches it can read and join"
    assert warning == f"cluster.scheduler={address}: {why}"


def test_loopback_needs_nothing():
    for address in ("127.0.0.1:0", "127.0.0.2:9000", "[::1]:0"):
        cluster = load_job(None, [f"cluster.server_bind={address}"], {}).cluster
        assert list(guard().check(cluster)) == []


def test_a_transport_uses_no_foreign_address_without_key(net, monkeypatch):
    with pytest.raises(ConfigError, match=r"cluster.scheduler=0\.0\.0\.0:0: a job key is needed"):
        Transport("open", ("0.0.0.0", 0), "cluster.scheduler", "scheduler")
    caller = net.open("caller", None, "worker")
    with pytest.raises(ConfigError, match=r"192\.0\.2\.9:9000: a job key is needed"):
        caller.connect("there", "192.0.2.9:9000")
    # Whatever a name says, the address that it stands for counts.
    found = [(socket.AF_INET, 0, 0, "", ("192.0.2.9", 0))]
    monkeypatch.setattr(security.socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(ConfigError, match="localhost:9000: a job key is needed"):
        caller.connect("there", "localhost:9000")


def test_plain_text_is_possible_where_it_is_permitted(sockets_only, monkeypatch):
    monkeypatch.setattr(security, "is_loopback", lambda literal: False)
    lines: list[str] = []
    free = Guard(insecure=True)
    with ExitStack() as closing:
        bind = ("127.0.0.1", 0)
        listener = Transport("l", bind, "cluster.scheduler", "scheduler", free, lines.append)
        closing.callback(listener.close)
        caller = Transport("caller", role="worker", guard=free, tell=lines.append)
        closing.callback(caller.close)
        caller.connect("there", listener.address)
        exchange(listener, caller)
    warned = "plain text, without a job key: who reaches it can read and join"
    assert lines == [
        f"warning: cluster.scheduler=127.0.0.1:0: {warned}",
        f"warning: {listener.address}: {warned}",
    ]


# -- connections --------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["server", "worker"])
def test_nodes_of_one_key_understand_each_other(net, sockets_only, role):
    listener = net.open("scheduler-1", OURS, "scheduler", True)
    caller = net.open(f"{role}-1", OURS, role)
    caller.connect("there", listener.address)
    peer = exchange(listener, caller)
    assert (peer, listener.role(peer)) == (f"{role}-1".encode(), role)
    assert not any(net.lines.values())


def test_nothing_of_a_message_is_seen_on_the_way(net, sockets_only):
    listener = net.open("scheduler-1", OURS, "scheduler", True)
    text = b"gradients nobody else should see"
    with Tap(listener.address) as tap:
        caller = net.open("worker-1", OURS, "worker")
        caller.connect("there", tap.address)
        exchange(listener, caller, text)
        assert len(tap.seen) > 2 * len(text) and text not in tap.seen and b"answer" not in tap.seen


def test_memory_is_shared_with_a_key_too(net):
    if not shared.can_share():
        pytest.skip("processes of this system cannot share memory")
    listener = net.open("scheduler-1", OURS, "scheduler", True)
    caller = net.open("worker-1", OURS, "worker")
    caller.connect("there", listener.address)
    until(lambda: [*caller.poll(0.01), *listener.poll(0.01)] or caller._channels)
    peer = exchange(listener, caller)
    assert listener.role(peer) == "worker"


WRONG = {"another key": (OURS, THEIRS), "no key": (OURS, None), "a key too much": (None, OURS)}
SEEN = {
    "another key": f"it has another job key than {OURS.fingerprint}",
    "no key": "it has no job key",
    "a key too much": "it has a job key, and this node has none",
}


@pytest.mark.parametrize("case", WRONG)
def test_both_ends_say_why_they_do_not_come_together(net, case):
    theirs, ours = WRONG[case]
    listener = net.open("scheduler-1", theirs, "scheduler", True)
    caller = net.open("worker-1", ours, "worker")
    caller.connect("there", listener.address)
    caller.send("there", [b"hello"])
    error = refusal(caller, listener)
    why = "refused: a job key is wanted there, or this is no node of ctrps"
    if ours:
        why = "authentication refused: another job key there, or none? This node's is "
        why += ours.fingerprint
    hint = "give all nodes the same key by cluster.key_file or CTRPS_JOB_KEY"
    assert str(error) == f"{listener.address}: {why}; {hint}" and error.exit_status == 4
    lines = said(listener, net.lines["scheduler-1"])
    # Whoever finds the connection closed by the other has less to say.
    assert {line.rpartition(": ")[2].split("perhaps ")[-1] for line in lines} == {SEEN[case]}
    assert lines[0].startswith(("refused a connection from 127.0.0.1", GONE))
    # It is said once, and the listener goes on.
    friend = net.open("worker-2", theirs, "worker")
    friend.connect("there", listener.address)
    exchange(listener, friend)
    assert list(caller.poll(0.2)) == [] and len(lines) <= 2


def test_a_server_admits_no_listener(net):
    """A scheduler's key is that of all listeners, and none of them calls."""
    listener = net.open("server-1", OURS, "server", True)
    caller = net.open("scheduler-2", OURS, "listener")
    caller.connect("there", listener.address)
    assert str(refusal(caller, listener)).startswith(
        f"{listener.address}: authentication refused: another job key there"
    )
    lines = said(listener, net.lines["server-1"])
    assert lines[0].endswith(": its role has nothing to say here")


def test_without_an_answer_of_the_gate_nobody_comes_in(net, sockets_only, monkeypatch):
    """libzmq alone lets everybody in whose key is any key."""
    monkeypatch.setattr("ctrps.runtime.transport.HANDSHAKE_S", 1.0)  # five times nobody answers
    listener = net.open("scheduler-1", OURS, "scheduler", True)
    listener._poller.unregister(listener._gate.socket)
    listener._gate.socket.close()
    listener._gate = None
    caller = net.open("worker-1", OURS, "worker")
    caller.connect("there", listener.address)
    caller.send("there", [b"hello"])
    assert "authentication refused" in str(refusal(caller, listener))


def test_a_listener_that_is_busy_is_waited_for(net, sockets_only):
    listener = net.open("scheduler-1", OURS, "scheduler", True)
    caller = net.open("worker-1", OURS, "worker")
    caller.connect("there", listener.address)
    caller.send("there", [b"hello"])
    end = time.monotonic() + 0.5
    until(lambda: list(caller.poll(0.05)) or time.monotonic() > end)
    assert first(listener, caller) == (b"worker-1", [b"hello"])


def test_a_program_that_hangs_up_is_no_node(net):
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.01)
        caller = net.open("worker-1", None, "worker")
        caller.connect("there", f"127.0.0.1:{other.getsockname()[1]}")
        raised: list[ClusterError] = []

        def turn() -> bool:
            try:
                other.accept()[0].close()
            except TimeoutError:
                pass
            try:
                list(caller.poll(0.01))
            except ClusterError as error:
                raised.append(error)
            return bool(raised)

        until(turn)
    assert "this is no node of ctrps" in str(raised[0])


JUNK = {
    "http": b"GET / HTTP/1.0\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "zeros": bytes(200),
    "ones": b"\xff" * 4096,
    "a size of 2^63": b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0CURVE" + bytes(47) + b"\x02\x7f" + bytes(7),
}


@pytest.mark.parametrize("key", [OURS, None], ids=["key", "plain"])
@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_stranger_is_logged_once_and_disturbs_nobody(net, key, junk):
    listener = net.open("scheduler-1", key, "scheduler", True)
    host, _, port = listener.address.rpartition(":")
    caller = net.open("worker-1", key, "worker")
    for _ in range(3):
        with socket.create_connection((host, int(port)), DEADLINE_S) as raw:
            raw.sendall(junk)
            list(listener.poll(0.01))
    lines = said(listener, net.lines["scheduler-1"])
    caller.connect("there", listener.address)
    exchange(listener, caller)
    assert all(line.startswith(("refused a connection from 127.0.0.1: ", GONE)) for line in lines)
    assert len({line.rpartition(": ")[0] for line in lines}) == len(lines) <= 2


def test_connections_that_say_nothing_are_closed_and_disturb_nobody(net, monkeypatch):
    monkeypatch.setattr(transport, "HANDSHAKE_S", 0.3)
    listener = net.open("scheduler-1", OURS, "scheduler", True)
    host, _, port = listener.address.rpartition(":")
    with ExitStack() as closing:
        idle = [socket.create_connection((host, int(port)), DEADLINE_S) for _ in range(200)]
        for one in idle:
            closing.enter_context(one)
        caller = net.open("worker-1", OURS, "worker")
        caller.connect("there", listener.address)
        exchange(listener, caller)
        for one in idle:
            until(lambda one=one: list(listener.poll(0)) or one.recv(1 << 10) == b"")
    lines = said(listener, net.lines["scheduler-1"])
    assert {line.rpartition(": ")[2] for line in lines} == {"it was silent"} and len(lines) <= 2


def test_a_log_full_of_strangers_still_says_that_its_node_has_joined(tmp_path):
    log = tmp_path / "server-0.log"
    log.write_text("12:00:00 server: joined as server 0, node 0\n" + "refused\n" * 1000)
    assert Child("server", 0, None, log, []).joined()  # type: ignore[arg-type]
    log.write_text("refused\n" * 1000)
    assert not Child("server", 0, None, log, []).joined()  # type: ignore[arg-type]


# -- roles --------------------------------------------------------------------------------------


def register(role: str) -> Register:
    return Register(3, role, -1, "job", "digest", "kernels", f"{role}-1", "", False)


def test_a_workers_key_is_no_servers(tmp_path):
    data = tmp_path / "train.libsvm"
    data.write_text("1 1:1\n0 2:1\n" * 20)
    job = load_job(None, [f"data.train={data}", f"output.dir={tmp_path / 'run'}"], {})
    lines: list[str] = []
    process = SchedulerProcess(job, False, lines.append, Guard(OURS))
    try:
        heard: list[object] = []
        process.machine = Machine(heard)  # type: ignore[assignment]
        process.transport = Proven("worker")  # type: ignore[assignment]
        (sent,) = process.on_message(b"x", register("server"), 0.0)
        what = "its key is that of a worker, and it says that it is a server"
        assert (sent.to, sent.message) == (b"x", Refused(-1, "role", -1, what))
        process.on_message(b"x", status(node=0), 0.0)
        process.on_message(b"x", Bye(0, 0, "done"), 0.0)
        assert heard == [] and len(lines) == 3
        right = [register("worker"), status(node=1), Bye(1, 0, "done"), Bye(-1, 4, "never in")]
        for message in right:
            process.on_message(b"x", message, 0.0)
        assert heard == right
        process.transport = Proven("")  # type: ignore[assignment]
        process.on_message(b"x", register("server"), 0.0)
        assert heard[-1] == register("server")
    finally:
        process.folder.close()


class Proven:
    """A transport that knows the role of all its peers."""

    def __init__(self, role: str):
        self._role = role

    def role(self, peer: object) -> str:
        return self._role


class Machine:
    """A scheduler with a server, node 0, and a worker, node 1; keeps what it hears."""

    def __init__(self, heard: list[object]):
        self.roster = {n: type("Node", (), {"role": r}) for n, r in enumerate(("server", "worker"))}
        self._heard = heard

    def on_message(self, peer: object, message: object, now: float) -> list[object]:
        self._heard.append(message)
        return []


def status(node: int) -> Status:
    return Status(
        node, 0, 1, 0, -1, 0, 0, False, [], -1, -1, [], {}, "", 0, "", [], ()
    )  # fmt: skip


class Tap:
    """A wire in between that remembers what goes over it; one connection, in a thread."""

    def __init__(self, address: str):
        host, _, port = address.rpartition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen = b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self) -> "Tap":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _carry(self) -> None:
        with self._listener, self._listener.accept()[0] as one:
            with socket.create_connection(self._to) as other:
                ends = {one: other, other: one}
                while not self._over.is_set():
                    for source in select.select(list(ends), [], [], 0.01)[0]:
                        found = source.recv(1 << 16)
                        self.seen += found
                        ends[source].sendall(found)
