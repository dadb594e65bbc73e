"""Numbers and counts of the keys in a block, in types as narrow as they may be."""

from __future__ import annotations

import numpy as np

from ctrps.kernels.csr import drop_numbers


def narrow(keys: int) -> type[np.unsignedinteger]:
    """The type of numbers of so many keys."""
    return np.uint16 if keys <= 1 << 16 else np.uint32


def fewer_numbers(
    local: np.ndarray, counts: np.ndarray, kept: np.ndarray, places: np.ndarray | None = None
) -> np.ndarray:
    """The numbers of keys in rows, only of those that stay, numbered anew.

    Parameters
    ----------
    local : uint16, uint32 or int32[nnz]
    counts : [rows, slots], changed
        Keys of each row and slot.
    kept : bool[k]
    places : uint16 or uint32[k]
        Where in ``kept`` each number's key is, if not where the number says.
    """
    stay = np.flatnonzero(kept)
    number = np.full(len(kept), -1, np.int32)
    number[stay] = np.arange(len(stay), dtype=np.int32)
    if places is not None:
        number = number[places]
    fewer = np.empty(len(local), narrow(len(stay)))
    return fewer[: drop_numbers(local, counts, number, fewer)]


def narrowed(counts: np.ndarray) -> np.ndarray:
    """Counts in the narrowest type that holds them; a copy."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
