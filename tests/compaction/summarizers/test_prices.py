"""The cheapest way to a summary: on the warm prefix, or by another model that reads everything anew."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.summarizers.chain import Price, SummarizerChain
from everthread.compaction.summarizers.model import LlmSummarizer, WarmPrefixSummarizer
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.types import Request
from everthread.testing import ScriptedModel

NOW = 1_760_000_000.0
COUNTER = TokenCounter("claude-sonnet-4-5")
TALK: list[Message] = [
    {
        "role": "user",
        "content": f"Somebody says that invoice {number} is settled. " * 200,
    }
    for number in range(20)
]


@dataclass
class PricedSummarizer:
    name: str
    dollars: float | None

    def quote(self, _tokens: int, _budget: int) -> float | None:
        return self.dollars

    def quote_for(self, _request: SummaryRequest) -> float | None:
        return self.dollars

    async def summarize(self, _request: SummaryRequest) -> SummaryDraft:
        return SummaryDraft({"Goal": "None."}, self.name)


async def find_author(*routes: PricedSummarizer) -> str:
    chain = SummarizerChain(routes, floor=JournalWriter(COUNTER), clock=lambda: 0.0)
    return (await chain.summarize(SummaryRequest(TALK, TALK, 500))).author


async def test_the_cheapest_is_asked_first_where_every_price_is_known() -> None:
    assert (
        await find_author(PricedSummarizer("dear", 0.3), PricedSummarizer("cheap", 0.1))
        == "cheap"
    )
    assert (
        await find_author(
            PricedSummarizer("dear", 0.3), PricedSummarizer("unknown", None)
        )
        == "dear"
    )


def test_a_chain_quotes_the_price_of_its_cheapest_route() -> None:
    def chain(*routes: PricedSummarizer) -> SummarizerChain:
        return SummarizerChain(routes, floor=JournalWriter(COUNTER), clock=lambda: 0.0)

    assert (
        chain(PricedSummarizer("dear", 0.3), PricedSummarizer("cheap", 0.1)).quote(1, 1)
        == 0.1
    )
    assert (
        chain(PricedSummarizer("dear", 0.3), PricedSummarizer("unknown", None)).quote(
            1, 1
        )
        == 0.3
    )
    assert chain(PricedSummarizer("unknown", None)).quote(1, 1) is None
    assert chain().quote(1, 1) == 0.0


@pytest.mark.parametrize(("warm", "cheaper"), [(True, "main"), (False, "auxiliary")])
def test_a_warm_prefix_beats_a_cheap_model_and_a_cold_one_does_not(
    warm: bool, cheaper: str
) -> None:
    main = ScriptedModel(name="claude-sonnet-4-5", window=200_000, api="anthropic")
    small = ScriptedModel(name="claude-haiku-4-5", window=200_000, api="anthropic")
    request = SummaryRequest(TALK, TALK, 500)
    on_prefix = WarmPrefixSummarizer(
        main,
        COUNTER,
        lambda: Request(main.name, TALK),
        price=Price(main.name, wall=lambda: NOW),
        warm=lambda: warm,
    )
    aside = LlmSummarizer(small, COUNTER, price=Price(small.name, wall=lambda: NOW))
    quotes = {
        "main": on_prefix.quote_for(request),
        "auxiliary": aside.quote_for(request),
    }
    assert None not in quotes.values()
    assert min(quotes, key=lambda name: quotes[name] or 0.0) == cheaper


def test_a_route_without_a_price_has_no_quote() -> None:
    assert Price("nobody-knows-it")(1_000, 100) is None
    assert LlmSummarizer(ScriptedModel(), COUNTER).quote(1_000, 100) is None
    unsent = WarmPrefixSummarizer(
        ScriptedModel(), COUNTER, lambda: None, price=Price("gpt-4o")
    )
    assert unsent.quote_for(SummaryRequest(TALK, TALK, 500)) is None
    assert (
        WarmPrefixSummarizer(ScriptedModel(), COUNTER, lambda: None).quote(1_000, 100)
        is None
    )
