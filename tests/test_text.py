"""Kernels that read text against their twins: numbers, libsvm rows, fields of tables."""

import itertools
import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from ctrps.data.reading import room_to_ask
from ctrps.kernels import bits, fields, text
from ctrps.kernels.keys import hash_text, namespace
from tests import naive_data as naive

few = settings(derandomize=True, max_examples=150, deadline=None)
slow_few = settings(derandomize=True, max_examples=300, deadline=None)


def buffer(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def number(data: bytes):
    return text.parse_number(buffer(b"<" + data + b">"), 1, 1 + len(data))


def check_number(data: bytes):
    status, value = number(data)
    expected = naive.parse_number(data)
    if status == text.BAD:
        # A number a hair below the largest float32 may be refused; nothing else.
        assert expected is None or abs(expected) > 3.4028234e38
    elif status == text.GOOD:
        assert np.float32(value) == expected
    else:
        around = np.nextafter(np.float32(expected), np.float32([-np.inf, np.inf]))
        assert np.float32(value) in (*around, expected)


NUMBERS = (
    "0 -0 +1 1. .5 -.5e-3 1e0 1E5 1e+05 007 3.4028234e38 1e-45 1e-46 1e-300 0e999 16777217 "
    "16777219 0.1 123456789012345678901234567890 "
    "0.000000000000000000000000000001e30 9007199254740993 100000000000000000000000000000000e-32"
).split()
NOT_NUMBERS = (
    "nan inf -inf Infinity 1e400 1e39 0x10 1_0 1e 1e+ e5 . + - +-1 1.2.3 1,5 12\0xyz --1 1f 1e5.0"
).split()


@pytest.mark.parametrize("written", NUMBERS)
def test_a_number_is_the_float32_that_python_makes_of_it(written):
    status, value = number(written.encode())
    assert status == text.GOOD
    assert np.float32(value) == np.float32(float(written))


@pytest.mark.parametrize("written", [*NOT_NUMBERS, "", " 1", "1 ", "１"])
def test_what_is_no_finite_number_is_bad(written):
    assert number(written.encode())[0] == text.BAD
    assert naive.parse_number(written.encode()) is None


def test_a_number_in_the_middle_of_two_float32_is_asked_for():
    # 2^24 + 1 and 1 + 2^-24 lie between two float32; 19 digits do not show on which side.
    assert number(b"16777217.000000000000000001")[0] == text.INEXACT
    assert number(b"1.00000005960464477539")[0] == text.INEXACT
    assert number(b"16777217")[0] == text.GOOD


def test_no_number_below_four_bytes_is_asked_for():
    """``room_to_ask`` has room for one in five bytes of text, separator included."""
    for length in range(1, 4):
        for written in itertools.product(b"0123456789.e+-", repeat=length):
            assert number(bytes(written))[0] != text.INEXACT


@few
@given(st.text("0123456789.e+- ", max_size=12))
def test_any_mixture_of_digits_and_signs_is_read_as_the_twin_reads_it(written):
    check_number(written.encode())


@few
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_every_printed_float_comes_back(bits32, bits64):
    single, double = struct.unpack("<f", struct.pack("<I", bits32))[0], None
    double = struct.unpack("<d", struct.pack("<Q", bits64))[0]
    for value in (single, double):
        if math.isfinite(value):
            check_number(repr(value).encode())
            check_number(f"{value:.30e}".encode())


@few
@given(st.integers(0, 2**65) | st.integers(2**64 - 3, 2**64 + 3), st.integers(0, 3))
def test_a_key_is_exact_up_to_the_last_of_64_bits(key, zeros):
    written = b"0" * zeros + str(key).encode()
    good, found = text.parse_key(buffer(written), 0, len(written))
    assert (int(found) if good else None) == naive.parse_key(written)


@pytest.mark.parametrize("written", ["", "-1", "+1", "1.5", "1e3", "x", " 1"])
def test_what_is_no_key_is_bad(written):
    assert not text.parse_key(buffer(written.encode()), 0, len(written))[0]


@pytest.mark.parametrize(
    "written", "0 1 -1 +1 1.00 0.0 -0 1e0 -1.0 2 0.5 yes nan -7 10 1.5 -1.01".split()
)
def test_a_label_is_0_or_1_however_written(written):
    good, label = text.parse_label(buffer(written.encode()), 0, len(written))
    assert (float(label) if good else None) == naive.parse_label(written.encode())


@few
@given(st.binary(max_size=12), st.integers(0, 255))
def test_find_and_trim(data, byte):
    data = data.translate(bytes.maketrans(b"abcd", b" \t\r\n"))
    assert text.find(buffer(data), 0, len(data), byte) == naive.find(data, 0, len(data), byte)
    start, end = text.trim(buffer(data), 0, len(data))
    assert data[start:end] == naive.trim(data, 0, len(data))


def libsvm(data: bytes, final: bool, mode: int, bad_room: int = 100):
    size = len(data)
    keys, values = np.empty(size // 4 + 1, np.uint64), np.empty(size // 4 + 1, np.float32)
    counts, labels = np.empty(size // 2 + 1, np.int32), np.empty(size // 2 + 1, np.float32)
    bad, asked = np.empty((bad_room, 3), np.int64), room_to_ask(size)
    at, rows, nnz, wrong, _ = text.libsvm_rows(
        buffer(data), final, mode, keys, values, counts, labels, bad, asked
    )
    pairs = iter(zip(keys[:nnz].tolist(), values[:nnz].tolist(), strict=True))
    out = [(labels[r], [next(pairs) for _ in range(counts[r])]) for r in range(rows)]
    return at, out, [(reason, data[start:end]) for reason, start, end in bad[:wrong].tolist()]


token = st.sampled_from(
    "0 1 -1 +1 1.00 2 3:1 0:0.5 18446744073709551615:1e3 18446744073709551616:1 5: :1 a:1 1:x "
    "7:nan 1:2:3 4:1,5:1 #".split()
)
blank = st.sampled_from([" ", "\t", "  ", " \t"])
line_end = st.sampled_from(["\n", "\r\n", "\n\n", " \n", "\n \t\n", "\r"])
libsvm_text = st.lists(st.one_of(token, blank, blank, line_end), max_size=40).map("".join)


@slow_few
@given(libsvm_text, st.booleans(), st.sampled_from([text.REQUIRED, text.OPTIONAL, text.NONE]))
def test_libsvm_rows_are_those_of_the_twin(written, final, mode):
    at, rows, bad = libsvm(written.encode(), final, mode)
    expected_at, expected_rows, expected_bad = naive.libsvm_rows(written.encode(), final, mode)
    assert (at, bad) == (expected_at, expected_bad)
    assert repr(rows) == repr([(np.float32(label), pairs) for label, pairs in expected_rows])


plain_token = st.sampled_from(
    "3:1 71:9 1234567:1 12345678:0 123456789:1 123456789012345:1 1234567890123456:1 5:12 5:-0.25 "
    "18446744073709551615:1e3 18446744073709551616:1 9:16777217.000000000000000001 8:1e39 "
    "6:x".split()
)
plain_row = st.tuples(
    st.sampled_from(["", "0 ", "1 ", "-1 ", "+1 ", "1.0 ", "2 ", "1:1 ", "0:"]),
    st.lists(plain_token, max_size=5).map(" ".join),
    st.sampled_from(["\n", "\n", " \n", "\r\n", "\t\n"]),
).map("".join)


@slow_few
@given(st.lists(plain_row, max_size=8).map("".join), st.sampled_from([0, 1, 2]))
def test_plain_libsvm_rows_are_those_of_the_twin(written, mode):
    """With room behind them, so that they are read eight bytes at a time."""
    written += "1 1:1 2:1 3:1 4:1 5:1 6:1 7:1\n"
    at, rows, bad = libsvm(written.encode(), False, mode)
    expected_at, expected_rows, expected_bad = naive.libsvm_rows(written.encode(), False, mode)
    assert (at, bad) == (expected_at, expected_bad)
    for (label, pairs), (expected_label, expected_pairs) in zip(rows, expected_rows, strict=True):
        assert repr(label) == repr(np.float32(expected_label))
        assert [key for key, _ in pairs] == [key for key, _ in expected_pairs]
        values = np.float32([value for _, value in expected_pairs])
        np.testing.assert_allclose([value for _, value in pairs], values, rtol=2e-7)


@njit(nogil=True)
def counted(word):
    return bits.ones(word), bits.trailing_zeros(word), bits.leading_zeros(word)


@few
@given(st.binary(min_size=8, max_size=8) | st.just(bytes(8)), st.integers(0, 8))
def test_eight_bytes_at_a_time(data, digits):
    data = b"12903845"[:digits] + data[digits:]
    word = np.uint64(bits.eight_bytes(buffer(b"<" + data), 1))
    assert int(word) == naive.eight_bytes(data)
    assert tuple(map(int, counted(word))) == naive.counted(int(word))
    count = bits.digits_before(word)
    assert int(count) == naive.digits_before(data)
    for size in range(1, int(count) + 1):
        found = bits.number_before(word, np.uint64(size))
        assert int(found) == naive.number_before(data, size)


def test_reading_goes_on_where_the_table_of_bad_rows_was_full():
    data = b"x 1:1\n1 2:1\ny 3:1\n0 4:1\n"
    at, rows, bad = libsvm(data, True, text.REQUIRED, bad_room=1)
    assert (at, rows, bad) == (6, [], [(text.LABEL, b"x")])
    at, rows, bad = libsvm(data[6:], True, text.REQUIRED, bad_room=1)
    assert (at, rows, bad) == (12, [(1.0, [(2, 1.0)])], [(text.LABEL, b"y")])


def test_a_bad_row_takes_back_the_numbers_it_had_asked_for():
    data = b"1 1:16777217.000000000000000001 2:x\n1 3:16777217.000000000000000001\n"
    keys, values = np.empty(20, np.uint64), np.empty(20, np.float32)
    bad, asked = np.empty((5, 3), np.int64), room_to_ask(len(data))
    counts, labels = np.empty(40, np.int32), np.empty(40, np.float32)
    found = text.libsvm_rows(buffer(data), True, 0, keys, values, counts, labels, bad, asked)
    assert found == (len(data), 1, 1, 1, 1)
    at, start, end = asked[0]
    assert (at, data[start:end]) == (0, b"16777217.000000000000000001")


def split(data: bytes, final: bool, separator: str, quoted: bool, columns: int, room: int = 50):
    starts, ends = np.empty((2, room, columns), np.int32)
    bad, buf = np.empty((room, 3), np.int64), buffer(data)
    at, rows, wrong = fields.split_fields(
        buf, 0, len(buf), final, ord(separator), quoted, starts, ends, bad
    )
    out = [
        [buf[s:e].tobytes() for s, e in zip(starts[r], ends[r], strict=True)] for r in range(rows)
    ]
    return at, out, [(reason, data[start:end]) for reason, start, end in bad[:wrong].tolist()]


table_text = st.lists(
    st.sampled_from(
        ["a", "b c", ",", ",", "\t", '"', '"', '""', "\n", "\r\n", "\r", " ", "\0", "é"]
    ),
    max_size=30,
).map("".join)


@slow_few
@given(table_text, st.booleans(), st.sampled_from(",\t"), st.booleans(), st.integers(1, 3))
def test_fields_are_those_of_the_twin(written, final, separator, quoted, columns):
    found = split(written.encode(), final, separator, quoted, columns)
    assert found == naive.split_fields(written.encode(), final, separator.encode(), quoted, columns)


def test_quotes_hold_separators_line_ends_and_quotes():
    data = b'a,"x,\ny"\r\n"say ""hi""",b"c\r\n"",z\n'
    assert split(data, True, ",", True, 2) == (
        len(data),
        [[b"a", b"x,\ny"], [b'say "hi"', b'b"c'], [b"", b"z"]],
        [],
    )


def test_fields_stop_when_the_tables_are_full_and_go_on_from_there():
    data = b"a,b\nc,d\ne\n"
    assert split(data, True, ",", True, 2, room=1) == (4, [[b"a", b"b"]], [])
    assert split(data[8:], True, ",", True, 2, room=1) == (2, [], [(fields.FIELDS, b"e")])


cell = st.sampled_from(["1", "0", "-1", "2", "x", "NULL", "nan", "1e400", "\0", "", " 1 ", " "])


@few
@given(
    st.lists(st.lists(cell, min_size=4, max_size=4), max_size=8),
    st.sampled_from([text.REQUIRED, text.OPTIONAL]),
    st.sampled_from([-1, 0]),
    st.sampled_from([[], ["NULL"], ["NULL", "1"]]),
)
def test_rows_of_a_table_are_those_of_the_twin(table, mode, label, missing):
    data = "".join(",".join(row) + "\n" for row in table).encode()
    size, names = len(table), ["s", "t"]
    starts, ends = np.empty((2, size, 4), np.int32)
    buf = buffer(data)
    fields.split_fields(
        buf, 0, len(buf), True, ord(","), True, starts, ends, np.empty((1, 3), np.int64)
    )
    keys, dense = np.empty((size, 2), np.uint64), np.empty((size, 1), np.float32)
    labels, taken = np.empty(size, np.float32), np.empty(size, np.int64)
    bad, asked = np.empty((size, 4), np.int64), np.empty((size, 3), np.int64)
    rows, wrong, asks = fields.csv_rows(
        buf,
        starts,
        ends,
        label,
        mode,
        np.int64([1]),
        np.int64([3, 2]),
        np.array([namespace(name) for name in names], np.uint64),
        np.array([hash_text(marker) for marker in missing], np.uint64),
        keys,
        dense,
        labels,
        taken,
        bad,
        asked,
    )
    expected, expected_bad = naive.csv_rows(
        [[field.encode() for field in row] for row in table],
        label,
        mode,
        [1],
        [3, 2],
        [name.encode() for name in names],
        [marker.encode() for marker in missing],
    )
    assert asks == 0
    assert [(r, data[s:e], c) for r, s, e, c in bad[:wrong].tolist()] == expected_bad
    assert taken[:rows].tolist() == [row[3] for row in expected]
    assert keys[:rows].tolist() == [row[2] for row in expected]
    assert dense[:rows].tolist() == [row[1] for row in expected]
    assert np.array_equal(labels[:rows], np.float32([row[0] for row in expected]), equal_nan=True)


def test_texts_are_copied_one_behind_the_other():
    data, starts, ends = b"abcdef", np.int32([4, 0, 2]), np.int32([6, 0, 3])
    out = np.empty(3, np.uint8)
    fields.copy_texts(buffer(data), starts, ends, out)
    assert out.tobytes() == naive.copy_texts(data, starts, ends) == b"efc"
