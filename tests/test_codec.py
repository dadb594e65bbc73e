"""Frame sets in memory and on disk: round trips, and every kind of damage is a ``CodecError``."""

import os
import tracemalloc
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from ctrps import codec
from ctrps.codec import CodecError, FrameFile, FrameFileWriter, Limits, decode, encode

repeatable = settings(derandomize=True, deadline=None, max_examples=200)

plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=20)
)
headers = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner)
    ),
    max_leaves=6,
)
arrays = st.sampled_from(list(codec.DTYPES.values())).flatmap(
    lambda dtype: arrays_of.arrays(
        dtype, arrays_of.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
    )
)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@given(headers, st.lists(arrays, max_size=4))
@repeatable
def test_round_trip(header, given_arrays):
    found, got = decode([bytes(frame) for frame in encode(header, given_arrays)])
    assert found == header
    assert len(got) == len(given_arrays)
    assert all(map(same, got, given_arrays))


def test_arrays_are_views_of_what_came_and_cannot_be_written():
    frames = [bytes(frame) for frame in encode(None, [np.arange(4.0)])]
    _, (array,) = decode(frames)
    assert np.shares_memory(array, np.frombuffer(frames[1]))
    assert not array.flags.writeable


def test_arrays_that_are_not_contiguous_are_sent_as_seen():
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    _, (turned, strided) = decode(encode(0, [table.T, table[:, ::2]]))
    assert same(turned, np.ascontiguousarray(table.T))
    assert same(strided, np.ascontiguousarray(table[:, ::2]))


# -- what comes from outside --------------------------------------------------------------------


def refused(frames, limits=codec.WIRE) -> bool:
    """Whether decode refuses the frames; any other error than ``CodecError`` comes through."""
    try:
        decode(frames, limits)
    except CodecError:
        return True
    return False


@given(st.lists(st.binary(max_size=40), max_size=4))
@repeatable
def test_random_bytes_raise_nothing_but_codec_errors(frames):
    refused(frames)


@given(st.data())
@repeatable
def test_mutated_frames_raise_nothing_but_codec_errors(data):
    message = ["push", 7, -1, "x", {"a": [1, 2.5]}]
    frames = [bytearray(f) for f in encode(message, [np.arange(3), np.ones((2, 3), np.float32)])]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        at = data.draw(st.integers(0, max(len(frame) - 1, 0)))
        frame[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    refused(frames)


def head(shapes: bytes = b"\x90", header: bytes = b"\xc0") -> bytes:
    return b"\x93\x01" + header + shapes


CLAIMS = {
    "an array of 2**32 - 1": head(header=b"\xdd\xff\xff\xff\xff"),
    "a map of 2**32 - 1": head(header=b"\xdf\xff\xff\xff\xff"),
    "a map of 65535": head(header=b"\xde\xff\xff"),
    "a text of 2**32 - 1": head(header=b"\xdb\xff\xff\xff\xff"),
    "bytes of 2**32 - 1": head(header=b"\xc6\xff\xff\xff\xff"),
    "an extension of 2**32 - 1": head(header=b"\xc9\xff\xff\xff\xff\x05"),
    "an extension": head(header=b"\xd4\x05\x00"),
    "an empty extension": head(header=b"\xc7\x00\x05"),
    "a timestamp": head(header=b"\xd6\xff\x00\x00\x00\x00"),
    "1,000 lists in each other": head(header=b"\x91" * 1_000 + b"\xc0"),
    "1,000,000 lists in each other": b"\x91" * 1_000_000,
    "maps in each other": head(header=b"\x81\xa1a" * 200 + b"\xc0"),
    "a number as key": head(header=b"\x81\x01\x01"),
    "bytes as key": head(header=b"\x81\xc4\x01a\x01"),
    "the reserved byte": head(header=b"\xc1"),
    "one byte too many": head() + b"\x00",
    "one byte too few": head()[:-1],
    "nothing": b"",
    "no head": b"\xc0",
    "another format": b"\x93\x02\xc0\x90",
    "shapes that are no list": head(b"\x01"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_are_refused_before_memory_is_taken(claim):
    tracemalloc.start()
    try:
        assert refused([CLAIMS[claim]])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "shape",
    [
        ["f4"],
        ["f4", 1, 1, 1, 1],
        ["f2", 2],
        ["O", 1],
        [4, 1],
        [["f4"], 1],
        "f4",
        ["f4", -1],
        ["f4", True],
        ["f4", 1.0],
        ["f4", 2],
        ["f8", 1],
        ["f4", 2**40],
        ["u1", 2**32, 2**32],
        ["f4", 2**63, 2],
    ],
)
def test_shapes_that_do_not_fit_the_frame_are_refused(shape):
    assert refused([msgpack.packb([1, None, [shape]]), b"1234"])


@pytest.mark.parametrize("sizes", [[0, 2**63], [2**63, 0], [2**62, 0, 2**62]])
def test_empty_arrays_of_impossible_shape_are_refused(sizes):
    assert refused([msgpack.packb([1, None, [["f4", *sizes]]]), b""])


def test_text_that_is_not_utf8_keeps_its_bytes():
    name = os.fsdecode(b"day\xff.shard")
    frames = encode([name], [])
    assert b"day\xff.shard" in bytes(frames[0])
    assert decode(frames)[0] == [name]


def test_numbers_that_are_not_finite_are_no_harm():
    (found,) = decode(encode([float("nan")], []))[0]
    assert found != found


def test_small_arrays_lie_in_the_head_and_are_arrays_as_any_other():
    arrays = [np.arange(3), np.zeros((0, 4), np.float32), np.arange(4, dtype=np.uint64)]
    frames = [bytes(frame) for frame in encode("x", arrays, inside=24)]
    assert [len(frame) for frame in frames[1:]] == [32]
    header, found = decode(frames)
    assert header == "x" and found[0].flags.writeable
    for array, back in zip(arrays, found, strict=True):
        assert (back.dtype, back.shape, back.tobytes()) == (
            array.dtype,
            array.shape,
            array.tobytes(),
        )
    assert refused(frames[:1]) and refused([*frames, b""])


def test_the_number_of_frames_must_be_what_the_head_says():
    frames = encode(1, [np.arange(2), np.arange(3)])
    assert refused(frames[:2])
    assert refused([*frames, b""])
    assert refused([])


def test_limits():
    frames = encode([1, 2, [3]], [np.zeros(10)])
    wide = {"frames": 2, "header_bytes": len(frames[0]), "frame_bytes": 80, "depth": 3, "items": 3}
    assert not refused(frames, Limits(**wide))
    for name, value in wide.items():
        assert refused(frames, Limits(**wide | {name: value - 1})), name


# -- files --------------------------------------------------------------------------------------


def write(path: Path, records: int = 3, meta: dict | None = None) -> codec.FileDigest:
    with FrameFileWriter(path, "thing") as writer:
        for number in range(records):
            values = np.arange(number, dtype=np.float32)
            assert writer.append([number, "x"], [values, np.uint8([7])]) == number
        return writer.close(meta or {"name": "n"})


def read_all(path: Path) -> list:
    file = FrameFile(path, "thing")
    return [file.read(number) for number in range(file.records)]


def test_file_round_trip(tmp_path):
    path = tmp_path / "a.thing"
    written = write(path)
    file = FrameFile(path, "thing")
    assert (file.records, file.meta) == (3, {"name": "n"})
    assert written == (path.stat().st_size, file.digest)
    for number in (2, 0, 1):
        header, (values, flag) = file.read(number)
        assert header == [number, "x"]
        assert same(values, np.arange(number, dtype=np.float32)) and flag.tolist() == [7]
    assert [p.name for p in tmp_path.iterdir()] == ["a.thing"]


def test_a_file_without_records(tmp_path):
    write(tmp_path / "empty", records=0)
    assert FrameFile(tmp_path / "empty", "thing").records == 0


def test_the_digest_is_of_the_content(tmp_path):
    first, again = write(tmp_path / "a"), write(tmp_path / "b")
    assert first == again
    assert write(tmp_path / "c", records=2).digest != first.digest
    assert write(tmp_path / "d", meta={"name": "m"}).digest != first.digest


def damaged(path: Path, content: bytes) -> str | None:
    """What reading the file says when it has this content; None if nothing."""
    path.write_bytes(content)
    try:
        read_all(path)
    except CodecError as error:
        return str(error)
    return None


def test_every_flipped_bit_is_found(tmp_path):
    path = tmp_path / "a.thing"
    write(path, records=2)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            said = damaged(path, bytes(flipped))
            assert said and said.startswith(f"{path}: "), (at, bit, said)


def test_every_truncation_and_extension_is_found(tmp_path):
    path = tmp_path / "a.thing"
    write(path, records=2)
    whole = path.read_bytes()
    for size in range(len(whole)):
        said = damaged(path, whole[:size])
        assert said and str(path) in said, size
    assert damaged(path, whole + b"\0")
    assert damaged(path, whole) is None


def test_damage_of_a_record_is_named_and_leaves_the_others_readable(tmp_path):
    path = tmp_path / "a.thing"
    write(path)
    content = bytearray(path.read_bytes())
    at = content.index(np.float32([0, 1]).tobytes())
    content[at] ^= 1
    path.write_bytes(content)
    file = FrameFile(path, "thing")
    assert file.read(1)[0] == [1, "x"]
    with pytest.raises(CodecError, match="record 2 is damaged: the checksum of frame 1 is wrong"):
        file.read(2)


def test_a_file_cut_while_it_is_read(tmp_path):
    path = tmp_path / "a.thing"
    write(path)
    file = FrameFile(path, "thing")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CodecError, match=r"a\.thing: record 2 is cut short"):
        file.read(2)


def test_another_kind_or_format_of_file_is_refused(tmp_path):
    path = tmp_path / "a.thing"
    write(path)
    with pytest.raises(CodecError, match="it is a 'thing' file, not a 'shard' file"):
        FrameFile(path, "shard")
    content = path.read_bytes()
    assert "it is not a file of ctrps" in damaged(path, b"PK\3\4" + content[4:])
    assert "its file format is 02" in damaged(path, content[:6] + b"\2" + content[7:])


def crafted(path: Path, offsets: list[int]) -> None:
    """A file with right checksums whose directory lies."""
    writer = FrameFileWriter(path, "thing")
    writer.append(0, [])
    writer._offsets = offsets[:-1]
    writer._checks = [0] * (len(offsets) - 1)
    at, writer._at = writer._at, offsets[-1]
    first = writer.close({})
    content = bytearray(path.read_bytes())
    footer = codec.FOOTER
    *_, check, mark = footer.unpack(content[-footer.size :])
    size = first.size_bytes - at - footer.size
    content[-footer.size :] = footer.pack(at, size, check, mark)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "offsets",
    [
        [8, 4, 40],
        [9, 40],
        [8, 8],
        [8, 10**6],
        [8, 2**63 - 1, -(2**63) + 100, 40],
    ],
)
def test_a_directory_that_lies_is_refused(tmp_path, offsets):
    crafted(tmp_path / "a", offsets)
    with pytest.raises(CodecError, match="its directory of records is wrong"):
        FrameFile(tmp_path / "a", "thing")


def test_limits_of_a_reader(tmp_path):
    path = tmp_path / "a.thing"
    write(path)
    FrameFile(path, "thing", Limits(frames=3, header_bytes=100, frame_bytes=100)).read(0)
    for limits in (
        Limits(frames=2, header_bytes=100, frame_bytes=100),
        Limits(frames=3, header_bytes=3, frame_bytes=100),
        Limits(frames=3, header_bytes=100, frame_bytes=8),
    ):
        with pytest.raises(CodecError, match=r"a\.thing: "):
            FrameFile(path, "thing", limits).read(2)


def test_an_exception_leaves_neither_a_file_nor_a_temporary_one(tmp_path):
    path = tmp_path / "a.thing"
    with pytest.raises(RuntimeError), FrameFileWriter(path, "thing") as writer:
        writer.append(1, [])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_exception_leaves_the_old_file_as_it_was(tmp_path):
    path = tmp_path / "a.thing"
    digest = write(path).digest
    with pytest.raises(RuntimeError), FrameFileWriter(path, "thing"):
        raise RuntimeError
    assert FrameFile(path, "thing").digest == digest


def test_leaving_without_close_leaves_nothing(tmp_path):
    with FrameFileWriter(tmp_path / "a.thing", "thing") as writer:
        writer.append(1, [])
    assert list(tmp_path.iterdir()) == []
