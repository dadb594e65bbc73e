"""Gradients of weights that others have changed since, corrected to first order."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def compensate(gradients, counts, now, then, rate, out):
    """What gradients would about be at the present weights.

    ::

        g' = g + rate * g * g / count * (now - then)

    Zheng et al., ICML 2017, equation 10, approximate the Hessian of a loss by rate times the square
    of its gradient. Theirs is the mean over a minibatch. Here a gradient is a sum over ``count``
    rows, and the Hessian of a sum is ``count`` times that of the mean (g / count).

    Parameters
    ----------
    gradients : float32[k, dim], read
        Sums over the rows of a batch.
    counts : int32[k], read, > 0
        Rows of the batch that hold the key.
    now, then : float32[k, dim], read
        The weights as they are, and as they were when the gradients were computed.
    rate : float32
        lambda.
    out : float32[k, dim], written
        May be ``gradients``.
    """
    for i in range(gradients.shape[0]):
        by = rate / np.float32(counts[i])
        for j in range(gradients.shape[1]):
            g = gradients[i, j]
            out[i, j] = g + by * g * g * (now[i, j] - then[i, j])
