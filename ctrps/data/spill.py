"""Arrays put aside on disk under numbers, and taken back by number.

A file of frame sets whose last record says which number each of the others has. What the arrays
are is known to who writes and reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from ctrps.codec import CodecError, FrameFile, FrameFileWriter
from ctrps.errors import DataError

KIND = "spill"


class SpillWriter:
    """Writes a file, whole or not at all; a number may be used again and again."""

    def __init__(self, path: Path):
        self._file = FrameFileWriter(path, KIND)
        self._records: list[tuple[int, int, int]] = []

    def append(self, number: int, arrays: Sequence[np.ndarray]) -> None:
        self._file.append(None, arrays)
        size = sum(array.nbytes for array in arrays)
        self._records.append((number, len(arrays[0]), size))

    def close(self) -> None:
        self._file.append(None, [np.array(self._records, np.int64).reshape(-1, 3)])
        self._file.close({})

    def abandon(self) -> None:
        """Remove the file, unless it is closed."""
        self._file.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.abandon()


class Kept:
    """The same in memory: written as a ``SpillWriter``, read as a ``Spill``."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, Sequence[np.ndarray]]] = []

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for _, arrays in self._arrays for array in arrays)

    @property
    def records(self) -> np.ndarray:
        sizes = [(n, len(a[0]), sum(array.nbytes for array in a)) for n, a in self._arrays]
        return np.array(sizes, np.int64).reshape(-1, 3)

    def append(self, number: int, arrays: Sequence[np.ndarray]) -> None:
        self._arrays.append((number, arrays))

    def read(self, number: int) -> list[Sequence[np.ndarray]]:
        return [arrays for found, arrays in self._arrays if found == number]


class Spill:
    """A file of ``SpillWriter``.

    Attributes
    ----------
    records : int64[records, 3]
        Of each its number, the rows of its first array, and its bytes.

    Raises
    ------
    DataError
        It is damaged.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a"
    ...     with SpillWriter(path) as writer:
    ...         for number in (7, 3, 7):
    ...             writer.append(number, [np.arange(number)])
    ...     [len(arrays[0]) for arrays in Spill(path).read(7)]
    [7, 7]
    """

    def __init__(self, path: Path):
        try:
            self._file = FrameFile(path, KIND)
            _, (self.records,) = self._file.read(self._file.records - 1)
        except CodecError as error:
            raise _damaged(error) from None

    def read(self, number: int) -> list[Sequence[np.ndarray]]:
        """The arrays of every record with a number, in the order they were written."""
        found = np.flatnonzero(self.records[:, 0] == number)
        try:
            return [self._file.read(int(record))[1] for record in found]
        except CodecError as error:
            raise _damaged(error) from None

    def joined(self, number: int) -> list[np.ndarray]:
        """The same with the records' arrays joined; empty if there is none."""
        parts = self.read(number)
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def _damaged(error: CodecError) -> DataError:
    return DataError(error.what, where=error.where, hint="run extract again with --overwrite")
