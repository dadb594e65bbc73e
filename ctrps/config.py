"""A job's settings, from all their sources, checked and complete.

``load_job`` turns a job file, the environment and ``--set`` arguments into one frozen
``JobConfig``, or into one error that shows everything wrong with them. The fields of the sections
are in ``ctrps.sections`` and ``trainsection``, the notations in ``configfile``. No file but the job
file is opened, and nothing below the command line looks at the environment: it is given it.
"""

import difflib
import glob
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Field, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo

from ctrps.configfile import (
    Place,
    Problem,
    Setting,
    Value,
    as_error,
    read_environment,
    read_file,
    read_overrides,
    split_list,
    unquote,
    yaml_text,
)
from ctrps.errors import ConfigError, CtrpsWarning, LocalProtocolError
from ctrps.psdnn import translated
from ctrps.sections import (
    TRAINED,
    ClusterSection,
    DataSection,
    FeaturesSection,
    ModelSection,
    Name,
    OptimizerBlock,
    OptimizerSection,
    OutputSection,
    SampleSection,
    Section,
    default_block,
    parse_address,
)
from ctrps.trainsection import NOT_OFFERED, TrainSection, batch_defaults

__all__ = [
    "ClusterSection",
    "DataSection",
    "FeaturesSection",
    "JobConfig",
    "ModelSection",
    "OptimizerBlock",
    "OptimizerSection",
    "OutputSection",
    "SampleSection",
    "TrainSection",
    "default_block",
    "digest",
    "load_job",
    "nearest",
    "parse_address",
]

# Raised whenever a key or a placement hash changes: old models then hold other keys.
KEY_HASH_VERSION = 1

# Variables that begin with CTRPS_ and are not settings of a job.
RESERVED_VARIABLES = frozenset(
    {"CTRPS_SCHEDULER", "CTRPS_DEBUG", "CTRPS_LOG_LEVEL", "CTRPS_JOB_KEY", "CTRPS_VAR"}
)


class JobConfig(Section):
    """All settings of one job, checked and complete.

    Examples
    --------
    >>> job = load_job(None, ["model.kind=fm", "train.lanes=8"], {})
    >>> job.train.lanes, job.optimizer_for("v").kind
    (8, 'adagrad')
    >>> job.origins["train.lanes"], job.origins["train.passes"]
    ('--set', 'default')
    """

    name: Name = Field(
        default="job", description="Name of the job. Default: that of the job file, or job."
    )
    sample: SampleSection = SampleSection()
    features: FeaturesSection = FeaturesSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    optimizer: OptimizerSection = OptimizerSection()
    train: TrainSection = TrainSection()
    cluster: ClusterSection = ClusterSection()
    output: OutputSection = OutputSection()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Equal settings; where they came from does not count."""
        return isinstance(other, JobConfig) and self.model_dump() == other.model_dump()

    __hash__ = Section.__hash__

    @property
    def origins(self) -> dict[str, str]:
        """Dotted key -> ``job.yaml:12``, ``CTRPS_TRAIN__LANES``, ``--set`` or ``default``."""
        return {key: self._origins.get(key, "default") for key in SETTINGS}

    def check_trained(self) -> None:
        """Raise ConfigError for a kind of model that can be shown only."""
        kind = self.model.kind
        if kind not in TRAINED:
            raise ConfigError(
                f"this version trains {' and '.join(TRAINED)}, not {kind}",
                where=self.origins["model.kind"],
                hint="to train the same job as a factorization machine, add --set model.kind=fm",
            )

    def optimizer_for(self, part: str) -> OptimizerBlock:
        """The block of ``w``, ``v`` or ``intercept``, which learns like w without penalties."""
        if part == "intercept":
            return self.optimizer.w.model_copy(update={"l1": 0.0, "l2": 0.0})
        if part not in ("w", "v"):
            raise LocalProtocolError(f"a row has no part {part!r}")
        return self.optimizer.v if part == "v" else self.optimizer.w

    def model_settings(self) -> dict[str, Any]:
        """What fixes the meaning of stored numbers: a model can only go on with equal ones."""
        fm = self.model.kind == "fm"
        parts = ("w", "v") if fm else ("w",)
        return {
            "kind": self.model.kind,
            "dim": self.model.dim if fm else 0,
            "init_scale": self.model.init_scale if fm else 0.0,
            "partitions": self.train.partitions,
            "seed": self.train.seed,
            "optimizers": {part: self.optimizer_for(part).kind for part in parts},
            "key_hash": KEY_HASH_VERSION,
        }

    def plan_settings(self) -> dict[str, Any]:
        """What fixes, together with the data, which rows make up which minibatch."""
        names = ("batch_rows", "lanes", "chunk_batches", "shuffle", "seed", "consistency", "fused")
        return {name: getattr(self.train, name) for name in names}

    def dump_yaml(self, origins: bool = False) -> str:
        """All settings as a job file that loads to an equal ``JobConfig``.

        Parameters
        ----------
        origins
            Add a comment to each line that says where the value came from.
        """
        lines: list[str] = []
        opened: list[str] = []
        stated = self.origins
        for key, value in self._leaves():
            *sections, name = key.split(".")
            for depth, section in enumerate(sections):
                if opened[: depth + 1] != sections[: depth + 1]:
                    lines.append(f"{'  ' * depth}{section}:")
                    opened = sections[: depth + 1]
            note = f"  # {stated[key]}" if origins else ""
            lines.append(f"{'  ' * len(sections)}{name}: {yaml_text(value)}{note}")
        return "\n".join(lines) + "\n"

    def _leaves(self) -> Iterator[tuple[str, Any]]:
        for key in SETTINGS:
            value: Any = self
            for name in key.split("."):
                value = getattr(value, name)
            if value is not None:
                yield key, value


def digest(settings: Mapping[str, Any]) -> str:
    """Short digest of JSON-able settings; the order of keys does not matter.

    Examples
    --------
    >>> digest({"dim": 8, "kind": "fm"}) == digest({"kind": "fm", "dim": 8})
    True
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _flatten(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _flatten(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


# Dotted key -> field, in the order of the sections.
SETTINGS: dict[str, FieldInfo] = dict(_flatten(JobConfig))
_BLOCK_KEYS = [f"optimizer.{name}" for name in OptimizerBlock.model_fields]
# Keys that may be stated: optimizer.alpha stands for one part or both.
STATED: dict[str, FieldInfo] = SETTINGS | {
    f"optimizer.{name}": field for name, field in OptimizerBlock.model_fields.items()
}
SECTIONS = frozenset(key.rpartition(".")[0] for key in STATED if "." in key)
VARIABLES = {"CTRPS_" + key.upper().replace(".", "__"): key for key in STATED}

# Values that other versions know, with the key they belong to.
_LATER = {
    "model.kind": ("deepfm", "module"),
    "optimizer.kind": ("momentum", "nesterov", "adam"),
}
# What other tools call a setting: hints for a person, never read as settings.
_ELSEWHERE = {
    "learning_rate": "optimizer.alpha",
    "epoch": "train.passes",
    "epochs": "train.passes",
    "batch_size": "train.batch_rows",
    "emb_dim": "model.dim",
    "embedding_dim": "model.dim",
}


def load_job(path: Path | None, overrides: Sequence[str], environ: Mapping[str, str]) -> JobConfig:
    """Read a job: defaults < file < environment < overrides.

    Parameters
    ----------
    path
        Job file, YAML or ini; None for none.
    overrides
        ``section.key=value`` from the command line.
    environ
        The environment; variables ``CTRPS_SECTION__KEY`` are read.

    Returns
    -------
    JobConfig
        Complete, every path absolute.

    Raises
    ------
    ConfigError
        With everything that is wrong, each with its place.

    Warns
    -----
    CtrpsWarning
        Keys of a job file of ps-dnn have no effect, or not the same.
    """
    here = Path.cwd()
    in_file, problems = read_file(path, SECTIONS) if path else ([], [])
    in_environ = read_environment(environ, VARIABLES, here)
    on_line, more = read_overrides(overrides, here)
    in_file, wrong, note = translated(in_file, [*in_environ, *on_line])
    problems += wrong + more + _unknown_variables(environ) + _unknown_settings(in_file)
    problems += _unknown_settings(on_line)
    stated = _merge([in_file, in_environ, on_line])
    values, more = _values(stated, here)
    problems += more
    _add_defaults(values, path, here)
    job = None
    try:
        job = JobConfig.model_validate(_nest(values))
    except ValidationError as error:
        problems += [_refused(detail, stated) for detail in error.errors()]
    if problems or job is None:
        raise as_error(problems)
    if note:
        warnings.warn(note, CtrpsWarning, stacklevel=2)
    job._origins = {key: setting.at.origin for key, setting in stated.items()}
    return job


def _merge(layers: Sequence[list[Setting]]) -> dict[str, Setting]:
    """Lay later layers over earlier ones, and spread ``optimizer.alpha`` to the parts it is for.

    It is for w; and for v too unless the block is ftrl, whose constants do not suit v, or v has a
    kind of its own. A part's own key goes before the block's in the same layer.
    """
    kinds = {s.key: _plain(s) for layer in layers for s in layer if s.key.endswith(".kind")}
    block = kinds.get("optimizer.kind", "ftrl")
    for_v = block not in ("ftrl", "count") and kinds.get("optimizer.v.kind", block) == block
    stated: dict[str, Setting] = {}
    for layer in layers:
        for setting in layer:
            if setting.key in STATED and setting.key not in SETTINGS:
                name = setting.key.removeprefix("optimizer.")
                for part in ("w", "v") if for_v else ("w",):
                    stated[f"optimizer.{part}.{name}"] = setting
        stated |= {s.key: s for s in layer if s.key in SETTINGS}
    return stated


def _plain(setting: Setting) -> Value:
    """The value of a key that is not a list; nothing where an ini line or variable is empty."""
    if setting.loose and isinstance(setting.value, str):
        return unquote(setting.value) or None
    return setting.value


def _values(stated: dict[str, Setting], here: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Texts, lists of texts and absolute paths for pydantic to convert and check."""
    values: dict[str, Any] = {}
    problems = []
    for key, setting in stated.items():
        base = here if key == "output.dir" else setting.base
        try:
            values[key] = _value(setting, SETTINGS[key].annotation, base)
        except ValueError as error:
            problems.append(Problem(setting.value_at, f"{setting.key}: {error}"))
    return values, problems


def _value(setting: Setting, annotation: Any, base: Path) -> Any:
    value = _plain(setting)
    if get_origin(annotation) is tuple and isinstance(setting.value, str):
        value = split_list(setting.value) if setting.loose else [setting.value]
    if Path not in (annotation, *get_args(annotation)):
        return value
    if isinstance(value, str):
        return _path(value, base)
    if not isinstance(value, list):
        return value
    # In a list of data, a dash is standard input.
    return [Path(text) if text == "-" else _path(text, base) for text in value]


def _path(text: str, base: Path) -> Path:
    """An absolute path or pattern; the folder in front of a pattern is no part of the pattern."""
    if not text or "\0" in text:
        raise ValueError(f"must be a path, found {text!r}")
    folder = glob.escape(str(base)) if glob.has_magic(text) else str(base)
    return Path(os.path.abspath(os.path.join(folder, os.path.expanduser(text))))


def _add_defaults(values: dict[str, Any], path: Path | None, here: Path) -> None:
    """Fill in the defaults that depend on other settings."""
    stem = "".join(c if c.isprintable() else "_" for c in path.stem) if path else ""
    name = values.setdefault("name", stem.strip()[:100] or "job")
    output = values.setdefault("output.dir", here / "runs" / str(name))
    for part in ("train", "test"):
        pattern = os.path.join(glob.escape(str(output)), "data", f"{part}-*.shard")
        values.setdefault(f"data.{part}", [Path(pattern)])
    _add_batch_defaults(values)
    for part in ("w", "v"):
        kind = values.get(f"optimizer.{part}.kind")
        known = kind in get_args(SETTINGS["optimizer.w.kind"].annotation)
        for field, value in default_block(part, kind if known else None):
            values.setdefault(f"optimizer.{part}.{field}", value)


def _add_batch_defaults(values: dict[str, Any]) -> None:
    """Minibatches of the modes in which gradients may be late."""
    mode, kind = values.get("train.consistency"), values.get("model.kind", "lr")
    workers, lanes = _whole(values, "cluster.workers", 1), _whole(values, "train.lanes", 4)
    found = batch_defaults(str(mode), str(kind), workers, lanes, _whole(values, "train.window", 0))
    if found is not None:
        values.setdefault("train.window", found[0])
        values.setdefault("train.batch_rows", found[1])


def _whole(values: dict[str, Any], key: str, default: int) -> int:
    """A number that has not been checked yet; the check will say what is wrong with another."""
    text = str(values.get(key, default))
    return int(text) if text.isdecimal() and len(text) < 20 and int(text) else default


def _nest(values: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return tree


def nearest(key: str) -> str | None:
    """The setting that a wrong key most likely means.

    Examples
    --------
    >>> nearest("train.lane"), nearest("lanes"), nearest("train.learning_rat")
    ('train.lanes', 'train.lanes', 'optimizer.alpha')
    """
    section, _, name = key.rpartition(".")
    beside = {k.rpartition(".")[2]: k for k in STATED if k.rpartition(".")[0] == section}
    # Of keys with the same last word the shortest: optimizer.alpha, not optimizer.w.alpha.
    by_length = sorted(STATED, key=len, reverse=True)
    anywhere = {k.rpartition(".")[2]: k for k in by_length} | _ELSEWHERE
    whole = {k: k for k in STATED}
    for word, candidates, cutoff in ((name, beside, 0.7), (name, anywhere, 0.8), (key, whole, 0.7)):
        if match := difflib.get_close_matches(word, candidates, 1, cutoff):
            return candidates[match[0]]
    return None


def _unknown_variables(environ: Mapping[str, str]) -> list[Problem]:
    found = []
    names = {key: name for name, key in VARIABLES.items()}
    for variable in sorted(environ.keys() - VARIABLES.keys() - RESERVED_VARIABLES):
        if variable.startswith("CTRPS_"):
            meant = nearest(variable.removeprefix("CTRPS_").lower().replace("__", "."))
            hint = f"did you mean {names[meant]}?" if meant in names else "see docs/config.md"
            what = f"{variable} is not a setting; {hint}"
            found.append(Problem(Place("environment", 0, 1, variable), what, "E-CONFIG-KEY"))
    return found


def _unknown_settings(settings: list[Setting]) -> list[Problem]:
    unknown = {s.key for s in settings if s.key not in STATED}
    # Of an unknown section only the section is reported, not its keys too.
    return [
        Problem(s.at, _unknown(s), "E-CONFIG-KEY")
        for s in settings
        if s.key in unknown and s.key.rpartition(".")[0] not in unknown
    ]


def _unknown(setting: Setting) -> str:
    key = setting.key
    section = key.rpartition(".")[0]
    if (name := key.rpartition(".")[2]) in NOT_OFFERED:
        return f"{key}: {NOT_OFFERED[name]}"
    if key in SECTIONS:
        example = next(name for name in STATED if name.startswith(f"{key}."))
        return f"{key} is a section; set its keys, such as {example}"
    if setting.value == {} and (match := difflib.get_close_matches(key, sorted(SECTIONS), 1)):
        return f"{key} is not a section; did you mean {match[0]}?"
    if meant := nearest(key):
        return f"{key} is not a setting; did you mean {meant}?"
    if section in SECTIONS:
        names = [k.rpartition(".")[2] for k in STATED if k.rpartition(".")[0] == section]
        return f"{key} is not a setting; {section} has {', '.join(names)}"
    return f"{key} is not a setting; docs/config.md lists all"


def _refused(detail: Any, stated: dict[str, Setting]) -> Problem:
    """What pydantic refused, in our words and at its place."""
    key = ".".join(part for part in detail["loc"] if isinstance(part, str))
    setting = stated.get(key)
    text = _reason(detail, key)
    if setting is not None:
        return Problem(setting.value_at, f"{setting.key}{text}")
    # A default that does not go with what was stated: the reason names the other setting.
    other = next((s for name, s in stated.items() if name in text), None)
    return Problem(other.value_at if other else Place("default", 0, 1, key), f"{key}{text}")


_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "tuple": "a list",
}
_LIMITS = {
    "greater_than": "be above {gt:.15g}",
    "greater_than_equal": "be at least {ge}",
    "less_than_equal": "be at most {le}",
    "string_too_short": "have at least {min_length} character",
    "string_too_long": "have at most {max_length} characters",
}


def _reason(detail: Any, key: str) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    found = {dict: "a section", list: "a list", type(None): "nothing"}.get(type(value))
    text = str(value)
    found = found or f"{text[:100] + '…' * (len(text) > 100)!r}"
    if kind == "value_error":
        return f": {context['error']}"
    if kind in _LIMITS:
        return f": must {_LIMITS[kind].format(**context)}, found {found}"
    if kind == "literal_error":
        later = _LATER.get(key.replace(".w.", ".").replace(".v.", "."), ())
        named = get_args(SETTINGS[key].annotation)
        choices = " or ".join(TRAINED if key == "model.kind" else named)
        if value in later:
            return f": {value} is not available in this version; use {choices}"
        return f": expected {choices}, found {found}"
    expected = _EXPECTED.get(kind.partition("_")[0], "another value")
    return f": expected {expected}, found {found}"
