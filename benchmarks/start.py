"""How long commands take beside their work, with kernels to compile and with kernels in the cache.

    python -m benchmarks.start [--repeat 5] [--cold 1]

Trains on a few rows: what is left is starting, compiling or loading kernels, saving and ending.
Memory is what that alone takes.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure
from benchmarks.rows import Made

COMMANDS = {
    "help": ("--help",),
    "train": ("train",),
    "launch 1+1+1": ("launch", "-s", "1", "-w", "1"),
    "launch 1+2+2": ("launch", "-s", "2", "-w", "2"),
}
GOAL_S = {"help": 0.3, "launch 1+2+2": 5.0}
"""Seconds until work begins, with a warm cache."""


def start(name: str, settings: Sequence[str], cache: Path | None) -> dict:
    """One run; ``cache`` is an empty folder for compiled kernels, None for the usual one."""
    if name == "help":
        command = [sys.executable, "-m", "ctrps", "--help"]
    else:
        words = (*COMMANDS[name], "--progress", "none", "--overwrite")
        command = measure.ctrps(*words, settings=settings)
    ran = measure.run(command, environment={"NUMBA_CACHE_DIR": str(cache)} if cache else None)
    train_s = json.loads(ran.output)["train_s"] if name != "help" else 0.0
    beside = ran.wall_s - train_s
    return {"start_s": beside, "cpu_s": ran.cpu_s, "peak_mb": ran.peak_bytes / 1e6}


def measured(options: argparse.Namespace, folder: Path) -> list[dict]:
    rows = Made().write(folder / "rows.shard", 1000)
    settings = [f"data.train={rows}", "data.test=[]", f"output.dir={folder / 'run'}"]
    settings.append(f"model.kind={options.model}")
    names = [name for name in COMMANDS if not options.commands or name in options.commands]
    runs: dict[tuple[str, str], list[dict]] = {}
    for name in names:
        for number in range(options.cold if name != "help" else 0):
            cache = folder / f"cache-{name}-{number}"
            runs.setdefault((name, "cold"), []).append(start(name, settings, cache))
        start(name, settings, None)  # fills the usual cache
    for _ in range(options.repeat):
        for name in names:
            runs.setdefault((name, "warm"), []).append(start(name, settings, None))
    found = []
    for (name, cache), ran in runs.items():
        line = {"command": name, "kernels": cache, "runs": len(ran)}
        line |= {key: statistics.median(r[key] for r in ran) for key in ran[0]}
        found.append(line | {"goal_s": GOAL_S.get(name) if cache == "warm" else None})
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measure.parser(__doc__)
    parser.add_argument("--cold", type=int, default=1, help="runs that compile (%(default)s)")
    parser.add_argument("--model", choices=["lr", "fm"], default="fm")
    parser.add_argument("--commands", type=measure.words, help=f"of {', '.join(COMMANDS)}")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ctrps-start-") as folder:
        found = measured(options, Path(folder))
    measure.show(
        "Seconds beside training",
        found,
        command="",
        kernels="",
        runs="d",
        start_s=".2f",
        goal_s=".1f",
        cpu_s=".2f",
        peak_mb=",.0f",
    )
    measure.finish("start", options, starts=found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
