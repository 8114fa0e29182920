"""Count the tokens of pictures, recordings and documents, by the model's name.

The providers' documented formulas are used, not the length of the base64 text: a size is read from the first bytes of
the data. If it is unknown (a link, a file id), a default size is assumed.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from everthread.core.json_values import as_text
from everthread.core.tokens.tokenizers import NEWER_CLAUDE, bare_name

Rule = TypeVar("Rule")

Size = tuple[int, int]
Bounds = tuple[int, int]
"""Maximum edge in pixels and maximum number of squares; a picture is shrunk to both."""

_DEFAULT_SIZE: Size = (1024, 1024)
_HEADER_BYTES = 64  # bytes of a picture or recording that hold its size
# A JPEG may carry a profile and a thumbnail before its size.
_JPEG_HEADER_BYTES = 256 * 1024
_PAGE_BYTES = 50_000  # a usual page of a PDF
_DEFAULT_PAGES = 5
_SOUND_BYTES_PER_SECOND = 16_000  # 128 kbit/s
_DEFAULT_SECONDS = 30


def count_image_tokens(part: Mapping[str, Any], model: str | None) -> int:
    """Count the tokens of an image part, in OpenAI's, Anthropic's or MCP's form."""
    link, data, detail = _find_image_source(part)
    size = read_image_size(data or link) or _DEFAULT_SIZE
    return _find_rule(_IMAGE_RULES, model)(size, detail)


def count_audio_tokens(part: Mapping[str, Any], model: str | None) -> int:
    """Count the tokens of a recording, by a rate per second."""
    source = part.get("input_audio") or part.get("source") or part
    data = as_text(source.get("data")) if isinstance(source, Mapping) else ""
    return math.ceil(_estimate_seconds(data) * _find_rule(_SOUND_RATES, model))


def count_document_tokens(part: Mapping[str, Any], model: str | None) -> int:
    """Count the tokens of a document, by a rate per page; the number of pages is estimated from its size."""
    holders = [part, part.get("file"), part.get("source")]
    values = [
        holder.get(key)
        for holder in holders
        if isinstance(holder, Mapping)
        for key in ("file_data", "data")
    ]
    data = next((_get_base64_payload(value) for value in values if isinstance(value, str)), "")
    pages = max(1, round(_compute_decoded_size(data) / _PAGE_BYTES)) if data else _DEFAULT_PAGES
    return pages * _find_rule(_PAGE_RATES, model)


def read_image_size(data: str) -> Size | None:
    """Return width and height of a base64 picture or data URL (PNG, JPEG, GIF, WebP), from its header alone."""
    if "://" in data[:16]:
        return None
    payload = _get_base64_payload(data)
    header = _decode_start(payload, _HEADER_BYTES)
    for magic, read_size in _IMAGE_FORMATS:
        if header.startswith(magic):
            if read_size is _read_jpeg_size:
                header = _decode_start(payload, _JPEG_HEADER_BYTES)
            size = read_size(header)
            return size if size and min(size) > 0 else None
    return None


def _find_image_source(part: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return link or data URL, plain base64 data, and detail of an image part."""
    holder = part.get("image_url")
    source = part.get("source")
    if isinstance(holder, Mapping):
        return as_text(holder.get("url")), "", as_text(holder.get("detail"))
    if isinstance(source, Mapping):
        return as_text(source.get("url")), as_text(source.get("data")), ""
    return as_text(holder), as_text(part.get("data")), as_text(part.get("detail"))


def _get_base64_payload(data: str) -> str:
    """Return the base64 text of a data URL, or the text itself."""
    return data[data.find(",", 0, 256) + 1 :] if data.startswith("data:") else data


def _compute_decoded_size(payload: str) -> int:
    return len(payload) * 3 // 4


def _decode_start(payload: str, size: int) -> bytes:
    """Return the first bytes of base64 text, or no bytes if it is not base64."""
    start = "".join(payload[: size * 4 // 3 + 4].split())
    try:
        return base64.b64decode(start[: len(start) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def _read_webp_size(header: bytes) -> Size | None:
    kind = header[12:16]
    if kind == b"VP8 ":
        return int.from_bytes(header[26:28], "little") & 0x3FFF, int.from_bytes(
            header[28:30], "little"
        ) & 0x3FFF
    if kind == b"VP8L":
        bits = int.from_bytes(header[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        return int.from_bytes(header[24:27], "little") + 1, int.from_bytes(
            header[27:30], "little"
        ) + 1
    return None


def _read_jpeg_size(header: bytes) -> Size | None:
    """Return the size from the frame header (SOF), found by skipping the segments before it."""
    position = 2
    while position + 9 <= len(header) and header[position] == 0xFF:
        marker = header[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(header[position + 7 : position + 9], "big"), int.from_bytes(
                header[position + 5 : position + 7], "big"
            )
        position += (
            1 if marker == 0xFF else 2 + int.from_bytes(header[position + 2 : position + 4], "big")
        )
    return None


_IMAGE_FORMATS: tuple[tuple[bytes, Callable[[bytes], Size | None]], ...] = (
    (
        b"\x89PNG\r\n\x1a\n",
        lambda head: (
            int.from_bytes(head[16:20], "big"),
            int.from_bytes(head[20:24], "big"),
        ),
    ),
    (
        b"GIF8",
        lambda head: (
            int.from_bytes(head[6:8], "little"),
            int.from_bytes(head[8:10], "little"),
        ),
    ),
    (b"RIFF", _read_webp_size),
    (b"\xff\xd8", _read_jpeg_size),
)


def _estimate_seconds(payload: str) -> float:
    if not payload:
        return _DEFAULT_SECONDS
    header = _decode_start(payload, _HEADER_BYTES)
    rate = int.from_bytes(header[28:32], "little") if header.startswith(b"RIFF") else 0
    return _compute_decoded_size(payload) / (rate or _SOUND_BYTES_PER_SECOND)


def _make_area_rule(edge: int, max_tokens: int) -> Callable[[Size, str], int]:
    """Return Claude's rule: shrink to a maximum edge, then one token per 750 pixels up to a maximum."""

    def count_tokens(size: Size, _detail: str) -> int:
        scale = min(1.0, edge / max(size))
        return min(max_tokens, math.ceil(size[0] * size[1] * scale * scale / 750))

    return count_tokens


def _make_tile_rule(base: int, tile: int) -> Callable[[Size, str], int]:
    """Return OpenAI's older rule: fit into 2048 × 2048, the shorter side to 768, then count squares of 512."""

    def count_tokens(size: Size, detail: str) -> int:
        if detail == "low":
            return base
        scale = min(1.0, 2048 / max(size))
        scale = min(scale, 768 / min(size))
        return base + tile * math.prod(math.ceil(round(side * scale, 3) / 512) for side in size)

    return count_tokens


def _make_patch_rule(
    factor: float, max_squares: int = 1536, **bounds_by_detail: Bounds
) -> Callable[[Size, str], int]:
    """Return OpenAI's newer rule: squares of 32 pixels times a factor, limited by the requested detail."""

    def count_tokens(size: Size, detail: str) -> int:
        return math.ceil(_count_squares(size, *bounds.get(detail, bounds["auto"])) * factor)

    bounds: dict[str, Bounds] = {
        "auto": (2048, max_squares),
        "low": (512, max_squares),
        **bounds_by_detail,
    }
    return count_tokens


def _count_squares(size: Size, edge: int, max_squares: int) -> int:
    """Count the 32-pixel squares that cover a picture, shrunk until at most the allowed number fits."""
    scale = min(1.0, edge / max(size))
    columns, rows = (side * scale / 32 for side in size)
    if math.ceil(columns) * math.ceil(rows) > max_squares:
        scale = math.sqrt(max_squares / (columns * rows))
        columns = columns * scale
        rows = rows * scale
        scale = min(max(1, math.floor(side)) / side for side in (columns, rows))
        columns = columns * scale
        rows = rows * scale
    return math.ceil(round(columns, 6)) * math.ceil(round(rows, 6))


def _count_gemini_tiles(size: Size, _detail: str) -> int:
    """Count Gemini's tokens: 258 for a small picture, else 258 for every square of 768."""
    return 258 if max(size) <= 384 else 258 * math.prod(math.ceil(side / 768) for side in size)


def _find_rule(table: tuple[tuple[str, Rule], ...], model: str | None) -> Rule:
    name = bare_name(model)
    return next(rule for pattern, rule in table if re.search(pattern, name))


# The first pattern found in the model's name decides.
_IMAGE_RULES: tuple[tuple[str, Callable[[Size, str], int]], ...] = (
    (NEWER_CLAUDE, _make_area_rule(2576, 4784)),
    (r"claude", _make_area_rule(1568, 1600)),
    (r"gemini|gemma", _count_gemini_tiles),
    (r"gpt-4o-mini", _make_tile_rule(2833, 5667)),
    (r"gpt-(?:4\.1|5(?:\.\d)?)-mini", _make_patch_rule(1.62)),
    (r"gpt-(?:4\.1|5(?:\.\d)?)-nano", _make_patch_rule(2.46)),
    (r"o4-mini", _make_patch_rule(1.72)),
    (r"gpt-5\.[23]|codex", _make_patch_rule(1.2)),
    (r"gpt-5\.4", _make_patch_rule(1.2, 2500, original=(6000, 10_000))),
    (r"gpt-5\.5", _make_patch_rule(1.2, auto=(6000, 10_000), high=(2048, 2500))),
    (
        r"gpt-5\.[6-9]|gpt-[6-9]",
        _make_patch_rule(1.2, auto=(65_535, 30_000), high=(2048, 2500)),
    ),
    (r"gpt-5", _make_tile_rule(70, 140)),
    (r"(?<![a-z\d])o[1-9]", _make_tile_rule(75, 150)),
    (r"computer-use", _make_tile_rule(65, 129)),
    (r"", _make_tile_rule(85, 170)),
)
_SOUND_RATES = ((r"gemini|gemma", 32), (r"", 10))
_PAGE_RATES = ((r"claude", 3000), (r"gemini|gemma", 258), (r"", 1500))
