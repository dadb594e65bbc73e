"""The command ``ctrps doctor``: can this machine run jobs, and does it reach another one?"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from ctrps.cli_keys import guard_of
from ctrps.errors import ClusterError
from ctrps.screen import ConfigFile, Json, load, print_json, reported, say

if TYPE_CHECKING:
    from ctrps.runtime.doctor import Finding

doctor_app = typer.Typer()

COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


@doctor_app.command()
@reported
def doctor(
    connect: Annotated[
        str | None,
        Option("--connect", metavar="HOST:PORT", help="Examine the way to a scheduler, too."),
    ] = None,
    listen: Annotated[
        str | None,
        Option("--listen", metavar="HOST:PORT", help="Wait for a --connect of another machine."),
    ] = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Look at this machine: versions, processor, memory, disk, limits, names, kernel cache.

    What is wrong comes first, each with what to do. With --connect, it tries to reach a scheduler
    as a node would: name, connection, job key (of -c JOB or CTRPS_JOB_KEY), version; a running job
    does not notice. With --listen on one machine and --connect on the other, both directions and
    the clocks are tested; no job is needed.

    Exit status: 0 if nothing failed (warnings may be there), 4 if something did.

    Example: ctrps doctor --connect 127.0.0.1:9000
    """
    from ctrps.runtime.doctor import FAIL, examine, worst_first

    job = load(config, None)
    findings = examine(job.output.dir if config else Path.cwd())
    if listen or connect:
        from ctrps.runtime import reach

        key = guard_of(job).key
        findings += reach.listen(listen, say) if listen else []
        findings += reach.connect(connect, key) if connect else []
    findings = worst_first(findings)
    failed = [finding for finding in findings if finding.level == FAIL]
    if as_json:
        print_json({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    if failed:
        first = failed[0]
        what = f"{first.name}: {first.what}"
        raise ClusterError(what, hint=first.hint or None, id="E-DOCTOR")


def _show(findings: "list[Finding]") -> None:
    for finding in findings:
        mark = typer.style(f"{finding.level:5}", fg=COLOURS[finding.level])
        plain = False if "NO_COLOR" in os.environ else None  # None: colours on a terminal only
        typer.echo(f"{mark} {finding.name:13} {finding.what}", color=plain)
        if finding.hint:
            typer.echo(f"{'':20}{finding.hint}")
