"""Compile all kernels of a model once, and tell by their results whether nodes compute alike."""

import hashlib
from pathlib import Path

import numpy as np

from ctrps import kernels, models
from ctrps.codec import raw
from ctrps.config import JobConfig
from ctrps.data.batches import BlockBatches
from ctrps.data.shards import Block, Rows, Schema
from ctrps.models import Model
from ctrps.ps.partition import PartitionSet, contribute


def compiled() -> bool:
    """Whether kernels lie in their cache beside the package, as after the first run."""
    folder = Path(kernels.__path__[0]) / "__pycache__"
    return any(folder.glob("*.nbc"))


def warm(job: JobConfig) -> str:
    """Run two steps of the job's model on a few fixed rows.

    Every kernel that a worker or a server calls is compiled, or loaded from its cache on disk.

    Returns
    -------
    str
        The kernel digest: nodes with another one would compute other bits.
    """
    model = models.build(job)
    partitions = PartitionSet(model)
    content = hashlib.sha256()
    for schema, block in _blocks():
        batch = BlockBatches(block, schema, model.partition_bits).minibatch(np.arange(block.rows))
        for _ in range(2):
            _step(model, partitions, batch, content)
    restored = PartitionSet(model)
    for state in partitions.snapshot():
        restored.load(state.tables)
        for saved in state.tables:
            content.update(raw(saved.rows))
    return content.hexdigest()[:16]


def _step(
    model: Model, partitions: PartitionSet, batch: models.Minibatch, content: "hashlib._Hash"
) -> None:
    keys = tuple(s.keys for s in model.key_sets(batch))
    part = contribute(model, batch, partitions.pull(keys))
    partitions.apply({0: part, 1: part})
    for weights in (*partitions.pull_before(keys), *partitions.peek(keys)):
        content.update(raw(weights))
    content.update(raw(model.margins(batch, partitions.peek(keys))))


def _blocks() -> list[tuple[Schema, Block]]:
    """Rows with repeated keys, several values of a slot, dense numbers, and explicit values."""
    keys = np.arange(1, 13, dtype=np.uint64) % np.uint64(7)
    counts = np.array([[1, 2], [3, 0], [2, 4]], np.int32)
    dense = np.array([[0.5], [0.0], [-2.0]], np.float32)
    labels = np.array([0, 1, 0], np.float32)
    values = np.linspace(-1, 1, 12, dtype=np.float32)
    mean = Schema(("a", "b"), ("d",), "mean")
    value = Schema(("",), (), "value")
    rows = Rows(keys, counts, None, dense, labels, None)
    single = counts.sum(1, dtype=np.int32).reshape(-1, 1)
    plain = Rows(keys, single, values, dense[:, :0], labels, None)
    return [(mean, Block.from_rows(rows, mean)), (value, Block.from_rows(plain, value))]
