"""Gemini CLI's sessions: `~/.gemini/tmp/<project>/chats/session-….jsonl`, and `.json` of older versions.

The first line describes the session. A message that changed is written again with the same id. `$rewindTo` removes a
message and all later ones. `$set` changes the description and may replace the whole list of messages, as a compaction
does. A tool's call and its result are one record inside the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.json_values import iterate_strings
from everthread.core.messages import Message
from everthread.lab.importers.client_log import ClientLogReader
from everthread.lab.importers.log import ClientCompaction, LoggedMessage
from everthread.lab.importers.log_fields import (
    count_in,
    list_objects,
    make_answer,
    object_in,
    parse_time,
    text_in,
)

_MESSAGE_TYPES = ("user", "gemini")


@dataclass
class GeminiCliReader(ClientLogReader):
    """Reads a session, whose messages may change until its last line."""

    kind: ClassVar[str] = "gemini-cli"

    record_by_id: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Messages by id, in order."""
    recorded_compactions: list[tuple[int, str | None, float | None]] = field(default_factory=list)
    """The number of records before each compaction, its summary and its time."""
    ids_in_context: set[str] = field(default_factory=set)
    """Ids of the messages that the last compaction left in the context."""

    @staticmethod
    def is_own_line(line: Mapping[str, Any]) -> bool:
        if isinstance(line.get("sessionId"), str) and isinstance(line.get("projectHash"), str):
            return True
        return (
            line.get("type") == "gemini" and isinstance(line.get("id"), str) and "content" in line
        )

    def read_line(self, line: dict[str, Any]) -> None:
        changes = object_in(line, "$set")
        rewind_id = text_in(line, "$rewindTo")
        if rewind_id:
            self._rewind(rewind_id)
        elif changes:
            self.title = text_in(changes, "summary") or self.title
            if isinstance(changes.get("messages"), list):
                self._replace_records(
                    _list_records(changes["messages"]),
                    parse_time(changes.get("lastUpdated")),
                )
        elif isinstance(line.get("sessionId"), str):
            self.session_id = self.session_id or line["sessionId"]
            for record in _list_records(line.get("messages")):
                self._put_record(record)
        elif line.get("type") in _MESSAGE_TYPES and isinstance(line.get("id"), str):
            self._put_record(line)

    def finish(self) -> None:
        message_counts = [0]
        for record in self.record_by_id.values():
            self.messages += _read_record(record)
            message_counts.append(len(self.messages))
        self.compactions = [
            ClientCompaction(message_counts[record_count], summary, timestamp=timestamp)
            for record_count, summary, timestamp in self.recorded_compactions
        ]

    def _put_record(self, record: Mapping[str, Any]) -> None:
        self.record_by_id[record["id"]] = record
        self.ids_in_context.add(record["id"])

    def _rewind(self, message_id: str) -> None:
        kept_ids = list(self.record_by_id)
        del kept_ids[kept_ids.index(message_id) if message_id in kept_ids else 0 :]
        self.record_by_id = {key: self.record_by_id[key] for key in kept_ids}
        self.ids_in_context &= set(kept_ids)

    def _replace_records(self, records: list[Mapping[str, Any]], timestamp: float | None) -> None:
        """Read a whole list of messages: fewer of those in the context mean that the client compacted it."""
        ids = {record["id"] for record in records}
        if self.ids_in_context <= ids:
            for record in records:
                self._put_record(record)
            return
        originals = [
            record
            for message_id, record in self.record_by_id.items()
            if message_id in self.ids_in_context - ids
        ]
        copies = _find_copies(originals, records)
        if copies is not None:
            self.record_by_id = {
                message_id: record
                for message_id, record in self.record_by_id.items()
                if message_id not in copies
            }
            self.ids_in_context -= copies
            return
        new_texts = [
            _text_of(record) for record in records if record["id"] not in self.record_by_id
        ]
        summary = "\n".join(text for text in new_texts if text)
        self.recorded_compactions.append((len(self.record_by_id), summary or None, timestamp))
        self.ids_in_context = ids & self.record_by_id.keys()


def _find_copies(
    originals: list[Mapping[str, Any]], records: list[Mapping[str, Any]]
) -> set[str] | None:
    """Return the ids of records that repeat these messages, or None if one of the messages is missing among them.

    The client may write its whole history again under new ids, several messages in one and without their usage.
    """
    copies: set[str] = set()
    unmatched = [record for record in originals if _text_of(record)]
    for record in records:
        text = _text_of(record)
        is_copy = not text
        while unmatched and text and unmatched[0]["type"] == record["type"]:
            original_text = _text_of(unmatched[0])
            if original_text not in text:
                break
            del unmatched[0]
            is_copy = True
            if original_text == text:
                break
        if is_copy:
            copies.add(record["id"])
    return None if unmatched else copies


def _list_records(value: Any) -> list[Mapping[str, Any]]:
    """Return the messages of the user and of the model in a list."""
    return [
        record
        for record in list_objects(value)
        if isinstance(record.get("id"), str) and record.get("type") in _MESSAGE_TYPES
    ]


def _read_record(record: Mapping[str, Any]) -> Iterator[LoggedMessage]:
    timestamp = parse_time(record.get("timestamp"))
    text = _text_of(record)
    if record["type"] == "user":
        if text:
            yield LoggedMessage({"role": "user", "content": text}, timestamp)
        return
    tool_calls = [
        call for call in list_objects(record.get("toolCalls")) if isinstance(call.get("id"), str)
    ]
    if not text and not tool_calls:
        return
    thought_texts: list[str] = []
    for thought in list_objects(record.get("thoughts")):
        thought_texts += [text_in(thought, "subject"), text_in(thought, "description")]
    calls = [(call["id"], call.get("name", ""), call.get("args")) for call in tool_calls]
    yield LoggedMessage(
        make_answer(text, "\n".join(thought_texts), calls),
        timestamp,
        _read_usage(object_in(record, "tokens")),
        model=text_in(record, "model"),
    )
    for call in tool_calls:
        result: Message = {
            "role": "tool",
            "tool_call_id": call["id"],
            "name": text_in(call, "name"),
            "content": _read_result_text(call),
        }
        yield LoggedMessage(result, parse_time(call.get("timestamp")) or timestamp)


def _text_of(record: Mapping[str, Any]) -> str:
    """Return the words of a message. Results of tools among its parts are recorded with their calls."""
    content = record.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [text_in(part, "text") for part in list_objects(parts)]
    return "\n".join(filter(None, texts))


def _read_result_text(call: Mapping[str, Any]) -> str:
    result = call.get("result")
    texts: list[str] = []
    for part in result if isinstance(result, list) else [result]:
        response = object_in(object_in(part, "functionResponse"), "response")
        texts += iterate_strings(dict(response))
    return "\n".join(texts)


def _read_usage(tokens: Mapping[str, Any]) -> CanonicalUsage | None:
    """Return the usage: `input` includes the cached tokens, `output` excludes the thoughts."""
    prompt_tokens = count_in(tokens, "input")
    if prompt_tokens is None:
        return None
    cached_tokens = count_in(tokens, "cached") or 0
    thought_tokens = count_in(tokens, "thoughts") or 0
    return CanonicalUsage(
        input_tokens=max(prompt_tokens - cached_tokens, 0),
        cache_read_tokens=cached_tokens,
        output_tokens=(count_in(tokens, "output") or 0) + thought_tokens,
        reasoning_tokens=thought_tokens,
    )
