"""Bytes of text to numbers: single numbers, keys and labels, rows of the libsvm and dummy formats.

``libsvm_rows`` and ``dummy_rows`` work on a buffer whose last line may be
broken off, and say how far they got, so that the caller can put more bytes
behind the rest. A row that cannot be read is reported by its place and left
out; nothing is guessed.
Tables of fields are ``fields``'s business, files and the wording of errors
``ctrps.data``'s.
"""

import numpy as np
from numba import njit

from ctrps.kernels.bits import digits_before, eight_bytes, number_before

NEWLINE, RETURN, TAB, BLANK = 10, 13, 9, 32
PLUS, MINUS, POINT, COLON, ZERO, NINE = 43, 45, 46, 58, 48, 57

GOOD, BAD, INEXACT = 0, 1, 2
"""Status of ``parse_number``."""

REQUIRED, OPTIONAL, NONE = 0, 1, 2
"""Whether rows hold a label; with OPTIONAL the row itself shows it."""

LABEL, FEATURE, INDEX = 1, 2, 14
"""Reasons of bad rows: what was expected at the given place."""

TEN = np.uint64(10)
LAST_KEY = np.uint64(2**64 - 1)
MAX_DIGITS = 19  # every number of 19 digits fits 64 bits
_TENS = np.array([10**e for e in range(8)], np.uint64)
_ROOM = 24  # bytes that a plain pair is looked at ahead
POWERS = np.array([float(10**e) for e in range(23)])  # 10^22 is the last exact double
EXACT = np.uint64(1 << 53)
# At most seven roundings of half a unit in 2^53 happen on the way to an inexact number.
SLACK = 2.0**-49


@njit(cache=True, nogil=True)
def parse_number(buf, start, end):
    """Read ``buf[start:end]`` as a decimal number.

    The grammar is ``[+-] digits [. digits] [e [+-] digits]`` with a digit on
    at least one side of the point: no blanks, no ``nan``, ``inf`` or hex.

    Parameters
    ----------
    buf : uint8[n], read
    start, end : int

    Returns
    -------
    status : int
        GOOD; BAD when it is no number, or none that float32 can hold; INEXACT
        when it lies so close to the middle of two float32 that only a longer
        calculation can tell: ask ``float(text)``.
    value : float64
        Rounds to the float32 that ``float32(float(text))`` is. It equals
        ``float(text)`` for at most 2^53 without its point and an exponent of
        22 or less (Clinger, "How to read floating point numbers accurately",
        PLDI 1990: one correctly rounded operation on exact operands).

    Examples
    --------
    >>> parse_number(np.frombuffer(b"-1.25e2", np.uint8), 0, 7)
    (0, -125.0)
    """
    if end - start == 1 and ZERO <= buf[start] <= NINE:  # the most frequent number of all is 1
        return GOOD, float(buf[start] - ZERO)
    at = start
    negative = False
    if at < end and (buf[at] == PLUS or buf[at] == MINUS):
        negative = buf[at] == MINUS
        at += 1
    digits = at
    at, mantissa, kept, dropped = _digits(buf, at, end, np.uint64(0), 0)
    seen = at - digits
    exponent = dropped
    if at < end and buf[at] == POINT:
        digits = at + 1
        at, mantissa, kept, lost = _digits(buf, digits, end, mantissa, kept)
        seen += at - digits
        exponent -= at - digits - lost
        dropped += lost
    if seen == 0:
        return BAD, 0.0
    power, at = _exponent(buf, at, end)
    if at != end:
        return BAD, 0.0
    status, value = _scaled(mantissa, exponent + power, dropped > 0)
    return status, -value if negative else value


@njit(cache=True, nogil=True)
def _digits(buf, at, end, mantissa, kept):
    """Append digits to ``mantissa`` while it has room; count those that found none."""
    dropped = 0
    while at < end and ZERO <= buf[at] <= NINE:
        if kept < MAX_DIGITS:
            mantissa = mantissa * TEN + np.uint64(buf[at] - ZERO)
            kept += mantissa > np.uint64(0)
        else:
            dropped += 1
        at += 1
    return at, mantissa, kept, dropped


@njit(cache=True, nogil=True)
def _exponent(buf, at, end):
    """Read ``e[+-]digits``, if it is there; a malformed one leaves ``at`` where it was."""
    begin = at
    if at == end or (buf[at] | 32) != 101:  # e or E
        return 0, at
    at += 1
    negative = at < end and buf[at] == MINUS
    if at < end and (buf[at] == PLUS or buf[at] == MINUS):
        at += 1
    if at == end:
        return 0, begin
    power = 0
    while at < end and ZERO <= buf[at] <= NINE:
        # Text of a gigabyte of zeros after the point is still far below this.
        power = min(power * 10 + buf[at] - ZERO, 1 << 40)
        at += 1
    return -power if negative else power, at


@njit(cache=True, nogil=True)
def _scaled(mantissa, exponent, rest):
    """``mantissa * 10^exponent`` and its status; ``rest``: digits were cut off behind."""
    value = float(mantissa)
    if mantissa == np.uint64(0) or exponent < -70:
        return GOOD, 0.0
    if exponent > 38:
        return BAD, 0.0
    exact = not rest and mantissa <= EXACT and -22 <= exponent <= 22
    while exponent > 0:
        step = min(exponent, 22)
        value *= POWERS[step]
        exponent -= step
    while exponent < 0:
        step = min(-exponent, 22)
        value /= POWERS[step]
        exponent += step
    low, high = (value, value) if exact else (value * (1 - SLACK), value * (1 + SLACK))
    if not np.isfinite(np.float32(high)):
        return BAD, 0.0
    return (GOOD if np.float32(low) == np.float32(high) else INEXACT), value


@njit(cache=True, nogil=True)
def parse_key(buf, start, end):
    """Read ``buf[start:end]`` as a key, digits only, 0 to 2^64 - 1.

    Returns
    -------
    good : bool
    key : uint64
    """
    size = np.uint64(end - start)
    if 0 < size <= 8 and start + 8 <= buf.shape[0]:
        word = eight_bytes(buf, start)
        return digits_before(word) >= size, number_before(word, size)
    key = np.uint64(0)
    fits = start < end
    for at in range(start, end):
        if not ZERO <= buf[at] <= NINE:
            return False, key
        digit = np.uint64(buf[at] - ZERO)
        if at - start >= MAX_DIGITS:
            fits &= key < LAST_KEY // TEN or (key == LAST_KEY // TEN and digit <= LAST_KEY % TEN)
        key = key * TEN + digit
    return fits, key


@njit(cache=True, nogil=True)
def parse_label(buf, start, end):
    """Read ``buf[start:end]`` as a label: 0, 1 or -1 however written; -1 means 0.

    Returns
    -------
    good : bool
    label : float32
    """
    status, value = parse_number(buf, start, end)
    good = status == GOOD and (value == 0.0 or value == 1.0 or value == -1.0)
    return good, np.float32(1.0 if value == 1.0 else 0.0)


@njit(cache=True, nogil=True)
def find(buf, at, end, byte):
    """First position of ``byte`` in ``buf[at:end]``, uint8; ``end`` if there is none."""
    while at < end and buf[at] != byte:
        at += 1
    return at


@njit(cache=True, nogil=True)
def trim(buf, start, end):
    """Borders of ``buf[start:end]``, uint8, without blanks, tabs and returns around it."""
    while start < end and (buf[start] == BLANK or buf[start] == TAB):
        start += 1
    while end > start and (buf[end - 1] == BLANK or buf[end - 1] == TAB or buf[end - 1] == RETURN):
        end -= 1
    return start, end


@njit(cache=True, nogil=True)
def libsvm_rows(buf, final, mode, keys, values, counts, labels, bad, asked):
    """Read lines ``label key:value key:value ...``.

    Blanks and tabs separate; blank lines are skipped. Reading stops behind
    the last whole line, or when ``bad`` is full.

    Parameters
    ----------
    buf : uint8[n], read
        Starts at the start of a line.
    final : bool
        The file ends with ``buf``, so a last line needs no line end.
    mode : int
        REQUIRED: the first token is the label. NONE: it is a feature.
        OPTIONAL: it is the label if it has no colon.
    keys, values : uint64[m], float32[m], written
        m >= n // 4 + 1; in row order.
    counts, labels : int32[r], float32[r], written
        r >= n // 2 + 1; features of a row, and its label or NaN.
    bad : int64[b, 3], written, b >= 1
        Reason and borders in ``buf`` of the first bad piece of a row.
    asked : int32[n // 5 + 1, 3], written
        Position in ``values`` and borders in ``buf`` of numbers that are
        INEXACT (see ``parse_number``); ``values`` holds a neighbour.

    Returns
    -------
    position, rows, nnz, bad rows, numbers asked : int
    """
    at = rows = nnz = found = asks = 0
    while at < buf.shape[0] and found < bad.shape[0]:
        after, have, ask = _plain_libsvm_row(
            buf, at, mode, keys, values, labels, rows, nnz, asked, asks
        )
        if after > at:
            counts[rows] = have - nnz
            at, rows, nnz, asks = after, rows + 1, have, ask
            continue
        end = find(buf, at, buf.shape[0], NEWLINE)
        if end == buf.shape[0] and not final:
            break
        first, last = trim(buf, at, end)
        if first < last:
            reason, to, labels[rows] = _libsvm_label(buf, first, last, mode)
            begin, have, ask = first, nnz, asks
            while reason == GOOD and to < last:
                begin, _ = trim(buf, to, last)
                to = _token_end(buf, begin, last)
                reason, ask = _libsvm_pair(buf, begin, to, keys, values, have, asked, ask)
                have += 1
            if reason == GOOD:
                counts[rows] = have - nnz
                rows, nnz, asks = rows + 1, have, ask
            else:
                bad[found, 0], bad[found, 1], bad[found, 2] = reason, begin, to
                found += 1
        at = end + 1
    return min(at, buf.shape[0]), rows, nnz, found, asks


@njit(cache=True, nogil=True)
def _plain_libsvm_row(buf, at, mode, keys, values, labels, row, have, asked, asks):
    """Read a row as programs write it, eight bytes at a time; return its end, nnz, asks.

    The end is ``at`` where the row is of another kind, perhaps a bad one, or too near the end of
    ``buf`` to look at eight bytes: then nothing is said of it.
    """
    begin, before, last = at, have, buf.shape[0] - _ROOM
    labels[row] = np.nan
    if mode != NONE and at < last:
        sign = 1 if buf[at] == MINUS or buf[at] == PLUS else 0
        digit = buf[at + sign] - ZERO
        if 0 <= digit <= 1 and buf[at + sign + 1] == BLANK:
            labels[row] = digit if buf[at] != MINUS else 0
            at += sign + 2
        elif mode == REQUIRED:
            return begin, have, asks
    while at < last:
        word = eight_bytes(buf, at)
        count = digits_before(word)
        if count == 0:
            ends = buf[at] == NEWLINE and buf[at - 1] == BLANK and have > before
            return at + 1 if ends else begin, have, asks
        key = number_before(word, count)
        at += np.int64(count)
        if count == 8:
            word = eight_bytes(buf, at)
            count = digits_before(word)
            if count == 8:
                return begin, have, asks
            if count > 0:
                key = key * _TENS[count] + number_before(word, count)
                at += np.int64(count)
        if buf[at] != COLON:
            return begin, have, asks
        keys[have] = key
        start, at = at + 1, at + 2
        digit, behind = buf[start] - ZERO, buf[at]
        if 0 <= digit <= 9 and (behind == BLANK or behind == NEWLINE):
            values[have] = digit
        else:
            at = start
            while at < last and buf[at] != BLANK and buf[at] != NEWLINE:
                at += 1
            status, value = parse_number(buf, start, at)
            if status == BAD:
                return begin, have, asks
            values[have], behind = value, buf[at]
            if status == INEXACT:
                asked[asks, 0], asked[asks, 1], asked[asks, 2] = have, start, at
                asks += 1
        have += 1
        at += 1
        if behind == NEWLINE:
            return at, have, asks
    return begin, have, asks


@njit(cache=True, nogil=True)
def _token_end(buf, at, end):
    while at < end and buf[at] != BLANK and buf[at] != TAB:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _libsvm_label(buf, start, end, mode):
    """Return reason, end of the label (``start`` where there is none) and the label."""
    none = np.float32(np.nan)
    to = _token_end(buf, start, end)
    if mode == NONE or (mode == OPTIONAL and find(buf, start, to, COLON) < to):
        return GOOD, start, none
    good, label = parse_label(buf, start, to)
    return (GOOD if good else LABEL), to, label if good else none


@njit(cache=True, nogil=True)
def _libsvm_pair(buf, start, end, keys, values, at, asked, asks):
    """Read ``key:value`` into position ``at``; return reason and numbers asked."""
    colon = find(buf, start, end, COLON)
    good, key = parse_key(buf, start, colon)
    status, value = parse_number(buf, min(colon + 1, end), end)
    if not good or status == BAD:
        return FEATURE, asks
    keys[at], values[at] = key, value
    if status == INEXACT:
        asked[asks, 0], asked[asks, 1], asked[asks, 2] = at, colon + 1, end
        asks += 1
    return GOOD, asks


@njit(cache=True, nogil=True)
def dummy_rows(buf, final, mode, keys, counts, labels, bad):
    """Read lines ``label index index ...``: the libsvm format without values, each of which is 1.

    As ``libsvm_rows``, but a row does not show whether it begins with a label.

    Parameters
    ----------
    buf, final
        As there.
    mode : int
        NONE: the first token is an index. Otherwise it is the label.
    keys : uint64[m], written
        m >= n // 2 + 1; in row order.
    counts, labels
        As there.
    bad : int64[b, 3], written, b >= 1
        As there; reasons are LABEL and INDEX.

    Returns
    -------
    position, rows, nnz, bad rows : int
    """
    at = rows = nnz = found = 0
    labelled = NONE if mode == NONE else REQUIRED
    while at < buf.shape[0] and found < bad.shape[0]:
        end = find(buf, at, buf.shape[0], NEWLINE)
        if end == buf.shape[0] and not final:
            break
        first, last = trim(buf, at, end)
        if first < last:
            reason, to, labels[rows] = _libsvm_label(buf, first, last, labelled)
            begin, have = first, nnz
            while reason == GOOD and to < last:
                begin, _ = trim(buf, to, last)
                to = _token_end(buf, begin, last)
                good, keys[have] = parse_key(buf, begin, to)
                reason = GOOD if good else INDEX
                have += 1
            if reason == GOOD:
                counts[rows] = have - nnz
                rows, nnz = rows + 1, have
            else:
                bad[found, 0], bad[found, 1], bad[found, 2] = reason, begin, to
                found += 1
        at = end + 1
    return min(at, buf.shape[0]), rows, nnz, found
