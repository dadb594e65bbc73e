"""What each feature of a row adds to the row's margin, and how much each field moves rows.

A margin is the intercept, w x of each feature, and of fm v·v' x x' of each pair of features. A
pair's part is divided evenly between its two features, so that the contributions of a row and the
intercept add up to its margin: feature i has w x + ½ x v·(s - v x), s being the sum of v x over
the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.data.batches import BlockBatches
from ctrps.data.rows import Schema
from ctrps.data.shards import Block
from ctrps.dictionary import Dictionary
from ctrps.errors import ConfigError
from ctrps.inspection import intercept_of
from ctrps.kernels.losses import sigmoid
from ctrps.loaded import LoadedModel
from ctrps.predict import blocks, texts

CELLS = 1 << 22
"""float64 numbers of vectors that are held at a time."""


@dataclass(frozen=True, slots=True)
class Contributions:
    """The features of some rows and what each adds; keys repeated in a row are one feature.

    Attributes
    ----------
    rows : int64[n]
        Which row each belongs to, ascending.
    keys : uint64[n]
    slots : int64[n]
        Number of its slot among the schema's slots and, behind these, its numbers; of a key in
        several slots of the row, the first.
    x, w : float32[n]
        Its value, and its weight; 0 where the model does not hold the key.
    linear, pairs : float64[n]
        w x, and its half of all pairs that it is in (0 for lr).
    margins : float32[rows]
        As prediction computes them.
    """

    rows: np.ndarray
    keys: np.ndarray
    slots: np.ndarray
    x: np.ndarray
    w: np.ndarray
    linear: np.ndarray
    pairs: np.ndarray
    margins: np.ndarray


def contributions(
    loaded: LoadedModel, block: Block, schema: Schema, order: np.ndarray
) -> Contributions:
    """What the features of the rows ``order`` of a block, int64[k], add to their margins."""
    model = loaded.model
    batch = BlockBatches(block, schema, model.partition_bits).minibatch(order)
    row_of = np.repeat(np.arange(batch.rows), np.diff(batch.indptr))
    keys = batch.keys[batch.index]
    weights = loaded.partitions.peek(tuple(s.keys for s in model.key_sets(batch)))[0]
    own = weights[batch.index].astype(np.float64)
    x = batch.values.astype(np.float64)
    vx = own[:, 1:] * x[:, None]
    sums = np.zeros((batch.rows, model.dim))
    np.add.at(sums, row_of, vx)
    pairs = (vx * (sums[row_of] - vx)).sum(axis=1) / 2
    return Contributions(
        row_of,
        keys,
        _slots(block, schema, order[row_of], keys),
        batch.values,
        weights[batch.index, 0],
        own[:, 0] * x,
        pairs,
        loaded.margins(batch),
    )


def _slots(block: Block, schema: Schema, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The slot of each key in its row of the block, numbers behind the slots."""
    distinct, width = len(block.keys), block.counts.shape[1]
    by_key = np.argsort(block.keys)
    number = by_key[np.searchsorted(block.keys, keys, sorter=by_key)]
    sizes = block.counts.reshape(-1).astype(np.int64)
    cells = np.repeat(np.arange(len(sizes)), sizes)
    codes = (cells // width) * distinct + block.index if width else np.empty(0, np.int64)
    order = np.argsort(codes, kind="stable")
    first_dense = distinct - len(schema.dense)
    slots = len(schema.slots) + number - first_dense
    sparse = number < first_dense
    at = np.searchsorted(codes, rows[sparse] * distinct + number[sparse], sorter=order)
    slots[sparse] = cells[order[at]] % width
    return slots


def explain_row(
    loaded: LoadedModel,
    path: Path,
    row: int,
    dictionary: Dictionary,
    format: str = "auto",
    labels: str = "optional",
) -> dict[str, Any]:
    """Why a row of a file has the score that it has.

    Parameters
    ----------
    loaded
    path
        A file as ``predict`` reads it.
    row
        Its number among the rows of the file, from 1.
    dictionary

    Returns
    -------
    dict
        ``row``, ``file``, ``id``, ``label`` (None where there is none), ``margin``,
        ``probability``, ``intercept``; ``features``, the greatest contributions first, each with
        ``key``, ``field`` (its slot), ``name``, ``value``, ``w``, ``linear``, ``pairs`` and
        ``contribution``; and ``rounding``, what the margin, a float32, lacks of their sum.

    Raises
    ------
    ConfigError
        The file has fewer rows.
    DataError
        As ``predict``.
    """
    before = 0
    for block, schema in blocks(loaded, [path], format=format, labels=labels):
        if row <= before + block.rows:
            at = np.array([row - before - 1], np.int64)
            found = contributions(loaded, block, schema, at)
            head = {"row": row, "file": str(path), "id": _id(block, int(at[0]))}
            label = float(block.labels[at[0]])
            head["label"] = None if np.isnan(label) else label
            return head | _explained(loaded, found, _names(schema), dictionary)
        before += block.rows
    what = f"no row {row:,}: the file has {before:,} rows"
    raise ConfigError(what, where="--row", hint="rows are counted from 1")


def _id(block: Block, row: int) -> str | None:
    return None if block.ids is None else texts(block.ids)[row]


def _names(schema: Schema) -> tuple[str, ...]:
    return (*schema.slots, *schema.dense)


def _explained(
    loaded: LoadedModel, found: Contributions, slots: Sequence[str], dictionary: Dictionary
) -> dict[str, Any]:
    total = found.linear + found.pairs
    order = np.lexsort((found.keys, -np.abs(total)))
    intercept, margin = intercept_of(loaded), float(found.margins[0])
    names = dictionary.of_keys(found.keys)
    features = [
        {
            "key": int(found.keys[i]),
            "field": slots[found.slots[i]],
            "name": names[i],
            "value": float(found.x[i]),
            "w": float(found.w[i]),
            "linear": float(found.linear[i]),
            "pairs": float(found.pairs[i]),
            "contribution": float(total[i]),
        }
        for i in order.tolist()
    ]
    return {
        "margin": margin,
        "probability": float(sigmoid(margin)),
        "intercept": intercept,
        "features": features,
        "rounding": margin - (intercept + float(total.sum())),
    }


def importance(
    loaded: LoadedModel, paths: Sequence[Path], format: str = "auto", labels: str = "optional"
) -> dict[str, Any]:
    """Fields by how differently they move the margins of the rows of some files, the most first.

    Returns
    -------
    dict
        ``rows``, and ``fields``. Of each slot or number: ``field``; ``spread``, the standard
        deviation over rows of what it adds to a margin; ``importance``, the mean over rows of the
        sum of |contribution| of its features; and the parts of that, ``linear`` of w x and
        ``pairs`` of ½ x v·(s - v x).

    Raises
    ------
    DataError
        As ``predict``.
    """
    rows, sums, names = 0, np.zeros((4, 0)), tuple[str, ...]()
    for block, schema in blocks(loaded, paths, format=format, labels=labels):
        rows += block.rows
        names = max(names, _names(schema), key=len)
        for order in _pieces(loaded, block):
            more = _sums(contributions(loaded, block, schema, order), len(names))
            more[:, : sums.shape[1]] += sums
            sums = more
    linear, pairs, added, squared = sums / max(rows, 1)
    spread = np.sqrt(np.maximum(squared - added * added, 0))
    fields: list[dict[str, Any]] = [
        {
            "field": name,
            "spread": float(spread[at]),
            "importance": float(linear[at] + pairs[at]),
            "linear": float(linear[at]),
            "pairs": float(pairs[at]),
        }
        for at, name in enumerate(names)
    ]
    fields.sort(key=lambda one: (-one["spread"], one["field"]))
    return {"rows": rows, "fields": fields}


def _sums(found: Contributions, fields: int) -> np.ndarray:
    """Of each field over rows: |w x|, |pairs|, its contribution and the square of that, [4, f]."""
    rows = len(found.margins)
    cell = found.rows * fields + found.slots
    added = np.bincount(cell, found.linear + found.pairs, rows * fields).reshape(rows, fields)
    parts = [np.bincount(found.slots, np.abs(p), fields) for p in (found.linear, found.pairs)]
    return np.stack([*parts, added.sum(axis=0), (added * added).sum(axis=0)])


def _pieces(loaded: LoadedModel, block: Block) -> Iterator[np.ndarray]:
    """The rows of a block, so many at a time that their vectors take bounded memory."""
    entries = max(len(block.index) // max(block.rows, 1), 1) + block.dense.shape[1]
    size = max(1, CELLS // (entries * (1 + loaded.model.dim)))
    for first in range(0, block.rows, size):
        yield np.arange(first, min(first + size, block.rows))
