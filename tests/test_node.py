"""The loop of a process with a fake network: effects, errors, slow work, signals, complaints."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ctrps.errors import CheckpointError, ClusterError
from ctrps.ps import messages
from ctrps.ps.effects import SCHEDULER, Begin, Connect, Effects, Finish, Log, Send
from ctrps.ps.messages import Bye, Refused
from ctrps.runtime import node as module
from ctrps.runtime.node import Node


class FakeTransport:
    """Hands out messages once, and remembers what it was given."""

    def __init__(self, incoming: list[tuple] | None = None):
        self.incoming = incoming or []
        self.sent: list[tuple] = []
        self.kept: list[dict[int, str]] = []
        self.packets = 0
        self._woken = threading.Event()

    def poll(self, timeout_s: float) -> Iterator[tuple]:
        if not self.incoming:
            self._woken.wait(max(timeout_s, 0))
            self._woken.clear()
        received, self.incoming = self.incoming, []
        return iter(received)

    def send(self, peer: object, frames: list) -> bool:
        self.packets += 1
        self.sent += [(peer, message) for message in messages.decode(frames)]
        return True

    def keep(self, addresses: dict[int, str]) -> None:
        self.kept.append(addresses)

    def wake(self) -> None:
        self._woken.set()


class Machine:
    """Ends on ``Bye``, fails on all else, and counts its ticks up to a limit."""

    def __init__(self, ticks: int = 1000):
        self.ticks = ticks
        self.now = -1.0

    def on_message(self, peer: object, message: messages.Message, now: float) -> Effects:
        if isinstance(message, Bye):
            return [Finish(message.exit_status, f"{peer} said {message.reason}")]
        raise ClusterError("this was not asked for", where=str(peer))

    def on_tick(self, now: float) -> Effects:
        assert now >= self.now
        self.now = now
        self.ticks -= 1
        return [Finish(9, "no end in sight")] if self.ticks <= 0 else []


class Lab:
    """A node with all that it is made of."""

    def __init__(self, *incoming: tuple, machine: Machine | None = None):
        self.transport = FakeTransport(list(incoming))
        self.performed: list[object] = []
        self.failures: list[tuple[str, int]] = []
        self.lines: list[str] = []
        self.node = Node(
            machine or Machine(),
            self.transport,  # type: ignore[arg-type]
            self.performed.append,
            self._fail,
            self.lines.append,
        )

    def _fail(self, what: str, status: int, now: float) -> Effects:
        self.failures.append((what, status))
        return [Finish(status, what)]

    def run(self, *first: object) -> Finish:
        return self.node.run(list(first), lambda number, now: [Finish(128 + number, "signal")])


def refused() -> list:
    return messages.encode(Refused(3, "wait", -1, "not yet"))


def bye(status: int = 0) -> list:
    return messages.encode(Bye(1, status, "enough"))


def test_effects_go_where_they_belong_in_order():
    lab = Lab((b"a", bye(7)))
    begin = Begin(4, 0, None)  # type: ignore[arg-type]
    message = Refused(3, "wait", -1, "not yet")
    finish = lab.run(Connect({2: "h:1"}), Send(2, message), Log("a line"), begin)
    assert finish == Finish(7, "b'a' said enough")
    assert lab.transport.kept == [{2: "h:1"}]
    assert lab.transport.sent == [(2, message)]
    assert lab.lines == ["a line"]
    assert lab.performed == [begin]


def test_messages_to_one_peer_travel_together_in_order():
    one, two, three = (Refused(n, "wait", -1, "") for n in range(3))
    sends = [Send(2, one), Send(3, two), Log("a line"), Send(2, three)]
    assert list(module.packets(sends)) == [(2, [one, three]), (3, [two])]
    many = [Send(2, Refused(n, "wait", -1, "")) for n in range(20)]
    assert [len(together) for _, together in module.packets(many)] == [8, 8, 4]


def test_what_came_together_is_answered_together():
    class Echo(Machine):
        def on_message(self, peer, message, now):
            if message.request == 9:
                return [Finish(0, "enough")]
            return [Send(peer, message)]

    together = [Refused(n, "wait", -1, "") for n in (1, 2)]
    last = messages.encode(Refused(9, "wait", -1, ""))
    lab = Lab((b"a", messages.encode(*together)), (b"a", last), machine=Echo())
    lab.run()
    assert lab.transport.sent == [(b"a", together[0]), (b"a", together[1])]
    assert lab.transport.packets == 1


def test_the_machine_ticks_without_messages(monkeypatch):
    monkeypatch.setattr(module, "TICK_S", 0.001)
    assert Lab(machine=Machine(ticks=5)).run() == Finish(9, "no end in sight")


def test_an_error_of_the_machine_is_a_failure_of_the_node():
    lab = Lab((b"a", refused()))
    finish = lab.run()
    assert finish == Finish(4, "b'a': this was not asked for [E-CLUSTER]")
    assert lab.failures == [("b'a': this was not asked for [E-CLUSTER]", 4)]


def test_slow_work_comes_back_as_an_event():
    lab = Lab()
    with ThreadPoolExecutor(1) as pool:
        lab.node.work(pool, lambda: 6 * 7, lambda found, now: [Finish(0, f"found {found}")])
        assert lab.run() == Finish(0, "found 42")


def test_an_error_of_slow_work_is_a_failure_of_the_node():
    def read() -> None:
        raise CheckpointError("cut short", where="p000.part")

    lab = Lab()
    with ThreadPoolExecutor(1) as pool:
        lab.node.work(pool, read, lambda found, now: [])
        assert lab.run() == Finish(3, "p000.part: cut short [E-CHECKPOINT]")


def test_an_error_of_ours_ends_the_loop_with_its_traceback():
    lab = Lab()
    with ThreadPoolExecutor(1) as pool:
        lab.node.work(pool, lambda: {}["no such key"], lambda found, now: [])
        with pytest.raises(KeyError, match="no such key"):
            lab.run()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_event_and_the_old_handlers_come_back(number):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    lab = Lab()
    lab.node.post(lambda now: os.kill(os.getpid(), number) or [])
    assert lab.run() == Finish(128 + number, "signal")
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


# -- complaints ---------------------------------------------------------------------------------


def test_garbage_is_dropped_with_one_line_for_each_peer():
    junk = [[b""], [b"\xc1"], [bytes(100)], [b"x"] * 18]
    peers = [b"\xaa" * 20, SCHEDULER, 3]
    lab = Lab(*((peer, frames) for frames in junk for peer in peers), (b"a", bye()))
    assert lab.run().exit_status == 0
    assert [line.partition(":")[0] for line in lab.lines] == [
        f"dropped a message of {'aa' * 8}",
        "dropped a message of the scheduler",
        "dropped a message of server 3",
    ]
    assert lab.failures == []


def test_a_peer_is_complained_about_once_a_minute(monkeypatch):
    times = {"now": 1000.0}
    monkeypatch.setattr(module.time, "monotonic", lambda: times["now"])
    lab = Lab()
    for now in (1000.0, 1059.0, 1060.0, 1100.0, 1120.0):
        times["now"] = now
        lab.node._receive(b"a", [b"junk"])
    assert len(lab.lines) == 3


def test_many_strange_peers_do_not_flood_the_log():
    lab = Lab()
    for number in range(3000):
        lab.node._receive(b"%d" % number, [b"junk"])
    assert len(lab.lines) == 1000
