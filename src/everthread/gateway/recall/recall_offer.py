"""Decide which clients and requests get the tool `recall`.

A client that sends tools gets the tool from its first request on. If it were added later, the cached prompt would
change from its beginning (`python -m benchmarks recall_offer`). Other clients get the tool once something has left the
context. The client never sees the calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.agent.tools.recall import RECALL_SCHEMA
from everthread.compaction.summary.summary_message import find_reading_tools
from everthread.core.messages import SYSTEM_ROLES, content_text, kind_of, parts_of, tool_names
from everthread.core.recent_dict import RecentDict
from everthread.core.types import Api, ModelRequest
from everthread.gateway.contracts import IncomingRequest
from everthread.gateway.recall.merged_stream import RECALL
from everthread.gateway.request.json_slices import BodySlices, MessageSlice
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.caller.recall_rounds import MAX_RECALL_ROUNDS
from everthread.wire.gemini.field_names import find_field_name, get_field, get_object_field

RECALL_HEADER = "x-everthread-recall"
"""Request header with which a client turns the tool `off`."""
MAX_REMEMBERED_SETTINGS = 256
"""Maximum remembered settings (system prompt and tools), which are not read again."""
_WITHDRAWAL = "no longer available"
"""In the heading of a paragraph that lists withdrawn tools, each on a line of its own."""


class RecallOffers:
    """Decides which clients may get the tool. Tools that did not change are not read again."""

    def __init__(self, *, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        self._offer_facts: RecentDict[int, _ToolOfferFacts] = RecentDict(MAX_REMEMBERED_SETTINGS)
        """By the ids of the settings."""

    def choose_tool(
        self, incoming: IncomingRequest, slices: BodySlices, settings: ModelRequest
    ) -> Mapping[str, Any] | None:
        """Return the tool, or None if the client has a similar tool or has turned ours off.

        A client that has detached our MCP server also gets the tool.
        """
        setting = incoming.head.headers.get(RECALL_HEADER, "").lower()
        if not self._is_enabled or setting in ("off", "false", "0"):
            return None
        offer_facts = self._offer_facts.get(id(settings))
        if offer_facts is None or offer_facts.settings is not settings:
            lacks_recall = _lacks_recall(incoming.api, slices, settings)
            deferred = () if lacks_recall else find_deferred_readers(slices)
            offer_facts = _ToolOfferFacts(settings, lacks_recall, deferred)
        self._offer_facts[id(settings)] = offer_facts
        is_offered = offer_facts.lacks_recall or (
            bool(offer_facts.deferred_readers)
            and are_withdrawn(slices.messages, offer_facts.deferred_readers)
        )
        return RECALL_SCHEMA if is_offered else None


@dataclass(frozen=True, slots=True)
class _ToolOfferFacts:
    """Settings of requests, and how their tools relate to our own tool."""

    settings: ModelRequest
    lacks_recall: bool
    """Whether none of its tools reads earlier messages."""
    deferred_readers: tuple[str, ...]
    """The names of our MCP server's tools if the client defers them, so that it may withdraw them."""


def _lacks_recall(api: Api, slices: BodySlices, settings: ModelRequest) -> bool:
    tools = settings.tools if api == "gemini" else slices.fields.get("tools")
    return not find_reading_tools(settings.tools) and RECALL not in _list_tool_names(tools)


def offers_recall(call: PreparedCall, slices: BodySlices) -> bool:
    """Return whether to offer the tool with this request, which must let the model choose its tools freely."""
    fields = slices.fields
    return (
        call.settings.recall_tool is not None
        and (call.has_left_messages or bool(call.settings.request.tools))
        and call.rounds.round_count < MAX_RECALL_ROUNDS
        and _allows_free_choice(fields.get("tool_choice"))
        and _allows_gemini_calls(call.settings.api, fields)
        and fields.get("n") in (None, 1)
        and not fields.get("functions")
        and isinstance(fields.get("tools"), list | None)
    )


def _allows_gemini_calls(api: Api, fields: Mapping[str, Any]) -> bool:
    """Return whether a Gemini request has only function tools that the model may choose. Others always pass."""
    if api != "gemini":
        return True
    config = (
        get_object_field(get_object_field(fields, "toolConfig") or {}, "functionCallingConfig")
        or {}
    )
    tools = fields.get("tools") or []
    has_only_functions = all(
        isinstance(tool, dict) and set(tool) == {find_field_name(tool, "functionDeclarations")}
        for tool in tools
    )
    return has_only_functions and get_field(config, "mode") in (
        None,
        "AUTO",
        "MODE_UNSPECIFIED",
    )


def _allows_free_choice(choice: Any) -> bool:
    return choice in (None, "auto") or (
        isinstance(choice, Mapping) and choice.get("type") == "auto"
    )


def _list_tool_names(tools: Any) -> set[str]:
    definitions = (
        [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else ()
    )
    return {name for tool in definitions for name in tool_names(tool)}


def find_deferred_readers(slices: BodySlices) -> tuple[str, ...]:
    """Return the names of our tools in a request if all their definitions are deferred, else nothing."""
    tools = slices.fields.get("tools")
    readers = [
        tool
        for tool in (tools if isinstance(tools, list) else ())
        if isinstance(tool, dict) and find_reading_tools([tool])
    ]
    names = find_reading_tools(readers)
    is_deferred = all(tool.get("defer_loading") is True for tool in readers)
    return names if is_deferred and RECALL not in names else ()


def are_withdrawn(messages: Sequence[MessageSlice], names: Sequence[str]) -> bool:
    """Return whether the newest system message about one of these tools withdraws them all.

    Claude Code keeps sending a deferred definition for as long as its history refers to it. A system message in the
    history says that the tool is gone.
    """
    spellings = [name.encode() for name in names]
    for position in range(len(messages) - 1, -1, -1):
        raw = messages[position].raw
        if not any(spelling in raw for spelling in spellings):
            continue  # decoding every message would cost more than all the rest
        message = messages[position].value
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
