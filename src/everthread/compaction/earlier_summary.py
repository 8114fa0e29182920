"""Read the summary that an earlier compaction left in a list of messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from everthread.compaction.journal.journal import (
    INTRO,
    Journal,
    background_entry,
    parse_journal,
)
from everthread.compaction.names_in_use import NamesInUse
from everthread.compaction.names_section import is_names_line, parse_names
from everthread.compaction.state_sections import (
    BRANCH,
    CHANGED_FILES,
    DIRECTORY,
    READ_FILES,
    ROOT,
    RUNNING,
    TEST,
    failure_key,
    read_code,
    read_list,
)
from everthread.compaction.summary import (
    BLOCKED,
    DONE,
    FILES,
    NAMES,
    PROGRESS,
    REMAINING,
    STATE,
    TASK,
    USER_WORDS,
    parse_sections,
    without_node_lines,
)
from everthread.compaction.thread_facts import (
    CHANGED,
    READ,
    CommandState,
    FileState,
    OpenError,
    ThreadState,
)
from everthread.compaction.user_quotes import (
    UserMessage,
    parse_words,
)
from everthread.compaction.verification.checkable_names import (
    PATH,
    checkable_names,
)
from everthread.core.messages import Messages
from everthread.core.transcript import (
    SUMMARY_START,
    is_summary_first,
    is_unproven,
    is_user_message,
    summary_text,
)

_COUNT = re.compile(
    rf"{re.escape(SUMMARY_START)}[^\n]{{0,20}}?([\d,]{{1,12}}) earlier messages?"
)
_FAILED = re.compile(r" failed \(message (\d{1,9})(?:, (\d{1,9}) times)?\):(.*)")


@dataclass(frozen=True, slots=True)
class Earlier:
    """The earlier summary in the list, parsed; several as one."""

    text: str = ""
    messages: int = 0
    sections: Mapping[str, str] = field(default_factory=dict)
    """Its sections, without the user's words."""
    words: tuple[UserMessage, ...] = ()
    journal: Journal = field(default_factory=Journal)
    state: ThreadState | None = None
    """The state, if it was read from several summaries."""
    ends: tuple[int, ...] = ()
    """The last user message that each of several summaries covers."""

    @property
    def covered(self) -> tuple[int, ...]:
        """The last user message that each summary in the list covers."""
        return self.ends or (max((message.end for message in self.words), default=0),)


def read_summary(messages: Messages) -> Earlier:
    """Return the summary of the list, parsed; of one without a tag only its text. Several are joined."""
    texts = [summary_text(message) for message in messages if "_summary" in message]
    return (
        _parse_summary(texts[0] if texts else "")
        if len(texts) < 2
        else _join_summaries(messages)
    )


def _join_summaries(messages: Messages) -> Earlier:
    """Return the summaries of a list as one, numbered as one conversation."""
    joined = Earlier()
    state = ThreadState()
    ends = list[int]()
    turn = 0
    seen = {""}
    for message in messages:
        said = is_user_message(message)
        if "_summary" not in message:
            turn += said
            continue
        text = summary_text(message)
        leads = is_summary_first(message)
        turn += said and not leads
        if text not in seen:
            seen.add(text)
            one = _parse_summary(text)
            by = max(
                turn + 1 - min((entry.number for entry in one.words), default=turn + 1),
                0,
            )
            joined = _join(joined, one, by)
            state = _join_states(state, read_state(one.sections), by)
            turn = max((turn, *(entry.end + by for entry in one.words)))
        ends.append(turn)
        turn += said and leads
    return replace(joined, state=state, ends=tuple(ends))


def _join(before: Earlier, one: Earlier, by: int) -> Earlier:
    """Return both as one, with the numbers of the second raised by `by`. Text and task are the second's."""
    journal = _background(one).journal if is_unproven(one.text) else one.journal
    sections = {**before.sections, **one.sections}
    for name in (before.sections.keys() & one.sections.keys()) - {TASK}:
        sections[name] = f"{before.sections[name]}\n{one.sections[name]}"
    words = (
        replace(entry, number=entry.number + by, last=entry.last and entry.last + by)
        for entry in one.words
    )
    entries = (
        replace(
            entry,
            first=entry.first and entry.first + by,
            last=entry.last and entry.last + by,
        )
        for entry in journal.entries
    )
    return Earlier(
        one.text,
        before.messages + one.messages,
        sections,
        (*before.words, *words),
        Journal((*before.journal.entries, *entries)),
    )


def _join_states(before: ThreadState, one: ThreadState, by: int) -> ThreadState:
    errors = {
        key: replace(error, turn=error.turn + by) for key, error in one.errors.items()
    }
    return replace(
        one,
        files=before.files | one.files,
        commands=before.commands | one.commands,
        errors=before.errors | errors,
        todo=one.todo or before.todo,
        directory=one.directory or before.directory,
        branch=one.branch or before.branch,
        processes=[*before.processes, *one.processes],
        root=one.root or before.root,
        names=NamesInUse.of_list([*one.names.ranked(), *before.names.ranked()]),
    )


@lru_cache(maxsize=4)
def _parse_summary(text: str) -> Earlier:
    stated = _COUNT.search(text[:400])
    count = int(stated[1].replace(",", "")) if stated else 0
    if not text or is_unproven(text):
        return Earlier(text, count)
    sections = parse_sections(without_node_lines(text))
    words = parse_words(sections.pop(USER_WORDS, ""))
    return Earlier(
        text, count, sections, tuple(words), parse_journal(sections.get(DONE, ""))
    )


def read_earlier(messages: Messages) -> Earlier:
    """Return the summary of the list, parsed. One without a tag becomes an entry of the journal."""
    earlier = read_summary(messages)
    if not earlier.text or earlier.ends or not is_unproven(earlier.text):
        return earlier
    return _background(earlier)


def _background(earlier: Earlier) -> Earlier:
    """Return a summary without a tag as an entry of the journal."""
    body = parse_sections(earlier.text)
    text = (
        "\n".join(f"{name}: {words}" for name, words in body.items() if name != TASK)
        or earlier.text
    )
    return replace(
        earlier, journal=Journal((background_entry(text, earlier.messages),))
    )


def read_state(sections: Mapping[str, str], *, is_ours: bool = False) -> ThreadState:
    """Read the facts from a summary's sections (`journal.state_sections`), for a list without other state.

    If a model wrote the sections in its own words, only files and errors are read; `is_ours`: the journal wrote them.
    """
    state = ThreadState()
    if is_ours or sections.get(DONE, "").startswith(INTRO):
        for line in sections.get(STATE, "").split("\n"):
            _read_standing(state, line)
        for name, status in ((PROGRESS, "in_progress"), (REMAINING, "pending")):
            items = (
                line[2:]
                for line in sections.get(name, "").split("\n")
                if line.startswith("- ")
            )
            state.todo += ({"text": item, "status": status} for item in items)
    files: list[tuple[str, str]] = []
    listed = f"{sections.get(FILES, '')}\n{sections.get(NAMES, '')}"
    state.names = NamesInUse.of_list(parse_names(listed))
    for line in sections.get(FILES, "").split("\n"):
        if is_names_line(line):
            continue
        label = next(
            (label for label in (CHANGED_FILES, READ_FILES) if line.startswith(label)),
            None,
        )
        paths = (
            _rooted(read_list(line.removeprefix(label)), state)
            if label
            else _paths_in(line)
        )
        files += ((path, READ if label == READ_FILES else CHANGED) for path in paths)
    state.files = {path: FileState(did, 0) for path, did in reversed(files)}
    for line in sections.get(BLOCKED, "").split("\n"):
        shown, rest = read_code(line.removeprefix("- "))
        if failed := _FAILED.fullmatch(rest):
            lines = failed[3].strip().split(" | ")
            state.errors[failure_key(shown)] = OpenError(
                shown, lines, int(failed[1]), times=int(failed[2] or 1)
            )
    return state


def _read_standing(state: ThreadState, line: str) -> None:
    if line.startswith(DIRECTORY):
        state.directory = line.removeprefix(DIRECTORY)
    elif line.startswith(ROOT):
        state.root = line.removeprefix(ROOT)
    elif line.startswith(BRANCH):
        state.branch = line.removeprefix(BRANCH)
    elif line.startswith(TEST):
        command, outcome = read_code(line.removeprefix(TEST))
        state.commands[command] = CommandState(
            outcome.removeprefix(" →").strip(), is_ok=True, turn=0, is_test=True
        )
    elif line.startswith(RUNNING):
        state.processes.append(read_code(line.removeprefix(RUNNING))[0])


def _rooted(paths: Iterable[str], state: ThreadState) -> list[str]:
    """Return listed paths as calls name them: the root may be another one in the next summary."""
    return [
        path if path.startswith(("/", "~")) else f"{state.root_prefix}{path}"
        for path in paths
    ]


def _paths_in(line: str) -> list[str]:
    """Return the paths in a line that a model wrote."""
    return [name.value for name in checkable_names(line) if name.kind == PATH]
