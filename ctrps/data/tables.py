"""Raw tables: found by name in a folder, read piece by piece or held in memory.

A table is comma-separated text with a header line, plain, in gzip or zstd, or alone in a tar
archive, or Parquet, as its bytes say and not its name. Every field stays text: no type is guessed,
``00`` differs from ``0``. What tables mean and how they are joined is ``ctrps.data.join``'s
business.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.header import read_header
from ctrps.data.textfile import TextFile
from ctrps.errors import DataError
from ctrps.kernels import fields
from ctrps.kernels.tables import split_plain

ENDINGS = (".csv", ".csv.gz", ".csv.zst", ".tar.gz", ".parquet")
COMMA, TAB, RETURN, NEWLINE, QUOTE = (ord(c) for c in ',\t\r\n"')
PIECE_ROWS = 1 << 16
BAD_PER_CALL = 256

REASONS = {
    fields.AFTER_QUOTE: "expected a comma or the line's end after a closing quote",
    fields.UNCLOSED: "a quote that is not closed begins here",
}
UNFIT = "expected a value without tab or line end"


def find_table(folder: Path, name: str) -> Path:
    """The file of a table.

    Raises
    ------
    DataError
        When there is none, or more than one.
    """
    found = [folder / f"{name}{end}" for end in ENDINGS if (folder / f"{name}{end}").is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(path.name for path in found)
        raise DataError(f"both {names} are there", where=str(folder), hint="remove one of them")
    if not folder.is_dir():
        hint = "sample.dir names the folder of the raw tables"
        raise DataError("no such folder", where=str(folder), hint=hint, id="E-DATA-MISSING")
    near = difflib.get_close_matches(
        name, [path.name for path in folder.iterdir()], n=1, cutoff=0.4
    )
    hint = f"there is {near[0]}" if near else "sample.dir names the folder of the raw tables"
    raise DataError(
        f"no table {name}{{{','.join(ENDINGS)}}}", where=str(folder), hint=hint, id="E-DATA-MISSING"
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a table.

    Attributes
    ----------
    data : uint8[size]
        Bytes that are overwritten when the next piece is asked for.
    starts, ends : int32[rows, columns]
        Field j of row i is ``data[starts[i, j]:ends[i, j]]``.
    """

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class RawTable:
    """A table that is read once, from front to back.

    Parameters
    ----------
    path
        The file.
    bad
        Is told of rows with another number of fields than the header, with broken quotes, or with
        a tab or a line end in a value: samples are tab-separated lines.

    Attributes
    ----------
    names : tuple[str, ...]
        The header, without quotes, blanks around names, and byte order mark.
    first_line : int
        Number of the line behind the header.
    rows : int
        Rows read so far, good and bad.
    """

    def __init__(self, path: Path, bad: BadRows, chunk_bytes: int = 8 << 20):
        self.path = path
        self.rows = 0
        self._bad = bad
        self._file = TextFile(path, chunk_bytes, members=".csv")
        try:
            self.names = tuple(read_header(self._file, ","))
            if not self.names:
                raise DataError("the file is empty", where=str(self.path), id="E-DATA-EMPTY")
            self.first_line = self._file.line
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> RawTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def share(self) -> float:
        """How much of the table has been read, 0 to 1."""
        return min(self._file.read_bytes / max(self._file.file_bytes, 1), 1.0)

    def column(self, name: str) -> int:
        """Number of a column.

        Raises
        ------
        DataError
            When the header lacks it, naming the closest.
        """
        if name in self.names:
            return self.names.index(name)
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(self.names)}"
        raise DataError(
            f"no column {name!r}", where=f"{self.path}:1:1", hint=hint, id="E-DATA-COLUMN"
        )

    def reject(self, position: int, reason: str, text: bytes) -> None:
        """Report a bad row by a position in the piece that is being read."""
        self._bad.reject(self.path, *self._file.place(position), reason, text)

    def pieces(self) -> Iterator[Piece]:
        """The good rows; a piece may have none. Together their data is all behind the header."""
        starts, ends = np.empty((2, PIECE_ROWS, len(self.names)), np.int32)
        broken = np.empty((BAD_PER_CALL, 3), np.int64)
        file = self._file
        while True:
            done = -1
            while done:
                data = file.buffer
                done, rows = split_plain(data, np.uint8(COMMA), starts, ends)
                if done:
                    self.rows += rows
                    yield Piece(data[:done], starts[:rows], ends[:rows])
                else:
                    done, rows, wrong = fields.split_fields(
                        data, 0, len(data), file.final, COMMA, True, starts, ends, broken
                    )
                    yield self._piece(data[:done], starts[:rows], ends[:rows], broken[:wrong])
                file.consume(done)
            if not file.more():
                self._check_alone()
                return

    def _check_alone(self) -> None:
        """A second table in the archive would be lost."""
        one = self._file.part
        if self._file.next_part():
            what = f"the archive holds more than one .csv: {one} and {self._file.part}"
            raise DataError(what, where=str(self.path), hint="unpack it and keep the table")

    def _piece(
        self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, broken: np.ndarray
    ) -> Piece:
        """The good rows of those read, after reporting the others."""
        unfit = _unfit(data, starts, ends)
        found = [(int(start), int(end), self._reason(reason)) for reason, start, end in broken]
        found += [(int(starts[i, 0]), int(ends[i, -1]), UNFIT) for i in unfit]
        for start, end, reason in sorted(found):
            self.reject(start, reason, bytes(data[start:end]))
        self.rows += len(starts) + len(broken)
        if len(unfit):
            starts, ends = np.delete(starts, unfit, 0), np.delete(ends, unfit, 0)
        return Piece(data, starts, ends)

    def _reason(self, reason: int) -> str:
        return REASONS.get(int(reason), f"expected {len(self.names)} fields, as in the header")


def _unfit(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Numbers of rows that hold a tab or a line end in a value."""
    mark = (data == TAB) | (data == RETURN)
    # A newline can be inside a value only where there are quotes.
    if (data == QUOTE).any():
        mark |= data == NEWLINE
    at = np.flatnonzero(mark)
    if not len(at) or not len(starts):
        return np.empty(0, np.int64)
    row = np.maximum(np.searchsorted(starts[:, 0], at, side="right") - 1, 0)
    inside = (starts[row] <= at[:, None]) & (at[:, None] < ends[row])
    return np.unique(row[inside.any(axis=1)])


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns of a table, in memory.

    Attributes
    ----------
    names
        Their names.
    data : uint8[size]
    starts, ends : int64[rows, columns]
        Field j of row i is ``data[starts[i, j]:ends[i, j]]``.
    first_line : int
        Number of the line of the file that ``data`` begins with.
    """

    names: tuple[str, ...]
    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    first_line: int = 1

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> Columns:
        """One column, without a name, with these texts as its rows."""
        pieces = [text.encode() for text in texts]
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        data = np.frombuffer(bytearray(b"".join(pieces)), np.uint8)
        return cls(("",), data, starts[:, None], ends[:, None])

    def line(self, row: int) -> int:
        """Line of a row in its file; every byte behind the header is held."""
        return self.first_line + int(np.count_nonzero(self.data[: self.starts[row, 0]] == NEWLINE))


def read_columns(table: RawTable, names: Sequence[str]) -> Columns:
    """Hold some columns of a table in memory.

    Raises
    ------
    DataError
        When the table has no such column.
    """
    numbers = [table.column(name) for name in names]
    pieces = [
        (piece.data.copy(), piece.starts[:, numbers], piece.ends[:, numbers])
        for piece in table.pieces()
    ]
    rows = sum(len(starts) for _, starts, _ in pieces)
    starts, ends = np.empty((2, rows, len(names)), np.int64)
    row = base = 0
    for data, *borders in pieces:
        for out, part in zip((starts, ends), borders, strict=True):
            np.add(part, base, out=out[row : row + len(part)])
        row, base = row + len(borders[0]), base + len(data)
    text = np.concatenate([np.empty(0, np.uint8), *(data for data, *_ in pieces)])
    return Columns(tuple(names), text, starts, ends, table.first_line)
