"""Running a feature specification over sample text: lines in, ``Rows`` out.

It opens no file: ``ctrps.data.extract`` says which bytes are rows, and ``BadRows`` decides about
those that cannot be used.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ctrps.data.assemble import columns_of, compile_spec
from ctrps.data.badrows import BadRows
from ctrps.data.custom import TAB, customs_of, extended
from ctrps.data.sampletext import SampleText
from ctrps.data.shards import Rows, Schema
from ctrps.data.spec import FeatureSpec
from ctrps.errors import DataError
from ctrps.kernels import machine as kernel
from ctrps.kernels import prefix, values
from ctrps.kernels.lines import join_fields
from ctrps.kernels.names import Recipe, name_values
from ctrps.kernels.numbering import MACHINE, Numbers, number_rows
from ctrps.kernels.program import run_rows

REASONS = {
    prefix.NOT_A_NUMBER: "expected a number",
    prefix.NOT_FINITE: "expected a finite number",
    values.LOG_DOMAIN: "logarithm of zero or less: ln(x + 1) needs x > -1",
    values.SQRT_DOMAIN: "root of a negative number: √(x + 1) needs x >= -1",
    kernel.TOO_LARGE: "too large for a 32-bit number",
    kernel.NOT_A_LABEL: "expected a label 0 or 1",
}

MAX_SHOWN = 200
"""Bytes of a line of wrong shape to report; messages show fewer."""

ROOM = 1 << 16
"""Bytes of derived text, and list elements, that a block of rows may have at first."""


class Extractor:
    """Computes the features of rows of sample text with one header.

    Parameters
    ----------
    spec
        What to compute.
    header
        Names of the text's fields; their order is free, and more of them than are used.
    file
        For messages.
    drop_missing, empty
        As in ``compile_spec``.

    Raises
    ------
    DataError
        When the header lacks a field that the spec uses.
    ConfigError
        When a Python operator cannot be loaded.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        header: Sequence[str],
        file: str,
        *,
        drop_missing: bool = False,
        empty: float = 0.0,
    ):
        self.spec = spec
        self.schema = Schema(spec.slots, spec.dense_names, "mean", spec.text)
        self._drop_missing, self._empty = drop_missing or spec.drop_missing, empty
        columns = _columns(spec, header, file)
        self._customs = customs_of(spec, header)
        # What Python makes stands behind the columns of the file, in the text as in the program.
        behind = np.arange(len(self._customs), dtype=np.int32) + len(spec.used)
        self._columns = np.concatenate([columns, behind])
        text = spec.id.prefix if spec.id else ""
        self._id_prefix = np.frombuffer(bytearray(text.encode()), np.uint8)
        # Enough for rows of single values; grows with the lists that come.
        self._keys = np.empty(4096 * max(len(spec.sparse), 1), np.uint64)
        self._room = ROOM

    @cached_property
    def _compiled(self) -> tuple[kernel.Program, Recipe]:
        return compile_spec(self.spec, drop_missing=self._drop_missing, empty=self._empty)

    @property
    def program(self) -> kernel.Program:
        """What the machine runs."""
        return self._compiled[0]

    @cached_property
    def _registers(self) -> kernel.Registers:
        return kernel.new_registers(self.program, len(self._columns), self._room, self._room)

    def rows(self, text: SampleText, lines: np.ndarray, bad: BadRows) -> Rows:
        """The features of some lines of ``text``, in the order of ``lines``.

        Parameters
        ----------
        text
            Must have the header that this extractor was made for.
        lines : int64[n]
            First byte of each line.
        bad
            Is told of rows that cannot be used; they are left out.
        """
        return self.kept(text, lines, bad)[0]

    def kept(self, text: SampleText, lines: np.ndarray, bad: BadRows) -> tuple[Rows, np.ndarray]:
        """As ``rows``, and the lines that the rows are of, int64[rows]."""
        source, starts = self.source(text, lines)
        keys, output = self._run(source.data, starts)
        good = self.good(text, lines, starts, output, bad)
        if good is not None:
            output = kernel.Output(*(array[good] for array in output))
            lines = lines[good]
        ids = self.ids(source.data, output.ids) if self.spec.id else None
        return Rows(keys, output.counts, None, output.dense, output.labels, ids), lines

    def good(
        self,
        text: SampleText,
        lines: np.ndarray,
        starts: np.ndarray,
        output: kernel.Output,
        bad: BadRows,
    ) -> np.ndarray | None:
        """Numbers of the lines that are good, int64, or None for all; ``bad`` is told of others.

        ``starts`` is where the lines are in what ``source`` gave.
        """
        wrong = output.bad[:, 0] != 0
        if not wrong.any():
            return None
        for row in np.flatnonzero(wrong):
            found = output.bad[row]
            # What a function makes lies behind the line that it is made of.
            found[2:] += lines[row] - starts[row]
            self._reject(text, int(lines[row]), found, bad)
        return np.flatnonzero(~wrong)

    def number_rows(
        self,
        source: SampleText,
        lines: np.ndarray,
        state: np.ndarray,
        output: kernel.Output,
        numbers: Numbers,
    ) -> int:
        """As the kernel ``number_rows``, with a machine that has the room it needs."""
        while True:
            lacks = number_rows(
                self.program, source.data, lines, TAB, self._columns, state,
                self._registers, self._keys, output, numbers,
            )  # fmt: skip
            if lacks != MACHINE:
                return int(lacks)
            self._grow(0)

    def names(
        self, text: SampleText, lines: np.ndarray, rows: np.ndarray, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Some values of some rows as text, ``prefix=value`` or ``prefix=value#value…``.

        Parameters
        ----------
        text
        lines : int64[n]
            First bytes of lines.
        rows : int64[w]
            Numbers into ``lines``, ascending.
        keys : uint64[w]
            A key of each of these rows.

        Returns
        -------
        uint8[size], int64[w]
            The texts, and where each ends; empty where a row has no such key.
        """
        source, starts = self.source(text, lines)
        ends, output = np.zeros(len(rows), np.int64), self._output(len(lines))
        out = np.empty(max(64 * len(rows), 1 << 16), np.uint8)
        row = done = 0
        while done < len(rows):
            before = (row, done)
            row, done = name_values(
                *self._compiled, source.data, starts, TAB, self._columns, rows, keys, row, done,
                self._registers, self._keys, output, out, ends,
            )  # fmt: skip
            if done < len(rows):
                if (row, done) == before:
                    self._grow(0)
                out = np.concatenate([out, np.empty(len(out), np.uint8)])
        return out[: int(ends[-1]) if len(ends) else 0], ends

    def source(self, text: SampleText, lines: np.ndarray) -> tuple[SampleText, np.ndarray]:
        """The text that the program reads, which has what Python makes, and its lines."""
        if not self._customs:
            return text, lines
        source = extended(text, lines, self._customs)
        return source, source.lines

    def _output(self, rows: int) -> kernel.Output:
        slots = len(self.spec.sparse)
        counts = np.empty((rows, slots), np.int32)
        counts[:] = kernel.single_keys(self.program, slots)
        return kernel.Output(
            counts=counts,
            dense=np.zeros((rows, len(self.spec.dense)), np.float32),
            labels=np.full(rows, np.nan, np.float32),
            bad=np.zeros((rows, 4), np.int64),
            ids=np.zeros((rows, len(self.program.ids), 2), np.int64),
        )

    def _grow(self, used: int) -> None:
        """Room for rows with more keys, elements and derived text; the first keys stay."""
        grown = np.empty(2 * len(self._keys), np.uint64)
        grown[:used] = self._keys[:used]
        self._keys = grown
        self._room *= 2
        del self._registers

    def _run(self, data: np.ndarray, lines: np.ndarray) -> tuple[np.ndarray, kernel.Output]:
        output = self._output(len(lines))
        row = used = 0
        while True:
            row, used = run_rows(
                self.program, data, lines, TAB, self._columns,
                row, self._registers, self._keys, used, output,
            )  # fmt: skip
            if row == len(lines):
                return self._keys[:used].copy(), output
            self._grow(used)

    def _reject(self, text: SampleText, line: int, found: np.ndarray, bad: BadRows) -> None:
        reason, column, start, end = map(int, found)
        if reason == kernel.FIELDS:
            made = len(self._customs)
            what = f"expected {len(self._columns) - made} fields, not {column - made}"
            shown = bytes(text.data[line : line + MAX_SHOWN]).split(b"\n")[0]
            bad.reject(text.file, text.line_of(line), 1, what, shown)
            return
        what = f"{columns_of(self.spec)[column]}: {REASONS[reason]}"
        place, shown = text.place(start), bytes(text.data[start:end])
        if self.program.origins[column] >= len(self.spec.used):
            place, shown = (text.line_of(line), 1), b"what Python made"
        bad.reject(text.file, *place, what, shown)

    def ids(self, data: np.ndarray, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``prefix#value#value…`` of each row: bytes, and where each row's text ends."""
        rows, fields = spans.shape[:2]
        size = int((spans[:, :, 1] - spans[:, :, 0]).sum())
        out = np.empty(size + rows * (len(self._id_prefix) + fields), np.uint8)
        out_ends = np.empty(rows, np.int64)
        join_fields(data, spans, self._id_prefix, out, out_ends)
        return out, out_ends


def _columns(spec: FeatureSpec, header: Sequence[str], file: str) -> np.ndarray:
    """Number in ``spec.used`` of each field of the header, or -1."""
    used = spec.used
    wrong = [field for field in used if header.count(field) != 1]
    if wrong:
        field, more = wrong[0], f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        near = difflib.get_close_matches(field, header, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(header)}"
        hint = "its header is one field; fields stand between tabs" if len(header) == 1 else hint
        what = f"{'two columns' if field in header else 'no column'} {field!r}{more}"
        raise DataError(f"{what}, which {spec.path} uses", where=f"{file}:1:1", hint=hint)
    numbers = {name: number for number, name in enumerate(used)}
    return np.array([numbers.get(name, -1) for name in header], np.int32)
