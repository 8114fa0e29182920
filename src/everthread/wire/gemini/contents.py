"""Gemini's contents, parts and tools <-> core.

Decoded messages keep their native content, which is written back verbatim, so that thought signatures stay with the
calls they sign. Gemini gives calls no ids: a call gets one from its name and arguments, and a response answers the
first open call of its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from everthread.core.message_repair import OPENING_TEXT
from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    Messages,
    Part,
    ToolCall,
    as_text,
    calls_of,
    content_text,
    kind_of,
    parts_of,
    results_of,
    simplify_parts,
)
from everthread.errors import WireError
from everthread.wire.common import (
    can_use_reasoning,
    group_by_role,
    list_or_empty,
    native_record,
    native_value,
    require_list,
    require_object,
    require_text,
    with_native,
)
from everthread.wire.gemini.fields import find_field_name, get_field, get_object_field
from everthread.wire.openai_chat import to_chat_messages

API = "gemini"
Content = dict[str, Any]

PLACEHOLDER_SIGNATURE = "skip_thought_signature_validator"
"""The signature that Google documents for calls that its model did not write."""
_ROLES = ("user", "model", "function")
_OUTPUT_KEYS = ("output", "result", "content", "response")
"""Names under which clients wrap a result that is one text."""
_INSTRUCTION_TEMPLATE = "<system-reminder>\n{}\n</system-reminder>"
_GENERATION_PATTERN = re.compile(r"gemini-(\d+)")
_FIRST_SIGNED_GENERATION = 3
"""The first generation of models that requires a signature at calls."""
_DATA_URL_PATTERN = re.compile(r"data:(?P<media>[^;,]*);base64,(?P<data>.*)", re.DOTALL)


class _OpenCall(NamedTuple):
    """A call without a response. `native_id` is empty if the client gave none."""

    id: str
    native_id: str
    name: str


@dataclass(slots=True)
class _CallIds:
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
            call
            for call in self.open_calls
            if native_id and call.native_id == native_id
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
    wire: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
    previous_content: Mapping[str, Any] | None = None,
) -> list[Message]:
    """Return core messages.

    `model`: author of the thoughts. `previous_content`: the content before the first one, whose calls may be answered.
    """
    call_ids = _CallIds()
    if previous_content is not None:
        decode_content(previous_content, "the content before", call_ids, model=model)
    decoded: list[Message] = []
    for index, content in enumerate(require_list(wire, "contents")):
        decoded += decode_content(content, f"contents[{index}]", call_ids, model=model)
    return decoded


def decode_content(
    content: Any,
    path: str,
    call_ids: _CallIds | None = None,
    *,
    model: str | None = None,
) -> list[Message]:
    """Decode one content: one message, or several if it holds function responses."""
    content = require_object(content, path)
    call_ids = call_ids or _CallIds()
    role = content.get("role") or "user"
    if role not in _ROLES:
        raise WireError(f"{path}.role must be one of {', '.join(_ROLES)}, not {role!r}")
    part_list = content.get("parts")
    parts = [
        require_object(part, f"{path}.parts[{index}]")
        for index, part in enumerate(list_or_empty(part_list, f"{path}.parts"))
    ]
    if role == "model":
        call_ids.forget_open_calls()
        return [
            with_native(
                _decode_assistant(parts, call_ids, path), API, content, model=model
            )
        ]
    return _decode_user(content, parts, call_ids, path)


def _decode_assistant(
    parts: Sequence[Mapping[str, Any]], call_ids: _CallIds, path: str
) -> Message:
    visible_parts = [
        part
        for part in parts
        if not part.get("thought") and get_object_field(part, "functionCall") is None
    ]
    message: Message = {
        "role": "assistant",
        "content": simplify_parts(_decode_parts(visible_parts)),
    }
    tool_calls = [
        _decode_call(call, call_ids, path)
        for part in parts
        if (call := get_object_field(part, "functionCall")) is not None
    ]
    if tool_calls:
        message["tool_calls"] = tool_calls
    reasoning = "".join(
        as_text(part.get("text")) for part in parts if part.get("thought")
    )
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def _decode_parts(parts: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return core parts, with neighbouring texts joined because a stream cuts a text anywhere."""
    decoded_parts: list[Part] = []
    for part in map(_decode_part, parts):
        if decoded_parts and decoded_parts[-1].keys() == part.keys() == {
            "type",
            "text",
        }:
            decoded_parts[-1] = {
                "type": "text",
                "text": decoded_parts[-1]["text"] + part["text"],
            }
        elif part != {"type": "text", "text": ""}:
            decoded_parts.append(part)
    return decoded_parts


def _decode_call(call: Mapping[str, Any], call_ids: _CallIds, path: str) -> ToolCall:
    name = require_text(call.get("name"), f"{path}: the name of a functionCall")
    arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
    return {
        "id": call_ids.assign_id(call),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _decode_user(
    content: Mapping[str, Any],
    parts: Sequence[Mapping[str, Any]],
    call_ids: _CallIds,
    path: str,
) -> list[Message]:
    runs = list(_split_at_responses(parts))
    if not runs:
        return [with_native({"role": "user", "content": []}, API, content)]
    decoded: list[Message] = []
    for run in runs:
        response = get_object_field(run[0], "functionResponse")
        core_message: Message
        if response is None:
            core_message = {
                "role": "user",
                "content": [_decode_part(part) for part in run],
            }
        else:
            core_message = _decode_result(response, call_ids, path)
        value = {**content, "parts": list(run)} if len(runs) > 1 else content
        decoded.append(
            with_native(core_message, API, value, continues_previous=bool(decoded))
        )
    return decoded


def _split_at_responses(
    parts: Sequence[Mapping[str, Any]],
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield each function response alone, and everything between two of them together."""
    start = 0
    for index, part in enumerate(parts):
        if get_object_field(part, "functionResponse") is not None:
            if start < index:
                yield parts[start:index]
            yield [part]
            start = index + 1
    if start < len(parts):
        yield parts[start:]


def _decode_result(
    response: Mapping[str, Any], call_ids: _CallIds, path: str
) -> Message:
    name = require_text(response.get("name"), f"{path}: the name of a functionResponse")
    text, is_error = _read_response(response.get("response"))
    media = [
        _decode_part(part) for part in parts_of({"content": response.get("parts")})
    ]
    content = [{"type": "text", "text": text}, *media] if media else text
    message: Message = {
        "role": "tool",
        "tool_call_id": call_ids.match_response(response),
        "name": name,
        "content": content,
    }
    return {**message, "is_error": True} if is_error else message


def _read_response(value: Any) -> tuple[str, bool]:
    """Return the text of a function's response, and whether it is an error."""
    if isinstance(value, Mapping) and len(value) == 1:
        [(key, result)] = value.items()
        if isinstance(result, str) and key in (*_OUTPUT_KEYS, "error"):
            return result, key == "error"
    return "" if value is None else json.dumps(value, ensure_ascii=False), False


def _decode_part(part: Mapping[str, Any]) -> Part:
    """Return a part in core form."""
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    blob = get_object_field(part, "inlineData")
    if blob is not None:
        return _decode_media(blob)
    for name, key in (("executableCode", "code"), ("codeExecutionResult", "output")):
        inner = get_object_field(part, name)
        if inner is not None:
            return {"type": "text", "text": as_text(inner.get(key))}
    file = get_object_field(part, "fileData")
    if file is not None:
        return {
            "type": "file",
            "file": {"file_id": as_text(get_field(file, "fileUri"))},
        }
    return {"type": next(iter(part), "part"), **part}


def _decode_media(blob: Mapping[str, Any]) -> Part:
    media = as_text(get_field(blob, "mimeType"))
    url = f"data:{media};base64,{as_text(blob.get('data'))}"
    if media.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    return {
        "type": "file",
        "file": {
            "filename": as_text(get_field(blob, "displayName")) or "file",
            "file_data": url,
        },
    }


def make_comparable_content(content: Any) -> dict[str, Any]:
    """Return a content for comparison, without thoughts, signatures and ids, which clients drop or make up.

    Calls and responses become blocks as in the other protocols. A response is identified by its function's name. A
    response that directly repeats the previous one is left out: Gemini CLI sends each twice after it resumed a session.
    """
    content = content if isinstance(content, Mapping) else {}
    part_list = content.get("parts")
    parts = (
        [part for part in part_list if isinstance(part, Mapping)]
        if isinstance(part_list, list)
        else []
    )
    blocks: list[Part] = []
    for part in parts:
        call = get_object_field(part, "functionCall")
        response = get_object_field(part, "functionResponse")
        if call is not None:
            blocks.append(
                {
                    "type": "tool_use",
                    "id": "",
                    "name": call.get("name"),
                    "input": call.get("args") or {},
                }
            )
        elif response is not None:
            text = _read_response(response.get("response"))[0]
            block = {
                "type": "tool_result",
                "tool_use_id": as_text(response.get("name")),
                "content": text,
            }
            blocks += [block] if blocks[-1:] != [block] else []
        elif not part.get("thought"):
            blocks += _decode_parts([part])
    role = "assistant" if content.get("role") == "model" else "user"
    return {"role": role, "content": _join_text_blocks(blocks)}


def _join_text_blocks(blocks: Sequence[Part]) -> list[Part]:
    joined_blocks: list[Part] = []
    for block in blocks:
        if joined_blocks and kind_of(block) == kind_of(joined_blocks[-1]) == "text":
            joined_blocks[-1] = {
                "type": "text",
                "text": joined_blocks[-1]["text"] + block["text"],
            }
        else:
            joined_blocks.append(block)
    return joined_blocks


@dataclass(frozen=True, slots=True)
class _EncodedMessage:
    """The parts that one core message adds to the wire."""

    role: str
    parts: list[Part]
    native: Content | None = None
    """Original content, if it came from Gemini."""
    continues_previous: bool = False


_CallNames = dict[str, tuple[str, str]]
"""Name and native id of each call, by its id."""


def encode_messages(messages: Messages, *, model: str | None = None) -> list[Content]:
    """Return contents for `model`; thoughts and signatures of another model are left out."""
    call_names: _CallNames = {}
    encoded_messages = [
        encoded_message
        for message in messages
        if (encoded_message := _encode_message(message, model, call_names)) is not None
    ]
    contents = [
        _join_neighbours(neighbours) for neighbours in group_by_role(encoded_messages)
    ]
    if messages and (
        not encoded_messages
        or (encoded_messages[0].role == "model" and encoded_messages[0].native is None)
    ):
        contents.insert(0, {"role": "user", "parts": [{"text": OPENING_TEXT}]})
    return contents


def _join_neighbours(neighbours: list[_EncodedMessage]) -> Content:
    first = neighbours[0]
    if len(neighbours) == 1 and first.native is not None:
        return first.native
    parts = [part for neighbour in neighbours for part in neighbour.parts]
    if first.native is not None and all(
        neighbour.native is not None for neighbour in neighbours
    ):
        return {**first.native, "parts": parts}
    responses_first = sorted(
        parts, key=lambda part: get_object_field(part, "functionResponse") is None
    )
    return {
        "role": first.role,
        "parts": responses_first if first.role == "user" else parts,
    }


def _encode_message(
    message: Message, model: str | None, call_names: _CallNames
) -> _EncodedMessage | None:
    """Return the parts that a message adds to the wire; None if there are none."""
    value = native_value(message, API)
    if isinstance(value, dict):
        return _encode_native_message(message, value, model, call_names)
    encoded_messages = [
        _encode_foreign_message(chat_message, model, call_names)
        for chat_message in to_chat_messages(message)
    ]
    parts = [
        part for encoded_message in encoded_messages for part in encoded_message.parts
    ]
    return _EncodedMessage(encoded_messages[0].role, parts) if parts else None


def _encode_native_message(
    message: Message, value: Content, model: str | None, call_names: _CallNames
) -> _EncodedMessage:
    record = native_record(message, API)
    continues_previous = bool(record and record.get("joined"))
    parts = parts_of({"content": value.get("parts")})
    if message["role"] != "assistant":
        return _EncodedMessage("user", parts, value, continues_previous)
    function_calls = [
        call_object
        for part in parts
        if (call_object := get_object_field(part, "functionCall")) is not None
    ]
    for call, function_call in zip(calls_of(message), function_calls, strict=False):
        call_names[call.id] = call.name, as_text(function_call.get("id"))
    content = value if value.get("role") else {"role": "model", **value}
    if can_use_reasoning(message, API, model):
        return _EncodedMessage("model", parts, content)
    unsigned_parts = _sign_calls(
        [_without_signature(part) for part in parts if not part.get("thought")], model
    )
    return _EncodedMessage(
        "model",
        unsigned_parts,
        content if unsigned_parts == parts else {**content, "parts": unsigned_parts},
    )


def _without_signature(part: Part) -> Part:
    name = find_field_name(part, "thoughtSignature")
    return (
        {key: value for key, value in part.items() if key != name}
        if name in part
        else part
    )


def _sign_calls(parts: list[Part], model: str | None) -> list[Part]:
    """Give the first call a placeholder signature, which models since the third generation require."""
    generation = _GENERATION_PATTERN.search(model or "")
    if generation is None or int(generation[1]) < _FIRST_SIGNED_GENERATION:
        return parts
    first_call = next(
        (
            index
            for index, part in enumerate(parts)
            if get_object_field(part, "functionCall") is not None
        ),
        None,
    )
    if first_call is None:
        return parts
    return [
        *parts[:first_call],
        {**parts[first_call], "thoughtSignature": PLACEHOLDER_SIGNATURE},
        *parts[first_call + 1 :],
    ]


def _encode_foreign_message(
    message: Message, model: str | None, call_names: _CallNames
) -> _EncodedMessage:
    role = message.get("role")
    if role == "tool":
        return _EncodedMessage("user", _encode_response(message, call_names))
    if role in SYSTEM_ROLES:
        text = content_text(message.get("content"))
        return _EncodedMessage(
            "user",
            [{"text": _INSTRUCTION_TEMPLATE.format(text)}] if text.strip() else [],
        )
    parts = [
        part
        for core_part in parts_of(message)
        if (part := _encode_part(core_part)) is not None
    ]
    if role != "assistant":
        return _EncodedMessage("user", parts)
    if refusal := as_text(message.get("refusal")):
        parts.append({"text": refusal})
    for call in calls_of(message):
        call_names[call.id] = call.name, ""
        parts.append(
            {
                "functionCall": {
                    "name": call.name or "unknown",
                    "args": _parse_arguments(call.arguments),
                }
            }
        )
    return _EncodedMessage("model", _sign_calls(parts, model))


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"input": text}


def _encode_response(message: Message, call_names: _CallNames) -> list[Part]:
    [result] = results_of(message)
    name, native_id = call_names.get(result.call_id, (result.name, ""))
    key = "error" if message.get("is_error") is True else "output"
    response = {
        "name": name or result.name or "unknown",
        "response": {key: result.text},
    }
    media = [
        part
        for core_part in parts_of(message)
        if kind_of(core_part) != "text"
        and (part := _encode_part(core_part)) is not None
    ]
    return [
        {"functionResponse": {"id": native_id, **response} if native_id else response},
        *media,
    ]


def _encode_part(part: Part) -> Part | None:
    """Return a core part in Gemini's form; None if it is blank or unsupported."""
    kind = kind_of(part)
    if kind in ("image_url", "file"):
        inner = part.get(kind)
        fields = inner if isinstance(inner, Mapping) else {"url": inner}
        return _encode_media(
            as_text(fields.get("url") or fields.get("file_data")),
            "image" if kind != "file" else "file",
        )
    native = part.get(kind) if kind else None
    if isinstance(native, Mapping):
        return {key: value for key, value in part.items() if key != "type"}
    text = content_text([part])
    return {"text": text} if text.strip() else None


def _encode_media(url: str, kind: str) -> Part:
    data = _DATA_URL_PATTERN.fullmatch(url)
    if data is not None:
        return {"inlineData": {"mimeType": data["media"], "data": data["data"]}}
    return (
        {"fileData": {"fileUri": url}}
        if url.startswith("http")
        else {"text": f"[{kind} omitted]"}
    )
