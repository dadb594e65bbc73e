"""A file of samples in memory: where its header and its lines are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctrps.kernels.gather import newlines

LINE_BYTES = 64
"""Lines that are shorter on the average are looked for twice."""


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
    before : int
        Lines of the file before the first of ``lines``.
    numbers : int64[n] or None
        Number of each line in the file, from 1, if they do not follow each other there.
    """

    file: str
    data: np.ndarray
    header: tuple[str, ...]
    lines: np.ndarray
    before: int = 1
    numbers: np.ndarray | None = None

    @classmethod
    def parse(cls, data: np.ndarray, file: str, lines: np.ndarray | None = None) -> SampleText:
        """Find header and ``lines``, if they are not known.

        A byte order mark and blanks around names do not count.
        """
        if lines is None:
            starts = np.append(_breaks(data) + 1, len(data))
            lines, end = starts[starts < len(data)], int(starts[0])
        else:
            end = int(lines[0]) if len(lines) else len(data)
        head = bytes(data[:end]).decode("utf-8-sig", "backslashreplace")
        header = tuple(name.strip() for name in head.split("\t"))
        return cls(file, data, header, lines)

    def line_of(self, start: int) -> int:
        """Number, from 1, of the line that holds a byte after the header."""
        return self.place(start)[0]

    def place(self, position: int) -> tuple[int, int]:
        """Line and column, from 1, of a byte after the header."""
        at = int(np.searchsorted(self.lines, position, side="right")) - 1
        line = at + 1 + self.before if self.numbers is None else int(self.numbers[at])
        return line, position - int(self.lines[at]) + 1


def _breaks(data: np.ndarray) -> np.ndarray:
    """Places of line ends."""
    places = np.empty(len(data) // LINE_BYTES + 1, np.int64)
    count = newlines(data, places)
    if count > len(places):
        places = np.empty(count, np.int64)
        newlines(data, places)
    return places[:count]
