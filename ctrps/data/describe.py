"""What files of examples hold: single rows to look at, and figures over all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.data.badrows import BadRows, escaped
from ctrps.data.formats import open_rows
from ctrps.data.indices import IndexRange
from ctrps.data.reading import TextSettings
from ctrps.data.rows import Rows, Schema
from ctrps.kernels.keys import index_build, index_capacity, index_insert, index_new, key_of
from ctrps.sections import INDEXED

HEAD_BYTES = 1 << 16
"""Text read at a time to look at a few rows."""


def head(path: Path, rows: int, settings: TextSettings) -> Iterator[str]:
    """The first rows of a file in a readable form, after a line on its format.

    A row is its number, label, id, and for each slot that has keys ``name=key,key`` or
    ``name=key:value``; a number is ``name:value``.

    Raises
    ------
    DataError
        For what cannot be read.
    """
    with open_rows(path, settings, BadRows(settings.max_bad), HEAD_BYTES) as source:
        parts = itertools.takewhile(lambda _: rows > 0, source.rows)
        first = next((part for part in parts if part.rows), None)
        yield f"# {source.name}: {source.format} ({source.why}); {_about(source.schema)}"
        number = 0
        for part in itertools.chain([] if first is None else [first], source.rows):
            for row in range(min(part.rows, rows - number)):
                number += 1
                yield _line(number, part.part(row, row + 1), source.schema)
            if number >= rows:
                return


def _about(schema: Schema) -> str:
    by = "their values" if schema.weights == "value" else "1/n"
    return f"{len(schema.slots)} slots, keys weigh {by}, {len(schema.dense)} numbers"


def _line(number: int, row: Rows, schema: Schema) -> str:
    label = "-" if np.isnan(row.labels[0]) else str(int(row.labels[0]))
    words = [str(number), f"label={label}"]
    if row.ids is not None:
        words.append(f"id={escaped(row.ids[0].tobytes().decode('utf-8', 'backslashreplace'))}")
    keys = [str(key) for key in row.keys.tolist()]
    if row.values is not None:
        keys = [f"{key}:{value}" for key, value in zip(keys, row.values.astype(str), strict=True)]
    start = 0
    for name, count in zip(schema.slots, row.counts[0].tolist(), strict=False):
        if count:
            words.append(f"{escaped(name)}={','.join(keys[start : start + count])}")
        start += count
    dense = zip(schema.dense, row.dense[0].astype(str), strict=True)
    return " ".join([*words, *(f"{escaped(name)}:{value}" for name, value in dense)])


class DistinctKeys:
    """Counts distinct keys exactly; 40 to 80 bytes of memory for each.

    Examples
    --------
    >>> keys = DistinctKeys()
    >>> for part in ([7, 9], [9, 2**64 - 1]):
    ...     keys.add(np.array(part, np.uint64))
    >>> keys.count
    3
    """

    def __init__(self) -> None:
        self.count = 0
        self._index = index_new(1 << 10)
        self._keys = np.empty(1 << 9, np.uint64)

    def add(self, keys: np.ndarray) -> None:
        """Count the keys, uint64[n], that were not met before."""
        self._make_room(len(keys))
        rows, new = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        used, count = index_insert(self._index, keys, self.count, rows, new)
        self._keys[self.count : used] = keys[new[:count]]
        self.count = used

    def _make_room(self, more: int) -> None:
        capacity = index_capacity(self.count + more)
        if capacity <= len(self._index):
            return
        self._index = index_new(2 * capacity)
        index_build(self._index, self._keys[: self.count])
        self._keys = np.concatenate([self._keys[: self.count], np.empty(capacity, np.uint64)])


@dataclass
class _Slot:
    """Figures of one slot."""

    empty: int
    keys: DistinctKeys = field(default_factory=DistinctKeys)
    entries: int = 0
    rows: int = 0
    missing: int = 0


@dataclass
class Stats:
    """Figures of rows that are added piece by piece; see ``stats``."""

    rows: int = 0
    labelled: int = 0
    clicks: int = 0
    entries: int = 0
    least: int | None = None
    most: int = 0
    slots: dict[str, _Slot] = field(default_factory=dict)
    dense: dict[str, list[float]] = field(default_factory=dict)

    def add(self, rows: Rows, schema: Schema) -> None:
        if not rows.rows:
            return
        self.rows += rows.rows
        self.labelled += int((~np.isnan(rows.labels)).sum())
        self.clicks += int((rows.labels == 1).sum())
        sizes = rows.counts.sum(axis=1) + (rows.dense != 0).sum(axis=1)
        self.entries += int(sizes.sum())
        self.least = min(self.least if self.least is not None else 1 << 62, int(sizes.min()))
        self.most = max(self.most, int(sizes.max()))
        self._add_slots(rows, schema)
        for column, name in enumerate(schema.dense):
            low, high, total = self.dense.get(name, [np.inf, -np.inf, 0.0])
            numbers = rows.dense[:, column]
            total += float(numbers.sum(dtype=np.float64))
            self.dense[name] = [min(low, numbers.min()), max(high, numbers.max()), total]

    def _add_slots(self, rows: Rows, schema: Schema) -> None:
        slots = rows.counts.shape[1]
        slot_of = np.repeat(np.tile(np.arange(slots), rows.rows), rows.counts.reshape(-1))
        order = np.argsort(slot_of, kind="stable")
        keys, start = rows.keys[order], 0
        for slot, name in enumerate(schema.slots[:slots]):
            found = self.slots.setdefault(name, _Slot(key_of(name, "")))
            counts = rows.counts[:, slot]
            mine = keys[start : start + int(counts.sum())]
            start += len(mine)
            found.keys.add(np.ascontiguousarray(mine))
            found.entries += len(mine)
            found.rows += rows.rows
            found.missing += int((counts == 0).sum()) + int((mine == np.uint64(found.empty)).sum())

    def figures(self) -> dict[str, Any]:
        """All figures, JSON-able; shares and means are None where there are no rows."""
        return {
            "rows": self.rows,
            "labelled": self.labelled,
            "clicks": self.clicks,
            "ctr": self.clicks / self.labelled if self.labelled else None,
            "keys_per_row": {
                "min": self.least,
                "mean": self.entries / self.rows if self.rows else None,
                "max": self.most if self.rows else None,
            },
            "slots": {
                name: {
                    "distinct_keys": slot.keys.count,
                    "keys": slot.entries,
                    # A file before this slot was first seen has nothing in it.
                    "missing": (slot.missing + self.rows - slot.rows) / self.rows,
                }
                for name, slot in self.slots.items()
            },
            "numbers": {
                name: {"min": float(low), "max": float(high), "mean": total / self.rows}
                for name, (low, high, total) in self.dense.items()
            },
        }


def stats(paths: Sequence[Path], settings: TextSettings) -> dict[str, Any]:
    """Figures over the rows of some files.

    Returns
    -------
    dict
        ``rows``, ``labelled``, ``clicks``, ``ctr``; ``keys_per_row`` (dense numbers that are not 0
        count as keys); for each of the ``slots`` its ``distinct_keys``, ``keys`` and the share of
        rows in which it is ``missing``: without a key, or with that of the empty value; for the
        ``numbers`` their range and mean; ``indices``: the ``least`` and the ``greatest`` of libsvm,
        libffm and dummy files; ``rejected`` rows; ``files``: path, format, why, rows.

    Raises
    ------
    DataError
        For what cannot be read, and too many bad rows.
    """
    bad, total, files = BadRows(settings.max_bad), Stats(), []
    indices = IndexRange()
    for path in paths:
        before = total.rows
        with open_rows(path, settings, bad) as source:
            for rows in source.rows:
                total.add(rows, source.schema)
                if source.format in INDEXED:
                    indices.add(rows.keys)
            about = {"path": str(path), "format": source.format, "why": source.why}
            files.append(about | {"rows": total.rows - before})
    bad.finish(total.rows + bad.count)
    found = {"indices": indices.as_meta(), "rejected": bad.count, "files": files}
    return total.figures() | found
