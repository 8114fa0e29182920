"""Describe a tool call in one line: tool, target, outcome, size.

The line depends on the kind of tool (shell, read, write, patch, search, web, list; any other by its arguments). The
kind is read from the words of the tool's name and the names of its arguments, so that no agent's tools need to be
known.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, NamedTuple

from everthread.compaction.history.tool_outcomes import (
    UnwrappedOutput,
    contains_any,
    count_tests,
    find_error_line,
    find_error_lines,
    find_failure,
    find_leading_error,
    find_program_error,
    find_stop_reason,
    gives_no_reason,
    unwrap_output,
)
from everthread.core.messages import Call, clip, is_refused_call, one_line
from everthread.core.outputs import PersistedOutput, count_lines, parse_persisted
from everthread.core.secrets.redaction import clip_words

MAX_LINE_CHARS = 200
"""Maximum characters of a line, so that a replaced output is never replaced again."""
MAX_ERROR_CHARS = 120
"""Maximum characters of an error in the line: the next compaction reads it from there."""
MAX_ERROR_LINE_CHARS = 240
"""Maximum characters of an error on a separate line."""
MAX_CALL_ERRORS = 3
"""Maximum error lines to take from an output."""
_MIN_CALL_CHARS = 50
"""Minimum characters for the call in a long line; the rest is for the outcome."""
_OTHER_KIND = "other"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CASE_CHANGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
PATCHED_FILE = re.compile(
    r"(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ b/)([^\s\"\\]{1,200})"
)
_EXIT_IN_LINE = re.compile(
    r"exit (-?\d{1,6})(?:, \d{1,7} (?:failed|passed|skipped|errors?|tests?)\b){0,5}"
)
_TESTS_IN_LINE = re.compile(
    r"(?:exit -?\d{1,6}, )?(?:[a-z]{4,12}(?: out)?, )?"
    r"(?P<tests>\d{1,7} (?:failed|passed|skipped|errors?|tests?)(?:, \d{1,7} (?:failed|passed|skipped|errors?|tests?)){0,4})(?=, |$)"
)
"""The figures of a test run, after exit code and stop reason."""
_SIZE_IN_LINE = re.compile(
    r"(?:^|, )(?:\d{1,9} lines?(?: output)?|no output|\d{1,9} chars)$"
)
_QUOTED_TEXT = re.compile(r"'[^']{0,2000}'|\"[^\"]{0,2000}\"")
_FILE_SHAPE = re.compile(r"[/~]|\.[A-Za-z]\w{0,9}$")
_FILE_ENDING = re.compile(r"\.[A-Za-z]\w{0,9}$")
_CODE_COMMENT = re.compile(r"(?:#|//)[#/ ]*([^\s#/!].*)")
_PASSIVE_LINE_STARTS = ("import ", "from ", "def ", "class ", "@", '"""', "#", "//")
"""Starts of code lines that do nothing by themselves."""
CUT_MARK = re.compile(r"… ?\[cut: [\d,]{1,12} characters in all\]")
COMMAND_SEPARATOR = re.compile(r"\|\||&&|[|;\n]")
_REDIRECT_TARGET = re.compile(r"(?<![0-9&>-])>{1,2}\s{0,2}([\w./~-]{1,200})")
_HTTP_STATUS = re.compile(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?|status(?:[ _]?code)?)[\"']?[:= ]{1,3}([1-5]\d\d)\b",
    re.IGNORECASE,
)
_MATCH_COUNT = re.compile(
    r"(\d[\d,]{0,11}|\bno) (match(?:es)?|results?|files?|occurrences?|hits?)\b",
    re.IGNORECASE,
)


_LOG_COMMAND = re.compile(r"\b(?:logs?|journalctl|dmesg)\b")
"""Commands whose output may report errors from the past."""
TRIMMING_PROGRAMS = frozenset(
    {"tail", "head", "grep", "tee", "less", "cat", "wc", "sort"}
)
"""Programs at the end of a pipe that only trim the output."""


def without_trimming_stage(command: str) -> str:
    """Return a command without the last stage of its pipe if that only trims the output."""
    if "|" not in command:
        return command
    # A quoted pattern may hold the sign of a pipe.
    end = _QUOTED_TEXT.sub(lambda quote: "Q" * len(quote[0]), command).rfind("|")
    last_stage = command[end + 1 :].split(None, 1)
    is_trimmed = (
        end > 0
        and command[end - 1] != "|"
        and bool(last_stage)
        and last_stage[0] in TRIMMING_PROGRAMS
    )
    return command[:end].rstrip() if is_trimmed else command


class Action(NamedTuple):
    """The action of a call, such as `ran` and `pytest tests/`. Its kind is `other` if the kind of tool is unknown."""

    tool: str
    kind: str = _OTHER_KIND
    verb: str = ""
    target: str = ""
    detail: str = ""
    is_quoted: bool = False

    def format_line(self, outcome: str, *, limit: int = MAX_LINE_CHARS) -> str:
        """Return the call and its outcome in one line. If room is short, cut the target; tool and outcome stay."""
        parts = [
            f"[{self.tool}]",
            self.verb,
            "",
            self.detail,
            f"-> {outcome}" if outcome else "",
        ]
        quote = "`" if self.is_quoted else ""
        room = limit - sum(len(word) + 1 for word in parts if word) - 2 * len(quote)
        target = clip_words(
            self.target.replace("`", "'") if quote else self.target, room
        )
        parts[2] = f"{quote}{target}{quote}" if target else ""
        return clip_words(" ".join(word for word in parts if word), limit)


class CallFacts:
    """A call with its output, read once for the journal and for the line that replaces the output."""

    __slots__ = (
        "_effect",
        "action",
        "arguments",
        "call",
        "failed",
        "output",
        "stored_output",
        "text",
    )

    def __init__(
        self,
        call: Call | None,
        text: str | None,
        *,
        name: str = "",
        failed: bool = False,
    ) -> None:
        self.call = call
        self.text = text
        self.failed = failed
        self.arguments = snake_arguments(call) if call else {}
        self.action = find_action(call, name=name, arguments_by_name=self.arguments)
        self.stored_output = parse_persisted(text) if text else None
        self.output = unwrap_output(
            self.stored_output.preview if self.stored_output else text or ""
        )
        self._effect: Effect | None = None

    def describe(
        self, *, limit: int = MAX_LINE_CHARS, with_error: bool = True
    ) -> str | None:
        """Return call and outcome in one line; None if neither the tool nor a stored output is known."""
        if self.action is None and self.stored_output is None:
            return None
        action = self.action or Action("tool")
        if self.failed and is_refused_call(self.text or ""):
            return action.format_line(REFUSED, limit=limit)
        outcome_room = max(limit * 11 // 20, limit - _MIN_CALL_CHARS)
        outcome = (
            _describe_output(action.kind, self.output, failed=self.failed)
            if with_error
            else _describe_run(self.output, "")
        )
        return action.format_line(
            _format_outcome(
                action.kind, self.output, self.stored_output, outcome, room=outcome_room
            ),
            limit=limit,
        )

    @property
    def is_output_trimmed(self) -> bool:
        """Whether a command ends with a pipe that only trims the output: the exit code is not the command's own."""
        command = self.action.target if self.action else ""
        return (
            len(without_trimming_stage(command)) < len(command)
            and _LOG_COMMAND.search(command) is None
        )

    @property
    def is_refused(self) -> bool:
        """Whether the user refused the call: nothing was done, and nothing is broken."""
        text = self.text or ""
        return (self.failed and is_refused_call(text)) or (
            self.is_replacement_line and text.endswith(f"-> {REFUSED}")
        )

    @property
    def is_replacement_line(self) -> bool:
        """Whether the output is a line that once replaced the real output, followed by any errors."""
        text = self.text or ""
        if not text.startswith(f"[{self.action.tool if self.action else 'tool'}] "):
            return False
        first_line, *errors = text[
            : MAX_LINE_CHARS + 50 + MAX_CALL_ERRORS * (MAX_ERROR_LINE_CHARS + 1)
        ].split("\n", MAX_CALL_ERRORS + 1)
        is_short = (
            len(first_line) <= MAX_LINE_CHARS + 40 and len(errors) <= MAX_CALL_ERRORS
        )
        return (
            is_short
            and (" -> " in first_line if errors else True)
            and all(len(error) <= MAX_ERROR_LINE_CHARS for error in errors)
        )

    def find_errors(self) -> list[str]:
        """Return the errors of the call, one per line; only a clear one if the call may not have failed."""
        is_run = self.action is None or self.action.kind in ("shell", _OTHER_KIND)
        has_failed = self.failed or (
            is_run and bool(self.output.code or self.output.stop_reason)
        )
        has_failed = has_failed or (self.is_output_trimmed and self.effect().failed)
        lines = self.effect().errors if has_failed else ()
        has_passed = self.is_output_trimmed or _have_passed(self.output)
        if not lines and is_run and (has_failed or not has_passed):
            lines = (self.output.find_error(failed=self.failed),)
        return [
            clip_words(one_line(error), MAX_ERROR_LINE_CHARS)
            for error in lines
            if " " in error and not gives_no_reason(error)
        ]

    def effect(self) -> Effect:
        """Return the effect and outcome of the call."""
        if self._effect is None:
            self._effect = _read_effect(self)
        return self._effect


def describe_call(
    call: Call | None,
    text: str,
    *,
    name: str = "",
    failed: bool = False,
    limit: int = MAX_LINE_CHARS,
) -> str | None:
    """Return a call and its output in one line; None if neither the tool nor a stored output is known."""
    return CallFacts(call, text, name=name, failed=failed).describe(limit=limit)


def find_action(
    call: Call | None,
    *,
    name: str = "",
    arguments_by_name: Mapping[str, Any] | None = None,
) -> Action | None:
    """Return the action of a call; None if neither the call nor the tool's name is known."""
    tool = _clip_tool_name(call.name if call else "") or _clip_tool_name(name)
    if not tool:
        return None
    if call is None:
        return Action(tool)
    arguments = (
        snake_arguments(call) if arguments_by_name is None else arguments_by_name
    )
    kind, target = _find_kind(call, arguments)
    if kind is None:
        return Action(tool, target=_list_arguments(arguments))
    is_code = (
        kind.name == "shell"
        and isinstance(arguments.get("code"), str)
        and not arguments.get("command")
    )
    target = _describe_code(arguments["code"]) if is_code else one_line(target)
    if "[cut: " in target:
        target = CUT_MARK.sub("…", target)
    return Action(
        tool,
        kind.name,
        verb=kind.verb,
        target=target,
        detail=_describe_details(kind.name, arguments),
        is_quoted=kind.is_quoted,
    )


@functools.lru_cache(maxsize=512)
def _clip_tool_name(name: str) -> str:
    """Return a tool's name on one line, clipped."""
    return clip(one_line(name), 40)


def snake_arguments(call: Call) -> dict[str, Any]:
    """Return a call's arguments with their names in snake case."""
    return {_to_snake_case(key): value for key, value in call.parsed.items()}


def describe_outcome(
    kind: str, text: str, *, failed: bool = False, room: int = MAX_LINE_CHARS // 2
) -> str:
    """Return the outcome and the size of an output in a few words. If room is short, size and citation stay."""
    stored_output = parse_persisted(text)
    output = unwrap_output(stored_output.preview if stored_output else text)
    return _format_outcome(
        kind,
        output,
        stored_output,
        _describe_output(kind, output, failed=failed),
        room=room,
    )


def _format_outcome(
    kind: str,
    output: UnwrappedOutput,
    stored_output: PersistedOutput | None,
    details: Sequence[str],
    *,
    room: int,
) -> str:
    """Return the details of an outcome, clipped, followed by the size and the id of a stored output."""
    size_text = _format_size(
        kind,
        stored_output
        or PersistedOutput("", len(output.body), _count_lines(kind, output.body), ""),
    )
    if stored_output:
        size_text += f", stored as {stored_output.id}"
    text = clip_words(
        one_line(", ".join(part for part in details if part)), room - len(size_text) - 2
    )
    return f"{text}, {size_text}" if text else size_text


def _describe_output(kind: str, output: UnwrappedOutput, *, failed: bool) -> list[str]:
    """Return the details of an output that matter for this kind of tool."""
    if kind == "shell":
        error = "" if _have_passed(output) else output.find_error(failed=failed)
        return _describe_run(output, error)
    body = output.body
    error = (
        output.error
        or find_leading_error(body)
        or (find_error_line(body, failed=True) if failed else "")
    )
    if error or kind in ("read", "list"):
        return [error]
    if kind == "search":
        match_count = _MATCH_COUNT.search(body[:300])
        return (
            [f"{match_count[1]} {match_count[2]}"]
            if match_count
            else [_describe_content(output)]
            if output.data
            else []
        )
    if kind == "web":
        status = _HTTP_STATUS.search(body[:300])
        return [f"HTTP {status[1]}" if status else "", _describe_content(output)]
    has_run = kind == _OTHER_KIND and (output.code is not None or output.stop_reason)
    return (
        _describe_run(output, output.find_error(failed=failed))
        if has_run
        else [_describe_content(output)]
    )


def _have_passed(output: UnwrappedOutput) -> bool:
    """Return whether an output reports tests and none of them failed: the errors in it were logged by the tests."""
    return bool(output.tests) and not contains_any(output.tests, ("failed", "error"))


def _describe_run(output: UnwrappedOutput, error: str) -> list[str]:
    """Return the exit code, the stop reason, the tests and the error of a run."""
    code = "" if output.code is None else f"exit {output.code}"
    error = "" if gives_no_reason(error) else error
    return [
        part
        for part in (
            code,
            output.stop_reason,
            output.tests,
            clip_words(one_line(error), MAX_ERROR_CHARS),
        )
        if part
    ]


def _describe_content(output: UnwrappedOutput) -> str:
    """Describe a result in a few words: its status, its structure or its first line."""
    data = output.data
    if isinstance(data, list):
        return f"list of {len(data)} items"
    if isinstance(data, dict):
        status = {
            key: data[key]
            for key in _load_table().status_fields
            if isinstance(data.get(key), str | int | float)
        }
        return clip_words(_list_arguments(status or data), 70)
    return clip_words(one_line(output.body.lstrip()[:2_000].split("\n", 1)[0]), 60)


_FRAME_LINE = re.compile(
    r"\n(?:\[?exit code:? ?-?\d{1,6}\]?|\(no output\)|process exited with code -?\d{1,6}|chunk id: .*|wall time: .*|"
    r"output:)(?=\n|\Z)"
)
"""Lines, in lower case, that a tool adds around a command's output."""
_FRAME_WORDS = (
    "exit code",
    "(no output)",
    "exited with code",
    "chunk id: ",
    "wall time: ",
    "output:",
)


def _count_lines(kind: str, body: str) -> int:
    """Count the lines of an output, without the lines that a tool adds around a command's output."""
    lines = count_lines(body)
    lowered = body.lower()
    return (
        lines - len(_FRAME_LINE.findall(f"\n{lowered}"))
        if kind == "shell" and contains_any(lowered, _FRAME_WORDS)
        else lines
    )


def _format_size(kind: str, output: PersistedOutput) -> str:
    """Return the size of an output in words."""
    if kind == "shell":
        return (
            f"{_format_line_count(output.lines)} output"
            if output.lines
            else "no output"
        )
    return (
        _format_line_count(output.lines)
        if output.lines > 1
        else f"{output.chars} chars"
    )


def _format_line_count(number: int) -> str:
    return "1 line" if number == 1 else f"{number} lines"


@dataclass(frozen=True, slots=True, eq=False)
class _ToolKind:
    """A kind of tool: the words that name it, and the arguments that hold its target."""

    name: str
    verb: str
    is_quoted: bool
    name_words: frozenset[str]
    target_arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ToolTable:
    """The words and arguments by which calls are recognised, from `data/tools.json`."""

    kinds: Mapping[str, _ToolKind]
    by_arguments: tuple[tuple[str, frozenset[str], bool], ...]
    path_arguments: tuple[str, ...]
    range_arguments: tuple[str, ...]
    body_arguments: tuple[str, ...]
    status_fields: tuple[str, ...]
    read_only_words: frozenset[str]
    """Words of a tool's name that mark it as read-only."""
    acting_words: frozenset[str]
    """Words that mark another act in a name with a read-only ending: `clear_search`."""
    joining_words: frozenset[str]
    """Words followed by another act: `get_or_create`, `load_into`."""
    read_only_programs: Mapping[str, frozenset[str]]
    """Programs that only show something, with their subcommands that do; empty means all."""
    writing_arguments: Mapping[str, frozenset[str]]
    """Arguments with which such a program still writes."""
    file_programs: frozenset[str]
    """Programs that move or make files."""
    program_prefixes: frozenset[str]
    """Words allowed before a program."""
    test_words: frozenset[str]
    """Words of a command that runs tests."""
    no_run_options: Mapping[str, frozenset[str]]
    """Options with which such a program runs no test: it only compiles or lists them."""


@functools.cache
def _load_table() -> _ToolTable:
    """Load the table of tool kinds, once."""
    data = json.loads(
        resources.files("everthread.compaction")
        .joinpath("data/tools.json")
        .read_text("utf-8")
    )
    path_arguments = tuple(data["path_arguments"])
    kinds = {
        row["kind"]: _ToolKind(
            row["kind"],
            row["verb"],
            row.get("quote", False),
            frozenset(row["words"]),
            path_arguments if row["targets"] == "paths" else tuple(row["targets"]),
        )
        for row in data["kinds"]
    }
    argument_rules = tuple(
        (row["kind"], frozenset(row["any"]), row["with_path"])
        for row in data["by_arguments"]
    )
    return _ToolTable(
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
            program: frozenset(words)
            for program, words in data["read_only_programs"].items()
        },
        writing_arguments={
            program: frozenset(words)
            for program, words in data["writing_arguments"].items()
        },
        file_programs=frozenset(data["file_programs"]),
        program_prefixes=frozenset(data["program_prefixes"]),
        test_words=frozenset(data["test_words"]),
        no_run_options={
            program: frozenset(options)
            for program, options in data["no_run_options"].items()
        },
    )


def _find_kind(
    call: Call, arguments: Mapping[str, Any]
) -> tuple[_ToolKind | None, str]:
    """Return the kind of a call and its target.

    The kind comes from the words of the name if the arguments agree, otherwise from the arguments alone.
    """
    table = _load_table()
    for kind in _find_kinds(_descriptive_name(call, arguments)):
        target = _first_argument(arguments, kind.target_arguments) or (
            _find_patched_file(call) if kind.name == "patch" else ""
        )
        if target:
            return kind, target
    for name, required_arguments, needs_path in table.by_arguments:
        if not required_arguments.isdisjoint(arguments) and (
            not needs_path or _first_argument(arguments, table.path_arguments)
        ):
            return table.kinds[name], _first_argument(
                arguments, table.kinds[name].target_arguments
            ) or _find_patched_file(call)
    return None, ""


def _descriptive_name(call: Call, arguments: Mapping[str, Any]) -> str:
    """Return the name that describes a call: without its server; for an editor with commands, the command."""
    table = _load_table()
    command = arguments.get("command")
    if isinstance(command, str) and table.kinds["shell"] not in _find_kinds(call.name):
        return (
            command[:200]
            if _first_argument(arguments, table.path_arguments)
            else call.name
        )
    return call.name.rpartition("__")[2]


@functools.lru_cache(maxsize=512)
def _find_kinds(name: str) -> tuple[_ToolKind, ...]:
    """Return the kinds that share a word with the name."""
    words = _split_name(name)
    return tuple(
        kind
        for kind in _load_table().kinds.values()
        if not kind.name_words.isdisjoint(words)
    )


@functools.lru_cache(maxsize=512)
def _split_name(name: str) -> tuple[str, ...]:
    """Return the words of a name in camel case or snake case, in lower case."""
    return tuple(word.lower() for word in _WORD.findall(name[:200]))


@functools.lru_cache(maxsize=512)
def _to_snake_case(name: str) -> str:
    """Return a name in snake case."""
    return _CASE_CHANGE.sub("_", name[:200]).lower()


def _first_argument_line(arguments: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of these arguments that is not empty, as one line."""
    return one_line(_first_argument(arguments, names))


def _first_argument(arguments: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of these arguments that is not empty."""
    for name in names:
        if name not in arguments:
            continue
        value = arguments[name]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = (
                value[2]
                if len(value) == 3 and value[1] in ("-c", "-lc")
                else " ".join(value)
            )
        if isinstance(value, str) and value and (value[0].isalnum() or one_line(value)):
            return value
    return ""


def _describe_code(code: str) -> str:
    """Return the line that describes a piece of code: its first comment, or else its first statement."""
    lines = [line.strip() for line in code[:4_000].split("\n") if line.strip()]
    comment = _CODE_COMMENT.match(lines[0]) if lines else None
    statements = (line for line in lines if not line.startswith(_PASSIVE_LINE_STARTS))
    return clip_words(
        one_line(
            comment[1] if comment else next(statements, lines[0] if lines else "")
        ),
        MAX_LINE_CHARS,
    )


def _find_patched_file(call: Call) -> str:
    """Return the first file that a patch text names."""
    match = PATCHED_FILE.search(call.arguments)
    return match[1] if match else ""


def _describe_details(kind: str, arguments: Mapping[str, Any]) -> str:
    """Return details of a call: the range read, the directory searched, the lines written."""
    table = _load_table()
    if kind == "read":
        range_text = _list_arguments(
            {
                name: arguments[name]
                for name in table.range_arguments
                if name in arguments
            }
        )
        return clip_words(f"({range_text})", 40) if range_text else ""
    if kind == "search":
        directory = _first_argument_line(arguments, table.path_arguments)
        return clip_words(f"in {directory}", 40) if directory else ""
    if kind == "write":
        texts = (arguments.get(name) for name in table.body_arguments)
        text = next((text for text in texts if isinstance(text, str)), None)
        return "" if text is None else f"({_format_line_count(count_lines(text))})"
    return ""


def _is_range(value: Any) -> bool:
    """Return whether a value is a list of up to four whole numbers."""
    return (
        isinstance(value, list)
        and 0 < len(value) <= 4
        and all(isinstance(item, int) for item in value)
    )


def _list_arguments(arguments: Mapping[str, Any]) -> str:
    """List the first few arguments by name. Show only the names if no value is plain text, a number or a range."""
    pairs = [
        clip_words(f"{name}={one_line(str(value))}", len(name) + 41)
        for name, value in arguments.items()
        if isinstance(value, str | int | float) or _is_range(value)
    ]
    return ", ".join((pairs or list(arguments))[:4])


# Effects of a call


class Effect(NamedTuple):
    """The effect of one call and its outcome, for a record of the work."""

    kind: str
    """`changed` (files), `ran` (a command), `called` (anything else that may have an effect) or `looked` (no effect).
    """
    tool: str
    target: str
    outcome: str = ""
    """The outcome in a few words; without sizes and names of JSON fields."""
    failed: bool = False
    errors: tuple[str, ...] = ()
    """Lines of the output that state an error, verbatim."""
    paths: tuple[str, ...] = ()
    """Files it wrote, edited, moved into place or read."""
    tests: str = ""
    """The figures of a test run."""
    branch: str = ""
    """The git branch after the call."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    output: str = ""
    """The output itself."""
    is_done: bool = True
    """Whether the call has a result and does not continue in the background."""


_BRANCH = re.compile(
    r"\bgit\s+(?:checkout(?:\s+-[bB])?|switch(?:\s+-[cC])?)\s+([\w./-]{1,100})(?=\s*(?:$|[;&|]))"
)
_ON_BRANCH = re.compile(
    r"(?:^On branch |Switched to (?:a new )?branch ')([\w./-]{1,100})", re.MULTILINE
)
_EFFECT_KINDS = {"shell": "ran", "patch": "changed", "write": "changed"}
_READING_KINDS = frozenset({"read", "search", "list", "web"})


_NO_CALL = Call("", "", "")
_ACTING_WORD_PAIRS = (("check", "in"), ("check", "out"), ("count", "down"))
_LISTING_ARGUMENT = re.compile(
    r"-[avr]{1,3}|--(?:list|all|remotes|show-current|verbose|contains|(?:no-)?merged|sort|format)\b.*|show|get-url"
)
"""Arguments with which `git branch` and `git remote` only list something."""
_WRITING_STATEMENT = re.compile(
    r"\s*(?:insert\s+into|update\s+\S+\s+set|delete\s+from|merge\s+into|truncate\s+table|grant\s|revoke\s|mutation\b\s*[\w({]"
    r"|(?:drop|alter|create)\s+(?:or\s+replace\s+)?(?:unique\s+|temp\w{0,6}\s+|materialized\s+)?"
    r"(?:table|index|view|database|schema|user|role|type|function|trigger|column|extension)\b)",
    re.IGNORECASE,
)
"""Starts of a query that changes a database."""


def _find_effect_kind(call: Call, action: Action, arguments: Mapping[str, Any]) -> str:
    """Return the kind of effect a call may have had: `called` unless it clearly only looked."""
    if action.kind == "shell":
        return "looked" if _is_read_only_command(action.target) else "ran"
    return _EFFECT_KINDS.get(action.kind) or (
        "looked" if _is_read_only_call(call, action, arguments) else "called"
    )


class NamedFiles(NamedTuple):
    """The files that a call reads or changes."""

    paths: tuple[str, ...]
    is_change: bool


def find_named_files(call: Call) -> NamedFiles | None:
    """Return the files that a call names, or None."""
    arguments = snake_arguments(call)
    action = find_action(call, arguments_by_name=arguments)
    if action is None:
        return None
    kind = _find_effect_kind(call, action, arguments)
    paths = _find_paths(kind, action, call, arguments)
    if not paths and kind == "looked" and action.kind == "shell":
        paths = tuple(
            word
            for word in _QUOTE_CHARS.sub("", action.target).split()
            if looks_like_path(word)
        )
    return NamedFiles(paths, is_change=kind != "looked") if paths else None


_QUOTE_CHARS = re.compile("[\"']")


def _read_effect(call_facts: CallFacts) -> Effect:
    """Read the effect of a call from its arguments and its output."""
    call = call_facts.call or _NO_CALL
    text = call_facts.text or ""
    arguments = call_facts.arguments
    action = call_facts.action or Action("tool")
    kind = _find_effect_kind(call, action, arguments)
    if call_facts.is_refused:
        return Effect(
            kind,
            action.tool,
            action.target,
            REFUSED,
            arguments=arguments,
            is_done=False,
        )
    if text and call_facts.is_replacement_line:
        outcome, failed, errors, tests = _read_line_outcome(
            kind, call_facts, *text.split("\n")
        )
    else:
        outcome, failed, errors, tests = _read_output_outcome(kind, call_facts)
    return Effect(
        kind,
        action.tool,
        target=action.target,
        outcome=outcome,
        failed=failed,
        errors=errors,
        paths=_find_paths(kind, action, call, arguments),
        tests=tests,
        branch=_find_branch(action.target, text) if action.kind == "shell" else "",
        arguments=arguments,
        output=call_facts.output.body,
        is_done=call_facts.text is not None
        and RUNNING not in outcome
        and arguments.get("run_in_background") is not True,
    )


REFUSED = "refused by the user"
RUNNING = "still running (session "
CallOutcome = tuple[str, bool, tuple[str, ...], str]
"""The outcome in a few words, whether the call failed, its errors, and its test figures."""


def _read_output_outcome(kind: str, call_facts: CallFacts) -> CallOutcome:
    """Read the outcome from an output."""
    output = call_facts.output
    is_object = isinstance(call_facts.output.data, dict)
    code = output.code if kind == "ran" else output.exit_code
    halt = (
        output.stop_reason if kind in ("ran", "called") and not output.session else ""
    )
    error = output.error or (
        find_leading_error(output.body) if kind != "ran" and not is_object else ""
    )
    tests = output.tests if kind == "ran" else ""
    if kind == "ran" and code is None and not halt:
        error = error or _find_error_without_code(output.body, tests)
    failed = (
        call_facts.failed or output.failed or bool(code) or bool(halt) or bool(error)
    )
    is_trimmed = kind == "ran" and call_facts.is_output_trimmed
    is_failure_certain = failed
    if is_trimmed and not failed and not tests and (error := find_failure(output.body)):
        failed = True
        code = None
    lines: list[str] = []
    if failed and call_facts.text:
        error_texts = find_error_lines(
            output.error or output.body,
            failed=is_failure_certain,
            enough_reasons=MAX_CALL_ERRORS,
        )
        lines = [
            clip_words(line, MAX_ERROR_LINE_CHARS)
            for line in map(one_line, error_texts)
            if not gives_no_reason(line)
        ]
        lines = lines[:MAX_CALL_ERRORS] or (
            [clip_words(one_line(error), MAX_ERROR_LINE_CHARS)] if error else []
        )
    session_note = f"{RUNNING}{output.session})" if output.session else ""
    parts = [
        halt,
        session_note,
        f"exit {code}" if code is not None else "failed" if failed else "",
    ]
    if tests:
        parts.append(tests)
    elif kind in ("called", "ran") and not failed and not is_trimmed:
        parts.append(_find_message(kind, output))
    return ", ".join(dict.fromkeys(filter(None, parts))), failed, tuple(lines), tests


def _find_error_without_code(output: str, tests: str) -> str:
    """Return the error of a run without an exit code: from its tests, or else from the program."""
    return (
        (tests if "failed" in tests or "error" in tests else "")
        if tests
        else find_program_error(output)
    )


def _read_line_outcome(
    kind: str, call_facts: CallFacts, line: str, *errors: str
) -> CallOutcome:
    """Read the outcome from a line that once replaced the output, with the errors in it or after it."""
    outcome = line.rpartition(" -> ")[2].partition(", stored as ")[0]
    code = _EXIT_IN_LINE.match(outcome)
    outcome_text = _SIZE_IN_LINE.sub("", outcome)
    test_match = _TESTS_IN_LINE.match(outcome) if kind == "ran" else None
    tests = test_match["tests"] if test_match else ""
    halt = find_stop_reason(outcome_text) if kind in ("ran", "called") else ""
    error = ""
    if kind != "ran":
        error = find_leading_error(outcome_text)
    elif (
        call_facts.is_output_trimmed
        and not tests
        and (failure := errors[0] if errors else find_failure(outcome_text))
    ):
        code = None
        error = failure
    elif code is None:
        error = _find_error_without_code("\n".join(errors), tests)
    failed = call_facts.failed or bool(error or halt) or bool(code and code[1] != "0")
    if failed and not errors:
        outcome_parts = (
            outcome_text[code.end() :].split(", ") if code else [outcome_text]
        )
        error_text = ", ".join(
            dropwhile(lambda part: not part or gives_no_reason(part), outcome_parts)
        )
        errors = (error_text,) if error_text else ()
    parts = [
        halt,
        code[0] if code else "failed" if failed else "",
        "" if code else tests,
    ]
    if not (failed or tests or code) and kind in ("ran", "called"):
        parts.append(outcome_text)
    return (
        ", ".join(dict.fromkeys(filter(None, parts))),
        failed,
        errors if failed else (),
        tests,
    )


EDIT_MARK = "<<<<<<< SEARCH"
_EDIT_BLOCK = re.compile(
    rf"^[ \t]*([\w./~-]{{1,200}})\n(?:```[^\n]{{0,40}}\n)?{EDIT_MARK}\n", re.MULTILINE
)


def read_edits(text: str) -> list[Effect]:
    """Return the edits in an answer's search-and-replace blocks, each below the name of its file."""
    return [
        Effect("changed", "edit", path, paths=(path,))
        for path in dict.fromkeys(_EDIT_BLOCK.findall(text))
    ]


def looks_like_path(word: str) -> bool:
    """Return whether a word has the shape of a path."""
    return _FILE_SHAPE.search(word) is not None


def _find_branch(command: str, output: str) -> str:
    """Return the git branch that a command or its output names, or an empty string."""
    match = (
        (_BRANCH.search(command) or _ON_BRANCH.search(output[:2_000]))
        if "git" in command
        else None
    )
    return match[1] if match and not _FILE_ENDING.search(match[1]) else ""


def _is_read_only_call(
    call: Call, action: Action, arguments: Mapping[str, Any]
) -> bool:
    """Return whether a tool's name marks it as read-only, and no argument says otherwise."""
    table = _load_table()
    words = _split_name(_descriptive_name(call, arguments))
    has_reading_kind = action.kind in _READING_KINDS and not table.kinds[
        action.kind
    ].name_words.isdisjoint(words)
    if not (
        has_reading_kind
        or (words and not table.read_only_words.isdisjoint((words[0], words[-1])))
    ):
        return False
    if not table.joining_words.isdisjoint(words) or words[:2] in _ACTING_WORD_PAIRS:
        return False
    if words[0] not in table.read_only_words and not table.acting_words.isdisjoint(
        words
    ):
        return False
    method = arguments.get("method")
    if isinstance(method, str) and method.upper() not in ("GET", "HEAD"):
        return False
    return not any(
        isinstance(value, str) and _WRITING_STATEMENT.match(value)
        for value in arguments.values()
    )


def _is_read_only_command(command: str) -> bool:
    """Return whether every program of a command line only shows something, and nothing is written to a file."""
    remote = _SSH_COMMAND.fullmatch(command) if command.startswith("ssh ") else None
    if remote:
        return _is_read_only_command(remote["command"])
    if (
        "`" in command
        or "$(" in command
        or (
            ">" in command and _REDIRECT_TARGET.search(command.replace("/dev/null", ""))
        )
    ):
        return False
    # The quoted text of awk is a program, which may write.
    if "awk" in command and (">" in command or "system(" in command):
        return False
    return all(
        _is_read_only_step(step.split())
        for step in COMMAND_SEPARATOR.split(_QUOTED_TEXT.sub("Q", command))
    )


_SSH_COMMAND = re.compile(
    r"ssh(?:\s+-\w+)*\s+[\w.@-]{1,200}\s+(['\"])(?P<command>[^'\"]{1,2000})\1\s*"
)
"""A command that runs on another machine."""


@functools.lru_cache(maxsize=1_024)
def is_test_command(command: str) -> bool:
    """Return whether a command line runs tests, by the first words of any step that does more than show."""
    steps = (
        step.split() for step in COMMAND_SEPARATOR.split(_QUOTED_TEXT.sub("Q", command))
    )
    return any(_runs_tests(words) for words in steps if not _is_read_only_step(words))


def _runs_tests(words: list[str]) -> bool:
    """Return whether a step runs tests. Programs that show, move or commit files may only name test files."""
    table = _load_table()
    program = next(iter(_skip_prefixes(words)), "")
    if program in table.read_only_programs or program in table.file_programs:
        return False
    if not table.no_run_options.get(program, frozenset()).isdisjoint(words):
        return False
    test_words = table.test_words
    return any(
        not test_words.isdisjoint(_WORD_SEPARATOR.split(word.lower()))
        for word in words[:_MAX_TEST_WORDS]
    )


_WORD_SEPARATOR = re.compile(r"[^a-z0-9]+")
_MAX_TEST_WORDS = 5
"""Words of a step to search for tests: later words are its files and patterns."""


def _skip_prefixes(words: list[str]) -> list[str]:
    """Return the words from the program on."""
    prefixes = _load_table().program_prefixes
    while words and (words[0] in prefixes or "=" in words[0]):
        words = words[2:] if words[0] == "cd" else words[1:]
    return words


def _is_read_only_step(words: list[str]) -> bool:
    """Return whether a step of a command line only shows something: its program does, and no option of it writes."""
    table = _load_table()
    words = _skip_prefixes(words)
    if not words:
        return True
    program = words[0].rpartition("/")[2]
    arguments = words[1:]
    subcommands = table.read_only_programs.get(program)
    writing_options = table.writing_arguments.get(program, frozenset())
    if subcommands is None or any(
        word in writing_options or word.partition("=")[0] in writing_options
        for word in arguments
    ):
        return False
    while (
        arguments and arguments[0].startswith("-") and arguments[0] not in subcommands
    ):
        arguments = arguments[2:] if arguments[0] in ("-C", "-c") else arguments[1:]
    if program == "gh":
        return len(arguments) > 1 and arguments[1] in subcommands
    if (
        program == "git"
        and arguments[:1] in (["branch"], ["remote"])
        and len(arguments) > 1
    ):
        return _LISTING_ARGUMENT.fullmatch(arguments[1]) is not None
    return not subcommands or (bool(arguments) and arguments[0] in subcommands)


_ID_FIELDS = ("url", "html_url", "number", "id")
_MAX_MESSAGE_LINES = 3
_MAX_MESSAGE_CHARS = 400


def _find_message(kind: str, output: UnwrappedOutput) -> str:
    """Return the text of a short result; for JSON its message or status, and the id of the created object."""
    if isinstance(output.data, dict):
        values = (output.data.get(key) for key in ("message", "status", "state"))
        message = one_line(
            next((value for value in values if isinstance(value, str)), "")
        )
        ids = ((key, output.data.get(key)) for key in _ID_FIELDS)
        object_id = next(
            (
                f"{key} {value}"
                for key, value in ids
                if isinstance(value, str | int) and value
            ),
            "",
        )
        return ", ".join(clip_words(text, 100) for text in (message, object_id) if text)
    if output.data is not None:
        return ""
    if kind == "ran":  # the end of a long output is rarely its outcome
        if len(output.body) >= _MAX_MESSAGE_CHARS:
            return ""
        lines = [
            line
            for line in output.body.split("\n")
            if line.strip() and not line.startswith((">", "warning"))
        ]
        lines = [line for line in lines if not _FRAME_LINE.match(f"\n{line.lower()}")]
        return (
            clip_words(one_line(_first_statement(lines)), 80)
            if lines and len(lines) <= _MAX_MESSAGE_LINES
            else ""
        )
    lines = output.body.lstrip()[:2_000].split("\n")
    return clip_words(one_line(_first_statement(lines)), 100)


_ANNOUNCING_LINE = re.compile(
    r"\s*(?:#{1,6}\s.*|```.*|\*\*[^*]{1,80}\*\*:?|.*:|\W*)\s*"
)
"""A heading, a fence, a rule, or a line that only announces others."""


def _first_statement(lines: Sequence[str]) -> str:
    """Return the first line that is more than a heading; the first of all if there is none."""
    return next(
        (line for line in lines if not _ANNOUNCING_LINE.fullmatch(line)), lines[0]
    )


def _find_paths(
    kind: str, action: Action, call: Call, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the files that a call changed, wrote to or read."""
    if kind == "changed":
        patched_paths = (
            PATCHED_FILE.findall(call.arguments.replace("\\n", "\n"))
            if "File: " in call.arguments
            else []
        )
        path = _first_argument_line(arguments, _load_table().path_arguments)
        return tuple(dict.fromkeys([*patched_paths, *([path] if path else [])])) or (
            (action.target,) if action.target else ()
        )
    if kind == "ran":
        command = action.target
        if "*** " in call.arguments and " File: " in call.arguments:
            return tuple(
                dict.fromkeys(PATCHED_FILE.findall(call.arguments.replace("\\n", "\n")))
            )
        if ">" not in command or "code" in arguments:
            return ()
        targets = _REDIRECT_TARGET.findall(_QUOTED_TEXT.sub("Q", command))
        return tuple(
            path
            for path in dict.fromkeys(targets)
            if looks_like_path(path) and not path.startswith("/dev/")
        )
    return (action.target,) if action.kind == "read" and action.target else ()
