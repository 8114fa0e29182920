"""Find the facts of a conversation that must be kept, with simple patterns on its raw messages.

Nothing here uses the extractors under test: files, commands and ids come from the calls' JSON arguments, errors from
the output of commands by one plain pattern. The other facts were planted and labelled by hand.

"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from benchmarks.retained.planted_turns import Fact
from everthread.core.messages import Message

REQUEST = "latest request"
FILE = "file touched"
COMMAND = "command"
ID = "id in a call"
ERROR = "error"
COMMAND_CHARS = 80
"""Characters of a command that must be kept."""
ERROR_CHARS = 120

_PATH_KEYS = frozenset({"path", "file_path", "filename", "file", "target_file", "notebook_path"})
_COMMAND_KEYS = frozenset({"command", "cmd"})
_FILE = re.compile(r"[^\s\"'`]{1,160}\.\w{1,8}")
_ID = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_#]{4,24}")
_ERROR = re.compile(
    r"(?:\b[A-Z]\w*(?:Error|Exception)|\b[Ee]rror(?: ?\[?[A-Z]+\d+\]?)?|\bERROR|\bfatal)(?: \S+)?: .+"
)
_SHOWS_FILES = re.compile(r"\b(?:grep|rg|cat|head|tail|sed|awk|ls|find|git (?:diff|log|show))\b")


@dataclass(frozen=True, slots=True)
class PlantedFact:
    fact: Fact
    where: int
    """Number of messages before it."""


def find_facts(messages: Sequence[Message], planted: Iterable[PlantedFact]) -> list[Fact]:
    """Return every fact of the conversation so far; of the errors, those of the last third."""
    late = len(messages) * 2 // 3
    found = [_make_fact(REQUEST, _find_latest_request(messages))]
    found += (entry.fact for entry in planted if entry.fact.kind != ERROR or entry.where >= late)
    for kind, values in (
        (FILE, _find_files),
        (COMMAND, _find_commands),
        (ID, _find_ids),
    ):
        found += (
            _make_fact(kind, value)
            for value in dict.fromkeys(
                chain.from_iterable(map(values, _list_call_arguments(messages)))
            )
        )
    found += (_make_fact(ERROR, line) for line in dict.fromkeys(_find_errors(messages, late)))
    return found


def _make_fact(kind: str, text: str) -> Fact:
    return Fact(kind, ((text,),))


def _find_latest_request(messages: Sequence[Message]) -> str:
    return next(
        str(m["content"])
        for m in reversed(messages)
        if m["role"] == "user" and str(m["content"]).strip()
    )


def _list_call_arguments(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of every call."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield arguments_of(call)


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(call["function"]["arguments"])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _find_files(arguments: dict[str, Any]) -> Iterator[str]:
    for key, value in arguments.items():
        if key in _PATH_KEYS and isinstance(value, str) and _FILE.fullmatch(value):
            yield value.removeprefix("./")


def _find_commands(arguments: dict[str, Any]) -> Iterator[str]:
    if _PATH_KEYS & arguments.keys():
        return  # an editor's command (`view`), not a shell's
    for key, value in arguments.items():
        if key in _COMMAND_KEYS and isinstance(value, str) and value.strip():
            yield _cut_at_word(" ".join(value.split()), COMMAND_CHARS)


def _find_ids(arguments: dict[str, Any]) -> Iterator[str]:
    for key, value in arguments.items():
        if (
            key not in _PATH_KEYS | _COMMAND_KEYS
            and isinstance(value, str)
            and _ID.fullmatch(value)
        ):
            yield value


def _find_errors(messages: Sequence[Message], start: int) -> Iterable[str]:
    """Return the first line of the last error of every failed command, except commands that show files."""
    commands = {
        call["id"]: " ".join(_find_commands(arguments_of(call)))
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    latest: dict[str, str] = {}
    for message in messages[start:]:
        command = commands.get(str(message.get("tool_call_id")), "")
        if message["role"] == "tool" and command and not _SHOWS_FILES.search(command):
            found = _ERROR.search(str(message["content"]))
            if found:
                latest[command] = _cut_at_word(found[0].strip(), ERROR_CHARS)
    return latest.values()


def _cut_at_word(text: str, length: int) -> str:
    """Return the beginning of a text, cut after a whole word."""
    return text if len(text) <= length else text[:length].rpartition(" ")[0] or text[:length]
