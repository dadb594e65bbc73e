"""Texts of the values in ranges of events: the most frequent, the distinct, the last ones.

A value is the rank of its text, and 0 is the empty text. Where ranges are, ``history`` finds out;
which window wants what is ``ctrps.data.windows``'s business.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ctrps.kernels.copying import copy_text, put_word
from ctrps.kernels.vectors import address

COMMA = np.uint8(ord(","))

_FEW = 48
"""Ranks that are put in order one by one."""

_LOW = np.int64((1 << 32) - 1)

WORD, SHORT = 8, 7
"""Bytes of a word, and of a text in it."""

_SIZE = np.uint64(56)

LONG = np.uint64(2**64 - 1)


class Texts(NamedTuple):
    """Texts of ranks, and room for work with them.

    Attributes
    ----------
    data, starts, ends : uint8[size], int64[t], int64[t]
        Text of rank k is ``data[starts[k]:ends[k]]``; that of rank 0 is empty.
    words : uint64[t]
        Of ``short_texts``.
    longest : int
        The bytes of the longest.
    counts : int32[t]
        All 0 whenever no kernel is at work.
    seen : int64[t]
        Below ``stamp``.
    stamp : int64[1]
    ranks, other : int64[t]
    """

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    words: np.ndarray
    longest: int
    counts: np.ndarray
    seen: np.ndarray
    stamp: np.ndarray
    ranks: np.ndarray
    other: np.ndarray


@njit(cache=True, nogil=True)
def short_texts(data, starts, ends, out):
    """Every text in a word, if it is short: one look for what mostly takes three.

    Parameters
    ----------
    data, starts, ends : uint8[size], int64[t], int64[t], read
        Text k is ``data[starts[k]:ends[k]]``.
    out : uint64[t], written
        Up to SHORT bytes of the text, the first one lowest, and in the highest byte how many they
        are; LONG where the text has more.

    Returns
    -------
    int
        The bytes of the longest text.
    """
    longest = np.int64(0)
    for k in range(starts.shape[0]):
        size = ends[k] - starts[k]
        longest = max(longest, size)
        word = np.uint64(size) << _SIZE
        for i in range(size if size <= SHORT else 0):
            word |= np.uint64(data[starts[k] + i]) << np.uint64(8 * i)
        out[k] = word if size <= SHORT else LONG
    return longest


@njit(cache=True, nogil=True, inline="always")
def _put_text(texts, rank, target, target_end):
    """Write the text of a rank, and maybe up to WORD bytes in all, to an address.

    Return where it ends. The caller guarantees room for it, and for WORD bytes.
    """
    word = texts.words[rank]
    if word != LONG:
        put_word(target, word)
        return target + np.int64(word >> _SIZE)
    size = texts.ends[rank] - texts.starts[rank]
    source = address(texts.data)
    copy_text(source + texts.starts[rank], source + texts.data.shape[0], target, target_end, size)
    return target + size


@njit(cache=True, nogil=True)
def _put_texts(ranks, count, texts, pool, at):
    """Write texts with commas between them; return the end, -1 if there is no room."""
    size = count * WORD
    if texts.longest > SHORT:
        for i in range(count):
            rank = ranks[i]
            size += texts.ends[rank] - texts.starts[rank]
    if at + size > pool.shape[0]:
        return -1
    base = address(pool)
    to, end = base + at, base + pool.shape[0]
    for i in range(count):
        to = _put_text(texts, ranks[i], to, end)
        pool[np.uint64(to - base)] = COMMA
        to += 1
    return to - base - min(count, 1)


@njit(cache=True, nogil=True)
def _by_frequency(counts, ranks, used, keys):
    """Put ranks in the order of count, then rank, both descending.

    Those whose count is 1, the least, are dropped; return how many are left. ``keys`` is room for
    work. It is fast where they are nearly in order.
    """
    left = np.int64(0)
    for i in range(used):
        rank = ranks[i]
        count = np.int64(counts[rank])
        if count == 1:
            counts[rank] = 0
            continue
        key = count << 32 | rank
        j = left
        if used <= _FEW:
            while j > 0 and keys[j - 1] < key:
                keys[j] = keys[j - 1]
                j -= 1
        keys[j] = key
        left += 1
    if used > _FEW:
        keys[:left].sort()
        keys[:left] = keys[:left][::-1].copy()
    for i in range(left):
        ranks[i] = keys[i] & _LOW
    return left


@njit(cache=True, nogil=True)
def top_lists(low, high, values, texts, most, pool, at, begins, stops):
    """The most frequent values of ranges, most frequent first, then by rank, largest first.

    A range that overlaps the one before it is counted from there.

    Parameters
    ----------
    low, high : int64[q], read
        As of ``ranges``. A range that follows an equal one shares its text.
    values : int32[n], read
        Ranks; those below 1 do not count.
    texts : Texts, read, with room for work
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
    counts, ranks = texts.counts, texts.ranks
    # Ranks that are known have a count of one more than there are of them from left to right.
    used, left, right = np.int64(0), np.int64(0), np.int64(0)
    done = low.shape[0]
    for q in range(low.shape[0]):
        if q > 0 and low[q] == low[q - 1] and high[q] == high[q - 1]:
            begins[q], stops[q] = begins[q - 1], stops[q - 1]
            continue
        if low[q] == high[q]:
            begins[q], stops[q] = at, at
            continue
        if low[q] < left or high[q] < right or low[q] - left >= right - low[q]:
            for i in range(used):
                counts[ranks[i]] = 0
            used, left, right = np.int64(0), low[q], low[q]
        for i in range(left, low[q]):
            if values[i] > 0:
                counts[values[i]] -= 1
        for i in range(right, high[q]):
            rank = values[i]
            if rank > 0:
                if counts[rank] == 0:
                    counts[rank] = 1
                    ranks[used] = rank
                    used += 1
                counts[rank] += 1
        left, right = low[q], high[q]
        used = _by_frequency(counts, ranks, used, texts.other)
        end = _put_texts(ranks, min(used, most), texts, pool, at)
        if end < 0:
            done = q
            break
        begins[q], stops[q] = at, end
        at = end
    for i in range(used):
        counts[ranks[i]] = 0
    return done, at


@njit(cache=True, nogil=True)
def distinct_lists(low, high, values, texts, pool, at, begins, stops):
    """The values of ranges, each once, in order of first sight.

    Parameters
    ----------
    low, high, values, texts, pool, at, begins, stops
        As in ``top_lists``.

    Returns
    -------
    (int, int)
        As of ``top_lists``.
    """
    seen, ranks = texts.seen, texts.ranks
    used = np.int64(0)
    mark = texts.stamp[0]
    texts.stamp[0] += low.shape[0] + 1
    done = low.shape[0]
    for q in range(low.shape[0]):
        fresh = q == 0 or low[q] != low[q - 1] or high[q] < high[q - 1]
        known = 0 if fresh else used
        if fresh:
            used = np.int64(0)
            mark += 1
        if low[q] == high[q]:
            begins[q], stops[q] = at, at
            continue
        for i in range(low[q] if fresh else high[q - 1], high[q]):
            rank = values[i]
            if rank > 0 and seen[rank] != mark:
                seen[rank] = mark
                ranks[used] = rank
                used += 1
        if not fresh and known == used:
            begins[q], stops[q] = begins[q - 1], stops[q - 1]
            continue
        end = _put_texts(ranks, used, texts, pool, at)
        if end < 0:
            done = q
            break
        begins[q], stops[q] = at, end
        at = end
    return done, at


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
