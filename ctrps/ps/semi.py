"""semi: pushes wait for each other, and not for the slowest.

A push is held until ``quorum`` lanes are there, or a time has passed since the first. Then all that
are held are folded in lane order and applied as one step, and only then acknowledged. A lane that
is late joins the next step. Marks keep each batch exactly once, as in async (``docs/protocol.md``
section 4).
"""

from dataclasses import dataclass, field

import numpy as np

from ctrps.errors import LocalProtocolError
from ctrps.ps.arrival import Arrival
from ctrps.ps.effects import Peer, Send
from ctrps.ps.messages import Pull, Push, Pushed, Refused
from ctrps.ps.plan import Plan


@dataclass(slots=True)
class Held:
    """A push that waits for others, and all requests that it answers."""

    push: Push
    requests: set[tuple[Peer, int]] = field(default_factory=set)


class Semi(Arrival):
    """What a server does with pulls and pushes in semi mode.

    ``clock`` counts steps, so a push is as stale as steps were applied between its pull and it.
    """

    def turn(self, plan: Plan) -> None:
        if self.clock and self._held:
            raise LocalProtocolError("a pass ends in the middle of a step")
        self._held: dict[int, Held] = {}
        self._since = 0.0
        super().turn(plan)

    def _ready(self, pull: Pull) -> bool:
        """A lane has one batch on its way: the next is pulled when the one before is applied."""
        return int(self.lowest[pull.lane]) >= pull.batch - 1

    def _still_waits(self, peer: Peer, pull: Pull) -> Send:
        if pull.lane in self._held:
            return Send(peer, Refused(pull.request, "wait", -1, self._gathered()))
        # The push before it is lost, or was never sent from there.
        del self._waiting[peer, pull.lane, pull.batch]
        return Send(peer, Refused(pull.request, "behind", int(self.lowest[pull.lane]) + 1, ""))

    def _gathered(self) -> str:
        return f"{len(self._held)} of {self._enough()} lanes are there for the next step"

    def _enough(self) -> int:
        """Lanes that a step waits for: near the end of a pass those that are left."""
        unfinished = int((self.lowest < self.plan.lengths - 1).sum())
        return min(self.settings.quorum, unfinished)

    def on_push(self, peer: Peer, push: Push, now: float) -> list[Send]:
        """Hold the push, and apply what is held if that is enough."""
        held = self._held.get(push.lane)
        if held and held.push.batch == push.batch:
            held.requests.add((peer, push.request))
            return [Send(peer, Refused(push.request, "wait", -1, self._gathered()))]
        refused = self._refusal(peer, push)
        if refused or self.lowest[push.lane] >= push.batch:
            return refused or [Send(peer, Pushed(push.request, int(self.lowest[push.lane])))]
        if not self._held:
            self._since = now
        self._held[push.lane] = Held(push, {(peer, push.request)})
        return self._step() if len(self._held) >= self._enough() else self.on_tick(now)

    def on_tick(self, now: float) -> list[Send]:
        """Apply what is held if the first of it has waited long enough."""
        late = self._held and now - self._since >= self.settings.window_s
        return self._step() if late else []

    def _step(self) -> list[Send]:
        """Apply what is held, acknowledge it, and answer the pulls that waited for that."""
        pushes = [self._held[lane].push for lane in sorted(self._held)]
        staleness = [self._staleness_of(push) for push in pushes]
        missing = [self._missing(push) for push in pushes]
        parts = [
            self._part(push, here, self._scaled(push, late))
            for push, here, late in zip(pushes, missing, staleness, strict=True)
        ]
        self.partitions.apply_late(parts, max(staleness))
        for note in zip(pushes, missing, staleness, strict=True):
            self._note(*note)
        self.clock += 1
        answers = [
            Send(peer, Pushed(request, int(self.lowest[lane])))
            for lane, held in sorted(self._held.items())
            for peer, request in held.requests
        ]
        self._held.clear()
        return [*answers, *self._release()]

    def _scaled(self, push: Push, staleness: int) -> tuple[np.ndarray, ...]:
        scale = self.settings.scale(staleness)
        if scale == 1:
            return push.gradients
        self.counted["stale_scaled"] += 1
        return tuple(np.float32(scale) * g for g in push.gradients)

    def check(self) -> None:
        """Assert every invariant."""
        super().check()
        assert len(self._held) < max(self._enough(), 1)
        for lane, held in self._held.items():
            assert held.push.batch == self.lowest[lane] + 1 and held.requests
