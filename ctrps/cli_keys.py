"""The command ``ctrps keygen``, and how the commands of a cluster come by its job key."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from ctrps.screen import Json, loading, print_json, reported, say

if TYPE_CHECKING:
    from ctrps.config import JobConfig
    from ctrps.runtime.security import Guard

keys_app = typer.Typer()

Insecure = Annotated[
    bool, Option("--insecure", help="Permit plain text on any address (cluster.insecure).")
]


def settings_of(insecure: bool) -> tuple[str, ...]:
    """The option ``--insecure`` as a setting."""
    return ("cluster.insecure=true",) if insecure else ()


def guard_of(job: "JobConfig") -> "Guard":
    """What protects the sockets of a job's processes: the key in its file or in the environment."""
    from ctrps.runtime.security import KEY_VARIABLE, Guard

    return Guard.of(job.cluster, os.environ.get(KEY_VARIABLE, ""))


@keys_app.command()
@reported
def keygen(
    file: Annotated[Path, Argument(metavar="FILE", help="File to write.")] = Path("job.key"),
    as_json: Json = False,
) -> None:
    """Make a job key, which processes of a cluster need on addresses other than loopback.

    FILE is for its owner alone (mode 600), and is never overwritten. All nodes of the job need the
    same key: whoever has it can join, read and change the job. Give it to them by
    cluster.key_file, or in the environment as CTRPS_JOB_KEY. The fingerprint printed is no secret:
    nodes say it when keys differ.

    Example: ctrps keygen job.key
    """
    with loading():
        from ctrps.runtime.security import JobKey

    key = JobKey.make(file)
    if as_json:
        print_json({"file": str(file), "fingerprint": key.fingerprint})
        return
    print(f"{file}  fingerprint {key.fingerprint}")
    say(f"to hand it out, copy it (scp -p {file} HOST:) and set cluster.key_file={file},")
    say(f'or set CTRPS_JOB_KEY="$(cat {file})" for each process')
