"""The scheduler: who is in the job, which pass and phase it is in, and who computes what.

It is the only machine that declares a node dead, makes a view, or ends the job. What it knows of
progress is a cache of what servers report; leases only spread the work.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ctrps.ps.cuts import Cuts
from ctrps.ps.effects import Commit, Effects, Evaluated, Finish, Keep, Log, Peer, Send
from ctrps.ps.evaluation import Evaluation
from ctrps.ps.job import EarlyStop, JobSpec, Phase
from ctrps.ps.member import FENCED, Limits
from ctrps.ps.messages import Bye, Message, Orders, Refused, Register, Status, Welcome
from ctrps.ps.roster import Node, Roster
from ctrps.ps.training import Training
from ctrps.ps.view import assign


@dataclass(slots=True)
class Clock:
    """Times of the run, in seconds of the driver's clock."""

    began: float
    said: float
    progress: float
    no_worker: float | None = None
    training_since: float = 0.0
    pass_s: float | None = None
    train_s: float = 0.0
    step_s: float = 0.0
    saved: float = 0.0
    marks: tuple[object, ...] = field(default_factory=tuple)


class Scheduler:
    """The scheduler's state machine.

    Parameters
    ----------
    spec
    limits
    now
        Monotonic seconds at the start.
    term
        Number of this start of the scheduler.
    """

    def __init__(self, spec: JobSpec, limits: Limits, now: float, term: int = 0):
        self.spec = spec
        self.limits = limits
        self.term = term
        self.phase = Phase.FORMING
        self.roster = Roster(spec.name, spec.config_digest, spec.servers, limits)
        self.pass_ = spec.resume[1] if spec.resume else 0
        self.training = Training(spec.manifest.train, spec.settings, self.pass_)
        self.evaluation = Evaluation(spec.manifest.test)
        self.clock = Clock(now, now, now)
        self.committed = spec.resume
        self.exit_status = 0
        self.reason = ""
        self.early_stop = EarlyStop(spec.patience)
        self.trained_rows = 0
        self.trained_steps = 0
        self.keys = 0
        self._seq = 0
        self._view = -1
        self._owners: list[int] = []
        self._cuts = Cuts(spec.resume[0] + 1 if spec.resume else 0)
        self._interrupted: tuple[int, str] | None = None
        self._stop_by = 0.0

    # -- events ---------------------------------------------------------------------------------

    def on_message(self, peer: Peer, message: Message, now: float) -> Effects:
        """Take one message; one that is not for a scheduler is dropped."""
        if self.phase is Phase.ENDED:
            return []
        match message:
            case Register():
                return self._on_register(peer, message, now)
            case Status():
                return self._on_status(peer, message, now)
            case Bye():
                return self._on_bye(message, now)
        return []

    def on_tick(self, now: float) -> Effects:
        """Deadlines: silent nodes, waits, stalls, the end."""
        match self.phase:
            case Phase.ENDED:
                return []
            case Phase.STOPPING:
                return self._linger(now)
            case Phase.FORMING:
                return self._wait_for_nodes(now)
        return self._bury(now) or self._mind_progress(now)

    def on_committed(self, checkpoint: int, now: float) -> Effects:
        """The manifest of ``checkpoint`` has its name: the checkpoint exists."""
        closed = self.committed = self._cuts.close()
        assert closed[0] == checkpoint
        effects: Effects = [Log(f"checkpoint {checkpoint}: pass {closed[1]} step {closed[2]}")]
        if self._interrupted:
            return effects + self._stop(75, self._interrupted[1], now)
        if self.phase is not Phase.TRAINING:
            return effects  # the job has been ended meanwhile
        if closed[2] != self.training.plan.steps:
            self.clock.saved = now
            self._cuts.order(self.pass_, self.training.plan.steps)
            return effects + self._tell_all()
        return effects + self._after_pass(now)

    def on_scored(self, badness: float | None, now: float) -> Effects:
        """The scores of ``Evaluated`` have been judged.

        Parameters
        ----------
        badness
            The figure to make small, None where it has no value (then it counts for nothing).
        """
        if self.phase is not Phase.EVALUATING:
            return []  # the job has been ended meanwhile
        effects: Effects = []
        if self.early_stop.better(badness) and self.committed:
            effects.append(Keep(self.committed[0]))
        if self.early_stop.over:
            effects.append(Log(f"no better for {self.spec.patience} passes: stopping early"))
        if self.early_stop.over or self.pass_ + 1 >= self.spec.passes:
            return effects + self._stop(0, "done", now)
        return effects + self._next_pass(now)

    def on_interrupt(self, signal_status: int, now: float) -> Effects:
        """Somebody asks to stop: save a checkpoint at the next step that allows it, then end.

        ``signal_status`` (128 + signal) is the exit status when nothing can be saved.
        """
        if self._interrupted or self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        why = "interrupted; run the same command again to go on"
        if self.phase is Phase.TRAINING:
            self._interrupted = (signal_status, why)
            return [Log("stopping after a checkpoint"), *self._cut_soon(now)]
        if self.committed:
            return self._stop(75, why, now)
        return self._stop(signal_status, "interrupted before the first step", now)

    def on_fault(self, what: str, exit_status: int, now: float) -> Effects:
        """The driver cannot go on (disk, data): end the job."""
        return self._stop(exit_status, what, now)

    # -- members --------------------------------------------------------------------------------

    def _on_register(self, peer: Peer, message: Register, now: float) -> Effects:
        refusal = self.roster.refusal(message)
        if self.phase is Phase.STOPPING:
            refusal = ("job", "the job is ending")
        if refusal:
            return [
                Send(peer, Refused(-1, refusal[0], -1, refusal[1])),
                Log(f"refused a {message.role} at {message.address or 'no address'}: {refusal[1]}"),
            ]
        known = self.roster.known(message.boot)
        if known:
            known.peer, known.heard = peer, now
            return [Send(peer, self._welcome(known))]
        node = self.roster.admit(peer, message, now)
        effects: Effects = [Send(peer, self._welcome(node)), Log(f"{node} joined")]
        if self.phase is Phase.FORMING:
            return effects + self._form_if_complete(now)
        return effects + self._deal(now)

    def _welcome(self, node: Node) -> Welcome:
        names, blocks = self.spec.manifest.pack()
        return Welcome(node.boot, self.term, node.number, node.rank, names, blocks)

    def _form_if_complete(self, now: float) -> Effects:
        servers, workers = self.roster.alive("server"), self.roster.alive("worker")
        if len(servers) < self.spec.servers or len(workers) < self.spec.workers:
            return []
        self._view = 1
        self._owners = assign(self.spec.partitions, [n.number for n in servers])
        return self._enter(Phase.LOADING, now)

    def _wait_for_nodes(self, now: float) -> Effects:
        waited, limit = now - self.clock.began, self.limits.start_s
        missing = self.roster.missing(self.spec.servers, self.spec.workers)
        if waited >= limit:
            return self._stop(4, f"{missing} did not come within {limit:.0f} s", now)
        if now - self.clock.said < self.limits.say_s:
            return []
        self.clock.said = now
        return [Log(f"waiting for {missing}, {waited:.0f} s of {limit:.0f} s")]

    def _bury(self, now: float) -> Effects:
        effects: Effects = []
        for node in self.roster.bury(now):
            effects += self._lost(node, f"silent for {now - node.heard:.1f} s", now)
        return effects

    def _lost(self, node: Node, how: str, now: float) -> Effects:
        if self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        if node.role == "server":
            return self._stop(4, f"{node} is lost: {how}", now)
        effects: Effects = [Log(f"{node} is lost: {how}; its lanes go to others")]
        if self.phase is not Phase.FORMING:
            effects += self._deal(now)
        return effects

    def _on_bye(self, message: Bye, now: float) -> Effects:
        node = self.roster.get(message.node)
        if node is None or node.gone:
            return []
        node.gone = True
        if self.phase is Phase.STOPPING:
            return self._linger(now)
        status, why = message.exit_status, message.reason
        if node.role == "worker" and status == 3:
            return self._stop(3, f"{node}: {why}", now)
        return self._lost(node, f"it ended with status {status}: {why}", now)

    # -- status and orders ----------------------------------------------------------------------

    def _on_status(self, peer: Peer, status: Status, now: float) -> Effects:
        node = self.roster.get(status.node)
        if node is None or status.term != self.term or node.gone:
            return []
        if node.dead:
            return [Send(peer, self._fenced())]
        node.peer, node.heard = peer, max(node.heard, now)
        if status.seq <= node.seq:
            return []
        node.seq, node.status = status.seq, status
        if status.fault and self.phase is not Phase.STOPPING:
            return self._stop(status.fault_status, f"{node}: {status.fault}", now)
        effects = self._on_report(node, status, now)
        if self.phase in (Phase.STOPPING, Phase.ENDED) and effects:
            return effects
        return [*effects, Send(peer, self._orders(node))]

    def _on_report(self, node: Node, status: Status, now: float) -> Effects:
        if self.phase is Phase.LOADING and self._all_ready():
            return self._loaded(now)
        if self.phase is Phase.TRAINING and node.role == "server":
            return self._on_progress(now)
        if node.role == "server" or status.pass_ != self.pass_:
            return []
        if self.phase is Phase.TRAINING and self.spec.settings.mode == "async":
            self._seq += self.training.claim(node.number, status.lanes)
        if self.phase is Phase.EVALUATING:
            return self._on_scores(status)
        return []

    def _all_ready(self) -> bool:
        """Every owner has reported the present view and pass."""
        return all(
            n.status is not None
            and n.status.ready
            and (n.status.view, n.status.pass_) == (self._view, self.pass_)
            for n in self.roster.alive("server")
        )

    def _loaded(self, now: float) -> Effects:
        self.training.learn(self._reports())
        if self.committed and self.committed[1] == self.pass_ and self.training.complete:
            return self._after_pass(now)
        return self._train(now)

    def _train(self, now: float) -> Effects:
        """Open the lanes of the pass; its border checkpoint is ordered with them."""
        workers = [n.number for n in self.roster.alive("worker")]
        self.training.open(workers, self._reports())
        self._cuts.order(self.pass_, self.training.plan.steps)
        self.clock.training_since, self.clock.pass_s = now, None
        self.clock.saved = now
        return self._enter(Phase.TRAINING, now)

    def _on_progress(self, now: float) -> Effects:
        reports = self._reports()
        if not reports or not self._all_ready():
            return []
        before = max(self.training.step, 0)
        if self.training.learn(reports):
            since = now - self.clock.progress
            self.clock.step_s = since / max(self.training.step - before, 1)
            self.clock.progress = now
            self._seq += 1
        self.keys = sum(int(status.counters.get("keys", 0)) for status in reports)
        if self.training.complete and self.clock.pass_s is None:
            self.clock.pass_s = now - self.clock.training_since
            self.clock.train_s += self.clock.pass_s
            self.trained_rows += self.training.plan.rows - self.training.first_rows
            self.trained_steps += self.training.step - self.training.first_step
        return self._on_cut(reports, now)

    def _reports(self) -> list[Status]:
        return [n.status for n in self.roster.alive("server") if n.status is not None]

    def _on_cut(self, reports: list[Status], now: float) -> Effects:
        if self._cuts.committing:
            return []
        if self._cuts.missed(reports):
            return self._cut_soon(now)
        files = self._cuts.saved(reports)
        if files is None or self._cuts.current is None:
            return self._cut_in_time(now)
        self._cuts.committing = True
        checkpoint, pass_, step = self._cuts.current
        border = step == self.training.plan.steps
        return [Commit(checkpoint, pass_, self._cuts.at_least if step < 0 else step, border, files)]

    def _cut_in_time(self, now: float) -> Effects:
        """Inside a pass, a checkpoint every so many seconds."""
        every_s = self.spec.checkpoint_s
        border = (
            self._cuts.current is not None and self._cuts.current[2] == self.training.plan.steps
        )
        if not every_s or self.training.complete or not border or now - self.clock.saved < every_s:
            return []
        return self._cut_soon(now)

    def _cut_soon(self, now: float) -> Effects:
        if self._cuts.committing:
            return []
        if self.spec.settings.mode != "sync":
            self._cuts.order_now(self.pass_, max(self.training.step, 0))
            return self._tell_all()
        highest = max((status.step for status in self._reports()), default=0)
        in_two_beats = round(2 * self.limits.beat_s / self.clock.step_s) if self.clock.step_s else 0
        self._cuts.order_soon(self.pass_, highest, in_two_beats, self.training.plan.steps)
        return self._tell_all()

    def _after_pass(self, now: float) -> Effects:
        last = self.pass_ + 1 >= self.spec.passes
        if self.evaluation.plan.lanes and (last or self.spec.evaluate_each):
            self.evaluation.open(n.number for n in self.roster.alive("worker"))
            return self._enter(Phase.EVALUATING, now)
        return self._stop(0, "done", now) if last else self._next_pass(now)

    def _next_pass(self, now: float) -> Effects:
        self.pass_ += 1
        self.training.turn(self.pass_)
        return self._enter(Phase.LOADING, now)

    def _on_scores(self, status: Status) -> Effects:
        if self.evaluation.complete:
            return []  # being judged
        self.evaluation.take(status)
        self._seq += 1
        return [Evaluated(*self.evaluation.results())] if self.evaluation.complete else []

    def _deal(self, now: float) -> Effects:
        """The workers have changed: deal the lanes again."""
        workers = [n.number for n in self.roster.alive("worker")]
        self.clock.no_worker = None if workers else self.clock.no_worker or now
        self.training.leases.deal(workers)
        self.evaluation.leases.deal(workers)
        return self._tell_all()

    def _enter(self, phase: Phase, now: float) -> Effects:
        self.phase = phase
        self.clock.progress = now
        return self._tell_all()

    def _tell_all(self) -> Effects:
        self._seq += 1
        return [Send(n.peer, self._orders(n)) for n in self.roster if n.alive]

    def _orders(self, node: Node) -> Orders:
        servers = [n for n in self.roster if n.role == "server"] if self._view > 0 else []
        return Orders(
            term=self.term,
            seq=self._seq,
            view=self._view,
            owners=self._owners,
            addresses=[(n.number, n.address) for n in servers],
            restore=self.spec.resume[0] if self.spec.resume else -1,
            pass_=self.pass_,
            phase=self.phase.value,
            leases=self._leases(node),
            cut=self._cuts.as_orders(),
            reason=self.reason,
            exit_status=self.exit_status,
        )

    def _leases(self, node: Node) -> list[tuple[int, int]]:
        if node.role == "worker" and self.phase is Phase.TRAINING:
            return self.training.leases_of(node.number)
        if node.role == "worker" and self.phase is Phase.EVALUATING:
            return [(lane, 0) for lane in self.evaluation.leases.held_by(node.number)]
        return []

    def _fenced(self) -> Orders:
        """What a node hears that was declared dead."""
        reason = f"{FENCED}: this node was silent too long and is out of the job"
        return Orders(self.term, 1 << 60, -1, [], [], -1, -1, "stop", [], [], reason, 4)

    # -- waiting and the end --------------------------------------------------------------------

    def _mind_progress(self, now: float) -> Effects:
        marks = self._marks()
        if marks != self.clock.marks:
            self.clock.marks, self.clock.progress = marks, now
            return []
        stalled = now - self.clock.progress
        since = self.clock.no_worker
        if since is not None and now - since >= self.limits.give_up_s:
            return self._stop(4, f"no worker for {now - since:.0f} s", now)
        if stalled >= self.limits.give_up_s:
            return self._stop(4, f"no progress for {stalled:.0f} s: {self._waits_for()}", now)
        effects: Effects = []
        if stalled >= max(self.limits.steal_s, 4 * self.clock.step_s):
            effects += self._steal()
        if stalled >= self.limits.say_s and now - self.clock.said >= self.limits.say_s:
            self.clock.said = now
            effects.append(Log(f"no progress for {stalled:.0f} s: {self._waits_for()}"))
        return effects

    def _marks(self) -> tuple[object, ...]:
        """Whatever changes when the job gets on."""
        versions = [(s.view, s.pass_, s.step, s.ready, s.saved) for s in self._reports()]
        return (self.phase, *versions, self.evaluation.done, self._cuts.committing)

    def _steal(self) -> Effects:
        """Give what the job waits for to other workers, too."""
        if self.phase is Phase.EVALUATING:
            return self._tell_all() if self.evaluation.leases.share() else []
        if self.phase is not Phase.TRAINING:
            return []
        workers = [n.number for n in self.roster.alive("worker")]
        lanes = self.training.steal(self._reports(), workers)
        slow = Log(f"lanes {lanes} are slow; another worker takes them too")
        return [slow, *self._tell_all()] if lanes else []

    def _waits_for(self) -> str:
        """In words: which nodes hold what the job waits for."""
        if self.phase is Phase.LOADING:
            slow = [
                str(n) for n in self.roster.alive("server") if not (n.status and n.status.ready)
            ]
            return f"{', '.join(slow) or 'servers'} loading"
        if self.phase is Phase.EVALUATING:
            leases = self.evaluation.leases
            holders = {h for lane in leases.unfinished for h in leases.holders(lane)}
            return f"scores from {self._named(holders)}"
        lanes, holders = self.training.waits_for(self._reports())
        if lanes:
            return f"step {self.training.step} waits for lanes {lanes} at {self._named(holders)}"
        return "servers writing the checkpoint"

    def _named(self, numbers: Iterable[int]) -> str:
        return ", ".join(str(self.roster[n]) for n in sorted(numbers)) or "no worker"

    def _stop(self, exit_status: int, reason: str, now: float) -> Effects:
        if self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        self.exit_status, self.reason = exit_status, reason
        self._stop_by = now + self.limits.linger_s
        return [*self._enter(Phase.STOPPING, now), *self._linger(now)]

    def _linger(self, now: float) -> Effects:
        """End when all have said goodbye, or when the time for it is over."""
        if now < self._stop_by and any(n.alive for n in self.roster):
            return []
        self.phase = Phase.ENDED
        return [Finish(self.exit_status, self.reason)]

    def progress(self, now: float) -> dict[str, Any]:
        """Figures for a progress line: pass, step, rows, progressive loss and AUC of this pass."""
        training = self.training
        spent = self.clock.pass_s or now - self.clock.training_since
        report = training.figures.report()
        return {
            "pass": self.pass_,
            "step": max(training.step, 0),
            "steps": training.plan.steps,
            "rows": training.rows,
            "pass_rows": training.plan.rows,
            "logloss": report["logloss"],
            "auc": report["auc"],
            "scored_rows": report["rows"],
            "rows_per_s": (training.rows - training.first_rows) / spent if spent else 0.0,
            "staleness": training.staleness,
            "keys": self.keys,
            "workers": len(self.roster.alive("worker")),
            "servers": len(self.roster.alive("server")),
        }

    def check(self) -> None:
        """Assert every invariant that the scheduler's state has at all times."""
        if self.phase is Phase.TRAINING:
            workers = {n.number for n in self.roster.alive("worker")}
            lanes = range(len(self.training.plan.lengths))
            assert {h for g in lanes for h in self.training.leases.holders(g)} <= workers
            assert self._cuts.current is not None
        assert not self._cuts.committing or self._cuts.current is not None
        assert self.training.step <= self.training.plan.steps
