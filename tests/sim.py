"""A simulated cluster: the real machines on a seeded network, clock and disk.

One seed gives one history. The network drops, doubles, delays and so reorders; processes crash at
seeded moments and may come back as new ones; a beat may be held up so that a live node is
declared dead. Messages pass through the real encoding. Beside the model under test each job
carries an integer counter: a table whose weight counts the rows of data that hold a key, so a push
that is lost or applied twice shows even where the floats would hide it.

What a run must have come to is in ``verify``; what must hold after every event is in each
machine's ``check`` and in ``Cluster``.
"""

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from ctrps import models
from ctrps.config import JobConfig
from ctrps.kernels import keys as key_kernels
from ctrps.models import Gradient, Minibatch
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
from ctrps.ps.partition import PartitionSet, contribute
from ctrps.ps.plan import DataFile, EvaluationPlan, Manifest, Plan, PlanSettings
from ctrps.ps.scheduler import JobSpec, Scheduler
from ctrps.ps.server import Holding, Server
from ctrps.ps.worker import EVALUATION, Worker


class CountingModel:
    """A model with one more table, whose only weight is the number of rows seen with the key."""

    def __init__(self, model: models.Model):
        self._model = model
        block = replace_optimizer(model.tables[0].parts[0].optimizer)
        part = models.Part("count", 1, block, 0.0, 0, 1)
        self.tables = (*model.tables, models.TableSpec("count", (part,)))

    def __getattr__(self, name: str):
        return getattr(self._model, name)

    def key_sets(self, batch: Minibatch):
        sets = self._model.key_sets(batch)
        return (*sets, sets[0])

    def margins(self, batch, weights):
        return self._model.margins(batch, weights[:2])

    def gradient(self, batch, weights):
        result = self._model.gradient(batch, weights[:2])
        ones = batch.counts.astype(np.float32).reshape(-1, 1)
        return Gradient((*result.tables, ones), result.loss_sum)


def replace_optimizer(block):
    return block.model_copy(update={"kind": "count"})


def _count(part, rows, where, gradient, counts, step_rows):
    rows[where, part.at] += gradient[:, part.at]


def with_counter(model: models.Model) -> CountingModel:
    models.UPDATES["count"] = _count
    models.STATES["count"] = 0
    return CountingModel(model)


@dataclass
class Data:
    """Rows of a few keys each, in files of blocks."""

    keys: list[list[int]]
    labels: list[int]
    files: tuple[DataFile, ...]

    @classmethod
    def drawn(cls, rng: random.Random, rows: int, universe: int) -> "Data":
        keys = [sorted(rng.sample(range(universe), rng.randint(0, 5))) for _ in range(rows)]
        labels = [rng.randint(0, 1) for _ in range(rows)]
        files, left = [], rows
        while left:
            size = min(left, rng.randint(0, rows))
            left -= size
            cut = rng.randint(0, size)
            blocks = tuple(n for n in (cut, size - cut) if n)
            files.append(DataFile(f"f{len(files)}", str(size), blocks))
        return cls(keys, labels, tuple(files))

    def minibatch(self, model, plan: Plan | EvaluationPlan, ref) -> Minibatch:
        first = sum(sum(f.block_rows) for f in self.files[: ref.file])
        first += sum(self.files[ref.file].block_rows[: ref.block])
        rows = [first + int(r) for r in plan.row_numbers(ref)]
        return build_minibatch(
            [self.keys[r] for r in rows], [self.labels[r] for r in rows], model.partition_bits
        )


def build_minibatch(rows: list[list[int]], labels: list[int], bits: int) -> Minibatch:
    """The slow, obvious way from rows of distinct keys to a minibatch with values of 1."""
    distinct = np.array(list(dict.fromkeys(k for row in rows for k in row)), np.uint64)
    partition = np.empty(len(distinct), np.int32)
    key_kernels.partition_of(distinct, bits, partition)
    keys = distinct[np.argsort(partition, kind="stable")]
    starts = np.searchsorted(np.sort(partition), np.arange((1 << bits) + 1)).astype(np.int32)
    place = {int(k): i for i, k in enumerate(keys)}
    index = np.array([place[k] for row in rows for k in row], np.int32)
    counts = np.bincount(index, minlength=len(keys)).astype(np.int32)
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    values = np.ones(len(index), np.float32)
    return Minibatch(keys, starts, counts, indptr, index, values, np.array(labels, np.float32))


@dataclass
class Faults:
    """What the network and the processes do in a run, drawn from its seed."""

    loss: float = 0.0
    double: float = 0.0
    delay_s: float = 0.05
    late: float = 0.0
    late_s: float = 10.0
    crashes: int = 0
    suspicions: int = 0
    kill_role: str = "worker"

    @classmethod
    def drawn(cls, rng: random.Random) -> "Faults":
        return cls(
            loss=rng.choice([0.0, 0.02, 0.1, 0.2]),
            double=rng.choice([0.0, 0.1, 0.3]),
            delay_s=rng.choice([0.01, 0.1, 0.5]),
            late=rng.choice([0.0, 0.02, 0.05]),
            crashes=rng.choice([0, 1, 2, 4]),
            suspicions=rng.choice([0, 0, 1, 2]),
        )


@dataclass
class Setup:
    """A job and its faults, drawn from a seed."""

    seed: int
    workers: int
    servers: int
    lanes: int
    kind: str
    passes: int
    shuffle: str
    batch_rows: int
    partitions: int
    data: Data
    test: Data
    faults: Faults

    @classmethod
    def drawn(cls, seed: int) -> "Setup":
        rng = random.Random(seed)
        rows = rng.choice([1, 7, 40, 103])
        return cls(
            seed=seed,
            workers=rng.randint(1, 5),
            servers=rng.randint(1, 5),
            lanes=rng.randint(1, 8),
            kind=rng.choice(["lr", "fm"]),
            passes=rng.randint(1, 3),
            shuffle=rng.choice(["none", "chunks", "rows"]),
            batch_rows=rng.choice([1, 3, 8]),
            partitions=rng.choice([8, 64]),
            data=Data.drawn(rng, rows, rng.choice([6, 60])),
            test=Data.drawn(rng, rng.choice([0, 5, 30]), 80),
            faults=Faults.drawn(rng),
        )

    def __str__(self) -> str:
        shape = f"W={self.workers} S={self.servers} G={self.lanes} {self.kind}"
        return f"seed {self.seed}: {shape} rows={len(self.data.labels)} {self.faults}"

    @property
    def settings(self) -> PlanSettings:
        return PlanSettings(self.batch_rows, self.lanes, 4, self.shuffle, self.seed)

    @property
    def manifest(self) -> Manifest:
        return Manifest(self.data.files, self.test.files)

    def model(self) -> CountingModel:
        job = JobConfig.model_validate(
            {
                "name": "sim",
                "model": {"kind": self.kind, "dim": 2, "init_scale": 0.1},
                "train": {"partitions": self.partitions, "seed": self.seed},
            }
        )
        return with_counter(models.build(job))


def train_alone(setup: Setup) -> PartitionSet:
    """The oracle: the same plan in one process, step by step."""
    model = setup.model()
    partitions = PartitionSet(model)
    for number in range(setup.passes):
        plan = Plan(setup.data.files, setup.settings, number)
        partitions.turn(number)
        for step in range(plan.steps):
            lanes = {}
            for lane in plan.active(step):
                batch = setup.data.minibatch(model, plan, plan.batch(lane, step))
                keys = tuple(s.keys for s in model.key_sets(batch))
                lanes[lane] = contribute(model, batch, partitions.pull(keys))
            partitions.apply(lanes)
    return partitions


def rows_with_key(setup: Setup) -> Counter[int]:
    """By plain counting: rows of the whole job that hold each key."""
    once = Counter(key for row in setup.data.keys for key in row)
    return Counter({key: n * setup.passes for key, n in once.items()})


def names_of_plan(setup: Setup) -> list[tuple[int, int, int]]:
    """(pass, lane, batch) of every batch of the job, sorted."""
    names = []
    for number in range(setup.passes):
        lengths = Plan(setup.data.files, setup.settings, number).lengths.tolist()
        names += [(number, lane, b) for lane, n in enumerate(lengths) for b in range(n)]
    return names


def scores_alone(setup: Setup, partitions: PartitionSet) -> list[bytes]:
    """Scores of each evaluation lane by a model in one process."""
    plan, scores = EvaluationPlan(setup.test.files), []
    for lane in range(plan.lanes):
        batch = setup.test.minibatch(partitions.model, plan, plan.batch(lane))
        keys = tuple(s.keys for s in partitions.model.key_sets(batch))
        scores.append(partitions.model.margins(batch, partitions.peek(keys)).tobytes())
    return scores


def row_bytes(owners: list[PartitionSet]) -> list[bytes]:
    """Keys and rows of all partitions, in one canonical order."""
    out = []
    for copies in zip(*(owner.snapshot() for owner in owners), strict=True):
        for sets in zip(*copies, strict=True):
            held = [s for s in sets if len(s.keys)]
            assert len(held) <= 1, "a partition is held twice"
            out += [array.tobytes() for s in held for array in s]
    return out


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
        self.interrupt_at: float | None = None
        self.resume: int | None = None
        steps = [Plan(setup.data.files, setup.settings, n).steps for n in range(setup.passes)]
        self.first_step = [sum(steps[:n]) for n in range(setup.passes)]

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
        victim.alive = False
        self.crashed[victim.name] = self.now
        self.log.append(f"{self.now:.1f} crash of {victim.name}")
        if role == "worker":
            delay = self.rng.choice([0.1, 1.0, 8.0])
            self.at(delay, lambda: self.start(f"{victim.name}'{number}", role))

    def _suspect(self) -> None:
        """Hold up a worker: the scheduler declares it dead, and it comes back as a zombie."""
        workers = [p for p in self.processes.values() if p.role == "worker" and p.alive]
        if len(workers) > 1:
            scheduler = self.processes["scheduler"].machine
            node = scheduler.nodes.get(self.rng.choice(workers).machine.node)
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
            plan = EvaluationPlan(self.setup.test.files)
            batch = self.setup.test.minibatch(self.model, plan, ref)
            return worker.on_prepared(effect.token, batch, self.now)
        path = self.setup.data.files[ref.file].path
        if ref.file in self.damaged:
            return worker.fail(f"{path}: record {ref.block} is damaged", 3, self.now)
        plan = Plan(self.setup.data.files, self.setup.settings, effect.pass_)
        batch = self.setup.data.minibatch(self.model, plan, ref)
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


def changed(setup: Setup, **values) -> Setup:
    """The same setup with other values; ``faults`` may be given as a dict of changes."""
    faults = values.pop("faults", {})
    return replace(setup, faults=replace(setup.faults, **faults), **values)
