"""LR and FM as estimators in the manner of scikit-learn: arrays and data frames in, scores out.

They train in this process, as ``ctrps train`` does: in the default mode the same rows give the
same bits. scikit-learn is neither needed nor imported, but its tools (pipelines, grid search,
``clone``) take them for its own.
"""

from typing import Any, ClassVar

import numpy as np

from ctrps.classifier import Classifier


class FTRLClassifier(Classifier):
    """Logistic regression by FTRL-Proximal, on hashed sparse features.

    Parameters
    ----------
    alpha, beta
        Learning rate of a weight: ``alpha / (beta + sqrt(sum of its squared gradients))``.
    l1, l2
        Penalties on |w| and w²; with l1, weights of rare features stay 0.
    passes
        Walks over the rows in ``fit``.
    batch_rows, lanes
        A step is one minibatch of ``batch_rows`` rows from each of ``lanes`` lanes. None: 256, and
        fewer where a pass over so few rows would not have 512 steps.
    shuffle
        ``chunks``, ``rows`` or ``none``: what comes in another order in each pass.
    seed
        Of that order.
    threads
        Of this process. They change no bit, but in ``fused``.
    fused
        Learn row at a time: faster, with threads not the same each time.
    categorical_features
        Columns of a DataFrame that hold numbers and are categories all the same.

    Attributes
    ----------
    classes_ : array of shape (2,)
    coef_ : array of shape (1, features)
        Of a matrix.
    intercept_ : array of shape (1,)
    n_features_in_ : int
    feature_names_in_ : array of str
        Of a DataFrame.
    history_ : list of dict
        Of each pass its ``rows``, and ``logloss`` and ``auc`` of scores made just before their rows
        were learned: in the first pass, of rows not seen yet.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]] * 200)
    >>> y = np.array(["yes", "no"] * 200)
    >>> model = FTRLClassifier(passes=3).fit(X, y)
    >>> model.predict([[1.0, 0.0], [0.0, 1.0]]).tolist()
    ['yes', 'no']
    """

    _kind = "lr"

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        beta: float = 1.0,
        l1: float = 0.0,
        l2: float = 0.0,
        passes: int = 1,
        batch_rows: int | None = None,
        lanes: int = 4,
        shuffle: str = "chunks",
        seed: int = 1,
        threads: int = 1,
        fused: bool = False,
        categorical_features: Any = None,
    ):
        self.alpha = alpha
        self.beta = beta
        self.l1 = l1
        self.l2 = l2
        self.passes = passes
        self.batch_rows = batch_rows
        self.lanes = lanes
        self.shuffle = shuffle
        self.seed = seed
        self.threads = threads
        self.fused = fused
        self.categorical_features = categorical_features

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the columns of a matrix, float64[1, features]; data frames have none."""
        encoder = self._trained.encoder if hasattr(self, "_trained") else None
        if encoder is not None and (encoder.of_frames or encoder.width is None):
            raise AttributeError("there is no weight per column: see `ctrps inspect`")
        keys = np.arange(1, 1 + getattr(self, "n_features_in_", 0), dtype=np.uint64)
        return self._peek(keys)[0].T.astype(np.float64)


class FMClassifier(Classifier):
    """A factorization machine: w by FTRL-Proximal, v by AdaGrad, on hashed sparse features.

    Parameters
    ----------
    dim
        Length of a feature's vector v; a pair of features adds the product of theirs.
    init_scale
        Standard deviation of v at the start.
    v_alpha, v_beta, v_l2
        Learning rate and penalty of v.
    count_scale
        c0: a feature in c rows of a step has its summed gradient of v divided by 1 + c / c0.
    alpha, beta, l1, l2, passes, batch_rows, lanes, shuffle, seed, threads, fused
        As for ``FTRLClassifier``; alpha, beta, l1 and l2 are of w.
    categorical_features
        As there.

    Attributes
    ----------
    classes_, intercept_, n_features_in_, feature_names_in_, history_
        As for ``FTRLClassifier``.
    """

    _kind = "fm"
    _own: ClassVar = {
        "dim": "model.dim",
        "init_scale": "model.init_scale",
        "v_alpha": "optimizer.v.alpha",
        "v_beta": "optimizer.v.beta",
        "v_l2": "optimizer.v.l2",
        "count_scale": "optimizer.v.count_scale",
    }

    def __init__(
        self,
        *,
        dim: int = 8,
        init_scale: float = 0.01,
        alpha: float = 0.1,
        beta: float = 1.0,
        l1: float = 0.0,
        l2: float = 0.0,
        v_alpha: float = 0.05,
        v_beta: float = 1.0,
        v_l2: float = 0.0,
        count_scale: float = 16.0,
        passes: int = 1,
        batch_rows: int | None = None,
        lanes: int = 4,
        shuffle: str = "chunks",
        seed: int = 1,
        threads: int = 1,
        fused: bool = False,
        categorical_features: Any = None,
    ):
        self.dim = dim
        self.init_scale = init_scale
        self.alpha = alpha
        self.beta = beta
        self.l1 = l1
        self.l2 = l2
        self.v_alpha = v_alpha
        self.v_beta = v_beta
        self.v_l2 = v_l2
        self.count_scale = count_scale
        self.passes = passes
        self.batch_rows = batch_rows
        self.lanes = lanes
        self.shuffle = shuffle
        self.seed = seed
        self.threads = threads
        self.fused = fused
        self.categorical_features = categorical_features
