"""The command ``ctrps``: parse, load the job, call one function, print, map errors to statuses.

Results go to standard output, everything else to standard error. Heavy modules are imported inside
the commands, so that ``ctrps --help`` answers at once.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ctrps import __version__
from ctrps.cli_check import check_app
from ctrps.cli_checkpoint import checkpoint_app
from ctrps.cli_config import config_app
from ctrps.cli_data import data_app
from ctrps.cli_doctor import doctor_app
from ctrps.cli_first import first_app
from ctrps.cli_keys import Insecure, guard_of, keys_app, settings_of
from ctrps.cli_model import model_app
from ctrps.cli_predict import predict_app
from ctrps.cli_watch import watch_app
from ctrps.completion import one_of_these
from ctrps.errors import ConfigError, CtrpsError, RunFailed
from ctrps.screen import (
    ConfigFile,
    Json,
    Overrides,
    Overwrite,
    load,
    loading,
    one_of,
    print_json,
    reported,
    say,
    status_of,
    without_output,
)

if TYPE_CHECKING:
    from ctrps.config import JobConfig
    from ctrps.ps.effects import Finish
    from ctrps.runtime.logs import Logger

app = typer.Typer(
    name="ctrps",
    help="Train click-through-rate models on hashed sparse features with a parameter server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(first_app)
app.add_typer(doctor_app)
app.add_typer(data_app)
app.add_typer(check_app)
app.add_typer(keys_app)
app.add_typer(model_app)
app.add_typer(predict_app)
app.add_typer(watch_app)
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(config_app, name="config")

ProgressMode = Annotated[
    str,
    Option(
        "--progress",
        metavar="auto|plain|none",
        help="How progress is shown.",
        autocompletion=one_of_these("auto", "plain", "none"),
    ),
]
SchedulerAddress = Annotated[
    str | None,
    Option(
        "--scheduler",
        metavar="HOST:PORT",
        envvar="CTRPS_SCHEDULER",
        help="Where the scheduler listens.",
    ),
]
Parent = Annotated[
    int | None, Option("--parent", hidden=True, help="Process that this one must not outlive.")
]
Rank = Annotated[int, Option("--rank", hidden=True, help="The launcher's number of the process.")]
Replaces = Annotated[
    bool, Option("--replaces", hidden=True, help="The process that had this rank has died.")
]


def _version(asked: bool) -> None:
    if asked:
        print(f"ctrps {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train click-through-rate models on hashed sparse features with a parameter server.

    A job file says everything: raw tables, features, model, optimiser, cluster. Typical use:

      ctrps extract -c JOB        raw logs to feature shards

      ctrps launch -c JOB -s 2 -w 2     train on a local cluster

      ctrps predict --model RUN/model --data F -o scores.csv

    Exit status: 0 done, 1 internal error, 2 usage or settings, 3 data, 4 cluster, 5 quality gate,
    75 stopped with a checkpoint (run again to go on), 130 or 143 stopped by a signal.
    """


@app.command()
@reported
def train(
    config: ConfigFile = None,
    overrides: Overrides = None,
    threads: Annotated[
        int | None, Option("--threads", min=1, help="Threads that compute lanes.")
    ] = None,
    overwrite: Overwrite = False,
    progress: ProgressMode = "auto",
    as_json: Json = False,
) -> None:
    """Train in this process, without a cluster: the reference for its results.

    In sync mode it gives the same bits as `ctrps launch`, whatever the number of threads. In async
    mode, or with train.fused, it learns row at a time, threads without locks: the fastest way on
    one machine. Ctrl-C saves a checkpoint; the same command then goes on from it.

    Example: ctrps train -c job.yaml --threads 2
    """
    with loading():
        from ctrps.runtime.dashboard import ProgressLine
        from ctrps.runtime.local import train as run
        from ctrps.runtime.warm import announcing

    more = (f"train.threads={threads}",) if threads else ()
    job = load(config, overrides, more)
    one_of("--progress", progress, ("auto", "plain", "none"))
    with ProgressLine(sys.stderr, progress) as line, announcing(line.compiling):
        tell = line.tell if progress != "none" else lambda text: None
        summary = run(job, overwrite, line.show, line.converting, tell)
    _show_summary(summary, as_json)


@app.command()
@reported
def launch(
    config: ConfigFile = None,
    servers: Annotated[
        int | None, Option("--servers", "-s", min=1, help="Server processes.")
    ] = None,
    workers: Annotated[
        int | None, Option("--workers", "-w", min=1, help="Worker processes.")
    ] = None,
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    insecure: Insecure = False,
    progress: ProgressMode = "auto",
    as_json: Json = False,
) -> None:
    """Train on this machine with one scheduler, and as many servers and workers as you ask for.

    Trains, saves after each pass, scores the test rows on the servers, and stops every process it
    started. Ctrl-C saves a checkpoint first; a second Ctrl-C does not. A dead worker's lanes go to
    the others. On failure the last lines say which process failed first, and why.

    To use several machines, run `ctrps scheduler`, `ctrps server` and `ctrps worker` on them, with
    the same job file.

    Example: ctrps launch -c job.yaml -s 2 -w 2
    """
    with loading():
        from ctrps.runtime.dashboard import ProgressLine
        from ctrps.runtime.launch import launch as run
        from ctrps.runtime.warm import announcing

    counts = {"cluster.servers": servers, "cluster.workers": workers}
    more = tuple(f"{key}={count}" for key, count in counts.items() if count is not None)
    job = load(config, overrides, (*more, *settings_of(insecure)))
    one_of("--progress", progress, ("auto", "plain", "none"))
    for warning in guard_of(job).check(job.cluster):
        say(f"warning: {warning}")
    with ProgressLine(sys.stderr, progress) as line, announcing(line.compiling):
        summary = run(
            job, overwrite, line.show, line.tell, partial(status_of, app), line.converting
        )
    _show_summary(summary, as_json)


def _show_summary(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    from ctrps.runtime.dashboard import account

    for line in account(summary):
        print(line)
    if summary["rejected"]:
        say(f"note: {summary['rejected']:,} bad row(s) left out; see *.rejected.tsv in its cache")
    _show_report("test", summary["test"])


def _show_report(name: str, report: dict[str, Any] | None) -> None:
    if report is None:
        print(f"{name:13s} no test rows")
        return
    shown = (
        f"undefined ({report['auc_undefined']})"
        if report["auc"] is None
        else f"{report['auc']:.6f}"
    )
    print(f"{name:13s} AUC {shown}")
    for key in ("logloss", "normalised_entropy", "calibration"):
        if report[key] is not None:
            print(f"              {key.replace('_', ' ')} {report[key]:.6f}")
    print(f"              {report['rows']:,} rows, {report['clicks']:,} clicks")


@app.command()
@reported
def scheduler(
    config: ConfigFile = None,
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    insecure: Insecure = False,
    parent: Parent = None,
    as_json: Json = False,
) -> None:
    """Run the scheduler of a cluster; servers and workers then join it in any order.

    Listens on `cluster.scheduler`, waits for `cluster.servers` and `cluster.workers`, and ends with
    the job.

    Example: ctrps scheduler -c job.yaml --set cluster.scheduler=127.0.0.1:9000
    """
    with loading():
        _bind_to(parent)
        from ctrps.runtime.scheduling import SchedulerProcess

    job = load(config, overrides, settings_of(insecure))
    log, guard = _logger(job, "scheduler"), guard_of(job)
    key = f" and job key {guard.key.fingerprint}" if guard.key else ""
    join = "listening; join with CTRPS_SCHEDULER={} and the same job file{}"
    with errors_to(log):
        log.process = process = SchedulerProcess(job, overwrite, log, guard)
        finish = process.run(lambda address: log(join.format(address, key)))
        if finish.exit_status == 0 and log.format == "json" and not as_json:
            log("done", summary=process.summary())
        elif finish.exit_status == 0:
            _show_summary(process.summary(), as_json)
        _end(finish)


@app.command()
@reported
def server(
    config: ConfigFile = None,
    overrides: Overrides = None,
    scheduler: SchedulerAddress = None,
    insecure: Insecure = False,
    parent: Parent = None,
    rank: Rank = -1,
    replaces: Replaces = False,
) -> None:
    """Run one server of a cluster: it holds a part of the model.

    SIGTERM asks it to leave, and it goes when others have its part; SIGINT ends it at once.

    Example: CTRPS_SCHEDULER=127.0.0.1:9000 ctrps server -c job.yaml
    """
    with loading():
        _bind_to(parent)
        from ctrps.runtime.roles import Place, ServerProcess

    job = load(config, overrides, settings_of(insecure))
    address = _scheduler_of(job, scheduler)
    log = _logger(job, "server", rank)
    with errors_to(log):
        place = Place(rank, replaces)
        log.process = process = ServerProcess(job, address, log, guard_of(job), place)
        _end(process.run())


@app.command()
@reported
def worker(
    config: ConfigFile = None,
    overrides: Overrides = None,
    scheduler: SchedulerAddress = None,
    insecure: Insecure = False,
    parent: Parent = None,
    rank: Rank = -1,
    replaces: Replaces = False,
) -> None:
    """Run one worker of a cluster: it reads rows and computes gradients.

    SIGTERM asks it to leave, and others go on with its work; SIGINT ends it at once.

    Example: CTRPS_SCHEDULER=127.0.0.1:9000 ctrps worker -c job.yaml
    """
    with loading():
        _bind_to(parent)
        from ctrps.runtime.roles import Place, WorkerProcess

    job = load(config, overrides, settings_of(insecure))
    address = _scheduler_of(job, scheduler)
    log = _logger(job, "worker", rank)
    with errors_to(log):
        place = Place(rank, replaces)
        log.process = process = WorkerProcess(job, address, log, guard_of(job), place)
        _end(process.run())


def _bind_to(parent: int | None) -> None:
    if parent is not None:
        from ctrps.runtime.nursery import die_with

        die_with(parent)


def _scheduler_of(job: "JobConfig", given: str | None) -> str:
    """The scheduler's address: option, environment, or the job file if it states a port."""
    from ctrps.config import parse_address

    address = given or job.cluster.scheduler
    try:
        port = parse_address(address)[1]
    except ConfigError as error:
        raise ConfigError(
            error.what, where="--scheduler", hint=error.hint, id="E-CONFIG-ADDRESS"
        ) from None
    if port == 0:
        raise ConfigError(
            f"{address!r} is no address to connect to",
            where="--scheduler",
            hint="give the HOST:PORT that the scheduler printed, or set CTRPS_SCHEDULER",
            id="E-CONFIG-ADDRESS",
        )
    return address


def _logger(job: "JobConfig", role: str, rank: int = -1) -> "Logger":
    from ctrps.runtime.logs import Logger

    return Logger(say, job.output.log_format, job.name, role, rank)


@contextmanager
def errors_to(log: "Logger") -> Iterator[None]:
    """An error that ends a process is the last line of its log, in the log's format."""
    try:
        yield
    except CtrpsError as error:
        if log.format == "text":
            raise
        log(f"error: {error.told}", level="error", exit_status=error.exit_status)
        raise typer.Exit(error.exit_status) from None


def _end(finish: "Finish") -> None:
    """Raise what a process ended with, unless all is well."""
    if finish.exit_status:
        raise RunFailed(finish.reason, exit_status=finish.exit_status)


@app.command()
@reported
def replay(
    batch: Annotated[Path, Argument(metavar="FILE", help="A batch that training saved.")],
    as_json: Json = False,
) -> None:
    """Compute a saved batch again whose gradient was not finite, and say where it comes from.

    Training stops at such a batch and saves it with the weights that it used in OUTPUT.DIR/bad.

    Example: ctrps replay runs/job/bad/pass0-lane2-batch17.batch
    """
    from ctrps.runtime.nonfinite import replay as run

    report = run(batch)
    if as_json:
        print_json(report)
        return
    name = " ".join(f"{key} {value}" for key, value in report["name"].items())
    print(f"{name}: {report['rows']} rows of {report['file']}")
    print(f"gradient is {'finite' if report['finite'] else 'not finite'}")
    for row in report["bad_rows"]:
        largest = ", ".join(f"{e['key']}:{e['value']:g}" for e in row["largest"])
        print(f"row {row['row']}: label {row['label']:g}, margin {row['margin']}, values {largest}")
    for key in report["bad_keys"]:
        fields = " ".join(filter(None, key["fields"]))
        print(f"key {key['key']}: its gradient is not finite {fields}".rstrip())
    for weight in report["bad_weights"]:
        print(f"key {weight}: its weights were not finite before")


def main() -> None:
    """Run the command line."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may hold letters that the terminal cannot show: they are replaced, never fatal.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except OSError as error:  # of --help: commands see to their own
        sys.exit(without_output(error))
