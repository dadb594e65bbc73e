"""The keys of pulls that a server has answered, so that their pushes need not send them again.

A push names the pull whose keys it is for. What is kept is bounded, and may be forgotten at any
time: the server then asks for the keys, and the worker sends the push in full.
"""

from collections import OrderedDict

from ctrps.ps.effects import Peer
from ctrps.ps.messages import Arrays


class AskedKeys:
    """The keys of recent pulls, by worker and request.

    A worker never uses a request number twice, and a process that starts again has another name,
    so the two together stand for the same keys for ever.

    Parameters
    ----------
    most
        Pulls that are remembered of each worker; the oldest are forgotten first.

    Examples
    --------
    >>> asked = AskedKeys(most=2)
    >>> for request in (7, 8, 9):
    ...     asked.keep("w", request, (f"keys of {request}",))
    >>> asked.find("w", 9), asked.find("w", 7), asked.find("other", 9)
    (('keys of 9',), None, None)
    """

    def __init__(self, most: int):
        self.most = most
        self._by_worker: dict[Peer, OrderedDict[int, Arrays]] = {}

    def keep(self, worker: Peer, request: int, keys: Arrays) -> None:
        """Remember the keys of a pull."""
        kept = self._by_worker.setdefault(worker, OrderedDict())
        kept[request] = keys
        if len(kept) > self.most:
            kept.popitem(last=False)

    def find(self, worker: Peer, request: int) -> Arrays | None:
        """The keys of a pull, or None if they are forgotten."""
        kept = self._by_worker.get(worker)
        return kept.get(request) if kept else None

    def forget(self, worker: Peer, request: int) -> None:
        """A pull's push has come; its keys are not needed again."""
        kept = self._by_worker.get(worker)
        if kept:
            kept.pop(request, None)

    def clear(self) -> None:
        """Another pass or view: no push of the one before is taken any more."""
        self._by_worker.clear()

    def check(self) -> None:
        """Assert every invariant."""
        assert all(len(kept) <= self.most for kept in self._by_worker.values())
