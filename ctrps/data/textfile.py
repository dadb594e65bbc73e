"""Text files a few MiB at a time: plain or gzip, with places for messages.

What the bytes mean is up to the reader (``formats``, ``extract``): it says how
many of them made whole rows, and gets the rest again with more behind it.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np

from ctrps.errors import DataError

BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
NEWLINE = 10
DEFLATE_RATIO = 1032
"""No gzip file unpacks to more than this many times its size."""

MAX_ROW_BYTES = 64 << 20
"""A row longer than this is taken for a mistake, such as a quote that is not closed."""

# What else users pass for text, by the first bytes.
_OTHER = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"PAR1": "parquet",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


class TextFile:
    """The bytes of a text file, chunk by chunk.

    Gzip is known by its first bytes and may have several members. A byte
    order mark at the start is left out. Call ``more``, read ``buffer``, and say
    by ``consume`` how much of it was whole rows.

    Parameters
    ----------
    path
    chunk_bytes
        Bytes that ``more`` adds.

    Attributes
    ----------
    buffer : uint8[size]
        What was not consumed yet. Starts at the start of a row; overwritten by
        ``more``, and the reader may write into it.
    final : bool
        Nothing comes behind ``buffer``.
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

    def __init__(self, path: Path, chunk_bytes: int = 8 << 20):
        self.path = Path(path)
        self.final = False
        self.line = 1
        self._chunk_bytes = chunk_bytes
        self._memory = np.empty(0, np.uint8)
        self._start = self._size = 0
        # Up to where lines were counted, the number of the line there and where it starts.
        self._mark, self._mark_line, self._line_start = 0, 1, 0
        self._fresh = True
        with self._guard():
            self._raw = open(self.path, "rb")
            self.file_bytes = self.path.stat().st_size
        try:
            with self._guard():
                self._stream = self._opened()
                self._fill(max(chunk_bytes, len(BOM)))
        except BaseException:
            self._raw.close()
            raise
        self._start = self._mark = self._line_start = self._mark_length()

    @property
    def buffer(self) -> np.ndarray:
        return self._memory[self._start : self._size]

    @property
    def read_bytes(self) -> int:
        """How much of the file's ``file_bytes`` was read."""
        return self._raw.tell()

    @property
    def most_bytes(self) -> int:
        """Upper bound of the bytes of text still to be read or consumed."""
        left = self.file_bytes - self.read_bytes
        packed = self._stream is not self._raw
        return len(self.buffer) + left * (DEFLATE_RATIO if packed else 1)

    def more(self) -> bool:
        """Put more bytes behind those not consumed; False at the end of the file."""
        if self._fresh and len(self.buffer):
            self._fresh = False
            return True
        if self.final:
            return False
        rest = self._size - self._start
        if rest > MAX_ROW_BYTES:
            what = f"a row of more than {MAX_ROW_BYTES >> 20} MiB begins here"
            hint = "is a quote not closed, or is this another format than was named?"
            raise DataError(what, where=f"{self.path}:{self.line}", hint=hint)
        with self._guard():
            # At least as much as there is, or a long row would be read once per chunk of it.
            self._fill(max(self._chunk_bytes, rest))
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
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self) -> BinaryIO:
        head = self._raw.read(6)
        self._raw.seek(0)
        for magic, name in _OTHER.items():
            if head.startswith(magic):
                raise self._error(f"it is {name}, which is not read", "convert it to text or gzip")
        if head.startswith(GZIP):
            return cast(BinaryIO, gzip.GzipFile(fileobj=self._raw, mode="rb"))
        return self._raw

    def _mark_length(self) -> int:
        return len(BOM) if self.buffer[: len(BOM)].tobytes() == BOM else 0

    def _rewind(self) -> None:
        self._mark, self._mark_line, self._line_start = self._start, self.line, self._start

    def _fill(self, count: int) -> None:
        """Move what is left to the front and read ``count`` bytes behind it, or to the end."""
        rest = self.buffer
        size = len(rest) + count
        memory = self._memory if size <= len(self._memory) else np.empty(size, np.uint8)
        memory[: len(rest)] = rest
        self._memory, self._start, self._size = memory, 0, len(rest)
        self._rewind()
        while self._size < size and not self.final:
            got = self._stream.readinto(memory[self._size : size].data)  # type: ignore[attr-defined]
            self._size += got
            self.final = got == 0

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except EOFError:
            raise self._error("the compressed data ends early", "copy or make it again") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            what = f"the compressed data is damaged, or something else follows it ({error})"
            raise self._error(what, "copy or make it again") from None
        except OSError as error:
            raise self._error(f"cannot read it: {error.strerror}", None) from None

    def _error(self, what: str, hint: str | None) -> DataError:
        return DataError(what, where=str(self.path), hint=hint)
