"""The commands that make, turn and show data; how they print and fail is ``ctrps.screen``'s."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ctrps.screen import (
    ConfigFile,
    Format,
    Json,
    MaxBad,
    Overrides,
    Overwrite,
    RowsSaid,
    load,
    loading,
    one_of,
    print_json,
    reported,
    say,
)

if TYPE_CHECKING:
    from ctrps.config import JobConfig
    from ctrps.data.reading import TextSettings

data_app = typer.Typer()

Files = Annotated[
    list[Path],
    Argument(metavar="FILE...", help="Files, folders, patterns, or - for standard input."),
]
Label = Annotated[
    str | None, Option("--label", metavar="COLUMN", help="Column of the label (data.label).")
]
Labels = Annotated[
    str,
    Option("--labels", metavar="required|optional|none", help="Whether rows must have a label."),
]


@data_app.command()
@reported
def extract(
    config: ConfigFile = None,
    overrides: Overrides = None,
    stage: Annotated[
        str | None, Option("--stage", metavar="sample|features", help="Do one half only.")
    ] = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        bool, Option("--resume", help="Go on with what a run that was cut off has left.")
    ] = False,
    part: Annotated[
        str | None, Option("--part", metavar="I/N", help="Do part I of N, in one shared folder.")
    ] = None,
    dask: Annotated[
        str | None,
        Option("--dask", metavar="ADDRESS", help="Have the workers of a Dask cluster do it."),
    ] = None,
    explain: Annotated[
        str | None,
        Option("--explain", metavar="[FILE:]N", help="Show how row N of the samples came to be."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn raw logs into samples, and samples into feature shards.

    Reads the tables in `sample.dir`, joins them as `sample.join` says, applies the features of
    `features.spec`, and writes OUTPUT.DIR/data/train-*.shard and test-*.shard, which are the
    default data of the same job.

    With --part, N runs in any order, at one time or not, share OUTPUT.DIR; a part that failed is
    run again. The one that ends last puts the parts together.

    With --dask, the parts are tasks of a Dask cluster, whose scheduler is at ADDRESS and whose
    workers see all files under the same paths. What a worker that dies was doing is done by
    another one.

    With --explain, nothing is written: of a row of OUTPUT.DIR/samples, by default of the first
    training file, it shows each feature with its fields, operator, values and keys.

    Example: ctrps extract -c job.yaml
    """
    with loading():
        from ctrps.data.extract import extract as run

    if explain is not None:
        _explain(load(config, overrides), explain, as_json)
        return
    one_of("--stage", stage, ("sample", "features"))
    summary = run(
        load(config, overrides),
        stage=stage,
        overwrite=overwrite,
        progress=RowsSaid(),
        resume=resume,
        part=part,
        dask=dask,
    )
    if as_json:
        print_json(summary)
        return
    print(f"rows          {summary['rows']:,} ({summary['rejected']:,} rejected)")
    for name, figures in summary["stages"].items():
        print(f"{name:13s} {figures['rows']:,} rows, {figures['cpu_s']:.1f} s of CPU")
    if summary["missing"]:
        print(f"not done yet  {', '.join(summary['missing'])}")
        return
    for split, paths in summary["outputs"].items():
        print(f"{split:13s} {len(paths)} shard(s)")


def _explain(job: "JobConfig", row: str, as_json: bool) -> None:
    from ctrps.data.explain import explain, explained_lines

    found = explain(job, row)
    if as_json:
        print_json(found.to_dict())
    else:
        print("\n".join(explained_lines(found)))


@data_app.command()
@reported
def convert(
    files: Files,
    out: Annotated[
        str, Option("--out", "-o", metavar="OUT", help="File to write, or - for stdout.")
    ],
    to: Annotated[
        str | None,
        Option(
            "--to", metavar="shard|libsvm|libffm|vw|parquet", help="Format; default: by OUT's name."
        ),
    ] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    format: Format = "",
    label: Label = None,
    labels: Labels = "required",
    max_bad: MaxBad = 0.0,
    as_json: Json = False,
) -> None:
    """Turn files of any format into one shard, or into text or Parquet for another tool.

    Text is read as the `data` section of the job says; the options above override it. Keys are
    written as numbers, a key of a column of n values with the weight 1/n.

    Example: ctrps convert day-*.csv.gz -o day.shard --label clicked
    """
    from ctrps.data.convert import expand
    from ctrps.data.rewrite import rewrite, written_format

    form = written_format(out, to)
    how = _settings(config, overrides, format, label, labels, max_bad)
    target = sys.stdout.buffer.write if out == "-" else Path(out)
    summary = rewrite(expand(files), target, form, how) | {"out": out, "format": form}
    _say_inputs(summary["inputs"], summary["rejected"])
    if as_json and out != "-":
        print_json(summary)
    else:
        say(f"{summary['rows']:,} rows written to {'standard output' if out == '-' else out}")


@data_app.command()
@reported
def head(
    files: Files,
    rows: Annotated[int, Option("--rows", "-n", min=0, help="Rows of each file to show.")] = 10,
    config: ConfigFile = None,
    overrides: Overrides = None,
    format: Format = "",
    label: Label = None,
    labels: Labels = "optional",
) -> None:
    """Show the first rows of files as they are read: label, id, slots with keys, numbers.

    The first line says how the format was told.

    Example: ctrps head train.ffm -n 3
    """
    from ctrps.data.convert import expand
    from ctrps.data.describe import head as lines

    how = _settings(config, overrides, format, label, labels)
    for path in expand(files):
        for line in lines(path, rows, how):
            print(line)


@data_app.command()
@reported
def stats(
    files: Files,
    config: ConfigFile = None,
    overrides: Overrides = None,
    format: Format = "",
    label: Label = None,
    labels: Labels = "optional",
    max_bad: MaxBad = 0.0,
    as_json: Json = False,
) -> None:
    """Count what files hold: rows, clicks, keys per row, distinct keys and gaps of each slot.

    Example: ctrps stats 'runs/job/data/train-*.shard'
    """
    from ctrps.data.convert import expand
    from ctrps.data.describe import stats as count

    figures = count(expand(files), _settings(config, overrides, format, label, labels, max_bad))
    if as_json:
        print_json(figures)
        return
    _say_inputs(figures["files"], figures["rejected"])
    _show_stats(figures)


@data_app.command()
@reported
def names(
    paths: Annotated[
        list[Path], Argument(metavar="PATH...", help="Files of names, or folders that hold some.")
    ],
    top: Annotated[
        int, Option("--top", "-n", min=0, help="Show so many, the most frequent; 0 shows all.")
    ] = 0,
    find: Annotated[
        str, Option("--find", metavar="TEXT", help="Show only names that hold TEXT.")
    ] = "",
) -> None:
    """Show which text each key was made of, as csv: key, count, name.

    `ctrps extract` writes names beside each training shard, of `features.names` keys at most. The
    count is how often the key stands in the rows that were counted, 65,536 of a shard at most. How
    much the names cover is said on stderr.

    Example: ctrps names runs/job/data --find cate_id=
    """
    import csv

    from ctrps.data.names import read_names

    found = read_names(paths)
    share = 100 * found.named_values / max(found.values, 1)
    counted = "" if found.exact else "; a count may be too low"
    rows = f"{found.counted_rows:,} of {found.rows:,} rows"
    say(f"{len(found.keys):,} keys, {share:.2f} % of the values of {rows}{counted}")
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["key", "count", "name"])
    out.writerows(found.most_frequent(top, find))


def _settings(
    config: Path | None,
    overrides: list[str] | None,
    format: str,
    label: str | None,
    labels: str,
    max_bad: float = 0.0,
) -> "TextSettings":
    """How to read text: as the job says, if not an option does."""
    from dataclasses import replace

    from ctrps.runtime.inputs import text_settings

    one_of("--labels", labels, ("required", "optional", "none"))
    stated = {"data.format": format, "data.label": label}
    more = [f"{key}={value}" for key, value in stated.items() if value]
    how = text_settings(load(config, overrides, tuple(more)), labels)
    return replace(how, max_bad=max(how.max_bad, max_bad))


def _say_inputs(inputs: list[dict[str, Any]], rejected: int) -> None:
    for found in inputs:
        say(f"{found['path']}: {found['format']}, {found['why']}; {found['rows']:,} rows")
    if rejected:
        say(f"note: {rejected:,} bad rows left out")


def _show_stats(figures: dict[str, Any]) -> None:
    print(f"rows          {figures['rows']:,}")
    if figures["ctr"] is not None:
        print(f"clicks        {figures['clicks']:,} ({100 * figures['ctr']:.4g} %)")
    if figures["rows"]:
        keys = figures["keys_per_row"]
        print(f"keys per row  {keys['mean']:.4g} ({keys['min']:,} to {keys['max']:,})")
    if figures["indices"]:
        print("indices       {least:,} to {greatest:,}".format(**figures["indices"]))
    for name, slot in figures["slots"].items():
        gaps = f", missing in {100 * slot['missing']:.4g} %" if slot["missing"] else ""
        print(f"slot          {name!r}: {slot['distinct_keys']:,} distinct keys{gaps}")
    for name, number in figures["numbers"].items():
        print(
            f"number        {name!r}: {number['min']:g} to {number['max']:g}, "
            f"mean {number['mean']:g}"
        )
