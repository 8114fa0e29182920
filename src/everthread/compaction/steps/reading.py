"""What a message says, read once: without secrets, and the facts and rules in it.

Remembered per message object, so that a later compaction of the same history reads only what is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from everthread.core.facts import MessageFacts, facts_of_message
from everthread.core.messages import Call, Message, Messages, calls_of, results_of, strings_in, text_of
from everthread.core.pruning import Memo
from everthread.core.redaction import redact, redact_value
from everthread.core.summary import without_summary

REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Read:
    """A message without secrets (itself where it holds none), and what it states."""

    message: Message
    facts: MessageFacts
    source: str
    """Everything it says, as one text to look names up in."""


class Reader:
    """Reads messages, each once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Message, Read]] = {}
        self.pruned: Memo = {}
        """What messages became, as a model is given them."""

    def read(self, messages: Messages) -> list[Read]:
        """What each message says. An error names the call it came from, if that is in the list."""
        calls: dict[str, Call] = {}
        found: list[Read] = []
        for message in messages:
            known = self._known.get(id(message))
            if known is None or known[0] is not message:
                clean = without_secrets(message)
                known = (message, Read(clean, facts_of_message(clean, calls), source_text(message)))
                self._known[id(message)] = known
            found.append(known[1])
            calls.update((call.id, call) for call in calls_of(known[1].message))
        for memory in (self._known, self.pruned):
            for key in list(memory)[: max(len(memory) - REMEMBERED, 0)]:
                del memory[key]
        return found


def source_text(message: Message) -> str:
    """What a message says, its calls and results included. A summary is no source."""
    parts = [without_summary(text_of(message))]
    for call in calls_of(message):
        parts.append(call.name)
        parts += strings_in(call.parsed, keys=True) if "\\" in call.arguments else (call.arguments,)
    return "\n".join([*parts, *(result.text for result in results_of(message))])


def without_secrets(message: Message) -> Message:
    """The message with every secret in its words, arguments and results taken out."""
    changes: dict[str, Any] = {}
    for field in ("content", "reasoning_content", "refusal"):
        value = message.get(field)
        clean = redact(value) if isinstance(value, str) else redact_value(value) if isinstance(value, list) else value
        if clean is not value:
            changes[field] = clean
    made = message.get("tool_calls")
    if isinstance(made, list):
        calls = [_call_without_secrets(call) for call in made]
        if any(new is not old for new, old in zip(calls, made, strict=True)):
            changes["tool_calls"] = calls
    if not changes:
        return message
    return cast("Message", {**{key: value for key, value in message.items() if key != "_native"}, **changes})


def _call_without_secrets(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments, str):
        return redact_value(call)
    clean = redact(arguments)
    return call if clean is arguments else {**call, "function": {**function, "arguments": clean}}
