"""The estimators: checks of scikit-learn, bits of ``ctrps train``, files, pickles, wrong input."""

import copy
import json
import pickle
import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import ctrps
from ctrps import FMClassifier, FTRLClassifier, checkpoint
from ctrps.cli import app
from ctrps.errors import CheckpointError, ConfigError
from ctrps.screen import status_of

run = partial(status_of, app)
BOTH = [FTRLClassifier, FMClassifier]

with warnings.catch_warnings():
    # Its base class is not inherited, so that it need not be there.
    warnings.filterwarnings("ignore", "Estimator .* does not inherit")
    all_checks = parametrize_with_checks([FTRLClassifier(), FMClassifier(dim=4)])


@all_checks
@pytest.mark.filterwarnings("ignore:Estimator .* does not inherit")
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


def rows(count=900, seed=5):
    """A data frame of two categories and two numbers, and labels that depend on them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "price": rng.exponential(size=count).round(3),
            "city": rng.choice(["London", "Paris", "Rome", "São Paulo"], count),
            "age": rng.integers(18, 70, count),
            "device": pd.Categorical(rng.choice(["phone", "pc"], count)),
        }
    )
    odds = -1 + 1.5 * (frame["city"] == "Paris") + 0.3 * frame["price"]
    odds += 1.5 * ((frame["city"] == "Rome") & (frame["device"] == "pc")).astype(float)
    labels = (rng.random(count) < 1 / (1 + np.exp(-odds))).astype(int).to_numpy()
    frame["price"] /= 4
    frame["age"] = frame["age"] / 64
    return frame, labels


def train(folder, frame, labels, *settings):
    """`ctrps train` on the same rows as a csv file; returns the digest of its model."""
    path = folder / "rows.csv"
    frame.assign(label=labels).to_csv(path, index=False)
    stated = [f"data.train={path}", f"output.dir={folder / 'run'}", *settings]
    if numeric := [name for name in frame if frame[name].dtype.kind in "iuf"]:
        stated.append(f"data.numeric={','.join(numeric)}")
    assert run(["train", *(word for one in stated for word in ("--set", one))]) == 0
    return digest(folder / "run" / "model")


def digest(model):
    return checkpoint.read_manifest(model).model_digest


def saved(estimator, folder):
    estimator.save(folder)
    return digest(folder)


@pytest.mark.parametrize(
    ("estimator", "settings"),
    [
        (FTRLClassifier(passes=2, batch_rows=32, l1=0.1), ["optimizer.l1=0.1"]),
        (FTRLClassifier(passes=2, batch_rows=32, threads=2), []),
        (FMClassifier(passes=2, batch_rows=32, dim=4), ["model.kind=fm", "model.dim=4"]),
        (FTRLClassifier(passes=2, batch_rows=32, fused=True), ["train.fused=true"]),
    ],
    ids=["lr", "threads", "fm", "fused"],
)
def test_the_bits_are_those_of_ctrps_train(tmp_path, estimator, settings):
    frame, labels = rows()
    wanted = train(tmp_path, frame, labels, "train.passes=2", "train.batch_rows=32", *settings)
    assert saved(estimator.fit(frame, labels), tmp_path / "mine") == wanted


def test_a_matrix_is_libsvm_text_that_counts_from_1(tmp_path):
    rng = np.random.default_rng(2)
    dense = rng.standard_normal((400, 6)).round(3) * (rng.random((400, 6)) < 0.5)
    labels = (dense[:, 0] - dense[:, 3] > 0).astype(int)
    with open(tmp_path / "rows.svm", "w") as file:
        for row, label in zip(dense, labels, strict=True):
            pairs = " ".join(f"{j + 1}:{row[j]}" for j in np.flatnonzero(row))
            file.write(f"{label} {pairs}\n")
    stated = [f"data.train={tmp_path / 'rows.svm'}", f"output.dir={tmp_path / 'run'}"]
    assert run(["train", *(word for one in stated for word in ("--set", one))]) == 0
    wanted = digest(tmp_path / "run" / "model")
    for number, X in enumerate([dense, scipy.sparse.coo_array(dense), pd.DataFrame(dense)]):
        model = FTRLClassifier(batch_rows=256).fit(X, labels)
        assert saved(model, tmp_path / f"m{number}") == wanted
    stored = scipy.sparse.csr_matrix(dense)
    stored.data[::7] = 0  # zeros that are there
    np.testing.assert_array_equal(
        model.decision_function(stored), model.decision_function(stored.toarray())
    )
    assert saved(FTRLClassifier().fit(stored, labels), tmp_path / "a") == saved(
        FTRLClassifier().fit(stored.toarray(), labels), tmp_path / "b"
    )


def test_coefficients_are_the_weights_of_columns():
    X = np.random.default_rng(4).standard_normal((300, 5))
    y = X[:, 2] > 0.3
    model = FTRLClassifier().fit(X, y)
    margins = X.astype(np.float32) @ model.coef_[0] + model.intercept_[0]
    np.testing.assert_allclose(margins, model.decision_function(X), atol=1e-5)
    assert model.coef_.shape == (1, 5) and not hasattr(FTRLClassifier(), "coef_")
    assert not hasattr(FTRLClassifier().fit(pd.DataFrame(X, columns=list("abcde")), y), "coef_")
    assert not hasattr(FMClassifier(), "intercept_")


@pytest.mark.parametrize("kind", BOTH)
def test_what_is_saved_is_read_by_the_commands(tmp_path, kind, capsys):
    frame, labels = rows(300)
    model = kind(passes=2, batch_rows=32).fit(frame, labels)
    model.save(tmp_path / "model")
    frame.to_csv(tmp_path / "new.csv", index=False)
    words = ["--model", str(tmp_path / "model"), "--data", str(tmp_path / "new.csv")]
    assert run(["predict", *words, "-o", str(tmp_path / "scores.csv")]) == 0
    scores = pd.read_csv(tmp_path / "scores.csv")["score"].to_numpy()
    np.testing.assert_array_equal(model.predict_proba(frame)[:, 1], scores)
    capsys.readouterr()
    assert run(["inspect", str(tmp_path / "model"), "--feature", "city=Paris", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["held"]
    assert run(["checkpoint", "verify", str(tmp_path / "model")]) == 0
    back = kind.load(tmp_path / "model")
    np.testing.assert_array_equal(back.decision_function(frame), model.decision_function(frame))
    assert back.feature_names_in_.tolist() == list(frame) and back.n_features_in_ == 4
    assert back.get_params() == model.get_params()
    with pytest.raises(ConfigError, match="a model is there"):
        model.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="cannot write there"):
        model.save(tmp_path / "new.csv" / "model")


@pytest.mark.parametrize("kind", BOTH)
def test_a_model_of_the_commands_is_loaded_and_trained_on(tmp_path, kind):
    frame, labels = rows()
    own = [f"model.kind={kind._kind}", "train.partitions=8", "train.batch_rows=32"]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    train(tmp_path / "one", frame, labels, "train.passes=1", *own)
    wanted = train(tmp_path / "two", frame, labels, "train.passes=2", *own)
    model = kind.load(tmp_path / "one" / "run")
    assert model.batch_rows == 32 and model.classes_.tolist() == [0, 1]
    other = frame[["device", "price", "city", "age"]]
    np.testing.assert_array_equal(model.predict(frame), model.predict(other))
    model.partial_fit(frame, labels)
    assert saved(model, tmp_path / "model") == wanted


def test_passes_in_parts_are_the_same_passes(tmp_path):
    frame, labels = rows()
    whole = FMClassifier(passes=3, batch_rows=32).fit(frame, labels)
    parts = FMClassifier(passes=1, batch_rows=32).fit(frame, labels)
    parts = pickle.loads(pickle.dumps(parts.partial_fit(frame, labels)))
    parts = copy.deepcopy(parts).partial_fit(frame, labels)
    assert saved(parts, tmp_path / "parts") == saved(whole, tmp_path / "whole")
    assert [one["rows"] for one in parts.history_] == [900] * 3
    losses = [one["logloss"] for one in whole.history_]
    assert losses == [one["logloss"] for one in parts.history_] and losses[2] < losses[0]


def test_a_first_part_may_hold_one_class():
    frame, labels = rows(300)
    model = FTRLClassifier(batch_rows=8).partial_fit(frame[:9], np.zeros(9, int), classes=[0, 1])
    assert model.partial_fit(frame, labels).score(frame, labels) > 0.6
    with pytest.raises(ValueError, match="not the same as before"):
        model.partial_fit(frame, labels, classes=[0, 2])
    with pytest.raises(ValueError, match="has a class 7"):
        model.partial_fit(frame, labels + 7 * labels - labels)


def test_columns_are_categories_or_numbers_by_their_type():
    frame, labels = rows(300)
    frame["big"] = frame["age"] > 0.5
    frame["hour"] = np.arange(300) % 24
    frame.loc[3, "city"], frame.loc[4, "price"] = None, np.nan
    model = FTRLClassifier(batch_rows=16, categorical_features=["hour"]).fit(frame, labels)
    schema = model._trained.encoder.schema
    assert schema.slots == ("big", "city", "device", "hour") and schema.dense == ("price", "age")
    as_text = frame.assign(
        city=frame["city"].fillna("").astype("category"),
        hour=frame["hour"].astype(str),
        price=frame["price"].fillna(0.0),
        big=frame["big"].map({True: "True", False: "False"}),
    )
    np.testing.assert_array_equal(model.decision_function(frame), model.decision_function(as_text))
    unseen = frame.assign(city="Oslo")
    assert np.isfinite(model.decision_function(unseen)).all()
    assert (model.decision_function(unseen) != model.decision_function(frame)).any()


def test_labels_may_be_text():
    frame, labels = rows(300)
    words = np.where(labels == 1, "yes", "no")
    model = FMClassifier(batch_rows=16).fit(frame, words)
    assert {*model.predict(frame)} <= {"yes", "no"} and model.classes_.tolist() == ["no", "yes"]
    probabilities = model.predict_proba(frame)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(np.log(probabilities), model.predict_log_proba(frame))
    assert model.score(frame, words) == np.mean(model.predict(frame) == words)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"alpha": -1}, "alpha"),
        ({"l1": "much"}, "l1"),
        ({"passes": 0}, "passes"),
        ({"shuffle": "well"}, "shuffle"),
        ({"categorical_features": ["town"]}, "no column 'town'"),
    ],
)
def test_wrong_parameters_are_named(change, says):
    frame, labels = rows(50)
    model = FTRLClassifier().set_params(**change)
    with pytest.raises(ValueError, match=says):
        model.fit(frame, labels)
    with pytest.raises(ValueError, match="Invalid parameter 'rate'"):
        model.set_params(rate=1)


def test_wrong_frames_are_told():
    frame, labels = rows(50)
    model = FTRLClassifier().fit(frame, labels)
    for wrong, says in (
        (frame.to_numpy(), "X must be a DataFrame: FTRLClassifier needs its columns 'city'"),
        (frame.drop(columns="city"), "yet now missing:\n- city"),
        (frame[["city", "price", "age", "device"]], "same order"),
        (frame.assign(price="dear"), "'price' must hold numbers"),
        (frame.assign(price=1e300), "infinity or a value too large"),
    ):
        with pytest.raises(ValueError, match=says):
            model.predict(wrong)
    with pytest.raises(ValueError, match="'day' holds times"):
        model.fit(frame.assign(day=pd.Timestamp("2026-11-30")), labels)
    with pytest.raises(TypeError, match="'city': a value is no text"):
        model.fit(frame.assign(city=[[1]] * 50), labels)
    with pytest.raises(ValueError, match="only one class"):
        model.fit(frame, np.ones(50))
    with pytest.raises(ValueError, match="of several kinds"):
        model.fit(frame, ["yes", None] * 25)
    with pytest.raises(ValueError, match="one name"):
        model.fit(pd.concat([frame, frame], axis=1), labels)


def test_wrong_models_are_told(tmp_path):
    frame, labels = rows(50)
    FMClassifier().fit(frame, labels).save(tmp_path / "fm")
    with pytest.raises(ValueError, match="it is of kind fm"):
        FTRLClassifier.load(tmp_path / "fm")
    with pytest.raises(CheckpointError, match="no model is there"):
        FTRLClassifier.load(tmp_path)
    (tmp_path / "t.ffm").write_text("1 0:1:1 1:2:1\n0 0:3:1 1:2:1\n" * 9)
    words = ["--set", f"data.train={tmp_path / 't.ffm'}", "--set", f"output.dir={tmp_path}/run"]
    assert run(["train", *words]) == 0
    with pytest.raises(ValueError, match="slots with values"):
        FTRLClassifier.load(tmp_path / "run")


def test_a_gradient_that_is_not_finite_is_told():
    X = np.full((20, 2), 3e38)
    y = (np.arange(20) < 15).astype(int)
    with pytest.raises(ValueError, match=r"is not finite.*scale X"):
        FTRLClassifier().fit(X, y)


def test_the_tools_of_scikit_learn_take_them():
    frame, labels = rows(400)
    numbers = frame[["price", "age"]]
    pipeline = make_pipeline(StandardScaler(), FTRLClassifier(batch_rows=16)).fit(numbers, labels)
    assert pipeline.predict_proba(numbers).shape == (400, 2)
    grid = {"alpha": [0.01, 0.3], "batch_rows": [8, 64]}
    search = GridSearchCV(FMClassifier(dim=2), grid, cv=2, scoring="roc_auc").fit(frame, labels)
    assert search.best_params_.keys() == grid.keys() and search.best_score_ > 0.6
    assert len(cross_val_score(FTRLClassifier(), frame, labels, cv=3)) == 3
    twin = clone(FMClassifier(dim=3, l1=0.5))
    assert repr(twin) == "FMClassifier(dim=3, l1=0.5)" and not hasattr(twin, "classes_")


def test_neither_the_package_nor_the_estimators_load_scikit_learn():
    code = """
import sys, ctrps
assert not {"numpy", "numba", "pandas", "zmq", "typer"} & sys.modules.keys()
assert {"FTRLClassifier", "FMClassifier", "Cluster"} <= {*dir(ctrps)}
from ctrps import FTRLClassifier
model = FTRLClassifier().fit([[1.0], [0.0]] * 9, [1, 0] * 9)
assert model.predict([[1.0]]).tolist() == [1]
try:
    FTRLClassifier().predict([[1.0]])
except ValueError as error:
    assert "not fitted" in str(error)
assert not {"sklearn", "pandas"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'Clusters'"):
        _ = ctrps.Clusters
