"""Read the sessions of Copilot CLI: `~/.copilot/session-state/<session>/events.jsonl`.

Each line is an event `{type, data, id, timestamp, parentId}`. `assistant.message` is an answer with its calls and its
output tokens, `tool.execution_complete` a tool's result, `system.message` the system prompt. Prompt tokens are not
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message, kind_of
from everthread.lab.importers.client_log import ClientLogReader
from everthread.lab.importers.log import ClientCompaction, LoggedMessage
from everthread.lab.importers.log_fields import (
    count_in,
    list_objects,
    make_answer,
    make_injected_message,
    object_in,
    parse_time,
    text_in,
)

_EVENT_TYPES = frozenset(
    {
        "session.start",
        "user.message",
        "assistant.message",
        "assistant.turn_start",
        "tool.execution_complete",
    }
)


@dataclass
class CopilotReader(ClientLogReader):
    """Reads a session, event by event."""

    kind: ClassVar[str] = "copilot"

    @staticmethod
    def is_own_line(line: Mapping[str, Any]) -> bool:
        return kind_of(line) in _EVENT_TYPES and isinstance(line.get("data"), Mapping)

    def read_line(self, line: dict[str, Any]) -> None:
        kind = text_in(line, "type")
        data = object_in(line, "data")
        timestamp = parse_time(line.get("timestamp"))
        if kind == "session.start":
            self.session_id = text_in(data, "sessionId")
            self.model = text_in(data, "selectedModel") or self.model
        elif kind == "session.model_change":
            self.model = text_in(data, "newModel") or self.model
        elif kind == "system.message":
            self.system = self.system or text_in(data, "content") or None
        elif kind == "session.compaction_complete" and data.get("success") is not False:
            self._add_compaction(data, timestamp)
        elif text_in(data, "parentToolCallId"):
            self.skipped_line_counts["a subagent's own conversation"] += kind == "assistant.message"
        elif kind in _MESSAGE_READERS:
            messages = _MESSAGE_READERS[kind](data)
            if not messages:
                self.bad_line_numbers.append(self.line_number)
            for message in messages:
                if message["role"] == "assistant":
                    self._add_answer(message, data, timestamp)
                else:
                    self.add_message(message, timestamp)

    def _add_answer(
        self, message: Message, data: Mapping[str, Any], timestamp: float | None
    ) -> None:
        self.model = text_in(data, "model") or self.model
        output_tokens = count_in(data, "outputTokens")
        usage = None if output_tokens is None else CanonicalUsage(output_tokens=output_tokens)
        self.messages.append(LoggedMessage(message, timestamp, usage, None, self.model))

    def _add_compaction(self, data: Mapping[str, Any], timestamp: float | None) -> None:
        compaction = ClientCompaction(
            len(self.messages),
            text_in(data, "summaryContent") or None,
            timestamp=timestamp,
            trigger="manual" if data.get("trigger") == "manual" else "auto",
            tokens_before=count_in(data, "preCompactionTokens"),
        )
        self.compactions.append(compaction)


def _read_answer(data: Mapping[str, Any]) -> list[Message]:
    calls = [
        (request["toolCallId"], request.get("name", ""), request.get("arguments"))
        for request in list_objects(data.get("toolRequests"))
        if isinstance(request.get("toolCallId"), str)
    ]
    text = text_in(data, "content")
    if not text and not calls:
        return []
    return [make_answer(text, text_in(data, "reasoningText"), calls)]


def _read_prompt(data: Mapping[str, Any]) -> list[Message]:
    """Return the user's words, and before and after them the text that the client added."""
    user_words = text_in(data, "content")
    sent_text = text_in(data, "transformedContent")
    if not user_words.strip():
        return [make_injected_message(sent_text)] if sent_text.strip() else []
    text_before, separator, text_after = sent_text.partition(user_words)
    added_texts = [text.strip() for text in (text_before, text_after)] if separator else ["", ""]
    messages: list[Message] = [{"role": "user", "content": user_words}]
    if added_texts[0]:
        messages.insert(0, make_injected_message(added_texts[0]))
    if added_texts[1]:
        messages.append(make_injected_message(added_texts[1]))
    return messages


def _read_result(data: Mapping[str, Any]) -> list[Message]:
    call_id = data.get("toolCallId")
    if not isinstance(call_id, str):
        return []
    result = object_in(data, "result")
    text = text_in(result, "content") or text_in(object_in(data, "error"), "message")
    message: Message = {"role": "tool", "tool_call_id": call_id, "content": text}
    return [message if data.get("success") is not False else {**message, "is_error": True}]


_MESSAGE_READERS: Mapping[str, Callable[[Mapping[str, Any]], list[Message]]] = {
    "user.message": _read_prompt,
    "assistant.message": _read_answer,
    "tool.execution_complete": _read_result,
}
"""By type of an event, the function that reads its messages."""
