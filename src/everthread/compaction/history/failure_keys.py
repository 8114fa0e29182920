"""Match a successful call with the earlier failures that it resolves, by the keys of both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from everthread.compaction.history.shell_commands import (
    is_test_command,
    looks_like_path,
    remove_trimming_stage,
)
from everthread.compaction.history.tool_calls import CallEffect

_COMMAND_PREFIX_PATTERN = re.compile(
    r"(?:cd\s+[^\s;&|]+\s*(?:&&|;)\s*|(?:[A-Z_]{2,40}=\S{0,200}|sudo|time|env)\s+)"
)
_FOLDER_CHANGE_PATTERN = re.compile(
    r"(?:^|[;&(]\s{0,3})cd\s+(\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|[^\s;&|)]{1,200})"
)
_MAX_KEY_CHARS = 400
_LONG_KEY_CHARS = _MAX_KEY_CHARS // 2
_MIN_SHORTENED_CHARS = 100
"""A summary shows shorter commands whole."""
_FLAG_PATTERN = re.compile(r"-[qv]{1,3}|--quiet|--verbose")
"""An option that only changes how much a command prints."""
_FOLDER_SEPARATOR = " in folder "
"""Separates a command from its folder in the key of a failure."""


def _carries_program(words: Sequence[str]) -> bool:
    """Return whether a command contains the text of a program. Two such runs do not count as the same command."""
    return any(word in ("-c", "-e") or word.startswith("<<") for word in words[:4])


def strip_command_prefix(command: str) -> str:
    """Return a command without folder changes and variables before it."""
    text = " ".join(command.split())
    while (prefix_match := _COMMAND_PREFIX_PATTERN.match(text)) is not None:
        text = text[prefix_match.end() :]
    return text


@lru_cache(maxsize=4_096)
def command_key(command: str) -> str:
    """Return the key of a command: the command without its folder and without filters that only trim the output."""
    text = strip_command_prefix(command[:2_000])
    if len(text) > _MAX_KEY_CHARS:  # between words: half a secret would not be recognised
        text = text[:_MAX_KEY_CHARS].rpartition(" ")[0] or text[:_MAX_KEY_CHARS]
    while True:
        shortened_text = (
            text.removesuffix("2>&1")
            .removesuffix("> /dev/null")
            .removesuffix(">/dev/null")
            .rstrip()
        )
        shortened_text = remove_trimming_stage(shortened_text)
        if shortened_text == text:
            return text
        text = shortened_text


def error_key(effect: CallEffect) -> str:
    """Return the key of a failure: a command with its folder, or a tool with its target.

    For a tool that ran code, the key is the tool alone, because code is never the same twice.
    """
    if effect.kind == "changed":
        return effect.target or effect.tool
    if effect.kind != "ran":
        return f"{effect.tool} {effect.target}".strip()
    if "code" in effect.arguments:
        return effect.tool
    folder = _find_folder(effect)
    return command_key(effect.target) + (f"{_FOLDER_SEPARATOR}{folder}" if folder else "")


def _find_folder(effect: CallEffect) -> str:
    """Return the folder that a command names to run in, or an empty string."""
    folder_changes = _FOLDER_CHANGE_PATTERN.findall(effect.target) if "cd " in effect.target else []
    folder = effect.arguments.get("workdir") or effect.arguments.get("cwd")
    if folder_changes:
        folder = folder_changes[-1]
    return folder.strip("\"' ").rstrip("/") if isinstance(folder, str) else ""


def resolves_failure(effect: CallEffect, key: str, failure_key: str) -> bool:
    """Return whether a successful run resolves a failure: it is the same command, or runs at least as much.

    The folders must be equal if both are named. A run that names fewer files does not resolve the failure.
    """
    if effect.kind != "ran":
        return False
    command, folder = _split_key(key)
    failed_command, failed_folder = _split_key(failure_key)
    if folder and failed_folder and folder != failed_folder:
        return False
    if _has_same_last_step(command, failed_command) or _has_steps(command, failed_command):
        return True
    words = command.split()
    failed_words = failed_command.split()
    if not words or words[:1] != failed_words[:1]:
        return False
    if command == failed_command or _is_beginning(failed_command, command):
        return True
    if _carries_program(words) or _carries_program(failed_words) or "&&" in failed_words:
        return False
    return _runs_at_least(effect, words, failed_words)


def is_same_command(key: str, other_key: str) -> bool:
    """Return whether two failures are of the same command. The folders must be equal if both are named."""
    command, folder = _split_key(key)
    other_command, other_folder = _split_key(other_key)
    return command == other_command and (not folder or not other_folder or folder == other_folder)


def _split_key(key: str) -> tuple[str, str]:
    """Return the command and the folder of a key."""
    command, _, folder = key.partition(_FOLDER_SEPARATOR)
    return command, folder


def _runs_at_least(effect: CallEffect, words: Sequence[str], failed_words: Sequence[str]) -> bool:
    """Return whether a command runs at least as much as a failed one: with fewer arguments, or with wider paths.

    New options that only change how much it prints do not matter; others may select something.
    """
    new_words = [word for word in words if word not in failed_words]
    wider_words = [word for word in new_words if not _FLAG_PATTERN.fullmatch(word)]
    if not new_words and len(words) == len(failed_words):
        return False
    if any(not _covers_any(word, failed_words) for word in wider_words):
        return False
    if all(map(_FLAG_PATTERN.fullmatch, words[1:])):
        return bool(effect.tests) or is_test_command(words[0])
    files = [word for word in words[1:] if looks_like_path(word)]
    failed_files = [word for word in failed_words[1:] if looks_like_path(word)]
    return not files or all(_covers_any_of(files, path) for path in failed_files)


def _covers_any(word: str, failed_words: Iterable[str]) -> bool:
    """Return whether a word names a path that holds one of these words."""
    return any(_covers(word, failed_word) for failed_word in failed_words)


def _covers_any_of(words: Iterable[str], failed_word: str) -> bool:
    """Return whether one of these words names the same as `failed_word`, or a path that holds it."""
    return any(word == failed_word or _covers(word, failed_word) for word in words)


def _covers(word: str, narrower_word: str) -> bool:
    """Return whether a path holds another one: a folder, `./...`, a file with tests, the task of every project."""
    if narrower_word.startswith(":"):
        return narrower_word.endswith(f":{word}")
    is_pattern = word.endswith("...")
    path = word.removesuffix("...").removeprefix("./").rstrip("/")
    narrower_path = narrower_word.removeprefix("./")
    if path in ("", "."):
        return is_pattern and looks_like_path(narrower_word)
    return looks_like_path(word) and narrower_path.startswith((f"{path}/", f"{path}::"))


def _is_beginning(failed_command: str, command: str) -> bool:
    """Return whether a long failed command, which a summary showed shortened, begins like this command."""
    return (
        len(failed_command) > _MIN_SHORTENED_CHARS
        and failed_command.endswith("…")
        and command.startswith(failed_command[:-1])
    )


def _has_steps(command: str, failed_command: str) -> bool:
    """Return whether a failed command is part of a chain that only continues after a success."""
    if " && " not in command or ";" in command or "||" in command:
        return False
    steps = list(map(command_key, command.split(" && ")))
    failed_steps = list(map(command_key, failed_command.split(" && ")))
    return any(
        steps[start : start + len(failed_steps)] == failed_steps
        for start in range(len(steps) - len(failed_steps) + 1)
    )


def _has_same_last_step(command: str, failed_command: str) -> bool:
    """Return whether a chain of commands ends with the last step of a failed chain, after steps of the same programs.

    `git add a b && git commit -m M` resolves `git add a && git commit -m M`. Of a long command, only the beginning is
    compared, because keys are cut.
    """
    *first_steps, last_step = command.split(" && ")
    *failed_steps, failed_last_step = failed_command.removesuffix("…").split(" && ")
    compared_chars = None
    if max(len(command), len(failed_command)) > _LONG_KEY_CHARS:
        compared_chars = min(len(last_step), len(failed_last_step))
    if not first_steps or last_step[:compared_chars] != failed_last_step[:compared_chars]:
        return False
    return {step.split(" ", 1)[0] for step in first_steps} >= {
        step.split(" ", 1)[0] for step in failed_steps
    }
