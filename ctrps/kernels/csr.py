"""Sparse rows: from a block's local numbers to a minibatch, and from pushes to sums per key.

A minibatch is in compressed sparse row form (CSR): row r holds the entries
``indptr[r]:indptr[r + 1]`` of ``index`` (a number of a key) and ``values``.

Not here: hashing (``keys``), and what is computed of the rows (``losses``, ``optimizers``). No
kernel checks its input; the public callers in ``ctrps.data`` and ``ctrps.ps`` do.
"""

import numpy as np
from numba import njit

from ctrps.kernels.keys import spread

_U1 = np.uint64(1)


@njit(cache=True, nogil=True)
def dedup_local(index, seen, unique_out, local_out):
    """Renumber small numbers by first touch: 0 for the first one met, then 1, and so on.

    Parameters
    ----------
    index : uint16, uint32 or int32[nnz], read
        Numbers below block_keys.
    seen : int32[block_keys], all -1 on entry and on exit
        Scratch.
    unique_out : int32[min(nnz, block_keys)], first n written
        The distinct numbers.
    local_out : int32[nnz], written
        ``unique_out[local_out] == index``.

    Returns
    -------
    int
        n, how many are distinct.
    """
    n = 0
    for i in range(index.shape[0]):
        number = index[i]
        if seen[number] < 0:
            seen[number] = n
            unique_out[n] = number
            n += 1
        local_out[i] = seen[number]
    for i in range(n):
        seen[unique_out[i]] = -1
    return n


@njit(cache=True, nogil=True)
def dedup_keys(keys, scratch, unique_out, local_out):
    """Number keys by first touch, through a hash index.

    Parameters
    ----------
    keys : uint64[nnz], read
    scratch : uint64[capacity, 2], all zero on entry and on exit
        An index of ``ctrps.kernels.keys``; its capacity is at least twice the distinct keys.
    unique_out : uint64[nnz], first n written
        The distinct keys.
    local_out : int32[nnz], written
        ``unique_out[local_out] == keys``.

    Returns
    -------
    int
        n, how many are distinct.
    """
    last = np.uint64(scratch.shape[0] - 1)
    n = 0
    for i in range(keys.shape[0]):
        key = keys[i]
        slot = spread(key) & last
        number = np.int64(scratch[slot, 1])
        # The probe stands here and not in a function: the call costs speed.
        while number != 0 and scratch[slot, 0] != key:
            slot = (slot + _U1) & last
            number = np.int64(scratch[slot, 1])
        if number == 0:
            unique_out[n] = key
            n += 1
            scratch[slot, 0] = key
            scratch[slot, 1] = np.uint64(n)
            number = np.int64(n)
        local_out[i] = number - 1
    # Taken out last first: whatever came before a key on its way is then still in place.
    for i in range(n - 1, -1, -1):
        slot = spread(unique_out[i]) & last
        while scratch[slot, 0] != unique_out[i] or scratch[slot, 1] == 0:
            slot = (slot + _U1) & last
        scratch[slot, 0] = 0
        scratch[slot, 1] = 0
    return n


@njit(cache=True, nogil=True)
def row_starts(counts, starts_out):
    """Where each row of a block starts in its list of entries.

    Parameters
    ----------
    counts : uint8, uint16, uint32 or int32[rows, slots], read
        Entries of a row in each slot.
    starts_out : int64[rows + 1], written
    """
    starts_out[0] = 0
    for r in range(counts.shape[0]):
        total = starts_out[r]
        for s in range(counts.shape[1]):
            total += np.int64(counts[r, s])
        starts_out[r + 1] = total


@njit(cache=True, nogil=True)
def rows_size(starts, dense, order):
    """Upper bound of the entries that ``take_rows`` writes for the rows in ``order``.

    Parameters
    ----------
    starts : int64[rows + 1], read
        From ``row_starts``.
    dense : float32[rows, d], read
    order : int64[b], read
        Row numbers.

    Returns
    -------
    int
    """
    size = 0
    for i in range(order.shape[0]):
        row = order[i]
        size += starts[row + 1] - starts[row]
        for j in range(dense.shape[1]):
            if dense[row, j] != 0:
                size += 1
    return size


@njit(cache=True, nogil=True)
def _put(key, value, begin, end, place, index_out, values_out):
    """Add an entry to the row that began at ``begin``; returns the row's new end."""
    at = place[key]
    # ``place`` is never cleared: what an earlier row or call left there fails one of the tests.
    if begin <= at < end and index_out[at] == key:
        values_out[at] += value
        return end
    place[key] = end
    index_out[end] = key
    values_out[end] = value
    return end + 1


@njit(cache=True, nogil=True)
def take_rows(
    index,
    counts,
    starts,
    values,
    dense,
    dense_at,
    order,
    mean,
    place,
    indptr_out,
    index_out,
    values_out,
):
    """Build the CSR of some rows of a block, each key once per row.

    A key that a row repeats becomes one entry with the sum of its values, at its first place:
    the square terms of FM would otherwise count its parts as if they were different keys.

    Parameters
    ----------
    index : uint16, uint32 or int32[nnz], read
        The block's entries, as numbers below block_keys, row after row.
    counts : uint8, uint16, uint32 or int32[rows, slots], read
        Entries of a row in each slot, in the order of ``index``.
    starts : int64[rows + 1], read
        From ``row_starts``.
    values : float32[nnz] or float32[0], read
        Empty: every value is 1. Not read when ``mean``.
    dense : float32[rows, d], read
        Number j of a row becomes an entry of key ``dense_at + j``, after the others; numbers
        equal to 0 are left out.
    dense_at : int
        The block's number of the first dense key.
    order : int64[b], read
        Row numbers of the batch.
    mean : bool
        Each of the n entries of a slot weighs 1/n.
    place : int64[block_keys], read and written
        Scratch; may hold anything.
    indptr_out : int64[b + 1], written
    index_out : int32[rows_size], first nnz written
        Still the block's numbers.
    values_out : float32[rows_size], first nnz written

    Returns
    -------
    int
        nnz, the entries written: ``indptr_out[b]``.
    """
    end = 0
    for i in range(order.shape[0]):
        row = order[i]
        begin = indptr_out[i] = end
        at = starts[row]
        for s in range(counts.shape[1]):
            n = np.int64(counts[row, s])
            for t in range(at, at + n):
                value = np.float32(1)
                if mean:
                    value = np.float32(1) / np.float32(n)
                elif values.shape[0] > 0:
                    value = values[t]
                end = _put(np.int64(index[t]), value, begin, end, place, index_out, values_out)
            at += n
        for j in range(dense.shape[1]):
            if dense[row, j] != 0:
                end = _put(dense_at + j, dense[row, j], begin, end, place, index_out, values_out)
    indptr_out[order.shape[0]] = end
    return end


@njit(cache=True, nogil=True)
def row_counts(indptr, index, stamp, counts_out):
    """How many rows of a batch hold each key; a key that a row repeats counts once.

    Parameters
    ----------
    indptr : int64[rows + 1], read
    index : int32[nnz], read
        Numbers below k.
    stamp : int32 or int64[k], written
        Scratch; may hold anything.
    counts_out : int32[k], written
    """
    counts_out[:] = 0
    stamp[:] = -1
    for r in range(indptr.shape[0] - 1):
        for i in range(indptr[r], indptr[r + 1]):
            key = index[i]
            if stamp[key] != r:
                stamp[key] = r
                counts_out[key] += 1


@njit(cache=True, nogil=True)
def gather(rows, where, out):
    """Copy the first columns of some rows: the answer to a pull.

    Parameters
    ----------
    rows : float32[n, width], read
    where : int64[k], read
        Row numbers; -1 leaves ``out[i]`` as it is.
    out : float32[k, dim], written, dim <= width
    """
    for i in range(where.shape[0]):
        row = where[i]
        if row >= 0:
            for j in range(out.shape[1]):
                out[i, j] = rows[row, j]


@njit(cache=True, nogil=True)
def fold(where, gradients, counts, acc, acc_counts):
    """Add one push to the sums of a step.

    Pushes folded one after the other, in the order of their lanes, give each sum the bits of that
    chain of float32 additions. The first one is stored and not added to 0, which would turn a
    -0.0 into 0.0.

    Parameters
    ----------
    where : int64[k], read
        Distinct row numbers of ``acc``.
    gradients : float32[k, dim], read
    counts : int32[k], read, >= 1
        Rows of the batch that hold the key.
    acc : float32[n, dim], read and written
        What a row holds does not matter while its count is 0.
    acc_counts : int32[n], read and written
        0 where the step has not touched the row yet; the caller clears it between steps.
    """
    for i in range(where.shape[0]):
        row = where[i]
        if acc_counts[row] == 0:
            for j in range(acc.shape[1]):
                acc[row, j] = gradients[i, j]
        else:
            for j in range(acc.shape[1]):
                acc[row, j] += gradients[i, j]
        acc_counts[row] += counts[i]
