"""A client that has our tools is told in the summary that it can read again what was compacted; no other is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.lookup import lookup_tools
from everthread.core.messages import Message, Part, kind_of, parts_of, with_content
from everthread.core.summary import SUMMARY_START, is_summary

_WORDS = "What was compacted can be read again word for word: with {tools}, by words or by an id."


def tools_here(tools: Sequence[Mapping[str, Any]] | None) -> tuple[str, ...]:
    """The names under which a request offers our search and expand."""
    return lookup_tools(name for tool in tools or () if (name := _name(tool)))


def key_part(tools: Sequence[Mapping[str, Any]] | None) -> str:
    """What a rewrite's key says of it: a summary that names tools is only for those who have them."""
    names = tools_here(tools)
    return f" with {','.join(names)}" if names else ""


def mentioning(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> list[Message]:
    """The messages, their summary naming the tools that are there."""
    names = tools_here(tools)
    if not names:
        return list(messages)
    words = _WORDS.format(tools=" and ".join(f"`{name}`" for name in names))
    return [_with_line(message, words) if is_summary(message) else message for message in messages]


def _with_line(message: Message, words: str) -> Message:
    content = message.get("content")
    if isinstance(content, str):
        return with_content(message, _inserted(content, words))
    parts: list[Part] = [
        {**part, "text": _inserted(str(part["text"]), words)} if kind_of(part) == "text" else part
        for part in parts_of(message)
    ]
    return with_content(message, parts)


def _inserted(text: str, words: str) -> str:
    """Behind the summary's first line, before its sections; once."""
    start = text.find(SUMMARY_START)
    if start < 0 or words in text:
        return text
    end = text.find("\n", start)
    return text if end < 0 else f"{text[:end]}\n{words}{text[end:]}"


def _name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    return name if isinstance(name, str) else ""
