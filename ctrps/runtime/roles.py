"""Workers and servers as processes: each a state machine with what it needs of the world."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ctrps import models
from ctrps.checkpoint import PartitionFile, read_manifest
from ctrps.config import JobConfig, parse_address
from ctrps.errors import ClusterError
from ctrps.models import Gradient
from ctrps.ps import messages
from ctrps.ps.effects import (
    SCHEDULER,
    Begin,
    Compute,
    Effect,
    Effects,
    Finish,
    Load,
    Peer,
    Prepare,
    Save,
)
from ctrps.ps.late import ModeSettings
from ctrps.ps.member import FENCED, Identity, Limits
from ctrps.ps.partition import PartitionState
from ctrps.ps.server import Server
from ctrps.ps.worker import EVALUATION, Worker
from ctrps.runtime import nonfinite, saving
from ctrps.runtime.fused import check_cluster
from ctrps.runtime.inputs import BatchReader, plan_settings, unseen
from ctrps.runtime.node import TICK_S, Node
from ctrps.runtime.rundir import config_digest
from ctrps.runtime.security import Guard
from ctrps.runtime.transport import Transport
from ctrps.runtime.warm import warm

Log = Callable[[str], None]

SHORT_WORK = 1 << 22
"""Multiplications of a batch that the loop does itself: some milliseconds."""

SHORT_ROWS = 2048
"""Rows of a batch that the loop cuts out of its block itself: less than a millisecond."""


class Place(NamedTuple):
    """What a launcher wants a node to be: its rank, and whether that of a node that has died."""

    rank: int = -1
    replaces: bool = False


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
        server_wait_s=c.server_wait_s,
        linger_s=c.stop_linger_s,
    )


def mode_settings(job: JobConfig) -> ModeSettings:
    """How far apart workers may be, as the machines take it."""
    train = job.train
    return ModeSettings(
        bound=train.staleness if train.consistency == "ssp" else None,
        quorum=train.quorum or -(-3 * train.lanes // 4),
        window_s=train.window_ms / 1000,
        stale_above=train.stale_above,
        refuse_stale=train.stale == "refuse",
        compensation=train.compensation,
    )


def _identity(job: JobConfig, role: str, boot: str, address: str, place: Place) -> Identity:
    check_cluster(job)
    kernels = warm(job)
    protocol = messages.PROTOCOL
    return Identity(role, job.name, config_digest(job), kernels, boot, address, protocol, *place)


def _placed(finish: Finish, node: int, scheduler: str) -> Finish:
    """The end of a process, with the scheduler's address if it never got into the job."""
    if node >= 0 or not finish.exit_status:
        return finish
    where = f"(scheduler at {scheduler}); `ctrps doctor --connect {scheduler}` looks for the cause"
    return Finish(finish.exit_status, f"{finish.reason} {where}")


def boot_name(role: str) -> str:
    return f"{role}-{os.urandom(8).hex()}"


class WorkerProcess:
    """A worker: reads, computes, and goes on as a new node if it was taken for dead."""

    def __init__(self, job: JobConfig, scheduler: str, log: Log, guard: Guard, place: Place):
        self.job = job
        self.guard = guard
        self.place = place
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
            self.place = Place(self.place.rank)

    def _live(self) -> Finish:
        boot = boot_name("worker")
        transport = Transport(boot, role="worker", guard=self.guard, tell=self.log)
        identity = _identity(self.job, "worker", boot, "", self.place)
        now = time.monotonic()
        settings = plan_settings(self.job)
        window = self.job.train.window
        self.machine = Worker(identity, limits(self.job), now, self.model, settings, window)
        self.node = Node(self.machine, transport, self._perform, self.machine.fail, self.log)
        self.machine.measured = self.node.meter
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
                manifest = effect.manifest
                self.node.work(self._reading, lambda: unseen(manifest), self.machine.on_looked)
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
    """A server: holds partitions, reads and writes their files.

    It goes on as a new node, with nothing, if it was taken for dead.
    """

    def __init__(self, job: JobConfig, scheduler: str, log: Log, guard: Guard, place: Place):
        self.job = job
        self.guard = guard
        self.place = place
        self.log = log
        self.scheduler = scheduler
        self.model = models.build(job)
        self.folder = job.output.dir / "model"

    def run(self) -> Finish:
        while True:
            finish = self._live()
            if not finish.reason.startswith(FENCED):
                return finish
            self.log("joining again as a new node")
            self.place = Place(self.place.rank)

    def _live(self) -> Finish:
        boot = boot_name("server")
        bind = parse_address(self.job.cluster.server_bind)
        setting = "cluster.server_bind"
        transport = Transport(boot, bind, setting, "server", self.guard, self.log)
        identity = _identity(self.job, "server", boot, transport.address, self.place)
        now = time.monotonic()
        settings = plan_settings(self.job)
        how = mode_settings(self.job)
        self.machine = Server(identity, limits(self.job), now, self.model, settings, how)
        self.transport = transport
        # In semi a step may have to be applied that soon after its first push.
        tick_s = TICK_S if settings.mode != "semi" else min(max(how.window_s, 0.005), TICK_S)
        driven = (self, transport, self._perform, self.machine.fail, self.log)
        self.node = Node(*driven, tick_s)
        self.machine.measured = self.node.meter
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
                self.node.work(
                    self._disk,
                    lambda: self._load(effect),
                    lambda found, now: self.machine.on_loaded(
                        effect.epoch, found[0], effect.pass_, found[1], now
                    ),
                )
            case Save():
                self.node.work(
                    self._disk,
                    lambda: self._save(effect),
                    lambda files, now: self.machine.on_saved(effect.checkpoint, [*files], now),
                )

    def on_message(self, peer: Peer, message: messages.Message, now: float) -> Effects:
        """What servers say to each other is taken from no other role, where keys tell roles."""
        role = self.transport.role(peer)
        among = isinstance(message, messages.Copy | messages.Copied)
        if role and peer != SCHEDULER and among != (role == "server"):
            self.log(f"dropped a {message.KIND} of a {role}")
            return []
        return self.machine.on_message(peer, message, now)

    def on_tick(self, now: float) -> Effects:
        return self.machine.on_tick(now)

    def _load(self, effect: Load) -> tuple[dict[int, PartitionState], int]:
        manifest = read_manifest(self.folder)
        if manifest.checkpoint != effect.checkpoint:
            raise ClusterError(
                f"checkpoint {manifest.checkpoint} is there, "
                f"the scheduler means {effect.checkpoint}",
                where=str(self.folder),
                hint="all nodes must see the same output.dir",
            )
        step = manifest.step if manifest.pass_ == effect.pass_ else 0
        return saving.read_partitions(self.folder, effect.partitions, effect.pass_), step

    def _save(self, effect: Save) -> list[PartitionFile]:
        return saving.write_partitions(
            self.folder, self.model, effect.partitions, effect.checkpoint, effect.view, effect.node
        )
