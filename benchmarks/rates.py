"""Rows per second of `ctrps train` and of local clusters, on one set of rows, in one run.

    python benchmarks/rates.py --train train.svm --test test.svm [--repeat 5]

Every way runs `--repeat` times, one after the other in turn, so that a busy moment of the machine
meets all of them. Shown are medians, the ratio to `train` with one thread of the same model, and
start-up: wall time that is neither training nor evaluation nor conversion.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = {
    "train": ["train"],
    "train --threads 2": ["train", "--threads", "2"],
    "launch -s 1 -w 1": ["launch", "-s", "1", "-w", "1"],
    "launch -s 2 -w 2": ["launch", "-s", "2", "-w", "2"],
}


def run(way: list[str], model: str, data: list[str], folder: str) -> dict:
    """One run; returns its summary with the CPU seconds of all its processes."""
    command = [sys.executable, "-m", "ctrps", *way, "--json", "--progress", "none", "--overwrite"]
    settings = [*data, f"output.dir={folder}", f"model.kind={model}"]
    command += [part for s in settings for part in ("--set", s)]
    before = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout) | {"process_s": time.monotonic() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--train", required=True, type=Path)
    parser.add_argument("--test", required=True, type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--models", default="lr,fm")
    options = parser.parse_args()
    data = [f"data.train={options.train.resolve()}", f"data.test={options.test.resolve()}"]
    found: dict[tuple[str, str], list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        run(WAYS["train"], "lr", data, folder)  # converts the text, and compiles
        for _ in range(options.repeat):
            for model in options.models.split(","):
                for name, way in WAYS.items():
                    found.setdefault((model, name), []).append(run(way, model, data, folder))
    rows = [summarise(model, name, runs, found) for (model, name), runs in found.items()]
    show(rows)
    print(json.dumps(rows))


def summarise(model: str, name: str, runs: list[dict], found: dict) -> dict:
    def median(runs: list[dict], key: str) -> float:
        return statistics.median(run[key] for run in runs)

    digests = {run["model_digest"] for run in runs}
    rate, base = median(runs, "rows_per_s"), median(found[model, "train"], "rows_per_s")
    return {
        "model": model,
        "way": name,
        "rows_per_s": round(rate),
        "of_train": round(rate / base, 2),
        "process_s": round(median(runs, "process_s"), 1),
        "train_s": round(median(runs, "train_s"), 2),
        "auc": runs[0]["test"]["auc"],
        "logloss": runs[0]["test"]["logloss"],
        "digests": sorted(digests),
    }


def show(rows: list[dict]) -> None:
    print(f"{'model':6}{'way':20}{'rows/s':>10}{'of train':>10}{'process s':>11}{'AUC':>9}")
    for r in rows:
        print(
            f"{r['model']:6}{r['way']:20}{r['rows_per_s']:>10,}{r['of_train']:>10}"
            f"{r['process_s']:>11}{r['auc']:>9.4f}"
        )
    for model in dict.fromkeys(r["model"] for r in rows):
        digests = {d for r in rows if r["model"] == model for d in r["digests"]}
        print(f"{model}: {len(digests)} digest(s) over all ways and runs")


if __name__ == "__main__":
    main()
