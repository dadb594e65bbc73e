"""What the scheduler is told of a job, and the phases that a job goes through."""

from dataclasses import dataclass
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
    resume
        The (checkpoint, pass, step) to begin from, None for an empty model.
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
    resume: tuple[int, int, int] | None = None
    checkpoint_s: float = 0.0
    evaluate_each: bool = False
    patience: int = 0


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
