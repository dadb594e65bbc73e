"""The features stage: shards of all parts, by however many threads, processes or machines.

What is done to one part is in ``ctrps.data.parts``; folders and summaries are the business of
``ctrps.data.extract``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ctrps.data import fit
from ctrps.data.drafts import RANGES, ranges
from ctrps.data.features import load_spec
from ctrps.data.making import read_json, write_json
from ctrps.data.parts import (
    FeatureSettings,
    Part,
    PartDone,
    decide_keys,
    draft_part,
    finish_part,
    fit_part,
    thread_bytes,
    write_part,
)
from ctrps.data.samples import Progress
from ctrps.data.workers import Each
from ctrps.errors import ConfigError

BASE_BYTES = 200 << 20
"""Memory of another process that makes features, before it reads any: libraries and kernels."""

KERNEL_BYTES = 48 << 20
"""Memory, about, of kernels that are still to be loaded into this one."""

TEXT_BYTES = 16 << 20
"""Text of samples that a thread holds, at least."""

MIN_BYTES_PER_PROCESS = 32 << 20
"""Sample text that is worth a process, which takes a second or two to start."""


def workers_for(settings: FeatureSettings, most: int, left: int, base: int = 0) -> tuple[int, int]:
    """How many may work at a time, and the bytes of text that each may hold.

    Parameters
    ----------
    settings
    most
        Of them.
    left
        Bytes of memory that they have together.
    base
        Bytes that each takes before it does anything.

    Raises
    ------
    ConfigError
        There is too little memory for one.
    """
    own = base + thread_bytes(settings)
    if left < own + TEXT_BYTES:
        what = f"too little: features need {(own + TEXT_BYTES) >> 20} MB"
        what += f", and {max(left, 0) >> 20} MB are left"
        raise ConfigError(what, where="sample.memory_mb", hint="allow more")
    workers = max(min(most, left // (own + TEXT_BYTES)), 1)
    return workers, left // workers - own


def fitted_to(
    settings: FeatureSettings, each: Each, training: Sequence[Part], path: Path
) -> tuple[FeatureSettings, list[PartDone]]:
    """Write the features file with all that training rows must fill in, and use that one."""
    done: list[PartDone] = []
    if not path.exists():
        spec = load_spec(settings.spec)
        done = list(each(partial(fit_part, settings), training)) if spec.fits else []
        text = fit.fitted(
            spec,
            fit.merged(one.numbers for one in done),
            count_above=settings.count_above,
            drop_missing=settings.drop_missing,
        )
        new = path.with_name(f"tmp-{os.getpid()}-{path.name}")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    # What was read here will be read again as rows.
    return replace(settings, fitted=path), [replace(one, numbers=()) for one in done]


class ShardWork:
    """Makes shards.

    Parameters
    ----------
    settings
        Fitted to training rows.
    each, each_sample
        A ``map``, and one for functions that read samples.
    shared
        Others may work in the same folder.
    progress
        Is told of each part that is done.
    """

    def __init__(
        self,
        settings: FeatureSettings,
        each: Each,
        each_sample: Each,
        shared: bool,
        progress: Progress | None,
    ):
        self._settings, self._each, self._each_sample = settings, each, each_sample
        self._shared, self._progress = shared, progress

    def shards(self, parts: Sequence[Part], mine: Sequence[Part]) -> Iterator[PartDone]:
        """Make the shards of ``mine``, which are among all ``parts``."""
        if self._settings.count_above and mine:
            yield from self._drafted(parts, mine)
            return
        work = self._each_sample(partial(write_part, self._settings), mine)
        yield from self._told("features", work, len(mine))

    def _drafted(self, parts: Sequence[Part], mine: Sequence[Part]) -> Iterator[PartDone]:
        """Make shards without keys that are too rare; what is common to all is made but once."""
        folder, drafts = parts[0].shard.parent, [part.draft for part in parts]
        of = read_json(folder / RANGES).get("of", 0)
        if not of:
            # Others that run at the same time begin with theirs.
            order = [*mine, *(part for part in parts if part not in mine)]
            lacking = [part for part in order if not part.draft.exists()]
            work = self._each_sample(partial(draft_part, self._settings), lacking)
            for one in self._told("features", work, len(lacking)):
                yield replace(one, rows=0)
            of = ranges(drafts)
            training = [part.training for part in parts]
            count = partial(decide_keys, drafts, training, self._settings.count_above, folder, of)
            yield from self._each(count, range(of))
            write_json(folder / RANGES, {"of": of})
        work = self._each(partial(finish_part, self._settings, drafts, of, self._shared), mine)
        yield from self._told("shards", work, len(mine))

    def _told(self, stage: str, work: Iterator[PartDone], parts: int) -> Iterator[PartDone]:
        """Tell of each part that is done."""
        rows = 0
        for number, one in enumerate(work, 1):
            rows += one.rows
            if self._progress:
                self._progress(stage, rows, number / parts)
            yield one
