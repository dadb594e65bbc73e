"""The harness that kills real processes, with few kills: what it finds, and what it must find."""

from argparse import Namespace

import pytest

from benchmarks.faults.__main__ import trial

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def killed(tmp_path, what: str, mode: str, kills: int = 2, **more: object) -> dict[str, object]:
    """One job with the optimiser that counts, and so many kills or pairs of kills."""
    given = {"what": what, "mode": mode, "rows": 40_000, "passes": 6, "seed": 1}
    given |= {"control": None, "replicas": 0}
    found = trial(tmp_path, Namespace(**given | more), 0, kills)
    assert len(found["victims"]) == kills, found
    return found


@pytest.mark.parametrize(
    ("what", "mode"), [("servers", "sync"), ("schedulers", "async"), ("two", "ssp")]
)
def test_every_row_counts_once_through_kills(tmp_path, what, mode):
    found = killed(tmp_path, what, mode)
    assert (found["status"], found["miscounted"]) == (0, 0), found


@pytest.mark.parametrize(("control", "right"), [("nothing", True), ("repeats", False)])
def test_repeats_do_no_harm_but_where_they_are_added(tmp_path, control, right):
    found = killed(tmp_path, "servers", "async", 1, control=control)
    assert found["status"] == 0 and (found["miscounted"] == 0) == right, found
