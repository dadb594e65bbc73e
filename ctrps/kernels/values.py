"""What a feature's operator makes of one field: numbers, buckets, hits.

The instructions that call these for many rows are ``program``'s.
"""

import math

import numpy as np
from numba import njit

from ctrps.kernels.prefix import prefix_number

# Reasons why a number has no value; `ctrps.kernels.prefix` has 1 and 2.
LOG_DOMAIN = 3
SQRT_DOMAIN = 4

DIRECT, LOG, SQRT = 0, 1, 2
"""Operators of ``dense_value``."""

MOST_DIGITS = 15

_POINT = np.uint8(ord("."))
_POWERS = np.array([10.0**i for i in range(MOST_DIGITS)])


@njit(cache=True, nogil=True)
def read_number(data, start, end):
    """``prefix_number``, made fast for the usual: a few digits with at most one point.

    Parameters and results are those of ``ctrps.kernels.prefix.prefix_number``.
    """
    digits, decimals = np.int64(0), -1
    at = start
    # Fifteen digits are exact in a double, and so is the power of ten.
    good = start < end and end - start <= MOST_DIGITS
    while good and at < end:
        digit = np.int64(data[at]) - 48
        if digit >= 0 and digit <= 9:
            digits = digits * 10 + digit
            decimals += 1 if decimals >= 0 else 0
        else:
            good = data[at] == _POINT and decimals < 0 and end - start > 1
            decimals = 0
        at += 1
    if not good:
        return prefix_number(data, start, end)
    return (digits / _POWERS[decimals] if decimals > 0 else np.float64(digits)), 0


@njit(cache=True, nogil=True)
def bucket_of(value, breaks):
    """Number of the first break line that is >= value, compared as float32.

    Parameters
    ----------
    value : float64
        NaN gives -1.
    breaks : float32[m], read
        In any order.

    Returns
    -------
    int
        m when there is no such line.
    """
    if math.isnan(value):
        return -1
    small = np.float32(value)
    for i in range(breaks.shape[0]):
        if small <= breaks[i]:
            return i
    return breaks.shape[0]


@njit(cache=True, nogil=True)
def is_hit(elements, first, last, wanted, empty):
    """Whether a list holds a text. An empty list, which is one empty element, holds nothing.

    Parameters
    ----------
    elements : uint64[n], read
    first, last : int
        The list is ``elements[first:last]``.
    wanted, empty : uint64
        Hashes of the text and of the empty text.

    Returns
    -------
    bool
    """
    if last - first == 1 and elements[first] == empty:
        return False
    for i in range(first, last):
        if elements[i] == wanted:
            return True
    return False


@njit(cache=True, nogil=True)
def dense_value(operation, x):
    """A dense feature of the number ``x`` in double precision.

    Parameters
    ----------
    operation : int
        DIRECT (x), LOG (ln(x + 1)) or SQRT (√(x + 1)).
    x : float64
        NaN when the field was empty: that gives 0.

    Returns
    -------
    (float64, int)
        The value, and 0 or the reason why ``x`` has none.
    """
    if math.isnan(x):
        return 0.0, 0
    if operation == LOG:
        return (math.log1p(x), 0) if x > -1.0 else (0.0, LOG_DOMAIN)
    if operation == SQRT:
        return (math.sqrt(x + 1.0), 0) if x >= -1.0 else (0.0, SQRT_DOMAIN)
    return x, 0
