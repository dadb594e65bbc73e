"""Rows of partitions to files, and files to a committed model: what train and cluster share."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ctrps import checkpoint
from ctrps.checkpoint import Checkpoint, Manifest, PartitionFile
from ctrps.data.shards import Schema
from ctrps.models import Model
from ctrps.ps.partition import NO_MARKS, PartitionState
from ctrps.ps.progress import NO_PROGRESS
from ctrps.ps.table import RowSet
from ctrps.runtime.rundir import RunFolder


def write_partitions(
    folder: Path,
    model: Model,
    states: dict[int, PartitionState],
    number: int,
    view: int,
    node: int,
) -> list[PartitionFile]:
    """Write the partitions that a process owns, of checkpoint ``number``."""
    names = [table.name for table in model.tables]
    return [
        checkpoint.write_partition(
            folder,
            partition,
            number,
            view,
            node,
            [(name, *saved) for name, saved in zip(names, state.tables, strict=True)],
            [state.marks, *state.progress],
        )
        for partition, state in sorted(states.items())
    ]


def read_partitions(
    folder: Path, partitions: Iterable[int], pass_: int
) -> dict[int, PartitionState]:
    """Read partitions of the committed model, every checksum verified, to go on in ``pass_``.

    Marks and progress belong to a pass: those of another one are left out.
    """
    opened = Checkpoint(folder)
    same_pass = opened.manifest.pass_ == pass_
    nothing: list[np.ndarray] = [NO_MARKS, *NO_PROGRESS]
    states = {}
    for number in partitions:
        saved = opened.read(number)
        notes = saved.notes if same_pass else nothing
        tables = [RowSet(*rows) for rows in saved.tables]
        states[number] = PartitionState(tables, notes[0], notes[1:])
    return states


def commit(
    folder: RunFolder,
    model: Model,
    schema: Schema,
    plan: str,
    files: list[PartitionFile],
    position: tuple[int, int, int],
    border: bool,
) -> Manifest:
    """Make the model of ``files`` the run's model; ``position`` is checkpoint, pass and step."""
    train = folder.job.train
    exact = border or train.consistency == "sync" or train.fused
    manifest = replace(
        folder.manifest(schema, plan, *position, border),
        tables=[[table.name, table.dim, table.width] for table in model.tables],
        files=tuple(files),
        cut="exact" if exact else "fuzzy",
    )
    return checkpoint.commit(folder.model, manifest, train.keep_checkpoints)
