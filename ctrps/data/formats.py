"""Readers of text with examples: libsvm, csv and tsv, plain or gzip.

A reader yields ``Rows`` in the order of the file and reports what it cannot
read to ``BadRows``. Values are taken as they are written: a category is its
bytes, a number is decimal or bad, and no type is guessed.

Turning files into shards, once, is ``convert``'s business; extraction of
features from raw logs is another reader (``extract``).
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from ctrps.codec import MAGIC
from ctrps.data.badrows import BadRows, shown
from ctrps.data.shards import Ids, Rows, Schema, Shard
from ctrps.data.textfile import NEWLINE, TextFile
from ctrps.errors import ConfigError, DataError
from ctrps.kernels import fields, text
from ctrps.kernels.keys import hash_text, namespace

FORMATS = ("auto", "shard", "libsvm", "csv", "tsv")
LABELS = {"required": text.REQUIRED, "optional": text.OPTIONAL, "none": text.NONE}
SEPARATORS = {"csv": ",", "tsv": "\t"}
SUFFIXES = {
    ".shard": "shard",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
}

BAD_PER_CALL = 256
"""Bad rows that a kernel reports before it must be called again."""

REASONS = {
    text.LABEL: "expected a label 0, 1, -1 or +1",
    text.FEATURE: "expected key:value, a key of 0 to 2^64-1 and a finite number",
    fields.NUMBER: "expected a finite number",
    fields.AFTER_QUOTE: "expected a separator after the closing quote",
    fields.UNCLOSED: "expected a closing quote",
}

_PAIR = re.compile(rb"[0-9]+:[^\s:,]+")


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How text is to be read.

    Attributes
    ----------
    format
        One of ``FORMATS``; ``auto`` looks at the content of each file.
    label, id
        Columns of a csv with the label, and with a text to keep (None: none).
    numeric
        Columns taken as numbers. All columns not named here are categories.
    ignore
        Columns left out.
    missing
        Texts that stand for a missing value, besides the empty one.
    labels
        ``required``; ``optional``: NaN where there is none; ``none``: no row
        of a libsvm file has one, and the label column of a csv is not read.
    block_rows, max_bad
        Rows of a shard's block; share of rows that may be bad.
    """

    format: str = "auto"
    label: str = "label"
    numeric: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    id: str | None = None
    missing: tuple[str, ...] = ("",)
    block_rows: int = 4096
    max_bad: float = 0.0
    labels: str = "required"

    def __post_init__(self) -> None:
        if self.format not in FORMATS or self.labels not in LABELS:
            what = f"no format {self.format!r} with labels {self.labels!r}"
            raise ConfigError(what, hint=f"formats are {', '.join(FORMATS)}")
        named = [self.label, *self.numeric, *self.ignore, *([self.id] if self.id else [])]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            hint = "a column has one use: data.label, data.id, data.numeric or data.ignore"
            raise ConfigError(f"column {twice[0]!r} is named twice", hint=hint)


class Detected(NamedTuple):
    """A format, and what it was told by."""

    format: str
    why: str


def detect(path: Path) -> Detected:
    """Tell the format of a file by its content, or by its name where content cannot tell.

    Raises
    ------
    DataError
        When neither can, or the file cannot be read.
    """
    with TextFile(path, chunk_bytes=1 << 16) as file:
        head = file.buffer.tobytes()
    if head.startswith(MAGIC[:6]):
        return Detected("shard", "it starts as files of ctrps do")
    first = next((line for line in head.split(b"\n") if line.strip()), b"")
    tokens = first.split()
    pairs = [_PAIR.fullmatch(token) is not None for token in tokens]
    if pairs and all(pairs[1:]) and (pairs[0] or len(pairs) > 1):
        return Detected("libsvm", "its first line holds key:value pairs")
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    named = SUFFIXES.get(suffixes[-1].lower()) if suffixes else None
    tab, comma = b"\t" in first, b"," in first
    if named != "libsvm" and tab != comma:
        return Detected("tsv" if tab else "csv", f"its header has {'tabs' if tab else 'commas'}")
    if named:
        return Detected(named, f"its name ends in {suffixes[-1]}")
    hint = f"name it with data.format: {', '.join(FORMATS[1:])}"
    if len(tokens) > 1 and all(token.count(b":") == 2 for token in tokens[1:]):
        hint = "it looks like libffm (field:key:value), which is not read; convert it to libsvm"
    raise DataError(f"cannot tell its format from {shown(first)}", where=str(path), hint=hint)


@dataclass(frozen=True, slots=True)
class RowSource:
    """An open file of examples. Use it as a context: leaving closes the file.

    Attributes
    ----------
    path
    format, why
        The format, and how it was told.
    schema
    rows
        All rows in file order; can be gone through once. Pieces without rows
        come where bad rows were, so that a caller can look at their number.
    file
        How far reading is; None for a shard.
    """

    path: Path
    format: str
    why: str
    schema: Schema
    rows: Iterator[Rows]
    file: TextFile | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()


def open_rows(
    path: Path, settings: TextSettings, bad: BadRows, chunk_bytes: int = 8 << 20
) -> RowSource:
    """Open a file of examples: tell its format, read a header, but no row yet.

    The caller owns ``bad`` and calls its ``finish`` at the end of all input. A
    file without rows is no error here: it may be one part of many.

    Raises
    ------
    DataError
        For a file that cannot be read, or a header that does not fit
        ``settings``; while rows are read, for the first bad row if no share of
        bad rows is allowed, and for data that ends early.
    """
    path = Path(path)
    form, why = settings.format, "data.format says so"
    if form == "auto":
        form, why = detect(path)
    if form == "shard":
        shard = Shard(path)
        blocks = (block.to_rows() for block in shard.blocks())
        return RowSource(path, form, why, shard.schema, blocks, None)
    file = TextFile(path, chunk_bytes)
    try:
        if form == "libsvm":
            schema = Schema(("",), (), "value")
            rows = _libsvm(file, LABELS[settings.labels], bad)
        else:
            columns = _columns(_header(file, SEPARATORS[form]), settings, path)
            schema = columns.schema
            rows = _csv(file, SEPARATORS[form], columns, bad)
    except BaseException:
        file.close()
        raise
    return RowSource(path, form, why, schema, rows, file)


def read_rows(
    path: Path, settings: TextSettings, bad: BadRows, chunk_bytes: int = 8 << 20
) -> Iterator[Rows]:
    """Rows of one file in their order; see ``open_rows``."""
    with open_rows(path, settings, bad, chunk_bytes) as source:
        yield from source.rows


def _libsvm(file: TextFile, mode: int, bad: BadRows) -> Iterator[Rows]:
    found = np.empty((BAD_PER_CALL, 3), np.int64)
    while file.more():
        done = -1
        while done and len(file.buffer):
            size = len(file.buffer)
            keys = np.empty(size // 4 + 1, np.uint64)
            values = np.empty(len(keys), np.float32)
            asked = np.empty((len(keys), 3), np.int64)
            counts = np.empty(size // 2 + 1, np.int32)
            labels = np.empty(len(counts), np.float32)
            done, rows, nnz, wrong, asks = text.libsvm_rows(
                file.buffer, file.final, mode, keys, values, counts, labels, found, asked
            )
            _ask(file, values, asked[:asks])
            for reason, start, end in found[:wrong].tolist():
                _reject(file, bad, REASONS[reason], start, end)
            file.consume(done)
            if rows or wrong:
                yield _libsvm_piece(keys[:nnz], values[:nnz], counts[:rows], labels[:rows])


def _libsvm_piece(
    keys: np.ndarray, values: np.ndarray, counts: np.ndarray, labels: np.ndarray
) -> Rows:
    """Rows that hold no more memory than they need."""
    dense = np.empty((len(labels), 0), np.float32)
    weights = None if (values == 1).all() else values.copy()
    return Rows(keys.copy(), counts.reshape(-1, 1).copy(), weights, dense, labels.copy())


def _ask(file: TextFile, values: np.ndarray, asked: np.ndarray) -> None:
    """Numbers in the middle between two float32, by the long way."""
    for at, start, end in asked.tolist():
        values[at] = float(file.buffer[start:end].tobytes())


def _reject(file: TextFile, bad: BadRows, reason: str, start: int, end: int) -> None:
    line, column = file.place(start)
    bad.reject(file.path, line, column, reason, file.buffer[start:end].tobytes())


@dataclass(frozen=True, slots=True)
class _Columns:
    """What the columns of a table are for, by number; -1 where there is none."""

    names: list[str]
    schema: Schema
    label: int
    mode: int
    id: int
    numeric: np.ndarray
    slots: np.ndarray
    seeds: np.ndarray
    missing: np.ndarray


def _header(file: TextFile, separator: str) -> list[str]:
    """Names of the columns; none if the file holds nothing but blank lines."""
    while file.more():
        data = file.buffer.tobytes()
        start = len(data) - len(data.lstrip(b" \r\n"))
        end = _record_end(data, start)
        if start < len(data) and (end or file.final):
            names = _names(data[start : end or len(data)], separator, file, start)
            file.consume(end or len(data))
            return names
    return []


def _record_end(data: bytes, at: int) -> int:
    """Behind the first line end outside quotes; 0 if there is none."""
    quotes = 0
    while (end := data.find(b"\n", at) + 1) > 0:
        quotes += data.count(b'"', at, end)
        if quotes % 2 == 0:
            break
        at = end
    return end


def _names(record: bytes, separator: str, file: TextFile, start: int) -> list[str]:
    where = f"{file.path}:{file.place(start)[0]}"
    try:
        record_text = record.decode("utf-8").rstrip("\r\n")
        rows = list(csv.reader([record_text], delimiter=separator, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        what = f"cannot read the header {shown(record)} ({error})"
        raise DataError(what, where=where) from None
    names = [name.strip() for name in rows[0]] if len(rows) == 1 else []
    if not all(names):
        what = f"column {names.index('') + 1 if names else 1} of the header has no name"
        raise DataError(what, where=where, hint="a table begins with the names of its columns")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        hint = "rename or remove one of them"
        raise DataError(f"two columns are named {twice!r}", where=where, hint=hint)
    return names


def _columns(names: list[str], settings: TextSettings, path: Path) -> _Columns:
    number = {name: column for column, name in enumerate(names)}
    labelled = settings.labels == "required"
    needed = [*settings.numeric, *([settings.id] if settings.id else [])]
    for name in [*needed, settings.label] if labelled else needed:
        if names and name not in number:
            raise _no_column(name, names, path)
    for name in [settings.label, *settings.ignore]:
        if name not in number and any(_like(name, other) for other in names):
            raise _no_column(name, names, path)
    used = {settings.label, settings.id, *settings.ignore, *settings.numeric}
    # By name, so that tables with other orders of columns give the same rows.
    slots = sorted(name for name in names if name not in used)
    label = -1 if settings.labels == "none" else number.get(settings.label, -1)
    return _Columns(
        names,
        Schema(tuple(slots), settings.numeric, "mean"),
        label,
        LABELS[settings.labels],
        number.get(settings.id or "", -1),
        np.array([number.get(name, -1) for name in settings.numeric], np.int64),
        np.array([number[name] for name in slots], np.int64),
        np.array([namespace(name) for name in slots], np.uint64),
        np.array([hash_text(marker) for marker in settings.missing if marker], np.uint64),
    )


def _like(name: str, other: str) -> bool:
    return name != other and name.casefold() == other.casefold()


def _no_column(name: str, names: list[str], path: Path) -> DataError:
    near = difflib.get_close_matches(name.casefold(), [other.casefold() for other in names], 1)
    close = next((other for other in names if near and other.casefold() == near[0]), None)
    some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    hint = f"did you mean {close!r}? " if close else ""
    return DataError(
        f"no column {name!r}", where=f"{path}:1", hint=f"{hint}the file has the columns {some}"
    )


def _csv(file: TextFile, separator: str, columns: _Columns, bad: BadRows) -> Iterator[Rows]:
    width = len(columns.names)
    if not width:
        return
    calls = max(16, min(8192, (1 << 20) // width))  # rows of a call: the borders stay in the cache
    starts, ends = np.empty((2, calls, width), np.int32)
    broken = np.empty((BAD_PER_CALL, 3), np.int64)
    while True:
        done = -1
        while done:
            buffer = file.buffer
            done, rows, wrong = fields.split_fields(
                buffer, 0, len(buffer), file.final, ord(separator), True, starts, ends, broken
            )
            found = [(*row, -1) for row in broken[:wrong].tolist()]
            piece, refused = _csv_piece(file, columns, starts[:rows], ends[:rows])
            for row in sorted(found + refused, key=lambda row: row[1]):
                _reject_field(file, columns, bad, *row)
            file.consume(done)
            if piece.rows or found or refused:
                yield piece
        if not file.more():
            return


def _csv_piece(
    file: TextFile, columns: _Columns, starts: np.ndarray, ends: np.ndarray
) -> tuple[Rows, list[tuple[int, int, int, int]]]:
    """Rows of the fields between ``starts`` and ``ends``, and the bad ones."""
    size, slots, numbers = len(starts), len(columns.slots), len(columns.numeric)
    keys = np.empty((size, slots), np.uint64)
    dense = np.empty((size, numbers), np.float32)
    labels = np.empty(size, np.float32)
    taken = np.empty(size, np.int64)
    refused = np.empty((size, 4), np.int64)
    asked = np.empty((size * numbers, 3), np.int64)
    rows, wrong, asks = fields.csv_rows(
        file.buffer,
        starts,
        ends,
        columns.label,
        columns.mode,
        columns.numeric,
        columns.slots,
        columns.seeds,
        columns.missing,
        keys,
        dense,
        labels,
        taken,
        refused,
        asked,
    )
    _ask(file, dense.reshape(-1), asked[:asks])
    ids = None
    if columns.id >= 0:
        ids = _texts(file, starts[taken[:rows], columns.id], ends[taken[:rows], columns.id])
    counts = np.ones((rows, slots), np.int32)
    piece = Rows(keys[:rows].reshape(-1), counts, None, dense[:rows], labels[:rows], ids)
    return piece, [tuple(row) for row in refused[:wrong].tolist()]


def _texts(file: TextFile, starts: np.ndarray, ends: np.ndarray) -> Ids:
    borders = np.cumsum(ends.astype(np.int64) - starts)
    out = np.empty(int(borders[-1]) if len(borders) else 0, np.uint8)
    fields.copy_texts(file.buffer, starts, ends, out)
    return out, borders


def _reject_field(
    file: TextFile, columns: _Columns, bad: BadRows, reason: int, start: int, end: int, column: int
) -> None:
    if reason == fields.FIELDS:
        expected = f"expected {len(columns.names)} fields as in the header"
    elif reason == fields.NUMBER:
        name = columns.names[column]
        expected = f"{REASONS[reason]} or a text of data.missing in column {name!r}"
    else:
        expected = REASONS[reason]
    lines = np.count_nonzero(file.buffer[start : max(end - 1, start)] == NEWLINE)
    if reason == fields.UNCLOSED and lines:
        line, at = file.place(start)
        hint = f"close it: the {lines} lines behind it would be lost"
        where = f"{file.path}:{line}:{at}"
        raise DataError("a quote that opens here is never closed", where=where, hint=hint)
    _reject(file, bad, expected, start, end)
