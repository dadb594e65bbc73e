"""What a model is: the layout of its rows, its prediction and its gradient.

A model is a few *tables* of rows, and three functions over a minibatch and the rows pulled for
it. The numbers are computed by ``ctrps.kernels``; where rows live, who pulls them and in which
order gradients are added is not known here.

A row is ``[weights of all parts | state of part 1 | state of part 2 …]`` in float32, so that a
pull is one contiguous copy of its first ``dim`` columns.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ctrps.config import JobConfig, OptimizerBlock
from ctrps.kernels import bfloat, clipping, losses, optimizers, store
from ctrps.kernels import keys as key_kernels
from ctrps.kernels.optimizers import Rule

INTERCEPT_KEY = key_kernels.key_of("\0intercept", "")


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows in compressed sparse form over their own distinct keys.

    Attributes
    ----------
    keys : uint64[k]
        Distinct, grouped by partition in ascending order.
    starts : int32[partitions + 1]
        ``keys[starts[p]:starts[p + 1]]`` belong to partition p.
    counts : int32[k]
        Rows of the batch that hold the key.
    indptr : int64[rows + 1]
    index : int32[nnz]
        Positions in ``keys``; distinct inside a row.
    values : float32[nnz]
    labels : float32[rows]
        0 or 1; NaN where the data has no label.
    """

    keys: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    indptr: np.ndarray
    index: np.ndarray
    values: np.ndarray
    labels: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.labels)


class KeySet(NamedTuple):
    """The distinct keys that a batch needs of one table.

    ``keys`` uint64[k] grouped by partition, ``starts`` int32[partitions + 1] the borders of the
    partitions, ``counts`` int32[k] the rows of the batch that hold each key.
    """

    keys: np.ndarray
    starts: np.ndarray
    counts: np.ndarray


class Gradient(NamedTuple):
    """The result of one batch.

    ``tables`` holds per table float32[k, dim] sums over its rows, ``loss_sum`` the summed log loss
    in nats, ``margins`` float32[rows] what the rows were scored before this gradient.
    """

    tables: tuple[np.ndarray, ...]
    loss_sum: float
    margins: np.ndarray


@dataclass(frozen=True, slots=True)
class Part:
    """Columns of a row that share an optimiser: ``w``, or FM's ``v``.

    ``at`` is the first weight column.
    ``init_scale`` is the standard deviation of a new row's weights.
    """

    name: str
    width: int
    optimizer: OptimizerBlock
    init_scale: float
    at: int


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The layout of one table's rows and how a step changes them.

    ``clip_value`` and ``clip_row`` limit what optimisers take (``kernels.clipping``); 0 is off.
    """

    name: str
    parts: tuple[Part, ...]
    clip_value: float = 0.0
    clip_row: float = 0.0

    @property
    def dim(self) -> int:
        """Weights of a row: what a pull returns and a gradient has."""
        return sum(part.width for part in self.parts)

    @property
    def width(self) -> int:
        """float32 columns of a row, optimiser state included."""
        return self.dim + sum(STATES[part.optimizer.kind] * part.width for part in self.parts)

    @property
    def head(self) -> Part | None:
        """The part that stands in the index (``ctrps.kernels.store``): a first single column."""
        first = self.parts[0]
        return first if first.width == 1 else None

    @property
    def head_width(self) -> int:
        """float32 numbers of the head, its state included."""
        return 0 if self.head is None else 1 + STATES[self.head.optimizer.kind]

    def rules(
        self, step_rows: int = 1, staleness: int = 0, scale: float = 1.0
    ) -> tuple[Rule, Rule]:
        """How the head and the rest of a row learn in one step.

        Parameters
        ----------
        step_rows : int
            Rows of the whole step, the divisor of optimisers that use the mean.
        staleness : int
            Steps that were applied since the weights of the step's gradient were read.
        scale : float
            What gradients are multiplied by, beside their own divisor.
        """
        rest = self.parts[self.head is not None :]
        step = (step_rows, staleness, scale)
        head = _NO_PART if self.head is None else _rule(self.head, store.HEAD, *step)
        tail = _rule(rest[0], 0, *step) if rest else _NO_PART
        return head, tail


_ZERO = np.float32(0)
_NO_PART = Rule(optimizers.SGD, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, 0, 0, 0, 0)


def _rule(part: Part, at: int, step_rows: int, staleness: int, scale: float) -> Rule:
    o, f = part.optimizer, np.float32
    kind = KINDS[o.kind]
    c0 = o.count_scale / (1 + STALE * staleness)
    z, n = {optimizers.FTRL: (1, 2), optimizers.ADAGRAD: (0, 1)}.get(kind, (0, 0))
    return Rule(
        kind,
        f(o.alpha),
        f(1 / o.alpha),
        f(o.beta),
        f(o.l1),
        f(o.l2),
        f(scale / max(step_rows, 1) if kind == optimizers.SGD else scale),
        f(1 / c0 if c0 else 0),
        f(part.init_scale),
        at,
        at + part.width * z,
        at + part.width * n,
        part.width,
    )


KINDS = {
    "ftrl": optimizers.FTRL,
    "adagrad": optimizers.ADAGRAD,
    "sgd": optimizers.SGD,
    "count": optimizers.COUNT,
}
STATES = {"ftrl": 2, "adagrad": 1, "sgd": 0, "count": 0}
"""State columns per weight column, by kind of optimiser."""

STALE = 2
"""How the count rule's c0 shrinks with staleness: c0 / (1 + 2 staleness).

A stale gradient of a key that stands in many rows pushes once more where others have pushed
already. At the default minibatches of 1 to 15 steps of delay this held an FM's AUC better than 3
did, on two sets of rows (``benchmarks/README.md``).
"""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of some kind: LR or FM, each with an intercept row in a table of its own.

    Attributes
    ----------
    kind : str
    dim : int
        Factors of FM; 0 for LR.
    tables : tuple of TableSpec
        ``sparse`` (one row per key of the data) and ``intercept`` (one row).
    partition_bits : int
        Base-2 logarithm of the number of partitions.
    seed : int
        Start of new rows, together with their key.
    half : bool
        Weights and gradients of the sparse table travel, and are computed with, as bfloat16.
    clip_batch : float
        Most length of the mean gradient of a batch over all its keys; 0: any.
    """

    kind: str
    dim: int
    tables: tuple[TableSpec, ...]
    partition_bits: int
    seed: int
    half: bool = False
    clip_batch: float = 0.0

    @property
    def partitions(self) -> int:
        return 1 << self.partition_bits

    def key_sets(self, batch: Minibatch) -> tuple[KeySet, ...]:
        """The keys that ``batch`` needs, one set per table."""
        keys, starts = _intercept_place(self.partition_bits)
        return (
            KeySet(batch.keys, batch.starts, batch.counts),
            KeySet(keys, starts, np.array([batch.rows], np.int32)),
        )

    def narrow(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Weights or gradients as they travel: those of the sparse table in half the bytes."""
        if not self.half:
            return arrays
        first = np.ascontiguousarray(arrays[0])
        out = np.empty(first.shape, np.uint16)
        bfloat.to_bfloat16(first.reshape(-1).view(np.uint32), out.reshape(-1))
        return (out, *arrays[1:])

    def widen(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The reverse of ``narrow``; what is float32 already stays so."""
        if not self.half or not arrays or arrays[0].dtype != np.uint16:
            return arrays
        out = np.empty(arrays[0].shape, np.float32)
        bfloat.from_bfloat16(arrays[0].reshape(-1), out.reshape(-1).view(np.uint32))
        return (out, *arrays[1:])

    def margins(self, batch: Minibatch, weights: tuple[np.ndarray, ...]) -> np.ndarray:
        """The model's log-odds, float32[rows]."""
        return self._forward(batch, weights)[0]

    def gradient(self, batch: Minibatch, weights: tuple[np.ndarray, ...]) -> Gradient:
        """Gradient of the summed log loss, clipped as a whole, and that sum in nats.

        Parameters
        ----------
        weights
            Per table float32[k, dim], parallel to ``key_sets(batch)``.
        """
        margins, sums = self._forward(batch, weights)
        residuals = np.empty_like(margins)
        loss_sum = losses.logloss_residual(margins, batch.labels, residuals)
        sparse = np.zeros_like(weights[0])
        if self.dim:
            losses.fm_gradient(
                batch.indptr, batch.index, batch.values, weights[0], sums, residuals, sparse
            )
        else:
            losses.lr_gradient(batch.indptr, batch.index, batch.values, residuals, sparse)
        tables = (sparse, losses.ordered_sum(residuals).reshape(1, 1))
        if self.clip_batch:
            self._clip(tables, batch.rows)
        return Gradient(tables, float(loss_sum), margins)

    def _clip(self, tables: tuple[np.ndarray, ...], rows: int) -> None:
        """Scale the sums down, in place, until their mean is no longer than ``clip_batch``."""
        square = sum(clipping.square_sum(table.reshape(-1)) for table in tables)
        length = math.sqrt(square) / max(rows, 1)
        if self.clip_batch < length < math.inf:
            for table in tables:
                table *= np.float32(self.clip_batch / length)

    def _forward(
        self, batch: Minibatch, weights: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        sparse, bias = weights[0], float(weights[1][0, 0])
        margins = np.empty(batch.rows, np.float32)
        sums = np.empty((batch.rows, self.dim), np.float32)
        csr = (batch.indptr, batch.index, batch.values)
        if self.dim:
            losses.fm_forward(*csr, sparse, bias, margins, sums)
        else:
            losses.lr_forward(*csr, sparse, bias, margins)
        return margins, sums


@functools.cache
def _intercept_place(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The intercept's key, uint64[1], and where it lies among the partitions, int32[P + 1]."""
    keys = np.array([INTERCEPT_KEY], np.uint64)
    partition = np.empty(1, np.int32)
    key_kernels.partition_of(keys, bits, partition)
    return keys, (np.arange((1 << bits) + 1) > partition[0]).astype(np.int32)


def build(job: JobConfig) -> Model:
    """The model that a job describes."""
    dim = job.model.dim if job.model.kind == "fm" else 0
    sparse = [("w", 1, 0.0)] + ([("v", dim, job.model.init_scale)] if dim else [])
    return Model(
        kind=job.model.kind,
        dim=dim,
        tables=(
            _table("sparse", sparse, job),
            _table("intercept", [("intercept", 1, 0.0)], job),
        ),
        partition_bits=job.train.partitions.bit_length() - 1,
        seed=job.train.seed,
        half=job.train.transfer == "bfloat16",
        clip_batch=job.train.clip_batch,
    )


def _table(name: str, widths: list[tuple[str, int, float]], job: JobConfig) -> TableSpec:
    parts, at = [], 0
    for part, width, init_scale in widths:
        parts.append(Part(part, width, job.optimizer_for(part), init_scale, at))
        at += width
    return TableSpec(name, tuple(parts), job.train.clip_value, job.train.clip_row)
