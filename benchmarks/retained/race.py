"""One conversation through a chain of compactions, every contender beside it at the same size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.retained.contenders import EVERY, contenders
from benchmarks.retained.conversations import Conversation
from benchmarks.retained.finding import Context
from benchmarks.retained.planted import Fact
from benchmarks.retained.truth import Planted, facts_of
from everthread import TokenCounter, compress
from everthread.core.messages import Message

DEPTHS = (1, 3, 10)
OURS = "Everthread"
MODEL = "gpt-4o"
PLANT_SHARE = 9
"""So many facts are planted while the history grows to its threshold once."""


@dataclass
class Score:
    """How many facts of each kind there were, and how many of them each contender kept."""

    total: Counter[str] = field(default_factory=Counter)
    kept: dict[str, Counter[str]] = field(default_factory=dict)
    lost: list[tuple[str, str, Fact]] = field(default_factory=list)
    """Conversation, contender and what it lost."""
    sizes: dict[str, float] = field(default_factory=dict)
    """How large each one's context was at most, ours being 1."""

    @classmethod
    def joined(cls, scores: Iterable[Score]) -> Score:
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

    Ours goes through the public `compress`, as a bare list: what a compaction knows of the one before stands in it.
    """

    def __init__(
        self, window: int, peers: Collection[str], names: Sequence[str] = EVERY
    ) -> None:
        self.window = window
        self.counter = TokenCounter(MODEL)
        self.threshold = window // 2
        known = contenders(self.counter, peers)
        self._contenders = {name: known[name] for name in names if name in known}
        self.current = {name: Context([]) for name in (OURS, *self._contenders)}
        self.size = 0

    def append(self, messages: Sequence[Message]) -> bool:
        """Whether that made the context of ours large enough to be compacted."""
        self.size += sum(map(self.counter.message, messages))
        self.current = {
            name: Context([*context.messages, *messages], context.written)
            for name, context in self.current.items()
        }
        return self.size >= self.threshold

    def compact(self) -> bool:
        """False where ours could not be made smaller: then all stay as they are."""
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
        """How large each context is, ours being 1."""
        ours = self.counter.request(self.current[OURS].messages)
        return {
            name: self.counter.request(context.messages) / ours
            for name, context in self.current.items()
        }


def race(
    window: int,
    peers: Collection[str],
    conversation: Conversation,
    scores: Mapping[int, Score],
) -> None:
    """Feeds a conversation until it was compacted often enough, and scores what is left on the way."""
    contexts = Contexts(window, peers)
    fed: list[Message] = []
    planted: list[Planted] = []
    compactions = 0
    for piece in conversation.pieces(
        contexts.threshold // PLANT_SHARE, contexts.counter.message
    ):
        fed += piece.messages
        if piece.fact:
            planted.append(Planted(piece.fact, len(fed)))
        if not contexts.append(piece.messages) or not contexts.compact():
            continue
        compactions += 1
        if compactions in scores:
            scores[compactions].add(
                conversation.name,
                facts_of(fed, planted),
                contexts.current,
                contexts.sizes(),
            )
        if compactions == max(scores):
            return
