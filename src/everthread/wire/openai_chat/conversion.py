"""Messages of other protocols in the form of chat completions: parts, calls and tool results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    REASONING_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    Message,
    Part,
    calls_of,
    content_text,
    kind_of,
    with_content,
    without_keys,
)
from everthread.wire.anthropic.content_blocks import decode_part, source_url


def to_chat_messages(message: Message) -> list[Message]:
    """Return a message as one or several chat messages. A chat message is returned unchanged."""
    content = message.get("content")
    if content == []:
        return [with_content(message, None if list_tool_calls(message) else "")]
    if not isinstance(content, list) or not any(map(_needs_conversion, content)):
        return [message]
    parts = to_chat_parts(content)
    if message.get("role") == "assistant":
        return [_convert_assistant(message, parts)]
    results = [_make_tool_message(part) for part in content if kind_of(part) in RESULT_BLOCK_KINDS]
    return (
        results
        if results and not parts
        else [*results, cast("Message", {**message, "content": parts or ""})]
    )


def to_chat_parts(content: list[Part]) -> list[Part]:
    """Return the parts in chat form, without calls, results and reasoning."""
    return [
        chat_part
        for part in content
        for chat_part in (
            _PART_CONVERTERS[kind_of(part)](part) if _needs_conversion(part) else [part]
        )
    ]


def list_tool_calls(message: Message) -> list[Any]:
    """Return the unchecked list in `tool_calls`; empty if it is not a list."""
    calls: Any = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def make_placeholder(part: Mapping[str, Any]) -> list[Part]:
    """Return a text that replaces a part that chat cannot carry."""
    name = part.get("title") or part.get("filename") or part.get("name")
    return [_make_text_part(f"[{part.get('type')}: {name}]" if name else f"[{part.get('type')}]")]


def _convert_assistant(message: Message, parts: list[Part]) -> Message:
    calls: list[Any] = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments or "{}"},
        }
        for call in calls_of({"role": "assistant", "content": message.get("content")})
    ]
    calls += list_tool_calls(message)
    fields: dict[str, Any] = {"content": parts or (None if calls else "")}
    if calls:
        fields["tool_calls"] = calls
    return cast("Message", {**message, **fields})


def _make_tool_message(block: Part) -> Message:
    content = block.get("content")
    chat_content = (
        (to_chat_parts(content) or "") if isinstance(content, list) else content_text(content)
    )
    return {
        "role": "tool",
        "tool_call_id": str(block.get("tool_use_id")),
        "content": chat_content,
    }


def _needs_conversion(part: Any) -> bool:
    kind = kind_of(part)
    return "citations" in part if kind == "text" else kind in _PART_CONVERTERS


def _make_text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _convert_image(part: Part) -> list[Part]:
    image = decode_part(part)
    return [image] if image["type"] == "image_url" else make_placeholder(part)


def _convert_document(part: Part) -> list[Part]:
    file = decode_part(part)
    if file["type"] == "file":
        return [file]
    source: Any = part.get("source")
    kind = kind_of(source)
    if kind == "text":
        return [_make_text_part(content_text(source.get("data")))]
    inner = source.get("content") if kind == "content" else None
    if isinstance(inner, list):
        return to_chat_parts(inner)
    return (
        [_make_text_part(inner)]
        if isinstance(inner, str)
        else make_placeholder({"name": source_url(source), **part})
    )


def _convert_input_image(part: Part) -> list[Part]:
    if not isinstance(part.get("image_url"), str):
        return make_placeholder(part)
    image = {"url": part["image_url"]}
    return [
        {
            "type": "image_url",
            "image_url": image | ({"detail": part["detail"]} if part.get("detail") else {}),
        }
    ]


def _convert_input_file(part: Part) -> list[Part]:
    file = {key: part[key] for key in ("file_id", "filename", "file_data") if part.get(key)}
    if "file_id" in file or "file_data" in file:
        return [{"type": "file", "file": file}]
    return make_placeholder({"name": part.get("file_url"), **part})


def _convert_search_result(part: Part) -> list[Part]:
    texts = (content_text(part.get(key)) for key in ("title", "source", "content"))
    return [_make_text_part("\n".join(filter(None, texts)))]


_SERVER_TOOL_BLOCKS = (
    "server_tool_use",
    "mcp_tool_use",
    "mcp_tool_result",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "container_upload",
)
_PART_CONVERTERS: dict[str, Callable[[Part], list[Part]]] = {
    "text": lambda part: [without_keys(part, "citations")],
    "input_text": lambda part: [_make_text_part(content_text(part.get("text")))],
    "output_text": lambda part: [_make_text_part(content_text(part.get("text")))],
    "image": _convert_image,
    "document": _convert_document,
    "input_image": _convert_input_image,
    "input_file": _convert_input_file,
    "search_result": _convert_search_result,
    **dict.fromkeys(
        CALL_BLOCK_KINDS | RESULT_BLOCK_KINDS | REASONING_BLOCK_KINDS, lambda _part: []
    ),
    **dict.fromkeys(_SERVER_TOOL_BLOCKS, make_placeholder),
}
