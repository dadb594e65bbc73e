"""What all commands have in common: options, the job, messages, and errors as exit statuses.

The commands themselves are in ``ctrps.cli``, ``ctrps.cli_data`` and ``ctrps.cli_check``.
"""

import errno
import functools
import gc
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Option

from ctrps import completion
from ctrps.errors import ConfigError, CtrpsError, CtrpsWarning, DataError

if TYPE_CHECKING:
    from ctrps.config import JobConfig

ConfigFile = Annotated[
    Path | None, Option("--config", "-c", metavar="JOB", help="Job file, yaml or ini.")
]
Overrides = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override one setting. Repeatable.",
        autocompletion=completion.setting,
    ),
]
Json = Annotated[bool, Option("--json", help="Print exactly one JSON object.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Throw away the run that output.dir holds.")]
DataFiles = Annotated[
    list[Path], Option("--data", metavar="F", help="Rows. Repeatable; patterns; - for stdin.")
]
Format = Annotated[str, Option("--format", metavar="F", help="Format of the files (data.format).")]
MaxBad = Annotated[
    float, Option("--max-bad", min=0, max=1, help="Share of rows that may be unreadable.")
]

CANNOT_WRITE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

Command = TypeVar("Command", bound=Callable[..., None])


def reported(command: Command) -> Command:
    """Turn errors of a command into one message and an exit status, and say its warnings."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", CtrpsWarning)
                warnings.showwarning = functools.partial(_say_warning, warnings.showwarning)
                command(*args, **kwargs)
            sys.stdout.flush()
        except CtrpsError as error:
            say(f"error: {error.told}")
            raise typer.Exit(error.exit_status) from None
        except (typer.Exit, KeyboardInterrupt):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
                raise typer.Exit(without_output(error)) from None
            if os.environ.get("CTRPS_DEBUG"):
                traceback.print_exc()
            known = _unforeseen(error)
            say(f"error: {known.told}")
            raise typer.Exit(known.exit_status) from None

    return run  # type: ignore[return-value]


def _unforeseen(error: Exception) -> CtrpsError:
    """What to say of an exception that is none of ours."""
    if isinstance(error, RuntimeError) and "no locator available" in str(error):
        what = "there is no folder that compiled kernels could be kept in"
        hint = "set NUMBA_CACHE_DIR to one that may be written to"
        return ConfigError(what, hint=hint, id="E-KERNEL-CACHE")
    what = f"internal: {type(error).__name__}: {error}"
    return CtrpsError(what, hint="set CTRPS_DEBUG=1 to see where")


def _say_warning(
    otherwise: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    *place: Any,
) -> None:
    if issubclass(category, CtrpsWarning):
        say(f"warning: {message}")
    else:
        otherwise(message, category, *place)


def without_output(error: OSError) -> int:
    """The status of a command whose output has nowhere to go; the rest of it is dropped."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        # The reader has left (`| head`): that is no error of ours.
        return 141
    hint = "make room, or write it elsewhere"
    lost = DataError(f"cannot write the output: {error.strerror}", hint=hint, id="E-DISK")
    say(f"error: {lost.told}")
    return lost.exit_status


def say(text: str) -> None:
    """A line on standard error; letters that it cannot show are replaced, never fatal."""
    encoding = sys.stderr.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(shown, file=sys.stderr, flush=True)
    except BrokenPipeError:  # nobody reads on; the status still tells how it ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class RowsSaid:
    """Lines of progress on standard error, of each stage one a second: its rows, rate, time left.

    Parameters
    ----------
    clock
        Seconds.

    Examples
    --------
    >>> times, lines = iter([0.0, 0.5, 4.0, 8.0]), []
    >>> said = RowsSaid(lambda: next(times), lines.append)
    >>> for rows, share in ((1000, 0.1), (1500, 0.15), (5000, 0.5), (10_000, 1.0)):
    ...     said("sample", rows, share)
    >>> [line.partition(" ")[2] for line in lines]  # doctest: +NORMALIZE_WHITESPACE
    ['sample: 1,000 rows, 10 %', 'sample: 5,000 rows, 50 %, 1,000 rows/s, 5 s left',
     'sample: 10,000 rows, 100 %, 1,125 rows/s']
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        show: Callable[[str], None] = say,
    ):
        self._clock, self._show = clock, show
        self._stage, self._began, self._first, self._said = "", 0.0, (0, 0.0), 0.0

    def __call__(self, stage: str, rows: int, share: float) -> None:
        """Tell that ``rows`` of a stage are done, the ``share`` of it; 0 if that is not known."""
        now = self._clock()
        if stage != self._stage:
            self._stage, self._began, self._first = stage, now, (rows, share)
        elif now - self._said < 1.0:
            return
        self._said = now
        self._show(f"{time.strftime('%H:%M:%S')} {stage}: {rows:,} rows{self._rest(rows, share)}")

    def _rest(self, rows: int, share: float) -> str:
        """Share, rate and time left, as far as they can be told."""
        spent_s, (first_rows, first_share) = self._said - self._began, self._first
        text = f", {share:.0%}".replace("%", " %") if share else ""
        if spent_s > 0:
            text += f", {(rows - first_rows) / spent_s:,.0f} rows/s"
        if spent_s > 0 and first_share < share < 1:
            text += f", {spent_s * (1 - share) / (share - first_share):,.0f} s left"
        return text


@contextmanager
def loading() -> Iterator[None]:
    """Import modules without looking for garbage, a fifth of the time: what they make stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load(
    config: Path | None, overrides: list[str] | None, more: tuple[str, ...] = ()
) -> "JobConfig":
    """The job of a command: its file, the environment, ``--set``, and options that are settings."""
    from ctrps.config import load_job

    return load_job(config, [*(overrides or []), *more], os.environ)


def status_of(command: Callable[[list[str]], object], arguments: list[str]) -> int:
    """Run a command line in this process; returns its exit status."""
    try:
        command(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def print_json(value: object) -> None:
    """The one JSON object that a command prints."""
    print(json.dumps(value))


def one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    """Raise ConfigError unless an option has one of its values."""
    if value is not None and value not in allowed:
        choices = " or ".join(allowed)
        raise ConfigError(
            f"{value!r} is not possible", where=option, hint=f"use {choices}", id="E-CONFIG-OPTION"
        )
