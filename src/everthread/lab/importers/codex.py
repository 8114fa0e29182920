"""Codex's rollout files: `~/.codex/sessions/YYYY/MM/DD/rollout-….jsonl`.

Lines of `{timestamp, type, payload}`. `response_item`s are the items sent to and received from the model;
`turn_context` names the model; `event_msg`s of kind `token_count` have the usage of the previous call. Older files hold
bare items. The client's own summaries (`compacted`) are left out with a warning: the items before them are in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.pricing import CanonicalUsage, normalize_usage
from everthread.errors import WireError
from everthread.lab.importers.log import Lines, Log, LoggedMessage, describe_gaps, object_in, parse_time
from everthread.wire.openai_responses import CALLS, decode_messages

_ITEMS = frozenset({"message", "reasoning", *CALLS, *CALLS.values()})
_LINES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})


def is_line(value: Mapping[str, Any]) -> bool:
    return (kind_of(value) in _LINES and isinstance(value.get("payload"), Mapping)) or _is_bare(value)


def _is_bare(value: Mapping[str, Any]) -> bool:
    kind = kind_of(value)
    return kind in _ITEMS and ("call_id" in value or "summary" in value or isinstance(value.get("content"), list))


@dataclass
class _Reading:
    messages: list[LoggedMessage] = field(default_factory=list)
    run: list[tuple[int, dict[str, Any], float | None]] = field(default_factory=list)
    """The items of the current answer, with the number of the line and the time of each."""
    model: str = ""
    system: str | None = None
    session: str = ""
    compacted: int = 0
    bad: list[int] = field(default_factory=list)

    def item(self, number: int, item: dict[str, Any], at: float | None) -> None:
        if not _is_by_model(item):
            self.close()
        self.run.append((number, item, at))
        if not _is_by_model(item):
            self.close()

    def close(self) -> None:
        """End the current answer; reasoning alone is none."""
        run, self.run = self.run, []
        items = [item for _, item, _ in run]
        if all(kind_of(item) == "reasoning" for item in items):
            return
        try:
            self.messages += [
                LoggedMessage(message, run[0][2], model=self.model if message["role"] == "assistant" else "")
                for message in decode_messages(items, model=self.model)
            ]
        except WireError:
            self.bad += [number for number, _, _ in run]

    def tokens(self, usage: CanonicalUsage) -> None:
        """Take the usage of the call that ends here."""
        self.close()
        last = self.messages[-1] if self.messages else None
        if last is not None and last.message["role"] == "assistant" and last.usage is None:
            self.messages[-1] = replace(last, usage=usage)


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
    left_out = {"summaries of the client itself; what they cover is in the file": reading.compacted}
    return Log(
        source, "codex", reading.messages, reading.system, model=reading.model, session=reading.session,
        warnings=[*warnings, *describe_gaps(reading.bad, left_out, noun="item")],
    )  # fmt: skip


def _read_line(reading: _Reading, number: int, value: Mapping[str, Any], payload: dict[str, Any]) -> None:
    kind = kind_of(value)
    if kind == "response_item":
        reading.item(number, payload, parse_time(value.get("timestamp")))
    elif kind == "turn_context" and isinstance(payload.get("model"), str):
        reading.model = payload["model"]
    elif kind == "session_meta":
        reading.system = _instructions(payload) or reading.system
        reading.session = reading.session or str(payload.get("id") or "")
    elif kind == "compacted":
        reading.compacted += 1
    elif kind == "event_msg" and payload.get("type") == "token_count":
        usage = object_in(object_in(payload, "info"), "last_token_usage")
        if usage.get("input_tokens"):
            cached = {"input_tokens_details": {"cached_tokens": usage.get("cached_input_tokens", 0)}}
            reading.tokens(normalize_usage({**usage, **cached}, api="openai_responses"))


def _instructions(payload: Mapping[str, Any]) -> str | None:
    """The system prompt, where the file has it."""
    value: Any = payload.get("base_instructions") or payload.get("instructions")
    if isinstance(value, Mapping):
        value = value.get("text")
    return value if isinstance(value, str) and value.strip() else None


def _is_by_model(item: Mapping[str, Any]) -> bool:
    kind = kind_of(item)
    return item.get("role") == "assistant" if kind == "message" else kind not in CALLS.values()
