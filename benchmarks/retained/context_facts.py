"""Decide whether a compacted context still contains a fact."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.retained.conversation_facts import REQUEST, arguments_of
from benchmarks.retained.planted_turns import Fact, Words
from everthread.core.messages import Message

_USER_WORDS_SECTION = re.compile(
    r"^## What the User Said\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL
)
_REVOKED = re.compile(r"supersed|replaced|no longer|taken back|overrid|obsolete|revoked")


@dataclass(frozen=True, slots=True)
class Context:
    """Messages, and the summary that a contender wrote, which is read differently from the conversation."""

    messages: Sequence[Message]
    written: str = ""
    """The summary's text, as in one of the messages."""
    _lines: list[str] = field(default_factory=list)
    _told: list[str] = field(default_factory=list)

    def holds(self, fact: Fact) -> bool:
        if fact.kind == REQUEST:
            return any(
                _normalize(fact.needles[0][0]) in _normalize(text)
                for text in self._list_user_texts()
            )
        if not self._lines:
            self._lines.extend(
                plain
                for line in "\n".join(map(whole_text, self.messages)).split("\n")
                if (plain := _normalize(line))
            )
            self._told.extend(
                _normalize(line) for line in _USER_WORDS_SECTION.sub("", self.written).split("\n")
            )
        found = all(
            any(_contains(line, group) for line in self._find_candidates(group))
            for group in fact.needles
        )
        return found and not (fact.old and self._presents_old_decision(fact))

    def _find_candidates(self, group: Words) -> Iterator[str]:
        first = _normalize(group[0])
        return (line for line in self._lines if first in line)

    def _presents_old_decision(self, fact: Fact) -> bool:
        """Return whether a revoked decision is presented as valid.

        In a summary, whose lines have no order in time, it is if its line does not say that it was revoked. In the
        conversation and in a section of the user's words, it is if no later line has the newer decision.

        """
        newer = fact.needles[0]
        if any(
            _contains(line, fact.old) and not _contains(line, newer) and not _REVOKED.search(line)
            for line in self._told
        ):
            return True
        told = set(self._told)
        places = [
            place
            for place, line in enumerate(self._lines)
            if _contains(line, fact.old) and line not in told
        ]
        return bool(places) and not any(
            _contains(line, newer) for line in self._lines[places[-1] :]
        )

    def _list_user_texts(self) -> Iterator[str]:
        """Yield the user's texts, without summaries."""
        for message in self.messages:
            if message.get("role") == "user":
                yield _content(message).replace(self.written or "\0", "")


def whole_text(message: Message) -> str:
    """Return all texts of a message, the arguments of calls included."""
    parts = [_content(message)]
    for call in message.get("tool_calls") or ():
        parts += _list_strings(arguments_of(call))
    return "\n".join(filter(None, parts))


def _content(message: Message) -> str:
    content: Any = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _list_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        if "\n" in value:
            yield value.replace("\n", " ")  # a command of several lines is one command
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _list_strings(item)


@functools.lru_cache(maxsize=1 << 18)
def _normalize(text: str) -> str:
    """Return a text without differences of typography: white space, quotes, `./`, capitals."""
    return " ".join(re.sub(r"[`\"“”’]", "'", text).replace(" ./", " ").split()).lower()


def _contains(line: str, group: Words) -> bool:
    return all(_make_pattern(words).search(line) for words in group)


@functools.lru_cache(maxsize=1 << 16)
def _make_pattern(words: str) -> re.Pattern[str]:
    """Return a pattern for the words, but not as a part of longer names or numbers."""
    plain = _normalize(words)
    before = r"(?<![\w/-])" if re.match(r"[a-z0-9_]", plain) else ""
    after = r"(?![a-z0-9_/-])" if re.search(r"[a-z0-9_]$", plain) else ""
    return re.compile(before + re.escape(plain) + after, re.ASCII)
