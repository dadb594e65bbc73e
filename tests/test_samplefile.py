"""Scores of samples are those of the shards that extract makes of them, to the bit."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from ctrps.config import load_job
from ctrps.data import samplefile
from ctrps.data.badrows import BadRows
from ctrps.data.extract import extract
from ctrps.data.features import load_spec, parse_spec
from ctrps.data.fit import fitted
from ctrps.data.kept import kept_texts
from ctrps.errors import ConfigError, DataError
from ctrps.evaluation import evaluate
from ctrps.predict import LoadedModel, predict
from ctrps.runtime.local import train

FEATURES = """[raw_sample_schema]
fields=time,user,ad,seen,price,empty,clk
[id]
id=time|user,combine,direct|direct,#
[label]
label=clk,direct
[dense_features_ad]
log_price=price,log,standard
price=price,direct,minmax
[sparse_features_user]
user=user,direct
seen=seen,group,ad
empty=empty,direct
[sparse_features_ad]
ad=ad,direct
price_bucket=price,bucket,q4
[sparse_features_user_ad]
hit=ad|seen,hit
both=user|seen,combine,direct|group,#
"""


def line(rng, day):
    seen = ",".join(map(str, rng.integers(0, 60, rng.integers(0, 5))))
    price = "" if rng.random() < 0.1 else f"{rng.exponential(50):.2f}"
    user, ad, clicked = rng.integers(0, 40), rng.integers(0, 60), int(rng.random() < 0.3)
    return f"{day}\t{user}\t{ad}\t{seen}\t{price}\t{'' if ad % 2 else 'x'}\t{clicked}"


@pytest.fixture(scope="module", params=["lr", "fm"])
def run(request, tmp_path_factory):
    """A folder with samples, shards and a model of a job that fits and drops whatever can be."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "features.ini").write_text(FEATURES)
    (folder / "samples").mkdir()
    rng, header = np.random.default_rng(5), "\t".join("time user ad seen price empty clk".split())
    for name, rows in (("train-00000", 600), ("test-00000", 200)):
        lines = [header, *(line(rng, day) for day in range(rows))]
        (folder / "samples" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    settings = [f"features.spec={folder / 'features.ini'}", f"output.dir={folder}"]
    settings += ["features.count_above=1", "features.missing=drop", f"model.kind={request.param}"]
    settings += ["train.batch_rows=64", "model.init_scale=0.1", "optimizer.w.l1=0.1"]
    job = load_job(None, settings, {})
    extract(job, "features")
    train(job, overwrite=True, say=lambda text: None)
    return folder


@pytest.fixture
def model(run):
    return LoadedModel.open(run / "model")


def scored(model, path, **how):
    parts = list(predict(model, [path], **how))
    ids = [one for part in parts if part.ids is not None for one in part.ids]
    margins, labels = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("margins", "labels")
    )
    return ids, margins.view(np.int32).tolist(), labels.tolist()


def text(run, name="test-00000"):
    return (run / "samples" / f"{name}.tsv").read_text()


def test_samples_are_scored_as_their_shards(run, model):
    wanted = scored(model, run / "data" / "test-00000.shard")
    assert len(wanted[0]) == 200 and len(set(wanted[1])) > 100
    assert scored(model, run / "samples" / "test-00000.tsv") == wanted
    (run / "test.txt.gz").write_bytes(gzip.compress(text(run).encode()))
    assert scored(model, run / "test.txt.gz") == wanted
    figures = [
        evaluate(model, [run / path])["auc"]
        for path in ("samples/test-00000.tsv", "data/test-00000.shard")
    ]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("chunk_bytes", [3, 100, 1 << 16])
def test_chunks_do_not_matter(run, model, chunk_bytes, end):
    lines = text(run).splitlines()[:60]
    path = run / "few.tsv"
    path.write_bytes((("\r\n" if end == "\r\n" else "\n").join(lines) + end).encode())
    spec = parse_spec(model.schema.features)
    with samplefile.open_samples(path, spec, BadRows(), chunk_bytes, "optional") as source:
        rows = list(source.rows)
    assert sum(part.rows for part in rows) == 59
    whole = np.concatenate([part.keys for part in rows])
    with samplefile.open_samples(path, spec, BadRows(), 1 << 20, "optional") as source:
        (one,) = source.rows
    assert whole.tolist() == one.keys.tolist()


def test_columns_may_stand_in_any_order_and_label_and_id_be_absent(run, model):
    wanted = scored(model, run / "data" / "test-00000.shard")[1]
    table = [line.split("\t") for line in text(run).splitlines()]
    kept = [4, 1, 3, 5, 2]
    (run / "bare.tsv").write_text("\n".join("\t".join(row[i] for i in kept) for row in table))
    ids, margins, labels = scored(model, run / "bare.tsv")
    assert margins == wanted and ids == [] and np.isnan(labels).all()
    with pytest.raises(DataError, match=r"no column 'clk', which .*model uses"):
        evaluate(model, [run / "bare.tsv"])
    assert np.isnan(scored(model, run / "samples" / "test-00000.tsv", labels="none")[2]).all()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("chunk_bytes", [3, 1 << 16])
def test_columns_are_kept_beside_their_rows(run, model, chunk_bytes, end):
    lines = text(run).splitlines()
    lines[7] = lines[7].replace("\t", "")  # a row that is left out
    path = run / "kept.tsv"
    path.write_bytes(end.join(lines).encode())
    table = [dict(zip(lines[0].split("\t"), line.split("\t"), strict=False)) for line in lines[1:]]
    del table[6]
    spec = parse_spec(model.schema.features)
    keep = ("empty", "user", "clk")
    with samplefile.open_samples(path, spec, BadRows(0.1), chunk_bytes, "optional", keep) as source:
        parts = [[kept_texts(texts).texts() for texts in part.kept] for part in source.rows]
    for number, name in enumerate(keep):
        found = [value for part in parts for value in part[number]]
        assert found == [row[name] for row in table]
    with pytest.raises(DataError, match=r"kept.tsv:1: no column 'usr'; did you mean 'user'"):
        evaluate(model, [path], group="usr")


def test_what_is_missing_or_bad_is_told_with_its_place(run, model):
    path = run / "wrong.tsv"
    path.write_text(text(run).replace("price", "prize", 1))
    with pytest.raises(DataError, match=r"no column 'price', which.*did you mean 'prize'"):
        predict(model, [path])
    lines = text(run).splitlines()
    lines[150] = lines[150].replace("\t", " ", 1)
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"wrong.tsv:151:1: expected 7 fields, not 6"):
        scored(model, path)
    scores = predict(model, [path], max_bad=0.1)
    assert sum(len(part.margins) for part in scores) == 199 and scores.rejected == 1
    path = run / "table.csv"
    path.write_text("user,ad\n1,2\n")
    with pytest.raises(DataError, match=r"no column 'user' and 4 more.*fields stand between tabs"):
        predict(model, [path])
    with pytest.raises(DataError, match="the model computes its features of samples"):
        predict(model, [path], format="csv")


def test_what_extract_was_told_stands_in_the_features(run, model):
    spec = load_spec(run / "model")
    assert (spec.count_above, spec.drop_missing, spec.fits) == (1, True, ())
    assert model.schema.features.endswith("\n\n[extracted]\nmissing=drop\ncount_above=1\n")
    again = fitted(spec, [], count_above=3)
    assert again.count("[extracted]") == 1
    assert again.endswith("\n[extracted]\nmissing=drop\ncount_above=3\n")
    plain = parse_spec(
        FEATURES.replace("q4", "1|2").replace(",standard", "").replace(",minmax", "")
    )
    assert fitted(plain, []) == plain.text


@pytest.mark.parametrize(
    ("entry", "what"),
    [("count_above=-1", "count_above is not '-1'"), ("missing=maybe", "missing is not 'maybe'"),
     ("misses=1", "did you mean 'missing'")],
)  # fmt: skip
def test_mistakes_in_the_section_are_told(entry, what):
    with pytest.raises(ConfigError, match=what):
        parse_spec(f"[raw_sample_schema]\nfields=a\n[extracted]\n{entry}\n")


def test_the_section_can_be_read_from_a_path(tmp_path):
    (tmp_path / "f.ini").write_text("[raw_sample_schema]\nfields=a\n[extracted]\ncount_above=2\n")
    assert load_spec(Path(tmp_path / "f.ini")).count_above == 2
