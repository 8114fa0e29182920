"""The model for the clients: it reads files with the client's own tools until several windows are full.

The simulated provider asks it for every answer. It knows only the text of the prompt. The fact that it is asked for at
the end was in an early answer or result; it looks the fact up with the gateway's `recall`, even if a summary has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.messages import Message, content_text, text_of, tool_names
from everthread.core.types import ModelReply, ModelRequest
from everthread.core.user_words import strip_injected
from everthread.thread.matching.assistant_roles import Role, describe_role, is_same_role

FACT = "7731-KESTREL"
WHERE = "northern vault"
QUESTION = f"What is the code of the {WHERE}?"
TASK = (
    "Read the files part-001.txt, part-002.txt and so on in this folder, one after the other, and compare the entries. "
    "Work alone, and ask nothing back."
)
RECALL = "recall"
_PLACES = (
    "Aldersgate",
    "Brockley",
    "Camberwell",
    "Deptford",
    "Eltham",
    "Finchley",
    "Greenwich",
    "Hackney",
)


def _side_answer(request: ModelRequest) -> str:
    """Return the answer to a side call: JSON with empty values if the client asks for JSON, else a title."""
    schema = (request.params.get("generationConfig") or {}).get("responseJsonSchema")
    if not isinstance(schema, dict):
        return "Ledgers compared"
    empty = {
        "string": "",
        "number": 0,
        "integer": 0,
        "boolean": False,
        "array": [],
        "object": {},
    }
    return json.dumps(
        {name: empty.get(one.get("type")) for name, one in (schema.get("properties") or {}).items()}
    )


def file_text(number: int, characters: int) -> str:
    """Return lines of a ledger, no two alike; only the first file holds the fact."""
    lines: list[str] = []
    size = 0
    while size < characters:
        at = len(lines)
        place = _PLACES[(number * 7 + at * 3) % len(_PLACES)]
        amount = (number * 7919 + at * 104_729) % 1_000_003
        lines.append(
            f"{number:03d}/{at:04d} {place}: entry {amount} was settled, receipt {amount * 31 % 99_991:05d}"
        )
        size += len(lines[-1]) + 1
        if number == 1 and at == 9:
            lines.append(f"001/note The code of the {WHERE} is {FACT}.")
    return "\n".join(lines) + "\n"


@dataclass
class TaskModel:
    """Answer every request. `tools`: a client's tools, each with the arguments that read file `{name}`."""

    steps: int
    """Number of rounds of reading."""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    width: int = 1
    """Number of files to read in one round, in parallel."""
    thinks: bool = False
    characters: int = 0
    """For a client without tools: the characters of each answer, which replaces the reading."""
    lookup: str = RECALL
    """The tool by which the fact is looked up."""
    side: list[str] = field(default_factory=list)
    """The first words of each side call."""
    has_recall: bool = False
    """Whether the gateway offered its own tool."""
    has_both: bool = False
    """Whether it did so although our MCP server is attached."""
    recalls: int = 0
    recalled: bool = False
    """Whether the fact came from a call of `recall`."""
    found: bool = False
    """Whether the fact was in the prompt of the question; it is looked up all the same."""
    unknown_tools: list[str] = field(default_factory=list)
    main: list[int] = field(default_factory=list)
    """The numbers of the conversation's requests, from 0."""
    asked: int = 0
    done: int = 0
    rereads: str = ""
    """The tool that reads an early file once more at the end; empty for no such reading."""
    reread: bool | None = None
    """Whether that file was in the prompt after the client may have called it unchanged; None before that."""
    looked_again: bool = False
    role: Role | None = None
    """The assistant's role in the conversation."""

    def __call__(self, request: ModelRequest) -> ModelReply | str:
        self.asked += 1
        names = [name for tool in request.tools or () for name in tool_names(tool)]
        if self._is_beside(request, names):
            self.side.append(_last_words(request)[:80])
            return _side_answer(request)
        self.main.append(self.asked - 1)
        self.has_recall = self.has_recall or RECALL in names
        if self.lookup != RECALL and {self.lookup, RECALL} <= set(names):
            self.has_both = True
        if self.done >= self.steps and self.rereads in names and not self.looked_again:
            return self._read_again(request, names)
        if self.done >= self.steps and QUESTION in _recent_text(request):
            return self._answer(request, names)
        if self.done >= self.steps:
            return f"All {self.done} rounds are read, and the entries agree."
        self.done += 1
        # The first stays in view.
        return self._read(names) if self.tools else file_text(self.done - 1, self.characters)

    def _is_beside(self, request: ModelRequest, names: Sequence[str]) -> bool:
        """Return whether a request is a side call, such as a title, a check of the quota or a subagent.

        It has no tool to read with, or the assistant has another role than in the conversation.
        """
        role = describe_role(content_text(request.system), frozenset(names) - {RECALL})
        if self.tools and self.role is not None and not is_same_role(self.role, role):
            return True
        if self.tools:
            is_beside = not any(name in self.tools for name in names)
            self.role = self.role or (None if is_beside else role)
            return is_beside
        return not request.messages

    def _read_again(self, request: ModelRequest, names: Sequence[str]) -> ModelReply | str:
        usable = [name for name in names if name in self.tools]
        number = next(
            number for number in range(3, 100) if usable[number % len(usable)] == self.rereads
        )
        if self.reread is None:
            self.reread = False
            arguments = fill_name(self.tools[self.rereads], f"part-{number:03d}.txt")
            function = {"name": self.rereads, "arguments": json.dumps(arguments)}
            call: Any = {"id": "call_again", "type": "function", "function": function}
            return ModelReply(
                {"role": "assistant", "content": "I look again.", "tool_calls": [call]},
                "tool_calls",
            )
        self.looked_again, self.reread = (
            True,
            f"{number:03d}/0005 " in _whole_text(request.messages[-1]),
        )
        return f"All {self.done} rounds are read, and the entries agree."

    def _read(self, names: Sequence[str]) -> ModelReply:
        usable = [name for name in names if name in self.tools]
        calls = []
        for at in range(self.width):
            number = (self.done - 1) * self.width + at + 1
            name = usable[number % len(usable)]
            arguments = fill_name(self.tools[name], f"part-{number:03d}.txt")
            function = {"name": name, "arguments": json.dumps(arguments)}
            calls.append({"id": f"call_{number:04d}", "type": "function", "function": function})
        message: Any = {
            "role": "assistant",
            "content": f"Round {self.done}: I read on.",
            "tool_calls": calls,
        }
        if self.thinks:
            message["reasoning_content"] = (
                f"Round {self.done} goes on where round {self.done - 1} ended."
            )
        return ModelReply(message, "tool_calls")

    def _answer(self, request: ModelRequest, names: Sequence[str]) -> ModelReply | str:
        if not self.recalls:
            self.found = FACT in "\n".join(map(_whole_text, request.messages))
        elif FACT in _recent_text(request):
            self.recalled = True
            return f"The code of the {WHERE} is {FACT}."
        if self.lookup not in names or self.recalls >= 3:
            return "Nobody told me, and I cannot look it up."
        self.recalls += 1
        call = {
            "name": self.lookup,
            "arguments": json.dumps({"query": f"code of the {WHERE}"}),
        }
        spaces = (tool["name"] for tool in request.tools or () if tool.get("type") == "namespace")
        namespace = next((space for space in spaces if self.lookup.startswith(f"{space}__")), "")
        asked: Any = {
            "id": f"call_recall_{self.recalls}",
            "type": "function",
            "function": call,
            "_namespace": namespace,
        }
        message: Any = {"role": "assistant", "content": None, "tool_calls": [asked]}
        if self.thinks:
            message["reasoning_content"] = "It was in an early file: I look it up."
        return ModelReply(message, "tool_calls")


def fill_name(value: Any, name: str) -> Any:
    """Replace `{name}` in every text of the value."""
    if isinstance(value, Mapping):
        return {key: fill_name(part, name) for key, part in value.items()}
    if isinstance(value, list):
        return [fill_name(part, name) for part in value]
    return value.replace("{name}", name) if isinstance(value, str) else value


def _recent_text(request: ModelRequest) -> str:
    """Return the last user message and everything after it."""
    last = max(
        (
            at
            for at, message in enumerate(request.messages)
            if message["role"] == "user" and strip_injected(text_of(message)).strip()
        ),
        default=0,
    )
    return "\n".join(map(_whole_text, request.messages[last:]))


def _last_words(request: ModelRequest) -> str:
    return text_of(request.messages[-1]).strip() if request.messages else ""


def _whole_text(message: Message) -> str:
    """Return a message as JSON, results included."""
    return json.dumps(
        {key: value for key, value in message.items() if key != "_native"},
        ensure_ascii=False,
    )
