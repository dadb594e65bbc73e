"""Rows of partitions to files, files to a committed model, and back: what train and cluster share.

What early stopping has seen comes back too, from the figures that the run has written.
"""

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ctrps import checkpoint
from ctrps.checkpoint import Checkpoint, Manifest, PartitionFile
from ctrps.codec import CodecError, FrameFile, FrameFileWriter
from ctrps.data.shards import Schema
from ctrps.errors import CheckpointError, CtrpsWarning
from ctrps.models import Model
from ctrps.ps.job import EarlyStop
from ctrps.ps.journal import Journal
from ctrps.ps.partition import NO_MARKS, PartitionState
from ctrps.ps.progress import NO_PROGRESS
from ctrps.ps.table import RowSet
from ctrps.runtime.rundir import RunFolder

JOURNAL = "journal"
"""The file of a run in which its scheduler keeps what it must not forget."""


def write_partitions(
    folder: Path,
    model: Model,
    states: dict[int, PartitionState],
    number: int,
    view: int,
    node: int,
) -> list[PartitionFile]:
    """Write the partitions that a process owns, of checkpoint ``number``."""
    names = [table.name for table in model.tables]
    return [
        checkpoint.write_partition(
            folder,
            partition,
            number,
            view,
            node,
            [(name, *saved) for name, saved in zip(names, state.tables, strict=True)],
            [state.marks, *state.progress],
        )
        for partition, state in sorted(states.items())
    ]


def read_partitions(
    folder: Path, partitions: Iterable[int], pass_: int
) -> dict[int, PartitionState]:
    """Read partitions of the committed model, every checksum verified, to go on in ``pass_``.

    Marks and progress belong to a pass: those of another one are left out.
    """
    opened = Checkpoint(folder)
    same_pass = opened.manifest.pass_ == pass_
    nothing: list[np.ndarray] = [NO_MARKS, *NO_PROGRESS]
    states = {}
    for number in partitions:
        saved = opened.read(number)
        notes = saved.notes if same_pass else nothing
        tables = [RowSet(*rows) for rows in saved.tables]
        states[number] = PartitionState(tables, notes[0], notes[1:])
    return states


def remember(run: Path, journal: Journal | None) -> None:
    """Write the scheduler's journal, whole and durable; with None the job is over."""
    path = run / JOURNAL
    if journal is None:
        path.unlink(missing_ok=True)
        return
    with FrameFileWriter(path, JOURNAL) as file:
        file.close({"state": journal.pack()})


def remembered(run: Path) -> Journal | None:
    """The journal of a job that is not over; None if there is none that can be read."""
    try:
        return Journal.unpack(FrameFile(run / JOURNAL, JOURNAL).meta.get("state"))
    except (FileNotFoundError, CodecError):
        return None


def commit(
    folder: RunFolder,
    model: Model,
    schema: Schema,
    plan: str,
    files: list[PartitionFile],
    position: tuple[int, int, int],
    border: bool,
) -> Manifest:
    """Make the model of ``files`` the run's model; ``position`` is checkpoint, pass and step."""
    train = folder.job.train
    exact = border or train.consistency == "sync" or train.fused
    manifest = replace(
        folder.manifest(schema, plan, *position, border),
        tables=[[table.name, table.dim, table.width] for table in model.tables],
        files=tuple(files),
        cut="exact" if exact else "fuzzy",
    )
    committed = checkpoint.commit(folder.model, manifest, train.keep_checkpoints)
    copy_out(folder)
    return committed


def restore_best(folder: RunFolder) -> Manifest:
    """Make the best checkpoint the run's model, here and at its URL."""
    manifest = checkpoint.restore_best(folder.model)
    copy_out(folder)
    return manifest


def copy_out(folder: RunFolder) -> None:
    """Copy the run's model to its URL, if it has one.

    A copy that fails ends no run: the checkpoint is in the folder, and the next copy brings what
    this one left. The figures of each copy are a line of ``metrics.jsonl``.

    Warns
    -----
    CtrpsWarning
        Naming the URL, what failed, and how to copy the model by hand.
    """
    if folder.remote is None:
        return
    began, sent, failed = time.monotonic(), 0, None
    try:
        sent = folder.remote.upload(folder.model)
    except (CheckpointError, OSError) as error:
        failed = (
            f"{error}. The checkpoint is whole in {folder.model}; the next copy brings it, or now: "
            f"ctrps checkpoint copy {folder.model} -o {folder.remote.url}"
        )
        warnings.warn(failed, CtrpsWarning, stacklevel=2)
    line = {"phase": "copy", "url": folder.remote.url, "size_bytes": sent, "error": failed}
    folder.add_metrics(line | {"seconds": time.monotonic() - began})


def resume_early_stop(
    folder: RunFolder,
    early_stop: EarlyStop,
    badness: Callable[[dict[str, object], str], float | None],
) -> dict[str, object] | None:
    """Tell early stopping of a run that goes on what it had seen; returns the best test report.

    A crash may have come between the best figure and ``keep_best``: the model that the run goes on
    from is then the best one, and is kept now.
    """
    best = None
    for pass_, report in _judged(folder):
        if early_stop.better(badness(report, folder.job.train.early_metric)):
            best = report
            if folder.resume and folder.resume.border and folder.resume.pass_ == pass_:
                checkpoint.keep_best(folder.model)
    return best


def owes_figures(folder: RunFolder) -> bool:
    """Whether a run that goes on was stopped between the end of a pass and its evaluation."""
    resume, train = folder.resume, folder.job.train
    each = train.evaluate == "pass" or train.patience > 0
    return bool(each and resume and resume.border and resume.pass_ not in _reports(folder))


def _judged(folder: RunFolder) -> Iterator[tuple[int, dict[str, object]]]:
    """Pass and test report of the best checkpoint, and of all passes since that the model holds."""
    if folder.resume is None:
        return
    first, end = folder.resume.pass_, folder.resume.pass_ + folder.resume.border
    if (folder.model / checkpoint.BEST).exists():
        first = checkpoint.read_manifest(folder.model, checkpoint.BEST).pass_
    reports = _reports(folder)
    yield from ((number, reports[number]) for number in range(first, end) if number in reports)


def _reports(folder: RunFolder) -> dict[int, dict[str, object]]:
    """Test reports that the run has written, by pass; of a pass that was trained again the last.

    A line that a crash broke off is left out.
    """
    path, found = folder.path / "metrics.jsonl", {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if line["phase"] == "evaluate":
            found[line["pass"]] = line["test"]
    return found
