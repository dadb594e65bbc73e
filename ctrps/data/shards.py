"""Feature shards: rows as numbers on disk, in blocks that hold their distinct keys once.

A shard is a frame file of kind ``"shard"`` (``ctrps.codec``). Record i is block i::

    header   {"values": bool, "ids": bool}
    arrays   keys, index, counts, dense, labels [, values] [, ids, ends]

and the trailer's meta is ``{"schema", "rows", "block_rows", "meta"}``. Blocks have
``block_rows`` rows each, the last one fewer.

Where rows come from (``formats``, ``extract``) and what a minibatch makes of them
(``batches``) is not known here.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ctrps.codec import CodecError, FileDigest, FrameFile, FrameFileWriter
from ctrps.data.numbers import fewer_numbers, narrow, narrowed
from ctrps.data.rows import MAX_NAMES, Ids, Rows, Schema, joined, widened
from ctrps.errors import DataError
from ctrps.kernels import sketch
from ctrps.kernels.csr import dedup_keys, take_numbers
from ctrps.kernels.keys import grouped, index_capacity

KIND = "shard"

THREADS = min(8, os.cpu_count() or 1)
"""Threads of a writer whose caller does not say how many."""


Keep = Callable[[np.ndarray], np.ndarray]
"""Which of some keys, uint64[k], are to stay: bool[k]."""

BITS = 8
"""Logarithm of the most partitions that a job may have."""


class KeyNumbers:
    """Numbers the keys of a block; holds the memory it needs, for the blocks to come."""

    def __init__(self) -> None:
        self._index = np.zeros(0, np.int32)
        self._distinct = np.empty(0, np.uint64)
        self._local = np.empty(0, np.int32)
        self._borders = np.empty((1 << BITS) + 1, np.int32)

    def number(self, keys: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distinct keys, with ``last`` at the end whether they occur or not.

        Before these they are grouped by partition, of however many partitions,
        and inside the smallest ones in the order of their first touch.

        Parameters
        ----------
        keys : uint64[n]
        last : uint64[d], distinct

        Returns
        -------
        distinct : uint64[k]
        index : uint16 or uint32[n]
            ``distinct[index] == keys``; two bytes where they do.
        """
        d = len(last)
        # ``last`` is numbered first, so that it is there.
        distinct, local = self.local(np.concatenate([last, keys]) if d else keys)
        count = len(distinct)
        order = np.empty(count - d, np.int64)
        grouped(distinct[d:], BITS, order, self._borders)
        order = np.concatenate([order + d, np.arange(d)]) if d else order
        number = np.empty(count, narrow(count))
        number[order] = np.arange(count, dtype=number.dtype)
        index = np.empty(len(keys), number.dtype)
        take_numbers(number, local[d:], index)
        return distinct[order], index

    def local(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distinct keys in the order of their first touch, uint64[k], and numbers, int32[n].

        They stay valid until the next call.
        """
        keys = np.ascontiguousarray(keys)
        capacity = index_capacity(len(keys))
        if len(self._index) < capacity:
            self._index = np.zeros(capacity, np.int32)
            self._distinct = np.empty(capacity, np.uint64)
            self._local = np.empty(capacity, np.int32)
        local = self._local[: len(keys)]
        count = dedup_keys(keys, self._index[:capacity], self._distinct, local)
        return self._distinct[:count], local


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows over their distinct keys: what a shard holds, and batches are made of.

    Attributes
    ----------
    keys : uint64[k]
        Distinct; the last d are the keys of the dense features, used or not. Those
        before come by partition, which saves work where batches are made; in
        shards of older versions they do not.
    index : uint16 or uint32[nnz]
        Each key of each row, in row order, as a number into ``keys``.
    counts : uint8, uint16 or uint32[rows, slots]
    values : float32[nnz] or None
        None: see ``Schema.weights``.
    dense : float32[rows, d]
    labels : float32[rows]
    ids : (uint8[n], int64[rows]) or None
    """

    keys: np.ndarray
    index: np.ndarray
    counts: np.ndarray
    values: np.ndarray | None
    dense: np.ndarray
    labels: np.ndarray
    ids: Ids | None = None

    @property
    def rows(self) -> int:
        return len(self.labels)

    @classmethod
    def from_rows(
        cls,
        rows: Rows,
        schema: Schema,
        numbers: KeyNumbers | None = None,
        keep: Keep | None = None,
    ) -> Block:
        """Number the keys of ``rows`` and choose the narrowest types that hold them.

        ``numbers`` saves time where many blocks are made. Keys that ``keep`` does not want are
        left out of the rows, which then have no values.
        """
        keys, index = (numbers or KeyNumbers()).number(rows.keys, schema.dense_keys())
        if keep is not None:
            kept, counts = keep(keys), rows.counts.copy()
            kept[len(keys) - len(schema.dense) :] = True
            keys, index = keys[kept], fewer_numbers(index, counts, kept)
            rows = replace(rows, counts=counts)
        values = rows.values
        if values is not None and (values == 1).all():
            values = None
        counts = narrowed(rows.counts)
        return cls(keys, index, counts, values, rows.dense, rows.labels, rows.ids)

    def to_rows(self) -> Rows:
        """The rows that the block was made of; values that are all 1 become None."""
        counts = self.counts.astype(np.int32)
        return Rows(self.keys[self.index], counts, self.values, self.dense, self.labels, self.ids)

    def check(self, schema: Schema) -> None:
        """Raise DataError unless the arrays fit each other and ``schema``.

        Kernels index by these numbers without looking, so a file may not lie.
        """
        k, rows, nnz = len(self.keys), len(self.labels), len(self.index)
        good = (
            _is(self.keys, "u8", k)
            and (_is(self.index, "u2", nnz) or _is(self.index, "u4", nnz))
            and self.counts.dtype.kind == "u"
            and self.counts.shape == (rows, len(schema.slots))
            and _is(self.dense, "f4", rows, len(schema.dense))
            and _is(self.labels, "f4", rows)
            and (self.values is None or _is(self.values, "f4", nnz))
            and k >= len(schema.dense)
            and int(self.counts.sum(dtype=np.uint64)) == nnz
            and int(self.index.max(initial=0)) < max(k, 1)
            and (k > 0 or nnz == 0)
            and (self.ids is None or _fits(self.ids, rows))
        )
        if not good:
            raise DataError("the arrays of a block do not fit each other")


def _is(array: np.ndarray, dtype: str, *shape: int) -> bool:
    return array.dtype == dtype and array.shape == shape


def _fits(ids: Ids, rows: int) -> bool:
    text, ends = ids
    if not (_is(text, "u1", len(text)) and _is(ends, "i8", rows)):
        return False
    borders = np.concatenate([[0], ends])
    return bool((np.diff(borders) >= 0).all()) and int(borders[-1]) == len(text)


class ShardWriter:
    """Writes a shard, whole or not at all.

    Rows go to a temporary name beside ``path`` until ``close``. Leaving the
    context without an exception closes; with one, the temporary file is removed.

    Parameters
    ----------
    path
    schema
        May grow until ``close``: see ``extend``.
    block_rows
        Rows of a block; the last block of the file may have fewer.
    meta
        JSON-like settings to keep with the rows, for people and caches; the
        attribute ``meta`` may be changed until ``close``.
    threads
        Make blocks while the caller reads the next rows.

    Examples
    --------
    >>> import tempfile
    >>> rows = Rows(np.uint64([7, 9, 7]), np.int32([[2], [1]]), None,
    ...             np.zeros((2, 0), np.float32), np.float32([1, 0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.shard"
    ...     with ShardWriter(path, Schema(("user",)), block_rows=4096) as writer:
    ...         writer.add(rows)
    ...     block = Shard(path).block(0)
    >>> block.keys[block.index], block.index.dtype
    (array([7, 9, 7], dtype=uint64), dtype('uint16'))
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        block_rows: int = 4096,
        meta: dict[str, Any] | None = None,
        threads: int = THREADS,
    ):
        _check_size(schema, path)
        if block_rows < 1:
            raise ValueError(f"a block must have rows, not {block_rows}")
        self.path = path
        self.schema = schema
        self.rows = 0
        self._block_rows = block_rows
        self.meta = dict(meta or {})
        self._most_left = 2 * threads
        self._waiting: list[Rows] = []
        self._waiting_rows = 0
        self._numbers: list[KeyNumbers] = []
        self._sketch = sketch.empty()
        self._threads = ThreadPoolExecutor(threads)
        self._making: deque[Future[Block]] = deque()
        self._file = FrameFileWriter(path, KIND)

    def extend(self, schema: Schema) -> None:
        """Take ``schema``, of which the rows so far are rows too, for those to come.

        Raises
        ------
        ValueError
            When they are not: ``schema`` does not extend the writer's.
        """
        if not schema.extends(self.schema):
            raise ValueError(f"{schema} does not extend {self.schema}")
        _check_size(schema, self.path)
        self.schema = schema

    def add(self, rows: Rows) -> None:
        """Append rows; writes every block that they fill.

        Raises
        ------
        ValueError
            When the rows are not of the writer's schema, or their arrays do not
            fit each other.
        """
        self._validate(rows)
        starts, first = rows.starts(), 0
        while first < rows.rows:
            last = min(first + self._block_rows - self._waiting_rows, rows.rows)
            self._waiting.append(rows.part(first, last, starts))
            self._waiting_rows += last - first
            first = last
            if self._waiting_rows == self._block_rows:
                self._write()

    def close(self) -> FileDigest:
        """Write what is left, make the file durable and give it its name."""
        if self._waiting:
            self._write()
        self._append(most_left=0)
        trailer = {
            "schema": self.schema.to_dict(),
            "rows": self.rows,
            "block_rows": self._block_rows,
            "meta": self.meta,
            "sketch": self._sketch.tobytes(),
        }
        return self._file.close(trailer)

    def _validate(self, rows: Rows) -> None:
        n, slots, dense = rows.rows, len(self.schema.slots), len(self.schema.dense)
        if rows.counts.shape != (n, slots) or rows.dense.shape != (n, dense):
            raise ValueError(f"rows of another schema than {self.schema}")
        nnz = len(rows.keys)
        values = nnz if rows.values is None else len(rows.values)
        if int(rows.counts.sum(dtype=np.int64)) != nnz or values != nnz:
            raise ValueError("counts, keys and values of rows do not fit each other")
        if rows.values is not None and self.schema.weights == "mean":
            raise ValueError("rows with values under a schema whose weights are means")
        if self._waiting and (rows.ids is None) != (self._waiting[0].ids is None):
            raise ValueError("rows with and without ids in one shard")

    def _write(self) -> None:
        """Have a thread make a block of the rows that wait; append those that are ready."""
        rows, self._waiting, self._waiting_rows = self._waiting, [], 0
        self._making.append(self._threads.submit(self._block, rows, self.schema))
        self._append(most_left=self._most_left)

    def _block(self, rows: list[Rows], schema: Schema) -> Block:
        numbers = self._numbers.pop() if self._numbers else KeyNumbers()
        block = Block.from_rows(joined(rows), schema, numbers)
        self._numbers.append(numbers)
        return block

    def _append(self, most_left: int) -> None:
        """Append blocks in their order until no more than ``most_left`` are being made."""
        while len(self._making) > most_left:
            self.add_block(self._making.popleft().result())

    def add_block(self, block: Block) -> None:
        """Append a block that the caller has made, alone or after whole blocks of rows.

        It has ``block_rows`` rows, or fewer if it is the last one.
        """
        arrays = [block.keys, block.index, block.counts, block.dense, block.labels]
        if block.values is not None:
            arrays.append(block.values)
        if block.ids is not None:
            arrays.extend(block.ids)
        header = {"values": block.values is not None, "ids": block.ids is not None}
        sketch.sketch_add(block.keys, self._sketch)
        self._file.append(header, arrays)
        self.rows += block.rows

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._threads.shutdown(cancel_futures=True)
            self._file.__exit__(kind, error, at)


def _check_size(schema: Schema, path: Path) -> None:
    if max(len(schema.slots), len(schema.dense)) > MAX_NAMES:
        what = f"{len(schema.slots)} categories and {len(schema.dense)} numbers in a row"
        raise DataError(what, where=str(path), hint=f"a shard holds at most {MAX_NAMES} each")


class Shard:
    """A shard on disk; opening it reads and checks the trailer only.

    Attributes
    ----------
    path : Path
    schema : Schema
    rows : int
    block_rows : int64[blocks]
        Rows of each block.
    digest : str
        Hash that vouches for all of the file's content.
    meta : dict
        As given to ``ShardWriter``.
    sketch : uint8[REGISTERS] or None
        Of all keys (``ctrps.kernels.sketch``); shards of earlier versions have none.

    Raises
    ------
    DataError
        When the file is missing, unfinished, damaged or no shard; also by
        ``block``, which names the record.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            self._file = FrameFile(self.path, KIND)
        except CodecError as error:
            raise _damaged(error) from None
        except OSError as error:
            raise DataError(
                f"cannot read it: {error.strerror}", where=str(path), id="E-DATA-MISSING"
            ) from None
        self.digest = self._file.digest
        self._read_trailer(self._file.meta)

    def _read_trailer(self, found: dict[str, Any]) -> None:
        rows, size, meta = found.get("rows"), found.get("block_rows"), found.get("meta")
        blocks = self._file.records
        if not (isinstance(rows, int) and isinstance(size, int) and isinstance(meta, dict)):
            rows, size, meta = -1, 0, {}
        if rows < 0 or not 1 <= size < 1 << 62 or -(-rows // size) != blocks:
            raise DataError("its trailer is not that of a shard", where=str(self.path))
        try:
            self.schema = Schema.from_dict(found.get("schema"))
        except DataError as error:
            raise DataError(error.what, where=str(self.path)) from None
        self.rows = rows
        self.meta = meta
        registers = found.get("sketch")
        self.sketch: np.ndarray | None = None
        if isinstance(registers, bytes) and len(registers) == sketch.REGISTERS:
            self.sketch = np.frombuffer(registers, np.uint8)
        self.block_rows = np.full(blocks, size, np.int64)
        if blocks:
            self.block_rows[-1] = rows - size * (blocks - 1)

    def block(self, number: int) -> Block:
        """Read block ``number`` and verify its checksums; the block owns its arrays."""
        try:
            header, arrays = self._file.read(number)
            block = _block(header, arrays)
            if self.schema.weights == "value" and block.counts.ndim == 2:
                # The schema may have grown behind this block.
                block = replace(block, counts=widened(block.counts, len(self.schema.slots)))
            block.check(self.schema)
        except CodecError as error:
            raise _damaged(error) from None
        except OSError as error:
            raise DataError(
                f"cannot read it: {error.strerror}", where=str(self.path), id="E-DATA-MISSING"
            ) from None
        except DataError as error:
            raise DataError(f"record {number}: {error.what}", where=str(self.path)) from None
        if block.rows != self.block_rows[number]:
            what = f"record {number} has {block.rows} rows, not {self.block_rows[number]}"
            raise DataError(what, where=str(self.path))
        return block

    def blocks(self) -> Iterator[Block]:
        """All blocks in order."""
        for number in range(len(self.block_rows)):
            yield self.block(number)


def _block(header: object, arrays: list[np.ndarray]) -> Block:
    if isinstance(header, dict) and header.keys() == {"values", "ids"}:
        values, ids = header["values"], header["ids"]
        if len(arrays) == 5 + bool(values) + 2 * bool(ids):
            keys, index, counts, dense, labels, *rest = arrays
            texts = (rest[-2], rest[-1]) if ids else None
            return Block(keys, index, counts, rest[0] if values else None, dense, labels, texts)
    raise DataError("it is not a block of rows")


def _damaged(error: CodecError) -> DataError:
    return DataError(error.what, where=error.where, hint="make the shard again")
