"""Columns of text tables: hashing keys, reading time stamps, copying fields to a new text.

A column is a buffer and, per row, where its field starts and ends. Splitting rows into fields is
``text``'s, deciding what is joined with what ``ctrps.data.join``'s.
"""

import numpy as np
from numba import njit

from ctrps.kernels.copying import copy_text
from ctrps.kernels.keys import mix, xxh64
from ctrps.kernels.vectors import address, prefetch

_MINUS, _ZERO, _NINE = (np.uint8(ord(c)) for c in "-09")
TAB, NEWLINE = np.uint8(9), np.uint8(10)
_NO_SEED = np.uint64(0)

AHEAD = 8
"""Lines between asking for what a line needs and using it."""

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
def lines_size(held, starts, ends, own_starts, own_ends, bases, widths, rows, columns, order, out):
    """Bytes of the lines that ``lines_text`` writes.

    Parameters
    ----------
    held, starts, ends, own_starts, own_ends, bases, widths, rows, columns, order
        As in ``lines_text``.
    out : int64[n], written
    """
    for place in range(order.shape[0]):
        if place + AHEAD < order.shape[0]:
            for table in range(held):
                row = max(rows[table, order[place + AHEAD]], 0)
                at = (bases[table] + row * widths[table]) * 8
                prefetch(address(starts) + at)
                prefetch(address(ends) + at)
        size = columns.shape[0]
        for c in range(columns.shape[0]):
            table = columns[c, 0]
            row = rows[table, order[place]]
            at = bases[table] + row * widths[table] + columns[c, 1]
            if row >= 0 and table < held:
                size += ends[at] - starts[at]
            elif row >= 0:
                size += own_ends[at] - own_starts[at]
        out[place] = size


@njit(cache=True, nogil=True)
def lines_text(
    held,
    data,
    starts,
    ends,
    own_data,
    own_starts,
    own_ends,
    bases,
    widths,
    rows,
    columns,
    order,
    out,
):
    """Write lines of columns of several tables, with tabs between them.

    Parameters
    ----------
    held : int
        How many of the tables lie in ``data``; the others lie in ``own_data``.
    data, own_data : uint8[size], read
    starts, ends, own_starts, own_ends : int64[fields], read
        Borders of fields: number ``bases[t] + row * widths[t] + column`` is that of table t.
    bases, widths : int64[tables], read
    rows : int64[tables, lines], read
        Row of each table that each line has; -1: none, its fields are empty.
    columns : int64[columns, 2], read
        Table and column of each field of a line.
    order : int64[n], read
        Lines to write.
    out : uint8[room], written
        Room for ``lines_size`` bytes of each line.
    """
    held_at, own_at, target = address(data), address(own_data), address(out)
    held_end, own_end = held_at + data.shape[0], own_at + own_data.shape[0]
    target_end = target + out.shape[0]
    to = np.int64(0)
    for place in range(order.shape[0]):
        if place + AHEAD < order.shape[0]:
            for table in range(held):
                row = max(rows[table, order[place + AHEAD]], 0)
                prefetch(held_at + starts[bases[table] + row * widths[table]])
        for c in range(columns.shape[0]):
            table = columns[c, 0]
            row = rows[table, order[place]]
            at = bases[table] + row * widths[table] + columns[c, 1]
            if row >= 0 and table < held:
                size = ends[at] - starts[at]
                copy_text(held_at + starts[at], held_end, target + to, target_end, size)
                to += size
            elif row >= 0:
                size = own_ends[at] - own_starts[at]
                copy_text(own_at + own_starts[at], own_end, target + to, target_end, size)
                to += size
            out[to] = TAB
            to += 1
        out[to - 1] = NEWLINE


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
