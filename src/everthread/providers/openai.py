"""OpenAI's chat completions and responses, through its own client; every compatible endpoint too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from everthread.core.types import Api, Reply, Request
from everthread.providers.base import NO_KEY, HttpModel
from everthread.providers.catalog import output_cap, with_output_cap
from everthread.wire import openai_chat
from everthread.wire.codecs import StreamDecoder

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI
import re

from everthread.wire import openai_responses

OPENAI_URL = "https://api.openai.com/v1"


def open_client(base_url: str, api_key: str | None, timeout: httpx2.Timeout) -> AsyncOpenAI:
    from openai import AsyncOpenAI  # noqa: PLC0415 - half a second, when a model is first called

    return AsyncOpenAI(api_key=api_key or NO_KEY, base_url=base_url, timeout=timeout, max_retries=0)


class OpenAIChatModel(HttpModel):
    """A model behind `/chat/completions`."""

    api: ClassVar[Api] = "openai_chat"
    path: ClassVar[str] = "/chat/completions"

    def _open(self, timeout: httpx2.Timeout) -> AsyncOpenAI:
        return open_client(self.base_url, self._api_key, timeout)

    def _encode(self, request: Request, *, stream: bool) -> dict[str, Any]:
        if self.max_tokens is not None and output_cap(request) is None:
            request = with_output_cap(request, self.max_tokens, api=self.api, base_url=self.base_url)
        body = openai_chat.encode_request(request)
        asked = body.pop("stream_options", None)
        body.pop("stream", None)
        if not stream:
            return body
        options = asked if isinstance(asked, dict) else {}
        return {**body, "stream": True, "stream_options": {**options, "include_usage": True}}

    def _decode(self, body: Any, model: str) -> Reply:
        return openai_chat.decode_reply(body, model=model)

    def _decoder(self, model: str) -> StreamDecoder:
        return openai_chat.ChatStreamDecoder(model=model)

    @staticmethod
    def _errors() -> Any:
        import openai  # noqa: PLC0415 - as above

        return openai


ENCRYPTED_REASONING = "reasoning.encrypted_content"
_REASONS = re.compile(r"(?:^|/)(?:o\d|gpt-(?:[5-9]|\d\d)|codex)")


def is_reasoning_model(name: str) -> bool:
    """Whether OpenAI's model of this name reasons, so that its reasoning can be asked for and sent back."""
    return _REASONS.search(name.lower()) is not None


class OpenAIResponsesModel(HttpModel):
    """A model behind `/responses`.

    Where the request says nothing else, nothing is stored at the server, and a reasoning model gives its reasoning
    along, encrypted: it is sent back with the next request, as the server would have remembered it.
    """

    api: ClassVar[Api] = "openai_responses"
    path: ClassVar[str] = "/responses"

    def _open(self, timeout: httpx2.Timeout) -> AsyncOpenAI:
        return open_client(self.base_url, self._api_key, timeout)

    def _encode(self, request: Request, *, stream: bool) -> dict[str, Any]:
        if self.max_tokens is not None and output_cap(request) is None:
            request = with_output_cap(request, self.max_tokens, api=self.api)
        body = openai_responses.encode_request(request)
        body.pop("stream", None)
        if "store" not in body and "previous_response_id" not in body and "conversation" not in body:
            body["store"] = False
            if "include" not in body and is_reasoning_model(request.model):
                body["include"] = [ENCRYPTED_REASONING]
        return {**body, "stream": True} if stream else body

    def _decode(self, body: Any, model: str) -> Reply:
        return openai_responses.decode_reply(body, model=model)

    def _decoder(self, model: str) -> StreamDecoder:
        return openai_responses.ResponsesStreamDecoder(model=model)

    @staticmethod
    def _errors() -> Any:
        import openai  # noqa: PLC0415 - half a second, when a model is first called

        return openai
