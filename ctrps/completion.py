"""What the shell completes: keys of settings and their values, ids of errors.

Called once for each press of the key, in a process of its own: nothing heavy is imported here, and
the settings only where they are wanted.
"""

from collections.abc import Callable


def one_of_these(*values: str) -> Callable[[str], list[str]]:
    """Completes an option with few values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def setting(incomplete: str) -> list[str]:
    """Completes ``--set``: a key, or behind the equals sign a value of those that are possible.

    Bash takes the equals sign for the end of a word: there only keys are completed.

    Examples
    --------
    >>> setting("train.la"), setting("train.consistency=a"), setting("train.fused=")
    (['train.lanes='], ['train.consistency=async'], ['train.fused=true', 'train.fused=false'])
    """
    from ctrps.config import STATED

    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={found}" for found in _values(key) if found.startswith(value)]
    return [f"{name}=" for name in STATED if name.startswith(key)]


def _values(key: str) -> list[str]:
    """The values of a setting that are few: of a choice, or of a switch."""
    from typing import Literal, get_args, get_origin

    from ctrps.config import STATED

    field = STATED.get(key)
    annotation = field.annotation if field else None
    if annotation is bool:
        return ["true", "false"]
    return [*map(str, get_args(annotation))] if get_origin(annotation) is Literal else []


def error_id(incomplete: str) -> list[str]:
    """Completes the id of an error."""
    import re

    from ctrps import templates

    ids = re.findall(r"^## (E-\S+)", templates.read("errors.md"), re.MULTILINE)
    return [id for id in ids if id.startswith(incomplete.upper())]
