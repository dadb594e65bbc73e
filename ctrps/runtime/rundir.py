"""The folder of a run: what it holds, whether it may be used, and where training stands in it.

::

    config.resolved.yaml   all settings
    metrics.jsonl          one line a second while training
    summary.json           at the end; its presence means that the run is finished
    logs/ROLE-RANK.log     of each process
    model/                 the last complete checkpoint
    cache/, data/          converted text, extracted shards: kept by ``--overwrite``
"""

import fcntl
import json
import os
import shutil
import time
from typing import IO, Any

import yaml

from ctrps import checkpoint
from ctrps.checkpoint import Manifest
from ctrps.config import JobConfig, digest
from ctrps.data.shards import Schema
from ctrps.errors import ClusterError, ConfigError, DataError
from ctrps.remote import Remote
from ctrps.runtime.facts import EVENTS, STATE, read_json, write_json
from ctrps.runtime.inputs import Inputs

MADE_BY_A_RUN = ("model", "logs", "bad", "metrics.jsonl", "summary.json", "journal", EVENTS, STATE)

SHARED = (
    *("quorum", "window_ms", "stale_above", "stale", "compensation"),
    *("clip_value", "clip_row", "clip_batch"),
)
"""What of ``train`` all nodes must agree on beside the plan, and a later run may change."""


class RunFolder:
    """A run's folder, held by one process at a time.

    Parameters
    ----------
    job
    overwrite
        Throw away the finished or unfinished run that is there, once ``begin`` says that the new
        one can be.

    Attributes
    ----------
    job : JobConfig
        As given, but for rows of a minibatch that nobody stated: a run that goes on inside a pass
        keeps those it began with.
    resume : Manifest or None
        The model to go on from.
    remote : Remote or None
        Where each checkpoint is copied to; without a model in the folder, that of there is copied.

    Raises
    ------
    ConfigError
        The folder holds a finished run, or a model that this job cannot go on with; or the job's
        model is of a kind that cannot be trained.
    ClusterError
        Another process is using it.
    DataError
        It cannot be written.
    """

    def __init__(self, job: JobConfig, overwrite: bool = False):
        job.check_trained()
        self.job = job
        self.path = job.output.dir
        self.model = self.path / "model"
        self.remote = Remote(job.output.remote) if job.output.remote else None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
            try:
                self.resume = self._begin(overwrite)
            except BaseException:
                self.close()
                raise
        except OSError as error:
            what = f"cannot write there: {error.strerror}"
            raise DataError(
                what, where=str(self.path), hint="set output.dir", id="E-DISK"
            ) from None

    def _begin(self, overwrite: bool) -> Manifest | None:
        """Make the folder ready; returns the model to go on from."""
        self._overwrite = overwrite
        for folder in (self.model, self.path / "logs"):
            folder.mkdir(exist_ok=True)
        if self.remote and not overwrite and not checkpoint.exists(self.model):
            self.remote.download(self.model)
        resume = None if overwrite else self._standing()
        if resume and not resume.border:
            self.job = _as_before(self.job, resume)
        text = self.job.dump_yaml(origins=True)
        (self.path / "config.resolved.yaml").write_text(text, "utf-8", "surrogateescape")
        return resume

    def _take_lock(self) -> IO[str]:
        lock = open(self.path / ".lock", "a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise ClusterError(
                f"another run (process {owner}) is using this folder",
                where=str(self.path),
                hint="wait for it, or set another output.dir",
                id="E-CLUSTER-BUSY",
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.close()

    def _clear(self) -> None:
        for name in MADE_BY_A_RUN:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
                path.mkdir()
            else:
                path.unlink(missing_ok=True)

    def _standing(self) -> Manifest | None:
        """The model to go on from; None for a new run."""
        if not checkpoint.exists(self.model):
            return None
        manifest = checkpoint.read_manifest(self.model)
        summary = read_json(self.path / "summary.json")
        passes = summary.get("passes", 0)
        if summary and (passes >= self.job.train.passes or summary.get("stopped_early")):
            raise ConfigError(
                f"a finished run of {passes} pass(es) is there",
                where=str(self.path),
                hint="use --overwrite, another output.dir, or more train.passes to go on",
                id="E-CONFIG-RUN",
            )
        self._compare(manifest)
        return manifest

    def _compare(self, manifest: Manifest) -> None:
        found, wanted = _flat(manifest.model), _flat(self.job.model_settings())
        differ = [
            f"{key} is {found.get(key)!r} in the model and {value!r} in the job"
            for key, value in wanted.items()
            if found.get(key) != value
        ]
        if differ:
            if found.get("kind") != wanted["kind"]:
                del differ[1:]  # the others follow from the kind, which comes first
            hint = "use the model's settings, another output.dir, or --overwrite"
            raise ConfigError(
                "; ".join(differ), where=str(self.model), hint=hint, id="E-CONFIG-RUN"
            )

    def begin(self, inputs: Inputs) -> None:
        """The data can be read: throw the old run away if that was asked for.

        Raises
        ------
        ConfigError
            The run would go on inside a pass with other data or other lanes.
        """
        if self._overwrite:
            self._clear()
            if self.remote:
                self.remote.clear()
        self._end_line()
        manifest = self.resume
        if manifest is None or manifest.plan == plan_digest(self.job, inputs):
            return
        if not manifest.border or manifest.pass_ + 1 >= self.job.train.passes:
            raise ConfigError(
                f"the run stopped at step {manifest.step} of pass {manifest.pass_} with other "
                "data, batch_rows, lanes, chunk_batches, shuffle or seed",
                where=str(self.path),
                hint="go on with the same ones, or use --overwrite",
                id="E-CONFIG-RUN",
            )

    def manifest(
        self, schema: Schema, plan: str, number: int, pass_: int, step: int, border: bool
    ) -> Manifest:
        """A manifest for this run's model, its files still to be filled in."""
        return manifest_of(self.job, schema, plan, (number, pass_, step), border)

    def _end_line(self) -> None:
        """A line of figures that a crash broke off must not spoil the next one."""
        path = self.path / "metrics.jsonl"
        if path.exists() and path.read_bytes()[-1:] not in (b"", b"\n"):
            with open(path, "a", encoding="utf-8") as file:
                file.write("\n")

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"ts": round(time.time(), 3), **line}) + "\n")

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``: the run is finished."""
        write_json(self.path / "summary.json", summary)


def manifest_of(
    job: JobConfig, schema: Schema, plan: str, position: tuple[int, int, int], border: bool
) -> Manifest:
    """A manifest without files; ``position`` is checkpoint, pass and step."""
    text = job.data
    return Manifest(
        checkpoint=position[0],
        pass_=position[1],
        step=position[2],
        border=border,
        model=job.model_settings(),
        plan=plan,
        tables=[],
        job=job.dump_yaml(),
        data={
            "schema": schema.to_dict(),
            "text": {
                "label": text.label,
                "numeric": list(text.numeric),
                "ignore": list(text.ignore),
                "id": text.id,
                "missing": list(text.missing),
                "columns": list(text.columns),
                "zero_based": list(text.zero_based),
            },
        },
        files=(),
        model_digest="",
    )


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a model, those of its parts as ``optimizers.w``."""
    flat = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    for key, parts in settings.items():
        if isinstance(parts, dict):
            flat |= {f"{key}.{part}": value for part, value in parts.items()}
    return flat


def _as_before(job: JobConfig, manifest: Manifest) -> JobConfig:
    """The job with the minibatches that the run began with, unless it states others.

    In async and ssp their default follows from the number of workers, which may change.
    """
    if job.origins["train.batch_rows"] != "default":
        return job
    began = yaml.safe_load(manifest.job)["train"]["batch_rows"]
    train = job.train.model_copy(update={"batch_rows": int(began)})
    return job.model_copy(update={"train": train})


def plan_digest(job: JobConfig, inputs: Inputs) -> str:
    """Of the data and the settings that fix the lanes."""
    return digest({"plan": job.plan_settings(), "data": inputs.manifest.digest})


def config_digest(job: JobConfig) -> str:
    """Of what all nodes of a job must agree on; not of addresses, counts, limits or paths."""
    optimizers = {
        part: job.optimizer_for(part).model_dump(mode="json") for part in ("w", "v", "intercept")
    }
    return digest(
        {
            "model": job.model_settings(),
            "plan": job.plan_settings(),
            "passes": job.train.passes,
            "optimizers": optimizers,
            "train": {name: getattr(job.train, name) for name in SHARED},
        }
    )
