"""Raw tables to samples: one line of text for each impression, in parts.

A part of the samples is a file of its own, so that parts can be worked on apart. Training rows
are dealt to parts by a hash of (seed, row number): with the shuffle inside each part that follows,
they end up in random order without ever being in memory together.

The tables are read once. Where there are windows, their events go to disk in that pass, and
``ctrps.data.history`` makes the windows and whole samples of them afterwards. What is finished is
not done again when a run that was cut off is taken up.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.days import local_time
from ctrps.data.history import NOWHERE, EventBuckets, HistoryWork, Place, bucket_bits
from ctrps.data.join import Joiner, field_of, read_side, timed_rows, without_commas
from ctrps.data.joinfile import IMPRESSIONS, JoinPlan
from ctrps.data.making import Share, claim, read_json, write_json
from ctrps.data.streams import GZIP
from ctrps.data.tables import Piece, RawTable, find_table
from ctrps.data.texts import Field
from ctrps.data.windows import Histories
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.tables import deal_rows

PART_ROWS = 1 << 18
"""Rows of a part that is filled in order; with all features they take some 100 MB as text."""

PART_BYTES = 12 << 20
"""Raw bytes behind a dealt part: PART_ROWS impressions of six short columns."""

MAX_PARTS = 256

GZIP_RATIO = 6
"""How much smaller such tables are in gzip, roughly."""

BASE_BYTES = 320 << 20
"""Memory of the process before it reads anything: Python, libraries and compiled kernels."""

ROW_BYTES, BASE_ROW_BYTES, WINDOW_BYTES, EVENT_BYTES = 36, 150, 8, 60
"""Estimates: raw bytes of an impression, its text without windows, a window's text, an event."""

KINDS = ("train", "test")
KEPT_SHARE = 0.4
"""Share of the memory that windows may stay in until they become lines of samples."""

READ, DONE = "read.json", "done.json"
ALL = Share()
Progress = Callable[[str, int], None]
T = TypeVar("T")


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


def make_samples(
    folder: Path,
    plan: JoinPlan,
    out: Path,
    bad: BadRows,
    *,
    shuffle: bool = True,
    seed: int = 1,
    progress: Progress | None = None,
    chunk_bytes: int = 8 << 20,
    memory_bytes: int = 2 << 30,
    threads: int = 1,
    share: Share = ALL,
    again: bool = False,
) -> JoinCounts:
    """Join the tables of a folder to samples.

    Parameters
    ----------
    folder
        Holds the raw tables.
    plan
        What to join.
    out
        Folder that gets ``train-*.tsv`` and ``test-*.tsv``, each with a header line. Empty, or as
        a run with the same arguments that was cut off has left it.
    bad
        Is told of bad rows, and at the end of how many there were.
    shuffle, seed
        Deal training rows to parts at random; otherwise parts are filled in order, as those of
        the test are.
    progress
        Called with what is done ("sample", a table of events, "windows", "lines") and the rows
        done so far.
    chunk_bytes
        Bytes of a table in memory; the result does not depend on it.
    memory_bytes
        What the process may take in all; fewer threads work where there is less.
    threads
        Threads that make windows and samples; the result does not depend on it.
    share
        The windows that this run computes. The run that finds those of all others there makes
        the samples.
    again
        Make them even if another run began to.

    Returns
    -------
    JoinCounts
        ``missing`` says which runs' windows are not there yet.

    Raises
    ------
    DataError
        A table is missing, lacks a column, has a key twice or too many bad rows; or no
        impression is on the days of the split.
    ConfigError
        The plan names a column that no table has, or that several have; or memory or room on
        disk will not do.
    """
    reader = _Reader(folder, plan, bad, shuffle, seed, progress, chunk_bytes)
    if not plan.windows:
        if share != ALL:
            hint = "run it as a whole, and the stage features in parts"
            raise ConfigError("samples without windows are made in one run", hint=hint)
        for path in out.glob("*.tsv"):
            path.unlink()
        return reader.read(out, None, share)
    bits = bucket_bits(reader.events_bytes())
    mine = _folder(out, share)
    if not (mine / READ).exists():
        shutil.rmtree(mine, ignore_errors=True)
        (mine / "base").mkdir(parents=True)
        reader.check_room(out, share)
        with EventBuckets(reader.histories, mine, bits, share) as events:
            counts = reader.read(mine / "base", events, share)
        write_json(mine / READ, asdict(counts))
    counts = JoinCounts(**read_json(mine / READ))
    room = memory_bytes - BASE_BYTES - reader.side_bytes
    # What other runs need must be on disk.
    keep_bytes = int(room * KEPT_SHARE) if share == ALL else 0
    history = HistoryWork(reader.histories, out / "history", mine, bits, keep_bytes)
    room -= max(keep_bytes, 0)
    if not (mine / DONE).exists():
        workers = _workers(threads, room, history.bucket_bytes())
        buckets = [bucket for bucket in history.buckets() if share.has(bucket[1])]
        _each("windows", lambda bucket: history.compute(*bucket), buckets, workers, progress)
        if history.durable:
            write_json(mine / DONE, {})
            history.remove_events()
    others = [one for one in share.all() if one != share]
    counts.missing = [str(one) for one in others if not (_folder(out, one) / DONE).exists()]
    if not counts.missing and share.of > 1 and not claim(out, again):
        counts.missing = ["samples, which another run makes (if it has ended, use --resume)"]
    if not counts.missing:
        workers = _workers(threads, room, history.part_bytes())
        bases = [base for one in share.all() for base in (_folder(out, one) / "base").iterdir()]
        join = partial(_join_part, history, reader.header, out)
        _each("lines", join, sorted(bases), workers, progress)
    return counts


def _folder(out: Path, share: Share) -> Path:
    """What the run of a share keeps for itself."""
    return out / "history" / str(share).replace("/", "-of-")


def _workers(threads: int, room: int, need: int) -> int:
    """Threads that ``room`` bytes are enough for, when each needs so many."""
    if need > room:
        what = f"too little: a thread needs {need >> 20} MB, and {max(room, 0) >> 20} MB are left"
        raise ConfigError(what, where="sample.memory_mb", hint="allow more")
    return min(threads, room // max(need, 1))


def _each(
    name: str,
    task: Callable[[T], int],
    items: Iterable[T],
    threads: int,
    progress: Progress | None,
) -> None:
    """Do a task, which returns rows, for each item; an error ends those that have not begun."""
    rows = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for more in pool.map(task, items):
                rows += more
                if progress and more:
                    progress(name, rows)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _join_part(history: HistoryWork, header: bytes, out: Path, base: Path) -> int:
    """Make a part of the samples, unless it is there; return its rows."""
    kind, number = base.stem.split("-")
    part = int(number) * len(KINDS) + KINDS.index(kind)
    return history.join(part, base, header, out / base.name)


class _Reader:
    """Reads all tables once, and writes the rows of their columns."""

    def __init__(
        self,
        folder: Path,
        plan: JoinPlan,
        bad: BadRows,
        shuffle: bool,
        seed: int,
        progress: Progress | None,
        chunk_bytes: int,
    ):
        self._folder, self._plan, self._bad, self._chunk_bytes = folder, plan, bad, chunk_bytes
        self._progress = progress
        self._sides = [read_side(folder, join, bad) for join in plan.joins]
        self._path = find_table(folder, plan.impressions.table)
        self._deal = _Deal(_parts(self._path) if shuffle else 0, seed)
        with RawTable(self._path, bad, chunk_bytes) as table:
            joiner = Joiner(plan, table, self._sides)
            self.header = joiner.header
            self.histories = Histories(plan, joiner.names)

        arrays = [
            array
            for side in self._sides
            for array in (side.finder, side.columns.data, side.columns.starts, side.columns.ends)
        ]
        # The joiner holds them once more, in one piece.
        self.side_bytes = 2 * sum(array.nbytes for array in arrays)

    def events_bytes(self) -> int:
        """Bytes of the texts whose rows go to buckets, about; it follows from the files alone."""
        tables = [self._plan.events[n].table for n in self.histories.sources if n != IMPRESSIONS]
        size = sum(_text_bytes(find_table(self._folder, table)) for table in tables)
        return size + _text_bytes(self._path) * len(self.histories.groups)

    def check_room(self, out: Path, share: Share) -> None:
        """Refuse to start what would end with a full disk."""
        rows = _text_bytes(self._path) // ROW_BYTES
        groups, windows = len(self.histories.groups), len(self._plan.windows)
        text = rows * (BASE_ROW_BYTES + windows * WINDOW_BYTES)
        need = (self.events_bytes() + rows * groups * EVENT_BYTES + text) // share.of + text
        free = shutil.disk_usage(out).free
        if need > free:
            what = f"this takes about {need / 1e9:.1f} GB of disk, and {free / 1e9:.1f} GB are free"
            raise ConfigError(what, where=str(out), hint="give another output.dir")

    def read(self, out: Path, events: EventBuckets | None, share: Share) -> JoinCounts:
        """Write a share's parts to ``out``; without header lines if there are ``events``."""
        counts = JoinCounts(read=sum(side.rows for side in self._sides))
        counts.unmatched = {side.join.table: 0 for side in self._sides}
        with RawTable(self._path, self._bad, self._chunk_bytes) as table:
            joiner = Joiner(self._plan, table, self._sides)
            header = b"" if events else joiner.header
            for piece in table.pieces():
                rows, times = joiner.good_rows(piece)
                targets = _targets(self._plan, self._deal, times, counts)
                found = joiner.match(piece, rows, times)
                for name, missing in joiner.unmatched(found, targets.order).items():
                    counts.unmatched[name] += missing
                _append(out, header, joiner.compose(found, targets.order), targets, share)
                if events:
                    places = targets.places(len(rows))
                    events.add(IMPRESSIONS, partial(joiner.field, found), times, places)
                if self._progress and len(rows):
                    self._progress("sample", table.rows)
            counts.read += table.rows
        if events:
            for name in self._plan.events:
                counts.read += self._read_events(name, events)
            events.close()
        counts.rejected = self._bad.count
        self._bad.finish(counts.read)
        if not counts.train + counts.test:
            what = f"none of its rows is on the days of the split; {counts.outside} are on others"
            hint = "check split and impressions.zone"
            raise DataError(what, where=str(self._path), hint=hint)
        return counts

    def _read_events(self, name: str, buckets: EventBuckets) -> int:
        events = self._plan.events[name]
        with RawTable(
            find_table(self._folder, events.table), self._bad, self._chunk_bytes
        ) as table:
            when = table.column(events.time)
            windows = [w for w in self._plan.windows.values() if w.events == name]
            listed = {table.column(w.of) for w in windows if w.of is not None}
            for piece in table.pieces():
                rows, times = timed_rows(table, piece, when)
                fit = without_commas(table, piece, rows, listed)
                rows, times = rows[fit], times[fit]
                column = partial(_event_field, table, piece, rows)
                buckets.add(name, column, times)
                if self._progress and len(rows):
                    self._progress(name, table.rows)
            return table.rows


def _event_field(table: RawTable, piece: Piece, rows: np.ndarray, name: str) -> Field:
    return field_of(piece, rows, table.column(name))


@dataclass
class _Deal:
    """How training rows get to parts; 0 parts: in order. ``filled``: rows of parts so far."""

    parts: int
    seed: int
    filled: dict[int, int] = field(default_factory=dict)


def _text_bytes(path: Path) -> int:
    """Bytes of a table as text, about."""
    size = path.stat().st_size
    with path.open("rb") as file:
        return size * GZIP_RATIO if file.read(len(GZIP)) == GZIP else size


def _parts(path: Path) -> int:
    """Number of parts to deal to; it follows from the file alone."""
    return min(max(math.ceil(_text_bytes(path) / PART_BYTES), 1), MAX_PARTS)


class _Targets(NamedTuple):
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


def _targets(plan: JoinPlan, deal: _Deal, times: np.ndarray, counts: JoinCounts) -> _Targets:
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
    order = np.argsort(parts, kind="stable")
    order = order[parts[order] >= 0]
    targets = _Targets(order, parts[order], np.empty(len(order), np.int64))
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


def _append(
    out: Path,
    header: bytes,
    lines: tuple[np.ndarray, np.ndarray],
    targets: _Targets,
    share: Share,
) -> None:
    """Write the rows of a piece behind those that their parts already have."""
    text, ends = lines
    for first, last in targets.groups():
        number, kind = divmod(int(targets.parts[first]), len(KINDS))
        if not share.has(number):
            continue
        start = int(ends[first - 1]) if first else 0
        # Opened anew for each piece: a long log has more parts than a process may have files.
        with (out / f"{KINDS[kind]}-{number:05d}.tsv").open("ab") as file:
            if not file.tell():
                file.write(header)
            file.write(text[start : ends[last - 1]].data)
