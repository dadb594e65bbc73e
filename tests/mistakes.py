"""Mistakes that people make, each with the command and what must come of it.

``tests/test_mistakes.py`` makes them all, and checks ``docs/mistakes.md`` by what was printed.
"""

import gzip
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.procs import Lab, Run, options, settings, trained, write_rows

Around = Callable[[Path], Any]
"""Called with the folder of the mistake: a context manager that makes it."""


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes
    ----------
    title
    command
        As a person would give it.
    status, id
        How it must end.
    files
        Small files in the folder, beside those of ``write_files``.
    environ
    around
        What there must be while the command runs.
    """

    title: str
    command: str
    status: int
    id: str
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    around: Around = lambda folder: nullcontext()

    @property
    def words(self) -> list[str]:
        return self.command.split()[1:]


TRAIN = "ctrps train --set data.train=rows.libsvm"
CSV = "click,user,item\n1,ann,tea\n0,bob,tea\n1,ann,ink\n"
FEATURES = "[raw_sample_schema]\nfields=clk,age\n[label]\nlabel=clk,direct\n"
LOGS = "sample:\n  dir: raw\n  join: join.yaml\n"
JOIN = """impressions: {table: shows, time: time, zone: UTC}
split:
  train: {first: 2026-01-01, last: 2026-01-06}
  test: {first: 2026-01-07, last: 2026-01-07}
columns: [time, clk, age]
"""


def write_files(folder: Path) -> None:
    """Rows that are all right, and a model of them in ``run``."""
    write_rows(folder / "rows.libsvm", 300, seed=1)
    write_rows(folder / "test.libsvm", 100, seed=2)
    (folder / "rows.csv").write_text(CSV)
    trained(settings(data_train=folder / "rows.libsvm", output_dir=folder / "run"))


@contextmanager
def listening(folder: Path) -> Iterator[None]:
    """Somebody has the port that the job file names."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        (folder / "job.yaml").write_text(
            f"data:\n  train: rows.libsvm\ncluster:\n  scheduler: 127.0.0.1:{port}\n"
        )
        yield


@contextmanager
def nobody_listens(folder: Path) -> Iterator[None]:
    """The job file names a port that nobody has."""
    with listening(folder):
        pass
    yield


@contextmanager
def readable_key(folder: Path) -> Iterator[None]:
    (folder / "job.key").write_text("01" * 32 + "\n")
    (folder / "job.key").chmod(0o644)
    yield


@contextmanager
def damaged_model(folder: Path) -> Iterator[None]:
    path = max((folder / "run" / "model").glob("*.part"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    yield


@contextmanager
def cut_short(folder: Path) -> Iterator[None]:
    whole = gzip.compress((folder / "rows.libsvm").read_bytes())
    (folder / "cut.libsvm.gz").write_bytes(whole[: len(whole) // 2])
    yield


@contextmanager
def used_folder(folder: Path) -> Iterator[None]:
    """Another run is in the folder: its lock is held."""
    import fcntl

    (folder / "busy").mkdir()
    with open(folder / "busy" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4211\n")
        lock.flush()
        yield


def _job(text: str) -> dict[str, str]:
    return {"job.yaml": text}


CONFIG = (
    Mistake(
        "A key is misspelt",
        "ctrps train -c job.yaml",
        2,
        "E-CONFIG-KEY",
        _job("data:\n  train: rows.libsvm\ntrain:\n  lane: 8\n"),
    ),
    Mistake("A key of another tool", f"{TRAIN} --set train.epochs=3", 2, "E-CONFIG-KEY"),
    Mistake("A key without its section", f"{TRAIN} --set lanes=8", 2, "E-CONFIG-KEY"),
    Mistake("A misspelt variable", TRAIN, 2, "E-CONFIG-KEY", environ={"CTRPS_TRAIN__PASSSES": "3"}),
    Mistake(
        "A word where a number is wanted", f"{TRAIN} --set train.lanes=all", 2, "E-CONFIG-VALUE"
    ),
    Mistake("A number out of range", f"{TRAIN} --set train.batch_rows=0", 2, "E-CONFIG-VALUE"),
    Mistake("A choice that there is not", f"{TRAIN} --set model.kind=gbdt", 2, "E-CONFIG-VALUE"),
    Mistake(
        "Settings that exclude each other",
        f"{TRAIN} --set optimizer.kind=sgd --set optimizer.l1=1",
        2,
        "E-CONFIG-VALUE",
    ),
    Mistake(
        "A key is given twice",
        "ctrps train -c job.yaml",
        2,
        "E-CONFIG-SYNTAX",
        _job("train:\n  lanes: 2\n  lanes: 4\n"),
    ),
    Mistake(
        "A bracket is not closed",
        "ctrps train -c job.yaml",
        2,
        "E-CONFIG-SYNTAX",
        _job("data:\n  train: [rows.libsvm\n"),
    ),
    Mistake("The job file is not there", "ctrps train -c jbo.yaml", 2, "E-CONFIG-FILE"),
    Mistake("An option has no such value", f"{TRAIN} --progress fancy", 2, "E-CONFIG-OPTION"),
    Mistake("Nothing to train on is named", "ctrps check", 2, "E-CONFIG-MISSING"),
    Mistake(
        "A features file has an operator that there is not",
        "ctrps extract -c job.yaml",
        2,
        "E-CONFIG-FEATURES",
        _job(LOGS + "features:\n  spec: features.ini\n")
        | {
            "join.yaml": JOIN,
            "features.ini": FEATURES + "[sparse_features_user]\nage=age,buckets,1|2\n",
        },
    ),
    Mistake("The run is finished already", f"{TRAIN} --set output.dir=run", 2, "E-CONFIG-RUN"),
    Mistake(
        "The folder holds a model of another kind",
        f"{TRAIN} --set output.dir=run --set train.passes=2 --set model.kind=fm",
        2,
        "E-CONFIG-RUN",
    ),
)

DATA = (
    Mistake("A file is not there", "ctrps train --set data.train=row.libsvm", 3, "E-DATA-MISSING"),
    Mistake("A pattern matches nothing", "ctrps head day-*.csv", 3, "E-DATA-MISSING"),
    Mistake(
        "extract has not run yet",
        "ctrps launch -c job.yaml",
        3,
        "E-DATA-MISSING",
        _job(LOGS) | {"join.yaml": JOIN},
    ),
    Mistake(
        "A raw table is not there",
        "ctrps check -c job.yaml",
        3,
        "E-DATA-MISSING",
        _job(LOGS) | {"join.yaml": JOIN, "raw/show.csv": "time,clk,age\n"},
    ),
    Mistake(
        "A file is empty",
        "ctrps train --set data.train=empty.libsvm",
        3,
        "E-DATA-EMPTY",
        {"empty.libsvm": ""},
    ),
    Mistake(
        "A row is bad",
        "ctrps train --set data.train=bad.libsvm",
        3,
        "E-DATA-ROW",
        {"bad.libsvm": "1 3:1 7:1\n0 4:x\n"},
    ),
    Mistake(
        "A label is no label",
        "ctrps train --set data.train=bad.csv --set data.label=click",
        3,
        "E-DATA-ROW",
        {"bad.csv": CSV + "yes,eva,tea\n"},
    ),
    Mistake(
        "The label has another name", "ctrps train --set data.train=rows.csv", 3, "E-DATA-COLUMN"
    ),
    Mistake(
        "Two columns have one name",
        "ctrps train --set data.train=two.csv --set data.label=click",
        3,
        "E-DATA-COLUMN",
        {"two.csv": "click,user,user\n1,ann,tea\n"},
    ),
    Mistake(
        "Test rows have other columns",
        "ctrps check --set data.train=rows.csv --set data.test=other.csv --set data.label=click",
        3,
        "E-DATA-COLUMN",
        {"other.csv": "click,user,shop\n1,ann,north\n"},
    ),
    Mistake(
        "The format cannot be told",
        "ctrps train --set data.train=notes.txt",
        3,
        "E-DATA-FORMAT",
        {"notes.txt": "remember the milk\n"},
    ),
    Mistake(
        "A compressed file is cut short",
        "ctrps train --set data.train=cut.libsvm.gz",
        3,
        "E-DATA",
        around=cut_short,
    ),
)

MODELS = (
    Mistake(
        "No model is there",
        "ctrps evaluate --model runs --data test.libsvm",
        3,
        "E-CHECKPOINT-MISSING",
    ),
    Mistake(
        "A file of the model is damaged",
        "ctrps evaluate --model run/model --data test.libsvm",
        3,
        "E-CHECKPOINT",
        around=damaged_model,
    ),
    Mistake(
        "The rows are of another kind than those of training",
        "ctrps evaluate --model run/model --data rows.csv",
        3,
        "E-DATA-MODEL",
    ),
    Mistake(
        "The disk is full",
        "ctrps predict --model run/model --data test.libsvm -o /dev/full",
        3,
        "E-DISK",
    ),
)

WORKER = "ctrps worker -c job.yaml --set cluster.start_timeout_s=1"
CLUSTER = (
    Mistake(
        "A worker is not told where the scheduler is",
        "ctrps worker --set data.train=rows.libsvm",
        2,
        "E-CONFIG-ADDRESS",
    ),
    Mistake(
        "An address without a port", f"{TRAIN} --set cluster.scheduler=node0", 2, "E-CONFIG-VALUE"
    ),
    Mistake(
        "A host name that nobody knows",
        "ctrps worker --set data.train=rows.libsvm --scheduler node0.invalid:9000",
        4,
        "E-CLUSTER-ADDRESS",
    ),
    Mistake("The scheduler is not there", WORKER, 4, "E-CLUSTER", around=nobody_listens),
    Mistake(
        "Other machines could come in without a key",
        "ctrps launch --set data.train=rows.libsvm --set cluster.scheduler=0.0.0.0:0",
        2,
        "E-CONFIG-JOBKEY",
    ),
    Mistake(
        "Others can read the job key",
        "ctrps launch --set data.train=rows.libsvm --set cluster.key_file=job.key",
        2,
        "E-CONFIG-JOBKEY",
        around=readable_key,
    ),
    Mistake(
        "Another run is using the folder",
        f"{TRAIN} --set output.dir=busy",
        4,
        "E-CLUSTER-BUSY",
        around=used_folder,
    ),
)

GROUPS = {"Settings": CONFIG, "Data": DATA, "Models and disks": MODELS, "Nodes": CLUSTER}


# -- nodes that are missing, or not of the job: processes of their own ---------------------------


def other_job(lab: Lab) -> Run:
    """A worker comes with another job file than the scheduler's."""
    rows = options(settings(data_train=lab.folder / "rows.libsvm"))
    scheduler = lab.start("scheduler", *rows, "--set", "output.dir=late")
    scheduler.until(lambda: "CTRPS_SCHEDULER=" in scheduler.stderr, "the scheduler's address")
    address = scheduler.stderr.partition("CTRPS_SCHEDULER=")[2].split()[0]
    worker = lab.start("worker", *rows, "--set", "name=other", "--scheduler", address)
    worker.wait()
    scheduler.send(signal.SIGKILL)
    return worker


ALONE = "ctrps scheduler --set data.train=rows.libsvm --set cluster.start_timeout_s=1"


def alone(lab: Lab) -> Run:
    """Nobody joins the scheduler."""
    return lab.start(*ALONE.split()[1:])


def taken_port(lab: Lab) -> Run:
    """The scheduler's port belongs to somebody else."""
    with listening(lab.folder):
        run = lab.start("scheduler", "-c", "job.yaml")
        run.wait()
    return run


PROCESSES = {
    "The port is in use": ("ctrps scheduler -c job.yaml", taken_port, 4, "E-CLUSTER-ADDRESS"),
    "Servers and workers do not come": (ALONE, alone, 4, "E-CLUSTER"),
    "A worker has another job": (
        "ctrps worker -c other.yaml --scheduler 127.0.0.1:9000",
        other_job,
        4,
        "E-CLUSTER",
    ),
}
