"""Decode Gemini's contents.

A decoded message keeps its native content, so that thought signatures stay with the calls they sign.

Gemini gives calls no ids: a call gets one from its name and arguments, and a response answers the first open call of
its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from everthread.core.json_values import as_text
from everthread.core.messages import (
    Content,
    Message,
    ToolCallDict,
    make_call,
    parts_of,
    simplify_parts,
)
from everthread.errors import WireError
from everthread.wire.alternating_roles import share_native_value, split_at_results
from everthread.wire.gemini.field_names import get_object_field
from everthread.wire.gemini.gemini_parts import (
    API,
    decode_part,
    decode_parts,
    read_response,
)
from everthread.wire.native_values import (
    with_native,
)
from everthread.wire.payload_checks import (
    list_or_empty,
    require_list,
    require_object,
    require_objects,
    require_text,
)

_ROLES = ("user", "model", "function")


class _OpenCall(NamedTuple):
    """A call without a response. `native_id` is empty if the client gave none."""

    id: str
    native_id: str
    name: str


@dataclass(slots=True)
class GeminiCallIds:
    """The ids of the calls in a list of contents, and the calls that no response has answered yet."""

    use_counts: dict[str, int] = field(default_factory=dict)
    open_calls: list[_OpenCall] = field(default_factory=list)

    def forget_open_calls(self) -> None:
        """Forget open calls, because a new model turn begins."""
        self.open_calls = []

    def assign_id(self, call: Mapping[str, Any]) -> str:
        native_id = as_text(call.get("id"))
        name = as_text(call.get("name"))
        call_id = native_id or self._make_unique(
            _derive_call_id(name, call.get("args"), len(self.open_calls))
        )
        self.open_calls.append(_OpenCall(call_id, native_id, name))
        return call_id

    def match_response(self, response: Mapping[str, Any]) -> str:
        """Return the id of the call that a response answers: by its native id, else the first open one of its name."""
        native_id = as_text(response.get("id"))
        name = as_text(response.get("name"))
        matches_by_id = [
            call for call in self.open_calls if native_id and call.native_id == native_id
        ]
        matches_by_name = [
            call for call in self.open_calls if call.name == name and not call.native_id
        ]
        matches = [*matches_by_id, *matches_by_name]
        if not matches:
            return native_id or f"call_{name or 'unknown'}"
        self.open_calls.remove(matches[0])
        return matches[0].id

    def _make_unique(self, call_id: str) -> str:
        self.use_counts[call_id] = count = self.use_counts.get(call_id, 0) + 1
        return call_id if count == 1 else f"{call_id}_{count}"


def _derive_call_id(name: str, arguments: Any, position: int) -> str:
    text = json.dumps([name, arguments, position], sort_keys=True, ensure_ascii=False)
    return f"call_{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def decode_messages(
    wire_contents: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
    previous_content: Mapping[str, Any] | None = None,
) -> list[Message]:
    """Return core messages.

    `model`: author of the thoughts. `previous_content`: the content before the first one, whose calls may be answered.
    """
    call_ids = GeminiCallIds()
    if previous_content is not None:
        decode_content(previous_content, "the content before", call_ids, model=model)
    decoded: list[Message] = []
    for index, content in enumerate(require_list(wire_contents, "contents")):
        decoded += decode_content(content, f"contents[{index}]", call_ids, model=model)
    return decoded


def decode_content(
    content: Any,
    path: str,
    call_ids: GeminiCallIds | None = None,
    *,
    model: str | None = None,
) -> list[Message]:
    """Decode one content: one message, or several if it holds function responses."""
    content = require_object(content, path)
    call_ids = call_ids or GeminiCallIds()
    role = content.get("role") or "user"
    if role not in _ROLES:
        raise WireError(f"{path}.role must be one of {', '.join(_ROLES)}, not {role!r}")
    part_list = list_or_empty(content.get("parts"), f"{path}.parts")
    parts = require_objects(part_list, f"{path}.parts")
    if role == "model":
        call_ids.forget_open_calls()
        return [with_native(_decode_assistant(parts, call_ids, path), API, content, model=model)]
    return _decode_user(content, parts, call_ids, path)


def _decode_assistant(
    parts: Sequence[Mapping[str, Any]], call_ids: GeminiCallIds, path: str
) -> Message:
    visible_parts: list[Mapping[str, Any]] = []
    calls: list[ToolCallDict] = []
    for part in parts:
        call = get_object_field(part, "functionCall")
        if call is not None:
            calls.append(_decode_call(call, call_ids, path))
        elif not part.get("thought"):
            visible_parts.append(part)
    content = simplify_parts(decode_parts(visible_parts))
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    reasoning = "".join(as_text(part.get("text")) for part in parts if part.get("thought"))
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def _decode_call(call: Mapping[str, Any], call_ids: GeminiCallIds, path: str) -> ToolCallDict:
    name = require_text(call.get("name"), f"{path}: the name of a functionCall")
    arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
    return make_call(call_ids.assign_id(call), name, arguments=arguments)


def _decode_user(
    content: Mapping[str, Any],
    parts: Sequence[Mapping[str, Any]],
    call_ids: GeminiCallIds,
    path: str,
) -> list[Message]:
    decoded_runs: list[tuple[Message, Sequence[Mapping[str, Any]]]] = []
    for _, run in split_at_results(parts, _is_result):
        response = get_object_field(run[0], "functionResponse") if run else None
        if response is not None:
            decoded_runs.append((_decode_result(response, call_ids, path), run))
        else:
            user_parts = [decode_part(part) for part in run]
            decoded_runs.append(({"role": "user", "content": user_parts}, run))
    return share_native_value(decoded_runs, content, "parts", api=API)


def _is_result(part: Mapping[str, Any]) -> bool:
    return get_object_field(part, "functionResponse") is not None


def _decode_result(response: Mapping[str, Any], call_ids: GeminiCallIds, path: str) -> Message:
    name = require_text(response.get("name"), f"{path}: the name of a functionResponse")
    text, is_error = read_response(response.get("response"))
    media = [decode_part(part) for part in parts_of({"content": response.get("parts")})]
    content: Content = [{"type": "text", "text": text}, *media] if media else text
    message: Message = {
        "role": "tool",
        "tool_call_id": call_ids.match_response(response),
        "name": name,
        "content": content,
    }
    return {**message, "is_error": True} if is_error else message
