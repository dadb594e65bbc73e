"""Lines of sample text: where their fields are, hashes of elements, some fields joined to an id.

What becomes of them is ``program``'s.
"""

import numpy as np
from numba import njit

from ctrps.kernels.bits import ones, trailing_zeros
from ctrps.kernels.copying import copy_text
from ctrps.kernels.vectors import address, prefetch
from ctrps.kernels.words import equal_bytes, hash_spans

_RETURN, _HASH = (np.uint8(ord(c)) for c in "\r#")
_NEWLINE, _COMMA, _U0, _U1, _U64 = (np.uint64(i) for i in (10, 44, 0, 1, 64))
_ALL = np.uint64(2**64 - 1)

ROWS_AHEAD, ROW_BYTES = 4, 512
"""Rows between asking for a row's memory and reading it, and how much of it: rows are shuffled."""


@njit(cache=True, nogil=True)
def split_rows(data, rows, separator, columns, starts, ends, found):
    """Find the fields of rows of text that wants no quoting.

    Parameters
    ----------
    data : uint8[size], read
    rows : int64[n], read
        First byte of each row, in any order. A row ends before ``\\n``, ``\\r\\n`` or the end of
        ``data``.
    separator : uint8
    columns : int32[m], read
        For each field of a row its number among the wanted ones, or -1.
    starts, ends : int64[wanted, n], written
        Field j of row i is ``data[starts[j, i]:ends[j, i]]``; not written where a row is short.
    found : int32[n], written
        Fields in each row.
    """
    size = np.uint64(data.shape[0])
    for i in range(rows.shape[0]):
        begin = at = np.uint64(rows[i])
        field = 0
        last = False
        while not last:
            while at < size and data[at] != separator and data[at] != _NEWLINE:
                at += _U1
            last = bool(at >= size or data[at] == _NEWLINE)
            if field < columns.shape[0] and columns[field] >= 0:
                cut = last and at > begin and data[at - _U1] == _RETURN
                starts[columns[field], i] = begin
                ends[columns[field], i] = at - _U1 if cut else at
            field += 1
            at += _U1
            begin = at
        found[i] = field


@njit(cache=True, nogil=True)
def _marks(data, at, byte):
    """Which of the 64 bytes from ``data[at]`` on are ``byte``, the first one as the lowest bit."""
    size = np.uint64(data.shape[0])
    if at + _U64 <= size:
        return equal_bytes(address(data) + np.int64(at), np.uint8(byte))
    found = np.uint64(0)
    for i in range(size - at):
        if data[at + np.uint64(i)] == byte:
            found |= _U1 << np.uint64(i)
    return found


@njit(cache=True, nogil=True)
def _scan_row(data, begin, separator, spots, used, fields):
    """Where the fields and elements of a row begin, of which element ``used`` is the first.

    Returns the next element, -1 if there is no room, and how many fields there are. Behind the
    last one's, ``spots`` has where another element would begin.
    """
    size, most = np.uint64(data.shape[0]), np.uint64(fields.shape[0] - 1)
    at, field = np.uint64(begin), _U0
    spots[used] = at
    fields[0] = used
    last = False
    while not last:
        if used + np.uint64(72) > np.uint64(spots.shape[0]):
            return -1, 0
        line_ends = _marks(data, at, _NEWLINE)
        field_ends = _marks(data, at, separator)
        marks = field_ends | _marks(data, at, _COMMA)
        last = bool(line_ends != 0 or at + _U64 >= size)
        if last:
            end = at + trailing_zeros(line_ends) if line_ends != 0 else min(at + _U64, size)
            # All bits below that of the row's end.
            inside = (_U1 << (end - at)) - _U1 if end - at < _U64 else _ALL
            field_ends &= inside
            marks &= inside
        while field_ends != 0:
            low = field_ends & (_U0 - field_ends)
            field += _U1
            if field <= most:
                fields[field] = used + ones(marks & (low - _U1)) + _U1
            field_ends ^= low
        stop = used + ones(marks)
        behind = at + _U1
        while marks != 0:
            # Some more than there are do no harm: others, or the end, are written over them.
            for _ in range(4):
                used += _U1
                spots[used] = behind + trailing_zeros(marks)
                marks &= marks - _U1
        used = stop
        at += _U64
    cut = end > spots[used] and data[end - _U1] == _RETURN
    used += _U1
    spots[used] = end if cut else end + _U1
    field += _U1
    for j in range(field, most + _U1):
        fields[j] = used
    return np.int64(used), np.int64(field)


@njit(cache=True, nogil=True)
def scan_rows(
    data, rows, separator, columns, starts, ends, firsts, lasts,
    elements, spots, sizes, fields, found,
):  # fmt: skip
    """Find the fields of rows, and hash the elements of every field as if it were a comma list.

    Rows are those of ``split_rows``. A field without a comma has one element, itself.

    Parameters
    ----------
    data, rows, separator, columns, starts, ends, found
        As in ``split_rows``; but what is written of a row that is short has no meaning.
    firsts, lasts : int64[wanted, n], written
        The elements of field j of row i are ``elements[firsts[j, i]:lasts[j, i]]``.
    elements : uint64[room], written
        Hashes of elements.
    spots, sizes : uint64[room], uint32[room], written
        Scratch: where elements begin, and how long they are.
    fields : int32[n, m + 1], written
        Scratch: the first element of each field, and where the last field's end.

    Returns
    -------
    int
        Where the elements end; -1 when there was no room.
    """
    used = np.int64(0)
    for i in range(rows.shape[0]):
        if i + ROWS_AHEAD < rows.shape[0]:
            ahead = address(data) + rows[i + ROWS_AHEAD]
            for line in range(0, ROW_BYTES, 64):
                prefetch(ahead + line)
        first = used
        used, found[i] = _scan_row(data, rows[i], separator, spots, np.uint64(used), fields[i])
        if used < 0 or 2 * used - first > elements.shape[0]:
            return -1
        hash_spans(data, spots[first : used + 1], elements[first:], sizes[first:])
        # What is behind the last element is none.
        used += 1
    for j in range(columns.shape[0]):
        column = columns[j]
        for i in range(rows.shape[0] if column >= 0 else 0):
            one, behind = np.uint64(fields[i, j]), np.uint64(fields[i, j + 1])
            firsts[column, i], lasts[column, i] = one, behind
            starts[column, i], ends[column, i] = spots[one], spots[behind] - _U1
    return used


@njit(cache=True, nogil=True)
def join_fields(data, spans, prefix, out, out_ends):
    """Write ``prefix#field#field…`` of every row, end to end.

    Parameters
    ----------
    data : uint8[size], read
    spans : int64[rows, k, 2], read
        Field j of row i is ``data[spans[i, j, 0]:spans[i, j, 1]]``.
    prefix : uint8[p], read
    out : uint8[size], written
        ``size`` is the sum over rows of p + k + the bytes of the fields.
    out_ends : int64[rows], written
        Row i ends at ``out_ends[i]``.
    """
    at = 0
    source, target = address(data), address(out)
    source_end, target_end = source + data.shape[0], target + out.shape[0]
    for row in range(spans.shape[0]):
        for byte in prefix:
            out[at] = byte
            at += 1
        for column in range(spans.shape[1]):
            out[at] = _HASH
            at += 1
            start, size = spans[row, column, 0], spans[row, column, 1] - spans[row, column, 0]
            copy_text(source + start, source_end, target + at, target_end, size)
            at += size
        out_ends[row] = at
