"""Every id of an error has a page, every page an id; `ctrps explain` prints it."""

import ast
import json
import re
from pathlib import Path

import pytest

from ctrps import errors, templates
from ctrps.cli import app
from ctrps.cli_first import error_pages
from ctrps.errors import ClusterError, ConfigError, CtrpsError, RunFailed, Stopped, with_id

ROOT = Path(__file__).parents[1]
ID = re.compile(r"E-[A-Z]+(-[A-Z]+)?")


def ids_of_the_sources() -> set[str]:
    """Every text of the package that is an id, but for examples in docstrings."""
    return {
        node.value
        for path in (ROOT / "ctrps").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and ID.fullmatch(node.value)
    }


def test_every_id_has_a_page_and_every_page_an_id():
    assert ids_of_the_sources() == {*error_pages()}


def test_the_page_of_the_documentation_is_that_of_the_package():
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == templates.read("errors.md")


@pytest.mark.parametrize("name", error_pages())
def test_a_page_says_what_it_is_how_it_ends_and_what_to_do(name):
    text = error_pages()[name]
    assert text.split("\n")[0].endswith(".")
    assert re.search(r"Exit status (\d+)", text)
    assert "What to do: " in text or re.search(r"^\|.*what to do", text, re.MULTILINE)


def test_every_class_has_an_id_of_its_family():
    tree = [CtrpsError]
    while tree:
        error = tree.pop()
        assert ID.fullmatch(error.id)
        tree += error.__subclasses__()
    assert ConfigError("x").id == "E-CONFIG"
    assert ConfigError("x", id="E-CONFIG-KEY").id == "E-CONFIG-KEY"
    assert ConfigError.id == "E-CONFIG"


def test_an_error_is_told_with_its_id():
    error = ConfigError("no such key\n    a: 1\n    ^", where="a.yaml:1", id="E-CONFIG-KEY")
    assert str(error) == "a.yaml:1: no such key\n    a: 1\n    ^"
    assert error.told == "a.yaml:1: no such key [E-CONFIG-KEY]\n    a: 1\n    ^"


def test_an_id_of_another_process_stays():
    told = ClusterError("no word", where="node 1").told
    assert with_id(f"worker 0: {told}", "E-INTERNAL") == "worker 0: node 1: no word [E-CLUSTER]"
    assert RunFailed(told, exit_status=4, hint="see a log").told.count("[E-") == 1


@pytest.mark.parametrize(
    ("status", "id"),
    [(1, "E-INTERNAL"), (2, "E-CONFIG"), (3, "E-DATA"), (4, "E-CLUSTER"), (75, "E-STOPPED")],
)
def test_an_end_of_which_only_the_status_is_known_has_an_id(status, id):
    assert errors.id_of(status) == id
    assert RunFailed("it ended", exit_status=status).id == id
    assert Stopped("it ended", exit_status=75).id == "E-STOPPED"


def explained(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        app(["explain", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize("word", ["E-CONFIG-KEY", "config-key", "[E-CONFIG-KEY]"])
def test_explain_prints_a_page(capsys, word):
    status, out, _ = explained(capsys, word)
    assert status == 0
    assert out.startswith("E-CONFIG-KEY\n\nA section, key or variable is not a setting.")
    assert "](" not in out


def test_explain_lists_all_and_answers_in_json(capsys):
    _, out, _ = explained(capsys)
    assert len(out.splitlines()) == len(error_pages())
    _, out, _ = explained(capsys, "--json")
    assert json.loads(out).keys() == error_pages().keys()
    _, out, _ = explained(capsys, "E-DISK", "--json")
    assert json.loads(out) == {"id": "E-DISK", "text": error_pages()["E-DISK"]}


def test_explain_names_the_nearest_id(capsys):
    status, _, err = explained(capsys, "E-DATA-RAW")
    assert (status, "did you mean E-DATA-ROW?" in err) == (2, True)
