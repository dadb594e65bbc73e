"""The ``train`` section of a job file: how the rows are walked, and how steps are made of them."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from ctrps.sections import Penalty, Section, Seed


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError(f"must be a power of two, found {value}")
    return value


def stale_batch_rows(kind: str, under_way: int) -> int:
    """Rows of a minibatch at which a model keeps its quality when others are under way.

    For a factorization machine rows times (minibatches under way)^(5/3) stays near 1,024, fitted
    to 1 to 16 minibatches on click data (``benchmarks/README.md``). Logistic regression suffers
    neither from rows nor from delay, up to some ten thousand rows under way.

    Examples
    --------
    >>> [stale_batch_rows("fm", n) for n in (1, 2, 4, 8, 16, 100)]
    [1024, 320, 96, 32, 8, 8]
    >>> [stale_batch_rows("lr", n) for n in (1, 2, 4, 8, 16, 100)]
    [1024, 1024, 1024, 1024, 512, 64]
    """
    rows = round(8192 / under_way if kind == "lr" else 1024 / under_way ** (5 / 3))
    return min(1024, max(8, rows // 32 * 32))


def batch_defaults(
    mode: str, kind: str, workers: int, lanes: int, window: int
) -> tuple[int, int] | None:
    """Window and rows of a minibatch in a mode in which gradients may be late; None in sync.

    The more minibatches are under way at once, the smaller. Of semi, two steps are: one is
    made while late minibatches of the one before are still on their way.

    Parameters
    ----------
    window
        As stated, 0 if it is not.

    Examples
    --------
    >>> batch_defaults("async", "fm", workers=4, lanes=4, window=0)
    (1, 96)
    >>> [batch_defaults("semi", kind, workers=4, lanes=4, window=0) for kind in ("lr", "fm")]
    [(1, 256), (1, 80)]
    """
    if mode == "semi":
        return 1, min(256, max(8, stale_batch_rows(kind, 2) // lanes))
    if mode not in ("ssp", "async"):
        return None
    at_once = lanes if mode == "ssp" else workers
    window = window or (2 if kind == "lr" and mode == "async" and at_once <= 2 else 1)
    return window, stale_batch_rows(kind, at_once * window)


_STEP_NORM = (
    "the norm of a whole step, over all servers, is not offered: it would take another round trip "
    "and an order of summation that depends on them; use train.clip_row or train.clip_batch"
)
NOT_OFFERED = dict.fromkeys(
    ("clip_step", "clip_norm", "clip_global", "clip_grad_norm", "max_grad_norm"), _STEP_NORM
)
"""Settings that one may look for, and why there are none."""


class TrainSection(Section):
    """How the rows are walked."""

    passes: int = Field(default=1, ge=1, le=100_000, description="Walks over the training rows.")
    batch_rows: int = Field(
        default=256,
        ge=1,
        le=1 << 20,
        description="Rows of a minibatch. Default: 256 in sync and, for lr, in semi; in async and "
        "ssp 1024, and fewer the more minibatches are under way at once, for fm sooner than for "
        "lr.",
    )
    consistency: Literal["sync", "ssp", "async", "semi"] = Field(
        default="sync",
        description="How far workers may be apart: sync gives the same bits each time, ssp bounds "
        "the distance of lanes, async does not wait, semi makes steps of what comes in time.",
    )
    staleness: int = Field(
        default=8,
        ge=0,
        le=1 << 20,
        description="Minibatches that a lane may be ahead of the slowest (ssp only).",
    )
    window: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Minibatches under way at once, of a worker (async) or a lane (ssp; in semi "
        "always 1). Default: 2 for lr in async with one or two workers, else 1.",
    )
    transfer: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="How weights and gradients travel between workers and servers: bfloat16 is "
        "half the bytes and rounds to 8 bits of precision, in sync mode of `train`, too.",
    )
    lanes: int = Field(
        default=4,
        ge=1,
        le=4096,
        description="Minibatches that make one step; more workers than lanes are idle.",
    )
    quorum: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Lanes that a step waits for (semi only); 0 for three quarters of them.",
    )
    window_ms: float = Field(
        default=100.0,
        ge=0,
        le=60_000,
        description="Time after its first minibatch at which a step is made of what has come (semi "
        "only).",
    )
    seed: Seed = Field(default=1, description="Seed of the order of rows and of the first weights.")
    shuffle: Literal["none", "chunks", "rows"] = Field(
        default="chunks",
        description="What is put in another order in each pass; rows: chunks and rows.",
    )
    chunk_batches: int = Field(
        default=16, ge=1, le=1 << 16, description="Minibatches that are read and shuffled together."
    )
    partitions: Annotated[int, AfterValidator(_power_of_two)] = Field(
        default=64, ge=1, le=256, description="Parts of the key space, a power of two."
    )
    threads: int = Field(default=1, ge=1, le=1024, description="Threads of `ctrps train`.")
    fused: bool = Field(
        default=False,
        description="`ctrps train` learns row at a time, its threads without locks: fastest, but "
        "another algorithm than sync. In async it always does.",
    )
    checkpoint_s: float = Field(
        default=600.0,
        ge=0,
        le=1e9,
        description="Time between two checkpoints inside a pass; 0 saves after each pass only.",
    )
    keep_checkpoints: int = Field(
        default=2, ge=1, le=1000, description="Checkpoints that are kept, the newest included."
    )
    evaluate: Literal["end", "pass"] = Field(
        default="end", description="Score the test rows at the end, or after each pass."
    )
    patience: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Stop early after so many passes without a better test figure, and keep the "
        "best model; 0 never does.",
    )
    early_metric: Literal["logloss", "auc"] = Field(
        default="logloss", description="The figure that early stopping goes by."
    )
    stale_above: int | None = Field(
        default=None,
        ge=0,
        le=1 << 20,
        description="Staleness beyond which a push is late: so many other pushes were applied "
        "between its pull and it (semi: steps; not in sync).",
    )
    stale: Literal["scale", "refuse"] = Field(
        default="scale",
        description="Late pushes are multiplied by (1 + stale_above) / (1 + staleness), or refused "
        "and computed again with the weights of then.",
    )
    compensation: Penalty = Field(
        default=0.0,
        description="lambda of the delay compensation: a gradient g, summed over c rows, becomes "
        "g + lambda g g / c (w now - w pulled); 0 is off (async, ssp).",
    )
    clip_value: Penalty = Field(
        default=0.0,
        description="Most that a number of a gradient may be, either way, as the optimizer takes "
        "it in a step; 0 for any.",
    )
    clip_row: Penalty = Field(
        default=0.0,
        description="Most Euclidean length of the gradient of a key, w and v together, as the "
        "optimizers take it in a step; 0 for any.",
    )
    clip_batch: Penalty = Field(
        default=0.0,
        description="Most Euclidean length of the mean gradient of a minibatch over all its keys; "
        "longer ones are scaled down before they are sent. 0 for any.",
    )

    @field_validator("quorum")
    @classmethod
    def _can_come(cls, value: int, info: ValidationInfo) -> int:
        lanes = info.data.get("lanes", value)
        if value > lanes:
            raise ValueError(f"must be at most train.lanes ({lanes}), found {value}")
        return value

    @field_validator("stale_above")
    @classmethod
    def _may_be_late(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("consistency") == "sync":
            raise ValueError("in train.consistency sync no push is late")
        return value

    @field_validator("compensation")
    @classmethod
    def _applied_alone(cls, value: float, info: ValidationInfo) -> float:
        mode = info.data.get("consistency")
        if value and mode in ("sync", "semi"):
            raise ValueError(f"is for train.consistency async and ssp, not {mode}")
        return value

    @field_validator("clip_value", "clip_row", "clip_batch")
    @classmethod
    def _clips_steps(cls, value: float, info: ValidationInfo) -> float:
        if value and info.data.get("fused"):
            raise ValueError("train.fused learns row at a time, which knows no clipping")
        return value
