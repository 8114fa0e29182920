"""A client's word that a file is unchanged since it was read, where that reading was compacted away.

The model cannot see what the client refers to. The client still sends it, in the part that a rewrite covers: it is put
in the place of the client's word, the same bytes each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everthread.core.messages import content_text, json_value, kind_of
from everthread.gateway.body import Element

_MARK = "unchanged since"
_STUB = re.compile(r"unchanged since (?:your|the|its) last read", re.IGNORECASE)
_LONGEST_STUB = 600
_MOST = 60_000
"""Characters of a file; a longer one is to be read again in parts."""
_PATHS = ("file_path", "path", "filePath", "absolute_path", "filename")


def restored_values(text: str, elements: Sequence[Element], covered: int) -> dict[int, Any]:
    """The messages behind the covered ones that only say that a file is unchanged, with what the file held."""
    if not 0 < covered < len(elements) or _MARK not in text[elements[covered].start :]:
        return {}
    values = [element.value for element in elements]
    paths = {call: path for value in values for call, path in _calls(value)}
    seen: dict[str, tuple[int, str]] = {}
    found: dict[int, Any] = {}
    for index, value in enumerate(values):
        new = value
        for call, content in _results(value):
            path, said = paths.get(call), content_text(content)
            if path is None:
                continue
            if not is_stub(said):
                seen[path] = index, said
            elif index >= covered and path in seen and seen[path][0] < covered and len(seen[path][1]) <= _MOST:
                new = _with_result(new, call, seen[path][1])
        if new is not value:
            found[index] = new
    return found


def is_stub(text: str) -> bool:
    return len(text) <= _LONGEST_STUB and _STUB.search(text) is not None


def _calls(value: Any) -> Iterator[tuple[str, str]]:
    """The calls in a message or item that name a file: id and path."""
    if not isinstance(value, dict):
        return
    content = value.get("content")
    blocks = [part for part in content if kind_of(part) == "tool_use"] if isinstance(content, list) else []
    listed = value.get("tool_calls")
    calls = [*blocks, *(listed if isinstance(listed, list) else ())]
    if kind_of(value) == "function_call":
        calls.append(value)
    for call in calls:
        if not isinstance(call, dict):
            continue
        function = call.get("function")
        given = call.get("input") or (function if isinstance(function, dict) else call).get("arguments")
        arguments = json_value(given) if isinstance(given, str) else given
        path = (
            next((arguments[key] for key in _PATHS if key in arguments), None) if isinstance(arguments, dict) else None
        )
        if isinstance(path, str):
            yield str(call.get("call_id") or call.get("id")), path


def _results(value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        return
    if value.get("role") == "tool":
        yield str(value.get("tool_call_id")), value.get("content")
    elif kind_of(value) == "function_call_output":
        yield str(value.get("call_id")), value.get("output")
    elif isinstance(value.get("content"), list):
        for part in value["content"]:
            if kind_of(part) == "tool_result":
                yield str(part.get("tool_use_id")), part.get("content")


def _with_result(value: Mapping[str, Any], call: str, text: str) -> dict[str, Any]:
    if value.get("role") == "tool":
        return {**value, "content": text}
    if kind_of(value) == "function_call_output":
        return {**value, "output": text}
    return {
        **value,
        "content": [
            {**part, "content": text} if kind_of(part) == "tool_result" and part.get("tool_use_id") == call else part
            for part in value["content"]
        ],
    }
