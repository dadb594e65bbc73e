"""Progress for people: plain lines for files and pipes, a live one for terminals, or none."""

import io
import threading
from pathlib import Path

import pytest

from ctrps.runtime import dashboard
from ctrps.runtime.dashboard import ProgressLine

FIGURES = {
    "pass": 0,
    "step": 5,
    "steps": 10,
    "rows": 5120,
    "pass_rows": 10240,
    "logloss": 0.51,
    "auc": 0.7,
    "rows_per_s": 250000.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch) -> dict[str, float]:
    times = {"now": 100.0}
    monkeypatch.setattr(dashboard.time, "monotonic", lambda: times["now"])
    return times


def shown(stream: io.StringIO, mode: str, *figures: dict) -> str:
    with ProgressLine(stream, mode) as line:
        for one in figures:
            line.show(one)
    return stream.getvalue()


def test_a_pipe_gets_plain_lines():
    (line,) = shown(io.StringIO(), "auto", FIGURES).splitlines()
    assert line.endswith(
        "pass 1  50 %  step 5/10  5,120 rows  250,000 rows/s  logloss 0.5100  auc 0.7000"
    )
    assert "\x1b" not in line


def test_plain_lines_come_every_five_seconds_and_at_the_end(clock):
    stream = io.StringIO()
    with ProgressLine(stream, "plain") as line:
        for step, now in ((1, 100.0), (2, 104.9), (3, 105.0), (4, 106.0), (10, 107.0)):
            clock["now"] = now
            line.show(FIGURES | {"step": step})
    steps = [line.split("step ")[1].split("/")[0] for line in stream.getvalue().splitlines()]
    assert steps == ["1", "3", "10"]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_none_is_nothing(stream):
    assert shown(stream(), "none", FIGURES, FIGURES | {"step": 10}) == ""


def test_lines_for_people_are_told_in_every_mode():
    for mode in ("auto", "plain", "none"):
        stream = io.StringIO()
        with ProgressLine(stream, mode) as line:
            line.tell("worker 1 was killed")
        assert stream.getvalue() == "worker 1 was killed\n"


def test_a_terminal_gets_one_live_line_for_each_pass(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with ProgressLine(stream, "auto") as line:
        line.show(FIGURES)
        line.tell("a line [for] people")
        line.show(FIGURES | {"step": 10, "rows": 10240})
        line.show(FIGURES | {"pass": 1, "step": 1, "rows": 1024})
    text = stream.getvalue()
    assert "\x1b[" in text
    assert "pass 1  100 %" in text and "pass 2  10 %" in text
    assert "a line [for] people\n" in text


def test_plain_on_a_terminal_is_plain(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in shown(Terminal(), "plain", FIGURES)


def test_a_pass_without_figures_yet_has_a_line():
    assert "0 %" in shown(io.StringIO(), "plain", FIGURES | {"rows": 0, "pass_rows": 0})


def test_compilation_is_told_once():
    for mode, times in (("auto", 1), ("plain", 1), ("none", 0)):
        stream = io.StringIO()
        line = ProgressLine(stream, mode)
        line.compiling()
        line.compiling()
        assert stream.getvalue().count("compiling kernels, once for this machine") == times


def test_a_live_line_has_no_thread_before_it_shows_something(monkeypatch):
    """``launch`` forks until then."""
    monkeypatch.setenv("TERM", "xterm")
    with ProgressLine(Terminal(), "auto") as line:
        line.tell("starting")
        before = threading.active_count()
        line.show(FIGURES)
        assert threading.active_count() == before + 1


def test_conversion_is_told_every_few_seconds(monkeypatch):
    now = iter([100.0, 101.0, 102.5])
    monkeypatch.setattr(dashboard.time, "monotonic", lambda: next(now))
    stream = io.StringIO()
    line = ProgressLine(stream, "plain")
    for rows in (10, 20, 30):
        line.converting(Path("a/train.svm"), rows, rows, 40)
    told = [text.partition(" ")[2] for text in stream.getvalue().splitlines()]
    assert told == ["converting train.svm: 10 rows, 25 %", "converting train.svm: 30 rows, 75 %"]
