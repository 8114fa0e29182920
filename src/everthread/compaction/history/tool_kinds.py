"""Recognise the kind of a tool call: shell, read, write, patch, search, web, list.

The kind is read from the words of the tool's name and the names of its arguments, so that no agent's tools need to be
known.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from everthread.core.messages import ToolCall
from everthread.core.text import one_line

OTHER_KIND = "other"
_WORD_PATTERN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CASE_CHANGE_PATTERN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
PATCHED_FILE_PATTERN = re.compile(
    r"(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ b/)([^\s\"\\]{1,200})"
)


def snake_arguments(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments with their names in snake case."""
    return {_to_snake_case(key): value for key, value in call.parsed.items()}


@dataclass(frozen=True, slots=True, eq=False)
class ToolKind:
    """A kind of tool: the words that name it, and the arguments that hold its target."""

    name: str
    verb: str
    is_quoted: bool
    name_words: frozenset[str]
    target_arguments: tuple[str, ...]


class ArgumentRule(NamedTuple):
    """A rule that recognises a kind of tool by the names of its arguments."""

    kind_name: str
    argument_names: frozenset[str]
    """The call has at least one of these arguments."""
    needs_path: bool
    """Whether the call must also have the path of a file."""


@dataclass(frozen=True, slots=True)
class ToolTable:
    """The words and arguments by which calls are recognised, from `data/tools.json`."""

    kinds: Mapping[str, ToolKind]
    argument_rules: tuple[ArgumentRule, ...]
    path_arguments: tuple[str, ...]
    range_arguments: tuple[str, ...]
    body_arguments: tuple[str, ...]
    status_fields: tuple[str, ...]
    read_only_words: frozenset[str]
    """Words of a tool's name that mark it as read-only."""
    acting_words: frozenset[str]
    """Words of a tool's name that mark an action despite a read-only word at the end, as in `clear_search`."""
    joining_words: frozenset[str]
    """Words of a tool's name after which an action follows, as in `get_or_create` and `load_into`."""
    read_only_programs: Mapping[str, frozenset[str]]
    """Programs that only show something, with their read-only subcommands, or an empty set if all subcommands are."""
    writing_arguments: Mapping[str, frozenset[str]]
    """Arguments with which a read-only program writes."""
    file_programs: frozenset[str]
    """Programs that move or make files."""
    program_prefixes: frozenset[str]
    """Words allowed before a program."""
    test_words: frozenset[str]
    """Words of a command that runs tests."""
    value_options: Mapping[str, frozenset[str]]
    """Options of such a program that take a value and may come before its subcommand."""
    no_run_options: Mapping[str, frozenset[str]]
    """Options with which a test program runs no test, but only compiles or lists tests."""


@functools.cache
def load_tool_table() -> ToolTable:
    """Load the table of tool kinds, once."""
    data = json.loads(
        resources.files("everthread.compaction").joinpath("data/tools.json").read_text("utf-8")
    )
    path_arguments = tuple(data["path_arguments"])
    kinds = {
        row["kind"]: ToolKind(
            row["kind"],
            row["verb"],
            row.get("quote", False),
            frozenset(row["words"]),
            path_arguments if row["targets"] == "paths" else tuple(row["targets"]),
        )
        for row in data["kinds"]
    }
    argument_rules = tuple(
        ArgumentRule(row["kind"], frozenset(row["any"]), row["with_path"])
        for row in data["by_arguments"]
    )
    return ToolTable(
        kinds,
        argument_rules,
        path_arguments=path_arguments,
        range_arguments=tuple(data["range_arguments"]),
        body_arguments=tuple(data["body_arguments"]),
        status_fields=tuple(data["status_fields"]),
        read_only_words=frozenset(data["read_only_words"]),
        acting_words=frozenset(data["acting_words"]).union(
            kinds["patch"].name_words, kinds["write"].name_words
        ),
        joining_words=frozenset(data["joining_words"]),
        read_only_programs={
            program: frozenset(words) for program, words in data["read_only_programs"].items()
        },
        writing_arguments={
            program: frozenset(words) for program, words in data["writing_arguments"].items()
        },
        file_programs=frozenset(data["file_programs"]),
        program_prefixes=frozenset(data["program_prefixes"]),
        test_words=frozenset(data["test_words"]),
        value_options={
            program: frozenset(options) for program, options in data["value_options"].items()
        },
        no_run_options={
            program: frozenset(options) for program, options in data["no_run_options"].items()
        },
    )


def find_kind(call: ToolCall, arguments: Mapping[str, Any]) -> tuple[ToolKind | None, str]:
    """Return the kind of a call and its target.

    The kind comes from the words of the name if the arguments agree, otherwise from the arguments alone.
    """
    table = load_tool_table()
    for kind in _find_kinds_by_name(find_descriptive_name(call, arguments)):
        target = find_argument(arguments, kind.target_arguments) or (
            _find_patched_file(call) if kind.name == "patch" else ""
        )
        if target:
            return kind, target
    for rule in table.argument_rules:
        if not rule.argument_names.isdisjoint(arguments) and (
            not rule.needs_path or find_argument(arguments, table.path_arguments)
        ):
            kind = table.kinds[rule.kind_name]
            target = find_argument(arguments, kind.target_arguments)
            return kind, target or _find_patched_file(call)
    return None, ""


def find_descriptive_name(call: ToolCall, arguments: Mapping[str, Any]) -> str:
    """Return the name that describes a call: the tool's without its server, or the command of an editor tool."""
    table = load_tool_table()
    command = arguments.get("command")
    if isinstance(command, str) and table.kinds["shell"] not in _find_kinds_by_name(call.name):
        return command[:200] if find_argument(arguments, table.path_arguments) else call.name
    return call.name.rpartition("__")[2]


@functools.lru_cache(maxsize=512)
def _find_kinds_by_name(name: str) -> tuple[ToolKind, ...]:
    """Return the kinds of tools whose words the name has."""
    words = split_name(name)
    return tuple(
        kind for kind in load_tool_table().kinds.values() if not kind.name_words.isdisjoint(words)
    )


@functools.lru_cache(maxsize=512)
def split_name(name: str) -> tuple[str, ...]:
    """Return the words of a name in camel case or snake case, in lower case."""
    return tuple(word.lower() for word in _WORD_PATTERN.findall(name[:200]))


@functools.lru_cache(maxsize=512)
def _to_snake_case(name: str) -> str:
    """Return a name in snake case."""
    return _CASE_CHANGE_PATTERN.sub("_", name[:200]).lower()


def find_argument_line(arguments: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of these arguments that is not empty, on one line."""
    return one_line(find_argument(arguments, names))


def find_argument(arguments: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of these arguments that is not empty."""
    for name in names:
        if name not in arguments:
            continue
        value = arguments[name]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = value[2] if len(value) == 3 and value[1] in ("-c", "-lc") else " ".join(value)
        if isinstance(value, str) and value and (value[0].isalnum() or one_line(value)):
            return value
    return ""


def _find_patched_file(call: ToolCall) -> str:
    """Return the first file that a patch text names."""
    match = PATCHED_FILE_PATTERN.search(call.arguments)
    return match[1] if match else ""
