"""The shape of a message, and functions that read and change one.

A message is a plain OpenAI chat dict: that is what users already have. Content blocks in Anthropic's form
(`tool_use`, `tool_result`, `thinking`, `image` …) are understood wherever a content list is allowed, so a history
in that form needs no conversion to be inspected, counted, cut or repaired. Messages are treated as immutable.

Every function accepts whatever real transcripts contain (missing content, numbers for strings, parts without a type)
and returns the nearest sensible value. `validation.validate_messages` reports wrong shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Required, TypedDict, cast

from everthread.core.json_values import (
    as_list,
    as_object,
    as_text,
    iterate_strings,
    json_text,
    json_value,
    without_keys,
)

Part = dict[str, Any]
"""One block of a content list, in OpenAI's or Anthropic's form."""

Content = str | list[Part] | None


class FunctionCall(TypedDict, total=False):
    name: str
    arguments: str


class ToolCallDict(TypedDict, total=False):
    id: str
    type: str
    function: FunctionCall


class Native(TypedDict, total=False):
    """The original wire value of a decoded message, so that encoding it back is verbatim (see `wire`)."""

    api: Required[str]
    """`openai_chat`, `openai_responses`, `anthropic` or `gemini`."""
    model: str
    """The model that wrote it; another model cannot use its reasoning."""
    value: Any
    """Absent once the message was changed."""
    joined: bool
    """Whether it shares one wire message with the message before it (tool results and text of one Anthropic turn)."""


class Message(TypedDict, total=False):
    role: Required[str]
    content: Content
    name: str
    tool_calls: list[ToolCallDict]
    tool_call_id: str
    is_error: bool
    """Whether the call of a tool message failed. Only Anthropic's protocol has a field for it."""
    refusal: str | None
    reasoning_content: str
    cache_control: dict[str, Any]
    _native: Native
    _summary: bool
    """Whether the message is, or contains, a summary that Everthread wrote."""


Messages = Sequence[Message]

SYSTEM_ROLES = ("system", "developer")
CALL_BLOCK_KINDS = frozenset({"tool_use"})
RESULT_BLOCK_KINDS = frozenset({"tool_result"})
REASONING_BLOCK_KINDS = frozenset({"thinking", "redacted_thinking", "reasoning"})
IMAGE_BLOCK_KINDS = frozenset({"image_url", "image", "input_image"})
_KINDS_WITHOUT_TEXT = REASONING_BLOCK_KINDS | RESULT_BLOCK_KINDS | CALL_BLOCK_KINDS


class ToolCall(NamedTuple):
    """One tool call, whichever form it was written in."""

    id: str
    name: str
    arguments: str
    """JSON text as the model wrote it; may be invalid."""

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments as an object, or an empty dict if they are not one."""
        return as_object(json_value(self.arguments))


class ToolResult(NamedTuple):
    """One tool result, whichever form it was written in."""

    call_id: str
    tool_name: str
    content: Any

    @property
    def text(self) -> str:
        return content_text(self.content)


def parts_of(message: Mapping[str, Any]) -> list[Part]:
    """Return the content as a list of parts. A string becomes one text part, and empty content has none."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list):
        parts = (part for part in content if part is not None)
        return [
            part if isinstance(part, dict) else {"type": "text", "text": str(part)}
            for part in parts
        ]
    return []


def kind_of(part: Any) -> str:
    """Return the type of a part, or an empty string if it has none."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def part_text(part: Any) -> str:
    """Return the text of one part, or an empty string for reasoning, calls, results and media."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or kind_of(part) in _KINDS_WITHOUT_TEXT:
        return ""
    text = part.get("text")
    refusal = part.get("refusal")
    return text if isinstance(text, str) else as_text(refusal)


def content_text(content: Any) -> str:
    """Return the text of any content shape: string, parts, null."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text for text in map(part_text, content) if text)
    return "" if content is None else str(content)


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, without calls, results and reasoning."""
    return content_text(message.get("content"))


def list_texts(message: Mapping[str, Any]) -> list[str]:
    """Return all texts of a message: its words, its results, and the strings in the arguments of its calls."""
    texts = [text_of(message)]
    if message.get("role") != "tool":
        texts += [result.text for result in results_of(message)]
    for call in calls_of(message):
        texts += iterate_strings(call.parsed)
    return texts


def calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    """Return the tool calls of an assistant message, in order."""
    if message.get("role") != "assistant":
        return []
    calls: list[ToolCall] = []
    if isinstance(message.get("content"), list):
        calls += (
            ToolCall(
                as_text(part.get("id")),
                as_text(part.get("name")),
                json_text(part.get("input")),
            )
            for part in parts_of(message)
            if kind_of(part) in CALL_BLOCK_KINDS
        )
    calls += (
        _read_chat_call(call)
        for call in as_list(message.get("tool_calls"))
        if isinstance(call, dict)
    )
    return calls


def _read_chat_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    fields = as_object(function if isinstance(function, dict) else call.get("custom"))
    arguments = fields.get("arguments", fields.get("input"))
    return ToolCall(as_text(call.get("id")), as_text(fields.get("name")), json_text(arguments))


def make_call(call_id: str, name: str, arguments: str) -> ToolCallDict:
    """Return a call in chat form."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def join_name(namespace: str, name: str) -> str:
    """Return the name of a tool in a namespace, as clients spell tools of MCP servers."""
    return f"{namespace}__{name}"


def tool_names(tool: Mapping[str, Any]) -> list[str]:
    """Return the names by which a tool is called; a namespace has several."""
    function = tool.get("function") or tool
    name = as_text(function.get("name")) if isinstance(function, Mapping) else ""
    if tool.get("type") == "namespace" and isinstance(tool.get("tools"), list):
        inner = (tool_names(part) for part in tool["tools"] if isinstance(part, Mapping))
        return [join_name(name, inner_name) for names in inner for inner_name in names]
    return [name] if name else []


def results_of(message: Mapping[str, Any]) -> list[ToolResult]:
    """Return the tool results a message carries: itself (role `tool`), or its `tool_result` blocks."""
    if message.get("role") == "tool":
        name = as_text(message.get("name"))
        return [ToolResult(as_text(message.get("tool_call_id")), name, message.get("content"))]
    if not isinstance(message.get("content"), list):
        return []
    return [
        ToolResult(as_text(part.get("tool_use_id")), "", part.get("content"))
        for part in parts_of(message)
        if kind_of(part) in RESULT_BLOCK_KINDS
    ]


def count_leading_system_messages(messages: Sequence[Any]) -> int:
    """Count the system messages at the start of a list."""
    count = 0
    for message in messages:
        if as_object(message).get("role") not in SYSTEM_ROLES:
            break
        count += 1
    return count


def message_key(message: Any) -> Hashable:
    """Return a cheap key that equal messages share; different messages may share it too."""
    if not isinstance(message, dict):
        return None
    content = message.get("content")
    calls = message.get("tool_calls")
    content_key: Hashable = content if isinstance(content, str) else None
    if isinstance(content, list):
        content_key = tuple(map(_make_part_key, content))
    call_keys = tuple(map(_make_part_key, calls)) if isinstance(calls, list) else None
    return str(message.get("role")), content_key, str(message.get("tool_call_id")), call_keys


def _make_part_key(part: Any) -> str | None:
    if isinstance(part, dict):
        part = part.get("text") or part.get("id") or part.get("tool_use_id")
    return part if isinstance(part, str) else None


def simplify_parts(parts: list[Part]) -> Content:
    """Return the parts as plain text if they are one text, or None if there are none."""
    if not parts:
        return None
    part = parts[0]
    return part["text"] if len(parts) == 1 and part.keys() == {"type", "text"} else parts


def with_content(message: Message, content: Content) -> Message:
    """Return a copy with other content."""
    copy = without_native_value(message)
    copy["content"] = content
    return copy


def without_native_value(message: Mapping[str, Any]) -> Message:
    """Return a copy that may be changed. It keeps the name of its author, but not its original wire value."""
    copy = without_keys(message, "_native")
    native = message.get("_native")
    if isinstance(native, dict):
        copy["_native"] = {key: native[key] for key in ("api", "model") if key in native}
    return cast("Message", copy)


def edit_results(message: Message, edit: Callable[[ToolResult, Mapping[str, Any]], Any]) -> Message:
    """Return the message with the content of its tool results edited; the same object if nothing changes.

    `edit` gets each result and the message or block that holds it, and returns the new content.
    """
    if message.get("role") == "tool":
        result = results_of(message)[0]
        content = edit(result, message)
        return message if content is result.content else with_content(message, content)
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    edited_parts = [_edit_block(part, edit) for part in parts]
    is_unchanged = all(new is old for new, old in zip(edited_parts, parts, strict=True))
    return message if is_unchanged else with_content(message, edited_parts)


def with_text(content: Any, text: str) -> Content:
    """Replace the text of a content: the first text part gets `text`, further ones are dropped, other parts stay."""
    if not isinstance(content, list):
        return text
    parts: list[Any] = []
    is_placed = False
    for part in content:
        if not part_text(part):
            parts.append(part)
        elif not is_placed:
            items = part.items() if isinstance(part, dict) else ()
            fields = {key: value for key, value in items if key not in ("text", "refusal")}
            parts.append({**fields, "type": "text", "text": text})
            is_placed = True
    return parts


def _edit_block(part: Any, edit: Callable[[ToolResult, Mapping[str, Any]], Any]) -> Any:
    if kind_of(part) not in RESULT_BLOCK_KINDS:
        return part
    result = results_of({"role": "user", "content": [part]})[0]
    content = edit(result, part)
    return part if content is result.content else {**part, "content": content}


def iterate_images(content: Any) -> Iterator[Part]:
    """Yield every image part of a content value, tool results' included."""
    for part in as_list(content):
        if not isinstance(part, dict):
            continue
        if kind_of(part) in IMAGE_BLOCK_KINDS:
            yield part
        elif kind_of(part) in RESULT_BLOCK_KINDS:
            yield from iterate_images(part.get("content"))
