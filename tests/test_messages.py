"""Messages as frames: round trips, and whatever is not exactly a message is a ``CodecError``."""

import dataclasses
import re
from pathlib import Path
from typing import get_origin, get_type_hints

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps import codec
from ctrps.codec import CodecError
from ctrps.ps import messages
from ctrps.ps.messages import KINDS, Arrays, Pull, Push, decode, encode

repeatable = settings(derandomize=True, deadline=None, max_examples=100)


def lists_of(*items: st.SearchStrategy) -> st.SearchStrategy:
    """Lists of tuples, as they come back from the wire: lists of lists."""
    return st.lists(st.tuples(*items).map(list), max_size=4)


VALUES = {
    int: st.integers(-1, (1 << 62) - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    list[int]: st.lists(st.integers(-1, 2**40), max_size=5),
    list[tuple[int, int]]: lists_of(st.integers(-1, 2**40), st.integers(0, 9)),
    list[tuple[int, str]]: lists_of(st.integers(0, 9), st.text("ab")),
    list[tuple[int, int, int, str]]: lists_of(*3 * [st.integers(0, 9)], st.text("ab")),
    list[tuple[int, str, int, str]]: lists_of(
        st.integers(0, 9), st.text("ab"), st.integers(0, 2**50), st.text("0f")
    ),
    dict[str, float]: st.dictionaries(st.text("abc", max_size=3), st.floats(-9, 9)),
    Arrays: st.lists(
        st.integers(0, 5).map(lambda n: np.arange(n, dtype=np.float32)), max_size=3
    ).map(tuple),
}
EXAMPLES = {
    int: 3,
    bool: True,
    float: 0.5,
    str: "x",
    list[int]: [1],
    list[tuple[int, int]]: [[1, 2]],
    list[tuple[int, str]]: [[1, "x"]],
    list[tuple[int, int, int, str]]: [[1, 2, 3, "x"]],
    list[tuple[int, str, int, str]]: [[1, "x", 2, "y"]],
    dict[str, float]: {"a": 1.0},
}


def types_of(cls) -> dict[str, object]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def example(cls):
    arrays = (np.arange(3, dtype=np.uint64), np.ones((1, 2), np.float32))
    return cls(*(arrays if t == Arrays else EXAMPLES[t] for t in types_of(cls).values()))


def simple(message) -> tuple:
    """The message as something that compares."""
    values = [getattr(message, field.name) for field in dataclasses.fields(message)]
    return type(message), [
        [(a.dtype, a.shape, a.tobytes()) for a in value] if isinstance(value, tuple) else value
        for value in values
    ]


def test_kinds_are_those_of_the_classes():
    assert {cls.KIND: cls for cls in messages.Message.__subclasses__()} == KINDS


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@repeatable
def test_round_trip(kind, data):
    cls = KINDS[kind]
    message = cls(*(data.draw(VALUES[t]) for t in types_of(cls).values()))
    frames = [bytes(frame) for frame in encode(message)]
    assert [simple(m) for m in decode(frames)] == [simple(message)]


def header_of(message) -> tuple[list, list[np.ndarray]]:
    (header,), arrays = codec.decode([bytes(frame) for frame in encode(message)])
    return header, arrays


def refused(header, arrays) -> str:
    with pytest.raises(CodecError) as error:
        decode(codec.encode([header], arrays))
    return str(error.value)


@given(st.data())
@repeatable
def test_messages_that_travel_together(data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=8))
    together = [example(KINDS[kind]) for kind in kinds]
    large = data.draw(st.integers(0, 2 * messages.SMALL_BYTES))
    rows = np.arange(large, dtype=np.uint8)
    together.append(messages.Pulled(1, 2, 3, (rows, rows[: messages.SMALL_BYTES])))
    frames = [bytes(frame) for frame in encode(*together[-messages.MOST_TOGETHER :])]
    assert len(frames) == 1 + (large > messages.SMALL_BYTES)
    expected = [simple(m) for m in together[-messages.MOST_TOGETHER :]]
    assert [simple(m) for m in decode(frames)] == expected


def test_too_many_or_no_messages_together():
    one = header_of(messages.Pushed(1, 2))[0]
    assert len(decode(codec.encode([one] * 8, []))) == 8
    for headers in ([], [one] * 9):
        with pytest.raises(CodecError, match="no messages, or too many"):
            decode(codec.encode(headers, []))


@pytest.mark.parametrize("kind", KINDS)
def test_fields_too_many_or_missing(kind):
    header, arrays = header_of(example(KINDS[kind]))
    assert f"a {kind} of" in refused([*header, 1], arrays)
    assert f"a {kind} of" in refused(header[:-1], arrays)
    assert f"a {kind} of" in refused(header[:1], [])


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_too_many_or_missing(kind):
    header, arrays = header_of(example(KINDS[kind]))
    assert "arrays too many" in refused(header, [*arrays, np.zeros(1)])
    if arrays:
        assert "arrays are not there" in refused(header, arrays[:-1])


WRONG = {
    int: [-2, 1 << 62, 1.0, True, "3", None, [1]],
    bool: [0, 1, None, "true"],
    float: [True, float("nan"), float("inf"), "0.5", None],
    str: [b"x", 1, None, "x" * (messages.MAX_TEXT + 1)],
    list: [{}, "abc", 1, None],
    dict: [[], "abc", 1, None],
    Arrays: [-1, True, 2.0, "2", None, [2], 1000],
}


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_types_and_ranges(kind):
    cls = KINDS[kind]
    header, arrays = header_of(example(cls))
    for at, (name, type_) in enumerate(types_of(cls).items(), 1):
        for wrong in WRONG[type_ if type_ == Arrays else get_origin(type_) or type_]:
            said = refused([*header[:at], wrong, *header[at + 1 :]], arrays)
            assert f"{kind}.{name}: " in said


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        ("status", "lanes", ["a"]),
        ("status", "lanes", [-7]),
        ("status", "missing", [None]),
        ("status", "missing", [[1]]),
        ("status", "files", [1]),
        ("status", "files", [[1, "x", 2]]),
        ("status", "files", [[1, "x", 2, "y", 3]]),
        ("status", "counters", {"keys": "many"}),
        ("status", "counters", {"keys": float("nan")}),
        ("orders", "owners", ["s0"]),
        ("orders", "leases", [3]),
        ("orders", "leases", [[1, "x"]]),
        ("orders", "cut", ["a", "b", "c"]),
        ("orders", "addresses", [7]),
    ],
)
def test_contents_of_lists_are_checked(kind, name, wrong):
    message = dataclasses.replace(example(KINDS[kind]), **{name: wrong})
    assert f"{kind}.{name}: " in refused(*header_of(message))


@pytest.mark.parametrize(
    "header", [None, 7, "push", [], [7], [["push"]], {"push": 1}, ["nonsense"]]
)
def test_what_is_not_a_message(header):
    refused(header, [])
    with pytest.raises(CodecError):
        decode(codec.encode(header, []))


@given(st.data())
@settings(repeatable, max_examples=300)
def test_mutated_messages_raise_nothing_but_codec_errors(data):
    cls = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    frames = [bytearray(frame) for frame in encode(example(cls))]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        at = data.draw(st.integers(0, len(frame) - 1)) if frame else 0
        frame[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        (message,) = decode(frames)
    except CodecError:
        return
    assert type(message) in KINDS.values()


@given(st.lists(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(), max_size=8))
@repeatable
def test_random_fields_raise_nothing_but_codec_errors(fields):
    for kind in KINDS:
        try:
            decode([msgpack.packb([codec.FORMAT, [[kind, *fields]], []])])
        except (CodecError, UnicodeEncodeError):
            continue


def test_frames_follow_the_order_of_the_fields():
    keys, gradients, counts = np.uint64([5]), np.float32([[1]]), np.int32([2])
    scores = (np.float32([0.1]), np.float32([1]))
    push = Push(1, 2, 3, 4, 5, 6, 7, 0.5, -1, (keys,), (gradients,), (counts,), scores)
    header, arrays = header_of(push)
    assert header == ["push", 1, 2, 3, 4, 5, 6, 7, 0.5, -1, 1, 1, 1, 2]
    assert [a.dtype for a in arrays] == [np.uint64, np.float32, np.int32, np.float32, np.float32]
    pull = Pull(1, 2, 3, 4, 5, "train", (keys, keys))
    assert header_of(pull)[0] == ["pull", 1, 2, 3, 4, 5, "train", 2]


def test_the_protocol_page_lists_every_message_with_its_fields():
    page = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]*(?:→[^|]*|any )\| (.*) \|$", page, re.MULTILINE)
    listed = {kind: re.findall(r"(\*?)`(\w+)`", fields) for kind, fields in rows}
    assert listed == {
        kind: [("*" if t == Arrays else "", name) for name, t in types_of(cls).items()]
        for kind, cls in KINDS.items()
    }
