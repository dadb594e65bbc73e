"""Memory that two processes of one machine share, so that their messages need no socket.

A *channel* is one anonymous file of the kernel's memory that both ends have mapped: a page with a
token and some counters, and then a ring of bytes for each direction. Who sends copies the frames of
a message into its ring and moves a counter; who receives looks at the counter, copies the frames
out and counts how far the ring may be used again. While both are busy neither calls the system.
Only who is about to sleep says so in the page, and is then woken by a byte in its *bell*, a pipe.
A ring that is full is no error: the message goes by the socket, as it does between machines.

The end that connects makes the channel and offers it by the numbers of its process and of its open
files. Nothing has a name that could be left behind. An end that cannot open what is offered, or
finds another token there, says nothing, and all goes on without.
"""

import mmap
import os
import platform
import secrets
import stat
import struct
import threading
from collections.abc import Sequence
from typing import Self

from ctrps.codec import WIRE, Buffer

RING_BYTES = 4 << 20
"""Of each direction; small enough to stay in the processor's cache."""

OFFER, ACCEPT = 0xC1, 0xC2
"""First bytes of messages between transports; a frame set begins with a list, 0x90 to 0x9F."""

_OFFER = struct.Struct("<Biii16s")
_ACCEPT = struct.Struct("<Bii")
_COUNT = struct.Struct("<Q")
_HEAD = struct.Struct("<QQ")
_TOKEN_BYTES = 16
_PAGE = mmap.PAGESIZE
_SIZE = _PAGE + 2 * RING_BYTES
_SKIP = 1 << 32
"""Instead of a number of frames: the next message begins at the start of the ring."""


def can_share() -> bool:
    """Whether this system has anonymous files that another process can open.

    And whether its processors show stores to others in the order in which they were made: from
    Python nothing else makes sure that frames are there when their counter is.
    """
    ordered = platform.machine().lower() in ("x86_64", "amd64", "i686")
    return ordered and hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class Channel:
    """One end of a channel.

    Parameters
    ----------
    memory
        The mapped file.
    side : int
        0 for the end that made it, 1 for the other.
    bell : int
        Descriptor that wakes the other end, -1 if there is none yet.
    file : int
        Descriptor of the file, at the end that made it; -1 at the other.

    Attributes
    ----------
    closed : bool
        The other end is gone: what is put does not arrive.
    """

    def __init__(self, memory: mmap.mmap, side: int, bell: int = -1, file: int = -1):
        self._memory = memory
        self._view = memoryview(memory)
        self._bell = bell
        self._file = file
        self._mine, self._other = _Places(side), _Places(1 - side)
        self._sent = self._read = 0
        self._fence = threading.Lock()
        self.closed = False

    @classmethod
    def make(cls) -> Self:
        """A channel of this process."""
        file = os.memfd_create("ctrps")
        os.ftruncate(file, _SIZE)
        memory = mmap.mmap(file, _SIZE)
        memory[:_TOKEN_BYTES] = secrets.token_bytes(_TOKEN_BYTES)
        return cls(memory, 0, file=file)

    def offer(self, bell: int) -> bytes:
        """The message that offers the channel; ``bell`` is the pipe that wakes this process."""
        token = self._memory[:_TOKEN_BYTES]
        return _OFFER.pack(OFFER, os.getpid(), self._file, bell, token)

    @classmethod
    def open(cls, offer: bytes) -> Self | None:
        """The other end of what is offered, or None if that cannot be had here."""
        try:
            _, process, file, bell, token = _OFFER.unpack(offer)
            opened = _open(process, file, os.O_RDWR)
        except (struct.error, OSError):
            return None
        try:
            found = os.fstat(opened)
            # A file with a name is none of ours, whatever its size: it may belong to somebody.
            ours = stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_size == _SIZE
            if not ours:
                return None
            memory = mmap.mmap(opened, _SIZE)
        except OSError:
            return None
        finally:
            os.close(opened)
        if memory[:_TOKEN_BYTES] != token:
            memory.close()
            return None
        channel = cls(memory, 1)
        if not channel._hang(process, bell):
            channel.close()
            return None
        return channel

    def accept(self, bell: int) -> bytes:
        """The message that accepts an offer; ``bell`` is the pipe that wakes this process."""
        return _ACCEPT.pack(ACCEPT, os.getpid(), bell)

    def accepted(self, message: bytes) -> bool:
        """The other end has accepted; whether it can be woken."""
        try:
            _, process, bell = _ACCEPT.unpack(message)
        except struct.error:
            return False
        return self._hang(process, bell)

    def _hang(self, process: int, bell: int) -> bool:
        try:
            opened = _open(process, bell, os.O_WRONLY)
        except OSError:
            return False
        if not stat.S_ISFIFO(os.fstat(opened).st_mode):
            os.close(opened)
            return False
        self._bell = opened
        return True

    def put(self, frames: Sequence[Buffer]) -> bool:
        """Send a message; False if there is no room, or nobody to take it."""
        head = _HEAD.size + _COUNT.size * len(frames)
        size = -(-(head + sum(map(len, frames))) // _HEAD.size) * _HEAD.size
        left = RING_BYTES - self._sent % RING_BYTES
        start = self._sent if size <= left else self._sent + left
        read = self._counter(self._mine.read)
        self.closed |= bool(self._view[self._other.closed])
        if self.closed or start + size - read > RING_BYTES:
            return False
        if start > self._sent:
            # Frames of one message lie in one piece.
            _HEAD.pack_into(self._view, self._mine.at(self._sent), left, _SKIP)
        at = self._mine.at(start)
        _HEAD.pack_into(self._view, at, size, len(frames))
        body = at + head
        for number, frame in enumerate(frames):
            place = at + _HEAD.size + _COUNT.size * number
            _COUNT.pack_into(self._view, place, len(frame))
            self._view[body : body + len(frame)] = frame
            body += len(frame)
        unread, self._sent = self._sent != read, start + size
        _COUNT.pack_into(self._view, self._mine.sent, self._sent)
        self._order()
        # An end that has died says nothing: what it has not read makes us look.
        return self._ring() if unread or self._view[self._other.waits] else True

    def _ring(self) -> bool:
        try:
            os.write(self._bell, b"\0")
        except BlockingIOError:
            return True  # the pipe is full of calls already
        except OSError:
            self.closed = True
            return False
        return True

    def _order(self) -> None:
        """No later look may come before an earlier store; a lock is the one way to say so here.

        Were it otherwise both ends could miss each other, and a message wait for the next tick.
        """
        with self._fence:
            pass

    @property
    def pending(self) -> bool:
        """Whether a message is there."""
        return self._counter(self._other.sent) != self._read

    def wait(self, waits: bool) -> None:
        """Tell the other end whether this one must be woken."""
        self._view[self._mine.waits] = waits
        self._order()

    def take(self) -> list[Buffer] | None:
        """Copies of the frames of the next message; None if what is there cannot be true."""
        limit = self._counter(self._other.sent)
        found = self._head(limit)
        if found and found[1] == _SKIP:
            self._read += found[0]
            found = self._head(limit)
        if found is None:
            return None
        size, count = found
        at = self._other.at(self._read)
        body, end = at + _HEAD.size + _COUNT.size * count, at + size
        if count > WIRE.frames or body > end:
            return None
        lengths = self._view[at + _HEAD.size : body].cast("Q")
        if sum(lengths) > end - body:
            return None
        frames: list[Buffer] = []
        for length in lengths:
            frames.append(memoryview(bytes(self._view[body : body + length])))
            body += length
        self._read += size
        _COUNT.pack_into(self._view, self._other.read, self._read)
        return frames

    def _head(self, limit: int) -> tuple[int, int] | None:
        """Bytes and frames of the message at the read position, if it ends within ``limit``."""
        left = min(RING_BYTES - self._read % RING_BYTES, limit - self._read)
        if left < _HEAD.size:
            return None
        size, count = _HEAD.unpack_from(self._view, self._other.at(self._read))
        return (size, count) if _HEAD.size <= size <= left and size % _HEAD.size == 0 else None

    def close(self) -> None:
        """Tell the other end and unmap; the memory is gone when that has done so, too."""
        self._view[self._mine.closed] = True
        self._view.release()
        self._memory.close()
        for descriptor in (self._file, self._bell):
            if descriptor >= 0:
                os.close(descriptor)

    def _counter(self, at: int) -> int:
        (count,) = _COUNT.unpack_from(self._view, at)
        return int(count)


class _Places:
    """Where an end's part of the page is, and its ring; each counter has a cache line of its own.

    Attributes
    ----------
    sent, read : int
        How far its ring has been written by this end, and read by the other.
    waits, closed : int
        Whether this end sleeps, and whether it is gone.
    """

    def __init__(self, side: int):
        self.sent, self.read, self.waits, self.closed = (64 * (1 + 4 * side + n) for n in range(4))
        self._ring = _PAGE + side * RING_BYTES

    def at(self, position: int) -> int:
        return self._ring + position % RING_BYTES


def _open(process: int, file: int, how: int) -> int:
    """A file that another process has open; without waiting, should it be a pipe."""
    flags = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    return os.open(f"/proc/{process:d}/fd/{file:d}", how | flags)
