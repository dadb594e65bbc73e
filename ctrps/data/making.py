"""Folders that a stage fills: under another name until all is there, so that none is half full.

A run that was cut off leaves such a folder, and another may take it up; several runs may fill one
together, each its share. What is in it is known to who fills it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctrps.errors import ConfigError

MADE_OF = "made_of.json"
CLAIM = "finishing"


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of the work a run does: number ``number``, from 0, of ``of``.

    Examples
    --------
    >>> share = Share.parse("2/4")
    >>> [task for task in range(8) if share.has(task)], str(share)
    ([1, 5], '2/4')
    """

    number: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read ``I/N``, I from 1 to N.

        Raises
        ------
        ConfigError
            It is something else.
        """
        found = re.fullmatch("([0-9]{1,4})/([0-9]{1,4})", text)
        number, of = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= number <= of:
            hint = "it is I/N, I from 1 to N, for example 1/4"
            raise ConfigError(f"{text!r} is no part", where="--part", hint=hint)
        return cls(number - 1, of)

    def has(self, task: int) -> bool:
        return task % self.of == self.number

    def all(self) -> list[Share]:
        return [Share(number, self.of) for number in range(self.of)]

    def __str__(self) -> str:
        return f"{self.number + 1}/{self.of}"


def write_json(path: Path, value: object) -> None:
    """Write a file, whole or not at all."""
    making = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    making.write_text(json.dumps(value, indent=1) + "\n")
    making.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """What ``write_json`` wrote; empty if there is no such file."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_room(folder: Path, need_bytes: float) -> None:
    """Refuse to start what would end with a full disk.

    Raises
    ------
    ConfigError
        There is less free than is needed.
    """
    free = shutil.disk_usage(folder).free
    if need_bytes > free:
        what = f"this takes about {need_bytes / 1e9:.1f} GB of disk, and {free / 1e9:.1f} GB are"
        raise ConfigError(
            f"{what} free", where=str(folder), hint="give another output.dir", id="E-DISK"
        )


@contextmanager
def making(folder: Path, made_of: dict[str, Any], keep: bool) -> Iterator[Path]:
    """A folder beside ``folder`` to fill; ``publish`` it when all is there.

    Parameters
    ----------
    made_of
        All that the content follows from.
    keep
        Take up what a run made of the same left there, and leave it there after an error.
        Otherwise only what interrupts the process leaves it.

    Raises
    ------
    ConfigError
        What was left there is made of something else.
    """
    there = folder.with_name(folder.name + ".making")
    found = read_json(there / MADE_OF)
    if keep and found and found != made_of:
        hint = f"give the same settings and tables, or remove {there}"
        raise ConfigError(
            "the unfinished run was of others", where=str(there), hint=hint, id="E-CONFIG-RUN"
        )
    if not keep:
        shutil.rmtree(there, ignore_errors=True)
    there.mkdir(parents=True, exist_ok=True)
    if not keep or not found:
        write_json(there / MADE_OF, made_of)
    try:
        yield there
    except Exception:
        if not keep:
            shutil.rmtree(there, ignore_errors=True)
        raise


def claim(there: Path, again: bool) -> bool:
    """Whether this run is the one that finishes a folder; ``again``: even if another began to."""
    flags = os.O_CREAT | (0 if again else os.O_EXCL)
    try:
        os.close(os.open(there / CLAIM, flags))
    except FileExistsError:
        return False
    return True


def publish(there: Path, folder: Path) -> None:
    """Give a folder that is full its name; one of that name is replaced.

    What runs that were cut off have left half made, ``tmp-`` in its name, goes.
    """
    for path in (there / MADE_OF, there / CLAIM, *there.glob("*tmp-*")):
        path.unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(there, folder)
