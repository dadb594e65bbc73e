"""The scheduler: who is in the job, which pass and phase it is in, and who computes what.

It is the only machine that declares a node dead, makes a view, or ends the job. What it knows of
progress is a cache of what servers report; leases only spread the work.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from ctrps.ps.effects import Commit, Effects, Evaluated, Finish, Log, Peer, Send
from ctrps.ps.leases import EvaluationLeases, TrainingLeases
from ctrps.ps.member import FENCED, Limits
from ctrps.ps.messages import (
    PROTOCOL,
    Bye,
    Message,
    Orders,
    Refused,
    Register,
    Status,
    Welcome,
)
from ctrps.ps.plan import EvaluationPlan, Manifest, Plan, PlanSettings
from ctrps.ps.view import assign


class Phase(Enum):
    """What the job is doing. The value is what ``orders`` say."""

    FORMING = "wait"
    LOADING = "load"
    TRAINING = "train"
    EVALUATING = "evaluate"
    STOPPING = "stop"
    ENDED = "end"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the scheduler needs to know of a job.

    ``resume`` is the (checkpoint, pass, step) to begin from, None for an empty model.
    """

    name: str
    config_digest: str
    servers: int
    workers: int
    passes: int
    partitions: int
    settings: PlanSettings
    manifest: Manifest
    resume: tuple[int, int, int] | None = None


@dataclass(slots=True)
class Node:
    """A process that is, or was, in the job."""

    number: int
    role: str
    rank: int
    boot: str
    address: str
    peer: Peer
    heard: float
    seq: int = -1
    status: Status | None = None
    dead: bool = False
    gone: bool = False

    @property
    def alive(self) -> bool:
        return not self.dead and not self.gone

    def __str__(self) -> str:
        place = f" ({self.address})" if self.address else ""
        return f"{self.role} {self.rank}{place}"


@dataclass(slots=True)
class Cut:
    """The checkpoint in progress: an id, and the version to save at."""

    checkpoint: int
    pass_: int
    step: int

    def as_orders(self) -> list[int]:
        return [self.checkpoint, self.pass_, self.step]


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
        self.nodes: dict[int, Node] = {}
        self.pass_ = spec.resume[1] if spec.resume else 0
        self.plan = Plan(spec.manifest.train, spec.settings, self.pass_)
        self.test = EvaluationPlan(spec.manifest.test)
        self.clock = Clock(now, now, now)
        self.committed = spec.resume
        self.exit_status = 0
        self.reason = ""
        self.step = -1
        self.trained_rows = 0
        self.trained_steps = 0
        self.keys = 0
        self._seq = 0
        self._view = -1
        self._owners: list[int] = []
        self._kernel_digest = ""
        self._cut: Cut | None = None
        self._committing = False
        self._next_checkpoint = spec.resume[0] + 1 if spec.resume else 0
        self._interrupted: tuple[int, str] | None = None
        self._margin = 2
        self._training = TrainingLeases(spec.settings.lanes)
        self._evaluation = EvaluationLeases(self.test.lanes)
        self._stop_by = 0.0
        self._first_step = 0

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
        assert self._cut is not None and self._cut.checkpoint == checkpoint
        cut, self._cut, self._committing = self._cut, None, False
        self.committed = (checkpoint, cut.pass_, cut.step)
        effects: Effects = [Log(f"checkpoint {checkpoint}: pass {cut.pass_} step {cut.step}")]
        if self._interrupted:
            return effects + self._stop(75, self._interrupted[1], now)
        return effects + self._after_pass(now)

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
        refusal = self._refusal(message)
        if refusal:
            return [
                Send(peer, Refused(-1, refusal[0], -1, refusal[1])),
                Log(f"refused a {message.role} at {message.address or 'no address'}: {refusal[1]}"),
            ]
        known = next((n for n in self.nodes.values() if n.boot == message.boot), None)
        if known:
            known.peer, known.heard = peer, now
            return [Send(peer, self._welcome(known))]
        self._kernel_digest = self._kernel_digest or message.kernel_digest
        node = self._admit(peer, message, now)
        effects: Effects = [Send(peer, self._welcome(node)), Log(f"{node} joined")]
        if self.phase is Phase.FORMING:
            return effects + self._form_if_complete(now)
        return effects + self._deal(now)

    def _admit(self, peer: Peer, message: Register, now: float) -> Node:
        number = len(self.nodes)
        rank = sum(n.role == message.role for n in self.nodes.values())
        node = Node(number, message.role, rank, message.boot, message.address, peer, now)
        self.nodes[number] = node
        return node

    def _refusal(self, message: Register) -> tuple[str, str] | None:
        if message.protocol != PROTOCOL:
            return "protocol", f"protocol {message.protocol} there, {PROTOCOL} here"
        if message.role not in ("server", "worker"):
            return "job", f"unknown role {message.role[:20]!r}"
        if message.job != self.spec.name:
            return "job", f"job {message.job[:60]!r} there, {self.spec.name!r} here"
        if message.config_digest != self.spec.config_digest:
            ours, theirs = self.spec.config_digest, message.config_digest[:40]
            return "digest", f"config {theirs} there, {ours} here: use the same job file"
        if self._kernel_digest and message.kernel_digest != self._kernel_digest:
            theirs = message.kernel_digest[:40]
            return (
                "kernel",
                f"kernels {theirs} there, {self._kernel_digest} here compute other bits",
            )
        servers = [n for n in self.nodes.values() if n.role == "server"]
        known = any(n.boot == message.boot for n in servers)
        if message.role == "server" and not known and len(servers) >= self.spec.servers:
            return "full", f"this job has its {self.spec.servers} servers"
        if self.phase is Phase.STOPPING:
            return "job", "the job is ending"
        return None

    def _welcome(self, node: Node) -> Welcome:
        names, blocks = self.spec.manifest.pack()
        return Welcome(node.boot, self.term, node.number, node.rank, names, blocks)

    def _alive(self, role: str) -> list[Node]:
        return [n for n in self.nodes.values() if n.role == role and n.alive]

    def _form_if_complete(self, now: float) -> Effects:
        servers, workers = self._alive("server"), self._alive("worker")
        if len(servers) < self.spec.servers or len(workers) < self.spec.workers:
            return []
        self._view = 1
        self._owners = assign(self.spec.partitions, [n.number for n in servers])
        return self._enter(Phase.LOADING, now)

    def _wait_for_nodes(self, now: float) -> Effects:
        waited, limit = now - self.clock.began, self.limits.start_s
        missing = " and ".join(
            f"{wanted - have} of {wanted} {role}{'s' if wanted > 1 else ''}"
            for role, wanted in (("server", self.spec.servers), ("worker", self.spec.workers))
            if (have := len(self._alive(role))) < wanted
        )
        if waited >= limit:
            return self._stop(4, f"{missing} did not come within {limit:.0f} s", now)
        if now - self.clock.said < self.limits.say_s:
            return []
        self.clock.said = now
        return [Log(f"waiting for {missing}, {waited:.0f} s of {limit:.0f} s")]

    def _bury(self, now: float) -> Effects:
        """Declare silent nodes dead, for ever."""
        limits = {"worker": self.limits.worker_silent_s, "server": self.limits.server_silent_s}
        silent = [n for n in self.nodes.values() if n.alive and now - n.heard >= limits[n.role]]
        effects: Effects = []
        for node in silent:
            node.dead = True
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
        node = self.nodes.get(message.node)
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
        node = self.nodes.get(status.node)
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
        if self.phase is Phase.EVALUATING and node.role == "worker":
            return self._on_scores(node, status, now)
        return []

    def _all_ready(self) -> bool:
        """Every owner has reported the present view and pass."""
        return all(
            n.status is not None
            and n.status.ready
            and (n.status.view, n.status.pass_) == (self._view, self.pass_)
            for n in self._alive("server")
        )

    def _loaded(self, now: float) -> Effects:
        if self.committed and self.committed[1:] == (self.pass_, self.plan.steps):
            return self._after_pass(now)
        return self._train(now)

    def _train(self, now: float) -> Effects:
        """Open the lanes of the pass; its border checkpoint is ordered with them."""
        self._training.open(n.number for n in self._alive("worker"))
        self.step = self._first_step = min(status.step for status in self._reports())
        self._cut = self._new_cut(self.plan.steps)
        self.clock.training_since, self.clock.pass_s = now, None
        return self._enter(Phase.TRAINING, now)

    def _on_progress(self, now: float) -> Effects:
        reports = self._reports()
        if not reports or not self._all_ready():
            return []
        step = min(status.step for status in reports)
        if step > self.step:
            since = now - self.clock.progress
            self.clock.step_s = since / max(step - self.step, 1)
            self.step, self.clock.progress = step, now
            self._training.settle()
        self.keys = sum(int(status.counters.get("keys", 0)) for status in reports)
        if step == self.plan.steps and self.clock.pass_s is None:
            self.clock.pass_s = now - self.clock.training_since
            self.clock.train_s += self.clock.pass_s
            self.trained_rows += self.plan.rows - self.plan.rows_before(self._first_step)
            self.trained_steps += step - self._first_step
        return self._on_cut(reports, now)

    def _reports(self) -> list[Status]:
        return [n.status for n in self._alive("server") if n.status is not None]

    def _on_cut(self, reports: list[Status], now: float) -> Effects:
        cut = self._cut
        if cut is None or self._committing:
            return []
        if any(status.missed == cut.checkpoint for status in reports):
            self._margin *= 2
            return self._cut_soon(now)
        if not all(status.saved == cut.checkpoint for status in reports):
            return []
        self._committing = True
        files = sorted(tuple(entry) for status in reports for entry in status.files)
        return [Commit(cut.checkpoint, cut.pass_, cut.step, tuple(files))]  # type: ignore[arg-type]

    def _cut_soon(self, now: float) -> Effects:
        """Order a cut a little ahead of the highest step heard of; at the end none is missed."""
        if self._committing:
            return []
        highest = max((status.step for status in self._reports()), default=0)
        rate = 1 / self.clock.step_s if self.clock.step_s else 0
        ahead = max(self._margin, round(2 * self.limits.beat_s * rate))
        self._cut = self._new_cut(min(highest + ahead, self.plan.steps))
        return self._tell_all()

    def _new_cut(self, step: int) -> Cut:
        cut = Cut(self._next_checkpoint, self.pass_, step)
        self._next_checkpoint += 1
        return cut

    def _after_pass(self, now: float) -> Effects:
        if self.pass_ + 1 < self.spec.passes:
            self.pass_ += 1
            self.step = -1
            self.plan = Plan(self.spec.manifest.train, self.spec.settings, self.pass_)
            return self._enter(Phase.LOADING, now)
        if self.test.lanes == 0:
            return self._stop(0, "done", now)
        self._evaluation.open(n.number for n in self._alive("worker"))
        return self._enter(Phase.EVALUATING, now)

    def _on_scores(self, node: Node, status: Status, now: float) -> Effects:
        pairs = zip(status.lanes, zip(*[iter(status.results)] * 2, strict=True), strict=True)
        for lane, (scores, labels) in pairs:
            if len(scores) == len(labels) == self.test.batch(lane).rows:
                self._evaluation.finish(lane, (scores, labels))
        self._seq += 1
        self._evaluation.refill(node.number)
        if not self._evaluation.complete:
            return []
        results = self._evaluation.results()
        scores_all, labels_all = zip(*results, strict=True)
        return [Evaluated(scores_all, labels_all), *self._stop(0, "done", now)]

    def _deal(self, now: float) -> Effects:
        """The workers have changed: deal the lanes again."""
        workers = [n.number for n in self._alive("worker")]
        self.clock.no_worker = None if workers else self.clock.no_worker or now
        self._training.deal(workers)
        self._evaluation.deal(workers)
        return self._tell_all()

    def _enter(self, phase: Phase, now: float) -> Effects:
        self.phase = phase
        self.clock.progress = now
        return self._tell_all()

    def _tell_all(self) -> Effects:
        self._seq += 1
        return [Send(n.peer, self._orders(n)) for n in self.nodes.values() if n.alive]

    def _orders(self, node: Node) -> Orders:
        servers = [n for n in self.nodes.values() if n.role == "server"] if self._view > 0 else []
        return Orders(
            term=self.term,
            seq=self._seq,
            view=self._view,
            owners=self._owners,
            addresses=[[n.number, n.address] for n in servers],
            restore=self.spec.resume[0] if self.spec.resume else -1,
            pass_=self.pass_,
            phase=self.phase.value,
            leases=self._leases(node),
            cut=self._cut.as_orders() if self._cut else [],
            reason=self.reason,
            exit_status=self.exit_status,
        )

    def _leases(self, node: Node) -> list[list[int]]:
        if node.role != "worker":
            return []
        if self.phase is Phase.TRAINING:
            first = max(self.step, 0)
            open_lanes = self._training.held_by(node.number)
            return [[lane, first] for lane in open_lanes if self.plan.lengths[lane] > first]
        if self.phase is Phase.EVALUATING:
            return [[lane, 0] for lane in self._evaluation.held_by(node.number)]
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
        if self._cut and self._interrupted and not self._committing:
            retry = self._retry_cut(now)
            if retry:
                return retry
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

    def _retry_cut(self, now: float) -> Effects:
        missed = any(s.missed == self._cut.checkpoint for s in self._reports() if self._cut)
        return self._cut_soon(now) if missed else []

    def _marks(self) -> tuple[object, ...]:
        """Whatever changes when the job gets on."""
        versions = [(s.view, s.pass_, s.step, s.ready, s.saved) for s in self._reports()]
        return (self.phase, *versions, self._evaluation.done, self._committing)

    def _steal(self) -> Effects:
        """Give the lanes that a step waits for to the least busy worker, too."""
        if self.phase is Phase.EVALUATING:
            return self._tell_all() if self._evaluation.share() else []
        if self.phase is not Phase.TRAINING:
            return []
        lanes = {lane for s in self._reports() if s.step == self.step for lane in s.missing}
        workers = [n.number for n in self._alive("worker")]
        if not self._training.steal(sorted(lanes), workers):
            return []
        slow = Log(f"lanes {sorted(lanes)} are slow; another worker takes them too")
        return [slow, *self._tell_all()]

    def _waits_for(self) -> str:
        """In words: which nodes hold what the job waits for."""
        if self.phase is Phase.LOADING:
            slow = [str(n) for n in self._alive("server") if not (n.status and n.status.ready)]
            return f"{', '.join(slow) or 'servers'} loading"
        if self.phase is Phase.EVALUATING:
            holders = {h for lane in self._evaluation.open_lanes() for h in lane}
            return f"scores from {self._named(holders)}"
        lanes = sorted({lane for s in self._reports() for lane in s.missing})
        if lanes:
            holders = {h for lane in lanes for h in self._training.holders(lane)}
            return f"step {self.step} waits for lanes {lanes} at {self._named(holders)}"
        return "servers writing the checkpoint"

    def _named(self, numbers: Iterable[int]) -> str:
        return ", ".join(str(self.nodes[n]) for n in sorted(numbers)) or "no worker"

    def _stop(self, exit_status: int, reason: str, now: float) -> Effects:
        if self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        self.exit_status, self.reason = exit_status, reason
        self._stop_by = now + self.limits.linger_s
        return [*self._enter(Phase.STOPPING, now), *self._linger(now)]

    def _linger(self, now: float) -> Effects:
        """End when all have said goodbye, or when the time for it is over."""
        if now < self._stop_by and any(n.alive for n in self.nodes.values()):
            return []
        self.phase = Phase.ENDED
        return [Finish(self.exit_status, self.reason)]

    def progress(self, now: float) -> dict[str, float]:
        """Figures for a progress line: pass, step, rows, loss so far in this pass."""
        sums = [s.counters for s in self._reports() if s.pass_ == self.pass_]
        loss = sum(float(c.get("loss_sum", 0.0)) for c in sums)
        rows = sum(int(c.get("loss_rows", 0)) for c in sums)
        step = max(self.step, 0)
        spent = self.clock.pass_s or now - self.clock.training_since
        done = self.plan.rows_before(step) - self.plan.rows_before(self._first_step)
        return {
            "pass": self.pass_,
            "step": step,
            "steps": self.plan.steps,
            "rows": self.plan.rows_before(step),
            "pass_rows": self.plan.rows,
            "logloss": loss / rows if rows else 0.0,
            "rows_per_s": done / spent if spent else 0.0,
            "keys": self.keys,
            "workers": len(self._alive("worker")),
            "servers": len(self._alive("server")),
        }

    def check(self) -> None:
        """Assert every invariant that the scheduler's state has at all times."""
        if self.phase is Phase.TRAINING:
            workers = {n.number for n in self._alive("worker")}
            held = {h for lane in range(self._training.lanes) for h in self._training.holders(lane)}
            assert held <= workers
            assert self._cut is not None
        assert not self._committing or self._cut is not None
        assert self.step <= self.plan.steps
