"""The features of one part: a sample file in, a shard or counts of keys out.

These functions depend on nothing but their arguments and files, so that ``ctrps.data.extract``
may run them in any order, in any process, or again.
"""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.counts import Counts, KeyCounts, KnownKeys
from ctrps.data.features import load_spec
from ctrps.data.program import Extractor, SampleText
from ctrps.data.shards import Rows, ShardWriter
from ctrps.errors import DataError
from ctrps.kernels.keys import hash_text
from ctrps.kernels.tables import deal_rows

PIECE_LINES = 4096
"""Lines that are worked on at a time; their features stay in the processor's cache."""

SHUFFLE_RANGE = 1 << 62
"""Lines are sorted by hashes below this; two equal ones keep their order."""


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """What all parts are made with; see the job's section ``features``."""

    spec: Path
    count_above: int = 0
    block_rows: int = 4096
    shuffle: bool = True
    seed: int = 1
    drop_missing: bool = False
    max_bad: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """One sample file and the shard that is made of it.

    Attributes
    ----------
    sample, shard
        From where to where.
    aside
        Takes bad rows, when some are allowed.
    training
        The rows may be shuffled, and count for ``count_above``.
    known
        File (npy) of the keys to keep; None: all.
    """

    sample: Path
    shard: Path
    aside: Path
    training: bool
    known: Path | None = None


@dataclass(frozen=True, slots=True)
class PartDone:
    """What became of a part.

    ``read`` and ``rows`` are rows in and out; ``cpu_s`` is the part's own, ``peak_bytes`` the
    memory of ``process`` so far; ``counts`` is filled by ``count_part``.
    """

    read: int
    rows: int
    cpu_s: float
    process: int
    peak_bytes: int
    counts: Counts | None = None


def peak_bytes() -> int:
    """Most memory that this process ever had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_part(settings: FeatureSettings, part: Part) -> PartDone:
    """Write the shard of a part; training rows are shuffled, others keep their order."""
    cpu = time.process_time()
    text, extractor = _open(settings, part)
    lines = text.lines
    if settings.shuffle and part.training:
        lines = lines[_shuffled(len(lines), settings.seed, part.sample.name)]
    known = KnownKeys(np.load(part.known, allow_pickle=False)) if part.known else None
    bad = BadRows(1.0 if settings.max_bad else 0.0, part.aside, setting="sample.max_bad")
    meta = {
        "sample": part.sample.name,
        "spec_sha256": hashlib.sha256(settings.spec.read_bytes()).hexdigest(),
        "count_above": settings.count_above,
        "seed": settings.seed,
    }
    with ShardWriter(part.shard, extractor.schema, settings.block_rows, meta) as writer:
        for rows in _rows(text, lines, extractor, bad):
            writer.add(known.only(rows) if known else rows)
    bad.close()
    return _done(text, writer.rows, cpu)


def count_part(settings: FeatureSettings, part: Part) -> PartDone:
    """Count the keys of a part; its bad rows do not count and are not reported here."""
    cpu = time.process_time()
    text, extractor = _open(settings, part)
    counts = KeyCounts()
    rows = 0
    for piece in _rows(text, text.lines, extractor, BadRows(1.0)):
        counts.add(piece.keys)
        rows += piece.rows
    return _done(text, rows, cpu, counts.total())


def _open(settings: FeatureSettings, part: Part) -> tuple[SampleText, Extractor]:
    try:
        data = np.fromfile(part.sample, np.uint8)
    except OSError as error:
        what = f"cannot read it: {error.strerror}"
        raise DataError(what, where=str(part.sample)) from None
    text = SampleText.parse(data, str(part.sample))
    spec = load_spec(settings.spec)
    return text, Extractor(spec, text.header, text.file, drop_missing=settings.drop_missing)


def _rows(
    text: SampleText, lines: np.ndarray, extractor: Extractor, bad: BadRows
) -> Iterator[Rows]:
    for first in range(0, len(lines), PIECE_LINES):
        yield extractor.rows(text, lines[first : first + PIECE_LINES], bad)


def _shuffled(n: int, seed: int, name: str) -> np.ndarray:
    """An order of n lines that follows from seed and part, on every machine alike."""
    hashes = np.empty(n, np.int64)
    deal_rows(0, np.uint64(hash_text(f"{seed} {name}")), SHUFFLE_RANGE, hashes)
    return np.argsort(hashes, kind="stable")


def _done(text: SampleText, rows: int, cpu: float, counts: Counts | None = None) -> PartDone:
    cpu_s = time.process_time() - cpu
    return PartDone(len(text.lines), rows, cpu_s, os.getpid(), peak_bytes(), counts)
