"""The state of a run, from what its loop has shown: rates, health, what is left at the end."""

import json
from dataclasses import replace

import pytest

from ctrps.ps import told
from ctrps.runtime import watch as module
from ctrps.runtime.watch import STUCK_S, Snapshot, plain, snapshot, staleness
from tests.simjob import plain as plain_setup
from tests.test_machines import training_scheduler
from tests.watched import FIGURES, seen, shown, watched


def test_nothing_seen_yet_is_a_run_that_starts(tmp_path):
    watch = watched(tmp_path / "run")
    state = watch.state()
    assert (state["phase"], state["health"], state["pass"]) == ("starting", "starting", None)
    assert not watch.ready and watch.stuck_s(1e9) == 0.0
    (itself,) = state["nodes"]
    assert itself["role"] == "scheduler" and itself["rss_bytes"] > 1e6


def test_rates_are_over_the_last_seconds(tmp_path):
    watch = watched(tmp_path / "run")
    before = [seen(0, "server", 0, 10.0), seen(1, "worker", 0, 10.0), seen(2, "worker", 1, 9.9)]
    after = [
        seen(0, "server", 0, 12.0, grown=1.5),
        seen(1, "worker", 0, 12.0, grown=2.0),
        seen(2, "worker", 1, 9.9),
    ]
    watch.see(shown(10.0, rows=3000, nodes=before))
    watch.see(shown(12.0, rows=5000, nodes=after))
    state = watch.state(12.5)
    assert (state["health"], state["total_rows"], state["rows_per_s"]) == ("healthy", 15000, 1000.0)
    assert state["eta_s"] == (2 - 1) * 10000 / 1000 - 5000 / 1000
    assert state["staleness"] == {"mean": 0.5, "p50": 0, "p99": 2, "max": 2}
    _, server, first, second = state["nodes"]
    assert (server["busy"], server["keys"], server["address"]) == (1.0, 105.0, "10.0.0.7:9000")
    assert (first["rows_per_s"], first["bytes_per_s"], first["cpu"]) == (4500.0, 500.0, 2.0)
    assert (second["rows_per_s"], second["heard_s"], second["state"]) == (None, 2.6, "silent")
    assert state["bytes_per_s"] == 500.0


def test_only_some_snapshots_are_kept(tmp_path):
    watch = watched(tmp_path / "run")
    for second in range(100):
        watch.see(shown(float(second), rows=10 * second))
    assert watch.state(99.0)["rows_per_s"] == 10.0
    assert len(watch._recent) == module.KEPT


def lost(now: float) -> Snapshot:
    nodes = [seen(0, "server", 0, now), seen(1, "worker", 0, now), seen(2, "worker", 1, 1.0)]
    nodes[2] = replace(nodes[2], dead=True)
    return shown(now, nodes=nodes, missing="1 of 2 workers")


@pytest.mark.parametrize(
    "last, later, problem",
    [
        (lost(20.0), 0.0, "1 of 2 workers missing: worker 1 is lost"),
        (
            shown(20.0, progressed=10.0, waits_for="step 5 waits for lanes [1] at worker 0"),
            0.0,
            "no progress for 10 s: step 5 waits for lanes [1] at worker 0",
        ),
        (shown(20.0), STUCK_S, "nothing happened in process"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, last, later, problem):
    watch = watched(tmp_path / "run")
    watch.see(last)
    state = watch.state(20.0 + later)
    assert state["health"] == "degraded"
    assert any(found.startswith(problem) for found in state["problems"]), state["problems"]


@pytest.mark.parametrize(
    "last, health",
    [
        (shown(20.0, progressed=10.0, step_s=4.0), "healthy"),
        (shown(20.0, phase="forming", missing="2 of 2 workers"), "starting"),
        (shown(20.0, phase="ended", missing="2 of 2 workers", progressed=1.0), "healthy"),
    ],
)
def test_what_is_no_problem(tmp_path, last, health):
    watch = watched(tmp_path / "run")
    watch.see(last)
    assert (watch.state(20.0)["health"], watch.state(20.0)["problems"]) == (health, [])


def test_what_nodes_wait_for_is_shown_where_the_job_does(tmp_path):
    waiting = seen(1, "worker", 0, 20.0)
    waiting = replace(waiting, status=replace(waiting.status, waits_for="pull of lane 1"))
    for progressed, told_ in ((20.0, ""), (17.0, "pull of lane 1")):
        watch = watched(tmp_path / "run")
        watch.see(shown(20.0, nodes=[waiting], progressed=progressed))
        assert watch.state(20.0)["nodes"][1]["waits_for"] == told_


def test_train_tells_what_it_does_and_how_long(tmp_path, monkeypatch):
    times = iter([0.0, 1.0, 3.0, 3.5, 6.0, 7.0, 7.5, 8.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    watch = watched(tmp_path / "run", kind="process")
    with watch.doing("compiling"):
        pass
    with watch.doing("training"):
        watch.figures(FIGURES)
        with watch.doing("saving"):
            assert watch.state(6.0)["phase"] == "saving" and watch.ready
        watch.scored({"auc": 0.8})
    phases = watch.account()["phases_s"]
    assert phases == {"compiling": 1.0, "starting": 2.0, "training": 4.0, "saving": 1.0}
    state = watch.state(8.0)
    assert (state["total_rows"], state["test"], state["wanted"]) == (15000, {"auc": 0.8}, {})
    assert [node["role"] for node in state["nodes"]] == ["train"]


def test_the_state_at_the_end_is_left_in_the_folder(tmp_path):
    watch = watched(tmp_path / "run", kind="process")
    watch.see(shown(1.0, nodes=[], test={"auc": float("nan"), "logloss": 0.4}))
    watch.close()
    left = json.loads((tmp_path / "run" / "state.json").read_text())
    assert (left["phase"], left["test"]) == ("ended", {"auc": None, "logloss": 0.4})


def test_events_are_logged_and_kept(tmp_path):
    said: list[str] = []
    log = watched(tmp_path / "run").noting(said.append)
    log("worker 1 joined")
    (line,) = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert said == ["worker 1 joined"] and json.loads(line)["text"] == "worker 1 joined"


def test_a_full_disk_does_not_end_the_watching(tmp_path):
    watch = watched(tmp_path / "run", kind="process")
    (tmp_path / "run" / "events.jsonl").symlink_to("/dev/full")
    said: list[str] = []
    watch.noting(said.append)("worker 1 joined")
    assert said == ["worker 1 joined"]
    watch.folder = tmp_path / "nowhere"
    watch.close()


def test_staleness_of_nothing_is_none():
    assert staleness([]) is staleness([0, 0]) is None
    assert staleness([0, 0, 5]) == {"mean": 2.0, "p50": 2, "p99": 2, "max": 2}


def test_plain_leaves_no_number_that_json_lacks():
    found = plain({"a": [float("inf"), 1.5, (float("nan"), 2)], "b": "x", "c": None})
    assert found == {"a": [None, 1.5, [None, 2]], "b": "x", "c": None}


def test_a_snapshot_of_a_scheduler_has_its_nodes():
    scheduler = training_scheduler(plain_setup(servers=1, workers=1))
    found = snapshot(scheduler, None, 3.0)
    assert (found.phase, found.missing) == ("training", "")
    assert found.figures == told.progress(scheduler, 3.0)
    assert [(n.role, n.rank, n.dead) for n in found.nodes] == [
        ("server", 0, False),
        ("worker", 0, False),
    ]
    assert found.nodes[0].status is scheduler.roster[0].status
