"""A user's own operators: Python functions from columns of texts to a column of texts.

They run before the program of the features and see some thousands of rows at a time: what they
make becomes further columns of the text, which all other operators may read.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ctrps.data.sampletext import SampleText
from ctrps.data.spec import Derived, FeatureSpec
from ctrps.errors import ConfigError
from ctrps.kernels.lines import split_rows

Function = Callable[..., Sequence[str]]

TAB = np.uint8(9)


@dataclass(frozen=True, slots=True)
class Custom:
    """A derived field and the function that makes it.

    ``columns`` are the numbers, in the file's header, of the fields that it reads.
    """

    derived: Derived
    function: Function
    columns: tuple[int, ...]


def customs_of(spec: FeatureSpec, header: Sequence[str]) -> list[Custom]:
    """Load the functions that a spec needs; ``header`` is that of the text to come.

    Raises
    ------
    ConfigError
        When a file or function is not there, or does not load.
    """
    return [
        Custom(derived, _load(derived, spec), tuple(header.index(f) for f in derived.fields))
        for derived in spec.derivations
        if derived.operator == "python"
    ]


def function_digests(spec: FeatureSpec) -> dict[str, str]:
    """SHA-256 of each file of functions that a spec needs, by its name there."""
    arguments = [one.argument for one in spec.derivations if one.operator == "python"]
    names = {argument.rpartition(":")[0] for argument in arguments}
    paths = {name: spec.folder / name for name in sorted(names)}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in paths.items()
        if path.is_file()
    }


def extended(text: SampleText, lines: np.ndarray, customs: Sequence[Custom]) -> SampleText:
    """Some lines of a text as a text of their own, with a column more for each custom field.

    Lines whose number of fields is wrong get empty ones; they stay wrong.
    """
    fields = len(text.header)
    starts, ends = np.zeros((2, fields, len(lines)), np.int64)
    found = np.empty(len(lines), np.int32)
    every = np.arange(fields, dtype=np.int32)
    split_rows(text.data, lines, TAB, every, starts, ends, found)
    good = np.flatnonzero(found == fields)
    made = []
    for custom in customs:
        columns = [_texts(text.data, starts[c, good], ends[c, good]) for c in custom.columns]
        column = [b""] * len(lines)
        for row, value in zip(good.tolist(), _called(custom, columns, len(good)), strict=True):
            column[row] = value
        made.append(column)
    parts, at, places = [], 0, []
    for line, start in enumerate(lines.tolist()):
        whole = bytes(text.data[start : _line_end(text.data, start)]).removesuffix(b"\r")
        parts.append(b"\t".join([whole, *(column[line] for column in made)]) + b"\n")
        places.append(at)
        at += len(parts[-1])
    data = np.frombuffer(bytearray(b"".join(parts)), np.uint8)
    header = (*text.header, *(custom.derived.name for custom in customs))
    return replace(text, data=data, header=header, lines=np.array(places, np.int64))


def _line_end(data: np.ndarray, start: int) -> int:
    size = 1 << 10
    while True:
        breaks = np.flatnonzero(data[start : start + size] == 10)
        if len(breaks) or start + size >= len(data):
            return start + int(breaks[0]) if len(breaks) else len(data)
        size *= 8


def _texts(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> list[str]:
    return [
        bytes(data[start:end]).decode("utf-8", "surrogateescape")
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _called(custom: Custom, columns: list[list[str]], rows: int) -> list[bytes]:
    """What the function makes of some columns, checked."""
    where = custom.derived.argument
    try:
        values = list(custom.function(*columns))
    except Exception as error:
        what = f"it failed: {type(error).__name__}: {error}"
        raise ConfigError(what, where=where) from error
    if len(values) != rows:
        raise ConfigError(f"it gave {len(values)} values for {rows} rows", where=where)
    for value in values:
        # A return before a line's end would be taken for part of the end.
        if not isinstance(value, str) or {*"\t\n"} & {*value} or value.endswith("\r"):
            what = f"it gave {value!r}; a value is a text without tabs and line ends"
            raise ConfigError(what, where=where)
    return [value.encode("utf-8", "surrogateescape") for value in values]


def _load(derived: Derived, spec: FeatureSpec) -> Function:
    name, _, function = derived.argument.rpartition(":")
    line, column, _ = derived.place
    where = f"{spec.path}:{line}:{column}"
    path = spec.folder / name
    found = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or found is None or found.loader is None:
        raise ConfigError(f"no file {str(path)!r}", where=where)
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:
        what = f"{path} does not load: {type(error).__name__}: {error}"
        raise ConfigError(what, where=where) from error
    made = getattr(module, function, None)
    if not callable(made):
        raise ConfigError(f"{path} has no function {function!r}", where=where)
    return made
