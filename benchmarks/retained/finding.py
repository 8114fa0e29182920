"""Whether a compacted context still holds a fact."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.retained.planted import Fact, Words
from benchmarks.retained.truth import REQUEST, arguments_of
from everthread.core.messages import Message

_WORDS = re.compile(r"^## What the User Said\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_TAKEN_BACK = re.compile(
    r"supersed|replaced|no longer|taken back|overrid|obsolete|revoked"
)


@dataclass(frozen=True, slots=True)
class Context:
    """Messages, and the texts among them that a contender wrote itself: a summary is read as one, not as talk."""

    messages: Sequence[Message]
    written: str = ""
    """The summary's text as it stands in one of the messages."""
    _lines: list[str] = field(default_factory=list)
    _told: list[str] = field(default_factory=list)

    def holds(self, fact: Fact) -> bool:
        if fact.kind == REQUEST:
            return any(
                _plain(fact.needles[0][0]) in _plain(text) for text in self._spoken()
            )
        if not self._lines:
            self._lines.extend(
                plain
                for line in "\n".join(map(text_of, self.messages)).split("\n")
                if (plain := _plain(line))
            )
            self._told.extend(
                _plain(line) for line in _WORDS.sub("", self.written).split("\n")
            )
        found = all(
            any(_has(line, group) for line in self._candidates(group))
            for group in fact.needles
        )
        return found and not (fact.old and self._presents(fact))

    def _candidates(self, group: Words) -> Iterator[str]:
        first = _plain(group[0])
        return (line for line in self._lines if first in line)

    def _presents(self, fact: Fact) -> bool:
        """Whether a decision that was taken back is told as if it held.

        In a summary, whose lines stand in no order of time, when its line does not say so. As talk, and in a section of
        the user's words in their order, when nothing after it says so.
        """
        newer = fact.needles[0]
        if any(
            _has(line, fact.old)
            and not _has(line, newer)
            and not _TAKEN_BACK.search(line)
            for line in self._told
        ):
            return True
        told = set(self._told)
        places = [
            place
            for place, line in enumerate(self._lines)
            if _has(line, fact.old) and line not in told
        ]
        return bool(places) and not any(
            _has(line, newer) for line in self._lines[places[-1] :]
        )

    def _spoken(self) -> Iterator[str]:
        """What the user says, outside of summaries."""
        for message in self.messages:
            if message.get("role") == "user":
                yield _content(message).replace(self.written or "\0", "")


def text_of(message: Message) -> str:
    """Everything a message says, calls' arguments included."""
    parts = [_content(message)]
    for call in message.get("tool_calls") or ():
        parts += _strings(arguments_of(call))
    return "\n".join(filter(None, parts))


def _content(message: Message) -> str:
    content: Any = message.get("content")
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", "")) for part in content if isinstance(part, dict)
        )
    return str(content or "")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        if "\n" in value:
            yield value.replace("\n", " ")  # a command of several lines is one command
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


@functools.lru_cache(maxsize=1 << 18)
def _plain(text: str) -> str:
    """Without what is a matter of typography: white space, quotes, `./`, capitals."""
    return " ".join(re.sub(r"[`\"“”’]", "'", text).replace(" ./", " ").split()).lower()


def _has(line: str, group: Words) -> bool:
    return all(_pattern(words).search(line) for words in group)


@functools.lru_cache(maxsize=1 << 16)
def _pattern(words: str) -> re.Pattern[str]:
    """The words as they are, not as a part of longer names or numbers."""
    plain = _plain(words)
    before = r"(?<![\w/-])" if re.match(r"[a-z0-9_]", plain) else ""
    after = r"(?![a-z0-9_/-])" if re.search(r"[a-z0-9_]$", plain) else ""
    return re.compile(before + re.escape(plain) + after, re.ASCII)
