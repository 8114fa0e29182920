"""A sweep as a page: for every model the trade-off and the table."""

from __future__ import annotations

from html import escape

from everthread.lab.report.page import framed, table
from everthread.lab.report.scatter import Dot, Scatter, scatter
from everthread.lab.report.words import dollars, part
from everthread.lab.sweep import NEAR, Point, Sweep

_TOLD = (
    "Recorded conversations, replayed at every setting of a grid. Dollars are those of all conversations together, "
    "facts those still in the context at the end. Summaries are extracts; nothing was sent anywhere."
)
_HEADS = ("", "engine", "threshold", "ratio", "dollars", "compactions", "peak", "in the context", "or by search", "")


def sweep_page(found: Sweep) -> str:
    """One HTML page with everything in it."""
    body = "\n".join(_section(found, model, number) for number, model in enumerate(found.models, 1))
    return framed("Sweep of settings", _TOLD, body)


def _section(found: Sweep, model: str, number: int) -> str:
    points, best = found.of(model), found.best(model)
    names = {id(point): str(at) for at, point in enumerate(points, 1)}
    chosen = "No setting got every conversation to its end." if best is None else _chosen(best)
    drawn = _drawn(found, model, number, names)
    rows = [
        (
            names[id(point)], point.setting.engine, f"{point.setting.threshold:g}", f"{point.setting.ratio:g}",
            dollars(point.cost), f"{point.compactions:,}", f"{point.peak:,}", part(point.retained), part(point.known),
            _remark(point, found),
        )
        for point in points
    ]  # fmt: skip
    return (
        f'<section id="model-{number}" aria-labelledby="name-{number}"><h2 id="name-{number}">{escape(model)}</h2>'
        f"<p>{escape(chosen)}</p>{drawn}{table('Settings', '', _HEADS, rows)}</section>"
    )


def _chosen(best: Point) -> str:
    return (
        f"Best: {best.setting}. It costs {dollars(best.cost)} and keeps {part(best.retained)} of the facts in the "
        f"context; cheapest of those within {NEAR:.0%} of the most that any keeps."
    )


def _remark(point: Point, found: Sweep) -> str:
    if point.refused:
        return f"{point.refused} refused"
    if point is found.best(point.model):
        return "best"
    return "not beaten" if any(point is other for other in found.front(point.model)) else ""


def _drawn(found: Sweep, model: str, number: int, names: dict[int, str]) -> str:
    priced = [point for point in found.of(model) if point.cost is not None]
    if not priced:
        return "<p>What this costs is unknown: the model has no price in the table.</p>"
    best = found.best(model)
    dots = [
        Dot(
            names[id(point)], f"{point.setting}: {dollars(point.cost)}, {part(point.retained)} in the context",
            float(point.cost or 0), 100 * point.retained, point.setting.engine, chosen=point is best,
        )
        for point in priced
    ]  # fmt: skip
    front = [(float(point.cost or 0), 100 * point.retained) for point in found.front(model)]
    told = f"{len(dots)} settings; further left is cheaper, further up keeps more. " + "; ".join(
        dot.told for dot in dots
    )
    title = "Dollars against facts"
    chart = Scatter(f"tradeoff-{number}", title, told, "dollars", "facts in the context", dots, front)
    return f"<h3>{title}</h3>{scatter(chart)}"
