"""Files of examples as rows, whatever their format.

``open_rows`` tells the format of a file and gives its rows in their order; what cannot be read is
reported to ``BadRows``. What each format looks like is the business of its reader: ``keyvalues``
(libsvm, dummy, libffm, VW, slots), ``columns`` (csv, tsv, Criteo, Parquet), ``jsonlines`` and
``keyed`` (Parquet of keys).

Turning files into shards, once, is ``convert``'s business; extraction of features from raw logs
is another reader (``extract``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ctrps.data.badrows import BadRows
from ctrps.data.columns import Fit, TableReader
from ctrps.data.detect import PARQUET, detect_open
from ctrps.data.jsonlines import JsonReader
from ctrps.data.keyed import KeyedReader, is_keyed
from ctrps.data.keyvalues import (
    LIBSVM,
    DummyReader,
    LibffmReader,
    LibsvmReader,
    SlotReader,
    VwReader,
)
from ctrps.data.reading import Reader, TextSettings
from ctrps.data.rows import Rows, Schema
from ctrps.data.shards import Shard
from ctrps.data.streams import STDIN
from ctrps.data.textfile import TextFile
from ctrps.errors import DataError

_PairReader = Callable[[TextFile, TextSettings, BadRows], Reader]
_PAIR_READERS: dict[str, _PairReader] = {
    "libsvm": LibsvmReader,
    "libffm": LibffmReader,
    "vw": VwReader,
    "dummy": DummyReader,
    "slots": SlotReader,
    "signs": SlotReader,
}


@dataclass(frozen=True, slots=True)
class RowSource:
    """An open file of examples. Use it as a context: leaving closes the file.

    Attributes
    ----------
    path
    format, why
        The format, and how it was told.
    rows
        All rows in file order; can be gone through once. Pieces without rows
        come where bad rows were, so that a caller can look at their number.
    file
        How far reading is; None for files of keys: shards, and what ``convert`` makes of Parquet.
    """

    path: Path
    format: str
    why: str
    rows: Iterator[Rows]
    file: TextFile | None
    _reader: Reader

    @property
    def schema(self) -> Schema:
        """Of the rows so far; see ``Reader``."""
        return self._reader.schema

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.path) if self.file is None else self.file.name

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_rows(
    path: Path,
    settings: TextSettings,
    bad: BadRows,
    chunk_bytes: int = 1 << 20,
    fit: Fit | None = None,
) -> RowSource:
    """Open a file of examples: tell its format, read a header, but no row yet.

    The caller owns ``bad`` and calls its ``finish`` at the end of all input. A
    file without rows is no error here: it may be one part of many. ``-`` is
    standard input. ``fit`` may change the settings once the columns of a table
    are known.

    Raises
    ------
    DataError
        For a file that cannot be read, or a header that does not fit
        ``settings``; while rows are read, for the first bad row if no share of
        bad rows is allowed, and for data that ends early.
    """
    path = Path(path)
    if settings.format == "shard":
        return _open_shard(path, "data.format says so")
    if settings.format in ("auto", "parquet") and is_keyed(path):
        keyed = KeyedReader(path)
        return RowSource(path, *PARQUET, iter(keyed), None, keyed)
    file = TextFile(path, chunk_bytes, ignore=settings.ignore)
    try:
        form, why = settings.format, "data.format says so"
        if form == "auto":
            form, why = detect_open(file)
        if (form == "parquet") != file.parquet:
            raise _not_as_said(file, form)
        if form == "shard":
            file.close()
            return _open_shard(path, why)
        how = dataclasses.replace(settings, format=form)
        reader = _reader(file, how, bad, fit)
    except BaseException:
        file.close()
        raise
    return RowSource(path, form, why, iter(reader), file, reader)


def _not_as_said(file: TextFile, form: str) -> DataError:
    if file.parquet:
        what, hint = f"it is Parquet, and data.format says {form}", "leave data.format out"
    else:
        what, hint = "it is no Parquet: that begins with PAR1", "copy it again, or name its format"
    return DataError(what, where=file.name, hint=hint, id="E-DATA-FORMAT")


def _reader(file: TextFile, how: TextSettings, bad: BadRows, fit: Fit | None) -> Reader:
    if how.format in _PAIR_READERS:
        return _PAIR_READERS[how.format](file, how, bad)
    if how.format == "jsonl":
        return JsonReader(file, how, bad, fit)
    return TableReader(file, how, bad, fit)


class _ShardReader:
    def __init__(self, shard: Shard):
        self.schema = shard.schema
        self._shard = shard

    def __iter__(self) -> Iterator[Rows]:
        return (block.to_rows() for block in self._shard.blocks())


def _open_shard(path: Path, why: str) -> RowSource:
    if path == STDIN:
        hint = "name the file: it is not read from front to back"
        raise DataError("a shard cannot come from standard input", hint=hint, id="E-DATA-FORMAT")
    reader = _ShardReader(Shard(path))
    return RowSource(path, "shard", why, iter(reader), None, reader)


def read_rows(
    path: Path, settings: TextSettings, bad: BadRows, chunk_bytes: int = 1 << 20
) -> Iterator[Rows]:
    """Rows of one file in their order; see ``open_rows``."""
    with open_rows(path, settings, bad, chunk_bytes) as source:
        yield from source.rows


def fits(form: str, schema: Schema) -> bool:
    """Whether rows of a key-value format can be rows of ``schema``.

    Examples
    --------
    >>> fits("libsvm", LIBSVM), fits("vw", LIBSVM), fits("libffm", Schema(("0",), (), "value"))
    (True, False, True)
    """
    if schema.weights != "value" or schema.dense:
        return False
    if form == "libffm":
        return schema.slots == tuple(map(str, range(len(schema.slots))))
    return (schema == LIBSVM) == (form in ("libsvm", "dummy"))
