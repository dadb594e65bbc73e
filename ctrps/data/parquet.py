"""Parquet tables as the csv text that they stand for, so that both give the same keys.

What a value's text is, ``docs/formats.md`` says; Parquet that holds keys, and writing, are
``ctrps.data.keyed``'s business. pyarrow is imported when the first file is opened.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.errors import DataError

MAGIC = b"PAR1"
BATCH_ROWS = 1 << 13
"""Rows decoded at a time: as csv about a megabyte."""

BUFFER_BYTES = 1 << 20
"""Bytes of a column read at a time; without a limit a row group's column is read as a whole."""

EXACT = float(1 << 53)
"""Below it a float64 tells each whole number from the next."""

SPECIAL = np.frombuffer(b'",\r\n', np.uint8)
"""A value with one of these is quoted in csv."""

FIELD_BYTES = 8
"""Text of a value with its comma, roughly."""


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet files do; False if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def table_rows(path: Path) -> int:
    """Rows of a file."""
    return int(open_file(path).metadata.num_rows)


def about_bytes(path: Path) -> int:
    """Bytes of a table as text, about; it follows from the numbers of rows and columns."""
    file = open_file(path)
    return int(file.metadata.num_rows) * len(file.schema_arrow) * FIELD_BYTES


def text_bytes(path: Path) -> int:
    """Bytes of a table as text; reads all of it."""
    return sum(map(len, TableText(path).lines))


def load_pyarrow(where: str) -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        hint = "install it: pip install 'ctrps[parquet]'"
        raise DataError(
            "Parquet needs the package pyarrow", where=where, hint=hint, id="E-PACKAGE"
        ) from None
    return pyarrow


@contextmanager
def guarded(path: Path) -> Iterator[Any]:
    """pyarrow; its errors become one that names the file."""
    arrow = load_pyarrow(str(path))
    try:
        yield arrow
    except (arrow.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        what = f"a damaged Parquet file, or one that is cut short ({reason})"
        raise DataError(what, where=str(path), hint="copy or make it again") from None


def open_file(path: Path) -> Any:
    with guarded(path) as arrow:
        return arrow.parquet.ParquetFile(
            path, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        )


class TableText:
    """A Parquet table as the bytes of a csv file: a header, and a line for each row.

    Parameters
    ----------
    path
    ignore
        Names of columns that are left out, and not read at all.

    Attributes
    ----------
    rows : int
        Rows of the file.
    read_rows : int
        Rows handed out so far.
    lines : iterator of buffers
        What ``readinto`` hands out, in pieces of many lines.

    Raises
    ------
    DataError
        Naming the file: pyarrow is not there, the file is damaged, or a column holds lists or
        other values that csv has no text for.
    """

    def __init__(self, path: Path, ignore: Collection[str] = ()):
        file = open_file(path)
        self.rows, self.read_rows = int(file.metadata.num_rows), 0
        self._path = path
        kept = [field for field in file.schema_arrow if field.name not in ignore]
        for field in kept:
            _check_type(load_pyarrow(str(path)), field, path)
        names = [field.name for field in kept]
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            hint = "rename or remove one of them"
            raise DataError(
                f"two columns are named {twice[0]!r}",
                where=str(path),
                hint=hint,
                id="E-DATA-COLUMN",
            )
        self.lines = self._text(file, names)
        self._rest = memoryview(b"")

    def readinto(self, memory: memoryview) -> int:
        """Fill ``memory``, at least in part; 0 at the end."""
        while not self._rest:
            lines = next(self.lines, None)
            if lines is None:
                return 0
            self._rest = memoryview(lines)
        part = self._rest[: len(memory)]
        memory[: len(part)] = part
        self._rest = self._rest[len(part) :]
        return len(part)

    def _text(self, file: Any, names: list[str]) -> Iterator[Any]:
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(names)
        yield header.getvalue().encode()
        if not names:
            return
        with guarded(self._path) as arrow:
            for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                self.read_rows += batch.num_rows
                if batch.num_rows:
                    if batch.schema.names != names:
                        # Of names with dots, one may stand for several columns.
                        batch = batch.select(names)
                    yield _lines(arrow, batch)


def _check_type(arrow: Any, field: Any, path: Path) -> None:
    types, kind = arrow.types, _plain(field.type)
    tests = (
        types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null,
        types.is_string, types.is_large_string, types.is_string_view, types.is_binary,
        types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary, types.is_date,
        types.is_time, types.is_timestamp,
    )  # fmt: skip
    if not any(test(kind) for test in tests):
        what = f"column {field.name!r} holds {field.type}, which no text of a table can be"
        hint = "leave it out with data.ignore, or write the file without it"
        raise DataError(what, where=str(path), hint=hint)


def _plain(kind: Any) -> Any:
    """The type of the values behind a dictionary or an extension."""
    while hasattr(kind, "storage_type") or hasattr(kind, "value_type"):
        inner = getattr(kind, "storage_type", None)
        if inner is None and not hasattr(kind, "index_type"):
            return kind
        kind = kind.value_type if inner is None else inner
    return kind


def _lines(arrow: Any, batch: Any) -> Any:
    """Rows as csv lines: a buffer of their bytes."""
    texts = [_quoted(arrow, texts_of(arrow, column), batch.num_columns) for column in batch.columns]
    compute, kind = arrow.compute, arrow.large_binary()
    end = arrow.scalar(b"\n", kind)
    texts[-1] = compute.binary_join_element_wise(texts[-1], end, arrow.scalar(b"", kind))
    if len(texts) > 1:
        texts = [compute.binary_join_element_wise(*texts, arrow.scalar(b",", kind))]
    return bytes_of(texts[0])


def bytes_of(texts: Any) -> np.ndarray:
    """The bytes of a large_binary array, uint8[n]."""
    _, borders, data = texts.buffers()
    ends = np.frombuffer(borders, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    size = int(ends[-1] - ends[0])
    if not size:
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8, size, int(ends[0]))


def texts_of(arrow: Any, column: Any) -> Any:
    """Values as a large_binary array without nulls: an empty text stands for them."""
    compute, types = arrow.compute, arrow.types
    kind = column.type
    while kind != _plain(kind):
        column = column.storage if hasattr(kind, "storage_type") else column.dictionary_decode()
        kind = column.type
    if types.is_boolean(kind):
        column = column.cast(arrow.int8())
    elif types.is_floating(kind):
        column = _float_texts(arrow, column)
    elif types.is_timestamp(kind):
        column = _seconds_texts(arrow, column)
    elif types.is_date64(kind):
        column = column.cast(arrow.date32())
    if not (types.is_binary(column.type) or types.is_large_binary(column.type)):
        # What is already text passes unchanged, whether UTF-8 or not.
        binary = types.is_fixed_size_binary(column.type) or types.is_binary_view(column.type)
        text = arrow.large_binary() if binary else arrow.large_string()
        column = column.cast(text)
    column = column.cast(arrow.large_binary())
    return compute.fill_null(column, b"") if column.null_count else column


def _float_texts(arrow: Any, column: Any) -> Any:
    """Whole numbers as integers are written, others as the shortest text that reads back."""
    compute = arrow.compute
    if arrow.types.is_float16(column.type):
        column = column.cast(arrow.float32())
    whole = compute.and_(
        compute.equal(compute.trunc(column), column), compute.less(compute.abs(column), EXACT)
    )
    zero = arrow.scalar(0, column.type)
    integers = compute.if_else(whole, column, zero).cast(arrow.int64()).cast(arrow.large_string())
    if compute.all(whole).as_py() in (True, None):
        return integers
    return compute.if_else(whole, integers, column.cast(arrow.large_string()))


def _seconds_texts(arrow: Any, column: Any) -> Any:
    """Seconds since 1970, with the digits behind the point that are not 0."""
    compute, string = arrow.compute, arrow.large_string()
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[column.type.unit]
    ticks, second = column.cast(arrow.int64()), 10**digits
    size = compute.abs(ticks)
    seconds = compute.divide(size, second)
    rest = compute.subtract(size, compute.multiply(seconds, second))
    text = seconds.cast(string)
    if compute.any(compute.not_equal(rest, 0)).as_py():
        behind = compute.utf8_rtrim(
            compute.utf8_lpad(rest.cast(string), width=digits, padding="0"), characters="0"
        )
        dot = compute.if_else(compute.equal(rest, 0), "", ".").cast(string)
        text = compute.binary_join_element_wise(text, dot, behind, arrow.scalar("", string))
    minus = compute.if_else(compute.less(ticks, 0), "-", "").cast(string)
    return compute.binary_join_element_wise(minus, text, arrow.scalar("", string))


def _quoted(arrow: Any, texts: Any, columns: int) -> Any:
    """Texts in quotes where csv needs them; a line of a single column must not be blank."""
    alone = columns == 1
    if not alone and not np.isin(bytes_of(texts), SPECIAL).any():
        return texts
    compute, kind = arrow.compute, arrow.large_binary()
    doubled = compute.replace_substring(texts, pattern=b'"', replacement=b'""')
    quote, nothing = arrow.scalar(b'"', kind), arrow.scalar(b"", kind)
    quoted = compute.binary_join_element_wise(quote, doubled, quote, nothing)
    if alone:
        return quoted
    needs = compute.match_substring_regex(texts, pattern=rb'[",\r\n]')
    return compute.if_else(needs, quoted, texts)
