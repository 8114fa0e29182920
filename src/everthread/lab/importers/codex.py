"""Codex's rollout files: `~/.codex/sessions/YYYY/MM/DD/rollout-….jsonl`.

Lines of `{timestamp, type, payload}`. `response_item`s are the items sent to and received from the model;
`turn_context` names the model. An `event_msg` of kind `token_count` has the usage of the last call and the window
(`model_context_window`). It comes after the outputs of the tools that the call asked for, and is repeated whenever rate
limits change. Older files hold bare items. `compacted` is a compaction of the client: its summary, if it is not
encrypted, and the items that replaced the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.canonical_usage import normalize_usage
from everthread.core.messages import iterate_strings, kind_of
from everthread.errors import WireError
from everthread.lab.importers.log import (
    ClientCompaction,
    Lines,
    Log,
    LoggedMessage,
    count_in,
    describe_gaps,
    object_in,
    parse_time,
    text_in,
)
from everthread.wire.openai_responses import RESULT_KIND_BY_CALL_KIND, decode_messages

_ITEMS = frozenset(
    {
        "message",
        "reasoning",
        *RESULT_KIND_BY_CALL_KIND,
        *RESULT_KIND_BY_CALL_KIND.values(),
    }
)
_LINES = frozenset(
    {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
)


def is_line(value: Mapping[str, Any]) -> bool:
    return (
        kind_of(value) in _LINES and isinstance(value.get("payload"), Mapping)
    ) or _is_bare(value)


def _is_bare(value: Mapping[str, Any]) -> bool:
    kind = kind_of(value)
    return kind in _ITEMS and (
        "call_id" in value
        or "summary" in value
        or isinstance(value.get("content"), list)
    )


@dataclass
class _Reading:
    messages: list[LoggedMessage] = field(default_factory=list)
    run: list[tuple[int, dict[str, Any], float | None]] = field(default_factory=list)
    """The items of the current answer, with the number of the line and the time of each."""
    model: str = ""
    system: str | None = None
    session: str = ""
    window: int | None = None
    compactions: list[ClientCompaction] = field(default_factory=list)
    unmeasured: int | None = None
    """Index of the last answer, until its usage is known."""
    used_in_all: int | None = None
    """Tokens of all calls as the last `token_count` stated them."""
    bad: list[int] = field(default_factory=list)

    def item(self, number: int, item: dict[str, Any], at: float | None) -> None:
        if not _is_by_model(item):
            self.close()
        self.run.append((number, item, at))
        if not _is_by_model(item):
            self.close()

    def close(self) -> None:
        """End the current answer; reasoning alone is none."""
        run = self.run
        self.run = []
        items = [item for _, item, _ in run]
        if all(kind_of(item) == "reasoning" for item in items):
            return
        try:
            decoded = decode_messages(items, model=self.model)
        except WireError:
            self.bad += [number for number, _, _ in run]
            return
        for message in decoded:
            by_model = message["role"] == "assistant"
            if by_model:
                self.unmeasured = len(self.messages)
            self.messages.append(
                LoggedMessage(message, run[0][2], model=self.model if by_model else "")
            )

    def count_tokens(self, info: Mapping[str, Any]) -> None:
        """Read a `token_count`: the window, and the usage of the last answer unless it was stated before."""
        self.close()
        self.window = count_in(info, "model_context_window") or self.window
        usage = object_in(info, "last_token_usage")
        used_in_all = count_in(object_in(info, "total_token_usage"), "total_tokens")
        is_repeated = used_in_all is not None and used_in_all == self.used_in_all
        if is_repeated or not count_in(usage, "input_tokens"):
            return
        self.used_in_all = used_in_all
        if self.unmeasured is not None:
            details = {
                "input_tokens_details": {
                    "cached_tokens": usage.get("cached_input_tokens", 0)
                },
                "output_tokens_details": {
                    "reasoning_tokens": usage.get("reasoning_output_tokens", 0)
                },
            }
            canonical = normalize_usage({**usage, **details}, api="openai_responses")
            self.messages[self.unmeasured] = replace(
                self.messages[self.unmeasured], usage=canonical
            )
            self.unmeasured = None


def read(lines: Lines, source: str, warnings: list[str]) -> Log:
    reading = _Reading()
    for number, value in lines:
        payload = value.get("payload")
        if isinstance(payload, dict):
            _read_line(reading, number, value, payload)
        elif _is_bare(value):
            reading.item(number, value, parse_time(value.get("timestamp")))
        elif isinstance(value.get("instructions"), str):
            reading.system = value["instructions"]
    reading.close()
    return Log(
        source,
        "codex",
        reading.messages,
        system=reading.system,
        model=reading.model,
        session=reading.session,
        window=reading.window,
        compactions=reading.compactions,
        warnings=[*warnings, *describe_gaps(reading.bad, {}, noun="item")],
    )


def _read_line(
    reading: _Reading, number: int, value: Mapping[str, Any], payload: dict[str, Any]
) -> None:
    kind = kind_of(value)
    if kind == "response_item":
        reading.item(number, payload, parse_time(value.get("timestamp")))
    elif kind == "turn_context" and isinstance(payload.get("model"), str):
        reading.model = payload["model"]
    elif kind == "session_meta":
        reading.system = _instructions(payload) or reading.system
        reading.session = reading.session or str(payload.get("id") or "")
    elif kind == "compacted":
        reading.close()
        reading.compactions.append(
            _read_compaction(
                payload, len(reading.messages), parse_time(value.get("timestamp"))
            )
        )
        reading.unmeasured = None  # the next count may be that of the summary
    elif kind == "event_msg" and payload.get("type") == "task_started":
        reading.window = count_in(payload, "model_context_window") or reading.window
    elif kind == "event_msg" and payload.get("type") == "token_count":
        reading.count_tokens(object_in(payload, "info"))


def _read_compaction(
    payload: Mapping[str, Any], before: int, at: float | None
) -> ClientCompaction:
    items = payload.get("replacement_history")
    kept = (
        [item for item in items if isinstance(item, Mapping)]
        if isinstance(items, list)
        else []
    )
    restored = "\n".join(
        text for item in kept for text in iterate_strings(item.get("content"))
    )
    return ClientCompaction(
        before, text_in(payload, "message") or None, restored, at=at
    )


def _instructions(payload: Mapping[str, Any]) -> str | None:
    """Return the system prompt; None if the file has none."""
    value: Any = payload.get("base_instructions") or payload.get("instructions")
    if isinstance(value, Mapping):
        value = value.get("text")
    return value if isinstance(value, str) and value.strip() else None


def _is_by_model(item: Mapping[str, Any]) -> bool:
    kind = kind_of(item)
    return (
        item.get("role") == "assistant"
        if kind == "message"
        else kind not in RESULT_KIND_BY_CALL_KIND.values()
    )
