"""A summary over its size, cut to it section by section. What is cut says so."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from everthread.compaction.summarizers.llm_split import Count
from everthread.compaction.summary import DONE, Sections

_HEADING = 6
_NOTE = 12
"""Tokens of a heading, and of the line that tells what was left out."""


def fit(sections: Mapping[str, str], room: int, count: Count) -> Sections:
    """The sections within `room` tokens: short ones whole, the long ones share what is left evenly."""
    sizes = {name: count(text) + _HEADING for name, text in sections.items()}
    left = room
    fitting: Sections = {}
    for rank, name in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = left // (len(sizes) - rank)
        text = sections[name]
        fitting[name] = text if sizes[name] <= share else _shortened(name, text, share - _HEADING, count)
        left -= min(sizes[name], share)
    return {name: fitting[name] for name in sections}


def _shortened(name: str, text: str, room: int, count: Count) -> str:
    """As many whole lines as fit: the latest of what was done, the first of anything else."""
    lines = text.splitlines()
    ordered = lines[::-1] if name == DONE else lines
    kept = sum(tokens <= room - _NOTE for tokens in accumulate(count(each) + 1 for each in ordered))
    if not kept:
        chars = len(text) * max(room - _NOTE, 1) // max(count(text), 1)
        return f"{text[:chars].rstrip()} … (the rest was left out)"
    note = f"({len(lines) - kept} lines left out)"
    return "\n".join([note, *lines[-kept:]] if name == DONE else [*lines[:kept], note])
