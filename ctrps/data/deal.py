"""Which part of the samples each impression goes to, and which row of it that becomes.

Training rows are dealt to parts by a hash of (seed, row number), or fill them in order; test rows
fill theirs in order. It follows from the table and the join file alone, whoever makes the part.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctrps.data import parquet
from ctrps.data.buckets import NOWHERE, Place, part_order
from ctrps.data.days import local_time
from ctrps.data.joinfile import JoinPlan
from ctrps.data.streams import GZIP
from ctrps.kernels.tables import deal_rows

KINDS = ("train", "test")

PART_ROWS = 1 << 18
"""Rows of a part that is filled in order; with all features they take some 100 MB as text."""

PART_BYTES = 12 << 20
"""Raw bytes behind a dealt part: PART_ROWS impressions of six short columns."""

MAX_PARTS = 256

GZIP_RATIO = 6
"""How much smaller such tables are in gzip, roughly."""


@dataclass
class JoinCounts:
    """What became of the rows.

    Attributes
    ----------
    read, rejected
        Rows of all tables, good and bad, and the bad ones among them.
    train, test, outside
        Good impressions on training days, on test days, and on neither.
    unmatched
        Per joined table, the impressions of train and test without a row in it.
    missing
        Shares of the work that are not done yet, as ``I/N``.
    """

    read: int = 0
    rejected: int = 0
    train: int = 0
    test: int = 0
    outside: int = 0
    unmatched: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


@dataclass
class Deal:
    """How training rows get to parts; 0 parts: in order. ``filled``: rows of parts so far."""

    parts: int
    seed: int
    filled: dict[int, int] = field(default_factory=dict)


def text_bytes(path: Path) -> int:
    """Bytes of a table as text, about."""
    if parquet.is_parquet(path):
        return parquet.about_bytes(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        return size * GZIP_RATIO if file.read(len(GZIP)) == GZIP else size


def part_count(path: Path) -> int:
    """Number of parts to deal to; it follows from the file alone, Parquet counts as its text."""
    size = parquet.text_bytes(path) if parquet.is_parquet(path) else text_bytes(path)
    return min(max(math.ceil(size / PART_BYTES), 1), MAX_PARTS)


class Targets(NamedTuple):
    """Rows of a piece by the part they go to; those of no part are left out.

    Attributes
    ----------
    order
        Numbers of the rows.
    parts, rows
        Number of each one's part among those of both kinds, and which row of it it becomes.
    """

    order: np.ndarray
    parts: np.ndarray
    rows: np.ndarray

    def places(self, n: int) -> Place:
        """The same for all rows of the piece."""
        parts, rows = np.full(n, NOWHERE), np.zeros(n, np.uint32)
        parts[self.order], rows[self.order] = self.parts, self.rows
        return Place(parts, rows)

    def groups(self) -> list[tuple[int, int]]:
        """Borders of the rows of each part."""
        firsts = [0, *(np.flatnonzero(np.diff(self.parts)) + 1), len(self.parts)]
        return list(itertools.pairwise(firsts)) if len(self.parts) else []


def targets_of(plan: JoinPlan, deal: Deal, times: np.ndarray, counts: JoinCounts) -> Targets:
    """Send each row to its part, and count it."""
    kinds = _kinds(plan, times)
    numbers = np.zeros(len(times), np.int64)
    for kind, before in enumerate((counts.train, counts.test)):
        mine = kinds == kind
        numbers[mine] = (before + np.arange(np.count_nonzero(mine))) // PART_ROWS
    if deal.parts:
        dealt = np.empty(len(times), np.int64)
        first = counts.train + counts.test + counts.outside
        deal_rows(first, np.uint64(deal.seed), deal.parts, dealt)
        numbers = np.where(kinds == 0, dealt, numbers)
    counts.train += int(np.count_nonzero(kinds == 0))
    counts.test += int(np.count_nonzero(kinds == 1))
    counts.outside += int(np.count_nonzero(kinds < 0))
    parts = np.where(kinds < 0, -1, numbers * len(KINDS) + kinds)
    order = np.flatnonzero(parts >= 0)
    order = order[part_order(parts[order])]
    targets = Targets(order, parts[order], np.empty(len(order), np.int64))
    for first, last in targets.groups():
        part = int(targets.parts[first])
        before = deal.filled.get(part, 0)
        targets.rows[first:last] = np.arange(before, before + last - first)
        deal.filled[part] = before + last - first
    return targets


def _kinds(plan: JoinPlan, times: np.ndarray) -> np.ndarray:
    """0 for rows on training days, 1 for rows on test days, -1 for others."""
    if plan.split is None:
        return np.zeros(len(times), np.int64)
    days, _ = local_time(times, plan.zone)
    kinds = np.full(len(times), -1, np.int64)
    for kind, name in enumerate(KINDS):
        span = getattr(plan.split, name)
        if span:
            first, last = span.days
            kinds[(days >= first) & (days <= last)] = kind
    return kinds


class Places:
    """Where the impressions of a table stand in the samples: which file, and which row of it.

    Parameters
    ----------
    plan, shuffle, seed
        As in ``make_samples``.
    path
        The table of impressions.
    """

    def __init__(self, plan: JoinPlan, path: Path, shuffle: bool, seed: int):
        self._plan, self._counts = plan, JoinCounts()
        self._deal = Deal(part_count(path) if shuffle else 0, seed)

    def of(self, times: np.ndarray) -> list[tuple[str, int] | None]:
        """Of the next good rows, by their times; None: on no day of the split."""
        found = targets_of(self._plan, self._deal, times, self._counts)
        parts, rows = (array.tolist() for array in found.places(len(times)))
        return [
            None if part == NOWHERE else (part_name(part), row)
            for part, row in zip(parts, rows, strict=True)
        ]


def part_name(part: int) -> str:
    number, kind = divmod(part, len(KINDS))
    return f"{KINDS[kind]}-{number:05d}.tsv"
