"""The commands ``ctrps inspect`` and ``export``: what a model has learned, and its weights."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ctrps.errors import ConfigError
from ctrps.screen import Format, Json, loading, one_of, print_json, reported, say

if TYPE_CHECKING:
    from ctrps.dictionary import Dictionary
    from ctrps.inspection import Weights
    from ctrps.loaded import LoadedModel

model_app = typer.Typer()

FIELDS = 20
"""Fields that are shown; ``--json`` has all."""

Model = Annotated[
    str, Argument(metavar="MODEL", help="Folder of a model or of a run, or the URL of a model.")
]
Labels = Annotated[
    str,
    Option(
        "--labels", metavar="optional|none", help="none: rows of indices have no label in front."
    ),
]


@model_app.command()
@reported
def inspect(
    model: Model,
    top: Annotated[
        int, Option("--top", "-n", min=0, help="Show so many features, also of a row.")
    ] = 10,
    field: Annotated[
        str | None,
        Option("--field", metavar="PREFIX", help="Show only features of this field."),
    ] = None,
    feature: Annotated[
        str | None,
        Option(
            "--feature",
            metavar="NAME",
            help="Show one feature: PREFIX=VALUE, a number's name, a key or `intercept`.",
        ),
    ] = None,
    names: Annotated[
        list[Path] | None,
        Option(
            "--names",
            metavar="PATH",
            help="Files of names, folders of some, or tables. "
            "Default: those of the model's training rows. Repeatable.",
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        Option("--data", metavar="F", help="Rows to measure fields on. Repeatable; patterns."),
    ] = None,
    row: Annotated[
        int | None,
        Option(
            "--row",
            metavar="N",
            min=1,
            help="Explain the score of row N of the data, counted from 1.",
        ),
    ] = None,
    labels: Labels = "optional",
    format: Format = "auto",
    as_json: Json = False,
) -> None:
    """Show what a model holds: its training, figures of its table, strongest features, fields.

    Features are shown by the names that `ctrps extract` left beside the training rows, or that the
    training table holds; which share of the weights these cover is said. A field's importance is
    how far it moves a score on average, as log-odds: by the counts of the names, or with --data by
    these rows, pairs of fm included; its spread, how differently it moves them.

    With --row, the score of one row is taken apart: each feature's part, which add up to the
    margin.

    Example: ctrps inspect runs/job --top 20 --field cate_id
    """
    with loading():
        from ctrps import contributions, inspection
        from ctrps.data.convert import expand
        from ctrps.dictionary import Dictionary

    _check_options(field, feature, row, data)
    one_of("--labels", labels, ("optional", "none"))
    field, feature = _as_utf8(field), _as_utf8(feature)
    files = expand(data) if data else []
    loaded = inspection.model_at(model)
    dictionary = Dictionary.of(loaded, names, files)
    if feature is not None:
        found = inspection.feature(loaded, dictionary, feature)
        print_json(found) if as_json else _show_feature(found)
        return
    if row is not None:
        how = {"format": format, "labels": labels}
        why = contributions.explain_row(loaded, files[0], row, dictionary, **how)
        print_json(why) if as_json else _show_row(why, top)
        return
    figures = _figures(loaded, dictionary, top, field)
    if files:
        measured = contributions.importance(loaded, files, format, labels)
        figures |= {"fields": measured["fields"], "measured_rows": measured["rows"]}
    print_json(figures) if as_json else _show(figures, field)


def _as_utf8(text: str | None) -> str | None:
    """Text of the command line as the data has it, whatever the locale; bytes may be any."""
    return None if text is None else os.fsencode(text).decode("utf-8", "surrogateescape")


def _check_options(
    field: str | None, feature: str | None, row: int | None, data: list[Path] | None
) -> None:
    if row is not None and not data:
        raise ConfigError("a row of which file?", where="--row", hint="add --data FILE")
    if row is not None and data and len(data) > 1:
        raise ConfigError("a row of which file?", where="--row", hint="give one --data FILE")
    asked = {"--field": field, "--feature": feature, "--row": row}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        what = f"{' and '.join(given)} ask for different things"
        raise ConfigError(what, where=given[1], hint="give one of them")


def _figures(
    loaded: "LoadedModel", dictionary: "Dictionary", top: int, field: str | None
) -> dict[str, Any]:
    from ctrps import inspection

    if field is not None:
        dictionary.field(field)
    weights: Weights = inspection.Weights.of(loaded)
    named = dictionary.of_keys(weights.keys)
    return inspection.summary(loaded, weights) | {
        "names": inspection.coverage(weights, named)
        | {"files": [str(file) for file in dictionary.files]},
        "features": inspection.top(weights, dictionary, named, top, field),
        "fields": inspection.importance(weights, dictionary, named),
        "measured_rows": None,
    }


def _show(figures: dict[str, Any], field: str | None) -> None:
    if field is None:
        _show_summary(figures)
    _show_names(figures["names"])
    _show_top(figures["features"])
    if field is None and figures["fields"]:
        _show_fields(figures["fields"], figures["measured_rows"])


def _show_summary(figures: dict[str, Any]) -> None:
    if figures["cut"] == "fuzzy":
        say(
            "note: saved inside a pass of a mode that does not wait; to go on from, not to score by"
        )
    steps = f"{figures['steps_in_pass']:,}"
    place = f"step {steps} of pass {figures['passes'] + 1}"
    if figures["end_of_pass"]:
        place = f"{figures['passes']} pass(es) of {steps} steps"
    dim = f", dim {figures['dim']}" if figures["dim"] else ""
    print(f"model         {figures['folder']} ({figures['kind']}{dim})")
    print(f"digest        {figures['model_digest']}")
    run = figures["run"]
    rows = f", {run['rows']:,} rows in the last run" if run else ""
    print(f"training      job {figures['job']}, checkpoint {figures['checkpoint']}, {place}{rows}")
    for name, part in figures["parts"].items():
        settings = [f"{key} {value:g}" for key, value in part.items() if isinstance(value, float)]
        print(f"{name:13s} {part['kind']} ({', '.join(settings)})")
    test = (run or {}).get("test")
    if test and test["auc"] is not None:
        print(f"test          AUC {test['auc']:.6f}, logloss {test['logloss']:.6f}")
    per = figures["partitions"]
    size = f"{figures['size_bytes'] / 1e6:,.1f} MB in {per['count']} partitions"
    print(f"keys          {figures['keys']:,}, {per['least']:,} to {per['most']:,} a partition")
    print(f"size          {size}, {figures['columns']} numbers a key")
    print(f"intercept     {figures['intercept']:.6g}")
    heads = ["not zero".rjust(12), *(name.rjust(10) for name in ("median", "90 %", "99 %", "most"))]
    print(" ".join([" " * 13, *heads]))
    for name, column in figures["tables"].items():
        quantiles = "".join(f" {value:>10.4g}" for value in column["quantiles"].values())
        shown = {"w": "|w|", "v": "norm of v"}.get(name, f"|{name}|")
        print(f"{shown:13s} {column['nonzero']:>12,}{quantiles}")


def _show_names(names: dict[str, Any]) -> None:
    if names["share"] is None:
        print("names         no weight differs from zero")
        return
    of = f"of {names['used_keys']:,} non-zero weights"
    print(f"names         {100 * names['share']:.1f} % {of} named")
    if not names["named"]:
        say("note: no names found; --names FILE takes what `ctrps extract` wrote")


def _show_top(features: list[dict[str, Any]]) -> None:
    if not features:
        return
    norms = "v_norm" in features[0]
    counted = features[0]["count"] is not None
    columns = ["weight".rjust(13), *(["norm of v".rjust(10)] if norms else [])]
    print(" ".join(columns + (["count".rjust(10)] if counted else [])) + "  feature")
    for one in features:
        columns = [f"{one['w']:>+13.6f}", *([f"{one['v_norm']:>10.4f}"] if norms else [])]
        if counted:
            columns.append((f"{one['count']:,}" if one["count"] else "-").rjust(10))
        name = one["name"] if one["name"] is not None else f"key {one['key']}"
        print(" ".join(columns) + f"  {_plain(name)}")


def _show_fields(fields: list[dict[str, Any]], rows: int | None) -> None:
    columns = ["importance"] if rows is None else ["spread", "importance", "linear", "pairs"]
    if rows and not any(one["pairs"] for one in fields):
        columns = columns[:2]
    heads = [*columns, *([] if rows else ["keys"])]
    first, *rest = (name.rjust(13 if name == heads[0] else 10) for name in heads)
    print(" ".join([first, *rest]) + f"  field{f', over {rows:,} rows' if rows else ''}")
    for one in fields[:FIELDS]:
        first, *rest = (f"{one[name]:>10.6f}" for name in columns)
        keys = [] if rows else [f"{one['keys']:>10,}"]
        print(" ".join([first.rjust(13), *rest, *keys]) + f"  {_plain(one['field']) or '(all)'}")
    if len(fields) > FIELDS:
        print(f"{'':13s} and {len(fields) - FIELDS} more; --json has all")


def _show_feature(found: dict[str, Any]) -> None:
    print(f"feature       {_plain(found['feature'])}")
    print(f"key           {found['key']}")
    if found["count"] is not None:
        print(f"count         {found['count']:,} in the rows counted for names")
    if not found["held"]:
        print("weight        none: the model does not hold it, and it counts as zero")
    for name, value in found.items():
        if name in ("w", "v") or "." in name:
            values = value if isinstance(value, list) else [value]
            print(f"{name:13s} {' '.join(f'{one:.6g}' for one in values)}")


def _show_row(found: dict[str, Any], most: int) -> None:
    print(f"row           {found['row']:,} of {found['file']}")
    if found["id"] is not None:
        print(f"id            {_plain(found['id'])}")
    if found["label"] is not None:
        print(f"label         {found['label']:g}")
    print(f"margin        {found['margin']:.6f}")
    print(f"probability   {found['probability']:.6f}")
    features = found["features"]
    pairs = any(one["pairs"] for one in features)
    columns = ["linear", "pairs", "value"] if pairs else ["value"]
    print(" ".join(["adds".rjust(13), *(name.rjust(10) for name in columns)]) + "  feature")
    room = " " * (33 if pairs else 11)
    print(f"{found['intercept']:>+13.6f}{room}  intercept")
    for one in features[:most]:
        line = f"{one['contribution']:>+13.6f}"
        if pairs:
            line += f" {one['linear']:>+10.6f} {one['pairs']:>+10.6f}"
        key = f"{one['field']}: key {one['key']}" if one["field"] else f"key {one['key']}"
        name = one["name"] if one["name"] is not None else key
        print(f"{line} {one['value']:>10.4g}  {_plain(name)}")
    if rest := features[most:]:
        total = sum(one["contribution"] for one in rest)
        print(f"{total:>+13.6f}{room}  {len(rest)} more features")
    print(f"{found['margin'] - found['rounding']:>+13.6f}{room}  sum")


def _plain(text: str) -> str:
    """Text of the data as a terminal can show it."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@model_app.command()
@reported
def export(
    model: Model,
    out: Annotated[
        Path, Option("--out", "-o", metavar="OUT", help="File to write, or - for stdout.")
    ],
    to: Annotated[str, Option("--to", metavar="text|npz|vw", help="Format of the file.")] = "text",
    check: Annotated[
        list[Path] | None,
        Option(
            "--check",
            metavar="F",
            help="Score 1,000 rows by the model and by the file. Repeatable; patterns.",
        ),
    ] = None,
    labels: Labels = "optional",
    format: Format = "auto",
    as_json: Json = False,
) -> None:
    """Write a model's weights to a file for other programs; keys whose weights are 0 are left out.

    text: a line per key, `key w v1 v2 …`. npz: arrays for NumPy. vw: examples of which Vowpal
    Wabbit makes the same model (lr only); the command for it is printed.

    With --check the file is read back by other code, and the command fails with status 3 if two
    scores of a row differ by more than 0.000001.

    Example: ctrps export runs/job -o model.txt --check 'runs/job/data/test-*.shard'
    """
    with loading():
        from ctrps import export as exporting
        from ctrps.data.convert import expand
        from ctrps.inspection import model_at

    one_of("--to", to, ("text", "npz", "vw"))
    one_of("--labels", labels, ("optional", "none"))
    shown = str(out) == "-"
    if shown and (check or as_json):
        what = "the model itself goes to standard output"
        raise ConfigError(what, where="--check" if check else "--json", hint="name a file")
    rows = expand(check) if check else []
    loaded = model_at(model)
    figures = exporting.export(loaded, sys.stdout.buffer if shown else out, to)
    checked = exporting.check(loaded, out, to, rows, format, labels) if rows else None
    if as_json:
        print_json({"out": str(out)} | figures | {"check": checked})
        return
    tell = say if shown else print
    keys = f"{figures['keys']:,} keys, {figures['left_out']:,} zeros left out"
    tell(f"{to:13s} {'standard output' if shown else out} ({keys})")
    if checked:
        apart = f"scores differ by at most {checked['difference']:.3g}"
        print(f"check         {checked['rows']:,} rows, {apart}")
    if to == "vw":
        tell(f"to load it    {exporting.VW_COMMAND.format('FILE' if shown else out)}")
