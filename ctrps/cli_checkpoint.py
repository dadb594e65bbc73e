"""The commands ``ctrps checkpoint``: look at the checkpoints of a model, compare, copy, reshard."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ctrps.errors import CheckpointError, ConfigError
from ctrps.screen import Json, loading, print_json, reported, say

if TYPE_CHECKING:
    from ctrps.reshard import Difference
    from ctrps.verify import Found, Verified

checkpoint_app = typer.Typer(
    help="Look at the checkpoints of a model, compare, copy, reshard.", no_args_is_help=True
)

DIFFERENT = 5
"""Exit status of two models that are not equal."""

SHOWN = 20
"""Settings that are shown; ``--json`` has all."""

Model = Annotated[
    str, Argument(metavar="MODEL", help="Folder of a model or of a run, or the URL of a model.")
]
Out = Annotated[
    str, Option("--out", "-o", metavar="OUT", help="Folder or URL without a model, to write.")
]


@checkpoint_app.command("list")
@reported
def list_(model: Model, as_json: Json = False) -> None:
    """Show the checkpoints of a model, newest first: pass, step, time, size, whether complete.

    `model` is what prediction and training read, `last` the newest complete one, `best` the one
    that early stopping keeps. Files are not read: `ctrps checkpoint verify` does.

    Example: ctrps checkpoint list runs/job
    """
    with loading():
        from ctrps import verify

    home = verify.model_home(model)
    checkpoints = verify.found(home)
    last = next((one for one in checkpoints if one.complete), None)
    rows = [_entry(one, one is last) for one in checkpoints]
    if as_json:
        print_json({"model": str(home), "checkpoints": rows})
        return
    for row in rows:
        marks = ", ".join(mark for mark in ("model", "last", "best") if row[mark])
        state = "complete" if row["complete"] else f"{len(row['missing'])} files missing"
        border = "end of pass" if row["border"] else "pass"
        place = f"{border} {row['pass']}, step {row['step']:,}"
        size = f"{row['size_bytes'] / 1e6:,.1f} MB"
        print(f"{row['checkpoint']:>6}  {row['time'] or '-':19}  {size:>12}  {place}", end="")
        print(f"  {state}{f'  ({marks})' if marks else ''}")


def _entry(found: "Found", last: bool) -> dict[str, Any]:
    manifest = found.manifest
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(found.time)) if found.time else None
    return {
        "checkpoint": manifest.checkpoint,
        "pass": manifest.pass_,
        "step": manifest.step,
        "border": manifest.border,
        "time": at,
        "size_bytes": found.size_bytes,
        "partitions": len(manifest.files),
        "model_digest": manifest.model_digest,
        "manifests": list(found.manifests),
        "complete": found.complete,
        "missing": list(found.missing),
        "model": found.model,
        "last": last,
        "best": found.best,
    }


@checkpoint_app.command()
@reported
def verify(model: Model, as_json: Json = False) -> None:
    """Read every byte of every checkpoint of a model, and say what is damaged.

    Of each file: its size, its digest, all checksums, whether keys ascend and belong to the file's
    partition, whether weights and optimiser state are finite. What is damaged is listed with what
    to do about it, and the exit status is 3.

    Example: ctrps checkpoint verify runs/job
    """
    with loading():
        from ctrps.remote import Remote, at_hand, is_url
        from ctrps.verify import model_home
        from ctrps.verify import verify as run

    home = model_home(model)
    with at_hand(home, ()) as folder:
        results = run(folder)
    shown = Remote(str(home)).url if is_url(home) else str(folder)
    found = [damage for one in results for damage in one.damages.items()]
    damages = {path.replace(str(folder), shown): error for path, error in found}
    if as_json:
        listed = [
            {"file": path, "what": e.what, "hint": e.hint} for path, e in sorted(damages.items())
        ]
        checkpoints = [_seen(one) for one in reversed(results)]
        print_json({"model": shown, "checkpoints": checkpoints, "damaged": listed})
    else:
        for one in reversed(results):
            seen = _seen(one)
            state = "whole" if seen["whole"] else f"{seen['damaged']} damaged files"
            number = "?" if seen["checkpoint"] is None else seen["checkpoint"]
            what = f"{seen['files']} files, {seen['keys']:,} keys"
            print(f"{number:>6}  {one.name:16}  {what}: {state}")
        for path, error in sorted(damages.items()):
            print(f"damaged {path}: {error.what}; {error.hint}")
    if damages:
        raise CheckpointError(f"{len(damages)} files of it are damaged", where=shown)


def _seen(one: "Verified") -> dict[str, Any]:
    manifest = one.manifest
    return {
        "manifest": one.name,
        "checkpoint": manifest.checkpoint if manifest else None,
        "files": len(manifest.files) if manifest else 0,
        "keys": one.keys,
        "whole": not one.damages,
        "damaged": len(one.damages),
    }


@checkpoint_app.command()
@reported
def diff(
    a: Annotated[str, Argument(metavar="A", help="Folder of a model or of a run, or a URL.")],
    b: Annotated[str, Argument(metavar="B", help="The same of the other.")],
    as_json: Json = False,
) -> None:
    """Compare two models: settings, keys that only one has, and how far weights are apart.

    They are equal, and the exit status is 0, if the settings that fix what rows mean are equal and
    so is every bit of every weight and of the optimiser's state; into how many partitions they are
    divided does not matter. Otherwise it is 5.

    Example: ctrps checkpoint diff runs/one runs/two
    """
    with loading():
        from ctrps.remote import at_hand
        from ctrps.reshard import diff as run
        from ctrps.verify import model_home

    with at_hand(model_home(a)) as folder_a, at_hand(model_home(b)) as folder_b:
        found = run(folder_a, folder_b)
    print_json(_difference(found)) if as_json else _show_difference(found)
    if not found.equal:
        raise typer.Exit(DIFFERENT)


def _difference(found: "Difference") -> dict[str, Any]:
    tables = [
        {
            "table": t.name,
            "keys": t.keys,
            "only_a": t.only_a,
            "only_b": t.only_b,
            "changed": t.changed,
            "largest": t.largest if t.weights else None,
            "mean": t.mean if t.weights else None,
            "equal": t.equal,
        }
        for t in found.tables
    ]
    settings = {key: {"a": a, "b": b} for key, (a, b) in found.settings.items()}
    return {"equal": found.equal, "settings": settings, "tables": tables}


def _show_difference(found: "Difference") -> None:
    for key, (a, b) in list(found.settings.items())[:SHOWN]:
        print(f"setting       {key}: {_short(a)} and {_short(b)}")
    if len(found.settings) > SHOWN:
        print(f"              and {len(found.settings) - SHOWN:,} more")
    for table in found.tables:
        alone = f"{table.only_a:,} only in A, {table.only_b:,} only in B"
        print(f"{table.name:13} {table.keys:,} keys in both, {table.changed:,} differ; {alone}")
        if table.weights:
            print(f"              weights differ by at most {table.largest:g}, mean {table.mean:g}")
    print("equal         to the bit" if found.equal else "equal         no")


def _short(value: object) -> str:
    text = "nothing" if value is None else " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


@checkpoint_app.command()
@reported
def reshard(
    model: Model,
    out: Out,
    partitions: Annotated[
        int, Option("--partitions", metavar="N", help="Partitions, a power of two up to 256.")
    ],
    as_json: Json = False,
) -> None:
    """Write a model again with another number of partitions (`train.partitions`).

    Every row stays as it is, so scores are the same to the bit. Training goes on from it in a run
    whose `train.partitions` is N: put it where that run's model is, OUTPUT.DIR/model.

    Example: ctrps checkpoint reshard runs/job --partitions 16 -o runs/job16/model
    """
    with loading():
        from ctrps.remote import at_hand
        from ctrps.reshard import reshard as run
        from ctrps.verify import model_home

    with at_hand(model_home(model)) as folder, _new_home(out) as target:
        manifest = run(folder, partitions, target)
    if as_json:
        figures = {"partitions": partitions, "model_digest": manifest.model_digest}
        print_json({"model": out} | figures)
        return
    print(f"model         {out} ({partitions} partitions)")
    print(f"digest        {manifest.model_digest}")


@checkpoint_app.command()
@reported
def copy(
    model: Model,
    out: Annotated[
        str,
        Option(
            "--out",
            "-o",
            metavar="OUT",
            help="Folder without a model, or a URL, whose model is replaced.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Copy a model with all its checkpoints, from a folder or URL to another.

    Every byte is verified first. The manifest comes last, so whoever reads OUT meanwhile finds the
    model that was there, or this one whole.

    Example: ctrps checkpoint copy runs/job -o s3://bucket/job
    """
    with loading():
        from ctrps import checkpoint
        from ctrps.remote import Remote, at_hand, is_url
        from ctrps.verify import model_home
        from ctrps.verify import verify as run

    with at_hand(model_home(model), ()) as folder:
        for error in (error for one in run(folder) for error in one.damages.values()):
            raise error
        if is_url(out):
            size = Remote(out).upload(folder)
        else:
            size = checkpoint.copy(folder, _without_model(out))
    print_json({"model": out, "size_bytes": size}) if as_json else say(f"{size:,} bytes to {out}")


@contextmanager
def _new_home(out: str) -> Iterator[Path]:
    """A folder to write a model into, which becomes ``out`` if that is a URL."""
    from ctrps.remote import Remote, is_url

    if not is_url(out):
        yield _without_model(out)
        return
    remote = Remote(out)
    if remote.manifests():
        raise ConfigError(
            "a model is there", where=remote.url, hint="choose another place", id="E-CONFIG-RUN"
        )
    with TemporaryDirectory(prefix="ctrps-model-") as folder:
        yield Path(folder)
        remote.upload(Path(folder))


def _without_model(out: str) -> Path:
    from ctrps import checkpoint

    folder = Path(out)
    if checkpoint.manifests(folder):
        raise ConfigError(
            "a model is there", where=out, hint="choose another place", id="E-CONFIG-RUN"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot write there: {error.strerror}", where=out, id="E-DISK"
        ) from None
    return folder
