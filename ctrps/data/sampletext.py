"""A file of samples in memory: where its header and its lines are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NEWLINE = np.uint8(10)


@dataclass(frozen=True, slots=True)
class SampleText:
    """A sample file in memory: tab-separated, a header line, a line per row.

    Attributes
    ----------
    file
        Where it came from, for messages.
    data : uint8[size]
        Its bytes, writable so that kernels are compiled once.
    header
        Names of the fields, in the order of the file.
    lines : int64[n]
        First byte of each line after the header.
    """

    file: str
    data: np.ndarray
    header: tuple[str, ...]
    lines: np.ndarray

    @classmethod
    def parse(cls, data: np.ndarray, file: str) -> SampleText:
        """Find header and lines; a byte order mark and blanks around names do not count."""
        breaks = np.flatnonzero(data == NEWLINE) + 1
        starts = np.concatenate([breaks, [len(data)]])
        head = bytes(data[: starts[0]]).decode("utf-8-sig", "backslashreplace")
        header = tuple(name.strip() for name in head.split("\t"))
        return cls(file, data, header, starts[starts < len(data)])

    def line_of(self, start: int) -> int:
        """Number, from 1, of the line that holds a byte after the header."""
        return int(np.searchsorted(self.lines, start, side="right")) + 1

    def place(self, position: int) -> tuple[int, int]:
        """Line and column, from 1, of a byte after the header."""
        line = self.line_of(position)
        return line, position - int(self.lines[line - 2]) + 1
