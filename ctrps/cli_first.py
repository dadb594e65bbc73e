"""The commands of the first minutes: try it, begin a job, look at the machine, explain an error."""

import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Context, Option

from ctrps import completion, templates
from ctrps.errors import ConfigError
from ctrps.screen import Json, loading, one_of, print_json, reported, say, status_of

if TYPE_CHECKING:
    from ctrps.starter import Started

first_app = typer.Typer()


@first_app.command()
@reported
def demo(
    context: Context,
    folder: Annotated[Path, Argument(metavar="DIR", help="New folder, or one of a demo.")] = Path(
        "ctrps-demo"
    ),
    as_json: Json = False,
) -> None:
    """Try everything once: make logs, extract features, train on a local cluster, judge the model.

    The logs are generated from a known model, so that the best possible AUC is known and stands
    beside the one that was reached. All is left in DIR: the raw tables, a job file to edit, and the
    run. Given again, the same logs and the job file as it stands there then are used.

    Example: ctrps demo ctrps-demo
    """
    with loading():
        from ctrps.runtime.dashboard import ProgressLine
        from ctrps.runtime.demo import Demo
        from ctrps.runtime.warm import announcing

    root = context.find_root().command
    with ProgressLine(sys.stderr, "auto") as line, announcing(line.compiling):
        tell = say if as_json else line.tell
        figures = Demo(folder, tell).run(lambda words: status_of(root, words), line.show, _unsaid)
    if as_json:
        print_json(figures)
        return
    _show_demo(figures)


def _unsaid(text: str) -> None:
    """The step itself says what `launch` would."""


def _show_demo(figures: dict[str, Any]) -> None:
    test, job = figures["test"], figures["job"]
    print(f"test day      AUC {test['auc']:.4f}; {figures['best_auc']:.4f} is the best possible,")
    print("              as these clicks are drawn from a known model")
    print(f"              logloss {test['logloss']:.4f}; {figures['best_logloss']:.4f} is the best")
    print(f"trained       {figures['rows']:,} rows, {figures['rows_per_s']:,.0f} rows/s")
    print(f"model         {figures['model']}")
    print("next")
    run = os.path.relpath(Path(figures["model"]).parent)
    for command, why in (
        (f"ctrps inspect {run}", "what it has learned, by name"),
        (f"ctrps launch -c {job} -s 1 -w 1 --overwrite", "the same model, to the last bit"),
        (f"ctrps predict --model {run}/model --data '{run}/data/test-*.shard' -o s.csv", "scores"),
        ("ctrps init shop --data train.csv", "your own rows"),
    ):
        print(f"  {command}\n      {why}")


@first_app.command()
@reported
def init(
    folder: Annotated[Path, Argument(metavar="DIR", help="Folder for the job file.")] = Path("."),
    template: Annotated[
        str | None,
        Option(
            "--template",
            metavar="csv|criteo|libsvm|logs",
            help="What the data is. Default: as --data is, or csv.",
            autocompletion=completion.one_of_these("csv", "criteo", "libsvm", "logs"),
        ),
    ] = None,
    data: Annotated[
        Path | None, Option("--data", metavar="FILE", help="Training rows to look at.")
    ] = None,
    test: Annotated[
        Path | None, Option("--test", metavar="FILE", help="Test rows, named in the job.")
    ] = None,
    format: Annotated[
        str, Option("--format", metavar="yaml|ini", help="Notation of the job file.")
    ] = "yaml",
    as_json: Json = False,
) -> None:
    """Begin a job: write a job file with comments, ready to be edited, to DIR.

    With --data, the columns of a table are looked at: which is the label, which are numbers, which
    names a row, which says nothing. What was taken for what is said; correct it in the file.

    The template logs is for raw tables that `ctrps extract` joins; it writes a join file and a
    features file, too. Nothing is overwritten.

    Example: ctrps init shop --data train.csv --test test.csv
    """
    from ctrps.starter import TEMPLATES, start

    one_of("--template", template, TEMPLATES)
    one_of("--format", format, ("yaml", "ini"))
    started = start(folder, template, data, test, format)
    if as_json:
        proposal = started.proposal
        found = {name: getattr(proposal, name) for name in (*USES, "share")} if proposal else None
        files = [str(path) for path in started.written]
        print_json({"template": started.template, "files": files, "columns": found})
        return
    _show_started(started, data)


WIDTH = 100
"""Longer lines are hard to read."""

USES = ("label", "id", "numeric", "categories", "ignore", "missing")


def _show_started(started: "Started", data: Path | None) -> None:
    for path in started.written:
        print(f"written       {path}")
    proposal = started.proposal
    if data:
        print(f"format        {started.format}")
    if proposal:
        label = "no column looks like one: set data.label"
        if proposal.label and proposal.share is not None:
            label = f"{proposal.label} ({100 * proposal.share:.3g} % ones)"
        print(f"label         {label}")
        print(f"row id        {proposal.id or 'none'}")
        for name, columns in (
            ("numbers", proposal.numeric),
            ("categories", proposal.categories),
            ("left out", proposal.ignore),
        ):
            print(f"{name:13} {', '.join(columns) or 'none'}")
        say("this is a guess, to be corrected in the file: whole numbers count as categories,")
        say("unless their column is named like an amount")
    steps = {"logs": ("check", "extract", "launch")}.get(started.template, ("check", "train"))
    print("next          " + "\n              ".join(f"ctrps {s} -c {started.job}" for s in steps))


@first_app.command()
@reported
def explain(
    id: Annotated[
        str | None,
        Argument(
            metavar="ID", help="As an error ends: E-DATA-ROW.", autocompletion=completion.error_id
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what the id at the end of an error means, what causes it, and what to do.

    Without ID, all ids are listed. The text is that of docs/errors.md, and comes with the package.

    Example: ctrps explain E-CONFIG-KEY
    """
    pages = error_pages()
    if id is None:
        firsts = {name: text.split(". ")[0].split("\n")[0] for name, text in pages.items()}
        if as_json:
            print_json(firsts)
        else:
            print("\n".join(f"{name:21} {text}" for name, text in firsts.items()))
        return
    name = id.strip("[]").upper()
    name = name if name.startswith("E-") else f"E-{name}"
    if name not in pages:
        import difflib

        near = difflib.get_close_matches(name, pages, 1)
        hint = f"did you mean {near[0]}?" if near else "`ctrps explain` lists all"
        raise ConfigError(f"no error has the id {id!r}", hint=hint, id="E-CONFIG-OPTION")
    if as_json:
        print_json({"id": name, "text": pages[name]})
    else:
        print(f"{name}\n\n{_wrapped(pages[name])}")


def _wrapped(text: str) -> str:
    """Paragraphs and points as wide as the screen, at most ``WIDTH``; tables stay."""
    width = min(shutil.get_terminal_size().columns, WIDTH)
    lines = []
    for line in text.splitlines():
        inside = "  " if line.startswith("* ") else ""
        wraps = line and not line.startswith("|")
        lines += textwrap.wrap(line, width, subsequent_indent=inside) if wraps else [line]
    return "\n".join(lines)


def error_pages() -> dict[str, str]:
    """What ``templates/errors.md`` says of each id; links as their words."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", templates.read("errors.md"))
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    return {name: body.strip() for name, _, body in (s.partition("\n") for s in sections)}
