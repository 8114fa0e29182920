"""A recorded conversation of any program, and a reader for requests and messages of OpenAI and Anthropic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from everthread.core.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.messages import Message, count_noun
from everthread.core.types import System
from everthread.wire import anthropic, openai_chat
from everthread.wire.codecs import decode_any

NumberedLines = Iterable[tuple[int, dict[str, Any]]]
"""The JSON objects of a file, each with its line number; can be iterated more than once."""


CLIENT_NAMES = {
    "claude-code": "Claude Code",
    "codex": "Codex",
    "copilot": "Copilot CLI",
    "gemini-cli": "Gemini CLI",
    "opencode": "opencode",
    "pi": "pi",
}
"""The programs whose logs can be read, by the name of their format."""


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """One message of a log. An answer also has its usage, its cost in dollars and its model, if recorded."""

    message: Message
    timestamp: float | None = None
    """Seconds since 1970."""
    usage: CanonicalUsage | None = None
    cost: float | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class ClientCompaction:
    """A compaction that the client made itself."""

    next_entry_index: int
    """Index of the first entry after it."""
    summary: str | None
    """The summary in the log; None if it cannot be read, for example because it is encrypted."""
    restored: str = ""
    """The rest of the new context: preserved messages, files, the prompt that continued the session."""
    timestamp: float | None = None
    trigger: str = ""
    """`auto` or `manual`, if the log states it."""
    tokens_before: int | None = None

    @property
    def context(self) -> str:
        """All text of the client's context after the compaction."""
        return "\n".join(part for part in (self.summary or "", self.restored) if part)


@dataclass(frozen=True, slots=True)
class Log:
    """A recorded conversation."""

    source: str
    kind: str
    """Its format: `openai_chat`, `anthropic`, `claude-code`, `codex`, …"""
    entries: list[LoggedMessage]
    system: System = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    warnings: list[str] = field(default_factory=list)
    """Lines that could not be read, by number, and counts of those left out."""
    session: str = ""
    """The session's id in the program that wrote it."""
    title: str = ""
    window: int | None = None
    """Tokens of the model's window, if the log states them."""
    compactions: list[ClientCompaction] = field(default_factory=list)
    """The client's own compactions, in order. Entries hold the messages before and after, not the summaries."""

    @property
    def messages(self) -> list[Message]:
        return [entry.message for entry in self.entries]


@dataclass(frozen=True, slots=True)
class LogStream:
    """A recorded conversation whose messages are read one at a time, so that it is never in memory as a whole."""

    log: Log
    """The conversation without its messages. Warnings are added when all of them have been read."""
    entries: Iterable[LoggedMessage]


def parse_time(value: Any) -> float | None:
    """Read a time of a log: ISO 8601, or seconds or milliseconds since 1970; None if it is not a time."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return value / 1_000 if value > _MIN_MILLISECONDS else float(value)
    return None


_MIN_MILLISECONDS = 1e11
"""Larger numbers are milliseconds: as seconds this is the year 5138."""


def text_in(value: Mapping[str, Any], key: str) -> str:
    """Return a text field of a log; empty if it is not a text."""
    text = value.get(key)
    return text if isinstance(text, str) else ""


def object_in(value: Any, key: str) -> Mapping[str, Any]:
    """Return an object in an object of a log; empty if there is none."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def dollars_in(value: Mapping[str, Any], key: str) -> float | None:
    dollars = value.get(key)
    return float(dollars) if isinstance(dollars, int | float) and dollars > 0 else None


def usage_in(
    value: Mapping[str, Any],
    prompt_key: str,
    output_key: str,
    *,
    cache_read_key: str,
    cache_write_key: str,
) -> CanonicalUsage:
    """Read the token counts under these keys of an object. A value that is not a count is read as 0."""

    def read_count(key: str) -> int:
        number = value.get(key)
        return number if isinstance(number, int) and number > 0 else 0

    return CanonicalUsage(
        input_tokens=read_count(prompt_key),
        output_tokens=read_count(output_key),
        cache_read_tokens=read_count(cache_read_key),
        cache_write_tokens=read_count(cache_write_key),
    )


def texts_of(parts: Iterable[Mapping[str, Any]], kind: str, key: str = "text") -> str:
    """Return the texts of all parts of one type, joined by line breaks."""
    return "\n".join(
        part[key]
        for part in parts
        if part.get("type") == kind and isinstance(part.get(key), str)
    )


def make_answer(
    text: str, thoughts: str, calls: Iterable[tuple[str, Any, Any]]
) -> Message:
    """Return an assistant message with this text, reasoning and calls: id, name and arguments of each."""
    message: Message = {"role": "assistant", "content": text or None}
    if thoughts:
        message["reasoning_content"] = thoughts
    tool_calls: Any = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": str(name), "arguments": json.dumps(arguments or {})},
        }
        for call_id, name, arguments in calls
    ]
    return {**message, "tool_calls": tool_calls} if tool_calls else message


def make_injected_message(text: str) -> Message:
    """Return a user message with a text that the client wrote, marked so that it is not taken for the user's words."""
    return {"role": "user", "content": f"<system-reminder>\n{text}\n</system-reminder>"}


def without_reasoning(messages: Iterable[Message]) -> list[Message]:
    """Return the messages without reasoning and native values: only the model that reasoned can use them."""
    dropped_keys = ("reasoning_content", "_native")
    return [
        cast(
            "Message",
            {key: value for key, value in message.items() if key not in dropped_keys},
        )
        for message in messages
    ]


def count_in(value: Mapping[str, Any], key: str) -> int | None:
    """Return a count that a log states; None if it is not a positive whole number."""
    number = value.get(key)
    return (
        number
        if isinstance(number, int) and number > 0 and not isinstance(number, bool)
        else None
    )


def find_first_model(entries: Sequence[LoggedMessage]) -> str:
    """Return the model of the first answer that names one."""
    return next((entry.model for entry in entries if entry.model), "")


def describe_gaps(
    bad_lines: list[int], left_out: Mapping[str, int], *, noun: str = "message"
) -> list[str]:
    """Describe the lines that cannot be read, and how many were left out for which reason."""
    notes = (
        [f"{format_line_numbers(bad_lines)}: no {noun} that can be read; skipped"]
        if bad_lines
        else []
    )
    return notes + [
        f"{count_noun(count, 'line')} left out: {reason}"
        for reason, count in left_out.items()
        if count
    ]


def format_line_numbers(lines: list[int], max_numbers: int = 8) -> str:
    """Format line numbers: `line 3`, `lines 3, 4 and 12`, `lines 1, 2, … (90 in all)`."""
    if len(lines) == 1:
        return f"line {lines[0]}"
    if len(lines) > max_numbers:
        return f"lines {', '.join(map(str, lines[:max_numbers]))}, … ({len(lines):,} in all)"
    return f"lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}"


_TIME_FIELDS = ("timestamp", "created_at", "time")


def read_transcript(value: Any, source: str, warnings: list[str] | None = None) -> Log:
    """Read a list of messages, or an object that holds one.

    A list `usage` beside the messages has the usage of each call. `before_message` of an entry is the number of
    messages before the answer; without it, the entries belong to the answers in order.
    """
    body = value if isinstance(value, Mapping) else {"messages": value}
    api, request = decode_any(
        {key: entry for key, entry in body.items() if key != "usage"}
    )
    wire_messages = body.get("messages")
    usage = body.get("usage")
    entries = [LoggedMessage(message) for message in request.messages]
    # Decoded message by message, so that each keeps its time.
    if isinstance(wire_messages, list):
        codec = anthropic if api == "anthropic" else openai_chat
        entries = [
            LoggedMessage(
                message,
                next(
                    (
                        timestamp
                        for key in _TIME_FIELDS
                        if (timestamp := parse_time(item.get(key))) is not None
                    ),
                    None,
                ),
            )
            for item in wire_messages
            for message in codec.decode_messages(
                [{key: item[key] for key in item if key not in _TIME_FIELDS}]
            )
        ]
        if request.system is not None and api == "openai_chat":
            entries = entries[1:]
    if isinstance(usage, list):
        entries = _add_usage(
            entries, [entry for entry in usage if isinstance(entry, Mapping)]
        )
    return Log(
        source,
        api,
        entries=entries,
        system=request.system,
        tools=request.tools,
        model=request.model or find_first_model(entries),
        warnings=warnings or [],
    )


def _add_usage(
    entries: list[LoggedMessage], usage: list[Mapping[str, Any]]
) -> list[LoggedMessage]:
    answer_indexes = [
        index
        for index, entry in enumerate(entries)
        if entry.message.get("role") == "assistant"
    ]
    entries = list(entries)
    for number, figures in enumerate(usage):
        message_index = figures.get("before_message")
        answer_index = (
            message_index
            if isinstance(message_index, int)
            else answer_indexes[number]
            if number < len(answer_indexes)
            else -1
        )
        if answer_index in answer_indexes:
            cost = figures.get("cost_usd")
            dollars = float(cost) if isinstance(cost, int | float) else None
            entries[answer_index] = replace(
                entries[answer_index],
                usage=_read_usage(figures),
                cost=dollars,
                model=text_in(figures, "model"),
            )
    return entries


def _read_usage(figures: Mapping[str, Any]) -> CanonicalUsage:
    """Read a usage by our own field names if the entry has them, else by the field names of any provider."""
    if not ({"input", "prompt"} & figures.keys()):
        return normalize_usage(figures)
    prompt = "input" if figures.get("input") else "prompt"
    return usage_in(
        figures,
        prompt,
        "output",
        cache_read_key="cache_read",
        cache_write_key="cache_write",
    )
