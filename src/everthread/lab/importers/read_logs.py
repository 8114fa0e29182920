"""Reads a conversation from a file of any known form, finds the logs of other programs, imports a log as a thread.

Known forms are messages and requests of OpenAI and Anthropic, Everthread's own exports, and the logs of Claude Code,
Codex, Copilot CLI, Gemini CLI, pi and opencode; any of them may be gzipped. A line of a log that is not JSON is skipped
with a warning.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import itertools
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everthread.core.tokens import TokenCounter
from everthread.core.transcript import user_text
from everthread.core.types import Request
from everthread.errors import InputError, TranscriptError, WireError
from everthread.lab.importers import (
    claude_code,
    codex,
    copilot,
    gemini_cli,
    opencode,
    pi,
)
from everthread.lab.importers.line_file import GZIP, LineFile
from everthread.lab.importers.log import (
    CLIENT_NAMES,
    Lines,
    Log,
    LoggedMessage,
    LogStream,
    format_line_numbers,
    parse_time,
    read_transcript,
)
from everthread.store.records import DEFAULT_TENANT, NewMessage, NewSession, NewUsage
from everthread.wire.codecs import decode_any

if TYPE_CHECKING:
    from everthread.store.store import Store

EXPORT = "everthread"
"""The type of the first line that `sessions export` writes for a thread."""
DATABASE = b"SQLite format 3\0"
SUPPORTED = (
    "messages or a request of OpenAI or Anthropic (JSON or JSONL), an export of `everthread sessions export`, and logs "
    "of Claude Code, Codex, Copilot CLI, Gemini CLI, opencode and pi"
)
"""The forms that can be read, in words."""


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
    """Return the lines of a log, to be read one at a time; None for a file of another form and standard input."""
    path = Path(file).expanduser()
    if file == "-" or opencode.split_address(file) is not None or not path.is_file():
        return None
    lines = LineFile(path, file)
    try:
        return lines if lines.begins_with_objects() else None
    except OSError as error:
        raise TranscriptError(
            f"{file}: cannot be read: {error.strerror or error}"
        ) from error


def parse_lines(lines: LineFile, source: str) -> Log:
    """Return the conversation in a file of lines; `TranscriptError` says why there is none."""
    try:
        log = _read_lines(lines, source, [])
    except (TranscriptError, WireError) as error:
        reason = str(error)
        raise TranscriptError(
            reason if reason.startswith(source) else f"{source}: {reason}"
        ) from error
    return replace(log, warnings=[*_describe_bad(lines.bad), *log.warnings])


def stream_log(lines: LineFile, source: str) -> LogStream:
    """Return the conversation in a file of lines, to be read while it is stored."""
    first = lines.first
    if first.get("type") == EXPORT or _find_reader(lines) is not claude_code.read:
        log = parse_lines(lines, source)
        return LogStream(log, log.entries)
    streamed = claude_code.stream(lines, source, [])
    streamed.log.warnings.extend(_describe_bad(lines.bad))
    return streamed


def _describe_bad(bad: Iterable[int]) -> list[str]:
    numbers = sorted(bad)
    if not numbers:
        return []
    return [f"{format_line_numbers(numbers)}: no JSON object; skipped"]


def read_text(file: str) -> tuple[str, str]:
    """The name of a file and its text (`-`: standard input)."""
    source, content = _read_bytes(file)
    try:
        return source, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TranscriptError(
            f"{source}: is not UTF-8 text (byte {error.start})"
        ) from error


def _read_bytes(file: str) -> tuple[str, bytes]:
    source = "standard input" if file == "-" else file
    address = opencode.split_address(file)
    try:
        if address is not None:
            return source, json.dumps(opencode.from_database(*address)).encode()
        content = (
            sys.stdin.buffer.read()
            if file == "-"
            else Path(file).expanduser().read_bytes()
        )
    except OSError as error:
        raise TranscriptError(
            f"{source}: cannot be read: {error.strerror or error}"
        ) from error
    except (TranscriptError, ValueError) as error:
        raise TranscriptError(f"{source}: {error}") from error
    if content.startswith(GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise TranscriptError(f"{source}: cannot be unpacked: {error}") from error
    if content.startswith(DATABASE):
        raise TranscriptError(
            f"{source}: is a database; of opencode's, {source}#SESSION_ID is one conversation"
        )
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
        objects = [
            (number, value) for number, value in lines if isinstance(value, dict)
        ]
        bad = [number for number, value in lines if not isinstance(value, dict)]
        if not objects:
            raise TranscriptError(f"is not JSON: {problem}. Supported: {SUPPORTED}")
        return _read_lines(objects, source, _describe_bad(bad))
    if opencode.is_session_file(value):
        try:
            value = opencode.from_storage(Path(source))
        except (OSError, ValueError) as error:
            raise TranscriptError(f"its messages cannot be read: {error}") from error
    if opencode.is_export(value):
        return opencode.read(value, source)
    if isinstance(value, dict) and (
        gemini_cli.is_line(value) or not ({"messages", "input"} & value.keys())
    ):
        return _read_lines([(1, value)], source, [])  # a log of one line
    return read_transcript(value, source)


def _load_json(text: str) -> tuple[Any, ValueError | None]:
    """Return the value, or the error of the text as one JSON value."""
    if not text.strip():
        raise TranscriptError("is empty")
    try:
        return json.loads(text), None
    except RecursionError as error:
        raise TranscriptError("is nested too deeply to be a conversation") from error
    except ValueError as error:
        return None, error


def _load_lines(text: str) -> Iterator[tuple[int, Any]]:
    """The number of each line with its JSON value, or with the error if it has none."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, error


Reader = Callable[[Lines, str, list[str]], Log]
READERS: Sequence[tuple[Callable[[Mapping[str, Any]], bool], Reader]] = (
    (codex.is_line, codex.read),
    (pi.is_line, pi.read),
    (copilot.is_line, copilot.read),
    (gemini_cli.is_line, gemini_cli.read),
)
"""How a line of each program is recognised, and its reader, the first that fits counts. Claude Code comes before."""


def _find_reader(objects: Lines) -> Reader | None:
    """Return the reader for a program's log; None if no line is of a program."""
    fitting: set[int] = set()
    for _, value in objects:
        if claude_code.is_entry(value):
            return claude_code.read
        fitting.update(
            index for index, (is_line, _) in enumerate(READERS) if is_line(value)
        )
    return READERS[min(fitting)][1] if fitting else None


def _read_lines(objects: Lines, source: str, warnings: list[str]) -> Log:
    first = next(value for _, value in objects)
    if first.get("type") == EXPORT:
        return _read_export([value for _, value in objects], source)
    reader = _find_reader(objects)
    if reader is not None:
        return reader(objects, source, warnings)
    values = [value for _, value in objects]
    without_role = [
        number for number, value in objects if not isinstance(value.get("role"), str)
    ]
    if len(without_role) == len(values):
        keys = ", ".join(map(str, values[0])) or "none"
        raise TranscriptError(
            f"holds no conversation: no line has a role; the keys of the first are: {keys}. Supported: {SUPPORTED}"
        )
    if without_role:
        warnings = [
            *warnings,
            f"{format_line_numbers(without_role)}: no message with a role; skipped",
        ]
    return read_transcript(
        [value for value in values if isinstance(value.get("role"), str)],
        source,
        warnings,
    )


def _read_export(values: list[dict[str, Any]], source: str) -> Log:
    """The first thread of an export: every original message, without summaries."""
    at = next(
        (
            index
            for index, value in enumerate(values[1:], 1)
            if value.get("type") == EXPORT
        ),
        len(values),
    )
    thread = values[:at]
    entries = [
        LoggedMessage(value["body"], parse_time(value.get("created")))
        for value in thread
        if value.get("type") == "message"
        and value.get("kind") == "message"
        and isinstance(value.get("body"), dict)
    ]
    first = next((value for value in thread if value.get("type") == "session"), {})
    others = sum(value.get("type") == EXPORT for value in values) - 1
    warnings = [f"{others:,} further threads of the export left out"] if others else []
    system = first.get("system")
    return Log(
        source,
        EXPORT,
        entries,
        system=system if isinstance(system, str | list) else None,
        model=str(first.get("model") or ""),
        warnings=warnings,
        session=str(values[0].get("thread") or ""),
        title=str(first.get("title") or ""),
    )


MAX_TITLE_CHARS = 80
LOG_LOCATIONS = {
    "claude-code": ("CLAUDE_CONFIG_DIR", ".claude", "projects", "*/*.jsonl"),
    "codex": ("CODEX_HOME", ".codex", "sessions", "**/rollout-*.jsonl"),
    "pi": ("PI_CODING_AGENT_DIR", ".pi/agent", "sessions", "*/*.jsonl"),
    "opencode": (
        "XDG_DATA_HOME",
        ".local/share",
        "opencode",
        "storage/session/*/ses_*.json",
    ),
    "copilot": ("COPILOT_HOME", ".copilot", "session-state", "**/*.jsonl"),
    "gemini-cli": ("GEMINI_CLI_HOME", "", ".gemini/tmp", "*/chats/session-*.json*"),
}
"""The place of each program's sessions: a variable that names a folder, its default in the home, the rest."""
DATABASES = "opencode*.db"
"""opencode's databases, beside its older storage."""


def find_logs(
    client: str, *, home: Path | None = None, env: Mapping[str, str] | None = None
) -> list[str]:
    """The sessions of a program on this machine, the oldest files first. None at all is an `InputError`."""
    if client not in LOG_LOCATIONS:
        raise InputError(
            f"--from {client!r} is unknown; use one of: {', '.join(LOG_LOCATIONS)}"
        )
    variable, default, below, pattern = LOG_LOCATIONS[client]
    configured = (os.environ if env is None else env).get(variable)
    folder = Path(configured or (home or Path.home()) / default) / below
    files = sorted(folder.glob(pattern), key=lambda path: (path.stat().st_mtime, path))
    databases = sorted(folder.glob(DATABASES)) if client == "opencode" else []
    try:
        stored = {
            session: f"{path}#{session}"
            for path in databases
            for session in opencode.list_sessions(path)
        }
    except TranscriptError as error:
        raise TranscriptError(
            f"a database in {folder} {error}; `opencode export ID` writes one session"
        ) from error
    logs = [str(path) for path in files if path.stem not in stored] + list(
        stored.values()
    )
    if not logs:
        raise InputError(
            f"there are no sessions of {client} in {folder}; {variable} names another folder"
        )
    return logs


def find_latest(
    *,
    limit: int = 1,
    since: float = 0.0,
    home: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the newest sessions of all programs on this machine, the newest first. None at all is an `InputError`.

    `since`: seconds since 1970; older sessions are left out.
    """
    dated: list[tuple[float, str]] = []
    for client in LOG_LOCATIONS:
        try:
            logs = find_logs(client, home=home, env=env)
        except InputError:
            continue
        dated += [(_changed_at(log), log) for log in logs]
    latest = [log for at, log in sorted(dated, reverse=True) if at >= since][:limit]
    if not latest:
        clients = ", ".join(CLIENT_NAMES[client] for client in LOG_LOCATIONS)
        when = " since then" if since else ""
        raise InputError(
            f"no sessions were found{when} in the usual folders of {clients}; name the file of one instead"
        )
    return latest


def _changed_at(log: str) -> float:
    """Return the time at which a session was last changed; for one of a database, the time of the file."""
    address = opencode.split_address(log)
    path = address[0] if address is not None else Path(log)
    return path.stat().st_mtime


def thread_id(log: Log) -> str:
    """The id of an imported thread: the same conversation always has the same id."""
    name = log.session or log.source
    return hashlib.sha256(f"{log.kind}\0{name}".encode()).hexdigest()[:32]


async def import_log(
    store: Store, log: Log, *, tenant: str | None = None
) -> tuple[str, int]:
    """Store a conversation as a thread; return its id and the number of new messages."""
    return await import_stream(store, LogStream(log, log.entries), tenant=tenant)


async def import_stream(
    store: Store, stream: LogStream, *, tenant: str | None = None
) -> tuple[str, int]:
    """Store and index a conversation as it is read; return its thread's id and the number of new messages."""
    log = stream.log
    session = thread_id(log)
    batches = _split_batches(stream.entries)
    first = next(batches, [])
    times = [entry.at for entry in first if entry.at is not None]
    new = NewSession(
        id=session,
        platform=log.kind,
        title=log.title or _title(first),
        model=log.model,
        system=log.system,
        started=min(times, default=None),
        client=log.kind,
        client_session=log.session,
        tenant=tenant or DEFAULT_TENANT,
    )
    await store.create_session(new)
    before = (await store.session(session)).messages
    at: float | None = None
    numbers = itertools.count()
    for batch in itertools.chain([first], batches):
        messages: list[NewMessage] = []
        usage: list[NewUsage] = []
        # A new one for each batch: a counter keeps the messages that it has counted.
        counter = TokenCounter(log.model or None)
        for entry in batch:
            at = entry.at or at
            event = f"{session}:{next(numbers)}"
            tokens = counter.message(entry.message)
            messages.append(
                NewMessage(entry.message, event=event, tokens=tokens, created=at)
            )
            if entry.usage is not None:
                used = NewUsage(session, entry.model or log.model, entry.usage)
                cost = None if entry.cost is None else Decimal(str(entry.cost))
                usage.append(replace(used, cost=cost, event=event, created=at))
        await store.append(session, messages)
        await asyncio.gather(*map(store.record_usage, usage))
        await store.index_appended()
    return session, (await store.session(session)).messages - before


IMPORT_BATCH = 200
"""Messages that are stored and indexed together."""


def _split_batches(entries: Iterable[LoggedMessage]) -> Iterator[list[LoggedMessage]]:
    rest = iter(entries)
    while batch := list(itertools.islice(rest, IMPORT_BATCH)):
        yield batch


def _title(entries: Iterable[LoggedMessage]) -> str:
    first = next(
        (words for entry in entries if (words := user_text(entry.message).strip())),
        "",
    )
    line = " ".join(first.split())
    return line if len(line) <= MAX_TITLE_CHARS else f"{line[: MAX_TITLE_CHARS - 1]}…"


FILE_HELP = (
    "A conversation: JSON or JSONL, an export, a log of Claude Code, Codex, Copilot CLI, Gemini CLI, pi or opencode; "
    "`-` is standard input."
)


@dataclass(frozen=True, slots=True)
class ConversationFile:
    """A conversation file: its name, its protocol, its request, and the lines that could not be read."""

    source: str
    api: str
    """The protocol to write it back in; for a log of another program OpenAI's chat."""
    request: Request
    bare: bool = False
    """It is a bare list of messages."""
    warnings: Sequence[str] = ()
    """Lines of a log that could not be read, by number, and counts of those left out."""


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
        if log is None or log.kind not in (*LOG_LOCATIONS, EXPORT):
            raise TranscriptError(f"{source}: {problem}") from problem
        if not log.entries:
            raise TranscriptError(
                f"{source}: holds no message that can be read"
            ) from problem
        request = Request(log.model, log.messages, system=log.system, tools=log.tools)
        return ConversationFile(source, "openai_chat", request, warnings=log.warnings)
    return ConversationFile(source, api, request, bare=isinstance(value, list))


def _parse_file(text: str) -> Any:
    """A JSON value, or the list of those in a JSONL text, each of whose lines must be one."""
    value, problem = _load_json(text)
    if problem is None:
        # One line of JSONL is an object like any other; a lone message is a conversation of one.
        return (
            [value]
            if isinstance(value, dict) and "role" in value and "messages" not in value
            else value
        )
    values: list[Any] = []
    for number, value in _load_lines(text):
        if isinstance(value, Exception):
            if values and isinstance(values[0], dict):
                raise TranscriptError(f"line {number} is not JSON: {value}") from value
            raise TranscriptError(f"is not JSON: {problem}") from problem
        values.append(value)
    return values
