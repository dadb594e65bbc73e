"""The commands ``ctrps predict`` and ``ctrps evaluate``: scores of rows, and how good they are."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from ctrps.errors import ConfigError, with_id
from ctrps.screen import DataFiles, Format, Json, MaxBad, loading, one_of, print_json, reported, say

if TYPE_CHECKING:
    from ctrps.figures import Levels, Tally
    from ctrps.predict import Predictions, Scores

predict_app = typer.Typer()

BELOW = 5
"""Exit status of scores that are not as good as was asked for."""

GATE = "E-GATE"
"""Id of that error."""


@predict_app.command()
@reported
def predict(
    model: Annotated[
        str, Option("--model", metavar="DIR", help="Folder of a trained model, or its URL.")
    ],
    data: DataFiles,
    out: Annotated[
        str,
        Option("--out", "-o", metavar="OUT", help="File: csv, .gz or .parquet; - for stdout."),
    ] = "-",
    link: Annotated[
        str, Option("--link", metavar="proba|logit", help="Write probabilities, or log-odds.")
    ] = "proba",
    keep: Annotated[
        list[str] | None,
        Option("--keep", metavar="COLUMN", help="Column to write beside the score. Repeatable."),
    ] = None,
    labels: Annotated[
        str,
        Option(
            "--labels",
            metavar="optional|none",
            help="none: rows of indices have no label in front.",
        ),
    ] = "optional",
    format: Format = "auto",
    max_bad: MaxBad = 0.0,
) -> None:
    """Score rows with a trained model, in the order of the rows.

    Writes one line for each row: its id, where the data has ids, columns to keep, and its click
    probability. Where rows have labels, it says on standard error how good the scores are.

    Example: ctrps predict --model runs/job/model --data today.csv -o scores.csv
    """
    with loading():
        from ctrps import predict as predicting
        from ctrps import scorefiles
        from ctrps.data.convert import expand
        from ctrps.evaluation import facts_of
        from ctrps.figures import Tally

    one_of("--labels", labels, ("optional", "none"))
    one_of("--link", link, scorefiles.LINKS)
    kept = tuple(dict.fromkeys(keep or ()))
    loaded = predicting.LoadedModel.open(model)
    found = predicting.predict(
        loaded, expand(data), labels=labels, max_bad=max_bad, format=format, keep=kept
    )
    tally = Tally()
    if out == "-":
        # An id is bytes of the data, which need not be text of the terminal's encoding.
        sys.stdout.reconfigure(errors="surrogateescape", newline="\n")  # type: ignore[union-attr]
    rows = scorefiles.write_scores(
        _tallied(found, tally), sys.stdout if out == "-" else Path(out), link=link, keep=kept
    )
    sys.stdout.flush()  # scores stand before what is said of them, on a shared stream too
    _say_notes(facts_of(found))
    # A closed standard output (`>&-`), which `main` replaces: there is nobody to tell.
    if tally.rows and getattr(sys.stdout, "name", "") != os.devnull:
        say(_told(tally.levels()))
    if out != "-":
        say(f"{rows:,} rows scored to {out}")


def _tallied(found: "Predictions", tally: "Tally") -> Iterator["Scores"]:
    for part in found:
        tally.add(part.probabilities, part.labels)
        yield part


def _told(levels: "Levels") -> str:
    """How good scores are, in a line."""
    from ctrps.figures import approximated

    found = approximated(levels)
    bound = f" ± {found['auc_bound']:.1g}" if found["auc_bound"] else ""
    rows = f"{found['rows']:,} labelled row{'' if found['rows'] == 1 else 's'}"
    return f"{rows}: AUC {_auc(found)}{bound}, logloss {_six(found['logloss'])}"


def _say_notes(facts: dict[str, Any]) -> None:
    for note in facts["notes"]:
        say(f"note: {note}")
    if facts["rejected"]:
        say(f"note: {facts['rejected']:,} bad rows left out")
    if facts["unknown"]:
        share = f"{100 * facts['unknown_share']:.1f} %"
        known = f"{facts['unknown']:,} of {facts['occurrences']:,} values ({share})"
        say(f"note: the model does not know {known}")


@predict_app.command()
@reported
def evaluate(
    data: DataFiles,
    model: Annotated[
        str | None,
        Option("--model", metavar="DIR", help="Folder of a trained model, or its URL."),
    ] = None,
    group: Annotated[
        str | None,
        Option("--group", metavar="COLUMN", help="Give the AUC inside groups, users for example."),
    ] = None,
    by: Annotated[
        list[str] | None,
        Option("--by", metavar="COLUMN", help="Give figures for each value of it. Repeatable."),
    ] = None,
    compare: Annotated[
        str | None,
        Option("--compare", metavar="OTHER", help="Another model, or column of scores."),
    ] = None,
    min_auc: Annotated[
        float | None,
        Option("--min-auc", metavar="X", min=0, max=1, help="End with status 5 if AUC is below."),
    ] = None,
    report: Annotated[
        Path | None, Option("--report", metavar="FILE", help="Write a page of HTML with plots.")
    ] = None,
    approx: Annotated[
        bool, Option("--approx", help="Count scores in bins: for rows that memory does not hold.")
    ] = False,
    score: Annotated[
        str | None,
        Option("--score", metavar="COLUMN", help="Without --model: column of scores, or `score`."),
    ] = None,
    label: Annotated[
        str | None,
        Option("--label", metavar="COLUMN", help="Without --model: column of labels, or `label`."),
    ] = None,
    format: Format = "auto",
    max_bad: MaxBad = 0.0,
    as_json: Json = False,
) -> None:
    """Say how good scores of labelled rows are: a model's, or those in a file.

    With --model, rows are scored by it. Without, they are tables that hold probabilities and
    labels. Figures are exact over all rows, with intervals of 95 %; where one has no value, the
    reason is given. --group, --by and columns of scores are columns of the data; of shards, the
    names of slots, or `id`.

    With --compare, the differences are those of this model minus the other one, on the same rows.

    Exit status 5: AUC is below --min-auc, or has no value.

    Example: ctrps evaluate --model runs/job/model --data 'runs/job/data/test-*.shard'
    """
    with loading():
        from ctrps import evaluation
        from ctrps.data.convert import expand
        from ctrps.figures import Asked
        from ctrps.loaded import LoadedModel

    asked = Asked(group, tuple(dict.fromkeys(by or ())))
    if approx and (asked.columns or compare):
        what = "--approx keeps no rows, so it has no --group, --by or --compare"
        raise ConfigError(what, hint="leave --approx out: a row takes about 100 bytes")
    _check_kind(model, {"--score": score, "--label": label}, max_bad)
    paths = expand(data)
    loaded = None if model is None else LoadedModel.open(model)
    score, how = score or "score", dict[str, Any](approx=approx, format=format)
    if loaded is None:
        names = (f"column {score}", f"column {compare}")
        judged = evaluation.judge_scores(
            paths, asked, compare, score=score, label=label or "label", **how
        )
    else:
        names = (str(model), str(compare))
        other = None if compare is None else LoadedModel.open(compare)
        judged = evaluation.judge_model(loaded, paths, asked, other, max_bad=max_bad, **how)
    if min_auc is not None:
        judged.figures["gate"] = {"min_auc": min_auc, "passed": _good(judged.figures, min_auc)}
    if report is not None:
        from ctrps.evaluationpage import write_page

        write_page(report, judged, names, [str(path) for path in data], loaded)
        say(f"report written to {report}")
    print_json(judged.figures) if as_json else _show(judged.figures, names[1])
    if min_auc is not None:
        _end_at_gate(judged.figures)


def _check_kind(model: str | None, columns: dict[str, str | None], max_bad: float) -> None:
    """Refuse options that would be without effect."""
    named = [option for option, column in columns.items() if column is not None]
    if model is not None and named:
        hint = "leave it out: the model knows its columns (data.label of its job)"
        raise ConfigError("it is for files of scores, without --model", where=named[0], hint=hint)
    if model is None and max_bad:
        hint = "each row of a file of scores must be readable"
        raise ConfigError("it is for rows that a model scores", where="--max-bad", hint=hint)


def _good(found: dict[str, Any], least: float) -> bool:
    return found["auc"] is not None and found["auc"] >= least


def _end_at_gate(found: dict[str, Any]) -> None:
    least, passed = found["gate"]["min_auc"], found["gate"]["passed"]
    text = f"AUC {_auc(found)} is {'not below' if passed else 'below'} the gate of {least:g}"
    if found["auc"] is None:
        text = f"AUC is {_auc(found)}, and the gate is {least:g}"
    if passed:
        say(f"gate: {text}")
    else:
        say(f"error: {with_id(text, GATE)}")
        raise typer.Exit(BELOW)


def _show(found: dict[str, Any], other: str) -> None:
    rate = f", rate {_six(found['clicks'] / found['rows'])}" if found["rows"] else ""
    _line("rows", f"{found['rows']:,}, {found['clicks']:,} clicks{rate}")
    bound = f"± {found['auc_bound']:.1g} (bins)" if found.get("auc_bound") is not None else ""
    why = f"no interval: {found['interval_undefined']}" if "interval_undefined" in found else ""
    _line("AUC", _auc(found), bound, _between(found["auc_interval"]), why)
    if "group" in found:
        _show_grouped(found)
    for name in ("average_precision", "logloss", "normalised_entropy", "brier", "calibration"):
        _line(TITLES[name], _six(found[name]))
    bins = len(found["calibration_curve"])
    _line("calibration error", _six(found["calibration_error"]), f"ECE of {bins} bins")
    if "compare" in found:
        _show_compared(found, other)
    for name, slices in found.get("slices", {}).items():
        _show_slices(name, slices)
    if "notes" in found:
        _say_notes(found)


TITLES = {
    "average_precision": "average precision",
    "logloss": "logloss",
    "normalised_entropy": "normalised entropy",
    "brier": "Brier score",
    "calibration": "calibration",
}


def _line(title: str, *texts: str) -> None:
    print(f"{title:20}{'  '.join(filter(None, texts))}")


def _six(figure: float | None) -> str:
    return "undefined" if figure is None else f"{figure:.6f}"


def _auc(found: dict[str, Any]) -> str:
    undefined = found.get("auc_undefined")
    return f"undefined ({undefined})" if undefined else _six(found["auc"])


def _between(interval: list[float] | None, digits: int = 6) -> str:
    return "" if interval is None else "95 %: {:.{d}f} to {:.{d}f}".format(*interval, d=digits)


def _show_grouped(found: dict[str, Any]) -> None:
    skipped = f"{found['groups_skipped']:,} of one class left out"
    without = found["rows_without_group"]
    more = f", {without:,} rows without one" if without else ""
    groups = f"{found['groups']:,} groups by {found['group']} ({skipped}{more})"
    interval = found["auc_interval_grouped"]
    if interval is not None:
        dependent = f"with rows of one {found['group']} dependent"
        _line("", " " * 8, _between(interval), dependent)
    _line("grouped AUC", _six(found["grouped_auc"]), groups)


def _show_compared(found: dict[str, Any], name_of_other: str) -> None:
    other = found["compare"]
    print(f"\nthis minus {name_of_other}")
    for name, title in (("auc", "AUC"), ("logloss", "logloss")):
        one, two = found[name], other["figures"][name]
        by = other[name]
        if by["difference"] is None:
            _line(title, _six(two), "no difference")
            continue
        p = "" if by["p"] is None else f"p {by['p']:.2g}"
        both = f"{_six(one)} - {_six(two)} = {by['difference']:+.6f}"
        _line(title, both, _between(by["interval"]), p)


def _show_slices(name: str, slices: list[dict[str, Any]]) -> None:
    from ctrps.figures import slice_name

    heads = [name, "rows", "clicks", "AUC", "95 %", "logloss", "NE", "calibration"]
    cells = [heads]
    for one in slices:
        ends = one["auc_interval"]
        cells.append(
            [
                slice_name(one),
                f"{one['rows']:,}",
                f"{one['clicks']:,}",
                "-" if one["auc"] is None else f"{one['auc']:.4f}",
                "-" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}",
                *(
                    "-" if one[figure] is None else f"{one[figure]:.4f}"
                    for figure in ("logloss", "normalised_entropy", "calibration")
                ),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print()
    for line in cells:
        first, *rest = zip(line, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]))
