"""The commands ``ctrps config``: show the settings of a job, describe and convert job files."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ctrps.completion import one_of_these
from ctrps.screen import ConfigFile, Json, Overrides, load, one_of, print_json, reported

config_app = typer.Typer(help="Look at the settings of a job.", no_args_is_help=True)


@config_app.command("show")
@reported
def config_show(
    config: ConfigFile = None,
    overrides: Overrides = None,
    origin: Annotated[bool, Option("--origin", help="Say where each value comes from.")] = False,
    as_json: Json = False,
) -> None:
    """Print all settings of a job, as they are after files, environment and --set.

    Example: ctrps config show -c job.yaml --origin
    """
    job = load(config, overrides)
    if as_json:
        print_json(job.model_dump(mode="json"))
    else:
        print(job.dump_yaml(origins=origin), end="")


@config_app.command("schema")
@reported
def config_schema(
    pretty: Annotated[bool, Option("--pretty/--compact", help="Over many lines, or one.")] = True,
) -> None:
    """Print the JSON Schema of job files: editors complete and check YAML with it.

    In an editor with a YAML language server, the first line of a job file names it:
    `# yaml-language-server: $schema=ctrps.schema.json`

    Example: ctrps config schema --compact
    """
    from ctrps.configtext import schema

    print(json.dumps(schema(), indent=1 if pretty else None))


@config_app.command("convert")
@reported
def config_convert(
    job: Annotated[Path, Argument(metavar="JOB", help="Job file, yaml or ini.")],
    to: Annotated[
        str,
        Option(
            "--to",
            metavar="yaml|ini",
            help="Notation to write.",
            autocompletion=one_of_these("yaml", "ini"),
        ),
    ] = "yaml",
) -> None:
    """Print a job file in the other notation; one of the old system as one of ctrps.

    Values stay as they are written, comments are lost. Paths are relative to the file that states
    them: keep the new one in the same folder. Keys of the old system that have no effect are named
    on stderr.

    Example: ctrps config convert fnn.ini --to yaml
    """
    from ctrps.configtext import NOTATIONS, converted

    one_of("--to", to, NOTATIONS)
    print(converted(job, to), end="")
