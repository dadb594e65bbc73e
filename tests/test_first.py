"""The first minutes: `init`, its templates and proposals, `config`, what the shell completes."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ctrps import completion, templates
from ctrps.cli import app
from ctrps.config import STATED, load_job
from ctrps.configtext import converted, schema
from ctrps.data.propose import propose, propose_columns
from ctrps.errors import ConfigError, DataError
from ctrps.starter import TEMPLATES, TRAINING, job_file, start
from tests.procs import DEADLINE_S, write_rows
from tests.test_psdnn import FNN

ROOT = Path(__file__).parents[1]


def write_table(path: Path, rows: int = 300, seed: int = 1) -> Path:
    rng = random.Random(seed)
    lines = ["id,user,price,city,clicked,note"]
    for row in range(rows):
        price = rng.choice([str(rng.randrange(5, 200) / 2), "NA"])
        some = f"u{rng.randrange(40)},{price},{rng.choice('ABC')},{int(rng.random() < 0.3)}"
        lines.append(f"{row},{some},{rng.random()}x")
    text = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def ended(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        app([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


# -- templates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_the_same_job_in_both_notations(tmp_path, template):
    jobs = []
    for notation in ("yaml", "ini"):
        started = start(tmp_path, template, notation=notation)
        jobs.append(load_job(started.job, [], {}))
        for path in started.written:
            path.unlink()
    assert jobs[0] == jobs[1]
    assert jobs[0].output.dir.name == tmp_path.name


def test_templates_that_conf_holds_too_are_the_same():
    for name, other in (
        ("sample.yaml", "taobao_sample.yaml"),
        ("features.ini", "features_base.ini"),
    ):
        assert templates.read(name) == (ROOT / "conf" / other).read_text(encoding="utf-8")


def test_odd_names_survive_both_notations(tmp_path):
    odd = {"train": "a b; c.csv", "label": "was it # clicked", "ignore": ["x, y", "z'"]}
    for notation in ("yaml", "ini"):
        path = tmp_path / f"job.{notation}"
        path.write_text(job_file("csv", TRAINING | odd, notation))
        job = load_job(path, [], {})
        assert job.data.train == (tmp_path / odd["train"],)
        assert (job.data.label, list(job.data.ignore)) == (odd["label"], odd["ignore"])


def test_nothing_is_overwritten(tmp_path):
    start(tmp_path, "logs")
    (tmp_path / "job.yaml").unlink()
    with pytest.raises(ConfigError, match=r"sample\.yaml: it is there already"):
        start(tmp_path, "logs")
    assert not (tmp_path / "job.yaml").exists()


# -- a look at a table --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_the_uses_of_columns_are_proposed(tmp_path, name):
    found = propose(write_table(tmp_path / name), "csv")
    assert (found.label, found.id) == ("clicked", "id")
    assert (found.numeric, found.categories, found.ignore) == (
        ("price",),
        ("user", "city"),
        ("note",),
    )
    assert found.missing == ("NA",)


def test_a_label_is_told_by_name_or_as_the_only_one():
    two = ["0", "1"] * 20
    assert propose_columns({"y": two, "clicked": two}).label == "clicked"
    assert propose_columns({"good": two, "age": ["7", "8"] * 20}).label == "good"
    assert propose_columns({"good": two, "bad": two}).label is None
    assert propose_columns({"Click": ["-1", "1"] * 20}).label == "Click"


@pytest.mark.parametrize(
    ("values", "use"),
    [
        (["0.5", "1.5", "", "2"] * 10, "numeric"),
        ([str(n % 200) for n in range(400)], "categories"),
        (["1", "2", "3"] * 10, "categories"),
        (["a", "1.5"] * 20, "categories"),
        (["inf", "1.5"] * 20, "categories"),
        ([f"text {n}" for n in range(40)], "ignore"),
    ],
)
def test_a_column_is_a_number_a_category_or_says_nothing(values, use):
    assert getattr(propose_columns({"x": values}), use) == ("x",)


def test_a_time_is_left_out():
    times = [f"2026-01-01 10:{n % 60:02d}" for n in range(200)]
    assert propose_columns({"created_at": times, "day": times}).ignore == ("created_at",)


def test_whole_numbers_are_names_unless_their_column_is_named_like_an_amount():
    values = [str(n % 200) for n in range(400)]
    found = propose_columns({"user": values, "zip": values, "page_views": values, "Age": values})
    assert (found.categories, found.numeric) == (("user", "zip"), ("page_views", "Age"))
    assert propose_columns({"age": [str(n % 9) for n in range(400)]}).categories == ("age",)


def test_a_table_without_rows_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n")
    with pytest.raises(DataError, match="no rows to look at"):
        propose(tmp_path / "a.csv", "csv")


def test_what_init_writes_of_a_file_trains_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "rows.csv")
    write_table(tmp_path / "test.csv", seed=2)
    status, out, err = ended(capsys, "init", "shop", "--data", "rows.csv", "--test", "test.csv")
    assert status == 0 and "guess" in err
    assert "label         clicked (" in out and "left out      note" in out
    status, out, _ = ended(capsys, "check", "-c", "shop/job.yaml", "--json")
    figures = json.loads(out)
    assert (status, figures["train"]["rows"]) == (0, 300)
    status, out, _ = ended(capsys, "train", "-c", "shop/job.yaml", "--json")
    assert (status, json.loads(out)["test"]["rows"]) == (0, 300)
    assert ended(capsys, "init", "shop")[0] == 2


def test_the_template_follows_the_format_of_the_file(tmp_path):
    rows = write_rows(tmp_path / "rows.svm", 50, seed=1)
    started = start(tmp_path / "a", data=rows)
    assert (started.template, started.format, started.proposal) == ("libsvm", "libsvm", None)
    assert load_job(started.job, [], {}).data.format == "libsvm"
    with pytest.raises(ConfigError, match="it is libsvm; use --template libsvm"):
        start(tmp_path / "b", "csv", data=rows)
    with pytest.raises(ConfigError, match="raw tables"):
        start(tmp_path / "b", "logs", data=write_table(tmp_path / "a.csv"))
    assert not (tmp_path / "b").exists()


def test_init_in_json(tmp_path, capsys):
    table = write_table(tmp_path / "a.csv")
    _, out, _ = ended(capsys, "init", tmp_path / "x", "--data", table, "--json")
    assert json.loads(out)["columns"]["label"] == "clicked"


# -- config schema and convert ------------------------------------------------------------------


JOBS = [path for path in sorted((ROOT / "conf").glob("taobao_*")) if "sample" not in path.name]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_a_converted_job_is_the_same_job(path, tmp_path):
    expected = load_job(path, [], {})
    for to in ("yaml", "ini"):
        # Beside the original, so that paths mean the same; the file is not to stay there.
        there = tmp_path / "conf"
        there.mkdir(exist_ok=True)
        new = there / f"{path.stem}.{to}"
        new.write_text(converted(path, to))
        found = load_job(new, [], {})
        moved = json.loads(
            found.model_dump_json()
            .replace(str(there), str(path.parent))
            .replace(str(tmp_path / "sample"), str(ROOT / "sample"))
        )
        assert moved == json.loads(expected.model_dump_json())


def test_a_job_of_the_old_system_becomes_one_of_ours(tmp_path):
    (tmp_path / "fnn.ini").write_text(FNN)
    with pytest.warns(match="job file of ps-dnn"):
        text = converted(tmp_path / "fnn.ini", "yaml")
        expected = load_job(tmp_path / "fnn.ini", [], {})
    assert "net:" not in text and "emb_dim" not in text
    (tmp_path / "fnn.yaml").write_text(text)
    assert load_job(tmp_path / "fnn.yaml", [], {}) == expected


def test_values_that_need_quotes_survive(tmp_path):
    (tmp_path / "a.yaml").write_text(
        'name: "07"\ndata:\n  id: null\n  label: "a # b"\n  missing: ["", "null", "x, y"]\n'
        "optimizer:\n  alpha: 1e-3\n"
    )
    expected = load_job(tmp_path / "a.yaml", [], {})
    for to in ("yaml", "ini"):
        (tmp_path / f"b.{to}").write_text(converted(tmp_path / "a.yaml", to))
        assert load_job(tmp_path / f"b.{to}", [], {}) == expected


def test_ini_says_what_it_cannot_say(tmp_path):
    (tmp_path / "a.yaml").write_text("data:\n  label: 'a \" # b'\n")
    with pytest.raises(ConfigError, match="ini cannot say"):
        converted(tmp_path / "a.yaml", "ini")


def test_the_schema_has_every_setting_with_its_words():
    found = schema()
    for key, setting in STATED.items():
        at = found
        for name in key.split("."):
            at = at["properties"][name]
            if "$ref" in at:
                at = found["$defs"][at["$ref"].rpartition("/")[2]]
        assert at["description"].startswith(setting.description)
    assert found["$defs"]["DataSection"]["additionalProperties"] is False
    assert {"type": "string"} in found["$defs"]["DataSection"]["properties"]["train"]["anyOf"]


def test_the_schema_is_printed(capsys):
    _, out, _ = ended(capsys, "config", "schema", "--compact")
    assert json.loads(out) == json.loads(json.dumps(schema()))


# -- completion ---------------------------------------------------------------------------------


def test_keys_and_values_are_completed():
    assert completion.setting("model.") == ["model.kind=", "model.dim=", "model.init_scale="]
    assert "train.consistency=sync" in completion.setting("train.consistency=")
    assert completion.setting("nosuch=") == []
    assert "E-DATA-ROW" in completion.error_id("e-data")


def completed(words: str, *, python: str = "") -> str:
    environ = os.environ | {
        "_CTRPS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = f"import sys; sys.argv = ['ctrps']; from ctrps.cli import main\n{python}"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert run.stderr == "" and run.returncode == 0
    return run.stdout


def test_the_shell_gets_them_without_heavy_imports():
    heavy = "('numpy', 'numba', 'pandas', 'zmq')"
    python = (
        "try:\n    main()\nfinally:\n"
        f"    assert not [name for name in {heavy} if name in sys.modules]"
    )
    assert completed("ctrps train --set train.la", python=python) == "train.lanes=\n"
    assert completed("ctrps explain E-DISK", python=python) == "E-DISK\n"


def test_a_run_is_named_by_its_folder(tmp_path):
    (tmp_path / "my shop").mkdir()
    started = start(tmp_path / "my shop", "csv")
    assert load_job(started.job, [], {}).output.dir.name == "my-shop"
