"""Items of the Responses protocol <-> core messages.

What the model said in one go (reasoning, text, calls, whatever it did on the provider's side) is a run of items; a run
is one assistant message. Each result is a `tool` message, every other message item a message. Items the core has no
words for stay in the run's native list, in their place.
"""

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
    kind_of,
    parts_of,
    results_of,
    simplest,
    text_of,
)
from everthread.errors import WireError
from everthread.wire.native import keep_reasoning, native_value, with_native
from everthread.wire.openai_parts import chat_form, chat_parts, tool_calls_of
from everthread.wire.shape import a_list, a_text, an_object

API = "openai_responses"
Item = dict[str, Any]

CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""What the client answers, and with which item."""
_ANSWERS = {output: call for call, output in CALLS.items()}
_FREE = ("function_call", "custom_tool_call")
"""Calls that take any text as their result."""
_SPEECH = ("message", "reasoning")
_NO_ARGUMENTS = frozenset({"id", "type", "status", "call_id", "caller", "created_by", "name", "server_label"})


def decode_items(items: Sequence[Mapping[str, Any]], *, model: str | None = None) -> list[Message]:
    """Core messages; `model` is the one whose reasoning the items hold, where that is known."""
    messages: list[Message] = []
    run: list[Item] = []
    for index, value in enumerate(a_list(items, "input")):
        item = cast("Item", an_object(value, f"input[{index}]"))
        role = _role(item, f"input[{index}]")
        if role == "assistant":
            run.append(item)
            continue
        if run:
            messages.append(decode_run(run, model=model))
            run = []
        messages.append(with_native(_result(item) if role == "tool" else _said(item, role), API, item))
    return [*messages, decode_run(run, model=model)] if run else messages


def decode_run(items: Sequence[Item], *, model: str | None = None) -> Message:
    """One assistant message. Calls answered inside the run were the provider's own business."""
    answered = {"", *(_answered(item) for item in items if kind_of(item) in _ANSWERS)}
    calls = [_call(item) for item in items if kind_of(item) in CALLS and call_id(item) not in answered]
    parts = [part for item in items if "role" in item for part in _content(item)]
    refusals = [content_text([part]) for part in parts if kind_of(part) == "refusal"]
    texts = [part for part in parts if kind_of(part) != "refusal"]
    message: Message = {"role": "assistant", "content": simplest(texts)}
    if calls:
        message["tool_calls"] = calls
    if refusals:
        message["refusal"] = "\n".join(refusals)
    if not (calls or parts):
        message["content"] = "\n".join(f"[{kind}]" for kind in map(_kind, items) if kind not in _SPEECH)
    return with_native(message, API, list(items), model=model)


def encode_items(messages: Messages, *, model: str | None = None) -> list[Item]:
    """Items for `model`, without reasoning that another model or API wrote."""
    rewritten = {
        result.call_id for message in messages if native_value(message, API) is None for result in results_of(message)
    }
    items: list[Item] = []
    kinds: dict[str, Any] = {}
    for message in messages:
        value = native_value(message, API)
        if isinstance(value, list):
            written = _run(value, rewritten, reasoning=keep_reasoning(message, API, model))
        elif isinstance(value, str):
            written = [{"role": "user", "content": value}]
        elif isinstance(value, dict) and _still_answers(value, kinds):
            written = [value]
        else:
            written = [item for form in chat_form(message) for item in _from_chat(form, kinds)]
        kinds |= {call_id(item): item["type"] for item in written if kind_of(item) in CALLS}
        items += written
    return items


def call_id(item: Mapping[str, Any]) -> str:
    """The id a result refers to; empty where the provider answers the call itself."""
    value = item.get("id") if kind_of(item) == "mcp_approval_request" else item.get("call_id")
    return as_text(value)


def _answered(item: Mapping[str, Any]) -> str:
    """The id of the call this is the result of."""
    value = item.get("approval_request_id" if item["type"] == "mcp_approval_response" else "call_id")
    if value is None and item["type"] == "local_shell_call_output":
        value = item.get("id")
    return as_text(value)


def _role(item: Item, where: str) -> str:
    kind = kind_of(item)
    if kind == "message" or (not kind and "role" in item):
        role = a_text(item.get("role"), f"{where}.role")
        if role == "tool":
            raise WireError(f"{where}.role must not be tool: a result is an item of its own here")
        return role
    return "tool" if kind in _ANSWERS and _answered(item) else "assistant"


def _kind(item: Item) -> str:
    return kind_of(item) or ("message" if "role" in item else "item_reference")


def _said(item: Item, role: str) -> Message:
    content = item.get("content")
    return {"role": role, "content": content if isinstance(content, str) else _content(item)}


def _content(item: Item) -> list[Part]:
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return chat_parts([dict(an_object(part, "a part of the content")) for part in a_list(content or [], "content")])


def _call(item: Item) -> Any:
    kind, name = item["type"], item.get("name")
    if kind == "custom_tool_call":
        return {"id": call_id(item), "type": "custom", "custom": {"name": name, "input": item.get("input")}}
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        fields = {key: value for key, value in item.items() if key not in _NO_ARGUMENTS}
        arguments = json.dumps(fields if arguments is None else arguments, ensure_ascii=False)
    function = {"name": name or kind.removesuffix("_call"), "arguments": arguments}
    return {"id": call_id(item), "type": "function", "function": function}


def _result(item: Item) -> Message:
    output: Any = item.get("output")
    content: str | list[Part]
    if item["type"] == "mcp_approval_response":
        content = f"{'approved' if item.get('approve') else 'denied'} {item.get('reason') or ''}".strip()
    elif kind_of(output) == "computer_screenshot":
        content = chat_parts([{**output, "type": "input_image"}])
    elif item["type"] == "shell_call_output" and isinstance(output, list):
        pieces = [piece.get(key) for piece in output if isinstance(piece, dict) for key in ("stdout", "stderr")]
        content = "\n".join(str(piece) for piece in pieces if piece)
    elif isinstance(output, list):
        content = chat_parts(output)
    elif output is None:
        content = json.dumps(item["tools"], ensure_ascii=False) if item.get("tools") else ""
    else:
        content = content_text(output)
    return {"role": "tool", "tool_call_id": _answered(item), "content": content}


def _run(items: list[Item], rewritten: set[str], *, reasoning: bool) -> list[Item]:
    """A run as it was, unless its reasoning must go or a result of a built-in tool was rewritten.

    Only functions and custom tools take any text as result, so the call of such a tool is then told as a function's.
    Reasoning seals what follows it: where one is changed the other goes, and the ids by which the provider would miss
    it.
    """
    told = [_as_function(item) if _is_built_in(item) and call_id(item) in rewritten else item for item in items]
    if reasoning and all(new is old for new, old in zip(told, items, strict=True)):
        return items
    rest = [item for item in told if kind_of(item) != "reasoning"]
    return rest if len(rest) == len(told) else [_unnamed(item) for item in rest]


def _is_built_in(item: Item) -> bool:
    return kind_of(item) in CALLS and item["type"] not in _FREE


def _as_function(item: Item) -> Item:
    return _call_item(_call(item))


def _unnamed(item: Item) -> Item:
    return {key: value for key, value in item.items() if key != "id"} if _kind(item) in ("message", *_FREE) else item


def _still_answers(item: Item, kinds: Mapping[str, Any]) -> bool:
    """Whether a native item still fits: a result must be of the kind of its call, if that is in the list."""
    if kind_of(item) not in _ANSWERS:
        return True
    call = _ANSWERS[item["type"]]
    return bool(kinds.get(_answered(item), call) == call)


def _from_chat(message: Message, kinds: Mapping[str, Any]) -> list[Item]:
    role = message.get("role")
    if role != "assistant":
        parts = [_input_part(part) for part in parts_of(message)]
        said = parts if isinstance(message.get("content"), list) else text_of(message)
        if role not in ("tool", "function"):
            return [{"role": role, "content": said}]
        answered = content_text(message.get("tool_call_id") or message.get("name"))
        kind = CALLS["custom_tool_call" if kinds.get(answered) == "custom_tool_call" else "function_call"]
        return [{"type": kind, "call_id": answered, "output": said}]
    parts = _output_parts(message)
    spoken: list[Item] = [{"type": "message", "role": "assistant", "content": parts}] if parts else []
    calls = tool_calls_of(message)
    legacy = cast("Mapping[str, Any]", message).get("function_call")
    if isinstance(legacy, dict):
        calls = [*calls, {"id": legacy.get("name"), "function": legacy}]
    return spoken + [_call_item(call) for call in calls if isinstance(call, dict)]


def _call_item(call: Mapping[str, Any]) -> Item:
    [read] = calls_of({"role": "assistant", "tool_calls": [call]})
    fields = {"call_id": read.id, "name": read.name}
    if isinstance(call.get("custom"), dict):
        return {"type": "custom_tool_call", **fields, "input": read.arguments}
    return {"type": "function_call", **fields, "arguments": read.arguments or "{}"}


def _output_parts(message: Message) -> list[Part]:
    texts = [content_text([part]) for part in parts_of(message)]
    parts: list[Part] = [{"type": "output_text", "text": text} for text in texts if text]
    refusal = message.get("refusal")
    return [*parts, {"type": "refusal", "refusal": refusal}] if refusal else parts


def _input_part(part: Part) -> Part:
    """A part as the Responses protocol takes it from a client; kinds it may know and we do not pass."""
    kind = kind_of(part)
    if kind in ("text", "refusal"):
        return {"type": "input_text", "text": content_text([part])}
    inner = part.get(kind)
    if kind == "image_url":
        image = inner if isinstance(inner, dict) else {"url": inner}
        return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}
    if kind == "file" and isinstance(inner, dict):
        return {"type": "input_file", **inner}
    return {key: value for key, value in part.items() if key != "cache_control"}
