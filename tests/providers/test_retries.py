"""Retries after transient failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.types import Api, StreamingModel
from everthread.errors import (
    ModelError,
    ModelUnreachableError,
)
from everthread.lab.provider.faults import Fault
from everthread.providers.resilience import (
    RetryingModel,
)
from tests.apis import APIS
from tests.providers.fake_model import (
    BUSY,
    REQUEST,
    TOO_LONG,
    ModelEventRecorder,
    StepwiseModel,
    call_model,
    make_reply,
    text_delta,
    usage_delta,
)
from tests.providers.http_models import both_ways, collect_pieces, make_request, open_model


def retrying(model: StreamingModel, watch: ModelEventRecorder) -> RetryingModel:
    return RetryingModel(model, events=watch, clock=watch.clock, sleep=watch.sleep)


def assert_jittered(waits: Sequence[float], longest_waits: Sequence[float]) -> None:
    """Check that each wait is between half of the longest possible one and all of it."""
    for wait, longest_wait in zip(waits, longest_waits, strict=True):
        assert longest_wait / 2 <= wait <= longest_wait


@both_ways
async def test_retries_with_growing_waits(
    stream: bool,
) -> None:
    inner = StepwiseModel([[BUSY], [ModelUnreachableError("reset")], [BUSY], [make_reply()]])
    watch = ModelEventRecorder()
    whole = await call_model(retrying(inner, watch), stream=stream)
    assert text_of(whole.message) == "ok"
    assert_jittered(watch.waits, [0.5, 1.0, 2.0])
    assert [event.kind for event in watch.events] == ["retry"] * 3
    assert "attempt 2 of 4" in watch.events[0].text
    assert watch.events[0].error is BUSY


async def test_bounds_the_waits_for_a_rate_limit() -> None:
    limited = ModelError("slow down", status=429)
    inner = StepwiseModel([[limited]] * 12)
    watch = ModelEventRecorder()
    with pytest.raises(ModelError):
        await retrying(inner, watch).complete(REQUEST)
    longest_waits = [4.0, 8.0, 16.0] + [30.0] * 8
    assert_jittered(watch.waits, longest_waits[: len(watch.waits)])
    assert 60 < sum(watch.waits) <= 300


@both_ways
async def test_waits_as_long_as_the_provider_asks(stream: bool) -> None:
    limited = ModelError("slow down", status=429, retry_after=20.0)
    inner = StepwiseModel([[limited], [make_reply()]])
    watch = ModelEventRecorder()
    await call_model(retrying(inner, watch), stream=stream)
    [wait] = watch.waits
    assert 20.0 <= wait <= 22.0


@both_ways
async def test_gives_up_if_the_wait_is_too_long(stream: bool) -> None:
    limited = ModelError("slow down", status=429, retry_after=3_600.0)
    inner = StepwiseModel([[limited]])
    watch = ModelEventRecorder()
    with pytest.raises(ModelError, match="slow down"):
        await call_model(retrying(inner, watch), stream=stream)
    assert watch.waits == []
    assert [event.kind for event in watch.events] == ["gave_up"]


@both_ways
@pytest.mark.parametrize(
    "error", [TOO_LONG, ModelError("no", status=401), ModelError("no", status=400)]
)
async def test_raises_permanent_errors_at_once(error: ModelError, stream: bool) -> None:
    inner = StepwiseModel([[error]])
    watch = ModelEventRecorder()
    with pytest.raises(ModelError) as caught:
        await call_model(retrying(inner, watch), stream=stream)
    assert caught.value is error
    assert (watch.waits, watch.events) == ([], [])


@both_ways
async def test_raises_the_error_of_the_last_attempt(stream: bool) -> None:
    inner = StepwiseModel([[BUSY]] * 4)
    watch = ModelEventRecorder()
    with pytest.raises(ModelError) as caught:
        await call_model(retrying(inner, watch), stream=stream)
    assert caught.value is BUSY
    assert [event.kind for event in watch.events] == ["retry"] * 3 + ["gave_up"]


async def test_does_not_retry_after_the_first_text() -> None:
    inner = StepwiseModel([[text_delta("Hel"), BUSY], [make_reply()]])
    watch = ModelEventRecorder()
    with pytest.raises(ModelError) as caught:
        await call_model(retrying(inner, watch), stream=True)
    assert caught.value is BUSY
    assert len(inner.requests) == 1


async def test_retries_a_stream_that_sent_only_usage() -> None:
    inner = StepwiseModel(
        [[usage_delta(7), BUSY], [usage_delta(8), text_delta("Hi"), make_reply("Hi")]]
    )
    watch = ModelEventRecorder()
    deltas, [whole] = await collect_pieces(retrying(inner, watch), REQUEST)
    assert [dict(delta.raw) for delta in deltas if delta.kind == "usage"] == [{"input_tokens": 8}]
    assert text_of(whole.message) == "Hi"
    assert inner.closed == 2


@pytest.mark.parametrize("api", APIS)
async def test_retries_real_faults_until_the_answer(api: Api) -> None:
    watch = ModelEventRecorder()
    faults: list[Any] = [
        Fault("overloaded"),
        Fault("rate_limit", retry_after=3),
        Fault("reset", after=0),
        "At last.",
    ]
    async with open_model(api, faults) as (inner, provider):
        whole = await call_model(retrying(inner, watch), stream=True, request=make_request())
    assert text_of(whole.message) == "At last."
    assert len(provider.log) == 4
    first_wait, rate_limit_wait, last_wait = watch.waits
    assert_jittered([first_wait, last_wait], [0.5, 2.0])
    assert 3.0 <= rate_limit_wait <= 3.3


async def test_waits_minutes_for_a_rate_limit() -> None:
    watch = ModelEventRecorder()
    limit = ModelError("slow down", status=429)
    model = StepwiseModel([*([limit] for _ in range(6)), [make_reply("at last")]])
    assert (await retrying(model, watch).complete(REQUEST)).message["content"] == "at last"
    assert sum(watch.waits) > 60
