"""Rows to text that other tools read: libsvm, libffm and VW.

A row is written as the models see it: a key of a slot of n keys weighs 1/n where slots weigh by
the mean, a dense number is the value of its own key, and one that is 0 is left out. Keys are
written as numbers, because what was hashed to them is not known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ctrps.data.badrows import shown
from ctrps.data.rows import Rows, Schema
from ctrps.errors import DataError
from ctrps.kernels.textout import KEY_DIGITS, rows_text

TEXTS = ("libsvm", "libffm", "vw")
"""Formats that can be written."""


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name when it is complete. A device or pipe is written as it is."""
    target = Path(os.path.realpath(path))
    special = target.exists() and not target.is_file()
    name = target if special else target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        with open(name, "wb") as file:
            yield file
            file.flush()
            if not special:
                os.fsync(file.fileno())
        if not special:
            os.replace(name, target)
    except BrokenPipeError:
        raise
    except OSError as error:
        what, hint = f"cannot write it: {error.strerror}", "make room, or write it elsewhere"
        raise DataError(what, where=str(path), hint=hint, id="E-DISK") from None
    finally:
        if not special:
            name.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts one behind the other, as kernels take them."""

    data: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> _Texts:
        ends = np.cumsum([0, *map(len, texts)])[1:]
        return cls(np.frombuffer(bytearray(b"".join(texts)), np.uint8), ends)


_HEADS = _Texts.of([b"", b"0", b"1", b"-1"])
_NO_WORD = b" \t\r\n|:"
"""Bytes that end a word of VW text."""


class TextWriter:
    """Writes rows to a stream in one of ``TEXTS``.

    Parameters
    ----------
    write
        Takes the bytes of whole lines.
    form
    """

    def __init__(self, write: Callable[[bytes], object], form: str):
        self._write = write
        self._form = form
        self._schema: Schema | None = None
        self._opens = self._tags = _Texts.of([])
        self._dense_keys = np.empty(0, np.uint64)
        self._labelled: bool | None = None

    def add(self, rows: Rows, schema: Schema) -> None:
        """Write rows of ``schema``, which may grow from call to call.

        Raises
        ------
        DataError
            For what the format cannot say: a name or an id with a blank, a bar or a colon in VW
            text, and rows with and without labels in one file of the others.
        """
        if schema != self._schema:
            self._take(schema)
        if not rows.rows:
            return
        counts, keys, values = self._flat(rows, schema)
        distinct, numbers = np.unique(values, return_inverse=True)
        # NumPy writes the shortest text that reads back to the same float32.
        words = _Texts.of([text.removesuffix(b".0") for text in distinct.astype("S").tolist()])
        ids = self._ids(rows)
        entries = int((counts.sum(axis=0) * self._room(words)).sum())
        # Beside its entries and its id a line has a label of two bytes, " '" and its end.
        out = np.empty(entries + len(ids.data) + 5 * rows.rows, np.uint8)
        size = rows_text(
            _HEADS.data,
            _HEADS.ends,
            self._heads(rows.labels),
            ids.data,
            ids.ends,
            self._opens.data,
            self._opens.ends,
            self._tags.data,
            self._tags.ends,
            words.data,
            words.ends,
            counts,
            keys,
            numbers.astype(np.int64).reshape(-1),
            out,
        )
        self._write(out[:size].tobytes())

    def _room(self, words: _Texts) -> np.ndarray:
        """Most bytes of an entry in each slot, int64[s]."""
        longest = int(np.diff(words.ends, prepend=0).max(initial=0))
        lengths = [np.diff(texts.ends, prepend=0) for texts in (self._opens, self._tags)]
        return lengths[0] + lengths[1] + KEY_DIGITS + 1 + longest

    def _take(self, schema: Schema) -> None:
        names = (*schema.slots, *schema.dense)
        opens, tags = [b""] * len(names), [b" "] * len(names)
        if self._form == "libffm":
            tags = [b" %d:" % number for number in range(len(names))]
        if self._form == "vw":
            opens = [
                b" |" + (b"" if name == " " else _word(name.encode(), "slot")) for name in names
            ]
        self._opens, self._tags = _Texts.of(opens), _Texts.of(tags)
        self._schema, self._dense_keys = schema, schema.dense_keys()

    def _flat(self, rows: Rows, schema: Schema) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Counts, keys and values of rows whose dense numbers are slots behind the others."""
        sizes = rows.counts.reshape(-1)
        values = rows.values
        if values is None:
            values = np.ones(len(rows.keys), np.float32)
            if schema.weights == "mean":
                values /= np.repeat(sizes, sizes).astype(np.float32)
        if not schema.dense:
            return rows.counts, rows.keys, values
        shown = rows.dense != 0
        row_of = np.repeat(np.arange(rows.rows), rows.counts.sum(axis=1))
        dense_row, dense_slot = np.nonzero(shown)
        order = np.argsort(np.concatenate([row_of, dense_row]), kind="stable")
        return (
            np.concatenate([rows.counts, shown.astype(np.int32)], axis=1),
            np.concatenate([rows.keys, self._dense_keys[dense_slot]])[order],
            np.concatenate([values, rows.dense[shown]])[order],
        )

    def _heads(self, labels: np.ndarray) -> np.ndarray:
        """Numbers of the beginnings of lines: nothing, 0, 1, or -1 for VW, whose loss expects it.

        Rows of libsvm and libffm without a label begin with a blank, which their readers skip.
        """
        none = np.isnan(labels)
        if self._form != "vw":
            self._check_labels(none)
        negative = 3 if self._form == "vw" else 1
        return np.where(none, 0, np.where(labels == 1, 2, negative)).astype(np.int64)

    def _ids(self, rows: Rows) -> _Texts:
        if self._form != "vw" or rows.ids is None:
            return _Texts.of([])
        data, ends = rows.ids
        wrong = np.flatnonzero(np.isin(data, np.frombuffer(_NO_WORD, np.uint8)))
        if len(wrong):
            row = int(np.searchsorted(ends, wrong[0], side="right"))
            start = int(ends[row - 1]) if row else 0
            _word(data[start : ends[row]].tobytes(), "id")
        return _Texts(data, ends)

    def _check_labels(self, none: np.ndarray) -> None:
        if self._labelled is None:
            self._labelled = not none[0]
        if none.any() if self._labelled else not none.all():
            what = f"some rows have a label and some have none, which {self._form} cannot say"
            raise DataError(what, hint="write vw or a shard")


def _word(word: bytes, what: str) -> bytes:
    if any(byte in word for byte in _NO_WORD):
        message = f"{what} {shown(word)} has a blank, bar or colon, which VW text cannot say"
        raise DataError(message, hint="rename it, or write libffm")
    return word
