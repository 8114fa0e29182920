"""One content block <-> one part of a core message, for what both sides can say in their own words.

Blocks without an OpenAI form (server tools, citations' documents, whatever comes next) stay parts as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everthread.core.messages import Part, kind_of

API = "anthropic"
INVALID_JSON = "INVALID_JSON"
"""The key under which arguments that are no JSON object travel: `input` must be one, and no word may be lost."""

_TEXTS = frozenset({"text", "input_text", "output_text", ""})
_UNKNOWN_HERE = {"input_audio": "audio", "video_url": "video", "input_video": "video"}
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def part_from(block: Mapping[str, Any]) -> Part:
    """A block as a part. The cache marker stays behind: it belongs to one request, not to what was said."""
    kind = kind_of(block)
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    url = source_url(block.get("source"))
    if kind == "image" and url:
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "document" and url.startswith("data:"):
        return {"type": "file", "file": {"filename": block.get("title") or "document.pdf", "file_data": url}}
    return {key: value for key, value in block.items() if key != "cache_control"}


def block_from(part: Mapping[str, Any]) -> Part | None:
    """A part as a block; None where it would be empty. What Anthropic cannot take becomes a visible placeholder."""
    kind = kind_of(part)
    if kind in _TEXTS:
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
    """A text block, unless there is nothing to read in it: Anthropic refuses blank ones."""
    return {"type": "text", "text": text} if isinstance(text, str) and text.strip() else None


def arguments_text(value: Any) -> str:
    """A call's `input` as the JSON text a core message has."""
    wrapped = value.get(INVALID_JSON) if isinstance(value, dict) and len(value) == 1 else None
    return wrapped if isinstance(wrapped, str) else json.dumps(value, ensure_ascii=False)


def arguments_object(text: Any) -> dict[str, Any]:
    """A core message's arguments as the object `input` must be."""
    if isinstance(text, dict):
        return text
    if not isinstance(text, str):
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant) if text.strip() else None
    except (ValueError, RecursionError):
        return {INVALID_JSON: text}
    if isinstance(value, dict):
        return value
    return {} if value is None else {INVALID_JSON: text}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def source_url(source: Any) -> str:
    """An address that means something elsewhere: the data itself, or a public one. Ids of files are Anthropic's own."""
    match source:
        case {"type": "base64", "media_type": str(media), "data": str(data)}:
            return f"data:{media};base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
    return ""


def _image(part: Mapping[str, Any]) -> Part | None:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    url = url if isinstance(url, str) else ""
    if url.startswith(("http://", "https://")):
        return {"type": "image", "source": {"type": "url", "url": url}}
    media, data = _data_url(url)
    media = "image/jpeg" if media == "image/jpg" else media
    if media in _IMAGES:
        return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
    return text_block("[image omitted]")


def _document(part: Mapping[str, Any]) -> Part | None:
    file = part.get("file")
    file = file if isinstance(file, dict) else part
    name = file.get("filename")
    url = file.get("file_data") or file.get("file_url")
    url = url if isinstance(url, str) else ""
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
    """Media type and base64 data; two empty strings for anything else."""
    head, _, data = url.partition(",")
    scheme, _, details = head.lower().partition(":")
    if scheme != "data" or not details.endswith(";base64"):
        return "", ""
    return details.partition(";")[0], data
