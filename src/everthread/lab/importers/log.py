"""The common form of a recorded conversation, and its reader for requests and messages of OpenAI and Anthropic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from everthread.core.messages import Message
from everthread.core.pricing import CanonicalUsage, normalize_usage
from everthread.core.types import System
from everthread.wire import anthropic, openai_chat
from everthread.wire.codecs import decode_any


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """One message of a log. An answer also has its usage, its cost in dollars and its model, where recorded."""

    message: Message
    at: float | None = None
    """Seconds since 1970."""
    usage: CanonicalUsage | None = None
    cost: float | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """A recorded conversation."""

    source: str
    kind: str
    """Its form: `openai_chat`, `anthropic`, `claude-code`, `codex`, …"""
    entries: list[LoggedMessage]
    system: System = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    warnings: list[str] = field(default_factory=list)
    """What could not be read, with line numbers; what was left out."""
    session: str = ""
    """The session's id in the program that wrote it."""
    title: str = ""

    @property
    def messages(self) -> list[Message]:
        return [entry.message for entry in self.entries]


def parse_time(value: Any) -> float | None:
    """Read a time of a log: ISO 8601, or seconds or milliseconds since 1970; None where it is not a time."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return value / 1_000 if value > _MILLISECONDS else float(value)
    return None


_MILLISECONDS = 1e11
"""As seconds this is the year 5138."""


def text_in(value: Mapping[str, Any], key: str) -> str:
    """A text of a log; empty where there is none."""
    text = value.get(key)
    return text if isinstance(text, str) else ""


def count_in(value: Mapping[str, Any], key: str) -> int:
    """A count of a log; 0 where there is none."""
    count = value.get(key)
    return count if isinstance(count, int) and count > 0 else 0


def dollars_in(value: Mapping[str, Any], key: str) -> float | None:
    dollars = value.get(key)
    return float(dollars) if isinstance(dollars, int | float) and dollars > 0 else None


def first_model(entries: Sequence[LoggedMessage]) -> str:
    """The model of the first answer that names one."""
    return next((entry.model for entry in entries if entry.model), "")


def format_line_numbers(lines: list[int], most: int = 8) -> str:
    """`line 3`, `lines 3, 4 and 12`, `lines 1, 2, … (90 in all)`."""
    if len(lines) == 1:
        return f"line {lines[0]}"
    if len(lines) > most:
        return f"lines {', '.join(map(str, lines[:most]))}, … ({len(lines):,} in all)"
    return f"lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}"


_TIMES = ("timestamp", "created_at", "time")


def read_transcript(value: Any, source: str, warnings: list[str] | None = None) -> Log:
    """Read a list of messages, or an object that holds one.

    A list `usage` beside them has the usage of each call. Its `before_message` is the number of messages of the call;
    without it the entries belong to the answers in their order.
    """
    body = value if isinstance(value, Mapping) else {"messages": value}
    api, request = decode_any({key: entry for key, entry in body.items() if key != "usage"})
    wire = body.get("messages")
    # Decoded message by message, so that each keeps its time.
    entries = (
        _decode_one_by_one(api, wire)
        if isinstance(wire, list)
        else [LoggedMessage(message) for message in request.messages]
    )
    if request.system is not None and isinstance(wire, list) and api == "openai_chat":
        entries = entries[1:]
    usage = body.get("usage")
    model = request.model
    if isinstance(usage, list):
        entries = _add_usage(entries, [entry for entry in usage if isinstance(entry, Mapping)])
        model = model or first_model(entries)
    return Log(source, api, entries, request.system, request.tools, model, warnings or [])


def _decode_one_by_one(api: str, wire: list[Any]) -> list[LoggedMessage]:
    codec = anthropic if api == "anthropic" else openai_chat
    return [
        LoggedMessage(message, _find_time(message_value))
        for message_value in wire
        for message in codec.decode_messages([_without_times(message_value)])
    ]


def _find_time(value: Mapping[str, Any]) -> float | None:
    return next((time for key in _TIMES if (time := parse_time(value.get(key))) is not None), None)


def _without_times(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in _TIMES}


def _add_usage(entries: list[LoggedMessage], usage: list[Mapping[str, Any]]) -> list[LoggedMessage]:
    answers = [at for at, entry in enumerate(entries) if _is_answer(entry.message)]
    usage_by_index: dict[int, Mapping[str, Any]] = {}
    for number, entry in enumerate(usage):
        before = entry.get("before_message")
        index = before if isinstance(before, int) else answers[number] if number < len(answers) else -1
        if 0 <= index < len(entries) and _is_answer(entries[index].message):
            usage_by_index[index] = entry
    return [
        _add_figures(entry, usage_by_index[at]) if at in usage_by_index else entry for at, entry in enumerate(entries)
    ]


def _add_figures(message: LoggedMessage, entry: Mapping[str, Any]) -> LoggedMessage:
    cost = entry.get("cost_usd")
    dollars = float(cost) if isinstance(cost, int | float) else None
    return replace(message, usage=_read_usage(entry), cost=dollars, model=text_in(entry, "model"))


def _read_usage(entry: Mapping[str, Any]) -> CanonicalUsage:
    """Our own names where the entry has them, else those of any provider."""
    if not ({"input", "prompt"} & entry.keys()):
        return normalize_usage(entry)
    return CanonicalUsage(
        input_tokens=count_in(entry, "input") or count_in(entry, "prompt"),
        cache_read_tokens=count_in(entry, "cache_read"),
        cache_write_tokens=count_in(entry, "cache_write"),
        output_tokens=count_in(entry, "output"),
    )


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant"
