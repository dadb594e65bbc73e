"""The rows of one table: key -> weights and optimiser state.

A table is plain memory. It has no lock, opens no file and knows no peer. Rows are made by a
push, never by a pull: most keys of an evaluation day were not trained on, and reading them must
not grow the model.
"""

import contextlib
import math
import mmap
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ctrps.kernels import clipping, store, stored
from ctrps.kernels import keys as key_kernels
from ctrps.kernels.optimizers import Rule
from ctrps.models import TableSpec

_HUGE_PAGE = 1 << 21
_FIRST_LINES = 8
_FIRST_TAILS = 1 << 8
_MOST_TAILS = 1 << 18
_EXPECT_FROM = 1 << 12
# Beyond this share of its entries a segment doubles: up to it, nearly all keys are in their own
# line. Where it is not known how many keys will come, the share falls from segment to segment, so
# that they do not all double at the same time.
_MOST_LOAD = 0.6
_LOAD = _MOST_LOAD * 0.5 ** (np.arange(store.SEGMENTS) / store.SEGMENTS)


class RowSet(NamedTuple):
    """Rows as they are saved: ``keys`` uint64[n] ascending, ``rows`` float32[n, width]."""

    keys: np.ndarray
    rows: np.ndarray


def _zeros(size: int) -> mmap.mmap:
    """``size`` bytes, all 0, from the start of a page on.

    The machine gives the memory when it is first used, and is asked to give it in huge pages: rows
    are read at random, and each page of 4 KiB would have to be looked up.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _address(memory: mmap.mmap) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data


class _Segments:
    """The index of a table (``ctrps.kernels.store``): 64 segments that double one by one.

    Attributes
    ----------
    directory : int64[SEGMENTS, 2]
    used, room : int64[SEGMENTS]
        Entries in use, and up to how many may be.
    """

    def __init__(self) -> None:
        nothing = _zeros(store.LINE)
        # One line, which stays empty, is every segment's at first.
        self._lines = np.ones(store.SEGMENTS, np.int64)
        self.room = np.zeros(store.SEGMENTS, np.int64)
        self._memory = {1: nothing}
        self.directory = np.zeros((store.SEGMENTS, 2), np.int64)
        self.directory[:, 0] = _address(nothing)
        self.used = np.zeros(store.SEGMENTS, np.int64)

    @property
    def size_bytes(self) -> int:
        return int(self._lines.sum()) * store.LINE

    def short(self, more: np.ndarray) -> np.ndarray:
        """Numbers of the segments that have no room for ``more`` int64[SEGMENTS] entries."""
        return np.flatnonzero(self.used + more > self.room)

    def grow(self, segment: int, more: int, load: float) -> None:
        """Move a segment to where ``more`` entries fill no larger share of it than ``load``."""
        lines = max(int(self._lines[segment]), _FIRST_LINES // 2)
        share = store.LINE // store.ENTRY * load
        while share * lines < self.used[segment] + more:
            lines *= 2
        old = int(self.directory[segment, 0]), int(self._lines[segment])
        if lines not in self._memory:
            # For all segments at once: they grow at about the same time, and large pieces of
            # memory come in large pages.
            self._memory[lines] = _zeros(store.SEGMENTS * lines * store.LINE)
        base = _address(self._memory[lines])
        self.directory[segment] = base + segment * lines * store.LINE, lines - 1
        self._lines[segment], self.room[segment] = lines, int(share * lines)
        store.move(*old, self.directory)
        self._give_back(segment, old[1])

    def _give_back(self, segment: int, lines: int) -> None:
        """Let the machine have the memory of a segment as it was."""
        if not (self._lines == lines).any():
            del self._memory[lines]
        elif lines * store.LINE >= _HUGE_PAGE and hasattr(mmap, "MADV_DONTNEED"):
            # Parts of a huge page would split it.
            size = lines * store.LINE
            self._memory[lines].madvise(mmap.MADV_DONTNEED, segment * size, size)

    def held(self, segment: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys uint64[n] and addresses int64[n] of the entries of a segment."""
        keys = np.empty(self.used[segment], np.uint64)
        entries = np.empty(len(keys), np.int64)
        stored.held(int(self.directory[segment, 0]), int(self._lines[segment]), keys, entries)
        return keys, entries


class _Tails:
    """Memory for the tails of rows, which never moves.

    Parameters
    ----------
    size : int
        float32 numbers of a tail; 0 for a table without tails.
    """

    def __init__(self, size: int):
        lines = -(-4 * size // store.LINE)
        self._stride = 32 if 0 < 4 * size <= 32 else lines * store.LINE
        self._pieces: list[mmap.mmap] = []
        self._next, self._left = (0, 0) if self._stride else (1, 1 << 62)
        self.size_bytes = 0

    def some(self, count: int) -> np.ndarray:
        """Addresses int64[count] of tails that nobody has; ``take`` says how many get used."""
        if count > self._left:
            rows = min(max(_FIRST_TAILS, self.size_bytes // self._stride), _MOST_TAILS)
            self._left = max(rows, count)
            piece = _zeros(self._left * self._stride)
            self._next = _address(piece)
            self._pieces.append(piece)
            self.size_bytes += len(piece)
        return self._next + self._stride * np.arange(count, dtype=np.int64)

    def free(self) -> store.Free:
        """What ``some`` could give without more memory; ``take`` says how many get used."""
        return store.Free(self._next, self._left, self._stride)

    def take(self, count: int) -> None:
        self._next += self._stride * count
        self._left -= count


class Table:
    """The rows that one process holds of one table.

    Parameters
    ----------
    spec
        Layout and optimisers.
    seed
        Start of new rows, together with their key.

    Attributes
    ----------
    used : int
        Rows held.
    moves : int
        Segments that have moved: addresses of entries are valid while it stays the same.
    """

    def __init__(self, spec: TableSpec, seed: int):
        self.spec = spec
        self.seed = np.uint64(seed)
        self.moves = 0
        self._head, self._tail = spec.rules()
        # Most steps are of as many rows, and as stale, as one before.
        self._rules = lru_cache(256)(spec.rules)
        self._segments = _Segments()
        self._scratch = np.empty(store.SCRATCH, np.int64)
        self._tails = _Tails(spec.width - spec.head_width)

    @property
    def used(self) -> int:
        return int(self._segments.used.sum())

    @property
    def size_bytes(self) -> int:
        """Memory of entries and tails, what is free in them included."""
        return self._segments.size_bytes + self._tails.size_bytes

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Addresses int64[k] of the entries of ``keys``, 0 where absent; see ``moves``."""
        entries = np.empty(len(keys), np.int64)
        store.find(self._segments.directory, keys, entries)
        return entries

    def weights(self, keys: np.ndarray, *, absent_initial: bool) -> np.ndarray:
        """The weights of ``keys``, float32[k, dim].

        An absent key reads as the row it would start as (``absent_initial``, for training) or as
        zero (for evaluation).
        """
        out = np.empty((len(keys), self.spec.dim), np.float32)
        entries = np.empty(len(keys), np.int64)
        rules = self._head, self._tail
        directory = self._segments.directory
        store.pull(directory, keys, *rules, absent_initial, self.seed, entries, out)
        return out

    def step(
        self, keys: np.ndarray, gradient: np.ndarray, counts: np.ndarray, step_rows: int
    ) -> np.ndarray:
        """Apply one optimiser step to distinct ``keys``, making the rows that are not there.

        Returns
        -------
        before : float32[k, dim]
            Their weights before the step.
        """
        before = np.empty((len(keys), self.spec.dim), np.float32)
        self._step(keys, gradient, counts, self._rules(step_rows, 0), before)
        return before

    def step_stale(
        self,
        keys: np.ndarray,
        gradient: np.ndarray,
        counts: np.ndarray,
        step_rows: int,
        staleness: int,
        scale: float = 1.0,
    ) -> None:
        """As ``step``, for a gradient, times ``scale``, of weights that have changed meanwhile."""
        nothing = np.empty((0, self.spec.dim), np.float32)
        self._step(keys, gradient, counts, self._rules(step_rows, staleness, scale), nothing)

    def _step(
        self,
        keys: np.ndarray,
        gradient: np.ndarray,
        counts: np.ndarray,
        rules: tuple[Rule, Rule],
        before: np.ndarray,
    ) -> None:
        entries, absent = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        segments, (head, tail) = self._segments, rules
        gradient = self._clipped(np.ascontiguousarray(gradient), counts, head, tail)
        n, new = store.push(
            segments.directory,
            segments.used,
            segments.room,
            self._tails.free(),
            keys,
            gradient,
            counts,
            head,
            tail,
            self.seed,
            entries,
            absent,
            before,
            self._scratch,
        )
        self._tails.take(new)
        if n:
            self._insert(keys, absent[:n], entries)
            store.step_rows(
                entries, absent[:n], gradient, counts, head, tail, before, self._scratch
            )

    def _clipped(
        self, gradient: np.ndarray, counts: np.ndarray, head: Rule, tail: Rule
    ) -> np.ndarray:
        most, longest = self.spec.clip_value, self.spec.clip_row
        if not (most or longest):
            return gradient
        out = np.empty_like(gradient)
        limits = np.float32(most or math.inf), longest or math.inf
        clipping.clip_rows(gradient, counts, head, tail, *limits, out)
        return out

    def insert(self, keys: np.ndarray) -> np.ndarray:
        """Addresses int64[k] of the entries of ``keys``, rows made that are not there."""
        entries = self.find(keys)
        absent = np.flatnonzero(entries == 0)
        if len(absent):
            moves = self.moves
            self._insert(keys, absent, entries)
            if self.moves != moves:
                return self.find(keys)
        return entries

    def _insert(self, keys: np.ndarray, absent: np.ndarray, entries: np.ndarray) -> None:
        """Make rows for the keys at positions ``absent``, and write their entries there."""
        self.reserve(keys[absent])
        tails = self._tails.some(len(absent))
        segments = self._segments
        new = store.insert(
            segments.directory,
            segments.used,
            keys,
            absent,
            tails,
            self._head,
            self._tail,
            self.seed,
            entries,
        )
        self._tails.take(new)

    def expect(self, count: int) -> None:
        """Make room for ``count`` keys in all at once, so that rows need not be moved later.

        Where the machine has not so much memory the table grows as if nothing were expected.
        """
        share = count / store.SEGMENTS
        # Keys fall on segments at random, and ``count`` may be an estimate.
        most = int(1.05 * share + 4 * math.sqrt(share)) if count >= _EXPECT_FROM else 0
        more = np.maximum(most - self._segments.used, 0)
        with contextlib.suppress(OSError, OverflowError):
            self._grow(self._segments.short(more), more, np.full(store.SEGMENTS, _MOST_LOAD))

    def room(self, keys: np.ndarray) -> bool:
        """Whether all of ``keys`` could be inserted without moving an entry."""
        return not len(self._short(keys)[0])

    def reserve(self, keys: np.ndarray) -> None:
        """Make room for ``keys``; ``moves`` tells whether entries moved for it."""
        self._grow(*self._short(keys), _LOAD)

    def _grow(self, segments: np.ndarray, more: np.ndarray, load: np.ndarray) -> None:
        for segment in segments:
            self._segments.grow(int(segment), int(more[segment]), float(load[segment]))
            self.moves += 1

    def _short(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        more = np.empty(store.SEGMENTS, np.int64)
        store.count_segments(keys, more)
        return self._segments.short(more), more

    def snapshot(self, bits: int) -> list[RowSet]:
        """A copy of all rows, one set per partition, each in key order."""
        return [self.partition(number, bits) for number in range(1 << bits)]

    def partition(self, number: int, bits: int) -> RowSet:
        """A copy of the rows of one of ``1 << bits`` partitions."""
        few = max(store.SEGMENT_BITS - bits, 0)
        first = (number << few) >> max(bits - store.SEGMENT_BITS, 0)
        parts = [self._segments.held(s) for s in range(first, first + (1 << few))]
        keys, entries = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        if bits > store.SEGMENT_BITS:
            place = np.empty(len(keys), np.int32)
            key_kernels.partition_of(keys, bits, place)
            keys, entries = keys[place == number], entries[place == number]
        order = np.argsort(keys)
        rows = np.empty((len(keys), self.spec.width), np.float32)
        stored.copy_rows(entries[order], self._head, self._tail, rows, True)
        return RowSet(keys[order], rows)

    def load(self, saved: RowSet) -> None:
        """Add rows of a snapshot whose keys are not held yet."""
        rows = saved.rows.copy()
        stored.copy_rows(self.insert(saved.keys), self._head, self._tail, rows, False)
