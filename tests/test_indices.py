"""Files of indices: the dummy format, and whether they count from 0 or from 1."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrps.config import load_job
from ctrps.data.badrows import BadRows
from ctrps.data.convert import to_shards
from ctrps.data.describe import head, stats
from ctrps.data.detect import detect
from ctrps.data.formats import open_rows
from ctrps.data.indices import disagreement
from ctrps.data.keyvalues import LIBSVM
from ctrps.data.reading import TextSettings
from ctrps.data.rewrite import rewrite
from ctrps.data.rows import joined
from ctrps.data.shards import Shard
from ctrps.errors import ConfigError, CtrpsWarning, DataError
from ctrps.evaluation import evaluate
from ctrps.kernels import text
from ctrps.loaded import LoadedModel
from ctrps.predict import predict
from tests import naive_data as naive
from tests.procs import settings as overrides
from tests.procs import trained

slow_few = settings(derandomize=True, max_examples=300, deadline=None)
FROM_0 = TextSettings(zero_based=("dummy",))


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, how=TextSettings(), bad=None, chunk_bytes=8 << 20):  # noqa: B008
    with open_rows(path, how, BadRows() if bad is None else bad, chunk_bytes) as source:
        return source, joined([*source.rows])


# the kernel


def dummy(data: bytes, final: bool, mode: int, bad_room: int = 100):
    buf = np.frombuffer(bytearray(data), np.uint8)
    size = len(data) // 2 + 1
    keys, counts = np.empty(size, np.uint64), np.empty(size, np.int32)
    labels, bad = np.empty(size, np.float32), np.empty((bad_room, 3), np.int64)
    at, rows, nnz, wrong = text.dummy_rows(buf, final, mode, keys, counts, labels, bad)
    found = iter(keys[:nnz].tolist())
    out = [(labels[r], [next(found) for _ in range(counts[r])]) for r in range(rows)]
    return at, out, [(reason, data[start:end]) for reason, start, end in bad[:wrong].tolist()]


token = st.sampled_from("0 1 -1 +1 1.00 2 17 007 3:1 18446744073709551615 x -7 5.0 1,2 #".split())
big = st.sampled_from(["18446744073709551616", "99999999999999999999"])
blank = st.sampled_from([" ", "\t", "  ", " \t"])
line_end = st.sampled_from(["\n", "\r\n", "\n\n", " \n", "\n \t\n", "\r"])
dummy_text = st.lists(st.one_of(token, token, big, blank, blank, line_end), max_size=40)


@slow_few
@given(
    dummy_text.map("".join),
    st.booleans(),
    st.sampled_from([text.REQUIRED, text.OPTIONAL, text.NONE]),
)
def test_dummy_rows_are_those_of_the_twin(written, final, mode):
    at, rows, bad = dummy(written.encode(), final, mode)
    expected_at, expected_rows, expected_bad = naive.dummy_rows(written.encode(), final, mode)
    assert (at, bad) == (expected_at, expected_bad)
    assert repr(rows) == repr([(np.float32(label), keys) for label, keys in expected_rows])


def test_dummy_goes_on_where_the_table_of_bad_rows_was_full():
    data = b"x 1 2\n1 2\ny 3\n0 4\n"
    at, rows, bad = dummy(data, True, text.REQUIRED, bad_room=1)
    assert (at, rows, bad) == (6, [], [(text.LABEL, b"x")])


# rows


@pytest.mark.parametrize("chunk_bytes", [1, 8, 1 << 20])
def test_dummy_rows_are_libsvm_rows_whose_values_are_1(tmp_path, chunk_bytes):
    path = write(tmp_path / "a", "-1 0 5 18446744073709551615 \n\n+1\n1 7 7\r\n0 3 ")
    source, rows = read(path, TextSettings("dummy"), chunk_bytes=chunk_bytes)
    assert source.schema == LIBSVM
    assert rows.keys.tolist() == [0, 5, 2**64 - 1, 7, 7, 3]
    assert rows.values is None
    assert rows.counts.tolist() == [[3], [0], [2], [1]]
    assert rows.labels.tolist() == [0, 1, 1, 0]


def test_rows_without_labels_hold_indices_only(tmp_path):
    path = write(tmp_path / "a.dummy", "1 5\n0 3 4\n")
    _, rows = read(path, TextSettings(labels="none"))
    assert rows.counts.tolist() == [[2], [3]]
    assert np.isnan(rows.labels).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 3:1", "a:2:3: expected an index without a value, 0 to 2^64-1, found '3:1'"),
        ("1 4 -2", "a:2:5: expected an index without a value"),
        ("1 18446744073709551616", "a:2:3: expected an index"),
        ("7 8", "a:2:1: expected a label 0, 1, -1 or"),
    ],
)
def test_what_is_no_index_or_label_is_bad(tmp_path, line, message):
    path = write(tmp_path / "a", f"1 2 3\n{line}\n")
    with pytest.raises(DataError) as caught:
        read(path, TextSettings("dummy", labels="optional"))
    assert message in str(caught.value)
    _, rows = read(path, TextSettings("dummy"), BadRows(0.5))
    assert rows.keys.tolist() == [2, 3]


# detection


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a", "1 0 5 16\n-1 2 5\n+1\n", "dummy"),
        ("a.txt", "\n 0 3 9 ", "dummy"),
        ("a.svm", "1 0 5 16\n", "dummy"),
        ("a.dummy.gz", "1\n", "dummy"),
        ("a.dummy", "1 9 5\n", "dummy"),
        ("a.dummy", "1 3:1\n", "libsvm"),
        ("a.csv", "1 3 5\n", "csv"),
        ("a", "1\t3\t5\n", "tsv"),
        ("a.vw", "1 3 5\n", "vw"),
    ],
)
def test_dummy_is_told_where_nothing_else_is_meant(tmp_path, name, content, form):
    assert detect(write(tmp_path / name, content)).format == form


@pytest.mark.parametrize(
    "content",
    [
        "1 9 5\n",
        "1 5\n1 7\n1 8\n",
        "2 5 9\n",
        "1 5 9 9\n",
        "1 2 3\n7 8 9\n",
        "1 2 3\n\n1 0.5 2\n",
        "",
    ],
)
def test_numbers_that_may_be_something_else_are_not_taken_for_indices(tmp_path, content):
    with pytest.raises(DataError, match=r"cannot tell its format .*dummy"):
        detect(write(tmp_path / "a", content))


def test_head_and_stats_say_how_it_was_told(tmp_path):
    path = write(tmp_path / "a", "1 0 5 16\n-1 2 5\n")
    about, *rows = head(path, 5, TextSettings(labels="optional"))
    assert about.startswith(f"# {path}: dummy (its first lines hold a label and indices in asc")
    assert rows == ["1 label=1 =0,5,16", "2 label=0 =2,5"]
    found = stats([path], TextSettings())
    assert found["indices"] == {"least": 0, "greatest": 16}
    assert stats([path], FROM_0)["indices"] == {"least": 1, "greatest": 17}
    assert (found["rows"], found["clicks"], found["keys_per_row"]["mean"]) == (2, 1, 2.5)


# counting from 0


def test_1_is_added_to_the_indices_of_formats_that_count_from_0(tmp_path):
    files = {
        "dummy": "1 0 4\n",
        "libsvm": "1 0:1 4:0.5\n",
        "libffm": "1 3:0:1 7:4:0.5\n",
    }
    for form, content in files.items():
        path = write(tmp_path / form, content)
        for zero_based, keys in (((), [0, 4]), ((form,), [1, 5])):
            others = tuple({*files} - {form})
            _, rows = read(path, TextSettings(form, zero_based=(*zero_based, *others)))
            assert rows.keys.tolist() == keys
    path = write(tmp_path / "a", f"1 0 {2**64 - 1}\n")
    _, rows = read(path, TextSettings("dummy", zero_based=("dummy",)))
    assert rows.keys.tolist() == [1, 0]


def test_only_formats_with_indices_count():
    with pytest.raises(ConfigError, match="expected some of libsvm, libffm, dummy, found 'vw'"):
        load_job(None, ["data.zero_based=dummy, vw"], {})


def shards(tmp_path, how=TextSettings(), **files):  # noqa: B008
    cache = tmp_path / "cache"
    return [
        Shard(to_shards([write(tmp_path / name, content)], how, cache)[0])
        for name, content in files.items()
    ]


LIBSVM_FROM_1 = "1 1:1 5:1\n0 3:1\n"
DUMMY_FROM_0 = "1 0 4\n0 2\n"


def test_files_that_count_from_different_numbers_are_found(tmp_path):
    train, test = shards(tmp_path, train=LIBSVM_FROM_1, test=DUMMY_FROM_0)
    for parts in ([train], [test]), ([test], [train]), ([test, train],):
        told = disagreement(*parts)
        assert told.startswith(f"{tmp_path}/test seems to count its indices from 0, {tmp_path}/tr")
        assert told.endswith("If so, set data.zero_based=dummy")
    assert disagreement([train], [train]) is None
    assert disagreement([test], [test]) is None


def test_files_of_one_format_need_another_sign_than_a_missing_index_0(tmp_path):
    far, near = "1 0:1 9:1\n", "0 1:1 8:1\n"
    few, many = shards(tmp_path, few=near, many=far)
    assert disagreement([many], [few]) is None
    other, one = shards(tmp_path, other="0 0:1 8:1\n", one="1 1:1 9:1\n")
    assert disagreement([one], [other]).endswith(
        "train and test with what this writes: "
        f"ctrps convert {tmp_path}/other -o NEW.libsvm --set data.zero_based=libsvm"
    )
    hashed = shards(tmp_path, hashed="1 99999:1 123456789:1\n")
    assert disagreement([many], hashed) is None


def test_files_of_a_part_are_taken_together(tmp_path):
    first, second = shards(tmp_path, first="1 0 2 3\n", second="1 1 2 3 4\n")
    (libsvm,) = shards(tmp_path, third="1 0:1 3:1\n")
    assert disagreement([first, second], [libsvm]) is None
    assert disagreement([second], [libsvm])


def job(tmp_path, *more):
    write(tmp_path / "train.libsvm", LIBSVM_FROM_1 * 20)
    write(tmp_path / "test.dummy", DUMMY_FROM_0 * 5)
    values = {
        "data_train": tmp_path / "train.libsvm",
        "data_test": tmp_path / "test.dummy",
        "output_dir": tmp_path / "run",
    }
    return [*overrides(**values), *more]


def test_training_warns_of_it_until_the_job_says_which_files_count_from_0(tmp_path):
    with pytest.warns(CtrpsWarning, match=r"test\.dummy seems to count its indices from 0"):
        wrong = trained(job(tmp_path))["test"]
    with pytest.warns(CtrpsWarning):  # from the shards of the cache too
        trained(job(tmp_path), overwrite=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right = trained(job(tmp_path, "data.zero_based=dummy"), overwrite=True)["test"]
    assert right["auc"] == 1 > wrong["auc"]


def test_a_model_remembers_which_formats_count_from_0(tmp_path):
    data = [tmp_path / "test.dummy"]
    with pytest.warns(CtrpsWarning):
        trained(job(tmp_path))
    loaded = LoadedModel.open(tmp_path / "run" / "model")
    report = evaluate(loaded, data)
    assert report["notes"] == [
        f"{tmp_path}/test.dummy: unlike training, it counts from 0: see data.zero_based"
    ]
    right = trained(job(tmp_path, "data.zero_based=dummy"), overwrite=True)["test"]
    loaded = LoadedModel.open(tmp_path / "run" / "model")
    report = evaluate(loaded, data)
    assert (report["auc"], report["logloss"], report["notes"]) == (1, right["logloss"], [])
    unlabelled = write(tmp_path / "unlabelled.dummy", "0 4\n2\n")
    scores = [*predict(loaded, [unlabelled], labels="none")]
    again = [*predict(loaded, [write(tmp_path / "a.libsvm", "1 1:1 5:1\n0 3:1\n")])]
    assert scores[0].margins.tolist() == again[0].margins.tolist()


def test_convert_makes_one_shard_that_counts_from_1(tmp_path):
    job(tmp_path)
    out = tmp_path / "all.shard"
    files = [tmp_path / "train.libsvm", tmp_path / "test.dummy"]
    rewrite(files, out, "shard", FROM_0)
    _, rows = read(out)
    assert rows.rows == 50
    assert {*rows.keys.tolist()} == {1, 3, 5}
