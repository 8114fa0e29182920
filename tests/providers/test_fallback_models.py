"""Fallback to another model."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.types import ModelRequest, StreamingModel
from everthread.errors import (
    InputError,
    ModelError,
    ModelUnreachableError,
)
from everthread.providers.resilience import (
    FallbackModel,
    RetryingModel,
    TimeLimitedModel,
)
from tests.providers.fake_model import (
    BUSY,
    REQUEST,
    TOO_LONG,
    ModelEventRecorder,
    StepwiseModel,
    call_model,
    make_reply,
    text_delta,
)
from tests.providers.http_models import both_ways


def pair(first: list[Any], second: list[Any]) -> tuple[StepwiseModel, StepwiseModel]:
    other = StepwiseModel(
        second,
        name="claude-opus-4-1",
        window=200,
        api="anthropic",
        base_url="http://second",
    )
    return StepwiseModel(first), other


async def keep_request(request: ModelRequest, _model: StreamingModel) -> ModelRequest:
    return request


@both_ways
async def test_asks_the_next_model_if_the_first_is_out_of_service(stream: bool) -> None:
    first, second = pair([[BUSY]], [[make_reply("from the second")]])
    watch = ModelEventRecorder()
    fitted_requests = []

    async def refit(request: ModelRequest, model: StreamingModel) -> ModelRequest:
        fitted_requests.append((request.model, model.window))
        return ModelRequest(
            request.model,
            request.messages[-1:],
            params={**request.params, "refitted": True},
        )

    model = FallbackModel([first, second], fit_request=refit, events=watch, clock=watch.clock)
    assert (model.name, model.window, model.api) == ("first", 1_000, "openai_chat")
    reply = await call_model(model, stream=stream)
    assert text_of(reply.message) == "from the second"
    assert fitted_requests == [("claude-opus-4-1", 200)]
    assert second.requests[0].params == {"max_tokens": 500, "refitted": True}
    assert (model.name, model.window, model.api) == ("claude-opus-4-1", 200, "anthropic")
    assert [event.kind for event in watch.events] == ["fallback"]
    assert "busy" in watch.events[0].text


async def test_asks_the_first_model_again_after_its_pause() -> None:
    first, second = pair(
        [[BUSY], [make_reply("a")]],
        [[make_reply("b")], [make_reply("c")]],
    )
    watch = ModelEventRecorder()
    model = FallbackModel(
        [first, second], fit_request=keep_request, events=watch, clock=watch.clock
    )

    replies = [await model.complete(REQUEST), await model.complete(REQUEST)]
    watch.now = 61.0
    replies.append(await model.complete(REQUEST))
    texts = [text_of(reply.message) for reply in replies]
    assert texts == ["b", "c", "a"]
    assert model.name == "first"
    assert [event.kind for event in watch.events] == ["fallback", "recovered"]


@both_ways
@pytest.mark.parametrize("error", [TOO_LONG, ModelError("bad field", status=400)])
async def test_does_not_pass_on_an_invalid_request(error: ModelError, stream: bool) -> None:
    first, second = pair([[error]], [])
    with pytest.raises(ModelError) as caught:
        await call_model(FallbackModel([first, second], fit_request=keep_request), stream=stream)
    assert caught.value is error
    assert not second.requests


async def test_does_not_continue_a_broken_stream_with_another_model() -> None:
    first, second = pair([[text_delta("Hel"), BUSY]], [[make_reply()]])
    with pytest.raises(ModelError):
        await call_model(FallbackModel([first, second], fit_request=keep_request), stream=True)
    assert not second.requests


@both_ways
async def test_raises_the_last_failure_and_then_asks_paused_models(
    stream: bool,
) -> None:
    gone = ModelUnreachableError("gone")
    first, second = pair([[BUSY], [make_reply()]], [[gone], [gone]])
    watch = ModelEventRecorder()
    model = FallbackModel(
        [first, second], fit_request=keep_request, events=watch, clock=watch.clock
    )
    with pytest.raises(ModelUnreachableError):
        await call_model(model, stream=stream)
    await call_model(model, stream=stream)
    assert len(first.requests) == 2


def test_needs_at_least_one_model() -> None:
    with pytest.raises(InputError, match="at least one"):
        FallbackModel([], fit_request=keep_request)


async def test_closes_its_models() -> None:
    first, second = pair([], [])
    await FallbackModel(
        [RetryingModel(first), TimeLimitedModel(second)], fit_request=keep_request
    ).aclose()
    assert (first.closed, second.closed) == (1, 1)
