"""bfloat16: float32 with the low half of its bits rounded away, for half the bytes on the way.

It has the range of float32 and 8 bits of precision. Arithmetic is not done in it.
"""

import numpy as np
from numba import njit

_HALF, _ONE, _SIXTEEN = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
_INFINITE, _MAGNITUDE, _QUIET = (np.uint32(bits) for bits in (0x7F800000, 0x7FFFFFFF, 0x40))


@njit(cache=True, nogil=True)
def to_bfloat16(bits, out):
    """Round to the nearest, of two equally near ones to the one whose last bit is 0.

    Parameters
    ----------
    bits : uint32[n], read
        The bits of float32 numbers. What is not a number stays none.
    out : uint16[n], written
    """
    for i in range(bits.shape[0]):
        x = bits[i]
        if x & _MAGNITUDE > _INFINITE:
            out[i] = np.uint16(x >> _SIXTEEN | _QUIET)
        else:
            out[i] = np.uint16((x + _HALF + (x >> _SIXTEEN & _ONE)) >> _SIXTEEN)


@njit(cache=True, nogil=True)
def from_bfloat16(halves, out):
    """The bits of the float32 numbers with these upper halves.

    Parameters
    ----------
    halves : uint16[n], read
    out : uint32[n], written
    """
    for i in range(halves.shape[0]):
        out[i] = np.uint32(halves[i]) << _SIXTEEN
