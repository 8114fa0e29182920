"""Format text and figures for a page. Clean text of a conversation with `clean` before a page shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from everthread.core.costs.prices import format_dollars
from everthread.core.json_values import json_text
from everthread.core.messages import calls_of, content_text, results_of, text_of
from everthread.core.secrets.redaction import redact_part
from everthread.core.utc_days import DAY_SECONDS

REDACTION_MARGIN_CHARS = 400
"""Characters around an excerpt that are also searched, because a secret may begin or end there."""
_SPECIAL_CHARS_PATTERN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def clean(text: str) -> str:
    """Replace control and direction characters, which could move, hide or break other text, with their names."""
    return _SPECIAL_CHARS_PATTERN.sub(_name_character, text.replace("\r\n", "\n"))


def _name_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return "\u2421" if code == 0x7F else f"\u27e6U+{code:04X}\u27e7"


def excerpt(text: str, max_chars: int, *, start: int = 0, is_revealed: bool = False) -> str:
    """Return at most `max_chars` characters of a text from `start` on, redacted unless `is_revealed`."""
    end = min(len(text), start + max_chars)
    if is_revealed:
        return clean(text[start:end])
    return clean(redact_part(text, start, end, margin=REDACTION_MARGIN_CHARS))


def one_line_excerpt(text: str, max_chars: int) -> str:
    """Return the beginning of a text on one line, redacted."""
    line = " ".join(excerpt(text, 4 * max_chars).split())
    return line if len(line) <= max_chars else line[: max_chars - 1].rstrip() + "…"


def highlight(text: str, query: str) -> list[tuple[bool, str]]:
    """Split a text into pieces, each with whether it is a word of the query."""
    query_words = sorted(
        {word.lower() for word in re.findall(r"[^\s\"*]{2,60}", query)},
        key=len,
        reverse=True,
    )[:20]
    if not query_words:
        return [(False, text)]
    pieces = re.split(f"({'|'.join(map(re.escape, query_words))})", text, flags=re.IGNORECASE)
    return [(index % 2 == 1, piece) for index, piece in enumerate(pieces) if piece]


def message_text(message: Mapping[str, Any]) -> str:
    """Return the words, calls and results of a message as one text."""
    parts = [text_of(message)]
    parts += (f"→ {call.name}({call.arguments})" for call in calls_of(message))
    if message.get("role") != "tool":
        parts += (f"← {content_text(result.content)}" for result in results_of(message))
    text = "\n".join(part for part in parts if part)
    return text or (json_text(message["content"]) if message.get("content") else "")


def format_share(share: float | None) -> str:
    """Format a share as a percentage with one decimal."""
    return "unknown" if share is None else f"{share:.1%}"


def format_short(number: float) -> str:
    """Format a number in short form: 999, 12.3k, 1.25M."""
    if abs(number) >= 999_500:
        return f"{number / 1_000_000:.2f}".rstrip("0").rstrip(".") + "M"
    if abs(number) >= 1_000:
        return f"{number / 1_000:.1f}".rstrip("0").rstrip(".") + "k"
    return f"{number:.0f}"


def format_money(amount: Decimal | float | None) -> str:
    """Format dollars with cents, or with four digits if less than a cent."""
    if amount is None or 0 < abs(float(amount)) < 0.01:
        return format_dollars(amount)
    sign = "\u2212" if amount < 0 else ""
    return f"{sign}${abs(amount):,.2f}"


def format_time(seconds: float, layout: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Format a time in UTC with seconds."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).strftime(layout)
    except (OverflowError, ValueError, OSError):
        return "unknown"


def format_age(seconds: float, now: float) -> str:
    """Format the time that has passed, in one unit."""
    return "just now" if now - seconds < 5 else f"{format_duration(now - seconds)} ago"


def format_duration(seconds: float) -> str:
    """Format a duration in one unit."""
    for unit_seconds, unit in ((DAY_SECONDS, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    if seconds < 1:
        return f"{1_000 * max(seconds, 0):.0f} ms"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
