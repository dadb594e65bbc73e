"""A model's home at a URL, in any file system that fsspec knows: S3, HDFS, GCS, SFTP, ….

::

    URL/manifest.json, manifest-2.json, best.json   byte for byte those of the model's folder
    URL/p007-c000003-v1-n2-6f3a09….part             a file of it, with the digits of its digest

No two files have the same name there, so an upload changes nothing that is already listed. The
manifest comes last: a reader finds the old model or the new one, and verifies what it has read as
it would in a folder. Which checkpoints there are, and which are kept, is known to
``ctrps.checkpoint`` alone; here its folder is copied there and back.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from ctrps import checkpoint
from ctrps.checkpoint import MANIFEST, PartitionFile
from ctrps.codec import sync_folder
from ctrps.errors import CheckpointError, ConfigError

RETRY_S = 30.0
"""A request that fails is tried again until so much time has passed since it was first made."""

FIRST_PAUSE_S = 0.5
"""Between two tries; then twice as long each time."""

AT_ONCE = 16
"""Files in one request to fsspec, which moves those of an object store side by side."""

ATTEMPTS = 3
"""A reader begins again so often if what it reads was replaced, and removed, in the meantime."""

NAMES = re.compile(r"manifest(-\d+)?\.json|best\.json")
OURS = re.compile(rf"({NAMES.pattern})(\.tmp-\d+)?|p\d+-c\d+-v\d+-n\d+-[0-9a-f]{{16}}\.part")
TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
"""How file systems call the time of a file."""

GONE, REFUSED = object(), object()
T = TypeVar("T")


def is_url(home: str | Path) -> bool:
    """Whether a model's home is a URL and not a folder.

    Examples
    --------
    >>> is_url("s3://bucket/click-fm"), is_url("runs/click-fm/model")
    (True, False)
    """
    return "://" in str(home)


def object_name(file: PartitionFile) -> str:
    """What a file of a model is called at a URL.

    Examples
    --------
    >>> object_name(PartitionFile(7, "p007-c000003-v1-n2.part", 800, "6f3a" * 16))
    'p007-c000003-v1-n2-6f3a6f3a6f3a6f3a.part'
    """
    return f"{file.name.removesuffix('.part')}-{file.digest[:16]}.part"


class Remote:
    """The home of one model.

    Parameters
    ----------
    url

    Raises
    ------
    ConfigError
        fsspec, or what it needs for such URLs, is not installed, or it knows no such file system.
    CheckpointError
        It cannot be reached.
    """

    def __init__(self, url: str):
        self.url = re.sub(r"://[^/@]*@", "://…@", url.rstrip("/"))
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            hint = "install it: pip install 'ctrps[remote]'"
            raise ConfigError(
                "a URL needs fsspec", where=self.url, hint=hint, id="E-PACKAGE"
            ) from None
        try:
            self._fs, self._root = url_to_fs(url.rstrip("/"))
        except (ImportError, ValueError) as error:
            hint = "see https://filesystem-spec.readthedocs.io for the URLs that there are"
            raise ConfigError(str(error), where=self.url, hint=hint, id="E-REMOTE") from None
        except Exception as error:  # some connect at once, and have errors of their own
            raise self._failed("reach it", error) from None

    def listing(self) -> dict[str, tuple[int, float]]:
        """Size in bytes of each file that is there, and its time in seconds since 1970 or 0."""
        self._fs.invalidate_cache()
        found = self._tried("list it", partial(self._fs.ls, self._root, detail=True), absent=[])
        entries = {str(entry["name"]).rpartition("/")[2]: entry for entry in found}
        ours = {name: entry for name, entry in entries.items() if OURS.fullmatch(name)}
        return {name: (int(entry["size"] or 0), _time(entry)) for name, entry in ours.items()}

    def manifests(self, names: Sequence[str] = ()) -> dict[str, bytes]:
        """Those of ``names``, else all, that are there; the model's own comes last."""
        wanted = names or [name for name in self.listing() if NAMES.fullmatch(name)]
        found = {}
        for name in sorted(wanted, key=lambda name: name == MANIFEST):
            path = f"{self._root}/{name}"
            content = self._tried("read it", partial(self._fs.cat_file, path), absent=None)
            if content is not None:
                found[name] = bytes(content)
        return found

    def upload(self, folder: Path) -> int:
        """Make the URL hold what ``folder`` holds, every checkpoint of it; returns bytes sent.

        Raises
        ------
        CheckpointError
            Naming the URL and what failed. The model that was there is still there.
        """
        names = [name for name in checkpoint.manifests(folder) if _whole(folder, name)]
        models = [checkpoint.read_manifest(folder, name) for name in names]
        wanted = {object_name(file): file for model in models for file in model.files}
        there = self.listing()
        missing = [n for n, f in wanted.items() if there.get(n, (-1, 0))[0] != f.size_bytes]
        # An object store has no folders, and s3fs would make a bucket of a name with a mistake.
        if not self._fs.async_impl:
            self._tried("make it", partial(self._fs.makedirs, self._root, exist_ok=True))
        for some in _grouped(missing):
            paths = [str(folder / wanted[name].name) for name in some]
            self._tried("write files", partial(self._fs.put, paths, self._paths(some)))
        for name in names:
            self._place(name, (folder / name).read_bytes())
        self._remove([name for name in there if name not in wanted and name not in names])
        return sum(wanted[name].size_bytes for name in missing)

    def download(self, folder: Path, names: Sequence[str] = ()) -> bool:
        """Copy the checkpoints of the manifests ``names``, else all, into a folder without model.

        Returns
        -------
        bool
            Whether there is a model. Files of it that are missing are missing in the folder, too.
        """
        before: dict[str, bytes] = {}
        for _ in range(ATTEMPTS):
            found = self.manifests(names)
            if MANIFEST not in found or found == before or self._get(_files(found), folder):
                break
            before = found
        sync_folder(folder)
        for name, content in found.items():
            checkpoint.write_file(folder, name, content)
        return MANIFEST in found

    def _get(self, files: Sequence[PartitionFile], folder: Path) -> bool:
        """Copy files, durable; returns whether all of them were there."""
        there, whole = self.listing(), True
        for some in _grouped(files):
            present = [file for file in some if object_name(file) in there]
            sources = self._paths([object_name(file) for file in present])
            targets = [str(folder / file.name) for file in present]
            get = partial(self._fs.get, sources, targets)
            whole &= self._tried("read files", get, absent=GONE) is not GONE
            for path in filter(os.path.exists, targets):
                sync_folder(Path(path))
        return whole and all(object_name(file) in there for file in files)

    def clear(self) -> None:
        """Remove the model that is there, its manifest first."""
        there = sorted(self.listing())
        self._remove([name for name in there if name == MANIFEST])
        self._remove([name for name in there if name != MANIFEST])

    def _place(self, name: str, content: bytes) -> None:
        """Give a small file its name when all of it is there, also where writing takes steps."""
        path = f"{self._root}/{name}"
        if self._fs.async_impl:
            self._tried("write it", partial(self._fs.pipe_file, path, content))
            return
        temporary = f"{path}.tmp-{os.getpid()}"
        self._tried("write it", partial(self._fs.pipe_file, temporary, content))
        self._tried("name it", partial(self._fs.mv, temporary, path))

    def _remove(self, names: Sequence[str]) -> None:
        for some in _grouped(names):
            self._tried("remove files", partial(self._fs.rm, self._paths(some)), absent=None)

    def _paths(self, names: Sequence[str]) -> list[str]:
        return [f"{self._root}/{name}" for name in names]

    def _tried(self, what: str, request: Callable[[], Any], absent: Any = REFUSED) -> Any:
        """The answer to a request that is made again if it fails, within ``RETRY_S``.

        ``absent``, if it is given, is the answer where there is no such file.
        """
        until, pause_s = time.monotonic() + RETRY_S, FIRST_PAUSE_S
        while True:
            try:
                return request()
            except Exception as error:  # file systems have errors of their own
                gone = isinstance(error, FileNotFoundError)
                if gone and absent is not REFUSED:
                    return absent
                vain = gone or isinstance(error, PermissionError)
                if vain or time.monotonic() + pause_s > until:
                    raise self._failed(what, error) from None
            time.sleep(pause_s)
            pause_s *= 2

    def _failed(self, what: str, error: Exception) -> CheckpointError:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        hint = "look at the address, the rights and the network"
        return CheckpointError(f"cannot {what}: {reason}", where=self.url, hint=hint, id="E-REMOTE")


@contextmanager
def at_hand(home: str | Path, names: Sequence[str] = (MANIFEST,)) -> Iterator[Path]:
    """The folder of a model, wherever its home is; of a URL a copy for the time being.

    Parameters
    ----------
    home
        Folder or URL of a model.
    names
        Manifests of the checkpoints that are wanted; empty for all.

    Raises
    ------
    CheckpointError
        Whatever is wrong with the copy is told of the URL.
    """
    if not is_url(home):
        yield Path(home)
        return
    remote = Remote(str(home))
    with TemporaryDirectory(prefix="ctrps-model-") as copy:
        folder = Path(copy)
        try:
            if not remote.download(folder, names):
                raise CheckpointError(
                    "no model is there", where=remote.url, id="E-CHECKPOINT-MISSING"
                )
            yield folder
        except CheckpointError as error:
            where = (error.where or "").replace(copy, remote.url)
            raise CheckpointError(error.what, where=where, hint=error.hint, id=error.id) from None


def _whole(folder: Path, name: str) -> bool:
    """A damaged manifest of an earlier checkpoint stays where it is; the model's is an error."""
    return name == MANIFEST or checkpoint.readable(folder, name) is not None


def _grouped(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + AT_ONCE] for at in range(0, len(items), AT_ONCE))


def _files(manifests: dict[str, bytes]) -> list[PartitionFile]:
    """The files of all manifests that can be read; what is wrong with others is told later."""
    found = set()
    for content in manifests.values():
        with suppress(CheckpointError):
            found |= set(checkpoint.parse_manifest(content).files)
    return sorted(found)


def _time(entry: dict[str, Any]) -> float:
    value = next((entry[name] for name in TIMES if entry.get(name)), 0.0)
    return value.timestamp() if isinstance(value, datetime) else float(value)
