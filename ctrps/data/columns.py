"""Readers of tables: csv and tsv, with a header or with stated columns, Criteo's logs, Parquet.

A category is its bytes as they stand, a number is decimal or bad, and no type is guessed. Only
the whole numbers of Criteo's logs, which have no header to say what they are, become categories
of their size.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.header import check_distinct, read_header
from ctrps.data.reading import BAD_PER_CALL, LABELS, REASONS, TextSettings, ask, reject, texts
from ctrps.data.rows import Ids, Rows, Schema
from ctrps.data.textfile import NEWLINE, TextFile
from ctrps.errors import DataError
from ctrps.kernels import fields
from ctrps.kernels.keys import hash_text, namespace

SEPARATORS = {"csv": ",", "tsv": "\t", "criteo": "\t", "parquet": ","}

CRITEO_NUMBERS = tuple(f"I{number}" for number in range(1, 14))
CRITEO_COLUMNS = (*CRITEO_NUMBERS, *(f"C{number}" for number in range(1, 27)))
"""Columns of Criteo's display advertising logs behind the label, as their readme names them."""

Fit = Callable[[TextSettings, tuple[str, ...]], TextSettings]
"""Called with the settings and the names of the columns of a file; what it returns is used."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of a table are for, by number; -1 where there is none."""

    names: Sequence[str]
    schema: Schema
    label: int
    mode: int
    id: int
    numeric: np.ndarray
    slots: np.ndarray
    seeds: np.ndarray
    missing: np.ndarray
    keep: tuple[int, ...]


def columns_of(names: Sequence[str], settings: TextSettings, where: str) -> Columns:
    """Give each column its use.

    Raises
    ------
    DataError
        When a column that is needed is not there, naming the closest.
    """
    number = {name: column for column, name in enumerate(names)}
    labelled = settings.labels == "required"
    needed = [*settings.numeric, *([settings.id] if settings.id else []), *settings.keep]
    for name in [*needed, settings.label] if labelled else needed:
        if names and name not in number:
            raise no_column(f"no column {name!r}", name, names, where)
    for name in [settings.label, *settings.ignore]:
        if name not in number and any(_like(name, other) for other in names):
            raise no_column(f"no column {name!r}", name, names, where)
    used = {settings.label, settings.id, *settings.ignore, *settings.numeric}
    # By name, so that tables with other orders of columns give the same rows.
    slots = sorted(name for name in names if name not in used)
    label = -1 if settings.labels == "none" else number.get(settings.label, -1)
    return Columns(
        names,
        Schema(tuple(slots), settings.numeric, "mean"),
        label,
        LABELS[settings.labels],
        number.get(settings.id or "", -1),
        np.array([number.get(name, -1) for name in settings.numeric], np.int64),
        np.array([number[name] for name in slots], np.int64),
        np.array([namespace(name) for name in slots], np.uint64),
        np.array([hash_text(marker) for marker in settings.missing if marker], np.uint64),
        tuple(number.get(name, -1) for name in settings.keep),
    )


def _like(name: str, other: str) -> bool:
    return name != other and name.casefold() == other.casefold()


def no_column(what: str, name: str, names: Sequence[str], where: str) -> DataError:
    """The error for a column that is not there: ``what``, and the closest of ``names``."""
    folded = {other.casefold(): other for other in names}
    near = difflib.get_close_matches(name.casefold(), folded, 1)
    some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    hint = f"did you mean {folded[near[0]]!r}? " if near else ""
    return DataError(
        what, where=f"{where}:1", hint=f"{hint}the file has the columns {some}", id="E-DATA-COLUMN"
    )


class TableReader:
    """Rows of a table; of a tar archive, the rows of its tables in their order.

    Parameters
    ----------
    file
        At its start.
    settings
        Their format is one of ``SEPARATORS``.
    bad
    fit
        Changes the settings once the names of the columns are known.
    """

    def __init__(self, file: TextFile, settings: TextSettings, bad: BadRows, fit: Fit | None):
        self._file = file
        self._settings = settings
        self._bad = bad
        self._fit = fit
        self._separator = SEPARATORS[settings.format]
        self._columns = self._open_part()

    @property
    def schema(self) -> Schema:
        return self._columns.schema

    def __iter__(self) -> Iterator[Rows]:
        yield from self._part()
        while self._file.next_part():
            columns = self._open_part()
            if self._columns.names and columns.names and columns.schema != self.schema:
                what = "its columns are not those of the file before it"
                hint = "tables of one archive have the same columns"
                raise DataError(what, where=self._file.name, hint=hint, id="E-DATA-COLUMN")
            self._columns = columns
            yield from self._part()

    def _open_part(self) -> Columns:
        settings, names = self._settings, self._names()
        if self._fit and names:
            settings = self._fit(settings, tuple(names))
        return columns_of(names, settings, self._file.name)

    def _names(self) -> Sequence[str]:
        settings = self._settings
        if settings.format == "criteo":
            return self._criteo_names()
        if settings.columns and settings.format != "parquet":
            check_distinct(settings.columns, "data.columns")
            return settings.columns
        unnamed = {*settings.ignore, *settings.numeric}
        return read_header(self._file, self._separator, unnamed)

    def _criteo_names(self) -> Sequence[str]:
        """The label's column is there or not: both kinds of files were published."""
        first = self._file.first_line()
        if not first:
            return ()
        labelled = first.count(b"\t") >= len(CRITEO_COLUMNS)
        return (self._settings.label, *CRITEO_COLUMNS) if labelled else CRITEO_COLUMNS

    def _part(self) -> Iterator[Rows]:
        columns, file = self._columns, self._file
        width = len(columns.names)
        if not width:
            return
        # Rows of a call: the borders stay in the cache.
        calls = max(16, min(8192, (1 << 20) // width))
        starts, ends = np.empty((2, calls, width), np.int32)
        broken = np.empty((BAD_PER_CALL, 3), np.int64)
        while True:
            done = -1
            while done:
                done, rows, wrong = fields.split_fields(
                    file.buffer,
                    0,
                    len(file.buffer),
                    file.final,
                    ord(self._separator),
                    self._settings.format != "criteo",
                    starts,
                    ends,
                    broken,
                )
                found = [(*row, -1) for row in broken[:wrong].tolist()]
                piece, refused = self._piece(starts[:rows], ends[:rows])
                for row in sorted(found + refused, key=lambda row: row[1]):
                    self._reject(*row)
                file.consume(done)
                if piece.rows or found or refused:
                    yield piece
            if not file.more():
                return

    def _piece(
        self, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[Rows, list[tuple[int, int, int, int]]]:
        """Rows of the fields between ``starts`` and ``ends``, and the bad ones."""
        if self._settings.format != "criteo":
            rows, _, refused = self._rows(starts, ends)
            return rows, refused
        levels = _Levels(self._columns)
        sizes, wrong = levels.read(self._file.buffer, starts, ends)
        bad = [
            (fields.NUMBER, int(starts[row, column]), int(ends[row, column]), column)
            for row, column in wrong
        ]
        if bad:
            kept = np.delete(np.arange(len(starts)), [row for row, _ in wrong])
            starts, ends, sizes = starts[kept], ends[kept], sizes[kept]
        rows, taken, refused = self._rows(starts, ends)
        levels.replace(rows, sizes[taken])
        return rows, refused + bad

    def _rows(
        self, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[Rows, np.ndarray, list[tuple[int, int, int, int]]]:
        """Rows, the rows of ``starts`` that they come from, and the bad ones."""
        columns = self._columns
        size, slots, numbers = len(starts), len(columns.slots), len(columns.numeric)
        keys = np.empty((size, slots), np.uint64)
        dense = np.empty((size, numbers), np.float32)
        labels = np.empty(size, np.float32)
        taken = np.empty(size, np.int64)
        refused = np.empty((size, 4), np.int64)
        asked = np.empty((size * numbers, 3), np.int64)
        rows, wrong, asks = fields.csv_rows(
            self._file.buffer,
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
        taken = taken[:rows]
        ask(self._file, dense.reshape(-1), asked[:asks])

        def text_of(column: int) -> Ids:
            return texts(self._file.buffer, starts[taken, column], ends[taken, column])

        ids = text_of(columns.id) if columns.id >= 0 else None
        kept = tuple(map(text_of, columns.keep))
        counts = np.ones((rows, slots), np.int32)
        piece = Rows(keys[:rows].reshape(-1), counts, None, dense[:rows], labels[:rows], ids, kept)
        return piece, taken, [tuple(row) for row in refused[:wrong].tolist()]

    def _reject(self, reason: int, start: int, end: int, column: int) -> None:
        file, columns = self._file, self._columns
        if reason == fields.FIELDS:
            of = {"criteo": "the first row"}.get(self._settings.format, "the header")
            of = "data.columns" if self._settings.columns else of
            expected = f"expected {len(columns.names)} fields as in {of}"
        elif reason == fields.NUMBER:
            name = columns.names[column]
            kind = "a whole number or nothing" if name in CRITEO_NUMBERS else "a finite number"
            expected = f"expected {kind} or a text of data.missing in column {name!r}"
        else:
            expected = REASONS[reason]
        lines = np.count_nonzero(file.buffer[start : max(end - 1, start)] == NEWLINE)
        if reason == fields.UNCLOSED and lines:
            line, at = file.place(start)
            hint = f"close it: the {lines} lines behind it would be lost"
            where = f"{file.name}:{line}:{at}"
            raise DataError(
                "a quote that opens here is never closed", where=where, hint=hint, id="E-DATA-ROW"
            )
        reject(file, self._bad, expected, start, end)


class _Levels:
    """The whole numbers of Criteo's logs as categories: x >= 0 is its level floor(3 log2(1 + x)).

    Others, empty or negative, are the texts that they are. As many as three levels per doubling
    keep small counts apart, and a count in the millions has fewer than seventy.
    """

    _HASHES = np.array([hash_text(str(level)) for level in range(fields.LEVELS)], np.uint64)

    def __init__(self, columns: Columns):
        names = [name for name in CRITEO_NUMBERS if name in columns.schema.slots]
        number = {name: column for column, name in enumerate(columns.names)}
        self._slots = np.array([columns.schema.slots.index(name) for name in names], np.int64)
        self._seeds = columns.seeds[self._slots]
        self._columns = np.array([number[name] for name in names], np.int64)
        self._missing = columns.missing

    def read(
        self, buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Level of each number, -1 for none, int16[rows, n]; row and column of what is bad."""
        levels = np.empty((len(starts), len(self._columns)), np.int16)
        bad = np.empty((len(starts), 2), np.int64)
        wrong = fields.log_levels(buffer, starts, ends, self._columns, self._missing, levels, bad)
        return levels, [(row, column) for row, column in bad[:wrong].tolist()]

    def replace(self, rows: Rows, levels: np.ndarray) -> None:
        """Put the keys of levels into ``rows``, whose slots have one key each."""
        keys = rows.keys.reshape(rows.counts.shape)
        fields.level_keys(levels, self._slots, self._seeds, self._HASHES, keys)
