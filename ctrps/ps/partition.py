"""The partitions that one server owns: rows, version, step buffer, fold and undo.

In sync mode (``docs/protocol.md`` section 3) a step takes one batch of each
active lane, adds their gradients in lane order, applies the optimiser once, and keeps the old
weights of the step before so that a batch of it can be pulled again. It is used by a server for
its share of the keys and by the single process for all of them, which is why both give the
same bits.
"""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ctrps.errors import LocalProtocolError
from ctrps.kernels import csr, delay
from ctrps.kernels import keys as key_kernels
from ctrps.models import Minibatch, Model
from ctrps.ps.progress import NO_SCORES, Progress, Scores
from ctrps.ps.table import RowSet, Table

Arrays = tuple[np.ndarray, ...]


class Contribution(NamedTuple):
    """One lane's part of a step: per table distinct keys, gradient sums and row counts.

    ``scores`` are the batch's, where they are to be counted.
    """

    rows: int
    loss_sum: float
    keys: Arrays
    gradients: Arrays
    counts: Arrays
    scores: Scores = NO_SCORES

    def same_bits(self, other: "Contribution") -> bool:
        """Whether both were computed to the same bits, as copies of one batch must be."""
        arrays = zip(
            (*self.keys, *self.gradients, *self.counts),
            (*other.keys, *other.gradients, *other.counts),
            strict=True,
        )
        return self.rows == other.rows and all(
            a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in arrays
        )


def _fixed(array: np.ndarray) -> np.ndarray:
    """The same array, which nobody may write: to Numba one type, whatever message it came in."""
    view = array.view()
    view.flags.writeable = False
    return view


class Fold(NamedTuple):
    """The keys of one step with the sums over its lanes.

    Attributes
    ----------
    keys : uint64[k]
    gradient : float32[k, dim]
    counts : int32[k]
    """

    keys: np.ndarray
    gradient: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], dim: int) -> "Fold":
        """Add (keys, gradient, counts) of each lane, in the order given.

        Each key's sum is a chain of float32 additions in that order, wherever the key lives.
        """
        parts = [(_fixed(k), _fixed(g), _fixed(c)) for k, g, c in parts]
        if len(parts) == 1:
            return cls(*parts[0])
        every = np.concatenate([np.empty(0, np.uint64), *(keys for keys, *_ in parts)])
        distinct, where = np.empty(len(every), np.uint64), np.empty(len(every), np.int32)
        scratch = np.zeros(key_kernels.index_capacity(len(every)), np.int32)
        used = csr.dedup_keys(every, scratch, distinct, where)
        gradient, counts = np.empty((used, dim), np.float32), np.zeros(used, np.int32)
        at = 0
        for keys, part_gradient, part_counts in parts:
            csr.fold(where[at : at + len(keys)], part_gradient, part_counts, gradient, counts)
            at += len(keys)
        return cls(distinct[:used], gradient, counts)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Positions int64[n] of ``keys``, -1 where absent."""
        index = key_kernels.index_new(key_kernels.index_capacity(len(self.keys)))
        key_kernels.index_build(index, self.keys)
        where = np.empty(len(keys), np.int64)
        key_kernels.index_find(index, keys, where)
        return where


class Undo(NamedTuple):
    """Per table the keys of the last step and their weights before it."""

    folds: tuple[Fold, ...]
    before: Arrays


def contribute(model: Model, batch: Minibatch, weights: Arrays) -> Contribution:
    """A batch's part of a step, from the weights that were pulled for it.

    Both are rounded as they would be on their way to and from a worker.
    """
    sets = model.key_sets(batch)
    result = model.gradient(batch, model.widen(model.narrow(weights)))
    result = result._replace(tables=model.widen(model.narrow(result.tables)))
    keys, counts = tuple(s.keys for s in sets), tuple(s.counts for s in sets)
    scores = Scores(result.margins, batch.labels)
    return Contribution(batch.rows, result.loss_sum, keys, result.tables, counts, scores)


class PartitionState(NamedTuple):
    """One partition as it is saved.

    Attributes
    ----------
    tables : list of RowSet
        One per table of the model.
    marks : int32[lanes]
        Last batch applied of each lane; empty in sync mode, where the version says it.
    progress : list of np.ndarray
        Of ``Progress.save``.
    """

    tables: list[RowSet]
    marks: np.ndarray
    progress: list[np.ndarray]


NO_MARKS = np.zeros(0, np.int32)


class PartitionSet:
    """All partitions of one owner, at one version.

    Parameters
    ----------
    model

    Attributes
    ----------
    pass_, step : int
        The version: steps applied in this pass.
    rows_seen : int
        Rows of the steps applied in this pass.
    """

    def __init__(self, model: Model):
        self.model = model
        self.tables = tuple(Table(spec, model.seed) for spec in model.tables)
        self.pass_ = 0
        self.step = 0
        self.rows_seen = 0
        self.progress = Progress(model.partitions)
        self._undo: Undo | None = None

    def expect(self, keys: int, owned: int) -> None:
        """Of about ``keys`` keys of the training rows, those of ``owned`` partitions will come."""
        self.tables[0].expect(keys * owned // self.model.partitions)

    def pull(self, keys: Arrays) -> Arrays:
        """Weights at the present version, float32[k, dim] per table."""
        return tuple(
            table.weights(k, absent_initial=True)
            for table, k in zip(self.tables, keys, strict=True)
        )

    def pull_before(self, keys: Arrays) -> Arrays:
        """Weights at the version before, for keys of the last step only.

        Raises
        ------
        LocalProtocolError
            If a key was not in that step: its lane cannot have been part of it.
        """
        if self._undo is None:
            raise LocalProtocolError("a pull of the step before, and there is none")
        return tuple(
            self._before(fold, before, k) for fold, before, k in zip(*self._undo, keys, strict=True)
        )

    @staticmethod
    def _before(fold: Fold, before: np.ndarray, keys: np.ndarray) -> np.ndarray:
        where = fold.find(keys)
        if (where < 0).any():
            raise LocalProtocolError("a pull of the step before asks for a key that was not in it")
        return before[where]

    def undo_arrays(self) -> Arrays:
        """Keys and weights of the step before, for each table; empty if there is none."""
        if self._undo is None:
            return ()
        return tuple(a for fold, w in zip(*self._undo, strict=True) for a in (fold.keys, w))

    def load_undo(self, arrays: Arrays) -> None:
        """Take over what ``undo_arrays`` gave."""
        folds = tuple(
            Fold(keys, np.zeros((0, table.spec.dim), np.float32), np.zeros(0, np.int32))
            for keys, table in zip(arrays[::2], self.tables, strict=True)
        )
        self._undo = Undo(folds, arrays[1::2])

    @property
    def can_undo(self) -> bool:
        """Whether the last step can be pulled again; not right after a restore or a turn."""
        return self._undo is not None

    def peek(self, keys: Arrays) -> Arrays:
        """Weights for evaluation: an absent key is zero, and nothing is made."""
        return tuple(
            table.weights(k, absent_initial=False)
            for table, k in zip(self.tables, keys, strict=True)
        )

    def apply(
        self, lanes: Mapping[int, Contribution], counted: Container[int] | None = None
    ) -> None:
        """Apply the step: fold the lanes in ascending order, then one optimiser step.

        Parameters
        ----------
        lanes
            The contribution of each active lane.
        counted
            Partitions whose lanes count for the progress; all if not given.
        """
        ordered = [lanes[lane] for lane in sorted(lanes)]
        for lane in sorted(lanes):
            partition = lane % self.model.partitions
            if counted is None or partition in counted:
                self.progress.add(partition, lanes[lane].loss_sum, lanes[lane].scores)
        step_rows = sum(part.rows for part in ordered)
        folds, before = [], []
        for number, table in enumerate(self.tables):
            parts = [(p.keys[number], p.gradients[number], p.counts[number]) for p in ordered]
            fold = Fold.of(parts, table.spec.dim)
            folds.append(fold)
            before.append(table.step(fold.keys, fold.gradient, fold.counts, step_rows))
        self._undo = Undo(tuple(folds), tuple(before))
        self.step += 1
        self.rows_seen += step_rows

    def apply_late(self, parts: Sequence[Contribution], staleness: int, scale: float = 1.0) -> None:
        """Apply batches together: fold them as they come, then one optimiser step.

        Parameters
        ----------
        parts
        staleness
            Of the weights that they were computed with.
        scale
            What their sum is multiplied by.
        """
        step_rows = sum(part.rows for part in parts)
        for number, table in enumerate(self.tables):
            fold = Fold.of(
                [(p.keys[number], p.gradients[number], p.counts[number]) for p in parts],
                table.spec.dim,
            )
            table.step_stale(*fold, step_rows, staleness, scale)

    def compensated(
        self, keys: Arrays, gradients: Arrays, counts: Arrays, then: Arrays, rate: float
    ) -> Arrays:
        """Gradients of the weights ``then``, as far as possible those at the present weights.

        ``rate`` is the lambda of ``ctrps.kernels.delay``.
        """
        now, out = self.pull(keys), tuple(np.empty_like(g) for g in gradients)
        for arrays in zip(gradients, counts, now, then, out, strict=True):
            g, count, present, past, result = arrays
            args = (_fixed(g), _fixed(count), present, past)
            delay.compensate(*args, np.float32(rate), result)
        return out

    def turn(self, pass_: int) -> None:
        """Begin another pass."""
        self.pass_, self.step, self.rows_seen, self._undo = pass_, 0, 0, None
        self.progress.clear()

    def snapshot(self, marks: np.ndarray | None = None) -> list[PartitionState]:
        """A copy of all partitions, rows in key order.

        Parameters
        ----------
        marks : int32[partitions, lanes] or None
        """
        per_table = [table.snapshot(self.model.partition_bits) for table in self.tables]
        return [
            PartitionState(
                list(sets),
                NO_MARKS if marks is None else marks[partition].copy(),
                self.progress.save(partition),
            )
            for partition, sets in enumerate(zip(*per_table, strict=True))
        ]

    def load(self, tables: Sequence[RowSet]) -> None:
        """Add the rows of one saved partition."""
        for table, saved in zip(self.tables, tables, strict=True):
            table.load(saved)

    @property
    def size_bytes(self) -> int:
        return sum(table.size_bytes for table in self.tables)

    @property
    def keys_held(self) -> int:
        """Keys of the data that have a row; the intercept, in a table of its own, is none."""
        return self.tables[0].used
