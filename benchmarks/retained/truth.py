"""What a conversation holds that must be found again, read from its raw messages by simple means of its own.

Nothing here uses the extractors under test: files, commands and ids come from the calls' arguments as JSON, errors from
the output of commands by one plain pattern, the rest was planted and labelled by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from benchmarks.retained.planted import Fact
from everthread.core.messages import Message

REQUEST = "latest request"
FILE = "file touched"
COMMAND = "command"
ID = "id in a call"
ERROR = "error"
COMMAND_CHARS = 80
"""A command is known by its beginning."""
ERROR_CHARS = 120

_PATH_KEYS = frozenset(
    {"path", "file_path", "filename", "file", "target_file", "notebook_path"}
)
_COMMAND_KEYS = frozenset({"command", "cmd"})
_FILE = re.compile(r"[^\s\"'`]{1,160}\.\w{1,8}")
_ID = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_#]{4,24}")
_ERROR = re.compile(
    r"(?:\b[A-Z]\w*(?:Error|Exception)|\b[Ee]rror(?: ?\[?[A-Z]+\d+\]?)?|\bERROR|\bfatal)(?: \S+)?: .+"
)
_SHOWS = re.compile(
    r"\b(?:grep|rg|cat|head|tail|sed|awk|ls|find|git (?:diff|log|show))\b"
)


@dataclass(frozen=True, slots=True)
class Planted:
    fact: Fact
    where: int
    """How many messages stood before it."""


def facts_of(messages: Sequence[Message], planted: Iterable[Planted]) -> list[Fact]:
    """Every fact of the conversation so far; of the errors those of the last third."""
    late = len(messages) * 2 // 3
    found = [_alone(REQUEST, _latest_request(messages))]
    found += (
        entry.fact
        for entry in planted
        if entry.fact.kind != ERROR or entry.where >= late
    )
    for kind, values in ((FILE, _files), (COMMAND, _commands), (ID, _ids)):
        found += (
            _alone(kind, value)
            for value in dict.fromkeys(
                chain.from_iterable(map(values, _calls(messages)))
            )
        )
    found += (_alone(ERROR, line) for line in dict.fromkeys(_errors(messages, late)))
    return found


def _alone(kind: str, text: str) -> Fact:
    return Fact(kind, ((text,),))


def _latest_request(messages: Sequence[Message]) -> str:
    return next(
        str(m["content"])
        for m in reversed(messages)
        if m["role"] == "user" and str(m["content"]).strip()
    )


def _calls(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    """The arguments of every call."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield arguments_of(call)


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(call["function"]["arguments"])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _files(arguments: dict[str, Any]) -> Iterator[str]:
    for key, value in arguments.items():
        if key in _PATH_KEYS and isinstance(value, str) and _FILE.fullmatch(value):
            yield value.removeprefix("./")


def _commands(arguments: dict[str, Any]) -> Iterator[str]:
    if _PATH_KEYS & arguments.keys():
        return  # an editor's command (`view`), not a shell's
    for key, value in arguments.items():
        if key in _COMMAND_KEYS and isinstance(value, str) and value.strip():
            yield _beginning(" ".join(value.split()), COMMAND_CHARS)


def _ids(arguments: dict[str, Any]) -> Iterator[str]:
    for key, value in arguments.items():
        if (
            key not in _PATH_KEYS | _COMMAND_KEYS
            and isinstance(value, str)
            and _ID.fullmatch(value)
        ):
            yield value


def _errors(messages: Sequence[Message], start: int) -> Iterable[str]:
    """The first line of the last error of every command that failed. One that shows a file shows that file's words."""
    commands = {
        call["id"]: " ".join(_commands(arguments_of(call)))
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    latest: dict[str, str] = {}
    for message in messages[start:]:
        command = commands.get(str(message.get("tool_call_id")), "")
        if message["role"] == "tool" and command and not _SHOWS.search(command):
            found = _ERROR.search(str(message["content"]))
            if found:
                latest[command] = _beginning(found[0].strip(), ERROR_CHARS)
    return latest.values()


def _beginning(text: str, length: int) -> str:
    """So much of a text, in whole words."""
    return (
        text
        if len(text) <= length
        else text[:length].rpartition(" ")[0] or text[:length]
    )
