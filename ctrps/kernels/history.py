"""Windows over events: order by key and time, ranges of events, and the texts of what is in them.

Events and impressions are numbers here: a key is an id, a value is the rank of its text, and 0 is
the empty text. Which window wants what is ``ctrps.data.windows``'s business; rows of such texts
are put together by ``ctrps.kernels.runs``.
"""

import numpy as np
from numba import njit

from ctrps.kernels.copying import copy_text
from ctrps.kernels.keys import mix
from ctrps.kernels.vectors import address

COMMA, POINT, ZERO = (np.uint8(ord(c)) for c in ",.0")

DECIMALS = 12
"""Digits of a rate behind the point."""

NUMBER_BYTES = 40
"""More than the text of a count or a rate takes."""

DIGIT = 11
"""Bits that one pass of the radix sort goes by: its counts fit the first-level cache."""

_STEPS = 8
"""Events to step over one by one before the search jumps."""

_LOW = np.int64((1 << 32) - 1)
_U0, _U8 = np.uint64(0), np.uint64(8)


@njit(cache=True, nogil=True)
def radix_order(keys, bits, other, order, spare):
    """Order that sorts keys; equal ones keep their order.

    Parameters
    ----------
    keys : uint64[n], read and written
        Below ``2 ** bits``. Left sorted, here or in ``other``.
    bits : int, 0..64
    other : uint64[n], written
    order : int64[n], written
        Key ``order[i]`` comes at place i.
    spare : int64[n], written
    """
    n = keys.shape[0]
    for i in range(n):
        order[i] = i
    counts = np.empty((1 << DIGIT) + 1, np.int64)
    mask = np.uint64((1 << DIGIT) - 1)
    here, there, at, to = keys, other, order, spare
    for shift in range(0, bits, DIGIT):
        low = np.uint64(shift)
        counts[:] = 0
        for i in range(n):
            counts[np.int64((here[i] >> low) & mask) + 1] += 1
        for d in range(1, counts.shape[0]):
            counts[d] += counts[d - 1]
        for i in range(n):
            digit = np.int64((here[i] >> low) & mask)
            place = counts[digit]
            counts[digit] += 1
            there[place] = here[i]
            to[place] = at[i]
        here, there, at, to = there, here, to, at
    if bits > 0 and ((bits - 1) // DIGIT) % 2 == 0:
        for i in range(n):
            order[i] = spare[i]


@njit(cache=True, nogil=True)
def mix_pairs(seeds, hashes, out):
    """``mix`` of every seed with its hash: one key of two columns.

    Parameters
    ----------
    seeds, hashes : uint64[n], read
    out : uint64[n], written
        May be ``seeds``.
    """
    for i in range(seeds.shape[0]):
        out[i] = mix(seeds[i], hashes[i])


@njit(cache=True, nogil=True)
def text_words(data, starts, ends, skip, out):
    """Eight bytes of every text, as a number that sorts as they do; zeros behind the end.

    Parameters
    ----------
    data : uint8[size], read
    starts, ends : int64[n], read
    skip : int
        Bytes of each text to leave out before.
    out : uint64[n], written
    """
    for i in range(starts.shape[0]):
        word = _U0
        for at in range(starts[i] + skip, starts[i] + skip + 8):
            byte = np.uint64(data[at]) if at < ends[i] else _U0
            word = word << _U8 | byte
        out[i] = word


@njit(cache=True, nogil=True)
def sort_ties(ids, times, values):
    """Bring the values of events of one id and one time into ascending order.

    Parameters
    ----------
    ids, times : int64[n], read
        In order of (id, time).
    values : int64[n], read and written
    """
    n = ids.shape[0]
    first = 0
    for i in range(1, n + 1):
        if i < n and ids[i] == ids[first] and times[i] == times[first]:
            continue
        if i - first > _STEPS:
            values[first:i].sort()
        elif i - first > 1:
            for j in range(first + 1, i):
                value = values[j]
                k = j
                while k > first and values[k - 1] > value:
                    values[k] = values[k - 1]
                    k -= 1
                values[k] = value
        first = i


@njit(cache=True, nogil=True)
def _advance(times, at, end, bound):
    """First place in ``at … end`` with a time of at least ``bound``; it is usually near."""
    stop = min(at + _STEPS, end)
    while at < stop and times[at] < bound:
        at += 1
    if at < stop or at == end:
        return at
    while at < end:
        middle = (at + end) // 2
        if times[middle] < bound:
            at = middle + 1
        else:
            end = middle
    return at


@njit(cache=True, nogil=True)
def ranges(ids, since, until, starts, times, low, high):
    """Events of each impression's key that are not before ``since`` and before ``until``.

    Parameters
    ----------
    ids, since, until : int64[q], read
        Of impressions, in order of ids; within an id neither bound goes back.
    starts : int64[ids + 1], read
        Events of id k are ``starts[k] … starts[k + 1]``.
    times : int64[n], read
        Of events, ascending within an id.
    low, high : int64[q], written
        Events ``low[i] … high[i]`` are in range; none where they are equal.
    """
    at = to = 0
    for i in range(ids.shape[0]):
        first, last = starts[ids[i]], starts[ids[i] + 1]
        at = _advance(times, max(at, first), last, since[i])
        to = _advance(times, max(at, to), last, until[i])
        low[i], high[i] = at, to


@njit(cache=True, nogil=True)
def _put_texts(ranks, used, size, texts, starts, ends, pool, at):
    """Write texts with commas between them; return the end, -1 if there is no room."""
    if at + size > pool.shape[0]:
        return -1
    source, target = address(texts), address(pool)
    source_end, target_end = source + texts.shape[0], target + pool.shape[0]
    for i in range(used):
        if i:
            pool[at] = COMMA
            at += 1
        first, size = starts[ranks[i]], ends[ranks[i]] - starts[ranks[i]]
        copy_text(source + first, source_end, target + at, target_end, size)
        at += size
    return at


@njit(cache=True, nogil=True)
def _sink(heap, at, used):
    """Let the number at ``at`` of a heap, smallest on top, sink to its place."""
    number = heap[at]
    child = 2 * at + 1
    while child < used:
        if child + 1 < used and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= number:
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = number


@njit(cache=True, nogil=True)
def _most_frequent(counts, ranks, used, heap):
    """Turn ``ranks`` into the most frequent ones, the most frequent first; return how many."""
    most = min(used, heap.shape[0])
    for i in range(most):
        heap[i] = np.int64(counts[ranks[i]]) << 32 | ranks[i]
    for i in range(most // 2 - 1, -1, -1):
        _sink(heap, i, most)
    for i in range(most, used):
        number = np.int64(counts[ranks[i]]) << 32 | ranks[i]
        if number > heap[0]:
            heap[0] = number
            _sink(heap, 0, most)
    for i in range(used):
        counts[ranks[i]] = 0
    for left in range(most, 0, -1):
        ranks[left - 1] = heap[0] & _LOW
        heap[0] = heap[left - 1]
        _sink(heap, 0, left - 1)
    return most


@njit(cache=True, nogil=True)
def top_lists(
    first, low, high, values, texts, starts, ends, counts, ranks, heap, pool, at, begins, stops
):
    """The most frequent values of ranges, most frequent first, then by rank, largest first.

    Parameters
    ----------
    first : int
        Range to begin with.
    low, high : int64[q], read
        As of ``ranges``. A range that follows an equal one shares its text.
    values : int64[n], read
        Ranks; 0 does not count.
    texts, starts, ends : uint8[size], int64[t], int64[t], read
        Text of rank k is ``texts[starts[k]:ends[k]]``.
    counts : int32[t], read and written
        All 0 before and after.
    ranks : int64[t], written
        Room for work.
    heap : int64[k], written
        Room for work; k is how long a list may be.
    pool : uint8[room], written
        Takes the lists, from ``at`` on.
    at : int
    begins, stops : uint32[q], written
        List i is ``pool[begins[i]:stops[i]]``.

    Returns
    -------
    (int, int)
        The range that found no more room, or q, and the end in the pool.
    """
    for q in range(first, low.shape[0]):
        if q > first and low[q] == low[q - 1] and high[q] == high[q - 1]:
            begins[q], stops[q] = begins[q - 1], stops[q - 1]
            continue
        used = 0
        for i in range(low[q], high[q]):
            rank = values[i]
            if rank:
                if counts[rank] == 0:
                    ranks[used] = rank
                    used += 1
                counts[rank] += 1
        used = _most_frequent(counts, ranks, used, heap)
        size = max(used - 1, 0)
        for i in range(used):
            size += ends[ranks[i]] - starts[ranks[i]]
        end = _put_texts(ranks, used, size, texts, starts, ends, pool, at)
        if end < 0:
            return q, at
        begins[q], stops[q] = at, end
        at = end
    return low.shape[0], at


@njit(cache=True, nogil=True)
def distinct_lists(
    first, low, high, values, texts, starts, ends, seen, stamp, ranks, pool, at, begins, stops
):
    """The values of ranges, each once, in order of first sight.

    Parameters
    ----------
    first, low, high, values, texts, starts, ends, ranks, pool, at, begins, stops
        As in ``top_lists``.
    seen : int64[t], read and written
        Below ``stamp`` before, and below ``stamp + q + 1`` behind.
    stamp : int

    Returns
    -------
    (int, int)
        As of ``top_lists``.
    """
    used = size = 0
    mark = stamp
    for q in range(first, low.shape[0]):
        fresh = q == first or low[q] != low[q - 1] or high[q] < high[q - 1]
        known = 0 if fresh else used
        if fresh:
            used = size = 0
            mark = stamp + q
        for i in range(low[q] if fresh else high[q - 1], high[q]):
            rank = values[i]
            if rank and seen[rank] != mark:
                seen[rank] = mark
                ranks[used] = rank
                used += 1
                size += ends[rank] - starts[rank] + 1
        if not fresh and known == used:
            begins[q], stops[q] = begins[q - 1], stops[q - 1]
            continue
        end = _put_texts(ranks, used, max(size - 1, 0), texts, starts, ends, pool, at)
        if end < 0:
            for i in range(used):
                seen[ranks[i]] = stamp - 1
            return q, at
        begins[q], stops[q] = at, end
        at = end
    return low.shape[0], at


@njit(cache=True, nogil=True)
def _put_digits(number, least, pool, at):
    """Write a number with at least so many digits; return the end."""
    digits, rest = 1, number // 10
    while rest > 0 or digits < least:
        digits += 1
        rest //= 10
    for place in range(at + digits - 1, at - 1, -1):
        pool[place] = ZERO + number % 10
        number //= 10
    return at + digits


@njit(cache=True, nogil=True)
def _put_rate(hits, of, pool, at):
    """Write a share, rounded half up, without zeros at the end; nothing if it is of nothing."""
    if of == 0:
        return at
    # In two steps of six digits, because twelve would not fit.
    high, rest = divmod(hits % of * 1_000_000, of)
    low = (rest * 1_000_000 + of // 2) // of
    parts = high * 1_000_000 + low
    at = _put_digits(hits // of + parts // 10**DECIMALS, 1, pool, at)
    parts %= 10**DECIMALS
    if parts == 0:
        return at
    pool[at] = POINT
    at = _put_digits(parts, DECIMALS, pool, at + 1)
    while pool[at - 1] == ZERO:
        at -= 1
    return at


@njit(cache=True, nogil=True)
def put_numbers(counts, hits, plus, pool, at, begins, stops):
    """Write counts, or rates ``hits / (counts + plus)``; one equal to the one before is shared.

    Parameters
    ----------
    counts, hits : int64[q], read
        ``0 <= hits <= counts < 2 ** 43``.
    plus : int
        -1: write counts.
    pool : uint8[room], written
        Takes the texts from ``at`` on: room for ``q * NUMBER_BYTES``.
    at : int
    begins, stops : uint32[q], written
        Text i is ``pool[begins[i]:stops[i]]``.

    Returns
    -------
    int
        The end in the pool.
    """
    for q in range(counts.shape[0]):
        if q > 0 and counts[q] == counts[q - 1] and hits[q] == hits[q - 1]:
            begins[q], stops[q] = begins[q - 1], stops[q - 1]
            continue
        begins[q] = at
        if plus < 0:
            at = _put_digits(counts[q], 1, pool, at)
        else:
            at = _put_rate(hits[q], counts[q] + plus, pool, at)
        stops[q] = at
    return at
