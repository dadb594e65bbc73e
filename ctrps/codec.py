"""Frame sets: a small header and raw little-endian arrays, in memory and on disk.

One encoding serves the wire (each frame is one part of a multipart message), shard files and
checkpoint partitions. Everything that comes from outside is bounded before it is allocated, and
every malformed input raises ``CodecError``. What a header *means* is not known here: that is
for ``ctrps.ps.messages``, ``ctrps.data.shards`` and ``ctrps.checkpoint``.

On the wire::

    frame 0    msgpack [FORMAT, header, [[dtype, size, ...], ...]]
    frame 1…   one array each, C order, little endian

A frame of its own costs more than the bytes of a small array, so those may lie in frame 0
instead, as a last item of their entry: ``[dtype, size, ..., bytes]``.

A file of frame sets::

    8 bytes    magic
    record…    <frames u32> <crc32 of the rest of the head u32>
               <frame size u64>* <frame crc32 u32>* frames, each padded to 8 bytes
    record     the trailer: kind, meta, where each record lies and the checksum of its head
    24 bytes   <offset of the trailer u64> <its size u64> <crc32 of the trailer u32> <end mark>

The trailer vouches for the heads and the heads for the frames, so its SHA-256 is the digest of
the whole file and costs one small read.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgpack
import numpy as np

from ctrps.errors import RemoteProtocolError

Buffer = bytes | bytearray | memoryview

FORMAT = 1
MAGIC = b"ctrps\x00\x01\n"
END_MARK = b"spe\n"
FOOTER = struct.Struct("<QQI4s")
RECORD = struct.Struct("<II")
DTYPES = {name: np.dtype("<" + name) for name in ("u1", "u2", "u4", "u8", "i4", "i8", "f4", "f8")}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class CodecError(RemoteProtocolError):
    """Bytes that are not a frame set, or one beyond the limits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader is willing to accept.

    ``depth`` and ``items`` bound the nesting of a header and the length of each of its lists and
    maps: without them a few bytes of msgpack can claim gigabytes.
    """

    frames: int
    header_bytes: int
    frame_bytes: int
    depth: int = 8
    items: int = 4096


WIRE = Limits(frames=81, header_bytes=1 << 20, frame_bytes=64 << 20)
DISK = Limits(frames=17, header_bytes=1 << 20, frame_bytes=1 << 40)


def encode(header: object, arrays: Sequence[np.ndarray], inside: int = -1) -> list[Buffer]:
    """Turn a header and arrays into frames, without copying contiguous arrays.

    Parameters
    ----------
    header
        None, bool, int, float, str, bytes, and lists and str-keyed dicts of them.
    arrays
        Of a dtype in ``DTYPES``.
    inside
        Arrays of at most so many bytes are copied into the first frame.

    Examples
    --------
    >>> frames = encode(["pull", 7], [np.arange(3, dtype=np.uint64)])
    >>> header, (keys,) = decode(frames)
    >>> header, keys
    (['pull', 7], array([0, 1, 2], dtype=uint64))
    """
    shapes: list[list[object]] = []
    frames: list[Buffer] = []
    for array in arrays:
        shape = [NAMES[array.dtype], *array.shape]
        if array.nbytes <= inside:
            shape.append(array.tobytes())
        else:
            frames.append(raw(array))
        shapes.append(shape)
    # A path whose bytes are no UTF-8 is text with surrogate escapes.
    head = msgpack.packb([FORMAT, header, shapes], unicode_errors="surrogateescape")
    return [head, *frames]


def raw(array: np.ndarray) -> memoryview:
    """The bytes of an array in C order, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def decode(frames: Sequence[Buffer], limits: Limits = WIRE) -> tuple[Any, list[np.ndarray]]:
    """Turn frames back into the header and arrays.

    Returns
    -------
    header : object
    arrays : list of np.ndarray
        Views of the frames, not copies.

    Raises
    ------
    CodecError
        For anything that ``encode`` would not have written, or beyond ``limits``.
    """
    if not 1 <= len(frames) <= limits.frames:
        raise CodecError(f"{len(frames)} frames, not 1 to {limits.frames}")
    head = _unpack(frames[0], limits)
    if not isinstance(head, list) or len(head) != 3 or not isinstance(head[2], list):
        raise CodecError("the first frame is not the head of a frame set")
    if head[0] != FORMAT:
        raise CodecError(f"frame format {str(head[0])[:40]}, this version reads {FORMAT}")
    rest = iter(frames[1:])
    arrays = []
    for shape in head[2]:
        if type(shape) is not list or not shape:
            raise CodecError(f"{str(shape)[:80]} does not describe an array")
        # An array that lies in the head is the last item of its own entry.
        inside = type(shape[-1]) is bytes
        # In memory of its own that can be written, as frames are: kernels take them as one type.
        frame = bytearray(shape.pop()) if inside else next(rest, None)
        if frame is None:
            raise CodecError(f"the head describes more arrays than came: {len(frames) - 1}")
        arrays.append(_array(shape, frame, limits))
    left = sum(1 for _ in rest)
    if left:
        raise CodecError(f"the head describes {left} arrays less than came")
    return head[1], arrays


def _unpack(frame: Buffer, limits: Limits) -> Any:
    if len(frame) > limits.header_bytes:
        raise CodecError(f"a header of {len(frame)} bytes, the limit is {limits.header_bytes}")
    try:
        value = msgpack.unpackb(
            frame,
            strict_map_key=True,
            unicode_errors="surrogateescape",
            max_array_len=limits.items,
            max_map_len=limits.items,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise CodecError(f"a header that is not msgpack: {str(error)[:80]}") from None
    if not _shallow(value, limits.depth):
        raise CodecError(f"a header nested deeper than {limits.depth} or of an unknown type")
    return value


LEAVES = frozenset({type(None), bool, int, float, str, bytes})


def _shallow(value: object, depth: int) -> bool:
    kind = type(value)
    if kind is list:
        items: Iterable[object] = value  # type: ignore[assignment]
    elif kind is dict:
        if not all(isinstance(key, str) for key in value):  # type: ignore[attr-defined]
            return False
        items = value.values()  # type: ignore[attr-defined]
    else:
        return kind in LEAVES
    if depth <= 0:
        return False
    for item in items:
        if type(item) not in LEAVES and not _shallow(item, depth - 1):
            return False
    return True


def _array(shape: list[Any], frame: Buffer, limits: Limits) -> np.ndarray:
    dtype = DTYPES.get(shape[0]) if shape and type(shape[0]) is str else None
    if dtype is None or not 2 <= len(shape) <= 4:
        raise CodecError(f"{str(shape)[:80]} does not describe an array")
    sizes, size = shape[1:], dtype.itemsize
    for n in sizes:
        if type(n) is not int or n < 0:
            raise CodecError(f"{sizes} is not the shape of an array")
        size *= n
    if len(frame) > limits.frame_bytes or size != len(frame):
        raise CodecError(f"an array of {shape} in a frame of {len(frame)} bytes")
    try:
        array = np.frombuffer(frame, dtype)
        return array if len(sizes) == 1 else array.reshape(sizes)
    except ValueError:  # no bytes, and other sizes beyond what numpy can hold
        raise CodecError(f"{sizes} is not the shape of an array") from None


class FileDigest(NamedTuple):
    """Size of a finished file in bytes, and the SHA-256 (hex) that vouches for its content."""

    size_bytes: int
    digest: str


class FrameFileWriter:
    """Writes a file of frame sets, whole or not at all.

    Bytes go to a temporary name beside ``path``. ``close`` writes the trailer, syncs and renames;
    leaving the context by an exception removes the temporary file.

    Parameters
    ----------
    path
        The final name.
    kind
        What the file is, for example ``"shard"``; a reader must ask for the same.
    """

    def __init__(self, path: Path, kind: str):
        self.path = Path(path)
        self.kind = kind
        self._temporary = self.path.with_name(f"{self.path.name}.tmp-{os.getpid()}")
        self._file = open(self._temporary, "wb")
        self._file.write(MAGIC)
        self._at = len(MAGIC)
        self._offsets: list[int] = []
        self._checks: list[int] = []

    def append(self, header: object, arrays: Sequence[np.ndarray]) -> int:
        """Write one frame set and return its record number."""
        head, body = _record(encode(header, arrays))
        self._offsets.append(self._at)
        self._checks.append(zlib.crc32(head))
        for part in (head, *body):
            self._file.write(part)
            self._at += len(part)
        return len(self._offsets) - 1

    def close(self, meta: dict[str, Any]) -> FileDigest:
        """Write the trailer, make the file durable and give it its name."""
        offsets = np.array([*self._offsets, self._at], np.int64)
        checks = np.array(self._checks, np.uint32)
        head, body = _record(encode([self.kind, meta], [offsets, checks]))
        trailer = b"".join([head, *body])
        self._file.write(trailer)
        self._file.write(FOOTER.pack(self._at, len(trailer), zlib.crc32(trailer), END_MARK))
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        os.replace(self._temporary, self.path)
        sync_folder(self.path.parent)
        return FileDigest(size, hashlib.sha256(trailer).hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if not self._file.closed:
            try:
                self._file.close()
            finally:  # closing flushes, which fails where the disk is full
                self._temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _record(frames: Sequence[Buffer]) -> tuple[bytes, list[Buffer]]:
    sizes = struct.pack(f"<{len(frames)}Q", *map(len, frames))
    checks = struct.pack(f"<{len(frames)}I", *map(zlib.crc32, frames))
    rest = sizes + checks
    rest += bytes(_pad(RECORD.size + len(rest)))
    body: list[Buffer] = []
    for frame in frames:
        body += [frame, bytes(_pad(len(frame)))]
    return RECORD.pack(len(frames), zlib.crc32(rest)) + rest, body


def _pad(size: int) -> int:
    return -size % 8


class FrameFile:
    """Reads a file of frame sets; opening it reads and checks the trailer only.

    Attributes
    ----------
    meta : dict
        As given to ``FrameFileWriter.close``.
    records : int
    digest : str
        SHA-256 of the trailer; equal to what the writer returned.

    Raises
    ------
    CodecError
        Naming the file and what is wrong with it: not such a file, cut short, or a checksum.
    """

    def __init__(self, path: Path, kind: str, limits: Limits = DISK):
        self.path = Path(path)
        self._limits = limits
        with open(self.path, "rb") as file:
            self.size_bytes = os.fstat(file.fileno()).st_size
            self._check_magic(file.read(len(MAGIC)))
            trailer = self._trailer(file)
        self.digest = hashlib.sha256(trailer).hexdigest()
        found, arrays = self._decode(memoryview(trailer), "the trailer")
        if not isinstance(found, list) or len(found) != 2 or not isinstance(found[1], dict):
            raise self._error("the trailer is not one")
        if found[0] != kind:
            raise self._error(f"it is a {str(found[0])[:40]!r} file, not a {kind!r} file")
        self.meta: dict[str, Any] = found[1]
        self._offsets, self._checks = self._directory(arrays)

    @property
    def records(self) -> int:
        return len(self._checks)

    def read(self, number: int) -> tuple[Any, list[np.ndarray]]:
        """Read, check and decode record ``number``; the arrays own their memory."""
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        # Not a bytearray, which would be filled with zeros first.
        data = np.empty(end - start, np.uint8).data
        with open(self.path, "rb", buffering=0) as file:
            file.seek(start)
            if file.readinto(data) != len(data):
                raise self._error(f"record {number} is cut short")
        name = f"record {number}"
        return self._decode(data, name, int(self._checks[number]))

    def _check_magic(self, magic: bytes) -> None:
        if magic[:6] != MAGIC[:6]:
            raise self._error("it is not a file of ctrps")
        if magic != MAGIC:
            raise self._error(f"its file format is {magic[6:7].hex()}, this version reads 01")

    def _trailer(self, file: Any) -> bytes:
        if self.size_bytes < len(MAGIC) + FOOTER.size:
            raise self._error("it is cut short")
        file.seek(self.size_bytes - FOOTER.size)
        at, size, check, mark = FOOTER.unpack(file.read(FOOTER.size))
        if mark != END_MARK or at + size + FOOTER.size != self.size_bytes:
            raise self._error("it is cut short or was not finished")
        file.seek(at)
        trailer: bytes = file.read(size)
        if zlib.crc32(trailer) != check:
            raise self._error("the checksum of its trailer is wrong")
        return trailer

    def _directory(self, arrays: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        if len(arrays) == 2 and arrays[0].dtype == np.int64 and arrays[1].dtype == np.uint32:
            offsets, checks = arrays
            bounded = 0 < len(offsets) == len(checks) + 1 and (offsets[1:] > offsets[:-1]).all()
            if bounded and offsets[0] == len(MAGIC) and offsets[-1] <= self.size_bytes:
                return offsets, checks
        raise self._error("its directory of records is wrong")

    def _decode(
        self, data: memoryview, name: str, head_check: int | None = None
    ) -> tuple[Any, list[np.ndarray]]:
        frames = self._frames(data, name, head_check)
        try:
            return decode(frames, self._limits)
        except CodecError as error:
            raise self._error(f"{name}: {error.what}") from None

    def _frames(self, data: memoryview, name: str, head_check: int | None) -> list[memoryview]:
        count, check = RECORD.unpack(data[: RECORD.size]) if len(data) >= RECORD.size else (0, 0)
        head_end = RECORD.size + 12 * count
        head_end += _pad(head_end)
        if not 1 <= count <= self._limits.frames or head_end > len(data):
            raise self._error(f"{name} is damaged: its head claims {count} frames")
        if zlib.crc32(data[RECORD.size : head_end]) != check or (
            head_check is not None and zlib.crc32(data[:head_end]) != head_check
        ):
            raise self._error(f"{name} is damaged: the checksum of its head is wrong")
        sizes = struct.unpack_from(f"<{count}Q", data, RECORD.size)
        checks = struct.unpack_from(f"<{count}I", data, RECORD.size + 8 * count)
        if head_end + sum(s + _pad(s) for s in sizes) != len(data):
            raise self._error(f"{name} is damaged: its frames do not fill it")
        frames, at = [], head_end
        for number, (size, wanted) in enumerate(zip(sizes, checks, strict=True)):
            frame = data[at : at + size]
            if zlib.crc32(frame) != wanted:
                raise self._error(f"{name} is damaged: the checksum of frame {number} is wrong")
            frames.append(frame)
            at += size + _pad(size)
            if any(data[at - _pad(size) : at]):
                raise self._error(f"{name} is damaged: the padding of frame {number} is not zero")
        return frames

    def _error(self, what: str) -> CodecError:
        return CodecError(what, where=str(self.path))
