"""Blocks of rows out of sample text, each with how often its keys occur and maybe their texts.

What becomes of the blocks is known to ``ctrps.data.parts``; which features rows have, to
``ctrps.data.program``, whose ``Extractor`` this drives block by block and without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.numbers import fewer_numbers, narrow, narrowed
from ctrps.data.program import Extractor
from ctrps.data.rows import Ids, texts_joined
from ctrps.data.sampletext import SampleText
from ctrps.data.shards import BITS, Block
from ctrps.kernels import numbering as kernel
from ctrps.kernels.csr import take_numbers
from ctrps.kernels.gather import copy_lines, line_ends
from ctrps.kernels.keys import grouped
from ctrps.kernels.machine import Output, single_keys

PIECE_LINES = 4096
"""Lines that are worked on at a time; their features stay in the processor's cache."""

NO_TEXT = np.empty(0, np.uint8)


class Numbered(NamedTuple):
    """A block whose keys are still numbered by first touch; arrays are as in ``Block``.

    Attributes
    ----------
    keys : uint64[k]
        By partition, inside the smallest ones by first touch; then those of dense features.
    local : uint16, uint32 or int32[nnz]
        Key of each value of each row, by first touch.
    places : uint16 or uint32[k]
        Where in ``keys`` the key of each such number is.
    counts : uint8, uint16 or uint32[rows, slots]
    dense, labels, ids
    """

    keys: np.ndarray
    local: np.ndarray
    places: np.ndarray
    counts: np.ndarray
    dense: np.ndarray
    labels: np.ndarray
    ids: Ids | None

    def block(self, stays: np.ndarray | None = None) -> Block:
        """The block; without the keys that do not stay, bool[k]."""
        keys, counts = self.keys, self.counts
        if stays is None:
            index = np.empty(len(self.local), self.places.dtype)
            take_numbers(self.places, self.local, index)
        else:
            counts = counts.copy()
            index = fewer_numbers(self.local, counts, stays, self.places)
            keys, counts = keys[np.flatnonzero(stays)], narrowed(counts)
        return Block(keys, index, counts, None, self.dense, self.labels, self.ids)


class Made(NamedTuple):
    """What is made of some rows; its arrays stay valid until the next one is asked for.

    Attributes
    ----------
    rows : Numbered
    counts : int32[k]
        How often each key occurs in them.
    borders : int32[257]
        Where the keys of each of 256 partitions begin and end, without those of dense features.
    text : uint8[size]
        The rows' lines behind a header, as a file of samples has them; empty unless wanted.
    """

    rows: Numbered
    counts: np.ndarray
    borders: np.ndarray
    text: np.ndarray


class BlockMaker:
    """Makes blocks of the rows of lines; holds the memory it needs, for the blocks to come.

    Parameters
    ----------
    extractor
    block_rows
        Rows of a block; the last one may have fewer.
    wanted
        Whether the text of the block of a number is wanted.
    """

    def __init__(self, extractor: Extractor, block_rows: int, wanted: Callable[[int], bool]):
        self._extractor, self._block_rows, self._wanted = extractor, block_rows, wanted
        self._dense_keys = extractor.schema.dense_keys()
        self._single = single_keys(extractor.program, len(extractor.schema.slots))
        slots, dense, d = len(extractor.schema.slots), len(extractor.schema.dense), block_rows
        self._output = Output(
            counts=np.empty((d, slots), np.int32),
            dense=np.empty((d, dense), np.float32),
            labels=np.empty(d, np.float32),
            bad=np.empty((d, 4), np.int64),
            ids=np.empty((d, len(extractor.program.ids), 2), np.int64),
        )
        room = 1 << 16
        self._numbers = kernel.Numbers(
            slots=np.zeros(2 * room, np.int32),
            keys=np.empty(room, np.uint64),
            counts=np.empty(room, np.int32),
            local=np.empty(max(min(block_rows, PIECE_LINES) * slots, room), np.int32),
        )
        self._state = np.zeros(4, np.int64)
        self._rows, self._number = 0, 0
        self._ids: list[Ids] = []
        self._text: list[np.ndarray] = []
        self._begin()

    def blocks(
        self, pieces: Iterable[tuple[SampleText, np.ndarray]], bad: BadRows
    ) -> Iterator[Made]:
        """Blocks of all rows of some lines of texts; ``bad`` is told of those that are left out."""
        for text, lines in pieces:
            at = 0
            while at < len(lines):
                some = lines[at : at + min(self._block_rows - self._rows, PIECE_LINES)]
                self._take(text, some, bad)
                at += len(some)
                if self._rows == self._block_rows:
                    yield self._finished()
        if self._rows:
            yield self._finished()

    def _begin(self) -> None:
        """Dense keys come first, whether they occur or not."""
        d, numbers = len(self._dense_keys), self._numbers
        numbers.slots[:] = 0
        numbers.keys[:d], numbers.counts[:d] = self._dense_keys, 0
        kernel.index_numbers(numbers, d)
        self._state[:] = [0, d, 0, 0]
        self._rows, self._ids, self._text = 0, [], []

    def _take(self, text: SampleText, lines: np.ndarray, bad: BadRows) -> None:
        """Add the rows of some lines to the block."""
        source, starts = self._extractor.source(text, lines)
        first, last = self._rows, self._rows + len(lines)
        output = Output(*(array[first:last] for array in self._output))
        output.counts[:], output.labels[:], output.bad[:] = self._single, np.nan, 0
        self._run(source, starts, output)
        good = self._extractor.good(text, lines, starts, output, bad)
        if good is not None:
            for array in output:
                array[: len(good)] = array[good]
            output = Output(*(array[: len(good)] for array in output))
            lines = lines[good]
        if self._wanted(self._number):
            self._text = self._text or [np.frombuffer(_head(text).encode(), np.uint8)]
            self._text.append(lines_of(text.data, lines))
        if self._extractor.spec.id:
            self._ids.append(self._extractor.ids(source.data, output.ids))
        self._rows += len(output.labels)

    def _run(self, source: SampleText, lines: np.ndarray, output: Output) -> None:
        self._state[0] = 0
        while True:
            numbers = self._numbers
            lacks = self._extractor.number_rows(source, lines, self._state, output, numbers)
            if lacks == kernel.DONE:
                return
            self._grow()

    def _grow(self) -> None:
        """Room for the keys that did not fit; the numbers so far stay."""
        _, n, used, more = self._state.tolist()
        numbers = self._numbers
        slots = numbers.slots
        if 3 * (n + more) > 2 * len(slots):
            slots = np.zeros(1 << (3 * (n + more) // 2).bit_length(), np.int32)
        self._numbers = kernel.Numbers(
            slots,
            _with_room(numbers.keys, n, more),
            _with_room(numbers.counts, n, more),
            _with_room(numbers.local, used, more),
        )
        if slots is not numbers.slots:
            kernel.index_numbers(self._numbers, n)

    def _finished(self) -> Made:
        _, n, used, _ = self._state.tolist()
        d, numbers, output = len(self._dense_keys), self._numbers, self._output
        order, borders = np.empty(n - d, np.int64), np.empty((1 << BITS) + 1, np.int32)
        grouped(numbers.keys[d:n], BITS, order, borders)
        order += d
        every = np.concatenate([order, np.arange(d)])
        places = np.empty(n, narrow(n))
        places[every] = np.arange(n, dtype=places.dtype)
        made = self._rows
        rows = Numbered(
            keys=numbers.keys[every],
            local=numbers.local[:used],
            places=places,
            counts=narrowed(output.counts[:made]),
            dense=output.dense[:made],
            labels=output.labels[:made],
            ids=texts_joined(self._ids) if self._ids else None,
        )
        text = np.concatenate(self._text) if self._text else NO_TEXT
        found = Made(rows, numbers.counts[every], borders, text)
        self._number += 1
        self._begin()
        return found


def _head(text: SampleText) -> str:
    return "\t".join(text.header) + "\n"


def lines_of(data: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Some lines, each with an end."""
    ends = np.empty(len(starts), np.int64)
    line_ends(data, starts, ends)
    out = np.empty(int((ends - starts).sum()) + len(starts), np.uint8)
    copy_lines(data, starts, ends, out)
    return out


def _with_room(array: np.ndarray, used: int, more: int) -> np.ndarray:
    """``array`` with its first ``used`` entries, and room for ``more`` behind them."""
    if used + more <= len(array):
        return array
    larger = np.empty(2 * (used + more), array.dtype)
    larger[:used] = array[:used]
    return larger
