"""The three kinds of process of a cluster: each a state machine with what it needs of the world."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ctrps import models
from ctrps.checkpoint import PartitionFile, keep_best, read_manifest
from ctrps.config import JobConfig, parse_address
from ctrps.errors import ClusterError
from ctrps.models import Gradient
from ctrps.ps import messages
from ctrps.ps.effects import (
    SCHEDULER,
    Begin,
    Commit,
    Compute,
    Effect,
    Effects,
    Evaluated,
    Finish,
    Keep,
    Load,
    Peer,
    Prepare,
    Save,
    Send,
)
from ctrps.ps.job import JobSpec, Phase
from ctrps.ps.member import FENCED, Identity, Limits
from ctrps.ps.partition import PartitionState
from ctrps.ps.scheduler import Scheduler
from ctrps.ps.server import Server
from ctrps.ps.worker import EVALUATION, Worker
from ctrps.runtime import nonfinite, saving
from ctrps.runtime.fused import check_cluster
from ctrps.runtime.inputs import BatchReader, Inputs, open_inputs, plan_settings
from ctrps.runtime.local import badness, test_report
from ctrps.runtime.meter import shares
from ctrps.runtime.node import Node
from ctrps.runtime.rundir import RunFolder, config_digest, plan_digest, write_json
from ctrps.runtime.security import Guard
from ctrps.runtime.transport import Transport
from ctrps.runtime.warm import warm

Log = Callable[[str], None]

SHORT_WORK = 1 << 22
"""Multiplications of a batch that the loop does itself: some milliseconds."""

SHORT_ROWS = 2048
"""Rows of a batch that the loop cuts out of its block itself: less than a millisecond."""

JOINED = "joined as"
"""What a node's log says once it is in the job; ``launch`` looks for it."""


def limits(job: JobConfig) -> Limits:
    """The job's time limits, as the machines take them."""
    c = job.cluster
    return Limits(
        beat_s=c.beat_s,
        worker_silent_s=c.worker_silent_s,
        server_silent_s=c.server_silent_s,
        start_s=c.start_timeout_s,
        give_up_s=c.give_up_s,
        steal_s=c.steal_after_s,
        linger_s=c.stop_linger_s,
    )


def _identity(job: JobConfig, role: str, boot: str, address: str, rank: int) -> Identity:
    check_cluster(job)
    kernels = warm(job)
    protocol = messages.PROTOCOL
    return Identity(role, job.name, config_digest(job), kernels, boot, address, protocol, rank)


def _placed(finish: Finish, node: int, scheduler: str) -> Finish:
    """The end of a process, with the scheduler's address if it never got into the job."""
    if node >= 0 or not finish.exit_status:
        return finish
    return Finish(finish.exit_status, f"{finish.reason} (scheduler at {scheduler})")


def _boot(role: str) -> str:
    return f"{role}-{os.urandom(8).hex()}"


class WorkerProcess:
    """A worker: reads, computes, and goes on as a new node if it was taken for dead."""

    def __init__(self, job: JobConfig, scheduler: str, log: Log, guard: Guard, rank: int = -1):
        self.job = job
        self.guard = guard
        self.rank = rank
        self.scheduler = scheduler
        self.log = log
        self.model = models.build(job)
        self._readers: tuple[BatchReader, BatchReader] | None = None

    def run(self) -> Finish:
        while True:
            with ThreadPoolExecutor(1) as self._reading, ThreadPoolExecutor(1) as self._computing:
                finish = self._live()
            if not finish.reason.startswith(FENCED):
                return finish
            self.log("joining again as a new node")

    def _live(self) -> Finish:
        boot = _boot("worker")
        transport = Transport(boot, role="worker", guard=self.guard, tell=self.log)
        identity = _identity(self.job, "worker", boot, "", self.rank)
        now = time.monotonic()
        settings = plan_settings(self.job)
        window = self.job.train.window
        self.machine = Worker(identity, limits(self.job), now, self.model, settings, window)
        self.node = Node(self.machine, transport, self._perform, self.machine.fail, self.log)
        self.machine.measured = self.node.meter.sums
        try:
            transport.connect(SCHEDULER, self.scheduler)
            finish = self.node.run(self.machine.on_start(now), self.machine.on_signal)
            return _placed(finish, self.machine.node, self.scheduler)
        finally:
            transport.close()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Begin():
                bits = self.model.partition_bits
                self._readers = (
                    BatchReader(effect.manifest.train, plan_settings(self.job), bits),
                    BatchReader(effect.manifest.test, None, bits),
                )
                self.log(f"{JOINED} worker {effect.rank}, node {effect.node}")
            case Prepare():
                self._prepare(effect)
            case Compute():
                self._start(effect)

    def _prepare(self, effect: Prepare) -> None:
        """Read a batch in another thread, or only its block where cutting it out takes no time.

        Threads that want the interpreter at the same time wait for each other, for longer than
        that takes.
        """

        def read() -> models.Minibatch:
            return self._read(effect)

        def done(batch: models.Minibatch, now: float) -> Effects:
            return self.machine.on_prepared(effect.token, batch, now)

        def loaded(_: None, now: float) -> Effects:
            self.node.at_once(read, done, "read")
            return []

        assert self._readers is not None
        train = self._readers[0]
        if effect.pass_ == EVALUATION or self.job.train.batch_rows > SHORT_ROWS:
            part = "" if effect.pass_ == EVALUATION else "read"
            self.node.work(self._reading, read, done, part)
        elif train.holds(effect.ref):
            self.node.at_once(read, done, "read")
        else:
            self.node.work(self._reading, lambda: train.load(effect.ref), loaded, "read")

    def _start(self, effect: Compute) -> None:
        """Compute in another thread, unless it is done sooner than that thread would begin."""
        part = "" if effect.purpose == "evaluate" else "compute"

        def compute() -> Gradient | np.ndarray:
            return self._compute(effect)

        def done(result: Gradient | np.ndarray, now: float) -> Effects:
            return self.machine.on_computed(effect.token, result, now)

        if len(effect.batch.index) * (1 + self.model.dim) <= SHORT_WORK:
            self.node.at_once(compute, done, part)
        else:
            self.node.work(self._computing, compute, done, part)

    def _read(self, effect: Prepare) -> models.Minibatch:
        assert self._readers is not None
        train, test = self._readers
        reader = test if effect.pass_ == EVALUATION else train
        return reader.minibatch(effect.pass_, effect.ref)

    def _compute(self, effect: Compute) -> Gradient | np.ndarray:
        if effect.purpose == "evaluate":
            return self.model.margins(effect.batch, effect.weights)
        assert self._readers is not None
        name = (effect.pass_, effect.lane, effect.number)
        train = self._readers[0]
        return nonfinite.checked(
            self.model, self.job, train, name, effect.ref, effect.batch, effect.weights
        )


class ServerProcess:
    """A server: holds partitions, reads and writes their files."""

    def __init__(self, job: JobConfig, scheduler: str, log: Log, guard: Guard, rank: int = -1):
        self.job = job
        self.guard = guard
        self.rank = rank
        self.log = log
        self.scheduler = scheduler
        self.model = models.build(job)
        self.folder = job.output.dir / "model"

    def run(self) -> Finish:
        boot = _boot("server")
        bind = parse_address(self.job.cluster.server_bind)
        setting = "cluster.server_bind"
        transport = Transport(boot, bind, setting, "server", self.guard, self.log)
        identity = _identity(self.job, "server", boot, transport.address, self.rank)
        now = time.monotonic()
        settings = plan_settings(self.job)
        staleness = self.job.train.staleness
        self.machine = Server(identity, limits(self.job), now, self.model, settings, staleness)
        self.node = Node(self.machine, transport, self._perform, self.machine.fail, self.log)
        self.machine.measured = self.node.meter.sums
        try:
            transport.connect(SCHEDULER, self.scheduler)
            with ThreadPoolExecutor(1) as self._disk:
                finish = self.node.run(self.machine.on_start(now), self.machine.on_signal)
            return _placed(finish, self.machine.node, self.scheduler)
        finally:
            transport.close()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Begin():
                self.log(
                    f"{JOINED} server {effect.rank}, node {effect.node}, "
                    f"at {self.machine.identity.address}"
                )
            case Load():
                self.node.work(self._disk, lambda: self._load(effect), self._loaded)
            case Save():
                self.node.work(
                    self._disk,
                    lambda: self._save(effect),
                    lambda files, now: self.machine.on_saved(effect.checkpoint, [*files], now),
                )

    def _load(self, effect: Load) -> tuple[dict[int, PartitionState], int, int]:
        manifest = read_manifest(self.folder)
        number, pass_, step = manifest.position(self.job.train.passes)
        if number != effect.checkpoint:
            raise ClusterError(
                f"checkpoint {number} is there, the scheduler means {effect.checkpoint}",
                where=str(self.folder),
                hint="all nodes must see the same output.dir",
            )
        return saving.read_partitions(self.folder, effect.partitions, pass_), pass_, step

    def _loaded(self, found: tuple[dict[int, PartitionState], int, int], now: float) -> Effects:
        states, pass_, step = found
        return self.machine.on_loaded(states, pass_, step, now)

    def _save(self, effect: Save) -> list[PartitionFile]:
        return saving.write_partitions(
            self.folder, self.model, effect.partitions, effect.checkpoint, effect.view, effect.node
        )


class SchedulerProcess:
    """The scheduler: owns the run's folder, its data manifest and its summary."""

    def __init__(self, job: JobConfig, overwrite: bool, log: Log, guard: Guard):
        check_cluster(job)
        self.guard = guard
        self.log = log
        self.began = time.monotonic()
        self.model = models.build(job)
        self.folder = RunFolder(job, overwrite)
        self.job = self.folder.job
        self.inputs = open_inputs(self.job)
        self.folder.begin(self.inputs)
        self.manifest = self.folder.resume
        self.test: dict[str, object] | None = None
        self._best_test: dict[str, object] | None = None
        self._spent: dict[str, Any] = {}
        self._next_line = 0.0

    def run(self, ready: Callable[[str], None]) -> Finish:
        """Listen, call ``ready`` with the address, and run the job to its end."""
        bind = parse_address(self.job.cluster.scheduler)
        boot, setting = _boot("scheduler"), "cluster.scheduler"
        transport = Transport(boot, bind, setting, "scheduler", self.guard, self.log)
        self.transport = transport
        now = time.monotonic()
        self.machine = Scheduler(self._spec(self.inputs), limits(self.job), now)
        early_stop = self.machine.early_stop
        self._best_test = saving.resume_early_stop(self.folder, early_stop, badness)
        node = Node(self, transport, self._perform, self.machine.on_fault, self.log)
        self.node = node
        try:
            # In the loop: whoever reads the file may send a signal, which the loop must answer.
            node.post(lambda now: self._announce(transport.address, ready))
            with ThreadPoolExecutor(1) as self._disk:
                finish = node.run([], self._on_signal)
            if finish.exit_status == 0:
                if self.job.train.patience:
                    self.manifest = saving.restore_best(self.folder)
                    self.test = self._best_test or self.test
                self.folder.write_summary(self.summary())
            return finish
        finally:
            transport.close()
            self.folder.close()

    def _announce(self, address: str, ready: Callable[[str], None]) -> Effects:
        found = {"address": address, "pid": os.getpid(), "job": self.job.name}
        write_json(self.folder.path / "scheduler.json", found)
        ready(address)
        return []

    def _spec(self, inputs: Inputs) -> JobSpec:
        passes = self.job.train.passes
        return JobSpec(
            name=self.job.name,
            config_digest=config_digest(self.job),
            servers=self.job.cluster.servers,
            workers=self.job.cluster.workers,
            passes=passes,
            partitions=self.model.partitions,
            settings=plan_settings(self.job),
            manifest=inputs.manifest,
            resume=self.manifest.position(passes) if self.manifest else None,
            checkpoint_s=self.job.train.checkpoint_s,
            evaluate_each=self.job.train.evaluate == "pass" or self.job.train.patience > 0,
            patience=self.job.train.patience,
        )

    def on_message(self, peer: Peer, message: messages.Message, now: float) -> Effects:
        role, said = self.transport.role(peer), self._said(message)
        if not role or not said or role == said:
            return self.machine.on_message(peer, message, now)
        what = f"its key is that of a {role}, and it says that it is a {said}"
        self.log(f"refused a {message.KIND}: {what}")
        return [Send(peer, messages.Refused(-1, "role", -1, what))]

    def _said(self, message: messages.Message) -> str:
        """The role that the sender has by its own words; empty for a node that is not there."""
        if isinstance(message, messages.Register):
            return message.role
        number = message.node if isinstance(message, messages.Status | messages.Bye) else -1
        node = self.machine.roster.get(number)
        return node.role if node else ""

    def on_tick(self, now: float) -> Effects:
        """The machine's tick, and a line of figures every second while training."""
        effects = self.machine.on_tick(now)
        if self.machine.phase is Phase.TRAINING and now >= self._next_line:
            self._write_line(now)
        return effects

    def _write_line(self, now: float) -> None:
        figures = self.machine.progress(now)
        if figures["step"]:
            self._next_line = now + 1.0
            self.folder.add_metrics({"phase": "train", **figures})

    def _on_signal(self, number: int, now: float) -> Effects:
        return self.machine.on_interrupt(128 + number, now)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Commit():
                if effect.border:
                    machine = self.machine
                    # The last line of a pass, which may have been too short for another.
                    self._write_line(time.monotonic())
                    trained = machine.clock.train_s, machine.trained_rows
                    self._spent = shares(list(machine.roster), *trained)
                self.node.work(
                    self._disk,
                    lambda: self._commit(effect),
                    lambda _, now: self.machine.on_committed(effect.checkpoint, now),
                )
            case Evaluated():
                self._judge(effect)
            case Keep():
                keep_best(self.folder.model)
                self._best_test = self.test

    def _judge(self, effect: Evaluated) -> None:
        """Work out the figures of the test rows; a slow sort must not stop the heartbeat."""
        pass_ = self.machine.pass_

        def judged(report: dict[str, object], now: float) -> Effects:
            self.test = report
            self.folder.add_metrics({"phase": "evaluate", "pass": pass_, "test": report})
            return self.machine.on_scored(badness(report, self.job.train.early_metric), now)

        work = lambda: test_report(list(effect.scores), list(effect.labels))  # noqa: E731
        self.node.work(self._disk, work, judged)

    def _commit(self, effect: Commit) -> None:
        self.manifest = saving.commit(
            self.folder,
            self.model,
            self.inputs.schema,
            plan_digest(self.job, self.inputs),
            [PartitionFile(*file) for file in effect.files],
            (effect.checkpoint, effect.pass_, effect.step),
            border=effect.border,
        )

    def summary(self) -> dict[str, Any]:
        """The figures of the run, as ``summary.json`` holds them."""
        assert self.manifest is not None
        machine = self.machine
        train_s = machine.clock.train_s
        return {
            "rows": machine.trained_rows,
            "passes": machine.pass_ + 1,
            "stopped_early": machine.early_stop.over,
            "steps": machine.trained_steps,
            "wall_s": time.monotonic() - self.began,
            "train_s": train_s,
            "rows_per_s": machine.trained_rows / train_s if train_s else 0.0,
            "test": self.test,
            "model": str(self.folder.model),
            "model_digest": self.manifest.model_digest,
            "keys": machine.keys,
            "servers": self.job.cluster.servers,
            "workers": self.job.cluster.workers,
            "consistency": self.job.train.consistency,
            **self._spent,
            **self.inputs.account(),
        }
