"""A model whose summaries are unusable is asked twice; then the journal is used and the model pauses."""

from __future__ import annotations

import pytest

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.summarizers.chain import SummarizerChain
from everthread.compaction.summarizers.llm_summarizer import LlmSummarizer
from everthread.compaction.summary.sections import render_sections
from tests.compaction.histories import make_engine
from tests.compaction.summarizers.model_doubles import (
    COUNTER,
    FunctionModel,
    make_history,
    model_that_says,
)

GOOD_TEXT = render_sections({"Goal": "A parser that reads tokens and keeps the position of each."})
INVENTED = render_sections(
    {"Goal": "\n".join(f"- src/invented_{n}.py was changed" for n in range(9))}
)


class OneModelChain:
    """A chain with one model, and a clock."""

    def __init__(self, *texts: str) -> None:
        self.now = 1_000.0
        self.model: FunctionModel = model_that_says(*texts)
        self.chain = SummarizerChain(
            [LlmSummarizer(self.model, COUNTER)],
            clock=lambda: self.now,
        )

    async def compact(self, *, manual: bool = False) -> Compaction:
        return await make_engine(16_000, self.chain).compress(make_history(160), manual=manual)

    @property
    def calls(self) -> int:
        return len(self.model.requests)


@pytest.mark.parametrize(
    "text", [INVENTED, "I cannot do that.", ""], ids=["invented", "prose", "empty"]
)
async def test_after_two_bad_answers_the_journal_writes_and_the_model_pauses(
    text: str,
) -> None:
    chain = OneModelChain(text)
    first = await chain.compact()
    assert first.author == "journal"
    assert chain.calls == 2
    assert len({line for line in first.warnings if "gpt-4o" in line}) == len(first.warnings)
    chain.now += 599
    second = await chain.compact()
    assert second.author == "journal"
    assert second.warnings == ()
    assert chain.calls == 2
    await chain.compact(manual=True)
    assert chain.calls == 4, "a person's wish does not wait"


async def test_the_second_request_gives_the_reason() -> None:
    chain = OneModelChain(INVENTED, GOOD_TEXT)
    result = await chain.compact()
    assert result.author == "gpt-4o"
    assert chain.calls == 2
    assert "no source says" in str(chain.model.requests[1].messages[-1]["content"])


async def test_a_repeated_answer_is_not_requested_again() -> None:
    chain = OneModelChain("I cannot do that.", INVENTED, GOOD_TEXT)
    assert (await chain.compact()).author == "journal"
    assert chain.calls == 2
