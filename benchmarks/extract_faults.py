"""Kills real runs of `ctrps extract`, and checks that the bytes are those of an undisturbed run.

    python -m benchmarks.faults extract --kills 3 [--rows 60000] [--seed 1]

The logs are generated (seeded). In each pass, so many runs are ended with SIGKILL, each at a random
moment of the pass, and taken up with `--resume`. As many times the work is done as `--part 1/4` to
`4/4` in random order, and by a Dask cluster (if `distributed` is installed) of which a random
worker is killed at a random moment.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ctrps.data.synthetic import generate

ROOT = Path(__file__).parents[1]
PATIENCE_S = 600.0
LOOK_S = 0.002

PASSES = {
    "reading": "samples.making/history/*.try-*",
    "windows": "samples.making/history/1-of-1",
    "lines": "samples.making/t*.tsv",
    "counting": "data.making/made_of.json",
    "writing": "data.making/*.shard*",
}
"""Each pass, and what says that it has begun."""


class Extraction:
    """Runs of one job on one set of logs, and what an undisturbed one gives."""

    def __init__(self, folder: Path, rows: int, seed: int):
        self.folder, self.raw = folder, folder / "raw"
        self.raw.mkdir()
        few = {"users": rows // 10, "ads": rows // 20, "behaviors": 5 * rows}
        generate(self.raw, rows=rows, seed=seed, compress=False, **few)
        out = folder / "undisturbed"
        run, start = self.start(out), time.monotonic()
        self.begins = {}
        for name, sign in PASSES.items():
            watch(lambda s=sign, r=run: any(out.glob(s)) or ended(r), name)
            assert not ended(run), f"nothing said that the pass {name} had begun"
            self.begins[name] = time.monotonic() - start
        assert run.wait(PATIENCE_S) == 0, "the undisturbed run failed"
        self.begins["end"] = time.monotonic() - start
        self.wanted = digests(out)

    def start(self, out: Path, *words: str) -> subprocess.Popen:
        settings = [f"sample.dir={self.raw}", f"output.dir={out}", "sample.memory_mb=512"]
        flags = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "ctrps", "extract", "-c", "conf/taobao_v16.yaml"]
        return subprocess.Popen([*command, *flags, *words], cwd=ROOT, stdout=-3, stderr=-3)

    def lasts(self, name: str) -> float:
        """Seconds of a pass of the undisturbed run."""
        names = list(self.begins)
        return self.begins[names[names.index(name) + 1]] - self.begins[name]

    def kill_in(self, name: str, rng: random.Random) -> dict:
        """Kill a run at a random moment of a pass, and take it up."""
        out = self.folder / "killed"
        run = self.start(out)
        watch(lambda: any(out.glob(PASSES[name])) or ended(run), name)
        time.sleep(rng.uniform(0, self.lasts(name)))
        met = not ended(run)
        run.send_signal(signal.SIGKILL)
        run.wait(PATIENCE_S)
        there = [one for one, sign in PASSES.items() if any(out.glob(sign))]
        killed_in = there[-1] if met and there else None
        status = self.start(out, "--resume").wait(PATIENCE_S)
        return self.compared(out, {"meant": name, "killed_in": killed_in, "status": status})

    def parts(self, rng: random.Random) -> dict:
        """Four parts in a random order."""
        out, order = self.folder / "parts", rng.sample(range(1, 5), 4)
        statuses = [self.start(out, "--part", f"{n}/4").wait(PATIENCE_S) for n in order]
        return self.compared(out, {"order": order, "status": max(statuses)})

    def on_dask(self, rng: random.Random) -> dict:
        """A Dask cluster of three workers loses one."""
        out, where = self.folder / "dask", self.folder / "scheduler.json"
        processes = [dask("scheduler", where, "--port", "0", "--host", "127.0.0.1")]
        try:
            watch(lambda: address_in(where), "the scheduler")
            for _ in range(3):
                words = ("--nworkers", "1", "--nthreads", "1", "--no-nanny")
                processes.append(dask("worker", where, *words))
            run = self.start(out, "--dask", address_in(where))
            watch(lambda: any(out.glob(PASSES["reading"])) or ended(run), "the start")
            moment = rng.uniform(0, self.begins["end"] - self.begins["reading"])
            time.sleep(moment)
            met = not ended(run)
            rng.choice(processes[1:]).kill()
            status = run.wait(PATIENCE_S)
        finally:
            for process in processes:
                process.kill()
                process.wait(PATIENCE_S)
            where.unlink(missing_ok=True)
        return self.compared(out, {"after_s": round(moment, 2), "met": met, "status": status})

    def compared(self, out: Path, found: dict) -> dict:
        equal = digests(out) == self.wanted
        shutil.rmtree(out)
        return {**found, "equal": equal}


def dask(role: str, where: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "dask", role, "--scheduler-file", str(where), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = subprocess.DEVNULL
    return subprocess.Popen(
        [*command, "--no-dashboard"], cwd=where.parent, env=environment, stdout=log, stderr=log
    )


def address_in(where: Path) -> str:
    """The scheduler's address, once its file is whole."""
    try:
        return json.loads(where.read_text())["address"]
    except (FileNotFoundError, ValueError):
        return ""


def ended(run: subprocess.Popen) -> bool:
    return run.poll() is not None


def watch(condition: Callable[[], object], what: str) -> None:
    """Look again and again until it holds; an error when that takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(LOOK_S)


def digests(out: Path) -> dict[str, str]:
    """Of every file but those that say how long it took."""
    files = [path for path in out.rglob("*") if path.is_file() and path.name != "summary.json"]
    return {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def trials(folder: Path, options: argparse.Namespace) -> list[dict]:
    """All runs, each printed as it ends; a line of figures at the end."""
    work = Extraction(folder, options.rows, options.seed)
    rng = random.Random(options.seed)
    print({name: round(seconds, 2) for name, seconds in work.begins.items()}, flush=True)
    todo: list[Callable[[random.Random], dict]] = []
    for name in PASSES:
        todo += [lambda rng, n=name: work.kill_in(n, rng)] * options.kills
    todo += [work.parts] * options.kills
    if importlib.util.find_spec("distributed"):
        todo += [work.on_dask] * options.kills
    found = []
    for task in todo:
        found.append(task(rng))
        print(found[-1], flush=True)
    for one in found:
        one["ok"] = one["equal"] and one["status"] == 0
    met = Counter(one["killed_in"] for one in found if one.get("killed_in"))
    print(f"killed in {dict(met)}; {sum(one['ok'] for one in found)} of {len(found)} equal")
    return found
