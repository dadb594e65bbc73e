"""Arrays put aside on disk under numbers, and taken back by number.

A file of frame sets whose last record says which number each of the others has. What the arrays
are is known to who writes and reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from ctrps.codec import CodecError, FrameFile, FrameFileWriter
from ctrps.errors import DataError

KIND = "spill"


class Room:
    """Bytes of memory that several may use; what is ``left`` may get below 0 by one use.

    Threads share it without a lock: it is an estimate.
    """

    def __init__(self, size_bytes: int = 0):
        self.left = size_bytes
        self._writers: list[SpillWriter] = []

    def share(self, writer: SpillWriter) -> None:
        self._writers.append(writer)

    def relieve(self) -> None:
        """If a writer's records must go to disk, those of all do.

        Only then can a run that is cut off be taken up.
        """
        if self.left <= 0:
            for writer in self._writers:
                writer.write()


class SpillWriter:
    """Writes a file, whole or not at all; a number may be used again and again.

    Parameters
    ----------
    path
    room
        If given, records stay in memory, at its cost, and there is no file until ``write``, which
        the room calls when it is used up.
    """

    def __init__(self, path: Path, room: Room | None = None):
        self._path = path
        self._kept = Kept(room or Room())
        self._file: FrameFileWriter | None = None
        self._records: list[tuple[int, int, int]] = []
        if room is None:
            self.write()
        else:
            room.share(self)

    def append(self, number: int, arrays: Sequence[np.ndarray], weight: int = 0) -> None:
        if self._file is None:
            self._kept.append(number, arrays, weight)
        else:
            self._file.append(None, arrays)
            self._records.append((number, len(arrays[0]), weight))

    def write(self) -> None:
        """From here on use the file; what is in memory comes first in it."""
        if self._file is None:
            self._file = FrameFileWriter(self._path, KIND)
            for number, arrays, weight in self._kept.take():
                self.append(number, arrays, weight)

    def close(self) -> Kept | Spill:
        """Finish, and return what can be read."""
        if self._file is None:
            return self._kept
        self._file.append(None, [np.array(self._records, np.int64).reshape(-1, 3)])
        self._file.close({})
        return Spill(self._path)

    def abandon(self) -> None:
        """Remove the file, unless it is closed."""
        if self._file is not None:
            self._file.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


class Kept:
    """The same in memory: written as a ``SpillWriter``, read as a ``Spill``.

    Of records that have one and the same last array, one after the other, it counts once.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._last: np.ndarray | None = None
        self._found: dict[int, list[tuple[Sequence[np.ndarray], int]]] = {}

    @property
    def records(self) -> np.ndarray:
        sizes = [(n, len(a[0]), weight) for n, found in self._found.items() for a, weight in found]
        return np.array(sizes, np.int64).reshape(-1, 3)

    def append(self, number: int, arrays: Sequence[np.ndarray], weight: int = 0) -> None:
        own = arrays[:-1] if arrays[-1] is self._last else arrays
        self._room.left -= sum(array.nbytes for array in own)
        self._last = arrays[-1]
        self._found.setdefault(number, []).append((arrays, weight))

    def read(self, number: int) -> list[Sequence[np.ndarray]]:
        return [arrays for arrays, _ in self._found.get(number, ())]

    def joined(self, number: int) -> list[np.ndarray]:
        return _joined(self.read(number))

    def take(self) -> list[tuple[int, Sequence[np.ndarray], int]]:
        """Give everything away: number, arrays and weight of each record."""
        taken = [
            (n, arrays, weight) for n, found in self._found.items() for arrays, weight in found
        ]
        self._room.left += sum(array.nbytes for _, arrays, _ in taken for array in arrays)
        self._found, self._last = {}, None
        return taken

    def remove(self, number: int) -> None:
        """What has the number will not be read again."""
        for arrays, _ in self._found.pop(number, ()):
            self._room.left += sum(array.nbytes for array in arrays)


class Spill:
    """A file of ``SpillWriter``.

    Attributes
    ----------
    records : int64[records, 3]
        Of each its number, the rows of its first array, and the weight it was given.

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
    ...         _ = writer.close()
    ...     [len(arrays[0]) for arrays in Spill(path).read(7)]
    [7, 7]
    """

    def __init__(self, path: Path):
        self.path = path
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
        return _joined(self.read(number))

    def remove(self, number: int) -> None:
        """The file stays as it is."""


def _joined(parts: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def _damaged(error: CodecError) -> DataError:
    return DataError(error.what, where=error.where, hint="run extract again with --overwrite")
