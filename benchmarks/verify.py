"""Measure whether the check of a model's summary marks wrong lines, and only those.

Each line is put into a summary of a recording and compared with the whole recording:

- copied: sentences of the recordings with a name or a figure, word for word, plain and as completed actions;
- written by a model: lines of the summaries that Claude Code's own model wrote at the compactions in its logs;
- paraphrased: recorded sentences in other words, made by rules (`checked/paraphrases.py`);
- wrong facts: lines of these three kinds, changed in one figure, name, negation or decision
  (`checked/wrong_facts.py`). One counts as caught if it is marked and the true line is not.

The recordings are divided by the hash of their names: one half was looked at while building, the other is only
measured; of that one nothing but this table was seen, and the closest statements' thresholds were raised twice because
of it. A checker that marks nothing, or everything, fails.

Limits without a model: a decision whose object is replaced by an ordinary word looks like a synonym, a count that the
model made itself ("5 review comments") is in no source, and a wrong fact in new words is close to no statement.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.checked.material import Recording, recordings
from benchmarks.checked.paraphrases import paraphrase
from benchmarks.checked.wrong_facts import (
    DECISION,
    FIGURE,
    KINDS,
    NAME,
    NEGATION,
    Recorded,
    take_per_kind,
)
from benchmarks.shared import HALVES
from benchmarks.table import Row, format_section, make_absent_row
from everthread.compaction.verification.unsupported_lines import (
    UNVERIFIED_MARK,
    mark_sections,
)

SENTENCES_PER_KIND = 60
"""Sentences taken from one recording, of each kind."""
WRONG_FACTS_PER_KIND = 20
"""Wrong facts of each kind, from each kind of line, of one recording."""
COPIED_KIND = "copied"
WRITTEN_KIND = "written by a model"
PARAPHRASED_KIND = "paraphrased"
MAX_MARKED = {COPIED_KIND: 0.01, WRITTEN_KIND: 0.05, PARAPHRASED_KIND: 0.05}
MIN_CAUGHT = {(FIGURE, NAME): 0.60, (NEGATION, DECISION): 0.30}
MIN_CAUGHT_OVERALL = 0.25
Mark = Callable[[Sequence[str], str], list[bool]]
"""Returns whether each line is marked, given the sources."""


@dataclass
class Tally:
    """Numbers of lines, marked lines and caught lines of each kind."""

    lines: Counter[str] = field(default_factory=Counter)
    marked: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, marks: Iterable[bool]) -> None:
        for mark in marks:
            self.lines[kind] += 1
            self.marked[kind] += mark

    def share(self, *kinds: str) -> float:
        total = sum(self.lines[kind] for kind in kinds)
        return sum(self.marked[kind] for kind in kinds) / total if total else 0.0

    def figure(self, *kinds: str) -> str:
        marked_count = sum(self.marked[kind] for kind in kinds)
        return f"{self.share(*kinds):.1%} of {sum(self.lines[kind] for kind in kinds):,} ({marked_count:,})"


def mark_lines(lines: Sequence[str], sources: str) -> list[bool]:
    """Return whether each line is marked, checked like the lines of a section of a summary."""
    marked = mark_sections({"Critical Context": "\n".join(lines)}, sources)
    return [
        line.endswith(UNVERIFIED_MARK) for line in marked.sections["Critical Context"].split("\n")
    ]


def true_lines(recording: Recording, rng: random.Random) -> dict[str, list[str]]:
    """Return correct lines about a recording, by kind."""
    copied_sentences = rng.sample(recording.said, min(SENTENCES_PER_KIND, len(recording.said)))
    paraphrased_sentences = rng.sample(recording.said, min(SENTENCES_PER_KIND, len(recording.said)))
    asked_sentences = rng.sample(
        recording.asked, min(SENTENCES_PER_KIND // 2, len(recording.asked))
    )
    copied = [
        f"- {line}" if number % 2 else f"{number}. RAN {line} [tool: terminal]"
        for number, line in enumerate(copied_sentences)
    ]
    return {
        COPIED_KIND: [*copied, *(f"- User: {line}" for line in asked_sentences)],
        PARAPHRASED_KIND: [
            f"- {paraphrase(line, rng)}" for line in (*paraphrased_sentences, *asked_sentences)
        ],
        WRITTEN_KIND: recording.written,
    }


def measure(recording: Recording, mark: Mark, tally: Tally) -> None:
    """Add the figures of one recording."""
    rng = random.Random(recording.name)  # noqa: S311 - always the same lines
    recorded = Recorded(recording.sources)
    for kind, lines in true_lines(recording, rng).items():
        if not lines:
            continue
        marks = mark(lines, recording.sources)
        tally.add(kind, marks)
        unmarked = [line for line, is_marked in zip(lines, marks, strict=True) if not is_marked]
        facts = take_per_kind(
            [fact for line in unmarked for fact in recorded.make_wrong_facts(line, rng)],
            WRONG_FACTS_PER_KIND,
            rng,
        )
        caught = mark([fact.line for fact in facts], recording.sources) if facts else []
        for fact, is_caught in zip(facts, caught, strict=True):
            tally.add(fact.kind, [is_caught])
            tally.add(f"{fact.kind}, {kind}", [is_caught])


def make_rows(half: str, tally: Tally) -> list[Row]:
    rows = []
    for kind, max_share in MAX_MARKED.items():
        is_met = bool(tally.lines[kind]) and tally.share(kind) <= max_share
        rows.append(
            Row(
                f"true lines marked, {kind}, {half}",
                tally.figure(kind),
                f"≤ {max_share:.0%}",
                is_met,
                required=True,
            )
        )
    caught = tally.share(*KINDS)
    rows.append(
        Row(
            f"wrong facts caught, {half}",
            tally.figure(*KINDS),
            f"≥ {MIN_CAUGHT_OVERALL:.0%}",
            caught >= MIN_CAUGHT_OVERALL,
            required=True,
        )
    )
    for kinds, min_share in MIN_CAUGHT.items():
        row_name = f"changed {kinds[0]}s and {kinds[1]}s caught, {half}"
        rows.append(
            Row(
                row_name,
                tally.figure(*kinds),
                f"≥ {min_share:.0%}",
                tally.share(*kinds) >= min_share,
            )
        )
    for kind in KINDS:
        parts = (f"{name} {tally.share(f'{kind}, {name}'):.0%}" for name in MAX_MARKED)
        rows.append(
            Row(
                f"changed {kind}s caught, {half}",
                f"{tally.figure(kind)}: {', '.join(parts)}",
            )
        )
    return rows


def run(mark: Mark = mark_lines, material: Iterable[Recording] | None = None) -> list[Row]:
    tallies = {half: Tally() for half in HALVES}
    for recording in recordings() if material is None else material:
        measure(recording, mark, tallies[recording.half])
    if not any(tally.lines for tally in tallies.values()):
        return [make_absent_row("recordings")]
    return [row for half, tally in tallies.items() if tally.lines for row in make_rows(half, tally)]


if __name__ == "__main__":
    sys.stdout.write(format_section("verify", run()))
