"""One line about a tool call: tool, target, outcome, size.

It depends on the kind of tool (shell, read, write, patch, search, web, list; any other by its arguments), which is read
from the words of the tool's name and the names of its arguments, so that no agent's tools need to be known.
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

from everthread.compaction.outcomes import (
    UnwrappedOutput,
    count_tests,
    error_line,
    error_lines,
    find_failure,
    find_halt,
    has_any,
    leading_error,
    own_error,
    says_nothing,
    unwrap,
)
from everthread.core.messages import Call, clip, one_line
from everthread.core.outputs import Persisted, line_count, parse_persisted
from everthread.core.redaction import clip_words

LINE = 200
"""No line is longer, so that what a line has replaced is never replaced again."""
ERROR_CHARS = 120
EFFECT_CHARS = 240
"""Of an error on a line of its own."""
MOST_ERRORS = 3
"""Lines of an output that say what went wrong."""
"""So much of an error stands in the line: the next compaction knows it from there."""
_LEAST_TARGET = 50
"""Of a long line so much is for the call, the rest for how it went: the call itself still says what it was."""
_OTHER = "other"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
PATCHED = re.compile(r"(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ b/)([^\s\"\\]{1,200})")
_EXIT_IN_LINE = re.compile(r"exit (-?\d{1,6})(?:, \d{1,7} (?:failed|passed|skipped|errors?|tests?)\b){0,5}")
_SIZE_IN_LINE = re.compile(r"(?:^|, )(?:\d{1,9} lines?(?: output)?|no output|\d{1,9} chars)$")
_QUOTED = re.compile(r"'[^']{0,2000}'|\"[^\"]{0,2000}\"")
_FILE_SHAPE = re.compile(r"[/~]|\.[A-Za-z]\w{0,9}$")
_FILE_ENDING = re.compile(r"\.[A-Za-z]\w{0,9}$")
_COMMENT = re.compile(r"(?:#|//)[#/ ]*([^\s#/!].*)")
_NO_ACT = ("import ", "from ", "def ", "class ", "@", '"""', "#", "//")
"""How lines of code begin that do nothing by themselves."""
CUT_MARK = re.compile(r"… ?\[cut: [\d,]{1,12} characters in all\]")
STAGES = re.compile(r"\|\||&&|[|;\n]")
_REDIRECTED = re.compile(r"(?<![0-9&>-])>{1,2}\s{0,2}([\w./~-]{1,200})")
_HTTP = re.compile(r"\b(?:HTTP(?:/\d(?:\.\d)?)?|status(?:[ _]?code)?)[\"']?[:= ]{1,3}([1-5]\d\d)\b", re.IGNORECASE)
_FOUND = re.compile(r"(\d[\d,]{0,11}|\bno) (match(?:es)?|results?|files?|occurrences?|hits?)\b", re.IGNORECASE)


_LOGS = re.compile(r"\b(?:logs?|journalctl|dmesg)\b")
"""Commands whose output tells of errors long past."""
TRIMS = frozenset({"tail", "head", "grep", "tee", "less", "cat", "wc", "sort"})
"""Programs at the end of a pipe that only trim what is shown."""


class Action(NamedTuple):
    """What a call did: `ran`, `pytest tests/`. The kind is `other` for a tool of none of the known kinds."""

    tool: str
    kind: str = _OTHER
    verb: str = ""
    target: str = ""
    detail: str = ""
    quoted: bool = False

    def line(self, outcome: str, *, limit: int = LINE) -> str:
        """The call and how it went, in one line. Where room is short the target is cut: tool and outcome stay."""
        words = [f"[{self.tool}]", self.verb, "", self.detail, f"-> {outcome}" if outcome else ""]
        mark = "`" if self.quoted else ""
        room = limit - sum(len(word) + 1 for word in words if word) - 2 * len(mark)
        target = clip_words(self.target.replace("`", "'") if mark else self.target, room)
        words[2] = f"{mark}{target}{mark}" if target else ""
        return clip_words(" ".join(word for word in words if word), limit)


class CallFacts:
    """A call with its output, read once for the journal and for the line that replaces the output."""

    __slots__ = ("_effect", "action", "arguments", "call", "failed", "output", "stored", "text")

    def __init__(self, call: Call | None, text: str | None, *, name: str = "", failed: bool = False) -> None:
        self.call, self.text, self.failed = call, text, failed
        self.arguments = snake_arguments(call) if call else {}
        self.action = action_of(call, name=name, values=self.arguments)
        self.stored = parse_persisted(text) if text else None
        self.output = unwrap(self.stored.preview if self.stored else text or "")
        self._effect: Effect | None = None

    def line(self, *, limit: int = LINE, with_error: bool = True) -> str | None:
        """Call and outcome in one line; None where neither the tool nor a stored output is known."""
        if self.action is None and self.stored is None:
            return None
        action = self.action or Action("tool")
        room = max(limit * 11 // 20, limit - _LEAST_TARGET)
        outcome = (
            _describe_output(action.kind, self.output, failed=self.failed) if with_error else _ran(self.output, "")
        )
        return action.line(_outcome(action.kind, self.output, self.stored, outcome, room=room), limit=limit)

    @property
    def is_trimmed(self) -> bool:
        """Whether a command ends with a pipe that only trims what is shown: the exit code is not the command's own."""
        command = self.action.target if self.action else ""
        before, _, last = command.rpartition("|") if "|" in command else ("", "", "")
        words = last.split(None, 1)
        return bool(words) and words[0] in TRIMS and not before.endswith("|") and _LOGS.search(command) is None

    @property
    def is_line(self) -> bool:
        """Whether the output is a line that once replaced it, with the errors behind it where there were any."""
        text = self.text or ""
        if not text.startswith(f"[{self.action.tool if self.action else 'tool'}] "):
            return False
        line, *errors = text[: LINE + 50 + MOST_ERRORS * (EFFECT_CHARS + 1)].split("\n", MOST_ERRORS + 1)
        is_short = len(line) <= LINE + 40 and len(errors) <= MOST_ERRORS
        return is_short and (" -> " in line if errors else True) and all(len(error) <= EFFECT_CHARS for error in errors)

    def errors(self) -> list[str]:
        """The errors of the call, each on its line; where it is not sure that it failed, only a clear one."""
        is_run = self.action is None or self.action.kind in ("shell", _OTHER)
        has_failed = self.failed or (is_run and bool(self.output.code or self.output.halt))
        has_failed = has_failed or (self.is_trimmed and self.effect().failed)
        lines = self.effect().errors if has_failed else ()
        if not lines and is_run:
            lines = (self.output.stated_error(failed=self.failed),)
        return [clip_words(one_line(error), EFFECT_CHARS) for error in lines if " " in error]

    def effect(self) -> Effect:
        """What the call did and how it went."""
        if self._effect is None:
            self._effect = _effect_of(self)
        return self._effect


def describe(call: Call | None, text: str, *, name: str = "", failed: bool = False, limit: int = LINE) -> str | None:
    """A call and its output in one line; None where neither the tool nor a stored output is known."""
    return CallFacts(call, text, name=name, failed=failed).line(limit=limit)


def action_of(call: Call | None, *, name: str = "", values: Mapping[str, Any] | None = None) -> Action | None:
    """What a call did; None where neither the call nor the tool's name is known."""
    tool = _tool_name(call.name if call else "") or _tool_name(name)
    if not tool:
        return None
    if call is None:
        return Action(tool)
    arguments = snake_arguments(call) if values is None else values
    kind, target = _kind(call, arguments)
    if kind is None:
        return Action(tool, target=_list_arguments(arguments))
    is_code = kind.name == "shell" and isinstance(arguments.get("code"), str) and not arguments.get("command")
    target = _code_line(arguments["code"]) if is_code else one_line(target)
    if "[cut: " in target:
        target = CUT_MARK.sub("…", target)
    return Action(tool, kind.name, kind.verb, target, _detail(kind.name, arguments), kind.quoted)


@functools.lru_cache(maxsize=512)
def _tool_name(name: str) -> str:
    return clip(one_line(name), 40)


def snake_arguments(call: Call) -> dict[str, Any]:
    """A call's arguments under names in one spelling."""
    return {_snake(key): value for key, value in call.parsed.items()}


def outcome_of(kind: str, text: str, *, failed: bool = False, room: int = LINE // 2) -> str:
    """How a call went and how much it put out, in a few words. Where room is short, size and citation stay."""
    stored = parse_persisted(text)
    output = unwrap(stored.preview if stored else text)
    return _outcome(kind, output, stored, _describe_output(kind, output, failed=failed), room=room)


def _outcome(kind: str, output: UnwrappedOutput, stored: Persisted | None, parts: Sequence[str], *, room: int) -> str:
    end = _size(kind, stored or Persisted("", len(output.body), _count_lines(kind, output.body), ""))
    if stored:
        end += f", stored as {stored.id}"
    text = clip_words(one_line(", ".join(part for part in parts if part)), room - len(end) - 2)
    return f"{text}, {end}" if text else end


def _describe_output(kind: str, output: UnwrappedOutput, *, failed: bool) -> list[str]:
    if kind == "shell":
        return _ran(output, output.stated_error(failed=failed))
    body = output.body
    error = output.error or leading_error(body) or (error_line(body, failed=True) if failed else "")
    if error or kind in ("read", "list"):
        return [error]
    if kind == "search":
        stated = _FOUND.search(body[:300])
        return [f"{stated[1]} {stated[2]}"] if stated else [_gist(output)] if output.data else []
    if kind == "web":
        status = _HTTP.search(body[:300])
        return [f"HTTP {status[1]}" if status else "", _gist(output)]
    ran = _ran(output, output.stated_error(failed=failed)) if kind == _OTHER else []
    return ran or [_gist(output)]


def _ran(output: UnwrappedOutput, error: str) -> list[str]:
    """Exit code, tests and error of what was run."""
    code = "" if output.code is None else f"exit {output.code}"
    return [part for part in (code, output.halt, output.tests, clip_words(one_line(error), ERROR_CHARS)) if part]


def _gist(output: UnwrappedOutput) -> str:
    """What a result says of itself in a few words: its status, what it is made of, its first line."""
    data = output.data
    if isinstance(data, list):
        return f"list of {len(data)} items"
    if isinstance(data, dict):
        status = {key: data[key] for key in _table().status if isinstance(data.get(key), str | int | float)}
        return clip_words(_list_arguments(status or data), 70)
    return clip_words(one_line(output.body.lstrip()[:2_000].split("\n", 1)[0]), 60)


_FRAME = re.compile(
    r"\n(?:\[?exit code:? ?-?\d{1,6}\]?|\(no output\)|process exited with code -?\d{1,6}|chunk id: .*|wall time: .*|"
    r"output:)(?=\n|\Z)"
)
"""Lines, in lower case, that a tool puts around a command's output: they are no output."""
_FRAME_WORDS = ("exit code", "(no output)", "exited with code", "chunk id: ", "wall time: ", "output:")


def _count_lines(kind: str, body: str) -> int:
    """The lines of an output, those of the frame around a command's aside."""
    lines, lowered = line_count(body), body.lower()
    return lines - len(_FRAME.findall(f"\n{lowered}")) if kind == "shell" and has_any(lowered, _FRAME_WORDS) else lines


def _size(kind: str, output: Persisted) -> str:
    if kind == "shell":
        return f"{_lines(output.lines)} output" if output.lines else "no output"
    return _lines(output.lines) if output.lines > 1 else f"{output.chars} chars"


def _lines(number: int) -> str:
    return "1 line" if number == 1 else f"{number} lines"


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    name: str
    verb: str
    quoted: bool
    words: frozenset[str]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    kinds: Mapping[str, _Kind]
    by_arguments: tuple[tuple[str, frozenset[str], bool], ...]
    paths: tuple[str, ...]
    ranges: tuple[str, ...]
    bodies: tuple[str, ...]
    status: tuple[str, ...]
    looks: frozenset[str]
    """Words of a tool's name that say it changes nothing."""
    acts: frozenset[str]
    """Words that make a name that ends so that of another act: `clear_search`."""
    joins: frozenset[str]
    """Words behind which another act follows: `get_or_create`, `load_into`."""
    shows: Mapping[str, frozenset[str]]
    """Programs that only show something, with the commands of theirs that do; none: all of them."""
    writes: Mapping[str, frozenset[str]]
    """What makes such a program write all the same."""
    prefixes: frozenset[str]
    """What may stand before a program."""


@functools.cache
def _table() -> _Table:
    data = json.loads(resources.files("everthread.compaction").joinpath("data/tools.json").read_text("utf-8"))
    paths = tuple(data["paths"])
    kinds = {
        row["kind"]: _Kind(
            row["kind"],
            row["verb"],
            row.get("quote", False),
            frozenset(row["words"]),
            paths if row["targets"] == "paths" else tuple(row["targets"]),
        )
        for row in data["kinds"]
    }
    rules = tuple((row["kind"], frozenset(row["any"]), row["with_path"]) for row in data["by_arguments"])
    return _Table(
        kinds,
        rules,
        paths,
        tuple(data["ranges"]),
        tuple(data["bodies"]),
        tuple(data["status"]),
        frozenset(data["looks"]),
        frozenset(data["acts"]).union(kinds["patch"].words, kinds["write"].words),
        frozenset(data["joins"]),
        {program: frozenset(words) for program, words in data["shows"].items()},
        {program: frozenset(words) for program, words in data["writes"].items()},
        frozenset(data["prefixes"]),
    )


def _kind(call: Call, arguments: Mapping[str, Any]) -> tuple[_Kind | None, str]:
    """By the words of the name, where the arguments agree, else by the arguments alone; and what it was done to."""
    table = _table()
    for kind in _kinds_named(_own_name(call, arguments)):
        target = _first_argument(arguments, kind.targets) or (_patched_file(call) if kind.name == "patch" else "")
        if target:
            return kind, target
    for name, any_of, with_path in table.by_arguments:
        if not any_of.isdisjoint(arguments) and (not with_path or _first_argument(arguments, table.paths)):
            return table.kinds[name], _first_argument(arguments, table.kinds[name].targets) or _patched_file(call)
    return None, ""


def _own_name(call: Call, arguments: Mapping[str, Any]) -> str:
    """The name that says what a call does: without its server's; of an editor with commands (`view`) the command."""
    table, command = _table(), arguments.get("command")
    if isinstance(command, str) and table.kinds["shell"] not in _kinds_named(call.name):
        return command[:200] if _first_argument(arguments, table.paths) else call.name
    return call.name.rpartition("__")[2]


@functools.lru_cache(maxsize=512)
def _kinds_named(name: str) -> tuple[_Kind, ...]:
    """The kinds of which a name has a word."""
    words = _name_words(name)
    return tuple(kind for kind in _table().kinds.values() if not kind.words.isdisjoint(words))


@functools.lru_cache(maxsize=512)
def _name_words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name[:200]))


@functools.lru_cache(maxsize=512)
def _snake(name: str) -> str:
    return _HUMP.sub("_", name[:200]).lower()


def _first(arguments: Mapping[str, Any], names: Iterable[str]) -> str:
    """The first of these arguments that is given, as one line."""
    return one_line(_first_argument(arguments, names))


def _first_argument(arguments: Mapping[str, Any], names: Iterable[str]) -> str:
    """The first of these arguments that is not empty."""
    for name in names:
        if name not in arguments:
            continue
        value = arguments[name]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = value[2] if len(value) == 3 and value[1] in ("-c", "-lc") else " ".join(value)
        if isinstance(value, str) and value and (value[0].isalnum() or one_line(value)):
            return value
    return ""


def _code_line(code: str) -> str:
    """The line that describes a piece of code: the comment it begins with, else its first statement."""
    lines = [line.strip() for line in code[:4_000].split("\n") if line.strip()]
    comment = _COMMENT.match(lines[0]) if lines else None
    acts = (line for line in lines if not line.startswith(_NO_ACT))
    return clip_words(one_line(comment[1] if comment else next(acts, lines[0] if lines else "")), LINE)


def _patched_file(call: Call) -> str:
    """The first file a patch text names."""
    match = PATCHED.search(call.arguments)
    return match[1] if match else ""


def _detail(kind: str, arguments: Mapping[str, Any]) -> str:
    """Details of a call: the range that was read, the directory that was searched, the lines that were written."""
    table = _table()
    if kind == "read":
        part = _list_arguments({name: arguments[name] for name in table.ranges if name in arguments})
        return clip_words(f"({part})", 40) if part else ""
    if kind == "search":
        directory = _first(arguments, table.paths)
        return clip_words(f"in {directory}", 40) if directory else ""
    if kind == "write":
        texts = (arguments.get(name) for name in table.bodies)
        text = next((text for text in texts if isinstance(text, str)), None)
        return "" if text is None else f"({_lines(line_count(text))})"
    return ""


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 4 and all(isinstance(item, int) for item in value)


def _list_arguments(arguments: Mapping[str, Any]) -> str:
    """The first few arguments, by name. What has parts of its own is only named, a few numbers aside."""
    plain = [
        clip_words(f"{name}={one_line(str(value))}", len(name) + 41)
        for name, value in arguments.items()
        if isinstance(value, str | int | float) or _is_range(value)
    ]
    return ", ".join((plain or list(arguments))[:4])


# What a call did to the world


class Effect(NamedTuple):
    """One call and how it went, for a record of the work."""

    kind: str
    """`changed` (files), `ran` (a command), `called` (anything else that may have an effect) or `looked`."""
    tool: str
    target: str
    outcome: str = ""
    """How it went, in a few words; without sizes, and without the names of JSON fields."""
    failed: bool = False
    errors: tuple[str, ...] = ()
    """Lines of the output that say what went wrong, as they stand."""
    paths: tuple[str, ...] = ()
    """Files it wrote, edited, moved into place or read."""
    tests: str = ""
    """What a test run reported."""
    branch: str = ""
    """The branch that git is on after it."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    output: str = ""
    """The output itself."""
    is_done: bool = True
    """Whether the call came to an end: it has a result, and does not go on in the background."""


_BRANCH = re.compile(r"\bgit\s+(?:checkout(?:\s+-[bB])?|switch(?:\s+-[cC])?)\s+([\w./-]{1,100})(?=\s*(?:$|[;&|]))")
_ON_BRANCH = re.compile(r"(?:^On branch |Switched to (?:a new )?branch ')([\w./-]{1,100})", re.MULTILINE)
_KINDS = {"shell": "ran", "patch": "changed", "write": "changed"}
_LOOKS = frozenset({"read", "search", "list", "web"})


_NO_CALL = Call("", "", "")
_OTHER_ACTS = (("check", "in"), ("check", "out"), ("count", "down"))
_LISTS = re.compile(
    r"-[avr]{1,3}|--(?:list|all|remotes|show-current|verbose|contains|(?:no-)?merged|sort|format)\b.*|show|get-url"
)
"""What follows `git branch` and `git remote` where they only list something."""
_STATEMENT = re.compile(
    r"\s*(?:insert\s+into|update\s+\S+\s+set|delete\s+from|merge\s+into|truncate\s+table|grant\s|revoke\s|mutation\b\s*[\w({]"
    r"|(?:drop|alter|create)\s+(?:or\s+replace\s+)?(?:unique\s+|temp\w{0,6}\s+|materialized\s+)?"
    r"(?:table|index|view|database|schema|user|role|type|function|trigger|column|extension)\b)",
    re.IGNORECASE,
)
"""How a query begins that is no question to a database."""


def _effect_kind(call: Call, action: Action, arguments: Mapping[str, Any]) -> str:
    """What a call may have changed. Where it is not clear that it only looked, it was called."""
    if action.kind == "shell":
        return "looked" if _is_read_only_command(action.target) else "ran"
    return _KINDS.get(action.kind) or ("looked" if _is_read_only_call(call, action, arguments) else "called")


def _effect_of(reading: CallFacts) -> Effect:
    call, text, arguments = reading.call or _NO_CALL, reading.text or "", reading.arguments
    action = reading.action or Action("tool")
    kind = _effect_kind(call, action, arguments)
    if text and reading.is_line:
        outcome, failed, errors, tests = _read_line(kind, reading, *text.split("\n"))
    else:
        outcome, failed, errors, tests = _read_output(kind, reading)
    return Effect(
        kind, action.tool, action.target, outcome, failed, errors, _paths(kind, action, call, arguments), tests,
        _branch(action.target, text) if action.kind == "shell" else "", arguments, reading.output.body,
        reading.text is not None and RUNNING not in outcome and arguments.get("run_in_background") is not True,
    )  # fmt: skip


RUNNING = "still running (session "
CallOutcome = tuple[str, bool, tuple[str, ...], str]
"""The outcome in a few words, whether it failed, its errors, what a test run reports."""


def _read_output(kind: str, reading: CallFacts) -> CallOutcome:
    output, is_object = reading.output, isinstance(reading.output.data, dict)
    code = output.code if kind == "ran" else output.exit_code
    halt = output.halt if kind in ("ran", "called") and not output.session else ""
    error = output.error or (leading_error(output.body) if kind != "ran" and not is_object else "")
    tests = output.tests if kind == "ran" else ""
    if kind == "ran" and code is None and not halt:
        error = error or _untold_error(output.body, tests)
    failed = reading.failed or output.failed or bool(code) or bool(halt) or bool(error)
    is_trimmed, is_certain = kind == "ran" and reading.is_trimmed, failed
    if is_trimmed and not failed and not tests and (error := find_failure(output.body)):
        failed, code = True, None
    lines: list[str] = []
    if failed and reading.text:
        stated = error_lines(output.error or output.body, failed=is_certain, enough=MOST_ERRORS)
        lines = [clip_words(line, EFFECT_CHARS) for line in map(one_line, stated) if not says_nothing(line)]
        lines = lines[:MOST_ERRORS] or ([clip_words(one_line(error), EFFECT_CHARS)] if error else [])
    running = f"{RUNNING}{output.session})" if output.session else ""
    parts = [halt, running, f"exit {code}" if code is not None else "failed" if failed else ""]
    if tests:
        parts.append(tests)
    elif kind in ("called", "ran") and not failed and not is_trimmed:
        parts.append(_stated_message(kind, output))
    return ", ".join(dict.fromkeys(filter(None, parts))), failed, tuple(lines), tests


def _untold_error(output: str, tests: str) -> str:
    """The error of a run without an exit code: what its tests say, else what the program states."""
    return (tests if "failed" in tests or "error" in tests else "") if tests else own_error(output)


def _read_line(kind: str, reading: CallFacts, line: str, *errors: str) -> CallOutcome:
    """The same from a line that once replaced the output, with the errors in it or behind it."""
    outcome = line.rpartition(" -> ")[2].partition(", stored as ")[0]
    code, told = _EXIT_IN_LINE.match(outcome), _SIZE_IN_LINE.sub("", outcome)
    tests = count_tests(outcome) if kind == "ran" else ""
    halt = find_halt(told) if kind in ("ran", "called") else ""
    error = ""
    if kind != "ran":
        error = leading_error(told)
    elif reading.is_trimmed and not tests and (stated := errors[0] if errors else find_failure(told)):
        code, error = None, stated
    elif code is None:
        error = _untold_error("\n".join(errors), tests)
    failed = reading.failed or bool(error or halt) or bool(code and code[1] != "0")
    if failed and not errors:
        rest = told[code.end() :].split(", ") if code else [told]
        inside = ", ".join(dropwhile(lambda part: not part or says_nothing(part), rest))
        errors = (inside,) if inside else ()
    parts = [halt, code[0] if code else "failed" if failed else "", "" if code else tests]
    if not (failed or tests or code) and kind in ("ran", "called"):
        parts.append(told)
    return ", ".join(dict.fromkeys(filter(None, parts))), failed, errors if failed else (), tests


EDIT_MARK = "<<<<<<< SEARCH"
_EDIT = re.compile(rf"^[ \t]*([\w./~-]{{1,200}})\n(?:```[^\n]{{0,40}}\n)?{EDIT_MARK}\n", re.MULTILINE)


def read_edits(text: str) -> list[Effect]:
    """Edits that an answer holds as blocks to search and replace, each below the name of its file."""
    return [Effect("changed", "edit", path, paths=(path,)) for path in dict.fromkeys(_EDIT.findall(text))]


def is_file(word: str) -> bool:
    """Whether a word has the shape of a path."""
    return _FILE_SHAPE.search(word) is not None


def _branch(command: str, output: str) -> str:
    match = (_BRANCH.search(command) or _ON_BRANCH.search(output[:2_000])) if "git" in command else None
    return match[1] if match and not _FILE_ENDING.search(match[1]) else ""


def _is_read_only_call(call: Call, action: Action, arguments: Mapping[str, Any]) -> bool:
    """Whether a tool's name says that it changes nothing, and no argument says otherwise."""
    table, words = _table(), _name_words(_own_name(call, arguments))
    is_named_so = action.kind in _LOOKS and not table.kinds[action.kind].words.isdisjoint(words)
    if not (is_named_so or (words and not table.looks.isdisjoint((words[0], words[-1])))):
        return False
    if not table.joins.isdisjoint(words) or words[:2] in _OTHER_ACTS:
        return False
    if words[0] not in table.looks and not table.acts.isdisjoint(words):
        return False
    method = arguments.get("method")
    if isinstance(method, str) and method.upper() not in ("GET", "HEAD"):
        return False
    return not any(isinstance(value, str) and _STATEMENT.match(value) for value in arguments.values())


def _is_read_only_command(command: str) -> bool:
    """Whether every program of a command line only shows something, and nothing is written to a file."""
    if "`" in command or "$(" in command or (">" in command and _REDIRECTED.search(command.replace("/dev/null", ""))):
        return False
    if "awk" in command and (">" in command or "system(" in command):  # what stands in quotes is a program
        return False
    return all(_is_read_only_step(part.split()) for part in STAGES.split(_QUOTED.sub("Q", command)))


def _is_read_only_step(words: list[str]) -> bool:
    """Whether one step of a command line only shows something: its program does, and no option of it writes."""
    table = _table()
    while words and (words[0] in table.prefixes or "=" in words[0]):
        words = words[2:] if words[0] == "cd" else words[1:]
    if not words:
        return True
    program, rest = words[0].rpartition("/")[2], words[1:]
    shows, writes = table.shows.get(program), table.writes.get(program, frozenset())
    if shows is None or any(word in writes or word.partition("=")[0] in writes for word in rest):
        return False
    while rest and rest[0].startswith("-") and rest[0] not in shows:
        rest = rest[2:] if rest[0] in ("-C", "-c") else rest[1:]
    if program == "git" and rest[:1] in (["branch"], ["remote"]) and len(rest) > 1:
        return _LISTS.fullmatch(rest[1]) is not None
    return not shows or (bool(rest) and rest[0] in shows)


_IDS = ("url", "html_url", "number", "id")
_SHORT_LINES, _SHORT_CHARS = 3, 400


def _stated_message(kind: str, output: UnwrappedOutput) -> str:
    """The words of a short result; of JSON its message or status, and what it calls the thing that was made."""
    if isinstance(output.data, dict):
        values = (output.data.get(key) for key in ("message", "status", "state"))
        said = one_line(next((value for value in values if isinstance(value, str)), ""))
        made = ((key, output.data.get(key)) for key in _IDS)
        name = next((f"{key} {value}" for key, value in made if isinstance(value, str | int) and value), "")
        return ", ".join(clip_words(text, 100) for text in (said, name) if text)
    if output.data is not None:
        return ""
    if kind == "ran":  # what a command with much to say ends with is rarely its outcome
        if len(output.body) >= _SHORT_CHARS:
            return ""
        lines = [line for line in output.body.split("\n") if line.strip() and not line.startswith((">", "warning"))]
        lines = [line for line in lines if not _FRAME.match(f"\n{line.lower()}")]
        return clip_words(one_line(lines[0]), 80) if lines and len(lines) <= _SHORT_LINES else ""
    return clip_words(one_line(output.body.lstrip()[:2_000].split("\n", 1)[0]), 100)


def _paths(kind: str, action: Action, call: Call, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    if kind == "changed":
        patched = PATCHED.findall(call.arguments.replace("\\n", "\n")) if "File: " in call.arguments else []
        path = _first(arguments, _table().paths)
        return tuple(dict.fromkeys([*patched, *([path] if path else [])])) or (
            (action.target,) if action.target else ()
        )
    if kind == "ran":
        command = action.target
        if "*** " in call.arguments and " File: " in call.arguments:
            return tuple(dict.fromkeys(PATCHED.findall(call.arguments.replace("\\n", "\n"))))
        if ">" not in command or "code" in arguments:
            return ()
        written = _REDIRECTED.findall(_QUOTED.sub("Q", command))
        return tuple(path for path in dict.fromkeys(written) if is_file(path) and not path.startswith("/dev/"))
    return (action.target,) if action.kind == "read" and action.target else ()
