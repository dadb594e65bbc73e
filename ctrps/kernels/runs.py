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

LINE = 64
"""Bytes of a line of the processor's cache."""


@njit(cache=True, nogil=True)
def rows_text(pool, begins, stops, closes, first, places, out, run_ends):
    """Write rows of fields with a tab behind each, each row to its place.

    Parameters
    ----------
    pool : uint8[size], read
    begins, stops : uint32[columns, q], read
        Field of column c in row i is ``pool[begins[c, i]:stops[c, i]]``.
    closes : bool[columns], read
        Whether a run ends with the column.
    first : int
        Row to begin with.
    places : int64[n], read
        Where each row from ``first`` on begins in ``out``.
    out : uint8[room], written
        Room for all of them; see ``rows_size``. Up to ``WRITTEN_OVER`` bytes behind a row are
        written over: what lies there must be a later row or room that nobody reads.
    run_ends : uint32[n, runs], written
        Where each run ends in its row.
    """
    source, target = address(pool), address(out)
    source_end, target_end = source + pool.shape[0], target + out.shape[0]
    for i in range(places.shape[0]):
        row = first + i
        at = places[i]
        run = 0
        for c in range(begins.shape[0]):
            begin = np.int64(begins[c, row])
            size = np.int64(stops[c, row]) - begin
            copy_text(source + begin, source_end, target + at, target_end, size)
            at += size
            out[at] = TAB
            at += 1
            if closes[c]:
                run_ends[i, run] = at - places[i]
                run += 1


@njit(cache=True, nogil=True)
def rows_size(begins, stops, sizes):
    """Bytes that ``rows_text`` writes for each row.

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
    out : int64[runs, n], written
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
            out[run, i] = at
        out[runs - 1, i] = ends[i]


@njit(cache=True, nogil=True)
def join_runs(starts, ends, first, last, end_byte, out):
    """Write rows of runs one behind the other; the last byte of a run is a separator.

    Parameters
    ----------
    starts, ends : int64[runs, n], read
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
            for run in range(starts.shape[0]):
                for line in range(starts[run, i + AHEAD], ends[run, i + AHEAD], LINE):
                    prefetch(line)
        for run in range(starts.shape[0]):
            size = ends[run, i] - starts[run, i]
            copy_text(starts[run, i], ends[run, i] + WRITTEN_OVER, target + at, target_end, size)
            at += size
            out[at - 1] = TAB
        out[at - 1] = end_byte
    return at
