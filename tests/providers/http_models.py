"""The three protocols side by side: the same model, the same simulator, each through its own SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from everthread.core.types import Api, Reply, Request, StreamDelta, StreamingModel
from everthread.errors import ModelError
from everthread.lab.provider import Provider, Record
from everthread.lab.provider.script import Script
from everthread.lab.provider.served_models import Models
from everthread.providers.clients import (
    AnthropicModel,
    HttpModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
)
from everthread.wire import anthropic, openai_chat, openai_responses
from everthread.wire.sse import encode_event

APIS: tuple[Api, ...] = ("openai_chat", "openai_responses", "anthropic")
CLASSES: dict[Api, type[HttpModel]] = {
    "openai_chat": OpenAIChatModel,
    "openai_responses": OpenAIResponsesModel,
    "anthropic": AnthropicModel,
}
NAME = "test-model"


def model_at(api: Api, url: str, **options: Any) -> HttpModel:
    """A model at the root `url`, with that protocol's path."""
    base = url if api == "anthropic" else f"{url}/v1"
    defaults: dict[str, Any] = {
        "window": 32_000,
        "api_key": "sk-secret-0123456789",
        "key_env": "TEST_KEY",
    }
    return CLASSES[api](NAME, base_url=base, **(defaults | options))


@asynccontextmanager
async def open_model(
    api: Api,
    script: Script | None = None,
    *,
    models: Models | None = None,
    listen: Callable[[Record], None] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[HttpModel, Provider]]:
    """A model whose provider answers from the script, and the provider with its log."""
    async with Provider(models or {NAME: 32_000}, script, listen=listen) as provider:
        model = model_at(api, provider.url, **options)
        try:
            yield model, provider
        finally:
            await model.aclose()


def make_request(text: str = "Hello?", **params: Any) -> Request:
    return Request(
        NAME, [{"role": "user", "content": text}], system="You help.", params=params
    )


async def collect_pieces(
    model: StreamingModel, request: Request
) -> tuple[list[StreamDelta], list[Reply]]:
    deltas: list[StreamDelta] = []
    replies: list[Reply] = []
    async for piece in model.stream(request):
        if isinstance(piece, Reply):
            replies.append(piece)
        else:
            assert not replies, "something came after the whole reply"
            deltas.append(piece)
    return deltas, replies


async def failure_of(
    model: StreamingModel, request: Request, *, stream: bool
) -> ModelError:
    """The error a call ends with."""
    try:
        if stream:
            await collect_pieces(model, request)
        else:
            await model.complete(request)
    except ModelError as error:
        return error
    raise AssertionError("the call succeeded")


async def failure_at(api: Api, url: str, *, stream: bool) -> ModelError:
    """The error a call to this address ends with."""
    model = model_at(api, url)
    try:
        return await failure_of(model, make_request(), stream=stream)
    finally:
        await model.aclose()


def wire_reply(api: Api, reply: Reply) -> dict[str, Any]:
    encoders = {
        "openai_chat": openai_chat.encode_reply,
        "openai_responses": openai_responses.encode_reply,
        "anthropic": anthropic.encode_reply,
    }
    return encoders[api](reply)


def wire_request(api: Api, request: Request) -> dict[str, Any]:
    encoders = {
        "openai_chat": openai_chat.encode_request,
        "openai_responses": openai_responses.encode_request,
        "anthropic": anthropic.encode_request,
    }
    return encoders[api](request)


def wire_stream(api: Api, reply: Reply) -> Iterator[bytes]:
    encoders = {
        "openai_chat": openai_chat.encode_stream,
        "openai_responses": openai_responses.encode_stream,
        "anthropic": anthropic.encode_stream,
    }
    return (encode_event(event) for event in encoders[api](reply))


def decode_wire(api: Api, body: dict[str, Any]) -> Reply:
    decoders = {
        "openai_chat": openai_chat.decode_reply,
        "openai_responses": openai_responses.decode_reply,
        "anthropic": anthropic.decode_reply,
    }
    return decoders[api](body, model=NAME)
