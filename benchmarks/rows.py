"""Made-up rows in the shape of a click log: 39 values a row, a few columns with very many values.

Values of a column are log-uniform over their ranks, so some are everywhere and most are rare.
Clicks are drawn from a planted factorization machine, so there is something to learn. Everything
follows from the seed.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctrps.data.rows import Rows, Schema
from ctrps.data.shards import ShardWriter
from ctrps.kernels.keys import mix_all

COLUMNS = 39
FACTORS = 4
LARGEST = 1_000_000
"""Values of the largest column; the sizes of the others fall to 4 in equal ratios."""

AT_ONCE = 16_384
SCHEMA = Schema(("",), (), "value")
W_SCALE, V_SCALE, BIAS = 0.15, 0.17, -1.2


@dataclass(frozen=True)
class Made:
    """Which rows to make.

    ``keys`` multiplies the number of values of each column. ``bits`` is the logarithm of the space
    that keys are hashed to; with 64 they stay apart.
    """

    seed: int = 1
    keys: float = 1.0
    bits: int = 22

    def part(self, first: int, rows: int) -> Rows:
        """Rows from ``first`` on, a multiple of AT_ONCE, of an endless sequence."""
        rng = np.random.default_rng((self.seed, first))
        sizes = np.geomspace(4, LARGEST, COLUMNS) * self.keys
        ranks = np.floor(np.maximum(sizes, 2) ** rng.random((rows, COLUMNS))).astype(np.uint64)
        keys = ranks * np.uint64(COLUMNS) + np.arange(COLUMNS, dtype=np.uint64)
        labels = rng.random(rows) < 1 / (1 + np.exp(-planted(keys)))
        keys = scrambled(keys, 0)
        if self.bits < 64:
            keys = (keys & np.uint64((1 << self.bits) - 1)) + np.uint64(1)
        counts = np.full((rows, 1), COLUMNS, np.int32)
        dense = np.zeros((rows, 0), np.float32)
        return Rows(keys.reshape(-1), counts, None, dense, labels.astype(np.float32), None)

    def write(self, path: Path, rows: int, first: int = 0, block_rows: int = 4096) -> Path:
        """A shard of rows from ``first`` on, in parts so that any number fits memory."""
        with ShardWriter(path, SCHEMA, block_rows) as shard:
            for at in range(0, rows, AT_ONCE):
                shard.add(self.part(first + at, min(AT_ONCE, rows - at)))
        return path


def scrambled(keys: np.ndarray, salt: int) -> np.ndarray:
    """A hash of each key, in the shape of ``keys``."""
    out = np.empty(keys.size, np.uint64)
    mix_all(np.uint64(salt), keys.reshape(-1), out)
    return out.reshape(keys.shape)


def effect(keys: np.ndarray, salt: int) -> np.ndarray:
    """A number of mean 0 and variance 1 for each key."""
    return ((scrambled(keys, salt) >> np.uint64(40)) / 2.0**24 - 0.5) * np.sqrt(12)


def planted(keys: np.ndarray) -> np.ndarray:
    """The log-odds of each row of keys: a factorization machine of the keys' effects."""
    margins = BIAS + W_SCALE * effect(keys, 1).sum(axis=1)
    for factor in range(FACTORS):
        v = V_SCALE * effect(keys, 2 + factor)
        margins += 0.5 * (v.sum(axis=1) ** 2 - (v**2).sum(axis=1))
    return margins


def train_and_test(folder: Path, rows: int, test: int, block_rows: int = 4096) -> list[Path]:
    """Shards of training rows, and of the rows after them for the test."""
    after = -(-rows // AT_ONCE) * AT_ONCE
    train = Made().write(folder / "train.shard", rows, 0, block_rows)
    return [train, Made().write(folder / "test.shard", test, after, block_rows)]
