"""Columns of text tables: hashing keys, reading time stamps, copying fields to a new text.

A column is a buffer and, per row, where its field starts and ends. Splitting rows into fields is
``text``'s, deciding what is joined with what ``ctrps.data.join``'s.
"""

import numpy as np
from numba import njit

from ctrps.kernels.bits import digits_before, eight_bytes, number_before, trailing_zeros
from ctrps.kernels.copying import copy_text
from ctrps.kernels.keys import mix, xxh64
from ctrps.kernels.vectors import address, prefetch, whole
from ctrps.kernels.words import equal_bytes, hash_short

_MINUS, _ZERO, _NINE = (np.uint8(ord(c)) for c in "-09")
TAB, NEWLINE = np.uint8(9), np.uint8(10)
_RETURN, _QUOTE = (np.uint8(ord(c)) for c in '\r"')
_U1 = np.uint64(1)

AHEAD = 8
"""Lines between asking for what a line needs and using it."""

_HASHED = 512
"""Fields that are hashed together."""

_TENS = np.array([10**e for e in range(9)], np.int64)

MAX_TIME = 1 << 40
"""Seconds that a time stamp may be from 1970: some 35,000 years."""


@njit(cache=True, nogil=True)
def _equal(buf, at, byte):
    """Which of the 64 bytes from ``buf[at]`` on are ``byte``, the first one as the lowest bit."""
    if at + 64 <= buf.shape[0]:
        return equal_bytes(address(buf) + at, np.uint8(byte))
    found = np.uint64(0)
    for i in range(buf.shape[0] - at):
        if buf[at + i] == byte:
            found |= _U1 << np.uint64(i)
    return found


@njit(cache=True, nogil=True)
def split_plain(buf, separator, starts, ends):
    """Cut rows of separated fields into the borders of their fields, as long as that is simple.

    Stops before the first row that has a quote, a tab, a return, another number of fields, or no
    line end; or when ``starts`` is full. Rows of one field are left to others, too.

    Parameters
    ----------
    buf : uint8[size], read
    separator : uint8
    starts, ends : int32[r, columns], written
        Field j of row i is ``buf[starts[i, j]:ends[i, j]]``.

    Returns
    -------
    (int, int)
        Where the next row begins, and the rows before it.
    """
    room, columns = starts.shape
    rows = field = begin = done = np.int64(0)
    for at in range(0, buf.shape[0] if columns > 1 else 0, 64):
        line_ends = _equal(buf, at, NEWLINE)
        marks = line_ends | _equal(buf, at, separator)
        other = _equal(buf, at, _QUOTE) | _equal(buf, at, TAB) | _equal(buf, at, _RETURN)
        if other != 0:
            marks &= (other & (np.uint64(0) - other)) - _U1
        while marks != 0:
            bit = trailing_zeros(marks)
            place = at + np.int64(bit)
            last = field == columns - 1
            if last != bool((line_ends >> bit) & _U1):
                return done, rows
            starts[rows, field], ends[rows, field] = begin, place
            begin = place + 1
            field += 1
            if last:
                field, done = np.int64(0), begin
                rows += 1
                if rows == room:
                    return done, rows
            marks &= marks - _U1
        if other != 0:
            break
    return done, rows


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
    sizes = np.empty(min(starts.shape[0], _HASHED), np.uint32)
    for first in range(0, starts.shape[0], _HASHED):
        some = range(first, min(first + _HASHED, starts.shape[0]))
        for i in some:
            size = ends[i] - starts[i]
            short = size < 8 and starts[i] + 8 <= data.shape[0]
            sizes[i - first] = size if short else 8
            out[i] = eight_bytes(data, np.uint64(starts[i])) if short else np.uint64(0)
        # Nothing here that keeps a compiler from using vectors: no branch, no other memory.
        for i in some:
            out[i] = hash_short(out[i], np.uint64(sizes[i - first]))
        for i in some:
            if sizes[i - first] == 8:
                out[i] = xxh64(data, np.uint64(starts[i]), np.uint64(ends[i]), np.uint64(0))


@njit(cache=True, nogil=True)
def take_fields(starts, ends, rows, column, starts_out, ends_out):
    """Borders of the fields of a column in some rows.

    Parameters
    ----------
    starts, ends : integers[rows of the table, columns], read
    rows : int64[n], read
        -1: an empty field.
    column : int
    starts_out, ends_out : int64[n], written
    """
    for i in range(rows.shape[0]):
        if rows[i] >= 0:
            starts_out[i], ends_out[i] = starts[rows[i], column], ends[rows[i], column]
        else:
            starts_out[i] = ends_out[i] = 0


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
        rest = ends[i] - at - 8
        if 0 < rest <= 8 and at + 16 <= data.shape[0]:
            # Ten digits, as they mostly are, in two words.
            first, second = eight_bytes(data, at), eight_bytes(data, at + 8)
            if digits_before(first) == 8 and digits_before(second) >= np.uint64(rest):
                value = np.int64(number_before(first, np.uint64(8))) * _TENS[rest]
                value += np.int64(number_before(second, np.uint64(rest)))
                good[i] = value <= MAX_TIME
                out[i] = value if good[i] else 0
                continue
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
def strips_text(data, starts, ends, first, count, out, begins):
    """Write strips of a table: some adjacent columns of each row, with a tab behind each field.

    Parameters
    ----------
    data : uint8[size], read
    starts, ends : int64[n, columns], read
        Field j of row i is ``data[starts[i, j]:ends[i, j]]``.
    first, count : int
        The columns.
    out : uint8[room], written
        Room for all strips, and for one more of empty fields.
    begins : int64[n + 2], written
        Strip i is ``out[begins[i]:begins[i + 1]]``; the last one is that of empty fields.
    """
    source, target = address(data), address(out)
    source_end, target_end = source + data.shape[0], target + out.shape[0]
    n = starts.shape[0]
    at = np.int64(0)
    for i in range(n + 1):
        begins[i] = at
        for j in range(first, first + count):
            if i < n:
                size = ends[i, j] - starts[i, j]
                copy_text(source + starts[i, j], source_end, target + at, target_end, size)
                at += size
            out[at] = TAB
            at += 1
    begins[n + 1] = at


@njit(cache=True, nogil=True)
def lines_size(strips, rows, starts, ends, order, out):
    """Bytes of the lines that ``lines_text`` writes.

    Parameters
    ----------
    strips, rows, starts, ends, order
        As in ``lines_text``.
    out : int64[n], written
    """
    for place in range(order.shape[0]):
        if place + AHEAD < order.shape[0]:
            for s in range(strips.shape[0]):
                if strips[s, 1]:
                    row = max(rows[strips[s, 0], order[place + AHEAD]], 0)
                    prefetch(strips[s, 2] + row * 8)
        size = np.int64(0)
        for s in range(strips.shape[0]):
            row = rows[strips[s, 0], order[place]]
            if strips[s, 1]:
                row = row if row >= 0 else strips[s, 3]
                size += whole(strips[s, 2], row + 1) - whole(strips[s, 2], row)
            else:
                for c in range(strips[s, 2], strips[s, 2] + strips[s, 3]):
                    size += np.int64(ends[row, c]) - np.int64(starts[row, c]) + 1
        out[place] = size


@njit(cache=True, nogil=True)
def lines_text(strips, rows, data, starts, ends, order, out):
    """Write lines of strips of several tables, with tabs between all fields.

    Parameters
    ----------
    strips : int64[strips, 4], read
        What a line is made of: the table, the address of the text of ``strips_text`` and that of
        its ``begins``, and the row of it that is empty. Or, of the table that is read: the table,
        0, the first column, and the number of columns.
    rows : int64[tables, lines], read
        Row of each table that each line has; -1: none, its fields are empty.
    data : uint8[size], read
    starts, ends : int32[n, columns], read
        Field j of row i of the table that is read is ``data[starts[i, j]:ends[i, j]]``.
    order : int64[n], read
        Lines to write.
    out : uint8[room], written
        Room for ``lines_size`` bytes of each line, and ``WRITTEN_OVER`` more.
    """
    source, target = address(data), address(out)
    source_end, target_end = source + data.shape[0], target + out.shape[0]
    to = np.int64(0)
    for place in range(order.shape[0]):
        if place + AHEAD < order.shape[0]:
            for s in range(strips.shape[0]):
                if strips[s, 1]:
                    row = max(rows[strips[s, 0], order[place + AHEAD]], 0)
                    prefetch(strips[s, 1] + whole(strips[s, 2], row))
        for s in range(strips.shape[0]):
            row = rows[strips[s, 0], order[place]]
            if strips[s, 1]:
                none = strips[s, 3]
                row = row if row >= 0 else none
                begin = strips[s, 1] + whole(strips[s, 2], row)
                end = strips[s, 1] + whole(strips[s, 2], none + 1)
                size = strips[s, 1] + whole(strips[s, 2], row + 1) - begin
                copy_text(begin, end, target + to, target_end, size)
                to += size
                continue
            first, last = strips[s, 2], strips[s, 2] + strips[s, 3]
            together = True
            for c in range(first + 1, last):
                together &= starts[row, c] == ends[row, c - 1] + 1
            if together:
                begin = np.int64(starts[row, first])
                size = np.int64(ends[row, last - 1]) - begin
                copy_text(source + begin, source_end, target + to, target_end, size)
                for c in range(first, last):
                    out[to + np.int64(ends[row, c]) - begin] = TAB
                to += size + 1
            else:
                for c in range(first, last):
                    begin = np.int64(starts[row, c])
                    size = np.int64(ends[row, c]) - begin
                    copy_text(source + begin, source_end, target + to, target_end, size)
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
