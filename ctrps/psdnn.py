"""Job files of ps-dnn, the system that ctrps replaces, as settings of ctrps.

Such a file is told by its sections. ``translated`` gives its keys the names and values that they
have here, each still at its place, and says in words which have no effect. Keys of ctrps may stand
in the same file. Which values are possible is for ``ctrps.config`` to check.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

from ctrps.configfile import Problem, Setting
from ctrps.sections import TRAINED, OptimizerBlock
from ctrps.trainsection import TrainSection

MARKS = ("net", "sparse_dict")
"""Sections that no other job files have."""

SECTIONS = (*MARKS, "loss", "test", "debug")
"""Sections that ctrps does not have."""

NAMES = {
    "sparse_dict.emb_dim": "model.dim",
    "net.model": "model.kind",
    "optimizer.optimizer": "optimizer.kind",
    "optimizer.learning_rate": "optimizer.alpha",
    "train.epoch": "train.passes",
    "train.batch_size": "train.batch_rows",
}

WITHOUT_EFFECT = {
    "net.layers": "lr and fm have no layers",
    "loss.loss": "lr and fm always minimise the cross entropy",
    "test.batch_size": "test figures are of all rows together, however many are read at a time",
    "debug.interval": "progress is shown by time, not by batches",
}

OPTIMIZERS = ("adam", "sgd", "momentum", "nesterov")
KINDS = get_args(OptimizerBlock.model_fields["kind"].annotation)

Said = dict[str, str]


class Translation(NamedTuple):
    """Settings as they are here, what is wrong with them, and what a person should know."""

    settings: list[Setting]
    problems: list[Problem]
    note: str


def translated(settings: list[Setting], later: Sequence[Setting]) -> Translation:
    """The settings of a job file; they stay as they are if it is not one of ps-dnn.

    Parameters
    ----------
    settings
        Of the file.
    later
        What goes before them: of the environment, then of the command line.
    """
    if not any(s.loose and s.value == {} and s.key in MARKS for s in settings):
        return Translation(settings, [], "")
    said = {s.key: s.value for s in [*settings, *later] if isinstance(s.value, str)}
    kept: dict[str, Setting] = {}
    notes, problems = [], []
    for setting in settings:
        if setting.key in SECTIONS:
            continue
        here, note = _one(setting, said)
        notes += [f"  line {setting.at.line}, {setting.key}: {note}"] if note else []
        first = kept.setdefault(here.key, here) if here else None
        if first is not here and first is not None:
            what = f"{first.key} is given twice, in lines {first.at.line} and {setting.at.line}"
            problems.append(Problem(setting.at, f"{what}; keep one"))
        if setting.key == "optimizer.optimizer" and setting.value not in OPTIMIZERS:
            what = f"expected {' or '.join(OPTIMIZERS)}, found {setting.value!r}"
            problems.append(Problem(setting.value_at, f"{setting.key}: {what}"))
    head = f"{settings[0].at.source} is a job file of ps-dnn; keys that have no effect, or another:"
    return Translation([*kept.values()], problems, "\n".join([head, *notes]) if notes else "")


def _one(setting: Setting, said: Said) -> tuple[Setting | None, str]:
    """A setting as it is here, None if it has no effect, and what there is to say of it."""
    key = setting.key
    if key in WITHOUT_EFFECT:
        return None, WITHOUT_EFFECT[key]
    if key in ("optimizer.optimizer", "optimizer.learning_rate"):
        kind = said.get("optimizer.optimizer", "")
        if kind not in KINDS:
            return None, _without_optimizer(key, kind)
    here = replace(setting, key=NAMES.get(key, key))
    if key == "net.model":
        return here, _about_model(said)
    return _rows_of_lanes(here, said) if key == "train.batch_size" else (here, "")


def _without_optimizer(key: str, kind: str) -> str:
    if key == "optimizer.learning_rate":
        return f"it is a rate for {kind or 'no optimizer'}; see optimizer.alpha"
    return (
        f"{kind} is not in this version; see optimizer.kind, by default ftrl for w, adagrad for v"
    )


def _about_model(said: Said) -> str:
    asked = said["net.model"]
    kind = said.get("model.kind", asked)
    if kind not in TRAINED:
        return f"{kind} can be shown, but this version trains {' and '.join(TRAINED)} only"
    return f"model.kind is {kind} instead of {asked}" if kind != asked else ""


def _rows_of_lanes(setting: Setting, said: Said) -> tuple[Setting, str]:
    """In sync mode a step of batch_size rows is one minibatch of each lane, which learns alike."""
    rows, lanes = str(setting.value), said.get("train.lanes", str(TrainSection().lanes))
    sync = said.get("train.consistency", "sync") == "sync"
    whole = all(text.isdecimal() and len(text) < 20 for text in (rows, lanes))
    if not (sync and whole and int(lanes)):
        return setting, ""
    each = str(max(1, int(rows) // int(lanes)))
    note = f"a step of {rows} rows is {lanes} minibatches of {each}, one for each lane"
    return replace(setting, value=each), "" if "train.batch_rows" in said else note
