"""Memory that two processes of one machine share, so that large frames need not go through sockets.

A *channel* is one anonymous file of the kernel's memory that both ends have mapped: a page with a
token and two counters, and then a ring of bytes for each direction. Who sends copies frames into
its ring and tells the other end, in a small message, where they are; who receives copies them out
and counts how far the ring may be used again. A ring that is full is no error: the frames then go
with the message, as they do between machines.

The end that connects makes the channel and offers it by the number of its process and of the open
file. Nothing has a name that could be left behind. An end that cannot open what is offered, or
finds another token there, says nothing, and all goes on without.
"""

import mmap
import os
import secrets
import stat
import struct
from collections.abc import Sequence
from typing import Self

from ctrps.codec import WIRE, Buffer

RING_BYTES = 4 << 20
"""Of each direction; small enough to stay in the processor's cache."""

SHARED_BYTES = 1 << 14
"""Messages with fewer bytes than this beside their head go by the socket alone."""

OFFER, ACCEPT, FRAMES = 0xC1, 0xC2, 0xC3
"""First bytes of messages between transports; a frame set begins with a list, 0x90 to 0x9F."""

_OFFER = struct.Struct("<Bii16s")
_PLACE = struct.Struct("<QQ")
_COUNT = struct.Struct("<Q")
_TOKEN_BYTES = 16
_PAGE = mmap.PAGESIZE
_SIZE = _PAGE + 2 * RING_BYTES
# Each counter has a cache line of its own.
_COUNTERS = (64, 128)


def can_share() -> bool:
    """Whether this system has anonymous files that another process can open."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class Channel:
    """One end of a channel.

    Parameters
    ----------
    memory
        The mapped file.
    side : int
        0 for the end that made it, 1 for the other.
    file : int
        Descriptor of the file, at the end that made it; -1 at the other.
    """

    def __init__(self, memory: mmap.mmap, side: int, file: int = -1):
        self._memory = memory
        self._view = memoryview(memory)
        self._side = side
        self._file = file
        self._sent = 0

    @classmethod
    def make(cls) -> Self:
        """A channel of this process."""
        file = os.memfd_create("ctrps")
        os.ftruncate(file, _SIZE)
        memory = mmap.mmap(file, _SIZE)
        memory[:_TOKEN_BYTES] = secrets.token_bytes(_TOKEN_BYTES)
        return cls(memory, 0, file)

    def offer(self) -> bytes:
        """The message that offers the channel."""
        return _OFFER.pack(OFFER, os.getpid(), self._file, self._memory[:_TOKEN_BYTES])

    @classmethod
    def open(cls, offer: bytes) -> Self | None:
        """The other end of what is offered, or None if that cannot be had here."""
        try:
            _, process, file, token = _OFFER.unpack(offer)
            path = f"/proc/{process:d}/fd/{file:d}"
            # Without waiting, should it be a pipe.
            opened = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except (struct.error, OSError):
            return None
        try:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode) or found.st_size != _SIZE:
                return None
            memory = mmap.mmap(opened, _SIZE)
        except OSError:
            return None
        finally:
            os.close(opened)
        if memory[:_TOKEN_BYTES] != token:
            memory.close()
            return None
        return cls(memory, 1)

    def put(self, frames: Sequence[Buffer]) -> bytes | None:
        """Copy frames into the ring; the message that tells where, or None if there is no room."""
        start = self._sent
        size = sum(map(len, frames))
        if start % RING_BYTES + size > RING_BYTES:
            # Frames of one message lie in one piece.
            start += RING_BYTES - start % RING_BYTES
        if start + size - self._counter(self._side) > RING_BYTES:
            return None
        at = self._base(self._side) + start % RING_BYTES
        places = [_PLACE.pack(start, size)]
        for frame in frames:
            end = at + len(frame)
            self._view[at:end] = frame
            places.append(_COUNT.pack(len(frame)))
            at = end
        self._sent = start + size
        return bytes([FRAMES]) + b"".join(places)

    def take(self, message: Buffer) -> list[Buffer] | None:
        """Copies of the frames that a message tells of; None if it cannot be true."""
        body = bytes(message)[1:]
        if len(body) < _PLACE.size or (len(body) - _PLACE.size) % _COUNT.size:
            return None
        start, size = _PLACE.unpack_from(body)
        lengths = [n for (n,) in _COUNT.iter_unpack(body[_PLACE.size :])]
        inside = start % RING_BYTES + size <= RING_BYTES
        if not inside or sum(lengths) != size or len(lengths) > WIRE.frames:
            return None
        at = self._base(1 - self._side) + start % RING_BYTES
        frames: list[Buffer] = []
        for length in lengths:
            frames.append(memoryview(bytes(self._view[at : at + length])))
            at += length
        counter = _COUNTERS[1 - self._side]
        self._view[counter : counter + _COUNT.size] = _COUNT.pack(start + size)
        return frames

    def close(self) -> None:
        """Unmap; the memory is gone when the other end has done so, too."""
        self._view.release()
        self._memory.close()
        if self._file >= 0:
            os.close(self._file)

    def _counter(self, side: int) -> int:
        """How far the ring of a side has been read."""
        (count,) = _COUNT.unpack_from(self._view, _COUNTERS[side])
        return int(count)

    @staticmethod
    def _base(side: int) -> int:
        return _PAGE + side * RING_BYTES
