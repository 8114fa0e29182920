"""Format text and figures for a page. Text of a conversation is hostile until it is cleaned here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from everthread.core.messages import (
    calls_of,
    content_text,
    json_text,
    results_of,
    text_of,
)
from everthread.core.prices import format_dollars
from everthread.core.redaction import redact, redact_part

CONTEXT_CHARS = 400
"""Characters around a part that are read too: a secret may begin or end there."""
_SPECIAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def clean(text: str) -> str:
    """The text without what would move, hide or break other text: such characters are shown by their names."""
    return _SPECIAL.sub(_name_character, text.replace("\r\n", "\n"))


def _name_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return "\u2421" if code == 0x7F else f"\u27e6U+{code:04X}\u27e7"


def excerpt(text: str, most: int, *, start: int = 0, revealed: bool = False) -> str:
    """Return at most `most` characters of a text from `start` on, redacted unless `revealed`."""
    end = min(len(text), start + most)
    passage = (
        text[start:end]
        if revealed
        else redact_part(text, start, end, margin=CONTEXT_CHARS)
    )
    return clean(passage)


def line_of(text: str, most: int) -> str:
    """The beginning of a text on one line, redacted."""
    line = " ".join(excerpt(text, 4 * most).split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def highlight(text: str, query: str) -> list[tuple[bool, str]]:
    """A text in pieces: whether each is a word that was searched for."""
    words = sorted(
        {word.lower() for word in re.findall(r"[^\s\"*]{2,60}", query)},
        key=len,
        reverse=True,
    )[:20]
    if not words:
        return [(False, text)]
    pieces = re.split(f"({'|'.join(map(re.escape, words))})", text, flags=re.IGNORECASE)
    return [(number % 2 == 1, piece) for number, piece in enumerate(pieces) if piece]


def body_text(message: Mapping[str, Any]) -> str:
    """Everything a message says, as one text: words, calls with their arguments, results."""
    parts = [text_of(message)]
    parts += (f"→ {call.name}({call.arguments})" for call in calls_of(message))
    if message.get("role") != "tool":
        parts += (f"← {content_text(result.content)}" for result in results_of(message))
    text = "\n".join(part for part in parts if part)
    return text or (json_text(message["content"]) if message.get("content") else "")


# Figures


def part(share: float | None) -> str:
    """A percentage with one digit."""
    return "unknown" if share is None else f"{share:.1%}"


def short(number: float) -> str:
    """A number as short as it can be read: 999, 12.3k, 1.25M."""
    if abs(number) >= 999_500:
        return f"{number / 1_000_000:.2f}".rstrip("0").rstrip(".") + "M"
    if abs(number) >= 1_000:
        return f"{number / 1_000:.1f}".rstrip("0").rstrip(".") + "k"
    return f"{number:.0f}"


def money(amount: Decimal | float | None) -> str:
    """Format dollars with cents; less than a cent with four digits."""
    if amount is None or 0 < abs(float(amount)) < 0.01:
        return format_dollars(amount)
    sign = "\u2212" if amount < 0 else ""
    return f"{sign}${abs(amount):,.2f}"


def moment(seconds: float, layout: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """A time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).strftime(layout)
    except (OverflowError, ValueError, OSError):
        return "unknown"


def ago(then: float, now: float) -> str:
    """How long ago, in one unit."""
    return "just now" if now - then < 5 else f"{span(now - then)} ago"


def span(seconds: float) -> str:
    """A length of time in one unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    if seconds < 1:
        return f"{1_000 * max(seconds, 0):.0f} ms"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


# Summaries


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One line of a summary: its text in pieces, and the messages it was taken from."""

    pieces: tuple[tuple[str, str], ...]
    """`text`, `code` or `strong`, and the words."""
    item: bool = False
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SummarySection:
    name: str
    lines: tuple[SummaryLine, ...]


_HEADING = re.compile(r"#{1,4}[ \t]+(.+)")
_ITEM = re.compile(r"[ \t]*(?:[-*•]|\d{1,5}[.)])[ \t]+")
_PIECE = re.compile(r"`([^`\n]{1,400})`|\*\*([^*\n]{1,400})\*\*")


def summary_sections(
    text: str, sources: Sequence[tuple[int, str]] = ()
) -> list[SummarySection]:
    """A summary as headings and lines, each with the messages that share its rarest words."""
    index = SourceIndex(sources)
    sections: list[tuple[str, list[SummaryLine]]] = []
    for raw in redact(text).split("\n"):
        line = clean(raw).rstrip()
        heading = _HEADING.fullmatch(line.strip())
        if heading:
            sections.append((heading[1].strip("*: "), []))
        elif line.strip():
            if not sections:
                sections.append(("", []))
            # Text before the first heading is the gateway's.
            sources_of_line = index.find(line) if sections[-1][0] else ()
            sections[-1][1].append(
                SummaryLine(
                    split_code(line), _ITEM.match(line) is not None, sources_of_line
                )
            )
    return [SummarySection(name, tuple(lines)) for name, lines in sections]


def split_code(line: str) -> tuple[tuple[str, str], ...]:
    """Split a line into `text`, `code` and `strong` pieces."""
    pieces: list[tuple[str, str]] = []
    at = 0
    for match in _PIECE.finditer(line):
        pieces.append(("text", line[at : match.start()]))
        pieces.append(
            ("code", match[1]) if match[1] is not None else ("strong", match[2])
        )
        at = match.end()
    return tuple(
        (kind, words) for kind, words in (*pieces, ("text", line[at:])) if words
    )


class SourceIndex:
    """Which messages a line may come from: those that hold several of its rarest words."""

    READ = 6_000
    """Characters of each message."""
    MOST = 3

    def __init__(self, sources: Sequence[tuple[int, str]]) -> None:
        self._places: dict[str, set[int]] = {}
        for number, text in sources:
            for word in set(_words(text[: self.READ])):
                self._places.setdefault(word, set()).add(number)

    def find(self, line: str) -> tuple[int, ...]:
        known_words = {word for word in _words(line) if word in self._places}
        rarest = sorted(known_words, key=lambda word: len(self._places[word]))
        votes: dict[int, float] = {}
        for word in rarest[:12]:
            places = self._places[word]
            if len(places) > 40:
                break
            for number in places:
                votes[number] = votes.get(number, 0.0) + 1.0 / len(places) ** 2
        best = sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))[: self.MOST]
        least = 0.5 * best[0][1] if best else 0.0
        return tuple(
            sorted(number for number, weight in best if weight >= max(least, 0.2))
        )


_WORD = re.compile(r"[^\W_][\w./-]{3,60}")


def _words(text: str) -> list[str]:
    return [word.strip("./-").lower() for word in _WORD.findall(text)]
