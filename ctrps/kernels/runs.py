"""Rows of text out of fields and runs of fields.

A run is some fields of a row that stand together and come from one place, each with a tab behind
it. What the fields are is known to ``ctrps.data.history``.
"""

import numpy as np
from numba import njit

from ctrps.kernels.copying import WRITTEN_OVER, copy_text
from ctrps.kernels.vectors import address, prefetch

TAB = np.uint8(9)

AHEAD = 8
"""Rows between asking for the text of a row and copying it."""

BLOCK = 256
"""Rows whose fields are fetched together."""

LINE = 64
"""Bytes of a line of the processor's cache."""


@njit(cache=True, nogil=True)
def run_changes(begins, stops, closes, first, before, changed, sizes):
    """Which runs of rows are other fields than those of an earlier row.

    Parameters
    ----------
    begins, stops, closes, first
        As in ``rows_text``.
    before : int64[n], read
        The row, counted from ``first``, that each row is compared with; -1: none.
    changed : bool[runs, n], written
    sizes : int64[n], written
        Bytes of the runs of each row that have changed.
    """
    n = before.shape[0]
    in_turn = True
    for i in range(n):
        in_turn &= before[i] == i - 1
    sizes[:] = 0
    size = np.empty(n, np.int64)
    start = 0
    for run in range(changed.shape[0]):
        size[:] = 0
        marks = changed[run]
        for i in range(n):
            marks[i] = before[i] < 0
        inside = True
        c = start
        while inside:
            # Slices, so that no place in the loops may be negative: that spares checks.
            begin, stop = begins[c, first : first + n], stops[c, first : first + n]
            if in_turn:
                mark, a, b, to_a, to_b = marks[1:], begin[1:], begin[:-1], stop[1:], stop[:-1]
                for i in range(mark.shape[0]):
                    mark[i] |= (a[i] != b[i]) | (to_a[i] != to_b[i])
            else:
                for i in range(n):
                    other = max(before[i], 0)
                    marks[i] |= begin[i] != begin[other] or stop[i] != stop[other]
            for i in range(n):
                size[i] += np.int64(stop[i]) - np.int64(begin[i]) + 1
            inside = not closes[c]
            c += 1
        start = c
        for i in range(n):
            sizes[i] += size[i] * np.int64(marks[i])


@njit(cache=True, nogil=True)
def rows_text(
    pool, begins, stops, closes, first, before, changed, places, out, run_starts, run_ends
):
    """Write runs of fields with a tab behind each; a run that is another row's is not repeated.

    Parameters
    ----------
    pool : uint8[size], read
    begins, stops : uint32[columns, q], read
        Field of column c in row i is ``pool[begins[c, i]:stops[c, i]]``.
    closes : bool[columns], read
        Whether a run ends with the column.
    first : int
        Row to begin with.
    before, changed
        Of ``run_changes``.
    places : int64[n], read
        Where what is new of each row from ``first`` on begins in ``out``.
    out : uint8[room], written
        Room for the sizes of ``run_changes``. Up to ``WRITTEN_OVER`` bytes behind a row are
        written over: what lies there must be a later row or room that nobody reads.
    run_starts, run_ends : uint32[n, runs], written
        Where each run of each row lies in ``out``.
    """
    source, target = address(pool), address(out)
    source_end, target_end = source + pool.shape[0], target + out.shape[0]
    columns = closes.shape[0]
    fields = np.empty((BLOCK, columns, 2), np.uint32)
    for i in range(places.shape[0]):
        row = i % BLOCK
        if row == 0:
            # Columns lie far apart: of each, the fields of some rows are taken at once.
            count = min(BLOCK, places.shape[0] - i)
            for c in range(columns):
                for k in range(count):
                    fields[k, c, 0] = begins[c, first + i + k]
                    fields[k, c, 1] = stops[c, first + i + k]
        at = places[i]
        c = 0
        for run in range(changed.shape[0]):
            if not changed[run, i]:
                run_starts[i, run] = run_starts[before[i], run]
                run_ends[i, run] = run_ends[before[i], run]
                while not closes[c]:
                    c += 1
                c += 1
                continue
            run_starts[i, run] = at
            inside = True
            while inside:
                begin = np.int64(fields[row, c, 0])
                size = np.int64(fields[row, c, 1]) - begin
                copy_text(source + begin, source_end, target + at, target_end, size)
                at += size
                out[np.uint64(at)] = TAB
                at += 1
                inside = not closes[c]
                c += 1
            run_ends[i, run] = at


@njit(cache=True, nogil=True)
def rows_size(begins, stops, sizes):
    """Bytes that ``rows_text`` writes for each row of which every run has changed.

    Parameters
    ----------
    begins, stops : uint32[columns, q], read
    sizes : int64[q], written
    """
    sizes[:] = begins.shape[0]
    for c in range(begins.shape[0]):
        for i in range(sizes.shape[0]):
            sizes[i] += np.int64(stops[c, i]) - np.int64(begins[c, i])


@njit(cache=True, nogil=True)
def field_runs(data, starts, ends, fields, out):
    """Cut rows of tab-separated fields into runs.

    Parameters
    ----------
    data : uint8[size], read
    starts, ends : int64[n], read
        Row i is ``data[starts[i]:ends[i]]``, with a byte behind its last field.
    fields : int64[runs], read
        Fields of each run; together all of them.
    out : int64[n, runs], written
        Where each run ends.
    """
    runs = fields.shape[0]
    for i in range(starts.shape[0]):
        at = starts[i]
        for run in range(runs - 1):
            for _ in range(fields[run]):
                while data[at] != TAB:
                    at += 1
                at += 1
            out[i, run] = at
        out[i, runs - 1] = ends[i]


@njit(cache=True, nogil=True)
def place_runs(rows, starts, ends, text, mine, starts_out, ends_out, sizes):
    """Note the addresses of runs of some rows.

    Parameters
    ----------
    rows : uint32[n], read
    starts, ends : uint32[n, m], read
        Run j of row ``rows[i]`` is ``text[starts[i, j]:ends[i, j]]``.
    text : uint8[size], read
    mine : int64[m], read
        Number of each run among those of a whole row.
    starts_out, ends_out : int64[all rows, runs], written
        Addresses.
    sizes : int64[all rows], read and written
        The bytes of the runs are added.
    """
    base = address(text)
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(mine.shape[0]):
            starts_out[row, mine[j]] = base + np.int64(starts[i, j])
            ends_out[row, mine[j]] = base + np.int64(ends[i, j])
            sizes[row] += np.int64(ends[i, j]) - np.int64(starts[i, j])


@njit(cache=True, nogil=True)
def join_runs(starts, ends, first, last, end_byte, out):
    """Write rows of runs one behind the other; the last byte of a run is a separator.

    Parameters
    ----------
    starts, ends : int64[n, runs], read
        Addresses between which run r of row i lies. ``WRITTEN_OVER`` bytes behind each can be
        read, too.
    first, last : int
        Rows to write.
    end_byte : uint8
        Stands at the end of each row; a tab at the ends of its other runs.
    out : uint8[room], written

    Returns
    -------
    int
        Bytes written.
    """
    target = address(out)
    target_end = target + out.shape[0]
    at = np.int64(0)
    for i in range(first, last):
        if i + AHEAD < last:
            for run in range(starts.shape[1]):
                for line in range(starts[i + AHEAD, run], ends[i + AHEAD, run], LINE):
                    prefetch(line)
        for run in range(starts.shape[1]):
            size = ends[i, run] - starts[i, run]
            copy_text(starts[i, run], ends[i, run] + WRITTEN_OVER, target + at, target_end, size)
            at += size
            out[at - 1] = TAB
        out[at - 1] = end_byte
    return at
