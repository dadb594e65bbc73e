"""From raw tables to feature shards: the two stages of ``ctrps extract``.

The sample stage joins tables to text (``ctrps.data.join``), the features stage makes one shard of
each part of that text (``ctrps.data.parts``), so the result depends neither on the number of
processes nor on their order. Each stage fills a folder under another name and renames it when all
is there: an interrupted stage leaves nothing under its final name.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.config import JobConfig
from ctrps.data.badrows import BadRows, read_aside
from ctrps.data.counts import merged
from ctrps.data.features import load_spec
from ctrps.data.join import KINDS, Progress, make_samples
from ctrps.data.joinfile import JoinPlan, load_plan
from ctrps.data.parts import FeatureSettings, Part, PartDone, count_part, peak_bytes, write_part
from ctrps.data.program import Extractor
from ctrps.data.tables import find_table
from ctrps.errors import ConfigError, DataError

STAGES = ("sample", "features")
SUMMARY = "summary.json"
KNOWN = "known.npy"

MIN_BYTES_PER_PROCESS = 32 << 20
"""Sample text that is worth a process, which takes a second or two to start."""

Found = dict[str, Any]
Each = Callable[[Callable[[Part], PartDone], Sequence[Part]], Iterator[PartDone]]


def extract(
    job: JobConfig,
    stage: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    processes: int | None = None,
) -> Found:
    """Make samples of raw tables and shards of samples, as the job says.

    Writes ``samples/``, ``data/`` and, for bad rows that are allowed, ``rejected/`` in
    ``output.dir``.

    Parameters
    ----------
    job
        Its sections sample, features and output are read.
    stage
        ``"sample"`` or ``"features"`` for one half; the latter takes the samples that are there.
    overwrite
        Replace what an earlier run has finished.
    progress
        Called with the stage and the rows done so far.
    processes
        Processes of the features stage; default: one per core, as far as there is work for them.

    Returns
    -------
    dict
        JSON-like: rows, rejected, wall_s, cpu_s, peak_rss_mb, stages and outputs.

    Raises
    ------
    ConfigError
        A setting is missing or a file of settings is wrong, or the result is there already.
    DataError
        The tables or the samples cannot be used.
    """
    if stage not in (None, *STAGES):
        raise ConfigError(f"no stage {stage!r}", hint=f"stages are {' and '.join(STAGES)}")
    run = _Extraction(job, overwrite, progress, processes)
    start = time.monotonic()
    stages: dict[str, Found] = {}
    if stage != "sample":
        run.check_features()
    if stage != "features":
        stages["sample"] = run.sample(alone=stage == "sample", fits=stage is None)
    if stage != "sample":
        stages["features"] = run.features()
    return {
        "rows": list(stages.values())[-1]["rows"],
        "rejected": sum(found["rejected"] for found in stages.values()),
        "wall_s": round(time.monotonic() - start, 3),
        "cpu_s": round(sum(found["cpu_s"] for found in stages.values()), 3),
        "peak_rss_mb": max(found["peak_rss_mb"] for found in stages.values()),
        "stages": stages,
        "outputs": run.outputs(stage),
    }


def feature_settings(job: JobConfig) -> FeatureSettings:
    """The settings of the features stage in a job."""
    return FeatureSettings(
        spec=_given(job.features.spec, "features.spec"),
        count_above=job.features.count_above,
        block_rows=job.features.block_rows,
        shuffle=job.features.shuffle,
        seed=job.features.seed,
        drop_missing=job.features.missing == "drop",
        max_bad=job.sample.max_bad,
    )


class _Extraction:
    """One run: where everything is, and the stages."""

    def __init__(
        self, job: JobConfig, overwrite: bool, progress: Progress | None, processes: int | None
    ):
        self._job = job
        self._overwrite = overwrite
        self._progress = progress
        self._processes = processes
        self._out = Path(job.output.dir)
        self._samples = self._out / "samples"
        self._data = self._out / "data"

    def check_features(self) -> None:
        """Tell what is wrong with the features stage before the other has run for an hour."""
        load_spec(feature_settings(self._job).spec)
        self._refuse_finished(self._data)

    def outputs(self, stage: str | None) -> dict[str, list[str]]:
        folder, ending = (self._samples, "tsv") if stage == "sample" else (self._data, "shard")
        return {kind: [str(p) for p in sorted(folder.glob(f"{kind}-*.{ending}"))] for kind in KINDS}

    def sample(self, *, alone: bool, fits: bool) -> Found:
        """Make the samples, unless a run that ended after this stage has left just these.

        Those of other settings are replaced: they are worth an answer only when asked for alone.
        """
        job = self._job
        path = _given(job.sample.join, "sample.join")
        plan = load_plan(path)
        if fits and plan.columns:
            names = [name.rpartition(".")[2] for name in plan.columns]
            Extractor(load_spec(feature_settings(job).spec), names, str(path))
        tables = _given(job.sample.dir, "sample.dir")
        made_of = _made_of(job, plan, tables)
        if alone:
            self._refuse_finished(self._samples)
        summary = _read_summary(self._samples)
        if not alone and not self._overwrite and summary.get("made_of") == made_of:
            return {**summary["stage"], "cpu_s": 0.0, "wall_s": 0.0, "reused": True}
        clock = _Clock()
        bad = BadRows(job.sample.max_bad, self._aside("sample"), setting="sample.max_bad")
        with _whole(self._samples) as folder:
            shuffle, seed = job.features.shuffle, job.features.seed
            counts = make_samples(
                tables, plan, folder, bad, shuffle=shuffle, seed=seed, progress=self._progress
            )
            found = {"rows": counts.train + counts.test, **asdict(counts), **clock.found([])}
            summary = {"made_of": made_of, "stage": found}
            (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        return found

    def features(self) -> Found:
        """Make a shard of every part of the samples."""
        settings = feature_settings(self._job)
        clock = _Clock()
        done: list[PartDone] = []
        with _whole(self._data) as folder:
            parts = self._parts(folder)
            with self._workers(parts) as each:
                if settings.count_above:
                    training = [part for part in parts if part.training]
                    counted = list(each(partial(count_part, settings), training))
                    known = folder / KNOWN
                    np.save(known, _frequent(counted, settings.count_above), allow_pickle=False)
                    parts = [replace(part, known=known) for part in parts]
                    done += [replace(one, read=0, rows=0, counts=None) for one in counted]
                for one in each(partial(write_part, settings), parts):
                    done.append(one)
                    if self._progress:
                        self._progress("features", sum(part.rows for part in done))
            (folder / KNOWN).unlink(missing_ok=True)
            bad = BadRows(settings.max_bad, setting="sample.max_bad")
            for part in parts:
                if part.aside.exists():
                    bad.include(read_aside(part.aside))
            bad.finish(sum(one.read for one in done))
        rows = sum(one.rows for one in done)
        return {"rows": rows, "rejected": bad.count, **clock.found(done)}

    def _parts(self, folder: Path) -> list[Part]:
        found = [
            Part(path, folder / f"{path.stem}.shard", self._aside(path.stem), kind == "train")
            for kind in KINDS
            for path in sorted(self._samples.glob(f"{kind}-*.tsv"))
        ]
        if not found:
            hint = "run the stage sample first"
            raise DataError("there are no samples", where=str(self._samples), hint=hint)
        return found

    @contextlib.contextmanager
    def _workers(self, parts: Sequence[Part]) -> Iterator[Each]:
        """A ``map`` over parts, in several processes where that saves time."""
        size = sum(part.sample.stat().st_size for part in parts)
        most = min(os.cpu_count() or 1, size // MIN_BYTES_PER_PROCESS)
        processes = min(self._processes or max(most, 1), len(parts))
        if processes == 1:
            yield map
            return
        # Not fork: a process that has threads, as numerical libraries do, may hang in it.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context) as pool:
            try:
                yield pool.map
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _refuse_finished(self, folder: Path) -> None:
        if folder.exists() and not self._overwrite:
            hint = "give --overwrite to replace it, or another output.dir"
            raise ConfigError("it is there already", where=str(folder), hint=hint)

    def _aside(self, name: str) -> Path:
        """The file that takes bad rows; what an earlier run has left there is removed."""
        path = self._out / "rejected" / f"{name}.tsv"
        path.unlink(missing_ok=True)
        return path


class _Clock:
    """Times a stage, and adds up what its processes have used."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def found(self, done: Sequence[PartDone]) -> Found:
        others = [one for one in done if one.process != os.getpid()]
        peaks: dict[int, int] = {os.getpid(): peak_bytes()}
        for one in others:
            peaks[one.process] = max(peaks.get(one.process, 0), one.peak_bytes)
        cpu_s = time.process_time() - self._cpu + sum(one.cpu_s for one in others)
        return {
            "cpu_s": round(cpu_s, 3),
            "wall_s": round(time.monotonic() - self._wall, 3),
            "peak_rss_mb": round(sum(peaks.values()) / 2**20, 1),
            "processes": len(peaks),
        }


def _frequent(done: Sequence[PartDone], above: int) -> np.ndarray:
    """Keys that occur more often than ``above`` in all parts together."""
    keys, counts = merged([one.counts for one in done if one.counts is not None])
    return keys[counts > above]


def _given(path: Path | None, key: str) -> Path:
    if path is None:
        raise ConfigError(f"{key} is not set", hint="extract needs it; see conf/ for examples")
    return Path(path)


@contextlib.contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A new folder that takes the name ``folder``, and the place of an old one, at the end."""
    making = folder.with_name(folder.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    try:
        yield making
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(making, folder)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _made_of(job: JobConfig, plan: JoinPlan, tables: Path) -> Found:
    """All that samples follow from; equal for equal samples."""
    names = [plan.impressions.table, *(join.table for join in plan.joins)]
    files = [find_table(tables, name) for name in names]
    return {
        "plan": plan.model_dump(mode="json"),
        "files": [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in files],
        "shuffle": job.features.shuffle,
        "seed": job.features.seed,
        "max_bad": job.sample.max_bad,
    }


def _read_summary(samples: Path) -> Found:
    try:
        found = json.loads((samples / SUMMARY).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
