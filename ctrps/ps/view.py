"""A view: which server owns which partition, and how a batch's keys split along it.

Keys of a batch are grouped by partition, so the keys of one owner are a few slices, and one
slice where it owns a run of partitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np


def assign(partitions: int, servers: Sequence[int]) -> list[int]:
    """Owner of each partition: equal runs in the order of ``servers``.

    Examples
    --------
    >>> assign(8, [4, 9, 2])
    [4, 4, 4, 9, 9, 9, 2, 2]
    """
    return [servers[p * len(servers) // partitions] for p in range(partitions)]


class Pair(NamedTuple):
    """An owner and its standby; the number is never used again."""

    owner: int
    standby: int
    number: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A view as the scheduler makes it.

    Attributes
    ----------
    number
        -1 before the first view.
    owners
        Node number of the owner of each partition.
    servers
        All owners, those that own nothing included.
    epoch, restore
        The view in which the present rows began, and the checkpoint from which; -1: from nothing.
    pairs
        Standbys, each of one owner.
    next_pair
        A number of a pair that was never used.
    protected
        Pairs whose standby may take the place of the owner.
    """

    number: int = -1
    owners: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()
    epoch: int = -1
    restore: int = -1
    pairs: tuple[Pair, ...] = ()
    next_pair: int = 0
    protected: tuple[int, ...] = ()

    def begun(self, partitions: int, servers: Sequence[int], restore: int) -> "Placement":
        """The view after this one, on these servers, all of which begin from a checkpoint."""
        number = max(self.number, 0) + 1
        return replace(
            self,
            number=number,
            owners=tuple(assign(partitions, servers)),
            servers=tuple(servers),
            epoch=number,
            restore=restore,
            pairs=(),
            protected=(),
        )

    def promoted(self, pair: Pair) -> "Placement":
        """The view after this one, with the standby of a pair in the place of its owner."""
        new = {pair.owner: pair.standby}
        return replace(
            self,
            number=self.number + 1,
            owners=tuple(new.get(n, n) for n in self.owners),
            servers=tuple(new.get(n, n) for n in self.servers),
        ).parted(pair)

    def paired(self, owner: int, standby: int) -> "Placement":
        """The same view with another pair."""
        pair = Pair(owner, standby, self.next_pair)
        return replace(self, pairs=(*self.pairs, pair), next_pair=self.next_pair + 1)

    def parted(self, pair: Pair) -> "Placement":
        """The same view without a pair."""
        return replace(
            self,
            pairs=tuple(p for p in self.pairs if p != pair),
            protected=tuple(n for n in self.protected if n != pair.number),
        )


class View:
    """A numbered placement of partitions, as a worker uses it.

    Parameters
    ----------
    number
    owners
        Node number of the owner of each partition.
    addresses
        Address of each server, by node number; servers that own nothing are among them.

    Attributes
    ----------
    owners : tuple of int
        Node number of the owner of each partition.
    servers : tuple of int
        All servers, ascending: every one of them is asked in every batch.
    """

    def __init__(self, number: int, owners: Sequence[int], addresses: dict[int, str]):
        self.number = number
        self.owners = tuple(owners)
        self.addresses = addresses
        self.servers = tuple(sorted(addresses))
        self._runs: dict[int, list[tuple[int, int]]] = {node: [] for node in self.servers}
        first = 0
        for node, group in groupby(owners):
            end = first + len(list(group))
            self._runs[node].append((first, end))
            first = end

    def slices(self, starts: np.ndarray, node: int) -> list[slice]:
        """Where the keys of ``node`` lie in a batch whose partitions begin at ``starts``."""
        return [slice(int(starts[a]), int(starts[b])) for a, b in self._runs[node]]

    def take(self, array: np.ndarray, starts: np.ndarray, node: int) -> np.ndarray:
        """The entries of ``array`` (parallel to the keys) that belong to ``node``."""
        slices = self.slices(starts, node)
        if len(slices) == 1:
            return array[slices[0]]
        return np.concatenate([array[s] for s in slices] or [array[:0]])

    def put(self, out: np.ndarray, starts: np.ndarray, node: int, part: np.ndarray) -> None:
        """Undo ``take``: write ``part`` where the keys of ``node`` lie."""
        at = 0
        for chosen in self.slices(starts, node):
            size = chosen.stop - chosen.start
            out[chosen] = part[at : at + size]
            at += size

    def size(self, starts: np.ndarray, node: int) -> int:
        """Keys of a batch that belong to ``node``."""
        return sum(s.stop - s.start for s in self.slices(starts, node))
