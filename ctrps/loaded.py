"""A model on disk -> a model in memory, whole and checked against its own job.

Prediction, evaluation, export and serving begin here. Which rows are scored, and what becomes of
the scores, is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml
from pydantic import ValidationError

from ctrps import models
from ctrps.checkpoint import MANIFEST, Checkpoint, Manifest
from ctrps.config import JobConfig
from ctrps.data.formats import TextSettings
from ctrps.data.shards import Schema
from ctrps.errors import CheckpointError, CtrpsError
from ctrps.models import Minibatch, Model
from ctrps.ps.partition import PartitionSet
from ctrps.ps.table import RowSet
from ctrps.remote import at_hand


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, ready to score rows. Nothing changes it, so threads may share it.

    Attributes
    ----------
    folder : Path
        Where it is; of a URL only for messages.
    manifest : Manifest
    job : JobConfig
        The job that trained it.
    model : Model
    partitions : PartitionSet
        All rows of all tables, optimiser state included.
    schema : Schema
        What the rows that it was trained on consist of.
    text : TextSettings
        How columns of text are to be read, as in training.
    """

    folder: Path
    manifest: Manifest
    job: JobConfig
    model: Model
    partitions: PartitionSet
    schema: Schema
    text: TextSettings

    @classmethod
    def open(cls, home: Path | str) -> Self:
        """Read the model in a folder or at a URL, whole or not at all, every checksum verified.

        Raises
        ------
        CheckpointError
            Naming the file that is missing, damaged, or does not fit the others.
        """
        with at_hand(home) as folder:
            return cls._read(folder, Path(home))

    @classmethod
    def _read(cls, folder: Path, home: Path) -> Self:
        checkpoint = Checkpoint(folder)
        manifest, where = checkpoint.manifest, str(folder / MANIFEST)
        job = job_of(manifest, where)
        try:
            schema = Schema.from_dict(manifest.data["schema"])
            text = _text_settings(manifest.data["text"], schema)
        except (CtrpsError, KeyError, TypeError, RecursionError) as error:
            raise _unreadable(error, where) from None
        model = models.build(job)
        _check_fits(manifest, job, model, where)
        partitions = PartitionSet(model)
        for number in range(model.partitions):
            partitions.load([RowSet(*rows) for rows in checkpoint.read(number).tables])
        return cls(home, manifest, job, model, partitions, schema, text)

    def margins(self, batch: Minibatch) -> np.ndarray:
        """Log-odds of the rows of ``batch``, float32[rows]."""
        keys = tuple(wanted.keys for wanted in self.model.key_sets(batch))
        return self.model.margins(batch, self.partitions.peek(keys))

    def unknown(self, batch: Minibatch) -> int:
        """How many of the entries of ``batch`` have a key that the model does not hold."""
        absent = self.partitions.tables[0].find(batch.keys) == 0
        return int(batch.counts[absent].sum())


def job_of(manifest: Manifest, where: str) -> JobConfig:
    """The job that trained a model; CheckpointError if this version cannot read it."""
    try:
        return JobConfig.model_validate(yaml.safe_load(manifest.job))
    except (yaml.YAMLError, ValidationError, CtrpsError, RecursionError) as error:
        raise _unreadable(error, where) from None


def _unreadable(error: Exception, where: str) -> CheckpointError:
    what = f"its job or columns cannot be read: {' '.join(str(error).split())[:200]}"
    return CheckpointError(what, where=where)


def _text_settings(found: dict[str, Any], schema: Schema) -> TextSettings:
    return TextSettings(
        label=found["label"],
        id=found["id"],
        ignore=tuple(found["ignore"]),
        missing=tuple(found["missing"]),
        columns=tuple(found.get("columns", ())),
        numeric=schema.dense,
        zero_based=tuple(found.get("zero_based", ())),
    )


def _check_fits(manifest: Manifest, job: JobConfig, model: Model, where: str) -> None:
    """The rows on disk must mean what the job, as this version reads it, says."""
    wanted = job.model_settings()
    differ = [key for key, value in wanted.items() if manifest.model.get(key) != value]
    if differ:
        what = f"its rows are of another {', '.join(differ)} than its job says"
        hint = "read it with the version of ctrps that wrote it"
        raise CheckpointError(what, where=where, hint=hint)
    tables = [[table.name, table.dim, table.width] for table in model.tables]
    if manifest.tables != tables:
        what = f"the layout of its rows is {manifest.tables}, the model has {tables}"
        raise CheckpointError(what, where=where)
    listed = sorted(file.partition for file in manifest.files)
    if listed != list(range(model.partitions)):
        what = f"it lists {len(listed)} partition files, the model has {model.partitions}"
        raise CheckpointError(what, where=where)
