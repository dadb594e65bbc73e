"""The demonstration: logs with a known answer, through all stages, on a local cluster.

What it leaves in its folder is a job like any other: raw tables, files that say what to do with
them, and a run.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctrps import templates
from ctrps.config import JobConfig, load_job
from ctrps.data.extract import extract
from ctrps.data.synthetic import generate
from ctrps.errors import ConfigError
from ctrps.runtime.launch import launch
from ctrps.runtime.nursery import Main
from ctrps.starter import LOGS, LOGS_PARTS, job_file, write

ROWS, USERS, ADS, SEED = 200_000, 4_000, 1_000, 7
"""Enough impressions of each user and ad that the model comes near the best there is."""

TRUTH = "truth.json"
JOB = "job.yaml"
CLUSTER = {"servers": 2, "workers": 2}
STEPS = 4

Tell = Callable[[str], None]


class Demo:
    """One run of the demonstration.

    Parameters
    ----------
    folder
        New, empty, or that of an earlier demonstration, whose job and logs are used again.
    tell
        Takes what is shown, line by line.
    clock
        Seconds.

    Raises
    ------
    ConfigError
        The folder holds something else.
    """

    def __init__(self, folder: Path, tell: Tell, clock: Callable[[], float] = time.monotonic):
        self.folder = folder
        self.job_path = folder / JOB
        self._tell, self._clock = tell, clock
        self._step = 0
        self._raw, self._run = folder / "raw", (folder / "run").absolute()
        # Written last of all of a demonstration's files: where it stands, the others are whole.
        self.again = (self._raw / TRUTH).exists() and self.job_path.exists()
        if not self.again and folder.exists() and any(folder.iterdir()) and not self._cut_off():
            raise ConfigError(
                "this folder is not empty, and not that of a demonstration",
                where=str(folder),
                hint="give another one: ctrps demo DIR",
                id="E-CONFIG-RUN",
            )

    def run(self, main: Main, show: Callable[[dict[str, Any]], None], say: Tell) -> dict[str, Any]:
        """Do all steps; returns what they came to.

        Parameters
        ----------
        main, show, say
            As ``launch`` takes them.
        """
        with self._timed("job") as done:
            self._write_job()
            done(f"{self.job_path}{', as you left it' if self.again else ': edit it as you like'}")
        job = load_job(self.job_path, [], {})
        mine = job.output.dir == self._run  # another folder may hold what is not to be lost
        with self._timed("raw logs") as done:
            truth = self._generate()
            again = ", used again" if self.again else ""
            counts = (truth["rows"], truth["users"], truth["ads"])
            done("{:,} impressions, {:,} users, {:,} ads".format(*counts) + again)
        with self._timed("extract") as done:
            made = extract(job, overwrite=mine)
            done(f"{made['rows']:,} rows of features, {made['rejected']:,} rejected")
        with self._timed("launch") as done:
            cluster = job.cluster
            done(f"1 scheduler, {cluster.servers} servers, {cluster.workers} workers: train, test")
            summary = launch(job, mine, show, say, main, lambda *_: None)
        return self._judged(job, summary, truth)

    def _texts(self) -> dict[str, str]:
        """The files of the job, as they are written."""
        # Absolute: the folder that later commands are given in is not known.
        text = job_file("logs", LOGS | CLUSTER | {"name": "demo", "output": str(self._run)})
        return {JOB: text} | {name: templates.read(name) for name in LOGS_PARTS}

    def _cut_off(self) -> bool:
        """Whether a demonstration wrote these files, and was stopped before it had the logs."""
        texts = self._texts()
        names = {path.name for path in self.folder.iterdir()}
        mine = names <= {*texts, self._raw.name} and JOB in names
        return mine and self.job_path.read_text(encoding="utf-8") == texts[JOB]

    def _write_job(self) -> None:
        if not self.job_path.exists():
            write(self.folder, self._texts())

    def _generate(self) -> dict[str, Any]:
        if self.again:
            found: dict[str, Any] = json.loads((self._raw / TRUTH).read_text(encoding="utf-8"))
            return found
        return generate(self._raw, rows=ROWS, users=USERS, ads=ADS, seed=SEED)

    def _judged(
        self, job: JobConfig, summary: dict[str, Any], truth: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "job": str(self.job_path),
            "model": summary["model"],
            "rows": summary["rows"],
            "rows_per_s": summary["rows_per_s"],
            "test": summary["test"],
            "best_auc": truth["test"]["best_auc"],
            "best_logloss": truth["test"]["best_logloss"],
        }

    @contextmanager
    def _timed(self, name: str) -> Iterator[Tell]:
        self._step += 1
        number, began, words = self._step, self._clock(), [""]
        yield lambda text: words.__setitem__(0, text)
        spent = self._clock() - began
        self._tell(f"[{number}/{STEPS}] {name:10} {words[0]:64} {spent:.1f} s")
