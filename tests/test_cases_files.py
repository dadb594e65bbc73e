"""Cases from the field about files, numbers and keys, as far as readers and shards decide them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ctrps.config import load_job
from ctrps.data.badrows import BadRows
from ctrps.data.convert import expand, to_shards
from ctrps.data.formats import open_rows
from ctrps.data.reading import TextSettings
from ctrps.data.rewrite import rewrite
from ctrps.data.rows import joined
from ctrps.data.shards import Shard
from ctrps.errors import ConfigError, DataError
from ctrps.kernels.keys import key_of
from ctrps.loaded import LoadedModel
from tests.procs import settings, trained

CASES = Path(__file__).parent / "fixtures" / "cases"
AUTO = TextSettings()


def read(name, how=AUTO, max_bad=0.0):
    bad = BadRows(max_bad)
    with open_rows(CASES / name, how, bad) as source:
        parts = list(source.rows)
    return source.schema, joined(parts), bad


def digests(folder, names, tmp_path):
    """Digests of the shards of each file: equal rows have equal ones but for the meta."""
    found = {}
    for name in names:
        (shard,) = to_shards([CASES / folder / name], AUTO, tmp_path)
        blocks = list(Shard(shard).blocks())
        arrays = [(b.keys, b.index, b.counts, b.dense, b.labels) for b in blocks]
        found[name] = [array.tobytes() for block in arrays for array in block]
    return found


# 01


def test_line_ends_and_blanks_make_no_difference(tmp_path):
    names = [path.name for path in (CASES / "01-line-endings").iterdir()]
    assert len(names) == 6
    found = digests("01-line-endings", names, tmp_path)
    assert all(blocks == found["clean.libsvm"] for blocks in found.values())
    assert read("01-line-endings/clean.libsvm")[1].rows == 24


# 02


def test_a_byte_order_mark_quotes_and_blanks_are_no_part_of_a_name():
    how = TextSettings(labels="optional")
    tables = [read(f"02-bom-and-header/{name}.csv", how) for name in ("plain", "bom", "bom_quoted")]
    schema, rows, _ = tables[0]
    assert "userid" in schema.slots
    assert "new_user_class_level" in schema.slots
    for other, same, _ in tables[1:]:
        assert other == schema
        assert same.keys.tolist() == rows.keys.tolist()
    keys = rows.keys.reshape(3, -1)
    for user, column in ((1, "new_user_class_level"), (0, "pvalue_level")):
        missing = keys[:, schema.slots.index(column)] == key_of(column, "")
        assert missing.tolist() == [row == user for row in range(3)]


def test_a_byte_order_mark_is_no_part_of_a_label():
    assert read("02-bom-and-header/bom_no_header.libsvm")[1].labels.tolist() == [0, 0, 0, 0]


# 03


def test_nul_bytes_are_bytes_of_a_category_and_no_number():
    schema, rows, _ = read("03-nul-byte/cats.csv")
    keys = dict(zip(schema.slots, rows.keys.reshape(6, 2).T, strict=True))
    assert len(np.unique(keys["site"])) == 6
    ads = [key_of("ad", v) for v in ("7", "7", "7", "8", "8", "9")]
    assert keys["ad"].tolist() == ads
    _, rows, bad = read("03-nul-byte/num.csv", TextSettings(numeric=("price",)), 0.5)
    assert rows.dense.tolist() == [[12], [3.5]]
    assert [row.line for row in bad.first] == [2]


# 04


def test_members_of_a_gzip_file_are_one_text(tmp_path):
    names = [f"{n}.libsvm.gz" for n in ("one", "three_members", "split_row", "empty_member")]
    found = digests("04-gzip-members", names, tmp_path)
    assert all(blocks == found[names[0]] for blocks in found.values())
    assert read(f"04-gzip-members/{names[0]}")[1].rows == 30


@pytest.mark.parametrize(
    ("name", "message"), [("truncated", "ends early"), ("trailing_garbage", "else follows it")]
)
def test_a_gzip_file_that_is_not_whole_is_refused(tmp_path, name, message):
    path = CASES / "04-gzip-members" / f"{name}.libsvm.gz"
    with pytest.raises(DataError, match=rf"{name}\.libsvm\.gz: .*{message}"):
        to_shards([path], AUTO, tmp_path)
    assert not list(tmp_path.glob("*.shard*"))


# 05


def test_labels_however_written_are_the_same(tmp_path):
    names = [f"{n}.libsvm" for n in ("zero_one", "minus_plus", "floats", "minus_float")]
    found = digests("05-label-encodings", names, tmp_path)
    assert all(blocks == found[names[0]] for blocks in found.values())
    labels = read(f"05-label-encodings/{names[0]}")[1].labels
    assert (len(labels), labels.sum()) == (20, 7)


def test_labels_that_are_none_are_named_or_skipped():
    name = "05-label-encodings/bad_labels.libsvm"
    with pytest.raises(DataError, match=r"bad_labels.libsvm:4:1: .* found '2'"):
        read(name)
    _, rows, bad = read(name, max_bad=0.25)
    bad.finish(rows.rows + bad.count)
    assert (rows.rows, bad.count) == (15, 5)
    assert [(row.line, row.text) for row in bad.first] == [(4, "2"), (8, "0.5"), (10, "yes")]


# 06


def test_malformed_features_are_named_or_skipped():
    name = "06-malformed-features/mixed.libsvm"
    with pytest.raises(DataError, match=r"mixed.libsvm:2:3: expected key:value.* found '1:2:3'"):
        read(name)
    _, rows, bad = read(name, max_bad=1.0)
    # The label without features counts as a row: its score is the intercept.
    assert (rows.rows, bad.count) == (3, 11)
    assert rows.counts.tolist() == [[2], [0], [2]]


def test_pairs_and_triples_are_not_taken_for_each_other():
    name = "06-malformed-features/ffm_mixed.libffm"
    with pytest.raises(DataError, match=r"ffm_mixed.libffm:2:3: expected field:key.* found '0:2'"):
        read(name)
    schema, rows, bad = read(name, max_bad=1.0)
    assert (rows.rows, bad.count) == (2, 3)
    assert [(row.line, row.text) for row in bad.first] == [(2, "0:2"), (3, "0:3:1:4"), (4, "a:3:1")]
    assert (schema.slots, rows.counts.tolist()) == (("0", "1"), [[1, 1], [1, 0]])
    assert rows.keys.tolist() == [3, 7, 3]
    with pytest.raises(DataError, match=r"ffm_mixed.libffm:1:3: .* found '0:3:1'"):
        read(name, TextSettings("libsvm"))


# 07


def test_prediction_tables_give_the_same_rows_with_and_without_labels():
    how = TextSettings(numeric=("price",), labels="optional")
    tables = [
        read(f"07-predict-without-label/predict_{name}.csv", how)
        for name in ("label", "nolabel", "reordered")
    ]
    for schema, rows, _ in tables:
        assert schema == tables[0][0]
        assert rows.keys.tolist() == tables[0][1].keys.tolist()
        assert rows.dense.tolist() == [[1.5], [2.5], [3.5], [4.5]]
    with pytest.raises(DataError, match="no column 'label'"):
        read("07-predict-without-label/predict_nolabel.csv")


def test_a_pair_is_never_taken_for_a_label():
    name = "07-predict-without-label/predict_nolabel.libsvm"
    with pytest.raises(DataError, match=r"expected a label .* found '3:1'"):
        read(name)
    for labels in ("optional", "none"):
        _, rows, _ = read(name, TextSettings(labels=labels))
        assert rows.keys.tolist() == [3, 7, 2, 9]
        assert np.isnan(rows.labels).all()


# 10


@pytest.mark.parametrize("kind", ["ftrl", "adagrad", "sgd"])
@pytest.mark.parametrize("model", ["lr", "fm"])
def test_huge_values_train_to_finite_weights(tmp_path, kind, model):
    job = settings(
        data_train=CASES / "10-extreme-margins" / "huge_values.libsvm",
        optimizer_kind=kind,
        optimizer_alpha=0.1,
        model_kind=model,
        train_passes=20,
        train_lanes=1,
        train_batch_rows=4,
        output_dir=tmp_path,
    )
    loaded = LoadedModel.open(Path(trained(job)["model"]))
    bits = loaded.model.partition_bits
    for table in loaded.partitions.tables:
        assert all(np.isfinite(part.rows).all() for part in table.snapshot(bits))


@pytest.mark.parametrize("alpha", ["1e-45", "0"])
def test_a_rate_that_vanishes_is_refused(alpha):
    with pytest.raises(ConfigError, match="must be above 0 as a 32-bit number"):
        load_job(None, [f"optimizer.alpha={alpha}"], {})


# 11


def test_numbers_that_are_not_finite_are_bad():
    _, rows, bad = read("11-nan-and-inf-inputs/nan_inf.libsvm", max_bad=1.0)
    assert (rows.rows, bad.count) == (3, 5)
    assert [row.line for row in bad.first] == [2, 3, 4]
    how = TextSettings(numeric=("price", "age"))
    _, rows, bad = read("11-nan-and-inf-inputs/nan_dense.csv", how, max_bad=1.0)
    assert rows.dense.tolist() == [[3.5, 20], [0, 40], [4.5, 35]]
    assert bad.count == 5
    how = TextSettings(numeric=("price", "age"), missing=("-", "NULL"))
    _, rows, bad = read("11-nan-and-inf-inputs/nan_dense.csv", how, max_bad=1.0)
    assert (rows.rows, bad.count) == (5, 3)


# 12


SCRIPT = """
import sys
from pathlib import Path
from ctrps.data.badrows import BadRows
from ctrps.data.formats import TextSettings, read_rows
for rows in read_rows(Path(sys.argv[1]), TextSettings("csv"), BadRows()):
    sys.stdout.write(" ".join(map(str, rows.keys.tolist())))
"""


def test_keys_do_not_depend_on_process_chunk_order_locale_or_separator(tmp_path):
    name = "12-hash-across-processes/cats.csv"
    schema, rows, _ = read(name)
    keys = rows.keys.reshape(-1, 3)
    assert len(np.unique(keys)) == 20
    assert schema.slots == ("ad", "site", "user")
    assert keys[0].tolist() == [key_of("ad", "ad-0"), key_of("site", "a"), key_of("user", "u0")]
    for seed, locale in (("1", "C"), ("2", "C.UTF-8")):
        environment = {"PYTHONHASHSEED": seed, "LC_ALL": locale}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        command = [sys.executable, "-c", SCRIPT, str(CASES / name)]
        out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        assert out.stdout.split() == [str(key) for key in rows.keys]
    header, *lines = (CASES / name).read_text("utf-8").splitlines()
    turned = tmp_path / "turned.tsv"
    turned.write_text("\n".join([header, *lines[::-1]]).replace(",", "\t"), "utf-8")
    for chunk_bytes in (1, 100):
        with open_rows(turned, AUTO, BadRows(), chunk_bytes) as source:
            again = joined(list(source.rows)).keys.reshape(-1, 3)
        np.testing.assert_array_equal(again[::-1], keys)


# 13


def test_categories_are_taken_as_they_are_written():
    how = TextSettings(ignore=("n",))
    keys = {
        name: read(f"13-int-versus-float-text/{name}.csv", how)[1].keys.tolist()
        for name in ("no_missing", "with_missing", "late_text", "floats", "big")
    }
    assert keys["no_missing"] == [key_of("cid", v) for v in ("1", "2", "10", "01")]
    assert keys["with_missing"] == [*keys["no_missing"], key_of("cid", "")]
    assert keys["late_text"] == [*keys["no_missing"], key_of("cid", "x9")]
    assert not {*keys["floats"]} & {*keys["no_missing"]}
    assert len({*keys["big"]}) == 3


# 14


def test_every_key_of_64_bits_is_a_key(tmp_path):
    (shard,) = to_shards([CASES / "14-keys-of-64-bits" / "edges.libsvm"], AUTO, tmp_path)
    powers = (31, 32, 63)
    wanted = {0, 1, 2**53, 2**53 + 1, 2**64 - 2, 2**64 - 1}
    wanted |= {2**n for n in powers} | {2**n - 1 for n in powers}
    assert set(Shard(shard).block(0).keys.tolist()) == wanted
    rows = CASES / "14-keys-of-64-bits" / "edges.libsvm"
    job = settings(data_train=rows, train_passes=1, output_dir=tmp_path / "run")
    loaded = LoadedModel.open(Path(trained(job)["model"]))
    assert {*loaded.partitions.tables[0].snapshot(0)[0].keys.tolist()} == wanted
    for form in ("libsvm", "libffm"):
        rewrite([rows], tmp_path / form, form, AUTO)
        with open_rows(tmp_path / form, AUTO, BadRows()) as source:
            assert {*joined(list(source.rows)).keys.tolist()} == wanted


# 20


def test_empty_parts_are_no_error_but_no_rows_at_all_are(tmp_path):
    folder = CASES / "20-more-workers-than-data"
    shards = to_shards(expand([folder / "part-*.libsvm"]), AUTO, tmp_path)
    assert sum(Shard(shard).rows for shard in shards) == 6
    for name in ("part-1.libsvm", "header_only.csv"):
        with pytest.raises(DataError, match=f"no examples in .*{name}"):
            to_shards([folder / name], AUTO, tmp_path)
    with pytest.raises(DataError, match=f"nothing-.*looked in {folder}"):
        expand([folder / "nothing-*"])
