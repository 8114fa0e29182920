"""What the gateway logs: each line with the request and the thread it is about, never a body or a credential."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from starlette.types import Message, Send

from everthread.core.redaction import redact

LogForm = Literal["text", "json"]
REQUEST_HEADER = b"x-everthread-request"
_THEIRS = b"x-request-id"
_REQUEST: ContextVar[str] = ContextVar("request", default="")
_THREAD: ContextVar[str] = ContextVar("thread", default="")


def identified(send: Send) -> Send:
    """Name the request that is answered here; every answer says the name.

    An upstream's `x-request-id` stays as it came; an answer without one gets ours.
    """
    name = f"req_{secrets.token_hex(12)}"
    _REQUEST.set(name)
    _THREAD.set("")

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if not any(field.lower() == _THEIRS for field, _ in headers):
                headers.append((_THEIRS, name.encode()))
            message = {**message, "headers": [*headers, (REQUEST_HEADER, name.encode())]}
        await send(message)

    return sending


def request_id() -> str:
    """Of the request that is being answered; empty outside of one."""
    return _REQUEST.get()


def about_thread(thread: str) -> None:
    """What is logged from here on is about this thread."""
    _THREAD.set(thread)


def log_fields(logger: logging.Logger, level: int, words: str, fields: Mapping[str, Any]) -> None:
    """A line with fields of its own; they are for machines, `words` say the same to a person."""
    logger.log(level, "%s", words, extra={"fields": dict(fields)})


def printable(text: str) -> str:
    """One line that moves no cursor, whatever it was made from."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__  # its words may be a client's
        around = {"request": _REQUEST.get(), "thread": _THREAD.get()}
        line |= {name: value for name, value in around.items() if value}
        fields = getattr(record, "fields", None)
        for name, value in fields.items() if isinstance(fields, dict) else ():
            line[name] = redact(value) if isinstance(value, str) else value
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """A line for a person; the request's name at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name in the standard library
        """Without control characters, which a client could forge lines with, and without keys."""
        record.message = printable(redact(record.message))
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        text, name = super().format(record), _REQUEST.get()
        return f"{text} [{name}]" if name else text


class TerminalLines(logging.Formatter):
    """One short line for each request and each compaction, for who watches `everthread serve`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        clock = f"{datetime.fromtimestamp(record.created):%H:%M:%S}"  # noqa: DTZ006  the reader's own clock
        thread = str(fields.get("thread") or "-")[:8]
        if fields.get("event") == "rewrite":
            before, after = fields["tokens_before"], fields["tokens_after"]
            return f"{clock}  compacted  {thread:8}  {before:,} -> {after:,} tokens, by {_plain(fields['author'])}"
        parts = [clock, str(fields["status"]), _plain(fields.get("model") or fields["path"]).ljust(24), thread.ljust(8)]
        if "tokens" in fields:
            parts.append(f"{fields['tokens']:>9,} tokens")
        if fields.get("tokens") and "cached" in fields:
            parts.append(f"{fields['cached'] / fields['tokens']:4.0%} cached")
        if "added_ms" in fields:
            parts.append(f"+{fields['added_ms']:.0f} ms")
        return "  ".join([*parts, f"{fields['seconds']:.2f} s"])


def _plain(text: object) -> str:
    """What a client named, as it can stand in a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:60])


def _is_for_terminal(record: logging.LogRecord) -> bool:
    fields = getattr(record, "fields", {})
    return "status" in fields or fields.get("event") == "rewrite"


def set_up_logs(form: LogForm, *, verbose: bool, quiet: bool = True) -> None:
    """For a process that is nothing but a gateway. Not `quiet`: a short line for each request and compaction."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    told = verbose or form == "json"
    handler.setLevel(logging.INFO if told else logging.WARNING)
    logging.basicConfig(level=handler.level, handlers=[handler])
    if not quiet and not told:
        lines = logging.StreamHandler()
        lines.setFormatter(TerminalLines())
        lines.addFilter(_is_for_terminal)
        gateway = logging.getLogger("everthread.gateway")
        gateway.setLevel(logging.INFO)
        gateway.addHandler(lines)
    for noisy in ("httpx2", "httpcore2", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
