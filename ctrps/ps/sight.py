"""Which files of the manifest workers see, and so who may compute what.

A worker looks once, when it is welcome, and tells with every status which files it does not see.
Before it has said so it counts as seeing all: it takes no lane that it cannot read.
"""

from collections.abc import Iterable

from ctrps.ps.messages import Status
from ctrps.ps.plan import DataFile, EvaluationPlan, Manifest, Plan, listed

NOBODY: frozenset[int] = frozenset()


class FilesSeen:
    """Who sees which files of a part of the manifest: those to train on, or those to test on.

    Files without rows do not count.

    Examples
    --------
    >>> seen = FilesSeen((DataFile("a", "1", (8,)), DataFile("b", "2", (8,))))
    >>> seen.learn(5, [1])
    >>> seen.blind([0]), seen.blind([0, 1]), seen.all_seen_by([4, 5])
    (frozenset(), frozenset({5}), [4])
    >>> seen.dark([4, 5]), seen.dark([5]), seen.dark([])
    (frozenset(), frozenset({1}), frozenset())
    """

    def __init__(self, files: tuple[DataFile, ...]):
        self.files = files
        self._unseen: dict[int, frozenset[int]] = {}
        self._blind: dict[int, frozenset[int]] = {}

    def learn(self, worker: int, unseen: Iterable[int]) -> None:
        """A worker does not see these files, by their numbers in this part; said once."""
        self._unseen[worker] = frozenset(f for f in unseen if self.files[f].block_rows)
        for file in self._unseen[worker]:
            self._blind[file] = self._blind.get(file, NOBODY) | {worker}

    def blind(self, files: Iterable[int]) -> frozenset[int]:
        """Workers that do not see all of these files."""
        if not self._blind:
            return NOBODY
        return NOBODY.union(*(self._blind.get(file, NOBODY) for file in files))

    def unseen(self, worker: int) -> list[str]:
        """Paths of the files that a worker does not see."""
        return [self.files[file].path for file in sorted(self._unseen.get(worker, ()))]

    def all_seen_by(self, workers: Iterable[int]) -> list[int]:
        """Those of the workers that see every file."""
        return [worker for worker in workers if not self._unseen.get(worker)]

    def dark(self, workers: Iterable[int]) -> frozenset[int]:
        """Files that none of the workers sees; none if there are no workers."""
        unseen = [self._unseen.get(worker, NOBODY) for worker in workers]
        return NOBODY.union(*unseen[:1]).intersection(*unseen)

    def nobody_sees(
        self, workers: Iterable[int], plan: Plan | EvaluationPlan, lanes: Iterable[int]
    ) -> str:
        """In words: the files of these lanes that none of the workers sees; empty if none are."""
        if not (dark := self.dark(workers)):
            return ""
        left = {file for lane in lanes for file in plan.files_of(lane)}
        named = [self.files[file].path for file in sorted(dark & left)]
        return f"no worker sees {listed(named)}; start one where it can be read" if named else ""


class Sight:
    """What the scheduler knows of all that workers see.

    Attributes
    ----------
    train, test : FilesSeen
    """

    def __init__(self, manifest: Manifest, mode: str):
        self.train = FilesSeen(manifest.train)
        self.test = FilesSeen(manifest.test)
        self._mode = mode
        self._told: set[int] = set()

    def learn(self, name: str, status: Status) -> str:
        """Take in what a worker says; in words what it does not see, if that is new."""
        if not status.unseen or status.node in self._told:
            return ""
        self._told.add(status.node)
        first_test = len(self.train.files)
        numbers = range(first_test + len(self.test.files))
        told = {int(n) for n in status.unseen[0].ravel().tolist() if n in numbers}
        self.train.learn(status.node, [n for n in told if n < first_test])
        self.test.learn(status.node, [n - first_test for n in told if n >= first_test])
        return self._words(name, self.train.unseen(status.node), self.test.unseen(status.node))

    def _words(self, name: str, train: list[str], test: list[str]) -> str:
        if not train + test:
            return ""
        does = f"{name} does not see {listed(train + test)}: "
        if not train or self._mode == "async":
            return does + "it computes the others"
        return (
            f"{does}it trains nothing, as in {self._mode} a lane goes through all training files; "
            "with train.consistency=async it would train on the others"
        )
