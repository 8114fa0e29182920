"""Charts as SVG, drawn here: they need no script and are read out by their titles and descriptions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

PAGE_WIDTH = 960
HALF = 560
PHONE_WIDTH = 360
"""Widths in pixels: of a whole page, of half of it, of a phone."""
HEIGHT = 300
LEFT = 52
RIGHT = 16
TOP = 18
BOTTOM = 34

ChartForm = Literal["lines", "areas", "columns"]
"""Areas and columns are stacked."""


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
class Column:
    """A rectangle of a column; `style` gives its colour."""

    style: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    description: str
    """For readers who do not see it."""
    unit: str
    lines: Sequence[Line]
    limits: Sequence[Limit] = ()
    marks: Sequence[Mark] = ()
    form: ChartForm = "lines"
    axis: str = "call"
    """The name of one step to the right."""
    names: Sequence[str] = ()
    """Of the steps; without any they are numbered."""
    width: int = PAGE_WIDTH

    @property
    def is_stacked(self) -> bool:
        return self.form != "lines"

    @cached_property
    def count(self) -> int:
        return max((len(line.values) for line in self.lines), default=0)

    @cached_property
    def tops(self) -> list[list[float]]:
        """The upper edge of every line; of stacked ones upon those before."""
        tops: list[list[float]] = []
        for line in self.lines:
            below = tops[-1] if self.is_stacked and tops else [0.0] * len(line.values)
            tops.append(
                [value + under for value, under in zip(line.values, below, strict=True)]
            )
        return tops

    @cached_property
    def levels(self) -> list[float]:
        """The values of the grid's lines, from nothing to beyond the highest value."""
        most = max(
            [
                *(value for top in self.tops for value in top),
                *(limit.value for limit in self.limits),
                1e-9,
            ]
        )
        step = step_of(most)
        return [number * step for number in range(math.ceil(most / step) + 1)]

    def x(self, at: float) -> float:
        """Return the x position of a step: its point, or the middle of its column."""
        plot = self.width - LEFT - RIGHT
        if self.form == "columns":
            return LEFT + plot * (at + 0.5) / max(self.count, 1)
        return LEFT + plot * at / max(self.count - 1, 1)

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self.levels[-1])

    @property
    def grid(self) -> list[tuple[float, str]]:
        """The heights of the grid's lines, and their figures."""
        return [(self.y(value), figure(value, self.unit)) for value in self.levels]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Where the steps are named below the chart, and their names."""
        parts = min(self.count - 1, self.width // 110)
        places = sorted(
            {
                round(number * (self.count - 1) / max(parts, 1))
                for number in range(parts + 1)
            }
        )
        return [
            (self.x(at), self.names[at] if at < len(self.names) else f"{at + 1:,}")
            for at in places
        ]

    @property
    def shapes(self) -> list[tuple[str, str]]:
        """The class and the points of every line, the last first: areas are drawn over each other."""
        shapes = []
        for line, top in zip(self.lines, self.tops, strict=True):
            points = [
                f"{self.x(at):.1f},{self.y(value):.1f}" for at, value in enumerate(top)
            ]
            if self.is_stacked:
                points += [
                    f"{self.x(self.count - 1):.1f},{self.y(0):.1f}",
                    f"{self.x(0):.1f},{self.y(0):.1f}",
                ]
            shapes.append((line.style, " ".join(points)))
        return shapes[::-1]

    @property
    def columns(self) -> list[Column]:
        """The rectangles of stacked columns."""
        width = 0.7 * (self.width - LEFT - RIGHT) / max(self.count, 1)
        columns = []
        for line, top in zip(self.lines, self.tops, strict=True):
            for at, (value, edge) in enumerate(zip(line.values, top, strict=True)):
                height = self.y(0) - self.y(value)
                if height > 0:
                    x = self.x(at) - width / 2
                    columns.append(
                        Column(line.style, x, self.y(edge), width, height=height)
                    )
        return columns

    @property
    def legend(self) -> list[tuple[str, str]]:
        marks = dict.fromkeys(
            (mark.text.split(":")[0].split(" before")[0], mark.style)
            for mark in self.marks
        )
        return [*((line.name, line.style) for line in self.lines), *marks]

    @property
    def data(self) -> Markup:
        """The values for the script; what could end its element is written otherwise."""
        values = {
            "unit": self.unit,
            "axis": self.axis,
            "names": list(self.names),
            "lines": [
                {"name": line.name, "values": list(line.values)} for line in self.lines
            ],
        }
        text = json.dumps(values, ensure_ascii=True, separators=(",", ":")).replace(
            "<", "\\u003c"
        )
        return Markup(text)  # noqa: S704  # nosec B704  escaped above


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar; `style` gives its colour."""

    style: str
    name: str
    value: float


def draw(chart: Chart) -> Markup:
    """Render the chart in its own width and for a phone, its legend, and its values for the script."""
    box = {
        "height": HEIGHT,
        "left": LEFT,
        "right": RIGHT,
        "top": TOP,
        "bottom": BOTTOM,
    }
    narrow = replace(chart, id=f"{chart.id}-narrow", width=PHONE_WIDTH)
    return _render("chart.html", chart=chart, sizes=(chart, narrow), **box)


def bar(
    segments: Sequence[Segment],
    size: float,
    description: str,
    *,
    mark: float | None = None,
) -> Markup:
    """A stacked bar as wide as its place, with a line where something begins."""
    scale = 1_000 / max(size, sum(segment.value for segment in segments), 1e-9)
    threshold = None if mark is None else min(mark * scale, 998)
    return _render(
        "bar.html",
        segments=segments,
        scale=scale,
        description=description,
        threshold=threshold,
    )


def _render(name: str, **values: Any) -> Markup:
    return Markup(_environment().get_template(name).render(values))  # noqa: S704  # nosec B704  it escapes everything


@cache
def _environment() -> Environment:
    return make_environment()


def make_environment() -> Environment:
    """Templates in which everything is escaped, and a name that was not given is an error."""
    return Environment(
        loader=PackageLoader("everthread.gateway.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def step_of(most: float) -> float:
    """A round distance between the lines of the grid, so that there are four to eight."""
    size: float = 10.0 ** math.floor(math.log10(most))
    return next(
        size * part
        for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0)
        if most / (size * part) <= 7
    )


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
    if unit == "%":
        return f"{value:g} %"
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1_000:g}k" if value >= 1_000 else f"{value:g}"
