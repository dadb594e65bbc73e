"""About how much memory and disk a job will take, told by its first rows."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrps import models
from ctrps.config import JobConfig
from ctrps.data.badrows import BadRows
from ctrps.data.describe import DistinctKeys
from ctrps.data.formats import open_rows
from ctrps.data.reading import TextSettings
from ctrps.data.streams import STDIN
from ctrps.kernels import store
from ctrps.models import TableSpec

LOOK_ROWS = 20_000
LOOK_BYTES = 1 << 20

LOAD = 0.45
"""Mean share of a table's index in use: it grows when 0.6 is reached, and is half as full then."""

KEY_ON_DISK = 8
"""Bytes of a key in a partition file, beside its row."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What training takes.

    Attributes
    ----------
    keys
        Distinct keys of all training rows, by the growth over the first ones.
    looked_rows, looked_keys
        Rows that were looked at, and their distinct keys.
    key_bytes
        Memory of a key: its entry in the index, and the rest of its row.
    model_bytes
        Memory of the model: of all servers together, or of `train`.
    checkpoint_bytes
        Disk of one checkpoint.
    """

    keys: int
    looked_rows: int
    looked_keys: int
    key_bytes: int
    model_bytes: int
    checkpoint_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimate(
    job: JobConfig, paths: Sequence[Path], settings: TextSettings, rows: int
) -> Estimate | None:
    """Look at the first rows of training files; None if there are none.

    Parameters
    ----------
    job
    paths
        Files of examples; standard input is left alone.
    settings
    rows
        How many there are in all.

    Raises
    ------
    DataError
        As reading these rows would.
    """
    files = [path for path in paths if path != STDIN]
    if not files:
        return None
    looked, counts = _distinct(files[0], settings)
    if not looked:
        return None
    keys = grown(counts, looked, max(rows, looked))
    sparse = models.build(job).tables[0]
    each = key_bytes(sparse)
    on_disk = keys * (KEY_ON_DISK + 4 * sparse.width)
    return Estimate(keys, looked, counts[1], each, keys * each, on_disk)


def _distinct(path: Path, settings: TextSettings) -> tuple[int, tuple[int, int]]:
    """Rows looked at, and distinct keys of the first half of them and of all."""
    parts, rows = [], 0
    with open_rows(path, settings, BadRows(1), LOOK_BYTES) as source:
        for part in source.rows:
            parts.append((part.rows, part.keys.astype(np.uint64)))
            rows += part.rows
            if rows >= LOOK_ROWS:
                break
    ends = np.cumsum([counted for counted, _ in parts])
    found, half = DistinctKeys(), 0
    for end, (_, keys) in zip(ends, parts, strict=True):
        # Where one part holds more than half of the rows, its keys are cut with them.
        middle = len(keys) // 2 if len(parts) == 1 else len(keys)
        found.add(keys[:middle])
        if not half and 2 * end >= rows:
            half = found.count
        found.add(keys[middle:])
    return rows, (half, found.count)


def grown(counts: tuple[int, int], looked: int, rows: int) -> int:
    """Distinct keys of ``rows`` rows, whose number grows as a power of them (Heaps' law).

    Parameters
    ----------
    counts
        Distinct keys of the first half, and of all rows that were looked at.
    looked
        How many these are.

    Examples
    --------
    >>> grown((100, 100), 1000, 1_000_000), grown((100, 200), 1000, 1_000_000)
    (100, 200000)
    """
    half, whole = counts
    power = math.log2(whole / half) if 0 < half <= whole else 1.0
    return round(whole * (rows / looked) ** min(power, 1.0))


def key_bytes(table: TableSpec) -> int:
    """Memory that a key takes in a server's table, on the mean."""
    tail = 4 * (table.width - table.head_width)
    lines = 32 if 0 < tail <= 32 else -(-tail // store.LINE) * store.LINE
    return round(store.ENTRY / LOAD) + lines
