"""An ini file in which every piece of text remembers its place, so that errors can point at it.

It knows sections, entries and comments, and collects what is wrong with them so that a file is
mended in one go. What the entries mean is ``ctrps.data.features``'s business.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ctrps.configfile import Place, Problem, as_error, display
from ctrps.errors import ConfigError

BLANKS = " \t"


class Piece(NamedTuple):
    """Part of a line, with the place of its first character (from 1)."""

    text: str
    line: int
    column: int

    def strip(self) -> Piece:
        """The piece without blanks around it."""
        text = self.text.lstrip(BLANKS)
        return Piece(text.rstrip(BLANKS), self.line, self.column + len(self.text) - len(text))

    def split(self, separator: str) -> list[Piece]:
        """The pieces between separators, without the blanks around them.

        Examples
        --------
        >>> [piece[:] for piece in Piece("a , b", 1, 5).split(",")]
        [('a', 1, 5), ('b', 1, 9)]
        """
        pieces, column = [], self.column
        for text in self.text.split(separator):
            pieces.append(Piece(text, self.line, column).strip())
            column += len(text) + len(separator)
        return pieces


class Problems:
    """What is wrong in a file, to be told all at once."""

    def __init__(self, path: str, lines: Sequence[str]):
        self._path = path
        self._lines = lines
        self._found: list[Problem] = []

    def add(self, piece: Piece, what: str) -> None:
        place = Place(self._path, piece.line, piece.column, self._lines[piece.line - 1])
        self._found.append(Problem(place, what, "E-CONFIG-FEATURES"))

    def unknown(self, piece: Piece, kind: str, known: Iterable[str]) -> None:
        """Tell of a name that does not exist, and of the nearest that does."""
        known = list(known)
        near = difflib.get_close_matches(piece.text, known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        self.add(piece, f"unknown {kind} {piece.text!r}; {hint}")

    def raise_any(self) -> None:
        """Raise one ConfigError with every problem in the order of its place, if there is any."""
        if self._found:
            raise as_error(self._found)


def read_utf8(path: Path | str, hint: str) -> str:
    """The text of a small file, without its byte order mark.

    Raises
    ------
    ConfigError
        When it cannot be read or is not UTF-8; ``hint`` says what names it.
    """
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot read: {error.strerror}",
            where=display(path),
            hint=hint,
            id="E-CONFIG-FILE",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"not UTF-8 at byte {error.start}",
            where=display(path),
            hint=hint,
            id="E-CONFIG-FILE",
        ) from None


class IniText:
    """The sections and entries of an ini file.

    Blanks around names, values and headers do not count, nor do line ends of either kind.
    Comments are lines that begin with ``#`` or ``;`` and ends of lines from a ``#`` after a blank.
    A section or a name that comes twice, and a section not in ``known``, are problems.

    Attributes
    ----------
    sections : dict[str, dict[str, tuple[Piece, Piece]]]
        Per section its entries in the order of the file: name -> (name, value), with places.
    headers : dict[str, int]
        Line of each section's header.
    problems : Problems
        Filled while reading; the caller adds its own and raises.
    """

    def __init__(self, text: str, path: str, known: Sequence[str]):
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        self.problems = Problems(path, lines)
        self.sections: dict[str, dict[str, tuple[Piece, Piece]]] = {}
        self.headers: dict[str, int] = {}
        self._known = known
        self._section: str | None = None
        for number, line in enumerate(lines, start=1):
            self._line(Piece(_without_comment(line), number, 1).strip())

    def _line(self, piece: Piece) -> None:
        if not piece.text or piece.text[0] in "#;":
            return
        if piece.text[0] == "[":
            self._header(piece)
        elif self._section is None:
            self.problems.add(piece, "an entry before the first [section]")
        else:
            self._entry(piece, self.sections[self._section])

    def _header(self, piece: Piece) -> None:
        # The entries of an unknown section are kept like others and never asked for, so that one
        # mistyped header gives one message.
        if not piece.text.endswith("]"):
            self.problems.add(piece, "a section header must end with ']'")
        name = Piece(piece.text[1:].removesuffix("]"), piece.line, piece.column + 1).strip()
        if name.text not in self._known:
            self.problems.unknown(name, "section", self._known)
        elif name.text in self.headers:
            what = f"section {name.text!r} again; it began in line {self.headers[name.text]}"
            self.problems.add(name, what)
        self._section = name.text
        self.headers.setdefault(name.text, name.line)
        self.sections.setdefault(name.text, {})

    def _entry(self, piece: Piece, entries: dict[str, tuple[Piece, Piece]]) -> None:
        before, equals, after = piece.text.partition("=")
        if not equals:
            self.problems.add(piece, "expected name=value or [section]")
            return
        name = Piece(before, piece.line, piece.column).strip()
        value = Piece(after, piece.line, piece.column + len(before) + 1).strip()
        if not name.text or not name.text.isprintable():
            self.problems.add(name, f"{name.text!r} cannot be a name")
        elif name.text in entries:
            first = entries[name.text][0].line
            self.problems.add(name, f"{name.text!r} again; it stands in line {first}")
        else:
            entries[name.text] = (name, value)


def _without_comment(line: str) -> str:
    """``line`` up to a ``#`` that follows a blank, unless a comma stands before the blank.

    An argument may begin with ``#`` and may have a blank before it: ``direct|bucket, #20|50``.
    """
    at = line.find("#", 1)
    while at > 0:
        if line[at - 1] in BLANKS and not line[:at].rstrip(BLANKS).endswith(","):
            return line[:at]
        at = line.find("#", at + 1)
    return line
