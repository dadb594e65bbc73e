"""The data of a run: files named by the job -> shards -> the data manifest, and its minibatches."""

import glob
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ctrps.config import JobConfig
from ctrps.data.badrows import BadRows
from ctrps.data.batches import BlockBatches
from ctrps.data.convert import Progress, expand, to_shards
from ctrps.data.formats import TextSettings
from ctrps.data.indices import disagreement
from ctrps.data.shards import Block, Schema, Shard
from ctrps.errors import ConfigError, CtrpsWarning, DataError
from ctrps.kernels.sketch import distinct
from ctrps.models import Minibatch
from ctrps.ps.plan import BatchRef, DataFile, EvaluationPlan, Manifest, Plan, PlanSettings


@dataclass(frozen=True)
class Inputs:
    """Training and test rows as shards.

    ``convert_s`` is the time that text took to become shards; 0 when all were there. ``rejected``
    counts the bad rows that were left out, as ``data.max_bad`` allows.
    """

    manifest: Manifest
    schema: Schema
    convert_s: float
    rejected: int

    def account(self) -> dict[str, float]:
        """What the summary says of them."""
        return {"convert_s": self.convert_s, "rejected": self.rejected}


def open_inputs(job: JobConfig, progress: Progress | None = None) -> Inputs:
    """Find the job's files, converting text once into ``OUTPUT.DIR/cache``.

    Raises
    ------
    DataError
        A file is missing, unreadable or without rows, or training and test differ in columns.
    ConfigError
        A batch would be larger than a block of the shards.

    Warns
    -----
    CtrpsWarning
        Some files seem to count their indices from 0 and others from 1.
    """
    began = time.monotonic()
    cache = job.output.dir / "cache"
    bad = [BadRows(job.data.max_bad), BadRows(job.data.max_bad)]
    train = _shards(job.data.train, job, cache, (), progress, bad[0])
    # Of key-value text, the file with most slots; the others' are the first of these.
    schema = max((shard.schema for shard in train), key=lambda schema: len(schema.slots))
    slots = schema.slots if schema.weights == "value" else ()
    wanted = job.data.test if _wants_test(job) else ()
    test = _shards(wanted, job, cache, slots, progress, bad[1]) if wanted else []
    for shard in test:
        if not (shard.schema.extends(schema) or schema.extends(shard.schema)):
            what = f"its columns are not those of {train[0].path}"
            raise DataError(
                what, where=str(shard.path), hint="extract both with one job", id="E-DATA-COLUMN"
            )
    _check_block_rows(train, job.train.batch_rows)
    if wrong := disagreement(train, test):
        warnings.warn(wrong, CtrpsWarning, stacklevel=2)
    manifest = Manifest(tuple(map(_entry, train)), tuple(map(_entry, test)), _keys(train))
    return Inputs(manifest, schema, time.monotonic() - began, sum(b.count for b in bad))


def extracted(job: JobConfig, part: str) -> Path:
    """Where ``ctrps extract`` puts the rows of this job: the default of ``data.train`` and test.

    Values are compared with it, not their origins: a resolved job file states its defaults too.
    """
    return Path(glob.escape(str(job.output.dir)), "data", f"{part}-*.shard")


def _wants_test(job: JobConfig) -> bool:
    """Test rows are optional: in the default place of ``data.test`` none need be there."""
    test, default = job.data.test, extracted(job, "test")
    return bool(test) and (test != (default,) or bool(glob.glob(str(default))))


def _shards(
    patterns: Sequence[Path],
    job: JobConfig,
    cache: Path,
    slots: tuple[str, ...],
    progress: Progress | None,
    bad: BadRows,
) -> list[Shard]:
    default = extracted(job, "train")
    if not patterns or (patterns == (default,) and not glob.glob(str(default))):
        raise DataError(
            "no shards are there",
            where=str(patterns[0]) if patterns else "data.train",
            hint="run `ctrps extract` with this job first, or set data.train",
            id="E-DATA-MISSING",
        )
    how = replace(text_settings(job), slots=slots)
    return [Shard(p) for p in to_shards(expand(patterns), how, cache, progress, bad)]


def text_settings(job: JobConfig, labels: str = "required") -> TextSettings:
    """How the job's text files are to be read."""
    data = job.data
    return TextSettings(
        format=data.format,
        label=data.label,
        numeric=data.numeric,
        ignore=data.ignore,
        id=data.id,
        missing=data.missing,
        columns=data.columns,
        zero_based=data.zero_based,
        labels=labels,
        block_rows=max(data.block_rows, job.train.batch_rows),
        max_bad=data.max_bad,
    )


def _keys(shards: list[Shard]) -> int:
    """About how many different keys there are; 0 if a shard does not know."""
    sketches = [shard.sketch for shard in shards if shard.sketch is not None]
    return distinct(sketches) if len(sketches) == len(shards) else 0


def _entry(shard: Shard) -> DataFile:
    return DataFile(str(shard.path), shard.digest, tuple(map(int, shard.block_rows)))


def _check_block_rows(shards: list[Shard], batch_rows: int) -> None:
    for shard in shards:
        if len(shard.block_rows) > 1 and shard.block_rows[0] < batch_rows:
            what = f"train.batch_rows is {batch_rows}, a block holds {shard.block_rows[0]} rows"
            hint = f"lower it, or extract with features.block_rows={batch_rows}"
            raise ConfigError(what, where=str(shard.path), hint=hint)


def plan_settings(job: JobConfig) -> PlanSettings:
    """The part of the job that fixes the lanes."""
    train = job.train
    return PlanSettings(
        train.batch_rows,
        train.lanes,
        train.chunk_batches,
        train.shuffle,
        train.seed,
        train.consistency,
    )


def unseen(manifest: Manifest) -> list[int]:
    """Numbers of the files, training then test, that this process cannot open to read.

    A look at names only: a file that is there with other content than the manifest's is an error
    when it is read.
    """
    return [n for n, file in enumerate(manifest.files) if not os.access(file.path, os.R_OK)]


class BatchReader:
    """Minibatches of a manifest's files; holds the blocks that lanes are in.

    One thread makes its minibatches; another may ``load`` blocks for it meanwhile.

    Parameters
    ----------
    files
    settings
        Of the plan, or None to read for an evaluation.
    bits : int
        Base-2 logarithm of the number of partitions.
    """

    def __init__(self, files: tuple[DataFile, ...], settings: PlanSettings | None, bits: int):
        self._files = files
        self._settings = settings
        self._bits = bits
        self._plan: Plan | EvaluationPlan | None = None
        self._shards: dict[int, Shard] = {}
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, int], BlockBatches] = OrderedDict()
        # Each lane reads in one block; the next block of a lane follows the last.
        self._most_blocks = 4 + (settings.lanes if settings else 0)

    def minibatch(self, pass_: int, ref: BatchRef) -> Minibatch:
        """The rows of ``ref`` as the plan of the pass orders them."""
        rows = self._plan_of(pass_).row_numbers(ref)
        return self._block(ref.file, ref.block).minibatch(rows)

    def holds(self, ref: BatchRef) -> bool:
        """Whether a minibatch of these rows needs nothing from the disk."""
        return (ref.file, ref.block) in self._blocks

    def load(self, ref: BatchRef) -> None:
        """Read the block that these rows are in, if it is not held."""
        self._block(ref.file, ref.block)

    def block(self, ref: BatchRef) -> Block:
        """The whole block that the rows of ``ref`` are in."""
        return self._block(ref.file, ref.block).block

    def another(self) -> "BatchReader":
        """A reader of the same files, for another thread."""
        return BatchReader(self._files, self._settings, self._bits)

    def row_numbers(self, pass_: int, ref: BatchRef) -> np.ndarray:
        """The rows of a batch as numbers inside its block, int64[rows]."""
        return self._plan_of(pass_).row_numbers(ref)

    def source(self, ref: BatchRef) -> tuple[str, int]:
        """The file that a person knows, and how many of its rows come before the block."""
        shard = self._shard(ref.file)
        before = int(shard.block_rows[: ref.block].sum())
        return str(shard.meta.get("source", shard.path)), before

    def fields(self, ref: BatchRef, key: int) -> list[str]:
        """Names of the slots, or of the dense feature, in which the block of ``ref`` has a key."""
        block, schema = self._block(ref.file, ref.block).block, self._shard(ref.file).schema
        number = np.flatnonzero(block.keys == np.uint64(key))
        if not len(number):
            return []
        first_dense = len(block.keys) - len(schema.dense)
        if number[0] >= first_dense:
            return [schema.dense[number[0] - first_dense]]
        slots = np.repeat(
            np.tile(np.arange(len(schema.slots)), block.rows), block.counts.reshape(-1)
        )
        return [schema.slots[s] for s in np.unique(slots[block.index == number[0]])]

    def _plan_of(self, pass_: int) -> Plan | EvaluationPlan:
        if self._plan is None or (isinstance(self._plan, Plan) and self._plan.number != pass_):
            self._plan = (
                Plan(self._files, self._settings, pass_)
                if self._settings
                else EvaluationPlan(self._files)
            )
        return self._plan

    def _block(self, file: int, number: int) -> BlockBatches:
        found = self._blocks.get((file, number))
        if found is None:
            shard = self._shard(file)
            found = BlockBatches(shard.block(number), shard.schema, self._bits)
        with self._lock:
            self._blocks[file, number] = found
            self._blocks.move_to_end((file, number))
            if len(self._blocks) > self._most_blocks:
                self._blocks.popitem(last=False)
        return found

    def _shard(self, file: int) -> Shard:
        if file not in self._shards:
            entry = self._files[file]
            shard = Shard(Path(entry.path))
            if shard.digest != entry.digest:
                raise DataError(
                    "the file has changed since the run began",
                    where=entry.path,
                    hint="do not write to a running job's data",
                    id="E-DATA-CHANGED",
                )
            self._shards[file] = shard
        return self._shards[file]
