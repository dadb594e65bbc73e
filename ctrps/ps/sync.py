"""sync: pushes of a step are collected, folded in lane order, and applied together.

Pulls of the next step wait for it; a batch of the step before can be pulled again. The reasons are
in ``docs/protocol.md`` section 3.
"""

from dataclasses import dataclass

import numpy as np

from ctrps.errors import LocalProtocolError
from ctrps.ps.effects import Effects, Peer, Send
from ctrps.ps.late import STALENESS_BINS
from ctrps.ps.messages import Pull, Pulled, Push, Pushed, Refused
from ctrps.ps.partition import Contribution, PartitionSet
from ctrps.ps.plan import Plan
from ctrps.ps.progress import Scores


@dataclass(slots=True)
class Waiting:
    """A pull that came before its step: at most one per worker and lane."""

    peer: Peer
    pull: Pull


class Stepwise:
    """What a server does with pulls and pushes in sync mode.

    Parameters
    ----------
    partitions
        At the version to go on from.
    plan
        Of the present pass.
    owned
        Partitions of this server.

    Attributes
    ----------
    staleness : int64[STALENESS_BINS]
        Pushes by the number of steps that were applied between their pull and them: all at 0.
    taken : Push or None
        What the last ``on_push`` took in.
    """

    def __init__(self, partitions: PartitionSet, plan: Plan, owned: tuple[int, ...]):
        self.partitions = partitions
        self.staleness = np.zeros(STALENESS_BINS, np.int64)
        self.owned = frozenset(owned)
        self._lanes: dict[int, Contribution] = {}
        self._pushers: dict[int, Peer] = {}
        self._waiting: dict[tuple[Peer, int], Waiting] = {}
        self.taken: Push | None = None
        self.turn(plan)

    def turn(self, plan: Plan) -> None:
        """Begin a pass."""
        if self._lanes:
            raise LocalProtocolError("a pass ends in the middle of a step")
        self.plan = plan
        self._waiting.clear()

    @property
    def complete(self) -> bool:
        """All steps of the pass are applied."""
        return self.partitions.step == self.plan.steps

    def on_pull(self, peer: Peer, pull: Pull) -> Effects:
        """Answer from the present or the last version, or keep the pull for the next."""
        version = self.partitions.step
        if pull.batch == version:
            return [self._answer(peer, pull)]
        if pull.batch == version - 1 and self.partitions.can_undo:
            try:
                weights = self.partitions.pull_before(pull.keys)
            except LocalProtocolError as error:
                return [Send(peer, Refused(pull.request, "bad", version, error.what))]
            weights = self.partitions.model.narrow(weights)
            return [Send(peer, Pulled(pull.request, version, version - 1, weights))]
        if pull.batch < version:
            lowest = version - 1 if self.partitions.can_undo else version
            return [Send(peer, Refused(pull.request, "behind", lowest, ""))]
        return self._keep(peer, pull)

    def _answer(self, peer: Peer, pull: Pull) -> Send:
        step = self.partitions.step
        weights = self.partitions.model.narrow(self.partitions.pull(pull.keys))
        return Send(peer, Pulled(pull.request, step, step - 1, weights))

    def _keep(self, peer: Peer, pull: Pull) -> Effects:
        if pull.batch > self.partitions.step + 1:
            return [Send(peer, Refused(pull.request, "bad", -1, "a pull two steps ahead"))]
        held = self._waiting.get((peer, pull.lane))
        self._waiting[peer, pull.lane] = Waiting(peer, pull)
        if held and held.pull.request == pull.request:
            missing = ", ".join(map(str, self.missing()))
            words = f"step {self.partitions.step} waits for lane {missing}"
            return [Send(peer, Refused(pull.request, "wait", self.partitions.step, words))]
        return []

    def on_push(self, peer: Peer, push: Push, now: float) -> list[Send]:
        """Take the push into the step; apply the step when it is whole.

        Raises
        ------
        LocalProtocolError
            If two copies of a batch differ: a batch is a pure function of its rows and weights.
        """
        version, self.taken = self.partitions.step, None
        if push.batch < version:
            return [Send(peer, Pushed(push.request, version - 1))]
        if push.batch > version or push.lane not in self.plan.active(version):
            return [Send(peer, Refused(push.request, "bad", version, "a push ahead of the step"))]
        part = Contribution(
            push.rows,
            push.loss_sum,
            push.keys,
            push.gradients,
            push.counts,
            Scores(*push.scores),
        )
        held = self._lanes.get(push.lane)
        if held and not held.same_bits(part):
            name = f"pass {push.pass_} lane {push.lane} batch {push.batch}"
            raise LocalProtocolError(
                f"two copies of {name} differ, from {self._pushers[push.lane]!r} and {peer!r}"
            )
        if held is None:
            self.taken = push
            self.staleness[min(abs(version - push.clock), STALENESS_BINS - 1)] += 1
        self._lanes[push.lane] = held or part
        self._pushers[push.lane] = peer
        return [Send(peer, Pushed(push.request, version)), *self._advance()]

    def forget_pulls(self) -> None:
        """Another view: whoever waits will ask again."""
        self._waiting.clear()

    def buffered(self) -> list[Push]:
        """The pushes of the present step that are here."""
        at = (self.plan.number,)
        return [
            Push(
                -1,
                -1,
                *at,
                lane,
                self.partitions.step,
                part.rows,
                self.partitions.step,
                part.loss_sum,
                -1,
                part.keys,
                part.gradients,
                part.counts,
                tuple(part.scores),
            )
            for lane, part in self._lanes.items()
        ]

    def _advance(self) -> list[Send]:
        """Apply the step if all of it is here, and answer the pulls that waited for it."""
        if self.missing():
            return []
        self.partitions.apply(self._lanes, self.owned)
        self._lanes.clear()
        self._pushers.clear()
        waiting, self._waiting = self._waiting, {}
        return [self._answer(held.peer, held.pull) for held in waiting.values()]

    def missing(self) -> list[int]:
        """Active lanes whose push the present step waits for."""
        return [g for g in self.plan.active(self.partitions.step) if g not in self._lanes]

    def check(self) -> None:
        """Assert every invariant."""
        step = self.partitions.step
        assert 0 <= step <= self.plan.steps
        active = set(self.plan.active(step))
        assert set(self._lanes) <= active and (not active or set(self._lanes) != active)
        assert all(held.pull.batch == step + 1 for held in self._waiting.values())
        assert self.partitions.rows_seen == self.plan.rows_before(step)
