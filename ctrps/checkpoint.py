"""A model on disk: one file per partition, and a manifest whose rename is the commit.

A folder holds at most one model::

    manifest.json                    what the model is, where training stands, and its files
    manifest-2.json, best.json       the same of earlier checkpoints that are kept
    p007-c000003-v1-n2.part          partition 7 of checkpoint 3, saved in view 1 by node 2

Files are written under names that no other checkpoint, view or node uses, so a process that is
out of the job can never damage a committed model. A partition file holds the keys in ascending
order, so a model's digest depends neither on how many servers held it nor on the order in which
its rows were made. What the numbers mean is in the manifest's ``model``; whether they fit a job
is for the caller to compare.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ctrps.codec import CodecError, FrameFile, FrameFileWriter, raw, sync_folder
from ctrps.errors import CheckpointError

FORMAT = 1
KIND = "partition"
MANIFEST = "manifest.json"
EARLIER = "manifest-{}.json"
BEST = "best.json"
NAME = re.compile(r"p(\d+)-c(\d+)-v(\d+)-n(\d+)\.part")


class Rows(NamedTuple):
    """Rows of one table in one partition: uint64[n] ascending keys, float32[n, width] rows."""

    keys: np.ndarray
    rows: np.ndarray


class Saved(NamedTuple):
    """A partition read back: one ``Rows`` per table, and the arrays saved beside them."""

    tables: list[Rows]
    notes: list[np.ndarray]


class PartitionFile(NamedTuple):
    """A partition's file as the manifest lists it; ``digest`` vouches for every byte."""

    partition: int
    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """What a model is, and where its training stands.

    Attributes
    ----------
    checkpoint : int
        Its number in the run.
    pass_, step : int
        Steps of this pass that the rows hold.
    border : bool
        Whether the pass is complete.
    model : dict
        The settings that fix the meaning of the rows (``JobConfig.model_settings``).
    plan : str
        Digest of data and plan settings; training can go on inside a pass only with equal ones.
    tables : list
        ``[name, weights of a row, float32 columns of a row]``.
    job : str
        The whole job as yaml.
    data : dict
        What prediction must know to read rows as training did.
    files : tuple of PartitionFile
    model_digest : str
        ``sha256:…`` over keys, weights and optimiser state in key order, by partition.
    cut : str
        ``exact``: all partitions hold the same batches. ``fuzzy``: each was saved by itself, with
        its own marks, while training went on; exact to go on from, a mixture as a model.
    """

    checkpoint: int
    pass_: int
    step: int
    border: bool
    model: dict[str, Any]
    plan: str
    tables: list[list[Any]]
    job: str
    data: dict[str, Any]
    files: tuple[PartitionFile, ...]
    model_digest: str
    cut: str = "exact"

    def position(self, passes: int) -> tuple[int, int, int]:
        """Where a run of so many passes goes on: checkpoint, pass, step."""
        if self.border and self.pass_ + 1 < passes:
            return self.checkpoint, self.pass_ + 1, 0
        return self.checkpoint, self.pass_, self.step


def write_partition(
    folder: Path,
    partition: int,
    checkpoint: int,
    view: int,
    node: int,
    tables: Iterable[tuple[str, np.ndarray, np.ndarray]],
    notes: Sequence[np.ndarray] = (),
) -> PartitionFile:
    """Write one partition, durable and under its final name.

    Parameters
    ----------
    tables
        Name, keys uint64[n] ascending, rows float32[n, width] of each table.
    notes
        Arrays that belong to the partition but not to the model: marks and progress.

    Raises
    ------
    CheckpointError
        It cannot be written, for lack of room, say; nothing has the final name then.
    """
    name = f"p{partition:03d}-c{checkpoint:06d}-v{view}-n{node}.part"
    content = hashlib.sha256()
    with _writing(folder / name), FrameFileWriter(folder / name, KIND) as writer:
        for table, keys, rows in tables:
            writer.append(table, [keys, rows])
            for array in (keys, rows):
                content.update(raw(array))
        writer.append("notes", notes)
        meta = {"partition": partition, "checkpoint": checkpoint, "content": content.hexdigest()}
        size, digest = writer.close(meta)
    return PartitionFile(partition, name, size, digest)


def commit(folder: Path, manifest: Manifest, keep: int = 1) -> Manifest:
    """Make a model exist: check its files, write the manifest, and remove what is older.

    Parameters
    ----------
    keep
        Checkpoints to leave in the folder, this one included; the best one stays besides.

    Returns
    -------
    Manifest
        With ``model_digest`` filled in.

    Raises
    ------
    CheckpointError
        A file is missing or damaged, or the manifest cannot be written. The model that was there
        before is then still there.
    """
    content = hashlib.sha256()
    for file in sorted(manifest.files):
        content.update(bytes.fromhex(_open(folder, file).meta["content"]))
    digest = f"sha256:{content.hexdigest()}"
    whole = Manifest(**{**manifest.__dict__, "model_digest": digest})
    body = asdict(whole) | {"format": FORMAT}
    body["files"] = [list(file) for file in whole.files]
    if keep > 1 and exists(folder):
        _place(folder, EARLIER.format(read_manifest(folder).checkpoint), MANIFEST)
    _write(folder, MANIFEST, _text(body))
    _sweep(folder, whole, keep)
    return whole


def _write(folder: Path, name: str, content: bytes) -> None:
    """Give a small file its name when all of it is on disk."""
    temporary = folder / f"{name}.tmp-{os.getpid()}"
    try:
        with _writing(folder / name):
            with open(temporary, "wb") as file_out:
                file_out.write(content)
                file_out.flush()
                os.fsync(file_out.fileno())
            os.replace(temporary, folder / name)
            sync_folder(folder)
    finally:
        temporary.unlink(missing_ok=True)


def _place(folder: Path, name: str, source: str) -> None:
    _write(folder, name, (folder / source).read_bytes())


def keep_best(folder: Path) -> None:
    """Remember the present checkpoint as the best; later ones do not remove its files."""
    _place(folder, BEST, MANIFEST)


def restore_best(folder: Path) -> Manifest:
    """Make the best checkpoint the model of the folder, if one was remembered."""
    if (folder / BEST).exists():
        _place(folder, MANIFEST, BEST)
    return read_manifest(folder)


def earlier(folder: Path) -> list[Path]:
    """Manifests of earlier checkpoints that are still there, oldest first."""
    return sorted(folder.glob(EARLIER.format("*")), key=lambda path: int(path.stem.split("-")[1]))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"cannot write it: {error.strerror}"
        hint = "the last complete checkpoint is still there; make room or mend the folder"
        raise CheckpointError(what, where=str(path), hint=hint) from None


def _text(body: dict[str, Any]) -> bytes:
    """The one way in which a manifest is written, its checksum included."""
    check = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps(body | {"check": check}, indent=1, sort_keys=True).encode() + b"\n"


def _sweep(folder: Path, manifest: Manifest, keep: int) -> None:
    """Remove what belongs to no kept model, and nothing of a later checkpoint."""
    old = earlier(folder)
    for path in old[: max(len(old) - keep + 1, 0)]:
        path.unlink(missing_ok=True)
    names = [path.name for path in earlier(folder)]
    names += [BEST] if (folder / BEST).exists() else []
    kept = [manifest, *(read_manifest(folder, name) for name in names)]
    listed = {file.name for model in kept for file in model.files}
    for path in folder.iterdir():
        found = NAME.match(path.name)
        if found and path.name not in listed and int(found[2]) <= manifest.checkpoint:
            path.unlink(missing_ok=True)


def exists(folder: Path) -> bool:
    """Whether a model has been committed here."""
    return (folder / MANIFEST).exists()


def read_manifest(folder: Path, name: str = MANIFEST) -> Manifest:
    """The manifest of the model in ``folder``, or that of an earlier or the best checkpoint.

    Raises
    ------
    CheckpointError
        There is none, it is damaged, or it was written by another version of the format.
    """
    path = folder / name
    try:
        text = path.read_bytes()
        body = json.loads(text)
    except FileNotFoundError:
        inside = folder / "model"
        hint = f"the model is {inside}" if exists(inside) else "give the folder that training wrote"
        raise CheckpointError("no model is there", where=str(path), hint=hint) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"it cannot be read: {error}", where=str(path)) from None
    version = body.get("format") if isinstance(body, dict) else None
    if version != FORMAT:
        what = f"model format {version!r}, this version of ctrps reads {FORMAT}"
        raise CheckpointError(what, where=str(path))
    body.pop("check", None)
    # Byte for byte: a changed bit may leave a number's value as it was, as e and E do.
    if text != _text(body):
        raise CheckpointError("its checksum is wrong, it is damaged", where=str(path))
    del body["format"]
    body["files"] = tuple(PartitionFile(*file) for file in body["files"])
    return Manifest(**body)


class Checkpoint:
    """A committed model, opened for reading; all files are checked to be there first.

    Parameters
    ----------
    folder

    Raises
    ------
    CheckpointError
        Naming the file that is missing, of the wrong size, not part of the model, or damaged.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest = read_manifest(folder)
        self._files = {file.partition: file for file in self.manifest.files}
        self._refuse_strangers()
        for file in self.manifest.files:
            self._path(file)

    @property
    def partitions(self) -> int:
        return len(self._files)

    def read(self, partition: int) -> Saved:
        """One partition, every checksum verified."""
        opened = _open(self.folder, self._files[partition])
        tables = []
        try:
            for number, (name, _, width) in enumerate(self.manifest.tables):
                header, (keys, rows) = opened.read(number)
                if header != name or rows.shape != (len(keys), width):
                    what = f"table {header!r} of shape {rows.shape}, not {name!r} of width {width}"
                    raise CheckpointError(what, where=str(opened.path))
                tables.append(Rows(keys, rows))
            notes = opened.read(len(tables))[1]
        except (CodecError, OSError, ValueError, IndexError) as error:
            raise _damaged(opened.path, error) from None
        return Saved(tables, notes)

    def verify(self) -> None:
        """Read every byte of every partition."""
        for partition in self._files:
            self.read(partition)

    def _path(self, file: PartitionFile) -> Path:
        path = self.folder / file.name
        size = path.stat().st_size if path.exists() else -1
        if size < 0:
            raise CheckpointError("a file of the model is missing", where=str(path))
        if size != file.size_bytes:
            what = f"{size} bytes, the manifest says {file.size_bytes}"
            raise CheckpointError(what, where=str(path), hint="the file is cut short or replaced")
        return path

    def _refuse_strangers(self) -> None:
        """Refuse partition files that are neither listed nor left over from another save."""
        listed = {file.name for file in self.manifest.files}
        saves = {_save(name) for name in listed}
        for path in sorted(self.folder.glob("*.part")):
            if path.name not in listed and _save(path.name) in (*saves, None):
                what = "a partition file that the manifest does not list"
                raise CheckpointError(what, where=str(path), hint="move it to another folder")


def _save(name: str) -> tuple[int, int] | None:
    """Checkpoint and view of a partition file, by its name."""
    found = NAME.fullmatch(name)
    return (int(found[2]), int(found[3])) if found else None


def _open(folder: Path, file: PartitionFile) -> FrameFile:
    path = folder / file.name
    try:
        opened = FrameFile(path, KIND)
    except FileNotFoundError:
        raise CheckpointError("a file of the model is missing", where=str(path)) from None
    except (CodecError, OSError) as error:
        raise _damaged(path, error) from None
    if opened.digest != file.digest or opened.meta.get("partition") != file.partition:
        what = "it is not the file that the manifest means: another digest"
        raise CheckpointError(what, where=str(path))
    return opened


def _damaged(path: Path, error: Exception) -> CheckpointError:
    what = error.what if isinstance(error, CodecError) else str(error)
    return CheckpointError(
        what, where=str(path), hint="restore the folder from a copy, or train again"
    )
