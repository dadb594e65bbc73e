"""Files of scores: written by prediction, read by evaluation.

Text holds numbers as the shortest decimals that read back to the same bits, so nothing is lost
between the two. Where scores come from and how good they are is not known here.
"""

from __future__ import annotations

import codecs
import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np

from ctrps.data.badrows import BadRows
from ctrps.data.formats import open_rows
from ctrps.data.kept import Kept, kept_texts
from ctrps.data.keyed import write_parquet
from ctrps.data.reading import TABLES, TextSettings
from ctrps.data.textout import new_file
from ctrps.errors import DataError
from ctrps.predict import Scores

LINKS = ("proba", "logit")
"""How a score is written: as a probability, or as the log-odds of it."""


def write_scores(
    scores: Iterable[Scores],
    out: IO[str] | Path,
    *,
    link: str = "proba",
    keep: Sequence[str] = (),
) -> int:
    """Write a header and one line per row: its id, if rows have ids, kept columns, its score.

    Parameters
    ----------
    scores
    out
        A stream, whose errors are the caller's; or a path, which takes its new content whole or
        keeps the old one: Parquet if its name ends in ``.parquet``, csv packed by gzip for
        ``.gz``, otherwise csv.
    link
        One of ``LINKS``: column ``score`` of float64, or ``logit`` of float32.
    keep
        Names of the columns that ``scores`` have.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    DataError
        When ``out`` is a path and cannot be written, for lack of room, say; or when a text is no
        UTF-8 and Parquet cannot hold it.
    """
    names = [*keep, "score" if link == "proba" else "logit"]
    if not isinstance(out, Path):
        return _write(scores, out, names)
    if out.suffix == ".parquet":
        return write_parquet(((part.ids, _columns(part, names)) for part in scores), names, out)
    with new_file(out) as file:
        if out.suffix != ".gz":
            return _write(scores, codecs.getwriter("utf-8")(file, "surrogateescape"), names)
        # Without name and time, so that equal scores are equal files.
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            return _write(scores, codecs.getwriter("utf-8")(packed, "surrogateescape"), names)


def _columns(part: Scores, names: list[str]) -> dict[str, list[str] | np.ndarray]:
    """Columns behind the id, by name."""
    score = part.probabilities if names[-1] == "score" else part.margins
    texts = [column.texts() for column in part.kept]
    return dict(zip(names, [*texts, score], strict=True))


def _write(scores: Iterable[Scores], file: IO[str] | codecs.StreamWriter, names: list[str]) -> int:
    writer = csv.writer(file, lineterminator="\n")
    rows = 0
    header: list[str] | None = None
    for part in scores:
        if header is None:
            header = names if part.ids is None else ["id", *names]
            writer.writerow(header)
        *texts, score = _columns(part, names).values()
        columns = [*([part.ids] if part.ids is not None else []), *texts, _shortest(score)]
        writer.writerows(zip(*columns, strict=True))
        rows += len(part.margins)
    if header is None:
        writer.writerow(names)
    return rows


def _shortest(numbers: object) -> list[object]:
    """Numbers as csv writes them: Python has the shortest texts of float64 only."""
    assert isinstance(numbers, np.ndarray)
    return (numbers if numbers.dtype == np.float64 else numbers.astype(str)).tolist()


def score_rows(
    path: Path, scores: Sequence[str], keep: Sequence[str], *, label: str, format: str
) -> Iterator[tuple[np.ndarray, list[np.ndarray], list[Kept]]]:
    """Labels, columns of scores and columns to keep of a file's rows, some thousands at a time.

    Yields
    ------
    float32[rows], list of float64[rows], list of Kept

    Raises
    ------
    DataError
        For what cannot be read, a missing column, and a score that is no probability.
    """
    # As texts, for the readers' numbers are float32 and would tie scores.
    how = TextSettings(format=format, label=label, keep=(*scores, *keep), others=True)
    before = 0
    with open_rows(path, how, BadRows(), fit=_nothing_else) as source:
        if source.format not in TABLES or source.file is None:
            what = f"it is a {source.format} file, and has no column {scores[0]!r}"
            hint = "give csv, tsv, JSON lines or Parquet with a header, or a model"
            raise DataError(what, where=str(path), hint=hint, id="E-DATA-COLUMN")
        for rows in source.rows:
            if rows.rows:
                columns = [kept_texts(texts) for texts in rows.kept]
                numbers = [
                    _probabilities(column.texts(), name, path, before)
                    for name, column in zip(scores, columns, strict=False)
                ]
                yield rows.labels, numbers, columns[len(scores) :]
                before += rows.rows


def _nothing_else(how: TextSettings, names: tuple[str, ...]) -> TextSettings:
    """Of a table with columns of these names, only the label and what is kept is read."""
    return replace(how, ignore=tuple(name for name in names if name != how.label))


def _probabilities(found: list[str], name: str, path: Path, before: int) -> np.ndarray:
    """Probabilities float64[n] of their texts; ``before`` rows of the file come before them."""
    numbers = np.array([_number(text) for text in found], np.float64)
    # Not by their complement: a NaN is wrong as well.
    wrong = ~((numbers >= 0) & (numbers <= 1))
    if wrong.any():
        row = int(wrong.argmax())
        what = f"row {before + row + 1}: a {name} is a probability, 0 to 1, found {found[row]!r}"
        raise DataError(what, where=str(path), id="E-DATA-ROW")
    return numbers


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
