"""The job of a simulated run: data, model and faults drawn from a seed, and the right result.

The oracle is one process that takes the same plan step by step. What does not need the code under
test is counted in plain Python: how often each key occurs, and the names of all batches.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from ctrps import models
from ctrps.config import JobConfig
from ctrps.kernels import keys as key_kernels
from ctrps.models import Minibatch
from ctrps.ps.late import ModeSettings
from ctrps.ps.partition import PartitionSet, contribute
from ctrps.ps.plan import DataFile, EvaluationPlan, Manifest, Plan, PlanSettings


class CountingModel:
    """A model with one more table, whose only weight is the number of rows seen with the key."""

    def __init__(self, model: models.Model):
        self._model = model
        block = model.tables[0].parts[0].optimizer.model_copy(update={"kind": "count"})
        part = models.Part("count", 1, block, 0.0, 0)
        self.tables = (*model.tables, models.TableSpec("count", (part,)))

    def __getattr__(self, name: str):
        return getattr(self._model, name)

    def key_sets(self, batch: Minibatch):
        sets = self._model.key_sets(batch)
        return (*sets, sets[0])

    def margins(self, batch, weights):
        return self._model.margins(batch, weights[:2])

    def gradient(self, batch, weights):
        result = self._model.gradient(batch, weights[:2])
        ones = batch.counts.astype(np.float32).reshape(-1, 1)
        return result._replace(tables=(*result.tables, ones))


@dataclass
class Data:
    """Rows of a few keys each, in files of blocks."""

    keys: list[list[int]]
    labels: list[int]
    files: tuple[DataFile, ...]

    @classmethod
    def drawn(cls, rng: random.Random, rows: int, universe: int) -> "Data":
        keys = [sorted(rng.sample(range(universe), rng.randint(0, 5))) for _ in range(rows)]
        labels = [rng.randint(0, 1) for _ in range(rows)]
        files, left = [], rows
        while left:
            size = min(left, rng.randint(0, rows))
            left -= size
            cut = rng.randint(0, size)
            blocks = tuple(n for n in (cut, size - cut) if n)
            files.append(DataFile(f"f{len(files)}", str(size), blocks))
        return cls(keys, labels, tuple(files))

    def rows_of(self, plan: Plan | EvaluationPlan, ref) -> list[int]:
        """Numbers of a batch's rows."""
        first = sum(sum(f.block_rows) for f in self.files[: ref.file])
        first += sum(self.files[ref.file].block_rows[: ref.block])
        return [first + int(row) for row in plan.row_numbers(ref)]

    def minibatch(self, model, plan: Plan | EvaluationPlan, ref) -> Minibatch:
        rows = self.rows_of(plan, ref)
        return build_minibatch(
            [self.keys[r] for r in rows], [self.labels[r] for r in rows], model.partition_bits
        )


def build_minibatch(rows: list[list[int]], labels: list[int], bits: int) -> Minibatch:
    """The slow, obvious way from rows of distinct keys to a minibatch with values of 1."""
    distinct = np.array(list(dict.fromkeys(k for row in rows for k in row)), np.uint64)
    partition = np.empty(len(distinct), np.int32)
    key_kernels.partition_of(distinct, bits, partition)
    keys = distinct[np.argsort(partition, kind="stable")]
    starts = np.searchsorted(np.sort(partition), np.arange((1 << bits) + 1)).astype(np.int32)
    place = {int(k): i for i, k in enumerate(keys)}
    index = np.array([place[k] for row in rows for k in row], np.int32)
    counts = np.bincount(index, minlength=len(keys)).astype(np.int32)
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    values = np.ones(len(index), np.float32)
    return Minibatch(keys, starts, counts, indptr, index, values, np.array(labels, np.float32))


@dataclass
class Faults:
    """What the network and the processes do in a run, drawn from its seed.

    ``leaves`` times somebody asks a server or worker to leave.
    """

    loss: float = 0.0
    double: float = 0.0
    delay_s: float = 0.05
    late: float = 0.0
    late_s: float = 10.0
    crashes: int = 0
    suspicions: int = 0
    kill_role: str = "worker"
    later_s: float = 0.0
    delays: tuple[float, ...] = ()
    leaves: int = 0

    @classmethod
    def drawn(cls, rng: random.Random) -> "Faults":
        return cls(
            loss=rng.choice([0.0, 0.02, 0.1, 0.2]),
            double=rng.choice([0.0, 0.1, 0.3]),
            delay_s=rng.choice([0.01, 0.1, 0.5]),
            late=rng.choice([0.0, 0.02, 0.05]),
            crashes=rng.choice([0, 1, 2, 4]),
            suspicions=rng.choice([0, 0, 1, 2]),
        )


@dataclass
class Setup:
    """A job and its faults, drawn from a seed.

    ``staleness`` is ssp's bound, ``window`` that of batches in flight, ``remembered`` how many
    pulls of a worker a server knows the keys of, ``clips`` limits of gradients, and
    ``ticket_bytes`` the weights that a server remembers to have answered.
    """

    seed: int
    workers: int
    servers: int
    lanes: int
    kind: str
    passes: int
    shuffle: str
    batch_rows: int
    partitions: int
    data: Data
    test: Data
    faults: Faults
    mode: str = "sync"
    staleness: int = 8
    window: int = 2
    remembered: int = 100
    transfer: str = "float32"
    checkpoint_s: float = 0.0
    evaluate_each: bool = False
    patience: int = 0
    replicas: int = 0
    clips: dict[str, float] = field(default_factory=dict)
    quorum: int = 1
    window_s: float = 0.1
    stale_above: int | None = None
    refuse_stale: bool = False
    compensation: float = 0.0
    ticket_bytes: int = 1 << 20

    @classmethod
    def drawn(cls, seed: int, mode: str = "sync") -> "Setup":
        rng, more = random.Random(seed), random.Random(f"{mode} {seed}")
        rows = rng.choice([1, 7, 40, 103])
        setup = cls(
            seed=seed,
            workers=rng.randint(1, 5),
            servers=rng.randint(1, 5),
            lanes=rng.randint(1, 8),
            kind=rng.choice(["lr", "fm"]),
            passes=rng.randint(1, 3),
            shuffle=rng.choice(["none", "chunks", "rows"]),
            batch_rows=rng.choice([1, 3, 8]),
            partitions=rng.choice([8, 8, 8, 64]),
            data=Data.drawn(rng, rows, rng.choice([6, 60])),
            test=Data.drawn(rng, rng.choice([0, 5, 30]), 80),
            faults=Faults.drawn(rng),
            mode=mode,
            staleness=more.choice([0, 1, 2, 8]),
            window=more.choice([1, 2, 3]),
            checkpoint_s=more.choice([0.0, 0.0, 0.3, 1.5]),
            evaluate_each=more.choice([False, True]),
            remembered=more.choice([0, 1, 2, 100, 100, 100]),
            transfer=more.choice(["float32", "float32", "bfloat16"]),
            clips=more.choice([{}, {}, {"clip_value": 0.2}, {"clip_row": 0.3, "clip_batch": 0.1}]),
            stale_above=more.choice([None, None, 0, 1, 4]),
            refuse_stale=more.choice([False, True]),
            compensation=more.choice([0.0, 0.0, 0.5]),
            ticket_bytes=more.choice([0, 300, 1 << 20, 1 << 20]),
            window_s=more.choice([0.0, 0.3, 30.0]),
        )
        return replace(setup, quorum=more.randint(1, setup.lanes))

    def __str__(self) -> str:
        nodes = f"W={self.workers} S={self.servers} G={self.lanes}"
        bounds = f"staleness={self.staleness} window={self.window} remembered={self.remembered}"
        bounds += f" {self.transfer} {self.clips or ''}"
        late = f"late above {self.stale_above} {'refused' if self.refuse_stale else 'scaled'}"
        bounds += f" quorum={self.quorum} window_s={self.window_s}"
        bounds += f" {late}, compensated {self.compensation} of {self.ticket_bytes} bytes"
        shape = f"{self.mode} {bounds} {nodes} {self.kind} rows={len(self.data.labels)}"
        return f"seed {self.seed}: {shape} {self.faults}"

    @property
    def settings(self) -> PlanSettings:
        return PlanSettings(self.batch_rows, self.lanes, 4, self.shuffle, self.seed, self.mode)

    @property
    def mode_settings(self) -> ModeSettings:
        bound = self.staleness if self.mode == "ssp" else None
        return ModeSettings(
            bound,
            self.quorum,
            self.window_s,
            self.stale_above,
            self.refuse_stale,
            0.0 if self.mode == "semi" else self.compensation,
        )

    @property
    def manifest(self) -> Manifest:
        # Every other job knows about how many keys to expect.
        return Manifest(self.data.files, self.test.files, self.seed % 2 * 5000)

    def plans(self) -> list[Plan]:
        """Of each pass."""
        return [Plan(self.data.files, self.settings, number) for number in range(self.passes)]

    def model(self) -> CountingModel:
        job = JobConfig.model_validate(
            {
                "name": "sim",
                "model": {"kind": self.kind, "dim": 2, "init_scale": 0.1},
                "train": {
                    "partitions": self.partitions,
                    "seed": self.seed,
                    "transfer": self.transfer,
                    **self.clips,
                },
            }
        )
        return CountingModel(models.build(job))


def train_alone(setup: Setup) -> PartitionSet:
    """The oracle: the same plan in one process, step by step."""
    model = setup.model()
    partitions = PartitionSet(model)
    for plan in setup.plans():
        partitions.turn(plan.number)
        for step in range(plan.steps):
            lanes = {}
            for lane in plan.active(step):
                batch = setup.data.minibatch(model, plan, plan.batch(lane, step))
                keys = tuple(s.keys for s in model.key_sets(batch))
                lanes[lane] = contribute(model, batch, partitions.pull(keys))
            partitions.apply(lanes)
    return partitions


def rows_with_key(setup: Setup) -> Counter[int]:
    """By plain counting: rows of the whole job that hold each key."""
    once = Counter(key for row in setup.data.keys for key in row)
    return Counter({key: n * setup.passes for key, n in once.items()})


def names_of_plan(setup: Setup) -> list[tuple[int, int, int]]:
    """(pass, lane, batch) of every batch of the job, sorted."""
    return [
        (plan.number, lane, batch)
        for plan in setup.plans()
        for lane, length in enumerate(plan.lengths.tolist())
        for batch in range(length)
    ]


def scores_alone(setup: Setup, partitions: PartitionSet) -> list[bytes]:
    """Scores of each evaluation lane by a model in one process."""
    plan, scores = EvaluationPlan(setup.test.files), []
    for lane in range(plan.lanes):
        batch = setup.test.minibatch(partitions.model, plan, plan.batch(lane))
        keys = tuple(s.keys for s in partitions.model.key_sets(batch))
        scores.append(partitions.model.margins(batch, partitions.peek(keys)).tobytes())
    return scores


def merged(owners: list[PartitionSet]) -> PartitionSet:
    """The rows of all owners in one place."""
    whole = PartitionSet(owners[0].model)
    for owner in owners:
        for state in owner.snapshot():
            whole.load(state.tables)
    return whole


def row_bytes(owners: list[PartitionSet]) -> list[bytes]:
    """Keys and rows of all partitions, in one canonical order."""
    out = []
    for copies in zip(*(owner.snapshot() for owner in owners), strict=True):
        for sets in zip(*(state.tables for state in copies), strict=True):
            held = [s for s in sets if len(s.keys)]
            assert len(held) <= 1, "a partition is held twice"
            out += [array.tobytes() for s in held for array in s]
    return out


def changed(setup: Setup, **values) -> Setup:
    """The same setup with other values; ``faults`` may be given as a dict of changes."""
    faults = values.pop("faults", {})
    return replace(setup, faults=replace(setup.faults, **faults), **values)


def cut(setup: Setup, rows: int | None) -> Setup:
    """The same job with at most so many training rows."""
    if rows is None or len(setup.data.labels) <= rows:
        return setup
    return changed(setup, data=Data.drawn(random.Random(setup.seed), rows, 60))


def any_job(seed: int, mode: str = "sync") -> Setup:
    """As drawn, but of four jobs with many rows, which take most of the time, three get fewer."""
    return cut(Setup.drawn(seed, mode), None if seed % 4 == 3 else 40)


def crashing(seed: int, replicas: int, *, leaves: bool = False, rows: int | None = None) -> Setup:
    """A job of any mode but semi whose processes are killed, whatever they are.

    With ``leaves`` some nodes are asked to leave, too; with ``rows`` the job has no more of them.
    """
    rng = random.Random(f"crashes {seed}")
    faults = {
        "kill_role": "any",
        "crashes": rng.randint(1, 5),
        "later_s": rng.choice([0.0, 30.0]),
        "delays": (0.1, 40.0),
        "leaves": rng.randint(1, 3) if leaves else 0,
    }
    setup = cut(Setup.drawn(seed, ("sync", "async", "ssp")[seed % 3]), rows)
    return changed(setup, faults=faults, replicas=replicas)


def plain(rows: int = 40, **values) -> Setup:
    """A job of two servers, two workers and four lanes on a network without faults."""
    rng = random.Random(rows)
    files = (DataFile("f0", "0", (rows - rows // 3, rows // 3)),)
    data = replace(Data.drawn(rng, rows, 60), files=files)
    setup = Setup(1, 2, 2, 4, "fm", 2, "rows", 2, 64, data, Data.drawn(rng, 20, 80), Faults())
    return changed(setup, **values)
