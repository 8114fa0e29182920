"""Retry, fallback, time limits: wrappers around a scripted model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.types import Api, Reply, Request, StreamingModel
from everthread.errors import (
    InputError,
    ModelError,
    ModelTimeoutError,
    ModelUnreachableError,
)
from everthread.lab.provider import Record
from everthread.lab.provider.faults import Fault
from everthread.providers.resilience import (
    FallbackModel,
    MeteredModel,
    RetryingModel,
    RetryOptions,
    TimeLimitedModel,
    TimeLimits,
)
from tests.providers.fake_model import (
    EventRecorder,
    ScriptedModel,
    make_reply,
    text_delta,
    usage_delta,
)
from tests.providers.http_models import (
    APIS,
    collect_pieces,
    failure_of,
    make_request,
    open_model,
)

BUSY = ModelError("busy", status=529)
TOO_LONG = ModelError(
    "too long",
    status=400,
    body={"error": {"code": "context_length_exceeded", "message": "too long"}},
)
REQUEST = Request(
    "first", [{"role": "user", "content": "Hi"}], params={"max_tokens": 500}
)


def retrying(
    model: StreamingModel, watch: EventRecorder, *, chance: float = 1.0, **options: Any
) -> RetryingModel:
    return RetryingModel(
        model,
        RetryOptions(**options),
        events=watch,
        clock=watch.clock,
        sleep=watch.sleep,
        random_share=lambda: chance,
    )


async def call(
    model: StreamingModel, *, stream: bool, request: Request = REQUEST
) -> Reply:
    if not stream:
        return await model.complete(request)
    _, [whole] = await collect_pieces(model, request)
    return whole


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@both_ways
async def test_a_passing_failure_is_tried_again_with_growing_waits(
    stream: bool,
) -> None:
    inner = ScriptedModel(
        [[BUSY], [ModelUnreachableError("reset")], [BUSY], [make_reply()]]
    )
    watch = EventRecorder()
    whole = await call(retrying(inner, watch), stream=stream)
    assert text_of(whole.message) == "ok"
    assert watch.waits == [0.5, 1.0, 2.0]
    assert [event.kind for event in watch.events] == ["retry"] * 3
    assert "attempt 2 of 4" in watch.events[0].text
    assert watch.events[0].error is BUSY


async def test_waits_are_jittered_by_half_and_bounded() -> None:
    inner = ScriptedModel([[BUSY]] * 9)
    watch = EventRecorder()
    model = retrying(
        inner,
        watch,
        chance=0.0,
        attempts=9,
        max_wait_seconds=3.0,
        max_total_seconds=1e9,
    )
    with pytest.raises(ModelError):
        await model.complete(REQUEST)
    assert watch.waits == [0.25, 0.5, 1.0, 1.5, 1.5, 1.5, 1.5, 1.5]


@both_ways
async def test_the_provider_says_how_long_to_wait(stream: bool) -> None:
    limited = ModelError("slow down", status=429, retry_after=20.0)
    inner = ScriptedModel([[limited], [make_reply()]])
    watch = EventRecorder()
    await call(retrying(inner, watch, chance=0.0), stream=stream)
    assert watch.waits == [20.0]


@both_ways
async def test_nobody_waits_beyond_their_patience(stream: bool) -> None:
    limited = ModelError("slow down", status=429, retry_after=3_600.0)
    inner = ScriptedModel([[limited]])
    watch = EventRecorder()
    with pytest.raises(ModelError, match="slow down"):
        await call(retrying(inner, watch), stream=stream)
    assert watch.waits == []
    assert [event.kind for event in watch.events] == ["gave_up"]


@both_ways
@pytest.mark.parametrize(
    "error", [TOO_LONG, ModelError("no", status=401), ModelError("no", status=400)]
)
async def test_what_does_not_pass_is_raised_at_once(
    error: ModelError, stream: bool
) -> None:
    inner = ScriptedModel([[error]])
    watch = EventRecorder()
    with pytest.raises(ModelError) as caught:
        await call(retrying(inner, watch), stream=stream)
    assert caught.value is error
    assert (watch.waits, watch.events) == ([], [])


@both_ways
async def test_after_the_last_attempt_the_error_itself_is_raised(stream: bool) -> None:
    inner = ScriptedModel([[BUSY]] * 3)
    watch = EventRecorder()
    with pytest.raises(ModelError) as caught:
        await call(retrying(inner, watch, attempts=3), stream=stream)
    assert caught.value is BUSY
    assert [event.kind for event in watch.events] == ["retry", "retry", "gave_up"]


async def test_no_word_is_said_twice() -> None:
    inner = ScriptedModel([[text_delta("Hel"), BUSY], [make_reply()]])
    watch = EventRecorder()
    with pytest.raises(ModelError) as caught:
        await call(retrying(inner, watch), stream=True)
    assert caught.value is BUSY
    assert len(inner.requests) == 1


async def test_a_stream_that_only_told_its_price_can_be_asked_for_again() -> None:
    inner = ScriptedModel(
        [[usage_delta(7), BUSY], [usage_delta(8), text_delta("Hi"), make_reply("Hi")]]
    )
    watch = EventRecorder()
    deltas, [whole] = await collect_pieces(retrying(inner, watch), REQUEST)
    assert [dict(delta.raw) for delta in deltas if delta.kind == "usage"] == [
        {"input_tokens": 8}
    ]
    assert text_of(whole.message) == "Hi"
    assert inner.closed == 2


@pytest.mark.parametrize("api", APIS)
async def test_a_real_provider_that_is_busy_twice_answers_in_the_end(api: Api) -> None:
    watch = EventRecorder()
    faults: list[Any] = [
        Fault("overloaded"),
        Fault("rate_limit", retry_after=3),
        Fault("reset", after=0),
        "At last.",
    ]
    async with open_model(api, faults) as (inner, provider):
        whole = await call(
            retrying(inner, watch, chance=0.0), stream=True, request=make_request()
        )
    assert text_of(whole.message) == "At last."
    assert len(provider.log) == 4
    assert watch.waits == [0.25, 3.0, 1.0]


# Fallback


def pair(first: list[Any], second: list[Any]) -> tuple[ScriptedModel, ScriptedModel]:
    other = ScriptedModel(
        second,
        name="claude-opus-4-1",
        window=200,
        api="anthropic",
        base_url="http://second",
    )
    return ScriptedModel(first), other


@both_ways
async def test_the_next_model_answers_when_the_first_is_out_of_service(
    stream: bool,
) -> None:
    first, second = pair([[BUSY]], [[make_reply("from the second")]])
    watch = EventRecorder()
    asked = []

    async def refit(request: Request, model: StreamingModel) -> Request:
        asked.append((request.model, model.window))
        return Request(
            request.model,
            request.messages[-1:],
            params={**request.params, "refitted": True},
        )

    model = FallbackModel(
        [first, second], fit_request=refit, events=watch, clock=watch.clock
    )
    assert (model.name, model.window, model.api) == ("first", 1_000, "openai_chat")
    whole = await call(model, stream=stream)
    assert text_of(whole.message) == "from the second"
    assert asked == [("claude-opus-4-1", 200)]
    assert second.requests[0].params == {"max_tokens": 500, "refitted": True}
    assert (model.name, model.window, model.api) == (
        "claude-opus-4-1",
        200,
        "anthropic",
    )
    assert [event.kind for event in watch.events] == ["fallback"]
    assert "busy" in watch.events[0].text


async def test_the_first_rests_and_then_serves_again() -> None:
    first, second = pair(
        [[BUSY], [make_reply("a")]], [[make_reply("b")], [make_reply("c")]]
    )
    watch = EventRecorder()
    model = FallbackModel(
        [first, second], events=watch, clock=watch.clock, out_of_service_seconds=60
    )

    async def run() -> list[str]:
        said = [
            text_of((await model.complete(REQUEST)).message),
            text_of((await model.complete(REQUEST)).message),
        ]
        watch.now = 61.0
        return [*said, text_of((await model.complete(REQUEST)).message)]

    assert await run() == ["b", "c", "a"]
    assert model.name == "first"
    assert [event.kind for event in watch.events] == ["fallback", "recovered"]


@both_ways
@pytest.mark.parametrize("error", [TOO_LONG, ModelError("bad field", status=400)])
async def test_a_request_that_is_to_blame_is_not_passed_on(
    error: ModelError, stream: bool
) -> None:
    first, second = pair([[error]], [])
    with pytest.raises(ModelError) as caught:
        await call(FallbackModel([first, second]), stream=stream)
    assert caught.value is error
    assert not second.requests


async def test_a_broken_stream_is_not_continued_by_another_model() -> None:
    first, second = pair([[text_delta("Hel"), BUSY]], [[make_reply()]])
    with pytest.raises(ModelError):
        await call(FallbackModel([first, second]), stream=True)
    assert not second.requests


@both_ways
async def test_when_all_fail_the_last_failure_is_raised_and_those_at_rest_are_asked_all_the_same(
    stream: bool,
) -> None:
    gone = ModelUnreachableError("gone")
    first, second = pair([[BUSY], [make_reply()]], [[gone], [gone]])
    watch = EventRecorder()
    model = FallbackModel([first, second], events=watch, clock=watch.clock)
    with pytest.raises(ModelUnreachableError):
        await call(model, stream=stream)
    await call(model, stream=stream)
    assert len(first.requests) == 2


def test_a_fallback_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        FallbackModel([])


async def test_closing_closes_what_is_inside() -> None:
    first, second = pair([], [])
    await FallbackModel([RetryingModel(first), TimeLimitedModel(second)]).aclose()
    assert (first.closed, second.closed) == (1, 1)


# Time limits


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
            "has fallen silent",
        ),
        (
            [text_delta("Hel"), 30.0, make_reply()],
            TimeLimits(total_seconds=0.05),
            "has not come to the end",
        ),
    ],
    ids=["first", "first, usage apart", "between", "whole"],
)
async def test_a_stream_is_left_when_it_takes_too_long(
    steps: list[Any], limits: TimeLimits, said: str
) -> None:
    inner = ScriptedModel([steps])
    error = await failure_of(TimeLimitedModel(inner, limits), REQUEST, stream=True)
    assert isinstance(error, ModelTimeoutError)
    assert said in str(error)
    assert inner.closed == 1
    if isinstance(steps[0], float):
        assert error.partial is None
    elif steps[0].kind == "text":
        assert text_of(error.partial.message) == "Hel"


async def test_what_the_prompt_cost_is_known_after_a_timeout() -> None:
    inner = ScriptedModel([[usage_delta(3), text_delta("Hel"), 30.0]])
    error = await failure_of(
        TimeLimitedModel(inner, TimeLimits(between_seconds=0.05)), REQUEST, stream=True
    )
    assert error.partial.usage == {"input_tokens": 3}


async def test_a_whole_answer_has_a_limit_too() -> None:
    inner = ScriptedModel([[30.0, make_reply()]])
    error = await failure_of(
        TimeLimitedModel(inner, TimeLimits(total_seconds=0.05)), REQUEST, stream=False
    )
    assert isinstance(error, ModelTimeoutError)
    assert "within 0.05 s" in str(error)


@both_ways
async def test_somebody_elses_timeout_is_not_ours(stream: bool) -> None:
    inner = ScriptedModel([[TimeoutError("of another kind")]])
    with pytest.raises(TimeoutError, match="of another kind"):
        await call(TimeLimitedModel(inner), stream=stream)


async def test_without_limits_time_does_not_matter() -> None:
    inner = ScriptedModel([[text_delta("a"), 0.01, make_reply()]])
    limits = TimeLimits(first_seconds=None, between_seconds=None, total_seconds=None)
    assert (await call(TimeLimitedModel(inner, limits), stream=True)).stop == "stop"


@pytest.mark.parametrize("api", APIS)
async def test_leaving_a_real_provider_closes_the_connection(api: Api) -> None:
    over = asyncio.Event()
    script: list[Any] = ["Warm.", Fault("hang", seconds=60)]

    def listen(record: Record) -> None:
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


async def test_a_rate_limit_is_waited_for_by_minutes() -> None:
    watch = EventRecorder()
    limit = ModelError("slow down", status=429)
    model = ScriptedModel([*([limit] for _ in range(6)), [make_reply("at last")]])
    assert (await retrying(model, watch).complete(REQUEST)).message[
        "content"
    ] == "at last"
    assert sum(watch.waits) > 60


@pytest.mark.parametrize("is_stream", [False, True])
async def test_no_request_of_a_metered_model_is_sent_without_permission(
    *, is_stream: bool
) -> None:
    async def refuse(_: Request) -> None:
        raise ModelError("the limit of today is reached")

    model = ScriptedModel([[make_reply()]], name="gpt-4o")
    metered = MeteredModel(model, lambda _: None, refuse)
    request = Request(model.name, [{"role": "user", "content": "Hello"}])
    answer = (
        collect_pieces(metered, request) if is_stream else metered.complete(request)
    )
    with pytest.raises(ModelError, match="limit of today"):
        await answer
    assert model.requests == []
