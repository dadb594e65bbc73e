"""Feature extraction as a small program: one kernel that computes all features of a row.

``ctrps.data.program`` compiles a features file to a list of instructions over registers; the
kernel here runs that list once per row, so that no features file needs code of its own and every
field or list element is hashed once, however many features read it. A cross is a mix of hashes,
never a joined text.

Not here: reading files, finding lines, what to do about a bad row.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from ctrps.kernels.keys import mix, xxh64
from ctrps.kernels.prefix import prefix_number
from ctrps.kernels.text import parse_label

# Operations. Text registers hold the hash of a text; `number` and `list` registers are numbered
# like the columns they are read from.
TEXT = 0  # text[to] = hash of column a
LIST = 1  # list[a] = hashes of the elements of column a
NUMBER = 2  # number[a] = column a as a number, NaN when empty
BUCKET = 3  # text[to] = hash of the bucket of number[a] under break lines b
HIT = 4  # text[to] = hash of "1" when text[a] is in list[b], else of "0"
MIX = 5  # text[to] = mix(seed, text[a])
CROSS = 6  # text[to] = mix(text[a], text[b])
KEY = 7  # slot `to` gets the key mix(seed, text[a])
KEYS = (
    8  # slot `to` gets the key mix(seed, e) of every e of list[a]; if b >= 0, but for e = text[b]
)
PAIR = 9  # slot `to` gets the key mix(text[a], text[b])
DENSE = 10  # dense[to] = number[a]
LOG = 11  # dense[to] = ln(number[a] + 1)
SQRT = 12  # dense[to] = √(number[a] + 1)
LABEL = 13  # label = column a
SKIP = 14  # when text[a] equals text[b], the next `to` instructions are passed over

# Reasons why a row is bad, besides those of `ctrps.kernels.prefix`.
LOG_DOMAIN = 3
SQRT_DOMAIN = 4
TOO_LARGE = 5
NOT_A_LABEL = 6

EMPTY = 0
FIRST_NUMBER = 1
"""The first text registers are constants: the hash of the empty text, then from this register on
the hashes of the decimal texts of -1, 0, 1, …"""

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_NO_SEED = np.uint64(0)
_FULL = -1

_NEWLINE, _RETURN, _COMMA, _HASH = (np.uint8(ord(c)) for c in "\n\r,#")


class Program(NamedTuple):
    """A compiled features file.

    ``code`` int32[n, 4] rows of (operation, a, b, to); ``seeds`` uint64[n] the namespace of an
    instruction, or 0; ``breaks`` float32[m] all break lines, list b of them being
    ``breaks[break_starts[b]:break_starts[b + 1]]``; ``constants`` uint64[c] what the first text
    registers hold; ``text_registers`` how many there are.
    """

    code: np.ndarray
    seeds: np.ndarray
    breaks: np.ndarray
    break_starts: np.ndarray
    constants: np.ndarray
    text_registers: int


class Registers(NamedTuple):
    """What one row is worked out in; contents mean nothing between rows, but for constants.

    ``text`` uint64[text_registers], beginning with the constants; ``numbers`` float64[columns];
    ``lists`` int64[columns, 2] first element and end in ``elements`` uint64[room], which holds
    the list elements of the longest row.
    """

    text: np.ndarray
    numbers: np.ndarray
    lists: np.ndarray
    elements: np.ndarray


class Output(NamedTuple):
    """Where rows go: ``counts`` int32[rows, slots], ``dense`` float32[rows, d], ``labels``
    float32[rows], ``bad`` int32[rows, 2] of (reason or 0, column), all zero on entry but for
    labels, which are NaN.
    """

    counts: np.ndarray
    dense: np.ndarray
    labels: np.ndarray
    bad: np.ndarray


def new_registers(program: Program, columns: int, elements: int) -> Registers:
    """Registers for rows of ``columns`` columns with at most ``elements`` list elements."""
    text = np.zeros(program.text_registers, np.uint64)
    text[: len(program.constants)] = program.constants
    numbers = np.empty(columns)
    return Registers(text, numbers, np.zeros((columns, 2), np.int64), np.empty(elements, np.uint64))


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
    starts, ends : int64[n, wanted], written
        Field j of row i is ``data[starts[i, j]:ends[i, j]]``; not written where a row is short.
    found : int32[n], written
        Fields in each row.
    """
    for i in range(rows.shape[0]):
        begin = rows[i]
        at = begin
        field = 0
        last = False
        while not last:
            while at < data.shape[0] and data[at] != separator and data[at] != _NEWLINE:
                at += 1
            last = at >= data.shape[0] or data[at] == _NEWLINE
            if field < columns.shape[0] and columns[field] >= 0:
                starts[i, columns[field]] = begin
                cut = last and at > begin and data[at - 1] == _RETURN
                ends[i, columns[field]] = at - 1 if cut else at
            field += 1
            at += 1
            begin = at
        found[i] = field


@njit(cache=True, nogil=True)
def _read_list(data, start, end, elements, used):
    """Append the hash of every element of a comma list; returns the new end."""
    begin = start
    for at in range(start, end):
        if data[at] == _COMMA:
            elements[used] = xxh64(data, begin, at, _NO_SEED)
            used += 1
            begin = at + 1
    elements[used] = xxh64(data, begin, end, _NO_SEED)
    return used + 1


@njit(cache=True, nogil=True)
def _bucket(value, breaks):
    """Number of the first break line that is >= value, compared as float32."""
    if math.isnan(value):
        return -1
    small = np.float32(value)
    for i in range(breaks.shape[0]):
        if small <= breaks[i]:
            return i
    return breaks.shape[0]


@njit(cache=True, nogil=True)
def _hit(elements, wanted, empty):
    """Whether a list holds a text. An empty list, which is one empty element, holds nothing."""
    if elements.shape[0] == 1 and elements[0] == empty:
        return False
    for element in elements:
        if element == wanted:
            return True
    return False


@njit(cache=True, nogil=True)
def dense_value(operation, x):
    """A dense feature of the number ``x`` in double precision.

    Parameters
    ----------
    operation : int
        DENSE, LOG or SQRT.
    x : float64
        NaN when the field was empty: that gives 0.

    Returns
    -------
    (float64, int)
        The value, and 0 or the reason why ``x`` has none.
    """
    if math.isnan(x):
        return 0.0, 0
    if operation == LOG:
        return (math.log1p(x), 0) if x > -1.0 else (0.0, LOG_DOMAIN)
    if operation == SQRT:
        return (math.sqrt(x + 1.0), 0) if x >= -1.0 else (0.0, SQRT_DOMAIN)
    return x, 0


@njit(cache=True, nogil=True)
def _number(code, data, starts, ends, row, registers, output):
    """The instructions that read or give a number; returns the reason why the row is bad, or 0."""
    operation, a, to = code[0], code[1], code[3]
    if operation == NUMBER:
        registers.numbers[a], reason = prefix_number(data, starts[row, a], ends[row, a])
        return reason
    if operation == LABEL:
        good, output.labels[row] = parse_label(data, starts[row, a], ends[row, a])
        return 0 if good else NOT_A_LABEL
    value, reason = dense_value(operation, registers.numbers[a])
    if reason == 0 and abs(value) > _FLOAT32_MAX:
        reason = TOO_LARGE
    output.dense[row, to] = value if reason == 0 else 0.0
    return reason


@njit(cache=True, nogil=True)
def _run_row(program, data, starts, ends, row, registers, keys, used, output):
    """Run the program over one row; returns the new end of ``keys``, or _FULL."""
    text, lists, elements = registers.text, registers.lists, registers.elements
    listed = 0
    i = -1
    while i + 1 < program.code.shape[0]:
        i += 1
        operation, a, b, to = program.code[i]
        if operation == TEXT:
            text[to] = xxh64(data, starts[row, a], ends[row, a], _NO_SEED)
        elif operation == KEY or operation == PAIR:
            if used >= keys.shape[0]:
                return _FULL
            if operation == KEY:
                keys[used] = mix(program.seeds[i], text[a])
            else:
                keys[used] = mix(text[a], text[b])
            used += 1
            output.counts[row, to] = 1
        elif operation == KEYS:
            first, end = lists[a]
            before = used
            if used + end - first > keys.shape[0]:
                return _FULL
            for j in range(first, end):
                if b < 0 or elements[j] != text[b]:
                    keys[used] = mix(program.seeds[i], elements[j])
                    used += 1
            output.counts[row, to] = used - before
        elif operation == SKIP:
            i += to if text[a] == text[b] else 0
        elif operation == HIT:
            found = _hit(elements[lists[b, 0] : lists[b, 1]], text[a], text[EMPTY])
            text[to] = text[(1 if found else 0) + 1 + FIRST_NUMBER]
        elif operation == MIX:
            text[to] = mix(program.seeds[i], text[a])
        elif operation == CROSS:
            text[to] = mix(text[a], text[b])
        elif operation == LIST:
            lists[a, 0] = listed
            listed = _read_list(data, starts[row, a], ends[row, a], elements, listed)
            lists[a, 1] = listed
        elif operation == BUCKET:
            breaks = program.breaks[program.break_starts[b] : program.break_starts[b + 1]]
            text[to] = text[_bucket(registers.numbers[a], breaks) + 1 + FIRST_NUMBER]
        else:
            reason = _number(program.code[i], data, starts, ends, row, registers, output)
            if reason != 0:
                output.bad[row, 0] = reason
                output.bad[row, 1] = a
                return used
    return used


@njit(cache=True, nogil=True)
def run_rows(program, data, starts, ends, row, registers, keys, used, output):
    """Run the program over rows from ``row`` on, until they end or ``keys`` is full.

    Parameters
    ----------
    program : Program, read
    data : uint8[size], read
    starts, ends : int64[rows, columns], read
        Column j of row i is ``data[starts[i, j]:ends[i, j]]``.
    row, used : int
        Where to go on: first row, and keys already written. 0 and 0 at first.
    registers : Registers, written
    keys : uint64[room], written
        Keys in row order, inside a row in slot order.
    output : Output, written
        A row that is bad has no keys and zero counts.

    Returns
    -------
    (int, int)
        The row that did not fit (``rows`` when all did) and the keys written before it.
    """
    while row < starts.shape[0]:
        end = _run_row(program, data, starts, ends, row, registers, keys, used, output)
        if end == _FULL:
            return row, used
        if output.bad[row, 0] != 0:
            output.counts[row] = 0
        else:
            used = end
        row += 1
    return row, used


@njit(cache=True, nogil=True)
def join_fields(data, starts, ends, columns, prefix, out, out_ends):
    """Write ``prefix#field#field…`` of every row, end to end.

    Parameters
    ----------
    data, starts, ends
        As in ``run_rows``.
    columns : int32[k], read
        The fields, in order.
    prefix : uint8[p], read
    out : uint8[size], written
        ``size`` is the sum over rows of p + k + the bytes of the fields.
    out_ends : int64[rows], written
        Row i ends at ``out_ends[i]``.
    """
    at = 0
    for row in range(starts.shape[0]):
        for byte in prefix:
            out[at] = byte
            at += 1
        for column in columns:
            out[at] = _HASH
            at += 1
            for i in range(starts[row, column], ends[row, column]):
                out[at] = data[i]
                at += 1
        out_ends[row] = at


@njit(cache=True, nogil=True)
def drop_keys(keys, counts, keep):
    """Take keys out of rows, in place; a slot that loses all its keys is empty.

    Parameters
    ----------
    keys : uint64[nnz], read and written
        In row order, inside a row in slot order.
    counts : int32[rows, slots], read and written
        Keys of each row and slot; their sum is nnz.
    keep : bool[nnz], read

    Returns
    -------
    int
        Keys left, at the front of ``keys`` in their order.
    """
    at = 0
    left = 0
    for row in range(counts.shape[0]):
        for slot in range(counts.shape[1]):
            before = left
            for i in range(at, at + counts[row, slot]):
                if keep[i]:
                    keys[left] = keys[i]
                    left += 1
            at += counts[row, slot]
            counts[row, slot] = left - before
    return left
