"""What a server and a worker have in common: being a node of one scheduler's job.

A member registers until it is welcome, tells its status every beat and at once when it has news,
and obeys the newest orders. It ends when told to, or when it has heard no scheduler for
``give_up_s``. Everything that a role does beside that is in ``server`` and ``worker``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from signal import SIGTERM

from ctrps.ps.effects import (
    SCHEDULER,
    Begin,
    Effects,
    Finish,
    Log,
    Send,
)
from ctrps.ps.messages import Bye, Orders, Refused, Register, Status, Welcome
from ctrps.ps.plan import Manifest

FENCED = "fenced"
"""How the reason begins that a node hears that is out of the job.

It was declared dead, and may join as a new one; or it has asked to leave, and may end.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, and counts, that all machines go by. None is needed for safety."""

    beat_s: float = 1.0
    worker_silent_s: float = 3.0
    server_silent_s: float = 5.0
    retry_s: float = 2.0
    retry_most_s: float = 10.0
    say_s: float = 5.0
    start_s: float = 60.0
    give_up_s: float = 60.0
    server_wait_s: float = 30.0
    steal_s: float = 2.0
    linger_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a process is before it is welcome."""

    role: str
    job: str
    config_digest: str
    kernel_digest: str
    boot: str
    address: str
    protocol: int
    rank: int = -1
    replaces: bool = False


class Life(Enum):
    """The states of a member."""

    JOINING = "joining"
    WORKING = "working"
    ENDED = "ended"


class Member(ABC):
    """Registration, orders and the end; the base of ``Server`` and ``Worker``.

    Parameters
    ----------
    identity
    limits
    now
        Monotonic seconds at the start.

    Attributes
    ----------
    measured : mapping
        What the driver has measured so far, to be told with the counters of a status.
    leaves : bool
        It has been asked to leave: it tells the scheduler, and works on until that lets it go.
    """

    def __init__(self, identity: Identity, limits: Limits, now: float):
        self.identity = identity
        self.limits = limits
        self.life = Life.JOINING
        self.measured: Mapping[str, float] = {}
        self.leaves = False
        self.node = -1
        self.rank = identity.rank
        self.orders: Orders | None = None
        self._term = -1
        self._seq = 0
        self._started = now
        self._heard = now
        self._next_beat = now
        self._next_words = now + limits.say_s
        self._fault: tuple[str, int] = ("", 0)

    def fail(self, what: str, exit_status: int, now: float) -> Effects:
        """The driver or the machine met an error that ends the job: tell the scheduler."""
        self._fault = (what, exit_status)
        effects: Effects = [Log(what)]
        if self.life is Life.WORKING:
            return effects + self._tell(now)
        return effects + self._end(exit_status, what)

    def on_signal(self, number: int, now: float) -> Effects:
        """Somebody wants this process to end: by the first SIGTERM as soon as the job allows it."""
        if number == SIGTERM and self.life is Life.WORKING and not self.leaves:
            self.leaves = True
            how = "works on until it is let go; a second signal ends it at once"
            return [Log(f"asked to leave: {how}"), *self._tell(now)]
        return self._end(128 + number, f"stopped by signal {number}")

    def _beat(self, now: float) -> Effects:
        """The part of ``on_tick`` that both roles share."""
        if self.life is Life.ENDED:
            return []
        effects = self._mind_the_scheduler(now)
        if effects or now < self._next_beat:
            return effects
        return self._tell(now)

    def _mind_the_scheduler(self, now: float) -> Effects:
        silent = now - self._heard
        limit = self.limits.start_s if self.life is Life.JOINING else self.limits.give_up_s
        if silent >= limit:
            return self._end(4, f"no word from the scheduler for {silent:.0f} s")
        if silent >= self.limits.say_s and now >= self._next_words:
            self._next_words = now + self.limits.say_s
            return [
                Log(f"waiting for the scheduler, {silent:.0f} s of {limit:.0f} s"),
                *self._tell(now),
            ]
        return []

    def _tell(self, now: float) -> Effects:
        """Register, or send the status; sets the next beat."""
        self._next_beat = now + self.limits.beat_s
        if self.life is Life.ENDED:
            return []
        if self.life is Life.WORKING:
            self._seq += 1
            return [Send(SCHEDULER, self._status(now))]
        i = self.identity
        digests = i.config_digest, i.kernel_digest
        message = Register(
            i.protocol, i.role, i.rank, i.job, *digests, i.boot, i.address, i.replaces
        )
        return [Send(SCHEDULER, message)]

    def _welcome(self, message: Welcome, now: float) -> Effects:
        if message.boot != self.identity.boot or self.life is not Life.JOINING:
            return []
        self.life = Life.WORKING
        self.node, self._term, self.rank = message.node, message.term, message.rank
        self._heard = now
        manifest = Manifest.unpack(message.names, message.blocks)
        self._joined(manifest)
        return [Begin(self.node, message.rank, manifest), *self._tell(now)]

    def _refused_registration(self, message: Refused) -> Effects:
        if self.life is not Life.JOINING:
            return []
        status = 2 if message.why == "digest" else 4
        return self._end(status, f"the scheduler refused this node: {message.detail}")

    def _accept(self, orders: Orders, now: float) -> bool:
        """Whether these orders are newer than those obeyed; if so they are held now."""
        if self.life is not Life.WORKING:
            return False
        if orders.term >= self._term:
            self._heard = now
        if self.orders and (orders.term, orders.seq) <= (self.orders.term, self.orders.seq):
            return False
        if orders.term > self._term:
            self._next_beat = now  # another scheduler: it knows nothing of this node yet
        self.orders = orders
        self._term = orders.term
        return True

    def _obey_stop(self, orders: Orders) -> Effects:
        if self.leaves and orders.reason.startswith(FENCED):
            return [Log("let go"), *self._end(0, "it was asked to leave")]
        return self._end(orders.exit_status, orders.reason)

    def _end(self, exit_status: int, reason: str) -> Effects:
        self.life = Life.ENDED
        bye = Bye(self.node, exit_status, reason)
        return [Send(SCHEDULER, bye), Finish(exit_status, reason)]

    @abstractmethod
    def _joined(self, manifest: Manifest) -> None:
        """The node is welcome, and this is the data."""

    @abstractmethod
    def _status(self, now: float) -> Status:
        """All that the scheduler should know, under the present ``_seq``."""
