"""Encode core messages as items of OpenAI's Responses protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from everthread.core.json_values import as_list, as_text, without_keys
from everthread.core.messages import (
    Message,
    Messages,
    Part,
    calls_of,
    content_text,
    join_name,
    kind_of,
    parts_of,
    results_of,
    text_of,
)
from everthread.wire.native_values import can_use_reasoning, native_value
from everthread.wire.openai_chat import to_chat_messages
from everthread.wire.openai_responses.responses_decoding import decode_call
from everthread.wire.openai_responses.responses_items import (
    API,
    CALL_KIND_BY_RESULT_KIND,
    NAMESPACE_FIELD,
    RESULT_KIND_BY_CALL_KIND,
    ResponseItem,
    find_item_kind,
    get_answered_call_id,
    get_call_id,
)

_FREE_TEXT_CALL_KINDS = ("function_call", "custom_tool_call")
"""Calls that take any text as their result."""
_BUILT_IN_CALL_KINDS = RESULT_KIND_BY_CALL_KIND.keys() - _FREE_TEXT_CALL_KINDS
_TOOL_SEARCH_CALL = "tool_search_call"
"""A call whose result defines tools. A result that was rewritten as text defines none, so its call is dropped too."""


def encode_messages(messages: Messages, *, model: str | None = None) -> list[ResponseItem]:
    """Return items for `model`, without reasoning that another model or API wrote."""
    rewritten_call_ids = {
        result.call_id
        for message in messages
        if native_value(message, API) is None
        for result in results_of(message)
    }
    dropped_search_ids = _find_search_call_ids(messages) & rewritten_call_ids
    items: list[ResponseItem] = []
    call_kind_by_id: dict[str, Any] = {}
    for message in messages:
        value = native_value(message, API)
        if value is None and as_text(message.get("tool_call_id")) in dropped_search_ids:
            continue
        if isinstance(value, list):
            new_items = _encode_assistant_items(
                value,
                rewritten_call_ids,
                keep_reasoning=can_use_reasoning(message, API, model),
            )
        elif isinstance(value, str):
            new_items = [{"role": "user", "content": value}]
        elif isinstance(value, dict) and _matches_call_kind(value, call_kind_by_id):
            new_items = [value]
        else:
            new_items = []
            for chat_message in to_chat_messages(message):
                new_items += _encode_chat_message(chat_message, call_kind_by_id)
        call_kind_by_id |= {
            get_call_id(item): item["type"]
            for item in new_items
            if kind_of(item) in RESULT_KIND_BY_CALL_KIND
        }
        items += new_items
    return items


def _find_search_call_ids(messages: Messages) -> set[str]:
    """Return the ids of all searches for tools that the client answers."""
    ids: set[str] = set()
    for message in messages:
        for item in as_list(native_value(message, API)):
            if kind_of(item) == _TOOL_SEARCH_CALL:
                ids.add(get_call_id(item))
    return ids


def _encode_assistant_items(
    items: list[ResponseItem], rewritten_call_ids: set[str], *, keep_reasoning: bool
) -> list[ResponseItem]:
    """Return the items of one assistant message to send: unchanged if possible.

    The result of a built-in tool cannot be any text. If it was rewritten as text, its call becomes a function call, and
    a search for tools is dropped. Reasoning belongs to the items after it by their ids: if an item changed, or the
    reasoning must not be sent, reasoning and ids are dropped.
    """
    rewritten_items: list[ResponseItem] = []
    is_changed = False
    for item in items:
        kind = kind_of(item)
        if kind not in _BUILT_IN_CALL_KINDS or get_call_id(item) not in rewritten_call_ids:
            rewritten_items.append(item)
            continue
        is_changed = True
        if kind != _TOOL_SEARCH_CALL:
            rewritten_items.append(_encode_call(decode_call(item)))
    if keep_reasoning and not is_changed:
        return items
    items_without_reasoning = [item for item in rewritten_items if kind_of(item) != "reasoning"]
    if len(items_without_reasoning) == len(rewritten_items):
        return rewritten_items
    return [_without_id(item) for item in items_without_reasoning]


def _without_id(item: ResponseItem) -> ResponseItem:
    has_own_id = find_item_kind(item) in ("message", *_FREE_TEXT_CALL_KINDS)
    return without_keys(item, "id") if has_own_id else item


def _matches_call_kind(item: ResponseItem, call_kind_by_id: Mapping[str, Any]) -> bool:
    """Return whether a native item can be kept: the kind of a result must match its call, if the list has the call."""
    call_kind = CALL_KIND_BY_RESULT_KIND.get(kind_of(item))
    if call_kind is None:
        return True
    return bool(call_kind_by_id.get(get_answered_call_id(item), call_kind) == call_kind)


def _encode_chat_message(
    message: Message, call_kind_by_id: Mapping[str, Any]
) -> list[ResponseItem]:
    role = message.get("role")
    if role != "assistant":
        parts = [_encode_input_part(part) for part in parts_of(message)]
        content = parts if isinstance(message.get("content"), list) else text_of(message)
        if role not in ("tool", "function"):
            return [{"role": role, "content": content}]
        answered_id = content_text(message.get("tool_call_id") or message.get("name"))
        is_custom = call_kind_by_id.get(answered_id) == "custom_tool_call"
        kind = RESULT_KIND_BY_CALL_KIND["custom_tool_call" if is_custom else "function_call"]
        return [{"type": kind, "call_id": answered_id, "output": content}]
    texts = (content_text([part]) for part in parts_of(message))
    parts = [{"type": "output_text", "text": text} for text in texts if text]
    if refusal := message.get("refusal"):
        parts.append({"type": "refusal", "refusal": refusal})
    items: list[ResponseItem] = []
    if parts:
        items.append({"type": "message", "role": "assistant", "content": parts})
    calls = as_list(message.get("tool_calls"))
    legacy_call = cast("Mapping[str, Any]", message).get("function_call")
    if isinstance(legacy_call, dict):
        calls = [*calls, {"id": legacy_call.get("name"), "function": legacy_call}]
    items += (_encode_call(call) for call in calls if isinstance(call, dict))
    return items


def _encode_call(call: Mapping[str, Any]) -> ResponseItem:
    [parsed_call] = calls_of({"role": "assistant", "tool_calls": [call]})
    fields = {"call_id": parsed_call.id, "name": parsed_call.name}
    if namespace := as_text(call.get(NAMESPACE_FIELD)):
        fields |= {
            "name": parsed_call.name.removeprefix(join_name(namespace, "")),
            "namespace": namespace,
        }
    if isinstance(call.get("custom"), dict):
        return {"type": "custom_tool_call", **fields, "input": parsed_call.arguments}
    return {"type": "function_call", **fields, "arguments": parsed_call.arguments or "{}"}


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
    return without_keys(part, "cache_control")
