"""Optimisers: how the columns of one part of a row move in one step.

A part is ``width`` weights side by side and, behind them, a run of as many numbers for each state
of its optimiser. ``moved`` computes a step on vectors of columns in registers (``vectors``), so a
row at a time (``fused``) and a step over a minibatch (``store``) share every formula, and with a
step of one row they give the same numbers.

The gradient g that the formulas name is the caller's times a factor: sums over the rows of the step
times ``scale`` (1 for sums, 1/rows for means), divided by 1 + count / c0 for keys that stand in
many of the rows where the count rule is on. Everything is float32 and rounds after each operation,
on every processor alike; the difference of roots, which would lose its digits, is written as sqrt(n
+ g^2) - sqrt(n) = ((n + g^2) - n) / (sqrt(n + g^2) + sqrt(n)).
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ctrps.kernels.vectors import at_most, gather, load, root, scatter, store

FTRL, ADAGRAD, SGD, COUNT = range(4)

GROUP = 8
"""Rows whose single columns move together."""

_F0 = np.float32(0)


class Rule(NamedTuple):
    """Where a part stands after an address, and how it learns.

    Attributes
    ----------
    kind : int
        FTRL, ADAGRAD, SGD or COUNT.
    alpha, inverse, beta, l1, l2 : float32
        Learning rate alpha / (beta + sqrt(n)), with ``inverse`` = 1 / alpha, and penalties.
    scale : float32
        What gradients are multiplied by.
    crowd : float32
        1 / c0 of the count rule; 0 is off.
    start : float32
        Standard deviation of new weights.
    at, z, n : int
        First weight column and first column of each state, as float32 numbers after the address;
        a rule without one of the states names ``at`` instead.
    width : int
        Weight columns; 0 for a part that is not there.
    """

    kind: int
    alpha: np.float32
    inverse: np.float32
    beta: np.float32
    l1: np.float32
    l2: np.float32
    scale: np.float32
    crowd: np.float32
    start: np.float32
    at: int
    z: int
    n: int
    width: int


@njit(cache=True, nogil=True)
def _ftrl(rule, w, z, n, g):
    square = g * g
    n_new = n + square
    root_new = root(n_new)
    z_new = z + g - (n_new - n) / (root_new + root(n)) * rule.inverse * w
    beyond = at_most(z_new, _F0, _F0 - z_new, z_new) - rule.l1
    size = beyond / ((rule.beta + root_new) * rule.inverse + rule.l2)
    w_new = at_most(beyond, _F0, _F0, at_most(z_new, _F0, size, _F0 - size))
    # Without a gradient nothing moves: a random start stays, and 0 / 0 is not looked at.
    return at_most(square, _F0, w, w_new), at_most(square, _F0, z, z_new), n_new


@njit(cache=True, nogil=True)
def _adagrad(rule, w, n, g):
    g = g + rule.l2 * w
    square = g * g
    n = n + square
    # Without a gradient and with beta 0 the quotient may be 0 / 0.
    return at_most(square, _F0, w, w - rule.alpha * g / (rule.beta + root(n))), n


@njit(cache=True, nogil=True)
def moved(rule, w, z, n, g):
    """Weights and states after one step; a state that the rule does not have comes back as is.

    FTRL-Proximal (McMahan et al., KDD 2013, Algorithm 1), except that w is refreshed after the
    update rather than before the next prediction, because a pull must be a plain read::

        s = (sqrt(n + g^2) - sqrt(n)) / alpha
        z = z + g - s w
        n = n + g^2
        w = 0 where |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2)

    A coordinate whose g^2 is 0 is left alone. AdaGrad (Duchi, Hazan, Singer, JMLR 12 (2011), figure
    1 with the diagonal matrix; beta is their delta)::

        g = g + l2 w
        n = n + g^2
        w = w - alpha g / (beta + sqrt(n))

    SGD: w = w - alpha (g + l2 w). COUNT: w = w + g.

    Parameters
    ----------
    rule : Rule
    w, z, n, g : Vector
        Weights, states and gradient, already scaled.

    Returns
    -------
    (Vector, Vector, Vector)
        w, z, n.
    """
    if rule.kind == FTRL:
        return _ftrl(rule, w, z, n, g)
    if rule.kind == ADAGRAD:
        w, n = _adagrad(rule, w, n, g)
        return w, z, n
    if rule.kind == SGD:
        return w - rule.alpha * (g + rule.l2 * w), z, n
    return w + g, z, n


@njit(cache=True, nogil=True)
def step(rule, row, column, tag, g):
    """One step of some columns of a part.

    Parameters
    ----------
    rule : Rule
    row : int64
        Address that the rule's columns count from.
    column : int
        First column inside the part.
    tag
        As many columns as the tag has elements.
    g : Vector
        Gradient, already scaled.
    """
    at, z_at, n_at = rule.at + column, rule.z + column, rule.n + column
    w, z, n = moved(rule, load(tag, row, at), load(tag, row, z_at), load(tag, row, n_at), g)
    if rule.kind == FTRL:
        store(z, row, z_at)
    if rule.n != rule.at:
        store(n, row, n_at)
    store(w, row, at)


@njit(cache=True, nogil=True)
def step_each(rule, rows, tag, g):
    """One step of the only column of a part, in several rows.

    Parameters
    ----------
    rule : Rule
    rows : int64
        Where the addresses of the rows lie, int64 one after the other; as many as ``tag`` has
        elements.
    tag, g
        As in ``step``.
    """
    w, z, n = gather(tag, rows, rule.at), gather(tag, rows, rule.z), gather(tag, rows, rule.n)
    w, z, n = moved(rule, w, z, n, g)
    if rule.kind == FTRL:
        scatter(z, rows, rule.z)
    if rule.n != rule.at:
        scatter(n, rows, rule.n)
    scatter(w, rows, rule.at)
