"""Shared memory between processes of one machine: rings, and transports that use them."""

import mmap
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ctrps.codec import decode, encode
from ctrps.runtime import shared
from ctrps.runtime import transport as module
from ctrps.runtime.shared import FRAMES, OFFER, RING_BYTES, SHARED_BYTES, Channel
from ctrps.runtime.transport import Transport

DEADLINE_S = 30.0

pytestmark = pytest.mark.skipif(not shared.can_share(), reason="no anonymous files that are shared")


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    here = Channel.make()
    there = Channel.open(here.offer())
    assert there is not None
    yield here, there
    here.close()
    there.close()


def texts(frames) -> list[bytes]:
    return [bytes(frame) for frame in frames]


# -- channels -------------------------------------------------------------------------------------


def test_frames_go_both_ways(ends):
    for sender, receiver in (ends, ends[::-1]):
        told = sender.put([b"one", b"", memoryview(b"three")])
        assert told is not None and len(told) < 64
        assert texts(receiver.take(told)) == [b"one", b"", b"three"]


@pytest.mark.parametrize("seed", range(5))
def test_a_ring_wraps_around_and_is_never_overrun(ends, seed):
    sender, receiver = ends
    rng, on_the_way, refused = np.random.default_rng(seed), [], 0
    for number in range(300):
        sizes = rng.integers(0, RING_BYTES // 4, rng.integers(1, 4))
        frames = [np.full(n, number % 251, np.uint8).data for n in sizes]
        told = sender.put(frames)
        if told is None:
            refused += 1
        else:
            on_the_way.append((told, texts(frames)))
        while on_the_way and (told is None or rng.random() < 0.6):
            told, expected = on_the_way.pop(0)
            assert texts(receiver.take(told)) == expected
    assert 0 < refused < 250


def test_what_got_lost_is_free_again_with_the_next_that_comes(ends):
    sender, receiver = ends
    half = [bytes(RING_BYTES // 2)]
    told = [sender.put(half) for _ in range(3)]
    assert told[2] is None
    receiver.take(told[1])
    assert sender.put(half) and sender.put(half)


def test_more_than_a_ring_is_refused(ends):
    assert ends[0].put([bytes(RING_BYTES + 1)]) is None
    assert ends[0].put([bytes(RING_BYTES)]) is not None


@pytest.mark.parametrize(
    "told",
    [
        b"",
        bytes([FRAMES]),
        bytes([FRAMES]) + bytes(15),
        bytes([FRAMES]) + bytes(17),
        bytes([FRAMES]) + np.uint64([0, 5, 4]).tobytes(),
        bytes([FRAMES]) + np.uint64([0, RING_BYTES + 1, RING_BYTES + 1]).tobytes(),
        bytes([FRAMES]) + np.uint64([RING_BYTES - 1, 2, 2]).tobytes(),
        bytes([FRAMES]) + np.uint64([0, 0] + [0] * 1000).tobytes(),
        bytes([FRAMES]) + np.uint64([0, 2, 2**64 - 1, 3]).tobytes(),
    ],
)
def test_places_that_cannot_be_are_refused(ends, told):
    assert ends[1].take(told) is None


def test_an_offer_that_leads_elsewhere_is_refused():
    channel, (read, write) = Channel.make(), os.pipe()
    other = os.memfd_create("other")
    os.ftruncate(other, mmap.PAGESIZE + 2 * RING_BYTES)
    token = channel.offer()[9:]
    pack = shared._OFFER.pack
    me = os.getpid()
    for offer in (
        b"",
        bytes([OFFER]),
        pack(OFFER, me, read, token),
        pack(OFFER, me, other, token),
        pack(OFFER, me, 1 << 20, token),
        pack(OFFER, -1, 0, token),
        channel.offer()[:-1] + bytes([channel.offer()[-1] ^ 1]),
    ):
        assert Channel.open(offer) is None
    for file in (read, write, other):
        os.close(file)
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


def test_large_arrays_do_not_go_through_the_socket(listener, caller, monkeypatch):
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
    assert len(sizes) == 2 and max(sizes) < 500


def test_small_messages_and_full_rings_go_as_ever_and_in_order(listener, caller):
    agree(listener, caller)
    sizes = [10, SHARED_BYTES, RING_BYTES // 2 + 1] * 10
    for number, size in enumerate(sizes):
        caller.send("there", [b"%d" % number, bytes(size)])
    found = turn(listener, lambda found: len(found) == len(sizes))
    assert [int(bytes(frames[0])) for _, frames in found] == list(range(30))
    assert [len(frames[1]) for _, frames in found] == sizes


def test_before_the_other_end_accepts_all_goes_by_the_socket(listener, caller):
    caller.send("there", [b"head", bytes(SHARED_BYTES)])
    ((_, frames),) = turn(listener, lambda found: found)
    assert [len(frame) for frame in frames] == [4, SHARED_BYTES]


def test_a_listener_that_starts_again_is_offered_a_new_channel(caller, listener):
    agree(listener, caller)
    listener._forget(b"caller")
    caller.send("there", [b"lost", bytes(SHARED_BYTES)])
    turn(listener, lambda _: not listener._channels)
    old = caller._channels["there"]
    deadline = time.monotonic() + DEADLINE_S
    while caller._channels.get("there") in (None, old):
        assert time.monotonic() < deadline
        for transport in (listener, caller):
            assert not list(transport.poll(0.05))
    caller.send("there", [b"head", bytes(SHARED_BYTES)])
    ((_, frames),) = turn(listener, lambda found: found)
    assert bytes(frames[0]) == b"head"


def test_a_listener_shares_with_so_many_peers_and_no_more(listener, monkeypatch):
    monkeypatch.setattr(module, "MOST_CHANNELS", 2)
    callers = [Transport(f"caller {n}") for n in range(4)]
    for caller in callers:
        caller.connect("there", listener.address)
        turn(listener, lambda _, boot=caller._boot: boot in listener._channels)
    assert list(listener._channels) == [b"caller 2", b"caller 3"]
    for caller in callers:
        caller.close()


def test_other_machines_are_offered_nothing(monkeypatch):
    monkeypatch.setattr(module, "_is_loopback", lambda host: False)
    listener = Transport("listener", ("127.0.0.1", 0), "cluster.server_bind")
    caller = Transport("caller")
    caller.connect("there", listener.address)
    caller.send("there", [b"head", bytes(SHARED_BYTES)])
    ((_, frames),) = turn(listener, lambda found: found)
    assert len(frames[1]) == SHARED_BYTES and not caller._offered and not listener._channels
    caller.close()
    listener.close()
