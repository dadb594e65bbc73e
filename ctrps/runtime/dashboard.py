"""Progress of a run for a person: one live line on a terminal, plain lines elsewhere; its account.

Figures come as the lines of ``metrics.jsonl``, and at the end as the summary.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PLAIN_EVERY_S = 5.0
CONVERTING_EVERY_S = 2.0


class ProgressLine:
    """Shows training as it goes; a context manager.

    Parameters
    ----------
    stream
        Where to write: standard error.
    mode
        ``auto`` (live on a terminal, plain elsewhere), ``plain``, or ``none``.
    """

    def __init__(self, stream: TextIO, mode: str = "auto"):
        self._stream = stream
        live = mode == "auto" and stream.isatty()
        self._plain = mode == "plain" or (mode == "auto" and not live)
        self._bar = _bar(stream) if live else None
        self._tasks: dict[int, TaskID] = {}
        self._said = -PLAIN_EVERY_S
        self._compiling = False

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def tell(self, text: str) -> None:
        """A line for people, above the live one."""
        if self._bar:
            self._bar.console.out(text, highlight=False)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def converting(self, path: Path, rows: int, done_bytes: int, all_bytes: int) -> None:
        """Text is becoming shards: said every few seconds, as it may take minutes."""
        now = time.monotonic()
        if now - self._said >= CONVERTING_EVERY_S and (self._plain or self._bar):
            self._said = now
            share = 100 * done_bytes / max(all_bytes, 1)
            self.tell(f"{_clock()} converting {path.name}: {rows:,} rows, {share:.0f} %")

    def compiling(self) -> None:
        """Kernels are being compiled: said once."""
        if not self._compiling and (self._plain or self._bar):
            self._compiling = True
            self.tell(f"{_clock()} compiling kernels, once for this machine: ten seconds or more")

    def show(self, figures: dict[str, Any]) -> None:
        """The newest figures of the run."""
        if self._bar:
            self._show_live(figures)
        elif self._plain:
            now, last = time.monotonic(), figures["step"] == figures["steps"]
            if last or now - self._said >= PLAIN_EVERY_S:
                self._said = now
                self.tell(f"{_clock()} {words(figures)}")

    def _show_live(self, figures: dict[str, Any]) -> None:
        assert self._bar is not None
        # No sooner: it has a thread, and where there is one, `launch` cannot fork.
        self._bar.start()
        number = int(figures["pass"])
        if number not in self._tasks:
            self._tasks[number] = self._bar.add_task("", total=figures["pass_rows"])
        text = words(figures)
        self._bar.update(self._tasks[number], completed=figures["rows"], description=text)


def words(figures: dict[str, Any]) -> str:
    """One line: pass, share, rows, rows per second, progressive loss.

    Examples
    --------
    >>> words({"pass": 0, "step": 5, "steps": 10, "rows": 5120, "pass_rows": 10240,
    ...        "logloss": 0.51, "auc": 0.7, "rows_per_s": 250000.0})
    'pass 1  50 %  step 5/10  5,120 rows  250,000 rows/s  logloss 0.5100  auc 0.7000'
    """
    scores = "".join(
        f"  {name} {figures[name]:.4f}" for name in ("logloss", "auc") if figures[name] is not None
    )
    share = 100 * figures["rows"] / max(figures["pass_rows"], 1)
    return (
        f"pass {figures['pass'] + 1}  {share:.0f} %  step {figures['step']}/{figures['steps']}  "
        f"{figures['rows']:,} rows  {figures['rows_per_s']:,.0f} rows/s{scores}"
    )


def account(summary: dict[str, Any]) -> Iterator[str]:
    """What a run has done and what that took: the lines before those of the test rows.

    Examples
    --------
    >>> for line in account({"rows": 9000, "train_s": 2.0, "rows_per_s": 4500.0, "steps": 9,
    ...     "wall_s": 3.5, "cpu_s": 3.0, "rows_per_cpu_s": 3000.0, "convert_s": 0.5,
    ...     "wire_bytes_per_row": 120.0, "time": {"worker": {"compute": 0.6, "wait": 0.4}},
    ...     "phases_s": {"training": 2.0, "evaluating": 0.2, "ended": 0.0},
    ...     "model": "run/model", "keys": 70, "model_digest": "sha256:00"}):
    ...     print(line)
    trained       9,000 rows in 2.0 s (4,500 rows/s), 9 steps; 3.5 s in all
    cost          3.0 s of processors, 3,000 rows/s per core
    worker        compute 60 %, wait 40 %; 120 bytes/row
    time          converting 0.5 s, training 2.0 s, evaluating 0.2 s, other 0.8 s
    model         run/model (70 keys)
    digest        sha256:00
    """
    yield (
        f"trained       {summary['rows']:,} rows in {summary['train_s']:.1f} s "
        f"({summary['rows_per_s']:,.0f} rows/s), {summary['steps']:,} steps; "
        f"{summary['wall_s']:.1f} s in all"
    )
    if "cpu_s" in summary:
        rate = summary["rows_per_cpu_s"]
        yield f"cost          {summary['cpu_s']:.1f} s of processors, {rate:,.0f} rows/s per core"
    for role, spent in summary.get("time", {}).items():
        parts = ", ".join(f"{name} {100 * share:.0f} %" for name, share in spent.items())
        wire = f"; {summary['wire_bytes_per_row']:,.0f} bytes/row" if role == "worker" else ""
        yield f"{role:13} {parts}{wire}"
    if summary.get("staleness"):
        from ctrps.ps import late

        yield f"staleness     {late.words(summary)}"
    phases = {"converting": summary["convert_s"], **summary["phases_s"]}
    phases["other"] = summary["wall_s"] - sum(phases.values())
    spent = ", ".join(f"{name} {s:.1f} s" for name, s in phases.items() if s >= 0.05)
    yield f"time          {spent}"
    yield f"model         {summary['model']} ({summary['keys']:,} keys)"
    yield f"digest        {summary['model_digest']}"


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _bar(stream: TextIO) -> "Progress":
    # Only terminals need it, and its import takes a while.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=stream)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TimeRemainingColumn())
    return Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False)
