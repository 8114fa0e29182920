"""Charts as SVG, drawn here: they need no script and are read out by their titles and descriptions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from markupsafe import Markup

WIDTH, HEIGHT = 960, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 18, 34


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    style: str
    """The class that gives the colour: `a` to `d`."""
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Limit:
    """A level that is not to be passed."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened before a call."""

    at: int
    text: str
    style: str = "mark"


@dataclass(frozen=True, slots=True)
class Chart:
    id: str
    title: str
    description: str
    """What a reader who does not see it must know."""
    unit: str
    lines: Sequence[Line]
    limits: Sequence[Limit] = ()
    marks: Sequence[Mark] = ()
    stacked: bool = False
    """The values stand upon each other, as areas."""
    axis: str = "call"
    """What one step to the right is."""
    names: Sequence[str] = ()
    """Of the steps; without any they are numbered."""
    count: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", max((len(line.values) for line in self.lines), default=0))

    def name(self, at: int) -> str:
        return self.names[at] if at < len(self.names) else f"{at + 1:,}"

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / max(self.count - 1, 1)


@dataclass(frozen=True, slots=True)
class Scale:
    """From a value to its height."""

    step: float
    top: float

    @classmethod
    def up_to(cls, most: float) -> Scale:
        step = step_of(most)
        return cls(step, step * math.ceil(most / step))

    def y(self, value: float) -> str:
        return f"{TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self.top):.1f}"


def draw(chart: Chart) -> Markup:
    """The chart, its legend and its values for the script that shows them."""
    tops = _tops(chart)
    scale = Scale.up_to(max([*(value for top in tops for value in top), *(lim.value for lim in chart.limits), 1e-9]))
    name, description = f"{chart.id}-title", f"{chart.id}-told"
    opening = (
        f'<svg id="{chart.id}" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" '
        f'aria-labelledby="{name} {description}" data-left="{LEFT}" data-right="{RIGHT}" data-count="{chart.count}">'
    )
    parts = [
        opening,
        f'<title id="{name}">{escape(chart.title)}</title><desc id="{description}">{escape(chart.description)}</desc>',
        *_grid(chart, scale),
        *(_shape(chart, at, top, scale) for at, top in reversed([*enumerate(tops)])),
        *(_limit(limit, scale) for limit in chart.limits),
        *(_mark(chart, mark) for mark in chart.marks),
        f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}" visibility="hidden"/></svg>',
    ]
    drawn = f'<div class="plot">{"".join(parts)}</div>'
    tip = f'<output class="tip" for="{chart.id}"></output>'
    return Markup(f"<figure>{drawn}{_legend(chart)}{tip}{_values(chart)}</figure>")  # noqa: S704  escaped above  # nosec B704


def _values(chart: Chart) -> str:
    """The values for the script; what could end the element is written otherwise."""
    values = {
        "unit": chart.unit,
        "axis": chart.axis,
        "names": list(chart.names),
        "lines": [{"name": line.name, "values": list(line.values)} for line in chart.lines],
    }
    text = json.dumps(values, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{chart.id}-data">{text}</script>'


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar; `style` gives its colour."""

    style: str
    name: str
    value: float


def bar(pieces: Sequence[Piece], size: float, description: str, *, mark: float | None = None) -> Markup:
    """A stacked bar as wide as its place, with a line where something begins."""
    total = max(size, sum(piece.value for piece in pieces), 1e-9)
    parts, at = [], 0.0
    for piece in pieces:
        width = 1_000 * piece.value / total
        parts.append(
            f'<rect class="{piece.style}" x="{at:.1f}" width="{width:.1f}" height="100">'
            f"<title>{escape(piece.name)}</title></rect>"
        )
        at += width
    if mark is not None:
        x = min(1_000 * mark / total, 998)
        parts.append(f'<line class="threshold" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="100"/>')
    return Markup(  # noqa: S704  escaped above  # nosec B704
        f'<svg class="bar" viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(description)}">'
        f"{''.join(parts)}</svg>"
    )


def _tops(chart: Chart) -> list[list[float]]:
    """The upper edge of every line; of stacked ones upon those before."""
    tops: list[list[float]] = []
    for line in chart.lines:
        below = tops[-1] if chart.stacked and tops else [0.0] * len(line.values)
        tops.append([value + under for value, under in zip(line.values, below, strict=True)])
    return tops


def _shape(chart: Chart, at: int, top: Sequence[float], scale: Scale) -> str:
    style = chart.lines[at].style
    points = [f"{chart.x(number):.1f},{scale.y(value)}" for number, value in enumerate(top)]
    if not chart.stacked:
        return f'<polyline class="line {style}" points="{" ".join(points)}"/>'
    base = [f"{chart.x(chart.count - 1):.1f},{scale.y(0)}", f"{chart.x(0):.1f},{scale.y(0)}"]
    return f'<polygon class="area {style}" points="{" ".join([*points, *base])}"/>'


def _limit(limit: Limit, scale: Scale) -> str:
    y, end = scale.y(limit.value), WIDTH - RIGHT
    return (
        f'<line class="limit" x1="{LEFT}" x2="{end}" y1="{y}" y2="{y}"/>'
        f'<text class="limit-name" x="{LEFT + 6}" y="{y}" dy="-4">{escape(limit.name)}</text>'
    )


def _grid(chart: Chart, scale: Scale) -> list[str]:
    parts, end = [], WIDTH - RIGHT
    for number in range(round(scale.top / scale.step) + 1):
        level = number * scale.step
        y = scale.y(level)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y}" dy="4">{figure(level, chart.unit)}</text>')
    parts += [
        f'<text class="tick below" x="{chart.x(at):.1f}" y="{HEIGHT - 14}">{escape(chart.name(at))}</text>'
        for at in _places(chart.count)
    ]
    return [*parts, f'<text class="tick below" x="{(LEFT + end) / 2}" y="{HEIGHT - 1}">{escape(chart.axis)}</text>']


def _mark(chart: Chart, mark: Mark) -> str:
    x = chart.x(mark.at)
    return (
        f'<g class="{mark.style}"><title>{escape(mark.text)}</title>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<path d="M{x - 5:.1f} {TOP - 9}h10l-5 9z"/></g>'
    )


def _legend(chart: Chart) -> str:
    named = [(line.name, line.style) for line in chart.lines]
    named += dict.fromkeys((mark.text.split(":")[0].split(" before")[0], mark.style) for mark in chart.marks)
    keys = "".join(
        f'<li><span class="key {style}" aria-hidden="true"></span>{escape(name)}</li>' for name, style in named
    )
    return f'<figcaption><ul class="legend">{keys}</ul></figcaption>'


def _places(count: int) -> list[int]:
    """Which calls are named below the chart."""
    if count <= 1:
        return [0] if count else []
    parts = min(count - 1, 8)
    return sorted({round(number * (count - 1) / parts) for number in range(parts + 1)})


def step_of(most: float) -> float:
    """A round distance between the lines of the grid, so that there are four to eight."""
    size: float = 10.0 ** math.floor(math.log10(most))
    return next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if most / (size * part) <= 7)


def figure(value: float, unit: str) -> str:
    """A number as short as it can be read."""
    if unit == "$":
        return (
            f"${value:,.0f}"
            if value >= 10
            else f"${value:.2f}".removesuffix(".00")
            if value >= 0.1
            else f"${value:.4g}"
        )
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1_000:g}k" if value >= 1_000 else f"{value:g}"
