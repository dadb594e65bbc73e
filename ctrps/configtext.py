"""Job files for people and their tools: the same job in the other notation, and a JSON Schema."""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_origin

import yaml

from ctrps.config import SECTIONS, STATED, JobConfig, load_job
from ctrps.configfile import Setting, read_file, split_list, unquote
from ctrps.errors import ConfigError
from ctrps.psdnn import translated
from ctrps.sections import OptimizerBlock

NOTATIONS = ("yaml", "ini")
SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def converted(path: Path, to: str) -> str:
    """A job file in another notation: the same settings in the same words, without comments.

    A file of ps-dnn becomes one of ctrps.

    Parameters
    ----------
    path
        Job file; paths in it stay as they are, so the new one belongs into the same folder.
    to
        ``yaml`` or ``ini``.

    Raises
    ------
    ConfigError
        The file is wrong, or ini cannot say what stands in it.
    """
    load_job(path, [], {})  # everything that is wrong with it is said as always
    settings = translated(read_file(path, SECTIONS)[0], []).settings
    stated = {s.key: value for s in settings if (value := _value(s)) is not None}
    lines = _yaml(stated) if to == "yaml" else _ini(stated)
    return "\n".join([f"# Made from {path.name}; paths are relative to this file.", *lines, ""])


def _value(setting: Setting) -> str | list[str] | None:
    """The text of a value, or of the elements of a list."""
    value = setting.value
    if isinstance(value, dict):
        return None
    if not setting.loose or not isinstance(value, str):
        return value
    if get_origin(STATED[setting.key].annotation) is tuple:
        return split_list(value)
    return unquote(value) or None


def _by_section(stated: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sections in the order of their first keys, each with all of its keys."""
    for section in dict.fromkeys(key.rpartition(".")[0] for key in stated):
        keys = {key.rpartition(".")[2]: key for key in stated if key.rpartition(".")[0] == section}
        yield section, {name: stated[key] for name, key in keys.items()}


def _yaml(stated: Mapping[str, Any]) -> list[str]:
    tree: dict[str, Any] = {}
    for section, values in _by_section(stated):
        inner = tree
        for name in filter(None, section.split(".")):
            inner = inner.setdefault(name, {})
        inner |= values
    # Every value is text to ctrps, so that none needs quotes but what has a meaning in YAML.
    text = yaml.dump(tree, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text.rstrip("\n").split("\n")


class _Plain(yaml.SafeDumper):
    """Writes texts without quotes where they read back as the same text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        return super().represent_sequence(tag, sequence, flow_style=True)


def _plain(dumper: _Plain, text: str) -> yaml.ScalarNode:
    # The tag that the text resolves to: the writer then sees no need for quotes.
    tag = dumper.resolve(yaml.ScalarNode, text, (True, False))
    kept = "tag:yaml.org,2002:str" if tag.endswith((":null", ":merge", ":value")) else tag
    return yaml.ScalarNode(kept, text)


_Plain.add_representer(str, _plain)


def _ini(stated: Mapping[str, Any]) -> list[str]:
    lines = []
    for section, values in _by_section(stated):
        lines += ["", f"[{section or 'job'}]"]
        for name, value in values.items():
            text = _row(value) if isinstance(value, list) else value
            lines.append(f"{name} = {_ini_text(text, f'{section}.{name}'.lstrip('.'))}")
    return lines


def _row(elements: list[str]) -> str:
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(elements)
    return row.getvalue()


def _ini_text(text: str, key: str) -> str:
    """A value on one line of ini, in quotes where a comment would begin in it."""
    if not re.search(r"(^|\s)[;#]|^\s|\s$|^\"", text) and "\n" not in text:
        return text
    if '"' in text or "\n" in text:
        raise ConfigError(f"{key}: ini cannot say {text!r}", hint="keep the job in YAML")
    return f'"{text}"'


def schema() -> dict[str, Any]:
    """The JSON Schema of a job file, for editors that complete and check YAML."""
    found = JobConfig.model_json_schema()
    definitions = found["$defs"]
    block = definitions[OptimizerBlock.__name__]["properties"]
    short = {
        name: field | {"description": f"{field['description']} For w, and for v where it suits."}
        for name, field in block.items()
    }
    definitions["OptimizerSection"]["properties"] |= short
    for section in (*definitions.values(), found):
        for name, field in section["properties"].items():
            # A section may be empty, and a list of one be written as one.
            field.pop("default", None) if "$ref" in field else None
            if field.get("type") == "array":
                words = {k: field.pop(k) for k in ("title", "description") if k in field}
                default = {"default": field.pop("default")} if "default" in field else {}
                section["properties"][name] = (
                    {"anyOf": [field, {"type": "string"}]} | words | default
                )
    return {"$schema": SCHEMA, **found, "title": "Job file of ctrps"}
