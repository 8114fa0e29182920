"""Anthropic's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from everthread.core.types import Api, Reply, Request
from everthread.providers.base import NO_KEY, HttpModel
from everthread.providers.catalog import host_of, output_cap, own_cap, with_output_cap
from everthread.wire import anthropic as wire
from everthread.wire.codecs import StreamDecoder

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic

ANTHROPIC_URL = "https://api.anthropic.com"


class AnthropicModel(HttpModel):
    """A model behind `/v1/messages`. `max_tokens` is required there: the request's, else ours, else the model's own."""

    api: ClassVar[Api] = "anthropic"
    path: ClassVar[str] = "/v1/messages"

    def _open(self, timeout: httpx2.Timeout) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic  # noqa: PLC0415 - a second, when a model is first called

        key, host = self._api_key or NO_KEY, host_of(self.base_url)
        # Others who speak this protocol look for the key where Anthropic's SDK used to put it.
        headers = {} if f".{host}".endswith(".anthropic.com") else {"x-api-key": key}
        return AsyncAnthropic(
            api_key=key, base_url=self.base_url, timeout=timeout, max_retries=0, default_headers=headers
        )

    def _encode(self, request: Request, *, stream: bool) -> dict[str, Any]:
        if output_cap(request) is None:
            request = with_output_cap(request, self.max_tokens or own_cap(request.model, self.window), api=self.api)
        body = wire.encode_request(request)
        body.pop("stream", None)
        return {**body, "stream": True} if stream else body

    def _decode(self, body: Any, model: str) -> Reply:
        return wire.decode_reply(body, model=model)

    def _decoder(self, model: str) -> StreamDecoder:
        return wire.AnthropicStreamDecoder(model=model)

    @staticmethod
    def _errors() -> Any:
        import anthropic  # noqa: PLC0415 - as above

        return anthropic
