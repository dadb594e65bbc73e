"""The hash, the keys, their placement and the index."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash
from numba import njit

from ctrps.kernels import keys
from tests import naive

PRIME32 = 2654435761
# xxHash's own sanity check (xsum_sanity_check.c): (length, seed, XXH64 of its test bytes).
PUBLISHED = [
    (0, 0, 0xEF46DB3751D8E999),
    (0, PRIME32, 0xAC75FDA2929B17EF),
    (1, 0, 0xE934A84ADB052768),
    (1, PRIME32, 0x5014607643A9B4C3),
    (4, 0, 0x9136A0DCA57457EE),
    (14, 0, 0x8282DCC4994E35C8),
    (14, PRIME32, 0xC3BD6BF63DEB6DF0),
    (222, 0, 0xB641AE8CB691C174),
    (222, PRIME32, 0x20CB8AB7AE10C14A),
]

# Models and shards on disk hold keys: these answers must outlive every change of the code.
KNOWN_KEYS = [
    ("user", "u0", 0xF905C615EBE76B24),
    ("user", "", 0x8E312FF15B5DF87C),
    ("", "u0", 0x025E87AB353DD342),
    ("ad", "u0", 0x150431205EA26E7C),
    ("site", "中文", 0x6EE2DCD5D7E3927B),
    ("site", "é", 0x632A534F2A49B4B2),
    ("site", "a", 0xB7CF7D432FACB1EC),
    ("site", "A", 0x89803B12E6EB6861),
    ("price_bucket", "-1", 0xACB9F02A8FA2EE14),
    ("hit", "1", 0x3965A17AB2BCF306),
    ("long", "x" * 100, 0xC87B74ED79533D1F),
]
# The keys of cases/14-keys-of-64-bits.
EDGES = np.uint64(
    [
        *(power + step for power in (2**31, 2**32, 2**63) for step in (-1, 0)),
        *(0, 1, 2**53, 2**53 + 1, 2**64 - 2, 2**64 - 1),
    ]
)


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def random_keys(seed: int, n: int, high: int = 2**64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, n, dtype=np.uint64)


@pytest.mark.parametrize(("length", "seed", "expected"), PUBLISHED)
def test_xxh64_published_vectors(length, seed, expected):
    state, data = PRIME32, bytearray()
    for _ in range(length):
        data.append(state >> 56)
        state = state * 11400714785074694797 % 2**64
    assert keys.xxh64(as_array(data), 0, length, np.uint64(seed)) == expected


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_xxh64_agrees_with_the_package_and_the_twin(seed):
    data = np.random.default_rng(3).bytes(400)
    for length in range(200):
        start = length % 17
        piece = data[start : start + length]
        found = keys.xxh64(as_array(data), start, start + length, np.uint64(seed))
        assert found == xxhash.xxh64_intdigest(piece, seed) == naive.xxh64(piece, seed), length


def test_twins_of_mix_and_spread():
    numbers = random_keys(1, 200)
    for a, b in zip(numbers, numbers[::-1], strict=True):
        assert keys.mix(a, b) == naive.mix(int(a), int(b))
        assert keys.spread(a) == naive.spread(int(a))


@pytest.mark.parametrize(
    "changed",
    [
        lambda x, flip: keys.mix(x ^ flip, np.uint64(77)),
        lambda x, flip: keys.mix(np.uint64(77), x ^ flip),
        lambda x, flip: keys.spread(x ^ flip),
    ],
    ids=["mix seed", "mix hash", "spread"],
)
def test_every_input_bit_flips_half_of_the_output(changed):
    numbers = random_keys(2, 300)
    for bit in range(64):
        flip = np.uint64(1 << bit)
        flips = [(changed(x, np.uint64(0)) ^ changed(x, flip)).bit_count() for x in numbers]
        assert abs(np.mean(flips) - 32) < 2, bit


@njit
def _keys_of_lines(data, starts, ends, namespace, out):
    for i in range(starts.shape[0]):
        h = keys.xxh64(data, starts[i], ends[i], np.uint64(0))
        out[i] = keys.mix(namespace, h)


def test_a_million_values_have_a_million_keys():
    text = "\n".join(str(i) for i in range(250_000)).encode()
    data = as_array(text)
    ends = np.append(np.flatnonzero(data == ord("\n")), len(data))
    starts = np.append(0, ends[:-1] + 1)
    found = np.empty((4, len(ends)), np.uint64)
    for out, prefix in zip(found, ("user", "ad", "user_ad", ""), strict=True):
        _keys_of_lines(data, starts, ends, np.uint64(keys.namespace(prefix)), out)
    assert found[1, 12345] == keys.key_of("ad", "12345")
    assert len(np.unique(found)) == 1_000_000


@pytest.mark.parametrize(("prefix", "value", "key"), KNOWN_KEYS)
def test_known_keys(prefix, value, key):
    assert keys.key_of(prefix, value) == keys.key_of(prefix, value.encode()) == key
    assert key == naive.mix(naive.xxh64(prefix.encode(), 0), naive.xxh64(value.encode(), 0))


def test_known_crosses_and_dense_keys():
    assert keys.key_of("city_hour", "London", "8") == 0x60096651BD4238EB
    assert keys.key_of("a_b_c", "1", "2", "3") == 0x71DCB0A2AFA75599
    assert keys.dense_key("age") == 0x0BD260669AFEC904
    assert keys.dense_key("age") not in (keys.key_of("age", ""), keys.key_of("age", "dense"))


def test_a_cross_is_not_a_concatenation():
    crosses = [("ab", "c"), ("a", "bc"), ("c", "ab"), ("abc", ""), ("", "abc")]
    assert len({keys.key_of("x", *cross) for cross in crosses}) == len(crosses)


KEYS_OF_CATS = """
import csv, sys
from ctrps.kernels.keys import key_of
with open(sys.argv[1], encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))
print(sorted({key_of(name, row[name]) for row in rows for name in ("user", "ad", "site")}))
"""


def test_case_12_keys_are_the_same_in_every_process(shared):
    path = shared / "cases" / "12-hash-across-processes" / "cats.csv"
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {keys.key_of(name, row[name]) for row in rows for name in ("user", "ad", "site")}
    assert len(found) == 20
    for salt, locale in (("1", "C"), ("2", "C.UTF-8")):
        answer = subprocess.run(
            [sys.executable, "-c", KEYS_OF_CATS, str(path)],
            env={**os.environ, "PYTHONHASHSEED": salt, "LC_ALL": locale},
            cwd=Path(keys.__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert answer.stdout.strip() == str(sorted(found))


@pytest.mark.parametrize("bits", [0, 1, 6, 8])
def test_partition_of_and_grouped(bits):
    sample = np.concatenate([EDGES, random_keys(4, 300), np.arange(300, dtype=np.uint64)])
    partitions = np.empty(len(sample), np.int32)
    order, starts = np.empty(len(sample), np.int64), np.empty(2**bits + 1, np.int32)
    keys.partition_of(sample, bits, partitions)
    keys.grouped(sample, bits, order, starts)
    assert partitions.tolist() == naive.partition_of(sample, bits)
    assert (order.tolist(), starts.tolist()) == naive.grouped(sample, bits)


def test_consecutive_keys_spread_over_partitions_and_slots():
    sample = np.arange(64_000, dtype=np.uint64)
    partitions = np.empty(len(sample), np.int32)
    keys.partition_of(sample, 6, partitions)
    per_partition = np.bincount(partitions, minlength=64)
    assert abs(per_partition - 1000).max() < 5 * np.sqrt(1000)
    # The keys of one partition must not crowd into one part of its server's index.
    first = sample[partitions == 0]
    slots = [keys.spread(key) & 63 for key in first]
    expected = len(first) / 64
    assert abs(np.bincount(slots, minlength=64) - expected).max() < 5 * np.sqrt(expected)


def test_initial_agrees_with_its_twin_and_looks_normal():
    drawn = np.array(
        [[keys.initial(np.uint64(1), key, j) for j in range(8)] for key in random_keys(5, 500)]
    )
    twin = [[naive.initial(1, int(key), j) for j in range(8)] for key in random_keys(5, 500)]
    np.testing.assert_allclose(drawn, twin, rtol=1e-6)
    assert abs(drawn.mean()) < 0.05
    assert abs(drawn.std() - 1) < 0.05
    assert abs(np.corrcoef(drawn.T) - np.eye(8)).max() < 0.2


def test_known_bits_of_initial_and_spread():
    drawn = [keys.initial(np.uint64(1), np.uint64(7), j) for j in range(3)]
    assert np.float32(drawn).view(np.uint32).tolist() == [3209374657, 3206875626, 3212384490]
    placed = [keys.spread(np.uint64(key)) for key in (0, 1, 2**64 - 1)]
    assert placed == [0x7ACDBB98B1344213, 0xBE0627CE1831F633, 0x3BFB2E89B6CC4D41]


def insert(index, sample, used):
    rows, new = np.empty(len(sample), np.int64), np.empty(len(sample), np.int64)
    used, n_new = keys.index_insert(index, sample, used, rows, new)
    return used, rows.tolist(), new[:n_new].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_index_agrees_with_a_dict(seed):
    rng = np.random.default_rng(seed)
    pool = np.concatenate([EDGES, random_keys(seed, 60), np.arange(60, dtype=np.uint64)])
    index, held, used = keys.index_new(keys.index_capacity(len(pool))), {}, 0
    for _ in range(12):
        sample = rng.choice(pool, int(rng.integers(0, 20)))
        before = np.empty(len(sample), np.int64)
        keys.index_find(index, sample, before)
        assert before.tolist() == naive.index_find(held, sample)
        expected = naive.index_insert(held, sample, used)
        used, rows, new = insert(index, sample, used)
        assert (rows, new) == expected
        assert used == len(held)


def test_index_build_finds_every_key_and_no_other():
    sample = np.unique(np.concatenate([EDGES, random_keys(8, 1000)]))
    index = keys.index_new(keys.index_capacity(len(sample)))
    keys.index_build(index, sample)
    asked = np.concatenate([sample, random_keys(9, 1000)])
    rows = np.empty(len(asked), np.int64)
    keys.index_find(index, asked, rows)
    assert rows.tolist() == naive.index_find(naive.index_build(sample), asked)


def test_no_key_is_a_sentinel():
    index = keys.index_new(keys.index_capacity(len(EDGES)))
    rows = np.empty(len(EDGES), np.int64)
    keys.index_find(index, EDGES, rows)
    assert (rows == -1).all()
    assert insert(index, EDGES, 0) == (12, list(range(12)), list(range(12)))


def test_capacity_keeps_the_load_at_one_half():
    for rows in range(100):
        capacity = keys.index_capacity(rows)
        assert capacity >= 2 * rows
        assert keys.index_new(capacity).shape == (capacity, 2)


@pytest.mark.parametrize("capacity", [0, 3, 48, -16])
def test_capacity_must_be_a_power_of_two(capacity):
    with pytest.raises(ValueError, match="power of two"):
        keys.index_new(capacity)


def test_mix_all():
    hashes = np.arange(50, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    out = np.empty(50, np.uint64)
    keys.mix_all(np.uint64(3), hashes, out)
    assert out.tolist() == naive.mix_all(3, hashes)
