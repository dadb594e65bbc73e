"""Which checkpoints a model's home holds, and whether every byte of them is as it was written.

``found`` looks at names, sizes and times; ``verify`` reads everything. Neither changes anything.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from ctrps import checkpoint
from ctrps.checkpoint import BEST, MANIFEST, Manifest, PartitionFile, Saved
from ctrps.codec import raw
from ctrps.errors import CheckpointError
from ctrps.kernels import keys as key_kernels
from ctrps.remote import Remote, is_url, object_name

Damages = dict[str, CheckpointError]
"""What is wrong, by the path of the file."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint of a model's home.

    Attributes
    ----------
    manifests : tuple of str
        Names of the manifests that mean it: ``manifest.json`` is the model, ``best.json`` the best.
    manifest : Manifest
    size_bytes : int
        Of its files, as its manifest states them.
    time : float
        Seconds since 1970 of the newest of its files; 0 where that is not known.
    missing : tuple of str
        Files that are not there, or not as long as the manifest says.
    """

    manifests: tuple[str, ...]
    manifest: Manifest
    size_bytes: int
    time: float
    missing: tuple[str, ...]

    @property
    def model(self) -> bool:
        return MANIFEST in self.manifests

    @property
    def best(self) -> bool:
        return BEST in self.manifests

    @property
    def complete(self) -> bool:
        return not self.missing


def model_home(home: str | Path) -> str | Path:
    """The model's folder, of a folder of a run or of a model; URLs are as they are.

    Raises
    ------
    CheckpointError
        There is no model.
    """
    if is_url(home):
        return home
    for folder in (Path(home), Path(home) / "model"):
        if checkpoint.exists(folder) or checkpoint.manifests(folder):
            return folder
    raise CheckpointError(
        "no model is there",
        where=str(home),
        hint="give a run or a model folder",
        id="E-CHECKPOINT-MISSING",
    )


def found(home: str | Path) -> list[Found]:
    """The checkpoints of a folder or URL, newest first.

    Raises
    ------
    CheckpointError
        There is none, or a manifest is damaged.
    """
    if is_url(home):
        remote = Remote(str(home))
        texts = remote.manifests()
        if not texts:
            raise CheckpointError("no model is there", where=remote.url, id="E-CHECKPOINT-MISSING")
        read = {name: _parsed(text, f"{remote.url}/{name}") for name, text in texts.items()}
        return _found(read, remote.listing(), object_name)
    folder = Path(home)
    read = {name: checkpoint.read_manifest(folder, name) for name in checkpoint.manifests(folder)}
    stats = {path.name: path.stat() for path in folder.glob("*.part")}
    there = {name: (stat.st_size, stat.st_mtime) for name, stat in stats.items()}
    return _found(read, there, lambda file: file.name)


def _parsed(text: bytes, where: str) -> Manifest:
    try:
        return checkpoint.parse_manifest(text)
    except CheckpointError as error:
        raise CheckpointError(error.what, where=where, hint=error.hint, id=error.id) from None


def _found(
    read: Mapping[str, Manifest],
    there: Mapping[str, tuple[int, float]],
    name_of: Callable[[PartitionFile], str],
) -> list[Found]:
    named: dict[tuple[PartitionFile, ...], list[str]] = {}
    for name, manifest in read.items():
        named.setdefault(manifest.files, []).append(name)
    checkpoints = []
    for files, names in named.items():
        stats = {file: there.get(name_of(file), (-1, 0.0)) for file in files}
        missing = tuple(file.name for file, stat in stats.items() if stat[0] != file.size_bytes)
        size = sum(file.size_bytes for file in files)
        time = max((at for _, at in stats.values()), default=0.0)
        checkpoints.append(Found(tuple(sorted(names)), read[names[0]], size, time, missing))
    return sorted(checkpoints, key=lambda one: one.manifest.checkpoint, reverse=True)


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``verify`` has seen of one checkpoint.

    Attributes
    ----------
    name : str
        Of its manifest.
    manifest : Manifest or None
        None if it is damaged itself.
    keys : int
        Of all tables, in the files that are whole.
    damages : Damages
    """

    name: str
    manifest: Manifest | None
    keys: int
    damages: Damages


def verify(folder: Path) -> list[Verified]:
    """Read every file of every checkpoint in a folder, the model last.

    Of each file: its size, its digest, all checksums, that keys ascend and belong to the file's
    partition, that weights and optimiser state are finite, and that the digest of the model is
    that of its rows.
    """
    if not checkpoint.manifests(folder):
        checkpoint.read_manifest(folder)
    seen: dict[PartitionFile, tuple[int, CheckpointError | None]] = {}
    results = [_verify(folder, name, seen) for name in checkpoint.manifests(folder)]
    whole = [one for one in results if one.manifest and not one.damages]
    return [_with_remedy(one, folder, whole) for one in results]


def _verify(
    folder: Path, name: str, seen: dict[PartitionFile, tuple[int, CheckpointError | None]]
) -> Verified:
    try:
        manifest = checkpoint.read_manifest(folder, name)
    except CheckpointError as error:
        return Verified(name, None, 0, {str(folder / name): error})
    damages: Damages = {}
    for file in manifest.files:
        if file not in seen:
            seen[file] = _verify_file(folder, manifest, file)
        if (damage := seen[file][1]) is not None:
            damages[str(folder / file.name)] = damage
    if name == MANIFEST:
        for path in checkpoint.strangers(folder, manifest):
            what = "a partition file that the manifest does not list"
            damages[str(path)] = CheckpointError(what, where=str(path))
    if not damages:
        damages = _wrong_as_a_whole(folder, manifest, name)
    return Verified(name, manifest, sum(seen[file][0] for file in manifest.files), damages)


def _verify_file(
    folder: Path, manifest: Manifest, file: PartitionFile
) -> tuple[int, CheckpointError | None]:
    """Its number of keys, and what is wrong with it."""
    try:
        checkpoint.check_size(folder, file)
        saved = checkpoint.read_partition(folder, manifest, file)
        what = next(_wrong_rows(manifest, file.partition, saved), None)
        if what is None and _content(saved) != checkpoint.content_of(folder, file):
            what = "its rows are not those that it was closed with"
    except CheckpointError as error:
        return 0, error
    keys = sum(len(table.keys) for table in saved.tables)
    return keys, CheckpointError(what, where=str(folder / file.name)) if what else None


def _content(saved: Saved) -> str:
    content = sha256()
    for table in saved.tables:
        for array in table:
            content.update(raw(array))
    return content.hexdigest()


def _wrong_rows(manifest: Manifest, partition: int, saved: Saved) -> Iterator[str]:
    bits = int(manifest.model["partitions"]).bit_length() - 1
    for (name, *_), (keys, rows) in zip(manifest.tables, saved.tables, strict=True):
        placed = np.empty(len(keys), np.int32)
        key_kernels.partition_of(keys, bits, placed)
        if (placed != partition).any():
            key = keys[placed != partition][0]
            yield f"key {key} of table {name!r} is not of partition {partition}"
        if not np.isfinite(rows).all():
            key = keys[~np.isfinite(rows).all(axis=1)][0]
            yield f"the row of key {key} in table {name!r} is not finite"


def _wrong_as_a_whole(folder: Path, manifest: Manifest, name: str) -> Damages:
    """What whole files do not tell: whether they are all, and together what the manifest says."""
    partitions = manifest.model.get("partitions")
    listed = sorted(file.partition for file in manifest.files)
    content = sha256()
    for file in sorted(manifest.files):
        content.update(bytes.fromhex(checkpoint.content_of(folder, file)))
    if not isinstance(partitions, int) or listed != list(range(partitions)):
        what = f"it lists {len(listed)} partition files, the model has {partitions}"
    elif manifest.model_digest != f"sha256:{content.hexdigest()}":
        what = "the digest of the model is not that of its files"
    else:
        return {}
    return {str(folder / name): CheckpointError(what, where=str(folder / name))}


def _with_remedy(one: Verified, folder: Path, whole: list[Verified]) -> Verified:
    """The same; each damage says what to do, knowing which checkpoints are whole."""
    hint = "restore it from a copy, or train again"
    others = {o.manifest.checkpoint: o.name for o in whole if o.manifest and o.name != MANIFEST}
    if others:
        number = max(others)
        hint = f"restore it from a copy, or go back to checkpoint {number}, which is whole: "
        hint += f"copy {others[number]} over {MANIFEST}"
    if one.name != MANIFEST and any(other.name == MANIFEST for other in whole):
        hint = "the model itself is whole; the next checkpoints replace this one"
    damages: Damages = {}
    for path, error in one.damages.items():
        stranger = Path(path).suffix == ".part" and "does not list" in error.what
        remedy = "move it to another folder" if stranger else hint
        damages[path] = CheckpointError(error.what, where=path, hint=remedy, id=error.id)
    return Verified(one.name, one.manifest, one.keys, damages)
