"""Samples in a file of any length as rows, by a features file that leaves nothing open.

It is for those who have a model and new samples; training rows are made by ``ctrps.data.extract``,
which computes the same features with the same program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.blocks import PIECE_LINES
from ctrps.data.columns import no_column
from ctrps.data.custom import TAB
from ctrps.data.formats import RowSource
from ctrps.data.program import Extractor
from ctrps.data.reading import texts
from ctrps.data.rows import Ids, Rows, Schema
from ctrps.data.sampletext import SampleText
from ctrps.data.spec import FeatureSpec
from ctrps.data.textfile import TextFile
from ctrps.errors import DataError
from ctrps.kernels.lines import split_rows

FORMAT = "samples"


class SampleReader:
    """Rows of samples: tab-separated text, each part of a file with a header of its own.

    Parameters
    ----------
    file
        At its start.
    spec
        Fields of its id may be absent, and rows then have none.
    bad
        Is told of rows that cannot be used.
    labels
        ``required``; ``optional``: NaN where the field of the label is absent; ``none``: NaN.
    keep
        Fields whose texts are kept beside the rows.

    Raises
    ------
    DataError
        When the header lacks a field that the spec uses, or one to keep.
    """

    def __init__(
        self,
        file: TextFile,
        spec: FeatureSpec,
        bad: BadRows,
        labels: str,
        keep: tuple[str, ...] = (),
    ):
        self._file, self._spec, self._bad, self._labels = file, spec, bad, labels
        self._keep = keep
        self._header, self._extractor = self._begin()

    @property
    def schema(self) -> Schema:
        return self._extractor.schema

    def __iter__(self) -> Iterator[Rows]:
        while True:
            while self._file.more():
                text = self._whole_lines()
                for first in range(0, len(text.lines), PIECE_LINES):
                    lines = text.lines[first : first + PIECE_LINES]
                    rows, taken = self._extractor.kept(text, lines, self._bad)
                    yield replace(rows, kept=self._texts(text, taken)) if self._keep else rows
                self._file.consume(len(text.data))
            if not self._file.next_part():
                return
            self._header, self._extractor = self._begin()

    def _begin(self) -> tuple[tuple[str, ...], Extractor]:
        """Take the header of a part."""
        file = self._file
        # Reads on until there is a line.
        file.first_line()
        head = SampleText.parse(file.buffer, file.name)
        file.consume(int(head.lines[0]) if len(head.lines) else len(file.buffer))
        spec, names = self._spec, set(head.header)
        if self._labels == "none" or (self._labels == "optional" and _lacks(spec, "label", names)):
            spec = replace(spec, label=None)
        if _lacks(spec, "id", names):
            spec = replace(spec, id=None)
        for name in self._keep:
            if name not in names:
                raise no_column(f"no column {name!r}", name, head.header, file.name)
        return head.header, Extractor(spec, head.header, file.name)

    def _texts(self, text: SampleText, lines: np.ndarray) -> tuple[Ids, ...]:
        """Texts of the fields to keep of some lines."""
        wanted = {name: number for number, name in enumerate(self._keep)}
        columns = np.array([wanted.get(name, -1) for name in self._header], np.int32)
        starts, ends = np.empty((2, len(wanted), len(lines)), np.int64)
        split_rows(text.data, lines, TAB, columns, starts, ends, np.empty(len(lines), np.int32))
        return tuple(texts(text.data, *borders) for borders in zip(starts, ends, strict=True))

    def _whole_lines(self) -> SampleText:
        """The whole lines that are at hand."""
        file, data = self._file, self._file.buffer
        text = SampleText.parse(data, file.name)
        starts = np.append(np.zeros(min(len(data), 1), np.int64), text.lines)
        if not file.final and len(starts):
            # The last line begun may go on; a line that ends here has one begun behind it.
            ended = len(data) > 0 and data[-1] == 10
            data = data if ended else data[: int(starts[-1])]
            starts = starts if ended else starts[:-1]
        return SampleText(file.name, data, self._header, starts, file.line - 1)


def _lacks(spec: FeatureSpec, name: str, header: set[str]) -> bool:
    """Whether fields of the label or the id are absent."""
    feature = getattr(spec, name)
    return feature is not None and not set(feature.fields) <= header


def open_samples(
    path: Path,
    spec: FeatureSpec,
    bad: BadRows,
    chunk_bytes: int,
    labels: str,
    keep: tuple[str, ...] = (),
) -> RowSource:
    """Open a file of samples: read its header, but no row yet; see ``SampleReader``."""
    file = TextFile(path, chunk_bytes)
    try:
        if file.parquet:
            hint = "write them as tab-separated text"
            raise DataError("samples are not read from Parquet", where=file.name, hint=hint)
        reader = SampleReader(file, spec, bad, labels, keep)
    except BaseException:
        file.close()
        raise
    return RowSource(path, FORMAT, "the model has a features file", iter(reader), file, reader)
