"""Read requests and lists of messages of OpenAI and Anthropic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.lab.importers.log import Log, LoggedMessage, find_first_model
from everthread.lab.importers.log_fields import parse_time, text_in, usage_in
from everthread.wire import anthropic, openai_chat
from everthread.wire.codecs import decode_any

_TIME_FIELDS = ("timestamp", "created_at", "time")


def read_message_list(value: Any, source: str) -> Log:
    """Read a list of messages, or an object that holds one.

    A list `usage` beside the messages has the usage of each call. `before_message` of an entry is the number of
    messages before the answer; without it, the entries belong to the answers in order.
    """
    body = value if isinstance(value, Mapping) else {"messages": value}
    api, request = decode_any({key: entry for key, entry in body.items() if key != "usage"})
    wire_messages = body.get("messages")
    usage = body.get("usage")
    entries = [LoggedMessage(message) for message in request.messages]
    # Decoded message by message, so that each keeps its time.
    if isinstance(wire_messages, list):
        codec = anthropic if api == "anthropic" else openai_chat
        entries = []
        for wire_message in wire_messages:
            timestamp = _read_time(wire_message)
            fields = {key: value for key, value in wire_message.items() if key not in _TIME_FIELDS}
            for message in codec.decode_messages([fields]):
                entries.append(LoggedMessage(message, timestamp))
        if request.system is not None and api == "openai_chat":
            entries = entries[1:]
    if isinstance(usage, list):
        entries = _add_usage(entries, [entry for entry in usage if isinstance(entry, Mapping)])
    return Log(
        source,
        api,
        entries=entries,
        system=request.system,
        tools=request.tools,
        model=request.model or find_first_model(entries),
    )


def _read_time(wire_message: Mapping[str, Any]) -> float | None:
    for key in _TIME_FIELDS:
        timestamp = parse_time(wire_message.get(key))
        if timestamp is not None:
            return timestamp
    return None


def _add_usage(
    entries: list[LoggedMessage], usage_figures: list[Mapping[str, Any]]
) -> list[LoggedMessage]:
    answer_indexes = [
        index for index, entry in enumerate(entries) if entry.message.get("role") == "assistant"
    ]
    entries = list(entries)
    for number, figures in enumerate(usage_figures):
        answer_index = figures.get("before_message")
        if not isinstance(answer_index, int):
            if number >= len(answer_indexes):
                continue
            answer_index = answer_indexes[number]
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
    prompt_key = "input" if figures.get("input") else "prompt"
    return usage_in(
        figures,
        prompt_key,
        "output",
        cache_read_key="cache_read",
        cache_write_key="cache_write",
    )
