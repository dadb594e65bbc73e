"""A model on disk: the same whoever saves and reads it, and refused when anything is off."""

import contextlib
import json
import os
import resource
import shutil

import numpy as np
import pytest

from ctrps import checkpoint, models
from ctrps.checkpoint import Checkpoint, Manifest
from ctrps.config import load_job
from ctrps.errors import CheckpointError
from ctrps.ps.partition import Contribution, PartitionSet
from ctrps.ps.table import RowSet

SETTINGS = ["model.kind=fm", "model.dim=2", "train.partitions=8"]


def trained(seed=1, order=1, pushes=3):
    """A model after some pushes; ``order`` -1 makes its rows in another order."""
    model = models.build(load_job(None, SETTINGS, {}))
    held = PartitionSet(model)
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**64, 60, np.uint64)
    gradients = rng.normal(size=(pushes, 60, 3)).astype(np.float32)
    for gradient in gradients:
        parts = (keys[::order], np.uint64([models.INTERCEPT_KEY]))
        sums = (gradient[::order], np.float32([[0.5]]))
        counts = (np.ones(60, np.int32), np.int32([4]))
        held.apply({0: Contribution(4, 1.0, parts, sums, counts)})
    return held


def write(folder, held, servers, number=1, view=1):
    """The partitions of ``held`` as files, written by so many servers in turn."""
    names = [table.name for table in held.model.tables]
    files = []
    for server in range(servers):
        for partition, state in list(enumerate(held.snapshot()))[server::servers]:
            tables = [(name, *rows) for name, rows in zip(names, state.tables, strict=True)]
            files.append(
                checkpoint.write_partition(folder, partition, number, view, server, tables)
            )
    return files


def manifest(held, files, number=1):
    job = load_job(None, SETTINGS, {})
    return Manifest(
        checkpoint=number,
        pass_=0,
        step=held.step,
        border=True,
        model=job.model_settings(),
        plan="p",
        tables=[[table.name, table.dim, table.width] for table in held.model.tables],
        job=job.dump_yaml(),
        data={},
        files=tuple(files),
        model_digest="",
    )


def save(folder, held, servers=3, number=1):
    folder.mkdir(exist_ok=True)
    return checkpoint.commit(folder, manifest(held, write(folder, held, servers, number), number))


def load(folder, readers=1):
    """The model's partitions, dealt to so many readers."""
    opened = Checkpoint(folder)
    model = models.build(load_job(None, SETTINGS, {}))
    held = [PartitionSet(model) for _ in range(readers)]
    for partition in range(opened.partitions):
        held[partition % readers].load([RowSet(*rows) for rows in opened.read(partition).tables])
    return held


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "good"
    return folder, save(folder, trained())


@pytest.fixture
def copy(good, tmp_path):
    return shutil.copytree(good[0], tmp_path / "copy")


@pytest.mark.parametrize("servers", [1, 3, 8, 64])
def test_the_digest_knows_neither_servers_nor_the_order_of_rows(good, tmp_path, servers):
    assert good[1].model_digest.startswith("sha256:")
    assert save(tmp_path / "m", trained(order=-1), servers).model_digest == good[1].model_digest


def test_another_model_has_another_digest(good, tmp_path):
    assert save(tmp_path / "m", trained(pushes=2)).model_digest != good[1].model_digest


@pytest.mark.parametrize("readers", [1, 2, 5])
def test_any_number_of_readers_gets_the_same_rows(good, readers):
    held, read = trained(), load(good[0], readers)
    assert sum(part.keys_held for part in read) == held.keys_held == 60
    for partition, state in enumerate(held.snapshot()):
        sets = state.tables
        found = read[partition % readers].snapshot()[partition].tables
        for expected, rows in zip(sets, found, strict=True):
            np.testing.assert_array_equal(rows.keys, expected.keys)
            assert rows.rows.tobytes() == expected.rows.tobytes()


def test_a_model_saved_again_is_the_same_model(good, tmp_path):
    (held,) = load(good[0])
    assert save(tmp_path / "again", held, servers=2).model_digest == good[1].model_digest


def test_partitions_without_rows_are_part_of_a_model(tmp_path):
    model = models.build(load_job(None, SETTINGS, {}))
    save(tmp_path / "m", PartitionSet(model))
    assert load(tmp_path / "m")[0].keys_held == 0


def flipped(path, at, bit):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def refused(folder, name):
    with pytest.raises(CheckpointError, match=name):
        Checkpoint(folder).verify()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_every_flipped_bit_is_refused(good, copy):
    rng = np.random.default_rng(1)
    for name in names(copy):
        path, whole = copy / name, (good[0] / name).read_bytes()
        sampled = rng.choice(len(whole), min(150, len(whole)), replace=False)
        for at in {0, len(whole) - 1, *sampled.tolist()}:
            flipped(path, at, int(rng.integers(8)))
            refused(copy, name)
            path.write_bytes(whole)
    Checkpoint(copy).verify()


def test_every_bit_of_the_manifest_counts(good, copy):
    path, whole = copy / "manifest.json", (good[0] / "manifest.json").read_bytes()
    for at in range(len(whole)):
        flipped(path, at, 5)  # turns e to E, which leaves a number as it was
        with pytest.raises(CheckpointError, match=r"manifest.json"):
            checkpoint.read_manifest(copy)
        path.write_bytes(whole)


def test_every_file_cut_short_or_removed_is_refused(good, copy):
    for name in names(copy):
        path, whole = copy / name, (good[0] / name).read_bytes()
        for size in [*range(0, len(whole), len(whole) // 15), len(whole) - 1]:
            path.write_bytes(whole[:size])
            refused(copy, name)
        path.unlink()
        refused(copy, name)
        path.write_bytes(whole)


def test_longer_files_are_refused(copy):
    for name in names(copy):
        with (copy / name).open("ab") as file:
            file.write(b"\0")
        refused(copy, name)
        os.truncate(copy / name, (copy / name).stat().st_size - 1)


def test_swapped_files_are_refused(copy):
    first, second = names(copy)[1:3]
    (copy / first).rename(copy / "aside")
    (copy / second).rename(copy / first)
    (copy / "aside").rename(copy / second)
    refused(copy, f"{first}|{second}")


def test_a_partition_of_an_older_step_is_refused(good, copy, tmp_path):
    save(tmp_path / "older", trained(pushes=2))
    name = names(copy)[3]
    shutil.copy(tmp_path / "older" / name, copy / name)
    refused(copy, name)


@pytest.mark.parametrize("name", ["p008-c000001-v1-n0.part", "p000-c000001-v1-n7.part", "x.part"])
def test_an_extra_file_is_refused(copy, name):
    shutil.copy(copy / names(copy)[1], copy / name)
    refused(copy, name)


@pytest.mark.parametrize(
    "name",
    [
        "p000-c000001-v1-n0.part.tmp-77",
        "manifest.json.tmp-77",
        "p000-c000002-v1-n0.part",  # of a save that was not committed
        "p000-c000001-v0-n9.part",  # of a server that was given up, which did not know it yet
    ],
)
def test_leftovers_are_ignored(good, copy, name):
    (copy / name).write_bytes(b"half a fi")
    Checkpoint(copy).verify()
    assert load(copy)[0].keys_held == 60


def test_an_interrupted_save_leaves_the_old_model(good, copy):
    later = trained(pushes=5)
    files = write(copy, later, 3, number=2)[:-1]
    assert Checkpoint(copy).manifest.model_digest == good[1].model_digest
    Checkpoint(copy).verify()
    (copy / files[0].name).unlink()
    with pytest.raises(CheckpointError, match=files[0].name):
        checkpoint.commit(copy, manifest(later, files, 2))
    Checkpoint(copy).verify()
    assert Checkpoint(copy).manifest == good[1]


def test_a_commit_replaces_the_model_and_sweeps_the_old_one(good, copy):
    (copy / "p000-c000001-v1-n0.part.tmp-77").write_bytes(b"half a fi")
    (copy / "p000-c000003-v1-n0.part").write_bytes(b"being written")
    later = save(copy, trained(pushes=5), servers=2, number=2)
    assert later.model_digest != good[1].model_digest
    listed = [file.name for file in later.files]
    assert names(copy) == sorted(["manifest.json", "p000-c000003-v1-n0.part", *listed])
    Checkpoint(copy).verify()


@contextlib.contextmanager
def files_of_at_most(size_bytes):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_is_an_error_and_leaves_the_old_model(good, copy):
    later, before = trained(pushes=5), names(copy)
    with (
        files_of_at_most(100),
        pytest.raises(CheckpointError, match=r"p000-c000002.* cannot write"),
    ):
        write(copy, later, 1, number=2)
    assert [name for name in names(copy) if ".tmp-" not in name] == before
    files = write(copy, later, 1, number=2)
    with (
        files_of_at_most(100),
        pytest.raises(CheckpointError, match=r"manifest.json.* cannot write"),
    ):
        checkpoint.commit(copy, manifest(later, files, 2))
    assert names(copy) == sorted([*before, *(file.name for file in files)])
    assert Checkpoint(copy).manifest == good[1]
    Checkpoint(copy).verify()


@pytest.mark.parametrize("version", [0, 2, None])
def test_other_versions_of_the_format_are_refused(copy, version):
    path = copy / "manifest.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"format": version}))
    with pytest.raises(CheckpointError, match=rf"manifest.json: model format {version}.* reads 1"):
        Checkpoint(copy)


def test_a_folder_without_a_model_says_so(tmp_path):
    assert not checkpoint.exists(tmp_path)
    refused(tmp_path, "manifest.json: no model is there")
    refused(tmp_path / "missing", "manifest.json: no model is there")
    (tmp_path / "manifest.json").mkdir()
    refused(tmp_path, "manifest.json: it cannot be read")


def test_a_failed_read_says_which_table_is_wrong(good, tmp_path):
    held = trained()
    (tmp_path / "m").mkdir()
    files = write(tmp_path / "m", held, 1)
    wrong = manifest(held, files)
    wrong.tables[0] = ["sparse", 3, 99]
    checkpoint.commit(tmp_path / "m", wrong)
    refused(tmp_path / "m", "p000-.*not 'sparse' of width 99")
