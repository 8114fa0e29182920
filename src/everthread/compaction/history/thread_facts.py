"""The state of a thread: files, commands, open errors, the agent's to-do list.

The state is read from calls, not from prose, and updated with every call. It is stored as JSON with the engine's state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from everthread.compaction.history.call_records import read_calls
from everthread.compaction.history.compaction_history import MessageFacts, number_turns
from everthread.compaction.history.error_lines import (
    find_error_lines,
    find_failure,
    gives_no_reason,
)
from everthread.compaction.history.failure_keys import (
    command_key,
    error_key,
    is_same_command,
    resolves_failure,
)
from everthread.compaction.history.reported_tests import count_tests
from everthread.compaction.history.shell_commands import (
    COMMAND_SEPARATOR,
    is_test_command,
)
from everthread.compaction.history.tool_calls import (
    MAX_CALL_ERRORS,
    MAX_ERROR_LINE_CHARS,
    RUNNING,
    Effect,
)
from everthread.compaction.history.tool_outcomes import find_exit_code
from everthread.compaction.names.names_in_use import NamesInUse
from everthread.core.messages import Messages, one_line
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
    """The number of tests or packages, for a test run."""
    counts_packages: bool = False
    """Whether `tests` is a number of packages."""
    tool: str = ""
    """The tool of a call that neither runs a command nor changes a file."""
    is_exit_reported: bool = False
    """Whether the tool reported an exit code: it does so for failures, so without one a run succeeded."""
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
    """Keys of errors that were dropped because there were too many, not because they were resolved."""
    replaced_errors: set[str] = field(default_factory=set)
    """Keys of errors whose command failed again under another key."""
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
        self.todo = update_todo(self.todo, effect)
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
        previous_keys = [
            other_key
            for other_key in self.errors
            if other_key == key
            or (effect.kind == "ran" and is_same_command(key, other_key))
        ]
        times = 1 + sum(self.errors.pop(other_key).times for other_key in previous_keys)
        self.replaced_errors.update(previous_keys)
        self.replaced_errors.discard(key)
        self.errors[key] = OpenError(
            source=clip_words(source or effect.tool, 200),
            lines=lines,
            turn=turn,
            times=times,
            tests=_count_tests_run(effect),
            counts_packages=_counts_packages(effect),
            tool=effect.tool if effect.kind == "called" else "",
            is_exit_reported="exit " in effect.outcome,
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
        background_task = _BACKGROUND_TASK.search(effect.output[:300])
        if background_task:
            session = background_task[1]
        is_background = effect.arguments.get(
            "run_in_background"
        ) is True or effect.target.rstrip().endswith(" &")
        if (is_background or is_running or background_task) and not effect.failed:
            process = clip_words(effect.target, _MAX_PROCESS_CHARS) + (
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
        """Return the effect, or if a background command ended with it, that of this command."""
        if not self.processes:
            return effect
        sessions = {
            f" (session {effect.arguments[name]})"
            for name in _SESSION_ARGUMENTS
            if name in effect.arguments
        }
        process = next(
            (
                candidate
                for candidate in self.processes
                if any(map(candidate.endswith, sessions))
            ),
            None,
        )
        status = _find_end_status(effect) if process else ""
        if process is None or not status:
            return effect
        self.processes = [
            candidate for candidate in self.processes if candidate != process
        ]
        code = find_exit_code(effect.output)
        failed = bool(code) or effect.failed or status == "failed"
        errors = effect.errors or (
            tuple(
                clip_words(one_line(line), MAX_ERROR_LINE_CHARS)
                for line in find_error_lines(effect.output, failed=True)
                if not gives_no_reason(line)
            )
            if failed
            else ()
        )
        tests = count_tests(effect.output)
        outcome = f"exit {code}" if code is not None else status
        return effect._replace(
            kind="ran",
            target=process.rpartition(" (session ")[0],
            outcome=f"{outcome}, {tests}" if tests else outcome,
            failed=failed,
            errors=errors[:MAX_CALL_ERRORS],
            tests=tests,
        )

    def _close_failures(self, effect: Effect) -> None:
        """Close the failures that a successful call resolves, unless its output also states an error."""
        key = error_key(effect) if self.errors and effect.is_done else ""
        resolved_keys = [
            failure_key
            for failure_key in self.errors
            if failure_key == key or resolves_failure(effect, key, failure_key)
        ]
        resolved_keys += (
            self._find_resolved_by_tests(effect) if effect.tests and self.errors else []
        )
        if not resolved_keys:
            return
        states_no_error = _states_no_error(effect)
        has_own_exit = _PIPE_OR_SEQUENCE.search(effect.target) is None
        for key in dict.fromkeys(resolved_keys):
            if states_no_error or (has_own_exit and self.errors[key].is_exit_reported):
                del self.errors[key]
                self.replaced_errors = {
                    replaced_key
                    for replaced_key in self.replaced_errors
                    if not is_same_command(key, replaced_key)
                }

    def _mark_passed_by(self, effect: Effect) -> None:
        """Mark errors as passed by if the agent continued with other calls of that tool.

        Pages, buttons, queries and the text of a program are rarely repeated, so the same call may never succeed.
        """
        if not effect.is_done:
            return
        if effect.kind == "called":
            keys = [
                key for key, error in self.errors.items() if error.tool == effect.tool
            ]
        elif effect.kind == "ran" and _INLINE_PROGRAM.search(effect.target):
            keys = [
                key
                for key, error in self.errors.items()
                if _INLINE_PROGRAM.search(error.source)
            ]
        else:
            return
        for key in keys:
            self.errors[key] = replace(self.errors[key], is_passed_by=True)

    def _find_resolved_by_tests(self, effect: Effect) -> list[str]:
        """Return the keys of failed test runs that this passing run answers.

        They ran at most as many tests or packages, or all tests that failed are named in its command.
        """
        test_count = _count_tests_run(effect)
        counts_packages = _counts_packages(effect)
        return [
            key
            for key, error in self.errors.items()
            if (
                0 < error.tests <= test_count
                and error.counts_packages == counts_packages
            )
            or _names_failed_tests(effect.target, error.lines)
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
        """Return a copy of the state, updated with the messages after those that a summary covers.

        Its commands, tasks and processes are the latest. Its files are only those of the covered messages, because
        later ones are still in the context. Its errors are those of the covered messages that were not resolved since.
        Its names include those of the later messages, because much of their text may be cut.
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
            replaced_errors={*self.replaced_errors},
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


_CREATED_TASK = re.compile(r"\bTask #(\d{1,6}) created\b")


def update_todo(todo: list[dict[str, str]], effect: Effect) -> list[dict[str, str]]:
    """Return the to-do list after a call that may set it, add a task to it or change the status of one."""
    if items := read_todo(effect):
        return items
    change = read_task_change(effect)
    if change is None:
        return todo
    number = change["text"].partition(" ")[0]
    for index, item in enumerate(todo):
        if item["text"].partition(" ")[0] == number:
            text = item["text"]
            return [*todo[:index], {**change, "text": text}, *todo[index + 1 :]]
    return [*todo, change] if " " in change["text"] else todo


def read_task_change(effect: Effect) -> dict[str, str] | None:
    """Return the task that a call creates or changes, with its number before its text; None for other calls.

    A changed task has no text.
    """
    subject = effect.arguments.get("subject")
    created = _CREATED_TASK.search(effect.outcome) if subject else None
    if created and isinstance(subject, str):
        text = clip_words(one_line(subject), 200)
        return {"text": f"#{created[1]} {text}", "status": "pending"}
    number = effect.arguments.get("task_id")
    status = effect.arguments.get("status")
    if isinstance(number, str | int) and isinstance(status, str) and not effect.failed:
        return {"text": f"#{number}", "status": clip_words(one_line(status), 20)}
    return None


_BACKGROUND_TASK = re.compile(r"running in (?:the )?background with ID: (\w{1,40})")
_MAX_PROCESS_CHARS = 100
"""Maximum characters of a command that runs in the background: a summary also shows the id of its session."""
_SESSION_ARGUMENTS = ("session_id", "task_id", "bash_id", "shell_id")
_TASK_STATUS = re.compile(r"<status>(?!running)(\w{1,20})</status>")
_ENDING_TOOL = re.compile(r"kill|stop", re.IGNORECASE)


def _find_end_status(effect: Effect) -> str:
    """Return how a background command ended with this call; empty if the call does not say that it ended."""
    if status := _TASK_STATUS.search(effect.output[:500]):
        return status[1]
    if "exit " in effect.outcome:
        return "completed"
    is_stopped = _ENDING_TOOL.search(effect.tool) and not effect.failed
    return "stopped" if is_stopped else ""


def _find_key_to_forget(entries: Mapping[str, Any]) -> str:
    """Return the key of the oldest entry that was only read, or else of the oldest entry."""
    return next(
        (key for key, entry in entries.items() if getattr(entry, "did", READ) == READ),
        next(iter(entries)),
    )


_PIPE_OR_SEQUENCE = re.compile(r"\||;")
"""A pipe or a second command: the exit code is that of the last one."""
_EXIT_CODE = re.compile(r"exit (\d{1,3})\b")
_TEST_FIGURE = re.compile(r"(\d{1,7}) (?:packages? )?(failed|error|passed|test)s?\b")


def _is_clear_failure(effect: Effect) -> bool:
    """Return whether a command ended with an exit code of 2 or more: checks also use 1 to say "no"."""
    code = _EXIT_CODE.search(effect.outcome) if effect.kind == "ran" else None
    return code is not None and int(code[1]) >= 2


def _count_tests_run(effect: Effect) -> int:
    """Return the number of tests of a test run, or that of packages (`_counts_packages`)."""
    if not effect.tests:
        return 0
    figures = {name: int(number) for number, name in _TEST_FIGURE.findall(effect.tests)}
    total = figures.pop("test", 0)
    return max(total, sum(figures.values()))


_INLINE_PROGRAM = re.compile(
    r"\b(?:python|node|ruby|perl|php|deno|bun)[\d.]{0,6}\s+(?:-[a-z]{0,3}[ce]\b|-?\s{0,3}<<)"
)
"""A program whose text is part of a command."""
_FAILED_TEST = re.compile(r"(?:--- FAIL: |FAILED |FAIL: )([\w./-]+(?:::\w+)*)")


def _names_failed_tests(command: str, error_lines: Sequence[str]) -> bool:
    """Return whether a command names each test that failed. More lines than are kept may name further tests."""
    names = [match[1] for line in error_lines if (match := _FAILED_TEST.match(line))]
    words = _WORD_SEPARATOR.split(command)
    return 0 < len(names) < MAX_CALL_ERRORS and all(name in words for name in names)


_WORD_SEPARATOR = re.compile(r"[\s'\"|^$()=]+")


def _counts_packages(effect: Effect) -> bool:
    """Return whether a test run reports packages instead of tests."""
    return " package" in effect.tests


def _states_no_error(effect: Effect) -> bool:
    """Return whether the output of a successful call states no error. A pipe hides the exit code."""
    if (
        effect.kind != "ran"
        or effect.tests
        or (effect.outcome.startswith("exit 0") and "|" not in effect.target)
    ):
        return True
    return not find_failure(effect.output)


def build_state(messages: Messages) -> ThreadState:
    """Return the state at the end of a history; turns count the user's messages from 1."""
    facts = [MessageFacts(message) for message in messages]
    state = ThreadState(message_count=len(facts))
    for record in read_calls(facts, number_turns(facts)):
        state.apply_effect(record.effect, record.turn)
    return state
