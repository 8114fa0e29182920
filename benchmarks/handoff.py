"""What a coding agent needed after a real compaction, and whether it stood in its context.

The recordings are logs of Claude Code, which hold the summary that its own model wrote at each of its compactions, and
what the agent did next. A fact is a file name or an identifier that stood before the compaction and that the agent
typed in a call after it before any tool showed it again. Everthread compacts the same messages with the journal, once
to at most the size of Claude Code's own summary and once at the default size. "Without names" is the same run without
the section Names in Use, at the same size: the window is larger by as much. Every other
log (by name) was looked at while building; the others are only measured. `everthread compare` measures the same on
anybody's own logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.shared import ROOT
from benchmarks.table import Row, absent
from everthread import estimate_request_tokens
from everthread.compaction.summary import NAMES
from everthread.core.messages import Message, with_content
from everthread.lab.hand_offs import (
    DEFAULT_WINDOW,
    HandOff,
    compact_messages,
    compact_to_size,
    count_whole,
    find_hand_offs,
    read_context,
)
from everthread.lab.importers.read_logs import read_log

CLAUDE = "Claude Code's own summary"
NEWEST = "the newest messages, same size"
SAME = "Everthread, same size"
SAME_BARE = "Everthread, same size, without names"
FULL = "Everthread, default size"
FULL_BARE = "Everthread, default size, without names"
GOALS = {SAME: (0.92, 0.85), FULL: (0.97, 0.95)}
USER_GOAL = 0.96

_SECTION = re.compile(rf"\n\n## {NAMES}\n.*?(?=\n\n## |\n\n\[END OF)", re.DOTALL)


@dataclass
class Score:
    """What one kind of context held, over all cases."""

    files: int = 0
    identifiers: int = 0
    user_messages: int = 0
    tokens: int = 0


@dataclass
class Totals:
    """What there was to hold, and the scores."""

    cases: int = 0
    files: int = 0
    identifiers: int = 0
    user_messages: int = 0
    scores: dict[str, Score] = field(default_factory=dict)

    def add(self, case: HandOff, contexts: Mapping[str, tuple[str, int]]) -> None:
        said = case.user_messages
        self.cases += 1
        self.files += len(case.needs.files)
        self.identifiers += len(case.needs.identifiers)
        self.user_messages += len(said)
        for name, (text, tokens) in contexts.items():
            score = self.scores.setdefault(name, Score())
            score.files += sum(fact in text for fact in case.needs.files)
            score.identifiers += sum(fact in text for fact in case.needs.identifiers)
            score.user_messages += count_whole(said, text)
            score.tokens += tokens


def run() -> list[Row]:
    paths = sorted((ROOT / "logs").glob("claude-code-*"))
    if not paths:
        return [absent("logs of Claude Code")]
    rows: list[Row] = []
    for half, of_half in (("tuned on", paths[0::2]), ("kept aside", paths[1::2])):
        totals = Totals()
        for path in of_half:
            for case in find_hand_offs(read_log(str(path))):
                totals.add(case, make_contexts(case))
        rows += _rows(half, totals)
    return rows


def _rows(half: str, totals: Totals) -> Iterator[Row]:
    for name, score in totals.scores.items():
        files = score.files / totals.files
        identifiers = score.identifiers / totals.identifiers
        users = score.user_messages / totals.user_messages
        goal = GOALS.get(name)
        figure = (
            f"names {files:.1%}, identifiers {identifiers:.1%}, user messages whole {users:.1%}, "
            f"{score.tokens // totals.cases:,} tokens"
        )
        wanted = f"names ≥ {goal[0]:.0%}, identifiers ≥ {goal[1]:.0%}" if goal else ""
        if name == FULL:
            wanted += f", user messages ≥ {USER_GOAL:.0%}"
        is_met = None if goal is None else files >= goal[0] and identifiers >= goal[1]
        if name == FULL:
            is_met = is_met and users >= USER_GOAL
        counted = f"{totals.files} names, {totals.identifiers} identifiers, {totals.cases} compactions"
        yield Row(f"{half} ({counted}): {name}", figure, wanted, is_met)


def make_contexts(case: HandOff) -> dict[str, tuple[str, int]]:
    """Return every contender's context as text, with its tokens."""
    size = estimate_request_tokens([{"role": "user", "content": case.own}])
    newest = _take_newest(case.messages, size)
    full = compact_messages(case.messages, DEFAULT_WINDOW)
    same = compact_to_size(case.messages, size)
    bare = compact_to_size(case.messages, size, edit=_without_names)
    found = {
        SAME: same,
        SAME_BARE: bare,
        NEWEST: newest,
        FULL: full,
        FULL_BARE: _without_names(full),
    }
    contexts = {CLAUDE: (case.own, size)}
    return contexts | {name: read_context(messages) for name, messages in found.items()}


def _without_names(messages: list[Message]) -> list[Message]:
    bare: list[Message] = []
    for message in messages:
        content = message.get("content")
        bare.append(
            with_content(message, _SECTION.sub("", content))
            if isinstance(content, str)
            else message
        )
    return bare


def _take_newest(messages: list[Message], size: int) -> list[Message]:
    taken: list[Message] = []
    room = size
    for message in reversed(messages):
        room -= estimate_request_tokens([message])
        if room < 0:
            break
        taken.insert(0, message)
    return taken
