"""A run's state as metrics for Prometheus: names, units and types by its conventions.

Labels are roles, ranks and a few words: never a key, a feature or a user.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ctrps.ps.job import Phase
from ctrps.runtime.meter import BOUNDS_S, RECEIVED, SENT, SERIAL, TIMED

CONTENT_TYPE = CONTENT_TYPE_LATEST
PHASES = ("starting", "compiling", *(phase.name.lower() for phase in Phase), "saving")
STATES = ("up", "silent", "leaving", "lost", "left")
STALENESS_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
BY_NODE = ["role", "rank"]

Labels = tuple[str, ...]


def text(state: Mapping[str, Any]) -> bytes:
    """What ``/metrics`` answers.

    Parameters
    ----------
    state
        As ``Watch.state`` tells it.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(state))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, state: Mapping[str, Any]):
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield from _of_the_run(self._state)
        yield from _of_quality(self._state)
        yield from _of_nodes(self._state)
        yield from _of_servers(self._state)


def _of_the_run(state: Mapping[str, Any]) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "ctrps_build", "Version of ctrps.", value={"version": str(state["version"])}
    )
    about = {name: str(state[name]) for name in ("job", "model", "consistency")}
    yield InfoMetricFamily("ctrps_run", "What is trained.", value=about)
    yield _gauge(
        "ctrps_start_time_seconds",
        "When this process began, in seconds since 1970.",
        state["time"] - state["uptime_s"],
    )
    yield _gauge(
        "ctrps_healthy",
        "1 unless nodes are missing or the job does not get on.",
        float(state["health"] != "degraded"),
    )
    phases = ((p,) for p in PHASES)
    yield _gauges(
        "ctrps_phase",
        "1 for what the run does, 0 for the others.",
        ["phase"],
        ((p, float(state["phase"] == p[0])) for p in phases),
    )
    yield _gauge("ctrps_pass", "The present pass, from 0.", state["pass"])
    yield _gauge("ctrps_passes", "Passes that the job wants.", state["passes"])
    done, whole = state["rows"], state["pass_rows"]
    yield _gauge(
        "ctrps_pass_progress_ratio",
        "The part of the present pass that is done.",
        done / whole if whole else None,
    )
    yield _counter("ctrps_rows", "Rows trained on, over all passes.", state["total_rows"])
    yield _counter("ctrps_rejected_rows", "Rows that could not be read.", state["rejected"])
    checkpoint = state["checkpoint"] or {}
    yield _gauge(
        "ctrps_checkpoint_age_seconds",
        "Age of the model on disk.",
        checkpoint.get("age_s"),
    )


def _of_quality(state: Mapping[str, Any]) -> Iterator[Metric]:
    test = state["test"] or {}
    for name, words in (("logloss", "Mean log loss in nats"), ("auc", "Area under the ROC curve")):
        both = ((("train",), state[name]), (("test",), test.get(name)))
        which = "train: before training on the rows; test: as last scored."
        yield _gauges(f"ctrps_{name}", f"{words}; {which}", ["split"], both)
    yield _gauge("ctrps_model_rows", "Rows of the model, its keys.", state["keys"])
    counts = state["staleness_counts"]
    bins = [(bound, sum(counts[: bound + 1])) for bound in STALENESS_BOUNDS]
    if counts:
        family = HistogramMetricFamily(
            "ctrps_staleness_updates",
            "Updates between the pull and the push of a gradient, in this pass.",
        )
        buckets = [(str(float(bound)), float(count)) for bound, count in bins]
        total = float(sum(i * n for i, n in enumerate(counts)))
        family.add_metric([], [*buckets, ("+Inf", float(sum(counts)))], total)
        yield family


def _of_nodes(state: Mapping[str, Any]) -> Iterator[Metric]:
    nodes = _newest(state)
    pairs = [(role, word) for role in state["wanted"] for word in STATES]
    found = [(n["role"], n["state"]) for n in state["nodes"]]
    yield _gauges(
        "ctrps_nodes",
        "Nodes that ever joined, by what has become of them.",
        ["role", "state"],
        ((pair, float(found.count(pair))) for pair in pairs),
    )
    yield _gauges(
        "ctrps_nodes_wanted",
        "Nodes that the job wants.",
        ["role"],
        (((role,), wanted) for role, wanted in state["wanted"].items()),
    )
    yield _gauges(
        "ctrps_node_heartbeat_age_seconds",
        "Time since the scheduler last heard of a node that is in the job.",
        BY_NODE,
        ((_id(n), n["heard_s"]) for n in nodes if n["state"] not in ("lost", "left")),
    )
    yield _gauges(
        "ctrps_node_resident_memory_bytes",
        "Memory of a node that is in RAM.",
        BY_NODE,
        _told(nodes, "rss_bytes"),
    )
    for name, key, words in (
        ("ctrps_node_rows", "rows", "Worker: rows whose gradients it pushed."),
        ("ctrps_node_cpu_seconds", "cpu_s", "Processor time since a node began to work."),
        ("ctrps_node_retries", "retries", "Worker: requests that it sent again."),
    ):
        told = _told([n for n in nodes if key == "cpu_s" or n["role"] == "worker"], key)
        yield _counters(name, words, BY_NODE, told)
    yield _counters(
        "ctrps_node_network_bytes",
        "Bytes between workers and servers, as a node sent or received them.",
        [*BY_NODE, "direction"],
        _parts(nodes, ((SENT, "sent"), (RECEIVED, "received"))),
    )
    for role in SERIAL:
        parts = [(name, name) for name in SERIAL[role]]
        yield _counters(
            f"ctrps_{role}_busy_seconds",
            f"Time that a {role} was busy, by what it did; the rest it waited.",
            [*BY_NODE, "part"],
            _parts([n for n in nodes if n["role"] == role], parts),
        )


def _of_servers(state: Mapping[str, Any]) -> Iterator[Metric]:
    servers = [n for n in _newest(state) if n["role"] == "server"]
    yield _gauges("ctrps_server_keys", "Rows that a server holds.", BY_NODE, _told(servers, "keys"))
    yield _gauges(
        "ctrps_server_table_bytes",
        "Memory of the tables of a server.",
        BY_NODE,
        _told(servers, "size_bytes"),
    )
    for name, words in (("pull", "a pull"), ("push", "a push")):
        family = HistogramMetricFamily(
            f"ctrps_server_{name}_seconds",
            f"Time that a server took for {words}, without any waiting.",
            labels=BY_NODE,
        )
        for node in servers:
            counters = node["counters"]
            if name not in counters:
                continue
            counted, buckets = 0.0, []
            for bound, key in zip((*map(str, BOUNDS_S), "+Inf"), TIMED[name], strict=True):
                counted += counters.get(key, 0.0)
                buckets.append((bound, counted))
            family.add_metric(list(_id(node)), buckets, counters[name])
        yield family


def _newest(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One node of each role and rank: what came for a lost one has its rank."""
    by_number = sorted(state["nodes"], key=lambda n: int(n["node"]))
    return list({_id(n): n for n in by_number}.values())


def _id(node: Mapping[str, Any]) -> Labels:
    return node["role"], str(node["rank"])


def _told(nodes: Iterable[Mapping[str, Any]], key: str) -> Iterator[tuple[Labels, float]]:
    """A counter of the nodes that tell it."""
    return ((_id(n), n["counters"][key]) for n in nodes if key in n["counters"])


def _parts(
    nodes: Iterable[Mapping[str, Any]], names: Iterable[tuple[str, str]]
) -> Iterator[tuple[Labels, float]]:
    """Counters of the nodes that tell them, each with a label of its own."""
    names = list(names)
    for node in nodes:
        for key, label in names:
            if key in node["counters"]:
                yield (*_id(node), label), node["counters"][key]


def _gauge(name: str, words: str, value: float | None) -> Metric:
    return _gauges(name, words, [], [((), value)])


def _counter(name: str, words: str, value: float) -> Metric:
    return _counters(name, words, [], [((), value)])


def _gauges(
    name: str, words: str, labels: list[str], values: Iterable[tuple[Labels, float | None]]
) -> Metric:
    family = GaugeMetricFamily(name, words, labels=labels)
    for found, value in values:
        if value is not None:
            family.add_metric(list(found), value)
    return family


def _counters(
    name: str, words: str, labels: list[str], values: Iterable[tuple[Labels, float]]
) -> Metric:
    family = CounterMetricFamily(name, words, labels=labels)
    for found, value in values:
        family.add_metric(list(found), value)
    return family
