"""Kernels of key-value text, of Criteo's numbers and of text out, against their twins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.data.reading import room_to_ask
from ctrps.kernels import fields, pairs, text, textout
from ctrps.kernels.keys import hash_text
from tests import naive_formats as naive

few = settings(derandomize=True, max_examples=150, deadline=None)
slow_few = settings(derandomize=True, max_examples=400, deadline=None)
MODES = [text.REQUIRED, text.OPTIONAL, text.NONE]


def buffer(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


# libffm


def libffm(data: bytes, final: bool, mode: int, bad_room: int = 100):
    slots = np.empty(len(data) // 6 + 1, np.int32)
    keys, values = np.empty(len(slots), np.uint64), np.empty(len(slots), np.float32)
    sizes, labels = np.empty(len(data) // 2 + 1, np.int32), np.empty(len(data) // 2 + 1, np.float32)
    bad, asked = np.empty((bad_room, 3), np.int64), room_to_ask(len(data))
    at, rows, nnz, wrong, _ = pairs.libffm_rows(
        buffer(data), final, mode, slots, keys, values, sizes, labels, bad, asked
    )
    found = iter(zip(*(column[:nnz].tolist() for column in (slots, keys, values)), strict=True))
    out = [(labels[r], [next(found) for _ in range(sizes[r])]) for r in range(rows)]
    return at, out, [(reason, data[start:end]) for reason, start, end in bad[:wrong].tolist()]


blank = st.sampled_from([" ", "\t", "  ", " \t"])
line_end = st.sampled_from(["\n", "\r\n", "\n\n", " \n", "\n \t\n", "\r"])
ffm_token = st.sampled_from(
    "0 1 -1 +1 1.00 2 0:3:1 4095:0:0.5 4096:1:1 7:18446744073709551615:1e3 "
    "7:18446744073709551616:1 5:: :1:1 1:2 a:1:1 1:x:1 1:1:nan 1:2:3:4 #".split()
)
ffm_text = st.lists(st.one_of(ffm_token, blank, blank, line_end), max_size=40).map("".join)


@slow_few
@given(ffm_text, st.booleans(), st.sampled_from(MODES))
def test_libffm_rows_are_those_of_the_twin(written, final, mode):
    at, rows, bad = libffm(written.encode(), final, mode)
    expected_at, expected_rows, expected_bad = naive.libffm_rows(written.encode(), final, mode)
    assert (at, bad) == (expected_at, expected_bad)
    assert repr(rows) == repr([(np.float32(label), found) for label, found in expected_rows])


def test_libffm_goes_on_where_the_table_of_bad_rows_was_full():
    data = b"x 1:1:1\n1 2:1:1\ny 3:1:1\n0 4:1:1\n"
    at, rows, bad = libffm(data, True, text.REQUIRED, bad_room=1)
    assert (at, rows, bad) == (8, [], [(text.LABEL, b"x")])
    assert libffm(data[8:], True, text.REQUIRED, bad_room=1)[0] == 16


# VW


def vw(data: bytes, final: bool, mode: int, tagged: bool, known=(), room=100):
    size = len(data) // 2 + 1
    names, places = np.zeros(room, np.uint64), np.empty((room, 2), np.int64)
    names[: len(known)] = [hash_text(name) for name in known]
    slots, keys = np.empty(size, np.int32), np.empty(size, np.uint64)
    numbers, asked = np.empty((2, size), np.float32), room_to_ask(len(data))
    sizes, labels = np.empty(size, np.int32), np.empty(size, np.float32)
    tags, bad = np.empty((size, 2), np.int32), np.empty((100, 3), np.int64)
    at, rows, nnz, wrong, asks, count = pairs.vw_rows(
        buffer(data), final, mode, tagged, names, len(known), places, slots, keys, numbers,
        sizes, labels, tags, bad, asked,
    )  # fmt: skip
    for place, start, end in asked[:asks].tolist():
        numbers.reshape(-1)[place] = float(data[start:end])
    columns = (slots, keys, numbers[0], numbers[1])
    found = iter(zip(*(column[:nnz].tolist() for column in columns), strict=True))
    out = [
        (labels[r], data[tags[r, 0] : tags[r, 1]], [next(found) for _ in range(sizes[r])])
        for r in range(rows)
    ]
    new = [data[start:end] or b" " for start, end in places[len(known) : count].tolist()]
    return (
        at,
        out,
        [(reason, data[start:end]) for reason, start, end in bad[:wrong].tolist()],
        [*known, *new],
    )


vw_token = st.sampled_from(
    "0 1 -1 1.0 2 0.5 't ' zebra | |f |g |f:2 |:2 |f:x |g:1e38 a b a:2 b:-0.5e1 a:1e38 a: :1 "
    "a:b:1 a:16777217.000000000000000001 |f:16777217.000000000000000001 x|".split()
)
vw_text = st.lists(st.one_of(vw_token, vw_token, blank, blank, line_end), max_size=40).map("".join)


@slow_few
@given(vw_text, st.booleans(), st.sampled_from(MODES), st.booleans(), st.sampled_from(["", "g"]))
def test_vw_rows_are_those_of_the_twin(written, final, mode, tagged, known):
    known = [known.encode()] if known else []
    at, rows, bad, names = vw(written.encode(), final, mode, tagged, known)
    expected = naive.vw_rows(written.encode(), final, mode, tagged, known)
    assert (at, bad, names) == (expected[0], expected[2], expected[3])
    assert repr(rows) == repr([(np.float32(label), *rest) for label, *rest in expected[1]])


def test_namespaces_have_an_end():
    data = b"1 |a x |b x |c x\n1 |b x |a x\n"
    _, rows, bad, names = vw(data, True, text.REQUIRED, False, room=2)
    assert bad == [(pairs.MANY, b"c")]
    assert names == [b"a", b"b"] or names == [b"b", b"a"]
    assert len(rows) == 1


# slots


slot_token = st.sampled_from(
    "0 1 a ad:x ad:y:z user:x :x x: label:1 label:-1 1:label id:r1 ,".split()
)
slot_text = st.lists(
    st.one_of(slot_token, slot_token, blank, blank, line_end, st.just(",")), max_size=40
).map("".join)


@slow_few
@given(
    slot_text,
    st.booleans(),
    st.sampled_from(MODES),
    st.booleans(),
    st.sampled_from([[], [0], [2, 0]]),
    st.booleans(),
)
def test_slot_rows_are_those_of_the_twin(written, final, mode, turned, plain, with_ids):
    data, known = written.encode(), [b"label", b"id", b"ad"]
    reserved, id_slot = (2, 1) if with_ids else (1, -1)
    size = len(data) // 2 + 1
    names, places = np.zeros(50, np.uint64), np.empty((50, 2), np.int64)
    names[:3] = [hash_text(name) for name in known]
    slots, keys = np.empty(size, np.int32), np.empty(size, np.uint64)
    sizes, labels = np.empty(size, np.int32), np.empty(size, np.float32)
    ids, bad = np.empty((size, 2), np.int32), np.empty((100, 3), np.int64)
    at, rows, nnz, wrong, count = pairs.slot_rows(
        buffer(data), final, mode, turned, np.array(plain, np.int64), reserved, id_slot, names, 3,
        places, slots, keys, sizes, labels, ids, bad,
    )  # fmt: skip
    found = iter(zip(slots[:nnz].tolist(), keys[:nnz].tolist(), strict=True))
    out = [
        (labels[r], data[ids[r, 0] : ids[r, 1]], [next(found) for _ in range(sizes[r])])
        for r in range(rows)
    ]
    new = [data[start:end] for start, end in places[3:count].tolist()]
    expected = naive.slot_rows(data, final, mode, turned, plain, reserved, id_slot, known)
    assert at == expected[0]
    assert [(r, data[start:end]) for r, start, end in bad[:wrong].tolist()] == expected[2]
    assert [*known, *new] == expected[3]
    assert repr(out) == repr([(np.float32(label), *rest) for label, *rest in expected[1]])


@few
@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=8), st.integers(5, 7))
def test_keys_in_the_order_of_slots(rows, width):
    sizes = np.array([len(row) for row in rows], np.int32)
    slots = np.array([slot for row in rows for slot in row], np.int32)
    counts, order = np.full((len(rows), width), 9, np.int32), np.empty(len(slots), np.int64)
    pairs.by_slot(slots, sizes, counts, order)
    expected_counts, expected_order = naive.by_slot(slots.tolist(), sizes.tolist(), width)
    assert counts.tolist() == expected_counts
    assert order.tolist() == expected_order


@few
@given(st.binary(max_size=12), st.integers(0, 255))
def test_token_end(data, other):
    data = data.translate(bytes.maketrans(b"abcd", b" \t|:"))
    expected = naive.token_end(data, 0, len(data), other)
    assert pairs.token_end(buffer(data), 0, len(data), other) == expected


# Criteo


number = st.one_of(
    st.integers(0, 2**65), st.integers(0, 64).map(lambda n: 2**n - 2), st.integers(-5, 40)
).map(lambda n: str(n).encode())


@slow_few
@given(st.lists(number | st.sampled_from([b"", b"-", b"1.0", b" 1", b"+1", b"NULL", b"007"])))
def test_levels_are_those_of_exact_integers(texts):
    width = 3
    rows = [texts[at : at + width] for at in range(0, len(texts) - width + 1, width)]
    data = b"".join(b"\t".join(row) + b"\n" for row in rows)
    flat = [field for row in rows for field in row]
    ends = np.cumsum([len(field) + 1 for field in flat], dtype=np.int32) - 1
    starts = ends - np.array([len(field) for field in flat], np.int32)
    columns, missing = np.int64([2, 0]), np.array([hash_text("NULL")], np.uint64)
    levels, bad = np.empty((len(rows), 2), np.int16), np.empty((len(rows), 2), np.int64)
    wrong = fields.log_levels(
        buffer(data), starts.reshape(-1, width), ends.reshape(-1, width), columns, missing,
        levels, bad,
    )  # fmt: skip
    expected, expected_bad = naive.log_levels(rows, [2, 0], [b"NULL"])
    assert bad[:wrong].tolist() == [list(place) for place in expected_bad]
    good = [row for row in range(len(rows)) if row not in dict(expected_bad)]
    assert levels[good].tolist() == [expected[row] for row in good]
    assert all(level < fields.LEVELS for row in good for level in expected[row])


def test_level_keys():
    rng = np.random.default_rng(1)
    levels, slots = rng.integers(-1, 9, (6, 2)).astype(np.int16), np.int64([3, 0])
    seeds, hashes = rng.integers(0, 2**63, 2).astype(np.uint64), np.arange(9, dtype=np.uint64)
    keys = rng.integers(0, 2**63, (6, 4)).astype(np.uint64)
    expected = naive.level_keys(levels, slots, seeds, hashes, keys)
    fields.level_keys(levels, slots, seeds, hashes, keys)
    np.testing.assert_array_equal(keys, expected)


# keys and text out


@few
@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**64 - 1)), max_size=6))
def test_keys_of_texts(found):
    texts, seeds = [text for text, _ in found], [seed for _, seed in found]
    ends = np.cumsum([0, *map(len, texts)])[1:]
    keys = np.empty(len(texts), np.uint64)
    fields.keys_of_texts(buffer(b"".join(texts)), ends, np.array(seeds, np.uint64), keys)
    assert keys.tolist() == naive.keys_of_texts(texts, seeds)


def test_text_is_that_of_the_twin():
    rng = np.random.default_rng(3)
    for with_ids in (False, True):
        counts = rng.integers(0, 3, (20, 3)).astype(np.int32)
        keys = rng.choice(np.uint64([0, 9, 10, 2**53 + 1, 2**64 - 1]), int(counts.sum()))
        words, heads = [b"1", b"0.5", b"-2e-05"], [b"", b"0", b"1"]
        values, head = rng.integers(0, 3, len(keys)), rng.integers(0, 3, 20)
        opens, tags = [b"", b" |x", b" |"], [b" ", b" 7:", b""]
        ids = [b"r%d" % n for n in range(20)] if with_ids else []
        packed = []
        for texts in (heads, ids, opens, tags, words):
            packed.append((buffer(b"".join(texts)), np.cumsum([0, *map(len, texts)])[1:]))
        out = np.empty(10_000, np.uint8)
        size = textout.rows_text(
            *packed[0], head, *packed[1], *packed[2], *packed[3], *packed[4], counts, keys,
            values, out,
        )  # fmt: skip
        assert out[:size].tobytes() == naive.rows_text(
            [heads[n] for n in head], ids, opens, tags, counts.tolist(), keys.tolist(),
            [words[n] for n in values],
        )  # fmt: skip


@pytest.mark.parametrize("key", [0, 9, 10, 10**19 - 1, 10**19, 2**64 - 1])
def test_every_key_has_its_digits(key):
    one = np.ones(1, np.int64)
    out = np.empty(40, np.uint8)
    zero = np.zeros(1, np.int64)
    size = textout.rows_text(
        buffer(b"1"), one, zero, buffer(b""), zero[:0], buffer(b""), zero, buffer(b" "), one,
        buffer(b"1"), one, np.ones((1, 1), np.int32), np.uint64([key]), zero, out,
    )  # fmt: skip
    assert out[:size].tobytes() == b"1 %d:1\n" % key
