"""The server: its partitions, and the pulls and pushes of the batches that use them.

What a pull may read and when a push is applied differs by consistency mode: ``sync``, ``arrival``
and ``semi``. Here is what all modes share: membership, views, passes, cuts, and the checks that a
message must pass before it may change anything.
"""

from dataclasses import replace
from enum import Enum

import numpy as np

from ctrps.errors import LocalProtocolError
from ctrps.kernels import checks
from ctrps.models import Model
from ctrps.ps.arrival import Arrival
from ctrps.ps.asked import AskedKeys
from ctrps.ps.copies import Copies, Facts
from ctrps.ps.effects import Connect, Effects, Load, Peer, Save, Send
from ctrps.ps.late import ModeSettings
from ctrps.ps.member import Identity, Life, Limits, Member
from ctrps.ps.messages import (
    Arrays,
    Copied,
    Copy,
    Message,
    Orders,
    Pull,
    Pulled,
    Push,
    Refused,
    Status,
    Welcome,
)
from ctrps.ps.partition import PartitionSet, PartitionState
from ctrps.ps.plan import Manifest, Plan, PlanSettings
from ctrps.ps.semi import Semi
from ctrps.ps.standby import Modes, Standby
from ctrps.ps.sync import Stepwise

WINDOW_MOST = 64
"""Pulls whose keys are kept beside two of each lane: the largest window of a worker."""

SHOWN_LANES = 64
"""Lanes that a status names of those that are missing."""


class Holding(Enum):
    """What a server is doing with its partitions."""

    NOTHING = "in no view"
    LOADING = "loading"
    STANDING_BY = "standing by"
    SERVING = "serving"


class Server(Member):
    """A server's state machine.

    Parameters
    ----------
    identity, limits, now
        As for every member.
    model
    settings
        Of the plan.
    mode_settings
        Of the consistency mode.
    """

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        now: float,
        model: Model,
        settings: PlanSettings,
        mode_settings: ModeSettings | None = None,
    ):
        super().__init__(identity, limits, now)
        self.model = model
        self.settings = settings
        self.modes = Modes(model, settings, mode_settings or ModeSettings())
        self.holding = Holding.NOTHING
        self.view = self.epoch = -1
        self.owned: tuple[int, ...] = ()
        self.partitions = PartitionSet(model)
        self.mode: Stepwise | Arrival | None = None
        self.asked = AskedKeys(WINDOW_MOST + 2 * settings.lanes)
        self._manifest: Manifest | None = None
        self._saving = -1
        self._saved: tuple[int, list[tuple[int, str, int, str]]] = (-1, [])
        self._missed = -1
        self.copies: Copies | None = None
        self.standby: Standby | None = None
        self._version_seq = self._shown_seq = 0

    def on_start(self, now: float) -> Effects:
        return self._tell(now)

    def on_tick(self, now: float) -> Effects:
        effects, before = self._beat(now), self.partitions.step
        if isinstance(self.mode, Semi):
            effects += self.mode.on_tick(now)
        effects = self._moved(before, effects, now)
        return effects + (self.copies.send(now) if self.copies else [])

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
            case Copy() if self.standby and message.pair == self.standby.pair:
                return [Send(peer, self.standby.on_copy(message))]
            case Copied() if self.copies:
                return self._on_copied(self.copies, message, now)
            case Refused(request=-1):
                return self._refused_registration(message)
        return []

    def on_loaded(
        self,
        epoch: int,
        partitions: dict[int, PartitionState],
        pass_: int,
        step: int,
        now: float,
    ) -> Effects:
        """The partitions of a view have been read; serve them at (pass, step).

        The marks and the progress of another pass than that must have been left out.
        """
        if epoch != self.epoch:
            return []  # all have gone back once more meanwhile
        for state in partitions.values():
            self.partitions.load(state.tables)
        self._serve(pass_, step)
        for number, state in partitions.items():
            self.partitions.progress.load(number, state.progress)
        if isinstance(self.mode, Arrival):
            self.mode.restore({n: s.marks for n, s in partitions.items() if len(s.marks)})
        return self._follow(now) + self._tell(now)

    def on_saved(
        self, checkpoint: int, files: list[tuple[int, str, int, str]], now: float
    ) -> Effects:
        """All partitions of ``checkpoint`` are on disk, as ``(partition, name, bytes, digest)``."""
        if checkpoint != self._saving:
            return []  # a newer cut has been ordered meanwhile
        self._saving = -1
        self._saved = (checkpoint, files)
        if self.copies:
            self.copies.note_saved(checkpoint, files)
        return self._tell(now)

    def check(self) -> None:
        """Assert every invariant that a server's state has at all times."""
        assert (self.holding is Holding.SERVING) == (self.mode is not None)
        self.asked.check()
        if self.mode is not None:
            assert self.mode.plan.number == self.partitions.pass_
            self.mode.check()

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
        return effects + self._follow(now) + self._cut(now)

    def _adopt(self, orders: Orders, now: float) -> Effects:
        """Another view. Of the same epoch: who holds rows keeps them, and may own them now."""
        self.view = orders.view
        owned = tuple(p for p, node in enumerate(orders.owners) if node == self.node)
        chosen = any(node == self.node for node, _ in orders.addresses)
        if orders.epoch != self.epoch:
            self.epoch = orders.epoch
            return self._begin(orders, owned, now) if chosen else self._hold_nothing()
        if self.mode is not None:
            self.mode.forget_pulls()
            self.asked.clear()
            if self.copies:
                self.copies.forget()
            return self._tell(now)
        if chosen and self.holding is not Holding.LOADING:
            if self.standby is None:
                raise LocalProtocolError(f"named the owner of {owned}, which are not here")
            self.mode, self.partitions = self.standby.promoted(), self.standby.partitions
            self.owned, self.standby, self.holding = owned, None, Holding.SERVING
            return self._tell(now)
        return []

    def _hold_nothing(self) -> Effects:
        self.holding = Holding.NOTHING
        self.mode, self.copies, self.standby = None, None, None
        self.owned, self.partitions, self._saving = (), PartitionSet(self.model), -1
        return []

    def _begin(self, orders: Orders, owned: tuple[int, ...], now: float) -> Effects:
        """All servers begin from a checkpoint, or from nothing."""
        self._hold_nothing()
        self.owned = owned
        if orders.restore < 0:
            self._serve(orders.pass_, 0)
            return self._tell(now)
        self.holding = Holding.LOADING
        return [Load(self.epoch, orders.restore, orders.pass_, self.owned)]

    def _serve(self, pass_: int, step: int) -> None:
        assert self._manifest is not None
        plan = self._plan_of(pass_)
        self.partitions.turn(pass_)
        self.partitions.expect(self._manifest.keys, len(self.owned))
        self.asked.clear()
        self.holding = Holding.SERVING
        if self.settings.mode == "sync":
            self.partitions.step = step
            self.partitions.rows_seen = plan.rows_before(step)
        self.mode = self.modes.make(self.partitions, plan, self.owned)

    # -- owner and standby ----------------------------------------------------------------------

    def _follow(self, now: float) -> Effects:
        """Begin or end to send copies, or to take them, as the orders say."""
        standbys = self.orders.standbys if self.orders else []
        if self.mode is not None:
            mine = next((s for s in standbys if s[0] == self.node), None)
            return self._send_to(mine, now)
        theirs = next((s for s in standbys if s[1] == self.node), None)
        if theirs is None:
            if self.holding is Holding.STANDING_BY:
                self._hold_nothing()
            return []
        if self.holding is not Holding.LOADING and (
            self.standby is None or self.standby.pair != theirs[2]
        ):
            assert self.orders is not None and self._manifest is not None
            self._hold_nothing()
            owned = tuple(p for p, node in enumerate(self.orders.owners) if node == theirs[0])
            self.standby = Standby(theirs[2], self.modes, self._manifest.train, owned)
            self.holding = Holding.STANDING_BY
        return []

    def _send_to(self, mine: tuple[int, int, int, str] | None, now: float) -> Effects:
        if (self.copies.pair if self.copies else -1) == (mine[2] if mine else -1):
            return []
        effects: Effects = self.copies.release() if self.copies else []
        self.copies = None
        if mine is None:
            return effects
        _, standby, pair, address = mine
        self.copies = Copies(pair, standby, self.limits.retry_s)
        self._version_seq = self._shown_seq = 0
        self._send_state(self.copies)
        return [*effects, Connect({standby: address}), *self.copies.send(now)]

    def _send_state(self, copies: Copies) -> None:
        assert self.mode is not None
        copies.begin(self.partitions, self.mode, self.owned, self._facts())

    def _facts(self) -> Facts:
        nothing = np.zeros(0, np.int32)
        lowest = self.mode.lowest.copy() if isinstance(self.mode, Arrival) else nothing
        return Facts(self.partitions.step, lowest, *self._saved)

    def _copy(self, push: Push, advanced: bool) -> None:
        """Send what has been taken to the standby."""
        assert self.copies is not None and self.mode is not None
        self.copies.add_push(push)
        if isinstance(self.mode, Arrival):
            self.copies.note(push.lane, int(self.mode.lowest[push.lane]), 0)
        elif advanced:
            self._version_seq = self.copies.last
            self.copies.note(-1, 0, self.partitions.step)

    def _safely(self, answers: Effects) -> Effects:
        """sync: no answer of a version leaves that the standby could not give."""
        if self.copies is None or isinstance(self.mode, Arrival):
            return answers
        effects: Effects = []
        for answer in answers:
            if isinstance(answer, Send) and isinstance(answer.message, Pulled):
                held = self.copies.hold(self._version_seq, answer)
                effects += [held] if held else []
            else:
                effects.append(answer)
        return effects

    def _on_copied(self, copies: Copies, message: Copied, now: float) -> Effects:
        assert self.mode is not None
        before = copies.facts.step, copies.facts.saved
        effects = copies.on_copied(message, now)
        news = copies.protect(max(self._version_seq, self._shown_seq))
        facts = copies.facts
        if copies.protected and (facts.step, facts.saved) != before:
            news |= facts.step == self.mode.plan.steps or facts.saved != before[1]
        return effects + (self._tell(now) if news else [])

    def _turn(self, pass_: int, now: float) -> Effects:
        assert self.mode is not None
        if not self.mode.complete:
            at = f"step {self.partitions.step} of {self.mode.plan.steps}"
            raise LocalProtocolError(f"ordered to pass {pass_} at {at}")
        self.partitions.turn(pass_)
        self.asked.clear()
        self.mode.turn(self._plan_of(pass_))
        if self.copies:
            self.copies.add_turn(pass_)
            self.copies.turn(self._facts())
            self._version_seq = self.copies.last
            return self.copies.send(now) + self._tell(now)
        return self._tell(now)

    def _plan_of(self, pass_: int) -> Plan:
        assert self._manifest is not None
        return Plan(self._manifest.train, self.settings, pass_)

    def _cut(self, now: float) -> Effects:
        """Save if the version is the one ordered, or any will do; say so if it is past."""
        if not self.orders or not self.orders.cut or self.mode is None:
            return []
        checkpoint, pass_, step = self.orders.cut
        done = max(self._saving, self._saved[0], self._missed)
        at_once = step < 0 and pass_ == self.partitions.pass_
        version, wanted = (self.partitions.pass_, self.partitions.step), (pass_, step)
        if checkpoint <= done or (version < wanted and not at_once):
            return []
        if version > wanted and not at_once:
            self._missed = checkpoint
            return self._tell(now)
        self._saving = checkpoint
        marks = self.mode.marks if isinstance(self.mode, Arrival) else None
        states = self.partitions.snapshot(marks)
        chosen = {p: states[p] for p in self.owned}
        return [Save(checkpoint, self.view, self.node, pass_, self.partitions.step, chosen)]

    # -- data -----------------------------------------------------------------------------------

    def _on_pull(self, peer: Peer, pull: Pull) -> Effects:
        refusal = self._misplaced(pull) or self._wrong_keys(pull, self.model)
        if refusal or self.mode is None:
            return [Send(peer, refusal)] if refusal else []
        if pull.purpose == "evaluate":
            return [Send(peer, Pulled(pull.request, 0, -1, self.partitions.peek(pull.keys)))]
        self.asked.keep(peer, pull.request, pull.keys)
        return self._safely(self.mode.on_pull(peer, pull))

    def _on_push(self, peer: Peer, push: Push, now: float) -> Effects:
        refusal = self._misplaced(push)
        keys = push.keys
        if not refusal and push.asked >= 0:
            found = self.asked.find(peer, push.asked)
            if found is None:
                return [Send(peer, Refused(push.request, "keys", push.asked, ""))]
            keys = found
        push = replace(push, keys=keys, gradients=self.model.widen(push.gradients))
        refusal = refusal or self._wrong_push(push)
        if refusal or self.mode is None:
            return [Send(peer, refusal)] if refusal else []
        if self.copies and self.copies.full:
            return []  # it comes again
        before = self.partitions.step
        sent = self.mode.on_push(peer, push, now)
        if not any(isinstance(send.message, Refused) for send in sent):
            self.asked.forget(peer, push.asked)
        if self.copies and self.mode.taken:
            self._copy(self.mode.taken, self.partitions.step > before)
        effects = self._safely([*sent])
        if self.copies:
            effects += self.copies.send(now)
        return self._moved(before, effects, now)

    def _moved(self, before: int, effects: Effects, now: float) -> Effects:
        """What follows if more has been applied than ``before``."""
        if self.mode is not None and self.partitions.step > before:
            effects += self._cut(now)
            if self.mode.complete:
                effects += self._tell(now)
        return effects

    def _misplaced(self, message: Pull | Push) -> Refused | None:
        if self.mode is None or message.view != self.view:
            return Refused(message.request, "view", self.view, "")
        purpose = message.purpose if isinstance(message, Pull) else "train"
        if purpose == "evaluate":
            return None
        if message.pass_ != self.partitions.pass_:
            return Refused(message.request, "pass", self.partitions.pass_, "")
        lengths = self.mode.plan.lengths
        if purpose != "train" or not 0 <= message.lane < len(lengths):
            return Refused(message.request, "bad", -1, "no such lane, or no such purpose")
        if not 0 <= message.batch < lengths[message.lane]:
            return Refused(message.request, "bad", -1, "no such batch in this lane")
        return None

    @staticmethod
    def _wrong_keys(message: Pull | Push, model: Model) -> Refused | None:
        right = len(message.keys) == len(model.tables)
        for keys in message.keys:
            right = right and keys.dtype == np.uint64 and keys.ndim == 1
        return None if right else Refused(message.request, "bad", -1, "keys of the wrong kind")

    def _wrong_push(self, push: Push) -> Refused | None:
        wrong = self._wrong_keys(push, self.model)
        if wrong or not self._parallel(push.keys, push.gradients, push.counts):
            return wrong or Refused(push.request, "bad", -1, "arrays of the wrong shape")
        if not self._scored(push):
            return Refused(push.request, "bad", -1, "not the scores that this server counts")
        if not all(checks.finite(checks.bits(g)) for g in push.gradients):
            name = f"pass {push.pass_} lane {push.lane} batch {push.batch}"
            return Refused(push.request, "bad", -1, f"a gradient of {name} is not finite")
        return None

    def _parallel(self, keys: Arrays, gradients: Arrays, counts: Arrays) -> bool:
        if not len(keys) == len(gradients) == len(counts):
            return False
        for table, k, g, c in zip(self.model.tables, keys, gradients, counts, strict=True):
            parallel = g.shape == (len(k), table.dim) and c.shape == k.shape
            if not parallel or g.dtype != np.float32 or c.dtype != np.int32:
                return False
            if not checks.positive(c):
                return False
        return True

    def _scored(self, push: Push) -> bool:
        """Whether the scores are there exactly if this server is the one to count them."""
        counts_here = push.lane % self.model.partitions in self.owned
        shape = (push.rows if counts_here else 0,)
        return len(push.scores) == 2 and all(
            s.dtype == np.float32 and s.shape == shape for s in push.scores
        )

    # -- status ---------------------------------------------------------------------------------

    def _status(self, now: float) -> Status:
        missing = self.mode.missing()[:SHOWN_LANES] if self.mode else []
        waits_for = f"lanes {missing} of step {self.partitions.step}" if missing else ""
        held = self.partitions
        if self.standby:
            waits_for, held = "standing by", self.standby.partitions
        protected = self.copies is not None and self.copies.protected
        if self.copies and not protected:
            self._shown_seq = self.copies.last
        facts = self.copies.facts if self.copies and protected else self._facts()
        return Status(
            node=self.node,
            term=self._term,
            seq=self._seq,
            seen=self.orders.seq if self.orders else -1,
            view=self.view,
            pass_=self.partitions.pass_,
            step=facts.step,
            ready=self.mode is not None,
            protected=self.copies.pair if self.copies and protected else -1,
            leaves=self.leaves,
            missing=missing,
            saved=facts.saved,
            missed=self._missed,
            files=facts.files,
            counters={
                **self.measured,
                **(self.mode.counted if isinstance(self.mode, Arrival) else {}),
                "keys": held.keys_held,
                "size_bytes": held.size_bytes,
                "rows": self.partitions.rows_seen,
                "loss_sum": self.partitions.progress.total().loss_sum,
            },
            fault=self._fault[0],
            fault_status=self._fault[1],
            waits_for=waits_for,
            lanes=[],
            results=self._figures(facts),
        )

    def _figures(self, facts: Facts) -> Arrays:
        histogram = self.partitions.progress.total().histogram
        if isinstance(self.mode, Arrival):
            return histogram, self.mode.staleness, facts.lowest
        return histogram, self.mode.staleness if self.mode else np.zeros(0, np.int64)
