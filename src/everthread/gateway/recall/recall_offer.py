"""Offer the tool `recall` to a proxied model, and answer its calls in the gateway.

A client that sends tools gets the tool from its first request on. If it were added later, the cached prompt would
change from its beginning (`python -m benchmarks recall_offer`). Other clients get the tool once something has left the
context. The client never sees the calls; `thread/caller/recall_rounds.py` keeps them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everthread.agent.tools.conversation_tools import RECALL_SCHEMA, answer_recall
from everthread.compaction.summary.summary_message import find_reading_tools
from everthread.core.messages import Call, Message, calls_of, tool_names
from everthread.core.recent_dict import RecentDict
from everthread.core.secrets.redaction import redact
from everthread.core.types import Api, Reply, Request
from everthread.errors import EverthreadError, InputError
from everthread.gateway.contracts import Incoming
from everthread.gateway.recall.stream_merge import RECALL
from everthread.gateway.recall.withdrawn_tools import (
    are_withdrawn,
    find_deferred_readers,
)
from everthread.gateway.request.json_slices import Change, SlicedBody
from everthread.store.store import Store
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.caller.recall_rounds import MAX_RECALL_ROUNDS, RESULT_PARTS
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.wire_messages import encode_messages, encode_value
from everthread.wire import anthropic, gemini, openai_responses
from everthread.wire.gemini.fields import find_field_name, get_field, get_object_field

RECALL_HEADER = "x-everthread-recall"
"""Request header with which a client turns the tool `off`."""
MAX_REMEMBERED_SETTINGS = 256
"""Maximum remembered settings (system prompt and tools), which are not read again."""
_NO_ROOM_TEXT = "There is no room left to look that up; answer with what you have."
_ALL_IN_CONTEXT_TEXT = (
    "Nothing has left this conversation yet: every message and tool result is in your "
    "context above. These places hold it:"
)


# Offering


class RecallOffers:
    """Decide which clients may get the tool. Tools that did not change are not read again."""

    def __init__(self, *, enabled: bool) -> None:
        self._is_enabled = enabled
        self._offer_facts: RecentDict[int, _ToolOfferFacts] = RecentDict(
            MAX_REMEMBERED_SETTINGS
        )
        """By the ids of the settings."""

    def choose_tool(
        self, incoming: Incoming, sliced: SlicedBody, settings: Request
    ) -> Mapping[str, Any] | None:
        """Return the tool; None if the client has a similar tool or has turned ours off.

        A client that has detached our MCP server also gets the tool.
        """
        setting = incoming.headers.get(RECALL_HEADER, "").lower()
        if not self._is_enabled or setting in ("off", "false", "0"):
            return None
        offer_facts = self._offer_facts.get(id(settings))
        if offer_facts is None or offer_facts.settings is not settings:
            lacks_recall = _lacks_recall(incoming.api, sliced, settings)
            deferred = () if lacks_recall else find_deferred_readers(sliced)
            offer_facts = _ToolOfferFacts(settings, lacks_recall, deferred)
        self._offer_facts[id(settings)] = offer_facts
        is_offered = offer_facts.lacks_recall or (
            bool(offer_facts.deferred_readers)
            and are_withdrawn(sliced.elements, offer_facts.deferred_readers)
        )
        return RECALL_SCHEMA if is_offered else None


@dataclass(frozen=True, slots=True)
class _ToolOfferFacts:
    """A settings, and how the tools relate to our own tool."""

    settings: Request
    lacks_recall: bool
    """Whether none of its tools reads earlier messages."""
    deferred_readers: tuple[str, ...]
    """The names of our MCP server's tools if the client defers them, so that it may withdraw them."""


def _lacks_recall(api: Api, sliced: SlicedBody, settings: Request) -> bool:
    tools = settings.tools if api == "gemini" else sliced.fields.get("tools")
    return not find_reading_tools(settings.tools) and RECALL not in _list_tool_names(
        tools
    )


def offers_recall(call: PreparedCall, sliced: SlicedBody) -> bool:
    """Return whether to offer the tool with this request, which must let the model choose its tools freely."""
    fields = sliced.fields
    return (
        call.settings.recall_tool is not None
        and (call.has_left_messages or bool(call.settings.request.tools))
        and call.rounds.round_count < MAX_RECALL_ROUNDS
        and _allows_free_choice(fields.get("tool_choice"))
        and _gemini_may_call(call.settings.api, fields)
        and fields.get("n") in (None, 1)
        and not fields.get("functions")
        and isinstance(fields.get("tools"), list | None)
    )


# Answering


async def answer_round(store: Store, call: PreparedCall, reply: Reply) -> bool:
    """Answer the recall calls of a round; return whether all its calls were recall calls, so that a round follows."""
    calls = calls_of(reply.message)
    recalls = [tool_call for tool_call in calls if tool_call.name == RECALL]
    results = [
        _make_result(tool_call, await _look_up(store, call, tool_call))
        for tool_call in recalls
    ]
    api = call.settings.api
    wire_messages = encode_messages(api, [reply.message, *results], call.model)
    rounds = call.rounds
    rounds.call_count += len(recalls)
    if recalls and len(recalls) == len(calls):
        rounds.texts += map(encode_value, wire_messages)
        rounds.wire_messages += wire_messages
        rounds.round_count += 1
        return True
    if recalls and api in RESULT_PARTS:
        parts = wire_messages.pop()[RESULT_PARTS[api]]
        rounds.blocks = ",".join(map(encode_value, parts))
    rounds.last_round_texts = list(map(encode_value, wire_messages))
    return False


def refuse_last_round(call: PreparedCall, reply: Reply) -> None:
    """Replace the results of the last round, which were too large, by a short refusal."""
    results = [
        _make_result(tool_call, _NO_ROOM_TEXT) for tool_call in calls_of(reply.message)
    ]
    wire_messages = encode_messages(
        call.settings.api, [reply.message, *results], call.model
    )
    rounds = call.rounds
    rounds.texts[len(rounds.texts) - len(wire_messages) :] = map(
        encode_value, wire_messages
    )
    rounds.wire_messages[len(rounds.wire_messages) - len(wire_messages) :] = (
        wire_messages
    )
    rounds.round_count = MAX_RECALL_ROUNDS
    rounds.is_refused = True


async def _look_up(store: Store, call: PreparedCall, recall: Call) -> str:
    """Return the answer to a recall call, or a text that says why it cannot be answered."""
    lookup = StoreLookup(
        store,
        call.sent.family.tenant,
        call.thread,
        family=True,
        skip_visible=True,
    )
    try:
        arguments = json.loads(recall.arguments or "{}")
        if not isinstance(arguments, dict):
            raise InputError("the arguments are no object")
        answer = await answer_recall(lookup, arguments)
        is_all_in_context = (
            not call.has_left_messages and len(await lookup.threads()) == 1
        )
    except (EverthreadError, ValueError) as error:
        return redact(f"That could not be looked up: {error}")
    return f"{_ALL_IN_CONTEXT_TEXT}\n\n{answer}" if is_all_in_context else answer


def _make_result(call: Call, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "content": text}


# The tool in the request's text


def make_tool_change(
    api: Api, sliced: SlicedBody, *, forbids_calls: bool = False
) -> Change:
    """Return the change that adds the tool as the last one. `forbids_calls`: whether to forbid all tool calls too."""
    if api == "gemini":
        return _gemini_tool_change(sliced, forbids_calls=forbids_calls)
    tool = _encode_tool(api)
    span = sliced.spans.get("tools")
    tools = sliced.fields.get("tools")
    if span is not None and tools:
        return span[1] - 1, span[1] - 1, f",{tool}"
    tool_choice = (
        {"anthropic": ',"tool_choice":{"type":"none"}'}.get(
            api, ',"tool_choice":"none"'
        )
        if forbids_calls
        else ""
    )
    if span is not None:
        return (*span, f"[{tool}]{tool_choice}")
    start = sliced.body.index(b"{") + 1
    return start, start, f'"tools":[{tool}]{tool_choice},'


def _gemini_tool_change(sliced: SlicedBody, *, forbids_calls: bool) -> Change:
    """Return the change that adds the tool to the first group of function declarations."""
    [declaration] = gemini.encode_tools([RECALL_SCHEMA])[0]["functionDeclarations"]
    tools = [dict(tool) for tool in sliced.fields.get("tools") or ()]
    if not tools:
        tools = [{"functionDeclarations": []}]
    name = find_field_name(tools[0], "functionDeclarations")
    tools[0][name] = [*(tools[0].get(name) or ()), declaration]
    tool_config = (
        ',"toolConfig":{"functionCallingConfig":{"mode":"NONE"}}'
        if forbids_calls
        else ""
    )
    span = sliced.spans.get("tools")
    if span is not None:
        return (*span, f"{encode_value(tools)}{tool_config}")
    start = sliced.body.index(b"{") + 1
    return start, start, f'"tools":{encode_value(tools)}{tool_config},'


def _gemini_may_call(api: Api, fields: Mapping[str, Any]) -> bool:
    """Return whether a Gemini request has only function tools that the model may choose; True for other protocols."""
    if api != "gemini":
        return True
    config = (
        get_object_field(
            get_object_field(fields, "toolConfig") or {}, "functionCallingConfig"
        )
        or {}
    )
    tools = fields.get("tools") or []
    has_only_functions = all(
        isinstance(tool, dict)
        and set(tool) == {find_field_name(tool, "functionDeclarations")}
        for tool in tools
    )
    return has_only_functions and get_field(config, "mode") in (
        None,
        "AUTO",
        "MODE_UNSPECIFIED",
    )


@functools.cache
def _encode_tool(api: Api) -> str:
    """Return the tool in the form of a protocol."""
    if api == "anthropic":
        return encode_value(anthropic.encode_tools([RECALL_SCHEMA])[0])
    if api == "openai_responses":
        return encode_value(openai_responses.encode_tools([RECALL_SCHEMA])[0])
    return encode_value(RECALL_SCHEMA)


def _allows_free_choice(choice: Any) -> bool:
    return choice in (None, "auto") or (
        isinstance(choice, Mapping) and choice.get("type") == "auto"
    )


def _list_tool_names(tools: Any) -> set[str]:
    definitions = (
        [tool for tool in tools if isinstance(tool, dict)]
        if isinstance(tools, list)
        else ()
    )
    return {name for tool in definitions for name in tool_names(tool)}
