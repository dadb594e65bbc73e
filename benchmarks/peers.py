"""Other trainers on the same rows: rows per second, test figures and memory, beside those of ctrps.

    python -m benchmarks.peers [--train train.svm --test test.svm] [--vw PYTHON | --install]
                               [--xlearn PYTHON] [--alphafm DIR] [--repeat 5]

One pass over rows whose keys lie in 1 … 2^22. Vowpal Wabbit comes from PyPI: ``--vw`` names a
Python that has it, ``--install`` makes one for this run. xLearn (a Python that has it) and alphaFM
(the folder of its programs) are given by path. A peer that is not there is shown with figures that
were taken elsewhere, marked as quoted: only ratios of what was measured in one run mean much.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.end_to_end import Data, prepare
from benchmarks.measure import Ran
from ctrps.kernels import metrics

Command = list[str]
BITS = 22
LEARNERS = {
    "lr": {"vw default": [], "vw ftrl": ["--ftrl", "--ftrl_alpha", "0.1", "--ftrl_beta", "1"]},
    "fm8": {},
}
ALPHAFM = {
    "lr": ["-dim", "1,1,0", "-w_alpha", "0.1", "-w_l1", "0.1", "-w_l2", "1"],
    "fm8": "-dim 1,1,8 -init_stdev 0.01 -w_alpha 0.1 -w_l1 0.1 -w_l2 1"
    " -v_alpha 0.05 -v_l1 0 -v_l2 1".split(),
}
XLEARN = """
import json, sys, time, xlearn
data, model, kind, threads = sys.argv[1:]
made = xlearn.create_linear() if kind == "lr" else xlearn.create_fm()
made.setTrain(data)
made.disableNorm()
made.disableEarlyStop()
settings = {"task": "binary", "opt": "adagrad", "epoch": 1, "nthread": int(threads),
            "k": 8, "init": 0.05, "lr": 0.05, "lambda": 2e-5}
began = time.time()
made.fit(settings, model)
print(json.dumps({"train_s": time.time() - began}))
"""
XLEARN_SCORES = """
import sys, xlearn
data, model, kind, out = sys.argv[1:]
made = xlearn.create_linear() if kind == "lr" else xlearn.create_fm()
made.setTest(data)
made.setSigmoid()
made.predict(model, out)
"""
"""Settings of xLearn and alphaFM are those that did best on Criteo-like rows, one pass."""

QUOTED = [
    ("vw default", "lr", "text", 337_351, None, 106, 0.7141, 0.5118),
    ("vw ftrl", "lr", "text", 308_686, None, 105, 0.7171, 0.5099),
    ("vw default", "lr", "cache", 525_753, None, 106, 0.7141, 0.5118),
    ("xlearn", "lr", "text", 118_019, 145_560, 1291, 0.7172, 0.5100),
    ("xlearn", "lr", "cache", 319_992, 684_932, 740, 0.7172, 0.5100),
    ("alphafm", "lr", "text", 130_229, None, 60, 0.7171, 0.5101),
    ("xlearn", "fm8", "text", 71_142, 87_184, 1291, 0.7505, 0.4891),
    ("xlearn", "fm8", "cache", 131_187, 203_252, 996, 0.7480, 0.4910),
    ("alphafm", "fm8", "text", 55_758, None, 161, 0.7508, 0.4888),
]
"""Tool, model, input, rows/s of the process and of the loop, peak MB, test AUC and log loss: on 1 M
Criteo-like rows and 2 busy EPYC cores, two threads but for xLearn from text."""

GOALS = {
    ("lr", "text", "vw default"): 5.0,
    ("lr", "text", "vw ftrl"): 5.0,
    ("lr", "shards", "vw default"): 4.0,
    ("lr", "shards", "vw ftrl"): 4.0,
    ("lr", "shards", "xlearn"): 3.0,
    ("fm8", "shards", "xlearn"): 2.5,
    ("fm8", "text", "alphafm"): 10.0,
}


@dataclass(frozen=True)
class Case:
    """A tool with a model and a kind of input.

    Attributes
    ----------
    train
        The command for a seed.
    predict
        Writes a score for each test row, in the last column of a line, to ``scores``. None: the
        tool is ctrps, which scores by ``ctrps evaluate``.
    stdin, predict_stdin
    before
        Commands that run once, in no time that counts.
    stale
        Files that are removed before each run.
    loop_s
        Seconds of the training loop of a run; None if that cannot be said, as where a tool
        tells no times and spends most of them on its start.
    """

    tool: str
    model: str
    source: str
    train: Callable[[int], Command]
    predict: Command | None = None
    scores: Path | None = None
    stdin: Path | None = None
    predict_stdin: Path | None = None
    before: list[Command] = field(default_factory=list)
    stale: list[Path] = field(default_factory=list)
    loop_s: Callable[[Ran], float | None] = lambda ran: None


class Peers:
    """All cases of a run, over one set of rows.

    Parameters
    ----------
    options
    data
    folder
        For models, scores and copies of the rows in other formats.
    """

    def __init__(self, options: argparse.Namespace, data: Data, folder: Path):
        self.options, self.data, self.folder = options, data, folder
        self.threads = str(options.threads)

    def cases(self) -> list[Case]:
        found = []
        for model in self.options.models:
            found += [self._ours(model, source) for source in ("text", "shards")]
            if self.options.vw:
                for tool, flags in LEARNERS[model].items():
                    found += [self._vw(tool, model, source, flags) for source in ("text", "cache")]
            if self.options.xlearn:
                found += [self._xlearn(model, source) for source in ("text", "cache")]
            if self.options.alphafm:
                found.append(self._alphafm(model))
        return found

    def _ours(self, model: str, source: str) -> Case:
        kind = ["model.kind=fm", "model.dim=8"] if model == "fm8" else ["model.kind=lr"]
        rows = self.data.text if source == "text" else self.data.train
        run = self.folder / f"ours-{model}-{source}"
        settings = [*kind, f"data.train={rows}", "data.test=[]", f"output.dir={run}"]
        settings += ["train.fused=true", *self.options.settings]
        words = ("train", "--threads", self.threads, "--progress", "none", "--overwrite")

        def loop_s(ran: Ran) -> float:
            summary = json.loads(ran.output)
            return summary["train_s"] + (summary["convert_s"] if source == "text" else 0.0)

        return Case(
            f"ctrps, {self.threads} threads",
            model,
            source,
            lambda seed: measure.ctrps(*words, settings=[*settings, f"train.seed={seed}"]),
            scores=run / "model",
            stale=[run / "cache"],
            loop_s=loop_s,
        )

    def _vw(self, tool: str, model: str, source: str, flags: list[str]) -> Case:
        train, test = (vw_text(path, self.folder) for path in (self.data.text, self.data.text_test))
        start = [str(self.options.vw), "-m", "vowpalwabbit", "--quiet"]
        out, scores = (self.folder / f"{tool}-{source}.{name}" for name in ("model", "scores"))
        common = [*start, "--loss_function", "logistic", "-b", str(BITS)]
        learn = [*common, *flags, "-d", str(train), "-f", str(out)]
        if source == "cache":
            learn += ["--cache_file", str(self.folder / f"{tool}.cache")]
        nothing = self.folder / "nothing.vw"
        nothing.write_text("")
        # What an empty run takes is no training; VW says no times itself.
        empty = [*common, *flags, "-d", str(nothing), "-f", str(out)]
        empty_s = statistics.median(measure.run(empty).wall_s for _ in range(3))
        return Case(
            tool,
            model,
            source,
            lambda seed: learn,
            [
                *start,
                "-t",
                "--link",
                "logistic",
                "-d",
                str(test),
                "-i",
                str(out),
                "-p",
                str(scores),
            ],
            scores,
            before=[learn] if source == "cache" else [],
            loop_s=lambda ran: ran.wall_s - empty_s if ran.wall_s > 2 * empty_s else None,
        )

    def _xlearn(self, model: str, source: str) -> Case:
        python, out = str(self.options.xlearn), self.folder / f"xlearn-{model}-{source}"
        cache = Path(f"{self.data.text}.bin")
        scores = out.with_suffix(".scores")
        train = [python, "-c", XLEARN, str(self.data.text), str(out), model, self.threads]
        return Case(
            "xlearn",
            model,
            source,
            lambda seed: train,
            [python, "-c", XLEARN_SCORES, str(self.data.text_test), str(out), model, str(scores)],
            scores,
            before=[train] if source == "cache" else [],
            stale=[cache] if source == "text" else [],
            loop_s=lambda ran: json.loads(ran.output.splitlines()[-1])["train_s"],
        )

    def _alphafm(self, model: str) -> Case:
        folder, out = self.options.alphafm, self.folder / f"alphafm-{model}"
        form, scores = ["-mf", "bin", "-mnt", "float", "-m", str(out)], out.with_suffix(".scores")
        learn = [str(folder / "fm_train"), *form, "-core", self.threads, *ALPHAFM[model]]
        dim = ["-dim", "8" if model == "fm8" else "0"]
        return Case(
            "alphafm",
            model,
            "text",
            lambda seed: learn,
            [str(folder / "fm_predict"), *form, *dim, "-out", str(scores)],
            scores,
            stdin=self.data.text,
            predict_stdin=self.data.text_test,
        )


def vw_text(source: Path, folder: Path) -> Path:
    """The rows of a libsvm file as VW reads them fastest: clicks 1 and -1, no values of 1."""
    target = folder / f"{source.stem}.vw"
    if not target.exists():
        with open(source) as lines, open(target, "w") as out:
            for line in lines:
                label, _, rest = f"{line.rstrip()} ".partition(" ")
                sign = "1" if float(label) > 0 else "-1"
                out.write(f"{sign} | {rest.replace(':1 ', ' ')}\n")
    return target


def learn(case: Case, seed: int) -> Ran:
    for path in case.stale:
        for file in [*path.glob("*")] if path.is_dir() else [path]:
            file.unlink(missing_ok=True)
    return measure.run(case.train(seed), stdin=case.stdin, environment={"USER": "benchmark"})


def judge(case: Case, data: Data) -> tuple[float, float]:
    """Test AUC and log loss of the model of the last run."""
    if case.predict is None:
        words = ("evaluate", "--model", case.scores, "--data", data.test)
        found = json.loads(measure.run(measure.ctrps(*words)).output)
        return found["auc"], found["logloss"]
    measure.run(case.predict, stdin=case.predict_stdin, environment={"USER": "benchmark"})
    labels = column(data.text_test, 0)
    report = metrics.report(column(case.scores, -1), (labels > 0).astype(np.float32))
    return report["auc"], report["logloss"]


def column(path: Path, number: int) -> np.ndarray:
    """The numbers of one column of a file of text."""
    with open(path) as lines:
        return np.array([float(line.split()[number]) for line in lines])


def compete(options: argparse.Namespace, data: Data, cases: list[Case], rows: int) -> list[dict]:
    """Run all cases in turn; their medians, and the mean test figures over the seeds."""
    for case in cases:
        for command in case.before:
            measure.run(command, environment={"USER": "benchmark"})
    runs: dict[int, list[Ran]] = {n: [] for n in range(len(cases))}
    judged: dict[int, dict[int, tuple[float, float]]] = {n: {} for n in runs}
    for number in range(options.repeat):
        seed = 1 + number % options.seeds
        for n, case in enumerate(cases):
            runs[n].append(learn(case, seed))
            if seed not in judged[n]:
                judged[n][seed] = judge(case, data)
    return [line(cases[n], runs[n], list(judged[n].values()), rows) for n in runs]


def line(case: Case, runs: list[Ran], judged: list[tuple[float, float]], rows: int) -> dict:
    auc, logloss = map(statistics.fmean, zip(*judged, strict=True))
    loops = [case.loop_s(ran) for ran in runs]
    return {
        "tool": case.tool,
        "model": case.model,
        "source": case.source,
        "figures": "measured",
        "whole_rows_per_s": statistics.median(rows / ran.wall_s for ran in runs),
        "rows_per_cpu_s": statistics.median(rows / ran.cpu_s for ran in runs),
        "loop_rows_per_s": None if None in loops else statistics.median(rows / s for s in loops),
        "peak_mb": statistics.median(ran.peak_bytes / 1e6 for ran in runs),
        "auc": auc,
        "logloss": logloss,
    }


def quoted(models: Sequence[str], measured: Sequence[dict]) -> list[dict]:
    """Figures taken elsewhere, of what was not measured here."""
    names = ("tool", "model", "source", "whole_rows_per_s", "loop_rows_per_s")
    names += ("peak_mb", "auc", "logloss")
    have = {(f["tool"], f["model"], f["source"]) for f in measured}
    found = [dict(zip(names, figures, strict=True)) for figures in QUOTED]
    return [
        {**f, "figures": "quoted, not measured"}
        for f in found
        if f["model"] in models and (f["tool"], f["model"], f["source"]) not in have
    ]


def ratios(found: Sequence[dict]) -> list[dict]:
    """Each peer against ctrps: text with text, its cache with our shards."""
    ours = {(f["model"], f["source"]): f for f in found if f["tool"].startswith("ctrps")}
    lines = []
    for peer in found:
        source = "text" if peer["source"] == "text" else "shards"
        own = ours[peer["model"], source]
        if peer is own or peer["tool"].startswith("ctrps"):
            continue
        lines.append(
            {
                "model": peer["model"],
                "ours": source,
                "peer": peer["tool"],
                "from": peer["source"],
                "figures": peer["figures"],
                "whole": _ratio(own["whole_rows_per_s"], peer["whole_rows_per_s"]),
                "loop": _ratio(own["loop_rows_per_s"], peer["loop_rows_per_s"]),
                "by_cpu": _ratio(own["rows_per_cpu_s"], peer.get("rows_per_cpu_s")),
                "memory": own["peak_mb"] / peer["peak_mb"],
                "auc_more": own["auc"] - peer["auc"],
                "logloss_more": own["logloss"] - peer["logloss"],
                "goal": GOALS.get((peer["model"], source, peer["tool"])),
            }
        )
    return lines


def _ratio(ours: float, peer: float | None) -> float | None:
    return ours / peer if peer else None


def vw_python(options: argparse.Namespace, folder: Path) -> Path | None:
    """A Python that has Vowpal Wabbit, if there is one."""
    if options.install:
        measure.run([sys.executable, "-m", "venv", folder / "vw"])
        python = folder / "vw" / "bin" / "python"
        measure.run([python, "-m", "pip", "install", "--quiet", "vowpalwabbit"])
        return python
    if options.vw or importlib.util.find_spec("vowpalwabbit") is None:
        return options.vw
    return Path(sys.executable)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = measure.parser(__doc__, repeat=5)
    parser.add_argument("--train", type=Path, help="libsvm of training rows; default: made up")
    parser.add_argument("--test", type=Path)
    parser.add_argument("--rows", type=measure.numbers, default=[50_000], help="made-up rows")
    parser.add_argument("--models", type=measure.words, default=list(LEARNERS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3, help="of ctrps, in turn (%(default)s)")
    parser.add_argument("--vw", type=Path, metavar="PYTHON")
    parser.add_argument("--install", action="store_true", help="fetch Vowpal Wabbit from PyPI")
    parser.add_argument("--xlearn", type=Path, metavar="PYTHON")
    parser.add_argument("--alphafm", type=Path, metavar="DIR")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="S.K=V")
    options = parser.parse_args(arguments)
    if (options.train is None) != (options.test is None):
        parser.error("--train and --test go together")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="ctrps-peers-") as name:
        folder = Path(name)
        options.vw = vw_python(options, folder)
        data = prepare(options, folder)
        cases = Peers(options, data, folder).cases()
        rows = len(column(data.text, 0))
        learn(cases[0], 1)  # compiles the kernels
        found = compete(options, data, cases, rows)
    found += quoted(options.models, found)
    found.sort(key=lambda f: (f["model"], f["source"] != "text"))
    compared = ratios(found)
    show(found, compared, rows)
    measure.finish("peers", options, rows=rows, tools=found, ratios=compared)
    return 0


def show(found: Sequence[dict], compared: Sequence[dict], rows: int) -> None:
    measure.show(
        f"One pass over {rows:,} rows",
        found,
        tool="",
        model="",
        source="",
        figures="",
        whole_rows_per_s=",.0f",
        loop_rows_per_s=",.0f",
        rows_per_cpu_s=",.0f",
        peak_mb=",.0f",
        auc=".4f",
        logloss=".4f",
    )
    columns: dict[str, Any] = dict.fromkeys(("model", "ours", "peer", "from", "figures"), "")
    measure.show(
        "ctrps against each: rows/s of the whole run, by CPU time, and of the loop; memory; test",
        compared,
        **columns,
        whole=".2f",
        by_cpu=".2f",
        loop=".2f",
        goal=".1f",
        memory=".2f",
        auc_more="+.4f",
        logloss_more="+.4f",
    )


if __name__ == "__main__":
    sys.exit(main())
