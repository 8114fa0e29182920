"""A recorded conversation, whoever recorded it; requests and lists of messages in OpenAI's or Anthropic's form."""

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
    """One message of a log, with what was written down beside it."""

    message: Message
    at: float | None = None
    """When, in seconds since 1970."""
    usage: CanonicalUsage | None = None
    """Of a model's answer: what the provider reported for it."""
    cost: float | None = None
    """Of a model's answer: the dollars that were written down for it."""
    model: str = ""
    """Of a model's answer: who gave it."""


@dataclass(frozen=True, slots=True)
class Log:
    """A conversation with what is known of it."""

    source: str
    kind: str
    """Whose form it has: `openai_chat`, `anthropic`, `claude-code`, `codex`, …"""
    said: list[LoggedMessage]
    system: System = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    warnings: list[str] = field(default_factory=list)
    """What could not be read, with line numbers; what was left out."""
    session: str = ""
    """What the program that wrote it calls the session."""
    title: str = ""

    @property
    def messages(self) -> list[Message]:
        return [entry.message for entry in self.said]


def moment(value: Any) -> float | None:
    """A time as logs have it: ISO 8601, or seconds or milliseconds since 1970; None where it is none."""
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
    found = value.get(key)
    return found if isinstance(found, str) else ""


def count_in(value: Mapping[str, Any], key: str) -> int:
    """A count of a log; 0 where there is none."""
    found = value.get(key)
    return found if isinstance(found, int) and found > 0 else 0


def dollars_in(value: Mapping[str, Any], key: str) -> float | None:
    found = value.get(key)
    return float(found) if isinstance(found, int | float) and found > 0 else None


def model_of(said: Sequence[LoggedMessage]) -> str:
    """Who gave the first answer that names somebody."""
    return next((entry.model for entry in said if entry.model), "")


def numbered(lines: list[int], most: int = 8) -> str:
    """`line 3`, `lines 3, 4 and 12`, `lines 1, 2, … (90 in all)`."""
    if len(lines) == 1:
        return f"line {lines[0]}"
    if len(lines) > most:
        return f"lines {', '.join(map(str, lines[:most]))}, … ({len(lines):,} in all)"
    return f"lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}"


_TIMES = ("timestamp", "created_at", "time")


def read_transcript(value: Any, source: str, warnings: list[str] | None = None) -> Log:
    """A list of messages, or an object that holds one.

    `usage` beside them, as a list: what each call used. `before_message` says how many messages the call carried;
    without it the entries belong to the model's answers in their order.
    """
    body = value if isinstance(value, Mapping) else {"messages": value}
    api, request = decode_any({key: entry for key, entry in body.items() if key != "usage"})
    wire = body.get("messages")
    # Decoded message by message, so that what stood beside each stays with it.
    said = (
        _one_by_one(api, wire) if isinstance(wire, list) else [LoggedMessage(message) for message in request.messages]
    )
    if request.system is not None and isinstance(wire, list) and api == "openai_chat":
        said = said[1:]
    usage = body.get("usage")
    model = request.model
    if isinstance(usage, list):
        said = _with_usage(said, [entry for entry in usage if isinstance(entry, Mapping)])
        model = model or model_of(said)
    return Log(source, api, said, request.system, request.tools, model, warnings or [])


def _one_by_one(api: str, wire: list[Any]) -> list[LoggedMessage]:
    codec = anthropic if api == "anthropic" else openai_chat
    return [
        LoggedMessage(message, _time(given))
        for given in wire
        for message in codec.decode_messages([_without_times(given)])
    ]


def _time(given: Mapping[str, Any]) -> float | None:
    return next((found for key in _TIMES if (found := moment(given.get(key))) is not None), None)


def _without_times(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in _TIMES}


def _with_usage(said: list[LoggedMessage], usage: list[Mapping[str, Any]]) -> list[LoggedMessage]:
    answers = [at for at, entry in enumerate(said) if _answers(entry.message)]
    placed: dict[int, Mapping[str, Any]] = {}
    for number, entry in enumerate(usage):
        before = entry.get("before_message")
        place = before if isinstance(before, int) else answers[number] if number < len(answers) else -1
        if 0 <= place < len(said) and _answers(said[place].message):
            placed[place] = entry
    return [_noted(entry, placed[at]) if at in placed else entry for at, entry in enumerate(said)]


def _noted(said: LoggedMessage, entry: Mapping[str, Any]) -> LoggedMessage:
    cost = entry.get("cost_usd")
    dollars = float(cost) if isinstance(cost, int | float) else None
    return replace(said, usage=_usage(entry), cost=dollars, model=text_in(entry, "model"))


def _usage(entry: Mapping[str, Any]) -> CanonicalUsage:
    """Our own names where the entry has them, else those of any provider."""
    if not ({"input", "prompt"} & entry.keys()):
        return normalize_usage(entry)
    return CanonicalUsage(
        input_tokens=count_in(entry, "input") or count_in(entry, "prompt"),
        cache_read_tokens=count_in(entry, "cache_read"),
        cache_write_tokens=count_in(entry, "cache_write"),
        output_tokens=count_in(entry, "output"),
    )


def _answers(message: Message) -> bool:
    return message.get("role") == "assistant"
