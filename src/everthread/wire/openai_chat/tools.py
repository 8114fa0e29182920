"""Tools of OpenAI's chat protocol <-> core tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.wire.native_values import (
    without_private_fields,
)
from everthread.wire.payload_checks import require_list, require_object


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return core tools, which have the form of chat tools."""
    return [
        without_private_fields(require_object(tool, f"tools[{index}]"))
        for index, tool in enumerate(require_list(wire, "tools"))
    ]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that chat can call, without those built into another API."""
    return [
        without_private_fields(tool)
        for tool in tools
        if "_native" not in tool or "function" in tool or "custom" in tool
    ]
