"""Plots as SVG inside a page: lines, points with whiskers, steps and axes, coloured by its style.

Colours and fonts are classes, so that a page shows them light or dark without a script. What is
plotted is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 320
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 44

STYLE = """
svg{display:block;width:100%;height:auto;font:11px system-ui,sans-serif}
svg text{fill:var(--soft)}
svg .grid{stroke:var(--line);stroke-width:1}
svg .frame{fill:none;stroke:var(--line)}
svg .none{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 4;fill:none}
svg .one{stroke:var(--one);fill:none;stroke-width:2}
svg .two{stroke:var(--two);fill:none;stroke-width:2}
svg .area{stroke:none;opacity:.18}
svg .area.one,svg .dot.one,svg .key.one{fill:var(--one)}
svg .area.two,svg .dot.two,svg .key.two{fill:var(--two)}
svg .dot{stroke:var(--paper);stroke-width:1}
svg .whisker{stroke-width:1.2;opacity:.55}
"""
"""Style of plots; a page defines --paper, --line, --soft, --one and --two."""

Points = Iterable[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """A range, its title, and the places of its ticks with their texts."""

    title: str
    low: float
    high: float
    ticks: list[tuple[float, str]]

    def share(self, value: float) -> float:
        """Where a value lies: 0 at ``low``, 1 at ``high``; no further."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def axis(title: str, low: float, high: float, shown: Callable[[float], str] | None = None) -> Axis:
    """An axis with ticks at round numbers.

    Examples
    --------
    >>> axis("AUC", 0.0, 0.18).ticks
    [(0.0, '0'), (0.05, '0.05'), (0.1, '0.1'), (0.15, '0.15')]
    """
    high = high if high > low else low + 1.0
    step = next(
        size * 10.0**power
        for power in range(math.floor(math.log10(high - low)) - 1, 99)
        for size in (1, 2, 5)
        if (high - low) / (size * 10.0**power) <= 6
    )
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    places = [round(number * step, 12) for number in numbers]
    return Axis(title, low, high, [(place, (shown or "{:g}".format)(place)) for place in places])


class Plot:
    """A plot under construction.

    Parameters
    ----------
    name
        What it shows, for those who do not see it.
    x, y
    low_keys
        Explain lines at the bottom right, not at the top left.
    """

    def __init__(self, name: str, x: Axis, y: Axis, *, low_keys: bool = False):
        self._name, self._x, self._y, self._low_keys = name, x, y, low_keys
        self._parts: list[str] = []
        self._keys: list[tuple[str, str]] = []

    def line(self, points: Points, style: str, label: str = "") -> None:
        """Draw a line; with a label it is explained."""
        self._parts.append(f'<polyline class="{style}" points="{self._places(points)}"/>')
        if label:
            self._keys.append((style, label))

    def steps(
        self, edges: Sequence[float], heights: Sequence[float], style: str, label: str
    ) -> None:
        """Draw bars from 0 side by side as one outline, filled."""
        outline = [(edges[0], 0.0)]
        for left, right, height in zip(edges[:-1], edges[1:], heights, strict=True):
            outline += [(left, height), (right, height)]
        outline.append((edges[-1], 0.0))
        places = self._places(outline)
        self._parts.append(f'<polygon class="area {style}" points="{places}"/>')
        self.line(outline, style, label)

    def points(self, points: Iterable[tuple[float, float, float, float]], style: str) -> None:
        """Draw x, y and the ends of an interval of y."""
        for x, y, low, high in points:
            across, ends = self._across(x), (self._up(low), self._up(high))
            self._parts.append(
                f'<line class="whisker {style}" x1="{across:.1f}" x2="{across:.1f}" '
                f'y1="{ends[0]:.1f}" y2="{ends[1]:.1f}"/>'
                f'<circle class="dot {style}" cx="{across:.1f}" cy="{self._up(y):.1f}" r="3.5"/>'
            )

    def svg(self) -> str:
        """The plot as an element."""
        inner = "".join([*self._grid(), *self._parts, *self._legend()])
        head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self._name)}">'
        return f"{head}{inner}</svg>"

    def _across(self, x: float) -> float:
        return LEFT + self._x.share(x) * (WIDTH - LEFT - RIGHT)

    def _up(self, y: float) -> float:
        return HEIGHT - BOTTOM - self._y.share(y) * (HEIGHT - TOP - BOTTOM)

    def _places(self, points: Points) -> str:
        return " ".join(f"{self._across(x):.1f},{self._up(y):.1f}" for x, y in points)

    def _grid(self) -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        found = []
        for place, text in self._x.ticks:
            x = f"{self._across(place):.1f}"
            found.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>')
            found.append(_text(x, bottom + 16, "middle", text))
        for place, text in self._y.ticks:
            y = self._up(place)
            found.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            found.append(_text(LEFT - 6, f"{y + 4:.1f}", "end", text))
        found.append(_text((LEFT + right) / 2, HEIGHT - 8, "middle", self._x.title))
        turned = f'<g transform="rotate(-90 12 {(TOP + bottom) / 2})">'
        found.append(turned + _text(12, (TOP + bottom) / 2, "middle", self._y.title) + "</g>")
        return found

    def _legend(self) -> list[str]:
        keys = self._keys if len(self._keys) > 1 else []
        x = WIDTH - RIGHT - 96 if self._low_keys else LEFT + 8
        y = HEIGHT - BOTTOM - 16 * len(keys) if self._low_keys else TOP + 12
        found = []
        for number, (style, label) in enumerate(keys):
            top = y + 16 * number
            found.append(f'<rect class="key {style}" x="{x}" y="{top - 8}" width="10" height="8"/>')
            found.append(_text(x + 16, top, "start", label))
        return found


def _text(x: object, y: object, anchor: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def interval_svg(low: float, middle: float, high: float, ends: tuple[float, float]) -> str:
    """A small interval for a cell of a table, in the range of ``ends``."""
    width, scale = 110, max(ends[1] - ends[0], 1e-9)
    x = [4 + (value - ends[0]) / scale * (width - 8) for value in (low, middle, high)]
    return (
        f'<svg class="small" viewBox="0 0 {width} 14" aria-hidden="true">'
        f'<line class="one" x1="{x[0]:.1f}" x2="{x[2]:.1f}" y1="7" y2="7"/>'
        f'<circle class="dot one" cx="{x[1]:.1f}" cy="7" r="3.5"/></svg>'
    )
