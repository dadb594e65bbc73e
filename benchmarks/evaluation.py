"""Figures of scores against scikit-learn's: the largest difference, and the CPU time.

    python -m benchmarks.evaluation [--rows 1M] [--groups 2k] [--repeat 5]

Scores are drawn so that they are calibrated, 4 clicks in 100 rows. `distinct` has nearly no ties,
in `ties` they are rounded to thousandths. Each figure is computed from the arrays of scores and
labels; the grouped AUC of scikit-learn is its AUC called for each group. DeLong's interval has no
counterpart there: its standard error stands beside that of AUC over resampled rows.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn import __version__ as sklearn_version
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
)

from benchmarks import measure
from ctrps.figures import Levels, Tally, approximated, figures
from ctrps.kernels import curves, metrics

TOLERANCE = 1e-9
"""Largest difference to scikit-learn; exit status 5 beyond it."""

SAMPLES = 40
"""Resamples for the standard error of AUC, which they tell to about a ninth."""


@dataclass(frozen=True)
class Data:
    """Scores float64[rows], labels float32[rows], and groups int64[rows]."""

    name: str
    scores: np.ndarray
    labels: np.ndarray
    groups: np.ndarray


def drawn(name: str, rows: int, groups: int, seed: int = 1) -> Data:
    rng = np.random.default_rng(seed)
    scores = np.clip(rng.beta(1.0, 24.0, rows), 1e-6, 1 - 1e-6)
    if name == "ties":
        scores = np.clip(np.round(scores, 3), 1e-3, 1 - 1e-3)
    labels = (rng.random(rows) < scores).astype(np.float32)
    return Data(name, scores, labels, rng.integers(0, groups, rows))


def _grouped(data: Data) -> float:
    """scikit-learn's AUC of each group, weighted by rows."""
    order = np.argsort(data.groups, kind="stable")
    borders = np.flatnonzero(np.diff(data.groups[order])) + 1
    total = rows = 0.0
    for part in np.split(order, borders):
        labels = data.labels[part]
        if 0 < labels.sum() < len(labels):
            total += len(part) * roc_auc_score(labels, data.scores[part])
            rows += len(part)
    return total / rows


Figures = Callable[[], tuple[float, ...]]


def pairs(data: Data) -> dict[str, tuple[Figures, Figures]]:
    """For each row of the table the figures by ctrps, and by scikit-learn."""
    scores, labels = data.scores, data.labels
    names = ("auc", "average_precision", "logloss", "brier")
    peers = (roc_auc_score, average_precision_score, log_loss, brier_score_loss)

    def counts() -> np.ndarray:
        return curves.levels(scores, labels)[1]

    def every() -> tuple[float, ...]:
        found = figures(Levels.of(scores, labels))
        return tuple(found[name] for name in names)

    return {
        "auc": (
            lambda: (metrics.histogram_auc(counts())[0],),
            lambda: (roc_auc_score(labels, scores),),
        ),
        "average precision": (
            lambda: (curves.average_precision(counts()),),
            lambda: (average_precision_score(labels, scores),),
        ),
        "logloss": (
            lambda: (metrics.logloss_sum(scores, labels) / len(labels),),
            lambda: (log_loss(labels, scores),),
        ),
        "these, Brier and the interval": (
            every,
            lambda: tuple(peer(labels, scores) for peer in peers),
        ),
        "grouped auc": (
            lambda: (metrics.grouped_auc(data.groups, scores, labels)[0],),
            lambda: (_grouped(data),),
        ),
    }


def measured(data: Data, repeat: int) -> list[dict]:
    """A row of the table for each figure."""
    found = []
    for name, (ours, theirs) in pairs(data).items():
        cases = {
            "ctrps": lambda f=ours: measure.timed(f),
            "scikit-learn": lambda f=theirs: measure.timed(f),
        }
        timings = measure.in_turn(cases, repeat)
        cpu = {key: statistics.median(t.cpu_s for t in each) for key, each in timings.items()}
        found.append(
            {
                "scores": data.name,
                "figure": name,
                "difference": max(abs(a - b) for a, b in zip(ours(), theirs(), strict=True)),
                "cpu_ms": 1000 * cpu["ctrps"],
                "scikit_learn_ms": 1000 * cpu["scikit-learn"],
                "ratio": cpu["scikit-learn"] / cpu["ctrps"],
            }
        )
    return found


def interval(data: Data, samples: int) -> dict:
    """DeLong's standard error, and the spread of AUC over rows drawn again."""
    rng, rows = np.random.default_rng(2), len(data.labels)
    aucs = []
    for _ in range(samples):
        chosen = rng.integers(0, rows, rows)
        aucs.append(metrics.auc(data.scores[chosen], data.labels[chosen]))
    variance = curves.auc_variance(curves.levels(data.scores, data.labels)[1])
    return {
        "scores": data.name,
        "delong_error": float(np.sqrt(variance)),
        "resampled_error": float(np.std(aucs, ddof=1)),
    }


def binned(data: Data) -> dict:
    """How far the AUC of bins is from the exact one, and its bound."""
    tally = Tally()
    tally.add(data.scores, data.labels)
    found, exact = approximated(tally.levels()), metrics.auc(data.scores, data.labels)
    return {
        "scores": data.name,
        "off": abs(found["auc"] - exact),
        "bound": found["auc_bound"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measure.parser(__doc__)
    parser.add_argument("--rows", type=measure.numbers, default=[1_000_000], metavar="N")
    parser.add_argument("--groups", type=int, default=2_000, help="(%(default)s)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="for DeLong (%(default)s)")
    options = parser.parse_args(arguments)
    sets = [drawn(name, options.rows[0], options.groups) for name in ("distinct", "ties")]
    table = [row for data in sets for row in measured(data, options.repeat)]
    title = f"{options.rows[0]:,} rows, against scikit-learn {sklearn_version}"
    heads = {"scores": "", "figure": "", "difference": ".1e", "cpu_ms": ",.1f"}
    measure.show(title, table, **heads, scikit_learn_ms=",.1f", ratio=".1f")
    errors = [interval(data, options.samples) for data in sets]
    columns = {"scores": "", "delong_error": ".6f", "resampled_error": ".6f"}
    measure.show(f"Standard error of AUC, {options.samples} resamples", errors, **columns)
    bins = [binned(data) for data in sets]
    measure.show("AUC of bins (--approx)", bins, scores="", off=".1e", bound=".1e")
    measure.finish("evaluation", options, figures=table, errors=errors, bins=bins)
    far = any(row["difference"] > TOLERANCE for row in table)
    far |= any(row["off"] > row["bound"] for row in bins)
    return 5 if far else 0


if __name__ == "__main__":
    sys.exit(main())
