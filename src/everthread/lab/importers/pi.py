"""pi's session files: `~/.pi/agent/sessions/--<path>--/<time>_<id>.jsonl`.

The first line describes the session. The others form a tree by `id` and `parentId`, in which the branch that ends with
the last line is the current one. From version 1.0 on, messages with the role `system` state the system prompt in named
sections and the tools, and `context_edit` removes or replaces an earlier message. Compactions of the client keep the
messages from `firstKeptEntryId` on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message, text_of
from everthread.lab.importers.client_log import ClientLogReader, NumberedLines
from everthread.lab.importers.log import ClientCompaction, Log, LoggedMessage
from everthread.lab.importers.log_fields import (
    count_in,
    dollars_in,
    list_objects,
    make_answer,
    make_injected_message,
    object_in,
    parse_time,
    text_in,
    texts_of,
    usage_in,
)

_ROLES = (
    "user",
    "assistant",
    "toolResult",
    "system",
    "custom",
    "bashExecution",
    "branchSummary",
)


@dataclass
class PiReader(ClientLogReader):
    """Reads a session file."""

    kind: ClassVar[str] = "pi"

    branch_ids: set[str] | None = None
    """Ids of the lines of the current branch, or None if the file has no branches."""
    message_index_by_line_id: dict[str, int] = field(default_factory=dict)
    """Index of the message of each line, by the line's id."""
    text_by_section: dict[str, str] = field(default_factory=dict)
    """The system prompt: the text of each section by its name, and text outside of sections under the empty name."""
    tools_by_name: dict[str, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def is_own_line(line: Mapping[str, Any]) -> bool:
        if line.get("type") == "session":
            return isinstance(line.get("cwd"), str) and "thread" not in line
        return (
            line.get("type") == "message" and text_in(object_in(line, "message"), "role") in _ROLES
        )

    def read(self, lines: NumberedLines, source: str) -> Log:
        self.branch_ids = _find_last_branch([line for _, line in lines])
        return super().read(lines, source)

    def read_line(self, line: dict[str, Any]) -> None:
        if line.get("type") == "session":
            self.session_id = text_in(line, "id")
        elif self.branch_ids is not None and text_in(line, "id") not in self.branch_ids:
            self.skipped_line_counts["branches that were given up"] += 1
        else:
            self._read_branch_line(line)

    def finish(self) -> None:
        self.system = "\n\n".join(self.text_by_section.values()) or None
        self.tools = [_make_tool_definition(tool) for tool in self.tools_by_name.values()]

    def _read_branch_line(self, line: Mapping[str, Any]) -> None:
        kind = line.get("type")
        if kind == "compaction":
            self._add_compaction(line)
        elif kind == "session_info":
            self.title = text_in(line, "name") or self.title
        elif kind == "custom_message":
            self._add_message(line, _read_injected_message(line.get("content")))
        elif kind == "branch_summary":
            self._add_message(line, make_injected_message(text_in(line, "summary")))
        elif kind == "context_edit":
            self._edit_message(line)
        elif self.is_own_line(line):
            record = object_in(line, "message")
            if record.get("role") == "system":
                self._read_system(record)
                return
            entry = _read_message(line)
            if entry is None:
                self.bad_line_numbers.append(self.line_number)
            elif entry.message.get("content") is not None or entry.message.get("tool_calls"):
                self.message_index_by_line_id[text_in(line, "id")] = len(self.messages)
                self.messages.append(entry)

    def _add_message(self, line: Mapping[str, Any], message: Message | None) -> None:
        if message is not None:
            self.message_index_by_line_id[text_in(line, "id")] = len(self.messages)
            self.messages.append(LoggedMessage(message, parse_time(line.get("timestamp"))))

    def _add_compaction(self, line: Mapping[str, Any]) -> None:
        first_kept_index = self.message_index_by_line_id.get(
            text_in(line, "firstKeptEntryId"), len(self.messages)
        )
        self.compactions.append(
            ClientCompaction(
                len(self.messages),
                text_in(line, "summary") or None,
                "\n".join(
                    _join_text_and_calls(entry.message)
                    for entry in self.messages[first_kept_index:]
                ),
                timestamp=parse_time(line.get("timestamp")),
                tokens_before=count_in(line, "tokensBefore"),
            )
        )

    def _edit_message(self, line: Mapping[str, Any]) -> None:
        """Replace the content of an earlier message. A removed one is emptied, so that no call lacks its result."""
        index = self.message_index_by_line_id.get(text_in(line, "targetId"))
        if index is None:
            return
        text = _read_text(line.get("replacement"))
        entry = self.messages[index]
        self.messages[index] = replace(entry, message={**entry.message, "content": text})

    def _read_system(self, record: Mapping[str, Any]) -> None:
        content = _read_text(record.get("content"))
        if content:
            self.text_by_section[""] = content
        for name, text in object_in(record, "sections").items():
            if isinstance(text, str):
                self.text_by_section[name] = text
            else:
                self.text_by_section.pop(name, None)
        for tool in list_objects(record.get("toolsAdded")):
            self.tools_by_name[text_in(tool, "name")] = dict(tool)
        for tool in list_objects(record.get("toolsRemoved")):
            self.tools_by_name.pop(text_in(tool, "name"), None)


def _make_tool_definition(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
    return {"type": "function", "function": function}


def _find_last_branch(lines: list[dict[str, Any]]) -> set[str] | None:
    """Return the ids from the last line back to the first; None in a file without a tree (version 1).

    A parent whose line is damaged is replaced by the line before its child.
    """
    parent_by_id: dict[str, Any] = {}
    previous_id: str | None = None
    known_ids = {text_in(line, "id") for line in lines}
    for line in lines:
        line_id = text_in(line, "id")
        if not line_id:
            continue
        parent_id = line.get("parentId")
        is_known = not parent_id or (isinstance(parent_id, str) and parent_id in known_ids)
        parent_by_id[line_id] = parent_id if is_known else previous_id
        previous_id = line_id
    tree_ids = [text_in(line, "id") for line in lines if "parentId" in line]
    current_id: Any = next(filter(None, reversed(tree_ids)), None)
    if current_id is None:
        return None
    branch_ids: set[str] = set()
    while (
        isinstance(current_id, str) and current_id in parent_by_id and current_id not in branch_ids
    ):
        branch_ids.add(current_id)
        current_id = parent_by_id[current_id]
    return branch_ids


def _read_text(content: Any) -> str:
    return content if isinstance(content, str) else texts_of(list_objects(content), "text")


def _join_text_and_calls(message: Message) -> str:
    calls = "\n".join(call["function"]["arguments"] for call in message.get("tool_calls") or ())
    return f"{text_of(message)}\n{calls}"


def _read_injected_message(content: Any) -> Message | None:
    text = _read_text(content)
    return make_injected_message(text) if text else None


def _read_message(line: Mapping[str, Any]) -> LoggedMessage | None:
    record = line["message"]
    timestamp = parse_time(line.get("timestamp")) or parse_time(record.get("timestamp"))
    role = record["role"]
    if role == "bashExecution":
        return LoggedMessage(_read_command(record), timestamp)
    if role == "branchSummary":
        return LoggedMessage(make_injected_message(text_in(record, "summary")), timestamp)
    content = record.get("content")
    if not isinstance(content, str | list):
        return None
    text = _read_text(content)
    if role == "custom":
        return LoggedMessage(make_injected_message(text), timestamp)
    if role == "user":
        return LoggedMessage({"role": "user", "content": text}, timestamp)
    if role == "toolResult":
        call_id = record.get("toolCallId")
        name = text_in(record, "toolName")
        if not isinstance(call_id, str):
            return None
        result: Message = {"role": "tool", "tool_call_id": call_id, "content": text}
        return LoggedMessage({**result, "name": name} if name else result, timestamp)
    return _read_answer(record, timestamp)


def _read_command(record: Mapping[str, Any]) -> Message:
    """Return a message about a command that the user ran, without content if the command is hidden from the model."""
    if record.get("excludeFromContext") is True:
        return {"role": "user"}
    return make_injected_message(f"Ran `{text_in(record, 'command')}`\n{text_in(record, 'output')}")


def _read_answer(record: Mapping[str, Any], timestamp: float | None) -> LoggedMessage:
    blocks = list_objects(record.get("content"))
    calls = [
        (block["id"], block.get("name", ""), block.get("arguments"))
        for block in blocks
        if block.get("type") == "toolCall" and isinstance(block.get("id"), str)
    ]
    figures = object_in(record, "usage")
    message = make_answer(
        _read_text(record.get("content")),
        texts_of(blocks, "thinking", "thinking"),
        calls,
    )
    model = text_in(record, "responseModel") or text_in(record, "model")
    return LoggedMessage(
        message,
        timestamp,
        _read_usage(figures),
        dollars_in(object_in(figures, "cost"), "total"),
        model,
    )


def _read_usage(figures: Mapping[str, Any]) -> CanonicalUsage | None:
    if not figures:
        return None
    usage = usage_in(
        figures,
        "input",
        "output",
        cache_read_key="cacheRead",
        cache_write_key="cacheWrite",
    )
    return replace(
        usage,
        cache_write_1h_tokens=count_in(figures, "cacheWrite1h") or 0,
        reasoning_tokens=count_in(figures, "reasoning") or 0,
    )
