"""What the columns of a table are most likely for, by their names and first rows: for `ctrps init`.

A proposal is for a person to look at. Training itself guesses nothing: it takes each column for
what the job file says.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ctrps.data.columns import SEPARATORS
from ctrps.data.header import read_header
from ctrps.data.textfile import TextFile
from ctrps.errors import DataError

LOOK_BYTES = 1 << 20
ROWS = 2000
"""Rows that are looked at, of the first MiB."""

LABELS = (
    *("label", "click", "clicked", "clk", "is_click", "isclick", "is_clicked", "y", "target"),
    *("conversion", "converted", "is_conversion", "action", "response"),
)
"""Usual names of the label, the most usual first."""

MISSING = frozenset({"na", "n/a", "nan", "null", "none", "\\n", "-", "?"})
"""Usual texts for a missing value, in small letters."""

AMOUNT = re.compile(
    r"(^|_| )(price|amount|cost|bid|count|cnt|num|number|age|duration|length|size|width|height"
    r"|score|rate|ratio|views|clicks|impressions|days|hours|minutes|seconds|distance|income|spend)s?$",
    re.IGNORECASE,
)
"""Names of columns whose whole numbers are amounts; elsewhere they mostly stand for things."""

ROW_ID = re.compile(r"(^|[_ ])(id|key|uuid|guid|index|row)$|Id$|ID$|^column 1$")

TIME = re.compile(r"(^|_| )(time|timestamp|date|datetime|ts)$|_at$", re.IGNORECASE)
"""Names of columns that say when: their values do not come again, and say nothing as they are."""

FEW = 30
"""So many different values, or fewer, are taken for categories."""

DISTINCT_ROWS = 20
"""From so many rows on, a text that is another one in each row says nothing."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The use of each column of a table.

    Attributes
    ----------
    label, id
        None where no column looks like it.
    numeric, ignore, categories, missing
    share
        Of the rows that were looked at, those whose label is 1.
    """

    label: str | None
    id: str | None
    numeric: tuple[str, ...]
    categories: tuple[str, ...]
    ignore: tuple[str, ...]
    missing: tuple[str, ...]
    share: float | None


def propose(path: Path, form: str) -> Proposal:
    """Look at the beginning of a table with a header.

    Parameters
    ----------
    path
    form
        A key of ``SEPARATORS``.

    Raises
    ------
    DataError
        It cannot be read, or has no rows.
    """
    separator = SEPARATORS[form]
    with TextFile(path, chunk_bytes=LOOK_BYTES) as file:
        names = read_header(file, separator, [f"column {n}" for n in range(1, 1 << 12)])
        if not len(file.buffer):
            file.more()
        text = file.buffer.tobytes().decode("utf-8", "replace")
    whole = text.rpartition("\n")[0] or text
    rows = [row for row in csv.reader(whole.splitlines(), delimiter=separator) if row][:ROWS]
    rows = [row for row in rows if len(row) == len(names)]
    if not rows:
        raise DataError("no rows to look at", where=str(path), id="E-DATA-EMPTY")
    return propose_columns(dict(zip(names, zip(*rows, strict=True), strict=True)))


def propose_columns(columns: Mapping[str, Sequence[str]]) -> Proposal:
    """The use of columns with these values.

    Examples
    --------
    >>> rows = {"user_id": ["7", "8"] * 20, "price": [f"{n}.5" for n in range(40)],
    ...         "clicked": ["0", "1"] * 20, "id": [f"r{n}" for n in range(40)]}
    >>> found = propose_columns(rows)
    >>> found.label, found.id, found.numeric, found.categories
    ('clicked', 'id', ('price',), ('user_id',))
    """
    cut = {name: [text.strip() for text in values] for name, values in columns.items()}
    label = _label(cut)
    gaps: set[str] = set()
    id: str | None = None
    numeric, categories, ignore = [], [], []
    for name, values in cut.items():
        if name == label:
            continue
        amount = _is_amount(name, values)
        if _is_other_in_each(values) and not amount:
            if id is None and ROW_ID.search(name):
                id = name
            else:
                ignore.append(name)
        elif TIME.search(name) and len({*values}) > FEW:
            ignore.append(name)
        elif amount:
            numeric.append(name)
            gaps |= {text for text in values if text.lower() in MISSING}
        else:
            categories.append(name)
    ones = [float(text) > 0 for text in cut[label]] if label else []
    return Proposal(
        label,
        id,
        tuple(numeric),
        tuple(categories),
        tuple(ignore),
        tuple(sorted(gaps)),
        sum(ones) / len(ones) if ones else None,
    )


def _label(columns: Mapping[str, Sequence[str]]) -> str | None:
    """The column of two values whose name is most usual; else the only one with zeros and ones."""
    two = {name: values for name, values in columns.items() if {*values} <= {"0", "1", "-1"}}
    for usual in LABELS:
        for name in two:
            if name.lower() == usual:
                return name
    both = [name for name, values in two.items() if len({*values}) == 2]
    return both[0] if len(both) == 1 else None


def _is_other_in_each(values: Sequence[str]) -> bool:
    return len(values) >= DISTINCT_ROWS and len({*values}) == len(values)


def _is_amount(name: str, values: Sequence[str]) -> bool:
    """Finite numbers, but for gaps; fractions, or whole ones of a column that is named like it."""
    texts = [text for text in values if text and text.lower() not in MISSING]
    try:
        numbers = {float(text) for text in texts}
    except ValueError:
        return False
    if not numbers or not all(map(math.isfinite, numbers)):
        return False
    if any(number != int(number) for number in numbers):
        return True
    return len(numbers) > FEW and AMOUNT.search(name) is not None
