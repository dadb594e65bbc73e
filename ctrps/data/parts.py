"""The features of one part: a sample file in, a shard or the draft of one out.

These functions depend on nothing but their arguments and files, so that ``ctrps.data.extract``
may run them in any order, in any process, or again.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.blocks import PIECE_LINES, BlockMaker, Made
from ctrps.data.drafts import DRAFT, Arrays, ArraysWriter, Draft, DraftWriter, decide
from ctrps.data.features import load_spec, parse_spec
from ctrps.data.fit import Distribution, distributions, spec_of_numbers
from ctrps.data.memory import peak_bytes
from ctrps.data.names import SUFFIX, NameChoice
from ctrps.data.program import Extractor
from ctrps.data.rows import Rows, Schema
from ctrps.data.samplelines import FileLines, TextLines, sample_lines
from ctrps.data.sampletext import SampleText
from ctrps.data.shards import Shard, ShardWriter
from ctrps.data.spec import FeatureSpec
from ctrps.kernels.keys import hash_text
from ctrps.kernels.machine import single_keys
from ctrps.kernels.tables import deal_rows

Read = Callable[[Path], SampleText]

FEATURE_BYTES, ROW_BYTES = 6.0, 40.0
"""Estimates of bytes in a shard: of a feature of a row, and of a row beside its features."""

DRAFT_SIZE = 1.5
"""Estimate of the size of a draft, in shards."""

BLOCKS, NAME_BYTES, WORK_BYTES = 4, 800, 32 << 20
"""Estimates: blocks of a shard that are in memory; bytes for each name that is kept, beside which
eight keys are counted; and what all else takes."""

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
    room
        Bytes of the sample that may be in memory at a time.
    """

    sample: Path
    shard: Path
    aside: Path
    training: bool
    room: int = 1 << 40

    @property
    def draft(self) -> Path:
        """Where the part is put aside until it is known which keys are frequent."""
        return self.shard.with_suffix(DRAFT)

    @property
    def names(self) -> Path:
        return self.shard.with_suffix(SUFFIX)


@dataclass(frozen=True, slots=True)
class PartDone:
    """What became of a part.

    ``read`` and ``rows`` are rows in and out; ``cpu_s`` is the part's own, ``peak_bytes`` the
    memory of ``process`` so far; ``numbers`` is filled by ``fit_part``.
    """

    read: int
    rows: int
    cpu_s: float
    process: int
    peak_bytes: int
    numbers: tuple[Distribution, ...] = ()


def shard_row_bytes(settings: FeatureSettings) -> float:
    """Bytes of a row in a shard, about."""
    spec = load_spec(settings.spec)
    return FEATURE_BYTES * (len(spec.sparse) + len(spec.dense)) + ROW_BYTES


def disk_row_bytes(settings: FeatureSettings, shared: bool) -> float:
    """Bytes of disk that a row takes at most, about; ``shared`` drafts stay to the end."""
    drafts = DRAFT_SIZE if settings.count_above else 0.0
    return shard_row_bytes(settings) * (max(drafts, 1.0) if not shared else drafts + 1)


def thread_bytes(settings: FeatureSettings) -> int:
    """Memory that features take in a thread, beside the text of samples, about."""
    blocks = BLOCKS * shard_row_bytes(settings) * settings.block_rows
    return int(WORK_BYTES + blocks + NAME_BYTES * settings.names)


def write_part(settings: FeatureSettings, part: Part, read: Read | None = None) -> PartDone:
    """Write the shard of a part; training rows are shuffled, others keep their order.

    ``read``, here and below, gives the text of a sample file that need not be there.
    """
    cpu = time.process_time()
    source = _Source(settings, part, read)
    named = source.names()
    with _shard(settings, part, source.spec) as writer, _beside(part) as path:
        with ArraysWriter(path) as texts:
            for number, made in enumerate(source.blocks(named)):
                block = made.rows.block()
                writer.add_block(block)
                texts.append([made.text])
                if named:
                    named.add(number, block)
        source.close()
        if named:
            with Arrays(path) as kept:
                text_of = partial(kept.read, number=0)
                named.write(part.names, writer.rows, text_of, source.extractor)
    return source.done(writer.rows, cpu)


def draft_part(settings: FeatureSettings, part: Part, read: Read | None = None) -> PartDone:
    """Write the draft of a part, from which ``finish_part`` makes its shard."""
    cpu = time.process_time()
    if part.draft.exists():
        return PartDone(0, 0, 0.0, os.getpid(), peak_bytes())
    source = _Source(settings, part, read)
    rows = 0
    with DraftWriter(part.draft, source.lines, source.single) as draft:
        for made in source.blocks(source.names()):
            draft.add(made)
            rows += len(made.rows.labels)
        source.close()
    return source.done(rows, cpu)


def decide_keys(
    drafts: Sequence[Path], training: Sequence[bool], above: int, folder: Path, of: int, number: int
) -> PartDone:
    """As ``drafts.decide``."""
    cpu = time.process_time()
    decide(drafts, training, above, folder, of, number)
    return PartDone(0, 0, time.process_time() - cpu, os.getpid(), peak_bytes())


def finish_part(
    settings: FeatureSettings, drafts: Sequence[Path], of: int, keep: bool, part: Part
) -> PartDone:
    """Write the shard of a part from its draft, without keys that are too rare.

    ``drafts`` and ``of`` are as ``drafts.decide`` has been given them. The draft goes, unless it
    is to be kept for others.
    """
    cpu = time.process_time()
    spec, folder = _spec(settings), part.draft.parent
    if part.shard.exists():
        return PartDone(0, Shard(part.shard).rows, 0.0, os.getpid(), peak_bytes())
    draft = Draft(part.draft, spec)
    named = _choice(settings, part, draft.lines)
    with _shard(settings, part, spec) as writer:
        number = drafts.index(part.draft)
        for at, block in enumerate(draft.blocks(folder, number, of)):
            writer.add_block(block)
            if named:
                named.add(at, block)
        if named:
            named.write(part.names, writer.rows, draft.text, partial(_extractor, settings, spec))
    if not keep:
        draft.remove()
    return PartDone(0, writer.rows, time.process_time() - cpu, os.getpid(), peak_bytes())


@contextmanager
def _shard(settings: FeatureSettings, part: Part, spec: FeatureSpec) -> Iterator[ShardWriter]:
    """The shard of a part; with its own name it has its names beside it, as a run leaves off."""
    meta = {
        "sample": part.sample.name,
        "spec_sha256": hashlib.sha256(spec.text.encode()).hexdigest(),
        "count_above": settings.count_above,
        "seed": settings.seed,
    }
    schema = Schema(spec.slots, spec.dense_names, "mean", spec.text)
    path = part.shard.with_name(f"tmp-{os.getpid()}-{part.shard.name}")
    with ShardWriter(path, schema, settings.block_rows, meta) as writer:
        yield writer
    path.replace(part.shard)


@contextmanager
def _beside(part: Part) -> Iterator[Path]:
    """A file beside a shard while that is made."""
    path = part.shard.with_name(f"tmp-{os.getpid()}-{part.shard.stem}.texts")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _choice(settings: FeatureSettings, part: Part, lines: int) -> NameChoice | None:
    """Which keys of a part get names, if any do."""
    if not settings.names or not part.training:
        return None
    return NameChoice(settings.names, lines, settings.block_rows)


class _Source:
    """The lines of a part, and what makes blocks of them."""

    def __init__(self, settings: FeatureSettings, part: Part, read: Read | None):
        self.spec = _spec(settings)
        self._settings, self._part = settings, part
        self._lines = _lines(part, read)
        self._extractor = _extractor(settings, self.spec, self._lines)
        self._bad = BadRows(1.0 if settings.max_bad else 0.0, part.aside, setting="sample.max_bad")

    @property
    def lines(self) -> int:
        return self._lines.count

    @property
    def single(self) -> np.ndarray:
        """1 for slots that have one key in every row, else 0."""
        return single_keys(self._extractor.program, len(self.spec.sparse))

    def names(self) -> NameChoice | None:
        return _choice(self._settings, self._part, self._lines.count)

    def blocks(self, named: NameChoice | None) -> Iterator[Made]:
        wanted = named.looks_at if named else lambda number: False
        maker = BlockMaker(self._extractor, self._settings.block_rows, wanted)
        return maker.blocks(self._lines.pieces(self._order()), self._bad)

    def _order(self) -> np.ndarray:
        if self._settings.shuffle and self._part.training:
            return _shuffled(self._lines.count, self._settings.seed, self._part.sample.name)
        return np.arange(self._lines.count)

    def extractor(self, text: SampleText) -> Extractor:
        """What has made the features, for a text with the same header."""
        return self._extractor

    def close(self) -> None:
        """Put bad rows aside: a file with its own name has them there."""
        self._bad.close()

    def done(self, rows: int, cpu: float) -> PartDone:
        cpu_s = time.process_time() - cpu
        return PartDone(self._lines.count, rows, cpu_s, os.getpid(), peak_bytes())


def _extractor(
    settings: FeatureSettings, spec: FeatureSpec, text: SampleText | TextLines | FileLines
) -> Extractor:
    return Extractor(spec, text.header, text.file, drop_missing=settings.drop_missing)


def _lines(part: Part, read: Read | None) -> TextLines | FileLines:
    return TextLines(read(part.sample)) if read else sample_lines(part.sample, part.room)


def fit_part(settings: FeatureSettings, part: Part, read: Read | None = None) -> PartDone:
    """How the numbers of a part are distributed that the features file wants to be fitted to.

    Rows that are bad for other reasons count here too.
    """
    cpu = time.process_time()
    lines = _lines(part, read)
    spec = spec_of_numbers(load_spec(settings.spec))
    extractor = Extractor(spec, lines.header, lines.file, empty=math.nan)
    numbers = tuple(distributions(_rows(lines, extractor)))
    cpu_s = time.process_time() - cpu
    return PartDone(lines.count, 0, cpu_s, os.getpid(), peak_bytes(), numbers)


def _spec(settings: FeatureSettings) -> FeatureSpec:
    spec = load_spec(settings.spec)
    if settings.fitted is None:
        return spec
    # Messages name the file that the user has written.
    return parse_spec(settings.fitted.read_text(encoding="utf-8"), spec.path, spec.folder)


def _rows(lines: TextLines | FileLines, extractor: Extractor) -> Iterator[Rows]:
    """Rows of all lines that are good."""
    bad = BadRows(1.0)
    for text, starts in lines.pieces(np.arange(lines.count)):
        for first in range(0, len(starts), PIECE_LINES):
            yield extractor.rows(text, starts[first : first + PIECE_LINES], bad)


def _shuffled(n: int, seed: int, name: str) -> np.ndarray:
    """An order of n lines that follows from seed and part, on every machine alike."""
    hashes = np.empty(n, np.int64)
    deal_rows(0, np.uint64(hash_text(f"{seed} {name}")), SHUFFLE_RANGE, hashes)
    return np.argsort(hashes, kind="stable")
