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
