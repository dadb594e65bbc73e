"""Text files a few MiB at a time, with places for messages.

What the bytes mean is up to the reader (``formats``, ``extract``): it says how
many of them made whole rows, and gets the rest again with more behind it. How
they are packed is ``streams``' business.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from ctrps.data.streams import Unpacked
from ctrps.errors import DataError

BOM = b"\xef\xbb\xbf"
NEWLINE = 10

MAX_ROW_BYTES = 64 << 20
"""A row longer than this is taken for a mistake, such as a quote that is not closed."""


class TextFile:
    """The bytes of a text file, chunk by chunk.

    Plain text, gzip, zstd and Parquet, whose text is csv, are told apart by the
    first bytes; ``-`` is standard input. A byte order mark at the start is left out. Call ``more``,
    read ``buffer``, and say by ``consume`` how much of it was whole rows. A tar
    archive is read member by member: at the end of one, ``next_part`` goes to
    the start of the next.

    Parameters
    ----------
    path
    chunk_bytes
        Bytes that ``more`` adds.
    members
        Which members of an archive are read: those whose names end so.
    ignore
        Columns of a Parquet file that are left out.

    Attributes
    ----------
    buffer : uint8[size]
        What was not consumed yet. Starts at the start of a row; overwritten by
        ``more``, and the reader may write into it.
    final : bool
        Nothing comes behind ``buffer`` in this part.
    line : int
        Number of the line at the start of ``buffer``, from 1.

    Raises
    ------
    DataError
        Naming the file: missing, unreadable, cut short, or no text.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.txt"
    ...     _ = path.write_bytes(b"1\\n22\\n333\\n")
    ...     with TextFile(path, chunk_bytes=7) as text:
    ...         while text.more():
    ...             rows = text.buffer.tobytes().rpartition(b"\\n")
    ...             print(text.line, rows[0], text.final)
    ...             text.consume(len(rows[0]) + 1)
    1 b'1\\n22' False
    3 b'333' True
    """

    def __init__(
        self,
        path: Path,
        chunk_bytes: int = 8 << 20,
        members: str = "",
        ignore: Collection[str] = (),
    ):
        self.path = Path(path)
        self._chunk_bytes = chunk_bytes
        self._memory = np.empty(0, np.uint8)
        self._start = self._size = 0
        # Up to where lines were counted, the number of the line there and where it starts.
        self._mark, self._mark_line, self._line_start = 0, 1, 0
        self._fresh = True
        self._stream = Unpacked(self.path, members, ignore)
        try:
            self._begin()
        except BaseException:
            self._stream.close()
            raise

    @property
    def name(self) -> str:
        """What messages call it: the file, and the archive's member behind a slash."""
        return self._stream.name

    @property
    def part(self) -> str:
        """The member of a tar archive that is being read; empty in other files."""
        return self._stream.part

    @property
    def parquet(self) -> bool:
        """Whether it is a Parquet file."""
        return self._stream.table is not None

    @property
    def buffer(self) -> np.ndarray:
        return self._memory[self._start : self._size]

    @property
    def file_bytes(self) -> int:
        """Size of the file on disk; 0 for standard input."""
        return self._stream.file_bytes

    @property
    def read_bytes(self) -> int:
        """How much of the file's ``file_bytes`` was read."""
        return self._stream.read_bytes

    @property
    def most_bytes(self) -> int:
        """Upper bound of the bytes of text still to be read or consumed."""
        return len(self.buffer) + self._stream.most_bytes

    def first_line(self) -> bytes:
        """The next line that is not blank, without its end; empty if there is none."""
        while True:
            data = self.buffer.tobytes()
            text = len(data) - len(data.lstrip(b" \t\r\n"))
            end = data.find(b"\n", text)
            if end >= 0 or self.final:
                line = data[data.rfind(b"\n", 0, text) + 1 : end if end >= 0 else len(data)]
                return line.rstrip(b"\r")
            self._extend()

    def next_part(self) -> bool:
        """Begin the next member of a tar archive; False if there is none."""
        if not self._stream.next_part():
            return False
        self._begin()
        return True

    def more(self) -> bool:
        """Put more bytes behind those not consumed; False at the end of the file."""
        if self._fresh and len(self.buffer):
            self._fresh = False
            return True
        if self.final:
            return False
        self._extend()
        return len(self.buffer) > 0

    def consume(self, count: int) -> None:
        """The first ``count`` bytes of ``buffer``, whole lines, are done with."""
        at = self._start + count
        if at < self._mark:
            self._rewind()
        lines = np.count_nonzero(self._memory[self._mark : at] == NEWLINE)
        self.line = self._mark_line + int(lines)
        self._start = at
        self._rewind()

    def place(self, position: int) -> tuple[int, int]:
        """Line and column, from 1 and in bytes, of a position in ``buffer``.

        Cheapest for positions in ascending order.
        """
        at = self._start + position
        if at < self._mark:
            self._rewind()
        ends = np.flatnonzero(self._memory[self._mark : at] == NEWLINE)
        if len(ends):
            self._line_start = self._mark + int(ends[-1]) + 1
            self._mark_line += len(ends)
        self._mark = at
        return self._mark_line, at - self._line_start + 1

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self) -> None:
        """Take the first bytes of a part."""
        self.final = False
        self.line = 1
        self._start = self._size = 0
        self._mark, self._mark_line, self._line_start = 0, 1, 0
        self._fresh = True
        while not self.final and self._size < len(BOM):
            self._fill(max(self._chunk_bytes, len(BOM)))
        start = len(BOM) if self.buffer[: len(BOM)].tobytes() == BOM else 0
        self._start = self._mark = self._line_start = start

    def _extend(self) -> None:
        rest = self._size - self._start
        if rest > MAX_ROW_BYTES:
            what = f"a row of more than {MAX_ROW_BYTES >> 20} MiB begins here"
            hint = "is a quote not closed, or is this another format than was named?"
            raise DataError(what, where=f"{self.name}:{self.line}", hint=hint, id="E-DATA-ROW")
        # As much again as there is, or a long row would be read once per chunk of it; but readers
        # make room by the size of the buffer, so no more than shows that a row is too long.
        self._fill(max(self._chunk_bytes, min(rest, MAX_ROW_BYTES + 1 - rest)))

    def _rewind(self) -> None:
        self._mark, self._mark_line, self._line_start = self._start, self.line, self._start

    def _fill(self, count: int) -> None:
        """Move what is left to the front and read ``count`` bytes behind it, or to the end.

        From standard input, what has come is enough: rows need not wait for other rows.
        """
        rest = self.buffer
        size = len(rest) + count
        memory = self._memory if size <= len(self._memory) else np.empty(size, np.uint8)
        memory[: len(rest)] = rest
        self._memory, self._start, self._size = memory, 0, len(rest)
        self._rewind()
        while self._size < size and not self.final:
            got = self._stream.readinto(memory[self._size : size].data)
            self._size += got
            self.final = got == 0
            if self._stream.live:
                break
