"""Collect the facts of a conversation and locate each at its end: in the context, found by a search, or lost.

Files, commands and ids come from the calls' arguments, and errors from the output of commands by one pattern, because
the engine chooses what it keeps by other means. Every message of the user is a fact.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.conversation.conversation import Conversation
from everthread.core.messages import Message, ToolCall, calls_of, list_texts, results_of
from everthread.core.turns import is_user_message, user_text
from everthread.lab.replay.result import FactCounts, FactLocation
from everthread.store.search_records import SearchQuery

LATEST_REQUEST_KIND = "latest request"
USER_MESSAGE_KIND = "user messages"
ERROR_KIND = "errors of the last third"
FILE_KIND = "files touched"
COMMAND_KIND = "commands"
ID_KIND = "ids in calls"
FACT_KINDS = (
    LATEST_REQUEST_KIND,
    USER_MESSAGE_KIND,
    ERROR_KIND,
    FILE_KIND,
    COMMAND_KIND,
    ID_KIND,
)
MAX_FACT_CHARS = 80
"""Maximum length of a fact, in characters."""
EDGE_CHARS = 200
"""Characters of the start and of the end of a longer user message that are looked for."""

_PATH_KEYS = frozenset({"path", "file_path", "filename", "file", "target_file", "notebook_path"})
_COMMAND_KEYS = frozenset({"command", "cmd"})
_FILE_PATTERN = re.compile(r"[^\s\"'`]{1,160}\.\w{1,8}")
_ID_PATTERN = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_#]{4,24}")
_ERROR_PATTERN = re.compile(
    r"(?:\b[A-Z]\w*(?:Error|Exception)|\b[Ee]rror(?: ?\[?[A-Z]+\d+\]?)?|\bERROR|\bfatal)(?: \S+)?: .+"
)
_READ_ONLY_PROGRAM_PATTERN = re.compile(
    r"\b(?:grep|rg|cat|head|tail|sed|awk|ls|find|git (?:diff|log|show))\b"
)


@dataclass(frozen=True, slots=True)
class StatedFact:
    """A fact of the conversation: its kind and its text."""

    kind: str
    text: str


def collect_facts(messages: Sequence[Message]) -> list[StatedFact]:
    """Return every fact of the conversation once."""
    user_messages = [user_text(message).strip() for message in messages if is_user_message(message)]
    texts_by_kind: dict[str, list[str]] = {kind: [] for kind in FACT_KINDS}
    texts_by_kind[LATEST_REQUEST_KIND] = user_messages[-1:]
    texts_by_kind[ERROR_KIND] = [*_find_errors(messages)]
    for message in messages:
        for call in calls_of(message):
            for kind, value in _list_facts_in_call(call):
                texts_by_kind[kind].append(value)
    for kind, values in texts_by_kind.items():
        texts_by_kind[kind] = [_shorten(value) for value in values]
    for text in user_messages[:-1]:
        texts_by_kind[USER_MESSAGE_KIND] += _list_message_edges(text)
    facts = []
    for kind in FACT_KINDS:
        facts += [StatedFact(kind, text) for text in dict.fromkeys(texts_by_kind[kind]) if text]
    return facts


async def locate_facts(facts: Sequence[StatedFact], conversation: Conversation) -> FactCounts:
    """Locate each fact in the context or by a search of the store; the others are lost."""
    context = read_context(conversation.messages)
    located_facts = []
    for fact in facts:
        if fact.text in context:
            location = FactLocation.IN_CONTEXT
        elif await _is_found_by_search(fact.text, conversation):
            location = FactLocation.FOUND_BY_SEARCH
        else:
            location = FactLocation.LOST
        located_facts.append((fact.kind, fact.text, location))
    return FactCounts(located_facts)


def locate_facts_in_messages(
    facts: Sequence[StatedFact], messages: Sequence[Message]
) -> FactCounts:
    """Locate each fact in these messages; the others are lost, because there is no store to search."""
    context = read_context(messages)
    located_facts = []
    for fact in facts:
        location = FactLocation.IN_CONTEXT if fact.text in context else FactLocation.LOST
        located_facts.append((fact.kind, fact.text, location))
    return FactCounts(located_facts)


@dataclass(frozen=True, slots=True)
class MessageWords:
    """The text of some messages. `in` finds a fact as whole words, not as a part of longer words."""

    text: str

    def __contains__(self, words: object) -> bool:
        phrase = _normalize(str(words))
        may_start_anywhere = not re.match(_WORD_CHAR, phrase)
        may_end_anywhere = not re.search(rf"{_WORD_CHAR}\Z", phrase)
        start = self.text.find(phrase)
        while start >= 0:
            end = start + len(phrase)
            starts_whole = (
                may_start_anywhere or start == 0 or not re.match(_NAME_CHAR, self.text[start - 1])
            )
            ends_whole = (
                may_end_anywhere
                or end == len(self.text)
                or not re.match(_NAME_CHAR, self.text[end])
            )
            if starts_whole and ends_whole:
                return True
            start = self.text.find(phrase, start + 1)
        return False


def read_context(messages: Sequence[Message]) -> MessageWords:
    texts: list[str] = []
    for message in messages:
        texts += map(_normalize, list_texts(message))
    return MessageWords("\n".join(texts))


async def _is_found_by_search(text: str, conversation: Conversation) -> bool:
    """Return whether a search for the words finds them."""
    words = text.replace('"', " ")
    query = SearchQuery(f'"{words}"', thread=conversation.id, limit=1)
    return bool(await conversation.store.search(query))


def _list_facts_in_call(call: ToolCall) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each fact in a call's arguments."""
    parsed: Any = call.parsed
    arguments = parsed if isinstance(parsed, Mapping) else {}
    for key, argument in arguments.items():
        if not isinstance(argument, str):
            continue
        if key in _PATH_KEYS:
            if _FILE_PATTERN.fullmatch(argument):
                yield FILE_KIND, argument.removeprefix("./")
        elif key in _COMMAND_KEYS:
            # Beside a path it is an editor's command (`view`), not a shell's.
            if not _PATH_KEYS & arguments.keys():
                yield COMMAND_KIND, argument
        elif _ID_PATTERN.fullmatch(argument):
            yield ID_KIND, argument


def _find_errors(messages: Sequence[Message]) -> Iterable[str]:
    """Return the last error of every failed command. Skip commands that print files, whose errors may be content."""
    command_by_call_id: dict[str, str] = {}
    for message in messages:
        for call in calls_of(message):
            facts = _list_facts_in_call(call)
            command_by_call_id[call.id] = " ".join(
                text for kind, text in facts if kind == COMMAND_KIND
            )
    latest_error_by_command: dict[str, str] = {}
    for message in messages[len(messages) * 2 // 3 :]:
        for result in results_of(message):
            command = command_by_call_id.get(result.call_id)
            if not command or _READ_ONLY_PROGRAM_PATTERN.search(command):
                continue
            match = _ERROR_PATTERN.search(result.text)
            if match:
                latest_error_by_command[command] = match[0]
    return latest_error_by_command.values()


def _list_message_edges(text: str) -> Iterator[str]:
    """Yield a short message whole, or the start and the end of a longer message, in whole words."""
    line = " ".join(text.split())
    if len(line) <= 2 * EDGE_CHARS:
        yield line
        return
    yield line[:EDGE_CHARS].rpartition(" ")[0] or line[:EDGE_CHARS]
    yield line[-EDGE_CHARS:].partition(" ")[2] or line[-EDGE_CHARS:]


def _shorten(text: str) -> str:
    """Return the start of a text, in whole words and on one line. A single long word, such as a path, stays whole."""
    line = " ".join(text.split())
    if len(line) <= MAX_FACT_CHARS:
        return line
    return line[:MAX_FACT_CHARS].rpartition(" ")[0] or line.partition(" ")[0]


@functools.lru_cache(maxsize=1 << 14)
def _normalize(text: str) -> str:
    """Return the text without differences of white space, quotes, `./` and case."""
    return " ".join(re.sub(r"[`\"“”’]", "'", text).replace(" ./", " ").split()).lower()


_WORD_CHAR = "[a-z0-9_]"
_NAME_CHAR = "[a-z0-9_/-]"
"""Characters that continue a name or a number."""
