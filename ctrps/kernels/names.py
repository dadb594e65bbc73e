"""The text behind a key: what a feature's value was before it was hashed.

A *recipe* lists the parts of each slot's value; the machine (``program``) works out a row again,
and the wanted ones of its values are written as text. Which keys get names is ``ctrps.data``'s.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ctrps.kernels.machine import BLOCK, FIRST_NUMBER
from ctrps.kernels.program import run_block
from ctrps.kernels.values import bucket_of

# Kinds of parts.
WHOLE = 0  # the text of column a
ELEMENT = 1  # an element of column a, a comma list
BUCKETED = 2  # the bucket of number[a] under break lines b
FOUND = 3  # 1 when text register a is the hash of "1", else 0

_COMMA, _EQUALS, _HASH, _ZERO, _MINUS = (np.uint8(ord(c)) for c in ",=#0-")


class Recipe(NamedTuple):
    """How values are written.

    Attributes
    ----------
    parts : int32[m, 3]
        Rows of (kind, a, b).
    starts : int32[slots + 1]
        The parts of slot s are ``parts[starts[s]:starts[s + 1]]``.
    drops : bool[slots]
        Whether empty elements are left out.
    prefixes : uint8[p]
    prefix_starts : int32[slots + 1]
        The prefix of slot s is ``prefixes[prefix_starts[s]:prefix_starts[s + 1]]``.
    """

    parts: np.ndarray
    starts: np.ndarray
    drops: np.ndarray
    prefixes: np.ndarray
    prefix_starts: np.ndarray


@njit(cache=True, nogil=True)
def first_rows(index, starts, counts_out, rows_out):
    """Count the numbers of a block, and note the row in which each comes first.

    Parameters
    ----------
    index : uint16 or uint32[nnz], read
        Numbers below k, row after row.
    starts : int64[rows + 1], read
    counts_out : int64[k], all zero on entry, written
    rows_out : int64[k], written
        Not written where the count is 0.
    """
    for row in range(starts.shape[0] - 1):
        for i in range(starts[row], starts[row + 1]):
            number = index[i]
            if counts_out[number] == 0:
                rows_out[number] = row
            counts_out[number] += 1


@njit(cache=True, nogil=True)
def _put(data, start, end, out, at):
    for i in range(start, end):
        out[at] = data[i]
        at += 1
    return at


@njit(cache=True, nogil=True)
def _put_number(number, out, at):
    """Write a whole number in decimal."""
    if number < 0:
        out[at] = _MINUS
        at += 1
        number = -number
    unit = 1
    while number // unit >= 10:
        unit *= 10
    while unit > 0:
        out[at] = _ZERO + np.uint8(number // unit % 10)
        at += 1
        unit //= 10
    return at


@njit(cache=True, nogil=True)
def _element(source, start, end, drop, wanted):
    """Where element ``wanted`` of a comma list is; and how many there are, when it is -1."""
    seen = 0
    begin = start
    while begin <= end:
        stop = begin
        while stop < end and source[stop] != _COMMA:
            stop += 1
        if not (drop and stop == begin):
            if seen == wanted:
                return begin, stop
            seen += 1
        begin = stop + 1
    return seen, seen


@njit(cache=True, nogil=True)
def _write(program, recipe, data, registers, r, slot, number, chosen, out, at):
    """Write value ``number`` of a slot of row r of a block; returns where its text ends."""
    first, last = recipe.starts[slot], recipe.starts[slot + 1]
    drop = recipe.drops[slot]
    # Combinations come with the last part running fastest.
    for p in range(last - 1, first - 1, -1):
        a = recipe.parts[p, 1]
        size = 1
        if recipe.parts[p, 0] == ELEMENT:
            source = registers.derived if a >= program.own else data
            size, _ = _element(source, registers.starts[a, r], registers.ends[a, r], drop, -1)
        chosen[p - first] = number % size
        number //= size
    at = _put(recipe.prefixes, recipe.prefix_starts[slot], recipe.prefix_starts[slot + 1], out, at)
    for p in range(first, last):
        kind, a, b = recipe.parts[p]
        out[at] = _EQUALS if p == first else _HASH
        at += 1
        if kind == BUCKETED:
            breaks = program.breaks[program.break_starts[b] : program.break_starts[b + 1]]
            at = _put_number(bucket_of(registers.numbers[a, r], breaks), out, at)
        elif kind == FOUND:
            one = registers.text[FIRST_NUMBER + 2, 0]
            at = _put_number(1 if registers.text[a, r] == one else 0, out, at)
        else:
            source = registers.derived if a >= program.own else data
            start, end = registers.starts[a, r], registers.ends[a, r]
            if kind == ELEMENT:
                start, end = _element(source, start, end, drop, chosen[p - first])
            at = _put(source, start, end, out, at)
    return at


@njit(cache=True, nogil=True)
def _room(program, recipe, registers, r):
    """Bytes that no text of a row's value exceeds."""
    longest = 0
    for column in range(registers.starts.shape[0]):
        longest = max(longest, registers.ends[column, r] - registers.starts[column, r])
    most = 0
    for slot in range(recipe.drops.shape[0]):
        prefix = recipe.prefix_starts[slot + 1] - recipe.prefix_starts[slot]
        parts = recipe.starts[slot + 1] - recipe.starts[slot]
        # A number takes 20 bytes at most.
        most = max(most, prefix + parts * (max(longest, 20) + 1))
    return most


@njit(cache=True, nogil=True)
def name_values(
    program, recipe, data, lines, separator, columns, rows, wanted, row, done,
    registers, keys, output, out, ends,
):  # fmt: skip
    """Write ``prefix=value`` or ``prefix=value#value…`` of some keys of some rows.

    Parameters
    ----------
    program, data, lines, separator, columns, registers, output
        As in ``run_rows``.
    recipe : Recipe, read
    rows : int64[w], read
        Numbers of lines, ascending.
    wanted : uint64[w], read
        A key of each of these lines.
    row, done : int
        Where to go on: a line, the first of a block, and how many were written before. 0 and 0
        at first.
    keys : uint64[room], written
        Scratch; holds the keys of a block.
    out : uint8[size], written
        The texts, end to end; empty where the row has no such key.
    ends : int64[w], written

    Returns
    -------
    (int, int)
        ``row`` and ``done`` to go on with; when ``done`` is less than w there was no room.
    """
    chosen = np.zeros(max(recipe.parts.shape[0], 1), np.int64)
    at = ends[done - 1] if done > 0 else 0
    while row < lines.shape[0]:
        block = lines[row : row + BLOCK]
        end = run_block(program, data, block, separator, columns, row, registers, keys, 0, output)
        if end < 0:
            return row, done
        first = 0
        for r in range(block.shape[0]):
            counts = output.counts[row + r]
            last = first + counts.sum()
            room = -1
            while done < rows.shape[0] and rows[done] == row + r:
                number = first
                while number < last and keys[number] != wanted[done]:
                    number += 1
                if number < last:
                    if room < 0:
                        room = _room(program, recipe, registers, r)
                    if at + room > out.shape[0]:
                        return row, done
                    number -= first
                    slot = 0
                    while number >= counts[slot]:
                        number -= counts[slot]
                        slot += 1
                    at = _write(program, recipe, data, registers, r, slot, number, chosen, out, at)
                ends[done] = at
                done += 1
            first = last
        row += block.shape[0]
    return row, done
