"""A model's home at a URL: whole or as before, on S3 as in memory, and no run is lost for it."""

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from ctrps import checkpoint, remote
from ctrps.checkpoint import Checkpoint
from ctrps.cli import app
from ctrps.config import load_job
from ctrps.errors import CheckpointError, ConfigError, CtrpsWarning
from ctrps.remote import Remote, at_hand
from ctrps.verify import found
from tests.procs import Lab, options, read_lines, settings, trained, write_rows
from tests.test_checkpoint import save
from tests.test_checkpoint import trained as pushed

SECRET = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "no secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server of this process."""
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def s3(server, monkeypatch) -> Iterator[str]:
    """A bucket of its own, as a URL."""
    environment = SECRET | {"AWS_ENDPOINT_URL_S3": server}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    fs = fsspec.filesystem("s3")
    fs.mkdir("models")
    yield "s3://models"
    fs.rm("models", recursive=True)
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def memory() -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    yield "memory://models"
    fs.rm("/models", recursive=True)


@pytest.fixture(params=["s3", "memory", "file"])
def home(request, tmp_path) -> str:
    """The URL of a model that is not there yet."""
    if request.param == "file":
        return f"file://{tmp_path}/remote/click-fm"
    return f"{request.getfixturevalue(request.param)}/click-fm"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(remote, "RETRY_S", 0.2)
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("data")
    train = write_rows(folder / "train.libsvm", 800, seed=1)
    test = write_rows(folder / "test.libsvm", 200, seed=2)
    small = {"train_batch_rows": 16, "train_partitions": 4}
    return {"data_train": train, "data_test": test, **small}


def job(data, folder, **values) -> list[str]:
    return settings(**(data | {"output_dir": folder} | values))


def digest_at(url: str) -> str:
    with at_hand(url) as folder:
        opened = Checkpoint(folder)
        opened.verify()
        return opened.manifest.model_digest


def test_a_model_goes_there_and_back(home, tmp_path):
    saved = save(tmp_path / "model", pushed())
    size = Remote(home).upload(tmp_path / "model")
    assert size == sum(file.size_bytes for file in saved.files)
    assert digest_at(home) == saved.model_digest
    assert Remote(home).upload(tmp_path / "model") == 0
    (tmp_path / "back").mkdir()
    assert Remote(home).download(tmp_path / "back")
    for path in (tmp_path / "model").iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_a_later_model_replaces_it_and_sweeps_its_files(home, tmp_path):
    folder = tmp_path / "model"
    save(folder, pushed())
    Remote(home).upload(folder)
    later = save(folder, pushed(pushes=5), number=2)
    Remote(home).upload(folder)
    assert digest_at(home) == later.model_digest
    names = {remote.object_name(file) for file in later.files}
    assert set(Remote(home).listing()) == names | {"manifest.json"}
    Remote(home).clear()
    assert not Remote(home).listing()


def test_a_model_of_another_run_with_the_same_names_is_replaced_whole(home, tmp_path):
    save(tmp_path / "a", pushed())
    Remote(home).upload(tmp_path / "a")
    other = save(tmp_path / "b", pushed(seed=2))
    Remote(home).upload(tmp_path / "b")
    assert digest_at(home) == other.model_digest


class Broken:
    """A file system whose n-th change, and those after it, fail."""

    def __init__(self, fs: Any, at: int, error: Exception):
        self._fs, self.left, self.error = fs, at, error

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fs, name)
        if name not in ("put", "pipe_file", "mv", "rm", "makedirs"):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise self.error
            return method(*args, **kwargs)

        return call


@pytest.mark.parametrize("error", [OSError("reset by peer"), PermissionError("denied")])
def test_an_upload_that_fails_at_any_step_leaves_a_whole_model(home, tmp_path, impatient, error):
    folder = tmp_path / "model"
    first = save(folder, pushed())
    later = save(tmp_path / "later", pushed(pushes=5), number=2)
    for step in range(20):
        Remote(home).clear()
        Remote(home).upload(folder)
        broken = Remote(home)
        broken._fs = Broken(broken._fs, step, error)
        try:
            broken.upload(tmp_path / "later")
        except CheckpointError as failed:
            assert (
                failed.where == home and str(error) in failed.what and "the network" in str(failed)
            )
            assert digest_at(home) in (first.model_digest, later.model_digest)
        else:
            break
    assert step >= 3
    assert digest_at(home) == later.model_digest


def test_what_fails_for_a_while_is_tried_again(memory, tmp_path, impatient, monkeypatch):
    saved = save(tmp_path / "model", pushed())
    home = Remote(f"{memory}/m")
    whole, calls = home._fs.put, []

    def put(*args: Any) -> Any:
        calls.append(args)
        if len(calls) < 3:
            raise OSError("slow down")
        return whole(*args)

    monkeypatch.setattr(home._fs, "put", put)
    home.upload(tmp_path / "model")
    assert len(calls) == 3
    assert digest_at(f"{memory}/m") == saved.model_digest


def test_every_damage_there_is_refused_and_named(home, tmp_path):
    save(tmp_path / "model", pushed())
    Remote(home).upload(tmp_path / "model")
    fs, root = fsspec.core.url_to_fs(home)
    for name in sorted(Remote(home).listing()):
        path, stem = f"{root}/{name}", name.rpartition("-")[0] or name
        whole = fs.cat_file(path)
        flipped = bytes([*whole[:40], whole[40] ^ 4, *whole[41:]])
        for content in (flipped, whole[:-1], whole[: len(whole) // 2], b"", None):
            fs.rm(path) if content is None else fs.pipe_file(path, content)
            with pytest.raises(CheckpointError, match=r"there|missing|damaged|cut|read") as refused:
                digest_at(home)
            assert home in str(refused.value), str(refused.value)
            assert stem in str(refused.value) or content is None
        fs.pipe_file(path, whole)
    digest_at(home)


def test_a_reader_begins_again_when_the_model_is_replaced(memory, tmp_path, monkeypatch):
    url, folder = f"{memory}/m", tmp_path / "model"
    save(folder, pushed())
    Remote(url).upload(folder)
    later = save(folder, pushed(pushes=5), number=2)
    reader = Remote(url)
    read = reader.manifests

    def manifests(*args: Any) -> Any:
        result = read(*args)
        Remote(url).upload(folder)
        return result

    monkeypatch.setattr(reader, "manifests", manifests)
    (tmp_path / "copy").mkdir()
    assert reader.download(tmp_path / "copy")
    assert Checkpoint(tmp_path / "copy").manifest == later
    Checkpoint(tmp_path / "copy").verify()


def test_places_that_are_none_say_so(s3, tmp_path, impatient):
    save(tmp_path / "model", pushed())
    with pytest.raises(CheckpointError, match=r"s3://nobucket/m: cannot write files"):
        Remote("s3://nobucket/m").upload(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"s3://models/none: no model is there"):
        digest_at("s3://models/none")
    with pytest.raises(ConfigError, match=r"nothing://x.*(known|Protocol)"):
        Remote("nothing://x")
    shown = Remote("memory://user:secret@place/x").url
    assert shown == "memory://…@place/x"


def test_a_server_that_is_not_there_ends_within_the_deadline(monkeypatch, tmp_path, impatient):
    for name, value in SECRET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(CheckpointError, match=r"s3://models/m: cannot .*127.0.0.1:9"):
        digest_at("s3://models/m")
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_what_is_not_installed_is_named(monkeypatch):
    with monkeypatch.context() as without, pytest.raises(ConfigError, match=r"s3://m.*s3fs"):
        without.setitem(sys.modules, "s3fs", None)
        without.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
        Remote("s3://m/x")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"s3://m/x: a URL needs fsspec; .*'ctrps\[remote\]'"):
        Remote("s3://m/x")


@pytest.mark.parametrize("url", ["runs/model", "s3://", "s3://b/*", "://x", "s3://a\nb"])
def test_what_is_no_url_is_a_wrong_setting(url):
    with pytest.raises(ConfigError, match=r"output\.remote: must be a URL such as"):
        load_job(None, [f"output.remote={url}"], {})


# -- runs ---------------------------------------------------------------------------------------


def test_train_copies_each_checkpoint_and_a_run_elsewhere_goes_on(home, data, tmp_path):
    passes = {"train_passes": 3}
    wanted = trained(job(data, tmp_path / "whole", **passes))
    trained(job(data, tmp_path / "a", train_passes=2, output_remote=home))
    assert len(found(home)) == 2
    lines = [
        line for line in read_lines(tmp_path / "a" / "metrics.jsonl") if line["phase"] == "copy"
    ]
    assert [line["error"] for line in lines] == [None, None]
    assert all(line["url"] == home and line["size_bytes"] > 0 for line in lines)
    there = trained(job(data, tmp_path / "b", output_remote=home, **passes))
    assert there["rows"] == 800  # only the third pass
    assert there["model_digest"] == wanted["model_digest"] == digest_at(home)


def test_overwrite_begins_anew_there_too(memory, data, tmp_path):
    url = f"{memory}/m"
    first = trained(job(data, tmp_path / "a", output_remote=url))
    again = trained(job(data, tmp_path / "b", output_remote=url, train_seed=2), overwrite=True)
    assert again["rows"] == 800
    assert digest_at(url) == again["model_digest"] != first["model_digest"]
    with pytest.raises(ConfigError, match=r"seed is 2 in the model and 1 in the job"):
        trained(job(data, tmp_path / "c", output_remote=url))


def test_the_best_model_is_the_one_that_is_there(memory, data, tmp_path):
    url = f"{memory}/m"
    values = {"train_passes": 8, "train_patience": 1, "optimizer_alpha": 3.0}
    summary = trained(job(data, tmp_path / "a", output_remote=url, **values))
    assert summary["stopped_early"]
    (model,) = [one for one in found(url) if one.model]
    assert model.best and model.manifest.pass_ + 1 < summary["passes"]
    assert digest_at(url) == summary["model_digest"]


def test_a_copy_that_fails_ends_no_run_and_the_next_makes_up_for_it(
    memory, data, tmp_path, impatient, monkeypatch
):
    url, failing = f"{memory}/m", [True]
    upload = Remote.upload

    def sometimes(self: Remote, folder: Any) -> int:
        if failing:
            failing.clear()
            self._fs = Broken(self._fs, 1, OSError("no route to host"))
            try:
                return upload(self, folder)
            finally:
                self._fs = self._fs._fs
        return upload(self, folder)

    monkeypatch.setattr(Remote, "upload", sometimes)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", CtrpsWarning)
        summary = trained(job(data, tmp_path / "a", train_passes=2, output_remote=url))
    (warning,) = told
    text = str(warning.message)
    assert text.startswith(f"{url}: cannot write files: no route to host;")
    assert f"whole in {tmp_path}/a/model" in text and f"-o {url}" in text
    assert digest_at(url) == summary["model_digest"]
    assert len(found(url)) == 2


@pytest.mark.cluster
def test_launch_copies_its_checkpoints_goes_on_from_there_and_tells_what_fails(s3, data, tmp_path):
    url = f"{s3}/launched"
    overrides = job(data, tmp_path / "run", output_remote=url, cluster_workers=2)
    with Lab(tmp_path) as lab:
        summary = lab.run("launch", *options(overrides), "--json").json
        assert digest_at(url) == summary["model_digest"]
        overrides = job(data, tmp_path / "elsewhere", output_remote=url, train_passes=2)
        summary = lab.run("launch", *options(overrides), "-s", "2", "--json").json
        wanted = trained(job(data, tmp_path / "whole", train_passes=2))
        assert summary["rows"] == 800 and summary["passes"] == 2
        assert digest_at(url) == summary["model_digest"] == wanted["model_digest"]
        overrides = job(data, tmp_path / "none", output_remote="s3://nobucket/m")
        run = lab.run("launch", *options(overrides))
        (line,) = [line for line in run.stderr.splitlines() if line.startswith("warning: s3://no")]
        assert "s3://nobucket/m: cannot write files" in line


def test_commands_take_urls(home, data, tmp_path):
    summary = trained(job(data, tmp_path / "a", output_remote=home))

    def said(*arguments: object, status: int = 0) -> dict[str, Any]:
        result = CliRunner().invoke(app, [*map(str, arguments)])
        assert result.exit_code == status, result.output
        return json.loads(result.stdout) if "--json" in arguments else {"out": result.stdout}

    rows = ["--data", data["data_test"]]
    here = said("predict", "--model", tmp_path / "a" / "model", *rows)["out"]
    assert said("predict", "--model", home, *rows)["out"] == here
    report = said("evaluate", "--model", home, *rows, "--json")
    assert report["auc"] == summary["test"]["auc"]
    (entry,) = said("checkpoint", "list", home, "--json")["checkpoints"]
    assert entry["complete"] and entry["last"] and entry["model"] and entry["time"]
    assert entry["model_digest"] == summary["model_digest"]
    assert not said("checkpoint", "verify", home, "--json")["damaged"]
    assert said("checkpoint", "diff", home, tmp_path / "a", "--json")["equal"]
    said("checkpoint", "reshard", home, "--partitions", 2, "-o", f"{home}-2")
    assert said("checkpoint", "diff", f"{home}-2", tmp_path / "a", "--json")["equal"]
    said("checkpoint", "reshard", home, "--partitions", 2, "-o", f"{home}-2", status=2)
    said("checkpoint", "copy", home, "-o", tmp_path / "back")
    assert checkpoint.read_manifest(tmp_path / "back").model_digest == summary["model_digest"]
    said("checkpoint", "copy", tmp_path / "back", "-o", f"{home}-2")
    assert digest_at(f"{home}-2") == summary["model_digest"]
    fs, root = fsspec.core.url_to_fs(home)
    fs.pipe_file(f"{root}/{max(Remote(home).listing())}", b"cut")
    (damaged,) = said("checkpoint", "verify", home, "--json", status=3)["damaged"]
    assert damaged["file"].startswith(f"{home}/p003-") and "cut short" in damaged["what"]
    (entry,) = said("checkpoint", "list", home, "--json")["checkpoints"]
    assert not entry["complete"] and entry["missing"] == [damaged["file"].rpartition("/")[2]]
