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
from typing import Any

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
from everthread.core.validation import OPENING
from everthread.errors import WireError
from everthread.wire.common import (
    group_by_role,
    keep_reasoning,
    native_of,
    native_value,
    require_list,
    require_object,
    require_text,
    with_native,
    without_private_fields,
)
from everthread.wire.gemini.fields import name_of, object_of, value_of
from everthread.wire.openai_chat import chat_form

API = "gemini"
Content = dict[str, Any]

NO_SIGNATURE = "skip_thought_signature_validator"
"""The signature that Google documents for calls that its model did not write."""
_ROLES = ("user", "model", "function")
_OUTPUT_KEYS = ("output", "result", "content", "response")
"""Names under which clients wrap a result that is one text."""
_INSTRUCTION = "<system-reminder>\n{}\n</system-reminder>"
_GENERATION = re.compile(r"gemini-(\d+)")
_MIN_SIGNED_GENERATION = 3
_DATA_URL = re.compile(r"data:(?P<media>[^;,]*);base64,(?P<data>.*)", re.DOTALL)


# Decoding


@dataclass(slots=True)
class _Calls:
    """The ids of the calls in a list of contents, and those that no response has answered yet."""

    used: dict[str, int] = field(default_factory=dict)
    open: list[tuple[str, str, str]] = field(default_factory=list)
    """Id, native id and name."""

    def begin(self) -> None:
        """Forget open calls: the model speaks again."""
        self.open = []

    def add(self, call: Mapping[str, Any]) -> str:
        native = as_text(call.get("id"))
        name = as_text(call.get("name"))
        call_id = native or self._make_unique(
            _call_digest(name, call.get("args"), len(self.open))
        )
        self.open.append((call_id, native, name))
        return call_id

    def answer(self, response: Mapping[str, Any]) -> str:
        """Return the id of the call that a response answers: by its native id, else the first open one of its name."""
        native = as_text(response.get("id"))
        name = as_text(response.get("name"))
        by_id = [call for call in self.open if native and call[1] == native]
        by_name = [call for call in self.open if call[2] == name and not call[1]]
        fitting = [*by_id, *by_name]
        if not fitting:
            return native or f"call_{name or 'unknown'}"
        self.open.remove(fitting[0])
        return fitting[0][0]

    def _make_unique(self, call_id: str) -> str:
        self.used[call_id] = count = self.used.get(call_id, 0) + 1
        return call_id if count == 1 else f"{call_id}_{count}"


def _call_digest(name: str, arguments: Any, position: int) -> str:
    text = json.dumps([name, arguments, position], sort_keys=True, ensure_ascii=False)
    return f"call_{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def decode_messages(
    wire: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
    after: Mapping[str, Any] | None = None,
) -> list[Message]:
    """Return core messages.

    `model`: the one whose thoughts the contents hold. `after`: the content before the first one, whose calls the
    first ones may answer.
    """
    calls = _Calls()
    if after is not None:
        decode_content(after, "the content before", calls, model=model)
    decoded: list[Message] = []
    for index, content in enumerate(require_list(wire, "contents")):
        decoded += decode_content(content, f"contents[{index}]", calls, model=model)
    return decoded


def decode_content(
    content: Any, where: str, calls: _Calls | None = None, *, model: str | None = None
) -> list[Message]:
    """Return one content; more than one message only if it holds function responses."""
    content = require_object(content, where)
    calls = calls or _Calls()
    role = content.get("role") or "user"
    if role not in _ROLES:
        raise WireError(
            f"{where}.role must be one of {', '.join(_ROLES)}, not {role!r}"
        )
    listed = content.get("parts")
    parts = [
        require_object(part, f"{where}.parts[{at}]")
        for at, part in enumerate(_list_or_empty(listed, f"{where}.parts"))
    ]
    if role == "model":
        calls.begin()
        return [with_native(_assistant(parts, calls, where), API, content, model=model)]
    return _user(content, parts, calls, where)


def _list_or_empty(value: Any, where: str) -> Sequence[Any]:
    return () if value is None else require_list(value, where)


def _assistant(
    parts: Sequence[Mapping[str, Any]], calls: _Calls, where: str
) -> Message:
    spoken = [
        part
        for part in parts
        if not part.get("thought") and object_of(part, "functionCall") is None
    ]
    message: Message = {
        "role": "assistant",
        "content": simplify_parts(_join_texts(spoken)),
    }
    called = [
        _call(call, calls, where)
        for part in parts
        if (call := object_of(part, "functionCall")) is not None
    ]
    if called:
        message["tool_calls"] = called
    thoughts = "".join(
        as_text(part.get("text")) for part in parts if part.get("thought")
    )
    if thoughts:
        message["reasoning_content"] = thoughts
    return message


def _join_texts(parts: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return parts in core form with neighbouring texts joined: a stream cuts a text anywhere."""
    joined: list[Part] = []
    for part in map(_part_from, parts):
        if joined and joined[-1].keys() == part.keys() == {"type", "text"}:
            joined[-1] = {"type": "text", "text": joined[-1]["text"] + part["text"]}
        elif part != {"type": "text", "text": ""}:
            joined.append(part)
    return joined


def _call(call: Mapping[str, Any], calls: _Calls, where: str) -> ToolCall:
    name = require_text(call.get("name"), f"{where}: the name of a functionCall")
    arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
    return {
        "id": calls.add(call),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _user(
    content: Mapping[str, Any],
    parts: Sequence[Mapping[str, Any]],
    calls: _Calls,
    where: str,
) -> list[Message]:
    runs = list(_split_results(parts))
    if not runs:
        return [with_native({"role": "user", "content": []}, API, content)]
    decoded: list[Message] = []
    for run in runs:
        response = object_of(run[0], "functionResponse")
        core: Message
        if response is None:
            core = {"role": "user", "content": [_part_from(part) for part in run]}
        else:
            core = _result(response, calls, where)
        value = {**content, "parts": list(run)} if len(runs) > 1 else content
        decoded.append(with_native(core, API, value, joined=bool(decoded)))
    return decoded


def _split_results(
    parts: Sequence[Mapping[str, Any]],
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield each function response alone, and everything between two of them together."""
    start = 0
    for at, part in enumerate(parts):
        if object_of(part, "functionResponse") is not None:
            if start < at:
                yield parts[start:at]
            yield [part]
            start = at + 1
    if start < len(parts):
        yield parts[start:]


def _result(response: Mapping[str, Any], calls: _Calls, where: str) -> Message:
    name = require_text(
        response.get("name"), f"{where}: the name of a functionResponse"
    )
    text, is_error = _result_text(response.get("response"))
    media = [_part_from(part) for part in parts_of({"content": response.get("parts")})]
    content = [{"type": "text", "text": text}, *media] if media else text
    message: Message = {
        "role": "tool",
        "tool_call_id": calls.answer(response),
        "name": name,
        "content": content,
    }
    return {**message, "is_error": True} if is_error else message


def _result_text(value: Any) -> tuple[str, bool]:
    """Return the text of a function's response, and whether it is an error."""
    if isinstance(value, Mapping) and len(value) == 1:
        [(key, only)] = value.items()
        if isinstance(only, str) and key in (*_OUTPUT_KEYS, "error"):
            return only, key == "error"
    return "" if value is None else json.dumps(value, ensure_ascii=False), False


def _part_from(part: Mapping[str, Any]) -> Part:
    """Return a part in core form."""
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    blob = object_of(part, "inlineData")
    if blob is not None:
        return _media_from(blob)
    for name, key in (("executableCode", "code"), ("codeExecutionResult", "output")):
        inner = object_of(part, name)
        if inner is not None:
            return {"type": "text", "text": as_text(inner.get(key))}
    file = object_of(part, "fileData")
    if file is not None:
        return {"type": "file", "file": {"file_id": as_text(value_of(file, "fileUri"))}}
    return {"type": next(iter(part), "part"), **part}


def _media_from(blob: Mapping[str, Any]) -> Part:
    media = as_text(value_of(blob, "mimeType"))
    url = f"data:{media};base64,{as_text(blob.get('data'))}"
    if media.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    return {
        "type": "file",
        "file": {
            "filename": as_text(value_of(blob, "displayName")) or "file",
            "file_data": url,
        },
    }


def spoken_form(content: Any) -> dict[str, Any]:
    """Return what a content says, without thoughts, signatures and ids, which clients drop or make up.

    Calls and responses are blocks as in the other protocols; a response goes by the name of its function. One that is
    repeated at once counts once: Gemini CLI sends each twice after it resumed a session.
    """
    content = content if isinstance(content, Mapping) else {}
    listed = content.get("parts")
    parts = (
        [part for part in listed if isinstance(part, Mapping)]
        if isinstance(listed, list)
        else []
    )
    blocks: list[Part] = []
    for part in parts:
        call = object_of(part, "functionCall")
        response = object_of(part, "functionResponse")
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
            text = _result_text(response.get("response"))[0]
            block = {
                "type": "tool_result",
                "tool_use_id": as_text(response.get("name")),
                "content": text,
            }
            blocks += [block] if blocks[-1:] != [block] else []
        elif not part.get("thought"):
            blocks += _join_texts([part])
    role = "assistant" if content.get("role") == "model" else "user"
    return {"role": role, "content": _join_blocks(blocks)}


def _join_blocks(blocks: Sequence[Part]) -> list[Part]:
    joined: list[Part] = []
    for block in blocks:
        if joined and kind_of(block) == kind_of(joined[-1]) == "text":
            joined[-1] = {"type": "text", "text": joined[-1]["text"] + block["text"]}
        else:
            joined.append(block)
    return joined


# Encoding


@dataclass(frozen=True, slots=True)
class _Piece:
    """The parts that one core message adds to the wire."""

    role: str
    parts: list[Part]
    native: Content | None = None
    """The content it was, if it came from Gemini."""
    joined: bool = False


_CallNames = dict[str, tuple[str, str]]
"""Name and native id of each call, by its id."""


def encode_messages(messages: Messages, *, model: str | None = None) -> list[Content]:
    """Return contents for `model`; thoughts and signatures of another model are left out."""
    names: _CallNames = {}
    pieces = [
        piece
        for message in messages
        if (piece := _piece(message, model, names)) is not None
    ]
    contents = [_join_pieces(run) for run in group_by_role(pieces)]
    if messages and (
        not pieces or (pieces[0].role == "model" and pieces[0].native is None)
    ):
        contents.insert(0, {"role": "user", "parts": [{"text": OPENING}]})
    return contents


def _join_pieces(run: list[_Piece]) -> Content:
    first = run[0]
    if len(run) == 1 and first.native is not None:
        return first.native
    parts = [part for piece in run for part in piece.parts]
    if first.native is not None and all(piece.native is not None for piece in run):
        return {**first.native, "parts": parts}
    responses_first = sorted(
        parts, key=lambda part: object_of(part, "functionResponse") is None
    )
    return {
        "role": first.role,
        "parts": responses_first if first.role == "user" else parts,
    }


def _piece(message: Message, model: str | None, names: _CallNames) -> _Piece | None:
    """Return what a message adds to the wire; None if that is nothing."""
    value = native_value(message, API)
    if isinstance(value, dict):
        return _native_piece(message, value, model, names)
    pieces = [_foreign_piece(form, model, names) for form in chat_form(message)]
    parts = [part for piece in pieces for part in piece.parts]
    return _Piece(pieces[0].role, parts) if parts else None


def _native_piece(
    message: Message, value: Content, model: str | None, names: _CallNames
) -> _Piece:
    record = native_of(message, API)
    is_joined = bool(record and record.get("joined"))
    parts = parts_of({"content": value.get("parts")})
    if message["role"] != "assistant":
        return _Piece("user", parts, value, is_joined)
    functions = [
        function
        for part in parts
        if (function := object_of(part, "functionCall")) is not None
    ]
    for call, named in zip(calls_of(message), functions, strict=False):
        names[call.id] = call.name, as_text(named.get("id"))
    content = value if value.get("role") else {"role": "model", **value}
    if keep_reasoning(message, API, model):
        return _Piece("model", parts, content)
    unsigned = _sign_calls(
        [_without_signature(part) for part in parts if not part.get("thought")], model
    )
    return _Piece(
        "model",
        unsigned,
        content if unsigned == parts else {**content, "parts": unsigned},
    )


def _without_signature(part: Part) -> Part:
    name = name_of(part, "thoughtSignature")
    return (
        {key: value for key, value in part.items() if key != name}
        if name in part
        else part
    )


def _sign_calls(parts: list[Part], model: str | None) -> list[Part]:
    """Mark the first call as unsigned, which models of the third generation insist on."""
    generation = _GENERATION.search(model or "")
    if generation is None or int(generation[1]) < _MIN_SIGNED_GENERATION:
        return parts
    first = next(
        (
            at
            for at, part in enumerate(parts)
            if object_of(part, "functionCall") is not None
        ),
        None,
    )
    if first is None:
        return parts
    return [
        *parts[:first],
        {**parts[first], "thoughtSignature": NO_SIGNATURE},
        *parts[first + 1 :],
    ]


def _foreign_piece(message: Message, model: str | None, names: _CallNames) -> _Piece:
    role = message.get("role")
    if role == "tool":
        return _Piece("user", _response_parts(message, names))
    if role in SYSTEM_ROLES:
        text = content_text(message.get("content"))
        return _Piece(
            "user", [{"text": _INSTRUCTION.format(text)}] if text.strip() else []
        )
    parts = [part for one in parts_of(message) if (part := _part_to(one)) is not None]
    if role != "assistant":
        return _Piece("user", parts)
    if refusal := as_text(message.get("refusal")):
        parts.append({"text": refusal})
    for call in calls_of(message):
        names[call.id] = call.name, ""
        parts.append(
            {
                "functionCall": {
                    "name": call.name or "unknown",
                    "args": _arguments(call.arguments),
                }
            }
        )
    return _Piece("model", _sign_calls(parts, model))


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"input": text}


def _response_parts(message: Message, names: _CallNames) -> list[Part]:
    [result] = results_of(message)
    name, native = names.get(result.call_id, (result.name, ""))
    key = "error" if message.get("is_error") is True else "output"
    response = {
        "name": name or result.name or "unknown",
        "response": {key: result.text},
    }
    media = [
        part
        for one in parts_of(message)
        if kind_of(one) != "text" and (part := _part_to(one)) is not None
    ]
    return [
        {"functionResponse": {"id": native, **response} if native else response},
        *media,
    ]


def _part_to(part: Part) -> Part | None:
    """Return a part as Gemini takes it; None if it is blank or means nothing here."""
    kind = kind_of(part)
    if kind in ("image_url", "file"):
        inner = part.get(kind)
        fields = inner if isinstance(inner, Mapping) else {"url": inner}
        return _media_to(
            as_text(fields.get("url") or fields.get("file_data")),
            "image" if kind != "file" else "file",
        )
    native = part.get(kind) if kind else None
    if isinstance(native, Mapping):
        return {key: value for key, value in part.items() if key != "type"}
    text = content_text([part])
    return {"text": text} if text.strip() else None


def _media_to(url: str, kind: str) -> Part:
    data = _DATA_URL.fullmatch(url)
    if data is not None:
        return {"inlineData": {"mimeType": data["media"], "data": data["data"]}}
    return (
        {"fileData": {"fileUri": url}}
        if url.startswith("http")
        else {"text": f"[{kind} omitted]"}
    )


# Tools


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return core tools: each function declaration, and Gemini's own tools unchanged."""
    tools: list[dict[str, Any]] = []
    for index, value in enumerate(require_list(wire, "tools")):
        tool = require_object(value, f"tools[{index}]")
        name = name_of(tool, "functionDeclarations")
        where = f"tools[{index}].{name}"
        for at, declaration in enumerate(_list_or_empty(tool.get(name), where)):
            tools.append(
                _decode_function(require_object(declaration, f"{where}[{at}]"), where)
            )
        own = {key: part for key, part in tool.items() if key != name}
        if own:
            tools.append({**own, "_native": {"api": API, "value": own}})
    return tools


def _decode_function(declaration: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = {"name": require_text(declaration.get("name"), f"{where}.name")}
    if declaration.get("description") is not None:
        function["description"] = declaration["description"]
    schema = value_of(declaration, "parametersJsonSchema") or declaration.get(
        "parameters"
    )
    if schema is not None:
        function["parameters"] = schema
    core = {"type": "function", "function": function}
    if _encode_function(core) == declaration:
        return core
    return {**core, "_native": {"api": API, "value": dict(declaration)}}


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools Gemini can call; those built into another API are left out."""
    functions = [
        _encode_function(tool)
        for tool in tools
        if isinstance(tool.get("function"), Mapping)
    ]
    own = [native_value(tool, API) for tool in tools if "function" not in tool]
    declared = [{"functionDeclarations": functions}] if functions else []
    return [*declared, *(value for value in own if isinstance(value, dict))]


def _encode_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    native = native_value(tool, API)
    if isinstance(native, dict):
        return native
    function = without_private_fields(tool["function"])
    declaration: dict[str, Any] = {
        key: function[key] for key in ("name", "description") if key in function
    }
    if function.get("parameters") is not None:
        declaration["parametersJsonSchema"] = function["parameters"]
    return declaration
