"""The server: its partitions, the step in hand, and the pulls that wait for it.

One step at a time, in sync mode: pushes of the active lanes are collected, applied together, and
then the pulls of the next step are answered. The reasons are in ``docs/protocol.md`` section 3.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from ctrps.errors import LocalProtocolError
from ctrps.models import Model
from ctrps.ps.effects import Effects, Load, Peer, Save, Send
from ctrps.ps.member import Identity, Life, Limits, Member
from ctrps.ps.messages import (
    Arrays,
    Message,
    Orders,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    Status,
    Welcome,
)
from ctrps.ps.partition import Contribution, PartitionSet
from ctrps.ps.plan import Manifest, Plan, PlanSettings
from ctrps.ps.table import RowSet


class Holding(Enum):
    """What a server is doing with its partitions."""

    NOTHING = "in no view"
    LOADING = "loading"
    SERVING = "serving"


@dataclass(slots=True)
class Waiting:
    """A pull that came before its step: at most one per worker and lane."""

    peer: Peer
    pull: Pull


class Server(Member):
    """A server's state machine.

    Parameters
    ----------
    identity, limits, now
        As for every member.
    model
    settings
        Of the plan.
    """

    def __init__(
        self, identity: Identity, limits: Limits, now: float, model: Model, settings: PlanSettings
    ):
        super().__init__(identity, limits, now)
        self.model = model
        self.settings = settings
        self.holding = Holding.NOTHING
        self.view = -1
        self.owned: tuple[int, ...] = ()
        self.partitions = PartitionSet(model)
        self.loss_sum = 0.0
        self.loss_rows = 0
        self._plan: Plan | None = None
        self._manifest: Manifest | None = None
        self._lanes: dict[int, Contribution] = {}
        self._pushers: dict[int, Peer] = {}
        self._waiting: dict[tuple[Peer, int], Waiting] = {}
        self._owns = np.zeros(model.partitions, bool)
        self._saving = -1
        self._saved: tuple[int, list[list[object]]] = (-1, [])
        self._missed = -1

    def on_start(self, now: float) -> Effects:
        return self._tell(now)

    def on_tick(self, now: float) -> Effects:
        return self._beat(now)

    def on_message(self, peer: Peer, message: Message, now: float) -> Effects:
        """Take one message; a message that is not for a server is dropped."""
        if self.life is Life.ENDED:
            return []
        match message:
            case Welcome():
                return self._welcome(message, now)
            case Orders():
                return self._obey(message, now)
            case Pull():
                return self._on_pull(peer, message)
            case Push():
                return self._on_push(peer, message, now)
            case Refused(request=-1):
                return self._refused_registration(message)
        return []

    def on_loaded(
        self, rows: dict[int, list[RowSet]], pass_: int, step: int, now: float
    ) -> Effects:
        """The partitions of the view have been read; serve them at (pass, step)."""
        for partition in rows.values():
            self.partitions.load(partition)
        return self._serve(pass_, step, now)

    def on_saved(self, checkpoint: int, files: list[list[object]], now: float) -> Effects:
        """All partitions of ``checkpoint`` are on disk, as ``[partition, name, bytes, digest]``."""
        if checkpoint != self._saving:
            return []  # a newer cut has been ordered meanwhile
        self._saving = -1
        self._saved = (checkpoint, files)
        return self._tell(now)

    def check(self) -> None:
        """Assert every invariant that a server's state has at all times."""
        if self.holding is not Holding.SERVING:
            assert not self._lanes and not self._waiting
            return
        assert self._plan is not None and self._plan.number == self.partitions.pass_
        assert 0 <= self.partitions.step <= self._plan.steps
        active = set(self._plan.active(self.partitions.step))
        assert set(self._lanes) <= active and (not active or set(self._lanes) != active)
        assert all(w.pull.batch == self.partitions.step + 1 for w in self._waiting.values())
        assert self.partitions.rows_seen == self._plan.rows_before(self.partitions.step)

    # -- orders ---------------------------------------------------------------------------------

    def _joined(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def _obey(self, orders: Orders, now: float) -> Effects:
        if not self._accept(orders, now):
            return []
        if orders.phase == "stop":
            return self._obey_stop(orders)
        effects: Effects = []
        if orders.view > self.view:
            effects += self._adopt(orders, now)
        if self.holding is Holding.SERVING and orders.pass_ > self.partitions.pass_:
            effects += self._turn(orders.pass_, now)
        return effects + self._cut(now)

    def _adopt(self, orders: Orders, now: float) -> Effects:
        self.view = orders.view
        self._lanes.clear()
        self._waiting.clear()
        self.owned = tuple(p for p, node in enumerate(orders.owners) if node == self.node)
        self._owns[:] = False
        self._owns[list(self.owned)] = True
        self.partitions = PartitionSet(self.model)
        if orders.restore < 0:
            return self._serve(orders.pass_, 0, now)
        self.holding = Holding.LOADING
        return [Load(orders.restore, self.owned)]

    def _serve(self, pass_: int, step: int, now: float) -> Effects:
        self.partitions.turn(pass_)
        self._plan = self._plan_of(pass_)
        self.partitions.step = step
        self.partitions.rows_seen = self._plan.rows_before(step)
        self.holding = Holding.SERVING
        return self._tell(now)

    def _turn(self, pass_: int, now: float) -> Effects:
        assert self._plan is not None
        if self.partitions.step < self._plan.steps:
            raise LocalProtocolError(
                f"ordered to pass {pass_} at step {self.partitions.step} of {self._plan.steps}"
            )
        self.partitions.turn(pass_)
        self._plan = self._plan_of(pass_)
        self.loss_sum, self.loss_rows = 0.0, 0
        self._waiting.clear()
        return self._tell(now)

    def _plan_of(self, pass_: int) -> Plan:
        assert self._manifest is not None
        return Plan(self._manifest.train, self.settings, pass_)

    def _cut(self, now: float) -> Effects:
        """Save if the version is the one ordered; say so if it is past."""
        if not self.orders or not self.orders.cut or self.holding is not Holding.SERVING:
            return []
        checkpoint, pass_, step = self.orders.cut
        done = max(self._saving, self._saved[0], self._missed)
        version, wanted = (self.partitions.pass_, self.partitions.step), (pass_, step)
        if checkpoint <= done or version < wanted:
            return []
        if version > wanted:
            self._missed = checkpoint
            return self._tell(now)
        self._saving = checkpoint
        rows = self.partitions.snapshot()
        chosen = {p: rows[p] for p in self.owned}
        return [Save(checkpoint, self.view, self.node, pass_, step, chosen)]

    # -- data -----------------------------------------------------------------------------------

    def _on_pull(self, peer: Peer, pull: Pull) -> Effects:
        refusal = self._misplaced(pull) or self._wrong_keys(pull, self.model)
        if refusal:
            return [Send(peer, refusal)]
        if pull.purpose == "evaluate":
            return [Send(peer, Pulled(pull.request, self.partitions.peek(pull.keys)))]
        version = self.partitions.step
        if pull.batch == version:
            return [Send(peer, Pulled(pull.request, self.partitions.pull(pull.keys)))]
        if pull.batch == version - 1 and self.partitions.can_undo:
            return [Send(peer, Pulled(pull.request, self.partitions.pull_before(pull.keys)))]
        if pull.batch < version:
            lowest = version - 1 if self.partitions.can_undo else version
            return [Send(peer, Refused(pull.request, "behind", lowest, ""))]
        return self._keep(peer, pull)

    def _keep(self, peer: Peer, pull: Pull) -> Effects:
        if pull.batch > self.partitions.step + 1:
            return [Send(peer, Refused(pull.request, "bad", -1, "a pull two steps ahead"))]
        held = self._waiting.get((peer, pull.lane))
        self._waiting[peer, pull.lane] = Waiting(peer, pull)
        if held and held.pull.request == pull.request:
            missing = ", ".join(map(str, self._missing()))
            words = f"step {self.partitions.step} waits for lane {missing}"
            return [Send(peer, Refused(pull.request, "wait", self.partitions.step, words))]
        return []

    def _on_push(self, peer: Peer, push: Push, now: float) -> Effects:
        refusal = self._misplaced(push) or self._wrong_push(push)
        if refusal:
            return [Send(peer, refusal)]
        version = self.partitions.step
        if push.batch < version:
            return [Send(peer, Pushed(push.request))]
        assert self._plan is not None
        if push.batch > version or push.lane not in self._plan.active(version):
            return [Send(peer, Refused(push.request, "bad", version, "a push ahead of the step"))]
        part = Contribution(push.rows, push.loss_sum, push.keys, push.gradients, push.counts)
        held = self._lanes.get(push.lane)
        if held and not held.same_bits(part):
            name = f"pass {push.pass_} lane {push.lane} batch {push.batch}"
            peers = f"{self._pushers[push.lane]!r} and {peer!r}"
            return self.fail(f"two copies of {name} differ, from {peers}", 1, now)
        self._lanes[push.lane] = held or part
        self._pushers[push.lane] = peer
        return [Send(peer, Pushed(push.request)), *self._advance(now)]

    def _advance(self, now: float) -> Effects:
        """Apply the step if all of it is here, and answer the pulls that waited for it."""
        if self._missing():
            return []
        for lane, part in sorted(self._lanes.items()):
            if self._owns[lane % self.model.partitions]:
                self.loss_sum += part.loss_sum
                self.loss_rows += part.rows
        self.partitions.apply(self._lanes)
        self._lanes.clear()
        self._pushers.clear()
        effects = self._cut(now)
        waiting, self._waiting = self._waiting, {}
        for held in waiting.values():
            weights = self.partitions.pull(held.pull.keys)
            effects.append(Send(held.peer, Pulled(held.pull.request, weights)))
        assert self._plan is not None
        if self.partitions.step == self._plan.steps:
            effects += self._tell(now)
        return effects

    def _missing(self) -> list[int]:
        assert self._plan is not None
        return [g for g in self._plan.active(self.partitions.step) if g not in self._lanes]

    def _misplaced(self, message: Pull | Push) -> Refused | None:
        if self.holding is not Holding.SERVING or message.view != self.view:
            return Refused(message.request, "view", self.view, "")
        trains = isinstance(message, Push) or message.purpose == "train"
        if trains and message.pass_ != self.partitions.pass_:
            return Refused(message.request, "pass", self.partitions.pass_, "")
        return None

    @staticmethod
    def _wrong_keys(message: Pull | Push, model: Model) -> Refused | None:
        right = len(message.keys) == len(model.tables) and all(
            k.dtype == np.uint64 and k.ndim == 1 for k in message.keys
        )
        return None if right else Refused(message.request, "bad", -1, "keys of the wrong kind")

    def _wrong_push(self, push: Push) -> Refused | None:
        wrong = self._wrong_keys(push, self.model)
        if wrong or not self._parallel(push.keys, push.gradients, push.counts):
            return wrong or Refused(push.request, "bad", -1, "arrays of the wrong shape")
        if not all(np.isfinite(g).all() for g in push.gradients):
            name = f"pass {push.pass_} lane {push.lane} batch {push.batch}"
            return Refused(push.request, "bad", -1, f"a gradient of {name} is not finite")
        return None

    def _parallel(self, keys: Arrays, gradients: Arrays, counts: Arrays) -> bool:
        if not len(keys) == len(gradients) == len(counts):
            return False
        return all(
            g.dtype == np.float32
            and g.shape == (len(k), table.dim)
            and c.dtype == np.int32
            and c.shape == k.shape
            and (c > 0).all()
            for table, k, g, c in zip(self.model.tables, keys, gradients, counts, strict=True)
        )

    # -- status ---------------------------------------------------------------------------------

    def _status(self, now: float) -> Status:
        serving = self.holding is Holding.SERVING
        missing = self._missing() if serving else []
        words = f"lanes {missing} of step {self.partitions.step}" if missing else ""
        return Status(
            node=self.node,
            term=self._term,
            seq=self._seq,
            seen=self.orders.seq if self.orders else -1,
            view=self.view,
            pass_=self.partitions.pass_,
            step=self.partitions.step,
            ready=serving,
            missing=missing,
            saved=self._saved[0],
            missed=self._missed,
            files=self._saved[1],
            counters={
                "keys": self.partitions.tables[0].used,
                "size_bytes": self.partitions.size_bytes,
                "loss_sum": self.loss_sum,
                "loss_rows": self.loss_rows,
            },
            fault=self._fault[0],
            fault_status=self._fault[1],
            waits_for=words,
            lanes=[],
            results=(),
        )
