"""Gemini's parts <-> parts of core messages: texts, media, function responses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.messages import (
    Part,
    as_text,
    content_text,
    kind_of,
    without_keys,
)
from everthread.wire.gemini.fields import get_field, get_object_field

API = "gemini"
Content = dict[str, Any]
_OUTPUT_KEYS = ("output", "result", "content", "response")
"""Names under which clients wrap a result that is one text."""
_DATA_URL_PATTERN = re.compile(r"data:(?P<media>[^;,]*);base64,(?P<data>.*)", re.DOTALL)


def decode_parts(parts: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return core parts, with neighbouring texts joined because a stream cuts a text anywhere."""
    decoded_parts: list[Part] = []
    for part in map(decode_part, parts):
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


def encode_part(part: Part) -> Part | None:
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
        return without_keys(part, "type")
    text = content_text([part])
    return {"text": text} if text.strip() else None


def _encode_media(url: str, kind: str) -> Part:
    data = _DATA_URL_PATTERN.fullmatch(url)
    if data is not None:
        return {"inlineData": {"mimeType": data["media"], "data": data["data"]}}
    return (
        {"fileData": {"fileUri": url}} if url.startswith("http") else {"text": f"[{kind} omitted]"}
    )


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
            text = read_response(response.get("response"))[0]
            block = {
                "type": "tool_result",
                "tool_use_id": as_text(response.get("name")),
                "content": text,
            }
            blocks += [block] if blocks[-1:] != [block] else []
        elif not part.get("thought"):
            blocks += decode_parts([part])
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
