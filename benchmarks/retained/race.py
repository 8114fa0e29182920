"""One conversation through a chain of compactions, every contender beside it at the same size."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.peers import Peer
from benchmarks.retained.contenders import (
    LANGCHAIN_TRIM,
    Contender,
    HeadAndTail,
    LangChainSummary,
    LangChainTrim,
    text_rank,
)
from benchmarks.retained.conversations import Conversation
from benchmarks.retained.finding import Context
from benchmarks.retained.planted import Fact
from benchmarks.retained.truth import Planted, facts_of
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import Services
from everthread.compaction.summarizers.extractive import ExtractiveSummarizer
from everthread.core.budget import Budget
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter

DEPTHS = (1, 3, 10)
OURS, HEAD_TAIL, TEXT_RANK = "Everthread", "head + tail", "text-rank"
LANGCHAIN, LANGCHAIN_WHOLE, LANGCHAIN_TRIMS = "LangChain", "LangChain untrimmed", "trim_messages"
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

    def add(self, name: str, facts: list[Fact], contexts: Mapping[str, Context], sizes: dict[str, float]) -> None:
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


class Race:
    """A conversation's contexts, ours and the others', as they are compacted again and again."""

    def __init__(self, window: int, peer: Peer | None) -> None:
        self.counter = TokenCounter("gpt-4o")
        self.budget = Budget.for_window(window)
        summarizer = ExtractiveSummarizer(self.counter)
        self.engine = ContextCompressor(Services(summarizer, self.counter, self.budget, lambda: 0.0))
        self.contenders: dict[str, Contender] = {
            HEAD_TAIL: HeadAndTail(self.counter),
            TEXT_RANK: text_rank(self.counter),
        }
        if peer is not None:
            self.contenders[LANGCHAIN] = LangChainSummary(self.counter, summarizer, peer, LANGCHAIN_TRIM)
            self.contenders[LANGCHAIN_WHOLE] = LangChainSummary(self.counter, summarizer, peer, None)
            self.contenders[LANGCHAIN_TRIMS] = LangChainTrim(self.counter, peer)
        self.contexts = {name: Context([]) for name in (OURS, *self.contenders)}

    def run(self, conversation: Conversation, scores: Mapping[int, Score]) -> None:
        """Feeds the conversation until it was compacted often enough, and scores what is left on the way."""
        fed: list[Message] = []
        planted: list[Planted] = []
        compactions = 0
        size = 0
        count = self.counter.message
        for piece in conversation.pieces(self.budget.threshold // PLANT_SHARE, count):
            fed += piece.messages
            size += sum(map(count, piece.messages))
            if piece.fact:
                planted.append(Planted(piece.fact, len(fed)))
            self._append(piece.messages)
            if size < self.budget.threshold or not self._compact():
                continue
            size = self.counter.request(self.contexts[OURS].messages)
            compactions += 1
            if compactions in scores:
                scores[compactions].add(conversation.name, facts_of(fed, planted), self.contexts, self.sizes())
            if compactions == max(scores):
                return

    def _append(self, messages: list[Message]) -> None:
        self.contexts = {
            name: Context([*context.messages, *messages], context.written) for name, context in self.contexts.items()
        }

    def _compact(self) -> bool:
        result = asyncio.run(self.engine.compress(self.contexts[OURS].messages))
        if not result.changed:
            return False
        self.engine.on_compacted(result)
        size = self.counter.request(result.messages)
        summary = self.counter.text(result.summary)
        made = {name: how.compact(self.contexts[name], size, summary) for name, how in self.contenders.items()}
        self.contexts = {OURS: Context(result.messages, result.summary), **made}
        return True

    def sizes(self) -> dict[str, float]:
        """How large each context is, ours being 1."""
        ours = self.counter.request(self.contexts[OURS].messages)
        return {name: self.counter.request(context.messages) / ours for name, context in self.contexts.items()}
