"""Drives one state machine: its messages, its clock, its slow work, and signals.

The loop of a process is one thread that never blocks for long: reading, computing and writing
happen in threads of their own and come back as events. So a node goes on telling that it is
alive while it computes.
"""

import queue
import signal
import sys
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Protocol, TypeVar

from ctrps.codec import Buffer, CodecError
from ctrps.errors import CtrpsError
from ctrps.ps import messages
from ctrps.ps.effects import SCHEDULER, Connect, Effect, Effects, Finish, Log, Peer, Send
from ctrps.ps.messages import Message
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
    """

    def __init__(
        self,
        machine: Machine,
        transport: Transport,
        perform: Callable[[Effect], None],
        fail: Callable[[str, int, float], Effects],
        log: Callable[[str], None],
    ):
        self.machine = machine
        self.transport = transport
        self._perform = perform
        self._fail = fail
        self._log = log
        self._events: queue.SimpleQueue[Callable[[float], Effects]] = queue.SimpleQueue()
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
        self.transport.wake()

    def work(
        self,
        pool: ThreadPoolExecutor,
        job: Callable[[], Result],
        done: Callable[[Result, float], Effects],
    ) -> None:
        """Do slow work in ``pool``; its result comes back to the loop as an event."""

        def finished(future: Future[Result]) -> None:
            error = future.exception()
            if error is None:
                result = future.result()
                self.post(lambda now: done(result, now))
            else:
                self.post(lambda now: self._failed(error, now))

        pool.submit(job).add_done_callback(finished)

    def _turn(self) -> None:
        wait = self._next_tick - time.monotonic()
        for peer, frames in self.transport.poll(wait):
            self._receive(peer, frames)
        while not self._events.empty():
            event = self._events.get_nowait()
            self._try(event)
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            self._try(self.machine.on_tick)

    def _receive(self, peer: Peer, frames: list[Buffer]) -> None:
        try:
            message = messages.decode(frames)
        except CodecError as error:
            self._complain(peer, error)
            return
        self._try(lambda now: self.machine.on_message(peer, message, now))

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
            return self._fail(str(error), error.exit_status, now)
        raise error

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.transport.send(effect.to, messages.encode(effect.message))
                case Connect():
                    self._connect(effect)
                case Log():
                    self._log(effect.text)
                case Finish():
                    self._finish = effect
                case _:
                    self._perform(effect)

    def _connect(self, effect: Connect) -> None:
        try:
            self.transport.connect(effect.node, effect.address)
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
