"""``ctrps`` with something broken that no crash would forgive: negative controls of the harness.

    python -m benchmarks.faults.controls marks launch …

runs `ctrps launch …` without the marks of checkpoints. Its processes are forked from this one, so
all of them are broken alike.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctrps.cli import main
from ctrps.ps.arrival import Arrival
from ctrps.ps.effects import Effects, Finish, Peer, Send
from ctrps.ps.journal import Journal
from ctrps.ps.messages import Message, Pull, Push, Pushed, Refused
from ctrps.ps.partition import NO_MARKS
from ctrps.ps.server import Server
from ctrps.runtime import saving
from ctrps.runtime.roles import ServerProcess


def forget_marks() -> None:
    """A partition is read without what it knows to have applied: batches are applied again."""
    read = saving.read_partitions

    def without_marks(*args):  # type: ignore[no-untyped-def]
        return {p: state._replace(marks=NO_MARKS) for p, state in read(*args).items()}

    saving.read_partitions = without_marks


def send_twice() -> None:
    """Each push comes once more a moment later, and again when its server has another placement.

    And servers come late in place of dead ones, so that there are other placements. Networks and
    machines do such things; ctrps as it is takes no harm from it.
    """
    take, tick, begin = Server.on_message, Server.on_tick, Server.on_loaded
    live = ServerProcess._live
    new: deque[tuple[Peer, Push]] = deque()
    old: deque[tuple[Peer, Push]] = deque(maxlen=1000)

    def on_message(self: Server, peer: Peer, message: Message, now: float) -> Effects:
        if isinstance(message, Push):
            keys = self.asked.find(peer, message.asked) or message.keys
            new.append((peer, replace(message, keys=keys, asked=-1)))
        before, effects = self.view, take(self, peer, message, now)
        if self.view == before or self.mode is None:
            return effects
        return effects + again(self, old, now)  # there was no checkpoint to go back to

    def again(self: Server, sent: Iterable[tuple[Peer, Push]], now: float) -> Effects:
        return [effect for peer, push in sent for effect in take(self, peer, push, now)]

    def on_tick(self: Server, now: float) -> Effects:
        effects = tick(self, now) + again(self, new, now)
        old.extend(new)
        new.clear()
        return effects

    def on_loaded(self: Server, *args: Any) -> Effects:
        return begin(self, *args) + again(self, old, args[-1])

    def late(self: ServerProcess) -> Finish:
        if self.place.replaces:
            time.sleep(1.5)  # the others have been given its partitions by then
        return live(self)

    Server.on_message, Server.on_tick = on_message, on_tick  # type: ignore[method-assign]
    Server.on_loaded = on_loaded  # type: ignore[method-assign]
    ServerProcess._live = late  # type: ignore[method-assign]


def add_repeats() -> None:
    """A push that comes again is added again, and by all partitions if one of them misses it."""
    send_twice()
    take = Arrival.on_push

    def again(self: Arrival, peer: Peer, push: Push, now: float) -> list[Send]:
        if not len(self.owned) or push.batch > self.lowest[push.lane]:
            return take(self, peer, push, now)
        part = self._part(push, self.owned, push.gradients)
        self.partitions.apply_late([part], 0, 1.0)
        return [Send(peer, Pushed(push.request, push.batch))]

    Arrival.on_push = again  # type: ignore[method-assign]
    Arrival._missing = lambda self, push: self.owned  # type: ignore[method-assign]


def forget_journal() -> None:
    """A scheduler that is started again knows nothing of the one before."""

    def nothing(run: Path) -> Journal | None:
        return None

    saving.remembered = nothing


def ignore_views() -> None:
    """No fence: servers take what was meant for an older placement.

    A server that by now has other partitions, and stands where a checkpoint stood, takes a batch
    for whole of which it gets the keys of its former partitions only.
    """
    send_twice()
    check = Server._misplaced

    def any_view(self: Server, message: Pull | Push) -> Refused | None:
        return check(self, replace(message, view=self.view))

    Server._misplaced = any_view  # type: ignore[method-assign]


CONTROLS: dict[str, Callable[[], None]] = {
    "nothing": send_twice,
    "marks": forget_marks,
    "repeats": add_repeats,
    "views": ignore_views,
    "journal": forget_journal,
}

ENDS = {"nothing": 0, "marks": 0, "repeats": 0, "views": 0, "journal": 4}
"""Exit status of a job that is broken so: a model that is wrong, but for the last."""


if __name__ == "__main__":
    CONTROLS[sys.argv.pop(1)]()
    main()
