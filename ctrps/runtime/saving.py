"""Rows of partitions to files, and files to a committed model: what train and cluster share."""

from dataclasses import replace
from pathlib import Path

from ctrps import checkpoint
from ctrps.checkpoint import Checkpoint, Manifest, PartitionFile
from ctrps.data.shards import Schema
from ctrps.models import Model
from ctrps.ps.table import RowSet
from ctrps.runtime.rundir import RunFolder


def write_partitions(
    folder: Path,
    model: Model,
    rows: dict[int, list[RowSet]],
    number: int,
    view: int,
    node: int,
) -> list[PartitionFile]:
    """Write the partitions that a process owns; ``rows`` has one ``RowSet`` per table."""
    names = [table.name for table in model.tables]
    return [
        checkpoint.write_partition(
            folder,
            partition,
            number,
            view,
            node,
            [(name, *saved) for name, saved in zip(names, sets, strict=True)],
        )
        for partition, sets in sorted(rows.items())
    ]


def read_partitions(folder: Path, partitions: tuple[int, ...]) -> dict[int, list[RowSet]]:
    """Read partitions of the committed model, every checksum verified."""
    opened = Checkpoint(folder)
    return {p: [RowSet(*rows) for rows in opened.read(p)] for p in partitions}


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
    manifest = replace(
        folder.manifest(schema, plan, *position, border),
        tables=[[table.name, table.dim, table.width] for table in model.tables],
        files=tuple(files),
    )
    return checkpoint.commit(folder.model, manifest)
