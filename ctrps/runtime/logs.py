"""Lines of a process's log: for people, or a JSON object each.

::

    20:41:07 worker: joined as worker 1, node 4
    {"ts": "2026-11-30T20:41:07.123Z", "level": "info", "job": "click-fm", "role": "worker",
     "rank": 1, "pid": 4211, "pass": 0, "step": 0, "text": "joined as worker 1, node 4"}
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from ctrps.ps.scheduler import Scheduler
from ctrps.ps.server import Server
from ctrps.ps.worker import Worker


@dataclass
class Logger:
    """Writes the lines of one process.

    Parameters
    ----------
    write
        Takes a whole line.
    format
        ``text`` or ``json``.
    job, role, rank
        What is written with each line of JSON; -1 for a rank that is not known yet.

    Attributes
    ----------
    process
        What runs, once there is one: its machine tells rank, pass and step.

    Examples
    --------
    >>> lines = []
    >>> log = Logger(lines.append, "json", "click-fm", "server", rank=2)
    >>> log("no lane has come", level="warning", lanes=4)
    >>> found = json.loads(lines[0])
    >>> found["level"], found["role"], found["rank"], found["text"], found["fields"]
    ('warning', 'server', 2, 'no lane has come', {'lanes': 4})
    >>> text_of(lines[0])
    'no lane has come'
    """

    write: Callable[[str], None]
    format: str
    job: str
    role: str
    rank: int = -1
    process: object = None

    def __call__(self, text: str, level: str = "info", **fields: object) -> None:
        """Write a line; ``fields`` are for programs, and left out of text."""
        if self.format == "text":
            self.write(f"{time.strftime('%H:%M:%S')} {self.role}: {text}")
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"ts": now, "level": level, "job": self.job, "role": self.role, "rank": self.rank}
        found = {**line, "pid": os.getpid(), **self._place(), "text": text}
        self.write(json.dumps(found | ({"fields": fields} if fields else {})))

    def _place(self) -> dict[str, int]:
        """How far the process is."""
        match getattr(self.process, "machine", None):
            case Scheduler() as scheduler:
                return {"rank": 0, "pass": scheduler.pass_, "step": scheduler.training.step}
            case Server() as server:
                parts = server.partitions
                return {"rank": server.rank, "pass": parts.pass_, "step": parts.step}
            case Worker() as worker:
                begun = (n for lane in worker.lanes.values() for n in lane.tasks)
                pass_ = worker.orders.pass_ if worker.orders else -1
                return {"rank": worker.rank, "pass": pass_, "step": max(begun, default=-1)}
        return {}


def text_of(line: str) -> str:
    """What a line of a log says, whatever its format."""
    try:
        found = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return line
    return str(found.get("text", line)) if isinstance(found, dict) else line
