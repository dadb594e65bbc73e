"""What stale gradients cost: AUC by rows of a minibatch and minibatches of delay, in one process.

    python benchmarks/staleness.py --train train.svm --test test.svm [--try ROWS,DELAY,C0 ...]

Imitates async mode exactly reproducibly: the gradient of a minibatch is computed, and applied only
after so many others have been. C0 is the constant of the count rule for v; without it the shipped
rule is used, which shrinks c0 with the staleness. One pass, one seed.
"""

import argparse
import json
import tempfile
import time
from collections import deque
from pathlib import Path

from ctrps import models
from ctrps.config import load_job
from ctrps.ps.partition import Contribution, PartitionSet, contribute
from ctrps.ps.plan import EvaluationPlan, Plan
from ctrps.runtime.inputs import BatchReader, open_inputs, plan_settings
from ctrps.runtime.local import test_report

TRIALS = ["256,1", "128,3", "64,3", "64,7", "32,7", "32,15", "16,15", "8,15"]


def trial(data: list[str], kind: str, rows: int, delay: int, c0: float | None) -> dict:
    """Train one pass with this delay; the shipped rule for c0 if none is given."""
    settings = [*data, f"model.kind={kind}", f"train.batch_rows={rows}"]
    job = load_job(None, settings + ([f"optimizer.v.count_scale={c0}"] if c0 else []), {})
    inputs, model = open_inputs(job), models.build(job)
    partitions, plan = PartitionSet(model), Plan(inputs.manifest.train, plan_settings(job), 0)
    reader = BatchReader(inputs.manifest.train, plan_settings(job), model.partition_bits)
    under_way: deque[Contribution] = deque()
    began = time.monotonic()
    for step in range(plan.steps):
        for lane in plan.active(step):
            batch = reader.minibatch(0, plan.batch(lane, step))
            weights = partitions.pull(tuple(s.keys for s in model.key_sets(batch)))
            under_way.append(contribute(model, batch, weights))
            if len(under_way) > delay:
                partitions.apply_late([under_way.popleft()], 0 if c0 else delay)
    for part in under_way:
        partitions.apply_late([part], 0 if c0 else delay)
    report = score(model, partitions, inputs.manifest.test)
    return {
        "model": kind,
        "rows": rows,
        "delay": delay,
        "c0": c0 or "rule",
        "auc": report["auc"],
        "logloss": report["logloss"],
        "train_s": round(time.monotonic() - began, 1),
    }


def score(model: models.Model, partitions: PartitionSet, files: tuple) -> dict:
    plan, reader = EvaluationPlan(files), BatchReader(files, None, model.partition_bits)
    margins, labels = [], []
    for lane in range(plan.lanes):
        batch = reader.minibatch(0, plan.batch(lane))
        weights = partitions.peek(tuple(s.keys for s in model.key_sets(batch)))
        margins.append(model.margins(batch, weights))
        labels.append(batch.labels)
    return test_report(margins, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--train", required=True, type=Path)
    parser.add_argument("--test", required=True, type=Path)
    parser.add_argument("--model", default="fm", choices=["lr", "fm"])
    parser.add_argument("--try", dest="trials", action="append", metavar="ROWS,DELAY[,C0]")
    options = parser.parse_args()
    found = []
    print(f"{'rows':>5}{'delay':>7}{'c0':>7}{'AUC':>9}{'logloss':>10}{'s':>7}")
    with tempfile.TemporaryDirectory() as folder:
        data = [f"data.train={options.train.resolve()}", f"data.test={options.test.resolve()}"]
        data.append(f"output.dir={folder}")
        for text in options.trials or TRIALS:
            rows, delay, *c0 = text.split(",")
            constant = float(c0[0]) if c0 else None
            f = trial(data, options.model, int(rows), int(delay), constant)
            found.append(f)
            figures = f"{f['auc']:>9.4f}{f['logloss']:>10.4f}{f['train_s']:>7}"
            print(f"{f['rows']:>5}{f['delay']:>7}{f['c0']:>7}{figures}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
