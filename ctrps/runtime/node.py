"""Drives one state machine: its messages, its clock, its slow work, and signals.

The loop of a process is one thread that never blocks for long: reading, computing and writing
happen in threads of their own and come back as events. So a node goes on telling that it is
alive while it computes.
"""

import queue
import signal
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import FrameType
from typing import Protocol, TypeVar

from ctrps.codec import Buffer, CodecError
from ctrps.errors import ClusterError, CtrpsError
from ctrps.ps import messages
from ctrps.ps.effects import SCHEDULER, Connect, Effect, Effects, Finish, Log, Peer, Send
from ctrps.ps.messages import Message
from ctrps.runtime.meter import RECEIVED, SENT, Meter, part_of
from ctrps.runtime.transport import Transport

SWITCH_S = 0.0002
"""How long a thread may keep the interpreter from another. Python's 5 ms would be added to each
batch's way from the reading thread to the loop, to the computing thread and back."""

TICK_S = 0.1
"""How often a machine looks at its deadlines: well below the shortest of them."""

Result = TypeVar("Result")


class Machine(Protocol):
    """What the loop needs of a state machine; roles have more events of their own."""

    def on_message(self, peer: Peer, message: Message, now: float) -> Effects: ...

    def on_tick(self, now: float) -> Effects: ...


def packets(effects: Iterable[Effect]) -> Iterator[tuple[Peer, list[Message]]]:
    """The messages of ``effects``, those to one peer together and in order."""
    by_peer: dict[Peer, list[Message]] = {}
    for effect in effects:
        if isinstance(effect, Send):
            by_peer.setdefault(effect.to, []).append(effect.message)
    for peer, sent in by_peer.items():
        for first in range(0, len(sent), messages.MOST_TOGETHER):
            yield peer, sent[first : first + messages.MOST_TOGETHER]


class Node:
    """The loop of one process.

    Parameters
    ----------
    machine
    transport
    perform
        Carries out the effects that are special to the role.
    fail
        Turns an error of slow work or of the machine into effects: (what, status, now).
    log
        Takes a line for people.
    tick_s
        How often the machine looks at its deadlines.

    Attributes
    ----------
    meter : Meter
        Of this node's work.
    """

    def __init__(
        self,
        machine: Machine,
        transport: Transport,
        perform: Callable[[Effect], None],
        fail: Callable[[str, int, float], Effects],
        log: Callable[[str], None],
        tick_s: float = TICK_S,
    ):
        self.tick_s = tick_s
        self.machine = machine
        self.transport = transport
        self.meter = Meter()
        self._perform = perform
        self._fail = fail
        self._log = log
        self._events: queue.SimpleQueue[Callable[[float], Effects]] = queue.SimpleQueue()
        self._waiting = False
        self._next_tick = 0.0
        self._finish: Finish | None = None
        self._complaints: dict[Hashable, float] = {}

    def run(self, first: Effects, on_signal: Callable[[int, float], Effects]) -> Finish:
        """Go on until the machine finishes; ``on_signal`` turns a signal number into effects."""
        sys.setswitchinterval(SWITCH_S)
        before = {
            number: signal.signal(number, self._handler(on_signal))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            self._carry_out(first)
            while self._finish is None:
                self._turn()
            return self._finish
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def post(self, event: Callable[[float], Effects]) -> None:
        """Hand an event to the loop, from any thread."""
        self._events.put(event)
        if self._waiting:
            self.transport.wake()

    def work(
        self,
        pool: ThreadPoolExecutor,
        job: Callable[[], Result],
        done: Callable[[Result, float], Effects],
        part: str = "",
    ) -> None:
        """Do slow work in ``pool``; its result comes back to the loop as an event.

        Its time counts as ``part``, if that is not empty.
        """

        def measured() -> Result:
            with self.meter.timed(part):
                return job()

        def finished(future: Future[Result]) -> None:
            error = future.exception()
            if error is None:
                result = future.result()
                self.post(lambda now: done(result, now))
            else:
                self.post(lambda now: self._failed(error, now))

        pool.submit(measured).add_done_callback(finished)

    def at_once(
        self, job: Callable[[], Result], done: Callable[[Result, float], Effects], part: str = ""
    ) -> None:
        """As ``work``, for what takes no longer than handing it to a thread and back is worth."""
        with self.meter.apart(part) if part else nullcontext():
            try:
                result = job()
            except CtrpsError as error:
                failure = error
                self.post(lambda now: self._failed(failure, now))
                return
        self.post(lambda now: done(result, now))

    def _turn(self) -> None:
        # Whoever posts after this line sees it and wakes the poll; what came before is seen here.
        self._waiting = True
        wait = self._next_tick - time.monotonic() if self._events.empty() else 0.0
        try:
            received = self.transport.poll(wait)
        except ClusterError as error:
            received = iter(())
            self._carry_out(self._failed(error, time.monotonic()))
        self._waiting = False
        with self.meter.timed("messages"):
            self._handle(received)

    def _handle(self, received: Iterable[tuple[Peer, list[Buffer]]]) -> None:
        for peer, frames in received:
            self._receive(peer, frames)
        while not self._events.empty():
            self._try(self._events.get_nowait())
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + self.tick_s
            self._try(self.machine.on_tick)

    def _receive(self, peer: Peer, frames: list[Buffer]) -> None:
        self._count(peer, frames, RECEIVED)
        try:
            received = messages.decode(frames)
        except CodecError as error:
            self._complain(peer, error)
            return
        self._try(lambda now: self._take(peer, received, now))

    def _count(self, peer: Peer, frames: list[Buffer], way: str) -> None:
        if peer != SCHEDULER:
            self.meter.sums[way] += sum(map(len, frames))

    def _take(self, peer: Peer, received: list[Message], now: float) -> Effects:
        """What came together is answered together."""
        effects: Effects = []
        for message in received:
            part = part_of(message)
            with self.meter.apart(part) if part else nullcontext():
                effects += self.machine.on_message(peer, message, now)
        return effects

    def _complain(self, peer: Peer, error: CodecError) -> None:
        """One line for each peer and minute: garbage must not flood the log."""
        now = time.monotonic()
        if now - self._complaints.get(peer, -60.0) >= 60.0 and len(self._complaints) < 1000:
            self._complaints[peer] = now
            self._log(f"dropped a message of {_shown(peer)}: {error.what}")

    def _try(self, event: Callable[[float], Effects]) -> None:
        now = time.monotonic()
        try:
            effects = event(now)
        except CtrpsError as error:
            effects = self._failed(error, now)
        self._carry_out(effects)

    def _failed(self, error: BaseException, now: float) -> Effects:
        if isinstance(error, CtrpsError):
            return self._fail(error.told, error.exit_status, now)
        raise error

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        effects = list(effects)
        for effect in effects:
            match effect:
                case Send():
                    continue
                case Connect():
                    self._connect(effect)
                case Log():
                    self._log(effect.text)
                case Finish():
                    self._finish = effect
                case _:
                    self._perform(effect)
        for peer, together in packets(effects):
            frames = messages.encode(*together)
            self._count(peer, frames, SENT)
            self.transport.send(peer, frames)

    def _connect(self, effect: Connect) -> None:
        try:
            self.transport.keep(effect.addresses)
        except CtrpsError as error:
            self._carry_out(self._failed(error, time.monotonic()))

    def _handler(
        self, on_signal: Callable[[int, float], Effects]
    ) -> Callable[[int, FrameType | None], None]:
        return lambda number, frame: self.post(lambda now: on_signal(number, now))


def _shown(peer: Peer) -> str:
    if peer == SCHEDULER:
        return "the scheduler"
    return peer.hex()[:16] if isinstance(peer, bytes) else f"server {peer}"
