"""The model of the strict provider: it reads files until the window is full.

It knows only the text of the prompt. The fact that it is asked for at the end was in the
first file, so it needs the gateway's `recall` once that was compacted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.torture.clients.model import fill_name

RECALL = "recall"
MAX_RECALLS = 3


@dataclass(frozen=True)
class Call:
    """One tool call of an answer."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """An answer, independent of the protocol."""

    text: str = ""
    calls: Sequence[Call] = ()
    thinking: str = ""


@dataclass
class StoryModel:
    """Answer every request of one client."""

    steps: int
    """Number of rounds of reading before the question is answered."""
    question: str
    fact: str
    tools: Mapping[str, Any] = field(default_factory=dict)
    """The client's tools that read a file, with their arguments; `{name}` is filled in."""
    page: Callable[[int], str] = str
    """The text to answer with if the client has no tools."""
    width: int = 1
    """Files to read in one round, in parallel."""
    done: int = 0
    recalls: int = 0
    is_fact_known: bool = False
    """Whether the fact was in the prompt without a call of `recall`."""

    def answer(self, prompt: str, tools: Sequence[str]) -> Answer:
        """Answer a request with this text and these tools."""
        usable = [name for name in tools if name in self.tools]
        if self.tools and not usable:
            return Answer("Ledgers compared")
        if self.done < self.steps:
            self.done += 1
            thinking = f"Round {self.done} continues after round {self.done - 1}."
            if not self.tools:
                return Answer(self.page(self.done - 1))
            return Answer(f"Round {self.done}: next.", self._read(usable), thinking)
        if self.question not in prompt:
            return Answer(f"All {self.done} rounds are read, and the entries agree.")
        return self._answer_question(prompt, tools)

    def _read(self, usable: Sequence[str]) -> list[Call]:
        calls = []
        for at in range(self.width):
            number = (self.done - 1) * self.width + at + 1
            name = usable[number % len(usable)]
            arguments = fill_name(self.tools[name], f"part-{number:03d}.txt")
            calls.append(Call(f"call_{number:04d}", name, arguments))
        return calls

    def _answer_question(self, prompt: str, tools: Sequence[str]) -> Answer:
        if self.fact in prompt:
            self.is_fact_known = not self.recalls
            return Answer(f"The code is {self.fact}.")
        if RECALL not in tools or self.recalls >= MAX_RECALLS:
            return Answer("It is not in the prompt, and it cannot be looked up.")
        self.recalls += 1
        query = {"query": self.question.strip("?").partition(" the ")[2]}
        call = Call(f"call_recall_{self.recalls}", RECALL, query)
        return Answer(calls=[call], thinking="It is not in the prompt: look it up.")


def tool_names(body: Mapping[str, Any]) -> list[str]:
    """Return the names of all tools of a request, of any protocol."""
    return list(_names_in(body.get("tools")))


def _names_in(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for part in value for name in _names_in(part)]
    if not isinstance(value, Mapping):
        return []
    inner = [
        name
        for key in (
            "function",
            "functionDeclarations",
            "function_declarations",
            "tools",
        )
        for name in _names_in(value.get(key))
    ]
    own = value.get("name")
    return [*inner, *([own] if isinstance(own, str) else [])]


def prompt_text(body: Mapping[str, Any]) -> str:
    """Return the conversation of a request as one text, without tools and settings."""
    parts = [body.get(key) for key in ("messages", "input", "contents")]
    return json.dumps(parts, ensure_ascii=False)
