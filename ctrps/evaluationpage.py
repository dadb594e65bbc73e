"""The figures of an evaluation as a page of HTML: one file, no script, nothing from elsewhere.

Each figure that is rounded has its exact value, as ``--json`` prints it, as its title. Names of
files, models, columns and values may be any text, and are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ctrps import __version__, plots
from ctrps.data.textout import new_file
from ctrps.figures import Judged, Levels, slice_name
from ctrps.kernels import curves
from ctrps.loaded import LoadedModel

ROC_POINTS = 400
BARS = 40

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2330;--soft:#616b7c;--line:#e3e7ee;
--card:#f6f8fb;--one:#1f6feb;--two:#d9480f;--good:#1a7f37;--bad:#c62828}
@media (prefers-color-scheme:dark){:root{--paper:#12161d;--ink:#e4e9f1;--soft:#98a3b5;
--line:#2a3240;--card:#1a202a;--one:#6aa9ff;--two:#ff9a5c;--good:#4cc26b;--bad:#ff7b72}}
*{box-sizing:border-box}
body{margin:0 auto;padding:28px 20px 60px;max-width:1120px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:17px;margin:36px 0 10px}
p{margin:4px 0}.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:12px;margin-top:20px}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.card>span{font-size:13px;color:var(--soft)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(310px,1fr));gap:20px}
figure{margin:0}figcaption{font-weight:600;margin-bottom:4px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:5px 14px 5px 0;text-align:right;border-bottom:1px solid var(--line);
vertical-align:middle;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal;overflow-wrap:anywhere}
td:first-child{min-width:9em}
th{color:var(--soft);font-weight:500}
td.text,th.text{text-align:left;white-space:normal;overflow-wrap:anywhere}
svg.small{width:110px;height:14px;display:inline-block;vertical-align:middle}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;font-size:14px;margin:0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
"""

MEANING = {
    "AUC": "of all pairs of a click and a non-click, the share in which the click scores higher; "
    "0.5 is chance",
    "grouped AUC": "the AUC inside each group, as a mean weighted by rows",
    "average precision": "area under the precision-recall curve; chance is the click rate",
    "logloss": "mean of -ln of the probability given to what happened",
    "normalised entropy": "logloss, divided by that of always predicting the click rate; below 1 "
    "is better than that",
    "Brier score": "mean of (probability - label)²",
    "calibration": "predicted clicks, divided by clicks; 1 is right",
    "calibration error": "mean distance of the points of the calibration curve from its diagonal "
    "(ECE)",
}


def write_page(
    path: Path,
    judged: Judged,
    names: tuple[str, str],
    data: Sequence[str],
    loaded: LoadedModel | None,
) -> None:
    """Write the page of an evaluation, whole or not at all.

    Parameters
    ----------
    path
    judged
        Its figures may hold a ``gate``.
    names
        What the scores, and those that they are compared with, are called.
    data
        Files, as the user named them.
    loaded
        The model whose scores they are, if it is known.

    Raises
    ------
    DataError
        When ``path`` cannot be written.
    """
    text = page(judged, names, data, loaded)
    with new_file(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def page(
    judged: Judged, names: tuple[str, str], data: Sequence[str], loaded: LoadedModel | None
) -> str:
    """The text of the page; parameters as for ``write_page``."""
    found = judged.figures
    title = f"Evaluation of {names[0]}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{_rows(found)} of {escape(", ".join(data))}</p>',
        _gate(found),
        _cards(found),
        _compared(found, names[1]),
        f'<h2>Curves</h2><div class="plots">{_curves(judged)}</div>',
        *(_slices(name, part, found) for name, part in found.get("slices", {}).items()),
        _calibration_table(found),
        f"<h2>Facts</h2><dl>{_facts(found, names[0], data, loaded)}</dl>",
        f"<h2>What the figures mean</h2><dl>{_pairs(MEANING)}</dl>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{plots.STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _rows(found: dict[str, Any]) -> str:
    rate = f" ({100 * found['clicks'] / found['rows']:.2f} %)" if found["rows"] else ""
    return f"{found['rows']:,} rows, {found['clicks']:,} clicks{rate}"


def _gate(found: dict[str, Any]) -> str:
    if "gate" not in found:
        return ""
    kind, word = ("good", "Passed") if found["gate"]["passed"] else ("bad", "Failed")
    return (
        f'<p class="{kind}">{word}: AUC of at least {found["gate"]["min_auc"]:g} was asked for</p>'
    )


def _number(figure: float | None, digits: int = 6, sign: str = "") -> str:
    """A figure with its exact value as title."""
    if figure is None:
        return "undefined"
    return f'<span title="{figure!r}">{figure:{sign}.{digits}f}</span>'


def _ends(interval: list[float] | None, digits: int = 4) -> str:
    if interval is None:
        return "-"
    return f"{_number(interval[0], digits)} to {_number(interval[1], digits)}"


def _cards(found: dict[str, Any]) -> str:
    below = {
        "auc": _below_auc(found),
        "grouped_auc": f"{found.get('groups', 0):,} groups by {escape(str(found.get('group')))}; "
        f"{found.get('groups_skipped', 0):,} of one class left out",
    }
    titles = {
        "auc": "AUC",
        "grouped_auc": "grouped AUC",
        "logloss": "logloss",
        "normalised_entropy": "normalised entropy",
        "calibration": "calibration",
        "calibration_error": "calibration error",
        "brier": "Brier score",
        "average_precision": "average precision",
    }
    cards = []
    for name, title in titles.items():
        if name in found:
            under = f"<span>{below[name]}</span>" if name in below else ""
            figure = _number(found[name])
            cards.append(f'<div class="card"><span>{title}</span><b>{figure}</b>{under}</div>')
    return f'<div class="cards">{"".join(cards)}</div>'


def _below_auc(found: dict[str, Any]) -> str:
    if found["auc"] is None:
        return escape(found["auc_undefined"])
    parts = [f"95 %: {_ends(found['auc_interval'])}"]
    if found["auc_interval"] is None:
        parts = [escape(f"no interval: {found['interval_undefined']}")]
    if found.get("auc_bound"):
        parts.append(f"of bins, ± {_number(found['auc_bound'], 7)}")
    if found.get("auc_interval_grouped"):
        group = escape(found["group"])
        ends = _ends(found["auc_interval_grouped"])
        parts.append(f"{ends} with rows of one {group} dependent")
    return "<br>".join(parts)


def _compared(found: dict[str, Any], other_name: str) -> str:
    if "compare" not in found:
        return ""
    other, rows = found["compare"], []
    for name, title in (("auc", "AUC"), ("logloss", "logloss")):
        by = other[name]
        cells = [
            _number(found[name]),
            _number(other["figures"][name]),
            _number(by["difference"], sign="+"),
            _ends(by["interval"], 6),
            "-" if by["p"] is None else f'<span title="{by["p"]!r}">{by["p"]:.2g}</span>',
        ]
        rows.append(_row([title, *cells]))
    for name, title in (("normalised_entropy", "normalised entropy"), ("calibration",) * 2):
        rows.append(
            _row([title, _number(found[name]), _number(other["figures"][name]), "", "", ""])
        )
    heads = ["", "this", "other", "difference", "95 %", "p"]
    what = f'<p class="soft">Other: {escape(other_name)}. Differences are this minus other.</p>'
    return f"<h2>Comparison</h2>{what}{_table(heads, rows)}"


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _slices(name: str, parts: list[dict[str, Any]], found: dict[str, Any]) -> str:
    ends = [part["auc_interval"] for part in parts if part["auc_interval"]]
    span = (min(end[0] for end in ends), max(end[1] for end in ends)) if ends else (0.0, 1.0)
    rows = []
    for part in parts:
        interval = part["auc_interval"]
        drawn = plots.interval_svg(interval[0], part["auc"], interval[1], span) if interval else ""
        auc = escape(part["auc_undefined"]) if part["auc"] is None else _number(part["auc"], 4)
        figures = [
            _number(part[figure], 4) for figure in ("logloss", "normalised_entropy", "calibration")
        ]
        counts = [f"{part['rows']:,}", f"{part['clicks']:,}"]
        rows.append(
            _row([escape(slice_name(part)), *counts, auc, drawn, _ends(interval), *figures])
        )
    heads = [name, "rows", "clicks", "AUC", "", "95 %", "logloss", "norm. entropy", "calibration"]
    return f"<h2>By {escape(name)}</h2>{_table(heads, rows)}"


def _calibration_table(found: dict[str, Any]) -> str:
    rows = [
        _row(
            [
                f"{number}",
                f"{one['rows']:,}",
                f"{one['clicks']:,}",
                _number(one["predicted"]),
                _number(one["observed"]),
                _ends(one["interval"]),
            ]
        )
        for number, one in enumerate(found["calibration_curve"], 1)
    ]
    heads = ["bin", "rows", "clicks", "predicted", "observed", "95 %"]
    return f"<h2>Calibration</h2>{_table(heads, rows)}"


def _facts(
    found: dict[str, Any], name: str, data: Sequence[str], loaded: LoadedModel | None
) -> str:
    facts = {"scores": name, "data": ", ".join(data)}
    if loaded is not None:
        manifest, kind = loaded.manifest, loaded.job.model.kind
        facts = {
            "model": name,
            "kind": kind + (f", dim {loaded.job.model.dim}" if kind == "fm" else ""),
            "keys": f"{loaded.partitions.keys_held:,}",
            "trained": f"pass {manifest.pass_ + 1}, step {manifest.step:,}",
            "digest": manifest.model_digest,
            "data": ", ".join(data),
            "unknown values": f"{found['unknown']:,} of {found['occurrences']:,}",
            "bad rows left out": f"{found['rejected']:,}",
        }
    notes = {f"note {number}": note for number, note in enumerate(found.get("notes", ()), 1)}
    return _pairs(facts | notes | {"ctrps": __version__})


def _pairs(pairs: dict[str, str]) -> str:
    return "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in pairs.items())


def _curves(judged: Judged) -> str:
    every = [("one", "this", judged.levels, judged.figures)]
    if judged.others is not None:
        every.append(("two", "other", judged.others, judged.figures["compare"]["figures"]))
    if not judged.figures["rows"]:
        return "<p>No rows, no curves.</p>"
    drawn = {
        "ROC": _roc(every),
        "Calibration, bins of equally many rows": _calibration(every),
        "Scores of either class": _histogram(judged.levels),
    }
    return "".join(
        f"<figure><figcaption>{title}</figcaption>{svg}</figure>" for title, svg in drawn.items()
    )


Curve = tuple[str, str, Levels, dict[str, Any]]


def _roc(every: Sequence[Curve]) -> str:
    found = every[0][3]
    if found["auc"] is None:
        return f"<p>AUC and its curve are undefined: {escape(found['auc_undefined'])}.</p>"
    x, y = plots.axis("non-clicks above a score", 0, 1), plots.axis("clicks above it", 0, 1)
    plot = plots.Plot("ROC curve", x, y, low_keys=True)
    plot.line([(0, 0), (1, 1)], "none")
    for style, name, levels, _ in every:
        plot.line(curves.roc_points(levels.counts, ROC_POINTS).tolist(), style, name)
    return plot.svg()


def _calibration(every: Sequence[Curve]) -> str:
    bins = [one for *_, found in every for one in found["calibration_curve"]]
    top = 1.05 * max(max(one["predicted"], one["observed"]) for one in bins)
    top = min(max(top, 1e-6), 1.0)
    x, y = plots.axis("predicted", 0, top), plots.axis("observed", 0, top)
    plot = plots.Plot("Calibration curve", x, y, low_keys=True)
    plot.line([(0, 0), (top, top)], "none")
    for style, name, _, found in every:
        points = found["calibration_curve"]
        if len(every) > 1:
            plot.line([(one["predicted"], one["observed"]) for one in points], style, name)
        plot.points(
            ((one["predicted"], one["observed"], *one["interval"]) for one in points), style
        )
    return plot.svg()


def _histogram(levels: Levels) -> str:
    """Shares of either class by log-odds, in which scores near 0 are told apart."""
    odds = _log_odds(levels.values)
    rows = levels.counts.sum(axis=1)
    share = np.cumsum(rows) / rows.sum()
    low = float(odds[np.searchsorted(share, 0.001)])
    high = float(odds[min(int(np.searchsorted(share, 0.999)), len(odds) - 1)])
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BARS + 1)
    bar = np.clip(np.searchsorted(edges, odds, side="right") - 1, 0, BARS - 1)
    shares = []
    for column in (0, 1):
        counts = np.bincount(bar, levels.counts[:, column], BARS)
        shares.append(100 * counts / max(counts.sum(), 1))
    x = plots.Axis("score", low, high, _odds_ticks(low, high))
    y = plots.axis("% of its class", 0, 1.15 * max(float(part.max()) for part in shares))
    plot = plots.Plot("Histogram of scores by class", x, y)
    for part, style, label in zip(shares, ("one", "two"), ("non-clicks", "clicks"), strict=True):
        plot.steps(edges.tolist(), part.tolist(), style, label)
    return plot.svg()


def _log_odds(probabilities: np.ndarray) -> np.ndarray:
    inside = np.clip(probabilities, 1e-12, 1 - 1e-12)
    return np.log(inside) - np.log1p(-inside)


def _odds_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Round probabilities whose log-odds lie in a range, not too close to each other."""
    small = [size * 10.0**power for power in range(-9, 0) for size in (1, 2, 5)]
    ticks: list[tuple[float, str]] = []
    for p in (*small, *(1 - one for one in reversed(small[:-1]))):
        place = math.log(p) - math.log1p(-p)
        near = ticks and place - ticks[-1][0] < (high - low) / 7
        if low <= place <= high and not near:
            ticks.append((place, f"{p:.10g}"))
    return ticks
