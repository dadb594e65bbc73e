"""The rows of a table in memory: an index whose entries hold the first part of each row.

An *entry* is 32 bytes: the key, the address of the *tail*, and up to four float32 numbers, the
*head*: a weight and its optimiser's state. So LR's whole row is in the cache line that finds it.
The tail holds the rest, FM's factors with their state, from the start of a line on where it is long
enough, so that k = 8 costs one more line. Tails never move. An entry whose tail is 0 is free; a
table without tails has 1 there.

Entries stand in 64 *segments* by the top bits of their key's placement, so partitions are ranges of
segments, and each segment doubles alone: no push waits for the whole table to be moved. Inside a
segment a key belongs to the line that the low bits name, or else to the next one with room. The
*directory* int64[SEGMENTS, 2] holds of each segment the address of its first line and the number of
its lines minus 1.

Every kernel asks for the memory of later keys while it works on the present one. Memory, and that
addresses are right, is the care of ``ctrps.ps.table``.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ctrps.kernels.keys import initial, spread
from ctrps.kernels.optimizers import COUNT, GROUP, step, step_each
from ctrps.kernels.vectors import (
    EIGHT,
    FOUR,
    ONE,
    address,
    copy,
    fill,
    load,
    prefetch,
    publish,
    put_whole,
    seen,
    store,
    whole,
)

SEGMENT_BITS = 6
SEGMENTS = 1 << SEGMENT_BITS
LINE = 64
ENTRY = 32
KEY, TAIL = 0, 1
"""Places of the key and of the tail's address in an entry, in words of 8 bytes."""

HEAD = 4
"""Place of the head in an entry, in float32 numbers."""

AHEAD = 40
"""Keys between asking for a line and reading it: more than a processor waits for alone."""

SCRATCH = 3 * GROUP + ENTRY // 8
"""int64 numbers of the scratch of a push."""

_FAR = -1
_F0, _F1 = np.float32(0), np.float32(1)
_TOP = np.uint64(64 - SEGMENT_BITS)


@njit(cache=True, nogil=True)
def _home(segments, key):
    """Address of the line that a key belongs to."""
    h = spread(key)
    place = segments + 16 * np.int64(h >> _TOP)
    return whole(place, 0) + LINE * (np.int64(h) & whole(place, 1))


@njit(cache=True, nogil=True)
def _search(segments, key):
    """Address of the entry of a key, or of the free one that ends the search for it."""
    h = spread(key)
    place = segments + 16 * np.int64(h >> _TOP)
    base, last = whole(place, 0), whole(place, 1)
    line = np.int64(h) & last
    while True:
        for entry in (base + LINE * line, base + LINE * line + ENTRY):
            if seen(entry, TAIL) == 0 or whole(entry, KEY) == np.int64(key):
                return entry
        line = (line + 1) & last


@njit(cache=True, nogil=True)
def _found(segments, key, home):
    """Address of the entry of a key, 0 if there is none, given the address of its home line.

    Mostly without branches: which entry of a line a key is in cannot be foreseen. A free entry
    holds the key 0, and one that another thread is making has no tail yet.
    """
    wanted, second = np.int64(key), home + ENTRY
    past = _FAR if whole(second, TAIL) != 0 else 0
    here, there = whole(home, KEY) == wanted, whole(second, KEY) == wanted
    entry = home if here else second if there else past
    if entry == _FAR or wanted == 0:
        entry = _search(segments, key)
    return entry if entry != 0 and seen(entry, TAIL) != 0 else 0


@njit(cache=True, nogil=True)
def _ask(tail, size):
    """Prefetch a tail of ``size`` bytes."""
    past = 0
    while past < size:
        prefetch(tail + past)
        past += LINE


@njit(cache=True, nogil=True)
def find(directory, keys, entries_out):
    """Address of the entry of every key, 0 where there is none.

    Parameters
    ----------
    directory : int64[SEGMENTS, 2], read
    keys : uint64[k], read
    entries_out : int64[k], written
    """
    segments, count = address(directory), keys.shape[0]
    for asked in range(count + AHEAD):
        if asked < count:
            entries_out[asked] = _home(segments, keys[asked])
            prefetch(entries_out[asked])
        i = asked - AHEAD
        if i >= 0:
            entries_out[i] = _found(segments, keys[i], entries_out[i])


@njit(cache=True, nogil=True)
def tails(entries, tails_out):
    """Addresses of the tails of some entries.

    Parameters
    ----------
    entries : int64[k], read
        None of them 0.
    tails_out : int64[k], written
    """
    for i in range(entries.shape[0]):
        tails_out[i] = whole(entries[i], TAIL)


@njit(cache=True, nogil=True)
def _start(rule, key, seed, row, at, column):
    """Write the starting weights of a part, columns ``column`` and so on, after an address."""
    for j in range(rule.width):
        value = rule.start * initial(seed, key, column + j) if rule.start != 0 else rule.start
        store(fill(ONE, value), row, at + j)


@njit(cache=True, nogil=True)
def pull(directory, keys, head, tail, make, seed, entries, out):
    """Weights of every key.

    Parameters
    ----------
    directory : int64[SEGMENTS, 2], read
    keys : uint64[k], read
    head, tail : Rule
        Of the parts in the head and in the tail.
    make : bool
        An absent key reads as the row that it would start as; otherwise as 0.
    seed : uint64
        Of starting weights.
    entries : int64[k], written
        As ``find``.
    out : float32[k, head.width + tail.width], written
    """
    segments, count, width = address(directory), keys.shape[0], np.int64(out.shape[1])
    outs, lag = address(out), AHEAD if tail.width else 0
    for asked in range(count + AHEAD + lag):
        if asked < count:
            entries[asked] = _home(segments, keys[asked])
            prefetch(entries[asked])
        i = asked - AHEAD
        if 0 <= i < count:
            entry = _found(segments, keys[i], entries[i])
            entries[i] = entry
            if tail.width and entry != 0:
                _ask(whole(entry, TAIL), 4 * tail.width)
        i -= lag
        if i < 0:
            continue
        entry, row = entries[i], outs + 4 * width * i
        if entry != 0:
            if head.width:
                store(load(ONE, entry, head.at), row, 0)
            if tail.width:
                copy(whole(entry, TAIL), tail.at, row, head.width, tail.width)
        elif make:
            _start(head, keys[i], seed, row, 0, 0)
            _start(tail, keys[i], seed, row, head.width, head.width)
        else:
            for j in range(width):
                out[i, j] = 0


@njit(cache=True, nogil=True)
def _scaled(rule, tag, gradient, at, count):
    """The g of a rule for some columns whose gradient lies at ``at`` after an address."""
    if rule.kind == COUNT:
        return fill(tag, np.float32(count))
    return load(tag, gradient, at) * (rule.scale / (_F1 + np.float32(count) * rule.crowd))


@njit(cache=True, nogil=True)
def _columns(rule, row, gradient, at, count):
    """One step of all columns of a part; its gradient is ``rule.width`` numbers from ``at`` on."""
    j = 0
    while j + 8 <= rule.width:
        step(rule, row, j, EIGHT, _scaled(rule, EIGHT, gradient, at + j, count))
        j += 8
    if j + 4 <= rule.width:
        step(rule, row, j, FOUR, _scaled(rule, FOUR, gradient, at + j, count))
        j += 4
    while j < rule.width:
        step(rule, row, j, ONE, _scaled(rule, ONE, gradient, at + j, count))
        j += 1


class _Step(NamedTuple):
    """What all rows of a push share, and scratch for those whose heads move together.

    Addresses of the gradients, of what receives the weights before the step (0: nobody), and of
    scratch: GROUP entries, GROUP positions, GROUP float32 numbers and an entry that is nobody's.
    ``width`` is the bytes of a gradient.
    """

    given: int
    before: int
    width: int
    entries: int
    positions: int
    g: int
    idle: int


@njit(cache=True, nogil=True)
def _step_of(gradients, before_out, scratch):
    # The entry that is nobody's moves by gradients of 0 only, so it stays as it is.
    scratch[3 * GROUP :] = 0
    at = address(scratch)
    before = address(before_out) if before_out.shape[0] > 0 else 0
    return _Step(
        address(gradients),
        before,
        4 * gradients.shape[1],
        at,
        at + 8 * GROUP,
        at + 16 * GROUP,
        at + 24 * GROUP,
    )


@njit(cache=True, nogil=True)
def _move_group(this, n, head, tail, counts):
    """One step of the ``n`` rows that stand in the scratch."""
    for j in range(n):
        entry, i = whole(this.entries, j), whole(this.positions, j)
        gradient = this.given + this.width * i
        if this.before != 0:
            before = this.before + this.width * i
            if head.width:
                store(load(ONE, entry, head.at), before, 0)
            if tail.width:
                copy(whole(entry, TAIL), tail.at, before, head.width, tail.width)
        if tail.width:
            _columns(tail, whole(entry, TAIL), gradient, head.width, counts[i])
        if head.width:
            store(_scaled(head, ONE, gradient, 0, counts[i]), this.g, j)
    if head.width:
        for j in range(n, GROUP):
            put_whole(this.entries, j, this.idle)
            store(fill(ONE, _F0), this.g, j)
        step_each(head, this.entries, EIGHT, load(EIGHT, this.g, 0))


class Free(NamedTuple):
    """Memory for the tails of new rows, all zero: ``left`` of them, ``stride`` bytes apart.

    In a table without tails ``next`` is 1 and ``stride`` 0.
    """

    next: int
    left: int
    stride: int


@njit(cache=True, nogil=True)
def _make(segments, used, key, tail_at, head, tail, seed):
    """The entry of a key that has none, made at its starting weights; its segment has room."""
    entry = _search(segments, key)
    _start(head, key, seed, entry, head.at, 0)
    if tail.width:
        _start(tail, key, seed, tail_at, tail.at, head.width)
    put_whole(entry, KEY, np.int64(key))
    publish(entry, TAIL, tail_at)
    used[np.int64(spread(key) >> _TOP)] += 1
    return entry


@njit(cache=True, nogil=True)
def push(
    directory,
    used,
    room,
    free,
    keys,
    gradients,
    counts,
    head,
    tail,
    seed,
    entries,
    absent_out,
    before_out,
    scratch,
):
    """One optimiser step of the row of every key that has one, or for which there is room.

    Parameters
    ----------
    directory : int64[SEGMENTS, 2], read
    used : int64[SEGMENTS], read and written
        Entries in use of each segment.
    room : int64[SEGMENTS], read
        Entries up to which a segment may be filled.
    free : Free
        The first ones are taken by new rows.
    keys : uint64[k], read
        Distinct.
    gradients : float32[k, dim], read
        Sums over the rows of the step; dim = head.width + tail.width.
    counts : int32[k], read
        Rows of the step that hold the key.
    head, tail : Rule
        Of the parts in the head and in the tail.
    seed : uint64
        Of starting weights.
    entries : int64[k], written
        As ``find``.
    absent_out : int64[k], first n written
        Positions of the keys without a row or room for one: nothing was done for them.
    before_out : float32[k, dim] or float32[0, dim], written
        Weights before the step, if wanted.
    scratch : int64[SCRATCH], written

    Returns
    -------
    (int, int)
        n, and how many rows are new.
    """
    segments, count = address(directory), keys.shape[0]
    this = _step_of(gradients, before_out, scratch)
    states = 4 * tail.width * (1 + (tail.z != tail.at) + (tail.n != tail.at))
    lag = AHEAD if tail.width else 0
    ready, absent, new = 0, 0, 0
    for asked in range(count + AHEAD + lag):
        if asked < count:
            entries[asked] = _home(segments, keys[asked])
            prefetch(entries[asked])
        i = asked - AHEAD
        if 0 <= i < count:
            entry = _found(segments, keys[i], entries[i])
            if entry == 0 and new < free.left:
                segment = np.int64(spread(keys[i]) >> _TOP)
                if used[segment] < room[segment]:
                    tail_at = free.next + free.stride * new
                    entry = _make(segments, used, keys[i], tail_at, head, tail, seed)
                    new += 1
            elif tail.width and entry != 0:
                _ask(whole(entry, TAIL), states)
            entries[i] = entry
        i -= lag
        if i < 0:
            continue
        if entries[i] == 0:
            absent_out[absent] = i
            absent += 1
        else:
            put_whole(this.entries, ready, entries[i])
            put_whole(this.positions, ready, i)
            ready += 1
        if ready == GROUP or i == count - 1:
            _move_group(this, ready, head, tail, counts)
            ready = 0
    return absent, new


@njit(cache=True, nogil=True)
def step_rows(entries, positions, gradients, counts, head, tail, before_out, scratch):
    """As ``push``, for the keys at some positions, whose entries are known."""
    this, ready = _step_of(gradients, before_out, scratch), 0
    for at in range(positions.shape[0]):
        i = positions[at]
        put_whole(this.entries, ready, entries[i])
        put_whole(this.positions, ready, i)
        ready += 1
        if ready == GROUP or at == positions.shape[0] - 1:
            _move_group(this, ready, head, tail, counts)
            ready = 0


@njit(cache=True, nogil=True)
def count_segments(keys, out):
    """How many of the keys belong to each segment.

    Parameters
    ----------
    keys : uint64[k], read
    out : int64[SEGMENTS], written
    """
    out[:] = 0
    for i in range(keys.shape[0]):
        out[np.int64(spread(keys[i]) >> _TOP)] += 1


@njit(cache=True, nogil=True)
def insert(directory, used, keys, positions, tails, head, tail, seed, entries):
    """Make the rows of some keys, at their starting weights; their state is 0.

    Parameters
    ----------
    directory : int64[SEGMENTS, 2], read
        The caller guarantees room: a segment without a free entry is searched for ever.
    used : int64[SEGMENTS], read and written
        Entries in use of each segment.
    keys : uint64[k], read
        May repeat.
    positions : int64[n], read
        Which of them to insert; some may have a row already.
    tails : int64[n], read
        Addresses for new rows, all zero there (1 in a table without tails). The first ones are
        taken.
    head, tail : Rule
    seed : uint64
    entries : int64[k], written at ``positions``
        As ``find``.

    Returns
    -------
    int
        How many were new.
    """
    segments, new = address(directory), 0
    for i in positions:
        entry = _search(segments, keys[i])
        if seen(entry, TAIL) == 0:
            entry = _make(segments, used, keys[i], tails[new], head, tail, seed)
            new += 1
        entries[i] = entry
    return new


@njit(cache=True, nogil=True)
def move(base, lines, directory):
    """Copy all entries of a segment to the place where the directory has it now.

    Parameters
    ----------
    base : int64
        Where the segment was.
    lines : int
        Its lines there.
    directory : int64[SEGMENTS, 2], read
        The new place is empty and has room.
    """
    segments = address(directory)
    for old in range(base, base + lines * LINE, ENTRY):
        if whole(old, TAIL) != 0:
            entry = _search(segments, np.uint64(whole(old, KEY)))
            for word in range(ENTRY // 8):
                put_whole(entry, word, whole(old, word))
