"""Disks that fill up, fail and lose what was not synced, at every step of saving a checkpoint.

``Disk`` stands between ``ctrps`` and the folder: it numbers each change (open, write, fsync,
replace, unlink), lets one of them fail, and knows what a machine would find after losing its power
just before it. Whatever happens, a whole model is in the folder, the error says which file and
what to do, and the next save succeeds.
"""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ctrps import checkpoint, codec
from ctrps.checkpoint import Checkpoint, read_manifest
from ctrps.errors import CheckpointError
from ctrps.verify import verify
from tests import test_checkpoint
from tests.procs import Lab, options, settings, trained, write_rows
from tests.test_checkpoint import flipped, manifest, names, write
from tests.test_checkpoint import trained as pushed

KEEP = 2


class Disk:
    """The changes of one folder, numbered; ``before`` is called with each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path):
        self.folder = folder
        self.before: Callable[[int, str, Path], None] = lambda *_: None
        self.changes = 0
        self.synced = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.durable = dict(self.synced)
        self._real = {name: getattr(os, name) for name in ("fsync", "replace")}
        self._unlink = Path.unlink
        monkeypatch.setattr(codec, "open", self._open, raising=False)
        monkeypatch.setattr(checkpoint, "open", self._open, raising=False)
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "replace", self._replace)
        monkeypatch.setattr(Path, "unlink", lambda p, missing_ok=False: self._remove(p, missing_ok))

    def _change(self, what: str, path: Path) -> None:
        if self.folder in (path, path.parent):
            self.before(self.changes, what, path)
            self.changes += 1

    def _open(self, path: Any, mode: str = "r", **how: Any) -> Any:
        if "w" in mode:
            self._change("open", Path(path))
        file = open(path, mode, **how)
        return Written(file, lambda: self._change("write", Path(path))) if "w" in mode else file

    def _fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._change("fsync", path)
        self._real["fsync"](descriptor)
        if path == self.folder:
            self.durable = {name: self.synced.get(name, b"") for name in os.listdir(path)}
        else:
            self.synced[path.name] = path.read_bytes()

    def _replace(self, source: Any, target: Any) -> None:
        self._change("replace", Path(target))
        self._real["replace"](source, target)
        self.synced[Path(target).name] = self.synced.pop(Path(source).name, b"")

    def _remove(self, path: Path, missing_ok: bool) -> None:
        if path.exists():
            self._change("unlink", path)
        self._unlink(path, missing_ok)

    def after_a_crash(self) -> Iterator[dict[str, bytes]]:
        """What may be there: all that was written; names without what was not synced; the least."""
        there = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        yield there
        yield {name: self.synced.get(name, b"") for name in there}
        yield self.durable


class Written:
    """A file that tells before it is written to, and then writes the half of it."""

    def __init__(self, file: Any, tell: Callable[[], None]):
        self._file, self._tell = file, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, content: Any) -> int:
        content = bytes(content)
        if content == codec.MAGIC:  # stays in the buffer
            return int(self._file.write(content))
        try:
            self._tell()
        except OSError:
            self._file.write(content[: len(content) // 2])
            raise
        return int(self._file.write(content))


@pytest.fixture(scope="module", autouse=True)
def two_partitions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            test_checkpoint, "SETTINGS", ["model.kind=fm", "model.dim=2", "train.partitions=2"]
        )
        yield


@lru_cache
def model_after(pushes: int) -> Any:
    return pushed(pushes=pushes)


def save(folder: Path, number: int, pushes: int, view: int = 1) -> str:
    """Save a checkpoint beside those that are kept; returns its model digest."""
    held = model_after(pushes)
    files = write(folder, held, 2, number, view)
    return checkpoint.commit(folder, manifest(held, files, number), KEEP).model_digest


@pytest.fixture(scope="module")
def before(two_partitions, tmp_path_factory) -> Path:
    """A folder with the model, checkpoint 3, the one before it, and the best, checkpoint 1."""
    folder = tmp_path_factory.mktemp("before") / "model"
    folder.mkdir()
    save(folder, 1, pushes=1)
    checkpoint.keep_best(folder)
    for number in (2, 3):
        save(folder, number, pushes=number)
    assert {"best.json", "manifest-2.json", "manifest.json"} < {*names(folder)}
    return folder


def whole(folder: Path) -> int:
    """The number of the model, all checkpoints of which verify."""
    for one in verify(folder):
        assert one.manifest and not one.damages, one.damages
    return read_manifest(folder).checkpoint


def failing(disk: Disk, at: int, number: int) -> None:
    def fail(change: int, what: str, path: Path) -> None:
        if change == at:
            raise OSError(number, os.strerror(number), str(path))

    disk.before = fail


def test_a_change_that_fails_leaves_a_whole_model_and_says_so(before, tmp_path, monkeypatch):
    committed, at = [], 0
    while True:
        folder = shutil.copytree(before, tmp_path / str(at))
        number = (errno.ENOSPC, errno.EIO)[at % 2]
        with monkeypatch.context() as patch:
            disk = Disk(patch, folder)
            failing(disk, at, number)
            try:
                save(folder, 4, pushes=4)
            except CheckpointError as error:
                assert str(error.where).startswith(str(folder)) and error.exit_status == 3
                assert f"cannot write it: {os.strerror(number)}" in error.what
                assert "last complete checkpoint is still there; make room" in str(error.hint)
            else:
                break
        committed.append(whole(folder) == 4)
        # Files of the same names again, as when the run is started anew.
        save(folder, 4, pushes=4)
        Checkpoint(folder).verify()
        kept = checkpoint.manifests(folder)
        listed = {file.name for name in kept for file in read_manifest(folder, name).files}
        assert {*names(folder)} == listed | {*kept}
        shutil.rmtree(folder)
        at += 1
    # It is the old model up to one change, the renaming of the manifest, and then the new one.
    assert at == disk.changes > 50
    assert sorted(committed) == committed and any(committed) and not committed[30]


def test_a_crash_at_any_change_leaves_a_whole_model(before, tmp_path, monkeypatch):
    folder = shutil.copytree(before, tmp_path / "model")
    found: list[list[int]] = []

    def look(change: int, what: str, path: Path) -> None:
        numbers = []
        for kind, files in enumerate(disk.after_a_crash()):
            copy = tmp_path / f"{change}-{kind}"
            copy.mkdir()
            for name, content in files.items():
                copy.joinpath(name).write_bytes(content)
            numbers.append(whole(copy))
            shutil.rmtree(copy)
        found.append(numbers)

    with monkeypatch.context() as patch:
        disk = Disk(patch, folder)
        disk.before = look
        save(folder, 4, pushes=4)
    assert whole(folder) == 4
    for numbers in zip(*found, strict=True):
        assert sorted(numbers) == [*numbers] and {*numbers} == {3, 4}


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_file_that_is_damaged_before_its_commit_takes_no_other_with_it(before, tmp_path, damage):
    held = model_after(4)
    for at in range(2):
        folder = shutil.copytree(before, tmp_path / str(at))
        files = write(folder, held, 2, 4)
        spoil(folder / files[at].name, damage)
        try:
            checkpoint.commit(folder, manifest(held, files, 4), KEEP)
        except CheckpointError as error:
            assert files[at].name in str(error.where)
            assert whole(folder) == 3
            continue
        # A commit reads the ends of files. What is wrong inside shows when they are read.
        assert damage == "flip"
        (damaged,) = [error for one in verify(folder) for error in one.damages.values()]
        assert files[at].name in str(damaged.where)
        assert "checkpoint 3, which is whole: copy manifest-3.json" in str(damaged.hint)
        with pytest.raises(CheckpointError, match=f"{files[at].name}.*copy manifest-3.json over"):
            Checkpoint(folder).verify()
        shutil.copy(folder / "manifest-3.json", folder / "manifest.json")
        assert whole(folder) == 3
        assert save(folder, 4, pushes=4, view=2) == read_manifest(folder).model_digest


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_damage_to_what_is_there_does_not_stop_the_next_checkpoint(before, tmp_path, damage):
    for name in names(before):
        folder = shutil.copytree(before, tmp_path / name)
        spoil(folder / name, damage)
        save(folder, 4, pushes=4)
        Checkpoint(folder).verify()
        assert read_manifest(folder).checkpoint == 4
        for number in (5, 6):
            save(folder, number, pushes=4)
        Checkpoint(folder).verify()
        assert {path.name for path in checkpoint.earlier(folder)} == {"manifest-5.json"}


def spoil(path: Path, damage: str) -> None:
    match damage:
        case "flip":
            flipped(path, path.stat().st_size // 3, 2)
        case "cut":
            os.truncate(path, path.stat().st_size - 1)
        case "empty":
            os.truncate(path, 0)
        case "gone":
            path.unlink()


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of its own, which root may make smaller and larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=False)
    if made.returncode:
        pytest.skip("this machine lets nobody mount a small file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.cluster
@pytest.mark.parametrize("limit", ["size=450k", "nr_inodes=20"])
def test_a_run_goes_on_when_there_is_room_again(small_disk, tmp_path, limit):
    rows = write_rows(tmp_path / "train.libsvm", 400, seed=1)
    values = {"data_train": rows, "train_partitions": 8, "train_passes": 4, "train_batch_rows": 16}
    values |= {"model_kind": "fm", "model_dim": 40}
    whole_run = trained(settings(**values, output_dir=tmp_path / "whole"))
    # Only the model lies on that disk, so that logs and figures can be written.
    run = tmp_path / "run"
    run.mkdir()
    (run / "model").symlink_to(small_disk)
    subprocess.run(["mount", "-o", f"remount,{limit}", small_disk], check=True)
    job = settings(**values, output_dir=run)
    with pytest.raises(CheckpointError, match=r"run/model/.* No space left .*make room") as full:
        trained(job)
    assert re.search(r"p00\d-c00000[123]-v0-n0.part|manifest", str(full.value.where))
    # What a cluster cannot write it says as well, and changes nothing either.
    with Lab(tmp_path) as lab:
        ended = lab.run("launch", *options(job), "-s", "2", status=3)
    words = r"error: .*run/model/.* No space left .*is still there; make room"
    assert re.search(words, ended.stderr)
    number = whole(small_disk)
    assert 0 <= number < 3
    subprocess.run(["mount", "-o", "remount,size=16m,nr_inodes=4k", small_disk], check=True)
    summary = trained(job)
    assert summary["rows"] == 400 * (3 - number)
    assert summary["model_digest"] == whole_run["model_digest"]
