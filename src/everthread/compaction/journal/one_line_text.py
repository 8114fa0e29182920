"""Write notes and closing words of the journal on one line, cut between words and without secrets."""

from __future__ import annotations

import re

from everthread.compaction.journal.conclusions import LINE_SEPARATOR
from everthread.core.secrets.redaction import clip_words, redact
from everthread.core.summary_marks import neutralize_summary_marks
from everthread.core.text import one_line

ERROR_START = "error: "
"""The start of an error line, which follows the line of the failed step."""
_MAX_NOTE_CHARS = 1_500
_MAX_CLOSING_CHARS = 6_000
"""Characters of an answer to read; far fewer are shown."""
_CODE_MARK = "[code]"
_TAG_PATTERN = re.compile(r"</?[\w -]{1,40}>")
_COLONS = (":", "：")
NEW_LINE = "\n"
_RULE_LINE_PATTERN = re.compile(r"[-|:=*_ ]{3,}")
"""A horizontal rule, or the line between a table's head and its rows."""
_ACTION_STARTS = ("changed ", "ran `", "called ")
"""Starts of the part of a line that describes an action."""
_NOTE_END_PATTERN = re.compile(r" — (?:changed |ran `|called )")


def shorten_note(text: str) -> str:
    """Return the assistant's text before its calls on one line, without code and with marks between its lines."""
    lines = _list_prose_lines(text, _MAX_NOTE_CHARS)
    lines = [line for line in lines if line != _CODE_MARK]
    return clip_line(LINE_SEPARATOR.join(lines), _MAX_NOTE_CHARS)


def split_note(line: str) -> tuple[str, str]:
    """Return the note of a step's line, and the remainder of the line."""
    if line.startswith((ERROR_START, *_ACTION_STARTS)):
        return "", line
    note_end = _NOTE_END_PATTERN.search(line)
    return (line[: note_end.start()], line[note_end.start() :]) if note_end else (line, "")


def shorten_closing_words(text: str) -> str:
    """Return an answer on one line, without code and with marks between its lines."""
    return LINE_SEPARATOR.join(_list_prose_lines(text, _MAX_CLOSING_CHARS))


def _list_prose_lines(text: str, max_chars: int) -> list[str]:
    """Return the first and last lines of a text without its code, with a mark for each piece of it.

    Marks of code at the end are dropped, and lines that only introduce them.
    """
    # A cut inside a piece of code would make code of the prose after it.
    prose = f"\n{_CODE_MARK}\n".join(text.strip().split("```")[::2])
    if len(prose) > max_chars:
        half = max_chars // 2
        prose = f"{prose[:half].rpartition(NEW_LINE)[0]}\n{prose[-half:].partition(NEW_LINE)[2]}"
    lines = [" ".join(words) for line in prose.split("\n") if (words := line.split())]
    lines = [line for line in lines if not _RULE_LINE_PATTERN.fullmatch(line)]
    has_dropped_code = False
    while lines and (
        lines[-1] == _CODE_MARK
        or _TAG_PATTERN.fullmatch(lines[-1])
        or (has_dropped_code and lines[-1].endswith(_COLONS))
    ):
        has_dropped_code = lines.pop() == _CODE_MARK or has_dropped_code
    return lines


def clip_line(text: str, limit: int = 240) -> str:
    """Clip a text to one line of at most `limit` characters. A secret at the cut is redacted; others are later."""
    return clip_words(one_line(text), limit).replace("……", "…")


def redact_text(text: str) -> str:
    """Redact a text, and neutralise markers of summaries in it."""
    return neutralize_summary_marks(redact(text))
