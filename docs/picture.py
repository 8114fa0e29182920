"""Draws docs/context.svg from a real run: the example session, replayed: `python docs/picture.py`."""

from __future__ import annotations

import re
from pathlib import Path

from everthread.conversation.options import SessionOptions
from everthread.gateway.dashboard.charts import Chart, Limit, Line, Mark, draw
from everthread.lab.importers.reader import read_log
from everthread.lab.replay import replay

TARGET = Path(__file__).with_name("context.svg")
SESSION = Path(__file__).parents[1] / "examples" / "long_session.json"
WINDOW = 64_000
STYLE = """
svg { background: #fff; font: 12px system-ui, sans-serif }
.grid { stroke: #e3e6ea } .tick { fill: #5b6470; text-anchor: end } .tick.below { text-anchor: middle }
.line { fill: none; stroke-width: 2 } .line.a { stroke: #0b6bcb } .line.b { stroke: #c2410c }
.limit { stroke: #8a94a0; stroke-dasharray: 4 4 } .limit-name { fill: #5b6470; text-anchor: end }
.mark line { stroke: #0b6bcb; stroke-opacity: .25 } .mark path { fill: #0b6bcb } .cursor { display: none }
.name { font-weight: 600 } .name.a { fill: #0b6bcb } .name.b { fill: #c2410c }
"""


def picture() -> str:
    found = replay(
        read_log(str(SESSION)), model="claude-sonnet-4-5", window=WINDOW, options=SessionOptions(background=False)
    )
    alone = found.way("cached")
    marks = [Mark(made.call, f"compaction before call {made.call + 1}") for made in found.compactions]
    lines = [
        Line("Everthread", "a", [float(call.use.prompt) for call in found.ours.calls]),
        Line("without it", "b", [float(call.use.prompt) for call in alone.calls]),
    ]
    told = (
        f"A session of {len(found.ours.calls)} calls. Without Everthread it ends at call {len(alone.calls)}, when the "
        f"prompt no longer fits into {WINDOW:,} tokens. With it the prompt is compacted {len(marks)} times and stays "
        f"below {found.ours.peak:,} tokens to the end."
    )
    limits = [Limit("window", float(WINDOW)), Limit("threshold", float(found.threshold))]
    drawn = draw(Chart("context", "Tokens of each prompt", told, "tokens", lines, limits, marks))
    svg = re.search(r"<svg.*?</svg>", drawn, re.DOTALL)
    if svg is None:
        raise AssertionError("a chart is an SVG")
    names = (
        '<text class="name b" x="396" y="72">without: refused from here on</text>'
        '<text class="name a" x="640" y="150">with Everthread (▼ compactions)</text>'
    )
    text = svg[0].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return text.replace("<title", f"<style>{STYLE}</style><title", 1).replace("</svg>", f"{names}</svg>") + "\n"


if __name__ == "__main__":
    TARGET.write_text(picture(), "utf-8")
