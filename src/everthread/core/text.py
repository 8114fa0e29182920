"""Small helpers for texts that are shown in one line."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_BLANK = re.compile(r"[\s\x00-\x1f\x7f]+")


def one_line(text: str) -> str:
    """The start of a text as one line, without control characters."""
    line = " ".join(text[:2_000].split())
    return line if line.isprintable() else _BLANK.sub(" ", _ANSI.sub("", text[:2_000])).strip()


def clip(text: str, room: int) -> str:
    """The text in at most `room` characters."""
    if len(text) <= room:
        return text
    return text[: room - 1].rstrip() + "…" if room > 0 else ""
