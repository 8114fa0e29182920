"""Decode and encode Gemini's parts: texts, media, function responses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.json_values import as_list, as_object, as_text, without_keys
from everthread.core.messages import Part, content_text, kind_of
from everthread.core.types import Api
from everthread.wire.gemini.field_names import get_field, get_object_field

API: Api = "gemini"
Content = dict[str, Any]
_OUTPUT_KEYS = ("output", "result", "content", "response")
"""Names under which clients wrap a result that is one text."""
_DATA_URL_PATTERN = re.compile(r"data:(?P<media>[^;,]*);base64,(?P<data>.*)", re.DOTALL)


def decode_parts(parts: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return core parts, with neighbouring texts joined because a stream cuts a text anywhere."""
    decoded_parts: list[Part] = []
    for part in map(decode_part, parts):
        if decoded_parts and decoded_parts[-1].keys() == part.keys() == {"type", "text"}:
            text = decoded_parts[-1]["text"] + part["text"]
            decoded_parts[-1] = {"type": "text", "text": text}
        elif part != {"type": "text", "text": ""}:
            decoded_parts.append(part)
    return decoded_parts


def read_response(value: Any) -> tuple[str, bool]:
    """Return the text of a function's response, and whether it is an error."""
    if isinstance(value, Mapping) and len(value) == 1:
        [(key, result)] = value.items()
        if isinstance(result, str) and key in (*_OUTPUT_KEYS, "error"):
            return result, key == "error"
    return "" if value is None else json.dumps(value, ensure_ascii=False), False


def decode_part(part: Mapping[str, Any]) -> Part:
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
        return {"type": "file", "file": {"file_id": as_text(get_field(file, "fileUri"))}}
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


def encode_part(part: Part) -> Part | None:
    """Return a core part in Gemini's form, or None if it is blank or unsupported."""
    kind = kind_of(part)
    if kind in ("image_url", "file"):
        inner = part.get(kind)
        fields = inner if isinstance(inner, Mapping) else {"url": inner}
        url = as_text(fields.get("url") or fields.get("file_data"))
        return _encode_media(url, "file" if kind == "file" else "image")
    native = part.get(kind) if kind else None
    if isinstance(native, Mapping):
        return without_keys(part, "type")
    text = content_text([part])
    return {"text": text} if text.strip() else None


def _encode_media(url: str, kind: str) -> Part:
    data = _DATA_URL_PATTERN.fullmatch(url)
    if data is not None:
        return {"inlineData": {"mimeType": data["media"], "data": data["data"]}}
    if url.startswith("http"):
        return {"fileData": {"fileUri": url}}
    return {"text": f"[{kind} omitted]"}


def make_comparable_message(content: Any) -> dict[str, Any]:
    """Return a content for comparison, without thoughts, signatures and ids, which clients drop or make up.

    Calls and responses become blocks as in the other protocols. A response is identified by its function's name. A
    response that directly repeats the previous one is left out: Gemini CLI sends each twice after it resumed a session.
    """
    fields = as_object(content)
    blocks: list[Part] = []
    for part in as_list(fields.get("parts")):
        if not isinstance(part, Mapping):
            continue
        call = get_object_field(part, "functionCall")
        response = get_object_field(part, "functionResponse")
        if call is not None:
            call_fields = {"name": call.get("name"), "input": call.get("args") or {}}
            blocks.append({"type": "tool_use", "id": "", **call_fields})
        elif response is not None:
            text = read_response(response.get("response"))[0]
            name = as_text(response.get("name"))
            block = {"type": "tool_result", "tool_use_id": name, "content": text}
            if blocks[-1:] != [block]:
                blocks.append(block)
        elif not part.get("thought"):
            blocks += decode_parts([part])
    role = "assistant" if fields.get("role") == "model" else "user"
    return {"role": role, "content": _join_text_blocks(blocks)}


def _join_text_blocks(blocks: Sequence[Part]) -> list[Part]:
    joined_blocks: list[Part] = []
    for block in blocks:
        if joined_blocks and kind_of(block) == kind_of(joined_blocks[-1]) == "text":
            text = joined_blocks[-1]["text"] + block["text"]
            joined_blocks[-1] = {"type": "text", "text": text}
        else:
            joined_blocks.append(block)
    return joined_blocks
