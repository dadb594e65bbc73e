"""Kills real processes of real jobs, and checks that every row of data is in the model once.

    python benchmarks/faults.py workers   [--mode sync|ssp|async] [--kills 20]
    python benchmarks/faults.py interrupt [--mode sync|ssp|async] [--runs 5]
    python -m benchmarks.faults extract   [--kills 20]

``workers``: one job; again and again, once the job has got on since the last kill, a random worker
is ended with SIGKILL and a new one started. ``interrupt``: several jobs; each is stopped at random
moments, by Ctrl-C and by SIGKILL of its launcher, and started again with the same command until it
is done. ``extract``: see ``extract_faults``.

The rows are generated (seeded). In sync mode the digest must be that of `ctrps train`; in each mode
a second job with the optimiser ``count`` must end with weights that equal a count of the rows in
plain Python. Exit status 1 if anything differs. Prints one JSON line at the end.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ctrps.checkpoint import Checkpoint

PATIENCE_S = 120.0


class Job:
    """A job on generated rows, in a folder of its own."""

    def __init__(self, folder: Path, rows: int, passes: int, settings: list[str]):
        self.folder = folder
        self.run = folder / "run"
        self.passes = passes
        self.rows = write_rows(folder / "train.libsvm", rows)
        data = [f"data.train={folder / 'train.libsvm'}", f"output.dir={self.run}"]
        self.settings = [*data, f"train.passes={passes}", "train.checkpoint_s=1", *settings]

    def command(self, *words: str) -> list[str]:
        flags = [part for setting in self.settings for part in ("--set", setting)]
        return [sys.executable, "-m", "ctrps", *words, *flags, "--progress", "none", "--json"]

    def start(self, *words: str) -> subprocess.Popen:
        log = open(self.folder / "launch.log", "ab")
        return subprocess.Popen(self.command(*words), stdout=log, stderr=log)

    def done(self) -> tuple[int, int]:
        """Pass and step of the newest figures, (0, 0) before any."""
        try:
            lines = (self.run / "metrics.jsonl").read_text().splitlines()
            figures = [f for f in map(json.loads, lines) if f["phase"] == "train"]
            return (figures[-1]["pass"], figures[-1]["step"]) if figures else (0, 0)
        except (FileNotFoundError, ValueError):
            return (0, 0)

    def summary(self) -> dict:
        return json.loads((self.run / "summary.json").read_text())

    def miscounted(self) -> int:
        """Keys whose weight is not the number of rows that hold them."""
        model = Checkpoint(self.run / "model")
        found = {}
        for partition in range(model.partitions):
            keys, rows = model.read(partition).tables[0]
            found |= dict(zip(keys.tolist(), rows[:, 0].tolist(), strict=True))
        wanted = {key: self.passes * n for key, n in self.rows.items()}
        return sum(found.get(key) != n for key, n in wanted.items()) + len(found.keys() - wanted)


def write_rows(path: Path, rows: int) -> Counter:
    """Random rows; returns how many of them hold each key."""
    rng = random.Random(rows)
    held: Counter = Counter()
    with open(path, "w") as file:
        for _ in range(rows):
            keys = {int(rng.paretovariate(0.3)) % 50_000 for _ in range(12)}
            held.update(keys)
            file.write(f"{rng.randint(0, 1)} {' '.join(f'{k}:1' for k in sorted(keys))}\n")
    return held


def wait(condition, what: str) -> None:
    """Look again and again until it holds; an error when that takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def kill_workers(job: Job, kills: int, rng: random.Random) -> dict:
    """Run a 2x3 job while workers are killed; returns the number of kills that met a live job."""
    launcher = job.start("launch", "-s", "2", "-w", "3")
    wait(lambda: job.done() > (0, 0), "the first step")
    address = json.loads((job.run / "scheduler.json").read_text())["address"]
    started: list[subprocess.Popen] = []
    killed = 0
    while killed < kills and launcher.poll() is None:
        before = job.done()
        wait(lambda b=before: job.done() > b or launcher.poll() is not None, "progress")
        victims = workers_of(job)
        if launcher.poll() is not None or not victims:
            break
        os.kill(rng.choice(victims), signal.SIGKILL)
        killed += 1
        command = [sys.executable, "-m", "ctrps", "worker", "-c"]
        command += [str(job.run / "config.resolved.yaml"), "--scheduler", address]
        started.append(subprocess.Popen(command, stdout=-3, stderr=-3, env=plain_environment()))
    status = launcher.wait(PATIENCE_S * 5)
    for process in started:
        process.wait(PATIENCE_S)
    return {"killed": killed, "status": status}


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("CTRPS_")}


def workers_of(job: Job) -> list[int]:
    """Processes of this job's workers, by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"worker" in words and str(job.run / "config.resolved.yaml").encode() in words:
                found.append(int(entry.name))
    return found


def interrupt(job: Job, rng: random.Random) -> dict:
    """Stop a job twice, by Ctrl-C and by killing its launcher, and run it to its end."""
    stops = 0
    for number in (signal.SIGINT, signal.SIGKILL, None):
        launcher = job.start("launch", "-s", rng.choice("123"), "-w", rng.choice("123"))
        if number is not None:
            # The figures are begun anew by each start.
            wait(lambda: (job.run / "metrics.jsonl").exists(), "the first figures")
            time.sleep(rng.uniform(0, 2.5))
            if launcher.poll() is None:
                launcher.send_signal(number)
                stops += 1
        status = launcher.wait(PATIENCE_S * 5)
        wait(lambda: not workers_of(job), "the end of all workers")
        if status == 0:
            break
    return {"stops": stops, "status": status}


def trial(what: str, mode: str, folder: Path, options: argparse.Namespace, seed: int) -> dict:
    """One job with its real optimiser (sync) and one that counts."""
    rng = random.Random(seed)
    found: dict = {"mode": mode, "seed": seed}
    kinds = ["count", "ftrl"] if mode == "sync" else ["count"]
    for kind in kinds:
        settings = [f"train.consistency={mode}", f"optimizer.w.kind={kind}"]
        job = Job(make(folder / f"{kind}{seed}"), options.rows, options.passes, settings)
        disturb = kill_workers if what == "workers" else interrupt
        extra = (options.kills, rng) if what == "workers" else (rng,)
        found |= {f"{kind}_{name}": value for name, value in disturb(job, *extra).items()}
        if kind == "count":
            found["miscounted"] = job.miscounted()
        else:
            found["same_digest"] = job.summary()["model_digest"] == undisturbed(job)
    found["ok"] = found["miscounted"] == 0 and found.get("same_digest", True)
    return found


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def undisturbed(job: Job) -> str:
    """The digest of the same job in one process."""
    command = job.command("train", "--set", f"output.dir={job.folder / 'alone'}")
    at = command.index(f"output.dir={job.run}")
    del command[at - 1 : at + 1]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["model_digest"]


def trials(folder: Path, options: argparse.Namespace) -> list[dict]:
    found = []
    for number in range(options.runs if options.what == "interrupt" else 1):
        found.append(trial(options.what, options.mode, folder, options, options.seed + number))
        print(found[-1], flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=["workers", "interrupt", "extract"])
    parser.add_argument("--mode", default="async", choices=["sync", "ssp", "async"])
    parser.add_argument("--kills", type=int, default=20, help="of extract: in each pass")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "extract":
            from benchmarks.extract_faults import trials as extractions

            found = extractions(Path(folder), options)
        else:
            found = trials(Path(folder), options)
    print(json.dumps(found))
    return 0 if all(f["ok"] for f in found) else 1


if __name__ == "__main__":
    sys.exit(main())
