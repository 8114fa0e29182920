"""Read the summary that an earlier compaction left in a list of messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from everthread.compaction.history.thread_facts import (
    CHANGED,
    READ,
    CommandState,
    FileState,
    OpenError,
    ThreadState,
)
from everthread.compaction.journal.journal import (
    INTRO,
    Journal,
    background_entry,
    parse_journal,
)
from everthread.compaction.names.names_in_use import NamesInUse
from everthread.compaction.names.names_section import is_names_line, parse_names
from everthread.compaction.summary.sections import (
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
from everthread.compaction.summary.state_sections import (
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
from everthread.compaction.summary.user_quotes import (
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
    result = Earlier()
    state = ThreadState()
    last_turns = list[int]()
    turn = 0
    seen_texts = {""}
    for message in messages:
        is_from_user = is_user_message(message)
        if "_summary" not in message:
            turn += is_from_user
            continue
        text = summary_text(message)
        starts_with_summary = is_summary_first(message)
        turn += is_from_user and not starts_with_summary
        if text not in seen_texts:
            seen_texts.add(text)
            summary = _parse_summary(text)
            offset = max(
                turn
                + 1
                - min((entry.number for entry in summary.words), default=turn + 1),
                0,
            )
            result = _join(result, summary, offset)
            state = _join_states(state, read_state(summary.sections), offset)
            turn = max((turn, *(entry.end + offset for entry in summary.words)))
        last_turns.append(turn)
        turn += is_from_user and starts_with_summary
    return replace(result, state=state, ends=tuple(last_turns))


def _join(earlier: Earlier, later: Earlier, offset: int) -> Earlier:
    """Return both as one, with the numbers of the second raised by `offset`. Text and task are the second's."""
    journal = _background(later).journal if is_unproven(later.text) else later.journal
    sections = {**earlier.sections, **later.sections}
    for name in (earlier.sections.keys() & later.sections.keys()) - {TASK}:
        sections[name] = f"{earlier.sections[name]}\n{later.sections[name]}"
    words = (
        replace(
            entry, number=entry.number + offset, last=entry.last and entry.last + offset
        )
        for entry in later.words
    )
    entries = (
        replace(
            entry,
            first=entry.first and entry.first + offset,
            last=entry.last and entry.last + offset,
        )
        for entry in journal.entries
    )
    return Earlier(
        later.text,
        earlier.messages + later.messages,
        sections,
        (*earlier.words, *words),
        Journal((*earlier.journal.entries, *entries)),
    )


def _join_states(earlier: ThreadState, later: ThreadState, offset: int) -> ThreadState:
    errors = {
        key: replace(error, turn=error.turn + offset)
        for key, error in later.errors.items()
    }
    return replace(
        later,
        files=earlier.files | later.files,
        commands=earlier.commands | later.commands,
        errors=earlier.errors | errors,
        todo=later.todo or earlier.todo,
        directory=later.directory or earlier.directory,
        branch=later.branch or earlier.branch,
        processes=[*earlier.processes, *later.processes],
        root=later.root or earlier.root,
        names=NamesInUse.of_list([*later.names.ranked(), *earlier.names.ranked()]),
    )


@lru_cache(maxsize=4)
def _parse_summary(text: str) -> Earlier:
    match = _COUNT.search(text[:400])
    count = int(match[1].replace(",", "")) if match else 0
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
    names_text = f"{sections.get(FILES, '')}\n{sections.get(NAMES, '')}"
    state.names = NamesInUse.of_list(parse_names(names_text))
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
    state.files = {path: FileState(access, 0) for path, access in reversed(files)}
    for line in sections.get(BLOCKED, "").split("\n"):
        source, description = read_code(line.removeprefix("- "))
        if failure := _FAILED.fullmatch(description):
            lines = failure[3].strip().split(" | ")
            state.errors[failure_key(source)] = OpenError(
                source, lines, int(failure[1]), times=int(failure[2] or 1)
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
