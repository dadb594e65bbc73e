"""The 56 windows of ``conf/taobao_v16_sample.yaml`` against DuckDB, an engine that is not ours."""

from pathlib import Path

import pytest

from ctrps.data.badrows import BadRows
from ctrps.data.joinfile import load_plan
from ctrps.data.samples import make_samples
from ctrps.data.synthetic import generate

duckdb = pytest.importorskip("duckdb", reason="DuckDB cannot be imported; it is in the group dev")

JOIN = Path(__file__).parents[1] / "conf" / "taobao_v16_sample.yaml"

TABLES = """
create table imp as
    select s.*, time_stamp::bigint as t, (time_stamp::bigint + 28800) // 86400 as day,
           coalesce(cate_id, '') as cate_id, coalesce(brand, '') as brand,
           coalesce(customer, '') as customer
    from (select row_number() over () as n, * from read_csv('{raw}/raw_sample.csv', {how})) s
    left join read_csv('{raw}/ad_feature.csv', {how}) using (adgroup_id);
create table act as
    select *, time_stamp::bigint as t, (time_stamp::bigint + 28800) // 86400 as day
    from read_csv('{raw}/behavior_log.csv', {how});
"""
TOP = """
with asked as (select distinct user, day from imp),
     counts as (select asked.user, asked.day, act.{of} as v, count(*) as c
                from asked join act on act.user = asked.user
                     and act.day between asked.day - 14 and asked.day - 1
                where btag = '{btag}' group by all),
     lists as (select user, day, array_to_string(list(v order by c desc, v desc)[:50], ',') as l
               from counts group by all)
select coalesce(l, '') from imp left join lists using (user, day) order by n
"""
TODAY = """
with firsts as (select n, act.{of} as v, min(act.t) as first, max(act.t) as last
                from imp join act on act.user = imp.user and act.day = imp.day and act.t < imp.t
                where btag = '{btag}' group by all),
     lists as (select n, array_to_string(list(v order by first, v), ',') as l,
               list(v order by last desc, v desc)[1] as one from firsts group by all)
select coalesce(l, ''), coalesce(one, '') from imp left join lists using (n) order by n
"""
COUNTS = """
select count(past.n)::varchar, count(past.n) filter (past.clk = '1')::varchar,
       round(count(past.n) filter (past.clk = '1') / (count(past.n) + 10), 12)
from imp left join imp past on past.{key} = imp.{key}
     and past.t >= imp.t - {hours} * 3600 and past.t < imp.t
group by imp.n order by imp.n
"""
CLICKED = """
with firsts as (select imp.n, past.{of} as v, min(past.t) as first, max(past.t) as last
                from imp join imp past on past.user = imp.user and past.clk = '1'
                     and past.t >= imp.t - {hours} * 3600 and past.t < imp.t
                where past.{of} <> '' group by all),
     lists as (select n, array_to_string(list(v order by first, v), ',') as l,
               list(v order by last desc, v desc)[1] as one from firsts group by all)
select coalesce(l, ''), coalesce(one, '') from imp left join lists using (n) order by n
"""
PAIR = """
select count(past.n) filter (past.clk = '1')::varchar,
       count(past.n) filter (past.clk = '0')::varchar
from imp left join imp past on past.user = imp.user and past.adgroup_id = imp.adgroup_id
     and past.t >= imp.t - {hours} * 3600 and past.t < imp.t
group by imp.n order by imp.n
"""


def queries():
    """Names of columns, and the query whose columns they are."""
    for btag in ("pv", "fav", "cart", "buy"):
        for of in ("cate", "brand"):
            yield [f"{btag}_{of}_last_14days"], TOP.format(btag=btag, of=of)
            latest = f"{btag}_{of}_global_latest_"
            yield [latest + "n", latest + "1"], TODAY.format(btag=btag, of=of)
    for hours in (24, 168):
        for who, key in (("user", "user"), ("ad", "adgroup_id")):
            names = [f"{who}_{what}_last_{hours}hour" for what in ("show", "click", "ctr")]
            yield names, COUNTS.format(key=key, hours=hours)
        for name, of in (
            ("aid", "adgroup_id"),
            *((c, c) for c in ("cate_id", "brand", "customer")),
        ):
            names = [f"user_click_local_{name}_list_uniq_last_{hours}hour",
                     f"user_last_click_local_{name}_last_{hours}hour"]  # fmt: skip
            yield names, CLICKED.format(of=of, hours=hours)
        names = [
            f"user_{what}_local_this_ad_count_last_{hours}hour" for what in ("click", "non_click")
        ]
        yield names, PAIR.format(hours=hours)


@pytest.mark.parametrize(
    ("rows", "behaviors"),
    [(20_000, 100_000), pytest.param(200_000, 1_000_000, marks=pytest.mark.slow)],
)
def test_every_window_by_duckdb(tmp_path, rows, behaviors):
    raw, out = tmp_path / "raw", tmp_path / "out"
    out.mkdir()
    generate(raw, rows=rows, users=rows // 20, ads=rows // 50, behaviors=behaviors, seed=5)
    plan = load_plan(JOIN)
    make_samples(raw, plan, out, BadRows(), shuffle=False, threads=2)
    lines = [line for kind in ("train", "test") for path in sorted(out.glob(f"{kind}-*.tsv"))
             for line in path.read_text().splitlines()[1:]]  # fmt: skip
    assert len(lines) == rows
    columns = dict(zip(plan.columns, zip(*(line.split("\t") for line in lines), strict=True),
                       strict=True))  # fmt: skip
    base = duckdb.connect()
    base.execute(TABLES.format(raw=raw, how="all_varchar=true, header=true"))
    order = base.execute("select n - 1 from imp order by day = 17299, n").fetchnumpy()
    (order,) = order.values()
    checked = set()
    for names, query in queries():
        found = base.execute(query).fetchall()
        for name, values in zip(names, zip(*found, strict=True), strict=True):
            wanted = [values[number] for number in order]
            if "_ctr_" in name:
                assert [float(text) for text in columns[name]] == pytest.approx(wanted, abs=1e-12)
            else:
                assert list(columns[name]) == wanted, name
            checked.add(name)
    assert checked == set(plan.windows) and len(checked) == 56
