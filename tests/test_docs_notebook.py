"""docs/notebook.ipynb runs, and prints what it shows.

``python -m tests.test_docs_notebook`` runs it and writes what it prints into it. A cell is Python,
whose last expression is its result, or a command of the shell, ``! …``.
"""

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.test_docs_pages import alike, environment

PAGE = Path(__file__).parents[1] / "docs" / "notebook.ipynb"


def run_cell(source, names):
    """What a cell prints, and the text of its result."""
    if source.startswith("!"):
        done = subprocess.run(
            ["bash", "-eu", "-c", source[1:]], capture_output=True, text=True, check=True
        )
        return done.stdout, None
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, result = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            result = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return printed.getvalue(), None if result is None else repr(result)


def run_all(page, folder):
    """The cells of code of a notebook, each with its outputs as a notebook holds them."""
    names = {"__name__": "__main__"}
    kept, here = os.environ.copy(), Path.cwd()
    os.environ.update(environment(folder))
    os.chdir(folder)
    try:
        cells = (cell for cell in page["cells"] if cell["cell_type"] == "code")
        for number, cell in enumerate(cells, 1):
            printed, result = run_cell("".join(cell["source"]), names)
            yield cell, number, outputs(number, printed, result)
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(kept)


def outputs(number, printed, result):
    found = []
    if printed:
        text = printed.splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": text})
    if result is not None:
        data = {"text/plain": result.splitlines(keepends=True)}
        more = {"execution_count": number, "metadata": {}}
        found.append({"data": data, "output_type": "execute_result"} | more)
    return found


def lines(cell_outputs):
    return [
        line.rstrip("\n")
        for one in cell_outputs
        for line in one.get("text", one.get("data", {}).get("text/plain", []))
    ]


def loaded():
    return json.loads(PAGE.read_text(encoding="utf-8"))


@pytest.mark.cluster
def test_the_notebook_prints_what_it_shows(tmp_path):
    count = 0
    for cell, number, found in run_all(loaded(), tmp_path):
        count += 1
        shown, printed = lines(cell["outputs"]), lines(found)
        assert cell["execution_count"] == number and len(shown) == len(printed), printed
        for one, other in zip(shown, printed, strict=True):
            assert alike(one, other), f"shown {one!r}, printed {other!r}"
    assert count > 5


def test_it_is_a_notebook():
    page = loaded()
    assert (page["nbformat"], page["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in page["cells"]}) == len(page["cells"])
    for cell in page["cells"]:
        assert cell["cell_type"] in ("code", "markdown") and isinstance(cell["source"], list)
        assert ("outputs" in cell) == (cell["cell_type"] == "code")


if __name__ == "__main__":
    notebook = loaded()
    with tempfile.TemporaryDirectory() as home:
        for part, count, seen in run_all(notebook, Path(home)):
            part["execution_count"], part["outputs"] = count, seen
            sys.stdout.write("\n".join([*lines(seen), ""]))
    PAGE.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
