"""Names of keys: a file beside each training shard that says which text a key was made of.

Such a file is a frame file of kind ``"names"`` (``ctrps.codec``) with one record::

    header   {}
    arrays   keys uint64[n] ascending, counts int64[n], text uint8[size], ends int64[n]

Name i is the UTF-8 text before ``ends[i]`` and after the end before it: ``prefix=value``, or
``prefix=value#value…`` of a cross. The trailer's meta is ``{"rows", "keys", "values", "exact"}``:
rows of the shard and those in which keys were counted; distinct keys of the latter, and how many
have a name; their values, and how many of these have one; and whether no key was forgotten.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.codec import CodecError, FrameFile, FrameFileWriter
from ctrps.data.counts import KeyTable, enlarged
from ctrps.data.program import Extractor
from ctrps.data.rows import Ids
from ctrps.data.sampletext import SampleText
from ctrps.data.shards import Block
from ctrps.errors import DataError
from ctrps.kernels.csr import row_starts
from ctrps.kernels.gather import gather_texts
from ctrps.kernels.names import first_rows

KIND = "names"
SUFFIX = ".names"
_TYPES = ("u8", "i8", "u1", "i8")

MOST_ROWS = 1 << 16
"""Rows of a shard in which keys are counted. Rows are shuffled, so these stand for all."""

_ROW_BITS = 32
"""Bits of the number of a row in its block; that of the block stands before them."""


class _Seen:
    """Counts keys and knows a row of each; forgets the rarest when there are too many.

    Attributes
    ----------
    keys : uint64[n]
    counts, places : int64[n]
    forgot : bool
        A count may be too low.
    """

    def __init__(self, most: int):
        self._most = 8 * most
        self._table = KeyTable()
        self._counts, self._places = np.empty((2, 0), np.int64)
        self.forgot = False

    @property
    def keys(self) -> np.ndarray:
        return self._table.keys

    @property
    def counts(self) -> np.ndarray:
        return self._counts[: len(self.keys)]

    @property
    def places(self) -> np.ndarray:
        return self._places[: len(self.keys)]

    def add(self, keys: np.ndarray, counts: np.ndarray, places: np.ndarray) -> None:
        """Count distinct keys that came ``counts`` times, at ``places`` and maybe others."""
        before = len(self.keys)
        at, new = self._table.rows(keys)
        used = len(self.keys)
        self._counts = enlarged(self._counts, before, used)
        self._places = enlarged(self._places, before, used)
        self._counts[before:used], self._places[before:used] = 0, places[new]
        self._counts[at] += counts
        if used > self._most:
            self._forget()

    def _forget(self) -> None:
        kept = _commonest(self.counts, self._most // 2)
        for array in (self._counts, self._places):
            array[: len(kept)] = array[kept]
        self._table.reduce(kept)
        self.forgot = True


def _commonest(counts: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the ``most`` highest counts, ascending; the first of equal ones."""
    if len(counts) <= most:
        return np.arange(len(counts))
    least = np.partition(counts, -most)[-most]
    above = np.flatnonzero(counts > least)
    equal = np.flatnonzero(counts == least)[: most - len(above)]
    return np.sort(np.concatenate([above, equal]))


class NameChoice:
    """Chooses the most frequent keys of a shard while its blocks are made, and names them.

    Parameters
    ----------
    most
        Keys to name, >= 1.
    lines
        Lines that the shard is made of.
    block_rows
    """

    def __init__(self, most: int, lines: int, block_rows: int):
        self._most = most
        self._seen = _Seen(most)
        self._values = self._looked = 0
        blocks, rows = -(-lines // block_rows), max(min(lines, block_rows), 1)
        # At most so many blocks, evenly spread.
        self._step = -(-blocks // -(-MOST_ROWS // rows)) or 1

    def looks_at(self, number: int) -> bool:
        """Whether keys are counted in a block, whose text is wanted then."""
        return number % self._step == 0

    def add(self, number: int, block: Block) -> None:
        """Count the keys of a block, if it is one of those."""
        if not self.looks_at(number):
            return
        starts = np.empty(block.rows + 1, np.int64)
        row_starts(block.counts, starts)
        counts, rows = np.zeros((2, len(block.keys)), np.int64)
        first_rows(block.index, starts, counts, rows)
        sparse = slice(0, len(block.keys) - block.dense.shape[1])
        places = rows[sparse] + (number << _ROW_BITS)
        self._seen.add(block.keys[sparse], counts[sparse], places)
        self._values += len(block.index)
        self._looked += block.rows

    def write(
        self,
        path: Path,
        rows: int,
        text_of: Callable[[int], np.ndarray],
        extractor_of: Callable[[SampleText], Extractor],
    ) -> None:
        """Write the file of a shard.

        Parameters
        ----------
        path
        rows
            Of the shard.
        text_of
            Gives the text of a block: lines of its rows, behind a header.
        extractor_of
            Gives what has made the features, for such a text.
        """
        seen = self._seen
        chosen = _commonest(seen.counts, self._most)
        chosen = chosen[np.argsort(seen.keys[chosen])]
        by_place = np.argsort(seen.places[chosen], kind="stable")
        keys, places = seen.keys[chosen][by_place], seen.places[chosen][by_place]
        names, ends = [np.empty(0, np.uint8)], [np.empty(0, np.int64)]
        extractor, size = None, 0
        for first, last in _runs(places >> _ROW_BITS):
            text = SampleText.parse(text_of(int(places[first] >> _ROW_BITS)), path.name)
            extractor = extractor or extractor_of(text)
            used, of = np.unique(places[first:last] & ((1 << _ROW_BITS) - 1), return_inverse=True)
            found = extractor.names(text, text.lines[used], of, keys[first:last])
            names.append(found[0])
            ends.append(found[1] + size)
            size += len(found[0])
        found = _reordered(np.concatenate(names), np.concatenate(ends), np.argsort(by_place))
        counts = seen.counts[chosen]
        meta = {
            "rows": [rows, self._looked],
            "keys": [len(seen.keys), len(chosen)],
            "values": [self._values, int(counts.sum())],
            "exact": not seen.forgot,
        }
        with FrameFileWriter(path, KIND) as file:
            file.append({}, [seen.keys[chosen], counts, *found])
            file.close(meta)


def _runs(numbers: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where equal numbers, none of them -1, stand in a row."""
    borders = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist()
    return itertools.pairwise(borders) if borders else iter(())


def _reordered(text: np.ndarray, ends: np.ndarray, order: np.ndarray) -> Ids:
    """Texts end to end in another order."""
    starts = np.concatenate([[0], ends[:-1]])
    sizes = (ends - starts)[order]
    out = np.empty(len(text), np.uint8)
    gather_texts(text, starts[order], sizes, out)
    return out, np.cumsum(sizes)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of keys out of some files, and how much they cover.

    Attributes
    ----------
    keys : uint64[n], ascending
    counts : int64[n]
        How often each occurs in the rows that were counted; at least, unless ``exact``.
    names : list of str
    rows, counted_rows, values, named_values : int
        Rows of the shards; those that were counted; their values, and how many have a name here.
    exact : bool
        No count is too low.
    """

    keys: np.ndarray
    counts: np.ndarray
    names: list[str]
    rows: int
    counted_rows: int
    values: int
    named_values: int
    exact: bool

    def of(self, keys: np.ndarray) -> list[str | None]:
        """The name of each of some keys, uint64[k], or None."""
        at = np.searchsorted(self.keys, keys)
        at[at == len(self.keys)] = 0
        known = self.keys[at] == keys if len(self.keys) else np.zeros(len(keys), bool)
        pairs = zip(at.tolist(), known.tolist(), strict=True)
        return [self.names[i] if good else None for i, good in pairs]

    def most_frequent(self, most: int = 0, holding: str = "") -> Iterator[tuple[int, int, str]]:
        """Key, count and name of those whose name holds a text; at most so many, if not 0."""
        order = np.lexsort((self.keys, -self.counts)).tolist()
        chosen = (i for i in order if holding in self.names[i])
        for i in itertools.islice(chosen, most or None):
            yield int(self.keys[i]), int(self.counts[i]), self.names[i]


def read_names(paths: Iterable[Path]) -> Names:
    """Read files of names; a folder stands for all files of names in it.

    Raises
    ------
    DataError
        When there is none, or one is damaged.
    """
    found: dict[int, tuple[int, str]] = {}
    metas = []
    for path in _files(paths):
        meta, keys, counts, names = _read(path)
        metas.append(meta)
        for key, count, name in zip(keys.tolist(), counts.tolist(), names, strict=True):
            found[key] = (found[key][0] + count if key in found else count, name)
    keys = np.array(sorted(found), np.uint64)
    pairs = [found[key] for key in keys.tolist()]
    values, named = (sum(meta["values"][i] for meta in metas) for i in (0, 1))
    # A key that one file leaves out may be in the rows of that file all the same.
    exact = len(metas) == 1 or all(meta["keys"][0] == meta["keys"][1] for meta in metas)
    return Names(
        keys,
        np.array([count for count, _ in pairs], np.int64),
        [name for _, name in pairs],
        sum(meta["rows"][0] for meta in metas),
        sum(meta["rows"][1] for meta in metas),
        values,
        named,
        exact and all(meta["exact"] for meta in metas),
    )


def _files(paths: Iterable[Path]) -> Sequence[Path]:
    given = list(paths)
    files = []
    for path in given:
        files += sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        where = ", ".join(map(str, given))
        raise DataError(
            "no files of names are there",
            where=where,
            hint="see features.names",
            id="E-DATA-MISSING",
        )
    return files


def _read(path: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray, list[str]]:
    try:
        file = FrameFile(path, KIND)
        arrays = file.read(0)[1] if file.records == 1 else []
    except OSError as error:
        raise DataError(
            f"cannot read it: {error.strerror}", where=str(path), id="E-DATA-MISSING"
        ) from None
    except CodecError as error:
        raise DataError(error.what, where=error.where, hint="extract again") from None
    if not (_is_meta(file.meta) and _are_names(arrays)):
        raise DataError("it does not hold names", where=str(path), hint="extract again")
    keys, counts, text, ends = arrays
    whole, places = text.tobytes(), [0, *ends.tolist()]
    pairs = itertools.pairwise(places)
    names = [whole[start:end].decode("utf-8", "backslashreplace") for start, end in pairs]
    return file.meta, keys, counts, names


def _is_meta(meta: dict[str, Any]) -> bool:
    pairs = [meta.get(name) for name in ("rows", "keys", "values")]
    whole = all(
        isinstance(pair, list) and [type(number) for number in pair] == [int, int] for pair in pairs
    )
    return whole and isinstance(meta.get("exact"), bool)


def _are_names(arrays: list[np.ndarray]) -> bool:
    if [(array.dtype, array.ndim) for array in arrays] != [(t, 1) for t in _TYPES]:
        return False
    keys, counts, text, ends = arrays
    borders = np.concatenate([[0], ends])
    return (
        len(keys) == len(counts) == len(ends)
        and bool((keys[1:] > keys[:-1]).all())
        and bool((borders[1:] >= borders[:-1]).all())
        and int(borders[-1]) == len(text)
    )
