"""Read a conversation from a file of any known format.

Known formats are messages and requests of OpenAI and Anthropic, Everthread's own exports, and the logs of Claude Code,
Codex, Copilot CLI, Gemini CLI, pi and opencode; any of them may be gzipped. A line of a log that is not JSON is skipped
with a warning.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from everthread.errors import TranscriptError, WireError
from everthread.lab.importers import opencode
from everthread.lab.importers.claude_code import ClaudeCodeReader
from everthread.lab.importers.client_log import (
    ClientLogReader,
    NumberedLines,
    format_line_numbers,
)
from everthread.lab.importers.codex import CodexReader
from everthread.lab.importers.copilot import CopilotReader
from everthread.lab.importers.gemini_cli import GeminiCliReader
from everthread.lab.importers.line_file import GZIP_HEADER, LineFile
from everthread.lab.importers.log import Log, LoggedMessage, LogStream
from everthread.lab.importers.log_fields import parse_time
from everthread.lab.importers.message_list import read_message_list
from everthread.lab.importers.pi import PiReader

EXPORT_TYPE = "everthread"
"""The type of the first line that `sessions export` writes for a thread."""
SQLITE_HEADER = b"SQLite format 3\0"
SUPPORTED_FORMATS_TEXT = (
    "messages or a request of OpenAI or Anthropic (JSON or JSONL), an export of `everthread sessions export`, and logs "
    "of Claude Code, Codex, Copilot CLI, Gemini CLI, opencode and pi"
)
"""The formats that can be read, in words."""


def read_log(file: str) -> Log:
    """Return the conversation in a file (`-`: standard input)."""
    lines = open_lines(file)
    if lines is None:
        source, content = _read_bytes(file)
        log = parse_log(content.decode("utf-8-sig", "replace"), source)
    else:
        source = file
        log = parse_lines(lines, source)
    if not any(entry.message.get("role") == "assistant" for entry in log.entries):
        raise TranscriptError(
            f"{source}: holds no answer of a model, so there is no call to replay"
        )
    return log


def open_lines(file: str) -> LineFile | None:
    """Open a log of JSON lines. Return None for standard input and for a file of another format."""
    path = Path(file).expanduser()
    if file == "-" or opencode.split_address(file) is not None or not path.is_file():
        return None
    lines = LineFile(path, file)
    try:
        return lines if lines.begins_with_objects() else None
    except OSError as error:
        raise TranscriptError(f"{file}: cannot be read: {error.strerror or error}") from error


def parse_lines(lines: LineFile, source: str) -> Log:
    """Return the conversation in a file of lines; raise `TranscriptError` if there is none."""
    try:
        log = _read_lines(lines, source)
    except (TranscriptError, WireError) as error:
        reason = str(error)
        raise TranscriptError(
            reason if reason.startswith(source) else f"{source}: {reason}"
        ) from error
    return _warn_of_bad_lines(log, lines.bad_line_numbers)


def stream_log(lines: LineFile, source: str) -> LogStream:
    """Return the conversation in a file of lines, so that it can be stored while it is read."""
    first_object = lines.first_object
    if first_object.get("type") == EXPORT_TYPE or _find_reader(lines) is not ClaudeCodeReader:
        log = parse_lines(lines, source)
        return LogStream(log, log.entries)
    stream = ClaudeCodeReader().stream(lines, source)
    stream.log.warnings.extend(_describe_bad_lines(lines.bad_line_numbers))
    return stream


def _warn_of_bad_lines(log: Log, line_numbers: Iterable[int]) -> Log:
    return replace(log, warnings=[*_describe_bad_lines(line_numbers), *log.warnings])


def _describe_bad_lines(line_numbers: Iterable[int]) -> list[str]:
    numbers = sorted(line_numbers)
    if not numbers:
        return []
    return [f"{format_line_numbers(numbers)}: no JSON object; skipped"]


def read_text(file: str) -> tuple[str, str]:
    """Return the name of a file and its text (`-`: standard input)."""
    source, content = _read_bytes(file)
    try:
        return source, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TranscriptError(f"{source}: is not UTF-8 text (byte {error.start})") from error


def _read_bytes(file: str) -> tuple[str, bytes]:
    source = "standard input" if file == "-" else file
    address = opencode.split_address(file)
    try:
        if address is not None:
            return source, json.dumps(opencode.load_from_database(*address)).encode()
        content = sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
    except OSError as error:
        raise TranscriptError(f"{source}: cannot be read: {error.strerror or error}") from error
    except (TranscriptError, ValueError) as error:
        raise TranscriptError(f"{source}: {error}") from error
    if content.startswith(GZIP_HEADER):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise TranscriptError(f"{source}: cannot be unpacked: {error}") from error
    if content.startswith(SQLITE_HEADER):
        raise TranscriptError(
            f"{source}: is a database; of opencode's, {source}#SESSION_ID is one conversation"
        )
    return source, content


def parse_log(text: str, source: str = "the text") -> Log:
    """Return the conversation in a text; raise `TranscriptError` if there is none."""
    try:
        return _parse_log(text, source)
    except (TranscriptError, WireError) as error:
        raise TranscriptError(f"{source}: {error}") from error


def _parse_log(text: str, source: str) -> Log:
    value, problem = load_json(text)
    if problem is not None:
        lines = [*load_lines(text)]
        objects = [(number, value) for number, value in lines if isinstance(value, dict)]
        bad_lines = [number for number, value in lines if not isinstance(value, dict)]
        if not objects:
            raise TranscriptError(f"is not JSON: {problem}. Supported: {SUPPORTED_FORMATS_TEXT}")
        return _warn_of_bad_lines(_read_lines(objects, source), bad_lines)
    if opencode.is_export(value):
        return opencode.read(value, source)
    if isinstance(value, dict) and (
        GeminiCliReader.is_own_line(value) or not ({"messages", "input"} & value.keys())
    ):
        return _read_lines([(1, value)], source)  # a log of one line
    return read_message_list(value, source)


def load_json(text: str) -> tuple[Any, ValueError | None]:
    """Parse the text as one JSON value; return the value and None, or None and the error."""
    if not text.strip():
        raise TranscriptError("is empty")
    try:
        return json.loads(text), None
    except RecursionError as error:
        raise TranscriptError("is nested too deeply to be a conversation") from error
    except ValueError as error:
        return None, error


def load_lines(text: str) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line with its JSON value, or with the error if it is not JSON."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, error


CLIENT_READERS: Sequence[type[ClientLogReader]] = (
    ClaudeCodeReader,
    CodexReader,
    PiReader,
    CopilotReader,
    GeminiCliReader,
)
"""The readers of clients' logs. If lines of several clients are in one file, the first of these reads it."""


def _find_reader(lines: NumberedLines) -> type[ClientLogReader] | None:
    """Return the reader for the client that wrote the lines, or None if no known client did."""
    candidates: set[type[ClientLogReader]] = set()
    for _, line in lines:
        candidates.update(reader for reader in CLIENT_READERS if reader.is_own_line(line))
        if CLIENT_READERS[0] in candidates:
            break
    return next((reader for reader in CLIENT_READERS if reader in candidates), None)


def _read_lines(objects: NumberedLines, source: str) -> Log:
    first_object = next(line for _, line in objects)
    if first_object.get("type") == EXPORT_TYPE:
        return _read_export([line for _, line in objects], source)
    reader = _find_reader(objects)
    if reader is not None:
        return reader().read(objects, source)
    line_objects = [line for _, line in objects]
    lines_without_role = [
        number for number, line in objects if not isinstance(line.get("role"), str)
    ]
    if len(lines_without_role) == len(line_objects):
        keys = ", ".join(map(str, line_objects[0])) or "none"
        raise TranscriptError(
            f"holds no conversation: no line has a role; the keys of the first are: {keys}. "
            f"Supported: {SUPPORTED_FORMATS_TEXT}"
        )
    log = read_message_list(
        [line for line in line_objects if isinstance(line.get("role"), str)], source
    )
    if lines_without_role:
        numbers = format_line_numbers(lines_without_role)
        log.warnings.append(f"{numbers}: no message with a role; skipped")
    return log


def _read_export(lines: list[dict[str, Any]], source: str) -> Log:
    """Read the first thread of an export: every original message, without summaries."""
    thread_end = next(
        (index for index, line in enumerate(lines[1:], 1) if line.get("type") == EXPORT_TYPE),
        len(lines),
    )
    thread_lines = lines[:thread_end]
    entries = [
        LoggedMessage(line["body"], parse_time(line.get("created")))
        for line in thread_lines
        if line.get("type") == "message"
        and line.get("kind") == "message"
        and isinstance(line.get("body"), dict)
    ]
    session_line = next((line for line in thread_lines if line.get("type") == "session"), {})
    other_thread_count = sum(line.get("type") == EXPORT_TYPE for line in lines) - 1
    warnings = (
        [f"{other_thread_count:,} further threads of the export left out"]
        if other_thread_count
        else []
    )
    system = session_line.get("system")
    return Log(
        source,
        EXPORT_TYPE,
        entries,
        system=system if isinstance(system, str | list) else None,
        model=str(session_line.get("model") or ""),
        warnings=warnings,
        session_id=str(lines[0].get("thread") or ""),
        title=str(session_line.get("title") or ""),
    )
