"""docs/config.md says of every setting what the models say: no key missing, none invented."""

import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from ctrps.config import RESERVED_VARIABLES, SECTIONS, STATED, load_job
from ctrps.errors import CtrpsError

PAGE = (Path(__file__).parents[1] / "docs" / "config.md").read_text(encoding="utf-8")
PAGE_OF_STATUSES = Path(__file__).parents[1] / "docs" / "exit-status.md"

# Defaults that follow from other settings, and types that a model does not name.
DEFAULTS = {
    "name": "name of the job file",
    "data.train": "`OUTPUT.DIR/data/train-*.shard`",
    "data.test": "`OUTPUT.DIR/data/test-*.shard`",
    "output.dir": "`runs/NAME`",
    "optimizer.kind": "w `ftrl`, v `adagrad`",
    "optimizer.alpha": "ftrl 0.1, adagrad 0.05, sgd 0.01",
    "optimizer.count_scale": "w 0, v 16",
    "train.batch_rows": "`256`; async, ssp, semi: 8 to 1024",
    "train.window": "`1`, `2`",
}
TYPES = {
    "cluster.scheduler": "HOST:PORT",
    "cluster.server_bind": "HOST:PORT",
    "cluster.http": "HOST:PORT or `off`",
    "optimizer.alpha": "number above 0, at most 1e+06",
    "train.partitions": "power of two, 1 to 256",
    "train.stale_above": "whole number, 0 to 1048576",
}


def limits(field: FieldInfo, noun: str) -> str:
    found = {
        name: getattr(m, name)
        for m in field.metadata
        for name in ("gt", "ge", "le")
        if hasattr(m, name)
    }
    text = noun
    if "gt" in found:
        text += f" above {found['gt']:g}"
    if "ge" in found and "le" in found:
        top = "2^64 - 1" if found["le"] == 2**64 - 1 else f"{found['le']:.7g}"
        return f"{noun}, {found['ge']} to {top}"
    if "ge" in found:
        return f"{noun}, at least {found['ge']}"
    return f"{text}, at most {found['le']:g}" if "le" in found else text


def type_text(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "list of paths" if Path in get_args(annotation) else "list of texts"
    if Path in (annotation, *get_args(annotation)):
        return "path"
    if annotation is bool:
        return "`true`, `false`"
    if annotation in (int, float):
        return limits(field, "whole number" if annotation is int else "number")
    return "text"


def default_text(field: FieldInfo) -> str:
    value = field.default
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)!r}`".replace("'", '"')
    return f"{value:g}" if isinstance(value, float) else f"`{value}`"


def row(key: str, field: FieldInfo) -> str:
    kind = TYPES.get(key) or type_text(field)
    default = DEFAULTS.get(key) or default_text(field)
    return f"| `{key}` | {kind} | {default} | {field.description} |"


def test_the_page_has_exactly_the_rows_of_the_models():
    expected = {
        row(key, field)
        for key, field in STATED.items()
        if not key.startswith(("optimizer.w.", "optimizer.v."))
    }
    found = {line for line in PAGE.splitlines() if re.match(r"\| `[a-z0-9_.]+` \|", line)}
    assert found == expected


def test_every_section_has_a_heading():
    headings = set(re.findall(r"^## `(\w+)`", PAGE, re.MULTILINE))
    assert headings == {section for section in SECTIONS if "." not in section} | {"name"}


def test_reserved_variables_are_named():
    assert all(f"`{variable}`" in PAGE for variable in RESERVED_VARIABLES)


def test_every_setting_has_a_description():
    assert all(field.description for field in STATED.values())


def test_the_job_files_on_the_page_load(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block, encoding="utf-8")
        load_job(path, [], {})


def test_every_exit_status_of_the_errors_is_documented():
    page = PAGE_OF_STATUSES.read_text(encoding="utf-8")
    documented = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    tree, seen = [CtrpsError], set()
    while tree:
        error = tree.pop()
        seen.add(error.exit_status)
        tree += error.__subclasses__()
    assert seen <= documented
    assert documented == {0, 1, 2, 3, 4, 5, 75, 130, 143}
