"""Shared memory between processes of one machine: rings, and transports that use them."""

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ctrps.codec import decode, encode
from ctrps.runtime import shared
from ctrps.runtime import transport as module
from ctrps.runtime.shared import OFFER, RING_BYTES, Channel
from ctrps.runtime.transport import Transport

DEADLINE_S = 30.0

pytestmark = pytest.mark.skipif(not shared.can_share(), reason="no anonymous files that are shared")


@pytest.fixture
def bells() -> Iterator[list[tuple[int, int]]]:
    """Two pipes, of the end that makes a channel and of the other."""
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]
    yield pipes
    for pipe in pipes:
        for descriptor in pipe:
            with contextlib.suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def ends(bells) -> Iterator[tuple[Channel, Channel]]:
    here = Channel.make()
    there = Channel.open(here.offer(bells[0][1]))
    assert there is not None and here.accepted(there.accept(bells[1][1]))
    yield here, there
    here.close()
    there.close()


def texts(frames) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def calls(bell: tuple[int, int]) -> int:
    try:
        return len(os.read(bell[0], 100))
    except BlockingIOError:
        return 0


# -- channels -------------------------------------------------------------------------------------


def test_frames_go_both_ways_and_in_order(ends):
    for sender, receiver in (ends, ends[::-1]):
        assert not receiver.pending
        assert sender.put([b"one", b"", memoryview(b"three")]) and sender.put([b"four"])
        assert receiver.pending and texts(receiver.take()) == [b"one", b"", b"three"]
        assert receiver.pending and texts(receiver.take()) == [b"four"]
        assert not receiver.pending and receiver.take() is None


@pytest.mark.parametrize("seed", range(5))
def test_a_ring_wraps_around_and_is_never_overrun(ends, seed):
    sender, receiver = ends
    rng, on_the_way, refused = np.random.default_rng(seed), [], 0
    for number in range(300):
        sizes = rng.integers(0, RING_BYTES // 4, rng.integers(1, 4))
        frames = [np.full(n, number % 251, np.uint8).data for n in sizes]
        room = sender.put(frames)
        if room:
            on_the_way.append(texts(frames))
        refused += not room
        while on_the_way and (not room or rng.random() < 0.6):
            assert texts(receiver.take()) == on_the_way.pop(0)
    assert 0 < refused < 250


def test_more_than_a_ring_is_refused(ends):
    assert not ends[0].put([bytes(RING_BYTES)])
    assert ends[0].put([bytes(RING_BYTES - 24)])
    assert not ends[0].put([b"one more"])
    assert len(ends[1].take()[0]) == RING_BYTES - 24
    assert ends[0].put([b"one more"])


def test_only_who_sleeps_is_woken_or_who_may_have_died(ends, bells):
    here, there = ends
    assert here.put([b"one"]) and calls(bells[1]) == 0
    there.take()
    there.wait(True)
    assert here.put([b"two"]) and calls(bells[1]) == 1
    there.wait(False)
    there.take()
    assert here.put([b"three"]) and calls(bells[1]) == 0
    assert here.put([b"four"]) and calls(bells[1]) == 1  # the third is still there
    assert there.put([b"back"]) and calls(bells[0]) == 0


def test_an_end_that_is_full_of_calls_is_not_called_again(ends, bells):
    with contextlib.suppress(BlockingIOError):
        while os.write(bells[1][1], bytes(4096)):
            pass
    ends[1].wait(True)
    assert ends[0].put([b"one"]) and texts(ends[1].take()) == [b"one"]


def test_an_end_that_has_died_or_left_is_noticed(ends, bells):
    assert ends[0].put([b"lost"])
    for descriptor in bells[1]:
        os.close(descriptor)
    assert not ends[0].put([b"two"]) and ends[0].closed
    other = Channel.make()
    leaver = Channel.open(other.offer(bells[0][1]))
    leaver.close()
    assert not other.put([b"one"]) and other.closed
    other.close()


@pytest.mark.parametrize(
    "words",
    [
        [],
        [16],
        [8, 1],
        [24, 1],
        [40, 1, 9],
        [32, 1, 9, 0],
        [32, 2, 4, 2**64 - 1],
        [32, 2**64 - 1, 4, 4],
        [RING_BYTES + 16, 1, 8, 0],
        [48, 1, 8, 0],
        [16, 1 << 32],
        [1 << 20, 1000] + [0] * 1000,
    ],
)
def test_what_cannot_be_a_message_is_refused(ends, words):
    content = np.array(words, np.uint64).tobytes()
    other = ends[1]._other
    other_page = ends[0]._view
    other_page[other.at(0) : other.at(0) + len(content)] = content
    shared._COUNT.pack_into(other_page, other.sent, len(content) or 7)
    assert ends[1].pending and ends[1].take() is None


def test_an_offer_that_leads_elsewhere_is_refused(bells):
    channel, (read, write) = Channel.make(), bells[0]
    other = os.memfd_create("other")
    os.ftruncate(other, mmap.PAGESIZE + 2 * RING_BYTES)
    offer = channel.offer(write)
    code, me, file, _, token = shared._OFFER.unpack(offer)
    pack = shared._OFFER.pack
    for wrong in (
        b"",
        bytes([OFFER]),
        pack(code, me, read, write, token),
        pack(code, me, other, write, token),
        pack(code, me, 1 << 20, write, token),
        pack(code, me, file, 1 << 20, token),
        pack(code, me, file, other, token),
        pack(code, -1, 0, write, token),
        offer[:-1] + bytes([offer[-1] ^ 1]),
    ):
        assert Channel.open(wrong) is None
    accept = shared._ACCEPT.pack
    for wrong in (b"", accept(0xC2, me, other), accept(0xC2, me, 1 << 20), accept(0xC2, -1, 0)):
        assert not channel.accepted(wrong)
    os.close(other)
    channel.close()


# -- transports -----------------------------------------------------------------------------------


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


def turn(transport: Transport, until) -> list[tuple]:
    """Poll until something is so; the messages that came."""
    end, found = time.monotonic() + DEADLINE_S, []
    while not until(found):
        assert time.monotonic() < end
        found += [(peer, list(frames)) for peer, frames in transport.poll(0.05)]
    return found


def agree(listener: Transport, caller: Transport) -> None:
    turn(listener, lambda _: listener._channels)
    turn(caller, lambda _: caller._channels)


def sent_by(monkeypatch) -> list[int]:
    """Bytes of all messages that sockets are given from here on."""
    sizes, real = [], module._send
    monkeypatch.setattr(
        module, "_send", lambda to, frames: (sizes.append(sum(map(len, frames))), real(to, frames))
    )
    return sizes


def test_messages_do_not_go_through_the_socket(listener, caller, monkeypatch):
    agree(listener, caller)
    sizes = sent_by(monkeypatch)
    array = np.arange(100_000, dtype=np.float32)
    caller.send("there", encode(["push"], [array, array[:7]]))
    ((peer, frames),) = turn(listener, lambda found: found)
    header, arrays = decode(frames)
    assert header == ["push"] and [len(a) for a in arrays] == [100_000, 7]
    np.testing.assert_array_equal(arrays[0], array)
    listener.send(peer, encode(["pulled"], [array]))
    ((_, frames),) = turn(caller, lambda found: found)
    np.testing.assert_array_equal(decode(frames)[1][0], array)
    assert not sizes


def test_what_finds_the_ring_full_goes_by_the_socket(listener, caller, monkeypatch):
    agree(listener, caller)
    sizes = [10, 1 << 14, RING_BYTES // 2 + 1] * 10
    by_socket = sent_by(monkeypatch)
    for number, size in enumerate(sizes):
        caller.send("there", [b"%d" % number, bytes(size)])
    assert by_socket
    found = turn(listener, lambda found: len(found) == len(sizes))
    got = {int(bytes(frames[0])): len(frames[1]) for _, frames in found}
    assert [got[number] for number in range(30)] == sizes


def test_each_peer_has_its_turn(listener, caller):
    """A peer that has more to say waits for those that have something to say, too."""
    other = Transport("other")
    other.connect("there", listener.address)
    for peer in (caller, other):
        turn(listener, lambda _, boot=peer._boot: boot in listener._channels)
        turn(peer, lambda _, peer=peer: peer._channels)
    for number in range(3):
        caller.send("there", [b"%d" % number])
    other.send("there", [b"0"])
    found = [sorted((peer, *texts(frames)) for peer, frames in listener.poll(0)) for _ in range(3)]
    assert found == [
        [(b"caller", b"0"), (b"other", b"0")],
        [(b"caller", b"1")],
        [(b"caller", b"2")],
    ]
    # Also one whose answer comes while the others have not been heard.
    caller.send("there", [b"3"])
    other.send("there", [b"1"])
    heard = []
    for peer, frames in listener.poll(0):
        heard.append((peer, *texts(frames)))
        if peer == b"caller":
            caller.send("there", [b"4"])
    assert len(heard) == 2
    other.close()


def test_a_sleeper_is_woken(listener, caller):
    agree(listener, caller)
    teller = threading.Timer(0.05, caller.send, ("there", [b"up"]))
    start = time.monotonic()
    teller.start()
    found = list(listener.poll(DEADLINE_S))
    teller.join()
    assert time.monotonic() - start < DEADLINE_S / 2
    assert texts(found[0][1]) == [b"up"] if found else turn(listener, bool)


def test_sockets_are_heard_while_memory_is_busy(listener, caller):
    agree(listener, caller)
    far = Transport("far")
    far._near = False
    far.connect("there", listener.address)
    far._offered.clear()
    far.send("there", [b"from afar"])
    turn(
        listener,
        lambda found: (
            caller.send("there", [b"near"]),
            any(texts(frames) == [b"from afar"] for _, frames in found),
        )[1],
    )
    far.close()


def test_before_the_other_end_accepts_all_goes_by_the_socket(listener, caller):
    caller.send("there", [b"head", bytes(1 << 14)])
    ((_, frames),) = turn(listener, lambda found: found)
    assert [len(frame) for frame in frames] == [4, 1 << 14]


def test_a_listener_that_has_forgotten_a_channel_is_offered_a_new_one(caller, listener):
    agree(listener, caller)
    listener._forget(b"caller")
    caller.send("there", [b"head"])
    ((_, frames),) = turn(listener, lambda found: found)
    assert texts(frames) == [b"head"]
    agree(listener, caller)
    listener.send(b"caller", [b"back"])
    ((_, frames),) = turn(caller, lambda found: found)
    assert texts(frames) == [b"back"]


def test_a_listener_that_dies_and_one_that_comes_in_its_place():
    first = Transport("listener", ("127.0.0.1", 0), "cluster.server_bind")
    caller = Transport("caller")
    caller.connect("there", first.address)
    agree(first, caller)
    died = caller._channels["there"]
    # As when it is killed: it neither closes its channels nor reads them.
    first._channels.clear()
    first.close()
    caller.send("there", [b"lost"])
    port = int(first.address.rpartition(":")[2])
    second = Transport("listener", ("127.0.0.1", port), "cluster.server_bind")
    caller.send("there", [b"again"])
    found = turn(second, lambda found: found)
    assert texts(found[0][1]) == [b"again"]
    agree(second, caller)
    assert caller._channels["there"] is not died
    caller.close()
    second.close()


def test_a_listener_shares_with_so_many_peers_and_no_more(listener, monkeypatch):
    monkeypatch.setattr(module, "MOST_CHANNELS", 2)
    callers = [Transport(f"caller {n}") for n in range(4)]
    for caller in callers:
        caller.connect("there", listener.address)
        turn(listener, lambda _, boot=caller._boot: boot in listener._channels)
    assert list(listener._channels) == [b"caller 2", b"caller 3"]
    for caller in callers:
        caller.close()


def test_a_file_with_a_name_is_neither_taken_nor_written(tmp_path, bells):
    """An offer is words of a stranger: it may name any file that this user has open."""
    path = tmp_path / "model"
    path.write_bytes(bytes(shared._SIZE))
    with open(path, "r+b") as file:
        for token in (bytes(16), b"x" * 16):
            offer = shared._OFFER.pack(OFFER, os.getpid(), file.fileno(), bells[0][1], token)
            assert Channel.open(offer) is None
    assert path.read_bytes() == bytes(shared._SIZE)


def test_other_machines_are_offered_nothing(monkeypatch):
    monkeypatch.setattr(module, "is_loopback", lambda host: False)
    listener = Transport("listener", ("127.0.0.1", 0), "cluster.server_bind")
    caller = Transport("caller")
    caller.connect("there", listener.address)
    caller.send("there", [b"head", bytes(1 << 14)])
    ((_, frames),) = turn(listener, lambda found: found)
    assert len(frames[1]) == 1 << 14 and not caller._offered and not listener._channels
    caller.close()
    listener.close()
