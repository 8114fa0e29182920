"""What the gateway shows of itself: figures for `/metrics`, log lines, and what the manager reports."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from starlette.types import Message, Send

from everthread.conversation.events import CompactionFailed, CompactionVoid, Event, UsageRecorded
from everthread.core.redaction import redact
from everthread.gateway.events import RecordFailed, Rewritten

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


_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_HELP = {
    "everthread_requests_total": "Requests answered, by protocol and status.",
    "everthread_rewrites_total": "Requests that did not go upstream as they came, by kind.",
    "everthread_failed_open_total": "Decisions that failed, so that the original was forwarded, by step.",
    "everthread_unmanaged_total": "Requests passed on without a look into them, by the reason.",
    "everthread_upstream_errors_total": "Errors of upstreams, by upstream and status or kind.",
    "everthread_tokens_total": "Tokens as reported by upstreams, by bucket and task.",
    "everthread_cost_dollars_total": "Dollars, of the calls whose price is known, by task.",
    "everthread_compactions_total": "Rewrites made, by who wrote the summary and whether anybody waited for it.",
    "everthread_compaction_tokens_total": "Tokens of histories before and after they were compacted.",
    "everthread_compaction_failures_total": "Compactions that failed or came to nothing, by kind.",
    "everthread_keepalives_total": "Comments sent to clients that waited for a stream.",
}
_Labels = tuple[tuple[str, str], ...]


class Metrics:
    """What happened since the process started."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[_Labels, float]] = {name: {} for name in _HELP}
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0
        self.in_flight = 0

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to `everthread_<name>_total`."""
        counts = self._counts[f"everthread_{name}_total"]
        key = tuple(sorted(labels.items()))
        counts[key] = counts.get(key, 0) + by

    def value(self, name: str, **labels: str) -> float:
        """The sum of what has at least these labels."""
        wanted = set(labels.items())
        counts = self._counts[f"everthread_{name}_total"]
        return sum(number for key, number in counts.items() if wanted <= set(key))

    def took(self, seconds: float) -> None:
        """Until the first byte of an answer went to the client."""
        at = next((index for index, bound in enumerate(_BOUNDS) if seconds <= bound), len(_BOUNDS))
        self._buckets[at] += 1
        self._seconds += seconds

    def text(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for name, words in _HELP.items():
            yield f"# HELP {name} {words}"
            yield f"# TYPE {name} counter"
            for labels, number in sorted(self._counts[name].items()):
                yield f"{name}{_shown(labels)} {number}"
        yield "# HELP everthread_in_flight Requests being answered now."
        yield "# TYPE everthread_in_flight gauge"
        yield f"everthread_in_flight {self.in_flight}"
        name = "everthread_first_byte_seconds"
        yield f"# HELP {name} Time until the first byte of an answer, upstream included."
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, number in zip([*map(str, _BOUNDS), "+Inf"], self._buckets, strict=True):
            total += number
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._seconds:.6f}"
        yield f"{name}_count {total}"


def _shown(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_LOG = logging.getLogger("everthread.gateway")
_REASONS = ("error", "why", "text", "action", "source")
"""Fields that say why, in words of ours."""


class EventReporter:
    """A listener. It never tells what was said."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, event: Event) -> None:
        self._count(event)
        failed = isinstance(event, CompactionFailed | RecordFailed)
        level = logging.WARNING if failed else logging.DEBUG if isinstance(event, UsageRecorded) else logging.INFO
        if not _LOG.isEnabledFor(level):
            return
        told = event.as_dict()
        why = next((told[name] for name in _REASONS if isinstance(told.get(name), str)), "")
        session = told.pop("session")
        log_fields(_LOG, level, f"{event.kind} in {session}{f': {why}' if why else ''}", {"thread": session, **told})

    def _count(self, event: Event) -> None:
        count = self._metrics.count
        if isinstance(event, Rewritten):
            count("compactions", author=event.author, background=str(event.background).lower())
            count("compaction_tokens", event.tokens_before, side="before")
            count("compaction_tokens", event.tokens_after, side="after")
        elif isinstance(event, CompactionVoid | CompactionFailed):
            count("compaction_failures", kind="failed" if isinstance(event, CompactionFailed) else "void")
        elif isinstance(event, RecordFailed):
            count("failed_open", step="record")
        elif isinstance(event, UsageRecorded):
            if event.cost is not None:
                count("cost_dollars", float(event.cost), task=event.task)
            if event.task == "auxiliary":
                for bucket in ("input", "output", "cache_read", "cache_write"):
                    count("tokens", getattr(event.usage, f"{bucket}_tokens"), bucket=bucket, task="auxiliary")
