"""Progressive figures: sums of scores by partition, against plain counting."""

import math

import numpy as np
import pytest

from ctrps.ps.progress import BINS, NO_PROGRESS, NO_SCORES, Figures, Progress, Scores
from tests import naive


def drawn(seed: int, batches: int = 20) -> list[tuple[int, float, Scores]]:
    """(partition, loss sum, scores) of some batches."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(batches):
        rows = int(rng.integers(1, 30))
        margins = rng.normal(0, 2, rows).astype(np.float32)
        labels = (rng.random(rows) < 0.3).astype(np.float32)
        signs = np.where(labels > 0, 1.0, -1.0)
        loss = float(np.log1p(np.exp(-signs * margins.astype(np.float64))).sum())
        out.append((int(rng.integers(0, 8)), loss, Scores(margins, labels)))
    return out


def counted(batches) -> Progress:
    progress = Progress(8)
    for batch in batches:
        progress.add(*batch)
    return progress


def test_the_report_is_that_of_all_rows():
    batches = drawn(1)
    report = counted(batches).total().report()
    margins = np.concatenate([scores.margins for *_, scores in batches])
    labels = np.concatenate([scores.labels for *_, scores in batches])
    probabilities = [1 / (1 + math.exp(-float(m))) for m in margins]
    assert (report["rows"], report["clicks"]) == (len(labels), int(labels.sum()))
    losses = [-math.log(p if y else 1 - p) for p, y in zip(probabilities, labels, strict=True)]
    assert report["logloss"] == pytest.approx(sum(losses) / len(losses))
    assert abs(report["auc"] - naive.auc(probabilities, labels)) <= report["auc_bound"] < 0.01


def test_figures_do_not_depend_on_who_counted_what():
    batches = drawn(2)
    alone = counted(batches).total()
    parts = [counted(b for b in batches if b[0] % 3 == n).total() for n in range(3)]
    whole = Figures.merged(parts)
    assert (whole.histogram == alone.histogram).all()
    assert whole.loss_sum == pytest.approx(alone.loss_sum)
    assert Figures.merged([]).report()["rows"] == 0


def test_saved_partitions_load_elsewhere_and_go_on():
    batches = drawn(3, batches=40)
    before, later = counted(batches[:20]), Progress(8)
    states = [before.save(partition) for partition in range(8)]
    before.add(*batches[0])
    for partition, saved in enumerate(states):
        later.load(partition, saved)
    for batch in batches[20:]:
        later.add(*batch)
    found, expected = later.total(), counted(batches).total()
    assert (found.histogram == expected.histogram).all()
    assert found.loss_sum == pytest.approx(expected.loss_sum)


def test_a_loaded_partition_does_not_change_what_was_saved():
    batches = drawn(4)
    saved = counted(batches).save(batches[0][0])
    before = [array.copy() for array in saved]
    later = Progress(8)
    later.load(batches[0][0], saved)
    later.add(*batches[0])
    assert all((a == b).all() for a, b in zip(saved, before, strict=True))


def test_a_partition_that_counted_nothing():
    saved = Progress(8).save(3)
    assert [(a.dtype, a.shape, a.tolist()) for a in saved] == [
        (a.dtype, a.shape, a.tolist()) for a in NO_PROGRESS
    ]
    progress = Progress(8)
    progress.load(3, NO_PROGRESS)
    assert progress.total().report()["rows"] == 0


def test_clear_begins_from_nothing():
    progress = counted(drawn(5))
    progress.clear()
    assert progress.total().report() == Figures.merged([]).report()
    assert progress.total().loss_sum == 0


def test_figures_without_a_value_are_none():
    nothing = {"rows": 0, "clicks": 0, "logloss": None, "auc": None, "auc_bound": None}
    progress = Progress(8)
    progress.add(0, 0.0, NO_SCORES)
    assert progress.total().report() == nothing
    for label in (0, 1):
        one = Progress(8)
        one.add(0, 0.5, Scores(np.float32([0.3, -0.2]), np.float32([label] * 2)))
        report = one.total().report()
        assert (report["rows"], report["clicks"], report["logloss"]) == (2, 2 * label, 0.25)
        assert report["auc"] is report["auc_bound"] is None


def test_extreme_margins_stay_inside_the_histogram():
    progress = Progress(1)
    margins = np.float32([-np.inf, -200, 0, 200, np.inf])
    progress.add(0, 1.0, Scores(margins, np.float32([0, 1, 0, 1, 1])))
    histogram = progress.total().histogram
    assert histogram[0].tolist() == [1, 1] and histogram[BINS - 1].tolist() == [0, 2]
    assert histogram[BINS // 2].tolist() == [1, 0]
