"""``Cluster.local``: the model of ``ctrps train``, and no process left behind."""

import threading

import numpy as np
import psutil
import pytest

from ctrps import Cluster, FTRLClassifier
from ctrps.config import load_job
from ctrps.errors import ConfigError, DataError
from ctrps.runtime.local import train

pytestmark = pytest.mark.cluster


@pytest.fixture
def job(tmp_path):
    """A job file of 2,000 rows."""
    rng = np.random.default_rng(8)
    x = rng.integers(0, 50, (2000, 3))
    lean = rng.standard_normal(50)
    labels = (lean[x].sum(axis=1) > 0).astype(int)
    rows = [f"{y} " + " ".join(f"{k + 1}:1" for k in row) for y, row in zip(labels, x, strict=True)]
    (tmp_path / "rows.svm").write_text("\n".join(rows) + "\n")
    path = tmp_path / "job.yaml"
    path.write_text("data: {train: [rows.svm]}\ntrain: {batch_rows: 32, partitions: 4}\n")
    return path


def test_it_gives_the_model_of_train(job, tmp_path):
    before = psutil.Process().children(recursive=True)
    seen = []
    with Cluster.local(servers=2, workers=2) as cluster:
        settings = {"output__dir": tmp_path / "run", "train__passes": 2}
        run = cluster.train(job, progress=seen.append, **settings)
    assert psutil.Process().children(recursive=True) == before
    alone = load_job(job, ["train.passes=2", f"output.dir={tmp_path / 'alone'}"], {})
    wanted = train(alone, False, lambda figures: None)
    assert run.summary["model_digest"] == wanted["model_digest"]
    assert (run.summary["servers"], run.summary["workers"]) == (2, 2)
    assert run.model == tmp_path / "run" / "model" and seen
    X = np.zeros((1, 51))
    assert FTRLClassifier.load(run.model).predict(X).tolist() in ([0], [1])
    with pytest.raises(RuntimeError, match="was closed"):
        cluster.train(job)


def test_an_exception_ends_its_processes(job, tmp_path):
    before = psutil.Process().children(recursive=True)

    def fails(figures):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), Cluster.local() as cluster:
        cluster.train(job, progress=fails, output__dir=tmp_path / "run", train__passes=1000)
    assert psutil.Process().children(recursive=True) == before


def test_wrong_input_is_told_before_a_process_starts(job, tmp_path):
    cluster = Cluster.local()
    with pytest.raises(ConfigError, match="no such file"):
        cluster.train(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"train\.passses"):
        cluster.train(job, train__passses=2)
    with pytest.raises(DataError, match=r"none\.svm"):
        cluster.train(job, data__train=["none.svm"], output__dir=tmp_path / "run")
    found = []
    thread = threading.Thread(target=lambda: found.append(_error(cluster, job)))
    thread.start()
    thread.join()
    assert "main thread" in found[0]


def _error(cluster, job):
    try:
        cluster.train(job)
    except RuntimeError as error:
        return str(error)
