"""What a worker has in hand: lanes, the batches of each, and requests that are not answered."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from ctrps.models import Minibatch
from ctrps.ps.messages import Arrays, Pull, Push
from ctrps.ps.view import View


class Stage(Enum):
    """How far a batch has come in this worker."""

    PREPARING = 0
    PREPARED = 1
    ASKING = 2
    COMPUTING = 3
    SENDING = 4


PULLED = (Stage.ASKING, Stage.COMPUTING)
"""Stages of a batch whose weights are asked for and whose gradient is not sent."""

IN_FLIGHT = (Stage.ASKING, Stage.COMPUTING, Stage.SENDING)


@dataclass(slots=True)
class Task:
    """One batch in hand.

    Attributes
    ----------
    open : set of int
        Its requests that are not answered.
    asked, clocks : dict
        By server, the number of its pull, and the clock of the answer.
    """

    number: int
    stage: Stage = Stage.PREPARING
    batch: Minibatch | None = None
    weights: Arrays = ()
    open: set[int] = field(default_factory=set)
    asked: dict[int, int] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)
    mark: int = 1 << 60

    @property
    def in_flight(self) -> bool:
        """Its weights are asked for and its gradient is not acknowledged everywhere."""
        return self.stage in IN_FLIGHT


@dataclass(slots=True)
class Lane:
    """One lane held, with its tasks by batch number, and the next batch to take up."""

    number: int
    length: int
    tasks: dict[int, Task] = field(default_factory=dict)
    next: int = 0

    @property
    def finished(self) -> bool:
        return self.next >= self.length and not self.tasks

    def front(self) -> Task | None:
        """The lowest batch whose gradient is not computed yet."""
        unsent = [t for t in self.tasks.values() if t.stage is not Stage.SENDING]
        return min(unsent, key=lambda t: t.number, default=None)


def free(lanes: Iterable[Lane], window: int, pushing: bool) -> int:
    """How many batches more of these lanes may be asked for.

    A pull that travels with a push reads what that push has made, so the batch pushed does not
    count; a pull alone might overtake pushes that are on their way, and waits for their end.
    """
    pulled = sent = 0
    for lane in lanes:
        for task in lane.tasks.values():
            pulled += task.stage in PULLED
            sent += task.stage is Stage.SENDING
    if not pushing:
        return window - pulled - sent
    return min(window - pulled, 2 * window - pulled - sent)


@dataclass(slots=True)
class Request:
    """A pull or push that is not answered yet."""

    lane: int
    task: int
    server: int
    message: Pull | Push
    since: float
    due: float
    interval: float
    heard: str = ""


def waits_for(requests: Iterable[Request], before: float, view: View | None) -> str:
    """In words: the oldest request if it is from ``before``, and what its server says of it."""
    oldest = min(requests, key=lambda r: r.since, default=None)
    if oldest is None or oldest.since > before or view is None:
        return ""
    where = view.addresses.get(oldest.server, "?")
    what = f"{oldest.message.KIND} of lane {oldest.lane} batch {oldest.task}"
    said = f", which says: {oldest.heard}" if oldest.heard else ""
    return f"{what} at server {oldest.server} ({where}){said}"
