"""A simulated cluster: the real machines on a seeded network, clock and disk.

One seed gives one history. The network drops, doubles, delays and so reorders; processes crash at
seeded moments and may come back as new ones; a beat may be held up so that a live node is
declared dead. Messages pass through the real encoding. Beside the model under test each job
carries an integer counter: a table whose weight counts the rows of data that hold a key, so a push
that is lost or applied twice shows even where the floats would hide it.

The job comes from ``simjob``. What a run must have come to is in ``verify``; what must hold after
every event is in each machine's ``check`` and in ``Cluster``.
"""

import hashlib
import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ctrps.ps import messages
from ctrps.ps.effects import (
    SCHEDULER,
    Begin,
    Commit,
    Compute,
    Connect,
    Evaluated,
    Finish,
    Load,
    Log,
    Prepare,
    Save,
    Send,
)
from ctrps.ps.member import Identity, Limits
from ctrps.ps.partition import PartitionSet
from ctrps.ps.plan import EvaluationPlan, Manifest
from ctrps.ps.scheduler import JobSpec, Scheduler
from ctrps.ps.server import Holding, Server
from ctrps.ps.worker import EVALUATION, Worker
from tests.simjob import (
    Setup,
    names_of_plan,
    row_bytes,
    rows_with_key,
    scores_alone,
    train_alone,
)


class AuditedServer(Server):
    """A server that keeps a ledger of what it applied, beside its rows."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ledger: list[tuple[int, int, int]] = []

    def _advance(self, now):
        step, pass_ = self.partitions.step, self.partitions.pass_
        lanes = sorted(self._lanes)
        effects = super()._advance(now)
        if self.partitions.step > step:
            names = [(pass_, lane, step) for lane in lanes]
            assert not set(names) & set(self.ledger), "a batch was applied twice"
            self.ledger += names
        return effects


@dataclass
class Process:
    """One simulated process: a machine with a name, dead or alive."""

    name: str
    role: str
    machine: Scheduler | Server | Worker
    alive: bool = True
    status: int | None = None
    reason: str = ""
    routes: dict[int, str] = field(default_factory=dict)
    manifest: Manifest | None = None


class Cluster:
    """Runs one ``Setup`` to its end.

    Parameters
    ----------
    setup
    server_class, worker_class
        Replaced by negative controls.
    end_s
        Simulated seconds within which the job must have ended.

    Attributes
    ----------
    messages, history
        Messages received, and a hash of all of them with their times.
    crashed
        When each process was killed.
    damaged
        Training files that cannot be read.
    slow
        Seconds more than others that a worker needs for a batch.
    disk
        Committed checkpoints: pass, step, rows of each partition.
    interrupt_at, resume
        When somebody asks to stop; the checkpoint to begin from.
    """

    def __init__(
        self,
        setup: Setup,
        server_class: type[Server] = AuditedServer,
        worker_class: type[Worker] = Worker,
        end_s: float = 2000.0,
    ):
        self.setup = setup
        self.rng = random.Random(f"cluster {setup.seed}")
        self.server_class, self.worker_class = server_class, worker_class
        self.end_s = end_s
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.model = setup.model()
        # A fifth of all messages may be lost: five beats in a row are then no sign of death.
        self.limits = Limits(server_silent_s=30.0)
        self.processes: dict[str, Process] = {}
        self.disk: dict[int, tuple[int, int, dict[int, object]]] = {}
        self.files: dict[tuple[int, str], object] = {}
        self.evaluated: Evaluated | None = None
        self.messages = 0
        self.history = hashlib.blake2b()
        self.log: list[str] = []
        self.crashed: dict[str, float] = {}
        self.damaged: set[int] = set()
        self.slow: dict[str, float] = {}
        self.interrupt_at: float | None = None
        self.resume: int | None = None
        self.plans = setup.plans()
        self.test_plan = EvaluationPlan(setup.test.files)
        self.first_step = [sum(p.steps for p in self.plans[:n]) for n in range(setup.passes)]

    # -- running --------------------------------------------------------------------------------

    def run(self) -> Process:
        """Run until every process has ended; returns the scheduler's."""
        self._start_all()
        scheduler = self.processes["scheduler"]
        while self.events and self.now < self.end_s:
            self.now, _, action = heapq.heappop(self.events)
            action()
            if not any(p.alive for p in self.processes.values()):
                return scheduler
        alive = [p.name for p in self.processes.values() if p.alive]
        raise AssertionError(f"{self.setup}: not ended after {self.now:.0f} s: {alive}")

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, action))

    def _start_all(self) -> None:
        setup = self.setup
        resume = None
        if self.resume is not None:
            pass_, step, _ = self.disk[self.resume]
            resume = (self.resume, pass_, step)
        spec = JobSpec(
            "sim",
            "digest",
            setup.servers,
            setup.workers,
            setup.passes,
            setup.partitions,
            setup.settings,
            setup.manifest,
            resume,
        )
        self._add("scheduler", "scheduler", Scheduler(spec, self.limits, self.now))
        for i in range(setup.servers):
            self.at(self.rng.uniform(0, 3), lambda i=i: self.start(f"s{i}", "server"))
        for i in range(setup.workers):
            self.at(self.rng.uniform(0, 3), lambda i=i: self.start(f"w{i}", "worker"))
        faults = setup.faults
        for i in range(faults.crashes):
            self.at(self.rng.uniform(2, 12), lambda i=i: self._crash(i))
        for _ in range(faults.suspicions):
            self.at(self.rng.uniform(3, 10), self._suspect)
        if self.interrupt_at is not None:
            self.at(self.interrupt_at, self._interrupt)

    def start(self, name: str, role: str, **identity_changes) -> None:
        """Start a server or worker now, unless the scheduler is gone."""
        if not self.processes["scheduler"].alive:
            return
        boot = f"{name}-{self.rng.random()}"
        identity = Identity(role, "sim", "digest", "kernel", boot, name, messages.PROTOCOL)
        identity = replace(identity, **identity_changes)
        cls = self.server_class if role == "server" else self.worker_class
        args = (identity, self.limits, self.now, self.model, self.setup.settings)
        process = self._add(name, role, cls(*args))
        self._perform(process, process.machine.on_start(self.now))

    def _add(self, name: str, role: str, machine) -> Process:
        process = Process(name, role, machine)
        self.processes[name] = process
        self._tick(process)
        return process

    def _tick(self, process: Process) -> None:
        if process.alive:
            self._perform(process, process.machine.on_tick(self.now))
            self.at(0.25, lambda: self._tick(process))

    # -- faults ---------------------------------------------------------------------------------

    def _crash(self, number: int) -> None:
        """Kill a process of the role; a worker comes back as a new node, the others do not."""
        role = self.setup.faults.kill_role
        victims = [p for p in self.processes.values() if p.role == role and p.alive]
        if not victims:
            return
        victim = self.rng.choice(victims)
        self.kill(victim.name)
        if role == "worker":
            delay = self.rng.choice([0.1, 1.0, 8.0])
            self.at(delay, lambda: self.start(f"{victim.name}'{number}", role))

    def kill(self, name: str) -> None:
        """End a process without a word."""
        self.processes[name].alive = False
        self.crashed[name] = self.now
        self.log.append(f"{self.now:.1f} crash of {name}")

    def _suspect(self) -> None:
        """Hold up a worker: the scheduler declares it dead, and it comes back as a zombie."""
        workers = [p for p in self.processes.values() if p.role == "worker" and p.alive]
        if len(workers) > 1:
            scheduler = self.processes["scheduler"].machine
            node = scheduler.roster.get(self.rng.choice(workers).machine.node)
            if node is not None:
                node.heard = self.now - 100

    def _interrupt(self) -> None:
        scheduler = self.processes["scheduler"]
        if scheduler.alive:
            self._perform(scheduler, scheduler.machine.on_interrupt(130, self.now))

    # -- effects --------------------------------------------------------------------------------

    def _perform(self, process: Process, effects) -> None:
        process.machine.check()
        if process.role == "server":
            self._check_skew()
        for effect in effects:
            self._perform_one(process, effect)

    def _check_skew(self) -> None:
        """All servers are in one pass and within one step, the end of a pass being a step too."""
        serving = [
            p.machine.partitions
            for p in self.processes.values()
            if p.role == "server" and p.alive and p.machine.holding is Holding.SERVING
        ]
        at = [self.first_step[p.pass_] + p.step for p in serving]
        assert not at or max(at) - min(at) <= 1, f"servers are apart: {at}"

    def _later(self, process: Process, delay: float, event: Callable[[], list]) -> None:
        def happen() -> None:
            if process.alive:
                self._perform(process, event())

        self.at(delay, happen)

    def _perform_one(self, process: Process, effect) -> None:
        machine, work_s = process.machine, self.rng.uniform(0, 0.02)
        match effect:
            case Send():
                self._send(process, effect.to, effect.message)
            case Connect():
                process.routes[effect.node] = effect.address
            case Begin():
                process.manifest = effect.manifest
            case Prepare():
                self._later(process, work_s, lambda: self._read(machine, effect))
            case Compute():
                result = self._compute(effect)
                work_s += self.slow.get(process.name, 0)
                self._later(
                    process, work_s, lambda: machine.on_computed(effect.token, result, self.now)
                )
            case Load():
                pass_, step, rows = self.disk[effect.checkpoint]
                chosen = {p: rows[p] for p in effect.partitions}
                self._later(
                    process, work_s, lambda: machine.on_loaded(chosen, pass_, step, self.now)
                )
            case Save():
                self._save(process, effect)
            case Commit():
                rows = {p: self.files[effect.checkpoint, name][p] for p, name, *_ in effect.files}
                assert sorted(rows) == list(range(self.setup.partitions))
                self.disk[effect.checkpoint] = (effect.pass_, effect.step, rows)
                self._later(
                    process, work_s, lambda: machine.on_committed(effect.checkpoint, self.now)
                )
            case Evaluated():
                self.evaluated = effect
            case Log():
                self.log.append(f"{self.now:.1f} {process.name}: {effect.text}")
            case Finish():
                process.alive, process.status = False, effect.exit_status
                process.reason = effect.reason
                self.log.append(f"{self.now:.1f} {process.name} ends {effect.exit_status}")
                if process.role == "worker" and effect.reason.startswith("fenced"):
                    self.at(0.5, lambda: self.start(f"{process.name}+", "worker"))

    def _read(self, worker: Worker, effect: Prepare) -> list:
        ref = effect.ref
        if effect.pass_ == EVALUATION:
            batch = self.setup.test.minibatch(self.model, self.test_plan, ref)
            return worker.on_prepared(effect.token, batch, self.now)
        if ref.file in self.damaged:
            path = self.setup.data.files[ref.file].path
            return worker.fail(f"{path}: record {ref.block} is damaged", 3, self.now)
        batch = self.setup.data.minibatch(self.model, self.plans[effect.pass_], ref)
        return worker.on_prepared(effect.token, batch, self.now)

    def _compute(self, effect: Compute):
        if effect.purpose == "evaluate":
            return self.model.margins(effect.batch, effect.weights)
        return self.model.gradient(effect.batch, effect.weights)

    def _save(self, process: Process, effect: Save) -> None:
        name = f"{process.name}-{effect.view}"
        self.files[effect.checkpoint, name] = effect.rows
        files = [[p, name, 1, "digest"] for p in effect.rows]
        delay = self.rng.choice([0.01, 0.5])
        self._later(
            process, delay, lambda: process.machine.on_saved(effect.checkpoint, files, self.now)
        )

    # -- network --------------------------------------------------------------------------------

    def _send(self, sender: Process, to, message: messages.Message) -> None:
        target = "scheduler" if to == SCHEDULER else sender.routes.get(to, to)
        frames = [bytes(frame) for frame in messages.encode(message)]
        copies = 2 if self.rng.random() < self.setup.faults.double else 1
        for _ in range(copies):
            if self.rng.random() >= self.setup.faults.loss:
                self.at(self._delay(), lambda: self._receive(sender.name, target, frames))

    def _delay(self) -> float:
        faults = self.setup.faults
        if self.rng.random() < faults.late:
            return self.rng.uniform(0, faults.late_s)
        return self.rng.uniform(0, faults.delay_s)

    def _receive(self, sender: str, target: str, frames) -> None:
        process = self.processes.get(target)
        if process is None or not process.alive:
            return
        self.messages += 1
        self.history.update(f"{self.now} {sender} {target}".encode() + b"".join(frames))
        message = messages.decode(frames)
        peer = SCHEDULER if sender == "scheduler" and process.role != "scheduler" else sender
        self._perform(process, process.machine.on_message(peer, message, self.now))

    # -- results --------------------------------------------------------------------------------

    @property
    def servers(self) -> list[Server]:
        """The servers of the view, dead or alive."""
        machines = [p.machine for p in self.processes.values() if p.role == "server"]
        return [machine for machine in machines if machine.owned]

    def continued(self, setup: Setup) -> "Cluster":
        """A later run of the same job, from the newest checkpoint on disk if there is one."""
        later = Cluster(setup, self.server_class, self.worker_class, self.end_s)
        later.disk = dict(self.disk)
        later.resume = max(self.disk, default=None)
        return later


def verify(
    cluster: Cluster, alone: PartitionSet | None = None, before: Iterable[tuple] = ()
) -> None:
    """Assert that a job that ran to its end did what the plan says, bit by bit.

    Parameters
    ----------
    cluster
    alone
        Result of ``train_alone`` where the caller has it.
    before
        Names of the batches that an earlier run had done.
    """
    setup, scheduler = cluster.setup, cluster.processes["scheduler"]
    assert scheduler.status == 0, scheduler.reason
    alone = alone or train_alone(setup)
    counts = alone.tables[-1]
    counted = counts.weights(counts.keys, absent_initial=False)[:, 0]
    assert dict(zip(counts.keys.tolist(), counted, strict=True)) == rows_with_key(setup)

    found = row_bytes([server.partitions for server in cluster.servers])
    assert found == row_bytes([alone]), "rows differ from those of one process"
    for server in cluster.servers:
        assert sorted([*before, *server.ledger]) == names_of_plan(setup)
    scores = [s.tobytes() for s in cluster.evaluated.scores] if cluster.evaluated else []
    assert scores == scores_alone(setup, alone)
