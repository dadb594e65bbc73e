"""What is watched from outside while a simulated cluster runs.

Each server keeps a *ledger* beside its rows: for every partition, how many batches of each lane of
each pass were applied to it. It is saved, restored and lost with the rows, and knows nothing of
marks or versions. A batch that is applied twice, out of turn or not at all shows in it at once.
"""

from collections import Counter

import numpy as np

from ctrps.ps.arrival import Arrival
from ctrps.ps.partition import PartitionState
from ctrps.ps.progress import Figures
from ctrps.ps.server import Server
from ctrps.ps.sync import Stepwise
from tests.simjob import Setup

Ledger = Counter[tuple[int, int]]
"""Batches applied, by (pass, lane)."""


def enter(ledger: Ledger, pass_: int, lane: int, batch: int) -> None:
    """Note a batch, which must be the next of its lane."""
    due = ledger[pass_, lane]
    assert batch == due, f"pass {pass_} lane {lane}: batch {batch} applied, {due} was due"
    ledger[pass_, lane] += 1


class AuditedArrival(Arrival):
    """Enters what it applies in the ledger of its server."""

    ledger: dict[int, Ledger]
    applied: int

    def _apply(self, push, missing):
        super()._apply(push, missing)
        self.applied += 1
        for partition in missing.tolist():
            enter(self.ledger[partition], push.pass_, push.lane, push.batch)


class AuditedServer(Server):
    """A server with a ledger.

    Attributes
    ----------
    stepwise, arrival
        Classes of its modes, replaced by negative controls.
    ledger
        By partition.
    """

    stepwise: type[Stepwise] = Stepwise
    arrival: type[Arrival] = AuditedArrival

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ledger: dict[int, Ledger] = {}

    def _adopt(self, orders, now):
        self.ledger = {p: Counter() for p, node in enumerate(orders.owners) if node == self.node}
        return super()._adopt(orders, now)

    def _serve(self, pass_, step):
        super()._serve(pass_, step)
        # The server makes its own mode; this is the one place where another can take over.
        self.mode.__class__ = self.arrival if isinstance(self.mode, Arrival) else self.stepwise
        self.mode.ledger, self.mode.applied = self.ledger, 0

    def _on_push(self, peer, push, now):
        step, pass_ = self.partitions.step, self.partitions.pass_
        effects = super()._on_push(peer, push, now)
        if self.settings.mode == "sync" and self.partitions.step > step:
            for lane in self.mode.plan.active(step):
                for ledger in self.ledger.values():
                    enter(ledger, pass_, lane, step)
        return effects

    def check(self):
        super().check()
        if isinstance(self.mode, Arrival):
            assert self.mode.staleness.sum() == self.mode.clock == self.mode.applied


class Auditor:
    """Checks states of partitions against their ledgers.

    Parameters
    ----------
    setup
    """

    def __init__(self, setup: Setup):
        self.setup = setup
        self.plans = setup.plans()
        self._figures: dict[tuple[int, int], np.ndarray] = {}

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

    def check_bound(self, pass_: int, batch: int, servers: list[AuditedServer]):
        """ssp: when a batch is computed, every unfinished lane is within the bound everywhere."""
        lengths = self.plans[pass_].lengths.tolist()
        for server in servers:
            for ledger in server.ledger.values():
                done = [ledger[pass_, lane] for lane in range(len(lengths))]
                unfinished = [n for n, length in zip(done, lengths, strict=True) if n < length]
                slowest = min(unfinished, default=batch)
                assert slowest >= batch - self.setup.staleness, f"{batch} computed at {slowest}"
