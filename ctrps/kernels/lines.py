"""Lines of sample text: where their fields are, hashes of elements, some fields joined to an id.

What becomes of them is ``program``'s.
"""

import numpy as np
from numba import njit

from ctrps.kernels.bits import ones, trailing_zeros
from ctrps.kernels.vectors import address, prefetch
from ctrps.kernels.words import equal_bytes, hash_spans

_RETURN, _HASH = (np.uint8(ord(c)) for c in "\r#")
_NEWLINE, _COMMA, _U1, _U2, _U64 = (np.uint64(i) for i in (10, 44, 1, 2, 64))
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
def scan_rows(data, rows, separator, columns, starts, ends, firsts, lasts, elements, sizes, found):
    """Find the fields of rows, and hash the elements of every field as if it were a comma list.

    Rows are those of ``split_rows``. A field without a comma has one element, itself.

    Parameters
    ----------
    data, rows, separator, columns, starts, ends, found
        As in ``split_rows``.
    firsts, lasts : int64[wanted, n], written
        The elements of field j of row i are ``elements[firsts[j, i]:lasts[j, i]]``.
    elements : uint64[room], written
        Hashes of elements.
    sizes : uint32[room], written
        Scratch.

    Returns
    -------
    int
        Where the elements end; -1 when there was no room.
    """
    size = np.uint64(data.shape[0])
    used = 0
    for i in range(rows.shape[0]):
        if i + ROWS_AHEAD < rows.shape[0]:
            ahead = address(data) + rows[i + ROWS_AHEAD]
            for line in range(0, ROW_BYTES, 64):
                prefetch(ahead + line)
        at = element = begin = np.uint64(rows[i])
        field, first = 0, np.int64(used)
        last = False
        while not last:
            if used + 65 > elements.shape[0]:
                return -1
            line_ends = _marks(data, at, _NEWLINE)
            last = bool(line_ends != 0 or at + _U64 >= size)
            end = at + trailing_zeros(line_ends) if line_ends != 0 else min(at + _U64, size)
            # All bits below that of the row's end.
            inside = (_U1 << (end - at)) - _U1 if end - at < _U64 else _ALL
            field_ends = _marks(data, at, separator) & inside
            element_ends = field_ends | (_marks(data, at, _COMMA) & inside)
            before = used
            marks = element_ends
            while marks != 0:
                stop = at + trailing_zeros(marks)
                elements[np.uint64(used)] = element
                sizes[np.uint64(used)] = stop - element
                used += 1
                element = stop + _U1
                marks &= marks - _U1
            while field_ends != 0:
                bit = trailing_zeros(field_ends)
                stop = before + np.int64(ones(element_ends & ((_U2 << bit) - _U1)))
                if field < columns.shape[0] and columns[field] >= 0:
                    column = np.uint64(columns[field])
                    starts[column, i] = begin
                    ends[column, i] = at + bit
                    firsts[column, i] = first
                    lasts[column, i] = stop
                field += 1
                first = stop
                begin = at + bit + _U1
                field_ends &= field_ends - _U1
            if last:
                cut = end > begin and data[end - _U1] == _RETURN
                end = end - _U1 if cut else end
                elements[used], sizes[used] = element, end - element
                used += 1
                if field < columns.shape[0] and columns[field] >= 0:
                    starts[columns[field], i] = begin
                    ends[columns[field], i] = end
                    firsts[columns[field], i] = first
                    lasts[columns[field], i] = used
                field += 1
            at += _U64
        found[i] = field
    hash_spans(data, elements[:used], sizes[:used])
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
    for row in range(spans.shape[0]):
        for byte in prefix:
            out[at] = byte
            at += 1
        for column in range(spans.shape[1]):
            out[at] = _HASH
            at += 1
            for i in range(spans[row, column, 0], spans[row, column, 1]):
                out[at] = data[i]
                at += 1
        out_ends[row] = at
