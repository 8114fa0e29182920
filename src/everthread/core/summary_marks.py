"""Mark Everthread's summaries in messages, and find them again.

A message that is, or contains, a summary carries the private key `_summary`; every other function trusts that key
alone. `recognize_summaries` sets it for lists from outside, if a tag made with the home's key proves the text.
Without a key the tag is a plain content hash: it distinguishes a summary from text that quotes one, and gives no
protection. A proved tag is the value of `_summary`, by which the summary is found among similar text.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from everthread.core.json_values import as_list, without_keys
from everthread.core.messages import Message, kind_of, part_text, with_content

SUMMARY_START = "[EVERTHREAD SUMMARY"
"""Start of a summary's first line; the rest of that line is for the reader."""
SUMMARY_END = "[END OF EVERTHREAD SUMMARY"
"""Start of a summary's last line; a tag and a bracket follow."""
_END_LINE_PATTERN = re.compile(
    r"\[(?<![^\n]\[)END OF EVERTHREAD SUMMARY(?: ([0-9a-f]{16}))?\][ \t]*$",
    re.MULTILINE,
)
_SUMMARY_MARK_PATTERN = re.compile(r"\[(?=(?:END OF )?EVERTHREAD SUMMARY)")


def seal_summary(text: str, key: bytes = b"") -> str:
    """Return the summary with its last line, which carries a tag over everything before it."""
    return f"{text}\n\n{SUMMARY_END} {_make_tag(text, key)}]"


def neutralize_summary_marks(text: str) -> str:
    """Change everything in a text that looks like the first or last line of a summary, so that none is recognised."""
    return _SUMMARY_MARK_PATTERN.sub("(", text)


def is_summary(message: Mapping[str, Any]) -> bool:
    """Return whether the message is, or contains, an Everthread summary."""
    return bool(message.get("_summary"))


def mark_summary(message: Message, key: bytes | None = None) -> Message:
    """Mark a message that contains a summary. With `key`, the mark is the summary's tag that the key proves."""
    texts = _list_text_parts(message) if key is not None else []
    tags = (
        _read_tag(text[slice(*span)])
        for text in texts
        for span in _find_summary_spans(text)
        if _has_valid_tag(text, span, key or b"")
    )
    return cast("Message", {**message, "_summary": next(filter(None, tags), True)})


def summary_text(message: Mapping[str, Any]) -> str:
    """Return the summary in a message, markers included, or an empty string if there is none."""
    location = _locate_summary(message) if is_summary(message) else None
    return _list_text_parts(message)[location[0]][slice(*location[1])] if location else ""


def is_unproven(summary: str) -> bool:
    """Return whether a summary has no tag. Its text is used as background only."""
    end_line = _END_LINE_PATTERN.search(summary)
    return end_line is None or end_line[1] is None


def is_summary_first(message: Mapping[str, Any]) -> bool:
    """Return whether the summary comes before the rest of the message."""
    location = _locate_summary(message)
    return (
        location is not None
        and location[0] == 0
        and not _list_text_parts(message)[0][: location[1][0]].strip()
    )


def without_summary(message: Message) -> Message | None:
    """Return the message without its summary, or None if nothing else is left."""
    if not is_summary(message):
        return message
    unmarked_message = cast("Message", without_keys(message, "_summary"))
    location = _locate_summary(message)
    if location is None:
        return unmarked_message
    text_index, (start, end) = location
    text = _list_text_parts(message)[text_index]
    remaining: Any = f"{text[:start]}{text[end:]}".strip()
    content: Any = message.get("content")
    if isinstance(content, list):
        part_index = [index for index, part in enumerate(content) if kind_of(part) == "text"][
            text_index
        ]
        remaining = [
            *content[:part_index],
            *([{**content[part_index], "text": remaining}] if remaining else []),
            *content[part_index + 1 :],
        ]
    return (
        with_content(unmarked_message, remaining or None)
        if remaining or message.get("tool_calls")
        else None
    )


def recognize_summaries(messages: Sequence[Message], key: bytes = b"") -> list[Message]:
    """Mark our summaries among messages from outside, by their tags.

    Existing marks are dropped, and a tool result is never a summary. If there is a key, a summary whose tag was made
    without it is not proved: a message that is only such a summary loses its tag and is used as background only.
    """
    return [_recognize_summary(message, key) for message in messages]


def strip_summary_marks(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without private marks, for other programs."""
    return [_strip_summary_mark(message) for message in messages]


def _strip_summary_mark(message: Message) -> Message:
    if "_summary" not in message:
        return message
    return cast("Message", without_keys(message, "_summary"))


def _recognize_summary(message: Message, key: bytes) -> Message:
    if "_summary" in message:
        message = strip_summary_marks([message])[0]
    if message.get("role") not in ("user", "assistant"):
        return message
    texts = _list_text_parts(message)
    for text in texts:
        for span in _find_summary_spans(text) if SUMMARY_START in text else ():
            if _has_valid_tag(text, span, key):
                return mark_summary(message, key)
            if (
                key
                and len(texts) == 1
                and _is_whole_text(text, span)
                and _has_valid_tag(text, span, b"")
            ):
                return mark_summary(
                    with_content(message, _END_LINE_PATTERN.sub(f"{SUMMARY_END}]", text))
                )
    return message


def _has_valid_tag(text: str, span: tuple[int, int], key: bytes) -> bool:
    summary = text[slice(*span)]
    end_line = _END_LINE_PATTERN.search(summary)
    if end_line is None or end_line[1] is None:
        return False
    return hmac.compare_digest(
        end_line[1], _make_tag(summary[: end_line.start()].removesuffix("\n\n"), key)
    )


def _read_tag(summary: str) -> str:
    """Return the tag in the last line of a summary, or an empty string if there is none."""
    end_line = _END_LINE_PATTERN.search(summary)
    return (end_line[1] or "") if end_line else ""


def _is_whole_text(text: str, span: tuple[int, int]) -> bool:
    return text.strip() == text[slice(*span)].strip()


def _list_text_parts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part_text(part) for part in as_list(content) if kind_of(part) == "text"]


def _find_summary_spans(text: str) -> list[tuple[int, int]]:
    """Find where a summary may be in a text: at its beginning, or at its end after other words."""
    spans: list[tuple[int, int]] = []
    text_start = len(text) - len(text.lstrip())
    if text.startswith(SUMMARY_START, text_start):
        end_line = _END_LINE_PATTERN.search(text, text_start)
        spans.append((text_start, end_line.end() if end_line else len(text)))
    start = text.rfind(f"\n{SUMMARY_START}") + 1
    end_line = _END_LINE_PATTERN.search(text, start) if start > text_start else None
    if end_line and not text[end_line.end() :].strip():
        spans.append((start, end_line.end()))
    return spans


def _locate_summary(message: Mapping[str, Any]) -> tuple[int, tuple[int, int]] | None:
    """Find the summary in a marked message: the index of the text that contains it, and its span in that text."""
    texts = _list_text_parts(message)
    locations = [
        (text_index, span)
        for text_index, text in enumerate(texts)
        for span in _find_summary_spans(text)
    ]
    if len(locations) < 2:
        return locations[0] if locations else None
    mark = message.get("_summary")

    def rate_location(location: tuple[int, tuple[int, int]]) -> int:
        summary = texts[location[0]][slice(*location[1])]
        tag = _read_tag(summary)
        if not tag or f"\n{SUMMARY_START}" in summary:
            return 0
        return 2 if tag == mark else 1

    return max(locations, key=rate_location)


def _make_tag(text: str, key: bytes) -> str:
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:16]
