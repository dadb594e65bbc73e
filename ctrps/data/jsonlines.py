"""Reader of JSON lines: one object per line, its fields the columns of a table.

A row costs Python's own reading of JSON, some tens of times what a line of csv costs; large data
is better converted once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ctrps.data.badrows import BadRows, shown
from ctrps.data.columns import Columns, Fit, columns_of
from ctrps.data.header import check_distinct
from ctrps.data.reading import REASONS, TextSettings
from ctrps.data.rows import Ids, Rows, Schema
from ctrps.data.textfile import TextFile
from ctrps.errors import DataError
from ctrps.kernels import fields, text
from ctrps.kernels.fields import keys_of_texts

PIECE_ROWS = 4096

_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LABELS = {"true": 1.0, "false": 0.0}


class _Word(str):
    """A number, true or false as it was written."""

    __slots__ = ()


class _RowError(Exception):
    """What was expected, and the text that was found instead."""

    def __init__(self, reason: str, found: str, column: int = 0):
        super().__init__(reason)
        self.reason = reason
        self.found = found
        self.column = column


class JsonReader:
    """Rows of JSON objects.

    A text, a whole number, true or false is one category, by its text; a list of them is several
    in one slot. A field that is null, absent or a text of ``missing`` is the empty category, or 0
    where it is a number. The fields are ``settings.columns``, or those of the first row; another
    one is an error, because it would be lost.

    Parameters
    ----------
    file
        At its start.
    settings, bad
    fit
        Changes the settings once the fields of the first row are known.
    """

    def __init__(self, file: TextFile, settings: TextSettings, bad: BadRows, fit: Fit | None):
        self._file = file
        self._bad = bad
        names = settings.columns or self._first_names()
        check_distinct(names, "data.columns")
        if fit and names:
            settings = fit(settings, tuple(names))
            names = settings.columns or names
        self._columns = columns_of(names, settings, file.name)
        self._missing = {*settings.missing, ""}
        # A field that is known to be left out, or that nobody knows, need not be looked at.
        known = {*names, *settings.ignore, settings.label}
        self._known = None if settings.others else known
        self._label = None if settings.labels == "none" else settings.label
        self._numeric = settings.numeric
        self._id = settings.id
        self._keep = settings.keep

    @property
    def schema(self) -> Schema:
        return self._columns.schema

    def _first_names(self) -> Sequence[str]:
        line = self._file.first_line()
        try:
            return tuple(_parsed(line)) if line else ()
        except _RowError as error:
            what = f"the first row names the fields: {error.reason}, found {shown(error.found)}"
            hint = "mend it, or name them with data.columns"
            raise DataError(
                what, where=f"{self._file.name}:1", hint=hint, id="E-DATA-COLUMN"
            ) from None

    def __iter__(self) -> Iterator[Rows]:
        file = self._file
        while True:
            while file.more():
                data = file.buffer.tobytes()
                whole = len(data) if file.final else data.rfind(b"\n") + 1
                yield from self._pieces(data[:whole].split(b"\n"))
                file.consume(whole)
            if not file.next_part():
                return

    def _pieces(self, lines: list[bytes]) -> Iterator[Rows]:
        piece, start, bad_rows = _Piece(self._columns), 0, self._bad.count
        for line in lines:
            if line.strip(b" \t\r"):
                try:
                    self._row(_parsed(line), piece)
                except _RowError as error:
                    number, column = self._file.place(start)
                    place = number, column + error.column
                    self._bad.reject(self._file.name, *place, error.reason, error.found)
            start += len(line) + 1
            if len(piece.labels) == PIECE_ROWS:
                yield piece.rows()
                piece, bad_rows = _Piece(self._columns), self._bad.count
        if piece.labels or self._bad.count > bad_rows:
            yield piece.rows()

    def _row(self, row: dict[str, Any], piece: _Piece) -> None:
        """Add a row to ``piece``, or raise and leave it as it was."""
        other = row.keys() - self._known if self._known is not None else ()
        if other:
            reason = "expected no fields but those of the first row or of data.columns"
            raise _RowError(reason, min(other))
        label = self._label_of(row)
        numbers = [self._number(row.get(name), name) for name in self._numeric]
        values = [self._values(row.get(name), name) for name in self.schema.slots]
        kept = [_shown(row.get(name)) for name in self._keep]
        piece.add(label, numbers, values, self._id and _shown(row.get(self._id)), kept)

    def _label_of(self, row: dict[str, Any]) -> float:
        value = None if self._label is None else row.get(self._label)
        if self._columns.mode != text.REQUIRED and self._is_missing(value):
            return math.nan
        found = _LABELS.get(value) if isinstance(value, _Word) else None
        if found is None and isinstance(value, str):
            found = _finite(value)
        if found not in (0.0, 1.0, -1.0):
            raise _RowError(REASONS[text.LABEL], _shown(value))
        return 1.0 if found == 1.0 else 0.0

    def _number(self, value: object, name: str) -> float:
        if self._is_missing(value):
            return 0.0
        found = _finite(value) if isinstance(value, _Word) else None
        if found is None:
            reason = f"{REASONS[fields.NUMBER]} or a text of data.missing in field {name!r}"
            raise _RowError(reason, _shown(value))
        return found

    def _values(self, value: object, name: str) -> list[bytes]:
        found = []
        for item in value if isinstance(value, list) else [value]:
            if item is not None and not isinstance(item, str):
                reason = f"expected a text, a number or a list of these in field {name!r}"
                raise _RowError(reason, _shown(value))
            written = "" if self._is_missing(item) else str(item)
            found.append(written.encode("utf-8", "surrogatepass"))
        return found

    def _is_missing(self, value: object) -> bool:
        return value is None or (isinstance(value, str) and value in self._missing)


class _Piece:
    """Rows on their way to arrays."""

    def __init__(self, columns: Columns):
        self._columns = columns
        self.labels: list[float] = []
        self._numbers: list[list[float]] = []
        self._counts: list[list[int]] = []
        self._texts: list[bytes] = []
        self._ids: list[bytes] = []
        self._kept: list[list[bytes]] = [[] for _ in columns.keep]

    def add(
        self,
        label: float,
        numbers: list[float],
        values: list[list[bytes]],
        row_id: str | None,
        kept: list[str],
    ) -> None:
        self.labels.append(label)
        self._numbers.append(numbers)
        self._counts.append([len(found) for found in values])
        for found in values:
            self._texts += found
        if row_id is not None:
            self._ids.append(row_id.encode("utf-8", "surrogatepass"))
        for column, field in zip(self._kept, kept, strict=True):
            column.append(field.encode("utf-8", "surrogatepass"))

    def rows(self) -> Rows:
        columns, size = self._columns, len(self.labels)
        slots = len(columns.schema.slots)
        counts = np.array(self._counts, np.int32).reshape(size, slots)
        buffer, ends = _joined(self._texts)
        keys = np.empty(len(ends), np.uint64)
        seeds = np.repeat(np.tile(columns.seeds, size), counts.reshape(-1))
        keys_of_texts(buffer, ends, seeds, keys)
        dense = np.array(self._numbers, np.float32).reshape(size, len(columns.numeric))
        ids = _joined(self._ids) if columns.id >= 0 else None
        kept = tuple(map(_joined, self._kept))
        return Rows(keys, counts, None, dense, np.array(self.labels, np.float32), ids, kept)


def _joined(texts: list[bytes]) -> Ids:
    lengths = np.array([len(text) for text in texts], np.int64)
    return np.frombuffer(bytearray(b"".join(texts)), np.uint8), np.cumsum(lengths)


def _parsed(line: bytes) -> dict[str, Any]:
    """The object of a line; numbers, true and false as ``_Word``."""
    expected = "expected one JSON object on the line"
    try:
        found = json.loads(
            line.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_Word,
            parse_float=_Word,
            parse_constant=_no_number,
        )
    except UnicodeDecodeError as error:
        raise _RowError(
            "expected UTF-8", repr(line[error.start : error.end]), error.start
        ) from None
    except json.JSONDecodeError as error:
        at = len(error.doc[: error.pos].encode())
        raise _RowError(f"{expected} ({error.msg})", error.doc[error.pos :].strip(), at) from None
    except RecursionError:
        raise _RowError(f"{expected}, not so deeply nested", line[:80].decode()) from None
    if not isinstance(found, dict):
        raise _RowError(expected, line.strip().decode())
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {name: _word(value) for name, value in pairs}
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _RowError("expected each field once in an object", twice)
    return found


def _word(value: Any) -> Any:
    if isinstance(value, bool):
        return _Word("true" if value else "false")
    return [_word(item) for item in value] if isinstance(value, list) else value


def _no_number(name: str) -> float:
    raise _RowError(REASONS[fields.NUMBER], name)


def _finite(text: str) -> float | None:
    """The number of a text, if it is decimal and float32 can hold it."""
    if not _DECIMAL.fullmatch(text):
        return None
    with np.errstate(over="ignore"):
        value = np.float32(float(text))
    return float(value) if np.isfinite(value) else None


def _shown(value: Any) -> str:
    """A field as text: for messages, and as the id of a row."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
