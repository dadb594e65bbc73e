"""A simulated cluster: the real machines on a seeded network, clock and disk.

One seed gives one history. The network drops, doubles, delays and so reorders; processes crash at
seeded moments and may come back as new ones; a beat may be held up so that a live node is
declared dead. Messages pass through the real encoding, several together where the driver would
send them so. Beside the model under test each job
carries an integer counter: a table whose weight counts the rows of data that hold a key, so a push
that is lost or applied twice shows even where the floats would hide it.

The job comes from ``simjob``. What must hold after every event is in each machine's ``check``, in
``simaudit`` and in ``Cluster``; what a run must have come to is in ``verify``.
"""

import functools
import hashlib
import heapq
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from signal import SIGTERM
from typing import NamedTuple

from ctrps.ps import messages, told
from ctrps.ps.effects import (
    SCHEDULER,
    Begin,
    Commit,
    Compute,
    Connect,
    Evaluated,
    Finish,
    Keep,
    Load,
    Log,
    Prepare,
    Remember,
    Save,
    Send,
)
from ctrps.ps.job import JobSpec, Phase
from ctrps.ps.journal import Journal
from ctrps.ps.member import Identity, Life, Limits
from ctrps.ps.partition import NO_MARKS, PartitionSet, PartitionState
from ctrps.ps.plan import EvaluationPlan, Manifest
from ctrps.ps.progress import NO_PROGRESS
from ctrps.ps.scheduler import Scheduler
from ctrps.ps.server import Holding
from ctrps.ps.worker import EVALUATION, Worker
from ctrps.runtime.node import packets
from tests.simaudit import AuditedServer, Auditor, Ledger
from tests.simjob import (
    Setup,
    merged,
    row_bytes,
    rows_with_key,
    scores_alone,
    train_alone,
)


class Stored(NamedTuple):
    """A committed checkpoint, with the ledgers of its partitions."""

    pass_: int
    step: int
    border: bool
    states: dict[int, PartitionState]
    ledgers: dict[int, Ledger]

    def position(self, passes: int) -> tuple[int, int]:
        """Pass and step at which a run of so many passes goes on."""
        if self.border and self.pass_ + 1 < passes:
            return self.pass_ + 1, 0
        return self.pass_, self.step


@dataclass
class Process:
    """One simulated process: a machine with a name, dead or alive."""

    name: str
    role: str
    machine: Scheduler | AuditedServer | Worker
    alive: bool = True
    status: int | None = None
    reason: str = ""
    routes: dict[int, str] = field(default_factory=dict)
    stopped_until: float = 0.0
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
    crashed, coming, asked
        When each process was killed; how many are about to be replaced; those asked to leave.
    journal
        What the scheduler has on disk.
    deaths
        Of workers at one batch that the job takes: random ones often meet the same.
    damaged
        Training files that cannot be read.
    unseen
        Numbers of the files that a worker does not see, nor one that takes its place, by its name.
    slow
        Seconds more than others that a worker needs for a batch.
    disk, kept
        Committed checkpoints by their id; ids of those that were the best.
    interrupt_at, kill_at, resume
        When somebody asks to stop, and when everything is killed; the checkpoint to begin from.
    owes
        The run was stopped between the end of the pass and its evaluation.
    judged
        Passes whose test rows have been scored.
    badness
        Figures by which the evaluations of the test rows are judged, in turn.
    """

    def __init__(
        self,
        setup: Setup,
        server_class: type[AuditedServer] = AuditedServer,
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
        self.limits = Limits(server_silent_s=30.0, retry_s=0.5, retry_most_s=1.0)
        self.processes: dict[str, Process] = {}
        self.disk: dict[int, Stored] = {}
        self.files: dict[tuple[int, str], tuple[dict, dict]] = {}
        self.kept: list[int] = []
        self.badness: list[float | None] = []
        self.evaluated: Evaluated | None = None
        self.messages = 0
        self.history = hashlib.blake2b()
        self.log: list[str] = []
        self.crashed: dict[str, float] = {}
        self.asked: list[str] = []
        self.coming = 0
        self.deaths = 1000
        self.journal: Journal | None = None
        self.damaged: set[int] = set()
        self.unseen: dict[str, list[int]] = {}
        self.slow: dict[str, float] = {}
        self.interrupt_at: float | None = None
        self.kill_at: float | None = None
        self.resume: int | None = None
        self.owes = False
        self.judged: list[int] = []
        self.auditor = Auditor(setup)
        self.plans = self.auditor.plans
        self.test_plan = EvaluationPlan(setup.test.files)
        self.first_step = [sum(p.steps for p in self.plans[:n]) for n in range(setup.passes)]

    # -- running --------------------------------------------------------------------------------

    def run(self) -> Process:
        """Run until every process has ended; returns the scheduler's."""
        self._start_all()
        while self.events and self.now < self.end_s:
            self.now, _, action = heapq.heappop(self.events)
            action()
            if not self.coming and not any(p.alive for p in self.processes.values()):
                return self.processes["scheduler"]
        alive = [p.name for p in self.processes.values() if p.alive]
        raise AssertionError(f"{self.setup}: not ended after {self.now:.0f} s: {alive}")

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, action))

    def _start_all(self) -> None:
        setup = self.setup
        resume = None
        if self.resume is not None:
            stored = self.disk[self.resume]
            at = (stored.pass_, stored.step) if self.owes else stored.position(setup.passes)
            resume = (self.resume, *at)
        self._add("scheduler", "scheduler", Scheduler(self._spec(resume), self.limits, self.now))
        for i in range(setup.servers * (1 + setup.replicas)):
            self.at(self.rng.uniform(0, 3), lambda i=i: self.start(f"s{i}", "server"))
        for i in range(setup.workers):
            self.at(self.rng.uniform(0, 3), lambda i=i: self.start(f"w{i}", "worker"))
        faults = setup.faults
        for i in range(faults.crashes):
            self.at(self.rng.uniform(2, 12 + faults.later_s * i), lambda i=i: self._crash(i))
        for _ in range(faults.suspicions):
            self.at(self.rng.uniform(3, 10), self._suspect)
        for i in range(faults.leaves):
            self.at(self.rng.uniform(2, 12 + faults.later_s * i), lambda i=i: self._leave(i))
        if self.interrupt_at is not None:
            self.at(self.interrupt_at, self._interrupt)
        if self.kill_at is not None:
            self.at(self.kill_at, self._kill_all)

    def _spec(self, resume: tuple[int, int, int] | None) -> JobSpec:
        setup = self.setup
        return JobSpec(
            "sim",
            "digest",
            setup.servers,
            setup.workers,
            setup.passes,
            setup.partitions,
            setup.settings,
            setup.manifest,
            setup.replicas,
            "plan",
            resume,
            setup.checkpoint_s,
            setup.evaluate_each,
            setup.patience,
        )

    def start(self, name: str, role: str, **identity_changes) -> None:
        """Start a server or worker now, unless the job is over."""
        if self.processes["scheduler"].status is not None:
            return
        boot = f"{name}-{self.rng.random()}"
        identity = Identity(role, "sim", "digest", "kernel", boot, name, messages.PROTOCOL)
        identity = replace(identity, **identity_changes)
        args = (identity, self.limits, self.now, self.model, self.setup.settings)
        if role == "server":
            machine = self.server_class(*args, self.setup.mode_settings)
            machine.auditor, machine.asked.most = self.auditor, self.setup.remembered
        else:
            machine = self.worker_class(*args, self.setup.window)
        process = self._add(name, role, machine)
        self._perform(process, process.machine.on_start(self.now))

    def _add(self, name: str, role: str, machine) -> Process:
        if role == "scheduler":
            machine.poison.most = self.deaths
        process = Process(name, role, machine)
        self.processes[name] = process
        self._tick(process)
        return process

    def _tick(self, process: Process) -> None:
        if not process.alive:
            return
        if process.stopped_until > self.now:
            self.at(process.stopped_until - self.now, lambda: self._tick(process))
            return
        self._perform(process, process.machine.on_tick(self.now))
        self.at(0.25, lambda: self._tick(process))

    # -- faults ---------------------------------------------------------------------------------

    def _crash(self, number: int) -> None:
        """Kill a process of the role; where any may be killed, each is replaced."""
        role = self.setup.faults.kill_role
        victims = [p for p in self.processes.values() if role in (p.role, "any") and p.alive]
        if not victims:
            return
        victim = self.rng.choice(victims)
        self.kill(victim.name)
        if role in ("worker", "any"):
            delay = self.rng.choice([0.1, 1.0, 8.0, *self.setup.faults.delays])
            self.coming += 1
            self.at(delay, lambda: self._replace(victim, number))

    def _replace(self, victim: Process, number: int) -> None:
        self.coming -= 1
        if victim.role != "scheduler":
            self.start(f"{victim.name}'{number}", victim.role)
            return
        newest = max(self.disk, default=None)
        stored = None if newest is None else self.disk[newest]
        resume = None if stored is None else (newest, stored.pass_, stored.step)
        term, journal = self.taken_up(victim.machine.term + 1, self.journal)
        machine = Scheduler(self._spec(resume), self.limits, self.now, term, journal)
        self.log.append(f"{self.now:.1f} another scheduler")
        self._add("scheduler", "scheduler", machine)

    def taken_up(self, term: int, journal: Journal | None) -> tuple[int, Journal | None]:
        """What another scheduler begins with; replaced by negative controls."""
        return term, journal

    def kill(self, name: str) -> None:
        """End a process without a word."""
        self.processes[name].alive = False
        self.crashed[name] = self.now
        self.log.append(f"{self.now:.1f} crash of {name}")

    def _leave(self, number: int) -> None:
        """Ask a node to leave; another comes where the job needs one, else perhaps."""
        nodes = [p for p in self.processes.values() if p.role != "scheduler" and p.alive]
        nodes = [p for p in nodes if p.machine.life is Life.WORKING and not p.machine.leaves]
        if not nodes:
            return
        node = self.rng.choice(nodes)
        forming = self.processes["scheduler"].machine.phase is Phase.FORMING
        # The last server, if dead ones that are not yet missed do not count: the job needs another.
        last = sum(p.role == "server" for p in nodes) == 1
        if node.role == "worker" or forming or last or self.rng.random() < 0.5:
            self.at(self.rng.uniform(0, 5), lambda: self.start(f"n{number}", node.role))
        self.log.append(f"{self.now:.1f} {node.name} is asked to leave")
        self.asked.append(node.name)
        self._perform(node, node.machine.on_signal(SIGTERM, self.now))

    def _kill_all(self) -> None:
        for process in self.processes.values():
            process.alive = False

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
            self._check_answers(process.machine, effects)
        if process.role == "scheduler":
            self._check_protected(process.machine)
        for effect in effects:
            if isinstance(effect, Connect):
                process.routes = effect.addresses
            if isinstance(effect, Remember):
                packed = messages.encode_frames([effect.journal.pack()], [])
                self.journal = Journal.unpack(messages.decode_frames(packed)[0][0])
        if process.role == "scheduler" and any(isinstance(effect, Send) for effect in effects):
            assert self.journal == told.journal(process.machine), "told before it was remembered"
        for peer, together in packets(effects):
            self._send(process, peer, together)
        for effect in effects:
            if not isinstance(effect, Send | Connect | Remember):
                self._perform_one(process, effect)

    def _check_skew(self) -> None:
        """sync: all servers are within one step, and step 0 is that after the end of a pass.

        Else: a server that is a pass behind has done all of it.
        """
        serving = [
            p.machine
            for p in self.processes.values()
            if p.role == "server" and p.alive and p.machine.holding is Holding.SERVING
        ]
        newest = max((machine.view for machine in serving), default=-1)
        serving = [machine.partitions for machine in serving if machine.view == newest]
        at = [self.first_step[p.pass_] + p.step for p in serving]
        if self.setup.mode == "sync":
            assert not at or max(at) - min(at) <= 1, f"servers are apart: {at}"
        else:
            began = self.first_step[max((p.pass_ for p in serving), default=0)]
            assert all(n >= began for n in at), f"servers are apart: {at}"

    def _check_answers(self, server: AuditedServer, effects) -> None:
        """sync: a version that is answered, the standby has, if it may be promoted."""
        copies = server.copies
        if self.setup.mode != "sync" or copies is None or not copies.protected:
            return
        standbys = [p.machine.standby for p in self.processes.values() if p.role == "server"]
        steps = [s.partitions.step for s in standbys if s and s.pair == copies.pair]
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, messages.Pulled):
                version = effect.message.mark + 1
                assert all(step >= version for step in steps), "an answer that the standby lacks"

    def _check_protected(self, scheduler: Scheduler) -> None:
        """What the scheduler knows of an owner's progress, its standby has, if it may be promoted.

        Both are looked at in one moment, and the standby only gets on.
        """
        if scheduler.phase is not Phase.TRAINING:
            return
        placement, machines = scheduler.fleet.placement, {}
        for process in self.processes.values():
            if process.role == "server" and process.alive:
                machines[process.machine.node] = process.machine
        for owner, number, pair in placement.pairs:
            standby = machines[number].standby if number in machines else None
            if pair not in placement.protected or standby is None or standby.pair != pair:
                continue
            status = scheduler.roster[owner].status
            if status.protected != pair or status.pass_ != standby.partitions.pass_:
                continue
            assert standby.partitions.step >= status.step, "progress that the standby lacks"
            if self.setup.mode != "sync":
                assert standby.mode and (standby.mode.lowest >= status.results[2]).all()

    def _later(self, process: Process, delay: float, event: Callable[[], list]) -> None:
        def happen() -> None:
            if process.alive:
                self._perform(process, event())

        self.at(delay, happen)

    def _perform_one(self, process: Process, effect) -> None:
        machine, work_s = process.machine, self.rng.uniform(0, 0.02)
        match effect:
            case Begin():
                process.manifest = effect.manifest
                if process.role == "worker":
                    unseen = self.unseen_by(process.name)
                    delay = 3 * random.Random(process.name).random() if unseen else 0.0
                    self._later(process, delay, lambda: machine.on_looked(unseen, self.now))
            case Prepare():
                first = len(self.setup.data.files) if effect.pass_ == EVALUATION else 0
                assert first + effect.ref.file not in self.unseen_by(process.name)
                self._later(process, work_s, lambda: self._read(machine, effect))
            case Compute():
                if self.setup.mode in ("ssp", "semi") and effect.purpose == "train":
                    check = self.auditor.check_bound
                    if self.setup.mode == "semi":
                        check = functools.partial(self.auditor.check_in_turn, effect.lane)
                    servers = [s for s in self.servers if s.view == machine.view.number]
                    check(effect.pass_, effect.number, servers)
                self.auditor.remember(process.name, machine, effect)
                result = self._compute(effect)
                work_s += self.slow.get(process.name, 0)
                self._later(
                    process, work_s, lambda: machine.on_computed(effect.token, result, self.now)
                )
            case Load():
                self._later(process, work_s, lambda: self._load(machine, effect))
            case Save():
                self._save(process, effect)
            case Commit():
                self._commit(machine, effect)
                self._later(
                    process, work_s, lambda: machine.on_committed(effect.checkpoint, self.now)
                )
            case Evaluated():
                self.evaluated = effect
                self.judged.append(machine.pass_)
                badness = self.badness.pop(0) if self.badness else None
                self._later(process, work_s, lambda: machine.on_scored(badness, self.now))
            case Keep():
                self.kept.append(effect.checkpoint)
            case Log():
                self.log.append(f"{self.now:.1f} {process.name}: {effect.text}")
            case Finish():
                process.alive, process.status = False, effect.exit_status
                process.reason = effect.reason
                self.log.append(f"{self.now:.1f} {process.name} ends {effect.exit_status}")
                if process.role == "worker" and effect.reason.startswith("fenced"):
                    self.at(0.5, lambda: self.start(f"{process.name}+", "worker"))

    def unseen_by(self, name: str) -> list[int]:
        return self.unseen.get(re.split("[+']", name)[0], [])

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
        ledgers = {p: ledger.copy() for p, ledger in process.machine.ledger.items()}
        for partition, state in effect.partitions.items():
            self.auditor.check_state(effect.pass_, partition, state, ledgers[partition])
        self.files[effect.checkpoint, name] = (effect.partitions, ledgers)
        files = [(p, name, 1, "digest") for p in effect.partitions]
        delay = self.rng.choice([0.01, 0.5])
        self._later(
            process, delay, lambda: process.machine.on_saved(effect.checkpoint, files, self.now)
        )

    def _commit(self, scheduler: Scheduler, effect: Commit) -> None:
        states: dict[int, PartitionState] = {}
        ledgers: dict[int, Ledger] = {}
        for partition, name, *_ in effect.files:
            saved, beside = self.files[effect.checkpoint, name]
            states[partition], ledgers[partition] = saved[partition], beside[partition]
        assert sorted(states) == list(range(self.setup.partitions))
        if effect.border:
            self.auditor.check_complete(effect.pass_, ledgers)
            self.auditor.check_figures(scheduler.training.figures)
        stored = Stored(effect.pass_, effect.step, effect.border, states, ledgers)
        self.disk[effect.checkpoint] = stored

    def _load(self, server: AuditedServer, effect: Load) -> list:
        stored = self.disk[effect.checkpoint]
        pass_, step = effect.pass_, stored.step if effect.pass_ == stored.pass_ else 0
        states = {p: stored.states[p] for p in effect.partitions}
        if pass_ != stored.pass_:
            states = {
                p: state._replace(marks=NO_MARKS, progress=NO_PROGRESS)
                for p, state in states.items()
            }
        if effect.epoch == server.epoch:
            server.partitions.ledger = {p: stored.ledgers[p].copy() for p in effect.partitions}
        return server.on_loaded(effect.epoch, states, pass_, step, self.now)

    # -- network --------------------------------------------------------------------------------

    def _send(self, sender: Process, to, together: list[messages.Message]) -> None:
        """Messages that travel together are lost, doubled and late together."""
        target = "scheduler" if to == SCHEDULER else sender.routes.get(to, to)
        frames = [bytes(frame) for frame in messages.encode(*together)]
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
        if process.stopped_until > self.now:
            later = process.stopped_until - self.now
            self.at(later, lambda: self._receive(sender, target, frames))
            return
        self.history.update(f"{self.now} {sender} {target}".encode() + b"".join(frames))
        peer = SCHEDULER if sender == "scheduler" and process.role != "scheduler" else sender
        effects = []
        for message in messages.decode(frames):
            self.messages += 1
            effects += process.machine.on_message(peer, message, self.now)
            process.machine.check()
        self._perform(process, effects)

    # -- results --------------------------------------------------------------------------------

    def patient(self) -> "Cluster":
        """The same, for the dead that are found after 30 s and replaced 40 s later, one by one."""
        self.limits = replace(self.limits, give_up_s=400.0)
        return self

    @property
    def servers(self) -> list[AuditedServer]:
        """The servers of the newest view, dead or alive."""
        machines = [p.machine for p in self.processes.values() if p.role == "server"]
        newest = max((machine.view for machine in machines), default=-1)
        return [machine for machine in machines if machine.owned and machine.view == newest]

    def continued(self, setup: Setup) -> "Cluster":
        """A later run of the same job, from the newest checkpoint on disk if there is one."""
        later = Cluster(setup, self.server_class, self.worker_class, self.end_s)
        later.disk = dict(self.disk)
        later.resume = max(self.disk, default=None)
        return later


def verify(cluster: Cluster, alone: PartitionSet | None = None) -> None:
    """Assert that a job that ran to its end did what the plan says, and in sync mode its bits.

    Parameters
    ----------
    cluster
    alone
        Result of ``train_alone`` where the caller has it.
    """
    setup, scheduler = cluster.setup, cluster.processes["scheduler"]
    assert scheduler.status == 0, scheduler.reason
    owners = [server.partitions for server in cluster.servers]
    found = merged(owners)
    counts = found.tables[-1]
    keys, rows = counts.snapshot(0)[0]
    assert dict(zip(keys.tolist(), rows[:, 0], strict=True)) == rows_with_key(setup)
    if setup.mode == "sync":
        alone = alone or train_alone(setup)
        assert row_bytes(owners) == row_bytes([alone]), "rows differ from those of one process"

    ledgers = {p: ledger for server in cluster.servers for p, ledger in server.ledger.items()}
    for pass_ in range(setup.passes):
        cluster.auditor.check_complete(pass_, ledgers)
    for server in cluster.servers:
        assert set(server.ledger) == set(server.owned)
    scores = [s.tobytes() for s in cluster.evaluated.scores] if cluster.evaluated else []
    assert scores == scores_alone(setup, found)
