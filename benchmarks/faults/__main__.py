"""Kills real processes of real jobs, and checks that every row of data is in the model once.

    python -m benchmarks.faults workers|servers|schedulers|two [--mode sync|ssp|async] [--kills 20]
    python -m benchmarks.faults servers --replicas 1
    python -m benchmarks.faults servers --control marks|repeats|views|nothing
    python -m benchmarks.faults interrupt [--mode sync|ssp|async] [--runs 5]
    python -m benchmarks.faults extract   [--kills 20]
    python -m benchmarks.faults network   [--partitions 50]
    python -m benchmarks.faults relay     [--messages 1000000]
    python -m benchmarks.faults pauses    [--seconds 0.5 2 10]

The first line's jobs run under `ctrps launch`, which starts again what was killed. A kill (SIGKILL)
comes at a random moment once the job is further than ever since the last one; there are as many
jobs as so many kills take. ``two`` kills two at once, in half of the cases the scheduler and a
server. ``interrupt``: each job is stopped at random moments, by Ctrl-C and by SIGKILL of its
launcher, and started again with the same command until it is done. ``extract``: see
``benchmarks.extract_faults``. ``network``: nodes in network namespaces, whose connections are cut
and made bad. ``relay``: a relay between the nodes delays, doubles, reorders and drops messages.
``pauses``: processes are stopped for a while.

The rows are generated (seeded). In sync mode every other job has a real optimiser, and its digest
must be that of `ctrps train`; all others have the optimiser ``count``, and must end with weights
that equal a count of the rows in plain Python. Exit status 1 if anything differs. Prints one JSON
line at the end, with the seconds from each kill until the successors are in the job and the job is
further than it was at the kill.

With ``--control`` the cluster is broken on purpose (``benchmarks.faults.controls``): exit status 0
only if that shows, or for ``nothing``, which is not broken, if it does not.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.extract_faults import trials as extractions
from benchmarks.faults import network, pauses, relay
from benchmarks.faults.controls import CONTROLS, ENDS
from benchmarks.faults.jobs import Job
from benchmarks.faults.kills import ROLES, interrupted, kill_again_and_again

OTHERS = {"network": network.main, "relay": relay.main, "pauses": pauses.main}
"""Parts with options of their own: what happens to messages and to time, not to processes."""


def settings_of(options: argparse.Namespace, number: int) -> list[str]:
    real = options.mode == "sync" and number % 2
    kind = "ftrl" if real else "count"
    mode = [f"train.consistency={options.mode}", f"optimizer.w.kind={kind}"]
    cluster = [f"cluster.replicas={options.replicas}", "cluster.restarts=10"]
    if options.control in ("nothing", "views"):
        # The partitions are placed on the other server before there is one in place of the dead.
        at_once = {"beat_s": 0.1, "server_silent_s": 0.4, "server_wait_s": 0.01}
        cluster += [f"cluster.{name}={value}" for name, value in at_once.items()]
    return [*mode, "train.batch_rows=64", "train.checkpoint_s=0.4", *cluster]


def trial(folder: Path, options: argparse.Namespace, number: int, kills: int) -> dict[str, Any]:
    """One job, and whether its model is right."""
    seed, settings = options.seed + number, settings_of(options, number)
    control = ("benchmarks.faults.controls", options.control) if options.control else ("ctrps",)
    (folder / str(number)).mkdir()
    job = Job(folder / str(number), options.rows, options.passes, settings, control)
    found: dict[str, Any] = {"seed": seed}
    if options.what == "interrupt":
        found |= interrupted(job, random.Random(seed))
    else:
        killed = kill_again_and_again(
            job, options.what, options.replicas, kills, random.Random(seed)
        )
        found |= vars(killed)
    found["ok"] = found["status"] == 0
    if not found["ok"]:
        found["last_words"] = (job.folder / "launch.log").read_text()[-600:]
        if options.control and found["status"] != ENDS[options.control]:
            raise SystemExit(f"a control that breaks something else: {found}")
    elif "optimizer.w.kind=ftrl" in settings:
        found["ok"] = job.summary()["model_digest"] == job.undisturbed()
    else:
        found["miscounted"] = job.miscounted()
        found["ok"] = not found["miscounted"]
    return found


def trials(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """As many jobs as the runs, or the kills, take; a control is over once it has shown."""
    found: list[dict[str, Any]] = []
    if options.what == "interrupt":
        found = [trial(folder, options, number, 0) for number in range(options.runs)]
        return {"jobs": found, "violations": sum(not f["ok"] for f in found)}
    taken: list[float] = []
    while len(taken) < options.kills and not (options.control and found and not found[-1]["ok"]):
        left = options.kills - len(taken)
        found.append(trial(folder, options, len(found), min(left, options.each)))
        taken += found[-1]["recovery_s"]
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        if not found[-1]["recovery_s"] and found[-1]["ok"]:
            raise SystemExit("a job ended before anything was killed: give it more --passes")
    return {
        "kills": len(taken),
        "jobs": len(found),
        "violations": sum(not f["ok"] for f in found),
        "recovery_median_s": round(statistics.median(taken), 2) if taken else None,
        "recovery_worst_s": max(taken, default=None),
        "recovery_s": taken,
    }


def main() -> int:
    if sys.argv[1:] and sys.argv[1] in OTHERS:
        return OTHERS[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    others = f"or one of {', '.join(OTHERS)}, with options of their own (network --help)"
    parser.add_argument("what", choices=[*ROLES, "interrupt", "extract"], help=others)
    parser.add_argument("--mode", default="async", choices=["sync", "ssp", "async"])
    parser.add_argument("--kills", type=int, default=20, help="of extract: in each pass")
    parser.add_argument("--replicas", type=int, default=0, choices=[0, 1])
    parser.add_argument("--each", type=int, default=10, help="most kills in one job")
    parser.add_argument("--runs", type=int, default=5, help="jobs of interrupt")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", choices=CONTROLS, help="break it, and see that this shows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "extract":
            extracted = extractions(Path(folder), options)
            print(json.dumps(extracted))
            return 0 if all(f["ok"] for f in extracted) else 1
        found = trials(Path(folder), options)
    given = {name: vars(options)[name] for name in ("what", "mode", "replicas", "seed")}
    print(json.dumps(given | {"control": options.control} | found))
    return int(bool(found["violations"]) != (options.control not in (None, "nothing")))


if __name__ == "__main__":
    sys.exit(main())
