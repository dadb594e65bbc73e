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
        raise ConfigError(
            f"{text!r} is not an address",
            hint="write HOST:PORT, port 0 to 65535",
            id="E-CONFIG-ADDRESS",
        )
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


def _name(text: str) -> str:
    if not text.strip() or text in (".", "..") or "/" in text or not text.isprintable():
        raise ValueError(f"must be usable as the name of a folder, found {text!r}")
    return text


Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=2**64 - 1)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
BlockRows = Annotated[int, Field(ge=1, le=1 << 20)]
Address = Annotated[str, AfterValidator(_address)]
AddressOrOff = Annotated[str, AfterValidator(lambda a: a if a == "off" else _address(a))]
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
        description="Memory that `extract` may have resident in all, whatever the tables' size.",
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
    http: AddressOrOff = Field(
        default="127.0.0.1:0",
        description="Address of the web page of a run, which can only be read; port 0 as above, "
        "`off` for none. One that other machines reach has no password and needs "
        "`cluster.insecure`.",
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
    replicas: int = Field(
        default=0,
        ge=0,
        le=1,
        description="Standbys of each server: a server that holds the same rows, and takes its "
        "place at once.",
    )
    server_wait_s: Seconds = Field(
        default=30.0,
        description="After a server was lost: time to wait for another before the job goes on "
        "with fewer.",
    )
    restarts: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="`launch`: times that a process which died is started again before the job "
        "has got on; 0: never.",
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
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="Lines of logs: for people, or JSON objects with time, job, role, rank, step.",
    )
