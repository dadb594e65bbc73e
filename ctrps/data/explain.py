"""How each feature of one row came to be: fields, operator, text of the value, key.

It shows what the extraction of shards computes, with the same program, and computes nothing of
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.config import JobConfig
from ctrps.data.badrows import BadRows
from ctrps.data.extract import FEATURES, feature_settings
from ctrps.data.features import load_spec
from ctrps.data.program import Extractor
from ctrps.data.samplelines import read_sample
from ctrps.data.sampletext import SampleText
from ctrps.data.spec import Feature, FeatureSpec
from ctrps.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class Explained:
    """One feature of a row.

    Attributes
    ----------
    name, operator
    slot
        Number of a sparse feature among them; None for a dense one.
    fields
        Text of each field that it reads, by name.
    number
        A dense feature's value.
    values, keys
        A sparse feature's values as ``prefix=text``, and their keys.
    """

    name: str
    operator: str
    slot: int | None
    fields: dict[str, str]
    number: float | None
    values: list[str]
    keys: list[int]


@dataclass(frozen=True, slots=True)
class ExplainedRow:
    """One row: where it stands, its label and id, and all its features, dense ones first."""

    where: str
    label: float | None
    id: str | None
    features: list[Explained]

    def to_dict(self) -> dict[str, Any]:
        features = [
            {key: getattr(one, key) for key in Explained.__slots__} for one in self.features
        ]
        return {"where": self.where, "label": self.label, "id": self.id, "features": features}


def explain(job: JobConfig, row: str) -> ExplainedRow:
    """Explain a row of the samples that a job's sample stage has left.

    What the features file leaves open is taken as the features stage has fitted it.

    Parameters
    ----------
    job
    row
        ``N``, the N-th row of the first training file, or ``FILE:N``, such as
        ``test-00000:3``.

    Raises
    ------
    ConfigError
        When there is no such row, or something must be fitted first.
    DataError
        When the row is bad: it says why, as the features stage would.
    """
    settings = feature_settings(job)
    text, line = _find(Path(job.output.dir) / "samples", row)
    spec = load_spec(settings.spec)
    fitted = Path(job.output.dir) / "data" / FEATURES
    if spec.fits and fitted.exists():
        spec = load_spec(fitted)
    extractor = Extractor(spec, text.header, text.file, drop_missing=settings.drop_missing)
    rows = extractor.rows(text, line, BadRows())
    fields = _fields(spec, text, line)
    counts = rows.counts[0].tolist()
    names = _names(extractor, text, line, rows.keys)
    features = [
        Explained(name, f.operator, None, _of(f, fields), float(number), [], [])
        for name, f, number in zip(spec.dense_names, spec.dense, rows.dense[0], strict=True)
    ]
    at = 0
    for slot, (name, f) in enumerate(zip(spec.slots, spec.sparse, strict=True)):
        here = slice(at, at + counts[slot])
        keys = [int(key) for key in rows.keys[here]]
        features.append(Explained(name, f.operator, slot, _of(f, fields), None, names[here], keys))
        at += counts[slot]
    label = float(rows.labels[0])
    return ExplainedRow(
        where=f"{text.file}:{text.line_of(int(line[0]))}",
        label=None if np.isnan(label) else label,
        id=rows.ids[0].tobytes().decode("utf-8", "backslashreplace") if rows.ids else None,
        features=features,
    )


def _find(samples: Path, row: str) -> tuple[SampleText, np.ndarray]:
    """The text that holds a row, and where it starts, int64[1]."""
    name, _, number = row.rpartition(":")
    files = sorted(samples.glob(f"{name.removesuffix('.tsv') or 'train-*'}.tsv"))
    if not files:
        hint = "run the stage sample first"
        raise DataError(f"no samples {name!r}", where=str(samples), hint=hint, id="E-DATA-MISSING")
    text = read_sample(files[0])
    short = number.isdecimal() and len(number) < 20
    if not short or not 0 < int(number) <= len(text.lines):
        what = f"no row {number!r}: it has rows 1 to {len(text.lines)}"
        raise ConfigError(what, where=text.file, hint="a row is N or FILE:N")
    at = int(number) - 1
    return text, text.lines[at : at + 1]


def _names(extractor: Extractor, text: SampleText, line: np.ndarray, keys: np.ndarray) -> list[str]:
    names, ends = extractor.names(text, line, np.zeros(len(keys), np.int64), keys)
    places = [0, *ends.tolist()]
    return [
        bytes(names[places[i] : places[i + 1]]).decode("utf-8", "backslashreplace")
        for i in range(len(keys))
    ]


def _fields(spec: FeatureSpec, text: SampleText, line: np.ndarray) -> dict[str, str]:
    """The text of every field that features read, derived ones too."""
    names = sorted(spec.needed)
    direct = tuple(Feature(name, "user", "direct", (name,), name) for name in names)
    plain = replace(spec, dense=(), sparse=direct, id=None, label=None)
    extractor = Extractor(plain, text.header, text.file)
    keys = extractor.rows(text, line, BadRows()).keys
    found = _names(extractor, text, line, keys)
    return {name: value[len(name) + 1 :] for name, value in zip(names, found, strict=True)}


def _of(feature: Feature, fields: dict[str, str]) -> dict[str, str]:
    return {name: fields[name] for name in feature.fields}


def explained_lines(row: ExplainedRow) -> Sequence[str]:
    """The row for people: a line for each number, slot and value."""
    label = "-" if row.label is None else f"{row.label:g}"
    lines = [f"row           {row.where}", f"label         {label}"]
    if row.id is not None:
        lines.append(f"id            {row.id}")
    for one in row.features:
        read = ", ".join(f"{name}={text!r}" for name, text in one.fields.items())
        if one.slot is None:
            lines.append(f"number        {one.name} = {one.number:.7g}: {one.operator} of {read}")
            continue
        lines.append(f"slot {one.slot:<8d} {one.name}: {one.operator} of {read}")
        for value, key in zip(one.values, one.keys, strict=True):
            lines.append(f"{'':13s} {value}  key {key}")
        if not one.keys:
            lines.append(f"{'':13s} no value")
    return lines
