"""From raw tables to feature shards: the two stages of ``ctrps extract``.

The sample stage joins tables to text (``ctrps.data.samples``), the features stage makes one shard
of each part of that text (``ctrps.data.parts``), so the result depends neither on the number of
processes nor on their order. Each stage fills a folder under another name (``ctrps.data.making``):
an interrupted stage leaves nothing under its final name.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ctrps.config import JobConfig
from ctrps.data import fit
from ctrps.data.badrows import BadRows, read_aside
from ctrps.data.counts import merged
from ctrps.data.features import load_spec
from ctrps.data.joinfile import JoinPlan, load_plan
from ctrps.data.making import Share, claim, making, publish, read_json, write_json
from ctrps.data.parts import (
    FeatureSettings,
    Part,
    PartDone,
    count_part,
    fit_part,
    peak_bytes,
    write_part,
)
from ctrps.data.program import Extractor
from ctrps.data.samples import KINDS, Progress, make_samples
from ctrps.data.shards import Shard
from ctrps.data.tables import find_table
from ctrps.errors import ConfigError, DataError

STAGES = ("sample", "features")
SUMMARY = "summary.json"
KNOWN = "known.npy"
FEATURES = "features.ini"

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
    *,
    resume: bool = False,
    part: str | None = None,
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
        Processes of the features stage, and threads of the other; default: one per core, as far
        as there is work for them.
    resume
        Take up what a run that was cut off, or runs of parts, have left.
    part
        ``I/N``: do one of N parts of the work, in a folder that all share. The run that finds
        the other parts done puts them together.

    Returns
    -------
    dict
        JSON-like: rows, rejected, wall_s, cpu_s, peak_rss_mb, stages, outputs and missing, the
        parts that are not done yet.

    Raises
    ------
    ConfigError
        A setting is missing or a file of settings is wrong, or the result is there already.
    DataError
        The tables or the samples cannot be used.
    """
    if stage not in (None, *STAGES):
        raise ConfigError(f"no stage {stage!r}", hint=f"stages are {' and '.join(STAGES)}")
    if overwrite and (resume or part):
        what = "--overwrite begins anew, --resume and --part go on with what is there"
        raise ConfigError(what, hint="give one of them")
    how = _How(overwrite, resume, Share.parse(part) if part else Share(), progress, processes)
    run = _Extraction(job, how)
    start = time.monotonic()
    stages: dict[str, Found] = {}
    if stage != "sample":
        run.check_features()
    if stage != "features":
        stages["sample"] = run.sample(alone=stage == "sample", fits=stage is None)
    missing = stages.get("sample", {}).get("missing", [])
    if stage != "sample" and not missing:
        stages["features"] = run.features(alone=stage == "features")
        missing = stages["features"]["missing"]
    return {
        "rows": list(stages.values())[-1]["rows"],
        "rejected": sum(found["rejected"] for found in stages.values()),
        "wall_s": round(time.monotonic() - start, 3),
        "cpu_s": round(sum(found["cpu_s"] for found in stages.values()), 3),
        "peak_rss_mb": max(found["peak_rss_mb"] for found in stages.values()),
        "stages": stages,
        "outputs": run.outputs(stage),
        "missing": missing,
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
        names=job.features.names,
    )


class _How(NamedTuple):
    """How a run goes about it: see ``extract``."""

    overwrite: bool
    resume: bool
    share: Share
    progress: Progress | None
    processes: int | None

    @property
    def keep(self) -> bool:
        """Whether it goes on with what is there."""
        return self.resume or self.share.of > 1


class _Extraction:
    """One run: where everything is, and the stages."""

    def __init__(self, job: JobConfig, how: _How):
        self._job, self._how = job, how
        self._out = Path(job.output.dir)
        self._samples = self._out / "samples"
        self._data = self._out / "data"

    def check_features(self) -> None:
        """Tell what is wrong with the features stage before the other has run for an hour."""
        load_spec(feature_settings(self._job).spec)
        if not self._how.keep:
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
        if alone and not self._how.keep:
            self._refuse_finished(self._samples)
        summary = read_json(self._samples / SUMMARY)
        if not self._how.overwrite and summary.get("made_of") == made_of:
            return {**summary["stage"], "cpu_s": 0.0, "wall_s": 0.0, "reused": True}
        clock = _Clock()
        share = self._how.share
        # Every part reads all rows; one of them sets the bad ones aside.
        aside = None if share.number else self._aside("sample")
        bad = BadRows(job.sample.max_bad, aside, setting="sample.max_bad")
        with making(self._samples, made_of, self._how.keep) as folder:
            counts = make_samples(
                tables,
                plan,
                folder,
                bad,
                shuffle=job.features.shuffle,
                seed=job.features.seed,
                progress=self._how.progress,
                memory_bytes=job.sample.memory_mb << 20,
                threads=self._how.processes or os.cpu_count() or 1,
                share=share,
                again=self._how.resume,
            )
            found = {"rows": counts.train + counts.test, **asdict(counts), **clock.found([])}
            if not counts.missing:
                shutil.rmtree(folder / "history", ignore_errors=True)
                write_json(folder / SUMMARY, {"made_of": made_of, "stage": found})
                publish(folder, self._samples)
        return found

    def features(self, *, alone: bool) -> Found:
        """Make a shard of every part of the samples; of those of this run's share, if ``alone``."""
        settings = feature_settings(self._job)
        clock = _Clock()
        done: list[PartDone] = []
        made_of = _shards_made_of(settings, self._samples)
        if self._data.exists() and self._how.keep:
            summary = read_json(self._data / SUMMARY)
            if summary.get("made_of") == made_of:
                return {**summary["stage"], "cpu_s": 0.0, "wall_s": 0.0, "reused": True}
            self._refuse_finished(self._data)
        with making(self._data, made_of, self._how.keep) as folder:
            parts = self._parts(folder)
            share = self._how.share if alone else Share()
            mine = [part for i, part in enumerate(parts) if share.has(i)]
            mine = [part for part in mine if not part.shard.exists()]
            with self._workers(mine) as each:
                training = [part for part in parts if part.training]
                settings, seen = _fitted(settings, each, training, folder / FEATURES)
                done += seen
                if settings.count_above:
                    counted = _counted(settings, each, training, folder / KNOWN)
                    mine = [replace(part, known=folder / KNOWN) for part in mine]
                    done += [replace(one, read=0, rows=0, counts=None) for one in counted]
                for one in each(partial(write_part, settings), mine):
                    done.append(one)
                    if self._how.progress:
                        self._how.progress("features", sum(part.rows for part in done))
            missing = [part.sample.stem for part in parts if not part.shard.exists()]
            if missing:
                rows = sum(one.rows for one in done)
                return {"rows": rows, "rejected": 0, "missing": missing, **clock.found(done)}
            bad = self._rejected(settings, parts)
            (folder / KNOWN).unlink(missing_ok=True)
            rows = sum(Shard(part.shard).rows for part in parts)
            bad.finish(rows + bad.count)
            found = {"rows": rows, "rejected": bad.count, "missing": [], **clock.found(done)}
            if self._how.share.of == 1 or claim(folder, self._how.resume):
                write_json(folder / SUMMARY, {"made_of": made_of, "stage": found})
                publish(folder, self._data)
        return found

    def _rejected(self, settings: FeatureSettings, parts: Sequence[Part]) -> BadRows:
        bad = BadRows(settings.max_bad, setting="sample.max_bad")
        for part in parts:
            if part.aside.exists():
                bad.include(read_aside(part.aside))
        return bad

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
        processes = min(self._how.processes or max(most, 1), len(parts))
        if processes <= 1:
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
        if folder.exists() and not self._how.overwrite:
            hint = "give --overwrite to replace it, or another output.dir"
            raise ConfigError("it is there already", where=str(folder), hint=hint)

    def _aside(self, name: str) -> Path:
        """The file that takes bad rows; what a run has left that this one does not take up goes."""
        path = self._out / "rejected" / f"{name}.tsv"
        if not self._how.keep:
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


def _fitted(
    settings: FeatureSettings, each: Each, training: Sequence[Part], path: Path
) -> tuple[FeatureSettings, list[PartDone]]:
    """Write the features file with all that training rows must fill in, and use that one."""
    done: list[PartDone] = []
    if not path.exists():
        spec = load_spec(settings.spec)
        done = list(each(partial(fit_part, settings), training)) if spec.fits else []
        text = fit.fitted(spec, fit.merged(one.numbers for one in done))
        new = path.with_name(f"tmp-{os.getpid()}-{path.name}")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    # What was read here will be read again as rows.
    return replace(settings, fitted=path), [replace(one, read=0, numbers=()) for one in done]


def _counted(
    settings: FeatureSettings, each: Each, training: Sequence[Part], path: Path
) -> list[PartDone]:
    """Write the keys to keep, unless they are known; every part of the work needs all."""
    if path.exists():
        return []
    done = list(each(partial(count_part, settings), training))
    new = path.with_name(f"tmp-{os.getpid()}-{path.name}")
    np.save(new, _frequent(done, settings.count_above), allow_pickle=False)
    new.replace(path)
    return done


def _frequent(done: Sequence[PartDone], above: int) -> np.ndarray:
    """Keys that occur more often than ``above`` in all parts together."""
    keys, counts = merged([one.counts for one in done if one.counts is not None])
    return keys[counts > above]


def _given(path: Path | None, key: str) -> Path:
    if path is None:
        raise ConfigError(f"{key} is not set", hint="extract needs it; see conf/ for examples")
    return Path(path)


def _made_of(job: JobConfig, plan: JoinPlan, tables: Path) -> Found:
    """All that samples follow from; equal for equal samples."""
    names = [plan.impressions.table, *(join.table for join in plan.joins)]
    names += [events.table for events in plan.events.values()]
    files = [find_table(tables, name) for name in dict.fromkeys(names)]
    return {
        "plan": plan.model_dump(mode="json"),
        "files": [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in files],
        "shuffle": job.features.shuffle,
        "seed": job.features.seed,
        "max_bad": job.sample.max_bad,
    }


def _shards_made_of(settings: FeatureSettings, samples: Path) -> Found:
    """All that shards follow from."""
    return {
        **{name: str(value) for name, value in asdict(settings).items()},
        "spec_digest": hashlib.sha256(load_spec(settings.spec).text.encode()).hexdigest(),
        "samples": [[path.name, path.stat().st_size] for path in sorted(samples.glob("*.tsv"))],
    }
