"""Dialogues to extract a summary from."""

from __future__ import annotations

import json
from typing import Any

from everthread.compaction.summarizers.extractive import ExtractiveSummarizer
from everthread.core.messages import Message
from everthread.core.summary import Sections, SummaryRequest, render_sections
from everthread.core.tokens import TokenCounter

COUNTER = TokenCounter("gpt-4o")


class Dialogue:
    """A conversation, written as it goes."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def user(self, text: str) -> Dialogue:
        self.messages.append({"role": "user", "content": text})
        return self

    def says(self, text: str) -> Dialogue:
        self.messages.append({"role": "assistant", "content": text})
        return self

    def calls(self, name: str, arguments: dict[str, Any], result: str | None = "ok", *, text: str = "") -> Dialogue:
        """A call and its result; None: it was never answered."""
        call_id = f"call_{len(self.messages)}"
        function: Any = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        call: Any = {"id": call_id, "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": text or None, "tool_calls": [call]})
        if result is not None:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        return self

    def runs(self, command: str, output: str | None = "", *, text: str = "") -> Dialogue:
        return self.calls("bash", {"command": command}, output, text=text)

    def edits(self, path: str, new: str = "x = 1", *, text: str = "") -> Dialogue:
        arguments = {"path": path, "old_string": "x = 0", "new_string": new}
        return self.calls("edit", arguments, f"Edited {path}", text=text)

    def reads(self, path: str, output: str = "line\n" * 40) -> Dialogue:
        return self.calls("read_file", {"path": path}, output)


def summarised(
    dialogue: Dialogue | list[Message],
    *,
    budget: int = 3_000,
    previous: Sections | None = None,
    focus: str | None = None,
    task: str = "",
) -> Sections:
    messages = dialogue.messages if isinstance(dialogue, Dialogue) else dialogue
    request = SummaryRequest(messages, messages, budget, previous=previous or {}, focus=focus, task=task)
    return ExtractiveSummarizer(COUNTER).sections(request)


def lines(sections: Sections, name: str) -> list[str]:
    """The lines of a section, without bullets."""
    return [line.removeprefix("- ") for line in sections.get(name, "").split("\n") if line]


def whole(sections: Sections) -> str:
    return render_sections(sections)
