"""Rows per second of `ctrps train` and of local clusters on one set of rows, in one run.

    python -m benchmarks.end_to_end [--train train.svm --test test.svm] [--repeat 5]
    python -m benchmarks.end_to_end --curve 128,512,2048,8192

Without files the rows are made up (``rows.py``). Text is converted to shards once, and all ways
start from these; the ways whose name ends in "text" convert it themselves. A cluster is compared
with `train` in one thread: sync with sync, async with row at a time (``train.fused``).
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure, rows
from benchmarks.measure import Ran

FUSED = ("train.fused=true",)
ASYNC = ("train.consistency=async",)
LEAST_BLOCK = 4096
"""Rows of a block of the shards; more where a batch has more."""


@dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes
    ----------
    name : str
    words : tuple of str
        The command and its options.
    settings : tuple of str
    base : str
        The way that it is compared with.
    text : bool
        Whether it begins from text.
    """

    name: str
    words: tuple[str, ...]
    settings: tuple[str, ...] = ()
    base: str = "train"
    text: bool = False


def cluster(servers: int, workers: int) -> tuple[str, ...]:
    return ("launch", "-s", str(servers), "-w", str(workers))


WAYS = (
    Way("train", ("train",)),
    Way("train 2 threads", ("train", "--threads", "2")),
    Way("1x1 sync", cluster(1, 1)),
    Way("2x2 sync", cluster(2, 2)),
    Way("fused", ("train",), FUSED, "fused"),
    Way("fused 2 threads", ("train", "--threads", "2"), FUSED, "fused"),
    Way("1x1 async", cluster(1, 1), ASYNC, "fused"),
    Way("2x2 async", cluster(2, 2), ASYNC, "fused"),
    Way("train, text", ("train",), text=True),
    Way("fused, text", ("train",), FUSED, "fused", text=True),
)

MODELS = {
    "lr": ("model.kind=lr",),
    "fm8": ("model.kind=fm", "model.dim=8"),
    "fm16": ("model.kind=fm", "model.dim=16"),
}


@dataclass(frozen=True)
class Data:
    """The same rows twice: shards, and text."""

    train: Path
    test: Path
    text: Path
    text_test: Path

    def settings(self, text: bool) -> list[str]:
        train, test = (self.text, self.text_test) if text else (self.train, self.test)
        return [f"data.train={train}", f"data.test={test}"]


@dataclass(frozen=True)
class Trained:
    """One run: what the command took, and its summary."""

    ran: Ran
    summary: dict[str, Any]


def prepare(options: argparse.Namespace, folder: Path, block_rows: int = LEAST_BLOCK) -> Data:
    """Shards and text of the rows that the options name, or of made-up ones."""
    if options.train is None:
        shards = rows.train_and_test(folder, options.rows[0], options.rows[0] // 4, block_rows)
        texts = [convert(shard, shard.with_suffix(".svm"), block_rows) for shard in shards]
    else:
        texts = [options.train.resolve(), options.test.resolve()]
        shards = [convert(t, folder / f"{n}.shard", block_rows) for n, t in enumerate(texts)]
    return Data(*shards, *texts)


def convert(source: Path, target: Path, block_rows: int = LEAST_BLOCK) -> Path:
    size = [f"data.block_rows={block_rows}"]
    measure.run(measure.ctrps("convert", source, "-o", target, settings=size))
    return target


def run(way: Way, settings: Sequence[str], data: Data, folder: Path) -> Trained:
    """One run in a folder of its own, which begins empty."""
    out = [*data.settings(way.text), f"output.dir={folder / 'run'}"]
    words = (*way.words, "--progress", "none", "--overwrite")
    ran = measure.run(measure.ctrps(*words, settings=[*out, *settings, *way.settings]))
    for cached in (folder / "run" / "cache").glob("*"):
        cached.unlink()
    return Trained(ran, json.loads(ran.output))


def figures(runs: Sequence[Trained]) -> dict[str, Any]:
    """Medians of some runs of one way.

    CPU time is that of the whole run, start and end included; ``server_cpu_us`` and
    ``worker_cpu_us`` are the parts of these processes, for each row.
    """

    def middle(value: Callable[[Trained], float]) -> float:
        return statistics.median(map(value, runs))

    def per_row(name: str) -> float | None:
        return middle(lambda r: 1e6 * r.ran.cpu_of(name) / r.summary["rows"]) or None

    return {
        "rows_per_s": middle(lambda r: r.summary["rows_per_s"]),
        "whole_rows_per_s": middle(lambda r: r.summary["rows"] / r.ran.wall_s),
        "rows_per_cpu_s": middle(lambda r: r.summary["rows"] / r.ran.cpu_s),
        "train_s": middle(lambda r: r.summary["train_s"]),
        "other_s": middle(lambda r: r.ran.wall_s - r.summary["train_s"]),
        "cpu_s": middle(lambda r: r.ran.cpu_s),
        "server_cpu_us": per_row("server"),
        "worker_cpu_us": per_row("worker"),
        "peak_mb": middle(lambda r: r.ran.peak_bytes / 1e6),
        "keys": runs[0].summary["keys"],
        "auc": statistics.fmean(r.summary["test"]["auc"] for r in runs),
        "logloss": statistics.fmean(r.summary["test"]["logloss"] for r in runs),
        "digests": sorted({r.summary["model_digest"] for r in runs}),
    }


def compare(options: argparse.Namespace, data: Data, folder: Path) -> list[dict]:
    """All ways for all models, one run of each in turn."""
    ways = [w for w in WAYS if not options.ways or w.name in options.ways]
    found: dict[tuple[str, Way], list[Trained]] = {}
    for _ in range(options.repeat):
        for model in options.models:
            for way in ways:
                ran = run(way, [*MODELS[model], *options.settings], data, folder)
                found.setdefault((model, way), []).append(ran)
    table = {
        (model, way.name): {"model": model, "way": way.name, "base": way.base, **figures(runs)}
        for (model, way), runs in found.items()
    }
    for (model, _), line in table.items():
        base = table.get((model, line["base"]))
        line["of_base"] = line["rows_per_s"] / base["rows_per_s"] if base else None
    return list(table.values())


def curve(options: argparse.Namespace, data: Data, folder: Path) -> list[dict]:
    """FM of k = 8 with 1 server and 1 worker in async mode, over the rows of a minibatch."""
    fused, one = (next(w for w in WAYS if w.name == name) for name in ("fused", "1x1 async"))
    cases = {"fused": (fused, [])}
    for batch_rows in options.curve:
        cases[str(batch_rows)] = (one, [f"train.batch_rows={batch_rows}"])
    found: dict[str, list[Trained]] = {name: [] for name in cases}
    for _ in range(options.repeat):
        for name, (way, sizes) in cases.items():
            settings = [*MODELS["fm8"], *sizes, *options.settings]
            found[name].append(run(way, settings, data, folder))
    lines = [{"batch_rows": name, **figures(runs)} for name, runs in found.items()]
    for line in lines:
        line["of_fused"] = line["rows_per_s"] / lines[0]["rows_per_s"]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measure.parser(__doc__, repeat=3)
    parser.add_argument("--train", type=Path, help="file of training rows; default: made up")
    parser.add_argument("--test", type=Path)
    parser.add_argument("--rows", type=measure.numbers, default=[100_000], help="made-up rows")
    parser.add_argument("--models", type=measure.words, default=["lr", "fm8"])
    parser.add_argument(
        "--ways", type=lambda text: text.split(";"), help=f"of: {'; '.join(w.name for w in WAYS)}"
    )
    parser.add_argument("--curve", type=measure.numbers, default=[], metavar="ROWS,…")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="S.K=V")
    options = parser.parse_args(arguments)
    if (options.train is None) != (options.test is None):
        parser.error("--train and --test go together")
    with tempfile.TemporaryDirectory(prefix="ctrps-ends-") as folder:
        data = prepare(options, Path(folder), max([LEAST_BLOCK, *options.curve]))
        # Compiles, and brings the files into memory.
        run(WAYS[0], [*MODELS["lr"], *options.settings], data, Path(folder))
        found = [] if options.curve else compare(options, data, Path(folder))
        curved = curve(options, data, Path(folder)) if options.curve else []
    if found:
        show(found, "model", "way", base="of_base")
    if curved:
        show(curved, "batch_rows", base="of_fused")
    measure.finish("end_to_end", options, ways=found, curve=curved)
    return 0


def show(found: Sequence[dict], *names: str, base: str) -> None:
    measure.show(
        f"Training; {base.replace('_', ' ')}: ratio of rows/s; other s: whole run without training",
        found,
        **dict.fromkeys(names, ""),
        rows_per_s=",.0f",
        **{base: ".2f"},
        rows_per_cpu_s=",.0f",
        whole_rows_per_s=",.0f",
        other_s=".1f",
        server_cpu_us=".1f",
        worker_cpu_us=".1f",
        peak_mb=",.0f",
        auc=".4f",
        logloss=".4f",
    )
    for model in dict.fromkeys(line.get("model") for line in found if line.get("model")):
        sync = [f for f in found if f["model"] == model and f["base"] == "train"]
        digests = {digest for line in sync for digest in line["digests"]}
        if sync:
            print(f"{model}: {len(digests)} model digest(s) over all sync ways and runs")


if __name__ == "__main__":
    sys.exit(main())
