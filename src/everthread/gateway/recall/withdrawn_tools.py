"""Recognise that a client has detached our MCP server but still sends the definitions of its tools.

Claude Code keeps a deferred definition for as long as its history refers to it. A system message in the history says
that the tool is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everthread.compaction.summary.summary_message import find_reading_tools
from everthread.core.messages import SYSTEM_ROLES, content_text, kind_of, parts_of
from everthread.gateway.recall.merged_stream import RECALL
from everthread.gateway.request.json_slices import Element, SlicedBody

_WITHDRAWAL = "no longer available"
"""In the heading of a paragraph that lists withdrawn tools, each on a line of its own."""


def find_deferred_readers(sliced: SlicedBody) -> tuple[str, ...]:
    """Return the names of our tools in a request if all their definitions are deferred, else nothing."""
    tools = sliced.fields.get("tools")
    readers = [
        tool
        for tool in (tools if isinstance(tools, list) else ())
        if isinstance(tool, dict) and find_reading_tools([tool])
    ]
    names = find_reading_tools(readers)
    is_deferred = all(tool.get("defer_loading") is True for tool in readers)
    return names if is_deferred and RECALL not in names else ()


def are_withdrawn(elements: Sequence[Element], names: Sequence[str]) -> bool:
    """Return whether the newest system message about one of these tools withdraws them all."""
    spellings = [name.encode() for name in names]
    for position in range(len(elements) - 1, -1, -1):
        raw = elements[position].raw
        if not any(spelling in raw for spelling in spellings):
            continue  # decoding every message would cost more than all the rest
        message = elements[position].value
        if isinstance(message, dict) and message.get("role") in SYSTEM_ROLES:
            return set(names) <= set(_list_withdrawn(message))
    return False


def _list_withdrawn(message: Mapping[str, Any]) -> Iterator[str]:
    for part in parts_of(message):
        tool = part.get("tool")
        if kind_of(part) == "tool_removal" and isinstance(tool, dict):
            yield str(tool.get("name"))
    for paragraph in content_text(message.get("content")).split("\n\n"):
        heading, *lines = paragraph.splitlines() or [""]
        if _WITHDRAWAL in heading:
            yield from lines
