"""Items of OpenAI's Responses protocol <-> core messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from everthread.core.messages import (
    Message,
    Messages,
    Part,
    as_text,
    calls_of,
    content_text,
    join_name,
    kind_of,
    parts_of,
    results_of,
    simplify_parts,
    text_of,
)
from everthread.errors import WireError
from everthread.wire.common import (
    can_use_reasoning,
    native_value,
    require_list,
    require_object,
    require_text,
    with_native,
)
from everthread.wire.openai_chat import list_tool_calls, to_chat_messages, to_chat_parts

API = "openai_responses"
Item = dict[str, Any]

RESULT_KIND_BY_CALL_KIND = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""Kinds of calls that the client answers, each with the kind of its result item."""
_CALL_KIND_BY_RESULT_KIND = {
    output: call for call, output in RESULT_KIND_BY_CALL_KIND.items()
}
_FREE_TEXT_CALL_KINDS = ("function_call", "custom_tool_call")
"""Calls that take any text as their result."""
_BUILT_IN_CALL_KINDS = RESULT_KIND_BY_CALL_KIND.keys() - _FREE_TEXT_CALL_KINDS
_ADDITIONAL_TOOLS = "additional_tools"
"""The item by which a client offers tools in its input."""
_TOOL_SEARCH_CALL = "tool_search_call"
"""A call whose result defines tools. A result that was rewritten as text defines none, so its call is dropped too."""
_NAMESPACE_FIELD = "_namespace"
"""Private field with the namespace of a call's tool, to be written back."""
_KINDS_WITHOUT_LABEL = ("message", "reasoning")
_NON_ARGUMENT_FIELDS = frozenset(
    {"id", "type", "status", "call_id", "caller", "created_by", "name", "server_label"}
)


def decode_messages(
    wire: str | Sequence[Mapping[str, Any]], *, model: str | None = None
) -> list[Message]:
    """Return core messages from items, or from a text, which is a single user message.

    `model` is the author of the reasoning, if known.
    """
    if isinstance(wire, str):
        return [with_native({"role": "user", "content": wire}, API, wire)]
    messages: list[Message] = []
    run: list[Item] = []
    for index, value in enumerate(require_list(wire, "input")):
        item = cast("Item", require_object(value, f"input[{index}]"))
        role = _find_item_role(item, f"input[{index}]")
        if role == "assistant":
            run.append(item)
            continue
        if run:
            messages.append(decode_assistant_items(run, model=model))
            run = []
        messages.append(
            with_native(
                _decode_result(item)
                if role == "tool"
                else _decode_message_item(item, role),
                API,
                item,
            )
        )
    return [*messages, decode_assistant_items(run, model=model)] if run else messages


def decode_assistant_items(
    items: Sequence[Item], *, model: str | None = None
) -> Message:
    """Return a run of items as one assistant message, without the calls that the provider ran and answered itself."""
    answered_ids = {
        "",
        *(
            _get_answered_call_id(item)
            for item in items
            if kind_of(item) in _CALL_KIND_BY_RESULT_KIND
        ),
    }
    calls = [
        _decode_call(item)
        for item in items
        if kind_of(item) in RESULT_KIND_BY_CALL_KIND
        and get_call_id(item) not in answered_ids
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
        message["content"] = "\n".join(
            f"[{kind}]"
            for kind in map(_find_item_kind, items)
            if kind not in _KINDS_WITHOUT_LABEL
        )
    return with_native(message, API, list(items), model=model)


def encode_messages(messages: Messages, *, model: str | None = None) -> list[Item]:
    """Return items for `model`, without reasoning that another model or API wrote."""
    rewritten_call_ids = {
        result.call_id
        for message in messages
        if native_value(message, API) is None
        for result in results_of(message)
    }
    dropped_search_ids = _find_search_call_ids(messages) & rewritten_call_ids
    items: list[Item] = []
    call_kinds: dict[str, Any] = {}
    for message in messages:
        value = native_value(message, API)
        if value is None and message.get("tool_call_id") in dropped_search_ids:
            continue
        if isinstance(value, list):
            new_items = _encode_assistant_items(
                value,
                rewritten_call_ids,
                keep_reasoning=can_use_reasoning(message, API, model),
            )
        elif isinstance(value, str):
            new_items = [{"role": "user", "content": value}]
        elif isinstance(value, dict) and _matches_call_kind(value, call_kinds):
            new_items = [value]
        else:
            new_items = [
                item
                for chat_message in to_chat_messages(message)
                for item in _encode_chat_message(chat_message, call_kinds)
            ]
        call_kinds |= {
            get_call_id(item): item["type"]
            for item in new_items
            if kind_of(item) in RESULT_KIND_BY_CALL_KIND
        }
        items += new_items
    return items


def _find_search_call_ids(messages: Messages) -> set[str]:
    """Return the ids of all searches for tools that the client answers."""
    runs = (
        value
        for message in messages
        if isinstance(value := native_value(message, API), list)
    )
    return {
        get_call_id(item)
        for run in runs
        for item in run
        if kind_of(item) == _TOOL_SEARCH_CALL
    }


def get_call_id(item: Mapping[str, Any]) -> str:
    """Return the id that a result refers to; empty if the provider answers the call itself."""
    value = (
        item.get("id")
        if kind_of(item) == "mcp_approval_request"
        else item.get("call_id")
    )
    return as_text(value)


def _get_answered_call_id(item: Mapping[str, Any]) -> str:
    """Return the id of the call that a result answers."""
    value = item.get(
        "approval_request_id" if item["type"] == "mcp_approval_response" else "call_id"
    )
    if value is None and item["type"] == "local_shell_call_output":
        value = item.get("id")
    return as_text(value)


def _find_item_role(item: Item, path: str) -> str:
    kind = kind_of(item)
    if kind == "message" or (not kind and "role" in item):
        role = require_text(item.get("role"), f"{path}.role")
        if role == "tool":
            raise WireError(
                f"{path}.role must not be tool: a result is an item of its own here"
            )
        return role
    if kind == _ADDITIONAL_TOOLS:
        return "developer"
    return (
        "tool"
        if kind in _CALL_KIND_BY_RESULT_KIND and _get_answered_call_id(item)
        else "assistant"
    )


def _find_item_kind(item: Item) -> str:
    return kind_of(item) or ("message" if "role" in item else "item_reference")


def _decode_message_item(item: Item, role: str) -> Message:
    if kind_of(item) == _ADDITIONAL_TOOLS:
        return {
            "role": role,
            "content": json.dumps(item.get("tools"), ensure_ascii=False),
        }
    content = item.get("content")
    return {
        "role": role,
        "content": content if isinstance(content, str) else _decode_content(item),
    }


def _decode_content(item: Item) -> list[Part]:
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return to_chat_parts(
        [
            dict(require_object(part, "a part of the content"))
            for part in require_list(content or [], "content")
        ]
    )


def _decode_call(item: Item) -> Any:
    """Return the call in chat form."""
    kind = item["type"]
    name = get_call_name(item)
    namespace = item.get("namespace")
    own_fields = {_NAMESPACE_FIELD: namespace} if namespace else {}
    if kind == "custom_tool_call":
        custom = {"name": name, "input": item.get("input")}
        return {
            "id": get_call_id(item),
            "type": "custom",
            "custom": custom,
            **own_fields,
        }
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        fields = {
            key: value for key, value in item.items() if key not in _NON_ARGUMENT_FIELDS
        }
        arguments = json.dumps(
            fields if arguments is None else arguments, ensure_ascii=False
        )
    function = {"name": name or kind.removesuffix("_call"), "arguments": arguments}
    return {
        "id": get_call_id(item),
        "type": "function",
        "function": function,
        **own_fields,
    }


def get_call_name(item: Mapping[str, Any]) -> Any:
    """Return the name of the called tool, with its namespace before it if the tool has one."""
    namespace = item.get("namespace")
    name = item.get("name")
    return (
        join_name(namespace, name)
        if isinstance(namespace, str) and namespace and isinstance(name, str)
        else name
    )


def _decode_result(item: Item) -> Message:
    output: Any = item.get("output")
    content: str | list[Part]
    if item["type"] == "mcp_approval_response":
        content = f"{'approved' if item.get('approve') else 'denied'} {item.get('reason') or ''}".strip()
    elif kind_of(output) == "computer_screenshot":
        content = to_chat_parts([{**output, "type": "input_image"}])
    elif item["type"] == "shell_call_output" and isinstance(output, list):
        pieces = [
            piece.get(key)
            for piece in output
            if isinstance(piece, dict)
            for key in ("stdout", "stderr")
        ]
        content = "\n".join(str(piece) for piece in pieces if piece)
    elif isinstance(output, list):
        content = to_chat_parts(output)
    elif output is None:
        content = (
            json.dumps(item["tools"], ensure_ascii=False) if item.get("tools") else ""
        )
    else:
        content = content_text(output)
    return {
        "role": "tool",
        "tool_call_id": _get_answered_call_id(item),
        "content": content,
    }


def _encode_assistant_items(
    items: list[Item], rewritten_call_ids: set[str], *, keep_reasoning: bool
) -> list[Item]:
    """Return the items of one assistant message to send: unchanged if possible.

    They change if their reasoning must be dropped, or the result of a built-in tool was rewritten.

    The result of a built-in tool cannot be any text. If it was rewritten as text, its call becomes a function call, and
    a search for tools is dropped. Reasoning belongs to the items after it by their ids: if an item changed, or the
    reasoning must not be sent, reasoning and ids are dropped.
    """
    rewritten_items = [
        _encode_call(_decode_call(item))
        if kind_of(item) in _BUILT_IN_CALL_KINDS
        and get_call_id(item) in rewritten_call_ids
        else item
        for item in items
        if kind_of(item) != _TOOL_SEARCH_CALL
        or get_call_id(item) not in rewritten_call_ids
    ]
    is_same = len(rewritten_items) == len(items)
    if (
        keep_reasoning
        and is_same
        and all(new is old for new, old in zip(rewritten_items, items, strict=True))
    ):
        return items
    items_without_reasoning = [
        item for item in rewritten_items if kind_of(item) != "reasoning"
    ]
    return (
        items_without_reasoning
        if len(items_without_reasoning) == len(rewritten_items)
        else [_without_id(item) for item in items_without_reasoning]
    )


def _without_id(item: Item) -> Item:
    return (
        {key: value for key, value in item.items() if key != "id"}
        if _find_item_kind(item) in ("message", *_FREE_TEXT_CALL_KINDS)
        else item
    )


def _matches_call_kind(item: Item, call_kinds: Mapping[str, Any]) -> bool:
    """Return whether a native item can be kept: the kind of a result must match its call, if the list has the call."""
    call_kind = _CALL_KIND_BY_RESULT_KIND.get(kind_of(item))
    return call_kind is None or bool(
        call_kinds.get(_get_answered_call_id(item), call_kind) == call_kind
    )


def _encode_chat_message(message: Message, call_kinds: Mapping[str, Any]) -> list[Item]:
    role = message.get("role")
    if role != "assistant":
        parts = [_encode_input_part(part) for part in parts_of(message)]
        content = (
            parts if isinstance(message.get("content"), list) else text_of(message)
        )
        if role not in ("tool", "function"):
            return [{"role": role, "content": content}]
        answered_id = content_text(message.get("tool_call_id") or message.get("name"))
        kind = RESULT_KIND_BY_CALL_KIND[
            "custom_tool_call"
            if call_kinds.get(answered_id) == "custom_tool_call"
            else "function_call"
        ]
        return [{"type": kind, "call_id": answered_id, "output": content}]
    texts = (content_text([part]) for part in parts_of(message))
    parts = [{"type": "output_text", "text": text} for text in texts if text]
    if refusal := message.get("refusal"):
        parts.append({"type": "refusal", "refusal": refusal})
    message_items: list[Item] = (
        [{"type": "message", "role": "assistant", "content": parts}] if parts else []
    )
    calls = list_tool_calls(message)
    legacy_call = cast("Mapping[str, Any]", message).get("function_call")
    if isinstance(legacy_call, dict):
        calls = [*calls, {"id": legacy_call.get("name"), "function": legacy_call}]
    return message_items + [
        _encode_call(call) for call in calls if isinstance(call, dict)
    ]


def _encode_call(call: Mapping[str, Any]) -> Item:
    [parsed_call] = calls_of({"role": "assistant", "tool_calls": [call]})
    fields = {"call_id": parsed_call.id, "name": parsed_call.name}
    if namespace := as_text(call.get(_NAMESPACE_FIELD)):
        fields |= {
            "name": parsed_call.name.removeprefix(join_name(namespace, "")),
            "namespace": namespace,
        }
    if isinstance(call.get("custom"), dict):
        return {"type": "custom_tool_call", **fields, "input": parsed_call.arguments}
    return {
        "type": "function_call",
        **fields,
        "arguments": parsed_call.arguments or "{}",
    }


def _encode_input_part(part: Part) -> Part:
    """Return a part in the form of the Responses protocol. Kinds unknown here are passed on unchanged."""
    kind = kind_of(part)
    if kind in ("text", "refusal"):
        return {"type": "input_text", "text": content_text([part])}
    inner = part.get(kind)
    if kind == "image_url":
        image = inner if isinstance(inner, dict) else {"url": inner}
        return {
            "type": "input_image",
            "image_url": image.get("url"),
            "detail": image.get("detail") or "auto",
        }
    if kind == "file" and isinstance(inner, dict):
        return {"type": "input_file", **inner}
    return {key: value for key, value in part.items() if key != "cache_control"}
