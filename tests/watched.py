"""A run to look at without running one: a folder, its job, and snapshots of a small cluster."""

import json
from pathlib import Path
from typing import Any

from ctrps.config import load_job
from ctrps.runtime.meter import RECEIVED, SENT
from ctrps.runtime.watch import Seen, Snapshot, Watch
from tests.test_machines import status_of

FIGURES = {
    "pass": 1,
    "step": 5,
    "steps": 10,
    "rows": 5000,
    "pass_rows": 10000,
    "logloss": 0.51,
    "auc": 0.7,
    "scored_rows": 5000,
    "rows_per_s": 900.0,
    "staleness": [6, 3, 1],
    "keys": 70,
}
SERVER = {"pull": 1.0, "push": 2.0, "messages": 1.0, "keys": 70.0, "size_bytes": 4096.0}
SERVER |= {"pull_3": 40.0, "push_4": 39.0, "push_10": 1.0, "cpu_s": 3.0, "rss_bytes": 1e8}
WORKER = {"read": 1.0, "compute": 3.0, "messages": 1.0, "rows": 9000.0, "retries": 2.0}
WORKER |= {SENT: 700.0, RECEIVED: 300.0, "cpu_s": 4.0, "rss_bytes": 2e8}


def watched(folder: Path, *overrides: str, kind: str = "cluster") -> Watch:
    """A run of one server and two workers, in ``folder``, that has shown nothing yet."""
    given = [f"output.dir={folder}", "cluster.workers=2", "train.passes=2", *overrides]
    job = load_job(None, given, {})
    folder.mkdir(exist_ok=True)
    (folder / "config.resolved.yaml").write_text(job.dump_yaml(), encoding="utf-8")
    return Watch(job, folder, kind, rejected=3)


def seen(number: int, role: str, rank: int, heard: float, **how: Any) -> Seen:
    """A node whose counters are those above, each times ``grown``."""
    grown = how.pop("grown", 1.0)
    counters = {k: v * grown for k, v in (SERVER if role == "server" else WORKER).items()}
    address = "10.0.0.7:9000" if role == "server" else ""
    return Seen(number, role, rank, address, heard, status_of(number, 1, counters=counters), **how)


def shown(now: float, phase: str = "training", rows: int = 5000, **how: Any) -> Snapshot:
    """A snapshot with all nodes, heard of just now."""
    nodes = how.pop("nodes", None)
    if nodes is None:
        nodes = [seen(0, "server", 0, now), seen(1, "worker", 0, now), seen(2, "worker", 1, now)]
    figures = FIGURES | {"rows": rows}
    progressed = how.pop("progressed", now)
    return Snapshot(now, phase, figures, progressed, nodes=tuple(nodes), **how)


def write_lines(path: Path, lines: list[dict[str, Any]], end: str = "") -> None:
    """Append lines of JSON, and a piece of another."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + end)
