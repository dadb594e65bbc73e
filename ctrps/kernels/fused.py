"""Row at a time: predict and update in one loop over the rows of a block, without messages.

For each row: its margin from the weights as they stand, the residual, and at once one optimiser
step of every key of the row. So a row sees what the row before it changed, which makes this another
algorithm than a step over a minibatch of fixed weights (``losses``, ``optimizers``).

Several threads may run ``train_rows`` on one table at the same time without locks (Hogwild: Niu,
Recht, Ré, Wright, NIPS 2011): rows of sparse data seldom meet, and where two threads change one
number at the same time, one of the changes is lost. With one thread the bits are always the same.

The formulas are those of ``optimizers`` for a step of one row, in float32 instead of float64 so
that eight numbers fit an instruction; the difference of roots, which would lose its digits, is
written as (sqrt(n + g^2) - sqrt(n)) = ((n + g^2) - n) / (sqrt(n + g^2) + sqrt(n)).

Table rows are named by their addresses, and helpers that take arrays are written into their caller
(``inline``): an array that passes from function to function in a loop over entries has its
references counted each time, which cost more than the arithmetic.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from ctrps.kernels.vectors import (
    EIGHT,
    FOUR,
    ONE,
    address,
    at_most,
    fill,
    gather,
    load,
    prefetch,
    real,
    root,
    scatter,
    store,
    total,
    whole,
)

FTRL, ADAGRAD, SGD = range(3)

AHEAD = 2
"""Rows between asking for a row's memory and using it."""

GROUP = 8
"""Entries of a row that are updated together; slots of a window are a multiple of it."""

_F0, _F1 = np.float32(0), np.float32(1)


class Rule(NamedTuple):
    """Where a part of a table row stands, and how it learns.

    ``kind`` is FTRL, ADAGRAD or SGD. ``inverse`` is 1 / alpha, ``scale`` what the gradient of a row
    is multiplied by. ``at`` is the first of ``width`` weight columns, ``z`` and ``n`` the first
    column of each state; a rule without one of them names ``at`` instead. Reals are float32.
    """

    kind: int
    alpha: np.float32
    inverse: np.float32
    beta: np.float32
    l1: np.float32
    l2: np.float32
    scale: np.float32
    at: int
    z: int
    n: int
    width: int


class Rows(NamedTuple):
    """Rows of a block in the order of training.

    ``entries`` is the ``index`` of ``csr.take_rows``, and all else as there; ``labels``
    float32[rows of the block], 0 or 1.
    """

    entries: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    values: np.ndarray
    dense: np.ndarray
    dense_at: int
    mean: bool
    labels: np.ndarray
    order: np.ndarray


class Window(NamedTuple):
    """Scratch of one thread: the rows from the present one to the last one asked for.

    ``place`` int64[block_keys], all -1 on entry. ``sizes`` int64[AHEAD + 1]. ``where`` int64 and
    ``values`` float32, both [AHEAD + 1, m]: m is a multiple of GROUP that no row's entries exceed.
    ``sums`` float32[dim]. ``idle`` float32[width], all zero: the row that fills up a group.
    """

    place: np.ndarray
    sizes: np.ndarray
    where: np.ndarray
    values: np.ndarray
    sums: np.ndarray
    idle: np.ndarray


@njit(cache=True, nogil=True, inline="always")
def _ask(row, size):
    """Prefetch a table row of ``size`` bytes: its start, every 64 bytes from there, and its end.

    The start of a row of LR is left out: it nearly always shares a line with the end.
    """
    past = 0
    while past + 12 < size:
        prefetch(row + past)
        past += 64
    prefetch(row + size - 4)


@njit(cache=True, nogil=True, inline="always")
def _put(key, value, first, n, slot, table, size, known, place, where, values_out):
    """Add an entry to the row in a slot, which has ``n``; returns how many it has then."""
    at = place[key] - first
    if at >= 0:
        values_out[slot, at] += value
        return n
    place[key] = first + n
    row = table + known[key] * size
    where[slot, n] = row
    values_out[slot, n] = value
    _ask(row, size)
    return n + 1


@njit(cache=True, nogil=True, inline="always")
def _take(
    index,
    counts,
    starts,
    values,
    dense,
    dense_at,
    mean,
    row,
    first,
    slot,
    table,
    size,
    known,
    place,
    where,
    values_out,
):
    """Put the entries of a row into a slot, each key once (``csr.take_rows``); returns how many.

    ``first`` counts the entries of all rows before, so that old numbers in ``place`` are below it.
    """
    n = 0
    begin = starts[row]
    for s in range(counts.shape[1]):
        end = begin + np.int64(counts[row, s])
        value = _F1 / np.float32(end - begin) if mean and end > begin else _F1
        for t in range(np.uint64(begin), np.uint64(end)):
            if values.shape[0] > 0:
                value = values[t]
            key = np.uint64(index[t])
            n = _put(key, value, first, n, slot, table, size, known, place, where, values_out)
        begin = end
    for j in range(dense.shape[1]):
        value = dense[row, j]
        if value != 0:
            key = np.uint64(dense_at + j)
            n = _put(key, value, first, n, slot, table, size, known, place, where, values_out)
    return n


@njit(cache=True, nogil=True, inline="always")
def _fill_group(n, slot, where, values, idle):
    """Fill the last group of a row of ``n`` entries with a table row that is nobody's."""
    while n % GROUP:
        where[slot, n] = idle
        values[slot, n] = 0
        n += 1


@njit(cache=True, nogil=True)
def _pairs(where, values, n, column, tag, sums):
    """The pairs of a row in some factors: each entry with the sum of those before it."""
    before, pairs = fill(tag, _F0), fill(tag, _F0)
    for i in range(n):
        vx = load(tag, whole(where, i), column) * real(values, i)
        pairs = pairs + vx * before
        before = before + vx
    store(before, sums, 0)
    return total(pairs)


@njit(cache=True, nogil=True, inline="always")
def _margin(where, values, n, w, v, sums):
    """w x and the pairs of a row, without the intercept; ``sums`` float32[dim] written.

    Arrays are given by their addresses.
    """
    wx = fill(EIGHT, _F0)
    i = 0
    while i < n:
        wx = wx + gather(EIGHT, where + 8 * i, w.at) * load(EIGHT, values, i)
        i += GROUP
    z = total(wx)
    f = 0
    while f + 8 <= v.width:
        z += _pairs(where, values, n, v.at + f, EIGHT, sums + 4 * f)
        f += 8
    if f + 4 <= v.width:
        z += _pairs(where, values, n, v.at + f, FOUR, sums + 4 * f)
        f += 4
    while f < v.width:
        z += _pairs(where, values, n, v.at + f, ONE, sums + 4 * f)
        f += 1
    return z


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
def _moved(rule, w, z, n, gradient):
    """Weights and states after one step; a state that the rule does not have comes back as is."""
    g = gradient * rule.scale
    if rule.kind == FTRL:
        return _ftrl(rule, w, z, n, g)
    g = g + rule.l2 * w
    if rule.kind == ADAGRAD:
        n = n + g * g
        return w - rule.alpha * g / (rule.beta + root(n)), z, n
    return w - rule.alpha * g, z, n


@njit(cache=True, nogil=True)
def _step(rule, row, column, tag, gradient):
    """One optimiser step of some columns of a part of a row."""
    at, z_at, n_at = rule.at + column, rule.z + column, rule.n + column
    w, z, n = _moved(rule, load(tag, row, at), load(tag, row, z_at), load(tag, row, n_at), gradient)
    if rule.kind == FTRL:
        store(z, row, z_at)
    if rule.kind != SGD:
        store(n, row, n_at)
    store(w, row, at)


@njit(cache=True, nogil=True)
def _steps(rule, where, tag, gradient):
    """One optimiser step of the only column of a part, in several rows."""
    w, z, n = gather(tag, where, rule.at), gather(tag, where, rule.z), gather(tag, where, rule.n)
    w, z, n = _moved(rule, w, z, n, gradient)
    if rule.kind == FTRL:
        scatter(z, where, rule.z)
    if rule.kind != SGD:
        scatter(n, where, rule.n)
    scatter(w, where, rule.at)


@njit(cache=True, nogil=True)
def _factors(rule, row, x, residual, f, tag, sums):
    """One step of some factors of an entry: dz/dv = x (sum of v x - v x)."""
    others = load(tag, sums, f) - load(tag, row, rule.at + f) * x
    _step(rule, row, f, tag, others * (residual * x))


@njit(cache=True, nogil=True, inline="always")
def _update(where, values, n, residual, w, v, sums):
    """One step of all keys of a row. Arrays are given by their addresses."""
    i = 0
    while i < n:
        _steps(w, where + 8 * i, EIGHT, load(EIGHT, values, i) * residual)
        i += GROUP
    if v.width == 0:
        return
    for i in range(n):
        row, x = whole(where, i), real(values, i)
        f = 0
        while f + 8 <= v.width:
            _factors(v, row, x, residual, f, EIGHT, sums)
            f += 8
        if f + 4 <= v.width:
            _factors(v, row, x, residual, f, FOUR, sums)
            f += 4
        while f < v.width:
            _factors(v, row, x, residual, f, ONE, sums)
            f += 1


@njit(cache=True, nogil=True)
def train_rows(rows, known, table, bias, w, v, b, window, margins_out):
    """Train on rows one after the other.

    Parameters
    ----------
    rows : Rows, read
    known : int64[block_keys], read
        Table row of each key of the block that occurs in ``rows``; distinct.
    table : float32[n, width], read and written
        Other threads may write it, too.
    bias : float32[1, width of the intercept's row], read and written
    w, v, b : Rule
        Of the weights, the factors (``width`` 0: logistic regression) and the intercept. ``w`` and
        ``b`` are one column wide.
    window : Window, written
    margins_out : float32[b], written
        The margin of each row before it was trained on, in the order of ``rows.order``.

    Returns
    -------
    loss_sum : float64
        Of these margins, in nats.
    done : int
        Rows trained on. Fewer than all where the margin of row ``rows.order[done]`` is not finite.

    Notes
    -----
    Rendle, ICDM 2010, equations 1 and 4; the pairs are found as in ``losses.fm_forward``. Sums are
    formed in float32, eight entries or factors side by side.
    """
    index, counts, starts, values, dense, dense_at, mean, labels, order = rows
    place, sizes, where_of, values_of, sums_of, idle = window
    base, size = address(table), 4 * table.shape[1]
    sums, bias_row = address(sums_of), address(bias)
    loss_sum, first, count = 0.0, 0, order.shape[0]
    for asked in range(count + AHEAD):
        if asked < count:
            slot = asked % (AHEAD + 1)
            n = _take(
                index,
                counts,
                starts,
                values,
                dense,
                dense_at,
                mean,
                order[asked],
                first,
                slot,
                base,
                size,
                known,
                place,
                where_of,
                values_of,
            )
            first += n
            sizes[slot] = n
            _fill_group(n, slot, where_of, values_of, address(idle))
        r = asked - AHEAD
        if r < 0:
            continue
        slot = r % (AHEAD + 1)
        n = sizes[slot]
        where = address(where_of) + 8 * slot * where_of.shape[1]
        xs = address(values_of) + 4 * slot * values_of.shape[1]
        z = np.float64(real(bias_row, b.at) + _margin(where, xs, n, w, v, sums))
        if not math.isfinite(z):
            return loss_sum, r
        click = labels[order[r]] > 0
        e = math.exp(-abs(z))
        margins_out[r] = z
        loss_sum += math.log1p(e) + max(-z if click else z, 0.0)
        # p, or 1 - p for a click, without the loss of a small one.
        p = 1.0 / (1.0 + e) if (z >= 0) != click else e / (1.0 + e)
        residual = np.float32(-p if click else p)
        _update(where, xs, n, residual, w, v, sums)
        _step(b, bias_row, 0, ONE, fill(ONE, residual))
    return loss_sum, count
