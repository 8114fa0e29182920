"""Draws docs/context.svg and docs/compaction.svg from the example session: `python docs/picture.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everthread import TokenCounter, compress
from everthread.gateway.dashboard.charts import Chart, Limit, Line, Mark, draw_chart
from everthread.lab.importers.read_logs import read_log
from everthread.lab.replay import replay
from everthread.thread.options import SessionOptions

TARGET = Path(__file__).with_name("context.svg")
SESSION = Path(__file__).parents[1] / "examples" / "long_session.json"
WINDOW = 64_000
STYLE = """
svg { background: #fff; font: 12px system-ui, sans-serif }
.grid { stroke: #e3e6ea } .tick { fill: #5b6470; text-anchor: end } .tick.below { text-anchor: middle }
.line { fill: none; stroke-width: 2 } .line.a { stroke: #0b6bcb } .line.b { stroke: #c2410c }
.limit { stroke: #8a94a0; stroke-dasharray: 4 4 } .limit-name { fill: #5b6470 }
.mark line { stroke: #0b6bcb; stroke-opacity: .25 } .mark path { fill: #0b6bcb } .cursor { display: none }
.name { font-weight: 600; paint-order: stroke; stroke: #fff; stroke-width: 5px }
.name.a { fill: #0b6bcb } .name.b { fill: #c2410c }
"""


def picture() -> str:
    found = replay(
        read_log(str(SESSION)),
        model="claude-sonnet-4-5",
        window=WINDOW,
        options=SessionOptions(background=False),
    )
    alone = found.strategy("cached")
    marks = [
        Mark(made.call, f"compaction before call {made.call + 1}") for made in found.compactions
    ]
    lines = [
        Line(
            "Everthread",
            "a",
            [float(call.use.prompt) for call in found.everthread.calls],
        ),
        Line("without it", "b", [float(call.use.prompt) for call in alone.calls]),
    ]
    told = (
        f"A session of {len(found.everthread.calls)} calls. Without Everthread it ends at call {len(alone.calls)}, "
        f"when the prompt no longer fits into {WINDOW:,} tokens. With it the prompt is compacted {len(marks)} times "
        f"and stays below {found.everthread.peak:,} tokens to the end."
    )
    limits = [
        Limit("window", float(WINDOW)),
        Limit("threshold", float(found.threshold)),
    ]
    drawn = draw_chart(
        Chart("context", "Tokens of each prompt", told, "tokens", lines, limits, marks)
    )
    svg = re.search(r"<svg.*?</svg>", drawn, re.DOTALL)
    if svg is None:
        raise AssertionError("a chart is an SVG")
    names = (
        '<text class="name b" x="388" y="58">without: refused from here on</text>'
        '<text class="name a" x="640" y="126">with Everthread (▼ compactions)</text>'
    )
    text = svg[0].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return (
        text.replace("<title", f"<style>{STYLE}</style><title", 1).replace(
            "</svg>", f"{names}</svg>"
        )
        + "\n"
    )


def parts(messages: Sequence[Mapping[str, Any]], summary: str) -> list[tuple[str, str, int]]:
    """What fills a context: name, colour, tokens. The user's words count for themselves, also inside a summary."""
    counter = TokenCounter("claude-sonnet-4-5")
    roles = {
        "system": "system prompt",
        "user": "user",
        "assistant": "assistant and its calls",
        "tool": "tool results",
    }
    sizes = dict.fromkeys(
        ("system prompt", "user", "journal", "assistant and its calls", "tool results"),
        0,
    )
    for message in messages:
        sizes[roles[message["role"]]] += counter.message(message)
    if summary:
        words = summary.partition("## What the User Said")[2].partition("\n## ")[0]
        sizes["journal"] = counter.text(summary) - counter.text(words)
        sizes["user"] -= sizes["journal"]
    colours = ("#64748b", "#0b6bcb", "#7c3aed", "#0f9d76", "#c2410c")
    return [
        (name, colour, size) for (name, size), colour in zip(sizes.items(), colours, strict=True)
    ]


def compaction_picture() -> str:
    """A compaction's before and after as two bars on one scale."""
    messages = json.loads(SESSION.read_text("utf-8"))["messages"]
    made = compress(
        messages,
        window=200_000,
        model="claude-sonnet-4-5",
        summarizer="journal",
        force=True,
    )
    bars = [
        (f"before: {len(messages)} messages", parts(messages, "")),
        (f"after: {len(made.messages)} messages", parts(made.messages, made.summary)),
    ]
    whole = sum(size for _, _, size in bars[0][1])
    scale = 820 / whole
    drawn = []
    for row, (title, filled) in enumerate(bars):
        top = 34 + row * 78
        left = 20.0
        total = sum(size for _, _, size in filled)
        share = "" if total == whole else f" ({total / whole:.0%} of before)"
        drawn.append(
            f'<text x="20" y="{top - 8}" class="title">{title}, {total:,} tokens{share}</text>'
        )
        for name, colour, size in filled:
            width = size * scale
            drawn.append(
                f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="34" fill="{colour}">'
                f"<title>{name}: {size:,} tokens</title></rect>"
            )
            left += width
    for place, (name, colour, _) in enumerate(bars[0][1]):
        left = 20 + place * 168
        after = bars[1][1][place][2]
        drawn.append(f'<rect x="{left}" y="166" width="12" height="12" fill="{colour}"/>')
        drawn.append(f'<text x="{left + 18}" y="176">{name}</text>')
        drawn.append(
            f'<text x="{left + 18}" y="194" class="figure">{bars[0][1][place][2]:,} → {after:,}</text>'
        )
    style = "text{font:12px system-ui,sans-serif;fill:#1f2933}.title{font-weight:600}.figure{fill:#5b6470}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 208" role="img" '
        'aria-label="A compaction, before and after">'
        f'<style>{style}</style><rect width="880" height="208" fill="#fff"/>{"".join(drawn)}</svg>\n'
    )


if __name__ == "__main__":
    TARGET.write_text(picture(), "utf-8")
    TARGET.with_name("compaction.svg").write_text(compaction_picture(), "utf-8")
