"""What a job will find, looked at before it runs: files, columns, first rows, sizes, addresses."""

import errno
import glob
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from ctrps import checkpoint
from ctrps.config import JobConfig, parse_address
from ctrps.data.convert import expand
from ctrps.data.preview import FilesPreview, SamplePreview, preview_files, preview_sample
from ctrps.errors import ClusterError, ConfigError
from ctrps.ps.plan import DataFile, Plan
from ctrps.runtime.estimate import estimate
from ctrps.runtime.facts import read_json
from ctrps.runtime.inputs import extracted, plan_settings, text_settings
from ctrps.runtime.security import Guard, resolve

FIRST_ROWS = 3


def check(job: JobConfig, guard: Guard) -> dict[str, Any]:
    """Look at all that a job reads, without running it.

    Returns
    -------
    dict
        JSON-like: ``name``; ``tables`` and ``sample`` where the job has raw tables; for ``train``
        and ``test`` files, bytes, rows, whether that is ``exact``, and first rows, or None where
        `extract` has not made them yet; ``steps`` of a pass and ``step_rows``, the rows of one;
        ``size``, of ``estimate``, and ``machine``, what is free here; ``output``, its folder and
        what that holds; ``addresses``, and ``warnings`` about them.

    Raises
    ------
    ConfigError, DataError
        For what cannot be read, a column that is not there, and a job without any input.
    ClusterError
        An address of this machine is in use.
    """
    job.check_trained()
    found: dict[str, Any] = {"name": job.name, "tables": [], "sample": None}
    sample: SamplePreview | None = None
    if job.sample.dir is not None and job.sample.join is not None:
        sample = preview_sample(job)
        found["tables"] = [table.to_dict() for table in sample.tables]
        found["sample"] = {
            name: getattr(sample, name) for name in ("columns", "windows", "slots", "dense")
        }
    how = text_settings(job)
    train, test = (_files(job, part) for part in ("train", "test"))
    if not train and not sample:
        hint = "set data.train, or sample.dir and sample.join"
        raise ConfigError("the job has nothing to train on", hint=hint, id="E-CONFIG-MISSING")
    training = preview_files(train, how, FIRST_ROWS) if train else None
    schema = training.schema if training else None
    testing = preview_files(test, how, FIRST_ROWS, schema) if test else None
    for part, preview in (("train", training), ("test", testing)):
        found[part] = preview and _figures(preview)
    found |= _steps(job, training, sample)
    size = estimate(job, train, how, training.rows) if training else None
    found["size"] = size and size.to_dict()
    found["output"] = _output(job)
    found["machine"] = _machine(job.output.dir)
    found["warnings"] = [*guard.check(job.cluster), *_short(found)]
    found["addresses"] = [_address(job, name) for name in ("scheduler", "server_bind")]
    return found


def _files(job: JobConfig, part: str) -> list[Path]:
    """Files of a part; none if they are those that ``extract`` has not made yet."""
    patterns: Sequence[Path] = getattr(job.data, part)
    default = extracted(job, part)
    if tuple(patterns) == (default,) and not glob.glob(str(default)):
        return []
    return expand(patterns)


def _figures(files: FilesPreview) -> dict[str, Any]:
    names = ("files", "bytes", "rows", "exact", "first")
    return {name: getattr(files, name) for name in names}


def _steps(
    job: JobConfig, train: FilesPreview | None, sample: SamplePreview | None
) -> dict[str, int]:
    """Steps of a pass over the training files, or over all impressions where there are none."""
    blocks = train.block_rows if train else []
    if not train and sample:
        size, rows = job.features.block_rows, sample.tables[0].rows
        blocks = [(size,) * (rows // size) + ((rows % size,) if rows % size else ())]
    settings = plan_settings(job)
    files = tuple(DataFile("", "", rows) for rows in blocks if rows)
    lanes = settings.lanes if settings.mode == "sync" else 1
    return {
        "steps": Plan(files, settings, 0).steps if files else 0,
        "step_rows": settings.batch_rows * lanes,
    }


def _output(job: JobConfig) -> dict[str, Any]:
    """The folder of the run, and whether a run in it would be new."""
    folder = job.output.dir
    model, summary = folder / "model", read_json(folder / "summary.json")
    state = "new"
    if checkpoint.exists(model):
        manifest = checkpoint.read_manifest(model)
        state = f"unfinished, at step {manifest.step} of pass {manifest.pass_ + 1}: it will go on"
        if summary and summary.get("passes", 0) >= job.train.passes:
            state = f"finished, {summary['passes']} pass(es): needs --overwrite or another folder"
    return {"dir": str(folder), "state": state}


def _machine(folder: Path) -> dict[str, int]:
    """Memory, and disk where the run will be, that are free on this machine."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return {
        "memory_bytes": psutil.virtual_memory().available,
        "disk_bytes": shutil.disk_usage(there).free,
    }


def _short(found: dict[str, Any]) -> list[str]:
    """Warnings where the job will take more than there is."""
    size, machine = found["size"], found["machine"]
    if size is None:
        return []
    short = []
    for name, need in (("memory", size["model_bytes"]), ("disk", 3 * size["checkpoint_bytes"])):
        if need > machine[f"{name}_bytes"]:
            free = machine[f"{name}_bytes"] / 1e9
            short.append(f"about {need / 1e9:.1f} GB of {name} for the model, {free:.1f} GB free")
    return short


def _address(job: JobConfig, name: str) -> dict[str, Any]:
    """An address that a process of the job listens on, and whether it can here."""
    address = getattr(job.cluster, name)
    host, port = parse_address(address)
    literal = resolve(host).strip("[]")
    state = "any free port" if port == 0 else "free"
    family = socket.AF_INET6 if ":" in literal else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("" if literal == "*" else literal, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                state = "not of this machine"
            else:
                raise ClusterError(
                    f"cannot listen there: {(error.strerror or str(error)).lower()}",
                    where=address,
                    hint=f"set cluster.{name} to another address, or to port 0 for a free one",
                    id="E-CLUSTER-ADDRESS",
                ) from None
    return {"setting": f"cluster.{name}", "address": address, "state": state}
