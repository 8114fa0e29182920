"""Decode and encode Anthropic's content blocks: text, images, documents, arguments of calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everthread.core.json_values import as_text, without_keys
from everthread.core.messages import Part, kind_of
from everthread.core.types import Api

API: Api = "anthropic"
INVALID_JSON = "INVALID_JSON"
"""Key that wraps arguments that are not a JSON object, because `input` must be an object."""

_TEXT_KINDS = frozenset({"text", "input_text", "output_text", ""})
_UNSUPPORTED_MEDIA_NAMES = {
    "input_audio": "audio",
    "video_url": "video",
    "input_video": "video",
}
_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def decode_part(block: Mapping[str, Any]) -> Part:
    """Return a block as a core part, without its cache mark, which belongs to one request only."""
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
    return without_keys(block, "cache_control")


def encode_part(part: Mapping[str, Any]) -> Part | None:
    """Return a core part as a block, or None if it would be empty. Replace unsupported content by a placeholder."""
    kind = kind_of(part)
    if kind in _TEXT_KINDS:
        block = make_text_block(part.get("text"))
        if block is not None and part.get("citations"):
            block["citations"] = part["citations"]
    elif kind == "refusal":
        block = make_text_block(part.get("refusal"))
    elif kind in ("image_url", "input_image"):
        block = _encode_image(part)
    elif kind in ("file", "input_file"):
        block = _encode_document(part)
    elif kind in _UNSUPPORTED_MEDIA_NAMES:
        block = make_text_block(f"[{_UNSUPPORTED_MEDIA_NAMES[kind]} omitted]")
    elif kind == "thinking":
        return dict(part) if part.get("signature") else None
    elif kind == "reasoning":
        return None
    else:
        return dict(part)
    if block is not None and part.get("cache_control"):
        block["cache_control"] = part["cache_control"]
    return block


def make_text_block(text: Any) -> Part | None:
    """Return a text block, or None for a blank text, which Anthropic refuses."""
    return {"type": "text", "text": text} if isinstance(text, str) and text.strip() else None


def decode_arguments(value: Any) -> str:
    """Return a call's `input` as the JSON text a core message has."""
    invalid_json = value.get(INVALID_JSON) if isinstance(value, dict) and len(value) == 1 else None
    return invalid_json if isinstance(invalid_json, str) else json.dumps(value, ensure_ascii=False)


def encode_arguments(text: Any) -> dict[str, Any]:
    """Return a core message's arguments as the object `input` must be."""
    if isinstance(text, dict):
        return text
    if not isinstance(text, str):
        return {}
    try:
        value = json.loads(text, parse_constant=_refuse_constant) if text.strip() else None
    except (ValueError, RecursionError):
        return {INVALID_JSON: text}
    if isinstance(value, dict):
        return value
    return {} if value is None else {INVALID_JSON: text}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def source_url(source: Any) -> str:
    """Return a data URL or a public URL, which other providers can read, or an empty string for a file id."""
    match source:
        case {"type": "base64", "media_type": str(media), "data": str(data)}:
            return f"data:{media};base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
    return ""


def _encode_image(part: Mapping[str, Any]) -> Part | None:
    image = part.get("image_url")
    url = as_text(image.get("url") if isinstance(image, dict) else image)
    if url.startswith(("http://", "https://")):
        return {"type": "image", "source": {"type": "url", "url": url}}
    media, data = _split_data_url(url)
    media = "image/jpeg" if media == "image/jpg" else media
    if media in _IMAGE_TYPES:
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": media, "data": data},
        }
    return make_text_block("[image omitted]")


def _encode_document(part: Mapping[str, Any]) -> Part | None:
    file = part.get("file")
    file = file if isinstance(file, dict) else part
    name = file.get("filename")
    url = as_text(file.get("file_data") or file.get("file_url"))
    media, data = _split_data_url(url)
    source: Part
    if media == "application/pdf":
        source = {"type": "base64", "media_type": media, "data": data}
    elif url.startswith(("http://", "https://")):
        source = {"type": "url", "url": url}
    else:
        return make_text_block(f"[file {name} omitted]" if name else "[file omitted]")
    return {"type": "document", "source": source} | ({"title": name} if name else {})


def _split_data_url(url: str) -> tuple[str, str]:
    """Split a data URL into media type and base64 data; return empty strings for any other URL."""
    header, _, data = url.partition(",")
    scheme, _, details = header.lower().partition(":")
    if scheme != "data" or not details.endswith(";base64"):
        return "", ""
    return details.partition(";")[0], data


def make_comparable_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message itself: messages of the other protocols are compared in this form."""
    return message
