"""Raw tables to samples: one line of text for each impression, in parts.

A part of the samples is a file of its own, so that parts can be worked on apart. Training rows
are dealt to parts by a hash of (seed, row number): with the shuffle inside each part that follows,
they end up in random order without ever being in memory together.

The tables are read once. Where there are windows, their events go to buckets in that pass
(``ctrps.data.buckets``), and ``ctrps.data.history`` makes the windows and whole samples of them
afterwards: as files, or in memory for the features. What is finished is not done again when a run
that was cut off is taken up.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.buckets import EventBuckets, EventsFound, bucket_bits
from ctrps.data.deal import (
    KINDS,
    Deal,
    JoinCounts,
    part_count,
    part_name,
    targets_of,
    text_bytes,
)
from ctrps.data.history import HistoryWork
from ctrps.data.join import Joiner, field_of, read_side, timed_rows, without_commas
from ctrps.data.joinfile import IMPRESSIONS, JoinPlan
from ctrps.data.making import Share, check_room, claim, read_json, write_json
from ctrps.data.memory import Memory
from ctrps.data.sampletext import SampleText
from ctrps.data.spill import Kept, Room, Spill, SpillWriter
from ctrps.data.tables import Piece, RawTable, find_table
from ctrps.data.texts import Field
from ctrps.data.windows import Histories
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.copying import WRITTEN_OVER

READ_BYTES = 128 << 20
"""Memory, about, that reading tables takes: text, rows on their way to buckets, kernels to load."""

ROW_BYTES, BASE_ROW_BYTES, WINDOW_BYTES, EVENT_BYTES = 36, 150, 8, 60
"""Estimates: raw bytes of an impression, its text without windows, a window's text, an event."""

KEPT_SHARE = 0.4
"""Share of the memory that windows may stay in until they become lines of samples."""

FEATURES_BYTES = 64 << 20
"""Memory, about, that making features of a text takes beside it."""

BASE = "base.rows"
READ, DONE = "read.json", "done.json"
ALL = Share()
Progress = Callable[[str, int, float], None]
"""Called with a stage, its rows so far, and the share of it that is done; 0 if nobody knows."""

Put = Callable[[int, np.ndarray, np.ndarray], None]
"""Takes lines of a part: its number, where each line ends, and their text."""

T = TypeVar("T")


def make_samples(
    folder: Path, plan: JoinPlan, out: Path, bad: BadRows, **options: Any
) -> JoinCounts:
    """Join the tables of a folder to samples, all as files; see ``join_tables``."""
    counts, lines = join_tables(folder, plan, out, bad, **options)
    if lines:
        lines.write()
    return counts


def join_tables(
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
    step: str | None = None,
    whole: bool = True,
    more_row_bytes: float = 0.0,
) -> tuple[JoinCounts, PartLines | None]:
    """Join the tables of a folder, up to the lines of samples.

    Parameters
    ----------
    folder
        Holds the raw tables.
    plan
        What to join.
    out
        Folder for ``train-*.tsv`` and ``test-*.tsv``, each with a header line. Empty, or as a run
        with the same arguments that was cut off has left it.
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
        What the process may have resident in all; fewer threads work where there is less.
    threads
        Threads that make windows and samples; the result does not depend on it.
    share
        The windows that this run computes. The run that finds those of all others there makes
        the samples.
    again
        Make them even if another run began to.
    step
        ``"windows"``: only those of ``share``; ``"lines"``: only its samples, once all windows
        are there.
    whole, more_row_bytes
        There must be room on disk for the samples, too; and so many bytes for each row of them.

    Returns
    -------
    (JoinCounts, PartLines | None)
        What was read, with ``missing`` saying which runs' windows are not there yet; and the
        samples to be made. None if others make them, or where there are no windows: then they
        are there.

    Raises
    ------
    DataError
        A table is missing, lacks a column, has a key twice or too many bad rows; or no
        impression is on the days of the split.
    ConfigError
        The plan names a column that no table has, or that several have; or memory or room on
        disk will not do.
    """
    memory = Memory(memory_bytes)
    reader = _Reader(folder, plan, bad, shuffle, seed, progress, chunk_bytes)
    if not plan.windows:
        if share != ALL:
            hint = "run it as a whole, and the stage features in parts"
            raise ConfigError("samples without windows are made in one run", hint=hint)
        reader.check_room(out, share, whole, more_row_bytes)
        attempt = _attempt(out / "whole")
        counts = reader.read(partial(_append, attempt, reader.header), None, share)
        for path in attempt.iterdir():
            path.replace(out / path.name)
        attempt.rmdir()
        return counts, None
    bits = bucket_bits(reader.events_bytes())
    mine = _folder(out, share)
    _workers(1, memory, READ_BYTES)
    left = memory.left() - READ_BYTES
    # What other runs or later steps need must be on disk.
    keep = Room(int(left * KEPT_SHARE) if share == ALL and step is None else 0)
    found = base = None
    if not (mine / READ).exists():
        reader.check_room(out, share, whole, more_row_bytes)
        attempt = _attempt(mine)
        with (
            SpillWriter(attempt / BASE, keep) as lines,
            EventBuckets(reader.histories, attempt, bits, share, keep) as events,
        ):
            counts = reader.read(partial(_put, lines), events, share)
            found, base = events.close(), lines.close()
        if found.durable:
            write_json(attempt / READ, asdict(counts))
            found = base = None
        shutil.rmtree(mine, ignore_errors=True)
        attempt.rename(mine)
    else:
        counts = JoinCounts(**read_json(mine / READ))
    history = HistoryWork(reader.histories, out / "history", bits, keep)
    if not (mine / DONE).exists():
        found = found or EventsFound.on_disk(reader.histories, mine)
        need = history.bucket_bytes(found)
        keep.left = max(min(keep.left, memory.left() - threads * need), 0)
        workers = _workers(threads, memory, need, keep.left)
        buckets = [bucket for bucket in history.buckets() if share.has(bucket[1])]
        compute = partial(_compute, history, found)
        _each("windows", compute, buckets, workers, memory, progress)
        history.end_windows()
        if history.durable:
            write_json(mine / DONE, {})
            found.remove()
    if step == "windows":
        return counts, None
    others = [one for one in share.all() if one != share]
    counts.missing = [str(one) for one in others if not (_folder(out, one) / DONE).exists()]
    alone = share.of == 1 or step is not None
    if not counts.missing and not alone and not claim(out, again):
        counts.missing = ["samples, which another run makes (if it has ended, use --resume)"]
    if counts.missing:
        return counts, None
    every = [base] if base else [Spill(_folder(out, one) / BASE) for one in share.all()]
    bases = _by_part(every, share if step == "lines" else ALL)
    return counts, PartLines(history, reader.header, out, bases, memory, threads, progress)


def _by_part(bases: Iterable[Kept | Spill], share: Share) -> dict[int, Kept | Spill]:
    """Where the lines of each part of a share are, in the order of the files' names."""
    found = {int(part): base for base in bases for part in np.unique(base.records[:, 0])}
    parts = sorted(found, key=part_name)
    return {part: found[part] for part in parts[share.number :: share.of]}


class PartLines:
    """Samples whose windows are computed, part by part: made as files, or in memory when asked for.

    Attributes
    ----------
    names
        Of the files.
    """

    def __init__(
        self,
        history: HistoryWork,
        header: bytes,
        out: Path,
        bases: Mapping[int, Kept | Spill],
        memory: Memory,
        threads: int,
        progress: Progress | None,
    ):
        self._history, self._header, self._out, self._bases = history, header, out, bases
        self._memory, self._threads, self._progress = memory, threads, progress
        self.names = [part_name(part) for part in bases]

    def write(self) -> None:
        """Make the files that are not there."""
        need = self._history.part_bytes(self._bases, whole=False)
        workers = _workers(self._threads, self._memory, need)
        _each("lines", self._write, self._bases, workers, self._memory, self._progress)

    @contextmanager
    def each(self) -> Iterator[Callable[..., Iterator[Any]]]:
        """A ``map`` over parts, of functions that read a sample by their argument ``read``.

        As many threads work as there is memory for.
        """
        need = self._history.part_bytes(self._bases, whole=True) + FEATURES_BYTES
        with ThreadPoolExecutor(_workers(self._threads, self._memory, need)) as pool:
            try:
                yield lambda task, parts: pool.map(partial(task, read=self._text), parts)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def workers(self, most: int) -> int:
        """Threads that there is memory for beside what this holds, if none is at a part."""
        return _workers(most, self._memory, FEATURES_BYTES)

    def _text(self, path: Path) -> SampleText:
        """What a file of samples is, or would be."""
        part = list(self._bases)[self.names.index(path.name)]
        return self._history.text(part, self._bases[part], self._header, str(path))

    def _write(self, part: int) -> int:
        """Make a part of the samples, unless it is there; return its rows."""
        out = self._out / part_name(part)
        return self._history.write(part, self._bases[part], self._header, out)


def _folder(out: Path, share: Share) -> Path:
    """What the run of a share keeps for itself."""
    return out / "history" / str(share).replace("/", "-of-")


def _attempt(folder: Path) -> Path:
    """A new folder for a try at filling one; an earlier try that still goes on fails."""
    for old in folder.parent.glob(f"{folder.name}.try-*"):
        shutil.rmtree(old, ignore_errors=True)
    new = folder.with_name(f"{folder.name}.try-{secrets.token_hex(4)}")
    new.mkdir(parents=True)
    return new


def _workers(threads: int, memory: Memory, need: int, kept: int = 0) -> int:
    """Threads that there is memory for besides ``kept`` bytes, when each needs so many."""
    left = memory.left() - kept
    if need > left:
        what = f"too little: a thread needs {need >> 20} MB, and {max(left, 0) >> 20} MB are left"
        hint = f"allow {memory.limit_mb(need + kept)} or more"
        raise ConfigError(what, where="sample.memory_mb", hint=hint)
    return min(threads, left // max(need, 1))


def _each(
    name: str,
    task: Callable[[T], int],
    items: Collection[T],
    threads: int,
    memory: Memory,
    progress: Progress | None,
) -> None:
    """Do a task, which returns rows, for each item; an error ends those that have not begun."""
    rows = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for done, more in enumerate(pool.map(task, items), 1):
                rows += more
                memory.ease()
                if progress and more:
                    progress(name, rows, done / len(items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _compute(history: HistoryWork, events: EventsFound, bucket: tuple[int, int]) -> int:
    """Compute the windows of a bucket, unless they are there; return its rows."""
    return history.compute(events, *bucket)


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
        self._deal = Deal(part_count(self._path) if shuffle else 0, seed)
        with RawTable(self._path, bad, chunk_bytes) as table:
            joiner = Joiner(plan, table, self._sides)
            self.header = joiner.header
            self.histories = Histories(plan, joiner.names)

    def events_bytes(self) -> int:
        """Bytes of the texts whose rows go to buckets, about; it follows from the files alone."""
        tables = [self._plan.events[n].table for n in self.histories.sources if n != IMPRESSIONS]
        size = sum(text_bytes(find_table(self._folder, table)) for table in tables)
        return size + text_bytes(self._path) * len(self.histories.groups)

    def check_room(self, out: Path, share: Share, whole: bool, more_row_bytes: float) -> None:
        """Refuse to start what would end with a full disk: see ``join_tables``."""
        rows = text_bytes(self._path) // ROW_BYTES
        groups, windows = len(self.histories.groups), len(self._plan.windows)
        text = rows * (BASE_ROW_BYTES + windows * WINDOW_BYTES)
        events = self.events_bytes() + rows * groups * EVENT_BYTES + text if windows else 0
        samples = text if whole or not windows else 0
        check_room(out, events / share.of + samples + rows * more_row_bytes)

    def read(self, put: Put, events: EventBuckets | None, share: Share) -> JoinCounts:
        """Read all rows; the lines of a share's parts go to ``put``."""
        counts = JoinCounts(read=sum(side.rows for side in self._sides))
        counts.unmatched = {side.join.table: 0 for side in self._sides}
        with RawTable(self._path, self._bad, self._chunk_bytes) as table:
            joiner = Joiner(self._plan, table, self._sides)
            for piece in table.pieces():
                rows, times = joiner.good_rows(piece)
                targets = targets_of(self._plan, self._deal, times, counts)
                found = joiner.match(piece, rows, times)
                for name, missing in joiner.unmatched(found, targets.order).items():
                    counts.unmatched[name] += missing
                text, ends = joiner.compose(found, targets.order)
                for first, last in targets.groups():
                    part = int(targets.parts[first])
                    if share.has(part // len(KINDS)):
                        start, end = int(ends[first - 1]) if first else 0, int(ends[last - 1])
                        put(part, ends[first:last] - start, text[start : end + WRITTEN_OVER])
                if events:
                    places = targets.places(len(rows))
                    events.add(IMPRESSIONS, partial(joiner.field, found), times, places)
                if self._progress and len(rows):
                    self._progress("sample", table.rows, table.share)
            counts.read += table.rows
        if events:
            for name in self._plan.events:
                counts.read += self._read_events(name, events)
        counts.rejected = self._bad.count
        self._bad.finish(counts.read)
        if not counts.train + counts.test:
            what = f"none of its rows is on the days of the split; {counts.outside} are on others"
            hint = "check split and impressions.zone"
            raise DataError(what, where=str(self._path), hint=hint, id="E-DATA-EMPTY")
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
                    self._progress(name, table.rows, table.share)
            return table.rows


def _event_field(table: RawTable, piece: Piece, rows: np.ndarray, name: str) -> Field:
    return field_of(piece, rows, table.column(name))


def _append(out: Path, header: bytes, part: int, ends: np.ndarray, text: np.ndarray) -> None:
    """Write lines behind those that their part already has in a file of its own."""
    # Opened anew for each piece: a long log has more parts than a process may have files.
    with (out / part_name(part)).open("ab") as file:
        if not file.tell():
            file.write(header)
        file.write(text[: ends[-1]].data)


def _put(to: SpillWriter, part: int, ends: np.ndarray, text: np.ndarray) -> None:
    """Keep lines for ``HistoryWork``."""
    to.append(part, [ends, text], int(ends[-1]))
