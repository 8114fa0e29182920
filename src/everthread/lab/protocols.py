"""What differs between the three protocols, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from everthread.core.exchange import Api, Reply, Request
from everthread.lab.prompt_cache import CacheUse
from everthread.wire import anthropic, openai_chat, openai_chat_stream, openai_responses, openai_responses_stream
from everthread.wire.sse import SseEvent


@dataclass(frozen=True, slots=True)
class Protocol:
    api: Api
    path: str
    prefix: str
    """Of the ids of its replies."""
    caps: tuple[str, ...]
    """The fields that limit the output; the first that is there counts."""
    content: str
    """The field a reply's substance is in."""
    decode_request: Callable[[Mapping[str, Any]], Request]
    decode_reply: Callable[[Mapping[str, Any]], Reply]
    encode_reply: Callable[[Reply], dict[str, Any]]
    encode_stream: Callable[[Reply], Iterator[SseEvent]]
    usage: Callable[[CacheUse, int, int], dict[str, Any]]
    """The usage object from what became of the prompt, the output and the reasoning in it."""

    def cap(self, body: Mapping[str, Any]) -> int | None:
        """How many tokens the reply may have, as asked."""
        return next((body[name] for name in self.caps if isinstance(body.get(name), int)), None)


def _chat_usage(use: CacheUse, output: int, reasoning: int) -> dict[str, Any]:
    written = {"cache_write_tokens": use.write} if use.write else {}
    return {
        "prompt_tokens": use.prompt,
        "completion_tokens": output,
        "total_tokens": use.prompt + output,
        "prompt_tokens_details": {"cached_tokens": use.read, "audio_tokens": 0, **written},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }


def _responses_usage(use: CacheUse, output: int, reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": use.prompt,
        "input_tokens_details": {"cached_tokens": use.read, "cache_write_tokens": use.write},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": use.prompt + output,
    }


def _anthropic_usage(use: CacheUse, output: int, _reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": use.input,
        "cache_creation_input_tokens": use.write,
        "cache_read_input_tokens": use.read,
        "cache_creation": {"ephemeral_5m_input_tokens": use.write_5m, "ephemeral_1h_input_tokens": use.write_1h},
        "output_tokens": output,
        "service_tier": "standard",
    }


CHAT = Protocol(
    api="openai_chat",
    path="/v1/chat/completions",
    prefix="chatcmpl-lab",
    caps=("max_completion_tokens", "max_tokens"),
    content="choices",
    decode_request=openai_chat.decode_request,
    decode_reply=openai_chat.decode_reply,
    encode_reply=openai_chat.encode_reply,
    encode_stream=openai_chat_stream.encode_stream,
    usage=_chat_usage,
)
RESPONSES = Protocol(
    api="openai_responses",
    path="/v1/responses",
    prefix="resp_lab",
    caps=("max_output_tokens",),
    content="output",
    decode_request=openai_responses.decode_request,
    decode_reply=openai_responses.decode_reply,
    encode_reply=openai_responses.encode_reply,
    encode_stream=openai_responses_stream.encode_stream,
    usage=_responses_usage,
)
ANTHROPIC = Protocol(
    api="anthropic",
    path="/v1/messages",
    prefix="msg_lab",
    caps=("max_tokens",),
    content="content",
    decode_request=anthropic.decode_request,
    decode_reply=anthropic.decode_reply,
    encode_reply=anthropic.encode_reply,
    encode_stream=anthropic.encode_stream,
    usage=_anthropic_usage,
)
PROTOCOLS = (CHAT, RESPONSES, ANTHROPIC)
