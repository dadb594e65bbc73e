"""Windows over events: order by key and time, ranges of events, and the texts of their numbers.

Events and impressions are numbers here: a key is an id, a value is the rank of its text. Which
window wants what is ``ctrps.data.windows``'s business; the texts of values are made by ``lists``,
rows of texts by ``runs``.
"""

import numpy as np
from numba import njit

from ctrps.kernels.keys import mix

POINT, ZERO = (np.uint8(ord(c)) for c in ".0")

DECIMALS = 12
"""Digits of a rate behind the point."""

NUMBER_BYTES = 40
"""More than the text of a count or a rate takes."""

DIGIT = 11
"""Bits that one pass of the radix sort goes by: its counts fit the first-level cache."""

_KNOWN, _KNOWN_HITS = 4096, 16
"""Numbers whose text is remembered, and how many of them have the same count."""

_STEPS = 8
"""Events to step over one by one before the search jumps."""

_U0, _U8 = np.uint64(0), np.uint64(8)


@njit(cache=True, nogil=True)
def radix_order(keys, bits, other, order, spare):
    """Order that sorts keys; equal ones keep their order.

    Parameters
    ----------
    keys : uint64[n], read and written
        Below ``2 ** bits``. Left sorted here, or in ``other`` after an odd number of passes.
    bits : int, 0..64
    other : uint64[n], written
    order : int64[n], written
        Key ``order[i]`` comes at place i.
    spare : int64[n], written

    Returns
    -------
    int
        Passes.
    """
    n = keys.shape[0]
    for i in range(n):
        order[i] = i
    counts = np.empty((1 << DIGIT) + 1, np.int64)
    mask = np.uint64((1 << DIGIT) - 1)
    here, there, at, to = keys, other, order, spare
    passes = 0
    for shift in range(0, bits, DIGIT):
        passes += 1
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
    if passes % 2:
        for i in range(n):
            order[i] = spare[i]
    return passes


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
def fitting(masks, bit, ids, times, chosen, starts, ids_out, times_out, chosen_out):
    """Keep the events that fit a filter.

    Parameters
    ----------
    masks : unsigned integers[n], read
    bit : the same kind of integer
        The filter's.
    ids, times, chosen : int64[n], read
        Key and time of each event, in their order, and its number.
    starts : int64[ids + 1], written
        Events kept of id k are ``starts[k] … starts[k + 1]``.
    ids_out, times_out, chosen_out : int64[n], written
        The same of those kept.

    Returns
    -------
    int
        How many are kept.
    """
    starts[:] = 0
    kept = np.int64(0)
    for i in range(masks.shape[0]):
        ids_out[kept], times_out[kept], chosen_out[kept] = ids[i], times[i], chosen[i]
        fits = np.int64((masks[i] & bit) != 0)
        starts[ids[i] + 1] += fits
        kept += fits
    for k in range(1, starts.shape[0]):
        starts[k] += starts[k - 1]
    return kept


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
    """Write counts, or rates ``hits / (counts + plus)``; equal ones share a text, where known.

    Parameters
    ----------
    counts, hits : int64[q], read
        ``0 <= hits <= counts < 2 ** 43``.
    plus : int
        -1: write counts, without a look at ``hits``.
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
    known = np.full((_KNOWN, 2), -1, np.int64)
    places = np.empty((_KNOWN, 2), np.uint32)
    for q in range(counts.shape[0]):
        count = counts[q]
        hit = hits[q] if plus >= 0 else np.int64(0)
        slot = np.uint64(count * _KNOWN_HITS + hit) & np.uint64(_KNOWN - 1)
        if known[slot, 0] != count or known[slot, 1] != hit:
            known[slot, 0], known[slot, 1] = count, hit
            places[slot, 0] = at
            if plus < 0:
                at = _put_digits(count, 1, pool, at)
            else:
                at = _put_rate(hit, count + plus, pool, at)
            places[slot, 1] = at
        begins[q], stops[q] = places[slot, 0], places[slot, 1]
    return at
