"""Requests, tools and replies of OpenAI's Responses protocol <-> core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.caching.openai_cache_breakpoints import BREAKPOINT, has_breakpoint
from everthread.core.messages import (
    Message,
    content_text,
)
from everthread.core.types import Reply, Request, System
from everthread.errors import WireError
from everthread.wire.common import (
    error_text,
    native_value,
    require_list,
    require_object,
    require_text,
    split_reply_fields,
    without_private_fields,
    write_reply_fields,
)
from everthread.wire.openai_responses.response_items import (
    API,
    Item,
    decode_assistant_items,
    decode_messages,
    encode_messages,
)

_STOP_BY_INCOMPLETE_REASON = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}


def decode_request(body: Mapping[str, Any]) -> Request:
    """Return a request in core form. A field the core cannot express (`input: null`) stays in `params`."""
    body = without_private_fields(require_object(body, "the request"))
    model = require_text(body.get("model"), "model")
    messages = decode_messages(body.get("input") or [], model=model)
    tools = decode_tools(body.get("tools") or [])
    system: System = (
        body["instructions"] if isinstance(body.get("instructions"), str) else None
    )
    fields_in_core = {
        "input": messages,
        "tools": tools,
        "instructions": system is not None,
        "model": True,
    }
    params = {key: value for key, value in body.items() if not fields_in_core.get(key)}
    return Request(
        model=model, messages=messages, system=system, tools=tools, params=params
    )


def encode_request(request: Request) -> dict[str, Any]:
    body = {"model": request.model, **without_private_fields(request.params)}
    if request.messages:
        text = (
            native_value(request.messages[0], API)
            if len(request.messages) == 1
            else None
        )
        body["input"] = (
            text
            if isinstance(text, str)
            else encode_messages(request.messages, model=request.model)
        )
    if isinstance(request.system, str):
        body["instructions"] = request.system
    elif request.system and has_breakpoint(request.system):
        body["input"] = [_encode_system(request.system), *_as_items(body.get("input"))]
    elif request.system:
        body["instructions"] = "\n\n".join(
            content_text([part]) for part in request.system
        )
    tools = encode_tools(request.tools)
    return {**body, "tools": tools} if tools else body


def _encode_system(system: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a system prompt as a message: `instructions` cannot carry a breakpoint."""
    parts: list[Any] = []
    for part in system or ():
        breakpoint_field = {key: part[key] for key in part if key == BREAKPOINT}
        parts.append(
            {"type": "input_text", "text": content_text([part]), **breakpoint_field}
        )
    return {"type": "message", "role": "developer", "content": parts}


def _as_items(items: Any) -> list[Any]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    return list(items or ())


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return functions and custom tools in chat's nested form; built-in tools are unchanged."""
    return [
        _decode_tool(require_object(tool, f"tools[{index}]"))
        for index, tool in enumerate(require_list(wire, "tools"))
    ]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that this API can call, without those built into another API."""
    return [encoded for tool in tools if (encoded := _encode_tool(tool)) is not None]


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> Reply:
    """Return a reply in core form. `model` is the requested name."""
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("error") and "output" not in body:
        raise WireError(
            f"the reply is an error, not a response: {error_text(body['error']) or repr(body['error'])}"
        )
    items = require_list(body.get("output"), "output")
    output = [
        dict(require_object(item, f"output[{index}]"))
        for index, item in enumerate(items)
    ]
    fields, other_fields = split_reply_fields(body)
    message = decode_assistant_items(output, model=model or fields.get("model"))
    raw = {key: value for key, value in other_fields.items() if key != "output"}
    return Reply(
        message=message,
        stop=_decode_stop(raw, message),
        raw={**raw, "_api": API},
        **fields,
    )


def encode_reply(reply: Reply) -> dict[str, Any]:
    """Return a reply as a response. A decoded reply is returned verbatim."""
    is_native = reply.raw.get("_api") == API
    raw = without_private_fields(reply.raw) if is_native else _DEFAULT_RESPONSE_FIELDS
    body = {**raw, "output": _encode_output(reply)}
    if not is_native or _decode_stop(raw, reply.message) != reply.stop:
        body |= _encode_status(reply.stop)
    return write_reply_fields(
        body, reply, "input_tokens", "output_tokens", is_native=is_native
    )


def _decode_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    fields = {
        key: value
        for key, value in without_private_fields(tool).items()
        if key != "type"
    }
    if kind == "function":
        return {"type": kind, kind: fields}
    if kind == "custom":
        tool_format = fields.get("format")
        if isinstance(tool_format, dict) and tool_format.get("type") == "grammar":
            grammar = {
                key: value for key, value in tool_format.items() if key != "type"
            }
            fields = {**fields, "format": {"type": "grammar", "grammar": grammar}}
        return {"type": kind, kind: fields}
    return {
        **without_private_fields(tool),
        "_native": {"api": API, "value": without_private_fields(tool)},
    }


def _encode_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    function = tool.get("function")
    custom = tool.get("custom")
    if isinstance(function, dict):
        return {"type": "function", **function}
    if isinstance(custom, dict):
        tool_format = custom.get("format")
        if isinstance(tool_format, dict) and isinstance(
            tool_format.get("grammar"), dict
        ):
            custom = {**custom, "format": {"type": "grammar", **tool_format["grammar"]}}
        return {"type": "custom", **custom}
    return (
        without_private_fields(tool)
        if "_native" not in tool or native_value(tool, API) is not None
        else None
    )


def _decode_stop(raw: Mapping[str, Any], message: Message) -> str | None:
    status = raw.get("status")
    if status == "completed":
        return (
            "tool_calls"
            if message.get("tool_calls")
            else "refusal"
            if message.get("refusal")
            else "stop"
        )
    if status == "incomplete":
        details = raw.get("incomplete_details")
        return _STOP_BY_INCOMPLETE_REASON.get(
            str(details.get("reason")) if isinstance(details, dict) else "", "other"
        )
    return "other" if status in ("failed", "cancelled") else None


def _encode_status(stop: str | None) -> dict[str, Any]:
    reason = next(
        (reason for reason, name in _STOP_BY_INCOMPLETE_REASON.items() if name == stop),
        None,
    )
    if reason:
        return {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return {
        "status": "in_progress" if stop is None else "completed",
        "incomplete_details": None,
    }


def _encode_output(reply: Reply) -> list[Item]:
    """Return the items of the reply. Items made from another API's message get the fields that clients expect."""
    items = encode_messages([reply.message])
    if native_value(reply.message, API) is not None:
        return items
    return [
        _add_answer_fields(item, f"{reply.id or 'reply'}_{index}")
        for index, item in enumerate(items)
    ]


def _add_answer_fields(item: Item, id_suffix: str) -> Item:
    prefix = {"message": "msg", "function_call": "fc"}.get(item["type"], "ctc")
    answer = {"id": f"{prefix}_{id_suffix}", "status": "completed", **item}
    if item["type"] == "message":
        answer["content"] = [
            {"annotations": [], "logprobs": [], **part}
            if part["type"] == "output_text"
            else part
            for part in item["content"]
        ]
    return answer


_DEFAULT_RESPONSE_FIELDS: dict[str, Any] = {
    "object": "response",
    "created_at": 0,
    "error": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
