"""Bad rows: stopping at the first, or at too many."""

import pytest

from ctrps.data.badrows import BadRow, BadRows, read_aside
from ctrps.errors import DataError


def reject(bad, times, first=1):
    for line in range(first, first + times):
        bad.reject("a.csv", line, 2, "expected a number", b"x\t\xff")


def test_the_first_one_stops_by_default_and_says_where_and_why():
    with pytest.raises(DataError) as caught:
        reject(BadRows(setting="sample.max_bad"), 1)
    assert str(caught.value) == (
        "a.csv:1:2: expected a number, found 'x\\t\\xff'; "
        "mend the row, or let a share of the rows be bad with sample.max_bad"
    )


@pytest.mark.parametrize(
    ("share", "count", "total"), [(0.5, 5, 10), (0.29, 29, 100), (1.0, 7, 7), (0.07, 7, 100)]
)
def test_the_share_itself_is_allowed_and_one_more_is_not(share, count, total):
    bad = BadRows(share)
    reject(bad, count)
    bad.finish(total)
    reject(bad, 1)
    if count < total:
        with pytest.raises(DataError, match=f"{count + 1} of {total} rows are bad"):
            bad.finish(total)


def test_it_stops_early_once_no_good_row_can_make_up_for_it():
    bad = BadRows(0.1)
    reject(bad, 10)
    bad.expect(100)
    reject(bad, 1)
    with pytest.raises(DataError, match="11 bad rows") as caught:
        bad.expect(100)
    assert str(caught.value).count("expected a number") == 3


def test_rows_set_aside_can_be_read_and_counted_again(tmp_path):
    aside = tmp_path / "new" / "rejected.tsv"
    bad = BadRows(0.5, aside)
    assert not aside.exists()
    reject(bad, 4)
    bad.finish(100)
    rows = list(read_aside(aside))
    assert rows[0] == BadRow("a.csv", 1, 2, "expected a number", "x\\t\\xff")
    assert [row.line for row in rows] == [1, 2, 3, 4]
    again = BadRows(0.01, aside)
    again.include(rows)
    assert (again.count, len(again.first)) == (4, 3)
    with pytest.raises(DataError, match=r"all of them are in .*rejected\.tsv"):
        again.finish(100)


def test_the_file_aside_may_change_between_files(tmp_path):
    bad = BadRows(1.0, tmp_path / "a")
    reject(bad, 2)
    bad.aside = tmp_path / "b"
    reject(bad, 1, first=9)
    bad.close()
    assert len(list(read_aside(tmp_path / "a"))) == 2
    assert [row.line for row in read_aside(tmp_path / "b")] == [9]
