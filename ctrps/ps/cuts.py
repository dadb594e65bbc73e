"""The checkpoint in progress: at which version servers save, and how far they are.

A cut is ordered a little ahead of the highest step that servers have reported, so that all of them
save at the same step without a pause. A server that is past it says so, and another cut is ordered
further ahead. At the end of a pass none can be missed.
"""

from collections.abc import Iterable

from ctrps.ps.effects import Commit
from ctrps.ps.messages import Status


class Cuts:
    """Numbers checkpoints, says when one is due, and follows the one in progress.

    Parameters
    ----------
    first : int
        Id of the next checkpoint; ids are never used twice.
    sync : bool
        All partitions save at one step; else each saves at once, with its marks.
    every_s : float
        Seconds between checkpoints inside a pass; 0 for none.
    beat_s : float
        Time that an order may take to arrive.

    Attributes
    ----------
    current : tuple (checkpoint, pass, step) or None
    next : int
        Id of the next one.
    committing : bool
        All files of the current one are saved, its manifest is being written.
    """

    def __init__(self, first: int, sync: bool, every_s: float, beat_s: float):
        self.current: tuple[int, int, int] | None = None
        self.committing = False
        self.next = first
        self._sync = sync
        self._every_s = every_s
        self._beat_s = beat_s
        self._margin = 2
        self._at_least = 0
        self._pass, self._steps = 0, 0
        self._saved_at = 0.0

    def open(self, pass_: int, steps: int, now: float) -> None:
        """A pass of so many steps begins or goes on: save at its end."""
        self._pass, self._steps, self._saved_at = pass_, steps, now
        self._order(steps)

    def soon(self, step: int, reports: Iterable[Status], step_s: float) -> None:
        """Save as soon as all can: beyond what is done before the order arrives.

        ``step`` is what all have, ``step_s`` how long one takes. A cut that was ordered before is
        withdrawn.
        """
        if self.committing:
            return
        if not self._sync:
            self._at_least = max(step, 0)
            self._order(-1)
            return
        highest = max((status.step for status in reports), default=0)
        in_two_beats = round(2 * self._beat_s / step_s) if step_s else 0
        self._order(min(highest + max(self._margin, in_two_beats), self._steps))

    def follow(self, step: int, reports: list[Status], step_s: float, now: float) -> Commit | None:
        """Order another one where that is due; what to commit, once every server has saved."""
        if self.committing or self.current is None:
            return None
        checkpoint, pass_, at = self.current
        if any(status.missed == checkpoint for status in reports):
            self._margin *= 2
            self.soon(step, reports, step_s)
            return None
        if any(status.saved != checkpoint for status in reports):
            due = self._every_s and now - self._saved_at >= self._every_s
            if due and at == self._steps and step < self._steps:
                self.soon(step, reports, step_s)
            return None
        self.committing = True
        files = tuple(sorted((p, n, b, d) for s in reports for p, n, b, d in s.files))
        held = self._at_least if at < 0 else at
        return Commit(checkpoint, pass_, held, at == self._steps, files)

    def close(self, now: float) -> tuple[int, int, int]:
        """The current one exists now; returns its id, pass and step."""
        assert self.current is not None
        closed, self.current, self.committing = self.current, None, False
        self._saved_at = now
        return closed

    def order_border(self) -> None:
        """Save at the end of the pass."""
        self._order(self._steps)

    def withdraw(self) -> None:
        """No cut: whatever is being saved is of no use any more, unless it is being committed."""
        if not self.committing:
            self.current = None

    def _order(self, step: int) -> None:
        self.current = (self.next, self._pass, step)
        self.next += 1

    def as_orders(self) -> list[int]:
        return list(self.current or ())
