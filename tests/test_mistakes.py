"""The catalogue of mistakes: each gives its cause and remedy in one line, and the right status.

``python -m tests.test_mistakes`` writes ``docs/mistakes.md`` anew, but for what stands above its
first heading of a group.
"""

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from ctrps.cli import app
from tests import mistakes
from tests.mistakes import GROUPS, PROCESSES, Mistake
from tests.procs import Lab

PAGE = Path(__file__).parents[1] / "docs" / "mistakes.md"
ALL = {one.title: one for group in GROUPS.values() for one in group}
LIMIT_S = 10.0
"""Of CPU: a mistake is told before there is any work."""

HOME = "/home/you"
CHANGING = {
    r"(?<=127\.0\.0\.1:)\d{2,}": "9000",
    r"(?<=\(process )\d+": "4211",
    r"(?<=resolve this host: )[^;]+": "Name or service not known",
}
"""What differs from run to run or from machine to machine, and what the page has for it."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    mistakes.write_files(folder)
    return folder


def made(one: Mistake, folder: Path) -> tuple[int, str]:
    """Make a mistake in a folder: the status and what was said on standard error."""
    for name, text in one.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    before, environ = Path.cwd(), dict(os.environ)
    said = StringIO()
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("CTRPS_")]:
        del os.environ[name]
    os.environ |= one.environ
    try:
        with one.around(folder), redirect_stderr(said), redirect_stdout(StringIO()):
            app(one.words)
    except SystemExit as ended:
        return int(ended.code or 0), said.getvalue()
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ |= environ
    raise AssertionError(f"{one.command} did not end")


def shown(said: str, folder: Path) -> str:
    """The error as the page shows it."""
    error = said[said.index("error: ") :].replace(str(folder), HOME).rstrip("\n")
    error = error.replace(f"{HOME}/", "")
    for pattern, text in CHANGING.items():
        error = re.sub(pattern, text, error)
    return error


def documented() -> dict[str, tuple[str, str]]:
    """Of each mistake on the page: its command, and all that is shown."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^### (.*)\n\n```console\n\$ (.*)\n((?:.*\n)*?)```\n", text, re.MULTILINE)
    return {title: (command, output.rstrip("\n")) for title, command, output in found}


def entry(title: str, command: str, output: str, status: int, id: str) -> str:
    link = f"[{id}](errors.md#{id.lower()})"
    return f"### {title}\n\n```console\n$ {command}\n{output}\n```\n\nStatus {status}, {link}.\n"


def check(output: str, id: str) -> None:
    """One line has the cause and the remedy, and ends with the id."""
    first = output.split("\n")[0]
    assert first.startswith("error: ")
    assert f"[{id}]" in first
    assert "Traceback" not in output


@pytest.mark.parametrize("title", ALL)
def test_a_mistake_is_told_in_one_line_with_its_status(title, prepared, tmp_path):
    one, folder = ALL[title], tmp_path / "here"
    shutil.copytree(prepared, folder)
    began = time.thread_time()
    status, said = made(one, folder)
    assert time.thread_time() - began < LIMIT_S
    assert status == one.status, said
    output = shown(said, folder)
    check(output, one.id)
    assert documented()[title] == (one.command, output), "python -m tests.test_mistakes"


@pytest.mark.cluster
@pytest.mark.parametrize("title", PROCESSES)
def test_a_mistake_of_several_processes(title, prepared, tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(prepared, folder)
    command, happens, status, id = PROCESSES[title]
    with Lab(folder) as lab:
        run = happens(lab)
        assert run.wait() == status, run.story()
        output = shown(run.stderr, folder)
        lab.all_gone()
    check(output, id)
    first = output.split("\n")[0]
    assert documented()[title][0] == command
    assert documented()[title][1].split("\n")[0] == first, "python -m tests.test_mistakes"


def test_there_are_thirty_and_all_are_on_the_page():
    assert len(ALL) + len(PROCESSES) >= 30
    assert documented().keys() == {*ALL, *PROCESSES}


def sections(prepared: Path) -> Iterator[str]:
    """The page below its introduction, made by making all mistakes."""
    for group, several in GROUPS.items():
        yield f"## {group}\n"
        for one in several:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name) / "here"
                shutil.copytree(prepared, folder)
                status, said = made(one, folder)
            yield entry(one.title, one.command, shown(said, folder), status, one.id)
    for title, (command, happens, status, id) in PROCESSES.items():
        with tempfile.TemporaryDirectory() as name, Lab(Path(name)) as lab:
            shutil.copytree(prepared, name, dirs_exist_ok=True)
            run = happens(lab)
            run.wait()
            yield entry(title, command, shown(run.stderr, Path(name)), status, id)


if __name__ == "__main__":
    top = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[0]
    with tempfile.TemporaryDirectory() as home:
        mistakes.write_files(Path(home))
        text = "\n".join([top.rstrip("\n") + "\n", *sections(Path(home))])
    PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{PAGE}: {len(ALL) + len(PROCESSES)} mistakes\n")
