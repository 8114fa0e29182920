"""A conversation from a file or standard input."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everthread.core.exchange import Request
from everthread.errors import TranscriptError, WireError
from everthread.wire.detect import decode_any


@dataclass(frozen=True, slots=True)
class Recording:
    """What was read: from where, in which protocol, and the request it makes."""

    source: str
    api: str
    request: Request
    bare: bool = False
    """It was a mere list of messages."""


def read_conversation(file: str) -> Recording:
    """The conversation in `file` (`-`: standard input): JSON, or one JSON message a line."""
    source = "standard input" if file == "-" else file
    try:
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise TranscriptError(f"{source}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TranscriptError(f"{source}: is not UTF-8 text (byte {error.start})") from error
    try:
        value = _parse(text)
        api, request = decode_any(value)
    except (TranscriptError, WireError) as error:
        raise TranscriptError(f"{source}: {error}") from error
    return Recording(source, api, request, bare=isinstance(value, list))


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
