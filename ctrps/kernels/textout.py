"""Rows of keys and values to bytes of text.

What the pieces of a line are, is ``ctrps.data.textout``'s business; numbers come as text, because
the shortest text of a float is NumPy's to find.
"""

from numba import njit

from ctrps.kernels.pairs import APOSTROPHE
from ctrps.kernels.text import BLANK, COLON, NEWLINE, TEN, ZERO

KEY_DIGITS = 20
"""Digits of the largest key."""


@njit(cache=True, nogil=True)
def rows_text(
    heads,
    head_ends,
    head,
    ids,
    id_ends,
    opens,
    open_ends,
    tags,
    tag_ends,
    words,
    word_ends,
    counts,
    keys,
    values,
    out,
):
    """Write lines ``head 'id open tag key:word tag key:word open ...``.

    Texts of a kind stand one behind the other; text i ends at ``ends[i]``.

    Parameters
    ----------
    heads, head_ends : uint8[a], int64[h], read
        Beginnings of lines.
    head : int64[rows], read
        Number of each line's beginning.
    ids, id_ends : uint8[b], int64[rows or 0], read
        Texts of rows, which a blank and an apostrophe precede; or none at all.
    opens, open_ends : uint8[c], int64[s], read
        What stands in front of the first key of a row in each slot.
    tags, tag_ends : uint8[d], int64[s], read
        What stands in front of each key of each slot.
    words, word_ends : uint8[e], int64[w], read
        Values as text.
    counts : int32[rows, s], read
        Keys of each row in each slot.
    keys, values : uint64[nnz], int64[nnz], read
        Keys in row order, and numbers of the words of their values.
    out : uint8[size], written
        The caller guarantees room.

    Returns
    -------
    int
        Bytes written.
    """
    to = entry = 0
    for row in range(counts.shape[0]):
        to = _copy(heads, head_ends, head[row], out, to)
        if id_ends.shape[0] > 0:
            out[to], out[to + 1] = BLANK, APOSTROPHE
            to = _copy(ids, id_ends, row, out, to + 2)
        for slot in range(counts.shape[1]):
            if counts[row, slot] > 0:
                to = _copy(opens, open_ends, slot, out, to)
            for _ in range(counts[row, slot]):
                to = _copy(tags, tag_ends, slot, out, to)
                to = _write_key(keys[entry], out, to)
                out[to] = COLON
                to = _copy(words, word_ends, values[entry], out, to + 1)
                entry += 1
        out[to] = NEWLINE
        to += 1
    return to


@njit(cache=True, nogil=True)
def _copy(texts, ends, number, out, to):
    """Append text ``number`` to ``out``; return its new end."""
    for at in range(ends[number - 1] if number else 0, ends[number]):
        out[to] = texts[at]
        to += 1
    return to


@njit(cache=True, nogil=True)
def _write_key(key, out, to):
    digits = 1
    rest = key // TEN
    while rest > 0:
        rest //= TEN
        digits += 1
    for place in range(to + digits - 1, to - 1, -1):
        out[place] = ZERO + key % TEN
        key //= TEN
    return to + digits
