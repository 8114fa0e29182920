"""Find and repair what a provider would refuse in a list of messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from everthread.core.messages import (
    CALL_BLOCKS,
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    SYSTEM_ROLES,
    Call,
    Message,
    Part,
    as_text,
    calls_of,
    content_text,
    json_text,
    kind_of,
    parts_of,
    results_of,
    with_content,
    without_native_value,
)
from everthread.errors import InputError

ROLES = frozenset({*SYSTEM_ROLES, "user", "assistant", "tool", "function"})
ANTHROPIC_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
MAX_RESPONSES_ID_CHARS = 64
"""Characters of a call's id."""
CHAT_CALLS = {"function": "arguments", "custom": "input"}
"""The types of call in OpenAI's form, with the field that holds what the tool is given."""
BLOCK_ROLES = {
    **dict.fromkeys(CALL_BLOCKS, "assistant"),
    **dict.fromkeys(RESULT_BLOCKS, "user"),
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

    `openai` (chat), `openai_responses` or `anthropic`. For Responses too the list is in the core's form, as a codec
    makes its items from it.
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
            yield from _content_shape(index, message)


def _content_shape(index: int, message: Mapping[str, Any]) -> Iterator[Problem]:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant":
            yield Problem(
                index, "content-missing", f"a {message['role']} message needs content"
            )
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
                yield Problem(
                    index, "duplicate-call", f"two calls share the id {call.id!r}"
                )
            if not call.name:
                yield Problem(
                    index, "call-without-name", f"the call {call.id!r} names no tool"
                )
            ids.add(call.id)


def _check_pairs(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Check that each call has exactly one result, directly after the message that made the call."""
    waiting: dict[str, int] = {}
    answered: set[str] = set()
    made_before: set[str] = set()
    for index, message in enumerate(messages):
        results = results_of(message)
        if not results and waiting:
            yield from _report_unanswered(waiting)
            waiting = {}
        for result in results:
            if result.call_id in waiting:
                del waiting[result.call_id]
                answered.add(result.call_id)
            elif result.call_id in answered:
                yield Problem(
                    index,
                    "duplicate-result",
                    f"the call {result.call_id!r} was answered before",
                )
            elif result.call_id in made_before:
                problem = f"the result of {result.call_id!r} does not directly follow its call"
                yield Problem(index, "misplaced-result", problem)
            else:
                yield Problem(
                    index,
                    "orphan-result",
                    f"no earlier message makes the call {result.call_id!r}",
                )
        if calls := calls_of(message):
            yield from _report_unanswered(waiting)
            waiting = {call.id: index for call in calls}
            answered -= waiting.keys()
            made_before |= waiting.keys()
    yield from _report_unanswered(waiting)


def _report_unanswered(waiting: Mapping[str, int]) -> Iterator[Problem]:
    for call_id, index in waiting.items():
        yield Problem(
            index,
            "missing-result",
            f"nothing directly after it answers the call {call_id!r}",
        )


def _check_openai(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, message in enumerate(messages):
        for part in parts_of(message):
            if part["type"] in CALL_BLOCKS | RESULT_BLOCKS | REASONING_BLOCKS:
                yield Problem(
                    index,
                    "foreign-block",
                    f"OpenAI chat knows no {part['type']!r} block",
                )
        silent = message.get("content") in (None, [])
        if (
            message["role"] == "assistant"
            and silent
            and not _has_more_than_content(message)
        ):
            yield Problem(
                index,
                "content-missing",
                "an assistant message needs content, calls or a refusal",
            )
        elif message["role"] != "assistant" and silent:
            yield Problem(
                index, "content-missing", "a list of parts needs at least one"
            )
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if not is_chat_call(call):
                yield Problem(
                    index,
                    "call-shape",
                    "a call names what is called, and its arguments are JSON text",
                )


def _check_responses(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, message in enumerate(messages):
        for call in calls_of(message):
            if len(call.id) > MAX_RESPONSES_ID_CHARS:
                yield Problem(
                    index,
                    "call-id",
                    f"a call id has {len(call.id)} characters; {MAX_RESPONSES_ID_CHARS} at most",
                )


def is_chat_call(call: Any) -> bool:
    """Return whether a call has OpenAI's form: name and arguments under the key of its type."""
    for kind, key in CHAT_CALLS.items() if isinstance(call, Mapping) else ():
        inner = call.get(kind)
        if isinstance(inner, Mapping) and isinstance(inner.get(key), str):
            return True
    return False


def _has_more_than_content(message: Mapping[str, Any]) -> bool:
    return any(
        message.get(key) for key in ("tool_calls", "function_call", "refusal", "audio")
    )


def _is_compaction(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a compaction that the provider made: it comes first."""
    return any(kind_of(part) == "compaction" for part in parts_of(message))


def _check_anthropic(messages: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    first = next(
        (i for i, m in enumerate(messages) if m["role"] not in SYSTEM_ROLES), None
    )
    if (
        first is not None
        and messages[first]["role"] == "assistant"
        and not _is_compaction(messages[first])
    ):
        yield Problem(
            first, "starts-with-assistant", "the first message must be the user's"
        )
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
        yield from _anthropic_blocks(index, message)


def _anthropic_blocks(index: int, message: Mapping[str, Any]) -> Iterator[Problem]:
    other = False
    for part in parts_of(message):
        if BLOCK_ROLES.get(part["type"], message["role"]) != message["role"]:
            yield Problem(
                index,
                "misplaced-block",
                f"a {message['role']} message cannot hold a {part['type']!r} block",
            )
        if part["type"] in CALL_BLOCKS and not ANTHROPIC_CALL_ID.fullmatch(
            str(part.get("id"))
        ):
            yield Problem(
                index,
                "call-id",
                f"the call id {part.get('id')!r} may hold letters, digits, _ and - only",
            )
        if part["type"] in RESULT_BLOCKS and other:
            yield Problem(
                index,
                "result-after-text",
                "tool results come before anything else in a message",
            )
        other = other or part["type"] not in RESULT_BLOCKS


def is_empty(message: Mapping[str, Any]) -> bool:
    """Return whether a message says nothing at all: blank, without calls, results, media or reasoning."""
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
    "openai": (_check_calls, _check_pairs, _check_openai),
    "openai_responses": (_check_calls, _check_pairs, _check_openai, _check_responses),
    "anthropic": (_check_calls, _check_pairs, _check_anthropic),
}


STUB_RESULT = "[No result: the call was interrupted or its output was removed]"
OPENING = (
    "<system-reminder>The conversation begins with the assistant.</system-reminder>"
)
_ROLE_NAMES = {
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "bot": "assistant",
}


@dataclass(frozen=True, slots=True)
class Repair:
    """A repaired list and the actions taken, one sentence each."""

    messages: list[Message]
    actions: list[str]
    places: list[int | None]
    """For each message its index in the original list; None if it is new or changed."""


def repair_messages(
    messages: Sequence[Mapping[str, Any]], *, in_flight: bool = False
) -> list[Message]:
    """Return a list every provider accepts. `in_flight`: calls still open at the end are left open."""
    return repair(messages, in_flight=in_flight).messages


def repair(messages: Sequence[Mapping[str, Any]], *, in_flight: bool = False) -> Repair:
    """Like `repair_messages`, and report the actions taken."""
    plain = _repair_plain(messages, in_flight=in_flight)
    if plain is not None:
        return plain
    work = _Work()
    entries = list(work.read(messages))
    answers = work.pair_results(entries)
    open_group = _trailing_group(entries) if in_flight else None
    for entry in entries:
        if entry.calls:
            work.put_group(
                entry, answers.get(entry.source, {}), leave_open=entry is open_group
            )
        elif entry.blocks:
            work.put_rest(entry)
        elif is_empty(entry.message):
            work.did(entry.source, "removed: it says nothing")
        else:
            work.put(entry.message, entry.source)
    work.open_with_user()
    pairs = zip(work.out, work.sources, strict=True)
    places = [
        source if source is not None and message is messages[source] else None
        for message, source in pairs
    ]
    return Repair(work.out, work.actions, places)


def _repair_plain(messages: Sequence[Any], *, in_flight: bool) -> Repair | None:
    """Add a stub for every call without a result, in one fast pass; None if more may be needed."""
    mended = Repair([], [], [])
    ids: set[str] = set()
    waiting: dict[str, int] = {}
    user_spoke = False
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role == "tool":
            answered = message.get("tool_call_id")
            if not (
                isinstance(answered, str)
                and answered in waiting
                and isinstance(message.get("content"), str)
            ):
                return None
            del waiting[answered]
        else:
            user_spoke = user_spoke or role == "user"
            calls = message.get("tool_calls", ()) if role == "assistant" else ()
            has_role = (
                isinstance(role, str)
                and role in ROLES
                and (user_spoke or role in SYSTEM_ROLES)
            )
            if not has_role or not _is_plain(message, calls):
                return None
            _add_stubs(mended, waiting)
            waiting = {call["id"]: index for call in calls}
            if len(waiting) < len(calls) or not ids.isdisjoint(waiting):
                return None
            ids.update(waiting)
        mended.messages.append(message)
        mended.places.append(index)
    if not in_flight:
        _add_stubs(mended, waiting)
    return mended


def _add_stubs(mended: Repair, waiting: Mapping[str, int]) -> None:
    """Answer the calls that wait; each with the place of its message."""
    for call_id, source in waiting.items():
        mended.actions.append(_stub_action(source, call_id))
        mended.messages.append(
            {"role": "tool", "tool_call_id": call_id, "content": STUB_RESULT}
        )
        mended.places.append(None)


def _stub_action(source: int, call_id: str) -> str:
    return f"message {source}: call {call_id!r} got a stub result: it has none"


def _is_plain(message: Mapping[str, Any], calls: Any) -> bool:
    """Return whether a message has the usual form: text or plain parts, calls in OpenAI's form."""
    content = message.get("content")
    if isinstance(content, list):
        if not all(
            kind_of(part) and part["type"] not in BLOCK_ROLES for part in content
        ):
            return False
    elif not isinstance(content, str) and (content is not None or not calls):
        return False
    if "tool_calls" in message:
        return (
            isinstance(calls, list) and bool(calls) and all(map(_is_plain_call, calls))
        )
    return bool(content.strip()) if isinstance(content, str) else not is_empty(message)


def _is_plain_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return False
    return _is_name(function.get("name")) and _is_name(call.get("id"))


class _Entry(NamedTuple):
    """A readable message, its index in the source, its calls and the calls it answers."""

    source: int
    message: Message
    calls: list[Call]
    blocks: list[Part]


class _Work:
    """The repaired list while it is made."""

    def __init__(self) -> None:
        self.out: list[Message] = []
        self.sources: list[int | None] = []
        """For each message of `out` the one it is, or was made from."""
        self.actions: list[str] = []
        self.taken: dict[str, int] = {}

    def put(self, message: Message, source: int | None) -> None:
        self.out.append(message)
        self.sources.append(source)

    def did(self, source: int, what: str) -> None:
        self.actions.append(f"message {source}: {what}")

    def read(self, messages: Sequence[Any]) -> Iterator[_Entry]:
        for source, message in enumerate(messages):
            role = message.get("role") if isinstance(message, Mapping) else None
            role = _ROLE_NAMES.get(role, role) if isinstance(role, str) else None
            if role not in ROLES:
                self.did(source, "removed: it is no message of a known role")
                continue
            fixed = _correct_message(message, role)
            if fixed is not message:
                self.did(source, "its shape was corrected")
            yield _Entry(source, fixed, calls_of(fixed), _result_blocks(fixed))

    def pair_results(
        self, entries: Sequence[_Entry]
    ) -> dict[int, dict[int, tuple[Part, int]]]:
        """Map the position of each call to its first result, for each message with calls, in the results' order."""
        answers: dict[int, dict[int, tuple[Part, int]]] = {}
        waiting: dict[str, list[tuple[int, int]]] = {}
        last_other = -1
        for entry in entries:
            for block in entry.blocks:
                owners = waiting.get(block["tool_use_id"])
                if not owners:
                    self.did(
                        entry.source,
                        f"result of {block['tool_use_id']!r} removed: no open call has that id",
                    )
                    continue
                owner, position = owners.pop(0)
                answers.setdefault(owner, {})[position] = block, entry.source
                if last_other > owner:
                    self.did(
                        entry.source,
                        f"result of {block['tool_use_id']!r} moved to its call",
                    )
            last_other = last_other if entry.blocks else entry.source
            waiting |= {call.id: [] for call in entry.calls}
            for position, call in enumerate(entry.calls):
                waiting[call.id].append((entry.source, position))
        return answers

    def put_group(
        self,
        entry: _Entry,
        answers: Mapping[int, tuple[Part, int]],
        *,
        leave_open: bool,
    ) -> None:
        """Append the message with its calls, then one result per call."""
        source = entry.source
        message = entry.message
        old = [call.id for call in entry.calls]
        in_blocks = any(part["type"] in CALL_BLOCKS for part in parts_of(message))
        ids = [
            self.unique_id(_block_id(call_id) if in_blocks else call_id)
            for call_id in old
        ]
        if ids != old:
            self.did(source, "call ids made unique and valid")
            message = with_call_ids(message, ids)
        self.put(message, source)
        blocks: list[tuple[Part, int | None]] = [
            ({**block, "tool_use_id": ids[at]} if ids[at] != old[at] else block, origin)
            for at, (block, origin) in answers.items()
        ]
        for position, call_id in enumerate(ids):
            if position not in answers and not leave_open:
                self.actions.append(_stub_action(source, call_id))
                blocks.append(
                    (
                        {
                            "type": "tool_result",
                            "tool_use_id": call_id,
                            "content": STUB_RESULT,
                        },
                        None,
                    )
                )
        if not in_blocks:
            for block, origin in blocks:
                self.put(_tool_message(block), origin)
        elif blocks:
            self.put(
                {"role": "user", "content": [_bare(block) for block, _ in blocks]}, None
            )

    def unique_id(self, call_id: str) -> str:
        """Return the id, or a new one if it is empty or taken. Depends on earlier messages only."""
        candidate = call_id
        while not candidate or candidate in self.taken:
            self.taken[call_id] = self.taken.get(call_id, 0) + 1
            candidate = f"{call_id or 'call'}_{self.taken[call_id]}"
        self.taken[candidate] = 1
        return candidate

    def put_rest(self, entry: _Entry) -> None:
        """Keep the rest of a message with results; the results follow their calls."""
        if entry.message["role"] == "tool":
            return
        content = parts_of(entry.message)
        rest = [part for part in content if part["type"] not in RESULT_BLOCKS]
        if is_empty({"role": "user", "content": rest}):
            rest = []
        if (
            any(part["type"] in RESULT_BLOCKS for part in content[-len(rest) :])
            and rest
        ):
            self.did(entry.source, "its results were put before its words")
        last = self.out[-1] if self.out else None
        if last is not None and last["role"] == "user" and results_of(last):
            joined = [*parts_of(last), *rest]
            self.out[-1] = (
                entry.message if joined == content else with_content(last, joined)
            )
            self.sources[-1] = entry.source
        elif rest:
            self.put(with_content(entry.message, rest), entry.source)

    def open_with_user(self) -> None:
        """Insert an empty opening if the list does not begin with the user, as Anthropic requires."""
        first = next(
            (i for i, m in enumerate(self.out) if m["role"] not in SYSTEM_ROLES), None
        )
        if (
            first is not None
            and self.out[first]["role"] != "user"
            and not _is_compaction(self.out[first])
        ):
            self.out.insert(first, {"role": "user", "content": OPENING})
            self.sources.insert(first, None)
            self.actions.append(
                "an opening user message was put before the assistant's first"
            )


def _trailing_group(entries: Sequence[_Entry]) -> _Entry | None:
    """Return the last message with calls, if nothing but results comes after it."""
    for entry in entries[::-1]:
        if entry.calls:
            return entry
        if entry.message["role"] != "tool" and not (
            entry.blocks and entry.blocks == parts_of(entry.message)
        ):
            return None
    return None


def _correct_message(message: Mapping[str, Any], role: str) -> Message:
    """Return the message itself if its shape is right, else a corrected copy."""
    changes: dict[str, Any] = {}
    content = message.get("content")
    calls = message.get("tool_calls")
    if role != message["role"]:
        changes["role"] = role
    if isinstance(content, list):
        parts = [
            part for each in content if (part := _correct_part(each, role)) is not None
        ]
        if not _same(parts, content) or not (parts or role == "assistant"):
            changes["content"] = parts or ""
    elif not isinstance(content, str) and (content is not None or role != "assistant"):
        changes["content"] = content_text(content)
    if "tool_calls" in message:
        listed = calls if isinstance(calls, list) else []
        proper = [call for each in listed if (call := _correct_call(each)) is not None]
        if not proper or not _same(proper, listed):
            changes["tool_calls"] = proper
    if not changes:
        return cast("Message", message)
    copy = dict(without_native_value(message)) | changes
    if not copy.get("tool_calls"):
        copy.pop("tool_calls", None)
        if role == "assistant" and copy.get("content") is None:
            copy["content"] = ""
    return cast("Message", copy)


def _same(new: Sequence[Any], old: Sequence[Any]) -> bool:
    return len(new) == len(old) and all(
        one is other for one, other in zip(new, old, strict=True)
    )


def _correct_call(call: Any) -> Any:
    """Return the call with a type and text arguments; None if it names no tool."""
    for kind, key in CHAT_CALLS.items():
        inner = call.get(kind) if isinstance(call, dict) else None
        if isinstance(inner, dict) and _is_name(inner.get("name")):
            if is_chat_call(call):
                return call
            return {
                **call,
                "type": kind,
                kind: {**inner, key: json_text(inner.get(key)) or "{}"},
            }
    return None


def _correct_part(part: Any, role: str) -> Part | None:
    """Return the part with a type; None if it is not a part, or not allowed for this role."""
    if not isinstance(part, dict):
        return None if part is None else {"type": "text", "text": str(part)}
    if not isinstance(part.get("type"), str):
        return {**part, "type": "text", "text": str(part.get("text", ""))}
    if BLOCK_ROLES.get(part["type"], role) != role:
        return None
    if part["type"] in CALL_BLOCKS and not _is_name(part.get("name")):
        return {"type": "text", "text": "[a tool call without a name was here]"}
    return part


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _block_id(call_id: str) -> str:
    """Return the id with only those characters that Anthropic accepts in the id of a call block."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)


def _result_blocks(message: Message) -> list[Part]:
    """Return the results of a message as `tool_result` blocks; a tool message remembers itself in `_message`."""
    if message["role"] == "tool":
        return [
            {"tool_use_id": as_text(message.get("tool_call_id")), "_message": message}
        ]
    if not isinstance(message.get("content"), list):
        return []
    return [
        part
        if isinstance(part.get("tool_use_id"), str)
        else {**part, "tool_use_id": ""}
        for part in parts_of(message)
        if part["type"] in RESULT_BLOCKS
    ]


def _bare(block: Part) -> Part:
    """Return a result as a `tool_result` block."""
    source = block.get("_message")
    if source is None:
        return block
    failed = {"is_error": True} if source.get("is_error") is True else {}
    return {
        "type": "tool_result",
        "tool_use_id": block["tool_use_id"],
        "content": source.get("content"),
        **failed,
    }


def _tool_message(block: Part) -> Message:
    """Return a result as a `tool` message; the original object if it is one already."""
    source = cast("Message | None", block.get("_message"))
    if source is None:
        content = block.get("content")
        body = (
            content if isinstance(content, list) and content else content_text(content)
        )
        message: Message = {
            "role": "tool",
            "tool_call_id": block["tool_use_id"],
            "content": body,
        }
        return (
            {**message, "is_error": True} if block.get("is_error") is True else message
        )
    if source.get("tool_call_id") == block["tool_use_id"]:
        return source
    copy = without_native_value(source)
    copy["tool_call_id"] = block["tool_use_id"]
    return copy


def with_call_ids(message: Message, ids: Sequence[str]) -> Message:
    """Return a copy whose calls carry these ids: blocks first, then `tool_calls`, the order of `calls_of`."""
    remaining = iter(ids)
    copy: dict[str, Any] = dict(without_native_value(message))
    if isinstance(message.get("content"), list):
        copy["content"] = [
            {**part, "id": next(remaining)} if part.get("type") in CALL_BLOCKS else part
            for part in parts_of(message)
        ]
    if "tool_calls" in message:
        calls: list[Any] = copy["tool_calls"]
        copy["tool_calls"] = [
            {**call, "id": next(remaining)} if isinstance(call, dict) else call
            for call in calls
        ]
    return cast("Message", copy)
