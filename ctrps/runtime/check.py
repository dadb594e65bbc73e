"""What a job will find, looked at before it runs: files, columns, first rows, steps of a pass."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctrps.config import JobConfig
from ctrps.data.convert import expand
from ctrps.data.preview import FilesPreview, SamplePreview, preview_files, preview_sample
from ctrps.errors import ConfigError
from ctrps.ps.plan import DataFile, Plan
from ctrps.runtime.inputs import extracted, plan_settings, text_settings

FIRST_ROWS = 3


def check(job: JobConfig) -> dict[str, Any]:
    """Look at all that a job reads, without running it.

    Returns
    -------
    dict
        JSON-like: ``name``; ``tables`` and ``sample`` where the job has raw tables; for ``train``
        and ``test`` files, bytes, rows, whether that is ``exact``, and first rows, or None where
        `extract` has not made them yet; ``steps`` of a pass and ``step_rows``, the rows of one.

    Raises
    ------
    ConfigError, DataError
        For what cannot be read, a column that is not there, and a job without any input.
    """
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
        raise ConfigError("the job has nothing to train on", hint=hint)
    training = preview_files(train, how, FIRST_ROWS) if train else None
    schema = training.schema if training else None
    testing = preview_files(test, how, FIRST_ROWS, schema) if test else None
    for part, preview in (("train", training), ("test", testing)):
        found[part] = preview and _figures(preview)
    return found | _steps(job, training, sample)


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
