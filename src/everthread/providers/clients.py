"""The three protocols through their own SDKs: OpenAI's chat completions and responses, Anthropic's messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from everthread.core.types import Api, Request
from everthread.providers.base import NO_KEY, HttpModel
from everthread.providers.catalog import host_of, output_cap, own_cap, with_output_cap
from everthread.wire.codecs import CODECS

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_REASONS = re.compile(r"(?:^|/)(?:o\d|gpt-(?:[5-9]|\d\d)|codex)")


def is_reasoning_model(name: str) -> bool:
    """Whether OpenAI's model of this name reasons, so that its reasoning can be asked for and sent back."""
    return _REASONS.search(name.lower()) is not None


class OpenAIModel(HttpModel):
    """A model behind OpenAI's own client; every compatible endpoint too."""

    def _open(self, timeout: httpx2.Timeout) -> AsyncOpenAI:
        from openai import AsyncOpenAI  # noqa: PLC0415 - half a second, when a model is first called

        return AsyncOpenAI(api_key=self._api_key or NO_KEY, base_url=self.base_url, timeout=timeout, max_retries=0)

    @staticmethod
    def _errors() -> Any:
        import openai  # noqa: PLC0415 - as above

        return openai

    def _encode(self, request: Request, *, stream: bool) -> dict[str, Any]:
        if self.max_tokens is not None and output_cap(request) is None:
            request = with_output_cap(request, self.max_tokens, api=self.api, base_url=self.base_url)
        body = CODECS[self.api].encode_request(request)
        body.pop("stream", None)
        return {**body, "stream": True} if stream else body


class OpenAIChatModel(OpenAIModel):
    """A model behind `/chat/completions`."""

    api: ClassVar[Api] = "openai_chat"
    path: ClassVar[str] = "/chat/completions"

    def _encode(self, request: Request, *, stream: bool) -> dict[str, Any]:
        body = super()._encode(request, stream=stream)
        options = body.pop("stream_options", None)
        if stream:
            body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return body


class OpenAIResponsesModel(OpenAIModel):
    """A model behind `/responses`.

    Where the request says nothing else, nothing is stored at the server, and a reasoning model gives its reasoning
    along, encrypted: it is sent back with the next request, as the server would have remembered it.
    """

    api: ClassVar[Api] = "openai_responses"
    path: ClassVar[str] = "/responses"

    def _encode(self, request: Request, *, stream: bool) -> dict[str, Any]:
        body = super()._encode(request, stream=stream)
        if "store" not in body and "previous_response_id" not in body and "conversation" not in body:
            body["store"] = False
            if "include" not in body and is_reasoning_model(request.model):
                body["include"] = [ENCRYPTED_REASONING]
        return body


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

    @staticmethod
    def _errors() -> Any:
        import anthropic as sdk  # noqa: PLC0415 - as above

        return sdk

    def _encode(self, request: Request, *, stream: bool) -> dict[str, Any]:
        if output_cap(request) is None:
            request = with_output_cap(request, self.max_tokens or own_cap(request.model, self.window), api=self.api)
        body = CODECS[self.api].encode_request(request)
        body.pop("stream", None)
        return {**body, "stream": True} if stream else body


CLIENTS: Mapping[Api, type[HttpModel]] = {
    "openai_chat": OpenAIChatModel,
    "openai_responses": OpenAIResponsesModel,
    "anthropic": AnthropicModel,
}
"""Which class speaks which protocol."""
