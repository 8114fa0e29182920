"""Read the outcome of a tool call from its output: the exit code, or the reason why the call did not finish.

Outcomes are at the start or the end of an output, so only these are searched. An output may be wrapped in a JSON
object. Everything here is a guess from text: if nothing is clear, nothing is returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from everthread.compaction.history.error_lines import contains_any, find_error_line
from everthread.compaction.history.reported_tests import count_tests
from everthread.core.json_values import json_value

_MAX_JSON_CHARS = 1_000_000
"""A longer text is not parsed just to describe it."""
_OUTPUT_FIELDS = ("output", "stdout", "content", "result", "text", "body")
_EXIT_CODE_FIELDS = (
    "exit_code",
    "exitCode",
    "returncode",
    "return_code",
    "exit_status",
)
_ERROR_FIELDS = ("error", "errors", "error_message")
_WARNING_FIELDS = ("stderr", "message", "reason")
"""Fields of a JSON object that state an error only if the call failed. Otherwise they hold warnings."""
_FAILURE_FLAGS = {"success": False, "ok": False, "isError": True, "is_error": True}
"""Fields of a JSON object that say that the call failed if they have this value."""
_SESSION_PATTERN = re.compile(r"running with session ID (\w{1,40})")
_COLOUR_PATTERN = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_SINGLE_TAG_PATTERN = re.compile(r"<(\w{1,40})>(.*)</\1>", re.DOTALL)
"""A text that is nothing but the content of one tag."""
_HEADER_LINE_PATTERN = re.compile(
    r"[A-Z][\w ()-]{0,40}(?::| exited with| exited| running with)[^\n]{0,200}"
)
_EXIT_CODE_PATTERN = re.compile(
    r"\b(?:exit(?:ed)?|return(?:ed)?|terminated)[\s_-]{0,3}(?:with[\s_-]{1,3})?(?:(?:non-?zero|exit|an?)[\s_-]{1,3}){0,2}"
    r"(?:code|status)\b[\"']?\s{0,3}(?:is|of|was|[:=>(])?\s{0,3}(-?\d{1,10})\b"
    r"|\b(?:process|command)\s{1,3}exited\s{1,3}with\s{1,3}(-?\d{1,10})\b"
    r"|[\[(]exit(?:ed)?[ :=]{1,2}(-?\d{1,10})[\])]"
    r"|^exit[:=] ?(-?\d{1,10})$",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE_CONTINUES_PATTERN = re.compile(r"[ \t]+(?!(?:in|after) [\d.])[A-Za-z]")
"""Text after an exit code that makes it part of a sentence, not the statement of a tool."""
_EXIT_WORDS = ("exit", "return", "terminated")
_STOPPED_RUN_PATTERN = re.compile(
    r"\b(?P<timeout>timed[ -]?out|timeout (?:reached|exceeded|expired)|exceed(?:ed|ing) timeout)\b"
    r"|\b(?:command|operation|process|request|tool(?: use| call)?) (?:was )?"
    r"(?P<abort>aborted|interrupted|cancell?ed|killed|rejected)\b",
    re.IGNORECASE,
)
_STOP_WORDS = (
    "timed",
    "timeout",
    "aborted",
    "interrupted",
    "cancel",
    "killed",
    "rejected",
)


@dataclass
class UnwrappedOutput:
    """A tool's output without the JSON that it may be wrapped in."""

    body: str
    """The output itself."""
    exit_code: int | None = None
    error: str = ""
    """The error that the JSON states."""
    data: Any = None
    """The parsed JSON, or None for another output."""
    failed: bool = False
    """Whether the JSON says that the call failed."""
    session_id: str = ""
    """The id of the session in which the process continues."""
    command: str = ""
    """The command line that wrote it."""

    @cached_property
    def code(self) -> int | None:
        """The exit code, from the JSON around the output or from the output's text.

        A command that prints several exit codes itself has none that is its own.
        """
        if self.exit_code is not None or self.command.count("$?") > 1:
            return self.exit_code
        return find_exit_code(self.body)

    @cached_property
    def stop_reason(self) -> str:
        """The reason why the call did not finish (`find_stop_reason`)."""
        return find_stop_reason(self.body)

    @cached_property
    def tests(self) -> str:
        """The test results that the output reports (`count_tests`), and does not just repeat from the command."""
        return drop_echo(count_tests(self.body), self.command)

    @property
    def has_passed_tests(self) -> bool:
        """Whether it reports tests of which none failed: errors in it were logged by the tests."""
        return bool(self.tests) and not contains_any(self.tests, ("failed", "error"))

    def find_error(self, *, failed: bool) -> str:
        """Return the line that names the error, or an empty string if the call ended with exit code 0."""
        if self.code == 0:
            return ""
        has_failed = failed or bool(self.code) or bool(self.stop_reason)
        return self.error or find_error_line(self.body, failed=has_failed)


def drop_echo(tests: str, command: str) -> str:
    """Return the figures of a test run, or an empty string if the command itself states them, as commit messages do."""
    return "" if all(figure in command for figure in tests.split(", ")) else tests


def unwrap_output(text: str) -> UnwrappedOutput:
    """Return a tool's output without colours and wrappers, and the outcome that the wrappers state."""
    if "\x1b" in text:
        text = _COLOUR_PATTERN.sub("", text)
    data = _parse_json(text)
    if isinstance(data, dict):
        return _unwrap_object(text, data)
    return _unwrap_text(text, data)


def _unwrap_text(text: str, data: Any) -> UnwrappedOutput:
    """Return an output that is no JSON object without the tag or the header around it."""
    is_tag_possible = text.startswith("<") and text.endswith(">")
    tagged = _SINGLE_TAG_PATTERN.fullmatch(text) if is_tag_possible else None
    content = tagged[2] if tagged else text
    body = strip_header(content)
    if body is content:
        return UnwrappedOutput(content, data=data)
    header = content[: len(content) - len(body)]
    session = _SESSION_PATTERN.search(header)
    return UnwrappedOutput(
        body,
        find_exit_code(header),
        data=data,
        session_id=session[1] if session else "",
    )


def _unwrap_object(text: str, data: dict[str, Any]) -> UnwrappedOutput:
    """Return the output that a JSON object holds, with the outcome that its other fields state."""
    metadata = data.get("metadata")
    sources = (data, metadata if isinstance(metadata, dict) else {})
    codes = (source.get(key) for source in sources for key in _EXIT_CODE_FIELDS)
    code = next((value for value in codes if type(value) is int), None)
    error = _find_error_text(data, _ERROR_FIELDS)
    failed = (
        bool(error and code is None)
        or any(data.get(key) is value for key, value in _FAILURE_FLAGS.items())
        or data.get("status") in ("error", "failed", "failure")
    )
    if not error and (code or failed):
        error = _find_error_text(data, _WARNING_FIELDS)
    texts = (data.get(key) for key in _OUTPUT_FIELDS)
    body = next((value for value in texts if isinstance(value, str) and value), text)
    return UnwrappedOutput(body, code, "" if code == 0 else error, data, failed)


def _find_error_text(data: dict[str, Any], keys: Iterable[str]) -> str:
    """Return the first error that these fields state, or an empty string."""
    return next(filter(None, (_read_error_text(data.get(key)) for key in keys)), "")


def _read_error_text(value: Any) -> str:
    """Return the text of an error field: a string, or the message of an object."""
    if isinstance(value, dict):
        value = value.get("message") or value.get("error")
    return value if isinstance(value, str) and value.strip() else ""


def strip_header(text: str) -> str:
    """Return the output without the header that some tools add: `Name: value` lines, then `Output:`."""
    end = text.find("\nOutput:\n", 0, 1_000)
    if end < 0:
        return text
    return (
        text[end + 9 :]
        if all(map(_HEADER_LINE_PATTERN.fullmatch, text[:end].split("\n")))
        else text
    )


def find_exit_code(text: str) -> int | None:
    """Return the last exit code that a text states, in any usual spelling."""
    matches = _find_exit_matches(text[-1_000:]) or (
        _find_exit_matches(text[:300])[:1] if len(text) > 1_000 else []
    )
    return int(next(group for group in matches[-1].groups() if group)) if matches else None


def _find_exit_matches(text: str) -> list[re.Match[str]]:
    """Return the matches of exit codes in a text, in order. Search only around words that every spelling has."""
    lowered = text.lower()
    matches: dict[int, re.Match[str]] = {}
    for word in _EXIT_WORDS:
        position = lowered.find(word)
        while position >= 0:
            if word == "exit" or contains_any(
                lowered[position : position + 60], ("code", "status")
            ):
                match = _EXIT_CODE_PATTERN.search(text, max(position - 12, 0), position + 100)
                if match and not _SENTENCE_CONTINUES_PATTERN.match(text, match.end()):
                    matches[match.start()] = match
            position = lowered.find(word, position + len(word))
    return [matches[start] for start in sorted(matches)]


def find_stop_reason(text: str) -> str:
    """Return the reason why a call did not finish, from both ends of its output, or an empty string if it finished."""
    both_ends = f"{text[:300]}\n{text[-300:]}"
    lowered = both_ends.lower()
    match = _STOPPED_RUN_PATTERN.search(both_ends) if contains_any(lowered, _STOP_WORDS) else None
    if match is None:
        return ""
    return "timed out" if match["timeout"] else match["abort"].lower()


def _parse_json(text: str) -> Any:
    """Return the JSON object or list that a text holds, or None."""
    if len(text) > _MAX_JSON_CHARS or text.lstrip()[:1] not in ("{", "["):
        return None
    return json_value(text)
