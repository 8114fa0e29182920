"""The state of a thread: files, commands, open errors, the agent's to-do list.

The state is read from calls, not from prose, and updated with every call. It is stored as JSON with the engine's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from everthread.compaction.history.background_commands import (
    describe_end,
    find_ended_process,
    find_started_process,
)
from everthread.compaction.history.call_effects import EffectsByIndex, read_effects
from everthread.compaction.history.compaction_history import MessageFacts, number_turns
from everthread.compaction.history.failure_keys import (
    command_key,
    error_key,
    is_same_command,
)
from everthread.compaction.history.open_errors import (
    OpenError,
    find_passed_by_errors,
    find_resolved_errors,
    read_failure,
)
from everthread.compaction.history.shell_commands import (
    COMMAND_SEPARATOR_PATTERN,
    is_test_command,
)
from everthread.compaction.history.todo_list import update_todo
from everthread.compaction.history.tool_calls import CallEffect
from everthread.compaction.names.names_in_use import NamesInUse
from everthread.core.messages import Messages
from everthread.core.secrets.redaction import clip_words
from everthread.core.text import one_line

MAX_FILES = 400
MAX_COMMANDS = 100
MAX_OPEN_ERRORS = 40
MAX_SHOWN_ERRORS = 6
MAX_PROCESSES = 8
MIN_ABSOLUTE_PATHS = 3
"""Find a root only if there are at least this many absolute paths."""
CHANGED = "changed"
READ = "read"


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
    """The latest turn with a call, as far as it is known."""

    def apply_effects(self, effects_by_index: EffectsByIndex, turns: Sequence[int]) -> None:
        """Update the state with the effects of the calls in messages of these turns."""
        for index, effects in effects_by_index.items():
            for effect in effects:
                self.apply_effect(effect, turns[index])

    def apply_effect(self, effect: CallEffect, turn: int) -> None:
        """Update the state with the effect of one call."""
        ended_process = find_ended_process(self.processes, effect)
        if ended_process:
            effect = describe_end(ended_process, effect)
            self.processes = [process for process in self.processes if process != ended_process]
        access = CHANGED if effect.kind != "looked" else READ
        if not effect.failed and effect.is_done:
            for path in effect.paths:
                previous_state = self.files.pop(path, None)
                file_state = FileState(access, turn)
                if access == READ and previous_state and previous_state.did == CHANGED:
                    file_state = previous_state
                self.files[path] = file_state
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
            self._close_errors(effect)
        elif effect.kind != "looked":
            self._record_failure(effect, turn)
        self._drop_excess()

    def _record_failure(self, effect: CallEffect, turn: int) -> None:
        """Record a failure, which replaces earlier failures of the same command."""
        error = read_failure(effect, turn)
        if error is None:
            return
        key = error_key(effect)
        previous_keys = [
            other_key
            for other_key in self.errors
            if other_key == key or (effect.kind == "ran" and is_same_command(key, other_key))
        ]
        times = 1 + sum(self.errors.pop(other_key).times for other_key in previous_keys)
        self.replaced_errors.update(previous_keys)
        self.replaced_errors.discard(key)
        self.errors[key] = replace(error, times=times)

    def _close_errors(self, effect: CallEffect) -> None:
        """Close the errors that a successful call resolves. Mark the ones that the agent passed by."""
        for key in find_resolved_errors(self.errors, effect):
            del self.errors[key]
            self.replaced_errors = {
                replaced_key
                for replaced_key in self.replaced_errors
                if not is_same_command(key, replaced_key)
            }
        for key in find_passed_by_errors(self.errors, effect):
            self.errors[key] = replace(self.errors[key], is_passed_by=True)

    def _record_run(self, effect: CallEffect, key: str, turn: int) -> None:
        """Record the outcome of a command, and whether it runs in the background."""
        self.commands.pop(key, None)
        is_code = "code" in effect.arguments
        is_test = is_test_command(effect.target) and effect.is_done and not is_code
        self.commands[key] = CommandState(effect.outcome, not effect.failed, turn, is_test)
        if process := find_started_process(effect):
            other_processes = [name for name in self.processes if name != process]
            self.processes = [*other_processes, process][-MAX_PROCESSES:]
        if effect.target.startswith(("kill", "pkill")):
            self.processes = []

    def _remove_files(self, effect: CallEffect) -> None:
        """Forget the files that an `rm` command removed."""
        if effect.kind != "ran" or "rm " not in effect.target:
            return
        for step in COMMAND_SEPARATOR_PATTERN.split(effect.target):
            words = step.split()
            if words[:1] != ["rm"] and words[:2] != ["git", "rm"]:
                continue
            for path in words[words.index("rm") + 1 :]:
                for known_path in list(self.files):
                    if known_path == path or known_path.endswith(f"/{path}"):
                        del self.files[known_path]

    def _drop_excess(self) -> None:
        """Drop the oldest files, commands and errors above the maximum."""
        for entries, limit in ((self.files, MAX_FILES), (self.commands, MAX_COMMANDS)):
            while len(entries) > limit:
                del entries[_find_key_to_forget(entries)]
        while len(self.errors) > MAX_OPEN_ERRORS:
            self.forgotten_errors.add(key := next(iter(self.errors)))
            del self.errors[key]

    def list_open_errors(self) -> list[OpenError]:
        """Return the newest open errors, oldest first."""
        return list(self.errors.values())[-MAX_SHOWN_ERRORS:]

    def list_recent_errors(self) -> list[OpenError]:
        """Return the newest errors that still count as open at the latest turn, oldest first."""
        errors = [error for error in self.errors.values() if error.is_recent(self.latest_turn)]
        return errors[-MAX_SHOWN_ERRORS:]

    def list_changed_files(self) -> list[str]:
        """Return the paths of the changed files, the latest change last."""
        return [path for path, file_state in self.files.items() if file_state.did == CHANGED]

    def find_last_test(self) -> tuple[str, CommandState] | None:
        """Return the last test command and its outcome, or None."""
        tests = [(command, state) for command, state in self.commands.items() if state.is_test]
        return tests[-1] if tests else None

    def prepare_for_summary(self, facts: Sequence[MessageFacts]) -> ThreadState:
        """Return a copy for a summary of these messages, with the names in their outputs and a root for paths."""
        state = self.copy()
        state.names = self.names.with_outputs(facts)
        state.root = find_root(self.files, self.root)
        return state

    def after_messages(self, facts: Sequence[MessageFacts], turns: Sequence[int]) -> ThreadState:
        """Return a copy of the state, updated with the messages after the covered ones.

        Its commands, tasks and processes are the latest. Its files are only those of the covered messages, because
        later ones are still in the context. Its errors are those of the covered messages that were not resolved since.
        Its names include those of the later messages, because much of their text may be cut.
        """
        end_state = self.copy()
        effects_by_index = read_effects(facts)
        end_state.apply_effects(effects_by_index, turns)
        open_before = {key: end_state.errors[key] for key in self.errors if key in end_state.errors}
        return replace(
            end_state,
            files={**self.files},
            errors=open_before,
            names=self.names.with_tail(facts, effects_by_index),
        )

    @property
    def root_prefix(self) -> str:
        """The prefix that paths lose in a summary, or an empty string without a root."""
        return f"{self.root}/" if self.root else ""

    def list_todo_items(self, *statuses: str) -> list[str]:
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
                path: {"did": state.did, "turn": state.turn} for path, state in self.files.items()
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
                files={path: FileState(**value) for path, value in data.get("files", {}).items()},
                commands={
                    command: CommandState(**value)
                    for command, value in data.get("commands", {}).items()
                },
                errors={key: OpenError(**value) for key, value in data.get("errors", {}).items()},
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


def find_root(paths: Iterable[str], previous_root: str) -> str:
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
    common_folders = [folder for folder, count in counts.items() if count * 3 >= len(folders) * 2]
    return max(common_folders, key=len, default="")


def _find_key_to_forget(entries: Mapping[str, Any]) -> str:
    """Return the key of the oldest entry that was only read, or else of the oldest entry."""
    return next(
        (key for key, entry in entries.items() if getattr(entry, "did", READ) == READ),
        next(iter(entries)),
    )


def build_state(messages: Messages) -> ThreadState:
    """Return the state at the end of a history; turns count the user's messages from 1."""
    facts = [MessageFacts(message) for message in messages]
    state = ThreadState(message_count=len(facts))
    state.apply_effects(read_effects(facts), number_turns(facts))
    return state
