"""pi's session files: `~/.pi/agent/sessions/--<path>--/<time>_<id>.jsonl`.

The first line describes the session, the others are a tree by `id` and `parentId`; the branch that ends with the last
line counts. From version 1.0 on, messages with the role `system` state the system prompt in named sections and the
tools, and `context_edit` removes or replaces an earlier message. Compactions of the client keep the messages from
`firstKeptEntryId` on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.messages import Message, text_of
from everthread.lab.importers.log import (
    ClientCompaction,
    Lines,
    Log,
    LoggedMessage,
    answer_of,
    count_in,
    describe_gaps,
    dollars_in,
    first_model,
    inject_text,
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


def is_line(value: Mapping[str, Any]) -> bool:
    if value.get("type") == "session":
        return isinstance(value.get("cwd"), str) and "thread" not in value
    return (
        value.get("type") == "message"
        and text_in(object_in(value, "message"), "role") in _ROLES
    )


@dataclass
class _Reading:
    messages: list[LoggedMessage] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    """Index of the message of each line, by the line's id."""
    compactions: list[ClientCompaction] = field(default_factory=list)
    sections: dict[str, str] = field(default_factory=dict)
    """The system prompt by section; text outside of sections has the empty name."""
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    bad: list[int] = field(default_factory=list)
    title: str = ""

    def read_line(self, number: int, value: Mapping[str, Any]) -> None:
        kind = value.get("type")
        if kind == "compaction":
            self._add_compaction(value)
        elif kind == "session_info":
            self.title = text_in(value, "name") or self.title
        elif kind == "custom_message":
            self._add(value, _injected(value.get("content")))
        elif kind == "branch_summary":
            self._add(value, inject_text(text_in(value, "summary")))
        elif kind == "context_edit":
            self._edit(value)
        elif is_line(value):
            logged = object_in(value, "message")
            if logged.get("role") == "system":
                self._read_system(logged)
                return
            entry = _read_message(value)
            if entry is None:
                self.bad.append(number)
            elif entry.message.get("content") is not None or entry.message.get(
                "tool_calls"
            ):
                self.places[text_in(value, "id")] = len(self.messages)
                self.messages.append(entry)

    def _add(self, value: Mapping[str, Any], message: Message | None) -> None:
        if message is not None:
            self.places[text_in(value, "id")] = len(self.messages)
            self.messages.append(
                LoggedMessage(message, parse_time(value.get("timestamp")))
            )

    def _add_compaction(self, value: Mapping[str, Any]) -> None:
        kept = self.places.get(text_in(value, "firstKeptEntryId"), len(self.messages))
        self.compactions.append(
            ClientCompaction(
                len(self.messages),
                text_in(value, "summary") or None,
                "\n".join(_whole_text(entry.message) for entry in self.messages[kept:]),
                at=parse_time(value.get("timestamp")),
                tokens_before=count_in(value, "tokensBefore"),
            )
        )

    def _edit(self, value: Mapping[str, Any]) -> None:
        """Change a message for the calls after this line; a message cannot be removed without its pair."""
        place = self.places.get(text_in(value, "targetId"))
        if place is None:
            return
        replacement = value.get("replacement")
        text = (
            replacement
            if isinstance(replacement, str)
            else texts_of(_objects(replacement), "text")
        )
        entry = self.messages[place]
        self.messages[place] = replace(
            entry, message={**entry.message, "content": text}
        )

    def _read_system(self, logged: Mapping[str, Any]) -> None:
        content = _text_in(logged.get("content"))
        if content:
            self.sections[""] = content
        for name, text in object_in(logged, "sections").items():
            if isinstance(text, str):
                self.sections[name] = text
            else:
                self.sections.pop(name, None)
        for tool in _objects(logged.get("toolsAdded")):
            self.tools[text_in(tool, "name")] = dict(tool)
        for tool in _objects(logged.get("toolsRemoved")):
            self.tools.pop(text_in(tool, "name"), None)


def read(lines: Lines, source: str, warnings: list[str]) -> Log:
    branch = _last_branch([value for _, value in lines])
    reading = _Reading()
    skipped = 0
    header: Mapping[str, Any] = {}
    for number, value in lines:
        if value.get("type") == "session":
            header = value
        elif branch is not None and text_in(value, "id") not in branch:
            skipped += 1
        else:
            reading.read_line(number, value)
    return Log(
        source,
        "pi",
        reading.messages,
        system="\n\n".join(reading.sections.values()) or None,
        tools=[_tool_definition(tool) for tool in reading.tools.values()],
        model=first_model(reading.messages),
        warnings=[
            *warnings,
            *describe_gaps(reading.bad, {"branches that were given up": skipped}),
        ],
        session=text_in(header, "id"),
        title=reading.title,
        compactions=reading.compactions,
    )


def _tool_definition(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {
        key: tool[key] for key in ("name", "description", "parameters") if key in tool
    }
    return {"type": "function", "function": function}


def _last_branch(values: list[dict[str, Any]]) -> set[str] | None:
    """Return the ids from the last line back to the first; None in a file without a tree (version 1).

    A parent whose line is damaged is replaced by the line before its child.
    """
    parents: dict[str, Any] = {}
    previous: str | None = None
    known = {text_in(value, "id") for value in values}
    for value in values:
        name = text_in(value, "id")
        if not name:
            continue
        parent = value.get("parentId")
        parents[name] = previous if parent and parent not in known else parent
        previous = name
    ends = (
        text_in(value, "id")
        for value in reversed(values)
        if text_in(value, "id") and "parentId" in value
    )
    at: Any = next(ends, None)
    if at is None:
        return None
    branch: set[str] = set()
    while isinstance(at, str) and at in parents and at not in branch:
        branch.add(at)
        at = parents[at]
    return branch


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return (
        [item for item in value if isinstance(item, Mapping)]
        if isinstance(value, list)
        else []
    )


def _text_in(content: Any) -> str:
    return content if isinstance(content, str) else texts_of(_objects(content), "text")


def _whole_text(message: Message) -> str:
    calls = "\n".join(
        call["function"]["arguments"] for call in message.get("tool_calls") or ()
    )
    return f"{text_of(message)}\n{calls}"


def _injected(content: Any) -> Message | None:
    text = _text_in(content)
    return inject_text(text) if text else None


def _read_message(value: Mapping[str, Any]) -> LoggedMessage | None:
    logged = value["message"]
    at = parse_time(value.get("timestamp")) or parse_time(logged.get("timestamp"))
    role = logged["role"]
    if role == "bashExecution":
        return LoggedMessage(_read_command(logged), at)
    if role == "branchSummary":
        return LoggedMessage(inject_text(text_in(logged, "summary")), at)
    content = logged.get("content")
    if not isinstance(content, str | list):
        return None
    text = _text_in(content)
    if role == "custom":
        return LoggedMessage(inject_text(text), at)
    if role == "user":
        return LoggedMessage({"role": "user", "content": text}, at)
    if role == "toolResult":
        call = logged.get("toolCallId")
        name = text_in(logged, "toolName")
        if not isinstance(call, str):
            return None
        result: Message = {"role": "tool", "tool_call_id": call, "content": text}
        return LoggedMessage({**result, "name": name} if name else result, at)
    return _read_answer(logged, at)


def _read_command(logged: Mapping[str, Any]) -> Message:
    """Return a command that the user ran; one that is kept from the model is empty."""
    if logged.get("excludeFromContext") is True:
        return {"role": "user"}
    return inject_text(
        f"Ran `{text_in(logged, 'command')}`\n{text_in(logged, 'output')}"
    )


def _read_answer(logged: Mapping[str, Any], at: float | None) -> LoggedMessage:
    blocks = _objects(logged.get("content"))
    calls = [
        (block["id"], block.get("name", ""), block.get("arguments"))
        for block in blocks
        if block.get("type") == "toolCall" and isinstance(block.get("id"), str)
    ]
    figures = object_in(logged, "usage")
    message = answer_of(
        _text_in(logged.get("content")), texts_of(blocks, "thinking", "thinking"), calls
    )
    model = text_in(logged, "responseModel") or text_in(logged, "model")
    return LoggedMessage(
        message,
        at,
        _read_usage(figures),
        dollars_in(object_in(figures, "cost"), "total"),
        model,
    )


def _read_usage(figures: Mapping[str, Any]) -> CanonicalUsage | None:
    if not figures:
        return None
    usage = usage_in(figures, "input", "output", read="cacheRead", write="cacheWrite")
    return replace(
        usage,
        cache_write_1h_tokens=count_in(figures, "cacheWrite1h") or 0,
        reasoning_tokens=count_in(figures, "reasoning") or 0,
    )
