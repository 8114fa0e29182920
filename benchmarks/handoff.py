"""Look for the names that a coding agent needed after a real compaction in its context.

The recordings are logs of Claude Code, with the summary that its own model wrote at each compaction and the agent's
next calls. A fact is a file name or an identifier from before the compaction that the agent typed in a later call,
before any tool showed it again. Everthread compacts the same messages with the journal, once to at most the size of
Claude Code's own summary and once at the default size. "Without names" is the same run without the section Names in
Use, at the same size: the window is larger by as much. "A plain list" is nothing but names, ranked by how recently and
how often they occur, in a part of the size. Every other log (by name) was looked at while building; the others are only
measured. `everthread compare` measures the same on your own logs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.shared import ROOT
from benchmarks.table import Row, make_absent_row
from everthread import TokenCounter, estimate_request_tokens
from everthread.compaction.summary.sections import NAMES
from everthread.core.json_values import iterate_strings
from everthread.core.messages import Message, calls_of, list_texts, text_of, with_content
from everthread.lab.importers.read_logs import read_log
from everthread.lab.summary_comparison import (
    DEFAULT_WINDOW,
    MeasurableCompaction,
    compact_messages,
    compact_to_size,
    count_whole_messages,
    find_measurable_compactions,
    find_names,
    read_context,
)

CLAUDE = "Claude Code's own summary"
NEWEST = "the newest messages, same size"
SAME = "Everthread, same size"
SAME_BARE = "Everthread, same size, without names"
FULL = "Everthread, default size"
FULL_BARE = "Everthread, default size, without names"
GOALS = {SAME: (0.92, 0.85), FULL: (0.97, 0.95)}
USER_GOAL = 0.96
PLAIN_LISTS = {
    "a plain list, a tenth of the size": 0.1,
    "a plain list, a fifth of the size": 0.2,
    "a plain list, three tenths of the size": 0.3,
}
HALF_LIFE_MESSAGES = 60
CALL_WEIGHT = 1.0
TEXT_WEIGHT = 0.5
OUTPUT_WEIGHT = 0.02
"""Weights of a name in the plain list, by its source; after 60 messages a use counts half."""

_SECTION = re.compile(rf"\n\n## {NAMES}\n.*?(?=\n\n## |\n\n\[END OF)", re.DOTALL)


@dataclass
class Score:
    """Numbers of facts in one kind of context, over all cases."""

    files: int = 0
    identifiers: int = 0
    user_messages: int = 0
    tokens: int = 0


@dataclass
class Totals:
    """Numbers of all facts, and the scores."""

    cases: int = 0
    files: int = 0
    identifiers: int = 0
    user_messages: int = 0
    scores: dict[str, Score] = field(default_factory=dict)

    def add(self, case: MeasurableCompaction, contexts: Mapping[str, tuple[str, int]]) -> None:
        user_messages = case.user_messages
        self.cases += 1
        self.files += len(case.needed_names.files)
        self.identifiers += len(case.needed_names.identifiers)
        self.user_messages += len(user_messages)
        for name, (text, tokens) in contexts.items():
            score = self.scores.setdefault(name, Score())
            score.files += sum(fact in text for fact in case.needed_names.files)
            score.identifiers += sum(fact in text for fact in case.needed_names.identifiers)
            score.user_messages += count_whole_messages(user_messages, text)
            score.tokens += tokens


def run() -> list[Row]:
    paths = sorted((ROOT / "logs").glob("claude-code-*"))
    if not paths:
        return [make_absent_row("logs of Claude Code")]
    rows: list[Row] = []
    for half, of_half in (("tuned on", paths[0::2]), ("kept aside", paths[1::2])):
        totals = Totals()
        for path in of_half:
            for case in find_measurable_compactions(read_log(str(path))):
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
        goal_text = f"names ≥ {goal[0]:.0%}, identifiers ≥ {goal[1]:.0%}" if goal else ""
        if name == FULL:
            goal_text += f", user messages ≥ {USER_GOAL:.0%}"
        is_met = None if goal is None else files >= goal[0] and identifiers >= goal[1]
        if name == FULL:
            is_met = is_met and users >= USER_GOAL
        counts = (
            f"{totals.files} names, {totals.identifiers} identifiers, {totals.cases} compactions"
        )
        yield Row(f"{half} ({counts}): {name}", figure, goal_text, is_met)


def make_contexts(case: MeasurableCompaction) -> dict[str, tuple[str, int]]:
    """Return every contender's context as text, with its tokens."""
    size = estimate_request_tokens([{"role": "user", "content": case.client_context}])
    newest = _take_newest(case.messages, size)
    default_size = compact_messages(case.messages, DEFAULT_WINDOW)
    same_size = compact_to_size(case.messages, size)
    same_without_names = compact_to_size(case.messages, size, edit=_without_names)
    compactions = {
        SAME: same_size,
        SAME_BARE: same_without_names,
        NEWEST: newest,
        FULL: default_size,
        FULL_BARE: _without_names(default_size),
    }
    contexts = {CLAUDE: (case.client_context, size)}
    ranked_names = _rank_names(case.messages)
    for name, share in PLAIN_LISTS.items():
        contexts[name] = _list_names(ranked_names, int(size * share))
    return contexts | {name: read_context(messages) for name, messages in compactions.items()}


def _rank_names(messages: Sequence[Message]) -> list[str]:
    """Return the names of a history, those that occur most recently and most often first."""
    weights: defaultdict[str, float] = defaultdict(float)
    for age, message in enumerate(reversed(messages)):
        typed = [text for call in calls_of(message) for text in iterate_strings(call.parsed)]
        said = "" if message["role"] == "tool" else text_of(message)
        places = (
            ("\n".join(list_texts(message)), OUTPUT_WEIGHT),
            (said, TEXT_WEIGHT),
            ("\n".join(typed), CALL_WEIGHT),
        )
        uses: dict[str, float] = {}
        for text, weight in places:
            names = find_names(text)
            uses |= dict.fromkeys(names.files | names.identifiers, weight)
        for name, weight in uses.items():
            weights[name] += weight / 2 ** (age / HALF_LIFE_MESSAGES)
    return sorted(weights, key=lambda name: (-weights[name], name))


def _list_names(names: Sequence[str], room: int) -> tuple[str, int]:
    """Return the first names that fit into this many tokens, and their tokens."""
    count = TokenCounter().text
    listed: list[str] = []
    tokens = 0
    for name in names:
        tokens += count(f" {name}")
        if tokens > room:
            break
        listed.append(name)
    text = " ".join(listed)
    return text, count(text)


def _without_names(messages: list[Message]) -> list[Message]:
    edited: list[Message] = []
    for message in messages:
        content = message.get("content")
        edited.append(
            with_content(message, _SECTION.sub("", content))
            if isinstance(content, str)
            else message
        )
    return edited


def _take_newest(messages: list[Message], size: int) -> list[Message]:
    newest: list[Message] = []
    room = size
    for message in reversed(messages):
        room -= estimate_request_tokens([message])
        if room < 0:
            break
        newest.insert(0, message)
    return newest
