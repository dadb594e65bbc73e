"""What is watched from outside while a simulated cluster runs.

Each server keeps a *ledger* beside its rows: for every partition, how many batches of each lane of
each pass were applied to it. It is saved, restored and lost with the rows, and knows nothing of
marks or versions. A batch that is applied twice, out of turn or not at all shows in it at once.
"""

from collections import Counter

import numpy as np

from ctrps.ps.arrival import Arrival
from ctrps.ps.effects import Compute
from ctrps.ps.messages import Copy
from ctrps.ps.partition import PartitionState
from ctrps.ps.progress import Figures
from ctrps.ps.semi import Semi
from ctrps.ps.server import Server
from ctrps.ps.standby import Modes
from ctrps.ps.sync import Stepwise
from ctrps.ps.worker import Worker
from tests.simjob import Setup

Ledger = Counter[tuple[int, int]]
"""Batches applied, by (pass, lane)."""


def enter(ledger: Ledger, pass_: int, lane: int, batch: int) -> None:
    """Note a batch, which must be the next of its lane."""
    due = ledger[pass_, lane]
    assert batch == due, f"pass {pass_} lane {lane}: batch {batch} applied, {due} was due"
    ledger[pass_, lane] += 1


class AuditedStepwise(Stepwise):
    """Enters what it applies in the ledger of its server."""

    ledger: dict[int, Ledger]

    def _advance(self):
        step = self.partitions.step
        answers = super()._advance()
        if self.partitions.step > step:
            for lane in self.plan.active(step):
                for ledger in self.ledger.values():
                    enter(ledger, self.plan.number, lane, step)
        return answers


class Audit:
    """Enters what a server applies in its ledger, and watches what is done if it is late.

    ``applied`` are the pushes applied so far, ``late`` those of them beyond the bound, ``ticks``
    the times that something was applied.
    """

    ledger: dict[int, Ledger]
    auditor: "Auditor"
    applied = late = ticks = 0

    def _note(self, push, missing, staleness):
        setup = self.auditor.setup
        if setup.stale_above is not None and self.ticks - push.clock > setup.stale_above:
            assert not setup.refuse_stale, "a late push is applied"
            self.late += 1
        super()._note(push, missing, staleness)
        self.applied += 1
        for partition in missing.tolist():
            enter(self.ledger[partition], push.pass_, push.lane, push.batch)


class AuditedArrival(Audit, Arrival):
    """async and ssp: each push is applied alone."""

    def _apply(self, peer, push, missing):
        super()._apply(peer, push, missing)
        self.ticks += 1

    def _compensate(self, peer, push, answer):
        kept = as_bytes(self.partitions.model.widen(answer.weights))
        held = self.auditor.weights[peer, push.asked]
        assert kept == held, "compensated for other weights than the worker's"
        return super()._compensate(peer, push, answer)


class AuditedSemi(Audit, Semi):
    """semi: a step is of enough lanes, or of what came in time.

    ``came`` is when the first push of the next step came.
    """

    came = now = 0.0

    def on_push(self, peer, push, now):
        self.now = now
        if not self._held:
            self.came = now
        return super().on_push(peer, push, now)

    def on_tick(self, now):
        self.now = now
        answers = super().on_tick(now)
        window_s = self.auditor.setup.window_s
        assert not self._held or now - self.came < window_s, "a push waits longer than the window"
        return answers

    def _step(self):
        lengths = self.plan.lengths.tolist()
        left = min(
            sum(ledger[self.plan.number, lane] < n for lane, n in enumerate(lengths))
            for ledger in self.ledger.values()
        )
        enough = len(self._held) >= min(self.auditor.setup.quorum, left)
        assert enough or self.now - self.came >= self.auditor.setup.window_s, "a step too soon"
        answers = super()._step()
        self.ticks += 1
        return answers


def as_bytes(arrays) -> list[bytes]:
    return [array.tobytes() for array in arrays]


class AuditedModes(Modes):
    """Makes modes that watch themselves."""

    def __init__(self, server: "AuditedServer"):
        modes = server.modes
        super().__init__(modes.model, modes.settings, modes.mode_settings)
        self._server = server

    def make(self, partitions, plan, owned):
        mode, server = super().make(partitions, plan, owned), self._server
        classes = {Stepwise: server.stepwise, Arrival: server.arrival, Semi: server.semi}
        mode.__class__ = classes[type(mode)]
        mode.ledger, mode.auditor = partitions.ledger, server.auditor
        if isinstance(mode, Arrival) and server.auditor:
            mode.tickets.most_bytes = server.auditor.setup.ticket_bytes
        return mode


class AuditedServer(Server):
    """A server with a ledger.

    Attributes
    ----------
    stepwise, arrival, semi
        Classes of its modes, replaced by negative controls.
    ledger
        By partition.
    """

    stepwise: type[Stepwise] = AuditedStepwise
    arrival: type[Arrival] = AuditedArrival
    semi: type[Semi] = AuditedSemi
    auditor: "Auditor | None" = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.modes = AuditedModes(self)
        self.partitions.ledger = {}

    @property
    def ledger(self) -> dict[int, Ledger]:
        return self.partitions.ledger

    def _hold_nothing(self):
        effects = super()._hold_nothing()
        self.partitions.ledger = {}
        return effects

    def _serve(self, pass_, step):
        if not self.ledger:
            self.partitions.ledger = {partition: Counter() for partition in self.owned}
        super()._serve(pass_, step)

    def _send_state(self, copies):
        super()._send_state(copies)
        if self.auditor:
            # Pushes that wait for their step are sent again, and so entered again.
            copied = {p: ledger.copy() for p, ledger in self.ledger.items()}
            self.auditor.copied[copies.pair] = copied

    def on_message(self, peer, message, now):
        standby = self.standby
        begins = standby and standby.mode is None and isinstance(message, Copy)
        if begins and message.pair == standby.pair:
            ledger = self.auditor.copied[message.pair]
            standby.partitions.ledger = {p: one.copy() for p, one in ledger.items()}
        effects = super().on_message(peer, message, now)
        if begins and isinstance(standby.mode, Arrival):
            standby.mode.applied = standby.mode.ticks = standby.mode.clock
        return effects

    def check(self):
        super().check()
        if isinstance(self.mode, Arrival):
            mode = self.mode
            assert mode.staleness.sum() == mode.applied and mode.clock == mode.ticks
            assert mode.counted.get("stale_scaled", 0) == mode.late
        elif self.mode:
            assert self.mode.staleness[1:].sum() == 0, "late in sync mode"


class Auditor:
    """Checks states of partitions against their ledgers.

    Parameters
    ----------
    setup
    """

    def __init__(self, setup: Setup):
        self.setup = setup
        self.plans = setup.plans()
        self.copied: dict[int, dict[int, Ledger]] = {}
        self.weights: dict[tuple[str, int], list[bytes]] = {}
        self._figures: dict[tuple[int, int], np.ndarray] = {}

    def remember(self, worker: str, machine: Worker, effect: Compute):
        """With which weights a worker computes, by the pulls that they came with."""
        lane = machine.lanes.get(effect.lane)
        task = lane.tasks.get(effect.number) if lane else None
        # What came together with the last weights may have taken the lane away.
        if task and self.setup.compensation and effect.purpose == "train":
            sets = machine.model.key_sets(effect.batch)
            for node, request in task.asked.items():
                parts = zip(effect.weights, sets, strict=True)
                taken = [machine.view.take(w, s.starts, node) for w, s in parts]
                self.weights[worker, request] = as_bytes(taken)

    def figures(self, pass_: int, lane: int) -> np.ndarray:
        """Non-clicks and clicks of the first n batches of a lane, int64[n + 1, 2]."""
        if (pass_, lane) not in self._figures:
            plan, counts = self.plans[pass_], [(0, 0)]
            for batch in range(int(plan.lengths[lane])):
                rows = self.setup.data.rows_of(plan, plan.batch(lane, batch))
                clicks = sum(self.setup.data.labels[row] for row in rows)
                counts.append((len(rows) - clicks, clicks))
            self._figures[pass_, lane] = np.cumsum(counts, axis=0)
        return self._figures[pass_, lane]

    def check_state(self, pass_: int, partition: int, state: PartitionState, ledger: Ledger):
        """Marks and progressive figures are those of the batches in the ledger."""
        lengths = self.plans[pass_].lengths
        marks = [ledger[pass_, lane] - 1 for lane in range(len(lengths))]
        if self.setup.mode != "sync":
            assert state.marks.tolist() == marks, "marks are not those of the ledger"
        counted = sum(
            self.figures(pass_, lane)[marks[lane] + 1]
            for lane in range(partition, len(lengths), self.setup.partitions)
        )
        found = state.progress[1].sum(axis=0)
        assert (found == counted).all(), f"partition {partition} counted {found}, not {counted}"

    def check_complete(self, pass_: int, ledgers: dict[int, Ledger]):
        """All batches of the pass are in all partitions."""
        assert sorted(ledgers) == list(range(self.setup.partitions))
        lengths = self.plans[pass_].lengths.tolist()
        for ledger in ledgers.values():
            assert [ledger[pass_, lane] for lane in range(len(lengths))] == lengths

    def check_figures(self, figures: Figures):
        """Each row of a pass is counted once."""
        labels = self.setup.data.labels
        found = figures.histogram.sum(axis=0).tolist()
        assert found == [labels.count(0), labels.count(1)], "rows counted more or less than once"

    def check_in_turn(self, lane: int, pass_: int, batch: int, servers: list[AuditedServer]):
        """semi: when a batch is computed, the one before it is in all partitions."""
        for server in servers:
            for ledger in server.ledger.values():
                assert ledger[pass_, lane] >= batch, f"lane {lane}: {batch} computed too soon"

    def check_bound(self, pass_: int, batch: int, servers: list[AuditedServer]):
        """ssp: when a batch is computed, every unfinished lane is within the bound everywhere."""
        lengths = self.plans[pass_].lengths.tolist()
        for server in servers:
            for ledger in server.ledger.values():
                done = [ledger[pass_, lane] for lane in range(len(lengths))]
                unfinished = [n for n, length in zip(done, lengths, strict=True) if n < length]
                slowest = min(unfinished, default=batch)
                assert slowest >= batch - self.setup.staleness, f"{batch} computed at {slowest}"
