"""A gradient that is not finite: say where it comes from, and save the batch to run it again.

Training stops at the first one. What a person needs is the rows, the keys and the fields, and the
very numbers that went in; so the batch is saved with the weights that were pulled for it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ctrps import models
from ctrps.codec import CodecError, FrameFile, FrameFileWriter
from ctrps.config import JobConfig
from ctrps.errors import DataError
from ctrps.kernels import checks
from ctrps.models import Gradient, Minibatch, Model
from ctrps.ps.plan import BatchRef
from ctrps.runtime.inputs import BatchReader

KIND = "batch"
SHOWN = 3
"""Rows and keys that a message names."""

ARRAYS = ("keys", "starts", "counts", "indptr", "index", "values", "labels")


@dataclass(frozen=True)
class Findings:
    """What is not finite in a batch.

    Attributes
    ----------
    rows : list of int
        Positions in the batch of rows whose margin is not finite.
    keys : list of int
        Keys whose gradient is not finite.
    weights : list of int
        Keys whose weights were not finite before.
    """

    rows: list[int]
    keys: list[int]
    weights: list[int]


def finite(result: Gradient) -> bool:
    """Whether a gradient can be pushed."""
    return all(checks.finite(checks.bits(g)) for g in result.tables)


def find(batch: Minibatch, weights: tuple[np.ndarray, ...], result: Gradient) -> Findings:
    """Where the numbers of a batch are not finite."""
    return Findings(
        np.flatnonzero(~np.isfinite(result.margins)).tolist(),
        batch.keys[~np.isfinite(result.tables[0]).all(axis=1)].tolist(),
        batch.keys[~np.isfinite(weights[0]).all(axis=1)].tolist(),
    )


def stop(
    job: JobConfig,
    reader: BatchReader,
    name: tuple[int, int, int],
    ref: BatchRef,
    batch: Minibatch,
    weights: tuple[np.ndarray, ...],
    result: Gradient,
) -> DataError:
    """Save the batch and make the error that names it.

    Parameters
    ----------
    name
        Pass, lane and number of the batch.
    """
    reader = reader.another()
    found = find(batch, weights, result)
    pass_, lane, number = name
    folder = job.output.dir / "bad"
    folder.mkdir(exist_ok=True)
    path = folder / f"pass{pass_}-lane{lane}-batch{number}.batch"
    source, before = reader.source(ref)
    rows = before + 1 + reader.row_numbers(pass_, ref)
    fields = {key: reader.fields(ref, key) for key in found.keys[:SHOWN]}
    meta = {
        "job": job.dump_yaml(),
        "name": list(name),
        "file": source,
        "fields": {str(key): names for key, names in fields.items()},
    }
    with FrameFileWriter(path, KIND) as writer:
        writer.append("batch", [getattr(batch, part) for part in ARRAYS])
        writer.append("weights", list(weights))
        writer.append("rows", [rows])
        writer.close(meta)
    shown = [f"{int(rows[r])}" for r in found.rows[:SHOWN]]
    keys = [f"{key}{_in_fields(names)}" for key, names in fields.items()]
    return DataError(
        f"the gradient of pass {pass_} lane {lane} batch {number} is not finite: "
        f"rows {_list(shown, len(found.rows))}, keys {_list(keys, len(found.keys))}",
        where=source,
        hint=f"see `ctrps replay {path}`; look for huge values there, or lower the rate",
        id="E-NONFINITE",
    )


def _in_fields(names: list[str]) -> str:
    named = [name for name in names if name]
    return f" ({', '.join(named)})" if named else ""


def _list(shown: list[str], count: int) -> str:
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return (", ".join(shown) or "none") + more


def replay(path: Path) -> dict[str, Any]:
    """Compute a saved batch again and say what is not finite.

    Raises
    ------
    DataError
        The file is not a saved batch.
    """
    try:
        file = FrameFile(path, KIND)
        batch = Minibatch(*file.read(0)[1])
        weights = tuple(file.read(1)[1])
        rows = file.read(2)[1][0]
    except FileNotFoundError:
        raise DataError("no such file", where=str(path), id="E-DATA-MISSING") from None
    except (CodecError, TypeError, IndexError) as error:
        what = error.what if isinstance(error, CodecError) else "it does not hold a batch"
        raise DataError(what, where=str(path)) from None
    job = JobConfig.model_validate(yaml.safe_load(file.meta["job"]))
    result = models.build(job).gradient(batch, weights)
    found = find(batch, weights, result)
    return {
        "name": dict(zip(("pass", "lane", "batch"), file.meta["name"], strict=True)),
        "file": file.meta["file"],
        "rows": batch.rows,
        "loss_sum": result.loss_sum if np.isfinite(result.loss_sum) else None,
        "finite": finite(result),
        "bad_rows": [_row(batch, weights, result, r, int(rows[r])) for r in found.rows],
        "bad_keys": [
            {"key": key, "fields": file.meta["fields"].get(str(key), [])} for key in found.keys
        ],
        "bad_weights": found.weights,
    }


def _row(
    batch: Minibatch, weights: tuple[np.ndarray, ...], result: Gradient, row: int, number: int
) -> dict[str, Any]:
    """One row: its label, margin, and the entries with the largest values."""
    entries = slice(int(batch.indptr[row]), int(batch.indptr[row + 1]))
    values, keys = batch.values[entries], batch.keys[batch.index[entries]]
    largest = np.argsort(-np.abs(values), kind="stable")[:SHOWN]
    return {
        "row": number,
        "label": float(batch.labels[row]),
        "margin": str(result.margins[row]),
        "largest": [{"key": int(keys[i]), "value": float(values[i])} for i in largest],
    }


def checked(
    model: Model,
    job: JobConfig,
    reader: BatchReader,
    name: tuple[int, int, int],
    ref: BatchRef,
    batch: Minibatch,
    weights: tuple[np.ndarray, ...],
) -> Gradient:
    """The gradient of a batch; ``DataError``, and the batch saved, if it is not finite."""
    result = model.gradient(batch, weights)
    if not finite(result):
        raise stop(job, reader, name, ref, batch, weights, result)
    return result
