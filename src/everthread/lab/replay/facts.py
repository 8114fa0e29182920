"""What a conversation holds that must be found again: in the context at its end, else by a search of the store.

Files, commands and ids come from the calls' arguments, errors from the output of commands by one plain pattern: by
other means than the engine uses to choose what it keeps. What the user said is every one of the user's messages.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.conversation.conversation import Conversation
from everthread.core.messages import Call, Message, calls_of, results_of, strings_in, text_of
from everthread.core.transcript import is_user_message, user_text
from everthread.lab.replay.result import FactCounts
from everthread.store.models import SearchQuery

REQUEST, SAID, ERROR, FILE, COMMAND, ID = (
    "latest request",
    "user messages",
    "errors of the last third",
    "files touched",
    "commands",
    "ids in calls",
)
KINDS = (REQUEST, SAID, ERROR, FILE, COMMAND, ID)
SHOWN = 80
"""Characters by which a longer text is known."""
EDGE = 200
"""Of a longer message of the user, its first and its last so many characters are looked for."""

_PATHS = frozenset({"path", "file_path", "filename", "file", "target_file", "notebook_path"})
_COMMANDS = frozenset({"command", "cmd"})
_FILE = re.compile(r"[^\s\"'`]{1,160}\.\w{1,8}")
_ID = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_#]{4,24}")
_ERROR = re.compile(r"(?:\b[A-Z]\w*(?:Error|Exception)|\b[Ee]rror(?: ?\[?[A-Z]+\d+\]?)?|\bERROR|\bfatal)(?: \S+)?: .+")
_SHOWS = re.compile(r"\b(?:grep|rg|cat|head|tail|sed|awk|ls|find|git (?:diff|log|show))\b")


@dataclass(frozen=True, slots=True)
class Stated:
    kind: str
    text: str


def stated(messages: Sequence[Message]) -> list[Stated]:
    """Every fact of the conversation, once."""
    asked = [user_text(message).strip() for message in messages if is_user_message(message)]
    found: dict[str, Iterable[str]] = {
        REQUEST: map(_beginning, asked[-1:]),
        SAID: (part for text in asked[:-1] for part in _edges(text)),
        ERROR: map(_beginning, _errors(messages)),
        FILE: map(_beginning, _of_calls(messages, _files)),
        COMMAND: map(_beginning, _of_calls(messages, _commands)),
        ID: map(_beginning, _of_calls(messages, _ids)),
    }
    return [Stated(kind, text) for kind in KINDS for text in dict.fromkeys(found[kind]) if text]


async def judged(facts: Sequence[Stated], conversation: Conversation) -> FactCounts:
    """Which are in the conversation's context, which its store finds again, which are gone."""
    context = in_context(conversation.messages)
    named = []
    for fact in facts:
        place = 0 if fact.text in context else 1 if await _recalled(fact.text, conversation) else 2
        named.append((fact.kind, fact.text, place))
    return _counted(named)


def judged_alone(facts: Sequence[Stated], messages: Sequence[Message]) -> FactCounts:
    """The same for messages without a store behind them: what is not there is lost."""
    context = in_context(messages)
    return _counted([(fact.kind, fact.text, 0 if fact.text in context else 2) for fact in facts])


def _counted(named: Sequence[tuple[str, str, int]]) -> FactCounts:
    kinds: dict[str, list[int]] = {}
    for kind, _, place in named:
        kinds.setdefault(kind, [0, 0, 0])[place] += 1
    return FactCounts({kind: (found[0], found[1], found[2]) for kind, found in kinds.items()}, tuple(named))


@dataclass(frozen=True, slots=True)
class MessageWords:
    """All words of some messages; a fact is in it if its words stand there, not as a part of longer ones."""

    text: str

    @classmethod
    def of(cls, texts: Iterable[str]) -> MessageWords:
        return cls("\n".join(map(_plain, texts)))

    def __contains__(self, words: object) -> bool:
        plain = _plain(str(words))
        at = self.text.find(plain)
        while at >= 0:
            end = at + len(plain)
            if not _goes_on(self.text[at - 1 : at], plain[:1]) and not _goes_on(self.text[end : end + 1], plain[-1:]):
                return True
            at = self.text.find(plain, at + 1)
        return False


def in_context(messages: Sequence[Message]) -> MessageWords:
    return MessageWords.of(text for message in messages for text in _texts(message))


async def _recalled(text: str, conversation: Conversation) -> bool:
    """Whether a search for the words finds a place that holds them."""
    words = text.replace('"', " ")
    query = SearchQuery(f'"{words}"', thread=conversation.id, limit=1)
    return bool(await conversation.store.search(query))


def _texts(message: Message) -> Iterator[str]:
    yield text_of(message)
    for result in results_of(message):
        yield result.text
    for call in calls_of(message):
        yield from strings_in(call.parsed)


def _of_calls(messages: Sequence[Message], values: Callable[[Mapping[str, object]], Iterator[str]]) -> Iterator[str]:
    for message in messages:
        for call in calls_of(message):
            yield from values(_arguments(call))


def _arguments(call: Call) -> Mapping[str, object]:
    parsed: Any = call.parsed
    return parsed if isinstance(parsed, Mapping) else {}


def _files(arguments: Mapping[str, object]) -> Iterator[str]:
    for key, value in arguments.items():
        if key in _PATHS and isinstance(value, str) and _FILE.fullmatch(value):
            yield value.removeprefix("./")


def _commands(arguments: Mapping[str, object]) -> Iterator[str]:
    if _PATHS & arguments.keys():
        return  # an editor's command (`view`), not a shell's
    for key, value in arguments.items():
        if key in _COMMANDS and isinstance(value, str):
            yield value


def _ids(arguments: Mapping[str, object]) -> Iterator[str]:
    for key, value in arguments.items():
        if key not in _PATHS | _COMMANDS and isinstance(value, str) and _ID.fullmatch(value):
            yield value


def _errors(messages: Sequence[Message]) -> Iterable[str]:
    """The last error of every command that failed; one that shows a file shows that file's words."""
    commands = {call.id: " ".join(_commands(_arguments(call))) for message in messages for call in calls_of(message)}
    latest: dict[str, str] = {}
    for message in messages[len(messages) * 2 // 3 :]:
        for given in results_of(message):
            command = commands.get(given.call_id, "")
            found = _ERROR.search(given.text) if command and not _SHOWS.search(command) else None
            if found:
                latest[command] = found[0]
    return latest.values()


def _edges(text: str) -> Iterator[str]:
    """A short message whole; of a longer one its beginning and its end, in whole words."""
    line = " ".join(text.split())
    if len(line) <= 2 * EDGE:
        yield line
        return
    yield line[:EDGE].rpartition(" ")[0] or line[:EDGE]
    yield line[-EDGE:].partition(" ")[2] or line[-EDGE:]


def _beginning(text: str) -> str:
    """So much of a text, in whole words and on one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[:SHOWN].rpartition(" ")[0] or line[:SHOWN]


@functools.lru_cache(maxsize=1 << 14)
def _plain(text: str) -> str:
    """Without what is a matter of typography: white space, quotes, `./`, capitals."""
    return " ".join(re.sub(r"[`\"“”’]", "'", text).replace(" ./", " ").split()).lower()


def _goes_on(beside: str, edge: str) -> bool:
    """Whether a name or a number goes on beyond its edge."""
    return edge in _WORD and beside in _JOINING and bool(beside and edge)


_WORD = "abcdefghijklmnopqrstuvwxyz0123456789_"
_JOINING = f"{_WORD}/-"
