"""Clients for three protocols, on the providers' SDKs: OpenAI's chat and responses, Anthropic's messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from everthread.core.json_values import as_object
from everthread.core.messages import text_of
from everthread.core.packages import require_package
from everthread.core.types import Api, ModelReply, ModelRequest, StreamDelta
from everthread.core.urls import host_of
from everthread.errors import ModelError, WireError
from everthread.providers import model_errors as errors
from everthread.providers.catalog import (
    PLACEHOLDER_KEY,
    find_default_output_cap,
    get_output_cap,
    with_output_cap,
)
from everthread.providers.model_errors import ModelAddress
from everthread.wire.codecs import CODECS, StreamDecoder
from everthread.wire.sse import SseEvent, SseParser

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
GOOGLE_URL = "https://generativelanguage.googleapis.com"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
CONNECT_SECONDS = 15.0
READ_TIMEOUT_SECONDS = 600.0
"""Maximum seconds without data: reasoning models think for minutes before the first word."""
_DRAIN_SECONDS = 0.2
_LAST_EVENTS = frozenset({"[DONE]", "message_stop"})
_REASONING_MODEL_PATTERN = re.compile(r"(?:^|/)(?:o\d|gpt-(?:[5-9]|\d\d)|codex)")


def is_reasoning_model(name: str) -> bool:
    """Return whether an OpenAI model reasons, so that its reasoning can be requested and sent back."""
    return _REASONING_MODEL_PATTERN.search(name.lower()) is not None


class HttpModel(ABC):
    """One model at one address. `window` may be updated when a limit is learnt."""

    api: ClassVar[Api]
    path: ClassVar[str]
    sdk: ClassVar[str]
    """The SDK's module, loaded on the first call because that takes a second."""

    def __init__(  # noqa: PLR0913 - a model, its address and its key
        self,
        name: str,
        *,
        window: int,
        base_url: str,
        api_key: str | None = None,
        key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_tokens: int | None = None,
        read_seconds: float = READ_TIMEOUT_SECONDS,
    ) -> None:
        """Raise `MissingPackageError` if the SDK is not installed.

        `key_env` is the environment variable of the key, named in errors.
        """
        require_sdk(self.api)
        self.name = name
        self.window = window
        self.base_url = base_url
        self.headers = dict(headers or {})
        self.max_tokens = max_tokens
        self._api_key = api_key
        self._key_env = key_env
        self._read_seconds = read_seconds
        self._client: AsyncOpenAI | AsyncAnthropic | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self.base_url!r}, window={self.window})"

    async def complete(self, request: ModelRequest) -> ModelReply:
        response = await self._send(request, stream=False)
        return self._read_reply(response.content, request)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamDelta | ModelReply, None]:
        """Yield pieces as they arrive, then the whole reply. Leaving early or cancelling closes the connection."""
        response = await self._send(request, stream=True)
        reader = _StreamReader(
            CODECS[self.api].stream_decoder(model=request.model), self._address(request)
        )
        try:
            if not _is_stream(response):
                with reader.guard_connection():
                    content = await response.aread()
                reply = self._read_reply(content, request)
                yield StreamDelta("text", text=text_of(reply.message))
                yield reply
                return
            async with contextlib.aclosing(_read_events(response, reader)) as events:
                async for event in events:
                    for delta in reader.read_event(event):
                        yield delta
                    if reader.is_finished:
                        await _read_to_end(events)
                        break
        finally:
            await response.aclose()
        yield reader.finish()

    async def aclose(self) -> None:
        """Close the connections; the next call opens new ones."""
        client = self._client
        self._client = None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    def _read_reply(self, content: bytes, request: ModelRequest) -> ModelReply:
        """Decode a whole answer. Raise the error that proxies send inside one with status 200."""
        body = errors.read_body(content)
        route = self._address(request)
        try:
            reply = CODECS[self.api].decode_reply(body, model=request.model)
        except WireError as error:
            if isinstance(body, dict) and (inner_error := _find_error(body)):
                raise errors.make_answer_error(route, inner_error, body, None) from error
            raise errors.make_unreadable_error(route, error, body) from error
        if inner_error := _find_error(body):
            raise errors.make_answer_error(route, inner_error, body, reply)
        return reply

    @abstractmethod
    def _open_client(self, sdk: Any, timeout: httpx2.Timeout) -> AsyncOpenAI | AsyncAnthropic:
        """Return the SDK's client."""

    def _encode(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        """Return the body. The output cap is the request's, else the configured one; Anthropic requires one."""
        cap = self.max_tokens
        if not cap and self.api == "anthropic":
            cap = find_default_output_cap(request.model, self.window)
        if cap is not None and get_output_cap(request) is None:
            request = with_output_cap(request, cap, api=self.api, base_url=self.base_url)
        body = CODECS[self.api].encode_request(request)
        body.pop("stream", None)
        return {**body, "stream": True} if stream else body

    async def _send(self, request: ModelRequest, *, stream: bool) -> httpx2.Response:
        """Return the answer, or its stream once it has begun. Raise `ModelError` if anything fails before that."""
        content = encode_json_body(self._encode(request, stream=stream))
        if self._client is None:
            # Import it in a thread, so that the loop is not blocked.
            await asyncio.to_thread(import_module, self.sdk)
        sdk = import_module(self.sdk)
        import httpx2  # noqa: PLC0415 - it came with the SDK

        route = self._address(request)
        loop = asyncio.get_running_loop()
        try:
            # Connections are useless in another event loop.
            if self._client is None or self._loop is not loop:
                self._client = self._open_client(
                    sdk, httpx2.Timeout(self._read_seconds, connect=CONNECT_SECONDS)
                )
                self._loop = loop
            return await self._client.post(
                self.path,
                cast_to=httpx2.Response,
                content=content,
                stream=stream,
                options={"headers": self.headers},
            )
        except sdk.APIStatusError as error:
            response = error.response
            raise errors.make_refusal_error(
                route, response.status_code, response.headers, response.content
            ) from error
        except (sdk.APITimeoutError, httpx2.TimeoutException) as error:
            raise errors.make_timeout_error(route, error) from error
        except (
            sdk.APIConnectionError,
            httpx2.TransportError,
            httpx2.InvalidURL,
        ) as error:
            raise errors.make_connection_error(route, error) from error

    def _address(self, request: ModelRequest) -> ModelAddress:
        return ModelAddress(request.model, self.base_url, self._key_env, self._api_key)


class _StreamReader:
    """One stream while it is read, and whether the answer is complete."""

    def __init__(self, decoder: StreamDecoder, address: ModelAddress) -> None:
        self._decoder = decoder
        self._address = address
        self._event_count = 0
        self.is_finished = False

    def read_event(self, event: SseEvent) -> list[StreamDelta]:
        self._event_count += 1
        try:
            deltas = self._decoder.feed(event)
        except WireError as error:
            raise errors.make_unreadable_error(
                self._address, error, event.data, self.partial()
            ) from error
        for delta in deltas:
            if delta.kind == "error":
                body = errors.read_body(event.data.encode("utf-8", "replace"))
                raise errors.make_answer_error(self._address, delta.raw, body, self.partial())
        if event.data.strip() in _LAST_EVENTS or event.event in _LAST_EVENTS:
            self.is_finished = True
        return deltas

    def finish(self) -> ModelReply:
        """Return the reply. Some servers omit the end mark, but none the stop reason."""
        if not self._event_count:
            raise errors.make_empty_stream_error(self._address)
        reply = self.partial()
        if reply is None or (reply.stop is None and not self.is_finished):
            raise errors.make_truncation_error(self._address, reply)
        return reply

    def partial(self) -> ModelReply | None:
        """Return the partial answer, or None if nothing has arrived."""
        try:
            return self._decoder.reply()
        except WireError:
            return None

    @contextlib.contextmanager
    def guard_connection(self) -> Iterator[None]:
        """Raise `ModelError` with the partial answer if the connection breaks."""
        import httpx2  # noqa: PLC0415 - it came with the SDK

        try:
            yield
        except httpx2.TimeoutException as error:
            raise errors.make_timeout_error(self._address, error, self.partial()) from error
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise errors.make_connection_error(self._address, error, self.partial()) from error


async def _read_events(
    response: httpx2.Response, reader: _StreamReader
) -> AsyncGenerator[SseEvent, None]:
    parser = SseParser()
    with reader.guard_connection():
        async with contextlib.aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                for event in parser.feed(chunk):
                    yield event
    for event in parser.close():
        yield event


async def _read_to_end(events: AsyncGenerator[SseEvent, None]) -> None:
    """Read the stream to its end, so that the connection can be reused. Ignore failures."""
    with contextlib.suppress(ModelError, TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in events:
                pass


def _is_stream(response: httpx2.Response) -> bool:
    """Detect answers that are not streams: some servers ignore the request for one, and a proxy may send a page."""
    content_type = response.headers.get("content-type", "").lower()
    return not content_type.startswith(("application/json", "text/html"))


def encode_json_body(body: Mapping[str, Any]) -> bytes:
    """Return the body as bytes. A lone surrogate, which a model may write, is escaped."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":")).encode()


def _find_error(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the error in an answer with status 200, or None if it has an answer too."""
    error = body.get("error")
    if not error or body.get("choices") or body.get("content"):
        return None
    return error if isinstance(error, dict) else {"message": str(error)}


class OpenAIModel(HttpModel):
    """A model called through OpenAI's own client; also for every compatible endpoint."""

    sdk = "openai"

    def _open_client(self, sdk: Any, timeout: httpx2.Timeout) -> AsyncOpenAI:
        client: AsyncOpenAI = sdk.AsyncOpenAI(
            api_key=self._api_key or PLACEHOLDER_KEY,
            base_url=self.base_url,
            timeout=timeout,
            max_retries=0,
        )
        return client


class OpenAIChatModel(OpenAIModel):
    """A model called at `/chat/completions`."""

    api = "openai_chat"
    path = "/chat/completions"

    def _encode(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        body = super()._encode(request, stream=stream)
        options = body.pop("stream_options", None)
        if stream:
            body["stream_options"] = {**as_object(options), "include_usage": True}
        return body


class OpenAIResponsesModel(OpenAIModel):
    """A model called at `/responses`.

    By default the server stores nothing, and a reasoning model returns its reasoning encrypted, to be sent back with
    the next request.
    """

    api = "openai_responses"
    path = "/responses"

    def _encode(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        body = super()._encode(request, stream=stream)
        if (
            "store" not in body
            and "previous_response_id" not in body
            and "conversation" not in body
        ):
            body["store"] = False
            if "include" not in body and is_reasoning_model(request.model):
                body["include"] = [ENCRYPTED_REASONING]
        return body


class AnthropicModel(HttpModel):
    """A model called at `/v1/messages`."""

    api = "anthropic"
    path = "/v1/messages"
    sdk = "anthropic"

    def _open_client(self, sdk: Any, timeout: httpx2.Timeout) -> AsyncAnthropic:
        key = self._api_key or PLACEHOLDER_KEY
        host = host_of(self.base_url)
        # Other servers of this protocol read the key from this header.
        headers = {} if f".{host}".endswith(".anthropic.com") else {"x-api-key": key}
        client: AsyncAnthropic = sdk.AsyncAnthropic(
            api_key=key,
            base_url=self.base_url,
            timeout=timeout,
            max_retries=0,
            default_headers=headers,
        )
        return client


def require_sdk(api: Api) -> None:
    """Raise `MissingPackageError` if the SDK for a protocol is not installed."""
    require_package(CLIENTS[api].sdk, extra="models")


CLIENTS: Mapping[Api, type[HttpModel]] = {
    "openai_chat": OpenAIChatModel,
    "openai_responses": OpenAIResponsesModel,
    "anthropic": AnthropicModel,
}
"""The client class of each protocol."""
