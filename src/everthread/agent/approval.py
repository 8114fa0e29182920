"""Approval of commands and writes: by rules in a file, by earlier answers, by asking the user.

    command: git status         this command, word for word
    command: pytest *           with any further words, or none
    command: cat docs/*.md      within a word `*` stops at a slash, `**/` does not
    exactly: tar cf b.tar *     this command literally: nothing in it is a wildcard
    write: src/**               files below src, as paths relative to the workspace

An answer "always" is stored literally: a wildcard is one only in a rule that a person typed.

A rule allows one plain command at the top of the workspace: elsewhere the same words may be another program. A command
line with more in it (a second command, a substitution, a redirection) matches no rule: the user is always asked.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from everthread.agent.tool_interface import Permission
from everthread.agent.workspace import match_path, quote_name
from everthread.errors import InputError

RULES_FILE = "approvals.txt"
"""File in the Everthread home, with one rule per line; lines that begin with `#` are comments."""


@dataclass(frozen=True, slots=True)
class Denial:
    """A refusal with its reason, for the model."""

    reason: str

    def __bool__(self) -> bool:
        return False


ApprovalAnswer = bool | Literal["always"] | Denial
"""The user's answer. `always` allows the same from now on, and stores a rule if one can express it."""
AskUser = Callable[[Permission], Awaitable[ApprovalAnswer]]
RuleKind = Literal["command", "exactly", "write"]

_SHELL_CHARACTERS = frozenset(";&|<>()`${}!\n\r\0")
"""Characters that can make a command line more than one program and its arguments, even in quotes."""
_GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that allows a command or a write without asking."""

    kind: RuleKind
    pattern: str

    def allows(self, permission: Permission) -> bool:
        if self.kind == "write":
            return permission.kind == "write" and _path_matches(self.pattern, permission.target)
        if permission.kind != "command":
            return False
        if self.kind == "exactly":
            return not permission.detail and permission.target == self.pattern
        words = None if permission.detail else split_plain_command(permission.target)
        return words is not None and _words_match(shlex.split(self.pattern), words)

    def __str__(self) -> str:
        return f"{self.kind}: {self.pattern}"


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raise `InputError` if it is invalid, or would allow more than it seems to."""
    kind, colon, pattern = (part.strip() for part in text.partition(":"))
    if not colon or kind not in ("command", "exactly", "write") or not pattern:
        raise InputError(
            f"{quote_name(text)!r} is not a rule; write `command: pytest *` or `write: src/**`"
        )
    if kind == "write":
        parts = pattern.split("/")
        if pattern.startswith(("/", "~")) or ".." in parts or "\0" in pattern:
            raise InputError(
                f"the rule {quote_name(text)!r} must name paths relative to the workspace, without `..`"
            )
        return Rule("write", pattern.removeprefix("./"))
    words = split_plain_command(pattern)
    if words is None:
        raise InputError(
            f"the rule {quote_name(text)!r} is not a plain command: a rule allows one program, "
            "without ; & | < > ( ) $ and the like"
        )
    if _GLOB_CHARACTERS & set(words[0]):
        raise InputError(
            f"the rule {quote_name(text)!r} must name the program itself; to allow everything use --yes"
        )
    return Rule("exactly" if kind == "exactly" else "command", pattern)


def parse_rules(lines: Iterable[str]) -> tuple[Rule, ...]:
    """Read rules, one a line; empty lines and comments are skipped."""
    return tuple(
        parse_rule(line) for line in lines if line.strip() and not line.lstrip().startswith("#")
    )


def read_rules(home: Path) -> tuple[Rule, ...]:
    """Read the rules in the Everthread home; none if there is no such file."""
    file = home / RULES_FILE
    try:
        lines = file.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    try:
        return parse_rules(lines)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def split_plain_command(command: str) -> list[str] | None:
    """Return the words of a command that is one program and its arguments, or None for any other command line."""
    if any(
        char in _SHELL_CHARACTERS or not (char.isprintable() or char == "\t") for char in command
    ):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if any(word.startswith("#") for word in words):
        return None  # a comment would hide the words after it from the shell, not from a rule
    return words or None


class Approvals:
    """An approver that decides by rule, by an earlier answer, or by asking the user. Without a user, it refuses.

    Questions are asked one at a time; an answer may also decide waiting ones.
    """

    def __init__(
        self,
        rules: Iterable[Rule | str] = (),
        ask_user: AskUser | None = None,
        *,
        allow_everything: bool = False,
        store_rule: Callable[[Rule], None] | None = None,
    ) -> None:
        """`store_rule` stores the rule when the user answers `always`."""
        self.rules = tuple(parse_rule(rule) if isinstance(rule, str) else rule for rule in rules)
        self._ask_user = ask_user
        self._allow_everything = allow_everything
        self._store_rule = store_rule
        self._reasons: dict[tuple[str, str, str], str] = {}
        self._always_allowed: set[tuple[str, str, str]] = set()
        self._ask_lock = asyncio.Lock()

    async def __call__(self, permission: Permission) -> bool:
        if self._is_allowed(permission):
            return True
        if self._ask_user is None:
            return False
        async with self._ask_lock:
            if self._is_allowed(permission):
                return True
            answer = await self._ask_user(permission)
            if answer == "always":
                self._always_allowed.add(_make_permission_key(permission))
                rule = make_rule(permission)
                if rule is not None and self._store_rule is not None:
                    self.rules = (*self.rules, rule)
                    self._store_rule(rule)
            if isinstance(answer, Denial):
                self._reasons[_make_permission_key(permission)] = answer.reason
            return bool(answer)

    def explain_refusal(self, permission: Permission) -> str:
        """Return the message for the model after a refusal: the reason, and how it can be allowed."""
        action = f"{permission.kind} {quote_name(permission.target)!r}"
        if self._ask_user is not None:
            reason = self._reasons.pop(_make_permission_key(permission), "")
            return f"Refused: the user did not allow {action}." + (
                f" The user says: {reason}" if reason else ""
            )
        return f"Refused: nobody is there to approve {action}. {explain_how_to_allow(permission)}"

    def _is_allowed(self, permission: Permission) -> bool:
        return (
            self._allow_everything
            or _make_permission_key(permission) in self._always_allowed
            or any(rule.allows(permission) for rule in self.rules)
        )


def write_rule(home: Path, rule: Rule) -> None:
    """Add a rule to the file in the Everthread home, which need not exist."""
    file = home / RULES_FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        old_text = file.read_text("utf-8") if file.exists() else ""
        if str(rule) not in old_text.splitlines():
            separator = "" if not old_text or old_text.endswith("\n") else "\n"
            file.write_text(f"{old_text}{separator}{rule}\n", "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be written: {error}") from error


def make_rule(permission: Permission) -> Rule | None:
    """Return the rule that allows exactly this and nothing else, or None if no rule can."""
    target = permission.target
    if permission.kind not in ("command", "write") or not target.isprintable():
        return None
    kind: RuleKind = permission.kind
    if kind == "write":
        target = "".join(
            f"\\{char}" if char in _GLOB_CHARACTERS or char == "\\" else char for char in target
        )
    elif _GLOB_CHARACTERS & set(target):
        kind = "exactly"
    try:
        rule = parse_rule(f"{kind}: {target}")
    except InputError:
        return None
    return rule if rule.allows(permission) else None


def explain_how_to_allow(permission: Permission) -> str:
    """Return a sentence that explains how the user can allow the action beforehand."""
    command = permission.target
    rule = make_rule(permission)
    if rule is not None:
        return f"The user can allow it with the line `{rule}` in {RULES_FILE} in the Everthread home, or with --yes."
    if permission.kind == "command" and permission.detail:
        return "Rules allow commands at the top of the workspace only: leave workdir out, or let the user use --yes."
    if permission.kind == "command" and split_plain_command(command) is None:
        return "No rule can allow a compound command: run its parts one by one, or let the user start with --yes."
    return "The user can allow it with --yes."


def _make_permission_key(permission: Permission) -> tuple[str, str, str]:
    """Return the key by which an earlier answer is found: a command in its folder, or a path to write."""
    return (
        permission.kind,
        permission.target,
        permission.detail if permission.kind == "command" else "",
    )


def _words_match(pattern: list[str], words: list[str]) -> bool:
    if pattern[-1] == "*":
        pattern = pattern[:-1]
        words = words[: len(pattern)]
    return len(pattern) == len(words) and all(map(_word_matches, pattern, words))


def _word_matches(pattern: str, word: str) -> bool:
    """Return whether a word matches. A pattern never matches a word that the shell would expand."""
    if pattern == word:
        return True
    if not _GLOB_CHARACTERS & set(pattern) or _GLOB_CHARACTERS & set(word) or word.startswith("~"):
        return False
    return _path_matches(pattern, word)


def _path_matches(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a path. Inside `.git`, whose hooks are run, the pattern must name `.git`."""
    parts = path.lower().split("/")
    if ".." in parts or (".git" in parts and ".git" not in pattern.split("/")):
        return False
    return match_path(pattern, path)
