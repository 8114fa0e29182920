"""Anthropic's messages, content blocks and tools <-> core.

Decoded messages keep their native value, which is written back verbatim; everything else is said in Anthropic's terms.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.caching.claude_cache_marks import carrier_block
from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    Messages,
    Part,
    ToolCall,
    as_text,
    content_text,
    kind_of,
    parts_of,
    simplify_parts,
)
from everthread.core.types import System
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

API = "anthropic"
INVALID_JSON = "INVALID_JSON"
"""Key for arguments that are not a JSON object: `input` must be one, and nothing may be lost."""

_TEXT_KINDS = frozenset({"text", "input_text", "output_text", ""})
_UNKNOWN_HERE = {"input_audio": "audio", "video_url": "video", "input_video": "video"}
_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def part_from(block: Mapping[str, Any]) -> Part:
    """Return a block as a part, without its cache marker: that belongs to one request, not to the message."""
    kind = kind_of(block)
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    url = source_url(block.get("source"))
    if kind == "image" and url:
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "document" and url.startswith("data:"):
        return {
            "type": "file",
            "file": {
                "filename": block.get("title") or "document.pdf",
                "file_data": url,
            },
        }
    return {key: value for key, value in block.items() if key != "cache_control"}


def block_of_part(part: Mapping[str, Any]) -> Part | None:
    """Return a part as a block; None if it would be empty. Unsupported content becomes a visible placeholder."""
    kind = kind_of(part)
    if kind in _TEXT_KINDS:
        block = text_block(part.get("text"))
        if block is not None and part.get("citations"):
            block["citations"] = part["citations"]
    elif kind == "refusal":
        block = text_block(part.get("refusal"))
    elif kind in ("image_url", "input_image"):
        block = _image(part)
    elif kind in ("file", "input_file"):
        block = _document(part)
    elif kind in _UNKNOWN_HERE:
        block = text_block(f"[{_UNKNOWN_HERE[kind]} omitted]")
    elif kind == "thinking":
        return dict(part) if part.get("signature") else None
    elif kind == "reasoning":
        return None
    else:
        return dict(part)
    if block is not None and part.get("cache_control"):
        block["cache_control"] = part["cache_control"]
    return block


def text_block(text: Any) -> Part | None:
    """Return a text block, unless there is nothing to read in it: Anthropic refuses blank ones."""
    return (
        {"type": "text", "text": text}
        if isinstance(text, str) and text.strip()
        else None
    )


def arguments_text(value: Any) -> str:
    """Return a call's `input` as the JSON text a core message has."""
    wrapped = (
        value.get(INVALID_JSON) if isinstance(value, dict) and len(value) == 1 else None
    )
    return (
        wrapped if isinstance(wrapped, str) else json.dumps(value, ensure_ascii=False)
    )


def arguments_object(text: Any) -> dict[str, Any]:
    """Return a core message's arguments as the object `input` must be."""
    if isinstance(text, dict):
        return text
    if not isinstance(text, str):
        return {}
    try:
        value = (
            json.loads(text, parse_constant=_refuse_constant) if text.strip() else None
        )
    except (ValueError, RecursionError):
        return {INVALID_JSON: text}
    if isinstance(value, dict):
        return value
    return {} if value is None else {INVALID_JSON: text}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def source_url(source: Any) -> str:
    """Return an address that other providers can read: the data itself, or a public URL; not a file id."""
    match source:
        case {"type": "base64", "media_type": str(media), "data": str(data)}:
            return f"data:{media};base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
    return ""


def _image(part: Mapping[str, Any]) -> Part | None:
    image = part.get("image_url")
    url = as_text(image.get("url") if isinstance(image, dict) else image)
    if url.startswith(("http://", "https://")):
        return {"type": "image", "source": {"type": "url", "url": url}}
    media, data = _data_url(url)
    media = "image/jpeg" if media == "image/jpg" else media
    if media in _IMAGE_TYPES:
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": media, "data": data},
        }
    return text_block("[image omitted]")


def _document(part: Mapping[str, Any]) -> Part | None:
    file = part.get("file")
    file = file if isinstance(file, dict) else part
    name = file.get("filename")
    url = as_text(file.get("file_data") or file.get("file_url"))
    media, data = _data_url(url)
    source: Part
    if media == "application/pdf":
        source = {"type": "base64", "media_type": media, "data": data}
    elif url.startswith(("http://", "https://")):
        source = {"type": "url", "url": url}
    else:
        return text_block(f"[file {name} omitted]" if name else "[file omitted]")
    return {"type": "document", "source": source} | ({"title": name} if name else {})


def _data_url(url: str) -> tuple[str, str]:
    """Split a data URL into media type and base64 data; return empty strings for any other URL."""
    head, _, data = url.partition(",")
    scheme, _, details = head.lower().partition(":")
    if scheme != "data" or not details.endswith(";base64"):
        return "", ""
    return details.partition(";")[0], data


ROLES = ("user", "assistant", "system")
REASONING = frozenset({"thinking", "redacted_thinking"})


def decode_messages(
    wire: Sequence[Mapping[str, Any]], *, model: str | None = None
) -> list[Message]:
    """Return core messages; `model` wrote the reasoning in the assistant's messages, if that is known."""
    decoded: list[Message] = []
    for index, message in enumerate(require_list(wire, "messages")):
        decoded += decode_message(message, f"messages[{index}]", model=model)
    return decoded


def decode_message(
    message: Any, where: str, *, model: str | None = None
) -> list[Message]:
    """Decode one wire message: one core message, or several if it carries tool results."""
    message = require_object(message, where)
    role = message.get("role")
    content = message.get("content")
    if role not in ROLES:
        raise WireError(f"{where}.role must be one of {', '.join(ROLES)}, not {role!r}")
    author = model if role == "assistant" else None
    if isinstance(content, str):
        return [
            with_native({"role": role, "content": content}, API, message, model=author)
        ]
    blocks = objects(content, f"{where}.content")
    if role == "user":
        return _user(message, blocks, where)
    core = (
        _assistant(blocks, where)
        if role == "assistant"
        else _plain_message(role, blocks)
    )
    return [with_native(core, API, message, model=author)]


def objects(value: Any, where: str) -> list[Mapping[str, Any]]:
    """Return a list of objects. Raise `WireError` naming the item that is not an object."""
    return [
        require_object(item, f"{where}[{at}]")
        for at, item in enumerate(require_list(value, where))
    ]


def _plain_message(role: str, blocks: Sequence[Mapping[str, Any]]) -> Message:
    return {"role": role, "content": [part_from(block) for block in blocks]}


def _assistant(blocks: Sequence[Mapping[str, Any]], where: str) -> Message:
    parts = [
        part_from(block)
        for block in blocks
        if kind_of(block) not in REASONING | {"tool_use"}
    ]
    message: Message = {"role": "assistant", "content": simplify_parts(parts)}
    calls = [
        _call(block, f"{where}.content[{at}]")
        for at, block in enumerate(blocks)
        if kind_of(block) == "tool_use"
    ]
    if calls:
        message["tool_calls"] = calls
    thoughts = [
        thought
        for block in blocks
        if isinstance(thought := block.get("thinking"), str) and thought
    ]
    if thoughts:
        message["reasoning_content"] = "\n\n".join(thoughts)
    return message


def _call(block: Mapping[str, Any], where: str) -> ToolCall:
    return {
        "id": require_text(block.get("id"), f"{where}.id"),
        "type": "function",
        "function": {
            "name": require_text(block.get("name"), f"{where}.name"),
            "arguments": arguments_text(block.get("input", {})),
        },
    }


def _user(
    message: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], where: str
) -> list[Message]:
    pieces = list(_wire_runs(blocks))
    if len(pieces) <= 1 and not _is_result(blocks[:1]):
        return [with_native(_plain_message("user", blocks), API, message)]
    decoded: list[Message] = []
    for at, run in pieces:
        core = (
            _result(run[0], f"{where}.content[{at}]")
            if _is_result(run)
            else _plain_message("user", run)
        )
        value = {**message, "content": list(run)} if len(pieces) > 1 else message
        decoded.append(with_native(core, API, value, joined=bool(decoded)))
    return decoded


def _wire_runs(
    blocks: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int, Sequence[Mapping[str, Any]]]]:
    """Yield each tool result alone, everything between two of them together; each run with the place it starts at."""
    start = 0
    for at, block in enumerate(blocks):
        if _is_result([block]):
            if start < at:
                yield start, blocks[start:at]
            yield at, [block]
            start = at + 1
    if start < len(blocks):
        yield start, blocks[start:]


def _is_result(run: Sequence[Mapping[str, Any]]) -> bool:
    return bool(run) and kind_of(run[0]) == "tool_result"


def _result(block: Mapping[str, Any], where: str) -> Message:
    call_id = require_text(block.get("tool_use_id"), f"{where}.tool_use_id")
    content = block.get("content")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content = [part_from(inner) for inner in objects(content, f"{where}.content")]
    result: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
    return {**result, "is_error": True} if block.get("is_error") is True else result


_FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The schema of an OpenAI custom tool: one text."""
_OPTIONAL_TOOL_FIELDS = ("description", "strict", "cache_control")


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return core tools. A custom tool keeps its native value only if its core form would not restore it."""
    return [
        _decode_tool(tool, f"tools[{index}]")
        for index, tool in enumerate(objects(wire, "tools"))
    ]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that Anthropic can call, without those built into another API."""
    return [encoded for tool in tools if (encoded := _encode_tool(tool)) is not None]


def _decode_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    native = {"_native": {"api": API, "value": dict(tool)}}
    if tool.get("type") not in (None, "custom"):
        return {**tool, **native}
    names = {
        "description": "description",
        "parameters": "input_schema",
        "strict": "strict",
    }
    optional = {
        new: tool[name] for new, name in names.items() if tool.get(name) is not None
    }
    function = {"name": require_text(tool.get("name"), f"{where}.name"), **optional}
    core = {"type": "function", "function": function}
    return core if _encode_tool(core) == tool else {**core, **native}


def _encode_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    native = native_value(tool, API)
    if isinstance(native, dict):
        return native
    for kind in ("function", "custom"):
        inner = tool.get(kind)
        if isinstance(inner, Mapping):
            schema = inner.get("parameters") or {"type": "object", "properties": {}}
            optional = {**inner, "cache_control": tool.get("cache_control")}
            return {
                "name": inner.get("name"),
                "input_schema": _FREE_TEXT if kind == "custom" else schema,
                **{
                    key: optional[key]
                    for key in _OPTIONAL_TOOL_FIELDS
                    if optional.get(key) is not None
                },
            }
    return None if "_native" in tool else without_private_fields(tool)


def encode_messages(
    messages: Messages,
    *,
    model: str | None = None,
    written: EncodedHistory | None = None,
) -> list[dict[str, Any]]:
    """Return wire messages for `model`; without a model, keep the reasoning of every model.

    `written`: the encoding of an earlier, shorter list; the shared beginning is not encoded again.
    """
    reused = (
        written if written and written.begins(messages, model) else EncodedHistory()
    )
    wire = reused.wire[:]
    calls = reused.calls.copy()
    at = len(reused.messages)
    settled = _count_settled(messages, at) if written else at
    if written and settled > at:
        wire += _wire(messages[at:settled], model, calls, begins=not at)
        written.messages = messages[:settled]
        written.model = model
        written.calls = calls.copy()
        written.wire = wire[:]
        at = settled
    wire += _wire(messages[at:], model, calls, begins=not at)
    return wire


def _wire(
    messages: Messages, model: str | None, calls: _CallIds, *, begins: bool
) -> list[dict[str, Any]]:
    pieces = [
        piece
        for message in messages
        if (piece := _piece(message, model, calls)) is not None
    ]
    wire = [_join_pieces(run) for run in group_by_role(pieces)]
    if (
        begins
        and messages
        and (not pieces or (pieces[0].role == "assistant" and pieces[0].native is None))
    ):
        wire.insert(0, {"role": "user", "content": OPENING})
    return wire


def _count_settled(messages: Messages, at: int) -> int:
    """Return how many messages will hardly change any more; the cut is between two messages that are never joined."""
    if len(messages) - at < _NEAR_END_MESSAGES + _SETTLED_AT_ONCE:
        return at
    for cut in range(len(messages) - _NEAR_END_MESSAGES, at, -1):
        before = _certain_wire_role(messages[cut - 1])
        after = _certain_wire_role(messages[cut])
        if before and after and before != after:
            return cut
    return at


def _certain_wire_role(message: Message) -> str:
    """Return the role on the wire of a message that certainly adds a block; empty if that is not certain."""
    if message["role"] == "tool":
        return "user"
    calls: Any = message.get("tool_calls")
    called = (
        isinstance(calls, list)
        and len(message) == 3
        and calls
        and isinstance(calls[0], dict)
    )
    if message["role"] == "assistant" and called and "function" in calls[0]:
        return "assistant"
    plain = _plain_piece(message)
    return plain.role if plain else ""


def assistant_blocks(message: Message) -> list[Part]:
    """Return the content of a reply: the blocks of one assistant message, whichever model wrote it."""
    piece = _piece(message, None, _CallIds())
    return [] if piece is None else piece.blocks


def encode_system(system: System, leading: Messages) -> System:
    """Return the system prompt, with the instructions a list of messages begins with."""
    if not leading:
        return system
    blocks = parts_of({"content": system})
    for message in leading:
        piece = _Piece(
            "system",
            [
                _no_media(block)
                for block in map(block_of_part, parts_of(message))
                if block
            ],
        )
        marker = _marker(message, native=False)
        blocks += (_mark_piece(piece, marker) if marker else piece).blocks
    return blocks or None


def leading_instructions(messages: Messages) -> int:
    """Count the first messages that belong in the system prompt; Anthropic's own system messages stay in place."""
    count = 0
    while (
        count < len(messages)
        and messages[count].get("role") in SYSTEM_ROLES
        and not native_of(messages[count], API)
    ):
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class _Piece:
    """Blocks that one core message adds to the wire."""

    role: str
    blocks: list[Part]
    native: Mapping[str, Any] | None = None
    """The wire message it was, if it came from Anthropic."""
    joined: bool = False


@dataclass(slots=True)
class _CallIds:
    """Anthropic wants call ids of a certain alphabet, each used once. A result names the latest call of its id.

    A new id depends on earlier messages only, so a longer history never changes the ids of a shorter one.
    """

    used: dict[str, int] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)

    def copy(self) -> _CallIds:
        return _CallIds(dict(self.used), dict(self.latest))

    def verbatim(self, call_id: str) -> None:
        self.used.setdefault(call_id, 1)
        self.latest[call_id] = call_id

    def call(self, call_id: str) -> str:
        base = candidate = _clean(call_id)
        while candidate in self.used:
            self.used[base] += 1
            candidate = f"{base}_{self.used[base]}"
        self.used[candidate] = 1
        self.latest[call_id] = candidate
        return candidate

    def result(self, call_id: str) -> str:
        return self.latest.get(call_id) or _clean(call_id)


_NEAR_END_MESSAGES = 32
"""Cache marks are expected within this many messages from the end; one further back forces a full encoding."""
_SETTLED_AT_ONCE = 16


@dataclass(slots=True)
class EncodedHistory:
    """The encoded start of a growing history.

    Its wire messages are returned again with every request, in a new list: they are treated as immutable, as all
    messages are. Checking each of them would dominate the cost of a turn (`benchmarks session`).
    """

    messages: Messages = ()
    model: str | None = None
    wire: list[dict[str, Any]] = field(default_factory=list)
    calls: _CallIds = field(default_factory=_CallIds)

    def begins(self, messages: Messages, model: str | None) -> bool:
        """Return whether the list begins with the very same messages."""
        is_same = model == self.model and len(messages) >= len(self.messages)
        return is_same and all(map(operator.is_, self.messages, messages))


def _clean(call_id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id) or "call"


def _join_pieces(run: list[_Piece]) -> dict[str, Any]:
    first = run[0]
    if len(run) == 1 and first.native is not None:
        return dict(first.native)
    blocks = (
        [block for piece in run for block in piece.blocks]
        if len(run) > 1
        else first.blocks
    )
    if len(blocks) == 1:
        return {"role": first.role, "content": blocks}
    if first.native is not None and all(piece.native is not None for piece in run):
        return {**first.native, "content": blocks}
    return {
        "role": first.role,
        "content": sorted(blocks, key=lambda block: kind_of(block) != "tool_result"),
    }


def _piece(message: Message, model: str | None, calls: _CallIds) -> _Piece | None:
    """Return the blocks a message adds; None if there are none."""
    if (plain := _plain_piece(message)) is not None:
        return plain
    piece = _native_piece(message, model, calls) or _foreign_piece(message, calls)
    marker = _marker(message, native=piece.native is not None)
    if marker and piece.blocks:
        piece = _mark_piece(piece, marker)
    return piece if piece.blocks or piece.native is not None else None


def _plain_piece(message: Message) -> _Piece | None:
    """Return the blocks of the most frequent form of message, a role and a text, without looking for anything else."""
    if len(message) != 2:
        return None
    role = message["role"]
    content = message.get("content")
    if role in ROLES and isinstance(content, str) and content and not content.isspace():
        return _Piece(role, [{"type": "text", "text": content}])
    return None


def _native_piece(
    message: Message, model: str | None, calls: _CallIds
) -> _Piece | None:
    record = native_of(message, API)
    value = record["value"] if record else None
    if record is None or not isinstance(value, dict) or value.get("role") not in ROLES:
        return None
    blocks = parts_of(value)
    for block in blocks:
        if kind_of(block) == "tool_use":
            calls.verbatim(as_text(block.get("id")))
    joined = bool(record.get("joined"))
    if keep_reasoning(message, API, model):
        return _Piece(value["role"], blocks, value, joined)
    without_reasoning = [block for block in blocks if kind_of(block) not in REASONING]
    if len(without_reasoning) == len(blocks):
        return _Piece(value["role"], blocks, value, joined)
    native = {**value, "content": without_reasoning} if without_reasoning else None
    return _Piece(value["role"], without_reasoning, native, joined)


def _foreign_piece(message: Message, calls: _CallIds) -> _Piece:
    role = message.get("role")
    if role == "tool":
        answer = {
            "tool_use_id": message.get("tool_call_id"),
            "content": message.get("content"),
        }
        failed = {"is_error": True} if message.get("is_error") is True else {}
        return _Piece(
            "user", [_result_block({"type": "tool_result", **answer, **failed}, calls)]
        )
    if role in SYSTEM_ROLES:
        block = text_block(content_text(message.get("content")))
        return _Piece(
            "user",
            [{"type": "text", "text": _INSTRUCTION.format(block["text"])}]
            if block
            else [],
        )
    elsewhere = "_native" in message
    parts = [
        part
        for part in parts_of(message)
        if not (elsewhere and kind_of(part) in REASONING)
    ]
    blocks = [block for part in parts if (block := _block(part, calls))]
    if role != "assistant":
        return _Piece("user", blocks)
    refusal = text_block(message.get("refusal"))
    blocks = [_no_media(block) for block in blocks] + ([refusal] if refusal else [])
    return _Piece("assistant", blocks + list(_call_blocks(message, calls)))


def _block(part: Part, calls: _CallIds) -> Part | None:
    kind = kind_of(part)
    if kind == "tool_use":
        return _call_block(
            part,
            part.get("id"),
            part.get("name"),
            arguments_object(part.get("input")),
            calls,
        )
    return _result_block(part, calls) if kind == "tool_result" else block_of_part(part)


def _call_blocks(message: Mapping[str, Any], calls: _CallIds) -> Iterator[Part]:
    raw = message.get("tool_calls")
    for item in raw if isinstance(raw, list) else []:
        call: Mapping[str, Any] = item if isinstance(item, dict) else {}
        function = call.get("function")
        custom = call.get("custom")
        if isinstance(custom, dict):
            yield _call_block(
                {},
                call.get("id"),
                custom.get("name"),
                {"input": custom.get("input")},
                calls,
            )
        elif isinstance(function, dict):
            arguments = arguments_object(function.get("arguments"))
            yield _call_block(
                {}, call.get("id"), function.get("name"), arguments, calls
            )


def _call_block(
    rest: Part, call_id: Any, name: Any, arguments: dict[str, Any], calls: _CallIds
) -> Part:
    own = {
        "type": "tool_use",
        "id": calls.call(as_text(call_id)),
        "name": as_text(name) or "unknown",
    }
    return {**rest, **own, "input": arguments}


def _result_block(part: Part, calls: _CallIds) -> Part:
    """Return a result block; its content may be empty, but has no blank text."""
    block = {**part, "tool_use_id": calls.result(as_text(part.get("tool_use_id")))}
    content = block.pop("content", None)
    if isinstance(content, list):
        inner = list(filter(None, map(block_of_part, parts_of({"content": content}))))
        return {**block, "content": inner} if inner else block
    text = content_text(content)
    return {**block, "content": text} if text.strip() else block


def _no_media(block: Part) -> Part:
    """Replace images and files by placeholders: on this API only users have them."""
    kind = kind_of(block)
    return (
        {"type": "text", "text": f"[{kind} omitted]"}
        if kind in ("image", "document")
        else block
    )


def _marker(message: Message, *, native: bool) -> Mapping[str, Any] | None:
    """Return the cache marker to move. In a native message also one in its core content, which is not what is sent."""
    parts = parts_of(message) if native else []
    markers = (each.get("cache_control") for each in (message, *reversed(parts)))
    return next((marker for marker in markers if isinstance(marker, dict)), None)


def _mark_piece(piece: _Piece, marker: Mapping[str, Any]) -> _Piece:
    """Move a message's cache marker to its last block that can carry one."""
    blocks = list(piece.blocks)
    at = carrier_block(blocks)
    if at is not None:
        blocks[at] = {**blocks[at], "cache_control": dict(marker)}
    native = None if piece.native is None else {**piece.native, "content": blocks}
    return _Piece(piece.role, blocks, native, piece.joined)


_INSTRUCTION = "<system-reminder>\n{}\n</system-reminder>"
"""The frame of an instruction in mid-conversation, so that it is not taken for the user's words."""
