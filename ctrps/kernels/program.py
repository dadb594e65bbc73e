"""Feature extraction as a small program: one kernel that computes all features of rows of text.

``ctrps.data.program`` compiles a features file to a list of instructions over registers. The
kernel takes a few rows at a time and runs each instruction over all of them before the next, so
that no features file needs code of its own, and choosing the code costs next to nothing. Every
field or list element is hashed once, however many features read it. A cross is a mix of hashes,
never a joined text.

Not here: what single values become (``values``), new fields made of others (``derive``), reading
files, finding lines, what to do about a bad row.
"""

import math

import numpy as np
from numba import njit

from ctrps.kernels.derive import set_of, tidied, time_part
from ctrps.kernels.keys import mix
from ctrps.kernels.lines import scan_rows
from ctrps.kernels.machine import (
    BLOCK,
    BUCKET,
    CROSS,
    DENSE,
    EMPTY,
    FIELDS,
    FIRST_NUMBER,
    HIT,
    KEY,
    KEYS,
    LIST,
    MIX,
    MIX_ALL,
    NOT_A_LABEL,
    NUMBER,
    ONE,
    PAIR,
    PRODUCT,
    SET,
    TEXT,
    TIDY,
    TOO_LARGE,
)
from ctrps.kernels.text import parse_label
from ctrps.kernels.values import bucket_of, dense_value, is_hit, read_number
from ctrps.kernels.words import hash_field, hash_list

_COMMA = np.uint64(ord(","))
_FULL = -1
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@njit(cache=True, nogil=True)
def _spoil(output, row, reason, column, start, end):
    """Mark a row as bad, if it is not bad already."""
    if output.bad[row, 0] == 0:
        output.bad[row, 0] = reason
        output.bad[row, 1] = column
        output.bad[row, 2] = start
        output.bad[row, 3] = end


@njit(cache=True, nogil=True)
def _split(program, data, lines, separator, columns, row, registers, output):
    """The columns of a block of rows and their elements; those of a row of wrong shape are empty.

    Returns where the elements end, or _FULL.
    """
    starts, ends, firsts, lasts = (
        registers.starts, registers.ends, registers.firsts, registers.lasts,
    )  # fmt: skip
    found, elements = registers.found, registers.elements
    listed = scan_rows(
        data, lines, separator, columns, starts, ends, firsts, lasts,
        elements, registers.spots, registers.sizes, registers.fields, found,
    )  # fmt: skip
    for r in range(lines.shape[0] if listed >= 0 else 0):
        if found[r] != columns.shape[0]:
            _spoil(output, row + r, FIELDS, found[r], lines[r], lines[r])
            for column in range(program.own):
                starts[column, r] = ends[column, r] = firsts[column, r] = lasts[column, r] = 0
        for j in range(program.ids.shape[0]):
            output.ids[row + r, j, 0] = starts[program.ids[j], r]
            output.ids[row + r, j, 1] = ends[program.ids[j], r]
    return listed


@njit(cache=True, nogil=True)
def _hash_texts(a, to, own, source, n, registers):
    """Text register `to` = the hash of column a, which is at hand where it has one element."""
    starts, ends = registers.starts[a], registers.ends[a]
    for r in range(n):
        if own and registers.lasts[a, r] - registers.firsts[a, r] == 1:
            registers.text[to, r] = registers.elements[registers.firsts[a, r]]
        else:
            registers.text[to, r] = hash_field(source, np.uint64(starts[r]), np.uint64(ends[r]))


@njit(cache=True, nogil=True)
def _read(operation, a, source, n, row, registers, output, origin):
    """Read column a of a block as numbers or labels."""
    starts, ends = registers.starts[a], registers.ends[a]
    for r in range(n):
        if operation == NUMBER:
            registers.numbers[a, r], reason = read_number(source, starts[r], ends[r])
        else:
            good, output.labels[row + r] = parse_label(source, starts[r], ends[r])
            reason = 0 if good else NOT_A_LABEL
        if reason != 0:
            at, end = registers.starts[origin, r], registers.ends[origin, r]
            _spoil(output, row + r, reason, a, at, end)


@njit(cache=True, nogil=True)
def _read_lists(source, starts, ends, firsts, lasts, elements, listed):
    """The lists of a column; returns where they end in ``elements``, or _FULL."""
    for r in range(starts.shape[0]):
        if listed + ends[r] - starts[r] + 1 > elements.shape[0]:
            return _FULL
        firsts[r] = listed
        start, end = np.uint64(starts[r]), np.uint64(ends[r])
        listed = hash_list(source, start, end, _COMMA, elements, listed)
        lasts[r] = listed
    return listed


@njit(cache=True, nogil=True)
def _mix_text(program, i, n, registers):
    """The instructions that make a text register of others."""
    operation, a, b, to = program.code[i]
    text, out = registers.text, registers.text[to]
    if operation == MIX:
        for r in range(n):
            out[r] = mix(program.seeds[i], text[a, r])
    elif operation == CROSS:
        for r in range(n):
            out[r] = mix(text[a, r], text[b, r])
    elif operation == HIT:
        for r in range(n):
            # No slice: counting its references costs more than the search.
            first, last = registers.firsts[b, r], registers.lasts[b, r]
            found = is_hit(registers.elements, first, last, text[a, r], text[EMPTY, 0])
            out[r] = text[(1 if found else 0) + 1 + FIRST_NUMBER, 0]
    else:
        breaks = program.breaks[program.break_starts[b] : program.break_starts[b + 1]]
        for r in range(n):
            out[r] = text[bucket_of(registers.numbers[a, r], breaks) + 1 + FIRST_NUMBER, 0]


@njit(cache=True, nogil=True)
def _make_lists(program, i, n, registers, listed):
    """The instructions that make a list of others; returns where it ends, or _FULL."""
    operation, a, b, to = program.code[i]
    text, elements = registers.text, registers.elements
    firsts, lasts = registers.firsts, registers.lasts
    for r in range(n):
        first, last = (0, 1) if operation == ONE else (firsts[a, r], lasts[a, r])
        times = lasts[b, r] - firsts[b, r] if operation == PRODUCT else 1
        if listed + (last - first) * times > elements.shape[0]:
            return _FULL
        firsts[to, r] = listed
        for j in range(first, last):
            if operation == PRODUCT:
                for k in range(firsts[b, r], lasts[b, r]):
                    elements[listed] = mix(elements[j], elements[k])
                    listed += 1
            elif operation == MIX_ALL:
                elements[listed] = mix(program.seeds[i], elements[j])
                listed += 1
            else:
                element = text[a, r] if operation == ONE else elements[j]
                if b < 0 or element != text[b, r]:
                    elements[listed] = element
                    listed += 1
        lasts[to, r] = listed
    return listed


@njit(cache=True, nogil=True)
def _scale(program, i, n, row, registers, output):
    """The instructions that give a dense feature."""
    operation, a, _, to = program.code[i]
    empty, centre, size = program.scales[to, 0], program.scales[to, 1], program.scales[to, 2]
    origin = program.origins[a]
    for r in range(n):
        x = registers.numbers[a, r]
        value, reason = dense_value(operation - DENSE, x)
        value = empty if math.isnan(x) else (value - centre) / size
        if reason == 0 and abs(value) > _FLOAT32_MAX:
            reason = TOO_LARGE
        output.dense[row + r, to] = value if reason == 0 else 0.0
        if reason != 0:
            at, end = registers.starts[origin, r], registers.ends[origin, r]
            _spoil(output, row + r, reason, a, at, end)


@njit(cache=True, nogil=True)
def _derive(program, i, source, n, registers, written):
    """The instructions that make a column of another; returns where its text ends, or _FULL."""
    operation, a, b, to = program.code[i]
    starts, ends, out = registers.starts, registers.ends, registers.derived
    zone = np.int64(program.seeds[i])
    for r in range(n):
        start, end = starts[a, r], ends[a, r]
        # No number of two digits, and nothing tidied, is longer than this.
        if written + end - start + 2 > out.shape[0]:
            return _FULL
        starts[to, r] = written
        if operation == TIDY:
            written = tidied(source, start, end, b, out, written)
        elif operation == SET:
            written = set_of(source, start, end, out, written)
        else:
            first, last = program.zone_starts[zone], program.zone_starts[zone + 1]
            changes, offsets = program.changes[first:last], program.offsets[first:last]
            written = time_part(registers.numbers[a, r], b, changes, offsets, out, written)
        ends[to, r] = written
    return written


@njit(cache=True, nogil=True)
def _compute(program, data, n, row, registers, listed, output):
    """All instructions that give no key; False when the registers lack room."""
    written = 0
    for i in range(program.emits):
        operation, a, _, to = program.code[i]
        source = registers.derived if a >= program.own and operation < BUCKET else data
        if operation == LIST:
            starts, ends = registers.starts[a, :n], registers.ends[a, :n]
            firsts, lasts = registers.firsts[a], registers.lasts[a]
            listed = _read_lists(source, starts, ends, firsts, lasts, registers.elements, listed)
        elif operation == TEXT:
            _hash_texts(a, to, a < program.own, source, n, registers)
        elif operation < BUCKET:
            _read(operation, a, source, n, row, registers, output, program.origins[a])
        elif operation < ONE:
            _mix_text(program, i, n, registers)
        elif operation < DENSE:
            listed = _make_lists(program, i, n, registers, listed)
        elif operation < TIDY:
            _scale(program, i, n, row, registers, output)
        else:
            source = registers.derived if a >= program.own else data
            written = _derive(program, i, source, n, registers, written)
        if listed == _FULL or written == _FULL:
            return False
    return True


@njit(cache=True, nogil=True)
def _place(program, n, registers, used):
    """Where the keys of each row go; returns where they all end."""
    at = registers.at
    singles = 0
    at[:n] = 0
    for i in range(program.emits, program.code.shape[0]):
        a = program.code[i, 1]
        if program.code[i, 0] < KEYS:
            singles += 1
        else:
            for r in range(n):
                at[r] += registers.lasts[a, r] - registers.firsts[a, r]
    for r in range(n):
        size = at[r] + singles
        at[r] = used
        used += size
    return used


@njit(cache=True, nogil=True)
def _emit(program, n, row, registers, keys, counts):
    """All instructions that give keys, which go where ``registers.at`` says."""
    text, at = registers.text, registers.at
    elements, firsts, lasts = registers.elements, registers.firsts, registers.lasts
    for i in range(program.emits, program.code.shape[0]):
        operation, a, b, to = program.code[i]
        seed = program.seeds[i]
        # Unsigned positions spare numba's check for negative ones.
        if operation == KEY:
            for r in range(n):
                keys[np.uint64(at[r])] = mix(seed, text[a, r])
                at[r] += 1
        elif operation == PAIR:
            for r in range(n):
                keys[np.uint64(at[r])] = mix(text[a, r], text[b, r])
                at[r] += 1
        else:
            for r in range(n):
                size = lasts[a, r] - firsts[a, r]
                to_key, element = np.uint64(at[r]), np.uint64(firsts[a, r])
                for j in range(np.uint64(size)):
                    value = elements[element + j]
                    keys[to_key + j] = mix(seed, value) if operation == KEYS else value
                counts[row + r, to] = size
                at[r] += size


@njit(cache=True, nogil=True)
def _leave_out(n, row, registers, keys, used, output):
    """Take the keys of bad rows out of a block that begins at ``used``; returns its new end."""
    first = used
    for r in range(n):
        last = registers.at[r]
        if output.bad[row + r, 0] != 0:
            output.counts[row + r] = 0
        elif first == used:
            used = last
        else:
            for j in range(first, last):
                keys[used] = keys[j]
                used += 1
        first = last
    return used


@njit(cache=True, nogil=True)
def run_block(program, data, lines, separator, columns, row, registers, keys, used, output):
    """Run the program over one block of lines, whose output begins at ``row``.

    Parameters are those of ``run_rows``, but for ``lines`` int64[n], n <= BLOCK.

    Returns
    -------
    int
        The new end of ``keys``, or -1 when there was no room.
    """
    n = lines.shape[0]
    listed = _split(program, data, lines, separator, columns, row, registers, output)
    if listed < 0 or not _compute(program, data, n, row, registers, listed, output):
        return _FULL
    end = _place(program, n, registers, used)
    if end > keys.shape[0]:
        return _FULL
    _emit(program, n, row, registers, keys, output.counts)
    return _leave_out(n, row, registers, keys, used, output)


@njit(cache=True, nogil=True)
def run_rows(program, data, lines, separator, columns, row, registers, keys, used, output):
    """Run the program over lines from ``row`` on, until they end or there is no more room.

    Parameters
    ----------
    program : Program, read
    data : uint8[size], read
    lines : int64[rows], read
        First byte of each line.
    separator, columns
        As in ``split_rows``; the wanted fields are the columns of the program.
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
        The first row that did not fit (``rows`` when all did) and the keys written before it. To
        go on, give more room for keys, list elements and derived text.
    """
    while row < lines.shape[0]:
        block = lines[row : row + BLOCK]
        end = run_block(
            program, data, block, separator, columns, row, registers, keys, used, output
        )
        if end < 0:
            break
        used = end
        row += block.shape[0]
    return row, used
