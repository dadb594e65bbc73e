"""Optimisers: one step on some rows of a table, in place.

A row is ``[weights of all parts | state of part 1 | state of part 2 ...]`` in float32. A part is
``m`` weight columns from ``at``, with its state from column ``state``; column j of a gradient
belongs to column j of the row. A step touches the rows it is given and no other, penalties
included. Row numbers are distinct: sums of repeated keys are formed before (``csr.fold``).

Each coordinate is computed in float64 from what is stored and rounded to float32 when stored.
The gradient g that the formulas name is ``gradients * scale / (1 + count / count_scale)``: sums
over the rows of the step times ``scale`` (1 for sums, 1/rows for means), divided for keys that
stand in many of the rows where ``count_scale`` > 0. A coordinate whose g is 0 moves by its
penalty only.
"""

import math

import numpy as np
from numba import njit

from ctrps.kernels.keys import initial


@njit(cache=True, nogil=True)
def _factor(count, scale, count_scale):
    return scale / (1.0 + count / count_scale) if count_scale > 0 else scale


@njit(cache=True, nogil=True)
def ftrl(rows, where, gradients, counts, at, m, state, scale, count_scale, alpha, beta, l1, l2):
    """FTRL-Proximal: L1 keeps rare keys at exactly 0.

    ::

        s = (sqrt(n + g^2) - sqrt(n)) / alpha
        z = z + g - s w
        n = n + g^2
        w = 0 where |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2)

    Parameters
    ----------
    rows : float32[r, width], read and written
        State columns: z[m], then n[m].
    where : int64[k], read
        Distinct row numbers.
    gradients : float32[k, dim], read
    counts : int32[k], read
        Rows of the step that hold the key.
    at, m, state : int
        First weight column, weight columns, first state column.
    scale, count_scale : float
        See the module.
    alpha, beta : float
        Learning rate alpha / (beta + sqrt(n)); alpha > 0, beta >= 0.
    l1, l2 : float, >= 0
        Penalties, applied per coordinate and not per example.

    Notes
    -----
    McMahan et al., KDD 2013, Algorithm 1, except that w is refreshed after the update rather than
    before the next prediction: a pull must be a plain read. A coordinate with g = 0 is left
    alone, which changes nothing once it has moved, and keeps a random start until then.

    Examples
    --------
    >>> rows = np.zeros((1, 3), np.float32)
    >>> where, counts = np.zeros(1, np.int64), np.ones(1, np.int32)
    >>> for g in (-3.0, -1.0, 5.5):
    ...     ftrl(rows, where, np.float32([[g]]), counts, 0, 1, 1, 1.0, 0.0, 0.1, 1.0, 1.0, 0.0)
    ...     print("{:.4f} {:.4f} {:.2f}".format(*rows[0]))
    0.0500 -3.0000 9.00
    0.0740 -4.0811 10.00
    0.0000 -0.9366 40.25
    """
    for i in range(where.shape[0]):
        row, factor = where[i], _factor(counts[i], scale, count_scale)
        for j in range(m):
            g = gradients[i, at + j] * factor
            if g == 0:
                continue
            w, z, n = at + j, state + j, state + m + j
            root = math.sqrt(rows[row, n])
            rows[row, n] += g * g
            root_new = math.sqrt(rows[row, n])
            rows[row, z] += g - (root_new - root) / alpha * rows[row, w]
            drift = np.float64(rows[row, z])
            if abs(drift) <= l1:
                rows[row, w] = 0
            else:
                rows[row, w] = (math.copysign(l1, drift) - drift) / ((beta + root_new) / alpha + l2)


@njit(cache=True, nogil=True)
def adagrad(rows, where, gradients, counts, at, m, state, scale, count_scale, alpha, beta, l2):
    """AdaGrad per coordinate.

    ::

        g = g + l2 w
        n = n + g^2
        w = w - alpha g / (beta + sqrt(n))

    Parameters
    ----------
    rows : float32[r, width], read and written
        State columns: n[m], from 0.
    where, gradients, counts, at, m, state, scale, count_scale
        As in ``ftrl``.
    alpha, beta : float
        Learning rate alpha / (beta + sqrt(n)); alpha > 0, beta >= 0.
    l2 : float, >= 0
        Penalty l2/2 w^2, once for each step that touches the row.

    Notes
    -----
    Duchi, Hazan, Singer, JMLR 12 (2011), figure 1 with the diagonal matrix; beta is their delta.

    Examples
    --------
    >>> rows = np.zeros((1, 2), np.float32)
    >>> where, counts = np.zeros(1, np.int64), np.ones(1, np.int32)
    >>> for g in (3.0, -4.0):
    ...     adagrad(rows, where, np.float32([[g]]), counts, 0, 1, 1, 1.0, 0.0, 0.1, 1.0, 0.0)
    ...     print("{:.4f} {:.1f}".format(*rows[0]))
    -0.0750 9.0
    -0.0083 25.0
    """
    for i in range(where.shape[0]):
        row, factor = where[i], _factor(counts[i], scale, count_scale)
        for j in range(m):
            w, n = at + j, state + j
            g = gradients[i, w] * factor + l2 * rows[row, w]
            if g == 0:
                continue
            rows[row, n] += g * g
            rows[row, w] -= alpha * g / (beta + math.sqrt(rows[row, n]))


@njit(cache=True, nogil=True)
def sgd(rows, where, gradients, counts, at, m, scale, count_scale, alpha, l2):
    """Plain gradient descent: w = w - alpha (g + l2 w).

    Parameters
    ----------
    rows : float32[r, width], read and written
        No state columns.
    where, gradients, counts, at, m, scale, count_scale
        As in ``ftrl``.
    alpha : float, > 0
    l2 : float, >= 0
        Penalty l2/2 w^2, once for each step that touches the row.

    Examples
    --------
    >>> rows, where = np.float32([[1.0]]), np.zeros(1, np.int64)
    >>> sgd(rows, where, np.float32([[4.0]]), np.ones(1, np.int32), 0, 1, 0.5, 0.0, 0.1, 1.0)
    >>> f"{rows[0, 0]:.4f}"
    '0.7000'
    """
    for i in range(where.shape[0]):
        row, factor = where[i], _factor(counts[i], scale, count_scale)
        for w in range(at, at + m):
            rows[row, w] -= alpha * (gradients[i, w] * factor + l2 * rows[row, w])


@njit(cache=True, nogil=True)
def count(rows, where, counts, at, m):
    """No learning: a weight counts the rows of data that hold its key.

    Whole numbers below 2^24 are exact in float32, so a gradient that was lost or applied twice
    shows as a difference to a count of the data.

    Parameters
    ----------
    rows : float32[r, width], read and written
        No state columns.
    where : int64[k], read
    counts : int32[k], read
    at, m : int
        First column of the part, and how many.

    Examples
    --------
    >>> rows = np.float32([[2.0]])
    >>> count(rows, np.zeros(1, np.int64), np.int32([3]), 0, 1)
    >>> float(rows[0, 0])
    5.0
    """
    for i in range(where.shape[0]):
        for w in range(at, at + m):
            rows[where[i], w] += counts[i]


@njit(cache=True, nogil=True)
def init_rows(rows, first, keys, seed, at, m, scale):
    """Starting weights of new rows, from a hash of (seed, key, column).

    Parameters
    ----------
    rows : float32[r, width], columns at..at+m of rows first..first+k written
    first : int
        Row of ``keys[0]``; the others follow.
    keys : uint64[k], read
    seed : uint64
    at, m : int
        First weight column and number of columns.
    scale : float
        Standard deviation.
    """
    for i in range(keys.shape[0]):
        for j in range(at, at + m):
            rows[first + i, j] = np.float32(scale) * initial(seed, keys[i], j)


@njit(cache=True, nogil=True)
def initial_rows(out, where, keys, seed, at, m, scale):
    """What ``init_rows`` would write, for the absent keys of a pull.

    Parameters
    ----------
    out : float32[k, dim], columns at..at+m of absent keys written
    where : int64[k], read
        Row of each key; -1 is absent.
    keys : uint64[k], read
    seed, at, m, scale
        As in ``init_rows``.
    """
    for i in range(keys.shape[0]):
        if where[i] < 0:
            for j in range(at, at + m):
                out[i, j] = np.float32(scale) * initial(seed, keys[i], j)
