"""New texts made of a field's text: tidied, a list as a set, parts of a time stamp.

Each kernel writes one text behind others and returns where it ends; the caller sees that there is
room. Which fields are derived of which is ``ctrps.data.features``'s.
"""

import math

import numpy as np
from numba import njit

LOWER, STRIP, SQUEEZE = 1, 2, 4
"""Bits of ``tidied``: ASCII letters to lower case; no blanks around; one blank for many."""

HOUR, WEEKDAY = 0, 1
"""Parts of ``time_part``: 0 to 23; 1 (Monday) to 7."""

_BLANK, _ZERO, _COMMA, _A, _Z = (np.uint8(ord(c)) for c in " 0,AZ")
_CASE = np.uint8(32)
_DAY_S, _HOUR_S = 86_400, 3_600
_THURSDAY = 3  # 1970-01-01, days counted from Monday


@njit(cache=True, nogil=True)
def _is_blank(byte):
    return byte == _BLANK or (byte >= 9 and byte <= 13)


@njit(cache=True, nogil=True)
def tidied(data, start, end, how, out, at):
    """Write ``data[start:end]`` without differences that mean nothing.

    Parameters
    ----------
    data : uint8[size], read
    start, end : int
    how : int
        Sum of LOWER, STRIP and SQUEEZE. Blanks are the blank, tab, line ends, form feed and
        vertical tab; bytes beyond ASCII stay as they are.
    out : uint8[room], written
    at : int

    Returns
    -------
    int
        Where the text ends that begins at ``out[at]``.
    """
    if how & STRIP:
        while start < end and _is_blank(data[start]):
            start += 1
        while start < end and _is_blank(data[end - 1]):
            end -= 1
    for i in range(start, end):
        byte = data[i]
        if how & SQUEEZE and _is_blank(byte):
            if i > start and _is_blank(data[i - 1]):
                continue
            byte = _BLANK
        if how & LOWER and byte >= _A and byte <= _Z:
            byte += _CASE
        out[at] = byte
        at += 1
    return at


@njit(cache=True, nogil=True)
def _compare(data, a, a_end, b, b_end):
    """Order of two texts by their bytes: less than, equal to or greater than 0."""
    while a < a_end and b < b_end:
        if data[a] != data[b]:
            return np.int64(data[a]) - np.int64(data[b])
        a += 1
        b += 1
    return (a_end - a) - (b_end - b)


@njit(cache=True, nogil=True)
def _end_of(data, start, end):
    """Where the element of a comma list ends that begins at ``start``."""
    while start < end and data[start] != _COMMA:
        start += 1
    return start


@njit(cache=True, nogil=True)
def set_of(data, start, end, out, at):
    """Write the distinct elements of the comma list ``data[start:end]``, ordered by their bytes.

    Parameters
    ----------
    data : uint8[size], read
    start, end : int
    out : uint8[room], written
    at : int

    Returns
    -------
    int
        Where the text ends that begins at ``out[at]``.
    """
    last, last_end = -1, -1
    while True:
        # The smallest element that is greater than the one written last: lists are short.
        best, best_end = -1, -1
        begin = start
        while begin <= end:
            stop = _end_of(data, begin, end)
            fresh = last < 0 or _compare(data, begin, stop, last, last_end) > 0
            if fresh and (best < 0 or _compare(data, begin, stop, best, best_end) < 0):
                best, best_end = begin, stop
            begin = stop + 1
        if best < 0:
            return at
        if last >= 0:
            out[at] = _COMMA
            at += 1
        for i in range(best, best_end):
            out[at] = data[i]
            at += 1
        last, last_end = best, best_end


@njit(cache=True, nogil=True)
def time_part(time, part, changes, offsets, out, at):
    """Write the hour or the day of the week of a time stamp in a zone.

    Parameters
    ----------
    time : float64
        Seconds since 1970, UTC; NaN gives an empty text.
    part : int
        HOUR or WEEKDAY.
    changes : int64[z], read
        Times from which the zone's offset is another, ascending; before the first it is
        ``offsets[0]`` too.
    offsets : int64[z], read
        Seconds from then on that the zone is ahead of UTC.
    out : uint8[room], written
        Has room for two more.
    at : int

    Returns
    -------
    int
        Where the text ends that begins at ``out[at]``.
    """
    if math.isnan(time):
        return at
    # Beyond this no double is a whole number of seconds, nor a time.
    second = np.int64(math.floor(min(max(time, -1e15), 1e15)))
    zone = max(np.searchsorted(changes, second, side="right") - 1, 0)
    local = second + offsets[zone]
    value = local % _DAY_S // _HOUR_S
    if part == WEEKDAY:
        value = (local // _DAY_S + _THURSDAY) % 7 + 1
    if value >= 10:
        out[at] = _ZERO + np.uint8(value // 10)
        at += 1
    out[at] = _ZERO + np.uint8(value % 10)
    return at + 1
