"""A view: which server owns which partition, and how a batch's keys split along it.

Keys of a batch are grouped by partition, so the keys of one owner are a few slices, and one
slice where it owns a run of partitions.
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np


def assign(partitions: int, servers: Sequence[int]) -> list[int]:
    """Owner of each partition: equal runs in the order of ``servers``.

    Examples
    --------
    >>> assign(8, [4, 9, 2])
    [4, 4, 4, 9, 9, 9, 2, 2]
    """
    return [servers[p * len(servers) // partitions] for p in range(partitions)]


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
