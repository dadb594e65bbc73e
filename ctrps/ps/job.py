"""What the scheduler is told of a job, and the phases that a job goes through."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ctrps.ps.plan import Manifest, PlanSettings


class Phase(Enum):
    """What the job is doing. The value is what ``orders`` say."""

    FORMING = "wait"
    LOADING = "load"
    TRAINING = "train"
    EVALUATING = "evaluate"
    STOPPING = "stop"
    ENDED = "end"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the scheduler needs to know of a job.

    Attributes
    ----------
    replicas
        Standbys of each server: 0 or 1.
    plan_digest
        Of data and lanes: a journal of other ones is none of this job's.
    resume
        The (checkpoint, pass, step) of the newest checkpoint, None for an empty model.
    checkpoint_s
        Seconds between checkpoints inside a pass; 0 for none.
    evaluate_each
        Score the test rows after every pass, not only after the last.
    patience
        Stop when so many evaluations in a row were no better than the best; 0: never.
    """

    name: str
    config_digest: str
    servers: int
    workers: int
    passes: int
    partitions: int
    settings: PlanSettings
    manifest: Manifest
    replicas: int = 0
    plan_digest: str = ""
    resume: tuple[int, int, int] | None = None
    checkpoint_s: float = 0.0
    evaluate_each: bool = False
    patience: int = 0


@dataclass(slots=True)
class Clock:
    """Times of the run, in seconds of the driver's clock."""

    began: float
    said: float
    progress: float
    no_worker: float | None = None
    training_since: float = 0.0
    pass_s: float | None = None
    train_s: float = 0.0
    step_s: float = 0.0
    marks: tuple[object, ...] = field(default_factory=tuple)
    looked: float | None = None

    def stood_still(self, now: float, most_s: float) -> float:
        """Seconds, beyond ``most_s``, since deadlines were last looked at: somebody stopped this
        process, and what it has waited for meanwhile cannot be blamed."""
        still = 0.0 if self.looked is None else max(now - self.looked - most_s, 0.0)
        self.looked = now
        self.progress += still
        if self.no_worker is not None:
            self.no_worker += still
        return still

    def stalled(self, marks: tuple[object, ...], now: float) -> float:
        """For how long nothing has changed of ``marks``, which do when the job gets on."""
        if marks != self.marks:
            self.marks, self.progress = marks, now
        return now - self.progress


class EarlyStop:
    """Whether a figure of the test rows still gets better.

    Parameters
    ----------
    patience
        Evaluations without a better figure after which it is over; 0: never.

    Examples
    --------
    >>> stop = EarlyStop(patience=2)
    >>> [stop.better(figure) for figure in (0.5, 0.4, None, 0.45, 0.41)], stop.over
    ([True, True, False, False, False], True)
    """

    def __init__(self, patience: int):
        self._patience = patience
        self._best: float | None = None
        self._worse = 0

    def better(self, badness: float | None) -> bool:
        """Take in a figure that is to be small; None has no value and counts for nothing."""
        if badness is None or not self._patience:
            return False
        if self._best is None or badness < self._best:
            self._best, self._worse = badness, 0
            return True
        self._worse += 1
        return False

    @property
    def over(self) -> bool:
        return 0 < self._patience <= self._worse


class Poison:
    """Counts workers that die at the same batch, and at none that they got done.

    Deaths that are close together count as one: which batch is next is known from reports that
    come once a beat, and of workers that are killed together, only one has begun it. A worker that
    is only silent, as on a machine with too much to do, has not died if it speaks again.

    Parameters
    ----------
    apart_s
        Time between two deaths that count, more than a beat.
    silent_s
        How long nothing is heard of a lost worker until its silence counts as a death.

    Attributes
    ----------
    most
        Deaths that are too many.
    last
        In words: who died last, and how.

    Examples
    --------
    >>> poison = Poison(apart_s=1.5, silent_s=5.0)
    >>> for number in range(3):
    ...     poison.lost(number, "silent", False, [(0, number), (2, 5)], now=2.0 * number)
    >>> poison.found(8.0, to_come=lambda lane: 2), poison.found(9.0, to_come=lambda lane: 2)
    ([], [(2, 5)])
    >>> poison.speaks(1)
    >>> poison.found(9.0, to_come=lambda lane: 2)
    []
    """

    most = 3

    def __init__(self, apart_s: float, silent_s: float):
        self._apart_s = apart_s
        self._silent_s = silent_s
        # Of each batch, the workers that were lost: when, and from when on that is a death.
        self._lost: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
        self.last = ""

    def lost(
        self, node: int, how: str, sure: bool, held: list[tuple[int, int]], now: float
    ) -> None:
        """A worker is lost with these batches, as ``(lane, batch)``; ``sure``: its end was seen."""
        self.last = how
        death = (now, now if sure else now + self._silent_s)
        for batch in held:
            lost = self._lost.setdefault(batch, {})
            if all(now - before >= self._apart_s for before, _ in lost.values()):
                lost[node] = death

    def speaks(self, node: int) -> None:
        """A worker that was lost is heard again: it was only silent."""
        for lost in self._lost.values():
            lost.pop(node, None)

    def found(self, now: float, to_come: Callable[[int], int]) -> list[tuple[int, int]]:
        """Batches at which too many have died, where ``to_come`` is the next one of a lane."""
        self._lost = {b: lost for b, lost in self._lost.items() if b[1] >= to_come(b[0])}
        return [
            batch
            for batch, lost in self._lost.items()
            if sum(since <= now for _, since in lost.values()) >= self.most
        ]

    def clear(self) -> None:
        """Another pass."""
        self._lost.clear()
