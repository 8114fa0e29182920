"""OpenAI responses <-> core: requests, messages, tools, replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.messages import Message, Messages, content_text
from everthread.core.pricing.usage import normalize_usage
from everthread.core.types import Reply, Request, System
from everthread.errors import WireError
from everthread.wire.native import native_value, with_native
from everthread.wire.openai_chat import reply_fields
from everthread.wire.openai_items import API, Item, decode_items, decode_run, encode_items
from everthread.wire.shape import a_list, a_text, an_object, error_text, own

__all__ = [
    "API",
    "decode_messages",
    "decode_reply",
    "decode_request",
    "decode_tools",
    "encode_messages",
    "encode_reply",
    "encode_request",
    "encode_tools",
]

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


def decode_request(body: Mapping[str, Any]) -> Request:
    """A request in core form. A field the core cannot express (`input: null`) stays in `params`."""
    body = own(an_object(body, "the request"))
    model = a_text(body.get("model"), "model")
    messages = decode_messages(body.get("input") or [], model=model)
    tools = decode_tools(body.get("tools") or [])
    system: System = body["instructions"] if isinstance(body.get("instructions"), str) else None
    told = {"input": messages, "tools": tools, "instructions": system is not None, "model": True}
    params = {key: value for key, value in body.items() if not told.get(key)}
    return Request(model=model, messages=messages, system=system, tools=tools, params=params)


def encode_request(request: Request) -> dict[str, Any]:
    body = {"model": request.model, **own(request.params)}
    if request.messages:
        text = native_value(request.messages[0], API) if len(request.messages) == 1 else None
        body["input"] = text if isinstance(text, str) else encode_messages(request.messages, model=request.model)
    if isinstance(request.system, str):
        body["instructions"] = request.system
    elif request.system:
        body["instructions"] = "\n\n".join(content_text([part]) for part in request.system)
    tools = encode_tools(request.tools)
    return {**body, "tools": tools} if tools else body


def decode_messages(wire: str | Sequence[Mapping[str, Any]], *, model: str | None = None) -> list[Message]:
    """Core messages from items, or from the text that may stand for a single user message."""
    if isinstance(wire, str):
        return [with_native({"role": "user", "content": wire}, API, wire)]
    return decode_items(wire, model=model)


def encode_messages(messages: Messages, *, model: str | None = None) -> list[dict[str, Any]]:
    return encode_items(messages, model=model)


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Functions and custom tools in chat's form, which nests what is flat here; built-in tools as they are."""
    return [_decode_tool(an_object(tool, f"tools[{index}]")) for index, tool in enumerate(a_list(wire, "tools"))]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools this API can call; what is built into another API is not among them."""
    return [encoded for tool in tools if (encoded := _encode_tool(tool)) is not None]


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> Reply:
    """A reply in core form; `model` is the name under which it was asked for."""
    body = own(an_object(body, "the reply"))
    if body.get("error") and "output" not in body:
        raise WireError(f"the reply is an error, not a response: {error_text(body['error']) or repr(body['error'])}")
    items = a_list(body.get("output"), "output")
    output = [dict(an_object(item, f"output[{at}]")) for at, item in enumerate(items)]
    told, rest = reply_fields(body)
    message = decode_run(output, model=model or told.get("model"))
    raw = {key: value for key, value in rest.items() if key != "output"}
    return Reply(message=message, stop=_stop(raw, message), raw={**raw, "_api": API}, **told)


def encode_reply(reply: Reply) -> dict[str, Any]:
    """A response. What was decoded from one comes back verbatim."""
    native = reply.raw.get("_api") == API
    raw = own(reply.raw) if native else _DEFAULTS
    body = {**raw, "output": _output(reply)}
    if not native or _stop(raw, reply.message) != reply.stop:
        body |= _status(reply.stop)
    if reply.id or not native:
        body["id"] = reply.id
    if reply.model or not native:
        body["model"] = reply.model
    if reply.usage is not None:
        body["usage"] = reply.usage if native else _usage(reply.usage)
    return body


def _decode_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    fields = {key: value for key, value in own(tool).items() if key != "type"}
    if kind == "function":
        return {"type": kind, kind: fields}
    if kind == "custom":
        form = fields.get("format")
        if isinstance(form, dict) and form.get("type") == "grammar":
            grammar = {key: value for key, value in form.items() if key != "type"}
            fields = {**fields, "format": {"type": "grammar", "grammar": grammar}}
        return {"type": kind, kind: fields}
    return {**own(tool), "_native": {"api": API, "value": own(tool)}}


def _encode_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    function, custom = tool.get("function"), tool.get("custom")
    if isinstance(function, dict):
        return {"type": "function", **function}
    if isinstance(custom, dict):
        form = custom.get("format")
        if isinstance(form, dict) and isinstance(form.get("grammar"), dict):
            custom = {**custom, "format": {"type": "grammar", **form["grammar"]}}
        return {"type": "custom", **custom}
    return own(tool) if "_native" not in tool or native_value(tool, API) is not None else None


def _stop(raw: Mapping[str, Any], message: Message) -> str | None:
    status = raw.get("status")
    if status == "completed":
        return "tool_calls" if message.get("tool_calls") else "refusal" if message.get("refusal") else "stop"
    if status == "incomplete":
        details = raw.get("incomplete_details")
        return _INCOMPLETE.get(str(details.get("reason")) if isinstance(details, dict) else "", "other")
    return "other" if status in ("failed", "cancelled") else None


def _status(stop: str | None) -> dict[str, Any]:
    reason = next((reason for reason, name in _INCOMPLETE.items() if name == stop), None)
    if reason:
        return {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return {"status": "in_progress" if stop is None else "completed", "incomplete_details": None}


def _output(reply: Reply) -> list[Item]:
    """The reply's items; those made from another API's message get the fields clients expect of an answer."""
    items = encode_messages([reply.message])
    if native_value(reply.message, API) is not None:
        return items
    return [_answer(item, f"{reply.id or 'reply'}_{index}") for index, item in enumerate(items)]


def _answer(item: Item, name: str) -> Item:
    prefix = {"message": "msg", "function_call": "fc"}.get(item["type"], "ctc")
    answer = {"id": f"{prefix}_{name}", "status": "completed", **item}
    if item["type"] == "message":
        answer["content"] = [
            {"annotations": [], "logprobs": [], **part} if part["type"] == "output_text" else part
            for part in item["content"]
        ]
    return answer


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    figures = normalize_usage(usage)
    return {
        "input_tokens": figures.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": figures.cache_read_tokens,
            "cache_write_tokens": figures.cache_write_tokens,
        },
        "output_tokens": figures.output_tokens,
        "output_tokens_details": {"reasoning_tokens": figures.reasoning_tokens},
        "total_tokens": figures.total_tokens,
    }


_DEFAULTS: dict[str, Any] = {
    "object": "response",
    "created_at": 0,
    "error": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
