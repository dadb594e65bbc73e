"""Lines of a file of samples in any order, with a bounded part of the file in memory.

Shuffled lines come from everywhere in the file. Where it is too long to be held, it is read once
for each bounded run of them, from front to back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ctrps.data.sampletext import SampleText
from ctrps.errors import DataError
from ctrps.kernels.gather import gather_texts

WINDOW_BYTES = 4 << 20
"""Bytes that are read at a time out of a file that is not held."""

LINE_BYTES = 48
"""Memory for the places of a line, and for its place among all."""

Piece = tuple[SampleText, np.ndarray]
"""Text, and the first bytes of lines of it, int64."""


class TextLines:
    """Lines of a text that is in memory.

    Attributes
    ----------
    header : tuple of str
    file : str
        Its name, for messages.
    count : int
        Its lines, without the header.
    """

    def __init__(self, text: SampleText):
        self.header, self.file, self.count = text.header, text.file, len(text.lines)
        self._text = text

    def pieces(self, order: np.ndarray) -> Iterator[Piece]:
        """All lines in an order of their numbers from 0, int64[count]."""
        yield self._text, self._text.lines[order]


class FileLines:
    """The same of a file, of which about ``room`` bytes are in memory at a time.

    It is more where these are few: a line is read whole.
    """

    def __init__(self, path: Path, room: int):
        self.file = str(path)
        self._path, self._room = path, room
        self._size = path.stat().st_size
        self._scan()

    def _scan(self) -> None:
        """Find header and lines without keeping the text."""
        found, at = [np.empty(0, np.int64)], 0
        with open(self._path, "rb", buffering=0) as file:
            buffer = np.empty(WINDOW_BYTES, np.uint8)
            while read := file.readinto(buffer.data):
                found.append(np.flatnonzero(buffer[:read] == 10) + at)
                at += read
        starts = np.concatenate(found) + 1
        self._starts = starts[starts < self._size]
        self._sizes = np.diff(self._starts, append=self._size)
        self.count = len(self._starts)
        head = np.fromfile(self._path, np.uint8, int(self._starts[0]) if self.count else self._size)
        self.header = SampleText.parse(head, self.file).header

    def pieces(self, order: np.ndarray) -> Iterator[Piece]:
        """As in ``TextLines``; a text holds some of the lines."""
        ends = np.cumsum(self._sizes[order])
        # A piece is still there when the next one is made.
        most = max((self._room - LINE_BYTES * self.count) // 2, WINDOW_BYTES)
        first = before = 0
        while first < len(order):
            last = max(int(np.searchsorted(ends, before + most, "right")), first + 1)
            yield self._piece(order[first:last])
            first, before = last, int(ends[last - 1])

    def _piece(self, wanted: np.ndarray) -> Piece:
        """Some lines, by number, in their order."""
        by_number = np.argsort(wanted)
        numbers = wanted[by_number]
        starts, sizes = self._starts[numbers], self._sizes[numbers]
        ends = np.cumsum(sizes)
        data = np.empty(int(ends[-1]), np.uint8)
        buffer = np.empty(WINDOW_BYTES, np.uint8)
        with open(self._path, "rb", buffering=0) as file:
            first = 0
            while first < len(starts):
                limit = int(starts[first]) + WINDOW_BYTES
                last = max(int(np.searchsorted(starts + sizes, limit, "right")), first + 1)
                begin, end = int(starts[first]), int(starts[last - 1] + sizes[last - 1])
                if end - begin > len(buffer):
                    buffer = np.empty(end - begin, np.uint8)
                self._read(file.fileno(), begin, buffer[: end - begin])
                at = int(ends[first - 1]) if first else 0
                out = data[at : int(ends[last - 1])]
                gather_texts(buffer, starts[first:last] - begin, sizes[first:last], out)
                first = last
        lines = np.empty(len(wanted), np.int64)
        lines[by_number] = ends - sizes
        # The header is line 1.
        return SampleText(self.file, data, self.header, ends - sizes, numbers=numbers + 2), lines

    def _read(self, file: int, at: int, out: np.ndarray) -> None:
        data = out.data
        while data:
            read = os.preadv(file, [data], at)
            if not read:
                raise DataError("it became shorter while it was read", where=self.file)
            at, data = at + read, data[read:]


def read_sample(path: Path) -> SampleText:
    """A file of samples, whole.

    Raises
    ------
    DataError
        When it cannot be read.
    """
    # Mapped, not copied: pages come as they are read. Writable only for the kernels' sake.
    empty = not _size(path)
    data = np.empty(0, np.uint8) if empty else np.memmap(path, np.uint8, "c").view(np.ndarray)
    return SampleText.parse(data, str(path))


def sample_lines(path: Path, room: int) -> TextLines | FileLines:
    """A file of samples; whole, if that takes no more than ``room`` bytes, about.

    Raises
    ------
    DataError
        When it cannot be read.
    """
    if _size(path) > 0.9 * room:
        return FileLines(path, room)
    return TextLines(read_sample(path))


def _size(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        what = f"cannot read it: {error.strerror}"
        raise DataError(what, where=str(path), id="E-DATA-MISSING") from None
