"""Names of keys out of tables: which text of which column each key was made of.

Rows of a table hold the texts themselves, so its keys need no file of names (``names``), only the
table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.formats import open_rows
from ctrps.data.names import Names
from ctrps.data.reading import TABLES, TextSettings
from ctrps.data.rows import Ids, Rows, Schema
from ctrps.errors import DataError
from ctrps.kernels.fields import keys_of_texts
from ctrps.kernels.keys import namespace

MOST_ROWS = 1 << 18
"""Rows of all files that are looked at, from the front."""


class _Found:
    """Names and counts of the keys of rows."""

    def __init__(self, slots: tuple[str, ...]):
        self.names: dict[int, str] = {}
        self.counts: dict[int, int] = {}
        self.rows = 0
        self._seeds = {slot: np.uint64(namespace(slot)) for slot in slots}

    def add(self, rows: Rows, schema: Schema, slots: tuple[str, ...]) -> None:
        """Take rows whose ``kept`` are the texts of ``slots``."""
        self.rows += rows.rows
        places = {slot: at for at, slot in enumerate(schema.slots)}
        starts = rows.starts()
        for slot, texts in zip(slots, rows.kept, strict=True):
            if texts is not None and slot in places:
                at = places[slot]
                # Where each row's keys of this slot begin; lists of values have no single text.
                first = starts[:-1] + rows.counts[:, :at].sum(axis=1)
                single = rows.counts[:, at] == 1
                self._add(slot, rows.keys, first, single, texts)

    def _add(
        self, slot: str, keys: np.ndarray, first: np.ndarray, single: np.ndarray, texts: Ids
    ) -> None:
        data, ends = np.array(texts[0]), texts[1]
        made = np.empty(len(ends), np.uint64)
        keys_of_texts(data, ends, np.full(len(ends), self._seeds[slot]), made)
        # A marker of what is missing, and a number taken by its size, is not what it says.
        same = np.flatnonzero(single)
        same = same[made[same] == keys[first[same]]]
        distinct, at, counts = np.unique(made[same], return_index=True, return_counts=True)
        for key, row, count in zip(
            distinct.tolist(), same[at].tolist(), counts.tolist(), strict=True
        ):
            if key not in self.names:
                text = data[ends[row - 1] if row else 0 : ends[row]].tobytes()
                self.names[key] = f"{slot}={text.decode('utf-8', 'backslashreplace')}"
            self.counts[key] = self.counts.get(key, 0) + count


def table_names(paths: Iterable[Path], settings: TextSettings, slots: tuple[str, ...]) -> Names:
    """Name the values of some columns by the first rows of tables.

    Parameters
    ----------
    paths
        csv, tsv, JSON lines or Parquet, with these columns.
    settings
        How the tables are read; rows that cannot be are left out.
    slots
        Columns.

    Raises
    ------
    DataError
        A file is no table, or cannot be read.
    """
    found = _Found(slots)
    for path in paths:
        how = replace(settings, labels="none", keep=slots, id=None, others=True)
        with open_rows(path, how, BadRows(1.0)) as source:
            if source.format not in TABLES:
                what = f"it is {source.format}, which says no names"
                hint = "give a file of names, a folder of some, or a table with the columns"
                raise DataError(what, where=str(path), hint=hint)
            for rows in source.rows:
                if found.rows >= MOST_ROWS:
                    break
                found.add(rows, source.schema, slots)
    keys = sorted(found.names)
    counts = np.array([found.counts[key] for key in keys], np.int64)
    total = int(counts.sum())
    return Names(
        np.array(keys, np.uint64),
        counts,
        [found.names[key] for key in keys],
        rows=found.rows,
        counted_rows=found.rows,
        values=total,
        named_values=total,
        exact=True,
    )
