"""From a file to a `Log`: which program wrote it is seen from what stands in it.

Read are messages and requests in OpenAI's and Anthropic's form, Everthread's own exports, and the logs of Claude Code,
Codex, pi and opencode.

A line that is no JSON, as a program leaves it that was stopped while it wrote, is told and passed over.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from everthread.errors import TranscriptError, WireError
from everthread.lab.importers import claude_code, codex, opencode, pi
from everthread.lab.importers.log import Log, LoggedMessage, moment, numbered, read_transcript

EXPORT = "everthread"
"""The type of the first line that `sessions export` writes for a thread."""
Lines = list[tuple[int, dict[str, Any]]]
"""The objects of a file of lines, each with the number of its line."""


def read_log(file: str) -> Log:
    """The conversation in a file (`-`: standard input)."""
    source = "standard input" if file == "-" else file
    log = parse_log(read_bytes(file).decode("utf-8-sig", "replace"), source)
    if not any(entry.message.get("role") == "assistant" for entry in log.said):
        raise TranscriptError(f"{source}: holds no answer of a model, so there is no call to replay")
    return log


def read_bytes(file: str) -> bytes:
    """What a file holds (`-`: standard input)."""
    source = "standard input" if file == "-" else file
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
    except OSError as error:
        raise TranscriptError(f"{source}: cannot be read: {error.strerror or error}") from error


def parse_log(text: str, source: str = "the text") -> Log:
    """The conversation in a text; `TranscriptError` says why there is none."""
    try:
        return _parse(text, source)
    except (TranscriptError, WireError) as error:
        raise TranscriptError(f"{source}: {error}") from error


def _parse(text: str, source: str) -> Log:
    if not text.strip():
        raise TranscriptError("is empty")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise TranscriptError("is nested too deeply to be a conversation") from error
    except ValueError as error:
        return _parse_lines(text, source, error)
    if opencode.is_session_file(value):
        try:
            value = opencode.from_storage(Path(source))
        except (OSError, ValueError) as error:
            raise TranscriptError(f"its messages cannot be read: {error}") from error
    if opencode.is_export(value):
        return opencode.read(value, source)
    if isinstance(value, dict) and not ({"messages", "input"} & value.keys()):
        return _of_lines([(1, value)], source, [])  # a log of one line
    return read_transcript(value, source)


def _parse_lines(text: str, source: str, whole: ValueError) -> Log:
    objects: Lines = []
    bad: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            objects.append((number, value))
        else:
            bad.append(number)
    if not objects:
        raise TranscriptError(f"is not JSON: {whole}")
    warnings = [f"{numbered(bad)}: no JSON object; passed over"] if bad else []
    return _of_lines(objects, source, warnings)


def _of_lines(objects: Lines, source: str, warnings: list[str]) -> Log:
    values = [value for _, value in objects]
    if any(claude_code.is_entry(value) for value in values):
        return claude_code.read(objects, source, warnings)
    if values[0].get("type") == EXPORT:
        return _of_export(values, source)
    if any(codex.is_line(value) for value in values):
        return codex.read(objects, source, warnings)
    if any(pi.is_line(value) for value in values):
        return pi.read(objects, source, warnings)
    strange = [number for number, value in objects if not isinstance(value.get("role"), str)]
    if len(strange) == len(objects):
        keys = ", ".join(map(str, values[0])) or "none"
        raise TranscriptError(f"holds no conversation: no line has a role; the keys of the first are: {keys}")
    if strange:
        warnings = [*warnings, f"{numbered(strange)}: no message with a role; passed over"]
    return read_transcript([value for value in values if isinstance(value.get("role"), str)], source, warnings)


def is_foreign(log: Log) -> bool:
    """Whether another program wrote it down, or an export of ours did: it is more than a request."""
    return log.kind in ("claude-code", "codex", "pi", "opencode", EXPORT)


def _of_export(values: list[dict[str, Any]], source: str) -> Log:
    """The first thread of an export: every message as it was said, without summaries."""
    at = next((place for place, value in enumerate(values[1:], 1) if value.get("type") == EXPORT), len(values))
    thread = values[:at]
    said = [
        LoggedMessage(value["body"], moment(value.get("created")))
        for value in thread
        if value.get("type") == "message" and value.get("kind") == "message" and isinstance(value.get("body"), dict)
    ]
    first = next((value for value in thread if value.get("type") == "session"), {})
    others = sum(value.get("type") == EXPORT for value in values) - 1
    warnings = [f"{others:,} further threads of the export left out"] if others else []
    system = first.get("system")
    return Log(
        source, EXPORT, said, system if isinstance(system, str | list) else None, model=str(first.get("model") or ""),
        warnings=warnings, session=str(values[0].get("thread") or ""), title=str(first.get("title") or ""),
    )  # fmt: skip
