"""Settings: sources and their order, types and ranges, and errors that point at the place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ctrps.config import (
    SETTINGS,
    VARIABLES,
    JobConfig,
    OptimizerBlock,
    default_block,
    digest,
    load_job,
    nearest,
    parse_address,
)
from ctrps.errors import ConfigError, LocalProtocolError


@pytest.fixture
def write(tmp_path):
    """Write a job file and return its path."""

    def write(text, name="job.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refused(path, overrides=(), environ=None):
    with pytest.raises(ConfigError) as caught:
        load_job(path, list(overrides), environ or {})
    assert caught.value.exit_status == 2
    return str(caught.value)


# Sources and their order


def test_without_any_source_all_is_default():
    job = load_job(None, [], {})
    assert job.train.lanes == 4
    assert set(job.origins) == set(SETTINGS)
    assert set(job.origins.values()) == {"default"}


def test_later_sources_win_and_origins_say_which(write):
    path = write("train:\n  lanes: 2\n  passes: 3\n  seed: 5\n")
    environ = {"CTRPS_TRAIN__PASSES": "4", "CTRPS_TRAIN__SEED": "6"}
    job = load_job(path, ["train.seed=7"], environ)
    assert (job.train.lanes, job.train.passes, job.train.seed) == (2, 4, 7)
    origins = [job.origins[f"train.{key}"] for key in ("lanes", "passes", "seed", "threads")]
    assert origins == [f"{path}:2", "CTRPS_TRAIN__PASSES", "--set", "default"]


def test_every_setting_has_a_variable():
    assert VARIABLES["CTRPS_OPTIMIZER__V__COUNT_SCALE"] == "optimizer.v.count_scale"
    assert VARIABLES["CTRPS_NAME"] == "name"
    assert set(SETTINGS) <= set(VARIABLES.values())


def test_reserved_variables_and_those_of_others_are_left_alone():
    environ = {"CTRPS_SCHEDULER": "h:1", "CTRPS_JOB_KEY": "x", "CTRPS_DEBUG": "1", "PATH": "/"}
    assert load_job(None, [], environ) == load_job(None, [], {})


def test_unknown_variable_is_refused_without_showing_its_value():
    text = refused(None, environ={"CTRPS_TRAIN__LANE": "secret"})
    assert "CTRPS_TRAIN__LANE is not a setting; did you mean CTRPS_TRAIN__LANES?" in text
    assert "secret" not in text


def test_one_key_set_twice_on_the_command_line():
    text = refused(None, ["train.lanes=2", "train.lanes=3"])
    assert text.startswith("--set: train.lanes is set twice, to 2 and to 3")
    assert load_job(None, ["train.lanes=2", "train.lanes=2"], {}).train.lanes == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lane=2", "train.lane is not a setting; did you mean train.lanes?"),
        ("lanes=2", "lanes is not a setting; did you mean train.lanes?"),
        ("trian.lanes=2", "did you mean train.lanes?"),
        ("optimiser.alpha=2", "did you mean optimizer.alpha?"),
        ("train.learning_rat=1", "train.learning_rat is not a setting; did you mean optimizer"),
        ("model.xyzzy=1", "model.xyzzy is not a setting; model has kind, dim, init_scale"),
        ("xyzzy=1", "xyzzy is not a setting; docs/config.md lists all"),
        ("train=1", "train is a section; set its keys, such as train.passes"),
        ("train.lanes", "train.lanes has no value; write --set section.key=value"),
        ("train.lanes=", "train.lanes: expected a whole number, found nothing"),
    ],
)
def test_overrides_that_are_refused(override, message):
    assert message in refused(None, [override]).splitlines()[0]


def test_a_value_may_hold_an_equals_sign(tmp_path):
    job = load_job(None, [f"data.train={tmp_path}/day=1/x.csv"], {})
    assert job.data.train == (tmp_path / "day=1" / "x.csv",)


# YAML


def test_yaml_and_ini_say_the_same(write):
    in_yaml = write(
        "name: both\nmodel: {kind: fm, dim: 4}\n"
        "optimizer: {w: {alpha: 1e-3}, v: {kind: sgd}}\n"
        "train: {lanes: 8, partitions: 16}\n"
        "data: {train: [a.csv, 'b, c.csv'], missing: ['', NULL]}\n"
        "features: {shuffle: no}\noutput: {dir: out}\n"
    )
    in_ini = write(
        "; a job\n[job]\nname = both\n[model]\nkind = fm ; comment\ndim: 4\n"
        "[optimizer.w]\nalpha = 1e-3\n[optimizer.v]\nkind=sgd\n"
        '[train]\nlanes = 8 # c\n\n  partitions = 16\n[data]\ntrain = a.csv, "b, c.csv"\n'
        'missing = "", NULL\n[features]\nshuffle = no\n[output]\ndir = "out"\n',
        "job.ini",
    )
    job = load_job(in_yaml, [], {})
    assert job == load_job(in_ini, [], {})
    assert job.optimizer.w.alpha == 1e-3
    assert job.data.missing == ("", "NULL")
    assert [path.name for path in job.data.train] == ["a.csv", "b, c.csv"]


def test_all_errors_at_once_like_a_compiler(write):
    path = write("train:\n  learning_rat: 1\n  lanes: four\n  seed: -1\nmodel: {kind: gm}\n")
    expected = f"""\
{path}:2:3: train.learning_rat is not a setting; did you mean optimizer.alpha?
      learning_rat: 1
      ^
{path}:3:10: train.lanes: expected a whole number, found 'four'
      lanes: four
             ^
{path}:4:9: train.seed: must be at least 0, found '-1'
      seed: -1
            ^
{path}:5:15: model.kind: expected lr or fm, found 'gm'
    model: {{kind: gm}}
                  ^"""
    assert refused(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {lanes: 2.5}", "1:16: train.lanes: expected a whole number, found '2.5'"),
        ("train: {lanes: [2]}", "1:16: train.lanes: expected a whole number, found a list"),
        ("train: {lanes: {a: 2}}", "1:16: train.lanes: expected a whole number, found a section"),
        ("train: {lanes: }", "train.lanes: expected a whole number, found nothing"),
        ("optimizer: {l2: big}", "1:17: optimizer.l2: expected a number, found 'big'"),
        ("optimizer: {l2: .nan}", "expected a number"),
        ("optimizer: {l2: nan}", "expected a finite number, found 'nan'"),
        ("features: {shuffle: 3}", "features.shuffle: expected true or false, found '3'"),
        ("data: {label: [a]}", "data.label: expected text, found a list"),
        ("data: {train: {a: b}}", "data.train: expected a list, found a section"),
        ("data: {train: [[a]]}", "1:16: an element of a list must be a plain value"),
        ("output: {dir: [a]}", "output.dir: expected a path, found a list"),
        ('sample: {dir: ""}', "sample.dir: must be a path, found ''"),
        ("model: fm", "1:1: model is a section; set its keys, such as model.kind"),
        ("tran: {lanes: 1}", "1:1: tran is not a section; did you mean train?"),
        ("train: {partitions: 48}", "train.partitions: must be a power of two, found 48"),
        ("train: {partitions: 512}", "train.partitions: must be at most 256, found '512'"),
        ("optimizer: {alpha: 0}", "optimizer.alpha: must be above 0 as a 32-bit number, found 0"),
        ("optimizer: {alpha: 1e-45}", "optimizer.alpha: must be above 0 as a 32-bit number"),
        ("optimizer: {alpha: -1}", "optimizer.alpha: must be above 0"),
        ("optimizer: {v: {l1: 1}}", "1:21: optimizer.v.l1: adagrad has no l1"),
        ("optimizer: {v: {beta: 0}}", "optimizer.v.beta: must be above 0 for adagrad"),
        ("cluster: {beat_s: 2}", "1:19: cluster.worker_silent_s: must be at least twice"),
        ("cluster: {worker_silent_s: 1}", "must be at least twice cluster.beat_s (1), found 1"),
        ("name: a/b", "name: must be usable as the name of a folder"),
        ("model: {kind: deepfm}", "deepfm is not available in this version; use lr or fm"),
        ("optimizer: {v: {kind: adam}}", "optimizer.v.kind: adam is not available in this version"),
        (
            "train: {consistency: fast}",
            "train.consistency: expected sync or ssp or async or semi, found 'fast'",
        ),
        ("- a\n- b", "1:1: expected sections such as `train:`"),
        ("1 3:1 4:1", "1:1: expected sections"),
        ("train: {lanes: 1", "not YAML: "),
        ("a: b: c", "1:5: not YAML: mapping values are not allowed here"),
        ("train: *x", "not YAML: found undefined alias"),
        ("name: a\0b", "1:8: not YAML: special characters are not allowed"),
        ("a: 1\n---\nb: 2", "not YAML: but found another document"),
        ("train: !!python/object:os.system {}", "the tag tag:yaml.org,2002:python/object:os"),
        ("train: {lanes: !x 1}", "1:16: the tag !x is not read"),
        ("? [a]\n: b", "a key must be a plain word"),
        ("a: " + "[" * 5000, "is nested too deeply"),
    ],
)
def test_yaml_that_is_refused(write, text, message):
    path = write(text)
    first = refused(path).splitlines()[0]
    assert message in first
    assert first.startswith(f"{path}:")


def test_duplicate_keys_name_both_lines(write):
    path = write("train:\n  lanes: 1\n  seed: 2\n  lanes: 1\n")
    assert refused(path).startswith(f"{path}:4:3: train.lanes is given twice, in lines 2 and 4")
    path = write("train: {lanes: 1}\nmodel: {dim: 2}\ntrain: {seed: 1}\n")
    assert refused(path).startswith(f"{path}:3:1: train is given twice, in lines 1 and 3")


def test_aliases_work_and_cannot_blow_up(write):
    job = load_job(write("optimizer: {w: &b {kind: sgd, alpha: 0.3}, v: *b}"), [], {})
    assert job.optimizer.w.alpha == job.optimizer.v.alpha == 0.3
    laughs = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))
    text = refused(write("a0: &a0 [x]\n" + laughs + "\ndata: {train: *a29}\n"))
    assert "an element of a list must be a plain value" in text
    assert "an element of a list must be a plain value" in refused(write("data: {train: &t [*t]}"))


def test_empty_files_sections_and_null_mean_nothing_stated(write):
    for text in ("", "# nothing\n", "train:\n", "sample: {dir: null, join: ~}\ndata: {id: }\n"):
        job = load_job(write(text), ["name=job"], {})
        assert job == load_job(None, [], {})


def test_byte_order_mark_and_carriage_returns(write):
    path = write(b"\xef\xbb\xbftrain:\r\n  lanes: 3\r\n  lane: 3\r\n")
    assert refused(path).splitlines()[:2] == [
        f"{path}:3:3: train.lane is not a setting; did you mean train.lanes?",
        "      lane: 3",
    ]


def test_caret_counts_wide_letters_and_cuts_long_lines(write):
    path = write("data: {label: 标签, labl: x}\n")
    _, line, caret = refused(path).splitlines()
    assert line == "    data: {label: 标签, labl: x}"
    assert caret == " " * (4 + len("data: {label: 标签, ") + 2) + "^"
    path = write(f"data: {{ignore: [{'x, ' * 500}x], labl: x}}\n")
    _, line, caret = refused(path).splitlines()
    assert len(line) <= 104
    assert line[len(caret) - 1 :].startswith("labl")


# ini


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nlane = 1", "2:1: train.lane is not a setting; did you mean train.lanes?"),
        ("[train]\n lanes = 1\nlanes=1", "3:1: train.lanes is given twice, in lines 2 and 3"),
        ("[train]\nlanes = four", "2:9: train.lanes: expected a whole number, found 'four'"),
        ("[train]\nlanes", "2:1: this line is neither [section] nor key = value"),
        ("lanes = 1", "1:1: lanes stands before the first [section]"),
        ("[tran]\nlanes = 1", "1:2: tran is not a section; did you mean train?"),
        ("[job]\nlanes = 1", "2:1: lanes is not a setting; did you mean train.lanes?"),
        ("[optimizer.x]\nalpha = 1", "1:2: optimizer.x is not a section; did you mean optimizer"),
        ("[train]\nlanes = ; none", "2:9: train.lanes: expected a whole number, found nothing"),
    ],
)
def test_ini_that_is_refused(write, text, message):
    path = write(text, "job.ini")
    assert refused(path).startswith(f"{path}:{message}")


def test_unknown_ini_section_is_reported_once(write):
    assert len(refused(write("[tran]\na = 1\nb = 2\n", "job.ini")).splitlines()) == 3


def test_ini_comments_and_quotes(write):
    text = '[data]\nlabel = a#b;c # comment\nignore = "x # y", z ; comment\nid = "p ; q"\n'
    job = load_job(write(text, "job.ini"), [], {})
    assert (job.data.label, job.data.ignore, job.data.id) == ("a#b;c", ("x # y", "z"), "p ; q")


def test_files_that_are_no_job_files(tmp_path, write):
    assert refused(tmp_path / "none.yaml").startswith(f"{tmp_path}/none.yaml: cannot read: No such")
    assert "cannot read: Is a directory" in refused(tmp_path)
    assert "is larger than 1 MiB" in refused(write(b"#" * (1 << 20) + b"\n"))


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("node-7.local:65535", ("node-7.local", 65535)),
        ("[::1]:9000", ("::1", 9000)),
        ("*:1", ("*", 1)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    "abc|h:abc|h:99999|h:65536|h:-1|h:|:9|9||h:1:2|a b:1|h:١|tcp://h:1|h: 1|h:1 |[]:1".split("|"),
)
def test_case_24d_what_is_not_an_address(text, write):
    with pytest.raises(ConfigError, match="write HOST:PORT, port 0 to 65535"):
        parse_address(text)
    path = write(f"cluster:\n  scheduler: '{text}'\n")
    first = refused(path).splitlines()[0]
    assert first.startswith(f"{path}:2:14: cluster.scheduler: {text!r} is not an address")


def test_an_address_needs_no_quotes(write):
    path = write("cluster: {scheduler: 127.0.0.1:9000, server_bind: node:59}")
    job = load_job(path, [], {})
    assert (job.cluster.scheduler, job.cluster.server_bind) == ("127.0.0.1:9000", "node:59")


# Optimizers


def blocks(*overrides):
    job = load_job(None, ["model.kind=fm", *overrides], {})
    return job.optimizer_for("w"), job.optimizer_for("v")


def test_optimizer_defaults():
    w, v = blocks()
    assert w == OptimizerBlock(kind="ftrl", alpha=0.1, beta=1, l1=0, l2=0, count_scale=0)
    assert v == OptimizerBlock(kind="adagrad", alpha=0.05, beta=1, l1=0, l2=0, count_scale=16)
    assert JobConfig().optimizer_for("v") == v == default_block("v")


def test_a_block_of_ftrl_is_for_w_only():
    w, v = blocks("optimizer.kind=ftrl", "optimizer.alpha=0.2", "optimizer.l1=1")
    assert (w.alpha, w.l1) == (0.2, 1)
    assert v == default_block("v")


def test_a_block_of_another_kind_is_for_both():
    w, v = blocks("optimizer.kind=adagrad", "optimizer.alpha=0.2")
    assert (w.kind, w.alpha, w.count_scale) == ("adagrad", 0.2, 0)
    assert (v.kind, v.alpha, v.count_scale) == ("adagrad", 0.2, 16)


def test_a_part_goes_before_the_block():
    w, v = blocks("optimizer.kind=adagrad", "optimizer.alpha=0.2", "optimizer.v.alpha=0.3")
    assert (w.alpha, v.alpha) == (0.2, 0.3)
    w, v = blocks("optimizer.kind=adagrad", "optimizer.alpha=0.2", "optimizer.v.kind=ftrl")
    assert v == default_block("v", "ftrl")
    assert v.alpha == 0.1


def test_a_later_source_goes_before_a_part(write):
    path = write("optimizer: {w: {alpha: 0.3}, v: {kind: ftrl, l1: 2}}")
    job = load_job(path, ["optimizer.alpha=0.4"], {})
    assert (job.optimizer.w.alpha, job.optimizer.v.alpha) == (0.4, 0.1)
    assert job.origins["optimizer.w.alpha"] == "--set"
    assert job.origins["optimizer.v.l1"] == f"{path}:1"


def test_the_intercept_learns_like_w_without_penalties():
    job = load_job(None, ["optimizer.alpha=0.2", "optimizer.l1=1", "optimizer.l2=3"], {})
    assert job.optimizer_for("intercept") == OptimizerBlock(alpha=0.2)
    with pytest.raises(LocalProtocolError, match="no part 'u'"):
        job.optimizer_for("u")


# What is stored with a model


def test_model_settings_hold_what_fixes_the_numbers():
    job = load_job(None, ["model.kind=fm", "optimizer.alpha=0.3", "train.batch_rows=7"], {})
    assert job.model_settings() == {
        "kind": "fm",
        "dim": 8,
        "init_scale": 0.01,
        "partitions": 64,
        "seed": 1,
        "optimizers": {"w": "ftrl", "v": "adagrad"},
        "key_hash": 1,
    }
    assert load_job(None, ["model.dim=3"], {}).model_settings()["dim"] == 0


def test_plan_settings_and_digests():
    job = load_job(None, [], {})
    plan = job.plan_settings()
    assert plan == {
        "batch_rows": 256,
        "lanes": 4,
        "chunk_batches": 16,
        "shuffle": "chunks",
        "seed": 1,
        "consistency": "sync",
        "fused": False,
    }
    more = load_job(None, ["cluster.workers=4", "train.threads=2", "output.dir=x"], {})
    assert digest(more.plan_settings()) == digest(plan)
    assert digest(load_job(None, ["train.lanes=5"], {}).plan_settings()) != digest(plan)
    assert digest({"a": 1, "b": [2.5]}) == "1d97f1c6350e2d95"


def test_case_28_misspelt_and_doubled_settings(shared):
    text = refused(shared / "cases" / "28-resume-with-other-settings" / "d.yaml")
    assert "d.yaml:5:1: learnin_rate is not a setting; did you mean optimizer.alpha?" in text
    assert "d.yaml:8:1: batch_size is given twice, in lines 7 and 8" in text


# Dump


@pytest.mark.parametrize("origins", [False, True])
def test_the_dump_loads_to_an_equal_config(write, origins):
    overrides = [
        "name=数据 # 1",
        "model.kind=fm",
        "optimizer.alpha=1e-7",
        "optimizer.v.kind=sgd",
        "data.ignore=[a, ' b', '', 'x: y']",
        "data.label=a\nb",
        "data.id=null",
        "data.missing=NULL, ~",
        "sample.dir=a b # c",
        "train.seed=18446744073709551615",
        "output.dir=x\u2028y",
    ]
    job = load_job(None, overrides, {"CTRPS_TRAIN__SHUFFLE": "rows"})
    text = job.dump_yaml(origins=origins)
    again = load_job(write(text), [], {})
    assert again == job
    assert hash(again) == hash(job)
    assert again.origins["train.shuffle"].endswith(f"job.yaml:{_line(text, '  shuffle: rows')}")
    assert yaml.safe_load(text)["train"]["lanes"] == 4
    assert ("  shuffle: rows  # CTRPS_TRAIN__SHUFFLE\n" in text) == origins


def _line(text, start):
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith(start)]
    return lines[0]


def test_configs_are_frozen_and_differ_by_value():
    job = load_job(None, [], {})
    with pytest.raises(ValueError, match="frozen"):
        job.train.lanes = 3
    assert job != load_job(None, ["train.lanes=3"], {})
    assert job != "job"


def test_nearest_finds_nothing_in_nonsense():
    assert nearest("qqq.zzz") is None


def test_nothing_heavy_is_imported():
    code = (
        "import sys, ctrps.config;"
        "sys.exit(' '.join({'numpy', 'numba', 'pandas', 'zmq', 'typer'} & set(sys.modules)))"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stderr.strip() == ""
