"""Benchmarks run, print a table and a line of JSON, and their ratios are those of their figures.

Sizes are tiny and times are never judged: what is measured here means nothing.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    cost,
    end_to_end,
    evaluation,
    fused,
    kernels,
    limits,
    measure,
    modes,
    peers,
    rows,
    scaling,
    start,
    store,
)
from ctrps.data.shards import Shard

TWICE = ["--repeat", "2"]
FAKE = """#!{python} -S
import sys
words = dict(zip(sys.argv, sys.argv[1:]))
code = words.get("-c", "")
if "-p" in words:
    rows, out = open(words["-d"]), words["-p"]
elif "-out" in words:
    rows, out = sys.stdin, words["-out"]
elif "predict" in code:
    rows, out = open(sys.argv[3]), sys.argv[-1]
else:
    rows, out = [], None
    print('{{"train_s": 0.25}}' if code else sys.stdin.read(0))
if out:
    open(out, "w").writelines("0 0.3\\n" for _ in rows)
"""
"""Stands for any peer: takes its options, learns nothing, and scores every row alike."""


@pytest.fixture
def shown(capsys):
    """Runs a benchmark: its figures from the line of JSON, which must be the last."""

    def run(benchmark, *arguments: str) -> dict:
        assert benchmark.main(list(arguments)) == 0
        *table, line = capsys.readouterr().out.splitlines()
        found = json.loads(line)
        assert found["benchmark"] == benchmark.__name__.rpartition(".")[2]
        assert found["machine"]["cores"] >= 1 and len(table) > 2
        return found

    return run


def near(ratio, above, below) -> bool:
    return ratio == pytest.approx(above / below)


def test_evaluation(shown):
    found = shown(evaluation, "--rows", "4k", "--groups", "20", "--samples", "3", *TWICE)
    assert {row["scores"] for row in found["figures"]} == {"distinct", "ties"}
    for row in found["figures"]:
        assert row["difference"] < evaluation.TOLERANCE
        assert row["ratio"] == pytest.approx(row["scikit_learn_ms"] / row["cpu_ms"])
    for row in found["bins"]:
        assert row["off"] <= row["bound"]


def test_limits(shown):
    sizes = "--megabytes 4 --lines 1000 --distances 8 --row-keys 1000 --row-count 100"
    found = shown(limits, *TWICE, *sizes.split())
    assert len(found["lines"]) == 8 and len(found["copies"]) == 2
    assert {line["prefetch"] for line in found["lines"]} == {0, 8}
    for kind in ("lr", "fm"):
        for first in range(0, 6, 3):
            lines = [line for line in found["ceiling"] if line["model"] == kind][first : first + 3]
            one = next(f for f in lines if f["threads"] == 1 and f["prefetch"])
            for f in lines:
                assert near(f["of_one_thread"], f["rows_per_cpu_s"], one["rows_per_cpu_s"])


def test_modes(shown):
    sizes = "--rows 5k --test-rows 2k --workers 2 --seeds 1 --models lr --in-flight 128"
    found = shown(modes, *sizes.split(), "--only", "semi")
    one, semi = found["cases"]
    assert (one["case"], one["batch_rows"], one["staleness"]) == ("one worker", 128, 0)
    assert (semi["case"], semi["batch_rows"]) == ("semi", 64)
    assert semi["below_one"] == one["auc"] - semi["auc"]
    assert found["missed"] == []


@pytest.mark.parametrize("below, verdict", [(0.0019, []), (0.0021, ["fm"])])
def test_modes_that_miss_their_goal(below, verdict):
    cases = [{"model": "fm", "case": "sync", "below_one": 1.0}]
    assert modes.missed([*cases, {"model": "fm", "case": "async", "below_one": below}]) == verdict


@pytest.mark.parametrize("ahead", [0, 3])
def test_the_loops_of_the_limits_touch_what_they_should(ahead):
    rng = np.random.default_rng(1)
    region = rng.integers(0, 99, 8 * 50)
    at = rng.integers(0, 50, 200, np.uint32)
    assert limits.read_lines(region, at, ahead) == region[8 * at.astype(int)].sum()
    changed = region.copy()
    limits.change_lines(changed, at, ahead)
    np.add.at(region, 8 * at.astype(int), 1)
    assert (changed == region).all()


@pytest.mark.parametrize(("kind", "width", "groups"), [("lr", 4, [4]), ("fm", 18, [1, 8, 1, 8])])
@pytest.mark.parametrize("ahead", [0, 2])
def test_the_rows_of_the_ceiling_are_changed_by_their_sum(kind, width, groups, ahead):
    rng = np.random.default_rng(2)
    table = rng.normal(0, 1, (30, width)).astype(np.float32)
    ids = np.stack([rng.permutation(30)[:5] for _ in range(7)]).astype(np.uint32)
    slow = table.astype(float)
    for row in ids:
        total = slow[row].sum(axis=0)
        slow[row] -= total * 1e-3 / (1 + np.exp(-total[: groups[0]].sum()))
    flat = table.reshape(-1)
    limits.ROW_LOOPS[kind](flat, ids, 0, len(ids), ahead)
    np.testing.assert_allclose(table, slow, rtol=1e-4, atol=1e-5)


def test_kernels(shown):
    sizes = "--batch-rows 32 --table-rows 300,600 --table-batch 200 --lines 1000 --distances 8"
    found = shown(kernels, *TWICE, *sizes.split(), "--grouped")
    assert 0 < found["unique_share"] <= 1
    assert [f["what"] for f in found["worker"]] == ["dedup", "minibatch", "gradient", "gradient"]
    for f in found["worker"]:
        assert f["goal"] is None or near(f["of_goal"], f["rows_per_cpu_s"], f["goal"])
    assert [f["rows"] for f in found["tables"]] == [300] * 4 + [600] * 4
    for f in found["tables"]:
        assert near(f["of_limit"], f["keys_per_cpu_s"], f["limit_per_cpu_s"])
        assert f["lines"] == (1 if f["model"] == "lr" else 2)
    read = [f["lines_per_cpu_s"] for f in found["lines"][:2]]
    assert found["tables"][0]["limit_per_cpu_s"] == max(read)


@pytest.mark.cluster
def test_store(shown):
    found = shown(store, *TWICE, "--keys", "100", "--pool", "1k", "--floats", "4")["store"]
    assert near(found["of_reference"], found["keys_per_s"], found["reference_keys_per_s"])
    assert found["bytes_per_key"] == 2 * 8 + 2 * 16 + 4
    moved = found["keys_per_s"] * found["bytes_per_key"]
    assert near(found["of_loopback"], moved, found["loopback_bytes_per_s"])


@pytest.mark.slow
@pytest.mark.cluster
def test_end_to_end(shown):
    ways = "train;fused;1x1 async;train, text"
    found = shown(end_to_end, "--rows", "600", "--repeat", "1", "--models", "fm8", "--ways", ways)[
        "ways"
    ]
    assert [f["way"] for f in found] == ways.split(";")
    rate = {f["way"]: f["rows_per_s"] for f in found}
    for f in found:
        assert near(f["of_base"], f["rows_per_s"], rate[f["base"]])
        assert 0 < f["auc"] < 1 and f["peak_mb"] > 1 and f["keys"] == found[0]["keys"]
    assert found[0]["digests"] == found[3]["digests"]
    assert found[2]["server_cpu_us"] is not None and found[0]["server_cpu_us"] is None


@pytest.mark.slow
@pytest.mark.cluster
def test_the_curve_over_batch_sizes(shown):
    found = shown(end_to_end, "--rows", "600", "--repeat", "1", "--curve", "16")["curve"]
    assert [f["batch_rows"] for f in found] == ["fused", "16"]
    for f in found:
        assert near(f["of_fused"], f["rows_per_s"], found[0]["rows_per_s"])


@pytest.mark.slow
def test_peers(shown, tmp_path):
    for name in ("python", "fm_train", "fm_predict"):
        (tmp_path / name).write_text(FAKE.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    fake = str(tmp_path / "python")
    given = ["--vw", fake, "--xlearn", fake, "--alphafm", str(tmp_path)]
    found = shown(peers, "--rows", "400", "--repeat", "1", "--models", "lr", *given)
    tools = {(f["tool"], f["source"]): f for f in found["tools"]}
    assert len(tools) == 9 and all(f["figures"] == "measured" for f in tools.values())
    assert tools["alphafm", "text"]["auc"] == 0.5
    assert near(tools["xlearn", "cache"]["loop_rows_per_s"], found["rows"], 0.25)
    assert len(found["ratios"]) == 7
    for f in found["ratios"]:
        ours, peer = tools["ctrps, 2 threads", f["ours"]], tools[f["peer"], f["from"]]
        assert near(f["whole"], ours["whole_rows_per_s"], peer["whole_rows_per_s"])
        assert near(f["by_cpu"], ours["rows_per_cpu_s"], peer["rows_per_cpu_s"])
        assert near(f["memory"], ours["peak_mb"], peer["peak_mb"])
        assert f["auc_more"] == pytest.approx(ours["auc"] - peer["auc"])


def test_a_peer_that_is_not_there_is_quoted():
    measured = [{"tool": "vw ftrl", "model": "lr", "source": "text"}]
    found = peers.quoted(["lr"], measured)
    assert {f["figures"] for f in found} == {"quoted, not measured"}
    assert ("vw ftrl", "text") not in {(f["tool"], f["source"]) for f in found}
    assert ("alphafm", "text") in {(f["tool"], f["source"]) for f in found}
    assert {f["model"] for f in found} == {"lr"}


def test_rows_for_vw_have_its_labels_and_no_values_of_one(tmp_path):
    (tmp_path / "a.svm").write_text("0 3:1 11:1\n1 7:1.5 9:1\n")
    text = peers.vw_text(tmp_path / "a.svm", tmp_path).read_text()
    assert [line.split() for line in text.splitlines()] == [
        ["-1", "|", "3", "11"],
        ["1", "|", "7:1.5", "9"],
    ]


def test_a_table_that_grows(shown):
    sizes = "--growth 500,900 --batch 64 --parts growth"
    found = shown(scaling, *TWICE, *sizes.split())["growth"]
    assert [(f["model"], f["rows"]) for f in found] == [
        (kind, size) for kind in ("lr", "fm") for size in (500, 900)
    ]
    for f in found:
        assert f["stall_ms"] == pytest.approx(f["longest_step_ms"] - f["usual_step_ms"])
        assert f["bytes_per_row"] >= 20 and 0 < f["longest_at"] <= f["rows"]


@pytest.mark.slow
@pytest.mark.cluster
def test_scaling(shown):
    sizes = "--rows 300 --repeat 1 --modes sync --parts shapes,costs"
    found = shown(scaling, *sizes.split())
    assert len(found["shapes"]) == 4 and len(found["costs"]) == 8
    for f in found["shapes"]:
        assert near(f["of_1x1"], f["rows_per_s"], found["shapes"][0]["rows_per_s"])
    for f in found["costs"]:
        base = next(b for b in found["costs"] if b["way"] == f["way"])
        assert near(f["of_base"], f["us_per_row"], base["us_per_row"])
        assert near(f["us_per_row"], 1e6, f["rows_per_s"])


@pytest.mark.slow
@pytest.mark.cluster
def test_cost(shown):
    sizes = "--rows 300 --passes 1 --repeat 1 --modes sync --only replicas;key"
    found = shown(cost, *sizes.split())
    ways = ["train", *["1x1 sync"] * 3, *["2x2 sync"] * 3]
    assert [f["way"] for f in found["cost"]] == ways and found["sync_models"] == 1
    for f in found["cost"]:
        base = next(b for b in found["cost"] if (b["way"], b["extra"]) == (f["way"], f["base"]))
        assert near(f["of_base"], f["rows_per_s"], base["rows_per_s"])
        assert near(f["cpu_of_base"], f["cpu_us_per_row"], base["cpu_us_per_row"])
        assert near(f["of_train"], f["rows_per_s"], found["cost"][0]["rows_per_s"])


def test_training_against_its_ceiling(shown):
    found = shown(fused, *TWICE, "--rows", "300", "--row-count", "100")["fused"]
    assert [(f["model"], f["threads"]) for f in found] == [
        (kind, threads) for kind in ("lr", "fm") for threads in (1, 2)
    ]
    for f in found:
        one = next(o for o in found if o["model"] == f["model"])
        assert near(f["of_ceiling"], f["rows_per_cpu_s"], f["ceiling_per_cpu_s"])
        assert near(f["of_first"], f["rows_per_cpu_s"], one["rows_per_cpu_s"])
        assert near(f["ceiling_of_first"], f["ceiling_per_cpu_s"], one["ceiling_per_cpu_s"])


@pytest.mark.slow
def test_start(shown):
    found = shown(start, *TWICE, "--cold", "0", "--commands", "help,train")["starts"]
    assert [(f["command"], f["kernels"], f["runs"]) for f in found] == [
        ("help", "warm", 2),
        ("train", "warm", 2),
    ]


def test_made_rows_follow_from_their_seed(tmp_path):
    made = rows.Made(seed=3, bits=12)
    first = made.part(0, 50)
    assert (first.keys == made.part(0, 50).keys).all()
    assert (first.keys != made.part(rows.AT_ONCE, 50).keys).any()
    assert first.keys.min() >= 1 and first.keys.max() <= 1 << 12
    assert (first.counts == rows.COLUMNS).all() and set(first.labels) == {0.0, 1.0}
    shard = Shard(made.write(tmp_path / "a.shard", rows.AT_ONCE + 5, block_rows=1000))
    assert shard.rows == rows.AT_ONCE + 5
    block = shard.block(0)
    assert (block.keys[block.index][: 50 * rows.COLUMNS] == first.keys).all()


def test_what_a_command_took():
    child = (
        "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'sum(range(10**6))'])"
    )
    ran = measure.run([sys.executable, "-S", "-c", f"print(7); {child}"])
    assert ran.output == "7\n" and ran.cpu_s > 0 and ran.peak_bytes > 1_000_000
    assert ran.wall_s > 0 and ran.cpu_of("worker") == 0
    with pytest.raises(RuntimeError, match="ended with 3"):
        measure.run([sys.executable, "-S", "-c", "raise SystemExit(3)"])


def test_rates_are_medians():
    timings = [measure.Timing(2.0, 1.0), measure.Timing(4.0, 2.0), measure.Timing(8.0, 4.0)]
    assert measure.rates("rows", 8, timings) == {
        "rows_per_cpu_s": 4.0,
        "rows_per_s": 2.0,
        "spread": 1.5,
    }


def test_a_table_shows_what_is_missing_as_a_dash(capsys):
    measure.show("title", [{"a": "x", "b": None}, {"a": "yy", "b": 1234.5}], a="", b=",.0f", c="d")
    title, head, *lines = capsys.readouterr().out.splitlines()[1:]
    assert (title, head) == ("title", "a       b  c")
    assert lines == ["x       -  -", "yy  1,234  -"]


def test_sizes_are_written_with_units():
    assert measure.numbers("1k,2.5M,7") == [1000, 2_500_000, 7]


@pytest.mark.parametrize("path", sorted(Path(measure.__file__).parent.glob("*.py")))
def test_every_benchmark_is_explained(path):
    page = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    shared = {"measure", "rows", "watch"}
    assert path.stem in shared or f"`{path.stem}`" in page
