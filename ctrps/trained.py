"""A model in memory that rows are walked for: what an estimator trains, scores with and saves."""

from __future__ import annotations

import glob
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from ctrps import models
from ctrps.config import JobConfig
from ctrps.data.batches import BlockBatches
from ctrps.data.rows import Rows, Schema
from ctrps.data.shards import Block, KeyNumbers, ShardWriter
from ctrps.frames import Encoder
from ctrps.ps.partition import PartitionSet
from ctrps.ps.table import RowSet
from ctrps.runtime.fused import Fused
from ctrps.runtime.inputs import open_inputs
from ctrps.runtime.lanes import Lanes
from ctrps.runtime.rundir import plan_digest

ROWS = 4096
"""Rows scored at a time."""


@dataclass
class Trained:
    """A model in memory, and how far it was trained."""

    job: JobConfig
    encoder: Encoder
    partitions: PartitionSet
    passes: int = 0
    plan: str = ""

    @classmethod
    def new(cls, job: JobConfig, encoder: Encoder) -> Trained:
        return cls(job, encoder, PartitionSet(models.build(job)))

    def train(self, rows: Rows, passes: int) -> list[dict[str, Any]]:
        """Walk the rows; of each pass, how good the scores before each step were."""
        told = []
        with TemporaryDirectory(prefix="ctrps-") as name:
            folder = Path(name)
            path, schema, train = folder / "train.shard", self.encoder.schema, self.job.train
            size = max(self.job.data.block_rows, train.batch_rows)
            with ShardWriter(path, schema, size, threads=1) as writer:
                writer.add(rows)
            job = at(self.job, folder, path)
            inputs = open_inputs(job)
            self.partitions.expect(inputs.manifest.keys, self.partitions.model.partitions)
            walker = (Fused if train.fused else Lanes)(job, inputs, self.partitions)
            for _ in range(passes):
                if self.passes:
                    self.partitions.turn(self.passes)
                with closing(walker.walk(self.passes, 0, threading.Event())) as positions:
                    for _ in positions:
                        pass
                self.passes += 1
                told.append(self.partitions.progress.total().report())
            self.plan = plan_digest(job, inputs)
        return told

    def margins(self, rows: Rows) -> np.ndarray:
        """Log-odds of rows, float32[rows]."""
        model, schema, numbers = self.partitions.model, self.encoder.schema, KeyNumbers()
        parts, starts = [np.empty(0, np.float32)], rows.starts()
        for first in range(0, rows.rows, ROWS):
            block = Block.from_rows(
                rows.part(first, min(first + ROWS, rows.rows), starts), schema, numbers
            )
            batch = BlockBatches(block, schema, model.partition_bits).minibatch(
                np.arange(block.rows)
            )
            keys = tuple(wanted.keys for wanted in model.key_sets(batch))
            parts.append(model.margins(batch, self.partitions.peek(keys)))
        return np.concatenate(parts)

    def arrays(self) -> dict[str, Any]:
        """All of it as plain values and arrays."""
        bits = self.partitions.model.partition_bits
        tables = []
        for table in self.partitions.tables:
            keys, rows = zip(*table.snapshot(bits), strict=True)
            tables.append((np.concatenate(keys), np.concatenate(rows)))
        encoder = self.encoder
        return {
            "job": self.job.dump_yaml(),
            "schema": encoder.schema.to_dict(),
            "names": encoder.names,
            "width": encoder.width,
            "passes": self.passes,
            "plan": self.plan,
            "tables": tables,
        }

    @classmethod
    def of(cls, found: dict[str, Any]) -> Trained:
        """The inverse of ``arrays``."""
        job = JobConfig.model_validate(yaml.safe_load(found["job"]))
        encoder = Encoder(Schema.from_dict(found["schema"]), found["names"], found["width"])
        trained = cls.new(job, encoder)
        trained.partitions.load([RowSet(*table) for table in found["tables"]])
        trained.passes, trained.plan = found["passes"], found["plan"]
        return trained


def at(job: JobConfig, folder: Path, train: Path | None = None) -> JobConfig:
    """The job with its files in a folder."""
    files = () if train is None else (Path(glob.escape(str(train))),)
    data = job.data.model_copy(update={"train": files, "test": ()})
    output = job.output.model_copy(update={"dir": folder})
    return job.model_copy(update={"data": data, "output": output})
