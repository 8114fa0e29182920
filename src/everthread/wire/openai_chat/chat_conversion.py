"""Messages of other protocols in the form of chat completions: parts, calls and tool results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everthread.core.json_values import as_list, without_keys
from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    REASONING_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    Content,
    Message,
    Part,
    calls_of,
    content_text,
    kind_of,
    make_call,
    with_content,
)
from everthread.core.types import Api
from everthread.wire.anthropic.anthropic_blocks import decode_part, source_url

API: Api = "openai_chat"


def to_chat_messages(message: Message) -> list[Message]:
    """Return a message as one or several chat messages. A chat message is returned unchanged."""
    content = message.get("content")
    if content == []:
        return [with_content(message, None if as_list(message.get("tool_calls")) else "")]
    if not isinstance(content, list) or not any(map(_needs_conversion, content)):
        return [message]
    parts = to_chat_parts(content)
    if message.get("role") == "assistant":
        return [_convert_assistant(message, parts)]
    results = [_make_tool_message(part) for part in content if kind_of(part) in RESULT_BLOCK_KINDS]
    if results and not parts:
        return results
    return [*results, {**message, "content": parts or ""}]


def to_chat_parts(content: list[Part]) -> list[Part]:
    """Return the parts in chat form, without calls, results and reasoning."""
    parts: list[Part] = []
    for part in content:
        if _needs_conversion(part):
            parts += _PART_CONVERTERS[kind_of(part)](part)
        else:
            parts.append(part)
    return parts


def make_placeholder(part: Mapping[str, Any]) -> list[Part]:
    """Return a text that replaces a part that chat cannot carry."""
    label = str(part.get("type"))
    if name := part.get("title") or part.get("filename") or part.get("name"):
        label += f": {name}"
    return [_make_text_part(f"[{label}]")]


def _convert_assistant(message: Message, parts: list[Part]) -> Message:
    block_calls = calls_of({"role": "assistant", "content": message.get("content")})
    calls = [
        make_call(call.id, call.name, arguments=call.arguments or "{}") for call in block_calls
    ]
    calls += as_list(message.get("tool_calls"))
    if calls:
        return {**message, "content": parts or None, "tool_calls": calls}
    return {**message, "content": parts or ""}


def _make_tool_message(block: Part) -> Message:
    content = block.get("content")
    chat_content: Content = content_text(content)
    if isinstance(content, list):
        chat_content = to_chat_parts(content) or ""
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
    if isinstance(inner, str):
        return [_make_text_part(inner)]
    return make_placeholder({"name": source_url(source), **part})


def _convert_input_image(part: Part) -> list[Part]:
    if not isinstance(part.get("image_url"), str):
        return make_placeholder(part)
    image = {"url": part["image_url"]}
    if part.get("detail"):
        image["detail"] = part["detail"]
    return [{"type": "image_url", "image_url": image}]


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


def make_comparable_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message itself: messages of the other protocols are compared in this form."""
    return message
