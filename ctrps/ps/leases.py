"""Which worker computes which lane. A lease is a wish: two holders are a waste, never an error."""

import heapq
from collections.abc import Callable, Iterable
from itertools import islice


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


class QueueLeases:
    """Many short lanes, handed out a few at a time: chunks in async mode, and evaluations.

    Parameters
    ----------
    at_once
        Lanes that one worker holds, so that it never runs dry.
    blind
        The workers that cannot compute a lane. It is asked anew in ``open`` and ``deal``.

    Examples
    --------
    >>> leases = QueueLeases(2, lambda lane: frozenset())
    >>> leases.open(range(5), [7, 9])
    >>> leases.held_by(7), leases.held_by(9)
    ([0, 1], [2, 3])
    >>> leases.claim(7, 0)
    >>> leases.held_by(7), leases.unfinished
    ([1, 4], {0, 1, 2, 3, 4})
    """

    def __init__(self, at_once: int, blind: Callable[[int], frozenset[int]]):
        self.at_once = at_once
        self.unfinished: set[int] = set()
        self._blind = blind
        # Heaps of lanes, by who cannot compute them: of most jobs one, for nobody.
        self._queues: dict[frozenset[int], list[int]] = {}
        self._held: dict[int, set[int]] = {}

    def open(self, lanes: Iterable[int], workers: Iterable[int]) -> None:
        """Begin with these lanes to do; the lowest come first."""
        self.unfinished = set(lanes)
        self._held = {worker: set() for worker in workers}
        self._queue(self.unfinished)
        for worker in self._held:
            self._refill(worker)

    def _queue(self, lanes: set[int]) -> None:
        self._queues = {}
        for lane in sorted(lanes):  # an ascending list is a heap
            self._queues.setdefault(self._blind(lane), []).append(lane)

    def _refill(self, worker: int) -> None:
        held = self._held.setdefault(worker, set())
        while len(held) < self.at_once:
            queues = [q for blind, q in self._queues.items() if q and worker not in blind]
            if not queues:
                break
            lane = heapq.heappop(min(queues, key=lambda q: q[0]))
            if lane in self.unfinished:
                held.add(lane)

    def deal(self, workers: Iterable[int]) -> None:
        """Take back the lanes of workers that are gone or blind to them; new workers get some."""
        alive = set(workers)
        queued = {lane for queue in self._queues.values() for lane in queue}
        for worker in set(self._held) - alive:
            queued |= self._held.pop(worker)
        for worker, held in self._held.items():
            blind_to = {lane for lane in held if worker in self._blind(lane)}
            held -= blind_to
            queued |= blind_to
        self._queue(queued)
        for worker in sorted(alive):
            self._refill(worker)

    def claim(self, worker: int, lane: int) -> None:
        """The worker says that it is done with a lane; it gets another at once."""
        self._held.setdefault(worker, set()).discard(lane)
        self._refill(worker)

    def finish(self, lane: int) -> None:
        """A lane is done for certain; nobody needs to compute it any more."""
        self.unfinished.discard(lane)
        for worker, held in self._held.items():
            if lane in held:
                held.discard(lane)
                self._refill(worker)

    def share(self) -> bool:
        """Something is slow: workers for which nothing is left get open lanes of others too."""
        idle = [worker for worker, held in self._held.items() if not held]
        open_lanes = sorted(self.unfinished) if idle else []
        for worker in idle:
            seen = (lane for lane in open_lanes if worker not in self._blind(lane))
            self._held[worker].update(islice(seen, self.at_once))
        return any(self._held[worker] for worker in idle)

    def held_by(self, worker: int) -> list[int]:
        return sorted(self._held.get(worker, ()))

    def holders(self, lane: int) -> list[int]:
        return [worker for worker, held in self._held.items() if lane in held]
