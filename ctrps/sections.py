"""The sections of a job file: names, types, ranges, defaults and meaning of all settings.

Each field says what it is for; ``docs/config.md`` lists the same texts. Where values come from,
and what depends on more than one section, is in ``ctrps.config``.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from ctrps.errors import ConfigError

# Smallest normal float32. Rates below it would be 0 or have lost most of their digits.
FLOAT32_TINY = 2.0**-126

TRAINED = ("lr", "fm")
"""Kinds of model that this version trains."""

INDEXED = ("libsvm", "libffm", "dummy")
"""Formats whose keys are indices: whole numbers that somebody counted from 0 or from 1."""


def parse_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; port 0 means that the system chooses one.

    Raises
    ------
    ConfigError
        Not of this form, or the port is not in 0..65535.

    Examples
    --------
    >>> parse_address("127.0.0.1:9000")
    ('127.0.0.1', 9000)
    >>> parse_address("[::1]:0")
    ('::1', 0)
    >>> parse_address("node0:99999")
    Traceback (most recent call last):
    ctrps.errors.ConfigError: 'node0:99999' is not an address; write HOST:PORT, port 0 to 65535
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not digits or int(port) > 65535 or any(c.isspace() or c == "/" for c in host):
        raise ConfigError(f"{text!r} is not an address", hint="write HOST:PORT, port 0 to 65535")
    return host, int(port)


def _address(text: str) -> str:
    try:
        parse_address(text)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return text


def _url(text: str) -> str:
    scheme, found, rest = text.partition("://")
    if not (scheme and found and rest.strip("/")) or not text.isprintable() or set("*?[") & {*text}:
        raise ValueError(f"must be a URL such as s3://bucket/name, found {text!r}")
    return text


def _rate(value: float) -> float:
    if value < FLOAT32_TINY:
        raise ValueError(f"must be above 0 as a 32-bit number, found {value:g}")
    return value


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError(f"must be a power of two, found {value}")
    return value


def _name(text: str) -> str:
    if not text.strip() or text in (".", "..") or "/" in text or not text.isprintable():
        raise ValueError(f"must be usable as the name of a folder, found {text!r}")
    return text


Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=2**64 - 1)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
BlockRows = Annotated[int, Field(ge=1, le=1 << 20)]
Address = Annotated[str, AfterValidator(_address)]
Url = Annotated[str, Field(max_length=1000), AfterValidator(_url)]
Rate = Annotated[float, Field(le=1e6), AfterValidator(_rate)]
Penalty = Annotated[float, Field(ge=0, le=1e9)]
Name = Annotated[str, Field(max_length=100), AfterValidator(_name)]


class Section(BaseModel):
    """What all sections have in common: no other keys, no change, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SampleSection(Section):
    """Raw tables and how they are joined; only ``extract`` reads it."""

    dir: Path | None = Field(default=None, description="Folder of the raw tables.")
    join: Path | None = Field(
        default=None, description="File (yaml) that says how the raw tables are joined to samples."
    )
    max_bad: Share = Field(
        default=0.0,
        description="Share of raw rows that may be unreadable before `extract` gives up.",
    )
    memory_mb: int = Field(
        default=2048,
        ge=256,
        description="Memory that joining tables and windows may take, whatever the tables' size.",
    )
    keep: bool = Field(
        default=True,
        description="Keep samples as text; if not, they go from memory into features.",
    )


class FeaturesSection(Section):
    """From samples to feature shards; only ``extract`` reads it."""

    spec: Path | None = Field(
        default=None,
        description="File (ini) that lists the features, or a model folder, whose own are made.",
    )
    count_above: int = Field(
        default=0,
        ge=0,
        description="Keep values seen more than this often in training rows; 0 keeps all.",
    )
    block_rows: BlockRows = Field(default=4096, description="Rows in a block of a shard.")
    shuffle: bool = Field(
        default=True, description="Shuffle training rows before they are written."
    )
    seed: Seed = Field(default=1, description="Seed of that shuffle.")
    missing: Literal["keep", "drop"] = Field(
        default="keep",
        description="An empty value is a value like any other (keep) or left out (drop).",
    )
    names: int = Field(
        default=50_000,
        ge=0,
        le=10_000_000,
        description="Most keys of a training shard to keep the names of; 0 keeps none.",
    )


class DataSection(Section):
    """The rows to train and test on."""

    train: tuple[Path, ...] = Field(
        default=(), description="Training files or patterns. Default: what `extract` writes."
    )
    test: tuple[Path, ...] = Field(
        default=(), description="Test files or patterns. Default: what `extract` writes."
    )
    format: Literal[
        "auto",
        "shard",
        "libsvm",
        "libffm",
        "vw",
        "dummy",
        "slots",
        "signs",
        "criteo",
        "csv",
        "tsv",
        "jsonl",
        "parquet",
    ] = Field(
        default="auto",
        description="Format of these files; auto goes by the first lines and name of each.",
    )
    columns: tuple[str, ...] = Field(
        default=(),
        description="Columns of a csv or tsv without header, fields of jsonl, fields in front of "
        "slots.",
    )
    label: str = Field(
        default="label", min_length=1, description="Column of the label (tables, slots)."
    )
    numeric: tuple[str, ...] = Field(
        default=(), description="Columns taken as dense numbers (tables)."
    )
    ignore: tuple[str, ...] = Field(default=(), description="Columns left out (tables, slots).")
    id: str | None = Field(default=None, description="Column kept as the row's id (tables, slots).")
    max_bad: Share = Field(
        default=0.0, description="Share of rows that may be unreadable before the run gives up."
    )
    block_rows: BlockRows = Field(default=4096, description="Rows in a block of a converted file.")
    missing: tuple[str, ...] = Field(
        default=("",), description="Texts that stand for a missing value (tables)."
    )
    zero_based: tuple[str, ...] = Field(
        default=(),
        description="Formats, of `libsvm`, `libffm` and `dummy`, whose files count indices from 0: "
        "1 is added to each.",
    )

    @field_validator("zero_based")
    @classmethod
    def _are_indexed(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for form in value:
            if form not in INDEXED:
                raise ValueError(f"expected some of {', '.join(INDEXED)}, found {form!r}")
        return value


class ModelSection(Section):
    """What is learned."""

    kind: Literal["lr", "fm", "fnn", "dssm"] = Field(
        default="lr",
        description="Logistic regression or factorization machine; the networks of older job files "
        "are read, but not trained by this version.",
    )
    dim: int = Field(default=8, ge=1, le=1024, description="Length of a key's vector v (fm).")
    init_scale: float = Field(
        default=0.01,
        ge=0,
        le=10,
        description="Standard deviation of v at the start (fm); with 0 v stays 0.",
    )


class OptimizerBlock(Section):
    """How one part of a row learns from its gradients."""

    kind: Literal["ftrl", "adagrad", "sgd", "count"] = Field(
        default="ftrl",
        description="FTRL-Proximal, AdaGrad or plain steps; count learns nothing: each weight "
        "counts the rows that hold its key, to check that every row is applied once (w only).",
    )
    alpha: Rate = Field(default=0.1, description="Learning rate.")
    beta: float = Field(
        default=1.0,
        ge=0,
        le=1e9,
        description="Added to the root of the squared gradients; sgd does not use it.",
    )
    l1: Penalty = Field(default=0.0, description="Penalty on the absolute weight (ftrl only).")
    l2: Penalty = Field(default=0.0, description="Penalty on the squared weight.")
    count_scale: float = Field(
        default=0.0,
        ge=0,
        le=1e9,
        description="c0: a key in c rows of a batch gets its summed gradient / (1 + c / c0); "
        "0 leaves the sum as it is.",
    )

    @field_validator("beta")
    @classmethod
    def _beta_fits(cls, value: float, info: ValidationInfo) -> float:
        if value == 0 and info.data.get("kind") == "adagrad":
            raise ValueError("must be above 0 for adagrad: 0 divides by the first zero gradient")
        return value

    @field_validator("l1")
    @classmethod
    def _l1_fits(cls, value: float, info: ValidationInfo) -> float:
        kind = info.data.get("kind")
        if value != 0 and kind in ("adagrad", "sgd", "count"):
            raise ValueError(f"{kind} has no l1; use kind ftrl or leave it out")
        return value


def default_block(part: str, kind: str | None = None) -> OptimizerBlock:
    """The block of part ``w`` or ``v`` when nothing but perhaps its kind is stated.

    Rates are those at which each rule held its quality on click data; v divides by counts because
    plain sums cost factorization machines accuracy with large steps.
    """
    kind = kind or {"w": "ftrl", "v": "adagrad"}[part]
    alpha = {"ftrl": 0.1, "adagrad": 0.05, "sgd": 0.01}.get(kind, 0.1)
    return OptimizerBlock.model_validate(
        {"kind": kind, "alpha": alpha, "count_scale": 16.0 if part == "v" else 0.0}
    )


def stale_batch_rows(kind: str, under_way: int) -> int:
    """Rows of a minibatch at which a model keeps its quality in async and ssp.

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


class OptimizerSection(Section):
    """One block per part of a row."""

    w: OptimizerBlock = default_block("w")
    v: OptimizerBlock = default_block("v")

    @field_validator("v")
    @classmethod
    def _v_learns(cls, value: OptimizerBlock) -> OptimizerBlock:
        if value.kind == "count":
            raise ValueError("count is for w only")
        return value


class TrainSection(Section):
    """How the rows are walked."""

    passes: int = Field(default=1, ge=1, le=100_000, description="Walks over the training rows.")
    batch_rows: int = Field(
        default=256,
        ge=1,
        le=1 << 20,
        description="Rows of a minibatch. Default: 256 in sync; in async and ssp 1024, and fewer "
        "the more minibatches are under way at once, for fm sooner than for lr.",
    )
    consistency: Literal["sync", "ssp", "async"] = Field(
        default="sync",
        description="How far workers may be apart: sync gives the same bits each time, ssp bounds "
        "the distance of lanes, async does not wait.",
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
        description="Minibatches under way at once, of a worker (async) or a lane (ssp). Default: "
        "2 for lr in async with one or two workers, else 1.",
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


class ClusterSection(Section):
    """Processes, addresses and time limits."""

    servers: int = Field(default=1, ge=1, le=256, description="Server processes.")
    workers: int = Field(default=1, ge=1, le=4096, description="Worker processes.")
    scheduler: Address = Field(
        default="127.0.0.1:0",
        description="Address of the scheduler; port 0 lets the system choose.",
    )
    server_bind: Address = Field(
        default="127.0.0.1:0", description="Address that each server listens on; port 0 as above."
    )
    key_file: Path | None = Field(
        default=None,
        description="File with the job key (`ctrps keygen`), which addresses other than loopback "
        "need. `CTRPS_JOB_KEY` may hold the key itself instead.",
    )
    insecure: bool = Field(
        default=False,
        description="Without a key, plain text on any address: whoever reaches it can read and "
        "join.",
    )
    start_timeout_s: Seconds = Field(default=60.0, description="Time for all nodes to join.")
    give_up_s: Seconds = Field(
        default=60.0, description="A node ends after this time without scheduler."
    )
    beat_s: Seconds = Field(default=1.0, description="Time between two reports of a node.")
    worker_silent_s: Seconds = Field(
        default=3.0,
        validate_default=True,
        description="A worker silent for this long is taken for dead; at least 2 beats.",
    )
    server_silent_s: Seconds = Field(
        default=5.0,
        validate_default=True,
        description="A server silent for this long is taken for dead; at least 2 beats.",
    )
    steal_after_s: Seconds = Field(
        default=2.0,
        description="A lane without progress for this long is given to an idle worker too.",
    )
    stop_linger_s: Seconds = Field(
        default=5.0, description="Time that nodes have to say goodbye at the end."
    )

    @field_validator("worker_silent_s", "server_silent_s")
    @classmethod
    def _outlasts_beats(cls, value: float, info: ValidationInfo) -> float:
        beat_s = info.data.get("beat_s", 0.0)
        if value < 2 * beat_s:
            raise ValueError(f"must be at least twice cluster.beat_s ({beat_s:g}), found {value:g}")
        return value


class OutputSection(Section):
    """Where results go."""

    dir: Path = Field(
        default=Path("runs/job"), description="Folder of the run, relative to the current folder."
    )
    remote: Url | None = Field(
        default=None,
        description="URL, of S3 or any file system of fsspec, to which each checkpoint is copied; "
        "a run without a model goes on from the one that is there.",
    )
