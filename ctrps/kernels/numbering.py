"""Rows of text to the numbers of their keys: features and the dictionary of a block in one go.

A block's rows come some at a time, while their keys are still in the processor's cache: each key
becomes a number by first touch.

Not here: the features themselves (``program``), and what a block's numbers become (``ctrps.data``).
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ctrps.kernels.machine import BLOCK
from ctrps.kernels.program import run_block
from ctrps.kernels.vectors import address, prefetch

AHEAD = 32
"""Keys between asking for a slot's memory and reading it."""

DONE, MACHINE, NUMBERS = range(3)
"""What ``number_rows`` says: nothing is left to do, or what lacks room: the machine's registers and
scratch keys, or the numbers."""

# 2^64 divided by the golden ratio; the top bits of a product choose a slot (Knuth, 6.4).
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Numbers(NamedTuple):
    """The keys of a block that is being made.

    Attributes
    ----------
    slots : int32[capacity], a power of two
        Hash index: number + 1 of a key, or 0.
    keys : uint64[room], first n
        Distinct, in the order of their first touch.
    counts : int32[room], first n
        How often each occurs.
    local : int32[room], first ``used``
        The number of each key of each row.
    """

    slots: np.ndarray
    keys: np.ndarray
    counts: np.ndarray
    local: np.ndarray


@njit(cache=True, nogil=True, inline="always")
def _shift(slots):
    """64 less the bits of a slot's number."""
    shift, size = np.uint64(64), slots.shape[0]
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    return shift


@njit(cache=True, nogil=True)
def index_numbers(numbers, n):
    """Fill an empty index with the first n keys.

    Parameters
    ----------
    numbers : Numbers, read; ``slots`` all zero on entry, written
        ``n < capacity``.
    n : int
    """
    slots, keys = numbers.slots, numbers.keys
    shift, last = _shift(slots), np.uint64(slots.shape[0] - 1)
    for i in range(n):
        slot = (keys[i] * _ODD) >> shift
        while slots[slot] != 0:
            slot = (slot + np.uint64(1)) & last
        slots[slot] = i + 1


@njit(cache=True, nogil=True)
def number_keys(keys, numbers, n, used):
    """Number some more keys.

    Parameters
    ----------
    keys : uint64[k], read
    numbers : Numbers, read and written
        With room for k more; more slots than n + k.
    n, used : int
        Distinct keys, and keys, so far.

    Returns
    -------
    int
        The new n.
    """
    slots, known, counts, local = numbers
    shift, last = _shift(slots), np.uint64(slots.shape[0] - 1)
    table, count = address(slots), keys.shape[0]
    for i in range(min(AHEAD, count)):
        prefetch(table + 4 * np.int64((keys[i] * _ODD) >> shift))
    for i in range(count):
        if i + AHEAD < count:
            prefetch(table + 4 * np.int64((keys[i + AHEAD] * _ODD) >> shift))
        key = keys[i]
        slot = (key * _ODD) >> shift
        number = slots[slot]
        while number != 0 and known[np.uint32(number - 1)] != key:
            slot = (slot + np.uint64(1)) & last
            number = slots[slot]
        if number == 0:
            known[n] = key
            counts[n] = 0
            n += 1
            slots[slot] = number = np.int32(n)
        counts[np.uint32(number - 1)] += 1
        local[used + i] = number - 1
    return n


@njit(cache=True, nogil=True)
def number_rows(
    program, data, lines, separator, columns, state, registers, keys, output, numbers
):  # fmt: skip
    """Run the program over lines, and number the keys; until they end or there is no more room.

    Parameters
    ----------
    program, data, lines, separator, columns, registers, output
        As in ``run_rows``.
    state : int64[4], read and written
        Where to go on: line, distinct keys, keys, and how many keys did not fit. It begins with
        line 0, and with what ``numbers`` holds.
    keys : uint64[room], written
        Scratch: the keys of ``BLOCK`` rows.
    numbers : Numbers, read and written

    Returns
    -------
    int
        DONE, or what to give more room before it is called again.
    """
    slots, known, _, local = numbers
    while state[0] < lines.shape[0]:
        row, n, used, _ = state
        block = lines[row : row + BLOCK]
        end = run_block(program, data, block, separator, columns, row, registers, keys, 0, output)
        if end < 0:
            return MACHINE
        # A slot in three stays free, at least.
        if (
            3 * (n + end) > 2 * slots.shape[0]
            or used + end > local.shape[0]
            or n + end > known.shape[0]
        ):
            state[3] = end
            return NUMBERS
        state[1] = number_keys(keys[:end], numbers, n, used)
        state[0], state[2] = row + block.shape[0], used + end
    return DONE
