"""A feature specification as arrays, and running them over sample text.

Compiles a ``FeatureSpec`` to the instructions of ``ctrps.kernels.program`` and turns rows of text
into ``Rows``. It opens no file: ``ctrps.data.extract`` says which bytes are rows, and
``BadRows`` decides about those that cannot be used.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.features import Feature, FeatureSpec
from ctrps.data.shards import Rows, Schema
from ctrps.errors import DataError
from ctrps.kernels import prefix
from ctrps.kernels import program as kernel
from ctrps.kernels.keys import hash_text, namespace

REASONS = {
    prefix.NOT_A_NUMBER: "expected a number",
    prefix.NOT_FINITE: "expected a finite number",
    kernel.LOG_DOMAIN: "logarithm of zero or less: ln(x + 1) needs x > -1",
    kernel.SQRT_DOMAIN: "root of a negative number: √(x + 1) needs x >= -1",
    kernel.TOO_LARGE: "too large for a 32-bit number",
    kernel.NOT_A_LABEL: "expected a label 0 or 1",
}

TAB, NEWLINE = np.uint8(9), np.uint8(10)
MAX_SHOWN = 200
"""Bytes of a line of wrong shape to report; messages show fewer."""


def compile_spec(spec: FeatureSpec, *, drop_missing: bool = False) -> kernel.Program:
    """The instructions that compute ``spec``; columns are numbered as in ``spec.used``.

    With ``drop_missing`` an empty value gives no key: not alone, not as an element of a list and
    not as a part of a cross. A hit is 0 or 1 all the same.
    """
    assembler = _Assembler(spec, drop_missing)
    if spec.label is not None:
        assembler.emit(kernel.LABEL, spec.used.index(spec.label.fields[0]))
    for number, feature in enumerate(spec.dense):
        operation = {"log": kernel.LOG, "sqrt": kernel.SQRT}.get(feature.operator, kernel.DENSE)
        assembler.emit(operation, assembler.number(feature.fields[0]), to=number)
    for slot, feature in enumerate(spec.sparse):
        assembler.sparse(feature, slot)
    return assembler.program()


class _Assembler:
    """Emits instructions; a field is hashed, split or parsed where it is first needed."""

    def __init__(self, spec: FeatureSpec, drop_missing: bool):
        self._columns = {name: number for number, name in enumerate(spec.used)}
        self._drop = drop_missing
        self._breaks: dict[tuple[float, ...], int] = {}
        most = max((len(b) for f in spec.sparse for b in f.breaks), default=0)
        # -1 for a missing number, 0 and 1 also for hit.
        self._constants = ["", *map(str, range(-1, max(most, 1) + 1))]
        self._made: dict[tuple[int, ...], int] = {}
        self._registers = len(self._constants)
        self._code: list[tuple[int, int, int, int]] = []
        self._seeds: list[int] = []

    def emit(self, operation: int, a: int, b: int = 0, to: int = 0, seed: int = 0) -> None:
        self._code.append((operation, a, b, to))
        self._seeds.append(seed)

    def number(self, field: str) -> int:
        return self._read(kernel.NUMBER, field)

    def sparse(self, feature: Feature, slot: int) -> None:
        seed = namespace(feature.prefix)
        if feature.operator == "group":
            elements = self._read(kernel.LIST, feature.fields[0])
            but = kernel.EMPTY if self._drop else -1
            self.emit(kernel.KEYS, elements, but, slot, seed)
        elif feature.operator == "hit":
            text = self._text(feature.fields[0])
            elements = self._read(kernel.LIST, feature.fields[1])
            self.emit(kernel.KEY, self._new(kernel.HIT, text, elements), to=slot, seed=seed)
        else:
            self._values(feature, slot, seed)

    def _values(self, feature: Feature, slot: int, seed: int) -> None:
        """One key of one value or of a cross of several."""
        breaks = feature.breaks or ((),) * len(feature.fields)
        parts = [self._part(*pair) for pair in zip(feature.fields, breaks, strict=True)]
        mixed = parts[0]
        if len(parts) > 1:
            mixed = self._new(kernel.MIX, mixed, seed=seed)
        for part in parts[1:-1]:
            mixed = self._new(kernel.CROSS, mixed, part)
        if self._drop:
            for i, (part, lines) in enumerate(zip(parts, breaks, strict=True)):
                missing = kernel.FIRST_NUMBER if lines else kernel.EMPTY
                self.emit(kernel.SKIP, part, missing, to=len(parts) - i)
        if len(parts) > 1:
            self.emit(kernel.PAIR, mixed, parts[-1], to=slot)
        else:
            self.emit(kernel.KEY, mixed, to=slot, seed=seed)

    def _part(self, field: str, breaks: tuple[float, ...]) -> int:
        if not breaks:
            return self._text(field)
        lines = self._breaks.setdefault(breaks, len(self._breaks))
        return self._new(kernel.BUCKET, self.number(field), lines)

    def _text(self, field: str) -> int:
        return self._new(kernel.TEXT, self._columns[field])

    def _read(self, operation: int, field: str) -> int:
        """The number or list register of a field: it has the number of its column."""
        column = self._columns[field]
        if (operation, column) not in self._made:
            self._made[operation, column] = column
            self.emit(operation, column)
        return column

    def _new(self, operation: int, a: int, b: int = 0, seed: int = 0) -> int:
        """The text register that holds this result; computed once."""
        made = (operation, a, b, seed)
        if made not in self._made:
            self._made[made] = self._registers
            self.emit(operation, a, b, self._registers, seed)
            self._registers += 1
        return self._made[made]

    def program(self) -> kernel.Program:
        lists = list(self._breaks)
        return kernel.Program(
            code=np.array(self._code, np.int32).reshape(-1, 4),
            seeds=np.array(self._seeds, np.uint64),
            breaks=np.array([line for lines in lists for line in lines], np.float32),
            break_starts=np.cumsum([0, *map(len, lists)], dtype=np.int32),
            constants=np.array([hash_text(text) for text in self._constants], np.uint64),
            text_registers=self._registers,
        )


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
    """

    file: str
    data: np.ndarray
    header: tuple[str, ...]
    lines: np.ndarray

    @classmethod
    def parse(cls, data: np.ndarray, file: str) -> SampleText:
        """Find header and lines; a byte order mark and blanks around names do not count."""
        breaks = np.flatnonzero(data == NEWLINE) + 1
        starts = np.concatenate([breaks, [len(data)]])
        head = bytes(data[: starts[0]]).decode("utf-8-sig", "backslashreplace")
        header = tuple(name.strip() for name in head.split("\t"))
        return cls(file, data, header, starts[starts < len(data)])

    def line_of(self, start: int) -> int:
        """Number, from 1, of the line that holds a byte after the header."""
        return int(np.searchsorted(self.lines, start, side="right")) + 1

    def place(self, position: int) -> tuple[int, int]:
        """Line and column, from 1, of a byte after the header."""
        line = self.line_of(position)
        return line, position - int(self.lines[line - 2]) + 1


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

    Raises
    ------
    DataError
        When the header lacks a field that the spec uses.
    """

    def __init__(
        self, spec: FeatureSpec, header: Sequence[str], file: str, *, drop_missing: bool = False
    ):
        self.spec = spec
        self.schema = Schema(slots=spec.slots, dense=spec.dense_names, weights="mean")
        self._program = compile_spec(spec, drop_missing=drop_missing)
        self._fields = len(header)
        self._columns = _columns(spec, header, file)
        fields, text = (spec.id.fields, spec.id.prefix) if spec.id else ((), "")
        self._id = np.array([spec.used.index(field) for field in fields], np.int32)
        self._id_prefix = np.frombuffer(bytearray(text.encode()), np.uint8)
        # Enough for rows of single values; grows with the lists that come.
        self._keys = np.empty(4096 * max(len(spec.sparse), 1), np.uint64)

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
        starts, ends = self._split(text, lines, bad)
        keys, output = self._run(text.data, starts, ends)
        wrong = output.bad[:, 0] != 0
        for row in np.flatnonzero(wrong):
            reason, column = output.bad[row]
            start, end = int(starts[row, column]), int(ends[row, column])
            what = f"{self.spec.used[column]}: {REASONS[int(reason)]}"
            bad.reject(text.file, *text.place(start), what, bytes(text.data[start:end]))
        if wrong.any():
            starts, ends = starts[~wrong], ends[~wrong]
            output = kernel.Output(*(array[~wrong] for array in output))
        ids = self._ids(text.data, starts, ends) if self.spec.id else None
        return Rows(keys, output.counts, None, output.dense, output.labels, ids)

    def _split(
        self, text: SampleText, lines: np.ndarray, bad: BadRows
    ) -> tuple[np.ndarray, np.ndarray]:
        starts, ends = np.zeros((2, len(lines), len(self.spec.used)), np.int64)
        found = np.empty(len(lines), np.int32)
        kernel.split_rows(text.data, lines, TAB, self._columns, starts, ends, found)
        good = found == self._fields
        for row in np.flatnonzero(~good):
            start = int(lines[row])
            line = bytes(text.data[start : start + MAX_SHOWN]).split(b"\n")[0]
            reason = f"expected {self._fields} fields, not {found[row]}"
            bad.reject(text.file, text.line_of(start), 1, reason, line)
        return starts[good], ends[good]

    def _run(
        self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, kernel.Output]:
        rows, columns = starts.shape
        # Every element but one per field has a comma before it.
        room = int((ends - starts).sum(axis=1).max(initial=0)) + columns
        registers = kernel.new_registers(self._program, columns, room)
        output = kernel.Output(
            counts=np.zeros((rows, len(self.spec.sparse)), np.int32),
            dense=np.zeros((rows, len(self.spec.dense)), np.float32),
            labels=np.full(rows, np.nan, np.float32),
            bad=np.zeros((rows, 2), np.int32),
        )
        row = used = 0
        while True:
            row, used = kernel.run_rows(
                self._program, data, starts, ends, row, registers, self._keys, used, output
            )
            if row == rows:
                return self._keys[:used].copy(), output
            grown = np.empty(2 * len(self._keys), np.uint64)
            grown[:used] = self._keys[:used]
            self._keys = grown

    def _ids(
        self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """``prefix#value#value…`` of each row: bytes, and where each row's text ends."""
        lengths = (ends - starts)[:, self._id].sum(axis=1) + len(self._id_prefix) + len(self._id)
        out = np.empty(int(lengths.sum()), np.uint8)
        out_ends = np.empty(len(starts), np.int64)
        kernel.join_fields(data, starts, ends, self._id, self._id_prefix, out, out_ends)
        return out, out_ends


def _columns(spec: FeatureSpec, header: Sequence[str], file: str) -> np.ndarray:
    """Number in ``spec.used`` of each field of the header, or -1."""
    for field in spec.used:
        if header.count(field) != 1:
            near = difflib.get_close_matches(field, header, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(header)}"
            what = f"{'two columns' if field in header else 'no column'} {field!r}"
            raise DataError(f"{what}, which {spec.path} uses", where=f"{file}:1:1", hint=hint)
    return np.array([spec.used.index(n) if n in spec.used else -1 for n in header], np.int32)
