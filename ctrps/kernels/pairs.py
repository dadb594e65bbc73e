"""Rows whose keys name their slot: libffm, VW and slot text, and keys in the order of slots.

As in ``text``, a buffer may end in a broken line, a row that cannot be read is reported by its
place and left out, and nothing is guessed. Names of slots, files and the wording of errors are
the business of ``ctrps.data``.
"""

import numpy as np
from numba import njit

from ctrps.kernels.keys import mix, xxh64
from ctrps.kernels.text import (
    BAD,
    BLANK,
    COLON,
    GOOD,
    INEXACT,
    LABEL,
    NEWLINE,
    NONE,
    OPTIONAL,
    REQUIRED,
    TAB,
    find,
    parse_key,
    parse_label,
    parse_number,
    trim,
)

BAR, APOSTROPHE, COMMA = 124, 39, 44

TRIPLE, HEAD, TAG, NAMESPACE, WORD, MANY, PAIR = 7, 8, 9, 10, 11, 12, 13
"""Reasons of bad rows, besides LABEL."""

MAX_SLOTS = 4096
"""Slots that a row may have; a shard's schema holds no more names."""

_MOST = 2.0**127  # so that a scaled value is finite however its factors were rounded


@njit(cache=True, nogil=True)
def token_end(buf, at, end, other):
    """First blank, tab or byte ``other`` in ``buf[at:end]``, uint8; ``end`` if there is none."""
    while at < end and buf[at] != BLANK and buf[at] != TAB and buf[at] != other:
        at += 1
    return at


@njit(cache=True, nogil=True)
def libffm_rows(buf, final, mode, slots, keys, values, sizes, labels, bad, asked):
    """Read lines ``label field:key:value field:key:value ...``.

    As ``text.libsvm_rows``, but for the field in front of each key.

    Parameters
    ----------
    buf, final, mode
        As there.
    slots, keys, values : int32[m], uint64[m], float32[m], written
        m >= n // 6 + 1; in row order. A slot is a field, below MAX_SLOTS.
    sizes, labels : int32[r], float32[r], written
        r >= n // 2 + 1; keys of a row, and its label or NaN.
    bad : int64[b, 3], written, b >= 1
        Reason (LABEL, TRIPLE) and borders of the first bad piece of a row.
    asked : int32[n // 5 + 1, 3], written
        As there.

    Returns
    -------
    position, rows, nnz, bad rows, numbers asked : int
    """
    at = rows = nnz = found = asks = 0
    while at < buf.shape[0] and found < bad.shape[0]:
        end = find(buf, at, buf.shape[0], NEWLINE)
        if end == buf.shape[0] and not final:
            break
        first, last = trim(buf, at, end)
        if first < last:
            reason, to, labels[rows] = _libffm_label(buf, first, last, mode)
            begin, have, ask = first, nnz, asks
            while reason == GOOD and to < last:
                begin, _ = trim(buf, to, last)
                to = token_end(buf, begin, last, BLANK)
                reason, ask = _triple(buf, begin, to, slots, keys, values, have, asked, ask)
                have += 1
            if reason == GOOD:
                sizes[rows] = have - nnz
                rows, nnz, asks = rows + 1, have, ask
            else:
                bad[found, 0], bad[found, 1], bad[found, 2] = reason, begin, to
                found += 1
        at = end + 1
    return min(at, buf.shape[0]), rows, nnz, found, asks


@njit(cache=True, nogil=True)
def _libffm_label(buf, start, end, mode):
    """Return reason, end of the label (``start`` where there is none) and the label."""
    none = np.float32(np.nan)
    to = token_end(buf, start, end, BLANK)
    if mode == NONE or (mode == OPTIONAL and find(buf, start, to, COLON) < to):
        return GOOD, start, none
    good, label = parse_label(buf, start, to)
    return (GOOD if good else LABEL), to, label if good else none


@njit(cache=True, nogil=True)
def _triple(buf, start, end, slots, keys, values, at, asked, asks):
    """Read ``field:key:value`` into position ``at``; return reason and numbers asked."""
    one = find(buf, start, end, COLON)
    two = find(buf, min(one + 1, end), end, COLON)
    is_field, field = parse_key(buf, start, one)
    is_key, key = parse_key(buf, min(one + 1, end), two)
    status, value = parse_number(buf, min(two + 1, end), end)
    if not is_field or not is_key or status == BAD or field >= np.uint64(MAX_SLOTS):
        return TRIPLE, asks
    slots[at], keys[at], values[at] = field, key, value
    if status == INEXACT:
        asked[asks, 0], asked[asks, 1], asked[asks, 2] = at, two + 1, end
        asks += 1
    return GOOD, asks


@njit(cache=True, nogil=True)
def vw_rows(
    buf,
    final,
    mode,
    tagged,
    names,
    known,
    places,
    slots,
    keys,
    numbers,
    sizes,
    labels,
    tags,
    bad,
    asked,
):
    """Read lines ``label importance 'tag|namespace:scale feature:value feature |...``.

    Blanks and tabs separate; blank lines are skipped. Everything in front of
    the first bar may be absent as ``mode`` says; an importance must be 1. What
    stands in front of the bar without a blank between is a tag, with or without
    an apostrophe. A value or scale that is not stated is 1; a namespace without
    a name is named by a blank. The key of a feature is ``mix`` of the XXH64 of
    the namespace's name with that of its own.

    Parameters
    ----------
    buf, final : read
        As for ``text.libsvm_rows``.
    mode : int
        REQUIRED, OPTIONAL, or NONE: a label is skipped without a look.
    tagged : bool
        Rows may have tags.
    names : uint64[s], first ``known`` read, more written
        XXH64 of the names of the slots, in the order of their numbers.
    known : int
    places : int64[s, 2], written
        Borders in ``buf`` of the names of the slots that are new.
    slots, keys : int32[m], uint64[m], written
        m >= n // 2 + 1; in row order.
    numbers : float32[2, m], written
        Values, and the scales of their namespaces.
    sizes, labels, tags : int32[r], float32[r], int32[r, 2], written
        r >= n // 2 + 1; features of a row, its label or NaN, borders of its tag.
    bad : int64[b, 3], written, b >= 1
        Reason (LABEL, HEAD, TAG, NAMESPACE, WORD, MANY) and borders of the
        first bad piece of a row.
    asked : int32[n // 5 + 1, 3], written
        Position in ``numbers`` taken as one row, and borders of INEXACT numbers.

    Returns
    -------
    position, rows, nnz, bad rows, numbers asked, slots known : int
    """
    at = rows = nnz = found = asks = 0
    while at < buf.shape[0] and found < bad.shape[0]:
        end = find(buf, at, buf.shape[0], NEWLINE)
        if end == buf.shape[0] and not final:
            break
        first, last = trim(buf, at, end)
        if first < last:
            bar = find(buf, first, last, BAR)
            reason, start, to = _vw_head(
                buf, first, bar, last, mode, tagged, labels[rows:], tags[rows:]
            )
            have, ask, seen = nnz, asks, known
            if reason == GOOD:
                reason, start, to, have, ask, seen = _vw_features(
                    buf, bar, last, names, known, places, slots, keys, numbers, nnz, asked, asks
                )
            if reason == GOOD:
                sizes[rows] = have - nnz
                rows, nnz, asks, known = rows + 1, have, ask, seen
            else:
                bad[found, 0], bad[found, 1], bad[found, 2] = reason, start, to
                found += 1
        at = end + 1
    return min(at, buf.shape[0]), rows, nnz, found, asks, known


@njit(cache=True, nogil=True)
def _vw_head(buf, first, bar, last, mode, tagged, label, tag):
    """Read what stands in front of the bar into element 0; return reason and its borders."""
    label[0] = np.nan
    begin, end = bar, bar
    if bar > first and (bar == last or (buf[bar - 1] != BLANK and buf[bar - 1] != TAB)):
        while begin > first and buf[begin - 1] != BLANK and buf[begin - 1] != TAB:
            begin -= 1
    else:
        end = _without_blanks(buf, first, bar)
        begin = end
        while begin > first and buf[begin - 1] != BLANK and buf[begin - 1] != TAB:
            begin -= 1
        if begin == end or buf[begin] != APOSTROPHE:
            begin = end
    if bar == last and (begin == end or buf[begin] != APOSTROPHE):
        begin = end  # without a bar only an apostrophe makes a tag
    text = begin + 1 if begin < end and buf[begin] == APOSTROPHE else begin
    tag[0, 0], tag[0, 1] = text, end
    if text < end and not tagged:
        return TAG, begin, end
    return _vw_numbers(buf, first, begin, mode, label)


@njit(cache=True, nogil=True)
def _without_blanks(buf, start, end):
    """End of ``buf[start:end]`` without blanks and tabs; a return inside a line is no blank."""
    while end > start and (buf[end - 1] == BLANK or buf[end - 1] == TAB):
        end -= 1
    return end


@njit(cache=True, nogil=True)
def _vw_numbers(buf, first, end, mode, label):
    """Read the label and an importance of 1 in ``buf[first:end]``; return reason and borders."""
    end = _without_blanks(buf, first, end)
    to = token_end(buf, first, end, BLANK)
    if mode == REQUIRED or (mode == OPTIONAL and first < to):
        good, found = parse_label(buf, first, to)
        if not good:
            return LABEL, first, to
        label[0] = found
    begin, _ = trim(buf, to, end)
    if begin < end:
        status, importance = parse_number(buf, begin, end)
        if status != GOOD or importance != 1.0:
            return HEAD, begin, end
    return GOOD, first, end


@njit(cache=True, nogil=True)
def _vw_features(buf, at, last, names, known, places, slots, keys, numbers, have, asked, asks):
    """Read namespaces from the bar at ``at``; return reason, borders, nnz, asks, slots known."""
    slot = -1
    while at < last:
        begin = at + 1
        to = token_end(buf, begin, last, BAR)
        reason, end, scale, inexact = _vw_number(buf, begin, to)
        slot, known = _vw_slot(buf, begin, end, names, known, places, slot + 1)
        if reason != GOOD or (begin == end and end < to):
            return NAMESPACE, begin, to, have, asks, known
        if slot < 0:
            return MANY, begin, to, have, asks, known
        at = to
        while at < last and buf[at] != BAR:
            begin, _ = trim(buf, at, last)
            if begin == last or buf[begin] == BAR:
                at = begin
                break
            at = token_end(buf, begin, last, BAR)
            reason, stop, value, asks_value = _vw_number(buf, begin, at)
            too_large = scale != 1.0 and abs(value * scale) >= _MOST
            if reason != GOOD or stop == begin or too_large:
                return WORD, begin, at, have, asks, known
            slots[have] = slot
            keys[have] = mix(names[slot], xxh64(buf, begin, stop, np.uint64(0)))
            numbers[0, have], numbers[1, have] = value, scale
            if asks_value:
                asked[asks, 0], asked[asks, 1], asked[asks, 2] = have, stop + 1, at
                asks += 1
            if inexact:
                asked[asks, 0], asked[asks, 1] = numbers.shape[1] + have, end + 1
                asked[asks, 2] = to
                asks += 1
            have += 1
    return GOOD, at, last, have, asks, known


@njit(cache=True, nogil=True)
def _vw_number(buf, start, end):
    """Read ``name:number`` or ``name``; return reason, end of the name, number, if INEXACT."""
    colon = find(buf, start, end, COLON)
    if colon == end:
        return GOOD, colon, 1.0, False
    status, value = parse_number(buf, colon + 1, end)
    return (WORD if status == BAD else GOOD), colon, value, status == INEXACT


@njit(cache=True, nogil=True)
def _vw_slot(buf, start, end, names, known, places, likely):
    """Number of the slot of a name, new or known (-1: no room), and slots known."""
    name = xxh64(buf, start, end, np.uint64(0)) if start < end else _blank_name()
    if likely < known and names[likely] == name:
        return likely, known
    for slot in range(known):
        if names[slot] == name:
            return slot, known
    if known == names.shape[0]:
        return -1, known
    names[known] = name
    places[known, 0], places[known, 1] = start, end
    return known, known + 1


@njit(cache=True, nogil=True)
def _blank_name():
    blank = np.full(1, BLANK, np.uint8)
    return xxh64(blank, 0, 1, np.uint64(0))


@njit(cache=True, nogil=True)
def slot_rows(
    buf,
    final,
    mode,
    turned,
    plain,
    reserved,
    id_slot,
    names,
    known,
    places,
    slots,
    keys,
    sizes,
    labels,
    ids,
    bad,
):
    """Read lines of ``slot:value`` with the label among them, and perhaps fields in front.

    Blanks, tabs and commas separate; blank lines are skipped. A key is ``mix`` of
    the XXH64 of the slot's name with that of the value's text. Slot 0 is the
    label, and the first ``reserved`` slots give no keys.

    Parameters
    ----------
    buf, final, mode : read
        As for ``text.libsvm_rows``; with OPTIONAL or NONE a label may be
        missing, and with NONE it is not looked at.
    turned : bool
        Words are ``value:slot``.
    plain : int64[p], read
        Slots of the fields without a colon, by their place among these.
    reserved, id_slot : int
        id_slot is -1 where rows have no ids.
    names, known, places
        As for ``vw_rows``.
    slots, keys : int32[m], uint64[m], written
        m >= n // 2 + 1; in row order, the reserved slots not counted.
    sizes, labels, ids : int32[r], float32[r], int32[r, 2], written
        r >= n // 2 + 1; keys of a row, its label or NaN, borders of its id.
    bad : int64[b, 3], written, b >= 1
        Reason (LABEL, PAIR, MANY) and borders of the first bad piece of a row.

    Returns
    -------
    position, rows, nnz, bad rows, slots known : int
    """
    at = rows = nnz = found = 0
    while at < buf.shape[0] and found < bad.shape[0]:
        end = find(buf, at, buf.shape[0], NEWLINE)
        if end == buf.shape[0] and not final:
            break
        first, last = trim(buf, at, end)
        if first < last:
            reason, start, to, have, seen = _slot_row(
                buf, first, last, mode, turned, plain, reserved, id_slot, names, known, places,
                slots, keys, nnz, labels[rows:], ids[rows:],
            )  # fmt: skip
            if reason == GOOD:
                sizes[rows] = have - nnz
                rows, nnz, known = rows + 1, have, seen
            else:
                bad[found, 0], bad[found, 1], bad[found, 2] = reason, start, to
                found += 1
        at = end + 1
    return min(at, buf.shape[0]), rows, nnz, found, known


@njit(cache=True, nogil=True)
def _slot_row(
    buf, at, last, mode, turned, plain, reserved, id_slot, names, known, places, slots, keys, have,
    label, row_id,
):  # fmt: skip
    """Read a row; return reason, borders of what is bad, nnz, slots known."""
    first, fields, slot, labelled = at, 0, -1, mode == NONE
    label[0], row_id[0, 0], row_id[0, 1] = np.nan, at, at
    while at < last:
        begin = at
        while at < last and buf[at] != BLANK and buf[at] != TAB and buf[at] != COMMA:
            at += 1
        if begin < at:
            start, end = begin, at
            colon = find(buf, begin, at, COLON)
            if colon == at:
                if fields == plain.shape[0]:
                    return PAIR, begin, at, have, known
                slot = plain[fields]
                fields += 1
            else:
                name, name_end, start, end = (
                    (colon + 1, at, begin, colon) if turned else (begin, colon, colon + 1, at)
                )
                if name == name_end:
                    return PAIR, begin, at, have, known
                likely = max(slot, 0)
                slot, known = _vw_slot(buf, name, name_end, names, known, places, likely)
                if slot < 0:
                    return MANY, begin, at, have, known
            if slot == 0 and mode != NONE:
                good, label[0] = parse_label(buf, start, end)
                if not good or labelled:
                    return LABEL, start, end, have, known
                labelled = True
            elif slot == id_slot:
                row_id[0, 0], row_id[0, 1] = start, end
            elif slot >= reserved:
                slots[have] = slot - reserved
                keys[have] = mix(names[slot], xxh64(buf, start, end, np.uint64(0)))
                have += 1
        at += 1
    if not labelled and mode == REQUIRED:
        return LABEL, first, first, have, known
    return GOOD, first, last, have, known


@njit(cache=True, nogil=True)
def by_slot(slots, sizes, counts, order):
    """Order the keys of each row by slot; inside a slot they keep their order.

    Parameters
    ----------
    slots : int32[nnz], read
        Slot of each key, row after row.
    sizes : int32[rows], read
        Keys of each row.
    counts : int32[rows, s], written
        Keys of each row in each slot; slots are below s.
    order : int64[nnz], written
        ``slots[order]`` ascends inside each row.

    Examples
    --------
    >>> counts, order = np.empty((2, 3), np.int32), np.empty(4, np.int64)
    >>> by_slot(np.int32([2, 0, 2, 1]), np.int32([3, 1]), counts, order)
    >>> counts.tolist(), order.tolist()
    ([[1, 0, 2], [0, 1, 0]], [1, 0, 2, 3])
    """
    cursor = np.empty(counts.shape[1], np.int64)
    start = 0
    for row in range(sizes.shape[0]):
        end = start + sizes[row]
        counts[row, :] = 0
        sorted_yet = True
        for at in range(start, end):
            counts[row, slots[at]] += 1
            sorted_yet &= at == start or slots[at - 1] <= slots[at]
            order[at] = at
        if not sorted_yet:
            to = start
            for slot in range(counts.shape[1]):
                cursor[slot] = to
                to += counts[row, slot]
            for at in range(start, end):
                order[cursor[slots[at]]] = at
                cursor[slots[at]] += 1
        start = end
