"""docs/commands.md says of every command and option what ``--help`` says; ``--help`` works.

``python -m tests.test_docs_commands`` writes the page anew, but for what stands above its first
command.
"""

import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ctrps.cli import app
from tests.procs import DEADLINE_S

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
SHELLS = ("--install-completion", "--show-completion")


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name; groups only lead to them."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        for word, below in getattr(command, "commands", {}).items():
            if not getattr(below, "hidden", False):
                yield from walk(f"{name} {word}", below)
        if not hasattr(command, "commands"):
            yield name, command

    return walk("ctrps", typer.main.get_command(app))


ALL = dict(commands())


def words_of(command: Any) -> tuple[str, str]:
    """What a command's help says, and its example."""
    text, _, example = inspect.cleandoc(command.help).partition("Example: ")
    return text.strip(), " ".join(example.split())


def visible(command: Any) -> list[Any]:
    return [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]


def row(parameter: Any) -> str:
    """The row of a table that documents an option or an argument."""
    if parameter.opts[0].startswith("-"):
        value = "" if parameter.is_flag else f" {parameter.metavar or 'N'}"
        names = ", ".join(f"`{name}{value}`" for name in parameter.opts)
    else:
        names = f"`{parameter.metavar}`"
    notes = [parameter.help]
    if parameter.required:
        notes.append("Required.")
    elif parameter.default not in (None, False, -1):
        notes.append(f"Default: `{parameter.default}`.")
    if getattr(parameter, "envvar", None):
        notes.append(f"Variable: `{parameter.envvar}`.")
    return f"| {names.replace('|', chr(92) + '|')} | {' '.join(notes)} |"


def section(name: str, command: Any) -> str:
    text, example = words_of(command)
    table = "\n".join(["| option | meaning |", "| --- | --- |", *map(row, visible(command))])
    # Examples first: most people look for one.
    return f"## `{name}`\n\n```sh\n{example}\n```\n\n{text}\n\n{table}\n"


def page(top: str) -> str:
    return top + "\n".join(section(name, command) for name, command in sorted(ALL.items()))


def top_of(text: str) -> str:
    """What a person wrote above the first command."""
    return re.split(r"^(?=## `ctrps )", text, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_page_is_what_the_commands_say():
    text = PAGE.read_text(encoding="utf-8")
    documented = set(re.findall(r"^## `(.*)`$", text, re.MULTILINE))
    assert documented == set(ALL)
    assert text == page(top_of(text)), "python -m tests.test_docs_commands writes it anew"


def test_the_page_names_the_options_of_all_commands():
    root = typer.main.get_command(app)
    top = top_of(PAGE.read_text(encoding="utf-8"))
    for parameter in visible(root):
        if parameter.opts[0] not in SHELLS:
            assert f"`{parameter.opts[0]}`" in top
    assert "`--help`" in top


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_has_words_and_an_example(name):
    text, example = words_of(ALL[name])
    assert text and example
    assert all(parameter.help for parameter in ALL[name].params if parameter.name != "help")


@pytest.mark.parametrize("name", ALL)
def test_every_example_is_a_command_that_can_be_given(name):
    _, example = words_of(ALL[name])
    words = shlex.split(re.sub(r"^(\w+=\S+ )+", "", example))
    names = name.split()
    assert words[: len(names)] == names
    found = ALL[name].make_context(name, words[len(names) :])
    assert found.params


@pytest.mark.parametrize("name", ["ctrps", "ctrps config", *ALL])
def test_help_works_and_shows_what_is_documented(name, capsys):
    with pytest.raises(SystemExit) as ended:
        app([*name.split()[1:], "--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "Usage: " in shown
    if name in ALL:
        options = {opt for p in visible(ALL[name]) for opt in p.opts if opt.startswith("-")}
        assert options <= set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", shown))
        hidden = {opt for p in ALL[name].params if getattr(p, "hidden", False) for opt in p.opts}
        assert not hidden & set(re.findall(r"--[a-z-]+", shown))


def test_help_works_in_a_process_of_its_own():
    for arguments in ([], ["train"], ["config", "show"]):
        command = [sys.executable, "-m", "ctrps", *arguments, "-h"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.startswith("Usage: ")


if __name__ == "__main__":
    PAGE.write_text(page(top_of(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
