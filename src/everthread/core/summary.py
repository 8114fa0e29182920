"""How a summary is told apart from what people say.

A stored summary has a kind of its own; the markers matter for bare message lists, where the text is all there is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everthread.core.messages import text_of

SUMMARY_START = "[EVERTHREAD SUMMARY"
"""How the first line of a summary begins; the rest of that line is for the reader."""
SUMMARY_END = "[END OF EVERTHREAD SUMMARY]"

_SUMMARY = re.compile(
    rf"^{re.escape(SUMMARY_START)}\b.*?(?:^{re.escape(SUMMARY_END)}[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)


def is_summary(message: Mapping[str, Any]) -> bool:
    """Whether the message holds a summary: alone, or merged into a neighbour's text."""
    if message.get("role") == "tool":
        return False
    text = text_of(message)
    return SUMMARY_START in text and _SUMMARY.search(text) is not None


def without_summary(text: str) -> str:
    """The text with every summary taken out."""
    return _SUMMARY.sub("", text) if SUMMARY_START in text else text
