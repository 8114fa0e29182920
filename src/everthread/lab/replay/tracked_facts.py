"""The facts of a conversation, and where each is at the end: in the context, found by a search of the store, or lost.

Files, commands and ids come from the calls' arguments, errors from the output of commands by one pattern: the engine
chooses what it keeps by other means. Every message of the user is a fact.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.conversation.conversation import Conversation
from everthread.core.messages import (
    Call,
    Message,
    calls_of,
    iterate_strings,
    results_of,
    text_of,
)
from everthread.core.transcript import is_user_message, user_text
from everthread.lab.replay.result import FactCounts
from everthread.store.records import SearchQuery

REQUEST = "latest request"
SAID = "user messages"
ERROR = "errors of the last third"
FILE = "files touched"
COMMAND = "commands"
ID = "ids in calls"
KINDS = (REQUEST, SAID, ERROR, FILE, COMMAND, ID)
FACT_CHARS = 80
"""Maximum length of a fact, in characters."""
EDGE_CHARS = 200
"""Characters of the start and of the end of a longer user message that are looked for."""

_PATHS = frozenset(
    {"path", "file_path", "filename", "file", "target_file", "notebook_path"}
)
_COMMANDS = frozenset({"command", "cmd"})
_FILE = re.compile(r"[^\s\"'`]{1,160}\.\w{1,8}")
_ID = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_#]{4,24}")
_ERROR = re.compile(
    r"(?:\b[A-Z]\w*(?:Error|Exception)|\b[Ee]rror(?: ?\[?[A-Z]+\d+\]?)?|\bERROR|\bfatal)(?: \S+)?: .+"
)
_READ_ONLY_PROGRAM = re.compile(
    r"\b(?:grep|rg|cat|head|tail|sed|awk|ls|find|git (?:diff|log|show))\b"
)


@dataclass(frozen=True, slots=True)
class StatedFact:
    kind: str
    text: str


def collect_facts(messages: Sequence[Message]) -> list[StatedFact]:
    """Every fact of the conversation, once."""
    questions = [
        user_text(message).strip() for message in messages if is_user_message(message)
    ]
    texts: dict[str, list[str]] = {kind: [] for kind in KINDS}
    texts[REQUEST] = questions[-1:]
    texts[ERROR] = [*_errors(messages)]
    for message in messages:
        for call in calls_of(message):
            for kind, value in _facts_in_call(call):
                texts[kind].append(value)
    facts = {
        kind: dict.fromkeys(_shorten(value) for value in values)
        for kind, values in texts.items()
    }
    facts[SAID] = dict.fromkeys(
        part for text in questions[:-1] for part in _message_edges(text)
    )
    return [StatedFact(kind, text) for kind in KINDS for text in facts[kind] if text]


async def judge_facts(
    facts: Sequence[StatedFact], conversation: Conversation
) -> FactCounts:
    """Count the facts in the context, those that a search of the store finds, and those that are lost."""
    context = in_context(conversation.messages)
    places = []
    for fact in facts:
        place = (
            0
            if fact.text in context
            else 1
            if await _is_found_by_search(fact.text, conversation)
            else 2
        )
        places.append((fact.kind, fact.text, place))
    return FactCounts(places)


def judge_messages(
    facts: Sequence[StatedFact], messages: Sequence[Message]
) -> FactCounts:
    """Count the facts in messages without a store: the others are lost."""
    context = in_context(messages)
    return FactCounts(
        [(fact.kind, fact.text, 0 if fact.text in context else 2) for fact in facts]
    )


@dataclass(frozen=True, slots=True)
class MessageWords:
    """The text of some messages; a fact is in it as whole words, not as a part of longer ones."""

    text: str

    def __contains__(self, words: object) -> bool:
        plain = _normalize(str(words))
        begins_open = not re.match(_WORD, plain)
        ends_open = not re.search(rf"{_WORD}\Z", plain)
        at = self.text.find(plain)
        while at >= 0:
            end = at + len(plain)
            begins = (
                begins_open or at == 0 or not re.match(_NAME_CHARS, self.text[at - 1])
            )
            ends = (
                ends_open
                or end == len(self.text)
                or not re.match(_NAME_CHARS, self.text[end])
            )
            if begins and ends:
                return True
            at = self.text.find(plain, at + 1)
        return False


def in_context(messages: Sequence[Message]) -> MessageWords:
    return MessageWords(
        "\n".join(_normalize(text) for message in messages for text in _texts(message))
    )


async def _is_found_by_search(text: str, conversation: Conversation) -> bool:
    """Whether a search for the words finds them."""
    words = text.replace('"', " ")
    query = SearchQuery(f'"{words}"', thread=conversation.id, limit=1)
    return bool(await conversation.store.search(query))


def _texts(message: Message) -> Iterator[str]:
    yield text_of(message)
    for result in results_of(message):
        yield result.text
    for call in calls_of(message):
        yield from iterate_strings(call.parsed)


def _facts_in_call(call: Call) -> Iterator[tuple[str, str]]:
    """Yield kind and text of the things that a call names."""
    parsed: Any = call.parsed
    arguments = parsed if isinstance(parsed, Mapping) else {}
    for key, value in arguments.items():
        if not isinstance(value, str):
            continue
        if key in _PATHS:
            if _FILE.fullmatch(value):
                yield FILE, value.removeprefix("./")
        elif key in _COMMANDS:
            # Beside a path it is an editor's command (`view`), not a shell's.
            if not _PATHS & arguments.keys():
                yield COMMAND, value
        elif _ID.fullmatch(value):
            yield ID, value


def _errors(messages: Sequence[Message]) -> Iterable[str]:
    """The last error of every failed command. Commands that print files are left out: their errors may be content."""
    commands = {
        call.id: " ".join(
            text for kind, text in _facts_in_call(call) if kind == COMMAND
        )
        for message in messages
        for call in calls_of(message)
    }
    latest: dict[str, str] = {}
    for message in messages[len(messages) * 2 // 3 :]:
        for result in results_of(message):
            command = commands.get(result.call_id, "")
            match = (
                _ERROR.search(result.text)
                if command and not _READ_ONLY_PROGRAM.search(command)
                else None
            )
            if match:
                latest[command] = match[0]
    return latest.values()


def _message_edges(text: str) -> Iterator[str]:
    """A short message whole; of a longer one its start and its end, in whole words."""
    line = " ".join(text.split())
    if len(line) <= 2 * EDGE_CHARS:
        yield line
        return
    yield line[:EDGE_CHARS].rpartition(" ")[0] or line[:EDGE_CHARS]
    yield line[-EDGE_CHARS:].partition(" ")[2] or line[-EDGE_CHARS:]


def _shorten(text: str) -> str:
    """Return the start of a text, in whole words and on one line. A single long word, such as a path, stays whole."""
    line = " ".join(text.split())
    return (
        line
        if len(line) <= FACT_CHARS
        else line[:FACT_CHARS].rpartition(" ")[0] or line.partition(" ")[0]
    )


@functools.lru_cache(maxsize=1 << 14)
def _normalize(text: str) -> str:
    """The text without differences of white space, quotes, `./` and case."""
    return " ".join(re.sub(r"[`\"“”’]", "'", text).replace(" ./", " ").split()).lower()


_WORD = "[a-z0-9_]"
_NAME_CHARS = "[a-z0-9_/-]"
"""Characters that continue a name or a number."""
