"""Predictions, log loss and gradients of LR and FM over a minibatch in CSR form.

Margins (log-odds) are float32; within a row they are summed in float64, in the order of the
entries, and gradients are summed in float32 over the rows in their order. Nothing here runs in
parallel, so the bits depend on the batch alone.

Keys are distinct inside a row (``csr.take_rows`` merges repeats). Weights and gradients have one
row per key of the batch: column 0 is ``w``, FM's columns 1..dim are ``v``.
"""

import math

import numpy as np
from numba import njit


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
    total = 0.0
    for r in range(margins.shape[0]):
        z = np.float64(margins[r])
        residuals[r] = -sigmoid(-z) if labels[r] > 0 else sigmoid(z)
        total += logloss(z, labels[r])
    return total


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
    total = 0.0
    for i in range(numbers.shape[0]):
        total += numbers[i]
    return np.full(1, total, np.float32)


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
        z = np.float64(bias)
        for i in range(indptr[r], indptr[r + 1]):
            z += np.float64(w[index[i], 0]) * np.float64(values[i])
        margins[r] = z


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
        for i in range(indptr[r], indptr[r + 1]):
            g[index[i], 0] += residuals[r] * values[i]


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
    dim = sums.shape[1]
    for r in range(margins.shape[0]):
        z = np.float64(bias)
        sums[r, :] = 0
        for i in range(indptr[r], indptr[r + 1]):
            key, x = index[i], values[i]
            z += np.float64(wv[key, 0]) * np.float64(x)
            pairs = np.float32(0)
            for f in range(dim):
                vx = wv[key, 1 + f] * x
                pairs += vx * sums[r, f]
                sums[r, f] += vx
            z += np.float64(pairs)
        margins[r] = z


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
    for r in range(residuals.shape[0]):
        for i in range(indptr[r], indptr[r + 1]):
            key, x = index[i], values[i]
            step = residuals[r] * x
            g[key, 0] += step
            for f in range(sums.shape[1]):
                g[key, 1 + f] += step * (sums[r, f] - wv[key, 1 + f] * x)
