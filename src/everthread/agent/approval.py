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
"""In the Everthread home: one rule a line; lines that begin with `#` are comments."""


@dataclass(frozen=True, slots=True)
class Denial:
    """A refusal with its reason, for the model."""

    reason: str

    def __bool__(self) -> bool:
        return False


ApprovalAnswer = bool | Literal["always"] | Denial
"""The user's answer. After `always` the same is not asked again; a rule is written if one can express it."""
Ask = Callable[[Permission], Awaitable[ApprovalAnswer]]
Kind = Literal["command", "exactly", "write"]

_SHELL_CHARACTERS = frozenset(";&|<>()`${}!\n\r\0")
"""Characters that can make a command line more than one program and its arguments. Quoted ones count too."""
_GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Rule:
    """Allows a command or a write without asking."""

    kind: Kind
    pattern: str

    def allows(self, permission: Permission) -> bool:
        if self.kind == "write":
            return permission.kind == "write" and _path_matches(
                self.pattern, permission.what
            )
        if permission.kind != "command":
            return False
        if self.kind == "exactly":
            return not permission.detail and permission.what == self.pattern
        words = None if permission.detail else plain_words(permission.what)
        return words is not None and _words_match(shlex.split(self.pattern), words)

    def __str__(self) -> str:
        return f"{self.kind}: {self.pattern}"


def parse_rule(text: str) -> Rule:
    """Read a rule. Raise `InputError` if it is not one, or would allow more than it says."""
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
    words = plain_words(pattern)
    if words is None:
        raise InputError(
            f"the rule {quote_name(text)!r} is no plain command: a rule allows one program, "
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
        parse_rule(line)
        for line in lines
        if line.strip() and not line.lstrip().startswith("#")
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


def plain_words(command: str) -> list[str] | None:
    """Return the words of a command that is one program and its arguments; None for any other command line."""
    if any(
        char in _SHELL_CHARACTERS or not (char.isprintable() or char == "\t")
        for char in command
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
    """Allows by rule, by an earlier answer, or by asking the user. Without a user to ask, the rest is refused.

    Questions are asked one at a time; an answer may decide those that waited.
    """

    def __init__(
        self,
        rules: Iterable[Rule | str] = (),
        ask: Ask | None = None,
        *,
        everything: bool = False,
        keep: Callable[[Rule], None] | None = None,
    ) -> None:
        """`keep` stores the rule when the user answers `always`."""
        self.rules = tuple(
            parse_rule(rule) if isinstance(rule, str) else rule for rule in rules
        )
        self._ask = ask
        self._everything = everything
        self._keep = keep
        self._reasons: dict[tuple[str, str, str], str] = {}
        self._always: set[tuple[str, str, str]] = set()
        self._asking = asyncio.Lock()

    async def __call__(self, permission: Permission) -> bool:
        if self._is_allowed(permission):
            return True
        if self._ask is None:
            return False
        async with self._asking:
            if self._is_allowed(permission):
                return True
            answer = await self._ask(permission)
            if answer == "always":
                self._always.add(_identity(permission))
                rule = rule_for(permission)
                if rule is not None and self._keep is not None:
                    self.rules = (*self.rules, rule)
                    self._keep(rule)
            if isinstance(answer, Denial):
                self._reasons[_identity(permission)] = answer.reason
            return bool(answer)

    def refusal(self, permission: Permission) -> str:
        """Return the message for the model after a refusal: the reason, and how it can be allowed."""
        what = f"{permission.kind} {quote_name(permission.what)!r}"
        if self._ask is not None:
            reason = self._reasons.pop(_identity(permission), "")
            return f"Refused: the user did not allow {what}." + (
                f" The user says: {reason}" if reason else ""
            )
        return f"Refused: nobody is there to approve {what}. {how_to_allow(permission)}"

    def _is_allowed(self, permission: Permission) -> bool:
        return (
            self._everything
            or _identity(permission) in self._always
            or any(rule.allows(permission) for rule in self.rules)
        )


def write_rule(home: Path, rule: Rule) -> None:
    """Add a rule to the file in the Everthread home, which need not exist."""
    file = home / RULES_FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text("utf-8") if file.exists() else ""
        if str(rule) not in before.splitlines():
            gap = "" if not before or before.endswith("\n") else "\n"
            file.write_text(f"{before}{gap}{rule}\n", "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be written: {error}") from error


def rule_for(permission: Permission) -> Rule | None:
    """Return the rule that allows exactly this and nothing else; None if no rule can."""
    what = permission.what
    if permission.kind not in ("command", "write") or not what.isprintable():
        return None
    kind: Kind = permission.kind
    if kind == "write":
        what = "".join(
            f"\\{char}" if char in _GLOB_CHARACTERS or char == "\\" else char
            for char in what
        )
    elif _GLOB_CHARACTERS & set(what):
        kind = "exactly"
    try:
        rule = parse_rule(f"{kind}: {what}")
    except InputError:
        return None
    return rule if rule.allows(permission) else None


def how_to_allow(permission: Permission) -> str:
    """Say how the user can allow it beforehand."""
    what = permission.what
    rule = rule_for(permission)
    if rule is not None:
        return f"The user can allow it with the line `{rule}` in {RULES_FILE} in the Everthread home, or with --yes."
    if permission.kind == "command" and permission.detail:
        return "Rules allow commands at the top of the workspace only: leave workdir out, or let the user use --yes."
    if permission.kind == "command" and plain_words(what) is None:
        return "No rule can allow a compound command: run its parts one by one, or let the user start with --yes."
    return "The user can allow it with --yes."


def _identity(permission: Permission) -> tuple[str, str, str]:
    """Return the key of an earlier answer: a command in its folder, or a path whatever is written to it."""
    return (
        permission.kind,
        permission.what,
        permission.detail if permission.kind == "command" else "",
    )


def _words_match(pattern: list[str], words: list[str]) -> bool:
    if pattern[-1] == "*":
        pattern = pattern[:-1]
        words = words[: len(pattern)]
    return len(pattern) == len(words) and all(map(_word_matches, pattern, words))


def _word_matches(pattern: str, word: str) -> bool:
    """Match word for word; a pattern matches no word that the shell would expand."""
    if pattern == word:
        return True
    if (
        not _GLOB_CHARACTERS & set(pattern)
        or _GLOB_CHARACTERS & set(word)
        or word.startswith("~")
    ):
        return False
    return _path_matches(pattern, word)


def _path_matches(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a path; inside `.git`, whose hooks are run, only if it names `.git`."""
    parts = path.lower().split("/")
    if ".." in parts or (".git" in parts and ".git" not in pattern.split("/")):
        return False
    return match_path(pattern, path)
