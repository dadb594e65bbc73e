"""How text with examples is to be read, and what its readers have in common.

Which reader serves which format is ``formats``' business; what the bytes of a file are packed in,
``streams``'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.rows import Ids, Rows, Schema
from ctrps.data.textfile import TextFile
from ctrps.errors import ConfigError
from ctrps.kernels import fields, pairs, text

TABLES = ("csv", "tsv", "criteo", "jsonl", "parquet")
"""Formats whose rows have named columns."""

PAIRS = ("libsvm", "libffm", "vw", "dummy", "slots", "signs")
"""Formats whose rows are keys and values."""

UNTOLD = ("slots", "signs")
"""Formats that content never tells."""

FORMATS = ("auto", "shard", *PAIRS, *TABLES)
LABELS = {"required": text.REQUIRED, "optional": text.OPTIONAL, "none": text.NONE}

BAD_PER_CALL = 256
"""Bad rows that a kernel reports before it must be called again."""

NO_COLUMN = ""
"""A name that no column can have."""

REASONS = {
    text.LABEL: "expected a label 0, 1, -1 or +1",
    text.FEATURE: "expected key:value, a key of 0 to 2^64-1 and a finite number",
    text.INDEX: "expected an index without a value, 0 to 2^64-1",
    fields.NUMBER: "expected a finite number",
    fields.AFTER_QUOTE: "expected a separator after the closing quote",
    fields.UNCLOSED: "expected a closing quote",
    pairs.TRIPLE: "expected field:key:value, a field of 0 to 4095, a key of 0 to 2^64-1 and a "
    "finite number",
    pairs.HEAD: "expected a label, no importance but 1 and at most a 'tag in front of the bar: "
    "rows carry no weights",
    pairs.TAG: "expected no tag as there is none in the first row: a file names all rows or none",
    pairs.NAMESPACE: "expected a namespace, name or name:scale with a finite number",
    pairs.WORD: "expected a feature, name or name:value with a finite number",
    pairs.MANY: "expected no more than 4096 namespaces or slots",
    pairs.PAIR: "expected slot:value (signs: value:slot), and in front no more fields than "
    "data.columns names",
}


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How text is to be read.

    Attributes
    ----------
    format
        One of ``FORMATS``; ``auto`` looks at the content of each file.
    label, id
        Columns of a table with the label, and with a text to keep (None: none).
    numeric
        Columns taken as numbers. All columns not named here are categories.
    ignore
        Columns left out.
    columns
        Names of the columns of a csv or tsv without a header; all fields that
        a row of JSON may have; fields in front of slot text. Empty: the header,
        or the first row, says.
    missing
        Texts that stand for a missing value, besides the empty one.
    labels
        ``required``; ``optional``: NaN where there is none; ``none``: no row
        of a libsvm, libffm or dummy file has one, and those of others are not
        read. Each row of a dummy file begins with one if not ``none``.
    slots
        Slots of libffm, VW or slot text that come before those it is seen to have.
    zero_based
        Those of ``ctrps.sections.INDEXED`` whose files count from 0: 1 is added to each index,
        so that it is that of files that count from 1.
    keep
        Columns of a table whose texts are kept beside the rows, whatever else they are for.
    others
        Fields of JSON that are not among ``columns`` are left out instead of
        being an error.
    block_rows, max_bad
        Rows of a shard's block; share of rows that may be bad.
    """

    format: str = "auto"
    label: str = "label"
    numeric: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    id: str | None = None
    missing: tuple[str, ...] = ("",)
    block_rows: int = 4096
    max_bad: float = 0.0
    labels: str = "required"
    columns: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    others: bool = False
    zero_based: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    @property
    def shift(self) -> np.uint64:
        """What is added to an index of ``format``; 2^64-1 then becomes 0, which nothing else is."""
        return np.uint64(self.format in self.zero_based)

    def __post_init__(self) -> None:
        if self.format not in FORMATS or self.labels not in LABELS:
            what = f"no format {self.format!r} with labels {self.labels!r}"
            raise ConfigError(what, hint=f"formats are {', '.join(FORMATS)}")
        named = [self.label, *self.numeric, *self.ignore, *([self.id] if self.id else [])]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            hint = "a column has one use: data.label, data.id, data.numeric or data.ignore"
            raise ConfigError(f"column {twice[0]!r} is named twice", hint=hint)


class Reader(Protocol):
    """The rows of one file in its order, to be gone through once.

    Attributes
    ----------
    schema
        Of the rows so far: that of key-value text may get more slots at its end
        while rows are read (``Schema.extends``).
    """

    @property
    def schema(self) -> Schema: ...

    def __iter__(self) -> Iterator[Rows]: ...


def room_to_ask(text_bytes: int) -> np.ndarray:
    """Places for all numbers of a text that ``ask`` may have to read.

    Below four bytes, as 1e23 has, every number is exact, and something stands in front of each.

    Returns
    -------
    int32[text_bytes // 5 + 1, 3]
    """
    return np.empty((text_bytes // 5 + 1, 3), np.int32)


def ask(file: TextFile, values: np.ndarray, asked: np.ndarray) -> None:
    """Numbers in the middle between two float32, by the long way."""
    for at, start, end in asked.tolist():
        values[at] = float(file.buffer[start:end].tobytes())


def reject(file: TextFile, bad: BadRows, reason: str, start: int, end: int) -> None:
    """Report a bad row by the place of the offending text in the buffer."""
    line, column = file.place(start)
    bad.reject(file.name, line, column, reason, file.buffer[start:end].tobytes())


def texts(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Ids:
    """Pieces of a buffer as texts of rows."""
    borders = np.cumsum(ends.astype(np.int64) - starts)
    out = np.empty(int(borders[-1]) if len(borders) else 0, np.uint8)
    fields.copy_texts(buffer, starts, ends, out)
    return out, borders
