"""async and ssp: a push is applied when it arrives, once for each partition.

Each partition remembers one number for each lane: the last batch applied, its *mark*. A push is
applied to the partitions whose mark is just below it, and only acknowledged by those that have it
already. In ssp a pull waits until no unfinished lane is too far behind (``docs/protocol.md``
section 4).
"""

from dataclasses import dataclass, replace

import numpy as np

from ctrps.kernels import keys as key_kernels
from ctrps.ps.effects import Effects, Peer, Send
from ctrps.ps.late import STALENESS_BINS, ModeSettings, Tickets
from ctrps.ps.messages import Arrays, Pull, Pulled, Push, Pushed, Refused
from ctrps.ps.partition import Contribution, PartitionSet
from ctrps.ps.plan import Plan
from ctrps.ps.progress import Scores


@dataclass(slots=True)
class Waiting:
    """A pull that waits for slower lanes."""

    peer: Peer
    pull: Pull


class Arrival:
    """What a server does with pulls and pushes in async and ssp mode.

    Parameters
    ----------
    partitions
    plan
        Of the present pass.
    owned
        Partitions of this server, ascending.
    settings

    Attributes
    ----------
    marks : int32[partitions, lanes]
        Last batch applied, -1 for none; rows of partitions that are not owned stay at -1.
    clock : int
        Pushes applied since this server began; only measures staleness.
    lowest : int32[lanes]
        The last batch that all partitions here have.
    staleness : int64[STALENESS_BINS]
        Pushes by the number of pushes that were applied between their pull and them.
    taken : Push or None
        What the last ``on_push`` applied, its gradients compensated.
    staleness_before : int
        Of the last push applied.
    counted : dict
        Late pushes by what became of them (``late.COUNTED``).
    """

    def __init__(
        self, partitions: PartitionSet, plan: Plan, owned: tuple[int, ...], settings: ModeSettings
    ):
        self.partitions = partitions
        self.owned = np.array(owned, np.int64)
        self._owned = frozenset(owned)
        self.settings = settings
        self.clock = 0
        self.staleness_before = 0
        self.taken: Push | None = None
        self.staleness = np.zeros(STALENESS_BINS, np.int64)
        self.counted = settings.counters()
        self.tickets = Tickets()
        self.turn(plan)

    def turn(self, plan: Plan) -> None:
        """Begin a pass."""
        self.plan = plan
        self.marks = np.full((self.partitions.model.partitions, len(plan.lengths)), -1, np.int32)
        # A server without partitions has, of each of them, everything.
        self.lowest = (plan.lengths - 1).astype(np.int32)
        if len(self.owned):
            self.lowest[:] = -1
        self._waiting: dict[tuple[Peer, int, int], Waiting] = {}
        # Lanes of which some partitions here have more batches than others, after a restore.
        self._uneven: set[int] = set()
        self.tickets.clear()
        self._count()

    def restore(self, marks: dict[int, np.ndarray]) -> None:
        """Go on from the marks that were saved with the partitions."""
        for partition, saved in marks.items():
            self.marks[partition] = saved
        if len(self.owned):
            here = self.marks[self.owned]
            self.lowest = here.min(axis=0)
            self._uneven = set(np.flatnonzero(here.max(axis=0) > self.lowest).tolist())
        self._count()

    def _count(self) -> None:
        self.partitions.step = int((self.lowest + 1).sum())
        self.partitions.rows_seen = self.plan.rows_below(self.lowest)

    @property
    def complete(self) -> bool:
        """Whether all batches of the pass are in all partitions here."""
        return self.partitions.step == self.plan.steps

    def on_pull(self, peer: Peer, pull: Pull) -> Effects:
        """Answer, or in ssp keep it until the slowest lane has come near."""
        if not self._ready(pull):
            held = self._waiting.get((peer, pull.lane, pull.batch))
            self._waiting[peer, pull.lane, pull.batch] = Waiting(peer, pull)
            if held and held.pull.request == pull.request:
                return [self._still_waits(peer, pull)]
            return []
        return [self._answer(peer, pull)]

    def _ready(self, pull: Pull) -> bool:
        """Whether a pull may be answered."""
        return self._near(pull.batch)

    def _still_waits(self, peer: Peer, pull: Pull) -> Send:
        """The answer to a pull that comes again while it waits."""
        return Send(peer, Refused(pull.request, "wait", -1, self._slowest()))

    def _answer(self, peer: Peer, pull: Pull) -> Send:
        weights = self.partitions.model.narrow(self.partitions.pull(pull.keys))
        answer = Pulled(pull.request, self.clock, int(self.lowest[pull.lane]), weights)
        if self.settings.compensation:
            self.tickets.keep(peer, answer)
        return Send(peer, answer)

    def _near(self, batch: int) -> bool:
        """Whether every unfinished lane has come within the bound of ``batch``."""
        if self.settings.bound is None:
            return True
        unfinished = self.lowest < self.plan.lengths - 1
        slowest = self.lowest[unfinished].min(initial=batch)
        return int(slowest) >= batch - 1 - self.settings.bound

    def _slowest(self) -> str:
        unfinished = np.flatnonzero(self.lowest < self.plan.lengths - 1)
        lane = int(unfinished[np.argmin(self.lowest[unfinished])])
        return f"lane {lane} is at batch {int(self.lowest[lane])}"

    def on_push(self, peer: Peer, push: Push, now: float) -> list[Send]:
        """Apply the push to the partitions that miss it, and answer pulls that waited for it."""
        self.taken = None
        if refused := self._refusal(peer, push):
            return refused
        if self.lowest[push.lane] < push.batch:
            self._apply(peer, push, self._missing(push))
        done = Send(peer, Pushed(push.request, int(self.lowest[push.lane])))
        return [done, *self._release()]

    def _refusal(self, peer: Peer, push: Push) -> list[Send]:
        """The answer to a push that cannot be taken."""
        lowest = int(self.lowest[push.lane])
        if lowest < push.batch - 1:
            return [Send(peer, Refused(push.request, "gap", lowest + 1, ""))]
        staleness = self._staleness_of(push)
        if lowest < push.batch and self.settings.refuses(staleness):
            self.counted["stale_refused"] += 1
            return [Send(peer, Refused(push.request, "stale", staleness, ""))]
        return []

    def _staleness_of(self, push: Push) -> int:
        return max(self.clock - push.clock, 0)

    def _missing(self, push: Push) -> np.ndarray:
        """Partitions here that do not have the batch."""
        if push.lane not in self._uneven:
            return self.owned
        return self.owned[self.marks[self.owned, push.lane] < push.batch]

    def _apply(self, peer: Peer, push: Push, missing: np.ndarray) -> None:
        gradients = self._compensated(peer, push)
        self.taken = push if gradients is push.gradients else replace(push, gradients=gradients)
        part = self._part(push, missing, gradients)
        staleness = self._staleness_of(push)
        scale = self.settings.scale(staleness)
        if scale < 1:
            self.counted["stale_scaled"] += 1
        # Of two batches that were pulled together, the first to come is as much a part of the pair.
        self.partitions.apply_late([part], max(staleness, self.staleness_before), scale)
        self.staleness_before = staleness
        self.clock += 1
        self._note(push, missing, staleness)

    def _compensated(self, peer: Peer, push: Push) -> Arrays:
        """The gradients of a push, as far as possible those at the present weights."""
        answer = self.tickets.take(peer, push.asked)
        if not self.settings.compensation or self.clock == push.clock:
            return push.gradients
        if answer is None or answer.clock != push.clock:
            self.counted["uncompensated"] += 1
            return push.gradients
        return self._compensate(peer, push, answer)

    def _compensate(self, peer: Peer, push: Push, answer: Pulled) -> Arrays:
        then = self.partitions.model.widen(answer.weights)
        arrays = (push.keys, push.gradients, push.counts)
        return self.partitions.compensated(*arrays, then, self.settings.compensation)

    def _part(self, push: Push, missing: np.ndarray, gradients: Arrays) -> Contribution:
        """What a push is to the partitions that miss it."""
        part = Contribution(push.rows, push.loss_sum, push.keys, gradients, push.counts)
        return self._only(part, missing) if len(missing) < len(self.owned) else part

    def _note(self, push: Push, missing: np.ndarray, staleness: int) -> None:
        """A push has been applied to the partitions that missed it."""
        self.staleness[min(staleness, STALENESS_BINS - 1)] += 1
        self.marks[missing, push.lane] = push.batch
        partition = push.lane % self.partitions.model.partitions
        if partition in self._owned and (missing is self.owned or partition in missing):
            self.partitions.progress.add(partition, push.loss_sum, Scores(*push.scores))
        if push.lane in self._uneven and (self.marks[self.owned, push.lane] == push.batch).all():
            self._uneven.discard(push.lane)
        # Every mark was at least at the batch before, and those that were just there have moved.
        before = int(self.lowest[push.lane])
        self.lowest[push.lane] = push.batch
        self.partitions.step += push.batch - before
        for batch in range(before + 1, push.batch + 1):
            self.partitions.rows_seen += self.plan.batch(push.lane, batch).rows

    def _only(self, part: Contribution, missing: np.ndarray) -> Contribution:
        """The part of a push that belongs to some of the partitions here."""
        wanted = np.zeros(self.partitions.model.partitions, bool)
        wanted[missing] = True
        chosen = [wanted[self._partition_of(keys)] for keys in part.keys]

        def only(arrays: Arrays) -> Arrays:
            return tuple(a[c] for a, c in zip(arrays, chosen, strict=True))

        return part._replace(
            keys=only(part.keys), gradients=only(part.gradients), counts=only(part.counts)
        )

    def _partition_of(self, keys: np.ndarray) -> np.ndarray:
        partition = np.empty(len(keys), np.int32)
        key_kernels.partition_of(keys, self.partitions.model.partition_bits, partition)
        return partition

    def forget_pulls(self) -> None:
        """Another view: whoever waits will ask again."""
        self._waiting.clear()
        self.tickets.clear()

    def _release(self) -> list[Send]:
        if not self._waiting:
            return []
        ready = [key for key, held in self._waiting.items() if self._ready(held.pull)]
        return [self._answer(held.peer, held.pull) for held in map(self._waiting.pop, ready)]

    def missing(self) -> list[int]:
        """Lanes that are not finished here."""
        return [int(lane) for lane in np.flatnonzero(self.lowest < self.plan.lengths - 1)]

    def check(self) -> None:
        """Assert every invariant."""
        if len(self.owned):
            here = self.marks[self.owned]
            assert (self.lowest == here.min(axis=0)).all()
            uneven = np.flatnonzero(here.max(axis=0) > self.lowest)
            assert self._uneven == set(uneven.tolist())
        assert (self.lowest < self.plan.lengths).all()
        assert self.partitions.step == int((self.lowest + 1).sum())
        for held in self._waiting.values():
            assert not self._ready(held.pull)
        self.tickets.check()
