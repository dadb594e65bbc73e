"""Job files of ps-dnn, the system that ctrps replaces: they load as they are."""

import re
import warnings

import pytest

from ctrps import psdnn
from ctrps.config import SETTINGS, load_job
from ctrps.errors import ConfigError, CtrpsWarning
from tests.procs import Lab, trained, write_rows

FNN = """\
# The keys of ps-dnn's fnn.ini, all of them.
[sparse_dict]
emb_dim=12

[net]
layers=fc:48,relu:-1,fc:1,sigmoid:-1
model=fnn

[loss]
#mse is the other one
loss=cross_entropy
[optimizer]
optimizer=nesterov
learning_rate=0.002

[train]
epoch=2
batch_size=512

[test]
batch_size=4096
[debug]
interval=500
"""
DSSM = FNN.replace("fnn", "dssm").replace(",fc:1,sigmoid:-1", "").replace("emb_dim=12", "emb_dim=6")
SGD = FNN.replace("nesterov", "sgd")


def load(tmp_path, text, *overrides, environ=(), name="fnn.ini"):
    """The job, and what was said of the file."""
    path = tmp_path / name
    path.write_text(text)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        job = load_job(path, [*overrides], dict(environ))
    assert all(warning.category is CtrpsWarning for warning in said)
    assert len(said) <= 1
    return job, str(said[0].message) if said else ""


def stated(job, path):
    """Settings that come from the file: key to line."""
    origins = {key: at.rpartition(":") for key, at in job.origins.items()}
    return {key: int(line) for key, (source, _, line) in origins.items() if source == str(path)}


@pytest.mark.parametrize(("text", "kind", "dim"), [(FNN, "fnn", 12), (DSSM, "dssm", 6)])
def test_every_key_is_translated_or_named(tmp_path, text, kind, dim):
    job, note = load(tmp_path, text)
    assert (job.model.kind, job.model.dim, job.train.passes) == (kind, dim, 2)
    assert job.train.batch_rows * job.train.lanes == 512
    assert stated(job, tmp_path / "fnn.ini") == {
        "model.dim": 3,
        "model.kind": 7,
        "train.passes": 17,
        "train.batch_rows": 18,
    }
    named = re.findall(r"^  line (\d+), ([\w.]+): ", note, re.MULTILINE)
    assert named == [
        ("6", "net.layers"),
        ("7", "net.model"),
        ("11", "loss.loss"),
        ("13", "optimizer.optimizer"),
        ("14", "optimizer.learning_rate"),
        ("18", "train.batch_size"),
        ("21", "test.batch_size"),
        ("23", "debug.interval"),
    ]
    assert note.startswith(f"{tmp_path}/fnn.ini is a job file of ps-dnn; keys that have no effect,")
    assert f"net.model: {kind} can be shown, but this version trains lr and fm only" in note
    assert "optimizer.optimizer: nesterov is not in this version; see optimizer.kind" in note
    assert "train.batch_size: a step of 512 rows is 4 minibatches of 128, one for each" in note


def test_all_names_are_settings():
    assert {*psdnn.NAMES.values()} - {"optimizer.kind", "optimizer.alpha"} <= {*SETTINGS}
    known = [re.match(r"(\w+)=", line)[1] for line in FNN.splitlines() if "=" in line]
    assert len(known) == len(psdnn.NAMES) + len(psdnn.WITHOUT_EFFECT)


def test_sgd_keeps_its_rate(tmp_path):
    job, note = load(tmp_path, SGD)
    for block in (job.optimizer.w, job.optimizer.v):
        assert (block.kind, block.alpha) == ("sgd", 0.002)
    assert stated(job, tmp_path / "fnn.ini")["optimizer.v.alpha"] == 14
    assert "optimizer" not in note


@pytest.mark.parametrize("kind", ["adam", "momentum", "nesterov"])
def test_rules_that_are_not_there_leave_the_defaults(tmp_path, kind):
    job, note = load(tmp_path, FNN.replace("nesterov", kind), "model.kind=fm")
    assert job.optimizer == load_job(None, [], {}).optimizer
    assert f"{kind} is not in this version" in note
    assert f"line 14, optimizer.learning_rate: it is a rate for {kind}; see optimizer.alpha" in note


def test_a_step_has_the_same_rows_whatever_the_lanes(tmp_path):
    assert load(tmp_path, FNN, "train.lanes=8")[0].train.batch_rows == 64
    job, _ = load(tmp_path, FNN, environ={"CTRPS_TRAIN__LANES": "2"})
    assert job.train.batch_rows == 256
    assert load(tmp_path, FNN, "train.lanes=1024")[0].train.batch_rows == 1
    job, note = load(tmp_path, FNN, "train.batch_rows=7")
    assert job.train.batch_rows == 7 and "batch_size: a step" not in note
    job, note = load(tmp_path, FNN, "train.consistency=async")
    assert job.train.batch_rows == 512 and "batch_size: a step" not in note


def test_keys_of_ctrps_may_stand_in_the_same_file(tmp_path):
    more = "[data]\ntrain=a.libsvm\n[optimizer.w]\nalpha=0.2\n[cluster]\nworkers=3\n"
    job, note = load(tmp_path, FNN + more, "model.kind=fm")
    assert job.data.train == (tmp_path / "a.libsvm",)
    assert (job.optimizer.w.alpha, job.cluster.workers) == (0.2, 3)
    assert "line 7, net.model: model.kind is fm instead of fnn" in note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FNN.replace("=12", "=many"), "3:9: model.dim: expected a whole number, found 'many'"),
        (FNN.replace("nesterov", "sdg"), "13:11: optimizer.optimizer: expected adam or sgd or mom"),
        (FNN.replace("epoch", "epochs"), "17:1: train.epochs is not a setting; did you mean"),
        (FNN.replace("layers", "layer"), "6:1: net.layer is not a setting"),
        (FNN.replace("=fnn", "=gbdt"), "7:7: model.kind: expected lr or fm, found 'gbdt'"),
        (FNN.replace("=512", "=big"), "18:12: train.batch_rows: expected a whole number"),
        (FNN + "[model]\ndim=3\n", "25:1: model.dim is given twice, in lines 3 and 25; keep one"),
        (FNN + "[tests]\nx=1\n", "24:2: tests is not a setting"),
    ],
)
def test_what_is_wrong_in_such_a_file_is_shown_at_its_place(tmp_path, text, message):
    path = tmp_path / "fnn.ini"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_job(path, [], {})
    assert str(caught.value).startswith(f"{path}:{message}")


@pytest.mark.parametrize("text", ["[train]\nepoch=2\n", "[loss]\nloss=mse\n"])
def test_other_ini_files_are_read_as_before(tmp_path, text):
    path = tmp_path / "job.ini"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a setting"):
        load_job(path, [], {})


def test_networks_are_refused_before_anything_is_made(tmp_path):
    (tmp_path / "fnn.ini").write_text(FNN)
    with pytest.warns(CtrpsWarning):
        job = load_job(tmp_path / "fnn.ini", [f"output.dir={tmp_path}/run"], {})
    with pytest.raises(ConfigError) as caught:
        job.check_trained()
    assert str(caught.value) == (
        f"{tmp_path}/fnn.ini:7: this version trains lr and fm, not fnn; "
        "to train the same job as a factorization machine, add --set model.kind=fm"
    )
    with pytest.raises(ConfigError, match="this version trains lr and fm, not dssm"):
        trained(["model.kind=dssm", f"output.dir={tmp_path}/run"])
    assert not (tmp_path / "run").exists()


def test_the_commands_on_such_a_file(tmp_path):
    """Shown as it is, refused by what trains, and trained as the error says."""
    (tmp_path / "fnn.ini").write_text(FNN)
    write_rows(tmp_path / "train.libsvm", 2000, seed=1)
    write_rows(tmp_path / "test.libsvm", 500, seed=2)
    with Lab(tmp_path) as lab:
        shown = lab.run("config", "show", "--origin", "-c", "fnn.ini")
        assert "  kind: fnn  # fnn.ini:7\n  dim: 12  # fnn.ini:3\n" in shown.stdout
        assert shown.stderr.startswith("warning: fnn.ini is a job file of ps-dnn; ")
        options = ["-c", "fnn.ini", "--progress", "none"]
        options += ["--set", "data.train=train.libsvm", "--set", "data.test=test.libsvm"]
        for command in ("train", "launch"):
            refused = lab.run(command, *options, status=2)
            last = refused.stderr.splitlines()[-1]
            assert last.startswith("error: fnn.ini:7: this version trains lr and fm, not fnn; ")
            assert last.endswith("add --set model.kind=fm [E-CONFIG]")
            assert not (tmp_path / "runs").exists()
        summary = lab.run("train", *options, "--set", "model.kind=fm", "--json").json
    assert summary["test"]["auc"] > 0.8
    assert (summary["passes"], summary["steps"]) == (2, 8)
