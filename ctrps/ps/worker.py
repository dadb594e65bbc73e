"""The worker: lanes of batches, each read, pulled, computed and pushed.

A worker holds no truth. Its lanes come and go with the orders, its position in a lane follows
from what servers answer, and a batch that two workers compute is computed to the same bits. So a
new view, a lost lane and a steal are one thing here: forget the lane, or begin it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ctrps.kernels import checks
from ctrps.models import Gradient, Minibatch, Model
from ctrps.ps.effects import Compute, Connect, Effects, Log, Peer, Prepare, Send
from ctrps.ps.member import Identity, Life, Limits, Member
from ctrps.ps.messages import (
    Arrays,
    Message,
    Orders,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    Status,
    Welcome,
)
from ctrps.ps.plan import BatchRef, EvaluationPlan, Manifest, Plan, PlanSettings
from ctrps.ps.progress import NO_SCORES, Scores
from ctrps.ps.tasks import Lane, Request, Stage, Task, free, waits_for
from ctrps.ps.view import View

EVALUATION = -1
"""The pass of an evaluation lane."""


class Worker(Member):
    """A worker's state machine.

    Parameters
    ----------
    identity, limits, now
        As for every member.
    model
    settings
        Of the plan.
    window
        Most batches between their pull and their push: in async of this worker, in ssp of each
        lane. In sync mode the steps themselves are the bound, and in semi a lane has one.
    """

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        now: float,
        model: Model,
        settings: PlanSettings,
        window: int = 2,
    ):
        super().__init__(identity, limits, now)
        self.model = model
        self.settings = settings
        self.window = 1 if settings.mode == "semi" else window
        self.view: View | None = None
        self.lanes: dict[int, Lane] = {}
        self.rows_pushed = 0
        self.retries = 0
        self._doing: tuple[int, int, str] = (-1, -1, "wait")
        self._manifest: Manifest | None = None
        self._unseen: frozenset[int] | None = None
        self._plan: Plan | None = None
        self._test: EvaluationPlan | None = None
        self._results: dict[int, Arrays] = {}
        self._tokens: dict[int, tuple[int, int]] = {}
        self._requests: dict[int, Request] = {}
        self._last_token = self._last_request = 0

    def on_start(self, now: float) -> Effects:
        return self._tell(now)

    def on_tick(self, now: float) -> Effects:
        effects = self._beat(now)
        if self.life is not Life.WORKING:
            return effects
        for request in self._requests.values():
            if now >= request.due:
                request.interval = min(1.5 * request.interval, self.limits.retry_most_s)
                request.due = now + request.interval
                self.retries += 1
                effects.append(Send(request.server, request.message))
        return effects

    def on_message(self, peer: Peer, message: Message, now: float) -> Effects:
        """Take one message; an answer to no open request is dropped unread."""
        if self.life is Life.ENDED:
            return []
        match message:
            case Welcome():
                return self._welcome(message, now)
            case Orders():
                return self._obey(message, now)
            case Refused(request=-1):
                return self._refused_registration(message)
            case Pulled() | Pushed() | Refused():
                request = self._requests.get(message.request)
                return self._on_answer(request, message, now) if request else []
        return []

    def on_looked(self, unseen: Sequence[int], now: float) -> Effects:
        """The driver has looked for the files of ``Begin``: it does not see those numbers.

        They count training files first, then test files. No lane is begun before that.
        """
        if self.life is not Life.WORKING:
            return []
        assert self._manifest is not None
        self._unseen = frozenset(unseen)
        effects = self._follow(self.orders, now) if self.orders else []
        if not unseen:
            return effects
        what = f"cannot read {self._manifest.listed(unseen)}: others compute what needs them"
        return [Log(what), *effects, *self._tell(now)]

    def on_prepared(self, token: int, batch: Minibatch, now: float) -> Effects:
        """The batch of ``Prepare(token)`` has been read."""
        found = self._take(token)
        if not found:
            return []
        task = found[1]
        task.batch, task.stage = batch, Stage.PREPARED
        return self._move(now)

    def on_computed(self, token: int, result: Gradient | np.ndarray, now: float) -> Effects:
        """The gradient, or the scores float32[rows], of ``Compute(token)``."""
        found = self._take(token)
        if not found:
            return []
        lane, task = found
        assert task.batch is not None
        if isinstance(result, Gradient):
            return self._push(lane, task, result, now)
        self._results[lane.number] = (result, task.batch.labels)
        lane.tasks.clear()
        return self._tell(now)

    def check(self) -> None:
        """Assert every invariant that a worker's state has at all times."""
        for number, request in self._requests.items():
            task = self.lanes[request.lane].tasks[request.task]
            assert number in task.open and request.message.request == number
            assert task.stage in (Stage.ASKING, Stage.SENDING)
        mode = "sync" if self._evaluates else self.settings.mode
        if mode == "async":
            assert free(self.lanes.values(), self.window, pushing=True) >= 0
        for lane in self.lanes.values():
            if mode != "sync":
                assert free((lane,), self.window, pushing=True) >= 0
                continue
            stages = [task.stage for task in lane.tasks.values()]
            assert stages.count(Stage.COMPUTING) <= 1 and stages.count(Stage.ASKING) <= 1
            assert len(stages) <= 4

    # -- orders ---------------------------------------------------------------------------------

    def _joined(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def _obey(self, orders: Orders, now: float) -> Effects:
        if not self._accept(orders, now):
            return []
        if orders.phase == "stop":
            return self._obey_stop(orders)
        return [] if self._unseen is None else self._follow(orders, now)

    def _follow(self, orders: Orders, now: float) -> Effects:
        """Be in the view, pass and phase of the orders, with their lanes; but for those unseen."""
        effects: Effects = []
        if self.view is None or orders.view > self.view.number:
            effects += self._adopt(orders)
        doing = (orders.view, orders.pass_, orders.phase)
        if doing != self._doing:
            self._begin(doing)
        leased = {int(lane): int(batch) for lane, batch in orders.leases if self._sees(lane)}
        for lane in set(self.lanes) - set(leased):
            self._forget(lane)
        for lane, batch in leased.items():
            if lane not in self.lanes:
                effects += self._hold(lane, batch)
        return effects + self._move(now)

    def _sees(self, lane: int) -> bool:
        """The scheduler may not know yet what this worker does not see."""
        manifest, plan = self._manifest, self._test if self._evaluates else self._plan
        if not self._unseen or manifest is None or plan is None:
            return True
        first = len(manifest.train) if self._evaluates else 0
        return self._unseen.isdisjoint(first + file for file in plan.files_of(lane))

    def _adopt(self, orders: Orders) -> Effects:
        if orders.view < 0:
            return []
        addresses = {int(node): str(address) for node, address in orders.addresses}
        self.view = View(orders.view, orders.owners, addresses)
        return [Connect(addresses)]

    def _begin(self, doing: tuple[int, int, str]) -> None:
        """Another view, pass or phase: whatever was in hand belongs to the old one."""
        for lane in list(self.lanes):
            self._forget(lane)
        assert self._manifest is not None
        _, pass_, phase = self._doing = doing
        if phase == "train" and (self._plan is None or self._plan.number != pass_):
            self._plan = Plan(self._manifest.train, self.settings, pass_)
        if phase == "evaluate" and self._test is None:
            self._test = EvaluationPlan(self._manifest.test)

    def _forget(self, lane: int) -> None:
        gone = self.lanes.pop(lane)
        for task in gone.tasks.values():
            self._drop_requests(task)
        self._tokens = {t: found for t, found in self._tokens.items() if found[0] != lane}
        self._results.pop(lane, None)

    def _drop_requests(self, task: Task) -> None:
        for number in task.open:
            del self._requests[number]
        task.open.clear()

    def _hold(self, lane: int, batch: int) -> Effects:
        if self._evaluates:
            self.lanes[lane] = Lane(lane, 1)
            return self._read_ahead(self.lanes[lane])
        assert self._plan is not None
        self.lanes[lane] = Lane(lane, int(self._plan.lengths[lane]), next=batch)
        return self._read_ahead(self.lanes[lane])

    @property
    def _evaluates(self) -> bool:
        return self._doing[2] == "evaluate"

    # -- a batch's way --------------------------------------------------------------------------

    def _read_ahead(self, lane: Lane) -> Effects:
        """Prepare up to a window of batches beyond the front, in sync one."""
        ahead = 1 if self.settings.mode == "sync" else self.window
        effects: Effects = []
        while lane.next < lane.length:
            front = lane.front()
            if front and lane.next > front.number + ahead:
                break
            lane.tasks[lane.next] = Task(lane.next)
            effects.append(self._prepare(lane, lane.next))
            lane.next += 1
        return effects

    def _prepare(self, lane: Lane, number: int) -> Prepare:
        return Prepare(self._token(lane, number), *self._ref(lane, number))

    def _ref(self, lane: Lane, number: int) -> tuple[int, BatchRef]:
        """The pass of a batch, and where its rows lie."""
        if self._evaluates:
            assert self._test is not None
            return EVALUATION, self._test.batch(lane.number)
        assert self._plan is not None
        return self._plan.number, self._plan.batch(lane.number, number)

    def _move(self, now: float, pushing: bool = False) -> Effects:
        """Ask for what is prepared and may be asked: in sync the front, else a window in turn."""
        mode = "sync" if self._evaluates else self.settings.mode
        effects: Effects = []
        left = free(self.lanes.values(), self.window, pushing) if mode == "async" else 0
        for lane in self.lanes.values():
            if mode == "sync":
                front = lane.front()
                if front and front.stage is Stage.PREPARED:
                    effects += self._ask(lane, front, now)
                continue
            if mode != "async":
                # Others may wait for this lane: each has a window of its own.
                left = free((lane,), self.window, pushing)
            for task in lane.tasks.values():
                if left <= 0:
                    break
                # A server takes a batch only after the one before.
                before = lane.tasks.get(task.number - 1)
                if task.stage is Stage.PREPARED and (before is None or before.in_flight):
                    effects += self._ask(lane, task, now)
                    left -= 1
        return effects

    def _ask(self, lane: Lane, task: Task, now: float) -> Effects:
        assert self.view is not None and task.batch is not None
        task.stage = Stage.ASKING
        sets = self.model.key_sets(task.batch)
        task.weights = tuple(
            np.empty((len(s.keys), table.dim), np.float32)
            for s, table in zip(sets, self.model.tables, strict=True)
        )
        view, pass_, _ = self._doing
        purpose = "evaluate" if self._evaluates else "train"
        effects: Effects = []
        for node in self.view.servers:
            keys = tuple(self.view.take(s.keys, s.starts, node) for s in sets)
            pull = Pull(view, self._number(), pass_, lane.number, task.number, purpose, keys)
            task.asked[node] = pull.request
            effects.append(self._request(lane, task, node, pull, now))
        return effects

    def _on_answer(
        self, request: Request, message: Pulled | Pushed | Refused, now: float
    ) -> Effects:
        lane = self.lanes[request.lane]
        task = lane.tasks[request.task]
        if isinstance(message, Refused):
            return self._on_refused(request, lane, message, now)
        if isinstance(message, Pulled) != isinstance(request.message, Pull):
            return self.fail(f"server {request.server} answered another question", 4, now)
        task.open.discard(message.request)
        del self._requests[message.request]
        if isinstance(message, Pulled):
            return self._on_pulled(request, lane, task, message, now)
        return self._on_sent(lane, task, now) if not task.open else []

    def _on_sent(self, lane: Lane, task: Task, now: float) -> Effects:
        """All servers have the batch."""
        del lane.tasks[task.number]
        effects = self._move(now)
        return effects + (self._tell(now) if lane.finished else [])

    def _on_pulled(
        self, request: Request, lane: Lane, task: Task, message: Pulled, now: float
    ) -> Effects:
        assert self.view is not None and task.batch is not None
        sets = self.model.key_sets(task.batch)
        if len(message.weights) != len(sets):
            return self.fail(f"server {request.server} answered with wrong arrays", 4, now)
        parts = self.model.widen(message.weights)
        for out, key_set, part in zip(task.weights, sets, parts, strict=True):
            size = self.view.size(key_set.starts, request.server)
            if part.dtype != np.float32 or part.shape != (size, out.shape[1]):
                return self.fail(f"server {request.server} answered with wrong arrays", 4, now)
            self.view.put(out, key_set.starts, request.server, part)
        task.clocks[request.server] = message.clock
        task.mark = min(task.mark, message.mark)
        if self.settings.mode == "sync":
            self._settle(lane, task.number, request.server)
        if task.open:
            return []
        if self.settings.mode != "sync" and not self._evaluates and task.mark >= task.number:
            return self._restart(lane, task.mark + 1, now)
        return self._compute(lane, task, now)

    def _settle(self, lane: Lane, number: int, server: int) -> None:
        """An answer for batch ``number`` proves that the server has all pushes before it."""
        for earlier in [t for t in lane.tasks.values() if t.number < number]:
            for request in [r for r in earlier.open if self._requests[r].server == server]:
                earlier.open.discard(request)
                del self._requests[request]
            if earlier.stage is Stage.SENDING and not earlier.open:
                del lane.tasks[earlier.number]

    def _compute(self, lane: Lane, task: Task, now: float) -> Effects:
        assert task.batch is not None
        task.stage = Stage.COMPUTING
        purpose = "evaluate" if self._evaluates else "train"
        token = self._token(lane, task.number)
        pass_, ref = self._ref(lane, task.number)
        name = (pass_, lane.number, task.number)
        compute = Compute(token, *name, ref, task.batch, task.weights, purpose)
        return [compute, *self._move(now)]

    def _push(self, lane: Lane, task: Task, result: Gradient, now: float) -> Effects:
        assert self.view is not None and task.batch is not None
        name = f"pass {self._doing[1]} lane {lane.number} batch {task.number}"
        if not all(checks.finite(checks.bits(g)) for g in result.tables):
            return self.fail(f"the gradient of {name} is not finite", 3, now)
        task.stage, task.weights = Stage.SENDING, ()
        self.rows_pushed += task.batch.rows
        sets = self.model.key_sets(task.batch)
        counter = self.view.owners[lane.number % len(self.view.owners)]
        effects: Effects = []
        gradients = self.model.narrow(result.tables)
        for node in self.view.servers:
            push = Push(
                self._doing[0],
                self._number(),
                self._doing[1],
                lane.number,
                task.number,
                task.batch.rows,
                task.clocks[node],
                result.loss_sum,
                task.asked[node],
                (),
                tuple(
                    self.view.take(g, s.starts, node) for g, s in zip(gradients, sets, strict=True)
                ),
                tuple(self.view.take(s.counts, s.starts, node) for s in sets),
                Scores(result.margins, task.batch.labels) if node == counter else NO_SCORES,
            )
            effects.append(self._request(lane, task, node, push, now))
        return effects + self._read_ahead(lane) + self._move(now, pushing=True)

    def _on_refused(self, request: Request, lane: Lane, message: Refused, now: float) -> Effects:
        match message.why:
            case "behind":
                return self._restart(lane, message.value, now)
            case "gap" if message.value not in lane.tasks:
                return self._restart(lane, message.value, now)
            case "gap":
                # The batch before is still on its way; this one goes again after it.
                request.due = min(request.due, now + self.limits.retry_s / 4)
            case "stale":
                # Its weights were too old: the same batch again, with those of now.
                return self._restart(lane, request.task, now)
            case "keys" if isinstance(request.message, Push):
                return [self._with_keys(request, request.message, lane)]
            case "wait":
                request.heard = message.detail
            case "bad":
                what = f"server {request.server} refused a message of this worker"
                return self.fail(f"{what}: {message.detail}", 1, now)
        return []

    def _with_keys(self, request: Request, push: Push, lane: Lane) -> Send:
        """The server has forgotten what was pulled: the same push again, in full."""
        batch = lane.tasks[request.task].batch
        assert self.view is not None and batch is not None
        sets = self.model.key_sets(batch)
        keys = tuple(self.view.take(s.keys, s.starts, request.server) for s in sets)
        request.message = replace(push, asked=-1, keys=keys)
        return Send(request.server, request.message)

    def _restart(self, lane: Lane, number: int, now: float) -> Effects:
        """Begin a lane again at a batch that all servers can answer."""
        self._forget(lane.number)
        effects = self._hold(lane.number, number) + self._move(now)
        return effects + (self._tell(now) if self.lanes[lane.number].finished else [])

    # -- requests and tokens --------------------------------------------------------------------

    def _request(
        self, lane: Lane, task: Task, server: int, message: Pull | Push, now: float
    ) -> Send:
        interval = self.limits.retry_s
        self._requests[message.request] = Request(
            lane.number, task.number, server, message, now, now + interval, interval
        )
        task.open.add(message.request)
        return Send(server, message)

    def _number(self) -> int:
        """A request number that this node never uses twice."""
        self._last_request += 1
        return self._last_request

    def _token(self, lane: Lane, number: int) -> int:
        self._last_token += 1
        self._tokens[self._last_token] = (lane.number, number)
        return self._last_token

    def _take(self, token: int) -> tuple[Lane, Task] | None:
        """The task of a token, once; None if its lane was forgotten meanwhile."""
        found = self._tokens.pop(token, None)
        if found is None:
            return None
        lane = self.lanes[found[0]]
        return lane, lane.tasks[found[1]]

    # -- status ---------------------------------------------------------------------------------

    def _status(self, now: float) -> Status:
        if self._evaluates:
            shown = sorted(self._results)[:4]
        else:
            shown = sorted(g for g, lane in self.lanes.items() if lane.finished)
        return Status(
            node=self.node,
            term=self._term,
            seq=self._seq,
            seen=self.orders.seq if self.orders else -1,
            view=self.view.number if self.view else -1,
            pass_=self._doing[1],
            step=-1,
            ready=True,
            missing=sorted(self.lanes)[:1024],
            saved=-1,
            missed=-1,
            files=[],
            counters={**self.measured, "rows": self.rows_pushed, "retries": self.retries},
            fault=self._fault[0],
            fault_status=self._fault[1],
            waits_for=waits_for(self._requests.values(), now - self.limits.say_s, self.view),
            lanes=shown,
            leaves=self.leaves,
            results=tuple(a for lane in shown if self._evaluates for a in self._results[lane]),
            unseen=(np.array(sorted(self._unseen), np.int32),) if self._unseen else (),
        )
