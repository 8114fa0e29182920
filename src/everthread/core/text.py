"""Write texts on one line, shorten them, and count in words.

- `one_line` and `clip` do one thing each: the first joins the lines, the second limits the length.
- `excerpt` does both, for people: the first words of a text in a list, a log line or an error.
- `secrets.redaction.clip_words` cuts between words and redacts a secret at the cut, because half of one would not be
  recognised. Use it for texts that are stored or sent to a model; `clip_line` of the journal also joins their lines.
- `tool_outputs.cut_middle` keeps the start and the end of a long output.
"""

from __future__ import annotations

import re

_ANSI_PATTERN = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_BLANK_PATTERN = re.compile(r"[\s\x00-\x1f\x7f]+")


def one_line(text: str) -> str:
    """Return the start of a text as one line, without control characters."""
    start = text[:2_000]
    line = " ".join(start.split())
    if line.isprintable():
        return line
    return _BLANK_PATTERN.sub(" ", _ANSI_PATTERN.sub("", start)).strip()


def clip(text: str, max_chars: int) -> str:
    """Return the text in at most `max_chars` characters."""
    if len(text) <= max_chars:
        return text
    return f"{text[: max_chars - 1].rstrip()}…" if max_chars > 0 else ""


def count_noun(count: int, noun: str) -> str:
    """Return the count with its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def excerpt(text: str, width: int = 60) -> str:
    """Return the first words on one line, without unprintable characters."""
    start = text[: 4 * width]
    printable_text = "".join(char if char.isprintable() else " " for char in start)
    line = " ".join(printable_text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
