"""What a provider would refuse in a list of messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import (
    CALL_BLOCKS,
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    SYSTEM_ROLES,
    calls_of,
    content_text,
    kind_of,
    parts_of,
    results_of,
)
from everthread.errors import InputError

ROLES = frozenset({*SYSTEM_ROLES, "user", "assistant", "tool", "function"})
ANTHROPIC_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
RESPONSES_CALL_ID = 64
"""Characters of a call's id."""
CHAT_CALLS = {"function": "arguments", "custom": "input"}
"""The types of call in OpenAI's form, with the field that holds what the tool is given."""
BLOCK_ROLES = {**dict.fromkeys(CALL_BLOCKS, "assistant"), **dict.fromkeys(RESULT_BLOCKS, "user")}
"""Who may speak in blocks of a kind; anybody in the others."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason a provider would refuse the list: where, which rule, in words."""

    index: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"message {self.index}: {self.message} [{self.rule}]"


Check = Callable[[Sequence[Mapping[str, Any]]], Iterator[Problem]]


def validate_messages(messages: Sequence[Mapping[str, Any]], *, api: str = "openai") -> list[Problem]:
    """Every problem `api` would have with the list, in message order.

    `openai` (chat), `openai_responses` or `anthropic`. For Responses too the list is in the core's form, as a codec
    makes its items from it.
    """
    if api not in _CHECKS:
        raise InputError(f"api={api!r} is unknown; use one of: {', '.join(_CHECKS)}")
    shapes = list(_shapes(messages))
    if shapes:
        return shapes
    found = [problem for check in _CHECKS[api] for problem in check(messages)]
    return sorted(found, key=lambda problem: problem.index)


def _shapes(messages: Sequence[Any]) -> Iterator[Problem]:
    """What makes the list unreadable; the other checks rely on it."""
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            yield Problem(index, "not-an-object", f"a message is an object, this is {type(message).__name__}")
        elif not isinstance(message.get("role"), str) or message["role"] not in ROLES:
            yield Problem(index, "unknown-role", f"role {message.get('role')!r} is none of {', '.join(sorted(ROLES))}")
        else:
            yield from _content_shape(index, message)


def _content_shape(index: int, message: Mapping[str, Any]) -> Iterator[Problem]:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant":
            yield Problem(index, "content-missing", f"a {message['role']} message needs content")
    elif not isinstance(content, str | list):
        yield Problem(index, "content-type", f"content is text or a list of parts, this is {type(content).__name__}")
    elif isinstance(content, list):
        for position, part in enumerate(content):
            if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
                yield Problem(index, "part-type", f"part {position} of the content is not an object with a type")


def _calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, message in enumerate(messages):
        if "tool_calls" in message and (not isinstance(message["tool_calls"], list) or not message["tool_calls"]):
            yield Problem(index, "empty-tool-calls", "tool_calls must be a list with at least one call, or absent")
        seen: set[str] = set()
        for call in calls_of(message):
            if not call.id:
                yield Problem(index, "call-without-id", f"the call of {call.name or 'a tool'} has no id")
            elif call.id in seen:
                yield Problem(index, "duplicate-call", f"two calls share the id {call.id!r}")
            if not call.name:
                yield Problem(index, "call-without-name", f"the call {call.id!r} names no tool")
            seen.add(call.id)


def _pairs(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Each result directly after the message that made its call, one per call, none missing."""
    waiting: dict[str, int] = {}
    answered: set[str] = set()
    known: set[str] = set()
    for index, message in enumerate(messages):
        results = results_of(message)
        if not results and waiting:
            yield from _unanswered(waiting)
            waiting = {}
        for result in results:
            if result.call_id in waiting:
                del waiting[result.call_id]
                answered.add(result.call_id)
            elif result.call_id in answered:
                yield Problem(index, "duplicate-result", f"the call {result.call_id!r} was answered before")
            elif result.call_id in known:
                yield Problem(
                    index,
                    "misplaced-result",
                    f"the result of {result.call_id!r} does not directly follow its call",
                )
            else:
                yield Problem(index, "orphan-result", f"no earlier message makes the call {result.call_id!r}")
        if calls := calls_of(message):
            yield from _unanswered(waiting)
            waiting = {call.id: index for call in calls}
            answered -= waiting.keys()
            known |= waiting.keys()
    yield from _unanswered(waiting)


def _unanswered(waiting: Mapping[str, int]) -> Iterator[Problem]:
    for call_id, index in waiting.items():
        yield Problem(index, "missing-result", f"nothing directly after it answers the call {call_id!r}")


def _openai(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, message in enumerate(messages):
        for part in parts_of(message):
            if part["type"] in CALL_BLOCKS | RESULT_BLOCKS | REASONING_BLOCKS:
                yield Problem(index, "foreign-block", f"OpenAI chat knows no {part['type']!r} block")
        silent = message.get("content") in (None, [])
        if message["role"] == "assistant" and silent and not _speaks_otherwise(message):
            yield Problem(index, "content-missing", "an assistant message needs content, calls or a refusal")
        elif message["role"] != "assistant" and silent:
            yield Problem(index, "content-missing", "a list of parts needs at least one")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if not is_chat_call(call):
                yield Problem(index, "call-shape", "a call names what is called, and its arguments are JSON text")


def _responses(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, message in enumerate(messages):
        for call in calls_of(message):
            if len(call.id) > RESPONSES_CALL_ID:
                yield Problem(index, "call-id", f"a call id has {len(call.id)} characters; {RESPONSES_CALL_ID} at most")


def is_chat_call(call: Any) -> bool:
    """Whether a call has OpenAI's form: under the name of its type, what is called with which text."""
    holders = [(call.get(kind), given) for kind, given in CHAT_CALLS.items()] if isinstance(call, Mapping) else []
    return any(isinstance(inner, Mapping) and isinstance(inner.get(given), str) for inner, given in holders)


def _speaks_otherwise(message: Mapping[str, Any]) -> bool:
    return any(message.get(key) for key in ("tool_calls", "function_call", "refusal", "audio"))


def _anthropic(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    first = next((i for i, m in enumerate(messages) if m["role"] not in SYSTEM_ROLES), None)
    if first is not None and messages[first]["role"] == "assistant":
        yield Problem(first, "starts-with-assistant", "the first message must be the user's")
    seen: set[str] = set()
    for index, message in enumerate(messages):
        if is_empty(message):
            yield Problem(index, "empty-content", "a message must say something")
        for call in calls_of(message):
            if call.id in seen:
                yield Problem(index, "reused-call-id", f"an earlier message made a call {call.id!r} too")
            seen.add(call.id)
        yield from _anthropic_blocks(index, message)


def _anthropic_blocks(index: int, message: Mapping[str, Any]) -> Iterator[Problem]:
    other = False
    for part in parts_of(message):
        if BLOCK_ROLES.get(part["type"], message["role"]) != message["role"]:
            yield Problem(index, "misplaced-block", f"a {message['role']} message cannot hold a {part['type']!r} block")
        if part["type"] in CALL_BLOCKS and not ANTHROPIC_CALL_ID.fullmatch(str(part.get("id"))):
            yield Problem(index, "call-id", f"the call id {part.get('id')!r} may hold letters, digits, _ and - only")
        if part["type"] in RESULT_BLOCKS and other:
            yield Problem(index, "result-after-text", "tool results come before anything else in a message")
        other = other or part["type"] not in RESULT_BLOCKS


def is_empty(message: Mapping[str, Any]) -> bool:
    """Whether a message says nothing at all: blank, without calls, results, media or reasoning."""
    if message.get("role") in ("tool", "function") or calls_of(message) or _speaks_otherwise(message):
        return False
    return not any(kind_of(part) not in _TEXT or content_text([part]).strip() for part in parts_of(message))


_TEXT = frozenset({"text", "input_text", "output_text"})
_CHECKS: dict[str, tuple[Check, ...]] = {
    "openai": (_calls, _pairs, _openai),
    "openai_responses": (_calls, _pairs, _openai, _responses),
    "anthropic": (_calls, _pairs, _anthropic),
}
