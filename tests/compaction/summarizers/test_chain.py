"""The chain: if a summariser fails, the next one serves; failed ones pause; there is always a summary."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from everthread.compaction.summarizers.chain import SummarizerChain
from everthread.compaction.summarizers.summarizer import (
    RefusedDraft,
    SummaryDraft,
    SummaryRequest,
)
from everthread.errors import SummaryError
from tests.compaction.summarizers.model_doubles import (
    summary_request,
)


@dataclass
class FailingSummarizer:
    """A summariser that raises the given errors, then succeeds."""

    name: str
    error: SummaryError | None = None
    asked: int = 0

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        self.asked += 1
        if self.error:
            raise self.error
        return SummaryDraft(
            {"Goal": f"{len(request.messages)} messages"},
            self.name,
            ("its own",),
            ({"model": self.name},),
        )


@dataclass
class TwoModelChain:
    """A chain of two models, with a clock and a record of events."""

    aux: FailingSummarizer = field(default_factory=lambda: FailingSummarizer("aux"))
    main: FailingSummarizer = field(default_factory=lambda: FailingSummarizer("main"))
    now: float = 1000.0
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chain = self.new_chain()

    def new_chain(self) -> SummarizerChain:
        return SummarizerChain(
            [self.aux, self.main],
            clock=lambda: self.now,
            events=self.tell,
        )

    def tell(self, kind: str, **details: Any) -> None:
        self.events.append((kind, details))

    async def author(self, *, manual: bool = False) -> str:
        return (await self.draft(manual=manual)).author

    async def draft(self, *, manual: bool = False) -> SummaryDraft:
        return await self.chain.summarize(replace(summary_request(), manual=manual))


def rate_limit_error() -> SummaryError:
    return SummaryError("rate limited", is_transient=True)


def no_provider_error() -> SummaryError:
    return SummaryError("no provider", has_no_provider=True)


def empty_answer_error() -> SummaryError:
    return SummaryError("it was empty", is_unusable_answer=True)


async def test_the_first_route_writes_the_draft() -> None:
    models = TwoModelChain()
    draft = await models.draft()
    assert draft.author == "aux"
    assert draft.warnings == ("its own",)
    assert draft.usage == ({"model": "aux"},)
    assert models.main.asked == 0
    assert models.events == []
    assert models.chain.name == "aux, then main, then journal"


async def test_failures_are_reported_with_their_usage() -> None:
    models = TwoModelChain()
    models.aux.error = rate_limit_error()
    models.main.error = empty_answer_error()
    models.aux.error.usage = ({"model": "aux", "prompt_tokens": 5},)
    draft = await models.draft()
    assert draft.author == "journal"
    assert draft.warnings == (
        "aux wrote no summary: rate limited",
        "main wrote no summary: it was empty",
    )
    assert draft.usage == ({"model": "aux", "prompt_tokens": 5},)
    assert models.events == [
        (
            "summary_failed",
            {
                "route": "aux",
                "reason": "rate limited",
                "passing": True,
                "missing": False,
                "rest": 60.0,
            },
        ),
        (
            "summary_failed",
            {
                "route": "main",
                "reason": "it was empty",
                "passing": False,
                "missing": False,
                "rest": 600.0,
            },
        ),
    ]


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(rate_limit_error(), 60), (no_provider_error(), 600), (empty_answer_error(), 600)],
    ids=["passing", "missing", "unusable"],
)
async def test_a_failed_route_is_paused_and_used_again_later(
    error: SummaryError, seconds: int
) -> None:
    models = TwoModelChain()
    models.aux.error = error
    assert (await models.author()) == "main"
    models.now += seconds - 1
    draft = await models.draft()
    assert draft.author == "main"
    assert draft.warnings == ("its own",), "the failure was reported before"
    assert models.events[-1] == ("summary_skipped", {"route": "aux", "seconds": 1.0})
    assert models.aux.asked == 1
    models.now += 1
    models.aux.error = None
    assert (await models.author()) == "aux"
    assert models.aux.asked == 2


async def test_another_session_reports_once_that_a_route_is_paused() -> None:
    models = TwoModelChain()
    rest_until = {"aux": models.now + 30}
    chain = SummarizerChain(
        [models.aux],
        clock=lambda: models.now,
        paused_until=rest_until,
    )
    first = await chain.summarize(summary_request())
    second = await chain.summarize(summary_request())
    assert first.warnings == (
        "aux was not asked: it is paused for 30 more seconds after a failure",
    )
    assert second.warnings == ()


async def test_a_route_is_paused_when_its_second_draft_is_refused() -> None:
    models = TwoModelChain()
    refused = [
        RefusedDraft("aux", "named too much", is_route_exhausted=False),
        RefusedDraft("aux", "again", is_route_exhausted=True),
    ]
    assert (
        await models.chain.summarize(replace(summary_request(), refused=tuple(refused[:1])))
    ).route == "aux"
    draft = await models.chain.summarize(replace(summary_request(), refused=tuple(refused)))
    assert draft.route == "main"
    assert draft.warnings[0] == "aux is not asked for the next 10 minutes"
    models.now += 599
    assert await models.author() == "main"
    assert await models.author(manual=True) == "aux", "a person's wish does not wait"


async def test_a_route_that_takes_too_long_is_paused() -> None:
    class Silent(FailingSummarizer):
        async def summarize(self, request: SummaryRequest) -> SummaryDraft:
            await asyncio.Event().wait()
            return await super().summarize(request)

    models = TwoModelChain(aux=Silent("aux"))
    task = asyncio.create_task(models.draft())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert models.chain.pause_interrupted() == "aux wrote no summary: it took too long"
    assert await models.author() == "main"
    assert models.chain.pause_interrupted() == ""


async def test_a_manual_compaction_tries_paused_routes() -> None:
    models = TwoModelChain()
    models.aux.error = rate_limit_error()
    (await models.author())
    draft = await models.draft(manual=True)
    assert models.aux.asked == 2
    assert draft.warnings[0] == "aux wrote no summary: rate limited"
    models.aux.error = None
    assert (await models.author(manual=True)) == "aux"
    assert (await models.author()) == "aux", "a success ends the rest"


async def test_a_route_listed_twice_is_asked_once() -> None:
    models = TwoModelChain(main=FailingSummarizer("aux"))
    models.aux.error = models.main.error = empty_answer_error()
    assert (await models.author(manual=True)) == "journal"
    assert models.main.asked == 0
    assert models.chain.name == "aux, then journal"


async def test_the_draft_is_empty_if_no_route_can_write() -> None:
    failing_route = FailingSummarizer("m", rate_limit_error())
    for routes in ([failing_route], []):
        chain = SummarizerChain(routes, clock=lambda: 0.0)
        draft = await chain.summarize(summary_request())
        assert draft.author == "journal"
        assert draft.sections == {}
