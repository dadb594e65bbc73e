"""The scheduler: who is in the job, which pass and phase it is in, and who computes what.

It is the only machine that declares a node dead, makes a view, or ends the job. What it knows of
progress is a cache of what servers report; leases only spread the work.
"""

from ctrps.ps import told
from ctrps.ps.cuts import Cuts
from ctrps.ps.effects import Effects, Evaluated, Finish, Keep, Log, Peer, Remember, Send
from ctrps.ps.evaluation import Evaluation
from ctrps.ps.fleet import Fleet
from ctrps.ps.job import Clock, EarlyStop, JobSpec, Phase, Poison
from ctrps.ps.journal import Journal
from ctrps.ps.member import Limits
from ctrps.ps.messages import Bye, Message, Refused, Register, Status
from ctrps.ps.roster import Node, Roster
from ctrps.ps.sight import Sight
from ctrps.ps.training import Training

GO_ON = "interrupted; run the same command again to go on"


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
    journal
        What an earlier scheduler of this job remembered: its nodes may still be at work.
    """

    def __init__(
        self,
        spec: JobSpec,
        limits: Limits,
        now: float,
        term: int = 0,
        journal: Journal | None = None,
    ):
        self.spec = spec
        self.limits = limits
        self.term = term
        self.phase = Phase.FORMING
        self.roster = Roster(spec.name, spec.config_digest, limits)
        self.pass_ = spec.resume[1] if spec.resume else 0
        self.sight = Sight(spec.manifest, spec.settings.mode)
        self.training = Training(self.sight.train, spec.settings, self.pass_)
        self.evaluation = Evaluation(self.sight.test)
        self.clock = Clock(now, now, now)
        self.committed = spec.resume
        self.exit_status = 0
        self.reason = ""
        self.early_stop = EarlyStop(spec.patience)
        self.trained_rows = 0
        self.trained_steps = 0
        self.timed_rows = 0
        self.keys = 0
        self.fleet = Fleet(self.roster, limits, spec.servers, spec.replicas, spec.partitions)
        self._servers = spec.servers * (1 + spec.replicas)
        self.poison = Poison(1.5 * limits.beat_s, 3 * limits.worker_silent_s)
        first, sync = spec.resume[0] + 1 if spec.resume else 0, spec.settings.mode == "sync"
        self.cuts = Cuts(first, sync, spec.checkpoint_s, limits.beat_s)
        self.seq = 0
        self.first_term = term
        self._remembered: Journal | None = None
        self._interrupted = 0
        self._stop_by = 0.0
        if journal is not None:
            self._go_on(journal, now)

    def _go_on(self, journal: Journal, now: float) -> None:
        """Take up the job of an earlier scheduler; its servers will say how far they are."""
        self.roster.restore(journal.members, journal.kernel_digest, now)
        self.fleet.go_on(journal.placement, now)
        self.pass_ = journal.pass_
        self.trained_rows, self.trained_steps = journal.rows, journal.steps
        self.first_term = journal.first_term
        self.cuts.next = max(self.cuts.next, journal.next_checkpoint)
        self.training.turn(self.pass_)
        self.training.begun = journal.begun
        if journal.end:
            self.exit_status, self.reason = journal.end
            self.phase, self._stop_by = Phase.STOPPING, now + self.limits.linger_s
        elif self.fleet.placement.number > 0:
            self.phase = Phase.LOADING

    # -- events ---------------------------------------------------------------------------------

    def on_message(self, peer: Peer, message: Message, now: float) -> Effects:
        """Take one message; one that is not for a scheduler is dropped."""
        if self.phase is Phase.ENDED:
            return []
        effects: Effects = []
        match message:
            case Register():
                effects = self._on_register(peer, message, now)
            case Status():
                effects = self._on_status(peer, message, now)
            case Bye():
                effects = self._on_bye(message, now)
        return self._safely(effects)

    def on_tick(self, now: float) -> Effects:
        """Deadlines: silent nodes, waits, stalls, the end."""
        return self._safely(self._on_deadlines(now))

    def _safely(self, effects: Effects) -> Effects:
        """What must survive this process is on disk before anybody hears of it."""
        journal = told.journal(self)
        if journal == self._remembered:
            return effects
        self._remembered = journal
        return [Remember(journal), *effects]

    def _on_deadlines(self, now: float) -> Effects:
        match self.phase:
            case Phase.ENDED:
                return []
            case Phase.STOPPING:
                return self._linger(now)
            case Phase.FORMING:
                return self._wait_for_nodes(now)
        self.roster.excuse(self.clock.stood_still(now, self.limits.beat_s), now)
        if batches := self.poison.found(now, self.training.to_come):
            return self._stop(3, told.poisoned(self, batches), now)
        return self._bury(now) or self._replace_servers(now) or self._mind_progress(now)

    def on_committed(self, checkpoint: int, now: float) -> Effects:
        """The manifest of ``checkpoint`` has its name: the checkpoint exists."""
        closed = self.committed = self.cuts.close(now)
        assert closed[0] == checkpoint
        effects: Effects = [Log(f"checkpoint {checkpoint}: pass {closed[1]} step {closed[2]}")]
        border = closed[1:] == (self.pass_, self.training.plan.steps)
        if border:
            self._count_pass()
        if self._interrupted:
            effects += self._stop(75, GO_ON, now)
        elif self.phase is Phase.LOADING:
            effects += self._replace_servers(now)  # one was lost meanwhile
        elif self.phase is Phase.TRAINING and border:
            effects += self._after_pass(now)
        elif self.phase is Phase.TRAINING:
            self.cuts.order_border()
            effects += self._tell_all()
        return self._safely(effects)

    def _count_pass(self) -> None:
        """The pass is safe: its rows count, each once."""
        if self.clock.pass_s is not None:
            self.clock.train_s += self.clock.pass_s
            self.timed_rows += self.training.plan.rows - self.training.first_rows
        steps, rows = self.training.close()
        self.trained_steps, self.trained_rows = self.trained_steps + steps, self.trained_rows + rows

    def on_scored(self, badness: float | None, now: float) -> Effects:
        """The scores of ``Evaluated`` have been judged.

        ``badness`` is the figure to make small; None, where it has no value, counts for nothing.
        """
        if self.phase is not Phase.EVALUATING:
            return []  # the job has been ended meanwhile
        effects: Effects = []
        if self.early_stop.better(badness) and self.committed:
            effects.append(Keep(self.committed[0]))
        if self.early_stop.over:
            effects.append(Log(f"no better for {self.spec.patience} passes: stopping early"))
        over = self.early_stop.over or self.pass_ + 1 >= self.spec.passes
        effects += self._stop(0, "done", now) if over else self._next_pass(now)
        return self._safely(effects)

    def on_interrupt(self, signal_status: int, now: float) -> Effects:
        """Somebody asks to stop: save a checkpoint at the next step that allows it, then end.

        ``signal_status`` (128 + signal) is the exit status when nothing can be saved.
        """
        if self._interrupted or self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        self._interrupted = signal_status
        gets_on = self.roster.alive("worker") or self.spec.settings.mode != "sync"
        if self.phase is Phase.TRAINING and gets_on:
            self.cuts.soon(self.training.step, self.fleet.reports, self.clock.step_s)
            return self._safely([Log("stopping after a checkpoint"), *self._tell_all()])
        return self._safely(self._stop_unsaved(now))

    def _stop_unsaved(self, now: float) -> Effects:
        """Somebody asked to stop: what the last checkpoint holds is all there is."""
        if self.committed:
            return self._stop(75, GO_ON, now)
        return self._stop(self._interrupted, "interrupted before the first checkpoint", now)

    def on_fault(self, what: str, exit_status: int, now: float) -> Effects:
        """The driver cannot go on (disk, data): end the job."""
        return self._safely(self._stop(exit_status, what, now))

    # -- members --------------------------------------------------------------------------------

    def _on_register(self, peer: Peer, message: Register, now: float) -> Effects:
        refusal = self.roster.refusal(message)
        if self.phase is Phase.STOPPING:
            refusal = ("job", "the job is ending")
        if refusal:
            who = f"{message.role} at {message.address or 'no address'}"
            said = Log(f"refused a {who}: {refusal[1]}")
            return [Send(peer, Refused(-1, refusal[0], -1, refusal[1])), said]
        known = self.roster.known(message.boot)
        if known:
            known.peer, known.heard = peer, now
            return [Send(peer, told.welcome(self, known))]
        if lost := self.roster.replaced(message):
            lost.dead = True
        node = self.roster.admit(peer, message, now)
        effects: Effects = [Send(peer, told.welcome(self, node)), Log(f"{node} joined")]
        if lost:
            effects += self._lost(lost, "it died, and was started again", now)
        if self.phase is Phase.FORMING:
            return effects + self._form_if_complete(now)
        if self.fleet.pair_up():
            effects.append(Log(f"{node} stands by"))
        return effects + self._deal(now)

    def _form_if_complete(self, now: float) -> Effects:
        missing = self.roster.missing(self._servers, self.spec.workers)
        return [] if missing else self._place(now)

    def _place(self, now: float) -> Effects:
        """Another view, on all servers there are: everything goes on from the last checkpoint."""
        self.fleet.place(self.committed[0] if self.committed else -1)
        self.training.back()
        return self._enter(Phase.LOADING, now)

    def _wait_for_nodes(self, now: float) -> Effects:
        waited, limit = now - self.clock.began, self.limits.start_s
        missing = self.roster.missing(self._servers, self.spec.workers)
        if waited >= limit:
            why = f"{missing} did not come within {limit:.0f} s; see their logs"
            return self._stop(4, why, now)
        return self._say(f"waiting for {missing}, {waited:.0f} s of {limit:.0f} s", now)

    def _say(self, words: str, now: float) -> Effects:
        """For people, once in a while."""
        if now - self.clock.said < self.limits.say_s:
            return []
        self.clock.said = now
        return [Log(words)]

    def _bury(self, now: float) -> Effects:
        effects: Effects = []
        for node in self.roster.bury(now):
            effects += self._lost(node, f"silent for {now - node.heard:.1f} s", now)
        return effects

    def _lost(self, node: Node, how: str, now: float) -> Effects:
        if self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        if node.role == "server":
            return self._lost_server(node, how, now)
        effects: Effects = [Log(f"{node} is lost: {how}; its lanes go to others")]
        if self.phase is Phase.TRAINING:
            held = self.training.held_up_by(node.number, self.fleet.reports)
            sure = now - node.heard < self.limits.worker_silent_s
            self.poison.lost(node.number, f"{node}: {how}", sure, held, now)
        return effects + (self._deal(now) if self.phase is not Phase.FORMING else [])

    def _lost_server(self, node: Node, how: str, now: float) -> Effects:
        """Its standby goes on; or, its rows gone, all servers go back to the last checkpoint."""
        effects: Effects = [Log(f"{node} is lost: {how}")]
        view = self.fleet.placement.number
        if not self.fleet.lose(node, now):
            if self.fleet.placement.number == view:
                return effects + self._tell_all()
            return effects + self._hand_over(now)
        if self._interrupted and not self.cuts.committing:
            return effects + self._stop_unsaved(now)
        self.cuts.withdraw()
        back = f"checkpoint {self.committed[0]}" if self.committed else "the beginning"
        effects += [Log(f"going back to {back}"), *self._enter(Phase.LOADING, now)]
        return effects + self._replace_servers(now)

    def _hand_over(self, now: float) -> Effects:
        """A standby has taken its owner's place."""
        self.cuts.withdraw()
        return [Log("its standby goes on"), *self._enter(Phase.LOADING, now)]

    def _let_go(self, node: Node, now: float) -> Effects:
        """A node asks to leave, and goes if nothing is lost with it; if all end soon, with them."""
        if self._interrupted or self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        if node.role == "worker":
            node.released = True
            return self._deal(now) if self.phase is not Phase.FORMING else []
        before, trains = self.fleet.placement, self.phase is Phase.TRAINING
        node.released = self.fleet.let_go(node, trains and not self.cuts.committing)
        effects: Effects = [Log(f"{node} has left")] if node.released else []
        if self.fleet.placement.number != before.number:
            return effects + self._hand_over(now)
        return effects + (self._tell_all() if self.fleet.placement != before else [])

    def _replace_servers(self, now: float) -> Effects:
        """Make another view when the servers that were lost have been replaced, or are not."""
        waits = self.fleet.lost_at is not None and self.phase is Phase.LOADING
        if not waits or self.cuts.committing:
            return []
        if self.fleet.enough(now):
            return self._place(now)
        if why := self.fleet.given_up(now):
            return self._stop(4, why, now)
        return self._say(self.fleet.waits_for(now), now)

    def _on_bye(self, message: Bye, now: float) -> Effects:
        node = self.roster.get(message.node)
        if node is None or node.gone:
            return []
        was_in, node.gone = node.alive, True
        if self.phase is Phase.STOPPING:
            return self._linger(now)
        if not was_in:
            return []
        status, why = message.exit_status, message.reason
        if node.role == "worker" and status == 3:
            return self._stop(3, f"{node}: {why}", now)
        return self._lost(node, f"it ended with status {status}: {why}", now)

    # -- status and orders ----------------------------------------------------------------------

    def _on_status(self, peer: Peer, status: Status, now: float) -> Effects:
        node = self.roster.get(status.node)
        if node is None or not self.first_term <= status.term <= self.term or node.gone:
            return []
        if not node.alive:
            self.poison.speaks(node.number)
            return [Send(peer, told.orders(self, node))]
        node.peer, node.heard = peer, max(node.heard, now)
        if status.term < self.term:
            # It does not know this scheduler yet; what it says may be older than the last one.
            return [Send(peer, told.orders(self, node))]
        if status.seq <= node.seq:
            return []
        known, node.seq, node.status = node.leaves, status.seq, status
        if status.fault and self.phase is not Phase.STOPPING:
            return self._stop(status.fault_status, f"{node}: {status.fault}", now)
        effects = self._on_report(node, status, now)
        if self.phase in (Phase.STOPPING, Phase.ENDED) and effects:
            return effects
        if status.leaves:
            effects += [] if known else [Log(told.leaving(self, node))]
            effects += self._let_go(node, now)
        return [*effects, Send(peer, told.orders(self, node))]

    def _on_report(self, node: Node, status: Status, now: float) -> Effects:
        if node.role == "server":
            self.fleet.learn(node)
        elif unseen := self.sight.learn(str(node), status):
            return [Log(unseen), *self._deal(now)]
        if self.phase is Phase.LOADING and self.fleet.ready(self.pass_):
            return self._loaded(now)
        if self.phase is Phase.TRAINING and node.number in self.fleet.placement.servers:
            return self._on_progress(now)
        if node.role == "server" or status.pass_ != self.pass_:
            return []
        if self.phase is Phase.TRAINING and self.spec.settings.mode == "async":
            self.seq += self.training.claim(node.number, status.lanes)
        if self.phase is Phase.EVALUATING:
            return self._on_scores(status)
        return []

    def _loaded(self, now: float) -> Effects:
        self.training.learn(self.fleet.reports)
        border = (self.pass_, self.training.plan.steps)
        if self.committed and self.committed[1:] == border and self.training.complete:
            self._count_pass()  # if an earlier scheduler did not come to that
            return self._after_pass(now)
        return self._train(now)

    def _train(self, now: float) -> Effects:
        """Open the lanes of the pass; its border checkpoint is ordered with them."""
        if self.training.open(self.roster.numbers("worker"), self.fleet.reports):
            self.clock.training_since = now
        self.clock.pass_s = None
        self.cuts.open(self.pass_, self.training.plan.steps, now)
        if self._interrupted:
            self.cuts.soon(self.training.step, self.fleet.reports, self.clock.step_s)
        return self._enter(Phase.TRAINING, now)

    def _on_progress(self, now: float) -> Effects:
        reports = self.fleet.reports
        if not reports or not self.fleet.ready(self.pass_):
            return []
        before = max(self.training.step, 0)
        if self.training.learn(reports):
            since = now - self.clock.progress
            self.clock.step_s = since / max(self.training.step - before, 1)
            self.clock.progress = now
            self.seq += 1
        self.keys = sum(int(status.counters.get("keys", 0)) for status in reports)
        if self.training.complete and self.clock.pass_s is None:
            self.clock.pass_s = now - self.clock.training_since
        before_cut = self.cuts.current
        step, step_s = self.training.step, self.clock.step_s
        if commit := self.cuts.follow(step, reports, step_s, now):
            return [commit]
        return self._tell_all() if self.cuts.current != before_cut else []

    def _after_pass(self, now: float) -> Effects:
        last = self.pass_ + 1 >= self.spec.passes
        if self.evaluation.plan.lanes and (last or self.spec.evaluate_each):
            self.evaluation.open(self.roster.numbers("worker"))
            return self._enter(Phase.EVALUATING, now)
        return self._stop(0, "done", now) if last else self._next_pass(now)

    def _next_pass(self, now: float) -> Effects:
        self.pass_ += 1
        self.training.turn(self.pass_)
        self.poison.clear()
        if self.fleet.outdated:
            return [Log("servers come or leave: partitions are placed anew"), *self._place(now)]
        return self._enter(Phase.LOADING, now)

    def _on_scores(self, status: Status) -> Effects:
        if self.evaluation.complete:
            return []  # being judged
        self.evaluation.take(status)
        self.seq += 1
        return [Evaluated(*self.evaluation.results())] if self.evaluation.complete else []

    def _deal(self, now: float) -> Effects:
        """The workers have changed: deal the lanes again."""
        workers = self.roster.numbers("worker")
        self.clock.no_worker = None if workers else self.clock.no_worker or now
        self.training.deal(workers)
        self.evaluation.leases.deal(workers)
        unseen = told.nobody_sees(self)
        return [*([Log(unseen)] if unseen else []), *self._tell_all()]

    def _enter(self, phase: Phase, now: float) -> Effects:
        self.phase = phase
        self.clock.progress = now
        return self._tell_all()

    def _tell_all(self) -> Effects:
        self.seq += 1
        return [Send(n.peer, told.orders(self, n)) for n in self.roster if n.alive]

    # -- waiting and the end --------------------------------------------------------------------

    def _mind_progress(self, now: float) -> Effects:
        versions = [(s.view, s.pass_, s.step, s.ready, s.saved) for s in self.fleet.reports]
        marks = (self.phase, *versions, self.evaluation.done, self.cuts.committing)
        stalled = self.clock.stalled(marks, now)
        since = self.clock.no_worker
        if since is not None and now - since >= self.limits.give_up_s:
            return self._stop(4, f"no worker for {now - since:.0f} s", now)
        if stalled >= self.limits.give_up_s:
            return self._stop(4, f"no progress for {stalled:.0f} s: {told.waits_for(self)}", now)
        steals = stalled >= max(self.limits.steal_s, 4 * self.clock.step_s)
        effects = self._steal() if steals else []
        if stalled >= self.limits.say_s:
            effects += self._say(f"no progress for {stalled:.0f} s: {told.waits_for(self)}", now)
        return effects

    def _steal(self) -> Effects:
        """Give what the job waits for to other workers, too."""
        if self.phase is Phase.EVALUATING:
            return self._tell_all() if self.evaluation.leases.share() else []
        if self.phase is not Phase.TRAINING:
            return []
        if not (lanes := self.training.steal(self.fleet.reports, self.roster.numbers("worker"))):
            return []
        return [Log(f"lanes {lanes} are slow; another worker takes them too"), *self._tell_all()]

    def _stop(self, exit_status: int, reason: str, now: float) -> Effects:
        if self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        self.exit_status, self.reason = exit_status, reason
        self._stop_by = now + self.limits.linger_s
        return [*self._enter(Phase.STOPPING, now), *self._linger(now)]

    def _linger(self, now: float) -> Effects:
        """End when all have said goodbye, or when the time for it is over."""
        if now < self._stop_by and not all(n.dead or n.gone for n in self.roster):
            return []
        self.phase = Phase.ENDED
        return [Finish(self.exit_status, self.reason)]

    def check(self) -> None:
        """Assert every invariant that the scheduler's state has at all times."""
        if self.phase is Phase.TRAINING:
            workers = set(self.roster.numbers("worker"))
            lanes = range(len(self.training.plan.lengths))
            assert {h for g in lanes for h in self.training.leases.holders(g)} <= workers
            assert self.cuts.current is not None
        assert not self.cuts.committing or self.cuts.current is not None
        assert self.training.step <= self.training.plan.steps
