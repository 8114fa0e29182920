"""What a node over nodes lacks of what they say: their facts, where there is room left."""

from __future__ import annotations

from everthread.compaction.lossless.parts import Count
from everthread.core.summary import CRITICAL, DECISIONS, FILES, Sections

FACTS = (DECISIONS, CRITICAL, FILES)
"""Sections whose lines say something each by itself, the most important first."""
SPARE = 12
"""Tokens that are left free."""


def completed(sections: Sections, told: Sections, room: int, count: Count) -> Sections:
    """The sections with lines of `told` that no section has, the newest first, in their old order, within the room.

    A model that joins summaries leaves out more than it must; what it was given is at hand.
    """
    known = "\n".join(sections.values())
    left = room - SPARE - sum(count(f"## {name}\n{text}\n\n") for name, text in sections.items() if text)
    full = dict(sections)
    for name in FACTS:
        left -= 0 if full.get(name) else count(f"## {name}\n\n")
        chosen: list[str] = []
        for line in reversed(told.get(name, "").split("\n")):
            cost = count(line) + 1
            if line.strip() and cost <= left and line.lstrip("- ").strip() not in known:
                left -= cost
                chosen.insert(0, line)
        full[name] = "\n".join(filter(None, (*chosen, full.get(name, ""))))
    return full
