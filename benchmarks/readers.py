"""Every reader of ctrps with valid input, a way to spoil it, and what must hold of its rows.

``READERS`` maps a name to how an input is made in a folder and how it is read from there; both
follow from a ``random.Random``. How inputs are run, timed and counted is ``fuzz``'s business.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tarfile import is_tarfile
from typing import Any

import numpy as np

from benchmarks.fuzz import Reader
from benchmarks.inputs import (
    JOB,
    JOB_INI,
    JOIN,
    KEYED,
    OLD_INI,
    RAW,
    TABLE_HOW,
    TEXTS,
    prepare,
    write_raw,
)
from benchmarks.mutate import any_column, changed, changed_array, mutated, packed
from ctrps.checkpoint import KIND as PARTITION
from ctrps.checkpoint import MANIFEST
from ctrps.codec import CodecError, FrameFile, FrameFileWriter
from ctrps.config import load_job
from ctrps.data.badrows import BadRows, read_aside
from ctrps.data.batches import BlockBatches
from ctrps.data.extract import extract
from ctrps.data.features import load_spec
from ctrps.data.formats import RowSource, TextSettings, open_rows
from ctrps.data.indices import disagreement
from ctrps.data.joinfile import load_plan
from ctrps.data.names import KIND as NAMES
from ctrps.data.names import read_names
from ctrps.data.rows import Rows, Schema, joined
from ctrps.data.samplefile import open_samples
from ctrps.data.shards import KIND as SHARD
from ctrps.data.shards import Shard, ShardWriter
from ctrps.data.streams import most_bytes
from ctrps.data.tables import RawTable, read_columns
from ctrps.errors import CtrpsError
from ctrps.loaded import LoadedModel
from ctrps.ps import messages

__all__ = ["READERS", "prepare"]

PARQUET_MB = 2304
"""pyarrow believes a page to have 2 GiB before it reads it."""

SEEDS = [text.data.encode() for text in TEXTS.values()]


class Fault(Exception):
    """A reader gave what no input may bring it to give."""


Read = Callable[[Path, Random], int]
Open = Callable[[BadRows, int], RowSource]
"""Opens rows, so many bytes at a time."""


def check_rows(rows: Rows, schema: Schema) -> int:
    """How many rows; ``Fault`` unless their arrays fit each other and their numbers are finite."""
    n = rows.rows
    good = (
        rows.counts.shape[0] == n
        and rows.counts.shape[1] <= len(schema.slots)
        and rows.counts.min(initial=0) >= 0
        and int(rows.counts.sum(dtype=np.int64)) == len(rows.keys)
        and rows.dense.shape == (n, len(schema.dense))
        and bool(np.isfinite(rows.dense).all())
        and (rows.values is None or len(rows.values) == len(rows.keys))
        and (rows.values is None or bool(np.isfinite(rows.values).all()))
        and bool((np.isnan(rows.labels) | (rows.labels == 0) | (rows.labels == 1)).all())
    )
    if good and rows.ids is not None:
        text, ends = rows.ids
        borders = np.concatenate([[0], ends])
        good = len(ends) == n and borders[-1] == len(text) and bool((np.diff(borders) >= 0).all())
    if not good:
        raise Fault("rows whose arrays do not fit each other, or that are not finite")
    return n


def _spoil(path: Path, data: bytes, rng: Random | None, *, pack: bool = True) -> None:
    if rng is not None:
        data = mutated(rng, data, SEEDS)
        data = packed(rng, data, path.name) if pack else data
    path.write_bytes(data)


def _text(name: str) -> Reader:
    text = TEXTS[name]

    def make(prepared: Path, folder: Path, rng: Random | None) -> None:
        _spoil(folder / f"input{text.suffix}", text.data.encode(), rng)

    def read(folder: Path, rng: Random) -> int:
        how = TextSettings(format=name.partition(" ")[0], **text.how)
        most = rng.choice([0.0, 0.5, 1.0])
        if rng.randrange(8) == 0:
            how = replace(how, format="auto")
        how = replace(how, labels=rng.choice(["required"] * 4 + ["optional", "none"]))
        path = folder / f"input{text.suffix}"
        opened = partial(open_rows, path, how)
        if how.format != "auto" and rng.randrange(8) == 0:
            _check_pieces(path, opened, most)
        return _read_text(path, opened, most, _piece_bytes(path, rng), rng.randrange(8) == 0)

    return Reader(make, read)


def _make_samples(prepared: Path, folder: Path, rng: Random | None) -> None:
    shutil.copy(prepared / "out" / "data" / "features.ini", folder)
    samples = sorted((prepared / "out" / "samples").glob("*.tsv"))[0]
    _spoil(folder / "input.tsv", samples.read_bytes(), rng)


def _read_samples(folder: Path, rng: Random) -> int:
    spec, path = load_spec(folder / "features.ini"), folder / "input.tsv"
    labels, most = rng.choice(["required", "optional", "none"]), rng.choice([0.0, 1.0])

    def opened(bad: BadRows, pieces: int) -> RowSource:
        return open_samples(path, spec, bad, pieces, labels)

    if rng.randrange(8) == 0:
        _check_pieces(path, opened, most)
    return _read_text(path, opened, most, _piece_bytes(path, rng), rng.randrange(8) == 0)


def _piece_bytes(path: Path, rng: Random) -> int:
    """Bytes that are read at a time: few, so that rows are broken off, where there are few."""
    return rng.choice([1 << 20, 1 << 20, 61 if most_bytes(path) < 1 << 20 else 1 << 14])


def _check_pieces(path: Path, opened: Open, most: float) -> None:
    """``Fault`` unless it makes no difference how many bytes are read at a time."""
    if path.stat().st_size == most_bytes(path) < 1 << 16 and not is_tarfile(path):
        whole, broken = (_outcome(opened, most, pieces) for pieces in (1 << 20, 61))
        if whole != broken:
            raise Fault(f"{whole} if read at once, {broken} if 61 bytes at a time")


def _outcome(opened: Open, most: float, pieces: int) -> tuple[str, ...]:
    """The error, or slots, bad rows and a digest of the rows."""
    bad = BadRows(most)
    try:
        with opened(bad, pieces) as source:
            parts = list(source.rows)
    except CtrpsError as error:
        return (str(error),)
    if not parts:
        return str(source.schema.slots), str(bad.count)
    rows = joined(parts)
    values = np.ones(len(rows.keys), np.float32) if rows.values is None else rows.values
    arrays = [rows.keys, rows.counts, values, rows.dense, rows.labels, *(rows.ids or ())]
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    return str(source.schema.slots), str(bad.count), digest


def _read_text(path: Path, opened: Open, most: float, pieces: int, keep: bool) -> int:
    """All rows of a file of text; ``keep`` them in a shard, too, that must hold them."""
    bad = BadRows(most, path.with_name("aside"))
    writer, total, digest = None, 0, hashlib.sha256()
    with opened(bad, pieces) as source:
        try:
            for rows in source.rows:
                total += check_rows(rows, source.schema)
                if keep and writer is None:
                    writer = ShardWriter(path.with_name("kept"), source.schema, block_rows=1024)
                if writer is not None:
                    writer.extend(source.schema) if source.schema != writer.schema else None
                    writer.add(rows)
                    digest.update(rows.labels.tobytes())
            bad.finish(total + bad.count)
        finally:
            bad.close()
            if writer is not None:
                with writer:
                    pass
    if bad.count != len(list(read_aside(bad.aside)) if bad.count else []):
        raise Fault("bad rows were not set aside")
    if writer is not None:
        labels = b"".join(b.labels.tobytes() for b in Shard(path.with_name("kept")).blocks())
        if hashlib.sha256(labels).digest() != digest.digest():
            raise Fault("a shard does not hold the rows that it was made of")
    return total


def reforged(rng: Random, source: Path, target: Path, kind: str) -> None:
    """A file of frame sets with other records or another trailer, and all checksums right."""
    file = FrameFile(source, kind)
    records, meta = [file.read(i) for i in range(file.records)], file.meta
    for _ in range(rng.choice([1, 1, 2, 3])):
        what = rng.randrange(8)
        if what < 2 or not records:
            found = changed(rng, meta)
            meta = found if isinstance(found, dict) else meta
            continue
        at = rng.randrange(len(records))
        header, arrays = records[at]
        if what == 2:
            records.insert(rng.randrange(len(records)), records.pop(at))
        elif what == 3:
            del records[at]
        elif what == 4:
            records[at] = (changed(rng, header), arrays)
        elif arrays:
            number = rng.randrange(len(arrays))
            arrays = list(arrays)
            if rng.randrange(6):
                arrays[number] = changed_array(rng, arrays[number])
            else:
                arrays.insert(rng.randrange(len(arrays)), arrays.pop(number))
            records[at] = (header, arrays)
    with FrameFileWriter(target, kind) as writer:
        for header, arrays in records:
            writer.append(header, arrays)
        writer.close(meta)


def _frames(source: Path, target: Path, rng: Random | None, kind: str) -> None:
    if rng is not None and rng.randrange(4):
        reforged(rng, source, target, kind)
    else:
        _spoil(target, source.read_bytes(), rng, pack=False)


def _make_shard(prepared: Path, folder: Path, rng: Random | None) -> None:
    sources = sorted((prepared / "shards").glob("*.shard"))
    _frames(rng.choice(sources) if rng else sources[0], folder / "input.shard", rng, SHARD)


def _read_shard(folder: Path, rng: Random) -> int:
    shard, total = Shard(folder / "input.shard"), 0
    disagreement([shard], [shard])
    for block in shard.blocks():
        batch = BlockBatches(block, shard.schema, rng.randrange(9)).minibatch(np.arange(block.rows))
        if batch.indptr[-1] != len(batch.index) or len(batch.keys) < batch.index.max(initial=-1):
            raise Fault("a minibatch whose arrays do not fit each other")
        total += block.to_rows().rows
    return total


def _make_names(prepared: Path, folder: Path, rng: Random | None) -> None:
    (source,) = (prepared / "out" / "data").glob("train-*.names")
    _frames(source, folder / "input.names", rng, NAMES)


def _read_names(folder: Path, rng: Random) -> int:
    names = read_names([folder / "input.names"])
    names.of(np.arange(3, dtype=np.uint64))
    return len(list(names.most_frequent(5, "a")))


def _make_model(prepared: Path, folder: Path, rng: Random | None) -> None:
    """A model with a spoiled partition or manifest; the manifest vouches for either, or not."""
    model = folder / "model"
    shutil.copytree(prepared / "run" / "model", model)
    manifest = json.loads((model / MANIFEST).read_text())
    if rng is None:
        return
    if rng.randrange(4) == 0:
        path = rng.choice(sorted(model.iterdir()))
        _spoil(path, path.read_bytes(), rng, pack=False)
        return
    del manifest["check"]
    if rng.randrange(2):
        number = rng.randrange(len(manifest["files"]))
        partition, name, *_ = manifest["files"][number]
        target = model / name
        reforged(rng, prepared / "run" / "model" / name, target, PARTITION)
        with contextlib.suppress(CodecError):  # where a change goes beyond the codec's limits
            file = FrameFile(target, PARTITION)
            manifest["files"][number] = [partition, name, file.size_bytes, file.digest]
    else:
        found = changed(rng, manifest)
        manifest = found if isinstance(found, dict) else manifest
    body = json.dumps(_jsonable(manifest), sort_keys=True)
    manifest = json.loads(body)
    check = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    text = json.dumps(manifest | {"check": check}, indent=1, sort_keys=True)
    (model / MANIFEST).write_bytes(text.encode() + b"\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _read_model(folder: Path, rng: Random) -> int:
    model = LoadedModel.open(folder / "model")
    return sum(table.used for table in model.partitions.tables)


def _messages() -> list[messages.Message]:
    keys, rows = np.arange(9, dtype=np.uint64), np.ones((9, 3), np.float32)
    texts = ("job", "digest", "kernel", "boot", "127.0.0.1:1")
    counters = {"rows": 5.0}
    return [
        messages.Register(3, "server", -1, *texts, False),
        messages.Welcome("boot", 1, 2, 0, "names", (keys.astype(np.int64),)),
        messages.Status(1, 1, 1, 1, 1, 0, 5, True, [1, 2], 3, -1, [(0, "p", 9, "d")], counters,
                        "", 0, "peers", [1], (rows[:, 0], rows[:, 1])),
        messages.Orders(1, 2, 3, [1, 1], [(1, "127.0.0.1:2")], -1, 0, "train", [(0, 1)], [1, 0, 5],
                        "", 0, 1, [(1, 2, 3, "127.0.0.1:3")]),
        messages.Copy(1, 0, "rows", [3], 0.5, (keys, rows)),
        messages.Copied(1, 2),
        messages.Pull(1, 1, 0, 1, 2, "train", (keys, keys[:1])),
        messages.Pulled(1, 5, 2, (rows, rows[:1])),
        messages.Push(1, 1, 0, 1, 2, 64, 5, 0.5, -1, (keys,), (rows,), (keys.astype(np.int32),),
                      ()),
        messages.Pushed(1, 2), messages.Refused(1, "gap", 7, "x"), messages.Bye(1, 0, "done"),
    ]  # fmt: skip


def _make_wire(prepared: Path, folder: Path, rng: Random | None) -> None:
    """Frames, each in a file; a header is changed as bytes or as a value."""
    import msgpack

    known = _messages()
    chosen = [rng.choice(known) for _ in range(rng.randint(1, 9))] if rng else known[:8]
    frames = [bytes(frame) for frame in messages.encode(*chosen)]
    if rng is not None:
        if rng.randrange(3):
            head = changed(rng, msgpack.unpackb(frames[0]))
            frames[0] = msgpack.packb(head, unicode_errors="surrogatepass")
        else:
            at = rng.randrange(len(frames))
            frames[at] = mutated(rng, frames[at])
        if rng.randrange(8) == 0:
            frames = rng.choice([frames[1:], frames * 2, frames[:1] * 100, frames[::-1]])
    for number, frame in enumerate(frames):
        (folder / f"{number:03d}.frame").write_bytes(frame)


def _read_wire(folder: Path, rng: Random) -> int:
    found = messages.decode([bytearray(p.read_bytes()) for p in sorted(folder.glob("*.frame"))])
    messages.encode(*found)
    return len(found)


def _make_table(prepared: Path, folder: Path, rng: Random | None) -> None:
    if rng is not None and rng.randrange(4) == 0:
        _make_parquet(prepared, folder, rng)
    else:
        _spoil(folder / "input.csv", RAW["users.csv"].encode(), rng)


def _read_table(folder: Path, rng: Random) -> int:
    bad = BadRows(rng.choice([0.0, 0.5]))
    (path,) = folder.iterdir()
    with RawTable(path, bad, _piece_bytes(path, rng)) as table:
        columns = read_columns(table, table.names[:2])
        bad.finish(table.rows)
    columns.line(len(columns.starts) - 1) if len(columns.starts) else None
    return len(columns.starts)


def _make_join(prepared: Path, folder: Path, rng: Random | None) -> None:
    _spoil(folder / "join.yaml", JOIN.encode(), rng, pack=False)


def _read_join(folder: Path, rng: Random) -> int:
    return len(load_plan(folder / "join.yaml").windows) + 1


def _make_job(prepared: Path, folder: Path, rng: Random | None) -> None:
    names = {"job.yaml": JOB, "job.ini": JOB_INI, "old.ini": OLD_INI}
    name = rng.choice(sorted(names)) if rng else "job.yaml"
    _spoil(folder / name, names[name].encode(), rng, pack=False)


def _read_job(folder: Path, rng: Random) -> int:
    (path,) = folder.iterdir()
    job = load_job(path, [], {})
    job.dump_yaml(origins=True)
    return 1


def _make_features(prepared: Path, folder: Path, rng: Random | None) -> None:
    """A features file, and samples of the job that it belongs to; one of them is spoiled."""
    which = rng.choice(["features.ini", "samples"]) if rng else ""
    edits = {"features.ini": lambda data: mutated(rng, data)} if which == "features.ini" else {}
    write_raw(folder, edits)
    shutil.copytree(prepared / "out" / "samples", folder / "out" / "samples")
    if which == "samples":
        path = rng.choice(sorted((folder / "out" / "samples").glob("*.tsv")))
        _spoil(path, path.read_bytes(), rng, pack=False)


def _make_extract(prepared: Path, folder: Path, rng: Random | None) -> None:
    """A job of extraction; one or two of its files are spoiled, most often a table."""
    names = [*(f"raw/{name}" for name in RAW), "join.yaml", "raw/log.csv"]
    chosen = [rng.choice(names) for _ in range(rng.choice([1, 1, 2]))] if rng else []
    edits = {name: lambda data: mutated(rng, data) for name in chosen}
    write_raw(folder, edits)
    for name in chosen:
        if name.startswith("raw/"):
            path = folder / name
            path.write_bytes(packed(rng, path.read_bytes(), path.name))


def _extracted(stage: str | None) -> Read:
    def read(folder: Path, rng: Random) -> int:
        most = rng.choice([0, 0.5])
        settings = [f"sample.max_bad={most}", f"features.count_above={rng.choice([0, 1])}"]
        found = extract(load_job(folder / "job.yaml", settings, {}), stage, processes=1)
        for part in found["outputs"].values():
            for path in part:
                shard = Shard(Path(path))
                for block in shard.blocks():
                    check_rows(block.to_rows(), shard.schema)
        return found["rows"]

    return read


def _make_parquet(prepared: Path, folder: Path, rng: Random | None) -> None:
    """A table, or rows of keys as ``convert`` writes them, with other columns or damaged bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    source, target = rng.choice(["keyed", "table"]) if rng else "keyed", folder / "input.parquet"
    table, schema = parquet.read_table(prepared / f"{source}.parquet"), KEYED
    how: dict[str, Any] = {}
    if rng is not None:
        for _ in range(rng.choice([0, 1, 1, 2])):
            at, column = rng.randrange(table.num_columns), any_column(rng, table.num_rows)
            name = rng.choice([table.field(at).name] * 9 + ["label", "a.b", "", "\0"])
            table = table.set_column(at, pa.field(name, column.type), column)
        schema = changed(rng, KEYED) if rng.randrange(4) == 0 else KEYED
        how = {"compression": rng.choice(["none", "snappy", "zstd"]), "row_group_size": 7}
        how["write_page_checksum"] = rng.randrange(2) == 1
    if source == "keyed":
        table = table.replace_schema_metadata({"ctrps.schema": json.dumps(_jsonable(schema))})
    parquet.write_table(table, target, **how)
    if rng is not None and rng.randrange(3) == 0:
        target.write_bytes(mutated(rng, target.read_bytes()))


def _read_parquet(folder: Path, rng: Random) -> int:
    how = TextSettings(format=rng.choice(["auto", "parquet"]), **rng.choice([TABLE_HOW, {}]))
    how = replace(how, labels=rng.choice(["required", "optional", "none"]))
    path, most = folder / "input.parquet", rng.choice([0.0, 1.0])
    return _read_text(path, partial(open_rows, path, how), most, 1 << 20, False)


READERS = {name: _text(name) for name in TEXTS} | {
    "parquet": Reader(_make_parquet, _read_parquet, memory_mb=PARQUET_MB),
    "shard": Reader(_make_shard, _read_shard),
    "names": Reader(_make_names, _read_names),
    "checkpoint": Reader(_make_model, _read_model),
    # Who sent a message is known a layer above.
    "wire": Reader(_make_wire, _read_wire, nameless=True),
    "raw table": Reader(_make_table, _read_table, memory_mb=PARQUET_MB),
    "join file": Reader(_make_join, _read_join),
    "job file": Reader(_make_job, _read_job),
    "samples": Reader(_make_samples, _read_samples),
    "features": Reader(_make_features, _extracted("features")),
    "extract": Reader(_make_extract, _extracted(None)),
}
