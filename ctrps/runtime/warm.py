"""Compile all kernels of a model once, and tell by their results whether nodes compute alike."""

import fcntl
import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from numba.core.event import Event, Listener, install_listener

from ctrps import models
from ctrps.codec import raw
from ctrps.config import JobConfig
from ctrps.data.batches import BlockBatches
from ctrps.data.shards import Block, Rows, Schema
from ctrps.kernels import checks, losses, metrics
from ctrps.models import Model
from ctrps.ps.partition import Contribution, PartitionSet, contribute
from ctrps.ps.plan import DataFile, Plan
from ctrps.ps.progress import Scores
from ctrps.runtime.inputs import plan_settings


class _Compilations(Listener):  # type: ignore[misc]
    def __init__(self, tell: Callable[[], None]):
        self._tell = tell

    def on_start(self, event: Event) -> None:
        self._tell()

    def on_end(self, event: Event) -> None:
        return


def announcing(tell: Callable[[], None]) -> AbstractContextManager[object]:
    """A context that calls ``tell`` before each kernel that is not in the cache on disk.

    So it is with most kernels at the first run on a machine, and after an upgrade.
    """
    context: AbstractContextManager[object] = install_listener("numba:compile", _Compilations(tell))
    return context


def cache_folder() -> Path:
    """Where compiled kernels are kept; it need not be there yet.

    Raises RuntimeError if Numba finds no place at all.
    """
    return Path(str(checks.finite.stats.cache_path))


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Of the processes of a machine that come to a kernel which is not in the cache, one compiles.

    The others wait, and then find its kernels there: a dozen nodes that are started by hand have
    compiled as soon as one has. Where there is no place for a lock, each compiles for itself.
    """
    with ExitStack() as held:
        waited = False

        def wait_for_turn() -> None:
            nonlocal waited
            if waited:
                return
            waited = True
            with suppress(OSError):
                folder = cache_folder()
                folder.mkdir(parents=True, exist_ok=True)
                lock = held.enter_context(open(folder / "compiling.lock", "a"))
                fcntl.flock(lock, fcntl.LOCK_EX)

        with announcing(wait_for_turn):
            yield


@one_at_a_time()
def warm(job: JobConfig, cluster: bool = True) -> str:
    """Run two steps of the job's model on a few fixed rows.

    Every kernel that a process of a cluster calls is compiled, or loaded from its cache on disk.

    Parameters
    ----------
    job
    cluster
        Also for arrays out of messages, which nobody may write: to Numba these are other types.

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
        for frozen in (False, cluster):
            part = _step(model, partitions, batch, frozen, content)
        _late(job, model, part)
    restored = PartitionSet(model)
    for state in partitions.snapshot():
        restored.load(state.tables)
        for saved in state.tables:
            content.update(raw(saved.rows))
    for table in restored.tables:
        table.reserve(np.zeros(1 << 12, np.uint64))  # so many that it grows
    Plan((DataFile("", "", (3,)),), plan_settings(job), 0)
    return content.hexdigest()[:16]


def _step(
    model: Model,
    partitions: PartitionSet,
    batch: models.Minibatch,
    frozen: bool,
    content: "hashlib._Hash",
) -> Contribution:
    keys = tuple(s.keys for s in model.key_sets(batch))
    if frozen:
        keys = _frozen(keys)
    part = contribute(model, batch, partitions.pull(keys))
    if frozen:
        part = part._replace(
            keys=_frozen(part.keys),
            gradients=_frozen(part.gradients),
            counts=_frozen(part.counts),
            scores=Scores(*_frozen(part.scores)),
        )
    for gradient, counts in zip(part.gradients, part.counts, strict=True):
        checks.finite(checks.bits(gradient))
        checks.positive(counts)
    partitions.apply({0: part, 1: part})
    for weights in (*partitions.pull_before(keys), *partitions.peek(keys)):
        content.update(raw(weights))
    margins = model.margins(batch, partitions.peek(keys))
    content.update(raw(margins))
    probabilities = np.empty(len(margins), np.float64)
    losses.sigmoid_rows(margins, probabilities)
    metrics.report(probabilities, batch.labels)
    return part


def _late(job: JobConfig, model: Model, part: Contribution) -> None:
    """A batch alone, as in async, and as in a step that only one lane is left for."""
    partitions = PartitionSet(model)
    for _ in range(2):  # the first makes room for its rows, the second finds them
        partitions.apply_late([part], 1)
    if job.train.compensation:
        then = partitions.pull(part.keys)
        partitions.compensated(part.keys, part.gradients, part.counts, then, 1.0)


def _frozen(arrays: Iterable[np.ndarray]) -> tuple[np.ndarray, ...]:
    """As they come out of a message."""
    views = tuple(array.view() for array in arrays)
    for view in views:
        view.flags.writeable = False
    return views


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
