"""The figures of a run over time, from the files that it writes: bounded, whatever its length.

``metrics.jsonl`` is the source, so the history is there after a reload of the page, after another
start of the scheduler, and after the run.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ctrps.runtime.facts import EVENTS, staleness, total_rows

POINTS = 1000
"""Points that a chart has at most, and evaluations: more than it has pixels."""

OVER_S = 2.0
"""Seconds that rates are taken over, where points are closer: nodes tell sums once a second."""

SHOWN_EVENTS = 500
CHUNK = 1 << 20

COLUMNS = (
    *("ts", "pass", "step", "rows", "total_rows", "logloss", "auc", "keys"),
    *("rows_per_s", "bytes_per_s", "staleness_mean", "staleness_p99"),
)


class Tail:
    """The whole lines that were added to a file of JSON lines since the last look.

    Parameters
    ----------
    path
    begin
        Called before the first line of a file that has become shorter, and so is another one.
    """

    def __init__(self, path: Path, begin: Callable[[], None]):
        self._path, self._begin = path, begin
        self._at = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """The lines, one by one; broken ones, and one that is being written, are left out."""
        try:
            with open(self._path, "rb") as file:
                if file.seek(0, 2) < self._at:
                    self._at = 0
                    self._begin()
                file.seek(self._at)
                while line := file.readline(CHUNK):
                    if not line.endswith(b"\n") and len(line) < CHUNK:
                        return
                    self._at += len(line)
                    yield from _objects(line)
        except OSError:
            return


def _objects(line: bytes) -> Iterator[dict[str, Any]]:
    try:
        found = json.loads(line)
    except ValueError:
        return
    if isinstance(found, dict):
        yield found


class History:
    """Figures and events of a run, thinned out evenly so that they stay few.

    Any thread may read it.

    Parameters
    ----------
    folder
        Of the run.
    points
        At most so many.
    """

    def __init__(self, folder: Path, points: int = POINTS):
        self._points = points
        self._lock = threading.Lock()
        self._events: deque[dict[str, Any]] = deque(maxlen=SHOWN_EVENTS)
        self._metrics = Tail(folder / "metrics.jsonl", self._begin)
        self._noted = Tail(folder / EVENTS, self._events.clear)
        self._begin()

    def _begin(self) -> None:
        self._lines: list[dict[str, Any]] = []
        self._tests: deque[dict[str, Any]] = deque(maxlen=self._points)
        self._stride = 1
        self._number = 0
        self._ts = 0.0

    def read(self) -> dict[str, Any]:
        """What ``/api/history`` answers, up to date.

        Returns
        -------
        dict
            ``columns``: by name, of equal length, a point being a line of ``metrics.jsonl``;
            ``tests``: figures of the test rows; ``events``; ``every``: lines to a point.
        """
        with self._lock:
            for line in self._metrics.read():
                self._add(line)
            self._events.extend(self._noted.read())
            return {
                "columns": _columns(self._lines),
                "tests": list(self._tests),
                "events": list(self._events),
                "every": self._stride,
            }

    def _add(self, line: dict[str, Any]) -> None:
        # Runs of an older version have no time in their lines, which came once a second.
        self._ts = line["ts"] = float(line.get("ts") or self._ts + 1.0)
        if line.get("phase") == "evaluate" and isinstance(line.get("test"), dict):
            kept = ("auc", "logloss", "normalised_entropy", "calibration", "rows")
            test = {name: line["test"].get(name) for name in kept}
            newest = self._lines[-1] if self._lines else {}
            at = {"ts": self._ts, "pass": line.get("pass"), "total_rows": total_rows(newest)}
            self._tests.append(at | test)
        if line.get("phase") != "train":
            return
        # The newest line is always there, and replaced unless its turn has come.
        if self._lines and (self._number - 1) % self._stride:
            self._lines.pop()
        self._lines.append(line)
        self._number += 1
        if len(self._lines) > self._points:
            del self._lines[1:-1:2]
            self._stride *= 2


def _columns(lines: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Lines as columns; a rate is that since a point some seconds before."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    first = 0
    for number, line in enumerate(lines):
        while first < number and line["ts"] - lines[first + 1]["ts"] >= OVER_S:
            first += 1
        spread = staleness(line.get("staleness") or []) or {}
        more = {
            "total_rows": total_rows(line),
            "rows_per_s": _speed(lines[first], line, total_rows) or line.get("rows_per_s"),
            "bytes_per_s": _speed(lines[first], line, lambda found: found.get("wire_bytes")),
            "staleness_mean": spread.get("mean"),
            "staleness_p99": spread.get("p99"),
        }
        for name in COLUMNS:
            columns[name].append(more[name] if name in more else line.get(name))
    return columns


def _speed(
    before: dict[str, Any], line: dict[str, Any], of: Callable[[dict[str, Any]], int | None]
) -> float | None:
    """How fast a sum has grown between two lines; None where that cannot be told."""
    then, now, spent = of(before), of(line), line["ts"] - before["ts"]
    if then is None or now is None or spent <= 0 or now < then:
        return None
    return round((now - then) / spent, 1)
