"""Reads a conversation from a file of any known form, finds the logs of other programs, imports a log as a thread.

Known forms are messages and requests of OpenAI and Anthropic, Everthread's own exports, and the logs of Claude Code,
Codex, pi and opencode. A line of a log that is not JSON is skipped with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everthread.core.tokens import TokenCounter
from everthread.core.transcript import user_text
from everthread.core.types import Request
from everthread.errors import InputError, TranscriptError, WireError
from everthread.lab.importers import claude_code, codex, opencode, pi
from everthread.lab.importers.log import Lines, Log, LoggedMessage, format_line_numbers, parse_time, read_transcript
from everthread.store.models import DEFAULT_TENANT, NewMessage, NewSession, NewUsage
from everthread.wire.codecs import decode_any

if TYPE_CHECKING:
    from everthread.store.store import Store

EXPORT = "everthread"
"""The type of the first line that `sessions export` writes for a thread."""
DATABASE = b"SQLite format 3\0"


def read_log(file: str) -> Log:
    """The conversation in a file (`-`: standard input)."""
    source, content = _read_bytes(file)
    log = parse_log(content.decode("utf-8-sig", "replace"), source)
    if not any(entry.message.get("role") == "assistant" for entry in log.entries):
        raise TranscriptError(f"{source}: holds no answer of a model, so there is no call to replay")
    return log


def read_text(file: str) -> tuple[str, str]:
    """The name of a file and its text (`-`: standard input)."""
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
            return source, json.dumps(opencode.from_database(*address)).encode()
        content = sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
    except OSError as error:
        raise TranscriptError(f"{source}: cannot be read: {error.strerror or error}") from error
    except (TranscriptError, ValueError) as error:
        raise TranscriptError(f"{source}: {error}") from error
    if content.startswith(DATABASE):
        raise TranscriptError(f"{source}: is a database; of opencode's, {source}#SESSION_ID is one conversation")
    return source, content


def parse_log(text: str, source: str = "the text") -> Log:
    """The conversation in a text; `TranscriptError` says why there is none."""
    try:
        return _parse(text, source)
    except (TranscriptError, WireError) as error:
        raise TranscriptError(f"{source}: {error}") from error


def _parse(text: str, source: str) -> Log:
    value, problem = _load_json(text)
    if problem is not None:
        lines = [*_load_lines(text)]
        objects = [(number, value) for number, value in lines if isinstance(value, dict)]
        bad = [number for number, value in lines if not isinstance(value, dict)]
        if not objects:
            raise TranscriptError(f"is not JSON: {problem}")
        warnings = [f"{format_line_numbers(bad)}: no JSON object; skipped"] if bad else []
        return _read_lines(objects, source, warnings)
    if opencode.is_session_file(value):
        try:
            value = opencode.from_storage(Path(source))
        except (OSError, ValueError) as error:
            raise TranscriptError(f"its messages cannot be read: {error}") from error
    if opencode.is_export(value):
        return opencode.read(value, source)
    if isinstance(value, dict) and not ({"messages", "input"} & value.keys()):
        return _read_lines([(1, value)], source, [])  # a log of one line
    return read_transcript(value, source)


def _load_json(text: str) -> tuple[Any, ValueError | None]:
    """The value, or what is wrong with the text as one JSON value."""
    if not text.strip():
        raise TranscriptError("is empty")
    try:
        return json.loads(text), None
    except RecursionError as error:
        raise TranscriptError("is nested too deeply to be a conversation") from error
    except ValueError as error:
        return None, error


def _load_lines(text: str) -> Iterator[tuple[int, Any]]:
    """The number of each line with its JSON value, or with the error where it has none."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, error


def _read_lines(objects: Lines, source: str, warnings: list[str]) -> Log:
    values = [value for _, value in objects]
    if any(claude_code.is_entry(value) for value in values):
        return claude_code.read(objects, source, warnings)
    if values[0].get("type") == EXPORT:
        return _read_export(values, source)
    if any(codex.is_line(value) for value in values):
        return codex.read(objects, source, warnings)
    if any(pi.is_line(value) for value in values):
        return pi.read(objects, source, warnings)
    without_role = [number for number, value in objects if not isinstance(value.get("role"), str)]
    if len(without_role) == len(objects):
        keys = ", ".join(map(str, values[0])) or "none"
        raise TranscriptError(f"holds no conversation: no line has a role; the keys of the first are: {keys}")
    if without_role:
        warnings = [*warnings, f"{format_line_numbers(without_role)}: no message with a role; skipped"]
    return read_transcript([value for value in values if isinstance(value.get("role"), str)], source, warnings)


def _read_export(values: list[dict[str, Any]], source: str) -> Log:
    """The first thread of an export: every original message, without summaries."""
    at = next((index for index, value in enumerate(values[1:], 1) if value.get("type") == EXPORT), len(values))
    thread = values[:at]
    entries = [
        LoggedMessage(value["body"], parse_time(value.get("created")))
        for value in thread
        if value.get("type") == "message" and value.get("kind") == "message" and isinstance(value.get("body"), dict)
    ]
    first = next((value for value in thread if value.get("type") == "session"), {})
    others = sum(value.get("type") == EXPORT for value in values) - 1
    warnings = [f"{others:,} further threads of the export left out"] if others else []
    system = first.get("system")
    return Log(
        source, EXPORT, entries, system if isinstance(system, str | list) else None,
        model=str(first.get("model") or ""), warnings=warnings,
        session=str(values[0].get("thread") or ""), title=str(first.get("title") or ""),
    )  # fmt: skip


MAX_TITLE_CHARS = 80
PLACES = {
    "claude-code": ("CLAUDE_CONFIG_DIR", ".claude", "projects", "*/*.jsonl"),
    "codex": ("CODEX_HOME", ".codex", "sessions", "**/rollout-*.jsonl"),
    "pi": ("PI_CODING_AGENT_DIR", ".pi/agent", "sessions", "*/*.jsonl"),
    "opencode": ("XDG_DATA_HOME", ".local/share", "opencode", "storage/session/*/ses_*.json"),
}
"""Where each program keeps its sessions: a variable that names a folder, its default in the home, what is below."""
DATABASES = "opencode*.db"
"""opencode's databases, beside its older storage."""


def find_logs(client: str, *, home: Path | None = None, env: Mapping[str, str] | None = None) -> list[str]:
    """The sessions of a program on this machine, the oldest files first. None at all is an `InputError`."""
    if client not in PLACES:
        raise InputError(f"--from {client!r} is unknown; use one of: {', '.join(PLACES)}")
    variable, default, below, pattern = PLACES[client]
    configured = (os.environ if env is None else env).get(variable)
    folder = Path(configured or (home or Path.home()) / default) / below
    files = sorted(folder.glob(pattern), key=lambda path: (path.stat().st_mtime, path))
    databases = sorted(folder.glob(DATABASES)) if client == "opencode" else []
    try:
        stored = {session: f"{path}#{session}" for path in databases for session in opencode.list_sessions(path)}
    except TranscriptError as error:
        raise TranscriptError(f"a database in {folder} {error}; `opencode export ID` writes one session") from error
    logs = [str(path) for path in files if path.stem not in stored] + list(stored.values())
    if not logs:
        raise InputError(f"there are no sessions of {client} in {folder}; {variable} names another folder")
    return logs


def thread_id(log: Log) -> str:
    """The id of an imported thread: the same conversation always has the same id."""
    name = log.session or log.source
    return hashlib.sha256(f"{log.kind}\0{name}".encode()).hexdigest()[:32]


async def import_log(store: Store, log: Log, *, tenant: str | None = None) -> tuple[str, int]:
    """Store a conversation as a thread; return its id and the number of new messages."""
    session = thread_id(log)
    times = [entry.at for entry in log.entries if entry.at is not None]
    new = NewSession(
        id=session, platform=log.kind, title=log.title or _title(log), model=log.model, system=log.system,
        started=min(times, default=None), client=log.kind, client_session=log.session, tenant=tenant or DEFAULT_TENANT,
    )  # fmt: skip
    await store.create_session(new)
    before = (await store.session(session)).messages
    at: float | None = None
    counter = TokenCounter(log.model or None)
    messages, usage = [], []
    for number, entry in enumerate(log.entries):
        at = entry.at or at
        event = f"{session}:{number}"
        messages.append(NewMessage(entry.message, event=event, tokens=counter.message(entry.message), created=at))
        if entry.usage is not None:
            cost = None if entry.cost is None else Decimal(str(entry.cost))
            usage.append(NewUsage(session, entry.model or log.model, entry.usage, cost=cost, event=event, created=at))
    await store.append(session, messages)
    for used in usage:
        await store.record_usage(used)
    return session, (await store.session(session)).messages - before


def _title(log: Log) -> str:
    first = next((words for entry in log.entries if (words := user_text(entry.message).strip())), "")
    line = " ".join(first.split())
    return line if len(line) <= MAX_TITLE_CHARS else f"{line[: MAX_TITLE_CHARS - 1]}…"


FILE_HELP = (
    "A conversation: JSON or JSONL, an export, a log of Claude Code, Codex, pi or opencode; `-` is standard input."
)


@dataclass(frozen=True, slots=True)
class ConversationFile:
    """A conversation file: its name, its protocol, its request, and what could not be read."""

    source: str
    api: str
    """The protocol to write it back in; for a log of another program OpenAI's chat."""
    request: Request
    bare: bool = False
    """It is a bare list of messages."""
    warnings: Sequence[str] = ()
    """What could not be read of a log, with line numbers; what was left out."""


def read_conversation(file: str) -> ConversationFile:
    """The conversation in `file` (`-`: standard input): a request, else a log of another program."""
    source, text = read_text(file)
    try:
        value = _parse_file(text)
        api, request = decode_any(value)
    except (TranscriptError, WireError) as problem:
        try:
            log = parse_log(text, source)
        except TranscriptError:
            log = None
        if log is None or log.kind not in (*PLACES, EXPORT):
            raise TranscriptError(f"{source}: {problem}") from problem
        if not log.entries:
            raise TranscriptError(f"{source}: holds no message that can be read") from problem
        request = Request(log.model, log.messages, system=log.system, tools=log.tools)
        return ConversationFile(source, "openai_chat", request, warnings=log.warnings)
    return ConversationFile(source, api, request, bare=isinstance(value, list))


def _parse_file(text: str) -> Any:
    """A JSON value, or the list of those in a JSONL text, each of whose lines must be one."""
    value, problem = _load_json(text)
    if problem is None:
        # One line of JSONL is an object like any other; a lone message is a conversation of one.
        return [value] if isinstance(value, dict) and "role" in value and "messages" not in value else value
    values: list[Any] = []
    for number, value in _load_lines(text):
        if isinstance(value, Exception):
            if values and isinstance(values[0], dict):
                raise TranscriptError(f"line {number} is not JSON: {value}") from value
            raise TranscriptError(f"is not JSON: {problem}") from problem
        values.append(value)
    return values
