"""What others are told of a job: people in words, nodes by orders, its next scheduler."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ctrps.ps.job import Phase
from ctrps.ps.journal import Journal
from ctrps.ps.member import FENCED
from ctrps.ps.messages import Orders, Welcome
from ctrps.ps.roster import Node

if TYPE_CHECKING:
    from ctrps.ps.scheduler import Scheduler


MOST_NAMED = 10
"""Batches that a line names; a worker may hold hundreds."""


def waits_for(scheduler: "Scheduler") -> str:
    """In words: which nodes hold what the job waits for."""
    if scheduler.phase is Phase.LOADING:
        slow = [str(n) for n in scheduler.fleet.owners if not (n.status and n.status.ready)]
        return f"{', '.join(slow) or 'servers'} loading"
    if unseen := nobody_sees(scheduler):
        return unseen
    if scheduler.phase is Phase.EVALUATING:
        leases = scheduler.evaluation.leases
        holders = {h for lane in leases.unfinished for h in leases.holders(lane)}
        return f"scores from {_named(scheduler, holders)}"
    lanes, holders = scheduler.training.waits_for(scheduler.fleet.reports)
    if lanes:
        where = f"lanes {lanes} at {_named(scheduler, holders)}"
        return f"step {scheduler.training.step} waits for {where}"
    return "servers writing the checkpoint"


def nobody_sees(scheduler: "Scheduler") -> str:
    """In words: files that the job needs now and no live worker sees; empty if there are none."""
    workers = [node.number for node in scheduler.roster.alive("worker")]
    if scheduler.phase is Phase.TRAINING:
        return scheduler.training.nobody_sees(workers)
    if scheduler.phase is Phase.EVALUATING:
        return scheduler.evaluation.nobody_sees(workers)
    return ""


def welcome(scheduler: "Scheduler", node: Node) -> Welcome:
    """What a node is told when it is let in."""
    names, blocks = scheduler.spec.manifest.pack()
    return Welcome(node.boot, scheduler.term, node.number, node.rank, names, blocks)


def _named(scheduler: "Scheduler", numbers: Iterable[int]) -> str:
    return ", ".join(str(scheduler.roster[n]) for n in sorted(numbers)) or "no worker"


def poisoned(scheduler: "Scheduler", batches: list[tuple[int, int]]) -> str:
    """In words: where the rows lie that workers died of.

    They hold a batch of each lane, and read the next one ahead: which of them it was, nobody saw.
    """
    places = [scheduler.training.place(*batch) for batch in batches]
    more = f", or at one of {len(places) - 1} others that they held" if places[1:] else ""
    what = f"{scheduler.poison.most} workers died at this batch or the next of its lane{more}"
    named = places[1:MOST_NAMED]
    left = len(places) - 1 - len(named)
    rest = "".join(f"; {p}" for p in [*named, *([f"and {left} more"] if left else [])])
    return f"{places[0]}: {what}, the last was {scheduler.poison.last}{rest}"


def leaving(scheduler: "Scheduler", node: Node) -> str:
    """In words: when a node that has been asked to leave will go."""
    fleet = scheduler.fleet
    if node.role == "worker":
        return f"{node} leaves; its lanes go to others"
    if node not in fleet.owners:
        return f"{node} leaves; no partition is lost with it"
    if any(pair.owner == node.number for pair in fleet.placement.pairs):
        return f"{node} leaves as soon as its standby has all it holds"
    if fleet.last(node):
        return f"{node} stays until another server comes or the job ends: none would be left"
    return f"{node} leaves at the end of the pass"


def progress(scheduler: "Scheduler", now: float) -> dict[str, Any]:
    """Figures for a progress line: pass, step, rows, progressive loss and AUC of this pass."""
    training = scheduler.training
    spent = scheduler.clock.pass_s or now - scheduler.clock.training_since
    report = training.figures.report()
    return {
        "pass": scheduler.pass_,
        "step": max(training.step, 0),
        "steps": training.plan.steps,
        "rows": training.rows,
        "pass_rows": training.plan.rows,
        "logloss": report["logloss"],
        "auc": report["auc"],
        "scored_rows": report["rows"],
        "rows_per_s": (training.rows - training.first_rows) / spent if spent else 0.0,
        **training.late,
        "keys": scheduler.keys,
        "workers": len(scheduler.roster.alive("worker")),
        "servers": len(scheduler.roster.alive("server")),
    }


def orders(scheduler: "Scheduler", node: Node) -> Orders:
    """What a node is to do: the whole picture."""
    if not node.alive:
        return _fenced(scheduler.term)
    return Orders(
        term=scheduler.term,
        seq=scheduler.seq,
        view=scheduler.fleet.placement.number,
        owners=list(scheduler.fleet.placement.owners),
        addresses=[(n.number, n.address) for n in scheduler.fleet.owners],
        epoch=scheduler.fleet.placement.epoch,
        restore=scheduler.fleet.placement.restore,
        standbys=scheduler.fleet.standbys(),
        pass_=scheduler.pass_,
        phase=scheduler.phase.value,
        leases=_leases(scheduler, node),
        cut=scheduler.cuts.as_orders(),
        reason=scheduler.reason,
        exit_status=scheduler.exit_status,
    )


def _leases(scheduler: "Scheduler", node: Node) -> list[tuple[int, int]]:
    if node.role == "worker" and scheduler.phase is Phase.TRAINING:
        return scheduler.training.leases_of(node.number)
    if node.role == "worker" and scheduler.phase is Phase.EVALUATING:
        return [(lane, 0) for lane in scheduler.evaluation.leases.held_by(node.number)]
    return []


def _fenced(term: int) -> Orders:
    """What a node hears that is out of the job, declared dead or released."""
    reason = f"{FENCED}: this node was silent too long and is out of the job"
    return Orders(term, 1 << 60, -1, [], [], -1, -1, "stop", [], [], reason, 4)


def journal(scheduler: "Scheduler") -> Journal:
    """What another scheduler must know that goes on with this job."""
    over = scheduler.phase in (Phase.STOPPING, Phase.ENDED)
    return Journal(
        scheduler.spec.config_digest,
        scheduler.roster.kernel_digest,
        scheduler.spec.plan_digest,
        scheduler.first_term,
        scheduler.term,
        scheduler.roster.save(),
        scheduler.fleet.placement,
        scheduler.pass_,
        scheduler.cuts.next,
        scheduler.trained_rows,
        scheduler.trained_steps,
        scheduler.training.begun,
        (scheduler.exit_status, scheduler.reason) if over else (),
    )
