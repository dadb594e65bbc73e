"""Rows that cannot be read: the first one stops the run, or a share of them is set aside.

Readers and feature extraction report each bad row here and go on; this module
decides whether that is allowed. It reads no data itself and never changes a
value: a row is good as it stands or it is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ctrps.errors import DataError

FIRST = 3
"""How many bad rows an error or a summary shows."""

SHOWN = 60
"""Characters of the offending text in a message; a line of a terminal holds no more."""


KEPT_BYTES = 1 << 16
"""Bytes of a row that are set aside; what is longer is hardly a row."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """One rejected row: where it stands, what was expected there and what was found."""

    file: str
    line: int
    column: int
    reason: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}, found {shown(self.text)}"


def shown(text: str | bytes) -> str:
    r"""Text of unknown origin, quoted, printable and short enough for a message.

    Examples
    --------
    >>> print(shown(b"a\x00b\t" + bytes([0xFF])))
    'a\x00b\t\xff'
    >>> len(shown("x" * 1000))
    65
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    short = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    return "'" + escaped(short) + "'"


def escaped(text: str) -> str:
    r"""``text`` on one line: control characters and other unprintable ones as escapes.

    Examples
    --------
    >>> escaped("a\tb\n")
    'a\\tb\\n'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class BadRows:
    """Counts bad rows and holds the run to the share that is allowed.

    With a share of zero the first bad row raises. Otherwise each is counted,
    the first few are remembered, all are written to ``aside``, and the run
    stops when their share is too high: at the end, or as soon as no number of
    good rows to come could make up for it.

    Parameters
    ----------
    max_share
        Share of rows, 0 to 1, that may be bad.
    aside
        File that takes the bad rows: tab-separated file, line, column, reason
        and text, no header. Created at the first bad row, not before; an
        existing one is replaced. May be changed between input files.
    setting
        Name of the configuration key behind ``max_share``, for messages.

    Attributes
    ----------
    count : int
        Bad rows so far.
    first : list[BadRow]
        The first three.

    Examples
    --------
    >>> bad = BadRows(0.5)
    >>> bad.reject("a.csv", 3, 1, "expected a number", "x")
    >>> bad.finish(total_rows=2)
    >>> bad.count, str(bad.first[0])
    (1, "a.csv:3:1: expected a number, found 'x'")
    """

    def __init__(
        self, max_share: float = 0.0, aside: Path | None = None, *, setting: str = "data.max_bad"
    ):
        self.max_share = max_share
        self.setting = setting
        self.count = 0
        self.first: list[BadRow] = []
        self._aside = aside
        self._stream: TextIO | None = None

    @property
    def aside(self) -> Path | None:
        return self._aside

    @aside.setter
    def aside(self, path: Path | None) -> None:
        self.close()
        self._aside = path

    def reject(
        self, file: str | Path, line: int, column: int, reason: str, text: str | bytes
    ) -> None:
        """Report one bad row.

        Parameters
        ----------
        file, line, column
            Place of ``text``; line and column count from 1, columns in bytes.
        reason
            What was expected there: ``expected a finite number``.
        text
            The offending piece as it stands in the file; ``KEPT_BYTES`` of it are kept.

        Raises
        ------
        DataError
            When no bad row is allowed.
        """
        text = text[:KEPT_BYTES]
        if isinstance(text, bytes):
            text = text.decode("utf-8", "backslashreplace")
        row = BadRow(str(file), line, column, reason, text)
        if self.max_share <= 0:
            what = f"{reason}, found {shown(text)}"
            hint = f"mend the row, or let a share of the rows be bad with {self.setting}"
            raise DataError(what, where=row.where, hint=hint, id="E-DATA-ROW")
        self._remember(row)
        self._write(row)

    def expect(self, most_rows: int) -> None:
        """Stop early: the whole input holds at most ``most_rows`` rows, good and bad.

        Raises
        ------
        DataError
            When there are already more bad rows than such an input may have.
        """
        if self.count > self._allowed(most_rows):
            self.close()
            limit = f"{self.max_share:.4g} of at most {most_rows} rows may be"
            raise self._too_many(f"{self.count} bad rows, and only {limit}")

    def finish(self, total_rows: int) -> None:
        """End of the input, which held ``total_rows`` rows, good and bad.

        Raises
        ------
        DataError
            When the share of bad rows is above ``max_share``.
        """
        self.close()
        if self.count > self._allowed(total_rows):
            share = f"{self.count / max(total_rows, 1):.4g}"
            limit = f"more than {self.setting} = {self.max_share:.4g} allows"
            raise self._too_many(f"{self.count} of {total_rows} rows are bad ({share}), {limit}")

    def include(self, rows: Iterable[BadRow]) -> None:
        """Count bad rows that were found, and set aside, elsewhere: see ``read_aside``."""
        for row in rows:
            self._remember(row)

    def close(self) -> None:
        """Close the file aside; a later bad row would begin it anew."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _allowed(self, rows: int) -> int:
        # 0.29 * 100 is a little under 29 in floating point; the share means 29.
        return int(self.max_share * rows + 1e-9)

    def _remember(self, row: BadRow) -> None:
        self.count += 1
        if len(self.first) < FIRST:
            self.first.append(row)

    def _write(self, row: BadRow) -> None:
        if self._aside is None:
            return
        if self._stream is None:
            self._aside.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._aside.open("w", encoding="utf-8", newline="\n")
        texts = [row.file, str(row.line), str(row.column), row.reason, row.text]
        self._stream.write("\t".join(escaped(text) for text in texts) + "\n")

    def _too_many(self, what: str) -> DataError:
        seen = "; ".join(str(row) for row in self.first)
        where = f"; all of them are in {self._aside}" if self._aside else ""
        return DataError(what, hint=f"first ones: {seen}{where}", id="E-DATA-ROW")


def read_aside(path: Path) -> Iterable[BadRow]:
    """Yield the bad rows of a file that ``BadRows`` wrote.

    Texts come back in their printable form, which is all that messages need.
    """
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            file, number, column, reason, text = line.rstrip("\n").split("\t")
            yield BadRow(file, int(number), int(column), reason, text)
