"""The commands ``ctrps status``, ``top`` and ``report``: look at a run from outside."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ctrps.screen import Json, print_json, reported, say

watch_app = typer.Typer()

Place = Annotated[
    str | None,
    Argument(
        metavar="[RUN|ADDRESS]",
        help="Folder of the run (output.dir), or HOST:PORT of its page. Default: this folder, or "
        "the only running one below runs/.",
    ),
]

UNWELL = 4
"""Exit status for a run that is degraded, stopped or unreachable."""


@watch_app.command()
@reported
def status(place: Place = None, as_json: Json = False) -> None:
    """Tell how a run is: what it does, how far it is, its nodes, what is wrong.

    Asks the page of a running job (cluster.http), and looks into the folder of one that has ended.

    Exit status: 0 healthy, starting or finished; 4 degraded (nodes are missing, or the job does not
    get on), stopped before its end, or unreachable.

    Example: ctrps status runs/job
    """
    from ctrps.runtime.observe import find, observe

    seen = observe(find(place, Path.cwd()))
    if as_json:
        print_json(seen.as_dict())
    else:
        from ctrps.runtime.top import lines

        for line in lines(seen):
            print(line)
    raise typer.Exit(0 if seen.well else UNWELL)


@watch_app.command()
@reported
def top(place: Place = None) -> None:
    """Watch a run in the terminal, until it ends; q quits.

    Where standard output is no terminal, a line every few seconds instead.

    Exit status as for `ctrps status`, of what was seen last.

    Example: ctrps top runs/job
    """
    from ctrps.runtime.observe import find, observe
    from ctrps.runtime.top import lines, over, watch

    where = find(place, Path.cwd())
    seen = watch(lambda: observe(where), sys.stdout, sys.stdin)
    if over(seen) and sys.stdout.isatty():
        for line in lines(seen):
            print(line)
    raise typer.Exit(0 if seen.well else UNWELL)


@watch_app.command()
@reported
def report(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of the run (output.dir).")],
    out: Annotated[
        Path, Option("--out", "-o", metavar="FILE", help="File to write; - for stdout.")
    ] = Path("run.html"),
) -> None:
    """Write the page of a run with all its data into one file, which needs nothing else.

    Figures come from metrics.jsonl, nodes from the running job or from what it left at its end.

    Example: ctrps report runs/job -o run.html
    """
    from ctrps.errors import DataError
    from ctrps.runtime.observe import frozen

    page = frozen(run.absolute())
    if str(out) == "-":
        sys.stdout.write(page)
        return
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"cannot write there: {error.strerror}", where=str(out), id="E-DISK"
        ) from None
    say(f"{out}: {len(page.encode()):,} bytes")
