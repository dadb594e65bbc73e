"""Progress of a run for a person: one live line on a terminal, plain lines elsewhere.

Figures come as the lines of ``metrics.jsonl``. Nothing is computed here.
"""

import time
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


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _bar(stream: TextIO) -> "Progress":
    # Only terminals need it, and its import takes a while.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=stream)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TimeRemainingColumn())
    return Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False)
