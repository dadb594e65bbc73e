"""Job files to begin with: templates with comments, filled in by what a data file shows.

The texts are in ``ctrps/templates``. A line ``key: $name | comment`` gets a value; where there is
none, it stays as a comment that shows an example.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ctrps import templates
from ctrps.configfile import yaml_text
from ctrps.configtext import schema
from ctrps.data.columns import SEPARATORS
from ctrps.data.detect import detect
from ctrps.data.preview import about_rows
from ctrps.data.propose import Proposal, propose
from ctrps.errors import ConfigError

TEMPLATES = ("csv", "criteo", "libsvm", "logs")
LOGS_PARTS = ("sample.yaml", "features.ini")
"""Files that a job on raw logs names."""

SCHEMA_NAME = "ctrps.schema.json"
COMMENTS_AT = 32
SMALL = 500_000
"""Rows of a file below which steps are small: what is learned depends on how many there are."""

TRAINING = {
    "kind": "lr",
    "alpha": 0.1,
    "l1": 0.0,
    "l2": 0.0,
    "passes": 1,
    "rows": 256,
    "servers": 1,
    "workers": 1,
    "name": "job",
    "output": "runs/job",
}
LOGS = TRAINING | {"raw": "raw", "alpha": 0.02, "l1": 0.5, "l2": 1.0, "passes": 2, "rows": 64}
EXAMPLES = {
    "train": "train.csv",
    "test": "test.csv",
    "label": "label",
    "numeric": ["price"],
    "ignore": ["note"],
    "id": "row_id",
    "missing": ["", "NULL"],
}
_LINE = re.compile(r"(?P<indent> *)(?P<key>\w+): (?P<value>[^|]+?)(?: \| (?P<note>.*))?")


class Started(NamedTuple):
    """What ``start`` has written, and what it took the columns for."""

    job: Path
    written: list[Path]
    template: str
    format: str | None
    proposal: Proposal | None
    """The uses of the columns of a table; None for other files."""


def start(
    folder: Path,
    template: str | None = None,
    data: Path | None = None,
    test: Path | None = None,
    notation: str = "yaml",
) -> Started:
    """Write a job file, and what it names, to a folder.

    Parameters
    ----------
    folder
        Made where it is missing.
    template
        One of ``TEMPLATES``; None goes by the format of ``data``, or takes ``csv``.
    data, test
        Files of rows; of a table, the uses of its columns are proposed.
    notation
        ``yaml`` or ``ini``.

    Raises
    ------
    ConfigError
        A file is there already, or the data is not of the template's format.
    DataError
        The data cannot be read.
    """
    if data and template == "logs":
        hint = "raw tables are named in the job file, by sample.dir"
        raise ConfigError("--data is for files of rows", hint=hint, id="E-CONFIG-OPTION")
    form = detect(data).format if data else None
    template = template or (_template_of(form) if form else TEMPLATES[0])
    if form and _template_of(form) != template:
        hint = f"use --template {_template_of(form)}, or leave it out"
        raise ConfigError(f"it is {form}", where=str(data), hint=hint, id="E-CONFIG-OPTION")
    proposal = propose(data, form) if data and form in SEPARATORS and form != "criteo" else None
    values = dict(LOGS if template == "logs" else TRAINING)
    values["name"] = _name(folder)
    values["output"] = f"runs/{values['name']}"
    if data:
        values["rows"] = 64 if about_rows(data) < SMALL else 256
    values |= _paths(folder, data, test) | {"format": form if form in FORMS else "libsvm"}
    values |= _columns(proposal)
    texts = {f"job.{notation}": job_file(template, values, notation)}
    if template == "logs":
        texts |= {name: templates.read(name) for name in LOGS_PARTS}
    if notation == "yaml":
        texts[SCHEMA_NAME] = json.dumps(schema(), indent=1) + "\n"
    written = write(folder, texts)
    return Started(written[0], written, template, form, proposal)


FORMS = ("libsvm", "libffm", "dummy")


def _template_of(form: str) -> str:
    if form in FORMS:
        return "libsvm"
    return "criteo" if form == "criteo" else "csv"


def _name(folder: Path) -> str:
    """The name of the run: that of the folder, as far as a name may be so."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in folder.absolute().name)
    return name.strip(".") or "job"


def _paths(folder: Path, data: Path | None, test: Path | None) -> dict[str, Any]:
    """Relative to the job file where they are in its folder or beside that, else absolute."""
    found = {}
    for name, path in (("train", data), ("test", test)):
        if path is not None:
            near = path.absolute().is_relative_to(folder.absolute().parent)
            whole = str(path.absolute())
            found[name] = os.path.relpath(whole, folder.absolute()) if near else whole
    return {"train": EXAMPLES["train"]} | found


def _columns(proposal: Proposal | None) -> dict[str, Any]:
    if proposal is None:
        return {}
    lists = {name: list(getattr(proposal, name)) for name in ("numeric", "ignore")}
    if proposal.missing:
        lists["missing"] = ["", *proposal.missing]
    found = {"label": proposal.label, "id": proposal.id} | lists
    return {name: value for name, value in found.items() if value}


def job_file(template: str, values: Mapping[str, Any], notation: str = "yaml") -> str:
    """The text of a job file.

    Examples
    --------
    >>> text = job_file("criteo", TRAINING | {"train": "day_0.gz"})
    >>> print("\\n".join(text.splitlines()[12:16]))
    data:
      train: day_0.gz               # files or patterns: [day_0.gz, day_1.gz]
      # test: test.csv              # the figures at the end are of these rows
      format: criteo                # numbers become categories of their size
    """
    text = templates.read(f"{template}.yaml") + templates.read("training.yaml")
    text = text.replace("$file", f"job.{notation}")
    lines = [_filled(line, values, notation) for line in text.splitlines()]
    if notation == "ini":
        lines = lines[1:]  # which is for editors of YAML
    return "\n".join(lines) + "\n"


def _filled(line: str, values: Mapping[str, Any], notation: str) -> str:
    if notation == "ini" and re.fullmatch(r"\w+:", line):
        return f"[{line[:-1]}]"
    found = _LINE.fullmatch(line)
    if found is None or line.startswith("#"):
        return line
    indent, key, value = found["indent"], found["key"], found["value"]
    mark = ""
    if value.startswith("$"):
        given = values.get(value[1:])
        mark = "# " if given is None else ""
        value = _text(EXAMPLES[key] if given is None else given, notation)
    stated = f"{indent}{mark}{key}: {value}"
    if notation == "ini":
        # What is outside every section in YAML is in [job].
        stated = f"{'' if indent else '[job]' + chr(10)}{mark}{key} = {value}"
    return f"{stated:{COMMENTS_AT - 2}}  # {found['note']}" if found["note"] else stated


def _text(value: Any, notation: str) -> str:
    """A value in YAML; ini reads lists in brackets as YAML, too."""
    if notation == "ini" and isinstance(value, str):
        return f'"{value}"' if re.search(r"[;#,]|^\s|\s$", value) else value
    return yaml_text(value)


def write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files, none of which may be there.

    Raises
    ------
    ConfigError
        One is there, or the folder cannot be written to; nothing has been written then.
    """
    paths = [folder / name for name in texts]
    for path in paths:
        if path.exists() and path.name != SCHEMA_NAME:
            hint = "give another folder, or move it away"
            raise ConfigError("it is there already", where=str(path), hint=hint, id="E-CONFIG-RUN")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        what = f"cannot write there: {error.strerror}"
        raise ConfigError(what, where=str(folder), id="E-DISK") from None
    return paths
