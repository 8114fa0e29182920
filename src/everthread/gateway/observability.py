"""Metrics, log lines, and the listener for the manager's events."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import Message, Send

from everthread.core.prices import unpriced_text
from everthread.core.redaction import redact
from everthread.errors import EverthreadError, StoreUnreachableError
from everthread.gateway.deadlines import run_beside
from everthread.thread.events import (
    CompactionDone,
    CompactionFailed,
    CompactionVoid,
    Event,
    RecordFailed,
    Unmanaged,
    UsageRecorded,
)

LogForm = Literal["text", "json"]
REQUEST_HEADER = b"x-everthread-request"
_UPSTREAM_ID_HEADER = b"x-request-id"
_REQUEST: ContextVar[str] = ContextVar("request", default="")
_THREAD: ContextVar[str] = ContextVar("thread", default="")
_ID_SOURCE = random.Random(secrets.randbits(256))  # noqa: S311  a name is no secret; to ask the system lets threads in


def add_request_id(send: Send) -> Send:
    """Give the current request an id, and add it to the headers of its answer.

    An upstream's `x-request-id` is kept; an answer without one gets this id.
    """
    name = f"req_{_ID_SOURCE.getrandbits(96):024x}"
    _REQUEST.set(name)
    _THREAD.set("")

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            value = name.encode()
            if _UPSTREAM_ID_HEADER not in [field.lower() for field, _ in headers]:
                headers.append((_UPSTREAM_ID_HEADER, value))
            headers.append((REQUEST_HEADER, value))
            message = {**message, "headers": headers}
        await send(message)

    return send_with_id


def request_id() -> str:
    """Return the id of the current request; empty outside of a request."""
    return _REQUEST.get()


def about_thread(thread: str) -> None:
    """Add this thread to all following log lines."""
    _THREAD.set(thread)


def log_fields(
    logger: logging.Logger, level: int, words: str, fields: Mapping[str, Any]
) -> None:
    """Log a line: `words` for people, and the same as fields for machines."""
    logger.log(level, "%s", words, extra={"fields": dict(fields)})


def printable(text: str) -> str:
    """Return the text as one line without control characters."""
    return (
        text
        if text.isprintable()
        else "".join(char if char.isprintable() else "?" for char in text)
    )


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(
                timespec="milliseconds"
            ),
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
    """Lines for people, with the request's id at the end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name in the standard library
        """Remove keys, and control characters with which a client could forge lines."""
        record.message = printable(redact(record.message))
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        name = _REQUEST.get()
        return f"{text} [{name}]" if name else text


class TerminalLines(logging.Formatter):
    """One short line for each request and each compaction, on the terminal of `everthread serve`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        clock = f"{datetime.fromtimestamp(record.created):%H:%M:%S}"  # noqa: DTZ006  the reader's own clock
        thread = str(fields.get("thread") or "-")[:8]
        if fields.get("event") == CompactionDone.kind:
            before = fields["tokens_before"]
            after = fields["tokens_after"]
            return f"{clock}  compacted  {thread:8}  {before:,} -> {after:,} tokens, by {_plain(fields['author'])}"
        parts = [
            clock,
            str(fields["status"]),
            _plain(fields.get("model") or fields["path"]).ljust(24),
            thread.ljust(8),
        ]
        if "tokens" in fields:
            parts.append(f"{fields['tokens']:>9,} tokens")
        if fields.get("tokens") and "cached" in fields:
            parts.append(f"{fields['cached'] / fields['tokens']:4.0%} cached")
        if "added_ms" in fields:
            parts.append(f"+{fields['added_ms']:.0f} ms")
        parts.append(f"{fields['seconds']:.2f} s")
        if fields.get("reason"):
            parts.append(_plain(fields["reason"], MAX_REASON_CHARS))
        return "  ".join(parts)


MAX_REASON_CHARS = 200


def _plain(text: object, most: int = 60) -> str:
    """Return a client's text, safe for a terminal; keys are redacted before it is cut."""
    return printable(redact(str(text)[:2_000])[:most])


def refusal_reason(body: bytes) -> str:
    """Return the words of an error body in one line, without secrets; empty if it has none."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        value = body[:2_000].decode("utf-8", "replace")
    for name in ("error", "message", "detail", "msg"):
        value = value.get(name, value) if isinstance(value, dict) else value
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return redact(" ".join(words[:2_000].split()))[:MAX_REASON_CHARS]


def _is_for_terminal(record: logging.LogRecord) -> bool:
    fields = getattr(record, "fields", {})
    return "status" in fields or fields.get("event") == CompactionDone.kind


def set_up_logs(
    form: LogForm, *, verbose: bool, quiet: bool = True, file: Path | None = None
) -> None:
    """Configure logging for a process that is only a gateway.

    Unless `quiet`, log a short line for each request and compaction. `file` gets everything as JSON.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    is_detailed = verbose or form == "json"
    handler.setLevel(logging.INFO if is_detailed else logging.WARNING)
    logging.basicConfig(level=handler.level, handlers=[handler])
    if not quiet and not is_detailed:
        lines = logging.StreamHandler()
        lines.setFormatter(TerminalLines())
        lines.addFilter(_is_for_terminal)
        _LOG.setLevel(logging.INFO)
        _LOG.addHandler(lines)
    if file is not None:
        record = logging.FileHandler(file, encoding="utf-8")
        record.setFormatter(JsonLines())
        _LOG.setLevel(logging.INFO)
        _LOG.addHandler(record)
    for noisy in ("httpx2", "httpcore2", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


STORE_SECONDS = 1.0
"""The longest that a request waits for a store that is away."""
T = TypeVar("T")
Clock = Callable[[], float]
_BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "requests": ("Requests answered, by protocol and status.", ("api", "status")),
    "rewrites": ("Requests that did not go upstream as they came, by kind.", ("kind",)),
    "failed_open": (
        "Decisions that failed, so that the original was forwarded, by step.",
        ("step",),
    ),
    "recalls": ("Calls of the tool `recall` that were answered here.", ()),
    "unmanaged": (
        "Requests passed on without a look into them, by the reason.",
        ("why",),
    ),
    "upstream_errors": (
        "Errors of upstreams, by upstream and status or kind.",
        ("upstream", "status"),
    ),
    "tokens": (
        "Tokens as reported by upstreams, by bucket and task.",
        ("bucket", "task"),
    ),
    "cost_dollars": ("Dollars, of the calls whose price is known, by task.", ("task",)),
    "compactions": (
        "Rewrites made, by the author of the summary and whether anybody waited.",
        ("author", "background"),
    ),
    "compaction_tokens": (
        "Tokens of histories before and after they were compacted.",
        ("side",),
    ),
    "compaction_failures": (
        "Compactions that failed or came to nothing, by kind.",
        ("kind",),
    ),
    "keepalives": ("Comments sent to clients that waited for a stream.", ()),
}
"""Counters by name, with their help text and labels."""


class StoreWatch:
    """Check whether a store that may be unreachable (a database server) answers; no check takes more than a second.

    A result is valid for a second, so that in an outage one request waits and the others do not. A store that answers
    other calls during a check is busy, not unreachable; that result is not kept.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[object]],
        *,
        seconds: float = STORE_SECONDS / 2,
        clock: Clock = time.monotonic,
        answered_at: Clock = lambda: -1.0,
    ) -> None:
        """`answered_at`: when the store last answered, on the same clock."""
        self._probe = probe
        self._answered_at = answered_at
        self._seconds = seconds
        self._clock = clock
        self._until = 0.0
        self._away = False
        self._asking: asyncio.Task[bool] | None = None

    @property
    def is_known_away(self) -> bool:
        return self._away and self._clock() < self._until

    async def is_away(self) -> bool:
        """Check now if the state is unknown; concurrent callers share one check."""
        if self._clock() < self._until:
            return self._away
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work that needs the store.

        Raise `StoreUnreachableError` if the store is unreachable before the work is done; this is checked only if the
        work takes longer than usual.
        """
        if self.is_known_away:
            work.close()
            raise StoreUnreachableError("the store does not answer")

        async def watch() -> None:
            while not await self.is_away():  # noqa: ASYNC110  the store tells nothing by itself
                await asyncio.sleep(self._seconds)
            raise StoreUnreachableError("the store does not answer")

        return await run_beside(work, watch, after=self._seconds)

    async def _ask(self) -> bool:
        started_at = self._clock()
        try:
            async with asyncio.timeout(self._seconds):
                await self._probe()
            away = False
        except (EverthreadError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and self._answered_at() >= started_at:
                return False
            away = True
            _LOG.warning(
                "the store does not answer (%s); requests go through unmanaged",
                type(error).__name__,
            )
        self._away = away
        self._until = self._clock() + 1.0
        return away


METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder of the figures that several processes share; prometheus-client reads it when it is imported."""


class Metrics:
    """Counts since the gateway started, in its own registry, since several gateways may run in one process.

    The workers of one gateway share a folder (`METRICS_VARIABLE`), and each reports the sums of all.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._folder = os.environ.get(METRICS_VARIABLE)
        self._counters = {
            name: Counter(f"everthread_{name}", words, labels, registry=self._registry)
            for name, (words, labels) in _COUNTERS.items()
        }
        self._series: dict[tuple[Any, ...], Counter] = {}
        """The counters that were used, by name and labels: prometheus-client looks for them under a lock."""
        self._in_flight = Gauge(
            "everthread_in_flight",
            "Requests being answered now.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._first_byte = Histogram(
            "everthread_first_byte_seconds",
            "Time until the first byte of an answer, upstream included.",
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to `everthread_<name>_total`."""
        if not labels:
            self._counters[name].inc(by)
            return
        key = (name, *labels.items())
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._counters[name].labels(**labels)
        series.inc(by)

    def value(self, name: str, **labels: str) -> float:
        """Return the sum over all series with these labels."""
        wanted = labels.items()
        return sum(
            sample.value
            for family in (
                self._all().collect()
                if self._folder
                else self._counters[name].collect()
            )
            for sample in family.samples
            if sample.name == f"everthread_{name}_total"
            and wanted <= sample.labels.items()
        )

    @property
    def in_flight(self) -> int:
        return int(next(iter(self._in_flight.collect())).samples[0].value)

    @in_flight.setter
    def in_flight(self, number: int) -> None:
        self._in_flight.set(number)

    def observe_first_byte(self, seconds: float) -> None:
        """Record the seconds until the first byte of an answer was sent."""
        self._first_byte.observe(seconds)

    def text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self._all() if self._folder else self._registry).decode()

    def _all(self) -> CollectorRegistry:
        """Return the metrics of all workers."""
        shared = CollectorRegistry()
        MultiProcessCollector(shared, path=self._folder)  # type: ignore[no-untyped-call]
        return shared


_LOG = logging.getLogger("everthread.gateway")
_REASONS = ("error", "why", "text", "action", "source")
"""Fields that hold our own explanations."""


FORWARDED = "a decision failed, the original was forwarded"
REFUSED = "an upstream answered with an error"


class FailureLog:
    """Count failures that were passed through, by tenant and day, in the store; the dashboard shows them.

    What cannot be stored now is kept and stored with the next one.
    """

    def __init__(
        self, add: Callable[[Mapping[tuple[str, str, str], int]], Awaitable[None]]
    ) -> None:
        self._add = add
        self._counts: dict[tuple[str, str, str], int] = {}
        self._storing: asyncio.Task[None] | None = None

    def note(self, what: str, *, tenant: str = "", thread: str = "") -> None:
        self._counts[tenant, thread, what] = (
            self._counts.get((tenant, thread, what), 0) + 1
        )
        if self._storing is None or self._storing.done():
            self._storing = asyncio.get_running_loop().create_task(self._store())

    async def close(self) -> None:
        if self._storing is not None:
            await self._storing

    async def _store(self) -> None:
        while self._counts:
            counts = self._counts
            self._counts = {}
            try:
                await self._add(counts)
            except EverthreadError as error:
                for key, count in counts.items():
                    self._counts[key] = self._counts.get(key, 0) + count
                _LOG.warning("failures are not stored yet: %s", error)
                return


MAX_UNPRICED_MODELS = 100
"""The most models for which a missing price is logged: clients choose their names."""


class EventReporter:
    """Count and log the manager's events, never the content of messages."""

    def __init__(self, metrics: Metrics, failures: FailureLog | None = None) -> None:
        self._metrics = metrics
        self._unpriced: set[str] = set()
        self._failures = failures

    def __call__(self, event: Event) -> None:
        self._count(event)
        failed = isinstance(event, CompactionFailed | RecordFailed)
        level = (
            logging.WARNING
            if failed
            else logging.DEBUG
            if isinstance(event, UsageRecorded)
            else logging.INFO
        )
        if not _LOG.isEnabledFor(level):
            return
        fields = event.as_dict()
        why = next(
            (fields[name] for name in _REASONS if isinstance(fields.get(name), str)), ""
        )
        session = fields.pop("session")
        log_fields(
            _LOG,
            level,
            f"{event.kind} in {session}{f': {why}' if why else ''}",
            {"thread": session, **fields},
        )

    def _note_unpriced(self, model: str) -> None:
        """Log once that a model has no known price, with the key that sets one."""
        if model not in self._unpriced and len(self._unpriced) < MAX_UNPRICED_MODELS:
            self._unpriced.add(model)
            _LOG.warning("%s", unpriced_text(model))

    def _count(self, event: Event) -> None:
        count = self._metrics.count
        if isinstance(event, CompactionDone):
            count(
                "compactions",
                author=event.author,
                background=str(event.background).lower(),
            )
            count("compaction_tokens", event.tokens_before, side="before")
            count("compaction_tokens", event.tokens_after, side="after")
        elif isinstance(event, CompactionVoid | CompactionFailed):
            failed = isinstance(event, CompactionFailed)
            count("compaction_failures", kind="failed" if failed else "void")
            if self._failures is not None:
                words = (
                    "a compaction failed" if failed else "a compaction came to nothing"
                )
                self._failures.note(words, thread=event.session)
        elif isinstance(event, Unmanaged):
            count("unmanaged", why=event.why)
        elif isinstance(event, RecordFailed):
            count("failed_open", step="record")
        elif isinstance(event, UsageRecorded):
            if event.cost is not None:
                count("cost_dollars", float(event.cost), task=event.task)
            elif not event.estimated:
                self._note_unpriced(event.model)
            if event.task == "auxiliary":
                for bucket in ("input", "output", "cache_read", "cache_write"):
                    count(
                        "tokens",
                        getattr(event.usage, f"{bucket}_tokens"),
                        bucket=bucket,
                        task="auxiliary",
                    )
