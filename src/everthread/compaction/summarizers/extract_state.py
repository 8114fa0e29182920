"""Active State: where the work is, what has changed, how the last tests went, what runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from everthread.compaction.summarizers.extract_actions import quoted_command, runs_again
from everthread.compaction.summarizers.extract_commands import CHECK, TEST
from everthread.compaction.summarizers.extract_files import Record
from everthread.compaction.summarizers.extract_lines import Line, Scale, recalled
from everthread.compaction.summarizers.extract_outcomes import Outcome, clues_in
from everthread.compaction.summarizers.extract_reading import Deed, Story
from everthread.compaction.summarizers.extract_text import trim

DIRECTORY, BRANCH, COMMIT, CHANGED = "Working directory", "Branch", "Last commit", "Changed files"
TESTS, RUNNING, ENVIRONMENT = "Tests and checks", "Running", "Environment"
_WORTH = {DIRECTORY: 4.0, BRANCH: 2.5, COMMIT: 2.0, CHANGED: 2.0, TESTS: 3.0, RUNNING: 2.5, ENVIRONMENT: 1.0}
_LAST = -100
_ORDER = {name: _LAST - 50 + place for place, name in enumerate(_WORTH)}
"""Not by message: state is told in this order."""
_CLUES = {"branch": BRANCH, "commit": COMMIT, "directory": DIRECTORY}
_RUNS = 4
"""So many commands' last test runs are told."""
_FOLLOWED = 50
_PASTED = 8_000
"""How much of the end of a user's message is searched for a prompt that names the branch."""
_FILES = 12
_STOPS = re.compile(
    r"\b(?:kill|pkill|killall|docker(?: |-)compose (?:down|stop)|docker stop|systemctl stop|fuser -k)\b"
)
_RUN = re.compile(r"(`[^`\n]+`…?): (.+)")
_ENTRY = re.compile(rf"({'|'.join(_WORTH)}): (.+)")


@dataclass(slots=True)
class State:
    """What is known; later messages overwrite earlier ones."""

    single: dict[str, str] = field(default_factory=dict)
    tests: dict[str, str] = field(default_factory=dict)
    """Command as quoted -> how it last went."""
    running: dict[str, None] = field(default_factory=dict)
    environment: dict[str, None] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    """Lines of an earlier summary in a form of their own."""

    @property
    def directory(self) -> str:
        return self.single.get(DIRECTORY, "").rstrip("/")


def state_of(story: Story, previous: str, scale: Scale) -> State:
    """The state an earlier summary told, brought up to date."""
    state = _recalled_state(previous)
    for deed in story.deeds:
        _follow(state, deed, scale)
    pasted = (spoken for spoken, by_user in zip(story.said, story.by_user, strict=True) if by_user)
    branches = [value for spoken in pasted for kind, value in clues_in(spoken[-_PASTED:]) if kind == "branch"]
    if branches:
        state.single.setdefault(BRANCH, branches[-1])
    return state


def _follow(state: State, deed: Deed, scale: Scale) -> None:
    command, outcome = deed.step.command, deed.outcome
    if command is None or outcome is None:
        return
    if command.directory:
        state.single[DIRECTORY] = command.directory
    if _STOPS.search(command.line):
        state.running.clear()
    for kind, value in outcome.clues:
        if kind in _CLUES:
            state.single[_CLUES[kind]] = value
        elif kind == "serving":
            state.running[f"{quoted_command(command.line, scale.command)} at {value}"] = None
        else:
            state.environment[value] = None
    if command.background and not outcome.failed:
        state.running.setdefault(quoted_command(command.line, scale.command))
    if command.act in (TEST, CHECK) or outcome.tests:
        for known in [quoted for quoted in state.tests if runs_again(command, quoted)]:
            del state.tests[known]
        state.tests[quoted_command(command.line, scale.command)] = _status(outcome)
        if len(state.tests) > _FOLLOWED:
            del state.tests[next(iter(state.tests))]


def _status(outcome: Outcome) -> str:
    failing = f" (failing: {', '.join(outcome.failing[:8])})" if outcome.failing else ""
    told = outcome.tests or (outcome.text if outcome.failed else "passed")
    return f"{told}{failing}"


def _recalled_state(previous: str) -> State:
    state = State()
    for text in recalled(previous):
        entry = _ENTRY.fullmatch(text)
        if entry is None:
            state.others.append(text)
        elif entry[1] == TESTS:
            run = _RUN.fullmatch(entry[2])
            state.tests[run[1] if run else entry[2]] = run[2] if run else ""
        elif entry[1] in (RUNNING, ENVIRONMENT):
            (state.running if entry[1] == RUNNING else state.environment)[entry[2]] = None
        elif entry[1] != CHANGED:
            state.single[entry[1]] = entry[2]
    return state


def state_lines(state: State, files: list[Record], scale: Scale) -> Iterator[Line]:
    for name, value in state.single.items():
        yield _line(name, value)
    changed = sorted((file for file in files if file.changed and not file.gone), key=lambda file: -file.order)
    if changed:
        names = ", ".join(_shorts(changed))
        more = f" and {len(changed) - _FILES} more" if len(changed) > _FILES else ""
        yield _line(CHANGED, f"{names}{more}")
    for place, (command, status) in enumerate(list(state.tests.items())[-_RUNS:]):
        yield _line(TESTS, f"{command}: {trim(status, scale.error)}" if status else command, place / 10)
    for running in list(state.running)[-_RUNS:]:
        yield _line(RUNNING, running)
    for fact in list(state.environment)[-_RUNS:]:
        yield _line(ENVIRONMENT, fact)
    for place, text in enumerate(state.others):
        yield Line(text, 1.2, _LAST + place)


def _shorts(changed: list[Record]) -> list[str]:
    """File names, with their folder where two are alike."""
    names = [file.path.rpartition("/")[2] for file in changed]
    counted = Counter(names)
    return [file.path if counted[name] > 1 else name for file, name in zip(changed[:_FILES], names, strict=False)]


def _line(name: str, value: str, extra: float = 0.0) -> Line:
    return Line(f"{name}: {value}", _WORTH[name] + extra, _ORDER[name] + extra)
