"""Pictures, recordings and documents cost what the providers document, whatever their bytes weigh."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.tokens.media import (
    count_audio_tokens,
    count_document_tokens,
    count_image_tokens,
    read_image_size,
)
from tests.chat_messages import image_part


def png(width: int, height: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + b"IHDR"
        + head
        + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    )


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x00" * 20


def jpeg(width: int, height: int, *, before: int = 0, fill: bytes = b"") -> bytes:
    profile = b"\xff\xe1" + struct.pack(">H", before + 2) + b"\x00" * before if before else b""
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + b"\x00" * 9
    return (
        b"\xff\xd8"
        b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\x00" + b"\x00" * 9 + profile + fill + frame
    )


def webp(kind: bytes, width: int, height: int) -> bytes:
    start = b"RIFF" + struct.pack("<I", 1000) + b"WEBP" + kind + struct.pack("<I", 900)
    if kind == b"VP8 ":
        return (
            start + b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"\x00" * 20
        )
    if kind == b"VP8L":
        return start + b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + b"\x00" * 20
    return (
        start
        + b"\x00" * 4
        + (width - 1).to_bytes(3, "little")
        + (height - 1).to_bytes(3, "little")
        + b"\x00" * 20
    )


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64(data)}"


def openai(data: bytes, **more: str) -> dict[str, Any]:
    return {
        "type": "image_url",
        "image_url": {"url": url(data), **more},
    }


@pytest.mark.parametrize(
    "data",
    [
        png(640, 480),
        gif(640, 480),
        jpeg(640, 480),
        jpeg(640, 480, before=60_000),
        jpeg(640, 480, fill=b"\xff" * 3),
        webp(b"VP8 ", 640, 480),
        webp(b"VP8L", 640, 480),
        webp(b"VP8X", 640, 480),
    ],
    ids=[
        "png",
        "gif",
        "jpeg",
        "jpeg-profile",
        "jpeg-fill",
        "webp",
        "webp-lossless",
        "webp-extended",
    ],
)
def test_reads_the_size_from_the_header(data: bytes) -> None:
    assert read_image_size(b64(data)) == (640, 480)
    assert read_image_size(url(data)) == (640, 480)


def test_ignores_line_breaks_in_base64() -> None:
    assert read_image_size(base64.encodebytes(png(640, 480) + b"\x00" * 200).decode()) == (
        640,
        480,
    )


@pytest.mark.parametrize(
    "data",
    [
        "",
        "https://example.org/cat.png",
        "data:image/png",
        "data:image/svg+xml,<svg/>",
        "not base64 at all ✗",
        "abc",
        b64(b"BM" + b"\x00" * 60),
        b64(b"\x89PNG\r\n\x1a\n"),
        b64(png(0, 480)),
        b64(b"RIFF\x00\x00\x00\x00WAVEfmt " + b"\x00" * 60),
        b64(b"\xff\xd8\xff\xe0\x00\x10"),
        b64(b"\xff\xd8" + b"\x00" * 40),
        b64(b"\xff\xd8\xff\xc4" + b"\x00\x04" + b"\x00" * 40),
    ],
)
def test_unknown_formats_have_no_size(data: str) -> None:
    assert read_image_size(data) is None


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF", b"\xff\xd8"]),
)
def test_accepts_any_bytes(data: bytes, magic: bytes) -> None:
    size = read_image_size(b64(magic + data))
    assert size is None or min(size) > 0


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        ("gpt-4o", (1024, 1024), 765),
        ("gpt-4.1", (2048, 4096), 1105),
        ("openai/gpt-4o", (512, 512), 255),
        ("gpt-4o-mini", (1024, 1024), 2833 + 4 * 5667),
        ("gpt-4.1-mini", (1024, 1024), 1659),
        ("gpt-4.1-mini", (1800, 2400), 2353),  # 1452 squares
        ("gpt-4.1-mini", (4000, 4000), 2465),
        ("gpt-4.1-mini", (9000, 3), 104),
        ("gpt-5.4-mini", (1800, 2400), 2353),
        ("gpt-5-nano", (1024, 1024), 2520),
        ("o4-mini", (1024, 1024), 1762),
        ("gpt-5", (1024, 1024), 630),
        ("gpt-5.2", (640, 480), 360),
        ("gpt-5.4", (1280, 720), 1104),
        ("o3", (1024, 1024), 675),
        ("computer-use-preview", (1024, 1024), 581),
        ("claude-sonnet-4-5", (1000, 1000), 1334),
        ("claude-sonnet-4-5", (200, 200), 54),
        ("claude-3-5-sonnet", (3000, 3000), 1600),
        ("claude-3-5-sonnet", (4000, 1000), 820),
        ("claude-opus-4-7", (2000, 1500), 4000),
        ("gemini-2.5-pro", (300, 300), 258),
        ("gemini-2.5-pro", (1500, 800), 1032),
        (None, (1024, 1024), 765),
    ],
)
def test_images_cost_the_documented_tokens(
    model: str | None, size: tuple[int, int], tokens: int
) -> None:
    assert count_image_tokens(openai(png(*size)), model) == tokens


def test_low_detail_costs_little() -> None:
    assert count_image_tokens(openai(png(2000, 2000), detail="low"), "gpt-4o") == 85
    assert count_image_tokens(openai(png(1280, 720), detail="low"), "gpt-5.4") == 173
    large = png(3200, 3200)
    assert count_image_tokens(openai(large, detail="original"), "gpt-5.4") == 12_000
    assert (
        count_image_tokens(openai(large, detail="auto"), "gpt-5.4")
        == count_image_tokens(openai(large), "gpt-5.4")
        == 3_000
    )
    assert count_image_tokens(openai(large, detail="high"), "gpt-5.5") == 3_000
    assert (
        count_image_tokens(openai(large), "gpt-5.5")
        == count_image_tokens(openai(large), "gpt-5.6")
        == 12_000
    )
    assert (
        count_image_tokens(
            {
                "type": "input_image",
                "image_url": url(png(2000, 2000)),
                "detail": "low",
            },
            "gpt-4o",
        )
        == 85
    )


@pytest.mark.parametrize(
    "part",
    [
        {
            "type": "image",
            "source": {
                "type": "base64",
                "media_type": "image/png",
                "data": b64(png(1000, 1000)),
            },
        },
        {"type": "input_image", "image_url": url(png(1000, 1000))},
        {
            "type": "image",
            "mimeType": "image/png",
            "data": b64(png(1000, 1000)),
        },
        image_part(url(png(1000, 1000) + b"\x00" * 3_000_000)),
    ],
    ids=["anthropic", "responses", "mcp", "heavy"],
)
def test_reads_every_form_of_image_part(part: dict[str, Any]) -> None:
    assert count_image_tokens(part, "claude-sonnet-4-5") == 1334


@pytest.mark.parametrize(
    "part",
    [
        image_part("https://example.org/cat.png"),
        {"type": "image_url", "image_url": "https://example.org/cat.png"},
        {
            "type": "image",
            "source": {"type": "url", "url": "https://example.org/cat.png"},
        },
        {"type": "input_image", "file_id": "file-1"},
        image_part(7),
        {"type": "image"},
    ],
)
def test_image_of_unknown_size_gets_the_default(part: dict[str, Any]) -> None:
    assert count_image_tokens(part, "gpt-4o") == 765


def wav(seconds: int) -> str:
    rate = 32_000
    head = (
        b"RIFF"
        + struct.pack("<I", 36)
        + b"WAVEfmt "
        + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, rate, 2, 16)
    )
    return b64(head + b"data" + b"\x00" * (rate * seconds))


def test_recordings_cost_per_second() -> None:
    recording = {
        "type": "input_audio",
        "input_audio": {"data": wav(20), "format": "wav"},
    }
    assert count_audio_tokens(recording, "gpt-4o-audio-preview") == pytest.approx(200, abs=1)
    assert count_audio_tokens(recording, "gemini-2.5-pro") == pytest.approx(640, abs=2)
    mp3 = {
        "type": "input_audio",
        "input_audio": {"data": b64(b"ID3" + b"\x00" * 160_000), "format": "mp3"},
    }
    assert count_audio_tokens(mp3, "gpt-4o-audio-preview") == pytest.approx(100, abs=2)
    assert count_audio_tokens({"type": "audio", "data": wav(20)}, None) == pytest.approx(200, abs=1)
    assert count_audio_tokens({"type": "input_audio", "input_audio": "?"}, None) == 300
    assert count_audio_tokens({"type": "audio", "id": "audio_1"}, None) == 300


def test_documents_cost_per_estimated_page() -> None:
    pdf = b64(b"%PDF-1.7" + b"\x00" * 500_000)
    anthropic = {
        "type": "document",
        "source": {
            "type": "base64",
            "media_type": "application/pdf",
            "data": pdf,
        },
    }
    file = {
        "type": "file",
        "file": {
            "filename": "a.pdf",
            "file_data": f"data:application/pdf;base64,{pdf}",
        },
    }
    assert count_document_tokens(anthropic, "claude-sonnet-4-5") == 30_000
    assert count_document_tokens(file, "gpt-4o") == 15_000
    assert count_document_tokens(file, "gemini-2.5-pro") == 2_580
    assert (
        count_document_tokens({"type": "input_file", "file_data": b64(b"%PDF")}, "gpt-4o") == 1_500
    )
    assert count_document_tokens({"type": "file", "file": {"file_id": "file-1"}}, "gpt-4o") == 7_500
