"""Row at a time: predict and update in one loop over the rows of a block, without messages.

For each row: its margin from the weights as they stand, the residual, and at once one optimiser
step of every key of the row. So a row sees what the row before it changed, which makes this another
algorithm than a step over a minibatch of fixed weights (``losses``, ``optimizers``).

Several threads may run ``train_rows`` on one table at the same time without locks (Hogwild: Niu,
Recht, Ré, Wright, NIPS 2011): rows of sparse data seldom meet, and where two threads change one
number at the same time, one of the changes is lost. With one thread the bits are always the same.

Table rows are named by the addresses of their entries and tails (``store``), and helpers that take
arrays are written into their caller (``inline``): an array that passes from function to function in
a loop over values has its references counted each time, which cost more than the arithmetic.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from ctrps.kernels.optimizers import GROUP, step, step_each
from ctrps.kernels.vectors import (
    EIGHT,
    FOUR,
    ONE,
    address,
    fill,
    gather,
    load,
    prefetch,
    put_whole,
    real,
    store,
    total,
    whole,
)

AHEAD = 2
"""Rows between asking for a row's memory and using it."""

_LINE = 64
_F0, _F1 = np.float32(0), np.float32(1)


class Rows(NamedTuple):
    """Rows of a block in the order of training.

    ``numbers`` is the ``index`` of ``csr.take_rows``, and all else as there; ``labels``
    float32[rows of the block], 0 or 1.
    """

    numbers: np.ndarray
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

    ``place`` int64[block_keys], all -1 on entry. ``sizes`` int64[AHEAD + 1]. ``entries`` and
    ``tails`` int64 and ``values`` float32, all [AHEAD + 1, m]: m is a multiple of GROUP that no
    row's values exceed. ``sums`` float32[dim]. ``idle`` int64[4], all zero: the entry that fills up
    a group.
    """

    place: np.ndarray
    sizes: np.ndarray
    entries: np.ndarray
    tails: np.ndarray
    values: np.ndarray
    sums: np.ndarray
    idle: np.ndarray


class _Slot(NamedTuple):
    """Addresses of the scratch of one row of the window, and of what tells where its keys are.

    ``size`` is the bytes of a tail to ask for, 0 where there are none.
    """

    place: int
    entry_of: int
    tail_of: int
    entries: int
    tails: int
    values: int
    size: int


@njit(cache=True, nogil=True)
def _put(key, value, first, n, slot):
    """Add a value to the row in a slot, which has ``n``; returns how many it has then."""
    at = whole(slot.place, key) - first
    if at >= 0:
        store(fill(ONE, value + real(slot.values, at)), slot.values, at)
        return n
    put_whole(slot.place, key, first + n)
    entry = whole(slot.entry_of, key)
    prefetch(entry)
    put_whole(slot.entries, n, entry)
    store(fill(ONE, value), slot.values, n)
    if slot.size > 0:
        tail = whole(slot.tail_of, key)
        put_whole(slot.tails, n, tail)
        past = 0
        while past < slot.size:
            prefetch(tail + past)
            past += _LINE
    return n + 1


@njit(cache=True, nogil=True, inline="always")
def _take(index, counts, starts, values, dense, dense_at, mean, row, first, slot, idle):
    """Put the values of a row into a slot, each key once (``csr.take_rows``); returns how many.

    ``first`` counts the values of all rows before, so that old numbers in ``place`` are below it.
    The last group is filled up with the entry ``idle``, which is nobody's.
    """
    n = 0
    begin = starts[row]
    for s in range(counts.shape[1]):
        end = begin + np.int64(counts[row, s])
        value = _F1 / np.float32(end - begin) if mean and end > begin else _F1
        for t in range(np.uint64(begin), np.uint64(end)):
            if values.shape[0] > 0:
                value = values[t]
            n = _put(np.int64(index[t]), value, first, n, slot)
        begin = end
    for j in range(dense.shape[1]):
        value = dense[row, j]
        if value != 0:
            n = _put(dense_at + j, value, first, n, slot)
    for i in range(n, -(-n // GROUP) * GROUP):
        put_whole(slot.entries, i, idle)
        store(fill(ONE, _F0), slot.values, i)
    return n


@njit(cache=True, nogil=True)
def _pairs(tails, values, n, column, tag, sums):
    """The pairs of a row in some factors: each entry with the sum of those before it."""
    before, pairs = fill(tag, _F0), fill(tag, _F0)
    for i in range(n):
        vx = load(tag, whole(tails, i), column) * real(values, i)
        pairs = pairs + vx * before
        before = before + vx
    store(before, sums, 0)
    return total(pairs)


@njit(cache=True, nogil=True, inline="always")
def _margin(entries, tails, values, n, w, v, sums):
    """w x and the pairs of a row, without the intercept; ``sums`` float32[dim] written.

    Arrays are given by their addresses.
    """
    wx = fill(EIGHT, _F0)
    i = 0
    while i < n:
        wx = wx + gather(EIGHT, entries + 8 * i, w.at) * load(EIGHT, values, i)
        i += GROUP
    z = total(wx)
    f = 0
    while f + 8 <= v.width:
        z += _pairs(tails, values, n, v.at + f, EIGHT, sums + 4 * f)
        f += 8
    if f + 4 <= v.width:
        z += _pairs(tails, values, n, v.at + f, FOUR, sums + 4 * f)
        f += 4
    while f < v.width:
        z += _pairs(tails, values, n, v.at + f, ONE, sums + 4 * f)
        f += 1
    return z


@njit(cache=True, nogil=True)
def _factors(rule, tail, x, residual, f, tag, sums):
    """One step of some factors of a value: dz/dv = x (sum of v x - v x)."""
    others = load(tag, sums, f) - load(tag, tail, rule.at + f) * x
    step(rule, tail, f, tag, others * (residual * x) * rule.scale)


@njit(cache=True, nogil=True, inline="always")
def _update(entries, tails, values, n, residual, w, v, sums):
    """One step of all keys of a row. Arrays are given by their addresses."""
    i = 0
    while i < n:
        step_each(w, entries + 8 * i, EIGHT, load(EIGHT, values, i) * residual * w.scale)
        i += GROUP
    if v.width == 0:
        return
    for i in range(n):
        tail, x = whole(tails, i), real(values, i)
        f = 0
        while f + 8 <= v.width:
            _factors(v, tail, x, residual, f, EIGHT, sums)
            f += 8
        if f + 4 <= v.width:
            _factors(v, tail, x, residual, f, FOUR, sums)
            f += 4
        while f < v.width:
            _factors(v, tail, x, residual, f, ONE, sums)
            f += 1


@njit(cache=True, nogil=True)
def train_rows(rows, entry_of, tail_of, bias, w, v, b, window, margins_out):
    """Train on rows one after the other.

    Parameters
    ----------
    rows : Rows, read
    entry_of, tail_of : int64[block_keys], read
        Addresses of the entry and of the tail of each key of the block that occurs in ``rows``; the
        rows there are read and written. Other threads may write them, too.
    bias : int64
        Address of the intercept's entry.
    w, v, b : Rule
        Of the weights, the factors (``width`` 0: logistic regression) and the intercept, for a step
        of one row: gradients are multiplied by ``scale`` only. ``w`` and ``b`` are one column wide.
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
    formed in float32, eight values or factors side by side.
    """
    index, counts, starts, values, dense, dense_at, mean, labels, order = rows
    sizes, sums, idle = window.sizes, address(window.sums), address(window.idle)
    size = 4 * v.width * (1 + (v.z != v.at) + (v.n != v.at))
    place, entry_at, tail_at = address(window.place), address(entry_of), address(tail_of)
    entries_at, tails_at = address(window.entries), address(window.tails)
    values_at, longest = address(window.values), window.values.shape[1]
    loss_sum, first, count = 0.0, 0, order.shape[0]
    for asked in range(count + AHEAD):
        if asked < count:
            slot = asked % (AHEAD + 1)
            begin = slot * longest
            row = _Slot(
                place,
                entry_at,
                tail_at,
                entries_at + 8 * begin,
                tails_at + 8 * begin,
                values_at + 4 * begin,
                size,
            )
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
                row,
                idle,
            )
            first += n
            sizes[slot] = n
        r = asked - AHEAD
        if r < 0:
            continue
        slot = r % (AHEAD + 1)
        n, begin = sizes[slot], slot * longest
        entries, tails = entries_at + 8 * begin, tails_at + 8 * begin
        xs = values_at + 4 * begin
        z = np.float64(real(bias, b.at) + _margin(entries, tails, xs, n, w, v, sums))
        if not math.isfinite(z):
            return loss_sum, r
        click = labels[order[r]] > 0
        e = math.exp(-abs(z))
        margins_out[r] = z
        loss_sum += math.log1p(e) + max(-z if click else z, 0.0)
        # p, or 1 - p for a click, without the loss of a small one.
        p = 1.0 / (1.0 + e) if (z >= 0) != click else e / (1.0 + e)
        residual = np.float32(-p if click else p)
        _update(entries, tails, xs, n, residual, w, v, sums)
        step(b, bias, 0, ONE, fill(ONE, residual * b.scale))
    return loss_sum, count
