"""Numbers as the longest numeric prefix of a text: the rule of feature files.

``35.5yuan`` is 35.5, ``0x10`` is 16. This is what the C library's ``strtod`` does, less ``nan``
and ``inf``, which are no numbers to learn from. Input formats with numbers of their own are
stricter and use ``ctrps.kernels.text``.
"""

import math

import numpy as np
from numba import njit

NOT_A_NUMBER = 1
NOT_FINITE = 2

# Correctly rounded, which repeated multiplication is not.
_POWERS = np.array([float(f"1e{i}") for i in range(309)])

_SPACE, _PLUS, _MINUS, _POINT, _ZERO = (np.uint8(ord(c)) for c in " +-.0")


@njit(cache=True, nogil=True)
def _digit(byte):
    return byte >= _ZERO and byte <= np.uint8(57)


@njit(cache=True, nogil=True)
def _hex_value(byte):
    """Value of a hexadecimal digit, or -1."""
    lower = byte | np.uint8(0x20)
    if _digit(byte):
        return np.int64(byte) - 48
    if lower >= np.uint8(97) and lower <= np.uint8(102):
        return np.int64(lower) - 87
    return -1


@njit(cache=True, nogil=True)
def _exponent(data, at, end, letter):
    """The number after an exponent's letter at ``at``, 0 when there is none."""
    if at >= end or (data[at] | np.uint8(0x20)) != letter:
        return 0
    at += 1
    negative = at < end and data[at] == _MINUS
    if at < end and (data[at] == _PLUS or data[at] == _MINUS):
        at += 1
    value = 0
    while at < end and _digit(data[at]):
        # Enough to overflow or vanish whatever the digits before it say.
        value = min(value * 10 + int(data[at]) - 48, 100_000)
        at += 1
    return -value if negative else value


@njit(cache=True, nogil=True)
def _scaled(digits, exponent):
    """``digits * 10**exponent``; exact inputs up to 2^53 and 10^22 give the nearest double."""
    value = np.float64(digits)
    if digits == 0 or exponent == 0:
        return value
    if exponent > 0:
        return value * _POWERS[exponent] if exponent <= 308 else math.inf
    if exponent >= -308:
        return value / _POWERS[-exponent]
    return value / _POWERS[308] / _POWERS[min(-exponent - 308, 308)]


@njit(cache=True, nogil=True)
def _decimal(data, at, end):
    """(value, digits seen) of a decimal number at ``at``."""
    digits = np.uint64(0)
    exponent = 0
    seen = 0
    point = False
    while at < end:
        if data[at] == _POINT and not point:
            point = True
        elif _digit(data[at]):
            seen += 1
            # Digits beyond the nineteenth cannot be held, only counted.
            if digits < np.uint64(1_000_000_000_000_000_000):
                digits = digits * np.uint64(10) + np.uint64(data[at] - _ZERO)
                exponent -= 1 if point else 0
            else:
                exponent += 0 if point else 1
        else:
            break
        at += 1
    if seen > 0:
        exponent += _exponent(data, at, end, np.uint8(ord("e")))
    return _scaled(digits, exponent), seen


@njit(cache=True, nogil=True)
def _hexadecimal(data, at, end):
    """(value, digits seen) of a hexadecimal number whose first digit is at ``at``."""
    digits = np.int64(0)
    exponent = 0
    seen = 0
    point = False
    while at < end:
        value = _hex_value(data[at])
        if data[at] == _POINT and not point:
            point = True
        elif value >= 0:
            seen += 1
            if digits < np.int64(1) << 58:
                digits = digits * 16 + value
                exponent -= 4 if point else 0
            else:
                exponent += 0 if point else 4
        else:
            break
        at += 1
    exponent += _exponent(data, at, end, np.uint8(ord("p")))
    return math.ldexp(float(digits), exponent), seen


@njit(cache=True, nogil=True)
def _is_word(data, at, end, a, b, c):
    return (
        end - at >= 3
        and (data[at] | np.uint8(0x20)) == a
        and (data[at + 1] | np.uint8(0x20)) == b
        and (data[at + 2] | np.uint8(0x20)) == c
    )


@njit(cache=True, nogil=True)
def prefix_number(data, start, end):
    """The longest numeric prefix of a field, after leading blanks: ``12abc`` is 12, ``0x10`` 16.

    Parameters
    ----------
    data : uint8[size], read
    start, end : int
        The field is ``data[start:end]``.

    Returns
    -------
    (float64, int)
        The number and 0; NaN and 0 for an empty field; NaN and NOT_A_NUMBER or NOT_FINITE for
        ``NULL``, blanks, ``nan``, ``inf``, ``1e400`` and every field with a zero byte in it.
    """
    if start == end:
        return math.nan, 0
    for i in range(start, end):
        if data[i] == 0:
            return math.nan, NOT_A_NUMBER
    at = start
    while at < end and (data[at] == _SPACE or (data[at] >= 9 and data[at] <= 13)):
        at += 1
    negative = at < end and data[at] == _MINUS
    if at < end and (data[at] == _PLUS or data[at] == _MINUS):
        at += 1
    if _is_word(data, at, end, 110, 97, 110) or _is_word(data, at, end, 105, 110, 102):
        return math.nan, NOT_FINITE
    value, seen = 0.0, 0
    if end - at > 2 and data[at] == _ZERO and (data[at + 1] | np.uint8(0x20)) == 120:
        value, seen = _hexadecimal(data, at + 2, end)
    if seen == 0:
        value, seen = _decimal(data, at, end)
    if seen == 0:
        return math.nan, NOT_A_NUMBER
    if math.isinf(value):
        return math.nan, NOT_FINITE
    return (-value if negative else value), 0
