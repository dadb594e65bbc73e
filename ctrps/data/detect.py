"""Which format a file has: told by its first lines, or by its name where they cannot tell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ctrps.codec import MAGIC
from ctrps.data.badrows import shown
from ctrps.data.columns import CRITEO_COLUMNS
from ctrps.data.parquet import is_parquet
from ctrps.data.reading import FORMATS, PAIRS
from ctrps.data.streams import STDIN
from ctrps.data.textfile import TextFile
from ctrps.errors import DataError

SUFFIXES = {
    ".shard": "shard",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".libffm": "libffm",
    ".ffm": "libffm",
    ".vw": "vw",
    ".dummy": "dummy",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
}
_PACKED = (".gz", ".zst", ".tar", ".tgz")

_PAIR = re.compile(rb"[0-9]+:[^\s:,]+")
_TRIPLE = re.compile(rb"[0-9]+:[0-9]+:[^\s:,]+")
_NUMBER = rb"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"
# What VW allows in front of the first bar: label, importance, base and tag, or a quoted tag alone.
_VW = re.compile(rb"(?:(?:%b[ \t]+){1,3}'?[^ \t|,]*|(?:'[^ \t|]*[ \t]*)?)\|" % _NUMBER)
_SIGN = re.compile(rb"[-+]?[01]")

LINES = 20
"""Lines that must look like rows of indices alone: one could be the numbers of a table."""


class Detected(NamedTuple):
    """A format, and what it was told by."""

    format: str
    why: str


PARQUET = Detected("parquet", "it starts as Parquet files do")


def detect(path: Path) -> Detected:
    """The format of a file.

    Raises
    ------
    DataError
        When neither content nor name can tell, or the file cannot be read.
    """
    if is_parquet(path):
        return PARQUET
    with TextFile(path, chunk_bytes=1 << 16) as file:
        return detect_open(file)


def detect_open(file: TextFile) -> Detected:
    """The format of a file at its start; reads ahead, but consumes nothing.

    Raises
    ------
    DataError
        As ``detect``.
    """
    if _is_shard(file):
        return Detected("shard", "it starts as files of ctrps do")
    if file.parquet:
        return PARQUET
    first = file.first_line()
    named, suffix = _by_name(file.path)
    found = _pairs(first) or (None if named in PAIRS else _table(first))
    if not found and named in (None, "libsvm", "dummy"):
        found = _indices(file, first)
    if found:
        return found
    if named:
        return Detected(named, f"its name ends in {suffix}")
    hint = f"name it with data.format: {', '.join(FORMATS[1:])}"
    raise DataError(
        f"cannot tell its format from {shown(first)}",
        where=file.name,
        hint=hint,
        id="E-DATA-FORMAT",
    )


def is_shard(path: Path) -> bool:
    """Whether a file starts as files of ctrps do; standard input never does."""
    if path == STDIN or is_parquet(path):
        return False
    with TextFile(path, chunk_bytes=1 << 9) as file:
        return _is_shard(file)


def _is_shard(file: TextFile) -> bool:
    return file.buffer[:6].tobytes() == MAGIC[:6]


def _by_name(path: Path) -> tuple[str | None, str]:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _PACKED]
    suffix = suffixes[-1] if suffixes else ""
    return SUFFIXES.get(suffix), suffix


def _pairs(first: bytes) -> Detected | None:
    tokens = first.split()
    label = tokens[:1] if tokens and b":" not in tokens[0] else []
    features = tokens[len(label) :]
    if features and all(_PAIR.fullmatch(token) for token in features):
        return Detected("libsvm", "its first line holds key:value pairs")
    if features and all(_TRIPLE.fullmatch(token) for token in features):
        return Detected("libffm", "its first line holds field:key:value triples")
    if _VW.match(first.lstrip()):
        return Detected("vw", "its first line has a bar behind the label")
    return None


def _indices(file: TextFile, first: bytes) -> Detected | None:
    whole = file.buffer[: 1 << 16].tobytes().rpartition(b"\n")[0]
    lines = [line for line in whole.split(b"\n") if line.strip()] or [first]
    counts = [_count_indices(line) for line in lines[:LINES]]
    if min(counts) < 0 or max(counts) < 2:
        return None
    return Detected("dummy", "its first lines hold a label and indices in ascending order")


def _count_indices(line: bytes) -> int:
    """Ascending whole numbers behind a label, all between blanks; -1 where there is more."""
    label, *tokens = line.split() or [b""]
    whole = all(token.isdigit() and len(token) <= 20 for token in tokens)
    if b"\t" in line or not _SIGN.fullmatch(label) or not whole:
        return -1
    indices = [int(token) for token in tokens]
    return len(indices) if indices == sorted({*indices}) else -1


def _table(first: bytes) -> Detected | None:
    if first.lstrip().startswith(b"{"):
        return Detected("jsonl", "its first line starts with a brace")
    if _is_criteo(first.split(b"\t")):
        return Detected("criteo", "its first line has a label, 13 whole numbers and 26 hashes")
    tab, comma = b"\t" in first, b"," in first
    if tab != comma:
        form, what = ("tsv", "tabs") if tab else ("csv", "commas")
        return Detected(form, f"its first line has {what}")
    return None


def _is_criteo(found: list[bytes]) -> bool:
    label = found[: len(found) - len(CRITEO_COLUMNS)]
    numbers, hashes = found[len(label) :][:13], found[len(label) :][13:]
    return (
        len(found) in (len(CRITEO_COLUMNS), len(CRITEO_COLUMNS) + 1)
        and all(re.fullmatch(rb"[-+]?[01]", text) for text in label)
        and all(re.fullmatch(rb"-?[0-9]*", text) for text in numbers)
        and all(re.fullmatch(rb"([0-9a-f]{8})?", text) for text in hashes)
        and any(hashes)
    )
