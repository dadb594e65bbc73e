"""Copying pieces of text inside compiled kernels.

Fields of such tables have a few bytes. A loop over them costs more than two moves of sixteen
bytes, which write past the end of a field: what comes next is written over that. Nothing here is a
kernel of its own.
"""

from typing import Any

from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils

# To a type checker the functions made by it would take the compiler's context, too.
intrinsic: Any = extending.intrinsic

WIDE = 16
"""Bytes of a move."""

WRITTEN_OVER = 2 * WIDE

_BYTE = ir.IntType(8)


@intrinsic
def move_wide(typingctx, to, at):
    """Copy ``WIDE`` bytes from one address to another."""

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(_BYTE, WIDE).as_pointer()
        target, source = (builder.inttoptr(arg, kind) for arg in args)
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def put_word(typingctx, to, word):
    """Write the eight bytes of a word, uint64, to an address, the lowest one first."""

    def codegen(context, builder, signature, args):
        kind = ir.IntType(64).as_pointer()
        builder.store(args[1], builder.inttoptr(args[0], kind), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), codegen


@intrinsic
def move_many(typingctx, to, at, count):
    """Copy ``count`` bytes from one address to another; they do not overlap."""

    def codegen(context, builder, signature, args):
        kind = _BYTE.as_pointer()
        target, source = (builder.inttoptr(arg, kind) for arg in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@njit(cache=True, nogil=True)
def copy_text(source, source_end, target, target_end, size):
    """Copy a text of ``size`` bytes from one address to another.

    Addresses and not arrays, whose references would be counted at each call.

    Parameters
    ----------
    source, target : int
        Addresses of the text and of its new place; see ``address``.
    source_end, target_end : int
        Where the memory that they are in ends. What follows the text up to ``WRITTEN_OVER`` bytes
        from the target may be written over.
    size : int
        The caller guarantees that it fits.
    """
    if (
        size <= WRITTEN_OVER
        and source + WRITTEN_OVER <= source_end
        and target + WRITTEN_OVER <= target_end
    ):
        move_wide(target, source)
        if size > WIDE:
            move_wide(target + WIDE, source + WIDE)
    else:
        move_many(target, source, size)
