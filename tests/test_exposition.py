"""Metrics for Prometheus: valid, named by its conventions, documented, and those asked for there.

``python -m tests.test_exposition`` writes their table in docs/metrics.md anew.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from ctrps.runtime import exposition
from ctrps.runtime.watch import Watch
from tests.watched import seen, shown, watched

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "metrics.md"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
ALERTS = ROOT / "deploy" / "grafana" / "alerts.yaml"
BEGIN, END = "<!-- metrics -->\n\n", "\n<!-- end of metrics -->"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
UNITS = ("seconds", "bytes", "ratio", "rows", "keys", "updates", "info")


def families(watch: Watch) -> dict[str, Metric]:
    text = exposition.text(watch.state(2.0)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.fixture
def cluster(tmp_path) -> Watch:
    return a_cluster(tmp_path / "run")


def a_cluster(folder: Path) -> Watch:
    watch = watched(folder)
    (folder / "model").mkdir()
    (folder / "model" / "manifest.json").write_text('{"checkpoint": 3, "pass_": 0, "step": 7}')
    watch.see(shown(2.0, test={"auc": 0.75, "logloss": 0.4}))
    return watch


def value(found: dict[str, Metric], sample: str, **labels: str) -> float:
    (name,) = [n for n in found if sample in {s.name for s in found[n].samples}]
    (number,) = [s.value for s in found[name].samples if (s.name, s.labels) == (sample, labels)]
    return number


def test_the_figures_are_those_of_the_state(cluster):
    found = families(cluster)
    assert value(found, "ctrps_rows_total") == 15000
    assert value(found, "ctrps_healthy") == 1
    assert value(found, "ctrps_phase", phase="training") == 1
    assert sum(s.value for s in found["ctrps_phase"].samples) == 1
    assert value(found, "ctrps_auc", split="test") == 0.75
    assert value(found, "ctrps_logloss", split="train") == 0.51
    assert value(found, "ctrps_pass_progress_ratio") == 0.5
    assert value(found, "ctrps_rejected_rows_total") == 3
    assert value(found, "ctrps_nodes", role="worker", state="up") == 2
    assert value(found, "ctrps_nodes_wanted", role="worker") == 2
    assert value(found, "ctrps_node_retries_total", role="worker", rank="1") == 2
    worker = {"role": "worker", "rank": "0"}
    assert value(found, "ctrps_node_network_bytes_total", **worker, direction="received") == 300
    assert value(found, "ctrps_worker_busy_seconds_total", **worker, part="compute") == 3
    assert value(found, "ctrps_checkpoint_age_seconds") >= 0


def test_histograms_add_up(cluster):
    found = families(cluster)
    server = {"role": "server", "rank": "0"}
    bucket = "ctrps_server_push_seconds_bucket"
    assert value(found, bucket, **server, le="0.001") == 0
    assert value(found, bucket, **server, le="0.0025") == 39
    assert value(found, bucket, **server, le="+Inf") == 40
    assert value(found, "ctrps_server_push_seconds_count", **server) == 40
    assert value(found, "ctrps_server_push_seconds_sum", **server) == 2.0
    assert value(found, "ctrps_staleness_updates_bucket", le="0.0") == 6
    assert value(found, "ctrps_staleness_updates_bucket", le="2.0") == 10
    assert value(found, "ctrps_staleness_updates_sum") == 5


def test_a_node_in_the_place_of_a_lost_one_is_told_once(tmp_path):
    watch = watched(tmp_path / "run")
    lost, after = seen(1, "worker", 0, 1.0, dead=True), seen(3, "worker", 0, 2.0, grown=0.5)
    watch.see(shown(2.0, nodes=[lost, after]))
    found = families(watch)
    assert value(found, "ctrps_node_rows_total", role="worker", rank="0") == 4500
    assert value(found, "ctrps_nodes", role="worker", state="lost") == 1


@pytest.mark.parametrize("kind", ["cluster", "process"])
def test_before_the_first_figures_there_is_something_to_read(tmp_path, kind):
    found = families(watched(tmp_path / "run", kind=kind))
    assert value(found, "ctrps_phase", phase="starting") == 1
    assert value(found, "ctrps_rows_total") == 0


def test_names_follow_the_conventions(cluster):
    for name, family in families(cluster).items():
        assert re.fullmatch(r"ctrps(_[a-z]+)+", name) and family.documentation.endswith(".")
        assert not re.search(r"milli|micro|kilo|mega|percent|minutes|hours", name)
        ends = (*SUFFIXES[family.type], "_created")
        assert all(s.name.removeprefix(name) in ends for s in family.samples), name
        if family.type != "gauge":
            assert name.endswith((*UNITS, "retries"))


def test_labels_are_few(cluster):
    values: dict[str, set[str]] = {}
    for family in families(cluster).values():
        for sample in family.samples:
            for label, found in sample.labels.items():
                values.setdefault(label, set()).add(found)
    assert set(values) == {
        *("role", "rank", "state", "phase", "split", "direction", "part", "le"),
        *("version", "job", "model", "consistency"),
    }
    assert all(len(found) <= 12 for label, found in values.items() if label != "le")


# -- the documentation, the dashboard and the alerts ----------------------------------------------


def table(found: dict[str, Metric]) -> str:
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for name, family in sorted(found.items()):
        labels = {label: None for s in family.samples for label in s.labels if label != "le"}
        shown_as = f"{name}_total" if family.type == "counter" else name
        words = ", ".join(f"`{label}`" for label in sorted(labels))
        lines.append(f"| `{shown_as}` | {family.type} | {words} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def test_the_page_lists_every_metric_and_no_other(cluster):
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0] == table(families(cluster))


def series(found: dict[str, Metric]) -> set[str]:
    """The names that a query may use."""
    return {f"{n}{suffix}" for n, family in found.items() for suffix in SUFFIXES[family.type]}


def metrics_of(queries: Iterable[str]) -> set[str]:
    return {name for query in queries for name in re.findall(r"\bctrps_[a-z_]+", query)}


def labels_of(query: str) -> set[str]:
    return set(re.findall(r"[{,]\s*([a-z]+)\s*=~?\s*\"", query))


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    return [t["expr"] for p in panels for t in p["targets"]] + [r["expr"] for r in rules]


def test_dashboard_and_alerts_ask_for_metrics_that_are_there(cluster):
    found, queries = families(cluster), expressions()
    assert metrics_of(queries) <= series(found)
    known = {label for f in found.values() for s in f.samples for label in s.labels}
    assert {label for query in queries for label in labels_of(query)} <= known | {"instance", "job"}
    assert all(query.count(a) == query.count(b) for query in queries for a, b in ("()", "{}", "[]"))


def test_the_dashboard_shows_most_of_what_there_is(cluster):
    asked = metrics_of(expressions())
    unused = {n for n, f in families(cluster).items() if not asked & series({n: f})}
    assert unused == {
        *("ctrps_build_info", "ctrps_run_info", "ctrps_start_time_seconds", "ctrps_pass"),
        *("ctrps_passes", "ctrps_rejected_rows"),
    }


def test_panels_have_places_of_their_own():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken and all(x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_alert_says_what_and_what_to_do():
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 4
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        rows = table(families(a_cluster(Path(folder) / "run")))
    top, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(top + BEGIN + rows + END + rest.partition(END)[2], encoding="utf-8")
