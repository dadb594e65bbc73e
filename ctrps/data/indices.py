"""Whether the files of a job count their indices from the same number, 0 or 1.

A file that counts from 0 beside one that counts from 1 reads without an error and spoils the
model. Which files there are, and how they are read, is ``convert``'s and ``formats``' business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrps.data.shards import Shard


@dataclass
class IndexRange:
    """The least and the greatest index of some rows; of none, least is None.

    Examples
    --------
    >>> found = IndexRange()
    >>> found.as_meta()
    {}
    >>> found.add(np.uint64([7, 3]))
    >>> found.as_meta()
    {'least': 3, 'greatest': 7}
    """

    least: int | None = None
    greatest: int = 0
    source: str = ""
    """The file with the least index."""

    def add(self, keys: np.ndarray) -> None:
        """Take in indices, uint64[n]."""
        if len(keys):
            self.include(int(keys.min()), int(keys.max()), "")

    def include(self, least: int, greatest: int, source: str) -> None:
        """Take in the range of a file."""
        if self.least is None or least < self.least:
            self.least, self.source = least, source
        self.greatest = max(self.greatest, greatest)

    def as_meta(self) -> dict[str, Any]:
        """What a shard says of its rows."""
        return {} if self.least is None else {"least": self.least, "greatest": self.greatest}


def disagreement(*parts: Sequence[Shard]) -> str | None:
    """In words, that some files seem to count from 0 and others from 1; None if not.

    Files of one part (training, test) and one format are taken together. That one of two such
    groups lacks index 0 may be chance; it is taken for a sign when their formats differ, or when
    its greatest index is beyond that of the other.

    Parameters
    ----------
    parts
        Shards, of which only those count that were made of text with indices.
    """
    for form, zero in (groups := list(_groups(parts))):
        for other, one in groups:
            apart = form != other or one.greatest > zero.greatest
            if (zero.least, one.least) == (0, 1) and apart:
                return _told(form, zero.source, other, one.source)
    return None


def _groups(parts: Sequence[Sequence[Shard]]) -> Iterator[tuple[str, IndexRange]]:
    for part in parts:
        found: dict[str, IndexRange] = {}
        for shard in part:
            meta = shard.meta
            least, greatest = meta.get("least"), meta.get("greatest")
            # Whoever writes a shard may say in its meta what he likes.
            if isinstance(least, int) and isinstance(greatest, int):
                group = found.setdefault(str(meta.get("format")), IndexRange())
                group.include(least, greatest, str(meta.get("source")))
        yield from found.items()


def _told(form: str, zero: str, other: str, one: str) -> str:
    what = (
        f"{zero} seems to count its indices from 0, {one} from 1: an index of the one is then "
        "another feature in the other, and scores mean nothing."
    )
    if form != other:
        return f"{what} If so, set data.zero_based={form}"
    turn = f"ctrps convert {zero} -o NEW.{form} --set data.zero_based={form}"
    return f"{what} If so, train and test with what this writes: {turn}"
