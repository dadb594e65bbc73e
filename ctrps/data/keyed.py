"""Parquet that holds keys, as rows and as a file to write; and columns of scores.

What other Parquet files hold is ``ctrps.data.parquet``'s business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ctrps.data.parquet import (
    BATCH_ROWS,
    bytes_of,
    guarded,
    is_parquet,
    load_pyarrow,
    open_file,
    texts_of,
)
from ctrps.data.rows import Ids, Rows, Schema
from ctrps.data.textout import new_file
from ctrps.errors import DataError

KEYED = b"ctrps.schema"
"""Metadata of a file that holds keys: its ``Schema``."""

GROUP_ROWS = 1 << 16
"""Rows of a row group that is written."""


def is_keyed(path: Path) -> bool:
    """Whether a Parquet file holds keys, as ``keys_file`` writes them.

    Raises
    ------
    DataError
        As ``TableText``.
    """
    return is_parquet(path) and KEYED in (open_file(path).metadata.metadata or {})


class KeyedReader:
    """Rows of a file that holds keys.

    Raises
    ------
    DataError
        When the file is damaged, or its columns are not those of ``keys_file``.
    """

    def __init__(self, path: Path):
        self._path, self._file = path, open_file(path)
        try:
            self.schema = Schema.from_dict(json.loads(self._file.metadata.metadata[KEYED]))
        except (ValueError, DataError) as error:
            raise self._damaged(str(error)) from None
        self._check_columns()

    def _check_columns(self) -> None:
        arrow, found = load_pyarrow(str(self._path)), self._file.schema_arrow
        needed = {"label", "slots", "keys"} | ({"dense"} if self.schema.dense else set())
        if lacks := needed - {*found.names}:
            raise self._damaged(f"no column {min(lacks)!r}")
        lists = {"slots": arrow.uint16(), "keys": arrow.uint64()}
        lists |= dict.fromkeys(("values", "dense"), arrow.float32())
        wanted = {name: arrow.list_(kind) for name, kind in lists.items()}
        wanted |= {"label": arrow.int8(), "id": arrow.string()}
        for field in found:
            if found.names.count(field.name) > 1 or field.type != wanted.get(field.name):
                raise self._damaged(f"column {field.name!r} of {field.type}")

    def __iter__(self) -> Iterator[Rows]:
        # Counts of slots take rows x slots numbers.
        size = max(64, min(BATCH_ROWS, (1 << 20) // max(len(self.schema.slots), 1)))
        with guarded(self._path):
            for batch in self._file.iter_batches(size, use_threads=False):
                yield self._rows(batch, {*batch.schema.names})

    def _rows(self, batch: Any, names: set[str]) -> Rows:
        rows, width, numbers = batch.num_rows, len(self.schema.slots), len(self.schema.dense)
        keys, starts = self._lists(batch, "keys", np.uint64)
        values = self._beside(batch, "values", np.float32, starts) if "values" in names else None
        dense = np.empty((rows, 0), np.float32)
        if numbers:
            found = self._beside(batch, "dense", np.float32, np.arange(rows + 1) * numbers)
            dense = found.reshape(rows, numbers)
        slots = self._beside(batch, "slots", np.uint16, starts)
        places = np.repeat(np.arange(rows), np.diff(starts)) * width + slots
        if (np.diff(places) < 0).any() or (len(slots) and int(slots.max()) >= width):
            raise self._damaged("its slots are in no order, or have no name")
        counts = np.bincount(places, minlength=rows * width).astype(np.int32)
        labels = batch.column("label").to_numpy(zero_copy_only=False).astype(np.float32)
        if not (np.isnan(labels) | (labels == 0) | (labels == 1)).all():
            raise self._damaged("a label other than 0 and 1")
        ids = self._ids(batch) if "id" in names else None
        return Rows(keys, counts.reshape(rows, width), values, dense, labels, ids)

    def _beside(self, batch: Any, name: str, kind: type, starts: np.ndarray) -> np.ndarray:
        """The values of a column of lists that must be as long as others."""
        values, found = self._lists(batch, name, kind)
        if not np.array_equal(found, starts):
            raise self._damaged(f"lists of column {name!r} have another length")
        return values

    def _lists(self, batch: Any, name: str, kind: type) -> tuple[np.ndarray, np.ndarray]:
        """The values of a column of lists, and where each row's begin and end."""
        column = batch.column(name)
        starts = column.offsets.to_numpy()
        values = column.flatten().to_numpy(zero_copy_only=False)
        # With a null among them, whole numbers are not of their kind, and others not finite.
        if column.null_count or values.dtype != kind or not np.isfinite(values).all():
            raise self._damaged(f"column {name!r} is not of lists of {np.dtype(kind)}")
        return values, starts - starts[0]

    def _ids(self, batch: Any) -> Ids:
        texts = texts_of(load_pyarrow(str(self._path)), batch.column("id"))
        ends = np.cumsum(np.diff(np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :]))
        return bytes_of(texts), ends[: len(texts)]

    def _damaged(self, reason: str) -> DataError:
        what = f"a damaged file of keys ({reason})"
        return DataError(what, where=str(self._path), hint="convert the data again")


class _ColumnsFile:
    """Writes columns, row group by row group; the first ones fix their types."""

    def __init__(self, file: BinaryIO, path: Path):
        self._arrow, self._file, self._path = load_pyarrow(str(path)), file, path
        self._waiting: list[Any] = []
        self._rows = 0
        self._writer: Any = None

    def add(self, columns: dict[str, Any]) -> None:
        self._waiting.append(self._arrow.record_batch(columns))
        self._rows += self._waiting[-1].num_rows
        if self._rows >= GROUP_ROWS:
            self._flush()

    def text(self, ids: Ids) -> Any:
        """Texts of rows as a column."""
        arrow, (data, ends) = self._arrow, ids
        borders = arrow.py_buffer(np.append(0, ends).astype(np.int64))
        texts = arrow.LargeStringArray.from_buffers(len(ends), borders, arrow.py_buffer(data))
        try:
            texts.validate(full=True)
        except arrow.ArrowInvalid:
            what = "a text is no UTF-8, which texts of Parquet must be"
            raise DataError(what, where=str(self._path), hint="write csv or a shard") from None
        return texts.cast(arrow.string())

    def column(self, values: list[str] | np.ndarray) -> Any:
        """Texts or numbers as a column."""
        return (
            self.numbers(values) if isinstance(values, np.ndarray) else self.text(_joined(values))
        )

    def numbers(self, values: np.ndarray, nulls: np.ndarray | None = None) -> Any:
        return self._arrow.array(values, mask=nulls)

    def lists(self, starts: np.ndarray, values: np.ndarray) -> Any:
        """Row i of the column has the values from ``starts[i]`` to ``starts[i + 1]``."""
        array = self._arrow.array(np.ascontiguousarray(values))
        return self._arrow.ListArray.from_arrays(starts.astype(np.int32), array)

    def _flush(self) -> None:
        if self._waiting:
            table = self._arrow.Table.from_batches(self._waiting)
            if self._writer is None:
                self._writer = self._arrow.parquet.ParquetWriter(
                    self._file, table.schema, compression="zstd"
                )
            self._writer.write_table(table)
            self._waiting, self._rows = [], 0

    def close(self, metadata: dict[bytes, str] | None = None) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.add_key_value_metadata(metadata or {})
            self._writer.close()


@contextmanager
def keys_file(path: Path) -> Iterator[Callable[[Rows, Schema], None]]:
    """A file that takes rows, and its name when it is complete.

    Its columns are ``label`` (int8, null for none); ``id``, if rows have ids; and lists: ``slots``
    (uint16) and ``keys`` (uint64) side by side, ``values`` (float32) beside them if keys weigh by
    their values, and ``dense`` (float32) if there are numbers. The metadata names slots and
    numbers.

    Raises
    ------
    DataError
        It cannot be written.
    """
    with new_file(path) as file:
        columns = _ColumnsFile(file, path)
        last = Schema(())

        def add(rows: Rows, schema: Schema) -> None:
            nonlocal last
            last = schema
            columns.add(_keyed(columns, rows, schema))

        yield add
        columns.close({KEYED: json.dumps(last.to_dict())})


def _keyed(columns: _ColumnsFile, rows: Rows, schema: Schema) -> dict[str, Any]:
    unlabelled = np.isnan(rows.labels)
    labels = np.where(unlabelled, 0, rows.labels).astype(np.int8)
    starts, width = rows.starts(), rows.counts.shape[1]
    slots = np.repeat(
        np.tile(np.arange(width, dtype=np.uint16), rows.rows), rows.counts.reshape(-1)
    )
    found = {"label": columns.numbers(labels, unlabelled)}
    if rows.ids is not None:
        found["id"] = columns.text(rows.ids)
    found |= {"slots": columns.lists(starts, slots), "keys": columns.lists(starts, rows.keys)}
    if schema.weights == "value":
        values = np.ones(len(rows.keys), np.float32) if rows.values is None else rows.values
        found["values"] = columns.lists(starts, values)
    if schema.dense:
        borders = np.arange(rows.rows + 1) * len(schema.dense)
        found["dense"] = columns.lists(borders, rows.dense.reshape(-1))
    return found


def write_parquet(
    parts: Iterable[tuple[list[str] | None, dict[str, list[str] | np.ndarray]]],
    names: Sequence[str],
    path: Path,
) -> int:
    """Write ids, if there are any, as column ``id``, and other columns of texts and numbers.

    Parameters
    ----------
    parts
        Ids and columns of some rows, the last one of numbers.
    names
        Of the columns, should there be no rows.
    path

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    DataError
        The file cannot be written, or a text is no UTF-8.
    """
    rows = 0
    with new_file(path) as file:
        columns = _ColumnsFile(file, path)
        for ids, found in parts:
            every = found if ids is None else {"id": ids, **found}
            columns.add({name: columns.column(values) for name, values in every.items()})
            rows += len(every[names[-1]])
        if not rows:
            *texts, numbers = names
            empty = dict.fromkeys(texts, columns.column([]))
            columns.add(empty | {numbers: columns.column(np.empty(0, np.float64))})
        columns.close()
    return rows


def _joined(texts: list[str]) -> Ids:
    pieces = [text.encode("utf-8", "surrogateescape") for text in texts]
    return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum([len(piece) for piece in pieces])
