"""From raw tables to feature shards: the two stages of ``ctrps extract``.

The sample stage joins tables to text (``ctrps.data.samples``), the features stage makes one shard
of each part of that text (``ctrps.data.parts``), so the result depends neither on the number of
processes nor on their order. Text that is not to be kept is made in memory, part by part. Each
stage fills a folder under another name (``ctrps.data.making``): an interrupted stage leaves nothing
under its final name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ctrps.config import JobConfig
from ctrps.data.badrows import BadRows, read_aside
from ctrps.data.cluster import Cluster, connected, report, threads_here
from ctrps.data.drafts import remove_drafts
from ctrps.data.features import load_spec
from ctrps.data.joinfile import JoinPlan, load_plan
from ctrps.data.making import Share, check_room, claim, making, publish, read_json, write_json
from ctrps.data.memory import Memory
from ctrps.data.origins import samples_made_of, shards_made_of
from ctrps.data.parts import FeatureSettings, Part, disk_row_bytes
from ctrps.data.program import Extractor
from ctrps.data.samples import KINDS, JoinCounts, PartLines, Progress, join_tables
from ctrps.data.shards import Shard
from ctrps.data.shardwork import (
    BASE_BYTES,
    KERNEL_BYTES,
    MIN_BYTES_PER_PROCESS,
    ShardWork,
    fitted_to,
    workers_for,
)
from ctrps.data.workers import Clock, Each, each_of
from ctrps.errors import ConfigError, DataError

STAGES = ("sample", "features")
SUMMARY = "summary.json"
FEATURES = "features.ini"
DEALT = "dealt.json"

Found = dict[str, Any]


def extract(
    job: JobConfig,
    stage: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    processes: int | None = None,
    *,
    resume: bool = False,
    part: str | None = None,
    dask: str | None = None,
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
        Threads, or processes where features need Python operators; default: one per core, as far
        as there is work for them.
    resume
        Take up what a run that was cut off, or runs of parts, have left.
    part
        ``I/N``: do one of N parts of the work, in a folder that all share. The run that finds
        the other parts done puts them together.
    dask
        Address of the scheduler of a Dask cluster, whose workers do the work: see
        ``ctrps.data.cluster``.

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
    ClusterError
        The Dask cluster cannot be used.
    """
    if stage not in (None, *STAGES):
        raise ConfigError(f"no stage {stage!r}", hint=f"stages are {' and '.join(STAGES)}")
    if overwrite and (resume or part):
        what = "--overwrite begins anew, --resume and --part go on with what is there"
        raise ConfigError(what, hint="give one of them")
    if dask and (part or processes):
        raise ConfigError("--dask deals the work to all workers", hint="leave out --part")
    how = _How(overwrite, resume, Share.parse(part) if part else Share(), progress, processes)
    run = _Extraction(job, how)
    if stage != "sample":
        run.check_features()
    if not dask:
        return run.found(stage)
    with connected(dask, run.out, run.inputs(stage), progress) as cluster:
        run.cluster = cluster
        return run.found(stage)


def current_samples(job: JobConfig) -> Path | None:
    """The folder of samples, if they are just those that the job makes of its tables."""
    folder = Path(job.output.dir) / "samples"
    plan = load_plan(_given(job.sample.join, "sample.join"))
    made_of = samples_made_of(job, plan, _given(job.sample.dir, "sample.dir"))
    return folder if read_json(folder / SUMMARY).get("made_of") == made_of else None


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
    """One run: where everything is, and the stages.

    ``cluster`` does the work, if there is one.
    """

    def __init__(self, job: JobConfig, how: _How):
        self._job, self._how = job, how
        self.out = Path(job.output.dir)
        self._samples = self.out / "samples"
        self._data = self.out / "data"
        self.cluster: Cluster | None = None
        self._shard_row_bytes = 0.0

    def found(self, stage: str | None) -> Found:
        """Do a stage, or both; what ``extract`` returns."""
        start = time.monotonic()
        stages: dict[str, Found] = {}
        if stage != "features":
            stages = self.sample(alone=stage == "sample", both=stage is None)
        missing = stages.get("sample", {}).get("missing", [])
        if stage != "sample" and not missing:
            if "features" not in stages:
                stages["features"] = self.features(alone=stage == "features")
            missing = stages["features"]["missing"]
        return {
            "rows": list(stages.values())[-1]["rows"],
            "rejected": sum(found["rejected"] for found in stages.values()),
            "wall_s": round(time.monotonic() - start, 3),
            "cpu_s": round(sum(found["cpu_s"] for found in stages.values()), 3),
            "peak_rss_mb": max(found["peak_rss_mb"] for found in stages.values()),
            "stages": stages,
            "outputs": self.outputs(stage),
            "missing": missing,
        }

    def inputs(self, stage: str | None) -> list[Path]:
        """What a stage reads."""
        sample = [self._job.sample.join, self._job.sample.dir] if stage != "features" else []
        features = [self._job.features.spec] if stage != "sample" else []
        return [Path(path) for path in (*sample, *features) if path]

    def check_features(self) -> None:
        """Tell what is wrong with the features stage before the other has run for an hour."""
        load_spec(feature_settings(self._job).spec)
        if not self._how.keep:
            self._refuse_finished(self._data)

    def outputs(self, stage: str | None) -> dict[str, list[str]]:
        folder, ending = (self._samples, "tsv") if stage == "sample" else (self._data, "shard")
        return {kind: [str(p) for p in sorted(folder.glob(f"{kind}-*.{ending}"))] for kind in KINDS}

    def sample(self, *, alone: bool, both: bool) -> dict[str, Found]:
        """Make the samples, unless a run that ended after this stage has left just these.

        Those of other settings are replaced: they are worth an answer only when asked for alone.
        If both stages are wanted and samples are not to be kept, both are done.
        """
        job = self._job
        path = _given(job.sample.join, "sample.join")
        plan = load_plan(path)
        if both:
            self._shard_row_bytes = disk_row_bytes(feature_settings(job), self._shared)
        if both and plan.columns:
            names = [name.rpartition(".")[2] for name in plan.columns]
            Extractor(load_spec(feature_settings(job).spec), names, str(path))
        made_of = samples_made_of(job, plan, _given(job.sample.dir, "sample.dir"))
        if alone and not self._how.keep:
            self._refuse_finished(self._samples)
        summary = read_json(self._samples / SUMMARY)
        if not self._how.overwrite and summary.get("made_of") == made_of:
            return {"sample": _reused(summary["stage"])}
        # Without windows, samples are written while tables are read; on a cluster, for all to see.
        if both and not job.sample.keep and plan.windows and not self.cluster:
            return self._fused(plan, made_of)
        clock = Clock(self.cluster)
        with making(self._samples, made_of, self._how.keep) as folder:
            if self.cluster:
                counts = self._dealt(self.cluster, plan, folder)
            else:
                counts = self._joined(plan, folder)
            found = {"rows": counts.train + counts.test, **asdict(counts), **clock.found([])}
            if not counts.missing:
                shutil.rmtree(folder / "history", ignore_errors=True)
                write_json(folder / SUMMARY, {"made_of": made_of, "stage": found})
                publish(folder, self._samples)
        return {"sample": found}

    def _fused(self, plan: JoinPlan, made_of: Found) -> dict[str, Found]:
        """Both stages; a part of the samples is in memory while its features are made."""
        finished = read_json(self._data / SUMMARY)
        shards = shards_made_of(feature_settings(self._job), made_of)
        if self._how.keep and finished.get("made_of") == shards:
            return {"sample": _reused(finished["sample"]), "features": _reused(finished["stage"])}
        clock = Clock(None)
        with making(self._samples, made_of, self._how.keep) as folder:
            counts, lines = self._lines(plan, folder)
            found = {"rows": counts.train + counts.test, **asdict(counts), **clock.found([])}
            if lines is None:
                return {"sample": found}
            features = self._features(Share(), made_of, lines, {"sample": found})
            # Samples that are there are of other settings.
            for path in (folder, self._samples):
                shutil.rmtree(path, ignore_errors=True)
        return {"sample": found, "features": features}

    def _joined(self, plan: JoinPlan, folder: Path, step: str | None = None) -> JoinCounts:
        """Make samples, those of this run's share, or what a step of them makes."""
        counts, lines = self._lines(plan, folder, step)
        if lines:
            lines.write()
        return counts

    def _lines(
        self, plan: JoinPlan, folder: Path, step: str | None = None
    ) -> tuple[JoinCounts, PartLines | None]:
        """The same up to what is in the samples."""
        job, share = self._job, self._how.share
        # Every part reads all rows; one of them sets the bad ones aside.
        aside = None if share.number else self._aside("sample")
        return join_tables(
            _given(job.sample.dir, "sample.dir"),
            plan,
            folder,
            BadRows(job.sample.max_bad, aside, setting="sample.max_bad"),
            shuffle=job.features.shuffle,
            seed=job.features.seed,
            progress=self._how.progress,
            memory_bytes=job.sample.memory_mb << 20,
            threads=self._how.processes or os.cpu_count() or 1,
            share=share,
            again=self._how.resume,
            step=step,
            whole=job.sample.keep or step is not None,
            more_row_bytes=self._shard_row_bytes,
        )

    def _dealt(self, cluster: Cluster, plan: JoinPlan, folder: Path) -> JoinCounts:
        """Have a cluster make the samples, in as many shares as it has workers."""
        self._aside("sample")
        dealt = folder / "history" / DEALT
        # A run that is taken up goes on with its own shares.
        of = read_json(dealt).get("of") or (cluster.workers if plan.windows else 1)
        dealt.parent.mkdir(exist_ok=True)
        write_json(dealt, {"of": of})
        shares = Share(0, of).all()
        job = self._job.model_dump(mode="json")
        if plan.windows:
            list(cluster.map(partial(sample_step, cluster.run, job, "windows"), shares))
        step = "lines" if plan.windows else None
        found = list(cluster.map(partial(sample_step, cluster.run, job, step), shares))
        missing = {one for counts in found for one in counts.missing}
        return replace(found[0], missing=sorted(missing))

    def step(self, step: str | None) -> JoinCounts:
        """Do a step of what another run has begun."""
        path = _given(self._job.sample.join, "sample.join")
        plan = load_plan(path)
        made_of = samples_made_of(self._job, plan, _given(self._job.sample.dir, "sample.dir"))
        with making(self._samples, made_of, keep=True) as folder:
            return self._joined(plan, folder, step)

    def features(self, *, alone: bool) -> Found:
        """Make a shard of every part of the samples; of those of this run's share, if ``alone``."""
        samples = sorted(self._samples.glob("*.tsv"))
        sizes = [[path.name, path.stat().st_size] for path in samples]
        return self._features(self._how.share if alone else Share(), sizes)

    def _features(
        self,
        share: Share,
        samples: object,
        lines: PartLines | None = None,
        before: Found | None = None,
    ) -> Found:
        """Make the shards of a share.

        ``samples`` is what the samples follow from; ``lines`` gives them if they are no files, and
        ``before`` is what else the summary of the shards holds.
        """
        settings = feature_settings(self._job)
        clock = Clock(self.cluster)
        made_of = shards_made_of(settings, samples)
        if self._data.exists() and self._how.keep:
            summary = read_json(self._data / SUMMARY)
            if summary.get("made_of") == made_of:
                return _reused(summary["stage"])
            self._refuse_finished(self._data)
        with making(self._data, made_of, self._how.keep) as folder:
            parts = self._parts(folder, lines)
            mine = [part for i, part in enumerate(parts) if share.has(i)]
            mine = [part for part in mine if not part.shard.exists()]
            left = self._rows(before) * len(mine) / len(parts)
            check_room(folder, left * disk_row_bytes(settings, self._shared))
            with self._each(settings, len(parts), lines) as (each, each_sample, room):
                parts, mine = ([replace(one, room=room) for one in some] for some in (parts, mine))
                training = [part for part in parts if part.training]
                settings, done = fitted_to(settings, each_sample, training, folder / FEATURES)
                work = ShardWork(settings, each, each_sample, self._shared, self._how.progress)
                done += work.shards(parts, mine)
            missing = [part.sample.stem for part in parts if not part.shard.exists()]
            if missing:
                rows = sum(one.rows for one in done)
                return {"rows": rows, "rejected": 0, "missing": missing, **clock.found(done)}
            bad = self._rejected(settings, parts)
            rows = sum(Shard(part.shard).rows for part in parts)
            bad.finish(rows + bad.count)
            found = {"rows": rows, "rejected": bad.count, "missing": [], **clock.found(done)}
            if self._how.share.of == 1 or claim(folder, self._how.resume):
                write_json(folder / SUMMARY, {"made_of": made_of, "stage": found, **(before or {})})
                remove_drafts(folder)
                publish(folder, self._data)
        return found

    @property
    def _shared(self) -> bool:
        """Whether others may work in the same folder."""
        return self._how.share.of > 1 or self.cluster is not None

    def _rows(self, before: Found | None) -> int:
        """Rows of the samples."""
        stage = before["sample"] if before else read_json(self._samples / SUMMARY).get("stage", {})
        return int(stage.get("rows", 0))

    def _rejected(self, settings: FeatureSettings, parts: Sequence[Part]) -> BadRows:
        bad = BadRows(settings.max_bad, setting="sample.max_bad")
        for part in parts:
            if part.aside.exists():
                bad.include(read_aside(part.aside))
        return bad

    def _parts(self, folder: Path, lines: PartLines | None) -> list[Part]:
        names = lines.names if lines else [path.name for path in self._samples.glob("*.tsv")]
        samples = [self._samples / name for name in sorted(names)]
        found = [
            Part(path, folder / f"{path.stem}.shard", self._aside(path.stem), kind == "train")
            for kind in KINDS
            for path in samples
            if path.name.startswith(f"{kind}-")
        ]
        if not found:
            hint = "run the stage sample first"
            raise DataError(
                "there are no samples", where=str(self._samples), hint=hint, id="E-DATA-MISSING"
            )
        return found

    @contextlib.contextmanager
    def _each(
        self, settings: FeatureSettings, parts: int, lines: PartLines | None
    ) -> Iterator[tuple[Each, Each, int]]:
        """A ``map``, one for functions that read samples, and the text that each may hold."""
        limit = self._job.sample.memory_mb << 20
        if self.cluster:
            _, room = workers_for(settings, self.cluster.threads, limit - BASE_BYTES)
            yield self.cluster.map, self.cluster.map, room
            return
        most = min(self._how.processes or os.cpu_count() or 1, parts)
        if lines:
            with lines.each() as each, each_of(lines.workers(most), threads=True) as other:
                yield other, each, 0
            return
        threads = not load_spec(settings.spec).in_python
        if threads:
            workers, room = workers_for(settings, most, Memory(limit).left() - KERNEL_BYTES)
        else:
            if not self._how.processes:
                size = sum(path.stat().st_size for path in self._samples.glob("*.tsv"))
                most = max(min(most, size // MIN_BYTES_PER_PROCESS), 1)
            workers, room = workers_for(settings, most, limit, BASE_BYTES)
        with each_of(workers, threads) as each:
            yield each, each, room

    def _refuse_finished(self, folder: Path) -> None:
        if folder.exists() and not self._how.overwrite:
            hint = "give --overwrite to replace it, or another output.dir"
            raise ConfigError(
                "it is there already", where=str(folder), hint=hint, id="E-CONFIG-RUN"
            )

    def _aside(self, name: str) -> Path:
        """The file that takes bad rows; what a run has left that this one does not take up goes."""
        path = self.out / "rejected" / f"{name}.tsv"
        if not self._how.keep:
            path.unlink(missing_ok=True)
        return path


def sample_step(run: str, job: Found, step: str | None, share: Share) -> JoinCounts:
    """Do a step of a share of a run's samples, on a worker of its cluster."""
    how = _How(False, True, share, partial(report, run, str(share)), threads_here())
    return _Extraction(JobConfig.model_validate(job), how).step(step)


def _reused(stage: Found) -> Found:
    """What a stage that is not done again has found."""
    return {**stage, "cpu_s": 0.0, "wall_s": 0.0, "reused": True}


def _given(path: Path | None, key: str) -> Path:
    if path is None:
        raise ConfigError(
            f"{key} is not set",
            hint="extract needs it; see conf/ for examples",
            id="E-CONFIG-MISSING",
        )
    return Path(path)
