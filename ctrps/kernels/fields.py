"""Tables as text: rows of separated fields, and fields to numbers, labels and keys.

``split_fields`` works on a buffer whose last row may be broken off, and says
how far it got; ``csv_rows`` goes on from there. A row that cannot be read is
reported by its place and left out; nothing is guessed, and no type is
inferred. Files, names of columns and the wording of errors are the business
of ``ctrps.data``.
"""

import numpy as np
from numba import njit

from ctrps.kernels.bits import leading_zeros
from ctrps.kernels.keys import mix, xxh64
from ctrps.kernels.text import (
    BAD,
    GOOD,
    INEXACT,
    LABEL,
    MINUS,
    NEWLINE,
    OPTIONAL,
    RETURN,
    find,
    parse_key,
    parse_label,
    parse_number,
    trim,
)

QUOTE, BLANK = 34, 32
_U1 = np.uint64(1)

LEVELS = 193
"""Levels of ``log_levels``: three for each bit of a whole number and one for the last."""

# 2^(1/3) and 2^(2/3), written out so that no library's rounding enters.
_CUBE_ROOT, _CUBE_ROOT_SQUARED = 1.2599210498948732, 1.5874010519681994

NUMBER, FIELDS, AFTER_QUOTE, UNCLOSED = 3, 4, 5, 6
"""Reasons of bad rows, besides LABEL."""

# Row states of _split_row besides GOOD and the reasons.
_BLANK, _INCOMPLETE = -1, -2


@njit(cache=True, nogil=True)
def split_fields(buf, start, end, final, separator, quoted, starts, ends, bad):
    r"""Cut rows of separated fields (RFC 4180) into the borders of their fields.

    A quoted field may hold separators, line ends and doubled quotes; a quote
    inside an unquoted field is text. Returns before a line end are no part of
    a field. Lines of blanks without a separator are skipped. Reading stops
    behind the last whole row, or when ``starts`` or ``bad`` is full.

    Parameters
    ----------
    buf : uint8[n], read and written
        ``buf[start]`` starts a row. Doubled quotes of a good row are made
        single in place; blanks fill the room behind the shorter field.
    start, end : int
    final : bool
        The file ends at ``end``, so a last row needs no line end.
    separator : int
        A byte other than a quote, return or newline.
    quoted : bool
        False: a quote is a byte like any other.
    starts, ends : int32[r, columns], written
        Borders of each field of the good rows, without quotes.
    bad : int64[b, 3], written, b >= 1
        Reason and borders in ``buf`` of each bad row: FIELDS, not as many as
        there are columns; AFTER_QUOTE, text behind a closing quote, with the
        place of that text; UNCLOSED, a quote that nothing closes up to the
        end of the file.

    Returns
    -------
    position, rows, bad rows : int

    Examples
    --------
    >>> buf = np.frombuffer(bytearray(b'a,"b ""c"", d"\n'), np.uint8)
    >>> starts, ends = np.empty((2, 1, 2), np.int32)
    >>> split_fields(buf, 0, 15, True, ord(","), True, starts, ends, np.empty((1, 3), np.int64))
    (15, 1, 0)
    >>> buf[starts[0, 1] : ends[0, 1]].tobytes()
    b'b "c", d'
    """
    rows = found = 0
    at = start
    while at < end and rows < starts.shape[0] and found < bad.shape[0]:
        state, first, last, after, doubled = _split_row(
            buf, at, end, final, separator, quoted, starts[rows], ends[rows]
        )
        if state == _INCOMPLETE:
            break
        if state == GOOD:
            if doubled:
                _single_quotes(buf, starts[rows], ends[rows])
            rows += 1
        elif state != _BLANK:
            bad[found, 0], bad[found, 1], bad[found, 2] = state, first, last
            found += 1
        at = after
    return at, rows, found


@njit(cache=True, nogil=True)
def _split_row(buf, start, end, final, separator, quoted, starts, ends):
    """Return state, borders of what is bad, start of the next row, if quotes are doubled."""
    fields = 0
    doubled = False
    at = start
    while True:
        first = at
        is_quoted = quoted and at < end and buf[at] == QUOTE
        if is_quoted:
            first, last, at, twice = _quoted_field(buf, at, end)
            doubled |= twice
            if last < 0:
                return (UNCLOSED if final else _INCOMPLETE), first - 1, end, end, False
            if at < end and buf[at] != separator and buf[at] != NEWLINE:
                stop = find(buf, at, end, NEWLINE)
                state = _INCOMPLETE if stop == end and not final else AFTER_QUOTE
                return state, at, stop, min(stop + 1, end), False
        else:
            while at < end and buf[at] != separator and buf[at] != NEWLINE:
                at += 1
            last = at
        if at == end and not final:
            return _INCOMPLETE, start, end, start, False
        line_ends = at == end or buf[at] == NEWLINE
        if line_ends and not is_quoted:
            while last > first and buf[last - 1] == RETURN:
                last -= 1
        if fields < starts.shape[0]:
            starts[fields], ends[fields] = first, last
        fields += 1
        at += 1
        if line_ends:
            break
    after = min(at, end)
    if fields == 1 and not is_quoted and _is_blank(buf, first, last):
        return _BLANK, first, last, after, False
    state = GOOD if fields == starts.shape[0] else FIELDS
    return state, start, last + is_quoted, after, doubled


@njit(cache=True, nogil=True)
def _quoted_field(buf, quote, end):
    """Return borders of the text (last -1: not closed), position behind, if quotes are doubled."""
    first = quote + 1
    at = first
    doubled = False
    while at < end:
        if buf[at] == QUOTE:
            if at + 1 == end or buf[at + 1] != QUOTE:
                last = at
                at += 1
                behind = at
                while behind < end and buf[behind] == RETURN:
                    behind += 1
                if behind == end or buf[behind] == NEWLINE:
                    at = behind
                return first, last, at, doubled
            doubled = True
            at += 1
        at += 1
    return first, -1, end, doubled


@njit(cache=True, nogil=True)
def _is_blank(buf, start, end):
    start, end = trim(buf, start, end)
    return start == end


@njit(cache=True, nogil=True)
def _single_quotes(buf, starts, ends):
    """Make the doubled quotes of quoted fields single, in place."""
    for field in range(starts.shape[0]):
        if starts[field] == 0 or buf[starts[field] - 1] != QUOTE:
            continue
        to = at = starts[field]
        while at < ends[field]:
            buf[to] = buf[at]
            at += 2 if buf[at] == QUOTE else 1
            to += 1
        buf[to : ends[field]] = BLANK
        ends[field] = to


@njit(cache=True, nogil=True)
def csv_rows(
    buf,
    starts,
    ends,
    label,
    mode,
    numeric,
    slots,
    seeds,
    missing,
    keys,
    dense,
    labels,
    taken,
    bad,
    asked,
):
    """Turn fields into labels, numbers and keys of categories.

    A number may have blanks around it; one that is empty or a missing marker
    is 0. A category is its bytes as they stand; a missing marker stands for
    the empty text, which has a key like any other.

    Parameters
    ----------
    buf, starts, ends : read
        From ``split_fields``: int32[rows, columns].
    label : int
        Column of the label, or -1: every label is NaN.
    mode : int
        REQUIRED, or OPTIONAL: a missing label is NaN.
    numeric : int64[d], read
        Columns of the numbers.
    slots, seeds : int64[s], uint64[s], read
        Columns of the categories, and their namespaces.
    missing : uint64[m], read
        Hashes of the missing markers, the empty text not among them.
    keys, dense, labels : uint64[rows, s], float32[rows, d], float32[rows], written
    taken : int64[rows], written
        Row of ``starts`` that each row out comes from.
    bad : int64[rows, 4], written
        Reason (LABEL or NUMBER), borders and column of the first bad field of a row.
    asked : int64[rows * d, 3], written
        Position in ``dense`` (row * d + column) and borders of INEXACT numbers.

    Returns
    -------
    rows out, bad rows, numbers asked : int
    """
    out = found = asks = 0
    for row in range(starts.shape[0]):
        reason, field = GOOD, label
        ask = asks
        labels[out] = np.nan
        if label >= 0:
            start, end = starts[row, label], ends[row, label]
            reason = _csv_label(buf, start, end, mode, missing, labels, out)
        if reason == GOOD:
            reason, field, ask = _csv_numbers(
                buf, starts[row], ends[row], numeric, missing, dense, out, asked, ask
            )
        if reason == GOOD:
            _csv_keys(buf, starts[row], ends[row], slots, seeds, missing, keys[out])
            taken[out] = row
            out, asks = out + 1, ask
        else:
            bad[found, 0], bad[found, 3] = reason, field
            bad[found, 1], bad[found, 2] = starts[row, field], ends[row, field]
            found += 1
    return out, found, asks


@njit(cache=True, nogil=True)
def _csv_label(buf, start, end, mode, missing, labels, at):
    start, end = trim(buf, start, end)
    if mode == OPTIONAL and _is_missing(buf, start, end, missing):
        return GOOD
    good, labels[at] = parse_label(buf, start, end)
    return GOOD if good else LABEL


@njit(cache=True, nogil=True)
def _csv_numbers(buf, starts, ends, numeric, missing, dense, out, asked, ask):
    """Fill row ``out`` of ``dense``; return reason, column of the last number, numbers asked."""
    for d in range(numeric.shape[0]):
        field = numeric[d]
        start, end = trim(buf, starts[field], ends[field])
        dense[out, d] = 0.0
        if not _is_missing(buf, start, end, missing):
            status, value = parse_number(buf, start, end)
            if status == BAD:
                return NUMBER, field, ask
            dense[out, d] = value
            if status == INEXACT:
                at = out * numeric.shape[0] + d
                asked[ask, 0], asked[ask, 1], asked[ask, 2] = at, start, end
                ask += 1
    return GOOD, -1, ask


@njit(cache=True, nogil=True)
def _is_missing(buf, start, end, missing):
    if start == end:
        return True
    if missing.shape[0] == 0:
        return False
    found = xxh64(buf, start, end, np.uint64(0))
    for marker in missing:
        if marker == found:
            return True
    return False


@njit(cache=True, nogil=True)
def _csv_keys(buf, starts, ends, slots, seeds, missing, keys):
    for s in range(slots.shape[0]):
        first = starts[slots[s]]
        value = xxh64(buf, first, ends[slots[s]], np.uint64(0))
        for marker in missing:
            if marker == value:
                value = xxh64(buf, first, first, np.uint64(0))
                break
        keys[s] = mix(seeds[s], value)


@njit(cache=True, nogil=True)
def copy_texts(buf, starts, ends, out):
    """Copy pieces of ``buf`` one behind the other.

    Parameters
    ----------
    buf : uint8[n], read
    starts, ends : int32[rows], read
    out : uint8[sum of ends - starts], written
    """
    at = 0
    for row in range(starts.shape[0]):
        for i in range(starts[row], ends[row]):
            out[at] = buf[i]
            at += 1


@njit(cache=True, nogil=True)
def log_levels(buf, starts, ends, columns, missing, levels, bad):
    """Sort the whole numbers of some columns by size: ``floor(3 * log2(1 + x))`` for x >= 0.

    Parameters
    ----------
    buf, starts, ends : read
        From ``split_fields``.
    columns : int64[c], read
    missing : uint64[m], read
        As for ``csv_rows``.
    levels : int16[rows, c], written
        0 to LEVELS - 1; -1 for a field that is empty, a missing marker or negative.
    bad : int64[rows, 2], written
        Row and column of the first field of a row that is no whole number below 2^64.

    Returns
    -------
    int
        Bad rows.
    """
    found = 0
    for row in range(starts.shape[0]):
        for c in range(columns.shape[0]):
            start, end = starts[row, columns[c]], ends[row, columns[c]]
            levels[row, c] = -1
            if _is_missing(buf, start, end, missing):
                continue
            negative = buf[start] == MINUS
            good, number = parse_key(buf, start + negative, end)
            if not good:
                bad[found, 0], bad[found, 1] = row, columns[c]
                found += 1
                break
            if not negative:
                levels[row, c] = _log_level(number)
    return found


@njit(cache=True, nogil=True)
def _log_level(number):
    """``floor(3 * log2(1 + number))`` without a logarithm, so that every machine agrees."""
    if number == np.uint64(2**64 - 1):
        return LEVELS - 1
    number += _U1
    bits = np.uint64(63) - leading_zeros(number)
    share = np.float64(number) / np.float64(_U1 << bits)
    return 3 * np.int64(bits) + (share >= _CUBE_ROOT) + (share >= _CUBE_ROOT_SQUARED)


@njit(cache=True, nogil=True)
def level_keys(levels, slots, seeds, hashes, keys):
    """Give the slots of ``log_levels`` the keys of their levels.

    Parameters
    ----------
    levels : int16[rows, c], read
        -1 leaves a key as it is.
    slots : int64[c], read
        Where the keys of each column stand.
    seeds : uint64[c], read
        Namespaces of the columns.
    hashes : uint64[LEVELS], read
        Of the text of each level.
    keys : uint64[rows, slots of a row], read and written
    """
    for row in range(levels.shape[0]):
        for c in range(slots.shape[0]):
            if levels[row, c] >= 0:
                keys[row, slots[c]] = mix(seeds[c], hashes[levels[row, c]])


@njit(cache=True, nogil=True)
def keys_of_texts(buf, ends, seeds, keys):
    """Keys of texts: ``mix`` of a seed with the XXH64 of the text.

    Parameters
    ----------
    buf : uint8[size], read
        The texts, one behind the other.
    ends : int64[n], read
        Where each text ends.
    seeds : uint64[n], read
        Its namespace.
    keys : uint64[n], written
    """
    start = 0
    for i in range(ends.shape[0]):
        keys[i] = mix(seeds[i], xxh64(buf, start, ends[i], np.uint64(0)))
        start = ends[i]
