"""Decode items of OpenAI's Responses protocol to core messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from everthread.core.json_values import as_object, json_text, without_keys
from everthread.core.messages import Message, Part, content_text, kind_of, make_call, simplify_parts
from everthread.errors import WireError
from everthread.wire.native_values import with_native
from everthread.wire.openai_chat import to_chat_parts
from everthread.wire.openai_responses.responses_items import (
    API,
    CALL_KIND_BY_RESULT_KIND,
    NAMESPACE_FIELD,
    RESULT_KIND_BY_CALL_KIND,
    ResponseItem,
    find_item_kind,
    get_answered_call_id,
    get_call_id,
    get_call_name,
)
from everthread.wire.payload_checks import require_list, require_object, require_text

_ADDITIONAL_TOOLS = "additional_tools"
"""The item by which a client offers tools in its input."""
_KINDS_WITHOUT_LABEL = ("message", "reasoning")
_NON_ARGUMENT_FIELDS = frozenset(
    {"id", "type", "status", "call_id", "caller", "created_by", "name", "server_label"}
)


def decode_messages(
    wire_input: str | Sequence[Mapping[str, Any]], *, model: str | None = None
) -> list[Message]:
    """Return core messages from items, or from a text, which is a single user message.

    `model` is the author of the reasoning, if known.
    """
    if isinstance(wire_input, str):
        text_message: Message = {"role": "user", "content": wire_input}
        return [with_native(text_message, API, wire_input)]
    messages: list[Message] = []
    run: list[ResponseItem] = []
    for index, value in enumerate(require_list(wire_input, "input")):
        item = cast("ResponseItem", require_object(value, f"input[{index}]"))
        role = _find_item_role(item, f"input[{index}]")
        if role == "assistant":
            run.append(item)
            continue
        if run:
            messages.append(decode_assistant_items(run, model=model))
            run = []
        message = _decode_result(item) if role == "tool" else _decode_message_item(item, role)
        messages.append(with_native(message, API, item))
    if run:
        messages.append(decode_assistant_items(run, model=model))
    return messages


def decode_assistant_items(items: Sequence[ResponseItem], *, model: str | None = None) -> Message:
    """Return a run of items as one assistant message, without the calls that the provider ran and answered itself."""
    results = (item for item in items if kind_of(item) in CALL_KIND_BY_RESULT_KIND)
    answered_ids = {"", *map(get_answered_call_id, results)}
    calls = [
        decode_call(item)
        for item in items
        if kind_of(item) in RESULT_KIND_BY_CALL_KIND and get_call_id(item) not in answered_ids
    ]
    parts = [part for item in items if "role" in item for part in _decode_content(item)]
    refusals = [content_text([part]) for part in parts if kind_of(part) == "refusal"]
    texts = [part for part in parts if kind_of(part) != "refusal"]
    message: Message = {"role": "assistant", "content": simplify_parts(texts)}
    if calls:
        message["tool_calls"] = calls
    if refusals:
        message["refusal"] = "\n".join(refusals)
    if not (calls or parts):
        kinds = map(find_item_kind, items)
        labels = [f"[{kind}]" for kind in kinds if kind not in _KINDS_WITHOUT_LABEL]
        message["content"] = "\n".join(labels)
    return with_native(message, API, list(items), model=model)


def _find_item_role(item: ResponseItem, path: str) -> str:
    kind = kind_of(item)
    if kind == "message" or (not kind and "role" in item):
        role = require_text(item.get("role"), f"{path}.role")
        if role == "tool":
            raise WireError(f"{path}.role must not be tool: a result is an item of its own here")
        return role
    if kind == _ADDITIONAL_TOOLS:
        return "developer"
    is_result = kind in CALL_KIND_BY_RESULT_KIND and get_answered_call_id(item)
    return "tool" if is_result else "assistant"


def _decode_message_item(item: ResponseItem, role: str) -> Message:
    if kind_of(item) == _ADDITIONAL_TOOLS:
        return {"role": role, "content": json.dumps(item.get("tools"), ensure_ascii=False)}
    content = item.get("content")
    if not isinstance(content, str):
        content = _decode_content(item)
    return {"role": role, "content": content}


def _decode_content(item: ResponseItem) -> list[Part]:
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    parts = require_list(content or [], "content")
    return to_chat_parts([dict(require_object(part, "a part of the content")) for part in parts])


def decode_call(item: ResponseItem) -> Any:
    """Return the call in chat form."""
    kind = item["type"]
    name = get_call_name(item)
    namespace = item.get("namespace")
    own_fields = {NAMESPACE_FIELD: namespace} if namespace else {}
    if kind == "custom_tool_call":
        custom = {"name": name, "input": item.get("input")}
        return {"id": get_call_id(item), "type": "custom", "custom": custom, **own_fields}
    arguments = item.get("arguments")
    if arguments is None:
        arguments = without_keys(item, *_NON_ARGUMENT_FIELDS)
    call = make_call(
        get_call_id(item), name or kind.removesuffix("_call"), arguments=json_text(arguments)
    )
    return {**call, **own_fields}


def _decode_result(item: ResponseItem) -> Message:
    output: Any = item.get("output")
    content: str | list[Part]
    if item["type"] == "mcp_approval_response":
        decision = "approved" if item.get("approve") else "denied"
        content = f"{decision} {item.get('reason') or ''}".strip()
    elif kind_of(output) == "computer_screenshot":
        content = to_chat_parts([{**output, "type": "input_image"}])
    elif item["type"] == "shell_call_output" and isinstance(output, list):
        texts: list[Any] = []
        for piece in map(as_object, output):
            texts += [piece.get("stdout"), piece.get("stderr")]
        content = "\n".join(str(text) for text in texts if text)
    elif isinstance(output, list):
        content = to_chat_parts(output)
    elif output is None:
        content = json.dumps(item["tools"], ensure_ascii=False) if item.get("tools") else ""
    else:
        content = content_text(output)
    return {
        "role": "tool",
        "tool_call_id": get_answered_call_id(item),
        "content": content,
    }
