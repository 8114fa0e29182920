"""Codex's rollout files: `~/.codex/sessions/YYYY/MM/DD/rollout-….jsonl`.

Each line is `{timestamp, type, payload}`. A `response_item` is an item sent to or received from the model, and
`turn_context` names the model. An `event_msg` of type `token_count` has the usage of the last call and the window
(`model_context_window`). It comes after the outputs of the tools that the call asked for, and is repeated whenever rate
limits change. A `compacted` line is a compaction of the client, with its summary unless that is encrypted and the items
that replaced the history. Older files hold the items without this envelope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.json_values import iterate_strings
from everthread.core.messages import kind_of
from everthread.errors import WireError
from everthread.lab.importers.client_log import ClientLogReader
from everthread.lab.importers.log import ClientCompaction, LoggedMessage
from everthread.lab.importers.log_fields import (
    count_in,
    list_objects,
    object_in,
    parse_time,
    text_in,
)
from everthread.wire.openai_responses import RESULT_KIND_BY_CALL_KIND, decode_messages

_ITEM_TYPES = frozenset(
    {
        "message",
        "reasoning",
        *RESULT_KIND_BY_CALL_KIND,
        *RESULT_KIND_BY_CALL_KIND.values(),
    }
)
_LINE_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})


def _is_item_line(line: Mapping[str, Any]) -> bool:
    kind = kind_of(line)
    return kind in _ITEM_TYPES and (
        "call_id" in line or "summary" in line or isinstance(line.get("content"), list)
    )


@dataclass
class CodexReader(ClientLogReader):
    """Reads a rollout file."""

    kind: ClassVar[str] = "codex"
    bad_line_noun: ClassVar[str] = "item"

    open_items: list[tuple[int, dict[str, Any], float | None]] = field(default_factory=list)
    """The items of the current answer, with the number of the line and the time of each."""
    answer_without_usage_index: int | None = None
    """The index in `messages` of the last answer; None once its usage is known."""
    total_tokens: int | None = None
    """The tokens of all calls according to the last `token_count`."""

    @staticmethod
    def is_own_line(line: Mapping[str, Any]) -> bool:
        return (
            kind_of(line) in _LINE_TYPES and isinstance(line.get("payload"), Mapping)
        ) or _is_item_line(line)

    def read_line(self, line: dict[str, Any]) -> None:
        payload = line.get("payload")
        timestamp = parse_time(line.get("timestamp"))
        if isinstance(payload, dict):
            self._read_payload(kind_of(line), payload, timestamp)
        elif _is_item_line(line):
            self._add_item(line, timestamp)
        elif isinstance(line.get("instructions"), str):
            self.system = line["instructions"]

    def finish(self) -> None:
        self._finish_answer()

    def _read_payload(self, kind: str, payload: dict[str, Any], timestamp: float | None) -> None:
        if kind == "response_item":
            self._add_item(payload, timestamp)
        elif kind == "turn_context" and isinstance(payload.get("model"), str):
            self.model = payload["model"]
        elif kind == "session_meta":
            self.system = _read_instructions(payload) or self.system
            self.session_id = self.session_id or str(payload.get("id") or "")
        elif kind == "compacted":
            self._finish_answer()
            compaction = _read_compaction(payload, len(self.messages), timestamp)
            self.compactions.append(compaction)
            self.answer_without_usage_index = None  # the next count may be the summary's
        elif kind == "event_msg" and payload.get("type") == "task_started":
            self.window = count_in(payload, "model_context_window") or self.window
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._read_token_count(object_in(payload, "info"))

    def _add_item(self, item: dict[str, Any], timestamp: float | None) -> None:
        if not _is_by_model(item):
            self._finish_answer()
        self.open_items.append((self.line_number, item, timestamp))
        if not _is_by_model(item):
            self._finish_answer()

    def _finish_answer(self) -> None:
        """End the current answer and add it to the messages, unless it has reasoning only."""
        open_items = self.open_items
        self.open_items = []
        items = [item for _, item, _ in open_items]
        if all(kind_of(item) == "reasoning" for item in items):
            return
        try:
            messages = decode_messages(items, model=self.model)
        except WireError:
            self.bad_line_numbers += [number for number, _, _ in open_items]
            return
        for message in messages:
            is_by_model = message["role"] == "assistant"
            if is_by_model:
                self.answer_without_usage_index = len(self.messages)
            self.messages.append(
                LoggedMessage(message, open_items[0][2], model=self.model if is_by_model else "")
            )

    def _read_token_count(self, info: Mapping[str, Any]) -> None:
        """Read a `token_count`: the window, and the usage of the last answer unless it was stated before."""
        self._finish_answer()
        self.window = count_in(info, "model_context_window") or self.window
        usage = object_in(info, "last_token_usage")
        total_tokens = count_in(object_in(info, "total_token_usage"), "total_tokens")
        is_repeated = total_tokens is not None and total_tokens == self.total_tokens
        if is_repeated or not count_in(usage, "input_tokens"):
            return
        self.total_tokens = total_tokens
        if self.answer_without_usage_index is not None:
            details = {
                "input_tokens_details": {"cached_tokens": usage.get("cached_input_tokens", 0)},
                "output_tokens_details": {
                    "reasoning_tokens": usage.get("reasoning_output_tokens", 0)
                },
            }
            canonical_usage = normalize_usage({**usage, **details}, api="openai_responses")
            self.messages[self.answer_without_usage_index] = replace(
                self.messages[self.answer_without_usage_index], usage=canonical_usage
            )
            self.answer_without_usage_index = None


def _read_compaction(
    payload: Mapping[str, Any], message_count: int, timestamp: float | None
) -> ClientCompaction:
    restored_texts: list[str] = []
    for item in list_objects(payload.get("replacement_history")):
        restored_texts += iterate_strings(item.get("content"))
    return ClientCompaction(
        message_count,
        text_in(payload, "message") or None,
        "\n".join(restored_texts),
        timestamp=timestamp,
    )


def _read_instructions(payload: Mapping[str, Any]) -> str | None:
    """Return the system prompt, or None if the file has none."""
    instructions: Any = payload.get("base_instructions") or payload.get("instructions")
    if isinstance(instructions, Mapping):
        instructions = instructions.get("text")
    return instructions if isinstance(instructions, str) and instructions.strip() else None


def _is_by_model(item: Mapping[str, Any]) -> bool:
    kind = kind_of(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind not in RESULT_KIND_BY_CALL_KIND.values()
