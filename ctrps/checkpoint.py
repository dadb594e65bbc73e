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
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

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
        content.update(bytes.fromhex(content_of(folder, file)))
    digest = f"sha256:{content.hexdigest()}"
    whole = replace(manifest, model_digest=digest)
    if keep > 1 and (before := readable(folder, MANIFEST)):
        _place(folder, EARLIER.format(before.checkpoint), MANIFEST)
    write_file(folder, MANIFEST, manifest_text(whole))
    _sweep(folder, whole, keep)
    return whole


def write_file(folder: Path, name: str, content: bytes) -> None:
    """Give a small file its name when all of it is on disk."""
    temporary = folder / f"{name}.tmp-{os.getpid()}"
    with _writing(folder / name):
        try:
            with open(temporary, "wb") as file_out:
                file_out.write(content)
                file_out.flush()
                os.fsync(file_out.fileno())
            os.replace(temporary, folder / name)
            sync_folder(folder)
        finally:
            temporary.unlink(missing_ok=True)


def _place(folder: Path, name: str, source: str) -> None:
    write_file(folder, name, (folder / source).read_bytes())


def keep_best(folder: Path) -> None:
    """Remember the present checkpoint as the best; later ones do not remove its files."""
    _place(folder, BEST, MANIFEST)


def restore_best(folder: Path) -> Manifest:
    """Make the best checkpoint the model of the folder, if one was remembered."""
    if (folder / BEST).exists():
        _place(folder, MANIFEST, BEST)
    return read_manifest(folder)


def copy(folder: Path, out: Path) -> int:
    """Copy every checkpoint of a folder to another, the model's manifest last; returns bytes."""
    names = manifests(folder)
    files = {file for name in names for file in read_manifest(folder, name).files}
    for file in sorted(files):
        with _writing(out / file.name):
            shutil.copyfile(folder / file.name, out / file.name)
            sync_folder(out / file.name)
    with _writing(out):
        sync_folder(out)
    for name in names:
        write_file(out, name, (folder / name).read_bytes())
    return sum(file.size_bytes for file in files)


def earlier(folder: Path) -> list[Path]:
    """Manifests of earlier checkpoints that are still there, oldest first."""
    paths = [p for p in folder.glob(EARLIER.format("*")) if p.stem.split("-")[1].isdecimal()]
    return sorted(paths, key=lambda path: int(path.stem.split("-")[1]))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk, while ``path`` or the files of that folder change, into ours."""
    try:
        yield
    except OSError as error:
        what = f"cannot write it: {error.strerror}"
        hint = "make room or mend the folder, then run the same command again"
        if exists(path) or exists(path.parent):
            hint = f"the last complete checkpoint is still there; {hint}"
        raise CheckpointError(what, where=str(path), hint=hint, id="E-DISK") from None


def manifest_text(manifest: Manifest) -> bytes:
    """A manifest as it is on disk."""
    body = asdict(manifest) | {"format": FORMAT}
    body["files"] = [list(file) for file in manifest.files]
    return _text(body)


def _text(body: dict[str, Any]) -> bytes:
    """The one way in which a manifest is written, its checksum included."""
    check = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps(body | {"check": check}, indent=1, sort_keys=True).encode() + b"\n"


def _sweep(folder: Path, manifest: Manifest, keep: int) -> None:
    """Remove what belongs to no kept model, and nothing of a later checkpoint."""
    with _writing(folder):
        old = earlier(folder)
        for path in old[: max(len(old) - keep + 1, 0)]:
            path.unlink(missing_ok=True)
        # A damaged manifest says of no file that it is still needed, and may not stop training.
        kept = [manifest, *filter(None, (readable(folder, name) for name in manifests(folder)))]
        listed = {file.name for model in kept for file in model.files}
        for path in folder.iterdir():
            found = NAME.match(path.name)
            left_over = found and path.name not in listed and int(found[2]) <= manifest.checkpoint
            if left_over or path.match("*.json.tmp-*"):
                path.unlink(missing_ok=True)


def manifests(folder: Path) -> list[str]:
    """Names of the manifests of a folder: earlier checkpoints, the best one, the model itself."""
    names = [path.name for path in earlier(folder)]
    return names + [name for name in (BEST, MANIFEST) if (folder / name).exists()]


def readable(folder: Path, name: str) -> Manifest | None:
    """A manifest, or None if it is damaged or not there."""
    try:
        return read_manifest(folder, name)
    except CheckpointError:
        return None


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
    except FileNotFoundError:
        inside = folder / "model"
        hint = f"the model is {inside}" if exists(inside) else "give the folder that training wrote"
        raise CheckpointError(
            "no model is there", where=str(path), hint=hint, id="E-CHECKPOINT-MISSING"
        ) from None
    except OSError as error:
        what = f"it cannot be read: {error.strerror}"
        raise CheckpointError(what, where=str(path), hint=remedy(folder)) from None
    try:
        return parse_manifest(text)
    except CheckpointError as error:
        raise CheckpointError(
            error.what, where=str(path), hint=remedy(folder), id=error.id
        ) from None


def parse_manifest(text: bytes) -> Manifest:
    """A manifest from its bytes; CheckpointError, without a place, unless they are whole."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"it cannot be read: {error}") from None
    version = body.get("format") if isinstance(body, dict) else None
    if version != FORMAT:
        raise CheckpointError(f"model format {version!r}, this version of ctrps reads {FORMAT}")
    body.pop("check", None)
    # Byte for byte: a changed bit may leave a number's value as it was, as e and E do.
    if text != _text(body):
        raise CheckpointError("its checksum is wrong, it is damaged")
    del body["format"]
    try:
        body["files"] = tuple(PartitionFile(*file) for file in body["files"])
        manifest = Manifest(**body)
    except (KeyError, TypeError):
        manifest = None
    if manifest is None or not _is_whole(manifest):
        raise CheckpointError("its parts do not fit each other")
    return manifest


def remedy(folder: Path) -> str:
    """What to do about a damaged file of the model in ``folder``."""
    if not (older := earlier(folder)):
        return "restore the folder from a copy, or train again"
    name, number = older[-1].name, older[-1].stem.split("-")[1]
    back = f"go back to checkpoint {number}: copy {name} over {MANIFEST}"
    return f"restore the folder from a copy, or {back}"


_TYPES = {name: get_origin(kind) or kind for name, kind in get_type_hints(Manifest).items()}


def _is_whole(manifest: Manifest) -> bool:
    """Whether all parts of a manifest are of their types, and files are named as files are."""
    typed = all(type(getattr(manifest, name)) is kind for name, kind in _TYPES.items())
    return (
        typed
        and all(_are(table, str, int, int) for table in manifest.tables)
        and all(_are(list(file), int, str, int, str) for file in manifest.files)
        and all(NAME.fullmatch(file.name) for file in manifest.files)
    )


def _are(parts: Any, *types: type) -> bool:
    return type(parts) is list and [type(part) for part in parts] == [*types]


class Checkpoint:
    """A committed model, opened for reading; all files are checked to be there first.

    Parameters
    ----------
    folder
    name
        Of its manifest, for an earlier or the best checkpoint.

    Raises
    ------
    CheckpointError
        Naming the file that is missing, of the wrong size, not part of the model, or damaged.
    """

    def __init__(self, folder: Path, name: str = MANIFEST):
        self.folder = folder
        self.manifest = read_manifest(folder, name)
        self._files = {file.partition: file for file in self.manifest.files}
        if found := strangers(folder, self.manifest):
            what = "a partition file that the manifest does not list"
            raise CheckpointError(what, where=str(found[0]), hint="move it to another folder")
        for file in self.manifest.files:
            check_size(folder, file)

    @property
    def partitions(self) -> int:
        return len(self._files)

    def read(self, partition: int) -> Saved:
        """One partition, every checksum verified."""
        return read_partition(self.folder, self.manifest, self._files[partition])

    def verify(self) -> None:
        """Read every byte of every partition."""
        for partition in self._files:
            self.read(partition)


def read_partition(folder: Path, manifest: Manifest, file: PartitionFile) -> Saved:
    """One partition of a model, every checksum verified."""
    opened = _open(folder, file)
    tables = []
    try:
        for number, (name, _, width) in enumerate(manifest.tables):
            header, (keys, rows) = opened.read(number)
            if header != name or rows.shape != (len(keys), width):
                what = f"table {header!r} of shape {rows.shape}, not {name!r} of width {width}"
                raise CheckpointError(what, where=str(opened.path), hint=remedy(folder))
            if not _are_rows(keys, rows):
                what = f"table {name!r} does not hold rows of ascending keys"
                raise CheckpointError(what, where=str(opened.path), hint=remedy(folder))
            tables.append(Rows(keys, rows))
        notes = opened.read(len(tables))[1]
    except (CodecError, OSError, ValueError, IndexError) as error:
        raise _damaged(opened.path, error) from None
    return Saved(tables, notes)


def content_of(folder: Path, file: PartitionFile) -> str:
    """The digest of keys and rows that a partition's file states."""
    return str(_open(folder, file).meta.get("content"))


def check_size(folder: Path, file: PartitionFile) -> None:
    """Raise CheckpointError unless a file is there and as long as the manifest says."""
    path = folder / file.name
    size = path.stat().st_size if path.exists() else -1
    if size < 0:
        raise _missing(path)
    if size != file.size_bytes:
        what = f"{size} bytes, the manifest says {file.size_bytes}: it is cut short or replaced"
        raise CheckpointError(what, where=str(path), hint=remedy(folder))


def strangers(folder: Path, manifest: Manifest) -> list[Path]:
    """Partition files that are neither listed nor left over from another save."""
    listed = {file.name for file in manifest.files}
    saves = {_save(name) for name in listed}
    paths = sorted(folder.glob("*.part"))
    return [p for p in paths if p.name not in listed and _save(p.name) in (*saves, None)]


def _are_rows(keys: np.ndarray, rows: np.ndarray) -> bool:
    """Kernels take them as they are, so a file may not lie."""
    typed = keys.dtype == np.uint64 and keys.ndim == 1 and rows.dtype == np.float32
    return typed and bool((keys[1:] > keys[:-1]).all())


def _save(name: str) -> tuple[int, int] | None:
    """Checkpoint and view of a partition file, by its name."""
    found = NAME.fullmatch(name)
    return (int(found[2]), int(found[3])) if found else None


def _open(folder: Path, file: PartitionFile) -> FrameFile:
    path = folder / file.name
    try:
        opened = FrameFile(path, KIND)
    except FileNotFoundError:
        raise _missing(path) from None
    except (CodecError, OSError) as error:
        raise _damaged(path, error) from None
    if opened.digest != file.digest or opened.meta.get("partition") != file.partition:
        what = "it is not the file that the manifest means: another digest"
        raise CheckpointError(what, where=str(path), hint=remedy(folder))
    return opened


def _missing(path: Path) -> CheckpointError:
    what = "a file of the model is missing"
    return CheckpointError(what, where=str(path), hint=remedy(path.parent))


def _damaged(path: Path, error: Exception) -> CheckpointError:
    what = error.what if isinstance(error, CodecError) else str(error)
    return CheckpointError(what, where=str(path), hint=remedy(path.parent))
