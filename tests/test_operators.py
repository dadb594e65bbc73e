"""Derived fields, fitted operators and a user's own: what features files can do beyond golden."""

from pathlib import Path

import numpy as np
import pytest

from ctrps.config import load_job
from ctrps.data import fit
from ctrps.data.assemble import changes_of
from ctrps.data.badrows import BadRows
from ctrps.data.extract import extract
from ctrps.data.features import load_spec, parse_spec
from ctrps.data.program import Extractor
from ctrps.data.shards import Shard
from ctrps.data.spec import QUANTILES
from ctrps.errors import ConfigError, DataError
from ctrps.kernels import derive, lines, names, values, words
from ctrps.kernels.keys import hash_text, key_of
from ctrps.runtime.local import train
from tests import naive_data2 as naive
from tests.test_features import assert_same, keys_of, random_lines, run, sample, spec_of

EXAMPLES = Path(__file__).parents[1] / "feature_extract"


def text_of(data):
    return np.frombuffer(bytearray(data), np.uint8) if data else np.zeros(0, np.uint8)


# words


@pytest.mark.parametrize("seed", range(2))
def test_words(seed):
    rng = np.random.default_rng(seed)
    data = bytes(rng.choice(list(b"ab,\t\n\x80\x8c\xff0"), 400).tolist())
    buffer = text_of(data)
    for _ in range(400):
        start = int(rng.integers(0, len(data) - 8))
        n = int(rng.integers(0, 8))
        word = np.uint64(int.from_bytes(data[start : start + 8], "little"))
        assert words.hash_short(word, np.uint64(n)) == naive.hash_short(int(word), n)
        end = int(rng.integers(start, len(data) + 1))
        ends = np.uint64(start), np.uint64(end)
        assert words.hash_field(buffer, *ends) == naive.hash_field(data, start, end)
        elements = np.empty(end - start + 1, np.uint64)
        used = words.hash_list(buffer, *ends, np.uint64(44), elements, 0)
        assert elements[:used].tolist() == naive.hash_list(data, start, end, b",")


def test_hash_spans():
    rng = np.random.default_rng(5)
    sizes = [*range(10), 20, 40, *rng.integers(0, 12, 40).tolist()]
    spots = np.cumsum([3, *(size + 1 for size in sizes)])
    # With all that a word may read behind the last text, and with less of it.
    for more in (8, 7, 0):
        data = bytes(rng.integers(0, 256, int(spots[-1]) + more).tolist())
        hashes = np.empty(2 * len(sizes), np.uint64)
        scratch = np.empty(len(sizes), np.uint32)
        words.hash_spans(text_of(data), spots.astype(np.uint64), hashes, scratch)
        assert hashes[: len(sizes)].tolist() == naive.hash_spans(data, spots[:-1].tolist(), sizes)


@pytest.mark.parametrize("seed", range(3))
def test_scan_rows(seed):
    rng = np.random.default_rng(seed)
    pieces = ["a", "", "bc", ",", ",,", "x" * 30, "é", "\r", "12345678", "\t\t"]
    lines_ = []
    for _ in range(60):
        fields = ["".join(rng.choice(pieces, rng.integers(0, 9))) for _ in range(4)]
        lines_.append("\t".join(fields) + str(rng.choice(["\n", "\r\n"])))
    data = "".join(lines_).encode().removesuffix(b"\n")
    rows = np.cumsum([0, *(len(line.encode()) for line in lines_[:-1])])
    rows = rng.permutation(rows)
    columns = np.array([2, -1, 0, 1], np.int32)
    starts, ends, firsts, lasts = np.zeros((4, 3, 60), np.int64)
    found, elements = np.zeros(60, np.int32), np.zeros(len(data) + 300, np.uint64)
    tab, buffer = np.uint8(9), text_of(data)
    given = (buffer, rows, tab, columns, starts, ends, firsts, lasts)
    spots, sizes = np.zeros(len(elements), np.uint64), np.zeros(len(elements), np.uint32)
    rest = spots, sizes, np.zeros((60, 5), np.int32), found
    assert lines.scan_rows(*given, elements[:70], *rest) == -1
    assert lines.scan_rows(*given, elements, spots[:200], *rest[1:]) == -1
    used = lines.scan_rows(*given, elements, *rest)
    assert used <= len(data) + len(rows)
    for i, wanted in enumerate(naive.scan_rows(data, rows, b"\t")):
        assert found[i] == len(wanted)
        for field, column in ((0, 2), (2, 0), (3, 1)):
            if field < len(wanted):
                text, hashes = wanted[field]
                assert data[starts[column, i] : ends[column, i]] == text
                assert elements[firsts[column, i] : lasts[column, i]].tolist() == hashes


# single values


def test_bucket_of():
    breaks = np.array([20, 50, 35.5, 100], np.float32)
    for value in (np.nan, -1.0, 20.0, 20.0000001, 20.01, 35.5, 50, 99, 100, 100.1, 1e30):
        assert values.bucket_of(value, breaks) == naive.bucket_of(value, breaks)


def test_is_hit():
    a, b, empty = (hash_text(text) for text in ("a", "b", ""))
    for elements in ([empty], [a], [b, a], [empty, b], [empty, empty]):
        for wanted in (a, b, empty):
            texts = np.array([a, *elements, a], np.uint64)
            last = len(elements) + 1
            found = values.is_hit(texts, 1, last, np.uint64(wanted), np.uint64(empty))
            assert found == naive.is_hit(elements, wanted)


# derived fields


@pytest.mark.parametrize("seed", range(2))
def test_tidied(seed):
    rng = np.random.default_rng(seed)
    for _ in range(300):
        data = bytes(rng.choice(list(b"aZ \t\r\n\xc3\x89,"), int(rng.integers(0, 12))).tolist())
        ways = [w for w in ("lower", "strip", "squeeze") if rng.random() < 0.6]
        how = sum({"lower": 1, "strip": 2, "squeeze": 4}[way] for way in ways)
        out = np.zeros(20, np.uint8)
        end = derive.tidied(text_of(data), 0, len(data), how, out, 3)
        assert bytes(out[3:end]) == naive.tidied(data, ways)


@pytest.mark.parametrize("seed", range(2))
def test_set_of(seed):
    rng = np.random.default_rng(seed)
    for _ in range(300):
        data = bytes(rng.choice(list(b"ab,,\xff"), int(rng.integers(0, 14))).tolist())
        out = np.zeros(20, np.uint8)
        end = derive.set_of(text_of(data), 0, len(data), out, 3)
        assert bytes(out[3:end]) == naive.set_of(data)


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "Europe/Paris", "America/St_Johns", "UTC"])
def test_time_part(zone):
    rng = np.random.default_rng(4)
    changes, offsets = changes_of(zone)
    times = [*rng.integers(0, 4_000_000_000, 200), *(changes[1:40] - 1), *changes[1:40], np.nan]
    for part, name in ((derive.HOUR, "hour"), (derive.WEEKDAY, "weekday")):
        for time in times:
            out = np.zeros(8, np.uint8)
            end = derive.time_part(float(time), part, changes, offsets, out, 2)
            wanted = naive.time_part(None if np.isnan(time) else time, name, zone)
            assert bytes(out[2:end]).decode() == wanted


def test_times_before_and_after_the_calendar():
    changes, offsets = changes_of("Asia/Shanghai")
    out = np.zeros(8, np.uint8)
    for time in (-1e300, -5.0, 1e12, 1e300):
        assert derive.time_part(time, derive.HOUR, changes, offsets, out, 0) in (1, 2)


DERIVED = (
    "[derived_fields]\ntidy=a,tidy,lower | strip|squeeze\nset=list,set\nhour=n,hour,Europe/Paris\n"
    "day=n,weekday,Asia/Shanghai\ntidyset=set,tidy,strip"
)


MANY = spec_of(
    DERIVED,
    "[id]\nid=a|n,combine,direct|direct,#\n[label]\nlabel=y,direct",
    "[dense_features_user]\nlog=n,log,standard,1.5|3\nn=n,direct,minmax,-2|0.5\nhour=hour,log",
    "[sparse_features_user]\ntidy=tidy,direct\nset=set,direct\nhour=hour,direct\nday=day,direct",
    "hourly=hour,bucket,6|12|18\nlist=tidyset,group,a\nhit=tidy|set,hit",
    "[sparse_features_ad]\nax=a|list|n,combine,direct|group|bucket,##1|2",
    "ll=list|b|set,combine,group|direct|group,##\nl=list,combine,group,",
    "k=a|list,combine,direct|group,#\nd=a|list,combine,direct|group,#\nkeep=b,direct\ndrop=b,direct",
    "[missing]\nk=keep\nd=drop\nkeep=keep\ndrop=drop\nn=0.25\nlog=7",
    fields="a,b,n,list,y",
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("drop", [False, True])
def test_random_rows_by_kernel(seed, drop):
    lines = list(random_lines(np.random.default_rng(seed), 300))
    assert_same(MANY, MANY.fields, lines, drop_missing=drop)


def test_cross_with_elements():
    spec = spec_of("[sparse_features_ad]\nx=a|list|b,combine,direct|group|direct,##")
    keys = [key_of("x", "v", element, "w") for element in ("p", "", "q")]
    assert keys_of(run(spec, ["v\tw\t1\tp,,q"])) == [[keys]]


def test_lists_that_are_the_same_set_share_a_key():
    spec = spec_of("[derived_fields]\ns=list,set\n[sparse_features_ad]\nx=s,direct")
    one, other = keys_of(run(spec, ["v\tw\t1\tp,q,p", "v\tw\t1\tq,p"]))
    assert one == other == [[key_of("s", "p,q")]]


def test_more_elements_and_derived_text_than_there_is_room():
    spec = spec_of(
        "[derived_fields]\nt=list,tidy,lower\n[sparse_features_user]\nx=t|t,combine,group|group,#"
    )
    long = ",".join("B" * 200 for _ in range(400))
    rows = run(spec, [f"a\tb\t1\t{long}", "a\tb\t1\tX"] * 20)
    assert rows.counts[:, 0].tolist() == [160_000, 1] * 20
    assert rows.keys[160_000] == key_of("x", "x", "x")


def test_bad_number_of_a_derived_field_names_where_it_comes_from():
    spec = spec_of("[derived_fields]\nt=a,tidy,strip\n[dense_features_user]\nx=t,log")
    with pytest.raises(DataError, match=r"sample.tsv:2:3: t: expected a number, found 'zero'"):
        run(spec, ["b\tzero\t1\t"], header=("b", "a", "n", "list"))


# names of values


def named(extractor, text, lines, rows, keys):
    names, ends = extractor.names(text, lines, np.int64(rows), np.uint64(keys))
    starts = [0, *ends.tolist()][: len(ends)]
    return [bytes(names[a:b]).decode() for a, b in zip(starts, ends.tolist(), strict=True)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("drop", [False, True])
def test_names_of_random_rows(seed, drop):
    rng = np.random.default_rng(seed)
    text = sample(MANY.fields, list(random_lines(rng, 300)))
    extractor = Extractor(MANY, MANY.fields, text.file, drop_missing=drop)
    rows, lines = extractor.kept(text, text.lines, BadRows(1.0))
    owner = np.repeat(np.arange(rows.rows), rows.counts.sum(axis=1))
    some = rng.random(len(owner)) < 0.5
    keys = np.where(rng.random(len(owner)) < 0.02, 7, rows.keys)[some]
    found = named(extractor, text, lines, owner[some], keys)
    good = [bytes(text.data[start:]).split(b"\n")[0].decode() for start in lines]
    wanted = naive.name_values(
        MANY, MANY.fields, good, owner[some], keys.tolist(), drop_missing=drop
    )
    assert found == wanted and "" in wanted


def test_names_need_room():
    spec = spec_of("[sparse_features_user]\nl=list,group,a")
    elements = ["x" * 900 + str(i) for i in range(300)]
    text = sample(spec.fields, ["a\tb\t1\t" + ",".join(elements)])
    extractor = Extractor(spec, spec.fields, text.file)
    keys = [key_of("a", element) for element in elements]
    found = named(extractor, text, text.lines, [0] * 300, keys)
    assert found == [f"a={element}" for element in elements]
    assert named(extractor, text, text.lines, [], []) == []


def test_first_rows():
    rng = np.random.default_rng(6)
    rows = [rng.integers(0, 40, rng.integers(0, 9)).tolist() for _ in range(30)]
    starts = np.cumsum([0, *map(len, rows)])
    counts, first = np.zeros((2, 50), np.int64)
    index = np.array([number for row in rows for number in row], np.uint16)
    names.first_rows(index, starts, counts, first)
    wanted = naive.first_rows(rows)
    assert {n: [counts[n], first[n]] for n in np.flatnonzero(counts)} == wanted


# missing


def test_missing_per_feature():
    spec = spec_of(
        "[dense_features_user]\nx=n,log\ny=n,direct\n[sparse_features_user]\nx=a,direct\nl=list,group",
        "[missing]\nx=3\nl=drop",
    )
    assert spec.sparse[1].missing is None
    rows = run(spec, ["\tb\t\tp,,"])
    np.testing.assert_allclose(rows.dense, [[np.log(4), 0]], rtol=1e-6)
    assert keys_of(rows) == [[[key_of("l", "p")], [key_of("a", "")]]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[missing]\nz=drop", "unknown feature 'z'"),
        ("[missing]\ns=dorp", "unknown policy 'dorp'; did you mean 'drop'"),
        ("[missing]\nd=much", "expected a number, not 'much'"),
        ("[missing]\nl=-1", "log of -1 does not exist"),
        ("[derived_fields]\na=b,set", "'a' is a field of the sample already"),
        ("[derived_fields]\nt=u,set\nu=a,set", "unknown field 'u'"),
        ("[derived_fields]\nt=a,tidy,upper", "unknown way to tidy 'upper'"),
        ("[derived_fields]\nt=a,hour,Mars/Base", "unknown time zone 'Mars/Base'"),
        ("[derived_fields]\nt=a,hour", "expected field,hour,ZONE, found 0"),
        ("[derived_fields]\nt=a,direct", "'direct' does not fit here; derived takes tidy"),
        ("[derived_fields]\nt=a,python,x:y", "expected FILE.py:FUNCTION"),
        ("[derived_fields]\nt=a,set\nu=t,python,x.py:y", "python reads fields of the sample"),
        ("[id]\nx=t,direct\n[derived_fields]\nt=a,set", "unknown field 't'"),
        ("[sparse_features_ad]\nx=a,set", "'set' does not fit here; sparse takes direct"),
        ("[sparse_features_ad]\nx=n,bucket,q1", "a number of buckets is q2 to q1000, not 'q1'"),
        ("[sparse_features_ad]\nx=n,bucket,qx", "a number of buckets is q2"),
        ("[sparse_features_ad]\nx=a|list,combine,direct|group,#q2", "group takes no argument here"),
        ("[dense_features_ad]\nx=n,log,normal", "unknown way to normalise 'normal'"),
        ("[dense_features_ad]\nx=n,log,standard,1", "expected centre|size"),
        ("[dense_features_ad]\nx=n,log,standard,1|0", "the second not 0"),
    ],
)
def test_errors(line, message):
    rest = "[dense_features_user]\nd=n,direct\nl=n,log\n[sparse_features_user]\ns=a,direct"
    with pytest.raises(ConfigError, match=message.replace("|", r"\|")):
        spec_of(line, rest)


# what is fitted


def fit_to(spec, lines):
    text = sample(spec.fields, lines)
    numbers = fit.spec_of_numbers(spec)
    extractor = Extractor(numbers, spec.fields, text.file, empty=np.nan)
    found = fit.distributions([extractor.rows(text, text.lines, BadRows())])
    return parse_spec(fit.fitted(spec, found))


FITS = (
    "[dense_features_user]\nl=n,log,standard  # note\nm=n,direct , minmax\nplain=n,direct",
    "[sparse_features_user]\nq=n,bucket,q4\n[sparse_features_ad]\nx=a|n,combine,direct|bucket,#q3",
)


@pytest.mark.parametrize("seed", range(2))
def test_fitted(seed):
    rng = np.random.default_rng(seed)
    numbers = np.round(np.exp(rng.normal(3, 1, 200)), 1).astype(np.float32)
    lines = [f"a\tb\t{number}\t" for number in numbers] + ["a\tb\t\t"] * 7
    spec = spec_of(*FITS)
    assert [f.kind for f in spec.fits] == ["standard", "minmax", QUANTILES, QUANTILES]
    made = fit_to(spec, lines)
    logs = np.log1p(numbers.astype(float))
    np.testing.assert_allclose(made.dense[0].scale, [logs.mean(), logs.std()], rtol=1e-6)
    low, high = numbers.min(), numbers.max()
    np.testing.assert_allclose(made.dense[1].scale, [low, high - low], rtol=1e-6)
    assert made.dense[2].scale == (0, 1)
    ordered = np.sort(numbers)
    wanted = [float(ordered[int(np.ceil(200 * i / 4)) - 1]) for i in (1, 2, 3)]
    np.testing.assert_allclose(made.sparse[0].breaks[0], wanted, rtol=1e-7)
    assert len(made.sparse[1].breaks[1]) == 2 and made.sparse[1].breaks[0] == ()
    rows = assert_same(made, made.fields, lines)
    assert abs(rows.dense[:200, 0].mean()) < 1e-5 and abs(rows.dense[:200, 0].std() - 1) < 1e-5
    assert rows.dense[:200, 1].min() == 0 and rows.dense[:200, 1].max() == 1
    assert (rows.dense[200:] == 0).all()


def test_fitting_a_fitted_file_changes_nothing():
    spec = spec_of("[sparse_features_user]\nq=n,bucket,1|2")
    assert fit.fitted(spec, []) == spec.text


def test_a_number_that_is_always_the_same():
    made = fit_to(spec_of(*FITS), ["a\tb\t5\t"] * 3)
    assert made.sparse[0].breaks == ((5.0,),)
    rows = run(made, ["a\tb\t5\t"])
    np.testing.assert_allclose(rows.dense, [[0, 0, 5]], atol=1e-6)


def test_nothing_to_fit_to():
    with pytest.raises(DataError, match=r"features.ini:4:9: training rows have no number in 'n'"):
        fit_to(spec_of(*FITS), ["a\tb\t\t"])


def test_what_is_not_fitted_cannot_be_computed():
    with pytest.raises(ConfigError, match="'standard' must be fitted to training rows first"):
        run(spec_of(*FITS), ["a\tb\t1\t"])


def test_quantiles_against_sorted_rows():
    rng = np.random.default_rng(7)
    for buckets in (2, 3, 10):
        numbers = np.sort(rng.integers(0, 20, 101)).astype(np.float32)
        distinct, counts = np.unique(numbers, return_counts=True)
        lines = fit.quantiles(distinct, counts, buckets)
        wanted = {numbers[-(-101 * i // buckets) - 1] for i in range(1, buckets)}
        assert lines.tolist() == sorted(wanted - {numbers[-1]})


def test_distribution_does_not_depend_on_order_and_parts():
    rng = np.random.default_rng(8)
    numbers = rng.normal(size=5000).astype(np.float32)
    found = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(5000)
        parts = [fit.Distribution(700) for _ in range(4)]
        for part, piece in zip(parts, np.array_split(order, 4), strict=True):
            part.add(numbers[piece])
        whole = fit.Distribution(700)
        for part in parts[:: -1 if seed % 2 else 1]:
            whole.merge(part)
        found.append(whole.values())
    for values_, counts in found[1:]:
        np.testing.assert_array_equal(values_, found[0][0])
        np.testing.assert_array_equal(counts, found[0][1])
    assert 350 < len(found[0][0]) <= 700 and found[0][1].sum() == 5000


# a user's own operators


def test_the_example():
    spec = load_spec(EXAMPLES / "custom_features.ini")
    header = ("clk", "title", "price", "query")
    rows = run(spec, ["1\tblue shoe\t129.5\tshoe blue xl", "0\that\t\tcap\r"], header)
    assert rows.labels.tolist() == [1, 0]
    assert keys_of(rows) == [
        [
            [key_of("digits", "3")],
            [key_of("digits_shared", "3", word) for word in ("blue", "shoe")],
            [key_of("word", "blue"), key_of("word", "shoe")],
        ],
        [[key_of("digits", "0")], [key_of("digits_shared", "0", "")], [key_of("word", "")]],
    ]


CODE = """
def double(a, n):
    return [y + x + '.' for x, y in zip(a, n)]
def short(a):
    return a[1:]
def number(a):
    return [1 for _ in a]
def tab(a):
    return ["a\\tb" for _ in a]
def end(a):
    return ["a\\r" for _ in a]
def fails(a):
    return 1 / 0
"""


@pytest.fixture
def coded(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)

    def make(line, *more):
        text = f"[raw_sample_schema]\nfields=a,b,n,list\n[derived_fields]\n{line}\n"
        return parse_spec(text + "\n".join(more), folder=tmp_path)

    return make


def test_python_operator_by_kernel(coded):
    spec = coded(
        "x=a|n,python,mine.py:double\nt=x,tidy,lower",
        "[sparse_features_ad]\nx=x,direct\nt=t|b,combine,direct|direct,#\n[dense_features_ad]\nn=n,log",
    )
    lines = [line.rsplit("\t", 1)[0] for line in random_lines(np.random.default_rng(3), 200)]
    lines[5] = "too short"
    functions = {"mine.py:double": lambda a, n: [n[0] + a[0] + "."]}
    assert_same(spec, spec.fields, lines, functions=functions)


def test_bad_rows_keep_their_places_behind_a_python_operator(coded):
    spec = coded("x=a|n,python,mine.py:double", "[dense_features_ad]\nx=x,log\nn=n,log")
    with pytest.raises(DataError, match=r"sample.tsv:3:1: expected 4 fields, not 2"):
        run(spec, ["1\tb\t2\t", "a\tb"])
    with pytest.raises(DataError, match=r"sample.tsv:3:5: n: expected a number, found 'q'"):
        run(spec, ["1\tb\t2\t", "2\tb\tq\t"])
    with pytest.raises(DataError, match=r"sample.tsv:3:1: x: expected a number"):
        run(spec, ["1\tb\t2\t", "r\tb\t\t"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("mine.py:short", "it gave 1 values for 2 rows"),
        ("mine.py:number", "it gave 1; a value is a text without tabs"),
        ("mine.py:tab", r"it gave 'a\\tb'; a value is a text without tabs"),
        ("mine.py:end", "it gave 'a.r'; a value is a text without tabs"),
        ("mine.py:fails", "it failed: ZeroDivisionError: division by zero"),
        ("mine.py:absent", "mine.py has no function 'absent'"),
        ("none.py:double", "features.ini:4:12: no file"),
    ],
)
def test_errors_of_python_operators(coded, argument, message):
    spec = coded(f"x=a,python,{argument}", "[sparse_features_ad]\nx=x,direct")
    with pytest.raises(ConfigError, match=message):
        run(spec, ["1\tb\t2\t", "1\tb\t2\t"])


def test_python_file_that_does_not_load(coded, tmp_path):
    (tmp_path / "mine.py").write_text("import nothing_of_this_name")
    spec = coded("x=a,python,mine.py:double", "[sparse_features_ad]\nx=x,direct")
    with pytest.raises(ConfigError, match="does not load: ModuleNotFoundError"):
        run(spec, ["1\tb\t2\t"])


def test_a_fitted_file_names_the_python_file_in_full(coded, tmp_path):
    spec = coded("x=a,python,mine.py:short", "[sparse_features_ad]\nq=x,direct")
    assert f"x=a,python,{tmp_path}/mine.py:short" in fit.fitted(spec, [])


# the stage


@pytest.fixture
def job_of(tmp_path):
    """A job whose samples are there already; training in two parts."""
    rng = np.random.default_rng(2)
    header = "a\tb\tn\tlist\ty"
    lines = [f"{rng.integers(9)}\tB{i}\t{rng.integers(99)}\tp,q\t{i % 2}" for i in range(300)]
    samples = tmp_path / "out" / "samples"
    samples.mkdir(parents=True)
    for name, part in (
        ("train-0", lines[:150]),
        ("train-1", lines[150:250]),
        ("test-0", lines[250:]),
    ):
        (samples / f"{name}.tsv").write_text("\n".join([header, *part]) + "\n")

    def make(*more, **features):
        schema = f"[raw_sample_schema]\nfields={header}\n[label]\ny=y,direct\n".replace("\t", ",")
        (tmp_path / "features.ini").write_text("\n".join([schema, *more]))
        told = [f"features.{key}={value}" for key, value in features.items()]
        settings = [f"features.spec={tmp_path}/features.ini", f"output.dir={tmp_path}/out", *told]
        return load_job(None, settings, {}), lines

    return make


def test_extract_fits_to_all_training_parts(job_of):
    job, lines = job_of(*FITS)
    answer = extract(job, stage="features")
    assert answer["rows"] == 300
    data = job.output.dir / "data"
    spec = load_spec(data / "features.ini")
    numbers = np.sort([float(line.split("\t")[2]) for line in lines[:250]])
    assert spec.sparse[0].breaks[0] == tuple(numbers[[62, 124, 187]])
    np.testing.assert_allclose(spec.dense[0].scale[0], np.log1p(numbers).mean(), rtol=1e-6)
    shards = [Shard(path) for path in sorted(data.glob("*.shard"))]
    assert {shard.schema.features for shard in shards} == {spec.text}
    again = extract(job.model_copy(update={"output": job.output}), "features", overwrite=True)
    assert again["rows"] == 300
    assert [Shard(shard.path).digest for shard in shards] == [shard.digest for shard in shards]


def test_extract_with_the_fitted_file_makes_the_same_rows(job_of, tmp_path):
    job, _ = job_of(*FITS)
    extract(job, stage="features")
    data = job.output.dir / "data"
    wanted = [Shard(path).block(0) for path in sorted(data.glob("*.shard"))]
    (tmp_path / "later.ini").write_text((data / "features.ini").read_text())
    for path in (job.output.dir / "samples").glob("train-*"):
        path.unlink()
    settings = [f"features.spec={tmp_path}/later.ini", f"output.dir={job.output.dir}"]
    extract(load_job(None, settings, {}), stage="features", overwrite=True)
    (found,) = [Shard(path).block(0) for path in data.glob("*.shard")]
    np.testing.assert_array_equal(found.keys[found.index], wanted[0].keys[wanted[0].index])
    np.testing.assert_array_equal(found.dense, wanted[0].dense)


def test_the_model_keeps_the_fitted_features(job_of, tmp_path):
    job, _ = job_of(*FITS)
    extract(job, stage="features")
    data = job.output.dir / "data"
    wanted = Shard(data / "test-0.shard").block(0)
    train(job, False, lambda *_: None)
    for path in (job.output.dir / "samples").glob("train-*"):
        path.unlink()
    settings = [f"features.spec={job.output.dir}/model", f"output.dir={tmp_path}/out"]
    extract(load_job(None, settings, {}), stage="features", overwrite=True)
    found = Shard(data / "test-0.shard").block(0)
    np.testing.assert_array_equal(found.keys[found.index], wanted.keys[wanted.index])
    np.testing.assert_array_equal(found.dense, wanted.dense)


def test_a_folder_that_keeps_no_features(tmp_path):
    with pytest.raises(ConfigError, match="it is not the folder of a model that was trained on"):
        load_spec(tmp_path)


def test_extract_without_training_rows_to_fit_to(job_of):
    job, _ = job_of(*FITS)
    for path in (job.output.dir / "samples").glob("train-*"):
        path.unlink()
    with pytest.raises(DataError, match=r"features.ini:7:9: training rows have no number in 'n'"):
        extract(job, stage="features")
    assert not (job.output.dir / "data").exists()
