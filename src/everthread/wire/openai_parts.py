"""A message in chat's own form, whatever blocks its content is made of.

Core messages may hold content blocks of the Anthropic and Responses protocols; OpenAI's chat knows calls and results
as fields and messages of their own, and media in other words. What has no form there leaves a visible placeholder,
except reasoning, which means nothing to another API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from everthread.core.messages import (
    CALL_BLOCKS,
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    Message,
    Part,
    calls_of,
    content_text,
    kind_of,
    with_content,
)
from everthread.wire.anthropic.blocks import source_url


def chat_form(message: Message) -> list[Message]:
    """The messages chat would write it as; the same object where it is one already."""
    content = message.get("content")
    if content == []:
        return [with_content(message, None if tool_calls_of(message) else "")]
    if not isinstance(content, list) or not any(map(_is_foreign, content)):
        return [message]
    parts = chat_parts(content)
    if message.get("role") == "assistant":
        return [_assistant(message, parts)]
    results = [_result(part) for part in content if kind_of(part) in RESULT_BLOCKS]
    return results if results and not parts else [*results, cast("Message", {**message, "content": parts or ""})]


def chat_parts(content: list[Part]) -> list[Part]:
    """The parts as chat has them, without calls, results and reasoning."""
    return [new for part in content for new in (_CONVERT[kind_of(part)](part) if _is_foreign(part) else [part])]


def tool_calls_of(message: Message) -> list[Any]:
    """The calls in chat's own field, whatever they are."""
    calls: Any = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def placeholder(part: Mapping[str, Any]) -> list[Part]:
    """What stands where a part cannot go along."""
    name = part.get("title") or part.get("filename") or part.get("name")
    return [_text(f"[{part.get('type')}: {name}]" if name else f"[{part.get('type')}]")]


def _assistant(message: Message, parts: list[Part]) -> Message:
    calls: list[Any] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
        for call in calls_of({"role": "assistant", "content": message.get("content")})
    ]
    calls += tool_calls_of(message)
    fields: dict[str, Any] = {"content": parts or (None if calls else "")}
    if calls:
        fields["tool_calls"] = calls
    return cast("Message", {**message, **fields})


def _result(block: Part) -> Message:
    content = block.get("content")
    inner = (chat_parts(content) or "") if isinstance(content, list) else content_text(content)
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id")), "content": inner}


def _is_foreign(part: Any) -> bool:
    kind = kind_of(part)
    return "citations" in part if kind == "text" else kind in _CONVERT


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _uncited(part: Part) -> list[Part]:
    return [{key: value for key, value in part.items() if key != "citations"}]


def _image(part: Part) -> list[Part]:
    url = source_url(part.get("source"))
    return [{"type": "image_url", "image_url": {"url": url}}] if url else placeholder(part)


def _document(part: Part) -> list[Part]:
    source: Any = part.get("source")
    kind = kind_of(source)
    url = source_url(source)
    if url.startswith("data:"):
        return [{"type": "file", "file": {"filename": part.get("title") or "document.pdf", "file_data": url}}]
    if kind == "text":
        return [_text(content_text(source.get("data")))]
    inner = source.get("content") if kind == "content" else None
    if isinstance(inner, list):
        return chat_parts(inner)
    return [_text(inner)] if isinstance(inner, str) else placeholder({"name": url, **part})


def _input_image(part: Part) -> list[Part]:
    if not isinstance(part.get("image_url"), str):
        return placeholder(part)
    image = {"url": part["image_url"]}
    return [{"type": "image_url", "image_url": image | ({"detail": part["detail"]} if part.get("detail") else {})}]


def _input_file(part: Part) -> list[Part]:
    file = {key: part[key] for key in ("file_id", "filename", "file_data") if part.get(key)}
    if "file_id" in file or "file_data" in file:
        return [{"type": "file", "file": file}]
    return placeholder({"name": part.get("file_url"), **part})


def _search_result(part: Part) -> list[Part]:
    return [
        _text("\n".join(filter(None, map(content_text, (part.get("title"), part.get("source"), part.get("content"))))))
    ]


def _nothing(_part: Part) -> list[Part]:
    return []


_SERVER_BLOCKS = (
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
_CONVERT: dict[str, Callable[[Part], list[Part]]] = {
    "text": _uncited,
    "input_text": lambda part: [_text(content_text(part.get("text")))],
    "output_text": lambda part: [_text(content_text(part.get("text")))],
    "image": _image,
    "document": _document,
    "input_image": _input_image,
    "input_file": _input_file,
    "search_result": _search_result,
    **dict.fromkeys(CALL_BLOCKS | RESULT_BLOCKS | REASONING_BLOCKS, _nothing),
    **dict.fromkeys(_SERVER_BLOCKS, placeholder),
}
