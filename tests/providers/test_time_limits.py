"""Time limits of a call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.types import Api
from everthread.errors import (
    ModelTimeoutError,
)
from everthread.lab.provider import RequestRecord
from everthread.lab.provider.faults import Fault
from everthread.providers.resilience import (
    TimeLimitedModel,
    TimeLimits,
)
from tests.apis import APIS
from tests.providers.fake_model import (
    REQUEST,
    StepwiseModel,
    call_model,
    make_reply,
    text_delta,
    usage_delta,
)
from tests.providers.http_models import both_ways, failure_of, make_request, open_model


@pytest.mark.parametrize(
    ("steps", "limits", "said"),
    [
        (
            [30.0, make_reply()],
            TimeLimits(first_seconds=0.05),
            "has not begun to answer within 0.05 s",
        ),
        (
            [usage_delta(3), 30.0, make_reply()],
            TimeLimits(first_seconds=0.05),
            "has not begun",
        ),
        (
            [text_delta("Hel"), 30.0, make_reply()],
            TimeLimits(between_seconds=0.05),
            "sent nothing for",
        ),
        (
            [text_delta("Hel"), 30.0, make_reply()],
            TimeLimits(total_seconds=0.05),
            "has not finished its answer",
        ),
    ],
    ids=["first", "first, usage apart", "between", "whole"],
)
async def test_leaves_a_stream_that_takes_too_long(
    steps: list[Any], limits: TimeLimits, said: str
) -> None:
    inner = StepwiseModel([steps])
    error = await failure_of(TimeLimitedModel(inner, limits), REQUEST, stream=True)
    assert isinstance(error, ModelTimeoutError)
    assert said in str(error)
    assert inner.closed == 1
    if isinstance(steps[0], float):
        assert error.partial is None
    elif steps[0].kind == "text":
        assert text_of(error.partial.message) == "Hel"


async def test_a_timeout_keeps_the_usage_of_the_prompt() -> None:
    inner = StepwiseModel([[usage_delta(3), text_delta("Hel"), 30.0]])
    error = await failure_of(
        TimeLimitedModel(inner, TimeLimits(between_seconds=0.05)), REQUEST, stream=True
    )
    assert error.partial.usage == {"input_tokens": 3}


async def test_limits_a_whole_answer() -> None:
    inner = StepwiseModel([[30.0, make_reply()]])
    error = await failure_of(
        TimeLimitedModel(inner, TimeLimits(total_seconds=0.05)), REQUEST, stream=False
    )
    assert isinstance(error, ModelTimeoutError)
    assert "within 0.05 s" in str(error)


@both_ways
async def test_does_not_convert_other_timeouts(stream: bool) -> None:
    inner = StepwiseModel([[TimeoutError("of another kind")]])
    with pytest.raises(TimeoutError, match="of another kind"):
        await call_model(TimeLimitedModel(inner), stream=stream)


async def test_waits_without_limits() -> None:
    inner = StepwiseModel([[text_delta("a"), 0.01, make_reply()]])
    limits = TimeLimits(first_seconds=None, between_seconds=None, total_seconds=None)
    assert (await call_model(TimeLimitedModel(inner, limits), stream=True)).stop == "stop"


@pytest.mark.parametrize("api", APIS)
async def test_a_timeout_closes_the_connection(api: Api) -> None:
    over = asyncio.Event()
    script: list[Any] = ["Warm.", Fault("hang", seconds=60)]

    def listen(record: RequestRecord) -> None:
        if record.fault:
            over.set()

    async with open_model(api, script, listen=listen) as (inner, provider):
        await inner.complete(make_request())
        error = await failure_of(
            TimeLimitedModel(inner, TimeLimits(first_seconds=1.5)),
            make_request(),
            stream=True,
        )
        assert isinstance(error, ModelTimeoutError)
        async with asyncio.timeout(30):
            await over.wait()
        assert provider.log[1].events == ["gone"]
