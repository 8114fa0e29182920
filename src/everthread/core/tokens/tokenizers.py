"""Count the tokens of a text, a picture, a recording or a document, by the model's name.

A text is counted by the model's vocabulary if it is known, else by `o200k_base`, scaled. Scales are a fit, by
relative error, over prose in 20 languages, source code, JSON, logs, tables and encoded data. Of a text over a million
characters evenly spaced pieces are counted, so the time does not grow with it.

Media cost what the providers' documented formulas say, never the length of the base64 text: a size is read from the
first bytes of the data. If it cannot be known (a link, a file id), a usual size is assumed.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from everthread.core.messages import as_text

# --- texts ------------------------------------------------------------------------------------------------------------


_PIECE = 256


def sample(text: str, size: int) -> str:
    """Evenly spaced pieces of a longer text, together of that size."""
    count = size // _PIECE
    starts = (len(text) * index // count for index in range(count))
    return "".join(text[start : start + _PIECE] for start in starts)


def foreign_letters(text: str) -> int:
    """How many letters of other scripts than Latin the text has: vocabularies differ most in these."""
    if text.isascii():
        return 0
    return len(
        text.encode("utf-16-le", "surrogatepass")[1::2].translate(None, _NOT_FOREIGN)
    )


_FOREIGN = frozenset(
    [*range(0x03, 0x1E), 0x1F, *range(0x2E, 0xD8), *range(0xF9, 0x100)]
)
_NOT_FOREIGN = bytes(code for code in range(256) if code not in _FOREIGN)
"""By the upper byte of a UTF-16 unit, which names the script a character belongs to."""
REFERENCE = "o200k_base"
_CHUNK = 32_768
_SAMPLE_ABOVE = 1_000_000


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """How a family of models turns text into tokens.

    `per_token`, `per_line` and `per_letter` scale a count of `o200k_base`: for each of its tokens, for each line
    break, for each letter of another script.
    """

    vocabulary: str | None = None
    per_token: float = 1.0
    per_line: float = 0.0
    per_letter: float = 0.0

    def count(self, text: str) -> float:
        """Tokens of the text: exact when the vocabulary is known and the text under a million characters."""
        if self.vocabulary is not None:
            return _count(text, self.vocabulary)
        return self._scale(_count(text, REFERENCE), text)

    def _scale(self, tokens: float, text: str) -> float:
        total = self.per_token * tokens
        if self.per_line:
            # Empty lines count half: a run of line breaks is about one token.
            total += self.per_line * (text.count("\n") - text.count("\n\n"))
        if self.per_letter:
            total += self.per_letter * foreign_letters(text)
        return max(total, 0.0)


NEWER_CLAUDE = (
    r"claude[-.].*(?:opus-4[-.][7-9]|(?:opus|sonnet|haiku)-[5-9]|mythos|fable)"
)
"""Names of the Claude models from Opus 4.7 on: another tokenizer, larger pictures."""

# Claude before and after its change of tokenizer: the new one splits Latin words further and nothing else.
_CLAUDE = Tokenizer(per_token=1.10, per_line=1.15, per_letter=0.25)
_CLAUDE_NEW = Tokenizer(per_token=1.43, per_line=1.15)
_UNKNOWN = Tokenizer(per_token=1.1)

_TABLE: tuple[tuple[str, Tokenizer], ...] = (
    (NEWER_CLAUDE, _CLAUDE_NEW),
    (r"claude", _CLAUDE),
    (
        r"gpt-?3|gpt-4(?![\d.o])|text-embedding|davinci|babbage",
        Tokenizer("cl100k_base"),
    ),
    (r"gpt|codex|computer-use|(?<![a-z\d])o[1-9](?![a-z\d])", Tokenizer(REFERENCE)),
    (r"gemini|gemma-?[3-9]|(?<![a-z])gemma(?!-?\d)", Tokenizer("gemma3")),
    (r"gemma", Tokenizer("gemma2")),
    (r"llama-?4", Tokenizer()),
    (r"code-?llama|llama-?2|vicuna", Tokenizer("llama2")),
    (r"llama|hermes", Tokenizer("llama3")),
    (r"qwen|qwq|qvq", Tokenizer("qwen3")),
    (r"deepseek", Tokenizer("deepseek_v3")),
    (r"mixtral|mistral-?7b|open-mistral", Tokenizer("mistral_v2")),
    (r"[a-z][sx]tral", Tokenizer("mistral_v3")),
    (r"glm", Tokenizer("glm4")),
    (r"kimi|moonshot", Tokenizer("kimi_k2")),
    (r"(?<![a-z])phi-?4", Tokenizer("phi4")),
    (r"olmo", Tokenizer("olmo2")),
)


def bare_name(model: str | None) -> str:
    """The model's own name: lower case, without the routes and providers before it (`openrouter/openai/…`)."""
    return (model or "").strip().lower().rsplit("/", 1)[-1]


@functools.lru_cache(maxsize=256)
def tokenizer_for(model: str | None) -> Tokenizer:
    """The tokenizer of a model, whatever route its name carries. An unknown one gets a factor on the safe side."""
    name = bare_name(model)
    return next(
        (tokenizer for pattern, tokenizer in _TABLE if re.search(pattern, name)),
        _UNKNOWN,
    )


def load_tokenizer(model: str | None) -> None:
    """Load all that counting for a model needs. The tables of merges are made at the first word of several tokens."""
    tokenizer_for(model).count("Ready? qzxwv")


def _count(text: str, vocabulary: str) -> float:
    encode = _encoder(vocabulary)
    if len(text) <= _CHUNK:
        return len(encode(_encodable(text)))
    scale = 1.0
    if len(text) > _SAMPLE_ABOVE:
        scale = len(text) / _SAMPLE_ABOVE
        text = sample(text, _SAMPLE_ABOVE)
    return scale * sum(len(encode(_encodable(chunk))) for chunk in _chunks(text))


def _chunks(text: str) -> Iterator[str]:
    """Yield pieces of bounded length, cut after a nearby line break if there is one."""
    start = 0
    while start < len(text):
        end = (
            text.rfind("\n", start + _CHUNK // 2, start + _CHUNK) + 1 or start + _CHUNK
        )
        yield text[start:end]
        start = end


def _encodable(text: str) -> str:
    """Return the text with lone surrogates replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@functools.cache
def _encoder(vocabulary: str) -> Callable[[str], list[int]]:
    from splintr import Tokenizer as Vocabulary  # noqa: PLC0415  loads megabytes; only for who counts exactly

    return Vocabulary.from_pretrained(vocabulary).encode_ordinary


# --- pictures, recordings, documents ----------------------------------------------------------------------------------


Rule = TypeVar("Rule")

Size = tuple[int, int]
Bounds = tuple[int, int]
"""The longest edge of a picture, and the most squares it may have; it is shrunk to both."""

_USUAL_SIZE: Size = (1024, 1024)
_HEADER = 64  # bytes of a picture or recording that hold its size
_JPEG_HEADER = 256 * 1024  # a JPEG may carry a profile and a thumbnail before its size
_PAGE_BYTES = 50_000  # a usual page of a PDF
_USUAL_PAGES = 5
_SOUND_BYTES_PER_SECOND = 16_000  # 128 kbit/s
_USUAL_SECONDS = 30


def image_tokens(part: Mapping[str, Any], model: str | None) -> int:
    """Tokens of an image part, in OpenAI's, Anthropic's or MCP's form."""
    link, data, detail = _image_source(part)
    size = image_size(data or link) or _USUAL_SIZE
    return _rule(_IMAGES, model)(size, detail)


def audio_tokens(part: Mapping[str, Any], model: str | None) -> int:
    """Tokens of a recording: a rate per second."""
    source = part.get("input_audio") or part.get("source") or part
    data = as_text(source.get("data")) if isinstance(source, Mapping) else ""
    return math.ceil(_seconds(data) * _rule(_SOUND_RATES, model))


def document_tokens(part: Mapping[str, Any], model: str | None) -> int:
    """Tokens of a document given as a file: a rate per page, pages judged by the size."""
    holders = [part, part.get("file"), part.get("source")]
    values = [
        h.get(key)
        for h in holders
        if isinstance(h, Mapping)
        for key in ("file_data", "data")
    ]
    data = next((_payload(value) for value in values if isinstance(value, str)), "")
    pages = max(1, round(_bytes_in(data) / _PAGE_BYTES)) if data else _USUAL_PAGES
    return pages * _rule(_PAGE_RATES, model)


def image_size(data: str) -> Size | None:
    """Width and height of a base64 picture or data URL (PNG, JPEG, GIF, WebP), from its header alone."""
    if "://" in data[:16]:
        return None
    payload = _payload(data)
    head = _decode(payload, _HEADER)
    for magic, read in _FORMATS:
        if head.startswith(magic):
            size = read(_decode(payload, _JPEG_HEADER) if read is _jpeg_size else head)
            return size if size and min(size) > 0 else None
    return None


def _image_source(part: Mapping[str, Any]) -> tuple[str, str, str]:
    """Link or data URL, bare base64, and detail of an image part."""
    holder = part.get("image_url")
    source = part.get("source")
    if isinstance(holder, Mapping):
        return as_text(holder.get("url")), "", as_text(holder.get("detail"))
    if isinstance(source, Mapping):
        return as_text(source.get("url")), as_text(source.get("data")), ""
    return as_text(holder), as_text(part.get("data")), as_text(part.get("detail"))


def _payload(data: str) -> str:
    """The base64 text of a data URL, or the text itself."""
    return data[data.find(",", 0, 256) + 1 :] if data.startswith("data:") else data


def _bytes_in(payload: str) -> int:
    return len(payload) * 3 // 4


def _decode(payload: str, size: int) -> bytes:
    """The first bytes of base64 text; nothing when it is none."""
    start = "".join(payload[: size * 4 // 3 + 4].split())
    try:
        return base64.b64decode(start[: len(start) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def _webp_size(head: bytes) -> Size | None:
    kind = head[12:16]
    if kind == b"VP8 ":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(
            head[28:30], "little"
        ) & 0x3FFF
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(
            head[27:30], "little"
        ) + 1
    return None


def _jpeg_size(head: bytes) -> Size | None:
    """Walks from segment to segment to the frame header (SOF), which holds the size."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(
                head[at + 5 : at + 7], "big"
            )
        at += 1 if marker == 0xFF else 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None


_FORMATS: tuple[tuple[bytes, Callable[[bytes], Size | None]], ...] = (
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
    (b"RIFF", _webp_size),
    (b"\xff\xd8", _jpeg_size),
)


def _seconds(payload: str) -> float:
    if not payload:
        return _USUAL_SECONDS
    head = _decode(payload, _HEADER)
    rate = int.from_bytes(head[28:32], "little") if head.startswith(b"RIFF") else 0
    return _bytes_in(payload) / (rate or _SOUND_BYTES_PER_SECOND)


def _area(edge: int, most: int) -> Callable[[Size, str], int]:
    """Claude: shrunk to an edge and a number of tokens, a token for 750 pixels."""

    def tokens(size: Size, _detail: str) -> int:
        shrink = min(1.0, edge / max(size))
        return min(most, math.ceil(size[0] * size[1] * shrink * shrink / 750))

    return tokens


def _tiles(base: int, tile: int) -> Callable[[Size, str], int]:
    """OpenAI: fit into 2048 × 2048, the shorter side to 768, then squares of 512; `low` is the base alone."""

    def tokens(size: Size, detail: str) -> int:
        if detail == "low":
            return base
        fit = min(1.0, 2048 / max(size))
        fit = min(fit, 768 / min(size))
        return base + tile * math.prod(
            math.ceil(round(side * fit, 3) / 512) for side in size
        )

    return tokens


def _patches(
    factor: float, most: int = 1536, **budgets: Bounds
) -> Callable[[Size, str], int]:
    """OpenAI, newer: squares of 32 times a factor of the model, within the budget of the detail that was asked for."""

    def tokens(size: Size, detail: str) -> int:
        return math.ceil(_squares(size, *bounds.get(detail, bounds["auto"])) * factor)

    bounds: dict[str, Bounds] = {"auto": (2048, most), "low": (512, most), **budgets}
    return tokens


def _squares(size: Size, edge: int, most: int) -> int:
    """Count the 32-pixel squares that cover a picture, shrunk until at most the allowed number fits."""
    shrink = min(1.0, edge / max(size))
    across, down = (side * shrink / 32 for side in size)
    if math.ceil(across) * math.ceil(down) > most:
        shrink = math.sqrt(most / (across * down))
        across = across * shrink
        down = down * shrink
        shrink = min(max(1, math.floor(side)) / side for side in (across, down))
        across = across * shrink
        down = down * shrink
    return math.ceil(round(across, 6)) * math.ceil(round(down, 6))


def _gemini(size: Size, _detail: str) -> int:
    """Gemini: 258 for a small picture, else for every square of 768."""
    return (
        258
        if max(size) <= 384
        else 258 * math.prod(math.ceil(side / 768) for side in size)
    )


def _rule(table: tuple[tuple[str, Rule], ...], model: str | None) -> Rule:
    name = bare_name(model)
    return next(rule for pattern, rule in table if re.search(pattern, name))


# The first pattern found in the model's name decides.
_IMAGES: tuple[tuple[str, Callable[[Size, str], int]], ...] = (
    (NEWER_CLAUDE, _area(2576, 4784)),
    (r"claude", _area(1568, 1600)),
    (r"gemini|gemma", _gemini),
    (r"gpt-4o-mini", _tiles(2833, 5667)),
    (r"gpt-(?:4\.1|5(?:\.\d)?)-mini", _patches(1.62)),
    (r"gpt-(?:4\.1|5(?:\.\d)?)-nano", _patches(2.46)),
    (r"o4-mini", _patches(1.72)),
    (r"gpt-5\.[23]|codex", _patches(1.2)),
    (r"gpt-5\.4", _patches(1.2, 2500, original=(6000, 10_000))),
    (r"gpt-5\.5", _patches(1.2, auto=(6000, 10_000), high=(2048, 2500))),
    (
        r"gpt-5\.[6-9]|gpt-[6-9]",
        _patches(1.2, auto=(65_535, 30_000), high=(2048, 2500)),
    ),
    (r"gpt-5", _tiles(70, 140)),
    (r"(?<![a-z\d])o[1-9]", _tiles(75, 150)),
    (r"computer-use", _tiles(65, 129)),
    (r"", _tiles(85, 170)),
)
_SOUND_RATES = ((r"gemini|gemma", 32), (r"", 10))
_PAGE_RATES = ((r"claude", 3000), (r"gemini|gemma", 258), (r"", 1500))
