"""The checkpoint in progress: at which version servers save, and how far they are.

A cut is ordered a little ahead of the highest step that servers have reported, so that all of them
save at the same step without a pause. A server that is past it says so, and another cut is ordered
further ahead. At the end of a pass none can be missed.
"""

from collections.abc import Iterable

from ctrps.ps.messages import Status


class Cuts:
    """Numbers checkpoints and follows the one in progress.

    Parameters
    ----------
    first : int
        Id of the next checkpoint; ids are never used twice.

    Attributes
    ----------
    current : tuple (checkpoint, pass, step) or None
    at_least : int
        Steps that every file of a cut without a step is known to hold.
    committing : bool
        All files of the current one are saved, its manifest is being written.
    """

    def __init__(self, first: int):
        self.current: tuple[int, int, int] | None = None
        self.committing = False
        self.at_least = 0
        self._next = first
        self._margin = 2

    def order(self, pass_: int, step: int) -> None:
        """Save at this version; a cut that was ordered before is withdrawn."""
        self.current = (self._next, pass_, step)
        self._next += 1

    def order_soon(self, pass_: int, highest: int, in_two_beats: int, steps: int) -> None:
        """Save as soon as all can: beyond what is done before the order arrives."""
        self.order(pass_, min(highest + max(self._margin, in_two_beats), steps))

    def order_now(self, pass_: int, at_least: int) -> None:
        """Save at once, each partition with its marks, wherever it stands (not in sync mode)."""
        self.at_least = at_least
        self.order(pass_, -1)

    def missed(self, reports: Iterable[Status]) -> bool:
        """Whether a server was past the cut; the next one is then ordered further ahead."""
        current = self.current
        if current is None or not any(status.missed == current[0] for status in reports):
            return False
        self._margin *= 2
        return True

    def saved(self, reports: list[Status]) -> tuple[tuple[int, str, int, str], ...] | None:
        """The files of all servers once each has saved the current cut."""
        if self.current is None or not all(s.saved == self.current[0] for s in reports):
            return None
        return tuple(sorted((p, n, b, d) for s in reports for p, n, b, d in s.files))

    def close(self) -> tuple[int, int, int]:
        """The current one exists now."""
        assert self.current is not None
        closed, self.current, self.committing = self.current, None, False
        return closed

    def as_orders(self) -> list[int]:
        return list(self.current or ())
