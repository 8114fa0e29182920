"""The gateway's log: ids of requests, the formats of lines, and the set-up of handlers."""

from __future__ import annotations

import json
import logging
import random
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from starlette.types import Message, Send

from everthread.core.secrets.redaction import redact
from everthread.thread.events import CompactionDone

_LOG = logging.getLogger("everthread.gateway")
LogForm = Literal["text", "json"]
REQUEST_HEADER = b"x-everthread-request"
_UPSTREAM_ID_HEADER = b"x-request-id"
_REQUEST_ID: ContextVar[str] = ContextVar("request", default="")
_THREAD_ID: ContextVar[str] = ContextVar("thread", default="")
_ID_SOURCE = random.Random(secrets.randbits(256))  # noqa: S311  an id is not secret; asking the system would release the interpreter's lock


def add_request_id(send: Send) -> Send:
    """Give the current request an id, and add it to the headers of its answer.

    An upstream's `x-request-id` is kept; an answer without one gets this id.
    """
    request_id = f"req_{_ID_SOURCE.getrandbits(96):024x}"
    _REQUEST_ID.set(request_id)
    _THREAD_ID.set("")

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            value = request_id.encode()
            if _UPSTREAM_ID_HEADER not in [field.lower() for field, _ in headers]:
                headers.append((_UPSTREAM_ID_HEADER, value))
            headers.append((REQUEST_HEADER, value))
            message = {**message, "headers": headers}
        await send(message)

    return send_with_id


def get_request_id() -> str:
    """Return the id of the current request, or an empty string outside of a request."""
    return _REQUEST_ID.get()


def set_log_thread(thread: str) -> None:
    """Add this thread to all following log lines."""
    _THREAD_ID.set(thread)


def log_fields(level: int, text: str, fields: Mapping[str, Any]) -> None:
    """Log a line with a text for people and fields for programs."""
    _LOG.log(level, "%s", text, extra={"fields": dict(fields)})


def make_printable(text: str) -> str:
    """Return the text as one line without control characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


class JsonLines(logging.Formatter):
    """Format each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__  # its words may be a client's
        context_fields = {"request": _REQUEST_ID.get(), "thread": _THREAD_ID.get()}
        line |= {name: value for name, value in context_fields.items() if value}
        fields = getattr(record, "fields", None)
        for name, value in fields.items() if isinstance(fields, dict) else ():
            line[name] = redact(value) if isinstance(value, str) else value
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """Format records as lines of text, with the request's id at the end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name in the standard library
        """Remove keys, and control characters with which a client could forge lines."""
        record.message = make_printable(redact(record.message))
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        request_id = _REQUEST_ID.get()
        return f"{text} [{request_id}]" if request_id else text


class TerminalLines(logging.Formatter):
    """Format requests and compactions as lines of 80 columns, for the terminal of `everthread serve`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        clock = f"{datetime.fromtimestamp(record.created):%H:%M:%S}"  # noqa: DTZ006  the reader's own clock
        thread = str(fields.get("thread") or "-")[:8]
        if fields.get("event") == CompactionDone.kind:
            tokens_before = fields["tokens_before"]
            tokens_after = fields["tokens_after"]
            change = f"{tokens_before:,} -> {tokens_after:,} tokens"
            return f"{clock}  compacted  {thread:8}  {change}, by {_format_for_terminal(fields['author'])}"
        parts = [
            clock,
            str(fields["status"]),
            _format_for_terminal(fields.get("model") or fields["path"]).ljust(18),
            thread.ljust(8),
        ]
        if "tokens" in fields:
            parts.append(f"{fields['tokens']:>7,} tokens")
        if fields.get("tokens") and "cached" in fields:
            parts.append(f"{fields['cached'] / fields['tokens']:4.0%} cached")
        parts.append(f"{fields['seconds']:.1f} s")
        if fields.get("reason"):
            parts.append(_format_for_terminal(fields["reason"], MAX_REASON_CHARS))
        return "  ".join(parts)


MAX_REASON_CHARS = 200


def _format_for_terminal(text: object, max_chars: int = 60) -> str:
    """Return a client's text in a form that is safe for a terminal. Redact keys before shortening it."""
    return make_printable(redact(str(text)[:2_000])[:max_chars])


def read_error_reason(body: bytes) -> str:
    """Return the message of an error body on one line, without secrets, or an empty string if there is none."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        value = body[:2_000].decode("utf-8", "replace")
    for name in ("error", "message", "detail", "msg"):
        value = value.get(name, value) if isinstance(value, dict) else value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return redact(" ".join(text[:2_000].split()))[:MAX_REASON_CHARS]


def _is_for_terminal(record: logging.LogRecord) -> bool:
    fields = getattr(record, "fields", {})
    return "status" in fields or fields.get("event") == CompactionDone.kind


def set_up_logs(form: LogForm, *, verbose: bool, quiet: bool, file: Path | None) -> None:
    """Configure logging for a process that runs only a gateway.

    `quiet`: do not log a short line for each request and compaction. `file`: a file for all lines as JSON.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    is_detailed = verbose or form == "json"
    handler.setLevel(logging.INFO if is_detailed else logging.WARNING)
    logging.basicConfig(level=handler.level, handlers=[handler])
    if not quiet and not is_detailed:
        terminal_handler = logging.StreamHandler()
        terminal_handler.setFormatter(TerminalLines())
        terminal_handler.addFilter(_is_for_terminal)
        _LOG.setLevel(logging.INFO)
        _LOG.addHandler(terminal_handler)
    if file is not None:
        file_handler = logging.FileHandler(file, encoding="utf-8")
        file_handler.setFormatter(JsonLines())
        _LOG.setLevel(logging.INFO)
        _LOG.addHandler(file_handler)
    for logger_name in ("httpx2", "httpcore2", "httpcore"):
        logging.getLogger(logger_name).setLevel(logging.WARNING)
