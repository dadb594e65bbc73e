"""Words of 64 bits: eight bytes of text or 64 marks at a time."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types

# To a type checker the functions made by it would take the compiler's context, too.
intrinsic: Any = extending.intrinsic

_U8 = np.uint64(8)
_HIGH = np.uint64(0x8080808080808080)
_ZEROS = np.uint64(0x3030303030303030)  # eight times "0"
_BEYOND_NINE = np.uint64(0x7676767676767676)  # what takes 10 to the high bit of its byte


@intrinsic
def ones(typingctx, word):
    """How many bits of a word, uint64, are set."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def trailing_zeros(typingctx, word):
    """How many bits of a word, uint64, stand below its lowest one; 64 if there is none."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.IntType(1)(0))

    return types.uint64(types.uint64), codegen


@intrinsic
def leading_zeros(typingctx, word):
    """How many bits of a word, uint64, stand above its highest one; 64 if there is none."""

    def codegen(context, builder, signature, args):
        return builder.ctlz(args[0], ir.IntType(1)(0))

    return types.uint64(types.uint64), codegen


@njit(cache=True, nogil=True, inline="always")
def eight_bytes(buf, at):
    """The bytes ``buf[at:at + 8]``, uint8, as a word: the first one is the lowest."""
    # LLVM makes one load of it.
    i = np.uint64(at)
    word = np.uint64(buf[i])
    word |= np.uint64(buf[i + np.uint64(1)]) << _U8
    word |= np.uint64(buf[i + np.uint64(2)]) << np.uint64(16)
    word |= np.uint64(buf[i + np.uint64(3)]) << np.uint64(24)
    word |= np.uint64(buf[i + np.uint64(4)]) << np.uint64(32)
    word |= np.uint64(buf[i + np.uint64(5)]) << np.uint64(40)
    word |= np.uint64(buf[i + np.uint64(6)]) << np.uint64(48)
    word |= np.uint64(buf[i + np.uint64(7)]) << np.uint64(56)
    return word


@njit(cache=True, nogil=True, inline="always")
def digits_before(word):
    """With how many decimal digits a word of eight bytes begins, 0..8."""
    digits = word ^ _ZEROS
    # A carry out of a byte spoils those behind it only: the first one that is no digit is right.
    return trailing_zeros(((digits + _BEYOND_NINE) | digits) & _HIGH) >> np.uint64(3)


@njit(cache=True, nogil=True, inline="always")
def number_before(word, count):
    """The number that the first ``count`` bytes of a word are, which are digits; 1 <= count <= 8.

    Notes
    -----
    Two digits at a time, then four, then eight: D. Lemire, "Quickly parsing eight digits", 2018.
    """
    digits = (word ^ _ZEROS) << (_U8 * (_U8 - count))
    digits = (digits * np.uint64(10) + (digits >> _U8)) & np.uint64(0x00FF00FF00FF00FF)
    digits = (digits * np.uint64(100) + (digits >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return (digits * np.uint64(10000) + (digits >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
