"""A model as a file for other programs, and the proof that such a file gives the same scores.

``text`` has a line per key, ``npz`` holds arrays, ``vw`` is text that Vowpal Wabbit makes the same
model of. Rows of zeros, which change no score, and the state of optimisers are left out.

The check reads the file back with nothing of what wrote it: numpy alone, and the formula of the
model written out once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

import numpy as np

from ctrps.data.batches import BlockBatches
from ctrps.data.textout import new_file
from ctrps.errors import ConfigError, DataError
from ctrps.inspection import intercept_of
from ctrps.kernels import losses
from ctrps.loaded import LoadedModel
from ctrps.models import INTERCEPT_KEY, Minibatch
from ctrps.predict import blocks

LIMIT = 1e-6
"""How far two scores of a row may be apart."""

CHECKED_ROWS = 1000

CHUNK = 1 << 16
"""Rows of the model that become text at a time."""

VW_COMMAND = (
    "vw -d {0} -f {0}.model --noconstant -b 61 --sparse_weights --sgd -l 0.5 --power_t 0 "
    "--loss_function squared --min_prediction -1000 --max_prediction 1000"
)
"""Makes VW's model of a file: from weight 0, one step of this rate on half the squared error of
an example ``label | key:1`` leaves the label as the weight of its key."""


class Arrays(NamedTuple):
    """A model as arrays.

    Attributes
    ----------
    keys : uint64[n]
        Ascending.
    w : float32[n]
    v : float32[n, dim]
    intercept : float32
    """

    keys: np.ndarray
    w: np.ndarray
    v: np.ndarray
    intercept: np.float32


def arrays_of(loaded: LoadedModel) -> Arrays:
    """The weights of all keys that change a score."""
    model, table = loaded.model, loaded.partitions.tables[0]
    keys, weights = [], []
    for number in range(model.partitions):
        saved = table.partition(number, model.partition_bits)
        rows = saved.rows[:, : table.spec.dim]
        used = (rows != 0).any(axis=1)
        keys.append(saved.keys[used])
        weights.append(rows[used])
    every, found = np.concatenate(keys), np.concatenate(weights)
    order = np.argsort(every)
    found = found[order]
    return Arrays(every[order], found[:, 0], found[:, 1:], np.float32(intercept_of(loaded)))


def export(loaded: LoadedModel, out: Path | BinaryIO, to: str) -> dict[str, Any]:
    """Write a model to a file, which takes its new content whole or keeps the old one.

    Parameters
    ----------
    loaded
    out
        A path; or, for text, a stream, whose errors are the caller's.
    to
        ``text``, ``npz`` or ``vw``.

    Returns
    -------
    dict
        ``format``, ``kind``, ``keys`` written, and ``left_out`` because they are zero.

    Raises
    ------
    ConfigError
        The format cannot say what the model is: VW has no factorization machine of this kind; or
        it cannot be written from front to back.
    DataError
        The file cannot be written, for lack of room, say.
    """
    if to == "vw" and loaded.model.dim:
        what = f"vw cannot hold a model of kind {loaded.model.kind}"
        raise ConfigError(what, where="--to", hint="use text or npz, or a model of kind lr")
    arrays = arrays_of(loaded)
    if isinstance(out, Path):
        with new_file(out) as file:
            WRITERS[to](file, arrays, loaded)
    elif to == "npz":
        hint = "name a file: it is not written from front to back"
        raise ConfigError("npz cannot go to standard output", where="--out", hint=hint)
    else:
        WRITERS[to](out, arrays, loaded)
    return {
        "format": to,
        "kind": loaded.model.kind,
        "keys": len(arrays.keys),
        "left_out": loaded.partitions.tables[0].used - len(arrays.keys),
    }


def _write_text(file: BinaryIO, arrays: Arrays, loaded: LoadedModel) -> None:
    dim = arrays.v.shape[1]
    names = " ".join(["key", "w", *(f"v{i}" for i in range(1, dim + 1))])
    head = f"# ctrps {loaded.model.kind} dim {dim} {loaded.manifest.model_digest}\n"
    file.write(f"{head}# intercept {arrays.intercept!s}\n# {names}\n".encode())
    for keys, numbers in _chunks(arrays):
        lines = zip(keys, numbers, strict=True)
        file.write("".join(f"{key} {' '.join(row)}\n" for key, row in lines).encode())


def _write_vw(file: BinaryIO, arrays: Arrays, loaded: LoadedModel) -> None:
    file.write(f"{arrays.intercept!s} | {INTERCEPT_KEY}:1\n".encode())
    for keys, numbers in _chunks(arrays):
        lines = zip(keys, numbers, strict=True)
        file.write("".join(f"{w} | {key}:1\n" for key, (w,) in lines).encode())


def _chunks(arrays: Arrays) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Some keys at a time, with the shortest texts that read back to the same float32."""
    for first in range(0, len(arrays.keys), CHUNK):
        part = slice(first, first + CHUNK)
        weights = np.concatenate([arrays.w[part, None], arrays.v[part]], axis=1)
        yield arrays.keys[part].tolist(), weights.astype(str).tolist()


def _write_npz(file: BinaryIO, arrays: Arrays, loaded: LoadedModel) -> None:
    schema = loaded.schema
    found: dict[str, Any] = arrays._asdict()
    if not loaded.model.dim:
        del found["v"]
    for name, text in (
        ("kind", loaded.model.kind),
        ("digest", loaded.manifest.model_digest),
        ("slots", schema.slots),
        ("numbers", schema.dense),
    ):
        found[name] = np.array(text, np.str_)
    np.savez(file, **found)


WRITERS: dict[str, Callable[[BinaryIO, Arrays, LoadedModel], None]] = {
    "text": _write_text,
    "npz": _write_npz,
    "vw": _write_vw,
}


def read_back(path: Path, to: str) -> Arrays:
    """Read an exported file as a stranger would, by its description and numpy."""
    if to == "npz":
        with np.load(path, allow_pickle=False) as file:
            w = file["w"]
            v = file["v"] if "v" in file else np.empty((len(w), 0), np.float32)
            return Arrays(file["keys"], w, v, file["intercept"][()])
    with open(path, encoding="ascii") as file:
        return _read_vw(file) if to == "vw" else _read_text(file)


def _read_vw(file: TextIO) -> Arrays:
    (intercept, _), *rest = (line.removesuffix(":1\n").split(" | ") for line in file)
    keys = np.array([int(key) for _, key in rest], np.uint64)
    w = np.array([float(weight) for weight, _ in rest], np.float32)
    return Arrays(keys, w, np.empty((len(w), 0), np.float32), np.float32(intercept))


def _read_text(file: TextIO) -> Arrays:
    head = [file.readline().split() for _ in range(3)]
    columns = [("key", "u8"), *((name, "f4") for name in head[2][2:])]
    lines = file.readlines()
    rows = np.loadtxt(lines, columns, ndmin=1) if lines else np.empty(0, columns)
    v = [rows[name] for name, _ in columns[2:]]
    w = rows["w"]
    return Arrays(
        rows["key"], w, np.stack(v, axis=1) if v else np.empty((len(w), 0)), np.float32(head[1][2])
    )


def check(
    loaded: LoadedModel,
    path: Path,
    to: str,
    data: Sequence[Path],
    format: str = "auto",
    labels: str = "optional",
) -> dict[str, Any]:
    """Score rows by the model and by a file made of it.

    Parameters
    ----------
    loaded, path, to
        As for ``export``.
    data
        Files; their first ``CHECKED_ROWS`` rows are scored.

    Returns
    -------
    dict
        ``rows``, and ``difference``: the largest of two scores of a row.

    Raises
    ------
    DataError
        There are no rows, or scores differ by more than ``LIMIT``.
    """
    arrays = read_back(path, to)
    rows, difference = 0, 0.0
    for block, schema in blocks(loaded, data, format=format, labels=labels):
        order = np.arange(min(block.rows, CHECKED_ROWS - rows))
        batch = BlockBatches(block, schema, loaded.model.partition_bits).minibatch(order)
        ours = np.empty(batch.rows, np.float64)
        losses.sigmoid_rows(loaded.margins(batch), ours)
        theirs = 1 / (1 + np.exp(-_margins(arrays, batch)))
        rows += batch.rows
        difference = max(difference, float(np.abs(ours - theirs).max(initial=0.0)))
        if rows >= CHECKED_ROWS:
            break
    if not rows:
        raise DataError("there are no rows to check", where=str(data[0]))
    if not difference <= LIMIT:
        what = f"its scores of {rows:,} rows differ from the model's by up to {difference:.3g}"
        raise DataError(what, where=str(path), hint=f"at most {LIMIT:g} is right: do not use it")
    return {"rows": rows, "difference": difference}


def _margins(arrays: Arrays, batch: Minibatch) -> np.ndarray:
    """Log-odds of rows by the formula of the model, float64[rows]."""
    at = np.minimum(np.searchsorted(arrays.keys, batch.keys), max(len(arrays.keys) - 1, 0))
    held = arrays.keys[at] == batch.keys if len(arrays.keys) else np.zeros(len(at), bool)
    w = np.zeros(len(batch.keys))
    v = np.zeros((len(batch.keys), arrays.v.shape[1]))
    w[held], v[held] = arrays.w[at[held]], arrays.v[at[held]]
    margins = np.empty(batch.rows)
    for row in range(batch.rows):
        mine = slice(batch.indptr[row], batch.indptr[row + 1])
        index, x = batch.index[mine], batch.values[mine].astype(float)
        vx = v[index] * x[:, None]
        pairs = ((vx.sum(axis=0) ** 2).sum() - (vx**2).sum()) / 2
        margins[row] = float(arrays.intercept) + w[index] @ x + pairs
    return margins
