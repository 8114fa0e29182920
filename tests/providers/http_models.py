"""Models of the three protocols over real HTTP, each through its own SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from everthread.core.types import Api, ModelReply, ModelRequest, StreamDelta, StreamingModel
from everthread.errors import ModelError
from everthread.lab.provider import Provider, RequestRecord
from everthread.lab.provider.script import Script
from everthread.lab.provider.served_models import Models
from everthread.providers.clients import (
    AnthropicModel,
    HttpModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
)
from everthread.wire.codecs import CODECS
from everthread.wire.sse import encode_event
from tests.wire.recording import Scripted, json_reply, sse_reply

CLASSES: dict[Api, type[HttpModel]] = {
    "openai_chat": OpenAIChatModel,
    "openai_responses": OpenAIResponsesModel,
    "anthropic": AnthropicModel,
}
NAME = "test-model"
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def model_at(api: Api, url: str, **options: Any) -> HttpModel:
    """Return a model of the server at the root `url`."""
    base = url if api == "anthropic" else f"{url}/v1"
    defaults: dict[str, Any] = {
        "window": 32_000,
        "api_key": "sk-secret-0123456789",
        "key_env": "TEST_KEY",
    }
    return CLASSES[api](NAME, base_url=base, **(defaults | options))


@asynccontextmanager
async def connect_model(api: Api, url: str, **options: Any) -> AsyncIterator[HttpModel]:
    """Yield a model of the server at the root `url`, and close it."""
    model = model_at(api, url, **options)
    try:
        yield model
    finally:
        await model.aclose()


@asynccontextmanager
async def open_model(
    api: Api,
    script: Script | None = None,
    *,
    models: Models | None = None,
    listen: Callable[[RequestRecord], None] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[HttpModel, Provider]]:
    """Yield a model whose provider answers from the script, and the provider with its log."""
    async with (
        Provider(models or {NAME: 32_000}, script, listen=listen) as provider,
        connect_model(api, provider.url, **options) as model,
    ):
        yield model, provider


def make_request(text: str = "Hello?", **params: Any) -> ModelRequest:
    return ModelRequest(
        NAME, [{"role": "user", "content": text}], system="You help.", params=params
    )


async def collect_pieces(
    model: StreamingModel, request: ModelRequest
) -> tuple[list[StreamDelta], list[ModelReply]]:
    deltas: list[StreamDelta] = []
    replies: list[ModelReply] = []
    async for piece in model.stream(request):
        if isinstance(piece, ModelReply):
            replies.append(piece)
        else:
            assert not replies, "something came after the whole reply"
            deltas.append(piece)
    return deltas, replies


async def failure_of(
    model: StreamingModel, request: ModelRequest | None = None, *, stream: bool
) -> ModelError:
    """Return the error with which a call ends."""
    request = request or make_request()
    try:
        if stream:
            await collect_pieces(model, request)
        else:
            await model.complete(request)
    except ModelError as error:
        return error
    raise AssertionError("the call succeeded")


async def failure_at(api: Api, url: str, *, stream: bool) -> ModelError:
    """Return the error with which a call to this address ends."""
    async with connect_model(api, url) as model:
        return await failure_of(model, stream=stream)


def encode_stream(api: Api, reply: ModelReply) -> list[bytes]:
    codec = CODECS[api]
    return [encode_event(event) for event in codec.encode_stream(codec.encode_reply(reply))]


def script_answer(api: Api, reply: ModelReply, *, stream: bool) -> Scripted:
    """Return the HTTP answer with this reply."""
    if stream:
        return sse_reply(encode_stream(api, reply))
    return json_reply(CODECS[api].encode_reply(reply))
