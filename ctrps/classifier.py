"""What the estimators have in common: checks of input, training, scores, files, pickling.

Their parameters are settings of a job by shorter names; ``estimators`` states them.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ctrps import checkpoint
from ctrps.config import JobConfig, load_job
from ctrps.data.rows import Schema
from ctrps.errors import CheckpointError, ConfigError, DataError
from ctrps.frames import MATRIX, Encoder, as_known, shaped
from ctrps.kernels import losses
from ctrps.loaded import LoadedModel
from ctrps.models import INTERCEPT_KEY
from ctrps.runtime import saving
from ctrps.runtime.rundir import manifest_of
from ctrps.trained import Trained, at
from ctrps.verify import model_home

ESTIMATOR = "estimator"
"""Where a manifest keeps what only an estimator knows."""

STEPS = 512
"""Of a pass. A model of some thousand rows learns little in fewer: with 256 rows in a minibatch the
log loss of three small data sets was 1.2 to 2.9 times that with this many steps."""

SHARED = {
    "alpha": "optimizer.w.alpha",
    "beta": "optimizer.w.beta",
    "l1": "optimizer.w.l1",
    "l2": "optimizer.w.l2",
    "passes": "train.passes",
    "batch_rows": "train.batch_rows",
    "lanes": "train.lanes",
    "shuffle": "train.shuffle",
    "seed": "train.seed",
    "threads": "train.threads",
    "fused": "train.fused",
}
"""Parameters of both estimators, and the settings of a job that they are."""


def fitting_batch_rows(rows: int, lanes: int) -> int:
    """Rows of a minibatch with which few rows still make ``STEPS`` steps: at most 256, the default.

    Examples
    --------
    >>> [fitting_batch_rows(rows, lanes=4) for rows in (150, 10_000, 100_000, 1_000_000)]
    [1, 4, 48, 256]
    """
    return min(256, max(1, rows // max(lanes * STEPS, 1)))


class Classifier:
    """What both estimators have in common; their parameters are those of ``__init__``."""

    _kind = ""
    _own: ClassVar[dict[str, str]] = {}
    passes: int
    lanes: int
    batch_rows: int | None
    categorical_features: Any
    classes_: np.ndarray
    _trained: Trained
    history_: list[dict[str, Any]]

    def fit(self, X: Any, y: Any) -> Self:
        """Train anew.

        Parameters
        ----------
        X : DataFrame, array or sparse matrix of shape (rows, features)
        y : array of shape (rows,)
            Two classes; the greater one is the click.

        Raises
        ------
        ValueError
            X, y or a parameter cannot be used as it is.
        """
        X, labels, classes = self._checked(X, y, None)
        encoder = Encoder.of(X, self.categorical_features)
        trained = Trained.new(self._job(encoder.schema, len(labels)), encoder)
        return self._learn(trained, X, labels, classes, self.passes)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Go on with one pass over these rows, or begin.

        Parameters
        ----------
        X, y
            As for ``fit``.
        classes : array of shape (2,), optional
            Both classes, for a first call whose rows are of one of them.
        """
        trained = getattr(self, "_trained", None)
        known = getattr(self, "classes_", None)
        if classes is not None:
            stated = np.unique(np.asarray(classes))
            if known is not None and not np.array_equal(stated, known):
                raise ValueError(f"`classes={classes!r}` is not the same as before: {known!r}")
            known = stated
        X, labels, known = self._checked(X, y, known)
        if trained is None:
            encoder = Encoder.of(X, self.categorical_features)
            trained = Trained.new(self._job(encoder.schema, len(labels)), encoder)
        return self._learn(trained, X, labels, known, 1)

    def _learn(
        self, trained: Trained, X: Any, labels: np.ndarray, classes: np.ndarray, passes: int
    ) -> Self:
        rows = trained.encoder.rows(X, labels, type(self).__name__)
        try:
            told = trained.train(rows, passes)
        except DataError as error:
            raise ValueError(f"{error.what}: scale X, or lower the rate") from None
        first = not trained.passes > len(told)
        self._trained = trained
        self.classes_ = classes
        self.history_ = told if first else [*getattr(self, "history_", []), *told]
        self._set_features(trained.encoder)
        return self

    def _set_features(self, encoder: Encoder) -> None:
        if encoder.width is not None:
            self.n_features_in_ = encoder.width
        if encoder.names is not None:
            self.feature_names_in_ = np.array(encoder.names, object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of ``classes_[1]``, float64[rows]."""
        trained = self._fitted()
        X = shaped(as_known(X), type(self).__name__)
        nothing = np.full(X.shape[0], np.nan, np.float32)
        rows = trained.encoder.rows(X, nothing, type(self).__name__)
        return trained.margins(rows).astype(np.float64)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of both classes, float64[rows, 2]."""
        margins = self.decision_function(X).astype(np.float32)
        # Not 1 - p, which would be 0 for every small one.
        found = np.empty((2, len(margins)))
        losses.sigmoid_rows(-margins, found[0])
        losses.sigmoid_rows(margins, found[1])
        return np.ascontiguousarray(found.T)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The likelier class of each row."""
        clicks = self.decision_function(X) > 0
        found: np.ndarray = self.classes_[clicks.astype(int)]
        return found

    def score(self, X: Any, y: Any) -> float:
        """Share of rows whose class is predicted."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    @property
    def intercept_(self) -> np.ndarray:
        """The weight that every row has, float64[1]."""
        return self._peek(np.empty(0, np.uint64))[1][0].astype(np.float64)

    def _peek(self, keys: np.ndarray) -> tuple[np.ndarray, ...]:
        """Weights of keys and of the intercept."""
        if not hasattr(self, "_trained"):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet")
        return self._trained.partitions.peek((keys, np.array([INTERCEPT_KEY], np.uint64)))

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder without one, as `ctrps predict`, `inspect`, … read it.

        Raises
        ------
        ConfigError
            A model is there.
        CheckpointError
            It cannot be written.
        """
        trained, home = self._fitted(), Path(folder).absolute()
        if checkpoint.manifests(home):
            raise ConfigError("a model is there", where=str(folder), hint="choose another place")
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot write there: {error.strerror}"
            raise CheckpointError(what, where=str(folder)) from None
        model, job = trained.partitions.model, at(trained.job, home.parent)
        states = dict(enumerate(trained.partitions.snapshot()))
        files = saving.write_partitions(home, model, states, 0, view=0, node=0)
        position = (0, max(trained.passes - 1, 0), trained.partitions.step)
        manifest = manifest_of(job, trained.encoder.schema, trained.plan, position, True)
        own = {
            "classes": self.classes_.tolist(),
            "names": None if trained.encoder.names is None else list(trained.encoder.names),
            "width": trained.encoder.width,
            "categorical": list(self.categorical_features or ()),
        }
        tables = [[table.name, table.dim, table.width] for table in model.tables]
        data = manifest.data | {ESTIMATOR: own}
        checkpoint.commit(home, replace(manifest, tables=tables, files=tuple(files), data=data))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The model of a folder or URL, whether an estimator, `ctrps train` or a cluster made it.

        Its classes are 0 and 1 if it does not say. It can be trained on by ``partial_fit``.

        Raises
        ------
        CheckpointError
            There is no model, or it is damaged.
        ValueError
            It is of another kind, or of rows that no X can be: features extracted from logs.
        """
        loaded = LoadedModel.open(model_home(folder))
        cls._check_fits(loaded)
        own = loaded.manifest.data.get(ESTIMATOR, {})
        names = own.get("names")
        encoder = Encoder(loaded.schema, None if names is None else tuple(names), own.get("width"))
        found = cls(**cls._params_of(loaded.job))
        found.categorical_features = own.get("categorical") or None
        job = loaded.job.model_copy(update={"data": found._job(loaded.schema, 0).data})
        passes = loaded.manifest.pass_ + 1
        found._trained = Trained(job, encoder, loaded.partitions, passes, loaded.manifest.plan)
        found.classes_ = np.array(own.get("classes", [0, 1]))
        found.history_ = []
        found._set_features(encoder)
        return found

    @classmethod
    def _check_fits(cls, loaded: LoadedModel) -> None:
        job, schema, what = loaded.job, loaded.schema, None
        kinds = tuple(part.optimizer.kind for part in loaded.model.tables[0].parts)
        if loaded.model.kind != cls._kind:
            what = f"it is of kind {loaded.model.kind}"
        elif kinds != ("ftrl", "adagrad")[: len(kinds)] or job.train.transfer != "float32":
            what = f"it learns by {', '.join(kinds)} in {job.train.transfer}"
        elif schema.features:
            what = "its rows are features extracted from logs: score them by `ctrps predict`"
        elif schema.weights == "value" and schema != MATRIX:
            what = "its rows have slots with values: score them by `ctrps predict`"
        if what:
            raise ValueError(f"{loaded.folder}: {cls.__name__} cannot be this model: {what}")

    @classmethod
    def _params_of(cls, job: JobConfig) -> dict[str, Any]:
        """The parameters that describe a job."""
        found = {}
        for name, key in {**SHARED, **cls._own}.items():
            value: Any = job
            for part in key.split("."):
                value = getattr(value, part)
            found[name] = value
        return found

    def _job(self, schema: Schema, rows: int) -> JobConfig:
        """The job that the parameters describe; ValueError for one that is wrong."""
        stated = {key: getattr(self, name) for name, key in {**SHARED, **self._own}.items()}
        if self.batch_rows is None and isinstance(self.lanes, int):
            stated["train.batch_rows"] = fitting_batch_rows(rows, self.lanes)
        settings = [f"{key}={_text(value)}" for key, value in stated.items()]
        try:
            job = load_job(None, [f"model.kind={self._kind}", *settings], {})
        except ConfigError as error:
            names = {key: name for name, key in {**SHARED, **self._own}.items()}
            text = str(error)
            for key, name in names.items():
                text = text.replace(key, name)
            raise ValueError(f"{type(self).__name__}: {text}") from None
        data = job.data.model_copy(update={"numeric": schema.dense})
        return job.model_copy(update={"data": data})

    def _checked(
        self, X: Any, y: Any, classes: np.ndarray | None
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """X, labels 0 and 1 as float32[rows], and both classes."""
        name = type(self).__name__
        if y is None:
            raise ValueError(f"{name} requires y to be passed, but the target y is None")
        X = shaped(as_known(X), name)
        y = _target(y)
        if len(y) != X.shape[0]:
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: "
                f"[{X.shape[0]}, {len(y)}]"
            )
        try:
            found = np.unique(y)
        except TypeError:
            raise ValueError("y has values that are missing, or of several kinds") from None
        if classes is None:
            classes = found
        if len(classes) > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass"
            )
        if len(classes) < 2:
            raise ValueError(f"two classes are needed, y has only one class: {classes.tolist()}")
        unknown = [value for value in found.tolist() if value not in classes]
        if unknown:
            raise ValueError(f"y has a class {unknown[0]!r} besides {classes.tolist()}")
        return X, (y == classes[1]).astype(np.float32), classes

    def _fitted(self) -> Trained:
        if not hasattr(self, "_trained"):
            error = _sklearn("NotFittedError", ValueError)
            what = f"This {type(self).__name__} instance is not fitted yet. Call 'fit' first."
            raise error(what)
        return self._trained

    @classmethod
    def _names(cls) -> list[str]:
        return list(inspect.signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; they hold from the next ``fit`` on."""
        for name, value in params.items():
            if name not in self._names():
                names = ", ".join(self._names())
                raise ValueError(f"Invalid parameter {name!r} for {self!r}: it has {names}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if "_trained" in state:
            state["_trained"] = state["_trained"].arrays()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_trained" in state:
            self._trained = Trained.of(state["_trained"])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_trained")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn, which asks, wants to know."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False),
            input_tags=InputTags(sparse=True),
        )


def _text(value: Any) -> str:
    """A parameter as a job file says it."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    return str(value.item() if isinstance(value, np.generic) else value)


def _sklearn(name: str, otherwise: type[Exception]) -> Any:
    """A class of ``sklearn.exceptions`` where that is loaded, for those who catch it."""
    return getattr(sys.modules.get("sklearn.exceptions"), name, otherwise)


def _target(y: Any) -> np.ndarray:
    """y as an array of classes."""
    found = np.asarray(y)
    if found.ndim == 2 and found.shape[1] == 1:
        what = (
            "A column-vector y was passed when a 1d array was expected. Please change the shape "
            "of y to (n_samples,), for example using ravel()."
        )
        warnings.warn(what, _sklearn("DataConversionWarning", UserWarning), stacklevel=4)
        found = found.ravel()
    if found.ndim != 1:
        raise ValueError(f"y should be a 1d array, got an array of shape {found.shape} instead.")
    if found.dtype.kind == "c":
        raise ValueError("Complex data not supported")
    if found.dtype.kind == "f":
        if not np.isfinite(found).all():
            raise ValueError("Input y contains NaN, infinity or a value too large.")
        if (found != np.floor(found)).any():
            raise ValueError("Unknown label type: continuous. Classes are text or whole numbers.")
    return found
