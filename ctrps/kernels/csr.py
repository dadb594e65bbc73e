"""Sparse rows: from a block's local numbers to a minibatch, and from pushes to sums per key.

A minibatch is in compressed sparse row form (CSR): row r holds the entries
``indptr[r]:indptr[r + 1]`` of ``index`` (a number of a key) and ``values``.

Not here: hashing (``keys``), and what is computed of the rows (``losses``, ``optimizers``). No
kernel checks its input; the public callers in ``ctrps.data`` and ``ctrps.ps`` do.
"""

import numpy as np
from numba import njit

from ctrps.kernels.bits import ones, trailing_zeros
from ctrps.kernels.keys import spread
from ctrps.kernels.vectors import address, prefetch

AHEAD = 32
"""Keys between asking for a slot's memory and reading it."""

ROWS_AHEAD = 4
"""Rows of a shuffled batch between asking for a row's entries and reading them."""

_U0, _U1, _U6, _U32 = (np.uint64(i) for i in (0, 1, 6, 32))
_LAST_BIT = np.uint64(63)
_COUNT = np.uint64(2**32 - 1)


@njit(cache=True, nogil=True)
def dedup_keys(keys, scratch, unique_out, local_out):
    """Number keys by first touch, through a hash index.

    Parameters
    ----------
    keys : uint64[nnz], read
    scratch : int32[capacity], all zero on entry and on exit
        Numbers of keys plus 1; 0 is free. The capacity is a power of two, at least twice the
        distinct keys.
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
    table, count, n = address(scratch), keys.shape[0], 0
    for asked in range(count + AHEAD):
        if asked < count:
            slot = spread(keys[asked]) & last
            local_out[asked] = slot
            prefetch(table + 4 * np.int64(slot))
        i = asked - AHEAD
        if i >= 0:
            key, slot = keys[i], np.uint64(local_out[i])
            number = scratch[slot]
            while number != 0 and unique_out[np.uint32(number - 1)] != key:
                slot = (slot + _U1) & last
                number = scratch[slot]
            if number == 0:
                unique_out[n] = key
                n += 1
                scratch[slot] = number = np.int32(n)
            local_out[i] = number - 1
    scratch[:] = 0
    return n


@njit(cache=True, nogil=True)
def take_numbers(numbers, local, out):
    """Number keys anew: ``out[i] = numbers[local[i]]``.

    Parameters
    ----------
    numbers : uint16 or uint32[n], read
    local : int32[nnz], read
    out : as ``numbers``, [nnz], written
    """
    for i in range(local.shape[0]):
        out[i] = numbers[np.uint32(local[i])]


@njit(cache=True, nogil=True)
def drop_numbers(index, counts, numbers, out):
    """Take keys out of rows, and number the others anew; a slot that loses all of them is empty.

    Parameters
    ----------
    index : uint16 or uint32[nnz], read
        Numbers of keys in row order, inside a row in slot order.
    counts : int32[rows, slots], read and written
        Keys of each row and slot; their sum is nnz.
    numbers : int32[n], read
        The new number of each key; -1 takes it out.
    out : uint16 or uint32[nnz], first ones written
        New numbers.

    Returns
    -------
    int
        Keys left.
    """
    # Unsigned positions spare numba's check for negative ones.
    at = left = _U0
    for row in range(counts.shape[0]):
        for slot in range(counts.shape[1]):
            before = left
            for _ in range(counts[row, slot]):
                number = numbers[index[at]]
                # Written over by the next one, if it is not to stay.
                out[left] = number
                left += np.uint64(number >= 0)
                at += _U1
            counts[row, slot] = left - before
    return np.int64(left)


@njit(cache=True, nogil=True)
def partition_starts(keys, bits, starts_out):
    """Borders of the partitions in keys that may be grouped by them.

    Parameters
    ----------
    keys : uint64[k], read
    bits : int, 0..8
        Logarithm of the number of partitions P.
    starts_out : int32[P + 1], written
        Partition p is ``keys[starts_out[p]:starts_out[p + 1]]``.

    Returns
    -------
    bool
        Whether the keys are grouped by ascending partition; if not, ``starts_out`` holds nothing.
    """
    starts_out[:] = 0
    at = np.uint64(0)
    shift = np.uint64(63 - bits)
    for i in range(keys.shape[0]):
        partition = (spread(keys[i]) >> _U1) >> shift
        if partition < at:
            return False
        at = partition
        starts_out[at + _U1] = i + 1
    for p in range(1, starts_out.shape[0]):
        starts_out[p] = max(starts_out[p], starts_out[p - 1])
    return True


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
def slot_weights(counts, values_out):
    """Values of entries of which each of the n in a slot weighs 1/n.

    Parameters
    ----------
    counts : uint8, uint16, uint32 or int32[rows, slots], read
    values_out : float32[nnz], written
    """
    at = 0
    for r in range(counts.shape[0]):
        for s in range(counts.shape[1]):
            n = np.int64(counts[r, s])
            for _ in range(n):
                values_out[at] = np.float32(1) / np.float32(n)
                at += 1


@njit(cache=True, nogil=True, inline="always")
def _ask(index, starts, order, i):
    """Prefetch the entries of row ``order[i]``, if there is one."""
    if i < order.shape[0]:
        row = order[i]
        at = address(index) + starts[row] * index.itemsize
        end = address(index) + starts[row + 1] * index.itemsize
        while at < end:
            prefetch(at)
            at += 64


@njit(cache=True, nogil=True)
def mark_rows(index, starts, dense, dense_at, order, marks):
    """Mark the keys that some rows of a block hold, and rank them.

    Parameters
    ----------
    index : uint16, uint32 or int32[nnz], read
        The block's entries, as numbers below block_keys, row after row.
    starts : int64[rows + 1], read
        From ``row_starts``.
    dense : float32[rows, d], read
    dense_at : uint16, uint32 or int64[d], read
        Numbers of the dense keys.
    order : int64[b], read
        Row numbers.
    marks : uint64[words, 2], all zero on entry, read and written
        ``64 * words >= block_keys + 1``. Bit i of ``marks[j, 0]`` stands for number 64 j + i;
        ``marks[j, 1]`` counts the marks of the words before.

    Returns
    -------
    count, size : int
        Distinct keys, and entries of the rows; -1 and the row where ``order`` names one that is
        not there (no row is marked then).
    """
    rows = starts.shape[0] - 1
    for i in range(order.shape[0]):
        if order[i] < 0 or order[i] >= rows:
            return -1, order[i]
    size = 0
    for i in range(order.shape[0]):
        _ask(index, starts, order, i + ROWS_AHEAD)
        row = order[i]
        for t in range(np.uint64(starts[row]), np.uint64(starts[row + 1])):
            number = np.uint64(index[t])
            marks[number >> _U6, 0] |= _U1 << (number & _LAST_BIT)
        size += starts[row + 1] - starts[row]
        for j in range(dense.shape[1]):
            if dense[row, j] != 0:
                number = np.uint64(dense_at[j])
                marks[number >> _U6, 0] |= _U1 << (number & _LAST_BIT)
                size += 1
    count = _U0
    for word in range(marks.shape[0]):
        marks[word, 1] = count
        count += ones(marks[word, 0])
    return np.int64(count), size


@njit(cache=True, nogil=True, inline="always")
def _rank(number, marks):
    """How many marked numbers are smaller."""
    word = number >> _U6
    below = (_U1 << (number & _LAST_BIT)) - _U1
    return marks[word, 1] + ones(marks[word, 0] & below)


@njit(cache=True, nogil=True, inline="always")
def _put(number, value, begin, end, marks, cells, index_out, values_out):
    """Add an entry to the row that began at ``begin``; returns the row's new end."""
    local = _rank(number, marks)
    cell = cells[local]
    after = cell >> _U32  # the position of the key's last entry, plus 1
    if after > begin:
        values_out[after - _U1] += value
        return end
    cells[local] = ((end + _U1) << _U32) | ((cell & _COUNT) + _U1)
    index_out[end] = local
    values_out[end] = value
    return end + _U1


@njit(cache=True, nogil=True)
def take_rows(
    index, starts, dense, dense_at, order, marks, values, cells, indptr_out, index_out, values_out
):
    """Build the CSR of the rows that were marked, each key once per row.

    A key that a row repeats becomes one entry with the sum of its values, at its first place:
    the square terms of FM would otherwise count its parts as if they were different keys.

    Parameters
    ----------
    index, starts, dense, dense_at, order, marks : read
        As for ``mark_rows``, after it.
    values : float32[nnz] or float32[0], read
        Empty: every value is 1.
    cells : uint64[count], all zero on entry, written
        The low half counts the rows that hold a key; the high half is scratch.
    indptr_out : int64[b + 1], written
    index_out : int32[size], first nnz written
        Ranks of the block's numbers among those that are marked.
    values_out : float32[size], first nnz written
        ``dense[row, j]`` for the dense key j, after the others; numbers equal to 0 are left out.

    Returns
    -------
    int
        nnz, the entries written: ``indptr_out[b]``, below 2^32.
    """
    end = _U0
    for i in range(order.shape[0]):
        _ask(index, starts, order, i + ROWS_AHEAD)
        row, begin = order[i], end
        indptr_out[i] = begin
        for t in range(np.uint64(starts[row]), np.uint64(starts[row + 1])):
            value = values[t] if values.shape[0] > 0 else np.float32(1)
            number = np.uint64(index[t])
            end = _put(number, value, begin, end, marks, cells, index_out, values_out)
        for j in range(dense.shape[1]):
            value = dense[row, j]
            if value != 0:
                number = np.uint64(dense_at[j])
                end = _put(number, value, begin, end, marks, cells, index_out, values_out)
    indptr_out[order.shape[0]] = end
    return np.int64(end)


@njit(cache=True, nogil=True)
def take_keys(keys, starts, marks, cells, keys_out, starts_out, counts_out):
    """The marked keys of a block, and how many rows hold each; clears the marks.

    Parameters
    ----------
    keys : uint64[block_keys], read
        Grouped by partition.
    starts : int32[partitions + 1], read
        Borders of the partitions in ``keys``.
    marks : uint64[words, 2], read; all zero on exit
        From ``mark_rows``.
    cells : uint64[count], read
        From ``take_rows``.
    keys_out : uint64[count], written
    starts_out : int32[partitions + 1], written
    counts_out : int32[count], written
    """
    for p in range(starts.shape[0]):
        starts_out[p] = _rank(np.uint64(starts[p]), marks)
    n = _U0
    for word in range(marks.shape[0]):
        bits, number = marks[word, 0], np.uint64(word) << _U6
        while bits:
            keys_out[n] = keys[number + trailing_zeros(bits)]
            bits &= bits - _U1
            n += _U1
        marks[word, 0] = marks[word, 1] = _U0
    for i in range(counts_out.shape[0]):
        counts_out[i] = cells[i] & _COUNT


@njit(cache=True, nogil=True)
def fold(where, gradients, counts, acc, acc_counts):
    """Add one push to the sums of a step.

    Pushes folded one after the other, in the order of their lanes, give each sum the bits of that
    chain of float32 additions. The first one is stored and not added to 0, which would turn a
    -0.0 into 0.0.

    Parameters
    ----------
    where : int32 or int64[k], read
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
