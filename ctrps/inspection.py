"""What a model on disk has learned: figures of its table, weights by name, importance of fields.

It reads and computes; ``ctrps.cli_model`` shows. What the rows of a file get is
``ctrps.contributions``'s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.config import OptimizerBlock
from ctrps.dictionary import INTERCEPT, Dictionary, field_of
from ctrps.kernels.keys import partition_of
from ctrps.loaded import LoadedModel
from ctrps.models import INTERCEPT_KEY, STATES
from ctrps.remote import is_url
from ctrps.verify import model_home

QUANTILES = (0.5, 0.9, 0.99, 1.0)
"""Of which quantiles of |w|, of norms of v and of state are told."""

STATE = {"ftrl": ("z", "n"), "adagrad": ("n",), "sgd": (), "count": ()}
"""Names of the state's columns; n is a sum of squared gradients."""


@dataclass(frozen=True, slots=True)
class Weights:
    """All rows of a model but the intercept, in the order of partitions and keys.

    Attributes
    ----------
    keys : uint64[n]
    w : float32[n]
    norms : float32[n] or None
        Euclidean norm of v (fm).
    state : dict of str to float32[n]
        State of w's optimiser.
    per_partition : int64[P]
        Rows of each partition.
    """

    keys: np.ndarray
    w: np.ndarray
    norms: np.ndarray | None
    state: dict[str, np.ndarray]
    per_partition: np.ndarray

    @classmethod
    def of(cls, loaded: LoadedModel) -> Weights:
        """Copy what is needed out of a model, a partition at a time."""
        model, table = loaded.model, loaded.partitions.tables[0]
        kind = loaded.job.optimizer_for("w").kind
        columns = dict(zip(STATE[kind], range(1 + model.dim, 4 + model.dim), strict=False))
        parts, pieces, sizes = [], [], []
        for number in range(model.partitions):
            saved = table.partition(number, model.partition_bits)
            v = saved.rows[:, 1 : 1 + model.dim].astype(np.float64)
            norms = np.sqrt((v * v).sum(axis=1)).astype(np.float32)
            state = [saved.rows[:, at] for at in columns.values()]
            parts.append(saved.keys)
            pieces.append(np.stack([saved.rows[:, 0], norms, *state]))
            sizes.append(len(saved.keys))
        w, norms, *state = np.concatenate(pieces, axis=1)
        return cls(
            np.concatenate(parts),
            w,
            norms if model.dim else None,
            dict(zip(columns, state, strict=True)),
            np.array(sizes, np.int64),
        )

    @property
    def used(self) -> np.ndarray:
        """bool[n]: rows that change a score, for w or v is not zero."""
        used: np.ndarray = self.w != 0
        return used if self.norms is None else used | (self.norms != 0)


def summary(loaded: LoadedModel, weights: Weights) -> dict[str, Any]:
    """What the model is and holds, JSON-able.

    Returns
    -------
    dict
        ``model`` (kind, dim, parts of a row with their optimisers), ``position``, ``size_bytes``,
        ``keys`` and their spread over ``partitions``, ``intercept``, ``tables`` (quantiles of the
        absolute values of w, of v's norms and of w's state; shares that are not zero), ``digest``,
        ``data`` (slots and numbers of its rows), and the ``run`` that trained it where its summary
        is beside the model.
    """
    manifest, job = loaded.manifest, loaded.job
    parts = {
        part.name: _optimizer(part.optimizer) | {"width": part.width}
        for part in loaded.model.tables[0].parts
    }
    columns = {"w": weights.w, "v": weights.norms, **weights.state}
    per = weights.per_partition
    return {
        "folder": str(loaded.folder),
        "job": job.name,
        "kind": loaded.model.kind,
        "dim": loaded.model.dim,
        "parts": parts,
        "columns": loaded.model.tables[0].width,
        "checkpoint": manifest.checkpoint,
        "passes": manifest.pass_ + manifest.border,
        "steps_in_pass": manifest.step,
        "end_of_pass": manifest.border,
        "cut": manifest.cut,
        "keys": len(weights.keys),
        "used_keys": int(weights.used.sum()),
        "size_bytes": sum(file.size_bytes for file in manifest.files),
        "partitions": {"count": len(per), "least": int(per.min()), "most": int(per.max())},
        "intercept": intercept_of(loaded),
        "tables": {name: _figures(c) for name, c in columns.items() if c is not None},
        "data": {
            "slots": len(loaded.schema.slots),
            "numbers": len(loaded.schema.dense),
            "weights": loaded.schema.weights,
            "extracted": bool(loaded.schema.features),
        },
        "model_digest": manifest.model_digest,
        "run": _run(loaded),
    }


def _optimizer(block: OptimizerBlock) -> dict[str, Any]:
    return {key: value for key, value in block.model_dump().items() if key == "kind" or value}


def intercept_of(loaded: LoadedModel) -> float:
    """The weight that every row has."""
    key = np.array([INTERCEPT_KEY], np.uint64)
    return float(loaded.partitions.tables[1].weights(key, absent_initial=False)[0, 0])


def _figures(column: np.ndarray) -> dict[str, Any]:
    size = np.abs(column)
    quantiles = np.quantile(size, QUANTILES).tolist() if len(size) else [0.0] * len(QUANTILES)
    return {
        "nonzero": int((size != 0).sum()),
        "quantiles": {f"{q:g}": value for q, value in zip(QUANTILES, quantiles, strict=True)},
    }


def _run(loaded: LoadedModel) -> dict[str, Any] | None:
    """The summary of the run whose folder the model lies in, if it tells of this model."""
    if is_url(str(loaded.folder)):
        return None
    path = loaded.folder.absolute().parent / "summary.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    mine = isinstance(found, dict) and found.get("model_digest") == loaded.manifest.model_digest
    return found if mine else None


def coverage(weights: Weights, names: Sequence[str | None]) -> dict[str, Any]:
    """How many of the keys that change scores have a name; ``names`` is of all keys."""
    used = [name for name, is_used in zip(names, weights.used.tolist(), strict=True) if is_used]
    count = sum(name is not None for name in used)
    return {"used_keys": len(used), "named": count, "share": count / len(used) if used else None}


def top(
    weights: Weights,
    dictionary: Dictionary,
    names: Sequence[str | None],
    most: int,
    field: str | None = None,
) -> list[dict[str, Any]]:
    """Features with the largest |w|, at most ``most``, of all or of one field; equal ones by key.

    Each is ``{"key", "name", "field", "w", "count"}``, of fm with ``v_norm``; ``count`` is None
    without files of names.
    """
    chosen = np.arange(len(weights.keys))
    if field is not None:
        chosen = np.array(
            [i for i, name in enumerate(names) if name is not None and field_of(name) == field],
            np.int64,
        )
    order = np.lexsort((weights.keys[chosen], -np.abs(weights.w[chosen])))
    chosen = chosen[order[:most]]
    counts = dictionary.counts(weights.keys[chosen]).tolist() if dictionary.names else None
    return [
        {
            "key": int(weights.keys[i]),
            "name": names[i],
            "field": None if (name := names[i]) is None else field_of(name),
            "w": float(weights.w[i]),
            "count": counts[number] if counts else None,
        }
        | ({} if weights.norms is None else {"v_norm": float(weights.norms[i])})
        for number, i in enumerate(chosen.tolist())
    ]


def importance(
    weights: Weights, dictionary: Dictionary, names: Sequence[str | None]
) -> list[dict[str, Any]]:
    """Slots by importance, the greatest first; empty without files of names.

    The importance of field f is the sum of count · |w| over its keys, divided by the rows that
    were counted: how far f moves a score on average, as log-odds, if it has one value in a row.
    Of a slot of n values each weighs 1/n, so there it is too great. FM's vectors do not count, and
    numbers have no count: ``contributions.importance`` measures all on rows.
    """
    if dictionary.names is None:
        return []
    rows = max(dictionary.names.counted_rows, 1)
    moved = dictionary.counts(weights.keys) * np.abs(weights.w.astype(np.float64)) / rows
    numbers: dict[str, int] = {}
    dense = {*dictionary.schema.dense}
    of = np.array(
        [
            -1
            if name is None or name in dense
            else numbers.setdefault(field_of(name), len(numbers))
            for name in names
        ]
    )
    known, size = of >= 0, len(numbers)
    sums = np.bincount(of[known], moved[known], size)
    keys = np.bincount(of[known], minlength=size)
    used = np.bincount(of[known & weights.used], minlength=size)
    found = [
        {
            "field": field,
            "importance": float(sums[at]),
            "keys": int(keys[at]),
            "used_keys": int(used[at]),
        }
        for field, at in numbers.items()
    ]
    return sorted(found, key=lambda one: (-one["importance"], one["field"]))


def feature(loaded: LoadedModel, dictionary: Dictionary, text: str) -> dict[str, Any]:
    """One feature by name: its key, weights, optimiser state, and how often it was counted.

    A feature that the model does not hold has ``held`` false; it counts as zero.

    Raises
    ------
    ConfigError
        No feature of this model can be called so.
    """
    tables = loaded.partitions.tables
    keys = np.array(dictionary.keys_of(text), np.uint64)
    number = 1 if text == INTERCEPT else 0
    held = tables[number].find(keys) != 0
    key = keys[int(held.argmax())]
    found = {"feature": text, "key": int(key), "held": bool(held.any())}
    counts = dictionary.counts(np.array([key], np.uint64))
    found["count"] = int(counts[0]) if dictionary.names and number == 0 else None
    if not held.any():
        return found
    spec = loaded.model.tables[number]
    row = _row(loaded, number, key)
    at = spec.dim
    for part in spec.parts:
        width, kind = part.width, part.optimizer.kind
        name = "w" if text == INTERCEPT else part.name
        found[name] = _plain(row[part.at : part.at + width])
        states = [row[at + i * width : at + (i + 1) * width] for i in range(STATES[kind])]
        found |= {
            f"{name}.{column}": _plain(state)
            for column, state in zip(STATE[kind], states, strict=True)
        }
        at += STATES[kind] * width
    return found


def _row(loaded: LoadedModel, table: int, key: np.uint64) -> np.ndarray:
    """All columns of the row of a key that is held, float32[width]."""
    place = np.empty(1, np.int32)
    partition_of(np.array([key], np.uint64), loaded.model.partition_bits, place)
    saved = loaded.partitions.tables[table].partition(int(place[0]), loaded.model.partition_bits)
    row: np.ndarray = saved.rows[np.searchsorted(saved.keys, key)]
    return row


def _plain(values: np.ndarray) -> float | list[float]:
    found = [float(value) for value in values]
    return found[0] if len(found) == 1 else found


def model_at(home: str | Path) -> LoadedModel:
    """Open the model of a folder of a run or of a model, or at a URL."""
    return LoadedModel.open(model_home(home))
