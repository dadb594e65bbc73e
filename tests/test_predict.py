"""Scores of a model on disk: by name, in order, and equal in bits to those of training."""

import csv
import io
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from ctrps import checkpoint, models
from ctrps.checkpoint import Manifest
from ctrps.config import load_job
from ctrps.data.badrows import BadRows
from ctrps.data.formats import TextSettings, open_rows
from ctrps.data.shards import Block, ShardWriter, joined
from ctrps.errors import CheckpointError, DataError
from ctrps.evaluation import evaluate, evaluate_scores
from ctrps.predict import LoadedModel, predict
from ctrps.ps.partition import PartitionSet, contribute
from ctrps.scorefiles import write_scores
from tests.batching import minibatch

CASES = Path(__file__).parent / "fixtures" / "cases"
KINDS = [["model.kind=lr"], ["model.kind=fm", "model.dim=4", "model.init_scale=0.1"]]


def text_settings(job, **changes):
    data = job.data
    names = ("format", "label", "numeric", "ignore", "id", "missing")
    how = {name: getattr(data, name) for name in names}
    return TextSettings(**how | changes)


def read(path, how):
    with open_rows(path, how, BadRows()) as source:
        rows = joined(list(source.rows))
        return source.schema, rows


def keys_of(model, batch):
    return tuple(wanted.keys for wanted in model.key_sets(batch))


def train(folder, path, settings, passes=5):
    """A model of the rows of a file, saved; returns what training held."""
    job = load_job(None, [*settings, "train.partitions=4"], {})
    schema, rows = read(path, text_settings(job))
    model = models.build(job)
    held = PartitionSet(model)
    batch = minibatch(Block.from_rows(rows, schema), np.arange(rows.rows), schema, 2)
    for _ in range(passes):
        weights = held.pull(keys_of(model, batch))
        held.apply({0: contribute(model, batch, weights)})
    save(folder, job, held, schema)
    return held


def save(folder, job, held, schema, changes=()):
    folder.mkdir(exist_ok=True)
    tables = held.model.tables
    names = [table.name for table in tables]
    files = [
        checkpoint.write_partition(
            folder, p, 1, 1, 0, [(n, *rows) for n, rows in zip(names, state.tables, strict=True)]
        )
        for p, state in enumerate(held.snapshot())
    ]
    data = job.data
    text = {"label": data.label, "id": data.id}
    text |= {name: list(getattr(data, name)) for name in ("numeric", "ignore", "missing")}
    whole = {
        "checkpoint": 1,
        "pass_": 0,
        "step": held.step,
        "border": True,
        "model": job.model_settings(),
        "plan": "p",
        "tables": [[table.name, table.dim, table.width] for table in tables],
        "job": job.dump_yaml(),
        "data": {"schema": schema.to_dict(), "text": text},
        "files": tuple(files),
        "model_digest": "",
    }
    checkpoint.commit(folder, Manifest(**whole | dict(changes)))


def write(path, text):
    path.write_text(text)
    return path


def score(loaded, *paths, **how):
    out = io.StringIO()
    write_scores(predict(loaded, paths, **how), out)
    return out.getvalue()


@pytest.fixture(scope="module", params=KINDS, ids=["lr", "fm"])
def named(request, tmp_path_factory):
    """Case 07's model, with columns and a number."""
    folder = tmp_path_factory.mktemp("named")
    settings = [*request.param, "data.numeric=price"]
    held = train(folder, CASES / "07-predict-without-label" / "train.csv", settings)
    return LoadedModel.open(folder), held


@pytest.fixture(scope="module")
def paired(tmp_path_factory):
    """A model of libsvm rows with values."""
    folder = tmp_path_factory.mktemp("paired")
    rows = "1 3:1 7:0.5\n0 2:1 9:2\n1 3:2\n0 9:1\n"
    path = write(folder / "train.libsvm", rows)
    train(folder / "model", path, KINDS[0])
    return LoadedModel.open(folder / "model")


# 07: data without labels

SEVEN = CASES / "07-predict-without-label"


def test_columns_are_found_by_name(named):
    loaded, _ = named
    tables = ("label", "nolabel", "reordered")
    found = [score(loaded, SEVEN / f"predict_{table}.csv") for table in tables]
    assert found[0] == found[1] == found[2]
    header, *lines = found[0].splitlines()
    assert header == "score"
    assert len({float(line) for line in lines}) == 4


def test_scores_are_those_of_training_in_bits(named):
    loaded, held = named
    schema, rows = read(SEVEN / "train.csv", text_settings(loaded.job))
    block = Block.from_rows(rows, schema)
    (part,) = predict(loaded, [SEVEN / "train.csv"])
    for order in (np.arange(rows.rows), np.arange(rows.rows)[::-1]):
        batch = minibatch(block, order, schema, 2)
        margins = held.model.margins(batch, held.peek(keys_of(held.model, batch)))
        assert margins.tobytes() == part.margins[order].tobytes()
    np.testing.assert_array_equal(part.labels, rows.labels)
    lines = score(loaded, SEVEN / "train.csv").splitlines()
    assert [float(line) for line in lines[1:]] == part.probabilities.tolist()


def test_evaluation_needs_labels(named):
    for table in ("nolabel", "reordered"):
        with pytest.raises(DataError, match=f"predict_{table}.csv:1: labels are needed"):
            evaluate(named[0], [SEVEN / f"predict_{table}.csv"])


def test_evaluation_needs_the_label_of_every_row(named, tmp_path):
    path = write(tmp_path / "a.csv", "label,user,ad,price\n1,1,1,1\n,1,1,2\n")
    with pytest.raises(DataError, match=r"a.csv: labels are needed: row 2"):
        evaluate(named[0], [path])


def test_a_pair_is_never_taken_for_a_label(paired, tmp_path):
    path = SEVEN / "predict_nolabel.libsvm"
    with pytest.raises(DataError, match=r"predict_nolabel.libsvm: row 1 has no label"):
        list(predict(paired, [path]))
    with pytest.raises(DataError, match=r"predict_nolabel.libsvm: labels are needed"):
        evaluate(paired, [path])
    labelled = write(tmp_path / "a.libsvm", "1 3:1 7:1\n0 2:1 9:1\n")
    assert score(paired, path, labels="none") == score(paired, labelled)


def test_labels_that_are_not_asked_for_are_not_given(named):
    (part,) = predict(named[0], [SEVEN / "predict_label.csv"], labels="none")
    assert np.isnan(part.labels).all()


# Columns


def test_a_missing_column_is_named_with_the_nearest(named, tmp_path):
    path = write(tmp_path / "a.csv", "User,ad,price\n1,1,1\n")
    with pytest.raises(DataError, match=r"a.csv:1: no column 'user'.* did you mean 'User'"):
        predict(named[0], [SEVEN / "train.csv", path])
    path = write(tmp_path / "b.csv", "user,ad,cost\n1,1,1\n")
    with pytest.raises(DataError, match=r"b.csv:1: no column 'price', which the model needs"):
        predict(named[0], [path])


def test_columns_that_the_model_does_not_know_are_left_out_and_named(named, tmp_path):
    rows = "hour,price,Label,ad,user\n1,1.5,x,0,0\n2,2.5,y,1,1\n3,3.5,,2,2\n4,4.5,,0,3\n"
    path = write(tmp_path / "a.csv", rows)
    found = predict(named[0], [path, SEVEN / "predict_label.csv"])
    assert found.notes == [f"{path}: left out, not known to the model: Label, hour"]
    first, second = found
    assert first.margins.tobytes() == second.margins.tobytes()
    with pytest.raises(DataError, match=r"labels are needed: no column 'label'.* mean 'Label'"):
        evaluate(named[0], [path])


def test_rows_of_another_kind_are_refused(named, paired, tmp_path):
    pairs = write(tmp_path / "a.libsvm", "1 3:1\n")
    with pytest.raises(
        DataError, match=r"a.libsvm: it has key:value pairs .* trained on 3 columns"
    ):
        predict(named[0], [pairs])
    with pytest.raises(DataError, match=r"train.csv: it has 4 columns .* trained on key:value"):
        predict(paired, [SEVEN / "train.csv"])
    schema, rows = read(SEVEN / "train.csv", TextSettings())
    with ShardWriter(tmp_path / "a.shard", schema) as writer:
        writer.add(rows)
    with pytest.raises(DataError, match=r"a.shard: it has 3 columns \(ad, price, user\)"):
        predict(named[0], [tmp_path / "a.shard"])


# 15: values that training never saw


@pytest.mark.parametrize("settings", KINDS)
def test_unknown_keys_add_nothing_and_are_not_made(tmp_path, settings):
    cases = CASES / "15-unseen-category"
    held = train(tmp_path, cases / "train.csv", settings)
    loaded = LoadedModel.open(tmp_path)
    before = loaded.partitions.keys_held
    found = predict(loaded, [cases / "predict.csv"])
    (part,) = found
    assert (found.rows, found.occurrences, found.unknown) == (4, 8, 4)
    (intercept,) = held.tables[1].snapshot(0)[0].rows[:, :1]
    assert part.margins[2] == intercept[0]
    assert loaded.partitions.keys_held == before == held.keys_held
    (again,) = predict(loaded, [cases / "predict.csv"])
    assert again.margins.tobytes() == part.margins.tobytes()
    figures = evaluate(loaded, [cases / "predict.csv"])
    assert (figures["rows"], figures["clicks"], figures["unknown_share"]) == (4, 2, 0.5)


def test_a_model_without_rows_scores_one_half(tmp_path):
    job = load_job(None, ["train.partitions=1"], {})
    schema, _ = read(SEVEN / "train.csv", TextSettings())
    save(tmp_path, job, PartitionSet(models.build(job)), schema)
    (part,) = predict(LoadedModel.open(tmp_path), [SEVEN / "train.csv"])
    assert set(part.probabilities) == {0.5}


# Order, ids and formats


@pytest.fixture(scope="module")
def with_ids(tmp_path_factory):
    """A model, and a file of more rows than are scored at a time, as csv and as shard."""
    folder = tmp_path_factory.mktemp("ids")
    rng = np.random.default_rng(5)
    lines = [f"r{n},{n % 2},{u},{x:.3f}" for n, (u, x) in enumerate(rng.random((9001, 2)))]
    path = write(folder / "rows.csv", "\n".join(["row,label,user,x", *lines]) + "\n")
    settings = ["data.id=row", "data.numeric=x", "model.kind=fm"]
    train(folder / "model", path, settings, passes=2)
    loaded = LoadedModel.open(folder / "model")
    schema, rows = read(path, text_settings(loaded.job))
    with ShardWriter(folder / "rows.shard", schema, 5000) as writer:
        writer.add(rows)
    return loaded, path, folder / "rows.shard"


def test_order_and_ids_are_kept_whatever_the_format(with_ids, tmp_path):
    loaded, text, shard = with_ids
    found = score(loaded, text)
    lines = list(csv.reader(io.StringIO(found)))
    assert lines[0] == ["id", "score"]
    assert [line[0] for line in lines[1:]] == [f"r{n}" for n in range(9001)]
    assert score(loaded, shard) == found
    pieces = text.read_text().splitlines(keepends=True)
    parts = [
        write(tmp_path / f"{n}.csv", "".join([pieces[0], *pieces[n + 1 : n + 3]])) for n in (7, 2)
    ]
    alone = score(loaded, *parts).splitlines()[1:]
    assert alone == [found.splitlines()[n + 1] for n in (7, 8, 2, 3)]
    a, b = (evaluate(loaded, [path]) for path in (text, shard))
    assert a == b and a["rows"] == 9001 and a["auc"] > 0.5


def test_json_scores_as_csv_does(named, tmp_path):
    loaded, _ = named
    table = write(tmp_path / "a.csv", "user,ad,price\n1,2,1.5\n,1,\n9,9,2\n")
    lines = write(
        tmp_path / "a.jsonl",
        '{"user": 1, "ad": 2, "price": 1.5, "new": 1}\n{"ad": "1"}\n'
        '{"user": 9, "ad": 9, "price": 2, "other": {}}\n',
    )
    assert score(loaded, lines) == score(loaded, table)
    (note,) = predict(loaded, [lines]).notes
    assert note == f"{lines}: left out, not known to the model: new"
    sparse = write(tmp_path / "b.jsonl", '{"ad": 2}\n{"ad": 2, "user": 1, "price": 1.5}\n')
    assert score(loaded, sparse).splitlines()[2] == score(loaded, table).splitlines()[1]
    (note,) = predict(loaded, [sparse]).notes
    assert note == f"{sparse}: taken for missing, not in the first row: user, price"
    with pytest.raises(DataError, match="no column 'ad', which the model needs"):
        predict(loaded, [write(tmp_path / "c.jsonl", '{"usr": 1}\n')])
    labelled = write(tmp_path / "d.jsonl", '{"ad": 2, "label": 1}\n{"ad": 2, "label": 0}\n')
    assert evaluate(loaded, [labelled])["clicks"] == 1


@pytest.mark.parametrize(
    ("form", "rows", "other"),
    [
        ("libffm", "1 0:3:1 1:4:0.5\n0 0:7:1\n", "0:3:1 5:9:1\n"),
        ("vw", "1 |user ann |ad x:0.5\n0 |user bob\n", "|new z |user ann\n"),
        ("slots", "label:1 user:ann ad:x ad:y\nlabel:0 user:bob\n", "new:z user:ann\n"),
    ],
)
def test_models_of_slots_score_rows_with_slots_they_do_not_know(tmp_path, form, rows, other):
    path = write(tmp_path / "train", rows * 50)
    train(tmp_path / "model", path, [f"data.format={form}"])
    loaded = LoadedModel.open(tmp_path / "model")
    found = predict(loaded, [write(tmp_path / "new", other)], labels="none")
    (part,) = found
    assert (found.rows, found.occurrences, found.unknown) == (1, 2, 1)
    assert part.margins[0] > 0
    schema, read_rows = read(path, TextSettings(form))
    with ShardWriter(tmp_path / "a.shard", schema) as writer:
        writer.add(read_rows)
    assert score(loaded, tmp_path / "a.shard") == score(loaded, path)
    pairs = write(tmp_path / "pairs", "1 3:1\n")
    what = "expected slot:value" if form == "slots" else "it has key:value pairs .* or namespaces"
    with pytest.raises(DataError, match=rf"pairs:.* {what}"):
        list(predict(loaded, [pairs]))


def test_figures_are_those_of_all_rows_together(with_ids):
    loaded, text, _ = with_ids
    figures = evaluate(loaded, [text, text])
    parts = list(predict(loaded, [text]))
    assert len(parts) > 2
    losses = [
        -math.log(p if label else 1 - p)
        for part in parts
        for p, label in zip(part.probabilities, part.labels, strict=True)
    ]
    assert figures["rows"] == 18002
    assert figures["logloss"] == pytest.approx(sum(losses) / 9001, rel=1e-12)
    assert figures["auc"] == evaluate(loaded, [text])["auc"]


def test_ids_that_need_quotes_or_are_no_utf8_come_back(with_ids, tmp_path):
    loaded, *_ = with_ids
    path = tmp_path / "a.csv"
    path.write_bytes(b'row,user,x\n"a,""b",u,1\n\xff\xe9,u,1\n')
    write_scores(predict(loaded, [path]), tmp_path / "out.csv")
    first, second = (tmp_path / "out.csv").read_bytes().splitlines()[1:]
    assert first.startswith(b'"a,""b",0.')
    assert second.startswith(b"\xff\xe9,0.")


def test_a_file_without_ids_is_fine_but_not_a_mixture(with_ids, tmp_path):
    loaded, text, _ = with_ids
    path = write(tmp_path / "a.csv", "user,x\nu,1\n")
    assert score(loaded, path).splitlines()[0] == "score"
    with pytest.raises(DataError, match=r"rows.csv has ids .*a.csv has none"):
        score(loaded, path, text)


def test_bad_rows_are_refused_or_counted(named, tmp_path):
    path = write(tmp_path / "a.csv", "user,ad,price\n1,1,1\n1,1,zero\n1,1,1\n")
    with pytest.raises(DataError, match=r"a.csv:3:5: expected a finite number"):
        score(named[0], path)
    found = predict(named[0], [path], max_bad=0.5)
    assert sum(len(part.margins) for part in found) == 2
    assert found.rejected == 1
    with pytest.raises(DataError, match="1 of 3 rows are bad"):
        score(named[0], path, max_bad=0.1)


def test_files_without_rows_have_no_scores(named, paired, tmp_path):
    assert score(named[0], write(tmp_path / "a.csv", "user,ad,price\n")) == "score\n"
    assert score(named[0], write(tmp_path / "b.csv", "")) == "score\n"
    assert score(paired, write(tmp_path / "c.libsvm", "")) == "score\n"
    figures = evaluate(named[0], [write(tmp_path / "d.csv", "label,user,ad,price\n")])
    assert figures["rows"] == 0 and figures["auc"] is None and figures["unknown_share"] is None


def test_columns_are_kept_beside_rows_that_can_be_read(named, tmp_path):
    rows = "".join(f"u{n},{n % 3},{'zero' if n % 5 == 2 else n},note {n}\n" for n in range(9000))
    path = write(tmp_path / "a.csv", f"user,ad,price,note\n{rows}")
    found = predict(named[0], [path], max_bad=0.5, keep=["note", "user"])
    kept = [row for part in found for row in zip(*(c.texts() for c in part.kept), strict=True)]
    assert kept == [(f"note {n}", f"u{n}") for n in range(9000) if n % 5 != 2]
    assert found.notes == []


def test_rows_of_indices_have_no_columns_to_keep(paired, tmp_path):
    path = write(tmp_path / "a.libsvm", "1 3:1\n")
    with pytest.raises(DataError, match=r"a.libsvm: no column 'user': libsvm rows have no columns"):
        predict(paired, [path], keep=["user"])


# Output


def test_an_output_file_is_whole_or_as_before(named, tmp_path):
    loaded, _ = named
    out = write(tmp_path / "out.csv", "old\n")
    bad = write(tmp_path / "a.csv", "user,ad,price\n1,1,1\n1,1,zero\n")
    with pytest.raises(DataError, match="expected a finite number"):
        write_scores(predict(loaded, [SEVEN / "train.csv", bad]), out)
    assert out.read_text() == "old\n"
    assert write_scores(predict(loaded, [SEVEN / "train.csv"]), out) == 20
    assert out.read_text() == score(loaded, SEVEN / "train.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "out.csv"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full to write to")
def test_a_full_disk_is_an_error_and_a_device_stays_one(named):
    with pytest.raises(DataError, match="/dev/full: cannot write it: No space left"):
        write_scores(predict(named[0], [SEVEN / "train.csv"]), Path("/dev/full"))
    assert Path("/dev/full").is_char_device()


def test_a_path_that_cannot_be_written_is_named(named, tmp_path):
    for path in (tmp_path, tmp_path / "missing" / "out.csv"):
        with pytest.raises(DataError, match=f"{path}: cannot write it"):
            write_scores(predict(named[0], [SEVEN / "train.csv"]), path)


def test_a_pipe_that_is_closed_is_no_error_of_data(named, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def scores():
        yield from predict(named[0], [SEVEN / "train.csv"])
        os.close(reader)

    with pytest.raises(BrokenPipeError):
        write_scores(scores(), pipe)


# 08 and 09: scores in files


def test_a_class_missing_leaves_auc_undefined():
    for name, why in (("all_negative", "only negatives"), ("all_positive", "only positives")):
        figures = evaluate_scores([CASES / "08-auc-one-class" / f"{name}.tsv"])
        assert figures["auc"] is None and why in figures["auc_undefined"]
        assert figures["rows"] == 4
    empty = evaluate_scores([CASES / "08-auc-one-class" / "empty.tsv"])
    assert empty["rows"] == 0 and empty["auc"] is None
    negative = evaluate_scores([CASES / "08-auc-one-class" / "all_negative.tsv"])
    assert f"{negative['logloss']:.10f}" == "0.4722879538"
    json.dumps([empty, negative], allow_nan=False)


@pytest.mark.parametrize(("name", "auc"), [("ties", "0.5"), ("small", "0.4166666667")])
def test_auc_of_ties(name, auc):
    figures = evaluate_scores([CASES / "08-auc-one-class" / f"{name}.tsv"])
    assert f"{figures['auc']:.10g}" == auc


def test_grouped_auc_leaves_out_groups_of_one_class():
    path = CASES / "08-auc-one-class" / "groups.tsv"
    figures = evaluate_scores([path], group="user")
    assert figures["grouped_auc"] == pytest.approx(0.7, abs=1e-15)
    assert (figures["groups"], figures["groups_skipped"], figures["auc"]) == (2, 1, 0.5)
    assert "grouped_auc" not in evaluate_scores([path])


def test_logloss_of_one_class():
    nine = CASES / "09-logloss-one-class"
    expected = {
        ("ones",): "0.4522772769",
        ("zeros",): "1.3481570115",
        ("one_row",): "1.3862943611",
        ("ones", "zeros"): "0.9002171442",
    }
    for names, logloss in expected.items():
        figures = evaluate_scores([nine / f"{name}.tsv" for name in names])
        assert f"{figures['logloss']:.10f}" == logloss


def test_scores_are_read_as_float64(tmp_path):
    path = write(tmp_path / "a.csv", "score,label\n0.50000000001,1\n0.5,0\n")
    assert evaluate_scores([path])["auc"] == 1.0


@pytest.mark.parametrize("text", ["1.5", "-0.1", "nan", "inf", "", "half"])
def test_scores_that_are_no_probabilities_are_refused(tmp_path, text):
    path = write(tmp_path / "a.csv", f"label,score\n1,0.5\n1,{text}\n")
    with pytest.raises(DataError, match=f"a.csv: row 2: .* found '{text}'"):
        evaluate_scores([path])


def test_score_files_need_their_columns(tmp_path):
    path = write(tmp_path / "a.csv", "label,Score\n1,0.5\n")
    with pytest.raises(DataError, match=r"a.csv:1: no column 'score'; did you mean 'Score'"):
        evaluate_scores([path])
    with pytest.raises(DataError, match=r"groups.tsv:1: no column 'usr'; did you mean 'user'"):
        evaluate_scores([CASES / "08-auc-one-class" / "groups.tsv"], group="usr")
    with pytest.raises(DataError, match=r"predict_nolabel.libsvm: it is a libsvm file"):
        evaluate_scores([SEVEN / "predict_nolabel.libsvm"])


# Models that do not fit


def test_a_model_that_contradicts_its_job_is_refused(tmp_path):
    job = load_job(None, ["train.partitions=2"], {})
    schema, _ = read(SEVEN / "train.csv", TextSettings())
    held = PartitionSet(models.build(job))
    settings = job.model_settings()
    text = {"label": "label", "numeric": [], "ignore": [], "id": None, "missing": []}
    for changes, message in [
        ({"model": settings | {"key_hash": 0}}, "of another key_hash"),
        ({"tables": [["sparse", 1, 4], ["intercept", 1, 3]]}, "the layout of its rows"),
        ({"job": "train: {lanes: many}"}, "its job or columns cannot be read"),
        ({"job": "{"}, "its job or columns cannot be read"),
        ({"data": {}}, "its job or columns cannot be read"),
        ({"data": {"schema": {}, "text": text}}, "not a schema of rows"),
    ]:
        save(tmp_path, job, held, schema, changes)
        with pytest.raises(CheckpointError, match=f"manifest.json: .*{message}"):
            LoadedModel.open(tmp_path)


def test_a_damaged_partition_is_named(tmp_path):
    train(tmp_path, SEVEN / "train.csv", ["data.numeric=price"])
    part = sorted(tmp_path.glob("*.part"))[2]
    data = bytearray(part.read_bytes())
    data[40] ^= 1
    part.write_bytes(data)
    with pytest.raises(CheckpointError, match=part.name):
        LoadedModel.open(tmp_path)


def test_a_model_lists_all_its_partitions(tmp_path):
    job = load_job(None, ["train.partitions=2"], {})
    schema, _ = read(SEVEN / "train.csv", TextSettings())
    held = PartitionSet(models.build(job))
    save(tmp_path, job, held, schema)
    files = checkpoint.read_manifest(tmp_path).files
    for path in tmp_path.glob("p001*"):
        path.unlink()
    whole = checkpoint.read_manifest(tmp_path).__dict__ | {"files": files[:1]}
    checkpoint.commit(tmp_path, Manifest(**whole))
    with pytest.raises(CheckpointError, match="lists 1 partition files, the model has 2"):
        LoadedModel.open(tmp_path)
