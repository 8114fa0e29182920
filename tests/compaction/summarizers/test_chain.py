"""The chain: the next one serves when one fails, failed ones rest, and there is always a summary."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from everthread.compaction.journal import JournalWriter
from everthread.compaction.summarizers.chain import SummarizerChain
from everthread.compaction.summarizers.model import LlmSummarizer
from everthread.compaction.summary import SummaryDraft, SummaryRequest
from everthread.errors import SummaryError
from tests.compaction.summarizers.http_model import USAGE, completion, failing, served
from tests.compaction.summarizers.model_doubles import COUNTER, GOOD, GOOD_TEXT, wanted


@dataclass
class Route:
    """Raises what it is given, as long as it is given something."""

    name: str
    error: SummaryError | None = None
    asked: int = 0

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        self.asked += 1
        if self.error:
            raise self.error
        return SummaryDraft(
            {"Goal": f"{len(request.messages)} messages"}, self.name, ("its own",), ({"model": self.name},)
        )


@dataclass
class World:
    """A chain of two models over a floor, with a clock and a record of events."""

    aux: Route = field(default_factory=lambda: Route("aux"))
    main: Route = field(default_factory=lambda: Route("main"))
    floor: Route = field(default_factory=lambda: Route("extractive"))
    now: float = 1000.0
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chain = self.new_chain()

    def new_chain(self) -> SummarizerChain:
        return SummarizerChain([self.aux, self.main], floor=self.floor, clock=lambda: self.now, events=self.tell)

    def tell(self, kind: str, **details: Any) -> None:
        self.events.append((kind, details))

    async def author(self, *, manual: bool = False) -> str:
        return (await self.draft(manual=manual)).author

    async def draft(self, *, manual: bool = False) -> SummaryDraft:
        return await self.chain.summarize(replace(wanted(), manual=manual))


def passing() -> SummaryError:
    return SummaryError("rate limited", passing=True)


def missing() -> SummaryError:
    return SummaryError("no provider", missing=True)


def bad() -> SummaryError:
    return SummaryError("it was empty")


async def test_the_first_that_can_writes_it() -> None:
    world = World()
    draft = await world.draft()
    assert (draft.author, draft.warnings, draft.usage) == ("aux", ("its own",), ({"model": "aux"},))
    assert world.main.asked == world.floor.asked == 0
    assert world.events == []
    assert world.chain.name == "aux, then main, then extractive"


async def test_each_failure_is_told_and_paid_for() -> None:
    world = World()
    world.aux.error, world.main.error = passing(), bad()
    world.aux.error.usage = ({"model": "aux", "prompt_tokens": 5},)
    draft = await world.draft()
    assert draft.author == "extractive"
    assert draft.warnings == (
        "aux wrote no summary: rate limited",
        "main wrote no summary: it was empty",
        "its own",
    )
    assert draft.usage == ({"model": "aux", "prompt_tokens": 5}, {"model": "extractive"})
    assert world.events == [
        ("summary_failed", {"route": "aux", "reason": "rate limited", "passing": True, "missing": False, "rest": 60.0}),
        (
            "summary_failed",
            {"route": "main", "reason": "it was empty", "passing": False, "missing": False, "rest": 0.0},
        ),
    ]


@pytest.mark.parametrize(("error", "seconds"), [(passing(), 60), (missing(), 600)], ids=["passing", "missing"])
async def test_a_failed_route_rests_and_comes_back(error: SummaryError, seconds: int) -> None:
    world = World()
    world.aux.error = error
    assert (await world.author()) == "main"
    world.now += seconds - 1
    draft = await world.draft()
    assert draft.author == "main"
    assert draft.warnings[0] == "aux was not asked: it rests for 1 more seconds after a failure"
    assert world.events[-1] == ("summary_skipped", {"route": "aux", "seconds": 1.0})
    assert world.aux.asked == 1
    world.now += 1
    world.aux.error = None
    assert (await world.author()) == "aux"
    assert world.aux.asked == 2


async def test_a_bad_answer_does_not_send_it_to_rest() -> None:
    world = World()
    world.aux.error = bad()
    assert [(await world.author()), (await world.author())] == ["main", "main"]
    assert world.aux.asked == 2


async def test_by_hand_nobody_rests_and_a_failure_is_a_warning() -> None:
    world = World()
    world.aux.error = passing()
    (await world.author())
    draft = await world.draft(manual=True)
    assert world.aux.asked == 2
    assert draft.warnings[0] == "aux wrote no summary: rate limited"
    world.aux.error = None
    assert (await world.author(manual=True)) == "aux"
    assert (await world.author()) == "aux", "a success ends the rest"


async def test_the_same_route_twice_is_asked_once() -> None:
    world = World(main=Route("aux"))
    world.aux.error = world.main.error = bad()
    assert (await world.author(manual=True)) == "extractive"
    assert world.main.asked == 0
    assert world.chain.name == "aux, then extractive"


async def test_nobody_listens_and_nobody_can_but_the_floor() -> None:
    route = Route("m", passing())
    chain = SummarizerChain([route], floor=Route("extractive"), clock=lambda: 0.0)
    assert (await chain.summarize(wanted())).author == "extractive"
    assert (await SummarizerChain([], floor=Route("x"), clock=lambda: 0.0).summarize(wanted())).author == "x"


async def test_cancelling_is_not_a_failure() -> None:
    class Patient(Route):
        async def summarize(self, request: SummaryRequest) -> SummaryDraft:
            await asyncio.sleep(60)
            return await super().summarize(request)

    floor = Route("extractive")
    chain = SummarizerChain([Patient("m")], floor=floor, clock=lambda: 0.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await chain.summarize(wanted())
    assert floor.asked == 0


async def test_over_http_from_the_auxiliary_to_the_main_model() -> None:
    async with (
        served(failing(500, "down"), name="small") as (aux, aux_server),
        served(completion(""), completion(GOOD_TEXT), completion(GOOD_TEXT), name="large") as (big, _),
    ):
        routes = [LlmSummarizer(model, COUNTER) for model in (aux, big)]
        chain = SummarizerChain(routes, floor=Route("extractive"), clock=lambda: 0.0)
        draft = await chain.summarize(wanted())
        assert draft.sections == GOOD
        assert draft.author == "large"
        assert "small wrote no summary" in draft.warnings[0]
        assert draft.usage == ({**USAGE, "model": "gpt-4o-2024"},) * 2
        assert (await chain.summarize(wanted())).author == "large"
        assert len(aux_server.requests) == 1


async def test_without_any_model_the_extractive_summariser_serves() -> None:
    async with served(failing(500, "down"), name="small") as (model, _):
        floor = JournalWriter(COUNTER)
        chain = SummarizerChain([LlmSummarizer(model, COUNTER)], floor=floor, clock=lambda: 0.0)
        draft = await chain.summarize(wanted())
        assert draft.author == floor.name
        assert draft.sections
        assert "small wrote no summary" in draft.warnings[0]
