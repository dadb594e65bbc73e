"""Files of labelled rows, or of scores -> how good the scores are.

Not here: the figures (``figures``), how they are shown (``cli_predict``, ``evaluationpage``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.data.kept import FactorMaker
from ctrps.data.streams import STDIN
from ctrps.errors import ConfigError, DataError
from ctrps.figures import Asked, Judged, Scored, Tally, approximated, judge
from ctrps.loaded import LoadedModel
from ctrps.predict import Predictions, predict
from ctrps.scorefiles import score_rows


def score_files(
    loaded: LoadedModel,
    paths: Sequence[Path],
    asked: Asked,
    other: LoadedModel | None = None,
    *,
    max_bad: float = 0.0,
    format: str = "auto",
) -> Scored:
    """Score the labelled rows of files by a model, or by two; parameters as for ``predict``.

    Raises
    ------
    DataError
        As ``predict``, for a row without a label, and if two models do not read the same rows.
    ConfigError
        If two models were to read standard input.
    """
    how: dict[str, Any] = {"labels": "required", "max_bad": max_bad, "format": format}
    if other is not None and STDIN in paths:
        what, hint = "standard input can be read only once", "compare models on a file"
        raise ConfigError(what, where="--data", hint=hint)
    found = predict(loaded, paths, keep=asked.columns, **how)
    second = None if other is None else _second(other, paths, how)
    scored = _gathered(found, asked)
    if second is not None:
        others = _gathered(second, Asked())
        if not np.array_equal(others.labels, scored.labels):
            what = f"the models read {len(scored.labels):,} and {len(others.labels):,} rows of them"
            hint = "compare them on rows that both can read: leave out --max-bad"
            raise DataError(what, where=str(paths[0]), hint=hint)
        scored = replace(scored, others=others.probabilities)
    return replace(scored, facts=facts_of(found))


def _second(other: LoadedModel, paths: Sequence[Path], how: dict[str, Any]) -> Predictions:
    """Predictions of the model to compare with; errors say that it is this one."""
    try:
        return predict(other, paths, **how)
    except DataError as error:
        where = f"--compare {other.folder}: {error.where}"
        raise DataError(error.what, where=where, hint=error.hint, id=error.id) from None


def facts_of(found: Predictions) -> dict[str, Any]:
    """``occurrences`` of features, those ``unknown`` to the model, ``rejected`` rows, ``notes``."""
    return {
        "occurrences": found.occurrences,
        "unknown": found.unknown,
        "unknown_share": found.unknown / found.occurrences if found.occurrences else None,
        "rejected": found.rejected,
        "notes": found.notes,
    }


def _gathered(found: Predictions, asked: Asked) -> Scored:
    """All scores in memory: 12 bytes for each row, and 8 for each of its columns."""
    made = {name: FactorMaker(name in asked.by) for name in asked.columns}
    parts = []
    for part in found:
        parts.append((part.probabilities, part.labels))
        for maker, column in zip(made.values(), part.kept, strict=True):
            maker.add(column)
    return Scored(
        _joined([probabilities for probabilities, _ in parts], np.float64),
        _joined([labels for _, labels in parts], np.float32),
        {name: maker.made() for name, maker in made.items()},
    )


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts])


def judge_model(
    loaded: LoadedModel,
    paths: Sequence[Path],
    asked: Asked,
    other: LoadedModel | None = None,
    *,
    approx: bool = False,
    max_bad: float = 0.0,
    format: str = "auto",
) -> Judged:
    """Judge a model's scores of labelled rows, or two models'; parameters as for ``evaluate``."""
    how: dict[str, Any] = {"max_bad": max_bad, "format": format}
    if not approx:
        return judge(score_files(loaded, paths, asked, other, **how), asked)
    found = predict(loaded, paths, labels="required", **how)
    judged = _approximate((part.probabilities, part.labels) for part in found)
    return replace(judged, figures=judged.figures | facts_of(found))


def judge_scores(
    paths: Sequence[Path],
    asked: Asked,
    other: str | None = None,
    *,
    approx: bool = False,
    score: str = "score",
    label: str = "label",
    format: str = "auto",
) -> Judged:
    """Judge scores in files; parameters as for ``evaluate_scores``."""
    how = {"label": label, "format": format}
    if not approx:
        return judge(read_scores(paths, asked, [score, *([other] if other else [])], **how), asked)
    parts = (part for path in paths for part in score_rows(path, [score], (), **how))
    return _approximate((scores[0], labels) for labels, scores, _ in parts)


def _approximate(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> Judged:
    """Figures of probabilities and labels that need not fit into memory."""
    tally = Tally()
    for probabilities, labels in parts:
        tally.add(probabilities, labels)
    levels = tally.levels()
    return Judged(approximated(levels), levels)


def evaluate(
    loaded: LoadedModel,
    paths: Sequence[Path],
    *,
    group: str | None = None,
    by: Sequence[str] = (),
    other: LoadedModel | None = None,
    approx: bool = False,
    max_bad: float = 0.0,
    format: str = "auto",
) -> dict[str, Any]:
    """How good a model's scores of labelled rows are.

    Parameters
    ----------
    loaded, paths, max_bad, format
        As for ``predict``.
    group
        Column by which to group rows for the grouped AUC; of shards, a slot or ``id``.
    by
        Columns by whose values to slice the rows.
    other
        A model to compare with.
    approx
        Count scores in bins, in memory that does not grow with the rows; no groups, no slices and
        no other model then.

    Returns
    -------
    dict
        ``figures.judge(…).figures`` and ``facts_of``; with ``approx`` see ``approximated``.

    Raises
    ------
    DataError
        As ``predict``, for a row without a label, and if two models do not read the same rows.
    ConfigError
        If two models were to read standard input.
    """
    asked = Asked(group, tuple(by))
    how: dict[str, Any] = {"approx": approx, "max_bad": max_bad, "format": format}
    return judge_model(loaded, paths, asked, other, **how).figures


def evaluate_scores(
    paths: Sequence[Path],
    *,
    group: str | None = None,
    by: Sequence[str] = (),
    other: str | None = None,
    approx: bool = False,
    score: str = "score",
    label: str = "label",
    format: str = "auto",
) -> dict[str, Any]:
    """How good scores in files are, whatever made them.

    Parameters
    ----------
    paths
        Tables with columns ``label`` and ``score`` (a probability), taken together.
    group, by, approx
        As for ``evaluate``.
    other
        Column with scores to compare with.
    score, label
        Names of the columns.
    format
        ``auto`` or one of ``ctrps.data.reading.TABLES``.

    Returns
    -------
    dict
        As ``evaluate``, without facts of a model.

    Raises
    ------
    DataError
        For what cannot be read, a missing column, and a score that is no probability.
    """
    asked = Asked(group, tuple(by))
    how: dict[str, Any] = {"approx": approx, "score": score, "label": label, "format": format}
    return judge_scores(paths, asked, other, **how).figures


def read_scores(
    paths: Sequence[Path], asked: Asked, names: Sequence[str], *, label: str, format: str
) -> Scored:
    """Scores in files: those of the first of ``names``, and of the second, if there is one."""
    made = {name: FactorMaker(name in asked.by) for name in asked.columns}
    parts: list[tuple[np.ndarray, ...]] = []
    for path in paths:
        for labels, found, kept in score_rows(
            path, names, asked.columns, label=label, format=format
        ):
            parts.append((labels, *found))
            for maker, column in zip(made.values(), kept, strict=True):
                maker.add(column)
    labels, *scores = (
        _joined([part[i] for part in parts], np.float64 if i else np.float32)
        for i in range(1 + len(names))
    )
    columns = {name: maker.made() for name, maker in made.items()}
    return Scored(scores[0], labels, columns, scores[1] if len(names) > 1 else None)
