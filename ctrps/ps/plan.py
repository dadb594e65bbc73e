"""The plan: which rows make up each batch of each lane, from the data and the settings alone.

Every node computes the plan; nobody sends it. So a batch has the same name and the same rows
wherever and however often it is computed. Nothing here reads a file.
"""

import hashlib
import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ctrps.errors import RemoteProtocolError
from ctrps.kernels import keys as key_kernels


@dataclass(frozen=True, slots=True)
class DataFile:
    """One shard file of the data manifest.

    Attributes
    ----------
    path : str
        As the scheduler knows it.
    digest : str
        Of its content.
    block_rows : tuple of int
        Rows of each block.
    """

    path: str
    digest: str
    block_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What fixes the lanes, beside the data: part of the identity of a run, like its seed.

    ``mode`` is ``sync``, ``ssp`` or ``semi`` (the chunks of a pass are dealt to ``lanes`` lanes) or
    ``async`` (every chunk is a lane of its own, in the order in which chunks are walked).
    """

    batch_rows: int
    lanes: int
    chunk_batches: int
    shuffle: str
    seed: int
    mode: str = "sync"


class BatchRef(NamedTuple):
    """Where the rows of a batch lie: positions ``start … start + rows`` of a chunk's row order.

    ``chunk_first`` and ``chunk_rows`` are the rows of the chunk inside its block.
    """

    file: int
    block: int
    chunk: int
    chunk_first: int
    chunk_rows: int
    start: int
    rows: int


class Plan:
    """The lanes of one pass.

    Parameters
    ----------
    files
        The data manifest, in order.
    settings
    number
        The pass, counted from 0.

    Attributes
    ----------
    lengths : int64[lanes]
        Batches of each lane.
    steps : int
        Optimiser steps of the pass: the length of the longest lane in sync mode, where a step
        takes a batch of each lane, and the number of all batches in the other modes.
    rows : int
        Rows of the pass.
    """

    def __init__(self, files: tuple[DataFile, ...], settings: PlanSettings, number: int):
        self.settings = settings
        self.number = number
        self._chunks = _chunks(files, settings)
        order = self._order()
        if settings.mode == "async":
            self._lanes = list(order.reshape(-1, 1))
        else:
            self._lanes = _deal(order, self._chunks.batches, settings.lanes)
        self._ends = [np.cumsum(self._chunks.batches[lane]) for lane in self._lanes]
        self.lengths = np.array([ends[-1] if len(ends) else 0 for ends in self._ends], np.int64)
        self.steps = int(self.lengths.max() if settings.mode == "sync" else self.lengths.sum())
        self.rows = int(self._chunks.rows.sum())

    def _order(self) -> np.ndarray:
        chunks = np.arange(len(self._chunks.rows))
        if self.settings.shuffle == "none":
            return chunks
        return _hash_order(self.settings.seed, self.number, chunks)

    def active(self, step: int) -> list[int]:
        """The lanes that have a batch at ``step``, ascending."""
        return [int(lane) for lane in np.flatnonzero(self.lengths > step)]

    def step_rows(self, step: int) -> int:
        """Rows of the step over all its lanes."""
        return sum(self.batch(lane, step).rows for lane in self.active(step))

    def rows_before(self, step: int) -> int:
        """Rows of all steps below ``step``: what a model at that version has been trained on."""
        return int(self._rows_before[min(step, self.steps)])

    def rows_below(self, marks: np.ndarray) -> int:
        """Rows of all batches up to and including ``marks`` int32[lanes], -1 for none."""
        started = np.flatnonzero(marks >= 0)
        return sum(int(self._lane_rows(g)[: marks[g] + 1].sum()) for g in started.tolist())

    def _lane_rows(self, lane: int) -> np.ndarray:
        """Rows of each batch of a lane."""
        parts = [self._batch_rows(chunk) for chunk in self._lanes[lane]]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @cached_property
    def _rows_before(self) -> np.ndarray:
        rows = np.zeros(self.steps + 1, np.int64)
        for lane in range(len(self._lanes)):
            batches = self._lane_rows(lane)
            rows[1 : len(batches) + 1] += batches
        return np.cumsum(rows)

    def _batch_rows(self, chunk: int) -> np.ndarray:
        rows, batch_rows = int(self._chunks.rows[chunk]), self.settings.batch_rows
        return np.minimum(batch_rows, rows - np.arange(0, rows, batch_rows))

    def batch(self, lane: int, number: int) -> BatchRef:
        """Batch ``number`` of ``lane``."""
        position = int(np.searchsorted(self._ends[lane], number, side="right"))
        chunk = int(self._lanes[lane][position])
        c = self._chunks
        inside = number - (int(self._ends[lane][position]) - int(c.batches[chunk]))
        start = inside * self.settings.batch_rows
        rows = int(c.rows[chunk])
        return BatchRef(
            int(c.file[chunk]),
            int(c.block[chunk]),
            chunk,
            int(c.first[chunk]),
            rows,
            start,
            min(self.settings.batch_rows, rows - start),
        )

    def files_of(self, lane: int) -> set[int]:
        """The files that a lane goes through; in async mode it is one."""
        return set(self._chunks.file[self._lanes[lane]].tolist())

    def row_numbers(self, ref: BatchRef) -> np.ndarray:
        """The rows of a batch as numbers inside its block, int64[rows]."""
        inside = np.arange(ref.chunk_rows)
        if self.settings.shuffle == "rows":
            inside = _hash_order(self.settings.seed, self.number, inside, ref.chunk + 1)
        return ref.chunk_first + inside[ref.start : ref.start + ref.rows]


class EvaluationPlan:
    """The lanes of an evaluation: runs of rows in file order, one pull each.

    A lane's rows lie in one block. Scores are put together in lane order, which is row order.
    """

    ROWS = 4096  # bounds a pull to a few megabytes whatever the size of a block

    def __init__(self, files: tuple[DataFile, ...]):
        settings = PlanSettings(self.ROWS, 1, 1, "none", 0)
        self._chunks = _chunks(files, settings)
        self.lanes = len(self._chunks.rows)
        self.rows = int(self._chunks.rows.sum())

    def batch(self, lane: int) -> BatchRef:
        c = self._chunks
        rows, first = int(c.rows[lane]), int(c.first[lane])
        return BatchRef(int(c.file[lane]), int(c.block[lane]), lane, first, rows, 0, rows)

    def files_of(self, lane: int) -> set[int]:
        """The one file that a lane lies in."""
        return {int(self._chunks.file[lane])}

    def row_numbers(self, ref: BatchRef) -> np.ndarray:
        """The rows of a lane as numbers inside its block, int64[rows]."""
        return ref.chunk_first + np.arange(ref.rows)


class _Chunks(NamedTuple):
    """Runs of batches inside one block, as parallel int64 arrays in manifest order."""

    file: np.ndarray
    block: np.ndarray
    first: np.ndarray
    rows: np.ndarray
    batches: np.ndarray


def _chunks(files: tuple[DataFile, ...], settings: PlanSettings) -> _Chunks:
    """Cut each block in runs of m batches.

    m is lowered for small data, so that the tail of a pass in which only some lanes are active
    stays short (about an eighth of the pass).
    """
    blocks = [
        (f, b, rows) for f, file in enumerate(files) for b, rows in enumerate(file.block_rows)
    ]
    total = sum(-(-rows // settings.batch_rows) for *_, rows in blocks)
    run = min(settings.chunk_batches, max(1, total // (8 * settings.lanes))) * settings.batch_rows
    table = [
        (f, b, first, min(run, rows - first))
        for f, b, rows in blocks
        for first in range(0, rows, run)
    ]
    file, block, first, rows = np.array(table, np.int64).reshape(-1, 4).T
    return _Chunks(file, block, first, rows, -(-rows // settings.batch_rows))


def _deal(order: np.ndarray, batches: np.ndarray, lanes: int) -> list[np.ndarray]:
    """Each chunk in turn to the lane with fewest batches so far, ties to the lowest lane."""
    heap = [(0, lane) for lane in range(lanes)]
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    for chunk in order.tolist():
        filled, lane = heapq.heappop(heap)
        dealt[lane].append(chunk)
        heapq.heappush(heap, (filled + int(batches[chunk]), lane))
    return [np.array(chunks, np.int64) for chunks in dealt]


def _hash_order(seed: int, number: int, items: np.ndarray, salt: int = 0) -> np.ndarray:
    """``items`` in the order of hash(seed, pass, salt, item), ties by item."""
    hashes = np.empty(len(items), np.uint64)
    start = np.uint64(seed)
    for part in (number, salt):
        start = np.uint64(key_kernels.mix(start, np.uint64(part)))
    key_kernels.mix_all(start, items.astype(np.uint64), hashes)
    return items[np.argsort(hashes, kind="stable")]


def listed(paths: Sequence[str]) -> str:
    """In words: these files, at most two by name.

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a and 2 more files')
    """
    if len(paths) < 3:
        return " and ".join(paths)
    return f"{paths[0]} and {len(paths) - 1} more files"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a run, as the scheduler tells every node.

    ``keys`` is about how many different keys the training rows hold, 0 if that is not known.

    Examples
    --------
    >>> manifest = Manifest((DataFile("a.shard", "77", (4096, 10)),), ())
    >>> Manifest.unpack(*manifest.pack()) == manifest
    True
    """

    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]
    keys: int = 0

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All of them, training first: the order in which they are numbered."""
        return self.train + self.test

    def listed(self, numbers: Sequence[int]) -> str:
        """In words: those of the files."""
        return listed([self.files[number].path for number in numbers])

    @property
    def digest(self) -> str:
        """Of names left out and contents kept: the same rows have the same digest anywhere."""
        text = json.dumps([[f.digest for f in self.train], [f.digest for f in self.test]])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def pack(self) -> tuple[str, tuple[np.ndarray, ...]]:
        """All but rows as JSON, and the rows of all blocks, int64, train then test."""
        parts = (self.train, self.test)
        listed = [[[f.path, f.digest, len(f.block_rows)] for f in p] for p in parts]
        names = json.dumps([self.keys, *listed])
        blocks = tuple(np.array([r for f in p for r in f.block_rows], np.int64) for p in parts)
        return names, blocks

    @classmethod
    def unpack(cls, names: str, blocks: tuple[np.ndarray, ...]) -> "Manifest":
        """Undo ``pack``; ``RemoteProtocolError`` when the two do not belong together."""
        try:
            parts = []
            keys, *files = json.loads(names)
            if type(keys) is not int or keys < 0:
                raise ValueError("its number of keys is none")
            for listed, rows in zip(files, blocks, strict=True):
                counts = [count for *_, count in listed]
                ends = np.cumsum([0, *counts])
                if ends[-1] != len(rows) or (rows <= 0).any() or min(counts, default=0) < 0:
                    raise ValueError("its blocks are not those of its files")
                parts.append(
                    tuple(
                        DataFile(path, digest, tuple(rows[a:b].tolist()))
                        for (path, digest, _), a, b in zip(listed, ends, ends[1:], strict=False)
                    )
                )
            train, test = parts
        except (ValueError, TypeError) as error:
            raise RemoteProtocolError(f"a data manifest that cannot be read: {error}") from None
        return cls(train, test, keys)
