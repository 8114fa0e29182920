"""What a context says, line by line: which words stand together, in what order of time, and who wrote them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from everthread.core.decisions import SUPERSEDED
from everthread.core.messages import Message, calls_of, results_of, strings_in, text_of
from everthread.store.base import StoredMessage

Words = tuple[str, ...]
"""Words that must stand on one line."""

_TAKEN_BACK = re.compile(r"supersed|replaced|no longer|taken back|overrid|obsolete|revoked")


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    message: int
    """Which message it stands in, from the oldest on."""
    summary: bool
    """It tells of something said earlier; the lines of one summary stand in no order of time."""


@dataclass(frozen=True, slots=True)
class Lines:
    lines: Sequence[Line]

    @classmethod
    def of(cls, stored: Iterable[StoredMessage]) -> Lines:
        """Of what is in view."""
        return cls(
            [
                Line(plain, at, message.kind == "summary")
                for at, message in enumerate(stored)
                for plain in _lines(message.body)
            ]
        )

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Lines:
        """Of excerpts, in the order they were said."""
        return cls([Line(plain(line), at, summary=False) for at, text in enumerate(texts) for line in text.split("\n")])

    def holds(self, words: Words) -> bool:
        return any(self.having(words))

    def having(self, words: Words) -> Iterator[Line]:
        return (line for line in self.lines if has(line.text, words))

    def revokes(self, words: Words) -> bool:
        """Whether the words are told, and every time as something that holds no longer."""
        found = list(self.having(words))
        return bool(found) and all(line.summary and line.text.endswith(SUPERSEDED) for line in found)

    def presents(self, old: Words, newer: Words) -> bool:
        """Whether what was taken back is told as if it held.

        In a summary, when its line does not say so and nothing in a later message does. As talk, when nothing after it
        does.
        """
        for place, line in enumerate(self.lines):
            if not has(line.text, old) or has(line.text, newer):
                continue
            if line.summary and _TAKEN_BACK.search(line.text):
                continue
            later = self.lines[place + 1 :]
            if not any(has(after.text, newer) for after in later if not line.summary or after.message > line.message):
                return True
        return False


def has(line: str, words: Words) -> bool:
    """Whether all the words stand on the line, none as a part of a longer name or number."""
    return all(_pattern(word).search(line) for word in words)


@functools.lru_cache(maxsize=1 << 16)
def plain(text: str) -> str:
    """Without what is a matter of typography: white space, quotes, `./`, capitals."""
    return " ".join(re.sub(r"[`\"“”’]", "'", text).replace(" ./", " ").split()).lower()


@functools.lru_cache(maxsize=1 << 12)
def _pattern(words: str) -> re.Pattern[str]:
    wanted = plain(words)
    before = r"(?<![\w/-])" if re.match(r"[a-z0-9_]", wanted) else ""
    after = r"(?![a-z0-9_/-])" if re.search(r"[a-z0-9_]$", wanted) else ""
    return re.compile(before + re.escape(wanted) + after, re.ASCII)


def _lines(message: Message) -> Iterator[str]:
    texts = [text_of(message), *(result.text for result in results_of(message))]
    texts += [text for call in calls_of(message) for text in strings_in(call.parsed)]
    for text in dict.fromkeys(texts):
        yield from (line for line in map(plain, text.split("\n")) if line)
