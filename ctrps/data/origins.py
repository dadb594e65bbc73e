"""All that samples and shards follow from: equal where they are equal, to the byte."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ctrps.config import JobConfig
from ctrps.data.custom import function_digests
from ctrps.data.features import load_spec
from ctrps.data.joinfile import JoinPlan
from ctrps.data.parts import FeatureSettings
from ctrps.data.tables import find_table


def samples_made_of(job: JobConfig, plan: JoinPlan, tables: Path) -> dict[str, Any]:
    """What samples follow from; tables count as the same while size and time are."""
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


def shards_made_of(settings: FeatureSettings, samples: object) -> dict[str, Any]:
    """What shards follow from, but for files that functions of the user read or import.

    ``samples`` is what the samples follow from.
    """
    spec = load_spec(settings.spec)
    return {
        **{name: str(value) for name, value in asdict(settings).items()},
        "spec_digest": hashlib.sha256(spec.text.encode()).hexdigest(),
        "functions": function_digests(spec),
        "samples": samples,
    }
