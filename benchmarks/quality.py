"""How good the models are: test AUC and log loss against stated goals, by the real commands.

Makes libsvm files of MovieLens in a folder of its own, takes a9a as it is, runs ``ctrps train`` and
``ctrps launch`` on them with the jobs beside this file, and on Criteo-like rows with no job at all.
Advertising logs with planted clicks are drawn by a generator, and go through ``ctrps extract`` and
the jobs of ``conf/``. Speed is shown as an indication only. The sets, and the generator, are
arguments.
"""

import argparse
import csv
import gzip
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import yaml

JOBS = Path(__file__).resolve().parent / "jobs"
CONF = JOBS.parents[1] / "conf"
SPLIT_SEED = 42
"""Of the random splits: the one that the published MovieLens figures were taken with."""
SEEDS = (1, 2, 3)
"""Of training, where a figure is a mean."""
GATE_STATUS = 5
"""Exit status of ctrps, and of this script, for a goal that was not reached."""


@dataclass(frozen=True)
class Case:
    """A line of the table: what is trained, how, and what it has to reach.

    Attributes
    ----------
    data, model : str
        Name of the set and kind of the model.
    how : str
        ``train``, or servers × workers such as ``2×2``.
    job : str or None
        File in ``jobs`` or ``conf``; None trains with the defaults.
    seeds : tuple of int
        One run for each; empty runs once with the seed of the job.
    auc, logloss : float or None
        Least AUC and greatest log loss of the test rows, mean over the seeds.
    settings : tuple of str
        What is set beside the job.
    """

    data: str
    model: str
    how: str
    job: str | None
    seeds: tuple[int, ...]
    auc: float | None
    logloss: float | None = None
    settings: tuple[str, ...] = ()

    @property
    def goal(self) -> str:
        goals = [] if self.auc is None else [f"AUC >= {self.auc:.3f}"]
        goals += [] if self.logloss is None else [f"logloss <= {self.logloss:.3f}"]
        return ", ".join(goals) or "-"

    @property
    def path(self) -> Path | None:
        """The file of the job."""
        if self.job is None:
            return None
        return next(folder / self.job for folder in (JOBS, CONF) if (folder / self.job).exists())

    def met(self, auc: float, logloss: float) -> bool:
        return (self.auc is None or auc >= self.auc) and (
            self.logloss is None or logloss <= self.logloss
        )


CASES = (
    Case("movielens", "lr", "train", "movielens_lr.yaml", SEEDS, 0.781),
    Case("movielens", "fm", "train", "movielens_fm.yaml", SEEDS, 0.787),
    Case("a9a", "lr", "train", "a9a_lr.yaml", (), 0.900, 0.327),
    Case("a9a", "lr", "2×2", "a9a_lr.yaml", (), 0.900, 0.327),
    Case("criteo", "lr", "train", None, (), 0.716),
    Case("criteo", "lr", "2×2", None, (), 0.716),
    Case("criteo", "fm", "train", None, (), 0.748),
    Case("criteo", "fm", "2×2", None, (), 0.748),
    Case("v16", "lr", "train", "taobao_v16.yaml", SEEDS, 0.665),
    Case(
        "v16", "fm", "train", "taobao_v16.yaml", SEEDS, 0.665,
        settings=("model.kind=fm", "train.passes=1"),
    ),
    Case("base", "lr", "train", "taobao_lr.yaml", SEEDS, None),
    Case("base", "fm", "train", "taobao_fm.yaml", SEEDS, None),
    Case("base1m", "lr", "train", "taobao_lr.yaml", SEEDS, 0.680),
    Case("base1m", "fm", "train", "taobao_fm.yaml", SEEDS, None),
)  # fmt: skip
SETS = tuple(dict.fromkeys(case.data for case in CASES))

GRIDS: dict[tuple[str, str], dict[str, Sequence[float]]] = {
    ("movielens", "lr"): {
        "train.passes": (5, 10, 20),
        "optimizer.alpha": (0.1, 0.3, 1),
        "optimizer.l2": (2, 4, 8),
    },
    ("movielens", "fm"): {
        "train.passes": (10, 20, 30),
        "optimizer.v.alpha": (0.03, 0.05, 0.1),
        "optimizer.v.l2": (0.02, 0.05, 0.1),
    },
    ("a9a", "lr"): {
        "train.passes": (10, 20, 40),
        "optimizer.alpha": (0.03, 0.1, 0.3),
        "optimizer.l2": (4, 16, 64),
    },
    ("v16", "lr"): {"train.passes": (1, 2, 3), "optimizer.w.alpha": (0.01, 0.02, 0.05)},
    ("v16", "fm"): {
        "optimizer.v.alpha": (0.01, 0.02, 0.05),
        "optimizer.v.count_scale": (0.25, 0.5, 1, 16),
    },
}
"""What ``--choose`` tries for the job of each set and model."""


@dataclass(frozen=True)
class Logs:
    """Advertising logs to draw: impressions, those of them on the test day, and events.

    ``job`` is the file in ``conf`` that extracts them.
    """

    job: str
    samples: int
    test_samples: int
    behaviors: int


LOGS = {
    "v16": Logs("taobao_v16.yaml", 120_000, 20_000, 500_000),
    "base": Logs("taobao_lr.yaml", 120_000, 20_000, 0),
    "base1m": Logs("taobao_lr.yaml", 1_200_000, 200_000, 0),
}
LOGS_SEED = 1
LAST_DAYS = ("2017-05-13", "2017-05-12", "2017-05-11")
"""Test day of the logs, the last one to train on, and the one before."""


@dataclass(frozen=True)
class Rows:
    """Files of one set: official parts, and training rows once more in two parts to choose by.

    ``ceiling`` is the AUC of test rows scored with their planted probabilities, where there are
    such.
    """

    train: Path
    test: Path
    fit: Path
    validation: Path
    ceiling: float | None = None

    @classmethod
    def under(cls, folder: Path) -> "Rows":
        return cls(*(folder / f"{part}.svm" for part in ("train", "test", "fit", "validation")))


def write_choice(rows: Rows, train: list[str]) -> None:
    """Write a random tenth of the training lines as the validation part, the others to fit."""
    chosen = np.zeros(len(train), bool)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(train))
    chosen[order[: len(train) // 10]] = True
    write_lines(rows.fit, itertools.compress(train, ~chosen))
    write_lines(rows.validation, itertools.compress(train, chosen))


def write_lines(path: Path, lines: Iterator[str] | list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def prepare_movielens(source: Path, folder: Path) -> Rows:
    """Ratings to libsvm: user, movie and its genres with weight 1/n; random 80/20.

    The label is rating >= 4. Numbers are given to users, movies and genres as they come, from 1.
    """
    with open(source / "movies.csv", encoding="utf-8", newline="") as file:
        genres = {row["movieId"]: row["genres"].split("|") for row in csv.DictReader(file)}
    numbers: dict[tuple[str, str], int] = {}

    def number(kind: str, name: str) -> int:
        return numbers.setdefault((kind, name), len(numbers) + 1)

    lines = []
    with gzip.open(source / "ratings.csv.gz", "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            of_movie = genres[row["movieId"]]
            terms = [(number("user", row["userId"]), 1.0), (number("movie", row["movieId"]), 1.0)]
            terms += [(number("genre", name), 1 / len(of_movie)) for name in of_movie]
            label = int(float(row["rating"]) >= 4)
            lines.append(" ".join([str(label), *(f"{i}:{x:.7g}" for i, x in sorted(terms))]))
    order = np.random.default_rng(SPLIT_SEED).permutation(len(lines))
    cut = int(0.8 * len(lines))
    rows, train = Rows.under(folder), [lines[i] for i in order[:cut]]
    write_lines(rows.train, train)
    write_lines(rows.test, [lines[i] for i in order[cut:]])
    write_choice(rows, train)
    return rows


def prepare_a9a(source: Path, folder: Path) -> Rows:
    """The official split as it is: the job knows that only the test rows count from 0."""
    train, test = source / "a9a_123d_train.libsvm.gz", source / "a9a_123d_test.dummy"
    rows = replace(Rows.under(folder), train=train, test=test)
    with gzip.open(train, "rt", encoding="ascii") as file:
        write_choice(rows, file.read().splitlines())
    return rows


def prepare_logs(generator: Path, folder: Path, logs: Logs, choose: bool) -> Rows:
    """Draw logs and extract them; to choose, also without the test day, the last one to validate.

    The official split is by day, so that one to choose by is, too.
    """
    raw = folder / "raw"
    words = [sys.executable, str(generator), "--quiet", "--out", str(raw)]
    for name in ("samples", "test_samples", "behaviors"):
        words += ["--" + name.replace("_", "-"), str(getattr(logs, name))]
    subprocess.run([*words, "--seed", str(LOGS_SEED)], check=True)
    extract(logs.job, raw, folder / "all")
    if choose:
        settings = yaml.safe_load((CONF / logs.job).read_text(encoding="utf-8"))
        join = (CONF / settings["sample"]["join"]).read_text(encoding="utf-8")
        for day, before in itertools.pairwise(LAST_DAYS[::-1]):
            join = join.replace(before, day)
        path = folder / "choose.yaml"
        path.write_text(join, encoding="utf-8")
        extract(logs.job, raw, folder / "choose", f"sample.join={path}")
    truth = json.loads((raw / "truth.json").read_bytes())
    paths = [
        folder / part / "data" / f"{kind}-*.shard"
        for part in ("all", "choose")
        for kind in ("train", "test")
    ]
    return Rows(*paths, ceiling=truth["test_0513"]["bayes_auc_on_drawn_labels"])


def extract(job: str, raw: Path, out: Path, *settings: str) -> None:
    words = ["extract", "-c", str(CONF / job), "--overwrite"]
    for setting in (f"sample.dir={raw}", f"output.dir={out}", *settings):
        words += ["--set", setting]
    run_ctrps(words)


def prepare(data: str, options: argparse.Namespace, out: Path) -> Rows:
    if data == "criteo":
        return Rows.under(options.criteo)
    if data in LOGS:
        generator = options.shared / "bench" / "taobao_gen.py"
        return prepare_logs(generator, out / data, LOGS[data], options.choose)
    sources = {
        "movielens": (prepare_movielens, "movielens_small"),
        "a9a": (prepare_a9a, "a9a"),
    }
    make, name = sources[data]
    return make(options.shared / "data" / name, out / data)


def command(case: Case, train: Path, test: Path, run: Path, settings: Sequence[str]) -> list[str]:
    """The command of one run."""
    if case.how == "train":
        words = ["train"]
    else:
        servers, _, workers = case.how.partition("×")
        words = ["launch", "-s", servers, "-w", workers]
    words += ["-c", str(case.path)] if case.path else ["--set", f"model.kind={case.model}"]
    stated = [f"data.train={json.dumps([str(train)])}", f"data.test={json.dumps([str(test)])}"]
    for setting in [*stated, f"output.dir={run}", *case.settings, *settings]:
        words += ["--set", setting]
    return [*words, "--overwrite", "--progress", "none"]


def run_ctrps(words: Sequence[str]) -> dict:
    """Run a command of ctrps and return what it says as JSON."""
    # Settings of the caller's environment would make other jobs of these.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CTRPS_")}
    full = [sys.executable, "-m", "ctrps", *words, "--json"]
    done = subprocess.run(full, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stderr}status {done.returncode} of: {' '.join(full)}")
    return json.loads(done.stdout)


def run_once(case: Case, train: Path, test: Path, run: Path, settings: Sequence[str] = ()) -> dict:
    """Run the command and return its summary; the runs of a set share a folder and its cache."""
    return run_ctrps(command(case, train, test, run, settings))


def means(tests: list[dict]) -> tuple[float, float]:
    """Log loss and AUC, each the mean over runs."""
    return fmean(t["logloss"] for t in tests), fmean(t["auc"] for t in tests)


def measure(case: Case, rows: Rows, run: Path) -> dict:
    """All runs of a case as one line of the table."""
    seeds = [[f"train.seed={seed}"] for seed in case.seeds] or [[]]
    summaries = [run_once(case, rows.train, rows.test, run, settings) for settings in seeds]
    logloss, auc = means([s["test"] for s in summaries])
    return {
        "set": case.data,
        "model": case.model,
        "how": case.how,
        "passes": summaries[0]["passes"],
        "auc": auc,
        "logloss": logloss,
        "ceiling": rows.ceiling,
        "rows_per_s": fmean(s["rows_per_s"] for s in summaries),
        "goal": case.goal,
        "met": case.met(auc, logloss),
        "aucs": [s["test"]["auc"] for s in summaries],
        "digests": [s["model_digest"] for s in summaries],
    }


def same_bits(results: list[dict]) -> bool:
    """Whether all ways to train one model on one set gave the same models."""
    found: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for result in results:
        names = found.setdefault((result["set"], result["model"]), set())
        names.add(tuple(result["digests"]))
    return all(len(names) == 1 for names in found.values())


COLUMNS = "{:<10} {:<6} {:<6} {:>6} {:>8} {:>13} {:>8} {:>8} {:>10}  {:<30} {}"
HEADER = COLUMNS.format(
    "set", "model", "how", "passes", "AUC", "least-most", "ceiling", "logloss", "rows/s", "goal",
    "met",
)  # fmt: skip


def line(result: dict) -> str:
    """One line of the table."""
    return COLUMNS.format(
        result["set"],
        result["model"],
        result["how"],
        result["passes"],
        f"{result['auc']:.4f}",
        f"{min(result['aucs']):.4f}-{max(result['aucs']):.4f}",
        "-" if result["ceiling"] is None else f"{result['ceiling']:.4f}",
        f"{result['logloss']:.4f}",
        f"{result['rows_per_s']:,.0f}",
        result["goal"],
        "yes" if result["met"] else "NO",
    )


def report(options: argparse.Namespace, out: Path) -> int:
    """Run all cases, a line of the table as each is done, and the figures as JSON at the end."""
    results = []
    print(HEADER, flush=True)
    for data in options.only:
        rows = prepare(data, options, out)
        for case in CASES:
            if case.data == data:
                results.append(measure(case, rows, out / data / "run"))
                print(line(results[-1]), flush=True)
    same, met = same_bits(results), all(r["met"] for r in results)
    print(f"the same model whichever way it was trained: {'yes' if same else 'NO'}")
    print(json.dumps({"met": met, "same_bits": same, "results": results}))
    return 0 if met and same else GATE_STATUS


def choose(options: argparse.Namespace, out: Path) -> int:
    """Try each job's grid on its validation rows, best first; test rows are not looked at."""
    for data in options.only:
        cases = {(c.data, c.model): c for c in CASES if c.data == data and c.how == "train"}
        if cases.keys() & GRIDS.keys():
            rows = prepare(data, options, out)
            for name in cases.keys() & GRIDS.keys():
                try_grid(cases[name], GRIDS[name], rows, out / data / "run")
    return 0


def try_grid(case: Case, grid: dict[str, Sequence[float]], rows: Rows, run: Path) -> None:
    seeds = [[f"train.seed={seed}"] for seed in case.seeds] or [[]]
    tried = []
    for values in itertools.product(*grid.values()):
        settings = [f"{key}={value}" for key, value in zip(grid, values, strict=True)]
        runs = [
            run_once(case, rows.fit, rows.validation, run, settings + seed)["test"]
            for seed in seeds
        ]
        tried.append((*means(runs), " ".join(settings)))
    print(f"{case.job}, {case.model}: log loss and AUC of the validation rows, settings")
    for logloss, auc, settings in sorted(tried):
        print(f"{logloss:.5f} {auc:.5f} {settings}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--shared",
        type=Path,
        metavar="DIR",
        help="holds data/ and bench/ of the sets",
    )
    parser.add_argument("--criteo", type=Path, metavar="DIR", help="holds train.svm and test.svm")
    parser.add_argument("--only", metavar="SET,…", help=f"some of {','.join(SETS)}")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keeps files and runs there")
    parser.add_argument(
        "--choose", action="store_true", help="try settings on validation rows instead"
    )
    options = parser.parse_args(arguments)
    given = {name: options.criteo if name == "criteo" else options.shared for name in SETS}
    wanted = options.only.split(",") if options.only else [s for s in SETS if given[s]]
    if unknown := [name for name in wanted if name not in SETS]:
        parser.error(f"--only knows {', '.join(SETS)}, not {', '.join(unknown)}")
    if missing := [name for name in wanted if not given[name]]:
        parser.error(f"no folder given for {', '.join(missing)}; see --shared and --criteo")
    if not wanted:
        parser.error("nothing to run; give --shared, --criteo or both")
    options.only = wanted
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    run = choose if options.choose else report
    if options.out:
        return run(options, options.out)
    with tempfile.TemporaryDirectory(prefix="ctrps-quality-") as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
