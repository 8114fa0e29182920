"""The answers of slash commands as styled text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from everthread.agent.commands.context_commands import describe_threshold, list_context
from everthread.cli.chat.event_lines import ACCENT_STYLE, DIM_STYLE
from everthread.cli.output import escape_controls

_MARKUP_PATTERN = re.compile(r"`([^`\n]+)`|\*\*([^*\n]+)\*\*")


def style_markup(text: str) -> Text:
    """Style the bullets, code and bold words in the answer of a slash command, without rewrapping its lines."""
    styled_text = Text()
    position = 0
    text = re.sub(r"^- ", "• ", escape_controls(text), flags=re.MULTILINE)
    for match in _MARKUP_PATTERN.finditer(text):
        styled_text.append(text[position : match.start()])
        styled_text.append(match[1] or match[2], ACCENT_STYLE if match[1] else "bold")
        position = match.end()
    return styled_text.append(text[position:])


CONTEXT_COLOURS = {
    "system prompt": "blue",
    "tools": "magenta",
    "summary": "yellow",
    "user": "green",
    "assistant": "cyan",
    "tool calls": "bright_cyan",
    "tool results": "bright_blue",
    "free": "bright_black",
}


def render_context(data: Mapping[str, Any], width: int) -> Text:
    """Render the result of `/context` as a coloured bar and a line for each kind of content."""
    window = data["window"]
    sizes: dict[str, int] = data["kinds"]
    threshold = data["threshold"]
    bar_width = max(20, min(width - 2, 72))
    colours: list[str] = []
    for kind, size in sizes.items():
        colours += [CONTEXT_COLOURS[kind]] * round(size / window * bar_width)
    colours = colours[:bar_width]
    bar = Text()
    threshold_column = min(bar_width - 1, round(threshold / window * bar_width))
    for column in range(bar_width):
        style = colours[column] if column < len(colours) else CONTEXT_COLOURS["free"]
        cell = "█" if column < len(colours) else "·"
        bar.append(
            "│" if column == threshold_column else cell,
            "bold" if column == threshold_column else style,
        )
    heading = f"{data['tokens']:,} of {window:,} tokens ({data['tokens'] / window:.0%})"
    lines = [Text(heading, "bold"), bar]
    for row in list_context(sizes, window):
        kind = row[:14].strip()
        style = CONTEXT_COLOURS[kind]
        bullet = "■ " if kind != "free" else "· "
        lines.append(Text.assemble((bullet, style), row))
    lines.append(Text(f"│ {describe_threshold(data)}", DIM_STYLE))
    return Text("\n").join(lines)
