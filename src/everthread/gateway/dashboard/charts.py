"""Draw charts as SVG without a script. Screen readers read their titles and descriptions."""

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
HALF_PAGE_WIDTH = 560
PHONE_WIDTH = 360
"""Widths of a whole page, of half a page and of a phone, in pixels."""
CHART_HEIGHT = 300
LEFT_MARGIN = 52
RIGHT_MARGIN = 16
TOP_MARGIN = 18
BOTTOM_MARGIN = 34

ChartForm = Literal["lines", "areas", "columns"]
"""The form of a chart; areas and columns are stacked."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series of values in a chart."""

    name: str
    style: str
    """The CSS class that gives the colour."""
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Limit:
    """A horizontal line that marks a limit."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line that marks an event before a step."""

    step: int
    text: str
    style: str = "mark"


@dataclass(frozen=True, slots=True)
class Column:
    """A rectangle of a column. Its `style` is the CSS class that gives the colour."""

    style: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Chart:
    """The data of a chart, and the positions at which it is drawn."""

    id: str
    title: str
    description: str
    """For screen readers."""
    unit: str
    lines: Sequence[Line]
    limits: Sequence[Limit] = ()
    marks: Sequence[Mark] = ()
    form: ChartForm = "lines"
    axis: str = "call"
    """The name of one step of the horizontal axis."""
    names: Sequence[str] = ()
    """Names of the steps; if empty, the steps are numbered."""
    width: int = PAGE_WIDTH

    @property
    def is_stacked(self) -> bool:
        return self.form != "lines"

    @cached_property
    def step_count(self) -> int:
        return max((len(line.values) for line in self.lines), default=0)

    @cached_property
    def tops(self) -> list[list[float]]:
        """Return the upper edge of every line; stacked lines are placed on top of the previous ones."""
        tops: list[list[float]] = []
        for line in self.lines:
            lower_edges = tops[-1] if self.is_stacked and tops else [0.0] * len(line.values)
            tops.append(
                [
                    value + lower_edge
                    for value, lower_edge in zip(line.values, lower_edges, strict=True)
                ]
            )
        return tops

    @cached_property
    def levels(self) -> list[float]:
        """Return the values of the grid's lines, from zero to beyond the highest value."""
        largest = max(
            [
                *(value for line_tops in self.tops for value in line_tops),
                *(limit.value for limit in self.limits),
                1e-9,
            ]
        )
        grid_step = choose_grid_step(largest)
        return [number * grid_step for number in range(math.ceil(largest / grid_step) + 1)]

    def x(self, step: float) -> float:
        """Return the x position of a step's point, or of the middle of its column."""
        plot_width = self.width - LEFT_MARGIN - RIGHT_MARGIN
        if self.form == "columns":
            return LEFT_MARGIN + plot_width * (step + 0.5) / max(self.step_count, 1)
        return LEFT_MARGIN + plot_width * step / max(self.step_count - 1, 1)

    def y(self, value: float) -> float:
        return TOP_MARGIN + (CHART_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN) * (
            1 - value / self.levels[-1]
        )

    @property
    def grid(self) -> list[tuple[float, str]]:
        """Return the y positions of the grid's lines, and their labels."""
        return [(self.y(value), format_tick(value, self.unit)) for value in self.levels]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Return the x positions of the labels below the chart, and the labels."""
        interval_count = min(self.step_count - 1, self.width // 110)
        steps = sorted(
            {
                round(number * (self.step_count - 1) / max(interval_count, 1))
                for number in range(interval_count + 1)
            }
        )
        return [
            (
                self.x(step),
                self.names[step] if step < len(self.names) else f"{step + 1:,}",
            )
            for step in steps
        ]

    @property
    def shapes(self) -> list[tuple[str, str]]:
        """Return the class and the points of every line, the last first, because areas are drawn over each other."""
        shapes = []
        for line, top in zip(self.lines, self.tops, strict=True):
            points = [f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in enumerate(top)]
            if self.is_stacked:
                points += [
                    f"{self.x(self.step_count - 1):.1f},{self.y(0):.1f}",
                    f"{self.x(0):.1f},{self.y(0):.1f}",
                ]
            shapes.append((line.style, " ".join(points)))
        return shapes[::-1]

    @property
    def columns(self) -> list[Column]:
        """Return the rectangles of stacked columns."""
        width = 0.7 * (self.width - LEFT_MARGIN - RIGHT_MARGIN) / max(self.step_count, 1)
        columns = []
        for line, top in zip(self.lines, self.tops, strict=True):
            for step, (value, upper_edge) in enumerate(zip(line.values, top, strict=True)):
                height = self.y(0) - self.y(value)
                if height > 0:
                    x = self.x(step) - width / 2
                    columns.append(Column(line.style, x, self.y(upper_edge), width, height=height))
        return columns

    @property
    def legend(self) -> list[tuple[str, str]]:
        marks = dict.fromkeys(
            (mark.text.split(":")[0].split(" before")[0], mark.style) for mark in self.marks
        )
        return [*((line.name, line.style) for line in self.lines), *marks]

    @property
    def data(self) -> Markup:
        """Return the values for the script as JSON, with `<` escaped so that it cannot end the script's element."""
        values = {
            "unit": self.unit,
            "axis": self.axis,
            "names": list(self.names),
            "lines": [{"name": line.name, "values": list(line.values)} for line in self.lines],
        }
        text = json.dumps(values, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
        return Markup(text)  # noqa: S704  # nosec B704  escaped above


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar. Its `style` is the CSS class that gives the colour."""

    style: str
    name: str
    value: float


def make_cache_lines(
    *, read: Sequence[float], written: Sequence[float], uncached: Sequence[float]
) -> list[Line]:
    """Return the lines for the tokens of prompts, by their place in the provider's cache."""
    return [
        Line("read from the cache", "read", read),
        Line("written to the cache", "write", written),
        Line("not cached", "none", uncached),
    ]


def draw_chart(chart: Chart) -> Markup:
    """Render the chart in its own width and for a phone, with its legend and its values for the script."""
    margins = {
        "height": CHART_HEIGHT,
        "left": LEFT_MARGIN,
        "right": RIGHT_MARGIN,
        "top": TOP_MARGIN,
        "bottom": BOTTOM_MARGIN,
    }
    phone_chart = replace(chart, id=f"{chart.id}-narrow", width=PHONE_WIDTH)
    return _render("chart.html", chart=chart, sizes=(chart, phone_chart), **margins)


def draw_bar(
    segments: Sequence[Segment],
    size: float,
    description: str,
    *,
    mark_at: float | None = None,
) -> Markup:
    """Render a stacked bar that fills the width, with a line at `mark_at` if given."""
    scale = 1_000 / max(size, sum(segment.value for segment in segments), 1e-9)
    threshold = None if mark_at is None else min(mark_at * scale, 998)
    return _render(
        "bar.html",
        segments=segments,
        scale=scale,
        description=description,
        threshold=threshold,
    )


def _render(name: str, **values: Any) -> Markup:
    return Markup(_load_environment().get_template(name).render(values))  # noqa: S704  # nosec B704  it escapes everything


@cache
def _load_environment() -> Environment:
    return make_environment()


def make_environment() -> Environment:
    """Return a template environment that escapes all values and raises an error for an undefined name."""
    return Environment(
        loader=PackageLoader("everthread.gateway.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def choose_grid_step(largest: float) -> float:
    """Return a round distance between the lines of the grid, so that there are four to eight."""
    magnitude: float = 10.0 ** math.floor(math.log10(largest))
    return next(
        magnitude * factor
        for factor in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0)
        if largest / (magnitude * factor) <= 7
    )


def format_tick(value: float, unit: str) -> str:
    """Format a number in short form for an axis."""
    if unit == "$":
        if value >= 10:
            return f"${value:,.0f}"
        return f"${value:.2f}".removesuffix(".00") if value >= 0.1 else f"${value:.4g}"
    if unit == "%":
        return f"{value:g} %"
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1_000:g}k" if value >= 1_000 else f"{value:g}"


MAX_CHART_POINTS = 300


def pick_points(count: int) -> list[int]:
    """Return the indexes of the values that a chart shows, evenly spaced from the first to the last."""
    if count <= MAX_CHART_POINTS:
        return list(range(count))
    last = MAX_CHART_POINTS - 1
    return [round(number * (count - 1) / last) for number in range(MAX_CHART_POINTS)]
