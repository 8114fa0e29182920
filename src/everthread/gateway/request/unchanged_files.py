"""Replace a client's "file unchanged since your last read" with the file, if a compaction covers that read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from everthread.core.json_values import json_value
from everthread.core.messages import content_text, kind_of
from everthread.gateway.request.json_slices import MessageSlice

_STUB_PHRASES = (b"unchanged since", b"already in your context")
_STUB_PATTERN = re.compile(
    r"unchanged since (?:your |the |its )?last read|this file is already in your context",
    re.IGNORECASE,
)
_MAX_STUB_CHARS = 600
_MAX_RESTORED_CHARS = 60_000
"""Maximum characters of a restored file; the model has to read a longer one again in parts."""
_PATH_ARGUMENTS = ("file_path", "path", "filePath", "absolute_path", "filename")
_RANGE_ARGUMENTS = ("offset", "limit")


class FileRead(NamedTuple):
    """The part of a file that a call reads. A client reports "unchanged" only if all three are the same."""

    tool: str
    file: str
    part: str


def restore_unchanged_files(
    body: bytes, messages: Sequence[MessageSlice], covered_count: int
) -> dict[int, Any]:
    """Return, by index, the messages after the covered ones that call a file unchanged, with the file's text restored.

    Restore a text only if the message that contains it is covered.
    """
    if not 0 < covered_count < len(messages):
        return {}
    start = messages[covered_count].start
    if not any(body.find(mark, start) >= 0 for mark in _STUB_PHRASES):
        return {}
    wire_messages = [message.value for message in messages]
    file_reads = {
        call: file_read for value in wire_messages for call, file_read in _list_file_reads(value)
    }
    result_by_file_read: dict[FileRead, tuple[int, str]] = {}
    restored: dict[int, Any] = {}
    for index, value in enumerate(wire_messages):
        new_value = value
        for call, content in _list_results(value):
            file_read = file_reads.get(call)
            result_text = content_text(content)
            if file_read is None:
                continue
            if not is_stub(result_text):
                result_by_file_read[file_read] = index, result_text
            elif (
                index >= covered_count
                and file_read in result_by_file_read
                and result_by_file_read[file_read][0] < covered_count
                and len(result_by_file_read[file_read][1]) <= _MAX_RESTORED_CHARS
            ):
                new_value = _replace_result(new_value, call, result_by_file_read[file_read][1])
        if new_value is not value:
            restored[index] = new_value
    return restored


def is_stub(text: str) -> bool:
    return len(text) <= _MAX_STUB_CHARS and _STUB_PATTERN.search(text) is not None


def _list_file_reads(value: Any) -> Iterator[tuple[str, FileRead]]:
    """Yield the id and the `FileRead` of each call in a message that reads a file."""
    if not isinstance(value, dict):
        return
    content = value.get("content")
    calls: list[Any] = []
    if isinstance(content, list):
        calls += [part for part in content if kind_of(part) == "tool_use"]
    tool_calls = value.get("tool_calls")
    if isinstance(tool_calls, list):
        calls += tool_calls
    if kind_of(value) == "function_call":
        calls.append(value)
    for call in calls:
        if not isinstance(call, dict):
            continue
        function = call.get("function")
        named_call = function if isinstance(function, dict) else call
        raw = call.get("input") or named_call.get("arguments")
        arguments = json_value(raw) if isinstance(raw, str) else raw
        if not isinstance(arguments, dict):
            continue
        path = next((arguments[key] for key in _PATH_ARGUMENTS if key in arguments), None)
        if isinstance(path, str):
            part = str([arguments.get(name) for name in _RANGE_ARGUMENTS])
            call_id = str(call.get("call_id") or call.get("id"))
            yield call_id, FileRead(str(named_call.get("name")), path, part)


def _list_results(value: Any) -> Iterator[tuple[str, Any]]:
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


def _replace_result(value: Mapping[str, Any], call: str, text: str) -> dict[str, Any]:
    if value.get("role") == "tool":
        return {**value, "content": text}
    if kind_of(value) == "function_call_output":
        return {**value, "output": text}
    content = list(value["content"])
    for index, part in enumerate(content):
        if kind_of(part) == "tool_result" and part.get("tool_use_id") == call:
            content[index] = {**part, "content": text}
    return {**value, "content": content}
