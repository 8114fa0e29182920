"""Compact one conversation repeatedly with every contender, all to the same size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.retained.contenders import ALL_CONTENDERS, make_contenders
from benchmarks.retained.context_facts import Context
from benchmarks.retained.conversation_facts import PlantedFact, find_facts
from benchmarks.retained.conversations import Conversation
from benchmarks.retained.planted_turns import Fact
from everthread import TokenCounter, compress
from everthread.core.messages import Message

DEPTHS = (1, 3, 10)
OURS = "Everthread"
MODEL = "gpt-4o"
FACTS_PER_THRESHOLD = 9
"""Number of facts to plant while the history grows to its threshold once."""


@dataclass
class Score:
    """Numbers of facts of each kind: all, and those that each contender kept."""

    total: Counter[str] = field(default_factory=Counter)
    kept: dict[str, Counter[str]] = field(default_factory=dict)
    lost: list[tuple[str, str, Fact]] = field(default_factory=list)
    """Each lost fact, with its conversation and contender."""
    sizes: dict[str, float] = field(default_factory=dict)
    """The largest context of each contender, relative to ours."""

    @classmethod
    def join(cls, scores: Iterable[Score]) -> Score:
        whole = cls()
        for score in scores:
            whole.total += score.total
            whole.lost += score.lost
            for name, kept in score.kept.items():
                whole.kept[name] = whole.kept.get(name, Counter()) + kept
                whole.sizes[name] = max(whole.sizes.get(name, 0.0), score.sizes[name])
        return whole

    def add(
        self,
        name: str,
        facts: list[Fact],
        contexts: Mapping[str, Context],
        sizes: dict[str, float],
    ) -> None:
        self.sizes = sizes
        self.total.update(fact.kind for fact in facts)
        for contender, context in contexts.items():
            kept = self.kept.setdefault(contender, Counter())
            for fact in facts:
                if context.holds(fact):
                    kept[fact.kind] += 1
                else:
                    self.lost.append((name, contender, fact))

    def share(self, contender: str, kind: str) -> float:
        return self.kept[contender][kind] / self.total[kind]


class Contexts:
    """One conversation's context with each contender, all compacted at the same moments and to the same size.

    Ours is a bare list for the public `compress`, so a compaction knows the previous one only from the list.

    """

    def __init__(
        self, window: int, peers: Collection[str], names: Sequence[str] = ALL_CONTENDERS
    ) -> None:
        self.window = window
        self.counter = TokenCounter(MODEL)
        self.threshold = window // 2
        known = make_contenders(self.counter, peers)
        self._contenders = {name: known[name] for name in names if name in known}
        self.current = {name: Context([]) for name in (OURS, *self._contenders)}
        self.size = 0

    def append(self, messages: Sequence[Message]) -> bool:
        """Append messages; return whether our context is now large enough to compact."""
        self.size += sum(map(self.counter.message, messages))
        self.current = {
            name: Context([*context.messages, *messages], context.written)
            for name, context in self.current.items()
        }
        return self.size >= self.threshold

    def compact(self) -> bool:
        """Compact all contexts; return False and change none if ours cannot become smaller."""
        result = compress(
            self.current[OURS].messages,
            window=self.window,
            model=MODEL,
            summarizer="journal",
            force=True,
        )
        if not result.changed:
            return False
        self.size = self.counter.request(result.messages)
        summary = self.counter.text(result.summary)
        made = {
            name: how.compact(self.current[name], self.size, summary)
            for name, how in self._contenders.items()
        }
        self.current = {OURS: Context(result.messages, result.summary), **made}
        return True

    def sizes(self) -> dict[str, float]:
        """Return the size of each context, relative to ours."""
        ours = self.counter.request(self.current[OURS].messages)
        return {
            name: self.counter.request(context.messages) / ours
            for name, context in self.current.items()
        }


def run_chain(
    window: int,
    peers: Collection[str],
    conversation: Conversation,
    scores: Mapping[int, Score],
) -> None:
    """Feed a conversation until it was compacted often enough, and score the facts that remain."""
    contexts = Contexts(window, peers)
    fed: list[Message] = []
    planted: list[PlantedFact] = []
    compactions = 0
    for piece in conversation.groups(
        contexts.threshold // FACTS_PER_THRESHOLD, contexts.counter.message
    ):
        fed += piece.messages
        if piece.fact:
            planted.append(PlantedFact(piece.fact, len(fed)))
        if not contexts.append(piece.messages) or not contexts.compact():
            continue
        compactions += 1
        if compactions in scores:
            scores[compactions].add(
                conversation.name,
                find_facts(fed, planted),
                contexts.current,
                contexts.sizes(),
            )
        if compactions == max(scores):
            return
