"""Short vectors of float32 inside compiled kernels, and prefetching.

A kernel that handles several columns of a row at once says so here, instead of hoping that the
compiler finds out: LLVM turns each operation into the widest instructions that the processor has.
IEEE arithmetic throughout; lanes never mix except in ``total``.

The length of a vector is part of its type. It comes from a *tag*, a tuple of that many integers
that is never looked at: ``ONE``, ``FOUR`` or ``EIGHT``. Nothing here is a kernel of its own.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import overload, register_model

# To a type checker the functions made by it would take the compiler's context, too.
intrinsic: Any = extending.intrinsic

ONE = (0,)
FOUR = (0,) * 4
EIGHT = (0,) * 8

_I32 = ir.IntType(32)
_FLOAT = ir.FloatType()
# Operands of llvm.prefetch: for writing, to keep in all caches, data and not code.
_WRITE, _KEEP, _DATA = _I32(1), _I32(3), _I32(1)


class Vector(types.Type):
    """Type of ``lanes`` float32 numbers in registers."""

    def __init__(self, lanes: int):
        self.lanes = lanes
        super().__init__(name=f"Vector({lanes})")


@register_model(Vector)
class VectorModel(PrimitiveModel):
    """Its value in LLVM: ``<lanes x float>``."""

    def __init__(self, manager: Any, kind: Vector):
        super().__init__(manager, kind, ir.VectorType(_FLOAT, kind.lanes))


def _pointer(builder, address, column, kind):
    """Pointer of type ``kind`` to float32 number ``column`` after an address."""
    at = builder.add(address, builder.mul(column, ir.IntType(64)(4)))
    return builder.inttoptr(at, kind.as_pointer())


def _spread(builder, number, lanes):
    """A vector with ``number`` in every lane."""
    empty = ir.Constant(ir.VectorType(_FLOAT, lanes), ir.Undefined)
    first = builder.insert_element(empty, number, _I32(0))
    return builder.shuffle_vector(
        first, empty, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    )


def _widest(*kinds: Any) -> Any:
    """The vector type among float32 and vectors of one length; None if they do not go together."""
    vectors = {kind for kind in kinds if isinstance(kind, Vector)}
    rest = {kind for kind in kinds if not isinstance(kind, Vector)}
    return vectors.pop() if len(vectors) == 1 and rest <= {types.float32} else None


def _as_vectors(builder, kinds, values, lanes):
    return [
        value if isinstance(kind, Vector) else _spread(builder, value, lanes)
        for kind, value in zip(kinds, values, strict=True)
    ]


@intrinsic
def address(typingctx, array):
    """Where the first number of a C-contiguous array lies. The caller keeps the array alive."""

    def codegen(context, builder, signature, args):
        made = context.make_array(array)(context, builder, args[0])
        return builder.ptrtoint(made.data, ir.IntType(64))

    return types.int64(array) if array.layout == "C" else None, codegen


@intrinsic
def load(typingctx, tag, at, column):
    """The float32 numbers ``column … column + lanes`` after the address ``at``."""
    kind = Vector(len(tag))

    def codegen(context, builder, signature, args):
        pointer = _pointer(builder, args[1], args[2], ir.VectorType(_FLOAT, kind.lanes))
        return builder.load(pointer, align=4)

    return kind(tag, types.int64, types.int64), codegen


@intrinsic
def whole(typingctx, at, number):
    """int64 number ``number`` after the address ``at``."""

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        first = builder.inttoptr(args[0], word.as_pointer())
        return builder.load(builder.gep(first, [args[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def put_whole(typingctx, at, number, value):
    """Write int64 number ``number`` after the address ``at``."""

    def codegen(context, builder, signature, args):
        first = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store(args[2], builder.gep(first, [args[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def seen(typingctx, at, number):
    """As ``whole``, and what was written before ``publish`` of that number is seen from here on."""

    def codegen(context, builder, signature, args):
        first = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(builder.gep(first, [args[1]]), "acquire", 8)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def publish(typingctx, at, number, value):
    """As ``put_whole``, after all that this thread wrote before."""

    def codegen(context, builder, signature, args):
        first = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store_atomic(args[2], builder.gep(first, [args[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def real(typingctx, at, number):
    """float32 number ``number`` after the address ``at``."""

    def codegen(context, builder, signature, args):
        return builder.load(_pointer(builder, args[0], args[1], _FLOAT))

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def gather(typingctx, tag, ats, column):
    """One float32 number after each of ``lanes`` addresses, which lie at ``ats`` as int64."""
    kind = Vector(len(tag))

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        rows = builder.inttoptr(args[1], word.as_pointer())
        vector = ir.Constant(ir.VectorType(_FLOAT, kind.lanes), ir.Undefined)
        for i in range(kind.lanes):
            at = builder.load(builder.gep(rows, [_I32(i)]))
            number = builder.load(_pointer(builder, at, args[2], _FLOAT))
            vector = builder.insert_element(vector, number, _I32(i))
        return vector

    return kind(tag, types.int64, types.int64), codegen


@intrinsic
def scatter(typingctx, vector, ats, column):
    """Write each number of a vector after one of the addresses at ``ats``."""

    def codegen(context, builder, signature, args):
        rows = builder.inttoptr(args[1], ir.IntType(64).as_pointer())
        for i in range(vector.lanes):
            at = builder.load(builder.gep(rows, [_I32(i)]))
            number = builder.extract_element(args[0], _I32(i))
            builder.store(number, _pointer(builder, at, args[2], _FLOAT))
        return context.get_dummy_value()

    return types.void(vector, types.int64, types.int64), codegen


@intrinsic
def store(typingctx, vector, at, column):
    """Write a vector to numbers ``column … column + lanes`` after the address ``at``."""

    def codegen(context, builder, signature, args):
        builder.store(args[0], _pointer(builder, args[1], args[2], args[0].type), align=4)
        return context.get_dummy_value()

    return types.void(vector, types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx, at):
    """Ask for the cache line of an address, to be written soon. Any address will do."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        call = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(call, [pointer, _WRITE, _KEEP, _DATA])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def fill(typingctx, tag, number):
    """A vector with ``number`` in every lane."""
    kind = Vector(len(tag))

    def codegen(context, builder, signature, args):
        return _spread(builder, args[1], kind.lanes)

    return kind(tag, types.float32), codegen


@intrinsic
def total(typingctx, vector):
    """Sum of the lanes, first to last."""

    def codegen(context, builder, signature, args):
        lanes = [builder.extract_element(args[0], _I32(i)) for i in range(vector.lanes)]
        added = lanes[0]
        for lane in lanes[1:]:
            added = builder.fadd(added, lane)
        return added

    return types.float32(vector), codegen


@intrinsic
def root(typingctx, vector):
    """Square root, NaN of a negative number."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(args[0].type, [args[0].type])
        name = f"llvm.sqrt.v{vector.lanes}f32"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    return vector(vector), codegen


@intrinsic
def at_most(typingctx, a, b, yes, no):
    """Lane by lane ``yes`` where a <= b, ``no`` elsewhere, so also where one of them is NaN."""
    kinds = (a, b, yes, no)
    kind = _widest(*kinds)

    def codegen(context, builder, signature, args):
        left, right, *results = _as_vectors(builder, kinds, args, kind.lanes)
        return builder.select(builder.fcmp_ordered("<=", left, right), *results)

    return kind(*kinds), codegen


def _binary(instruction: str) -> Callable[..., Any]:
    @intrinsic
    def call(typingctx, a, b):
        kind = _widest(a, b)

        def codegen(context, builder, signature, args):
            left, right = _as_vectors(builder, (a, b), args, kind.lanes)
            return getattr(builder, instruction)(left, right)

        return kind(a, b), codegen

    return call


_add, _subtract, _multiply, _divide = map(_binary, ("fadd", "fsub", "fmul", "fdiv"))


@overload(operator.add)
def _plus(a, b):
    return (lambda a, b: _add(a, b)) if _widest(a, b) else None


@overload(operator.sub)
def _minus(a, b):
    return (lambda a, b: _subtract(a, b)) if _widest(a, b) else None


@overload(operator.mul)
def _times(a, b):
    return (lambda a, b: _multiply(a, b)) if _widest(a, b) else None


@overload(operator.truediv)
def _over(a, b):
    return (lambda a, b: _divide(a, b)) if _widest(a, b) else None


@njit(cache=True, nogil=True)
def copy(row, at, out, to, width):
    """Copy float32 numbers between two addresses."""
    j = 0
    while j + 8 <= width:
        store(load(EIGHT, row, at + j), out, to + j)
        j += 8
    if j + 4 <= width:
        store(load(FOUR, row, at + j), out, to + j)
        j += 4
    while j < width:
        store(load(ONE, row, at + j), out, to + j)
        j += 1
