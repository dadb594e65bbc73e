"""Columns of text tables: hashing keys, reading time stamps, copying fields to a new text.

A column is a buffer and, per row, where its field starts and ends. Splitting rows into fields is
``text``'s, deciding what is joined with what ``ctrps.data.join``'s.
"""

import numpy as np
from numba import njit

from ctrps.kernels.keys import mix, xxh64

_MINUS, _ZERO, _NINE = (np.uint8(ord(c)) for c in "-09")
_NO_SEED = np.uint64(0)

MAX_TIME = 1 << 40
"""Seconds that a time stamp may be from 1970: some 35,000 years."""


@njit(cache=True, nogil=True)
def hash_fields(data, starts, ends, out):
    """XXH64 of every field of a column.

    Parameters
    ----------
    data : uint8[size], read
    starts, ends : int64[n], read
        Field i is ``data[starts[i]:ends[i]]``.
    out : uint64[n], written
    """
    for i in range(starts.shape[0]):
        out[i] = xxh64(data, starts[i], ends[i], _NO_SEED)


@njit(cache=True, nogil=True)
def parse_times(data, starts, ends, out, good):
    """Whole seconds, digits with at most a minus sign before them.

    Parameters
    ----------
    data, starts, ends
        As in ``hash_fields``.
    out : int64[n], written
        0 where there is none.
    good : bool[n], written
        False for an empty field, other text, and more than MAX_TIME from 1970.
    """
    for i in range(starts.shape[0]):
        at = starts[i]
        negative = at < ends[i] and data[at] == _MINUS
        if negative:
            at += 1
        value = np.int64(0)
        good[i] = at < ends[i]
        while good[i] and at < ends[i]:
            value = value * 10 + np.int64(data[at]) - 48
            good[i] = data[at] >= _ZERO and data[at] <= _NINE and value <= MAX_TIME
            at += 1
        out[i] = 0 if not good[i] else -value if negative else value


@njit(cache=True, nogil=True)
def copy_fields(data, starts, ends, out, at):
    """Copy every field of a column to its place in another text.

    Parameters
    ----------
    data, starts, ends
        As in ``hash_fields``.
    out : uint8[room], written
    at : int64[n], read
        Field i is written from ``out[at[i]]`` on; places do not overlap.
    """
    for i in range(starts.shape[0]):
        to = at[i]
        for j in range(starts[i], ends[i]):
            out[to] = data[j]
            to += 1


@njit(cache=True, nogil=True)
def deal_rows(first, seed, parts, out):
    """Deal consecutive rows to parts by a hash of seed and row number.

    Parameters
    ----------
    first : int, >= 0
        Number of the first row.
    seed : uint64
    parts : int, >= 1
    out : int64[n], written
        Part of row ``first + i``, 0 to ``parts - 1``.
    """
    for i in range(out.shape[0]):
        out[i] = np.int64(mix(seed, np.uint64(first + i)) % np.uint64(parts))
