"""Describe a tool call in one line: tool, target, outcome, size.

The line depends on the kind of tool; a call of another kind is described by its arguments.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from everthread.compaction.history.error_lines import (
    contains_any,
    find_error_line,
    find_leading_error,
    gives_no_reason,
)
from everthread.compaction.history.tool_kinds import (
    OTHER_KIND,
    find_argument_line,
    find_kind,
    load_tool_table,
    snake_arguments,
)
from everthread.compaction.history.tool_outcomes import UnwrappedOutput, unwrap_output
from everthread.core.messages import ToolCall
from everthread.core.secrets.redaction import clip_words
from everthread.core.text import clip, one_line
from everthread.core.tool_outputs import PersistedOutput, count_lines, parse_persisted

MAX_LINE_CHARS = 200
"""Maximum characters of a line that replaces an output. A text of this length is never replaced again."""
MAX_ERROR_CHARS = 120
"""Maximum characters of an error in the line, from which the next compaction reads the error."""
_CODE_COMMENT_PATTERN = re.compile(r"(?:#|//)[#/ ]*([^\s#/!].*)")
_INACTIVE_CODE_STARTS = ("import ", "from ", "def ", "class ", "@", '"""', "#", "//")
"""Starts of code lines that do nothing by themselves."""
CUT_MARK_PATTERN = re.compile(r"… ?\[cut: [\d,]{1,12} characters in all\]")
_HTTP_STATUS_PATTERN = re.compile(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?|status(?:[ _]?code)?)[\"']?[:= ]{1,3}([1-5]\d\d)\b",
    re.IGNORECASE,
)
_MATCH_COUNT_PATTERN = re.compile(
    r"(\d[\d,]{0,11}|\bno) (match(?:es)?|results?|files?|occurrences?|hits?)\b",
    re.IGNORECASE,
)
_ANNOUNCING_LINE_PATTERN = re.compile(
    r"\s*(?:#{1,6}\s.*|\*\*[^*]{1,80}\*\*:?|.*:|\W*|.*\.{3}(?: \[.*\])?|([=-])\1+.*\1\1|(?:\[[\w:.-]+\] )?[$❯] .*)\s*"
)
"""A heading, a rule, a step that only begins, a command that is shown, or a line that only announces others."""
_SPECIFIC_PATTERN = re.compile(r"\d|`[^`\n]{2,}`|\w/\w|[a-z][A-Z]|\w_\w|\w\.\w")
_MAX_SHORT_LINES = 6
FRAME_LINE_PATTERN = re.compile(
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


class Action(NamedTuple):
    """The action of a call, such as `ran` and `pytest tests/`. Its kind is `other` if the kind of tool is unknown."""

    tool: str
    kind: str = OTHER_KIND
    verb: str = ""
    target: str = ""
    detail: str = ""
    is_quoted: bool = False

    def format_line(self, outcome: str, *, limit: int = MAX_LINE_CHARS) -> str:
        """Return the call and its outcome in one line. If the line is too long, cut the target, not tool or outcome."""
        parts = [
            f"[{self.tool}]",
            self.verb,
            "",
            self.detail,
            f"-> {outcome}" if outcome else "",
        ]
        quote = "`" if self.is_quoted else ""
        max_chars = limit - sum(len(word) + 1 for word in parts if word) - 2 * len(quote)
        target = clip_words(self.target.replace("`", "'") if quote else self.target, max_chars)
        parts[2] = f"{quote}{target}{quote}" if target else ""
        return clip_words(" ".join(word for word in parts if word), limit)


def find_action(
    call: ToolCall | None,
    *,
    name: str = "",
    arguments_by_name: Mapping[str, Any] | None = None,
) -> Action | None:
    """Return the action of a call, or None if neither the call nor the tool's name is known."""
    tool = _clip_tool_name(call.name if call else "") or _clip_tool_name(name)
    if not tool:
        return None
    if call is None:
        return Action(tool)
    arguments = snake_arguments(call) if arguments_by_name is None else arguments_by_name
    kind, target = find_kind(call, arguments)
    if kind is None:
        return Action(tool, target=_list_arguments(arguments))
    is_code = (
        kind.name == "shell"
        and isinstance(arguments.get("code"), str)
        and not arguments.get("command")
    )
    if kind.name == "shell":
        target = target.replace("\\\n", " ")  # one command on several lines
    target = _describe_code(arguments["code"]) if is_code else one_line(target)
    if "[cut: " in target:
        target = CUT_MARK_PATTERN.sub("…", target)
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


def describe_outcome(
    kind: str, text: str, *, failed: bool = False, max_chars: int = MAX_LINE_CHARS // 2
) -> str:
    """Return the outcome and the size of an output in at most `max_chars`. Size and citation are never cut."""
    stored_output = parse_persisted(text)
    output = unwrap_output(stored_output.preview if stored_output else text)
    return format_outcome(
        kind,
        output,
        stored_output,
        describe_output(kind, output, failed=failed),
        max_chars=max_chars,
    )


def format_outcome(
    kind: str,
    output: UnwrappedOutput,
    stored_output: PersistedOutput | None,
    details: Sequence[str],
    *,
    max_chars: int,
) -> str:
    """Return the details of an outcome, clipped, followed by the size and the id of a stored output."""
    size_text = _format_size(
        kind,
        stored_output or PersistedOutput("", len(output.body), _count_lines(kind, output.body), ""),
    )
    if stored_output:
        size_text += f", stored as {stored_output.id}"
    text = clip_words(
        one_line(", ".join(part for part in details if part)),
        max_chars - len(size_text) - 2,
    )
    return f"{text}, {size_text}" if text else size_text


def describe_output(kind: str, output: UnwrappedOutput, *, failed: bool) -> list[str]:
    """Return the details of an output that matter for this kind of tool."""
    if kind == "shell":
        error = "" if output.has_passed_tests else output.find_error(failed=failed)
        return describe_run(output, error)
    body = output.body
    error = (
        output.error
        or find_leading_error(body)
        or (find_error_line(body, failed=True) if failed else "")
    )
    if error or kind in ("read", "list"):
        return [error]
    if kind == "search":
        match_count = _MATCH_COUNT_PATTERN.search(body[:300])
        if match_count:
            return [f"{match_count[1]} {match_count[2]}"]
        if output.data:
            return [_describe_content(output)]
        return []
    if kind == "web":
        status = _HTTP_STATUS_PATTERN.search(body[:300])
        return [f"HTTP {status[1]}" if status else "", _describe_content(output)]
    has_run = kind == OTHER_KIND and (output.code is not None or output.stop_reason)
    if has_run:
        return describe_run(output, output.find_error(failed=failed))
    return [_describe_content(output)]


def describe_run(output: UnwrappedOutput, error: str) -> list[str]:
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
            for key in load_tool_table().status_fields
            if isinstance(data.get(key), str | int | float)
        }
        return clip_words(_list_arguments(status or data), 70)
    return clip_words(one_line(find_telling_line(output.body[:2_000])), 60)


def find_telling_line(text: str) -> str:
    """Return the line that says most: in a long text the first with a figure, a path or a name, else the first
    statement."""
    if text.count("\n") >= _MAX_SHORT_LINES:
        for line in _list_statements(text):
            if _SPECIFIC_PATTERN.search(line):
                return line
    return find_first_statement(text)


def find_first_statement(text: str, default: str | None = None) -> str:
    """Return the first line outside code that is more than a heading; without one, `default` or the first line."""
    first_line = text.strip().partition("\n")[0]
    return next(_list_statements(text), first_line if default is None else default)


def _list_statements(text: str) -> Iterator[str]:
    """Yield the lines outside code that neither are headings nor announce others."""
    is_code = False
    for line in text.strip().split("\n"):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not _ANNOUNCING_LINE_PATTERN.fullmatch(line):
            yield line


def _count_lines(kind: str, body: str) -> int:
    """Count the lines of an output, without the lines that a tool adds around a command's output."""
    lines = count_lines(body)
    lowered = body.lower()
    if kind == "shell" and contains_any(lowered, _FRAME_WORDS):
        return lines - len(FRAME_LINE_PATTERN.findall(f"\n{lowered}"))
    return lines


def _format_size(kind: str, output: PersistedOutput) -> str:
    """Return the size of an output in words."""
    if kind == "shell":
        return f"{_format_line_count(output.lines)} output" if output.lines else "no output"
    return _format_line_count(output.lines) if output.lines > 1 else f"{output.chars} chars"


def _format_line_count(number: int) -> str:
    return "1 line" if number == 1 else f"{number} lines"


def _describe_code(code: str) -> str:
    """Return the line that describes a piece of code: its first comment, or else its first statement."""
    lines = [line.strip() for line in code[:4_000].split("\n") if line.strip()]
    if not lines:
        return ""
    comment = _CODE_COMMENT_PATTERN.match(lines[0])
    statements = (line for line in lines if not line.startswith(_INACTIVE_CODE_STARTS))
    line = comment[1] if comment else next(statements, lines[0])
    return clip_words(one_line(line), MAX_LINE_CHARS)


def _describe_details(kind: str, arguments: Mapping[str, Any]) -> str:
    """Return details of a call: the range read, the directory searched, the lines written."""
    table = load_tool_table()
    if kind == "read":
        range_text = _list_arguments(
            {name: arguments[name] for name in table.range_arguments if name in arguments}
        )
        return clip_words(f"({range_text})", 40) if range_text else ""
    if kind == "search":
        directory = find_argument_line(arguments, table.path_arguments)
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
