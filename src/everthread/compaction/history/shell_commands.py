"""Read command lines: whether a command only shows something, runs tests, or writes to a file."""

from __future__ import annotations

import functools
import re

from everthread.compaction.history.tool_kinds import load_tool_table

_QUOTED_TEXT_PATTERN = re.compile(r"'[^']{0,2000}'|\"[^\"]{0,2000}\"")
_FILE_SHAPE_PATTERN = re.compile(r"[/~]|\.[A-Za-z]\w{0,9}$")
_FILE_ENDING_PATTERN = re.compile(r"\.[A-Za-z]\w{0,9}$")
COMMAND_SEPARATOR_PATTERN = re.compile(r"\|\||&&|[|;\n]")
_REDIRECT_TARGET_PATTERN = re.compile(r"(?<![0-9&>-])>{1,2}\s{0,2}([\w./~-]{1,200})")
_SPACED_REDIRECT_TARGET_PATTERN = re.compile(
    r"(?<![^\s\"')Q])>{1,2}\s{0,2}([\w./~-]{0,200}\w[\w./~-]{0,200})"
)
"""A redirect target that no `<placeholder>/` in a text can be taken for."""
_LOG_COMMAND_PATTERN = re.compile(r"\b(?:logs?|journalctl|dmesg)\b")
"""Commands whose output may report errors from the past."""
_TRIMMING_PROGRAMS = frozenset({"tail", "head", "grep", "tee", "less", "cat", "wc", "sort"})
"""Programs at the end of a pipe that only trim the output."""
_BRANCH_PATTERN = re.compile(
    r"\bgit\s+(?:checkout(?:\s+-[bB])?|switch(?:\s+-[cC])?)\s+([\w./-]{1,100})(?=\s*(?:$|[;&|]))"
)
_ON_BRANCH_PATTERN = re.compile(
    r"(?:^On branch |Switched to (?:a new )?branch ')([\w./-]{1,100})", re.MULTILINE
)
_LISTING_ARGUMENT_PATTERN = re.compile(
    r"-[avr]{1,3}|--(?:list|all|remotes|show-current|verbose|contains|(?:no-)?merged|sort|format)\b.*|show|get-url"
)
"""Arguments with which `git branch` and `git remote` only list something."""
_SSH_COMMAND_PATTERN = re.compile(
    r"ssh(?:\s+-\w+)*\s+[\w.@-]{1,200}\s+(['\"])(?P<command>[^'\"]{1,2000})\1\s*"
)
"""A command that runs on another machine."""
_WORD_SEPARATOR_PATTERN = re.compile(r"[^a-z0-9]+")
_MAX_SEARCHED_WORDS = 5
"""Words of a step to search for tests: later words are its files and patterns."""


def looks_like_path(word: str) -> bool:
    """Return whether a word has the shape of a path."""
    return _FILE_SHAPE_PATTERN.search(word) is not None


def find_branch(command: str, output: str) -> str:
    """Return the git branch that a command or its output names, or an empty string."""
    match = (
        (_BRANCH_PATTERN.search(command) or _ON_BRANCH_PATTERN.search(output[:2_000]))
        if "git" in command
        else None
    )
    return match[1] if match and not _FILE_ENDING_PATTERN.search(match[1]) else ""


def is_read_only_command(command: str) -> bool:
    """Return whether every program of a command line only shows something, and nothing is written to a file."""
    remote = _SSH_COMMAND_PATTERN.fullmatch(command) if command.startswith("ssh ") else None
    if remote:
        return is_read_only_command(remote["command"])
    if (
        "`" in command
        or "$(" in command
        or (">" in command and _REDIRECT_TARGET_PATTERN.search(command.replace("/dev/null", "")))
    ):
        return False
    # The quoted text of awk is a program, which may write.
    if "awk" in command and (">" in command or "system(" in command):
        return False
    return all(
        _is_read_only_step(step.split())
        for step in COMMAND_SEPARATOR_PATTERN.split(_QUOTED_TEXT_PATTERN.sub("Q", command))
    )


@functools.lru_cache(maxsize=1_024)
def is_test_command(command: str) -> bool:
    """Return whether a command line runs tests: the first words of a step that is not read-only name them."""
    steps = (
        step.split()
        for step in COMMAND_SEPARATOR_PATTERN.split(_QUOTED_TEXT_PATTERN.sub("Q", command))
    )
    return any(_runs_tests(words) for words in steps if not _is_read_only_step(words))


def _runs_tests(words: list[str]) -> bool:
    """Return whether a step runs tests. Programs that only show, move or commit files do not, whatever they name."""
    table = load_tool_table()
    program = next(iter(_skip_prefixes(words)), "")
    if program in table.read_only_programs or program in table.file_programs:
        return False
    if not table.no_run_options.get(program, frozenset()).isdisjoint(words):
        return False
    test_words = table.test_words
    for word in words[:_MAX_SEARCHED_WORDS]:
        # `prettier --check` and `npm run type-check` run no tests, `node --test` and `make check` do.
        if word.startswith("-") and word != "--test":
            continue
        parts = _WORD_SEPARATOR_PATTERN.split(word.lower().strip("-"))
        if not test_words.isdisjoint(parts if "check" not in parts[1:] else parts[:1]):
            return True
    return False


def _skip_prefixes(words: list[str]) -> list[str]:
    """Return the words of a step without a folder change, variables and wrappers before the program."""
    prefixes = load_tool_table().program_prefixes
    while words and (words[0] in prefixes or "=" in words[0]):
        words = words[2:] if words[0] == "cd" else words[1:]
    return words


def _is_read_only_step(words: list[str]) -> bool:
    """Return whether a step of a command line only shows something: neither its program nor an option writes."""
    table = load_tool_table()
    words = _skip_prefixes(words)
    if not words:
        return True
    program = words[0].rpartition("/")[2]
    arguments = words[1:]
    subcommands = table.read_only_programs.get(program)
    writing_options = table.writing_arguments.get(program, frozenset())
    if subcommands is None or any(
        word in writing_options or word.partition("=")[0] in writing_options for word in arguments
    ):
        return False
    value_options = table.value_options.get(program, frozenset())
    while arguments and arguments[0].startswith("-") and arguments[0] not in subcommands:
        arguments = arguments[2:] if arguments[0] in value_options else arguments[1:]
    if program == "gh":
        return len(arguments) > 1 and arguments[1] in subcommands
    if program == "git" and arguments[:1] in (["branch"], ["remote"]) and len(arguments) > 1:
        return _LISTING_ARGUMENT_PATTERN.fullmatch(arguments[1]) is not None
    return not subcommands or (bool(arguments) and arguments[0] in subcommands)


def find_redirect_targets(command: str) -> tuple[str, ...]:
    """Return the files that a command line redirects output to."""
    if ">" not in command:
        return ()
    targets = _SPACED_REDIRECT_TARGET_PATTERN.findall(_QUOTED_TEXT_PATTERN.sub("Q", command))
    return tuple(
        path
        for path in dict.fromkeys(targets)
        if looks_like_path(path) and not path.startswith("/dev/")
    )


def is_output_trimmed(command: str) -> bool:
    """Return whether a command ends with a pipe that only trims the output: the exit code is not the command's own."""
    return (
        remove_trimming_stage(command) != command and _LOG_COMMAND_PATTERN.search(command) is None
    )


def remove_trimming_stage(command: str) -> str:
    """Return a command without the last stage of its pipe if that only trims the output."""
    if "|" not in command:
        return command
    # A pattern in quotes may hold the sign of a pipe.
    end = _QUOTED_TEXT_PATTERN.sub(lambda quote: "Q" * len(quote[0]), command).rfind("|")
    words = command[end + 1 :].split(None, 1)
    is_trimmed = (
        end > 0 and command[end - 1] != "|" and bool(words) and words[0] in _TRIMMING_PROGRAMS
    )
    return command[:end].rstrip() if is_trimmed else command
