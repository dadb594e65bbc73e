"""Blocks that wait until it is known which keys are frequent, and text read bit by bit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ctrps.config import load_job
from ctrps.data import drafts, samplelines
from ctrps.data.badrows import BadRows
from ctrps.data.blocks import BlockMaker
from ctrps.data.drafts import Arrays, ArraysWriter
from ctrps.data.extract import extract
from ctrps.data.features import load_spec
from ctrps.data.program import Extractor
from ctrps.data.samplelines import FileLines, TextLines, sample_lines
from ctrps.data.sampletext import SampleText
from ctrps.data.synthetic import generate
from ctrps.errors import ConfigError, DataError
from ctrps.kernels import counts, gather, numbering
from tests import naive_data2 as twin
from tests.procs import started_mb
from tests.test_extract_resume import digests, small

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "conf" / "features_v16.ini"


# kernels


def numbers_with_room(n, room=400):
    slots = np.zeros(1 << n, np.int32)
    return numbering.Numbers(slots, np.zeros(room, np.uint64), *np.zeros((2, room), np.int32))


@pytest.mark.parametrize("seed", range(4))
def test_number_keys(seed):
    """Some keys at a time, from an index that is nearly full to one with much room."""
    rng = np.random.default_rng(seed)
    pool = np.append(rng.integers(0, 2**64, 60, np.uint64), np.uint64([0, 1, 2**64 - 1]))
    keys, known = rng.choice(pool, 90 * seed), pool[:5]
    numbers = numbers_with_room(6 + seed)
    numbers.keys[:5] = known
    numbering.index_numbers(numbers, 5)
    slots = {int(numbers.keys[slot - 1]): int(slot) for slot in numbers.slots if slot}
    assert slots == twin.index_numbers(known.tolist())
    n, used = 5, 0
    for some in np.array_split(keys, 3):
        n = numbering.number_keys(some, numbers, n, used)
        used += len(some)
    found = numbers.keys[:n], numbers.counts[:n], numbers.local[:used]
    assert tuple(a.tolist() for a in found) == twin.number_keys(keys.tolist(), known.tolist())


@pytest.mark.parametrize("seed", range(3))
def test_counts_of_keys(seed):
    """In an index that is enlarged on the way, asked for keys that it has and has not."""
    rng = np.random.default_rng(seed)
    pool = np.append(rng.integers(0, 2**64, 40, np.uint64), np.uint64([0, 2**64 - 1]))
    index, used, wanted = np.zeros((4, 2), np.uint64), 0, {}
    for _ in range(3):
        keys, more = rng.choice(pool[:-8], 50), rng.integers(1, 300, 50, np.int32)
        at = 0
        while at < len(keys):
            used, at = counts.add_counts(index, keys, more, used, at)
            if at < len(keys):
                larger = np.zeros((2 * len(index), 2), np.uint64)
                counts.move_counts(index, larger)
                assert twin.move_counts(larger) == twin.move_counts(index)
                index = larger
        twin.add_counts(wanted, keys.tolist(), more.tolist())
    assert twin.move_counts(index) == wanted and used == len(wanted)
    for above in (0, 300, 700):
        out = np.empty(len(pool), np.bool_)
        counts.counted_above(index, pool, above, out)
        assert out.tolist() == twin.counted_above(wanted, pool.tolist(), above)


def test_ungrouped():
    rng = np.random.default_rng(1)
    blocks = [[rng.integers(0, 2**60, n).tolist() for n in rng.integers(0, 9, 8)] for _ in range(5)]
    every, wanted = twin.ungrouped(blocks)
    sizes = np.array([[len(some) for some in block] for block in blocks], np.int32)
    cursor = np.cumsum([0, *sizes.sum(0)])[:-1]
    keys = np.uint64(every)
    for block, found in zip(sizes, wanted, strict=True):
        out, odd = np.zeros(len(found) + 1, np.uint64), np.ones(len(found) + 1, np.bool_)
        counts.ungrouped(block, cursor, keys, keys % 2 == 1, out, odd)
        assert out.tolist() == [*found, 0]
        assert odd.tolist() == [*(key % 2 == 1 for key in found), True]


@pytest.mark.parametrize("last", [b"\n", b""])
def test_texts_and_lines(last):
    rng = np.random.default_rng(2)
    lines = [bytes(rng.integers(65, 90, n, np.uint8)) for n in (0, 3, 200, 64, 63, 1, 500, 0, 130)]
    whole = b"\n".join(lines) + last
    data = np.frombuffer(bytearray(whole), np.uint8)
    starts = np.cumsum([0, *(len(line) + 1 for line in lines[:-1])])[rng.permutation(9)]
    places = np.zeros(12, np.int64)
    for room in (12, 3, 0):
        count, wanted = gather.newlines(data, places[:room]), twin.newlines(whole)
        assert count == len(wanted) and places[: min(room, count)].tolist() == wanted[:room]
    ends = np.empty(9, np.int64)
    gather.line_ends(data, starts, ends)
    assert ends.tolist() == twin.line_ends(whole, starts.tolist())
    sizes = ends - starts
    out = np.empty(int(sizes.sum()) + 9, np.uint8)
    gather.copy_lines(data, starts, ends, out)
    assert out.tobytes() == twin.copy_lines(whole, starts.tolist(), ends.tolist())
    out = np.empty(int(sizes.sum()), np.uint8)
    gather.gather_texts(data, starts, sizes, out)
    assert out.tobytes() == twin.gather_texts(whole, starts.tolist(), sizes.tolist())


# blocks

HEADER = "a\tlist\tn\ty"
SMALL = """
[raw_sample_schema]
fields=a,list,n,y
[label]
y=y,direct
[dense_features_user]
n=n,direct
[sparse_features_user]
a=a,direct
list=list,group,a
cross=a|list,combine,direct|group,#
"""


@pytest.mark.parametrize("block_rows", [1, 70, 128, 1000])
def test_number_rows(tmp_path, block_rows):
    """Blocks are those of rows that are made first; lists outgrow all room, and rows are bad."""
    rng = np.random.default_rng(3)
    long = rng.integers(0, 5000, 90_000)
    lists = [*(rng.integers(0, 99, rng.integers(0, 6)) for _ in range(400)), long]
    lines = [f"{i % 9}\t{','.join(map(str, some))}\t{i}\t1" for i, some in enumerate(lists)]
    for bad in (3, 200, 201):
        lines[bad] = f"1\t1\tx{bad}\t1"
    (tmp_path / "features.ini").write_text(SMALL)
    spec = load_spec(tmp_path / "features.ini")
    data = np.frombuffer(bytearray("\n".join([HEADER, *lines]).encode()), np.uint8)
    text = SampleText.parse(data, "here")
    order = rng.permutation(len(lines))
    bad = BadRows(1.0)
    maker = BlockMaker(Extractor(spec, text.header, "here"), block_rows, lambda n: n % 2 == 0)
    other = Extractor(spec, text.header, "here")
    kept, good = other.kept(text, text.lines[order], BadRows(1.0))
    starts, first = kept.starts(), 0
    made = maker.blocks([(text, text.lines[order])], bad)
    for number, (numbered, occur, borders, said) in enumerate(made):
        block = numbered.block()
        wanted = kept.part(first, min(first + block_rows, kept.rows), starts)
        rows = block.to_rows()
        for name in ("keys", "counts", "dense", "labels"):
            assert np.array_equal(getattr(rows, name), getattr(wanted, name))
        dense = other.schema.dense_keys().tolist()
        by_row = np.split(wanted.keys, np.cumsum(wanted.counts.sum(1))[:-1])
        distinct, times, _ = twin.number_rows([row.tolist() for row in by_row], dense)
        found = dict(zip(block.keys.tolist(), occur.tolist(), strict=True))
        assert found == dict(zip(distinct, times, strict=True))
        stays = rng.random(len(block.keys)) < 0.5
        some, all_stay = numbered.block(stays), np.isin(rows.keys, block.keys[stays])
        assert np.array_equal(some.keys[some.index], rows.keys[all_stay])
        slots = np.repeat(np.arange(wanted.counts.size), wanted.counts.reshape(-1))[all_stay]
        assert (
            some.counts.reshape(-1).tolist()
            == np.bincount(slots, minlength=wanted.counts.size).tolist()
        )
        assert block.keys[-1:].tolist() == dense and borders[-1] == len(block.keys) - 1
        ends = np.empty(block.rows, np.int64)
        mine = good[first : first + block.rows]
        gather.line_ends(data, mine, ends)
        asked = HEADER.encode() + b"\n" + twin.copy_lines(data.tobytes(), mine, ends)
        assert said.tobytes() == (asked if number % 2 == 0 else b"")
        first += block.rows
    assert first == kept.rows == 398 and bad.count == 3


# files


def test_arrays_of_a_file_that_is_not_whole(tmp_path):
    path = tmp_path / "a"
    with ArraysWriter(path, note=7) as writer:
        writer.append([np.arange(9), np.float32([1.5])])
        writer.append([np.arange(0), np.bool_([True, False])])
    with Arrays(path) as arrays:
        assert (arrays.records, arrays.note, arrays.size(1, 0)) == (2, 7, 0)
        assert [a.tolist() for a in arrays.record(0)] == [list(range(9)), [1.5]]
        assert arrays.read(0, 0, 2, 5).tolist() == [2, 3, 4]
        assert arrays.read(1, 1).tolist() == [True, False]
    with ArraysWriter(tmp_path / "none"):
        pass
    with Arrays(tmp_path / "none") as arrays:
        assert arrays.records == 0
    for size in (path.stat().st_size - 1, 40, 3, 0):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(DataError, match="a: it is cut short"):
            Arrays(path)
    with pytest.raises(KeyError), ArraysWriter(tmp_path / "b"):
        raise KeyError
    assert not list(tmp_path.glob("*b*"))


@pytest.mark.parametrize("window", [40, 4 << 20])
@pytest.mark.parametrize("last", ["\n", ""])
def test_lines_of_a_file_in_any_order(tmp_path, monkeypatch, window, last):
    """The same whether all of it fits memory or next to nothing does; places stay right."""
    monkeypatch.setattr(samplelines, "WINDOW_BYTES", window)
    rng = np.random.default_rng(4)
    lines = [f"{i}\t{'x' * int(n)}" for i, n in enumerate(rng.integers(0, 60, 200))]
    path = tmp_path / "train-0.tsv"
    path.write_text("\ufeffnumber\t text\n" + "\n".join(lines) + last, encoding="utf-8")
    for order in (np.arange(200), rng.permutation(200)):
        for room in (1, 300, 1 << 20):
            found = sample_lines(path, room)
            assert isinstance(found, TextLines if room > 300 else FileLines)
            assert (found.header, found.count) == (("number", "text"), 200)
            got = []
            for text, starts in found.pieces(order):
                assert len(text.data) <= max(room, 70, window) or room > 300
                for start in starts.tolist():
                    line = bytes(text.data[start:]).split(b"\n")[0].decode()
                    assert text.place(start + 2) == (int(line.split("\t")[0]) + 2, 3)
                    got.append(line)
            assert got == [lines[i] for i in order]
    with pytest.raises(DataError, match="cannot read it: No such file"):
        sample_lines(tmp_path / "none", 1)


# runs


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    generate(folder, rows=3000, users=100, ads=60, behaviors=3000, seed=3, compress=False)
    return folder


def job_of(raw, out, *settings):
    words = [f"sample.dir={raw}", f"output.dir={out}", *settings]
    return load_job(ROOT / "conf" / "taobao_v16.yaml", words, {})


def test_ranges_runs_and_text_do_not_matter(raw, tmp_path, monkeypatch):
    """Shards and names are the same however keys and text are cut to fit memory."""
    small(monkeypatch)
    settings = ["features.count_above=2", "features.names=500", "features.block_rows=90"]
    extract(job_of(raw, tmp_path / "one", *settings))
    monkeypatch.setattr(drafts, "RUN_KEYS", 3000)
    monkeypatch.setattr(drafts, "RANGE_KEYS", 2000)
    monkeypatch.setattr("ctrps.data.extract.workers_for", lambda *_: (2, 5000))
    extract(job_of(raw, tmp_path / "two", *settings))
    one, two = digests(tmp_path / "one" / "data"), digests(tmp_path / "two" / "data")
    assert one == two and len(one) > 10


RUN = """
import json, sys
from ctrps.config import load_job
from ctrps.data.extract import extract
if __name__ == "__main__":
    print(json.dumps(extract(load_job(None, sys.argv[1:], {}), stage="features")))
"""


def test_memory_is_bounded(raw, tmp_path):
    """More text and more keys than fit; the most that the process ever held is what it says."""
    # Compiled kernels are in the cache then; compiling takes memory, too.
    extract(job_of(raw, tmp_path))
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "run.py").write_text(RUN)
    samples = tmp_path / "samples"
    head, *lines = (samples / "train-00000.tsv").read_bytes().splitlines(keepends=True)
    with (samples / "train-00000.tsv").open("wb") as file:
        file.write(head)
        for number in range(60):
            # Other users and ads: nearly all keys are new.
            file.writelines(b"%d%s" % (number, line) for line in lines)
    size = (samples / "train-00000.tsv").stat().st_size
    memory_mb = started_mb() + 180
    settings = [f"output.dir={tmp_path}", f"features.spec={SPEC}", "features.count_above=1"]
    settings += [f"sample.memory_mb={memory_mb}", "features.names=1000"]
    command = [sys.executable, str(tmp_path / "run.py"), *settings]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    answer = json.loads(done.stdout)
    assert size > 30 << 20 and answer["rows"] > 60_000
    assert answer["peak_rss_mb"] < memory_mb
    assert answer["stages"]["features"]["processes"] == 1


def test_too_little_memory(raw, tmp_path):
    extract(job_of(raw, tmp_path), stage="sample")
    few = ["sample.memory_mb=256", "features.names=1000000"]
    said = r"sample.memory_mb: too little: features need \d+ MB, and \d+ MB are left"
    with pytest.raises(ConfigError, match=said):
        extract(job_of(raw, tmp_path, *few), stage="features")
