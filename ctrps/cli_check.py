"""The command ``ctrps check``: look at a job before it runs, or for leakage in its samples."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from ctrps.errors import with_id
from ctrps.screen import (
    ConfigFile,
    Json,
    Overrides,
    RowsSaid,
    load,
    print_json,
    reported,
    say,
)

if TYPE_CHECKING:
    from ctrps.data.leakage import Leakage

check_app = typer.Typer()

FAILED = 5
"""Exit status of samples that know what happened later."""

LEAKS = "E-LEAKAGE"

WIDE = 200
"""Characters of a row that are shown; `ctrps head` shows all."""

SHOWN = 20
"""Differences that are shown; ``--json`` has all."""


@check_app.command()
@reported
def check(
    config: ConfigFile = None,
    overrides: Overrides = None,
    leakage: Annotated[
        bool, Option("--leakage", help="Make some rows of the samples again, the slow way.")
    ] = False,
    rows: Annotated[
        int, Option("--rows", metavar="N", min=1, help="Rows that --leakage checks.")
    ] = 100,
    seed: Annotated[int, Option("--seed", metavar="S", help="Seed of their choice.")] = 1,
    as_json: Json = False,
) -> None:
    """Look at a job before it runs: settings, files, columns, first rows, steps, sizes, addresses.

    Nothing is written. The first thing that is wrong ends it. Rows of text are estimated from its
    beginning, and distinct keys, with the memory and disk that they take, from the first 20,000.

    With --leakage, impressions chosen at random are joined again, and their windows computed again
    by brute force, from the raw tables and strictly earlier events. That is compared with the
    samples of `ctrps extract`, which are made in a temporary folder if there are none of these
    settings. Then each row is made once more from tables in which all that it must not see is
    deleted, and must stay the same. What differs is listed, and the exit status is 5.

    Example: ctrps check -c job.yaml --leakage --rows 200
    """
    job = load(config, overrides)
    if leakage:
        from ctrps.data.leakage import check_leakage

        found = check_leakage(job, rows, seed, RowsSaid())
        print_json(found.to_dict()) if as_json else _show_leakage(found)
        if found.differences:
            what = f"{len(found.differences):,} fields are not as the raw tables say"
            say(f"error: {with_id(what, LEAKS)}")
            raise typer.Exit(FAILED)
        return
    from ctrps.cli_keys import guard_of
    from ctrps.runtime.check import check as look

    figures = look(job, guard_of(job))
    for warning in figures["warnings"]:
        say(f"warning: {warning}")
    print_json(figures) if as_json else _show(figures)


def _show_leakage(found: "Leakage") -> None:
    of = found.samples or "samples made for this"
    print(f"rows          {found.rows:,} of {of}")
    print(f"windows       {found.windows:,}, of {found.events:,} events")
    print(f"differences   {len(found.differences):,}")
    for one in found.differences[:SHOWN]:
        why = "without later events" if one.deletion else "by brute force"
        place = f"{one.where} (impression {one.row:,}) {one.column}"
        print(f"              {place}: {one.expected!r} {why}, found {one.found!r}")
    if len(found.differences) > SHOWN:
        print(f"              and {len(found.differences) - SHOWN:,} more")


def _show(figures: dict[str, Any]) -> None:
    print(f"job           {figures['name']}")
    for table in figures["tables"]:
        size = f"{_size(table['bytes'])}, about {table['rows']:,} rows"
        print(f"table         {table['name']}: {table['path']}, {size}")
        print(f"              {', '.join(table['columns'])}")
        print(f"              {table['first']}")
    sample = figures["sample"]
    if sample:
        print(f"samples       {sample['columns']} columns, {sample['windows']} of them windows")
        if sample["slots"] is not None:
            print(f"features      {sample['slots']} sparse, {sample['dense']} dense")
    for part in ("train", "test"):
        _show_files(part, figures[part])
    print(f"steps         {figures['steps']:,} a pass, of {figures['step_rows']:,} rows")
    size, machine = figures["size"], figures["machine"]
    if size:
        seen = f"{size['looked_keys']:,} in the first {size['looked_rows']:,} rows"
        print(f"keys          about {size['keys']:,} ({seen})")
        print(
            f"model         about {_size(size['model_bytes'])} of memory in all servers together,"
        )
        print(f"              {_size(size['checkpoint_bytes'])} of disk for each checkpoint")
    free = f"{_size(machine['memory_bytes'])} of memory, {_size(machine['disk_bytes'])} of disk"
    print(f"free          {free}")
    print(f"output        {figures['output']['dir']}: {figures['output']['state']}")
    for address in figures["addresses"]:
        print(f"address       {address['setting']} {address['address']}: {address['state']}")


def _size(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def _show_files(part: str, files: dict[str, Any] | None) -> None:
    if files is None:
        print(f"{part:13s} no files yet")
        return
    rows = f"{'' if files['exact'] else 'about '}{files['rows']:,} rows"
    print(f"{part:13s} {files['files']} file(s), {_size(files['bytes'])}, {rows}")
    for line in files["first"]:
        print(f"              {line if len(line) <= WIDE else line[:WIDE] + ' …'}")
