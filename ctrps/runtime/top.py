"""A run in a terminal: its state in words, once or live."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from ctrps.runtime.dashboard import words
from ctrps.runtime.observe import Observed

if TYPE_CHECKING:
    from rich.console import RenderableType

SIGNS = {
    "healthy": "●",
    "starting": "○",
    "degraded": "▲",
    "unreachable": "✕",
    "finished": "■",
    "stopped": "□",
}
COLUMNS = ("role", "rank", "state", "heard", "rows/s", "busy", "cpu", "memory", "keys", "waits for")
EVERY_S = 1.0
PLAIN_EVERY_S = 5.0


def lines(seen: Observed) -> Iterator[str]:
    """What ``ctrps status`` prints.

    Examples
    --------
    >>> for line in lines(Observed("unreachable", url="http://127.0.0.1:9/", why="no answer")):
    ...     print(line)
    run           ✕ unreachable; http://127.0.0.1:9/
    reason        no answer
    """
    state = seen.state
    head = [f"{state['job']} in {state['run']}"] if state else []
    doing = f", {state['phase']}" if state and seen.url else ""
    head += [f"{SIGNS[seen.health]} {seen.health}{doing}"] + ([seen.url] if seen.url else [])
    yield f"run           {'; '.join(head)}"
    if seen.why:
        yield f"reason        {seen.why}"
    if seen.url:
        for problem in state.get("problems", []):
            yield f"problem       {problem}"
        if state.get("waits_for"):
            yield f"waits for     {state['waits_for']}"
    if state.get("pass_rows"):
        left = f"; {duration(state['eta_s'])} to go" if seen.url and state["eta_s"] else ""
        yield f"progress      {words({'logloss': None, 'auc': None, **_figures(state)})}{left}"
    yield from _quality(state, seen.summary)
    if state.get("nodes") and seen.url:
        yield from table(state["nodes"])


def _figures(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "rows_per_s": state["rows_per_s"] or 0.0}


def _quality(state: dict[str, Any], summary: dict[str, Any]) -> Iterator[str]:
    test = summary.get("test") or state.get("test")
    if test and test.get("auc") is not None:
        yield f"test          AUC {test['auc']:.6f}, logloss {test['logloss']:.6f}"
    if state.get("staleness"):
        spread = state["staleness"]
        yield f"staleness     mean {spread['mean']:.1f}, 99th percentile {spread['p99']} updates"
    if state.get("keys"):
        saved = state.get("checkpoint")
        kept = f"; checkpoint {saved['number']}, {duration(saved['age_s'])} old" if saved else ""
        yield f"model         {state['keys']:,} keys{kept}"


def table(nodes: list[dict[str, Any]]) -> Iterator[str]:
    """The nodes as lines of equal columns."""
    rows = [COLUMNS, *map(cells, nodes)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def cells(node: dict[str, Any]) -> tuple[str, ...]:
    """A node as words, one for each of ``COLUMNS``."""

    def said(value: float | None, text: str) -> str:
        return "-" if value is None else text.format(value)

    memory = node["rss_bytes"]
    return (
        node["role"],
        str(node["rank"]),
        node["state"],
        "-" if node["node"] < 0 else f"{node['heard_s']:.1f} s",
        said(node["rows_per_s"] if node["role"] == "worker" else None, "{:,.0f}"),
        said(node["busy"], "{:.0%}"),
        said(node["cpu"], "{:.2f}"),
        said(memory and memory / 2**20, "{:,.0f} MiB"),
        said(node["keys"], "{:,.0f}"),
        node["waits_for"],
    )


def duration(seconds: float) -> str:
    """Seconds in words.

    Examples
    --------
    >>> duration(3.14), duration(75), duration(3725)
    ('3.1 s', '1:15', '1:02:05')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    clock = f"{hours}:{minutes:02}" if hours else str(minutes)
    return f"{clock}:{int(seconds) % 60:02}"


class Keys:
    """Keys pressed on a terminal, one by one, without waiting for the end of a line."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    @contextmanager
    def listening(self) -> Iterator["Keys"]:
        import termios
        import tty

        descriptor = self._stream.fileno()
        before = termios.tcgetattr(descriptor)
        try:
            tty.setcbreak(descriptor)
            yield self
        finally:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    def wait(self, seconds: float) -> str:
        """The next key within that time, or nothing; ``q`` where none can come any more."""
        ready, _, _ = select.select([self._stream], [], [], seconds)
        if not ready:
            return ""
        return os.read(self._stream.fileno(), 1).decode("ascii", "replace") or "q"


def watch(look: Callable[[], Observed], out: TextIO, keys: TextIO) -> Observed:
    """Show a run until it ends or ``q`` is pressed: live on a terminal, else as lines.

    Returns
    -------
    Observed
        What was seen last.
    """
    if out.isatty() and keys.isatty():
        return _live(look, out, Keys(keys))
    return _plain(look, out)


def _plain(look: Callable[[], Observed], out: TextIO) -> Observed:
    said = None
    while True:
        seen = look()
        line = next(iter(lines(seen)))
        if seen.state.get("pass_rows") and seen.url:
            line = f"{seen.health}  {words(_figures(seen.state))}"
        out.write(f"{time.strftime('%H:%M:%S')} {line}\n" if line != said else "")
        out.flush()
        said = line
        if over(seen):
            return seen
        _pause(seen)


def _pause(seen: Observed) -> None:
    time.sleep(EVERY_S if seen.health == "starting" else PLAIN_EVERY_S)


def _live(look: Callable[[], Observed], out: TextIO, keys: Keys) -> Observed:
    from rich.console import Console
    from rich.live import Live

    seen = look()
    console = Console(file=out)
    with (
        keys.listening(),
        Live(_screen(seen), console=console, screen=True, auto_refresh=False) as live,
    ):
        while not over(seen) and keys.wait(EVERY_S).lower() not in ("q", "\x1b"):
            seen = look()
            live.update(_screen(seen), refresh=True)
    return seen


def over(seen: Observed) -> bool:
    """Whether there is nothing more to come."""
    return seen.health in ("finished", "stopped", "unreachable")


def _screen(seen: Observed) -> "RenderableType":
    """The whole screen: the lines of ``status``, the nodes as a table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    nodes = seen.state.get("nodes", [])
    bare = Observed(seen.health, {**seen.state, "nodes": []}, seen.url, seen.summary, seen.why)
    colour = "green" if seen.health == "healthy" else "yellow" if seen.well else "red"
    text = Text("\n".join(lines(bare)))
    text.highlight_words([f"{SIGNS[seen.health]} {seen.health}"], style=f"bold {colour}")
    shown = Table(*COLUMNS, box=None, pad_edge=False, header_style="bold")
    for node in nodes:
        shown.add_row(*map(Text, cells(node)))
    return Group(text, Text(), shown, Text("\nq quits", style="dim"))
