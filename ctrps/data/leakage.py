"""Whether samples know nothing that happened later: some rows made again, the slow way.

Of impressions chosen at random, every column is computed by ``ctrps.data.bruteforce`` from the raw
tables, and compared with the samples. Then the sample stage makes each of these rows again from
tables in which everything that the row must not see is deleted: it must come out the same.
"""

from __future__ import annotations

import csv
import heapq
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctrps.config import JobConfig
from ctrps.data.badrows import BadRows
from ctrps.data.bruteforce import Row, SlowJoin, Source, bounds
from ctrps.data.deal import Places
from ctrps.data.extract import current_samples, extract
from ctrps.data.joinfile import IMPRESSIONS, load_plan
from ctrps.data.samples import make_samples
from ctrps.errors import ConfigError, DataError

PIECE_ROWS = 1 << 16
"""Rows of a table that are looked at together, and between two reports of progress."""

PROGRESS_ROWS = 50
"""Rows made again between two reports."""

Progress = Callable[[str, int, float], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """A column of a row that is not as it should be.

    Attributes
    ----------
    where
        File and line of the sample.
    row
        Number of the impression in its table, from 1, the header not counted.
    column
    expected
        By brute force; or, with ``deletion``, what the sample stage makes without later events.
    found
        In the samples.
    deletion
        Whether it was found by deleting what comes later.
    """

    where: str
    row: int
    column: str
    expected: str
    found: str
    deletion: bool


@dataclass(frozen=True, slots=True)
class Leakage:
    """What a check has found.

    Attributes
    ----------
    rows
        Rows checked, by brute force and by deletion.
    windows
        Windows checked in them.
    events
        Events that these windows may look back at.
    samples
        The samples checked; None where they were made for it.
    differences
    """

    rows: int
    windows: int
    events: int
    samples: str | None
    differences: list[Difference]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Chosen:
    """An impression that is checked: where it stands in its table and in the samples."""

    number: int
    time: int
    row: Row
    file: str
    line: int
    past: dict[str, list[tuple[int, int, Row]]] = field(default_factory=dict)


def check_leakage(
    job: JobConfig, rows: int = 100, seed: int = 1, progress: Progress | None = None
) -> Leakage:
    """Check some rows of a job's samples against brute force and deletion.

    Samples that ``extract`` has left are checked if they are of the job's present settings and
    tables; otherwise the sample stage is run for the check.

    Parameters
    ----------
    job
        Its sections sample, features and output are read.
    rows
        How many impressions to choose; all if there are no more.
    seed
        Of the choice.
    progress
        Called with the name of a table and its rows read so far, or "deletion" and rows done.

    Raises
    ------
    ConfigError, DataError
        As ``extract``.
    """
    if job.sample.dir is None or job.sample.join is None:
        key = "sample.dir" if job.sample.dir is None else "sample.join"
        raise ConfigError(
            f"{key} is not set", hint="histories are made of raw tables", id="E-CONFIG-MISSING"
        )
    folder, plan = Path(job.sample.dir), load_plan(job.sample.join)
    with _samples(job, progress) as (samples, made):
        join = SlowJoin(folder, plan)
        places = Places(plan, join.path, job.features.shuffle, job.features.seed)
        chosen = _choose(join, places, rows, seed, progress)
        names = dict.fromkeys(window.events for window in plan.windows.values())
        sources = {name: Source(join, folder, name) for name in names}
        for source in sources.values():
            _collect(join, source, chosen, progress)
        found = _lines(samples, join.names, chosen)
    differences = _by_brute_force(join, sources, chosen, found)
    differences += _by_deletion(join, sources, chosen, found, progress)
    windows = sum(name in plan.windows for name in join.names)
    events = sum(len(past) for one in chosen for past in one.past.values())
    shown = None if made else str(samples)
    return Leakage(len(chosen), windows * len(chosen), events, shown, differences)


@contextmanager
def _samples(job: JobConfig, progress: Progress | None) -> Iterator[tuple[Path, bool]]:
    """The folder of the job's samples, and whether they were made for this."""
    there = current_samples(job)
    if there:
        yield there, False
        return
    out = Path(job.output.dir)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="check-", dir=out) as name:
        output = job.output.model_copy(update={"dir": Path(name)})
        extract(job.model_copy(update={"output": output}), stage="sample", progress=progress)
        yield Path(name) / "samples", True


def _choose(
    join: SlowJoin, places: Places, count: int, seed: int, progress: Progress | None
) -> list[_Chosen]:
    """Impressions on days of the split, each with equal chance, in order of the table."""
    chance = random.Random(seed)
    best: list[tuple[float, int, _Chosen]] = []
    rows = Source(join, join.path.parent, IMPRESSIONS).rows()
    while piece := list(itertools.islice(rows, PIECE_ROWS)):
        found = places.of(np.array([time for _, time, _ in piece], np.int64))
        for (number, time, row), place in zip(piece, found, strict=True):
            if place is not None:
                entry = (-chance.random(), number, _Chosen(number, time, row, *place))
                (heapq.heappush if len(best) < count else heapq.heappushpop)(best, entry)
        if progress:
            progress(join.path.name, piece[-1][0] + 1, 0.0)
    return [one for _, _, one in sorted(best, key=lambda entry: entry[1])]


def _collect(
    join: SlowJoin, source: Source, chosen: Sequence[_Chosen], progress: Progress | None
) -> None:
    """Give each chosen row those events of a source that may be in one of its windows."""
    plan = join.plan
    windows = [window for window in plan.windows.values() if window.events == source.name]
    asking: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[int, int, _Chosen]]]] = {}
    for one in chosen:
        one.past[source.name] = []
        spans = [bounds(w.span, one.time, source.delay_s, plan.zone) for w in windows]
        since, until = min(since for since, _ in spans), one.time - source.delay_s
        for by in dict.fromkeys(window.by for window in windows):
            key = tuple(join.value(name, one.row, one.time) for name in by)
            columns = tuple(source.keys.get(name, name) for name in by)
            asking.setdefault(columns, {}).setdefault(key, []).append((since, until, one))
    for number, time, row in source.rows():
        for columns, of_key in asking.items():
            key = tuple(source.value(name, row, time) for name in columns)
            for since, until, one in of_key.get(key, ()):
                mine = one.past[source.name]
                if since <= time < until and not (mine and mine[-1][0] == number):
                    mine.append((number, time, row))
        if progress and (number + 1) % PIECE_ROWS == 0:
            progress(source.table.name, number + 1, 0.0)


def _lines(samples: Path, names: Sequence[str], chosen: Sequence[_Chosen]) -> list[list[str]]:
    """The fields of each chosen row in the samples."""
    wanted: dict[str, dict[int, int]] = {}
    for i, one in enumerate(chosen):
        wanted.setdefault(one.file, {})[one.line] = i
    found: list[list[str]] = [[] for _ in chosen]
    for name, numbers in wanted.items():
        path = samples / name
        try:
            with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
                header = next(lines, "").removesuffix("\n").split("\t")
                if header != list(names):
                    raise DataError("its columns are not those of the join file", where=str(path))
                for number, line in enumerate(lines):
                    if number in numbers:
                        found[numbers[number]] = line.removesuffix("\n").split("\t")
        except OSError as error:
            raise DataError(
                f"cannot read it: {error.strerror}", where=str(path), id="E-DATA-MISSING"
            ) from None
    for one, fields in zip(chosen, found, strict=True):
        if len(fields) != len(names):
            what = f"row {one.line + 1} is not there, or is cut short"
            raise DataError(what, where=str(samples / one.file), hint="extract the samples again")
    return found


def _differences(
    join: SlowJoin, one: _Chosen, expected: list[str], found: list[str], deletion: bool
) -> list[Difference]:
    where = f"{one.file}:{one.line + 2}"
    return [
        Difference(where, one.number + 1, name, right, there, deletion)
        for name, right, there in zip(join.names, expected, found, strict=True)
        if right != there
    ]


def _by_brute_force(
    join: SlowJoin, sources: dict[str, Source], chosen: Sequence[_Chosen], found: list[list[str]]
) -> list[Difference]:
    differences = []
    for one, fields in zip(chosen, found, strict=True):
        past = {
            name: (sources[name], [(time, row) for _, time, row in mine])
            for name, mine in one.past.items()
        }
        expected = join.expected(one.row, one.time, past)
        differences += _differences(join, one, expected, fields, deletion=False)
    return differences


def _by_deletion(
    join: SlowJoin,
    sources: dict[str, Source],
    chosen: Sequence[_Chosen],
    found: list[list[str]],
    progress: Progress | None,
) -> list[Difference]:
    """Have the sample stage make each row from what it may see alone."""
    plan, differences = join.plan.model_copy(update={"split": None}), []
    for number, (one, fields) in enumerate(zip(chosen, found, strict=True), 1):
        with tempfile.TemporaryDirectory(prefix="ctrps-check-") as name:
            tables, out = Path(name, "tables"), Path(name, "samples")
            tables.mkdir()
            out.mkdir()
            _write_tables(tables, join, sources, one)
            make_samples(tables, plan, out, BadRows(), shuffle=False)
            first = _Chosen(one.number, one.time, one.row, "train-00000.tsv", 0)
            (made,) = _lines(out, join.names, [first])
        differences += _differences(join, one, made, fields, deletion=True)
        if progress and (number % PROGRESS_ROWS == 0 or number == len(chosen)):
            progress("deletion", number, number / len(chosen))
    return differences


def _write_tables(folder: Path, join: SlowJoin, sources: dict[str, Source], one: _Chosen) -> None:
    """Tables of a row, as the first impression, and of the events that it may see."""
    plan = join.plan
    contents: dict[str, tuple[Row, dict[int, Row]]] = {
        plan.impressions.table: (join.header, {one.number: one.row})
    }
    for name, source in sources.items():
        table = plan.impressions.table if name == IMPRESSIONS else plan.events[name].table
        _, rows = contents.setdefault(table, (source.header, {}))
        rows.update((number, row) for number, _, row in one.past[name])
    for table, (header, rows) in contents.items():
        _write_table(folder, table, header, list(rows.values()))
    impressions = contents[plan.impressions.table][1].values()
    for side in join.sides:
        column = join.header.index(side.join.on)
        found = (side.row(key) for key in dict.fromkeys(row[column] for row in impressions))
        _write_table(folder, side.table, side.header, [row for row in found if row is not None])


def _write_table(folder: Path, name: str, header: Row, rows: list[Row]) -> None:
    path = folder / f"{name}.csv"
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([header, *rows])
