"""The cheapest way to a summary: on the warm prefix, or by another model that reads everything anew."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from everthread.compaction.summarizers.chain import SummarizerChain
from everthread.compaction.summarizers.llm_summarizer import LlmSummarizer
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.compaction.summarizers.summary_prices import CallPrice
from everthread.compaction.summarizers.warm_prefix import WarmPrefixSummarizer
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.types import ModelRequest
from everthread.testing import ScriptedModel

COUNTER = TokenCounter("claude-sonnet-4-5")
CONVERSATION: list[Message] = [
    {
        "role": "user",
        "content": f"Somebody says that invoice {number} is settled. " * 200,
    }
    for number in range(20)
]


@dataclass
class FixedPriceSummarizer:
    name: str
    dollars: float | None

    def quote_price(self, _tokens: int, _budget: int) -> float | None:
        return self.dollars

    def quote_request_price(self, _request: SummaryRequest) -> float | None:
        return self.dollars

    async def summarize(self, _request: SummaryRequest) -> SummaryDraft:
        return SummaryDraft({"Goal": "None."}, self.name)


CHEAP = FixedPriceSummarizer("cheap", 0.1)
DEAR = FixedPriceSummarizer("dear", 0.3)
UNPRICED = FixedPriceSummarizer("unpriced", None)
REQUEST = SummaryRequest(CONVERSATION, CONVERSATION, 500)


def make_chain(*routes: FixedPriceSummarizer) -> SummarizerChain:
    return SummarizerChain(routes, clock=lambda: 0.0)


@pytest.mark.parametrize(("second", "author"), [(CHEAP, "cheap"), (UNPRICED, "dear")], ids=str)
async def test_the_cheapest_is_asked_first_if_every_price_is_known(
    second: FixedPriceSummarizer, author: str
) -> None:
    assert (await make_chain(DEAR, second).summarize(REQUEST)).author == author


@pytest.mark.parametrize(
    ("routes", "price"),
    [((DEAR, CHEAP), 0.1), ((DEAR, UNPRICED), 0.3), ((UNPRICED,), None), ((), 0.0)],
)
def test_a_chain_quotes_the_price_of_its_cheapest_route(
    routes: tuple[FixedPriceSummarizer, ...], price: float | None
) -> None:
    assert make_chain(*routes).quote_price(1, 1) == price


@pytest.mark.parametrize(("warm", "cheaper"), [(True, "main"), (False, "auxiliary")])
def test_a_warm_prefix_beats_a_cheap_model_and_a_cold_one_does_not(
    warm: bool, cheaper: str
) -> None:
    main = ScriptedModel(name="claude-sonnet-4-5", window=200_000, api="anthropic")
    small = ScriptedModel(name="claude-haiku-4-5", window=200_000, api="anthropic")
    on_prefix = WarmPrefixSummarizer(
        main,
        COUNTER,
        lambda: ModelRequest(main.name, CONVERSATION),
        price=CallPrice(main.name),
        is_warm=lambda: warm,
    )
    aside = LlmSummarizer(small, COUNTER, price=CallPrice(small.name))
    quotes = {
        "main": on_prefix.quote_request_price(REQUEST),
        "auxiliary": aside.quote_request_price(REQUEST),
    }
    assert None not in quotes.values()
    assert min(quotes, key=lambda name: quotes[name] or 0.0) == cheaper


def test_a_route_without_a_price_has_no_quote() -> None:
    assert CallPrice("nobody-knows-it")(1_000, 100) is None
    assert LlmSummarizer(ScriptedModel(), COUNTER).quote_price(1_000, 100) is None
    unsent = WarmPrefixSummarizer(ScriptedModel(), COUNTER, lambda: None, price=CallPrice("gpt-4o"))
    assert unsent.quote_request_price(REQUEST) is None
    assert (
        WarmPrefixSummarizer(ScriptedModel(), COUNTER, lambda: None).quote_price(1_000, 100) is None
    )
