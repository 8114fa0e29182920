"""Add the tool `recall` to the text of a request."""

from __future__ import annotations

import functools

from everthread.agent.tools.recall import RECALL_SCHEMA
from everthread.core.types import Api
from everthread.gateway.request.json_slices import BodyEdit, BodySlices
from everthread.thread.wire_messages import encode_value
from everthread.wire import anthropic, gemini, openai_responses
from everthread.wire.gemini.field_names import find_field_name


def make_tool_edit(api: Api, slices: BodySlices, *, forbids_calls: bool = False) -> BodyEdit:
    """Return the edit that adds the tool as the last one. `forbids_calls`: whether to forbid all tool calls too."""
    if api == "gemini":
        return _make_gemini_tool_edit(slices, forbids_calls=forbids_calls)
    tool = _encode_tool(api)
    span = slices.spans.get("tools")
    if span is not None and slices.fields["tools"]:
        last_position = span[1] - 1
        return BodyEdit(last_position, last_position, f",{tool}")
    tool_choice = ""
    if forbids_calls and api == "anthropic":
        tool_choice = ',"tool_choice":{"type":"none"}'
    elif forbids_calls:
        tool_choice = ',"tool_choice":"none"'
    if span is not None:
        return BodyEdit(*span, f"[{tool}]{tool_choice}")
    start = slices.body.index(b"{") + 1
    return BodyEdit(start, start, f'"tools":[{tool}]{tool_choice},')


def _make_gemini_tool_edit(slices: BodySlices, *, forbids_calls: bool) -> BodyEdit:
    """Return the edit that adds the tool to the first group of function declarations."""
    [declaration] = gemini.encode_tools([RECALL_SCHEMA])[0]["functionDeclarations"]
    tools = [dict(tool) for tool in slices.fields.get("tools") or ()]
    if not tools:
        tools = [{"functionDeclarations": []}]
    name = find_field_name(tools[0], "functionDeclarations")
    tools[0][name] = [*(tools[0].get(name) or ()), declaration]
    tool_config = ',"toolConfig":{"functionCallingConfig":{"mode":"NONE"}}' if forbids_calls else ""
    span = slices.spans.get("tools")
    if span is not None:
        return BodyEdit(*span, f"{encode_value(tools)}{tool_config}")
    start = slices.body.index(b"{") + 1
    return BodyEdit(start, start, f'"tools":{encode_value(tools)}{tool_config},')


@functools.cache
def _encode_tool(api: Api) -> str:
    """Return the tool in the form of a protocol."""
    if api == "anthropic":
        return encode_value(anthropic.encode_tools([RECALL_SCHEMA])[0])
    if api == "openai_responses":
        return encode_value(openai_responses.encode_tools([RECALL_SCHEMA])[0])
    return encode_value(RECALL_SCHEMA)
