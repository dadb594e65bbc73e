"""What a worker has in hand: lanes, the batches of each, and requests that are not answered."""

from dataclasses import dataclass, field
from enum import Enum

from ctrps.models import Minibatch
from ctrps.ps.messages import Arrays, Pull, Push


class Stage(Enum):
    """How far a batch has come in this worker."""

    PREPARING = 0
    PREPARED = 1
    ASKING = 2
    COMPUTING = 3
    SENDING = 4


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
