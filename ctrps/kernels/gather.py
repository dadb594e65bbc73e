"""Texts and lines out of a buffer, one behind the other in any order."""

import numpy as np
from numba import njit

from ctrps.kernels.bits import trailing_zeros
from ctrps.kernels.copying import copy_text
from ctrps.kernels.vectors import address
from ctrps.kernels.words import equal_bytes

NEWLINE = np.uint8(10)


@njit(cache=True, nogil=True)
def gather_texts(data, starts, sizes, out):
    """Copy texts to where they follow each other.

    Parameters
    ----------
    data : uint8[n], read
    starts, sizes : int64[k], read
        Text i is ``data[starts[i]:starts[i] + sizes[i]]``.
    out : uint8[m], written
        ``m`` is the sum of the sizes.
    """
    source, target = address(data), address(out)
    source_end, target_end = source + data.shape[0], target + out.shape[0]
    at = np.int64(0)
    for i in range(starts.shape[0]):
        copy_text(source + starts[i], source_end, target + at, target_end, sizes[i])
        at += sizes[i]


@njit(cache=True, nogil=True)
def newlines(data, places_out):
    """Places of all line ends.

    Parameters
    ----------
    data : uint8[n], read
    places_out : int64[k], the first ones written

    Returns
    -------
    int
        How many there are; only the first k are written.
    """
    size, room, used = np.int64(data.shape[0]), np.int64(places_out.shape[0]), np.int64(0)
    for at in range(0, size - 63, 64):
        found = equal_bytes(address(data) + at, NEWLINE)
        while found != 0:
            if used < room:
                places_out[used] = at + np.int64(trailing_zeros(found))
            used += 1
            found &= found - np.uint64(1)
    for at in range(size - size % 64, size):
        if data[at] == NEWLINE:
            if used < room:
                places_out[used] = at
            used += 1
    return used


@njit(cache=True, nogil=True)
def line_ends(data, starts, ends_out):
    """Where lines end.

    Parameters
    ----------
    data : uint8[n], read
    starts : int64[k], read
    ends_out : int64[k], written
        Of the first line end behind the start, or n.
    """
    size = np.int64(data.shape[0])
    for i in range(starts.shape[0]):
        at = starts[i]
        found = np.uint64(0)
        while found == 0 and at + 64 <= size:
            found = equal_bytes(address(data) + at, NEWLINE)
            at += np.int64(trailing_zeros(found)) if found != 0 else 64
        while found == 0 and at < size and data[at] != NEWLINE:
            at += 1
        ends_out[i] = at


@njit(cache=True, nogil=True)
def copy_lines(data, starts, ends, out):
    """Copy lines to where they follow each other, a line end behind each.

    Parameters
    ----------
    data : uint8[n], read
    starts, ends : int64[k], read
        Line i is ``data[starts[i]:ends[i]]``.
    out : uint8[m], written
        ``m`` is k more than the sum of the lines.
    """
    source, target = address(data), address(out)
    source_end, target_end = source + data.shape[0], target + out.shape[0]
    at = np.int64(0)
    for i in range(starts.shape[0]):
        copy_text(source + starts[i], source_end, target + at, target_end, ends[i] - starts[i])
        at += ends[i] - starts[i]
        out[at] = NEWLINE
        at += 1
