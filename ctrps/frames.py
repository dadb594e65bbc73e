"""Matrices and data frames as rows: what estimators are given.

A matrix is taken as libsvm text is: column j, counted from 0, has the key j + 1, and what is 0 is
left out. A data frame is taken as a csv file is: a column of numbers is a dense feature, any other
a slot whose values are hashed as ``column=value``. Neither pandas nor SciPy is imported here:
whoever has such an object has loaded them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrps.data.rows import Rows, Schema
from ctrps.kernels.fields import keys_of_texts
from ctrps.kernels.keys import namespace

MATRIX = Schema(("",), (), "value")


def is_frame(X: Any) -> bool:
    """Whether X is a pandas DataFrame."""
    return hasattr(X, "iloc") and hasattr(X, "columns")


def is_sparse(X: Any) -> bool:
    """Whether X is a sparse matrix or array of SciPy."""
    return hasattr(X, "tocsr") and hasattr(X, "nnz")


def as_known(X: Any) -> Any:
    """X, or the pandas DataFrame of a frame of another library."""
    return X.to_pandas() if not is_frame(X) and hasattr(X, "to_pandas") else X


def feature_names(X: Any) -> tuple[str, ...] | None:
    """Names of the columns of a frame, if they are text.

    Raises
    ------
    TypeError
        Some are text and some are not.
    """
    if not is_frame(X):
        return None
    text = [isinstance(name, str) for name in X.columns]
    if any(text) and not all(text):
        raise TypeError(
            "Feature names are only supported if all input features have string names: "
            "rename the columns, X.columns = X.columns.astype(str)"
        )
    return tuple(X.columns) if text and all(text) else None


@dataclass(frozen=True, slots=True)
class Encoder:
    """Turns X into rows of one schema.

    Attributes
    ----------
    schema
    names : tuple of str or None
        Columns of a frame, in the order in which they must come; None: they are found by name.
    width : int or None
        Columns of X; None for a matrix of any width.
    """

    schema: Schema
    names: tuple[str, ...] | None
    width: int | None

    @classmethod
    def of(cls, X: Any, categorical: Sequence[str] | None) -> Encoder:
        """The encoder that X itself asks for.

        Parameters
        ----------
        X
            Matrix or frame.
        categorical
            Columns of a frame that hold numbers and are categories all the same.

        Raises
        ------
        ValueError
            ``categorical`` names a column that is not there.
        """
        names = feature_names(X)
        if names is None:
            if categorical:
                raise ValueError("categorical_features are names: give a DataFrame that has them")
            return cls(MATRIX, None, X.shape[1])
        unknown = [name for name in categorical or () if name not in names]
        if unknown:
            raise ValueError(f"X has no column {unknown[0]!r}, which categorical_features names")
        if len({*names}) < len(names):
            raise ValueError("two columns of X have one name")
        dense = [name for name in names if _is_number(X[name]) and name not in (categorical or ())]
        slots = sorted({*names} - {*dense})
        return cls(Schema(tuple(slots), tuple(dense)), names, len(names))

    @property
    def of_frames(self) -> bool:
        return self.schema != MATRIX

    def rows(self, X: Any, labels: np.ndarray, name: str) -> Rows:
        """The rows of X.

        Parameters
        ----------
        X
        labels : float32[rows]
            NaN where there is none.
        name
            Of the estimator, for messages.

        Raises
        ------
        ValueError
            X has other columns than before, or values that are not finite.
        """
        self._check(X, feature_names(X), name)
        if not self.of_frames:
            return _matrix_rows(X, labels)
        if is_frame(X):
            dense = np.empty((len(X), len(self.schema.dense)), np.float32)
            for at, column in enumerate(self.schema.dense):
                dense[:, at] = _numbers(X[column])
        else:
            dense = checked(_array(X))
        keys = np.empty((len(labels), len(self.schema.slots)), np.uint64)
        for at, column in enumerate(self.schema.slots):
            keys[:, at] = _keys(X[column])
        counts = np.ones(keys.shape, np.int32)
        return Rows(keys.reshape(-1), counts, None, dense, labels)

    def _check(self, X: Any, names: tuple[str, ...] | None, name: str) -> None:
        wanted = self.names
        if self.of_frames and names is None:
            if self.schema.slots:
                columns = ", ".join(map(repr, self.schema.slots[:8]))
                raise ValueError(f"X must be a DataFrame: {name} needs its columns {columns}")
            what = f"X does not have valid feature names, but {name} was fitted with feature names"
            warnings.warn(what, UserWarning, stacklevel=4)
        elif names is not None and not self.of_frames:
            what = f"X has feature names, but {name} was fitted without feature names"
            warnings.warn(what, UserWarning, stacklevel=4)
        elif names is not None and wanted is not None and names != wanted:
            raise ValueError(_other_names(names, wanted))
        elif names is not None and wanted is None:
            absent = {*self.schema.slots, *self.schema.dense} - {*names}
            if absent:
                raise ValueError(f"X has no column {min(absent)!r}, which the model needs")
            return
        if self.width is not None and X.shape[1] != self.width:
            raise ValueError(
                f"X has {X.shape[1]} features, but {name} is expecting {self.width} features as "
                "input"
            )


def _other_names(found: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    lines = ["The feature names should match those that were passed during fit."]
    unseen, missing = sorted({*found} - {*wanted}), sorted({*wanted} - {*found})
    for head, names in (
        ("Feature names unseen at fit time:", unseen),
        ("Feature names seen at fit time, yet now missing:", missing),
    ):
        if names:
            lines += [head, *(f"- {name}" for name in names[:5])]
            lines += ["- ..."] if len(names) > 5 else []
    if not unseen and not missing:
        lines.append("Feature names must be in the same order as they were in fit.")
    return "\n".join(lines) + "\n"


def _is_number(column: Any) -> bool:
    kind = getattr(column.dtype, "kind", "O")
    if kind in "mM":
        raise ValueError(f"column {column.name!r} holds times: make it text or a number")
    if kind == "c":
        raise ValueError("Complex data not supported: make it two columns of numbers")
    return kind in "iuf"


def _numbers(column: Any) -> np.ndarray:
    """A column as float32; what is missing is 0, as an empty field of a csv file is."""
    if getattr(column.dtype, "kind", "O") not in "iuf":
        raise ValueError(f"column {column.name!r} must hold numbers, as it did in fit")
    found = column.to_numpy(np.float64, na_value=np.nan)
    return checked(np.where(np.isnan(found), 0, found))


def _keys(column: Any) -> np.ndarray:
    """Keys of the texts of a column; what is missing is the empty text."""
    try:
        codes, values = sys.modules["pandas"].factorize(column)
    except TypeError as error:
        raise TypeError(f"column {column.name!r}: a value is no text ({error})") from None
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    texts.append(b"")
    data = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
    keys = np.empty(len(texts), np.uint64)
    seeds = np.full(len(texts), namespace(column.name), np.uint64)
    keys_of_texts(data, np.cumsum([len(text) for text in texts]), seeds, keys)
    found: np.ndarray = keys[codes]  # -1, the last, where a value is missing
    return found


def _array(X: Any) -> np.ndarray:
    """X as float64[rows, columns]."""
    found = np.asarray(X.toarray() if is_sparse(X) else X)
    if found.dtype.kind == "c":
        raise ValueError(f"Complex data not supported\n{found}\n")
    if found.dtype.kind in "mM":
        raise ValueError("X holds times: make them numbers, or text in a DataFrame")
    try:
        return found.astype(np.float64)
    except ValueError as error:
        raise ValueError(f"{error}: give text in a DataFrame, whose columns are hashed") from None


def checked(numbers: np.ndarray) -> np.ndarray:
    """Numbers as float32, if all are finite there."""
    with np.errstate(over="ignore"):
        found = numbers.astype(np.float32)
    if np.isnan(found).any():
        raise ValueError("Input X contains NaN: fill what is missing")
    if np.isinf(found).any():
        raise ValueError("Input X contains infinity or a value too large for dtype('float32').")
    return found


def _matrix_rows(X: Any, labels: np.ndarray) -> Rows:
    if is_sparse(X):
        matrix = X.tocsr()
        values = checked(_array(matrix.data))
        columns, ends = matrix.indices, matrix.indptr
        if (values == 0).any():
            shown = values != 0
            ends = np.append(0, np.cumsum(shown))[ends]
            columns, values = columns[shown], values[shown]
        sizes = np.diff(ends)
    else:
        numbers = checked(_array(X))
        row, columns = np.nonzero(numbers)
        values, sizes = numbers[row, columns], np.bincount(row, minlength=len(numbers))
    keys = columns.astype(np.uint64) + np.uint64(1)
    counts = sizes.astype(np.int32).reshape(-1, 1)
    return Rows(keys, counts, values, np.empty((len(labels), 0), np.float32), labels)


def shaped(X: Any, name: str) -> Any:
    """X as a frame, a sparse matrix or an array with rows and columns."""
    if not (is_frame(X) or is_sparse(X)):
        X = np.asarray(X)
    if len(X.shape) != 2:
        raise ValueError(
            f"Expected 2D array, got {len(X.shape)}D array instead. Reshape your data either using "
            "X.reshape(-1, 1) if it has a single feature or X.reshape(1, -1) if it is one row."
        )
    for size, what in ((X.shape[0], "sample(s)"), (X.shape[1], "feature(s)")):
        if not size:
            raise ValueError(
                f"Found array with 0 {what} (shape={X.shape}) while a minimum of 1 is required "
                f"by {name}."
            )
    feature_names(X)
    return X
