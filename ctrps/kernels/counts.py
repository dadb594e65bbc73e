"""Which keys are frequent: counts of keys summed in an index, and the answer for each occurrence.

Keys come as they are spilled: grouped by partition, so that an index holds those of some
partitions only. Not here: files, and how many partitions go together (``ctrps.data.drafts``).
"""

import numpy as np
from numba import njit

from ctrps.kernels.keys import spread
from ctrps.kernels.vectors import address, prefetch

AHEAD = 16
"""Keys between asking for a slot's memory and reading it."""

_U1 = np.uint64(1)


@njit(cache=True, nogil=True)
def add_counts(index, keys, counts, used, first):
    """Add counts of keys, until an index is two thirds full.

    Parameters
    ----------
    index : uint64[capacity, 2], read and written
        A power of two of (key, count); 0 in the second column is free.
    keys : uint64[k], read
    counts : int32[k], read, > 0
    used : int
        Slots that are taken.
    first : int
        The key to begin with.

    Returns
    -------
    used, next : int
        Where to go on with a larger index; ``next`` is k when all are added.
    """
    last = np.uint64(index.shape[0] - 1)
    table, most = address(index), 2 * index.shape[0] // 3
    for i in range(first, keys.shape[0]):
        if used >= most:
            return used, i
        if i + AHEAD < keys.shape[0]:
            prefetch(table + 16 * np.int64(spread(keys[i + AHEAD]) & last))
        slot = spread(keys[i]) & last
        while index[slot, 1] != 0 and index[slot, 0] != keys[i]:
            slot = (slot + _U1) & last
        used += np.int64(index[slot, 1] == 0)
        index[slot, 0] = keys[i]
        index[slot, 1] += np.uint64(counts[i])
    return used, keys.shape[0]


@njit(cache=True, nogil=True)
def move_counts(index, larger):
    """Move all counts to a larger index.

    Parameters
    ----------
    index : uint64[capacity, 2], read
    larger : uint64[more, 2], all zero on entry, written
    """
    last = np.uint64(larger.shape[0] - 1)
    for i in range(index.shape[0]):
        if index[i, 1] != 0:
            slot = spread(index[i, 0]) & last
            while larger[slot, 1] != 0:
                slot = (slot + _U1) & last
            larger[slot, 0], larger[slot, 1] = index[i, 0], index[i, 1]


@njit(cache=True, nogil=True)
def counted_above(index, keys, above, out):
    """Whether each key was counted more often than ``above``.

    Parameters
    ----------
    index : uint64[capacity, 2], read
    keys : uint64[k], read
    above : int, >= 0
    out : bool[k], written
    """
    last = np.uint64(index.shape[0] - 1)
    table, least = address(index), np.uint64(above)
    for i in range(keys.shape[0]):
        if i + AHEAD < keys.shape[0]:
            prefetch(table + 16 * np.int64(spread(keys[i + AHEAD]) & last))
        slot = spread(keys[i]) & last
        while index[slot, 1] != 0 and index[slot, 0] != keys[i]:
            slot = (slot + _U1) & last
        out[i] = index[slot, 1] > least


@njit(cache=True, nogil=True)
def ungrouped(sizes, cursor, keys, kept, keys_out, kept_out):
    """Take the keys of a block from those of several blocks, which are grouped by partition.

    Parameters
    ----------
    sizes : int32[P], read
        Keys of the block in each partition.
    cursor : int64[P], read and written
        Where those of the next block are in each partition.
    keys, kept : uint64[n], bool[n], read
        Keys of all blocks, and what is known of each.
    keys_out, kept_out : uint64[k], bool[k], the first ones written
    """
    at = 0
    for partition in range(sizes.shape[0]):
        first = cursor[partition]
        for i in range(first, first + sizes[partition]):
            keys_out[at], kept_out[at] = keys[i], kept[i]
            at += 1
        cursor[partition] = first + sizes[partition]
