"""Whether numbers that came from elsewhere may be computed with: one look at each, no copies."""

import numpy as np
from numba import njit

_EXPONENT = np.uint32(0x7F800000)


def bits(numbers: np.ndarray) -> np.ndarray:
    """The words uint32[n] of an array of n float32 numbers."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint32)


@njit(cache=True, nogil=True)
def finite(words):
    """Whether no number is infinite or none at all (nan).

    Parameters
    ----------
    words : uint32[n], read
        Of float32 numbers.
    """
    bad = 0
    for i in range(words.shape[0]):
        bad += (words[i] & _EXPONENT) == _EXPONENT
    return bad == 0


@njit(cache=True, nogil=True)
def positive(counts):
    """Whether all counts, int32[n], read, are above 0."""
    bad = 0
    for i in range(counts.shape[0]):
        bad += counts[i] <= 0
    return bad == 0
