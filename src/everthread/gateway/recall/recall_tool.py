"""Add the tool `recall` to the text of a request."""

from __future__ import annotations

from everthread.agent.tools.recall import RECALL_SCHEMA
from everthread.core.types import Api
from everthread.gateway.request.json_slices import BodyEdit, BodySlices, make_fields_edit
from everthread.thread.wire_messages import encode_value
from everthread.wire.codecs import CODECS


def make_tool_edit(api: Api, slices: BodySlices, *, forbids_calls: bool = False) -> BodyEdit:
    """Return the edit that adds the tool as the last one. `forbids_calls`: whether to forbid all tool calls too."""
    codec = CODECS[api]
    client_tools = slices.fields.get("tools") or []
    tools = codec.request_fields.add_tools(client_tools, codec.encode_tools([RECALL_SCHEMA]))
    if client_tools and tools[:-1] == client_tools:
        # Keep the client's own bytes of its tools.
        end = slices.spans["tools"][1] - 1
        return BodyEdit(end, end, f",{encode_value(tools[-1])}")
    tool_choice = codec.request_fields.no_tool_choice if forbids_calls else {}
    return make_fields_edit(slices, {"tools": tools, **tool_choice})
