"""Find everything in a list of messages that a provider would refuse."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    REASONING_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    SYSTEM_ROLES,
    calls_of,
    content_text,
    count_leading_system_messages,
    kind_of,
    parts_of,
    results_of,
)
from everthread.errors import InputError

ROLES = frozenset({*SYSTEM_ROLES, "user", "assistant", "tool", "function"})
ANTHROPIC_CALL_ID_PATTERN = re.compile(r"[a-zA-Z0-9_-]+")
MAX_RESPONSES_CALL_ID_CHARS = 64
"""Maximum characters of a call id."""
ARGUMENT_FIELD_BY_CALL_TYPE = {"function": "arguments", "custom": "input"}
"""Types of calls in OpenAI's form, each with the field of its arguments."""
BLOCK_ROLES = {
    **dict.fromkeys(CALL_BLOCK_KINDS, "assistant"),
    **dict.fromkeys(RESULT_BLOCK_KINDS, "user"),
}
"""Roles allowed for each kind of block; other kinds are allowed for all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason a provider would refuse the list: where, which rule, in words."""

    index: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"message {self.index}: {self.message} [{self.rule}]"


Check = Callable[[Sequence[Mapping[str, Any]]], Iterator[Problem]]


def validate_messages(
    messages: Sequence[Mapping[str, Any]], *, api: str = "openai"
) -> list[Problem]:
    """Return every problem `api` would have with the list, in message order.

    `api` is `openai` (chat), `openai_responses` or `anthropic`. The list is in core form for all of them.
    """
    if api not in _CHECKS:
        raise InputError(f"api={api!r} is unknown; use one of: {', '.join(_CHECKS)}")
    shapes = list(_check_shapes(messages))
    if shapes:
        return shapes
    problems = [problem for check in _CHECKS[api] for problem in check(messages)]
    return sorted(problems, key=lambda problem: problem.index)


def _check_shapes(messages: Sequence[Any]) -> Iterator[Problem]:
    """Check that the list is readable; the other checks rely on it."""
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            yield Problem(
                index,
                "not-an-object",
                f"a message is an object, this is {type(message).__name__}",
            )
        elif not isinstance(message.get("role"), str) or message["role"] not in ROLES:
            yield Problem(
                index,
                "unknown-role",
                f"role {message.get('role')!r} is none of {', '.join(sorted(ROLES))}",
            )
        else:
            yield from _check_content_shape(index, message)


def _check_content_shape(index: int, message: Mapping[str, Any]) -> Iterator[Problem]:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant":
            yield Problem(index, "content-missing", f"a {message['role']} message needs content")
    elif not isinstance(content, str | list):
        yield Problem(
            index,
            "content-type",
            f"content is text or a list of parts, this is {type(content).__name__}",
        )
    elif isinstance(content, list):
        for position, part in enumerate(content):
            if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
                yield Problem(
                    index,
                    "part-type",
                    f"part {position} of the content is not an object with a type",
                )


def _check_calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, message in enumerate(messages):
        if "tool_calls" in message and (
            not isinstance(message["tool_calls"], list) or not message["tool_calls"]
        ):
            yield Problem(
                index,
                "empty-tool-calls",
                "tool_calls must be a list with at least one call, or absent",
            )
        ids: set[str] = set()
        for call in calls_of(message):
            if not call.id:
                yield Problem(
                    index,
                    "call-without-id",
                    f"the call of {call.name or 'a tool'} has no id",
                )
            elif call.id in ids:
                yield Problem(index, "duplicate-call", f"two calls share the id {call.id!r}")
            if not call.name:
                yield Problem(index, "call-without-name", f"the call {call.id!r} names no tool")
            ids.add(call.id)


def _check_pairs(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Check that each call has exactly one result, directly after the message that made the call."""
    open_calls: dict[str, int] = {}
    answered_ids: set[str] = set()
    earlier_ids: set[str] = set()
    for index, message in enumerate(messages):
        results = results_of(message)
        if not results and open_calls:
            yield from _report_unanswered(open_calls)
            open_calls = {}
        for result in results:
            if result.call_id in open_calls:
                del open_calls[result.call_id]
                answered_ids.add(result.call_id)
            elif result.call_id in answered_ids:
                yield Problem(
                    index,
                    "duplicate-result",
                    f"the call {result.call_id!r} was answered before",
                )
            elif result.call_id in earlier_ids:
                problem = f"the result of {result.call_id!r} does not directly follow its call"
                yield Problem(index, "misplaced-result", problem)
            else:
                yield Problem(
                    index,
                    "orphan-result",
                    f"no earlier message makes the call {result.call_id!r}",
                )
        if calls := calls_of(message):
            yield from _report_unanswered(open_calls)
            open_calls = {call.id: index for call in calls}
            answered_ids -= open_calls.keys()
            earlier_ids |= open_calls.keys()
    yield from _report_unanswered(open_calls)


def _report_unanswered(open_calls: Mapping[str, int]) -> Iterator[Problem]:
    for call_id, index in open_calls.items():
        yield Problem(
            index,
            "missing-result",
            f"nothing directly after it answers the call {call_id!r}",
        )


def _check_for_openai_chat(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, message in enumerate(messages):
        for part in parts_of(message):
            if part["type"] in CALL_BLOCK_KINDS | RESULT_BLOCK_KINDS | REASONING_BLOCK_KINDS:
                yield Problem(
                    index,
                    "foreign-block",
                    f"OpenAI chat knows no {part['type']!r} block",
                )
        has_no_content = message.get("content") in (None, [])
        if (
            message["role"] == "assistant"
            and has_no_content
            and not _has_more_than_content(message)
        ):
            yield Problem(
                index,
                "content-missing",
                "an assistant message needs content, calls or a refusal",
            )
        elif message["role"] != "assistant" and has_no_content:
            yield Problem(index, "content-missing", "a list of parts needs at least one")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if not is_chat_call(call):
                yield Problem(
                    index,
                    "call-shape",
                    "a call names what is called, and its arguments are JSON text",
                )


def _check_for_responses_api(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, message in enumerate(messages):
        for call in calls_of(message):
            if len(call.id) > MAX_RESPONSES_CALL_ID_CHARS:
                yield Problem(
                    index,
                    "call-id",
                    f"a call id has {len(call.id)} characters; {MAX_RESPONSES_CALL_ID_CHARS} at most",
                )


def is_chat_call(call: Any) -> bool:
    """Return whether a call has OpenAI's form: name and arguments under the key of its type."""
    for kind, key in ARGUMENT_FIELD_BY_CALL_TYPE.items() if isinstance(call, Mapping) else ():
        inner = call.get(kind)
        if isinstance(inner, Mapping) and isinstance(inner.get(key), str):
            return True
    return False


def _has_more_than_content(message: Mapping[str, Any]) -> bool:
    return any(message.get(key) for key in ("tool_calls", "function_call", "refusal", "audio"))


def is_provider_compaction(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a compaction made by the provider, which may come first."""
    return any(kind_of(part) == "compaction" for part in parts_of(message))


def _check_for_anthropic(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    first_index = count_leading_system_messages(messages)
    if (
        first_index < len(messages)
        and messages[first_index]["role"] == "assistant"
        and not is_provider_compaction(messages[first_index])
    ):
        yield Problem(first_index, "starts-with-assistant", "the first message must be the user's")
    ids: set[str] = set()
    for index, message in enumerate(messages):
        if is_empty(message):
            yield Problem(index, "empty-content", "a message must say something")
        for call in calls_of(message):
            if call.id in ids:
                yield Problem(
                    index,
                    "reused-call-id",
                    f"an earlier message made a call {call.id!r} too",
                )
            ids.add(call.id)
        yield from _check_anthropic_blocks(index, message)


def _check_anthropic_blocks(index: int, message: Mapping[str, Any]) -> Iterator[Problem]:
    has_other_block = False
    for part in parts_of(message):
        if BLOCK_ROLES.get(part["type"], message["role"]) != message["role"]:
            yield Problem(
                index,
                "misplaced-block",
                f"a {message['role']} message cannot hold a {part['type']!r} block",
            )
        if part["type"] in CALL_BLOCK_KINDS and not ANTHROPIC_CALL_ID_PATTERN.fullmatch(
            str(part.get("id"))
        ):
            yield Problem(
                index,
                "call-id",
                f"the call id {part.get('id')!r} may hold letters, digits, _ and - only",
            )
        if part["type"] in RESULT_BLOCK_KINDS and has_other_block:
            yield Problem(
                index,
                "result-after-text",
                "tool results come before anything else in a message",
            )
        has_other_block = has_other_block or part["type"] not in RESULT_BLOCK_KINDS


def is_empty(message: Mapping[str, Any]) -> bool:
    """Return whether a message is blank, without calls, results, media or reasoning."""
    if (
        message.get("role") in ("tool", "function")
        or calls_of(message)
        or _has_more_than_content(message)
    ):
        return False
    return not any(
        kind_of(part) not in _TEXT_KINDS or content_text([part]).strip()
        for part in parts_of(message)
    )


_TEXT_KINDS = frozenset({"text", "input_text", "output_text"})
_CHECKS: dict[str, tuple[Check, ...]] = {
    "openai": (_check_calls, _check_pairs, _check_for_openai_chat),
    "openai_responses": (
        _check_calls,
        _check_pairs,
        _check_for_openai_chat,
        _check_for_responses_api,
    ),
    "anthropic": (_check_calls, _check_pairs, _check_for_anthropic),
}
