"""OpenAI's responses, used without state at the server: the conversation is ours to keep."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from everthread.core.types import Api, Reply, Request
from everthread.providers.http import HttpModel
from everthread.providers.openai_chat import open_client
from everthread.providers.output_cap import output_cap, with_output_cap
from everthread.wire import openai_responses
from everthread.wire.codecs import StreamDecoder

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

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
