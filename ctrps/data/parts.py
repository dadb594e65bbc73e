"""The features of one part: a sample file in, a shard or counts of keys out.

These functions depend on nothing but their arguments and files, so that ``ctrps.data.extract``
may run them in any order, in any process, or again.
"""

from __future__ import annotations

import hashlib
import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.counts import Counts, KeyCounts, KnownKeys
from ctrps.data.features import load_spec, parse_spec
from ctrps.data.fit import Distribution, distributions, spec_of_numbers
from ctrps.data.names import SUFFIX, write_names
from ctrps.data.program import Extractor
from ctrps.data.sampletext import SampleText
from ctrps.data.shards import Rows, Shard, ShardWriter
from ctrps.data.spec import FeatureSpec
from ctrps.errors import DataError
from ctrps.kernels.keys import hash_text
from ctrps.kernels.tables import deal_rows

PIECE_LINES = 4096
"""Lines that are worked on at a time; their features stay in the processor's cache."""

Read = Callable[[Path], SampleText]

FEATURE_BYTES, ROW_BYTES = 6.0, 40.0
"""Estimates of bytes in a shard: of a feature of a row, and of a row beside its features."""

NO_LINES = np.empty(0, np.int64)

SHUFFLE_RANGE = 1 << 62
"""Lines are sorted by hashes below this; two equal ones keep their order."""


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """What all parts are made with; see the job's section ``features``.

    ``names`` is how many keys of each training part get a name.

    ``fitted`` is the file that ``spec`` has become once fitted to training rows.
    """

    spec: Path
    fitted: Path | None = None
    count_above: int = 0
    block_rows: int = 4096
    shuffle: bool = True
    seed: int = 1
    drop_missing: bool = False
    max_bad: float = 0.0
    names: int = 0


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
    memory of ``process`` so far; ``counts`` is filled by ``count_part``, ``numbers`` by
    ``fit_part``.
    """

    read: int
    rows: int
    cpu_s: float
    process: int
    peak_bytes: int
    counts: Counts | None = None
    numbers: tuple[Distribution, ...] = ()


def shard_row_bytes(settings: FeatureSettings) -> float:
    """Bytes of a row in a shard, about."""
    spec = load_spec(settings.spec)
    return FEATURE_BYTES * (len(spec.sparse) + len(spec.dense)) + ROW_BYTES


def peak_bytes() -> int:
    """Most memory that this process ever had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_part(settings: FeatureSettings, part: Part, read: Read | None = None) -> PartDone:
    """Write the shard of a part; training rows are shuffled, others keep their order.

    ``read``, here and below, gives the text of a sample file that need not be there.
    """
    cpu = time.process_time()
    text, extractor = _open(settings, part, read)
    lines = text.lines
    if settings.shuffle and part.training:
        lines = lines[_shuffled(len(lines), settings.seed, part.sample.name)]
    known = KnownKeys(np.load(part.known, allow_pickle=False)) if part.known else None
    bad = BadRows(1.0 if settings.max_bad else 0.0, part.aside, setting="sample.max_bad")
    meta = {
        "sample": part.sample.name,
        "spec_sha256": hashlib.sha256(extractor.spec.text.encode()).hexdigest(),
        "count_above": settings.count_above,
        "seed": settings.seed,
    }
    named = settings.names > 0 and part.training
    # A shard with its own name has its names beside it, so that a run may be taken up.
    path = part.shard.with_name(f"tmp-{os.getpid()}-{part.shard.name}") if named else part.shard
    kept = [NO_LINES]
    keep = known.has if known else None
    # Other parts have the other cores.
    writer = ShardWriter(path, extractor.schema, settings.block_rows, meta, keep, threads=1)
    with writer:
        for rows, good in _kept(text, lines, extractor, bad):
            writer.add(rows)
            kept.append(good)
        # A shard with its own name has its bad rows aside, too.
        bad.close()
    if named:
        names = part.shard.with_suffix(SUFFIX)
        write_names(names, Shard(path), text, np.concatenate(kept), extractor, settings.names)
        path.replace(part.shard)
    return _done(text, writer.rows, cpu)


def count_part(settings: FeatureSettings, part: Part, read: Read | None = None) -> PartDone:
    """Count the keys of a part; its bad rows do not count and are not reported here."""
    cpu = time.process_time()
    text, extractor = _open(settings, part, read)
    counts = KeyCounts()
    rows = 0
    for piece in _rows(text, text.lines, extractor, BadRows(1.0)):
        counts.add(piece.keys)
        rows += piece.rows
    return _done(text, rows, cpu, counts.total())


def fit_part(settings: FeatureSettings, part: Part, read: Read | None = None) -> PartDone:
    """How the numbers of a part are distributed that the features file wants to be fitted to.

    Rows that are bad for other reasons count here too.
    """
    cpu = time.process_time()
    text = (read or read_sample)(part.sample)
    spec = spec_of_numbers(load_spec(settings.spec))
    extractor = Extractor(spec, text.header, text.file, empty=math.nan)
    found = distributions(_rows(text, text.lines, extractor, BadRows(1.0)))
    return replace(_done(text, 0, cpu), numbers=tuple(found))


def _spec(settings: FeatureSettings) -> FeatureSpec:
    spec = load_spec(settings.spec)
    if settings.fitted is None:
        return spec
    # Messages name the file that the user has written.
    return parse_spec(settings.fitted.read_text(encoding="utf-8"), spec.path, spec.folder)


def read_sample(path: Path) -> SampleText:
    """A file of samples, whole.

    Raises
    ------
    DataError
        When it cannot be read.
    """
    try:
        # Mapped, not copied: pages come as they are read. Writable only for the kernels' sake.
        size = path.stat().st_size
        data = np.memmap(path, np.uint8, "c").view(np.ndarray) if size else np.empty(0, np.uint8)
    except OSError as error:
        what = f"cannot read it: {error.strerror}"
        raise DataError(what, where=str(path)) from None
    return SampleText.parse(data, str(path))


def _open(settings: FeatureSettings, part: Part, read: Read | None) -> tuple[SampleText, Extractor]:
    text, spec = (read or read_sample)(part.sample), _spec(settings)
    return text, Extractor(spec, text.header, text.file, drop_missing=settings.drop_missing)


def _rows(
    text: SampleText, lines: np.ndarray, extractor: Extractor, bad: BadRows
) -> Iterator[Rows]:
    return (rows for rows, _ in _kept(text, lines, extractor, bad))


def _kept(
    text: SampleText, lines: np.ndarray, extractor: Extractor, bad: BadRows
) -> Iterator[tuple[Rows, np.ndarray]]:
    """Rows, and the lines that they are of."""
    for first in range(0, len(lines), PIECE_LINES):
        yield extractor.kept(text, lines[first : first + PIECE_LINES], bad)


def _shuffled(n: int, seed: int, name: str) -> np.ndarray:
    """An order of n lines that follows from seed and part, on every machine alike."""
    hashes = np.empty(n, np.int64)
    deal_rows(0, np.uint64(hash_text(f"{seed} {name}")), SHUFFLE_RANGE, hashes)
    return np.argsort(hashes, kind="stable")


def _done(text: SampleText, rows: int, cpu: float, counts: Counts | None = None) -> PartDone:
    cpu_s = time.process_time() - cpu
    return PartDone(len(text.lines), rows, cpu_s, os.getpid(), peak_bytes(), counts)
