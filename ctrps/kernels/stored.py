"""The rows of a store (``ctrps.kernels.store``) taken out of it and put back, to be saved."""

import numpy as np
from numba import njit

from ctrps.kernels.store import ENTRY, HEAD, KEY, LINE, TAIL
from ctrps.kernels.vectors import address, copy, whole


@njit(cache=True, nogil=True)
def held(base, lines, keys_out, entries_out):
    """Keys and entries of a segment, in the order of its lines.

    Parameters
    ----------
    base, lines : int
        The segment.
    keys_out : uint64[n], written
        n entries are in use.
    entries_out : int64[n], written
    """
    n = 0
    for entry in range(base, base + lines * LINE, ENTRY):
        if whole(entry, TAIL) != 0:
            keys_out[n] = np.uint64(whole(entry, KEY))
            entries_out[n] = entry
            n += 1


@njit(cache=True, nogil=True)
def copy_rows(entries, head, tail, rows, save):
    """Whole rows as they are saved: all weights, the state of the head, the state of the tail.

    Parameters
    ----------
    entries : int64[n], read
    head, tail : Rule
    rows : float32[n, width], read or written
    save : bool
        From the entries to ``rows``; otherwise the other way.
    """
    h, m, width = np.int64(head.width), np.int64(tail.width), np.int64(rows.shape[1])
    state = np.int64((head.z != head.at) + (head.n != head.at)) * h
    column = h + m
    for i in range(entries.shape[0]):
        entry, row = entries[i], address(rows) + 4 * width * i
        behind = whole(entry, TAIL)
        _between(entry, HEAD, row, 0, h, save)
        _between(entry, HEAD + h, row, column, state, save)
        if m:
            _between(behind, 0, row, h, m, save)
            _between(behind, m, row, column + state, width - column - state, save)


@njit(cache=True, nogil=True)
def _between(a, at, b, to, width, forth):
    if forth:
        copy(a, at, b, to, width)
    else:
        copy(b, to, a, at, width)
