"""Valid input -> input that is a little, or altogether, wrong: of bytes, of values, of arrays.

All of it follows from a ``random.Random``, so that an input can be made again from its seed.
Which input is whose, and what a reader may do about it, is ``readers``' and ``fuzz``'s business.
"""

import gzip
import io
import tarfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import zstandard

MOST_BYTES = 1 << 18
"""Bytes of an input before it is packed; twice as many are cut."""

BOMB_BYTES = 16 << 20
"""Most bytes that a small packed input unpacks to."""

BOMB_LINES = 100_000
"""Most lines of it, each of which may be a bad row: Python tells of these one by one."""

NUMBERS = [
    b"0", b"1", b"-1", b"-0", b"+1", b"255", b"4095", b"4096", b"65536", b"2147483648",
    b"4294967296", b"9223372036854775807", b"9223372036854775808", b"18446744073709551615",
    b"18446744073709551616", b"-9223372036854775809", b"1e38", b"3.5e38", b"1e400", b"1e-400",
    b"1e999999999999999999999", b"nan", b"inf", b"-Infinity", b"0x10", b"1_000", b"1.5", b".5",
    b"1.", b".", b"1e", b"16777217", b"9" * 400, b"9" * 5000, b"0." + b"0" * 400 + b"1",
    b"253402300800", b"-62135596801", b"\xd9\xa3",
]  # fmt: skip
"""Numbers at the borders of types and of grammars; the last is a digit, but no ASCII."""

PIECES = [
    b"\0", b"\n", b"\r", b"\r\n", b"\n\n", b"\t", b" ", b"  ", b'"', b'""', b"'", b"|", b":", b"::",
    b",", b"#", b";", b"=", b"[", b"]", b"{", b"}", b"/", b"\\", b"*", b"&", b"!", b"%", b"-", b"~",
    b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xc2\x85", b"\x1b[2J",
    b"\x7f", b"../../..", b"null", b"true", b"NaN", b'"\\ud800"', b"\\u0000", b"{}", b"[]",
    b'{"a":', b"[" * 100, b"[" * 3000, b'{"a":' * 3000, b"- " * 3000, b"&a [*a]",
    b"!!python/object:a.b", b"<<: *a", b"a" * 3000, b"x," * 3000, b"\t" * 3000, b":" * 3000,
    b"|" * 5000, b'"' * 3001,
    b"%%s", b"$HOME", b"~root", b"-" * 300,
]  # fmt: skip
"""What grammars and terminals make something of."""

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 255, 4097, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
    -(2**63), 1.5, -0.0, float("nan"), float("inf"), "", "a", "value", "mean", "\0", "x" * 5000,
    "\udcff", "../../etc/passwd", "\x1b[2J", b"", b"\xff", [], {}, [[]], [None], ["a", "a"],
    {"a": 1}, [[[[[[[[[[]]]]]]]]]], [0] * 5000,
]  # fmt: skip

MAGICS = [b"BZh9", b"\xfd7zXZ\0", b"PK\3\4", b"PAR1", b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b\x08",
          b"\x28\xb5\x2f\xfd", b"ctrps\0\1\n", b"ctrps\0\2\n"]  # fmt: skip

DTYPES = ["u1", "u2", "u4", "u8", "i4", "i8", "f4", "f8"]

Edit = Callable[[Random, bytes], bytes]


def _span(rng: Random, data: bytes) -> tuple[int, int]:
    """Borders of a part, more often a short one."""
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.choice([0, 1, 2, 4, 16, 100, 10_000]))


def _flip(rng: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8]) if data else 0):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(rng: Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + rng.choice(PIECES) + data[rng.choice([start, end]) :]


def _number(rng: Random, data: bytes) -> bytes:
    """Replace a run of digits, or a sign of one."""
    places = [i for i, byte in enumerate(data[: 1 << 12]) if byte in b"0123456789"]
    if not places:
        return data + rng.choice(NUMBERS)
    start = end = rng.choice(places)
    while end < len(data) and data[end] in b"0123456789.eE+-":
        end += 1
    return data[:start] + rng.choice(NUMBERS) + data[end:]


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randint(0, len(data))]


def _drop(rng: Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _double(rng: Random, data: bytes) -> bytes:
    """A part of it again, perhaps many times, which makes long lines and long files."""
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice([1, 2, 10, 300]) + data[end:]


def _lines(rng: Random, data: bytes) -> bytes:
    """Lines swapped, dropped, doubled; the header is one of them."""
    lines = data.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        lines[a], lines[b] = lines[b], lines[a]
    elif kind == 1:
        lines.insert(a, lines[0])
    elif kind == 2:
        lines.insert(a, lines[b])
    else:
        del lines[a]
    return b"\n".join(lines)


def _line_ends(rng: Random, data: bytes) -> bytes:
    return data.replace(b"\n", rng.choice([b"\r\n", b"\r", b"", b" \n", b"\n\r"]))


def _noise(rng: Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + rng.randbytes(end - start) + data[end:]


EDITS: list[Edit] = [
    _flip, _insert, _insert, _number, _number, _cut, _drop, _double, _lines, _lines, _line_ends,
    _noise,
]  # fmt: skip


def mutated(rng: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One to four edits; seldom a splice with another valid input, noise alone, or nothing."""
    kind = rng.randrange(40)
    if kind == 0:
        return rng.randbytes(rng.choice([0, 1, 3, 100, 5000]))
    if kind == 1:
        return data
    if others and kind < 6:
        other = rng.choice(others)
        data = data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]
    for _ in range(rng.choice([1, 1, 2, 4])):
        data = rng.choice(EDITS)(rng, data)[: 2 * MOST_BYTES]
    return data


def packed(rng: Random, data: bytes, name: str) -> bytes:
    """Bytes as they are, or in gzip, zstd or tar, which may be damaged, nested or a bomb."""
    kind = rng.randrange(24)
    if kind == 0:
        return rng.choice(MAGICS) + data
    if kind == 1:
        unit = rng.choice([b"\0", b"\n", b"1", b"1 1:1\n", data[:100] or b" "])
        times = rng.choice([BOMB_BYTES // 16, BOMB_BYTES]) // len(unit)
        lines = unit.count(b"\n")
        data = unit * (min(times, BOMB_LINES // lines) if lines else times)
    if kind < 6:
        kinds = rng.choice([("gz",), ("gz",), ("zst",), ("tar",), ("tar", "gz"), ("gz", "gz")])
        for one in kinds:
            data = _PACKERS[one](rng, data, name)
        if rng.randrange(2):
            data = rng.choice([_flip, _cut, _noise, _drop, _double])(rng, data)
    return data


def _gzipped(rng: Random, data: bytes, name: str) -> bytes:
    at = rng.randint(0, len(data))
    return b"".join(gzip.compress(part, 1, mtime=0) for part in (data[:at], data[at:]))


def _zstd(rng: Random, data: bytes, name: str) -> bytes:
    return zstandard.ZstdCompressor(1).compress(data)


def _archived(rng: Random, data: bytes, name: str) -> bytes:
    out = io.BytesIO()
    kinds = [tarfile.REGTYPE, tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE]
    with tarfile.open(fileobj=out, mode="w", format=rng.choice([0, 1, 2])) as archive:
        for number in range(rng.choice([0, 1, 1, 2])):
            member = tarfile.TarInfo(rng.choice([name, f"a/{name}", f"._{name}", "x" * 90]))
            member.type = rng.choice(kinds) if number else tarfile.REGTYPE
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


_PACKERS = {"gz": _gzipped, "zst": _zstd, "tar": _archived}


def changed(rng: Random, value: Any) -> Any:
    """A value of msgpack or JSON with one part of it replaced, dropped or doubled."""
    if isinstance(value, list | dict) and value and rng.randrange(6):
        if isinstance(value, list):
            at = rng.randrange(len(value))
            kept = list(value)
            kind = rng.randrange(6)
            if kind == 0:
                del kept[at]
            elif kind == 1:
                kept.insert(at, value[rng.randrange(len(value))])
            else:
                kept[at] = changed(rng, value[at])
            return kept
        key = rng.choice(sorted(value))
        rest = {k: v for k, v in value.items() if k != key}
        kind = rng.randrange(8)
        if kind == 0:
            return rest
        return rest | {"other" if kind == 1 else key: changed(rng, value[key])}
    if type(value) is int and rng.randrange(2):
        return max(min(value + rng.choice([-1, 1, 1 << 16]), 2**64 - 1), -(2**63))
    return rng.choice(VALUES)


def changed_array(rng: Random, array: np.ndarray) -> np.ndarray:
    """An array of another type, shape or size, or with other numbers in it."""
    kind = rng.randrange(6)
    if kind == 0:
        with np.errstate(all="ignore"):
            return array.astype(rng.choice(DTYPES))
    if kind == 1:
        return array.reshape(rng.choice([(-1,), (1, *array.shape), (array.size, 1)]))
    if kind == 2:
        return array[: rng.randint(0, len(array))] if array.ndim else array
    if kind == 3:
        return np.concatenate([array, array[: rng.randint(0, len(array))]])
    found = array.copy().reshape(-1)
    if kind == 4:
        rng.shuffle(view := found.tolist())
        found = np.array(view, array.dtype)
    elif found.size:
        raw = np.frombuffer(rng.randbytes(found.itemsize), found.dtype)[0]
        most = 0 if found.dtype.kind == "f" else np.iinfo(found.dtype).max
        found[rng.randrange(found.size)] = rng.choice([raw, 0, 1, most])
    return found.reshape(array.shape)


def any_column(rng: Random, rows: int) -> Any:
    """A column of Parquet, of one of the types there are, with values at their borders."""
    import pyarrow as pa

    whole = [None, 0, -1, 1, 2**31, 2**62, -(2**63), 2**63 - 1]
    real = [None, 0.0, -0.0, 1.5, 1e308, float("nan"), float("inf"), 2.0**53]
    text = ["", "a", 'a"b', "a,b", "a\nb", "\0", "\r", "\u2028", "5", "NULL", None]
    small = [None, 0, 1, 17000, -17000]
    kinds: list[tuple[Any, list[Any]]] = [
        (pa.int64(), whole), (pa.uint64(), [0, 2**64 - 1, None]), (pa.int8(), [0, 1, -1, 5]),
        (pa.float64(), real), (pa.float32(), real), (pa.float16(), [np.float16(1), None]),
        (pa.bool_(), [True, False, None]), (pa.string(), text), (pa.large_string(), text),
        (pa.binary(), [b"\xff", b"", b'"\n', None]), (pa.binary(2), [b"\xff\0", None]),
        (pa.dictionary(pa.int32(), pa.string()), text), (pa.null(), [None]),
        *((pa.timestamp(unit, zone), whole) for unit in ("ms", "ns") for zone in (None, "UTC")),
        (pa.date32(), small), (pa.date64(), [0, 86400000, None]), (pa.time32("s"), [0, 86399]),
        (pa.time64("ns"), [0, 1, None]), (pa.duration("s"), small), (pa.decimal128(9), [1, None]),
        (pa.list_(pa.uint64()), [[], [1, 2], None, [2**64 - 1]]), (pa.list_(pa.string()), [["a"]]),
        (pa.list_(pa.uint16()), [[0], [1, 0], [9, 65535], []]), (pa.list_(pa.float32()), [[1.5]]),
        (pa.list_(pa.list_(pa.int8())), [[[1], None]]), (pa.struct([("a", pa.int8())]), [{"a": 1}]),
        (pa.list_(pa.float32(), 2), [[1, 2], None]), (pa.map_("string", "int8"), [[("a", 1)]]),
    ]  # fmt: skip
    kind, values = rng.choice(kinds)
    values = rng.choice([values, [value for value in values if value is not None] or values])
    return pa.array([rng.choice(values) for _ in range(rows)], kind)
