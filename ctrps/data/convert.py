"""From the names in a job to shards: patterns to files, and text to shards, once.

A shard made of a text file is used again as long as the file's path, size,
time of change and the settings are the same. How rows are read is ``formats``'
business.
"""

from __future__ import annotations

import dataclasses
import difflib
import glob
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ctrps.data.badrows import BadRows, read_aside
from ctrps.data.detect import detect
from ctrps.data.formats import RowSource, open_rows
from ctrps.data.indices import IndexRange
from ctrps.data.reading import TextSettings
from ctrps.data.shards import Shard, ShardWriter
from ctrps.data.streams import STDIN, most_bytes, stdin_is_empty
from ctrps.errors import DataError
from ctrps.sections import INDEXED

VERSION = 2
"""Counts up when the same text would give another shard than before."""

Progress = Callable[[Path, int, int, int], None]
"""Called with file, rows read, bytes read and bytes in all, now and then."""


def expand(patterns: Sequence[str | Path]) -> list[Path]:
    """Files that patterns stand for, sorted within a pattern, each file once.

    A pattern is a file, a folder (its files, without hidden ones), a glob with
    ``*``, ``?``, ``[...]`` and ``**``, or ``-`` for standard input.

    Raises
    ------
    DataError
        When a pattern stands for no file.
    """
    found = [path for pattern in patterns for path in _matches(Path(pattern))]
    return list(dict.fromkeys(found))


def _matches(pattern: Path) -> list[Path]:
    if pattern == STDIN or pattern.is_file():
        return [pattern]
    if pattern.is_dir():
        paths = [path for path in pattern.iterdir() if not path.name.startswith(".")]
    else:
        paths = [Path(name) for name in glob.glob(str(pattern), recursive=True)]
    files = sorted(path for path in paths if path.is_file())
    if not files:
        raise _no_match(pattern)
    return files


def _no_match(pattern: Path) -> DataError:
    if pattern.is_dir():
        return DataError("no files in this folder", where=str(pattern), id="E-DATA-MISSING")
    folder = pattern.parent
    what = "no file matches this pattern" if glob.has_magic(str(pattern)) else "no such file"
    if glob.has_magic(str(folder)) or not folder.is_dir():
        return DataError(
            what, where=str(pattern), hint=f"there is no folder {folder}", id="E-DATA-MISSING"
        )
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    near = difflib.get_close_matches(pattern.name, names, 1, cutoff=0) if names else []
    hint = f"looked in {folder}, where {near[0]!r} is nearest" if near else f"{folder} has no files"
    return DataError(what, where=str(pattern), hint=hint, id="E-DATA-MISSING")


def to_shards(
    paths: Sequence[Path],
    settings: TextSettings,
    cache_dir: Path,
    progress: Progress | None = None,
    bad: BadRows | None = None,
) -> list[Path]:
    """Shards with the rows of some files, in the order of the files.

    A file that is a shard stands for itself. Text is converted to one shard
    per file in ``cache_dir``, unless that was done before; its bad rows are
    written beside the shard. A text file without rows gives no shard. Standard
    input is converted whenever there is something on it; if not, what was
    converted before is used, so that a run can go on.

    Parameters
    ----------
    paths
        From ``expand``.
    settings
    cache_dir
        Made when needed. Shards of earlier versions of a file are removed.
    progress
    bad
        To read afterwards how many rows were bad; by default one that holds
        the input to ``settings.max_bad``.

    Raises
    ------
    DataError
        For what cannot be read, too many bad rows, files of different schemas,
        and input without any row.
    """
    bad = BadRows(settings.max_bad) if bad is None else bad
    sources = [Path(path) for path in paths]
    conversion = _Conversion(settings, Path(cache_dir), progress, bad, sources)
    made = [(path, shard) for path in sources if (shard := conversion.shard(path)).rows]
    rows = sum(shard.rows for _, shard in made)
    bad.finish(rows + bad.count)
    if not made:
        some = ", ".join(map(str, sources[:3])) + (", …" if len(sources) > 3 else "")
        what, hint = f"no examples in {some or 'an empty list of files'}", "is it the right file?"
        raise DataError(what, hint=hint, id="E-DATA-EMPTY")
    for path, shard in made:
        _check_same(shard, path, *made[0])
    return [shard.path for _, shard in made]


def _check_same(shard: Shard, path: Path, first_path: Path, first: Shard) -> None:
    if shard.schema.extends(first.schema) or first.schema.extends(shard.schema):
        return
    names, others = ({*s.schema.slots, *s.schema.dense} for s in (shard, first))
    differ = ", ".join(map(repr, sorted(names ^ others)[:5])) or "their kind or order"
    what = f"its columns are not those of {first_path}: they differ in {differ}"
    hint = "files of one job have the same columns"
    if shard.schema.weights == first.schema.weights == "value":
        hint += "; `ctrps convert` makes one shard of several files of text"
    raise DataError(what, where=str(path), hint=hint, id="E-DATA-COLUMN")


class _Conversion:
    """The shards of one list of files, made or found; counts toward ``bad`` on the way."""

    def __init__(
        self,
        settings: TextSettings,
        cache_dir: Path,
        progress: Progress | None,
        bad: BadRows,
        paths: Sequence[Path],
    ):
        self._settings = settings
        self._cache_dir = cache_dir
        self._progress = progress
        self._bad = bad
        self._rows = 0
        # What VW or slot text calls slots, the next file of it calls so too, in this order.
        self._slots = settings.slots
        # Upper bounds of the rows in files not read yet: a row is a byte and a line end.
        self._most_rows = sum(_most_rows(most_bytes(path)) for path in paths)

    def shard(self, path: Path) -> Shard:
        settings = self._settings
        if path != STDIN:
            self._most_rows -= _most_rows(most_bytes(path))
            if settings.format == "auto":
                settings = dataclasses.replace(settings, format=detect(path).format)
        slots = self._slots if settings.format in ("vw", "slots", "signs", "auto") else ()
        settings = dataclasses.replace(settings, slots=slots)
        if settings.format == "shard":
            shard = Shard(path)
        else:
            shard = self._of_text(path, settings)
        self._rows += shard.rows
        if shard.schema.weights == "value" and len(shard.schema.slots) > len(self._slots):
            self._slots = shard.schema.slots
        return shard

    def _of_text(self, path: Path, settings: TextSettings) -> Shard:
        of_path, state = _names(path, settings)
        name = "stdin" if path == STDIN else path.name
        target = self._cache_dir / f"{name}-{of_path}-{state}.shard"
        aside = target.with_suffix(".rejected.tsv")
        kept = _kept(target) if path != STDIN or stdin_is_empty() else None
        if kept is not None:
            self._bad.include(read_aside(aside) if kept.meta["rejected"] else ())
            return kept
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        for old in self._cache_dir.iterdir():
            # Not a temporary name: another process may be writing it.
            if old.name.startswith(f"{name}-{of_path}-") and ".tmp-" not in old.name:
                old.unlink()
        self._bad.aside = aside
        self._write(path, settings, target)
        self._bad.aside = None
        if _names(path, settings) != (of_path, state):
            target.unlink()
            hint = "run again when it is complete"
            raise DataError(
                "it was changed while it was read", where=str(path), hint=hint, id="E-DATA-CHANGED"
            )
        return Shard(target)

    def _write(self, path: Path, settings: TextSettings, target: Path) -> None:
        before, count = self._bad.count, 0
        seen = IndexRange()
        with open_rows(path, settings, self._bad) as source:
            told = {"format": source.format, "why": source.why}
            meta = {"source": str(path), **told, "rejected": 0}
            with ShardWriter(target, source.schema, settings.block_rows, meta) as writer:
                for rows in source.rows:
                    writer.extend(source.schema)
                    writer.add(rows)
                    count += rows.rows
                    if source.format in INDEXED:
                        seen.add(rows.keys)
                    self._report(source, count)
                writer.meta |= {"rejected": self._bad.count - before, **seen.as_meta()}

    def _report(self, source: RowSource, rows: int) -> None:
        file = source.file
        if file is None:
            return
        seen = self._rows + rows + self._bad.count
        self._bad.expect(seen + _most_rows(file.most_bytes) + self._most_rows)
        if self._progress:
            self._progress(source.path, rows, file.read_bytes, file.file_bytes)


def _most_rows(size_bytes: int) -> int:
    return size_bytes // 2 + 1


def _names(path: Path, settings: TextSettings) -> tuple[str, str]:
    """A name for the path, and one for the state of the file and how it is read."""
    how = dataclasses.asdict(settings)
    del how["max_bad"]  # decides whether the rows may be used, not which they are
    place, size, changed = str(path), 0, 0
    if path != STDIN:
        place = str(path.absolute())
        try:
            state = path.stat()
        except OSError as error:
            raise DataError(
                f"cannot read it: {error.strerror}", where=str(path), id="E-DATA-MISSING"
            ) from None
        size, changed = state.st_size, state.st_mtime_ns
    whole = json.dumps([VERSION, place, size, changed, how], sort_keys=True)
    return _digest(place), _digest(whole)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _kept(target: Path) -> Shard | None:
    """The shard made before, if it and its list of bad rows are whole."""
    aside = target.with_suffix(".rejected.tsv")
    if not target.is_file():
        return None
    try:
        shard = Shard(target)
        rejected = sum(1 for _ in read_aside(aside)) if shard.meta["rejected"] else 0
    except (DataError, OSError, ValueError, KeyError):
        return None
    return shard if rejected == shard.meta["rejected"] else None
