"""Jobs on generated rows: how far one is, which processes it has, what its model counted."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ctrps.checkpoint import Checkpoint

PATIENCE_S = 120.0
LOOK_S = 0.02
LAST_WORDS_S = 600.0


class Job:
    """A job on generated rows, in a folder of its own.

    Parameters
    ----------
    folder
    rows, passes
    settings
        Overrides of a job file.
    module
        What ``python -m`` runs: the command, or a control that breaks it first.
    """

    def __init__(
        self,
        folder: Path,
        rows: int,
        passes: int,
        settings: list[str],
        module: tuple[str, ...] = ("ctrps",),
    ):
        self.folder = folder
        self.run = folder / "run"
        self.passes = passes
        self.module = module
        self.rows = write_rows(folder / "train.libsvm", rows)
        data = [f"data.train={folder / 'train.libsvm'}", f"output.dir={self.run}"]
        self.settings = [*data, f"train.passes={passes}", *settings]
        self._furthest = (0, 0)
        self._read_to: dict[str, int] = {}

    def command(self, *words: str, module: tuple[str, ...] | None = None) -> list[str]:
        flags = [part for setting in self.settings for part in ("--set", setting)]
        runs = [sys.executable, "-m", *(module or self.module)]
        return [*runs, *words, *flags, "--progress", "none", "--json"]

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        with open(self.folder / "launch.log", "ab") as log:
            return subprocess.Popen(self.command(*words), stdout=log, stderr=log)

    def done(self) -> tuple[int, int]:
        """The furthest pass and step so far, by figures and checkpoints; (0, 0) before any."""
        for line in self._lines("metrics.jsonl"):
            if line["phase"] == "train":
                self._furthest = max(self._furthest, (line["pass"], line["step"]))
        for line in self._lines("events.jsonl"):
            words = line["text"].replace(":", "").split()
            if words[:1] == ["checkpoint"] and words[5].isdigit():
                self._furthest = max(self._furthest, (int(words[3]), int(words[5])))
        return self._furthest

    def _lines(self, name: str) -> list[dict]:
        """Whole lines that have come since the last look."""
        path, at = self.run / name, self._read_to.get(name, 0)
        if not path.exists():
            return []
        if path.stat().st_size < at:
            at = 0  # begun anew
        with open(path, "rb") as file:
            file.seek(at)
            whole, _, _ = file.read().rpartition(b"\n")
        self._read_to[name] = at + len(whole) + bool(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def processes(self, role: str) -> dict[str, int]:
        """Process ids of the servers, the workers or the scheduler, by their rank."""
        found = {}
        config = str(self.run / "config.resolved.yaml").encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if role.encode() in words[:5] and config in words:
                rank = words[words.index(b"--rank") + 1] if b"--rank" in words else b"0"
                found[rank.decode()] = int(entry.name)
        return found

    def starts(self, role: str, rank: str) -> int:
        """How often a process with this rank has got into the job."""
        word = "listening; join with" if role == "scheduler" else "joined as"
        try:
            return (self.run / "logs" / f"{role}-{rank}.log").read_text().count(word)
        except FileNotFoundError:
            return 0

    def summary(self) -> dict:
        return json.loads((self.run / "summary.json").read_text())

    def miscounted(self) -> int:
        """Keys whose weight is not the number of rows that hold them."""
        model = Checkpoint(self.run / "model")
        found: dict[int, float] = {}
        for partition in range(model.partitions):
            keys, rows = model.read(partition).tables[0]
            found |= dict(zip(keys.tolist(), rows[:, 0].tolist(), strict=True))
        wanted = {key: self.passes * n for key, n in self.rows.items()}
        return sum(found.get(key) != n for key, n in wanted.items()) + len(found.keys() - wanted)

    def undisturbed(self) -> str:
        """The digest of the same job in one process, without a control."""
        command = self.command("train", module=("ctrps",))
        command[command.index(f"output.dir={self.run}")] = f"output.dir={self.folder / 'alone'}"
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return str(json.loads(done.stdout)["model_digest"])


def write_rows(path: Path, rows: int) -> Counter[int]:
    """Random rows; returns how many of them hold each key."""
    rng = random.Random(rows)
    held: Counter[int] = Counter()
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(rows):
            keys = {int(rng.paretovariate(0.3)) % 50_000 for _ in range(12)}
            held.update(keys)
            file.write(f"{rng.randint(0, 1)} {' '.join(f'{k}:1' for k in sorted(keys))}\n")
    return held


def wait(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Look again and again until it holds; an error when that takes too long."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(LOOK_S)


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("CTRPS_")}
