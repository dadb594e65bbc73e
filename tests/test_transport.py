"""Two transports of one process over loopback, and peers that do not keep to the protocol."""

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from ctrps.codec import Limits, decode, encode
from ctrps.errors import ClusterError
from ctrps.runtime import transport as module
from ctrps.runtime.security import Guard
from ctrps.runtime.transport import Transport
from tests.procs import free_port

DEADLINE_S = 30.0


@pytest.fixture
def listener() -> Iterator[Transport]:
    transport = Transport("listener", ("127.0.0.1", 0), "cluster.server_bind")
    yield transport
    transport.close()


@pytest.fixture
def caller(listener) -> Iterator[Transport]:
    transport = Transport("caller")
    transport.connect("there", listener.address)
    yield transport
    transport.close()


def receive(transport: Transport, count: int = 1) -> list[tuple]:
    """The next messages, which must come within the deadline."""
    end = time.monotonic() + DEADLINE_S
    found: list[tuple] = []
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} messages came"
        found += [(peer, list(frames)) for peer, frames in transport.poll(0.1)]
    return found


def texts(messages: list[tuple]) -> list[tuple]:
    return [(peer, [bytes(frame) for frame in frames]) for peer, frames in messages]


def test_a_message_and_its_answer(listener, caller):
    assert caller.send("there", [b"head", b"body"])
    ((peer, frames),) = texts(receive(listener))
    assert (peer, frames) == (b"caller", [b"head", b"body"])
    assert listener.send(peer, [b"answer"])
    assert texts(receive(caller)) == [("there", [b"answer"])]


def test_arrays_arrive_without_a_copy(listener, caller):
    sent = np.arange(1 << 17, dtype=np.float32)
    caller.send("there", encode(["push"], [sent]))
    ((_, frames),) = receive(listener)
    assert all(isinstance(frame, memoryview) for frame in frames)
    header, (received,) = decode(frames)
    assert header == ["push"]
    np.testing.assert_array_equal(received, sent)
    assert np.shares_memory(received, np.frombuffer(frames[1], np.float32))


def test_messages_of_one_peer_keep_their_order(listener, caller):
    for number in range(500):
        assert caller.send("there", [b"%d" % number])
    found = texts(receive(listener, 500))
    assert [int(frames[0]) for _, frames in found] == list(range(500))


def test_nobody_is_sent_nothing(listener, caller):
    assert not caller.send("elsewhere", [b"lost"])
    assert not caller.send(b"caller", [b"lost"])
    assert not listener.send(b"stranger", [b"lost"])
    assert not listener.send("there", [b"lost"])


def test_a_message_waits_for_its_connection():
    """The first message comes sooner than the connection: it must not be lost."""
    port = free_port()
    early = Transport("early")
    early.connect("there", f"127.0.0.1:{port}")
    assert early.send("there", [b"first"])
    late = Transport("late", ("127.0.0.1", port), "cluster.scheduler")
    try:
        assert texts(receive(late)) == [(b"early", [b"first"])]
    finally:
        early.close()
        late.close()


def test_a_peer_may_move_to_another_address(listener, caller):
    moved = Transport("moved", ("127.0.0.1", 0), "cluster.server_bind")
    try:
        caller.connect("there", moved.address)
        caller.connect("there", moved.address)
        assert caller.send("there", [b"hello"])
        assert texts(receive(moved)) == [(b"caller", [b"hello"])]
        assert list(listener.poll(0)) == []
    finally:
        moved.close()


def test_peers_by_number_are_kept_or_let_go(caller, listener):
    """A view names all servers; who has no number, as the scheduler, stays."""
    others = [Transport(f"s{n}", ("127.0.0.1", 0), "cluster.server_bind") for n in range(3)]
    try:
        caller.keep({n: others[n].address for n in (0, 1)})
        assert caller.send(0, [b"hello"]) and caller.send(1, [b"hello"])
        caller.keep({n: others[n].address for n in (1, 2)})
        assert [caller.send(n, [b"again"]) for n in (0, 1, 2)] == [False, True, True]
        assert texts(receive(others[1], 2)) == [(b"caller", [b"hello"]), (b"caller", [b"again"])]
        assert texts(receive(others[2])) == [(b"caller", [b"again"])]
        caller.keep({})
        assert [caller.send(n, [b"more"]) for n in (1, 2)] == [False, False]
        assert caller.send("there", [b"still"])
        assert texts(receive(listener)) == [(b"caller", [b"still"])]
    finally:
        for other in others:
            other.close()


def test_a_process_that_comes_back_under_its_name_is_heard(listener, caller):
    caller.send("there", [b"one"])
    receive(listener)
    again = Transport("caller")
    try:
        again.connect("there", listener.address)
        again.send("there", [b"two"])
        ((peer, _),) = receive(listener)
        assert listener.send(peer, [b"answer"])
        assert texts(receive(again)) == [("there", [b"answer"])]
    finally:
        again.close()


def test_an_address_says_the_port_that_the_system_chose(listener):
    host, _, port = listener.address.rpartition(":")
    assert host == "127.0.0.1" and int(port) > 0
    with socket.create_connection((host, int(port)), DEADLINE_S):
        pass


def test_a_taken_port_is_named(listener):
    host, _, port = listener.address.rpartition(":")
    with pytest.raises(ClusterError) as raised:
        Transport("second", (host, int(port)), "cluster.scheduler")
    assert str(raised.value) == (
        f"{listener.address}: cannot listen there: the port is already in use; "
        "set cluster.scheduler to another address, or to port 0 for a free one"
    )


def test_an_address_of_another_machine_is_named():
    with pytest.raises(ClusterError, match=r"192\.0\.2\.1:0: cannot listen there: "):
        Transport("far", ("192.0.2.1", 0), "cluster.server_bind", guard=Guard(insecure=True))


def test_a_host_that_nobody_knows_is_named(monkeypatch):
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    text = "nodee0: cannot resolve this host: Name or service not known; check its spelling"
    with pytest.raises(ClusterError, match=text):
        Transport("one", ("nodee0", 0), "cluster.scheduler")
    transport = Transport("two")
    with pytest.raises(ClusterError, match=text):
        transport.connect("there", "nodee0:9000")
    # A socket that the failed call left open would make this wait for ever.
    transport.close()


def test_ipv6(monkeypatch):
    try:
        listener = Transport("six", ("::1", 0), "cluster.server_bind")
    except ClusterError:
        pytest.skip("this machine has no IPv6 loopback")
    caller = Transport("caller")
    try:
        port = listener.address.rpartition(":")[2]
        caller.connect("there", f"[::1]:{port}")
        assert caller.send("there", [b"hello"])
        assert texts(receive(listener)) == [(b"caller", [b"hello"])]
    finally:
        caller.close()
        listener.close()


# -- peers that do not keep to the protocol -----------------------------------------------------


@pytest.mark.parametrize(
    "junk",
    [b"GET / HTTP/1.0\r\n\r\n", bytes(200), b"\xff" * 4096, b"\xff\0\0\0\0\0\0\0\x01\x7f"],
    ids=["http", "zeros", "ones", "greeting"],
)
def test_bytes_that_are_no_message_disturb_nobody(listener, caller, junk):
    host, _, port = listener.address.rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as raw:
        raw.sendall(junk)
        caller.send("there", [b"hello"])
        assert texts(receive(listener)) == [(b"caller", [b"hello"])]


def test_a_message_without_frames_is_dropped(listener, caller):
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.connect(f"tcp://{listener.address}")
        dealer.send(b"", copy=True)
        ((_, frames),) = texts(receive(listener))
        assert frames == [b""]
        caller.send("there", [b"hello"])
        assert texts(receive(listener)) == [(b"caller", [b"hello"])]
    finally:
        dealer.close(0)
        context.term()


def test_a_message_over_the_limit_ends_its_connection_only(caller, monkeypatch):
    monkeypatch.setattr(module, "WIRE", Limits(frames=17, header_bytes=1000, frame_bytes=1000))
    small = Transport("small", ("127.0.0.1", 0), "cluster.server_bind")
    other = Transport("other")
    try:
        for transport in (caller, other):
            transport.connect("small", small.address)
        caller.send("small", [bytes(1001)])
        other.send("small", [bytes(1000)])
        ((peer, (frame,)),) = receive(small)
        assert (peer, len(frame)) == (b"other", 1000)
        # The connection comes back by itself, and what is sent meanwhile waits for it or is lost.
        end = time.monotonic() + DEADLINE_S
        found: list[tuple] = []
        while not found:
            assert time.monotonic() < end
            caller.send("small", [b"again"])
            found = texts([(peer, list(frames)) for peer, frames in small.poll(0.1)])
        assert found[0] == (b"caller", [b"again"])
    finally:
        small.close()
        other.close()


# -- waking -------------------------------------------------------------------------------------


def test_wake_ends_a_poll_from_another_thread(listener):
    waker = threading.Timer(0.05, listener.wake)
    began = time.monotonic()
    waker.start()
    assert list(listener.poll(10 * DEADLINE_S)) == []
    waker.join()
    assert time.monotonic() - began < DEADLINE_S


def test_a_wake_before_the_poll_counts_and_many_are_one(listener):
    for _ in range(100_000):  # more than the pipe holds
        listener.wake()
    began = time.monotonic()
    assert list(listener.poll(10 * DEADLINE_S)) == []
    assert time.monotonic() - began < DEADLINE_S
    assert list(listener.poll(0)) == []
