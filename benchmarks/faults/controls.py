"""``ctrps`` with something broken that no crash would forgive: negative controls of the harness.

    python -m benchmarks.faults.controls marks launch …

runs `ctrps launch …` without the marks of checkpoints. Its processes are forked from this one, so
all of them are broken alike.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from ctrps.cli import main
from ctrps.ps.arrival import Arrival
from ctrps.ps.effects import Peer, Send
from ctrps.ps.journal import Journal
from ctrps.ps.messages import Push, Pushed
from ctrps.ps.partition import NO_MARKS
from ctrps.runtime import saving


def forget_marks() -> None:
    """A partition is read without what it knows to have applied: batches are applied again."""
    read = saving.read_partitions

    def without_marks(*args):  # type: ignore[no-untyped-def]
        return {p: state._replace(marks=NO_MARKS) for p, state in read(*args).items()}

    saving.read_partitions = without_marks


def add_repeats() -> None:
    """A push that comes again is added again, and by all partitions if one of them misses it."""
    take = Arrival.on_push

    def again(self: Arrival, peer: Peer, push: Push) -> list[Send]:
        if not len(self.owned) or push.batch > self.lowest[push.lane]:
            return take(self, peer, push)
        part = self._part(push, self.owned, push.gradients)
        self.partitions.apply_late([part], 0, 1.0)
        return [Send(peer, Pushed(push.request, push.batch))]

    Arrival.on_push = again
    Arrival._missing = lambda self, push: self.owned


def forget_journal() -> None:
    """A scheduler that is started again knows nothing of the one before."""

    def nothing(run: Path) -> Journal | None:
        return None

    saving.remembered = nothing


CONTROLS: dict[str, Callable[[], None]] = {
    "marks": forget_marks,
    "repeats": add_repeats,
    "journal": forget_journal,
}


if __name__ == "__main__":
    CONTROLS[sys.argv.pop(1)]()
    main()
