"""Streams of bytes under text: plain, gzip or zstd, perhaps with a tar archive inside; Parquet.

What a file is, its first bytes say and never its name. Rows, lines and places for messages are
``textfile``'s business.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from ctrps.data.parquet import MAGIC as PARQUET
from ctrps.data.parquet import TableText
from ctrps.errors import DataError

STDIN = Path("-")
"""The path that stands for standard input."""

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
UNKNOWN_BYTES = 1 << 62
"""More than any file holds, for input whose size nobody knows."""

RATIOS = {GZIP: 1032, ZSTD: 1 << 15, PARQUET: UNKNOWN_BYTES}
"""No file of the kind unpacks to more than this many times its size: DEFLATE's longest match, and
a zstd block of 128 KiB in 4 bytes. Of Parquet a few bytes may stand for any number of rows."""

# What else users pass for text, by the first bytes.
_OTHER = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}

_TAR_BLOCK = 512
_TAR_MAGIC = slice(257, 262)
_ZSTD_STEP = 4096
"""Packed bytes that zstd gets at a time; it makes at most 128 MiB of them."""


def most_bytes(path: Path) -> int:
    """Upper bound of the bytes of text in a file, from its size and its first bytes."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError:
        return 0
    return size * ratio(head)


def ratio(head: bytes) -> int:
    """By how much a file that starts with ``head`` may grow when it is unpacked."""
    return next((most for magic, most in RATIOS.items() if head.startswith(magic)), 1)


class Headed(io.RawIOBase):
    """A stream whose first bytes can be looked at before they are read.

    Parameters
    ----------
    read
        Fills a buffer, at least in part, and says by how much; 0 at the end.

    Attributes
    ----------
    head : bytes
        The first 512 bytes, or all if there are fewer.
    count : int
        Bytes handed out.
    """

    def __init__(self, read: Callable[[memoryview], int]):
        super().__init__()
        self._read = read
        memory = memoryview(bytearray(_TAR_BLOCK))
        size = 0
        while size < _TAR_BLOCK and (got := read(memory[size:])):
            size += got
        self.head = bytes(memory[:size])
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, memory: memoryview) -> int:  # type: ignore[override]
        if self.count < len(self.head):
            part = self.head[self.count : self.count + len(memory)]
            memory[: len(part)] = part
            got = len(part)
        else:
            got = self._read(memory)
        self.count += got
        return got


class Unpacked:
    """The bytes of text in a file, part after part.

    Only a tar archive has several parts: its regular files whose names end in ``members`` and do
    not begin with a dot, as the shadows of files in archives made on a Mac do.

    Attributes
    ----------
    part : str
        Name of the archive's member that is being read; empty in other files.
    file_bytes : int
        Size of the file as it lies on disk; 0 for standard input.
    table : TableText or None
        Of a Parquet file: what its bytes of text come from, without the columns of ``ignore``.

    Raises
    ------
    DataError
        Naming the file: missing, unreadable, cut short, or no text.
    """

    def __init__(self, path: Path, members: str = "", ignore: Collection[str] = ()):
        self.path = path
        self.part = ""
        self.table: TableText | None = None
        self._ignore = ignore
        self.live = path == STDIN
        self._members = members
        self._archive: tarfile.TarFile | None = None
        with self._guard():
            self._file = _stdin() if self.live else open(path, "rb")
        try:
            with self._guard():
                self.file_bytes = 0 if self.live else os.fstat(self._file.fileno()).st_size
                # What has come is enough from a pipe; a file is read as fast as it goes.
                self._raw = Headed(self._file.readinto1 if self.live else self._file.readinto)  # type: ignore[attr-defined]
                self._stream = self._opened()
                if self._archive is not None and not self.next_part():
                    what = f"the archive holds no {members or 'regular'} file"
                    raise DataError(what, where=self.name, id="E-DATA-FORMAT")
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """What messages call it: the file, and the archive's member behind a slash."""
        name = "standard input" if self.live else str(self.path)
        return f"{name}/{self.part}" if self.part else name

    @property
    def read_bytes(self) -> int:
        """How much of the file's ``file_bytes`` was read."""
        if self.table:
            return self.file_bytes * self.table.read_rows // max(self.table.rows, 1)
        return self._raw.count

    @property
    def most_bytes(self) -> int:
        """Upper bound of the bytes that are still to come."""
        if self.live:
            return UNKNOWN_BYTES
        growth = ratio(self._raw.head)
        held = 0 if growth == 1 else io.DEFAULT_BUFFER_SIZE  # read ahead by the unpacker
        return (self.file_bytes - self.read_bytes + held) * growth

    def readinto(self, memory: memoryview) -> int:
        """Fill ``memory``, at least in part; 0 at the end of the part."""
        if self.live:
            # For more than its buffer, Python's reader would wait for a second read.
            memory = memory[: io.DEFAULT_BUFFER_SIZE]
        with self._guard():
            return int(self._stream.readinto(memory))  # type: ignore[attr-defined]

    def next_part(self) -> bool:
        """Go to the start of the archive's next member; False if there is none."""
        if self._archive is None:
            return False
        with self._guard():
            while (member := self._archive.next()) is not None:
                base = member.name.rpartition("/")[2]
                if member.isfile() and base.endswith(self._members) and not base.startswith("."):
                    self.part = member.name
                    self._stream = cast(BinaryIO, self._archive.extractfile(member))
                    return True
        return False

    def close(self) -> None:
        if not self.live:
            self._file.close()

    def _opened(self) -> BinaryIO:
        head = self._raw.head
        for magic, name in _OTHER.items():
            if head.startswith(magic):
                hint = "convert it to text, plain or in gzip"
                raise DataError(
                    f"it is {name}, which is not read",
                    where=self.name,
                    hint=hint,
                    id="E-DATA-FORMAT",
                )
        if head.startswith(PARQUET):
            if self.live:
                hint = "name the file: it is not read from front to back"
                raise DataError(
                    "Parquet cannot come from standard input", hint=hint, id="E-DATA-FORMAT"
                )
            self.table = TableText(self.path, self._ignore)
            return cast(BinaryIO, self.table)
        stream: Headed = self._raw
        if head.startswith(GZIP):
            packed = io.BufferedReader(self._raw)
            stream = Headed(gzip.GzipFile(fileobj=packed, mode="rb").readinto)
        elif head.startswith(ZSTD):
            stream = Headed(_Zstd(self._raw, self.name).readinto)
        if stream.head.startswith(PARQUET):
            hint = "unpack it: its columns are packed one by one"
            raise DataError(
                "it is Parquet, packed once more", where=self.name, hint=hint, id="E-DATA-FORMAT"
            )
        if stream.head[_TAR_MAGIC] == b"ustar":
            self._archive = tarfile.open(fileobj=cast(BinaryIO, stream), mode="r|")
        return cast(BinaryIO, stream)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        hint: str | None = "copy or make it again"
        try:
            yield
            return
        except EOFError:
            what = "the compressed data ends early"
        except (gzip.BadGzipFile, zlib.error, _DamagedError) as error:
            what = f"the compressed data is damaged, or something else follows it ({error})"
        except tarfile.TarError as error:
            what = f"damaged archive: {error}"
        except OSError as error:
            what, hint = f"cannot read it: {error.strerror}", None
        raise DataError(what, where=self.name, hint=hint)


class _DamagedError(Exception):
    """Packed bytes that are none."""


def stdin_is_empty() -> bool:
    """Whether standard input ends without a byte; waits for the first one."""
    return sys.stdin is None or not sys.stdin.buffer.peek(1)  # type: ignore[union-attr]


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise DataError("there is no standard input")
    return cast(BinaryIO, sys.stdin.buffer)


class _Zstd:
    """Zstd frames, one after the other, as one text.

    The package's own reader takes a file that is cut short for one that ends.
    """

    def __init__(self, raw: Headed, name: str):
        try:
            import zstandard
        except ImportError:
            hint = "install it (pip install 'ctrps[zst]'), or convert the file to gzip"
            what = "it is zstd, which needs the package zstandard"
            raise DataError(what, where=name, hint=hint, id="E-PACKAGE") from None
        self._zstandard = zstandard
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        self._packed = b""
        self._text = memoryview(b"")

    def readinto(self, memory: memoryview) -> int:
        while not self._text:
            self._packed = self._packed or self._raw.read(_ZSTD_STEP) or b""
            if not self._packed:
                if self._begun:
                    raise EOFError
                return 0
            self._unpack()
        part = self._text[: len(memory)]
        memory[: len(part)] = part
        self._text = self._text[len(part) :]
        return len(part)

    def _unpack(self) -> None:
        try:
            self._text = memoryview(self._frame.decompress(self._packed))
        except self._zstandard.ZstdError as error:
            raise _DamagedError(str(error)) from None
        self._packed, self._begun = b"", True
        if self._frame.eof:
            self._packed, self._begun = self._frame.unused_data, False
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
