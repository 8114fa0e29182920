"""The state of a thread: files, commands, open errors, the agent's to-do list.

It is read from calls, not from prose, and updated with every call. As JSON it is stored with the engine's state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from everthread.compaction.history.compaction_history import MessageFacts, number_turns
from everthread.compaction.history.tool_calls import (
    COMMAND_SEPARATOR,
    EDIT_MARK,
    RUNNING,
    CallFacts,
    Effect,
    is_test_command,
    looks_like_path,
    read_edits,
    without_trimming_stage,
)
from everthread.compaction.history.tool_outcomes import count_tests, find_failure
from everthread.compaction.names.names_in_use import NamesInUse
from everthread.core.messages import Call, Messages, one_line, text_of
from everthread.core.secrets.redaction import clip_words

MAX_FILES = 400
MAX_COMMANDS = 100
MAX_OPEN_ERRORS = 40
OPEN_ERROR_TURNS = 2
"""An error counts as open for this many turns."""
REPEATED_ERROR_TURNS = 12
"""An error that occurred repeatedly counts as open for this many turns."""
MIN_ABSOLUTE_PATHS = 3
"""Find a root only if there are at least this many absolute paths."""
CHANGED = "changed"
READ = "read"

_COMMAND_PREFIX = re.compile(
    r"(?:cd\s+[^\s;&|]+\s*(?:&&|;)\s*|(?:[A-Z_]{2,40}=\S{0,200}|sudo|time|env)\s+)"
)
_FOLDER_CHANGE = re.compile(
    r"(?:^|[;&(]\s{0,3})cd\s+(\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|[^\s;&|)]{1,200})"
)
_MAX_KEY_CHARS = 400
_LONG_KEY_CHARS = _MAX_KEY_CHARS // 2
_FOLDER_SEPARATOR = " in folder "
"""Separates a command from its folder in the key of a failure."""
_TODO_TEXT_FIELDS = ("content", "step", "title", "task", "text", "description")


@dataclass(slots=True)
class FileState:
    """The last access to a file, and the turn of it."""

    did: str
    turn: int


@dataclass(slots=True)
class CommandState:
    """The last outcome of a command."""

    outcome: str
    is_ok: bool
    turn: int
    is_test: bool = False


@dataclass(slots=True)
class OpenError:
    """A failure that has not been resolved yet."""

    source: str
    lines: list[str]
    turn: int
    times: int = 1
    """The number of such failures in a row."""
    tests: int = 0
    """The number of tests, for a test run."""
    tool: str = ""
    """The tool of a call that neither runs a command nor changes a file."""
    is_passed_by: bool = False
    """Whether the same tool succeeded with another call since, so that the agent continued without this one."""


@dataclass(slots=True)
class ThreadState:
    """The state of a thread after its calls."""

    files: dict[str, FileState] = field(default_factory=dict)
    commands: dict[str, CommandState] = field(default_factory=dict)
    errors: dict[str, OpenError] = field(default_factory=dict)
    todo: list[dict[str, str]] = field(default_factory=list)
    directory: str = ""
    branch: str = ""
    processes: list[str] = field(default_factory=list)
    message_count: int = 0
    """The number of messages that were read."""
    forgotten_errors: set[str] = field(default_factory=set)
    """Keys of errors dropped for lack of room, not because they were resolved."""
    names: NamesInUse = field(default_factory=NamesInUse)
    """The names that the work uses."""
    root: str = ""
    """The folder that paths in a summary are relative to."""
    latest_turn: int = 0
    """The latest turn with a call."""

    def apply_effect(self, effect: Effect, turn: int) -> None:
        """Update the state with the effect of one call."""
        effect = self._resolve_session_end(effect)
        access = CHANGED if effect.kind != "looked" else READ
        if not effect.failed and effect.is_done:
            for path in effect.paths:
                previous_state = self.files.pop(path, None)
                was_changed = (
                    previous_state is not None and previous_state.did == CHANGED
                )
                self.files[path] = FileState(
                    CHANGED if was_changed else access,
                    previous_state.turn
                    if was_changed and previous_state and access == READ
                    else turn,
                )
            self._remove_files(effect)
        self.todo = read_todo(effect) or self.todo
        directory = effect.arguments.get("workdir") or effect.arguments.get("cwd")
        if isinstance(directory, str) and directory.strip():
            self.directory = clip_words(one_line(directory), 200)
        self.branch = effect.branch or self.branch
        if effect.kind == "ran":
            self._record_run(effect, command_key(effect.target), turn)
        self.latest_turn = max(self.latest_turn, turn)
        if not effect.failed:
            self._close_failures(effect)
            self._mark_passed_by(effect)
        elif effect.kind != "looked":
            self._record_failure(effect, turn)
        self._drop_excess()

    def _record_failure(self, effect: Effect, turn: int) -> None:
        """Record a failure if it states an error or ended with an exit code of 2 or more."""
        error_texts = list(effect.errors) or ([effect.tests] if effect.tests else [])
        lines = error_texts or ([effect.outcome] if _is_clear_failure(effect) else [])
        if not lines:
            return
        source = (
            effect.target
            if effect.kind == "ran"
            else f"{effect.tool} {effect.target}".strip()
        )
        key = error_key(effect)
        previous_error = self.errors.pop(key, None)
        times = previous_error.times + 1 if previous_error else 1
        self.errors[key] = OpenError(
            source=clip_words(source or effect.tool, 200),
            lines=lines,
            turn=turn,
            times=times,
            tests=_count_tests_run(effect),
            tool=effect.tool if effect.kind == "called" else "",
        )

    def _record_run(self, effect: Effect, key: str, turn: int) -> None:
        """Record the outcome of a command, and whether it runs in the background."""
        self.commands.pop(key, None)
        is_code = "code" in effect.arguments
        is_test = is_test_command(effect.target) and effect.is_done and not is_code
        self.commands[key] = CommandState(
            effect.outcome, not effect.failed, turn, is_test
        )
        _, is_running, session = effect.outcome.partition(RUNNING)
        is_background = effect.arguments.get(
            "run_in_background"
        ) is True or effect.target.rstrip().endswith(" &")
        if (is_background or is_running) and not effect.failed:
            process = clip_words(effect.target, 200) + (
                f" (session {session.partition(')')[0]})" if session else ""
            )
            self.processes = [
                *(
                    other_process
                    for other_process in self.processes
                    if other_process != process
                ),
                process,
            ][-8:]
        if effect.target.startswith(("kill", "pkill")):
            self.processes = []

    def _resolve_session_end(self, effect: Effect) -> Effect:
        """Return the effect; if it ends a background session, as the end of the command that started it."""
        if not self.processes or "exit " not in effect.outcome:
            return effect
        session_suffix = f" (session {effect.arguments.get('session_id')})"
        process = next(
            (
                candidate
                for candidate in self.processes
                if candidate.endswith(session_suffix)
            ),
            None,
        )
        if process is None:
            return effect
        self.processes = [
            candidate for candidate in self.processes if candidate != process
        ]
        return effect._replace(
            kind="ran",
            target=process.removesuffix(session_suffix),
            tests=count_tests(effect.output),
        )

    def _close_failures(self, effect: Effect) -> None:
        """Close the failures that a successful call resolves, unless its output also states an error."""
        key = error_key(effect) if self.errors and effect.is_done else ""
        resolved_keys = [
            failure_key
            for failure_key in self.errors
            if failure_key == key or _resolves_failure(effect, key, failure_key)
        ]
        resolved_keys += (
            self._find_resolved_by_tests(effect) if effect.tests and self.errors else []
        )
        if resolved_keys and _states_no_error(effect):
            for key in dict.fromkeys(resolved_keys):
                del self.errors[key]

    def _mark_passed_by(self, effect: Effect) -> None:
        """Mark errors as passed by if the agent continued with other calls of that tool.

        Pages, buttons and queries are rarely repeated, so the same call may never succeed.
        """
        if effect.kind != "called" or not effect.is_done:
            return
        for key, error in self.errors.items():
            if error.tool == effect.tool and not error.is_passed_by:
                self.errors[key] = replace(error, is_passed_by=True)

    def _find_resolved_by_tests(self, effect: Effect) -> list[str]:
        """Return the keys of failed test runs with at most as many tests as this passing run."""
        test_count = _count_tests_run(effect)
        return [
            key for key, error in self.errors.items() if 0 < error.tests <= test_count
        ]

    def _remove_files(self, effect: Effect) -> None:
        """Forget the files that an `rm` command removed."""
        if effect.kind != "ran" or "rm " not in effect.target:
            return
        for step in COMMAND_SEPARATOR.split(effect.target):
            words = step.split()
            for path in (
                words[words.index("rm") + 1 :]
                if words[:1] == ["rm"] or words[:2] == ["git", "rm"]
                else ()
            ):
                for known_path in [
                    known_path
                    for known_path in self.files
                    if known_path == path or known_path.endswith(f"/{path}")
                ]:
                    del self.files[known_path]

    def _drop_excess(self) -> None:
        """Drop the oldest files, commands and errors above the maximum."""
        for entries, limit in ((self.files, MAX_FILES), (self.commands, MAX_COMMANDS)):
            while len(entries) > limit:
                del entries[_find_key_to_forget(entries)]
        while len(self.errors) > MAX_OPEN_ERRORS:
            self.forgotten_errors.add(key := next(iter(self.errors)))
            del self.errors[key]

    # State for a reader

    def open_errors(
        self, turn: int | None = None, max_errors: int = 6
    ) -> list[OpenError]:
        """Return the newest open errors, oldest first.

        If `turn` is given, return only errors that still count as open at that turn.
        """
        recent_errors = [
            error
            for error in self.errors.values()
            if turn is None
            or (
                error.turn
                > turn - (REPEATED_ERROR_TURNS if error.times > 1 else OPEN_ERROR_TURNS)
                and not error.is_passed_by
            )
        ]
        return recent_errors[-max_errors:]

    @property
    def turn(self) -> int:
        """The latest turn with a call."""
        entry_maps: tuple[Mapping[str, Any], ...] = (
            self.files,
            self.commands,
            self.errors,
        )
        turns: list[int] = [
            entry.turn for entries in entry_maps for entry in entries.values()
        ]
        return max([self.latest_turn, *turns])

    def changed_files(self) -> list[str]:
        """Return the paths of the changed files, the latest change last."""
        return [
            path for path, file_state in self.files.items() if file_state.did == CHANGED
        ]

    def last_test(self) -> tuple[str, CommandState] | None:
        """Return the last test command and its outcome, or None."""
        tests = [
            (command, state)
            for command, state in self.commands.items()
            if state.is_test
        ]
        return tests[-1] if tests else None

    def prepare_for_summary(self, facts: Sequence[MessageFacts]) -> ThreadState:
        """Return a copy for a summary of these messages, with the names in their outputs and a root for paths."""
        state = self.copy()
        state.names = self.names.with_outputs(facts)
        state.root = find_root(self.files, self.root)
        return state

    def after_messages(
        self, facts: Sequence[MessageFacts], turns: Sequence[int]
    ) -> ThreadState:
        """Return a copy of the state after these further messages, which a summary does not cover.

        Its files are those of the covered messages: the others are still in view. Its names are those of all messages:
        much of the tail may be cut.
        """
        end_state = self.copy()
        for record in read_calls(facts, turns):
            end_state.apply_effect(record.effect, record.turn)
        open_before = {
            key: end_state.errors[key] for key in self.errors if key in end_state.errors
        }
        return replace(
            end_state,
            files={**self.files},
            errors=open_before,
            names=self.names.with_tail(facts),
        )

    @property
    def root_prefix(self) -> str:
        """The prefix that paths lose in a summary; empty without a root."""
        return f"{self.root}/" if self.root else ""

    def todo_items(self, *statuses: str) -> list[str]:
        """Return the texts of the to-do items with one of these statuses."""
        return [entry["text"] for entry in self.todo if entry["status"] in statuses]

    def copy(self) -> ThreadState:
        """Return an independent copy; a shallow one, as entries are replaced and never changed."""
        return replace(
            self,
            files={**self.files},
            commands={**self.commands},
            errors={**self.errors},
            todo=[*self.todo],
            processes=[*self.processes],
            forgotten_errors={*self.forgotten_errors},
            names=self.names.copy(),
        )

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {
            "files": {
                path: {"did": state.did, "turn": state.turn}
                for path, state in self.files.items()
            },
            "commands": {
                key: {
                    "outcome": state.outcome,
                    "is_ok": state.is_ok,
                    "turn": state.turn,
                    "is_test": state.is_test,
                }
                for key, state in self.commands.items()
            },
            "errors": {key: asdict(state) for key, state in self.errors.items()},
            "todo": [dict(entry) for entry in self.todo],
            "directory": self.directory,
            "branch": self.branch,
            "processes": list(self.processes),
            "messages": self.message_count,
            "names": self.names.dump(),
            "root": self.root,
            "latest": self.latest_turn,
        }

    @classmethod
    def load(cls, data: Any) -> ThreadState:
        """Restore the result of `dump`; leave out values that cannot be read."""
        if not isinstance(data, Mapping):
            return cls()
        try:
            return cls(
                files={
                    path: FileState(**value)
                    for path, value in data.get("files", {}).items()
                },
                commands={
                    command: CommandState(**value)
                    for command, value in data.get("commands", {}).items()
                },
                errors={
                    key: OpenError(**value)
                    for key, value in data.get("errors", {}).items()
                },
                todo=[dict(entry) for entry in data.get("todo", [])],
                directory=str(data.get("directory", "")),
                branch=str(data.get("branch", "")),
                processes=[str(value) for value in data.get("processes", [])],
                message_count=int(data.get("messages", 0)),
                names=NamesInUse.load(data.get("names")),
                root=str(data.get("root", "")),
                latest_turn=int(data.get("latest", 0)),
            )
        except (TypeError, ValueError, AttributeError, IndexError):
            return cls()


def find_root(paths: Iterable[str], previous_root: str = "") -> str:
    """Return the deepest folder that holds most of the absolute paths.

    Keep `previous_root` while it holds half of them.
    """
    folders = [path.rpartition("/")[0] for path in paths if path.startswith("/")]
    if len(folders) < MIN_ABSOLUTE_PATHS:
        return previous_root
    if previous_root and sum(
        f"{folder}/".startswith(f"{previous_root}/") for folder in folders
    ) * 2 >= len(folders):
        return previous_root
    counts: Counter[str] = Counter()
    for folder in folders:
        parts = folder.split("/")
        counts.update("/".join(parts[:depth]) for depth in range(3, len(parts) + 1))
    common_folders = [
        folder for folder, count in counts.items() if count * 3 >= len(folders) * 2
    ]
    return max(common_folders, key=len, default="")


def read_todo(effect: Effect) -> list[dict[str, str]]:
    """Return the to-do list that a call sets, or an empty list."""
    items = (
        effect.arguments.get("todos")
        or effect.arguments.get("plan")
        or effect.arguments.get("items")
    )
    if (
        not isinstance(items, list)
        or not items
        or not all(isinstance(item, Mapping) for item in items)
    ):
        return []
    todo = []
    for item in items:
        text = next(
            (
                item[name]
                for name in _TODO_TEXT_FIELDS
                if isinstance(item.get(name), str)
            ),
            "",
        )
        status = (
            item.get("status")
            if isinstance(item.get("status"), str)
            else "done"
            if item.get("done")
            else ""
        )
        if text:
            todo.append(
                {
                    "text": clip_words(one_line(text), 200),
                    "status": clip_words(one_line(str(status)), 20),
                }
            )
    return todo[:40] if any(entry["status"] for entry in todo) else []


def _find_key_to_forget(entries: Mapping[str, Any]) -> str:
    """Return the key of the entry to forget: the oldest that was only read, or else the oldest."""
    return next(
        (key for key, entry in entries.items() if getattr(entry, "did", READ) == READ),
        next(iter(entries)),
    )


def _carries_program(words: Sequence[str]) -> bool:
    """Return whether a command carries its own program text: two such runs are not the same command."""
    return any(word in ("-c", "-e") or word.startswith("<<") for word in words[:4])


def strip_command_prefix(command: str) -> str:
    """Return a command without the folder it is run in and the variables set for it."""
    text = " ".join(command.split())
    while (prefix_match := _COMMAND_PREFIX.match(text)) is not None:
        text = text[prefix_match.end() :]
    return text


@lru_cache(maxsize=4_096)
def command_key(command: str) -> str:
    """Return the key that equal commands share: without the folder, and without filters that only trim the output."""
    text = strip_command_prefix(command[:2_000])
    if (
        len(text) > _MAX_KEY_CHARS
    ):  # between words: half a secret would not be recognised
        text = text[:_MAX_KEY_CHARS].rpartition(" ")[0] or text[:_MAX_KEY_CHARS]
    while True:
        shortened = (
            text.removesuffix("2>&1")
            .removesuffix("> /dev/null")
            .removesuffix(">/dev/null")
            .rstrip()
        )
        shortened = without_trimming_stage(shortened)
        if shortened == text:
            return text
        text = shortened


def error_key(effect: Effect) -> str:
    """Return the key of a failure: a command with its folder, or the tool alone if it ran code.

    Code is never the same twice.
    """
    if effect.kind == "changed":
        return effect.target or effect.tool
    if effect.kind != "ran":
        return f"{effect.tool} {effect.target}".strip()
    if "code" in effect.arguments:
        return effect.tool
    folder = _find_folder(effect)
    return command_key(effect.target) + (
        f"{_FOLDER_SEPARATOR}{folder}" if folder else ""
    )


def _find_folder(effect: Effect) -> str:
    """Return the folder that a command names to run in, or an empty string."""
    folder_changes = (
        _FOLDER_CHANGE.findall(effect.target) if "cd " in effect.target else []
    )
    folder = (
        folder_changes[-1]
        if folder_changes
        else effect.arguments.get("workdir") or effect.arguments.get("cwd")
    )
    return folder.strip("\"' ").rstrip("/") if isinstance(folder, str) else ""


def _resolves_failure(effect: Effect, key: str, failure_key: str) -> bool:
    """Return whether a successful run resolves a failure in the same folder: the same run, or one with fewer arguments.

    A run that names fewer files is another one. A folder that is not named may be any.
    """
    if effect.kind != "ran":
        return False
    command, _, folder = key.partition(_FOLDER_SEPARATOR)
    failed_command, _, failed_folder = failure_key.partition(_FOLDER_SEPARATOR)
    if folder and failed_folder and folder != failed_folder:
        return False
    if _has_same_last_step(command, failed_command):
        return True
    words = command.split()
    failed_words = failed_command.split()
    if not words or words[:1] != failed_words[:1]:
        return False
    if command == failed_command:
        return True
    if (
        _carries_program(words)
        or _carries_program(failed_words)
        or "&&" in failed_words
        or not set(words) < set(failed_words)
    ):
        return False
    if len(words) == 1:
        return bool(effect.tests)
    files, failed_files = (
        {word for word in command_words[1:] if looks_like_path(word)}
        for command_words in (words, failed_words)
    )
    return not files or files == failed_files


def _has_same_last_step(command: str, failed_command: str) -> bool:
    """Return whether a chain of commands ends with the last step of a failed chain, after steps of the same programs.

    `git add a b && git commit -m M` resolves `git add a && git commit -m M`. Only the beginning of a long command is
    known.
    """
    *first_steps, last_step = command.split(" && ")
    *failed_steps, failed_last_step = failed_command.split(" && ")
    compared_chars = (
        min(len(last_step), len(failed_last_step))
        if max(len(command), len(failed_command)) > _LONG_KEY_CHARS
        else None
    )
    if (
        not first_steps
        or last_step[:compared_chars] != failed_last_step[:compared_chars]
    ):
        return False
    return {step.split(" ", 1)[0] for step in first_steps} >= {
        step.split(" ", 1)[0] for step in failed_steps
    }


_EXIT_CODE = re.compile(r"exit (\d{1,3})\b")
_TEST_FIGURE = re.compile(r"(\d{1,7}) (?:failed|errors?|passed|tests?)\b")


def _is_clear_failure(effect: Effect) -> bool:
    """Return whether a command ended with an exit code of 2 or more: checks also use 1 to say "no"."""
    code = _EXIT_CODE.search(effect.outcome) if effect.kind == "ran" else None
    return code is not None and int(code[1]) >= 2


def _count_tests_run(effect: Effect) -> int:
    """Return the number of tests of a test run."""
    return sum(map(int, _TEST_FIGURE.findall(effect.tests))) if effect.tests else 0


def _states_no_error(effect: Effect) -> bool:
    """Return whether the output of a successful call states no error. A pipe hides the exit code."""
    if (
        effect.kind != "ran"
        or effect.tests
        or (effect.outcome.startswith("exit 0") and "|" not in effect.target)
    ):
        return True
    return not find_failure(effect.output)


class CallRecord(NamedTuple):
    """The effect of a call, the index of its message, and the turn it belongs to."""

    message_index: int
    turn: int
    effect: Effect
    unanswered_id: str
    """Its id if it has no result; otherwise empty."""


UnmatchedResults = dict[str, list[tuple[MessageFacts, int]]]
"""Results that no call has taken yet, by the call's id: the message, and which of its results."""


def read_calls(
    facts: Sequence[MessageFacts],
    turns: Sequence[int],
    start: int = 0,
    unmatched_results: UnmatchedResults | None = None,
) -> list[CallRecord]:
    """Return every call from `start` on with its first result, in order.

    `unmatched_results`: results that no call has taken yet.
    """
    unmatched_results = {} if unmatched_results is None else unmatched_results
    for message_facts in facts[start:]:
        for number, result in enumerate(message_facts.results):
            unmatched_results.setdefault(result.call_id, []).append(
                (message_facts, number)
            )
    records: list[CallRecord] = []
    for index in range(start, len(facts)):
        message_facts = facts[index]
        if message_facts.calls:
            call_facts = tuple(
                [
                    _take_result(call, unmatched_results.get(call.id))
                    for call in message_facts.calls
                ]
            )
            if message_facts.effects is None or message_facts.effects[0] != call_facts:
                pairs = zip(message_facts.calls, call_facts, strict=True)
                message_facts.effects = (
                    call_facts,
                    tuple(
                        [
                            (reading or CallFacts(call, None)).effect()
                            for call, reading in pairs
                        ]
                    ),
                )
            for call, effect, result_facts in zip(
                message_facts.calls, message_facts.effects[1], call_facts, strict=True
            ):
                records.append(
                    CallRecord(
                        index, turns[index], effect, "" if result_facts else call.id
                    )
                )
        elif (
            message_facts.without_summary is not None
            and message_facts.message.get("role") == "assistant"
            and EDIT_MARK in (text := text_of(message_facts.without_summary))
        ):
            message_facts.effects = message_facts.effects or (
                (),
                tuple(read_edits(text)),
            )
            records += (
                CallRecord(index, turns[index], effect, "")
                for effect in message_facts.effects[1]
            )
    return records


def _take_result(
    call: Call, matching_results: list[tuple[MessageFacts, int]] | None
) -> CallFacts | None:
    """Take the first of these results for a call and return its facts; None if there is none."""
    if not matching_results:
        return None
    facts, number = matching_results.pop(0)
    return facts.read_result(number, call)


def build_state(messages: Messages) -> ThreadState:
    """Return the state at the end of a history; turns count the user's messages from 1."""
    facts = [MessageFacts(message) for message in messages]
    state = ThreadState(message_count=len(facts))
    for record in read_calls(facts, number_turns(facts)):
        state.apply_effect(record.effect, record.turn)
    return state
