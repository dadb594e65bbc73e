"""Predictions, log loss and gradients of LR and FM over a minibatch in CSR form.

Margins (log-odds) are float32. Within a row w x is summed in float64 and the pairs of each factor
in float32, in an order that the entries alone fix; gradients are summed in float32 over the rows in
their order. Nothing here runs in parallel, so the bits of a row's margin depend on the row alone,
and those of a gradient on the batch.

Keys are distinct inside a row (``csr.take_rows`` merges repeats). Weights and gradients have one
row per key of the batch: column 0 is ``w``, FM's columns 1..dim are ``v``. They are C-contiguous,
and numbers of keys are not negative: as unsigned numbers they spare numba's check.
"""

import math

import numpy as np
from numba import njit

from ctrps.kernels.vectors import (
    EIGHT,
    FOUR,
    ONE,
    address,
    fill,
    load,
    prefetch,
    store,
    total,
)

AHEAD = 48
"""Entries between asking for the row of a key and using it: a large batch's do not fit the cache
that is near."""

_F0 = np.float32(0)
_U1, _U2, _U3, _U4 = (np.uint64(i) for i in range(1, 5))


@njit(cache=True, nogil=True)
def sigmoid(z):
    """Logistic function, without overflow and without loss of small probabilities.

    Parameters
    ----------
    z : float

    Returns
    -------
    float64

    Examples
    --------
    >>> sigmoid(0.0), sigmoid(-1000.0), sigmoid(1000.0)
    (0.5, 0.0, 1.0)
    """
    # exp only ever gets a number <= 0.
    e = math.exp(-abs(z))
    return 1.0 / (1.0 + e) if z >= 0 else e / (1.0 + e)


@njit(cache=True, nogil=True)
def logloss(z, y):
    """Log loss in nats of the margin ``z``: log(1 + exp(-z)) for a click, log(1 + exp(z)) else.

    Parameters
    ----------
    z : float
    y : float
        Label, 0 or 1.

    Returns
    -------
    float64

    Examples
    --------
    >>> logloss(0.0, 1.0) == math.log(2), logloss(1000.0, 1.0), logloss(1000.0, 0.0)
    (True, 0.0, 1000.0)
    """
    m = -z if y > 0 else z
    return max(m, 0.0) + math.log1p(math.exp(-abs(m)))


@njit(cache=True, nogil=True)
def sigmoid_rows(margins, out):
    """Probability of every row.

    Parameters
    ----------
    margins : float32[rows], read
    out : float32 or float64[rows], written
        May be ``margins``.
    """
    for r in range(margins.shape[0]):
        out[r] = sigmoid(margins[r])


@njit(cache=True, nogil=True)
def logloss_residual(margins, labels, residuals):
    """Derivative of the log loss by the margin, p - y, for every row; returns the summed loss.

    Parameters
    ----------
    margins, labels : float32[rows], read
        Labels are 0 or 1.
    residuals : float32[rows], written
        For a click -sigmoid(-z): p - 1 itself would be 0 from z = 37 on.

    Returns
    -------
    float64
        Sum of the log loss in nats, in row order.
    """
    loss = 0.0
    for r in range(margins.shape[0]):
        z = np.float64(margins[r])
        # The margin that speaks against the label: sigmoid(m) is what the residual lacks of 0.
        m = -z if labels[r] > 0 else z
        e = math.exp(-abs(m))
        p = 1.0 / (1.0 + e) if m >= 0 else e / (1.0 + e)
        residuals[r] = -p if labels[r] > 0 else p
        loss += max(m, 0.0) + math.log1p(e)
    return loss


@njit(cache=True, nogil=True)
def ordered_sum(numbers):
    """Sum in float64, first to last, rounded once: the gradient of the intercept.

    Parameters
    ----------
    numbers : float32[n], read

    Returns
    -------
    float32[1]
    """
    added = 0.0
    for i in range(numbers.shape[0]):
        added += numbers[i]
    return np.full(1, added, np.float32)


@njit(cache=True, nogil=True, inline="always")
def _wx(index, values, w, begin, end):
    """Sum of w x over entries ``begin … end``: four sums, which need not wait for each other."""
    a = b = c = d = 0.0
    i = begin
    while i + _U4 <= end:
        a += np.float64(w[np.uint32(index[i]), 0]) * np.float64(values[i])
        b += np.float64(w[np.uint32(index[i + _U1]), 0]) * np.float64(values[i + _U1])
        c += np.float64(w[np.uint32(index[i + _U2]), 0]) * np.float64(values[i + _U2])
        d += np.float64(w[np.uint32(index[i + _U3]), 0]) * np.float64(values[i + _U3])
        i += _U4
    while i < end:
        a += np.float64(w[np.uint32(index[i]), 0]) * np.float64(values[i])
        i += _U1
    return (a + b) + (c + d)


@njit(cache=True, nogil=True)
def lr_forward(indptr, index, values, w, bias, margins):
    """Margins of logistic regression: z = bias + sum of w x.

    Parameters
    ----------
    indptr : int64[rows + 1], read
    index : int32[nnz], read
        Numbers below k.
    values : float32[nnz], read
    w : float32[k, 1], read
    bias : float
    margins : float32[rows], written
    """
    for r in range(margins.shape[0]):
        begin, end = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        margins[r] = bias + _wx(index, values, w, begin, end)


@njit(cache=True, nogil=True)
def lr_gradient(indptr, index, values, residuals, g):
    """Add the gradient of the summed log loss by ``w``: residual times x.

    Parameters
    ----------
    indptr : int64[rows + 1], read
    index : int32[nnz], read
    values : float32[nnz], read
    residuals : float32[rows], read
    g : float32[k, 1], read and written
    """
    for r in range(residuals.shape[0]):
        for i in range(np.uint64(indptr[r]), np.uint64(indptr[r + 1])):
            g[np.uint32(index[i]), 0] += residuals[r] * values[i]


@njit(cache=True, nogil=True, inline="always")
def _ask(row, size):
    """Prefetch the row of ``size`` bytes at an address."""
    past = 0
    while past < size - 4:
        prefetch(row + past)
        past += 64
    prefetch(row + size - 4)


@njit(cache=True, nogil=True)
def _pairs(rows, size, index, values, begin, end, column, tag, sums):
    """The pairs of a row in some factors: each entry with the sum of those before it."""
    before, pairs = fill(tag, _F0), fill(tag, _F0)
    for i in range(begin, end):
        row = rows + np.int64(np.uint32(index[i])) * size
        vx = load(tag, row, column) * values[i]
        pairs = pairs + vx * before
        before = before + vx
    store(before, sums, column - 1)
    return total(pairs)


@njit(cache=True, nogil=True)
def fm_forward(indptr, index, values, wv, bias, margins, sums):
    """Margins of a factorisation machine: z = bias + sum w x + sum over pairs (v v') x x'.

    Parameters
    ----------
    indptr : int64[rows + 1], read
    index : int32[nnz], read
        Numbers below k, distinct inside a row.
    values : float32[nnz], read
    wv : float32[k, 1 + dim], read
    bias : float
    margins : float32[rows], written
    sums : float32[rows, dim], written
        Sum of v x over the row, for ``fm_gradient``.

    Notes
    -----
    Rendle, ICDM 2010, equation 1. The pairs are not found by his lemma 3.1, half of
    (sum v x)^2 - sum (v x)^2, but by pairing each entry with the sum of those before it: the
    same work, and no difference of two large numbers.
    """
    dim, nnz = sums.shape[1], np.uint64(index.shape[0])
    rows, size, at = address(wv), 4 * wv.shape[1], address(sums)
    for r in range(margins.shape[0]):
        begin, end = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        for i in range(begin + np.uint64(AHEAD), min(end + np.uint64(AHEAD), nnz)):
            _ask(rows + np.int64(np.uint32(index[i])) * size, size)
        z = bias + _wx(index, values, wv, begin, end)
        f = 1
        while f + 7 <= dim:
            z += _pairs(rows, size, index, values, begin, end, f, EIGHT, at)
            f += 8
        if f + 3 <= dim:
            z += _pairs(rows, size, index, values, begin, end, f, FOUR, at)
            f += 4
        while f <= dim:
            z += _pairs(rows, size, index, values, begin, end, f, ONE, at)
            f += 1
        margins[r] = z
        at += 4 * dim


@njit(cache=True, nogil=True, inline="always")
def _add_pairs(v, g, column, tag, sums, x, step):
    """Add one entry's part of the gradient by some factors: step (sum - v x)."""
    others = load(tag, sums, column - 1) - load(tag, v, column) * x
    store(load(tag, g, column) + others * step, g, column)


@njit(cache=True, nogil=True)
def fm_gradient(indptr, index, values, wv, sums, residuals, g):
    """Add the gradient of the summed log loss by ``w`` and ``v`` of a factorisation machine.

    Parameters
    ----------
    indptr : int64[rows + 1], read
    index : int32[nnz], read
        Distinct inside a row.
    values : float32[nnz], read
    wv : float32[k, 1 + dim], read
    sums : float32[rows, dim], read
        From ``fm_forward``.
    residuals : float32[rows], read
    g : float32[k, 1 + dim], read and written

    Notes
    -----
    Rendle, ICDM 2010, equation 4: dz/dw = x, dz/dv_f = x (sum_f - v_f x).
    """
    dim, nnz = sums.shape[1], np.uint64(index.shape[0])
    rows, out, size, before = address(wv), address(g), 4 * wv.shape[1], address(sums)
    for r in range(residuals.shape[0]):
        for i in range(np.uint64(indptr[r]), np.uint64(indptr[r + 1])):
            if i + np.uint64(AHEAD) < nnz:
                at = np.int64(np.uint32(index[i + np.uint64(AHEAD)])) * size
                _ask(rows + at, size)
                _ask(out + at, size)
            at, x = np.int64(np.uint32(index[i])) * size, values[i]
            step = residuals[r] * x
            g[np.uint32(index[i]), 0] += step
            f = 1
            while f + 7 <= dim:
                _add_pairs(rows + at, out + at, f, EIGHT, before, x, step)
                f += 8
            if f + 3 <= dim:
                _add_pairs(rows + at, out + at, f, FOUR, before, x, step)
                f += 4
            while f <= dim:
                _add_pairs(rows + at, out + at, f, ONE, before, x, step)
                f += 1
        before += 4 * dim
