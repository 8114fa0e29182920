"""The one reader of every command that takes a conversation from a file or standard input."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from everthread.core.types import Request
from everthread.errors import TranscriptError, WireError
from everthread.lab.importers.reader import is_foreign, parse_log, read_bytes
from everthread.wire.codecs import decode_any

FILE_HELP = (
    "A conversation: JSON or JSONL, an export, a log of Claude Code, Codex, pi or opencode; `-` is standard input."
)


@dataclass(frozen=True, slots=True)
class ConversationFile:
    """What was read: from where, in which protocol, and the request it makes."""

    source: str
    api: str
    """How it is written back: a log of another program as OpenAI's chat."""
    request: Request
    bare: bool = False
    """It was a mere list of messages."""
    kind: str = ""
    """Who wrote it down, where that was no request: `claude-code`, `codex`, …"""
    warnings: tuple[str, ...] = ()


def read_conversation(file: str) -> ConversationFile:
    """The conversation in `file` (`-`: standard input)."""
    source = "standard input" if file == "-" else file
    try:
        text = read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TranscriptError(f"{source}: is not UTF-8 text (byte {error.start})") from error
    try:
        value = _parse(text)
        api, request = decode_any(value)
    except (TranscriptError, WireError) as error:
        return _foreign(text, source, error)
    return ConversationFile(source, api, request, bare=isinstance(value, list))


def _foreign(text: str, source: str, problem: Exception) -> ConversationFile:
    """What is no request may be a log of another program; else it was a request that is wrong."""
    try:
        log = parse_log(text, source)
    except TranscriptError:
        log = None
    if log is None or not is_foreign(log):
        raise TranscriptError(f"{source}: {problem}") from problem
    if not log.said:
        raise TranscriptError(f"{source}: holds no message that can be read")
    request = Request(log.model, log.messages, system=log.system, tools=log.tools)
    return ConversationFile(source, "openai_chat", request, kind=log.kind, warnings=tuple(log.warnings))


def _parse(text: str) -> Any:
    if not text.strip():
        raise TranscriptError("is empty")
    try:
        value = json.loads(text)
    except ValueError as whole:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not lines[0][1].lstrip().startswith("{") or not _is_json(lines[0][1]):
            raise TranscriptError(f"is not JSON: {whole}") from whole
        return [_line(number, line) for number, line in lines]
    except RecursionError as error:
        raise TranscriptError("is nested too deeply to be a conversation") from error
    # One line of JSONL is an object like any other; a lone message is a conversation of one.
    return [value] if isinstance(value, dict) and "role" in value and "messages" not in value else value


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"line {number} is not JSON: {error}") from error
