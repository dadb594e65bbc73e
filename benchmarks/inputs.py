"""Valid input of every reader of ctrps: text, and what ctrps and pyarrow make of it.

What is done to it, and by which reader, is ``readers``' business.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ctrps.config import load_job
from ctrps.data.badrows import BadRows
from ctrps.data.convert import to_shards
from ctrps.data.extract import extract
from ctrps.data.formats import TextSettings, open_rows
from ctrps.data.rewrite import rewrite
from ctrps.data.shards import ShardWriter
from ctrps.runtime.local import train

CATEGORY = "68fd1e64"
CRITEO = "".join(
    "\t".join(["01"[i % 2], *(str(i * j - 1) for j in range(13)), *[CATEGORY] * 25, ""]) + "\n"
    for i in range(12)
)
TABLE = "label,id,ad,site,price\n" + "".join(
    f'{i % 2},row {i},{i % 5},"a ""b"", c {i}",{i / 8}\n' for i in range(40)
)
JSON = "".join(
    json.dumps({"label": i % 2, "id": f"r{i}", "ad": [i, "é", None], "price": i / 8}) + "\n"
    for i in range(40)
)
ROW = "1 3:1 11:0.5 18446744073709551615:1e-3\n-1 7:2.00000011920928955078125\n0 1:1 2:1\n"
BARE = TABLE.partition("\n")[2]
TABLE_HOW = {"numeric": ("price",), "id": "id"}


class Text(NamedTuple):
    """Valid text of a format, the end of its file's name, and how it is read."""

    data: str
    suffix: str
    how: dict[str, Any]


TEXTS = {
    "libsvm": Text(ROW * 9, ".svm", {}),
    "dummy": Text("1 3 11 40\n-1 7\n0 1 2 3 4\n" * 20, ".dummy", {}),
    "libffm": Text("1 0:3:1 1:11:0.5\n-1 2:7:2e-3 4095:1:1\n" * 9, ".ffm", {}),
    "vw": Text("1 1.0 't1|ad:0.5 a b:2 |u x\n-1 't2| c d:1e-3\n" * 9, ".vw", {}),
    "slots": Text("7,8 click:1 ad:3,ad:4\tuser:9\n7,8 ad:5 click:0\n" * 9, ".txt",
                  {"label": "click", "columns": ("a", "b"), "ignore": ("user",)}),
    "signs": Text("1:click 3:ad 4:ad 9:id\n0:click 9:id\n" * 9, ".txt",
                  {"label": "click", "id": "id"}),
    "criteo": Text(CRITEO, ".txt", {}),
    "csv": Text(TABLE, ".csv", TABLE_HOW),
    "csv without header": Text(BARE, ".csv", TABLE_HOW | {
        "columns": ("label", "id", "ad", "site", "price"), "missing": ("5", "NULL")}),
    "tsv": Text(TABLE.replace(", ", " ").replace(",", "\t"), ".tsv", TABLE_HOW),
    "jsonl": Text(JSON, ".jsonl", TABLE_HOW),
}  # fmt: skip
"""The key is the format, with words behind it where there are several of one."""

RAW = {
    "log.csv": "time_stamp,user,ad,clk\n"
    + "".join(f"{1494000000 + 4000 * i},{i % 4},{i % 3},{i % 2}\n" for i in range(40)),
    "users.csv": 'userid,age,tags\n0,20,"a"\n1,35,b\n2,,c\n',
    "events.csv": "time_stamp,user,cate,btag\n"
    + "".join(f"{1493990000 + 3000 * i},{i % 4},c{i % 3},pv\n" for i in range(40)),
}
JOIN = """\
impressions: {table: log, time: time_stamp, zone: Asia/Shanghai}
joins: [{table: users, on: user, key: userid}]
derived: {day: {time: day}, tm_hour: {time: hour}, flag: {constant: x}}
events:
  behaviors: {table: events, time: time_stamp, delay_s: 60}
windows:
  shows: {take: count, by: user, over: 24 hours}
  ctr: {take: rate, hit: {clk: 1}, plus: 3, by: [user, ad], over: 3 days}
  cates: {take: top, of: cate, events: behaviors, where: {btag: pv}, by: user,
          over: 2 days, most: 3}
  today: {take: distinct, of: cate, events: behaviors, by: user, over: today}
  last: {take: last, of: ad, by: user, over: today}
split:
  train: {first: 2017-05-06, last: 2017-05-06}
  test: {first: 2017-05-07, last: 2017-05-09}
"""
FEATURES = """\
[raw_sample_schema]
fields=time_stamp,user,ad,clk,age,tags,day,tm_hour,flag,shows,ctr,cates,today,last
[derived_fields]
low=tags,tidy,lower|strip
wday=time_stamp,weekday,Asia/Shanghai
[id]
id=time_stamp|user,combine,direct|direct,#
[label]
clk=clk,direct
[dense_features_user]
age_log=age,log,standard
shows=shows,sqrt
[sparse_features_user]
low=low,direct
wday=wday,direct
age=age,bucket,20|30.5|1e3
ctr=ctr,bucket,q3
cates=cates,group,c
hit=last|cates,hit
[sparse_features_user_ad]
x=ad|today|shows,combine,direct|group|bucket,##1|2 # a comment
[missing]
age=drop
"""
JOB = """\
# a job
name: fuzz
sample: {dir: raw, join: join.yaml, max_bad: 0.5, memory_mb: 512}
features: {spec: features.ini, count_above: 1, names: 50}
data: {train: [a.csv, "b c.csv"], missing: ["", NULL], label: clk}
model: {kind: fm, dim: 4}
optimizer: {w: {kind: ftrl, alpha: 0.02, l1: 0.5}, v: {kind: adagrad, alpha: 2e-2}}
train: {passes: 2, batch_rows: 64, consistency: ssp, lanes: 4, staleness: 8, seed: 1}
cluster: {servers: 1, workers: 2, scheduler: "127.0.0.1:0"}
output: {dir: out}
"""
JOB_INI = """\
[train]
passes = 2        ; times
batch_rows = 256
[data]
train = a.csv, "b, c.csv"
missing = [NULL, '']
[optimizer.w]
kind = ftrl
"""
OLD_INI = """\
[net]
model = lr
[sparse_dict]
emb_dim = 8
[optimizer]
optimizer = ftrl
learning_rate = 0.01
[train]
batch_size = 64
"""

KEYED = {"slots": ["ad", "site"], "dense": ["price"], "weights": "mean"}
"""The schema of the keys that are kept in Parquet."""


def prepare(folder: Path) -> None:
    """Write what inputs are made of that needs ctrps to be made: shards, names, a model."""
    write_raw(folder, {})
    extract(load_job(folder / "job.yaml", [], {}))
    (folder / "train.csv").write_text(TABLE)
    settings = ["data.label=label", "data.id=id", "data.numeric=price", f"output.dir={folder}/run",
                f"data.train={folder}/train.csv", "data.test=", "model.kind=fm", "model.dim=2",
                "train.partitions=4", "train.batch_rows=8", "data.block_rows=16"]  # fmt: skip
    train(load_job(None, settings, {}), True, lambda _: None)
    shards = folder / "shards"
    shards.mkdir()
    for name in ("csv", "libffm", "slots", "jsonl"):
        source, text = folder / "input", TEXTS[name]
        source.write_text(text.data)
        with open_rows(source, TextSettings(format=name, **text.how), BadRows()) as rows:
            pieces = list(rows.rows)
            with ShardWriter(shards / f"{name}.shard", rows.schema, block_rows=16) as writer:
                for piece in pieces:
                    writer.add(piece)
    (folder / "input").write_text(TEXTS["libsvm"].data)
    (made,) = to_shards([folder / "input"], TextSettings(format="libsvm"), folder / "cache")
    shutil.copy(made, shards)
    _write_parquet(folder)
    shutil.copy(next((folder / "out" / "data").glob("train-*.shard")), shards)


def write_raw(folder: Path, edits: dict[str, Callable[[bytes], bytes]]) -> None:
    """A job of extraction with its tables; ``edits`` by the names of its files."""
    files = {f"raw/{name}": text for name, text in RAW.items()}
    files |= {"join.yaml": JOIN, "features.ini": FEATURES, "job.yaml": JOB}
    (folder / "raw").mkdir()
    for name, text in files.items():
        edit = edits.get(name, bytes)
        data = edit(text.encode())
        if name == "job.yaml":  # no edit of it leads the run out of its folder
            data = data.replace(b"dir: out", b"dir: %b" % bytes(folder / "out"))
        (folder / name).write_bytes(data)


def _write_parquet(folder: Path) -> None:
    """A table, and the keys of the same rows."""
    import pyarrow as pa
    from pyarrow import parquet

    names, *lines = (line.split(",", 3) for line in TABLE.splitlines())
    columns = {name: [line[i] for line in lines] for i, name in enumerate(names[:3])}
    columns |= {"site": [line[3] for line in lines], "price": [i / 8 for i in range(len(lines))]}
    parquet.write_table(pa.table(columns), folder / "table.parquet")
    how = TextSettings(**TABLE_HOW)
    rewrite([folder / "train.csv"], folder / "keyed.parquet", "parquet", how)
