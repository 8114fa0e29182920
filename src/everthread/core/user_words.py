"""Find the user's own words in a message, among the texts that clients write around them.

Patterns of these texts are data, for each client (`data/clients.json`).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple


def user_words_in(texts: Sequence[str]) -> list[str]:
    """Return the user's own words in each text of one message."""
    texts_in_envelopes = [inner for text in texts for inner in _read_envelopes(text)]
    user_texts = texts_in_envelopes or _drop_expanded_prompt(texts)
    return [words for text in user_texts if (words := strip_injected(text))]


def _drop_expanded_prompt(texts: Sequence[str]) -> Sequence[str]:
    """Return the texts without the prompt that a client adds for a slash command.

    A command that the client answers itself adds none: texts after it are the user's.
    """
    patterns = _load_client_patterns()
    if len(texts) < 2 or any(map(patterns.local_command_tag.search, texts)):
        return texts
    for index, text in enumerate(texts):
        if patterns.command_tag.search(text):
            return texts[: index + 1]
    return texts


def find_typed_words(result: str, tool: str, *, failed: bool) -> str:
    """Return the words that the user typed into a tool result, to refuse a call or to answer a question; else empty."""
    patterns = _load_client_patterns()
    words = ""
    if failed and (refusal := patterns.find_refusal(result)):
        words = result.partition(refusal.line_before_words)[2]
    for question_tool, beginning, end in patterns.question_tools:
        if tool == question_tool and result.startswith(beginning):
            words = result.removeprefix(beginning).rstrip().removesuffix(end)
    if not words:
        return ""
    for note in patterns.notes_without_words:
        words, _, after_note = f"\n{words.lstrip()}".partition(f"\n{note}")
        words += _find_given_answers(after_note)
    return strip_injected(words)


def is_refused_call(result: str) -> bool:
    """Return whether a tool result is a client's text for a call that the user refused."""
    return _load_client_patterns().find_refusal(result) is not None


def strip_injected(text: str) -> str:
    """Return the text, trimmed, without elements that clients inject around it. An unclosed tag is text."""
    patterns = _load_client_patterns()
    text = _unwrap_queued_words(text)
    if text.lstrip().startswith(patterns.notes_without_words):
        text = _find_given_answers(text)
    text = _remove_elements(text, patterns.injected_tag)
    if patterns.beginning.match(text.lstrip()):
        speech_texts = [
            text[element.content_start : element.content_end]
            for element in _find_elements(text, patterns.speech_tag)
        ]
        text = "\n".join(
            [
                *speech_texts,
                *(text.partition(mark)[2] for mark in patterns.marks_before_words),
            ]
        )
    return _remove_elements(text, patterns.speech_tag, remove_content=False).strip()


def _find_given_answers(text: str) -> str:
    """Return the answers that the user gave in a client's text, each on lines of its own below its question."""
    answers = _load_client_patterns().given_answer.finditer(text)
    return "".join(f"\n{answer[0]}" for answer in answers)


def remove_volatile_elements(text: str) -> str:
    """Return the text, trimmed, without parts that a client may change in the next request."""
    return _remove_elements(text, _load_client_patterns().surrounding_tag).strip()


def _unwrap_queued_words(text: str) -> str:
    """Return the text without the client's notes around words that were typed while the agent worked."""
    patterns = _load_client_patterns()
    for note in patterns.queued_notes:
        match = note.opening.search(text) if note.line_before_words in text else None
        while match:
            inner = match.end()
            end_positions = [
                position for end in note.ends if (position := text.find(end, inner)) >= 0
            ]
            tag = match[1]
            close = text.find(f"</{tag}>", inner) if tag else -1
            note_end = close + len(tag) + 3 if close >= 0 else len(text)
            words = text[inner : min([*end_positions, close if close >= 0 else note_end])]
            text = f"{text[: match.start()]}{words}{text[note_end:]}"
            match = note.opening.search(text, match.start() + len(words))
    return text


class TaskEnd(NamedTuple):
    """A client's notice that a background task ended."""

    task_id: str
    status: str
    description: str


def find_task_ends(text: str) -> list[TaskEnd]:
    """Return the background tasks that ended, according to the client's notices in a user's message."""
    task_ends = []
    for tag, *fields in _load_client_patterns().task_notices:
        _, *notices = text.split(f"<{tag}>")
        for notice in notices:
            values = (
                notice.partition(f"<{name}>")[2].partition(f"</{name}>")[0].strip()
                for name in fields
            )
            task_ends.append(TaskEnd(*values))
    return task_ends


class _Element(NamedTuple):
    """Positions of `<tag …>…</tag>`: its start, the start and end of its content, its end."""

    start: int
    content_start: int
    content_end: int
    end: int


def _remove_elements(text: str, opening: re.Pattern[str], *, remove_content: bool = True) -> str:
    """Return the text without these elements; or only without their tags, with their content kept."""
    parts: list[str] = []
    position = 0
    for element in _find_elements(text, opening):
        parts.append(text[position : element.start])
        if not remove_content:
            parts.append(text[element.content_start : element.content_end].strip())
        position = element.end
    return "".join((*parts, text[position:]))


def _find_elements(text: str, opening: re.Pattern[str]) -> Iterator[_Element]:
    """Yield the outermost closed elements, in one pass."""
    unclosed: set[str] = set()
    match = opening.search(text) if "<" in text else None
    while match:
        tag = match[1]
        position = match.end()
        close = -1 if tag in unclosed else text.find(f"</{tag}>", position)
        if close < 0:
            unclosed.add(tag)
        else:
            position = close + len(tag) + 3
            yield _Element(match.start(), match.end(), close, position)
        match = opening.search(text, position)


def _read_envelopes(text: str) -> Iterator[str]:
    """Yield the texts inside envelopes. An envelope without an end reaches to the end of the text."""
    for start, end in _load_client_patterns().envelopes:
        position = text.find(start)
        while position >= 0:
            content_start = position + len(start)
            close = text.find(end, content_start) if end else len(text)
            if close < 0:
                break
            yield text[content_start:close]
            position = text.find(start, close)


class _Refusal(NamedTuple):
    """Start of a refused call's result, and the line in it that precedes the user's words."""

    beginning: str
    line_before_words: str


class _QueuedNote(NamedTuple):
    """A client's note around words that the user typed while the agent worked: the line before, the texts after."""

    line_before_words: str
    opening: re.Pattern[str]
    ends: tuple[str, ...]


class _ClientPatterns:
    """Patterns of the texts that clients write around the user's words (`data/clients.json`)."""

    def __init__(self) -> None:
        data = json.loads(
            resources.files("everthread.core").joinpath("data/clients.json").read_text("utf-8")
        )
        self._clients: list[dict[str, list[Any]]] = list(data["clients"].values())
        self.envelopes: list[tuple[str, str]] = self._collect("envelopes")
        self.speech_tag = _compile_opening_pattern(self._collect("speech"))
        self.surrounding_tag = _compile_opening_pattern(self._collect("surroundings"))
        self.injected_tag = _compile_opening_pattern(
            [*self._collect("surroundings"), *self._collect("records")]
        )
        self.beginning = re.compile("|".join(self._collect("beginnings")))
        self.marks_before_words: list[str] = self._collect("after")
        self.command_tag = _compile_opening_pattern(self._collect("commands"))
        self.local_command_tag = _compile_opening_pattern(self._collect("local"))
        self.question_tools: list[tuple[str, str, str]] = self._collect("answered")
        self.given_answer = re.compile("|".join(self._collect("answers")), re.MULTILINE)
        self.task_notices: list[list[str]] = self._collect("ended")
        self.notes_without_words = tuple(self._collect("no_words"))
        self.queued_notes = [
            _QueuedNote(
                line,
                re.compile(rf"(?:<([\w-]{{1,40}})>\s*)?{re.escape(line)}"),
                tuple(ends),
            )
            for line, ends in self._collect("queued")
        ]
        self._refusals = [_Refusal(*pair) for pair in self._collect("rejected")]

    def _collect(self, name: str) -> list[Any]:
        return [item for client in self._clients for item in client.get(name, ())]

    def find_refusal(self, result: str) -> _Refusal | None:
        start = result[:200].lstrip()
        return next(
            (refusal for refusal in self._refusals if start.startswith(refusal.beginning)),
            None,
        )


@functools.cache
def _load_client_patterns() -> _ClientPatterns:
    return _ClientPatterns()


def _compile_opening_pattern(tags: Sequence[str]) -> re.Pattern[str]:
    names = "|".join(re.escape(tag) for tag in tags)
    return re.compile(rf"<({names})(?:\s[^<>]*)?>")
