"""Texts of the values in ranges of events: the most frequent, the distinct, the last ones.

A value is the rank of its text, and 0 is the empty text. Where ranges are, ``history`` finds out;
which window wants what is ``ctrps.data.windows``'s business.
"""

import numpy as np
from numba import njit

from ctrps.kernels.copying import copy_text
from ctrps.kernels.vectors import address

COMMA = np.uint8(ord(","))

_FEW = 256
"""Counts below this are sorted by counting."""

_STEPS = 32
"""New ranks that are put in their places one by one."""

_LOW = np.int64((1 << 32) - 1)


@njit(cache=True, nogil=True)
def _put_texts(ranks, first, step, count, size, texts, starts, ends, pool, at):
    """Write texts with commas between them; return the end, -1 if there is no room.

    Their ranks are ``ranks[first]``, ``ranks[first + step]`` and so on.
    """
    if at + size > pool.shape[0]:
        return -1
    source, target = address(texts), address(pool)
    source_end, target_end = source + texts.shape[0], target + pool.shape[0]
    for i in range(count):
        if i:
            pool[at] = COMMA
            at += 1
        rank = ranks[first + step * i]
        begin, size = starts[rank], ends[rank] - starts[rank]
        copy_text(source + begin, source_end, target + at, target_end, size)
        at += size
    return at


@njit(cache=True, nogil=True)
def _merge(ranks, known, used, other):
    """Sort ``ranks[:used]``, of which the first ``known`` are in order, with room for the rest."""
    if used - known <= _STEPS:
        for i in range(known, used):
            rank = ranks[i]
            j = i
            while j > 0 and ranks[j - 1] > rank:
                ranks[j] = ranks[j - 1]
                j -= 1
            ranks[j] = rank
        return
    other[: used - known] = ranks[known:used]
    other[: used - known].sort()
    a, b = known - 1, used - known - 1
    while b >= 0:
        if a >= 0 and ranks[a] > other[b]:
            ranks[a + b + 1] = ranks[a]
            a -= 1
        else:
            ranks[a + b + 1] = other[b]
            b -= 1


@njit(cache=True, nogil=True)
def _by_frequency(counts, ranks, used, places, out):
    """Put ascending ranks in the order of count, then rank, both ascending.

    Those whose count is 1, the least, are dropped; return how many are left.
    """
    left = 0
    largest = np.int32(0)
    for i in range(used):
        rank = ranks[i]
        if counts[rank] == 1:
            counts[rank] = 0
        else:
            ranks[left] = rank
            left += 1
            largest = max(largest, counts[rank])
    if largest >= places.shape[0]:
        for i in range(left):
            out[i] = np.int64(counts[ranks[i]]) << 32 | ranks[i]
        out[:left].sort()
        for i in range(left):
            out[i] &= _LOW
        return left
    for count in range(largest + 1):
        places[count] = 0
    for i in range(left):
        places[counts[ranks[i]]] += 1
    for count in range(1, largest + 1):
        places[count] += places[count - 1]
    for i in range(left - 1, -1, -1):
        count = counts[ranks[i]]
        places[count] -= 1
        out[places[count]] = ranks[i]
    return left


@njit(cache=True, nogil=True)
def top_lists(
    first,
    low,
    high,
    values,
    texts,
    starts,
    ends,
    counts,
    ranks,
    other,
    most,
    pool,
    at,
    begins,
    stops,
):
    """The most frequent values of ranges, most frequent first, then by rank, largest first.

    A range that overlaps the one before it is counted from there.

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
    ranks, other : int64[t], written
        Room for work.
    most : int
        How long a list may be.
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
    places = np.empty(_FEW, np.int32)
    # Ranks that are known have a count of one more than there are of them from left to right.
    used, left, right = np.int64(0), np.int64(0), np.int64(0)
    done = low.shape[0]
    for q in range(first, low.shape[0]):
        if q > first and low[q] == low[q - 1] and high[q] == high[q - 1]:
            begins[q], stops[q] = begins[q - 1], stops[q - 1]
            continue
        if low[q] < left or high[q] < right or low[q] - left >= right - low[q]:
            for i in range(used):
                counts[ranks[i]] = 0
            used, left, right = np.int64(0), low[q], low[q]
        for i in range(left, low[q]):
            if values[i]:
                counts[values[i]] -= 1
        known = used
        for i in range(right, high[q]):
            rank = values[i]
            if rank:
                if counts[rank] == 0:
                    counts[rank] = 1
                    ranks[used] = rank
                    used += 1
                counts[rank] += 1
        left, right = low[q], high[q]
        _merge(ranks, known, used, other)
        used = _by_frequency(counts, ranks, used, places, other)
        taken = min(used, most)
        size = np.int64(max(taken - 1, 0))
        for i in range(taken):
            # The most frequent one stands last.
            rank = other[used - 1 - i]
            size += ends[rank] - starts[rank]
        end = _put_texts(other, used - 1, -1, taken, size, texts, starts, ends, pool, at)
        if end < 0:
            done = q
            break
        begins[q], stops[q] = at, end
        at = end
    for i in range(used):
        counts[ranks[i]] = 0
    return done, at


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
        end = _put_texts(ranks, 0, 1, used, max(size - 1, 0), texts, starts, ends, pool, at)
        if end < 0:
            for i in range(used):
                seen[ranks[i]] = stamp - 1
            return q, at
        begins[q], stops[q] = at, end
        at = end
    return low.shape[0], at


@njit(cache=True, nogil=True)
def last_texts(low, high, values, starts, ends, latest, begins, stops):
    """The text of the last value of each range that is not 0; text 0 if there is none.

    Parameters
    ----------
    low, high : int64[q], read
        As of ``ranges``.
    values : int64[n], read
        Ranks.
    starts, ends : int64[t], read
        Borders of the text of each rank.
    latest : int64[n + 1], written
        Room for work.
    begins, stops : uint32[q], written
        Borders of the texts.
    """
    latest[0] = -1
    for i in range(values.shape[0]):
        latest[i + 1] = i if values[i] else latest[i]
    for q in range(low.shape[0]):
        at = latest[high[q]]
        rank = values[at] if at >= low[q] else np.int64(0)
        begins[q], stops[q] = starts[rank], ends[rank]
