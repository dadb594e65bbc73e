"""The pages of the documentation do what they say: their commands run, their links lead somewhere.

A console block of ``PAGES`` has a comment before it, ``<!-- run -->`` or ``<!-- not run: why -->``.
In a block, ``$ `` begins a command and ``> `` goes on with it; the other lines are what it prints
on standard output or standard error. All lines that the page shows must be printed, in their
order, but for what differs from run to run and from machine to machine: see ``alike``.
"""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ("tutorial.md", "first-minutes.md", "howto.md")
LINKING = [
    *sorted(DOCS.glob("*.md")),
    *(ROOT / name for name in ("README.md", "sample/README.md", "feature_extract/README.md")),
]
COPIED = ("conf", "sample")

HOME = "/home/you/ctrps"
"""How the pages call the folder that the commands run in."""

LIMIT_S = 120
"""For one block, whose kernels may have to be compiled first."""

TOLERANCE = 0.005
"""Other processors round some sums otherwise; figures of quality may differ by so much."""

CHANGING = re.compile(
    r"(?:\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d"
    r"|sha256:[0-9a-f]{64}|(?<=process )\d+|(?<=127\.0\.0\.1:)\d+"
    r"|[\d,.]+(?= s\b| rows/s)|(?<=-)[0-9a-f]{12}-[0-9a-f]{12}(?=\.)"
)
DECIMAL = re.compile(r"\d+\.\d+")


class Block(NamedTuple):
    """A console block: the line before it, its commands, and the output that it shows."""

    place: str
    before: str
    script: str
    shown: list[str]


def blocks(page: str) -> list[Block]:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    return [
        _block(f"{page}:{number + 1}", lines[number - 1], lines[number + 1 :])
        for number, line in enumerate(lines)
        if line == "```console"
    ]


def _block(place: str, before: str, rest: list[str]) -> Block:
    inside = rest[: rest.index("```")]
    commands = [line[2:] for line in inside if line.startswith(("$ ", "> "))]
    shown = [line for line in inside if not line.startswith(("$ ", "> "))]
    return Block(place, before, "\n".join(commands) + "\n", shown)


def alike(shown: str, printed: str) -> bool:
    """Whether a line of the page is what was printed.

    Times, rates, digests, ports and process numbers may be any, other numbers with a decimal
    point nearly equal, and all else is equal.
    """
    pair = [CHANGING.sub("#", line.rstrip()) for line in (shown, printed)]
    texts = [DECIMAL.sub("#", line) for line in pair]
    numbers = zip(*([float(n) for n in DECIMAL.findall(line)] for line in pair), strict=False)
    return texts[0] == texts[1] and all(abs(a - b) <= TOLERANCE for a, b in numbers)


def not_printed(shown: list[str], printed: list[str]) -> str | None:
    """The first line of ``shown`` that does not come in its order, if there is one."""
    rest = iter(printed)
    return next((line for line in shown if not any(alike(line, found) for found in rest)), None)


def environment(folder: Path) -> dict[str, str]:
    """The present one without settings of ctrps; ``ctrps`` is that of this repository."""
    shim = folder / "bin" / "ctrps"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ctrps "$@"\n')
    shim.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CTRPS_")}
    path = os.pathsep.join([str(shim.parent), kept.get("PATH", os.defpath)])
    return kept | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}


def run(block: Block, folder: Path, env: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-eu"],
        input=block.script,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=env,
        text=True,
        timeout=LIMIT_S,
    )
    output = done.stdout.replace(str(folder), HOME)
    assert done.returncode == 0, f"{block.place} ended with {done.returncode}:\n{output}"
    missing = not_printed(block.shown, output.splitlines())
    assert missing is None, f"{block.place} shows {missing!r}, printed was:\n{output}"


@pytest.mark.slow
@pytest.mark.cluster
def test_the_commands_of_the_pages_do_what_is_shown(tmp_path):
    folder = tmp_path / "ctrps"
    folder.mkdir()
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("orig"))
    env = environment(tmp_path)
    for page in PAGES:
        for block in blocks(page):
            if block.before == "<!-- run -->":
                run(block, folder, env)


def test_the_python_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for page in sorted(DOCS.glob("*.md")):
        assert doctest.testfile(str(page), module_relative=False, encoding="utf-8").failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_whether_it_is_run(page):
    wrong = [b.place for b in blocks(page) if not re.match(r"<!-- (run|not run: .+) -->", b.before)]
    assert wrong == []


def test_lines_are_compared_but_for_what_changes():
    line = "trained  100 rows in 3.1 s (33,698 rows/s), 416 steps; AUC 0.6944"
    assert alike(line, "trained  100 rows in 12.9 s (5 rows/s), 416 steps; AUC 0.6950")
    assert not alike(line, line.replace("100", "101"))
    assert not alike(line, line.replace("0.6944", "0.7944"))
    assert not alike(line, line.replace("AUC", "loss"))
    assert not_printed(["a", "c"], ["a", "b", "c"]) is None
    assert not_printed(["c", "a"], ["a", "b", "c"]) == "a"


def links(page: Path) -> list[str]:
    """Targets of the links of a page that lead to files of the repository."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Names of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_something(page):
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_reached_from_the_index():
    seen: set[Path] = set()
    ahead = [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen:
            seen.add(page)
            targets = [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
            ahead += [target for target in targets if target.suffix == ".md" and target.exists()]
    assert {page.resolve() for page in DOCS.glob("*.md")} <= {page.resolve() for page in seen}
