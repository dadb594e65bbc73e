"""Two models beside each other, key by key; and one model with another number of partitions.

Both take the rows of a part of the key space at a time, a partition of the model that has fewer,
so memory holds that part of each model and never the whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ctrps import checkpoint
from ctrps.checkpoint import MANIFEST, Checkpoint, Manifest, PartitionFile, Rows, Saved
from ctrps.errors import CheckpointError, ConfigError
from ctrps.kernels import keys as key_kernels
from ctrps.loaded import job_of
from ctrps.ps.progress import NO_PROGRESS


@dataclass(slots=True)
class TableDifference:
    """How the rows of one table differ between models A and B.

    Attributes
    ----------
    keys : int
        That both have.
    only_a, only_b : int
        Keys of one alone.
    changed : int
        Common keys whose weights or optimiser state differ in any bit.
    weights : int
        Weights compared; 0 if the rows of A and B have other weights.
    largest, total : float
        The largest absolute difference of two weights, and the sum of all.
    """

    name: str
    keys: int = 0
    only_a: int = 0
    only_b: int = 0
    changed: int = 0
    weights: int = 0
    largest: float = 0.0
    total: float = 0.0

    @property
    def mean(self) -> float:
        """Mean absolute difference of two weights."""
        return self.total / self.weights if self.weights else 0.0

    @property
    def equal(self) -> bool:
        return not (self.only_a or self.only_b or self.changed)


@dataclass(frozen=True, slots=True)
class Difference:
    """How two models differ.

    Attributes
    ----------
    settings : dict
        Dotted key -> its values in A and B, None where it has none.
    tables : list of TableDifference
    equal : bool
        Whether the same scores follow, to the bit, from the same rows: the settings that fix what
        rows mean are equal, but for the number of partitions, and so is every row.
    """

    settings: dict[str, tuple[Any, Any]]
    tables: list[TableDifference]
    equal: bool


def diff(folder_a: Path, folder_b: Path) -> Difference:
    """Compare two models, every checksum verified."""
    a, b = Checkpoint(folder_a), Checkpoint(folder_b)
    settings = _differing(a.manifest, b.manifest)
    names = dict.fromkeys(name for one in (a, b) for name, *_ in one.manifest.tables)
    tables = {name: TableDifference(name) for name in names}
    dims = [{name: (dim, width) for name, dim, width in one.manifest.tables} for one in (a, b)]
    parts = min(a.partitions, b.partitions)
    for part in range(parts):
        rows = [_tables(one.manifest, _part(one, part, parts)) for one in (a, b)]
        for name, table in tables.items():
            shapes = [dim.get(name, (0, 0)) for dim in dims]
            nothing = [
                Rows(np.empty(0, np.uint64), np.empty((0, w), np.float32)) for _, w in shapes
            ]
            _compare(table, rows[0].get(name, nothing[0]), rows[1].get(name, nothing[1]), shapes)
    meanings = [dict(one.manifest.model) | {"partitions": None} for one in (a, b)]
    equal = meanings[0] == meanings[1]
    return Difference(settings, [*tables.values()], equal and all(t.equal for t in tables.values()))


def _compare(table: TableDifference, a: Rows, b: Rows, shapes: list[tuple[int, int]]) -> None:
    keys, in_a, in_b = np.intersect1d(a.keys, b.keys, assume_unique=True, return_indices=True)
    table.keys += len(keys)
    table.only_a += len(a.keys) - len(keys)
    table.only_b += len(b.keys) - len(keys)
    rows_a, rows_b = a.rows[in_a], b.rows[in_b]
    if shapes[0] != shapes[1]:
        table.changed += len(keys)
    else:
        table.changed += int((rows_a.view(np.uint32) != rows_b.view(np.uint32)).any(axis=1).sum())
    dim = shapes[0][0]
    if dim == shapes[1][0] and len(keys):
        apart = np.abs(rows_a[:, :dim].astype(np.float64) - rows_b[:, :dim])
        table.weights += apart.size
        table.largest = max(table.largest, float(apart.max()))
        table.total += float(apart.sum())


def _differing(a: Manifest, b: Manifest) -> dict[str, tuple[Any, Any]]:
    """Settings of models and jobs, and positions, that are not the same in both."""
    flat = [dict(_flat(_stated(one))) for one in (a, b)]
    keys = sorted({*flat[0], *flat[1]})
    both = {key: (flat[0].get(key), flat[1].get(key)) for key in keys}
    return {key: values for key, values in both.items() if values[0] != values[1]}


def _stated(manifest: Manifest) -> dict[str, Any]:
    try:
        job = yaml.safe_load(manifest.job)
    except (yaml.YAMLError, RecursionError):
        job = {}
    position = {"pass": manifest.pass_, "step": manifest.step, "border": manifest.border}
    own = {"position": position, "rows": manifest.data, "key_hash": manifest.model.get("key_hash")}
    return own | (job if isinstance(job, dict) else {})


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), value


def reshard(folder: Path, partitions: int, out: Path) -> Manifest:
    """Write the model of ``folder`` with another number of partitions into an empty folder.

    Rows are the same to the bit, and so are scores and whatever training goes on to.

    Raises
    ------
    ConfigError
        ``partitions`` is no power of two up to 256.
    CheckpointError
        The model is damaged; or it was saved inside a pass of a mode that does not wait, its
        partitions hold other batches, and they would have to be joined.
    """
    if not 1 <= partitions <= 256 or partitions & (partitions - 1):
        what = f"must be a power of two, 1 to 256, found {partitions}"
        raise ConfigError(what, where="--partitions")
    opened = Checkpoint(folder)
    manifest = opened.manifest
    job = job_of(manifest, str(folder / MANIFEST))
    job = job.model_copy(update={"train": job.train.model_copy(update={"partitions": partitions})})
    out.mkdir(parents=True, exist_ok=True)
    files: list[PartitionFile] = []
    parts = min(opened.partitions, partitions)
    for part in range(parts):
        saved = _part(opened, part, parts)
        notes = _joined_notes([one.notes for one in saved], str(folder))
        pieces = _split(_tables(manifest, saved), partitions, part, partitions // parts)
        for number, tables in pieces:
            files.append(
                checkpoint.write_partition(out, number, manifest.checkpoint, 0, 0, tables, notes)
            )
            notes = [*notes[:1], *NO_PROGRESS][: len(notes)]
    model = manifest.model | {"partitions": partitions}
    whole = replace(manifest, model=model, job=job.dump_yaml(), files=tuple(files))
    return checkpoint.commit(out, whole)


def _part(opened: Checkpoint, part: int, parts: int) -> list[Saved]:
    """The partitions that make up part ``part`` of ``parts`` of the key space."""
    each = opened.partitions // parts
    return [opened.read(number) for number in range(part * each, (part + 1) * each)]


def _tables(manifest: Manifest, saved: list[Saved]) -> dict[str, Rows]:
    """The rows of some partitions by table, keys ascending."""
    tables = {}
    for number, (name, *_) in enumerate(manifest.tables):
        keys = np.concatenate([one.tables[number].keys for one in saved])
        rows = np.concatenate([one.tables[number].rows for one in saved])
        order = np.argsort(keys)
        tables[name] = Rows(keys[order], rows[order]) if len(saved) > 1 else Rows(keys, rows)
    return tables


def _split(
    tables: dict[str, Rows], partitions: int, part: int, pieces: int
) -> Iterator[tuple[int, list[tuple[str, np.ndarray, np.ndarray]]]]:
    """The rows of a part as ``pieces`` partitions of ``partitions``, with their numbers."""
    bits = partitions.bit_length() - 1
    grouped = {}
    for name, (keys, rows) in tables.items():
        order, starts = np.empty(len(keys), np.int64), np.empty(partitions + 1, np.int32)
        key_kernels.grouped(keys, bits, order, starts)
        grouped[name] = keys, rows, order, starts
    for number in range(part * pieces, (part + 1) * pieces):
        piece = []
        for name, (keys, rows, order, starts) in grouped.items():
            chosen = order[starts[number] : starts[number + 1]]
            piece.append((name, keys[chosen], rows[chosen]))
        yield number, piece


def _joined_notes(notes: list[list[np.ndarray]], where: str) -> list[np.ndarray]:
    """Marks, which must be the same, and the sums of the progress of partitions."""
    if not all(notes):
        return []
    marks, *progress = zip(*notes, strict=True)
    if any(not np.array_equal(marks[0], other) for other in marks[1:]):
        what = "its partitions hold other batches each, as it was saved inside a pass"
        hint = "take the checkpoint of the end of a pass, or more partitions than it has"
        raise CheckpointError(what, where=where, hint=hint)
    loss_sums, histograms = progress
    counted = [histogram for histogram in histograms if len(histogram)]
    histogram = np.sum(counted, axis=0) if counted else histograms[0]
    return [marks[0], np.sum(loss_sums, axis=0), histogram]
