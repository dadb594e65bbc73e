"""The first row of a table: names of its columns."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection

from ctrps.data.badrows import shown
from ctrps.data.textfile import TextFile
from ctrps.errors import DataError


def read_header(
    file: TextFile, separator: str, unnamed: Collection[str] | None = None
) -> list[str]:
    """Read the names of the columns, and leave the file behind them.

    Parameters
    ----------
    file
        At its start. Blank lines in front of the header are skipped.
    separator
    unnamed
        A column without a name is called ``column 3`` and must be one of these. None: all have
        names.

    Returns
    -------
    list of str
        Without quotes and blanks around them; empty if the file holds nothing but blank lines.

    Raises
    ------
    DataError
        For text that is no row, a column without a name, and two of one name.
    """
    while file.more():
        data = file.buffer.tobytes()
        start = len(data) - len(data.lstrip(b" \r\n"))
        end = _record_end(data, start)
        if start < len(data) and (end or file.final):
            where = f"{file.name}:{file.place(start)[0]}"
            names = _names(data[start : end or len(data)], separator, unnamed, where)
            file.consume(end or len(data))
            return names
    return []


def _record_end(data: bytes, at: int) -> int:
    """Behind the first line end outside quotes; 0 if there is none."""
    quotes = 0
    while (end := data.find(b"\n", at) + 1) > 0:
        quotes += data.count(b'"', at, end)
        if quotes % 2 == 0:
            break
        at = end
    return end


def _names(record: bytes, separator: str, unnamed: Collection[str] | None, where: str) -> list[str]:
    try:
        text = record.decode("utf-8").rstrip("\r\n")
        # Not strict: blanks may stand between a closing quote and the separator.
        rows = list(csv.reader([text], delimiter=separator, skipinitialspace=True))
    except (UnicodeDecodeError, csv.Error) as error:
        what = f"cannot read the header {shown(record)} ({error})"
        raise DataError(what, where=where, id="E-DATA-COLUMN") from None
    if text.count('"') % 2:
        raise DataError(
            f"cannot read the header {shown(record)} (open quote)", where=where, id="E-DATA-COLUMN"
        )
    found = [name.strip() for name in rows[0]] if len(rows) == 1 else [""]
    names = [name or f"column {number}" for number, name in enumerate(found, 1)]
    for name, written in zip(names, found, strict=True):
        if not written and name not in (unnamed or ()):
            hint = "a table begins with the names of its columns"
            if unnamed is not None:
                hint += f"; name it, or leave it out as {name!r} with data.ignore"
            raise DataError(
                f"{name} of the header has no name", where=where, hint=hint, id="E-DATA-COLUMN"
            )
    check_distinct(names, where)
    return names


def check_distinct(names: Collection[str], where: str) -> None:
    """Raise DataError if a name comes twice."""
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        hint = "rename or remove one of them"
        raise DataError(
            f"two columns are named {twice!r}", where=where, hint=hint, id="E-DATA-COLUMN"
        )
