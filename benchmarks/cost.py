"""What reliability and security cost: standbys, the job key, checkpoints; in rows per second.

    python -m benchmarks.cost [--rows 100k] [--passes 5] [--repeat 5]

`train`, and clusters in sync and in async mode, each plain and with one thing more; all in turn, on
the same made-up rows (``rows.py``). Every cluster is compared with the plain one of its shape and
mode, and with `train`. Between processes of one machine messages go through memory; "sockets" are
clusters at an address that other machines could reach, whose messages go as they do between
machines: in plain text, and with a job key.
"""

import argparse
import json
import socket
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure, rows
from benchmarks.measure import Ran

SHAPES = ((1, 1), (2, 2))


@dataclass(frozen=True)
class Case:
    """A way to train, and what is added to it.

    Attributes
    ----------
    way : str
        The command, with servers, workers and mode.
    extra : str
        What is added; empty for nothing.
    words, settings : tuple of str
    base : str
        The extra of the same way that it is compared with.
    """

    way: str
    extra: str
    words: tuple[str, ...]
    settings: tuple[str, ...]
    base: str = ""


def outside() -> str:
    """An address of this machine that is not loopback; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only looks for the way
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def cases(options: argparse.Namespace, key: Path) -> list[Case]:
    """`train` and all clusters, plain ones first."""
    often = (f"train.checkpoint_s={options.checkpoint_s:g}",)
    keyed = (f"cluster.key_file={key}",)
    extras = [
        ("", (), ""),
        ("replicas", ("cluster.replicas=1",), ""),
        ("checkpoints", often, ""),
        ("key", keyed, ""),
    ]
    if host := outside():
        there = (f"cluster.scheduler={host}:0", f"cluster.server_bind={host}:0")
        extras.append(("sockets", (*there, "cluster.insecure=true"), ""))
        extras.append(("sockets, key", (*there, *keyed), "sockets"))
    found = [Case("train", "", ("train",), ()), Case("train", "checkpoints", ("train",), often)]
    for mode in options.modes:
        for servers, workers in SHAPES:
            words = ("launch", "-s", str(servers), "-w", str(workers))
            for extra, settings, base in extras:
                given = (f"train.consistency={mode}", *settings)
                found.append(Case(f"{servers}x{workers} {mode}", extra, words, given, base))
    return [case for case in found if not options.only or case.extra in ("", *options.only)]


@dataclass(frozen=True)
class Trained:
    """One run: what the command took, and its summary."""

    ran: Ran
    summary: dict[str, Any]


def run(case: Case, options: argparse.Namespace, data: Path, folder: Path) -> Trained:
    given = [f"data.train={data}", f"output.dir={folder / 'run'}", f"model.kind={options.model}"]
    given += [f"train.passes={options.passes}", "cluster.http=off"]
    words = (*case.words, "--progress", "none", "--overwrite")
    ran = measure.run(measure.ctrps(*words, settings=[*given, *case.settings]))
    return Trained(ran, json.loads(ran.output))


def figures(case: Case, runs: Sequence[Trained]) -> dict[str, Any]:
    """Medians; CPU time is that of the whole run, by the row."""
    rate = [r.summary["rows_per_s"] for r in runs]
    trained = [r.summary["rows"] for r in runs]
    cpu_us = [1e6 * r.ran.cpu_s / n for r, n in zip(runs, trained, strict=True)]
    return {
        "way": case.way,
        "extra": case.extra,
        "base": case.base,
        "rows_per_s": statistics.median(rate),
        "cpu_us_per_row": statistics.median(cpu_us),
        "train_s": statistics.median(r.summary["train_s"] for r in runs),
        "peak_mb": statistics.median(r.ran.peak_bytes / 1e6 for r in runs),
        "spread": (max(rate) - min(rate)) / statistics.median(rate),
        "digests": sorted({r.summary["model_digest"] for r in runs}),
    }


def compare(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All cases, one run of each in turn, and what each is of its base and of `train`."""
    data = rows.Made(bits=64).write(folder / "train.shard", options.rows[0])
    key = folder / "job.key"
    measure.run(measure.ctrps("keygen", key))
    given = cases(options, key)
    found: dict[Case, list[Trained]] = {case: [] for case in given}
    for _ in range(options.repeat):
        for case in given:
            found[case].append(run(case, options, data, folder))
    lines = [figures(case, runs) for case, runs in found.items()]
    by_case = {(line["way"], line["extra"]): line for line in lines}
    for line in lines:
        base = by_case.get((line["way"], line["base"]), by_case[line["way"], ""])
        line["of_base"] = line["rows_per_s"] / base["rows_per_s"]
        line["cpu_of_base"] = line["cpu_us_per_row"] / base["cpu_us_per_row"]
        line["of_train"] = line["rows_per_s"] / lines[0]["rows_per_s"]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measure.parser(__doc__, repeat=3)
    parser.add_argument("--rows", type=measure.numbers, default=[100_000])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--model", default="fm", choices=["lr", "fm"])
    parser.add_argument("--modes", type=measure.words, default=["sync", "async"])
    parser.add_argument("--checkpoint-s", type=float, default=10.0, help="between checkpoints")
    parser.add_argument("--only", type=lambda text: text.split(";"), help="extras, by ;")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ctrps-cost-") as name:
        lines = compare(options, Path(name))
    columns = {"rows_per_s": ",.0f", "cpu_us_per_row": ",.1f", "peak_mb": ",.0f", "spread": ".2f"}
    ratios = {"of_base": ".2f", "cpu_of_base": ".2f", "of_train": ".2f"}
    measure.show(f"{options.model}: cost", lines, way="", extra="", **columns, **ratios)
    same = {d for line in lines if "async" not in line["way"] for d in line["digests"]}
    print(f"\n{len(same)} model(s) of all runs in sync mode")
    measure.finish("cost", options, cost=lines, sync_models=len(same))
    return 0 if len(same) == 1 else 5


if __name__ == "__main__":
    sys.exit(main())
