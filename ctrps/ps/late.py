"""What servers do about a gradient whose weights have changed since they were pulled.

Its *staleness* is how often they have changed: in async and ssp the pushes, in semi the steps that
the server has applied between the pull and the push.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrps.ps.effects import Peer
from ctrps.ps.messages import Pulled

STALENESS_BINS = 64
"""Of the histogram of staleness; the last one takes all above."""

TICKET_BYTES = 1 << 26
"""Weights that a server remembers to have answered."""

COUNTED = {
    "stale_scaled": "scaled down",
    "stale_refused": "refused as late",
    "uncompensated": "late without compensation",
}
"""What servers count of late pushes, each where the job asks for it, and its name on a screen."""


@dataclass(frozen=True, slots=True)
class ModeSettings:
    """How far apart workers may be, and what becomes of pushes that are late.

    Attributes
    ----------
    bound
        ssp: most batches that a lane may be ahead of the slowest; None: any.
    quorum, window_s
        semi: lanes that a step waits for, and for how long from the first of them on.
    stale_above
        Staleness beyond which a push is refused (``refuse_stale``) or else scaled down; None: any.
    compensation
        lambda of the delay compensation; 0 is off.
    """

    bound: int | None = None
    quorum: int = 1
    window_s: float = 0.1
    stale_above: int | None = None
    refuse_stale: bool = False
    compensation: float = 0.0

    def refuses(self, staleness: int) -> bool:
        """Whether a push is too late to be applied."""
        beyond = self.stale_above is not None and staleness > self.stale_above
        return self.refuse_stale and beyond

    def scale(self, staleness: int) -> float:
        """What a gradient is multiplied by: (1 + bound) / (1 + staleness) beyond the bound.

        With a bound of 0 this is the staleness-aware rate of Zhang et al., IJCAI 2016.

        Examples
        --------
        >>> settings = ModeSettings(stale_above=3)
        >>> [settings.scale(staleness) for staleness in (0, 3, 4, 15)]
        [1.0, 1.0, 0.8, 0.25]
        """
        if self.stale_above is None or self.refuse_stale or staleness <= self.stale_above:
            return 1.0
        return (1 + self.stale_above) / (1 + staleness)

    def counters(self) -> dict[str, float]:
        """A zero for each of ``COUNTED`` that can occur."""
        counted = []
        if self.stale_above is not None:
            counted.append("stale_refused" if self.refuse_stale else "stale_scaled")
        if self.compensation:
            counted.append("uncompensated")
        return dict.fromkeys(counted, 0)


class Tickets:
    """Answers to pulls, kept until their pushes come: what the weights were then.

    Parameters
    ----------
    most_bytes
        Weights kept in all; the oldest answers are dropped first.

    Examples
    --------
    >>> tickets = Tickets(most_bytes=20)
    >>> for request in (7, 8, 9):
    ...     tickets.keep("w", Pulled(request, 0, -1, (np.zeros(2, np.float32),)))
    >>> tickets.take("w", 7), tickets.take("w", 9).request, tickets.take("w", 9)
    (None, 9, None)
    """

    def __init__(self, most_bytes: int = TICKET_BYTES):
        self.most_bytes = most_bytes
        self._kept: OrderedDict[tuple[Peer, int], Pulled] = OrderedDict()
        self._bytes = 0

    def keep(self, worker: Peer, answer: Pulled) -> None:
        """Remember what a worker has been answered."""
        self.take(worker, answer.request)
        self._kept[worker, answer.request] = answer
        self._bytes += _size(answer)
        while self._bytes > self.most_bytes:
            self._bytes -= _size(self._kept.popitem(last=False)[1])

    def take(self, worker: Peer, request: int) -> Pulled | None:
        """The answer to a pull, once; None if it is not kept."""
        answer = self._kept.pop((worker, request), None)
        if answer is not None:
            self._bytes -= _size(answer)
        return answer

    def clear(self) -> None:
        """Another pass: no push of the one before is taken any more."""
        self._kept.clear()
        self._bytes = 0

    def check(self) -> None:
        """Assert every invariant."""
        assert self._bytes == sum(map(_size, self._kept.values())) <= self.most_bytes


def _size(answer: Pulled) -> int:
    return sum(weights.nbytes for weights in answer.weights)


def figures(histogram: Sequence[int]) -> dict[str, float] | None:
    """Mean, median, 95th percentile and maximum of counted staleness; None if nothing is counted.

    The last bin of a full histogram stands for all above, so that the figures are at least these.

    Examples
    --------
    >>> figures([10, 70, 18, 2])
    {'pushes': 100, 'mean': 1.12, 'median': 1, 'p95': 2, 'most': 3}
    """
    counts = np.array(histogram, np.int64)
    pushes = int(counts.sum())
    if not pushes:
        return None
    below = np.cumsum(counts)
    median, p95 = (int(np.searchsorted(below, share * pushes)) for share in (0.5, 0.95))
    mean = float((counts * np.arange(len(counts))).sum()) / pushes
    most = int(np.flatnonzero(counts)[-1])
    return {"pushes": pushes, "mean": round(mean, 3), "median": median, "p95": p95, "most": most}


def words(summary: Mapping[str, Any]) -> str:
    """What a summary says of late pushes, for a person.

    Examples
    --------
    >>> found = {"pushes": 100, "mean": 1.12, "median": 1, "p95": 2, "most": 3}
    >>> words({"staleness": found, "stale_refused": 4})
    'mean 1.1, 95 % up to 2, most 3, of 100 pushes; 4 refused as late'
    """
    found = summary["staleness"]
    text = f"mean {found['mean']:.1f}, 95 % up to {found['p95']}, most {found['most']}"
    more = [f"; {summary[name]:,} {what}" for name, what in COUNTED.items() if name in summary]
    return f"{text}, of {found['pushes']:,} pushes" + "".join(more)
