"""Windows over past events against a slow twin, another engine, and the rule of no future."""

import zoneinfo
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from ctrps.data.badrows import BadRows
from ctrps.data.days import day_starts, local_time, whole_days
from ctrps.data.joinfile import load_plan
from ctrps.data.samples import make_samples
from ctrps.data.spill import Room, SpillWriter
from ctrps.data.texts import Ranked, Texts, text_order
from ctrps.data.workroom import WorkRoom
from ctrps.errors import ConfigError, DataError
from ctrps.kernels import history as kernel
from ctrps.kernels import lists, runs
from ctrps.kernels.copying import WRITTEN_OVER, copy_text
from ctrps.kernels.vectors import address
from tests import naive_history as naive

CONF = Path(__file__).parents[1] / "conf"

PLAN = """
impressions: {table: log, time: time, zone: ZONE}
joins:
  - {table: ads, on: ad}
events:
  acts: {table: acts, time: at, keys: {user: who}}
  late: {table: acts, time: at, keys: {user: who}, delay_s: 40000}
windows:
  top: {take: top, of: cate, most: 3, events: acts, where: {what: pv}, by: user, over: 3 days}
  all: {take: top, of: cate, most: 100, events: acts, by: user, over: 2 days}
  hot: {take: top, of: brand, most: 2, events: late, where: {what: [pv, buy]}, by: user,
        over: 30 hours}
  today: {take: distinct, of: cate, events: acts, where: {what: pv}, by: user, over: today}
  latest: {take: last, of: brand, events: acts, where: {what: [pv, buy], cate: [a, b, c]},
           by: user, over: today}
  seen: {take: distinct, of: cate, events: late, by: user, over: 2 days}
  shows: {take: count, by: user, over: 24 hours}
  clicks: {take: count, where: {clk: 1}, by: user, over: 24 hours}
  rate: {take: rate, hit: {clk: 1}, plus: 10, by: user, over: 168 hours}
  share: {take: rate, hit: {clk: 1}, by: ad, over: 5 hours}
  ad_shows: {take: count, by: ad, over: 24 hours}
  pair: {take: count, where: {clk: 0}, by: [user, ad], over: 168 hours}
  clicked: {take: distinct, of: ad, where: {clk: 1}, by: user, over: 24 hours}
  brands: {take: distinct, of: make, where: {clk: 1}, by: user, over: 168 hours}
  last_make: {take: last, of: make, where: {clk: 1}, by: user, over: 24 hours}
  makes: {take: count, by: [make, user], over: 3 days}
columns: [ad_shows, user, time, clicked, ad, clk, top, make, share, all, hot, today, latest, seen,
          shows, clicks, rate, pair, brands, last_make, makes]
"""  # fmt: skip
BEGIN = 1494000000  # a midnight in Shanghai


def times(rng, n):
    """Seconds that are often equal, and often at the borders of hours and days."""
    near = rng.choice([-1, 0, 1, 0, 1800, 7000], n)
    return BEGIN + rng.integers(0, 9, n) * 86400 + rng.choice([0, 3600, 43200], n) + near


def random_tables(rng, rows=120, acts=400):
    makes = ["", "x", "yy", "y", "z,z".replace(",", ""), "Ä" * 9, "Ä" * 9 + "b"]
    ads = "ad,make\n" + "".join(f"{ad},{rng.choice(makes)}\n" for ad in range(6))
    log = "user,time,ad,clk\n" + "".join(
        f"{rng.integers(4)},{time},{rng.integers(8)},{rng.integers(2)}\n"
        for time in times(rng, rows)
    )
    what = "who,at,what,cate,brand\n" + "".join(
        f"{rng.integers(5)},{time},{rng.choice(['pv', 'pv', 'buy', 'fav'])},"
        f"{rng.choice(['a', 'b', 'c', 'd', '', 'ab'])},{rng.integers(30)}\n"
        for time in times(rng, acts)
    )
    return {"log": log, "ads": ads, "acts": what}


def run(folder, tables, plan, **options):
    """Lines of the parts in order, each a list of fields."""
    raw, out = folder / "raw", folder / "out"
    for place in (raw, out):
        place.mkdir(parents=True)
    for name, text in tables.items():
        (raw / f"{name}.csv").write_text(text, encoding="utf-8")
    (folder / "plan.yaml").write_text(plan)
    bad = options.pop("bad", None) or BadRows()
    make_samples(raw, load_plan(folder / "plan.yaml"), out, bad, **{"shuffle": False} | options)
    found = []
    for path in sorted(out.glob("*.tsv")):
        found += [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/New_York"])
def test_random_tables_by_the_twin(tmp_path, zone, seed):
    tables = random_tables(np.random.default_rng(seed))
    text = PLAN.replace("ZONE", zone)
    found = run(tmp_path, tables, text)
    plan = load_plan(tmp_path / "plan.yaml")
    wanted = naive.samples(plan, tables)
    assert len(found) == len(wanted)
    for line, row in zip(found, wanted.values(), strict=True):
        assert dict(zip(plan.columns, line, strict=True)) == {c: row[c] for c in plan.columns}


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_the_future_and_the_present_do_not_matter(tmp_path, count):
    """Decision 8: without the events at or after t the row at t is the same."""
    rng = np.random.default_rng(5)
    tables = random_tables(rng, max(count, 120), max(2 * count, 400))
    plan = PLAN.replace("ZONE", "Asia/Shanghai")
    wanted = run(tmp_path / "all", tables, plan)
    lines = {name: text.splitlines() for name, text in tables.items()}
    for number in rng.choice(len(wanted), count, replace=False):
        asked = lines["log"][number + 1]
        t = int(asked.split(",")[1])
        past = {name: [text[0], *(x for x in text[1:] if int(x.split(",")[1]) < t)]
                for name, text in lines.items() if name != "ads"}  # fmt: skip
        # The impression itself is asked for last.
        past["log"].append(asked)
        left = {name: "\n".join(text) + "\n" for name, text in past.items()}
        (*_, found) = run(tmp_path / str(number), {**tables, **left}, plan)
        assert found == wanted[number]


def test_order_of_events_and_pieces_do_not_matter(tmp_path, monkeypatch):
    rng = np.random.default_rng(6)
    tables = random_tables(rng, 300, 900)
    plan = PLAN.replace("ZONE", "Asia/Shanghai")
    wanted = run(tmp_path / "a", tables, plan)
    head, *acts = tables["acts"].splitlines()
    mixed = {**tables, "acts": "\n".join([head, *rng.permutation(acts)]) + "\n"}
    assert run(tmp_path / "b", mixed, plan) == wanted
    monkeypatch.setattr("ctrps.data.tables.PIECE_ROWS", 17)
    monkeypatch.setattr("ctrps.data.buckets.RUN_EVENTS", 50)
    monkeypatch.setattr("ctrps.data.history.TEXT_BYTES", 900)
    monkeypatch.setattr("ctrps.data.deal.PART_ROWS", 70)
    assert run(tmp_path / "c", tables, plan, threads=2, chunk_bytes=300) == wanted


# kernels


def test_radix_order():
    rng = np.random.default_rng(1)
    for bits in (0, 1, 10, 11, 12, 22, 23, 40, 64):
        keys = rng.integers(0, 1 << bits, 300, np.uint64, endpoint=False) if bits < 64 else (
            rng.integers(0, 1 << 64, 300, np.uint64))  # fmt: skip
        keys[::3] = keys[0]
        order, spare = np.empty((2, 300), np.int64)
        kernel.radix_order(keys.copy(), bits, np.empty_like(keys), order, spare)
        assert order.tolist() == naive.radix_order(keys.tolist())


def test_mix_pairs():
    seeds, hashes = np.random.default_rng(1).integers(0, 1 << 64, (2, 20), np.uint64)
    wanted = naive.mix_pairs(seeds.tolist(), hashes.tolist())
    kernel.mix_pairs(seeds, hashes, seeds)
    assert seeds.tolist() == wanted


def column(texts):
    data = np.frombuffer(bytearray(b"".join(texts) + b"."), np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return data, ends - [len(text) for text in texts], ends


def random_texts(rng, n):
    return [
        bytes(rng.choice([0, 9, 97, 200], rng.integers(0, 20)).astype(np.uint8)) for _ in range(n)
    ]


@njit
def copied(data, start, end, out, to):
    source, target = address(data), address(out)
    source_end, target_end = source + data.shape[0], target + out.shape[0]
    copy_text(source + start, source_end, target + to, target_end, end - start)


def test_copy_text():
    """What stands before and where the text does not reach by a long way is left alone."""
    rng = np.random.default_rng(9)
    data = rng.integers(0, 256, 300).astype(np.uint8)
    for size in (*range(36), 100):
        for start, room in ((0, 300), (300 - size, size), (40, size + 1), (33, size + 40)):
            out = np.zeros(3 + room, np.uint8)
            wanted = naive.copy_text(data.tolist(), start, start + size, [0, 0, 0], 3)
            copied(data, start, start + size, out, 3)
            assert out[: 3 + size].tolist() == wanted and not out[3 + size + 32 :].any()


def test_text_words_and_order():
    rng = np.random.default_rng(2)
    for n in (0, 1, 2, 50, 200):
        texts = list(dict.fromkeys(random_texts(rng, n)))
        data, starts, ends = column(texts)
        words = np.empty(len(texts), np.uint64)
        for skip in (0, 8):
            kernel.text_words(data, starts, ends, skip, words)
            assert words.tolist() == naive.text_words(texts, skip)
        assert [texts[i] for i in text_order(data, starts, ends)] == sorted(texts)


def test_texts_keep_their_numbers():
    rng = np.random.default_rng(3)
    texts, known = Texts(), {b"": 0}
    for _ in range(20):
        piece = random_texts(rng, 40)
        wanted = [known.setdefault(text, len(known)) for text in piece]
        assert texts.codes(column(piece)).tolist() == wanted
    ranks, ranked = texts.ranked()
    assert len(texts) == len(known)
    for text, code in known.items():
        at = ranks[code]
        assert ranked.data[ranked.starts[at] : ranked.ends[at]].tobytes() == text
        assert texts.text(code) == text
    assert (
        np.argsort([ranks[known[text]] for text in sorted(known)]) == np.arange(len(known))
    ).all()


def test_sort_ties():
    rng = np.random.default_rng(4)
    for tie in (1, 3, 30):
        ids, values = rng.integers(0, 3, 90), rng.integers(0, 40, 90)
        when = rng.integers(0, 90 // tie, 90)
        order = np.lexsort((when, ids))
        found = values[order]
        kernel.sort_ties(ids[order], when[order], found)
        assert found.tolist() == naive.sort_ties(ids, when, values)


def test_ranges():
    rng = np.random.default_rng(5)
    for n in (0, 5, 60, 400):
        events = sorted(
            zip(rng.integers(0, 4, n).tolist(), rng.integers(0, 99, n).tolist(), strict=True)
        )
        asked = sorted(
            zip(rng.integers(0, 4, 50).tolist(), rng.integers(0, 99, 50).tolist(), strict=True)
        )
        ids, now = (np.array(part) for part in zip(*asked, strict=True))
        since, until = now - 20, now - 3
        starts = np.searchsorted([key for key, _ in events], np.arange(5))
        low, high = np.empty((2, 50), np.int64)
        stamps = np.array([time for _, time in events], np.int64)
        kernel.ranges(ids, since, until, starts, stamps, low, high)
        found = [list(range(*pair)) for pair in zip(low, high, strict=True)]
        assert found == naive.ranges(ids, since, until, events)


LISTED = [b"", b"a", b"bb", b"c", b"dddd", b"e"]


@pytest.mark.parametrize("listed", [LISTED, [*LISTED[:4], b"d" * 7, b"e" * 50]])
@pytest.mark.parametrize("room", [0, 7, 60, 5000])
def test_lists(room, listed):
    """The pool grows whenever a list finds no room, and nothing is lost or doubled."""
    rng = np.random.default_rng(room)
    data, starts, ends = column(listed)
    values = rng.integers(0, 6, 200)
    low = np.sort(rng.integers(0, 190, 60))
    high = np.maximum.accumulate(low + rng.integers(0, 11, 60))
    low[10:20], high[30:32] = low[10], high[30]

    texts = WorkRoom(Ranked(data, starts, ends)).texts

    def made(function, *most):
        pool, first, at = np.empty(room, np.uint8), 0, 0
        begins, stops = np.empty((2, 60), np.uint32)
        while True:
            given = low[first:], high[first:], values, texts, *most
            done, at = function(*given, pool, at, begins[first:], stops[first:])
            first += done
            if first == 60:
                return [pool[a:b].tobytes() for a, b in zip(begins, stops, strict=True)]
            pool = np.append(pool, np.zeros(20, np.uint8))

    taken = [values[a:b].tolist() for a, b in zip(low, high, strict=True)]
    for most in (1, 2, 5, 9):
        assert made(lists.top_lists, most) == [naive.top_lists(one, listed, most) for one in taken]
        assert not texts.counts.any()
    for _ in range(2):
        assert made(lists.distinct_lists) == [naive.distinct_lists(one, listed) for one in taken]
        assert texts.seen.max() < texts.stamp[0]


def test_short_texts():
    texts = [b"", b"0", b"1234567", b"12345678", "é".encode() * 3, b"x" * 300]
    words = np.empty(6, np.uint64)
    assert lists.short_texts(*column(texts), words) == 300
    assert words.tolist() == naive.short_texts(texts)


@pytest.mark.parametrize("many", [30, 300])
@pytest.mark.parametrize("step", [3, 40, 700])
def test_most_frequent_of_many(step, many):
    """Ranges that overlap much, little and not at all; some values are very frequent."""
    rng = np.random.default_rng(step)
    listed = [b"", *(b"%d" % i for i in range(1, many + 1))]
    data, starts, ends = column(listed)
    values = rng.integers(0, 301, 6000) * rng.integers(0, 2, 6000) + rng.integers(0, 2, 6000)
    values = np.minimum(values, many)
    low = np.minimum(np.arange(50) * step, 5000)
    low[30:] = low[:20]
    high = low + rng.integers(500, 900, 50)
    texts = WorkRoom(Ranked(data, starts, ends)).texts
    pool = np.empty(50 * 2000, np.uint8)
    begins, stops = np.empty((2, 50), np.uint32)
    given = low, high, values, texts, 40, pool, 0, begins, stops
    assert lists.top_lists(*given) == (50, stops.max())
    found = [pool[a:b].tobytes() for a, b in zip(begins, stops, strict=True)]
    taken = [values[a:b].tolist() for a, b in zip(low, high, strict=True)]
    used = [len(set(one) - {0}) for one in taken]
    assert max(used) <= lists._FEW if many == 30 else min(used) > lists._FEW
    assert found == [naive.top_lists(one, listed, 40) for one in taken]
    assert not texts.counts.any()


@pytest.mark.parametrize("apart", [False, True])
def test_rows_of_text(apart):
    """Rows 4 to 14, each sharing runs with the row before it, or the one before that."""
    rng = np.random.default_rng(7)
    fields = np.array(random_texts(rng, 60), object).reshape(20, 3)
    fields[[6, 9, 10], 2] = fields[[5, 7, 8], 2] = b"the same"
    pool, starts, ends = column(fields.T.ravel().tolist())
    begins, stops = (a.reshape(3, 20).astype(np.uint32) for a in (starts, ends))
    for row, other in ((6, 5), (9, 7), (10, 8)):
        begins[2, row], stops[2, row] = begins[2, other], stops[2, other]
    sizes = np.empty(20, np.int64)
    runs.rows_size(begins, stops, sizes)
    assert sizes.tolist() == naive.rows_size(fields)
    closes = np.array([False, True, True])
    before = np.arange(-1, 10)
    order = np.arange(11)
    if apart:
        order = np.array([0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9])
        before = np.maximum(np.arange(-2, 9), -1)
    changed, sizes = np.empty((2, 11), np.bool_), np.empty(11, np.int64)
    runs.run_changes(begins, stops, closes, 4, before, changed, sizes)
    pairs = list(zip(begins.T[4:15].tolist(), stops.T[4:15].tolist(), strict=True))
    wanted, wanted_sizes = naive.run_changes(fields[4:15], pairs, closes, before)
    assert changed.T.tolist() == wanted and sizes.tolist() == wanted_sizes
    assert not changed.all()
    ends = np.cumsum(sizes[order])
    ends[6:] += WRITTEN_OVER
    places = np.empty(11, np.int64)
    places[order] = ends - sizes[order]
    out = np.empty(ends[-1], np.uint8)
    firsts, lasts = np.empty((2, 11, 2), np.uint32)
    given = pool, begins, stops, closes, 4, before, changed, places, out, firsts, lasts
    runs.rows_text(*given)
    rows = zip(firsts, lasts, strict=True)
    found = [[bytes(out[a:b]) for a, b in zip(*row, strict=True)] for row in rows]
    assert found == naive.rows_text(fields[4:15], closes)


def test_numbers():
    rng = np.random.default_rng(8)
    counts = np.append(rng.integers(0, 2000, 300), [0, 0, 7, (1 << 43) - 1, 999_999_999_999])
    hits = np.append(rng.integers(0, counts[:300] + 1), [0, 0, 7, 1 << 40, 999_999_999_998])
    for plus in (-1, 0, 10):
        pool = np.empty(len(counts) * kernel.NUMBER_BYTES, np.uint8)
        begins, stops = np.empty((2, len(counts)), np.uint32)
        end = kernel.put_numbers(counts, hits, plus, pool, 0, begins, stops)
        found = [bytes(pool[a:b]).decode() for a, b in zip(begins, stops, strict=True)]
        assert found == naive.put_numbers(counts.tolist(), hits.tolist(), plus)
        assert end == stops.max()


def test_runs():
    rows = [b"a\tbb\t\tc\n", b"\t\t\t\n", b"x\ty\tz\tw\n"]
    data, starts, ends = column([*rows, b"-" * WRITTEN_OVER])
    starts, ends = starts[:-1], ends[:-1]
    for fields in ([4], [1, 3], [2, 1, 1]):
        out = np.empty((3, len(fields)), np.int64)
        runs.field_runs(data, starts, ends, np.array(fields), out)
        firsts = np.column_stack([starts, out[:, :-1]])
        wanted = naive.field_runs(rows, fields)
        found = [
            [bytes(data[firsts[i, r] : out[i, r]]) for r in range(len(fields))] for i in range(3)
        ]
        assert found == wanted
        text = np.empty(sum(map(len, rows[1:])), np.uint8)
        at = data.ctypes.data
        assert runs.join_runs(firsts + at, out + at, 1, 3, np.uint8(10), text) == len(text)
        assert text.tobytes() == naive.join_runs(wanted[1:], b"\n") == b"".join(rows[1:])


def test_places_of_runs():
    rng = np.random.default_rng(9)
    text, rows, mine = np.empty(1000, np.uint8), np.uint32([5, 1, 6]), np.array([0, 2])
    starts = rng.integers(0, 900, (3, 2)).astype(np.uint32)
    ends = starts + rng.integers(0, 99, (3, 2)).astype(np.uint32)
    firsts, lasts = np.zeros((2, 8, 3), np.int64)
    sizes = np.full(8, 10)
    runs.place_runs(rows, starts, ends, text, mine, firsts, lasts, sizes)
    wanted = naive.place_runs(rows.tolist(), starts.tolist(), ends.tolist(), mine.tolist())
    base = text.ctypes.data
    for row in range(8):
        for run in range(3):
            a, b = wanted.get((row, run), (-base, -base))
            assert (firsts[row, run], lasts[row, run]) == (a + base, b + base)
        taken = [b - a for (r, _), (a, b) in wanted.items() if r == row]
        assert sizes[row] == 10 + sum(taken)


def test_last_texts():
    rng = np.random.default_rng(10)
    texts = [b"", b"a", b"bb", b"ccc"]
    data, starts, ends = column(texts)
    values = rng.integers(0, 2, 50) * rng.integers(1, 4, 50)
    low = rng.integers(0, 51, 40)
    high = np.minimum(low + rng.integers(0, 5, 40), 50)
    begins, stops = np.empty((2, 40), np.uint32)
    lists.last_texts(low, high, values, starts, ends, np.empty(51, np.int64), begins, stops)
    found = [bytes(data[a:b]) for a, b in zip(begins, stops, strict=True)]
    wanted = [naive.last_texts(values[a:b].tolist()) for a, b in zip(low, high, strict=True)]
    assert found == [texts[rank] for rank in wanted]


def test_events_that_fit():
    rng = np.random.default_rng(11)
    masks = rng.integers(0, 8, 60).astype(np.uint8)
    ids = np.sort(rng.integers(0, 7, 60))
    times, chosen = rng.integers(0, 99, (2, 60))
    starts, out = np.empty(9, np.int64), np.empty((3, 60), np.int64)
    size = kernel.fitting(masks, np.uint8(2), ids, times, chosen, starts, *out)
    events = list(zip(masks.tolist(), ids.tolist(), times.tolist(), chosen.tolist(), strict=True))
    wanted = naive.fitting(events, 2)
    assert list(zip(*out[:, :size].tolist(), strict=True)) == wanted
    assert np.repeat(np.arange(8), np.diff(starts)).tolist() == [one[0] for one in wanted]


def test_days_where_clocks_change():
    berlin, havana = zoneinfo.ZoneInfo("Europe/Berlin"), zoneinfo.ZoneInfo("America/Havana")
    for zone, first in (
        (berlin, 1509200000),
        (berlin, 1490500000),
        (havana, 1489200000),
        (None, 0),
    ):
        stamps = np.arange(first, first + 300_000, 450)
        days, _ = local_time(stamps, zone)
        starts = day_starts(days, zone)
        assert (starts <= stamps).all() and (day_starts(days + 1, zone) > stamps).all()
        assert (whole_days(stamps, zone) == days).all()


def test_a_day_does_not_begin_twice():
    """In 2006 clocks of St. John's went back at one past midnight."""
    zone = zoneinfo.ZoneInfo("America/St_Johns")
    stamps = np.arange(1162088000, 1162096000, 20)
    assert (np.diff(local_time(stamps, zone)[0]) < 0).any()
    assert (np.diff(whole_days(stamps, zone)) >= 0).all()


# declarations and values that are wrong


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("take: top, of: cate, most: 3", "take: tops, of: cate, most: 3", "9:9: windows.top.take"),
        ("take: top, of: cate, most: 3", "take: top, of: cate", "9:3: windows.top: top needs `mo"),
        ("take: top, of: cate, most: 3", "take: top, most: 3", "9:3: .*top needs column `of`"),
        ("take: top, of: cate, most: 3", "take: top, off: cate, most: 3",
         r"unknown key 'off'; did you mean of\?"),
        ("take: count, by: user", "take: count, of: cate, by: user", "count has no column `of`"),
        ("take: count, by: user", "take: count, plus: 3, by: user", "only a rate has `plus`"),
        ("hit: {clk: 1}, plus: 10, ", "", "only a rate has it"),
        ("over: today}", "over: 1 day}", r"windows.today.over: .*hours\|days"),
        ("over: 3 days}", "over: 0 days}", r"windows.top.over: "),
        ("events: acts, where: {what: pv}, by: user, over: 3", "events: act, by: user, over: 3",
         r"9:39: windows.top.events: no events are called 'act'; did you mean acts\?"),
        (", zone: Asia/Shanghai", "", "days and hours need impressions.time"),
        ("what: pv}, by: user, over: 3", "what: []}, by: user, over: 3", "windows.top.where.what"),
    ],
)  # fmt: skip
def test_mistakes_have_their_place(tmp_path, old, new, message):
    text = PLAN.replace("ZONE", "Asia/Shanghai")
    assert old in text
    (tmp_path / "plan.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_plan(tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("of: cate, most: 3", "of: cates, most: 3", DataError, "acts.csv:1:1: .*'cates'; did you"),
        ("by: ad, over: 5", "by: ads, over: 5", ConfigError, "no table has a column 'ads'"),
        ("of: make, where", "of: maker, where", ConfigError, "no table has a column 'maker'"),
        ("keys: {user: who}}", "keys: {user: woh}}", DataError, "'woh'; did you mean 'who'"),
    ],
)
def test_columns_that_are_not_there(tmp_path, old, new, error, message):
    text = PLAN.replace("ZONE", "Asia/Shanghai")
    assert old in text
    with pytest.raises(error, match=message):
        run(tmp_path, random_tables(np.random.default_rng(1)), text.replace(old, new))


def test_commas_in_values_of_lists(tmp_path):
    tables = random_tables(np.random.default_rng(1))
    plan = PLAN.replace("ZONE", "Asia/Shanghai")
    comma = {**tables, "acts": tables["acts"] + '1,1494000000,pv,"a,b",3\n'}
    with pytest.raises(DataError, match=r"acts.csv:402:18: cate: expected no comma.*found 'a,b'"):
        run(tmp_path / "a", comma, plan)
    wanted = run(tmp_path / "b", tables, plan)
    assert run(tmp_path / "c", comma, plan, bad=BadRows(0.1)) == wanted
    comma = {
        **tables,
        "ads": tables["ads"] + '7,"x,y"\n',
        "log": tables["log"] + "1,1494000000,7,1\n",
    }
    with pytest.raises(DataError, match=r"impressions: make 'x,y' has a comma"):
        run(tmp_path / "d", comma, plan)


def test_events_that_no_impression_sees(tmp_path):
    tables = random_tables(np.random.default_rng(1))
    plan = PLAN.replace("ZONE", "Asia/Shanghai")
    wanted = run(tmp_path / "a", tables, plan)
    absurd = "".join(f"1,{time},pv,a,3\n" for time in (-5, 0, 1 << 40, 2147483647, 1495000000))
    found = run(tmp_path / "b", {**tables, "acts": tables["acts"] + absurd}, plan)
    assert found == wanted


def test_too_little_memory_and_room(tmp_path, monkeypatch):
    tables = random_tables(np.random.default_rng(1))
    plan = PLAN.replace("ZONE", "Asia/Shanghai")
    with pytest.raises(ConfigError, match=r"memory_mb: too little: .* left; allow \d+ or more"):
        run(tmp_path / "a", tables, plan, memory_bytes=1 << 20)
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("ctrps.data.making.shutil.disk_usage", lambda _path: usage)
    with pytest.raises(ConfigError, match=r"takes about 0.0 GB of disk, and 0.0 GB are free; give"):
        run(tmp_path / "b", tables, plan)


def test_records_stay_in_memory_until_they_are_written(tmp_path):
    room = Room(100)
    writers = [SpillWriter(tmp_path / name, room) for name in "ab"]
    for number in (7, 3, 7):
        for writer in writers:
            writer.append(number, [np.arange(number), np.zeros(1)], weight=number)
    assert room.left == 100 - 2 * 8 * (17 + 3) and not list(tmp_path.iterdir())
    kept = writers[0].close()
    writers[1].write()
    assert room.left == 100 - 8 * (17 + 3)
    on_disk = writers[1].close()
    for found in (kept, on_disk):
        assert sorted(found.records.tolist()) == [[3, 3, 3], [7, 7, 7], [7, 7, 7]]
        assert [len(first) for first, _ in found.read(7)] == [7, 7]
        assert found.joined(7)[0].tolist() == [*range(7), *range(7)] and not found.joined(5)
        found.remove(7)
    assert room.left == 100 - 8 * (3 + 1) and not kept.read(7) and len(on_disk.read(7)) == 2
