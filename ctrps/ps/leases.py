"""Which worker computes which lane. A lease is a wish: two holders are a waste, never an error."""

from collections import deque
from collections.abc import Iterable

from ctrps.ps.messages import Arrays


class TrainingLeases:
    """The lanes of a pass, each with one worker, and for a slow lane a second one.

    Examples
    --------
    >>> leases = TrainingLeases(4)
    >>> leases.open([7, 9])
    >>> leases.held_by(7), leases.held_by(9)
    ([0, 2], [1, 3])
    >>> leases.deal([9])
    >>> leases.held_by(9)
    [0, 1, 2, 3]
    """

    def __init__(self, lanes: int):
        self.lanes = lanes
        self._holders: list[list[int]] = [[] for _ in range(lanes)]

    def open(self, workers: Iterable[int]) -> None:
        """A new pass: deal all lanes anew."""
        self._holders = [[] for _ in range(self.lanes)]
        self.deal(workers)

    def deal(self, workers: Iterable[int]) -> None:
        """Lanes of workers that are gone go to those with fewest; then level by single lanes."""
        load = dict.fromkeys(workers, 0)
        for lane, held in enumerate(self._holders):
            self._holders[lane] = [h for h in held if h in load][:1]
            for holder in self._holders[lane]:
                load[holder] += 1
        if not load:
            return
        for held in self._holders:
            if not held:
                self._give(held, load)
        while max(load.values()) - min(load.values()) > 1:
            busiest = max(load, key=lambda w: (load[w], -w))
            lane = max(g for g, held in enumerate(self._holders) if busiest in held)
            load[busiest] -= 1
            self._holders[lane] = []
            self._give(self._holders[lane], load)

    @staticmethod
    def _give(held: list[int], load: dict[int, int]) -> None:
        idlest = min(load, key=lambda w: (load[w], w))
        held.append(idlest)
        load[idlest] += 1

    def steal(self, lanes: list[int], workers: list[int]) -> bool:
        """Give each of ``lanes`` to a second worker, which is first from now on."""
        changed = False
        load = {w: len(self.held_by(w)) for w in workers}
        for lane in lanes:
            others = {w: n for w, n in load.items() if w not in self._holders[lane]}
            if len(self._holders[lane]) != 1 or not others:
                continue
            thief = min(others, key=lambda w: (others[w], w))
            self._holders[lane].insert(0, thief)
            load[thief] += 1
            changed = True
        return changed

    def settle(self) -> None:
        """The step is over: a lane that had two workers stays with the one that took it."""
        self._holders = [held[:1] for held in self._holders]

    def holders(self, lane: int) -> list[int]:
        return self._holders[lane]

    def held_by(self, worker: int) -> list[int]:
        """Lanes of ``worker``, ascending."""
        return [lane for lane, held in enumerate(self._holders) if worker in held]


class EvaluationLeases:
    """The lanes of an evaluation: many, short, handed out a few at a time.

    Parameters
    ----------
    lanes
    at_once
        Lanes that one worker holds, so that it never runs dry.
    """

    def __init__(self, lanes: int, at_once: int = 3):
        self.lanes = lanes
        self.at_once = at_once
        self._queue = deque(range(lanes))
        self._held: dict[int, set[int]] = {}
        self._results: dict[int, Arrays] = {}

    def open(self, workers: Iterable[int]) -> None:
        """Begin, or begin again, from nothing."""
        self._queue = deque(range(self.lanes))
        self._results.clear()
        self._held.clear()
        for worker in workers:
            self.refill(worker)

    def refill(self, worker: int) -> None:
        """Hand the worker lanes until it has enough."""
        held = self._held.setdefault(worker, set())
        while self._queue and len(held) < self.at_once:
            held.add(self._queue.popleft())

    def deal(self, workers: Iterable[int]) -> None:
        """Take back the lanes of workers that are gone; new workers get some."""
        alive = set(workers)
        for worker in set(self._held) - alive:
            self._queue.extendleft(sorted(self._held.pop(worker)))
        for worker in sorted(alive):
            self.refill(worker)

    def share(self) -> bool:
        """Nothing is left to hand out and something is slow: give open lanes to idle workers."""
        open_lanes = sorted(set().union(*self._held.values()))
        idle = [w for w, held in self._held.items() if not held]
        for worker in idle:
            self._held[worker].update(open_lanes[: self.at_once])
        return bool(idle and open_lanes)

    def finish(self, lane: int, result: Arrays) -> None:
        """Keep the first result of a lane; nobody needs to compute it any more."""
        self._results.setdefault(lane, result)
        for held in self._held.values():
            held.discard(lane)

    def held_by(self, worker: int) -> list[int]:
        return sorted(self._held.get(worker, ()))

    def open_lanes(self) -> list[list[int]]:
        """The holders of each lane that is out."""
        lanes = set().union(*self._held.values())
        return [[w for w, held in self._held.items() if lane in held] for lane in sorted(lanes)]

    @property
    def done(self) -> int:
        return len(self._results)

    @property
    def complete(self) -> bool:
        return self.done == self.lanes

    def results(self) -> list[Arrays]:
        """The results in lane order."""
        return [self._results[lane] for lane in range(self.lanes)]
