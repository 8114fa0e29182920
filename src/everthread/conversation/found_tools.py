"""The tool that finds tools left out: how the model is told of it, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everthread.core.toolchoice import Card

FIND = "find_tools"
SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": FIND,
        "description": "More tools exist than are shown to you. Say what you need one for, and those that match are "
        "named; they are shown again from the next compaction on.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What the tool shall do, in a few words, or its name."},
                "now": {
                    "type": "boolean",
                    "description": "Show them at once. The prompt is then read anew at full price, so the user is "
                    "asked. Default false.",
                },
            },
            "required": ["query"],
        },
    },
}
LISTED = 40
"""Names that are told where nothing matches."""
LONGEST = 1_000


@dataclass(frozen=True, slots=True)
class FoundTools:
    """What a search among the tools left out found."""

    query: str
    tools: tuple[Card, ...]
    others: tuple[str, ...]
    """The names of the rest that is left out."""
    now: bool = False
    """They are offered again from the next request on."""
    refused: bool = False
    """That was asked for and not allowed."""

    @property
    def text(self) -> str:
        """As the model reads it."""
        if not self.tools:
            names = ", ".join(self.others[:LISTED])
            more = f" and {len(self.others) - LISTED:,} more" if len(self.others) > LISTED else ""
            rest = f" These are left out: {names}{more}." if names else " No tool is left out: all are shown to you."
            return f"No tool that is left out matches {self.query!r}.{rest}"
        lines = [f"- {card.name}: {card.about}" if card.about else f"- {card.name}" for card in self.tools]
        if self.now:
            when = "They are shown to you again from now on."
        else:
            when = "They are shown to you again from the next compaction on."
            if self.refused:
                when = f"The user did not allow to show them at once. {when}"
        return "\n".join([f"Tools that match {self.query!r}:", *lines, when])
