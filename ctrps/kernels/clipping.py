"""Gradients that are too large, made smaller. Infinite limits clip nothing."""

import math

import numpy as np
from numba import njit

_F1 = np.float32(1)


@njit(cache=True, nogil=True)
def clip_rows(gradients, counts, head, tail, most, longest, out):
    """Gradients of a step, such that what optimisers take of them is within limits.

    An optimiser takes g = gradient * scale / (1 + count * crowd), by its rule (``optimizers``).
    First every g is brought into [-most, most]; then, if the Euclidean length of a row of g is
    above ``longest``, the row is scaled down to it.

    Parameters
    ----------
    gradients : float32[k, dim], read
        Finite. Sums over the rows of a step; dim = head.width + tail.width.
    counts : int32[k], read
        Rows of the step that hold the key.
    head, tail : Rule
    most : float32, > 0
    longest : float64, > 0
    out : float32[k, dim], written
        May be ``gradients``.
    """
    for i in range(gradients.shape[0]):
        count = np.float32(counts[i])
        of_head = head.scale / (_F1 + count * head.crowd)
        of_tail = tail.scale / (_F1 + count * tail.crowd)
        square = 0.0
        for j in range(gradients.shape[1]):
            factor = of_head if j < head.width else of_tail
            limit = most / factor
            g = min(max(gradients[i, j], -limit), limit)
            out[i, j] = g
            square += np.float64(g * factor) ** 2
        if square > longest * longest:
            shrink = np.float32(longest / math.sqrt(square))
            for j in range(gradients.shape[1]):
                out[i, j] *= shrink


@njit(cache=True, nogil=True)
def square_sum(numbers):
    """Sum of the squares of float32[n], float64, added in order."""
    total = 0.0
    for i in range(numbers.shape[0]):
        total += np.float64(numbers[i]) ** 2
    return total
