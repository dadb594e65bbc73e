"""The scheduler's process: the machine, the folder of the run, and what people are told."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ctrps import models
from ctrps.checkpoint import PartitionFile, keep_best
from ctrps.config import JobConfig, parse_address
from ctrps.ps import messages, told
from ctrps.ps.effects import (
    Commit,
    Effect,
    Effects,
    Evaluated,
    Finish,
    Keep,
    Peer,
    Remember,
    Send,
)
from ctrps.ps.job import JobSpec, Phase
from ctrps.ps.journal import Journal
from ctrps.ps.late import figures
from ctrps.ps.scheduler import Scheduler
from ctrps.runtime import saving
from ctrps.runtime.facts import read_json, write_json
from ctrps.runtime.fused import check_cluster
from ctrps.runtime.inputs import Inputs, open_inputs, plan_settings
from ctrps.runtime.local import badness, test_report
from ctrps.runtime.meter import shares, wire_bytes
from ctrps.runtime.node import Node
from ctrps.runtime.roles import Log, boot_name, limits
from ctrps.runtime.rundir import (
    RunFolder,
    config_digest,
    plan_digest,
)
from ctrps.runtime.security import Guard
from ctrps.runtime.transport import Transport
from ctrps.runtime.watch import Watch
from ctrps.runtime.web import Opened


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
        self.watch = Watch(self.job, self.folder.path, "cluster", self.inputs.rejected)
        self.log = self.watch.noting(log)
        self.manifest = self.folder.resume
        self.journal = self._journal()
        self.test: dict[str, object] | None = None
        self._best_test: dict[str, object] | None = None
        self._spent: dict[str, Any] = {}
        self._next_line, self._written = 0.0, (-1, -1)

    def run(self, ready: Callable[[str], None]) -> Finish:
        """Listen, call ``ready`` with the address, and run the job to its end."""
        boot, setting, bind = boot_name("scheduler"), "cluster.scheduler", self._bind()
        transport = Transport(boot, bind, setting, "scheduler", self.guard, self.log)
        self.transport = transport
        now = time.monotonic()
        # A number below all that later starts count up to, and unlike that of another job.
        term = self.journal.term + 1 if self.journal else int.from_bytes(os.urandom(5)) << 16
        spec = self._spec(self.inputs)
        self.machine = Scheduler(spec, limits(self.job), now, term, self.journal)
        early_stop = self.machine.early_stop
        self._best_test = saving.resume_early_stop(self.folder, early_stop, badness)
        node = Node(self, transport, self._perform, self.machine.on_fault, self.log)
        self.node = node
        try:
            # In the loop: whoever reads the file may send a signal, which the loop must answer.
            node.post(lambda now: self._announce(transport.address, ready))
            with Opened(self.watch, self.log), ThreadPoolExecutor(1) as self._disk:
                finish = node.run([], self._on_signal)
                self.watch.tick(self.machine, self.test, time.monotonic())
            saving.remember(self.folder.path, None)
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

    def _journal(self) -> Journal | None:
        """What an earlier scheduler of this very job remembered, if it did not get to its end."""
        journal = saving.remembered(self.folder.path)
        ours = config_digest(self.job), plan_digest(self.job, self.inputs)
        if journal is None or (journal.config_digest, journal.plan_digest) != ours:
            if (self.folder.path / saving.JOURNAL).exists():
                self.log("the journal there is damaged or of another job: nodes must join anew")
            return None
        self.log(f"going on with the job of an earlier scheduler: pass {journal.pass_}")
        return journal

    def _bind(self) -> tuple[str, int]:
        """Where to listen: where nodes look for the earlier scheduler, if there was one."""
        host, port = parse_address(self.job.cluster.scheduler)
        if self.journal and not port:
            before = read_json(self.folder.path / "scheduler.json").get("address", "")
            return parse_address(before) if before else (host, port)
        return host, port

    def _resume(self) -> tuple[int, int, int] | None:
        if self.manifest is None:
            return None
        if self.journal or saving.owes_figures(self.folder):
            # Whether the pass was over for the job the journal says, or that figures are missing.
            return self.manifest.checkpoint, self.manifest.pass_, self.manifest.step
        return self.manifest.position(self.job.train.passes)

    def _spec(self, inputs: Inputs) -> JobSpec:
        return JobSpec(
            name=self.job.name,
            config_digest=config_digest(self.job),
            servers=self.job.cluster.servers,
            workers=self.job.cluster.workers,
            passes=self.job.train.passes,
            partitions=self.model.partitions,
            settings=plan_settings(self.job),
            manifest=inputs.manifest,
            replicas=self.job.cluster.replicas,
            plan_digest=plan_digest(self.job, inputs),
            resume=self._resume(),
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
        self.watch.tick(self.machine, self.test, now)
        if self.machine.phase is Phase.TRAINING and now >= self._next_line:
            self._write_line(now)
        return effects

    def _write_line(self, now: float) -> None:
        figures = told.progress(self.machine, now)
        place = figures["pass"], figures["step"]
        if figures["step"] and (place != self._written or figures["step"] < figures["steps"]):
            self._next_line, self._written = now + 1.0, place
            sent = {"wire_bytes": wire_bytes(list(self.machine.roster))}
            self.folder.add_metrics({"phase": "train", **figures, **sent})

    def _on_signal(self, number: int, now: float) -> Effects:
        return self.machine.on_interrupt(128 + number, now)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Commit():
                if effect.border:
                    # The last line of a pass, which may have been too short for another.
                    self._write_line(time.monotonic())
                self.node.work(
                    self._disk,
                    lambda: self._commit(effect),
                    lambda _, now: self._committed(effect, now),
                )
            case Remember():
                try:
                    saving.remember(self.folder.path, effect.journal)
                except OSError as error:
                    what = f"{self.folder.path}: cannot write the journal: {error.strerror}"
                    self.node.post(lambda now: self.machine.on_fault(what, 3, now))
            case Evaluated():
                self._judge(effect)
            case Keep():
                keep_best(self.folder.model)
                self._best_test = self.test

    def _committed(self, effect: Commit, now: float) -> Effects:
        effects = self.machine.on_committed(effect.checkpoint, now)
        if effect.border:
            timed = self.machine.clock.train_s, self.machine.timed_rows
            self._spent = shares(list(self.machine.roster), *timed)
        return effects

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
            "rows_per_s": machine.timed_rows / train_s if train_s else 0.0,
            "test": self.test,
            "model": str(self.folder.model),
            "model_digest": self.manifest.model_digest,
            "keys": machine.keys,
            "servers": self.job.cluster.servers,
            "workers": self.job.cluster.workers,
            "consistency": self.job.train.consistency,
            **machine.training.late,
            "staleness": figures(machine.training.late["staleness"]),
            **self._spent,
            **self.watch.account(),
            **self.inputs.account(),
        }
