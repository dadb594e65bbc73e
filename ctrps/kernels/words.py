"""Many bytes of text at a time: where a separator is, and the hash of a short text.

Texts of logs are short and of all lengths, so that a loop over their bytes ends where no
processor expects it; what is here has no branch that depends on the length of a short one.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types

from ctrps.kernels.bits import eight_bytes
from ctrps.kernels.keys import xxh64

# To a type checker the functions made by it would take the compiler's context, too.
intrinsic: Any = extending.intrinsic

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P5 = np.uint64(0x27D4EB2F165667C5)

_LOW_HALF = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(0xFF)
_U0, _U1, _U2, _U8 = (np.uint64(i) for i in (0, 1, 2, 8))
_U32 = np.uint64(32)


@intrinsic
def equal_bytes(typingctx, at, byte):
    """Which of the 64 bytes after an address are ``byte``, uint8: a uint64, lowest bit first."""

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(ir.IntType(8), 64)
        found = builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1)
        first = builder.insert_element(ir.Constant(kind, ir.Undefined), args[1], ir.IntType(32)(0))
        same = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        wanted = builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), same)
        return builder.bitcast(builder.icmp_unsigned("==", found, wanted), ir.IntType(64))

    return types.uint64(types.int64, types.uint8), codegen


@njit(cache=True, nogil=True, inline="always")
def _rotate(x, bits):
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@njit(cache=True, nogil=True, inline="always")
def _pick(mask, one, other):
    """``one`` where ``mask`` has bits, ``other`` where it has none: no branch comes of it."""
    return other ^ ((one ^ other) & mask)


@njit(cache=True, nogil=True, inline="always")
def _add_byte(h, byte):
    return _rotate(h ^ (byte * _P5), 11) * _P1


@njit(cache=True, nogil=True, inline="always")
def hash_short(word, n):
    """XXH64, with seed 0, of the first n < 8 bytes of ``word``.

    Parameters
    ----------
    word, n : uint64
        Bytes of ``word`` behind the first n do not matter.

    Returns
    -------
    uint64
    """
    h = _P5 + n
    four = _U0 - ((n >> _U2) & _U1)
    h = _pick(four, _rotate(h ^ ((word & _LOW_HALF) * _P1), 23) * _P2 + _P3, h)
    word = _pick(four, word >> _U32, word)
    one, two = n & _U1, (n >> _U1) & _U1
    h = _pick(_U0 - (one | two), _add_byte(h, word & _BYTE), h)
    h = _pick(_U0 - two, _add_byte(h, (word >> _U8) & _BYTE), h)
    h = _pick(_U0 - (one & two), _add_byte(h, (word >> np.uint64(16)) & _BYTE), h)
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> _U32)


@njit(cache=True, nogil=True, inline="always")
def hash_field(data, start, end):
    """XXH64, with seed 0, of ``data[start:end]``: ``xxh64`` made fast for short texts.

    Parameters
    ----------
    data : uint8[size], read
    start, end : uint64, start <= end <= size

    Returns
    -------
    uint64
    """
    if end - start < _U8 and start + _U8 <= np.uint64(data.shape[0]):
        h = hash_short(eight_bytes(data, start), end - start)
    else:
        h = xxh64(data, start, end, _U0)
    return h


@njit(cache=True, nogil=True)
def hash_spans(data, spots, hashes, sizes):
    """Hash many texts at once: processors do several short ones in one instruction.

    Parameters
    ----------
    data : uint8[size], read
    spots : uint64[n + 1], read
        Text i is ``data[spots[i]:spots[i + 1] - 1]``.
    hashes : uint64[room], the first n written
        XXH64 of the texts, with seed 0. There is room for 2 n: the rest is scratch.
    sizes : uint32[n], written
        Of the texts.
    """
    count = spots.shape[0] - 1
    longer = count
    if spots[count] + _U8 <= np.uint64(data.shape[0]):
        for i in range(count):
            start = spots[i]
            size = spots[i + 1] - start - _U1
            hashes[i] = eight_bytes(data, start)
            sizes[i] = size
            hashes[longer] = i
            longer += np.int64(size >= _U8)
        # Nothing here that keeps a compiler from using vectors: no branch, no other memory.
        for i in range(count):
            hashes[i] = hash_short(hashes[i], np.uint64(sizes[i]))
    else:
        for i in range(count):
            hashes[longer] = i
            longer += 1
    for j in range(count, longer):
        i = hashes[j]
        hashes[i] = xxh64(data, spots[i], spots[i + _U1] - _U1, _U0)


@njit(cache=True, nogil=True)
def hash_list(data, start, end, separator, elements, used):
    """Append the hash of every element of a list; an empty text has one empty element.

    Parameters
    ----------
    data : uint8[size], read
    start, end : uint64
        The list is ``data[start:end]``.
    separator : uint64
        The byte between elements.
    elements : uint64[room], written
        Has room for ``end - start + 1`` more.
    used : int

    Returns
    -------
    int
        The new end of ``elements``.
    """
    at = start
    while at < end:
        if np.uint64(data[at]) == separator:
            elements[used] = hash_field(data, start, at)
            used += 1
            start = at + _U1
        at += _U1
    elements[used] = hash_field(data, start, end)
    return used + 1
