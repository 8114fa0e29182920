"""A trade-off as points: what each setting costs against what it keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from everthread.lab.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, step_of

STYLES = ("a", "b", "c", "d")
ROOM = 0.06
"""Space around the outermost points, as a part of what they span."""


@dataclass(frozen=True, slots=True)
class Dot:
    name: str
    """Stands beside it."""
    told: str
    x: float
    y: float
    group: str
    """Dots of one group have one colour."""
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Scatter:
    id: str
    title: str
    told: str
    """What a reader who does not see it must know."""
    across: str
    up: str
    dots: Sequence[Dot]
    front: Sequence[tuple[float, float]] = ()
    """Points that nothing beats in both directions, joined by a line."""


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    length: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, length: float) -> _Axis:
        low, high = min(values), max(values)
        room = (high - low) * ROOM or abs(high) * ROOM or 1.0
        return cls(max(low - room, 0.0), high + room, start, length)

    def at(self, value: float) -> float:
        return self.start + self.length * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        step = step_of(self.high - self.low)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, math.floor(self.high / step) + 1)]


def scatter(chart: Scatter) -> str:
    """The points and their legend."""
    across = _Axis.of([dot.x for dot in chart.dots], LEFT, WIDTH - LEFT - RIGHT)
    up = _Axis.of([dot.y for dot in chart.dots], HEIGHT - BOTTOM, -(HEIGHT - TOP - BOTTOM))
    styles = {
        group: STYLES[at % len(STYLES)] for at, group in enumerate(dict.fromkeys(dot.group for dot in chart.dots))
    }
    name, told = f"{chart.id}-title", f"{chart.id}-told"
    line = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in chart.front)
    opening = f'<svg id="{chart.id}" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    parts = [
        f'{opening} aria-labelledby="{name} {told}">',
        f'<title id="{name}">{escape(chart.title)}</title><desc id="{told}">{escape(chart.told)}</desc>',
        *_grid(chart, across, up),
        f'<polyline class="front" points="{line}"/>' if len(chart.front) > 1 else "",
        *(_dot(dot, across.at(dot.x), up.at(dot.y), styles[dot.group]) for dot in chart.dots),
        *(_names(named, *place) for place, named in _places(chart, across, up).items()),
        "</svg>",
    ]
    keys = "".join(
        f'<li><span class="key {style}" aria-hidden="true"></span>{escape(group)}</li>'
        for group, style in styles.items()
    )
    return f'<figure>{"".join(parts)}<figcaption><ul class="legend">{keys}</ul></figcaption></figure>'


def _grid(chart: Scatter, across: _Axis, up: _Axis) -> list[str]:
    parts, end = [], WIDTH - RIGHT
    for level in up.ticks():
        y = f"{up.at(level):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y}" dy="4">{level:g} %</text>')
    step = step_of(across.high - across.low)
    parts += [
        f'<text class="tick below" x="{across.at(level):.1f}" y="{HEIGHT - 16}">{_dollars(level, step)}</text>'
        for level in across.ticks()
    ]
    return [
        *parts,
        f'<text class="tick below" x="{(LEFT + end) / 2}" y="{HEIGHT - 2}">{escape(chart.across)}</text>',
        f'<text class="named" x="{LEFT}" y="{TOP - 6}">{escape(chart.up)}</text>',
    ]


def _dot(dot: Dot, x: float, y: float, style: str) -> str:
    ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="9"/>' if dot.chosen else ""
    return (
        f'<g class="{style}"><title>{escape(dot.told)}</title>{ring}'
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/></g>'
    )


def _places(chart: Scatter, across: _Axis, up: _Axis) -> dict[tuple[int, int], list[str]]:
    """Names by where they stand: those of dots upon each other are written in a row."""
    found: dict[tuple[int, int], list[str]] = {}
    for dot in chart.dots:
        found.setdefault((round(across.at(dot.x)), round(up.at(dot.y))), []).append(dot.name)
    return found


def _names(named: Sequence[str], x: int, y: int) -> str:
    late = x > WIDTH - RIGHT - 80  # there is no room at its right
    style, beside = ("tick", x - 11) if late else ("named", x + 11)
    return f'<text class="{style}" x="{beside}" y="{y}" dy="4">{escape(", ".join(named))}</text>'


def _dollars(level: float, step: float) -> str:
    """With as many digits as tell one tick from the next."""
    digits = next((some for some in range(8) if math.isclose(round(step, some), step)), 8)
    return f"${level:,.{digits}f}"
