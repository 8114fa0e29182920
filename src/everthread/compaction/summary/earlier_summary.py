"""Read the summary that an earlier compaction left in a list of messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from everthread.compaction.history.open_errors import OpenError
from everthread.compaction.history.thread_state import (
    CHANGED,
    READ,
    CommandState,
    FileState,
    ThreadState,
)
from everthread.compaction.journal.journal import (
    INTRO_START,
    Journal,
    make_background_entry,
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
    BRANCH_LABEL,
    CHANGED_FILES_LABEL,
    DIRECTORY_LABEL,
    READ_FILES_LABEL,
    ROOT_LABEL,
    RUNNING_LABEL,
    TEST_LABEL,
    make_shown_failure_key,
    parse_path_list,
    split_quoted_code,
)
from everthread.compaction.summary.user_quotes import (
    UserQuote,
    parse_quotes,
)
from everthread.compaction.verification.checkable_names import (
    PATH_KIND,
    find_checkable_names,
)
from everthread.core.messages import Messages
from everthread.core.summary_marks import (
    SUMMARY_START,
    is_summary_first,
    is_unproven,
    summary_text,
)
from everthread.core.turns import is_user_message

_MESSAGE_COUNT_PATTERN = re.compile(
    rf"{re.escape(SUMMARY_START)}[^\n]{{0,20}}?([\d,]{{1,12}}) earlier messages?"
)
_FAILURE_LINE_PATTERN = re.compile(
    r" failed \(message (?P<turn>\d{1,9})(?:, (?P<times>\d{1,9}) times)?(?:, (?P<tests>[\d,]{1,12}) "
    r"(?:tests?|(?P<package>package)s?))?\):(?P<lines>.*)"
)


@dataclass(frozen=True, slots=True)
class EarlierSummary:
    """The parsed summary in a list of messages; several summaries are joined into one."""

    text: str = ""
    message_count: int = 0
    """The number of messages that the summary covers."""
    sections: Mapping[str, str] = field(default_factory=dict)
    """The sections of the summary, without the user's words."""
    quotes: tuple[UserQuote, ...] = ()
    """The quotes of the user's words."""
    journal: Journal = field(default_factory=Journal)
    state: ThreadState | None = None
    """The joined state of several summaries, or None for a single one, whose state is read later."""
    last_turns: tuple[int, ...] = ()
    """The last turn that each of several summaries covers, or an empty tuple for a single one."""

    @property
    def last_covered_turns(self) -> tuple[int, ...]:
        """For each summary found, the last turn it covers; estimated from its quotes if there is only one."""
        return self.last_turns or (
            max((message.last_number for message in self.quotes), default=0),
        )


def parse_earlier_summary(messages: Messages) -> EarlierSummary:
    """Parse the summary in a list of messages, or join several. Without a valid tag, keep only the text."""
    texts = [summary_text(message) for message in messages if "_summary" in message]
    if len(texts) < 2:
        return _parse_summary(texts[0] if texts else "")
    return _join_summaries(messages)


def _join_summaries(messages: Messages) -> EarlierSummary:
    """Join the summaries of a list into one, with turns numbered as in one conversation."""
    result = EarlierSummary()
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
                turn + 1 - min((entry.number for entry in summary.quotes), default=turn + 1),
                0,
            )
            result = _join_two(result, summary, offset)
            state = _join_states(state, read_state_from_sections(summary.sections), offset)
            turn = max((turn, *(entry.last_number + offset for entry in summary.quotes)))
        last_turns.append(turn)
        turn += is_from_user and starts_with_summary
    return replace(result, state=state, last_turns=tuple(last_turns))


def _join_two(earlier: EarlierSummary, later: EarlierSummary, offset: int) -> EarlierSummary:
    """Join two summaries, with the later one's turns raised by `offset`, and keep the later one's text and task."""
    journal = _make_background(later).journal if is_unproven(later.text) else later.journal
    sections = {**earlier.sections, **later.sections}
    for name in (earlier.sections.keys() & later.sections.keys()) - {TASK}:
        sections[name] = f"{earlier.sections[name]}\n{later.sections[name]}"
    quotes = (
        replace(
            entry,
            number=entry.number + offset,
            range_end=entry.range_end and entry.range_end + offset,
        )
        for entry in later.quotes
    )
    entries = (
        replace(
            entry,
            first_turn=entry.first_turn and entry.first_turn + offset,
            last_turn=entry.last_turn and entry.last_turn + offset,
        )
        for entry in journal.entries
    )
    return EarlierSummary(
        later.text,
        earlier.message_count + later.message_count,
        sections,
        (*earlier.quotes, *quotes),
        Journal(
            (*earlier.journal.entries, *entries),
            earlier.journal.quiet_message_count + journal.quiet_message_count,
        ),
    )


def _join_states(earlier: ThreadState, later: ThreadState, offset: int) -> ThreadState:
    """Join the states of two summaries, with the turns of the later one's errors raised by `offset`."""
    errors = {key: replace(error, turn=error.turn + offset) for key, error in later.errors.items()}
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
        names=NamesInUse.from_list([*later.names.rank_names(), *earlier.names.rank_names()]),
        latest_turn=max((earlier.latest_turn, *(error.turn for error in errors.values()))),
    )


@lru_cache(maxsize=4)
def _parse_summary(text: str) -> EarlierSummary:
    """Parse the text of one summary. Without a valid tag, keep only its text and its number of messages."""
    match = _MESSAGE_COUNT_PATTERN.search(text[:400])
    count = int(match[1].replace(",", "")) if match else 0
    if not text or is_unproven(text):
        return EarlierSummary(text, count)
    sections = parse_sections(without_node_lines(text))
    words = parse_quotes(sections.pop(USER_WORDS, ""))
    return EarlierSummary(
        text, count, sections, tuple(words), parse_journal(sections.get(DONE, ""))
    )


def read_earlier_summary(messages: Messages) -> EarlierSummary:
    """Parse the summary in a list of messages. The text of a summary without a valid tag becomes one journal entry."""
    earlier_summary = parse_earlier_summary(messages)
    if (
        not earlier_summary.text
        or earlier_summary.last_turns
        or not is_unproven(earlier_summary.text)
    ):
        return earlier_summary
    return _make_background(earlier_summary)


def _make_background(earlier: EarlierSummary) -> EarlierSummary:
    """Return a summary without a valid tag as one journal entry."""
    sections = parse_sections(earlier.text)
    text = (
        "\n".join(f"{name}: {words}" for name, words in sections.items() if name != TASK)
        or earlier.text
    )
    return replace(earlier, journal=Journal((make_background_entry(text, earlier.message_count),)))


def read_state_from_sections(
    sections: Mapping[str, str], *, is_from_journal: bool = False
) -> ThreadState:
    """Read the state of a thread from the sections of a summary (see `state_sections`), if no other state is known.

    If a model wrote the sections in its own words, read only files and errors. `is_from_journal`: whether the journal
    wrote the sections.
    """
    state = ThreadState()
    if is_from_journal or sections.get(DONE, "").startswith(INTRO_START):
        for line in sections.get(STATE, "").split("\n"):
            _read_state_line(state, line)
        for name, status in ((PROGRESS, "in_progress"), (REMAINING, "pending")):
            items = (
                line[2:] for line in sections.get(name, "").split("\n") if line.startswith("- ")
            )
            state.todo += ({"text": item, "status": status} for item in items)
    files: list[tuple[str, str]] = []
    names_text = f"{sections.get(FILES, '')}\n{sections.get(NAMES, '')}"
    state.names = NamesInUse.from_list(parse_names(names_text))
    for line in sections.get(FILES, "").split("\n"):
        if is_names_line(line):
            continue
        label = next(
            (label for label in (CHANGED_FILES_LABEL, READ_FILES_LABEL) if line.startswith(label)),
            None,
        )
        if label is None:
            files += ((path, CHANGED) for path in _find_paths(line))
            continue
        access = READ if label == READ_FILES_LABEL else CHANGED
        paths = _add_root(parse_path_list(line.removeprefix(label)), state)
        files += ((path, access) for path in paths)
    state.files = {path: FileState(access, 0) for path, access in reversed(files)}
    for line in sections.get(BLOCKED, "").split("\n"):
        source, description = split_quoted_code(line.removeprefix("- "))
        if failure := _FAILURE_LINE_PATTERN.fullmatch(description):
            state.errors[make_shown_failure_key(source)] = OpenError(
                source,
                lines=failure["lines"].strip().split(" | "),
                turn=int(failure["turn"]),
                times=int(failure["times"] or 1),
                tests=int((failure["tests"] or "0").replace(",", "")),
                counts_packages=failure["package"] is not None,
            )
            state.latest_turn = max(state.latest_turn, int(failure["turn"]))
    return state


def _read_state_line(state: ThreadState, line: str) -> None:
    """Update the state from one line of the state section."""
    if line.startswith(DIRECTORY_LABEL):
        state.directory = line.removeprefix(DIRECTORY_LABEL)
    elif line.startswith(ROOT_LABEL):
        state.root = line.removeprefix(ROOT_LABEL)
    elif line.startswith(BRANCH_LABEL):
        state.branch = line.removeprefix(BRANCH_LABEL)
    elif line.startswith(TEST_LABEL):
        command, outcome = split_quoted_code(line.removeprefix(TEST_LABEL))
        state.commands[command] = CommandState(
            outcome.removeprefix(" →").strip(), is_ok=True, turn=0, is_test=True
        )
    elif line.startswith(RUNNING_LABEL):
        state.processes.append(split_quoted_code(line.removeprefix(RUNNING_LABEL))[0])


def _add_root(paths: Iterable[str], state: ThreadState) -> list[str]:
    """Return listed paths with the root before them, because the root may change in the next summary."""
    return [path if path.startswith(("/", "~")) else f"{state.root_prefix}{path}" for path in paths]


def _find_paths(line: str) -> list[str]:
    """Return the paths in a line that a model wrote."""
    return [name.value for name in find_checkable_names(line) if name.kind == PATH_KIND]
