"""Read a file that is one conversation: a request, messages, or a log of another program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.types import ModelRequest
from everthread.errors import TranscriptError, WireError
from everthread.lab.importers.find_logs import LOG_LOCATIONS
from everthread.lab.importers.read_logs import (
    EXPORT_TYPE,
    load_json,
    load_lines,
    parse_log,
    read_text,
)
from everthread.wire.codecs import decode_any

FILE_HELP = (
    "A conversation: JSON or JSONL, an export, a log of Claude Code, Codex, Copilot CLI, Gemini CLI, pi or opencode; "
    "`-` is standard input."
)


@dataclass(frozen=True, slots=True)
class ConversationFile:
    """A conversation read from a file, as a request."""

    source: str
    api: str
    """The protocol in which to write the conversation back: OpenAI's chat for a log of another program."""
    request: ModelRequest
    is_message_list: bool = False
    """Whether the file is a list of messages and no request."""
    warnings: Sequence[str] = ()
    """Which lines of a log could not be read, by number, and how many were left out."""


def read_conversation(file: str) -> ConversationFile:
    """Return the conversation in `file` (`-`: standard input): a request, else a log of another program."""
    source, text = read_text(file)
    try:
        value = _parse_file(text)
        api, request = decode_any(value)
    except (TranscriptError, WireError) as problem:
        try:
            log = parse_log(text, source)
        except TranscriptError:
            log = None
        if log is None or log.kind not in (*LOG_LOCATIONS, EXPORT_TYPE):
            raise TranscriptError(f"{source}: {problem}") from problem
        if not log.entries:
            raise TranscriptError(f"{source}: holds no message that can be read") from problem
        request = ModelRequest(log.model, log.messages, system=log.system, tools=log.tools)
        return ConversationFile(source, "openai_chat", request, warnings=log.warnings)
    return ConversationFile(source, api, request, is_message_list=isinstance(value, list))


def _parse_file(text: str) -> Any:
    """Parse JSON, or JSONL into a list of values. Raise `TranscriptError` if a line of JSONL is not JSON."""
    value, problem = load_json(text)
    if problem is None:
        # One line of JSONL is an object like any other; a lone message is a conversation of one.
        if isinstance(value, dict) and "role" in value and "messages" not in value:
            return [value]
        return value
    values: list[Any] = []
    for number, value in load_lines(text):
        if isinstance(value, Exception):
            if values and isinstance(values[0], dict):
                raise TranscriptError(f"line {number} is not JSON: {value}") from value
            raise TranscriptError(f"is not JSON: {problem}") from problem
        values.append(value)
    return values
