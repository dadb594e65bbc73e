"""Memory that a thread computes windows in, bucket after bucket.

What is computed there is ``ctrps.data.windows``' business.
"""

from __future__ import annotations

import numpy as np

from ctrps.data.texts import Ranked
from ctrps.kernels.lists import Texts, short_texts


class WorkRoom:
    """Memory to compute windows in, bucket after bucket; for one thread at a time.

    Parameters
    ----------
    texts
        What the ranks of values mean.

    Attributes
    ----------
    pool : uint8[room]
        A growing text that fields are pieces of. It begins with all ``texts``.
    size
        The bytes of the pool that are in use.
    texts
        The same as ``kernels.lists`` takes it.
    """

    def __init__(self, texts: Ranked):
        count = len(texts.starts)
        words = np.empty(count, np.uint64)
        self.texts = Texts(
            *texts,
            words=words,
            longest=short_texts(*texts, words),
            counts=np.zeros(count, np.int32),
            seen=np.full(count, -1, np.int64),
            stamp=np.zeros(1, np.int64),
            ranks=np.empty(count, np.int64),
            other=np.empty(count, np.int64),
        )
        self.pool, self.size = texts.data, len(texts.data)
        self._fields = np.empty(0, np.uint32)

    def fields(self, columns: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Room for the borders of the fields of a bucket, and the pool without those of others."""
        self.size = len(self.texts.data)
        if 2 * columns * rows > len(self._fields):
            self._fields = np.empty(2 * columns * rows, np.uint32)
        begins, stops = self._fields[: 2 * columns * rows].reshape(2, columns, rows)
        return begins, stops

    def grow(self) -> None:
        larger = np.empty(2 * len(self.pool) + (1 << 16), np.uint8)
        larger[: self.size] = self.pool[: self.size]
        self.pool = larger

    def make_room(self, size: int) -> None:
        while self.size + size > len(self.pool):
            self.grow()
