"""A parameter server on this machine, started and ended from Python."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from ctrps.cli import app
from ctrps.config import load_job
from ctrps.errors import ConfigError
from ctrps.runtime.launch import launch
from ctrps.screen import status_of

LOG = logging.getLogger("ctrps")

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What a training has come to.

    Attributes
    ----------
    summary : dict
        As in ``summary.json``: rows, passes, steps, test, model_digest, ….
    model : Path
        Folder of the model.
    """

    summary: dict[str, Any]
    model: Path


class Cluster:
    """A scheduler, servers and workers as processes of this machine.

    They run while ``train`` does, and end with it however it ends: with the model, with an
    exception, or by an interrupt, which saves a checkpoint first.

    Parameters
    ----------
    servers, workers : int

    Examples
    --------
    >>> with Cluster.local(servers=2, workers=2) as cluster:  # doctest: +SKIP
    ...     run = cluster.train("job.yaml", train__passes=2)
    ...     run.summary["test"]["auc"], run.model
    """

    def __init__(self, servers: int, workers: int):
        self.servers = servers
        self.workers = workers
        self._closed = False

    @classmethod
    def local(cls, servers: int = 1, workers: int = 1) -> Self:
        """So many servers and workers on this machine, and a scheduler."""
        return cls(servers, workers)

    def train(
        self,
        job: str | Path | None = None,
        *,
        overwrite: bool = False,
        progress: Progress | None = None,
        **settings: Any,
    ) -> Run:
        """Train as `ctrps launch` does, and wait for the end.

        Parameters
        ----------
        job
            Job file; None: all settings are stated here.
        overwrite
            Throw away the run that output.dir holds.
        progress
            Takes the figures of ``metrics.jsonl`` as they come.
        settings
            ``section__key=value``, such as ``train__passes=2``; lists as in Python.

        Raises
        ------
        CtrpsError
            As `ctrps launch` ends: settings, data, a node that died.
        RuntimeError
            The cluster was closed, or this is not the main thread, which gets the signals.
        """
        if self._closed:
            raise RuntimeError("this cluster was closed: make another by Cluster.local()")
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a cluster is started by the main thread, which gets the signals")
        stated = {"cluster__servers": self.servers, "cluster__workers": self.workers} | settings
        overrides = [f"{key.replace('__', '.')}={_text(value)}" for key, value in stated.items()]
        path = None if job is None else Path(job)
        if path is not None and not path.exists():
            raise ConfigError("no such file", where=str(job), hint="give a job file")
        found = load_job(path, overrides, os.environ)
        say = progress or (lambda figures: None)
        summary = launch(found, overwrite, say, LOG.info, partial(status_of, app))
        return Run(summary, Path(summary["model"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True


def _text(value: Any) -> str:
    """A setting as the command line says it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(value)
