"""What the keys of a model are called, and which keys a name means.

Names come from the files that `ctrps extract` writes beside training shards, or from a table that
the model was trained on; the numbers of a model and the indices of libsvm rows are known without.
A key that nobody wrote down has no name: a hash cannot be turned back.
"""

from __future__ import annotations

import difflib
import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ctrps.data.detect import is_shard
from ctrps.data.features import parse_spec
from ctrps.data.names import SUFFIX, Names, read_names
from ctrps.data.rows import Schema
from ctrps.data.tablenames import table_names
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.keys import dense_key, key_of
from ctrps.loaded import LoadedModel
from ctrps.models import INTERCEPT_KEY
from ctrps.remote import is_url

INTERCEPT = "intercept"
CROSS = "#"


def names_beside(loaded: LoadedModel, data: Sequence[Path] = ()) -> list[Path]:
    """Where the keys of a model have their names from, as far as it is still there.

    Files of names beside the training files that its job states, or in ``data/`` of the run that
    the model lies in, which may have been moved; for a model of tables, these, or else those of
    ``data``, rows to look at.
    """
    patterns = map(str, loaded.job.data.train)
    train = [Path(path) for pattern in patterns for path in sorted(glob.glob(pattern))]
    found = [path for path in (file.with_suffix(SUFFIX) for file in train) if path.exists()]
    if not found and not is_url(str(loaded.folder)):
        found = sorted((loaded.folder.absolute().parent / "data").glob(f"*{SUFFIX}"))
    if not found and _of_tables(loaded.schema):
        tables = ([path for path in some if _is_text(path)] for some in (train, data))
        found = next(filter(None, tables), [])
    return found


def _is_text(path: Path) -> bool:
    return path.is_file() and not is_shard(path)


def _of_tables(schema: Schema) -> bool:
    """Whether slots are columns, whose values are their texts."""
    return schema.weights == "mean" and not schema.features and bool(schema.slots)


def _read(loaded: LoadedModel, paths: list[Path]) -> Names | None:
    """Names out of files of names, or out of tables."""
    for path in paths:
        if not path.exists():
            raise DataError("no such file", where=str(path), id="E-DATA-MISSING")
    listed = [path for path in paths if path.is_dir() or path.suffix == SUFFIX]
    if listed or not paths:
        if len(listed) < len(paths):
            what = "files of names and tables cannot be taken together"
            raise ConfigError(what, where="--names", hint="give the one or the other")
        return read_names(paths) if paths else None
    if not _of_tables(loaded.schema):
        what = f"its name does not end in {SUFFIX}, and the model's rows are of no table"
        raise ConfigError(what, where=str(paths[0]), hint="give what `ctrps extract` wrote")
    return table_names(paths, replace(loaded.text, format="auto"), loaded.schema.slots)


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Names of a model's keys.

    Attributes
    ----------
    names : Names or None
        Out of files.
    files : list of Path
        These.
    schema : Schema
        Of the model's rows.
    prefixes : tuple of str
        What names may begin with.
    """

    names: Names | None
    files: list[Path]
    schema: Schema
    prefixes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        files: Sequence[Path] | None = None,
        data: Sequence[Path] = (),
    ) -> Dictionary:
        """The names in ``files`` (files of names, folders of some, or tables), or in those found.

        Those are looked for by ``names_beside``.

        Raises
        ------
        DataError
            A file is missing or damaged.
        ConfigError
            Files of both kinds, or a table for a model of other rows.
        """
        schema = loaded.schema
        paths = names_beside(loaded, data) if files is None else list(files)
        names = _read(loaded, paths)
        prefixes = [slot for slot in schema.slots if slot]
        if schema.features:
            spec = parse_spec(schema.features, str(loaded.folder), loaded.folder)
            prefixes = [feature.prefix for feature in spec.sparse]
        return cls(names, paths, schema, tuple(dict.fromkeys([*prefixes, *schema.dense])))

    @property
    def indexed(self) -> bool:
        """Whether a key is the index that stood in the data."""
        return self.schema.slots == ("",) and self.schema.weights == "value"

    def of_keys(self, keys: np.ndarray) -> list[str | None]:
        """The name of each of some keys, uint64[k]; None where it is not known."""
        if self.indexed:
            return [str(key) for key in keys.tolist()]
        found = self.names.of(keys) if self.names else [None] * len(keys)
        dense = {dense_key(name): name for name in self.schema.dense}
        pairs = zip(found, keys.tolist(), strict=True)
        return [name if name is not None else dense.get(key) for name, key in pairs]

    def counts(self, keys: np.ndarray) -> np.ndarray:
        """How often each key stands in the rows that were counted for names, int64[k]."""
        counts = np.zeros(len(keys), np.int64)
        if self.names and len(self.names.keys):
            at = np.minimum(np.searchsorted(self.names.keys, keys), len(self.names.keys) - 1)
            held = self.names.keys[at] == keys
            counts[held] = self.names.counts[at[held]]
        return counts

    def field(self, prefix: str) -> str:
        """``prefix``, if names of the model may begin with it.

        Raises
        ------
        ConfigError
            They do not; it names the nearest that does.
        """
        if prefix in self.prefixes:
            return prefix
        what = f"the model has no field {prefix!r}"
        raise ConfigError(what, where="--field", hint=self._hint(prefix))

    def _hint(self, prefix: str) -> str:
        if not self.prefixes:
            return "its rows have no named fields"
        near = difflib.get_close_matches(prefix, self.prefixes, 1)
        some = ", ".join(self.prefixes[:12]) + (", …" if len(self.prefixes) > 12 else "")
        return (f"did you mean {near[0]!r}? " if near else "") + f"it has {some}"

    def keys_of(self, text: str) -> list[int]:
        """Keys that a feature's name may mean, the likeliest first.

        ``prefix=value``, and ``prefix=value#value`` of a cross; the name of a number; an index or
        a key as digits; ``intercept``.

        Raises
        ------
        ConfigError
            No feature of the model is called so.
        """
        prefix, equals, value = text.partition("=")
        keys = []
        if self.names and text in self.names.names:
            keys.append(int(self.names.keys[self.names.names.index(text)]))
        if equals and (prefix in self.prefixes or not self.prefixes):
            data = value.encode("utf-8", "surrogateescape")
            keys.append(key_of(prefix, data))
            if CROSS in value:
                keys.append(key_of(prefix, *data.split(CROSS.encode())))
        elif text in self.schema.dense:
            keys.append(dense_key(text))
        elif text == INTERCEPT:
            keys.append(int(INTERCEPT_KEY))
        elif text.isdecimal() and int(text) < 1 << 64:
            keys.append(int(text))
        if not keys:
            what = f"the model has no feature {text!r}"
            hint = f"a feature is PREFIX=VALUE, a number's name or a key; {self._hint(prefix)}"
            raise ConfigError(what, where="--feature", hint=hint)
        return list(dict.fromkeys(keys))


def field_of(name: str) -> str:
    """What a name begins with; a number's name is its own.

    Examples
    --------
    >>> field_of("cate_id=4520"), field_of("price")
    ('cate_id', 'price')
    """
    return name.partition("=")[0]
