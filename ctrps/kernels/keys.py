"""Keys: how text becomes a 64-bit number, where a number lives, and how it is found again.

Three things that must never change, because models and shards on disk hold their results: the
hash of a value (XXH64), the mixing that makes a key of a namespace and values, and the placement
of a key in a partition. ``tests/test_keys.py`` pins all three with known answers.

Not here: which text is a value (``text`` and the readers), and what a row holds (``ctrps.ps``).

Integers are ``uint64`` throughout, constants too: numba turns ``uint64`` with a signed number
into ``float64``.
"""

import numpy as np
from numba import njit

from ctrps.kernels.vectors import address, prefetch

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)

# 2^64 divided by the golden ratio: an odd number without pattern in its bits.
_ODD = np.uint64(0x9E3779B97F4A7C15)
# The digits of pi after the point. It keeps small keys (libsvm indices) away from the fixed
# point 0 of fmix64, and placement apart from the other uses of fmix64.
_PLACE = np.uint64(0x243F6A8885A308D3)

_U1, _U2, _U3, _U4, _U5, _U6, _U7, _U8 = (np.uint64(i) for i in range(1, 9))
_U32 = np.uint64(32)

# Standard deviation of a sum of four independent uniform integers 0..65535.
_NORMAL_MEAN = 2 * 65535
_NORMAL_SCALE = np.float32(1.0 / np.sqrt((65536.0**2 - 1.0) / 3.0))

_MIN_CAPACITY = 16

AHEAD = 32
"""Keys between asking for a slot's memory and reading it: more than a processor waits for alone."""


@njit(cache=True, nogil=True)
def _rotate(x, bits):
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def _read32(data, i):
    # Byte by byte, so that neither alignment nor the machine's byte order matters; LLVM makes one
    # load of it.
    return (
        np.uint64(data[i])
        | np.uint64(data[i + _U1]) << _U8
        | np.uint64(data[i + _U2]) << np.uint64(16)
        | np.uint64(data[i + _U3]) << np.uint64(24)
    )


@njit(cache=True, nogil=True)
def _read64(data, i):
    return (
        np.uint64(data[i])
        | np.uint64(data[i + _U1]) << _U8
        | np.uint64(data[i + _U2]) << np.uint64(16)
        | np.uint64(data[i + _U3]) << np.uint64(24)
        | np.uint64(data[i + _U4]) << _U32
        | np.uint64(data[i + _U5]) << np.uint64(40)
        | np.uint64(data[i + _U6]) << np.uint64(48)
        | np.uint64(data[i + _U7]) << np.uint64(56)
    )


@njit(cache=True, nogil=True)
def _round(lane, word):
    return _rotate(lane + word * _P2, 31) * _P1


@njit(cache=True, nogil=True)
def _merge(h, lane):
    return (h ^ _round(np.uint64(0), lane)) * _P1 + _P4


@njit(cache=True, nogil=True)
def _stripes(data, i, end, seed):
    """The four lanes of XXH64 over whole stripes of 32 bytes: (hash so far, next byte)."""
    a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
    while end - i >= _U32:
        a = _round(a, _read64(data, i))
        b = _round(b, _read64(data, i + _U8))
        c = _round(c, _read64(data, i + np.uint64(16)))
        d = _round(d, _read64(data, i + np.uint64(24)))
        i += _U32
    h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    return _merge(_merge(_merge(_merge(h, a), b), c), d), i


@njit(cache=True, nogil=True)
def _avalanche(h):
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> _U32)


@njit(cache=True, nogil=True)
def xxh64(data, start, end, seed):
    """XXH64 of ``data[start:end]``.

    Parameters
    ----------
    data : uint8[size], read
        Bytes; may be any part of a larger buffer.
    start, end : int, 0 <= start <= end <= size
        Not checked.
    seed : uint64

    Returns
    -------
    uint64

    Notes
    -----
    Y. Collet, "XXH64 algorithm description", the xxHash specification, version 0.1.1.

    Examples
    --------
    >>> hex(xxh64(np.frombuffer(bytearray(b"abc"), np.uint8), 0, 3, np.uint64(0)))
    '0x44bc2cf5ad770999'
    """
    # Unsigned positions spare numba's check for negative ones.
    i, stop = np.uint64(start), np.uint64(end)
    length = stop - i
    if length >= _U32:
        h, i = _stripes(data, i, stop, seed)
    else:
        h = seed + _P5
    h += length
    while stop - i >= _U8:
        h = _rotate(h ^ _round(np.uint64(0), _read64(data, i)), 27) * _P1 + _P4
        i += _U8
    if stop - i >= _U4:
        h = _rotate(h ^ (_read32(data, i) * _P1), 23) * _P2 + _P3
        i += _U4
    while i < stop:
        h = _rotate(h ^ (np.uint64(data[i]) * _P5), 11) * _P1
        i += _U1
    return _avalanche(h)


@njit(cache=True, nogil=True)
def _fmix64(h):
    """The finaliser of MurmurHash3 (A. Appleby, public domain): a bijection that spreads bits."""
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


@njit(cache=True, nogil=True)
def mix(seed, h):
    """Bind one more hash to a seed: the step from a namespace to a key, or to a crossed key.

    A bijection in ``h`` for a fixed seed, and in the seed for a fixed ``h``: within one namespace
    two values share a key only if they share their XXH64.

    Parameters
    ----------
    seed, h : uint64
        Namespace, or the result of the mix before; hash of the value.

    Returns
    -------
    uint64
    """
    return _fmix64(seed + h * _ODD)


@njit(cache=True, nogil=True)
def mix_all(seed, hashes, out):
    """``mix`` of one seed with every hash.

    Parameters
    ----------
    seed : uint64
    hashes : uint64[k], read
    out : uint64[k], written
    """
    for i in range(hashes.shape[0]):
        out[i] = mix(seed, hashes[i])


@njit(cache=True, nogil=True)
def spread(key):
    """Placement bits of a key: the top bits choose its partition, the low bits its index slot.

    Parameters
    ----------
    key : uint64

    Returns
    -------
    uint64
        A bijection of the key, so that consecutive libsvm indices are placed as evenly as hashes.
    """
    return _fmix64(key ^ _PLACE)


@njit(cache=True, nogil=True)
def _partition(key, bits):
    # In two shifts, because a shift by all 64 bits (one partition) is undefined.
    return np.int64((spread(key) >> _U1) >> np.uint64(63 - bits))


@njit(cache=True, nogil=True)
def partition_of(keys, bits, out):
    """Partition number of every key.

    Parameters
    ----------
    keys : uint64[k], read
    bits : int, 0..8
        Logarithm of the number of partitions.
    out : int32[k], written
    """
    for i in range(keys.shape[0]):
        out[i] = _partition(keys[i], bits)


@njit(cache=True, nogil=True)
def grouped(keys, bits, order_out, starts_out):
    """Group keys by partition; inside a partition they keep their order (a counting sort).

    Parameters
    ----------
    keys : uint64[k], read
    bits : int, 0..8
        Logarithm of the number of partitions P.
    order_out : int64[k], written
        ``keys[order_out]`` is grouped by ascending partition.
    starts_out : int32[P + 1], written
        Partition p is ``order_out[starts_out[p]:starts_out[p + 1]]``.

    Examples
    --------
    >>> keys = np.uint64([1, 2, 3, 4, 5])
    >>> order, starts = np.empty(5, np.int64), np.empty(3, np.int32)
    >>> grouped(keys, 1, order, starts)
    >>> order, starts
    (array([1, 0, 2, 3, 4]), array([0, 1, 5], dtype=int32))
    """
    starts_out[:] = 0
    for i in range(keys.shape[0]):
        starts_out[_partition(keys[i], bits) + 1] += 1
    for p in range(1, starts_out.shape[0]):
        starts_out[p] += starts_out[p - 1]
    cursor = starts_out[:-1].copy()
    for i in range(keys.shape[0]):
        p = _partition(keys[i], bits)
        order_out[cursor[p]] = i
        cursor[p] += 1


@njit(cache=True, nogil=True)
def initial(seed, key, j):
    """Starting value number ``j`` of a key: nearly normal, mean 0, variance 1, from a hash.

    The sum of four 16-bit uniforms (kurtosis 2.7, range ±3.46). Everything up to the one
    multiplication is done in integers, so that every machine finds the same bits.

    Parameters
    ----------
    seed, key : uint64
    j : int, >= 0
        Column.

    Returns
    -------
    float32
    """
    h = mix(mix(seed, key), np.uint64(j))
    low = np.uint64(0xFFFF)
    total = (h & low) + ((h >> np.uint64(16)) & low) + ((h >> _U32) & low) + (h >> np.uint64(48))
    return np.float32(np.int64(total) - _NORMAL_MEAN) * _NORMAL_SCALE


def hash_text(value: bytes | str) -> int:
    """XXH64 with seed 0 of a value; text is taken as UTF-8, without folding or stripping.

    Examples
    --------
    >>> hex(hash_text(""))
    '0xef46db3751d8e999'
    """
    data = value.encode() if isinstance(value, str) else value
    # A bytearray is writable, so numba compiles for one kind of array only.
    return int(xxh64(np.frombuffer(bytearray(data), np.uint8), 0, len(data), np.uint64(0)))


def namespace(prefix: str) -> int:
    """Seed of all keys of a feature; features with one prefix share their keys on purpose."""
    return hash_text(prefix)


def key_of(prefix: str, value: bytes | str, *crossed: bytes | str) -> int:
    """Key of one value, or of a cross of several, under a prefix.

    Numbers (of a bucket, of a hit) enter as their decimal text.

    Examples
    --------
    >>> hex(key_of("city", "London"))
    '0xf9ae3f62d73cca4f'
    >>> key_of("city_hour", "London", "8") == key_of("city_hour", "8", "London")
    False
    """
    key = namespace(prefix)
    for text in (value, *crossed):
        key = int(mix(np.uint64(key), np.uint64(hash_text(text))))
    return key


def dense_key(name: str) -> int:
    """Key of a dense feature, whose number enters as the value of the entry."""
    return key_of(name + "\0dense", "")


def index_capacity(rows: int) -> int:
    """Smallest capacity of an index that holds ``rows`` keys at a load of at most one half.

    Examples
    --------
    >>> index_capacity(3), index_capacity(16), index_capacity(17)
    (16, 32, 64)
    """
    return max(_MIN_CAPACITY, 1 << (2 * rows - 1).bit_length())


def index_new(capacity: int) -> np.ndarray:
    """An empty index: uint64[capacity, 2] of (key, row + 1); 0 in the second column is free.

    Raises
    ------
    ValueError
        If capacity is not a power of two.
    """
    if capacity < 1 or capacity & (capacity - 1):
        raise ValueError(f"an index's capacity must be a power of two, not {capacity}")
    return np.zeros((capacity, 2), np.uint64)


@njit(cache=True, nogil=True)
def _probe(index, key):
    """Slot of a key, or the free slot that ends the search for it."""
    last = np.uint64(index.shape[0] - 1)
    slot = spread(key) & last
    while index[slot, 1] != 0 and index[slot, 0] != key:
        slot = (slot + _U1) & last
    return slot


@njit(cache=True, nogil=True)
def index_find(index, keys, rows_out):
    """Row of every key, -1 where the index does not hold it.

    Parameters
    ----------
    index : uint64[capacity, 2], read
        At least one slot is free.
    keys : uint64[k], read
    rows_out : int64[k], written
    """
    last = np.uint64(index.shape[0] - 1)
    table, count = address(index), keys.shape[0]
    for asked in range(count + AHEAD):
        if asked < count:
            slot = spread(keys[asked]) & last
            rows_out[asked] = np.int64(slot)
            prefetch(table + np.int64(slot) * 16)
        i = asked - AHEAD
        if i >= 0:
            slot = np.uint64(rows_out[i])
            while index[slot, 1] != 0 and index[slot, 0] != keys[i]:
                slot = (slot + _U1) & last
            rows_out[i] = np.int64(index[slot, 1]) - 1


@njit(cache=True, nogil=True)
def index_insert(index, keys, used, rows_out, new_out):
    """Row of every key; keys that the index does not hold get the next rows, in their order.

    Parameters
    ----------
    index : uint64[capacity, 2], read and written
        The caller guarantees room: ``2 * (used + k) <= capacity``. A full index never returns.
    keys : uint64[k], read
        May repeat.
    used : int
        First row to give.
    rows_out : int64[k], written
    new_out : int64[k], first n_new written
        Positions in ``keys`` of those that got a row.

    Returns
    -------
    (int, int)
        ``used + n_new`` and ``n_new``.
    """
    index_find(index, keys, rows_out)
    n_new = 0
    for i in range(keys.shape[0]):
        if rows_out[i] < 0:
            slot = _probe(index, keys[i])
            if index[slot, 1] == 0:
                index[slot, 0] = keys[i]
                index[slot, 1] = np.uint64(used + n_new + 1)
                new_out[n_new] = i
                n_new += 1
            rows_out[i] = np.int64(index[slot, 1]) - 1
    return used + n_new, n_new


@njit(cache=True, nogil=True)
def index_build(index, keys):
    """Fill an empty index: ``keys[i]`` stands in row ``i``.

    Parameters
    ----------
    index : uint64[capacity, 2], all zero on entry, written
        ``2 * k <= capacity``.
    keys : uint64[k], read
        Distinct.
    """
    for i in range(keys.shape[0]):
        slot = _probe(index, keys[i])
        index[slot, 0] = keys[i]
        index[slot, 1] = np.uint64(i + 1)
